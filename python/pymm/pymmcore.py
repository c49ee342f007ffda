# SPDX-License-Identifier: BSD-3-Clause
"""The functions that programs use of PyMM's C module."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

from lmcstore import _core

from ._memory import ShelfError, shelf_errors

_LEAST_BYTES = 4 << 20  # smaller arrays fit in memory, which is much faster
_ALL = 1 << 62


def version() -> str:
    """Return the version of the package."""
    import lmcstore

    return lmcstore.__version__


def memoryview_addr(view: Any) -> int:
    """Return the address of a buffer's first byte."""
    import numpy

    address: int = numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0]
    return address


def enable_transient_memory(
    backing_directory: str = "/tmp", pmem_file: str | None = None, pmem_file_size_gb: float = 0
) -> None:
    """Let NumPy make large arrays in files, so that right-hand sides of assignments may be larger than memory.

    From now on, arrays of 4 MiB and more that this thread makes are mapped from unlinked files, which end with them.
    The kernel writes them out when memory is short. That is slower, so compute into variables where possible:
    ``np.add(a, b, out=s.x)``. torch's tensors are not affected. After a fork, parent and child share such arrays.

    `backing_directory` is a folder for the files. The folder of `pmem_file` (a file that is not made) is used first, up
    to `pmem_file_size_gb` (0: its free space). RuntimeError: no file can be made in a folder.
    """
    if not os.path.isdir(backing_directory):
        raise ShelfError(f"backing_directory {backing_directory!r} is no folder")
    folders = [(os.fsencode(backing_directory), _ALL)]
    if pmem_file is not None:
        folder = os.path.dirname(os.path.abspath(pmem_file))
        if not os.path.isdir(folder):
            raise ShelfError(f"pmem_file {pmem_file!r} is in no folder")
        if not pmem_file_size_gb >= 0:
            raise ShelfError("pmem_file_size_gb can't be negative")
        most = min(int(pmem_file_size_gb * (1 << 30)), _ALL) if pmem_file_size_gb else _ALL
        folders.insert(0, (os.fsencode(folder), most))
    with shelf_errors():
        _core.numpy_memory(_functions(), tuple(folders), _LEAST_BYTES)


def disable_transient_memory() -> None:
    """Let NumPy make arrays in memory again; existing ones in files stay there."""
    _core.numpy_memory(_functions(), (), 0)


def _functions() -> Any:
    for package in ("numpy._core", "numpy.core"):  # of NumPy 2 and 1
        with contextlib.suppress(ImportError, AttributeError):
            module = importlib.import_module(f"{package}._multiarray_umath")
            if hasattr(module, "get_handler_name"):  # the function is in the table since NumPy 1.22
                return module._ARRAY_API
    raise ShelfError("this NumPy does not let others say where its arrays are")
