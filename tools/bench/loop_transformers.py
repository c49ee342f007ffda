# SPDX-License-Identifier: BSD-3-Clause
"""Trains a GPT-2 by the Trainer of transformers, with a checkpoint after every step.

Usage: loop_transformers.py WAY FOLDER STEPS [--small]. Run by trainers_loops.py.
"""

import warnings
from typing import Any

import torch
import transformers
from lmcstore.transformers import SnapshotCallback, StoreTrainer
from loop_clock import Clock, Loop, answer
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

BATCH, CONTEXT, VOCABULARY = 4, 32, 4096
SHAPE, SMALL = {"n_embd": 256, "n_layer": 8, "n_head": 4}, {"n_embd": 32, "n_layer": 1, "n_head": 2}
"""Of the model: 30 MB of parameters, or few."""


LAZY = {"StoreTrainer, lazy=True": True, "StoreTrainer, lazy=False": False}


class StoredTrainer(StoreTrainer, Trainer):
    """A Trainer whose checkpoints are snapshots."""


class Times(TrainerCallback):
    """Tells the clock where the loop begins and ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Begin."""
        self._clock.begin(sum(parameter.numel() for parameter in objects["model"].parameters()))

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """End."""
        self._clock.end()


def train(loop: Loop, clock: Clock) -> None:
    """Train."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, bos_token_id=0, eos_token_id=0, **(SMALL if loop.small else SHAPE)
    )
    rows = torch.randint(VOCABULARY, (BATCH * loop.steps, CONTEXT))
    saves = loop.way not in ("none", "SnapshotCallback")
    args = TrainingArguments(
        output_dir=str(loop.folder / "checkpoints"),
        max_steps=loop.steps,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-4,
        logging_steps=loop.steps,
        save_strategy="steps" if saves else "no",
        save_steps=1,
        save_total_limit=2 if "save_total_limit=2" in loop.way else None,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    callbacks: list[TrainerCallback] = [Times(clock)]
    given: dict[str, Any] = {"train_dataset": [{"input_ids": row, "labels": row} for row in rows]}
    model = GPT2LMHeadModel(config)
    if loop.way.startswith("StoreTrainer"):
        given |= {"store": loop.pool, "lazy": LAZY.get(loop.way)}
        StoredTrainer(model, args, callbacks=callbacks, **given).train()
        return
    if loop.way == "SnapshotCallback":
        callbacks.append(SnapshotCallback(loop.pool))
    Trainer(model, args, callbacks=callbacks, **given).train()


if __name__ == "__main__":
    answer(__doc__, train)
