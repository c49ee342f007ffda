# SPDX-License-Identifier: BSD-3-Clause
"""Texts on a shelf, stored in the given encoding."""

from __future__ import annotations

import codecs
import operator
from typing import Any

from lmcstore._state.scalars import Reader, pack
from lmcstore._text.arguments import a_kind

from ._memory import MAX_SMALL, ShelfError
from ._small import Small, SmallShadow, in_place


class shelved_string(Small, str):
    """A str on a shelf; in-place changes persist."""

    plain = str

    @property
    def encoding(self) -> str:
        """The given encoding."""
        return str(self._value_named_memory.extra.get("encoding", "utf-8"))

    @classmethod
    def _encoded(cls, value: Any) -> tuple[bytes, bool]:
        packed = pack(value)
        return (packed[5:], True) if len(packed) > MAX_SMALL else (packed, False)

    @classmethod
    def _decoded(cls, data: bytes, is_tensor: bool, extra: dict[str, Any]) -> Any:
        return data.decode("utf-8", "surrogatepass") if is_tensor else Reader(data).value()

    __iadd__ = in_place(operator.add, str)
    __imul__ = in_place(operator.mul, str)
    __imod__ = in_place(operator.mod, str)


class string(SmallShadow):
    """A text to be put on a shelf: of a str, or of bytes in an encoding."""

    shelved = shelved_string

    def __init__(self, string_value: str | bytes | bytearray = "", encoding: str = "utf-8") -> None:
        try:
            codecs.lookup(encoding)
            if isinstance(string_value, bytes | bytearray):
                string_value = string_value.decode(encoding)
        except (LookupError, TypeError, UnicodeError) as error:
            raise ShelfError(f"no text can be made of this in the encoding {encoding!r}: {error}") from None
        if not isinstance(string_value, str):
            raise ShelfError(f"a string is made of a str or bytes, not of {a_kind(string_value)}")
        self.value = str(string_value)
        self.extra = {"type": "string"} if encoding == "utf-8" else {"type": "string", "encoding": encoding}
