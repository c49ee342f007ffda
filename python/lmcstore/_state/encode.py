# SPDX-License-Identifier: BSD-3-Clause
"""From a state to a capture: writes the form that `_state.skeleton` describes.

`Encoded` walks the state once: it records each tensor's address (no copy), packs the leaves, builds the skeleton, and
refuses unsupported values before a capture begins. It decodes what it made and compares it (`_state.check`).
`Encoded.put` writes it all to a capture: `put_now`, then `put_later`, whose tensors a `Later` has chosen.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .. import _core
from .._arrays import jax as _jax
from .._arrays import numpy as _numpy
from .._arrays.device import ALIGNMENT, Stage
from .._arrays.packages import loaded
from .._arrays.stretch import Stretch
from .._arrays.torch import Torch, torch_of
from .._optimizer.outline import Outline
from .._optimizer.relations import Finder, Relation
from .._text.arguments import an
from ..errors import UnsupportedError
from .check import Shape, check_leaves, check_structure
from .later import Later
from .lazy import LazyTensor, Part
from .plain import Taken, take
from .refusals import Enough, Refusals, refusal, type_name
from .scalars import (
    MAX_DEPTH,
    PLAIN,
    TOO_ALIKE,
    TOO_DEEP,
    Unpackable,
    are_too_alike,
    pack,
    pack_again,
    pack_attached,
    pack_sequence,
)
from .sharing import any_overlap, wrap
from .skeleton import (
    DICT_TAGS,
    EXACT_JSON_INT,
    LARGE_LEAF_BYTES,
    LEAVES_AT_ONCE,
    SKELETON,
    SURELY_FITS,
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
"""Bytes that are copied at once of tensors that can't be put in place."""


_STRIDED = 1 << 16  # in a head of `_Columns`


class _Columns:
    """Tensors as packed arrays for `_core.Capture.put`.

    A head: the dtype, the number of dimensions in the second byte, `_STRIDED` for a tensor with strides.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.heads = array("I")
        self.shapes = array("Q")
        self.strides = array("q")
        self.addresses = array("Q")

    def add(
        self, name: str, dtype: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, address: int = 0
    ) -> None:
        self.names.append(name)
        self.heads.append(dtype | len(shape) << 8 | (0 if strides is None else _STRIDED))
        self.shapes.extend(shape)
        if strides is not None:
            self.strides.extend(strides)
        self.addresses.append(address)

    def put(self, capture: _core.Capture) -> None:
        if self.names:
            capture.put(self.names, self.heads, self.shapes, self.strides, self.addresses)


class _Tied:
    """The first tensor of a memory, and its node's place."""

    __slots__ = ("explicit", "group", "index", "members", "name", "parent")

    def __init__(self, name: str, explicit: str | None, parent: list[Any], index: int, tensor: Any) -> None:
        self.name = name
        self.explicit = explicit
        self.parent = parent
        self.index = index
        self.group: int | None = None
        self.members = {id(tensor): 0}


_Staged = tuple[str, Any, int, tuple[int, ...]]


