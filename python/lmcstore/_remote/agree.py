# SPDX-License-Identifier: BSD-3-Clause
"""Compares a pool with a state: the same shelf or not; its tags, policies, metrics, notes and removals."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import DamagedError, ExistsError, NotFoundError
from . import state
from .codec import Entry, is_note

if TYPE_CHECKING:
    from ..store import Store

_MOST_METRICS = _MOST_NOTE = 16 << 10
_COMPARED = 8


def metrics_of(info: dict[str, Any]) -> dict[str, float | str] | None:
    """Return metrics as a state has them; None: they or the note are too large for it, and the archive has both."""
    if len(_note(info)) > _MOST_NOTE:
        return None
    found: dict[str, float | str] = {}
    for name, value in info["metrics"].items():
        is_plain = math.isfinite(value)
        found[name] = (
            float(value) if is_plain else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        )
    return found if len(json.dumps(found)) <= _MOST_METRICS else None


def note_of(info: dict[str, Any]) -> str:
    """Return the note as a state has it; "": none, or only the archive can have it."""
    note = _note(info)
    return note if len(note) <= _MOST_NOTE and is_note(note) else ""


def _note(info: dict[str, Any]) -> str:
    try:
        meta = json.loads(info["meta_json"]) if info["meta_json"] else {}
    except (ValueError, RecursionError):
        return ""
    note = meta.get("message") if isinstance(meta, dict) else None
    return note if isinstance(note, str) else ""


def info_of(store: Store, shelf: str, number: int) -> dict[str, Any] | None:
    try:
        info: dict[str, Any] = store._pool.find(shelf, str(number), False).info()
    except NotFoundError:
        return None
    return info


def check_same(store: Store, there: state.Shelf, url: str) -> None:
    """Refuse a shelf that has another snapshot than the state, of the newest of both."""
    compared = set()
    for entry in there.newest[: -_COMPARED - 1 : -1] or itertools.islice(there.entries(backwards=True), _COMPARED):
        compared.add(entry.number)
        _check_entry(store, there, entry, url)
    with contextlib.suppress(DamagedError, NotFoundError):  # the shelf is not here, or a node there is lost
        for number in store._pool.newest(there.name, 1 << 62, _COMPARED):  # a copy may have gone on alone
            found = there.entry(number) if number < there.next and number not in compared else None
            if found is not None:
                _check_entry(store, there, found, url)


def _check_entry(store: Store, there: state.Shelf, entry: Entry, url: str) -> None:
    info = info_of(store, there.name, entry.number)
    if info is not None and (info["time_ns"], info["step"]) != (entry.time_ns, entry.step):
        raise ExistsError(
            f"{url} has another {there.name}@{entry.number} than {store.path}: the URL holds another run, or "
            "one of the pools is a copy that went on by itself. Push this one to another URL, or rename the shelf"
        )


def rename(draft: state.State, identity: str, name: str) -> bool:
    """Give the shelf of an identity another name; whether it is there and the name is free."""
    found = next((shelf for shelf in draft.shelves if shelf.identity == identity), None)
    if found is None or draft.find(name) is not None:
        return False
    found.name = name
    draft.shelves.sort(key=lambda one: one.name.encode())
    return True


def update(store: Store, draft: state.State, shelves: Iterable[str], mirror: bool) -> bool:
    """Bring the shelves of a state up to date; whether something changed.

    Metrics and notes of the newest entries are compared, with `mirror` of all. Only `mirror` takes removals over: a
    pool may lack snapshots because it was restored in part.
    """
    is_changed = False
    for name in shelves:
        there = draft.find(name)
        if there is not None:
            try:
                is_changed |= _update_shelf(store, there, mirror)
            except NotFoundError:  # removed meanwhile
                continue
    return is_changed


def _update_shelf(store: Store, there: state.Shelf, mirror: bool) -> bool:
    info = store._pool.shelf_info(there.name)
    old = there.policy, there.keep_raw, dict(there.tags)
    there.policy, there.keep_raw = info["policy"], info["keep_raw"]
    tags = store[there.name].tags
    for tag, number in list(there.tags.items()):
        if tag not in tags and info_of(store, there.name, number) is not None:
            del there.tags[tag]
    for tag, number in tags.items():
        entry = there.entry(number)
        if entry is not None and not entry.hidden:
            there.tags[tag] = number
    entries = there.entries() if mirror else iter(list(there.newest))
    changes: dict[int, Entry | None] = {}
    gone: set[int] = set()
    for entry in entries:
        now = info_of(store, there.name, entry.number)
        if now is None:
            if mirror and not entry.hidden and entry.number < info["next_number"]:  # else another copy has added it
                gone.add(entry.number)
            continue
        metrics, note = metrics_of(now), note_of(now)
        if (metrics, note) != (entry.metrics, entry.note):
            changes[entry.number] = entry._replace(metrics=metrics, note=note)
    if changes:
        there.update(changes)
    removed = remove(there, gone)
    return bool(changes) or removed or old != (there.policy, there.keep_raw, there.tags)


def remove(there: state.Shelf, numbers: set[int]) -> bool:
    """Remove entries; those that later ones need become hidden. Whether something changed."""
    if not numbers:
        return False
    for tag, number in list(there.tags.items()):
        if number in numbers:
            del there.tags[tag]
    changes: dict[int, Entry | None] = {}
    needed, by_archive = 0, False  # the number of the entry that a later one needs, and whether its key won't do
    shared = 1 << 62  # later keys have payloads of entries from this one on
    for entry in there.entries(backwards=True):
        is_needed = needed == entry.number
        if entry.hidden or entry.number in numbers:
            if not is_needed and entry.number < shared:
                changes[entry.number] = None
                continue
            spare = entry.spare or not is_needed
            if not entry.hidden or entry.spare != spare:
                changes[entry.number] = entry._replace(hidden=True, metrics={}, note="", sole=False, spare=spare)
            if not is_needed:
                continue
        if entry.key is not None and entry.key.first:
            shared = min(shared, entry.key.first)
        if entry.key is None or (is_needed and by_archive):
            needed, by_archive = entry.base, entry.deep
        else:
            needed = 0
    there.update(changes)
    return bool(changes)
