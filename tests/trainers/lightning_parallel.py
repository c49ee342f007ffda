# SPDX-License-Identifier: BSD-3-Clause
"""Trains on two data-parallel ranks: STEPS."""

import hashlib
import sys

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lmcstore.lightning import StoreCheckpointIO


class Model(BoringModel):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(32, 2)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(100, 32))


if __name__ == "__main__":
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=int(sys.argv[1]),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        plugins=[StoreCheckpointIO("run.pool", wait=False)],
        callbacks=[ModelCheckpoint("checkpoints", every_n_train_steps=1, save_top_k=1, save_last=True)],
    )
    trainer.fit(Model(), ckpt_path="last")
    if trainer.global_rank == 0:
        weight = trainer.lightning_module.layer.weight
        print("step", trainer.global_step, hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest())
