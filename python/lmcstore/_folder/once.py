# SPDX-License-Identifier: BSD-3-Clause
"""`Once`: blocks that several ranks of a machine load are decoded or fetched by one of them, and copied by the others.

The coordinator finds these blocks in the `Offer` of each rank. They make *units*, which all ranks number alike. The
ranks share a memory without a name, with a few slots. Unit u is for slot u modulo their number. A rank locks the slot.
If the slot has the unit, the rank copies it. If all have taken the slot's earlier units, the rank decodes the unit
there. Otherwise it tries other units first. The kernel drops the locks of a rank that ends, and the slot does not have
the unit that it had begun. A rank that can't decode a unit leaves the slot, and reads its own part of it. So does a
rank that can do nothing for a while: none waits for another (tests/models/once.pml).

A unit of a local pool has some blocks of a tensor, or of the arrays of a link that are loaded (64 at most), which are
decoded together. A unit of a URL has blocks of many tensors, which are fetched by few requests.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import secrets
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from ..errors import Error
from .machines import boot

BLOCK_BYTES = 1 << 20
_LEAST_BYTES = 256 << 10
"""A tensor with less is sooner decoded than shared."""
_LEAST_IN_ALL = 4 * BLOCK_BYTES
_MOST_BLOCKS = 8
_MOST_PIECES = 4 * _MOST_BLOCKS
"""Blocks of a unit of several tensors, which may be names of one."""
_MOST_NAMES = 64
"""Tensors of a unit: its memory has four slots or more. The arrays of a link with more names are decoded again."""
_FETCHED_BLOCKS = 16
_SLOTS_PER_RANK = 4
_MEMORY_BYTES = 256 << 20
PATIENCE_S = 0.5
FETCH_PATIENCE_S = 20.0
_POLL_S = 0.0002
_FETCH_POLL_S = 0.002
_ALIGN_BYTES = 64
_LOCK = struct.Struct("hhqqi")
_HOLDER = struct.Struct("<Q")
# A Python that was built for an old C library has no names for these.
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(fcntl, "F_SEAL_GROW", 4)
_GET_SEALS, _ADD_SEALS = getattr(fcntl, "F_GET_SEALS", 1034), getattr(fcntl, "F_ADD_SEALS", 1033)
_SET_LOCK = getattr(fcntl, "F_OFD_SETLK", 37)

Place = tuple[object, ...]
"""Ranks with the same one can open each other's memory, and load from the same folder."""


class Memory(NamedTuple):
    """Where other processes find a memory."""

    process: int
    descriptor: int
    name: str


class Need(NamedTuple):
    """Blocks of a stored tensor that a rank loads."""

    rank: int
    """The rank that has stored it."""
    name: str
    size: int
    """The bytes of the stored tensor."""
    first: int
    last: int
    """One more than the last block."""
    link: int = 0
    """Tensors of a rank with the same one are decoded together; 0: none are."""


@dataclass(frozen=True)
class Offer:
    """The blocks that a rank loads, and where others find its memory."""

    snapshot: tuple[int, float]
    place: Place | None = None
    memory: Memory | None = None
    processors: int = 1
    needs: list[Need] = field(default_factory=list)
    is_remote: bool = False
    """Whether some of the blocks are at a URL."""


class Span(NamedTuple):
    """Blocks of stored tensors that are decoded together, which the same ranks load, all or some."""

    rank: int
    names: tuple[str, ...]
    size: int
    first: int
    last: int
    readers: tuple[int, ...]


@dataclass(frozen=True)
class Share:
    """The coordinator's answer: the blocks that a rank shares with others of its machine."""

    memory: Memory
    index: int
    """Of this rank among those of the machine."""
    ranks: int
    is_remote: bool
    blocks: int
    """Of each tensor in a unit, at most; remote: of all together, if it has several."""
    spans: list[Span]


class Piece(NamedTuple):
    """Bytes of a stored tensor."""

    name: str
    first: int
    last: int


