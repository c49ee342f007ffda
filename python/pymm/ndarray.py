# SPDX-License-Identifier: BSD-3-Clause
"""NumPy arrays on a shelf."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from operator import index
from typing import Any, Self

import lmcstore
import numpy as np
from lmcstore import _core
from lmcstore._arrays import numpy as _numpy
from lmcstore.live.kinds import numpy_kind

from ._memory import (
    MemoryReference,
    Names,
    Shadow,
    ShelfError,
    ShelvedCommon,
    make_note,
    read_note,
    shelf_errors,
)


def _bounds(array: Any) -> tuple[int, int]:
    low = high = array.__array_interface__["data"][0]
    if array.size == 0:
        return low, low
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low, high + array.itemsize


class shelved_ndarray(np.ndarray, ShelvedCommon):
    """An np.ndarray in the pool. Views of it are such arrays, too; copies and results are plain ones."""

    __array_priority__ = -100.0
    _persist_all: Callable[[int, int], None] | None = None  # of the variable, not of its views
    _is_variable = False

    def __lmcstore_plain__(self) -> Any:
        """Let `lmcstore.Shelf.snapshot` store it as a plain array."""
        return self.view(np.ndarray)

    def __array_finalize__(self, source: Any) -> None:
        if source is None:
            return
        memory = getattr(source, "_value_named_memory", None)
        if memory is not None and type(self.base) is not shelved_ndarray:  # the base of most views
            at = self.__array_interface__["data"][0]
            memory = memory if memory.has(at) else None  # a copy, such as x[[0, 2]], must not hold the variable
        self._value_named_memory = memory  # type: ignore[assignment]
        self.name = getattr(source, "name", None) if memory is not None else None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("shape", "dtype", "strides") and self._is_variable:
            if name == "dtype":
                wanted: Any = np.dtype(value)
            else:
                wanted = tuple(value) if isinstance(value, Iterable) else (value,)
            if wanted == getattr(self, name):
                return
            raise ShelfError(
                f"{self.name}: an array on a shelf keeps its {name}: assign to that of a view of it, or another array "
                "to its name"
            )
        super().__setattr__(name, value)

    def __array_wrap__(self, result: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if result is self:
            return result
        if result.ndim == 0 and (return_scalar or type(result) is not shelved_ndarray):
            return result[()]
        return result.view(np.ndarray)

    @property
    def addr(self) -> tuple[str, int]:
        """The address of the array, as hexadecimal text, and its bytes."""
        return hex(self.__array_interface__["data"][0]), self.nbytes

    def asndarray(self) -> Any:
        """Return a plain np.ndarray over the same memory."""
        return self.view(np.ndarray)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.ndim

    # Durable

    def persist(self) -> None:
        """Make stores to the array, or to a view's part, durable."""
        memory = self._value_named_memory
        if memory is not None:
            memory.persist_between(*_bounds(self))

    def persist_offset(self, item_offset: int, item_count: int) -> None:
        """Make some items durable, counted row by row; RuntimeError: they are not all in the array."""
        item, persist = self.itemsize, self._persist_all
        try:
            first, count = index(item_offset), index(item_count)
            if persist is None:
                first = self._place_of_items(first, count)
                persist = self._value_named_memory.core.persist
            persist(first * item, count * item)
        except (lmcstore.Error, ValueError, TypeError, AttributeError) as error:
            text = f"items {item_offset} to {item_offset + item_count} of {self.size} can't be made durable: {error}"
            raise ShelfError(text) from error

    def _place_of_items(self, first: int, count: int) -> int:
        if not (first >= 0 and count >= 0 and first + count <= self.size):
            raise ValueError("they are not in the array")
        if not self.flags.c_contiguous:
            raise ValueError("they don't lie side by side")
        return first + (_bounds(self)[0] - self._value_named_memory.address) // self.itemsize

    def fill(self, value: Any) -> None:
        """Fill it with a value, durably."""
        super().fill(value)
        self.persist()

    def byteswap(self, inplace: bool = False) -> Any:
        """Swap the bytes of each item, here and durably or in a copy."""
        if not inplace:
            return self.asndarray().byteswap()
        super().byteswap(True)
        self.persist()
        return self

    # Copies are plain

    def copy(self, order: Any = "C") -> Any:
        """Return a plain copy."""
        return self.asndarray().copy(order)

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        """Return a plain copy of another dtype."""
        return self.asndarray().astype(*args, **kwargs)

    def flatten(self, order: Any = "C") -> Any:
        """Return a plain copy of one dimension."""
        return self.asndarray().flatten(order)

    def __copy__(self) -> Any:
        return self.copy("A")

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy("A")

    def __reduce__(self) -> Any:
        return self.asndarray().__reduce__()


