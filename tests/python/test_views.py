# SPDX-License-Identifier: BSD-3-Clause
"""Reads are private mappings: writable for torch, read-only for NumPy, valid while held."""

from __future__ import annotations

import copy
import gc
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from optional import torch
from same import same, tensor_bytes
from test_scrub import damage


def make() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "small": torch.randn(3),
        "large": torch.randn(1 << 20),
        "array": np.arange(100_000.0),
        "empty": torch.zeros(0),
    }


@pytest.mark.parametrize("compacted", [False, True])
def test_writing_reaches_no_snapshot(shelf: lmcstore.Shelf, store: lmcstore.Store, compacted: bool) -> None:
    snapshot = shelf.snapshot(make())
    if compacted:
        for step in range(6):
            shelf.snapshot({"large": make()["large"] + step})
        store.compact()
    first, second = snapshot.state_dict(), snapshot.state_dict()
    first["large"].zero_()
    first["small"].mul_(2)
    same(make(), second)
    same(make(), snapshot.state_dict())
    assert store.verify()["damages"] == 0


def test_arrays_are_read_only(shelf: lmcstore.Shelf) -> None:
    back = shelf.snapshot({"a": np.arange(5), "e": np.zeros((0, 3)), "z": np.array(1.0)}).state_dict()
    for array in back.values():
        assert not array.flags.writeable
        with pytest.raises(ValueError):
            array.flags.writeable = True
    with pytest.raises(ValueError):
        back["a"][0] = 1
    with pytest.raises(ValueError):
        back["z"][...] = 1


def test_views_outlive_everything(pool_path: str) -> None:
    store = lmcstore.open(pool_path)
    shelf = store["run"]
    shelf.snapshot(make())
    tensor, array = shelf[1]["large"].torch(), shelf[1]["array"].numpy()
    row = shelf[1]["large"].view(1024, 1024)[5]
    for step in range(8):
        shelf.snapshot({"large": torch.randn(1 << 20)}, step=step)
    shelf.remove(1)
    store.compact()
    store.close()
    del store, shelf
    gc.collect()
    same(make()["large"], tensor)
    same(make()["array"], array)
    same(make()["large"].view(1024, 1024)[5], row)
    tensor.add_(1)


def test_views_while_the_compactor_works(pool_path: str) -> None:
    with lmcstore.open(pool_path) as store:
        shelf = store["run"]
        expected, views = [], []
        for step in range(12):
            value = torch.full((1 << 18,), float(step))
            expected.append(value.clone())
            views.append(shelf.snapshot({"v": value}, step=step)["v"])
        store.compact()
        for value, view, snapshot in zip(expected, views, shelf, strict=True):
            same(value, view)
            same(value, snapshot["v"])


def test_tensors_are_ordinary(shelf: lmcstore.Shelf) -> None:
    back = shelf.snapshot(make()).state_dict()
    tensor = back["large"]
    assert tensor.is_contiguous() and tensor.is_leaf and tensor._base is None and tensor.storage_offset() == 0
    same(tensor, copy.deepcopy(tensor))
    same(tensor, pickled(tensor))
    parameter = torch.nn.Parameter(tensor)
    (parameter * 2).sum().backward()
    assert parameter.grad is not None and parameter.grad[0] == 2
    with torch.no_grad():
        parameter.sub_(parameter.grad)
    assert tensor.numpy().flags.writeable
    same(make()["large"], shelf[1]["large"])


