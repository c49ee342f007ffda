# SPDX-License-Identifier: BSD-3-Clause
"""Torch tensors on a shelf. torch is imported on demand."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import lmcstore
import numpy as np
from lmcstore import _core
from lmcstore._arrays.torch import Torch

from ._memory import MemoryReference, Names, Shadow, ShelfError, ShelvedCommon, make_note, shelf_errors

_made: dict[str, Any] = {}  # the class, and other values derived from torch


def _tools() -> Torch:
    if "torch" not in _made:
        import torch

        _made.setdefault("torch", Torch(torch))
    return _made["torch"]  # type: ignore[no-any-return]


def __getattr__(name: str) -> Any:
    if name == "shelved_torch_tensor":
        return _shelved_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _torch() -> Any:
    return _tools().torch


class _Methods(ShelvedCommon):
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __lmcstore_plain__(self) -> Any:
        """Let `lmcstore.Shelf.snapshot` store it as a plain tensor."""
        return self.as_tensor()

    def as_tensor(self) -> Any:
        """Return a plain torch.Tensor over the same memory."""
        return self.as_subclass(_torch().Tensor)

    def detach(self) -> Any:
        """Return the tensor without its history, over the same memory; it can become a Parameter."""
        plain = _torch().Tensor.detach(self).as_subclass(_torch().Tensor)
        return _shelved(plain, self._value_named_memory, self.name_on_shelf)

    @property
    def data(self) -> Any:
        """The tensor without its history; an assigned value is copied into the tensor, durably.

        RuntimeError: another shape, dtype or device.
        """
        return _torch().Tensor.data.__get__(self)

    @data.setter
    def data(self, value: Any) -> None:
        _put_data(self, value)

    def set_(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a variable keeps its memory."""
        raise ShelfError(_KEEPS.format(self.name_on_shelf, "set_"))

    def resize_(self, *sizes: Any, **kwargs: Any) -> Any:
        """Refuse another shape than its own: a variable keeps it."""
        wanted = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
        if tuple(wanted) != tuple(self.shape):
            raise ShelfError(_KEEPS.format(self.name_on_shelf, "resize_"))
        return self

    def resize_as_(self, other: Any, **kwargs: Any) -> Any:
        """Refuse another shape than its own: a variable keeps it."""
        return self.resize_(tuple(other.shape))

    def fill(self, value: Any) -> Any:
        """Fill it with a value, durably."""
        with _torch().no_grad():
            self.fill_(value)
        self.persist()
        return self

    def persist(self) -> None:
        """Make stores to the tensor durable."""
        self._value_named_memory.persist()

    def persist_offset(self, item_offset: int, item_count: int) -> None:
        """Make some items durable, counted row by row; RuntimeError: they are not all in the tensor."""
        item = self.element_size()
        try:
            first, count = operator.index(item_offset), operator.index(item_count)
            self._value_named_memory.core.persist(first * item, count * item)
        except (lmcstore.Error, ValueError, TypeError) as error:
            raise ShelfError(f"items {item_offset} and so on can't be made durable: {error}") from error

    def __deepcopy__(self, memo: Any) -> Any:
        plain = self.as_tensor().detach().clone()
        if getattr(self, "_is_param", False):
            return _torch().nn.Parameter(plain, self.requires_grad)
        return plain.requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_tensor().detach().clone().requires_grad_(self.requires_grad).__reduce_ex__(protocol)

    def __repr__(self, **kwargs: Any) -> str:
        return repr(self.as_tensor())

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.as_tensor(), spec)


def _shelved_class() -> Any:
    if "class" in _made:
        return _made["class"]
    torch = _torch()

    class shelved_torch_tensor(_Methods, torch.Tensor):  # type: ignore[misc, name-defined]
        """A torch.Tensor in the pool. Its views and results of computations are plain tensors."""

        __torch_function__ = torch._C._disabled_torch_function_impl

    for name in _RESHAPING:
        if hasattr(torch.Tensor, name):
            setattr(shelved_torch_tensor, name, _refused(name))
    for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"]:
        if hasattr(torch.Tensor, f"__i{name}__"):
            setattr(shelved_torch_tensor, f"__i{name}__", _in_place(getattr(torch.Tensor, f"__i{name}__")))
    shelved_torch_tensor.__qualname__ = "shelved_torch_tensor"
    return _made.setdefault("class", shelved_torch_tensor)  # of the first thread


_RESHAPING = ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_")
"""Methods that change the view of a tensor's memory, not the memory."""
_KEEPS = "{}: a tensor on a shelf keeps its memory, shape and dtype, and {} would not last: assign another to its name"


