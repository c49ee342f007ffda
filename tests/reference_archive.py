#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A reader of archives in plain Python, written from store/ARCHIVE.md alone (sections in brackets).

Checks the C library and the document against each other. Checksums and digests are checked if ``xxhash`` is installed;
``reference_reader.py`` decodes frames.

    reference_archive.py ARCHIVE [OLDER...]         list shelves, snapshots and tensors; "-": standard input
    reference_archive.py ARCHIVE --extract FOLDER   and write each content's bytes to FOLDER/<number of the content>
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

sys.path.insert(0, str(Path(__file__).resolve().parent))

import reference_reader as frames
from reference_reader import BLOCK_BYTES, ELEMENT_BYTES, Damaged, Unsupported, refuse, unsupported, xxhash

SHELF, SNAPSHOT, IDENTITY, CONTENT, DATA, ENTRIES, SNAPSHOT_END, TAG, END, ORIGIN, SINCE, KNOWN = range(1, 13)
IGNORABLE = 0x80000000
SHELF_ID = 0x80000001
MOST_BYTES = 1 << 20
NO_STEP = -(1 << 63)
TENSOR, ATTACHMENT = 0, 1
RAW, FRAME, LINK, LINKED = range(4)
F32 = 12
META_NAME = "lmcstore.meta"


class Incomplete(Exception):
    """Needs an absent older archive [7.7]."""


@dataclass
class Identity:
    """[6]"""

    kind: int
    dtype: int
    shape: tuple[int, ...]
    global_shape: tuple[int, ...] | None
    offsets: tuple[int, ...] | None
    name: str
    raw_bytes: int


@dataclass
class Content:
    """[7]"""

    identity: Identity
    digest: tuple[int, int]
    raw_bytes: int
    stored_bytes: int
    payload: int
    bases: list[Content]
    depth: int  # deltas
    line: int  # links
    record: int
    output: int = 0
    stored: bytearray = field(default_factory=bytearray)
    used: bool = False
    there: Content | None = None  # in an older archive
    _bytes: bytes | None = None

    @property
    def hex_digest(self) -> str:
        return f"{self.digest[1]:016x}{self.digest[0]:016x}"

    @property
    def base(self) -> Content | None:
        return self.bases[0] if self.bases else None

    def read(self) -> bytes:
        """Decode and check [7.3 to 7.5]; of a link, all arrays after the step, concatenated [7.8]."""
        if self.there is not None:
            self._bytes = self.there.read()
        if self._bytes is None:
            if self.payload == LINK:
                self._read_link()
            elif self.payload == RAW:
                self._check_digest(self._read_raw())
            elif self.payload == LINKED:
                self._check_digest(self._read_linked())
            else:
                self._check_digest(self._read_frame(self.base.read() if self.base is not None else None))
        assert self._bytes is not None
        return self._bytes

    def _read_raw(self) -> list[bytes] | None:
        self._bytes = bytes(self.stored[: self.raw_bytes])
        hashes = [hash128(block) for block in blocks_of(self._bytes)] if xxhash else None
        if self.raw_bytes > BLOCK_BYTES and hashes is not None:
            table_at = (self.raw_bytes + 15) // 16 * 16
            refuse(bytes(self.stored[table_at:]) != b"".join(hashes), "the hashes of a raw payload's blocks")
        return hashes

    def _read_frame(self, base: bytes | None) -> list[bytes] | None:
        frame = frames.Frame(bytes(self.stored))
        refuse(frame.raw_bytes != self.raw_bytes or frame.dtype != self.identity.dtype, "a frame of something else")
        refuse((frame.base_count == 1) != (base is not None), "a frame with a base, or without")
        if self.base is not None:
            refuse(struct.unpack_from("<QQ", self.stored, 64) != self.base.digest, "a frame against another base")
        self._bytes = frame.decode(base)
        return [struct.pack("<QQ", *hashes) for _, _, _, hashes, _ in frame.blocks]

    def _read_link(self) -> None:
        """[7.8]"""
        frame = frames.Frame(bytes(self.stored))
        refuse(frame.predictor == 0 or frame.base_count != len(self.bases), "a link that is none")
        refuse(frame.raw_bytes != self.raw_bytes, "a link of something else")
        before = b"".join(struct.pack("<QQ", *base.digest) for base in self.bases)
        refuse(self.stored[64 : 64 + len(before)] != before, "a link that leads from something else")
        self._bytes = frame.decode(b"".join(base.read() for base in self.bases))
        if xxhash is not None:
            hashes = [[hash128(block) for block in blocks_of(self._array(i))] for i in range(len(self.bases))]
            after = b"".join(digest_of(self.identity, blocks) for blocks in hashes)
            refuse(hash128(after + before) != struct.pack("<QQ", *self.digest), "the digest of a link")

    def _array(self, output: int) -> bytes:
        return self.read()[output * self.raw_bytes : (output + 1) * self.raw_bytes]

    def _read_linked(self) -> list[bytes] | None:
        """[7.9]"""
        self._bytes = self.bases[0]._array(self.output)
        return [hash128(block) for block in blocks_of(self._bytes)] if xxhash else None

    def _check_digest(self, hashes: list[bytes] | None) -> None:
        if hashes is not None and xxhash is not None:
            refuse(digest_of(self.identity, hashes) != struct.pack("<QQ", *self.digest), "the digest of a content")


