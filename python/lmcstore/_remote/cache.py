# SPDX-License-Identifier: BSD-3-Clause
"""`Cache`: reads tensors and attachments of a run in an object store, and keeps what it has read (`Kept`)."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .. import _core
from ..errors import DamagedError, InvalidError, NotFoundError, OutOfMemoryError
from . import outline, state
from .blocks import BLOCK_BYTES, Decoder, Level
from .codec import UNKNOWN, Archive, Entry
from .files import ObjectNotFoundError
from .kept import Kept
from .outline import Identity, Outline
from .place import Place, forked

_OUTLINES_BYTES = 256 << 20
_MOST_THREADS = 8

Progress = Callable[[str, int, int], object]


class Cache:
    """Several threads, and forked children, may use it."""

    def __init__(
        self, place: Place, folder: str | None, most_bytes: int, progress: Progress | None = None, share: int = 1
    ) -> None:
        """`share`: of how many caches, which have `most_bytes` and the memory together."""
        self.place = place
        self._progress = progress
        self._kept = Kept(folder, most_bytes, share)
        self._closed = False
        self._outlines: OrderedDict[str, Outline] = OrderedDict()
        self._outlines_bytes, self._most_outlines_bytes = 0, _OUTLINES_BYTES // share
        self.bytes = 0
        """Fetched payloads and outlines."""
        self.renew()
        forked.add(self)

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "lmcstore-decode")
        self._kept.renew()

    def close(self) -> None:
        self._closed = True
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._kept.close()

    def outlines(self, shelf: str, chain: Sequence[tuple[Entry, Archive]]) -> list[Outline]:
        """Return the outlines of archives of a snapshot, the last of `chain`."""
        try:
            found = self._outlines_of([archive for _, archive in chain])
        except NotFoundError as error:
            raise ObjectNotFoundError(f"{self._what(shelf, chain)}: {error}") from None
        except DamagedError as error:
            raise DamagedError(f"{self._what(shelf, chain)}: {error}") from None
        for (entry, archive), one in zip(chain, found, strict=True):
            last = one.snapshots[-1]
            group = UNKNOWN if entry.of is None else entry.of.group
            if (last.number, last.time_ns) != (entry.number, entry.time_ns) or group not in (UNKNOWN, last.group.hex()):
                where = self.place.where(archive.object)
                raise DamagedError(f"{self._what(shelf, chain)}: its archive, {where}, has another snapshot")
        return found

    def _what(self, shelf: str, chain: Sequence[tuple[Entry, Archive]]) -> str:
        return f"{shelf}@{chain[-1][0].number} of {self.place.url}"

    def read(
        self,
        shelf: state.Shelf,
        number: int,
        kind: int,
        wanted: Mapping[str, tuple[int, int] | None],
        into: Mapping[str, memoryview] | None = None,
    ) -> dict[str, tuple[Identity, Any]]:
        """Read tensors or attachments of a snapshot, or ranges of their bytes (offset, count), verified.

        `into`: where to put them; else in a bytearray. NotFoundError: it has no such one.
        """
        chain = shelf.chain(number)
        what, outlines = self._what(shelf.name, chain), self.outlines(shelf.name, chain)
        levels = [Level(*one, found) for one, found in zip(chain, outlines, strict=True)]
        newest = outlines[-1]
        places = {}
        for one, content in newest.entries:
            if newest.identities[one - 1].kind == kind:
                places[newest.identities[one - 1].name] = newest.identities[one - 1], content
        found: dict[str, tuple[Identity, _Buffer]] = {}
        targets: dict[int, list[tuple[_Buffer, int]]] = defaultdict(list)
        blocks: dict[int, range] = {}
        for name, part in wanted.items():
            if name not in places:
                raise NotFoundError(f"{what} has no {'tensor' if kind == _core.TENSOR else 'attachment'} {name!r}")
            identity, place = places[name]
            raw_bytes = newest.contents[place - 1].raw_bytes
            offset, count = (0, raw_bytes) if part is None else part
            if raw_bytes != _raw_bytes(identity) or not 0 <= offset <= offset + count <= raw_bytes:
                raise DamagedError(f"{what} is damaged: {name!r} has another size than its shape says")
            failure = f"{what}: there is no memory for {name!r}, {count} bytes"
            found[name] = identity, _Buffer(count, failure, None if into is None else into[name])
            if count:
                targets[place].append((found[name][1], offset))
                now = range(offset // BLOCK_BYTES, -(-(offset + count) // BLOCK_BYTES))
                old = blocks.get(place, now)
                blocks[place] = range(min(old.start, now.start), max(old.stop, now.stop))

        def sink(place: int, index: int, block: bytes) -> None:
            for buffer, offset in targets[place]:
                at = index * BLOCK_BYTES - offset
                first, last = max(0, -at), min(len(block), buffer.count - at)
                if first < last:
                    buffer.data()[at + first : at + last] = memoryview(block)[first:last]

        if blocks:
            decoder = Decoder(self.place, levels, self._kept, self._workers, what)
            progress = self._counter(sum(buffer.count for _, buffer in found.values()), kind)
            try:
                decoder.run(blocks, sink, progress)
            except NotFoundError as error:
                raise ObjectNotFoundError(f"{what}: {error}") from None
            except DamagedError as error:
                raise error if str(error).startswith(what) else DamagedError(f"{what}: {error}") from None
            self.bytes += decoder.bytes
        return {name: (identity, buffer.data()) for name, (identity, buffer) in found.items()}

    def _counter(self, total: int, kind: int) -> Callable[[int], None]:
        done = 0

        def count(size: int) -> None:
            nonlocal done
            done += size
            if self._progress is not None and kind == _core.TENSOR:
                self._progress("read", min(done, total), total)

        return count

    def _outlines_of(self, archives: list[Archive]) -> list[Outline]:
        if self._closed:
            raise InvalidError(f"{self.place.url}: the store is closed")
        with self._lock:
            found = {one.id: self._outlines[one.id] for one in archives if one.id in self._outlines}
        ranges: dict[str, list[tuple[str, int, int]]] = {}
        for archive in archives:
            if archive.id in found or archive.id in ranges:
                continue
            if archive.outline_bytes > outline.MOST_BYTES:
                raise DamagedError(f"{self.place.where(archive.object)} is damaged: its outline is too large")
            packed = self._kept.get(self._kept_as(archive))
            if packed is None:
                ranges[archive.id] = archive.outline_ranges()
            else:
                found[archive.id] = self._unpacked(archive, packed)
        parts = iter(self.place.get_ranges([one for several in ranges.values() for one in several]))
        for archive in archives:
            if archive.id not in found:
                packed = b"".join(next(parts) for _ in ranges[archive.id])
                self.bytes += len(packed)
                found[archive.id] = self._unpacked(archive, packed)
                self._kept.add(self._kept_as(archive), packed)
        with self._lock:
            for archive in archives:
                if archive.id not in self._outlines:
                    self._outlines[archive.id] = found[archive.id]
                    self._outlines_bytes += found[archive.id].memory
                self._outlines.move_to_end(archive.id)
            # those of one snapshot stay in any case: each of its tensors needs them
            while self._outlines_bytes > self._most_outlines_bytes and len(self._outlines) > len(archives):
                self._outlines_bytes -= self._outlines.popitem(last=False)[1].memory
        return [found[archive.id] for archive in archives]

    def _kept_as(self, archive: Archive) -> str:
        """Return the name of an outline in the folder, where another run may claim to have the same archive."""
        where = f"{self.place.where(archive.object)} {archive.id} {archive.outline_offset}"
        return f"outline-{hashlib.sha256(where.encode()).hexdigest()[:32]}"

    def _unpacked(self, archive: Archive, packed: bytes) -> Outline:
        where = self.place.where(archive.object)
        found = outline.unpack(packed, where)
        if found.id != archive.id or found.size != archive.bytes or not found.shelves or not found.snapshots:
            raise DamagedError(f"{where} is damaged: its outline is of another archive")
        if not all(content for _, content in found.entries):
            raise DamagedError(f"{where} is damaged: its outline lacks contents")
        return found


class _Buffer:
    """Memory that is taken when its first block is there, since that takes time in which the link would be idle."""

    def __init__(self, count: int, failure: str, data: memoryview | None) -> None:
        self.count, self._failure = count, failure
        self._lock = threading.Lock()
        self._data: bytearray | memoryview | None = data

    def data(self) -> bytearray | memoryview:
        """Return the memory. OutOfMemoryError: there is none."""
        with self._lock:
            if self._data is None:
                try:
                    self._data = bytearray(self.count)
                except (MemoryError, OverflowError):
                    raise OutOfMemoryError(self._failure) from None
            return self._data


def _raw_bytes(identity: Identity) -> int:
    info = _core.dtype_info(identity.dtype)
    return math.prod(identity.shape) * (info[1] if info is not None else 0)
