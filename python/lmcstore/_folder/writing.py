# SPDX-License-Identifier: BSD-3-Clause
"""Writing a run's snapshots: each rank prepares its part (`RankWriter`), the coordinator commits a record (`Records`).

A process keeps the pools that it writes open, so that each save continues the last one. At its end it commits its
prepared snapshots that have a record.

A coordinator that begins a save *fences* its earlier ones: their records can't be committed any more. That is why a
rank may drop a snapshot that it prepared for an earlier save and that has no record, once the coordinator has begun the
next one. Of two processes only one can be the coordinator, as it holds the pool of records open for writing.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _core
from .._state.encode import Encoded
from .._text.arguments import absolute, file_path
from .._text.caution import warn_of_creation
from ..errors import Error, InUseError, InvalidError, NotFoundError, UnsupportedError
from ..shelf import Shelf
from ..snapshot import Snapshot
from ..store import Store
from .groups import group_of, next_number, resolve, undecided
from .ranks import RECORDS, rank_file, rank_files
from .record import Part, Record, read_head

log = logging.getLogger("lmcstore")

_WAIT_MS = 10_000
_WATCH_MS = 250


class _Open:
    """The stores that this process keeps open, by path and mode."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self.stores: dict[tuple[str, bool], tuple[Store, tuple[int, int]]] = {}
        self.attempts: dict[str, int] = {}
        self.watches: dict[str, _Watch] = {}

    def store(self, path: str, writes: bool, creates: bool = False) -> Store:
        with self.lock:
            if self.pid != os.getpid():  # a forked child: the stores are its parent's
                self.stores, self.watches, self.pid = {}, {}, os.getpid()
            found = self.stores.get((path, writes))
            if found is not None and not found[0].closed:
                if found[1] == _identity(path):
                    return found[0]
                found[0].close()  # its file was replaced
            mode = _core.OPEN_READ if not writes else _core.OPEN_OR_CREATE if creates else _core.OPEN_WRITE
            pool = _core.open(path, mode, 0, _WAIT_MS)
            store = Store(pool, path, "r+" if writes else "r", creates)
            self.stores[path, writes] = store, _identity(path)
            return store

    def close(self, folder: str | None) -> None:
        with self.lock:
            watches = [path for path in self.watches if folder is None or os.path.dirname(path) == folder]
            for path in watches:
                self.watches.pop(path).end()
            for path, writes in list(self.stores):
                if folder is None or os.path.dirname(path) == folder:
                    self.stores.pop((path, writes))[0].close()


def _identity(path: str) -> tuple[int, int]:
    try:
        stat = os.stat(path)
    except OSError:
        return 0, 0
    return stat.st_dev, stat.st_ino


_open = _Open()


@atexit.register
def _close_all() -> None:
    if _open.pid == os.getpid():
        try:
            _open.close(None)
        except Error as error:
            log.error("a pool of a run was closed at last, with a failure: %s", error)


def folder_of(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a run's folder."""
    return absolute(file_path(path))


def close(folder: str) -> None:
    """Close the pools of a folder that this process keeps open."""
    _open.close(folder)


class Records:
    """The records of a run, in the process that coordinates its saves."""

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, RECORDS)
        is_new = not os.path.lexists(path)
        if is_new:
            if os.path.exists(folder) and not os.path.isdir(folder):
                raise InvalidError(f"{folder} is a file; a run of many ranks is a folder of pools")
            warn_of_creation(f"there is no run in {folder}. The save creates the folder and its pools")
            os.makedirs(folder, exist_ok=True)
        self._folder = folder
        self._store = _open.store(path, True, is_new)
        with _open.lock:
            self._attempt = _open.attempts.get(folder, 0) + 1
            _open.attempts[folder] = self._attempt

    def settle_others(self, shelf: str, world_size: int) -> None:
        """Settle the pools of ranks that take no part, unless another process writes them."""
        for name in rank_files(self._folder):
            digits = name.removeprefix("rank-").removesuffix(".pool")
            if digits.isdigit() and int(digits) < world_size:
                continue
            path = os.path.join(self._folder, name)
            try:
                pool = _core.open(path, _core.OPEN_WRITE, 0, 0, 1, _core.NO_BACKGROUND)
            except InUseError:
                continue
            except Error as error:
                log.warning("%s: undecided snapshots may be left: %s", path, error)
                continue
            try:
                _settle(pool, pool.info()["uuid"], shelf, self._store)
            finally:
                pool.close()

    def commit(
        self, shelf: str, record: Record, step: int | None, tags: Iterable[str], metrics: Mapping[str, float] | None
    ) -> Snapshot:
        """Commit a record durably: from now on the snapshot of the run exists."""
        with _open.lock:
            if _open.attempts.get(self._folder) != self._attempt:
                raise InvalidError(f"{self._folder}: a later save has begun, so this one can't be committed any more")
            return self._store[shelf].snapshot(record.state(), step=step, tags=tags, metrics=metrics)


