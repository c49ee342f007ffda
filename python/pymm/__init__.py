# SPDX-License-Identifier: BSD-3-Clause
"""Persistent variables: the interface of IBM's PyMM, on `lmcstore`.

A shelf is an object whose attributes are in a pool::

    import pymm

    s = pymm.shelf("experiment", size_mb=1024, pmem_path="/mnt/pmem0")
    s.x = pymm.ndarray((1000, 1000))     # an np.ndarray in the pool
    s.x[5] += 1                          # in place; s.x.persist() makes it durable
    s.count = 1                          # numbers, texts and bytes are durable at once
    s.count += 1
    s.tx_begin_all()                     # until tx_end all or, after a crash, nothing
    s.x.sort()
    s.count += 1
    s.tx_end()

The pool is the file ``<pmem_path>/<name>.pool``, also for `lmcstore` and ``lmc-store``. Every refusal is a
RuntimeError. torch is imported on demand.
"""

try:
    import numpy as np
except ImportError as error:
    raise ImportError("pymm needs NumPy: pip install numpy") from error

from . import pymmcore
from ._memory import MemoryReference, Shadow, ShelfError, ShelvedCommon
from .bytes import bytes
from .dlpack_array import dlpack_array
from .float_number import float_number
from .integer_number import integer_number
from .linkedlist import linked_list
from .memoryresource import MemoryResource
from .ndarray import ndarray
from .pymmcore import disable_transient_memory, enable_transient_memory
from .shelf import shelf
from .string import string
from .torch_tensor import torch_tensor

__all__ = [
    "MemoryReference",
    "MemoryResource",
    "Shadow",
    "ShelfError",
    "ShelvedCommon",
    "bytes",
    "disable_transient_memory",
    "dlpack_array",
    "enable_transient_memory",
    "float_number",
    "integer_number",
    "linked_list",
    "ndarray",
    "np",
    "pymmcore",
    "shelf",
    "string",
    "torch_tensor",
]
