# SPDX-License-Identifier: BSD-3-Clause
"""A training with Lightning that can be killed at any time, and started again: the result is the same to the last bit.

It begins, or goes on: ``python lightning_resume.py FOLDER --steps 200``.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore.lightning
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint


class Batches:
    """A loader that knows its place: Lightning saves and restores it (torchdata's StatefulDataLoader has one, too)."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.next = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.next < self.count:
            self.next += 1
            yield torch.randn(32, 64, generator=torch.Generator().manual_seed(self.next))
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        """Return the place."""
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a place."""
        self.next = state["next"]


class Model(LightningModule):
    """An autoencoder."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 64))

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        """Return the loss."""
        loss = (self.layers(batch) - batch).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        """Return AdamW and its schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--background", action="store_true", help="snapshots become durable in the background")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0)
    options.folder.mkdir(exist_ok=True)
    pool = options.folder / "run.pool"
    checkpoints = ModelCheckpoint(
        options.folder / "checkpoints", every_n_train_steps=1, save_top_k=2, monitor="loss", save_last=True
    )
    trainer = Trainer(
        accelerator="cpu",
        plugins=[lmcstore.lightning.StoreCheckpointIO(pool, wait=not options.background)],
        callbacks=[checkpoints],
        max_steps=options.steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, Batches(50), ckpt_path="last")
    text = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()
    print(f"step {trainer.global_step}, weights {text}")
    print(f"best {Path(checkpoints.best_model_path).name}")


if __name__ == "__main__":
    main()
