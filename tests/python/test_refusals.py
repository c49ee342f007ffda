# SPDX-License-Identifier: BSD-3-Clause
"""A value that can't be stored exactly is refused with its path, before anything is stored."""

from __future__ import annotations

import collections
import datetime
import enum
import pathlib
import warnings
from typing import Any

import lmcstore
import ml_dtypes
import numpy as np
import pytest
from optional import torch


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class MyDict(dict[Any, Any]):
    pass


class MyList(list[Any]):
    pass


class MyStr(str):
    pass


class MyTensor(torch.Tensor):
    pass


Point = collections.namedtuple("Point", "x y")


def _ordered_with_attribute() -> Any:
    value = collections.OrderedDict(a=1)
    value.note = "x"  # type: ignore[attr-defined]
    return value


def _quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)


def _freed() -> torch.Tensor:
    tensor = torch.randn(100)
    tensor.untyped_storage().resize_(0)
    return tensor


BAD = {
    "enum": lambda: Colour.RED,
    "int enum": lambda: Number.ONE,
    "str enum": lambda: Word.A,
    "dict subclass": lambda: MyDict(a=1),
    "defaultdict": lambda: collections.defaultdict(int, a=1),
    "list subclass": lambda: MyList([1]),
    "str subclass": lambda: MyStr("x"),
    "namedtuple": lambda: Point(1, 2),
    "deque": lambda: collections.deque([1]),
    "range": lambda: range(3),
    "object": object,
    "function": lambda: len,
    "class": lambda: int,
    "path": lambda: pathlib.Path("x"),
    "date": lambda: datetime.date(2020, 1, 1),
    "attribute of an OrderedDict": _ordered_with_attribute,
    "tensor subclass": lambda: torch.zeros(2).as_subclass(MyTensor),
    "parameter subclass": lambda: torch.nn.parameter.UninitializedParameter(),
    "meta": lambda: torch.zeros(2, device="meta"),
    "sparse": lambda: torch.zeros(2).to_sparse(),
    "csr": lambda: torch.zeros(2, 2).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "quantized": _quantized,
    "freed storage": _freed,
    "object array": lambda: np.array([object()]),
    "record array": lambda: np.zeros(2, dtype=[("a", "i4")]),
    "dates": lambda: np.zeros(2, "datetime64[s]"),
    "durations": lambda: np.zeros(2, "timedelta64[s]"),
    "text array": lambda: np.array(["a"]),
    "bytes array": lambda: np.array([b"a"]),
    "longdouble": lambda: np.zeros(2, np.longdouble),
    "matrix": lambda: np.zeros((2, 2)).view(np.matrix),
    "masked": lambda: np.ma.masked_array([1, 2]),
    "numpy str": lambda: np.str_("x"),
    "numpy date": lambda: np.datetime64("2020-01-01"),
    "longdouble scalar": lambda: np.longdouble(1),
    "numpy dtype": lambda: np.dtype("f4"),
    "layout": lambda: torch.strided,
    "generator": torch.Generator,
    "module": lambda: torch.nn.Linear(1, 1),
    "tensor in a set": lambda: {torch.zeros(1)},
    "enum in a list": lambda: [1, 2, Number.ONE],
    "enum in a set": lambda: {2, Number.ONE},
}


@pytest.mark.parametrize("name", BAD)
def test_refused_by_path(shelf: lmcstore.Shelf, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bad = BAD[name]()
    state = {"fine": torch.zeros(3), "model": {"layers": [1, {"weird": bad}]}}
    with pytest.raises(lmcstore.UnsupportedError) as caught:
        shelf.snapshot(state)
    assert isinstance(caught.value, TypeError)
    assert "model.layers.1.weird" in str(caught.value)
    assert shelf.latest is None and len(shelf) == 0


@pytest.mark.parametrize(
    "key", [Colour.RED, Number.ONE, Word.A, object(), torch.zeros(1), Point(1, 2), (1, MyStr("x"))]
)
def test_refused_keys(shelf: lmcstore.Shelf, key: Any) -> None:
    with pytest.raises(lmcstore.UnsupportedError, match=r"a\.b.*key"):
        shelf.snapshot({"a": {"b": {key: 1}}})
    assert len(shelf) == 0


def test_cycles(shelf: lmcstore.Shelf) -> None:
    state: dict[str, Any] = {"a": {"b": [1]}}
    state["a"]["b"].append(state["a"])
    with pytest.raises(lmcstore.UnsupportedError, match=r"a\.b\.1.*contains itself"):
        shelf.snapshot(state)
    assert len(shelf) == 0


def test_what_stands_twice_is_no_cycle(shelf: lmcstore.Shelf) -> None:
    part = {"x": torch.zeros(1), "y": [1]}
    back = shelf.snapshot({"a": part, "b": [part, part]}).state_dict()
    assert back["a"]["y"] == back["b"][1]["y"] == [1]


def test_depth(shelf: lmcstore.Shelf) -> None:
    def nested(levels: int) -> Any:
        state: Any = torch.ones(1)
        for _ in range(levels):
            state = {"a": [state]}
        return state

    back = shelf.snapshot(nested(90)).state_dict()
    for _ in range(90):
        back = back["a"][0]
    assert back.item() == 1
    for levels in (150, 100_000):
        with pytest.raises(lmcstore.UnsupportedError, match="deep"):
            shelf.snapshot(nested(levels))
    assert len(shelf) == 1


def _made_by_others() -> list[str]:
    kinds = {name: getattr(ml_dtypes, name) for name in dir(ml_dtypes)}
    return sorted(name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, np.generic))


