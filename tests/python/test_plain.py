# SPDX-License-Identifier: BSD-3-Clause
"""Plain data classes are stored without pickle, and return as themselves or as documented stand-ins."""

from __future__ import annotations

import array
import collections
import collections.abc
import copy
import dataclasses
import datetime
import enum
import functools
import json
import pathlib
import sys
import zoneinfo
from collections import OrderedDict, defaultdict, deque
from typing import Any, Generic, NamedTuple, TypeVar

import lmcstore
import numpy as np
import pytest
from lmcstore import _core
from lmcstore._state.scalars import pack
from lmcstore._state.skeleton import SKELETON
from optional import tensors, torch
from same import same
from test_hostile import craft

UTC = datetime.UTC
ZONE = datetime.timezone(datetime.timedelta(hours=-3, seconds=7), "X")
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
T = TypeVar("T")


class Color(enum.Enum):
    RED = 1
    PAIR = (1, "x")


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class Flag(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: Any
    y: Any = 2


@dataclasses.dataclass
class Config:
    lr: float
    color: Color = Color.RED
    layers: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    w: Any
    made: int = dataclasses.field(default=3, init=False)


Renamed = collections.namedtuple("Renamed", ["a", "def", "a"], rename=True)  # type: ignore[misc]

RECORD = np.dtype([("a", "<i4"), ("b", ">f8", (2,)), ("c", [("d", "U3"), ("e", "M8[s]")])])

EXACT: dict[str, Any] = {
    "path": pathlib.Path("/tmp/x y"),
    "odd path": pathlib.Path("a/\udc80/../ä"),
    "empty path": pathlib.Path(),
    "pure paths": [pathlib.PurePosixPath("a/b"), pathlib.PureWindowsPath("c:\\a")],
    "datetime": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "naive": datetime.datetime(1, 1, 1),
    "fold": datetime.datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN, fold=1),
    "named zone": datetime.datetime(2026, 1, 2, tzinfo=ZONE),
    "date": datetime.date(9999, 12, 31),
    "time": datetime.time(1, 2, 3, 4, tzinfo=UTC, fold=1),
    "timedelta": [datetime.timedelta(-5, 6, 7), datetime.timedelta.max, datetime.timedelta.min],
    "timezones": [UTC, ZONE],
    "deque": deque([1, tensors.ones(2), {"a": 1}], maxlen=5),
    "deques": [deque(), deque([1], 1), deque(maxlen=0), deque("abc")],
    "defaultdict": defaultdict(list, {"a": [tensors.zeros(2)], 1: 2, (1, "x"): None}),
    "defaultdicts": [defaultdict(kind) for kind in (int, float, dict, set, str, bool, OrderedDict, None)],
    "str_": np.str_("x\0\udc80"),
    "empty str_": np.str_(""),
    "bytes_": np.bytes_(b"a\0b"),
    "datetime64": np.datetime64("2020-01-01T01:02:03.5"),
    "not a time": np.datetime64("NaT", "D"),
    "timedelta64": np.timedelta64(-5, "ms"),
    "void": np.array([(1, (2.0, 3.0), ("ab", 4))], RECORD)[0],
    "records": np.array([(1, (2.0, 3.0), ("ab", 4)), (5, (6.0, 7.0), ("cde", 8))], RECORD)[::-1],
    "no records": np.zeros((0, 3), RECORD),
    "one record": np.zeros((), RECORD),
    "aligned": np.zeros(3, np.dtype([("a", "i1"), ("b", "i8")], align=True)),
    "texts": np.array([["a", "bcd"], ["", "ä"]]),
    "swapped texts": np.array(["a", "bcd"]).astype(">U3"),
    "bytes texts": np.array([b"a", b"bcd"]),
    "void items": np.array([b"abc", b"def"], "V3"),
    "times": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "durations": np.arange(6).astype("m8[s]").reshape(2, 3).T,
    "large path": [pathlib.Path("x" * 5000)],
    "complex": 1 + 2j,
    "sets": [{1, 2}, frozenset({(1, 2)})],
}


