# SPDX-License-Identifier: BSD-3-Clause
"""Trains a sharded model: STEPS RANKS [CHECKPOINT]."""

import hashlib
import sys

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lmcstore.lightning import StoreModelParallelStrategy
from torch.distributed.fsdp import fully_shard


class Model(BoringModel):
    def configure_model(self):
        torch.manual_seed(1)
        self.layer = torch.nn.Sequential(torch.nn.Linear(32, 7), torch.nn.Linear(7, 2))
        for part in self.layer:
            fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(100, 32))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


if __name__ == "__main__":
    steps, world, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None
    trainer = Trainer(
        accelerator="cpu",
        devices=world,
        max_steps=steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        strategy=StoreModelParallelStrategy("run", data_parallel_size=world, tensor_parallel_size=1),
        callbacks=[
            ModelCheckpoint(
                "checkpoints", every_n_train_steps=1, monitor="step", mode="max", save_top_k=2, save_last=True
            )
        ],
    )
    trainer.fit(Model(), ckpt_path=path)
    parts = [part.full_tensor().detach() for part in trainer.model.parameters()]
    if trainer.global_rank == 0:
        print("step", trainer.global_step, [hashlib.sha256(part.numpy().tobytes()).hexdigest() for part in parts])
