# SPDX-License-Identifier: BSD-3-Clause
"""Ways to save while training: each call gets the state of a new step, and may go on in the background."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from peers import Saved, State, fsync_all, save_dcp, save_safetensors, save_torch, start_dcp, stop_dcp

POOL, SHELF = "run.pool", "run"
KEPT = 2
"""The newest files that others keep. lmc-store keeps every snapshot."""
Wait = Callable[[], object]


class Saver(Protocol):
    """Saves to a folder."""

    def save(self, state: State, step: int) -> Wait | None:
        """Save; return a function that waits until the step is durable. None: it is."""

    def finish(self) -> None:
        """Do the work that was put off."""

    def close(self) -> None:
        """Release everything."""


class LmcStore:
    """Snapshots in a new pool, compacted in the background."""

    def __init__(self, folder: Path, optimizer: torch.optim.Optimizer, *, wait: bool, lazy: bool, policy: str) -> None:
        import lmcstore

        self._store = lmcstore.open(folder / POOL, "x")
        self._shelf = self._store.shelf(SHELF, create=True)
        self._shelf.policy = policy
        self._options: dict[str, Any] = {"wait": wait, **({"lazy": optimizer} if lazy else {})}

    def save(self, state: State, step: int) -> Wait | None:
        """Take a snapshot."""
        snapshot = self._shelf.snapshot(state, step=step, **self._options)
        return None if self._options["wait"] else snapshot.wait

    def finish(self) -> None:
        """Compact all but those that the policy keeps raw."""
        self._store.compact()

    def close(self) -> None:
        """Close the pool."""
        self._store.close()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


Write = Callable[[State, Path], Saved]


class Files:
    """A new synced file or folder for each step; older ones are removed."""

    def __init__(self, folder: Path, optimizer: torch.optim.Optimizer, *, write: Write) -> None:
        self._folder, self._write, self._paths = folder, write, list[Path]()
        if write is save_dcp:
            start_dcp()

    def save(self, state: State, step: int) -> Wait | None:
        """Write and sync."""
        path = self._folder / f"step-{step}"
        self._write(state, path)
        self._paths.append(path)
        if len(self._paths) > KEPT:
            _remove(self._paths.pop(0))
        return None

    def finish(self) -> None:
        """Nothing is left."""

    def close(self) -> None:
        """End the process group."""
        stop_dcp()


class DcpAsync:
    """DCP's async_save, in a thread or a process; one is in flight."""

    def __init__(self, folder: Path, optimizer: torch.optim.Optimizer, *, process: bool) -> None:
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        os.environ["MASTER_ADDR"] = "127.0.0.1"
        start_dcp()
        if process:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it logs each save
        self._type = AsyncCheckpointerType.PROCESS if process else AsyncCheckpointerType.THREAD
        self._folder, self._paths = folder, list[Path]()
        self._before: Any = None

    def save(self, state: State, step: int) -> Wait | None:
        """Wait for the one before, then copy."""
        import torch.distributed.checkpoint as dcp

        if self._before is not None:
            self._before.result()
        path = self._folder / f"step-{step}"
        future: Any = dcp.async_save(state, checkpoint_id=path, async_checkpointer_type=self._type)
        self._before = future

        def wait() -> None:
            future.result()
            fsync_all(path)
            self._paths.append(path)
            if len(self._paths) > KEPT:
                _remove(self._paths.pop(0))

        return wait

    def finish(self) -> None:
        """Nothing is left."""

    def close(self) -> None:
        """End the process group."""
        stop_dcp()


Make = Callable[[Path, torch.optim.Optimizer], Saver]
LINKS = "lmc-store, lazy, links"
"""Captures that write links, within the policy's default time of a restore."""
BUSY = "lmc-store, wait=False, links"
"""The same for a loop that uses all processors: links are encoded in the call."""
RESTORES = ("1s", "3s")
RAW: dict[str, Make] = {
    "lmc-store": partial(LmcStore, wait=True, lazy=False, policy="write=raw"),
    "lmc-store, wait=False": partial(LmcStore, wait=False, lazy=False, policy="write=raw"),
    "lmc-store, lazy": partial(LmcStore, wait=False, lazy=True, policy="write=raw"),
}
PEERS: dict[str, Make] = {
    "torch.save + fsync": partial(Files, write=save_torch),
    "safetensors + fsync": partial(Files, write=save_safetensors),
    "DCP save": partial(Files, write=save_dcp),
    "DCP async_save, thread": partial(DcpAsync, process=False),
    "DCP async_save, process": partial(DcpAsync, process=True),
}
WAYS = [*RAW, BUSY, LINKS, *PEERS]


def links_way(restore: str) -> str:
    """Name the way that writes links with a time of a restore."""
    return LINKS if restore == RESTORES[0] else f"{LINKS}, restore={restore}"


def restore_of(way: str) -> str:
    """Return the time of a restore of a way that writes links."""
    return way.removeprefix(LINKS).removeprefix(", restore=") or RESTORES[0]


def saver_of(way: str, folder: Path, optimizer: torch.optim.Optimizer) -> Saver:
    """Make the saver of a way."""
    if way.startswith(LINKS):
        policy = f"write=link restore={restore_of(way)}"
        return LmcStore(folder, optimizer, wait=False, lazy=True, policy=policy)
    if way == BUSY:
        return LmcStore(folder, optimizer, wait=False, lazy=False, policy=f"write=link restore={RESTORES[0]}")
    return (RAW | PEERS)[way](folder, optimizer)
