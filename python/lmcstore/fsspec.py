# SPDX-License-Identifier: BSD-3-Clause
"""``lmc://``: the files of a pool as a file system of fsspec, for tools that take a URL.

``lmc:///data/run.pool/step-10/model.bin`` is the file ``step-10/model.bin`` in the pool ``/data/run.pool``::

    dcp.save(state, checkpoint_id="lmc:///data/run.pool/step-10")
    fsspec.filesystem("lmc").ls("/data/run.pool")

A file is the shelf ``/step-10/model.bin`` with one snapshot of one tensor, ``data``. The shelf ``/step-10/`` is a
directory. The newest snapshot of the shelf ``//move`` has the move that was begun, or null: readers see its result, and
the next writer ends it. Its number tells readers that a move was begun or ended meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import re
import shutil
import tempfile
import threading
import time
import urllib.parse
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from . import _core
from ._remote.place import is_url
from ._text.caution import warn_of_creation
from .errors import InUseError, NotFoundError

__all__ = ["StoreFileSystem"]

log = logging.getLogger("lmcstore")

_DATA = "data"
_MOVE = "//move"
_U8 = _core.DTYPES["u8"]
_COPY_BYTES = 64 << 20
_BUFFER_BYTES = 1 << 20
_NOTICE_SECONDS = 10.0
_READS_AGAIN = 5

_lock = threading.RLock()
"""Of the writing threads: in a process, the opens of a pool are one."""


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


class StoreFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files and directories in pools. Any number of processes may read and write; writers take turns.

    A written file is in memory until it is closed. ``close`` stores it durably and completely, or not at all and raises
    an error. An exception in a ``with`` block discards it, if `open` of the file system has opened it: `fsspec.open`
    calls ``close`` then, which stores the written bytes. ``rm`` and ``mv`` are durable when they return, also those of
    whole directories; a reader sees all of it, or nothing.

    The first file or directory creates the pool, with a `CreationWarning`.

    Parameters
    ----------
    wait
        Seconds to wait for another process that writes to the pool; then `InUseError`.
    """

    protocol = "lmc"
    root_marker = "/"

    def __init__(self, wait: float = 600.0, **options: Any) -> None:
        super().__init__(wait=wait, **options)
        self._wait = float(wait)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = stringify_path(path).removeprefix("lmc://")
        if is_url(text):
            raise ValueError(f"lmc://{text}: files are in pools on this machine. lmc-store pull makes a pool of a run")
        return os.path.abspath(text) if text else "/"

    # Reading

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Return ``name``, ``size``, ``type`` ("file", "directory"), and of a file ``created`` (Unix seconds)."""
        path = self._strip_protocol(path)
        with _reading(path) as (files, inner):
            return files.info(path, inner)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """List a directory: `info` of each entry, or the names only. A file is listed as itself."""
        path = self._strip_protocol(path)
        with _reading(path) as (files, inner):
            found = files.info(path, inner)
            if found["type"] == "directory":
                below = sorted(files.children(inner))
                base = path.rstrip("/")
                entries = [files.info(f"{base}/{name}", f"{inner.rstrip('/')}/{name}") for name in below]
            else:
                entries = [found]
        return entries if detail else [entry["name"] for entry in entries]

    def created(self, path: str) -> Any:
        """Return when a file was stored: seconds since 1970; None: of a directory."""
        return self.info(path).get("created")

    modified = created

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """Open a file, as `AbstractFileSystem.open` does: as text, or compressed, if these are asked for."""
        if "r" in mode and ("+" not in mode or compression is not None):
            return super().open(path, mode, block_size, cache_options, compression, **options)
        name = get_compression(self._strip_protocol(path), compression)
        text = {one: options.pop(one) for one in ("encoding", "errors", "newline") if one in options}
        binary = mode if "b" in mode else mode.replace("t", "") + "b"
        writer: _Writer = super().open(path, binary, block_size, cache_options, **options)
        try:
            file = writer if name is None else _Compressed(compr[name](writer, mode=mode[0]), writer)
            return file if "b" in mode else _Text(file, writer, **text)
        except BaseException:
            writer.discard()
            raise

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **options: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        if mode == "rb":
            with _reading(path) as (files, inner):
                return _Reader(path, files.data(path, inner))
        if mode.replace("b", "").rstrip("+") not in ("w", "x", "a", "r"):
            raise ValueError(f"{path}: mode {mode!r} is none of 'rb', 'wb', 'ab', 'xb', 'r+b'")
        kind = self._kind(path)
        if kind == "directory":
            _fail(errno.EISDIR, path)
        if kind is None and "r" in mode:
            _fail(errno.ENOENT, path)
        if kind is not None and "x" in mode:
            _fail(errno.EEXIST, path)
        _place(path)
        return _Writer(self, path, mode, autocommit, bool(kind))

    def _kind(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    # Writing

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Make a directory, and the pool if it is missing."""
        path = self._strip_protocol(path)
        pool, inner = _place(path)
        if create_parents:
            os.makedirs(os.path.dirname(pool), exist_ok=True)
        with self._writing(path, True) as (files, _):
            if inner == "/":
                return
            if files.kind(inner) is not None:
                _fail(errno.EEXIST, path)
            parent = os.path.dirname(inner)
            if not create_parents and files.kind(parent) is None:
                _fail(errno.ENOENT, path)
            while parent != "/":
                if files.has_file(parent):
                    _fail(errno.ENOTDIR, path)
                files.put_directory(parent)
                parent = os.path.dirname(parent)
            files.put_directory(inner)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it."""
        try:
            self.mkdir(path, create_parents=True)
        except FileExistsError:
            if not exist_ok or not self.isdir(path):
                raise

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        path = self._strip_protocol(path)
        with self._writing(path) as (files, inner):
            files.remove_directory(path, inner)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        path = self._strip_protocol(path)
        with self._writing(path) as (files, inner):
            if not files.has_file(inner):
                _fail(errno.EISDIR if files.kind(inner) else errno.ENOENT, path)
            files.pool.drop(_shelf(inner))

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files; with `recursive` also directories, each at once."""
        at_once = recursive and maxdepth is None
        for one in reversed(self.expand_path(path, recursive=recursive and not at_once, maxdepth=maxdepth)):
            if not self.isdir(one):
                self.rm_file(one)
            elif at_once:
                with self._writing(one) as (files, inner):
                    files.move(inner, None)
            elif maxdepth is None or not self.ls(one, detail=False):
                self.rmdir(one)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Move a file over another one, or a directory, at once; into a directory that exists, as shutil.move does."""
        if not (isinstance(path1, str) and isinstance(path2, str)) or "*" in path1 or maxdepth is not None:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if path2.endswith("/") or self.isdir(target):
            target = f"{target.rstrip('/')}/{os.path.basename(source)}"
        pool, inner = _place(target)
        if _place(source)[0] != pool:
            super().mv(source, target, recursive=True, **options)
            return
        with self._writing(source) as (files, old):
            kind, over = files.kind(old), files.kind(inner)
            if kind is None:
                _fail(errno.ENOENT, source)
            if f"{inner}/".startswith(f"{old}/"):
                if inner != old:
                    _fail(errno.EINVAL, target)
                return
            if over is not None and (over != kind or (kind == "directory" and any(files.children(inner)))):
                _fail(errno.EEXIST, target)
            files.check_parents(target, inner)
            files.move(old, inner)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        """Copy a file; in a pool the copies share their bytes. Of a directory, make another one."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            return self.makedirs(target, exist_ok=True)
        pool, inner = _place(target)
        if _place(source)[0] == pool:
            with self._writing(source) as (files, old):
                if files.kind(inner) is None and files.has_file(old):
                    files.check_parents(target, inner)
                    files.pool.find(_shelf(old), "latest").fork(_shelf(inner))
                    return None
        with self.open(source, "rb") as reader, self.open(target, "wb") as writer:
            shutil.copyfileobj(reader, writer, _COPY_BYTES)

    @contextlib.contextmanager
    def _writing(self, path: str, creates: bool = False) -> Iterator[tuple[_Files, str]]:
        """Open a path's pool for writing, and end a move that was begun."""
        place, inner = _place(path)
        with _lock:
            if creates and not os.path.lexists(place):
                warn_of_creation(f"there is no pool {place}. The call creates it")
            try:
                pool = self._opened(place, _core.OPEN_OR_CREATE if creates else _core.OPEN_WRITE)
            except NotFoundError:
                _fail(errno.ENOENT, path)
            try:
                files = _Files(pool)
                files.end_move()
                yield files, inner
            finally:
                pool.close()

    def _opened(self, place: str, mode: int) -> _core.Pool:
        end, waited = time.monotonic() + self._wait, False
        while True:
            left = max(0.0, end - time.monotonic())
            wait_ms = int(min(left, _NOTICE_SECONDS) * 1000)
            try:
                return _core.open(place, mode, 0, wait_ms, 0, _core.NO_BACKGROUND)
            except InUseError as error:
                if left <= _NOTICE_SECONDS:
                    raise
                if not waited:
                    log.warning("%s; waiting up to %.0f s more", error, left - _NOTICE_SECONDS)
                waited = True


