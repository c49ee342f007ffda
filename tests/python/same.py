# SPDX-License-Identifier: BSD-3-Clause
"""Equality as users mean it: the same types, bits and order."""

from __future__ import annotations

import struct
from typing import Any

import lmcstore
import numpy as np
from optional import HAS_TORCH, torch


def same(left: Any, right: Any, path: str = "state") -> None:
    """A Parameter counts as a Tensor, and a LazyTensor as what it reads."""
    left, right = (one.read() if isinstance(one, lmcstore.LazyTensor) else one for one in (left, right))
    if HAS_TORCH and isinstance(left, torch.Tensor):
        _same_tensors(left.detach(), right, path)
        return
    assert type(left) is type(right), f"{path}: {type(left)} and {type(right)}"
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype and left.dtype.str == right.dtype.str, path
        assert left.shape == right.shape, path
        assert left.tobytes() == right.tobytes(), path
    elif isinstance(left, np.generic):
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes(), path
    elif isinstance(left, float):
        assert struct.pack("<d", left) == struct.pack("<d", right), path
    elif isinstance(left, complex):
        same(left.real, right.real, path)
        same(left.imag, right.imag, path)
    elif isinstance(left, dict):
        _same_dicts(left, right, path)
    elif isinstance(left, list | tuple) and not (HAS_TORCH and isinstance(left, torch.Size)):
        assert len(left) == len(right), path
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            same(one, other, f"{path}.{index}")
    elif isinstance(left, set | frozenset):
        assert sorted(map(_typed, left)) == sorted(map(_typed, right)), path
    else:
        assert left == right, path


def _typed(value: Any) -> str:
    return f"{type(value)} {value!r}"


def _same_dicts(left: dict[Any, Any], right: dict[Any, Any], path: str) -> None:
    assert list(map(_typed, left)) == list(map(_typed, right)), path
    for one, other in zip(left, right, strict=True):
        same(left[one], right[other], f"{path}.{one}")
    assert hasattr(left, "_metadata") == hasattr(right, "_metadata"), path
    if hasattr(left, "_metadata"):
        same(left._metadata, right._metadata, f"{path}._metadata")


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    if dense.numel() == 0:
        return b""
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def _same_tensors(left: torch.Tensor, right: Any, path: str) -> None:
    assert type(right) is torch.Tensor, f"{path}: {type(right)}"
    assert left.dtype == right.dtype, path
    assert left.shape == right.shape, path
    assert right.device.type == "cpu" and not right.requires_grad, path
    assert right.is_contiguous() or right.stride() == left.stride(), path  # it shares memory
    assert tensor_bytes(left) == tensor_bytes(right), path
