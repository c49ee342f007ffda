# SPDX-License-Identifier: BSD-3-Clause
"""A training whose checkpoints torch_checkpointing writes into a pool: end it at any time, and start it again.

Run it::

    python torch_checkpointing_train.py run.pool --steps 6
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
from lmcstore.torch_checkpointing import StoreStorageConfig
from torch_checkpointing import CheckpointManager


def main() -> None:
    """Train, from the last checkpoint on."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("pool", help="path of the pool, whose name ends in .pool")
    arguments.add_argument("--steps", type=int, default=6)
    options = arguments.parse_args()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    config = StoreStorageConfig()
    storage, start = config.create_storage(), 0
    manager = CheckpointManager.Config(storage_config=config).build()
    names = storage.ls(Path(options.pool)) if os.path.exists(options.pool) else []
    steps = [int(name.removeprefix("step-")) for name in names if name.startswith("step-")]
    if steps:
        loaded = manager.load(
            f"{options.pool}/step-{max(steps)}", into={"model": None, "optimizer": None, "rng": None, "step": None}
        )
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        torch.set_rng_state(loaded["rng"])
        start = loaded["step"] + 1
        print("resuming at step", start)
    written = None
    for step in range(start, options.steps):
        inputs = torch.randn(16, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        with manager.lock():
            optimizer.step()
        if written is not None:
            written.result()  # the checkpoint before: durable, or this raises its error
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
        written = manager.save(f"{options.pool}/step-{step}", state | {"step": step})
        print("step", step, loss.item(), flush=True)
    manager.close()
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    print("parameters", digest.hexdigest())


if __name__ == "__main__":
    main()
