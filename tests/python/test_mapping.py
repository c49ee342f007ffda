# SPDX-License-Identifier: BSD-3-Clause
"""A snapshot is a mapping of its state, and every path reads the rows of a tensor in the same way."""

from __future__ import annotations

import collections.abc
import contextlib
import os
import signal
import time
from array import array
from collections.abc import Callable
from typing import Any

import lmcstore
import numpy as np
import pymm
import pytest
from lmcstore import _core
from optional import torch
from pymm_support import folder
from test_lazy import ROWS, damage_all, weights

__all__ = ["folder", "weights"]
IN_MEMORY = True


@pytest.fixture
def snap(shelf: lmcstore.Shelf) -> lmcstore.Snapshot:
    state = {
        "model": {"w": np.arange(12.0).reshape(4, 3), "h.0.weight": np.ones(2)},
        "optimizer": {"state": {0: {"m": np.zeros(2)}}, "param_groups": [{"lr": 0.1}]},
        "step": 3,
    }
    return shelf.snapshot(state)


def flat(shelf: lmcstore.Shelf, names: list[str]) -> lmcstore.Snapshot:
    """Take a snapshot without a structure, as an import does."""
    capture, data = shelf.store._pool.begin(shelf.name), np.arange(4, dtype="f4")
    count, address = len(names), data.__array_interface__["data"][0]
    dtypes, places = array("I", [_core.DTYPES["f32"] | 1 << 8] * count), array("Q", [address] * count)
    capture.put(names, dtypes, array("Q", [4] * count), b"", places)
    return shelf[capture.commit(None, 0, 0, (), (), (), None, False)]


def test_the_methods_of_a_mapping(snap: lmcstore.Snapshot) -> None:
    assert isinstance(snap, collections.abc.Mapping)
    assert list(snap) == list(snap.keys()) == ["model", "optimizer", "step"] and len(snap) == 3
    assert snap.keys() == {"model", "optimizer", "step"} and snap.keys() - {"model"} == {"optimizer", "step"}
    assert [key for key, _ in snap.items()] == list(snap) and list(snap.values())[2] == 3
    assert type(dict(snap.items())["model"]["w"]) is lmcstore.LazyTensor
    read = dict(snap)
    assert read["step"] == 3 and list(read["model"]) == ["w", "h.0.weight"]
    assert {**snap}["step"] == 3
    assert snap.get("step") == 3 and snap.get("steps") is None and snap.get("model.x", 7) == 7
    assert snap.get("model.h.0.weight").shape == (2,)
    assert set(map(hash, [snap, snap.shelf[1]])) == {hash(snap)} and snap == snap.shelf[1] and snap != {"step": 3}


def test_in_accepts_what_an_index_accepts(snap: lmcstore.Snapshot) -> None:
    for path in (
        "model",
        "model.w",
        "model.h.0.weight",
        ("model", "w"),
        ("optimizer", "state", 0),
        "optimizer.state.0",
    ):
        assert path in snap, path
        assert snap[path] is not None
    for path in ("modle", "model.", "", "w", ("model", "x"), 0, None, 1.5, [1], {"a": 1}, object()):
        assert path not in snap, path
        with pytest.raises(KeyError):
            snap[path]


STATES: dict[str, tuple[Any, list[Any]]] = {
    "unusual keys": (
        {1: "int", "1": "str", "": "empty", "a\n": "line", None: "none", 2.5: "float", ("a", "b"): "tuple"},
        [1, "1", "", "a\n", None, 2.5, ("a", "b")],
    ),
    "a key with a dot": ({"a.b": 1, "a": 2}, ["a.b", "a"]),
    "a list": ([np.zeros(2), 5, {"x": 1}], [0, 1, 2]),
    "a tuple of plain values": ((1, "b"), [0, 1]),
    "an empty dict": ({}, []),
    "a tensor": (np.ones(3), []),
    "a number": (7, []),
    "a text": ("text", []),
}


