# SPDX-License-Identifier: BSD-3-Clause
"""`Outline`: the records of an archive without the payloads of tensors and large attachments (store/ARCHIVE.md).

It says where the bytes of each content are, and is small. `write_sparse` makes a file of it that is an archive with
holes, in which the wanted payloads are filled in. Checksums are not compared here: the restore of such a file does.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from ..errors import DamagedError, UnsupportedError
from .codec import Archive, is_data
from .files import Part

MOST_BYTES = 64 << 20
"""Of an outline, decompressed: some 300,000 tensors."""
_MEMORY_BYTES = 400
"""Roughly, of an identity or a content in memory."""
_INLINE_BYTES, _INLINE_BYTES_IN_ALL = 64 << 10, 1 << 20
_HEAD = struct.Struct("<8sIIQQQ")
_RECORD = struct.Struct("<IIQQ")
_MAGIC = b"LMCSARCH"
_MOST_PAYLOAD = 1 << 20
_SHELF, _SNAPSHOT, _IDENTITY, _CONTENT, _DATA, _ENTRIES, _SNAPSHOT_END, _TAG, _END = range(1, 10)
_ORIGIN, _SINCE, _KNOWN = 10, 11, 12
_SHELF_ID = 0x80000001
_IGNORED = 0x80000000
_NO_STEP = -(1 << 63)
_MOST_DIMS = 32
RAW, FRAME, LINK, LINKED = range(4)
_ATTACHMENT = 1
_T = TypeVar("_T")


class Identity(NamedTuple):
    """The name and the form of a tensor or an attachment."""

    kind: int
    """0 tensor, 1 attachment."""
    dtype: int
    shape: tuple[int, ...]
    name: str


class Content(NamedTuple):
    """The bytes of a tensor."""

    identity: int
    """Its place in `Outline.identities`, from 1."""
    digest: bytes
    raw_bytes: int
    is_known: bool
    """The archive does not have the bytes: an older one has."""
    payload: int
    """RAW, FRAME, LINK or LINKED."""
    bases: tuple[int, ...]
    """Places in `Outline.contents`, from 1."""
    offset: int
    """Of its payload in the archive."""
    span: int
    """Bytes from there to the end of its payload, headers of records between included."""
    stored: int
    """Bytes of its payload."""
    array: int
    """With LINKED: the index of the link's array."""


class Source(NamedTuple):
    """Where a part of a payload is."""

    object: str
    piece_bytes: int
    offset: int
    check: int
    """CRC-32, which names a damaged object; an archive has better ones."""


@dataclass
class Snapshot:
    """A snapshot of an archive."""

    shelf: int
    """Its place in `Outline.shelves`, from 0."""
    number: int
    step: int | None
    time_ns: int
    parent: int
    group: bytes
    is_changes: bool
    """The entries are changes to the shelf's previous snapshot."""
    metadata: bytes
    entries: list[tuple[int, int]] = field(default_factory=list)
    """Identities and contents, from 1; content 0: removed."""


@dataclass
class Shelf:
    """A shelf of an archive."""

    name: str
    next: int
    keep_raw: int
    identity: str = "0" * 32
    tags: dict[str, int] = field(default_factory=dict)
    origin: tuple[str, int] | None = None


