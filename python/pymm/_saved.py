# SPDX-License-Identifier: BSD-3-Clause
"""Saved structures: lists, tuples, dicts of arrays, tensors and plain values, under a name.

``-saved:<name>`` is a tensor of bytes with the structure; its arrays are variables ``-<key>:<number>`` with a random
key. A save makes them first, then replaces the earlier structure in one step, then erases the earlier arrays. The next
open of the shelf removes the remains of a crash.

A node of the packed structure is one of ::

    L value                         a plain value, as lmcstore._state.scalars packs it
    A u32                           the array of a number;  "T" u32 u8: a tensor (1: wants gradients, 2: a Parameter)
    d, o, C u32 (value node)...     dict, OrderedDict, Counter with their keys
    l, t u32 node...                list, tuple
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import lmcstore
import numpy as np
from lmcstore import _core
from lmcstore._arrays.packages import loaded
from lmcstore._state.scalars import MAX_DEPTH, TOO_ALIKE, Reader, Unpackable, are_too_alike, pack
from lmcstore._text.arguments import a_kind

from ._memory import HIDDEN, Names, Pool, ShelfError, ShelvedCommon, make_note, read_note
from .linkedlist import shelved_linked_list
from .ndarray import open_array

_PREFIX = f"{HIDDEN}saved:"
_COUNT = struct.Struct("<I")
_DICTS: dict[type, bytes] = {dict: b"d", OrderedDict: b"o", Counter: b"C"}
_DICT_TYPES: dict[bytes, type] = {tag: kind for kind, tag in _DICTS.items()}


def is_saved(name: str) -> bool:
    return name.startswith(_PREFIX)


def name_of(name: str) -> str:
    return name[len(_PREFIX) :]


class _Packer:
    def __init__(self) -> None:
        self.arrays: list[Any] = []

    def node(self, value: Any, path: str, depth: int) -> bytes:
        if depth > MAX_DEPTH:
            raise ShelfError(f"{path[:100]}...: nested too deeply; {MAX_DEPTH} levels can be saved")
        torch = loaded("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            flags = int(value.requires_grad) | 2 * isinstance(value, torch.nn.Parameter)
            self.arrays.append(value)
            return b"T" + _COUNT.pack(len(self.arrays) - 1) + bytes([flags])
        if isinstance(value, np.ndarray):
            self.arrays.append(value)
            return b"A" + _COUNT.pack(len(self.arrays) - 1)
        if isinstance(value, shelved_linked_list):
            value = list(value)
        if type(value) in _DICTS:
            if are_too_alike(value):
                raise ShelfError(f"{path[:100]}: {TOO_ALIKE}")
            items = [pack_key(key, path) + self.node(child, f"{path}.{key}", depth + 1) for key, child in value.items()]
            return _DICTS[type(value)] + _COUNT.pack(len(items)) + b"".join(items)
        if type(value) in (list, tuple):
            nodes = [self.node(child, f"{path}.{index}", depth + 1) for index, child in enumerate(value)]
            return (b"l" if type(value) is list else b"t") + _COUNT.pack(len(nodes)) + b"".join(nodes)
        return b"L" + _leaf(value, path)


def _leaf(value: Any, path: str) -> bytes:
    if isinstance(value, ShelvedCommon) and hasattr(value, "plain"):
        value = value.plain(value)
    try:
        return pack(value)
    except Unpackable as refused:
        if refused.limit is not None:
            raise ShelfError(f"{path[:100]}: {a_kind(refused.value)} is {refused.limit}") from None
        hint = "; save its state_dict()" if hasattr(value, "state_dict") else ""
        raise ShelfError(f"{path}: {a_kind(value)} can't be saved{hint}") from None


def pack_key(key: Any, path: str) -> bytes:
    return _leaf(key, f"{path}: the key {key!r:.50}")


def save(names: Names, data: Any, name: str) -> None:
    """See `pymm.shelf.save`."""
    from ._make import shadow_of

    if not isinstance(name, str) or not name:
        raise ShelfError("a saved structure needs a name, which is a text")
    packer = _Packer()
    packed = packer.node(data, name, 0)
    with names.lock:
        names.check_joins(_PREFIX + name, name)  # before anything is written
    shadows = [shadow_of(array, name) for array in packer.arrays]
    pool, key = names.pool, os.urandom(8).hex()
    with _erased_on_failure(pool, key):
        for number, shadow in enumerate(shadows):
            made = shadow.build(names, f"{HIDDEN}{key}:{number}")
            pool.growing(made._value_named_memory.core.replace, f"{HIDDEN}{key}:{number}")
            del made
        core = pool.create((len(packed),), _core.DTYPES["u8"], make_note("numpy", type="saved", key=key))
        memoryview(core.buffer())[:] = packed
    with names.lock:  # no thread loads the earlier structure meanwhile
        before = pool.open(_PREFIX + name)
        with _erased_on_failure(pool, key, name):
            names.check_joins(_PREFIX + name, name)
            pool.growing(core.replace, _PREFIX + name)
        if before is not None:
            _erase_arrays(pool, _key(before))


@contextlib.contextmanager
def _erased_on_failure(pool: Pool, key: str, name: str | None = None) -> Iterator[None]:
    """Erase the arrays of a failed save, unless an error or an interrupt came after the structure got its `name`."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(lmcstore.Error):  # the next open removes what stays
            core = pool.open(_PREFIX + name) if name is not None else None
            if core is None or _key(core) != key:
                _erase_arrays(pool, key)
        raise


