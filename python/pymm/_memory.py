# SPDX-License-Identifier: BSD-3-Clause
"""The pool behind a shelf, its names, and the memory of one variable: the base of all shelved variables.

`Names` is the ``__dict__`` of a shelf: used attributes are in it, so that ``s.x`` is an ordinary look-up; others are
opened on demand. All shelves of one pool in a process share one. Its members refer to it weakly: the pool closes after
the last shelf and variable.

A variable's note is that of `lmcstore`, for ``store[shelf].live``, then a line feed and PyMM's own part as JSON. Names
that begin with ``-`` belong to lists and saved structures.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import lmcstore
from lmcstore import _core
from lmcstore._text.text import lines
from lmcstore.live.kinds import note_bytes

HIDDEN = "-"
"""Prefix of the names of parts of variables."""
MAX_SMALL = _core.LIVE_MAX_VALUE - 64
"""Bytes of the longest text that is a value; longer ones are tensors."""
PYTHON = "python"
"""The note of values that are packed."""
RAW = "raw"
"""Marks foreign values that are not packed: they are replaced, not written to."""

_GROWTH = 2
_Function = TypeVar("_Function", bound=Callable[..., Any])


class ShelfError(RuntimeError):
    """Any failure or refusal of a shelf."""

    def __init__(self, message: str = "") -> None:
        super().__init__(lines(message))  # its names may come from an untrusted pool


@contextlib.contextmanager
def shelf_errors() -> Iterator[None]:
    try:
        yield
    except (lmcstore.Error, OSError, ValueError, TypeError, OverflowError) as error:
        raise ShelfError(str(error)) from error


def raises_shelf_errors(function: _Function) -> _Function:
    """Turn the store's errors into those of a shelf."""
    import functools

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (lmcstore.Error, OSError) as error:
            raise ShelfError(str(error)) from error

    return wrapped  # type: ignore[return-value]


class Shadow(ABC):
    """A variable before it is put on a shelf, such as `pymm.ndarray`."""

    @abstractmethod
    def build(self, names: Names, name: str) -> Any:
        """Make the variable, unnamed yet, and return its object."""


class Makers:
    """Functions of `_make`, which imports the variables and sets these for them."""

    shadow_of: Callable[..., Any]
    object_of: Callable[..., Any]
    assigned: Callable[..., Any]


class ShelvedCommon:
    _value_named_memory: MemoryReference

    @property
    def memory(self) -> tuple[str, int]:
        """The address of its bytes, as hexadecimal text, and their count."""
        return self._value_named_memory.addr()

    @property
    def namedmemory(self) -> MemoryReference:
        return self._value_named_memory

    @property
    def _metadata_named_memory(self) -> MemoryReference:
        return self._value_named_memory


class Lock:
    """A lock that its thread may acquire again, and that is free in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        self._lock = threading.RLock()


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _renew_locks() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_locks)


class Names(dict[str, Any]):
    """The used variables of a shelf. `lock` is held while one is opened, replaced or erased, in the pool and here."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        self.lock = Lock()
        self.begun: _core.Transaction | None = None
        self.members: set[str] | None = None  # of the transaction begun last; None: all variables

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def variables(self) -> dict[str, Any]:
        return {name: value for name, value in list(self.items()) if isinstance(value, ShelvedCommon)}

    @property
    def transaction(self) -> _core.Transaction | None:
        """The transaction under way: an interrupt may arrive after the end of one, before that is noted here."""
        begun = self.begun
        return None if begun is None or begun.ended else begun

    def joins(self, name: str) -> bool:
        """Whether changes of a name are in the transaction, if one is under way; a new name joins it."""
        if self.transaction is None or self.members is None or name in self.members:
            return True
        if self.pool.open(name) is not None:
            return False
        self.members.add(name)
        return True

    def check_joins(self, name: str, shown: str) -> None:
        """Refuse new parts for a variable outside of the transaction: an abort would undo the parts only."""
        if not self.joins(name):
            raise ShelfError(
                f"{shown!r} can't be changed in a transaction of other variables: name it in tx_begin(), or begin one "
                "of all with tx_begin_all()"
            )

    def forget(self) -> None:
        for name in self.variables():
            self.pop(name, None)


