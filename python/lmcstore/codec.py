# SPDX-License-Identifier: BSD-3-Clause
"""The LMC codec by itself: lossless compression of tensors, alone or as their difference to another tensor.

>>> from array import array
>>> from lmcstore import codec
>>> before = array("f", (i / 1000 for i in range(100_000)))
>>> after = array("f", (value * 1.0001 for value in before))
>>> frame = codec.compress(after)
>>> codec.decompress(frame) == after.tobytes()
True
>>> delta = codec.compress(after, base=before)
>>> len(delta) < len(frame) < 400_000
True
>>> codec.decompress(delta, base=before) == after.tobytes()
True

Arguments are anything with a buffer (bytes, memoryview, mmap, array.array), NumPy arrays or torch tensors. Their bytes
count, in row-major (C) order; shapes are not kept. Contiguous CPU memory is read in place, others (strided,
Fortran-ordered, on a GPU) are copied first. A concurrent write damages the frame. (Nothing crashes unless memory is
freed or resized, as a torch storage or a mapped file can be.)

The result is one frame (codec/FORMAT.md), the same bytes for any number of threads. A file of several frames is read
frame by frame: see `info`. Imports neither torch nor NumPy; other threads run during the work.
"""

from __future__ import annotations

import functools
import operator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from . import _core
from ._arrays import numpy as _numpy
from ._arrays import torch as _torch
from ._arrays.dtypes import name_of, size_of
from ._arrays.packages import loaded
from ._state.lazy import LazyTensor
from ._text.arguments import a_kind
from .errors import DamagedError, Error, InvalidError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["FrameInfo", "compress", "decompress", "digest", "info", "kernels"]

kernels: str = _core.codec_kernels()
"""The loops chosen for this processor: "portable", "avx2", "avx512" or "neon". LMC_KERNELS, an environment variable
with one of these names, excludes faster ones. All produce the same bytes."""

_LEVELS = {"default": 0, "dense": 1}
_MAX_THREADS = 1024
_FORMATS = {**dict.fromkeys("BHILQN", "u"), **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("efd", "f")}
"""Kinds of numbers by the format of a memoryview; its itemsize is their size."""

_Out = TypeVar("_Out")


class FrameInfo(NamedTuple):
    """The header of a frame.

    Attributes
    ----------
    dtype : str
        Of the elements: "bf16", "f32", "u8", ...
    raw_bytes, frame_bytes : int
        Bytes of the decoded content, and of the frame.
    blocks : int
        As many threads can share the work.
    base_digest : str or None
        `digest` of the base that it needs; None: the frame stands alone.
    version : int
        Of the format.
    continues : bool
        Another frame follows in the same file.
    """

    dtype: str
    raw_bytes: int
    frame_bytes: int
    blocks: int
    base_digest: str | None
    version: int
    continues: bool


def compress(data: Any, base: Any = None, dtype: Any = None, level: str = "default", threads: int = 1) -> bytes:
    r"""Compress a tensor into a frame, without loss.

    Parameters
    ----------
    data
        The tensor.
    base
        A similar tensor of as many bytes, such as an earlier version, whose bytes count as elements of the dtype of
        `data`. The frame holds the difference and needs the base to be decompressed. A frame that the base does not
        help stands alone: its ``base_digest`` is None.
    dtype : str, numpy.dtype or torch.dtype, optional
        The dtype of the bytes of `data`: a name ("bf16", "f32", ...) or a dtype of NumPy or torch. Default: that of the
        array, tensor or buffer; "u8" for bytes. It affects the size only, and is stored in the frame.
    level : {"default", "dense"}
        "dense" is slower and smaller.
    threads
        Threads that share the work, at least 1. Each takes blocks of 1 MiB.

    Returns
    -------
    bytes
        The frame, at worst slightly larger than `data`. Compression needs about as much memory as `data`.

    Raises
    ------
    InvalidError
        An argument is out of range, or sizes don't match (a ValueError).
    UnsupportedError
        A type or dtype can't be compressed (a TypeError).

    Examples
    --------
    >>> frame = compress(b"\0\1" * 5000, dtype="bf16")
    >>> len(frame) < 200
    True
    """
    if level not in _LEVELS:
        raise InvalidError(f"level must be 'default' or 'dense', not {level!r}")
    count = _thread_count(threads)
    given = None if dtype is None else _dtype_name(dtype)
    source = _Source(data, "data", given)
    against = None if base is None else _Source(base, "base", "u8")
    if against is not None and against.size != source.size:
        raise InvalidError(f"base has {against.size} bytes and data {source.size}: they must have as many")
    base_buffer = None if against is None else against.buffer
    return _core.codec_compress(source.buffer, base_buffer, source.dtype, _LEVELS[level], count)


