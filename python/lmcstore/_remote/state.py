# SPDX-License-Identifier: BSD-3-Clause
"""`State`: the list of a run's shelves, snapshots and archives, of which each commit writes a new one.

A state is read from `head` and `log/`; older entries of a shelf are in nodes (`index/`), which are read when they are
needed. All that is read is checked (`codec`).
"""

from __future__ import annotations

import bisect
import copy
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..errors import DamagedError, ExistsError, InUseError, NotFoundError, RemoteError, UnsupportedError
from . import codec, outline
from .codec import Archive, Entry, Node, Origin, Parts
from .place import Place

__all__ = ["Archive", "Entry", "Node", "Origin", "Shelf", "State", "begin", "change", "read"]

MARK = "lmc-store.json"
HEAD = "head"
LEAF_ENTRIES = 32
NODE_NODES = 64
_MOST_TRIES = 50
_CACHED_NODES = 256
_CHAIN_ENTRIES = 48
_MOST_NUMBER = 1 << 62


def log_name(number: int) -> str:
    """Return the name of a commit's object."""
    return f"log/{number:016d}"


def _digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()[:32]


class _Nodes:
    """Nodes of a place, the ones read last in memory. They never change, so all states share them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._read: OrderedDict[str, list[Entry] | list[Node]] = OrderedDict()

    def children(self, node: Node, shelf: str) -> list[Entry] | list[Node]:
        """Read a node's entries, or the nodes below it."""
        found = self._read.get(node.object)
        if found is None:
            what = f"{self.place.where(node.object)} (snapshots {node.first} to {node.last} of shelf {shelf!r})"
            try:
                data = self.place.get(node.object, codec.MOST_STORED)
            except NotFoundError:
                raise NotFoundError(
                    f"{what} is missing: another process may have pruned the run meanwhile; open it again"
                ) from None
            if _digest(data) != node.digest:
                raise DamagedError(f"{what} is damaged: its hash is wrong")
            found = codec.read_node(data, node, what)
            self._read[node.object] = found
            while len(self._read) > _CACHED_NODES:
                self._read.popitem(last=False)
        return found

    def read(self, nodes: list[Node], shelf: str) -> None:
        """Read nodes together."""
        for future in [self.place.start(self.children, node, shelf) for node in nodes]:
            future.result()

    def write(self, children: list[Entry] | list[Node], level: int) -> Node:
        """Store a new node."""
        import secrets

        data = codec.write_node(children, level)
        summary = codec.summary(children)
        assert summary is not None
        name = f"index/{summary[0]}-{summary[1]}-{secrets.token_hex(8)}"
        self.place.put(name, data)
        return Node(level, *summary, name, _digest(data))


