# SPDX-License-Identifier: BSD-3-Clause
"""The leaves of a state that are no tensors, as bytes: exact in value and type, never executable.

A packed value is one tag byte and its content, little-endian::

    N None   T True   F False
    i u32 n, n bytes: int in two's complement          f 8 bytes: float          c 16 bytes: complex
    s u32 n, n bytes: str in UTF-8, lone surrogates as they are                  b, a u32 n, n bytes: bytes, bytearray
    t, l, S, z u32 n, n packed values: tuple, list, set, frozenset (sets in the order of their packed elements)
    q, Q u32 n, 8n bytes: list, tuple of n ints of 64 bits                       d, D: of n floats
    Z u32 n, 8n bytes: torch.Size                      y u8 n, n bytes: torch.dtype by its name
    v u8 n, n bytes, i32: torch.device by its type and its index or -1
    n u8, then the bytes: NumPy scalar by its dtype's character
    R u32 n: the packed value is in the attachment of that number

An archive may be untrusted: `Reader` checks every length and raises `DamagedError`.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

from .._arrays.packages import loaded
from ..errors import DamagedError

MAX_DEPTH = 200
"""How deep containers may be nested in a state."""

NUMPY_SCALARS = "?bBhHiIlLqQefdFD"
"""Characters of the NumPy dtypes whose scalars can be stored."""

MAX_COLLISIONS = 500
"""How many keys of one dict, or elements of one set, may have the same hash: each is compared with all before it."""

TOO_ALIKE = f"more than {MAX_COLLISIONS} keys of a dict, or elements of a set, have the same hash"

_PLAIN = frozenset({int, float, bool, type(None), str, bytes, complex})
_INT = struct.Struct("<I")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_INDEX = struct.Struct("<i")


class Unpackable(Exception):
    """Raised by `pack` for a value that is no leaf."""


def _sized(tag: bytes, data: bytes) -> bytes:
    return tag + _INT.pack(len(data)) + data


def _pack_int(value: int) -> bytes:
    return _sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


def _pack_items(tag: bytes, items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return tag + _INT.pack(len(parts)) + b"".join(parts)


def _pack_tuple(value: tuple[Any, ...]) -> bytes:
    return _pack_items(b"t", map(pack, value))


def _pack_set(value: set[Any] | frozenset[Any]) -> bytes:
    if are_too_alike(value):
        raise Unpackable(value)
    return _pack_items(b"S" if type(value) is set else b"z", sorted(map(pack, value)))


_PACKERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: _pack_int,
    float: lambda value: b"f" + _FLOAT.pack(value),
    complex: lambda value: b"c" + _COMPLEX.pack(value.real, value.imag),
    str: lambda value: _sized(b"s", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: _sized(b"b", value),
    bytearray: lambda value: _sized(b"a", bytes(value)),
    tuple: _pack_tuple,
    set: _pack_set,
    frozenset: _pack_set,
}


def pack(value: Any) -> bytes:
    """Pack a leaf, or a tuple or set of leaves as a dict key may be.

    Unpackable: another type; its one argument is the innermost value that can't be packed.
    """
    packer = _PACKERS.get(type(value))
    if packer is not None:
        return packer(value)
    packed = _pack_torch(value) or _pack_numpy(value)
    if packed is None:
        raise Unpackable(value)
    return packed


def pack_sequence(value: list[Any] | tuple[Any, ...]) -> bytes | None:
    """Pack a list or tuple of plain values as one leaf; None if it contains anything else."""
    kinds = set(map(type, value))
    if not kinds <= _PLAIN:
        return None
    is_list = type(value) is list
    if kinds == {float}:
        return (b"d" if is_list else b"D") + _INT.pack(len(value)) + array("d", value).tobytes()
    if kinds == {int}:
        try:
            return (b"q" if is_list else b"Q") + _INT.pack(len(value)) + array("q", value).tobytes()
        except OverflowError:
            pass
    return _pack_items(b"l" if is_list else b"t", map(pack, value))


def _pack_torch(value: Any) -> bytes | None:
    torch = loaded("torch")
    if torch is None or not hasattr(torch, "Size"):
        return None
    if type(value) is torch.Size:
        return b"Z" + _INT.pack(len(value)) + array("q", value).tobytes()
    if type(value) is torch.dtype:
        name = str(value).removeprefix("torch.").encode()
        return b"y" + bytes([len(name)]) + name
    if type(value) is torch.device:
        name = str(value.type).encode()
        return b"v" + bytes([len(name)]) + name + _INDEX.pack(-1 if value.index is None else value.index)
    return None


def _pack_numpy(value: Any) -> bytes | None:
    numpy = loaded("numpy")
    if numpy is None or not hasattr(numpy, "generic") or not isinstance(value, numpy.generic):
        return None
    char = value.dtype.char
    if char not in NUMPY_SCALARS or type(value) is not numpy.dtype(char).type:
        return None
    return b"n" + str(char).encode() + bytes(value.tobytes())


class Attached:
    """A packed value in the attachment of a number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def pack_attached(number: int) -> bytes:
    return b"R" + _INT.pack(number)


