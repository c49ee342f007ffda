# SPDX-License-Identifier: BSD-3-Clause
"""Trains a sharded model: STEPS RANKS KIND [CHECKPOINT]; KIND is FSDP1 or FSDP2."""

import hashlib
import sys

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lmcstore.lightning import StoreFSDPStrategy, StoreModelParallelStrategy
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard


class Model(BoringModel):
    def configure_model(self):
        torch.manual_seed(1)
        parts = torch.nn.Linear(32, 7), torch.nn.Linear(7, 2)
        if KIND == "FSDP1":
            if not isinstance(self.layer, FullyShardedDataParallel):
                self.layer = sharded(torch.nn.Sequential(*map(sharded, parts)))
            return
        self.layer = torch.nn.Sequential(*parts)
        for part in self.layer:
            fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(100, 32))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def sharded(module):
    return FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=True)


def digests(module):
    """Hash the whole parameters, on all ranks."""
    with FullyShardedDataParallel.summon_full_params(module):  # does nothing with FSDP2
        parts = [part.full_tensor() if hasattr(part, "full_tensor") else part for part in module.parameters()]
        return [hashlib.sha256(part.detach().clone().numpy().tobytes()).hexdigest() for part in parts]


if __name__ == "__main__":
    steps, world, KIND = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if KIND == "FSDP1":
        strategy = StoreFSDPStrategy("run")
    else:
        strategy = StoreModelParallelStrategy("run", data_parallel_size=world, tensor_parallel_size=1)
    trainer = Trainer(
        accelerator="cpu",
        devices=world,
        max_steps=steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        strategy=strategy,
        callbacks=[
            ModelCheckpoint(
                "checkpoints", every_n_train_steps=1, monitor="step", mode="max", save_top_k=2, save_last=True
            )
        ],
    )
    trainer.fit(Model(), ckpt_path=sys.argv[4] if len(sys.argv) > 4 else None)
    found = digests(trainer.model)
    if trainer.global_rank == 0:
        print("step", trainer.global_step, found)
