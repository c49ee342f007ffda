# SPDX-License-Identifier: BSD-3-Clause
"""The dtypes: one row for each, with its name in every package; all other tables of dtypes derive from this one.

Names, numbers and sizes of the store come from codec/lmc.h by way of ``_core``.
"""

from __future__ import annotations

from typing import NamedTuple

from .. import _core


class Dtype(NamedTuple):
    """A name is empty where a package lacks the dtype."""

    name: str
    """In the store."""
    torch: str
    """Attribute of the module torch; an older torch has fewer."""
    numpy: str = ""
    """NumPy's character."""
    ml_dtypes: str = ""
    """Attribute of the package ml_dtypes."""
    code: str = ""
    """Character of a number in Python's struct."""

    @property
    def number(self) -> int:
        """Its number in lmc.h."""
        return _core.DTYPES[self.name]

    @property
    def is_integer(self) -> bool:
        return self.code != "" and self.code in "bBhHiIqQ"

    @property
    def is_complex(self) -> bool:
        """Whether torch can conjugate it lazily."""
        return self.torch.startswith("complex")


DTYPES = (
    Dtype("bool", "bool", numpy="?", code="?"),
    Dtype("u8", "uint8", numpy="B", code="B"),
    Dtype("u16", "uint16", numpy="H", code="H"),
    Dtype("u32", "uint32", numpy="I", code="I"),
    Dtype("u64", "uint64", numpy="L", code="Q"),
    Dtype("i8", "int8", numpy="b", code="b"),
    Dtype("i16", "int16", numpy="h", code="h"),
    Dtype("i32", "int32", numpy="i", code="i"),
    Dtype("i64", "int64", numpy="l", code="q"),
    Dtype("f16", "float16", numpy="e", code="e"),
    Dtype("bf16", "bfloat16", ml_dtypes="bfloat16"),
    Dtype("f32", "float32", numpy="f", code="f"),
    Dtype("f64", "float64", numpy="d", code="d"),
    Dtype("c32", "complex32"),
    Dtype("c64", "complex64", numpy="F"),
    Dtype("c128", "complex128", numpy="D"),
    Dtype("f8_e4m3fn", "float8_e4m3fn", ml_dtypes="float8_e4m3fn"),
    Dtype("f8_e4m3fnuz", "float8_e4m3fnuz", ml_dtypes="float8_e4m3fnuz"),
    Dtype("f8_e5m2", "float8_e5m2", ml_dtypes="float8_e5m2"),
    Dtype("f8_e5m2fnuz", "float8_e5m2fnuz", ml_dtypes="float8_e5m2fnuz"),
    Dtype("f8_e8m0fnu", "float8_e8m0fnu", ml_dtypes="float8_e8m0fnu"),
    Dtype("f4_e2m1fn_x2", "float4_e2m1fn_x2"),
)

BY_NUMBER = {dtype.number: dtype for dtype in DTYPES}
BY_TORCH_NAME = {dtype.torch: dtype for dtype in DTYPES}
U8 = _core.DTYPES["u8"]


def name_of(number: int) -> str:
    """Return the store's name, or ``"dtype 77"`` for an unknown dtype."""
    known = _core.dtype_info(number)
    return known[0] if known is not None else f"dtype {number}"


def code_of(number: int) -> str:
    """Return its character in Python's struct, or ``""``: none."""
    return BY_NUMBER[number].code if number in BY_NUMBER else ""


def size_of(number: int) -> int:
    """Return bytes per element; 1 for an unknown dtype."""
    known = _core.dtype_info(number)
    return known[1] if known is not None else 1
