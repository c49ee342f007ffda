# SPDX-License-Identifier: BSD-3-Clause
"""Plain data classes of Python and NumPy: taken apart into parts that a skeleton has, and made of them again.

Classes of the standard library and NumPy come from fixed tables. Other classes are never imported: a namedtuple
returns as one made of its stored names, a dataclass as a dict, an enum as its value, unless `Types` has the class.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import enum
import functools
import keyword
import operator
import pathlib
import re
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, MemberDescriptorType
from typing import Any, NamedTuple

from .._arrays import numpy as _numpy
from .._arrays.packages import loaded
from ..errors import DamagedError, InvalidError, UnsupportedError
from .nodes import Node, class_names
from .scalars import Unpackable

MOST_FIELDS = 255
"""Of a stored namedtuple."""

FACTORIES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, bytearray, bytes, complex, dict, float, frozenset, int, list, set, str, tuple, OrderedDict)
}
"""Of a defaultdict."""

_PATHS: dict[str, type] = {
    "Path": type(pathlib.Path()),
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}
_PATH_NAMES = {kind: name for name, kind in _PATHS.items()}

_ZONE = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*")

_BUILTIN = (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float, complex)


class Taken(NamedTuple):
    """A value taken apart. A value kind has `content`, a leaf; the others `items`, with `keys` or without."""

    tag: str
    extra: Any  # the class's name, the kind, the longest length, or the factory's name
    content: Any = None
    keys: list[Any] | None = None
    items: Iterable[Any] = ()


def take(value: Any) -> Taken | None:
    """Take a value apart; None: it is no plain data. Unpackable: it is, with a property that can't be stored."""
    kind = type(value)
    if isinstance(value, enum.Enum):
        return Taken("E", _class_name(kind), (value.name, value.value))
    if isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple) and hasattr(kind, "_make"):
        return _taken_tuple(value)
    if kind is deque:
        return Taken("Q", value.maxlen, items=value)
    if kind is defaultdict:
        return _taken_defaultdict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, *_BUILTIN)) and not _is_module(value):
        return _taken_dataclass(value)
    content = _content(value)
    if content is None:
        return None
    made = make_value(*content)
    again = _content(made)
    if type(made) is not kind or again is None or again != content:
        raise Unpackable(value, "a form of its type that would not be read as it is")
    return Taken("v", *content)


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_module(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None))


def _taken_tuple(value: Any) -> Taken:
    fields = list(type(value)._fields)
    if len(fields) != len(value) or len(fields) > MOST_FIELDS or getattr(value, "__dict__", None):
        raise Unpackable(value, f"no plain namedtuple of at most {MOST_FIELDS} fields")
    name = _class_name(type(value))
    try:
        stand_in(name, tuple(fields))
    except DamagedError:
        raise Unpackable(value, "of field names that can't be made again: store value._asdict()") from None
    return Taken("N", name, keys=fields, items=value)


def _taken_defaultdict(value: Any) -> Taken:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and FACTORIES.get(name) is not factory:
        raise Unpackable(value, "a defaultdict whose factory is no builtin: store dict(value)")
    return Taken("D", name, keys=list(value), items=value.values())


def _taken_dataclass(value: Any) -> Taken:
    kind = type(value)
    base = base_with_data(kind)
    if base is not None:
        named = next(one for one in kind.__mro__ if issubclass(one, base) and not dataclasses.is_dataclass(one))
        shown = named.__qualname__ if named.__module__ == "builtins" else _class_name(named)
        raise Unpackable(value, f"a dataclass with the data of its base {shown}: store a dict of both")
    names = [field.name for field in dataclasses.fields(value)]
    known = {*names, "__orig_class__"}  # typing sets it on objects of generic classes
    others = sorted(map(str, {*getattr(value, "__dict__", ()), *filled_slots(value)} - known))
    if others:
        shown = ", ".join(map(repr, others[:3]))
        raise Unpackable(value, f"a dataclass with attributes that are no fields ({shown}): store a dict of its data")
    if any(not hasattr(value, name) for name in names):
        raise Unpackable(value, "a dataclass with an unset field: store a dict of its data")
    return Taken("c", _class_name(type(value)), keys=names, items=[getattr(value, name) for name in names])


