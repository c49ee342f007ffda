# SPDX-License-Identifier: BSD-3-Clause
"""Opens, makes and deletes the pools of shelves; handles named memory, the layer below variables."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path
from typing import Any

import lmcstore
from lmcstore import _core

from ._memory import MAX_SMALL, Lock, MemoryReference, Names, Pool, ShelfError, raises_shelf_errors

_BACKENDS = (None, "hstore-cc", "hstore", "hstore-mm", "mapstore")
_LEAST_BYTES = 16 << 20
_SIGNATURE = b"PMEMOBJ"  # the first bytes of a pool
_known: weakref.WeakValueDictionary[tuple[Any, ...], Names] = weakref.WeakValueDictionary()
opening = Lock()
"""Held while a shelf is looked up and opened."""
_VOLATILE = "pymm-mapstore-"


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return (found.st_rdev, -1) if stat.S_ISCHR(found.st_mode) else (found.st_dev, found.st_ino)


def _pool_path(name: str, pmem_path: str | os.PathLike[str]) -> str:
    if not isinstance(name, str) or not name or "/" in name or "\0" in name:
        raise ShelfError(f"a shelf can't be named {name!r}: a name is a text without slashes")
    folder = os.path.expanduser(pmem_path)
    if not isinstance(folder, str):
        raise ShelfError("pmem_path is a folder, or a devdax device")
    with contextlib.suppress(OSError):
        if stat.S_ISCHR(os.stat(folder).st_mode):
            return folder
    return os.path.join(folder, f"{name}.pool")


def _key(name: str, pmem_path: Any, backend: str | None) -> tuple[Any, ...] | None:
    if backend == "mapstore":
        return ("mapstore", name)
    identity = _identity(_pool_path(name, pmem_path))
    return None if identity is None else (identity, name if identity[1] == -1 else "")


def find_names(name: str, pmem_path: Any, backend: str | None) -> Names | None:
    """Return the variables of a shelf that is open in this process, or None."""
    _check_backend(backend)
    key = _key(name, pmem_path, backend)
    names = _known.get(key) if key is not None else None
    return None if names is None or names.pool.core.is_foreign else names


def _check_backend(backend: Any) -> None:
    if backend not in _BACKENDS:
        raise ShelfError(f"there is no backend {backend!r}: take 'hstore-cc', 'hstore', 'hstore-mm' or 'mapstore'")


def _volatile_folder() -> str:
    """Make a folder for a pool that ends with the process, and remove those of killed processes."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    for left in Path(base).glob(f"{_VOLATILE}*"):
        pid = left.name.removeprefix(_VOLATILE).partition("-")[0]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}") and left.stat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_VOLATILE}{os.getpid()}-", dir=base)


