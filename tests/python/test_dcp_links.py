# SPDX-License-Identifier: BSD-3-Clause
"""Ranks load states that are stored by links: the arrays of a link are decoded together, once per machine."""

from __future__ import annotations

import itertools
import os
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import pytest
from optional import torch
from same import same

torch.Tensor  # noqa: B018 (skips without torch)

import dcp_ranks as ranks  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from lmcstore._folder import fills, once  # noqa: E402
from lmcstore.dcp import StoreReader, StoreWriter  # noqa: E402
from test_dcp_once import _count, _Counted, _times  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

SHAPES = {"rows": (640, 1030), "same": (517, 1103)}
ARRAYS = ("exp_avg", "exp_avg_sq", "weight")
STEPS = 5
LONG_S = 40.0


def _train(rank: int, world: int, folder: Path) -> None:
    """Save after each step of AdamW; the ranks share the tensor `rows`."""
    mesh = ranks.init_device_mesh("cpu", (world,))
    chance = torch.Generator().manual_seed(1)
    parameters = {}
    for name, place in (("rows", Shard(0)), ("same", Replicate())):
        whole = torch.randn(SHAPES[name], generator=chance)
        parameters[name] = torch.nn.Parameter(distribute_tensor(whole, mesh, [place]))
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-3)
    for step in range(STEPS):
        for name, parameter in parameters.items():
            gradient = torch.randn(SHAPES[name], generator=chance).to(torch.bfloat16).float()
            parameter.grad = distribute_tensor(gradient, mesh, parameter.placements)  # type: ignore[attr-defined]
        optimizer.step()
        state = {}
        for name, parameter in parameters.items():
            slots = optimizer.state[parameter]
            state[name] = {"weight": parameter.detach(), **{key: slots[key] for key in ("exp_avg", "exp_avg_sq")}}
        dcp.save(state, storage_writer=StoreWriter(folder, step=step))


