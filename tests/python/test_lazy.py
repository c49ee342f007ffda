# SPDX-License-Identifier: BSD-3-Clause
"""Lazy tensors: equal values, and no unneeded block is read."""

from __future__ import annotations

import contextlib
import copy
import html
import pickle
from collections.abc import Callable
from typing import Any

import lmcstore
import numpy as np
import pytest
import tensor_file
from command import NEEDS_BIN
from optional import torch
from same import same
from test_cli import cli
from test_scrub import damage

IN_MEMORY = True
ROWS, COLUMNS = 640, 1024  # a block of 1 MiB has 256 rows of f32


@pytest.fixture
def weights() -> np.ndarray:
    return np.random.default_rng(7).standard_normal((ROWS, COLUMNS)).astype(np.float32)


@pytest.fixture
def snap(shelf: lmcstore.Shelf) -> lmcstore.Snapshot:
    generator = torch.Generator().manual_seed(3)
    return shelf.snapshot(
        {
            "model": {"w": torch.randn(40, 6, 5, generator=generator), "b": torch.arange(40.0), "s": torch.tensor(2.5)},
            "half": {"h": torch.randn(9, 4, generator=generator).bfloat16(), "empty": torch.zeros(0, 3)},
            "numpy": {"a": np.arange(60).reshape(20, 3), "big": np.arange(8, dtype=">i4"), "s": np.array(7)},
            "list": [torch.ones(3), {"deep": torch.zeros(2)}, "text"],
            "plain": {"lr": 0.1, "betas": (0.9, 0.99)},
            "step": 3,
        }
    )


def equal(left: Any, right: Any) -> None:
    if isinstance(left, torch.Tensor):
        assert type(right) is torch.Tensor
        left, right = left.contiguous(), right.contiguous()
    same(left, right)


INDEXES: dict[str, Callable[[], Any]] = {
    "first rows": lambda: slice(None, 7),
    "from the end": lambda: slice(-3, None),
    "all": lambda: slice(None),
    "none": lambda: slice(5, 5),
    "beyond": lambda: slice(30, 100),
    "a step": lambda: slice(3, 17, 4),
    "one row": lambda: 5,
    "the last row": lambda: -1,
    "a number of NumPy's": lambda: np.int64(4),
    "a number of torch's": lambda: torch.tensor(4),
    "rows, all columns": lambda: (slice(2, 4), ...),
    "rows, a column": lambda: (slice(2, 9), 1),
    "a row, a column": lambda: (3, 2),
    "rows, a new axis": lambda: (slice(2, 4), None),
    "some rows": lambda: [7, 3, -2, 3],
    "some rows by NumPy": lambda: np.array([9, 3, -1], dtype=np.int16),
    "some rows by torch": lambda: torch.tensor([3, 0, -1]),
    "some rows, some columns": lambda: ([1, 5], [0, 2]),
    "all of it": lambda: ...,
    "a new axis": lambda: None,
    "the last axis": lambda: (..., 0),
    "nothing": lambda: (),
}


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("path", ["model.w", "numpy.a"])
def test_an_index_gives_what_it_gives_of_the_tensor(snap: lmcstore.Snapshot, path: str, index: str) -> None:
    part, name = path.split(".")
    whole, lazy = snap.state_dict(part)[name], snap[part][name]
    equal(whole[INDEXES[index]()], lazy[INDEXES[index]()])


def test_masks_and_other_steps(snap: lmcstore.Snapshot) -> None:
    whole, lazy = snap.state_dict("model"), snap["model"]
    mask = whole["b"] > 20
    same(whole["w"][mask], lazy["w"][mask])
    same(whole["b"][mask], lazy["b"][lazy["b"] > 20])
    array = snap.state_dict("numpy")["a"]
    for step in (-1, -3):
        same(array[15:2:step], snap["numpy"]["a"][15:2:step])
        with pytest.raises(ValueError):
            lazy["w"][15:2:step]
    for index in (40, -41, [0, 40], (40, 0)):
        with pytest.raises(IndexError):
            lazy["w"][index]
    with pytest.raises(IndexError):
        lazy["s"][0]
    with pytest.raises(TypeError):
        lazy["w"][0] = 1


