# SPDX-License-Identifier: BSD-3-Clause
"""`Joined`: the state of a run's snapshot, its tensors joined from the boxes that the ranks have stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

from .. import _core
from .._arrays.packages import loaded
from .._state.decode import Decoded, Described
from .._state.nodes import Branch, Leaf, Node, TensorRef, refs_of
from ..errors import DamagedError, NotFoundError, UnsupportedError
from .opaque import Opaque
from .ranks import Ranks
from .record import Box, Record, Tensor

Stored = tuple[int, tuple[int, ...], Any]
"""A dtype, a shape and a buffer."""


class Piece(NamedTuple):
    """A box of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class _View(NamedTuple):
    names: list[str]
    tensors: list[Stored]

    def unpack(self) -> tuple[list[str], list[int], list[int], list[tuple[int, ...]], list[Any]]:
        dtypes, shapes, buffers = (
            (list(column) for column in zip(*self.tensors, strict=True)) if self.tensors else ([], [], [])
        )
        return self.names, [_core.TENSOR] * len(self.names), dtypes, shapes, buffers


class Handle:
    """The part of a `_core.Snapshot` that `Decoded` needs: attachments are the record's, tensors are joined."""

    def __init__(self, shelf: str, decoded: Decoded, record: Record, ranks: Ranks) -> None:
        self._shelf = shelf
        self._decoded = decoded
        self.record = record
        self._ranks = ranks
        self.shown: list[str] | None = None
        """The names of the tensors in the state, if not all of the record are."""
        self.pieces: dict[str, Piece] = {}
        """Boxes of tensors that are read instead of the whole ones."""

    def map(self, function: Callable[[int], Any], ranks: Iterable[int]) -> list[Any]:
        """Call a function with each rank, at once where their pools are in an object store."""
        return self._ranks.map(function, ranks)

    def part(self, rank: int, wanted: list[str]) -> _core.Snapshot:
        """Open the snapshot of a rank, of which the tensors are wanted."""
        return self._ranks.snapshot(rank, self.record.ranks[rank], self._shelf, wanted)

    def pool(self, rank: int) -> bytes:
        """Return the uuid of a rank's pool."""
        uuid: bytes = self._ranks.pool(rank, self._shelf, self.record.ranks[rank]).info()["uuid"]
        return uuid

    def names(self) -> list[str]:
        if self.shown is not None:
            return self.shown
        return [name for name in self.record.paths if name in self.record.tensors]

    def tensor(self, name: str) -> Tensor:
        found = self.record.tensors.get(name)
        if found is None:
            raise NotFoundError(f"the snapshot has no tensor {name!r}")
        return found

    def view(self, names: Sequence[str] | None, kind: int, flags: int) -> Any:
        if kind != _core.TENSOR:
            return self._decoded._handle.view(names, kind, flags)
        wanted = self.names() if names is None else list(names)
        stored = self._stored(wanted, flags)
        return _View(wanted, [self._joined(name, stored) for name in wanted])

    def _stored(self, names: list[str], flags: int) -> dict[tuple[int, str], Stored]:
        """View the boxes of some tensors, by rank and stored name."""
        by_rank: dict[int, dict[str, str]] = {}
        for name in names:
            piece = self.pieces.get(name)
            for box in self.tensor(name).boxes:
                if not box.is_empty and (piece is None or overlap(box, piece) is not None):
                    by_rank.setdefault(box.rank, {})[box.name] = name
        stored: dict[tuple[int, str], Stored] = {}

        def view(rank: int) -> Any:
            wanted = by_rank[rank]
            return self.part(rank, list(wanted.values())).view(list(wanted), _core.TENSOR, flags)

        for rank, view_of_rank in zip(by_rank, self.map(view, by_rank), strict=True):
            found, _, dtypes, shapes, buffers = view_of_rank.unpack()
            boxes = zip(dtypes, shapes, buffers, strict=True)
            stored |= {(rank, name): one for name, one in zip(found, boxes, strict=True)}
        return stored

    def _joined(self, name: str, stored: dict[tuple[int, str], Stored]) -> Stored:
        tensor = self.tensor(name)
        if name in self.pieces:
            return self._piece(name, tensor, self.pieces[name], stored)
        boxes = [box for box in tensor.boxes if not box.is_empty]
        for box in boxes:
            check_box(name, tensor, box, stored[box.rank, box.name])
        if len(boxes) == 1 and boxes[0].sizes == tensor.shape:
            return stored[boxes[0].rank, boxes[0].name]
        if not tensor.is_complete:
            raise DamagedError(f"{name}: the ranks have stored only parts of it")
        joined = bytearray(tensor.raw_bytes)
        for box in boxes:
            copy_box(joined, tensor.shape, box.offsets, stored[box.rank, box.name][2], box.sizes, tensor.item_bytes)
        return tensor.number, tensor.shape, joined

    def _piece(self, name: str, tensor: Tensor, piece: Piece, stored: dict[tuple[int, str], Stored]) -> Stored:
        """Join a box of a tensor from the boxes that have parts of it."""
        missing = math.prod(piece.sizes)
        joined = None
        for box in tensor.boxes:
            common = None if box.is_empty else overlap(box, piece)
            if common is None:
                continue
            one = stored[box.rank, box.name]
            check_box(name, tensor, box, one)
            if (box.offsets, box.sizes) == piece:
                return one
            joined = bytearray(math.prod(piece.sizes) * tensor.item_bytes) if joined is None else joined
            missing -= math.prod(common.sizes)
            source = _bytes_of(one[2], (*box.sizes, tensor.item_bytes))[_slices(common, box.offsets)]
            _bytes_of(joined, (*piece.sizes, tensor.item_bytes))[_slices(common, piece.offsets)] = source
        if missing:
            raise DamagedError(f"{name}: the ranks have stored only parts of it")
        return tensor.number, piece.sizes, bytearray() if joined is None else joined

    def read_range(self, kind: int, name: str, first_byte: int, count: int) -> bytearray:
        """Read whole rows of a tensor, from the boxes that have them."""
        tensor = self.tensor(name)
        row_bytes = math.prod(tensor.shape[1:]) * tensor.item_bytes
        if row_bytes == 0 or count == 0:
            return bytearray(0)
        if not tensor.is_complete:
            raise DamagedError(f"{name}: the ranks have stored only parts of it")
        first, last = first_byte // row_bytes, (first_byte + count) // row_bytes
        joined = bytearray(count)
        for box in tensor.boxes:
            start, stop = max(first, box.offsets[0]), min(last, box.offsets[0] + box.sizes[0])
            if start >= stop or box.is_empty:
                continue
            data = read_rows(self.part(box.rank, [name]), box, start - box.offsets[0], stop - start, tensor.item_bytes)
            offsets, sizes = (start - first, *box.offsets[1:]), (stop - start, *box.sizes[1:])
            copy_box(joined, (last - first, *tensor.shape[1:]), offsets, data, sizes, tensor.item_bytes)
        return joined

    def entries(self) -> list[tuple[Any, ...]]:
        """Report how the tensors are stored, each as the sum of its boxes."""
        stored: dict[tuple[int, str], tuple[Any, ...]] = {}
        for rank in self.record.ranks:
            stored |= {(rank, entry[0]): entry for entry in self.part(rank, []).entries() if entry[1] == _core.TENSOR}
        made = []
        for name in self.names():
            tensor = self.tensor(name)
            boxes = [stored[box.rank, box.name] for box in tensor.boxes if (box.rank, box.name) in stored]
            stored_as, chain = max(((box[6], box[7]) for box in boxes), default=(0, 0))
            size = sum(box[5] for box in boxes)
            content = hash(
                tuple(
                    (box.rank, stored[box.rank, box.name][8]) for box in tensor.boxes if (box.rank, box.name) in stored
                )
            )
            made.append(
                (name, _core.TENSOR, tensor.number, tensor.shape, tensor.raw_bytes, size, stored_as, chain, content, 0)
            )
        return made


