# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that share memory: found before a state is stored, and placed over one memory when it is read.

Each is stored whole, by its own name, so that it can be read, compared and exported alone; the skeleton records its
place in the memory. Reading makes that memory from the tensors that are read, and nothing of a storage's other parts.
"""

from __future__ import annotations

import mmap
import operator
from collections.abc import Iterable
from typing import Any

from .._arrays.stretch import Stretch
from .._arrays.torch import Torch
from .nodes import Place, damaged

MOST_BYTES = 1 << 53
"""Of a memory and of a stride."""
_SPARSEST = 16
_SPARSE_BYTES = 64 << 20
"""A memory has at most 16 times the bytes of its tensors, and 64 MiB more; sparser ones are not made again."""
_MOST_PAIRS = 128
"""Among more tensors each overlap of ranges counts as one of elements."""
_ALIGNMENT = 16
_MAPPED_BYTES = 1 << 20
"""From this size on a memory has a mapping, of which only the pages in use take space."""


def any_overlap(starts: Iterable[int], ends: Iterable[int]) -> bool:
    """Whether of some ranges two overlap, given all starts and all ends in any order."""
    return any(map(operator.gt, sorted(ends), sorted(starts)[1:]))


def groups_of(stretches: list[Stretch]) -> list[list[Stretch]]:
    """Group the tensors of one address space that share memory; tensors by themselves and exact aliases are in none."""
    groups: list[list[Stretch]] = []
    stretches.sort(key=lambda one: (one.start, one.end))
    begin, end = 0, -1
    for index, one in enumerate(stretches):
        if one.start >= end:
            groups += _connected(stretches[begin:index])
            begin = index
        end = max(end, one.end)
    return groups + _connected(stretches[begin:])


def _connected(near: list[Stretch]) -> list[list[Stretch]]:
    parts: list[list[Stretch]] = [near]
    if 1 < len(near) <= _MOST_PAIRS and any(one.step for one in near):
        parts = []
        for one in near:
            joined = [part for part in parts if any(one.overlaps(other) for other in part)]
            parts = [part for part in parts if all(part is not other for other in joined)]
            parts.append([*(member for part in joined for member in part), one])
    return [part for part in parts if _is_shared(part)]


def _is_shared(part: list[Stretch]) -> bool:
    if len(part) < 2 or (part[0].kind is not None and all(one.kind == part[0].kind for one in part)):
        return False
    size = max(one.end for one in part) - base_of(part)
    return size <= _SPARSEST * sum(one.raw_bytes for one in part) + _SPARSE_BYTES


def base_of(group: list[Stretch]) -> int:
    """Return the address of the group's memory; as far as possible all items are aligned to it."""
    start = min(one.start for one in group)
    is_aligned = all((one.address - start) % one.item == 0 for one in group)
    return start if is_aligned else start - start % _ALIGNMENT


def wrap(stretches: list[Stretch], storages: list[int]) -> None:
    """Put each shared tensor's node, ``owner = (parent, index)``, into a node with its place; append the sizes."""
    order = {id(one): number for number, one in enumerate(stretches)}
    for group in sorted(groups_of(stretches), key=lambda group: min(order[id(one)] for one in group)):
        base = base_of(group)
        for one in group:
            parent, index = one.owner
            strides = [by if abs(by) < MOST_BYTES else 0 for by in one.strides]  # far ones have one element
            parent[index] = ["V", parent[index], len(storages), one.address - base, strides]
        storages.append(max(one.end for one in group) - base)


def stretch_of(owner: Any, place: Place, shape: tuple[int, ...], item: int, is_torch: bool) -> Stretch:
    """Check a place against the tensor in it; DamagedError: it leads out of its memory, or no tensor has it."""
    if (
        len(place.strides) != len(shape)
        or 0 in shape
        or (is_torch and any(by < 0 or by % item for by in place.strides))
    ):
        raise damaged("the strides of a tensor in a shared memory")
    made = Stretch(owner, place.offset, shape, place.strides, item)
    if made.start < 0 or made.end > place.size:
        raise damaged("a tensor's place leads out of its shared memory")
    return made


class Memory:
    """The bytes of some tensors that share them."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._storage: Any = None
        self._array: Any = None

    @classmethod
    def empty(cls, size: int) -> Memory:
        if size < _MAPPED_BYTES:
            return cls(bytearray(size))
        try:
            return cls(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        except OSError as error:
            raise MemoryError(f"a shared memory of {size:,} bytes: {error}") from None

    def fill(self, buffer: Any, one: Stretch, base: int, torch: Torch | None) -> None:
        """Write a tensor's bytes, in their usual order in a buffer, to its place."""
        at = one.address - base
        if torch is None:
            import numpy

            kind = numpy.dtype(f"V{one.item}")
            data = numpy.frombuffer(memoryview(buffer), kind).reshape(one.shape)
            numpy.ndarray(one.shape, kind, self._buffer, at, one.strides)[...] = data
            return
        once = tuple(slice(1) if by == 0 else slice(None) for by in one.strides)
        bits = torch.bits(one.item)
        source = torch.torch.frombuffer(buffer, dtype=bits).view(one.shape)
        self.tensor(torch, bits, one.shape, at, one.strides)[once].copy_(source[once])

    def tensor(self, torch: Torch, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> Any:
        if self._storage is None:
            self._storage = torch.storage(self._buffer)
        item = dtype.itemsize
        return torch.strided(self._storage, dtype, shape, offset // item, [by // item for by in strides])

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> Any:
        import numpy

        if self._array is None:
            self._array = numpy.frombuffer(memoryview(self._buffer).toreadonly(), numpy.uint8)
        return numpy.ndarray(shape, dtype, self._array, offset, strides)