@dataclass
class Shelf(codec.ShelfParts):
    """A shelf of the state. `entries` reads nodes where they are needed."""

    _nodes: _Nodes = field(repr=False, compare=False)

    @property
    def latest(self) -> Entry | None:
        """The newest entry, a hidden one included; None: there is none."""
        return next(self.entries(backwards=True), None)

    @property
    def stored(self) -> int:
        """The number of entries, hidden ones included."""
        return len(self.newest) + sum(node.stored for node in self.nodes)

    @property
    def shown(self) -> int:
        """The number of entries that are not hidden."""
        hidden = sum(node.hidden for node in self.nodes) + sum(entry.hidden for entry in self.newest)
        return self.stored - hidden

    def entry(self, number: int) -> Entry | None:
        """Return the entry of a snapshot, also a hidden one; None: there is none."""
        return next(self.entries(number, number), None)

    def lacking(self, numbers: Sequence[int]) -> list[int]:
        """Return those of some ascending numbers that have no entry, or a hidden one. Full nodes are not read."""
        return list(self._lacking([*self.nodes, *self.newest], list(numbers)))

    def _lacking(self, parts: Iterable[Node | Entry], numbers: list[int]) -> Iterator[int]:
        at = 0
        for part in parts:
            low, high = (part.number, part.number) if isinstance(part, Entry) else (part.first, part.last)
            begin = bisect.bisect_left(numbers, low, at)
            yield from numbers[at:begin]
            at = bisect.bisect_right(numbers, high, begin)
            if isinstance(part, Entry):
                yield from numbers[begin:at] if part.hidden else ()
            elif begin < at and part.stored - part.hidden <= high - low:
                yield from self._lacking([*self._nodes.children(part, self.name)], numbers[begin:at])
        yield from numbers[at:]

    def entries(
        self, first: int = 1, last: int = 1 << 62, *, backwards: bool = False, step: int | None = None
    ) -> Iterator[Entry]:
        """Yield the entries from `first` to `last`, oldest first or newest first, hidden ones included.

        With a step: only those of it.
        """
        parts: list[Node | Entry] = [*self.nodes, *self.newest]
        yield from self._within(parts, first, last, backwards, step)

    def _within(
        self, parts: list[Node | Entry], first: int, last: int, backwards: bool, step: int | None
    ) -> Iterator[Entry]:
        for part in reversed(parts) if backwards else parts:
            if isinstance(part, Entry):
                if first <= part.number <= last and step in (None, part.step):
                    yield part
            elif part.first <= last and first <= part.last and _has_step(part, step):
                yield from self._within([*self._nodes.children(part, self.name)], first, last, backwards, step)

    def alone(self) -> State:
        """Return a state that has this shelf alone."""
        return State(self._nodes.place, "", 0, 0, "", [self], self._nodes)

    def prepare(self, number: int | None = None, step: int | None = None) -> None:
        """Read the nodes together that `chain` of a snapshot needs, or of those of a step."""
        newest = (entry for entry in reversed(self.newest) if number is not None and entry.number <= number)
        nodes = [] if number is not None and _chain(newest, number)[1] == 0 else self.nodes
        while nodes:
            if number is None:
                there = [node for node in nodes if _has_step(node, step)]
                first, last = (there[0].first, there[-1].last) if there else (1, 0)
            else:
                first = last = number
            nodes = [node for node in nodes if node.first <= last and first - _CHAIN_ENTRIES <= node.last]
            self._nodes.read(nodes, self.name)
            below = (self._nodes.children(node, self.name) for node in nodes if node.level > 0)
            nodes = [node for several in below for node in several if isinstance(node, Node)]

    def chain(self, number: int, *, by_key: bool = True) -> list[tuple[Entry, Archive]]:
        """Return the archives that have a snapshot, also a hidden one, in the order of their restore.

        Without `by_key` the snapshot's own key is not used.

        NotFoundError: there is no such snapshot. DamagedError: one that it needs is missing.
        """
        found, needed = _chain(self.entries(1, number, backwards=True), number, by_key)
        if found and needed == 0:
            return found[::-1]
        if not found:
            raise NotFoundError(f"{self._nodes.place.url} has no {self.name}@{number}")
        raise DamagedError(
            f"{self._nodes.place.url}: {self.name}@{number} can't be read: {self.name}@{needed}, which it is "
            "stored upon, is missing"
        )

    def using(self, old: Entry, new: Entry) -> list[Entry]:
        """Return the entries whose keys have payloads of what `new` lacks of `old`, or of such a key; without it."""
        gone = [one for one in (old.archive, old.key) if one is not None and one not in (new.archive, new.key)]
        found, last = [], old.number
        for one in itertools.chain([new], self.entries(old.number + 1)) if gone else ():
            if one.key is not None and 0 < one.key.first <= last and _has_payloads(self._nodes.place, one.key, gone):
                found.append(one._replace(key=None))
                gone.append(one.key)
                last = one.number
        return found

    def append(self, entry: Entry) -> None:
        """Add a snapshot above all others. May write nodes."""
        assert entry.number >= self.next or self.stored == 0 or entry.number > self._last()
        self.newest.append(entry)
        self.next = max(self.next, entry.number + 1)
        if len(self.newest) >= 2 * LEAF_ENTRIES:
            self.nodes.append(self._nodes.write(self.newest[:LEAF_ENTRIES], 0))
            del self.newest[:LEAF_ENTRIES]
            self._gather()

    def _last(self) -> int:
        latest = self.newest[-1].number if self.newest else self.nodes[-1].last if self.nodes else 0
        return latest

    def _gather(self) -> None:
        """Put the oldest nodes of a level into one of the next level, where there are many."""
        for level in range(codec.MOST_LEVELS):
            at = [index for index, node in enumerate(self.nodes) if node.level == level]
            if len(at) < 2 * NODE_NODES:
                return
            begin, end = at[0], at[0] + NODE_NODES
            self.nodes[begin:end] = [self._nodes.write(self.nodes[begin:end], level + 1)]

    def update(self, changes: Mapping[int, Entry | None]) -> None:
        """Replace entries by their numbers, or remove them (None). Writes the nodes that they are in anew."""
        self.newest = [new for old in self.newest if (new := changes.get(old.number, old)) is not None]
        nodes = (self._updated(node, changes) for node in self.nodes)
        self.nodes = [node for node in nodes if node is not None]

    def _updated(self, node: Node, changes: Mapping[int, Entry | None]) -> Node | None:
        if not any(node.first <= number <= node.last for number in changes):
            return node
        entries: list[Entry] = []
        nodes: list[Node] = []
        old = self._nodes.children(node, self.name)
        for child in old:
            if isinstance(child, Entry):
                new = changes.get(child.number, child)
                if new is not None:
                    entries.append(new)
            else:
                below = self._updated(child, changes)
                if below is not None:
                    nodes.append(below)
        new_children: list[Entry] | list[Node] = entries or nodes
        if new_children == old:
            return node
        return self._nodes.write(new_children, node.level) if new_children else None

    def tag_numbers(self) -> dict[int, list[str]]:
        """Return the tags by the numbers of their snapshots."""
        found: dict[int, list[str]] = {}
        for tag, number in sorted(self.tags.items()):
            found.setdefault(number, []).append(tag)
        return found