class Joined(Decoded):
    """The structure of a run's snapshot, and its reading."""

    handle: Handle

    def __init__(self, decoded: Decoded, handle: Handle, root: Node | None = None) -> None:
        self.handle = handle
        self._decoded = decoded
        self._owner = decoded._owner
        self._entries = {}
        self.is_flat = False
        self.root = _root(handle.record, handle) if root is None else root
        handle.shown = None if root is None else list(dict.fromkeys(ref.name for ref in refs_of(root)))

    @property
    def _handle(self) -> _core.Snapshot:
        self._decoded._handle  # noqa: B018 (raises if the store is closed)
        return cast(_core.Snapshot, self.handle)

    def opaque(self, name: str) -> Opaque:
        return Opaque(name, self.handle.part, self.handle.record.opaque[name])

    def described(self, ref: TensorRef) -> Described:
        tensor = self.handle.tensor(ref.name)
        return Described(tensor.number, tensor.shape, tensor.raw_bytes)


def overlap(box: Box | Piece, other: Piece) -> Piece | None:
    """Return the common part of two boxes of a tensor; None: there is none."""
    offsets = tuple(map(max, box.offsets, other.offsets))
    sizes = tuple(
        min(first + size, start + length) - offset
        for first, size, start, length, offset in zip(
            box.offsets, box.sizes, other.offsets, other.sizes, offsets, strict=True
        )
    )
    return None if min(sizes, default=1) <= 0 else Piece(offsets, sizes)


