# SPDX-License-Identifier: BSD-3-Clause
"""H: the smallest order-0 size of a tensor, alone and against its base."""

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[Any]
EXPONENT = {"bf16": (7, 255), "f16": (10, 31), "f32": (23, 255)}  # shift, mask
KINDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def entropy(counts: Words) -> float:
    """Return bits a symbol."""
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log2(p)).sum())


def plane_bits(words: Words) -> float:
    """Sum over byte planes."""
    octets = words.view(np.uint8).reshape(-1, words.itemsize)
    return sum(entropy(np.bincount(octets[:, i], minlength=256)) for i in range(words.itemsize))


def rotate(words: Words) -> Words:
    """Move the sign lowest, so the exponent has its own byte."""
    turned: Words = (words << words.dtype.type(1)) | (words >> words.dtype.type(8 * words.itemsize - 1))
    return turned


def zigzag(words: Words) -> Words:
    """Map signed to unsigned numbers, small to small."""
    signed = words.view(f"i{words.itemsize}")
    return ((signed << 1) ^ (signed >> (8 * words.itemsize - 1))).view(words.dtype)


def given(symbols: Words, context: Words, bits: int) -> float:
    """Return the entropy given a context."""
    joint = np.bincount((context.astype(np.int64) << bits) | symbols)
    return entropy(joint) - entropy(np.bincount(context))


def length_bits(difference: Words, exponent: Words) -> float:
    """Count bits of a difference: sign, length given the exponent, raw bits."""
    signed = difference.view(f"i{difference.itemsize}").astype(np.int64)
    length = np.frexp(np.abs(signed).astype(np.float64))[1].astype(np.int64)
    return given((length << 1) | (signed < 0), exponent, 8) + float(np.maximum(length - 1, 0).mean())


def least(data: Words, base: Words | None, dtype: str) -> tuple[float, str]:
    """Return the fewest bits an element, and the representation."""
    found = {"alone": plane_bits(rotate(data))}
    if base is not None:
        difference = data - base
        found["XOR"] = plane_bits(rotate(data ^ base))
        found["difference"] = plane_bits(zigzag(difference))
        if data.itemsize == 2:
            found["difference as a word"] = entropy(np.bincount(difference))
        if dtype in EXPONENT:
            shift, mask = EXPONENT[dtype]
            exponent = (base >> base.dtype.type(shift)) & base.dtype.type(mask)
            if data.itemsize == 2:
                found["difference given the exponent"] = given(difference, exponent, 16)
            else:
                found["length given the exponent"] = length_bits(difference, exponent)
    way = min(found, key=lambda name: found[name])
    return found[way], way