def same_plain(left: Any, right: Any) -> None:
    if isinstance(left, deque):
        assert type(right) is deque and left.maxlen == right.maxlen
        left, right = list(left), list(right)
    if isinstance(left, defaultdict):
        assert left.default_factory is right.default_factory
    if isinstance(left, list):
        assert type(right) is list and len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            same_plain(one, other)
    elif isinstance(left, datetime.datetime | datetime.time):
        assert type(left) is type(right)
        assert (left.isoformat(), left.fold, left.tzname()) == (right.isoformat(), right.fold, right.tzname())
        assert type(left.tzinfo) is type(right.tzinfo) and str(left.tzinfo) == str(right.tzinfo)
    elif isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape) and left.tobytes() == right.tobytes()
    else:
        same(left, right)


@pytest.mark.parametrize("name", EXACT)
def test_exact(shelf: lmcstore.Shelf, name: str) -> None:
    value = EXACT[name]
    for state in (value, {"a": [value, 1]}):
        snapshot = shelf.snapshot(state)
        back = snapshot.state_dict() if state is value else snapshot.state_dict()["a"][0]
        same_plain(value, back)
    same_plain(value, snapshot["a"][0].read() if isinstance(value, np.ndarray) else _read(snapshot["a"][0]))
    target = {"a": [None, 0]}
    snapshot.load_into(target)
    same_plain(value, target["a"][0])


def _read(value: Any) -> Any:
    return value.copy() if isinstance(value, lmcstore.Part) else value


STATE: dict[str, Any] = {
    "enums": [Color.RED, Color.PAIR, Number.ONE, Word.A, Flag.A | Flag.B],
    "point": Point(tensors.ones(2), [Point(1, Color.RED)]),
    "config": Config(0.1, layers=[Frozen(tensors.zeros(3))]),
}
TYPES = [Color, Number, Word, Flag, Point, Config, Frozen]


def test_stand_ins(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot(STATE)
    back = snapshot.state_dict()
    assert back["enums"] == [1, (1, "x"), 1, "a", 3] and [type(value) for value in back["enums"]][2:] == [int, str, int]
    point = back["point"]
    assert type(point).__name__ == "Point" and type(point) is not Point and point._fields == ("x", "y")
    assert point.x.tolist() == [1, 1] and point.y[0].y == 1 and isinstance(point, tuple)
    assert back["config"]["color"] == 1 and list(back["config"]) == ["lr", "color", "layers"]
    assert snapshot["config.lr"] == 0.1 and snapshot["config.layers.0.w"].shape == (3,)
    assert snapshot["point.x"].shape == (2,) and "point.y.0.y" in snapshot
    assert snapshot.names() == ["point.x", "config.layers.0.w"]
    assert type(snapshot["config"]) is lmcstore.Part and snapshot["config"].copy()["layers"][0]["made"] == 3
    assert snapshot["point"].x[1:].tolist() == [1]
    renamed = Renamed(1, 2, 3)
    assert shelf.snapshot(renamed).state_dict()._fields == renamed._fields


@pytest.mark.parametrize("form", ["list", "names", "other module"])
def test_types_are_opted_in(shelf: lmcstore.Shelf, form: str) -> None:
    snapshot = shelf.snapshot(STATE)
    types: Any = TYPES
    if form == "names":
        types = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in TYPES}
    if form == "other module":
        with pytest.MonkeyPatch.context() as patch:
            for kind in TYPES:
                patch.setattr(kind, "__module__", "elsewhere")
            snapshot = shelf.snapshot(STATE)
    target: dict[str, Any] = dict.fromkeys(STATE)
    snapshot.load_into(target, types=types)
    for back in (snapshot.state_dict(types=types), target):
        assert back["enums"] == STATE["enums"] and list(map(type, back["enums"])) == [Color, Color, Number, Word, Flag]
        assert type(back["point"]) is Point and type(back["point"].y[0]) is Point and back["point"].y[0].y is Color.RED
        config = back["config"]
        assert type(config) is Config and (config.lr, config.color) == (0.1, Color.RED)
        assert type(config.layers[0]) is Frozen and config.layers[0].made == 3
        same(tensors.zeros(3), config.layers[0].w)
    some = snapshot.state_dict("config", types=[Config])
    assert type(some) is Config and some.color == 1 and type(some.layers[0]) is dict


