# SPDX-License-Identifier: BSD-3-Clause
"""Ranks of one machine load a run from its URL by DCP: a block that several of them need is fetched by one."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import pytest
from lmcstore._remote import late
from lmcstore._remote.blocks import Decoder
from lmcstore._remote.pool import RemoteHandle
from optional import torch
from same import same

torch.Tensor  # noqa: B018 (skips without torch)

import dcp_ranks as ranks  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from lmcstore._folder import fills, once  # noqa: E402
from lmcstore.dcp import StoreReader, StoreWriter  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")

SHAPES = {"odd": (1517, 1103), "deep": (130, 5, 901), "flat": (2_600_003,), "few": (3, 70), "none": (0, 5)}
SMALL = 40
_LONG_S = 40.0


def _whole(name: str, step: int) -> torch.Tensor:
    made = torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(len(name)))
    made[step::40] += step
    return made


def _small(step: int) -> dict[str, torch.Tensor]:
    made = {f"t{number}": torch.arange(number, dtype=torch.int16) + step for number in range(SMALL)}
    return {**made, "scalar": torch.tensor(step + 0.5), "flags": torch.tensor([True, False, True])}


def _save(rank: int, world: int, folder: Path) -> None:
    mesh = ranks.init_device_mesh("cpu", (world,))
    for step in (1, 2):
        rows = {name: distribute_tensor(_whole(name, step), mesh, [Shard(0)]) for name in SHAPES}
        state = {"rows": rows, "same": {name: _whole(name, step) for name in SHAPES}, "small": _small(step)}
        dcp.save(state, storage_writer=StoreWriter(folder, step=step))


@pytest.fixture(scope="module")
def pushed() -> Iterator[Path]:
    """A bucket with a run of two ranks, and steps 1 (deltas of step 2) and 2."""
    with tempfile.TemporaryDirectory(prefix="lmcs-test-") as made:
        folder = Path(made, "run")
        ranks.run(2, _save, folder)
        with lmcstore.open(folder, mode="r+") as run:
            run["run"].policy = "keep_raw=1"
            run.compact()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(late, "_LEAST_BYTES", 1 << 60)  # the step's tensors are there once
                run.push(f"file://{made}/bucket")
        yield Path(made, "bucket")


def _state(world: int, place: Any) -> dict[str, Any]:
    names = [name for name, shape in SHAPES.items() if not isinstance(place, Shard) or place.dim < len(shape)]
    rows: dict[str, Any] = {name: torch.zeros(SHAPES[name]) for name in names}
    if place is not None:
        mesh = ranks.init_device_mesh("cpu", (world,))
        rows = {name: distribute_tensor(tensor, mesh, [place]) for name, tensor in rows.items()}
    return {
        "rows": rows,
        "same": {name: torch.zeros(SHAPES[name]) for name in names},
        "small": {name: torch.zeros_like(tensor) for name, tensor in _small(0).items()},
    }


def _check(state: dict[str, Any], step: int) -> None:
    rows = {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in state["rows"].items()}
    wanted = {name: _whole(name, step) for name in rows}
    same({**state, "rows": rows}, {"rows": wanted, "same": wanted, "small": _small(step)})


def _fetching() -> list[int]:
    """Note the bytes of payloads that this process fetches."""
    fetched: list[int] = []
    run = Decoder.run

    def noting(self: Decoder, *arguments: Any) -> None:
        run(self, *arguments)
        if self.bytes:
            fetched.append(self.bytes)

    Decoder.run = noting  # type: ignore[method-assign]
    return fetched


def _load(rank: int, world: int, url: str, step: int, place: Any) -> list[int]:
    once.FETCH_PATIENCE_S = _LONG_S
    state = _state(world, place)
    fetched = _fetching()
    dcp.load(state, storage_reader=StoreReader(url, step=step))
    _check(state, step)
    return fetched


@pytest.mark.parametrize("step", [1, 2])
def test_blocks_are_fetched_once(pushed: Path, step: int) -> None:
    url = f"file://{pushed}"
    (alone,) = ranks.run(1, _load, url, step, None)
    assert len(alone) == 2, "the tensors of a rank are fetched together"
    for world, place in ((2, Replicate()), (3, Replicate()), (3, Shard(1)), (4, Shard(0))):
        found = ranks.run(world, _load, url, step, place)
        total = sum(map(sum, found))
        assert total < 1.1 * sum(alone), (world, place, found, alone)
        assert max(map(len, found)) <= 12, "small tensors are fetched together"


# Failures


def _load_failing(rank: int, world: int, url: str) -> list[str]:
    state = _state(world, Replicate())
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.load(state, storage_reader=StoreReader(url, step=2))
    failures = caught.value.failures
    assert sorted(failures) == list(range(world))
    return [f"{type(error).__name__}: {error}" for error, _ in failures.values()]


def test_damage_is_an_error_on_each_rank(pushed: Path, folder: Path) -> None:
    subprocess.run(["cp", "-r", pushed, folder], check=True)
    needle = _whole("odd", 2).numpy().tobytes()[3 << 20 :][:60_000]
    for path in folder.rglob("*"):
        data = bytearray(path.read_bytes() if path.is_file() else b"")
        at = data.find(needle)
        while at >= 0:
            data[at + 100] ^= 1
            at = data.find(needle)
        if path.is_file():
            path.write_bytes(data)
    for texts in ranks.run(3, _load_failing, f"file://{folder}"):
        for text in texts:
            assert text.startswith("DamagedError") and ".odd'" in text, text


def _load_killed(rank: int, world: int, url: str, killed: int, where: str) -> bool:
    once.FETCH_PATIENCE_S = 1.0
    state = _state(world, None)
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

        if where == "before":
            once.Slots = kill  # type: ignore
        elif where == "reading":
            lock = once.Slots._lock

            def kill_with_lock(*arguments: Any) -> bool:
                return lock(*arguments) and kill()

            once.Slots._lock = kill_with_lock  # type: ignore[method-assign]
            RemoteHandle.read_to = kill  # type: ignore[method-assign]
        else:
            fills.Stored.copy = kill  # type: ignore[method-assign]
    with pytest.raises(BaseException):  # noqa: B017 (of gloo, or DCP's)
        dcp.load(state, storage_reader=StoreReader(url, step=1))
    _check(state, 1)
    return bool(has_read)


@pytest.mark.parametrize(("killed", "where"), list(itertools.product((0, 1), ("before", "reading", "copying"))))
def test_without_a_killed_rank_the_others_read_everything(pushed: Path, killed: int, where: str) -> None:
    found = ranks.run(3, _load_killed, f"file://{pushed}", killed, where, killed=(killed,))
    assert [one for rank, one in enumerate(found) if rank != killed] == [True, True]
