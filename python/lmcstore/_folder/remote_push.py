# SPDX-License-Identifier: BSD-3-Clause
"""Sends a run of many ranks: the parts in the pools of this folder, then the records whose parts are all there."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from .. import _core
from .._remote import agree, mend, state
from .._remote.codec import UNKNOWN, Entry, Of, rank_of, sub_runs
from .._remote.confirm import lets_go
from .._remote.outline import Outline
from .._remote.place import Place
from .._remote.push import Pusher, _Batch, _Wanted
from .._remote.repair import repair as repair_pool
from .._remote.sweep import drop_parts
from .._text.similar import listed
from ..errors import DamagedError, Error, InUseError, NotFoundError
from ..store import Store
from .dumps import Wanted, commit_part
from .ranks import RankNotFoundError, rank_files
from .record import Part
from .remote_confirm import RunConfirmer

if TYPE_CHECKING:
    from .store import FolderStore

log = logging.getLogger("lmcstore")

_AT_ONCE_RECORDS = 32
_AT_ONCE_RANKS = 4
_LOOK_EVERY_S = 0.2
"""How often the sub-runs of other machines are read while one waits for them."""


class _Begun(Exception):
    pass


class _RankPusher(Pusher):
    """Pushes parts of a rank's pool to a sub-run."""

    def __init__(self, above: RunPusher, store: Store, place: Place, name: str) -> None:
        self.name = name
        self.parts: dict[str, dict[int, Of]] = {}
        self.checked: list[_Wanted] = []
        """While it is repaired."""
        self._above = above
        super().__init__(store, place, (), False, follows=above._follows, confirm="off")

    def close(self) -> None:
        super().close()
        self._place.close()

    def sent(self, count: int) -> None:
        super().sent(count)
        self._above.sent(count)

    def check_last(self, last: Entry) -> None:
        """Accept parts, behind which this one follows."""

    def leave_out_remote(self) -> None:
        """Forget the parts that have left the pool, which it can't send."""
        for shelf, parts in self.parts.items():
            infos = {number: agree.info_of(self._store, shelf, number) for number in parts}
            self.parts[shelf] = {
                number: of for number, of in parts.items() if (info := infos[number]) and info["remote"] is None
            }

    def described(self, shelf: str, entry: Entry) -> Entry:
        return entry._replace(of=self.parts.get(shelf, {}).get(entry.number))

    def _wanted(self) -> Iterator[_Wanted]:
        return iter(self.checked or [_Wanted(shelf, 1, 1 << 62) for shelf in self.parts])

    def _numbers(self, shelf: str, first: int, last: int) -> list[int]:
        return sorted(number for number in self.parts[shelf] if first <= number <= last)


@dataclass
class _Record:
    """A snapshot of the run that is not there yet."""

    parts: dict[int, Part]
    here: dict[int, _core.Pool]
    missing: dict[int, Part] = field(init=False)
    """Parts that were not found at the place."""
    raw_bytes: int = 0
    stored_bytes: int = 0

    def __post_init__(self) -> None:
        self.missing = dict(self.parts)


