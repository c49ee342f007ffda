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
from collections.abc import Callable, Collection
from itertools import repeat
from typing import Any

from .._arrays.packages import loaded
from ..errors import DamagedError, UnsupportedError

MAX_DEPTH = 200
"""How many containers may surround a part of a state, and a part of a packed value; for writing and reading."""

MAX_COUNT = 2**32 - 1
"""How many bytes or items a packed value may have."""

NUMPY_SCALARS = "?bBhHiIlLqQefdFD"
"""Characters of the NumPy dtypes whose scalars can be stored."""

MAX_COLLISIONS = 500
"""How many keys of one dict, or elements of one set, may have the same hash: each is compared with all before it."""

TOO_DEEP = f"nested too deeply: {MAX_DEPTH} levels can be stored"

TOO_ALIKE = f"more than {MAX_COLLISIONS} keys of a dict, or elements of a set, have the same hash"

PLAIN = frozenset({int, float, bool, type(None), str, bytes, complex})
_INT = struct.Struct("<I")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_INDEX = struct.Struct("<i")


class Unpackable(Exception):
    """Raised by `pack` for a value that is no leaf, or exceeds a limit: the value, and the limit's text or None."""

    def __init__(self, value: Any, limit: str | None = None) -> None:
        super().__init__(value, limit)
        self.value = value
        self.limit = limit


def _count(count: int, value: Any) -> bytes:
    if count > MAX_COUNT:
        raise Unpackable(value, f"too long: it has {count:,} bytes or items, and {MAX_COUNT:,} can be stored")
    return _INT.pack(count)


def _sized(tag: bytes, data: bytes | bytearray, value: Any) -> bytes:
    return b"".join((tag, _count(len(data), value), data))


def _pack_int(value: int) -> bytes:
    return _sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True), value)


def _pack_container(value: Collection[Any], depth: int) -> bytes:
    kind = type(value)
    if depth >= MAX_DEPTH and value:
        raise Unpackable(value, TOO_DEEP)
    count = _count(len(value), value)
    if kind is tuple:
        return b"".join((b"t", count, *map(pack, value, repeat(depth + 1))))
    if are_too_alike(value):
        raise Unpackable(value, TOO_ALIKE)
    return b"".join((b"S" if kind is set else b"z", count, *sorted(map(pack, value, repeat(depth + 1)))))


_PACKERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda value: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: _pack_int,
    float: lambda value: b"f" + _FLOAT.pack(value),
    complex: lambda value: b"c" + _COMPLEX.pack(value.real, value.imag),
    str: lambda value: _sized(b"s", value.encode("utf-8", "surrogatepass"), value),
    bytes: lambda value: _sized(b"b", value, value),
    bytearray: lambda value: _sized(b"a", value, value),
}


def pack(value: Any, depth: int = 0) -> bytes:
    """Pack a leaf, or a tuple or set of leaves as a dict key may be; `depth`: how many of these surround it.

    Unpackable: another type, or a limit is exceeded; it has the innermost value that can't be packed.
    """
    packer = _PACKERS.get(type(value))
    if packer is not None:
        return packer(value)
    if type(value) in (tuple, set, frozenset):
        return _pack_container(value, depth)
    packed = _pack_torch(value) or _pack_numpy(value)
    if packed is None:
        raise Unpackable(value)
    return packed


def pack_sequence(value: list[Any] | tuple[Any, ...]) -> bytes | None:
    """Pack a list or tuple of plain values as one leaf; None if it contains anything else."""
    kinds = set(map(type, value))
    if not kinds <= PLAIN:
        return None
    is_list = type(value) is list
    if kinds == {float}:
        return (b"d" if is_list else b"D") + _count(len(value), value) + array("d", value).tobytes()
    if kinds == {int}:
        try:
            return (b"q" if is_list else b"Q") + _count(len(value), value) + array("q", value).tobytes()
        except OverflowError:
            pass
    return b"".join((b"l" if is_list else b"t", _count(len(value), value), *map(pack, value)))


def pack_again(value: Any) -> bytes:
    """Pack a value that `Reader.value` returned, to the same bytes."""
    if type(value) is Attached:
        return pack_attached(value.number)
    packed = pack_sequence(value) if type(value) in (list, tuple) else None
    return pack(value) if packed is None else packed


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

    def value(self, may_be_attached: bool = False) -> Any:
        try:
            return self._value(may_be_attached)
        except (UnicodeDecodeError, TypeError, OverflowError, RuntimeError, struct.error) as error:
            raise DamagedError(f"the state's values are damaged: {error}") from None

    def _value(self, may_be_attached: bool) -> Any:
        """Read without recursion: the depth that can be read doesn't depend on the caller's."""
        open_containers: list[tuple[Callable[[list[Any]], Any], int, list[Any]]] = []
        while True:
            tag = self._take(1)[0]
            read, make = _READERS.get(tag), _CONTAINERS.get(tag)
            if len(open_containers) > MAX_DEPTH or (read is None and make is None):
                raise DamagedError(f"the state's values are damaged: tag {tag} at depth {len(open_containers)}")
            if make is not None:
                open_containers.append((make, self._item_count(), []))
            else:
                assert read is not None
                value = read(self)
                if type(value) is Attached and (open_containers or not may_be_attached):
                    raise DamagedError("the state's values are damaged: an attachment where a value was expected")
                if not open_containers:
                    return value
                open_containers[-1][2].append(value)
            while len(open_containers[-1][2]) == open_containers[-1][1]:
                made, _, items = open_containers.pop()
                value = made(items)
                if not open_containers:
                    return value
                open_containers[-1][2].append(value)

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

    def _item_count(self) -> int:
        count = self._length()
        if count > len(self._data) - self._at:
            raise DamagedError("the state's values are damaged: a container is longer than they are")
        return count

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


def _set_of(items: list[Any]) -> frozenset[Any]:
    if are_too_alike(items):
        raise DamagedError(f"the state's values are damaged: {TOO_ALIKE}")
    found = frozenset(items)
    if len(found) != len(items):
        raise DamagedError("the state's values are damaged: a set has an element twice")
    return found


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise UnsupportedError("the snapshot holds values of torch; install torch to read them") from None
    return torch


_CONTAINERS: dict[int, Callable[[list[Any]], Any]] = {
    ord("t"): tuple,
    ord("l"): lambda items: items,
    ord("S"): lambda items: set(_set_of(items)),
    ord("z"): _set_of,
}
_READERS: dict[int, Callable[[Reader], Any]] = {
    ord("N"): lambda reader: None,
    ord("T"): lambda reader: True,
    ord("F"): lambda reader: False,
    ord("i"): lambda reader: int.from_bytes(reader._sized(), "little", signed=True),
    ord("f"): lambda reader: _FLOAT.unpack(reader._take(8))[0],
    ord("c"): lambda reader: complex(*_COMPLEX.unpack(reader._take(16))),
    ord("s"): lambda reader: reader._sized().decode("utf-8", "surrogatepass"),
    ord("b"): lambda reader: reader._sized(),
    ord("a"): lambda reader: bytearray(reader._sized()),
    ord("q"): lambda reader: reader._numbers("q"),
    ord("Q"): lambda reader: tuple(reader._numbers("q")),
    ord("d"): lambda reader: reader._numbers("d"),
    ord("D"): lambda reader: tuple(reader._numbers("d")),
    ord("Z"): lambda reader: reader._torch_size(),
    ord("y"): lambda reader: reader._torch_dtype(),
    ord("v"): lambda reader: reader._torch_device(),
    ord("n"): lambda reader: reader._numpy_scalar(),
    ord("R"): lambda reader: Attached(reader._length()),
}
