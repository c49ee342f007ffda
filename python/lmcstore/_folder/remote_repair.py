# SPDX-License-Identifier: BSD-3-Clause
"""Repairs a run's folder from runs of many ranks in object stores (store/REMOTE.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._remote import repair, state
from .._remote.codec import rank_of
from .._remote.place import Place
from ..errors import UnsupportedError
from ..store import Store
from .ranks import RECORDS
from .store import FolderStore

Create = Callable[[str], Store]


def scrub(
    store: FolderStore, what: Iterable[str], urls: Sequence[str], files: Iterable[str], create: Create
) -> dict[str, Any]:
    """Scrub and repair the pools of a folder, from files and then from runs; return the result of `FolderStore.scrub`.

    A pool is repaired from the sub-runs of the rank that its file's name has, and then from the others.
    """
    ranks = {}
    for url in urls:
        with Place(url) as place:
            found = state.read(place).ranks
        if found is None:
            raise UnsupportedError(f"{url} has the run of one pool, which can't repair a run of many ranks")
        ranks[url] = found

    def scrub_one(one: Store, file: str, addresses: Sequence[str] | None, sources: list[str]) -> dict[str, Any]:
        if file == RECORDS:
            return repair.scrub(store._operations().records, addresses or (), urls, sources, create)
        digits = re.search("[0-9]+", file)
        own = int(digits.group()) if digits is not None else -1
        places = []
        for url, names in ranks.items():
            places += [f"{url}/{name}" for name in sorted(names, key=lambda name: rank_of(name) != own)]
        return repair.scrub(one, addresses or (), places, sources, create)

    return store._scrubbed(scrub_one, tuple(what) or None, files, True)