@pytest.mark.parametrize("name", STATES)
def test_every_key_leads_to_its_value(shelf: lmcstore.Shelf, name: str) -> None:
    state, keys = STATES[name]
    snap = shelf.snapshot(state)
    assert list(snap) == keys and len(snap) == len(keys)
    for key, value in snap.items():
        assert key in snap
        found = snap[key]
        expected = state[key]
        assert np.array_equal(found, expected) if isinstance(expected, np.ndarray) else found == expected == value


def test_a_snapshot_is_always_true(shelf: lmcstore.Shelf) -> None:
    """``if shelf.latest`` asks whether there is a snapshot, not whether its state has keys."""
    for state in ({}, [], 0, np.zeros(0)):
        shelf.snapshot(state)
        assert shelf.latest and len(shelf.latest) == 0


def test_keys_of_an_ambiguous_path(shelf: lmcstore.Shelf) -> None:
    snap = shelf.snapshot({"a.b": 1, "a": {"b": 2}, "n": {1: "int", "1": "str"}})
    assert "a.b" in snap and dict(snap.items())["a.b"] == 1 and snap[("a.b",)] == 1 and snap[("a", "b")] == 2
    for path in ("a.b", "n.1"):
        with pytest.raises(lmcstore.InvalidError, match="several parts"):
            snap[path]


def test_a_flat_snapshot(shelf: lmcstore.Shelf) -> None:
    snap = flat(shelf, ["model.a.weight", "model.b", "x"])
    assert list(snap) == ["model.a.weight", "model.b", "x"] == snap._ipython_key_completions_()
    assert "model" in snap and "model.a" in snap and "model.a.weigh" not in snap and "y" not in snap
    with pytest.raises(lmcstore.NotFoundError, match=r"no 'model.a.wieght': .*Did you mean 'model.a.weight'"):
        snap["model.a.wieght"]


def test_live_variables(shelf: lmcstore.Shelf) -> None:
    shelf.live["w"], shelf.live["epoch"] = np.arange(3.0), 7
    snap = shelf.live.snapshot()
    assert sorted(snap) == ["epoch", "w"] and snap["epoch"] == 7 and np.mean(snap["w"]) == 1


def test_completions(snap: lmcstore.Snapshot) -> None:
    completions = snap._ipython_key_completions_()
    assert completions[:3] == list(snap) and "model.h.0.weight" in completions
    assert all(one in snap for one in completions)
    shelf = snap.shelf
    for state in (np.zeros(3), 5, {}):
        assert shelf.snapshot(state)._ipython_key_completions_() == []
    unusual = shelf.snapshot({"": {"a": np.zeros(3)}, 7: np.zeros(3), "x" * 300: {"y": np.zeros(3)}})
    assert all(one in unusual for one in unusual._ipython_key_completions_())


MISSING = {
    "modle": ("'model', 'optimizer' and 'step'", "'model'"),
    "model.h.0.wieght": ("'model' has 'w' and 'h.0.weight'", "'model.h.0.weight'"),
    "modle.w": ("it has", "'model.w'"),
    "h.0.weight": ("it has", "'model.h.0.weight'"),
    "w": ("it has", "'model.w'"),
    "optimizer.param_groups.0.lrr": ("'optimizer.param_groups.0' has 'lr'", "'optimizer.param_groups.0.lr'"),
    "optimizer.state.1": ("'optimizer.state' has 0", None),
    "step.x": ("'step' has no parts", None),
    "zzz": ("it has", None),
    ("model", "ww"): ("'model' has", "'model.w'"),
    ("optimizer", "state", 7): ("'optimizer.state' has 0", None),
    8: ("no 8: it has", None),
}


