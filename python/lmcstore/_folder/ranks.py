# SPDX-License-Identifier: BSD-3-Clause
"""`Ranks`: the pools of a run folder's ranks, opened for reading when they are needed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from .. import _core
from .._remote.consent import Remote
from .._remote.left import PoolHandle
from .._text.similar import listed
from ..errors import DamagedError, NotFoundError
from ..store import Store
from .record import Part, Record

RECORDS = "records.pool"
RESTORING = "records.restoring"
_WAIT_MS = 10_000


def rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.pool"


def rank_files(folder: str) -> list[str]:
    """List the files of the ranks' pools in a folder, those with usual names first: others may be copies of them."""
    found = [name for name in os.listdir(folder) if name.startswith("rank-") and name.endswith(".pool")]
    return sorted(found, key=lambda name: (not name[5:-5].isdecimal(), name))


def lacking(folder: str) -> NotFoundError:
    """Describe a folder without records."""
    if is_restoring(folder):
        return NotFoundError(
            f"{folder} is not whole: the restore of the run did not end. Repeat lmc-store restore, or pull"
        )
    if not rank_files(folder):
        return NotFoundError(f"there is no run in {folder}")
    return NotFoundError(
        f"{folder} has pools of ranks, but lacks the records of the run: copy {RECORDS} into it, from another machine "
        "of the run or from a new folder that lmc-store pull makes"
    )


def with_source(error: DamagedError, path: str) -> DamagedError:
    """Return an error of a damaged record with the places of intact copies. `path`: of the pool of records."""
    return DamagedError(
        f"{error}. The {RECORDS} of another machine has this record, too, and so has the run at a URL that it was "
        f"pushed to: lmc-store scrub {path} --repair --from FILE-OR-URL"
    )


def is_restoring(folder: str) -> bool:
    """Whether lmc-store is restoring the folder, or was killed."""
    return os.path.lexists(os.path.join(folder, RESTORING))


def there(folder: str, shelf: str, record: Record) -> list[int]:
    """Return the ranks of a record whose pools are in a folder."""
    ranks = Ranks(folder, True, _core.NO_BACKGROUND)
    try:
        return [rank for rank, part in record.ranks.items() if ranks.has(shelf, part)]
    finally:
        ranks.close()


def run_url(url: str) -> str:
    """Return the URL of a run by that of a sub-run."""
    return url.rpartition("/")[0]


def away(address: str, url: str, folder: str) -> str:
    """Say that parts of a snapshot have left for a sub-run, and the remedy."""
    return f"{address} has parts that are remote, at {url}: fetch it by lmc-store pull {run_url(url)} {folder}"


class RankNotFoundError(NotFoundError):
    """A rank's pool, or its snapshot, is missing."""