class RankWriter:
    """The pool of a rank."""

    def __init__(self, folder: str, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._path = os.path.join(folder, rank_file(rank))
        if not os.path.lexists(os.path.join(folder, RECORDS)):
            raise UnsupportedError(
                f"rank {rank} sees no {RECORDS} in {folder}: all ranks of a run write to one folder of one machine"
            )
        self._store = _open.store(self._path, True, not os.path.lexists(self._path))

    def settle(self, shelf: str) -> None:
        """Commit or drop the snapshot that an earlier save prepared. The coordinator has begun a later one."""
        with _open.lock:
            watch = _open.watches.pop(self._path, None)
        if watch is not None:
            watch.end()
        _settle(self._store._pool, self._store._uuid, shelf, self._records())

    def prepare(self, shelf: str, state: dict[str, Any], step: int | None) -> tuple[Part, list[str]]:
        """Store a dict of tensors durably as a snapshot that the record will decide on; return their names, too."""
        pool, uuid = self._store._pool, self._store._uuid
        encoded = Encoded(state)
        group = group_of(uuid, shelf, next_number(pool, shelf))
        number = self._store.shelf(shelf, create=True)._prepare(encoded, group, step)
        log.debug("%s: %s@%d is prepared", self._path, shelf, number)
        return Part(uuid, rank_file(self._rank), number, group), encoded.names

    def commit(self, part: Part) -> None:
        """Commit the prepared snapshot, whose record is durable."""
        resolve(self._store._pool, part.group, True)

    def watch(self, shelf: str, part: Part) -> None:
        """Commit the prepared snapshot as soon as its record is durable."""
        with _open.lock:
            _open.watches[self._path] = _Watch(self._store, self._records(), shelf, part)

    def _records(self) -> Store:
        return _open.store(os.path.join(self._folder, RECORDS), False)


class _Watch:
    """A thread that waits for the record of a prepared snapshot."""

    def __init__(self, store: Store, records: Store, shelf: str, part: Part) -> None:
        self._ended = threading.Event()
        self._arguments = store, records, shelf, part
        self._thread = threading.Thread(target=self._run, name="lmcstore-commit", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread; it has committed the snapshot if there is a record."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        store, records, shelf, part = self._arguments
        try:
            seen = -1
            while True:
                is_last = self._ended.is_set()
                latest = _latest(records, shelf)
                if latest != seen and _has_record(records[shelf], part.pool, part.number, part.group):
                    resolve(store._pool, part.group, True)
                    return
                if is_last:
                    return
                seen = latest
                records._pool.follow(shelf, latest, 0, _WATCH_MS)
        except Error as error:
            log.warning("%s: %s@%d stays undecided until the next save: %s", store.path, shelf, part.number, error)


def _latest(records: Store, shelf: str) -> int:
    try:
        return int(records._pool.shelf_info(shelf)["latest"])
    except NotFoundError:
        return 0


def _settle(pool: _core.Pool, uuid: bytes, shelf: str, records: Store) -> None:
    """Commit or drop the prepared snapshots of a shelf, as the records say."""
    for number, group in undecided(pool, uuid, shelf):
        commit = _has_record(records[shelf], uuid, number, group)
        if resolve(pool, group, commit):
            log.info("%s of a save that %s", shelf, "was committed" if commit else "did not end: dropped")


def _has_record(records: Shelf, pool: bytes, number: int, group: bytes) -> bool:
    """Whether a record has the snapshot of a group. Numbers ascend in a pool, so records before a lower one lack it."""
    for snapshot in reversed(records):
        parts = [part for part in read_head(snapshot._decode()).ranks.values() if part.pool == pool]
        if any(part.group == group for part in parts):
            return True
        if any(part.number < number for part in parts):
            return False
    return False
