# SPDX-License-Identifier: BSD-3-Clause
"""From a snapshot to a state: reads the form that `_state.skeleton` describes.

`Decoded` turns the skeleton and the leaves into nodes and checks everything: an archive may be untrusted.
`Decoded.find` finds a part; `Decoded.read` makes its objects, with one view for all its tensors.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from .._arrays import numpy as _numpy
from .._arrays.dtypes import name_of
from .._arrays.packages import loaded
from .._arrays.stretch import Stretch
from .._arrays.torch import Torch, torch_of
from .._text.arguments import a_kind
from .._text.similar import hint, listed, shown, similar
from ..errors import InvalidError, NotFoundError, UnsupportedError
from .live_table import read_table, stored_value
from .nodes import Branch, Leaf, Node, Place, TensorRef, check_absent, damaged, refs_of
from .plain import FACTORIES, MOST_FIELDS, NO_TYPES, VALUE_KINDS, Types, is_length, make_value, stand_in
from .scalars import MAX_DEPTH, TOO_ALIKE, TOO_DEEP, Attached, Reader, Unpackable, are_too_alike
from .sharing import MOST_BYTES, Memory, base_of, groups_of, stretch_of
from .skeleton import (
    DICT_TYPES,
    LEAVES_AT_ONCE,
    LIVE,
    SKELETON,
    VALUE,
    VALUES,
    VERSION,
    join,
    key_text,
    natural_name,
    where,
)

if TYPE_CHECKING:
    from ..store import Store

_TOO_DEEP_A_CALLER = "Python's recursion limit is too low to read the state here: sys.setrecursionlimit raises it"


class Described(NamedTuple):
    """A stored tensor's properties, known without reading it."""

    dtype: int
    shape: tuple[int, ...]
    raw_bytes: int

    @property
    def dtype_name(self) -> str:
        return name_of(self.dtype)


