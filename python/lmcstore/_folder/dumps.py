# SPDX-License-Identifier: BSD-3-Clause
"""Dumps of runs: a folder with an archive of the records, and one for each rank's pool (store/RUNS.md, "Dumps").

The records' archive is named last. Until then the folder of a dump by the command looks empty, so dumps lock their
folders. A restore into a new folder gives the records their name last, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import tempfile
import time
import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from .. import _core
from .._text.arguments import a_kind, absolute, file_path
from ..errors import (
    DamagedError,
    Error,
    ExistsError,
    InputOutputError,
    InUseError,
    NotFoundError,
    RemoteError,
    UnsupportedError,
)
from ..snapshot import Progress
from ..store import Store
from .ranks import RECORDS, RESTORING, RankNotFoundError, Ranks, away, is_restoring
from .record import Part, Record, read_head

if TYPE_CHECKING:
    from .store import FolderStore

ARCHIVE = ".archive"
POOL = ".pool"
_RECORDS_ARCHIVE = f"records{ARCHIVE}"
_WAIT_MS = 10_000
_COMMIT_S = 2.0
_MOMENT_S = 0.02


def paths_of(folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the absolute paths of one or several folders."""
    listed: list[Any] = list(folders) if isinstance(folders, list | tuple) else [folders]
    for folder in listed:
        if not isinstance(folder, str | os.PathLike):
            raise UnsupportedError(
                f"the dump of a run is a folder, which is named by its path, not by {a_kind(folder)}"
            )
    return [absolute(file_path(folder)) for folder in listed]


# Files


@contextlib.contextmanager
def _io(path: str) -> Iterator[None]:
    try:
        yield
    except Error:
        raise
    except OSError as error:
        raise InputOutputError(f"{path}: {error.strerror or error}") from None


