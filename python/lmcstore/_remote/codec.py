# SPDX-License-Identifier: BSD-3-Clause
"""The bytes of states and nodes: zlib-compressed JSON, checked in full when it is read."""

from __future__ import annotations

import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import DamagedError, UnsupportedError

VERSION = 1
MOST_STORED = 16 << 20
MOST_LEVELS = 6
PIECE_BYTES = 16 << 20
UNKNOWN = "0" * 32
_FORMAT = "lmc-store run"
_STUB = b"lmc-store: emptied by prune\n"
_MOST_JSON = 64 << 20
_MOST = 1 << 62
_SUB_RUN = re.compile(r"rank-([0-9]{5,10})(\.[1-9][0-9]{0,3})?")
_HEX = re.compile(r"[0-9a-f]{32}")
_DATA = re.compile(r"data/[0-9]{20}-[0-9a-f]{16}")
_INDEX = re.compile(r"index/[0-9]{1,19}-[0-9]{1,19}-[0-9a-f]{16}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MOST_NAME = 1024
_MOST_POLICY = 4096
_MOST_RAW = (1 << 64) - 1
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


class Archive(NamedTuple):
    """Where an archive and its outline are.

    An object of data is one sequence of bytes, stored as pieces of `piece_bytes` (the last is shorter).
    """

    object: str
    offset: int
    bytes: int
    piece_bytes: int
    outline_offset: int
    outline_bytes: int
    id: str
    """The hash of the archive, as in its end record, 32 hexadecimal digits."""
    first: int = 0
    """Of a key whose payloads are in several objects (`Outline.sources`): the oldest of the entries that have them."""

    def pieces(self, offset: int, count: int) -> list[tuple[str, int, int]]:
        """Return the parts of pieces (name, offset, count) that are these bytes of the object."""
        found = []
        while count > 0:
            index, at = divmod(offset, self.piece_bytes)
            now = min(count, self.piece_bytes - at)
            found.append((piece_name(self.object, index), at, now))
            offset, count = offset + now, count - now
        return found

    def ranges(self, offset: int = 0, count: int | None = None) -> list[tuple[str, int, int]]:
        """Return the parts of pieces that are these bytes of the archive; default: all."""
        return self.pieces(self.offset + offset, self.bytes - offset if count is None else count)

    def outline_ranges(self) -> list[tuple[str, int, int]]:
        """Return the parts of pieces that are the outline."""
        return self.pieces(self.outline_offset, self.outline_bytes)

    def objects(self) -> set[str]:
        """Return the names of the pieces of its object that it needs."""
        if self.first:
            return {name for name, _, _ in self.pieces(0, self.outline_offset + self.outline_bytes)}
        return {name for name, _, _ in self.ranges() + self.outline_ranges()}


def is_data(name: str) -> bool:
    """Whether it is the name of an object of data."""
    return _DATA.fullmatch(name) is not None


def piece_name(object: str, index: int) -> str:
    """Return the name of a piece."""
    return f"{object}/{index:06d}"


def is_piece_or_node(name: str) -> bool:
    """Whether an object is a piece of data or a node, by its name."""
    stem, _, piece = name.rpartition("/")
    return _INDEX.fullmatch(name) is not None or (_DATA.fullmatch(stem) is not None and piece.isdecimal())


class Of(NamedTuple):
    """Of which snapshot of a run of many ranks a rank's snapshot is a part."""

    record: int
    """The number of the run's snapshot."""
    group: str
    """32 hexadecimal digits."""


class Entry(NamedTuple):
    """A snapshot."""

    number: int
    step: int | None
    time_ns: int
    parent: int
    raw_bytes: int
    tensors: int
    metrics: dict[str, float | str] | None
    """None: they are too many for the state, or the note is too long, and the archive has both."""
    note: str
    hidden: bool
    """It was removed, but a later one needs it."""
    base: int
    """The number of the snapshot whose contents the archive needs; 0: it needs none."""
    deep: bool
    """It also needs contents of that snapshot's archive that are none of that snapshot's tensors."""
    archive: Archive
    key: Archive | None
    """Another archive of the snapshot that needs no other."""
    of: Of | None = None
    parts_bytes: int = 0
    """Of the record of a run of many ranks: of its parts' archives. `raw_bytes` is that of the parts, too."""
    sole: bool = False
    """A pool may have let it go, so that this is its only copy."""
    spare: bool = False
    """Of a hidden one: it only has payloads of a later key, and can't be restored itself."""

    @property
    def new_bytes(self) -> int:
        """What the snapshot has added."""
        return self.archive.bytes + self.parts_bytes


class Node(NamedTuple):
    """An object of `index/`, with entries (level 0) or with nodes of the level below."""

    level: int
    first: int
    last: int
    stored: int
    """Its entries, and those below."""
    hidden: int
    """How many of them are hidden."""
    steps: tuple[int, int] | None
    """The least and the greatest of their steps; None: they have none."""
    object: str
    digest: str


class Origin(NamedTuple):
    """The snapshot that a shelf was forked from."""

    shelf: str
    number: int


@dataclass
class ShelfParts:
    """A shelf, as a state stores it."""

    name: str
    identity: str
    """32 hexadecimal digits; all zero: unknown."""
    next: int
    keep_raw: int
    policy: str
    origin: Origin | None
    tags: dict[str, int]
    newest: list[Entry]
    nodes: list[Node]


@dataclass
class Parts:
    """A state, as a commit stores it."""

    run: str
    number: int
    time_ns: int
    writer: str
    shelves: Sequence[ShelfParts]
    ranks: list[str] | None = None
    """Of the records of a run of many ranks: the names of the sub-runs that they need."""


def write_mark(run: str, *, ranks: bool = False) -> bytes:
    """Return the bytes of `lmc-store.json`; `ranks`: of a run of many ranks."""
    return json.dumps({"format": _FORMAT, "version": VERSION, "run": run} | ({"ranks": True} if ranks else {})).encode()


def read_mark(data: bytes, where: str) -> Parts:
    """Return the state of a run without commits."""
    check = _Check(where)
    found = check.object(check.parsed(data))
    if found.get("format") != _FORMAT:
        raise DamagedError(f"{where} is damaged, or of another program")
    check.version(found)
    return Parts(check.match(found, "run", _HEX), 0, 0, "", [], [] if found.get("ranks") is True else None)


def sub_runs(rank: int) -> Iterator[str]:
    """Yield the names that a rank's sub-runs have: the second one is of a pool that was begun anew."""
    stem = f"rank-{rank:05d}"
    yield stem
    yield from (f"{stem}.{number}" for number in itertools.count(2))


def rank_of(sub_run: str) -> int:
    """Return the rank of a sub-run's name; -1: it is none."""
    found = _SUB_RUN.fullmatch(sub_run)
    return -1 if found is None else int(found.group(1))


def stub() -> bytes:
    """Return the bytes of an emptied commit, whose number stays taken."""
    return _STUB


def is_stub(data: bytes) -> bool:
    """Whether a commit was emptied."""
    return data == _STUB


def write_state(parts: Parts) -> bytes:
    """Return the bytes of a commit."""
    shelves = []
    for one in parts.shelves:
        shelf: dict[str, Any] = {
            "name": one.name,
            "identity": one.identity,
            "next": one.next,
            "keep_raw": one.keep_raw,
            "policy": one.policy,
            "tags": one.tags,
            "newest": [_entry_json(entry) for entry in one.newest],
            "nodes": [_node_json(node) for node in one.nodes],
        }
        if one.origin is not None:
            shelf["origin"] = one.origin._asdict()
        shelves.append(shelf)
    return _packed(
        {
            "version": VERSION,
            "run": parts.run,
            "number": parts.number,
            "time_ns": parts.time_ns,
            "writer": parts.writer,
            "shelves": shelves,
        }
        | ({} if parts.ranks is None else {"ranks": parts.ranks})
    )


def read_state(data: bytes, where: str) -> Parts:
    """Read a commit; DamagedError names `where`."""
    check = _Check(where)
    found = check.object(check.parsed(_unpacked(data, where)))
    check.version(found)
    shelves = [_read_shelf(check, check.object(one)) for one in check.array(found, "shelves")]
    names = [shelf.name.encode() for shelf in shelves]
    if names != sorted(set(names)):
        raise check.damaged("its shelves")
    known = [shelf.identity for shelf in shelves if shelf.identity != UNKNOWN]
    if len(known) != len(set(known)):
        raise check.damaged("identities of its shelves")
    ranks = check.array(found, "ranks") if "ranks" in found else None
    if not all(type(name) is str and rank_of(name) >= 0 for name in ranks or ()):
        raise check.damaged("'ranks'")
    return Parts(
        check.match(found, "run", _HEX),
        check.count(found, "number", 1),
        check.count(found, "time_ns"),
        check.match(found, "writer", _HEX),
        shelves,
        ranks,
    )


def write_node(children: Sequence[Entry] | Sequence[Node], level: int) -> bytes:
    """Return the bytes of a node."""
    listed = [_entry_json(one) if isinstance(one, Entry) else _node_json(one) for one in children]
    return _packed({"version": VERSION, "level": level, "children": listed})


def read_node(data: bytes, node: Node, where: str) -> list[Entry] | list[Node]:
    """Read a node's children, which must be those that `node` describes."""
    check = _Check(where)
    found = check.object(check.parsed(_unpacked(data, where)))
    check.version(found)
    if check.count(found, "level", 0, MOST_LEVELS) != node.level:
        raise check.damaged("its level")
    listed = check.array(found, "children")
    if node.level == 0:
        entries = _read_entries(check, listed)
        if summary(entries) != node[1:6]:
            raise check.damaged("its entries")
        return entries
    nodes = _read_nodes(check, listed)
    if summary(nodes) != node[1:6] or any(one.level != node.level - 1 for one in nodes):
        raise check.damaged("its nodes")
    return nodes


def summary(children: Sequence[Entry] | Sequence[Node]) -> tuple[int, int, int, int, tuple[int, int] | None] | None:
    """Return the members `first` to `steps` of the node that has these children; None: there are none."""
    if not children:
        return None
    found = [
        (one.number, one.number, 1, int(one.hidden), None if one.step is None else (one.step, one.step))
        if isinstance(one, Entry)
        else one[1:6]
        for one in children
    ]
    ends = [step for one in found if one[4] is not None for step in one[4]]
    steps = (min(ends), max(ends)) if ends else None
    return found[0][0], found[-1][1], sum(one[2] for one in found), sum(one[3] for one in found), steps


def _packed(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode(), 6)


def _unpacked(data: bytes, where: str) -> bytes:
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, _MOST_JSON)
    except zlib.error:
        raise DamagedError(f"{where} is damaged: it can't be decompressed") from None
    if not reader.eof or reader.unused_data:
        raise DamagedError(f"{where} is damaged: it is cut short, or too large")
    return text


