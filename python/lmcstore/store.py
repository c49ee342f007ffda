# SPDX-License-Identifier: BSD-3-Clause
"""Stores: opening a pool, and what concerns it as a whole."""

from __future__ import annotations

import logging
import os
import re
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from . import _core
from ._arguments import parse_size
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
    wait_ms = _MAX_WAIT_MS if wait > _MAX_WAIT_MS / 1000 else max(0, round(wait * 1000))
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
            ``snapshots``, ``contents``, ``bytes_read``, ``damages`` (their number), and ``list``, a dict for each of
            the first thousand damages.
        """
        return self._pool.verify(address, progress)

    def dump(self, file: int | Any, shelf: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
        """Write an archive of a shelf, or of all, to a binary file or a descriptor, which may be a pipe."""
        return self._pool.dump(shelf, _descriptor(file), progress)

    def restore(self, file: int | Any, progress: Progress | None = None) -> dict[str, Any]:
        """Add the snapshots of an archive, which is verified first; on failure the pool is as it was.

        Raises
        ------
        ExistsError
            A shelf has other snapshots under the same numbers.
        DamagedError
            The archive is not what was written.
        """
        self._check_writable()
        return self._pool.restore(_descriptor(file), progress)

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

    def _check_writable(self) -> None:
        if self._mode == "r":
            raise ReadOnlyError(f"{self._path} was opened with mode 'r'; open it with mode 'r+' or 'a' to write")


def _descriptor(file: int | Any) -> int:
    if isinstance(file, int):
        return file
    if not hasattr(file, "fileno"):
        raise UnsupportedError(f"an archive goes through an open file or a descriptor, not a {type(file).__qualname__}")
    if hasattr(file, "flush"):
        file.flush()
    return int(file.fileno())
