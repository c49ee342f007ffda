# SPDX-License-Identifier: BSD-3-Clause
"""`Cache`: a pool with the tensors that were read of a run in an object store.

Of the archives from a snapshot back to its key, only the payloads are fetched on which the wanted tensors rest: into
files with holes, which are restored in part (`Store.restore`, ``only``). The pool compares all checksums, and reads.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import _core
from ..errors import DamagedError, Error, NotFoundError
from . import outline, state
from .codec import Archive, Entry
from .outline import FRAME, RAW, Content, Outline
from .place import Place, forked

_AT_ONCE_BYTES = 64 << 20
_GAP_BYTES = 64 << 10
_OWN = frozenset(f"lmcstore.{name}" for name in ("meta", "tags", "relations", "constants"))
"""Attachments that each restore needs (store/records/relations.h)."""
_PATTERN = frozenset("*?")
_U8 = 2


@dataclass
class _Level:
    """An archive of a chain, and its needed contents."""

    entry: Entry
    archive: Archive
    outline: Outline
    names: list[str] = field(default_factory=list)
    contents: set[int] = field(default_factory=set)
    is_whole: bool = False


class Cache:
    """Fetches tensors into a temporary pool, which is removed by `close`. Several threads may use it."""

    def __init__(self, place: Place, most_bytes: int) -> None:
        self._place = place
        self._most_bytes = most_bytes
        self._left: list[_core.Pool] = []
        self._pool: Any = None
        self.renew()
        forked.add(self)

    def renew(self) -> None:
        if self._pool is not None:
            self._left.append(self._pool)  # the parent's
        self._folder = tempfile.mkdtemp(prefix="lmc-store-cache-")
        try:
            self._pool = _core.open(
                os.path.join(self._folder, "cache.pool"), _core.OPEN_CREATE, 0, 0, 0, _core.NO_BACKGROUND
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._lock = threading.Lock()
        self._outlines: dict[str, Outline] = {}
        self._there: dict[tuple[str, int], set[str]] = {}
        self.bytes = 0
        """Fetched payloads and outlines."""

    def close(self) -> None:
        """Remove the pool; arrays that were read stay valid."""
        self._pool.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def outline(self, archive: Archive) -> Outline:
        """Return the outline of an archive."""
        with self._lock:
            return self._outlines_of([archive])[0]

    def find(self, shelf: state.Shelf, number: int, names: Iterable[str], verify: bool) -> _core.Snapshot:
        """Return the snapshot of the pool, with these tensors at least; the names are those of the snapshot."""
        wanted = list(names)
        with self._lock:
            levels = self._levels(shelf, number)
            where = f"{shelf.name}@{number} of {self._place.url}"
            name = levels[-1].outline.shelves[0].name
            self._shrink()
            for group in _groups(self._needed(shelf.identity, levels, wanted, where)):
                self._restore(group, shelf, where)
                for level in group:
                    self._there.setdefault((shelf.identity, level.entry.number), set()).update(level.names)
            found: _core.Snapshot = self._pool.find(self._name(name), str(number), verify)
            return found

    def attachments(self, shelf: state.Shelf, number: int, names: Sequence[str]) -> list[bytes]:
        """Return attachments of a snapshot, verified. NotFoundError: it has no such one."""
        with self._lock:
            levels = self._levels(shelf, number)
            found = levels[-1].outline
            places = {
                found.identities[one - 1].name: content
                for one, content in found.entries
                if found.identities[one - 1].kind == _core.ATTACHMENT
            }
            where = f"{shelf.name}@{number} of {self._place.url}"
            for name in names:
                if name not in places:
                    raise NotFoundError(f"{where} has no attachment {name!r}")
            return [self._bytes(levels, places[name], f"{where}: {name}") for name in names]

    def _bytes(self, levels: list[_Level], number: int, what: str) -> bytes:
        """Fetch a content of the newest level and its bases; return its bytes, verified."""
        level = levels[-1]
        content = level.outline.contents[number - 1]
        if content.is_known:
            contents = enumerate(levels[-2].outline.contents, 1) if len(levels) > 1 else ()
            older = next((place for place, one in contents if one.digest == content.digest), None)
            if older is None:
                raise DamagedError(f"{what} is in no archive")
            return self._bytes(levels[:-1], older, what)
        data = bytearray()
        pieces = list(level.outline.pieces(content))
        for _, part in self._fetched(level.archive, pieces):
            data += part
        base = self._bytes(levels, content.bases[0], what) if content.bases else None
        try:
            if content.payload == FRAME:
                data = _core.codec_decompress(data, base, None, 1)
            found = bytes(memoryview(data)[: content.raw_bytes])
            if content.payload not in (RAW, FRAME) or _core.codec_digest(found, _U8, 1) != content.digest[::-1].hex():
                raise DamagedError("its digest is wrong")
        except DamagedError as error:
            raise DamagedError(f"{what}, in {self._place.where(level.archive.object)}, is damaged: {error}") from None
        return found

    def _levels(self, shelf: state.Shelf, number: int) -> list[_Level]:
        chain = shelf.chain(number)
        outlines = self._outlines_of([archive for _, archive in chain])
        return [_Level(*one, found) for one, found in zip(chain, outlines, strict=True)]

    def _name(self, name: str) -> str:
        """Return the name of a shelf here: that of its first archive, if the shelf was renamed later."""
        shelves = [shelf["name"] for shelf in self._pool.shelves()]
        return name if name in shelves or len(shelves) != 1 else shelves[0]

    def _outlines_of(self, archives: list[Archive]) -> list[Outline]:
        missing = [archive for archive in archives if archive.id not in self._outlines]
        ranges = [archive.outline_ranges() for archive in missing]
        parts = iter(self._place.get_ranges([one for several in ranges for one in several]))
        for archive, several in zip(missing, ranges, strict=True):
            packed = b"".join(next(parts) for _ in several)
            self.bytes += len(packed)
            where = self._place.where(archive.object)
            found = outline.unpack(packed, where)
            if found.id != archive.id or found.size != archive.bytes or not found.shelves or not found.snapshots:
                raise DamagedError(f"{where} is damaged: its outline is of another archive")
            self._outlines[archive.id] = found
        return [self._outlines[archive.id] for archive in archives]

    # The needed contents

    def _needed(self, identity: str, levels: list[_Level], wanted: list[str], where: str) -> list[_Level]:
        """Choose the contents of each archive, from the newest on; return the levels to restore, oldest first."""
        level = levels[-1]
        forms = {level.outline.identities[one - 1].name: content for one, content in _tensors(level.outline)}
        for name in wanted:
            if name not in forms:
                raise NotFoundError(f"{where} has no tensor {name!r}")
        digests = {level.outline.contents[forms[name] - 1].digest for name in wanted}
        needed: list[_Level] = []
        for level in reversed(levels):
            digests = self._choose(level, digests)
            there = self._there.get((identity, level.entry.number))
            if there is not None and there.issuperset(level.names):
                break
            needed.append(level)
            if not digests:
                break
        else:
            if digests:
                raise DamagedError(f"{where}: its key lacks contents that it needs")
        if any(level.is_whole for level in needed):
            for level in levels:
                level.is_whole = True
            return levels
        return needed[::-1]

    def _choose(self, level: _Level, digests: set[bytes]) -> set[bytes]:
        """Choose the contents with these digests, the store's own values, and all on which they rest.

        Returns the digests that the archive before must have.
        """
        found = level.outline
        older: set[bytes] = set()
        pending = []
        for one, content in found.entries:
            identity, digest = found.identities[one - 1], found.contents[content - 1].digest
            is_own = identity.kind == _core.ATTACHMENT and identity.name in _OWN
            if not is_own and (identity.kind != _core.TENSOR or digest not in digests):
                continue
            pending.append(content)
            if identity.kind == _core.TENSOR:
                level.names.append(identity.name)
        if not level.names and (tensors := _tensors(found)):  # a part has a tensor: the one that costs least
            one, content = min(tensors, key=lambda one: _cost(found.contents[one[1] - 1]))
            pending.append(content)
            level.names.append(found.identities[one - 1].name)
        held = {found.contents[content - 1].digest for content in pending}
        level.is_whole = not digests <= held or any(_PATTERN & set(name) for name in level.names) or not level.names
        while pending:
            number = pending.pop()
            content_of = found.contents[number - 1]
            if content_of.is_known:
                older.add(content_of.digest)
            elif number not in level.contents:
                level.contents.add(number)
                pending.extend(content_of.bases)
        return older

    # Fetching

    def _restore(self, group: list[_Level], shelf: state.Shelf, where: str) -> None:
        """Restore archives in one commit; of a single one, only the wanted tensors."""
        last = group[-1]
        names = () if last.is_whole else tuple(last.names)
        with contextlib.ExitStack() as stack:
            files = []
            for level in group:
                file = stack.enter_context(tempfile.TemporaryFile(prefix="lmc-store-", dir=self._folder))
                level.outline.write_sparse(file.fileno())
                for offset, data in self._payloads(level):
                    os.pwrite(file.fileno(), data, offset)
                os.lseek(file.fileno(), 0, os.SEEK_SET)
                files.append(file.fileno())
            try:
                self._pool.restore(tuple(files), (), names, None, False, False, None)
            except Error as error:
                affected = f"{where}: {shelf.name}@{last.entry.number}, in {self._place.where(last.archive.object)}"
                raise type(error)(f"{affected}: {error}") from None

    def _payloads(self, level: _Level) -> Iterator[tuple[int, bytes]]:
        """Fetch the wanted payloads, in parallel, a bounded number of bytes at once."""
        batch: list[tuple[int, int]] = []
        size = 0
        for offset, count in self._spans(level):
            while count > 0:
                now = min(count, _AT_ONCE_BYTES - size)
                batch.append((offset, now))
                offset, count, size = offset + now, count - now, size + now
                if size == _AT_ONCE_BYTES:
                    yield from self._fetched(level.archive, batch)
                    batch, size = [], 0
        yield from self._fetched(level.archive, batch)

    def _fetched(self, archive: Archive, batch: list[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        ranges = [(offset, archive.ranges(offset, count)) for offset, count in batch]
        parts = iter(self._place.get_ranges([one for _, several in ranges for one in several]))
        for offset, several in ranges:
            for _ in several:
                data = next(parts)
                self.bytes += len(data)
                yield offset, data
                offset += len(data)

    def _spans(self, level: _Level) -> list[tuple[int, int]]:
        """Return the offsets and sizes to fetch, those with small gaps together."""
        found = level.outline
        numbers = range(1, len(found.contents) + 1) if level.is_whole else level.contents
        spans = sorted((one.offset, one.span) for one in (found.contents[number - 1] for number in numbers) if one.span)
        joined: list[tuple[int, int]] = []
        for offset, count in spans:
            if joined and offset - sum(joined[-1]) <= _GAP_BYTES:
                joined[-1] = joined[-1][0], offset + count - joined[-1][0]
            else:
                joined.append((offset, count))
        return joined

    def _shrink(self) -> None:
        """Empty the pool when it has more than its bytes."""
        if self._pool.info()["used_bytes"] <= self._most_bytes:
            return
        for shelf in self._pool.shelves():
            self._pool.drop(shelf["name"])
        self._pool.compact()
        self._there.clear()


def _groups(levels: list[_Level]) -> list[list[_Level]]:
    """Put whole archives that need contents of the archive before, beyond its tensors, into one group with it."""
    groups: list[list[_Level]] = []
    for level in levels:
        if groups and level.is_whole and level.entry.deep:
            groups[-1].append(level)
        else:
            groups.append([level])
    return groups


def _tensors(found: Outline) -> list[tuple[int, int]]:
    """Return the identities and contents of the tensors of an archive's only snapshot."""
    return [(one, content) for one, content in found.entries if found.identities[one - 1].kind == _core.TENSOR]


def _cost(content: Content) -> tuple[bool, int]:
    return content.is_known or bool(content.bases), content.raw_bytes
