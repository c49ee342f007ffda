# SPDX-License-Identifier: BSD-3-Clause
"""Runs functions on gloo ranks, each in a process of its own that is forked from a server with torch loaded."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import torch
import torch.distributed as dist
from lmcstore._folder import writing
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

_LIMIT_S = 60.0
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "dcp_ranks",
        "lmcstore.dcp",
        "torch.distributed.tensor",
        "torch.distributed.checkpoint",
    ]
)

PLACES: dict[str, list[Placement]] = {
    "rows": [Shard(0)],
    "columns": [Shard(1)],
    "replicated": [Replicate()],
}
SHAPES = {
    "odd": (7, 5),
    "tall": (13, 2),
    "few rows": (2, 9),
    "one row": (1, 3),
    "empty": (0, 4),
    "deep": (5, 3, 2),
}


def whole(shape: tuple[int, ...], step: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1000 * step


def sharded(mesh: DeviceMesh, places: dict[str, list[Placement]], step: int) -> dict[str, dict[str, DTensor]]:
    """Return DTensors of all shapes, in a dict for each placement."""
    return {
        place: {name: distribute_tensor(whole(shape, step), mesh, places[place]) for name, shape in SHAPES.items()}
        for place in PLACES
    }


def state_of(world: int, step: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (world,))
    return {
        "model": sharded(mesh, PLACES, step),
        "scalar": torch.tensor(float(step)),
        "step": step,
        "config": {"lr": 0.1 * step, "names": ["a", None, True]},
    }


def expected(step: int) -> dict[str, Any]:
    """Return the whole state that `state_of` shards."""
    return {
        "model": {place: {name: whole(shape, step) for name, shape in SHAPES.items()} for place in PLACES},
        "scalar": torch.tensor(float(step)),
        "step": step,
        "config": {"lr": 0.1 * step, "names": ["a", None, True]},
    }


def kill_after(name: str, kind: type) -> None:
    """End this process by SIGKILL when a method of a class in `lmcstore._folder.writing` has returned."""
    method = getattr(kind, name)

    def replaced(*arguments: Any, **options: Any) -> Any:
        method(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(kind, name, replaced)


def leave_prepared() -> None:
    """Keep this process from committing what it has prepared, as if it stopped at once after the save."""
    writing.RankWriter.commit = lambda *arguments: None  # type: ignore[method-assign]
    writing.settle = lambda *arguments: None


def _main(
    rank: int,
    world: int,
    store: str,
    connection: Any,
    function: Callable[..., Any],
    arguments: Any,
) -> None:
    warnings.simplefilter("ignore", lmcstore.CreationWarning)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        limit = datetime.timedelta(seconds=_LIMIT_S / 2)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world,
            timeout=limit,
        )
        result = function(rank, world, *arguments)
        writing._close_all()  # which the end of a process that multiprocessing has forked leaves out
        connection.send((True, result))
        dist.destroy_process_group()
    except BaseException:  # DCP's CheckpointException is no Exception
        connection.send((False, traceback.format_exc()))


def run(
    world: int,
    function: Callable[..., Any],
    *arguments: Any,
    killed: tuple[int, ...] = (),
) -> list[Any]:
    """Call ``function(rank, world, *arguments)`` on each rank, and return the results.

    Of ranks that failed: None. Unless some are to be `killed`, a rank's error fails the test.
    """
    with tempfile.TemporaryDirectory() as folder:
        pairs = [_context.Pipe(False) for _ in range(world)]
        ranks = [
            _context.Process(
                target=_main,
                args=(
                    rank,
                    world,
                    f"{folder}/store",
                    pairs[rank][1],
                    function,
                    arguments,
                ),
                daemon=True,
            )
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for _, sender in pairs:
            sender.close()
        results = [_result(receiver) for receiver, _ in pairs]
        for process in ranks:
            process.join(_LIMIT_S)
            if process.is_alive():
                process.kill()
                process.join()
        failures = [text for is_fine, text in results if not is_fine]
        assert killed or not failures, "\n".join(map(str, failures))
        assert all(ranks[rank].exitcode == -signal.SIGKILL for rank in killed), [one.exitcode for one in ranks]
        return [result if is_fine else None for is_fine, result in results]


def _result(receiver: Any) -> tuple[bool, Any]:
    if not receiver.poll(_LIMIT_S):
        return False, "a rank has not ended"
    try:
        received: tuple[bool, Any] = receiver.recv()
    except EOFError:
        return False, "a rank was killed"
    return received


def numbers_of(folder: Path) -> dict[str, list[int]]:
    """Return the numbers of the snapshots in each pool of a run's folder; fails if one has a prepared snapshot."""
    found = {}
    for path in sorted(folder.glob("*.pool")):
        with lmcstore.open(path, "r+", background=False) as store:
            found[path.name] = [snapshot.number for snapshot in store["run"]]
            assert not store._pool.groups()
    return found
