# SPDX-License-Identifier: BSD-3-Clause
"""`open`: opens a pool, or the folder of a run of many ranks."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from . import _core
from ._folder.store import is_folder, open_folder
from ._remote import consent
from ._text.arguments import absolute, file_path, milliseconds, parse_size, within
from ._text.caution import warn_of_creation
from ._text.similar import listed
from .errors import (
    DamagedError,
    Error,
    ExistsError,
    InUseError,
    InvalidError,
    NotFoundError,
    ReadOnlyError,
    UnsupportedError,
)
from .snapshot import Progress
from .store import Store

log = logging.getLogger("lmcstore")

_POOL_OPTIONS = ("background", "copy_nice", "copy_threads", "expect", "memory", "size", "threads")
_MODES = {
    "r": _core.OPEN_READ,
    "r+": _core.OPEN_WRITE,
    "a": _core.OPEN_OR_CREATE,
    "x": _core.OPEN_CREATE,
}
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BROKEN_URL = re.compile(r"(s3|gs|az|https?|file):", re.IGNORECASE)
_CACHE_BYTES = 8 << 30
_MAX_WAIT_MS = 0xFFFFFFFE
_MAX_THREADS = 1024
_MAX_NICE = 19


def open(
    path: str | os.PathLike[str],
    mode: str = "a",
    *,
    size: int | str | None = None,
    wait: float = 10.0,
    threads: int = 0,
    background: bool = True,
    force_network: bool = False,
    verify: bool = True,
    expect: int | str | None = None,
    copy_threads: int = 0,
    copy_nice: int = 0,
    memory: int | str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    remote: bool | str | Iterable[str] | None = None,
) -> Store:
    """Open a pool, or create it.

    Parameters
    ----------
    path
        A file on a local file system, a poolset file, or a devdax device; ``~`` is the home folder. Or the folder of a
        run of many ranks: mode "r+" opens it for changes (while no rank writes), the others but "x" for reading. It
        takes `wait` (for the records), `threads`, `force_network` and `verify`; `size` is refused, and the other
        options are of captures. Or the URL of a run in an object store, for reading: blocks of tensors are fetched when
        they are read, and kept in files of at most `memory` bytes (default: 8 GiB), in `cache` or a temporary folder.
    mode
        ``"a"`` opens for writing and creates a missing pool, with a `CreationWarning`; ``"r+"`` opens an existing one,
        ``"x"`` only creates; ``"r"`` reads, also while another process writes.
    size
        The limit of the pool's size on disk, in bytes or with a unit ("8GiB"). Default: none. It raises an existing
        pool's limit, never lowers it. A new pool's file has addresses for 8 times its size, at least 16 GiB, at most
        8 TiB; a limit above 15/16 of them is an InvalidError: dump such a pool, and restore it into one of that size.
    wait
        Seconds to wait for another process that writes to the pool.
    threads
        For copying and encoding; 0: one per processor, at most 8.
    background
        Whether to compact older snapshots in the background.
    force_network
        Accept a network file system, where locks and mappings may fail.
    verify
        Whether reads compare raw payloads with their checksums: each 1 MiB block once per open store, at the speed of
        memory; later reads of it are by pointer. False: reads return raw bytes, also flipped bits, without a check.
        Decoded tensors and plain values are always verified. `Snapshot.load_into` and `Snapshot.export` compare raw
        payloads also then, each block once per open store: a bit that flips after its first read is not found.

    expect
        The size of the first snapshot, in bytes or with a unit, if it is known: the background prepares space for it,
        so that it does not wait for file space and page faults. Tensors above an eighth of it, or 64 MiB, get their own
        place, for which nothing is prepared until a snapshot has shown their sizes. The close gives back what is not
        used.
    copy_threads
        For the work of a snapshot after its call has returned (``wait=False``, ``lazy=``): copies, comparisons,
        encoding. 0: as `threads`.
    copy_nice
        The nice value of these threads, 0 to 19: the higher, the more they leave to others on busy processors, and the
        longer a step may wait for a lazy copy. None gets a higher priority than the thread that made it.
    memory
        The most memory for the newest states of shelves, in bytes or with a unit; from them snapshots write links
        (`Shelf.policy`, ``write``). A shelf takes the size of its state, twice with lazy snapshots;
        ``info()["memory_bytes"]`` has the sum. Tensors that find no room are written raw. 0: none, so no links.
        Default: a quarter of the memory that this process may use.
    remote
        The URLs that may be contacted for snapshots that left the pool (`Snapshot.remote`): True for any, False for
        none, or a URL or several, also for those below. Default: those of a push by this user on this machine that let
        snapshots go, and those in the environment variable ``LMC_STORE_REMOTE``, with spaces between them. Others raise
        RemoteError when such a snapshot is read.

    Returns
    -------
    Store
        To be closed, or used in a ``with`` statement. A second open of a pool gives another Store.

    Raises
    ------
    NotFoundError
        Mode "r" or "r+", and there is no such pool.
    ExistsError
        (a FileExistsError) Mode "x", and the pool exists.
    InUseError
        Another process has it open for writing, for longer than `wait`. Each rank of a distributed run needs a pool of
        its own: ``lmcstore.open(f"run.{rank}.pool")``.
    FullError, DamagedError, UnsupportedError, InvalidError, InputOutputError
        As their names say.
    """
    if mode not in _MODES:
        raise InvalidError(f"mode {mode!r} is none of 'a', 'r', 'r+', 'x'")
    text = file_path(path)
    if _URL.match(text):
        return _open_url(text, mode, memory, verify, cache, progress)
    if _BROKEN_URL.match(text):
        raise InvalidError(f"{text!r} is no URL, which has two slashes after the colon; a pool's path: './{text}'")
    may_contact = consent.named(remote)
    if cache is not None or progress is not None:
        raise InvalidError(f"cache and progress are for URLs, and {text} is none")
    text = absolute(text)
    if is_folder(text):
        if mode == "x":
            raise ExistsError(f"{text} is a folder; mode 'x' creates a pool, which is a file")
        if size is not None:
            raise UnsupportedError(f"{text} is the folder of a run: each pool in it has a limit of its own")
        wait_ms = milliseconds(wait, _MAX_WAIT_MS, "wait")
        threads = within(threads, 0, _MAX_THREADS, "threads")
        return open_folder(text, threads, force_network, verify, mode == "r+", wait_ms, may_contact)
    limit = 0 if size is None else parse_size(size)
    expect_bytes = 0 if expect is None else parse_size(expect)
    memory_bytes = 0 if memory is None else max(1, parse_size(memory))  # 1: none
    wait_ms = milliseconds(wait, _MAX_WAIT_MS, "wait")
    threads = within(threads, 0, _MAX_THREADS, "threads")
    copying = within(copy_threads, 0, _MAX_THREADS, "copy_threads"), within(copy_nice, 0, _MAX_NICE, "copy_nice")
    flags = (0 if background else _core.NO_BACKGROUND) | (_core.FORCE_NETWORK if force_network else 0)
    try:
        pool, is_new = _open(text, mode, (limit, wait_ms, threads, flags, expect_bytes, *copying, memory_bytes))
    except InUseError as error:
        if "Each rank" in str(error):
            Error.__init__(error, f"{error}. In Python: lmcstore.open({_with_rank(text)})")
        raise
    store = Store(pool, text, mode, is_new, force_network, verify)
    store._copy_nice, store._remote = copying[1], may_contact
    if limit and mode in ("a", "r+"):
        store._raise_limit(limit)
    log.debug("opened %s with mode %r", text, mode)
    return store


def _open_url(
    url: str,
    mode: str,
    memory: int | str | None,
    verify: bool,
    cache: str | os.PathLike[str] | None,
    progress: Progress | None,
) -> Store:
    """Open a run in an object store for reading."""
    if mode not in ("a", "r"):
        raise ReadOnlyError(f"{url} is a run in an object store, which opens for reading only: mode 'r'")
    from ._remote.pool import RemotePool  # needs modules that others do without

    folder = None if cache is None else absolute(file_path(cache))
    cache_bytes = _CACHE_BYTES if memory is None else parse_size(memory)
    pool: Any = RemotePool(url, cache_bytes, Store._create, folder, progress)
    if not pool.has_ranks:
        store = Store(pool, url, "r", False, False, verify)
    else:
        from ._folder.remote import RemoteFolder

        store = RemoteFolder(pool, url, verify)
    store._again = _reopened_url, (url, cache_bytes, folder, verify)
    return store


def _reopened_url(uuid: bytes, url: str, memory: int, cache: str | None, verify: bool) -> Store:
    """Open a run anew, for a copy of a Store; NotFoundError: another run is there."""
    store = _open_url(url, "r", memory, verify, cache, None)
    if store._uuid != uuid:
        store.close()
        raise NotFoundError(f"{url} is another run than the one that was copied or pickled")
    return store


def _open(path: str, mode: str, options: tuple[int, ...]) -> tuple[_core.Pool, bool]:
    """Open or create a pool; also return whether it is new. Warns before mode "a" creates it."""
    if mode == "a":
        try:
            return _core.open(path, _core.OPEN_WRITE, *options), False
        except NotFoundError:
            if os.path.isdir(os.path.dirname(path) or "."):
                warn_of_creation(
                    f"there is no pool {path}. The call creates it (mode 'r+' opens existing pools only, mode 'x' "
                    "creates without this warning)"
                )
        except DamagedError:  # perhaps a blank device
            pool = _core.open(path, _core.OPEN_OR_CREATE, *options)
            warn_of_creation(f"{path} was blank: it is a new pool")
            return pool, True
    return _core.open(path, _MODES[mode], *options), mode in ("a", "x")


def pool_options_of(options: Mapping[str, Any] | None, has_store: bool = False) -> dict[str, Any]:
    """Return the options with which `Run` and others open pools. InvalidError: others, or any for an open store."""
    given = dict(options or {})
    unknown = [name for name in given if name not in _POOL_OPTIONS]
    if unknown or (given and has_store):
        what = f"has {listed(unknown)}" if unknown else "is for a path"
        raise InvalidError(f"pool_options {what}: the options of lmcstore.open are {listed(_POOL_OPTIONS)}")
    return given


def _with_rank(path: str) -> str:
    """Return the source text of an f-string that is a path with the rank in it: ``f'run.{rank}.pool'``."""
    stem, extension = os.path.splitext(path.replace("{", "{{").replace("}", "}}"))
    return f"f{stem + '.{rank}' + extension!r}"