def pickled(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    assert file.tell() < tensor.numel() * tensor.element_size() + 10_000
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_tensors_of_all_shapes(shelf: lmcstore.Shelf) -> None:
    shapes = [(), (1,), (0,), (1, 1), (2, 0, 3), (2, 3, 4), (1,) * 10, (2,) * 12, (1,) * 32]
    state = {str(shape): torch.randn(shape) for shape in shapes}
    same(state, shelf.snapshot(state).state_dict())


def test_one_tensor_of_many_maps_little(shelf: lmcstore.Shelf) -> None:
    state = {str(index): torch.full((16,), float(index)) for index in range(5000)}
    snapshot = shelf.snapshot(state)
    for index in (0, 17, 4999):
        same(state[str(index)], snapshot[str(index)])


def test_thousands_of_reads_need_no_more_mappings(shelf: lmcstore.Shelf) -> None:
    state = {str(index): torch.full((20_000,), float(index)) for index in range(20)}
    snapshot = shelf.snapshot(state)
    held = [snapshot.state_dict() for _ in range(300)]
    with open("/proc/self/maps") as maps:
        assert sum(1 for _ in maps) < 30_000
    same(state, held[150])
    del held
    gc.collect()
    for _ in range(500):
        snapshot.state_dict()


def test_reading_by_threads(shelf: lmcstore.Shelf) -> None:
    import threading

    states = [{"a": torch.full((10_000,), float(step)), "n": step} for step in range(8)]
    for state in states:
        shelf.snapshot(state)
    errors: list[BaseException] = []

    def read(offset: int) -> None:
        try:
            for round_number in range(40):
                number = (round_number + offset) % 8
                same(states[number], shelf[number + 1].state_dict())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    shelf.store.compact()
    for thread in threads:
        thread.join()
    assert errors == []


def test_bytes_of_a_torch_view(shelf: lmcstore.Shelf) -> None:
    tensor = torch.randn(7, 9).t()
    assert tensor_bytes(shelf.snapshot({"t": tensor})["t"]) == tensor_bytes(tensor)


def test_a_default_device_changes_nothing(shelf: lmcstore.Shelf) -> None:
    state = make()
    with torch.device("meta"):
        back = shelf.snapshot(state).state_dict()
    same(state, back)


ROWS = 640  # of 4 KiB: three blocks of 1 MiB
NOT_CHECKED: dict[str, Callable[[lmcstore.Snapshot], Any]] = {
    "state_dict": lambda snap: snap.state_dict()["model"]["w"],
    "a part": lambda snap: snap.state_dict("model")["w"],
    "a lazy part": lambda snap: snap["model"].copy()["w"],
    "numpy": lambda snap: snap["model.w"].numpy(),
    "read": lambda snap: snap["model.w"].read(),
    "an index": lambda snap: snap["model.w"][0:ROWS],
    "rows": lambda snap: snap.rows("model.w"),
    "select": lambda snap: snap.select("*.w")["model.w"],
    "tensors": lambda snap: dict(snap.tensors())["model.w"],
}
ALWAYS_CHECKED: dict[str, Callable[[lmcstore.Snapshot], Any]] = {
    "load_into": lambda snap: snap.load_into(model={"w": np.zeros((ROWS, 1024), np.float32)}),
    "export": lambda snap: snap.export(Path(snap.shelf.store.path).with_suffix(".safetensors")),
}


def two_snapshots(path: str) -> np.ndarray[Any, Any]:
    """Make two snapshots; return "model.w" of the second."""
    weights = np.random.default_rng(3).standard_normal((ROWS, 1024)).astype(np.float32)
    with lmcstore.open(path, size="256MiB", background=False) as store:
        store["run"].snapshot({"model": {"w": -weights}, "small": np.arange(10.0)})
        store["run"].snapshot({"model": {"w": weights}, "small": np.arange(10.0)})
    return weights


@pytest.mark.parametrize("place", [0, (1 << 20) + 7, ROWS * 4096 - 1])
def test_a_flipped_bit_is_reported_by_every_read(pool_path: str, place: int) -> None:
    weights = two_snapshots(pool_path)
    damage(pool_path, weights[:1].tobytes(), place)
    for read in (*NOT_CHECKED.values(), *ALWAYS_CHECKED.values()):
        with lmcstore.open(pool_path, "r") as store:
            with pytest.raises(lmcstore.DamagedError, match=r'"model\.w".*run@2.*scrub --repair.*run@1'):
                read(store["run"].latest)
            read(store["run"][1])
            same(np.arange(10.0), store["run"].latest["small"].numpy())


def test_without_verify_flipped_bits_are_returned(pool_path: str) -> None:
    weights = two_snapshots(pool_path)
    damage(pool_path, weights[:1].tobytes(), 0)
    with lmcstore.open(pool_path, "r", verify=False) as store:
        snapshot = store["run"].latest
        for name, read in NOT_CHECKED.items():
            got = np.asarray(read(snapshot))
            assert got[0, 0] != weights[0, 0] and (got[1:] == weights[1:]).all(), name
        for read in ALWAYS_CHECKED.values():
            with pytest.raises(lmcstore.DamagedError):
                read(snapshot)
        with pytest.raises(lmcstore.DamagedError):
            snapshot.state_dict(verify=True)
    with lmcstore.open(pool_path, "r") as store:
        assert store["run"].latest.state_dict(verify=False)["model"]["w"][0, 0] != weights[0, 0]
        same(weights[300:], store["run"].latest.rows("model.w", 300))  # other blocks


def test_a_payload_is_compared_once_for_each_open_store(pool_path: str) -> None:
    weights = two_snapshots(pool_path)
    with lmcstore.open(pool_path, "r") as store:
        snapshot = store["run"].latest
        same(weights, snapshot["model.w"].numpy())
        damage(pool_path, weights[:1].tobytes(), 0)
        for read in NOT_CHECKED.values():  # by pointer: the change is not noticed
            assert np.asarray(read(snapshot))[0, 0] != weights[0, 0]
        with lmcstore.open(pool_path, "r") as other, pytest.raises(lmcstore.DamagedError):
            other["run"].latest.state_dict()


def test_space_that_is_used_again_is_compared_again(pool_path: str) -> None:
    first, second = (np.random.default_rng(seed).standard_normal(1 << 18) for seed in (1, 2))
    with lmcstore.open(pool_path, size="64MiB", background=False) as store, lmcstore.open(pool_path, "r") as reader:
        shelf = store["run"]
        for round_number in range(40):  # more than fits: places are used again
            shelf.snapshot({"w": (first, second)[round_number % 2] + round_number})
            reader["run"].latest.state_dict()
            if round_number > 0:
                shelf.remove(shelf.latest.number - 1)
                store.compact()
        shelf.snapshot({"w": first})
        damage(pool_path, first[:512].tobytes(), 4096)
        for one in (store, reader):
            with pytest.raises(lmcstore.DamagedError):
                one["run"].latest.state_dict()


def test_a_forked_child_compares_again(pool_path: str) -> None:
    weights = two_snapshots(pool_path)
    with lmcstore.open(pool_path, "r") as store:
        tensor = store["run"].latest["model.w"]
        same(weights, tensor.numpy())
        damage(pool_path, weights[:1].tobytes(), 0)
        child = os.fork()
        if child == 0:
            try:
                tensor.numpy()
            except lmcstore.DamagedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
