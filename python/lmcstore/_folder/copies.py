# SPDX-License-Identifier: BSD-3-Clause
"""`copy_of`: a copy of a state for a save in the background, in memory that one save takes over from another.

Fresh memory costs more than the copy: the kernel clears its pages. So memory stays when a save has ended, as free
memory that the kernel may take back. It is used again once no tensor is in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .._arrays.torch import torch_of

_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_ALIGNMENT = 64
_MOST = 2  # times what is needed, of memory that is used again

_free: list[mmap.mmap] = []
"""The memory that no save uses: at most one."""
_lock = threading.RLock()  # the garbage collector may give memory back in a thread that holds it


class Place:
    """Where a value will be in a tree."""

    value: Any = None


def walk(value: Any, path: str, found: Callable[[Any, str], Any]) -> Any:
    """Return the tree of dicts, lists and tuples with `found(part, path)` in place of each other part."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return kind(walk(item, f"{path}.{index}", found) for index, item in enumerate(value))
    if isinstance(value, dict):
        return {key: walk(item, f"{path}.{key}" if path else str(key), found) for key, item in value.items()}
    return found(value, path)


def filled(value: Any) -> Any:
    """Return the tree with the values of its places."""
    kind = type(value)
    if kind is Place:
        return value.value
    if kind is dict:
        return {key: filled(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return kind(map(filled, value))
    return value


class Others:
    """Parts of a tree that a function of torch copies."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        self._places: dict[str, Place] = {}

    def add(self, value: Any, path: str) -> Place:
        """Add a part; return its place."""
        while path in self._parts:
            path += "'"
        self._parts[path] = value
        place = self._places[path] = Place()
        return place

    def copy(self, copies: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Copy all parts to their places."""
        if self._parts:
            for path, value in copies(self._parts).items():
                self._places[path].value = value


@torch.no_grad()
def copy_of(state: dict[str, Any], others: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Copy a state to the CPU; `others` copies what is neither a usual tensor nor a DTensor of one.

    Tensors that are equal views of one memory share their copy.
    """
    rest = Others()
    places: dict[Any, list[tuple[Place, Any]]] = {}
    tensors: list[tuple[torch.Tensor, int]] = []
    size = 0

    def found(value: Any, path: str) -> Place:
        nonlocal size
        local = value._local_tensor if isinstance(value, DTensor) else value
        if not _is_usual(local):
            return rest.add(value, path)
        place = Place()
        key = local.device, local.data_ptr(), local.dtype, local.size(), local.stride()
        if key in places:
            places[key].append((place, value))
        else:
            places[key] = [(place, value)]
            tensors.append((local, size))
            size += -(-local.nbytes // _ALIGNMENT) * _ALIGNMENT
        return place

    tree = walk(state, "", found)
    rest.copy(others)
    memory = _memory(size) if size else None
    for (local, start), same in zip(tensors, places.values(), strict=True):
        copy = torch.frombuffer(memory, dtype=local.dtype, count=local.numel(), offset=start).view(local.size())
        copy.copy_(local)
        for place, value in same:
            place.value = _of(value, copy)
    return filled(tree)  # type: ignore[no-any-return]


def _is_usual(value: Any) -> bool:
    known = torch_of(torch)
    return (
        type(value) in known.types
        and value.layout is torch.strided
        and value.dtype in known.number_of
        and not value.is_nested
        and not value.is_conj()
        and not value.is_neg()
        and value.numel() > 0
        and value.data_ptr() != 0
    )


def _of(value: Any, copy: torch.Tensor) -> torch.Tensor:
    if not isinstance(value, DTensor):
        return copy
    return DTensor(copy, value._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _memory(size: int) -> memoryview:
    memory: mmap.mmap | None = None
    with _lock, contextlib.suppress(IndexError):
        memory = _free.pop()
    if memory is None or not size <= len(memory) <= _MOST * size:
        memory = None
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    view = memoryview(memory)[:size]
    weakref.finalize(view, _give_back, memory).atexit = False
    return view


def _give_back(memory: mmap.mmap) -> None:
    """Keep memory for the next save. If that has begun, it waits until the kernel may take the pages."""
    with _lock:
        _let_go(memory)
        _free[:] = [memory]


def _let_go(memory: mmap.mmap) -> None:
    """Let the kernel take the pages of a memory until it is used again."""
    if hasattr(mmap, "MADV_FREE"):
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        # mmap's method would stop all other threads for this time
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), mmap.MADV_FREE)


def _renew_lock() -> None:
    """In a forked child: a thread of the parent may hold the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def forget() -> None:
    """Give the free memory back to the system."""
    _free.clear()
