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
import fcntl
import logging
import os
import struct
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from .. import _core
from .._state.encode import Encoded
from .._text.arguments import absolute, file_path
from .._text.caution import warn_of_creation
from ..errors import DamagedError, Error, InputOutputError, InUseError, InvalidError, UnsupportedError
from ..shelf import Shelf
from ..snapshot import Snapshot
from ..store import Store
from .ranks import RECORDS, is_restoring, lacking, rank_file, rank_files, with_source
from .record import Part, Record, read_head
from .removed import Removed

log = logging.getLogger("lmcstore")

_WAIT_MS = 10_000
_GROUP_BYTES = 16
_MARK = 1 << 58
"""The byte of the records that their coordinator locks (store/FORMAT.md, 11)."""

T = TypeVar("T")
Opener = Callable[[str, bool], Store]
"""Opens a pool for writing by its path, and creates it if the second argument is true."""


class _Open:
    """The stores that this process keeps open, by path and mode."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self.stores: dict[tuple[str, bool], tuple[Store, tuple[int, int]]] = {}
        self.attempts: dict[tuple[str, str], int] = {}
        self.removed: dict[tuple[str, str], Removed] = {}
        """By a rank's pool and a shelf."""
        self.prepared: dict[str, tuple[Store, Store, str]] = {}
        """By a rank's pool: itself, the records, and the shelf with an undecided snapshot."""
        self.marks: dict[str, int] = {}
        """By the records that this process coordinates: the file whose lock says so."""

    def store(self, path: str, writes: bool, creates: bool = False, opener: Opener | None = None) -> Store:
        with self.lock:
            if self.pid != os.getpid():  # a forked child: the stores are its parent's
                self.stores, self.prepared, self.removed, self.pid = {}, {}, {}, os.getpid()
            found = self.stores.get((path, writes))
            if found is not None and not found[0].closed:
                if found[1] == identity(path):
                    return found[0]
                found[0].close()  # its file was replaced
            try:
                if opener is not None:
                    store = _apart(opener, path, creates)
                elif writes:
                    mode = _core.OPEN_OR_CREATE if creates else _core.OPEN_WRITE
                    store = Store(_apart(_core.open, path, mode, 0, _WAIT_MS), path, "r+", creates)
                else:
                    store = Store(_core.open(path, _core.OPEN_READ, 0, _WAIT_MS), path, "r")
            except InUseError as error:
                raise InUseError(str(error).partition(". Each rank of a distributed run ")[0]) from None
            self.stores[path, writes] = store, identity(path)
            return store

    def mark(self, path: str) -> None:
        with self.lock:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _lock(file, fcntl.F_OFD_SETLK, fcntl.F_RDLCK)
            except OSError as error:
                os.close(file)
                raise InputOutputError(f"{path}: can't lock: {error.strerror}") from None
            old, self.marks[path] = self.marks.get(path), file
            if old is not None:
                os.close(old)

    def forget_marks(self) -> None:
        """In a forked child, which would keep the locks of its parent."""
        while self.marks:
            os.close(self.marks.popitem()[1])

    def _unmark(self, path: str) -> None:
        file = self.marks.pop(path, None)
        if file is not None:
            os.close(file)

    def hand_over(self, path: str) -> None:
        with self.lock:
            if self.pid == os.getpid() and (path, True) in self.stores:
                self._unmark(path)
                for writes in (True, False):  # while either is open, the process keeps the pool
                    if (path, writes) in self.stores:
                        self.stores.pop((path, writes))[0].close()

    def close(self, folder: str | None) -> None:
        with self.lock:
            for path in [path for path in self.prepared if folder is None or os.path.dirname(path) == folder]:
                store, records, shelf = self.prepared.pop(path)
                if records.closed:
                    records = self.store(os.path.join(os.path.dirname(path), RECORDS), False)
                settle(store._pool, shelf, records, False)
            for path, writes in list(self.stores):
                if folder is None or os.path.dirname(path) == folder:
                    if writes:
                        self._unmark(path)
                    self.stores.pop((path, writes))[0].close()
            for key in [key for key in self.removed if folder is None or os.path.dirname(key[0]) == folder]:
                del self.removed[key]