def base_with_data(kind: Any) -> Any:
    """Return the class that gives values data beside their attributes, such as deque; None: no base does.

    `object.__new__` refuses the same classes, but it would make a value, whose ``__del__`` runs.
    """
    base = kind
    while not isinstance(vars(base).get("__new__"), BuiltinFunctionType):
        base = base.__base__
    return None if vars(base)["__new__"] is object.__new__ else base


def filled_slots(value: Any) -> list[str]:
    """Return the names of the slots that are set, of all classes of a value."""
    filled = []
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if type(slot) is MemberDescriptorType:
                try:
                    slot.__get__(value, kind)
                except AttributeError:
                    continue
                filled.append(name)
    return filled


# Values with a leaf


def _content(value: Any) -> tuple[str, Any] | None:
    """Return the kind and the leaf of a value; None: of no kind."""
    kind = type(value)
    if kind in _PATH_NAMES:
        return _PATH_NAMES[kind], str(value)
    if kind is datetime.datetime:
        return "datetime", (*_date(value), *_time(value), _zone(value, value.tzinfo))
    if kind is datetime.date:
        return "date", _date(value)
    if kind is datetime.time:
        return "time", (*_time(value), _zone(value, value.tzinfo))
    if kind is datetime.timedelta:
        return "timedelta", (value.days, value.seconds, value.microseconds)
    if kind is datetime.timezone:
        return "timezone", _zone(value, value)
    return _numpy_content(value)


def _date(value: Any) -> tuple[int, ...]:
    return value.year, value.month, value.day


def _time(value: Any) -> tuple[int, ...]:
    return value.hour, value.minute, value.second, value.microsecond, value.fold


def _zone(value: Any, zone: Any) -> Any:
    if zone is None:
        return None
    if type(zone) is datetime.timezone:
        delta, *names = zone.__getinitargs__()  # type: ignore[attr-defined]
        return (delta.days, delta.seconds, delta.microseconds, names[0] if names else None)
    zoneinfo = loaded("zoneinfo")
    if zoneinfo is not None and type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        return str(zone.key)
    kind = _class_name(type(zone))
    raise Unpackable(value, f"in a time zone of type {kind}: store value.astimezone(datetime.timezone.utc)")


def _read_zone(parts: Any) -> Any:
    if parts is None:
        return None
    if type(parts) is tuple:
        *delta, name = parts
        offset = datetime.timedelta(*delta)
        if name is None:
            return datetime.timezone(offset)
        return datetime.timezone(offset, name)
    if type(parts) is not str or _ZONE.fullmatch(parts) is None:
        raise ValueError("a time zone")
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(parts)
    except (zoneinfo.ZoneInfoNotFoundError, OSError):
        raise UnsupportedError(
            f"this system has no time zone {parts!r}: install the package tzdata, or read the other parts of the state"
        ) from None


def _numpy_content(value: Any) -> tuple[str, Any] | None:
    numpy = loaded("numpy")
    if numpy is None or not hasattr(numpy, "generic") or not isinstance(value, numpy.generic):
        return None
    kind = type(value)
    if kind is numpy.str_:
        return "str_", str(value)
    if kind is numpy.bytes_:
        return "bytes_", bytes(value)
    if kind not in (numpy.void, numpy.datetime64, numpy.timedelta64):
        return None
    note = _numpy.note_of(value.dtype)
    return None if note is None else ("numpy", (note, value.tobytes()))


def _read_numpy(content: Any) -> Any:
    import numpy

    note, data = content
    if type(note) is not str or type(data) is not bytes or not _numpy.is_described(note):
        raise ValueError("a NumPy scalar")
    dtype = _numpy.described_dtype(note, "a NumPy scalar")
    if len(data) != dtype.itemsize:
        raise ValueError("a NumPy scalar")
    return numpy.frombuffer(data, dtype).copy()[0]


def _read_numpy_text(name: str, wanted: type, content: Any) -> Any:
    import numpy

    if type(content) is not wanted:
        raise ValueError(name)
    return getattr(numpy, name)(content)


