# SPDX-License-Identifier: BSD-3-Clause
"""`Part` and `LazyTensor`: parts of a snapshot that are read when they are used. Nothing is cached."""

from __future__ import annotations

import copy
import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from .._arrays import numpy as _numpy
from .._arrays.packages import loaded
from .._text import html
from .._text.arguments import an
from .._text.similar import hint, listed, shown, similar
from .._text.text import printable
from ..errors import NotFoundError, UnsupportedError
from .decode import Decoded, made_dict, made_object, made_sequence
from .nodes import Branch, Node, TensorRef, holds_tensors
from .plain import is_sequence, map_items
from .skeleton import DICT_TAGS

_WHOLE = slice(None)


class LazyTensor:
    """A tensor of a snapshot that has not been read.

    Indexing reads rows and returns an ordinary tensor, or an array if it was saved as one. A slice or a number as the
    first index reads these rows, a list or array of numbers the rows from the least to the greatest, anything else (a
    mask, ``...``, ``None``) all rows. Arithmetic, functions of torch and NumPy, and attributes other than those below
    read all of it every time; for repeated use take `torch`, `numpy` or `read`, which also outlive the store. It can't
    be changed.

    Reading verifies as `lmcstore.Snapshot.state_dict` does and raises its errors; the store must still be open. A
    forked child, such as a worker of a DataLoader, opens the pool anew.
    """

    __slots__ = ("_decoded", "_ref")
    __hash__ = object.__hash__

    def __new__(cls, *args: Any) -> LazyTensor:
        """Refuse: only a snapshot makes lazy tensors; optimizers rebuild unknown types so."""
        raise UnsupportedError(
            f"{an(cls.__name__)} is made by a snapshot only; for ordinary tensors: snap.state_dict(part), or load_into"
        )

    _decoded: Decoded
    _ref: TensorRef

    @property
    def name(self) -> str:
        """Its name: see `lmcstore.Snapshot.names`."""
        return self._ref.name

    @property
    def shape(self) -> Any:
        """A ``torch.Size``, or a tuple for an array."""
        shape = self._decoded.visible_shape(self._ref)
        torch = loaded("torch") if self._decoded.is_torch(self._ref) else None
        return shape if torch is None else torch.Size(shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._decoded.visible_shape(self._ref))

    @property
    def dtype(self) -> Any:
        """Torch's dtype, or NumPy's for an array."""
        return self._decoded.dtype(self._ref)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self._decoded.described(self._ref).raw_bytes

    def read(self) -> Any:
        """Read it as the saved type: `torch` or `numpy`."""
        return self._decoded.read(self._ref)

    def torch(self) -> Any:
        """Read it as a new writable ``torch.Tensor``; UnsupportedError: torch is missing or lacks the dtype."""
        return self._decoded.read_as(self._ref, True)

    def numpy(self) -> Any:
        """Read it as a read-only ``numpy.ndarray``; never needs torch.

        UnsupportedError: NumPy and ml_dtypes lack the dtype, or ml_dtypes is not installed.
        """
        return self._decoded.read_as(self._ref, False)

    def __getitem__(self, index: Any) -> Any:
        """Read the rows of an index: see the class."""
        first, *rest = index if type(index) is tuple and index else (index,)
        shape = self._decoded.visible_shape(self._ref)
        hull = _rows_for(first, shape[0]) if shape else None
        if hull is None:
            return self.read()[index]
        start, stop, local = hull
        rows = self._decoded.read_rows(self._ref, start, stop)
        return rows if _is_whole(local) and not rest else rows[(local, *rest)]

    def __len__(self) -> int:
        shape = self._decoded.visible_shape(self._ref)
        if not shape:
            raise TypeError("len() of a tensor without dimensions")
        return shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        made = self.numpy()
        if dtype is None or made.dtype == dtype:
            return made.copy() if copy else made
        if copy is False:
            raise ValueError(f"a tensor of {made.dtype} is no array of {dtype} without a copy")
        return made.astype(dtype)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(kwargs.get("out"), LazyTensor):
            raise UnsupportedError(f"{func.__name__}: a tensor of a snapshot can't be changed")
        return func(*_read_arrays(args), **_read_arrays(kwargs))

    def __dlpack__(self, **options: Any) -> Any:
        return self.torch().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.torch().__dlpack_device__()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        changes = name.endswith("_") and not name.endswith("__") and args and isinstance(args[0], LazyTensor)
        if changes or isinstance(kwargs.get("out"), LazyTensor):
            raise UnsupportedError(f"{name}: a tensor of a snapshot can't be changed; its torch() gives a writable one")
        return func(*_read_all(args), **_read_all(kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a LazyTensor has no {name!r}")
        if name.endswith("_"):
            raise AttributeError(f"{name}: a tensor of a snapshot can't be changed; its torch() gives a writable one")
        if not hasattr(self._decoded.type_of(self._ref), name):
            raise AttributeError(f"a tensor has no {name!r}")  # without reading it
        return getattr(self.read(), name)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:
        raise UnsupportedError(f"{self.name}: a tensor of a snapshot can't be pickled before it is read: its torch()")

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self._decoded.visible_shape(self._ref)))
        return f"<lmcstore.LazyTensor {self._dtype_name()} [{shape}]>"

    def _dtype_name(self) -> str:
        """Return the store's name of the dtype, or NumPy's of one that the store has as bytes."""
        special = self._ref.special
        if special is None or not _numpy.is_described(special):
            return self._decoded.described(self._ref).dtype_name
        return printable(special.removeprefix(_numpy.DESCRIBED).strip('"'))[:80]