@contextlib.contextmanager
def _reading(path: str) -> Iterator[tuple[_Files, str]]:
    place, inner = _place(path)
    try:
        pool = _core.open(place, _core.OPEN_READ)
    except NotFoundError:
        _fail(errno.ENOENT, path)
    try:
        yield _Files(pool), inner
    finally:
        pool.close()


def _place(path: str) -> tuple[str, str]:
    """Return the pool of a path, and the path in it: "/", or "/" and names."""
    parts = path.split("/")
    for index in range(2, len(parts) + 1):
        pool = "/".join(parts[:index])
        if (pool.endswith(".pool") and not os.path.isdir(pool)) or os.path.isfile(pool):
            return pool, "/" + "/".join(parts[index:])
    raise FileNotFoundError(
        errno.ENOENT, f"the path names no pool: give it one, such as lmc://{path}.pool/..., or an existing file", path
    )


def _fail(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)


_QUOTED = re.compile(r"[^ -~\w]|[%@]")


def _shelf(inner: str) -> str:
    """Return the name of a file's shelf: characters that a shelf's name can't have are percent-encoded."""
    return _QUOTED.sub(lambda one: urllib.parse.quote(one[0], safe="", errors="surrogatepass"), inner)


def _inner(shelf: str) -> str:
    return urllib.parse.unquote(shelf, errors="surrogatepass")


