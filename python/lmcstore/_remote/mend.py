# SPDX-License-Identifier: BSD-3-Clause
"""Mends the state of a run: its newest commit, and the nodes of its shelves (store/REMOTE.md)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import DamagedError, NotFoundError
from . import agree, codec, state
from .codec import Entry, Node, Parts
from .place import Place

if TYPE_CHECKING:
    from .push import Pusher

log = logging.getLogger("lmcstore")

_DAMAGE = (DamagedError, NotFoundError)
_MOST_BACK = 1000
_READS = 4
_ADVICE = (
    "If the bucket keeps older versions of objects, or has a backup, bring this one back. Else pull what is readable, "
    "push the pool to a new URL, and then what it lacks"
)


# The newest commit


def commit(place: Place) -> None:
    """Write the newest commit again if it is damaged.

    Its copy, the head, has the same bytes. Without a copy the state of the commit before takes its place, under the
    damaged one's number. A pusher that still has the lost state in memory goes on behind it, or reads this one.
    """
    place.check_writable()
    head = _head(place)
    last = state.last_number(place, 0 if head is None else head[0].number) if place.exists(state.MARK) else 0
    if last == 0:
        return
    newest = _commit(place, last)
    if newest is not None:
        if any(_commit(place, number) is None for number in range(head[0].number + 1 if head else last, last)):
            place.put(state.HEAD, newest[1])  # for readers that follow the log from the head
        return
    _check_reads(place, state.log_name(last))
    if head is not None and head[0].number == last:
        before, data = head
    else:
        before = _before_damage(place, last, head)
        lost = Parts(before.run, last, before.time_ns, before.writer or codec.UNKNOWN, before.shelves, before.ranks)
        data = codec.write_state(lost)
    log.warning("%s is damaged: commit %d is in its place now", place.where(state.log_name(last)), before.number)
    place.put(state.log_name(last), data)
    place.put(state.HEAD, data)


def _check_reads(place: Place, name: str) -> None:
    """Make sure that an object is damaged at the place. DamagedError: reads differ, so it is damaged on its way."""
    found = set()
    for _ in range(_READS):
        try:
            found.add(place.get(name, codec.MOST_STORED))
        except _DAMAGE:
            found.add(b"")
    if len(found) > 1:
        raise DamagedError(f"{place.where(name)}: its reads differ, so nothing was repaired. Check the connection")


def _before_damage(place: Place, last: int, head: tuple[Parts, bytes] | None) -> Parts:
    """Return the newest state before a damaged commit."""
    for number in range(last - 1, max(0, last - _MOST_BACK), -1):
        found = _commit(place, number) or (head if head is not None and head[0].number == number else None)
        if found is not None:
            return found[0]
    if last > _MOST_BACK:
        raise DamagedError(f"{place.where(state.log_name(last))} and {_MOST_BACK} commits before it are damaged")
    return codec.read_mark(place.get(state.MARK, codec.MOST_STORED), place.where(state.MARK))


def _head(place: Place) -> tuple[Parts, bytes] | None:
    try:
        data = place.get(state.HEAD, codec.MOST_STORED)
        return codec.read_state(data, place.where(state.HEAD)), data
    except _DAMAGE:
        return None


def _commit(place: Place, number: int) -> tuple[Parts, bytes] | None:
    """Read a commit; None: it is damaged, missing or emptied."""
    try:
        data = place.get(state.log_name(number), codec.MOST_STORED)
        found = codec.read_state(data, place.where(state.log_name(number)))
    except _DAMAGE:
        return None
    return (found, data) if found.number == number else None


def marks(pusher: Pusher, name: str) -> None:
    """Mark the only copies of what has left the pool: a lost commit may have marked them."""
    numbers = pusher.gone(name)

    def apply(draft: state.State) -> bool:
        there = draft.shelf(name)
        entries = filter(None, map(there.entry, sorted(numbers)))
        sole = {entry.number: entry._replace(sole=True) for entry in entries if not entry.sole and not entry.hidden}
        there.update(sole)
        return bool(sole)

    if numbers:
        pusher._commit(apply)


def gone(pusher: Pusher, name: str) -> Iterator[Entry]:
    """Yield the entries of snapshots that have left the pool for the place."""
    there = pusher._state.find(name)
    try:
        if there is None or not pusher._store._pool.shelf_info(name)["remote_count"]:
            return
    except NotFoundError:
        return
    for entry in there.entries():
        info = None if entry.hidden else agree.info_of(pusher._store, name, entry.number)
        if info is not None and info["remote"] == pusher._place.url:
            yield entry


# Nodes


def nodes(pusher: Pusher, name: str) -> int:
    """Store the damaged nodes of a shelf again; return how many. DamagedError: nothing has all snapshots of one.

    The entries of a node are in the commits before it was written. Those of later changes, such as keys, are not: then
    the pool's snapshots are sent anew where a commit lacks them.
    """
    repaired = 0
    for node in list(_damaged(pusher._state.shelf(name), pusher._state.shelf(name).nodes)):
        _check_reads(pusher._place, node.object)
        children = _before(pusher._state, name, node)
        data = codec.write_node(children, node.level)
        if children and hashlib.sha256(data).hexdigest()[:32] == node.digest:
            pusher._place.put(node.object, data)
            repaired += 1
        elif node.level == 0 and _renewed(pusher, name, node, [one for one in children if isinstance(one, Entry)]):
            repaired += 1
        else:
            where = pusher._place.where(node.object)
            what = f"{where} (snapshots {node.first} to {node.last} of shelf {name!r}) is damaged"
            raise DamagedError(f"{what}, and neither a commit nor {pusher._store.path} has all of them. {_ADVICE}")
    return repaired


def _damaged(shelf: state.Shelf, of: list[Node]) -> Iterator[Node]:
    for node in of:
        try:
            below = shelf._nodes.children(node, shelf.name)
        except _DAMAGE:
            yield node
        else:
            yield from _damaged(shelf, [one for one in below if isinstance(one, Node)])


def _before(now: state.State, name: str, node: Node) -> list[Entry] | list[Node]:
    """Return the children of a node as an early commit has them: the first one that has the last of them."""
    identity, low, high = now.shelf(name).identity, 0, now.number
    found: list[Entry] | list[Node] = []
    while high - low > 1:
        middle = (low + high) // 2
        commit = _commit(now.place, middle)
        shelves = [] if commit is None else [one for one in commit[0].shelves if one.identity == identity]
        there = next((one for one in shelves if identity != codec.UNKNOWN or one.name == name), None)
        entries: list[Entry] | list[Node] = []
        if there is not None:
            entries = there.newest if node.level == 0 else [one for one in there.nodes if one.level == node.level - 1]
        summary = codec.summary(entries)
        if summary is None or summary[1] < node.last:
            low = middle
        else:
            high, found = middle, entries
    if node.level == 0:
        return [one for one in found if isinstance(one, Entry) and node.first <= one.number <= node.last]
    return [one for one in found if isinstance(one, Node) and node.first <= one.first and one.last <= node.last]


def _renewed(pusher: Pusher, name: str, node: Node, early: list[Entry]) -> bool:
    """Replace a node of entries by those of an early commit, and by snapshots that are sent anew.

    False: some stay missing. A node without them would let a sweep delete their archives.
    """
    entries = {entry.number: _described(pusher, name, entry) for entry in early}
    last: Entry | None = None
    for number in pusher._numbers(name, node.first, node.last):
        if number not in entries and (sent := pusher.send(name, number, last)) is not None:
            entries[number] = sent
        last = entries.get(number)
    if sum(not entry.hidden for entry in entries.values()) < max(1, node.stored - node.hidden):
        return False

    def apply(draft: state.State) -> bool:
        there = draft.find(name)
        if there is None:
            return False
        made = [entries[number] for number in sorted(entries)]
        there.nodes = _replaced(there, there.nodes, node, there._nodes.write(made, 0))
        return True

    pusher._commit(apply)
    return True


def _described(pusher: Pusher, name: str, entry: Entry) -> Entry:
    """Return an early entry with the metrics and the note that its snapshot has in the pool."""
    info = agree.info_of(pusher._store, name, entry.number)
    if info is None or info["time_ns"] != entry.time_ns:
        return entry
    return entry._replace(metrics=agree.metrics_of(info), note=agree.note_of(info))


def _replaced(shelf: state.Shelf, of: list[Node], old: Node, new: Node) -> list[Node]:
    """Return nodes with another one in place of one of them, or of one below."""
    found = []
    for node in of:
        if node == old:
            found.append(new)
        elif node.level > old.level and node.first <= old.first and old.last <= node.last:
            below = [one for one in shelf._nodes.children(node, shelf.name) if isinstance(one, Node)]
            found.append(shelf._nodes.write(_replaced(shelf, below, old, new), node.level))
        else:
            found.append(node)
    return found
