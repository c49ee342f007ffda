# SPDX-License-Identifier: BSD-3-Clause
"""Repairs a run in an object store from a pool, and a pool from a run."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import DamagedError, NotFoundError, UnsupportedError
from . import agree, mend, state
from .codec import Archive, Entry
from .place import Place
from .pull import Puller
from .verify import Verifier

if TYPE_CHECKING:
    from ..store import Store
    from .push import Pusher

log = logging.getLogger("lmcstore")

_NO_NUMBER = 10**17
"""Above all numbers: a range from here on reads no nodes."""
_DAMAGE = (DamagedError, NotFoundError, UnsupportedError)


def repair(pusher: Pusher, create: Callable[[str], Store]) -> dict[str, Any]:
    """Mend nodes; restore each snapshot of the run into a temporary pool; send unreadable ones anew.

    Returns ``repaired``, and ``left``: a dict for each snapshot that stays unreadable, with ``shelf``, ``number`` and
    ``message``.
    """
    repaired, left = 0, list[dict[str, Any]]()
    sound = []
    for wanted in pusher._wanted():
        there = pusher._state.find(wanted.shelf)
        if there is None:
            continue
        agree.check_same(pusher._store, there, pusher._place.url)
        repaired += mend.nodes(pusher, wanted.shelf)
        mend.marks(pusher, wanted.shelf)
        sound.append(wanted)
    none = [f"{wanted.shelf}@{_NO_NUMBER}.." for wanted in sound[:1]]
    if not sound:
        return {"repaired": repaired, "left": left}
    with (
        tempfile.TemporaryDirectory(prefix="lmc-store-") as folder,
        create(os.path.join(folder, "checked.pool")) as store,
        create(os.path.join(folder, "keys.pool")) as keys,
    ):
        verifier = Verifier(store, pusher._place, none, inspects=True)
        verifier.keys = Verifier(keys, pusher._place, none, inspects=True)
        for wanted in sound:
            there = pusher._state.shelf(wanted.shelf)
            for old in list(there.entries(wanted.first, wanted.last)):
                entry = pusher._state.shelf(wanted.shelf).entry(old.number)
                if entry is None or entry.spare:
                    continue
                try:
                    repaired += _checked(pusher, verifier, wanted.shelf, entry)
                except _DAMAGE as error:
                    if not entry.hidden:
                        left.append({"shelf": wanted.shelf, "number": entry.number, "message": str(error)})
    return {"repaired": repaired, "left": left}


def _checked(pusher: Pusher, verifier: Verifier, shelf: str, entry: Entry) -> int:
    """Check an archive and its key, and send them anew if they are damaged; return how many were."""
    repaired = 0
    try:
        is_readable = verifier.check_archive(pusher._state.shelf(shelf), entry)
    except _DAMAGE as error:
        entry = _replaced(pusher, verifier, shelf, entry, error)
        is_readable = True
        repaired += 1
    if entry.key is not None:
        try:
            verifier.check_key(pusher._state.shelf(shelf), entry)
        except _DAMAGE:
            key = _key(pusher, shelf, entry)
            if key is None and not is_readable:  # undamaged tensors can be read by the key
                raise
            _replace(pusher, verifier, shelf, entry, entry._replace(key=key))
            repaired += 1
    return repaired


def _replaced(pusher: Pusher, verifier: Verifier, shelf: str, entry: Entry, error: Exception) -> Entry:
    """Send a snapshot anew: upon the one before, if that can be read, or whole."""
    there = pusher._state.shelf(shelf)
    last = there.entry(entry.base) if entry.base and _is_checked(verifier, shelf, entry.base) else None
    found = pusher.send(shelf, entry.number, last)
    if found is None or (found.time_ns, found.step) != (entry.time_ns, entry.step):
        raise type(error)(f"{error}. The pool does not have this snapshot")
    new = entry._replace(archive=found.archive, base=found.base, deep=found.deep)
    _replace(pusher, verifier, shelf, entry, new)
    there = pusher._state.shelf(shelf)
    new = there.entry(entry.number) or new
    verifier.check_archive(there, new)
    return new


def _replace(pusher: Pusher, verifier: Verifier, shelf: str, old: Entry, new: Entry) -> None:
    """Commit an entry in place of another. DamagedError: another snapshot could no longer be read."""
    made: dict[int, Archive | None] = {}  # a lost commit begins again

    def renewed(there: state.Shelf, entry: Entry) -> Archive | None:
        if entry.number not in made:
            made[entry.number] = _key(pusher, shelf, entry)
        if made[entry.number] is None and not entry.spare:
            _check_without_key(verifier.keys, there, entry, old.number, pusher._store.path)
        return made[entry.number]

    pusher.replace(shelf, old, new, renewed)


def _check_without_key(verifier: Verifier, there: state.Shelf, entry: Entry, number: int, path: str) -> None:
    """Restore a snapshot whose key had payloads of another one, by its archives."""
    try:
        try:
            verifier.check_archive(there, entry)
        finally:
            with contextlib.suppress(NotFoundError):  # nothing was restored
                verifier._forget(there.name, entry.number + 1)
    except _DAMAGE as error:
        name = f"{there.name}@{entry.number}"
        raise DamagedError(
            f"{there.name}@{number} is damaged, and was not sent anew: {name} can't be read without bytes of it, and "
            f"{path} lacks {name} ({error}). Pull {name} into the pool, and repeat push --repair"
        ) from None


def _is_checked(verifier: Verifier, shelf: str, number: int) -> bool:
    return shelf in verifier._store and number in verifier._store[shelf]


def _key(pusher: Pusher, shelf: str, entry: Entry) -> Archive | None:
    """Make a key anew; None: the pool lacks the snapshot."""
    try:
        made = pusher._make_key(shelf, entry.number) if _is_of(pusher._store, shelf, entry) else None
    except NotFoundError:
        return None
    return None if made is None else made.archive


def scrub(
    store: Store, what: Iterable[str], urls: Iterable[str], files: Iterable[str], create: Callable[[str], Store]
) -> dict[str, Any]:
    """Scrub and repair a pool, from files and then from runs; return the result of `Store.scrub`.

    A run whose snapshots of the damaged contents are others than the pool's is not read.
    """
    done = store.scrub(what or None, repair=True, sources=files)
    for url in urls:
        while done["lost"]:
            with tempfile.TemporaryDirectory(prefix=".scrub-", dir=os.path.dirname(store.path)) as folder:
                source = os.path.join(folder, "source.pool")
                with Place(url) as place, create(source) as copies:
                    if not _fetch(store, copies, place, done["list"]):
                        break
                again = store.scrub(what or None, repair=True, sources=[source])
            left = again["damages"] - again["repaired"]
            repaired = [one for one in done["list"] if one["state"] == "repaired"]
            done = again | {name: done[name] + again[name] for name in ("repaired", "bytes_read")}
            done |= {"damages": done["repaired"] + left, "list": repaired + again["list"]}
            if not again["repaired"]:
                break
    return done


def _fetch(store: Store, copies: Store, place: Place, damages: list[dict[str, Any]]) -> int:
    """Restore, of each loss, one snapshot that needs it and that the run has; return how many were tried."""
    now, tried = state.read(place), dict[str, bool]()
    for damage in damages:
        for address in _found(store, now, damage["holders"]) if damage["state"] == "lost" else ():
            if address not in tried:
                tried[address] = _is_restored(copies, place, address)
            if tried[address]:
                break
    return len(tried)


def _found(store: Store, now: state.State, holders: list[dict[str, Any]]) -> Iterator[str]:
    """Yield addresses of the holders' snapshots that the run has.

    Of each holder: the first snapshot, and those that do not rest on another, whose archive may be damaged.
    """
    for holder in holders:
        there, is_first = now.find(holder["shelf"]), True
        for entry in () if there is None else there.entries(holder["first"], holder["last"]):
            rests = entry.base != 0 and entry.key is None
            if (is_first or not rests) and not entry.hidden and _is_of(store, holder["shelf"], entry):
                is_first = False
                yield f"{holder['shelf']}@{entry.number}"


def _is_restored(copies: Store, place: Place, address: str) -> bool:
    try:
        Puller(copies, place, [address]).pull()
    except _DAMAGE as error:
        log.warning("%s", error)
        return False
    return True


def _is_of(store: Store, shelf: str, entry: Entry) -> bool:
    """Whether an entry is a snapshot of the pool."""
    found = agree.info_of(store, shelf, entry.number)
    return found is not None and (found["time_ns"], found["step"]) == (entry.time_ns, entry.step)
