# SPDX-License-Identifier: BSD-3-Clause
"""Lets the parts of a run's snapshots leave the pools of a folder (store/REMOTE.md, Tiers).

A part goes when its snapshot is at the URL as a whole: the record, and the parts of all ranks.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from .._remote.confirm import LOOK_AGAIN_S, Confirmer
from ..errors import NotFoundError

if TYPE_CHECKING:
    from .remote_push import RunPusher, _RankPusher


class _PartConfirmer(Confirmer):
    """Confirms the parts in the pool of a rank."""

    def __init__(self, pusher: _RankPusher, above: RunConfirmer, whole: bool) -> None:
        super().__init__(pusher._store, pusher._place, whole=whole)
        self.pusher, self._above = pusher, above

    def record(self, shelf: str, info: dict[str, Any]) -> int | None:
        """Return the number of a part's record; 0: it has none at the place. None: not yet."""
        there = self.pusher._state.find(shelf)
        entry = there.entry(info["number"]) if there is not None else None
        if there is None or entry is None:
            return None if there is None or info["number"] >= there.next else 0
        if entry.hidden or entry.of is None or entry.of.group != info["group"].hex():
            return 0
        records = self._above.pusher._state.find(shelf)
        record = records.entry(entry.of.record) if records is not None else None
        if records is None or record is None:
            return None if records is None or entry.of.record >= records.next else 0
        return 0 if record.hidden else record.number

    def _may_go(self, shelf: str, info: dict[str, Any]) -> bool | None:
        number = self.record(shelf, info) if any(info["group"]) else 0
        return self._above.may_go(shelf, number) if number else None if number is None else False


class RunConfirmer:
    """Confirms the parts in the pools of a folder."""

    def __init__(self, pusher: RunPusher, *, whole: bool) -> None:
        self.pusher, self._whole = pusher, whole
        self._records = Confirmer(pusher._store, pusher._place, whole=whole)
        self._parts: dict[str, _PartConfirmer] = {}
        self._tagged: set[int] = set()
        self._later: dict[tuple[str, int], float] = {}
        """When records are looked at again that were not whole."""

    def close(self) -> None:
        for one in (self._records, *self._parts.values()):
            one.close()

    def may_go(self, shelf: str, number: int) -> bool | None:
        """Whether parts of a record may leave; None: not yet."""
        if number in self._tagged:
            return False
        times = (of.get((shelf, number), 0.0) for of in (self._later, self._records._asked))
        return True if max(times) < time.monotonic() else None

    def confirm(self, shelf: str, *, waits: bool) -> set[int] | None:
        """Confirm parts that may go, as `Confirmer.confirm`; return the numbers of their snapshots in the run.

        None: there are no such parts.
        """
        chosen: list[tuple[_PartConfirmer, int, dict[int, dict[str, Any]]]] = []
        letting_go = self.pusher.letting_go(shelf)
        self._tagged = set(self.pusher._run[shelf].tags.values()) if letting_go else set()
        for pusher in letting_go:
            if pusher.name not in self._parts:
                self._parts[pusher.name] = _PartConfirmer(pusher, self, self._whole)
            one = self._parts[pusher.name]
            epoch, infos = one.candidates(shelf, waits)
            if infos:
                chosen.append((one, epoch, {one.record(shelf, info) or 0: info for info in infos}))
        if not chosen:
            return None
        groups = self._whole_groups(shelf, {number for _, _, infos in chosen for number in infos if number}, waits)
        found = set[int]()
        for one, epoch, by_record in chosen:
            parts = {info["number"]: number for number, info in by_record.items() if info["group"] in groups}
            mine = [info for info in by_record.values() if info["number"] in parts]
            sound = one.sound(shelf, mine, one.pusher._commit, one.pusher.now, waits=waits)
            found |= {parts[number] for number in one.ask(shelf, epoch, sound)}
        return found

    def _whole_groups(self, shelf: str, numbers: set[int], waits: bool) -> set[bytes]:
        """Mark records as sole; return the groups of those that are at the place with the parts of all ranks."""
        run, infos = self.pusher, []  # the folder's own records before the mark: a restore adds them last
        for number in sorted(numbers):
            try:
                infos.append(run._store._pool.find(shelf, str(number), False).info())
            except NotFoundError:  # removed, or this copy of the records lacks it yet
                continue
        self._later |= {(shelf, number): time.monotonic() + LOOK_AGAIN_S for number in numbers}
        run._fresh.clear()
        groups = set[bytes]()
        for number in self._records.sound(shelf, infos, run._commit, run.now, waits=waits):
            with contextlib.suppress(NotFoundError):  # removed meanwhile
                parts = run._read(shelf, number).parts
                if all(run._seek(shelf, rank, part) is not None for rank, part in parts.items()):
                    groups |= {part.group for part in parts.values()}
                    del self._later[shelf, number]
        return groups