class Parser:
    def __init__(self, leaves: Iterator[Any], version: int, storages: Sequence[int] = ()) -> None:
        self._leaves = leaves
        self._version = version
        self._storages = storages  # bytes
        self._names: set[str] = set()

    def node(self, raw: Any, path: str, depth: int) -> Node:
        if type(raw) is int:
            if raw == 0:
                return Leaf(next(self._leaves))
            if raw == 1 or raw == 2:
                return self._tensor(None, raw == 1, path)
        elif type(raw) is list and raw:
            tag = raw[0]
            if tag == "T" or tag == "A":
                return self._special_tensor(raw, path)
            if (
                self._version > 1
                and len(raw) == 2
                and type(raw[1]) is str
                and tag in ("E", "v")
                and self._is_value(tag, raw[1])
            ):
                return Leaf(next(self._leaves), tag, raw[1])
            if tag == "V" and self._version > 1 and len(raw) == 5:
                return self._shared_tensor(raw, path, depth)
            if depth >= MAX_DEPTH:
                raise damaged(TOO_DEEP)
            if tag == "l" or tag == "t":
                branch = Branch(tag, None)
                for index, child in enumerate(raw[1:]):
                    branch.children.append(self.node(child, f"{path}.{index}" if path else str(index), depth + 1))
                return branch
            if type(tag) is str and tag in DICT_TYPES:
                return self._dict(raw, path, depth)
            if self._version > 1 and type(tag) is str and len(raw) > 1:
                made = self._plain(tag, raw, path, depth)
                if made is not None:
                    return made
        raise damaged(f"a node at {where(path)!r}")

    def _is_value(self, tag: str, kind: str) -> bool:
        return tag == "E" or kind in VALUE_KINDS

    def _plain(self, tag: str, raw: list[Any], path: str, depth: int) -> Node | None:
        """Parse a node of `_state.plain`; None: it is none."""
        extra = raw[1]
        if tag == "Q" and is_length(extra) and (extra is None or len(raw) - 2 <= extra):
            branch, first = Branch(tag, None, extra), 2
        elif tag in ("N", "c", "D") and len(raw) > 2 and type(raw[2]) is list and len(raw[2]) == len(raw) - 3:
            keys = [self._key(key) for key in raw[2]]
            if tag == "D":
                fits = extra is None or (type(extra) is str and extra in FACTORIES)
            else:
                fits = type(extra) is str and all(type(key) is str for key in keys)
            if not fits or are_too_alike(keys) or len(set(keys)) != len(keys):
                return None
            if tag == "N" and (len(keys) > MOST_FIELDS or not stand_in(extra, tuple(keys))):
                return None
            branch, first = Branch(tag, keys, extra), 3
        else:
            return None
        names = range(len(raw)) if branch.keys is None else branch.keys
        for key, child in zip(names, raw[first:], strict=False):
            branch.children.append(self.node(child, join(path, key), depth + 1))
        return branch

    def _dict(self, raw: list[Any], path: str, depth: int) -> Branch:
        tag = raw[0]
        first = 3 if tag == "O" else 2
        if len(raw) < first or type(raw[1]) is not list or len(raw[1]) != len(raw) - first:
            raise damaged(f"a dict at {where(path)!r}")
        keys = [self._key(key) for key in raw[1]]
        if are_too_alike(keys):
            raise damaged(TOO_ALIKE)
        branch = Branch(tag, keys)
        if tag == "O":
            branch.metadata = self.node(raw[2], join(path, "_metadata"), depth + 1)
        for key, child in zip(keys, raw[first:], strict=True):
            branch.children.append(self.node(child, join(path, key), depth + 1))
        return branch

    def _key(self, raw: Any) -> Any:
        if raw is None or type(raw) in (str, int, bool):
            return raw
        if type(raw) is list and len(raw) == 1 and type(raw[0]) is str:
            try:
                reader = Reader(bytes.fromhex(raw[0]))
            except ValueError:
                raise damaged("a key") from None
            key = reader.value()
            try:
                hash(key)
            except TypeError:
                raise damaged("a key") from None
            if reader.at_end:
                return key
        raise damaged("a key")

    def _tensor(self, explicit: str | None, is_torch: bool, path: str) -> TensorRef:
        name = natural_name(path) if explicit is None else explicit
        if name in self._names:
            raise damaged(f"tensor {name!r} stands in it twice")
        self._names.add(name)
        return TensorRef(name, is_torch)

    def _shared_tensor(self, raw: list[Any], path: str, depth: int) -> TensorRef:
        _, inner, storage, offset, strides = raw
        is_tensor = inner in (1, 2) if type(inner) is int else type(inner) is list and inner[:1] in (["T"], ["A"])
        if not is_tensor or type(strides) is not list or not all(type(by) is int for by in (storage, offset, *strides)):
            raise damaged(f"a tensor at {where(path)!r}")
        if not 0 <= storage < len(self._storages) or max(map(abs, (offset, *strides))) >= MOST_BYTES:
            raise damaged(f"the shared memory of a tensor at {where(path)!r}")
        ref = self.node(inner, path, depth)
        assert type(ref) is TensorRef
        ref.place = Place(storage, self._storages[storage], offset, tuple(strides))
        return ref

    def _special_tensor(self, raw: list[Any], path: str) -> TensorRef:
        explicit = raw[1] if len(raw) > 1 else 0
        if explicit is not None and type(explicit) is not str:
            raise damaged(f"a tensor at {where(path)!r}")
        ref = self._tensor(explicit, raw[0] == "T", path)
        extra = raw[2:]
        if raw[0] == "T" and len(extra) == 2 and type(extra[0]) is int and type(extra[1]) is int:
            ref.group, ref.member = extra
        elif raw[0] == "A" and len(extra) == 1 and (extra[0] is None or type(extra[0]) is str):
            if extra[0] is not None and self._version == 1 and _numpy.is_described(extra[0]):
                raise damaged(f"a tensor at {where(path)!r}")
            ref.special = extra[0]
        elif extra:
            raise damaged(f"a tensor at {where(path)!r}")
        return ref


