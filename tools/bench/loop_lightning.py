# SPDX-License-Identifier: BSD-3-Clause
"""Trains the model of python/examples/lightning_resume.py, but wider, with a checkpoint after every step.

Usage: loop_lightning.py WAY FOLDER STEPS [--small]. Run by trainers_loops.py.
"""

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lmcstore.lightning import StoreCheckpointIO
from loop_clock import Clock, Loop, answer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "python/examples"))
from lightning_resume import Batches, Model

WIDTH, SMALL = 58_000, 500
"""Of the layer: 30 MB of parameters, or few."""


class Times(Callback):
    """Tells the clock where the loop begins and ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin."""
        self._clock.begin(sum(parameter.numel() for parameter in pl_module.parameters()))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End."""
        self._clock.end()


def plugins_of(loop: Loop) -> list[Any]:
    """Return what saves, if it isn't Lightning's default."""
    if loop.way.startswith("StoreCheckpointIO"):
        return [StoreCheckpointIO(loop.pool, wait="wait=False" not in loop.way)]
    return [AsyncCheckpointIO()] if loop.way.startswith("AsyncCheckpointIO") else []


def train(loop: Loop, clock: Clock) -> None:
    """Train."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0)
    saves = loop.way != "none"
    keeper = ModelCheckpoint(loop.folder / "checkpoints", every_n_train_steps=1, save_top_k=-1)
    trainer = Trainer(
        accelerator="cpu",
        plugins=plugins_of(loop),
        callbacks=[Times(clock), *([keeper] if saves else [])],
        enable_checkpointing=saves,
        max_steps=loop.steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(SMALL if loop.small else WIDTH), Batches(loop.steps))


if __name__ == "__main__":
    answer(__doc__, train)
