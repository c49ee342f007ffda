# SPDX-License-Identifier: BSD-3-Clause
"""`Store`: an open pool."""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from . import _core
from ._optimizer.relations import Finder
from ._remote.consent import Remote
from ._remote.left import PoolHandle
from ._text import html
from ._text.arguments import a_kind, archives, check_name, descriptor, file_path, parse_size
from ._text.caution import other_shelves, similar_shelf, warn_of_creation
from .copier import Job
from .errors import (
    CreationWarning,
    DamagedError,
    Error,
    InvalidError,
    NotFoundError,
    ReadOnlyError,
    UnsupportedError,
)
from .shelf import Shelf
from .snapshot import Progress

if TYPE_CHECKING:
    from ._remote.pool import RemotePool

log = logging.getLogger("lmcstore")


def _reopened(path: str, uuid: bytes, force_network: bool, verify: bool, remote: Remote = None) -> Store:
    """Open a pool for reading, for a copy of a Store; NotFoundError: another pool is there."""
    pool = _core.open(path, _core.OPEN_READ, flags=_core.FORCE_NETWORK if force_network else 0)
    store = Store(pool, path, "r", False, force_network, verify)
    store._remote = remote
    if store._uuid != uuid:
        store.close()
        raise NotFoundError(f"{path} is another pool than the one that was copied or pickled")
    return store


def _close_unclosed(pool: _core.Pool, path: str) -> None:
    """Close a store that a program left open, when it is collected or at exit."""
    try:
        pool.close()
    except Error as error:
        log.error("%s was closed at last, with a failure: %s", path, error)


def _warned(report: dict[str, Any]) -> dict[str, Any]:
    report["warnings"] = report["warnings"].splitlines()
    for line in report["warnings"]:
        warnings.warn(line, stacklevel=3)
    return report


