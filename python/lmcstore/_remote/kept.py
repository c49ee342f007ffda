# SPDX-License-Identifier: BSD-3-Clause
"""`Kept`: blocks and outlines of runs in object stores, in files of a folder of a bounded size.

Several processes may use a folder. A file is complete, and its bytes are compared with its hash when it is read. The
files that were used last stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import threading
import time

from .. import _core
from ..errors import InputOutputError

_PREFIX = "lmc-store-cache-"
_NEW = ".new-"
_OWN = re.compile(r"(outline|[0-9a-f]{32})-[0-9a-f]+|\.new-[0-9a-f]{16}")
_STALE_S = 60.0
_HASH_BYTES = 16
_KEPT_SHARE = 0.9
_TOUCH_S = 60.0


class Kept:
    """Blocks of tensors, and outlines of archives. Without a folder: in a temporary one, which `close` removes."""

    def __init__(self, folder: str | None, most_bytes: int, share: int = 1) -> None:
        """`share`: how many temporary folders have `most_bytes`, and half of the free space, together."""
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._used: int | None = None
        self._process = os.getpid()
        self._held = -1
        try:
            if folder is not None:
                os.makedirs(folder, 0o700, exist_ok=True)
                self._folder = folder
                return
            _sweep()
            self._folder = tempfile.mkdtemp(prefix=_PREFIX)
            self._most_bytes = min(most_bytes, shutil.disk_usage(self._folder).free // 2) // share
            self._held = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._held, fcntl.LOCK_SH)
        except OSError as error:
            what = folder or "the folder of temporary files (TMPDIR)"
            raise InputOutputError(f"{what} can't have a cache: {error.strerror or error}") from None

    def renew(self) -> None:
        """Go on in a forked child, which shares the folder, but does not remove it."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Remove a temporary folder."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
            if self._process == os.getpid():
                shutil.rmtree(self._folder, ignore_errors=True)

    def blocks(self, digest: bytes, indexes: range) -> list[bytes] | None:
        """Return blocks of a tensor; None: one of them is not there."""
        found = []
        for index in indexes:
            data = self.get(f"{digest.hex()}-{index}")
            if data is None:
                return None
            found.append(data)
        return found

    def put(self, digest: bytes, index: int, block: bytes) -> None:
        """Keep a block of a tensor."""
        self.add(f"{digest.hex()}-{index}", block)

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a name; None: they are not there, or damaged."""
        path = os.path.join(self._folder, name)
        try:
            with open(path, "rb") as file:
                if time.time() - os.fstat(file.fileno()).st_mtime > _TOUCH_S:
                    os.utime(file.fileno())
                hashed, data = file.read(_HASH_BYTES), file.read()
        except OSError:
            return None
        if _core.block_hash(data) == hashed:
            return data
        with contextlib.suppress(OSError):
            os.unlink(path)
        return None

    def add(self, name: str, data: bytes) -> None:
        """Keep bytes under a name. A full disk is no error."""
        size = len(data) + _HASH_BYTES
        if size > self._most_bytes or not self._make_room(size):
            return
        path, new = os.path.join(self._folder, name), os.path.join(self._folder, _NEW + secrets.token_hex(8))
        try:
            with open(new, "xb") as file:
                file.write(_core.block_hash(data))
                file.write(data)
            os.replace(new, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new)

    def _make_room(self, size: int) -> bool:
        with self._lock:
            if self._used is None or self._used + size > self._most_bytes:
                self._used = self._shrunk(size)
            self._used += size
            return self._used <= self._most_bytes

    def _shrunk(self, size: int) -> int:
        """Remove the files that were used long ago, if there is no room; return the size of all. Others' files stay."""
        files = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if _OWN.fullmatch(entry.name) is None:
                    continue
                with contextlib.suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    files.append((info.st_mtime, entry.path, info.st_size))
        used = sum(count for _, _, count in files)
        if used + size <= self._most_bytes:
            return used
        for _, path, count in sorted(files):
            if used + size <= self._most_bytes * _KEPT_SHARE:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            used -= count
        return used


def _sweep() -> None:
    """Remove the temporary folders of processes that were killed."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError):
                    _remove_stale(entry.path)


def _remove_stale(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        info = os.fstat(descriptor)
        if info.st_uid == os.getuid() and time.time() - info.st_mtime > _STALE_S:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
