# SPDX-License-Identifier: BSD-3-Clause
"""`Record`: where the tensors and values of a run's snapshot are.

It is stored as an ordinary state of plain values::

    {
        "lmcstore_run": {"version": 1, "world_size": 4, "ranks": {0: (pool, file, number, group), ...}, "save_id": id},
        "names": [name, ...],
        "tensors": {"dtypes": [dtype, ...], "layout": bytes, "stored": [(tensor, box, stored name), ...]},
        "opaque": {name: (rank, stored name), ...},
        "values": {name: value, ...},
        "paths": {name: (key, ...), ...},
        "objects": [name, ...],
    }

``ranks`` has the snapshot of each rank that wrote something: the uuid of its pool, the pool's file name, the snapshot's
number, and its group. ``names`` are those of all parts of the state, in order; the ones that are neither opaque nor
values are tensors. A tensor consists of boxes, each of them a whole tensor of a rank's snapshot. The layout has 64-bit
integers: for each tensor the number of its dimensions, its shape, the number of its boxes, and for each box the rank,
the offsets and the sizes. A box is stored by the tensor's name if ``stored`` has no other. An opaque object is a pickle
that torch made, stored as bytes. A part's place in the state is its name split at the dots, or else its path. (The
layout is the same from save to save, and so is shared.)

A `Run` adds ``objects``: the names of its objects that all ranks have together. Its tensors' places, and its values,
are in the ranks' snapshots (`parts`). A tensor of one rank alone is called ``ranks.RANK.NAME``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import _core
from .._state.decode import Decoded
from .._state.nodes import Branch, Node
from ..errors import DamagedError, UnsupportedError

VERSION = 1
_HEAD = "lmcstore_run"
_PARTS = (_HEAD, "names", "tensors", "opaque", "values", "paths")
_OBJECTS = "objects"
_UUID_BYTES = 16
_GROUP_BYTES = 16


class Part(NamedTuple):
    """The snapshot of a rank."""

    pool: bytes
    """The pool's uuid when it was saved. A restored pool has another one, and the part is found by its group."""
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


class Tensors(Mapping[str, Tensor]):
    """The tensors of a record by their names. A layout that was read is checked when a tensor is taken."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._starts: list[int] = []
        self._dtypes: list[str] = []
        self._layout = array("q")
        self._stored: dict[tuple[int, int], str] = {}

    def add(self, name: str, dtype: str, shape: Iterable[int], boxes: Iterable[tuple[int, str, Any, Any]]) -> None:
        """Add a tensor; a box is a rank, a stored name, offsets and sizes."""
        number, layout = len(self._starts), self._layout
        self._numbers[name] = number
        self._starts.append(len(layout))
        self._dtypes.append(dtype)
        sizes = tuple(shape)
        layout.append(len(sizes))
        layout.extend(sizes)
        counted = len(layout)
        layout.append(0)
        for rank, stored, offsets, lengths in boxes:
            if stored != name:
                self._stored[number, layout[counted]] = stored
            layout[counted] += 1
            layout.append(rank)
            layout.extend(offsets)
            layout.extend(lengths)

    def __getitem__(self, name: str) -> Tensor:
        number = self._numbers[name]
        layout, start = self._layout, self._starts[number]
        dimensions = layout[start]
        at = start + 1 + dimensions
        shape = tuple(layout[start + 1 : at])
        boxes = []
        for index in range(layout[at]):
            first = at + 1 + index * (1 + 2 * dimensions)
            rank, *bounds = layout[first : first + 1 + 2 * dimensions]
            offsets, sizes = tuple(bounds[:dimensions]), tuple(bounds[dimensions:])
            boxes.append(Box(rank, self._stored.get((number, index), name), offsets, sizes))
        return Tensor(self._dtypes[number], shape, tuple(boxes))

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def state(self) -> dict[str, Any]:
        stored = [(*place, name) for place, name in self._stored.items()]
        return {"dtypes": self._dtypes, "layout": self._layout.tobytes(), "stored": stored}

    def read(self, names: list[str], state: Any, ranks: Iterable[int]) -> None:
        if type(state) is not dict or not {"dtypes", "layout", "stored"} <= state.keys():
            raise _damaged("its tensors")
        self._dtypes, data, stored = state["dtypes"], state["layout"], state["stored"]
        if type(data) is not bytes or len(data) % self._layout.itemsize or type(self._dtypes) is not list:
            raise _damaged("its layout")
        if len(self._dtypes) != len(names) or not all(type(one) is str and one in _core.DTYPES for one in self._dtypes):
            raise _damaged("its dtypes")
        if type(stored) is not list or not all(map(_is_stored, stored)):
            raise _damaged("its stored names")
        self._stored = {(tensor, box): name for tensor, box, name in stored}
        self._layout.frombytes(data)
        self._numbers = {name: number for number, name in enumerate(names)}
        at, known = 0, set(ranks)
        for _ in names:
            self._starts.append(at)
            at = self._checked(at, known)
        if at != len(self._layout):
            raise _damaged("its layout")

    def _checked(self, start: int, ranks: set[int]) -> int:
        """Check a tensor of the layout, and return its end."""
        layout = self._layout
        dimensions = layout[start] if start < len(layout) else -1
        at = start + 1 + dimensions
        if not 0 <= dimensions <= _core.MAX_DIMS or at >= len(layout):
            raise _damaged("its layout")
        shape, count, step = layout[start + 1 : at], layout[at], 1 + 2 * dimensions
        end = at + 1 + count * step
        if not 0 <= count <= len(layout) or end > len(layout) or min(shape, default=0) < 0:
            raise _damaged("its layout")
        boxes = layout[at + 1 : end]
        fits = ranks.issuperset(boxes[::step])
        for axis, size in enumerate(shape, 1):
            offsets, lengths = boxes[axis::step], boxes[axis + dimensions :: step]
            fits = fits and min(offsets, default=0) >= 0 and min(lengths, default=0) >= 0
            fits = fits and max(map(int.__add__, offsets, lengths), default=0) <= size
        if not fits or math.prod(shape) >= 1 << 62:
            raise _damaged("its layout")
        return end


@dataclass
class Record:
    """A snapshot of a run, without its properties, which are those of the snapshot that has the record."""

    world_size: int
    ranks: dict[int, Part] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=Tensors)
    opaque: dict[str, tuple[int, str]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    """Of a record that was read: nodes."""
    paths: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """All names, in the order of the state, with their places."""
    objects: list[str] | None = None
    """The objects that a `Run`'s ranks have together. None: no `Run` has saved it."""
    save_id: str = ""
    """That DCP's writer made; empty: another has saved it."""

    def state(self) -> dict[str, Any]:
        ranks = {rank: tuple(part) for rank, part in self.ranks.items()}
        head: dict[str, Any] = {"version": VERSION, "world_size": self.world_size, "ranks": ranks}
        if self.save_id:
            head["save_id"] = self.save_id
        paths = {name: path for name, path in self.paths.items() if path != _usual_path(name)}
        parts = (head, list(self.paths), self.tensors.state(), self.opaque, self.values, paths)
        objects = {} if self.objects is None else {_OBJECTS: self.objects}
        return dict(zip(_PARTS, parts, strict=True)) | objects