class Ranks:
    """The pools are found by their uuids or by their parts (store/RUNS.md), also under other names.

    Parts that have left them are read from their URLs. A forked child opens them anew.
    """

    def __init__(self, folder: str, verify: bool, flags: int, remote: Remote = None) -> None:
        self._folder = folder
        self._remote = remote
        self._verify = verify
        self._flags = flags
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._pools: dict[bytes, tuple[str, _core.Pool]] = {}
        self._stores: dict[bytes, Store] = {}
        self.failures: dict[str, DamagedError] = {}
        """Of files that can't be read as pools."""

    def snapshot(self, rank: int, part: Part, shelf: str, wanted: list[str]) -> _core.Snapshot:
        """Open the snapshot of a rank, committed or still prepared. The errors name the tensors that are wanted."""
        pool = self._pool(rank, shelf, part, wanted)
        try:
            handle = _find(pool, shelf, part, self._verify)
        except NotFoundError as error:
            raise RankNotFoundError(f"rank {rank}'s snapshot is gone{_with(wanted)}: {error}") from None
        return cast(_core.Snapshot, PoolHandle(self._store(pool), handle))

    def _store(self, pool: _core.Pool) -> Store:
        """Return a store of a pool, which reads what has left it."""
        info = pool.info()
        with self._lock:
            store = self._stores.get(info["uuid"])
            if store is None or store._pool is not pool:
                store = self._stores[info["uuid"]] = Store(pool, info["path"], "r", verify=self._verify)
                store._finalizer.detach()
                store._remote, store._remote_share = self._remote, max(1, len(rank_files(self._folder)))
            return store

    def urls(self, shelf: str, record: Record) -> list[str]:
        """Return the URLs of the sub-runs for which parts of a record have left the pools that are there."""
        found = set()
        for rank, part in record.ranks.items():
            with contextlib.suppress(NotFoundError):
                found.add(self.snapshot(rank, part, shelf, []).info()["remote"])
        return sorted(found - {None})

    def all(self) -> Iterator[tuple[str, _core.Pool]]:
        """Yield the names and the pools of all files; those that can't be read are in `failures`."""
        files = rank_files(self._folder)
        self.failures = {name: failure for name, failure in self.failures.items() if name in files}
        for name in files:
            try:
                with self._lock:
                    pool = self._readable(name)[1]
            except DamagedError:
                continue
            yield name, pool

    def open(self, name: str) -> _core.Pool:
        """Open the pool of a file."""
        with self._lock:
            return self._opened(name)[1]

    def has(self, shelf: str, part: Part) -> bool:
        """Whether the pool of a rank's snapshot is there."""
        with self._lock:
            return self._find(shelf, part) is not None

    def pool(self, rank: int, shelf: str, part: Part) -> _core.Pool:
        """Open the pool of a rank's snapshot."""
        return self._pool(rank, shelf, part, [])

    def _pool(self, rank: int, shelf: str, part: Part, wanted: list[str]) -> _core.Pool:
        with self._lock:
            found = self._find(shelf, part)
        if found is None:
            failure = self.failures.get(part.file)
            remedy = "copy it into the folder" if failure is None else f"it is there, but {failure}"
            raise RankNotFoundError(
                f"{self._folder} lacks the pool of rank {rank}, {part.file}{_with(wanted)}: {remedy}"
            )
        return found

    def _find(self, shelf: str, part: Part) -> _core.Pool | None:
        if self._pid != os.getpid():
            self._pools, self._stores, self._pid = {}, {}, os.getpid()
        if part.pool in self._pools:
            return self._pools[part.pool][1]
        files = rank_files(self._folder)
        named, others = ([name for name in files if (name == part.file) is is_named] for is_named in (True, False))
        for names, by_uuid, by_group in ((named, True, True), (others, True, False), (others, False, True)):
            for name in names:
                with contextlib.suppress(DamagedError, NotFoundError):
                    uuid, pool = self._readable(name)
                    if by_uuid and uuid == part.pool:
                        return pool
                    if by_group and pool.find_group(shelf, part.group, False) is not None:
                        return pool
        return None

    def _readable(self, name: str) -> tuple[bytes, _core.Pool]:
        self.failures.pop(name, None)
        try:
            return self._opened(name)
        except DamagedError as error:
            self.failures[name] = error
            raise

    def _opened(self, name: str) -> tuple[bytes, _core.Pool]:
        path = os.path.join(self._folder, name)
        for uuid, (known, pool) in self._pools.items():
            if known == path:
                return uuid, pool
        pool = _core.open(path, _core.OPEN_READ, 0, _WAIT_MS, 0, self._flags)
        uuid = pool.info()["uuid"]
        self._pools.setdefault(uuid, (path, pool))
        return uuid, pool

    @staticmethod
    def map(function: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
        """Call a function with each value."""
        return list(map(function, values))

    def close(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                for _, pool in self._pools.values():
                    pool.close()
                for store in self._stores.values():
                    for remote in store._remotes.values():
                        remote.close()
            self._pools, self._stores = {}, {}


def _find(pool: _core.Pool, shelf: str, part: Part, verify: bool) -> _core.Snapshot:
    """Find a part by its number, which most have, or by its group, for which others are read."""
    with contextlib.suppress(NotFoundError):
        handle = pool.find(shelf, str(part.number), verify)
        if handle.info()["group"] == part.group:
            return handle
    return pool.find_group(shelf, part.group, verify)


def _with(wanted: list[str]) -> str:
    return f", with {listed(wanted)}" if wanted else ""