@pytest.mark.parametrize(
    ("dtype", "name"), [("<U3", "<U3"), ("M8[D]", "<M8[D]"), ([("a", "i4"), ("b", "S2")], '[["a","<i4"],["b","|S2"]]')]
)
def test_the_dtypes_of_numpy_are_shown(shelf: lmcstore.Shelf, dtype: Any, name: str) -> None:
    part = shelf.snapshot({"p": {"x": np.zeros(2, dtype)}})["p"]
    assert repr(part["x"]) == f"<lmcstore.LazyTensor {name} [2]>"
    assert html.escape(name) in part._repr_html_()


def test_what_it_is_made_of(snap: lmcstore.Snapshot) -> None:
    model = snap["model"]
    assert type(model) is lmcstore.Part and isinstance(model, dict) and list(model) == ["w", "b", "s"]
    weight = model["w"]
    assert type(weight) is lmcstore.LazyTensor and weight.name == "model.w"
    assert weight.shape == torch.Size((40, 6, 5)) and type(weight.shape) is torch.Size
    assert (weight.dtype, weight.ndim, weight.nbytes, len(weight)) == (torch.float32, 3, 4800, 40)
    assert repr(weight) == "<lmcstore.LazyTensor f32 [40, 6, 5]>" and "f32 [40, 6, 5]" in repr(model)
    assert "(40, 6, 5)" in model._repr_html_()
    big = snap["numpy"]["big"]
    assert big.shape == (8,) and big.dtype == np.dtype(">i4") and big.nbytes == 32
    assert snap["half"]["h"].dtype == torch.bfloat16 and snap["half"]["empty"][0:2].shape == (0, 3)
    assert type(snap["list"]) is list and type(snap["list"][0]) is lmcstore.LazyTensor and snap["list"][2] == "text"
    assert type(snap["list"][1]["deep"]) is lmcstore.LazyTensor
    assert type(snap["plain"]) is dict and snap["step"] == 3
    assert type(snap["model.w"]) is lmcstore.LazyTensor and type(snap.state_dict("model.w")) is torch.Tensor
    everything = snap[()]
    assert type(everything["model"]["w"]) is lmcstore.LazyTensor and everything["plain"] == snap["plain"]
    with pytest.raises(TypeError):
        len(model["s"])
    with pytest.raises(AttributeError):
        _ = weight.nonsense


def test_it_is_used_like_a_tensor(snap: lmcstore.Snapshot) -> None:
    whole, weight = snap.state_dict("model.w"), snap["model"]["w"]
    same(whole, weight.torch())
    same(whole.numpy(), weight.numpy())
    same(whole.numpy(), np.asarray(weight))
    same(whole.double().numpy(), np.asarray(weight, dtype=np.float64))
    same(whole + 1, weight + 1)
    same(1 - whole, 1 - weight)
    same(whole * whole, whole * weight)
    same(whole == whole, weight == weight)
    same(-whole, -weight)
    same(whole.sum(), weight.sum())
    equal(whole.mT, weight.mT)
    same(torch.stack([whole, whole]), torch.stack([weight, weight]))
    assert torch.equal(weight, whole) and float(snap["model"]["s"]) == 2.5 and bool(snap["numpy"]["s"] == 7)
    assert [row.shape for row in snap["model"]["w"]] == [(6, 5)] * 40
    array = snap["numpy"]["a"]
    assert array.sum() == 1770 and np.add(array, 1)[0, 0] == 1 and 59 in array and hash(array) is not None
    same(np.arange(60).reshape(20, 3), array.numpy())
    same(torch.arange(60).view(20, 3), array.torch())
    same(np.arange(8, dtype=">i4"), snap["numpy"]["big"].numpy())
    same(whole, torch.from_dlpack(weight))
    same(torch.from_dlpack(array), array.torch())
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert snap["half"]["h"].numpy().dtype == ml_dtypes.bfloat16


def test_it_does_not_change(snap: lmcstore.Snapshot) -> None:
    weight = snap["model"]["w"]
    with pytest.raises(AttributeError, match="changed"):
        weight.add_(1)
    for change in (torch.nn.init.zeros_, lambda t: torch.relu_(t), lambda t: torch.add(t, 1, out=t)):
        with pytest.raises((lmcstore.UnsupportedError, AttributeError), match="changed"):
            change(weight)
    before = weight.sum()
    weight.torch().zero_()
    weight[:4].zero_()
    assert weight.sum() == before and not weight.numpy().flags.writeable