@pytest.mark.parametrize("path", MISSING)
def test_a_missing_key_lists_keys_and_suggests_one(snap: lmcstore.Snapshot, path: Any) -> None:
    listed, suggested = MISSING[path]
    for read in (snap.__getitem__, snap.state_dict, snap.rows):
        with pytest.raises(lmcstore.NotFoundError) as caught:
            read(path)
        text = str(caught.value)
        assert listed in text and repr(path)[1:-1].split("'")[0] in text, text
        assert text.endswith(f"Did you mean {suggested}?") if suggested else "mean" not in text, text


def test_missing_keys_of_parts_and_loads(snap: lmcstore.Snapshot) -> None:
    with pytest.raises(KeyError, match=r"no 'ww': it has 'w' and 'h.0.weight'. Did you mean 'w'\?"):
        snap["model"]["ww"]
    assert snap["model"].get("ww") is None and "ww" not in snap["model"]
    with pytest.raises(KeyError, match=r"no 'modle': .*Did you mean 'model'"):
        snap.load_into(modle=np.zeros(3))


def test_a_message_is_short_and_fast(shelf: lmcstore.Shelf) -> None:
    names = [f"layer{number}.weight{'x' * 100}" for number in range(30_000)]
    snap = flat(shelf, names)
    snap.names()
    start = time.process_time()
    with pytest.raises(lmcstore.NotFoundError) as caught:
        snap[f"layr17.weight{'x' * 100}"]
    assert time.process_time() - start < 5 and len(str(caught.value)) < 2000
    assert "and 29,990 more" in str(caught.value) and "Did you mean 'layer" in str(caught.value)
    with pytest.raises(lmcstore.NotFoundError) as caught:
        snap["layer" * 100_000]
    assert time.process_time() - start < 10 and len(str(caught.value)) < 2000
    assert f"{names[-1]}y" not in snap and names[-1] in snap


# Tensors by a path


PATHS: dict[str, Callable[[lmcstore.Snapshot], Any]] = {
    "a dotted path": lambda snap: snap["model.w"],
    "keys": lambda snap: snap[("model", "w")],
    "a part": lambda snap: snap["model"]["w"],
    "get": lambda snap: snap.get("model.w"),
    "items": lambda snap: dict(snap.items())["model"]["w"],
    "values": lambda snap: next(iter(snap.values()))["w"],
    "the root": lambda snap: snap[()]["model"]["w"],
}