def _chain(entries: Iterable[Entry], number: int, by_key: bool = True) -> tuple[list[tuple[Entry, Archive]], int]:
    """Return the archives of a snapshot, the newest first, and the number of one that is missing; 0: none is."""
    found: list[tuple[Entry, Archive]] = []
    needed, can_be_key = number, by_key
    for entry in entries:
        if entry.number != needed or entry.spare:
            break
        key = entry.key if can_be_key else None
        found.append((entry, key or entry.archive))
        needed, can_be_key = 0 if key else entry.base, not entry.deep
        if needed == 0:
            break
    return found, needed


def _has_payloads(place: Place, key: Archive, of: list[Archive]) -> bool:
    """Whether a key has payloads of archives, or may have: its outline can't be read."""
    try:
        found = outline.unpack(b"".join(place.get_ranges(key.outline_ranges())), place.where(key.object))
    except (DamagedError, NotFoundError, UnsupportedError):
        return True
    return found.id != key.id or any(
        source.object == one.object and one.offset <= source.offset < one.outline_offset
        for source in found.sources
        for one in of
    )


def _has_step(node: Node, step: int | None) -> bool:
    return step is None or (node.steps is not None and node.steps[0] <= step <= node.steps[1])


@dataclass
class State:
    """The shelves of a run after a commit."""

    place: Place
    run: str
    number: int
    """Of the commit; 0: there is none yet."""
    time_ns: int
    writer: str
    shelves: list[Shelf]
    _nodes: _Nodes = field(repr=False, compare=False)
    ranks: list[str] | None = None
    """The sub-runs of a run of many ranks; None: it is a pool's."""

    def shelf(self, name: str) -> Shelf:
        """Return a shelf; NotFoundError: there is none."""
        found = self.find(name)
        if found is None:
            there = ", ".join(repr(shelf.name) for shelf in self.shelves[:8]) or "none"
            raise NotFoundError(f"{self.place.url} has no shelf {name!r} (it has: {there})")
        return found

    def find(self, name: str) -> Shelf | None:
        """Return a shelf; None: there is none."""
        return next((shelf for shelf in self.shelves if shelf.name == name), None)

    def part(self, shelf: str, number: int, group: bytes) -> Entry | None:
        """Find the part of a snapshot in the state of a rank's sub-run. That of a fork is the shelf's first entry."""
        there = self.find(shelf)
        if there is None:
            return None
        for entry in (there.entry(number), next(there.entries(), None) if there.origin is not None else None):
            if entry is not None and not entry.hidden and entry.of is not None and entry.of.group == group.hex():
                return entry
        return None

    def add(self, name: str, identity: str, keep_raw: int, policy: str, origin: Origin | None) -> Shelf:
        """Add a shelf without snapshots."""
        shelf = Shelf(name, identity, 1, keep_raw, policy, origin, {}, [], [], self._nodes)
        self.shelves.append(shelf)
        self.shelves.sort(key=lambda one: one.name.encode())
        return shelf

    def draft(self) -> State:
        """Return a copy that can be changed."""
        shelves = [copy.copy(shelf) for shelf in self.shelves]  # entries and nodes themselves never change
        for shelf in shelves:
            shelf.tags, shelf.newest, shelf.nodes = dict(shelf.tags), list(shelf.newest), list(shelf.nodes)
        ranks = None if self.ranks is None else list(self.ranks)
        return State(self.place, self.run, self.number, self.time_ns, self.writer, shelves, self._nodes, ranks)

    def parts(self) -> Parts:
        """Return the contents of the commit's object."""
        return Parts(self.run, self.number, self.time_ns, self.writer, self.shelves, self.ranks)


