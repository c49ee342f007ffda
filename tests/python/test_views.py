# SPDX-License-Identifier: BSD-3-Clause
"""Reads are private mappings: writable for torch, read-only for NumPy, valid while held."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any

import lmcstore
import numpy as np
import pytest
from optional import torch
from same import same, tensor_bytes


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
