# SPDX-License-Identifier: BSD-3-Clause
"""Archives without a pool. `Store.dump` writes archives and `Store.restore` reads them into a pool.

::

    from lmcstore import archive

    for snapshot in archive.ls("run.archive")["snapshots"]:
        print(snapshot["shelf"], snapshot["number"], snapshot["tags"])
    archive.verify("run.archive")

The dump of a run of many ranks is a folder of archives. `restore_run` makes a run of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from . import _core
from ._folder.dumps import Restore, paths_of
from ._text.arguments import archives
from .snapshot import Progress

__all__ = ["ls", "restore_run", "verify"]


def ls(file: str | Path | int | BinaryIO) -> dict[str, Any]:
    """List an archive: a path, an open binary file or a descriptor, which may be a pipe.

    Payloads of files are not read.

    Returns
    -------
    dict
        ``id`` (of the archive, as text), ``since`` (ids of the archives that it needs), ``bytes``, ``contents``,
        ``known_contents`` (those in older archives), and ``snapshots``: a dict for each, with ``shelf``, ``number``,
        ``step``, ``time_ns``, ``parent``, ``tensor_count``, ``raw_bytes``, ``new_contents``, ``new_bytes`` (as stored),
        ``tags``, ``metrics`` and ``group`` (the identity of a part of a run, as text; None: it is no such part).

    Raises
    ------
    DamagedError
        It is no archive, or is damaged.
    UnsupportedError
        A newer lmcstore wrote it.
    """
    with archives(file) as (opened,):
        return _core.archive_ls(opened)


def verify(file: str | Path | int | BinaryIO) -> dict[str, Any]:
    """Check every record of an archive, and decode every content that needs no older archive.

    Takes and raises the same as `ls`; DamagedError states the first damage and its place. Of a pipe only the records
    are checked. The result is that of `ls` with ``decoded_contents``, and ``snapshots`` a count.
    """
    with archives(file) as (opened,):
        return _core.archive_verify(opened)


def restore_run(
    dumps: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    allow_missing: bool = False,
    force_network: bool = False,
) -> dict[str, Any]:
    """Restore the dump of a run of many ranks into a new folder, as ``lmc-store restore`` does.

    Parameters
    ----------
    dumps
        The folder of a dump; or several, the oldest first, of which later ones need earlier ones.
    folder
        The run, which is created. A failure leaves a folder without records, which nothing opens; the same call
        continues it.
    progress
        Called with the task, the work done and all work of one archive; may raise to stop.
    allow_missing
        Restore without the parts that the dumps lack, as of another machine.
    force_network
        As for `lmcstore.open`.

    Returns
    -------
    dict
        ``snapshots`` (of the run), ``snapshots_skipped`` (there before), ``pools``, ``contents``, ``contents_found``,
        ``bytes``, ``warnings``, and ``missing``: a sentence for each part that is missing.

    Raises
    ------
    ExistsError
        The folder exists, and is neither empty nor of an earlier call with these dumps.
    NotFoundError
        A folder is no dump, or lacks a part or an older dump.
    DamagedError
        An archive is damaged.
    """
    flags = _core.FORCE_NETWORK if force_network else 0
    return Restore(paths_of(dumps), paths_of(folder)[0], flags, progress).run(allow_missing)