@pytest.mark.parametrize("path", PATHS)
def test_every_path_reads_only_the_blocks_of_its_rows(pool_path: str, weights: np.ndarray, path: str) -> None:
    """The first snapshot is a delta, and a block of it is damaged; rows of other blocks are read all the same."""
    after = weights + 1e-5 * np.random.default_rng(8).standard_normal(weights.shape).astype(np.float32)
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        store["run"].keep_raw = 1
        for state in (weights, after):
            store["run"].snapshot({"model": {"w": state}})
        store.compact()
        assert store["run"][1].entries()[0]["stored_as"] == "delta"
    damage_all(pool_path, after[300:301].tobytes())
    with lmcstore.open(pool_path, "r", background=False) as store:
        found = PATHS[path](store["run"][1])
        assert type(found) is lmcstore.LazyTensor and found.shape == weights.shape
        assert np.array_equal(found[-3:], weights[-3:]) and np.array_equal(found[5], weights[5])
        with pytest.raises(lmcstore.DamagedError):
            found[: ROWS // 2]
        with pytest.raises(lmcstore.DamagedError):
            np.mean(found)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "mean of an axis": lambda a: np.mean(a, axis=0),
    "sum": np.sum,
    "std": lambda a: np.std(a, ddof=1),
    "max": np.max,
    "argmax": np.argmax,
    "median": np.median,
    "norm": np.linalg.norm,
    "quantile": lambda a: np.quantile(a, 0.25),
    "concatenate": lambda a: np.concatenate([a, a]),
    "stack": lambda a: np.stack((a, a)),
    "where": lambda a: np.where(a > 3, 1, 0),
    "exp": np.exp,
    "add": lambda a: np.add(a, 1),
    "reduce": lambda a: np.add.reduce(a),
    "matmul": lambda a: np.matmul(a, np.ones(3, "f4")),
    "einsum": lambda a: np.einsum("ij->i", a),
    "sort": lambda a: np.sort(a, axis=None),
    "shape": lambda a: np.array(np.shape(a)),
    "histogram": lambda a: np.histogram(a, bins=4)[0],
    "allclose": lambda a: np.allclose(a, a),
    "array": np.array,
    "an array on the left": lambda a: np.ones((4, 3), "f4") * a,
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("package", ["numpy", "torch"])
def test_functions_of_numpy(shelf: lmcstore.Shelf, function: str, package: str) -> None:
    values = np.arange(12, dtype="f4").reshape(4, 3)
    snap = shelf.snapshot({"w": values if package == "numpy" else torch.from_numpy(values), "m": {"w": values}})
    expected = np.asarray(FUNCTIONS[function](values))
    for tensor in (snap["w"], snap["m"]["w"]):
        found = np.asarray(FUNCTIONS[function](tensor))
        assert found.dtype == expected.dtype and np.array_equal(found, expected)


def test_a_result_of_numpy_never_goes_to_a_snapshot(snap: lmcstore.Snapshot) -> None:
    with pytest.raises(lmcstore.UnsupportedError, match="changed"):
        np.mean(np.ones((4, 3)), axis=0, out=snap["model.h.0.weight"])
    with pytest.raises(ValueError, match="read-only"):
        np.copyto(snap["model.w"], 0)
    assert np.mean(snap["model.w"]) == 5.5


def test_a_forked_child_reads_rows(store: lmcstore.Store) -> None:
    """Workers of a DataLoader get tensors of the parent."""
    values = np.arange(12.0).reshape(4, 3)
    snap = store["run"].snapshot({"w": values, "text": "a" * 5000})
    tensor, part = snap["w"], snap[()]
    replaced = store["other"].snapshot({"w": values})["w"]
    store["other"].drop()
    store["other"].snapshot({"w": values + 1})

    def read() -> bool:
        assert np.array_equal(tensor[2:], values[2:]) and np.mean(tensor) == 5.5 and tensor.shape == (4, 3)
        assert np.array_equal(part["w"].numpy(), values)
        try:
            replaced[:1]
        except lmcstore.NotFoundError:
            return True
        return False

    child = os.fork()
    if child == 0:
        signal.alarm(30)
        worked = False
        with contextlib.suppress(BaseException):
            worked = read()
        os._exit(0 if worked else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(tensor[2:], values[2:])
    store["run"].snapshot({"w": values})


def test_other_functions_take_tensors(shelf: lmcstore.Shelf, folder: str) -> None:
    snap = shelf.snapshot({"w": np.arange(3.0)})
    shelf.live["w"] = snap["w"]
    s = pymm.shelf("test", size_mb=8, pmem_path=folder)
    s.w = snap["w"]
    assert shelf.live["w"].tolist() == s.w.tolist() == [0, 1, 2]
    assert lmcstore.codec.compress(snap["w"]) == lmcstore.codec.compress(np.arange(3.0))
    again = shelf.snapshot({"w": snap["w"], "mean": np.mean(snap["w"])}, metrics={"first": snap["w"][0]})
    assert again.metrics["first"] == 0 and np.array_equal(again["w"], snap["w"])


def test_modules_take_a_snapshot(shelf: lmcstore.Shelf) -> None:
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    other.load_state_dict(shelf.snapshot(model.state_dict()))
    assert torch.equal(model.weight, other.weight) and torch.equal(model.bias, other.bias)
    snap = shelf.latest
    assert torch.equal(snap["weight"], model.weight.detach())
    with torch.no_grad():
        other.weight.zero_()
        other.weight.copy_(snap["weight"])
        assert torch.equal(model.weight, other.weight)
        assert torch.allclose(
            torch.nn.functional.linear(torch.ones(3), snap["weight"], snap["bias"]), model(torch.ones(3))
        )
