# SPDX-License-Identifier: BSD-3-Clause
"""`Upload`: one object of data, stored piece by piece while it grows."""

from __future__ import annotations

import contextlib
import mmap
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from .codec import PIECE_BYTES, Archive, piece_name
from .files import Part
from .outline import Outline
from .place import Place

_MOST_IN_FLIGHT = 4
_LEAST_PIECE_BYTES = 64 << 10
EXPIRES_S = 12 * 3600.0
"""A commit names no piece that is older: from a day on, `prune` may delete a piece that no commit names."""


class Pieces:
    """Memory for pieces that are filled or under way, also of several uploads together.

    It is used again: the kernel clears new memory page by page.
    """

    def __init__(self) -> None:
        self._may_start = threading.Semaphore(_MOST_IN_FLIGHT)
        self._free: list[mmap.mmap] = []

    def take(self) -> mmap.mmap:
        """Return memory for a piece, of any content."""
        with contextlib.suppress(IndexError):
            return self._free.pop()
        memory = mmap.mmap(-1, PIECE_BYTES)
        with contextlib.suppress(AttributeError, OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def start(self) -> None:
        """Wait until a piece may be sent."""
        self._may_start.acquire()

    def end(self, memory: mmap.mmap) -> None:
        """Give the memory of a sent piece back."""
        self._free.append(memory)
        self._may_start.release()


class Upload:
    """Writes bytes to a new object of data. Memory: at most five pieces."""

    def __init__(
        self,
        place: Place,
        sent: Callable[[int], None] | None = None,
        piece_bytes: int = PIECE_BYTES,
        *,
        pieces: Pieces | None = None,
    ) -> None:
        if place.pace is not None:  # so that pieces spread over time
            piece_bytes = min(piece_bytes, max(_LEAST_PIECE_BYTES, place.pace.rate // 4))
        self._place, self._sent, self.piece_bytes = place, sent, piece_bytes
        self.object = f"data/{time.time_ns():020d}-{secrets.token_hex(8)}"
        self.bytes = 0
        self._begun = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._memory: mmap.mmap | None = None
        self._filled = 0
        self._count = 0
        self._futures: list[Future[None]] = []
        self._pieces = Pieces() if pieces is None else pieces

    def write(self, data: Part) -> None:
        """Add bytes; waits while four pieces are under way. Raises the failure of an earlier piece."""
        at = 0
        while at < len(data):
            if self._memory is None:
                self._memory = self._pieces.take()
            now = min(self.piece_bytes - self._filled, len(data) - at)
            self._memory[self._filled : self._filled + now] = data[at : at + now]
            self._filled += now
            self.bytes += now
            at += now
            if self._filled == self.piece_bytes:
                self._send()

    def archive(self, offset: int, outline: Outline) -> Archive:
        """Add the outline of the archive that was written from `offset` on, and return where both are."""
        packed = outline.packed()
        place = Archive(self.object, offset, outline.size, self.piece_bytes, self.bytes, len(packed), outline.id)
        self.write(packed)
        return place

    def key(self, outline: Outline, first: int) -> Archive:
        """Add the outline of a key, whose payloads are in this object and others."""
        packed = outline.packed()
        place = Archive(self.object, 0, outline.size, self.piece_bytes, self.bytes, len(packed), outline.id, first)
        self.write(packed)
        return place

    def end(self) -> None:
        """Send the last bytes."""
        if self._filled:
            self._send()

    def finish(self) -> None:
        """Wait until the server has confirmed all pieces."""
        self.end()
        for future in self._futures:
            future.result()

    @property
    def is_expired(self) -> bool:
        """Whether its oldest piece is so old that it may be deleted before a commit names it."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self._begun > EXPIRES_S

    def _send(self) -> None:
        for future in self._futures:
            if future.done():
                future.result()
        self._futures = [future for future in self._futures if not future.done()]
        assert self._memory is not None
        self._pieces.start()
        name, memory, count = piece_name(self.object, self._count), self._memory, self._filled
        self._count += 1
        self._memory, self._filled = None, 0
        self._futures.append(self._place.start(self._put, name, memory, count))

    def _put(self, name: str, memory: mmap.mmap, count: int) -> None:
        try:
            self._place.put(name, memoryview(memory)[:count])
        finally:
            self._pieces.end(memory)
        if self._sent is not None:
            self._sent(count)
