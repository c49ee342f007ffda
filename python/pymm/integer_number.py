# SPDX-License-Identifier: BSD-3-Clause
"""Integers on a shelf, of any size."""

from __future__ import annotations

import operator
import struct
from typing import Any

from ._memory import ShelfError
from ._small import Small, SmallShadow, in_place

_SIZED = struct.Struct("<cI").pack
_WORD = struct.Struct("<cIq").pack


class shelved_integer_number(Small, int):
    """An int on a shelf; in-place arithmetic persists."""

    plain = int

    @classmethod
    def _encoded(cls, value: Any) -> tuple[bytes, bool]:
        if -0x8000000000000000 <= value < 0x8000000000000000:
            return _WORD(b"i", 8, value), False  # fixed size, so that a counter stays in place
        length = value.bit_length() // 8 + 1
        return _SIZED(b"i", length) + value.to_bytes(length, "little", signed=True), False

    __iadd__ = in_place(operator.add, int)
    __isub__ = in_place(operator.sub, int)
    __imul__ = in_place(operator.mul, int)
    __ifloordiv__ = in_place(operator.floordiv, int)
    __imod__ = in_place(operator.mod, int)
    __ipow__ = in_place(operator.pow, int)
    __ilshift__ = in_place(operator.lshift, int)
    __irshift__ = in_place(operator.rshift, int)
    __iand__ = in_place(operator.and_, int)
    __ior__ = in_place(operator.or_, int)
    __ixor__ = in_place(operator.xor, int)


class integer_number(SmallShadow):
    """An integer to be put on a shelf."""

    shelved = shelved_integer_number

    def __init__(self, number_value: int) -> None:
        try:
            self.value = int(operator.index(number_value))
        except TypeError:
            raise ShelfError(f"an integer_number is made of an int, not of {number_value!r}") from None
        self.extra: dict[str, Any] = {}
