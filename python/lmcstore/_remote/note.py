# SPDX-License-Identifier: BSD-3-Clause
"""The note beside a pool, POOL.pushed, that says up to where pushes have brought it. It is a hint for `info`."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from ..errors import NotFoundError

if TYPE_CHECKING:
    from ..store import Store
    from .state import State

_MOST_BYTES = 1 << 20


def _path(store: Store) -> str:
    return f"{store._pool_path}.pushed"


def _read(store: Store) -> dict[str, dict[str, list[Any]]]:
    try:
        with open(_path(store), "rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write(store: Store, url: str, now: State, missing: dict[str, int] | None = None) -> None:
    """Note the newest snapshots of a state, and how many older ones of the pool it lacks.

    None: as many as noted before. A note that can't be written is left out.
    """
    shelves, before = {}, {one["shelf"]: one["missing"] for one in pushed(store) if one["url"] == url}
    for shelf in now.shelves:
        entry = next((entry for entry in reversed(shelf.newest) if not entry.hidden), None)
        if entry is not None:
            shelves[shelf.name] = [entry.number, entry.time_ns, entry.step]
            shelves[shelf.name].append((before if missing is None else missing).get(shelf.name, 0))
    temporary = f"{_path(store)}.{os.getpid()}"
    with contextlib.suppress(OSError):
        with open(temporary, "w") as file:
            json.dump(_read(store) | {url: shelves}, file)
        os.replace(temporary, _path(store))


def pushed(store: Store) -> list[dict[str, Any]]:
    """Return the newest pushed snapshot of each shelf, and how many follow, as `Store.info` has it."""
    found = []
    for url, shelves in _read(store).items():
        for name, place in shelves.items() if isinstance(shelves, dict) else ():
            try:
                number, time_ns, step, missing = [*place, 0][:4]
                missing = int(missing)
                one = _compared(store, name, number, time_ns)
            except (NotFoundError, TypeError, ValueError, OverflowError):  # the shelf is gone, or the note is no note
                continue
            if one is not None:
                found.append({"url": url, "shelf": name, "number": number, "step": step, "missing": missing, **one})
    return found


def _compared(store: Store, shelf: str, number: int, time_ns: int) -> dict[str, Any] | None:
    pool = store._pool
    with contextlib.suppress(NotFoundError):
        if pool.find(shelf, str(number), False).info()["time_ns"] != time_ns:
            return None
    behind, numbers = 0, pool.numbers(shelf, number + 1, 4096)
    oldest = pool.find(shelf, str(numbers[0]), False).info()["time_ns"] / 1e9 if numbers else None
    while numbers:
        behind += len(numbers)
        numbers = pool.numbers(shelf, numbers[-1] + 1, 4096)
    return {"behind": behind, "oldest_time": oldest}