def _in_place(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        operation(self.asndarray(), other)
        self.persist()
        return self

    return method


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor")
for _name in (*_OPERATORS, "matmul"):
    setattr(shelved_ndarray, f"__i{_name}__", _in_place(getattr(operator, f"i{_name}")))


class ndarray(Shadow):
    """An array to be put on a shelf: all zeros.

    Parameters
    ----------
    shape : int or tuple or list of int
    dtype
        A dtype of NumPy: no objects, no dimensions of its own, no fields that overlap or are out of order.
    strides : tuple of int, optional
        Bytes from one item to the next in each dimension; positive. Default: by `order`.
    order : {"C", "F"}
    zero
        Ignored.
    """

    def __init__(
        self, shape: Any, dtype: Any = float, strides: Any = None, order: str = "C", zero: bool = False
    ) -> None:
        with shelf_errors():
            sizes = (shape,) if not isinstance(shape, tuple | list) else tuple(shape)
            self.shape = tuple(operator.index(size) for size in sizes)
            self.dtype = np.dtype(dtype)
            if any(size < 0 for size in self.shape):
                raise ValueError(f"a dimension can't be negative: {self.shape}")
            if order not in ("C", "F"):
                raise ValueError(f"order is 'C' or 'F', not {order!r}")
        self.order = order
        self.strides: tuple[int, ...] | None = self._unusual(strides)
        self.source: Any = None

    @classmethod
    def copy_of(cls, array: Any) -> Self:
        """Return a shadow that copies an array."""
        flags = array.flags
        self = cls(array.shape, array.dtype, order="F" if flags.f_contiguous and not flags.c_contiguous else "C")
        self.source = array
        return self

    def _unusual(self, strides: Any) -> tuple[int, ...] | None:
        if strides is None:
            return None
        with shelf_errors():
            wanted = tuple(operator.index(stride) for stride in strides)
            if len(wanted) != len(self.shape) or any(stride < 0 for stride in wanted):
                raise ValueError(f"strides {wanted} don't fit an array of shape {self.shape}: they are positive")
        for order in ("C", "F"):
            if wanted == self._usual(order):
                self.order = order
                return None
        return wanted

    def _usual(self, order: str) -> tuple[int, ...]:
        sizes = self.shape if order == "F" else self.shape[::-1]
        strides = [self.dtype.itemsize * math.prod(sizes[:index]) for index in range(len(sizes))]
        return tuple(strides if order == "F" else strides[::-1])

    def build(self, names: Names, name: str) -> shelved_ndarray:
        """Make the array, unnamed yet."""
        if self.source is not None:
            _numpy.refuse_masked(self.source, name)
        kind = numpy_kind(self.dtype, name)
        extra: dict[str, Any] = {}
        shape = self.shape
        if self.strides is not None:
            extra = {"shape": list(self.shape), "strides": list(self.strides)}
            reach = sum(stride * (size - 1) for size, stride in zip(self.shape, self.strides, strict=True))
            item = self.dtype.itemsize
            shape = (-(-(reach + item) // item) if math.prod(self.shape) else 0,)
        elif self.order == "F" and len(shape) > 1:
            extra, shape = {"order": "F"}, shape[::-1]
        core = names.pool.create((*shape, *kind.tail), kind.dtype, make_note(kind.note, **extra))
        array = open_array(names, name, core)
        if self.source is not None:
            array.view(np.ndarray)[...] = self.source
        return array

    def __repr__(self) -> str:
        return f"<pymm shadow of an array, {self.dtype}, {self.shape}>"


def _layout(extra: dict[str, Any], item_bytes: int, nbytes: int, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides of an untrusted note, if the whole array fits in the variable's bytes.

    NumPy's own check of strides overflows 64 bits.
    """
    shape, strides = extra.get("shape"), extra.get("strides")
    for sizes in (shape, strides):
        if type(sizes) is not list or not all(type(size) is int and 0 <= size < 2**63 for size in sizes):
            raise lmcstore.DamagedError(f"{name}: the note on its layout is damaged: no list of sizes: {sizes!r:.80}")
    assert shape is not None and strides is not None
    if len(shape) != len(strides):
        raise lmcstore.DamagedError(
            f"{name}: the note on its layout is damaged: {len(shape)} dimensions, {len(strides)} strides"
        )
    if 0 not in shape:
        reach = sum(stride * (size - 1) for size, stride in zip(shape, strides, strict=True)) + item_bytes
        if reach > nbytes:
            raise lmcstore.DamagedError(
                f"{name}: the note on its layout is damaged: an array of shape {tuple(shape)!r:.80} and strides "
                f"{tuple(strides)!r:.80} reaches over {reach} bytes, and the variable has {nbytes}"
            )
    return tuple(shape), tuple(strides)


def open_array(names: Names | None, name: str, core: _core.Live) -> shelved_ndarray:
    """Return the array over a variable; lmcstore.DamagedError: its note has no layout, or one that exceeds it."""
    extra = read_note(core.info()["note"])[1]
    plain = lmcstore.LiveTensor(core).array
    order: Any = "C"
    strides, shape = None, plain.shape
    if extra.get("order") == "F":
        order, shape = "F", shape[::-1]
    elif "strides" in extra:
        shape, strides = _layout(extra, plain.dtype.itemsize, plain.nbytes, name)
    try:
        self: Any = np.ndarray.__new__(shelved_ndarray, shape, plain.dtype, plain.base, 0, strides, order)
    except (ValueError, OverflowError) as error:  # more dimensions or items than NumPy has
        raise lmcstore.DamagedError(f"{name}: the note on its layout is damaged: {error}") from None
    self._value_named_memory = MemoryReference(core, name, names)
    self.name = name
    self._is_variable = True
    if strides is None:
        self._persist_all = core.persist
    return self  # type: ignore[no-any-return]