@dataclass
class Snapshot:
    """[5]"""

    number: int
    step: int | None
    time_ns: int
    parent: int
    group: bytes
    is_changes: bool
    text: str | None
    entries: dict[int, tuple[Identity, Content]]
    metrics: dict[str, float] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)

    def find(self, name: str, kind: int = TENSOR) -> tuple[Identity, Content]:
        return next(entry for entry in self.entries.values() if (entry[0].name, entry[0].kind) == (name, kind))


@dataclass
class Shelf:
    """[4]"""

    name: str
    next_number: int
    keep_raw: int
    snapshots: list[Snapshot] = field(default_factory=list)
    origin: tuple[str, int, int] | None = None  # shelf, number, time
    tags: dict[str, int] = field(default_factory=dict)
    identity: tuple[int, int] = (0, 0)
    has_all_tags: bool = False


def hash128(data: bytes) -> bytes:
    value = xxhash.xxh3_128_intdigest(data)
    return struct.pack("<QQ", value & (1 << 64) - 1, value >> 64)


def digest_of(identity: Identity, hashes: list[bytes]) -> bytes:
    """[7.5]"""
    shape = identity.shape
    head = b"LMCD" + struct.pack(f"<III{len(shape)}Q", identity.dtype, len(shape), 0, *shape)
    return hash128(head + b"".join(hashes))


def blocks_of(data: bytes) -> list[bytes]:
    return [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]


def text_of(data: bytes, size: int) -> str:
    """A text that fills `data` [1.4, 3.3]."""
    refuse(len(data) != size, "the size of a record")
    refuse(b"\0" in data, "a NUL in a text")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Damaged("a text that is not UTF-8") from None


def name_of(data: bytes, size: int) -> str:
    name = text_of(data, size)
    refuse(not 1 <= size <= 1024, "the length of a name")
    refuse(any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in name), "a control character in a name")
    return name


def fields(layout: str, payload: bytes) -> tuple[Any, ...]:
    refuse(len(payload) < struct.calcsize(layout), "a record that is too short")
    return struct.unpack_from(layout, payload)