@pytest.fixture(scope="module")
def linked() -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run of two ranks whose step 3 is stored by links, and the state of that step."""
    with tempfile.TemporaryDirectory(prefix="lmcs-test-") as made:
        folder = Path(made, "run")
        ranks.run(2, _train, folder)
        with lmcstore.open(folder, mode="r+") as run:
            wanted = {name: run["run"].at(step=3).state_dict(name) for name in SHAPES}
            wanted = {name: {key: one.clone() for key, one in arrays.items()} for name, arrays in wanted.items()}
            run["run"].policy = "keep_raw=1"
            run.compact()
            snapshot = run["run"].at(step=3)
            assert {entry["stored_as"] for entry in snapshot.entries()} == {"link"}
        yield folder, wanted


def _targets(world: int, place: Any) -> dict[str, Any]:
    if world == 1:
        return {name: {key: torch.zeros(shape) for key in ARRAYS} for name, shape in SHAPES.items()}
    mesh = ranks.init_device_mesh("cpu", (world,))
    return {
        name: {key: distribute_tensor(torch.zeros(shape), mesh, [place]) for key in ARRAYS}
        for name, shape in SHAPES.items()
    }


def _load(rank: int, world: int, folder: Path, wanted: dict[str, Any], place: Any, some: bool) -> tuple[Any, Any]:
    once.PATIENCE_S = LONG_S
    state = _targets(world, place)
    if some:  # each rank lacks an array
        for arrays in state.values():
            arrays.pop(ARRAYS[rank % 3])
    reads = _count()
    dcp.load(state, storage_reader=StoreReader(folder, step=3))
    for name, arrays in state.items():
        for key, one in arrays.items():
            is_local = some or not hasattr(one, "full_tensor")
            same(one.to_local() if some else one if is_local else one.full_tensor(), wanted[name][key])
    return reads, _Counted.calls


def _check(found: list[Any], arrays: int) -> None:
    """All arrays of a link are in each call, with the same range."""
    calls = [call for _, calls in found for call in calls]
    for call in calls:
        assert len(call) == arrays, call
        assert len({name.split(".")[0] for _, name, _, _ in call}) == 1, call
        assert len({(rank, first, count) for rank, _, first, count in call}) == 1, call


@pytest.mark.parametrize(
    ("world", "place"), [(2, Replicate()), (3, Replicate()), (2, Shard(1)), (4, Shard(1)), (3, Shard(0))]
)
def test_arrays_of_a_link_are_decoded_together_and_once(linked: Any, world: int, place: Any) -> None:
    found = ranks.run(world, _load, *linked, place, False)
    times = _times([reads for reads, _ in found])
    assert len(times) == 6
    if place != Shard(0):
        assert set(times.values()) == {1}, times
    _check(found, 3)


def test_one_rank_decodes_the_arrays_of_a_link_together(linked: Any) -> None:
    found = ranks.run(1, _load, *linked, None, False)
    assert set(_times([reads for reads, _ in found]).values()) == {1}
    _check(found, 3)


def test_ranks_that_need_different_arrays(linked: Any) -> None:
    found = ranks.run(3, _load, *linked, Replicate(), True)
    assert set(_times([reads for reads, _ in found]).values()) == {1}
    _check(found, 3)


# Failures


def _load_failing(rank: int, world: int, folder: Path, key: str) -> list[str]:
    found = []
    for alone in (False, True):
        state = {"rows": {one: torch.zeros(SHAPES["rows"]) for one in (key, "weight")}}
        with pytest.raises(dcp.CheckpointException) as caught:
            dcp.load(state, storage_reader=StoreReader(folder, step=3), no_dist=alone)
        failures = caught.value.failures
        assert sorted(failures) == list(range(1 if alone else world))
        found.append({f"{type(error).__name__}: {error}" for error, _ in failures.values()})
    assert found[0] == found[1], found
    return sorted(found[0])


def _damage_links(path: Path, raw_bytes: int) -> int:
    """Turn a byte in the last block of all links of arrays of a size (codec/FORMAT.md, 3.1). Return their number."""
    count = stop = 0
    with open(path, "r+b", buffering=0) as file:
        descriptor = file.fileno()
        while True:
            try:
                start = os.lseek(descriptor, stop, os.SEEK_DATA)
            except OSError:
                return count
            stop = os.lseek(descriptor, start, os.SEEK_HOLE)
            data = os.pread(descriptor, stop - start, start)
            at = data.find(b"LMCF")
            while at >= 0:
                raw, frame, _, predictor = struct.unpack_from("<QQHH", data, at + 16)
                if raw == raw_bytes and predictor:
                    os.pwrite(descriptor, bytes([data[at + frame - 1000] ^ 1]), start + at + frame - 1000)
                    count += 1
                at = data.find(b"LMCF", at + 1)


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
def test_damage_gives_the_usual_error_on_each_rank(linked: Any, folder: Path, key: str) -> None:
    subprocess.run(["cp", "-r", "--sparse=always", linked[0], folder], check=True)
    rows, columns = SHAPES["rows"]
    assert _damage_links(folder / "rank-00000.pool", rows // 2 * columns * 4)
    for texts in ranks.run(3, _load_failing, folder, key):
        (text,) = texts
        assert text.startswith("DamagedError") and f"rows.{key}" in text, text


def _load_killed(rank: int, world: int, folder: Path, wanted: dict[str, Any], killed: int, where: str) -> bool:
    state = {name: {key: torch.zeros(shape) for key in ARRAYS} for name, shape in SHAPES.items()}
    has_read = []
    read_data = StoreReader.read_data

    def noting(*arguments: Any) -> Any:
        done = read_data(*arguments)
        has_read.append(True)
        return done

    StoreReader.read_data = noting  # type: ignore[method-assign]
    if rank == killed:

        def kill(*_: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        if where == "reading":
            _count(0)
        else:
            fills.Stored.copy = kill  # type: ignore[method-assign]
    with pytest.raises(BaseException):  # noqa: B017 (of gloo, or DCP's)
        dcp.load(state, storage_reader=StoreReader(folder, step=3))
    same(state, {name: {key: wanted[name][key] for key in ARRAYS} for name in SHAPES})
    return bool(has_read)


@pytest.mark.parametrize(("killed", "where"), list(itertools.product((0, 1), ("reading", "copying"))))
def test_without_a_killed_rank_the_others_read_everything(linked: Any, killed: int, where: str) -> None:
    found = ranks.run(3, _load_killed, *linked, killed, where, killed=(killed,))
    assert [one for rank, one in enumerate(found) if rank != killed] == [True, True]
