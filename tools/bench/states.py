# SPDX-License-Identifier: BSD-3-Clause
"""Training states, and their digest."""

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np

try:
    import torch
except ImportError:  # then of NumPy arrays
    torch = None  # type: ignore[assignment]


class Randomness:
    """Random generators with a state_dict."""

    def state_dict(self) -> dict[str, Any]:
        """Return the generators' states."""
        return {"torch": torch.get_rng_state(), "python": random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the generators' states."""
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])


def state_digest(state: Any) -> str:
    """Hash nested structure, types and bytes by SHA-256."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, np.ndarray):
            digest.update(f"A{value.dtype}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        elif torch is not None and isinstance(value, torch.Tensor):
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


def disk_bytes(path: Path) -> int:
    """Return disk space in bytes."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_blocks * 512 for file in files)


def tensors_of(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten to dotted names."""
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        return {prefix: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    flat: dict[str, Any] = {}
    for key, item in items:
        flat.update(tensors_of(item, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def read_all(state: dict[str, Any]) -> None:
    """Read every byte."""
    for tensor in tensors_of(state).values():
        if isinstance(tensor, np.ndarray):
            np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).sum()
            continue
        flat = tensor.reshape(-1).view(torch.uint8)
        (flat.view(torch.int32) if tensor.nbytes % 4 == 0 else flat).sum()
