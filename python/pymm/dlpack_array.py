# SPDX-License-Identifier: BSD-3-Clause
"""Arrays on a shelf that other libraries use through DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np
from lmcstore import _core

from ._memory import Names, ShelvedCommon, make_note, read_note
from .ndarray import ndarray, open_array


class shelved_dlpack_array(ShelvedCommon):
    """An array in the pool that makes DLPack capsules and NumPy arrays."""

    def __init__(self, names: Names | None, name: str, core: _core.Live) -> None:
        self._array = open_array(names, name, core)
        self._value_named_memory = self._array._value_named_memory
        self.name = name

    @property
    def addr(self) -> tuple[str, int]:
        """Its address, as hexadecimal text, and its bytes."""
        return self._array.addr

    def as_capsule(self) -> Any:
        """Return a DLPack capsule over the pool's bytes, for a library's ``from_dlpack``."""
        return self._array.asndarray().__dlpack__()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.asndarray().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self._array.asndarray().__dlpack_device__()

    def asndarray(self) -> Any:
        """Return a plain np.ndarray over the same memory."""
        return self._array.asndarray()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.asndarray()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def copy_shadow(self) -> dlpack_array:
        """Return a shadow that copies it."""
        shadow = dlpack_array(self._array.shape, self._array.dtype)
        shadow.source = self._array
        return shadow

    def persist(self) -> None:
        """Make stores to it durable."""
        self._array.persist()

    def fill(self, value: Any) -> None:
        """Fill it with a value, durably."""
        self._array.fill(value)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self._array.ndim

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.asndarray(), name)

    def __getitem__(self, index: Any) -> Any:
        return self.asndarray()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.asndarray()[index] = value

    def __len__(self) -> int:
        return len(self._array)

    def __repr__(self) -> str:
        return repr(self.asndarray())

    def __str__(self) -> str:
        return str(self.asndarray())


class dlpack_array(ndarray):
    """An array to be put on a shelf and used through DLPack. Parameters as for `pymm.ndarray`."""

    def __init__(self, shape: Any, dtype: Any = np.float64, strides: Any = None, zero: bool = False) -> None:
        super().__init__(shape, dtype, strides, "C", zero)

    def build(self, names: Names, name: str) -> Any:
        """Make the array, unnamed yet."""
        made = super().build(names, name)
        core = made._value_named_memory.core
        note, extra = read_note(core.info()["note"])
        core.set_note(make_note(note, **extra, type="dlpack_array").encode())
        return shelved_dlpack_array(names, name, core)
