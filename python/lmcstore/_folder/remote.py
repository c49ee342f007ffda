# SPDX-License-Identifier: BSD-3-Clause
"""A run of many ranks in an object store: its records, and a sub-run for each rank's pool (store/REMOTE.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .._remote import state
from .._remote.codec import Entry, rank_of
from .._remote.place import Place, forked
from .._remote.pool import RemoteHandle, RemotePool
from .._remote.pull import Progress
from .._remote.verify import verify
from .._remote.which import numbers_of
from .._text.similar import listed
from ..errors import DamagedError, InvalidError, NotFoundError, ReadOnlyError
from .ranks import RankNotFoundError
from .store import FolderStore

if TYPE_CHECKING:
    from ..store import Store
    from .record import Part, Record


_CHECKED_BYTES = 1 << 30
_PARALLEL = 8


# Reading in place


class RemoteRanks:
    """The sub-runs of a run, in place of `Ranks`; each is opened when it is needed."""

    def __init__(self, records: RemotePool, verify: bool) -> None:
        self._records, self._url, self._verify = records, records.url, verify
        self._pools: dict[str, RemotePool] = {}
        self.failures: dict[str, DamagedError] = {}
        self._closed = False
        self.renew()
        forked.add(self)

    def renew(self) -> None:
        self._lock = threading.Lock()

    @property
    def _names(self) -> list[str]:
        return self._records._state.ranks or []

    def _opened(self, name: str) -> RemotePool:
        with self._lock:
            if self._closed:
                raise InvalidError(f"{self._url}: the store is closed")
            found = self._pools.get(name)
        if found is not None:
            return found
        made = self._records.below(name, 1 + len(self._names))
        with self._lock:
            found = self._pools.setdefault(name, made)
        if found is not made:
            made.close()
        return found

    def _found(self, rank: int, shelf: str, part: Part, wanted: list[str]) -> tuple[RemotePool, Entry]:
        names = [name for name in self._names if rank_of(name) == rank]
        failures: list[str] = []
        for name in names:
            try:
                pool = self._opened(name)
                entry = pool._state.part(shelf, part.number, part.group)
            except (DamagedError, NotFoundError) as error:
                failures.append(str(error))
                continue
            if entry is not None:
                return pool, entry
        what = f", with {listed(wanted)}" if wanted else ""
        cause = f": {'; '.join(failures)}" if failures else ""
        raise RankNotFoundError(
            f"{self._url} lacks the part of rank {rank}{what}, in {listed(names)}{cause}. If it was "
            "removed meanwhile, open the run again; if it is lost, push --repair sends again what the pools have"
        )

    def snapshot(self, rank: int, part: Part, shelf: str, wanted: list[str]) -> RemoteHandle:
        pool, entry = self._found(rank, shelf, part, wanted)
        return pool.find(shelf, str(entry.number), self._verify)

    def pool(self, rank: int, shelf: str, part: Part) -> RemotePool:
        return self._found(rank, shelf, part, [])[0]

    def has(self, shelf: str, part: Part) -> bool:
        return any(pool._state.part(shelf, part.number, part.group) is not None for _, pool in self.all())

    def urls(self, shelf: str, record: Record) -> list[str]:
        """Return none: its parts are where they are read."""
        return []

    def all(self) -> Iterator[tuple[str, RemotePool]]:
        for name in self._names:
            yield name, self._opened(name)

    @staticmethod
    def map(function: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
        """Call a function with each value, in threads."""
        with ThreadPoolExecutor(_PARALLEL, "lmcstore-ranks") as threads:
            return list(threads.map(function, values))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for pool in self._pools.values():
                pool.close()


class RemoteFolder(FolderStore):
    """A run of many ranks in an object store, read as one store."""

    def __init__(self, pool: RemotePool, url: str, verify: bool) -> None:
        records: Any = pool
        super().__init__(records, url, verify=verify)
        ranks: Any = RemoteRanks(pool, verify)
        self._ranks = ranks

    def _check_writable(self) -> None:
        raise ReadOnlyError(f"{self._path} is a run in an object store, which is only read: pull it into a folder")


# Checks


def verify_run(
    place: Place, what: Iterable[str], create: Callable[[str], Store], progress: Progress | None = None
) -> dict[str, Any]:
    """Verify the records and the parts of all ranks: as `verify`, with the numbers and steps of the run's snapshots."""
    done = verify(place, what, create, progress)
    damages: list[dict[str, Any]] = done["damages"]
    unreadable = {(damage["shelf"], damage["number"]) for damage in damages}
    parts: dict[str, dict[tuple[str, int], tuple[int, dict[str, Any]]]] = {}

    def find(shelf: str, entry: Entry) -> None:
        """Find the parts of a snapshot."""
        named = {"shelf": shelf, "number": entry.number, "step": entry.step}
        try:
            ranks = store[shelf]._taken(entry.number)._record_alone().record.ranks
        except (DamagedError, NotFoundError) as error:
            damages.append({**named, "message": str(error)})
            return
        for rank, part in ranks.items():
            try:
                found, own = store._ranks._found(rank, shelf, part, [])  # type: ignore[attr-defined]
            except RankNotFoundError as error:
                damages.append({**named, "message": str(error)})
            else:
                parts.setdefault(found.url, {})[shelf, own.number] = rank, named

    with RemoteFolder(RemotePool(place.url, _CHECKED_BYTES, create), place.url, True) as store:
        for there, numbers in numbers_of(store._pool._state, what):  # type: ignore[attr-defined]
            for entry in filter(None, map(there.entry, numbers)):
                if (there.name, entry.number) not in unreadable:
                    find(there.name, entry)
    for url, wanted in parts.items():
        with Place(url) as below:
            one = verify(below, [f"{shelf}@{number}..{number}" for shelf, number in wanted], create, progress)
        done["bytes_read"] += one["bytes_read"]
        for damage in one["damages"]:
            rank, named = wanted[damage["shelf"], damage["number"]]
            damages.append({**named, "message": f"rank {rank}: {damage['message']}"})
    if damages:
        damages[:] = _still_there(state.read(place), damages)
    damages.sort(key=lambda damage: (damage["shelf"], damage["number"]))
    return done


def _still_there(now: state.State, damages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the damages of snapshots that were not removed meanwhile."""
    for damage in damages:
        there = now.find(damage["shelf"])
        entry = there.entry(damage["number"]) if there is not None else None
        if entry is not None and not entry.hidden:
            yield damage