class Store:
    """An open pool: shelves by name. `lmcstore.open` makes it.

    ``store["run"]`` is a shelf; its first snapshot creates it, with a `CreationWarning` unless the store created the
    pool and the shelf is its first. Several threads may use a Store.

    A copy, also one by pickle in another process, opens the pool anew, for reading (mode "r"). The same holds for
    shelves and snapshots.
    """

    def __init__(
        self,
        pool: _core.Pool,
        path: str,
        mode: str,
        is_new: bool = False,
        force_network: bool = False,
        verify: bool = True,
    ) -> None:
        self._pool = pool
        self._finders: dict[str, Finder] = {}
        self._jobs: set[Job] = set()  # copies of lazy snapshots under way
        self._copy_nice = 0
        self._path = path
        self._mode = mode
        self._is_new = is_new  # this open created it
        self._force_network = force_network
        self._known: set[str] = set()  # shelves that exist, or were warned of
        self._verifies = verify
        self._again: tuple[Any, tuple[Any, ...]] | None = None  # opens a copy of a store of a URL: function, arguments
        self._remote: Remote = None
        self._remotes: dict[str, RemotePool] = {}  # by URL, of snapshots that left the pool
        self._remote_share = 1  # of how many stores of a run that share the memory for their blocks
        self._uuid: bytes = getattr(pool, "uuid", None) or pool.info()["uuid"]
        self._finalizer = weakref.finalize(self, _close_unclosed, pool, path)

    @classmethod
    def _create(cls, path: str) -> Self:
        """Make a pool without a background."""
        return cls(_core.open(path, _core.OPEN_CREATE, 0, 0, 0, _core.NO_BACKGROUND), path, "x", True)

    @property
    def path(self) -> str:
        """The absolute path of the pool."""
        return self._path

    @property
    def _pool_path(self) -> str:
        """The path of the pool's file."""
        return self._path

    def _pusher(self) -> Any:
        """Return the class that pushes; None: a pool's."""
        return None

    @property
    def mode(self) -> str:
        """The mode that was opened with."""
        return self._mode

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._pool.closed

    def __getitem__(self, name: str) -> Shelf:
        if not isinstance(name, str):
            raise UnsupportedError(f"a shelf is named by a str, not by {a_kind(name)}")
        check_name(name, "the name of a shelf")
        return Shelf(self, name)

    def shelf(self, name: str, *, create: bool | None = None) -> Shelf:
        """Return a shelf.

        Parameters
        ----------
        name
            Its name.
        create
            False: NotFoundError if it does not exist; the text names a similar shelf. True: its first snapshot or live
            variable creates it, without a warning. None, as ``store[name]``: the same with a `CreationWarning`.
        """
        shelf = self[name]
        if create is False:
            self._pool.shelf_info(name)
        elif create:
            self._check_writable()
            self._known.add(name)
        return shelf

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.shelves()

    def __iter__(self) -> Iterator[str]:
        return iter(self.shelves())

    def shelves(self) -> list[str]:
        """Return the names of the shelves, sorted. Unreadable ones are left out, with a warning."""
        return [shelf["name"] for shelf in self._pool.shelves()]

    def info(self) -> dict[str, Any]:
        """Return the properties and contents of the pool.

        Returns
        -------
        dict
            ``path``, ``medium``, ``file_system``, ``is_persistent_memory``, ``limit_bytes``, ``used_bytes``,
            ``live_bytes``, ``free_bytes``, ``snapshot_count``, ``snapshots_that_fit``, ``compaction_backlog`` and the
            other members of ``struct lmcs_pool_info``. ``warnings``: by shelf, warnings about its policy. ``due``: by
            shelf, the numbers of snapshots that the background is to remove by its policy, each with the end of its
            grace period (seconds since 1970), or None: now, or when a budget is exceeded. ``raw_bytes``: by shelf,
            the payload bytes that its newest snapshots keep raw; ``compact(finished=True)`` makes them smaller.
            ``pushed``: a dict for each shelf and URL of a push from this machine: ``url``, ``shelf``, ``number`` and
            ``step`` of the newest snapshot there, how many are ``behind``, and the ``oldest_time`` of these.
            ``missing``: how many older snapshots of the pool were not there after the last push.
        """
        from ._remote import note

        info = self._pool.info()
        info["warnings"], info["due"], info["raw_bytes"] = {}, {}, self._raw_bytes()
        for name in self._pruned_shelves():
            try:
                _, due, warning, *_ = self._pool.prune(name, None, True)
            except (DamagedError, NotFoundError, UnsupportedError):
                continue
            if warning:
                info["warnings"][name] = warning
            if due:
                info["due"][name] = {number: due_ns / 1e9 if due_ns else None for number, due_ns in due}
        info["pushed"] = note.pushed(self)
        return info

    def _pools(self) -> Iterable[_core.Pool]:
        """Return the pools that have the snapshots' bytes."""
        return [self._pool]

    def _raw_bytes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            for pool in self._pools():
                for shelf in pool.shelves():
                    found[shelf["name"]] = found.get(shelf["name"], 0) + pool.raw_bytes(shelf["name"])
        except (DamagedError, NotFoundError, UnsupportedError):
            pass
        return {name: raw_bytes for name, raw_bytes in found.items() if raw_bytes > 0}

    def _pruned_shelves(self) -> list[str]:
        """List the shelves whose policies have rules; none if one is unreadable."""
        try:
            return [shelf["name"] for shelf in self._pool.shelves() if " keep=all" not in shelf["policy"]]
        except (DamagedError, UnsupportedError):
            return []

    def _warning(self, shelf: str) -> str:
        """Return a warning about a shelf's policy; "": there is none, or the shelf is unreadable."""
        try:
            return self._pool.policy_warning(shelf)
        except (DamagedError, NotFoundError, UnsupportedError):
            return ""

    def set_limit(self, size: int | str | None) -> None:
        """Set the limit of the pool's size on disk; None: no limit.

        InvalidError: the pool is larger already, or was made for less (the `size` of `open`).
        """
        self._check_writable()
        self._pool.set_limit(0 if size is None else parse_size(size))

    def _find(self, shelf: str, which: str) -> _core.Snapshot:
        """Find a snapshot. One that left the pool is read from its URL."""
        handle = self._pool.find(shelf, which, self._verifies)
        is_local = isinstance(handle, _core.Snapshot)
        return cast(_core.Snapshot, PoolHandle(self, handle)) if is_local else handle

    def _raise_limit(self, limit: int) -> None:
        if 0 < self._pool.info()["limit_bytes"] < limit:
            self._pool.set_limit(limit)

    def compact(self, progress: Progress | None = None, *, finished: bool = False) -> None:
        """Compact older snapshots and release unused space, until nothing is left to do.

        ``finished=True``: also the newest snapshots of all shelves, as `Shelf.compact` does for one.

        FullError: there is no room to work in. DamagedError: a snapshot can't be read. SIGINT raises KeyboardInterrupt;
        completed work stays.
        """
        self._check_writable()
        self._pool.compact(progress, finished)

    def pause(self) -> None:
        """Pause the background compactor until `resume`. Pauses nest.

        It yields to other threads by itself; the policy's ``rate=20M`` limits its bytes a second.
        """
        self._pool.pause()

    def resume(self) -> None:
        """Resume the background compactor."""
        self._pool.resume()

    def verify(self, address: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
        """Read everything, or the part at ``"shelf"`` or ``"shelf@which"``, and check all checksums.

        Returns
        -------
        dict
            ``snapshots``, ``contents``, ``bytes_read``, ``damages`` and ``unsupported`` (counts; the latter of records
            and payloads of a newer version, which are not damage), and ``list``, a dict for each of the first thousand
            of both, which ``is_unsupported`` distinguishes.
        """
        return self._pool.verify(address, progress)

    def scrub(
        self,
        what: str | Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        sample: float | str | None = None,
        rate: int | str | None = None,
        repair: bool = False,
        sources: Iterable[str | os.PathLike[str]] = (),
    ) -> dict[str, Any]:
        """Check all stored bytes against their checksums, report everything that a damage affects, and repair it.

        Parameters
        ----------
        what
            One or several of ``"shelf"``, ``"shelf@which"`` or a range. Default: everything.
        progress
            Called with the task, the bytes read and all bytes; may raise to stop the scrub.
        sample
            Read only a share (0.01, or ``"1%"``) or a size (``"10GiB"``), from the end of the last sample on: samples
            add up to everything.
        rate
            Bytes to read per second, at most.
        repair
            Repair damage from another copy: in parity, in the other replica, in the pool, in `sources`. Data without a
            copy is recorded as lost; reading it raises.
        sources
            Paths of archives and pools that may hold copies. Unreadable ones are skipped while there are others.

        Returns
        -------
        dict
            ``contents``, ``bytes_read``, ``bytes_total``, ``damages`` (a count), ``repaired``, ``lost`` (contents with
            lost bytes), ``unsupported`` (records and payloads of a newer version, neither checked nor changed),
            ``sources_unread`` (a count), ``is_whole`` (by now everything has been read), and ``list``, a dict for each
            of the first thousand damages: its ``state`` (``"found"``, ``"repaired"``, ``"lost"``, ``"unsupported"``),
            ``what``, ``source``, ``tensor``, bytes, elements and rows, and ``holders``, the snapshots that need it.

        Raises
        ------
        ReadOnlyError
            `repair`, and the store is open for reading.
        FullError
            There is no room for a repair; earlier repairs stay.
        Error
            No source can be read (`NotFoundError`, `DamagedError`). Every error of the scrub itself has its result so
            far as ``report``.
        """
        share, size = _sample(sample)
        if repair:
            self._check_writable()
        paths = (sources,) if isinstance(sources, str | os.PathLike) else sources
        return self._pool.scrub(
            _texts(what),
            share,
            size,
            0 if rate is None else parse_size(rate),
            bool(repair),
            tuple(os.fsencode(file_path(path)) for path in paths),
            progress,
        )

    def dump(
        self,
        file: int | Any,
        what: str | Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        since: str | os.PathLike[str] | int | Any | Iterable[str | os.PathLike[str] | int | Any] = (),
        canonical: bool = False,
        resume: bool = False,
        skip_lost: bool = False,
    ) -> dict[str, Any]:
        """Write an archive to a binary file or a descriptor, which may be a pipe.

        Parameters
        ----------
        file
            The target. Files that transform their bytes, such as one of `gzip`, are refused.
        what
            One or several of a shelf (``"run"``), a snapshot (``"run@7"``) and a range (``"run@5..9"``). Default:
            everything. Includes the bases of deltas, or whole tensors where that is smaller.
        progress
            See `scrub`.
        since
            Older archives: paths or open files. The archive omits their contents and needs them to be restored.
        canonical
            Write the same bytes for the same content, however it is stored: entries by name, payloads raw.
        resume
            Check the beginning of the archive in `file`, open for reading and writing, and continue it. Warns if it was
            damaged before its end, so that the rest was cut off.
        skip_lost
            Omit snapshots with lost data instead of failing.

        Returns
        -------
        dict
            ``snapshots``, ``snapshots_lost`` (omitted by `skip_lost`), ``contents``, ``contents_found`` (contents that
            an older archive has), ``bytes``, ``warnings`` (sentences, each also raised as a `UserWarning`): a shelf of
            an older archive has only the name in common.

        Raises
        ------
        NotFoundError
            There is no such shelf or snapshot.
        DamagedError
            A tensor can't be read; or, with `resume`, the file holds something else, or a complete archive that is
            damaged.
        InUseError
            With `resume`: another dump continues the file.
        UnsupportedError
            The file is of another kind.
        """
        addresses = _texts(what)
        with archives(since) as older:
            return _warned(self._pool.dump(descriptor(file), addresses, older, canonical, resume, skip_lost, progress))

    def restore(
        self,
        file: str | os.PathLike[str] | int | Any | Iterable[str | os.PathLike[str] | int | Any],
        progress: Progress | None = None,
        *,
        only: str | Iterable[str] | None = None,
        name: str | None = None,
        move_tags: bool = False,
        resume: bool = False,
    ) -> dict[str, Any]:
        """Add the snapshots of an archive, after verifying it; a failure leaves the pool unchanged.

        A snapshot restored with some tensors only is completed by a later restore of others, or of all; open it again
        then.

        Parameters
        ----------
        file
            An archive: a path, an open binary file or a descriptor, which may be a pipe; or several, the oldest first,
            which appear in one commit. The newest archive of a shelf decides on its name and its tags. A shelf that was
            dropped and begun again under its name is restored as the new one.
        progress
            See `scrub`.
        only
            Parts (with an ``@``: ``"run@7"``, ``"run@5..9"``, ``"run@.."``), or tensors by name or pattern
            (``"model.*"``). Takes one archive, a file, and reads nothing else of it.
        name
            A new name for the shelf.
        move_tags
            Move tags that exist elsewhere on the shelf. Default: they stay. Tags of the shelf that the archives lack
            always stay.
        resume
            Continue an interrupted restore, whose data stays in the pool unseen until a restore with `resume` uses it
            or one without frees it.

        Returns
        -------
        dict
            ``snapshots`` (added or completed), ``snapshots_skipped`` (existing), ``contents``, ``contents_found``
            (those in the pool already), ``bytes``, ``warnings`` (sentences, each also raised as a `UserWarning`): a
            shelf was left out, keeps its name here, or was compared by name alone.

        Raises
        ------
        ExistsError
            A shelf has other snapshots under the same numbers, or is another one that has the name.
        DamagedError
            The archive is damaged.
        NotFoundError
            It has no such part; or it needs another archive, which is missing.
        """
        self._check_writable()
        wanted = _texts(only)
        addresses = tuple(text for text in wanted if "@" in text)
        tensors = tuple(text for text in wanted if "@" not in text)
        with archives(file) as descriptors:
            return _warned(self._pool.restore(descriptors, addresses, tensors, name, move_tags, resume, progress))

    def push(
        self,
        url: str,
        what: str | Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        follow: bool = False,
        timeout: float | None = None,
        mirror: bool = False,
        rate: int | str | None = None,
        repair: bool = False,
        confirm: Literal["sample", "all", "off"] = "sample",
    ) -> dict[str, Any]:
        """Send the snapshots that a run in an object store lacks, and its tags; `lmcstore.pull` restores them.

        A snapshot is there, complete, or absent. It is sent as what is new since the one before, and from time to time
        whole. Snapshots older than the newest one there are not sent; of one that `what` names a warning is logged.
        Several programs may push to one URL.

        Parameters
        ----------
        url
            ``s3://bucket/folder``, ``gs://``, ``az://``, or ``file:///folder``; made by the first push. Keys, region
            and endpoint come from the usual environment, or from the profile files of AWS.
        what
            One or several of a shelf (``"run"``), a snapshot (``"run@7"``) and a range (``"run@5..9"``). Default:
            everything.
        progress
            Called with the task, the bytes that the server has confirmed, and 0; may raise to stop the push.
        follow
            Go on, and send each snapshot when it is durable.
        timeout
            With `follow`: end after this many seconds without a new snapshot. None: never.
        mirror
            Remove snapshots there that this pool lacks, and compare metrics and notes of all, not only of the newest.
        confirm
            How copies are checked before the pool may let snapshots go (`Shelf.policy`, ``local``): all digests and
            objects, and a tensor of each snapshot (or all) by reading it. "off": nothing is let go.

        rate
            Bytes to send per second, at most (``"20MiB"``).
        repair
            First read the whole run, and send missing and damaged objects anew, as far as the pool has their snapshots.

        Returns
        -------
        dict
            ``snapshots`` and ``keys`` (snapshots sent whole, beside) that were sent, ``bytes``, ``confirmed``
            (snapshots that the pool may let go), and ``commit``, the number of the newest commit. Of a run of many
            ranks also ``waiting``: a sentence for each snapshot that waits for parts of other machines. With `repair`
            also ``repaired`` and ``left``, a dict for each snapshot that stays unreadable: ``shelf``, ``number``,
            ``message``; of a run of many ranks ``unchecked``, the sub-runs whose pools are on other machines.

        Raises
        ------
        ExistsError
            The URL has another shelf of the name, or other snapshots of it.
        InputOutputError
            The server can't be reached, or refuses. With `follow` the push goes on trying.
        UnsupportedError
            The package ``obstore`` is missing, or it is no such URL.
        DamagedError, NotFoundError
            As their names say.
        """
        from ._remote.push import push  # needs modules that others do without

        return push(
            self, url, what, progress, follow=follow, timeout=timeout, mirror=mirror, rate=rate, repair=repair,
            confirm=confirm,
        )  # fmt: skip

    def close(self) -> None:
        """Close this open of the pool, after snapshots under way, lazy ones too. A second call does nothing.

        Tensors and arrays that were read stay valid. Raises an unreported failure of a snapshot taken with
        ``wait=False``; the store is closed all the same.
        """
        for job in list(self._jobs):
            job.wait()
        self._finalizer.detach()
        self._pool.close()
        for remote in self._remotes.values():
            remote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        if self.closed:
            raise InvalidError(f"{self._path}: a closed store can't be copied or pickled")
        if self._again is not None:
            function, arguments = self._again
            return function, (self._uuid, *arguments)
        return _reopened, (self._path, self._uuid, self._force_network, self._verifies, self._remote)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"mode {self._mode!r}"
        return f"<lmcstore.Store {self._path!r}, {state}>"

    def _repr_html_(self) -> str:
        if self.closed:
            return html.table(repr(self), (), ())
        info, shelves = self._pool.info(), self._pool.shelves()
        limit = html.size(info["limit_bytes"]) if info["limit_bytes"] else "the disk"
        title = f"{self._path}: {html.size(info['used_bytes'])} of {limit} used, {info['medium']}"
        rows = [(shelf["name"], shelf["snapshot_count"], shelf["latest"] or "") for shelf in shelves]
        most = html.MOST_ROWS
        return html.table(title, ("shelf", "snapshots", "latest"), rows[:most], len(rows) - most)

    def _snapshot_counts(self) -> dict[str, int]:
        """Return the number of snapshots by shelf; none if one is unreadable."""
        try:
            return {shelf["name"]: shelf["snapshot_count"] for shelf in self._pool.shelves()}
        except (DamagedError, UnsupportedError):
            return {}

    def _empty(self, name: str) -> str:
        """Describe a shelf without snapshots, and one of a similar name that has some."""
        return f"shelf {name!r} is empty{similar_shelf(name, self._snapshot_counts())}"

    def _begin_writing(self, name: str) -> None:
        """Refuse a store that is open for reading; warn once if the call creates the shelf."""
        self._check_writable()
        if name in self._known or self._exists(name):
            return
        counts = self._snapshot_counts()
        text = (
            f"there is no shelf {name!r} in {self._path}{other_shelves(name, counts)}. The call creates it "
            f"(store.shelf({name!r}, create=True) avoids this warning)"
        )
        self._warn_once(name, text if counts or not self._is_new else None)

    def _warn_of_typo(self, name: str) -> None:
        """Warn once of a shelf that does not exist, while one of a similar name has snapshots."""
        if self._mode == "r" or name in self._known or self._exists(name):
            return
        there = similar_shelf(name, self._snapshot_counts())
        if there:
            self._warn_once(name, f"shelf {name!r} is empty{there} ({self._path})")

    def _warn_once(self, name: str, text: str | None) -> None:
        """Warn of a shelf; not again, in any thread, unless a filter turns the warning into an error."""
        if name in self._known:
            return
        self._known.add(name)
        try:
            if text is not None:
                warn_of_creation(text)
        except CreationWarning:
            self._known.discard(name)
            raise

    def _exists(self, name: str) -> bool:
        """Whether there is a shelf, which is then known. One that is unreadable exists."""
        try:
            self._pool.shelf_info(name)
        except NotFoundError:
            return False
        except (DamagedError, UnsupportedError):
            return True
        self._known.add(name)
        return True

    def _check_writable(self) -> None:
        if hasattr(self._pool, "url"):
            raise ReadOnlyError(
                f"{self._path} is a run in an object store, which is only read here: pull it into a pool "
                "(lmc-store pull)"
            )
        if self._mode == "r":
            raise ReadOnlyError(f"{self._path} was opened with mode 'r'; open it with mode 'r+' or 'a' to write")


def _sample(sample: float | str | None) -> tuple[float, int]:
    """Return the share and the bytes of a sample; both 0: everything."""
    if sample is None:
        return 0.0, 0
    if isinstance(sample, str) and not sample.rstrip().endswith("%"):
        size = parse_size(sample)
        if size == 0:
            raise InvalidError("a sample of no bytes reads nothing")
        return 0.0, size
    try:
        share = float(sample.rstrip().rstrip("%")) / 100 if isinstance(sample, str) else float(sample)
    except (TypeError, ValueError):
        raise InvalidError(f"{sample!r:.100} is no sample: write 0.01, '1%' or '10GiB'") from None
    if not 0 < share <= 1:
        raise InvalidError("a sample is a share above 0, up to 1, or a size such as '10GiB'")
    return share, 0


def _texts(what: str | Iterable[str] | None) -> tuple[str, ...]:
    return () if what is None else (what,) if isinstance(what, str) else tuple(what)
