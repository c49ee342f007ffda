# SPDX-License-Identifier: BSD-3-Clause
"""`FolderStore`: the folder of a run, read as one store."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from .. import _core
from .._remote.consent import Remote
from .._state.decode import Decoded
from .._state.nodes import Branch, Leaf, Node
from .._text.arguments import a_kind, file_path, within
from .._text.similar import listed
from ..diff import Diff
from ..errors import (
    DamagedError,
    Error,
    ExistsError,
    InUseError,
    InvalidError,
    NotFoundError,
    OutOfMemoryError,
    ReadOnlyError,
    UnsupportedError,
)
from ..shelf import Pruned, Removal, Shelf
from ..snapshot import Progress, Snapshot
from ..store import Store
from .dumps import ARCHIVE, Dump, Restore, paths_of
from .joined import Handle, Joined
from .opaque import Opaque
from .operations import Operations, check_policy, joined_policy, policy_words
from .ranks import RECORDS, Ranks, is_restoring, lacking, rank_files, run_url, with_source
from .record import Record, read, read_head
from .structure import Structure
from .whole import Comparison, export

log = logging.getLogger("lmcstore")

_WAIT_MS = 10_000


def is_folder(path: str) -> bool:
    """Whether a path is the folder of a run."""
    return os.path.isdir(path) and (
        os.path.lexists(os.path.join(path, RECORDS)) or is_restoring(path) or bool(rank_files(path))
    )


def open_folder(
    path: str,
    threads: int = 0,
    force_network: bool = False,
    verify: bool = True,
    writes: bool = False,
    wait_ms: int = _WAIT_MS,
    remote: Remote = None,
) -> FolderStore:
    """Open the folder of a run. NotFoundError: it lacks the records. InUseError: a rank writes, too."""
    records = os.path.join(path, RECORDS)
    if not os.path.lexists(records):
        raise lacking(path)
    flags = _core.FORCE_NETWORK if force_network else 0
    mode = _core.OPEN_WRITE if writes else _core.OPEN_READ
    try:
        pool = _core.open(records, mode, 0, wait_ms, threads, flags)
    except InUseError as error:
        raise InUseError(str(error).partition(". Each rank of a distributed run ")[0]) from None
    store = FolderStore(pool, path, force_network, verify, "r+" if writes else "r", remote=remote)
    store._threads = threads
    try:
        if writes:
            store._operations().settle()
    except BaseException:
        store.close()
        raise
    return store


def _reopened(path: str, uuid: bytes, force_network: bool, verify: bool, remote: Remote = None) -> FolderStore:
    store = open_folder(path, force_network=force_network, verify=verify, remote=remote)
    if store._uuid != uuid:
        store.close()
        raise NotFoundError(f"{path} is another run than the one that was copied or pickled")
    return store


class FolderStore(Store):
    """The folder of a run of many ranks: `lmcstore.open` opens it, for reading in any mode but "r+".

    It has the shelves and snapshots of the run. A snapshot's tensors are joined from the pools of the ranks, which are
    opened when a tensor needs them. Tags, metrics and notes of the run's snapshots can be set in any mode; `Run` and
    `StoreWriter` save.

    Mode "r+" also removes, prunes, forks, compacts and scrubs, and sets policies. No rank may write meanwhile. The
    store of a `Run` on rank 0 removes and prunes beside the ranks, which remove their parts after their next save.
    """

    def __init__(
        self,
        pool: _core.Pool,
        path: str,
        force_network: bool = False,
        verify: bool = True,
        mode: str = "r",
        beside_ranks: bool = False,
        remote: Remote = None,
    ) -> None:
        super().__init__(pool, path, mode, False, force_network, verify)
        self._remote = remote
        self._beside_ranks = beside_ranks
        self._threads = 0
        self._opened: Operations | None = None
        self._own: Store | None = None
        """This rank's pool, of the store of a `Run`."""
        self._flags = _core.FORCE_NETWORK if force_network else 0
        self._ranks = Ranks(path, verify, self._flags, remote)

    @classmethod
    def _create(cls, path: str) -> Store:  # type: ignore[override]
        return Store._create(path)

    @property
    def _pool_path(self) -> str:
        return os.path.join(self._path, RECORDS)

    def __getitem__(self, name: str) -> FolderShelf:
        return FolderShelf(self, super().__getitem__(name).name)

    def info(self) -> dict[str, Any]:
        """Return the properties of the pool of records, as `Store.info` does, and those of the ranks' pools.

        ``ranks``: ``Store.info`` of each pool in the folder by its file's name. ``used_bytes``, ``live_bytes``,
        ``compaction_backlog`` and ``raw_bytes``: of all pools. ``remote_count``: of the rank's pool with the most.
        ``missing``: a sentence for each part of the newest snapshots whose pool is not in the folder. Files that can't
        be read as pools are left out; `verify` names them.
        """
        info = super().info()
        info["ranks"] = {name: pool.info() for name, pool in self._ranks.all()}
        for name in ("used_bytes", "live_bytes", "compaction_backlog"):
            if name in info:  # a URL has fewer
                info[name] += sum(rank[name] for rank in info["ranks"].values())
        if "remote_count" in info:
            info["remote_count"] = max((rank["remote_count"] for rank in info["ranks"].values()), default=0)
        info["missing"] = [text for name in self for text in self[name]._lacking()]
        return info

    def _pools(self) -> Iterable[_core.Pool]:
        return [self._pool, *(pool for _, pool in self._ranks.all())]

    def pause(self) -> None:
        """Pause the background compactor, as `Store.pause`. The store of a `Run`: that of this rank's pool, too."""
        super().pause()
        if self._own is not None:
            self._own.pause()

    def resume(self) -> None:
        """Resume the background compactor."""
        super().resume()
        if self._own is not None:
            self._own.resume()

    def verify(self, address: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
        """Read everything, or the part at ``"shelf"`` or ``"shelf@which"``, and check all checksums.

        Returns the report of `Store.verify` for all pools, and ``missing``: a sentence for each part of a snapshot
        whose pool or snapshot is not in the folder.
        """
        report = super().verify(address, progress)
        report["missing"] = []
        away = 0
        if address is None:
            for name, pool in self._ranks.all():
                _add(report, name, pool.verify(None, progress))
            for name, failure in self._ranks.failures.items():
                _add(report, name, _unreadable(failure))
        for snapshot in self._addressed(address):
            record, urls, found = snapshot._record_alone().record, set(), 0
            for rank, part in record.ranks.items():
                try:
                    info = self._ranks.snapshot(rank, part, snapshot.shelf.name, []).info()
                except NotFoundError as error:
                    report["missing"].append(f"{snapshot._address}: {error}")
                    continue
                found += 1
                number = info["number"]
                urls.add(info["remote"])
                if address is not None:
                    pool = self._ranks.pool(rank, snapshot.shelf.name, part)
                    _add(report, part.file, pool.verify(f"{snapshot.shelf.name}@{number}", progress))
            is_away = bool(urls - {None})
            away += is_away
            is_there = found > 0 and not is_away
            snapshot._record() if is_there else snapshot._handle_of_ranks()  # DamagedError: it contradicts itself
        report["snapshots"], report["remote"] = report["snapshots"] - away, away
        return report

    def _addressed(self, address: str | None) -> Iterable[FolderSnapshot]:
        name, _, which = (address or "").partition("@")
        if which:
            return [self[name]._found(which)]
        return (self[shelf]._taken(one.number) for shelf in ([name] if name else self) for one in self[shelf])

    def _operations(self) -> Operations:
        """Return the object that changes the ranks' pools. InUseError: their ranks write them."""
        self._check_writable()
        if self._beside_ranks:
            raise InUseError(f"{self._path}: the ranks of this run have their pools open; close the run before")
        if self._opened is None:
            records = Store(self._pool, self._pool_path, "r+")
            records._finalizer.detach()  # this store closes the pool
            self._opened = Operations(self._path, records, self._flags, self._threads)
        return self._opened

    def _remove_parts(self, shelf: str, records: Iterable[Record], dry_run: bool) -> list[int]:
        """Remove the parts of snapshots whose records were removed; ranks that are open do so themselves."""
        return [0, 0, 0] if self._beside_ranks else self._operations().remove(shelf, records, dry_run)

    def compact(self, progress: Progress | None = None, *, finished: bool = False) -> None:
        """Compact all pools, as `Store.compact` does for one, and keep the budgets of the run's policies."""
        self._compact(progress, finished, None)

    def _compact(self, progress: Progress | None, finished: bool, shelf: str | None) -> None:
        operations = self._operations()
        self._pool.compact(progress, finished, shelf)
        operations.compact(progress, finished, shelf)

    def scrub(
        self,
        what: str | Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        sources: Iterable[str | os.PathLike[str]] = (),
        **options: Any,
    ) -> dict[str, Any]:
        """Scrub all pools, as `Store.scrub` does for one, and return the sums.

        ``remote`` is that of the pool with the most. ``list`` has the damages of all pools, with the files' names. A
        repair needs mode "r+". A folder among the `sources` is a copy of the run, or a dump. A failure of one pool's
        scrub is raised after the others, with the sums as ``report``.
        """
        names = None if what is None else (what,) if isinstance(what, str) else tuple(what)
        records = super().scrub

        def scrub(store: Store, file: str, addresses: Sequence[str] | None, sources: list[str]) -> dict[str, Any]:
            work = records if store is self else store.scrub
            return work(addresses, progress, sources=sources, **options)

        return self._scrubbed(scrub, names, sources, bool(options.get("repair")))

    def _scrubbed(
        self,
        scrub: Callable[[Store, str, Sequence[str] | None, list[str]], dict[str, Any]],
        names: Sequence[str] | None,
        sources: Iterable[str | os.PathLike[str]],
        repairs: bool,
    ) -> dict[str, Any]:
        """Scrub this store's records and the ranks' pools by a function, and return the sums.

        A pool whose scrub fails does not keep the others from theirs. The first failure is raised at the end.
        """
        failed: Error | None = None
        paths = [file_path(one) for one in ([sources] if isinstance(sources, str | os.PathLike) else sources)]

        def attempt(store: Store, file: str, addresses: Sequence[str] | None) -> dict[str, Any]:
            nonlocal failed
            try:
                return scrub(store, file, addresses, _sources_of(paths, file))
            except Error as error:
                if error.report is None or isinstance(error, InvalidError | OutOfMemoryError):
                    raise
                failed = failed or error
                report: dict[str, Any] = error.report
                return report

        places = None if names is None else self._places(names)
        total = attempt(self, RECORDS, names)
        for file, store in self._rank_stores(repairs).items():
            addresses = None if places is None else places.get(file, [])
            if addresses == []:
                continue
            report = attempt(store, file, addresses)
            for name, value in report.items():
                if type(value) is int:
                    total[name] = max(total[name], value) if name == "remote" else total[name] + value
            total["is_whole"] = total["is_whole"] and report["is_whole"]
            total["list"] += [{**damage, "what": f"{file}: {damage['what']}"} for damage in report["list"]]
        if failed is not None:
            failed.report = total
            raise failed
        return total

    def _rank_stores(self, repair: bool) -> dict[str, Store]:
        """Return the ranks' pools by their files' names; to be read, if they can't be written."""
        if self._mode != "r" and (repair or not self._beside_ranks):
            return {os.path.basename(store.path): store for store in self._operations().stores(True)}
        stores = {name: Store(pool, os.path.join(self._path, name), "r") for name, pool in self._ranks.all()}
        for failure in self._ranks.failures.values():
            raise failure
        for store in stores.values():
            store._finalizer.detach()
        return stores

    def _places(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the addresses of the parts, by their pools' files, of shelves, snapshots and ranges of the run."""
        found: dict[str, list[str]] = {}
        for name in names:
            shelf, _, which = name.partition("@")
            for snapshot in () if not which else self[shelf].range(which) if ".." in which else [self[shelf][which]]:
                for rank, part in snapshot._record_alone().record.ranks.items():  # type: ignore[attr-defined]
                    number = self._ranks.snapshot(rank, part, shelf, []).info()["number"]
                    file = os.path.basename(self._ranks.pool(rank, shelf, part).info()["path"])
                    found.setdefault(file, []).append(f"{shelf}@{number}")
            for file, pool in self._ranks.all() if not which else ():
                if any(one["name"] == shelf for one in pool.shelves()):
                    found.setdefault(file, []).append(shelf)
        return found

    def set_limit(self, size: int | str | None) -> NoReturn:
        """Refuse: each pool has a limit of its own."""
        self._refuse("set_limit")

    def dump(  # type: ignore[override]
        self,
        folder: str | os.PathLike[str],
        what: str | Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        since: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        allow_missing: bool = False,
    ) -> dict[str, Any]:
        """Dump the run into a new folder, with an archive of the records and one for each rank's pool.

        Ranks may save meanwhile. ``lmc-store restore`` and `archive.restore_run` make a run of it.

        Parameters
        ----------
        folder
            The folder, which is created. A failure leaves nothing; a dump that was killed leaves a folder that no
            restore takes.
        what, progress
            As for `Store.dump`.
        since
            Older dumps, whose contents are left out. A restore then needs them, too. Parts that were missing from them
            are written.
        allow_missing
            Dump without the parts whose pools are not in the run's folder.

        Returns
        -------
        dict
            ``snapshots``, ``archives``, ``contents``, ``contents_found``, ``bytes``, ``warnings``, and ``missing``: a
            sentence for each part that is missing.

        Raises
        ------
        NotFoundError
            There is no such snapshot, or a part is missing.
        ExistsError
            The folder exists, and is not empty.
        InUseError
            A part is still prepared, and its pool is in use; or another dump writes the folder.
        """
        names = () if what is None else (what,) if isinstance(what, str) else tuple(what)
        return Dump(self, paths_of(folder)[0], paths_of(since), progress).run(names, allow_missing)

    def restore(  # type: ignore[override]
        self,
        dumps: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        progress: Progress | None = None,
        *,
        move_tags: bool = False,
        allow_missing: bool = False,
    ) -> dict[str, Any]:
        """Add the snapshots of one or several dumps of this run that it lacks, such as removed ones.

        The parts come first, then the records, in one commit: all snapshots appear, or none. `archive.restore_run`
        restores into a new folder.

        Parameters
        ----------
        dumps
            Folders, the oldest first.
        progress, move_tags
            As for `Store.restore`.
        allow_missing
            Also restore records with parts that neither the dumps nor the run have.

        Returns
        -------
        dict
            As of `archive.restore_run`.

        Raises
        ------
        ExistsError
            The run has other snapshots under the same numbers.
        NotFoundError
            A folder is no dump, or lacks a part.
        """
        operations = self._operations()
        stores = {os.path.basename(store.path): store for store in operations.stores(True)}
        made = Restore(paths_of(dumps), self._path, self._flags, progress, operations.records, stores)
        return made.run(allow_missing, move_tags)

    def _pusher(self) -> Any:
        from .remote_push import RunPusher  # needs modules that others do without

        return RunPusher

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(
            f"{self._path}: {what} takes a pool, not the folder of a run: give it the pools in there"
        )

    def close(self) -> None:
        """Close the pools. Tensors and arrays that were read stay valid."""
        if self._opened is not None:
            self._opened.close()
        super().close()
        self._ranks.close()

    def _check_writable(self) -> None:
        if self._mode == "r":
            raise ReadOnlyError(
                f"{self._path} is the folder of a run, open for reading. Run and lmcstore.dcp.StoreWriter save to it; "
                "mode 'r+' opens it to remove, prune, tag and fork"
            )

    def __reduce__(self) -> Any:
        if self.closed:
            raise InvalidError(f"{self._path}: a closed store can't be copied or pickled")
        if self._again is not None:
            return super().__reduce__()
        return _reopened, (self._path, self._uuid, self._force_network, self._verifies, self._remote)


def _add(report: dict[str, Any], file: str, other: dict[str, Any]) -> None:
    """Add the report of a rank's pool; snapshots are counted of the run only."""
    for name in ("contents", "bytes_read", "damages", "unsupported"):
        report[name] += other[name]
    report["list"] += [{**damage, "what": f"{file}: {damage['what']}"} for damage in other["list"]]


def _unreadable(failure: DamagedError) -> dict[str, Any]:
    """Return the report of a file that can't be read as a pool."""
    damage = {"what": str(failure), "shelf": "", "number": 0, "tensor": "", "first_byte": 0, "byte_count": 0}
    damages = [{**damage, "is_unsupported": False}]
    return {"contents": 0, "bytes_read": 0, "damages": 1, "unsupported": 0, "list": damages}


def _sources_of(sources: Iterable[str], file: str) -> list[str]:
    """Return the sources for the repair of a pool: of folders the pool, or the archive, of its name."""
    found = []
    for source in sources:
        if os.path.isdir(source):
            pool = os.path.join(source, file)
            archive = pool.removesuffix(".pool") + ARCHIVE
            source = archive if os.path.lexists(archive) and not os.path.lexists(pool) else pool
        found.append(source)
    return found


def _sum(removal: Removal, other: Iterable[int]) -> Removal:
    freed, later, _ = other
    return removal._replace(freed_bytes=removal.freed_bytes + freed, later_bytes=removal.later_bytes + later)


class _Numbered(NamedTuple):
    number: int
    record: Record


class FolderShelf(Shelf):
    """A history of a run's snapshots."""

    _store: FolderStore

    def snapshot(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse: `Run` and `StoreWriter` save, on all ranks."""
        self._store._check_writable()
        self._refuse("snapshot")

    def rename(self, name: str) -> NoReturn:
        """Refuse: the ranks' pools have the name, too."""
        raise UnsupportedError(f"{self._name}: the shelf of a run keeps its name, by which the ranks find their parts")

    @property
    def live(self) -> NoReturn:
        """Refuse: live variables are of a pool."""
        self._refuse("live")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(f"{self._name}: {what} is of a shelf of a pool, not of a run of many ranks")

    def remove(self, which: int | str | Snapshot, *, dry_run: bool = False) -> Removal:
        """Remove a snapshot permanently: its record, then the parts of the ranks. `Shelf.remove` has more.

        Of a damaged record only itself, with a warning: its parts go later.
        """
        self._store._check_writable()
        number = self._number(which)
        records = self._readable([number])
        removal = super().remove(number, dry_run=dry_run)
        return _sum(removal, self._store._remove_parts(self._name, records, dry_run))

    def _readable(self, numbers: Iterable[int]) -> list[Record]:
        """Read some records that are removed; of damaged ones, the parts go later."""
        records = []
        for number in numbers:
            try:
                records.append(self._taken(number)._record_alone().record)
            except DamagedError as error:
                log.warning(
                    "%s: the parts of %s@%d go when the folder is opened for changes, or by a rank, once a later "
                    "snapshot has parts there: %s",
                    self._store.path,
                    self._name,
                    number,
                    error,
                )
        return records

    def prune(self, words: str | None = None, *, dry_run: bool = False) -> Pruned:
        """Remove the snapshots that the policy does not keep: `Shelf.prune`."""
        if words is not None and isinstance(words, str):
            words = policy_words(words)[0]
        plan = super().prune(words, dry_run=True)
        if self._store.mode == "r" and dry_run:
            return plan._replace(removal=None)
        records = self._readable(plan.numbers)
        pruned = plan if dry_run else super().prune(words)
        assert pruned.removal is not None
        return pruned._replace(removal=_sum(pruned.removal, self._store._remove_parts(self._name, records, dry_run)))

    def drop(self, *, dry_run: bool = False) -> Removal:
        """Remove the shelf permanently, with the parts of the ranks: `Shelf.drop`.

        Also the rest of it in the ranks' pools after a drop or a fork that was killed.
        """
        operations = self._store._operations()
        total, name, absent = Removal(0, 0, 0), self._name, None
        try:
            total = super().drop(dry_run=dry_run)
        except NotFoundError as error:
            absent = error
        parts = [one for one in operations.drop(name, dry_run).values() if one is not None]
        if absent is not None and not parts:
            raise absent
        for one in parts:
            total = _sum(total, one)
        return total

    def compact(self, progress: Progress | None = None, *, finished: bool = False) -> None:
        """Compact all pools; with ``finished=True`` also the newest snapshots of this shelf: `Shelf.compact`."""
        self._store._compact(progress, finished, self._name)

    def _lacking(self) -> Iterable[str]:
        """Say which parts of the newest snapshot are missing; none if its record is unreadable."""
        for snapshot in itertools.islice(reversed(self), 1):
            try:
                ranks = self._taken(snapshot.number)._record_alone().record.ranks
            except (DamagedError, NotFoundError, UnsupportedError):
                continue
            for rank, part in ranks.items():
                try:
                    self._store._ranks.pool(rank, self._name, part)
                except NotFoundError as error:
                    yield str(error)

    @property
    def keep_raw(self) -> int:
        """How many of the newest snapshots stay raw in the ranks' pools: `Shelf.keep_raw`."""
        words = dict(word.split("=", 1) for word in self.policy.split())
        return int(words["keep_raw"])

    @keep_raw.setter
    def keep_raw(self, count: int) -> None:
        self.policy = f"keep_raw={within(count, 1, 2**32 - 1, 'keep_raw')}"

    @property
    def policy(self) -> str:
        """The policy: `Shelf.policy`. The records have its rules for keeping snapshots, the ranks' pools the rest."""
        for _, pool in self._store._ranks.all():
            try:
                return joined_policy(super().policy, pool.shelf_info(self._name)["policy"])
            except NotFoundError:
                continue
        return super().policy

    @policy.setter
    def policy(self, words: str) -> None:
        self._store._check_writable()
        if not isinstance(words, str):
            raise UnsupportedError(f"a policy must be a str, not {type(words).__qualname__!r}")
        kept, others = policy_words(words)
        if others:
            name = self._name
            check_policy(self._store._pool, name, words)
            self._store._operations().each(lambda store: setattr(store.shelf(name, create=True), "policy", others))
        if kept:
            Shelf.policy.fset(self, kept)  # type: ignore[attr-defined]

    def _found(self, which: str) -> FolderSnapshot:
        return self._taken(self._find(which).number)

    def _taken(self, number: int, step: int | None = None, handle: _core.Snapshot | None = None) -> FolderSnapshot:
        return FolderSnapshot(self, number, None, step, handle)


class FolderSnapshot(Snapshot):
    """A snapshot of a run: its properties are those of its record."""

    _shelf: FolderShelf
    _joined: Joined | None = None
    _absent: Sequence[int] = ()

    @property
    def remote(self) -> str | None:
        """The URL of the run that has parts of it, if some have left the ranks' pools (`Shelf.policy`, ``local``)."""
        urls = self._shelf._store._ranks.urls(self._shelf.name, self._record_alone().record)
        return run_url(urls[0]) if urls else None

    @property
    def raw_bytes(self) -> int:
        """Bytes of its tensors, decoded."""
        if self._joined is None and self.remote is not None:  # without a look at the URL
            return sum(tensor.raw_bytes for tensor in self._handle_of_ranks()[1].record.tensors.values())
        handle = self._decode().handle
        return sum(handle.tensor(name).raw_bytes for name in handle.names())

    @property
    def new_bytes(self) -> int | None:
        """Payload bytes that it added in the ranks' pools. None: unknown."""
        ranks, shelf = self._shelf._store._ranks, self._shelf.name
        handle = self._decode().handle
        added = []
        for rank, part in handle.record.ranks.items():
            number = handle.part(rank, []).info()["number"]
            added.append(ranks.pool(rank, shelf, part).new_bytes(shelf, [number])[0])
        return None if None in added else sum(count for count in added if count is not None)

    @property
    def digest(self) -> str:
        """Hash of its content, however it is stored: of its record and its parts, so it depends on the ranks."""
        handle = self._decode().handle
        made = hashlib.blake2b(digest_size=16)
        for rank in sorted(handle.record.ranks):
            made.update(handle.part(rank, []).digest())
        made.update(repr([self.step, self.parent, sorted(self.metrics.items()), self.meta]).encode())
        return made.hexdigest()

    def storage(self) -> dict[str, Any]:
        """Report how the ranks' snapshots are stored now: sums and maxima of `Snapshot.storage`."""
        handle = self._decode().handle
        total: dict[str, Any] = {}
        for rank in handle.record.ranks:
            for name, value in handle.part(rank, []).storage().items():
                if type(value) is int:
                    total[name] = max(total.get(name, 0), value) if "longest" in name else total.get(name, 0) + value
        return {**total, "links_note": None}

    def names(self) -> list[str]:
        """Return the names of its tensors, in the order of the state."""
        return self._decode().handle.names()

    def entries(self) -> list[dict[str, Any]]:
        """Report how each tensor is stored: `Snapshot.entries`, with the sum of its boxes."""
        return self._described(self._decode().handle.entries())

    def state_dict(
        self, path: Any = (), *, types: Iterable[type] | Mapping[str, type] = (), verify: bool | None = None
    ) -> Any:
        """Read the state, or the part at `path`: as `Snapshot.state_dict`, with whole tensors.

        A `UserWarning` names the objects that are pickles of torch; they are read as `Opaque` objects.
        """
        decoded = self._decode()
        if self._absent:
            warnings.warn(
                f"{self._address}: the own objects of ranks {listed(list(self._absent))} are left out, whose pools are "
                f"not in {self._shelf._store.path}",
                stacklevel=2,
            )
        names = list(_opaque(decoded.find(path)))
        if names:
            warnings.warn(
                f"{self._address}: {listed(names)} {'is a pickle' if len(names) == 1 else 'are pickles'} of torch, "
                "which the load() of each unpickles",
                stacklevel=2,
            )
        return super().state_dict(path, types=types, verify=verify)

    def diff(
        self, other: Snapshot, *, same: bool = False, numbers: bool = True, progress: Progress | None = None
    ) -> Diff:
        """Compare the tensors with those of `other`, a snapshot of this run: as `Snapshot.diff`, without values.

        Tensors whose boxes are the same are not read. Others are, one at a time.
        """
        if not isinstance(other, Snapshot):
            raise UnsupportedError(f"a snapshot differs from a snapshot, not from {a_kind(other)}")
        if not isinstance(other, FolderSnapshot) or other._shelf._store._uuid != self._shelf._store._uuid:
            raise InvalidError(f"{other._address} is not of {self._shelf._store.path}")
        comparison = Comparison(self._decode().handle, other._decode().handle, same, numbers)
        return comparison.run((self._address, other._address), progress)

    def fork(self, name: str) -> Shelf:
        """Make a shelf of the run whose first snapshot is this one: `Snapshot.fork`, on all ranks."""
        store = self._shelf._store
        operations = store._operations()
        if name in store:
            raise ExistsError(f"{store.path} has a shelf {name!r}")
        operations.fork(self._shelf.name, self._record_alone().record, name)
        return super().fork(name)

    def export(
        self, path: str | os.PathLike[str], part: str | None = None, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Write its tensors, joined, as a safetensors file: as `Snapshot.export`."""
        return export(self._handle, self._decode().handle, file_path(path), part, progress)

    def _record_alone(self) -> _Numbered:
        """Read the record, without the parts."""
        return _Numbered(self.number, read_head(self._decode_record()))

    def _decode_record(self) -> Decoded:
        try:
            return super()._decode()
        except DamagedError as error:
            path = self._shelf._store._pool.info()["path"]
            raise with_source(error, path) if os.path.basename(path) == RECORDS else error from None

    def _record(self) -> Record:
        return self._decode().handle.record

    def _decode(self) -> Joined:
        if self._joined is None:
            decoded, handle = self._handle_of_ranks()
            root = None
            if handle.record.objects is not None:
                root, self._absent = Structure(handle, self._shelf._store).run()
            self._joined = Joined(decoded, handle, root)
        return self._joined

    def _handle_of_ranks(self) -> tuple[Decoded, Handle]:
        decoded = self._decode_record()
        return decoded, Handle(self._shelf.name, decoded, read(decoded), self._shelf._store._ranks)


def _opaque(node: Node) -> Iterable[str]:
    if type(node) is Leaf and type(node.value) is Opaque:
        yield node.value.name
    elif type(node) is Branch:
        for child in node.children:
            yield from _opaque(child)