class Records:
    """A stream's records, checked [2.2, 3]."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.number = 0
        self.headers = xxhash.xxh3_128() if xxhash else None
        self.hash_before = 0  # of all headers before the last record's
        head = self._take(40)
        magic, version, _, incompatible, _, check = struct.unpack("<8sIIQQQ", head)
        refuse(magic != b"LMCSARCH", "magic")
        frames.check64(head[:32], 0, check, "the head")
        unsupported(version != 1 or incompatible != 0, "version or features")
        self._add_header(head)

    def _add_header(self, header: bytes) -> None:
        if self.headers is not None:
            self.hash_before = self.headers.intdigest()
            self.headers.update(header)

    def _take(self, count: int) -> bytes:
        data = self.file.read(count)
        refuse(len(data) != count, "the archive was cut short")
        return data

    def next(self) -> tuple[int, bytes]:
        while True:
            header = self._take(24)
            kind, size, payload_check, check = struct.unpack("<IIQQ", header)
            frames.check64(header[:16], self.number, check, f"the header of record {self.number}")
            refuse(size > MOST_BYTES, "the size of a record")
            payload = self._take(size)
            frames.check64(payload, self.number, payload_check, f"record {self.number}")
            self._add_header(header)
            self.number += 1
            if kind < IGNORABLE or kind == SHELF_ID:
                refuse(kind == 0, "a record without a type")
                unsupported(KNOWN < kind < IGNORABLE, f"a record of type {kind}")
                return kind, payload

    def finish(self) -> None:
        refuse(self.file.read(1) != b"", "something follows the end record")


class Archive:
    """An archive; `shelves` by name. Contents are in memory in stored form."""

    def __init__(self, file: BinaryIO, older: list[Archive] | None = None) -> None:
        self.records = Records(file)
        self.known = {key: content for archive in older or [] for key, content in archive.by_digest().items()}
        self.since: list[str] = []
        self.name = ""
        self.shelves: dict[str, Shelf] = {}
        self.identities: list[Identity] = []
        self.contents: list[Content] = []
        self.tag_count = 0
        kind, payload = self.records.next()
        while kind == SINCE:  # [2.4]
            refuse(len(payload) != 16, "the size of a record")
            low, high = fields("<QQ", payload)
            self.since.append(f"{high:016x}{low:016x}")
            kind, payload = self.records.next()
        while kind == SHELF:
            kind, payload = self._read_shelf(payload)
        refuse(kind != END, f"a record of type {kind} that can't stand here")
        self._read_end(payload)

    def by_digest(self) -> dict[tuple[tuple[int, int], int, tuple[int, ...]], Content]:
        """Contents that another archive may need."""
        mine = {(c.digest, c.identity.dtype, c.identity.shape): c for c in self.contents if c.payload != LINK}
        return self.known | mine

    # [4]

    def _read_shelf(self, payload: bytes) -> tuple[int, bytes]:
        next_number, keep_raw, size = fields("<QII", payload)
        name = name_of(payload[16:], size)
        refuse("@" in name, "the name of a shelf")
        refuse(any(other.encode() >= name.encode() for other in self.shelves), "the order of shelves")
        refuse(not 1 <= next_number <= 1 << 62 or keep_raw == 0, "a shelf's settings")
        shelf = self.shelves[name] = Shelf(name, next_number, keep_raw)
        kind, payload = self.records.next()
        has_id = kind == SHELF_ID
        if has_id:
            kind, payload = self._read_id(shelf, payload)
        if kind == ORIGIN:
            number, time_ns, size, reserved = fields("<QQII", payload)
            origin = name_of(payload[24:], size)
            refuse("@" in origin or reserved != 0 or not 1 <= number <= 1 << 62, "where a shelf was forked from")
            shelf.origin = (origin, number, time_ns)
            kind, payload = self.records.next()
        if kind == SHELF_ID and not has_id:
            kind, payload = self._read_id(shelf, payload)
        while kind == SNAPSHOT:
            self._read_snapshot(shelf, payload)
            kind, payload = self.records.next()
        while kind == TAG:
            self._read_tag(shelf, payload)
            kind, payload = self.records.next()
        return kind, payload

    def _read_id(self, shelf: Shelf, payload: bytes) -> tuple[int, bytes]:
        """[4.4]"""
        refuse(len(payload) != 24, "the size of a record")
        low, high, flags, _ = fields("<QQII", payload)
        shelf.identity, shelf.has_all_tags = (low, high), flags & 1 != 0
        return self.records.next()

    def _read_tag(self, shelf: Shelf, payload: bytes) -> None:
        number, size, reserved = fields("<QII", payload)
        tag = name_of(payload[16:], size)
        refuse(reserved != 0, "a reserved field")
        refuse(any(part in tag for part in ("@", "~", ":", "{", "}", "..")) or tag == "latest", "a tag")
        refuse(all("0" <= c <= "9" for c in tag), "a tag of digits")
        refuse(any(other.encode() >= tag.encode() for other in shelf.tags), "the order of tags")
        owners = [snapshot for snapshot in shelf.snapshots if snapshot.number == number]
        older = bool(self.since) and 0 < number < shelf.next_number
        refuse(not owners and not older, "a tag of a snapshot that is not here")
        for owner in owners:
            owner.tags.append(tag)
        shelf.tags[tag] = number
        self.tag_count += 1

    # [5]

    def _read_snapshot(self, shelf: Shelf, payload: bytes) -> None:
        number, step, time_ns, parent, group, flags, size = fields("<QqQQ16sII", payload)
        last = shelf.snapshots[-1] if shelf.snapshots else None
        unsupported(flags & ~3 != 0, "flags of a snapshot")
        refuse(not (last.number if last else 0) < number < shelf.next_number, "the number of a snapshot")
        refuse(parent >= 1 << 62, "the number of a parent")
        refuse(flags & 1 != 0 and last is None, "changes of nothing")
        refuse(size > 1200 or (size == 0) != (flags & 2 != 0), "the size of metadata")
        text = text_of(payload[56:], size) if size else None
        refuse(size == 0 and len(payload) != 56, "the size of a record")
        entries = dict(last.entries) if last is not None and flags & 1 else {}
        snapshot = Snapshot(number, None if step == NO_STEP else step, time_ns, parent, group, bool(flags & 1), text,
                            entries)  # fmt: skip
        self._read_list(snapshot)
        self._read_meta(snapshot)
        shelf.snapshots.append(snapshot)

    def _read_meta(self, snapshot: Snapshot) -> None:
        text = snapshot.text
        if text is None:
            found = [c for i, c in snapshot.entries.values() if (i.kind, i.name) == (ATTACHMENT, META_NAME)]
            refuse(not found or found[0].raw_bytes > 64 << 20, "the attachment with the metadata")
            data = found[0].read()
            text = text_of(data, len(data))
        try:
            whole = json.loads(text, object_pairs_hook=unique)
        except ValueError:
            raise Damaged("metadata that is not JSON") from None
        refuse(not isinstance(whole, dict) or set(whole) != {"metrics", "meta"}, "the members of metadata")
        refuse(not isinstance(whole["metrics"], dict) or not isinstance(whole["meta"], dict), "the form of metadata")
        for key, value in whole["metrics"].items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            refuse(not number and value not in ("NaN", "Infinity", "-Infinity"), "a metric that is no number")
            name_of(key.encode(), len(key.encode()))
            snapshot.metrics[key] = float(value)
        snapshot.meta = whole["meta"]

    # [8]

    def _read_list(self, snapshot: Snapshot) -> None:
        first_content = len(self.contents)
        touched: set[int] = set()
        while True:
            kind, payload = self.records.next()
            if kind == IDENTITY:
                self._read_identity(payload)
            elif kind == CONTENT:
                self._read_content(payload)
            elif kind == KNOWN:
                self._read_known(payload)
            elif kind == ENTRIES:
                refuse(len(payload) == 0 or len(payload) % 16 != 0, "the size of a list of entries")
                for identity, content in struct.iter_unpack("<QQ", payload):
                    self._read_entry(snapshot, touched, identity, content)
            else:
                break
        refuse(kind != SNAPSHOT_END, f"a record of type {kind} that can't stand here")
        refuse(len(payload) != 8 or fields("<Q", payload)[0] != len(snapshot.entries), "the number of entries")
        names = {(identity.kind, identity.name) for identity, _ in snapshot.entries.values()}
        refuse(len(names) != len(snapshot.entries), "a name that stands in a snapshot twice")
        refuse(len(names) > (1 << 24) + 1, "too many entries")
        refuse(sum(i.raw_bytes for i, _ in snapshot.entries.values()) >= 1 << 64, "the size of a snapshot")
        for content in self.contents[first_content:]:
            refuse(not content.used, "a content that nothing uses")

    def _read_entry(self, snapshot: Snapshot, touched: set[int], identity: int, content: int) -> None:
        refuse(not 1 <= identity <= len(self.identities), "an identity that has not come")
        refuse(content > len(self.contents), "a content that has not come")
        refuse(identity in touched, "an identity that stands in a list twice")
        touched.add(identity)
        if content == 0:
            refuse(not snapshot.is_changes or identity not in snapshot.entries, "a removal of nothing")
            del snapshot.entries[identity]
            return
        what, found = self.identities[identity - 1], self.contents[content - 1]
        refuse(found.payload == LINK, "an entry that is a link")
        refuse((what.dtype, what.shape) != (found.identity.dtype, found.identity.shape), "the form of a content")
        found.used = True
        snapshot.entries[identity] = what, found

    # [6]

    def _read_identity(self, payload: bytes) -> None:
        kind, dtype, ndim, is_part, size = fields("<BBBBI", payload)
        refuse(kind > ATTACHMENT, "the kind of an identity")
        refuse(dtype == 0, "no dtype")
        unsupported(dtype not in ELEMENT_BYTES, "dtype")
        refuse(ndim > 32 or is_part > 1, "the dimensions of an identity")
        count = ndim * (3 if is_part else 1)
        numbers = fields(f"<8x{count}Q", payload)
        name = name_of(payload[8 + 8 * count :], size)
        shape, whole, offsets = numbers[:ndim], numbers[ndim : 2 * ndim], numbers[2 * ndim :]
        raw_bytes = ELEMENT_BYTES[dtype]
        for n in shape:
            raw_bytes *= n
        refuse(raw_bytes > 1 << 60, "the size of a tensor")
        refuse(is_part == 1 and any(n + o > w for n, w, o in zip(shape, whole, offsets, strict=True)), "a part")
        self.identities.append(Identity(kind, dtype, shape, whole if is_part else None, offsets if is_part else None,
                                        name, raw_bytes))  # fmt: skip
        unsupported(len(self.identities) > 1 << 24, "too many identities")

    # [7]

    def _read_content(self, payload: bytes) -> None:
        identity, low, high, raw, stored, how, flags, count, output, reserved = fields("<QQQQQBBBB4s", payload)
        unsupported(how > LINKED or flags & ~1 != 0 or count > 4 or any(reserved), "how a content is stored")
        unsupported(output != 0 and how != LINKED, "how a content is stored")
        refuse(how != RAW and flags != 0, "a frame that is no smaller")
        refuse(how == RAW and count != 0, "a raw content with a base")
        unsupported(how == FRAME and count > 1, "a delta against several bases")
        refuse(len(payload) != 48 + 8 * count, "the size of a record")
        refuse(not 1 <= identity <= len(self.identities), "an identity that has not come")
        what = self.identities[identity - 1]
        refuse(raw != what.raw_bytes, "the size of a content")
        table = raw if raw <= BLOCK_BYTES else (raw + 15) // 16 * 16 + 16 * ((raw + BLOCK_BYTES - 1) // BLOCK_BYTES)
        refuse(how == RAW and stored != table, "the size of a raw content")
        bases = []
        for number in struct.unpack_from(f"<{count}Q", payload, 48):
            refuse(not 1 <= number <= len(self.contents), "a base that has not come")
            bases.append(self.contents[number - 1])
            refuse((bases[-1].identity.dtype, bases[-1].identity.shape) != (what.dtype, what.shape), "a base's form")
            bases[-1].used = True
        content = Content(what, (low, high), raw, stored, how, bases, 0, 0, self.records.number - 1, output)
        self._check_bases(content)
        while len(content.stored) < stored:
            kind, piece = self.records.next()
            refuse(kind != DATA, f"a record of type {kind} that can't stand here")
            refuse(not 1 <= len(piece) <= stored - len(content.stored), "the size of a piece")
            content.stored += piece
        self.contents.append(content)

    def _check_bases(self, content: Content) -> None:
        bases, first = content.bases, content.base
        if content.payload == LINK:  # [7.8]
            refuse(content.identity.dtype != F32 or not content.raw_bytes or len(bases) < 2, "a link of something else")
            refuse(len({id(base) for base in bases}) != len(bases), "a link from one array twice")
            before = bases[0].bases[0] if bases[0].payload == LINKED else None
            for i, base in enumerate(bases):
                if before is None:
                    refuse(base.payload > FRAME or base.depth > 0, "a link from what needs something else")
                else:
                    refuse(base.payload != LINKED or base.bases[0] is not before or base.output != i, "a link's bases")
            refuse(before is not None and len(before.bases) != len(bases), "a link from a state of other arrays")
            content.line = 1 if before is None else before.line + 1
            refuse(content.line > 64, "a line that is too long")
        elif content.payload == LINKED:  # [7.9]
            refuse(first is None or len(bases) > 1 or first.payload != LINK, "a content to which no link leads")
            assert first is not None
            refuse(content.output >= len(first.bases), "an array that a link does not have")
            refuse(content.stored_bytes != 0, "bytes of what a link leads to")
            content.line = first.line
        elif first is not None:
            refuse(first.payload > FRAME, "a delta against what a link leads to")
            refuse(first.depth >= 7, "a chain that is too long")
            content.depth = first.depth + 1

    def _read_known(self, payload: bytes) -> None:
        """[7.7]"""
        refuse(len(payload) != 32, "the size of a record")
        identity, low, high, raw = fields("<QQQQ", payload)
        refuse(not 1 <= identity <= len(self.identities), "an identity that has not come")
        what = self.identities[identity - 1]
        refuse(raw != what.raw_bytes, "the size of a content")
        refuse(not self.since, "a known content, but no older archive")
        key = (low, high), what.dtype, what.shape
        if key not in self.known:
            raise Incomplete(f"a content that only {' or '.join(self.since)} has")
        self.contents.append(Content(what, (low, high), raw, 0, RAW, [], 0, 0, self.records.number - 1,
                                     there=self.known[key]))  # fmt: skip

    # [9]

    def _read_end(self, payload: bytes) -> None:
        refuse(len(payload) != 64, "the size of a record")
        snapshots = sum(len(shelf.snapshots) for shelf in self.shelves.values())
        counts = (len(self.shelves), snapshots, len(self.identities), len(self.contents), self.tag_count,
                  self.records.number - 1)  # fmt: skip
        refuse(struct.unpack_from("<6Q", payload) != counts, "the counts of the end record")
        low, high = struct.unpack_from("<QQ", payload, 48)
        refuse(xxhash is not None and high << 64 | low != self.records.hash_before, "the hash of all headers")
        self.name = f"{high:016x}{low:016x}"
        self.records.finish()


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    refuse(len(result) != len(pairs), "a key that stands twice")
    return result


def show(archive: Archive) -> None:
    numbers = {id(content): i for i, content in enumerate(archive.contents, 1)}
    for shelf in archive.shelves.values():
        print(f"shelf {shelf.name}: {len(shelf.snapshots)} snapshots, next {shelf.next_number}, raw {shelf.keep_raw}")
        for snapshot in shelf.snapshots:
            tags = "".join(f", tag {tag}" for tag in snapshot.tags)
            print(f"  snapshot {snapshot.number}: step {snapshot.step}, parent {snapshot.parent or None}{tags}")
            for identity, content in snapshot.entries.values():
                kind = "tensor" if identity.kind == TENSOR else "attachment"
                content.read()
                form = ("raw", "delta" if content.base else "keyframe", "link", "linked")[content.payload]
                print(f"    {kind} {identity.name}: dtype {identity.dtype}, shape {list(identity.shape)}, "
                      f"{identity.raw_bytes} bytes, {form}, content {numbers[id(content)]}, "
                      f"digest {content.hex_digest}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Read an archive by the book (store/ARCHIVE.md).")
    parser.add_argument("archive")
    parser.add_argument("older", nargs="*", help="archives since which it was made, the oldest first")
    parser.add_argument("--extract", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if xxhash is None:
        print("checksums are not checked: install the Python package xxhash", file=sys.stderr)
    try:
        older: list[Archive] = []
        for path in arguments.older:
            with open(path, "rb") as file:
                older.append(Archive(file, older))
        if arguments.archive == "-":
            archive = Archive(sys.stdin.buffer, older)
        else:
            with open(arguments.archive, "rb") as file:
                archive = Archive(file, older)
        show(archive)
        for i, content in enumerate(archive.contents, 1):
            data = content.read()
            if arguments.extract:
                arguments.extract.mkdir(parents=True, exist_ok=True)
                (arguments.extract / str(i)).write_bytes(data)
    except (Damaged, Incomplete, Unsupported) as error:
        print(f"{arguments.archive}: {type(error).__name__.lower()}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
