# SPDX-License-Identifier: BSD-3-Clause
"""NumPy arrays as tensors of a store and back.

An array is stored by its address, shape and strides; one of the other byte order as bytes with one more dimension,
which NumPy reads in place. An array is read as read-only, over a mapping that it keeps.
"""

from __future__ import annotations

import functools
import json
import warnings
from typing import Any

from .. import _core
from ..errors import DamagedError, UnsupportedError
from .dtypes import DTYPES, U8, name_of
from .packages import loaded
from .stretch import Stretch

_DTYPES = {dtype.numpy: dtype.name for dtype in DTYPES if dtype.numpy}
_ALIASES = {"q": "i64", "Q": "u64"}
"""Other C types of the same numbers, which NumPy keeps apart."""
_ML_DTYPES = {dtype.ml_dtypes: dtype.name for dtype in DTYPES if dtype.ml_dtypes}

DESCRIBED = "numpy:"
"""Begins the note of an array whose dtype the store lacks."""
MOST_ITEM_BYTES = 1 << 24
"""Of such a dtype."""

_BY_NUMBER = {dtype.number: dtype.numpy for dtype in DTYPES if dtype.numpy}
_ML_BY_NUMBER = {dtype.number: dtype.ml_dtypes for dtype in DTYPES if dtype.ml_dtypes}