def _usual_path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def read_head(decoded: Decoded) -> Record:
    """Read a record without its tensors and values."""
    children = decoded.children()
    head = decoded.read(children[_HEAD]) if _HEAD in children else None
    version = head.get("version") if type(head) is dict else None
    if type(version) is int and version > VERSION:
        raise UnsupportedError(f"the record has version {version}; this lmcstore reads {VERSION}: update it")
    save_id = head.get("save_id", "") if type(head) is dict else None
    if head is None or version != VERSION or not _is_count(head.get("world_size")) or type(save_id) is not str:
        raise _damaged("its head")
    ranks = {rank: Part(*part) for rank, part in _items(head.get("ranks"), _is_part)}
    return Record(head["world_size"], ranks, save_id=save_id)


def read(decoded: Decoded) -> Record:
    """Read a record; DamagedError: the snapshot has none, or it contradicts itself."""
    record = read_head(decoded)
    children = decoded.children()
    if not all(name in children for name in _PARTS):
        raise _damaged("its parts")
    names, tensors, opaque, paths = (decoded.read(children[name]) for name in ("names", "tensors", "opaque", "paths"))
    if type(names) is not list or not all(type(name) is str for name in names):
        raise _damaged("its names")
    record.opaque = dict(_items(opaque, _is_place))
    record.values = _nodes(children["values"])
    record.paths = {name: _usual_path(name) for name in names} | dict(_items(paths, _is_path))
    others = record.opaque.keys() | record.values.keys()
    if len(record.paths) != len(names) or not others <= record.paths.keys() or record.opaque.keys() & record.values:
        raise _damaged("its names")
    if not all(rank in record.ranks for rank, _ in record.opaque.values()):
        raise _damaged("its ranks")
    record.tensors.read([name for name in names if name not in others], tensors, record.ranks)
    if _OBJECTS in children:
        record.objects = decoded.read(children[_OBJECTS])
        if type(record.objects) is not list or not all(type(name) is str for name in record.objects):
            raise _damaged("its objects")
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


def _is_stored(one: Any) -> bool:
    is_triple = type(one) is tuple and len(one) == 3
    return is_triple and _is_count(one[0]) and _is_count(one[1]) and type(one[2]) is str


def _is_place(name: Any, place: Any) -> bool:
    is_pair = type(name) is str and type(place) is tuple and len(place) == 2
    return is_pair and _is_count(place[0]) and type(place[1]) is str


def _is_path(name: Any, path: Any) -> bool:
    is_path = type(name) is str and type(path) is tuple and len(path) > 0
    return is_path and all(type(key) is str or (_is_count(key) and key < _core.MAX_TENSORS) for key in path)


def _damaged(what: str) -> DamagedError:
    return DamagedError(f"the record of a run's snapshot is damaged ({what}), or this is no run's snapshot")
