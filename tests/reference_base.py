# SPDX-License-Identifier: BSD-3-Clause
"""The reference readers' errors, byte reader, and f32 arithmetic that rounds once."""

from __future__ import annotations

import math
import struct
from fractions import Fraction


class Damaged(Exception):
    """No writer made this [1.3]."""


class Unsupported(Exception):
    """Needs an unknown feature or version [1.3]."""


def refuse(condition: bool, why: str) -> None:
    if condition:
        raise Damaged(why)


def unsupported(condition: bool, why: str) -> None:
    if condition:
        raise Unsupported(why)


class Reader:
    """Bytes taken from the front, with checked length."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        refuse(count > len(self.data) - self.at, "a block ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        return self.take(1)[0]


def to_float(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def to_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def rounded(exact: Fraction, zero: float) -> float:
    """[10.4] The f32 nearest to a number, the even one of two; `zero` where it is zero."""
    if exact == 0:
        return zero
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    value = round(size / unit) * unit  # Python rounds halves to even
    result = math.inf if value >= Fraction(2) ** 128 else float(value)
    return -result if exact < 0 else result


def fma(a: float, b: float, c: float) -> float:
    """[10.4] Rounded once; infinities and NaN follow double's rules."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    return rounded(Fraction(a) * Fraction(b) + Fraction(c), a * b + c)


def multiply(a: float, b: float) -> float:
    return rounded(Fraction(a) * Fraction(b), a * b) if math.isfinite(a) and math.isfinite(b) else a * b


def divide(a: float, b: float) -> float:
    if b == 0 or not (math.isfinite(a) and math.isfinite(b)):
        if b == 0:
            return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
        return a / b
    return rounded(Fraction(a) / Fraction(b), math.copysign(0.0, a) * math.copysign(1.0, b))


def root(x: float) -> float:
    """A double's square root, rounded again, is the f32's: it has more than twice the bits."""
    return math.nan if x < 0 or math.isnan(x) else x if math.isinf(x) else rounded(Fraction(math.sqrt(x)), x)
