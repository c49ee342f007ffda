# SPDX-License-Identifier: BSD-3-Clause
"""Live variables of a shelf: tensors in the pool that are worked on in place, and small values that simply persist.

`Shelf.live` has them by name. A tensor is mapped: a NumPy array or torch tensor over it *is* the pool's bytes, may be
larger than memory, and is written to like any other. What was stored is durable after `LiveTensor.persist`, or at the
end of a transaction, all or nothing; values and all functions here are atomic and durable when they return.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from . import _core, _numpy
from ._arguments import address, int64, meta_json, metric_lists, milliseconds, parse_size, tag_names, within
from ._scalars import Reader, Unpackable, loaded, pack, pack_sequence
from ._torch import DTYPE_NAMES, Torch
from .errors import DamagedError, ExistsError, InvalidError, NotFoundError, UnsupportedError
from .lazy import LazyTensor

if TYPE_CHECKING:
    from .shelf import Shelf
    from .snapshot import Snapshot

log = logging.getLogger("lmcstore")

_FOREVER = 0xFFFFFFFF
_MAX_BYTES = 2**63 - 1
_NUMPY, _TORCH, _PYTHON = "numpy", "torch", "python"
_U8 = _core.DTYPES["u8"]
_CODES = {
    "bool": "?",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "f16": "e",
    "f32": "f",
    "f64": "d",
}
"""How Python's struct writes a number of a dtype."""
_AMBIGUOUS = ("i8", "u8")
_INTEGERS = {_core.DTYPES[name] for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")}


class LiveInfo(NamedTuple):
    """What is known of a live variable."""

    name: str
    """Empty: it was erased, or replaced by another one, and is gone with its last holder."""
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
    """When a function last wrote to it or persisted it; 0.0: not yet."""
    version: int
    """How often that was, from 1 on."""
    handles: int
    """How many holders it has in this process."""
    numa_node: int
    """Of the pool; -1: not known, or there is one only."""
    note: bytes
    """Kept with it: what makes its Python type."""
    is_damaged: bool = False
    """Whether it can't be opened: then `version` and `written`, and a value's size, are not known."""


def _info(raw: dict[str, Any]) -> LiveInfo:
    return LiveInfo(
        raw["name"],
        raw["form"] == _core.LIVE_TENSOR,
        _dtype_text(raw["dtype"]),
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


def _dtype_text(number: int) -> str:
    known = _core.dtype_info(number)
    return known[0] if known is not None else f"dtype {number}"


def _item_bytes(number: int) -> int:
    known = _core.dtype_info(number)
    return known[1] if known is not None else 1


# ---- What a dtype may be, and what it becomes ------------------------------------------------------------------------


class _Kind(NamedTuple):
    """How elements are stored, and what shows them."""

    dtype: int  # the store's
    tail: tuple[int, ...]  # dimensions behind the shape: the bytes of an element that the store has no dtype for
    note: str


def _torch() -> Torch:
    import torch

    return Torch(torch)


def _numpy_kind(dtype: Any, what: str) -> _Kind:
    name = _numpy.dtype_name(dtype) if dtype.isnative or dtype.itemsize == 1 else None
    if name is not None:
        return _Kind(_core.DTYPES[name], (), _NUMPY)
    if dtype.hasobject or dtype.itemsize == 0:
        raise UnsupportedError(f"{what}: a NumPy array of dtype {dtype} can't be stored: it holds no numbers")
    from numpy.lib.format import dtype_to_descr

    ml_dtypes = loaded("ml_dtypes")
    if ml_dtypes is not None and getattr(ml_dtypes, dtype.name, None) is dtype.type:
        descr: Any = f"ml_dtypes.{dtype.name}"
    else:
        descr = dtype_to_descr(dtype)
    return _Kind(_U8, (dtype.itemsize,), f"{_numpy.DESCRIBED}{json.dumps(descr, separators=(',', ':'))}")


def _kind(dtype: Any, what: str) -> _Kind:
    """Understand a dtype: torch's, or anything that NumPy takes for one, or the store's name of it."""
    if isinstance(dtype, str) and dtype in _AMBIGUOUS:
        bits, kind = 8, "int" if dtype == "i8" else "uint"
        raise InvalidError(f"{what}: {dtype!r} is {kind}{bits} here and {kind}{8 * bits} in NumPy: write out which")
    if isinstance(dtype, str) and (dtype in DTYPE_NAMES or dtype in _core.DTYPES):
        return _Kind(_core.DTYPES[DTYPE_NAMES.get(dtype, dtype)], (), "")
    torch = loaded("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        number = _torch().number_of.get(dtype)
        if number is None:
            raise UnsupportedError(f"{what}: a tensor of dtype {dtype} can't be stored")
        return _Kind(number, (), _TORCH)
    import numpy

    try:
        return _numpy_kind(numpy.dtype(dtype), what)
    except TypeError as error:
        if isinstance(error, UnsupportedError):
            raise
        raise UnsupportedError(f"{what}: {dtype!r} is no dtype") from None


def _note_bytes(note: str, what: str) -> bytes:
    encoded = note.encode()
    if len(encoded) > _core.LIVE_MAX_NOTE:
        raise UnsupportedError(f"{what}: the description of its dtype takes {len(encoded)} bytes, and 255 is the most")
    return encoded


def _numpy_dtype(number: int, note: str, what: str) -> Any:
    """Give the dtype of an array over a tensor."""
    if _numpy.is_described(note):
        return _numpy.described_dtype(note, what)
    return _numpy.dtype_of(number, what)


def _shape(shape: Any, what: str) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    return tuple(within(size, 0, _MAX_BYTES, f"{what}: a dimension") for size in sizes)


def _wait_ms(timeout: float | None) -> int:
    return _FOREVER if timeout is None else milliseconds(timeout, _FOREVER - 1, "timeout")


# ---- Variables that are open -----------------------------------------------------------------------------------------


def _own_note(note: bytes) -> str:
    """Read a note, without what pymm adds behind it."""
    return note.decode("utf-8", "replace").partition("\n")[0]


class LiveVariable:
    """A live variable that is held: it can't be erased before its last holder is gone, views of it included.

    It goes with the bytes and not with the name: after a swap or a rename it holds the same ones.
    """

    def __init__(self, core: _core.Live) -> None:
        self._core = core
        raw = core.info()
        self._dtype: int = raw["dtype"]
        self._item = _item_bytes(raw["dtype"])
        self._note = _own_note(raw["note"])
        self._name: str = raw["name"]
        self._element_bytes: int = raw["shape"][-1] if ":" in self._note and raw["shape"] else self._item
        code = _CODES.get(_dtype_text(self._dtype))
        self._struct = struct.Struct("<" + code) if code is not None and ":" not in self._note else None

    def info(self) -> LiveInfo:
        """Tell what it is now."""
        return _info(self._core.info())

    @property
    def name(self) -> str:
        """Its name; empty when it was erased or replaced."""
        name: str = self._core.info()["name"]
        return name

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        size: int = self._core.info()["bytes"]
        return size

    @property
    def version(self) -> int:
        """How often it was written to or persisted, from 1 on."""
        version: int = self._core.info()["version"]
        return version

    # Locks

    def lock(self, *, shared: bool = False, timeout: float | None = None) -> _Unlock:
        """Take the lock of the variable, for this object: nothing but other calls of `lock` heeds it.

        Parameters
        ----------
        shared : bool
            Others may have it shared, too.
        timeout : float, optional
            Seconds to wait; 0 tries, None waits for ever.

        Returns
        -------
        context manager
            Which lets go of it at the end of a ``with`` block; or call `unlock`.

        Raises
        ------
        InUseError
            Others have it.
        InvalidError
            This object has it already.
        """
        self._core.lock(not shared, _wait_ms(timeout))
        return _Unlock(self)

    def unlock(self) -> None:
        """Let go of the lock."""
        self._core.unlock()

    # Elements

    def _number(self) -> struct.Struct:
        if self._struct is None:
            raise UnsupportedError(f"live variable {self._name!r}: elements of its dtype can't be written one by one")
        return self._struct

    def _offset(self, index: Any) -> int:
        """Give the place of an element in bytes."""
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
            text = f"live variable {self._name!r} of {_dtype_text(self._dtype)} can't hold {value!r}: {error}"
            raise InvalidError(text) from None

    def _add(self, offset: int, value: int) -> int:
        if self._dtype not in _INTEGERS or self._struct is None:
            raise UnsupportedError(f"live variable {self._name!r}: only integers can be added to atomically")
        operand = operator.index(value) % (1 << 8 * self._item)
        before = self._core.add(offset, operand.to_bytes(self._item, "little"))
        number: int = self._struct.unpack(before)[0]
        return number

    def _compare_and_swap(self, offset: int, expected: Any, desired: Any) -> bool:
        return self._core.compare_and_swap(offset, self._pack(expected), self._pack(desired))[0]


class _Unlock:
    """Lets go of a lock at the end of a ``with`` block."""

    def __init__(self, variable: LiveVariable) -> None:
        self._variable = variable

    def __enter__(self) -> LiveVariable:
        return self._variable

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._variable.unlock()


class LiveTensor(LiveVariable):
    """A live tensor. `array` and `tensor` show its bytes in place, and stay valid as long as anyone holds them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape now."""
        shape: tuple[int, ...] = self._core.info()["shape"]
        return shape[:-1] if ":" in self._note else shape

    @property
    def dtype(self) -> str:
        """The store's name of its dtype, such as ``"f32"``."""
        return _dtype_text(self._dtype)

    @property
    def array(self) -> Any:
        """A NumPy array over its bytes: writable where the store is."""
        import numpy

        buffer, shape = self._buffer()
        dtype = _numpy_dtype(self._dtype, self._note, self._name)
        if ":" in self._note:
            if self._dtype != _U8 or shape[-1:] != (dtype.itemsize,):
                raise DamagedError(f"live tensor {self._name!r}: its bytes are no array of {dtype}")
            shape = shape[:-1]
        return numpy.ndarray(shape, dtype, memoryview(buffer))

    @property
    def tensor(self) -> Any:
        """A torch tensor over its bytes, on the CPU; a leaf that doesn't require gradients.

        In a store that is open for reading it must not be written to: torch has no tensors that can't be, and the
        process would end by SIGSEGV. Its ``clone()`` can be changed.

        torch's ``share_memory_()`` moves a tensor to memory of its own, and so does what sends it to another process
        (`torch.multiprocessing`, a DataLoader's workers unless they are forked): what is written to it then is not in
        the pool any more. Send a ``clone()``, or open the pool there.
        """
        if ":" in self._note:
            raise UnsupportedError(f"live variable {self._name!r} has a NumPy dtype that torch has not: use array")
        buffer, shape = self._buffer()
        return _torch().tensor(buffer, self._dtype, shape)

    def _buffer(self) -> tuple[_core.Buffer, tuple[int, ...]]:
        """Give its bytes, and the shape that they have, whoever resizes it meanwhile."""
        while True:
            buffer, raw = self._core.buffer(), self._core.info()
            if len(buffer) == raw["bytes"]:
                return buffer, raw["shape"]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.array
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"live tensor {self._name!r} of {array.dtype} is no array of {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise TypeError("a tensor without dimensions has no len()")
        return shape[0]

    def persist(self, start: int = 0, stop: int | None = None) -> None:
        """Make what was stored to it durable.

        Parameters
        ----------
        start, stop : int, optional
            Elements from and to, counted row by row through all dimensions. Default: all.

        Raises
        ------
        InvalidError
            The range is not in the tensor.
        """
        item = self._element_bytes
        start = operator.index(start)
        stop = self.nbytes // item if stop is None else operator.index(stop)
        if not 0 <= start <= stop:
            raise InvalidError(f"live tensor {self._name!r}: there is no range {start}:{stop}")
        self._core.persist(start * item, (stop - start) * item)

    def resize(self, shape: Any) -> None:
        """Give it another shape; what it grows by is zero, what is cut off is lost, nothing is copied.

        Views that were there before keep their shape, and show the same bytes. While there are any, or other holders,
        it can't be made smaller.

        Parameters
        ----------
        shape : int or tuple of int
            The new one.

        Raises
        ------
        InUseError
            It would get smaller, and someone sees what would be cut off.
        FullError
            No room.
        UnsupportedError
            It has grown too often, where other things lie behind it: it can lie in 16 pieces. Assign a larger one.
        """
        sizes = _shape(shape, f"live tensor {self._name!r}")
        wanted = (*sizes, self._core.info()["shape"][-1]) if ":" in self._note else sizes
        self._core.resize(wanted)

    def write(self, start: int, data: Any) -> None:
        """Write elements: atomically and durably, 64 KiB at most.

        Parameters
        ----------
        start : int
            The first element, counted row by row.
        data : bytes-like or array
            The elements, C-contiguous: an array of the tensor's dtype, or just bytes.

        Raises
        ------
        InvalidError
            It is an array of another dtype.
        """
        start = within(start, 0, _MAX_BYTES, "start")
        self._core.write(start * self._element_bytes, self._bytes_of(data))

    def _bytes_of(self, data: Any) -> memoryview:
        numpy: Any = loaded("numpy")
        if numpy is None or not isinstance(data, numpy.ndarray):
            view = memoryview(data)
            if view.format in ("B", "b", "c"):
                return view.cast("B")
            import numpy

            data = numpy.asarray(view)
        dtype = _numpy_dtype(self._dtype, self._note, self._name)
        if data.dtype != dtype and data.dtype != numpy.uint8:
            raise InvalidError(f"live tensor {self._name!r} has elements of {dtype}, not of {data.dtype}")
        if not data.flags.c_contiguous:
            raise InvalidError(f"live tensor {self._name!r}: what is written must be C-contiguous")
        return memoryview(data.reshape(-1).view(numpy.uint8))

    def add(self, index: Any, value: int) -> int:
        """Add to an integer element: atomic among threads that use these functions, wrapping around, and durable.

        Returns
        -------
        int
            What it was before.
        """
        return self._add(self._offset(index), value)

    def compare_and_swap(self, index: Any, expected: Any, desired: Any) -> bool:
        """Write an element if it is what is expected: atomic as `add`.

        Returns
        -------
        bool
            Whether it was.
        """
        return self._compare_and_swap(self._offset(index), expected, desired)

    def __repr__(self) -> str:
        return f"<lmcstore.LiveTensor {self.name!r}, {self.dtype}, {self.shape}>"


class LiveValue(LiveVariable):
    """A live value: a number, a text, any small thing that a state can have as a leaf."""

    def get(self) -> Any:
        """Read it whole, whoever writes to it."""
        return _decode_value(self._core.get(), self._dtype, self._core.info()["shape"], self._note, self._name)

    def set(self, value: Any) -> None:
        """Write another one: atomic and durable, of the same dtype where it was made with one."""
        if self._note == _PYTHON:
            self._core.set(_packed(value, self._name))
        elif self._core.info()["shape"] == ():
            self._core.set(self._pack(value))
        else:
            self._core.set(value)

    def add(self, value: int) -> int:
        """Add to an integer that was made by `Live.value`: atomic, wrapping around, durable.

        Returns
        -------
        int
            What it was before.
        """
        return self._add(0, value)

    def compare_and_swap(self, expected: Any, desired: Any) -> bool:
        """Write it if it is what is expected; whether it was. For those made by `Live.value`."""
        return self._compare_and_swap(0, expected, desired)

    def __repr__(self) -> str:
        return f"<lmcstore.LiveValue {self.name!r}, {self.get()!r:.80}>"


def _packed(value: Any, name: str) -> bytes:
    try:
        packed = pack_sequence(value) if type(value) in (list, tuple) else pack(value)
    except Unpackable:
        packed = None
    if packed is None:
        kind = type(value).__qualname__
        raise UnsupportedError(f"{name}: a {kind} can't be a live variable; tensors, arrays, numbers and texts can")
    if len(packed) > _core.LIVE_MAX_VALUE:
        raise UnsupportedError(f"{name}: a value of {len(packed)} bytes is too long; 64 KiB is the most: use a tensor")
    return packed


def _decode_value(data: bytes, dtype: int, shape: tuple[int, ...], note: str, name: str) -> Any:
    if note == _PYTHON:
        reader = Reader(data)
        value = reader.value(1)  # no value of a live variable lies elsewhere
        if not reader.at_end:
            raise DamagedError(f"live value {name!r} is damaged: more follows it")
        return value
    code = _CODES.get(_dtype_text(dtype))
    if shape == () and code is not None:
        return struct.unpack("<" + code, data)[0]
    return data


# ---- Snapshots of them ----------------------------------------------------------------------------------------------

_TABLE = struct.Struct("<IIQ")  # as store/media/layout.h has it: magic, version, count
_ENTRY = struct.Struct("<QBBBxHH")  # reserve_bytes, form, dtype, ndim, note_bytes, name_bytes; shape, note, name
_TABLE_MAGIC, _TABLE_VERSION = 0x4C434D4C, 1


class StoredVariable(NamedTuple):
    """What a snapshot says of one of the live variables that it is of."""

    name: str
    is_tensor: bool
    dtype: int
    shape: tuple[int, ...]
    note: str

    @property
    def is_torch(self) -> bool:
        """Whether it is read as a torch tensor: as `Live` gives it, or because NumPy is not there or has no dtype."""
        if self.note == _TORCH:
            return True
        return not _numpy.is_described(self.note) and not _numpy.can_read(self.dtype)

    @property
    def special(self) -> str | None:
        """What `_numpy.array` has to know for its dtype."""
        return self.note if _numpy.is_described(self.note) else _numpy.special_of(self.dtype)


def read_table(table: bytes) -> list[StoredVariable]:
    """Read what a snapshot says of its live variables, which may come from a stranger.

    Raises
    ------
    DamagedError
        It is not what the store writes.
    """
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
            note, name = _own_note(table[note_at:name_at]), table[name_at:at].decode()
            found.append(StoredVariable(name, form == _core.LIVE_TENSOR, dtype, shape, note))
        if at != len(table):
            raise ValueError("more follows it")
    except (struct.error, ValueError) as error:
        raise DamagedError(f"what the snapshot says of its live variables is damaged: {error}") from None
    return found


def stored_value(variable: StoredVariable, data: bytes) -> Any:
    """Read a value of a snapshot; DamagedError: it is none."""
    try:
        return _decode_value(data, variable.dtype, variable.shape, variable.note, variable.name)
    except struct.error as error:
        raise DamagedError(f"live value {variable.name!r} is damaged: {error}") from None


# ---- All of a shelf --------------------------------------------------------------------------------------------------


class Live(MutableMapping[str, Any]):
    """The live variables of a shelf by name: `Shelf.live`.

    ``live["w"]`` is a NumPy array or torch tensor over the pool's bytes, or a value. ``live["w"] = array`` makes or
    replaces the variable: all of it or nothing, and who holds the old one keeps it. ``live["w"][...] = array`` writes
    in place, and so does ``live["w"] += 1``, which then makes it durable. A number in place of one that was made by
    `value` becomes that one's number, of its dtype, if it is of its kind (int, float, bool) and in its range.

    Examples
    --------
    >>> live = shelf.live
    >>> live["w"] = numpy.zeros((2, 3), "f4")
    >>> w = live["w"]
    >>> w[0] = 1.5                                  # in the pool
    >>> live.persist("w")                           # and durable
    >>> live["epoch"] = 7                           # durable at once
    >>> live["epoch"]
    7
    >>> with shelf.transaction():
    ...     w += 1
    ...     live["epoch"] = 8
    >>> number = live.snapshot(step=8).number
    >>> w[...] = 0
    >>> live.checkout(number)
    >>> float(w[0, 0]), sorted(live)
    (2.5, ['epoch', 'w'])
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    @property
    def _pool(self) -> _core.Pool:
        return self._shelf._store._pool

    # Making

    def tensor(self, name: str, shape: Any = None, dtype: Any = None, *, reserve: int | str = 0) -> LiveTensor:
        """Open a tensor, or make it, all zeros, when a shape is given and there is none.

        Parameters
        ----------
        name : str
            Its name.
        shape : int or tuple of int, optional
            The shape that it has, or gets.
        dtype : str, torch.dtype or NumPy dtype
            ``"float32"``, ``"bfloat16"``, or a dtype of either package, which then also is what ``live[name]``
            gives. Default: NumPy's float64.
        reserve : int or str
            Bytes for which addresses are kept free, so that it can grow to this size where it is: "10GiB". Takes no
            file space. Default: twice its size.

        Returns
        -------
        LiveTensor

        Raises
        ------
        NotFoundError
            There is none, and no shape was given.
        ExistsError
            There is one of another shape or dtype.
        FullError
            No room.
        """
        if shape is None:
            return self._open_tensor(name)
        try:
            found = self._open_tensor(name)
        except NotFoundError:
            return self.create(name, shape, dtype, reserve=reserve)
        kind = _kind(float if dtype is None else dtype, name)
        wanted = _shape(shape, name)
        if found._dtype != kind.dtype or found.shape != wanted or found._core.info()["shape"] != (*wanted, *kind.tail):
            raise ExistsError(f"live tensor {name!r} is there already, as {found.dtype} of shape {found.shape}")
        return found

    def create(self, name: str, shape: Any, dtype: Any = None, *, reserve: int | str = 0) -> LiveTensor:
        """Make a tensor, all zeros: as `tensor`, but ExistsError when there is one."""
        self._shelf._store._check_writable()
        kind = _kind(float if dtype is None else dtype, name)
        return LiveTensor(self._create(name, _shape(shape, name), kind, parse_size(reserve), 0))

    def value(self, name: str, dtype: Any = "int64", initial: Any = 0) -> LiveValue:
        """Open a value of one number, or make it: one that can be added to atomically.

        Parameters
        ----------
        name : str
            Its name.
        dtype : str, torch.dtype or NumPy dtype
            ``"int64"``, ``"uint8"``, ``"float64"`` ...
        initial : number
            What it is at first.
        """
        number = _kind(dtype, name).dtype
        stored = _dtype_text(number)
        if stored not in _CODES:
            raise UnsupportedError(f"{name}: a value of one number has a dtype such as 'int64', not {dtype!r}")
        try:
            found = self.open(name)
        except NotFoundError:
            self._shelf._store._check_writable()
            try:
                first = struct.pack("<" + _CODES[stored], initial)
            except (struct.error, OverflowError) as error:
                raise InvalidError(f"{name}: {dtype} can't hold {initial!r}: {error}") from None
            core = self._pool.live_create(
                self._shelf.name, name, number, (), _core.LIVE_VALUE, _core.LIVE_UNNAMED, 0, b""
            )
            core.set(first)
            core.replace(name)
            return LiveValue(core)
        if not isinstance(found, LiveValue) or found._dtype != number or found.info().shape != ():
            raise InvalidError(f"live variable {name!r} is there already, and is no value of one {dtype}")
        return found

    def _create(self, name: str, shape: tuple[int, ...], kind: _Kind, reserve: int, flags: int) -> _core.Live:
        full = (*shape, *kind.tail)
        if len(full) > _core.MAX_DIMS:
            raise UnsupportedError(f"{name}: an array of {len(shape)} dimensions can't be stored")
        if math.prod(full) * _item_bytes(kind.dtype) > _MAX_BYTES:
            raise InvalidError(f"{name}: a tensor of shape {shape} is too large for any pool")
        note = _note_bytes(kind.note, name)
        return self._pool.live_create(self._shelf.name, name, kind.dtype, full, _core.LIVE_TENSOR, flags, reserve, note)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        self._shelf._store._check_writable()
        if self._is_done_in_place(name, value):
            return
        if isinstance(value, LiveTensor):
            value = value.array
        elif isinstance(value, LazyTensor):
            value = value.read()
        torch, numpy = loaded("torch"), loaded("numpy")
        if torch is not None and isinstance(value, torch.Tensor):
            self._put_tensor(name, value)
        elif numpy is not None and isinstance(value, numpy.ndarray):
            _numpy.refuse_masked(value, name)
            kind = _numpy_kind(value.dtype, name)
            made = LiveTensor(self._create(name, value.shape, kind, 0, _core.LIVE_UNNAMED))
            made.array[...] = value
            made._core.replace(name)
        else:
            packed = _packed(value, name)
            self._pool.live_put(self._shelf.name, name, packed, _PYTHON.encode())

    def _is_done_in_place(self, name: str, value: Any) -> bool:
        """Do what needs no new variable: the value is the variable itself, or one of the dtype that its number has."""
        try:
            found = self.open(name)
            is_over = isinstance(found, LiveTensor) and _is_over(value, found)
        except (NotFoundError, DamagedError, UnsupportedError):  # what can't be read here can be replaced
            return False
        if isinstance(found, LiveTensor):
            if is_over:
                found.persist()
            return is_over
        if not _is_number_for(found, value):
            return False
        found.set(value)
        return True

    def _put_tensor(self, name: str, value: Any) -> None:
        torch = _torch()
        described = torch.describe(value, name)
        kind = _Kind(described.dtype, (), _TORCH)
        made = LiveTensor(self._create(name, tuple(value.shape), kind, 0, _core.LIVE_UNNAMED))
        made.tensor.copy_(value.detach())
        made._core.replace(name)

    # Finding

    def open(self, name: str) -> LiveTensor | LiveValue:
        """Give a variable as an object that holds it.

        Raises
        ------
        NotFoundError
            There is none of that name.
        DamagedError
            It can't be used.
        """
        _check_name(name)
        core = self._pool.live_open(self._shelf.name, name)
        return LiveTensor(core) if core.info()["form"] == _core.LIVE_TENSOR else LiveValue(core)

    def _open_tensor(self, name: str) -> LiveTensor:
        found = self.open(name)
        if not isinstance(found, LiveTensor):
            raise InvalidError(f"live variable {name!r} is a value, not a tensor")
        return found

    def __getitem__(self, name: str) -> Any:
        found = self.open(name)
        if isinstance(found, LiveValue):
            return found.get()
        return found.tensor if found._note == _TORCH else found.array

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self.open(name)
        except (NotFoundError, InvalidError):
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        count: int = self._pool.live_usage(self._shelf.name)["variables"]
        return count

    def names(self, prefix: str = "", *, since: float = 0.0, until: float | None = None) -> list[str]:
        """Give the names, sorted, of all or some variables.

        Parameters
        ----------
        prefix : str
            What they begin with.
        since, until : float, optional
            Written to (by a function, or persisted) at this time or later, and before that one: seconds since 1970.
        """
        return self._pool.live_list(self._shelf.name, prefix, _ns(since), _ns(until), True)

    def infos(self, prefix: str = "", *, since: float = 0.0, until: float | None = None) -> list[LiveInfo]:
        """Tell what the variables are, sorted by name: as `names`."""
        return [_info(raw) for raw in self._pool.live_list(self._shelf.name, prefix, _ns(since), _ns(until), False)]

    def info(self, name: str) -> LiveInfo:
        """Tell what a variable is, without its bytes."""
        return self.open(name).info()

    @property
    def used_percent(self) -> float:
        """How much of what the pool can hold is used, by whatever."""
        percent: float = self._pool.live_usage(self._shelf.name)["pool_percent"]
        return percent

    # Changing

    def persist(self, name: str | None = None) -> None:
        """Make what was stored to a tensor durable, or to all tensors of the shelf."""
        names = [info.name for info in self.infos() if info.is_tensor] if name is None else [name]
        for one in names:
            self._open_tensor(one).persist()

    def erase(self, name: str) -> None:
        """Remove a variable, and free its space.

        Raises
        ------
        InUseError
            Someone in this process holds it, or sees it through an array or tensor: nothing is done then.
        NotFoundError
            There is none.
        """
        _check_name(name)
        self._shelf._store._check_writable()
        self._pool.live_erase(self._shelf.name, name)

    def __delitem__(self, name: str) -> None:
        self.erase(name)

    def rename(self, name: str, to: str) -> None:
        """Give a variable another name; ExistsError when there is one of it."""
        self._shelf._store._check_writable()
        self._pool.live_rename(self._shelf.name, name, to)

    def swap(self, first: str, second: str) -> None:
        """Let two variables change names, in one step: each is then what the other was."""
        self._shelf._store._check_writable()
        self._pool.live_swap(self._shelf.name, first, second)

    # Transactions and snapshots

    def transaction(
        self,
        variables: Iterable[str | LiveVariable] | LiveVariable | None = None,
        *,
        limit: int | str = 0,
        timeout: float | None = None,
        declared: bool = False,
    ) -> Transaction:
        """Begin a transaction: see `Transaction`.

        Parameters
        ----------
        variables : iterable of str or LiveVariable, optional
            Those that it is of. Default: all of the shelf, those that are made or opened later included.
        limit : int or str
            The most bytes of pages that it may write. Default: 1 GiB, or a quarter of the pool's limit.
        timeout : float, optional
            Seconds to wait for another transaction of the shelf to end; None: for ever.
        declared : bool
            What is to be stored to is declared before, range by range, and kept meanwhile. On devices that is always
            so.

        Raises
        ------
        InvalidError
            This thread has begun one on this shelf already.
        InUseError
            Another one has not ended in time.
        """
        self._shelf._store._check_writable()
        lives = None
        if variables is not None:
            chosen = (variables,) if isinstance(variables, str | LiveVariable) else tuple(variables)
            opened = [self.open(one) if isinstance(one, str) else one for one in chosen]
            lives = tuple(one._core for one in opened)
        flags = _core.TRANSACTION_DECLARED if declared else 0
        wait_ms = _wait_ms(timeout)
        return Transaction(self._pool.transaction(self._shelf.name, lives, flags, wait_ms, parse_size(limit)))

    def snapshot(
        self,
        *,
        message: str | None = None,
        step: int | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Snapshot:
        """Take a snapshot of all live variables of the shelf; what has not changed since the newest one is shared.

        Nothing may be stored to tensors meanwhile, nor any be resized. Waits for a transaction of the shelf to end.

        Parameters
        ----------
        message : str, optional
            What to say of it: ``meta["message"]``.
        step, tags, metrics, meta
            As for `Shelf.snapshot`.

        Returns
        -------
        Snapshot
            ``state_dict()`` of it is a dict of the tensors and values by name: what ``live[name]`` gave, arrays
            read-only, and tensors as writable copies.
        """
        from .snapshot import Snapshot

        shelf = self._shelf
        shelf._store._check_writable()
        step = None if step is None else int64(step, "step")
        tag_list = tag_names(tags)
        names, values = metric_lists(metrics)
        if message is not None:
            meta = {**(meta or {}), "message": message}
        json_text = meta_json(meta)
        capture = self._pool.begin(shelf.name)
        try:
            capture.put_live()
            number = capture.commit(step, 0, time.time_ns(), tag_list, names, values, json_text, False)
        except BaseException:
            capture.abort()
            raise
        return Snapshot(shelf, number, None, step)

    def checkout(self, which: int | str | Snapshot = "latest") -> None:
        """Make the live variables those of a snapshot, in one step; those that it does not have are erased.

        Arrays and tensors of the same dtype and shape may be held: they show the snapshot's bytes then.

        Parameters
        ----------
        which : int, str or Snapshot
            As for ``shelf[which]``; one that was taken of live variables.

        Raises
        ------
        InUseError
            A variable that is held would be erased, or would change its dtype or shape.
        InvalidError
            The snapshot is not of live variables.
        """
        self._shelf._store._check_writable()
        text = address(which) if isinstance(which, int | str) else str(self._shelf._number(which))
        self._pool.live_checkout(self._shelf.name, text)

    def __repr__(self) -> str:
        if self._shelf._store.closed:
            return f"<lmcstore.Live of {self._shelf.name!r} of a closed store>"
        return f"<lmcstore.Live of {self._shelf.name!r}, {len(self)} variables>"

    def _repr_html_(self) -> str:
        from . import _html

        if self._shelf._store.closed:
            return _html.table(repr(self), (), ())
        infos = self.infos()
        rows = [
            (info.name, info.dtype if info.is_tensor else "value", info.shape, _html.size(info.nbytes), info.version)
            for info in infos[: _html.MOST_ROWS]
        ]
        head = ("variable", "dtype", "shape", "size", "version")
        return _html.table(f"live variables of {self._shelf.name}", head, rows, len(infos) - len(rows))

    def _ipython_key_completions_(self) -> list[str]:
        return self.names()


def _is_over(value: Any, variable: LiveTensor) -> bool:
    """Whether a value is a live tensor itself, as `Live` gives it: as ``live["w"] += 1`` assigns it."""
    if variable.nbytes == 0:
        return False
    if isinstance(value, LiveTensor):
        return value._core.address == variable._core.address and value.shape == variable.shape
    torch, numpy = loaded("torch"), loaded("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        if variable._note != _TORCH or not value.is_cpu or value.layout is not torch.strided:
            return False
        own = variable.tensor
        same = value.dtype == own.dtype and value.shape == own.shape and value.stride() == own.stride()
        return same and not (value.is_conj() or value.is_neg()) and bool(value.data_ptr() == own.data_ptr())
    if numpy is None or not isinstance(value, numpy.ndarray) or variable._note == _TORCH or hasattr(value, "mask"):
        return False
    own = variable.array
    same = value.dtype == own.dtype and value.shape == own.shape and value.strides == own.strides
    return same and bool(value.__array_interface__["data"][0] == own.__array_interface__["data"][0])


def _is_number_for(variable: LiveVariable, value: Any) -> bool:
    """Whether a value that was made with a dtype can have another number without becoming something else."""
    if variable._struct is None or variable._note == _PYTHON or variable._core.info()["shape"] != ():
        return False
    dtype = _dtype_text(variable._dtype)
    own = bool if dtype == "bool" else int if variable._dtype in _INTEGERS else float
    numpy = loaded("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return _numpy.dtype_name(value.dtype) == dtype
    if type(value) is not own and not (own is float and type(value) is int):
        return False
    try:
        stored = variable._struct.unpack(variable._struct.pack(value))[0]
    except (struct.error, OverflowError):
        return False
    return type(value) is float or bool(stored == value)  # of a float no more is kept than its dtype has


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise UnsupportedError(f"a live variable is named by a str, not by a {type(name).__qualname__}")


def _ns(seconds: float | None) -> int:
    return 0 if seconds is None else max(0, int(seconds * 1e9))


class Transaction:
    """Changes of live variables that happen all or not at all: ``with shelf.transaction():``.

    Between its begin and its end the variables change for this process only, through whatever array, tensor or
    function, in whatever thread; its end makes all changes durable, and an exception undoes them, as a crash does. It
    takes memory, and time, for the pages that are written to, not for the tensors' sizes.
    """

    def __init__(self, core: _core.Transaction) -> None:
        self._core = core

    @property
    def ended(self) -> bool:
        """Whether it was committed or aborted."""
        return self._core.ended

    @property
    def bytes(self) -> int:
        """Bytes of pages that `commit` would have to write now."""
        return self._core.bytes()

    def declare(self, variable: LiveTensor, start: int = 0, stop: int | None = None) -> None:
        """Declare that elements of a tensor will be stored to; does nothing where that needs no declaration."""
        item = variable._element_bytes
        count = variable.nbytes // item
        stop = count if stop is None else operator.index(stop)
        if not 0 <= start <= stop <= count:
            raise InvalidError(f"live tensor {variable.name!r} has {count} elements: no range {start}:{stop}")
        self._core.declare(variable._core, start * item, (stop - start) * item)

    def commit(self) -> None:
        """End it: all of it is durable.

        Raises
        ------
        FullError
            It has written to more pages than its limit, or than there is room for. It goes on, and can be aborted.
        """
        self._core.commit()

    def abort(self) -> None:
        """End it: everything is as it was. Does nothing when it has ended."""
        self._core.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._core.ended:
            return
        if kind is not None:
            self._core.abort()
            return
        try:
            self._core.commit()
        except BaseException:
            self._core.abort()
            raise

    def __repr__(self) -> str:
        return f"<lmcstore.Transaction, {'ended' if self.ended else 'under way'}>"
