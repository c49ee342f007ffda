# SPDX-License-Identifier: BSD-3-Clause
"""Copies between a device's memory and the CPU's, in chunks through two pinned buffers.

A device copies asynchronously only from and to pinned memory; while it uses one buffer, the CPU works on the other.
The buffers are not kept here, since torch keeps pinned memory that was freed, for others of its size. All copies are on
the device's current stream: they follow earlier work there, and are complete when a function returns. Copies in another
thread are on streams of their own (`Cuda.beside`), which later work on the device does not delay. `Cuda` is the only
interface to devices; tests replace it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

CHUNK_BYTES = 32 << 20
"""Size of each buffer: about a millisecond of copying, far longer than starting a copy takes."""
ALIGNMENT = 64
"""Of a tensor in a buffer."""


class Cuda:
    """CUDA, or ROCm, which torch calls by the same name."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def pinned(self, size_bytes: int) -> Any:
        """Make a buffer in pinned memory; if no more can be pinned, an ordinary, slower one."""
        torch = self._torch
        try:
            return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError:
            return torch.empty(size_bytes, dtype=torch.uint8, device="cpu")

    def copy(self, device: Any, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Begin copies, each from the second of a pair to the first; one of the two is on the device."""
        with self._torch.cuda.device(device):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)

    def record(self, device: Any) -> Any:
        """Return an event for all work begun on a device."""
        return self._torch.cuda.current_stream(device).record_event()

    def mark(self, device: Any) -> tuple[Any, Any]:
        """Mark the end of all work begun on a device by this thread."""
        return device, self.record(device)

    @contextlib.contextmanager
    def beside(self, marks: Iterable[tuple[Any, Any]]) -> Iterator[None]:
        """Let this thread's copies follow the marks alone, beside the other work of these devices."""
        with contextlib.ExitStack() as stack:
            for device, event in marks:
                stream = self._torch.cuda.Stream(device)
                stream.wait_event(event)
                stack.enter_context(self._torch.cuda.stream(stream))
            yield


class Piece(NamedTuple):
    """Bytes of a tensor that have arrived on the CPU."""

    key: Any
    start: int
    bytes: Any
    is_whole: bool


class _Planned(NamedTuple):
    key: Any
    flat: Any
    start: int
    size: int
    at: int


class Stage:
    """Up to two buffers of `chunk_bytes`, or of the `most` bytes to copy; `backend` makes buffers and copies."""

    def __init__(self, torch: Any, backend: Any, most: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._torch = torch
        self._backend = backend
        self._chunk_bytes = min(chunk_bytes, most)
        self._buffers: list[Any] = []

    def _buffer(self, turn: int) -> Any:
        if turn == len(self._buffers):
            self._buffers.append(self._backend.pinned(self._chunk_bytes))
        return self._buffers[turn]

    def to_host(self, tensors: Iterable[tuple[Any, Any]]) -> Iterator[list[Piece]]:
        """Copy tensors of devices to the CPU, made row-major there, chunk by chunk.

        Yields lists of `Piece` in order, each valid until the next; a tensor that fits in a chunk is one piece.
        """
        waiting = None
        turn = 0
        for chunk in self._chunks(tensors):
            buffer, device = self._buffer(turn), chunk[0].flat.device
            self._backend.copy(
                device,
                [(buffer[at : at + size], flat[start : start + size]) for _, flat, start, size, at in chunk],
            )
            ready = self._backend.record(device)
            if waiting is not None:
                yield _arrived(*waiting)
            waiting = ready, chunk, buffer
            turn = 1 - turn
        if waiting is not None:
            yield _arrived(*waiting)

    def to_device(self, target: Any, source: Any) -> None:
        """Copy a CPU tensor to a row-major one on a device, of equal dtype and shape."""
        to, data = self._flat(target), self._flat(source)
        ready: list[Any] = [None, None]
        for number, start in enumerate(range(0, len(data), self._chunk_bytes)):
            turn = number % 2
            end = min(start + self._chunk_bytes, len(data))
            if ready[turn] is not None:
                ready[turn].synchronize()  # the device has read this buffer
            chunk = self._buffer(turn)[: end - start]
            chunk.copy_(data[start:end])
            self._backend.copy(to.device, [(to[start:end], chunk)])
            ready[turn] = self._backend.record(to.device)
        for event in ready:
            if event is not None:
                event.synchronize()

    def _chunks(self, tensors: Iterable[tuple[Any, Any]]) -> Iterator[list[_Planned]]:
        """Plan the pieces of each chunk, all of one device."""
        chunk: list[_Planned] = []
        used = 0
        for key, tensor in tensors:
            flat = self._flat(tensor)
            start, size = 0, len(flat)
            fits = used + min(size, self._chunk_bytes) <= self._chunk_bytes
            if chunk and not (fits and chunk[0].flat.device == flat.device):
                yield chunk
                chunk, used = [], 0
            while start < size:
                taken = min(size - start, self._chunk_bytes)
                chunk.append(_Planned(key, flat, start, taken, used))
                used = -(-(used + taken) // ALIGNMENT) * ALIGNMENT
                start += taken
                if start < size:
                    yield chunk
                    chunk, used = [], 0
        if chunk:
            yield chunk

    def _flat(self, tensor: Any) -> Any:
        """Return a tensor's bytes, without a copy if it is row-major."""
        dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
        # view(-1) of one element keeps its stride, which may be any, and then has no view as bytes.
        return self._torch.as_strided(dense, (dense.numel(),), (1,)).view(self._torch.uint8)


def _arrived(ready: Any, chunk: list[_Planned], buffer: Any) -> list[Piece]:
    ready.synchronize()
    return [
        Piece(piece.key, piece.start, buffer[piece.at : piece.at + piece.size], piece.size == len(piece.flat))
        for piece in chunk
    ]