def are_too_alike(keys: Collection[Any]) -> bool:
    """Whether so many keys of a dict, or elements of a set, share a hash that making it would take long.

    Hashes of numbers are predictable: a dict of 100,000 crafted integers takes minutes. The count is by text, whose
    hashes are random.
    """
    if len(keys) <= MAX_COLLISIONS or set(map(type, keys)) <= {str, bytes}:
        return False
    return max(Counter(map(str, map(hash, keys))).values()) > MAX_COLLISIONS


class Reader:
    """Reads packed values from bytes; every method raises DamagedError for bytes that `pack` didn't write."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data).cast("B")
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def value(self, depth: int = 0) -> Any:
        tag = self._take(1)[0]
        read = _READERS.get(tag)
        if read is None or depth > MAX_DEPTH:
            raise DamagedError(f"the state's values are damaged: tag {tag} at depth {depth}")
        try:
            return read(self, depth)
        except (UnicodeDecodeError, TypeError, OverflowError, RuntimeError, struct.error) as error:
            raise DamagedError(f"the state's values are damaged: {error}") from None

    def _take(self, count: int) -> memoryview:
        end = self._at + count
        if end > len(self._data):
            raise DamagedError("the state's values are damaged: they end too early")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _length(self) -> int:
        return int(_INT.unpack(self._take(4))[0])

    def _sized(self) -> bytes:
        return bytes(self._take(self._length()))

    def _short_text(self) -> str:
        return bytes(self._take(self._take(1)[0])).decode("ascii")

    def _items(self, depth: int) -> list[Any]:
        count = self._length()
        if count > len(self._data) - self._at:
            raise DamagedError("the state's values are damaged: a container is longer than they are")
        return [self.value(depth + 1) for _ in range(count)]

    def _set_items(self, depth: int) -> frozenset[Any]:
        items = self._items(depth)
        if are_too_alike(items):
            raise DamagedError(f"the state's values are damaged: {TOO_ALIKE}")
        found = frozenset(items)
        if len(found) != len(items):
            raise DamagedError("the state's values are damaged: a set has an element twice")
        return found

    def _numbers(self, code: str) -> list[Any]:
        numbers = array(code)
        numbers.frombytes(self._take(8 * self._length()))
        return numbers.tolist()

    def _torch_size(self) -> Any:
        return _torch().Size(self._numbers("q"))

    def _torch_dtype(self) -> Any:
        torch = _torch()
        name = self._short_text()
        dtype = vars(torch).get(name)  # getattr would import a module of that name, such as torch.onnx
        if type(dtype) is not torch.dtype:
            raise DamagedError(f"this torch has no dtype {name!r}")
        return dtype

    def _torch_device(self) -> Any:
        name = self._short_text()
        index = _INDEX.unpack(self._take(4))[0]
        return _torch().device(name) if index < 0 else _torch().device(name, index)

    def _numpy_scalar(self) -> Any:
        import numpy

        char = chr(self._take(1)[0])
        if char not in NUMPY_SCALARS:
            raise DamagedError(f"the state's values are damaged: NumPy dtype {char!r}")
        dtype = numpy.dtype(char)
        return numpy.frombuffer(bytes(self._take(dtype.itemsize)), dtype)[0]

    def _attached(self, depth: int) -> Attached:
        if depth > 0:
            raise DamagedError("the state's values are damaged: an attachment where a value was expected")
        return Attached(self._length())


def _torch() -> Any:
    import torch

    return torch


def _read_complex(reader: Reader, depth: int) -> complex:
    return complex(*_COMPLEX.unpack(reader._take(16)))


_READERS: dict[int, Callable[[Reader, int], Any]] = {
    ord("N"): lambda reader, depth: None,
    ord("T"): lambda reader, depth: True,
    ord("F"): lambda reader, depth: False,
    ord("i"): lambda reader, depth: int.from_bytes(reader._sized(), "little", signed=True),
    ord("f"): lambda reader, depth: _FLOAT.unpack(reader._take(8))[0],
    ord("c"): _read_complex,
    ord("s"): lambda reader, depth: reader._sized().decode("utf-8", "surrogatepass"),
    ord("b"): lambda reader, depth: reader._sized(),
    ord("a"): lambda reader, depth: bytearray(reader._sized()),
    ord("t"): lambda reader, depth: tuple(reader._items(depth)),
    ord("l"): lambda reader, depth: reader._items(depth),
    ord("S"): lambda reader, depth: set(reader._set_items(depth)),
    ord("z"): lambda reader, depth: reader._set_items(depth),
    ord("q"): lambda reader, depth: reader._numbers("q"),
    ord("Q"): lambda reader, depth: tuple(reader._numbers("q")),
    ord("d"): lambda reader, depth: reader._numbers("d"),
    ord("D"): lambda reader, depth: tuple(reader._numbers("d")),
    ord("Z"): lambda reader, depth: reader._torch_size(),
    ord("y"): lambda reader, depth: reader._torch_dtype(),
    ord("v"): lambda reader, depth: reader._torch_device(),
    ord("n"): lambda reader, depth: reader._numpy_scalar(),
    ord("R"): lambda reader, depth: reader._attached(depth),
}
