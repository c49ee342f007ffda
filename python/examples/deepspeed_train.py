# SPDX-License-Identifier: BSD-3-Clause
"""A training with DeepSpeed whose checkpoints are in pools: end it at any time, and start it again.

Run it on two ranks of a CPU::

    DS_ACCELERATOR=cpu deepspeed --num_accelerators 2 deepspeed_train.py run --steps 6
"""

from __future__ import annotations

import argparse
import hashlib

import deepspeed
import torch
from lmcstore.deepspeed import StoreCheckpointEngine, latest


def main() -> None:
    """Train, from the last checkpoint on."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("folder", help="folder of the checkpoints")
    arguments.add_argument("--steps", type=int, default=6)
    arguments.add_argument("--stage", type=int, default=2, help="of ZeRO")
    arguments.add_argument("--local_rank", type=int, default=0, help="given by deepspeed")
    options = arguments.parse_args()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
        "zero_optimization": {"stage": options.stage},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.checkpoint_engine = StoreCheckpointEngine(engine)
    rank = torch.distributed.get_rank()
    tag, losses = latest(options.folder), []
    if tag is not None:
        _, state = engine.load_checkpoint(options.folder, tag=tag)
        losses = state["losses"]
        print("resuming at step", engine.global_steps, flush=True)
    for step in range(engine.global_steps, options.steps):
        numbers = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(8, 8, generator=numbers)
        loss = (engine(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        engine.save_checkpoint(options.folder, client_state={"losses": losses})
        print("step", step, loss.item(), flush=True)
    digest = hashlib.sha256()
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
    print("parameters", digest.hexdigest(), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
