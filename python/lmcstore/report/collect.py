# SPDX-License-Identifier: BSD-3-Clause
"""Collects the data of a report in bounded time.

A history of up to `MOST_SNAPSHOTS` is listed completely, a longer one at even distances. Reading snapshots is
expensive: drift of tensors and restore times are measured on a few, within the time limit.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _core
from ..errors import DamagedError, NotFoundError, UnsupportedError
from ..shelf import Shelf
from ..snapshot import Snapshot
from ..store import Store

MOST_SNAPSHOTS = 600
MOST_INTERVALS = 28
MOST_ROWS = 48
MOST_NAMES = 200  # of omitted rows, in a note
MOST_RESTORES = 16


@dataclass
class Point:
    """One snapshot."""

    number: int
    step: int | None
    time: float
    parent: int | None
    tags: list[str]
    metrics: dict[str, float]
    raw_bytes: int
    stored: dict[str, int]
    """Stored bytes of its contents by form; shared ones in full."""
    new_bytes: int
    """Stored bytes of contents that no earlier listed snapshot has."""
    chain: int
    """Deltas or links to undo, at most, to read it."""
    links_note: str | None
    """Why no links lead to it from the step before; None: they do, or it was not checked."""

    @property
    def stored_bytes(self) -> int:
        """Stored bytes of its contents."""
        return sum(self.stored.values())


@dataclass
class Interval:
    """The change of tensors from one snapshot to a later one."""

    before: int
    after: int
    relative: dict[str, float]
    """Root-mean-square change divided by the earlier root mean square, by tensor; 0: the same."""


@dataclass
class Restore:
    """Seconds to read all tensors of a snapshot, with checksums: the better of two."""

    number: int
    age: int
    """Snapshots that came after it."""
    seconds: float
    raw_bytes: int
    chain: int


@dataclass
class Gathered:
    """The data of one shelf."""

    name: str
    origin: str | None
    count: int
    keep_raw: int
    points: list[Point] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    """Tensors whose drift is shown, in their order in the newest snapshot."""
    tensor_count: int = 0
    intervals: list[Interval] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Omissions and their reasons: sentences."""


def _even(items: Sequence[int], most: int) -> list[int]:
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _numbers(shelf: Shelf) -> list[int]:
    return [snapshot.number for snapshot in shelf]


def _point(snapshot: Snapshot, seen: set[int]) -> Point:
    stored: dict[str, int] = {}
    new_bytes = chain = 0
    mine: set[int] = set()
    for entry in snapshot.entries():
        chain = max(chain, entry["chain"])
        if entry["content"] in mine:
            continue
        mine.add(entry["content"])
        stored[entry["stored_as"]] = stored.get(entry["stored_as"], 0) + entry["stored_bytes"]
        new_bytes += 0 if entry["content"] in seen else entry["stored_bytes"]
    seen |= mine
    return Point(
        number=snapshot.number,
        step=snapshot.step,
        time=snapshot.time,
        parent=snapshot.parent,
        tags=snapshot.tags,
        metrics=snapshot.metrics,
        raw_bytes=snapshot.raw_bytes,
        stored=stored,
        new_bytes=new_bytes,
        chain=chain,
        links_note=snapshot.storage()["links_note"],
    )


def _tell(gathered: Gathered, what: str, reasons: Iterable[tuple[str | None, int]]) -> None:
    """Report each reason once, with the snapshots to which it applies."""
    numbers_of: dict[str, list[int]] = {}
    for reason, number in reasons:
        if reason is not None:
            numbers_of.setdefault(reason, []).append(number)
    for reason, numbers in numbers_of.items():
        more = f" and {len(numbers) - 1} more up to {numbers[-1]}" if len(numbers) > 1 else ""
        gathered.notes.append(f"{what} {numbers[0]}{more}: {reason}.")


def _list_points(shelf: Shelf, gathered: Gathered, deadline: float) -> None:
    numbers = _numbers(shelf)
    chosen = _even(numbers, MOST_SNAPSHOTS)
    seen: set[int] = set()
    lacking: list[tuple[str | None, int]] = []
    gathered.count = len(numbers)
    for number in chosen:
        try:
            gathered.points.append(_point(shelf[number], seen))
        except NotFoundError as error:
            if number in shelf:  # else a writer removed it meanwhile
                lacking.append((str(error), number))
            continue
        except (DamagedError, UnsupportedError) as error:
            lacking.append((str(error), number))
            continue
        if time.monotonic() > deadline and len(gathered.points) < len(chosen):
            gathered.notes.append(f"Only the first {len(gathered.points)} snapshots were listed: time was up.")
            break
    if len(chosen) < len(numbers):
        gathered.notes.append(f"{len(chosen)} of {len(numbers)} snapshots are shown, at even distances.")
    _tell(gathered, "Not shown is snapshot", lacking)
    _tell(gathered, "No link leads to snapshot", ((point.links_note, point.number) for point in gathered.points))


