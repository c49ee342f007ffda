# SPDX-License-Identifier: BSD-3-Clause
"""A value that can't be stored exactly is refused with its path, before anything is stored."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import pathlib
import random
import time
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore._state import check, decode, scalars
from lmcstore._state.encode import Encoded
from lmcstore._text.arguments import an
from optional import HAS_TORCH, ml_dtypes, tensors, torch
from same import same


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


class MyTensor(torch.Tensor if HAS_TORCH else object):  # type: ignore[misc]
    pass


class Odd(enum.Enum):
    A = object()


class OwnZone(datetime.tzinfo):
    def utcoffset(self, when: Any) -> Any:
        return datetime.timedelta(0)


@dataclasses.dataclass
class Config:
    x: int = 1


def _dataclass_with_more() -> Any:
    value = Config()
    value.note = "x"  # type: ignore[attr-defined]
    return value


Point = collections.namedtuple("Point", "x y")


def _ordered_with_attribute() -> Any:
    value = collections.OrderedDict(a=1)
    value.note = "x"  # type: ignore[attr-defined]
    return value


def _quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)


def _jagged() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)


def _freed() -> torch.Tensor:
    tensor = torch.randn(100)
    tensor.untyped_storage().resize_(0)
    return tensor


BAD = {
    "dict subclass": lambda: MyDict(a=1),
    "defaultdict of a function": lambda: collections.defaultdict(lambda: 1, a=1),
    "datetime of another zone": lambda: datetime.datetime(2020, 1, 1, tzinfo=OwnZone()),
    "dataclass with more": lambda: _dataclass_with_more(),
    "record array of objects": lambda: np.zeros(2, dtype=[("a", "O")]),
    "record array of longdouble": lambda: np.zeros(2, dtype=[("a", [("b", "g")])]),
    "strings of any length": lambda: np.array(["a", "b"], np.dtypes.StringDType()),
    "dtype with a title": lambda: np.zeros(2, dtype=[(("title", "a"), "i4")]),
    "large items": lambda: np.zeros(1, "V20000000"),
    "empty items": lambda: np.zeros(2, "V0"),
    "time of another zone": lambda: datetime.time(1, tzinfo=OwnZone()),
    "struct_time": lambda: time.gmtime(0),
    "enum of an object": lambda: Odd.A,
    "list subclass": lambda: MyList([1]),
    "str subclass": lambda: MyStr("x"),
    "range": lambda: range(3),
    "object": object,
    "function": lambda: len,
    "class": lambda: int,
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
    "longdouble": lambda: np.zeros(2, np.longdouble),
    "matrix": lambda: np.zeros((2, 2)).view(np.matrix),
    "masked": lambda: np.ma.masked_array([1, 2]),
    "longdouble scalar": lambda: np.longdouble(1),
    "numpy dtype": lambda: np.dtype("f4"),
    "layout": lambda: torch.strided,
    "generator": lambda: torch.Generator(),
    "module": lambda: torch.nn.Linear(1, 1),
    "tensor in a set": lambda: {torch.zeros(1)},
    "enum in a set": lambda: {2, Number.ONE},
}


@pytest.mark.parametrize("name", BAD)
def test_refused_by_path(shelf: lmcstore.Shelf, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bad = BAD[name]()
    state = {"fine": tensors.zeros(3), "model": {"layers": [1, {"weird": bad}]}}
    with pytest.raises(lmcstore.UnsupportedError) as caught:
        shelf.snapshot(state)
    assert isinstance(caught.value, TypeError)
    assert "model.layers.1.weird" in str(caught.value)
    assert shelf.latest is None and len(shelf) == 0


@pytest.mark.parametrize(
    "key",
    [Colour.RED, Number.ONE, Word.A, object(), Point(1, 2), (1, MyStr("x")), *([torch.zeros(1)] if HAS_TORCH else [])],
)
def test_refused_keys(shelf: lmcstore.Shelf, key: Any) -> None:
    with pytest.raises(lmcstore.UnsupportedError, match=r"a\.b.*key"):
        shelf.snapshot({"a": {"b": {key: 1}}})
    assert len(shelf) == 0


def test_all_refused_values_in_one_error(shelf: lmcstore.Shelf) -> None:
    part = {"good": 1, "enum": object(), "twice": [1, 2]}
    state = {"model": torch.nn.Linear(1, 1), "list": [1, range(3), {object(): 1}], "a": part, "b": part}
    state |= {"deep": _in_sets(201), "w": torch.zeros(2), "meta": torch.zeros(2, device="meta")}
    state["odd"] = _ordered_with_attribute()
    with pytest.raises(lmcstore.UnsupportedError) as caught:
        shelf.snapshot(state)
    lines = str(caught.value).split("\n  ")
    assert lines[0] == "8 values of the state can't be stored:"
    paths = ["model", "list.1", "list.2", "a.enum", "b.enum", "deep", "meta", "odd"]
    assert [line.split(":")[0] for line in lines[1:]] == paths
    assert len(shelf) == 0
    with pytest.raises(lmcstore.UnsupportedError, match=r"^odd: "):
        shelf.snapshot({"odd": _ordered_with_attribute(), "again": part["twice"], "and": part["twice"]})


def test_many_refused_values_are_counted(shelf: lmcstore.Shelf) -> None:
    for count, text in ((12, "^12 values"), (999, "^999 values"), (5000, "^at least 1,000 values")):
        with pytest.raises(lmcstore.UnsupportedError, match=text) as caught:
            shelf.snapshot({"x": [object() for _ in range(count)]})
        assert f"and {min(count, 1000) - 10:,} more" in str(caught.value) and len(str(caught.value)) < 3000
    state: Any = object()
    for _ in range(199):
        state = [state, state]
    with pytest.raises(lmcstore.UnsupportedError, match="at least 1,000"):
        shelf.snapshot(state)
    with pytest.raises(lmcstore.UnsupportedError) as caught:
        shelf.snapshot({"x" * 100_000: object(), "y" * 100_000: object()})
    assert len(str(caught.value)) < 2000 and str(caught.value).endswith("plain values")


def _scheduler() -> Any:
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), 1)


REMEDIES = {
    "module": (lambda: torch.nn.Linear(1, 1), r"state_dict\(\)"),
    "optimizer": (lambda: torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), r"state_dict\(\)"),
    "scheduler": (_scheduler, r"state_dict\(\)"),
    "module class": (lambda: torch.nn.Linear, "its name"),
    "sparse": (lambda: torch.zeros(2).to_sparse(), "dense"),
    "tensor subclass": (lambda: torch.zeros(2).as_subclass(MyTensor), "as_subclass"),
    "nested": (_jagged, "the tensors of which it consists"),
    "quantized": (_quantized, r"int_repr\(\), scales"),
    "fewer bits": (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.uint4), r"view\(torch\.uint8\)"),
    "generator": (lambda: torch.Generator(), r"get_state\(\)"),
    "numpy generator": (np.random.default_rng, r"bit_generator\.state"),
    "numpy random state": (np.random.RandomState, r"get_state\(\)"),
    "random": (random.Random, r"getstate\(\)"),
    "range": (lambda: range(3), r"list\(value\)"),
    "dict subclass": (lambda: MyDict(a=1), r"dict\(value\)"),
    "str subclass": (lambda: MyStr("x"), r"str\(value\)"),
    "matrix": (lambda: np.zeros((2, 2)).view(np.matrix), r"numpy\.asarray"),
    "masked": (lambda: np.ma.masked_array([1, 2]), "its data and its mask"),
    "longdouble": (lambda: np.zeros(2, np.longdouble), r"astype\('f8'\)"),
    "clongdouble": (lambda: np.zeros(2, np.clongdouble), r"astype\('c16'\)"),
    "object": (object, "dicts, lists and plain values"),
    "function": (lambda: len, "its name"),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_remedies(shelf: lmcstore.Shelf, name: str) -> None:
    make, text = REMEDIES[name]
    with pytest.raises(lmcstore.UnsupportedError, match=f"^a.b: .*can't be stored; .*{text}"):
        shelf.snapshot({"a": {"b": make()}})


def test_cycles(shelf: lmcstore.Shelf) -> None:
    state: dict[str, Any] = {"a": {"b": [1]}}
    state["a"]["b"].append(state["a"])
    with pytest.raises(lmcstore.UnsupportedError, match=r"a\.b\.1.*contains itself"):
        shelf.snapshot(state)
    assert len(shelf) == 0


def test_what_stands_twice_is_no_cycle(shelf: lmcstore.Shelf) -> None:
    part = {"x": tensors.zeros(1), "y": [1]}
    back = shelf.snapshot({"a": part, "b": [part, part]}).state_dict()
    assert back["a"]["y"] == back["b"][1]["y"] == [1]


def test_depth(shelf: lmcstore.Shelf) -> None:
    def nested(levels: int) -> Any:
        state: Any = tensors.ones(1)
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


def _in_tuples(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels):
        value = (value,)
    return value


def _in_sets(levels: int) -> Any:
    value: Any = frozenset()
    for _ in range(levels):
        value = frozenset({value})
    return value


DEEP: dict[str, Callable[[int], Any]] = {
    "tuple key": lambda levels: {_in_tuples(levels): 1},
    "set key": lambda levels: {_in_sets(levels): 1},
    "frozenset": _in_sets,
    "set": lambda levels: {_in_sets(levels - 1)},
    "large set": lambda levels: {_in_tuples(levels - 1), "x" * 10_000},
    "tuple in a set": lambda levels: {_in_tuples(levels - 1)},
    "below containers": lambda levels: [[{"a": [_in_sets(levels)] * 2}]],
    "key of metadata": lambda levels: _with_metadata({_in_tuples(levels): 1}),
}


def _with_metadata(metadata: Any) -> Any:
    made: OrderedDict[str, Any] = OrderedDict(a=1)
    made._metadata = metadata  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("name", DEEP)
def test_what_is_stored_can_be_read(shelf: lmcstore.Shelf, name: str) -> None:
    """At each limit of depth and beside it, a state is refused, or read again."""
    taken = []
    for levels in (1, 150, 190, 197, 198, 199, 200, 201, 202, 250, 5000):
        state = {"w": tensors.ones(1), "x": DEEP[name](levels)}
        try:
            snapshot = shelf.snapshot(state)
        except lmcstore.UnsupportedError as error:
            assert "deep" in str(error) and "200" in str(error) and "x" in str(error)
            continue
        taken.append(levels)
        assert snapshot["w"].item() == 1 and snapshot.select("w") and snapshot.load_into({"w": tensors.zeros(1)})
        back = snapshot.state_dict()["x"]
        assert back == state["x"] and type(back) is type(state["x"])
    assert max(taken) == 200 and len(shelf) == len(taken) == 7


def test_what_is_read_again_equals_the_state(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in writing or reading is found before the commit."""
    states: list[tuple[dict[str, Any], str, Any, Any]] = [
        ({"a": 1234}, "value", scalars._READERS, (ord("i"), lambda reader: len(reader._sized()))),
        ({"a": "x" * 9000}, "large value", scalars._READERS, (ord("s"), lambda reader: str(reader._sized()))),
        ({"a": {(1, 2.5): 3}}, "a: the dict.*keys", scalars._CONTAINERS, (ord("t"), lambda items: (*items, 1))),
        ({"a": OrderedDict(b=1)}, "containers", check._TYPES, ("o", dict)),
        ({"a": {"b": tensors.ones(1)}}, "structure", decode.DICT_TYPES, ("d", None)),
    ]
    for state, text, table, (key, value) in states:
        with monkeypatch.context() as patch:
            check.structure_of.cache_clear()
            patch.delitem(table, key) if value is None else patch.setitem(table, key, value)
            with pytest.raises(lmcstore.UnsupportedError, match=text):
                shelf.snapshot(state)
        check.structure_of.cache_clear()
        assert len(shelf) == 0
    for state, *_ in states:
        same(state, shelf.snapshot(state).state_dict())


