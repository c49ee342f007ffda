# SPDX-License-Identifier: BSD-3-Clause
"""`Decoder`: reads blocks of a snapshot's contents from the archives back to its key, and fetches nothing else.

A content has blocks of 1 MiB, which depend only on the same block of its bases. All bytes are compared with the digest
of the content: a frame's header and the end of a raw payload have the hashes of the blocks.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import _core
from ..errors import DamagedError, UnsupportedError
from .codec import Archive, Entry
from .files import Part
from .kept import Kept
from .outline import FRAME, LINK, LINKED, RAW, Content, Identity, Outline
from .place import Place

BLOCK_BYTES = 1 << 20
_AT_ONCE_BYTES = 32 << 20
_JOBS_AHEAD = 3
_WHOLE_BYTES = 192 << 20
"""A tensor whose payloads are no larger is fetched by one round of requests."""
_REQUEST_BYTES = 4 << 20
_GAP_BYTES, _LARGEST_GAP_BYTES, _GAP_SHARE = 4 << 10, 64 << 10, 16

Key = tuple[int, int]
"""A content: its level, and its place in the level's outline, from 1."""


class Level(NamedTuple):
    """An archive of a chain, the oldest of which is level 0."""

    entry: Entry
    archive: Archive
    outline: Outline


class _Table(NamedTuple):
    """The checked header of a frame, or the hashes of a raw payload."""

    header: bytes
    places: list[int]
    digests: list[bytes]


@dataclass
class _Unit:
    """Blocks of contents that rest on each other."""

    roots: dict[Key, range]
    blocks: range
    raw_bytes: int
    needed: list[Key] = field(default_factory=list)
    given: dict[Key, list[bytes]] = field(default_factory=dict)
    """Blocks from the cache."""
    uses: Counter[Key] = field(default_factory=Counter)
    stored: int = 0