def _attachments(handle: _core.Snapshot, names: list[str]) -> list[_core.Buffer]:
    view = handle.view(names, _core.ATTACHMENT, _core.VIEW_VERIFY)
    buffers: list[_core.Buffer] = view.unpack()[4]
    return buffers


@functools.lru_cache(maxsize=2)
def _root_without_leaves(text: bytes) -> Node | None:
    """Parse a skeleton of tensors only, the same from snapshot to snapshot; None: it has leaves."""
    skeleton = _parsed(text)
    if skeleton["leaves"] != 0:
        return None
    return Parser(iter(()), skeleton["lmcstore"], storages_of(skeleton)).node(skeleton.get("root"), "", 0)


def _read_skeleton(handle: _core.Snapshot) -> bytes | None:
    try:
        return bytes(_attachments(handle, [SKELETON])[0])
    except NotFoundError as error:
        check_absent(error)
        return None


def _nesting(text: bytes) -> int:
    """Count the levels of lists and objects in JSON."""
    steps = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
    bare = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)
    return max(accumulate(steps.get(byte, 0) for byte in bare), default=0)


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        skeleton = json.loads(text)
    except ValueError as error:
        raise damaged(str(error)) from None
    except RecursionError:
        if _nesting(text) > MAX_DEPTH + 4:  # the document, its root, and a list of keys with a packed one
            raise damaged("it is nested too deeply") from None
        raise UnsupportedError(_TOO_DEEP_A_CALLER) from None
    version = skeleton.get("lmcstore") if type(skeleton) is dict else None
    if type(version) is int and version > VERSION:
        raise UnsupportedError(f"the snapshot's state has version {version}; this lmcstore reads {VERSION}: update it")
    leaves = skeleton.get("leaves") if type(version) is int and version >= 1 else None
    if type(leaves) is not int or not 0 <= leaves <= len(text):
        raise damaged("its head")
    return dict(skeleton)


def storages_of(skeleton: dict[str, Any]) -> list[int]:
    """Return the sizes of the memories that tensors share."""
    storages = skeleton.get("storages", [])
    if type(storages) is not list or not all(type(size) is int and 0 < size < MOST_BYTES for size in storages):
        raise damaged("its shared memories")
    return storages


def _leaf_values(handle: _core.Snapshot, count: int) -> Iterator[Any]:
    """Yield the leaves in order; then check that nothing is left."""
    chunks = (count + LEAVES_AT_ONCE - 1) // LEAVES_AT_ONCE
    if chunks == 0:
        return
    try:
        buffers = _attachments(handle, [f"{VALUES}{number}" for number in range(chunks)])
    except NotFoundError as error:
        check_absent(error)
        raise damaged(str(error)) from None
    for number, buffer in enumerate(buffers):
        reader = Reader(memoryview(buffer))
        for _ in range(min(LEAVES_AT_ONCE, count - number * LEAVES_AT_ONCE)):
            yield reader.value(may_be_attached=True)
        if not reader.at_end:
            raise damaged("its values are too long")


def leaf_value(handle: _core.Snapshot, value: Any) -> Any:
    """Return a leaf's value, read from its attachment if it has one."""
    if type(value) is not Attached:
        return value
    try:
        buffers = _attachments(handle, [f"{VALUE}{value.number}"])
    except NotFoundError as error:
        check_absent(error)
        raise damaged(str(error)) from None
    reader = Reader(memoryview(buffers[0]))
    value = reader.value()
    if not reader.at_end:
        raise damaged("a large value is too long")
    return value