@pytest.mark.parametrize("known", [False, True])
def test_names_are_compared_also_of_a_known_structure(
    shelf: lmcstore.Shelf, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if known:
        shelf.snapshot({"a": tensors.ones(1)})
    else:
        check.structure_of.cache_clear()
    encoded = Encoded({"a": tensors.ones(1)}, check=False)
    encoded._names = {"b": None}
    with pytest.raises(lmcstore.UnsupportedError, match="structure"):
        encoded.check()


def test_what_is_too_long(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    for state in ({"a": {"b": bytes(2**32)}}, {"a": {"b": [1, bytes(2**32)]}}, {"a": {"b": bytearray(2**32)}}):
        with pytest.raises(lmcstore.UnsupportedError, match=r"^a\.b.*too long: it has 4,294,967,29"):
            shelf.snapshot(state)
    monkeypatch.setattr(scalars, "MAX_COUNT", 999)
    makers: list[Callable[[int], Any]] = [
        lambda count: "x" * count,
        lambda count: {"x" * count},
        lambda count: {(b"x" * count,): 1},
        lambda count: [0] * count,
        lambda count: [0.5, None] * (count // 2) + [1] * (count % 2),
    ]
    for make in makers:
        for value in (make(1000), [make(1000)]):
            with pytest.raises(lmcstore.UnsupportedError, match=r"^b.*too long"):
                shelf.snapshot({"b": value})
        same(make(999), shelf.snapshot({"b": make(999)}).state_dict()["b"])
    with pytest.raises(lmcstore.UnsupportedError, match=r"^c.*too long"):
        shelf.live["c"] = "x" * 1000


def test_a_deep_caller(shelf: lmcstore.Shelf) -> None:
    """Python's recursion limit is reported as such: the snapshot is not damaged."""
    state: Any = {'"[[["': {_in_tuples(200): 1}}
    for _ in range(190):
        state = {"a": state}
    snapshot = shelf.snapshot(state)

    def at(depth: int, function: Callable[[], Any]) -> Any:
        return at(depth - 1, function) if depth else function()

    limits = 0
    for depth in range(0, 900, 50):
        for function in (lambda: shelf[1].state_dict(), lambda: shelf.snapshot(state)):
            try:
                at(depth, function)
            except lmcstore.UnsupportedError as error:
                limits += 1
                assert "recursion limit" in str(error)
    assert limits > 2
    assert snapshot.state_dict() == state


def test_live_values_have_the_same_limits(shelf: lmcstore.Shelf) -> None:
    shelf.live["x"] = _in_sets(200)
    assert shelf.live["x"] == _in_sets(200)
    with pytest.raises(lmcstore.UnsupportedError, match=r"^x.*deep"):
        shelf.live["x"] = _in_sets(201)
    shelf.live.snapshot()
    assert shelf.latest.state_dict()["x"] == _in_sets(200)


UNREAD = {
    "long": "S20000000",
    "with a shape": ("f4", 3),
    "union": {"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 0]},
    "out of order": {"names": ["a", "b"], "formats": ["u1", "u4"], "offsets": [4, 0]},
    "titles": [(("title", "a"), "f4")],
    "bfloat16": [("a", ml_dtypes.bfloat16)],
}


@pytest.mark.parametrize("name", UNREAD)
def test_live_dtypes_that_no_note_describes(shelf: lmcstore.Shelf, name: str) -> None:
    dtype = np.dtype(UNREAD[name])
    with pytest.raises(lmcstore.UnsupportedError, match=r"^x: .* can't be stored"):
        shelf.live.create("x", 1, dtype)
    if dtype.subdtype is None:
        with pytest.raises(lmcstore.UnsupportedError, match=r"^x: .* can't be stored"):
            shelf.live["x"] = np.zeros(1, dtype)
    assert shelf.live.names() == []
    longdouble = np.array([(1, 2)], [("a", np.longdouble), ("b", "i4")])
    shelf.live["x"] = longdouble
    assert shelf.live["x"].dtype == longdouble.dtype and np.array_equal(shelf.live["x"], longdouble)


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
        with pytest.raises(lmcstore.UnsupportedError, match=r"model\.w: .*DTensor.*full_tensor\(\).*to_local\(\)"):
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
        shelf.snapshot({"a": tensors.zeros(1)}, tags=[tag])
    assert len(shelf) == 0
    shelf.snapshot({"a": tensors.zeros(1)})
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


def test_articles_of_kinds(shelf: lmcstore.Shelf) -> None:
    vowels = ("int", "ndarray", "OSError", "RMSprop", "LSTM")
    others = ("float", "numpy.ndarray", "ReLU", "UUID", "NoneType")
    assert [an(word) for word in vowels] == [f"an {word}" for word in vowels]
    assert [an(word) for word in others] == [f"a {word}" for word in others]
    with pytest.raises(lmcstore.UnsupportedError, match=r"^error: an OSError can't be stored"):
        shelf.snapshot({"error": OSError()})
    with pytest.raises(lmcstore.UnsupportedError, match=r"not from an int$"):
        shelf.snapshot({}).diff(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [-1, 0, 2**32, 2**32 + 1, 2**64])
def test_wrong_keep_raw(shelf: lmcstore.Shelf, count: int) -> None:
    shelf.snapshot({})
    with pytest.raises(lmcstore.InvalidError):
        shelf.keep_raw = count
    assert shelf.keep_raw == 4


def test_remedies_lose_nothing() -> None:
    """`vars` is advised only for values whose data it returns."""

    class Deque(collections.deque):  # type: ignore[type-arg]
        pass

    class Moment(datetime.datetime):
        pass

    class Day(datetime.date):
        pass

    class Hour(datetime.time):
        pass

    class Span(datetime.timedelta):
        pass

    class Place(type(pathlib.Path())):  # type: ignore[misc]
        pass

    class Slots:
        __slots__ = ("__dict__", "a")

    slots: Any = Slots()
    slots.a, slots.b = 1, 2
    zone = datetime.timezone(datetime.timedelta(hours=1))
    record = np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0]
    for value, wanted in (
        (Deque([1, 2], 5), collections.deque([1, 2], 5)),
        (Moment(2025, 10, 26, 2, 30, fold=1, tzinfo=zone), datetime.datetime(2025, 10, 26, 2, 30, fold=1, tzinfo=zone)),
        (Day(2020, 1, 2), datetime.date(2020, 1, 2)),
        (Hour(1, 2, 3, 4, zone, fold=1), datetime.time(1, 2, 3, 4, zone, fold=1)),
        (Span(-1, 2, 3), datetime.timedelta(-1, 2, 3)),
        (Place("a/b"), str(pathlib.Path("a/b"))),
        (record, (1, 2.0)),
        (types.SimpleNamespace(a=1), {"a": 1}),
    ):
        with pytest.raises(lmcstore.UnsupportedError) as caught:
            Encoded({"v": value})
        advised = str(caught.value).rpartition("store ")[2].rpartition("such as ")[2]
        made = eval(advised, {"collections": collections, "datetime": datetime, "value": value})
        assert made == wanted and type(made) is type(wanted)
        Encoded({"v": made})
    for value in (ValueError("lost"), slots):
        with pytest.raises(lmcstore.UnsupportedError, match=r"plain values$"):
            Encoded({"v": value})


def test_an_enum_of_other_values_is_named() -> None:
    kind = enum.Enum(
        "Kind", {"DICT": {"x": 1}, "LIST": [1], "PATH": pathlib.Path("/a"), "SET": ({(1, pathlib.Path())},)}
    )
    for member, refused in ((kind.DICT, "dict"), (kind.LIST, "list"), (kind.PATH, "pathlib"), (kind.SET, "pathlib")):
        text = (
            rf"^a\.v: .*{refused}\S* \(in the value of the enum {__name__}\.Kind\) can't be stored; store value\.name$"
        )
        with pytest.raises(lmcstore.UnsupportedError, match=text):
            Encoded({"a": {"v": member}})
    with pytest.raises(lmcstore.UnsupportedError, match=r"Colour \(in a set\) can't be stored; store value\.name$"):
        Encoded({"a": {Colour.RED}})