class RunPusher(Pusher):
    """Pushes from the folder of a run."""

    _of_ranks = True

    def __init__(self, store: Store, *arguments: Any, **options: Any) -> None:
        confirm = options.pop("confirm", "sample")
        super().__init__(store, *arguments, confirm="off", **options)
        self._confirms = None if confirm == "off" else RunConfirmer(self, whole=confirm == "all")
        self._confirmed: set[tuple[str, int]] = set()
        self._run = cast("FolderStore", store)
        self._ranks: dict[tuple[int, bytes], _RankPusher] = {}
        self._others: dict[str, state.State | None] = {}
        self._places: dict[str, Place] = {}
        self._fresh: set[str] = set()
        self._names: set[str] = set()
        self._pending: dict[str, dict[int, _Record]] = {}
        self._sent_parts: dict[str, int] = {}
        self._begun: set[str] = set()
        self._compared: set[str] = set()
        """Shelves whose newest record there has its parts, as far as their pools are here."""
        self._damaged: set[str] = set()
        """Files that were reported."""
        self._waits = False
        self._looked = 0.0
        self._tagged = 0

    def close(self) -> None:
        if self._confirms is not None:
            self._confirms.close()
        for one in self._ranks.values():
            one.close()
        for place in self._places.values():
            place.close()
        super().close()

    def more(self) -> dict[str, Any]:
        """Return the keys of all ranks, and ``waiting``: a sentence for each snapshot that lacks parts."""
        waiting = [
            f"{shelf}@{number} waits for {listed([part.file for part in one.missing.values()])}"
            for shelf, pending in self._pending.items()
            for number, one in pending.items()
            if one.missing
        ]
        keys = self.keys + sum(one.keys for one in self._ranks.values())
        return {"keys": keys, "waiting": waiting}

    def push(self, *, waits: bool) -> bool:
        """Send parts and records, some after the other; whether there were any."""
        is_done, is_any = False, False
        self._waits = waits
        while not is_done:
            before = self.bytes
            is_done = self._push_parts(waits)
            if waits or self.bytes != before or time.monotonic() - self._looked >= _LOOK_EVERY_S:
                self._looked = time.monotonic()
                self._fresh.clear()  # behind the parts: of two nodes, the last one sees those of the other
            is_any |= super().push(waits=waits and is_done) or self.bytes != before
        return is_any

    def repair(self, create: Callable[[str], Store]) -> dict[str, Any]:
        """Repair the sub-runs whose pools are here, and then the records; parts that are lost are sent again.

        Returns the sums of a pool's repair; ``shelf`` and ``number`` of what is left are the run's. ``unchecked``: the
        sub-runs whose pools are elsewhere.
        """
        done, left = 0, []
        for shelf in {wanted.shelf for wanted in self._wanted()}:
            if self._state.find(shelf) is not None:
                done += mend.nodes(self, shelf)
        for name in self._state.ranks or ():
            with self._place.below(name) as below:
                mend.commit(below)
        for one in self.pushers():
            one.leave_out_remote()
            before = one.snapshots
            one.push(waits=True)
            done += one.snapshots - before
            one.checked = self.parts_of(one)
            found = repair_pool(one, create) if one.checked else {}
            one.checked = []
            done += found.get("repaired", 0)
            for damage in found.get("left", ()):
                entry = one._state.shelf(damage["shelf"]).entry(damage["number"])
                number = damage["number"] if entry is None or entry.of is None else entry.of.record
                message = f"rank {rank_of(one.name)}: {damage['message']}"
                left.append({"shelf": damage["shelf"], "number": number, "message": message})
            one.parts = {shelf: {} for shelf in one.parts}
        self.list_ranks()
        found = repair_pool(self, create)
        left += self._lacking()
        self._compared.update(wanted.shelf for wanted in self._wanted())
        checked = {one.name for one in self._ranks.values()}
        return {
            "repaired": done + found["repaired"],
            "left": left + found["left"],
            "unchecked": [name for name in self._state.ranks or () if name not in checked],
        }

    def _lacking(self) -> list[dict[str, Any]]:
        """List the snapshots there without the parts that pools here should have sent."""
        self._fresh.clear()
        found = []
        for shelf, number in self._there():
            with contextlib.suppress(NotFoundError):  # removed here
                for rank in self._absent(shelf, number):
                    message = f"rank {rank}: {self._place.url} lacks its part, and this folder can't send it again"
                    found.append({"shelf": shelf, "number": number, "message": message})
        return found

    def _absent(self, shelf: str, number: int) -> list[int]:
        """Return the ranks whose pools are here, and whose parts of a snapshot are not there."""
        one = self._read(shelf, number)
        return [rank for rank in one.here if self._seek(shelf, rank, one.parts[rank]) is None]

    def push_news(self) -> bool:
        """Send parts and records; other machines may have sent parts that a record has waited for."""
        is_due = time.monotonic() - self._looked >= _LOOK_EVERY_S
        return self.push(waits=False) if is_due else super().push_news()

    def want_late_keys(self) -> None:
        """Begin those of the ranks' pools."""
        for one in self._ranks.values():
            one.want_late_keys()

    def finish_late_keys(self) -> None:
        """Make those of the ranks' pools."""
        with ThreadPoolExecutor(_AT_ONCE_RANKS, "lmcstore-ranks") as threads:
            list(threads.map(_RankPusher.finish_late_keys, self._ranks.values()))

    # Parts

    def _push_parts(self, waits: bool) -> bool:
        """Send the parts of some records; whether these were all."""
        is_all = all([self._choose(wanted, waits) for wanted in self._wanted()])
        active = [one for one in self._ranks.values() if waits or one._key is not None or any(one.parts.values())]
        with ThreadPoolExecutor(_AT_ONCE_RANKS, "lmcstore-ranks") as threads:
            list(threads.map(lambda one: one.push(waits=waits and is_all), active))
        for one in active:
            one.parts = {shelf: {} for shelf in one.parts}
        return is_all

    def _choose(self, wanted: _Wanted, waits: bool) -> bool:
        """Give parts to the ranks' pushers; whether these are all of the shelf."""
        shelf, there = wanted.shelf, self._state.find(wanted.shelf)
        if there is not None and shelf not in self._compared:
            self._check_parts(there)
        first = max(wanted.first, there.next if there is not None else 1)
        numbers = super()._numbers(shelf, first, wanted.last)
        old = self._pending.get(shelf, {})
        pending = self._pending[shelf] = {number: old[number] for number in numbers if number in old}
        count, stopped = 0, set[int]()
        for number in numbers:
            if number <= self._sent_parts.get(shelf, 0):
                continue
            if count == _AT_ONCE_RECORDS:
                return bool(stopped)
            try:
                one = pending[number] = pending.get(number) or self._read(shelf, number)
            except NotFoundError:  # removed meanwhile
                continue
            if count == 0 or shelf not in self._begun:
                self._begin(shelf, number)
            for rank, pool in one.here.items():
                if rank not in stopped and not self._give(shelf, number, rank, pool, one.parts[rank], waits):
                    stopped.add(rank)
            if not stopped:
                self._sent_parts[shelf] = number
            count += 1
        return True

    def _check_parts(self, there: state.Shelf) -> None:
        """Refuse a run that has lost parts of its newest snapshot: once later ones are sent, they can't be."""
        self._compared.add(there.name)
        agree.check_same(self._store, there, self._place.url)
        entries = (entry.number for entry in there.entries(backwards=True) if not entry.hidden)
        absent: list[int] = []
        for newest in itertools.islice(entries, _AT_ONCE_RECORDS):
            with contextlib.suppress(NotFoundError):  # it was removed here
                absent = self._absent(there.name, newest)
                break
        if absent:
            self._compared.remove(there.name)
            raise DamagedError(
                f"{self._place.url} has {there.name}@{newest} without the parts of ranks {listed(absent)}: their "
                "sub-runs are lost, or older copies. push --repair sends again what the pools here have"
            )

    def pushers(self) -> list[_RankPusher]:
        """Return a pusher for each pool here that has parts of snapshots at the place, with these parts."""
        for shelf, number in self._there():
            with contextlib.suppress(NotFoundError):  # removed here
                one = self._read(shelf, number)
                for rank, pool in one.here.items():
                    self._give(shelf, number, rank, pool, one.parts[rank], True)
        return list(self._ranks.values())

    def _there(self) -> Iterator[tuple[str, int]]:
        """Yield the wanted snapshots that are at the place."""
        for wanted in self._wanted():
            there = self._state.find(wanted.shelf)
            if there is not None:
                agree.check_same(self._store, there, self._place.url)
                entries = there.entries(wanted.first, wanted.last)
                yield from [(wanted.shelf, entry.number) for entry in entries if not entry.hidden]

    def parts_of(self, one: _RankPusher) -> list[_Wanted]:
        """Return the parts of the wanted snapshots in a sub-run."""
        records, found = set(self._there()), []
        for there in one._state.shelves:
            of = ((entry.number, entry.of) for entry in there.entries())
            numbers = [number for number, of in of if of is not None and (there.name, of.record) in records]
            if numbers:
                found.append(_Wanted(there.name, numbers[0], numbers[-1]))
        return found

    def list_ranks(self) -> None:
        """Name sub-runs that are new in the state."""
        self._names.update(one.name for one in self._ranks.values())
        if not self._names <= set(self._state.ranks or ()):
            self._commit(lambda draft: True)

    def _read(self, shelf: str, number: int) -> _Record:
        parts = self._run[shelf]._taken(number)._record_alone().record.ranks
        here = {}
        for rank, part in parts.items():
            with contextlib.suppress(RankNotFoundError):
                here[rank] = self._run._ranks.pool(rank, shelf, part)
        for file, failure in self._run._ranks.failures.items():
            if file not in self._damaged:
                self._damaged.add(file)
                log.error("the parts in %s are not sent: %s", file, failure)
        return _Record(parts, here)

    def _begin(self, shelf: str, number: int) -> None:
        """Refuse another run before anything is sent: compare the identity of the records' shelf, or store it."""
        there = self._state.find(shelf)
        if there is not None:
            agree.check_same(self._store, there, self._place.url)
        if shelf in self._begun:
            return
        kept = self._beginning(self._store._pool, shelf, number)
        if kept is None:
            return

        def apply(draft: state.State) -> bool:
            if draft.find(shelf) is not None:
                return False
            self.add_shelf(draft, shelf, kept.shelves[0].identity)
            return True

        _Batch(self, shelf)._check(kept)
        self._commit(apply)
        _Batch(self, shelf)._check(kept)
        self._begun.add(shelf)

    def _give(self, shelf: str, number: int, rank: int, pool: _core.Pool, part: Part, waits: bool) -> bool:
        """Give a part to its rank's pusher; False: it is not committed yet."""
        try:
            found = pool.find_group(shelf, part.group, False).info()["number"]
        except NotFoundError:  # removed
            return True
        path = pool.info()["path"]
        try:
            pool.find(shelf, str(found), False)
        except NotFoundError:
            if not waits:
                return False
            try:
                commit_part(pool, Wanted(path, shelf, found), part, f"{shelf}@{number}", self._run._flags)
            except InUseError as error:
                log.warning("%s", error)
                return False
        pusher = self._pusher(rank, pool, shelf)
        if pusher is not None:
            pusher.parts.setdefault(shelf, {})[found] = Of(number, part.group.hex())
        return True

    def _pusher(self, rank: int, pool: _core.Pool, shelf: str, *, begins: bool = True) -> _RankPusher | None:
        """Return the pusher of a pool; None: its snapshots were removed, or `begins` is false and nothing was sent."""
        info = pool.info()
        key = rank, info["uuid"]
        if key not in self._ranks:
            store = Store(pool, info["path"], "r")
            store._finalizer.detach()
            made = self._new_pusher(rank, store, shelf, begins)
            if made is None:
                return None
            self._ranks[key] = made
        return self._ranks[key]

    def _new_pusher(self, rank: int, store: Store, shelf: str, begins: bool) -> _RankPusher | None:
        """Return a pusher to the sub-run that has the shelf of a pool, or to a free one."""
        newest = store._pool.newest(shelf, 1 << 62, _AT_ONCE_RECORDS)
        local = [number for number in newest if store._pool.find(shelf, str(number), False).info()["remote"] is None]
        begun = self._beginning(store._pool, shelf, (local or newest)[0]) if newest else None
        if begun is None:
            return None
        identity, free = begun.shelves[0].identity, ""
        taken = {one.name for (other, _), one in self._ranks.items() if other == rank}
        for name in sub_runs(rank):
            now = self._other(name)
            there = None if now is None else now.find(shelf)
            if there is not None and (UNKNOWN in (identity, there.identity) or identity == there.identity):
                free = name
                break
            if there is None and name not in taken:
                free = free or name
            if now is None and free:
                break
        if not begins and self._other(free) is None:
            return None
        return _RankPusher(self, store, self._place.below(free), free)

    def _beginning(self, pool: _core.Pool, shelf: str, number: int) -> Outline | None:
        """Return the beginning of a snapshot's archive, which has the shelf's identity; None: it was removed."""
        found: list[Outline] = []

        def begun(outline: Outline) -> None:
            found.append(outline)
            raise _Begun

        with contextlib.suppress(_Begun):
            self.dump(f"{shelf}@{number}", None, lambda data: None, begun, pool)
        return found[0] if found else None

    # Parts that leave the pools

    def letting_go(self, shelf: str) -> list[_RankPusher]:
        """Return the pushers of the pools here that have more snapshots than their policies keep there."""
        found = []
        for name in rank_files(self._run.path):
            digits = name.removeprefix("rank-").removesuffix(".pool")
            try:
                pool = self._run._ranks.open(name)
                may_go = digits.isdigit() and lets_go(pool.shelf_info(shelf))
            except Error:  # another shelf, or the pool is damaged or being made
                continue
            pusher = self._pusher(int(digits), pool, shelf, begins=False) if may_go else None
            if pusher is not None:
                found.append(pusher)
        return found

    def _let_go(self, shelf: str, waits: bool) -> None:
        """Confirm the parts that the pools may let go: all, or with `waits` false some."""
        if self._confirms is None:
            return
        for _ in range(len(self._store[shelf]) if waits else 1):
            found = self._confirms.confirm(shelf, waits=waits)
            if found is None:
                return
            self._confirmed.update((shelf, number) for number in found)
            self.confirmed = len(self._confirmed)

    def gone(self, shelf: str) -> set[int]:
        """Return the records whose parts have left a pool here for the place."""
        return {
            entry.of.record for one in self._ranks.values() for entry in mend.gone(one, shelf) if entry.of is not None
        }

    # Records

    def described(self, shelf: str, entry: Entry) -> Entry:
        one = self._pending.get(shelf, {}).get(entry.number)
        if one is None:  # it is repaired
            return entry
        return entry._replace(raw_bytes=one.raw_bytes, parts_bytes=one.stored_bytes)

    def _numbers(self, shelf: str, first: int, last: int) -> list[int]:
        """Return the snapshots whose parts are all there, up to the first that may become so."""
        blocked: dict[int, _Record] = {}
        complete: list[int] = []
        ready = 0
        for number, one in self._pending.get(shelf, {}).items():
            if not first <= number <= last:
                continue
            for rank, part in list(one.missing.items()):
                entry = self._seek(shelf, rank, part)
                if entry is not None:
                    del one.missing[rank]
                    one.raw_bytes += entry.raw_bytes
                    one.stored_bytes += entry.archive.bytes
                elif not self._waits:
                    break
            if one.missing:
                blocked[number] = one
                continue
            for older in [older for older, lacking in blocked.items() if _passed(lacking.missing, one.parts)]:
                files = listed([part.file for part in blocked.pop(older).missing.values()])
                log.warning("%s@%d is left out: %s sent later parts before its own", shelf, older, files)
            complete.append(number)
            if not blocked:
                ready = len(complete)
        return complete[:ready]

    def _seek(self, shelf: str, rank: int, part: Part) -> Entry | None:
        """Look for a part in the sub-runs of its rank, those of this folder first."""
        own = {one.name: one._state for (other, _), one in self._ranks.items() if other == rank}
        known = own | {name: now for name, now in self._others.items() if rank_of(name) == rank and now is not None}
        others = itertools.takewhile(lambda name: name in own or self._other(name) is not None, sub_runs(rank))
        for name in itertools.chain(known, others):
            now = own.get(name) or self._others[name]
            entry = None if now is None else now.part(shelf, part.number, part.group)
            if entry is not None:
                self._names.add(name)
                return entry
        return None

    def _other(self, name: str) -> state.State | None:
        """Return the state of a sub-run, read at most once in a pass; None: there is none yet."""
        if name not in self._fresh:
            self._fresh.add(name)
            if name not in self._places:
                self._places[name] = self._place.below(name)
            old = self._others.get(name)
            try:
                self._others[name] = state.read(self._places[name]) if old is None else state.refreshed(old)
            except NotFoundError:
                self._others[name] = None
        return self._others[name]

    def _commit(self, apply: Callable[[state.State], bool]) -> None:
        def listing(draft: state.State) -> bool:
            is_changed = apply(draft)
            draft.ranks = sorted({*(draft.ranks or ()), *self._names})
            return is_changed

        super()._commit(listing)

    def _agree(self) -> None:
        """Bring tags, policies, metrics and notes up to date, on the machine of the first rank.

        Another one adds the tags of the snapshots that it has committed.
        """
        state.check_there(self._state)
        shelves = sorted({wanted.shelf for wanted in self._wanted()})
        home = [shelf for shelf in shelves if self._is_home(shelf)]
        others = [shelf for shelf in shelves if shelf not in home] if self.snapshots > self._tagged else []

        def apply(draft: state.State) -> bool:
            is_changed = agree.update(self._store, draft, home, self._mirror)
            for there in filter(None, map(draft.find, others)):
                for tag, number in self._store[there.name].tags.items():
                    entry = there.entry(number)
                    if entry is not None and not entry.hidden and there.tags.get(tag, 0) < number:
                        there.tags[tag], is_changed = number, True
            return is_changed

        self._commit(apply)
        self._tagged = self.snapshots
        if self._mirror:
            drop_parts(self._state)

    def _is_home(self, shelf: str) -> bool:
        latest = self._run[shelf].latest
        if latest is None:
            return False
        parts = self._run[shelf]._taken(latest.number)._record_alone().record.ranks
        return not parts or self._run._ranks.has(shelf, parts[min(parts)])


def _passed(missing: dict[int, Part], later: dict[int, Part]) -> bool:
    """Whether parts can't come any more, since their pools have sent later ones."""
    return all(rank in later and later[rank].pool == part.pool for rank, part in missing.items())
