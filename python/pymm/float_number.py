# SPDX-License-Identifier: BSD-3-Clause
"""Floating-point numbers on a shelf."""

from __future__ import annotations

import operator
import struct
from typing import Any

from ._memory import ShelfError
from ._small import Small, SmallShadow, in_place

_PACK = struct.Struct("<cd").pack


class shelved_float_number(Small, float):
    """A float on a shelf; in-place arithmetic persists."""

    plain = float

    @classmethod
    def _encoded(cls, value: Any) -> tuple[bytes, bool]:
        return _PACK(b"f", value), False

    __iadd__ = in_place(operator.add, float)
    __isub__ = in_place(operator.sub, float)
    __imul__ = in_place(operator.mul, float)
    __itruediv__ = in_place(operator.truediv, float)
    __ifloordiv__ = in_place(operator.floordiv, float)
    __imod__ = in_place(operator.mod, float)
    __ipow__ = in_place(operator.pow, float)


class float_number(SmallShadow):
    """A floating-point number to be put on a shelf."""

    shelved = shelved_float_number

    def __init__(self, number_value: float) -> None:
        try:
            self.value = float(number_value)
        except (TypeError, ValueError):
            raise ShelfError(f"a float_number is made of a number, not of {number_value!r}") from None
        self.extra: dict[str, Any] = {}