def test_refusals(snap: lmcstore.Snapshot) -> None:
    weight, big = snap["model"]["w"], snap["numpy"]["big"]
    with pytest.raises(lmcstore.UnsupportedError, match="numpy"):
        big.torch()
    for value in (weight, snap["model"]):
        with pytest.raises(lmcstore.UnsupportedError, match="pickled"):
            pickle.dumps(value)
    with pytest.raises(lmcstore.UnsupportedError, match="load_into"):
        lmcstore.LazyTensor()


def test_modules_and_optimizers_take_parts(shelf: lmcstore.Shelf) -> None:
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    snap = shelf.snapshot(state)
    other = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    other.load_state_dict(snap["model"])
    same(dict(model.state_dict()), dict(other.state_dict()))
    assert snap["model"]._metadata == model.state_dict()._metadata
    fresh = torch.optim.Adam(other.parameters())
    fresh.load_state_dict(snap["optimizer"])
    same(optimizer.state_dict(), fresh.state_dict())
    same(state["optimizer"], snap["optimizer"].copy())
    same(state["model"], copy.deepcopy(snap["model"]))
    with pytest.raises((TypeError, lmcstore.UnsupportedError)):  # another kind of copy: refused, and not used
        fresh.load_state_dict(dict(snap["optimizer"]))
    with torch.device("meta"):
        empty = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    with pytest.raises(RuntimeError):
        empty.load_state_dict(snap["model"], assign=True)
    empty.load_state_dict(snap.state_dict("model"), assign=True)
    same(dict(model.state_dict()), dict(empty.state_dict()))