def _key(core: _core.Live) -> str:
    return str(read_note(core.info()["note"])[1].get("key"))


def _erase_arrays(pool: Pool, key: str) -> None:
    for array in pool.names(f"{HIDDEN}{key}:"):
        pool.erase(array)


def variables(names: Names, name: str) -> list[str]:
    """Return the names of the variables of a saved structure; none: there is no such structure."""
    core = names.pool.open(_PREFIX + name) if name else None
    return [] if core is None else [_PREFIX + name, *names.pool.names(f"{HIDDEN}{_key(core)}:")]


def erase(names: Names, name: str) -> bool:
    """Remove a saved structure; False: there is none."""
    pool = names.pool
    core = pool.open(_PREFIX + name)
    if core is None:
        return False
    key = _key(core)
    del core
    pool.erase(_PREFIX + name)
    _erase_arrays(pool, key)
    return True


class _Loader:
    def __init__(self, pool: Pool, key: str, packed: bytes) -> None:
        self._pool, self._key, self._reader = pool, key, Reader(packed)
        self._arrays: set[int] = set()  # already copied: a repeated array is stored once

    def node(self, depth: int) -> Any:
        reader = self._reader
        tag = bytes(reader._take(1))
        if depth > MAX_DEPTH:
            raise lmcstore.DamagedError("the saved structure is damaged: it is nested too deeply")
        if tag == b"L":
            return reader.value()
        if tag in (b"A", b"T"):
            return self._array(reader._length(), reader._take(1)[0] if tag == b"T" else None)
        if tag in _DICT_TYPES:
            items = [(reader.value(), self.node(depth + 1)) for _ in range(reader._length())]
            return self._dict(tag, items)
        if tag in (b"l", b"t"):
            items = [self.node(depth + 1) for _ in range(reader._length())]
            return items if tag == b"l" else tuple(items)
        raise lmcstore.DamagedError(f"the saved structure is damaged: there is no node {tag!r}")

    def _dict(self, tag: bytes, items: list[tuple[Any, Any]]) -> Any:
        try:
            if are_too_alike([key for key, _ in items]):
                raise lmcstore.DamagedError(f"the saved structure is damaged: {TOO_ALIKE}")
            return _DICT_TYPES[tag](dict(items))
        except TypeError as error:
            raise lmcstore.DamagedError(f"the saved structure is damaged: {error}") from None

    def _array(self, number: int, flags: int | None) -> Any:
        name = f"{HIDDEN}{self._key}:{number}"
        core = self._pool.open(name) if number not in self._arrays else None
        self._arrays.add(number)
        if core is None:
            raise lmcstore.DamagedError(f"the saved structure is damaged: array {number} is missing, or in it twice")
        if flags is None:
            return np.array(open_array(None, name, core).asndarray(), order="K")
        import torch

        from .torch_tensor import open_tensor

        tensor = open_tensor(None, name, core, {}).as_tensor().clone()
        if flags & 2:
            return torch.nn.Parameter(tensor, requires_grad=bool(flags & 1))
        return tensor.requires_grad_(bool(flags & 1))


def load(names: Names, name: str) -> Any:
    """See `pymm.shelf.load`."""
    with names.lock:
        core = names.pool.open(_PREFIX + name) if isinstance(name, str) else None
        if core is None:
            raise ShelfError(f"nothing was saved under {name!r}")
        loader = _Loader(names.pool, _key(core), core.get())
        return loader.node(0)


def sweep(pool: Pool) -> None:
    """Remove remains of a crash: unreferenced parts of lists, and arrays.

    What is damaged or in use stays: the shelf's other variables are usable, and the next open tries again.
    """
    keys, lists = set(), []
    try:
        infos = pool.live.infos()
    except lmcstore.DamagedError:
        return  # without all keys, parts that are referenced would go
    for info in infos:
        extra = read_note(info.note)[1]
        if isinstance(extra.get("key"), str):
            keys.add(extra["key"])
            if extra.get("type") == "linked_list":
                lists.append(info.name)
    for name in pool.names(HIDDEN):
        key, separator, number = name[1:].replace("-", ":").partition(":")
        if separator and number.isdigit() and key not in keys and not is_saved(name):
            with contextlib.suppress(lmcstore.DamagedError, lmcstore.InUseError):
                pool.erase(name)
    for name in lists:
        with contextlib.suppress(lmcstore.DamagedError, lmcstore.InUseError, ShelfError):
            core = pool.open(name)
            if core is not None:
                shelved_linked_list(Names(pool), name, core).sweep()