class Decoded:
    """The structure of a snapshot's state. `read` reads tensors and large values, as often as called.

    `owner` is kept with it: the store, which closes after its last reference. `reopened` opens the snapshot anew in a
    forked child. DamagedError: `Encoded` did not write the skeleton or the values; UnsupportedError: a newer lmcstore
    wrote them.
    """

    def __init__(self, handle: _core.Snapshot, owner: Store, reopened: Callable[[], _core.Snapshot]) -> None:
        self._opened_by = os.getpid()
        self._own = handle
        self._owner = owner
        self._reopened = reopened
        self._entries: dict[str, Described] | None = None  # of tensors, on demand
        skeleton = _read_skeleton(handle)
        self.is_flat = skeleton is None
        """Whether the snapshot has no structure: it was imported, made in C, or is of live variables."""
        if skeleton is None:
            self.root: Node = _live_root(handle) or _flat_root(handle.names())
            return
        try:
            found = _root_without_leaves(skeleton)
            if found is not None:
                self.root = found
                return
            parsed = _parsed(skeleton)
            leaves = _leaf_values(handle, parsed["leaves"])
            self.root = Parser(leaves, parsed["lmcstore"], storages_of(parsed)).node(parsed.get("root"), "", 0)
        except StopIteration:
            raise damaged("its values are too few") from None
        except RecursionError:
            raise UnsupportedError(_TOO_DEEP_A_CALLER) from None
        if next(leaves, leaves) is not leaves:
            raise damaged("its values are too many")

    @property
    def _handle(self) -> _core.Snapshot:
        process = os.getpid()
        if self._opened_by != process:  # a forked child, such as a worker of a DataLoader, opens the pool anew
            self._own, self._opened_by = self._reopened(), process
        elif self._owner.closed:
            raise InvalidError(
                f"{self._owner.path}: the store is closed, and a tensor of a snapshot is read when it is used: read it "
                "before, by its torch() or numpy(), or by state_dict"
            )
        return self._own

    def find(self, path: Any) -> Node:
        """Find a part: by a dotted path (str), by one key, or by a tuple of keys.

        NotFoundError: there is none; InvalidError: the dotted path fits several.
        """
        found = self.matching(path)
        if len(found) > 1:
            raise InvalidError(f"{path!r} could be several parts of the state; give a tuple of keys")
        if found:
            return found[0]
        raise NotFoundError(self._missing(path))

    def matching(self, path: Any) -> list[Node]:
        """Find the parts that a path may mean. A path that is itself a key of the state is that key if nothing else."""
        if type(path) is not str:
            found = self._walk(path if type(path) is tuple else (path,))[0]
            if found is None and type(path) is tuple:
                found = _child(self._opened(self.root), path)
            return [] if found is None else [found]
        parts = self._find_text(self.root, path.split("."))
        if not parts and self.is_flat:
            parts = _flat_parts(self.root, path)
        if not parts or (len(parts) > 1 and "." not in path):  # unusual text, or keys 1 and "1"
            exact = _child(self._opened(self.root), path)
            return parts if exact is None else [exact]
        return parts

    def children(self) -> dict[Any, Node]:
        """Return the parts of the state by their keys or indexes; none if it is no container."""
        root = self._opened(self.root)
        return dict(zip(_keys(root), root.children, strict=True)) if type(root) is Branch else {}

    def _walk(self, path: tuple[Any, ...]) -> tuple[Node | None, Node, int]:
        """Follow keys; return the part, or None, and the last part on the way with its depth."""
        node = self.root
        for depth, key in enumerate(path):
            child = _child(self._opened(node), key)
            if child is None:
                return None, node, depth
            node = child
        return node, node, len(path)

    def _missing(self, path: Any) -> str:
        """Report the missing part, the keys in its place, and the most similar path."""
        if type(path) is str:
            parts, part = path.split("."), shown(path)
            count = min(len(parts) - 1, MAX_DEPTH)
            while not (found := self._find_text(self.root, parts[:count])):  # of no parts: the root
                count -= 1
            node, before, wanted = found[0], ".".join(parts[:count]), ".".join(parts[count:])
        else:
            keys = path if type(path) is tuple else (path,)
            _, node, depth = self._walk(keys)
            before, wanted = ".".join(map(_text_of, keys[:depth])), _text_of(keys[depth])
            part = shown(keys[: depth + 1] if len(keys) > 1 else keys[0])
        node = self._opened(node)
        has = "has no parts"
        close = self._similar_name(wanted, before)
        if type(node) is Branch:
            has = f"has {listed(_keys(node))}"
            there = similar(wanted, map(key_text, _keys(node))) if close is None or "." not in wanted else None
            close = close if there is None else f"{before}.{there}" if before else there
        return f"the snapshot has no {part}: {shown(before) if before else 'it'} {has}{hint(close)}"

    def _similar_name(self, wanted: str, before: str) -> str | None:
        """Return the name of a tensor that a missing path may mean: in several parts, or without its beginning."""
        names = self._handle.names()
        if "." in wanted:
            return similar(f"{before}.{wanted}" if before else wanted, names)
        return next((name for name in names if not before and name.endswith(f".{wanted}")), None)

    def _find_text(self, node: Node, parts: list[str]) -> list[Node]:
        """Return all parts that a dotted path may mean: keys may contain dots."""
        if not parts:
            return [node]
        node = self._opened(node)
        if type(node) is not Branch:
            return []
        found: list[Node] = []
        for count in range(1, len(parts) + 1):
            for index in node.by_text(".".join(parts[:count])):
                found.extend(self._find_text(node.children[index], parts[count:]))
        return found

    def _opened(self, node: Node) -> Node:
        if type(node) is not Leaf or node.tag is not None:
            return node
        value = leaf_value(self._handle, node.value)
        if type(value) not in (list, tuple):
            return node
        branch = Branch("l" if type(value) is list else "t", None)
        branch.children.extend(map(Leaf, value))
        return branch

    @property
    def flags(self) -> int:
        """The flags of views: verified, unless the store was opened with ``verify=False``."""
        return flags_of(self._owner._verifies)

    def read(self, node: Node, flags: int | None = None, types: Types = NO_TYPES) -> Any:
        """Make the objects of a part (the root, or a result of `find`), its tensors over a new view with `flags`."""
        flags = self.flags if flags is None else flags
        return _Builder(self._handle, self.is_flat, types).build(node, node is self.root, flags)

    def fitting(self, pattern: str) -> list[TensorRef]:
        if not isinstance(pattern, str):
            raise UnsupportedError(f"a pattern of names must be a str, not {a_kind(pattern)}")
        refs = refs_of(self.root)
        by_name = {ref.name: ref for ref in refs}
        names = (name for name in self._handle.names() if fnmatch.fnmatchcase(name, pattern))
        return [by_name[name] for name in names if name in by_name]

    def read_refs(self, refs: list[TensorRef]) -> dict[str, Any]:
        branch = Branch("d", [ref.name for ref in refs])
        branch.children.extend(refs)
        made: dict[str, Any] = _Builder(self._handle, self.is_flat).build(branch, False, self.flags)
        return made

    def read_all(self, refs: list[TensorRef]) -> list[Any]:
        """Read tensors, possibly repeated, over one view; tied ones stay tied."""
        once = {ref.name: ref for ref in refs}
        branch = Branch("l", None)
        branch.children.extend(once.values())
        read = _Builder(self._handle, self.is_flat).build(branch, False, self.flags)
        made = dict(zip(once, read, strict=True))
        return [made[ref.name] for ref in refs]

    def batches(self, refs: list[TensorRef], budget: int) -> Iterator[list[TensorRef]]:
        """Yield pieces of at most `budget` bytes, or of one tensor."""
        batch: list[TensorRef] = []
        used = 0
        for ref in refs:
            size = self.described(ref).raw_bytes
            if batch and used + size > budget:
                yield batch
                batch, used = [], 0
            batch.append(ref)
            used += size
        if batch:
            yield batch

    def read_rows(self, node: Node, start: int | None, stop: int | None) -> Any:
        """Read some rows of a tensor, and only their blocks."""
        if type(node) is not TensorRef:
            raise InvalidError("rows are of a tensor, and this is none")
        if not self.visible_shape(node):
            raise InvalidError(f"{node.name!r} is a scalar and has no rows")
        dtype, shape, raw_bytes = self.described(node)
        first, last, _ = slice(start, stop).indices(shape[0])
        count = max(0, last - first)
        row_bytes = raw_bytes // shape[0] if shape[0] else 0
        data = self._handle.read_range(_core.TENSOR, node.name, first * row_bytes, count * row_bytes)
        return _Builder(self._handle, self.is_flat).over(node, dtype, (count, *shape[1:]), data)

    def described(self, ref: TensorRef) -> Described:
        if self._entries is None:
            entries = (entry for entry in self._handle.entries() if entry[1] == _core.TENSOR)
            self._entries = {entry[0]: Described(entry[2], entry[3], entry[4]) for entry in entries}
        found = self._entries.get(ref.name)
        if found is None:
            raise damaged(f"there is no tensor {ref.name!r}")
        return found

    def visible_shape(self, ref: TensorRef) -> tuple[int, ...]:
        shape = self.described(ref).shape
        return shape[:-1] if _numpy.is_swapped(ref.special) else shape

    def is_torch(self, ref: TensorRef) -> bool:
        return ref.is_torch and (not self.is_flat or _torch_is_there())

    def type_of(self, ref: TensorRef) -> type:
        if self.is_torch(ref):
            made: type = _import_torch().torch.Tensor
            return made
        import numpy

        return numpy.ndarray

    def dtype(self, ref: TensorRef) -> Any:
        number = self.described(ref).dtype
        if self.is_torch(ref):
            return _import_torch().dtype(number)
        return _numpy.dtype_of(number, ref.name) if ref.special is None else _numpy.special_dtype(ref.special, ref.name)

    def read_as(self, ref: TensorRef, is_torch: bool) -> Any:
        if is_torch and _numpy.is_swapped(ref.special):
            raise UnsupportedError(f"{ref.name}: torch has no dtype for {ref.special}: read it by numpy()")
        other = TensorRef(ref.name, is_torch)
        if not is_torch:
            other.special = ref.special or _numpy.special_of(self.described(ref).dtype)
        return _Builder(self._handle, False).build(other, False, self.flags)