def test_a_class_that_changed(shelf: lmcstore.Shelf) -> None:
    @dataclasses.dataclass
    class Config:
        lr: float
        color: Any
        layers: Any
        new: int = 7
        more: list[int] = dataclasses.field(default_factory=lambda: [1])

    class Fewer(NamedTuple):
        x: Any

    class Color(enum.Enum):
        BLUE = 1
        GREEN = 2

    snapshot = shelf.snapshot(STATE)
    config = snapshot.state_dict("config", types={"test_plain.Config": Config})
    assert (config.lr, config.new, config.more) == (0.1, 7, [1])
    for path, types in (
        ("config", {"test_plain.Config": Frozen}),
        ("point", {"test_plain.Point": Fewer}),
        ("point", {"test_plain.Point": Config}),
        ("config", {"test_plain.Config": Fewer}),
        ("enums", {"test_plain.Color": Color}),
        ("enums", {"test_plain.Color": Point}),
    ):
        with pytest.raises(lmcstore.InvalidError, match=r"^types: "):
            snapshot.state_dict(path, types=types)
    for bad in ([int], [1], 5, {"x": 1}, [len]):
        with pytest.raises(lmcstore.UnsupportedError, match=r"^types takes"):
            snapshot.state_dict(types=bad)  # type: ignore[arg-type]


