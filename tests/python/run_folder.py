# SPDX-License-Identifier: BSD-3-Clause
"""Folders of runs of many ranks, written in one process, without torch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
from lmcstore._folder import writing
from lmcstore._folder.record import Box, Record

_DTYPES = {"f": "f32", "e": "f16", "d": "f64", "l": "i64", "B": "u8"}
Arrays = dict[str, np.ndarray[Any, Any]]
SHELF = "run"
RANKS = ["rank-00000.pool", "rank-00001.pool", "rank-00002.pool"]
POOLS = [*RANKS, "records.pool"]


@contextmanager
def in_memory() -> Iterator[Path]:
    """Make a folder, in memory if there is /dev/shm."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lmcs-test-", dir=where) as made:
        yield Path(made)


def arrays(step: int) -> Arrays:
    """Return the arrays of a run's state. Those whose name begins with "columns" are split along the second axis."""
    generator = np.random.default_rng(step)
    return {
        "model.weight": generator.standard_normal((7, 5)).astype(np.float32),
        "model.bias": np.arange(5, dtype=np.float16) + step,
        "columns.deep": generator.standard_normal((4, 6, 3)),
        "same": np.arange(12, dtype=np.int64).reshape(3, 4),
        "scalar": np.array(step, dtype=np.int64),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "large": np.arange(300_000, dtype=np.float32) * step,
    }


def _pieces(name: str, array: np.ndarray[Any, Any], world: int) -> list[tuple[tuple[int, ...], np.ndarray[Any, Any]]]:
    """Return the offsets and the part of each rank; one rank has a scalar or an empty array."""
    if array.size < world:
        return [((0,) * array.ndim, array)]
    axis = 1 if name.startswith("columns") else 0
    made, first = [], 0
    for piece in np.array_split(array, world, axis):
        offsets = [0] * array.ndim
        offsets[axis] = first
        first += piece.shape[axis]
        made.append((tuple(offsets), np.ascontiguousarray(piece)))
    return made


def save(
    folder: Path,
    step: int,
    state: Arrays | None = None,
    *,
    world: int = 3,
    values: Mapping[str, Any] | None = None,
    commits: bool = True,
    **options: Any,
) -> lmcstore.Snapshot:
    """Save a snapshot of a run. `commits`: also the parts, which stay prepared else."""
    state = arrays(step) if state is None else state
    records = writing.Records(str(folder), SHELF)
    records.settle_others(range(world))
    record = Record(world)
    pieces = {name: _pieces(name, array, world) for name, array in state.items()}
    writers = [writing.RankWriter(str(folder), rank) for rank in range(world)]
    for rank, writer in enumerate(writers):
        writer.settle(SHELF)
        writer.collect(SHELF)
        mine = {name: found[rank][1] for name, found in pieces.items() if rank < len(found)}
        record.ranks[rank], names = writer.prepare(SHELF, mine, step)
        assert names == list(mine)
    for name, array in state.items():
        boxes = [Box(rank, name, offsets, piece.shape) for rank, (offsets, piece) in enumerate(pieces[name])]
        record.tensors.add(name, _DTYPES[array.dtype.char], array.shape, boxes)
        record.paths[name] = tuple(name.split("."))
    for name, value in (values or {}).items():
        record.values[name] = value
        record.paths[name] = tuple(name.split("."))
    saved = records.commit(record, step, options.get("tags", ()), options.get("metrics"))
    for rank, writer in enumerate(writers):
        if commits:
            writer.commit(record.ranks[rank])
    records.collect_others()
    return saved


def close(folder: Path) -> None:
    """Close the pools of a folder, as the end of the process does; prepared parts stay so."""
    writing._open.prepared.clear()
    writing.close(str(folder))


def save_steps(folder: Path, world: int, *steps: int, **options: Any) -> None:
    """Save steps of a run with metrics, and close its pools."""
    for step in steps:
        save(folder, step, world=world, metrics={"loss": 1 / step}, **options)
    close(folder)