class Unit(NamedTuple):
    """Pieces of a rank's stored tensors that are decoded at once."""

    rank: int
    pieces: tuple[Piece, ...]
    readers: tuple[int, ...]


# Planning


def place_of(folder: tuple[int, int] | str) -> Place | None:
    """Return the place of this process; None: it is unknown. `folder`: its identity, or the URL."""
    with contextlib.suppress(OSError):
        return boot(), os.stat("/proc/self/ns/pid").st_ino, os.geteuid(), folder
    return None


def need_of(
    rank: int, name: str, size: int, ranges: Iterable[tuple[int, int]], link: int = 0, is_remote: bool = False
) -> Iterator[Need]:
    """Yield which blocks have some ranges of bytes of a stored tensor."""
    if size < _LEAST_BYTES and not is_remote:
        return
    blocks = sorted((first // BLOCK_BYTES, -(-last // BLOCK_BYTES)) for first, last in ranges if first < last)
    start = stop = 0
    for first, last in blocks:
        if first > stop:
            if start < stop:
                yield Need(rank, name, size, start, stop, link)
            start = first
        elif start == stop:
            start = first
        stop = max(stop, last)
    if start < stop:
        yield Need(rank, name, size, start, stop, link)


def shares_of(offers: list[Offer | None]) -> list[Share | None]:
    """Choose the blocks that the ranks of each machine share; None: a rank reads alone."""
    made: list[Share | None] = [None] * len(offers)
    machines: dict[Place, list[tuple[int, Offer]]] = {}
    for rank, offer in enumerate(offers):
        if offer is not None and offer.place is not None and offer.memory is not None and offer.needs:
            machines.setdefault(offer.place, []).append((rank, offer))
    for several in machines.values():
        spans = _spans([offer.needs for _, offer in several])
        is_remote = any(offer.is_remote for _, offer in several)
        if sum(map(_bytes, spans)) < (1 if is_remote else _LEAST_IN_ALL):
            continue
        count = len(several)
        blocks = max(1, min(_MOST_BLOCKS, min(offer.processors for _, offer in several) // count))
        if is_remote:
            blocks = _FETCHED_BLOCKS
        memory = several[0][1].memory
        assert memory is not None
        for index, (rank, _) in enumerate(several):
            made[rank] = Share(memory, index, count, is_remote, blocks, spans)
    return made


def _bytes(span: Span) -> int:
    return len(span.names) * (min(span.last * BLOCK_BYTES, span.size) - span.first * BLOCK_BYTES)


def _spans(needs: list[list[Need]]) -> list[Span]:
    found: dict[tuple[int, int | str, int], list[tuple[int, Need]]] = {}
    for index, several in enumerate(needs):
        for need in several:
            found.setdefault((need.rank, need.link or need.name, need.size), []).append((index, need))
    spans = []
    for (rank, _, size), group in found.items():
        if len({index for index, _ in group}) < 2:
            continue
        cuts = sorted({cut for _, need in group for cut in (need.first, need.last)})
        for first, last in itertools.pairwise(cuts):
            inside = [(index, need.name) for index, need in group if need.first <= first and last <= need.last]
            names = tuple(dict.fromkeys(name for _, name in inside))
            for start in range(0, len(names), _MOST_NAMES):
                some = names[start : start + _MOST_NAMES]
                readers = tuple(sorted({index for index, name in inside if name in some}))
                if len(readers) > 1:
                    spans.append(Span(rank, some, size, first, last, readers))
    return spans


def units_of(share: Share) -> list[Unit]:
    """Return the units of a machine, in the order of their numbers."""
    units: list[Unit] = []
    room: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}  # the unit that gets more, and the bytes that it has
    for rank, names, tensor, start, end, readers in share.spans:
        step = max(1, min(share.blocks, (share.blocks if share.is_remote else _MOST_PIECES) // len(names)))
        for block in range(start, end, step):
            first, last = block * BLOCK_BYTES, min(min(end, block + step) * BLOCK_BYTES, tensor)
            pieces = tuple(Piece(name, first, last) for name in names)
            now = sum(map(_room, pieces))
            number, size = room.get((rank, readers), (-1, share.blocks * BLOCK_BYTES))
            if share.is_remote and size + now <= share.blocks * BLOCK_BYTES:
                units[number] = units[number]._replace(pieces=units[number].pieces + pieces)
            else:
                number, size = len(units), 0
                units.append(Unit(rank, pieces, readers))
            room[rank, readers] = number, size + now
    return units


def _room(piece: Piece) -> int:
    """Return the bytes of a slot that a piece takes."""
    return piece.last - piece.first + (piece.first - piece.last) % _ALIGN_BYTES


# Reading


class Owner:
    """A memory of this process, empty at first, that others may open."""

    def __init__(self) -> None:
        """OSError: this system has none, or this Python, which was built for an old C library."""
        self.descriptor = -1
        if not hasattr(os, "memfd_create"):
            raise OSError("this Python can't make memory for other processes")
        name = f"lmcstore-{secrets.token_hex(16)}"
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.memory = Memory(os.getpid(), self.descriptor, name)

    def close(self) -> None:
        """Close it. It lives on while others have it."""
        if self.descriptor >= 0 and self.memory.process == os.getpid():
            os.close(self.descriptor)
        self.descriptor = -1

    __del__ = close


class Reader(Protocol):
    """Reads this rank's part of units, each once. `data`: memory for the pieces of a unit."""

    def needs(self, unit: Unit) -> bool:
        """Whether this rank needs something of a unit."""

    def decode(self, unit: Unit, data: list[torch.Tensor]) -> None:
        """Read all of a unit into memory."""

    def copy(self, unit: Unit, data: list[torch.Tensor]) -> None:
        """Take this rank's part of a unit in memory."""

    def read(self, unit: Unit) -> None:
        """Read this rank's part of a unit."""


class Slots:
    """The memory of a machine, as one rank uses it.

    Its first bytes say which ranks have left, then which unit each slot holds, then who has taken each unit.
    """

    def __init__(self, share: Share, units: list[Unit], owner: Owner | None) -> None:
        """OSError: this rank can't use it."""
        self._index, self._ranks, self._units = share.index, share.ranks, units
        self._patience = FETCH_PATIENCE_S if share.is_remote else PATIENCE_S
        self._poll = _FETCH_POLL_S if share.is_remote else _POLL_S
        self._bytes = max(sum(map(_room, unit.pieces)) for unit in units)
        self._bytes += -self._bytes % mmap.PAGESIZE
        self._slots = max(1, min(len(units), _SLOTS_PER_RANK * share.ranks, _MEMORY_BYTES // self._bytes))
        self._over = list(range(self._slots))  # of each slot the first unit that may be needed still
        self._holders = self._ranks
        self._taken = self._holders + self._slots * _HOLDER.size
        start = self._taken + len(units) * self._ranks
        start += -start % mmap.PAGESIZE
        own = owner is not None and owner.memory == share.memory
        self._descriptor = os.dup(owner.descriptor) if own and owner is not None else _opened(share.memory)
        try:
            self._size(start + self._slots * self._bytes)
            mapped = mmap.mmap(self._descriptor, start + self._slots * self._bytes)
            self._data = torch.frombuffer(mapped, dtype=torch.uint8)[start:]
        except BaseException:
            os.close(self._descriptor)
            raise

    def _size(self, size: int) -> None:
        """Give the memory its size, on the first rank that gets here."""
        until = time.monotonic() + PATIENCE_S
        while not self._lock(self._slots):  # none of a slot: that is held while a unit is read
            if time.monotonic() > until:
                raise TimeoutError("another rank makes the memory, and does not end")
            time.sleep(_POLL_S)
        try:
            if fcntl.fcntl(self._descriptor, _GET_SEALS) & _SEALS != _SEALS:
                os.ftruncate(self._descriptor, size)
                os.posix_fallocate(self._descriptor, 0, size)  # an error now rather than a signal later
                fcntl.fcntl(self._descriptor, _ADD_SEALS, _SEALS)
            if os.fstat(self._descriptor).st_size != size:
                raise OSError("the ranks have planned different loads")
        finally:
            self._unlock(self._slots)

    def read(self, reader: Reader) -> None:
        """Read this rank's part of the units."""
        self._reader = reader
        mine = (number for number, unit in enumerate(self._units) if self._index in unit.readers)
        left = deque(number for number in mine if reader.needs(self._units[number]))
        window: list[int] = []
        size = max(self._ranks, self._slots // 2)
        patience, until = self._patience, 0.0
        while left or window:
            while left and len(window) < size:
                window.append(left.popleft())
            turn = len(window) * self._index // self._ranks
            still = [number for number in (*window[turn:], *window[:turn]) if not self._try(number)]
            if len(still) < len(window):
                until = 0.0
            elif patience == 0 or 0 < until < time.monotonic():
                patience = 0
                still.remove(min(still))
                self._read_alone(min(window))
            else:
                until = until or time.monotonic() + patience
                time.sleep(self._poll)
            window = sorted(still)

    def _try(self, number: int) -> bool:
        """Take a unit, decoded if need be. False: its slot is in use."""
        unit, slot = self._units[number], number % self._slots
        if not self._lock(slot):
            return False
        try:
            place = self._holders + slot * _HOLDER.size
            (holder,) = _HOLDER.unpack(os.pread(self._descriptor, _HOLDER.size, place))
            is_there = holder == number + 1
            if not is_there and not self._is_free(number):
                return False
            data = self._pieces(number)
            if not is_there and self._waiting(number) - {self._index}:
                with contextlib.suppress(Error):
                    self._reader.decode(unit, data)
                    os.pwrite(self._descriptor, _HOLDER.pack(number + 1), place)
                    is_there = True
        finally:
            self._unlock(slot)
        if is_there:
            self._reader.copy(unit, data)
            self._take(number)
        else:
            self._read_alone(number)
        return True

    def _read_alone(self, number: int) -> None:
        self._reader.read(self._units[number])
        self._take(number)

    def _pieces(self, number: int) -> list[torch.Tensor]:
        at, made = number % self._slots * self._bytes, []
        for piece in self._units[number].pieces:
            made.append(self._data[at : at + piece.last - piece.first])
            at += _room(piece)
        return made

    def _is_free(self, number: int) -> bool:
        """Whether all have taken the earlier units of a slot: so none is overwritten, and the earliest finds room."""
        slot = number % self._slots
        while self._over[slot] < number and not self._waiting(self._over[slot]):
            self._over[slot] += self._slots
        return self._over[slot] >= number

    def _waiting(self, number: int) -> set[int]:
        """Return the ranks that have still to take a unit."""
        taken = os.pread(self._descriptor, self._ranks, self._taken + number * self._ranks)
        gone = os.pread(self._descriptor, self._ranks, 0)
        return {index for index in self._units[number].readers if not taken[index] and not gone[index]}

    def _take(self, number: int) -> None:
        os.pwrite(self._descriptor, b"\1", self._taken + number * self._ranks + self._index)

    def close(self) -> None:
        """Leave: the others wait for this rank no longer."""
        try:
            os.pwrite(self._descriptor, b"\1", self._index)
        finally:
            os.close(self._descriptor)
            del self._data

    def _lock(self, slot: int) -> bool:
        try:
            fcntl.fcntl(self._descriptor, _SET_LOCK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0))
        except OSError:
            return False
        return True

    def _unlock(self, slot: int) -> None:
        fcntl.fcntl(self._descriptor, _SET_LOCK, _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, slot, 1, 0))


def _opened(memory: Memory) -> int:
    """Open the memory of another process. OSError: it is gone, or is another one."""
    descriptor = os.open(f"/proc/{memory.process}/fd/{memory.descriptor}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    if os.readlink(f"/proc/self/fd/{descriptor}") != f"/memfd:{memory.name} (deleted)":
        os.close(descriptor)
        raise FileNotFoundError("the memory of the ranks is gone")
    return descriptor