def _forward(name: str, function: Callable[..., Any]) -> None:
    def method(self: LazyTensor, *others: Any) -> Any:
        return function(self.read(), *_read_all(others))

    def reflected(self: LazyTensor, other: Any) -> Any:
        return function(other, self.read())

    setattr(LazyTensor, f"__{name}__", method)
    if name in _REFLECTED:
        setattr(LazyTensor, f"__r{name}__", reflected)


_REFLECTED = {"add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"}
for _name in (*_REFLECTED, "lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    _forward(_name, getattr(operator, f"__{_name}__"))
for _function in (bool, int, float, complex, operator.index):
    _forward(_function.__name__, _function)
_forward("contains", operator.contains)


class Part(dict[Any, Any]):
    """A dict of a snapshot's state, with a `LazyTensor` for each of its tensors.

    A module's ``load_state_dict`` takes it and reads one tensor after the other. Consumers that need ordinary tensors
    (an optimizer, ``assign=True``) take `copy`, or ``snap.state_dict("optimizer")``.

    Changes affect this dict, its copies, loads and new snapshots of it, not its own snapshot.
    """

    _type: Callable[[], Any] = dict  # makes an empty one of the saved dict's class
    _metadata: Any  # of a torch module's state, if saved

    def __missing__(self, key: Any) -> Any:
        close = similar(key, [name for name in self if type(name) is str]) if type(key) is str else None
        raise NotFoundError(f"this part has no {shown(key)}: it has {listed(self)}{hint(close)}")

    def copy(self) -> Any:
        """Read it: the saved containers and tensors, as from `lmcstore.Snapshot.state_dict`.

        Includes later additions: containers are copied, tensors and other objects are not. Optimizers'
        ``load_state_dict`` begins with a copy, so it accepts a part.
        """
        return _Reading(self).copy(self)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self.copy(), memo)

    def __reduce__(self) -> Any:
        raise UnsupportedError("a part of a snapshot can't be pickled before it is read: its copy()")

    def _repr_html_(self) -> str:
        tensors = [(key, value) for key, value in self.items() if isinstance(value, LazyTensor)]
        rows = [
            (key, value._dtype_name(), tuple(value.shape), html.size(value.nbytes))
            for key, value in tensors[: html.MOST_ROWS]
        ]
        title = f"{len(self):,} entries, {len(tensors):,} of them tensors"
        return html.table(title, ("tensor", "dtype", "shape", "size"), rows, len(tensors) - len(rows))