def _is_counter(entry: dict[str, Any]) -> bool:
    """Whether a tensor counts steps or is a generator's state: one number, or integers in one dimension."""
    is_real = entry["dtype"] is not None and entry["dtype"].startswith(("f", "bf", "c"))
    return math.prod(entry["shape"]) <= 1 or (len(entry["shape"]) <= 1 and not is_real)


def _choose_rows(snapshot: Snapshot, gathered: Gathered) -> None:
    """Choose the largest tensors, counters and generators last, in the order of the snapshot; note the omitted ones."""
    entries = [entry for entry in snapshot.entries() if not entry["is_attachment"]]
    ranked = sorted(entries, key=lambda entry: (_is_counter(entry), -entry["raw_bytes"]))
    chosen = {entry["name"] for entry in ranked[:MOST_ROWS]}
    gathered.rows = [entry["name"] for entry in entries if entry["name"] in chosen]
    gathered.tensor_count = len(entries)
    for is_counter, kind in ((False, "smaller tensors"), (True, "counters and states of generators")):
        names = [entry["name"] for entry in ranked[MOST_ROWS:] if _is_counter(entry) == is_counter]
        if names:
            more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
            gathered.notes.append(f"Drift of {len(names):,} {kind} is left out: {', '.join(names[:MOST_NAMES])}{more}.")


def _drift(before: Snapshot, after: Snapshot) -> Interval:
    found = before.diff(after, same=True)
    relative = {}
    for item in found:
        if item.kind == "same":
            relative[item.name] = 0.0
        elif item.kind == "changed" and item.rms_before > 0:
            relative[item.name] = item.rms_change / item.rms_before
    return Interval(before.number, after.number, relative)


def _measure_drift(shelf: Shelf, gathered: Gathered, deadline: float) -> None:
    numbers = _even([point.number for point in gathered.points], MOST_INTERVALS + 1)
    for before, after in itertools.pairwise(numbers):
        if time.monotonic() > deadline:
            left = len(numbers) - 1 - len(gathered.intervals)
            gathered.notes.append(f"Drift of {left} of {len(numbers) - 1} intervals was left out: time was up.")
            return
        try:
            gathered.intervals.append(_drift(shelf[before], shelf[after]))
        except (DamagedError, NotFoundError, UnsupportedError) as error:
            if isinstance(error, NotFoundError) and not (before in shelf and after in shelf):
                continue  # removed meanwhile
            gathered.notes.append(f"Drift from {before} to {after} can't be told: {error}")


def _restore(shelf: Shelf, number: int, newest: int) -> Restore:
    snapshot = shelf[number]
    seconds = float("inf")
    for _ in range(2):  # other work may disturb the first
        begin = time.perf_counter()
        view = snapshot._decode()._handle.view(None, _core.TENSOR, _core.VIEW_COPY | _core.VIEW_VERIFY)
        seconds = min(seconds, time.perf_counter() - begin)
        del view
    storage = snapshot.storage()
    chain = max(storage["longest_chain"], storage["longest_line"])
    return Restore(number, newest - number, seconds, snapshot.raw_bytes, chain)


def _measure_restores(shelf: Shelf, gathered: Gathered, deadline: float) -> None:
    numbers = _even([point.number for point in gathered.points], MOST_RESTORES)
    for number in reversed(numbers):
        if time.monotonic() > deadline:
            left = len(numbers) - len(gathered.restores)
            gathered.notes.append(f"{left} of {len(numbers)} restores were not measured: time was up.")
            break
        try:
            gathered.restores.append(_restore(shelf, number, numbers[-1]))
        except NotFoundError:
            continue
        except (DamagedError, UnsupportedError) as error:
            gathered.notes.append(f"Snapshot {number} can't be restored: {error}")
    gathered.restores.reverse()


def collect(store: Store, name: str, seconds: float = 30.0) -> Gathered:
    """Collect the data of the shelf `name` within about `seconds`; NotFoundError: there is no such shelf."""
    shelf = store[name]
    info = store._pool.shelf_info(name)
    origin = shelf.origin
    text = None if origin is None else f"{origin.shelf}@{origin.number}{'' if origin.is_there else ', which is gone'}"
    gathered = Gathered(name, text, len(shelf), info["keep_raw"])
    begin = time.monotonic()
    _list_points(shelf, gathered, begin + 0.4 * seconds)
    if not gathered.points:
        return gathered
    newest = shelf[gathered.points[-1].number]
    _choose_rows(newest, gathered)
    _measure_restores(shelf, gathered, begin + 0.6 * seconds)
    _measure_drift(shelf, gathered, begin + seconds)
    return gathered
