# SPDX-License-Identifier: BSD-3-Clause
"""`Log`: the snapshots that `Shelf.log` returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from ._text import html
from ._text.text import for_html, printable
from .errors import NotFoundError

if TYPE_CHECKING:
    from .snapshot import Snapshot


class RemovedByPolicy(NamedTuple):
    """Snapshots that the rules of a policy removed."""

    policy: str
    """The rules: ``"keep=last:10"``."""
    ranges: list[tuple[int, int]]
    """Their numbers, first and last of each range; if `snapshots` is less, not all of these."""
    snapshots: int
    """How many."""
    first_time: float
    """When the first of them was removed, in seconds since 1970."""
    last_time: float
    """When the last of them was removed."""

    def __str__(self) -> str:
        spanned = sum(last - first + 1 for first, last in self.ranges)
        numbers = ", ".join(f"{first}..{last}" if last > first else str(first) for first, last in self.ranges)
        begin, end = html.when(self.first_time), html.when(self.last_time)
        time = f"at {end}" if begin == end else f"from {begin} to {end}"
        of = " of" if self.snapshots < spanned else ":"
        return f"{printable(self.policy)} removed {self.snapshots:,}{of} {numbers}, {time}"


_HEAD = ("number", "step", "time (UTC)", "parent", "size", "new", "tags", "metrics")
_NUMBERS = 2  # columns at the left


class Log(Sequence["Snapshot"]):
    """Snapshots of a shelf, newest first; prints as a table, also in a notebook.

    ``new`` is `Snapshot.new_bytes`. It shows the ``parent`` of a snapshot that does not continue the next one, and what
    policies removed (`removed`).
    """

    def __init__(
        self, shelf: str, items: list[Snapshot], left_out: int, removed: list[RemovedByPolicy] | None = None
    ) -> None:
        self._shelf = shelf
        self.removed = removed or []
        """The snapshots that policies removed, newest removal first: a bounded record."""
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

    def _new_bytes(self) -> list[int | None]:
        if not self._items:
            return []
        shelf = self._items[0].shelf
        try:
            return shelf.store._pool.new_bytes(shelf.name, [snapshot.number for snapshot in self._items])
        except NotFoundError:  # the shelf was removed or renamed meanwhile
            return [None] * len(self._items)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        new_bytes = self._new_bytes()
        below = [snapshot.number for snapshot in self._items[1:]]
        for i, snapshot in enumerate(self._items):
            usual = snapshot.parent is None or (i < len(below) and snapshot.parent == below[i])
            yield (
                str(snapshot.number),
                "" if snapshot.step is None else str(snapshot.step),
                html.when(snapshot.time),
                "" if usual or i == len(below) else str(snapshot.parent),
                html.size(snapshot.raw_bytes),
                "?" if (added := new_bytes[i]) is None else html.size(added),
                ", ".join(snapshot.tags),
                ", ".join(f"{name} {value:.6g}" for name, value in snapshot.metrics.items()),
            )

    def __repr__(self) -> str:
        lines = [f"shelf {printable(self._shelf)}"]
        if self._items:
            lines += html.columns([_HEAD, *self._rows()], _NUMBERS)
        if self._left_out:
            lines.append(f"... and {self._left_out:,} older")
        lines += [str(removed) for removed in self.removed]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table = html.table(f"shelf {self._shelf}", _HEAD, self._rows(), self._left_out)
        return table + "".join(f"<p>{for_html(str(removed))}</p>" for removed in self.removed)
