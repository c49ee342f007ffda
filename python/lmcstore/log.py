# SPDX-License-Identifier: BSD-3-Clause
"""`Log`: the snapshots that `Shelf.log` returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from ._text import html
from ._text.text import printable

if TYPE_CHECKING:
    from .snapshot import Snapshot

_HEAD = ("number", "step", "time (UTC)", "parent", "size", "tags", "metrics")
_NUMBERS = 2  # columns at the left


class Log(Sequence["Snapshot"]):
    """Snapshots of a shelf, newest first; prints as a table, also in a notebook.

    It shows the ``parent`` of a snapshot that does not continue the one below it.
    """

    def __init__(self, shelf: str, items: list[Snapshot], left_out: int) -> None:
        self._shelf = shelf
        self._items = items
        self._left_out = left_out

    @overload
    def __getitem__(self, which: int) -> Snapshot: ...
    @overload
    def __getitem__(self, which: slice) -> list[Snapshot]: ...
    def __getitem__(self, which: int | slice) -> Snapshot | list[Snapshot]:
        return self._items[which]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self._items)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        below = [snapshot.number for snapshot in self._items[1:]]
        for i, snapshot in enumerate(self._items):
            usual = snapshot.parent is None or (i < len(below) and snapshot.parent == below[i])
            yield (
                str(snapshot.number),
                "" if snapshot.step is None else str(snapshot.step),
                html.when(snapshot.time),
                "" if usual or i == len(below) else str(snapshot.parent),
                html.size(snapshot.raw_bytes),
                ", ".join(snapshot.tags),
                ", ".join(f"{name} {value:.6g}" for name, value in snapshot.metrics.items()),
            )

    def __repr__(self) -> str:
        lines = [f"shelf {printable(self._shelf)}"]
        if self._items:
            lines += html.columns([_HEAD, *self._rows()], _NUMBERS)
        if self._left_out:
            lines.append(f"... and {self._left_out:,} older")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html.table(f"shelf {self._shelf}", _HEAD, self._rows(), self._left_out)
