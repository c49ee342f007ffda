# SPDX-License-Identifier: BSD-3-Clause
"""A loop with Accelerate, which tests run in one process and in two: python accelerate_loop.py OPTIONS.

Prints the loss of each step, and at the end a digest of weights, optimizer and random numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from lmcstore.accelerate import Registered, register


class Count:
    """An object that is registered."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class Loop:
    """What `run` trains: 7 batches of 4 in an epoch."""

    def __init__(self, kinds: str = "") -> None:
        self.kinds = kinds.split()
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=3 if "accumulation" in self.kinds else 1,
            dataloader_config=DataLoaderConfiguration(
                use_seedable_sampler="seedable" in self.kinds, use_stateful_dataloader="stateful" in self.kinds
            ),
        )
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        rows = torch.randn(28 * ranks, 8)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True)),
            batch_size=4,
            shuffle=True,
            num_workers=2 if "workers" in self.kinds else 0,
            persistent_workers="workers" in self.kinds,
        )
        if "scaler" in self.kinds:
            self.accelerator.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        self.model, self.optimizer, self.scheduler, self.loader = self.accelerator.prepare(
            model, optimizer, scheduler, loader
        )
        self.count = Count()
        self.accelerator.register_for_checkpointing(self.count)
        torch.manual_seed(4 + rank)
        random.seed(5 + rank)
        np.random.seed(6 + rank)

    def step(self, inputs: Any, targets: Any) -> float:
        with self.accelerator.accumulate(self.model):
            inputs = inputs + random.random() + float(np.random.rand())
            loss = (self.model(inputs) - targets).square().mean()
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        self.count.steps += 1
        return loss.item()

    def run(self, saved: Registered, steps: int, log: list[float]) -> int:
        """Train until `steps` are done; returns how many were done before."""
        done = began = saved.load()
        for epoch in range(done // len(self.loader), 100):
            for inputs, targets in saved.batches(self.loader, epoch, skip=done - epoch * len(self.loader)):
                if done == steps:
                    return began
                loss = self.step(inputs, targets)
                done += 1
                log.append(loss)
                saved.save(done, metrics={"loss": loss})
        return began

    def digest(self) -> str:
        digest = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        for state in self.optimizer.state_dict()["state"].values():
            for name in sorted(state):
                digest.update(state[name].numpy().tobytes())
        digest.update(repr((self.scheduler.state_dict(), self.count.steps, self.accelerator.step)).encode())
        digest.update(repr((torch.rand(2).tolist(), random.random(), float(np.random.rand()))).encode())
        return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pool")
    parser.add_argument("--steps", type=int, default=17)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--kill", type=int, help="after this step, by SIGKILL")
    options = parser.parse_args()
    loop = Loop(options.kinds)
    log: list[float] = []
    with register(loop.accelerator, options.pool) as saved:
        began = loop.run(saved, options.kill or options.steps, log)
        if options.kill:
            saved.wait()
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"rank {loop.accelerator.process_index} {began} {log[-1]!r} {loop.digest()}\n", end="", flush=True)


if __name__ == "__main__":
    main()
