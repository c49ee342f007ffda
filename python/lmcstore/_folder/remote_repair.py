# SPDX-License-Identifier: BSD-3-Clause
"""Repairs a run of many ranks in an object store from its folder, and a folder from such a run (store/REMOTE.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._remote import mend, state
from .._remote import repair as of_pool
from .._remote.codec import rank_of
from .._remote.place import Place
from ..errors import UnsupportedError
from ..store import Store
from .ranks import RECORDS
from .remote_push import RunPusher
from .store import FolderStore

Create = Callable[[str], Store]


def repair(pusher: RunPusher, create: Create) -> dict[str, Any]:
    """Repair the sub-runs whose pools are here, and then the records; parts that are lost are sent again.

    Returns the sums of a pool's repair; ``shelf`` and ``number`` of what is left are the run's. ``unchecked``: the
    sub-runs whose pools are elsewhere.
    """
    done: dict[str, Any] = {"repaired": 0, "left": []}
    for shelf in {wanted.shelf for wanted in pusher._wanted()}:
        if pusher._state.find(shelf) is not None:
            done["repaired"] += mend.nodes(pusher, shelf)
    for name in pusher._state.ranks or ():
        with pusher._place.below(name) as below:
            mend.commit(below)
    for one in pusher.pushers():
        before = one.snapshots
        one.push(waits=True)
        done["repaired"] += one.snapshots - before
        one.checked = pusher.parts_of(one)
        found = of_pool.repair(one, create) if one.checked else {}
        one.checked = []
        done["repaired"] += found.get("repaired", 0)
        for damage in found.get("left", ()):
            entry = one._state.shelf(damage["shelf"]).entry(damage["number"])
            number = damage["number"] if entry is None or entry.of is None else entry.of.record
            message = f"rank {rank_of(one.name)}: {damage['message']}"
            done["left"].append({"shelf": damage["shelf"], "number": number, "message": message})
        one.parts = {shelf: {} for shelf in one.parts}
    pusher.list_ranks()
    found = of_pool.repair(pusher, create)
    checked = {one.name for one in pusher._ranks.values()}
    return {
        "repaired": done["repaired"] + found["repaired"],
        "left": done["left"] + found["left"],
        "unchecked": [name for name in pusher._state.ranks or () if name not in checked],
    }


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
            return of_pool.scrub(store._operations().records, addresses or (), urls, sources, create)
        digits = re.search("[0-9]+", file)
        own = int(digits.group()) if digits is not None else -1
        places = []
        for url, names in ranks.items():
            places += [f"{url}/{name}" for name in sorted(names, key=lambda name: rank_of(name) != own)]
        return of_pool.scrub(one, addresses or (), places, sources, create)

    return store._scrubbed(scrub_one, tuple(what) or None, files, True)
