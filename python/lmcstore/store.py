# SPDX-License-Identifier: BSD-3-Clause
"""Stores: opening a pool, and what concerns it as a whole."""

from __future__ import annotations

import logging
import os
import re
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from . import _core
from ._optimizer.relations import Finder
from ._text import html
from ._text.arguments import descriptor, milliseconds, parse_size, within
from .errors import Error, InvalidError, ReadOnlyError, UnsupportedError
from .shelf import Shelf
from .snapshot import Progress

log = logging.getLogger("lmcstore")

_MODES = {
    "r": _core.OPEN_READ,
    "r+": _core.OPEN_WRITE,
    "a": _core.OPEN_OR_CREATE,
    "x": _core.OPEN_CREATE,
}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_WAIT_MS = 0xFFFFFFFE
_MAX_THREADS = 1024


def open(
    path: str | os.PathLike[str],
    mode: str = "a",
    *,
    size: int | str | None = None,
    wait: float = 10.0,
    threads: int = 0,
    background: bool = True,
    force_network: bool = False,
) -> Store:
    """Open a pool, or create it.

    Parameters
    ----------
    path : str or path-like
        A file on a local file system, a poolset file, or a devdax device.
    mode : {"a", "r", "r+", "x"}
        ``"a"`` opens for writing and creates what isn't there; ``"r+"`` doesn't create, ``"x"`` only creates; ``"r"``
        reads, beside a process that writes.
    size : int or str, optional
        The most that the pool may take of the disk, in bytes or with a unit ("8GiB"). Without it, a new pool grows
        with the disk. A pool that exists keeps its limit unless `size` is larger: then the limit is raised.
    wait : float
        How many seconds to wait for another process that writes to the pool.
    threads : int
        For copying and coding; 0: one a processor, 8 at most.
    background : bool
        Whether older snapshots are compacted in the background while the store is open.
    force_network : bool
        Accept a network file system, on which locks and mappings may fail.

    Returns
    -------
    Store
        To be closed, or used in a ``with`` statement. Opening the same pool again gives the same contents; each
        Store is closed for itself.

    Raises
    ------
    NotFoundError
        With mode "r" or "r+": there is no such pool.
    ExistsError
        (a FileExistsError) With mode "x": there is one.
    InUseError
        Another process has it open for writing, for longer than `wait`.
    FullError, DamagedError, UnsupportedError, InvalidError, InputOutputError
        As their names say.
    """
    if mode not in _MODES:
        raise InvalidError(f"mode {mode!r} is none of 'a', 'r', 'r+', 'x'")
    text = os.fsdecode(path)
    if _URL.match(text):
        raise UnsupportedError(
            f"{text!r} is a URL; a pool is a file on a local file system. Keep the pool on a local disk, and send "
            "archives of it elsewhere with lmc-store dump"
        )
    limit = 0 if size is None else parse_size(size)
    wait_ms = milliseconds(wait, _MAX_WAIT_MS, "wait")
    threads = within(threads, 0, _MAX_THREADS, "threads")
    flags = (0 if background else _core.NO_BACKGROUND) | (_core.FORCE_NETWORK if force_network else 0)
    pool = _core.open(text, _MODES[mode], limit, wait_ms, threads, flags)
    store = Store(pool, text, mode)
    if limit and mode in ("a", "r+"):
        store._raise_limit(limit)
    log.debug("opened %s with mode %r", text, mode)
    return store


def _close_unclosed(pool: _core.Pool, path: str) -> None:
    """Close what a program forgot to close, when it is collected or at exit."""
    try:
        pool.close()
    except Error as error:
        log.error("%s was closed at last, with a failure: %s", path, error)


