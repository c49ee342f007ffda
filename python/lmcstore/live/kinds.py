# SPDX-License-Identifier: BSD-3-Clause
"""The dtypes of live variables, how each is stored, and the arguments that describe a variable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from .. import _core
from .._arrays import numpy as _numpy
from .._arrays.dtypes import BY_TORCH_NAME, U8
from .._arrays.packages import loaded
from .._arrays.torch import Torch, torch_of
from .._state.live_table import NUMPY, TORCH
from .._text.arguments import milliseconds, within
from ..errors import InvalidError, UnsupportedError

_FOREVER = 0xFFFFFFFF
MAX_BYTES = 2**63 - 1
_ACCESS = {"normal": _core.ACCESS_NORMAL, "random": _core.ACCESS_RANDOM, "sequential": _core.ACCESS_SEQUENTIAL}
_AMBIGUOUS = ("i8", "u8")


class Kind(NamedTuple):
    """The stored form of elements."""

    dtype: int  # the store's
    tail: tuple[int, ...]  # dimensions after the shape: bytes of an element whose dtype the store lacks
    note: str


def torch_module() -> Torch:
    """Import torch; UnsupportedError: it is not installed."""
    try:
        import torch
    except ImportError:
        raise UnsupportedError("a torch tensor over a live variable needs torch: install it, or use array") from None
    return torch_of(torch)


def numpy_kind(dtype: Any, what: str) -> Kind:
    """Return how a NumPy dtype is stored."""
    name = _numpy.dtype_name(dtype) if dtype.isnative or dtype.itemsize == 1 else None
    if name is not None:
        return Kind(_core.DTYPES[name], (), NUMPY)
    if dtype.hasobject or dtype.itemsize == 0:
        raise UnsupportedError(f"{what}: a NumPy array of dtype {dtype} can't be stored: it holds no numbers")
    note = _numpy.note_of(dtype, with_longdouble=True)
    if note is None:
        raise UnsupportedError(
            f"{what}: a NumPy array of dtype {dtype} can't be stored: it would be read as another dtype, or not at "
            "all; store an array of numbers"
        )
    return Kind(U8, (dtype.itemsize,), note)


def kind_of(dtype: Any, what: str) -> Kind:
    """Return how a dtype is stored: torch's, any that NumPy accepts, or the store's name of it."""
    if isinstance(dtype, str) and dtype in _AMBIGUOUS:
        bits, kind = 8, "int" if dtype == "i8" else "uint"
        raise InvalidError(f"{what}: {dtype!r} is {kind}{bits} here and {kind}{8 * bits} in NumPy: write out which")
    if isinstance(dtype, str) and dtype in BY_TORCH_NAME:
        return Kind(BY_TORCH_NAME[dtype].number, (), "")
    if isinstance(dtype, str) and dtype in _core.DTYPES:
        return Kind(_core.DTYPES[dtype], (), "")
    torch = loaded("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        number = torch_module().number_of.get(dtype)
        if number is None:
            raise UnsupportedError(f"{what}: a tensor of dtype {dtype} can't be stored")
        return Kind(number, (), TORCH)
    import numpy

    try:
        return numpy_kind(numpy.dtype(dtype), what)
    except TypeError as error:
        if isinstance(error, UnsupportedError):
            raise
        raise UnsupportedError(f"{what}: {dtype!r} is no dtype") from None


def note_bytes(note: str, what: str) -> bytes:
    """Encode a note; refuse one above 255 bytes."""
    encoded = note.encode()
    if len(encoded) > _core.LIVE_MAX_NOTE:
        raise UnsupportedError(f"{what}: the description of its dtype takes {len(encoded)} bytes, and 255 is the most")
    return encoded


def numpy_dtype(number: int, note: str, what: str) -> Any:
    """Return the dtype of an array over a tensor."""
    if _numpy.is_described(note):
        return _numpy.described_dtype(note, what)
    return _numpy.dtype_of(number, what)


def shape_of(shape: Any, what: str) -> tuple[int, ...]:
    """Check a shape, which may be a single length."""
    sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    return tuple(within(size, 0, MAX_BYTES, f"{what}: a dimension") for size in sizes)


def wait_ms(timeout: float | None) -> int:
    """Convert seconds to milliseconds; None: for ever."""
    return _FOREVER if timeout is None else milliseconds(timeout, _FOREVER - 1, "timeout")


def access_of(access: str, what: str) -> int:
    """Return the core's number of an access to a tensor."""
    if not isinstance(access, str) or access not in _ACCESS:
        raise InvalidError(f"{what}: access is 'normal', 'random' or 'sequential', not {access!r}")
    return _ACCESS[access]