def test_the_class_of_a_target(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot(STATE)
    target: dict[str, Any] = {"config": Config(5.0, layers=[Frozen(None)]), "point": Point(None, None)}
    snapshot.load_into(target)
    assert type(target["config"]) is Config and target["config"].color is Color.RED and target["config"].lr == 0.1
    assert type(target["config"].layers[0]) is Frozen and type(target["point"]) is Point


def test_nothing_is_imported(run_python: Any, tmp_path: Any) -> None:
    pytest.importorskip("torch")
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    code = f"""
import sys, lmcstore
sys.path.insert(0, {str(tmp_path)!r})
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_hostile import craft
with lmcstore.open({str(tmp_path / "x.pool")!r}, background=False) as store:
    for tag in ("N", "c"):
        craft(store["run"], {{"lmcstore": 2, "leaves": 0, "root": [tag, "evil_module.C", ["t"], 1]}}).state_dict()
    from lmcstore._state.scalars import pack
    node = {{"lmcstore": 2, "leaves": 1, "root": ["E", "evil_module.C"]}}
    assert craft(store["run"], node, pack(("A", 1)), ()).state_dict() == 1
assert "evil_module" not in sys.modules
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_a_memmap_is_read_as_an_array(shelf: lmcstore.Shelf, tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3, 4))
    mapped[:] = np.arange(12).reshape(3, 4)
    back = shelf.snapshot({"m": mapped, "row": mapped[1], "t": mapped.T}).state_dict()
    assert type(back["m"]) is np.ndarray and back["m"].tolist() == mapped.tolist()
    assert back["row"].tolist() == mapped[1].tolist() and back["t"].tolist() == mapped.T.tolist()


def test_records_by_rows_and_in_place(shelf: lmcstore.Shelf) -> None:
    records = np.zeros(1000, RECORD)
    records["a"] = np.arange(1000)
    snapshot = shelf.snapshot({"r": records})
    assert snapshot["r"].shape == (1000,) and snapshot["r"].dtype == RECORD
    assert snapshot["r"][10:13]["a"].tolist() == [10, 11, 12] and snapshot["r"]["a"][5] == 5
    target = np.zeros(1000, RECORD)
    snapshot.load_into(r=target)
    assert target.tobytes() == records.tobytes()
    with pytest.raises(lmcstore.UnsupportedError, match="torch has no dtype"):
        snapshot["r"].torch()


def test_only_new_kinds_need_the_new_version(shelf: lmcstore.Shelf) -> None:
    """Earlier builds read version 1 and report version 2 as unsupported."""
    for state, version in (({"a": [1, {1j}, np.float32(1)], "w": tensors.ones(1)}, 1), *(({"a": v}, 2) for v in NEW)):
        view = shelf.snapshot(state)._handle.view([SKELETON], _core.ATTACHMENT, 0)
        assert json.loads(bytes(view.unpack()[4][0]))["lmcstore"] == version, state


NEW = [Color.RED, Point(1), Config(1.0), deque(), defaultdict(int), UTC, np.str_("a"), np.zeros(2, RECORD)]


@pytest.mark.parametrize("index", range(len(NEW)))
def test_new_nodes_of_version_1_are_damage(shelf: lmcstore.Shelf, index: int) -> None:
    snapshot = shelf.snapshot({"a": NEW[index], "t": tensors.ones(2)})
    view = snapshot._handle.view([SKELETON], _core.ATTACHMENT, 0)
    document = json.loads(bytes(view.unpack()[4][0]))
    with pytest.raises(lmcstore.DamagedError):
        craft(shelf, document | {"lmcstore": 1}, pack(1) * document["leaves"], ("t", "a")).state_dict()


def test_what_is_read_is_ones_own(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"d": deque([[1]]), "c": Config(1.0), "n": defaultdict(list, a=[1])})
    first = copy.deepcopy(snapshot.state_dict())
    back = snapshot.state_dict()
    back["d"][0].append(2)
    back["c"]["layers"].append(3)
    back["n"]["b"].append(4)
    assert snapshot.state_dict() == first


def test_parts_are_read_with_all_containers(shelf: lmcstore.Shelf) -> None:
    w = torch.ones(3)
    snapshot = shelf.snapshot({"p": {"a": Point(w, deque([w], 4)), "d": defaultdict(list, b=[w])}})
    part = snapshot["p"]
    read = part.copy()
    assert type(read["a"]).__name__ == "Point" and type(read["a"].y) is deque and read["a"].y.maxlen == 4
    assert type(read["d"]) is defaultdict and read["d"]["new"] == []
    assert torch.is_tensor(read["a"].x) and torch.is_tensor(read["a"].y[0]) and torch.is_tensor(read["d"]["b"][0])
    again = shelf.snapshot({"p": part}).state_dict()["p"]
    assert again["a"].x.tolist() == [1, 1, 1] and type(again["d"]) is defaultdict


def test_depth_is_limited(shelf: lmcstore.Shelf) -> None:
    for wrap in (lambda v: Point(v), lambda v: deque([v]), lambda v: Config(v), lambda v: defaultdict(int, a=v)):
        value: Any = tensors.ones(1)
        for _ in range(199):
            value = wrap(value)
        shelf.snapshot({"x": value}).state_dict()
        for _ in range(5):
            value = wrap(value)
        with pytest.raises(lmcstore.UnsupportedError, match="deep"):
            shelf.snapshot({"x": value})
    looped: Any = deque()
    looped.append(looped)
    with pytest.raises(lmcstore.UnsupportedError, match="contains itself"):
        shelf.snapshot(looped)
    assert sys.getrecursionlimit() >= 1000


# Data that is in no field


@dataclasses.dataclass
class Buffer(deque):  # type: ignore[type-arg]
    cap: int = 3


@dataclasses.dataclass
class Longer(Buffer):
    more: int = 4


@dataclasses.dataclass(eq=False)
class Unit(np.ndarray):
    unit: str = "m"

    def __new__(cls) -> Any:
        return np.zeros(3).view(cls)


@dataclasses.dataclass(frozen=True)
class Moment(datetime.datetime):
    note: int = 1

    def __new__(cls) -> Any:
        return super().__new__(cls, 2020, 1, 1)


@dataclasses.dataclass
class Integers(array.array):  # type: ignore[type-arg]
    note: int = 1

    def __new__(cls) -> Any:
        return super().__new__(cls, "i", [1, 2])


@dataclasses.dataclass
class Failure(ValueError):
    code: int = 1


def _tensor_class() -> Any:
    @dataclasses.dataclass(eq=False)
    class Tensor(torch.Tensor):  # type: ignore[misc]
        unit: str = "m"

        def __new__(cls) -> Any:
            return torch.ones(3).as_subclass(cls)

    return Tensor


BASES = {
    "collections.deque": [Buffer, Longer],
    "numpy.ndarray": [Unit],
    "datetime.datetime": [Moment],
    "array.array": [Integers],
    "ValueError": [Failure],
    "torch.Tensor": [lambda: _tensor_class()()],
}


@pytest.mark.parametrize("base", BASES)
def test_a_dataclass_with_the_data_of_its_base_is_refused(shelf: lmcstore.Shelf, base: str) -> None:
    for make in BASES[base]:
        with pytest.raises(lmcstore.UnsupportedError, match=rf"^a\.v: .* of its base {base}: store a dict of both"):
            shelf.snapshot({"a": {"v": make()}})


class Slotted:
    __slots__ = ("__hidden", "cache")

    def hide(self) -> None:
        self.__hidden = 1


@dataclasses.dataclass(slots=True)
class Cached(Slotted):
    a: int = 1


class Watched:
    made = 0

    def __new__(cls) -> Any:
        Watched.made += 1
        return super().__new__(cls)


@dataclasses.dataclass
class Both(Watched, Generic[T], collections.abc.Sized):
    x: Any = 5

    def __len__(self) -> int:
        return 0


def test_slots_that_are_no_fields_are_refused(shelf: lmcstore.Shelf) -> None:
    assert shelf.snapshot(Cached(2)).state_dict() == {"a": 2}
    cached, hidden = Cached(), Cached()
    cached.cache = torch.ones(3)
    hidden.hide()
    for value, name in ((cached, "cache"), (hidden, "_Slotted__hidden")):
        with pytest.raises(lmcstore.UnsupportedError, match=rf"attributes that are no fields \('{name}'\)"):
            shelf.snapshot({"v": value})


def test_bases_without_data_are_stored(shelf: lmcstore.Shelf) -> None:
    value = Both[int]()  # typing sets __orig_class__
    made = Watched.made
    snapshot = shelf.snapshot({"v": value})
    assert snapshot.state_dict() == {"v": {"x": 5}} and snapshot.state_dict(types=[Both])["v"] == value
    assert Watched.made == made


# The names of classes


def _classes(module: str, *names: str) -> list[Any]:
    """Make an equal class for each name in a module."""
    made = []
    for name in names:
        kind: Any = enum.Enum("Kind", {"X": name}) if name.endswith("Kind") else dataclasses.make_dataclass("C", ["x"])
        kind.__module__, kind.__qualname__ = module, name
        made.append(kind)
    return made


def test_types_go_by_the_whole_name(shelf: lmcstore.Shelf) -> None:
    names = ["Outer.C", "Inner.C", "C", "Outer.Kind", "Inner.Kind", "Kind"]
    kinds = _classes("here", *names)
    values = [kind["X"] if issubclass(kind, enum.Enum) else kind(1) for kind in kinds]
    snapshot = shelf.snapshot(values)
    for kind in kinds:
        back = snapshot.state_dict(types=[kind])
        assert [type(one) is kind for one in back] == [one is kind for one in kinds]
    inside = dataclasses.make_dataclass("C", ["x"])
    for outer, module in (
        ("here.outer", "here"),
        ("here.Outer", "there"),
        ("f.<locals>", "there"),
        ("__main__.a", "b"),
    ):
        inside.__module__ = outer
        assert shelf.snapshot([inside(1)]).state_dict(types=_classes(module, "C")) == [{"x": 1}]


def test_a_class_of_another_module(shelf: lmcstore.Shelf) -> None:
    (here,), (there,), (third,) = (_classes(module, "Outer.C") for module in ("here", "there", "third"))
    alone, both = shelf.snapshot([here(1)]), shelf.snapshot([here(1), there(2)])
    assert type(alone.state_dict(types=[there])[0]) is there
    assert alone.state_dict(types=[there, third]) == [{"x": 1}]
    assert both.state_dict(types=[there]) == [{"x": 1}, there(2)]
    assert both.state_dict(types=[third]) == [{"x": 1}, {"x": 2}]
    assert both.state_dict("0", types=[there]) == {"x": 1}
    assert alone.state_dict(types={"there.Outer.C": there}) == [{"x": 1}]
    assert both.state_dict(types={"here.Outer.C": third, "there.Outer.C": third}) == [third(1), third(2)]


# The classes of targets


def test_the_enum_of_a_target_goes_by_the_stored_name(shelf: lmcstore.Shelf) -> None:
    old = enum.Enum("Mode", "TRAIN EVAL LAST")
    new = enum.Enum("Mode", {"DEBUG": 1, "TRAIN": 2, "EVAL": 3, "FINAL": 4, "ALSO": "x"})
    flag, flags = enum.Flag("F", "A B"), enum.Flag("F", "NEW A B")
    number = enum.Enum("Number", {"NAN": float("nan")}, type=float)
    state = {
        "m": old.TRAIN,
        "n": [number.NAN, {"f": flag.A | flag.B}],
        "t": (old.EVAL,),
        "last": old.LAST,
        "p": old.EVAL,
    }
    target: Any = {"m": new.EVAL, "n": [number.NAN, {"f": flags.NEW}], "t": (new.DEBUG,), "last": new.ALSO, "p": None}
    snapshot = shelf.snapshot(state)
    snapshot.load_into(target)
    wanted = {"m": new.TRAIN, "n": [number.NAN, {"f": flags.A | flags.B}], "t": (new.EVAL,), "last": new.EVAL, "p": 2}
    assert target == wanted
    plain: Any = {"m": 0, "n": [None, {}], "t": None, "last": [], "p": new.DEBUG}
    snapshot.load_into(plain, types=[old])
    assert (
        plain["m"] is old.TRAIN
        and plain["n"][1] == {"f": 3}
        and type(plain["n"][0]) is float
        and plain["t"] == (old.EVAL,)
    )
    with pytest.raises(lmcstore.InvalidError, match=r"^m: the snapshot has no Color"):
        shelf.snapshot({"m": old.LAST}).load_into({"m": Color.RED})


def test_enums_in_what_an_object_loads_are_values(shelf: lmcstore.Shelf) -> None:
    class Holder:
        state: Any = None

        def state_dict(self) -> Any:
            return self.state

        def load_state_dict(self, state: Any) -> None:
            self.state = state

    holder = Holder()
    state = {"a": Color.PAIR, "l": [Color.RED, (Color.RED,)], "q": deque([Number.ONE]), "p": Point(Color.RED)}
    shelf.snapshot({"h": state}).load_into(h=holder)
    assert holder.state["a"] == (1, "x") and holder.state["l"] == [1, (1,)] and holder.state["q"] == deque([1])
    assert holder.state["p"].x == 1


@dataclasses.dataclass
class Whole:
    a: int = 1
    w: Any = None

    def __post_init__(self) -> None:
        self.scale = 10

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.a


def test_the_attributes_of_a_target_stay(shelf: lmcstore.Shelf) -> None:
    value = Whole(7)
    del value.scale
    target = {"c": Whole(1), "f": Frozen(5)}
    before = target["c"]
    assert before.twice == 2  # type: ignore[union-attr]
    shelf.snapshot({"c": value, "f": Frozen(6)}).load_into(target)
    assert target["c"].a == 7 and target["c"].scale == 10 and target["c"].twice == 14  # type: ignore[union-attr]
    assert before.a == 1 and target["f"] == Frozen(6)  # type: ignore[union-attr]
    filled: Any = {"c": Whole(1, tensors.zeros(1))}
    assert filled["c"].twice == 2
    value.w = tensors.ones(1)
    shelf.snapshot({"c": value}).load_into(filled)
    assert (filled["c"].w, filled["c"].scale, filled["c"].twice) == (tensors.ones(1), 10, 14)
