# SPDX-License-Identifier: BSD-3-Clause
"""`Operations`: changes of a run's folder that no rank writes: of the records, and of the ranks' pools.

A removal is recorded first: the record goes, and then the parts. Parts whose pool is in use, or not there, go when a
rank opens it for the next time.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from .. import _core
from .._text.similar import listed
from ..errors import DamagedError, Error, ExistsError, InUseError, NotFoundError, RemoteError
from ..snapshot import Progress
from ..store import Store
from .ranks import away, rank_files, there
from .record import Part, Record
from .removed import Removed
from .writing import budget_bytes, has_budget, newest_record, settle

log = logging.getLogger("lmcstore")

OF_RECORDS = ("budget", "grace", "keep")
"""Words of a policy that the records decide on."""


def policy_words(words: str) -> tuple[str, str]:
    """Divide a policy into the words of the records and those of the ranks' pools."""
    kept = [word for word in words.split() if word.partition("=")[0] in OF_RECORDS]
    return " ".join(kept), " ".join(word for word in words.split() if word not in kept)


def check_policy(records: _core.Pool, shelf: str, words: str) -> None:
    """Check all words of a run's policy, before the first change. InvalidError: one is wrong."""
    try:
        records.prune(shelf, words, True)
    except NotFoundError:  # the words make the shelf
        _core.policy_change("", words)


def joined_policy(records: str, ranks: str) -> str:
    """Return the policy of a run by those of its records and of a rank's pool."""
    own = [word for word in records.split() if word.partition("=")[0] in OF_RECORDS]
    return " ".join([*(word for word in ranks.split() if word.partition("=")[0] not in OF_RECORDS), *own])


class Operations:
    """Opens the ranks' pools for writing, all of them when the first is needed."""

    def __init__(self, folder: str, records: Store, flags: int, threads: int) -> None:
        self._folder = folder
        self.records = records
        self._flags = flags
        self._threads = threads or 1
        self._stores: dict[str, Store] | None = None

    def settle(self) -> None:
        """Decide on what unfinished saves have left in the pools, and remove parts whose records were removed.

        NotFoundError: pools are missing, so that another machine may have newer records.
        """
        for shelf in self.records:
            newest = newest_record(self.records[shelf])
            known = [] if newest is None else there(self._folder, shelf, newest)
            if newest is not None and len(known) < len(newest.ranks):
                missing = [part.file for rank, part in newest.ranks.items() if rank not in known]
                raise NotFoundError(
                    f"{self._folder} lacks {listed(missing)} of the run, and can't be changed: copy all pools of the "
                    "run into one folder, or pull them into a new one, or open this one with mode 'r'"
                )
        for store in self.stores():
            for shelf in {name for _, name, _ in store._pool.groups()}.intersection(self.records):
                settle(store._pool, shelf, self.records)
        self.collect()

    def collect(self) -> None:
        """Remove parts whose records were removed. Those of a pool in which that fails are left."""
        for store in self.stores():
            try:
                for shelf in store.shelves():
                    if shelf in self.records:
                        Removed(lambda: self.records, store, shelf).collect()
            except Error as error:
                log.warning("%s: parts of removed snapshots are left: %s", store.path, error)

    def compact(self, progress: Progress | None, finished: bool, only: str | None) -> None:
        """Compact the ranks' pools after the records, of which some may be gone; then keep the budget of the run."""
        self.collect()
        self.each(
            lambda store: (
                store._pool.compact(progress, finished, only)
                if only is None or only in store
                else store.compact(progress)
            )
        )
        for shelf in self.records:
            while has_budget(self.records._pool, shelf):
                stores = self.stores(True)
                if not self.records._pool.prune_budget(shelf, budget_bytes(store._pool for store in stores)):
                    break
                self.collect()
                self.each(lambda store: store.compact(progress))

    def stores(self, all_of_them: bool = False) -> list[Store]:
        """Return the pools that can be written. InUseError, DamagedError: one can't, and all of them are needed."""
        if self._stores is None or all_of_them:
            self._stores = {} if self._stores is None else self._stores
            for name in rank_files(self._folder):
                path = os.path.join(self._folder, name)
                if name in self._stores:
                    continue
                try:
                    pool = _core.open(path, _core.OPEN_WRITE, 0, 0, self._threads, self._flags | _core.NO_BACKGROUND)
                except (DamagedError, InUseError) as error:
                    if all_of_them:
                        raise
                    log.warning("%s: it is left as it is: %s", path, error)
                    continue
                self._stores[name] = Store(pool, path, "r+")
        return list(self._stores.values())

    def remove(self, shelf: str, records: Iterable[Record], dry_run: bool) -> list[int]:
        """Remove the parts of snapshots; return the sums of `Removal`."""
        stores = self.stores()
        total = [0, 0, 0]
        for part in (part for record in records for part in record.ranks.values()):
            store, handle = _found(stores, shelf, part)
            if store is None:
                log.warning("%s: a part in %s is left until a rank opens that pool", self._folder, part.file)
            if store is None or handle is None:
                continue
            try:
                removed = store._pool.remove(shelf, handle.info()["number"], dry_run)
            except NotFoundError:
                continue
            total = [one + other for one, other in zip(total, removed, strict=True)]
        return total

    def fork(self, shelf: str, record: Record, name: str) -> None:
        """Fork the parts of a snapshot."""
        stores = self.stores(True)
        found = {rank: _found(stores, shelf, part) for rank, part in record.ranks.items()}
        for _, handle in found.values():
            if handle is not None and (url := handle.info()["remote"]) is not None:
                raise RemoteError(away(f"the snapshot of {shelf!r}", url, self._folder))
        for rank, part in record.ranks.items():
            store, handle = found[rank]
            if store is None:
                raise NotFoundError(
                    f"{self._folder} lacks the pool of rank {rank}, {part.file}: copy it into the folder"
                )
            if handle is None:
                raise NotFoundError(f"{store.path} lacks rank {rank}'s part of the snapshot")
            try:
                handle.fork(name)
            except ExistsError:  # of an earlier fork that did not end
                if not self._is_fork(store._pool, name, part.group):
                    raise

    def _is_fork(self, pool: _core.Pool, name: str, group: bytes) -> bool:
        try:
            pool.find_group(name, group, False)
        except Error:
            return False
        return len(pool.numbers(name, 1, 2)) == 1

    def drop(self, shelf: str, dry_run: bool) -> dict[str, Any]:
        """Drop a shelf of all ranks' pools that have it, with its prepared snapshots."""

        def drop_one(store: Store) -> Any:
            for group, name, _ in store._pool.groups():
                if name == shelf and not dry_run:
                    store._pool.resolve(group, False)
            return store[shelf].drop(dry_run=dry_run) if shelf in store else None

        return self.each(drop_one)

    def each(self, function: Callable[[Store], Any]) -> dict[str, Any]:
        """Call a function with the store of each rank's pool; return the results by the files' names."""
        return {os.path.basename(store.path): function(store) for store in self.stores(True)}

    def close(self) -> None:
        """Close the pools."""
        for store in (self._stores or {}).values():
            store.close()
        self._stores = None


def _found(stores: list[Store], shelf: str, part: Part) -> tuple[Store | None, _core.Snapshot | None]:
    """Find the store of a part's pool, and the part; None: it is not there."""
    own = [store for store in stores if store._uuid == part.pool]
    for store in own or sorted(stores, key=lambda store: os.path.basename(store.path) != part.file):
        with contextlib.suppress(NotFoundError):
            return store, store._pool.find_group(shelf, part.group, False)
    return (own[0] if own else None), None
