# SPDX-License-Identifier: BSD-3-Clause
"""What programs ask of PyMM's C module."""

from __future__ import annotations

import os
from typing import Any

from ._memory import ShelfError


def version() -> str:
    """Give the version of the package."""
    import lmcstore

    return lmcstore.__version__


def memoryview_addr(view: Any) -> int:
    """Give the address of a buffer's first byte."""
    import numpy

    address: int = numpy.frombuffer(view, numpy.uint8).__array_interface__["data"][0]
    return address


def enable_transient_memory(
    backing_directory: str = "/tmp", pmem_file: str | None = None, pmem_file_size_gb: float = 0
) -> None:
    """Take what PyMM takes, which needed a NumPy of its own, and check it.

    Right-hand sides of assignments are made in ordinary memory. Where they don't fit, make the variable first, with
    `pymm.ndarray`, and compute into it: ``np.add(a, b, out=s.x)``.
    """
    if not os.path.isdir(backing_directory):
        raise ShelfError(f"backing_directory {backing_directory!r} is no folder")
    if pmem_file is not None and not os.path.isdir(os.path.dirname(os.path.abspath(pmem_file))):
        raise ShelfError(f"pmem_file {pmem_file!r} is in no folder")
    if pmem_file_size_gb < 0:
        raise ShelfError("pmem_file_size_gb can't be negative")


def disable_transient_memory() -> None:
    """Undo `enable_transient_memory`."""