class Store:
    """A pool that is open: shelves by name. Made by `lmcstore.open`.

    ``store["run"]`` is a shelf, which is made at its first snapshot. A Store may be used by several threads.
    """

    def __init__(self, pool: _core.Pool, path: str, mode: str) -> None:
        self._pool = pool
        self._finders: dict[str, Finder] = {}
        self._path = path
        self._mode = mode
        self._uuid: bytes = pool.info()["uuid"]
        self._finalizer = weakref.finalize(self, _close_unclosed, pool, path)

    @property
    def path(self) -> str:
        """The path that it was opened by."""
        return self._path

    @property
    def mode(self) -> str:
        """The mode that it was opened with."""
        return self._mode

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._pool.closed

    def __getitem__(self, name: str) -> Shelf:
        if not isinstance(name, str):
            raise UnsupportedError(f"a shelf is named by a str, not by a {type(name).__qualname__}")
        return Shelf(self, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.shelves()

    def __iter__(self) -> Iterator[str]:
        return iter(self.shelves())

    def shelves(self) -> list[str]:
        """Give the names of the shelves, sorted."""
        return [shelf["name"] for shelf in self._pool.shelves()]

    def info(self) -> dict[str, Any]:
        """Tell what the pool is and holds.

        Returns
        -------
        dict
            ``path``, ``medium``, ``file_system``, ``is_persistent_memory``, ``limit_bytes``, ``used_bytes``,
            ``live_bytes``, ``free_bytes``, ``snapshot_count``, ``snapshots_that_fit``, ``compaction_backlog`` and the
            other members of ``struct lmcs_pool_info``.
        """
        return self._pool.info()

    def set_limit(self, size: int | str | None) -> None:
        """Set the most that the pool may take of the disk; None: as much as there is.

        Raises
        ------
        InvalidError
            It takes more already.
        """
        self._check_writable()
        self._pool.set_limit(0 if size is None else parse_size(size))

    def _raise_limit(self, limit: int) -> None:
        if 0 < self._pool.info()["limit_bytes"] < limit:
            self._pool.set_limit(limit)

    def compact(self, progress: Progress | None = None) -> None:
        """Compact older snapshots and give unused space back; returns when nothing is left to do.

        Raises
        ------
        FullError
            There is no room to work in.
        DamagedError
            A snapshot can't be read.
        KeyboardInterrupt
            SIGINT came; what is done is done, and nothing is lost.
        """
        self._check_writable()
        self._pool.compact(progress)

    def pause(self) -> None:
        """Hold the background compactor until `resume`; they nest."""
        self._pool.pause()

    def resume(self) -> None:
        """Let the background compactor go on."""
        self._pool.resume()

    def verify(self, address: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
        """Read everything, or what ``"shelf"`` or ``"shelf@which"`` names, and check all checksums.

        Returns
        -------
        dict
            ``snapshots``, ``contents``, ``bytes_read``, ``damages`` and ``unsupported`` (records and payloads of a
            newer version, which are no damage), and ``list``, a dict for each of the first thousand of both:
            ``is_unsupported`` tells them apart.
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
        """Compare what is stored with its checksums, name all that a damage hits, and repair it.

        Parameters
        ----------
        what
            Only what ``"shelf"``, ``"shelf@which"`` or a range of it needs, or several of them.
        progress
            Called with what is done, the bytes that were read, and those there are; it may raise to stop the scrub.
        sample
            Read only a share of everything (0.01, or ``"1%"``), or so many bytes (``"10GiB"``), from where the last
            sample ended: samples add up to all.
        rate
            Bytes to read in a second, at most.
        repair
            Repair what there is another copy of: in parity, in the other replica, in the pool, in `sources`. What can't
            be repaired is noted as lost, left alone, and said when it is read.
        sources
            Paths of archives and pools that may have what is damaged. What can't be read is passed over while there
            are others.

        Returns
        -------
        dict
            ``contents``, ``bytes_read``, ``bytes_total``, ``damages`` (their number), ``repaired``, ``lost`` (contents
            of the pool of which something is), ``unsupported`` (records and payloads of a newer version: neither
            checked nor changed), ``sources_unread`` (their number), ``is_whole`` (everything has been read, by now),
            and ``list``, a dict for each of the first thousand damages: its ``state`` (``"found"``, ``"repaired"``,
            ``"lost"``, ``"unsupported"``), ``what``, ``source``, ``tensor``, bytes, elements and rows, and ``holders``,
            the snapshots that need it.

        Raises
        ------
        ReadOnlyError
            The store is open for reading, and can't be repaired.
        FullError
            There is no room to write what could be repaired; what was, stays so.
        Error
            Of what kind a source is that can't be read (`NotFoundError`, `DamagedError`); what the others had has been
            repaired. Of all that the scrub itself raises, ``report`` is the dict of what it found.
        """
        share, size = _sample(sample)
        if repair:
            self._check_writable()
        return self._pool.scrub(
            _texts(what),
            share,
            size,
            0 if rate is None else parse_size(rate),
            bool(repair),
            tuple(os.fspath(path) for path in ((sources,) if isinstance(sources, str | os.PathLike) else sources)),
            progress,
        )

    def dump(
        self,
        file: int | Any,
        what: str | Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        since: Iterable[int | Any] = (),
        canonical: bool = False,
        resume: bool = False,
        skip_lost: bool = False,
    ) -> dict[str, Any]:
        """Write an archive to a binary file or a descriptor, which may be a pipe.

        Parameters
        ----------
        file
            Where it goes. Not a file that changes what is written to it, such as one of `gzip`: such are refused.
        what
            A shelf (``"run"``), a snapshot (``"run@7"``), a range (``"run@5..9"``), or several of them; without it,
            everything. Bases that the part needs travel along, or what rests on them is sent whole, whichever is less.
        since
            Older archives, open files: what they have is left out, and is needed to restore this one.
        canonical
            Make the same archive for the same content, however it is stored: entries by name, payloads raw.
        resume
            `file` is open for reading and writing, and may hold the beginning of this archive: check it, and go on.
        skip_lost
            Leave out snapshots of which a scrub found something lost, instead of failing at them.

        Returns
        -------
        dict
            ``snapshots``, ``contents``, ``contents_found`` (those that are only named, for an older archive has them),
            ``bytes``.

        Raises
        ------
        NotFoundError
            There is no such shelf or snapshot.
        DamagedError
            A tensor can't be read; or, with `resume`, the file holds something else.
        UnsupportedError
            It is no such file.
        """
        addresses = _texts(what)
        older = tuple(descriptor(one) for one in since)
        return self._pool.dump(descriptor(file), addresses, older, canonical, resume, skip_lost, progress)

    def restore(
        self,
        file: int | Any | Iterable[int | Any],
        progress: Progress | None = None,
        *,
        only: str | Iterable[str] | None = None,
        name: str | None = None,
        move_tags: bool = False,
        resume: bool = False,
    ) -> dict[str, Any]:
        """Add the snapshots of an archive, which is verified first; on failure the pool is as it was.

        Parameters
        ----------
        file
            An open binary file or a descriptor, which may be a pipe; or several, one made since the other, the oldest
            first: one commit shows them all. Not one of `gzip` or the like.
        only
            Parts (what has an ``@`` in it: ``"run@7"``, ``"run@5..9"``, ``"run@.."``), or tensors by name or pattern
            (``"model.*"``). Then there is one archive, a file, of which nothing else is read.
        name
            Of the shelf, instead of its own.
        move_tags
            Tags that the shelf has elsewhere move to where the archive has them. Else they stay.
        resume
            When the restore is cut short, what has arrived stays in the pool, unseen, for the next one with `resume`;
            any restore without it gives the room back.

        Returns
        -------
        dict
            ``snapshots`` (added), ``snapshots_skipped`` (there already), ``contents``, ``contents_found`` (those of
            them that the pool had), ``bytes``.

        Raises
        ------
        ExistsError
            A shelf has other snapshots under the same numbers.
        DamagedError
            The archive is not what was written.
        NotFoundError
            It has no such part; or it was made since another archive, which is missing.
        """
        self._check_writable()
        files = tuple(file) if isinstance(file, list | tuple) else (file,)
        wanted = _texts(only)
        addresses = tuple(text for text in wanted if "@" in text)
        tensors = tuple(text for text in wanted if "@" not in text)
        descriptors = tuple(descriptor(one) for one in files)
        return self._pool.restore(descriptors, addresses, tensors, name, move_tags, resume, progress)

    def close(self) -> None:
        """Close this open of the pool; waits for snapshots under way. Closing twice does nothing.

        What was read stays valid: tensors and arrays keep their own mappings.

        Raises
        ------
        Error
            That of a snapshot taken with ``wait=False`` which failed, if nobody was told yet. The store is closed all
            the same.
        """
        self._finalizer.detach()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"mode {self._mode!r}"
        return f"<lmcstore.Store {self._path!r}, {state}>"

    def _repr_html_(self) -> str:
        if self.closed:
            return html.table(repr(self), (), ())
        info, shelves = self.info(), self._pool.shelves()
        limit = html.size(info["limit_bytes"]) if info["limit_bytes"] else "the disk"
        title = f"{self._path}: {html.size(info['used_bytes'])} of {limit} used, {info['medium']}"
        rows = [(shelf["name"], shelf["snapshot_count"], shelf["latest"] or "") for shelf in shelves]
        most = html.MOST_ROWS
        return html.table(title, ("shelf", "snapshots", "latest"), rows[:most], len(rows) - most)

    def _check_writable(self) -> None:
        if self._mode == "r":
            raise ReadOnlyError(f"{self._path} was opened with mode 'r'; open it with mode 'r+' or 'a' to write")


def _sample(sample: float | str | None) -> tuple[float, int]:
    """Give the share and the bytes of a sample; 0: everything."""
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
