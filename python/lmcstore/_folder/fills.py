# SPDX-License-Identifier: BSD-3-Clause
"""`Stored`: a stored tensor that is read by ranges of bytes, which fill the targets of DCP's items."""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import torch
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from .. import _core
from .._arrays.torch import torch_of
from ..errors import InvalidError
from .record import Box, Tensor

_PIECE_BYTES = 16 << 20


class Read(NamedTuple):
    """An item of a plan, and the box of a tensor that has it."""

    item: ReadItem
    tensor: Tensor
    box: Box


def bytes_of(read: Read) -> tuple[int, int]:
    """Return where the rows of an item begin and end in the stored tensor."""
    item, tensor, box = read
    if 0 in item.lengths or not box.sizes:
        return 0, 0
    row = math.prod(box.sizes[1:]) * tensor.item_bytes
    return item.storage_offsets[0] * row, (item.storage_offsets[0] + item.lengths[0]) * row


def is_place(read: Read, target: torch.Tensor) -> bool:
    """Whether the memory of a target is to have bytes as they are stored, of whole rows."""
    item, tensor, box = read
    offsets, lengths = tuple(item.storage_offsets), tuple(item.lengths)
    if not lengths or any(offsets[1:]) or lengths[1:] != box.sizes[1:] or offsets[0] + lengths[0] > box.sizes[0]:
        return False
    is_memory = type(target) is torch.Tensor and target.device.type == "cpu" and target.is_contiguous()
    if not is_memory or target.is_conj() or target.is_neg() or target.size() != lengths:
        return False
    return torch_of(torch).number_of.get(target.dtype) == tensor.number


class Stored:
    """Takes each range once, in any order."""

    def __init__(self, part: _core.Snapshot, reads: list[Read], planner: LoadPlanner) -> None:
        self._part = part
        self._name = reads[0].box.name
        self._fills = [_Fill(one, planner) for one in reads]
        self._taken: list[tuple[int, int]] = []

    def needs(self, first: int, last: int) -> bool:
        """Whether a range has something of the items."""
        return any(fill.first < last and first < fill.last for fill in self._fills)

    def decode(self, first: int, last: int, data: torch.Tensor) -> None:
        """Read a range into memory."""
        self._part.read_to(_core.TENSOR, self._name, first, last - first, data.data_ptr())

    def copy(self, first: int, last: int, data: torch.Tensor) -> None:
        """Copy the items' parts of a range in memory."""
        self._taken.append((first, last))
        for fill in self._fills:
            fill.copy(first, last, data)

    def read(self, first: int, last: int) -> None:
        """Read the items' parts of a range."""
        fills = [fill for fill in self._fills if fill.first < last and first < fill.last]
        if len(fills) == 1 and fills[0].is_place:
            self._taken.append((first, last))
            fills[0].read(self._part, first, last)
            return
        for start in range(first, last, _PIECE_BYTES):
            stop = min(last, start + _PIECE_BYTES)
            if self.needs(start, stop):
                data = torch.empty(stop - start, dtype=torch.uint8)
                self.decode(start, stop, data)
                self.copy(start, stop, data)

    def end(self) -> None:
        """Read the rest."""
        at, end = 0, max(fill.last for fill in self._fills)
        for first, last in [*sorted(self._taken), (end, end)]:
            if at < first:
                self.read(at, first)
            at = max(at, last)
        for fill in self._fills:
            fill.end()


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

    def read(self, part: _core.Snapshot, first: int, last: int) -> None:
        """Read the item's part of a range to the target directly."""
        start, stop = max(first, self.first), min(last, self.last)
        address = self._resolved().data_ptr() + start - self.first
        part.read_to(_core.TENSOR, self._read.box.name, start, stop - start, address)
        self._took(stop - start)

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
            copy_part(target, values, start // tensor.item_bytes, box.sizes, offsets, lengths)
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
