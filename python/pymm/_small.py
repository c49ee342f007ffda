# SPDX-License-Identifier: BSD-3-Clause
"""Numbers, texts and bytes on a shelf: immutable objects of Python's own types that know their variable.

``s.n += 1`` makes a new object, which replaces the old one on the shelf after its value was written, atomically and
durably. The replaced object is a plain value, without effect on the shelf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import lmcstore
from lmcstore import _core
from lmcstore._state.scalars import Reader, pack

from ._memory import PYTHON, RAW, Makers, MemoryReference, Names, Shadow, ShelfError, ShelvedCommon, make_note


class SmallShadow(Shadow):
    shelved: type[Small]
    value: Any
    extra: dict[str, Any]

    def build(self, names: Names, name: str) -> Small:
        return self.shelved.made(names, name, self.value, self.extra)

    def __repr__(self) -> str:
        return f"<pymm shadow of {self.value!r}>"


class Small(ShelvedCommon):
    plain: Any

    @classmethod
    def over(cls, value: Any, memory: MemoryReference) -> Self:
        self: Any = cls.plain.__new__(cls, value)
        self._value_named_memory = memory
        return self  # type: ignore[no-any-return]

    @classmethod
    def made(cls, names: Names, name: str, value: Any, extra: dict[str, Any]) -> Self:
        """Make a variable, unnamed yet."""
        data, as_tensor = cls._encoded(value)
        if as_tensor:
            core = names.pool.create((len(data),), _core.DTYPES["u8"], make_note("numpy", **extra))
            if data:
                memoryview(core.buffer())[:] = data
        else:
            core = names.pool.create_value(data, make_note(PYTHON, **extra))
        return cls.over(value, MemoryReference(core, name, names, extra))

    @classmethod
    def existing(cls, names: Names, name: str, core: _core.Live, extra: dict[str, Any]) -> Self:
        value = cls._decoded(core.get(), core.address != 0, extra)
        if type(value) is not cls.plain:  # bytes(10**12) would be that many
            raise lmcstore.DamagedError(f"{name}: its note says {cls.plain.__name__}, and its value is something else")
        return cls.over(value, MemoryReference(core, name, names, extra))

    @classmethod
    def _encoded(cls, value: Any) -> tuple[bytes, bool]:
        """Return the bytes of a value, and whether they need a tensor."""
        return pack(value), False

    @classmethod
    def _decoded(cls, data: bytes, is_tensor: bool, extra: dict[str, Any]) -> Any:
        return Reader(data).value()

    def _changed(self, shadow: Any) -> Self | None:
        """Set another value in place; None: it is of another kind, or does not fit."""
        if type(self) is not getattr(shadow, "shelved", None) or self._value_named_memory.extra != shadow.extra:
            return None
        return self._stored(shadow.value)

    def _stored(self, value: Any) -> Self | None:
        memory = self._value_named_memory
        data, needs_tensor = self._encoded(value)
        if needs_tensor or memory.address or RAW in memory.extra:
            return None
        try:
            memory.set(data)
        except lmcstore.FullError:
            return None
        except lmcstore.Error as error:
            raise ShelfError(str(error)) from error
        return self.over(value, memory)

    def persist(self) -> None:
        """Do nothing: a value is durable once written."""

    def __reduce__(self) -> Any:
        return self.plain, (self.plain(self),)

    def __copy__(self) -> Any:
        return self.plain(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.plain(self)


def in_place(operation: Callable[[Any, Any], Any], plain: Any) -> Callable[[Small, Any], Any]:
    """Make an in-place operator whose result, if of the same type, is the variable's new value."""

    def method(self: Small, other: Any) -> Any:
        result = operation(self, other)
        memory = self._value_named_memory
        names = memory.owner() if memory.owner is not None else None
        if type(result) is not plain or names is None:
            return result
        with names.lock:
            if names.get(memory.name) is not self:
                return result
            try:
                changed = self._stored(result)
                if changed is not None:
                    names[memory.name] = changed
                    return changed
            except BaseException:
                names.pop(memory.name, None)  # an interrupt may arrive after the change
                raise
        return Makers.assigned(names, memory.name, result)

    return method
