# SPDX-License-Identifier: BSD-3-Clause
"""`Removed`: removes the parts of a rank whose records were removed.

Records are removed first, by the policy or by a user. A part without a record is removed, too, if this machine's
records have one of a later part: a copy that lags lacks the newest records only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..errors import DamagedError, Error, NotFoundError
from ..shelf import Shelf
from ..store import Store
from .record import read_head

log = logging.getLogger("lmcstore")

_NO_GROUP = bytes(16)


class Removed:
    """`records`: opens the records for reading. `own`: the rank's pool."""

    def __init__(self, records: Callable[[], Store], own: Store, shelf: str) -> None:
        self._records = records
        self._own = own
        self._shelf = shelf
        self._recorded: dict[int, tuple[int, bytes] | None] = {}
        self._parts: dict[int, bytes] = {}
        self._seen: tuple[int, int] | None = None

    def collect(self, dry_run: bool = False) -> list[tuple[int, int, int]]:
        """Remove parts, if the numbers of records and parts have changed; return the space that each freed."""
        records, own = self._records()[self._shelf], self._own[self._shelf]
        counts = len(records), len(own)
        is_usual = counts[0] == counts[1] if self._seen is None else _differ(counts) == _differ(self._seen)
        if is_usual and not dry_run:
            self._seen = counts
            return []
        freed = []
        for number in self._orphans(records, own):
            try:
                freed.append(self._own._pool.remove(self._shelf, number, dry_run))
            except NotFoundError:
                continue
            except Error as error:
                log.warning("%s: %s@%d is left, whose record was removed: %s", own.store.path, own.name, number, error)
        self._seen = len(records), len(own)
        return freed

    def _orphans(self, records: Shelf, own: Shelf) -> list[int]:
        pool = self._own._uuid
        numbers = {snapshot.number for snapshot in records}
        for number in numbers - self._recorded.keys():
            try:
                parts = read_head(records[number]._decode()).ranks.values()
            except NotFoundError:
                continue
            self._recorded[number] = next(((part.number, part.group) for part in parts if part.pool == pool), None)
        self._recorded = {number: part for number, part in self._recorded.items() if number in numbers}
        there = [part for part in self._recorded.values() if part is not None]
        newest = max((number for number, _ in there), default=0)
        kept = {group for _, group in there}
        own_numbers = [snapshot.number for snapshot in own]
        for number in own_numbers:
            if number not in self._parts:
                try:
                    self._parts[number] = own[number]._info["group"]
                except (DamagedError, NotFoundError):
                    continue
        self._parts = {number: self._parts[number] for number in own_numbers if number in self._parts}
        return [
            number
            for number, group in self._parts.items()
            if number < newest and group != _NO_GROUP and group not in kept
        ]


def _differ(counts: tuple[int, int]) -> int:
    return counts[0] - counts[1]

