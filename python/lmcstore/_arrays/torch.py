# SPDX-License-Identifier: BSD-3-Clause
"""Torch tensors as tensors of a store and back.

A tensor in CPU memory is stored by its address, shape and strides, without a copy. Others, and lazily conjugated or
negated ones, are copied: small ones in groups, large ones into room that the capture reserves, CUDA ones through pinned
memory (`_arrays.device`). A tensor is read as a writable one over a private mapping, which it keeps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from .. import _core
from ..errors import UnsupportedError
from .device import CHUNK_BYTES, Cuda, Stage
from .dtypes import DTYPES, name_of
from .stretch import Stretch


class Described:
    __slots__ = ("address", "dtype", "must_copy", "shape", "strides", "tie")

    def __init__(
        self,
        dtype: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        address: int,
        must_copy: bool,
        tie: tuple[Any, ...] | None,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.strides = strides  # bytes; None: row-major
        self.address = address
        self.must_copy = must_copy
        self.tie = tie  # equal for tensors that view the same memory alike; None: never tied


class Torch:
    """The torch module and values derived from it."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.types = frozenset({torch.Tensor, torch.nn.Parameter})
        self._have_names = hasattr(torch.Tensor, "names")  # removed in newer versions
        self.number_of: dict[Any, int] = {}
        self.dtype_of: dict[int, Any] = {}
        self._item_bytes: dict[int, int] = {}
        self._usual: dict[Any, tuple[int, int]] = {}  # dtypes without lazy conjugation: number and bytes
        self._complex = {known.number for known in DTYPES if known.is_complex}
        for known in DTYPES:
            dtype = getattr(torch, known.torch, None)
            if dtype is not None:
                self.number_of[dtype] = known.number
                self.dtype_of[known.number] = dtype
                self._item_bytes[known.number] = dtype.itemsize
                if not known.is_complex:
                    self._usual[dtype] = known.number, dtype.itemsize
        self._strided = torch.strided
        self._cuda = Cuda(torch)

    def is_f32(self, value: Any) -> bool:
        """Whether a value is a storable tensor of float32."""
        return type(value) in self.types and value.dtype is self.torch.float32 and value.layout is self._strided

    def usual(self, tensor: Any) -> tuple[int, tuple[int, ...], int, int, int, bool] | None:
        """Return dtype, shape, the storage's address, address, end of a usual tensor, and whether it is on the CPU.

        Usual is: on the CPU or a `Cuda`, row-major, with items, real. None: it is not.

        Checks as little as possible: a capture of many small tensors spends its time here.
        """
        known = self._usual.get(tensor.dtype)
        is_cpu = tensor.is_cpu
        if known is None or tensor.layout is not self._strided or tensor.is_nested or not (is_cpu or tensor.is_cuda):
            return None
        if not tensor.is_contiguous() or tensor.is_neg() or (self._have_names and tensor.has_names()):
            return None
        shape, offset, size = tensor.shape, tensor.storage_offset() * known[1], tensor.nbytes
        try:
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
        except (RuntimeError, NotImplementedError):
            return None
        if not start or not size or offset + size > storage.nbytes() or len(shape) > _core.MAX_DIMS:
            return None
        return known[0], shape, start, start + offset, start + offset + size, is_cpu

    def describe(self, tensor: Any, path: str) -> Described:
        """Describe how a tensor (of exactly that type, or a Parameter) is stored; `path` is its place, for errors.

        UnsupportedError: it is sparse, quantized, nested, on no device, or has a dtype that the store lacks.
        """
        dtype = self.number_of.get(tensor.dtype)
        if dtype is None:
            remedy = (
                "store its dequantize(), or its int_repr(), scales and zero points"
                if tensor.is_quantized
                else "store its view(torch.uint8) and the dtype"
            )
            raise UnsupportedError(f"{path}: a tensor of dtype {tensor.dtype} can't be stored; {remedy}")
        if tensor.layout is not self.torch.strided or tensor.is_nested:
            layout = "nested" if tensor.is_nested else tensor.layout
            raise UnsupportedError(f"{path}: a tensor of layout {layout} can't be stored; store its dense parts")
        if tensor.ndim > _core.MAX_DIMS:
            raise UnsupportedError(
                f"{path}: a tensor of {tensor.ndim} dimensions can't be stored, only {_core.MAX_DIMS}"
            )
        if tensor.is_meta:
            raise UnsupportedError(
                f"{path}: a tensor on the device 'meta' has no bytes to store; load it first, or leave it out"
            )
        if self._have_names and tensor.has_names():
            raise UnsupportedError(f"{path}: a named tensor can't be stored; store tensor.rename(None)")
        shape = tuple(tensor.shape)
        count = tensor.numel()
        if count == 0:
            return Described(dtype, shape, None, 0, False, None)
        try:
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
        except (RuntimeError, NotImplementedError) as error:
            raise UnsupportedError(f"{path}: a tensor without memory of its own can't be stored: {error}") from None
        strides, offset, item = tensor.stride(), tensor.storage_offset(), self._item_bytes[dtype]
        is_dense = tensor.is_contiguous()
        span = count if is_dense else 1 + sum((size - 1) * by for size, by in zip(shape, strides, strict=True))
        if (offset + span) * item > storage.nbytes():
            raise UnsupportedError(f"{path}: the tensor's storage has been freed or is too small (as FSDP does it)")
        if tensor.is_cpu and not tensor.is_neg() and not (dtype in self._complex and tensor.is_conj()):
            byte_strides = None if is_dense else tuple(stride * item for stride in strides)
            tie = (start, offset, strides, shape, dtype)
            return Described(dtype, shape, byte_strides, start + offset * item, False, tie)
        seen = (start, offset, strides, shape, dtype, tensor.is_conj(), tensor.is_neg(), tensor.device)
        return Described(dtype, shape, None, start + offset * item, True, seen)

    def stretch(self, owner: Any, tensor: Any) -> tuple[Any, Stretch] | None:
        """Return a tensor's device and place in its memory; None: it is empty, or lazily conjugated or negated.

        `describe` has accepted it.
        """
        if tensor.numel() == 0 or tensor.is_conj() or tensor.is_neg():
            return None
        shape, strides, item = tuple(tensor.shape), tensor.stride(), tensor.element_size()
        address = tensor.untyped_storage().data_ptr() + tensor.storage_offset() * item
        kind = (address, shape, strides, tensor.dtype)
        return tensor.device, Stretch(owner, address, shape, [by * item for by in strides], item, kind)

    def dtype_name(self, dtype: Any) -> str | None:
        """Return the store's name of a dtype, or None."""
        number = self.number_of.get(dtype)
        return None if number is None else name_of(number)

    def start(self, tensor: Any) -> int:
        """Return the address of a tensor's storage, which `describe` has accepted; 0: it is empty."""
        return 0 if tensor.numel() == 0 else int(tensor.untyped_storage().data_ptr())

    def backend(self, tensor: Any) -> Any:
        """Return the `device.Cuda` for a tensor; None: not on such a device."""
        return self._cuda if tensor.is_cuda else None

    def copy_back(self, target: Any, source: Any) -> None:
        """Copy a CPU tensor to one on any device, of equal dtype and shape."""
        backend = self.backend(target)
        size = target.numel() * target.element_size()
        with self.torch.no_grad():
            if backend is None or size < CHUNK_BYTES or not target.is_contiguous():
                target.copy_(source)
            else:
                Stage(self.torch, backend, size).to_device(target, source)

    def dense_copy(self, tensor: Any, path: str) -> Any:
        """Copy a tensor to the CPU, row-major, its lazy conjugation or negation applied."""
        try:
            return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        except RuntimeError as error:
            raise UnsupportedError(f"{path}: the tensor can't be copied to the CPU: {error}") from None

    def copy_into(self, tensor: Any, room: Callable[[], _core.Buffer], path: str) -> None:
        """Copy a tensor into a Buffer. No variable holds that: a traceback would keep it, and so the capture."""
        try:
            self.torch.frombuffer(room(), dtype=tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        except RuntimeError as error:
            raise UnsupportedError(f"{path}: the tensor can't be copied to the CPU: {error}") from None

    def bytes_aside(self, size_bytes: int) -> Any:
        return self.torch.empty(size_bytes, dtype=self.torch.uint8, device="cpu")

    def tensor(self, buffer: _core.Buffer, dtype: int, shape: tuple[int, ...]) -> Any:
        """Make a tensor over a buffer, which it keeps: on the CPU, row-major, writable if the buffer is, no view."""
        found = self.dtype(dtype)
        if 0 in shape:
            return self._empty(shape, found)
        flat = self.torch.frombuffer(buffer, dtype=found)
        return flat if len(shape) == 1 else flat.resize_(shape)  # no view, no new memory

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        try:
            return self.torch.empty(shape, dtype=dtype, device="cpu")
        except (RuntimeError, TypeError, OverflowError):  # the product of the others overflows
            raise UnsupportedError(f"torch can't make an empty tensor of shape {shape}") from None

    def dtype(self, number: int) -> Any:
        """Return torch's dtype for one of the store's; UnsupportedError: this torch has none."""
        found = self.dtype_of.get(number)
        if found is None:
            raise UnsupportedError(f"this torch ({self.torch.__version__}) has no dtype for {name_of(number)}")
        return found

    def storage(self, buffer: Any) -> Any:
        """Make a storage over a buffer, which it keeps."""
        return self.torch.frombuffer(buffer, dtype=self.torch.uint8).untyped_storage()

    def bits(self, item_bytes: int) -> Any:
        """Return a dtype of that size that is copied bit by bit."""
        torch = self.torch
        return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[item_bytes]

    def strided(self, storage: Any, dtype: Any, shape: Sequence[int], offset: int, strides: Sequence[int]) -> Any:
        """Make a tensor over a part of a storage, which the caller has checked; strides in elements, no view."""
        return self.torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, shape, strides)

    def again(self, tensor: Any) -> Any:
        return tensor.detach()


@functools.lru_cache(maxsize=1)
def torch_of(torch: Any) -> Torch:
    """Return the `Torch` of the module, made once."""
    return Torch(torch)