@dataclass
class Outline:
    """The records of an archive."""

    id: str = ""
    size: int = 0
    """Bytes of the archive."""
    shelves: list[Shelf] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    identities: list[Identity] = field(default_factory=list)
    contents: list[Content] = field(default_factory=list)
    since: list[str] = field(default_factory=list)
    """The ids of older archives."""
    runs: list[tuple[int, bytes]] = field(default_factory=list)
    """The bytes of the archive other than left-out payloads, with their offsets."""
    inline: dict[int, bytes] = field(default_factory=dict)
    """Payloads of small attachments, by the places of their contents, from 1."""
    sources: list[Source] = field(default_factory=list, compare=False)
    """Of a key: where each left-out part of its payloads is."""

    @property
    def entries(self) -> list[tuple[int, int]]:
        """The entries of the only snapshot."""
        return self.snapshots[0].entries if self.snapshots else []

    @property
    def needs_base(self) -> bool:
        """Whether an older archive has some of its contents."""
        return any(content.is_known for content in self.contents)

    @property
    def memory(self) -> int:
        """Roughly how many bytes of memory it takes."""
        data = sum(len(data) for _, data in self.runs) + sum(map(len, self.inline.values()))
        return data + _MEMORY_BYTES * (len(self.identities) + len(self.contents) + len(self.sources))

    def known(self) -> set[bytes]:
        """Return the digests of contents that an older archive has."""
        return {content.digest for content in self.contents if content.is_known}

    def held(self) -> set[bytes]:
        """Return the digests of the contents of the last snapshot's complete list."""
        return {self.contents[content - 1].digest for _, content in self.entries if content}

    @functools.cached_property
    def places(self) -> dict[tuple[bytes, int, tuple[int, ...]], int]:
        """The places of contents, from 1, by their digests, dtypes and shapes."""
        forms = ((content.digest, *self.identities[content.identity - 1][1:3]) for content in self.contents)
        return {form: place for place, form in enumerate(forms, 1)}

    @functools.cached_property
    def _gaps(self) -> list[int]:
        return [begin + len(data) for begin, data in self.runs]

    def parts(self, content: Content, offset: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield the offsets and sizes in the archive of a part of a content's payload, without the headers between."""
        index = bisect.bisect_left(self._gaps, content.offset)
        while count > 0:
            size = self.runs[index + 1][0] - self._gaps[index]
            now = min(count, max(0, size - offset))
            if now > 0:
                yield self._gaps[index] + offset, now
            offset, count, index = max(0, offset - size), count - now, index + 1

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the offsets and sizes of all left-out parts of payloads."""
        for (begin, data), (after, _) in itertools.pairwise(self.runs):
            yield begin + len(data), after - begin - len(data)

    def at(self, archive: Archive, offset: int) -> tuple[Archive, int]:
        """Return where a part of a payload is: an archive in the object that has it, and the offset in the object."""
        if not self.sources:
            return archive, archive.offset + offset
        index = bisect.bisect_right(self._gaps, offset) - 1
        name, piece_bytes, begin, _ = self.sources[index]
        return archive._replace(object=name, piece_bytes=piece_bytes), begin + offset - self._gaps[index]

    def located(self, archive: Archive) -> Iterator[tuple[int, str, int, int]]:
        """Yield where all left-out payloads are: their offsets, and parts of pieces."""
        for offset, count in self.gaps():
            there, begin = self.at(archive, offset)
            for name, at, size in there.pieces(begin, count):
                yield offset, name, at, size
                offset += size

    def culprit(self, fd: int) -> str:
        """Return the damaged object of a file to which `located` parts were written; "": none."""
        for (offset, count), source in zip(self.gaps(), self.sources, strict=False):
            if zlib.crc32(os.pread(fd, count, offset)) != source.check:
                return source.object
        return ""

    def packed(self) -> bytes:
        """Return the bytes that `unpack` reads."""
        data = b"".join(data for _, data in self.runs)
        if self.sources:
            objects = sorted({source[:2] for source in self.sources})
            index = {one: number for number, one in enumerate(objects)}
            places = [(index[source[:2]], *source[2:]) for source in self.sources]
            data += json.dumps({"objects": objects, "places": places}, separators=(",", ":")).encode()
        return zlib.compress(data, 6)

    def write_sparse(self, fd: int, ranges: Iterable[tuple[int, bytes]] = ()) -> None:
        """Write an archive with holes to an empty file: all but the payloads, and these ranges (offset, bytes)."""
        os.ftruncate(fd, self.size)
        for offset, data in [*self.runs, *ranges]:
            view, at = memoryview(data), offset
            if offset + len(view) > self.size:
                raise DamagedError("a range is outside of the archive")
            while view:
                done = os.pwrite(fd, view, at)
                view, at = view[done:], at + done
        os.lseek(fd, 0, os.SEEK_SET)


class Parsing:
    """Reads an archive that comes in pieces. Memory: a record, if it is cut by them.

    `begun` is called before the first snapshot, when the properties of its shelf are known, `part` for each part of a
    payload, with its offset. Both must not keep views. The content's digest and the place in it name a part of a raw
    payload; others get None. DamagedError: the archive is damaged. UnsupportedError: its outline is too large.
    """

    def __init__(
        self,
        begun: Callable[[Outline], object] | None = None,
        part: Callable[[int, Part, bytes | None], object] | None = None,
    ) -> None:
        self._steps = _Parser(has_data=True, begun=begun, part=part).run()
        self._wanted, self._kept = next(self._steps), bytearray()
        self._found: Outline | None = None

    def see(self, data: Part) -> None:
        """Read the next bytes, which may be changed afterwards."""
        at = 0
        while at < len(data):
            now = self._wanted - len(self._kept)
            if self._kept or now > len(data) - at:
                self._kept += data[at : at + now]
                if len(self._kept) == self._wanted:
                    whole, self._kept = self._kept, bytearray()
                    self._step(memoryview(whole))
            else:
                self._step(memoryview(data)[at : at + now])
            at += now

    def end(self) -> Outline:
        """Return the outline of the whole archive; DamagedError: it is cut short."""
        if self._found is None:
            self._step(self._kept)
        assert self._found is not None  # less than what is wanted ends the steps
        return self._found

    def _step(self, data: Part | bytearray) -> None:
        try:
            self._wanted = self._steps.send(data)
        except StopIteration as stop:
            self._found = stop.value


def unpack(data: bytes, where: str) -> Outline:
    """Read an outline as `Outline.packed` wrote it; DamagedError names `where`."""
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, 3 * MOST_BYTES)  # those of a key have sources
    except zlib.error:
        raise DamagedError(f"{where} is damaged: it can't be decompressed") from None
    if not reader.eof or reader.unused_data:
        raise DamagedError(f"{where} is damaged: it is cut short, or too large")
    place, steps = 0, _Parser(has_data=False).run()
    wanted = next(steps)
    try:
        while True:
            data = text[place : place + wanted]
            place += len(data)
            wanted = steps.send(data)
    except StopIteration as stop:
        outline: Outline = stop.value
    except DamagedError as error:
        raise DamagedError(f"{where}: {error}") from None
    if place != len(text):
        outline.sources = _sources(text[place:], outline, where)
    return outline


def _sources(text: bytes, outline: Outline, where: str) -> list[Source]:
    """Read the sources after an outline."""
    try:
        found = json.loads(text)
        objects = [(str(name), int(size)) for name, size in found["objects"]]
        sources = [
            Source(objects[index][0], objects[index][1], int(offset), int(check))
            for index, offset, check in found["places"]
        ]
        fit = all(is_data(name) and 1 << 10 <= size <= 1 << 30 for name, size in objects)
        fit = fit and all(0 <= offset < size * 1_000_000 for _, size, offset, _ in sources)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        fit = False
    if not fit or len(sources) != len(outline.runs) - 1:
        raise DamagedError(f"{where} is damaged: its sources are wrong")
    return sources


class Seen(NamedTuple):
    """A shelf, its identity or one of its snapshots, in an archive."""

    shelf: str
    identity: str = ""
    number: int = 0
    time_ns: int = 0


class Watch:
    """Looks at an archive that passes in pieces: calls `found` with each shelf, identity and snapshot."""

    def __init__(self, found: Callable[[Seen], object]) -> None:
        self._found, self._shelf = found, ""
        self._skipped, self._kind = _HEAD.size, 0  # 0: a header follows
        self._kept, self._wanted = bytearray(), _RECORD.size

    def see(self, data: Part) -> None:
        """Look at the next bytes; DamagedError: they are no archive."""
        at = 0
        while at < len(data):
            if self._skipped:
                now = min(self._skipped, len(data) - at)
                self._skipped -= now
            else:
                now = min(self._wanted - len(self._kept), len(data) - at)
                self._kept += data[at : at + now]
                if len(self._kept) == self._wanted:
                    self._take(bytes(self._kept))
            at += now

    def _take(self, kept: bytes) -> None:
        self._kept.clear()
        if self._kind == 0:
            kind, count, _, _ = _RECORD.unpack(kept)
            if kind not in (_SHELF, _SHELF_ID, _SNAPSHOT):
                self._skipped = count
            elif not (56 if kind == _SNAPSHOT else 16) <= count <= _MOST_PAYLOAD:
                raise DamagedError("the archive is damaged: a record has a wrong size")
            else:
                self._kind, self._wanted = kind, count
            return
        if self._kind == _SHELF:
            self._shelf = kept[16:].decode(errors="replace")
            self._found(Seen(self._shelf))
        elif self._kind == _SHELF_ID:
            self._found(Seen(self._shelf, kept[:16].hex()))
        else:
            number, _, time_ns = struct.unpack_from("<QqQ", kept)
            self._found(Seen(self._shelf, "", number, time_ns))
        self._kind, self._wanted = 0, _RECORD.size


_Steps = Generator[int, "Part | bytearray", _T]
"""Yields numbers of bytes, and receives these, or fewer at the end of the stream."""


class _Parser:
    def __init__(
        self,
        *,
        has_data: bool,
        begun: Callable[[Outline], object] | None = None,
        part: Callable[[int, Part, bytes | None], object] | None = None,
    ) -> None:
        self._has_data, self._begun, self._part = has_data, begun, part
        self._outline = Outline()
        self._at = 0
        self._number = 0
        self._run = bytearray()
        self._run_at = 0
        self._kept = 0
        self._left = 0  # of the current content's payload
        self._inlined = 0

    def run(self) -> _Steps[Outline]:
        head = yield from self._take(_HEAD.size)
        magic, version, _, features, _, _ = _HEAD.unpack(head)
        if magic != _MAGIC:
            raise DamagedError("this is no archive of lmc-store: its magic is missing")
        if version != 1 or features:
            raise UnsupportedError(f"the archive has version {version}: use a newer lmc-store")
        self._keep(head)
        self._at = len(head)
        while (yield from self._record()):
            self._number += 1
        if self._has_data and (yield 1):
            raise self._damaged("bytes follow its end")
        self._outline.runs.append((self._run_at, bytes(self._run)))
        self._outline.size = self._at
        return self._outline

    def _take(self, count: int) -> _Steps[bytes]:
        data = (yield count) if count else b""
        if len(data) != count:
            raise self._damaged("it is cut short")
        return bytes(data)

    def _keep(self, data: bytes) -> None:
        self._kept += len(data)
        if self._kept > MOST_BYTES:
            raise UnsupportedError(
                f"a snapshot has {len(self._outline.contents)} contents, too many for an object store"
            )
        self._run += data

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(f"the archive is damaged: record {self._number} (at byte {self._at}): {what}")

    def _record(self) -> _Steps[bool]:
        header = yield from self._take(_RECORD.size)
        kind, count, _, _ = _RECORD.unpack(header)
        if count > _MOST_PAYLOAD:
            raise self._damaged(f"it claims to have {count} bytes")
        self._keep(header)
        self._at += len(header)
        if kind == _DATA:
            yield from self._data(count)
            return True
        payload = yield from self._take(count)
        self._keep(payload)
        self._at += count
        if self._left:
            raise self._damaged("a payload before it is cut short")
        try:
            self._parsed(kind, payload)
        except (struct.error, UnicodeDecodeError, IndexError):
            raise self._damaged("its fields are wrong") from None
        is_last: bool = kind == _END
        return not is_last

    def _data(self, count: int) -> _Steps[None]:
        if not 0 < count <= self._left:
            raise self._damaged("a payload is larger than its content")
        number = len(self._outline.contents)
        content = self._outline.contents[-1]
        start = content.offset or self._at
        self._outline.contents[-1] = content._replace(offset=start, span=self._at + count - start)
        if number in self._outline.inline:
            payload = yield from self._take(count)
            self._outline.inline[number] += payload
            self._keep(payload)
            self._at += count
            self._left -= count
            return
        self._outline.runs.append((self._run_at, bytes(self._run)))
        self._run.clear()
        if self._has_data:
            data = yield count
            if len(data) != count:
                raise self._damaged("it is cut short")
            if self._part is not None:
                at = content.stored - self._left
                raw = content.digest + at.to_bytes(8, "little") if content.payload == RAW else None
                self._part(self._at, memoryview(data), raw)
        self._at += count
        self._run_at = self._at
        self._left -= count

    def _parsed(self, kind: int, payload: bytes) -> None:
        parsers = {
            _SHELF: self._shelf,
            _SHELF_ID: self._shelf_id,
            _ORIGIN: self._origin,
            _TAG: self._tag,
            _SNAPSHOT: self._snapshot,
            _IDENTITY: self._identity,
            _CONTENT: self._content,
            _KNOWN: self._known,
            _ENTRIES: self._entries,
            _SINCE: self._since,
            _END: self._end,
        }
        if kind in parsers:
            parsers[kind](payload)
        elif kind == 0:
            raise self._damaged("it has no type")
        elif kind != _SNAPSHOT_END and kind < _IGNORED:
            raise UnsupportedError(f"the archive has records of type {kind}: use a newer lmc-store")

    def _shelf(self, payload: bytes) -> None:
        after, keep_raw, count = struct.unpack_from("<QII", payload)
        self._outline.shelves.append(Shelf(_text(payload, 16, count), after, keep_raw))

    def _shelf_id(self, payload: bytes) -> None:
        struct.unpack_from("<QQII", payload)
        self._outline.shelves[-1].identity = payload[:16].hex()

    def _origin(self, payload: bytes) -> None:
        number, _, count, _ = struct.unpack_from("<QQII", payload)
        self._outline.shelves[-1].origin = _text(payload, 24, count), number

    def _tag(self, payload: bytes) -> None:
        number, count, _ = struct.unpack_from("<QII", payload)
        self._outline.shelves[-1].tags[_text(payload, 16, count)] = number

    def _snapshot(self, payload: bytes) -> None:
        number, step, time_ns, parent, group, flags, count = struct.unpack_from("<QqQQ16sII", payload)
        _text(payload, 56, count)
        if self._begun is not None and not self._outline.snapshots:
            self._begun(self._outline)
        shelf = len(self._outline.shelves) - 1
        self._outline.shelves[shelf]  # there is one
        self._outline.snapshots.append(
            Snapshot(
                shelf, number, None if step == _NO_STEP else step, time_ns, parent, group, bool(flags & 1), payload[56:]
            )
        )

    def _identity(self, payload: bytes) -> None:
        kind, dtype, dims, is_part, count = struct.unpack_from("<BBBBI", payload)
        if dims > _MOST_DIMS:
            raise self._damaged(f"it claims to have {dims} dimensions")
        places = dims * (3 if is_part == 1 else 1)
        shape = struct.unpack_from(f"<{dims}Q", payload, 8)
        self._outline.identities.append(Identity(kind, dtype, shape, _text(payload, 8 + places * 8, count)))

    def _content(self, payload: bytes) -> None:
        identity, digest, raw, stored, form, _, count, array, _ = struct.unpack_from("<Q16sQQBBBB4s", payload)
        if len(payload) != 48 + 8 * count:
            raise self._damaged("its bases are wrong")
        bases = struct.unpack_from(f"<{count}Q", payload, 48)
        if not all(0 < base <= len(self._outline.contents) for base in bases):
            raise self._damaged("its bases do not precede it")
        kind = self._outline.identities[identity - 1 if identity > 0 else 1 << 62].kind
        self._outline.contents.append(Content(identity, digest, raw, False, form, bases, 0, 0, stored, array))
        self._left = stored
        if kind == _ATTACHMENT and stored <= min(_INLINE_BYTES, _INLINE_BYTES_IN_ALL - self._inlined):
            self._outline.inline[len(self._outline.contents)] = b""
            self._inlined += stored

    def _known(self, payload: bytes) -> None:
        identity, digest, raw = struct.unpack("<Q16sQ", payload)
        self._outline.identities[identity - 1 if identity > 0 else 1 << 62]
        self._outline.contents.append(Content(identity, digest, raw, True, RAW, (), 0, 0, 0, 0))

    def _entries(self, payload: bytes) -> None:
        entries = self._outline.snapshots[-1].entries
        for identity, content in struct.iter_unpack("<QQ", payload):
            if not 0 < identity <= len(self._outline.identities) or content > len(self._outline.contents):
                raise self._damaged("an entry is of a later identity or content")
            entries.append((identity, content))

    def _since(self, payload: bytes) -> None:
        struct.unpack("<QQ", payload)
        self._outline.since.append(payload[::-1].hex())

    def _end(self, payload: bytes) -> None:
        struct.unpack("<8Q", payload)
        self._outline.id = payload[:47:-1].hex()


def _text(payload: bytes, offset: int, count: int) -> str:
    if len(payload) != offset + count:
        raise struct.error("the length of a text is wrong")
    return payload[offset:].decode()