def _read_path(kind: type, content: Any) -> Any:
    if type(content) is not str:
        raise ValueError("a path")
    return kind(content)


def _read_time(content: Any) -> Any:
    hour, minute, second, microsecond, fold, zone = content
    return datetime.time(hour, minute, second, microsecond, _read_zone(zone), fold=fold)


def _read_datetime(content: Any) -> Any:
    year, month, day, *time, fold, zone = content
    hour, minute, second, microsecond = time
    return datetime.datetime(year, month, day, hour, minute, second, microsecond, _read_zone(zone), fold=fold)


def _read_date(content: Any) -> Any:
    year, month, day = content
    return datetime.date(year, month, day)


def _read_timedelta(content: Any) -> Any:
    days, seconds, microseconds = content
    return datetime.timedelta(days, seconds, microseconds)


_VALUES: dict[str, Callable[[Any], Any]] = {
    **{name: functools.partial(_read_path, kind) for name, kind in _PATHS.items()},
    "datetime": _read_datetime,
    "date": _read_date,
    "time": _read_time,
    "timedelta": _read_timedelta,
    "timezone": _read_zone,
    "str_": functools.partial(_read_numpy_text, "str_", str),
    "bytes_": functools.partial(_read_numpy_text, "bytes_", bytes),
    "numpy": _read_numpy,
}
VALUE_KINDS = frozenset(_VALUES)


def make_value(kind: str, content: Any) -> Any:
    """Make a value of its leaf; DamagedError: `take` wrote no such leaf."""
    try:
        return _VALUES[kind](content)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, UnsupportedError):
            raise
        raise DamagedError(f"the state's values are damaged: no {kind} has such a leaf: {error}") from None


# Classes


@functools.lru_cache(maxsize=256)
def stand_in(name: str, fields: tuple[str, ...]) -> Any:
    """Make a namedtuple's class of stored names, which it checks; DamagedError: no class has them."""
    short = name.rpartition(".")[2]
    if not short.isidentifier() or keyword.iskeyword(short):
        short = "Stored"
    try:
        made = collections.namedtuple(short, fields, rename=True)  # type: ignore[misc]
    except Exception as error:
        raise DamagedError(f"the state is damaged: a namedtuple's names: {error}") from None
    if made._fields != fields:
        raise DamagedError("the state is damaged: a namedtuple's names")
    return made


class Member:
    """A stored enum: the name of its member, and its value."""

    __slots__ = ("name", "value")

    def __init__(self, name: Any, value: Any) -> None:
        self.name = name
        self.value = value

    def of(self, kind: Any) -> Any:
        """Return the member of a class: by the name, which stays if values are renumbered, else by the value."""
        members = kind.__members__
        if self.name in members:
            return members[self.name]
        parts = self.name.split("|") if type(self.name) is str and issubclass(kind, enum.Flag) else ()
        if parts and all(part in members for part in parts):
            return functools.reduce(operator.or_, (members[part] for part in parts))
        return kind(self.value)


def _moved(named: dict[str, type], stored: set[str]) -> dict[str, type]:
    """Find classes whose module has changed, by their stored names: only where nothing else is possible."""
    found: dict[str, list[type]] = {}
    for name, kind in named.items():
        if name in stored:
            continue
        others = [other for other in stored if other not in named and _may_be_moved(other, kind)]
        if len(others) == 1:
            found.setdefault(others[0], []).append(kind)
    return {name: kinds[0] for name, kinds in found.items() if len(kinds) == 1}


def _may_be_moved(name: str, kind: type) -> bool:
    """Whether a stored name can be a class's in another module: a module's name, in lower case, and its whole one."""
    module = name.removesuffix(f".{kind.__qualname__}")
    if module == name or module.startswith((f"{kind.__module__}.", "__main__.")):  # or a class in another
        return False
    return all(part.isidentifier() and part == part.lower() for part in module.split("."))


