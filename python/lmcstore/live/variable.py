# SPDX-License-Identifier: BSD-3-Clause
"""`LiveVariable`: a held live variable, with the locks and element functions of tensors and values."""

from __future__ import annotations

import operator
import struct
from types import TracebackType
from typing import Any, NamedTuple

from .. import _core
from .._arrays.dtypes import BY_NUMBER, code_of, name_of, size_of
from .._state.live_table import own_note
from ..errors import InvalidError, UnsupportedError
from .kinds import wait_ms


class LiveInfo(NamedTuple):
    """Properties of a live variable."""

    name: str
    """Empty: it was erased or replaced, and ends with its last holder."""
    is_tensor: bool
    """Whether it has an address."""
    dtype: str
    """The store's name of it, such as ``"f32"``."""
    shape: tuple[int, ...]
    nbytes: int
    """Of its data."""
    reserved_bytes: int
    """Size to which it can grow in place."""
    created: float
    """Seconds since 1970 (UTC)."""
    written: float
    """Time of the last write by a function, or persist; 0.0: none."""
    version: int
    """Count of these writes, from 1 on."""
    handles: int
    """Holders in this process."""
    numa_node: int
    """Of the pool; -1: unknown, or the only one."""
    note: bytes
    """Stored with it; determines its Python type."""
    is_damaged: bool = False
    """Whether it can't be opened; then `version`, `written` and a value's size are unknown."""


def info_of(raw: dict[str, Any]) -> LiveInfo:
    """Make a `LiveInfo` of the C module's dict."""
    return LiveInfo(
        raw["name"],
        raw["form"] == _core.LIVE_TENSOR,
        name_of(raw["dtype"]),
        raw["shape"],
        raw["bytes"],
        raw["reserved_bytes"],
        raw["created_ns"] / 1e9,
        raw["written_ns"] / 1e9,
        raw["version"],
        raw["handles"],
        raw["numa_node"],
        raw["note"],
        raw["is_damaged"],
    )


class LiveVariable:
    """A held live variable: it can't be erased before its last holder is gone, views of it included.

    It belongs to the bytes, not to the name: after a swap or a rename it holds the same bytes.
    """

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            f"live variable {self.name!r} can't be copied or pickled: it is memory of the pool; copy its value, or "
            "pickle the shelf"
        )

    def __init__(self, core: _core.Live) -> None:
        self._core = core
        raw = core.info()
        self._dtype: int = raw["dtype"]
        self._item = size_of(raw["dtype"])
        self._note = own_note(raw["note"])
        self._name: str = raw["name"]
        self._element_bytes: int = raw["shape"][-1] if ":" in self._note and raw["shape"] else self._item
        code = code_of(self._dtype)
        self._struct = struct.Struct("<" + code) if code and ":" not in self._note else None

    def info(self) -> LiveInfo:
        """Report its properties now."""
        return info_of(self._core.info())

    @property
    def name(self) -> str:
        """Its name; empty once erased or replaced."""
        name: str = self._core.info()["name"]
        return name

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        size: int = self._core.info()["bytes"]
        return size

    @property
    def version(self) -> int:
        """Count of its writes and persists, from 1 on."""
        version: int = self._core.info()["version"]
        return version

    # Locks

    def lock(self, *, shared: bool = False, timeout: float | None = None) -> _Unlock:
        """Take the lock of the variable for this object. Only other calls of `lock` respect it.

        Returns a context manager that releases the lock at the end of a ``with`` block; or call `unlock`. `shared`
        allows other shared locks. `timeout`: seconds to wait; 0 tries, None waits for ever.

        InUseError: another object has it. InvalidError: this object has it already.
        """
        self._core.lock(not shared, wait_ms(timeout))
        return _Unlock(self)

    def unlock(self) -> None:
        """Release the lock."""
        self._core.unlock()

    # Elements

    def _number(self) -> struct.Struct:
        if self._struct is None:
            raise UnsupportedError(f"live variable {self._name!r}: elements of its dtype can't be written one by one")
        return self._struct

    def _offset(self, index: Any) -> int:
        """Return the place of an element in bytes."""
        shape = self._core.info()["shape"]
        indices = index if isinstance(index, tuple) else (index,)
        if indices == () and shape == ():
            return 0
        if len(indices) != len(shape):
            raise InvalidError(f"live variable {self._name!r} has {len(shape)} dimensions: give {len(shape)} indexes")
        place = 0
        for one, size in zip(indices, shape, strict=True):
            number = operator.index(one)
            if not -size <= number < size:
                raise InvalidError(f"live variable {self._name!r}: index {number} is outside of its {size} rows")
            place = place * size + number % size
        return place * self._item

    def _pack(self, value: Any) -> bytes:
        try:
            return self._number().pack(value)
        except (struct.error, OverflowError) as error:
            text = f"live variable {self._name!r} of {name_of(self._dtype)} can't hold {value!r}: {error}"
            raise InvalidError(text) from None

    def _add(self, offset: int, value: int) -> int:
        if self._struct is None or not BY_NUMBER[self._dtype].is_integer:
            raise UnsupportedError(f"live variable {self._name!r}: only integers can be added to atomically")
        operand = operator.index(value) % (1 << 8 * self._item)
        before = self._core.add(offset, operand.to_bytes(self._item, "little"))
        number: int = self._struct.unpack(before)[0]
        return number

    def _compare_and_swap(self, offset: int, expected: Any, desired: Any) -> bool:
        return self._core.compare_and_swap(offset, self._pack(expected), self._pack(desired))[0]


class _Unlock:
    def __init__(self, variable: LiveVariable) -> None:
        self._variable = variable

    def __enter__(self) -> LiveVariable:
        return self._variable

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._variable.unlock()
