# SPDX-License-Identifier: BSD-3-Clause
"""`Upload`: one object of data, stored piece by piece while it grows."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

from .codec import PIECE_BYTES, Archive, piece_name
from .files import Part
from .outline import Outline
from .place import Place

_MOST_IN_FLIGHT = 4
_LEAST_PIECE_BYTES = 64 << 10
_COPIED_BYTES = 64 << 10
EXPIRES_S = 12 * 3600.0
"""A commit names no piece that is older: from a day on, `prune` may delete a piece that no commit names."""


def in_flight() -> threading.Semaphore:
    """Return a count of the pieces that may be under way, also of several uploads together."""
    return threading.Semaphore(_MOST_IN_FLIGHT)


class Upload:
    """Writes bytes to a new object of data. Memory: at most five pieces."""

    def __init__(
        self,
        place: Place,
        sent: Callable[[int], None] | None = None,
        piece_bytes: int = PIECE_BYTES,
        *,
        free: threading.Semaphore | None = None,
    ) -> None:
        if place.pace is not None:  # so that pieces spread over time
            piece_bytes = min(piece_bytes, max(_LEAST_PIECE_BYTES, place.pace.rate // 4))
        self._place, self._sent, self.piece_bytes = place, sent, piece_bytes
        self.object = f"data/{time.time_ns():020d}-{secrets.token_hex(8)}"
        self.bytes = 0
        self._begun = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._chunks: list[memoryview] = []
        self._left = piece_bytes
        self._count = 0
        self._futures: list[Future[None]] = []
        self._free = in_flight() if free is None else free

    def write(self, data: bytes) -> None:
        """Add bytes; waits while four pieces are under way. Raises the failure of an earlier piece."""
        view = memoryview(data)
        while view:
            part = view[: self._left]
            self._chunks.append(part)
            self._left -= len(part)
            self.bytes += len(part)
            view = view[len(part) :]
            if self._left == 0:
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
        if self._chunks:
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
        self._free.acquire()
        name, parts = piece_name(self.object, self._count), list(_merged(self._chunks))
        self._count += 1
        self._chunks, self._left = [], self.piece_bytes
        self._futures.append(self._place.start(self._put, name, parts))

    def _put(self, name: str, parts: list[Part]) -> None:
        try:
            self._place.put(name, *parts)
        finally:
            self._free.release()
        if self._sent is not None:
            self._sent(sum(map(len, parts)))


def _merged(chunks: Iterable[memoryview]) -> Iterator[Part]:
    """Join small chunks that follow each other; large ones are sent without a copy."""
    for is_small, run in itertools.groupby(chunks, lambda chunk: len(chunk) < _COPIED_BYTES):
        if is_small:
            yield b"".join(run)
        else:
            yield from run