class Pool:
    """A shelf of an open store, which grows when it is full."""

    def __init__(self, store: lmcstore.Store, shelf: str, identity: tuple[int, int]) -> None:
        self.store = store
        self.identity = identity
        self.shelf = shelf
        self.live = store[shelf].live
        self.core = store._pool

    def growing(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function; if the pool is full, raise its limit and call it again."""
        while True:
            try:
                return function(*args)
            except lmcstore.FullError as error:
                limit = self.store.info()["limit_bytes"]
                if limit == 0:
                    raise
                wanted = max(_GROWTH * limit, limit + 2 * error.bytes_needed)
                room = os.statvfs(os.path.dirname(os.path.abspath(self.store.path)))
                if wanted - limit > room.f_bavail * room.f_frsize + error.bytes_needed:
                    raise
                try:
                    self.store.set_limit(wanted)
                except lmcstore.InvalidError:  # more than the pool's file has addresses for: use them all
                    self.store.set_limit(None)

    def open(self, name: str) -> _core.Live | None:
        try:
            return self.core.live_open(self.shelf, name)
        except lmcstore.NotFoundError:
            return None

    def create(
        self, shape: tuple[int, ...], dtype: int, note: str, reserve: int = 0, name: str | None = None
    ) -> _core.Live:
        """Make a tensor, unnamed by default, which can grow in place to `reserve` bytes."""
        encoded = note_bytes(note, "the variable")
        return self.growing(  # type: ignore[no-any-return]
            self.core.live_create,
            self.shelf,
            HIDDEN if name is None else name,
            dtype,
            shape,
            _core.LIVE_TENSOR,
            _core.LIVE_UNNAMED if name is None else 0,
            reserve,
            encoded,
        )

    def create_value(self, data: bytes, note: str) -> _core.Live:
        """Make an unnamed value."""
        core = self.growing(
            self.core.live_create,
            self.shelf,
            HIDDEN,
            _core.DTYPES["u8"],
            (len(data),),
            _core.LIVE_VALUE,
            _core.LIVE_UNNAMED,
            0,
            note_bytes(note, "the variable"),
        )
        core.set(data)
        return core  # type: ignore[no-any-return]

    def names(self, prefix: str = "") -> list[str]:
        return self.core.live_list(self.shelf, prefix, 0, 0, True)

    def erase(self, name: str) -> None:
        self.core.live_erase(self.shelf, name)


class MemoryReference:
    """The memory of one variable. A named one becomes durable with its last reference."""

    __slots__ = ("__weakref__", "address", "core", "extra", "is_leaving", "name", "nbytes", "owner", "set")

    def __init__(self, core: _core.Live, name: str, owner: Names | None, extra: dict[str, Any] | None = None) -> None:
        self.core = core
        self.is_leaving = False  # about to be erased: need not be durable
        self.set = core.set
        self.extra = extra if extra is not None else {}
        self.name = name
        self.owner = weakref.ref(owner) if owner is not None else None
        self.nbytes: int = core.info()["bytes"] if core.address else 0
        self.address = core.address

    def __del__(self) -> None:
        if getattr(self, "address", 0) and self.nbytes:
            with contextlib.suppress(lmcstore.Error):  # in a child of fork, say
                if not (self.is_leaving or self._is_replaced()):
                    self.core.persist(0, self.nbytes)

    def _is_replaced(self) -> bool:
        """Whether another variable has its name permanently: no transaction may restore it."""
        names = self.owner() if self.owner is not None else None
        return names is not None and names.transaction is None and not self.core.info()["name"]

    @property
    def varname(self) -> str:
        return self.name

    @property
    def buffer(self) -> memoryview:
        return memoryview(self.core.buffer() if self.address else self.core.get())

    def addr(self) -> tuple[str, int]:
        """Return address, as hexadecimal text, and count of the bytes; a value has no address."""
        return hex(self.address), self.nbytes if self.address else len(self.core.get())

    def persist(self) -> None:
        if self.nbytes:
            with shelf_errors():
                self.core.persist(0, self.nbytes)

    def has(self, address: int) -> bool:
        return self.address <= address < self.address + max(self.nbytes, 1)

    def persist_between(self, low: int, high: int) -> None:
        low, high = max(low - self.address, 0), min(high - self.address, self.nbytes)
        if low < high:
            with shelf_errors():
                self.core.persist(low, high - low)


def make_note(store_note: str, **extra: Any) -> str:
    return f"{store_note}\n{json.dumps(extra, separators=(',', ':'))}" if extra else store_note


def read_note(note: bytes) -> tuple[str, dict[str, Any]]:
    text, _, own = note.decode("utf-8", "replace").partition("\n")
    try:
        extra = json.loads(own) if own else {}
    except ValueError:
        extra = {}
    return text, extra if isinstance(extra, dict) else {}
