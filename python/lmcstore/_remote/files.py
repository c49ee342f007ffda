# SPDX-License-Identifier: BSD-3-Clause
"""Places without a server: a folder, and the memory of this process for tests."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from ..errors import DamagedError, InvalidError, NotFoundError, UnsupportedError

_TEMPORARY = ".new-"
_UNFINISHED = re.compile(r"(data/[^/]+|index|log)/\.new-[0-9a-f]{16}")


class ObjectNotFoundError(NotFoundError):
    """A snapshot, or an object of it, is missing at its place. NotFoundError alone: a snapshot lacks a tensor."""


Part = bytes | memoryview
"""A part of the bytes of an object."""


class Info(NamedTuple):
    """An object as its server lists it."""

    name: str
    bytes: int
    time: float
    """When it was written, in seconds since 1970, by the server's clock."""


def is_unfinished(name: str) -> bool:
    """Whether it is a file of a folder that a killed process, or one that still runs, has not written to its end."""
    return _UNFINISHED.fullmatch(name) is not None


class FolderClient:
    """Files below a folder. An object is complete or absent, and durable once it is written."""

    def __init__(self, path: str) -> None:
        self._top = path

    def _path(self, name: str) -> str:
        return os.path.join(self._top, name)

    def _opened(self, name: str) -> BinaryIO:
        """Open an object for reading; DamagedError: it is no file, such as a pipe, which nobody may ever write to."""
        descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DamagedError("it is no file")
        return open(descriptor, "rb")

    def check(self, name: str) -> None:
        """Refuse a change where a folder above the object is a symbolic link: others' files may be there."""
        path = self._top
        for part in name.split("/")[:-1]:
            path = os.path.join(path, part)
            if os.path.islink(path):
                raise InvalidError(f"{path} is a symbolic link, whose target is not changed: remove the link")

    def get(self, name: str, most: int) -> bytes:
        with self._opened(name) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise DamagedError(f"it has {size} bytes, more than {most}")
            return file.read(most)

    def get_range(self, name: str, offset: int, count: int) -> bytes:
        with self._opened(name) as file:
            file.seek(offset)
            return file.read(count)

    def put(self, name: str, *parts: Part) -> None:
        self.check(name)
        temporary = self._written(name, *parts)
        os.replace(temporary, self._path(name))
        _sync_folder(os.path.dirname(self._path(name)))

    def create(self, name: str, data: bytes) -> bool:
        self.check(name)
        if os.path.lexists(self._path(name)):
            _sync_folder(os.path.dirname(self._path(name)))  # of a writer that died before its own
            return False
        temporary = self._written(name, data)
        try:
            os.link(temporary, self._path(name))
        except FileExistsError:
            return False
        except PermissionError:
            raise UnsupportedError(f"{self._top}: its file system has no hard links, which two writers need") from None
        finally:
            os.unlink(temporary)
        _sync_folder(os.path.dirname(self._path(name)))
        return True

    def _written(self, name: str, *parts: Part) -> str:
        import secrets

        folder = os.path.dirname(self._path(name))
        _make_folders(folder)
        temporary = os.path.join(folder, _TEMPORARY + secrets.token_hex(8))
        try:
            with open(temporary, "xb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return temporary

    def head(self, name: str) -> Info:
        info = os.stat(self._path(name))
        return Info(name, info.st_size, info.st_mtime)

    def list(self, prefix: str) -> Iterator[Info]:
        self.check(f"{prefix}/")
        for folder, _, files in os.walk(self._path(prefix)):
            for file in files:
                path = os.path.join(folder, file)
                try:
                    info = os.stat(path)
                except FileNotFoundError:
                    continue
                yield Info(os.path.relpath(path, self._top), info.st_size, info.st_mtime)

    def delete(self, name: str) -> None:
        self.check(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self._path(name)))


_memories: dict[str, dict[str, tuple[bytes, float]]] = {}
_lock = threading.Lock()


class MemoryClient:
    """Objects in this process, which all places of one URL share."""

    def __init__(self, name: str) -> None:
        with _lock:
            self._objects = _memories.setdefault(name, {})

    def get(self, name: str, most: int) -> bytes:
        data = self._found(name)[0]
        if len(data) > most:
            raise DamagedError(f"it has {len(data)} bytes, more than {most}")
        return data

    def get_range(self, name: str, offset: int, count: int) -> bytes:
        return self._found(name)[0][offset : offset + count]

    def put(self, name: str, *parts: Part) -> None:
        with _lock:
            self._objects[name] = (b"".join(parts), time.time())

    def create(self, name: str, data: bytes) -> bool:
        with _lock:
            return self._objects.setdefault(name, kept := (bytes(data), time.time())) is kept

    def head(self, name: str) -> Info:
        data, when = self._found(name)
        return Info(name, len(data), when)

    def list(self, prefix: str) -> Iterator[Info]:
        with _lock:
            found = [(name, *kept) for name, kept in self._objects.items() if name.startswith(prefix.rstrip("/") + "/")]
        for name, data, when in found:
            yield Info(name, len(data), when)

    def delete(self, name: str) -> None:
        with _lock:
            self._objects.pop(name, None)

    def _found(self, name: str) -> tuple[bytes, float]:
        with _lock:
            found = self._objects.get(name)
        if found is None:
            raise FileNotFoundError(name)
        return found


def _make_folders(path: str) -> None:
    """Make a folder and those above it, durably."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    _make_folders(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    _sync_folder(above)


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