def begin(place: Place, *, ranks: bool = False) -> State:
    """Read the state of a run, and begin a run where there is none. `ranks`: of a run of many ranks."""
    place.check_writable()
    later = place.start(place.get, MARK, codec.MOST_STORED)
    found = _begun(place, ranks)
    _check_mark(found, later)
    if (found.ranks is not None) != ranks:
        kind, other = ("many ranks", "one pool") if found.ranks is not None else ("one pool", "many ranks")
        raise ExistsError(f"{place.url} has a run of {kind}, and this is one of {other}: push to another URL")
    return found


def _check_mark(found: State, mark: Future[bytes]) -> None:
    """Refuse a state of another run, which a head may be that was copied: a commit upon it would hide this one."""
    try:
        begun = codec.read_mark(mark.result(), found.place.where(MARK))
    except (DamagedError, NotFoundError):  # it was begun now, or only this object is lost
        if found.number:
            check_there(found)
        return
    if begun.run != found.run:
        raise DamagedError(
            f"{found.place.where(HEAD)} is of another run than {MARK} beside it: delete it, as it is only a copy"
        )


def check_there(now: State) -> None:
    """Refuse to go on with a run that was deleted at the place, or replaced by another one. RemoteError: it was."""
    place = now.place
    try:
        if codec.read_mark(place.get(MARK, codec.MOST_STORED), place.where(MARK)).run == now.run:
            return
        what = "is of another run"
    except DamagedError:  # push --repair
        return
    except NotFoundError:
        if place.exists(log_name(1)):  # only the mark is lost
            return
        what = "and the first commit are gone"
    raise RemoteError(
        f"{place.where(MARK)} {what}: the run was deleted or replaced at {place.url}, and what was sent after that "
        "can't be read. Bring the run back, or delete what is left there, and push to an empty URL"
    )


def _begun(place: Place, ranks: bool) -> State:
    try:
        return read(place)
    except NotFoundError:
        if place.exists(MARK):  # begun meanwhile
            return read(place)
    import secrets

    mark = codec.write_mark(secrets.token_hex(16), ranks=ranks)
    if place.create(MARK, mark) and place.create(MARK, mark + b"\n"):
        raise UnsupportedError(
            f"{place.url}: this server overwrites an object that exists though asked not to (If-None-Match), so two "
            "programs could destroy each other's commits: it can't have runs"
        )
    return read(place)


def read(place: Place) -> State:
    """Read the newest state; NotFoundError: there is no run at this place."""
    return refreshed(read_head(place))


