# SPDX-License-Identifier: BSD-3-Clause
"""Archives without a pool. `Store.dump` writes archives and `Store.restore` reads them into a pool.

::

    from lmcstore import archive

    for snapshot in archive.ls("run.archive")["snapshots"]:
        print(snapshot["shelf"], snapshot["number"], snapshot["tags"])
    archive.verify("run.archive")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from . import _core
from ._text.arguments import descriptor, file_path

__all__ = ["ls", "verify"]


def ls(file: str | Path | int | BinaryIO) -> dict[str, Any]:
    """List an archive: a path, an open binary file or a descriptor, which may be a pipe.

    Payloads of files are not read.

    Returns
    -------
    dict
        ``id`` (of the archive, as text), ``since`` (ids of the archives that it needs), ``bytes``, ``contents``,
        ``known_contents`` (those in older archives), and ``snapshots``: a dict for each, with ``shelf``, ``number``,
        ``step``, ``time_ns``, ``parent``, ``tensor_count``, ``raw_bytes``, ``new_contents``, ``new_bytes`` (as stored),
        ``tags`` and ``metrics``.

    Raises
    ------
    DamagedError
        It is no archive, or is damaged.
    UnsupportedError
        A newer lmcstore wrote it.
    """
    if isinstance(file, str | Path):
        with open(file_path(file), "rb") as opened:
            return _core.archive_ls(opened.fileno())
    return _core.archive_ls(descriptor(file))


def verify(file: str | Path | int | BinaryIO) -> dict[str, Any]:
    """Check every record of an archive, and decode every content that needs no older archive.

    Takes and raises the same as `ls`; DamagedError states the first damage and its place. Of a pipe only the records
    are checked. The result is that of `ls` with ``decoded_contents``, and ``snapshots`` a count.
    """
    if isinstance(file, str | Path):
        with open(file_path(file), "rb") as opened:
            return _core.archive_verify(opened.fileno())
    return _core.archive_verify(descriptor(file))
