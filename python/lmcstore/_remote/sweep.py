# SPDX-License-Identifier: BSD-3-Clause
"""Removes snapshots of a run in an object store, and deletes the objects that no commit needs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from . import agree, codec, state
from .codec import Node
from .place import Place
from .which import numbers_of

SAFE_S = 24 * 3600.0
"""Younger objects may be of a push under way (`upload.EXPIRES_S`)."""
_LOGS_KEPT = 1000
_CLOCK = "clock"


def remove(place: Place, what: Iterable[str], *, dry_run: bool) -> tuple[int, int, int]:
    """Remove snapshots, and sweep; return how many snapshots, and how many objects and bytes were deleted."""
    now = state.read(place)
    chosen = {shelf.name: set(numbers) for shelf, numbers in numbers_of(now, what)}
    count = sum(map(len, chosen.values()))
    if dry_run:
        return count, 0, 0

    def apply(draft: state.State) -> bool:
        is_changed = False
        for name, numbers in chosen.items():
            there = draft.find(name)
            if there is not None:
                is_changed |= agree.remove(there, numbers)
        return is_changed

    now = state.change(now, secrets.token_hex(16), apply)
    return count, *sweep(now)


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


def sweep(now: state.State) -> tuple[int, int]:
    """Delete objects that are older than a day and that no commit needs; return their number and bytes."""
    place = now.place
    kept = needed(now)
    place.put(_CLOCK, b"")
    latest = place.head(_CLOCK).time - SAFE_S
    if state.refreshed(now).number != now.number:
        kept |= needed(state.refreshed(now))
    gone = [info for folder in ("data", "index") for info in place.list(folder)]
    gone = [info for info in gone if info.time < latest and info.name not in kept]
    place.delete(info.name for info in gone)
    emptied = 0
    for info in place.list("log"):
        number = info.name.rpartition("/")[2]
        is_old = number.isdecimal() and int(number) <= now.number - _LOGS_KEPT and info.time < latest
        if is_old and info.bytes > len(codec.stub()):
            place.put(info.name, codec.stub())
            emptied += info.bytes
    return len(gone), sum(info.bytes for info in gone) + emptied