def _sync_folder(path: str) -> None:
    with _io(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Lock a folder against another dump, as the command does. A file system without such locks is no error."""
    with _io(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = os.path.samestat(os.fstat(descriptor), os.stat(path))
        except (BlockingIOError, FileNotFoundError):  # another dump has it, or has just removed it
            is_free = False
        except OSError:
            is_free = True
        if not is_free:
            raise InUseError(f"another dump writes {path}: dump into another folder")
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # forked children may have the descriptor
        os.close(descriptor)


class _NewFile:
    """A file that gets its name when it is whole and durable."""

    def __init__(self, path: str) -> None:
        self.path = path
        with _io(path):
            self.descriptor, self._temporary = tempfile.mkstemp(prefix=".lmc-store-", dir=os.path.dirname(path))

    def commit(self) -> None:
        with _io(self.path):
            os.fsync(self.descriptor)
            os.rename(self._temporary, self.path)
        _sync_folder(os.path.dirname(self.path))

    def close(self) -> None:
        os.close(self.descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)


@contextlib.contextmanager
def _opened(folders: Iterable[str], name: str, must_be: bool = False) -> Iterator[tuple[int, ...]]:
    """Open the archives of a name in the folders that have one."""
    with contextlib.ExitStack() as stack:
        found = []
        for folder in folders:
            path = os.path.join(folder, name)
            if not os.path.lexists(path):
                if must_be:
                    raise NotFoundError(f"{folder} lacks {name}: it is no dump of a run, or the dump did not end")
                continue
            with _io(path):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            found.append(descriptor)
        yield tuple(found)


def _warned(report: dict[str, Any]) -> list[str]:
    lines: list[str] = report["warnings"].splitlines()
    for line in lines:
        warnings.warn(line, stacklevel=5)
    return lines


# Dumps


class Wanted(NamedTuple):
    """A part in a rank's pool."""

    path: str
    shelf: str
    number: int


class Dump:
    """The dump of an open run."""

    def __init__(self, store: FolderStore, folder: str, since: Sequence[str], progress: Progress | None) -> None:
        self._store = store
        self._folder = folder
        self._since = since
        self._progress = progress
        self._made: list[str] = []
        self._missing: list[str] = []
        self._report: dict[str, Any] = {}

    def run(self, what: tuple[str, ...], allow_missing: bool) -> dict[str, Any]:
        """Write the dump. A failure leaves nothing."""
        self._make_folder()
        with _locked(self._folder):
            self._check_empty()
            try:
                self._write(what, allow_missing)
            except BaseException:
                for path in self._made:
                    os.unlink(path)
                with contextlib.suppress(OSError):
                    os.rmdir(self._folder)
                raise
        return self._report | {"archives": len(self._made) + 1, "missing": self._missing}

    def _make_folder(self) -> None:
        with _io(self._folder):
            try:
                os.mkdir(self._folder)
            except FileExistsError:
                if not os.path.isdir(self._folder):
                    self._exists()
        _sync_folder(os.path.dirname(self._folder))

    def _check_empty(self) -> None:
        with _io(self._folder):
            if os.listdir(self._folder):
                self._exists()

    def _exists(self) -> NoReturn:
        raise ExistsError(
            f"{self._folder} exists: dump into a new folder. If a dump that was cut short left it, remove it"
        ) from None

    def _write(self, what: tuple[str, ...], allow_missing: bool) -> None:
        file = _NewFile(os.path.join(self._folder, _RECORDS_ARCHIVE))
        try:
            addressed = self._addressed(what) if self._since else set()
            self._report = self._dump(self._store._pool, what, _RECORDS_ARCHIVE, file, must_be=True)
            os.lseek(file.descriptor, 0, os.SEEK_SET)
            sent = {(one["shelf"], one["number"]) for one in _core.archive_ls(file.descriptor)["snapshots"]}
            parts = sorted([*self._parts(sorted(sent)), *self._older_parts(addressed - sent)])
            if self._missing and not allow_missing:
                raise NotFoundError(
                    f"{self._store.path} lacks {len(self._missing)} parts of snapshots: {self._missing[0]}. "
                    "allow_missing=True leaves out what is missing"
                )
            for path, some in itertools.groupby(parts, lambda part: part.path):
                self._dump_rank(path, list(some))
            file.commit()
        finally:
            file.close()

    def _dump(
        self, pool: _core.Pool, what: tuple[str, ...], name: str, file: _NewFile, must_be: bool = False
    ) -> dict[str, Any]:
        with _opened(self._since, name, must_be) as since:
            report = pool.dump(file.descriptor, what, since, False, False, False, self._progress)
        return report | {"warnings": _warned(report)}

    def _addressed(self, what: tuple[str, ...]) -> set[tuple[str, int]]:
        """Return the shelves and numbers of the addressed records."""
        found = set()
        for address in what or self._store:
            shelf, at, which = str(address).partition("@")
            snapshots = self._store[shelf].range(which) if at else self._store[shelf]
            found |= {(shelf, one.number) for one in snapshots}
        return found

    def _older_parts(self, records: set[tuple[str, int]]) -> Iterator[Wanted]:
        """Yield the parts of records of older dumps that these lack: they were missing then."""
        there = set()
        for folder in self._since:
            with _io(folder):
                files = os.listdir(folder)
            for name in files:
                if name.startswith("rank-") and name.endswith(ARCHIVE):
                    with _opened([folder], name) as (descriptor,):
                        rows = _core.archive_ls(descriptor)["snapshots"]
                    there |= {(row["shelf"], row["group"]) for row in rows}
        yield from self._parts((one for one in sorted(records) if one[1] in self._store[one[0]]), there)

    def _parts(
        self, records: Iterable[tuple[str, int]], there: Container[tuple[str, str]] | None = None
    ) -> Iterator[Wanted]:
        """Yield the parts of records; of records of older dumps those that are not `there`, by shelf and group."""
        for shelf, number in records:
            taken = self._store[shelf]._taken(number)
            try:
                record = taken._record_alone().record
            except (DamagedError, UnsupportedError) as error:
                if there is None:
                    raise
                line = f"{taken._address}: {error}. Whether the older dumps have all its parts is unknown"
                self._report["warnings"] += _warned({"warnings": line})
                continue
            for rank, part in record.ranks.items():
                if there is not None and (shelf, part.group.hex()) in there:  # its pool may be away
                    continue
                try:
                    handle = self._store._ranks.snapshot(rank, part, shelf, [])
                except RankNotFoundError as error:
                    self._missing.append(f"{taken._address}: {error}")
                    continue
                pool, info = self._store._ranks.pool(rank, shelf, part), handle.info()
                wanted = Wanted(pool.info()["path"], shelf, info["number"])
                if info["remote"] is not None:
                    raise RemoteError(away(taken._address, info["remote"], self._store.path))
                if not _is_committed(pool, wanted):
                    commit_part(pool, wanted, part, taken._address, self._store._flags)
                yield wanted

    def _dump_rank(self, path: str, parts: list[Wanted]) -> None:
        pool = dict(self._store._ranks.all())[os.path.basename(path)]
        name = os.path.basename(path).removesuffix(POOL) + ARCHIVE
        file = _NewFile(os.path.join(self._folder, name))
        try:
            report = self._dump(pool, tuple(ranges_of(parts)), name, file)
            if report["snapshots"] != len(parts) and not all(_is_committed(pool, part) for part in parts):
                raise NotFoundError(f"{path}: snapshots were removed during the dump; repeat it")
            file.commit()
        finally:
            file.close()
        self._made.append(file.path)
        for key in ("contents", "contents_found", "bytes"):
            self._report[key] += report[key]
        self._report["warnings"] += report["warnings"]


def commit_part(pool: _core.Pool, wanted: Wanted, part: Part, address: str, flags: int) -> None:
    """Commit a part whose record is there, or wait a moment for its rank, which does so after the record."""
    until = time.monotonic() + _COMMIT_S
    while not _is_committed(pool, wanted):
        time.sleep(_MOMENT_S)
        try:
            writable = _core.open(wanted.path, _core.OPEN_WRITE, 0, 0, 1, _core.NO_BACKGROUND | flags)
        except InUseError as error:
            if time.monotonic() < until:
                continue
            raise InUseError(
                f"{address} is not committed in {wanted.path} yet, and can't be: {error}. Repeat this when the save "
                "has ended"
            ) from None
        try:
            with contextlib.suppress(NotFoundError):  # its rank did it meanwhile
                writable.resolve(part.group, True)
        finally:
            writable.close()


def _is_committed(pool: _core.Pool, wanted: Wanted) -> bool:
    try:
        pool.find(wanted.shelf, str(wanted.number), False)
    except NotFoundError:
        return False
    return True


def ranges_of(parts: list[Wanted]) -> Iterator[str]:
    """Yield addresses of parts of one pool: ranges where numbers follow each other."""
    for (shelf, _), run in itertools.groupby(enumerate(parts), lambda one: (one[1].shelf, one[1].number - one[0])):
        numbers = [part.number for _, part in run]
        yield f"{shelf}@{numbers[0]}..{numbers[-1]}"


# Restores


class Restore:
    """The restore of one or several dumps, the oldest first.

    Into a new folder, or into a run that is open for writing: `stores` has its ranks' pools by their files' names, and
    `records` its records.
    """

    _remedy = "Copy what is missing there"

    def __init__(
        self,
        dumps: Sequence[str],
        folder: str,
        flags: int,
        progress: Progress | None,
        records: Store | None = None,
        stores: dict[str, Store] | None = None,
    ) -> None:
        self._dumps = dumps
        self._folder = folder
        self._flags = flags
        self._progress = progress
        self._records = records
        self._stores = stores or {}
        self._report: dict[str, Any] = {}

    def run(self, allow_missing: bool, move_tags: bool = False) -> dict[str, Any]:
        """Restore the ranks' pools, then the records. A failure shows nothing; the same call continues."""
        names = self._names()
        if self._records is None:
            self._make_folder(names)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(RESTORING))
        made = self._create(RESTORING)
        try:
            records = self._restore(made, "records", False)
            if self._records is not None:
                self._check_same(made, self._records)
            for name in names:
                self._restore_rank(name)
            missing = list(self._missing(made))
        finally:
            made.close()
        if missing and not allow_missing:
            raise NotFoundError(
                f"{listed_dumps(self._dumps)} lacks {len(missing)} parts of snapshots: {missing[0]}. {self._remedy}; "
                "allow_missing=True leaves it out"
            )
        if self._records is None:
            self._show()
        else:
            records = self._restore(self._records, "records", move_tags)
            os.unlink(self._path(RESTORING))
        counts = {key: records[key] + self._report.get(key, 0) for key in ("contents", "contents_found", "bytes")}
        lines = self._report.get("warnings", []) + records["warnings"]
        return records | counts | {"warnings": lines, "pools": len(names) + 1, "missing": missing}

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _names(self) -> list[str]:
        """List the ranks' archives, without the end of their names."""
        names = set()
        for folder in self._dumps:
            with _io(folder):
                files = os.listdir(folder)
            if _RECORDS_ARCHIVE not in files:
                raise NotFoundError(
                    f"{folder} lacks {_RECORDS_ARCHIVE}: it is no dump of a run, or the dump did not end"
                )
            names |= {
                name.removesuffix(ARCHIVE) for name in files if name.startswith("rank-") and name.endswith(ARCHIVE)
            }
        return sorted(names)

    def _make_folder(self, names: list[str]) -> None:
        with _io(self._folder):
            try:
                os.mkdir(self._folder)
            except FileExistsError:
                if not os.path.isdir(self._folder) or not self._is_free(names):
                    raise ExistsError(f"{self._folder} exists: restore a run into a new folder") from None
                return
        _sync_folder(os.path.dirname(self._folder))

    def _is_free(self, names: list[str]) -> bool:
        """Whether the folder is empty, or a restore of the same ranks has begun it."""
        files = [name for name in os.listdir(self._folder) if not name.startswith(RESTORING)]
        others = [name for name in files if name.startswith("rank-") and name.endswith(POOL)]
        if not is_restoring(self._folder):
            return not files
        return RECORDS not in files and {name.removesuffix(POOL) for name in others} <= set(names)

    def _create(self, name: str) -> Store:
        """Open a pool of the folder, or create it."""
        path = self._path(name)
        pool = _core.open(path, _core.OPEN_OR_CREATE, 0, _WAIT_MS, 0, self._flags | _core.NO_BACKGROUND)
        return Store(pool, path, "r+")

    def _restore(self, store: Store, stem: str, move_tags: bool) -> dict[str, Any]:
        """Restore the archives of a name of all dumps into a pool."""
        with _opened(self._dumps, stem + ARCHIVE) as files:
            report = store._pool.restore(files, (), (), None, move_tags, False, self._progress)
        return report | {"warnings": _warned(report)}

    def _restore_rank(self, stem: str, file: str = "") -> None:
        """Restore the archives of a name into the pool of that name, or of another file."""
        file = file or stem + POOL
        store = self._stores.get(file)
        is_open = store is not None
        store = self._create(file) if store is None else store
        try:
            report = self._restore(store, stem, False)
        finally:
            if not is_open:
                store.close()
        for key in ("contents", "contents_found", "bytes"):
            self._report[key] = self._report.get(key, 0) + report[key]
        self._report["warnings"] = self._report.get("warnings", []) + report["warnings"]

    def _check_same(self, made: Store, records: Store) -> None:
        """ExistsError: the run has other snapshots under the same numbers."""
        for shelf, number, record in records_of(made):
            if shelf in records and number in records[shelf]:
                own = read_head(records[shelf][number]._decode())
                if own.ranks != record.ranks:
                    raise ExistsError(f"{self._folder} has another {shelf}@{number} than the dump")

    def _missing(self, made: Store) -> Iterator[str]:
        """Seek the parts of all records."""
        ranks = Ranks(self._folder, False, self._flags | _core.NO_BACKGROUND)
        try:
            for shelf, number, record in records_of(made):
                for rank, part in record.ranks.items():
                    try:
                        ranks.snapshot(rank, part, shelf, [])
                    except RankNotFoundError as error:
                        yield f"{shelf}@{number}: {self._absent(rank, error)}"
        finally:
            ranks.close()

    def _absent(self, rank: int, error: Error) -> str:
        """Describe a part that is missing."""
        return str(error)

    def _show(self) -> None:
        """Give the pool of records, which is closed, its name."""
        if os.path.lexists(self._path(RECORDS)):
            raise ExistsError(f"{self._path(RECORDS)} was created meanwhile")
        with _io(self._folder):
            os.rename(self._path(RESTORING), self._path(RECORDS))
        _sync_folder(self._folder)


def listed_dumps(dumps: Sequence[str]) -> str:
    """Name the dumps in a message."""
    return dumps[0] if len(dumps) == 1 else f"{dumps[0]} with {len(dumps) - 1} more"


def records_of(store: Store) -> Iterator[tuple[str, int, Record]]:
    """Yield the shelves, numbers and heads of the records in a pool."""
    for shelf in store:
        for snapshot in store[shelf]:
            yield shelf, snapshot.number, read_head(snapshot._decode())
