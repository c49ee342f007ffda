# SPDX-License-Identifier: BSD-3-Clause
"""The stored form of live variables: notes, values, and their table in a snapshot."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from .. import _core
from .._arrays import numpy as _numpy
from .._arrays.dtypes import code_of
from ..errors import DamagedError
from .scalars import Reader

NUMPY, TORCH, PYTHON = "numpy", "torch", "python"
"""Notes: a variable is read as an array, a torch tensor or a packed value. `_numpy.DESCRIBED` begins another kind."""


def own_note(note: bytes) -> str:
    """Decode a note, without the part that pymm appends."""
    return note.decode("utf-8", "replace").partition("\n")[0]


def decode_value(data: bytes, dtype: int, shape: tuple[int, ...], note: str, name: str) -> Any:
    if note == PYTHON:
        reader = Reader(data)
        value = reader.value()
        if not reader.at_end:
            raise DamagedError(f"live value {name!r} is damaged: more follows it")
        return value
    code = code_of(dtype)
    if shape == () and code:
        return struct.unpack("<" + code, data)[0]
    return data


_TABLE = struct.Struct("<IIQ")  # store/media/layout.h: magic, version, count
_ENTRY = struct.Struct("<QBBBxHH")  # reserve_bytes, form, dtype, ndim, note_bytes, name_bytes; shape, note, name
_TABLE_MAGIC, _TABLE_VERSION = 0x4C434D4C, 1


class StoredVariable(NamedTuple):
    name: str
    is_tensor: bool
    dtype: int
    shape: tuple[int, ...]
    note: str

    @property
    def is_torch(self) -> bool:
        """Whether it is read as a torch tensor: `Live` gave it as one, or NumPy is missing or lacks its dtype."""
        if self.note == TORCH:
            return True
        return not _numpy.is_described(self.note) and not _numpy.can_read(self.dtype)

    @property
    def special(self) -> str | None:
        return self.note if _numpy.is_described(self.note) else _numpy.special_of(self.dtype)


def read_table(table: bytes) -> list[StoredVariable]:
    """Read a snapshot's table of live variables; DamagedError: the store did not write it."""
    try:
        magic, version, count = _TABLE.unpack_from(table)
        if magic != _TABLE_MAGIC or version != _TABLE_VERSION:
            raise ValueError("its head")
        at, found = _TABLE.size, []
        for _ in range(count):
            _, form, dtype, ndim, note_bytes, name_bytes = _ENTRY.unpack_from(table, at)
            at += _ENTRY.size
            shape = struct.unpack_from(f"<{ndim}Q", table, at)
            note_at = at + 8 * ndim
            name_at = note_at + note_bytes
            at = name_at + name_bytes
            if at > len(table) or form not in (_core.LIVE_TENSOR, _core.LIVE_VALUE):
                raise ValueError("an entry")
            note, name = own_note(table[note_at:name_at]), table[name_at:at].decode()
            found.append(StoredVariable(name, form == _core.LIVE_TENSOR, dtype, shape, note))
        if at != len(table):
            raise ValueError("more follows it")
    except (struct.error, ValueError) as error:
        raise DamagedError(f"the snapshot's table of live variables is damaged: {error}") from None
    return found


def stored_value(variable: StoredVariable, data: bytes) -> Any:
    try:
        return decode_value(data, variable.dtype, variable.shape, variable.note, variable.name)
    except struct.error as error:
        raise DamagedError(f"live value {variable.name!r} is damaged: {error}") from None