def _apart(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a thread of its own, for malloc's arena of that thread.

    libpmemobj keeps thousands of pieces for each pool. Among the tensors of the thread that trains, they would leave
    gaps in which those no longer fit.
    """
    try:
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(function, *arguments)
    except RuntimeError:  # no thread can be started, as at the end of the interpreter
        return function(*arguments)
    return future.result()


def identity(path: str) -> tuple[int, int]:
    """Return the device and the number of a file; zeros: there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return 0, 0
    return stat.st_dev, stat.st_ino


def _lock(file: int, command: int, kind: int) -> int:
    """Lock the byte of the mark, or look for a lock that another description has on it; return its kind."""
    form = "hhqqi4x"  # struct flock
    kinds: int = struct.unpack(form, fcntl.fcntl(file, command, struct.pack(form, kind, os.SEEK_SET, _MARK, 1, 0)))[0]
    return kinds


_open = _Open()
os.register_at_fork(after_in_child=_open.forget_marks)


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


def hand_over(folder: str) -> None:
    """Close the records of a folder, if this process has coordinated: another one does from now on."""
    _open.hand_over(os.path.join(folder, RECORDS))


class Records:
    """The records of a run, in the process that coordinates its saves."""

    def __init__(self, folder: str, shelf: str) -> None:
        path = os.path.join(folder, RECORDS)
        is_new = not os.path.lexists(path)
        if is_new:
            if os.path.exists(folder) and not os.path.isdir(folder):
                raise InvalidError(f"{folder} is a file; a run of many ranks is a folder of pools")
            if os.path.isdir(folder) and (rank_files(folder) or is_restoring(folder)):
                raise lacking(folder)
            warn_of_creation(f"there is no run in {folder}. The save creates the folder and its pools")
            os.makedirs(folder, exist_ok=True)
        self._folder = folder
        self._shelf = shelf
        self._ranks: Container[int] | None = None
        self._store = _open.store(path, True, is_new)
        _open.mark(path)
        with _open.lock:
            self._attempt = _open.attempts.get((folder, shelf), 0) + 1
            _open.attempts[folder, shelf] = self._attempt

    @property
    def store(self) -> Store:
        """The pool of records."""
        return self._store

    def newest(self) -> Record | None:
        """Read the newest record, without its tensors; None: there is none."""
        return newest_record(self._store[self._shelf])

    def settle_others(self, ranks: Container[int]) -> None:
        """Settle the pools of others than some ranks, unless another process writes them; remove parts there, too."""
        self._ranks = ranks
        known: dict[int, list[Part]] = {}
        for path in self._others():
            self._settle_other(path, known)

    def collect_others(self) -> None:
        """Remove parts whose records were removed from the pools of ranks that have no part in the saves."""
        known: dict[int, list[Part]] = {}
        for path in self._others():
            if self._is_named(path):
                self._settle_other(path, known, logging.DEBUG)

    def _others(self) -> list[str]:
        """List the pools of others than the ranks that save; none before `settle_others`."""
        if self._ranks is None:
            return []
        digits = {name: name.removeprefix("rank-").removesuffix(".pool") for name in rank_files(self._folder)}
        others = [name for name, one in digits.items() if not (one.isdigit() and int(one) in self._ranks)]
        return [os.path.join(self._folder, name) for name in others]

    def _is_named(self, path: str) -> bool:
        """Whether a record may have a part in a pool of others, by the last look."""
        removed = _open.removed.get((path, self._shelf))
        return removed is None or removed.is_named

    def _current(self) -> Store:
        return _open.store(os.path.join(self._folder, RECORDS), True)

    def _settle_other(self, path: str, known: dict[int, list[Part]], level: int = logging.WARNING) -> None:
        try:
            pool = _core.open(path, _core.OPEN_WRITE, 0, 0, 1, _core.NO_BACKGROUND)
        except InUseError:
            return
        except Error as error:
            log.log(level, "%s: undecided and removed snapshots may be left: %s", path, error)
            return
        store = Store(pool, path, "r+")
        try:
            settle(pool, self._shelf, self._store)
            if self._shelf in store and self._shelf in self._store:
                with _open.lock:
                    removed = _open.removed.get((path, self._shelf))
                    if removed is None or removed.own._uuid != store._uuid:
                        removed = _open.removed[path, self._shelf] = Removed(self._current, store, self._shelf)
                    removed.own = store
                    removed.collect(known)
        except Error as error:
            log.log(level, "%s: undecided and removed snapshots may be left: %s", path, error)
        finally:
            store.close()

    def commit(
        self,
        record: Record,
        step: int | None,
        tags: Iterable[str],
        metrics: Mapping[str, float] | None,
        meta: Mapping[str, Any] | None = None,
        parent: int | None = None,
    ) -> Snapshot:
        """Commit a record durably: from now on the snapshot of the run exists."""
        with _open.lock:
            if _open.attempts.get((self._folder, self._shelf)) != self._attempt:
                raise InvalidError(f"{self._folder}: a later save has begun, so this one can't be committed any more")
            shelf = self._store[self._shelf]
            saved = shelf.snapshot(record.state(), step=step, tags=tags, metrics=metrics, meta=meta, parent=parent)
            try:
                self._prune_for_budget()
            except Exception as error:  # the snapshot exists all the same
                log.warning("%s: no snapshot is removed for the budget: %s", self._folder, error)
            return saved

    def _prune_for_budget(self) -> None:
        """Remove some records if the pools of the folder exceed the budget; their parts go after the save."""
        if not has_budget(self._store._pool, self._shelf):
            return
        others = self._others()
        used: list[_core.Pool] = []
        unused: list[_core.Pool] = []
        for path in (os.path.join(self._folder, name) for name in rank_files(self._folder)):
            if path in others and not self._is_named(path):
                continue  # no removal frees bytes there
            try:
                (unused if path in others else used).append(_open.store(path, False)._pool)
            except Error as error:
                log.debug("%s: it does not count for the budget: %s", path, error)
        removed = self._store._pool.prune_budget(self._shelf, budget_bytes(used, unused))
        if removed:
            log.info("%s: %d snapshots are removed for the budget", self._folder, removed)


def opener_of(ranks: int, options: Mapping[str, Any], opens: Callable[..., Store]) -> Opener:
    """Return what opens the pool of one of the ranks of a machine, which share its memory.

    `options` are those of `opens`, which is `lmcstore.open`.
    """
    memory = max(1, _core.machine_memory() // 4 // ranks)  # of one pool: a quarter
    return lambda path, creates: opens(path, "x" if creates else "r+", **{"memory": memory, **options})


def _is_coordinated(path: str) -> bool:
    """Whether a process coordinates saves by these records. The look keeps nobody from writing."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputOutputError(f"{path}: {error.strerror}") from None
    try:
        return _lock(file, fcntl.F_OFD_GETLK, fcntl.F_WRLCK) != fcntl.F_UNLCK
    finally:
        os.close(file)


class RankWriter:
    """The pool of a rank."""

    def __init__(self, folder: str, rank: int, opener: Opener | None = None) -> None:
        self._folder = folder
        self._rank = rank
        self._path = os.path.join(folder, rank_file(rank))
        path = os.path.join(folder, RECORDS)
        if not _is_coordinated(path):
            raise UnsupportedError(
                f"rank {rank}: no coordinator writes {path}: it has another folder, or has ended. StoreWriter "
                "needs all ranks on one machine, in one folder; Run keeps a run on several machines"
            )
        self._store = _open.store(self._path, True, not os.path.lexists(self._path), opener)
        self._reads: Store | None = None

    def settle(self, shelf: str) -> None:
        """Commit or drop the snapshot that an earlier save prepared. The coordinator has begun a later one."""
        with _open.lock:
            _open.prepared.pop(self._path, None)
        settle(self._store._pool, shelf, self.records())

    def collect(self, shelf: str) -> None:
        """Remove the parts whose records were removed; what fails is tried again with the next save."""
        with _open.lock:
            removed = _open.removed.get((self._path, shelf))
            if removed is None or removed.own is not self._store:
                removed = _open.removed[self._path, shelf] = Removed(self.records, self._store, shelf)
            try:
                removed.collect()
            except Error as error:
                log.warning("%s: parts of removed snapshots are left: %s", self._path, error)

    def begin_shelf(self, shelf: str, policy: str) -> None:
        """Make a shelf with a policy, unless the pool has it."""
        if shelf not in self._store:
            self._store.shelf(shelf, create=True).policy = policy

    def prepare(
        self, shelf: str, state: dict[str, Any], step: int | None, copied: Callable[[], None] | None = None
    ) -> tuple[Part, list[str]]:
        """Store a dict of tensors durably as a snapshot that the record will decide on; return their names, too.

        `copied` is called once the tensors may change; if it raises, nothing is written.
        """
        part, encoded, _ = self.begin(shelf, state, step, copied=copied)
        return part, encoded.names

    def begin(
        self,
        shelf: str,
        state: Any,
        step: int | None,
        lazy: list[Any] | None = None,
        scale: float = 0.0,
        copied: Callable[[], None] | None = None,
    ) -> tuple[Part, Encoded, Snapshot]:
        """Store a state as a prepared snapshot, which is durable when its `wait` has returned."""
        group = os.urandom(_GROUP_BYTES)
        if self._reads is None or self._reads.closed:
            self._reads = self.records()
        taken, encoded = self._store.shelf(shelf, create=True)._prepare(
            state, group, step, lazy=lazy, scale=scale, copied=copied
        )
        _open.prepared[self._path] = self._store, self._reads, shelf  # not locked: a commit of a record may take long
        return Part(self._store._uuid, rank_file(self._rank), taken.number, group), encoded, taken

    def commit(self, part: Part) -> None:
        """Commit the prepared snapshot, whose record is durable."""
        self._store._pool.resolve(part.group, True)
        with _open.lock:
            _open.prepared.pop(self._path, None)

    def resolve(self, part: Part, commit: bool) -> None:
        """Commit or drop one of several prepared snapshots."""
        self._store._pool.resolve(part.group, commit)

    @property
    def store(self) -> Store:
        """The rank's pool."""
        return self._store

    def records(self) -> Store:
        """Open the records for reading."""
        return _open.store(os.path.join(self._folder, RECORDS), False)


def settle(pool: _core.Pool, shelf: str, records: Store, drops: bool = True) -> None:
    """Commit the prepared snapshots of a shelf that have a record, and drop the others, unless a damaged one may."""
    for group, name, number in pool.groups():
        if name != shelf:
            continue
        commit = _has_record(records[shelf], pool.info()["uuid"], number, group)
        if commit is None:
            log.warning(
                "%s: %s@%d stays undecided, since a damaged record may name it: mend or remove that record, which "
                "lmc-store verify names. Its message has the command",
                pool.info()["path"],
                shelf,
                number,
            )
            continue
        if commit or drops:
            pool.resolve(group, commit)
            log.info("%s@%d of a save that %s", shelf, number, "was committed" if commit else "did not end: dropped")


def has_budget(records: _core.Pool, shelf: str) -> bool:
    """Whether the policy of a shelf has a budget."""
    return " budget=" in records.shelf_info(shelf)["policy"]


def budget_bytes(pools: Iterable[_core.Pool], unused: Iterable[_core.Pool] = ()) -> int:
    """Return the bytes that the ranks' pools will have after the next snapshot, of which `unused` get no part."""
    infos = (pool.info() for pool in pools)
    total: int = sum(info["live_bytes"] + info["last_snapshot_bytes"] for info in infos)
    total += sum(pool.info()["live_bytes"] for pool in unused)
    return total


def newest_record(records: Shelf) -> Record | None:
    """Read the newest record of a shelf that is not damaged, without its tensors; None: there is none."""
    for snapshot in reversed(records):
        try:
            return read_head(snapshot._decode())
        except DamagedError as error:
            path = records.store.path
            log.warning("%s: %s is passed over: %s", path, snapshot._address, with_source(error, path))
    return None


def _has_record(records: Shelf, pool: bytes, number: int, group: bytes) -> bool | None:
    """Whether a record has the snapshot of a group; None: a damaged one may have it.

    Numbers ascend in a pool, so records before a lower one lack it.
    """
    without: bool | None = False
    for snapshot in reversed(records):
        try:
            parts = read_head(snapshot._decode()).ranks.values()
        except DamagedError:
            without = None
            continue
        if any(part.group == group for part in parts):
            return True
        if any(part.pool == pool and part.number < number for part in parts):
            break
    return without
