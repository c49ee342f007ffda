# SPDX-License-Identifier: BSD-3-Clause
"""Bytes on a shelf."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Iterable
from typing import Any

from lmcstore._state.scalars import Reader, pack

from ._memory import MAX_SMALL, ShelfError
from ._small import Small, SmallShadow, in_place


class shelved_bytes(Small, builtins.bytes):
    """Bytes on a shelf; in-place changes persist."""

    plain = builtins.bytes

    @property
    def encoding(self) -> str | None:
        """The encoding of the text that they were made from, or None."""
        return self._value_named_memory.extra.get("encoding")

    @classmethod
    def _encoded(cls, value: Any) -> tuple[builtins.bytes, bool]:
        return (value, True) if len(value) > MAX_SMALL else (pack(value), False)

    @classmethod
    def _decoded(cls, data: builtins.bytes, is_tensor: bool, extra: dict[str, Any]) -> Any:
        return data if is_tensor else Reader(data).value()

    __iadd__ = in_place(operator.add, builtins.bytes)
    __imul__ = in_place(operator.mul, builtins.bytes)
    __imod__ = in_place(operator.mod, builtins.bytes)


class bytes(SmallShadow):
    """Bytes to be put on a shelf: of bytes, of a text and its encoding, or of numbers from 0 to 255."""

    shelved = shelved_bytes

    def __init__(
        self,
        string: str | builtins.bytes | Iterable[int] = b"",
        encoding: str | None = None,
        errors: str | None = None,
    ) -> None:
        try:
            if isinstance(string, str):
                self.value = builtins.bytes(string, encoding or "utf-8", errors or "strict")
            else:
                self.value = builtins.bytes(string)
        except (LookupError, TypeError, ValueError) as error:
            raise ShelfError(f"no bytes can be made of this: {error}") from None
        self.extra: dict[str, Any] = {"type": "bytes"} if encoding is None else {"type": "bytes", "encoding": encoding}
