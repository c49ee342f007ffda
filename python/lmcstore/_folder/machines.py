# SPDX-License-Identifier: BSD-3-Clause
"""`Machine`: the ranks that see the same folder, and their pools in it.

Each machine has the records: the coordinator's are first, and the lowest rank of another machine keeps a copy. A copy
gets each record with the decision on its save. When a run starts, all copies become like the one that has used the
highest number: a copy may lack the last records and removals, but has no others.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from typing import Any

from .. import errors
from .._text.caution import warn_of_creation
from .._text.similar import listed
from ..errors import InputOutputError, InvalidError, NotFoundError
from ..snapshot import Snapshot
from ..store import Store
from .channel import Channel
from .ranks import RECORDS, there
from .record import Record
from .writing import Opener, RankWriter, Records, identity

log = logging.getLogger("lmcstore")

_BOOT = "/proc/sys/kernel/random/boot_id"


def together(exchange: Callable[[Any], list[Any]], function: Callable[[], Any]) -> list[Any]:
    """Call a function on all ranks, and return all results; if one raises, all raise. `exchange`: as of a `Channel`."""
    failure: Exception | None = None
    result: Any = None
    try:
        result = function()
    except Exception as error:
        failure = error
    kind, text = ("", "") if failure is None else (_kind_of(failure), str(failure))
    results = exchange((kind, text, result))
    if failure is not None:
        raise failure
    for rank, (kind, text, _) in enumerate(results):
        if kind:
            made = getattr(errors, kind, None)
            raise (made or InputOutputError)(f"rank {rank}: {text if made else f'{kind}: {text}'}")
    return [result for _, _, result in results]


def _kind_of(failure: Exception) -> str:
    """Name the class of a failure by which all ranks raise it: of those in `errors`, if it is one of them."""
    kind = type(failure)
    return next((one.__name__ for one in kind.__mro__ if getattr(errors, one.__name__, None) is one), kind.__name__)


class Machine:
    """Collective: all ranks make it at the same place. It begins an attempt: leftovers of earlier ones are settled."""

    def __init__(self, channel: Channel, folder: str, shelf: str, opener: Callable[[int], Opener]) -> None:
        self.folder = folder
        self.rank = channel.rank
        self._shelf = shelf
        self._lags = False
        self.records: Records | None = None
        """Of this machine, on the rank that keeps them."""
        keys = together(channel.exchange, lambda: _key(folder))
        self.machines = sorted([rank for rank, one in enumerate(keys) if one == key] for key in set(keys))
        self.ranks = next(ranks for ranks in self.machines if self.rank in ranks)
        together(channel.exchange, self._open_records)
        if len(self.machines) > 1:
            self._level(channel)
        self._check_whole(channel)
        self.writer = self._open_writer(channel, opener(len(self.ranks)))
        self._numbers = set(self._record_numbers()) if self.rank == 0 else set()

    def _open_records(self) -> None:
        if self.rank == self.ranks[0]:
            self.records = Records(self.folder, self._shelf)
            if self.rank == 0:
                self.records.store._begin_writing(self._shelf)  # it may warn, here rather than in the thread

    def _check_whole(self, channel: Channel) -> None:
        """Refuse a job whose machines lack a pool of the newest record: another machine may have newer records."""
        newest: list[Record] = []

        def find() -> list[int] | None:
            record = self.records.newest() if self.records is not None else None
            if record is None:
                return None
            newest.append(record)
            return there(self.folder, self._shelf, record)

        found = together(channel.exchange, find)

        def check() -> None:
            ranks = newest[0].ranks if newest else {}
            missing = [part.file for rank, part in ranks.items() if not any(one and rank in one for one in found)]
            if missing:
                raise NotFoundError(
                    f"{self.folder}: no machine of this job has {listed(missing)}, with parts of the run's newest "
                    "snapshot. There may be newer records, too: start the job with that machine, or copy its pools "
                    "into a folder of the job"
                )

        together(channel.exchange, check)

    def _open_writer(self, channel: Channel, opener: Opener) -> RankWriter:
        made: list[RankWriter] = []

        def begin() -> None:
            made.append(RankWriter(self.folder, self.rank, opener))
            made[0].settle(self._shelf)
            if self.records is not None:
                self.records.settle_others(self.ranks)

        together(channel.exchange, begin)
        return made[0]

    @property
    def is_copy(self) -> bool:
        """Whether this rank keeps a copy of the records."""
        return self.records is not None and self.rank > 0

    def _used(self) -> int:
        """Return the highest number that a record has or had; 0: none."""
        if self.records is None or self._shelf not in self.records.store:
            return 0
        next_number: int = self.records.store._pool.shelf_info(self._shelf)["next_number"]
        return next_number - 1

    def _record_numbers(self) -> list[int]:
        if self.records is None:
            return []
        return [snapshot.number for snapshot in self.records.store[self._shelf]]

    # Copies

    def news(self, committed: Snapshot) -> dict[str, Any]:
        """Return the changes of the records' copies after a commit: new records, and the numbers of removed ones.

        An earlier record is among them if its commit had failed, and yet made it durable.
        """
        if len(self.machines) == 1:
            return {"archive": None, "removed": []}
        try:
            assert self.records is not None
            numbers = set(self._record_numbers())
            added = sorted(numbers - self._numbers)
            archive = _dumped(self.records.store, [f"{self._shelf}@{number}" for number in added] or [self._shelf])
            removed, self._numbers = sorted(self._numbers - numbers), numbers
        except Exception as error:  # the snapshot exists all the same
            log.error("%s: the copies of the records lack %s: %s", self.folder, committed._address, error)
            return {"archive": None, "removed": []}
        return {"archive": archive, "removed": removed}

    def copy(self, answer: dict[str, Any]) -> None:
        """Add a record to a copy; one that fails stays behind until the run starts again."""
        if not self.is_copy or not answer["number"] or self._lags:
            return
        assert self.records is not None
        try:
            if answer["archive"] is None:
                raise InvalidError("the coordinator could not send it")
            _restore(self.records.store, answer["archive"])
            self._remove(answer["removed"])
        except Exception as error:
            self._lags = True
            log.error("%s: the copy of the records stays behind from now on: %s", self.folder, error)

    def _level(self, channel: Channel) -> None:
        """Make all copies like the home of the log: the one that has used the highest number.

        Of equal ones it is the one with the most removals. All have used the same numbers then, so that they stay equal
        or behind the home.
        """
        numbers = self._record_numbers()
        used = self._used()
        everything = channel.exchange((used, numbers) if self.records is not None else None)
        known = {rank: one for rank, one in enumerate(everything) if one is not None}
        source = min(known, key=lambda rank: (-known[rank][0], len(known[rank][1]), rank))
        most, wanted = known[source][0], set(known[source][1])
        lacking = sorted(wanted - set.intersection(*(set(found) for _, found in known.values())))
        is_behind = any(one != most for one, _ in known.values())

        def dump() -> bytes | None:
            if self.rank != source or not (lacking or is_behind):
                return None
            assert self.records is not None
            some = lacking or sorted(wanted)[-1:]  # any archive has the number, also of no snapshot
            return _dumped(self.records.store, [f"{self._shelf}@{number}" for number in some] or [self._shelf])

        archive = together(channel.exchange, dump)[source]

        def restore() -> None:
            if self.records is not None and self.rank != source:
                self._remove(set(numbers) - wanted)
                if archive is not None and (used < most or not wanted.issubset(numbers)):
                    _restore(self.records.store, archive)
                    log.info("%s: the copy of the records is complete again", self.folder)

        together(channel.exchange, restore)

    def _remove(self, numbers: Any) -> None:
        assert self.records is not None
        for number in numbers:
            shelf = self.records.store[self._shelf]
            if number in shelf:
                shelf.remove(number)


def _key(folder: str) -> tuple[str, int, int]:
    """Identify a folder, which is created if it is missing, among those of all machines."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InvalidError(
            f"{folder} is a file; ranks share a folder of pools. A pool for this rank alone: Run(lmcstore.open(path), "
            "...)"
        )
    if not os.path.lexists(os.path.join(folder, RECORDS)):
        warn_of_creation(f"there is no run in {folder}. Run creates the folder and its pools")
    try:
        os.makedirs(folder, exist_ok=True)
        return boot(), *identity(folder)
    except OSError as error:
        raise InputOutputError(f"{folder}: {error}") from None


def boot() -> str:
    """Identify this machine since its start."""
    with open(_BOOT, encoding="ascii") as file:
        return file.read().strip()


def _dumped(store: Store, what: list[str]) -> bytes:
    with tempfile.TemporaryFile() as file:
        store.dump(file, what)
        file.seek(0)
        return file.read()


def _restore(store: Store, archive: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(archive)
        file.flush()
        file.seek(0)
        store.restore(file, move_tags=True)
