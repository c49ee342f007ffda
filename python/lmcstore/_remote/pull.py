# SPDX-License-Identifier: BSD-3-Clause
"""Restores snapshots of a run in an object store into a pool (store/REMOTE.md)."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import IO, TYPE_CHECKING, Any

from ..errors import DamagedError, Error, ExistsError, InputOutputError, NotFoundError, UnsupportedError
from . import agree, outline, state
from .codec import UNKNOWN, Archive, Entry
from .files import Part
from .place import PARALLEL, Pace, Place
from .which import numbers_of

if TYPE_CHECKING:
    from ..store import Store

Progress = Callable[[str, int, int], object]
_GROUPS_AHEAD = 4
_GAP_BYTES = 64 << 10
_AT_ONCE_BYTES = 4 << 20
_ADVICE = "lmc-store verify lists what can't be read there, and push --repair mends what a pool still has"
_FIRST_EIGHTHS = 1, 2, 3, 4, 5, 6, 7, 4
"""Sizes of the first requests: those of one size, begun together, would also end together."""


Found = Callable[[outline.Seen], object]
_Group = list[tuple[Entry, Archive]]
"""Archives that are restored in one commit, oldest first; or the archives of a snapshot."""


class _Ahead:
    """The bytes of archives that are read one after the other, fetched before they are needed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._wanted: deque[Iterator[tuple[str, int, int]]] = deque()
        self._waiting: deque[Future[Part] | None] = deque()  # None: the end of an archive
        self._begun: deque[Archive] = deque()
        self._count = 0
        """Of requests that wait."""
        self._eighths = iter(_FIRST_EIGHTHS)

    def begin(self, archives: Iterable[Archive]) -> None:
        """Fetch archives that will be added first."""
        for archive in archives:
            self._begun.append(archive)
            self._want(archive)
        self._start()

    def add(self, archive: Archive) -> None:
        """Add an archive, behind those that were added before."""
        if self._begun and self._begun.popleft() == archive:
            return
        self._want(archive)

    def next(self) -> Iterator[Part]:
        """Yield the bytes of the next archive."""
        while True:
            self._start()
            future = self._waiting.popleft()
            if future is None:
                return
            self._count -= 1
            yield future.result()

    def _want(self, archive: Archive) -> None:
        self._wanted.append(self._ranges(archive))

    def _ranges(self, archive: Archive) -> Iterator[tuple[str, int, int]]:
        """Yield the requests of an archive, which may claim any size."""
        at = 0
        while at < archive.bytes:
            size = min(_AT_ONCE_BYTES * next(self._eighths, 8) // 8, archive.bytes - at)
            yield from archive.ranges(at, size)
            at += size

    def _start(self) -> None:
        while self._wanted and self._count < PARALLEL:
            one = next(self._wanted[0], None)
            if one is None:
                self._wanted.popleft()
                self._waiting.append(None)
            else:
                self._waiting.append(self._place.start(self._place.get_range, *one))
                self._count += 1

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        for future in filter(None, self._waiting):
            future.cancel()


def feed(
    place: Place,
    archive: Archive,
    restore: Callable[[Callable[[memoryview], int]], object],
    what: str,
    check: Callable[[Part], object] = lambda data: None,
    *,
    inspects: bool = False,
    ahead: _Ahead,
) -> None:
    """Give the next archive of `ahead` to a function that reads it by a function.

    `check` gets all bytes before they are passed on. `inspects`: DamagedError if the outline at the place is another
    than the archive's.
    """
    pieces, left = ahead.next(), memoryview(b"")
    parsing = outline.Parsing() if inspects else None

    def read(to: memoryview) -> int:
        nonlocal left
        while not left:
            data = next(pieces, None)
            if data is None:
                return 0
            check(data)
            if parsing is not None:
                parsing.see(data)
            left = memoryview(data)
        count = min(len(to), len(left))
        with to:
            to[:count] = left[:count]
        left = left[count:]
        return count

    try:
        restore(read)
        if parsing is not None:
            _compare(place, archive, parsing.end())
    except Error as error:
        raise _named(error, what, place.where(archive.object)) from None


def fetch_key(place: Place, archive: Archive, fd: int) -> outline.Outline:
    """Write a key whose payloads are in several objects to an empty file."""
    found = outline.unpack(b"".join(place.get_ranges(archive.outline_ranges())), place.where(archive.object))
    if found.id != archive.id or found.size != archive.bytes:
        raise DamagedError(f"{place.where(archive.object)} is damaged: its outline is of another archive")
    found.write_sparse(fd)
    for offset, data in gathered(place, found.located(archive)):
        os.pwrite(fd, data, offset)
    return found


def blamed(place: Place, error: Error, found: outline.Outline, fd: int) -> Error:
    """Return an error that names the object of a damaged part of a key."""
    name = found.culprit(fd)
    return type(error)(f"{error} ({place.where(name)})") if name else error


def gathered(place: Place, parts: Iterable[tuple[int, str, int, int]]) -> Iterator[tuple[int, Part]]:
    """Fetch parts of pieces (offset, name, at, count), those with small gaps together; yield offsets and bytes."""
    requests: list[tuple[str, int, int, list[tuple[int, int, int]]]] = []
    for offset, name, at, count in sorted(parts, key=lambda part: part[1:3]):
        if requests:
            last, begin, end, inside = requests[-1]
            if last == name and at - end <= _GAP_BYTES and at + count - begin <= _AT_ONCE_BYTES:
                requests[-1] = last, begin, max(end, at + count), inside
                inside.append((offset, at - begin, count))
                continue
        requests.append((name, at, at + count, [(offset, 0, count)]))
    waiting: deque[tuple[Future[Part], list[tuple[int, int, int]]]] = deque()
    try:
        for name, begin, end, inside in requests:
            waiting.append((place.start(place.get_range, name, begin, end - begin), inside))
            if len(waiting) >= PARALLEL:
                yield from _cut(*waiting.popleft())
        while waiting:
            yield from _cut(*waiting.popleft())
    finally:
        for future, _ in waiting:
            future.cancel()


def _cut(future: Future[Part], inside: list[tuple[int, int, int]]) -> Iterator[tuple[int, Part]]:
    data = future.result()
    for offset, at, count in inside:
        yield offset, data[at : at + count]


def _compare(place: Place, archive: Archive, found: outline.Outline) -> None:
    """Compare the outline of an archive with that at the place."""
    where = place.where(archive.object)
    stored = outline.unpack(b"".join(place.get_ranges(archive.outline_ranges())), f"the outline in {where}")
    if stored != found:
        raise DamagedError(f"the outline in {where} is damaged: it is of another archive")


def _named(error: BaseException, what: str, where: str = "") -> BaseException:
    """Return an error that names the snapshot, and of damage the object."""
    if isinstance(error, DamagedError) and where not in str(error):
        return DamagedError(f"{what}: {error} ({where})")
    if isinstance(error, DamagedError | NotFoundError | InputOutputError | ExistsError):
        return type(error)(f"{what}: {error}")
    return error


class Early:
    """The first archives for a new pool, which are fetched while that is made.

    `head`: a state that may not be the newest. Its archives are fetched while newer commits are looked for.
    """

    def __init__(self, head: state.State, what: str | Iterable[str] | None) -> None:
        self.state, self._what = head, _addresses(what)
        self.wanted: list[tuple[state.Shelf, list[int]]] = []
        self.shelf, self.ahead = "", _Ahead(head.place)
        self._archives: list[Archive] = []
        later = head.place.start(state.refreshed, head)
        try:
            with contextlib.suppress(Error):  # of the newest state it is reported
                self._begin()
            self.state = later.result()
            if self.state.ranks is None:
                self._begin()
        except BaseException:
            self.ahead.__exit__()
            raise

    def _begin(self) -> None:
        """Fetch the first archives of the state, unless these are under way."""
        self.wanted = list(numbers_of(self.state, self._what))
        self.shelf, archives = "", []
        shelf, numbers = next((one for one in self.wanted if one[1]), (None, []))
        if shelf is not None:
            self.shelf = shelf.name
            run = next(_runs(shelf, filter(None, map(shelf.entry, numbers))))
            groups = _groups(shelf.chain(run[-1].number, by_key=len(run) == 1))
            first = itertools.takewhile(_is_alone, groups[:_GROUPS_AHEAD])
            archives = [group[0][1] for group in first]
        if archives != self._archives:
            self.ahead.__exit__()
            self._archives, self.ahead = archives, _Ahead(self.state.place)
            self.ahead.begin(archives)

    def __enter__(self) -> Early:
        return self

    def __exit__(self, *_: object) -> None:
        self.ahead.__exit__()


class Puller:
    """Pulls from a place into an open store."""

    def __init__(
        self,
        store: Store,
        place: Place,
        what: Iterable[str],
        progress: Progress | None = None,
        *,
        inspects: bool = False,
        early: Early | None = None,
        now: state.State | None = None,
    ) -> None:
        self._store, self._place, self._progress, self._inspects = store, place, progress, inspects
        self._early = early
        self._state = early.state if early is not None else now if now is not None else state.read(place)
        self._wanted = list(numbers_of(self._state, what)) if early is None else early.wanted
        self._remote: dict[tuple[str, int], str] = {}
        self._passed_key = self._uses_keys = False
        self.snapshots = self.skipped = self.bytes = 0

    def pull(self) -> None:
        """Restore all, shelf by shelf, oldest first."""
        try:
            for shelf, numbers in self._wanted:
                self._pull_shelf(shelf, numbers)
        except (DamagedError, NotFoundError) as error:
            raise type(error)(f"{error}. {_ADVICE}") from None

    def _has(self, shelf: state.Shelf, entry: Entry) -> bool:
        """Whether the pool has a snapshot; one that it let go is not there."""
        try:
            info = self._store._pool.find(shelf.name, str(entry.number), False).info()
        except NotFoundError:
            return False
        if info["time_ns"] != entry.time_ns:
            raise ExistsError(
                f"{self._store.path} has another {shelf.name}@{entry.number} than {self._place.url}: pull into another "
                "pool, or rename the shelf there"
            )
        if info["remote"] is not None:
            self._remote[shelf.name, entry.number] = info["remote"]
        return info["remote"] is None

    def _pull_shelf(self, shelf: state.Shelf, numbers: list[int]) -> None:
        wanted = set(numbers)
        extra: list[int] = []
        tags, is_new = dict(self._tags(shelf.name)), shelf.name not in self._store
        skipped, snapshots = self.skipped, self.snapshots
        try:
            self._restore_all(shelf, self._missing(shelf, numbers), wanted, extra)
        except (DamagedError, NotFoundError):
            if not self._passed_key:
                raise
            self._uses_keys, self._early = True, None  # an archive that a key gave way to is damaged, perhaps
            self.skipped = skipped - (self.snapshots - snapshots)
            self._restore_all(shelf, self._missing(shelf, numbers), wanted, extra)
        self._settle(shelf, tags, wanted, is_new)
        for number in reversed(extra):
            url = self._remote.get((shelf.name, number))
            if url is None:
                self._store._pool.remove(shelf.name, number)
            else:  # it goes again
                self._store._pool.safe(shelf.name, number, number, self._store._pool.info()["epoch"], url)

    def _missing(self, shelf: state.Shelf, numbers: list[int]) -> Iterator[_Group]:
        """Yield the archives that the pool lacks, in the order of their restore."""
        planned: set[int] = set()
        for run in _runs(shelf, self._absent(shelf, numbers)):
            try:
                plans = [self._shortest(shelf, run, planned)]
            except DamagedError:  # perhaps some have keys
                plans = [self._lacking(shelf, shelf.chain(entry.number), planned) for entry in run]
            for group in itertools.chain.from_iterable(plans):
                planned.update(entry.number for entry, _ in group)
                yield group

    def _absent(self, shelf: state.Shelf, numbers: list[int]) -> Iterator[Entry]:
        for number in numbers:
            entry = shelf.entry(number)
            assert entry is not None
            if self._has(shelf, entry):
                self.skipped += 1
            else:
                yield entry

    def _shortest(self, shelf: state.Shelf, run: list[Entry], planned: set[int]) -> list[_Group]:
        """Return the archives of a run. Of one snapshot, its key gives way to fewer bytes upon what is there."""
        last = run[-1]
        if len(run) > 1:
            return self._lacking(shelf, shelf.chain(last.number, by_key=False), planned)
        found = self._lacking(shelf, shelf.chain(last.number), planned)
        if last.key is not None and not self._uses_keys:
            with contextlib.suppress(DamagedError):  # only the key is left
                chain = shelf.chain(last.number, by_key=False)
                other = self._lacking(shelf, chain, planned)
                if len(other) < len(_groups(chain)) and _bytes(other) < _bytes(found):
                    self._passed_key = True
                    return other
        return found

    def _lacking(self, shelf: state.Shelf, chain: _Group, planned: set[int]) -> list[_Group]:
        groups = _groups(chain)
        last = [group[-1][0] for group in groups]
        there = [index for index, one in enumerate(last) if one.number in planned or self._has(shelf, one)]
        return groups[there[-1] + 1 if there else 0 :]

    def _pull_chain(self, shelf: state.Shelf, chain: _Group, wanted: set[int], extra: list[int]) -> None:
        self._restore_all(shelf, iter(self._lacking(shelf, chain, set())), wanted, extra)

    def _restore_all(self, shelf: state.Shelf, groups: Iterator[_Group], wanted: set[int], extra: list[int]) -> None:
        coming: deque[_Group] = deque()
        is_begun = self._early is not None and self._early.shelf == shelf.name
        with self._early.ahead if self._early is not None and is_begun else _Ahead(self._place) as ahead:
            while True:
                for group in itertools.islice(groups, _GROUPS_AHEAD - len(coming)):
                    coming.append(group)
                    if _is_alone(group):
                        ahead.add(group[0][1])
                if not coming:
                    return
                group = coming.popleft()
                had = {entry.number for entry, _ in group if self._has(shelf, entry)}
                try:
                    self._restore(shelf, group, ahead)
                except ExistsError:
                    raise ExistsError(
                        f"{self._what(shelf, group[-1][0])} can't be added to {self._store.path}, whose shelf "
                        f"{shelf.name!r}, or snapshot of this number, is another one: pull into another pool or folder"
                    ) from None
                self._count(shelf, group, had, wanted, extra)

    def _count(self, shelf: state.Shelf, group: _Group, had: set[int], wanted: set[int], extra: list[int]) -> None:
        """Check that restored snapshots are there, and count those that the pool lacked."""
        for entry, archive in group:
            if not self._has(shelf, entry) and not self._renamed(shelf, entry):
                where = self._place.where(archive.object)
                raise DamagedError(f"{self._what(shelf, entry)}: its archive, {where}, has another snapshot")
            self.bytes += archive.bytes
            if entry.number in had:
                continue
            if entry.number in wanted:
                self.snapshots += 1
                if (shelf.name, entry.number) not in self._remote:  # the record of one that was let go has its own
                    self._annotate(shelf.name, entry)
            elif entry.number not in extra:
                extra.append(entry.number)
        if self._progress is not None:
            self._progress("pull", self.bytes, 0)

    def _what(self, shelf: state.Shelf, entry: Entry) -> str:
        return f"{shelf.name}@{entry.number} of {self._place.url}"

    def _restore(self, shelf: state.Shelf, group: _Group, ahead: _Ahead) -> None:
        """Restore archives in one commit. One alone is read from memory, several from files."""
        pool = self._store._pool
        entry, archive = group[-1]
        if _is_alone(group):
            feed(
                self._place,
                archive,
                lambda read: pool.restore(read, (), (), None, False, False, None),
                self._what(shelf, entry),
                outline.Watch(self._guard(shelf, *group[-1])).see,
                inspects=self._inspects,
                ahead=ahead,
            )
            return
        import tempfile

        with contextlib.ExitStack() as stack:
            folder = os.path.dirname(self._store.path)
            files = [stack.enter_context(tempfile.TemporaryFile(prefix=".pull-", dir=folder)) for _ in group]
            key = outline.Outline()
            try:
                for file, one in zip(files, group, strict=True):
                    key = self._write(one[1], file, self._guard(shelf, *one)) or key
                    file.flush()
                    file.seek(0)
                pool.restore(tuple(file.fileno() for file in files), (), (), None, False, False, None)
            except Error as error:
                found = blamed(self._place, error, key, files[0].fileno())
                raise _named(found, self._what(shelf, entry)) from None

    def _write(self, archive: Archive, file: IO[bytes], found: Found) -> outline.Outline | None:
        """Write an archive to a file; of a key, which is the first of a group, return the outline."""
        if archive.first:
            key = fetch_key(self._place, archive, file.fileno())
            for shelf in key.shelves:
                found(outline.Seen(shelf.name, shelf.identity))
            for one in key.snapshots:
                found(outline.Seen(key.shelves[one.shelf].name, "", one.number, one.time_ns))
            return key
        see = outline.Watch(found).see
        with _Ahead(self._place) as pieces:
            pieces.add(archive)
            for data in pieces.next():
                see(data)
                file.write(data)
        return None

    def _guard(self, shelf: state.Shelf, entry: Entry, archive: Archive) -> Found:
        """Return a check that an archive has the snapshot of the entry alone, and is of no other shelf of the pool."""
        others = {one["name"] for one in self._store._pool.shelves()} - {shelf.name}
        what = f"its archive, {self._place.where(archive.object)}, has"
        names: set[str] = set()

        def found(seen: outline.Seen) -> None:
            if seen.shelf in others or names - {seen.shelf}:
                raise DamagedError(f"{what} another shelf, {seen.shelf!r}")
            names.add(seen.shelf)
            if UNKNOWN not in (shelf.identity, seen.identity or UNKNOWN) and shelf.identity != seen.identity:
                raise DamagedError(f"{what} another shelf {seen.shelf!r}, which was begun in another pool")
            if seen.number and (seen.number, seen.time_ns) != (entry.number, entry.time_ns):
                raise DamagedError(f"{what} another snapshot, {seen.number}")

        return found

    def _renamed(self, shelf: state.Shelf, entry: Entry) -> bool:
        """Rename the shelf that an archive from before its renaming has brought; whether there was one."""
        pool = self._store._pool
        if shelf.name in self._store:
            return False
        for other in pool.shelves():
            with contextlib.suppress(NotFoundError):
                info = pool.find(other["name"], str(entry.number), False).info()
                if info["time_ns"] == entry.time_ns and self._state.find(other["name"]) is None:
                    pool.rename(other["name"], shelf.name)
                    return True
        return False

    def _tags(self, shelf: str) -> dict[str, int]:
        return self._store[shelf].tags

    def _settle(self, shelf: state.Shelf, before: dict[str, int], wanted: set[int], is_new: bool) -> None:
        """Give the shelf in the pool the tags of the state; a new one the policy."""
        pool, name = self._store._pool, shelf.name
        try:
            info = pool.shelf_info(name)
        except NotFoundError:
            return
        for tag, number in self._tags(name).items():
            if tag not in before and shelf.tags.get(tag) != number:  # an older archive had it
                pool.tag_remove(name, tag)
        for tag, number in shelf.tags.items():
            if number in wanted:
                pool.change_tags(name, [(tag, number, (1 << 64) - 1)])
        if self.snapshots and is_new and info["policy"] != shelf.policy:
            pool.set_policy(name, shelf.policy)

    def _annotate(self, name: str, entry: Entry) -> None:
        """Give a restored snapshot the metrics and the note of the state, which may be newer than its archive."""
        snapshot = self._store[name][entry.number]
        if agree.note_of(snapshot._info) != entry.note:
            snapshot.note = entry.note or None
        metrics = snapshot.metrics
        for metric, value in (entry.metrics or {}).items():
            number = float(value)
            if metric not in metrics or metrics[metric] != number == number:
                metrics[metric] = number


def _is_alone(group: _Group) -> bool:
    """Whether it is one archive, and that in one object."""
    return len(group) == 1 and not group[0][1].first


def _runs(shelf: state.Shelf, entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Put entries together of which each is deep upon the one before, so that the last one's group has them all."""
    run: list[Entry] = []
    for entry in entries:
        if run and not all(one.deep for one in shelf.entries(run[-1].number + 1, entry.number)):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _bytes(groups: list[_Group]) -> int:
    return sum(archive.bytes for group in groups for _, archive in group)


def _groups(chain: _Group) -> list[_Group]:
    """Put archives that need contents of the archive before, beyond its snapshot, into one group with it."""
    groups: list[_Group] = []
    for entry, archive in chain:
        if groups and entry.deep:
            groups[-1].append((entry, archive))
        else:
            groups.append([(entry, archive)])
    return groups


def pull_into(
    store: Store,
    url: str,
    what: str | Iterable[str] | None = None,
    progress: Progress | None = None,
    pace: Pace | None = None,
    early: Early | None = None,
) -> dict[str, Any]:
    """Restore snapshots of a run at a URL into an open store. `early`: of this pull."""
    store._check_writable()
    with contextlib.nullcontext(early.state.place) if early is not None else Place(url, read_pace=pace) as place:
        puller = Puller(store, place, _addresses(what), progress, early=early)
        if puller._state.ranks is not None:
            raise UnsupportedError(f"{url} has a run of many ranks: pull it into a folder, not into {store.path}")
        store.pause()
        try:
            puller.pull()
        finally:
            store.resume()
    return {"snapshots": puller.snapshots, "snapshots_skipped": puller.skipped, "bytes": puller.bytes}


def _addresses(what: str | Iterable[str] | None) -> tuple[str, ...]:
    return () if what is None else (what,) if isinstance(what, str) else tuple(what)