def _remove_folder(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class MemoryResource:
    """A pool for a shelf: opened, or made. Parameters as for `pymm.shelf`.

    Its methods handle named memory: bytes by a name.
    """

    @raises_shelf_errors
    def __init__(
        self,
        name: str,
        size_mb: int,
        pmem_path: str = "/mnt/pmem0",
        load_addr: str = "0x900000000",
        backend: str | None = None,
        mm_plugin: str | None = None,
        force_new: bool = False,
    ) -> None:
        _check_backend(backend)
        if isinstance(size_mb, bool) or not isinstance(size_mb, int | float) or size_mb <= 0:
            raise ShelfError(f"size_mb is a number of MiB, not {size_mb!r}")
        path = _pool_path(name, pmem_path)
        pmem_path = os.path.expanduser(pmem_path)
        folder = None
        if backend == "mapstore":
            folder = _volatile_folder()
            path = os.path.join(folder, "volatile.pool")
        elif path != pmem_path:
            os.makedirs(pmem_path, exist_ok=True)
        if force_new:
            _delete(path, name)
        store = _open_or_create(path, max(int(size_mb * (1 << 20)), _LEAST_BYTES))
        identity = _identity(path) or (0, 0)
        self._pool = Pool(store, name, identity)
        names = Names(self._pool)
        names["mr"] = self
        self._names = weakref.ref(names)
        self._held: Names | None = names  # until a shelf has it
        key = ("mapstore", name) if backend == "mapstore" else (identity, name if identity[1] == -1 else "")
        _known[key] = names
        if folder is not None:
            weakref.finalize(names, _remove_folder, folder, os.getpid())

    @property
    def names(self) -> Names:
        """The variables; the first caller owns them."""
        names = self._names()
        self._held = None
        assert names is not None
        return names

    @raises_shelf_errors
    def list_items(self) -> list[str]:
        """Return all names."""
        return self._pool.names()

    get_named_memory_list = list_items

    @raises_shelf_errors
    def create_named_memory(
        self, name: str, size: int, alignment: int = 256, zero: bool = False
    ) -> MemoryReference | None:
        """Make named memory, all zeros; None: the name is taken."""
        try:
            core = self._pool.create((int(size),), _core.DTYPES["u8"], "numpy", name=name)
        except lmcstore.ExistsError:
            return None
        return MemoryReference(core, name, None)

    @raises_shelf_errors
    def open_named_memory(self, name: str) -> MemoryReference | None:
        """Open named memory; None: there is none."""
        core = self._pool.open(name)
        return None if core is None else MemoryReference(core, name, None)

    def release_named_memory(self, ref: MemoryReference) -> None:
        """Make it durable; the last reference releases it."""
        ref.persist()

    @raises_shelf_errors
    def erase_named_memory(self, name: str) -> None:
        """Remove named memory."""
        self._pool.erase(name)

    @raises_shelf_errors
    def put_named_memory(self, name: str, value: bytes | bytearray) -> None:
        """Store bytes under a name, all or nothing."""
        data = bytes(value)
        if len(data) <= MAX_SMALL:
            core = self._pool.create_value(data, "")
        else:
            core = self._pool.create((len(data),), _core.DTYPES["u8"], "numpy")
            memoryview(core.buffer())[:] = data
        self._pool.growing(core.replace, name)

    @raises_shelf_errors
    def get_named_memory(self, name: str) -> bytearray | None:
        """Return a copy of named memory; None: there is none."""
        core = self._pool.open(name)
        return None if core is None else bytearray(core.get())

    @raises_shelf_errors
    def atomic_swap_names(self, a: str, b: str) -> None:
        """Exchange two names in one step."""
        self._pool.core.live_swap(self._pool.shelf, a, b)

    @raises_shelf_errors
    def get_percent_used(self) -> float:
        """Return the used percentage of the pool's present limit."""
        return self._pool.live.used_percent


def _open_or_create(path: str, size: int) -> lmcstore.Store:
    """Open a pool, or create it without a warning: IBM's programs create theirs so."""
    identity = _identity(path)
    if identity is None or identity[1] == -1:  # a device may be blank
        try:
            return lmcstore.open(path, "x", size=size if identity is None else None, background=False)
        except lmcstore.ExistsError:
            pass
    return lmcstore.open(path, background=False)


def _delete(path: str, name: str) -> None:
    """Delete a shelf's pool or, on a device, its contents."""
    identity = _identity(path)
    if identity is None:
        return
    here = any(names.pool.identity == identity for names in list(_known.values()))
    if identity[1] == -1:
        with contextlib.suppress(lmcstore.NotFoundError), lmcstore.open(path, "r+") as store:
            for variable in store[name].live.names():
                store[name].live.erase(variable)
        return
    if not here:
        # Other processes that have it open keep it; a file that is no pool is not deleted.
        try:
            lmcstore.open(path, "r+", wait=2.0, background=False).close()
        except lmcstore.DamagedError as error:
            with open(path, "rb") as file:
                if file.read(len(_SIGNATURE)) != _SIGNATURE:
                    raise ShelfError(f"{error}; force_new deletes pools only: remove the file yourself") from None
    os.unlink(path)


def _close_all() -> None:
    """Make open variables durable at the interpreter's end: objects may not be finalized then."""
    for names in list(_known.values()):
        if names.pool.core.is_foreign:
            continue
        if names.transaction is not None:
            names.transaction.abort()
        for value in names.variables().values():
            with contextlib.suppress(RuntimeError):
                value._value_named_memory.persist()


atexit.register(_close_all)
