# SPDX-License-Identifier: BSD-3-Clause
"""`shelf`: an object whose attributes are in a pool."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from typing import Any

import lmcstore

from . import _saved
from ._make import assigned, used
from ._memory import (
    HIDDEN,
    MemoryReference,
    Names,
    Pool,
    Shadow,
    ShelfError,
    ShelvedCommon,
    raises_shelf_errors,
    read_note,
    shelf_errors,
)
from .linkedlist import shelved_linked_list
from .memoryresource import MemoryResource, find_names, opening

__all__ = ["Shadow", "ShelvedCommon", "shelf"]

_OWN = frozenset({"name", "mr"})


class shelf:
    """A shelf: opened, or made.

    Parameters
    ----------
    name
        Its name: the pool is the file ``<pmem_path>/<name>.pool``.
    pmem_path
        A folder, made if necessary, or a devdax device.
    size_mb
        Its first limit, in MiB. The limit rises when the pool is full.
    load_addr
        Ignored.
    backend, mm_plugin
        ``"hstore-cc"``, ``"hstore"`` and ``"hstore-mm"`` are ignored; ``"mapstore"`` is not persistent.
    force_new
        Delete an existing shelf first.

    Examples
    --------
    >>> s = pymm.shelf("doctest", pmem_path=folder, force_new=True)
    >>> s.x = pymm.ndarray((2, 2), dtype="i4")
    >>> s.x.fill(3)
    >>> s.n = 5
    >>> s.n += 1
    >>> s.n, s.items, s.nothing is None
    (6, ['n', 'x'], True)
    >>> del s
    >>> pymm.shelf("doctest", pmem_path=folder).x.tolist()
    [[3, 3], [3, 3]]
    """

    name: str
    mr: MemoryResource

    def __init__(
        self,
        name: str,
        pmem_path: str = "/mnt/pmem0",
        size_mb: int = 32,
        load_addr: str = "0x900000000",
        backend: str | None = None,
        mm_plugin: str | None = None,
        force_new: bool = False,
    ) -> None:
        if not isinstance(load_addr, str):
            raise ShelfError("load_addr is an address as text, such as '0x900000000'")
        with opening:  # other threads may open the same shelf
            names = find_names(name, pmem_path, backend) if not force_new else None
            if names is None:
                resource = MemoryResource(
                    name,
                    size_mb,
                    pmem_path=pmem_path,
                    load_addr=load_addr,
                    backend=backend,
                    mm_plugin=mm_plugin,
                    force_new=force_new,
                )
                names = resource.names
                names["name"] = name
                _saved.sweep(names.pool)
        object.__setattr__(self, "__dict__", names)

    # Attributes

    def __setattr__(self, name: str, value: Any) -> None:
        names: Names = self.__dict__  # type: ignore[assignment]
        if value is not None and names.get(name) is value:
            if name in _OWN:
                raise ShelfError(f"{name!r} of a shelf can't be assigned to")
            return  # assignment of an in-place operation
        if name in _OWN or name in _RESERVED:
            raise ShelfError(f"{name!r} belongs to the shelf itself: choose another name for a variable")
        if value is None:
            if name in self:
                self.erase(name)
            return
        assigned(names, name, value)

    def __getattr__(self, name: str) -> Any:
        """Open an unused variable; None: there is none of that name."""
        if name[:2] == "__" and name[-2:] == "__":
            raise AttributeError(name)  # a name of a protocol is no variable
        return used(self._names, name)

    def __delattr__(self, name: str) -> None:
        self.erase(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._names.variables() or name in self.get_item_names())

    def __hasattr__(self, name: str) -> bool:
        return name in self

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.get_item_names()})

    def __repr__(self) -> str:
        return f"<pymm.shelf {self.name!r}, {len(self.get_item_names())} items>"

    @property
    def _names(self) -> Names:
        return self.__dict__  # type: ignore[return-value]

    @property
    def _pool(self) -> Pool:
        return self._names.pool

    # Lists

    @property
    def items(self) -> list[str]:
        """The names of the variables and saved structures."""
        return self.get_item_names()

    @property
    def used(self) -> float:
        """The used percentage of the pool's present limit."""
        return self.get_percent_used()

    @raises_shelf_errors
    def get_item_names(self, all: bool = False) -> list[str]:
        """Return the names of the variables, sorted; `all`: with those of their parts."""
        found = self._pool.names()
        names = {name for name in found if all or not name.startswith(HIDDEN)}
        return sorted(names | {_saved.name_of(name) for name in found if _saved.is_saved(name)})

    @raises_shelf_errors
    def get_percent_used(self) -> float:
        """As `used`."""
        return self._pool.live.used_percent

    def supported_types(self) -> list[str]:
        """Return the names of the types that can be put on a shelf."""
        kinds = "ndarray torch_tensor string float_number integer_number bytes linked_list dlpack_array"
        return [f"pymm.{kind}" for kind in kinds.split()]

    # Changing

    def erase(self, name: str | ShelvedCommon) -> None:
        """Remove a variable or a saved structure, and free its space.

        RuntimeError: there is none; or it, a view of it, or an element of it is referenced. Nothing changes.
        """
        if not isinstance(name, str):  # no reference of this function remains
            name = _name_of(name)
        with shelf_errors(), self._names.lock:
            if name in _OWN or name.startswith(HIDDEN):
                raise ShelfError(f"there is no variable {name!r} to erase")
            found = self._erase_variable(name)
            if not (_saved.erase(self._names, name) or found):
                raise ShelfError(f"there is no variable {name!r} on the shelf to erase")

    def _erase_variable(self, name: str) -> bool:
        if name not in self._names and self._pool.open(name) is None:
            return False
        prefix = self._prefix_of_parts(name)
        if not self._erase_unheld(name, prefix):
            gc.collect()  # garbage, such as the frames of an exception, may refer to it
            if not self._erase_unheld(name, prefix):
                raise ShelfError(
                    f"{name!r} can't be erased: something else refers to it, or to a view or an element of it; drop "
                    "that first"
                )
        if prefix is not None:
            for part in self._pool.names(prefix):
                self._pool.erase(part)
        return True

    def _erase_unheld(self, name: str, prefix: str | None) -> bool:
        names = self._names
        if prefix is not None and any(part.handles for part in self._pool.live.infos(prefix)):
            return False
        held = names.pop(name, None)
        if held is not None and sys.getrefcount(held) > 2:  # ours, and the argument's
            names[name] = held
            return False
        memory = None
        if held is not None:
            memory = weakref.ref(held._value_named_memory)
            held._value_named_memory.is_leaving = names.transaction is None
        held = None
        try:
            self._pool.erase(name)
        except lmcstore.InUseError:
            self._stays(name, memory() if memory is not None else None)
            return False
        return True

    def _stays(self, name: str, memory: MemoryReference | None) -> None:
        """Cancel an erase: the variable becomes durable again with its last reference."""
        if memory is not None:
            memory.is_leaving = False
            return
        core = self._pool.open(name)
        if core is not None:
            MemoryReference(core, name, self._names).persist()

    def _prefix_of_parts(self, name: str) -> str | None:
        core = self._pool.open(name)
        if core is None or read_note(core.info()["note"])[1].get("type") != "linked_list":
            return None
        return shelved_linked_list(self._names, name, core).prefix

    @raises_shelf_errors
    def persist(self) -> None:
        """Make all stores to variables durable."""
        for value in self._names.variables().values():
            value._value_named_memory.persist()

    @raises_shelf_errors
    def inspect(self, verbose: bool = False) -> None:
        """Print the contents of the shelf."""
        for info in self._pool.live.infos():
            if info.name.startswith(HIDDEN) and not verbose:
                continue
            held = self._names.get(info.name)
            where = held._value_named_memory.addr() if isinstance(held, ShelvedCommon) else None
            kind = "tensor" if info.is_tensor else "value"
            print(f"var {info.name}: {kind} {info.dtype}{list(info.shape)} bytes={info.nbytes} version={info.version}")
            if verbose:
                print(f"var {info.name}: written={info.written} reserved={info.reserved_bytes} note={info.note!r}")
            if where is not None:
                print(f"var {info.name} has value memory {where}")

    # Transactions

    @raises_shelf_errors
    def tx_begin_all(self) -> None:
        """Begin a transaction of all variables; it ends with `tx_end`.

        No thread may store to arrays or tensors of the shelf during this call, `tx_end` or `tx_abort`: such a store may
        be lost without an error.
        """
        self._begin(None)

    @raises_shelf_errors
    def tx_begin(self, variables: Iterable[str | ShelvedCommon] | str | ShelvedCommon | None = None) -> None:
        """Begin a transaction of some variables or saved structures, given by names or as objects. Default: all.

        It covers every store: items, slices, in-place operators, ``out=``, ``sort``, ``copy_``, files read into them. A
        crash before `tx_end` undoes it. But no thread may store to its arrays or tensors during this call, `tx_end` or
        `tx_abort`: such a store may be lost without an error. RuntimeError: there is no such variable, or a transaction
        is under way.

        Elements of a list, and variables made until `tx_end`, belong to it. All others are durable as usual, and no
        abort undoes them. Only lists and saved structures that it lacks refuse changes of several variables (`save`,
        ``del``, a list assigned to the name, texts, bytes, arrays, tensors and integers above 64 bits as elements).

        Begin and end map the pages of its variables anew, which can take a second for each GiB in use: leave out large
        ones that don't change. Lists of thousands of texts or arrays are faster in a transaction of all.
        """
        if variables is None:
            self._begin(None)
            return
        single = isinstance(variables, str | ShelvedCommon)
        chosen = [variables] if single else list(variables)  # type: ignore[arg-type]
        with self._names.lock:  # no list gets an element meanwhile
            members: dict[str, Any] = {}
            for one in chosen:
                members |= self._members_of(one)
            self._begin(members)

    def _members_of(self, one: Any) -> dict[str, Any]:
        value, parts = one, []
        if isinstance(one, str):
            value, parts = getattr(self, one), _saved.variables(self._names, one)
        memory = getattr(value, "_value_named_memory", None) if isinstance(value, ShelvedCommon) else None
        if memory is None and not parts:
            raise ShelfError(f"a transaction is of variables of the shelf: {one!r} is none")
        if isinstance(value, shelved_linked_list):
            parts += value.part_names()
        members = {name: self._pool.open(name) for name in parts}
        if memory is not None:
            members[memory.name] = memory.core
        return members

    def _begin(self, members: dict[str, Any] | None) -> None:
        names = self._names
        with names.lock:
            if names.transaction is not None:
                raise ShelfError("a transaction has been begun already: end it with tx_end()")
            cores = None if members is None else tuple(members.values())
            names.members = None if members is None else set(members)
            names.begun = self._pool.core.transaction(self._pool.shelf, cores, 0, 10_000, 1 << 40)

    @raises_shelf_errors
    def tx_end(self) -> None:
        """End the transaction; it is durable when this returns."""
        transaction = self._names.transaction
        if transaction is None:
            raise ShelfError("there is no transaction to end: begin one with tx_begin()")
        self._pool.growing(transaction.commit)

    def tx_abort(self) -> None:
        """End the transaction and undo it."""
        transaction = self._names.transaction
        if transaction is None:
            raise ShelfError("there is no transaction to undo: begin one with tx_begin()")
        try:
            transaction.abort()
        finally:
            self._names.forget()

    # Saving structures

    @raises_shelf_errors
    def save(self, data: Any, shelf_var_name: str, is_inplace: bool = True) -> None:
        """Save a structure under a name, replacing an earlier one, all or nothing.

        `data` is a ``state_dict``: lists, tuples, dicts and OrderedDicts of arrays, tensors, numbers, texts and so on.
        `is_inplace` is ignored.
        """
        _saved.save(self._names, data, shelf_var_name)

    @raises_shelf_errors
    def load(self, shelf_var_name: str) -> Any:
        """Return a saved structure with the saved types; arrays and tensors are copies. RuntimeError: there is none."""
        return _saved.load(self._names, shelf_var_name)


_RESERVED = frozenset(name for name in vars(shelf) if not name.startswith("_")) | {"_names", "_pool"}


def _name_of(value: Any) -> str:
    memory = getattr(value, "_value_named_memory", None) if isinstance(value, ShelvedCommon) else None
    if memory is None:
        raise ShelfError("erase takes a variable of the shelf, or its name")
    return str(memory.name)
