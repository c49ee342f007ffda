# SPDX-License-Identifier: BSD-3-Clause
"""Trains a sharded model by Fabric: STEPS RANKS KIND [CHECKPOINT]; KIND is FSDP1 or FSDP2."""

import sys

import torch
from lightning.fabric import Fabric
from lightning_sharded import digests, fully_shard, sharded
from lmcstore.lightning.fabric import StoreFSDPStrategy, StoreModelParallelStrategy


def shard(module, mesh):
    for part in module:
        fully_shard(part, mesh=mesh["data_parallel"])
    return module


if __name__ == "__main__":
    steps, world, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(1)
    parts = torch.nn.Linear(32, 7), torch.nn.Linear(7, 2)
    if kind == "FSDP1":
        strategy = StoreFSDPStrategy("run")
    else:
        strategy = StoreModelParallelStrategy("run", shard, data_parallel_size=world, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", devices=world, strategy=strategy)
    fabric.launch()
    module = sharded(torch.nn.Sequential(*map(sharded, parts))) if kind == "FSDP1" else torch.nn.Sequential(*parts)
    model = fabric.setup_module(module)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=0.01))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 0, "note": ["first"]}
    if len(sys.argv) > 4:
        wanted = {name: value for name, value in state.items() if name != "note"}
        assert fabric.load(sys.argv[4], wanted) == {"note": ["kept"]}
        state["step"] = wanted["step"]
    while state["step"] < steps:
        fabric.backward(model(torch.ones(1, 32)).sum())
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        state |= {"step": state["step"] + 1, "note": ["kept"]}
        fabric.save("last.ckpt", state)
        if state["step"] == 3:
            fabric.save("three.ckpt", state)
    found = digests(module)
    if fabric.global_rank == 0:
        print("step", state["step"], found)
