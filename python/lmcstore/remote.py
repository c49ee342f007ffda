# SPDX-License-Identifier: BSD-3-Clause
"""Runs in object stores: `pull` restores the snapshots that `Store.push` has sent."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ._text.arguments import file_path
from .opening import open
from .snapshot import Progress
from .store import Store

__all__ = ["pull"]


def pull(
    url: str,
    pool: str | os.PathLike[str] | Store,
    what: str | Iterable[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Restore snapshots of a run in an object store into a pool, which is created if it is missing.

    Snapshots that the pool has are left out, so a pull that was interrupted is repeated. Each snapshot is complete or
    absent. Tags of the run move to its snapshots; other tags of the pool stay.

    Parameters
    ----------
    url
        Of the run, as for `Store.push`; also ``https://``.
    pool
        A path, or a store that is open for writing.
    what
        One or several of a shelf (``"run"``), a snapshot (``"run@latest"``) and a range (``"run@5..9"``). Default:
        everything.
    progress
        Called with the task, the bytes read, and 0; may raise to stop the pull.

    Returns
    -------
    dict
        ``snapshots``, ``snapshots_skipped`` (existing) and ``bytes``.

    Raises
    ------
    NotFoundError
        There is no run at the URL, or no such snapshot; or an object is missing.
    DamagedError
        An object is damaged; the text names the object and the snapshot.
    ExistsError
        A shelf of the pool has another snapshot of a number.
    InputOutputError
        The server can't be reached, or refuses.
    """
    from ._remote import state  # needs modules that others do without
    from ._remote.place import Place
    from ._remote.pull import pull_into

    if isinstance(pool, Store):
        return pull_into(pool, url, what, progress)
    path = file_path(pool)
    exists = os.path.exists(os.path.expanduser(path))
    if not exists:
        with Place(url) as place:
            state.read(place)
    with open(path, "r+" if exists else "x", background=False) as store:
        return pull_into(store, url, what, progress)
