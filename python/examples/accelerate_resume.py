# SPDX-License-Identifier: BSD-3-Clause
"""A loop with Accelerate that keeps every step in a pool, and goes on after it was killed as if it had not been.

Run it, kill it, and run it again, alone or with ``accelerate launch``::

    python accelerate_resume.py run.pool --steps 100

It prints a digest of the weights at the end, which an uninterrupted run prints, too.
"""

from __future__ import annotations

import argparse
import hashlib

import torch
from accelerate import Accelerator
from lmcstore.accelerate import register


def main() -> None:
    """Train a small network for some steps, and print what became of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pool")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = torch.randn(400, 32)
    data = torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with register(accelerator, options.pool) as saved:
        done = saved.load()
        for epoch in range(done // len(loader), -(-options.steps // len(loader))):
            for inputs, targets in saved.batches(loader, epoch, skip=done - epoch * len(loader)):
                if done == options.steps:
                    break
                loss = (model(inputs) - targets).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                done += 1
                saved.save(done, metrics={"loss": loss.item()})
                accelerator.print("step", done, flush=True)
    digest = hashlib.sha256()
    for name, tensor in accelerator.unwrap_model(model).state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    accelerator.print("weights", digest.hexdigest())
    accelerator.end_training()


if __name__ == "__main__":
    main()