@overload
def decompress(frame: Any, base: Any = ..., threads: int = ..., *, out: None = ...) -> bytes: ...
@overload
def decompress(frame: Any, base: Any = ..., threads: int = ..., *, out: _Out) -> _Out: ...
def decompress(frame: Any, base: Any = None, threads: int = 1, *, out: Any = None) -> Any:
    """Decompress a frame; block hashes reveal damage and a wrong base.

    Parameters
    ----------
    frame
        One whole frame. Immutable bytes are read in place; others are copied block by block.
    base
        The base of the compression, or any tensor with the same bytes; ignored if the frame stands alone.
    threads
        As for `compress`.
    out
        A writable output, also returned: contiguous, of exactly that size, disjoint from `frame` and `base`. Undefined
        after an error.

    Raises
    ------
    DamagedError
        The frame is damaged or cut short, or the base is another one.
    InvalidError
        The base is missing, or a size is wrong (a ValueError).
    UnsupportedError
        The frame is of a newer version (a TypeError).
    OutOfMemoryError
        The content does not fit in memory. Check `info` of an untrusted frame: a small one may hold terabytes of zeros.

    Examples
    --------
    >>> frame = compress(bytes(1000))
    >>> room = bytearray(1000)
    >>> decompress(frame, out=room) is room
    True
    """
    count = _thread_count(threads)
    coded = _Source(frame, "frame", "u8").buffer
    against = None if base is None else _Source(base, "base", "u8").buffer
    try:
        made = _core.codec_decompress(coded, against, None if out is None else _room(out), count)
    except DamagedError as error:
        about_base = "" if against is None else _about_base(coded, against, count)
        raise DamagedError(f"{error}{about_base}") from None
    return made if out is None else out


def info(frame: Any) -> FrameInfo:
    """Read the header of a frame, given whole or by its beginning.

    DamagedError: it is no frame, or its header is damaged or cut short. UnsupportedError: it is of a newer version (a
    TypeError).

    Examples
    --------
    >>> info(compress(bytes(3_000_000), dtype="f32"))  # doctest: +ELLIPSIS
    FrameInfo(dtype='f32', raw_bytes=3000000, frame_bytes=..., blocks=3, base_digest=None, version=2, continues=False)
    """
    coded = _Source(frame, "frame", "u8").buffer
    dtype, version, raw_bytes, frame_bytes, blocks, base_digest, continues = _core.codec_info(coded)
    return FrameInfo(name_of(dtype), raw_bytes, frame_bytes, blocks, base_digest, version, bool(continues))


def digest(data: Any, dtype: Any = None, threads: int = 1) -> str:
    """Compute the digest by which a frame names its base, as 32 hexadecimal digits; parameters as for `compress`.

    A frame was made against a base if its ``base_digest`` is ``digest(base, dtype=info(frame).dtype)``. (Digests of
    ``lmc-store ls --json`` include the shape: the same for tensors of one dimension.)

    Examples
    --------
    >>> digest(b"")
    'c40041f38e4fe5b8ddcf69f10a0d5850'
    """
    count = _thread_count(threads)
    source = _Source(data, "data", None if dtype is None else _dtype_name(dtype))
    return _core.codec_digest(source.buffer, source.dtype, count)


# ---- Values as buffers


def _is_a(value: Any, module: ModuleType, name: str) -> bool:
    """Whether a value is of a class of a module, which may be half imported or a fake."""
    return isinstance(value, getattr(module, name, ()))


class _Source:
    __slots__ = ("buffer", "dtype", "size")

    def __init__(self, value: Any, what: str, dtype: str | None) -> None:
        """Check a value named by `what`. If `dtype` is None, the value's own dtype counts and must exist."""
        torch, numpy = loaded("torch"), loaded("numpy")
        own: str | None
        if isinstance(value, LazyTensor):
            value = value.read()
        if torch is not None and _is_a(value, torch, "Tensor"):
            self.buffer, self.size, own = _torch_source(torch, value, what)
        elif numpy is not None and _is_a(value, numpy, "ndarray"):
            self.buffer, self.size, own = _numpy_source(numpy, value, what)
        else:
            self.buffer, self.size, own = _buffer_source(value, what)
        name = dtype or own
        if name is None:
            kind = f"of dtype {value.dtype}" if hasattr(value, "dtype") else f"of format {memoryview(value).format!r}"
            raise UnsupportedError(
                f"{what} is {kind}, which has no name here; convert it, or give dtype='u8' for its bytes as they are"
            )
        self.dtype = _core.DTYPES[name]
        size = size_of(self.dtype)
        if self.size % size:
            raise InvalidError(f"{what} has {self.size} bytes, which is no multiple of {name}'s {size}")


def _buffer_source(value: Any, what: str) -> tuple[Buffer, int, str | None]:
    if type(value) is bytes:
        return value, len(value), "u8"
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError) as error:
        if isinstance(value, memoryview):
            raise InvalidError(f"{what}: {error}") from None
        raise UnsupportedError(
            f"{what} must be bytes-like, a NumPy array or a torch tensor, not {a_kind(value)}"
        ) from None
    if "O" in view.format or "P" in view.format:
        raise UnsupportedError(f"{what} is of format {view.format!r}: it has addresses, not numbers")
    return (view if view.c_contiguous else view.tobytes()), view.nbytes, _format_name(view)


