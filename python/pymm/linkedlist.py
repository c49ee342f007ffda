# SPDX-License-Identifier: BSD-3-Clause
"""Lists on a shelf.

A list is a tensor of entries of 16 bytes, a kind and a word each, after a header of the same form: the count of entries
and the number of the next part. Integers of 64 bits, floats, booleans and None are words; other values are variables of
their own, *parts*, named ``-<list>-<number>`` by the list's random key. Every visible step is one atomic write, of an
entry or the header; a deletion takes a transaction.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import lmcstore
import numpy as np
from lmcstore import _core
from lmcstore._text.arguments import a_kind

from ._memory import (
    HIDDEN,
    Makers,
    MemoryReference,
    Names,
    Shadow,
    ShelfError,
    ShelvedCommon,
    make_note,
    raises_shelf_errors,
    read_note,
)
from ._small import Small
from .ndarray import shelved_ndarray

_ENTRY = struct.Struct("<Qq")
_FLOAT = struct.Struct("<Qd")
_HEADER = struct.Struct("<QQ")
_INT, _REAL, _BOOL, _NONE, _PART = range(1, 6)
_FIRST_ROOM = 255  # entries
_RESERVE_BYTES = 1 << 28  # addresses: within a transaction a list grows in place


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _locked(method: _Method) -> _Method:
    """Let no other thread change the shelf's lists during a method."""

    @functools.wraps(method)
    def wrapped(self: shelved_linked_list, *args: Any) -> Any:
        with self._lock:
            return method(self, *args)

    return wrapped  # type: ignore[return-value]


