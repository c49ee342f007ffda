# SPDX-License-Identifier: BSD-3-Clause
"""`Load`: stored tensors that are read by ranges of bytes, which fill the targets of DCP's items."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from .. import _core
from .._arrays.torch import torch_of
from ..errors import InvalidError
from .once import BLOCK_BYTES, Unit
from .record import Box, Tensor

_PIECE_BYTES = 16 << 20
_FETCHED_BYTES = 64 << 20


class Read(NamedTuple):
    """An item of a plan, and the box of a tensor that has it."""

    item: ReadItem
    tensor: Tensor
    box: Box


def bytes_of(read: Read) -> tuple[int, int]:
    """Return where the rows of an item begin and end in the stored tensor."""
    item, tensor, box = read
    if 0 in item.lengths:
        return 0, 0
    if not box.sizes:
        return 0, tensor.item_bytes
    row = math.prod(box.sizes[1:]) * tensor.item_bytes
    return item.storage_offsets[0] * row, (item.storage_offsets[0] + item.lengths[0]) * row


def has_whole_rows(read: Read) -> bool:
    """Whether an item has whole rows of the stored tensor."""
    return tuple(read.item.lengths[1:]) == read.box.sizes[1:]


def is_place(read: Read, target: torch.Tensor) -> bool:
    """Whether the memory of a target is to have bytes as they are stored, of whole rows."""
    item, tensor, box = read
    offsets, lengths = tuple(item.storage_offsets), tuple(item.lengths)
    if not lengths or any(offsets[1:]) or not has_whole_rows(read) or offsets[0] + lengths[0] > box.sizes[0]:
        return False
    is_memory = type(target) is torch.Tensor and target.device.type == "cpu" and target.is_contiguous()
    if not is_memory or target.is_conj() or target.is_neg() or target.size() != lengths:
        return False
    return torch_of(torch).number_of.get(target.dtype) == tensor.number


class Stored:
    """Takes each range once, in any order."""

    def __init__(self, part: _core.Snapshot, link: int, reads: list[Read], planner: LoadPlanner) -> None:
        """`link`: tensors with the same one are decoded together; 0: none are."""
        self.part = part
        self.link = link
        self.name = reads[0].box.name
        self._fills = [_Fill(one, planner) for one in reads]
        self._taken: list[tuple[int, int]] = []

    def needs(self, first: int, last: int) -> bool:
        """Whether a range has something of the items."""
        return any(fill.first < last and first < fill.last for fill in self._fills)

    def place(self, first: int, last: int) -> _Fill | None:
        """Return the item that gets the needed bytes of a range directly; None: they are copied."""
        fills = [fill for fill in self._fills if fill.first < last and first < fill.last]
        return fills[0] if len(fills) == 1 and fills[0].is_place else None

    def needed(self, first: int, last: int) -> tuple[int, int]:
        """Return where the needed bytes of a range begin and end."""
        fills = [fill for fill in self._fills if fill.first < last and first < fill.last]
        start, stop = (
            min((fill.first for fill in fills), default=last),
            max((fill.last for fill in fills), default=first),
        )
        return max(first, start), min(last, stop)

    def copy(self, first: int, last: int, data: torch.Tensor) -> None:
        """Copy the items' parts of a range in memory."""
        self.take(first, last)
        for fill in self._fills:
            fill.copy(first, last, data)

    def take(self, first: int, last: int) -> None:
        """Note that a range was read."""
        self._taken.append((first, last))

    def rest(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges with something that was not read."""
        at, end = 0, max(fill.last for fill in self._fills)
        for first, last in [*sorted(self._taken), (end, end)]:
            if at < first and self.needs(at, first):
                yield at, first
            at = max(at, last)

    def end(self) -> None:
        """Commit items without bytes."""
        for fill in self._fills:
            fill.end()


_Range = tuple[Stored, int, int]


class Load:
    """The stored tensors that a rank reads by units, or several at once; a `Reader`."""

    def __init__(self) -> None:
        self._stored: dict[tuple[int, str], Stored] = {}

    def add(self, rank: int, stored: Stored) -> None:
        """Add a tensor of a rank."""
        self._stored[rank, stored.name] = stored

    def needs(self, unit: Unit) -> bool:
        """Whether this rank needs something of a unit."""
        return any(True for _ in self._mine(unit))

    def _mine(self, unit: Unit) -> Iterator[tuple[int, Stored]]:
        for number, (name, first, last) in enumerate(unit.pieces):
            stored = self._stored.get((unit.rank, name))
            if stored is not None and stored.needs(first, last):
                yield number, stored

    def decode(self, unit: Unit, data: list[torch.Tensor]) -> None:
        """Read all of a unit into memory."""
        _, stored = next(self._mine(unit))
        ranges = zip(unit.pieces, data, strict=True)
        stored.part.read_to(
            _core.TENSOR, [(name, first, last - first, to.data_ptr()) for (name, first, last), to in ranges]
        )

    def copy(self, unit: Unit, data: list[torch.Tensor]) -> None:
        """Copy this rank's part of a unit in memory."""
        for number, stored in self._mine(unit):
            _, first, last = unit.pieces[number]
            stored.copy(first, last, data[number])

    def read(self, unit: Unit) -> None:
        """Read this rank's part of a unit."""
        _read([(stored, *unit.pieces[number][1:]) for number, stored in self._mine(unit)])

    def end(self, is_remote: bool) -> None:
        """Read the rest. `is_remote`: by few requests."""
        groups: dict[tuple[int, int | str], list[Stored]] = {}
        for (rank, name), stored in self._stored.items():
            groups.setdefault((rank, stored.link or name), []).append(stored)
        batches: dict[object, list[list[Stored]]] = {}
        for key, group in groups.items():
            batches.setdefault(key[0] if is_remote else key, []).append(group)
        for batch in batches.values():
            rest = [(stored, *one) for group in batch for stored in group for one in stored.rest()]
            most, size = _FETCHED_BYTES if is_remote else 0, 0
            pieces = [one for one in rest if one[0].place(*one[1:]) is not None]
            for piece in itertools.chain.from_iterable(map(_pieces, batch)):
                if pieces and size + piece[2] - piece[1] > most and piece[1:] != pieces[-1][1:]:
                    _read(pieces)
                    pieces, size = [], 0
                pieces.append(piece)
                size += piece[2] - piece[1]
            _read(pieces)
        for stored in self._stored.values():
            stored.end()


def _pieces(group: list[Stored]) -> list[_Range]:
    """Cut what is left of some stored tensors, which are decoded together."""
    step = max(BLOCK_BYTES, _PIECE_BYTES // len(group) // BLOCK_BYTES * BLOCK_BYTES)
    made = [
        (stored, *stored.needed(max(first, start), min(last, start + step)))
        for stored in group
        for first, last in stored.rest()
        if stored.place(first, last) is None
        for start in range(first - first % step, last, step)
    ]
    return sorted((one for one in made if one[1] < one[2]), key=lambda one: one[1:])


def _read(ranges: list[_Range]) -> None:
    """Read the items' parts of ranges of a rank's stored tensors, at once: those of arrays of a link side by side."""
    places: list[tuple[Stored, int, int, _Fill]] = []
    copies: list[tuple[Stored, int, int, torch.Tensor]] = []
    wanted = []
    for stored, first, last in sorted(ranges, key=lambda one: (one[0].link, *one[1:])):
        fill = stored.place(first, last)
        if fill is not None:
            places.append((stored, first, last, fill))
            wanted.append((stored.name, *fill.target(first, last)))
        else:
            data = torch.empty(last - first, dtype=torch.uint8)
            copies.append((stored, first, last, data))
            wanted.append((stored.name, first, last - first, data.data_ptr()))
    if wanted:
        ranges[0][0].part.read_to(_core.TENSOR, wanted)
    for stored, first, last, fill in places:
        stored.take(first, last)
        fill.took(first, last)
    for stored, first, last, data in copies:
        stored.copy(first, last, data)


class _Fill:
    """Fills the target of an item, and commits it."""

    def __init__(self, read: Read, planner: LoadPlanner) -> None:
        self.first, self.last = bytes_of(read)
        self._read = read
        self._planner = planner
        self._left = self.last - self.first
        self._target: torch.Tensor | None = None
        self._is_place = False

    def _resolved(self) -> torch.Tensor:
        if self._target is None:
            item = self._read.item
            target = self._planner.resolve_tensor(item).detach()
            if tuple(target.size()) != tuple(item.lengths):
                raise InvalidError(
                    f"{item.storage_index.fqn}: the planner gives {tuple(target.size())} for a box of "
                    f"{tuple(item.lengths)}"
                )
            self._target, self._is_place = target, is_place(self._read, target)
        return self._target

    @property
    def is_place(self) -> bool:
        """Whether bytes are read to the target directly."""
        self._resolved()
        return self._is_place

    def target(self, first: int, last: int) -> tuple[int, int, int]:
        """Return the item's part of a range, its first byte and their number, and the address in the target."""
        start, stop = max(first, self.first), min(last, self.last)
        return start, stop - start, self._resolved().data_ptr() + start - self.first

    def took(self, first: int, last: int) -> None:
        """Note that the item's part of a range was read to the target."""
        self._took(min(last, self.last) - max(first, self.first))

    def copy(self, first: int, last: int, data: torch.Tensor) -> None:
        """Copy the item's part of a range in memory."""
        start, stop = max(first, self.first), min(last, self.last)
        if start >= stop:
            return
        item, tensor, box = self._read
        target = self._resolved()
        if self._is_place:
            ctypes.memmove(target.data_ptr() + start - self.first, data.data_ptr() + start - first, stop - start)
        else:
            values = data[start - first : stop - first].view(torch_of(torch).dtype(tensor.number))
            offsets, lengths = tuple(item.storage_offsets), tuple(item.lengths)
            if box.sizes:
                copy_part(target, values, start // tensor.item_bytes, box.sizes, offsets, lengths)
            else:
                target.copy_(values.view(()))
        self._took(stop - start)

    def _took(self, count: int) -> None:
        self._left -= count
        if self._left == 0:
            self._planner.commit_tensor(self._read.item, self._resolved())
            self._target = None

    def end(self) -> None:
        """Commit an item without bytes."""
        if self.first == self.last:
            self._planner.commit_tensor(self._read.item, self._resolved())


def copy_part(
    target: torch.Tensor,
    data: torch.Tensor,
    first: int,
    shape: tuple[int, ...],
    offsets: tuple[int, ...],
    lengths: tuple[int, ...],
) -> None:
    """Copy consecutive elements of a tensor of `shape`, from the one with number `first` on, to a box of it."""
    row = math.prod(shape[1:])
    end = first + len(data)
    start, stop = -(-first // row), end // row
    if start > stop:
        parts = [(first // row, 0, len(data))]  # less than a row
    else:
        parts = [(start - 1, 0, start * row - first), (stop, stop * row - first, len(data))]
        low, high = max(start, offsets[0]), min(stop, offsets[0] + lengths[0])
        if low < high:
            rows = data[low * row - first : high * row - first].view(high - low, *shape[1:])
            for axis in range(1, len(shape)):
                rows = rows.narrow(axis, offsets[axis], lengths[axis])
            target[low - offsets[0] : high - offsets[0]].copy_(rows)
    for number, begin, finish in parts:
        if begin < finish and offsets[0] <= number < offsets[0] + lengths[0]:
            inner = data[begin:finish], first + begin - number * row
            copy_part(target[number - offsets[0]], *inner, shape[1:], offsets[1:], lengths[1:])
