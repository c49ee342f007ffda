# SPDX-License-Identifier: BSD-3-Clause
"""From a state to a capture: what `lmcstore.state` describes, written.

`Encoded` walks the state once. It notes each tensor's address (nothing is copied then), packs the leaves, and builds
the skeleton; whatever can't be stored is refused before a capture is begun. `Encoded.put` hands it all to a capture.
"""

from __future__ import annotations

import json
from array import array
from collections import OrderedDict
from typing import Any

from . import _core, _numpy
from ._scalars import MAX_DEPTH, Unpackable, loaded, pack, pack_attached, pack_sequence
from ._torch import Torch
from .errors import UnsupportedError
from .state import (
    DICT_TAGS,
    EXACT_JSON_INT,
    LARGE_LEAF_BYTES,
    LEAVES_AT_ONCE,
    SKELETON,
    VALUE,
    VALUES,
    VERSION,
    is_plain,
    join,
    natural_name,
    numbered_name,
    where,
)

_STAGE_BYTES = 16 << 20
"""How much is copied at once of tensors that can't be put as they lie."""


class _Columns:
    """Tensors as packed arrays, the way `_core.Capture.put` takes them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.dtypes = bytearray()
        self.ndims = bytearray()
        self.shapes = array("Q")
        self.strides = array("q")
        self.strided = bytearray()
        self.addresses = array("Q")

    def add(
        self, name: str, dtype: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, address: int = 0
    ) -> None:
        self.names.append(name)
        self.dtypes.append(dtype)
        self.ndims.append(len(shape))
        self.shapes.extend(shape)
        self.strides.extend(shape if strides is None else strides)
        self.strided.append(strides is not None)
        self.addresses.append(address)

    def put(self, capture: _core.Capture) -> None:
        if self.names:
            capture.put(self.names, self.dtypes, self.ndims, self.shapes, self.strides, self.strided, self.addresses)


class _Tied:
    """The first tensor of a memory, and where its node is, in case another one is tied to it."""

    __slots__ = ("explicit", "group", "index", "members", "name", "parent")

    def __init__(self, name: str, explicit: str | None, parent: list[Any], index: int, tensor: Any) -> None:
        self.name = name
        self.explicit = explicit
        self.parent = parent
        self.index = index
        self.group: int | None = None
        self.members = {id(tensor): 0}


class Encoded:
    """A state that can be put into a capture. It refers to the state's tensors, whose bytes are read by `put`.

    Parameters
    ----------
    state : any nesting of the types that the package's documentation lists
        Its tensors must not be freed before `put`.

    Raises
    ------
    UnsupportedError
        Something in it can't be stored; the text begins with its path.
    """

    def __init__(self, state: Any) -> None:
        torch = loaded("torch")
        self._torch = Torch(torch) if torch is not None and hasattr(torch, "nn") else None
        numpy = loaded("numpy")
        self._ndarray = getattr(numpy, "ndarray", None)
        self._names: set[str] = set()
        self._columns = _Columns()
        self._same = _Columns()
        self._same_as: list[str] = []
        self._staged: list[tuple[str, Any, int, tuple[int, ...]]] = []
        self._keep: list[Any] = []
        self._ties: dict[Any, Any] = {}  # what makes a _Tied, until there is another one
        self._groups = 0
        self._active: set[int] = set()
        self._leaves = 0
        self._chunks: list[bytes] = []
        self._chunk: list[bytes] = []
        self._large: list[bytes] = []
        root: list[Any] = []
        try:
            root.append(self._node(state, "", root, 0))
            text = json.dumps(
                {"lmcstore": VERSION, "leaves": self._leaves, "root": root[0]}, separators=(",", ":"), allow_nan=False
            )
        except RecursionError:
            raise UnsupportedError(f"the state is nested too deeply: {MAX_DEPTH} levels can be stored") from None
        self._skeleton = text.encode("ascii")
        if self._chunk:
            self._chunks.append(b"".join(self._chunk))
        if len(self._names) + len(self._chunks) + len(self._large) + 1 > _core.MAX_TENSORS:
            raise UnsupportedError(f"the state has more than {_core.MAX_TENSORS} tensors and large values")

    def put(self, capture: _core.Capture) -> None:
        """Put everything into a capture; when it returns, the state may change."""
        self._columns.put(capture)
        self._put_staged(capture)
        if self._same.names:
            capture.put_same(self._same.names, self._same_as, self._same.dtypes, self._same.ndims, self._same.shapes)
        capture.put_attachment(SKELETON, self._skeleton)
        for prefix, parts in ((VALUES, self._chunks), (VALUE, self._large)):
            for number, part in enumerate(parts):
                capture.put_attachment(f"{prefix}{number}", part)

    def _put_staged(self, capture: _core.Capture) -> None:
        """Put tensors that have to be copied: small ones in groups, large ones in place."""
        if self._torch is None or not self._staged:
            return
        group, copies, group_bytes = _Columns(), [], 0
        for name, tensor, dtype, shape in self._staged:
            size = tensor.numel() * tensor.element_size()
            if size > _STAGE_BYTES:
                buffer = capture.reserve(name, dtype, array("Q", shape))
                self._torch.copy_into(tensor, buffer, name)
                continue
            copy = self._torch.dense_copy(tensor, name)
            copies.append(copy)
            group.add(name, dtype, shape, None, copy.data_ptr())
            group_bytes += size
            if group_bytes > _STAGE_BYTES:
                group.put(capture)
                group, copies, group_bytes = _Columns(), [], 0
        group.put(capture)

    # Nodes. `parent` is the list that the node will be appended to.

    def _node(self, value: Any, path: str, parent: list[Any], depth: int) -> Any:
        kind = type(value)
        if self._torch is not None and kind in self._torch.types:
            return self._torch_node(value, path, parent)
        if kind in DICT_TAGS:
            return self._dict_node(value, path, depth)
        if kind is list or kind is tuple:
            packed = pack_sequence(value)
            return self._sequence_node(value, path, depth) if packed is None else self._leaf(packed)
        if kind is self._ndarray:
            return self._numpy_node(value, path)
        try:
            return self._leaf(pack(value))
        except Unpackable as refused:
            raise UnsupportedError(_refusal(value, refused.args[0], path)) from None

    def _enter(self, value: Any, path: str, depth: int) -> None:
        """Begin a container; `_node` may then be called for its children, with one more depth."""
        if depth >= MAX_DEPTH:
            raise UnsupportedError(f"{path[:200]}...: nested too deeply: {MAX_DEPTH} levels can be stored")
        if id(value) in self._active:
            raise UnsupportedError(f"{where(path)}: the {type(value).__name__} contains itself")
        self._active.add(id(value))

    def _leaf(self, packed: bytes) -> int:
        if len(packed) >= LARGE_LEAF_BYTES:
            self._large.append(packed)
            packed = pack_attached(len(self._large) - 1)
        self._chunk.append(packed)
        self._leaves += 1
        if len(self._chunk) == LEAVES_AT_ONCE:
            self._chunks.append(b"".join(self._chunk))
            self._chunk = []
        return 0

    def _dict_node(self, value: dict[Any, Any], path: str, depth: int) -> list[Any]:
        self._enter(value, path, depth)
        keys: list[Any] = []
        node: list[Any] = [DICT_TAGS[type(value)], keys]
        attributes = getattr(value, "__dict__", None)
        if attributes:
            if type(value) is not OrderedDict or attributes.keys() != {"_metadata"}:
                names = ", ".join(map(repr, attributes.keys() - {"_metadata"}))
                raise UnsupportedError(
                    f"{where(path)}: a {type(value).__name__} with attributes ({names}) can't be stored"
                )
            node[0] = "O"
            node.append(self._node(attributes["_metadata"], join(path, "_metadata"), node, depth + 1))
        for key, child in value.items():
            if type(key) is str and key and is_plain(key):  # the usual case, looked at once
                keys.append(key)
                below = f"{path}.{key}" if path else key
            else:
                keys.append(self._key(key, path))
                below = join(path, key)
            node.append(self._node(child, below, node, depth + 1))
        self._active.remove(id(value))
        return node

    def _key(self, key: Any, path: str) -> Any:
        kind = type(key)
        if kind is str:
            return key if is_plain(key) else [pack(key).hex()]
        if kind is bool or key is None or (kind is int and -EXACT_JSON_INT < key < EXACT_JSON_INT):
            return key
        try:
            return [pack(key).hex()]
        except Unpackable as refused:
            refused_type = _type_name(refused.args[0])
            raise UnsupportedError(f"{where(path)}: a dict key of type {refused_type} can't be stored") from None

    def _sequence_node(self, value: list[Any] | tuple[Any, ...], path: str, depth: int) -> list[Any]:
        self._enter(value, path, depth)
        node: list[Any] = ["l" if type(value) is list else "t"]
        for index, child in enumerate(value):
            node.append(self._node(child, f"{path}.{index}" if path else str(index), node, depth + 1))
        self._active.remove(id(value))
        return node

    def _name(self, path: str) -> tuple[str, str | None]:
        """Choose the name of a tensor: the name, and the name again if it is not the natural one."""
        name = natural = natural_name(path)
        tries = 1
        while name in self._names:
            tries += 1
            name = numbered_name(natural, tries)
        self._names.add(name)
        return name, None if name == natural else name

    def _torch_node(self, tensor: Any, path: str, parent: list[Any]) -> Any:
        assert self._torch is not None
        described = self._torch.describe(tensor, where(path))
        name, explicit = self._name(path)
        self._keep.append(tensor)
        first = self._ties.get(described.tie) if described.tie is not None else None
        if first is not None:
            tied = first if type(first) is _Tied else _Tied(*first)
            self._ties[described.tie] = tied
            self._same.add(name, described.dtype, described.shape)
            self._same_as.append(tied.name)
            if tied.group is None:
                tied.group = self._groups
                self._groups += 1
                tied.parent[tied.index] = ["T", tied.explicit, tied.group, 0]
            return ["T", explicit, tied.group, tied.members.setdefault(id(tensor), len(tied.members))]
        if described.tie is not None:
            self._ties[described.tie] = (name, explicit, parent, len(parent), tensor)
        if described.must_copy:
            self._staged.append((name, tensor, described.dtype, described.shape))
        else:
            self._columns.add(name, described.dtype, described.shape, described.strides, described.address)
        return 1 if explicit is None else ["T", explicit]

    def _numpy_node(self, value: Any, path: str) -> Any:
        described = _numpy.describe(value, where(path))
        name, explicit = self._name(path)
        self._keep.append(value)
        self._columns.add(name, described.dtype, described.shape, described.strides, described.address)
        return 2 if explicit is None and described.special is None else ["A", explicit, described.special]


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _refusal(value: Any, refused: Any, path: str) -> str:
    """Say that a value, or what is inside it, can't be stored, and why if its type looks as if it could."""
    inside = "" if refused is value else f" (in a {_type_name(value)})"
    parents = [base.__name__ for base in type(refused).__mro__[1:] if base is not object]
    known = {"dict", "OrderedDict", "list", "tuple", "set", "Tensor", "ndarray", "int", "float", "str", "bytes"}
    parent = next((name for name in parents if name in known), None)
    hint = f"; it is not stored as its parent {parent}: convert it" if parent is not None else ""
    return f"{where(path)}: a {_type_name(refused)}{inside} can't be stored{hint}"