def flags_of(verify: bool) -> int:
    return _core.VIEW_PRIVATE | (_core.VIEW_VERIFY if verify else 0)


def _flat_root(names: list[str]) -> Branch:
    branch = Branch("d", list(names))
    branch.children.extend(TensorRef(name, True) for name in names)
    return branch


def _live_root(handle: _core.Snapshot) -> Branch | None:
    try:
        table = bytes(_attachments(handle, [LIVE])[0])
    except NotFoundError as error:
        check_absent(error)
        return None
    entries = read_table(table)
    values = [entry.name for entry in entries if not entry.is_tensor]
    try:
        data = dict(zip(values, _attachments(handle, values), strict=True)) if values else {}
    except NotFoundError as error:
        check_absent(error)
        raise damaged(str(error)) from None
    branch = Branch("d", [])
    assert branch.keys is not None
    names = set(handle.names())
    for entry in entries:
        branch.keys.append(entry.name)
        if not entry.is_tensor:
            branch.children.append(Leaf(stored_value(entry, bytes(data[entry.name]))))
            continue
        ref = TensorRef(entry.name, entry.is_torch)
        ref.special = entry.special
        branch.children.append(ref)
        names.discard(entry.name)
    for name in sorted(names):
        branch.keys.append(name)
        branch.children.append(TensorRef(name, True))
    if len(set(branch.keys)) != len(branch.keys):
        raise damaged("its table of live variables")
    return branch