def test_what_is_changed_in_a_part_counts(shelf: lmcstore.Shelf) -> None:
    torch.manual_seed(5)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    snap = shelf.snapshot({"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    part = snap["optimizer"]
    part["param_groups"][0]["lr"] = 0.5
    part["state"][0]["exp_avg"] = torch.full((4, 4), 2.0)
    for read in (part.copy(), copy.copy(part), copy.deepcopy(part)):
        assert type(read) is dict and type(read["state"][0]) is dict
        assert read["param_groups"][0]["lr"] == 0.5
        same(torch.full((4, 4), 2.0), read["state"][0]["exp_avg"])
        same(snap.state_dict("optimizer")["state"][1], read["state"][1])
        read["param_groups"][0]["lr"] = 9
    optimizer.load_state_dict(part)
    assert optimizer.param_groups[0]["lr"] == 0.5
    same(torch.full((4, 4), 2.0), optimizer.state_dict()["state"][0]["exp_avg"])

    weights = snap["model"]
    weights["weight"] = torch.zeros(4, 4)
    weights["more"] = {"deep": [weights["bias"], {1, 2}]}
    del weights["bias"]
    again = shelf.snapshot({"model": weights}).state_dict("model")
    assert list(again) == ["weight", "more"] and type(again) is type(model.state_dict())
    assert again._metadata == model.state_dict()._metadata
    same(torch.zeros(4, 4), again["weight"])
    same([snap.state_dict("model")["bias"], {1, 2}], again["more"]["deep"])
    assert weights.copy()["weight"] is weights["weight"]
    assert copy.deepcopy(weights)["weight"] is not weights["weight"]
    same(model.state_dict()["bias"], snap["model"]["bias"].torch())


def test_copies_of_parts_of_several_snapshots(shelf: lmcstore.Shelf) -> None:
    tensor = torch.arange(3.0)
    first = shelf.snapshot({"a": {"x": tensor, "y": tensor, "z": tensor.view(3)}, "n": {"s": np.arange(4)}})
    second = shelf.snapshot({"a": {"x": torch.ones(2)}})
    part = first["a"]
    part["other"], part["again"], part["array"] = second["a"], part["x"], first["n"]["s"]
    made = part.copy()
    assert made["x"] is made["y"] and made["z"].data_ptr() == made["x"].data_ptr() and made["z"] is not made["x"]
    same({"x": torch.ones(2)}, made["other"])
    same(tensor, made["again"])
    same(np.arange(4), made["array"])
    same(made, shelf.snapshot(part).state_dict())


def test_parts_can_be_saved_again(shelf: lmcstore.Shelf, snap: lmcstore.Snapshot) -> None:
    again = shelf.snapshot({"model": snap["model"], "one": snap["list"][0], "some": snap["numpy"]["a"][:3]})
    same(snap.state_dict("model"), again.state_dict("model"))
    same(torch.ones(3), again["one"])
    shelf.live["w"], shelf.live["a"] = snap["model"]["w"], snap["numpy"]["a"]
    same(snap["model.w"], shelf.live["w"])
    same(snap["numpy.a"], np.array(shelf.live["a"]))
    assert again.entries()[0]["content"] == snap.entries()[0]["content"]


@NEEDS_BIN
def test_an_imported_snapshot(pool_path: str, tmp_path: Any) -> None:
    arrays = {"a.w": np.arange(12, dtype=np.float32).reshape(4, 3), "a.b": np.ones(2, np.float32)}
    tensor_file.save(tmp_path / "f", arrays)
    cli("create", pool_path, "--size", "64MiB")
    cli("import", pool_path, "in", tmp_path / "f")
    with lmcstore.open(pool_path, "r") as store:
        snap = store["in"].latest
        assert set(snap["a"]) == {"w", "b"}
        same(torch.arange(12.0).view(4, 3)[1:3], snap["a"]["w"][1:3])
        same(np.arange(12, dtype=np.float32).reshape(4, 3), snap["a"]["w"].numpy())


def damage_all(path: str, needle: bytes) -> None:
    """Damage all copies of the bytes, also unused ones."""
    damage(path, needle, 0)
    with contextlib.suppress(AssertionError, OSError):
        while True:
            damage(path, needle, 0)


@pytest.mark.parametrize("compacted", [False, True])
def test_only_the_blocks_that_are_needed_are_read(pool_path: str, weights: np.ndarray, compacted: bool) -> None:
    """When compacted, the first snapshot is a delta against the second; then a block is damaged."""
    after = weights + 1e-5 * np.random.default_rng(8).standard_normal(weights.shape).astype(np.float32)
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        store["run"].keep_raw = 1
        for state in (weights, after):
            store["run"].snapshot({"model": {"w": torch.from_numpy(state)}})
        if compacted:
            store.compact()
            assert store["run"][1].entries()[0]["stored_as"] == "delta"
    damage_all(pool_path, (after if compacted else weights)[300:301].tobytes())
    with lmcstore.open(pool_path, "r", background=False) as store:
        lazy = store["run"][1]["model"]["w"]
        expected = torch.from_numpy(weights)
        for index in (slice(0, 64), 3, slice(-100, None), [4, 200], (slice(520, 530), 5)):
            equal(expected[index], lazy[index])
        for index in (slice(0, 301), 300, [0, 600]):
            with pytest.raises(lmcstore.DamagedError):
                lazy[index]
        if compacted:  # a raw one is an unchecked view
            with pytest.raises(lmcstore.DamagedError):
                lazy.torch()


def test_it_needs_the_store(pool_path: str) -> None:
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        shelf = store["run"]
        lazy = shelf.snapshot({"model": {"w": torch.ones(4)}})["model"]["w"]
        view = lazy.torch()
        shelf.snapshot({"a": 1})
        shelf.remove(1)
        with pytest.raises(lmcstore.NotFoundError):
            lazy.torch()
    for use in (lambda: lazy[:2], lazy.torch, lambda: np.mean(lazy), lambda: lazy + 1):
        with pytest.raises(lmcstore.InvalidError, match=r"the store is closed.*torch\(\)"):
            use()
    same(torch.ones(4), view)


def test_without_torch(pool_path: str, run_python: Any) -> None:
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        store["run"].snapshot({"model": {"w": torch.arange(12.0).view(4, 3)}})
        store["other"].snapshot({"size": torch.Size([1])})
    done = run_python(
        "import sys; sys.modules['torch'] = None\n"
        "import lmcstore\n"
        "store = lmcstore.open(sys.argv[1], 'r')\n"
        "lazy = store['run'].latest['model']['w']\n"
        "assert tuple(lazy.shape) == (4, 3) and lazy.numpy()[1].tolist() == [3, 4, 5]\n"
        "try: lazy.torch()\n"
        "except lmcstore.UnsupportedError: print('no torch')\n"
        "try: store['other'].latest['size']\n"
        "except lmcstore.UnsupportedError as error: assert 'install torch' in str(error)\n",
        pool_path,
    )
    assert done.stdout == "no torch\n", done.stderr
