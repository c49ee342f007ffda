# SPDX-License-Identifier: BSD-3-Clause
"""Training states: the RNG as something with a state_dict, and a digest that two states share when they are equal."""

import hashlib
import random
from typing import Any

import torch


class Randomness:
    """The random generators that training draws from, to be saved and loaded like a model."""

    def state_dict(self) -> dict[str, Any]:
        """Return the states of torch's and Python's generators."""
        return {"torch": torch.get_rng_state(), "python": random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put them back."""
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])


def state_digest(state: Any) -> str:
    """SHA-256 over structure, types and bytes of any nesting of dicts, lists, tuples, tensors and plain values."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value = value.detach().contiguous()
            digest.update(f"T{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.reshape(-1).view(torch.uint8).numpy())
        elif isinstance(value, dict):
            digest.update(f"D{len(value)}".encode())
            for key, item in value.items():
                add(key)
                add(item)
        elif isinstance(value, list | tuple):
            digest.update(f"{type(value).__name__}{len(value)}".encode())
            for item in value:
                add(item)
        else:
            digest.update(f"{type(value).__name__}:{value!r};".encode())

    add(state)
    return digest.hexdigest()
