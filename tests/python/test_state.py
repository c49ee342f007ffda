# SPDX-License-Identifier: BSD-3-Clause
"""Every state returns with the same bits and types, however stored."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
import states
from lmcstore import _core
from lmcstore._arrays.dtypes import DTYPES
from lmcstore._state.skeleton import SKELETON
from optional import torch
from same import same, tensor_bytes

STATES: dict[str, Callable[[], Any]] = {
    "scalars": states.scalars,
    "containers": states.containers,
    "tensors": states.tensors,
    "random states": states.random_states,
    "training": lambda: states.training_state(states.training()[0]),
    "a bare tensor": lambda: torch.arange(5),
    "a bare number": lambda: 5,
    "a list": lambda: [torch.zeros(2), {"a": 1}],
    "nothing": lambda: {},
}


@pytest.mark.parametrize("name", STATES)
def test_round_trip(shelf: lmcstore.Shelf, name: str) -> None:
    state = STATES[name]()
    snapshot = shelf.snapshot(state)
    same(state, snapshot.state_dict())
    same(state, snapshot.state_dict())


@pytest.mark.parametrize("name", STATES)
def test_round_trip_reopened(pool_path: str, name: str) -> None:
    state = STATES[name]()
    with lmcstore.open(pool_path) as store:
        store["run"].snapshot(state)
    with lmcstore.open(pool_path, mode="r") as store:
        same(state, store["run"][1].state_dict())


def test_round_trip_compacted(shelf: lmcstore.Shelf, store: lmcstore.Store) -> None:
    kept = []
    for step in range(8):
        torch.manual_seed(step)
        state = {name: make() for name, make in STATES.items()} | {"step": step, "drift": torch.randn(1000) + step}
        kept.append(copy.deepcopy(state))
        shelf.snapshot(state, step=step)
    store.compact()
    for step, state in enumerate(kept):
        same(state, shelf.at(step=step).state_dict())
        same(state["drift"], shelf.at(step=step)["drift"])


def test_round_trip_archive(shelf: lmcstore.Shelf, store: lmcstore.Store, tmp_path: Path) -> None:
    state = {name: make() for name, make in STATES.items()}
    for step in range(6):
        shelf.snapshot(state | {"step": step}, step=step, tags=[f"t{step}"], metrics={"loss": 0.1 * step})
    store.compact()
    digests = [snapshot.digest for snapshot in shelf]
    with open(tmp_path / "archive", "wb") as file:
        store.dump(file, "run")
    with lmcstore.open(tmp_path / "other.pool", background=False) as other:
        with open(tmp_path / "archive", "rb") as file:
            report = other.restore(file)
        assert report["snapshots"] == 6
        assert [snapshot.digest for snapshot in other["run"]] == digests
        for step in range(6):
            same(state | {"step": step}, other["run"].at(step=step).state_dict())
        assert other["run"]["t3"].metrics == {"loss": 0.1 * 3}


def test_what_changes_later_is_not_in_the_snapshot(shelf: lmcstore.Shelf) -> None:
    tensor, array, numbers = torch.zeros(1000), np.zeros(1000), [1, 2]
    snapshot = shelf.snapshot({"tensor": tensor, "array": array, "numbers": numbers})
    tensor.fill_(1)
    array[:] = 1
    numbers.append(3)
    back = snapshot.state_dict()
    assert not back["tensor"].any() and not back["array"].any() and back["numbers"] == [1, 2]


def test_tensors_of_every_size(shelf: lmcstore.Shelf) -> None:
    sizes = [0, 1, 2, 15, 16, 17, 1000, 16383, 16384, 16385, 262143, 262144, 262145, 1 << 20]
    state = {str(size): torch.randn(size) for size in sizes}
    same(state, shelf.snapshot(state).state_dict())


def test_strided_tensors_without_a_copy_are_exact(shelf: lmcstore.Shelf) -> None:
    base = torch.randn(64, 65, 66)
    state = {
        "permuted": base.permute(2, 0, 1),
        "sliced": base[3:60:7, :, 5::11],
        "column": base[:, 0, 0],
        "diagonal": torch.diagonal(base[:, :64, 0]),
        "expanded": base[:, :1, :].expand(64, 10, 66),
        "unfolded": torch.arange(100).unfold(0, 10, 3),
    }
    same(state, shelf.snapshot(state).state_dict())


def test_nothing_is_lost_in_key_types(shelf: lmcstore.Shelf) -> None:
    for one, other in ((True, 1), (1, 1.0), (0, False), ("1", 1), (b"a", "a"), (np.int64(3), 3)):
        for key in (one, other):
            back = shelf.snapshot({key: torch.zeros(1)}).state_dict()
            assert [type(found) for found in back] == [type(key)]
            assert list(back) == [key]


def test_names_are_dotted_paths(shelf: lmcstore.Shelf) -> None:
    objects, _ = states.training()
    names = shelf.snapshot(states.training_state(objects)).names()
    assert "model.0.weight" in names
    assert "optimizer.state.0.exp_avg_sq" in names
    assert "rng" in names


def test_names_that_collide_are_told_apart(shelf: lmcstore.Shelf) -> None:
    state = {"a": {"b": torch.zeros(1)}, "a.b": torch.ones(1), 1: torch.full((1,), 2.0), "1": torch.full((1,), 3.0)}
    snapshot = shelf.snapshot(state)
    assert len(set(snapshot.names())) == 4
    same(state, snapshot.state_dict())


def test_a_structure_that_stays_is_shared(shelf: lmcstore.Shelf) -> None:
    weights = {f"layer.{index}": torch.randn(4) for index in range(2000)}
    first = shelf.snapshot({"weights": weights, "lr": 0.1})
    second = shelf.snapshot({"weights": weights, "lr": 0.2})
    encoded_first = first._handle.view([SKELETON], _core.ATTACHMENT, 0).unpack()[4][0]
    encoded_second = second._handle.view([SKELETON], _core.ATTACHMENT, 0).unpack()[4][0]
    assert bytes(encoded_first) == bytes(encoded_second)


def test_many_tensors(shelf: lmcstore.Shelf) -> None:
    state = {f"t{index}": torch.full((2,), float(index)) for index in range(20_000)}
    same(state, shelf.snapshot(state).state_dict())


def test_many_leaves(shelf: lmcstore.Shelf) -> None:
    state = {index: {"a": float(index), "b": [index], "c": None} for index in range(10_000)}
    same(state, shelf.snapshot(state).state_dict())


def test_large_lists_of_numbers(shelf: lmcstore.Shelf) -> None:
    state = {
        "ints": list(range(100_000)),
        "floats": [0.5] * 100_000,
        "tuple": tuple(range(5000)),
        "mixed": [1, 2.0] * 5000,
    }
    same(state, shelf.snapshot(state).state_dict())


def test_what_comes_back_is_ones_own(shelf: lmcstore.Shelf) -> None:
    """Changing a read state changes no later reading."""
    state = {"list": [1, 2], "set": {1}, "bytes": bytearray(b"a"), "dict": {"x": 1}, "tensor": torch.zeros(3)}
    snapshot = shelf.snapshot(state)
    back = snapshot.state_dict()
    back["list"].append(3)
    back["set"].add(2)
    back["bytes"] += b"b"
    back["dict"]["y"] = 2
    back["tensor"].add_(1)
    same(state, snapshot.state_dict())


def test_a_gradient_is_not_a_part_of_a_tensor(shelf: lmcstore.Shelf) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.sum().backward()
    back = shelf.snapshot({"p": parameter}).state_dict()["p"]
    assert type(back) is torch.Tensor and back.grad is None and not back.requires_grad


def test_ml_dtypes(shelf: lmcstore.Shelf) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    state = {"bf16": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)}
    same(state, shelf.snapshot(state).state_dict())


@pytest.mark.parametrize("dtype", states.TORCH_DTYPES, ids=str)
def test_large_tensors_of_each_dtype(shelf: lmcstore.Shelf, dtype: torch.dtype) -> None:
    tensor = states.of_dtype(dtype, 130, 257)
    back = shelf.snapshot({"t": tensor})["t"]
    assert back.dtype == dtype and tensor_bytes(back) == tensor_bytes(tensor)


@pytest.mark.parametrize("mebibytes", [1, 20])
def test_conjugated_tensors_of_any_size(shelf: lmcstore.Shelf, mebibytes: int) -> None:
    tensor = torch.randn(mebibytes << 17, dtype=torch.complex64).conj()
    state = {"t": tensor, "again": tensor}
    back = shelf.snapshot(state).state_dict()
    same(tensor, back["t"])
    assert back["t"] is back["again"]


def test_one_name_with_many_forms(store: lmcstore.Store) -> None:
    """Growing tensors, and values of varying packed length, can be read in any number."""
    for count in range(1, 151):
        store["run"].snapshot({"x": torch.full((count,), 1.0), "values": "y" * count}, step=count)
    for snapshot in store["run"]:
        state = snapshot.state_dict()
        assert state["x"].shape == (snapshot.step,) and state["values"] == "y" * (snapshot.step or 0)
        assert snapshot["x"].shape == (snapshot.step,)


def test_every_dtype_has_a_row() -> None:
    assert {dtype.name for dtype in DTYPES} == set(_core.DTYPES) and len(DTYPES) == len(_core.DTYPES)
    numbers = [dtype for dtype in DTYPES if dtype.code]
    assert all(struct.calcsize("<" + dtype.code) == _core.dtype_info(dtype.number)[1] for dtype in numbers)
    assert all(np.dtype(dtype.numpy).itemsize == _core.dtype_info(dtype.number)[1] for dtype in DTYPES if dtype.numpy)