class Encoded:
    """A state, ready for a capture. Its tensors must not be freed before `put`, which reads their bytes.

    UnsupportedError: parts of it can't be stored; the text has the path of each. ``check=False`` leaves `check` to the
    caller.
    """

    def __init__(self, state: Any, check: bool = True, later: Later | None = None) -> None:
        torch = loaded("torch")
        self._torch = torch_of(torch) if torch is not None and hasattr(torch, "nn") else None
        self._torch_types = self._torch.types if self._torch is not None else frozenset()
        numpy = loaded("numpy")
        self._ndarray = getattr(numpy, "ndarray", None)
        self._names: dict[str, None] = {}  # in order
        self._later = later
        self._columns = _Columns()
        self._late_columns = _Columns()
        self._same = _Columns()
        self._same_as: list[str] = []
        self._staged: list[_Staged] = []
        self._late_staged: list[_Staged] = []
        self._keep: list[Any] = []
        self._outline = Outline()
        self._ties: dict[Any, _Tied] = {}
        self._places: dict[int, int] = {}  # usual tensors: address, and place in the outline's records
        self._ends = array("Q")  # of these and of the others' memory
        self._starts = array("Q")  # of the others
        self._arrays: list[Any] = []  # flat: each array's parent and index, and the array
        self._aliases: list[Any] = []  # so tensors that are tied to another one
        self._groups = 0
        self._active: set[int] = set()
        self._containers: list[Any] = []
        self._paths: list[str] = []
        self._leaves = 0
        self._chunks: list[bytes] = []
        self._chunk: list[bytes] = []
        self._large: list[bytes] = []
        self._refusals = Refusals()
        self._version = 1
        self._marks: list[tuple[Any, Any]] = []
        root: list[Any] = []
        try:
            self._walk(state, root)
            storages = self._wrap_shared() if any_overlap((*self._places, *self._starts), self._ends) else []
            document = {"lmcstore": self._version, "leaves": self._leaves, "root": root[0]}
            if storages:
                document |= {"lmcstore": VERSION, "storages": storages}
            text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        except RecursionError:
            raise UnsupportedError(f"the state is {TOO_DEEP}, within Python's recursion limit") from None
        self._skeleton = text.encode("ascii")
        if self._chunk:
            self._chunks.append(b"".join(self._chunk))
        if len(self._names) + len(self._chunks) + len(self._large) + 1 > _core.MAX_TENSORS:
            raise UnsupportedError(f"the state has more than {_core.MAX_TENSORS} tensors and large values")
        self._root = root.pop()
        if check:
            self.check()

    def _walk(self, state: Any, root: list[Any]) -> None:
        with contextlib.suppress(Enough):
            root.append(self._node(state, "", root, 0))
        self._refusals.raise_all()

    def _wrap_shared(self) -> list[int]:
        """Record in the nodes which tensors share memory; return the sizes of these memories."""
        spaces: dict[Any, list[Stretch]] = {}
        records = self._outline.records
        tensors = [records[at + 2 : at + Outline.FIELDS] for at in range(0, len(records), Outline.FIELDS)]
        tensors += [self._aliases[at : at + 3] for at in range(0, len(self._aliases), 3)]
        for parent, index, tensor in tensors:
            assert self._torch is not None
            found = self._torch.stretch((parent, index), tensor)
            if found is not None:
                spaces.setdefault("cpu" if tensor.is_cpu else found[0], []).append(found[1])
        for at in range(0, len(self._arrays), 3):
            parent, index, value = self._arrays[at : at + 3]
            spaces.setdefault("cpu", []).append(_numpy.stretch((parent, index), value))
        storages: list[int] = []
        for stretches in spaces.values():
            wrap(stretches, storages)
        return storages

    def check(self) -> None:
        """Decode what `put` will write, and compare it; UnsupportedError: it would not be read as the state."""
        check_structure(self._skeleton, self._root, self._names, self._containers, self._paths)
        for number, chunk in enumerate(self._chunks):
            count = min(LEAVES_AT_ONCE, self._leaves - number * LEAVES_AT_ONCE)
            check_leaves(chunk, count, f"one of {count:,} values")
        for packed in self._large:
            check_leaves(packed, 1, "a large value")
        self._root, self._containers, self._paths = None, [], []

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in the order of the state."""
        return list(self._names)

    def tensors(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """Yield the name, the dtype's number and the stored shape of each tensor; in any order."""
        for columns in (self._columns, self._late_columns, self._same):
            at = 0
            for name, head in zip(columns.names, columns.heads, strict=True):
                dimensions = head >> 8 & 0xFF
                yield name, head & 0xFF, tuple(columns.shapes[at : at + dimensions])
                at += dimensions
        for name, _, dtype, shape in (*self._staged, *self._late_staged):
            yield name, dtype, tuple(shape)

    def put(self, capture: _core.Capture, lend: bool = False) -> None:
        """Write everything to a capture; afterwards the state may change or, if lent, after the commit."""
        self.put_now(capture, lend)
        self.put_later(capture)

    def put_now(self, capture: _core.Capture, lend: bool = False) -> None:
        """Write all but the tensors that are copied later."""
        capture.lend(lend)
        self._columns.put(capture)
        capture.lend(False)
        self._put_staged(capture, self._staged)
        capture.put_attachment(SKELETON, self._skeleton)
        for prefix, parts in ((VALUES, self._chunks), (VALUE, self._large)):
            for number, part in enumerate(parts):
                capture.put_attachment(f"{prefix}{number}", part)
        self._marks = self._mark_devices()

    def put_later(self, capture: _core.Capture) -> None:
        """Write the rest, in any thread."""
        self._late_columns.put(capture)
        if self._marks:
            assert self._torch is not None
            backend = self._torch.backend(self._marks[0][0])
            with backend.beside(mark for _, mark in self._marks):
                self._put_staged(capture, self._late_staged)
        else:
            self._put_staged(capture, self._late_staged)
        if self._same.names:
            capture.put_same(self._same.names, self._same_as, self._same.heads, self._same.shapes)

    def _mark_devices(self) -> list[tuple[Any, Any]]:
        """Mark the work so far on each device of the tensors that are copied later; list a tensor and the mark."""
        if self._torch is None or not self._late_staged:
            return []
        first = {tensor.device: tensor for _, tensor, _, _ in self._late_staged if self._torch.backend(tensor)}
        return [(tensor, self._torch.backend(tensor).mark(device)) for device, tensor in first.items()]

    def relations(self, finder: Finder, scale: float) -> list[Relation]:
        return [] if self._torch is None else finder.find(self._outline, self._torch.is_f32, scale)

    def _put_staged(self, capture: _core.Capture, all_staged: list[_Staged]) -> None:
        """Put tensors that need a copy: small ones in groups, large ones in place."""
        if self._torch is None or not all_staged:
            return
        group, copies, group_bytes = _Columns(), [], 0
        on_devices = [staged for staged in all_staged if self._torch.backend(staged[1]) is not None]
        if on_devices:
            self._put_from_devices(capture, self._torch, on_devices)
        for name, tensor, dtype, shape in all_staged:
            if self._torch.backend(tensor) is not None:
                continue
            size = tensor.numel() * tensor.element_size()
            if size > _STAGE_BYTES:
                self._torch.copy_into(tensor, partial(capture.reserve, name, dtype, array("Q", shape)), name)
                continue
            copy = self._torch.dense_copy(tensor, name)
            copies.append(copy)
            group.add(name, dtype, shape, None, copy.data_ptr())
            group_bytes += size
            if group_bytes > _STAGE_BYTES:
                group.put(capture)
                group, copies, group_bytes = _Columns(), [], 0
        group.put(capture)

    def _put_from_devices(self, capture: _core.Capture, torch: Torch, staged: list[tuple[Any, ...]]) -> None:
        """Put tensors through pinned memory: small ones from its buffers, others once complete.

        None is filled in place: it would not be compared, and stored again even if unchanged.
        """
        most = sum(tensor.nbytes + ALIGNMENT for _, tensor, _, _ in staged)
        stage = Stage(torch.torch, torch.backend(staged[0][1]), most)
        aside: Any = None  # for a tensor in pieces
        reached = 0

        def numbered() -> Iterator[tuple[int, Any]]:
            nonlocal reached
            for reached, (_, tensor, _, _) in enumerate(staged):
                yield reached, tensor

        try:
            for pieces in stage.to_host(numbered()):
                group = _Columns()
                for piece in pieces:
                    name, tensor, dtype, shape = staged[piece.key]
                    data = piece.bytes
                    if not piece.is_whole:
                        if piece.start == 0:
                            aside = torch.bytes_aside(tensor.numel() * tensor.element_size())
                        aside[piece.start : piece.start + len(data)].copy_(data)
                        if piece.start + len(data) < len(aside):
                            continue
                        data = aside
                    group.add(name, dtype, shape, None, data.data_ptr())
                group.put(capture)
        except RuntimeError as error:
            which = "the tensor" if reached == 0 else "the tensor, or one before it,"  # a device reports late
            raise UnsupportedError(f"{staged[reached][0]}: {which} can't be copied to the CPU: {error}") from None

    # `parent` is the list that the node will be appended to.

    def _node(self, value: Any, path: str, parent: list[Any], depth: int) -> Any:
        kind = type(value)
        if kind in self._torch_types:
            return self._torch_node(value, path, parent)
        if kind in DICT_TAGS:
            return self._dict_node(value, path, depth)
        if kind in PLAIN:
            return self._leaf(self._packed(pack, value, path))
        if kind is list or kind is tuple:
            packed = self._packed(pack_sequence, value, path)
            return self._sequence_node(value, path, depth) if packed is None else self._leaf(packed)
        if kind is self._ndarray:
            return self._numpy_node(value, path, parent)
        if kind is Part:
            return self._node(value.copy(), path, parent, depth)
        if kind is LazyTensor:
            return self._node(value.read(), path, parent, depth)
        plain = getattr(kind, "__lmcstore_plain__", None)
        if plain is not None and depth < MAX_DEPTH:
            return self._node(plain(value), path, parent, depth + 1)
        try:
            return self._leaf(pack(value))
        except Unpackable as refused:
            return self._plain_node(value, refused, path, parent, depth)

    def _plain_node(self, value: Any, refused: Unpackable, path: str, parent: list[Any], depth: int) -> Any:
        """Take a value apart that is no leaf."""
        if refused.value is value and refused.limit is None:
            numpy = loaded("numpy")
            if numpy is not None and type(value) is getattr(numpy, "memmap", None):
                return self._numpy_node(numpy.asarray(value), path, parent)
            array = _jax.array_of(value, where(path))
            if array is not None:
                return self._numpy_node(array, path, parent)
            taken = self._packed(take, value, path)
            if taken is not None:
                self._version = VERSION
                return self._taken_node(value, taken, path, depth)
        raise UnsupportedError(refusal(value, refused, path))

    def _taken_node(self, value: Any, taken: Taken, path: str, depth: int) -> list[Any]:
        node: list[Any] = [taken.tag, taken.extra]
        if taken.tag in ("v", "E"):
            self._leaf(self._packed(lambda _: pack_again(taken.content), value, path))
            return node
        if taken.keys is not None and are_too_alike(taken.keys):
            raise UnsupportedError(f"{where(path)}: the dict can't be stored: {TOO_ALIKE}")
        self._enter(value, path, depth)
        self._containers[-1] = Shape(taken.keys)
        keys: list[Any] = []
        if taken.keys is not None:
            node.append(keys)
        for index, child in enumerate(taken.items):
            try:
                key = index if taken.keys is None else taken.keys[index]
                if taken.keys is not None:
                    keys.append(self._key(key, path))
                node.append(self._node(child, join(path, key), node, depth + 1))
            except UnsupportedError as error:
                self._refusals.add(error)
        self._leave(value)
        return node

    def _packed(self, packer: Callable[[Any], Any], value: Any, path: str) -> Any:
        try:
            return packer(value)
        except Unpackable as refused:
            raise UnsupportedError(refusal(value, refused, path)) from None

    def _enter(self, value: Any, path: str, depth: int) -> None:
        """Begin a container; `_node` then takes its children, one level deeper."""
        if depth >= MAX_DEPTH:
            raise UnsupportedError(f"{path[:200]}...: {TOO_DEEP}")
        if id(value) in self._active:
            raise UnsupportedError(f"{where(path)}: the {type(value).__name__} contains itself")
        self._active.add(id(value))
        self._containers.append(value)
        self._paths.append(path)
        self._outline.enter(path)

    def _leave(self, value: Any) -> None:
        self._outline.leave(value)
        self._active.remove(id(value))

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
        if are_too_alike(value):
            raise UnsupportedError(f"{where(path)}: the dict can't be stored: {TOO_ALIKE}")
        attributes = getattr(value, "__dict__", None)
        if attributes and (type(value) is not OrderedDict or attributes.keys() != {"_metadata"}):
            names = ", ".join(map(repr, attributes.keys() - {"_metadata"}))
            raise UnsupportedError(
                f"{where(path)}: {an(type(value).__name__)} with attributes ({names}) can't be stored; store a copy "
                "without them, and them by themselves"
            )
        self._enter(value, path, depth)
        keys: list[Any] = []
        node: list[Any] = [DICT_TAGS[type(value)], keys]
        if attributes:
            node[0] = "O"
            try:
                node.append(self._node(attributes["_metadata"], join(path, "_metadata"), node, depth + 1))
            except UnsupportedError as error:
                self._refusals.add(error)
        for key, child in value.items():
            try:
                if type(key) is str and key and (key.isprintable() or is_plain(key)):  # the usual case
                    keys.append(key)
                    below = f"{path}.{key}" if path else key
                elif type(key) is int and -EXACT_JSON_INT < key < EXACT_JSON_INT:
                    keys.append(key)
                    below = f"{path}.{key}" if path else str(key)
                else:
                    keys.append(self._key(key, path))
                    below = join(path, key)
                if type(child) in self._torch_types:
                    node.append(self._torch_node(child, below, node))
                else:
                    node.append(self._node(child, below, node, depth + 1))
            except UnsupportedError as error:
                self._refusals.add(error)
        self._leave(value)
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
            limit = "; store its text as the key" if refused.limit is None else f": it is {refused.limit}"
            refused_type = type_name(refused.value)
            raise UnsupportedError(f"{where(path)}: a dict key of type {refused_type} can't be stored{limit}") from None

    def _sequence_node(self, value: list[Any] | tuple[Any, ...], path: str, depth: int) -> list[Any]:
        self._enter(value, path, depth)
        node: list[Any] = ["l" if type(value) is list else "t"]
        for index, child in enumerate(value):
            try:
                node.append(self._node(child, f"{path}.{index}" if path else str(index), node, depth + 1))
            except UnsupportedError as error:
                self._refusals.add(error)
        self._leave(value)
        return node

    def _name(self, path: str) -> tuple[str, str | None]:
        """Return a tensor's name, and again if it is not the natural one."""
        name = natural = natural_name(path)
        tries = 1
        while name in self._names:
            tries += 1
            name = numbered_name(natural, tries)
        self._names[name] = None
        return name, name if tries > 1 else None

    def _torch_node(self, tensor: Any, path: str, parent: list[Any]) -> Any:
        assert self._torch is not None
        usual = self._torch.usual(tensor)
        if usual is None:
            return self._described_node(tensor, path, parent)
        dtype, shape, start, address, end, is_cpu = usual
        records = self._outline.records
        place = len(records)
        first = self._places.setdefault(address, place)
        if first != place:
            self._note_tie(*records[first : first + Outline.FIELDS])
            return self._described_node(tensor, path, parent)
        if path and len(path) <= SURELY_FITS and path not in self._names:
            name, explicit = path, None
            self._names[path] = None
        else:
            name, explicit = self._name(path)
        records += (path, name, parent, len(parent), tensor)
        is_late = self._later is not None and self._later.takes(tensor, start, path)
        self._ends.append(end)
        if not is_cpu:
            (self._late_staged if is_late else self._staged).append((name, tensor, dtype, tuple(shape)))
            return 1 if explicit is None else ["T", explicit]
        columns = self._late_columns if is_late else self._columns
        columns.names.append(name)
        columns.heads.append(dtype | len(shape) << 8)
        columns.shapes.extend(shape)
        columns.addresses.append(address)
        return 1 if explicit is None else ["T", explicit]

    def _note_tie(self, path: str, name: str, parent: list[Any], index: int, tensor: Any) -> None:
        assert self._torch is not None
        tie = self._torch.describe(tensor, name).tie
        if tie not in self._ties:
            explicit = None if name == natural_name(path) else name
            self._ties[tie] = _Tied(name, explicit, parent, index, tensor)

    def _described_node(self, tensor: Any, path: str, parent: list[Any]) -> Any:
        assert self._torch is not None
        described = self._torch.describe(tensor, where(path))
        name, explicit = self._name(path)
        self._keep.append(tensor)
        is_late = self._later is not None and self._later.takes(tensor, self._torch.start(tensor), path)
        tied = self._ties.get(described.tie) if described.tie is not None else None
        if tied is not None:
            self._same.add(name, described.dtype, described.shape)
            self._same_as.append(tied.name)
            if tied.group is None:
                tied.group = self._groups
                self._groups += 1
                tied.parent[tied.index] = ["T", tied.explicit, tied.group, 0]
            member = tied.members.setdefault(id(tensor), len(tied.members))
            if member == 0:
                self._outline.records += (path, tied.name, parent, len(parent), tensor)
            else:
                self._aliases += (parent, len(parent), tensor)
            return ["T", explicit, tied.group, member]
        if described.tie is not None:
            self._ties[described.tie] = _Tied(name, explicit, parent, len(parent), tensor)
        self._outline.records += (path, name, parent, len(parent), tensor)
        self._note_memory(self._torch.stretch(None, tensor))
        if described.must_copy:
            (self._late_staged if is_late else self._staged).append((name, tensor, described.dtype, described.shape))
        else:
            columns = self._late_columns if is_late else self._columns
            columns.add(name, described.dtype, described.shape, described.strides, described.address)
        return 1 if explicit is None else ["T", explicit]

    def _note_memory(self, found: tuple[Any, Stretch] | None) -> None:
        if found is not None:
            self._starts.append(found[1].start)
            self._ends.append(found[1].end)

    def _numpy_node(self, value: Any, path: str, parent: list[Any]) -> Any:
        described = _numpy.describe(value, where(path))
        if described.special is not None and _numpy.is_described(described.special):
            self._version = VERSION
        name, explicit = self._name(path)
        self._keep.append(value)
        if value.size > 0:
            self._arrays += (parent, len(parent), value)
            self._note_memory((None, _numpy.stretch(None, value)))
        columns = self._columns
        if self._later is not None and self._later.takes_arrays and not _core.live_is_mapped(described.address):
            columns = self._late_columns
        columns.add(name, described.dtype, described.shape, described.strides, described.address)
        return 2 if explicit is None and described.special is None else ["A", explicit, described.special]
