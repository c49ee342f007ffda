# SPDX-License-Identifier: BSD-3-Clause
"""Whole tensors of a run's snapshots: their differences, and their export. One tensor is in memory at a time."""

from __future__ import annotations

import math
from typing import Any

from .. import _core
from .._state.decode import flags_of
from ..diff import KINDS, Diff, make
from ..snapshot import Progress
from .joined import Handle
from .record import Tensor

_SAME, _CHANGED, _RESHAPED, _ADDED, _REMOVED = range(len(KINDS))
_NO_NUMBERS = (0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, math.nan)
_EQUAL = (*_NO_NUMBERS[:-1], 1.0)

Row = tuple[Any, ...]


def buffer_of(handle: Handle, name: str) -> Any:
    """Read and verify a tensor."""
    return handle.view([name], _core.TENSOR, flags_of(True)).unpack()[4][0]


def export(
    records: _core.Snapshot, handle: Handle, path: str, part: str | None, progress: Progress | None
) -> dict[str, Any]:
    """Write the tensors as a safetensors file, with the properties of the record's snapshot."""
    forms = {name: (tensor.number, tensor.shape) for name, tensor in handle.record.tensors.items()}
    return records.export_joined(part, path, forms, lambda name: buffer_of(handle, name), progress)


class Comparison:
    """Compares two snapshots of a run."""

    def __init__(self, before: Handle, after: Handle, shows_same: bool, numbers: bool) -> None:
        self._before = before
        self._after = after
        self._shows_same = shows_same
        self._numbers = numbers
        self._contents = _contents(before), _contents(after)
        self._bytes = 0

    def run(self, addresses: tuple[str, str], progress: Progress | None) -> Diff:
        """Compare all tensors, in the order of the later snapshot; removed ones are last."""
        before, after = self._before.record.tensors, self._after.record.tensors
        rows = []
        report = dict.fromkeys(KINDS, 0)
        total = sum(tensor.raw_bytes for tensor in after.values())
        for name in (*after, *(name for name in before if name not in after)):
            kind, row = self._row(name, before.get(name), after.get(name))
            report[KINDS[kind]] += 1
            if kind != _SAME or self._shows_same:
                rows.append(row)
            if progress is not None:
                progress("comparing", self._bytes, total)
        return make(*addresses, rows, report | {"bytes_compared": self._bytes})

    def _row(self, name: str, before: Tensor | None, after: Tensor | None) -> tuple[int, Row]:
        numbers: tuple[Any, ...] = _NO_NUMBERS
        if before is None or after is None:
            kind = _REMOVED if after is None else _ADDED
        elif (before.dtype, before.shape) != (after.dtype, after.shape):
            kind = _RESHAPED
        elif self._have_same_boxes(before, after):
            kind, numbers = _SAME, _EQUAL
        else:
            found = _core.difference(after.number, buffer_of(self._before, name), buffer_of(self._after, name))
            self._bytes += after.raw_bytes
            kind = _SAME if found is None else _CHANGED
            if found is None or self._numbers:
                numbers = _EQUAL if found is None else found
        return kind, (name, kind, False, _form(before), _form(after), *numbers)

    def _have_same_boxes(self, before: Tensor, after: Tensor) -> bool:
        """Whether both have the same boxes with the same contents, so that neither is read."""
        old, new = self._contents
        return len(before.boxes) == len(after.boxes) and all(
            (one.offsets, one.sizes) == (other.offsets, other.sizes)
            and (one.rank, one.name) in old
            and old[one.rank, one.name] == new.get((other.rank, other.name))
            for one, other in zip(before.boxes, after.boxes, strict=True)
        )


def _form(tensor: Tensor | None) -> tuple[int, tuple[int, ...], int] | None:
    return None if tensor is None else (tensor.number, tensor.shape, tensor.raw_bytes)


def _contents(handle: Handle) -> dict[tuple[int, str], tuple[bytes, bool, int]]:
    """Return the content of each stored tensor, its pool, and whether it has left that, by rank and stored name."""
    found = {}
    for rank in handle.record.ranks:
        pool, part = handle.pool(rank), handle.part(rank, [])
        entries = part.entries()
        is_fetched = getattr(part, "is_fetched", True)
        for name, kind, *_, content, _ in entries:
            if kind == _core.TENSOR:
                found[rank, name] = pool, is_fetched, content
    return found