def read_head(place: Place) -> State:
    """Read a state that may not be the newest; NotFoundError: there is no run at this place."""
    try:
        parts = codec.read_state(place.get(HEAD, codec.MOST_STORED), place.where(HEAD))
    except (NotFoundError, DamagedError):
        parts = _searched(place)
    return _state(place, parts, _Nodes(place))


def refreshed(state: State) -> State:
    """Return the newest state, from a state that was read or written before."""
    if state.number == 0:
        state = read_head(state.place)
    return _state(state.place, _newest(state.place, state.parts()), state._nodes)


def at(state: State, number: int) -> State:
    """Return the state after an earlier commit. DamagedError: it was emptied."""
    place = state.place
    parts = _read_log(place, number, place.get(log_name(number), codec.MOST_STORED))
    if parts is None:
        raise DamagedError(f"{place.where(log_name(number))} is empty: a newer commit than a day ago was emptied")
    return _state(place, parts, state._nodes)


def _newest(place: Place, parts: Parts) -> Parts:
    """Follow the log from a state on."""
    while True:
        try:
            data = place.get(log_name(parts.number + 1), codec.MOST_STORED)
        except NotFoundError:
            return parts
        after = _read_log(place, parts.number + 1, data)
        if after is None:  # emptied: this state is old
            after = _searched(place, parts.number + 1)
        if after.run != parts.run:
            raise DamagedError(f"{place.where(log_name(after.number))} is of another run than the one before it")
        parts = after


def _read_log(place: Place, number: int, data: bytes) -> Parts | None:
    where = place.where(log_name(number))
    if codec.is_stub(data):
        return None
    parts = codec.read_state(data, where)
    if parts.number != number:
        raise DamagedError(f"{where} has commit {parts.number}: it was overwritten")
    return parts


def _searched(place: Place, low: int = 0) -> Parts:
    """Find the newest commit of the log, without the head: by doubling, then by halves."""
    low = last_number(place, low)
    if low == 0:
        return _mark(place)
    parts = _read_log(place, low, place.get(log_name(low), codec.MOST_STORED))
    if parts is None:
        raise DamagedError(f"{place.where(log_name(low))}, the newest commit, is empty: a newer one is missing")
    return parts


def last_number(place: Place, low: int = 0) -> int:
    """Return the number of the newest commit of the log, from a number on that is taken; 0: there is none."""
    if low == 0 and not place.exists(log_name(1)):
        return 0
    low, step = max(low, 1), 1
    while place.exists(log_name(low + step)):
        low, step = low + step, step * 2
        if low >= _MOST_NUMBER:
            raise DamagedError(f"{place.url}: the server says that every object exists, also {log_name(low)}")
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if place.exists(log_name(middle)) else (low, middle)
    return low


def _mark(place: Place) -> Parts:
    try:
        return codec.read_mark(place.get(MARK, codec.MOST_STORED), place.where(MARK))
    except NotFoundError as error:
        raise NotFoundError(f"there is no run of lmc-store at {place.url}. {error}") from None


def _state(place: Place, parts: Parts, nodes: _Nodes) -> State:
    shelves = [Shelf(**vars(one) | {"_nodes": nodes}) for one in parts.shelves]
    return State(place, parts.run, parts.number, parts.time_ns, parts.writer, shelves, nodes, parts.ranks)


def change(state: State, writer: str, apply: Callable[[State], bool]) -> State:
    """Commit a change, and return the newest state.

    `apply` changes a draft of the newest state, and returns whether it did. It is called again on the state of another
    writer whose commit came first. InUseError: others commit all the time.
    """
    for attempt in range(_MOST_TRIES):
        draft = state.draft()
        if not apply(draft):
            return state
        draft.number, draft.time_ns, draft.writer = state.number + 1, time.time_ns(), writer
        data = codec.write_state(draft.parts())
        if state.place.create(log_name(draft.number), data):
            state.place.put(HEAD, data)
            return draft
        import random

        time.sleep(random.uniform(0, min(0.05 * 2**attempt, 2)))
        state = refreshed(state)
    raise InUseError(f"{state.place.url}: other programs committed before this one {_MOST_TRIES} times; try it later")