def _slices(box: Piece, origin: tuple[int, ...]) -> tuple[slice, ...]:
    bounds = zip(box.offsets, box.sizes, origin, strict=True)
    return tuple(slice(first - start, first - start + size) for first, size, start in bounds)


def check_box(name: str, tensor: Tensor, box: Box, stored: Stored) -> None:
    """Refuse a stored tensor that is not the box of the record."""
    if stored[:2] != (tensor.number, box.sizes):
        raise DamagedError(f"{name}: rank {box.rank} has stored {box.name!r} with another dtype or shape")


def read_rows(part: _core.Snapshot, box: Box, start: int, count: int, item_bytes: int) -> bytearray:
    """Read rows of a stored box."""
    row_bytes = math.prod(box.sizes[1:]) * item_bytes
    return part.read_range(_core.TENSOR, box.name, start * row_bytes, count * row_bytes)


def copy_box(
    into: Any, shape: tuple[int, ...], offsets: tuple[int, ...], data: Any, sizes: tuple[int, ...], item_bytes: int
) -> None:
    """Copy the bytes of a box to its place in a tensor's."""
    slices = tuple(slice(first, first + size) for first, size in zip(offsets, sizes, strict=True))
    _bytes_of(into, (*shape, item_bytes))[slices] = _bytes_of(data, (*sizes, item_bytes))


def _bytes_of(buffer: Any, shape: tuple[int, ...]) -> Any:
    torch = loaded("torch")
    if torch is not None:
        return torch.frombuffer(buffer, dtype=torch.uint8).view(shape)
    try:
        import numpy
    except ImportError:
        raise UnsupportedError("the tensors of a run's ranks are joined by NumPy or torch: install one") from None
    return numpy.frombuffer(buffer, numpy.uint8).reshape(shape)


# The structure: names with their paths become a tree.


def _root(record: Record, handle: Handle) -> Node:
    tree: dict[Any, Any] = {}
    for name, path in record.paths.items():
        node: Node
        if name in record.tensors:
            node = TensorRef(name, True)
        elif name in record.opaque:
            node = Leaf(Opaque(name, handle.part, record.opaque[name]))
        else:
            node = record.values[name]
        if not _put(tree, path, node):
            tree[name] = node
    return _branch(tree)


def _put(tree: dict[Any, Any], path: tuple[Any, ...], node: Node) -> bool:
    """Put a node into the tree; False: another one is in its place, or in the way."""
    place: Any = tree
    for key, below in zip(path, (*path[1:], None), strict=True):
        if type(key) is int and place is tree:
            return False
        last = below is None
        found = place.get(key)
        if last or found is None:
            if found is not None:
                return False
            place[key] = node if last else _Items() if type(below) is int else {}
            found = place[key]
        elif not isinstance(found, dict) or isinstance(found, _Items) != (type(below) is int):
            return False
        place = found
    return True


class _Items(dict[int, Any]):
    """A list's items by their indexes."""


def _branch(tree: dict[Any, Any]) -> Branch:
    is_list = isinstance(tree, _Items)
    branch = Branch("l", None) if is_list else Branch("d", list(tree))
    for key in range(max(tree) + 1) if is_list else tree:
        child = tree.get(key, Leaf(None))
        branch.children.append(_branch(child) if isinstance(child, dict) else child)
    return branch
