# SPDX-License-Identifier: BSD-3-Clause
"""`LiveTensor`: a tensor in the pool."""

from __future__ import annotations

import operator
from typing import Any

from .. import _core
from .._arrays.dtypes import U8, name_of
from .._arrays.packages import loaded
from .._text.arguments import within
from ..errors import DamagedError, InvalidError, UnsupportedError
from .kinds import MAX_BYTES, access_of, numpy_dtype, shape_of, torch_module
from .variable import LiveVariable


class LiveTensor(LiveVariable):
    """A live tensor. `array` and `tensor` show its bytes in place, and stay valid while they are referenced."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape now."""
        shape: tuple[int, ...] = self._core.info()["shape"]
        return shape[:-1] if ":" in self._note else shape

    @property
    def dtype(self) -> str:
        """The store's name of its dtype, such as ``"f32"``."""
        return name_of(self._dtype)

    @property
    def array(self) -> Any:
        """A NumPy array over its bytes; writable if the store is."""
        import numpy

        buffer, shape = self._buffer()
        dtype = numpy_dtype(self._dtype, self._note, self._name)
        if ":" in self._note:
            if self._dtype != U8 or shape[-1:] != (dtype.itemsize,):
                raise DamagedError(f"live tensor {self._name!r}: its bytes are no array of {dtype}")
            shape = shape[:-1]
        return numpy.ndarray(shape, dtype, memoryview(buffer))

    @property
    def tensor(self) -> Any:
        """A torch tensor over its bytes, on the CPU; a leaf that doesn't require gradients.

        In a store opened for reading, a write to it ends the process by SIGSEGV: torch has no read-only tensors. Its
        ``clone()`` is writable.

        torch's ``share_memory_()``, and sending it to another process (`torch.multiprocessing`, DataLoader workers that
        are not forked), move it to other memory: later writes do not reach the pool. Send a ``clone()``, or open the
        pool there.
        """
        if ":" in self._note:
            raise UnsupportedError(f"live variable {self._name!r} has a NumPy dtype that torch has not: use array")
        buffer, shape = self._buffer()
        return torch_module().tensor(buffer, self._dtype, shape)

    def _buffer(self) -> tuple[_core.Buffer, tuple[int, ...]]:
        """Return its bytes and their shape, even while another thread resizes it."""
        while True:
            buffer, raw = self._core.buffer(), self._core.info()
            if len(buffer) == raw["bytes"]:
                return buffer, raw["shape"]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.array
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"live tensor {self._name!r} of {array.dtype} is no array of {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise TypeError("a tensor without dimensions has no len()")
        return shape[0]

    def persist(self, start: int = 0, stop: int | None = None) -> None:
        """Make stores to it, or to the elements from `start` to `stop`, durable.

        Elements count row by row through all dimensions. InvalidError: the range is not in the tensor.
        """
        item = self._element_bytes
        start = operator.index(start)
        stop = self.nbytes // item if stop is None else operator.index(stop)
        if not 0 <= start <= stop:
            raise InvalidError(f"live tensor {self._name!r}: there is no range {start}:{stop}")
        self._core.persist(start * item, (stop - start) * item)

    def advise(self, access: str) -> None:
        """Advise the kernel how this process reads it: ``"normal"``, ``"random"`` or ``"sequential"``.

        By default, a page fault reads up to megabytes around the page. After ``"random"`` it reads one page: faster for
        single rows of a tensor larger than memory, slower for all of it. After ``"sequential"`` it reads only ahead.
        The advice is for all objects and arrays of this process over the tensor, also after a resize, until the last of
        them is dropped. It is not stored. Snapshots ignore it. It has no effect on a device.
        """
        self._core.advise(access_of(access, f"live tensor {self._name!r}"))

    def resize(self, shape: Any) -> None:
        """Change its shape. New elements are zero, elements beyond the new shape are lost, and nothing is copied.

        Earlier views keep their shape and show the same bytes. Waits for a snapshot that reads it.

        Raises
        ------
        InUseError
            It would shrink while it is viewed or held.
        FullError
            No room.
        UnsupportedError
            It has grown in too many pieces (16). Assign a larger tensor.
        """
        sizes = shape_of(shape, f"live tensor {self._name!r}")
        wanted = (*sizes, self._core.info()["shape"][-1]) if ":" in self._note else sizes
        self._core.resize(wanted)

    def write(self, start: int, data: Any) -> None:
        """Write elements atomically and durably, 64 KiB at most, from element `start` on, counted row by row.

        `data` is a C-contiguous array of the tensor's dtype (else InvalidError), or bytes.
        """
        start = within(start, 0, MAX_BYTES, "start")
        self._core.write(start * self._element_bytes, self._bytes_of(data))

    def _bytes_of(self, data: Any) -> memoryview:
        numpy: Any = loaded("numpy")
        if numpy is None or not isinstance(data, numpy.ndarray):
            view = memoryview(data)
            if view.format in ("B", "b", "c"):
                return view.cast("B")
            import numpy

            data = numpy.asarray(view)
        dtype = numpy_dtype(self._dtype, self._note, self._name)
        if data.dtype != dtype and data.dtype != numpy.uint8:
            raise InvalidError(f"live tensor {self._name!r} has elements of {dtype}, not of {data.dtype}")
        if not data.flags.c_contiguous:
            raise InvalidError(f"live tensor {self._name!r}: the data must be C-contiguous")
        return memoryview(data.reshape(-1).view(numpy.uint8))

    def add(self, index: Any, value: int) -> int:
        """Add to an integer element and return the earlier value.

        Durable, wraps around, atomic among threads that use these functions.
        """
        return self._add(self._offset(index), value)

    def compare_and_swap(self, index: Any, expected: Any, desired: Any) -> bool:
        """Write an element if it has the expected value, and return whether it had: atomic as `add`."""
        return self._compare_and_swap(self._offset(index), expected, desired)

    def __repr__(self) -> str:
        return f"<lmcstore.LiveTensor {self.name!r}, {self.dtype}, {self.shape}>"
