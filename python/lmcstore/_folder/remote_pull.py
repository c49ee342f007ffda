# SPDX-License-Identifier: BSD-3-Clause
"""Restores a run of many ranks into a folder: the parts first, then the records (`_folder.dumps.Restore`)."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

from .._remote import state
from .._remote.codec import rank_of, sub_runs
from .._remote.place import Place
from .._remote.pull import Progress, Puller
from .._remote.which import numbers_of
from .._text.arguments import absolute
from ..errors import DamagedError, Error, NotFoundError
from ..store import Store
from .dumps import POOL, Restore, Wanted, ranges_of, records_of
from .ranks import RECORDS, is_restoring, lacking, rank_files
from .store import FolderStore, open_folder

log = logging.getLogger("lmcstore")


class _Pull(Restore):
    """The restore of a run from a place."""

    _remedy = "lmc-store push --repair sends again what the pools still have"

    def __init__(self, place: Place, what: Iterable[str], folder: str, progress: Progress | None, **run: Any) -> None:
        super().__init__([place.url], folder, 0, progress, **run)
        self._place, self._what = place, what
        self._allows = False
        self._made: Store | None = None
        self._ranges: list[str] = []

    def run(self, allow_missing: bool, move_tags: bool = False) -> dict[str, Any]:
        self._allows = allow_missing
        return super().run(allow_missing, move_tags)

    def _names(self) -> list[str]:
        now = state.read(self._place)
        list(numbers_of(now, self._what))  # NotFoundError before anything is made
        return now.ranks or []

    def _restore(self, store: Store, stem: str, move_tags: bool) -> dict[str, Any]:
        if stem == "records":
            if self._made is None:
                self._made = store
                return self._pull(store, self._place, self._what)
            return self._pull(store, self._place, self._ranges)  # without later ones, whose parts were not pulled
        with self._place.below(stem) as place:
            now = state.read(place)
            wanted = self._wanted(stem, now)
            try:
                return self._pull(store, place, wanted)
            except (DamagedError, NotFoundError):
                if not self._allows:
                    raise
            return self._pull_each(store, place, now, wanted)

    def _pull_each(self, store: Store, place: Place, now: state.State, wanted: list[str]) -> dict[str, Any]:
        """Pull parts one by one, without those that can't be read: `_missing` names these."""
        done: dict[str, Any] = {"contents": 0, "contents_found": 0, "bytes": 0, "warnings": []}
        for shelf, numbers in numbers_of(now, wanted):
            for number in numbers:
                try:
                    done["bytes"] += self._pull(store, place, [f"{shelf.name}@{number}"])["bytes"]
                except (DamagedError, NotFoundError) as error:
                    log.warning("%s", error)
        return done

    def _restore_rank(self, stem: str, file: str = "") -> None:
        try:
            with self._place.below(stem) as place:
                now = state.read(place)
                if not self._wanted(stem, now):
                    return
        except (DamagedError, NotFoundError) as error:
            if not self._allows:
                raise
            log.warning("%s", error)
            return
        super()._restore_rank(stem, self._file(stem, now))

    def _file(self, stem: str, now: state.State) -> str:
        """Return the file of the pool that has snapshots of a sub-run, or a free name.

        A rank's pool may have been begun anew, or have another name. A new folder has the names of the sub-runs.
        """
        usual = stem + POOL
        if self._records is None:
            return usual
        for name in sorted(self._stores, key=lambda name: name != usual):
            if _has_some(self._stores[name], now):
                return name
        names = itertools.chain([usual], (one + POOL for one in sub_runs(rank_of(stem))))
        return next(filter(self._is_free_name, names))

    def _is_free_name(self, name: str) -> bool:
        """Whether a file is not there, or a pool without shelves."""
        store = self._stores.get(name)
        return not os.path.lexists(self._path(name)) if store is None else not list(store)

    def _wanted(self, stem: str, now: state.State) -> list[str]:
        """Return the ranges of the parts that are in a sub-run."""
        assert self._made is not None
        found = set()
        for shelf, _, record in records_of(self._made):
            for part in record.ranks.values():
                entry = now.part(shelf, part.number, part.group)
                if entry is not None:
                    found.add(Wanted(stem, shelf, entry.number))
        return list(ranges_of(sorted(found)))

    def _missing(self, made: Store) -> Iterator[str]:
        """Seek the parts of all records; those that were removed at the place meanwhile are not restored."""
        if list(super()._missing(made)):
            now = state.read(self._place)
            for shelf, number, _ in list(records_of(made)):
                there = now.find(shelf)
                entry = there.entry(number) if there is not None else None
                if entry is None or entry.hidden:
                    made[shelf].remove(number)
        found = sorted(Wanted("", shelf, number) for shelf, number, _ in records_of(made))
        self._ranges = list(ranges_of(found))
        return super()._missing(made)

    def _absent(self, rank: int, error: Error) -> str:
        return f"that of rank {rank}"

    def _pull(self, store: Store, place: Place, what: Iterable[str]) -> dict[str, Any]:
        puller = Puller(store, place, what, self._progress)
        puller.pull()
        done = {"snapshots": puller.snapshots, "snapshots_skipped": puller.skipped, "bytes": puller.bytes}
        return done | {"contents": 0, "contents_found": 0, "warnings": []}


def _has_some(store: Store, now: state.State) -> bool:
    """Whether a pool has a part that is in a sub-run, also one that it let go."""
    for name in store:
        there = now.find(name)
        if there is None:
            continue
        for snapshot in store[name]:
            entry = there.entry(snapshot.number)
            if entry is not None and entry.of is not None and entry.of.group == snapshot._info["group"].hex():
                return True
    return False


def pull_run(
    folder: str | FolderStore,
    place: Place,
    what: str | Iterable[str] | None,
    progress: Progress | None,
    allow_missing: bool,
) -> dict[str, Any]:
    """Restore snapshots of a run into a folder, which is made, or is a run's."""
    addresses = () if what is None else (what,) if isinstance(what, str) else tuple(what)
    if isinstance(folder, FolderStore):
        operations = folder._operations()
        stores = {os.path.basename(store.path): store for store in operations.stores(True)}
        made = _Pull(place, addresses, folder.path, progress, records=operations.records, stores=stores)
        done = made.run(allow_missing)
    else:
        path = absolute(folder)
        if os.path.lexists(os.path.join(path, RECORDS)):
            with open_folder(path, writes=True) as store:
                return pull_run(store, place, addresses, progress, allow_missing)
        if os.path.isdir(path) and rank_files(path) and not is_restoring(path):
            raise lacking(path)
        done = _Pull(place, addresses, path, progress).run(allow_missing)
    return {name: done[name] for name in ("snapshots", "snapshots_skipped", "bytes", "missing")}
