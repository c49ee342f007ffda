# SPDX-License-Identifier: BSD-3-Clause
"""`LiveValue`: a small value, durable when set."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._state.live_table import PYTHON, decode_value
from .._state.scalars import Unpackable, pack, pack_sequence
from .._text.arguments import a_kind, an
from ..errors import UnsupportedError
from .variable import LiveVariable


class LiveValue(LiveVariable):
    """A live value: a number, a text, any small leaf of a state."""

    def get(self) -> Any:
        """Read it; concurrent writes never mix."""
        return decode_value(self._core.get(), self._dtype, self._core.info()["shape"], self._note, self._name)

    def set(self, value: Any) -> None:
        """Write a new value, atomically and durably; a value made with a dtype keeps it."""
        if self._note == PYTHON:
            self._core.set(pack_value(value, self._name))
        elif self._core.info()["shape"] == ():
            self._core.set(self._pack(value))
        else:
            self._core.set(value)

    def add(self, value: int) -> int:
        """Add to an integer made by `Live.value` and return the earlier value: atomic, wrapping around, durable."""
        return self._add(0, value)

    def compare_and_swap(self, expected: Any, desired: Any) -> bool:
        """Write a value made by `Live.value` if it has the expected value, and return whether it had."""
        return self._compare_and_swap(0, expected, desired)

    def __repr__(self) -> str:
        return f"<lmcstore.LiveValue {self.name!r}, {self.get()!r:.80}>"


def pack_value(value: Any, name: str) -> bytes:
    """Pack a Python value; refuse one that is no leaf or above 64 KiB."""
    try:
        packed = pack_sequence(value) if type(value) in (list, tuple) else pack(value)
    except Unpackable as refused:
        if refused.limit is not None:
            raise UnsupportedError(f"{name}: {a_kind(refused.value)} is {refused.limit}") from None
        packed = None
    if packed is None:
        kind = type(value).__qualname__
        raise UnsupportedError(f"{name}: {an(kind)} can't be a live variable; tensors, arrays, numbers and texts can")
    if len(packed) > _core.LIVE_MAX_VALUE:
        raise UnsupportedError(f"{name}: a value of {len(packed)} bytes is too long; 64 KiB is the most: use a tensor")
    return packed