def _archive_json(archive: Archive) -> dict[str, Any]:
    found = {
        "object": archive.object,
        "offset": archive.offset,
        "bytes": archive.bytes,
        "piece_bytes": archive.piece_bytes,
        "id": archive.id,
        "outline": [archive.outline_offset, archive.outline_bytes],
    }
    return found | {"first": archive.first} if archive.first else found


def _entry_json(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {
        "number": entry.number,
        "time_ns": entry.time_ns,
        "parent": entry.parent,
        "raw_bytes": entry.raw_bytes,
        "tensors": entry.tensors,
        "base": entry.base,
        "archive": _archive_json(entry.archive),
    }
    optional = {
        "step": entry.step,
        "metrics": entry.metrics,
        "note": entry.note or None,
        "hidden": entry.hidden or None,
        "deep": entry.deep or None,
        "of": None if entry.of is None else entry.of._asdict(),
        "parts_bytes": entry.parts_bytes or None,
        "sole": entry.sole or None,
        "spare": entry.spare or None,
    }
    found.update((name, value) for name, value in optional.items() if value is not None)
    if entry.key is not None:
        found["key"] = _archive_json(entry.key)
    return found


def _node_json(node: Node) -> dict[str, Any]:
    found = node._asdict()
    if node.hidden == 0:
        del found["hidden"]
    if node.steps is None:
        del found["steps"]
    return found


class _Check:
    """Takes values out of JSON that anyone may have written."""

    def __init__(self, where: str) -> None:
        self._where = where

    def damaged(self, what: str) -> DamagedError:
        return DamagedError(f"{self._where} is damaged: {what} is wrong or missing")

    def parsed(self, data: bytes) -> Any:
        def refuse(text: str) -> Any:
            raise ValueError(text)

        try:
            return json.loads(data.decode(), parse_constant=refuse)
        except (ValueError, RecursionError):
            raise DamagedError(f"{self._where} is damaged: it is no JSON") from None

    def object(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise self.damaged("an object")
        return value

    def version(self, found: dict[str, Any]) -> None:
        version = self.count(found, "version", 1)
        if version > VERSION:
            raise UnsupportedError(
                f"{self._where} has version {version}, and this lmc-store knows {VERSION}: use a newer one"
            )

    def array(self, found: dict[str, Any], name: str) -> list[Any]:
        value = found.get(name)
        if type(value) is not list:
            raise self.damaged(f"{name!r}")
        return value

    def count(self, found: dict[str, Any], name: str, least: int = 0, most: int = _MOST) -> int:
        value = found.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.damaged(f"{name!r}")
        return value

    def match(self, found: dict[str, Any], name: str, pattern: re.Pattern[str]) -> str:
        return self.text(found, name, lambda value: pattern.fullmatch(value) is not None)

    def text(self, found: dict[str, Any], name: str, fits: Callable[[str], bool]) -> str:
        value = found.get(name)
        if type(value) is not str or not fits(value):
            raise self.damaged(f"{name!r}")
        return value


def _is_name(text: str) -> bool:
    return _CONTROL.search(text) is None and 0 < len(text.encode()) <= _MOST_NAME


def _is_shelf(text: str) -> bool:
    return _is_name(text) and "@" not in text


def _is_tag(text: str) -> bool:
    return _is_name(text) and not (set("@~:{}") & set(text)) and ".." not in text and text != "latest"


def _is_policy(text: str) -> bool:
    return len(text) <= _MOST_POLICY and _CONTROL.search(text) is None


def is_note(text: str) -> bool:
    """Whether a state can have a note."""
    return re.search("[\0\ud800-\udfff]", text) is None


def _read_shelf(check: _Check, found: dict[str, Any]) -> ShelfParts:
    newest = _read_entries(check, check.array(found, "newest"))
    nodes = _read_nodes(check, check.array(found, "nodes"))
    after = check.count(found, "next", 1)
    if nodes and newest and newest[0].number <= nodes[-1].last:
        raise check.damaged("the order of entries")
    last = newest[-1].number if newest else nodes[-1].last if nodes else 0
    if last >= after:
        raise check.damaged("'next'")
    tags = check.object(found.get("tags"))
    if not all(_is_tag(tag) and type(number) is int and 0 < number < after for tag, number in tags.items()):
        raise check.damaged("'tags'")
    origin = None
    if "origin" in found:
        place = check.object(found["origin"])
        origin = Origin(check.text(place, "shelf", _is_shelf), check.count(place, "number", 1))
    return ShelfParts(
        check.text(found, "name", _is_shelf),
        check.match(found, "identity", _HEX),
        after,
        check.count(found, "keep_raw", 1, (1 << 32) - 1),
        check.text(found, "policy", _is_policy),
        origin,
        tags,
        newest,
        nodes,
    )


def _read_entries(check: _Check, listed: list[Any]) -> list[Entry]:
    entries = [_read_entry(check, check.object(one)) for one in listed]
    if any(one.number >= after.number for one, after in itertools.pairwise(entries)):
        raise check.damaged("the order of entries")
    return entries


def _read_entry(check: _Check, found: dict[str, Any]) -> Entry:
    number = check.count(found, "number", 1)
    step = found.get("step")
    if step is not None and not _is_step(step):
        raise check.damaged("'step'")
    key, of = found.get("key"), None
    if "of" in found:
        whole = check.object(found["of"])
        of = Of(check.count(whole, "record", 1), check.match(whole, "group", _HEX))
    return Entry(
        number,
        step,
        check.count(found, "time_ns", 0, _MOST_RAW),
        check.count(found, "parent"),
        check.count(found, "raw_bytes", 0, _MOST_RAW),
        check.count(found, "tensors", 0, 1 << 32),
        _read_metrics(check, found.get("metrics")),
        check.text(found, "note", is_note) if "note" in found else "",
        found.get("hidden") is True,
        check.count(found, "base", 0, number - 1),
        found.get("deep") is True,
        _read_archive(check, check.object(found.get("archive"))),
        None if key is None else _read_archive(check, check.object(key)),
        of,
        check.count(found, "parts_bytes") if "parts_bytes" in found else 0,
        found.get("sole") is True,
        found.get("spare") is True,
    )


def _read_metrics(check: _Check, metrics: Any) -> dict[str, float | str] | None:
    if metrics is None:
        return None
    found: dict[str, float | str] = {}
    for name, value in check.object(metrics).items():
        try:
            kept = value if type(value) is str and value in _NO_NUMBERS else float(value + 0)
        except (OverflowError, TypeError):
            raise check.damaged("'metrics'") from None
        if not _is_name(name) or type(value) is bool or (type(kept) is float and not math.isfinite(kept)):
            raise check.damaged("'metrics'")
        found[name] = kept
    return found


def _read_archive(check: _Check, found: dict[str, Any]) -> Archive:
    outline = found.get("outline")
    if type(outline) is not list or len(outline) != 2:
        raise check.damaged("'outline'")
    place = {"offset": outline[0], "bytes": outline[1]}
    archive = Archive(
        check.match(found, "object", _DATA),
        check.count(found, "offset"),
        check.count(found, "bytes", 128),
        check.count(found, "piece_bytes", 1 << 10, 1 << 30),
        check.count(place, "offset"),
        check.count(place, "bytes", 1, MOST_STORED * 16),
        check.match(found, "id", _HEX),
        check.count(found, "first", 1) if "first" in found else 0,
    )
    ends = archive.offset + archive.bytes, archive.outline_offset + archive.outline_bytes
    if max(ends) > archive.piece_bytes * 1_000_000:
        raise check.damaged("the size of an archive")
    return archive


def _read_steps(check: _Check, steps: Any) -> tuple[int, int] | None:
    if steps is None:
        return None
    if type(steps) is not list or len(steps) != 2 or not all(map(_is_step, steps)) or steps[0] > steps[1]:
        raise check.damaged("'steps'")
    return steps[0], steps[1]


def _is_step(value: Any) -> bool:
    return type(value) is int and -(1 << 63) < value < 1 << 63


def _read_nodes(check: _Check, listed: list[Any]) -> list[Node]:
    nodes = []
    for one in listed:
        found = check.object(one)
        first = check.count(found, "first", 1)
        last = check.count(found, "last", first)
        nodes.append(
            Node(
                check.count(found, "level", 0, MOST_LEVELS),
                first,
                last,
                stored := check.count(found, "stored", 1, last - first + 1),
                check.count(found, "hidden", 0, stored) if "hidden" in found else 0,
                _read_steps(check, found.get("steps")),
                check.match(found, "object", _INDEX),
                check.match(found, "digest", _HEX),
            )
        )
    if any(one.last >= after.first for one, after in itertools.pairwise(nodes)):
        raise check.damaged("the order of nodes")
    return nodes
