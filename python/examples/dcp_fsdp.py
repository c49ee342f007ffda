# SPDX-License-Identifier: BSD-3-Clause
"""Trains a model that is sharded by FSDP, and saves every step by dcp.async_save; started again, it goes on.

    torchrun --nproc-per-node 2 python/examples/dcp_fsdp.py run --steps 20

The last line has a digest of the model and the optimizer: the same, however often the program was stopped.
"""

import argparse
import hashlib
from typing import Any

import lmcstore
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from lmcstore.dcp import StoreReader, StoreWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def newest_step(folder: str) -> int:
    """Return the step of the newest snapshot; 0: there is none."""
    try:
        with lmcstore.open(folder, mode="r") as run:
            newest = run["run"].latest
    except lmcstore.NotFoundError:
        return 0
    return 0 if newest is None or newest.step is None else newest.step


def digest(state: Any) -> str:
    """Return a digest of all tensors of a state."""
    found = hashlib.sha256()
    values = [state]
    while values:
        value = values.pop()
        if isinstance(value, torch.Tensor):
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            found.update(whole.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, tuple):
            values += value
        elif isinstance(value, dict):
            values += [value[key] for key in sorted(value)]
    return found.hexdigest()[:16]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="of the run")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    group = dist.new_group(backend="gloo")  # of the threads that save, beside the training's collectives

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    done = newest_step(options.folder)
    if done:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, storage_reader=StoreReader(options.folder, step=done))
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    saving: Any = None
    for step in range(done + 1, options.steps + 1):
        torch.manual_seed(step * world + rank)  # of this step's data
        inputs = torch.randn(32, 64)
        loss = (model(inputs) - inputs.sum(1, keepdim=True).sin()).square().mean()
        loss.backward()
        if saving is not None:
            saving.result()  # the step before is durable
        optimizer.step()
        optimizer.zero_grad()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        writer = StoreWriter(options.folder, step=step, lazy=optimizer)
        saving = dcp.async_save(state, storage_writer=writer, process_group=group)
        if rank == 0:
            print(f"step {step}: loss {float(loss.detach()):.4f}", flush=True)
    if saving is not None:
        saving.result()
    text = digest(get_state_dict(model, optimizer))
    if rank == 0:
        print(f"after step {options.steps}: {text}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