class _Files:
    """The files of an open pool. Paths are those in the pool."""

    def __init__(self, pool: _core.Pool) -> None:
        self.pool = pool

    def info(self, path: str, inner: str) -> dict[str, Any]:
        kind = self.kind(inner)
        if kind is None:
            _fail(errno.ENOENT, path)
        if kind == "directory":
            return {"name": path, "size": 0, "type": kind}
        snapshot = self._snapshot(path, inner)
        known = snapshot.info()
        return {"name": path, "size": known["raw_bytes"], "type": kind, "created": known["time_ns"] / 1e9}

    def data(self, path: str, inner: str) -> memoryview:
        """Return the bytes of a file, compared with their checksums."""
        view = self._snapshot(path, inner).view([_DATA], _core.TENSOR, _core.VIEW_VERIFY)
        return memoryview(view.unpack()[4][0])

    def _snapshot(self, path: str, inner: str) -> _core.Snapshot:
        for _ in range(_READS_AGAIN):
            with contextlib.suppress(NotFoundError):  # a writer has moved or replaced it meanwhile
                return self.pool.find(self._shelf_of(inner), "latest")
        _fail(errno.EISDIR if self.kind(inner) else errno.ENOENT, path)

    def kind(self, inner: str) -> str | None:
        while True:
            number, _ = self._move()
            found = self._kind(inner)
            if found is not None or self._move()[0] == number:
                return found

    def _kind(self, inner: str) -> str | None:
        if self.has_file(inner):
            return "file"
        is_there = inner == "/" or self._exists(self._shelf_of(inner + "/"))
        return "directory" if is_there or self._below(inner) else None

    def has_file(self, inner: str) -> bool:
        return inner != "/" and self._exists(self._shelf_of(inner))

    def children(self, inner: str) -> set[str]:
        """Return the names of a directory's entries."""
        start = len(inner.rstrip("/")) + 1
        return {one[start:].partition("/")[0] for one in self._below(inner)} - {""}

    def _below(self, inner: str) -> list[str]:
        """Return the paths of files and directories below a directory; those of directories end in "/"."""
        prefix = inner.rstrip("/") + "/"
        while True:
            number, move = self._move()
            shelves = self.pool.shelves()
            if self._move()[0] == number:
                break
        found = []
        for name in (shelf["name"] for shelf in shelves):
            if not _is_ours(name):
                continue
            path = _inner(name)
            if move is not None and _is_in(path, move[0]):
                if move[1] is None:
                    continue
                path = move[1] + path[len(move[0]) :]
            if path.startswith(prefix) and path != prefix:
                found.append(path)
        return found

    def _shelf_of(self, inner: str) -> str:
        """Return the shelf of a path, where a move that was begun may have left it."""
        _, move = self._move()
        if move is not None and _is_in(inner, move[0]):
            return "//"  # which there is not
        if move is not None and move[1] is not None and _is_in(inner, move[1]):
            before = _shelf(move[0] + inner[len(move[1]) :])
            if self._exists(before):
                return before
        return _shelf(inner)

    def _exists(self, shelf: str) -> bool:
        try:
            self.pool.find(shelf, "latest")
        except NotFoundError:
            return False
        return True

    def _move(self) -> tuple[int, tuple[str, str | None] | None]:
        """Return the number of the last change, and the paths of a move that was begun; without a second: a removal."""
        try:
            known = self.pool.find(_MOVE, "latest").info()
        except NotFoundError:
            return 0, None
        move = json.loads(known["meta_json"])["move"]
        return known["number"], None if move is None else (move[0], move[1])

    # Writing

    def move(self, old: str, new: str | None) -> None:
        """Move a file or directory over an existing one, or remove it. It is done once `_MOVE` is durable."""
        self._put(_MOVE, json.dumps({"move": (old, new)}))
        self.end_move()

    def end_move(self) -> None:
        _, move = self._move()
        if move is None:
            return
        old, new = move
        for name in [shelf["name"] for shelf in self.pool.shelves()]:
            if not _is_ours(name) or not _is_in(_inner(name), old):
                continue
            if new is None:
                self.pool.drop(name)
                continue
            target = _shelf(new + _inner(name)[len(old) :])
            if self._exists(target):
                self.pool.drop(target)
            self.pool.rename(name, target)
        self._put(_MOVE, json.dumps({"move": None}))

    def put_directory(self, inner: str) -> None:
        if not self._exists(_shelf(inner + "/")):
            self._put(_shelf(inner + "/"), None)

    def remove_directory(self, path: str, inner: str) -> None:
        kind = self.kind(inner)
        if kind != "directory":
            _fail(errno.ENOENT if kind is None else errno.ENOTDIR, path)
        if any(self.children(inner)):
            _fail(errno.ENOTEMPTY, path)
        if inner != "/":
            self.pool.drop(_shelf(inner + "/"))

    def check_parents(self, path: str, inner: str) -> None:
        while (inner := os.path.dirname(inner)) != "/":
            if self.has_file(inner):
                _fail(errno.ENOTDIR, path)

    def put(self, inner: str, file: int) -> None:
        """Replace the content of a file durably by the bytes of a descriptor."""
        size = os.fstat(file).st_size

        def fill(capture: _core.Capture) -> None:
            with memoryview(capture.reserve(_DATA, _U8, array("Q", [size]))) as data:
                at = 0
                while at < size:
                    if (got := os.preadv(file, [data[at : at + _COPY_BYTES]], at)) == 0:
                        raise OSError(errno.EIO, "the file became shorter while it was stored")
                    at += got

        self._put(_shelf(inner), None, fill)

    def _put(self, shelf: str, meta: str | None, fill: Callable[[_core.Capture], None] = lambda _: None) -> None:
        """Store a snapshot durably, and remove the earlier ones of the shelf."""
        capture = self.pool.begin(shelf)
        try:
            fill(capture)
            number = self._commit(capture, meta)
        except BaseException:
            capture.abort()
            raise
        for other in self.pool.numbers(shelf, 0, 1 << 10):
            if other != number:
                self.pool.remove(shelf, other)

    @staticmethod
    def _commit(capture: _core.Capture, meta: str | None) -> int:
        return capture.commit(None, 0, time.time_ns(), (), (), (), meta, 0)