def _refused(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise ShelfError(_KEEPS.format(self.name_on_shelf, name))

    method.__name__ = name
    method.__doc__ = "Refuse: a variable keeps its shape."
    return method


def _put_data(tensor: Any, value: Any) -> None:
    torch = _tools().torch
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.is_cpu:
        raise ShelfError(_KEEPS.format(tensor.name_on_shelf, "other data"))
    if value.dtype != tensor.dtype or value.shape != tensor.shape:
        raise ShelfError(_KEEPS.format(tensor.name_on_shelf, f"data of {value.dtype}, {tuple(value.shape)}"))
    torch.Tensor.data.__get__(tensor).copy_(value.detach())  # without autograd, as usual for data
    tensor.persist()


def _in_place(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        result = operation(self, other)
        if result is NotImplemented:
            return result
        self.persist()
        return self

    return method


class torch_tensor(Shadow):
    """A tensor to be put on a shelf.

    Parameters
    ----------
    data : tuple, list, array, number or tensor
        A tuple (or torch.Size) is a shape, and the tensor is all zeros; anything else is its data.
    dtype : torch.dtype, or a dtype of NumPy
        Default: float64; a tensor keeps its own.
    strides : tuple of int, optional
        Row-major ones only.
    order : {"C", "F"}
        Of an array as data; the tensor is row-major.
    requires_grad
        Stored with it.
    """

    def __init__(
        self, data: Any, dtype: Any = float, strides: Any = None, order: str = "C", requires_grad: bool = False
    ) -> None:
        torch = _tools().torch
        self.requires_grad = bool(requires_grad)
        self.keeps_history = False
        with shelf_errors():
            wanted = dtype if isinstance(dtype, torch.dtype) else _torch_dtype(dtype)
            self.source: Any = None
            if isinstance(data, tuple):
                self.shape, self.dtype = tuple(operator.index(size) for size in data), wanted
            elif isinstance(data, torch.Tensor):
                self.source, self.dtype = data, data.dtype if dtype is float else wanted
                self.shape = tuple(data.shape)
            else:
                self.source, self.dtype = torch.as_tensor(np.asarray(data)), wanted
                self.shape = tuple(self.source.shape)
        if strides is not None and tuple(strides) not in (torch.empty(self.shape, device="meta").stride(), self.shape):
            item = torch.empty(0, dtype=self.dtype).element_size()
            if tuple(strides) != tuple(step * item for step in torch.empty(self.shape, device="meta").stride()):
                raise ShelfError(f"a tensor on a shelf has its rows one behind the other: strides {strides} are others")

    @classmethod
    def copy_of(cls, tensor: Any) -> Self:
        """Return a shadow that copies a tensor, with requires_grad and its history."""
        self = cls(tensor, tensor.dtype, requires_grad=tensor.requires_grad and tensor.is_leaf)
        self.keeps_history = tensor.requires_grad and not tensor.is_leaf
        return self

    def build(self, names: Names, name: str) -> Any:
        """Make the tensor, unnamed yet."""
        tools = _tools()
        torch = tools.torch
        number = tools.number_of.get(self.dtype)
        if number is None:
            raise ShelfError(f"{name}: a tensor of dtype {self.dtype} can't be stored")
        if self.source is not None:
            try:
                tools.describe(self.source, name)
            except lmcstore.UnsupportedError as error:
                raise ShelfError(str(error)) from None
        extra = {"grad": 1} if self.requires_grad else {}
        core = names.pool.create(self.shape, number, make_note("torch", **extra))
        tensor = open_tensor(names, name, core, {})
        if self.keeps_history and torch.is_grad_enabled():
            tensor.copy_(self.source)  # it continues with that history
        elif self.source is not None:
            with torch.no_grad():
                tensor.copy_(self.source)
        if self.requires_grad:
            _want_gradients(tensor, name)
        return tensor

    def __repr__(self) -> str:
        return f"<pymm shadow of a tensor, {self.dtype}, {self.shape}>"


def _torch_dtype(dtype: Any) -> Any:
    torch = _tools().torch
    return torch.from_numpy(np.empty(0, np.dtype(dtype))).dtype


def _want_gradients(tensor: Any, name: str) -> None:
    try:
        tensor.requires_grad_(True)
    except RuntimeError as error:
        raise ShelfError(f"{name}: {error}") from None


def _shelved(plain: Any, memory: MemoryReference, name: str) -> Any:
    tensor = _tools().torch.Tensor._make_subclass(_shelved_class(), plain, False)
    tensor._value_named_memory = memory
    tensor.name_on_shelf = name
    return tensor


def open_tensor(names: Names | None, name: str, core: _core.Live, extra: dict[str, Any]) -> Any:
    """Return the tensor over a variable."""
    tools = _tools()
    info = core.info()
    plain = tools.tensor(core.buffer(), info["dtype"], info["shape"])
    tensor = _shelved(plain, MemoryReference(core, name, names), name)
    if extra.get("grad") == 1:
        _want_gradients(tensor, name)
    return tensor