class Types:
    """The classes of ``types=``, by the names that a snapshot has of them; `root` is its state.

    A class in an iterable is also found by a name in another module, if the snapshot lacks the class's own name, and
    has one such name only.

    `keeps_names`: an enum without a class is made a `Member`.
    """

    def __init__(
        self,
        types: Iterable[type] | Mapping[str, type] = (),
        root: Node | None = None,
        keeps_names: bool = False,
    ) -> None:
        try:
            named = dict(types) if isinstance(types, Mapping) else {_class_name(kind): kind for kind in types}
        except (TypeError, AttributeError):
            named = {"types": None}
        for kind in named.values():
            if not isinstance(kind, type) or not (
                issubclass(kind, enum.Enum) or dataclasses.is_dataclass(kind) or hasattr(kind, "_make")
            ):
                raise UnsupportedError(
                    "types takes classes: of namedtuples, dataclasses and enums, or a dict of such by their stored "
                    'names; load_into loads a part that is called so by a dict: {"types": ...}'
                )
        self._named = named
        self._keeps_names = keeps_names
        if root is not None and named and not isinstance(types, Mapping):
            self._named = named | _moved(named, class_names(root))

    def find(self, name: str) -> Any:
        return self._named.get(name)

    def make_enum(self, name: str, content: Any) -> Any:
        if type(content) is not tuple or len(content) != 2:
            raise DamagedError("the state's values are damaged: an enum")
        kind = self.find(name)
        if kind is None:
            return Member(*content) if self._keeps_names else content[1]
        try:
            return Member(*content).of(kind)
        except Exception as error:
            raise InvalidError(f"types: no {kind.__qualname__} can be made of {content!r:.80}: {error}") from None

    def make_named(self, name: str, fields: list[Any], items: list[Any]) -> Any:
        kind = self.find(name) or stand_in(name, tuple(fields))
        try:
            return kind._make(items) if list(kind._fields) == fields else kind(**dict(zip(fields, items, strict=True)))
        except Exception as error:
            raise InvalidError(f"types: no {kind.__qualname__} can be made of {name}: {error}") from None

    def make_dataclass(self, name: str, fields: list[Any], items: list[Any]) -> Any:
        data = dict(zip(fields, items, strict=True))
        kind = self.find(name)
        return data if kind is None else made_dataclass(kind, data)


NO_TYPES = Types()


def made_dataclass(kind: Any, data: dict[str, Any], target: Any = None) -> Any:
    """Make a dataclass of its fields, without its ``__init__``; InvalidError: it has others.

    `target`: one whose other attributes it gets, without cached properties.
    """
    try:
        known = {field.name: field for field in dataclasses.fields(kind)}
        made = object.__new__(kind) if target is None else copy.copy(target)
    except Exception as error:
        raise InvalidError(f"types: no {kind.__qualname__} can be made: {error}") from None
    others = [name for name in data if name not in known]
    values = dict(data)
    for name, field in known.items():
        if name in data:
            continue
        if field.default is not dataclasses.MISSING:
            values[name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            values[name] = field.default_factory()
        else:
            others.append(name)
    if others:
        raise InvalidError(f"types: the fields of {kind.__qualname__} and of the snapshot's differ: {others!r:.200}")
    set_fields(made, values)
    return made


def set_fields(made: Any, values: dict[str, Any]) -> None:
    """Set fields, also of a frozen dataclass; cached properties are dropped, since they may be of other values."""
    for name, value in values.items():
        object.__setattr__(made, name, value)
    attributes = getattr(made, "__dict__", {})
    for name in [name for name in attributes if isinstance(getattr(type(made), name, None), functools.cached_property)]:
        del attributes[name]


def is_length(number: Any) -> bool:
    """Whether a number is the longest length of a deque, or None."""
    return number is None or (type(number) is int and 0 <= number <= sys.maxsize)


def map_items(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the items of a list, tuple, namedtuple or deque; others are returned as they are."""
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return type(value)._make(map(change, value))
    if type(value) is deque:
        return deque(map(change, value), value.maxlen)
    return type(value)(map(change, value)) if type(value) in (list, tuple) else value


def is_sequence(value: Any) -> bool:
    return type(value) in (list, tuple, deque) or (isinstance(value, tuple) and hasattr(value, "_make"))