def _flat_parts(root: Node, path: str) -> list[Node]:
    """Collect the tensors whose names begin with a path; an empty list: none."""
    assert type(root) is Branch and root.keys is not None
    prefix = path + "."
    branch = Branch("d", [])
    assert branch.keys is not None
    for key, child in zip(root.keys, root.children, strict=True):
        if key.startswith(prefix):
            branch.keys.append(key.removeprefix(prefix))
            branch.children.append(child)
    return [branch] if branch.keys else []


def _keys(branch: Branch) -> Sequence[Any]:
    return range(len(branch.children)) if branch.keys is None else branch.keys


def _text_of(key: Any) -> str:
    try:
        return key_text(key)
    except Unpackable:
        return a_kind(key)


def _child(node: Node, key: Any) -> Node | None:
    if type(node) is not Branch:
        return None
    if node.keys is None:
        return node.children[key] if type(key) is int and 0 <= key < len(node.children) else None
    try:
        text = key_text(key)
    except Unpackable:
        return None
    for index in node.by_text(text):
        if node.keys[index] == key:
            return node.children[index]
    return next((child for known, child in zip(node.keys, node.children, strict=True) if known == key), None)


def made_sequence(node: Branch, items: list[Any]) -> Any:
    if node.tag == "Q":
        return deque(items, node.extra)
    return items if node.tag == "l" else tuple(items)


