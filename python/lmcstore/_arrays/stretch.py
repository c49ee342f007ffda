# SPDX-License-Identifier: BSD-3-Clause
"""`Stretch`: which bytes of a memory a tensor or array uses."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any


class Stretch:
    """A tensor that is not empty, in a memory: `strides` and all sizes in bytes, `kind` equal for exact aliases."""

    __slots__ = ("address", "end", "item", "kind", "owner", "raw_bytes", "run", "shape", "start", "step", "strides")

    def __init__(
        self, owner: Any, address: int, shape: Sequence[int], strides: Sequence[int], item: int, kind: Hashable = None
    ) -> None:
        dims = [(abs(by), (size - 1) * by, size) for size, by in zip(shape, strides, strict=True) if size > 1 and by]
        self.owner = owner
        self.address = address
        self.shape = tuple(shape)
        self.strides = tuple(strides)
        self.item = item
        self.kind = kind
        self.raw_bytes = math.prod(shape) * item
        self.start = address + sum(reach for _, reach, _ in dims if reach < 0)
        self.end = address + item + sum(reach for _, reach, _ in dims if reach > 0)
        self.run = item  # bytes without a gap; the next run begins a multiple of `step` away
        dims.sort()
        while dims and dims[0][0] <= self.run:
            self.run += dims[0][0] * (dims.pop(0)[2] - 1)
        self.step = math.gcd(*(by for by, _, _ in dims))

    def overlaps(self, other: Stretch) -> bool:
        """Whether two may have a byte in common; false negatives don't occur."""
        if self.start >= other.end or other.start >= self.end:
            return False
        step = math.gcd(self.step, other.step)
        if step == 0:
            return True
        return (other.start - self.start) % step < self.run or (self.start - other.start) % step < other.run

    def is_row_major(self, size: int) -> bool:
        """Whether the tensor is `size` bytes in the usual order, without a gap."""
        expected = self.item
        for count, by in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if count > 1:
                if by != expected:
                    return False
                expected *= count
        return expected == size
