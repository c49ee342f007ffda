# SPDX-License-Identifier: BSD-3-Clause
"""Runs in object stores: `pull` restores the snapshots that `Store.push` has sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ._text.arguments import file_path, parse_size
from .errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    from ._folder.store import FolderStore
    from ._remote.place import Pace, Place
    from .snapshot import Progress
    from .store import Store

__all__ = ["pull"]


def pull(
    url: str,
    pool: str | os.PathLike[str] | Store,
    what: str | Iterable[str] | None = None,
    progress: Progress | None = None,
    *,
    allow_missing: bool = False,
    rate: int | str | None = None,
) -> dict[str, Any]:
    """Restore snapshots of a run in an object store into a pool, which is created if it is missing.

    Snapshots that the pool has are left out, so a pull that was interrupted is repeated. Each snapshot is complete or
    absent. Tags of the run move to its snapshots; other tags of the pool stay, and so do notes and metrics of the
    snapshots that it has.

    Parameters
    ----------
    url
        Of the run, as for `Store.push`; also ``https://``.
    pool
        A path, or a store that is open for writing. Of a run of many ranks: a folder, which is made, or the run's.
    what
        One or several of a shelf (``"run"``), a snapshot (``"run@latest"``) and a range (``"run@5..9"``). Default:
        everything.
    progress
        Called with the task, the bytes read, and 0; may raise to stop the pull.
    allow_missing
        Restore the other parts of a run of many ranks if some are missing.
    rate
        Bytes to receive per second, at most (``"20MiB"``).

    Returns
    -------
    dict
        ``snapshots``, ``snapshots_skipped`` (existing) and ``bytes``; ``missing``, a sentence for each part of a run of
        many ranks that is missing.

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
    from ._remote.place import Pace  # needs modules that others do without

    most = None if rate is None else parse_size(rate)
    if most == 0:
        raise InvalidError("a rate is above 0")
    pace = None if most is None else Pace(most)
    if not isinstance(pool, str | os.PathLike):
        from ._folder.store import FolderStore
        from .store import Store

        if isinstance(pool, FolderStore):
            return _pull_new(url, pool, what, progress, allow_missing, pace)
        if isinstance(pool, Store):
            from ._remote.pull import pull_into

            return pull_into(pool, url, what, progress, pace)
    path = os.path.expanduser(file_path(pool))
    if not os.path.exists(path) or os.path.isdir(path):
        return _pull_new(url, path, what, progress, allow_missing, pace)
    from ._remote.pull import pull_into
    from .opening import open

    with open(path, "r+", background=False) as store:
        return pull_into(store, url, what, progress, pace)


def _pull_new(
    url: str,
    pool: str | FolderStore,
    what: str | Iterable[str] | None,
    progress: Progress | None,
    allow_missing: bool,
    pace: Pace | None,
) -> dict[str, Any]:
    """Pull into a path that does not exist, or into a run's folder or its path."""
    from ._remote.place import Place

    with Place(url, read_pace=pace) as place:
        place.expect("head")
        from ._remote import state  # while the answer is on its way
        from ._remote.pull import Early, pull_into

        head = state.read_head(place)
        if head.ranks is not None:
            from ._folder.remote_pull import pull_run

            return pull_run(pool, place, what, progress, allow_missing)
        if not isinstance(pool, str) or os.path.exists(pool):
            raise UnsupportedError(f"{url} has the run of one pool: pull it into a file, not into a folder")
        with Early(head, what) as early:
            from .opening import open  # takes as long as many requests

            with open(pool, "x", background=False) as store:
                return pull_into(store, url, what, progress, early=early)


def verify(
    place: Place, what: Iterable[str], create: Callable[[str], Store], progress: Progress | None = None
) -> dict[str, Any]:
    """Verify a run in an object store: as `_remote.verify`."""
    from ._remote import state
    from ._remote.verify import verify as verify_pool

    if state.read(place).ranks is None:
        return verify_pool(place, what, create, progress)
    from ._folder.remote import verify_run

    return verify_run(place, what, create, progress)


def mend(store: Store, what: Iterable[str], urls: list[str], files: list[str]) -> dict[str, Any]:
    """Scrub and repair a pool or a run's folder, from files and then from runs in object stores."""
    from ._folder.store import FolderStore
    from .store import Store

    if isinstance(store, FolderStore):
        from ._folder.remote_repair import scrub as scrub_run

        return scrub_run(store, what, urls, files, Store._create)
    from ._remote.repair import scrub

    return scrub(store, what, urls, files, Store._create)