def made_dict(node: Branch) -> Any:
    if node.tag == "D":
        return defaultdict(None if node.extra is None else FACTORIES[node.extra])
    return DICT_TYPES[node.tag]()


def made_object(node: Branch, items: list[Any], types: Types = NO_TYPES) -> Any:
    """Make a namedtuple or a dataclass, or what stands in for it."""
    assert node.keys is not None
    make = types.make_named if node.tag == "N" else types.make_dataclass
    return make(node.extra, node.keys, items)


class _Builder:
    def __init__(self, handle: _core.Snapshot, is_flat: bool, types: Types = NO_TYPES) -> None:
        self._handle = handle
        self._types = types
        self._is_flat = is_flat
        self._reads_arrays = is_flat and not _torch_is_there()
        self._torch: Torch | None = None
        self._entries: dict[str, tuple[int, tuple[int, ...], _core.Buffer]] = {}
        self._memories: dict[str, tuple[Memory, int]] = {}  # of tensors in a shared one, with the offset
        self._groups: dict[int, Any] = {}
        self._members: dict[tuple[int, int], Any] = {}

    def build(self, node: Node, is_root: bool, flags: int) -> Any:
        refs = refs_of(node)
        if refs:
            if any(map(self._is_torch, refs)):
                self._torch = _import_torch()
            self._open(None if is_root else [ref.name for ref in refs], flags)
            self._place([ref for ref in refs if ref.place is not None])
        return self._object(node)

    def over(self, ref: TensorRef, dtype: int, shape: tuple[int, ...], data: bytearray) -> Any:
        buffer: Any = data
        if not self._is_torch(ref):
            return _numpy.array(buffer, dtype, shape, ref.special, ref.name)
        return _import_torch().tensor(buffer, dtype, shape)

    def _is_torch(self, ref: TensorRef) -> bool:
        return ref.is_torch and not self._reads_arrays

    def _open(self, names: list[str] | None, flags: int) -> None:
        try:
            view = self._handle.view(names, _core.TENSOR, flags)
        except NotFoundError as error:
            check_absent(error)
            self._handle.names()  # raises if the snapshot is gone
            raise damaged(str(error)) from None
        names, kinds, dtypes, shapes, buffers = view.unpack()
        tensors = zip(names, kinds, zip(dtypes, shapes, buffers, strict=True), strict=True)
        self._entries = {name: entry for name, kind, entry in tensors if kind == _core.TENSOR}

    def _object(self, node: Node) -> Any:
        if type(node) is TensorRef:
            return self._tensor(node)
        if type(node) is Leaf:
            value = leaf_value(self._handle, node.value)
            if node.tag is not None:
                return self._types.make_enum(node.extra, value) if node.tag == "E" else make_value(node.extra, value)
            return value.copy() if type(value) in (list, set, bytearray) else value
        assert type(node) is Branch
        if node.keys is None:
            made: list[Any] = []
            for child in node.children:
                made.append(self._object(child))
            return made_sequence(node, made)
        if node.tag in DICT_TYPES or node.tag == "D":
            return self._dict(node, node.keys)
        return made_object(node, [self._object(child) for child in node.children], self._types)

    def _dict(self, node: Branch, keys: list[Any]) -> Any:
        made: Any = made_dict(node)
        for key, child in zip(keys, node.children, strict=True):
            made[key] = self._tensor(child) if type(child) is TensorRef else self._object(child)
        if len(made) != len(keys):
            raise damaged("a dict has a key twice")
        if node.metadata is not None:
            made._metadata = self._object(node.metadata)
        return made

    def _place(self, refs: list[TensorRef]) -> None:
        """Make the memories that tensors share; one that shares none of the others' stays apart."""
        storages: dict[int, list[Stretch]] = {}
        for ref in refs:
            try:
                dtype, shape = self._visible(ref)
            except UnsupportedError:  # raised again where the tensor is made
                continue
            assert ref.place is not None
            is_torch = self._is_torch(ref)
            storages.setdefault(ref.place.storage, []).append(
                stretch_of(ref, ref.place, shape, dtype.itemsize, is_torch)
            )
        for group in (group for stretches in storages.values() for group in groups_of(stretches)):
            base = base_of(group)
            if any(self._is_torch(one.owner) and (one.address - base) % one.item for one in group):
                continue  # torch has no such tensor
            size = max(one.end for one in group) - base
            whole = next((one for one in group if one.start == base and one.is_row_major(size)), None)
            memory = Memory.empty(size) if whole is None else Memory(self._entry(whole.owner)[2])
            for one in group:
                if whole is None:
                    memory.fill(
                        self._entry(one.owner)[2], one, base, self._torch if self._is_torch(one.owner) else None
                    )
                self._memories[one.owner.name] = memory, one.address - base

    def _visible(self, ref: TensorRef) -> tuple[Any, tuple[int, ...]]:
        """Return the dtype and shape of the tensor or array that is made."""
        dtype, shape, _ = self._entry(ref)
        if self._is_torch(ref):
            assert self._torch is not None
            return self._torch.dtype(dtype), shape
        return _numpy.visible(dtype, shape, ref.special, ref.name)

    def _placed(self, ref: TensorRef, place: Place, memory: Memory, offset: int) -> Any:
        dtype, shape = self._visible(ref)
        if not self._is_torch(ref):
            return memory.array(dtype, shape, offset, place.strides)
        assert self._torch is not None
        key = None if ref.group is None else (ref.group, ref.member)
        made = None if key is None else self._members.get(key)
        if made is None:
            made = memory.tensor(self._torch, dtype, shape, offset, place.strides)
            if key is not None:
                self._members[key] = made
        return made

    def _entry(self, ref: TensorRef) -> tuple[int, tuple[int, ...], _core.Buffer]:
        entry = self._entries.get(ref.name)
        if entry is None:
            raise damaged(f"there is no tensor {ref.name!r}")
        return entry

    def _tensor(self, ref: TensorRef) -> Any:
        if ref.place is not None and ref.name in self._memories:
            return self._placed(ref, ref.place, *self._memories[ref.name])
        entry = self._entry(ref)
        dtype, shape, buffer = entry
        if self._reads_arrays or not ref.is_torch:
            return _numpy.array(buffer, dtype, shape, ref.special, ref.name)
        assert self._torch is not None
        try:
            if ref.group is None:
                return self._torch.tensor(buffer, dtype, shape)
            return self._tied(ref, ref.group, self._torch, entry)
        except UnsupportedError as error:
            raise UnsupportedError(f"tensor {ref.name!r}: {error}; the others can be read by their names") from None

    def _tied(self, ref: TensorRef, group: int, torch: Torch, entry: tuple[int, tuple[int, ...], Any]) -> Any:
        dtype, shape, buffer = entry
        first = self._groups.get(group)
        if first is None:
            first = torch.tensor(buffer, dtype, shape)
            self._groups[group] = first
            self._members[group, ref.member] = first
            return first
        if tuple(first.shape) != shape or first.dtype != torch.dtype_of.get(dtype):
            raise damaged(f"tensor {ref.name!r} is tied to one of another kind")
        if (group, ref.member) not in self._members:
            self._members[group, ref.member] = torch.again(first)
        return self._members[group, ref.member]


def _torch_is_there() -> bool:
    if loaded("torch") is not None:
        return True
    from importlib.util import find_spec

    return find_spec("torch") is not None


def _import_torch() -> Torch:
    try:
        import torch
    except ImportError:
        raise UnsupportedError("the snapshot holds torch tensors; install torch to read them") from None
    return torch_of(torch)
