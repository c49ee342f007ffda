# SPDX-License-Identifier: BSD-3-Clause
"""`Removed`: removes the parts of a rank whose records were removed.

Records are removed first, by the policy or by a user, and leave gaps in the numbers. A part without a record is
removed, too, if this machine's records have one of a later part (a copy that lags lacks the newest records only), and
as many gaps as there are such parts (records of another run have none of them). A part whose record was read before,
and is gone since, is removed in any case: no later one may come, as in the pools of ranks that a job lacks. A record
that can't be read may name any part between those of its neighbours, so these stay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..errors import DamagedError, Error, NotFoundError, UnsupportedError
from ..shelf import Shelf
from ..store import Store
from .record import Part, read_head

log = logging.getLogger("lmcstore")

_NO_GROUP = bytes(16)


class Removed:
    """`records`: opens the records for reading. `own`: the rank's pool."""

    def __init__(self, records: Callable[[], Store], own: Store, shelf: str) -> None:
        self._records = records
        self.own = own
        self._shelf = shelf
        self._recorded: dict[int, bytes | None] = {}
        self._gone: set[bytes] = set()
        """The groups of parts whose records were there at an earlier look."""
        self._unreadable: set[int] = set()
        self._parts: dict[int, bytes] = {}
        self.is_named = True
        """Whether a record had a part of the pool at the last look."""
        self._usual: int | None = 0
        """How many more records than parts there are, if each part has a record. None: some have none."""

    def collect(self, known: dict[int, list[Part]] | None = None) -> None:
        """Remove parts, if the numbers of records and parts do not fit together.

        `known`: the pool gets no new parts, and these records were read for others of the kind; more are added.
        """
        records, own = self._records()[self._shelf], self.own[self._shelf]
        if known is None and len(records) - len(own) == self._usual:
            return
        if known is not None and not len(own):
            self.is_named = False
            return
        parts = self._own_parts(own)  # before the records: a part is committed after its record
        kept = self._kept(records, set(parts.values()), {} if known is None else known)
        newest = max((number for number, group in parts.items() if group in kept), default=0)
        doubtful = self._doubtful(parts)
        orphans = [
            number
            for number, group in parts.items()
            if group != _NO_GROUP and group not in kept and number not in doubtful
        ]
        removed = [number for number in orphans if parts[number] in self._gone]
        others = [number for number in orphans if parts[number] not in self._gone and number < newest]
        seen = self._recorded.keys() | self._unreadable
        if len(others) > max(seen, default=0) - len(seen):
            log.warning("%s: %d snapshots of %r have no record; they are left", own.store.path, len(others), own.name)
            orphans = removed
        else:
            removed += others
        self.is_named = bool(kept)
        for number in removed:
            try:
                self.own._pool.remove(self._shelf, number)
            except NotFoundError:
                continue
            except Error as error:
                log.warning("%s: %s@%d is left, without its record: %s", own.store.path, own.name, number, error)
        self._usual = None if len(orphans) > len(removed) else len(self._recorded) - len(own)

    def _kept(self, records: Shelf, own: set[bytes], read: dict[int, list[Part]]) -> set[bytes]:
        """Return the groups of this pool that have a record. Those of a restored pool were saved by another uuid."""
        pool = self.own._uuid
        numbers = {snapshot.number for snapshot in records}
        known, self._unreadable = self._unreadable, set()
        for number in numbers - self._recorded.keys():
            try:
                if number not in read:
                    read[number] = list(read_head(records[number]._decode()).ranks.values())
            except NotFoundError:
                continue
            except (DamagedError, UnsupportedError) as error:
                self._unreadable.add(number)
                if number not in known:
                    log.warning("%s: parts stay that %s@%d may name: %s", self.own.path, self._shelf, number, error)
                continue
            self._recorded[number] = next(
                (part.group for part in read[number] if part.pool == pool or part.group in own), None
            )
        before = {group for group in self._recorded.values() if group is not None}
        self._recorded = {number: self._recorded[number] for number in numbers if number in self._recorded}
        kept = {group for group in self._recorded.values() if group is not None}
        self._gone = self._gone.union(before).intersection(own) - kept
        return kept

    def _doubtful(self, parts: dict[int, bytes]) -> set[int]:
        """Return the parts that unreadable records may name. Numbers of records and of parts ascend together."""
        if not self._unreadable:
            return set()
        numbers = {group: number for number, group in parts.items()}
        places = [(record, numbers[group]) for record, group in self._recorded.items() if group in numbers]
        found: set[int] = set()
        for one in self._unreadable:
            first = max((number for record, number in places if record < one), default=0)
            last = min((number for record, number in places if record > one), default=max(parts, default=0) + 1)
            found.update(number for number in parts if first < number < last)
        return found

    def _own_parts(self, own: Shelf) -> dict[int, bytes]:
        """Return the groups of this rank's snapshots."""
        numbers = [snapshot.number for snapshot in own]
        for number in numbers:
            if number not in self._parts:
                try:
                    self._parts[number] = own[number]._info["group"]
                except (DamagedError, NotFoundError):
                    continue
        self._parts = {number: self._parts[number] for number in numbers if number in self._parts}
        return self._parts