@pytest.mark.parametrize("name", _made_by_others())
def test_dtypes_of_others_come_back_or_are_refused(shelf: lmcstore.Shelf, name: str) -> None:
    """Some share a character with NumPy's: int1 with float16, float8_e4m3b11fnuz with uint64."""
    array = np.arange(5).astype(getattr(ml_dtypes, name))
    try:
        shelf.snapshot({"x": array})
    except lmcstore.UnsupportedError as error:
        assert str(error).startswith("x: ") and name in str(error)
    else:
        back = shelf.latest["x"]
        assert back.dtype == array.dtype and back.tobytes() == array.tobytes()
    shelf.live["x"] = array
    back = shelf.live["x"]
    assert back.dtype == array.dtype and back.tobytes() == array.tobytes()


def test_dtensor(shelf: lmcstore.Shelf, tmp_path: Any) -> None:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("no torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        tensor = distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (1,)), [Replicate()])
        with pytest.raises(lmcstore.UnsupportedError, match=r"model\.w: .*DTensor"):
            shelf.snapshot({"model": {"w": tensor}})
    finally:
        distributed.destroy_process_group()
    assert len(shelf) == 0


@pytest.mark.parametrize(
    "meta",
    [{1: "a"}, {"a": (1, 2)}, {"a": float("nan")}, {"a": object()}, {"a": {"b": {1}}}, {"a": "\udc80"}, {"a": 2**70}],
)
def test_meta_that_json_would_change(shelf: lmcstore.Shelf, meta: Any) -> None:
    with pytest.raises(lmcstore.Error, match="meta"):
        shelf.snapshot({}, meta=meta)
    assert len(shelf) == 0


@pytest.mark.parametrize("tag", ["a@b", "a~1", "a:b", "a..b", "latest", "7", ""])
def test_bad_tags(shelf: lmcstore.Shelf, tag: str) -> None:
    with pytest.raises(lmcstore.Error):
        shelf.snapshot({"a": torch.zeros(1)}, tags=[tag])
    assert len(shelf) == 0
    shelf.snapshot({"a": torch.zeros(1)})
    assert len(shelf) == 1


def test_bad_arguments(shelf: lmcstore.Shelf) -> None:
    for arguments in ({"step": 1.5}, {"step": "1"}, {"step": 2**63}, {"metrics": {"a": "b"}}, {"parent": 0}):
        with pytest.raises(lmcstore.Error):
            shelf.snapshot({}, **arguments)
    assert len(shelf) == 0


def test_snapshots_of_another_shelf(store: lmcstore.Store, shelf: lmcstore.Shelf, tmp_path: pathlib.Path) -> None:
    for step in range(3):
        shelf.snapshot({"step": step}, step=step)
    with lmcstore.open(tmp_path / "elsewhere.pool", background=False) as elsewhere:
        strangers = [store["other"].snapshot({"x": 1}), elsewhere[shelf.name].snapshot({"x": 1})]
        for stranger in strangers:
            for use in (
                lambda: shelf.remove(stranger),  # noqa: B023
                lambda: shelf.tag(stranger, "t"),  # noqa: B023
                lambda: shelf.snapshot({}, parent=stranger),  # noqa: B023
            ):
                with pytest.raises(lmcstore.InvalidError, match="not of this shelf"):
                    use()
    assert [snapshot.number for snapshot in shelf] == [1, 2, 3] and not any(snapshot.tags for snapshot in shelf)


@pytest.mark.parametrize(
    "arguments",
    [{"tags": [3]}, {"metrics": {1: 2.0}}, {"metrics": [("a", 1)]}, {"metrics": {"a": 10**400}}, {"meta": "s"}],
)
def test_wrong_arguments(shelf: lmcstore.Shelf, arguments: dict[str, Any]) -> None:
    with pytest.raises(lmcstore.UnsupportedError):
        shelf.snapshot({}, **arguments)
    assert len(shelf) == 0


@pytest.mark.parametrize("count", [-1, 0, 2**32, 2**32 + 1, 2**64])
def test_wrong_keep_raw(shelf: lmcstore.Shelf, count: int) -> None:
    shelf.snapshot({})
    with pytest.raises(lmcstore.InvalidError):
        shelf.keep_raw = count
    assert shelf.keep_raw == 4
