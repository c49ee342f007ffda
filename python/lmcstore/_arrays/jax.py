# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of JAX as NumPy arrays: without a copy on a CPU, where JAX does not reuse their memory while these live."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedError
from .packages import loaded


def array_of(value: Any, path: str) -> Any:
    """Return the NumPy array of a JAX array, of a random key its data; None: the value is neither.

    UnsupportedError: it can't be read here, because it was deleted, is traced, or lies in other processes, too.
    """
    jax: Any = loaded("jax")
    if jax is None or not isinstance(value, getattr(jax, "Array", ())):
        return None
    import numpy

    try:
        array: Any = value
        if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
        return numpy.asarray(array)
    except (TypeError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UnsupportedError(f"{path}: a JAX array can't be stored: {reason}") from None
