# SPDX-License-Identifier: BSD-3-Clause
"""A storage of torch_checkpointing: checkpoints are files in a pool, as `lmcstore.fsspec` keeps them.

::

    config = CheckpointManager.Config(storage_config=lmcstore.torch_checkpointing.StoreStorageConfig())
    config.build().save("/data/run.pool/step-10", {"model": model.state_dict()})
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
from pathlib import Path
from typing import Any

from torch_checkpointing.storage.base_storage import ReadArgs, Storage, StorageConfig

from .fsspec import StoreFileSystem, _place

__all__ = ["StoreStorage", "StoreStorageConfig"]


@dataclasses.dataclass
class StoreStorageConfig(StorageConfig):  # type: ignore[misc]
    """Keeps checkpoints in the pool that their path names: ``manager.save("/data/run.pool/step-10", ...)``."""

    wait: float = 600.0
    """Seconds to wait for another process that writes to the pool; then `InUseError`."""

    def create_storage(self) -> StoreStorage:
        """Return the storage."""
        return StoreStorage(self)


class StoreStorage(Storage):  # type: ignore[misc]
    """Files in pools, for any number of processes.

    A written file is in memory until its stream is closed. Then it is stored durably and completely, or not at all and
    ``close`` raises an error. `rename`, `delete` and `rmdir` are durable when they return, also of whole directories; a
    reader sees all of it, or nothing.
    """

    def __init__(self, config: StoreStorageConfig) -> None:
        self._fs = StoreFileSystem(wait=config.wait)

    def stream_read(self, path: Path, read_args: ReadArgs | None = None) -> Any:
        """Open a file, whose bytes have been compared with their checksums; `read_args` have no effect."""
        return self._fs.open(str(path), "rb")

    def stream_write(self, path: Path) -> io.IOBase:
        """Open a file for writing; an exception in a ``with`` block discards it."""
        stream: io.IOBase = self._fs.open(str(path), "wb")
        return stream

    def write(self, path: Path, data: Any) -> None:
        """Store a file durably."""
        with self.stream_write(path) as stream:
            stream.write(data)

    def delete(self, path: Path) -> None:
        """Remove a file."""
        self._fs.rm_file(str(path))

    def mkdir(self, path: Path, recursive: bool = True) -> None:
        """Make a directory, and the pool if it is missing."""
        if recursive:
            self._fs.makedirs(str(path), exist_ok=True)
        else:
            self._fs.mkdir(str(path), create_parents=False)

    def rmdir(self, path: Path) -> None:
        """Remove a directory with all that it has, at once."""
        if not self._fs.isdir(str(path)):
            _fail(errno.ENOTDIR if self._fs.exists(str(path)) else errno.ENOENT, path)
        self._fs.rm(str(path), recursive=True)

    def rename(
        self, src_path: Path, dst_path: Path, is_directory: bool = False, background_cleanup: bool = False
    ) -> None:
        """Move a file over another one, or a directory to a free place or an empty one, at once; else OSError."""
        source, target = self._fs._strip_protocol(str(src_path)), self._fs._strip_protocol(str(dst_path))
        pool, inner = _place(target)
        if _place(source)[0] != pool:
            _fail(errno.EXDEV, dst_path)
        with self._fs._writing(source) as (files, old):
            kind, over = files.kind(old), files.kind(inner)
            if kind is None:
                _fail(errno.ENOENT, src_path)
            if inner == old:
                return
            if f"{inner}/".startswith(f"{old}/"):
                _fail(errno.EINVAL, dst_path)
            if over is not None and (over != kind or (kind == "directory" and any(files.children(inner)))):
                _fail(errno.ENOTEMPTY if over == "directory" else errno.EEXIST, dst_path)
            files.check_parents(target, inner)
            files.move(old, inner)

    def ls(self, path: Path) -> list[str]:
        """Return the names of a directory's entries."""
        if self._fs.isfile(str(path)):
            _fail(errno.ENOTDIR, path)
        return [os.path.basename(entry) for entry in self._fs.ls(str(path), detail=False)]

    def exists(self, path: Path) -> bool:
        """Return whether there is such a file or directory."""
        return bool(self._fs.exists(str(path)))

    def getsize(self, path: Path) -> int:
        """Return the bytes of a file."""
        return int(self._fs.info(str(path))["size"])

    def isdir(self, path: Path) -> bool:
        """Return whether it is a directory."""
        return bool(self._fs.isdir(str(path)))

    def remap_path(self, path: Path) -> str:
        """Return the URL of a path in fsspec."""
        return f"lmc://{self._fs._strip_protocol(str(path))}"


def _fail(number: int, path: Path) -> None:
    raise OSError(number, os.strerror(number), str(path))