class Decoder:
    """Reads a snapshot whose archives are `levels`."""

    def __init__(self, place: Place, levels: list[Level], kept: Kept, workers: Executor, what: str) -> None:
        self._place, self._levels, self._kept, self._workers, self._what = place, levels, kept, workers, what
        self._bases: dict[Key, list[Key]] = {}
        self._tables: dict[Key, _Table] = {}
        self.bytes = 0
        """Fetched."""

    def run(
        self,
        wanted: Mapping[int, range],
        sink: Callable[[int, int, bytes], object],
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Read blocks of contents, which are given by their places in the newest outline.

        `sink` gets the place, the index and the bytes of each block, in any order and any thread; `progress` the size
        of those that are done.
        """
        roots: dict[Key, dict[int, range]] = defaultdict(dict)
        for number, blocks in wanted.items():
            roots[self._real(len(self._levels) - 1, number)][number] = blocks
        self._roots, self._sink = roots, sink
        jobs: deque[_Job] = deque()
        try:
            for units in self._batches():
                jobs.append(_Job(self, units))
                if len(jobs) > _JOBS_AHEAD:
                    progress(self._finish(jobs.popleft()))
            while jobs:
                progress(self._finish(jobs.popleft()))
        finally:
            for job in jobs:
                job.cancel()

    def content(self, key: Key) -> Content:
        return self._levels[key[0]].outline.contents[key[1] - 1]

    def identity(self, key: Key) -> Identity:
        outline = self._levels[key[0]].outline
        return outline.identities[outline.contents[key[1] - 1].identity - 1]

    def places(self, key: Key, offset: int, count: int) -> Iterator[tuple[Archive, int, int]]:
        """Yield the objects that have a part of a payload, and the offsets and sizes there."""
        level, content = self._levels[key[0]], self.content(key)
        if key[1] not in level.outline.inline:
            for at, size in level.outline.parts(content, offset, count):
                yield *level.outline.at(level.archive, at), size

    def damaged(self, key: Key, text: object) -> DamagedError:
        level = self._levels[key[0]]
        objects = {archive.object for archive, _, _ in self.places(key, 0, self.content(key).stored)}
        where = ", ".join(map(self._place.where, sorted(objects) or [level.archive.object]))
        return DamagedError(
            f"{self._what} is damaged: {self.identity(key).name!r} of snapshot {level.entry.number}, in {where}: {text}"
        )

    # Plans

    def _real(self, level: int, number: int) -> Key:
        """Return the content that has the bytes: of an older archive, if it is known."""
        while (content := self._levels[level].outline.contents[number - 1]).is_known:
            form = content.digest, *self.identity((level, number))[1:3]
            older = self._levels[level - 1].outline.places.get(form) if level else None
            if older is None:
                raise self.damaged((level, number), "no archive has its bytes")
            level, number = level - 1, older
        return level, number

    def _groups(self) -> Iterable[list[Key]]:
        """Return the wanted contents, those together that rest on common ones."""
        group: dict[Key, Key] = {}

        def first(key: Key) -> Key:
            while (above := group[key]) != key:
                group[key] = key = group[above]
            return key

        pending = list(self._roots)
        while pending:
            key = pending.pop()
            if key in group:
                continue
            group[key] = key
            if key not in self._bases:
                self._bases[key] = [self._real(key[0], base) for base in self.content(key).bases]
            for base in self._bases[key]:
                pending.append(base)
        for key in group:
            for base in self._bases[key]:
                group[first(base)] = first(key)
        found: dict[Key, list[Key]] = defaultdict(list)
        for key in sorted(self._roots):
            found[first(key)].append(key)
        return found.values()

    def _units(self) -> Iterator[_Unit]:
        for keys in self._groups():
            roots = {}
            for key in keys:
                ranges = self._roots[key].values()
                roots[key] = range(min(one.start for one in ranges), max(one.stop for one in ranges))
            first, last = min(one.start for one in roots.values()), max(one.stop for one in roots.values())
            count = block_count(self.content(keys[0]))
            stored = sum(self.content(key).stored for key in self._below(keys))
            step = max(1, last - first if stored <= _WHOLE_BYTES else _AT_ONCE_BYTES * count // stored)
            for begin in range(first, last, step):
                blocks = range(begin, min(begin + step, last))
                yield self._pruned(
                    _Unit(roots, blocks, BLOCK_BYTES * sum(len(_both(one, blocks)) for one in roots.values()))
                )

    def _below(self, keys: Iterable[Key]) -> set[Key]:
        found: set[Key] = set()
        pending = list(keys)
        while pending:
            key = pending.pop()
            if key not in found:
                found.add(key)
                pending.extend(self._bases[key])
        return found

    def _pruned(self, unit: _Unit) -> _Unit:
        """Choose the contents to decode, down to those that the cache has."""
        pending, seen = list(unit.roots), set()
        while pending:
            key = pending.pop()
            if key in seen:
                continue
            seen.add(key)
            content = self.content(key)
            is_kept = content.payload != LINK and key[1] not in self._levels[key[0]].outline.inline
            blocks = self._kept.blocks(content.digest, unit.blocks) if is_kept else None
            if blocks is not None:
                unit.given[key] = blocks
                continue
            self._check(key)
            unit.needed.append(key)
            unit.uses.update(self._bases[key])
            unit.stored += content.stored * len(unit.blocks) // max(1, block_count(content))
            pending.extend(self._bases[key])
        unit.needed.sort()
        return unit

    def _check(self, key: Key) -> None:
        """Refuse a content that no archive can have."""
        content = self.content(key)
        count = block_count(content)
        if content.payload == RAW:
            fits = content.stored == content.raw_bytes + (-content.raw_bytes % 16 + 16 * count if count > 1 else 0)
        elif content.payload == LINKED:
            fits = content.stored == 0 and len(content.bases) == 1
        else:
            fits = content.stored > 0
        if not fits or any(self.content(base).raw_bytes != content.raw_bytes for base in self._bases[key]):
            raise self.damaged(key, "its size is wrong")
        if key in self._roots and content.payload == LINK:
            raise self.damaged(key, "a link is no tensor")

    def _batches(self) -> Iterator[list[_Unit]]:
        batch: list[_Unit] = []
        size = 0
        for unit in self._units():
            now = unit.stored + unit.raw_bytes
            if batch and (size + now > _AT_ONCE_BYTES or batch[-1].roots == unit.roots):
                yield batch
                batch, size = [], 0
            batch.append(unit)
            size += now
        if batch:
            yield batch

    # Headers

    def is_whole(self, key: Key, blocks: range) -> bool:
        """Whether blocks are all of a content."""
        return len(blocks) == block_count(self.content(key))

    def head(self, key: Key) -> tuple[int, int]:
        """Return the part of a payload that has the hashes of its blocks."""
        content = self.content(key)
        count = block_count(content)
        if content.payload == RAW:
            return content.stored - 16 * count, 16 * count
        arrays, constants = (len(content.bases), 56) if content.payload == LINK else (1, 0)
        return 0, min(content.stored, 72 + 16 * len(content.bases) + constants + (16 + 16 * arrays) * count)

    def has_table(self, key: Key) -> bool:
        return key in self._tables

    def add_table(self, key: Key, head: bytes) -> None:
        """Check the hashes of a content's blocks: the header of a frame or more of it, or the end of a raw payload."""
        content, identity = self.content(key), self.identity(key)
        count = block_count(content)
        if content.payload == RAW:
            if _core.block_digest(identity.dtype, identity.shape, head) != content.digest:
                raise self.damaged(key, "its digest is wrong")
            self._tables[key] = _Table(head, [min(i * BLOCK_BYTES, content.raw_bytes) for i in range(count + 1)], [])
            return
        try:
            size, raw, bases, places, digests = _core.frame_table(head, identity.dtype, identity.shape)
        except DamagedError as error:
            raise self.damaged(key, error) from None
        if (raw, bases, places[-1]) != (content.raw_bytes, len(content.bases), content.stored):
            raise self.damaged(key, "its frame is of another tensor")
        if content.payload == FRAME and digests != [content.digest]:
            raise self.damaged(key, "its digest is wrong")
        self._tables[key] = _Table(head[:size], places, digests)

    def part(self, key: Key, blocks: range) -> tuple[int, int]:
        """Return the part of a payload that has some blocks."""
        places = self._tables[key].places
        return places[blocks.start], places[blocks.stop] - places[blocks.start]

    # Decoding

    def _finish(self, job: _Job) -> int:
        try:
            data = job.data()
            job.cancel()  # frees what was fetched
            tasks = [(unit, index) for unit in job.units for index in unit.blocks]
            if len(tasks) == 1:
                self._decode(*tasks[0], data)
            else:
                self._decode_all(tasks, data)
        finally:
            job.cancel()
        return sum(unit.raw_bytes for unit in job.units)

    def _decode_all(self, tasks: list[tuple[_Unit, int]], data: dict[Key, tuple[int, bytes]]) -> None:
        futures: list[Future[None]] = []
        try:
            futures += (self._workers.submit(self._decode, *task, data) for task in tasks)
            for future in futures:
                future.result()
        finally:  # the others write to the caller's memory, too
            for future in futures:
                future.cancel()
            wait(futures)

    def _decode(self, unit: _Unit, index: int, data: dict[Key, tuple[int, bytes]]) -> None:
        values: dict[Key, Any] = {key: blocks[index - unit.blocks.start] for key, blocks in unit.given.items()}
        left = dict(unit.uses)
        newest = len(self._levels) - 1
        for key in unit.roots:
            if key in values:
                self._deliver(unit, key, index, values[key])
        for key in unit.needed:
            content = self.content(key)
            bases = tuple(values[base] for base in self._bases[key])
            values[key] = value = self._block(key, content, index, bases, data.get(key))
            for base in self._bases[key]:
                left[base] -= 1
                if left[base] == 0:
                    del values[base]
            if content.payload == LINK:
                continue
            if key in unit.roots:
                self._deliver(unit, key, index, value)
            if (key[0] == newest or key in unit.roots) and key[1] not in self._levels[key[0]].outline.inline:
                self._kept.put(content.digest, index, value)
            if key not in left:
                del values[key]

    def _deliver(self, unit: _Unit, key: Key, index: int, value: bytes) -> None:
        for number, blocks in self._roots[key].items():
            if index in blocks:
                self._sink(number, index, value)

    def _block(
        self, key: Key, content: Content, index: int, bases: tuple[Any, ...], stored: tuple[int, bytes] | None
    ) -> Any:
        if content.payload == LINKED:
            link = self._bases[key][0]
            digests = self._tables[link].digests if self.content(link).payload == LINK else []
            if content.array >= len(digests) or digests[content.array] != content.digest:
                raise self.damaged(key, "its digest is wrong")
            return bases[0][content.array]
        if content.payload not in (RAW, FRAME, LINK):
            raise UnsupportedError(f"{self._what}: use a newer lmc-store")
        assert stored is not None
        table = self._tables[key]
        offset, payload = stored
        coded = payload[table.places[index] - offset : table.places[index + 1] - offset]
        if content.payload == RAW:
            if _core.block_hash(coded) != table.header[16 * index : 16 * index + 16]:
                raise self.damaged(key, f"the hash of block {index} is wrong")
            return coded
        try:
            made = _core.decode_block(table.header, index, coded, bases)
        except DamagedError as error:
            raise self.damaged(key, f"block {index}: {error}") from None
        return made if content.payload == LINK else made[0]


class _Job:
    """The fetched payloads of some units."""

    def __init__(self, decoder: Decoder, units: list[_Unit]) -> None:
        self.units = units
        self._decoder = decoder
        self._whole = {
            key
            for unit in units
            for key in unit.needed
            if decoder.content(key).stored and decoder.is_whole(key, unit.blocks)
        }
        heads = {
            key: decoder.head(key)
            for unit in units
            for key in unit.needed
            if decoder.content(key).stored and key not in self._whole and not decoder.has_table(key)
        }
        wholes = [(key, 0, decoder.content(key).stored) for key in self._whole]
        self._fetch = _Fetch(decoder, wholes + [(key, *head) for key, head in heads.items()])
        self._parts: dict[Key, tuple[int, int]] = {}
        self._later: _Fetch | None = None
        try:
            for key, head in heads.items():
                decoder.add_table(key, self._fetch.get(key, *head))
            for unit in units:
                for key in unit.needed:
                    if decoder.content(key).stored and key not in self._whole:
                        self._parts[key] = decoder.part(key, unit.blocks)
            if self._parts:
                self._later = _Fetch(decoder, [(key, *part) for key, part in self._parts.items()])
        except BaseException:
            self.cancel()
            raise

    def data(self) -> dict[Key, tuple[int, bytes]]:
        """Wait, and return once where the bytes begin in their payloads, and the bytes."""
        decoder = self._decoder
        found = {}
        for key in sorted(self._whole):
            content = decoder.content(key)
            payload = self._fetch.get(key, 0, content.stored)
            found[key] = 0, payload
            if content.payload != RAW:
                decoder.add_table(key, payload)
            elif block_count(content) == 1:
                decoder.add_table(key, _core.block_hash(payload))
            else:
                decoder.add_table(key, payload[decoder.head(key)[0] :])
        if self._later is not None:
            for key, part in self._parts.items():
                found[key] = part[0], self._later.get(key, *part)
        return found

    def cancel(self) -> None:
        self._fetch.cancel()
        if self._later is not None:
            self._later.cancel()


class _Fetch:
    """Parts of payloads (content, offset, count), fetched by few requests in parallel."""

    def __init__(self, decoder: Decoder, wanted: list[tuple[Key, int, int]]) -> None:
        self._decoder = decoder
        pieces: dict[str, list[tuple[int, int]]] = defaultdict(list)
        objects: dict[str, Archive] = {}
        for key, offset, count in wanted:
            for archive, at, size in decoder.places(key, offset, count):
                objects[archive.object] = archive
                pieces[archive.object].append((at, size))
        self._spans = {name: _joined(sorted(parts)) for name, parts in pieces.items()}
        self._futures: dict[tuple[str, int], list[Future[Part]]] = {}
        self._bytes: dict[tuple[str, int], bytes] = {}
        for name, spans in self._spans.items():
            for number, (offset, count) in enumerate(spans):
                ranges = [
                    one
                    for at in range(0, count, _REQUEST_BYTES)
                    for one in objects[name].pieces(offset + at, min(_REQUEST_BYTES, count - at))
                ]
                decoder.bytes += count
                place = decoder._place
                self._futures[name, number] = [place.start(place.get_range, *one) for one in ranges]

    def get(self, key: Key, offset: int, count: int) -> bytes:
        outline = self._decoder._levels[key[0]].outline
        if key[1] in outline.inline:
            return outline.inline[key[1]][offset : offset + count]
        return b"".join(self._cut(archive.object, *part) for archive, *part in self._decoder.places(key, offset, count))

    def _cut(self, name: str, offset: int, count: int) -> bytes:
        number = bisect.bisect_right(self._spans[name], (offset, 1 << 63)) - 1
        data = self._bytes.get((name, number))
        if data is None:
            data = b"".join(future.result() for future in self._futures.pop((name, number)))
            self._bytes[name, number] = data
        start = offset - self._spans[name][number][0]
        return data[start : start + count]

    def cancel(self) -> None:
        for futures in self._futures.values():
            for future in futures:
                future.cancel()
        self._futures.clear()
        self._bytes.clear()


def block_count(content: Content) -> int:
    """Return the number of a content's blocks."""
    return -(-content.raw_bytes // BLOCK_BYTES)


def _both(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _joined(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join parts with small gaps."""
    joined: list[tuple[int, int]] = []
    for offset, count in parts:
        if joined:
            begin, size = joined[-1]
            most = max(_GAP_BYTES, min(_LARGEST_GAP_BYTES, size // _GAP_SHARE))
            if offset - begin - size <= most:
                joined[-1] = begin, max(size, offset + count - begin)
                continue
        joined.append((offset, count))
    return joined
