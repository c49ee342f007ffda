# SPDX-License-Identifier: BSD-3-Clause
"""Ways to save a training state.

Each writes a new file and returns the seconds until its caller continued, and until the bytes were synced.
"""

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from states import disk_bytes, tensors_of

State = dict[str, Any]


@dataclass
class Saved:
    """Seconds from the start, and bytes on disk."""

    blocked_s: float
    durable_s: float
    disk_bytes: int


def fsync_all(path: Path) -> None:
    """Sync a file or folder with all in it, and its name."""
    for file in (path, *path.rglob("*"), path.parent):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def save_torch(state: State, path: Path) -> Saved:
    """Call torch.save, then sync."""
    start = time.perf_counter()
    torch.save(state, path)
    blocked = time.perf_counter() - start
    fsync_all(path)
    return Saved(blocked, time.perf_counter() - start, disk_bytes(path))


def save_safetensors(state: State, path: Path) -> Saved:
    """Save and sync safetensors: tensors alone, tied ones once."""
    start = time.perf_counter()
    seen: set[int] = set()
    flat = {}
    for name, tensor in tensors_of(state).items():
        if tensor.numel() == 0 or tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            flat[name] = tensor
    safetensors.torch.save_file(flat, path)
    fsync_all(path)
    durable = time.perf_counter() - start
    return Saved(durable, durable, disk_bytes(path))


def start_dcp() -> None:
    """Start async_save's one-process group."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def stop_dcp() -> None:
    """End the group."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def save_dcp(state: State, path: Path) -> Saved:
    """Save by Distributed Checkpoint, which syncs."""
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        dcp.save(state, checkpoint_id=path)
        fsync_all(path)
        durable = time.perf_counter() - start
    return Saved(durable, durable, disk_bytes(path))


def save_dcp_async(state: State, path: Path) -> Saved:
    """Save by async_save, which returns after its copy."""
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        future = dcp.async_save(state, checkpoint_id=path)
        blocked = time.perf_counter() - start
        future.result()
        fsync_all(path)
        durable = time.perf_counter() - start
    return Saved(blocked, durable, disk_bytes(path))


def save_lmcstore(shelf: Any, state: State, step: int, wait: bool) -> Saved:
    """Take a snapshot, durable when it returns, or with wait=False captured."""
    start = time.perf_counter()
    snap = shelf.snapshot(state, step=step, wait=wait)
    blocked = time.perf_counter() - start
    snap.wait()
    durable = time.perf_counter() - start
    return Saved(blocked, durable, 0)


FILE_SAVERS: dict[str, Callable[[State, Path], Saved]] = {
    "torch.save, then fsync": save_torch,
    "safetensors, then fsync": save_safetensors,
    "DCP save": save_dcp,
    "DCP async_save": save_dcp_async,
}