def _is_ours(shelf: str) -> bool:
    return shelf.startswith("/") and not shelf.startswith("//")


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


class _Bytes(io.RawIOBase):
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = start + offset
        return self._at


class _Reader(io.BufferedReader):
    """A stored file. It stays readable when the file is replaced or removed."""

    def __init__(self, path: str, data: memoryview) -> None:
        super().__init__(_Bytes(data), _BUFFER_BYTES)
        self.path = path
        self.size = len(data)


def _file_in_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("lmcstore")
    with tempfile.TemporaryFile() as file:  # this Python was built for an old C library
        return os.dup(file.fileno())


class _Writer(io.BufferedRandom):
    """A file in memory that `close` stores. Its descriptor's fsync stores nothing."""

    def __init__(self, fs: StoreFileSystem, path: str, mode: str, autocommit: bool, exists: bool) -> None:
        self._file = _file_in_memory()
        super().__init__(io.FileIO(self._file, "r+"), _BUFFER_BYTES)
        self._fs = fs
        self.path = path
        self._is_new = "x" in mode
        self._waits = not autocommit
        self._discarded = False
        if exists and ("a" in mode or "r" in mode):
            with fs.open(path, "rb") as before:
                shutil.copyfileobj(before, self, _COPY_BYTES)
            if "r" in mode:
                self.seek(0)

    def commit(self) -> None:
        """Store the file, of a transaction that ends."""
        if self._discarded:
            return
        if self._waits and not self.closed:
            self._drop()
            self.close()
            return
        try:
            with self._fs._writing(self.path, True) as (files, inner):
                kind = files.kind(inner)
                if kind == "directory":
                    _fail(errno.EISDIR, self.path)
                if kind is not None and self._is_new:
                    _fail(errno.EEXIST, self.path)
                files.check_parents(self.path, inner)
                files.put(inner, self._file)
        finally:
            self._release()

    def discard(self) -> None:
        """Store nothing."""
        if not self._discarded:
            self._release()

    def _release(self) -> None:
        self._discarded = True
        if self._waits and self.closed:
            os.close(self._file)
        super().close()

    def close(self) -> None:
        """Store the file durably. Raises if that fails: it is as it was before then."""
        if self.closed:
            return
        try:
            if not self._discarded:
                self.flush()
                if self._waits:
                    self._file = os.dup(self._file)
                else:
                    self.commit()
        finally:
            super().close()

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def _drop(self) -> None:
        log.warning("%s was not closed, so it is not stored", self.path)
        self._discarded = True

    def __del__(self) -> None:
        if not self.closed and not self._discarded:
            self._drop()
            self.close()


class _Layer:
    """What a program writes to instead of a `_Writer`. The file is discarded when that would be."""

    closed: bool
    close: Callable[[], None]
    _writer: _Writer

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is not None:
            self._writer._discarded = True
        self.close()

    def __del__(self) -> None:
        if not self._writer._discarded and not self.closed:
            self._writer._drop()
            self.close()


class _Text(_Layer, io.TextIOWrapper):
    def __init__(self, file: Any, writer: _Writer, **options: Any) -> None:
        self._writer = writer
        super().__init__(file, **options)


class _Compressed(_Layer, io.BufferedIOBase):
    """Closes the file, which the codecs of fsspec do not."""

    def __init__(self, codec: Any, writer: _Writer) -> None:
        self._codec = codec
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return int(self._codec.write(data))

    def tell(self) -> int:
        return int(self._codec.tell())

    def flush(self) -> None:
        if not self._writer.closed:
            self._codec.flush()

    def close(self) -> None:
        try:
            if not self.closed:
                self._codec.close()
        except BaseException:
            self._writer._discarded = True
            raise
        finally:
            self._writer.close()
            super().close()