class shelved_linked_list(ShelvedCommon):
    """A list on a shelf: of numbers, texts, bytes, arrays and tensors."""

    def __init__(self, names: Names, name: str, core: _core.Live) -> None:
        self._core = core
        self._pool = names.pool
        self._value_named_memory = MemoryReference(core, name, names)
        self._name = name
        self._key = str(_key_of(core))
        self._lock = names.lock
        self.prefix = f"{HIDDEN}{self._key}-"

    # Entries

    def _header(self) -> tuple[int, int]:
        count, number = _HEADER.unpack(self._core.read(0, 16))
        if 16 * (count + 1) > self._core.info()["bytes"]:
            raise lmcstore.DamagedError(f"{self._name}: the list is damaged: it has no room for {count} elements")
        return count, number

    def _part_name(self, number: int) -> str:
        return f"{self.prefix}{number}"

    def part_names(self) -> list[str]:
        """Return the names of its variables."""
        return self._pool.names(self.prefix)

    def erase_parts(self) -> None:
        """Remove its variables; those in use stay until the next open of the shelf."""
        for part in self.part_names():
            with contextlib.suppress(lmcstore.InUseError):
                self._pool.erase(part)

    def _place(self, index: Any) -> int:
        if isinstance(index, slice):
            raise ShelfError("a list on a shelf has no slices: take list(x)[...]")
        try:
            number = operator.index(index)
        except TypeError:
            raise ShelfError(f"a list's index is an int, not {a_kind(index)}") from None
        count = self._header()[0]
        if not -count <= number < count:
            raise ShelfError(f"index {number} is out of bounds: the list has {count} elements")
        return number % count if count else 0

    def _encoded(self, value: Any) -> tuple[bytes, Any]:
        """Return the entry of a value, or the shadow of its part."""
        if value is None:
            return _ENTRY.pack(_NONE, 0), None
        if isinstance(value, bool):
            return _ENTRY.pack(_BOOL, value), None
        if isinstance(value, int) and -(2**63) <= value < 2**63:
            return _ENTRY.pack(_INT, value), None
        if isinstance(value, float) and type(value).__module__ != "numpy":
            return _FLOAT.pack(_REAL, value), None
        if isinstance(value, list | linked_list | shelved_linked_list):
            raise ShelfError("a list on a shelf can't hold lists: save() keeps nested structures")
        return b"", Makers.shadow_of(value, f"an element of {self._name}")

    def _put_part(self, shadow: Any, number: int) -> bytes:
        """Make a part, replacing one that a crash has left."""
        self._check_joins()
        made = shadow.build(_part_names(self._pool), self._part_name(number))
        self._pool.growing(made._value_named_memory.core.replace, self._part_name(number))
        return _ENTRY.pack(_PART, number)

    def _value(self, entry: bytes) -> Any:
        kind, word = _ENTRY.unpack(entry)
        if kind == _NONE:
            return None
        if kind == _BOOL:
            return bool(word)
        if kind == _INT:
            return word
        if kind == _REAL:
            return _FLOAT.unpack(entry)[1]
        name = self._part_name(word)
        core = self._pool.open(name)
        if kind != _PART or core is None:
            raise ShelfError(f"{self._name}: an element of the list is missing: the pool is damaged")
        found = Makers.object_of(_part_names(self._pool), name, core)
        return found.plain(found) if isinstance(found, Small) else found

    # As a list

    @raises_shelf_errors
    @_locked
    def append(self, element: Any) -> None:
        """Append an element."""
        entry, shadow = self._encoded(element)
        count, number = self._header()
        room = self._core.info()["shape"][0]
        if 16 * (count + 2) > room:
            self._pool.growing(self._core.resize, (2 * room,))
        if shadow is not None:
            entry = self._put_part(shadow, number)
            number += 1
        self._core.write(16 * (count + 1), entry)
        self._core.write(0, _HEADER.pack(count + 1, number))

    @raises_shelf_errors
    def extend(self, elements: Iterable[Any]) -> None:
        """Append elements."""
        if isinstance(elements, shelved_linked_list) and elements._key == self._key:
            elements = list(elements)  # else each step would add one more
        for element in elements:
            self.append(element)

    @raises_shelf_errors
    @_locked
    def __getitem__(self, index: int) -> Any:
        return self._value(self._core.read(16 * (self._place(index) + 1), 16))

    @raises_shelf_errors
    @_locked
    def __setitem__(self, index: int, value: Any) -> None:
        place = 16 * (self._place(index) + 1)
        before = self._core.read(place, 16)
        if self._is_the_part(before, value):
            return  # assignment of an in-place operation
        entry, shadow = self._encoded(value)
        if shadow is not None:
            count, number = self._header()
            entry = self._put_part(shadow, number)
            self._core.write(0, _HEADER.pack(count, number + 1))
        self._core.write(place, entry)
        self._drop(before)

    def _is_the_part(self, entry: bytes, value: Any) -> bool:
        kind, number = _ENTRY.unpack(entry)
        memory = getattr(value, "_value_named_memory", None)
        if kind != _PART or memory is None or memory.name != self._part_name(number):
            return False
        # A view, or a masked array over it, is another value.
        return not isinstance(value, np.ndarray) or (isinstance(value, shelved_ndarray) and value._is_variable)

    def _drop(self, entry: bytes) -> None:
        kind, number = _ENTRY.unpack(entry)
        if kind == _PART:
            with contextlib.suppress(lmcstore.InUseError, lmcstore.NotFoundError):  # swept by the next open
                self._pool.erase(self._part_name(number))

    @raises_shelf_errors
    @_locked
    def __delitem__(self, index: int) -> None:
        place = self._place(index)
        count, number = self._header()
        before = self._core.read(16 * (place + 1), 16)
        with self._transaction():
            entries = memoryview(self._core.buffer())
            entries[16 * (place + 1) : 16 * count] = bytes(entries[16 * (place + 2) : 16 * (count + 1)])
            entries[:16] = _HEADER.pack(count - 1, number)
        self._drop(before)

    def _names(self) -> Names | None:
        owner = self._value_named_memory.owner
        return owner() if owner is not None else None

    def _check_joins(self) -> None:
        names = self._names()
        if names is not None:
            names.check_joins(self._name, self._name)

    def _transaction(self) -> Any:
        names = self._names()
        if names is not None and names.transaction is not None:
            self._check_joins()
            return contextlib.nullcontext()
        core = self._pool.core.transaction(self._pool.shelf, (self._core,), 0, 10_000, 1 << 40)
        return lmcstore.Transaction(core)

    @raises_shelf_errors
    def __len__(self) -> int:
        return self._header()[0]

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while index < len(self):
            yield self[index]
            index += 1

    def __contains__(self, value: Any) -> bool:
        return any(one is value or (type(one) is type(value) and bool(one == value)) for one in self)

    def __repr__(self) -> str:
        return repr(list(self))

    def persist(self) -> None:
        """Do nothing: every change is durable."""

    def sweep(self) -> None:
        """Remove parts without an entry."""
        count = len(self)
        entries = self._core.read(16, 16 * count)
        used = {self._part_name(number) for kind, number in _ENTRY.iter_unpack(entries) if kind == _PART}
        for name in self.part_names():
            if name not in used:
                self._pool.erase(name)


def _key_of(core: _core.Live) -> str:
    key = read_note(core.info()["note"])[1].get("key")
    if not isinstance(key, str):
        raise ShelfError("a list's description is damaged")
    return key


def _part_names(pool: Any) -> Names:
    """Return names for parts: no shelf has parts as attributes, so it may end at once."""
    return Names(pool)


class linked_list(Shadow):
    """A list to be put on a shelf: empty, or of elements."""

    def __init__(self, elements: Iterable[Any] = ()) -> None:
        self.elements = list(elements)

    def build(self, names: Names, name: str) -> shelved_linked_list:
        """Make the list, unnamed yet."""
        note = make_note("numpy", type="linked_list", key=os.urandom(8).hex())
        reserve = 0 if names.pool.store.info()["medium"] == "devdax" else _RESERVE_BYTES
        core = names.pool.create((16 * (_FIRST_ROOM + 1),), _core.DTYPES["u8"], note, reserve)
        made = shelved_linked_list(names, name, core)
        try:
            made.extend(self.elements)
        except BaseException:
            made.erase_parts()
            raise
        return made
