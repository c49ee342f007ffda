# SPDX-License-Identifier: BSD-3-Clause
"""Removes snapshots of a run in an object store, and deletes the objects that no commit needs."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from ..errors import InvalidError, RemoteError
from . import agree, codec, files, state
from .cache import Cache
from .codec import Node
from .place import Place
from .pool import RemoteHandle
from .upload import EXPIRES_S
from .which import numbers_of

if TYPE_CHECKING:
    from ..store import Store

GRACE_S = 24 * 3600.0
"""For so long a reader may use the objects of snapshots that were removed."""
_LOGS_KEPT = 1000
_CACHE_BYTES = 64 << 20
_CLOCK = "clock"


def remove(
    place: Place, what: Iterable[str], *, dry_run: bool, sole: Literal["refuse", "skip", "remove"] = "refuse"
) -> tuple[int, int, int]:
    """Remove snapshots, and sweep; return how many snapshots, and how many objects and bytes were deleted.

    `sole`: what becomes of those that a pool may have let go, and of parts of a run. RemoteError, InvalidError: there
    are such, which it refuses.
    """
    now = state.read(place)
    named = {shelf.name: set(numbers) for shelf, numbers in numbers_of(now, what)}

    def chosen(of: state.State) -> Iterator[tuple[state.Shelf, set[int]]]:
        for name, numbers in named.items():
            there = of.find(name) if numbers else None
            if there is None:
                continue
            entries = [entry for entry in there.entries(min(numbers), max(numbers)) if entry.number in numbers]
            only = {entry.number for entry in entries if entry.sole}
            if only and sole == "refuse":
                raise RemoteError(
                    f"{place.url}: the pool may have let {name}@{min(only)} go, so this may be its only copy: "
                    "nothing was removed (push --mirror removes what the pool has removed; --force: all the same)"
                )
            parts = {entry.number for entry in entries if entry.of is not None}
            if parts and sole == "refuse":
                raise InvalidError(
                    f"{place.url}: {name}@{min(parts)} is a part of a snapshot of a run of many ranks, which would be "
                    f"lost as a whole: remove that at {place.url.rpartition('/')[0]} (--force: all the same)"
                )
            yield there, numbers if sole == "remove" else numbers - only - parts

    count = sum(len(numbers) for _, numbers in chosen(now))
    if dry_run:
        return count, 0, 0

    def apply(draft: state.State) -> bool:
        return any([agree.remove(*one) for one in list(chosen(draft))])

    now = state.change(now, secrets.token_hex(16), apply)
    return count, *sweep_all(now)


def prune(
    place: Place, names: Iterable[str], create: Callable[[str], Store], *, dry_run: bool, force: bool = False
) -> tuple[int, int, int]:
    """Remove the snapshots that the policies of shelves do not keep, and sweep; the same result as `remove`.

    The rules are those of a pool: one is made of the entries' properties alone. Metrics that are too many for the state
    are read from the archives. Snapshots that a pool may have let go stay, unless `force` is given.
    """
    now = state.read(place)
    what = []
    with (
        tempfile.TemporaryDirectory(prefix="lmc-store-") as folder,
        create(f"{folder}/rules.pool") as store,
        contextlib.closing(Cache(place, None, _CACHE_BYTES)) as cache,
    ):
        for shelf in [now.shelf(name) for name in names] or now.shelves:
            what += [f"{shelf.name}@{number}" for number in _due(store, shelf, cache)]
    if not what:
        return 0, *((0, 0) if dry_run else sweep_all(now))
    return remove(place, what, dry_run=dry_run, sole="remove" if force else "skip")


def _due(store: Store, shelf: state.Shelf, cache: Cache) -> list[int]:
    if "keep=" not in shelf.policy or "keep=all" in shelf.policy:
        return []
    tags, numbers = shelf.tag_numbers(), {}
    has_best = "best:" in shelf.policy
    for entry in shelf.entries():
        if entry.hidden:
            continue
        capture = store._pool.begin(shelf.name)
        metrics: dict[str, float] = {}
        if has_best:
            metrics = RemoteHandle(cache, shelf, entry, type(store)._create).info()["metrics"]
        values = tuple(metrics.values())
        named = tuple(tags.get(entry.number, ()))
        # `every` goes by the number where there is no step, and this pool counts from 1
        step = entry.number if entry.step is None else entry.step
        numbers[capture.commit(step, 0, entry.time_ns, named, tuple(metrics), values, None, 0)] = entry.number
    if not numbers:
        return []
    store._pool.set_policy(shelf.name, shelf.policy)
    return [numbers[number] for number, _ in store._pool.prune(shelf.name, None, True)[1]]


def needed(now: state.State) -> set[str]:
    """Return the names of the objects that a state needs."""
    found: set[str] = set()

    def add(nodes: Iterable[Node], shelf: state.Shelf) -> None:
        for node in nodes:
            found.add(node.object)
            if node.level:
                add((child for child in shelf._nodes.children(node, shelf.name) if isinstance(child, Node)), shelf)

    for shelf in now.shelves:
        add(shelf.nodes, shelf)
        for entry in shelf.entries():
            found |= entry.archive.objects()
            if entry.key is not None:
                found |= entry.key.objects()
    return found


def drop_parts(now: state.State) -> None:
    """Remove the parts whose records are gone, by the state of the records. Those of later records stay."""
    writer = secrets.token_hex(16)
    records = {
        shelf.name: (shelf.next, {entry.number for entry in shelf.entries() if not entry.hidden})
        for shelf in now.shelves
    }

    def apply(draft: state.State) -> bool:
        is_changed = False
        for shelf in draft.shelves:
            above, kept = records.get(shelf.name, (0, set()))
            gone = {
                entry.number
                for entry in shelf.entries()
                if not entry.hidden and entry.of is not None and entry.of.record < above and entry.of.record not in kept
            }
            is_changed |= agree.remove(shelf, gone)
        return is_changed

    for name in now.ranks or ():
        with now.place.below(name) as place:
            state.change(state.read(place), writer, apply)


def sweep_all(now: state.State) -> tuple[int, int]:
    """Sweep a run, and the sub-runs of its ranks, where parts go whose records are gone; return the sums of `sweep`."""
    drop_parts(now)
    found = [sweep(now)]
    for name in now.ranks or ():
        with now.place.below(name) as place:
            found.append(sweep(state.read(place)))
    return sum(count for count, _ in found), sum(size for _, size in found)


def sweep(now: state.State) -> tuple[int, int]:
    """Delete objects that no commit has needed for a day; return their number and bytes.

    An object may be of a push under way, which commits no object older than `EXPIRES_S`. So it is deleted only if it is
    older than that and a day, and if neither the newest commit nor the newest one before that day needs it. A commit
    between the list and the deletion is a fence: a push that has seen its objects young before the list is either in
    that commit, or must look again (tests/models/remote.pml).
    """
    place = now.place
    place.put(_CLOCK, b"")
    clock = place.head(_CLOCK).time
    listed = [info for folder in ("data", "index", "log") for info in place.list(folder)]
    logs = [(number, info) for info in listed if (number := _number(info.name)) is not None]
    old = max((number for number, info in logs if info.time < clock - GRACE_S), default=None)
    fence = state.change(now, secrets.token_hex(16), lambda draft: True)
    if old is None:
        return 0, 0
    kept = needed(fence) | needed(state.at(fence, old))
    oldest = clock - GRACE_S - EXPIRES_S
    gone = [
        info
        for info in listed
        if info.time < oldest
        and info.name not in kept
        and (codec.is_piece_or_node(info.name) or files.is_unfinished(info.name))
    ]
    place.delete(info.name for info in gone)
    emptied = 0
    for number, info in logs:
        if number < old and number <= now.number - _LOGS_KEPT and info.bytes > len(codec.stub()):
            place.put(info.name, codec.stub())
            emptied += info.bytes
    return len(gone), sum(info.bytes for info in gone) + emptied


def _number(name: str) -> int | None:
    folder, _, digits = name.rpartition("/")
    return int(digits) if folder == "log" and digits.isdecimal() else None