def _format_name(view: memoryview) -> str | None:
    form = view.format.lstrip("@=<")
    if view.itemsize == 1 and form in {"B", "c", "s", ">B", "!B"}:
        return "u8"
    if form == "?":
        return "bool"
    if form in {"Zf", "Zd"}:
        return f"c{8 * view.itemsize}"
    kind = _FORMATS.get(form)
    name = None if kind is None else f"{kind}{8 * view.itemsize}"
    return name if name in _core.DTYPES else None


def _numpy_source(numpy: ModuleType, value: Any, what: str) -> tuple[Buffer, int, str | None]:
    if value.dtype.hasobject:
        raise UnsupportedError(f"{what} is a NumPy array of dtype {value.dtype}: it has addresses, not numbers")
    _numpy.refuse_masked(value, what)
    array = numpy.ascontiguousarray(numpy.asarray(value))
    name = _numpy.dtype_name(array.dtype) if array.dtype.isnative else None
    return array.reshape(-1).view(numpy.uint8), array.nbytes, name


@functools.cache
def _torch_module(torch: ModuleType) -> _torch.Torch:
    return _torch.Torch(torch)


def _torch_source(torch: ModuleType, value: Any, what: str) -> tuple[Buffer, int, str | None]:
    module = _torch_module(torch)
    if type(value) not in module.types:
        raise UnsupportedError(f"{what} is {a_kind(value)}; only torch.Tensor itself has plain memory")
    described = module.describe(value, what)
    if described.must_copy or described.strides is not None:
        value = module.dense_copy(value, what)
        described = module.describe(value, what)
    return _torch_memory(value, described)


def _torch_memory(tensor: Any, described: _torch.Described) -> tuple[Buffer, int, str]:
    size = tensor.numel() * tensor.element_size()
    return _core.memory(tensor, described.address, size) if size else b"", size, name_of(described.dtype)


def _room(out: Any) -> Any:
    torch, numpy = loaded("torch"), loaded("numpy")
    if torch is not None and _is_a(out, torch, "Tensor"):
        module = _torch_module(torch)
        if type(out) not in module.types:
            raise UnsupportedError(f"out is {a_kind(out)}; only torch.Tensor itself has plain memory")
        described = module.describe(out, "out")
        if described.must_copy or described.strides is not None:
            raise InvalidError("out must be a contiguous tensor on the CPU")
        return _torch_memory(out, described)[0] if out.numel() else bytearray()
    if numpy is not None and _is_a(out, numpy, "ndarray"):
        if out.dtype.hasobject:
            raise UnsupportedError(f"out is a NumPy array of dtype {out.dtype}: it has addresses, not numbers")
        if not out.flags.c_contiguous or not out.flags.writeable:
            raise InvalidError("out must be a writable array in row-major order")
        return numpy.asarray(out).reshape(-1).view(numpy.uint8)
    try:
        view = memoryview(out)
    except (TypeError, ValueError, BufferError):
        raise UnsupportedError(
            f"out must be a writable buffer, a NumPy array or a torch tensor, not {a_kind(out)}"
        ) from None
    if view.readonly or not view.c_contiguous or "O" in view.format or "P" in view.format:
        raise InvalidError(f"out must be a writable buffer of numbers in row-major order; this {type(out)} isn't")
    return view


# ---- Other arguments


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, str) and dtype in _core.DTYPES:
        return dtype
    torch, numpy = loaded("torch"), loaded("numpy")
    name = None
    if torch is not None and _is_a(dtype, torch, "dtype"):
        name = _torch_module(torch).dtype_name(dtype)
    elif numpy is not None and hasattr(numpy, "dtype") and _is_numpy_dtype(numpy, dtype):
        found = numpy.dtype(dtype)
        name = _numpy.dtype_name(found) if found.isnative else None
    if name is None:
        raise InvalidError(f"dtype can't be {dtype!r}; it is one of {', '.join(_core.DTYPES)}, or of NumPy or torch")
    return name


def _is_numpy_dtype(numpy: ModuleType, dtype: Any) -> bool:
    return isinstance(dtype, numpy.dtype) or (isinstance(dtype, type) and issubclass(dtype, numpy.generic))


def _thread_count(threads: Any) -> int:
    try:
        count = operator.index(threads)
    except TypeError:
        raise UnsupportedError(f"threads must be an int, not {a_kind(threads)}") from None
    if count < 1:
        raise InvalidError(f"threads can't be {count}: give 1 or more")
    return min(count, _MAX_THREADS)


def _about_base(coded: Buffer, base: Buffer, threads: int) -> str:
    """After a failed decode, report whether the base is the one that the frame names."""
    try:
        dtype, _, _, _, _, wanted, _ = _core.codec_info(coded)
        found = _core.codec_digest(base, dtype, threads)
    except Error:
        return ""
    if wanted is None:
        return ""
    if found == wanted:
        return "; the base is the one that the frame names"
    return f"; the frame names the base {wanted}, and this one has the digest {found}"