class _Reading:
    """Copies a part in its present state, with one view per snapshot."""

    def __init__(self, part: Part) -> None:
        found: dict[int, list[LazyTensor]] = {}
        _collect(part, found)
        self._read: dict[int, Any] = {}
        for tensors in found.values():
            read = tensors[0]._decoded.read_all([tensor._ref for tensor in tensors])
            self._read |= {id(tensor): made for tensor, made in zip(tensors, read, strict=True)}

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if kind is LazyTensor:
            return self._read[id(value)]
        if kind is Part:
            made = value._type()
            for key, child in value.items():
                made[key] = self.copy(child)
            if hasattr(made, "__dict__") and "_metadata" in vars(value):
                made._metadata = copy.deepcopy(value._metadata)
            return made
        if is_sequence(value):
            return map_items(self.copy, value)
        if kind in DICT_TAGS or kind is defaultdict:
            made = copy.copy(value)
            for key, child in value.items():
                made[key] = self.copy(child)
            return made
        return value.copy() if kind in (set, bytearray) else value


def _collect(value: Any, found: dict[int, list[LazyTensor]]) -> None:
    if type(value) is LazyTensor:
        found.setdefault(id(value._decoded), []).append(value)
    elif isinstance(value, dict):
        for child in value.values():
            _collect(child, found)
    elif is_sequence(value):
        for child in value:
            _collect(child, found)


def lazy(decoded: Decoded, node: Node) -> Any:
    """Make the objects of a part with a `LazyTensor` for each tensor in it; read values."""
    if type(node) is TensorRef:
        return _make_tensor(decoded, node)
    if type(node) is not Branch or not holds_tensors(node):
        return decoded.read(node)
    children = [lazy(decoded, child) for child in node.children]
    if node.keys is None:
        return made_sequence(node, children)
    if node.tag == "N":
        return made_object(node, children)
    part = Part(zip(node.keys, children, strict=True))
    part._type = dict if node.tag == "c" else functools.partial(made_dict, node)
    if node.metadata is not None:
        part._metadata = decoded.read(node.metadata)
    return part


def _make_tensor(decoded: Decoded, ref: TensorRef) -> LazyTensor:
    made: LazyTensor = object.__new__(LazyTensor)
    made._decoded, made._ref = decoded, ref
    return made


def _rows_for(index: Any, count: int) -> tuple[int, int, Any] | None:
    """Return the rows that an index needs, and the index among them; None: all rows, same index."""
    if isinstance(index, slice):
        chosen = range(count)[index]
        if not chosen:
            return 0, 0, _WHOLE
        ends = sorted((chosen[0], chosen[-1]))
        return ends[0], ends[1] + 1, slice(None, None, index.step)
    numbers = _numbers_in(index)
    if not numbers:
        return None
    inside = [number + count if number < 0 else number for number in numbers]
    start, stop = min(inside), max(inside) + 1
    if start < 0 or stop > count:
        raise IndexError(f"index {index} is out of bounds for {count} rows")
    local = [number - start for number in inside]
    return start, stop, local if isinstance(index, list) or len(getattr(index, "shape", ())) > 0 else 0


def _numbers_in(index: Any) -> list[int]:
    """Return the row numbers of an index; none for masks, ``None``, ``...`` and other kinds."""
    if hasattr(index, "shape") and hasattr(index, "dtype"):
        index = index.tolist() if len(index.shape) < 2 and _is_of_integers(index) else None
    if isinstance(index, list):
        return list(index) if all(type(number) is int for number in index) else []
    try:
        return [] if isinstance(index, bool) else [operator.index(index)]
    except TypeError:
        return []


def _is_of_integers(index: Any) -> bool:
    """Whether an index has row numbers; torch takes u8 for a mask."""
    kind = getattr(index.dtype, "kind", None)
    return kind in "iu" if kind is not None else str(index.dtype) in ("torch.int16", "torch.int32", "torch.int64")


def _is_whole(index: Any) -> bool:
    return type(index) is slice and index.start is None and index.stop is None and index.step in (None, 1)


def _read_all(value: Any, read: Callable[[LazyTensor], Any] = LazyTensor.read) -> Any:
    if isinstance(value, LazyTensor):
        return read(value)
    if type(value) in (list, tuple):
        return type(value)(_read_all(child, read) for child in value)
    if type(value) is dict:
        return {key: _read_all(child, read) for key, child in value.items()}
    return value


def _read_arrays(value: Any) -> Any:
    return _read_all(value, LazyTensor.numpy)
