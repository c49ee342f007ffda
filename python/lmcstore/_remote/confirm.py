# SPDX-License-Identifier: BSD-3-Clause
"""Confirms copies at a URL, so that a pool may let its snapshots go (store/REMOTE.md, Tiers)."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import DamagedError, InUseError, NotFoundError, RemoteError
from . import consent, state
from .cache import Cache
from .codec import Entry
from .place import Place

if TYPE_CHECKING:
    from ..store import Store

log = logging.getLogger("lmcstore")

_AT_ONCE = 32
_ASKED_AGAIN_S, _WRONG_AGAIN_S, LOOK_AGAIN_S = 30.0, 3600.0, 60.0
_CACHE_BYTES = 1 << 30
_LOCAL = re.compile(r"\blocal=last:([0-9]+)\b")

Commit = Callable[[Callable[[state.State], bool]], None]


class Confirmer:
    """Compares copies with a pool, and tells its writer which are safe."""

    def __init__(self, store: Store, place: Place, *, whole: bool) -> None:
        self._store, self._place, self._whole = store, place, whole
        self._cache: Cache | None = None
        self._asked: dict[tuple[str, int], float] = {}
        self._seen: set[str] = set()
        self._first: dict[str, int] = {}  # numbers below have left, or stay
        self._begun = time.monotonic()

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()

    def confirm(self, shelf: str, commit: Commit, now: Callable[[], state.State], *, waits: bool) -> int:
        """Confirm the snapshots of a shelf that may go; return how many. Without `waits`: only when some have gathered.

        They are marked at the URL first, by a commit, so that nobody removes them there. DamagedError, NotFoundError: a
        copy is wrong, or lacks an object; without `waits` that is logged. RemoteError: the run is gone there.
        """
        epoch, infos = self.candidates(shelf, waits)
        return len(self.ask(shelf, epoch, self.sound(shelf, infos, commit, now, waits=waits)))

    def candidates(self, shelf: str, waits: bool) -> tuple[int, list[dict[str, Any]]]:
        """Return the epoch of the pool, and the properties of the snapshots that may leave it, oldest first."""
        try:
            epoch = self._store._pool.info()["epoch"]  # later changes are not confirmed
            return epoch, self._candidates(shelf, waits)
        except NotFoundError:  # the shelf is not there, or not any more
            return 0, []

    def sound(
        self,
        shelf: str,
        infos: list[dict[str, Any]],
        commit: Commit,
        now: Callable[[], state.State],
        *,
        waits: bool,
    ) -> set[int]:
        """Mark the copies of snapshots, then verify them; return the numbers of those that are sound."""
        if not infos or now().find(shelf) is None:
            return set()
        marked: set[int] = set()

        def mark(draft: state.State) -> bool:
            marked.clear()
            changed = draft.find(shelf)
            if changed is None:
                return False
            entries: dict[int, Entry | None] = {}
            for info in infos:
                entry = changed.entry(info["number"])
                if entry is not None and _is_copy(entry, info):
                    entries[entry.number] = entry._replace(sole=True)
                    marked.add(entry.number)
            changed.update(entries)
            return bool(entries)  # also if they have the mark: this commit comes after removals that it did not see

        state.check_there(now())
        commit(mark)
        there = now().find(shelf)
        if there is None:
            return set()
        sound = set()
        for number in sorted(marked):
            try:
                if self._is_sound(there, number):
                    sound.add(number)
            except (DamagedError, NotFoundError) as error:
                if waits:
                    raise
                log.error("%s@%d stays in the pool: %s", shelf, number, error)
                self._asked[shelf, number] = time.monotonic() + _WRONG_AGAIN_S
        return sound

    def ask(self, shelf: str, epoch: int, sound: set[int]) -> set[int]:
        """Ask the writer to let verified snapshots go; return the numbers of those that it was asked for."""
        if sound:
            consent.note(self._place.url)
        asked, later = set[int](), time.monotonic() + _ASKED_AGAIN_S
        self._asked.update(((shelf, number), later) for number in sound)
        for first, last in self._runs(shelf, sound):
            try:
                self._store._pool.safe(shelf, first, last, epoch, self._place.url)
            except InUseError:  # the writer is slow: later
                break
            asked.update(number for number in sound if first <= number <= last)
        return asked

    def _candidates(self, shelf: str, waits: bool) -> list[dict[str, Any]]:
        pool, now = self._store._pool, time.monotonic()
        info = pool.shelf_info(shelf)
        if not lets_go(info):
            return []
        stays = _stays(info)
        if now - self._begun > LOOK_AGAIN_S:  # tags may have gone, and objects
            self._first, self._begun = {}, now
            self._seen.clear()
        end = pool.newest(shelf, 1 << 63, stays)[-1]
        tagged = set(self._store[shelf].tags.values())
        found: list[dict[str, Any]] = []
        first, is_first = self._first.get(shelf, 1), True
        while len(found) < _AT_ONCE and (numbers := pool.numbers(shelf, first, 4096)):
            for number in numbers:
                if number >= end or len(found) == _AT_ONCE:
                    return found if waits or len(found) >= min(_AT_ONCE, 1 + stays // 8) else []
                one = pool.find(shelf, str(number), False).info()
                may_go = one["remote"] is None and number not in tagged and self._may_go(shelf, one)
                is_asked = now <= self._asked.get((shelf, number), 0.0)
                if may_go and not is_asked:
                    found.append(one)
                is_first = is_first and (is_asked or may_go is False)
                if is_first:
                    self._first[shelf] = number + 1
            first = numbers[-1] + 1
        return found

    def _may_go(self, shelf: str, info: dict[str, Any]) -> bool | None:
        """Whether a snapshot without tags may leave; None: not yet. Parts of runs: `_folder.remote_confirm`."""
        return not any(info["group"])

    def _is_sound(self, shelf: state.Shelf, number: int) -> bool:
        """Compare the copy with the pool's snapshot; False: that is gone. DamagedError: they differ."""
        if self._cache is None:
            self._cache = Cache(self._place, None, _CACHE_BYTES)
        try:
            here = sorted(self._store._pool.find(shelf.name, str(number), False).digests())
        except (NotFoundError, RemoteError):
            return False
        chain = shelf.chain(number)
        what = f"{shelf.name}@{number} of {self._place.url}"
        outline = self._cache.outlines(shelf.name, chain[-1:])[0]
        forms = [
            (outline.identities[identity - 1], outline.contents[content - 1].digest[::-1].hex())
            for identity, content in outline.entries
        ]
        there = [f"{digest} {identity.name}" for identity, digest in forms]
        if not set(here) <= set(there) or len(there) < len(here):
            raise DamagedError(f"{what} is not the snapshot of {self._store.path}, which keeps it")
        objects = {object for _, archive in chain for object in archive.objects()}
        if chain[0][1].first:
            key = self._cache.outlines(shelf.name, chain[:1])[0]
            objects |= {place[1] for place in key.located(chain[0][1])}
        self._check_objects(objects)
        names = [identity.name for identity, _ in forms if identity.kind != _core.ATTACHMENT]
        values = [identity.name for identity, _ in forms if identity.kind == _core.ATTACHMENT]
        chosen = names if self._whole else random.sample(names, min(1, len(names)))
        for name in chosen:
            self._cache.read(shelf, number, _core.TENSOR, {name: None})
        for name in values if self._whole else values[:1]:
            self._cache.read(shelf, number, _core.ATTACHMENT, {name: None})
        return True

    def _check_objects(self, objects: Iterable[str]) -> None:
        """NotFoundError: one is missing."""
        new = sorted(set(objects) - self._seen)
        for one in [self._place.start(self._place.head, name) for name in new]:
            one.result()
        self._seen.update(new)

    def _runs(self, shelf: str, sound: set[int]) -> Iterator[tuple[int, int]]:
        """Yield the first and last of confirmed snapshots between which the pool has no other."""
        pool, first, last = self._store._pool, 0, 0
        for number in pool.numbers(shelf, min(sound), 4096) if sound else []:
            if number in sound:
                first, last = first or number, number
            elif first:
                yield first, last
                first = 0
            if number >= max(sound):
                break
        if first:
            yield first, last


def lets_go(info: dict[str, Any]) -> bool:
    """Whether there are more snapshots of a shelf in the pool than its policy keeps there."""
    return bool(info["snapshot_count"] - info["remote_count"] > _stays(info))


def _stays(info: dict[str, Any]) -> int:
    """Return how many of the newest snapshots of a shelf stay in the pool by its policy."""
    local = _LOCAL.search(info["policy"])
    return int(max(int(local.group(1)), info["keep_raw"]) if local is not None else info["snapshot_count"])


def _is_copy(entry: Entry, info: dict[str, Any]) -> bool:
    return not entry.hidden and (entry.time_ns, entry.step) == (info["time_ns"], info["step"])
