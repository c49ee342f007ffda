# SPDX-License-Identifier: BSD-3-Clause
"""`Record`: where the tensors and values of a run's snapshot are.

It is stored as an ordinary state of plain values::

    {
        "lmcstore_run": {"version": 1, "world_size": 4, "ranks": {0: (pool, file, number, group), ...}},
        "tensors": {name: (dtype, shape, ((rank, stored name, offsets, sizes), ...)), ...},
        "opaque": {name: (rank, stored name), ...},
        "values": {name: value, ...},
        "paths": {name: (key, ...), ...},
    }

``ranks`` has the snapshot of each rank that wrote something: the uuid of its pool, the pool's file name, the snapshot's
number, and its group. A tensor consists of boxes, each of them a whole tensor of a rank's snapshot. An opaque object is
a pickle that torch made, stored as bytes. ``paths`` has all names, in the order of the state, and their places in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import _core
from .._state.decode import Decoded
from .._state.nodes import Branch, Node
from ..errors import DamagedError, UnsupportedError

VERSION = 1
_HEAD = "lmcstore_run"
_PARTS = (_HEAD, "tensors", "opaque", "values", "paths")
_UUID_BYTES = 16
_GROUP_BYTES = 16


class Part(NamedTuple):
    """The snapshot of a rank."""

    pool: bytes
    """The pool's uuid."""
    file: str
    """The pool's file name in the folder."""
    number: int
    group: bytes


class Box(NamedTuple):
    """A part of a tensor, stored by a rank."""

    rank: int
    name: str
    """Of the stored tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def is_empty(self) -> bool:
        return 0 in self.sizes


class Tensor(NamedTuple):
    """A tensor of the run."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]

    @property
    def number(self) -> int:
        """The dtype's number in the store."""
        return _core.DTYPES[self.dtype]

    @property
    def item_bytes(self) -> int:
        known = _core.dtype_info(self.number)
        assert known is not None
        return known[1]

    @property
    def raw_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes

    @property
    def is_complete(self) -> bool:
        """Whether its boxes, which do not overlap, fill it."""
        return sum(math.prod(box.sizes) for box in self.boxes) == math.prod(self.shape)


@dataclass
class Record:
    """A snapshot of a run, without its properties, which are those of the snapshot that has the record."""

    world_size: int
    ranks: dict[int, Part] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    opaque: dict[str, tuple[int, str]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    """Of a record that was read: nodes."""
    paths: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        ranks = {rank: tuple(part) for rank, part in self.ranks.items()}
        head = {"version": VERSION, "world_size": self.world_size, "ranks": ranks}
        tensors = {
            name: (tensor.dtype, tensor.shape, tuple(map(tuple, tensor.boxes))) for name, tensor in self.tensors.items()
        }
        parts = (head, tensors, self.opaque, self.values, self.paths)
        return dict(zip(_PARTS, parts, strict=True))


def read_head(decoded: Decoded) -> Record:
    """Read a record without its tensors and values."""
    children = decoded.children()
    head = decoded.read(children[_HEAD]) if _HEAD in children else None
    version = head.get("version") if type(head) is dict else None
    if type(version) is int and version > VERSION:
        raise UnsupportedError(f"the record has version {version}; this lmcstore reads {VERSION}: update it")
    if head is None or version != VERSION or not _is_count(head.get("world_size")):
        raise _damaged("its head")
    return Record(head["world_size"], {rank: Part(*part) for rank, part in _items(head.get("ranks"), _is_part)})


def read(decoded: Decoded) -> Record:
    """Read a record; DamagedError: the snapshot has none, or it contradicts itself."""
    record = read_head(decoded)
    children = decoded.children()
    if not all(name in children for name in _PARTS):
        raise _damaged("its parts")
    read = {name: decoded.read(children[name]) for name in ("tensors", "opaque", "paths")}
    for name, (dtype, shape, boxes) in _items(read["tensors"], _is_tensor):
        record.tensors[name] = Tensor(dtype, shape, tuple(Box(*box) for box in boxes))
    record.opaque = dict(_items(read["opaque"], _is_place))
    record.values = _nodes(children["values"])
    record.paths = dict(_items(read["paths"], _is_path))
    names = {*record.tensors, *record.opaque, *record.values}
    places = [*record.opaque.values(), *((box.rank, box.name) for one in record.tensors.values() for box in one.boxes)]
    if names != record.paths.keys() or len(names) != len(record.tensors) + len(record.opaque) + len(record.values):
        raise _damaged("its names")
    if not all(rank in record.ranks for rank, _ in places):
        raise _damaged("its ranks")
    return record


def _nodes(node: Node) -> dict[str, Node]:
    if type(node) is not Branch or node.keys is None or not all(type(key) is str for key in node.keys):
        raise _damaged("its values")
    return dict(zip(node.keys, node.children, strict=True))


def _items(mapping: Any, fits: Callable[[Any, Any], bool]) -> list[tuple[Any, Any]]:
    if type(mapping) is not dict or not all(fits(key, value) for key, value in mapping.items()):
        raise _damaged("its tables")
    return list(mapping.items())


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_part(rank: Any, part: Any) -> bool:
    if not _is_count(rank) or type(part) is not tuple or len(part) != len(Part._fields):
        return False
    pool, file, number, group = part
    return (
        (type(pool), type(group)) == (bytes, bytes)
        and (len(pool), len(group)) == (_UUID_BYTES, _GROUP_BYTES)
        and (type(file) is str and file not in ("", ".", "..") and "/" not in file and "\0" not in file)
        and (_is_count(number) and number > 0)
    )


def _is_shape(value: Any) -> bool:
    return type(value) is tuple and len(value) <= _core.MAX_DIMS and all(map(_is_count, value))


def _is_tensor(name: Any, value: Any) -> bool:
    if type(name) is not str or type(value) is not tuple or len(value) != len(Tensor._fields):
        return False
    dtype, shape, boxes = value
    is_head = type(dtype) is str and dtype in _core.DTYPES and _is_shape(shape) and type(boxes) is tuple
    return is_head and all(_is_box(box, shape) for box in boxes)


def _is_box(box: Any, shape: tuple[int, ...]) -> bool:
    if type(box) is not tuple or len(box) != len(Box._fields) or not _is_place("", box[:2]):
        return False
    offsets, sizes = box[2:]
    return (
        (_is_shape(offsets) and _is_shape(sizes) and len(offsets) == len(sizes) == len(shape))
        and all(first + size <= whole for first, size, whole in zip(offsets, sizes, shape, strict=True))
    )  # fmt: skip


def _is_place(name: Any, place: Any) -> bool:
    is_pair = type(name) is str and type(place) is tuple and len(place) == 2
    return is_pair and _is_count(place[0]) and type(place[1]) is str


def _is_path(name: Any, path: Any) -> bool:
    is_path = type(name) is str and type(path) is tuple and len(path) > 0
    return is_path and all(type(key) is str or (_is_count(key) and key < _core.MAX_TENSORS) for key in path)


def _damaged(what: str) -> DamagedError:
    return DamagedError(f"the record of a run's snapshot is damaged ({what}), or this is no run's snapshot")
