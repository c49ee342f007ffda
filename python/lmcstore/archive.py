# SPDX-License-Identifier: BSD-3-Clause
"""Archives without a pool: what is in them, and whether they are whole.

`Store.dump` writes them and `Store.restore` reads them into a pool::

    from lmcstore import archive

    for snapshot in archive.ls("run.archive")["snapshots"]:
        print(snapshot["shelf"], snapshot["number"], snapshot["tags"])
    archive.verify("run.archive")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from . import _core
from ._text.arguments import descriptor

__all__ = ["ls", "verify"]


def ls(file: str | Path | int | BinaryIO) -> dict[str, Any]:
    """List an archive.

    Parameters
    ----------
    file
        A path, an open binary file or a descriptor, which may be a pipe. Of a file the payloads are passed over.

    Returns
    -------
    dict
        ``id`` (of the archive, as text), ``since`` (ids of the archives that it needs), ``bytes``, ``contents``,
        ``known_contents`` (of them, those that older archives have), and ``snapshots``: a dict for each, with
        ``shelf``, ``number``, ``step``, ``time_ns``, ``parent``, ``tensor_count``, ``raw_bytes``, ``new_contents`` and
        ``new_bytes`` (what came with it, as it is stored), ``tags`` and ``metrics``.

    Raises
    ------
    DamagedError
        It is no archive, or not what was written.
    UnsupportedError
        A newer lmcstore wrote it.
    """
    if isinstance(file, str | Path):
        with open(file, "rb") as opened:
            return _core.archive_ls(opened.fileno())
    return _core.archive_ls(descriptor(file))


def verify(file: str | Path | int | BinaryIO) -> dict[str, Any]:
    """Read all of an archive, check every record, and decode every content that does not rest on an older archive.

    Parameters
    ----------
    file
        A path, an open binary file or a descriptor. Of a pipe the records are checked, and nothing is decoded.

    Returns
    -------
    dict
        As `ls` gives it, with ``decoded_contents``; ``snapshots`` is their number.

    Raises
    ------
    DamagedError
        The first damage, and where it is.
    UnsupportedError
        A newer lmcstore wrote it.
    """
    if isinstance(file, str | Path):
        with open(file, "rb") as opened:
            return _core.archive_verify(opened.fileno())
    return _core.archive_verify(descriptor(file))