class Described:
    __slots__ = ("address", "dtype", "shape", "special", "strides")

    def __init__(
        self, dtype: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, address: int, special: str | None
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.strides = strides  # bytes; None: row-major
        self.address = address
        self.special = special  # the dtype, unless the stored one determines it


def describe(array: Any, path: str) -> Described:
    """Describe how an array of exactly type ``ndarray`` is stored; `path` is its place in the state, for errors.

    UnsupportedError: its dtype has objects, ``longdouble``, or nothing that can be read again.
    """
    dtype = array.dtype
    special = None
    swapped = not dtype.isnative
    native = dtype.newbyteorder("=") if swapped else dtype
    stored = dtype_name(native)
    if stored is None:
        special = note_of(dtype)
        if special is None:
            raise UnsupportedError(f"{path}: a NumPy array of dtype {dtype} can't be stored; {_remedy(dtype)}")
    elif not _is_numpys_own(native):
        special = native.name
    elif native.char in _ALIASES:
        special = native.char
    shape, strides = array.shape, None if array.flags.c_contiguous else array.strides
    number = U8 if stored is None else _core.DTYPES[stored]
    if swapped or stored is None:
        special, number = special if stored is None else dtype.str, U8
        shape = (*shape, dtype.itemsize)
        strides = None if strides is None else (*strides, 1)
    if len(shape) > _core.MAX_DIMS:
        raise UnsupportedError(f"{path}: an array of {array.ndim} dimensions can't be stored")
    return Described(number, shape, strides, array.__array_interface__["data"][0], special)


def stretch(owner: Any, array: Any) -> Stretch:
    """Return the place of an array that is not empty in its memory."""
    return Stretch(owner, array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.itemsize)


def _remedy(dtype: Any) -> str:
    if dtype.hasobject:
        return "store value.tolist(), or an array of numbers or text of fixed length"
    known = {"g": "f8", "G": "c16"}.get(dtype.char)
    return f"store value.astype('{known}')" if known is not None else "store an array of numbers"


def note_text(dtype: Any) -> str:
    """Describe a dtype that the store lacks, and that has no objects."""
    from numpy.lib.format import dtype_to_descr

    ml_dtypes = loaded("ml_dtypes")
    if ml_dtypes is not None and getattr(ml_dtypes, dtype.name, None) is dtype.type:
        descr: Any = f"ml_dtypes.{dtype.name}"
    else:
        descr = dtype_to_descr(dtype)
    return f"{DESCRIBED}{json.dumps(descr, separators=(',', ':'))}"


@functools.lru_cache(maxsize=64)
def note_of(dtype: Any, with_longdouble: bool = False) -> str | None:
    """Return `note_text` if every system, or with longdouble this one, reads it as that dtype, else None."""
    if dtype.hasobject or not 0 < dtype.itemsize <= MOST_ITEM_BYTES:
        return None
    if not with_longdouble and _has_longdouble(dtype):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of dtype_to_descr, for dtypes that it can't describe
            note = note_text(dtype)
        return note if described_dtype(note, "") == dtype else None
    except (DamagedError, TypeError, ValueError):
        return None


def _has_longdouble(dtype: Any) -> bool:
    if dtype.subdtype is not None:
        return _has_longdouble(dtype.base)
    if dtype.names is not None:
        return any(_has_longdouble(dtype[name]) for name in dtype.names)
    return dtype.char in "gG"


def refuse_masked(array: Any, what: str) -> None:
    """Raise UnsupportedError for a masked array: the mask would be lost."""
    if hasattr(array, "mask"):
        raise UnsupportedError(f"{what}: a masked array can't be stored; store its data and its mask by themselves")


def dtype_name(dtype: Any) -> str | None:
    """Return the store's name of a dtype in native order, or None."""
    if _is_numpys_own(dtype):
        return _DTYPES.get(dtype.char) or _ALIASES.get(dtype.char)
    return _ML_DTYPES[dtype.name] if _is_ml_dtype(dtype) else None


def _is_numpys_own(dtype: Any) -> bool:
    """Whether the dtype is NumPy's own; some of other packages share its characters."""
    return bool(dtype.isbuiltin != 2)


def dtype_of(number: int, path: str) -> Any:
    """Return NumPy's or ml_dtypes' dtype for a store's; UnsupportedError: there is none, or no ml_dtypes."""
    import numpy

    if number in _BY_NUMBER:
        return numpy.dtype(_BY_NUMBER[number])
    if number in _ML_BY_NUMBER:
        return special_dtype(_ML_BY_NUMBER[number], path)
    raise UnsupportedError(f"{path}: NumPy has no dtype for {name_of(number)}")


def ml_dtype(name: str) -> Any:
    """Return a dtype of ml_dtypes by name; ValueError: none."""
    import ml_dtypes
    import numpy

    found = vars(ml_dtypes).get(name)
    if not (isinstance(found, type) and issubclass(found, numpy.generic)):
        raise ValueError(f"ml_dtypes has no {name}")
    return numpy.dtype(found)


def _is_ml_dtype(dtype: Any) -> bool:
    ml_dtypes = loaded("ml_dtypes")
    return ml_dtypes is not None and dtype.name in _ML_DTYPES and dtype.type is getattr(ml_dtypes, dtype.name, None)


def is_swapped(special: str | None) -> bool:
    """Whether an array is stored as bytes with one more dimension: other byte order, or `is_described`."""
    return special is not None and (special[:1] in "<>" or is_described(special))


def is_described(special: str) -> bool:
    """Whether a note describes a dtype that the store lacks."""
    return special.startswith(DESCRIBED)


def can_read(number: int) -> bool:
    from importlib.util import find_spec

    if loaded("numpy") is None and find_spec("numpy") is None:
        return False
    return number in _BY_NUMBER or (number in _ML_BY_NUMBER and find_spec("ml_dtypes") is not None)


def special_of(number: int) -> str | None:
    """Return `array`'s `special` argument for a dtype that only ml_dtypes has."""
    return _ML_BY_NUMBER.get(number)


def special_dtype(special: str, path: str) -> Any:
    """Return the dtype that `describe` recorded; DamagedError: none; UnsupportedError: needs ml_dtypes."""
    import numpy

    if is_described(special):
        return described_dtype(special, path)
    if special in _ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise UnsupportedError(f"{path}: reading {special} as a NumPy array needs the package ml_dtypes") from None
        return numpy.dtype(getattr(ml_dtypes, special))
    if special in _ALIASES:
        return numpy.dtype(special)
    if special[:1] in "<>" and special[1:] in {"u2", "u4", "u8", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"}:
        return numpy.dtype(special)
    raise DamagedError(f"{path}: the state is damaged: NumPy dtype {special!r}")


def described_dtype(note: str, what: str) -> Any:
    """Read the dtype from a note, possibly untrusted."""
    from numpy.lib.format import descr_to_dtype

    def tuples(value: Any) -> Any:  # JSON has lists only: fields are tuples in a list, shapes tuples
        if type(value) is not list:
            return value
        if value and all(type(field) is list for field in value):
            return [tuple(part if type(part) is str else tuples_of(part) for part in field) for field in value]
        return tuples_of(value)

    def tuples_of(value: Any) -> Any:
        return tuple(value) if type(value) is list and all(type(part) is int for part in value) else tuples(value)

    try:
        descr = json.loads(note.removeprefix(DESCRIBED))
        if type(descr) is str and descr.startswith("ml_dtypes."):
            return ml_dtype(descr.removeprefix("ml_dtypes."))
        dtype = descr_to_dtype(tuples(descr))
        if dtype.hasobject or not 0 < dtype.itemsize <= MOST_ITEM_BYTES or dtype.subdtype is not None:
            raise ValueError(f"no array has {dtype}")
    except Exception as error:
        raise DamagedError(f"{what}: its dtype is damaged: {error}") from None
    return dtype


def array(buffer: _core.Buffer, dtype: int, shape: tuple[int, ...], special: str | None, path: str) -> Any:
    """Make a read-only, row-major array over a buffer, which it keeps, of the dtype that `describe` recorded."""
    import numpy

    found, shape = visible(dtype, shape, special, path)
    if 0 in shape:
        try:
            return numpy.frombuffer(bytes(found.itemsize), found)[:0].reshape(shape)
        except (ValueError, OverflowError):  # it multiplies the others
            raise UnsupportedError(f"{path}: NumPy can't make an empty array of shape {shape}") from None
    return numpy.frombuffer(memoryview(buffer).toreadonly(), found).reshape(shape)


def visible(dtype: int, shape: tuple[int, ...], special: str | None, path: str) -> tuple[Any, tuple[int, ...]]:
    """Return the dtype and shape of the array that a stored tensor is read as."""
    import numpy

    if special is not None:
        found = special_dtype(special, path)
        if is_swapped(special):
            if dtype != U8 or shape[-1:] != (found.itemsize,):
                raise DamagedError(f"{path}: the state is damaged: its bytes are no array of {special}")
            shape = shape[:-1]
        elif dtype != _core.DTYPES[_ML_DTYPES.get(special) or _ALIASES[special]]:
            raise DamagedError(f"{path}: the state is damaged: its bytes are no array of {special}")
    else:
        char = _BY_NUMBER.get(dtype)
        if char is None:
            raise UnsupportedError(f"{path}: NumPy has no dtype for {name_of(dtype)}")
        found = numpy.dtype(char)
    return found, shape
