# SPDX-License-Identifier: BSD-3-Clause
"""Loads a training state in one way and takes a step, for store.py.

Usage: start.py WAY PATH. Prints the seconds from LMCS_BENCH_START (Unix time) to the first step's end.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "quickstart"))
from model import CONTEXT, GPT


def load(way: str, path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a saved state into model and optimizer."""
    if way == "lmc-store":
        import lmcstore

        lmcstore.open(path, mode="r")["run"].latest.load_into(model=model, optimizer=optimizer)
    elif way in ("torch.load", "torch.load mmap"):
        state = torch.load(path, mmap=way == "torch.load mmap")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    elif way == "safetensors":
        from safetensors.torch import load_file

        flat = load_file(path)
        flat.setdefault("model.head.weight", flat["model.token.weight"])
        model.load_state_dict({name[6:]: tensor for name, tensor in flat.items() if name.startswith("model.")})
        moments: dict[int, Any] = {}
        for name, tensor in flat.items():
            if name.startswith("optimizer.state."):
                index, key = name.split(".")[2:]
                moments.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})


def main() -> None:
    """Load, take a step, print the time."""
    way, path = sys.argv[1:]
    torch.manual_seed(1)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters())
    load(way, path, model, optimizer)
    data = torch.randint(256, (2, CONTEXT + 1))
    model.loss(data[:, :-1], data[:, 1:]).backward()
    optimizer.step()
    print(time.time() - float(os.environ["LMCS_BENCH_START"]))


if __name__ == "__main__":
    main()
