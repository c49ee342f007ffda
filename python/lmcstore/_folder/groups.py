# SPDX-License-Identifier: BSD-3-Clause
"""Groups of prepared snapshots.

A pool's prepared snapshot has a group of its own, made of the pool, the shelf and the number that the shelf gives out
next. So the groups that a pool may have are known without a list, and the record that has the group decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from .. import _core
from ..errors import NotFoundError

_GROUP_BYTES = 16


def group_of(pool: bytes, shelf: str, number: int) -> bytes:
    """Return the group of the snapshot that is prepared while a number is the shelf's next."""
    text = b"lmcstore run\0" + pool + number.to_bytes(8, "little") + shelf.encode()
    return hashlib.blake2b(text, digest_size=_GROUP_BYTES).digest()


def next_number(pool: _core.Pool, shelf: str) -> int:
    """Return the least number of the shelf's next snapshot."""
    info = _info(pool, shelf)
    return 1 if info is None else int(info["next_number"])


def undecided(pool: _core.Pool, uuid: bytes, shelf: str) -> Iterator[tuple[int, bytes]]:
    """Yield the groups that may be prepared on a shelf, each with the least number that its snapshot may have."""
    info = _info(pool, shelf)
    if info is not None:
        for number in range(info["latest"] + 1, info["next_number"]):
            yield number, group_of(uuid, shelf, number)


def is_prepared(pool: _core.Pool, shelf: str, number: int) -> bool:
    """Whether a snapshot may be prepared: its number was given out, and it is newer than the latest."""
    info = _info(pool, shelf)
    return info is not None and info["latest"] < number < info["next_number"]


def resolve(pool: _core.Pool, group: bytes, commit: bool) -> bool:
    """Commit or drop the prepared snapshot of a group; return whether there was one."""
    try:
        pool.resolve(group, commit)
    except NotFoundError:
        return False
    return True


def _info(pool: _core.Pool, shelf: str) -> dict[str, Any] | None:
    try:
        return pool.shelf_info(shelf)
    except NotFoundError:
        return None
