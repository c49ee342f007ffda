# SPDX-License-Identifier: BSD-3-Clause
"""The factor that gradients were multiplied by before a step, found from a sample of the gradients.

Links (see codec/README.md) encode a step by its gradient, which is short if it came from bf16; a clip or a loss scale
makes it long until the factor is known.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _core
from ..errors import UnsupportedError

_TENSORS = 16
"""The largest that are sampled: a clip by the norm of all is the same for all."""
_ELEMENTS = 256
"""Of each."""


def scale_of(gradients: Any) -> float:
    """Find the factor; 0: none makes the gradients short.

    `gradients`: a module or an optimizer with gradients, or any iterable or mapping of tensors.
    """
    try:
        tensors = list(_tensors(gradients))
        known = all(hasattr(tensor, "tolist") and hasattr(tensor, "reshape") for tensor in tensors)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        known = False
    if not known:
        raise UnsupportedError(
            f"gradients of type {type(gradients).__qualname__!r} are none: give a model, an optimizer, or tensors"
        )
    sample = array("f")
    for tensor in sorted(tensors, key=_count, reverse=True)[:_TENSORS]:
        sample.extend(_sample(tensor))
    return _core.gradient_scale(sample)


_NO_SAMPLE = (AttributeError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError)
"""Errors of sparse, nested and complex gradients, which are ignored."""


def _sample(tensor: Any) -> list[float]:
    try:
        flat = tensor.reshape(-1)
        return list(map(float, flat[:: max(1, _count(tensor) // _ELEMENTS)][:_ELEMENTS].tolist()))
    except _NO_SAMPLE:
        return []


def _count(tensor: Any) -> int:
    count = 1
    try:
        for length in tensor.shape:
            count *= length
    except _NO_SAMPLE:
        return 0
    return count


def _tensors(gradients: Any) -> Iterable[Any]:
    if hasattr(gradients, "tolist"):  # tensor or array
        return [gradients]
    if isinstance(getattr(gradients, "param_groups", None), list):
        parameters = [p for group in gradients.param_groups for p in group["params"]]
    elif callable(getattr(gradients, "parameters", None)):
        parameters = list(gradients.parameters())
    else:
        values = gradients.values() if isinstance(gradients, Mapping) else gradients
        return [tensor for tensor in values if tensor is not None]
    return [p.grad for p in parameters if p.grad is not None]
