# SPDX-License-Identifier: BSD-3-Clause
"""The nodes that a skeleton is decoded to: containers, values and references to tensors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ..errors import DamagedError, NotFoundError
from .skeleton import key_text


class Place(NamedTuple):
    """A tensor's place in a memory that others use, too; bytes."""

    storage: int
    size: int  # of the memory
    offset: int
    strides: tuple[int, ...]


class Leaf:
    """A value other than a tensor; an `Attached` for an unread one. A value kind makes another value of it."""

    __slots__ = ("extra", "tag", "value")

    def __init__(self, value: Any, tag: str | None = None, extra: str = "") -> None:
        self.value = value
        self.tag = tag
        self.extra = extra


class TensorRef:
    __slots__ = ("group", "is_torch", "member", "name", "place", "special")

    def __init__(self, name: str, is_torch: bool) -> None:
        self.name = name
        self.is_torch = is_torch
        self.special: str | None = None  # a NumPy dtype
        self.group: int | None = None
        self.member = 0
        self.place: Place | None = None  # in a memory that it shares


class Branch:
    """A container: its tag in the skeleton, a dict's keys, its children, and an OrderedDict's _metadata.

    `extra` has a class's name, a factory's name or the longest length of a deque.
    """

    __slots__ = ("children", "extra", "keys", "metadata", "refs", "tag", "texts")

    def __init__(self, tag: str, keys: list[Any] | None, extra: Any = None) -> None:
        self.tag = tag
        self.extra = extra
        self.keys = keys
        self.children: list[Node] = []
        self.metadata: Node | None = None
        self.texts: dict[str, list[int]] | None = None  # children by their key's text, on demand
        self.refs: list[TensorRef] | None = None  # all tensors below it, on demand; nodes are kept between snapshots

    def by_text(self, text: str) -> list[int]:
        texts = self.texts
        if texts is None:
            texts = {}
            keys = range(len(self.children)) if self.keys is None else self.keys
            for index, key in enumerate(keys):
                texts.setdefault(key_text(key), []).append(index)
            self.texts = texts  # only when it is full: other threads read the same node
        return texts.get(text, [])


Node = Leaf | TensorRef | Branch


def refs_of(node: Node) -> list[TensorRef]:
    if type(node) is Branch and node.refs is not None:
        return node.refs
    refs: list[TensorRef] = []
    _collect(node, refs)
    if type(node) is Branch:
        node.refs = refs
    return refs


def _collect(node: Node, refs: list[TensorRef]) -> None:
    if type(node) is TensorRef:
        refs.append(node)
    elif type(node) is Branch:
        for child in node.children:
            _collect(child, refs)
        if node.metadata is not None:
            _collect(node.metadata, refs)


def class_names(node: Node) -> set[str]:
    """Return the names of the namedtuples, dataclasses and enums in a part."""
    if isinstance(node, TensorRef):
        return set()
    names = {str(node.extra)} if node.tag in ("N", "c", "E") else set()
    if type(node) is Branch:
        names.update(*map(class_names, node.children))
        if node.metadata is not None:
            names |= class_names(node.metadata)
    return names


def part_of(root: Node, keys: Collection[Any]) -> Node:
    """Return a dict with some of its keys; other nodes as they are."""
    if type(root) is not Branch or root.keys is None or root.tag in ("N", "c"):
        return root
    made = Branch(root.tag, [], root.extra)
    assert made.keys is not None
    for key, child in zip(root.keys, root.children, strict=True):
        if key in keys:
            made.keys.append(key)
            made.children.append(child)
    return made


def holds_tensors(node: Node) -> bool:
    return type(node) is TensorRef or (type(node) is Branch and any(map(holds_tensors, node.children)))


def damaged(what: str) -> DamagedError:
    return DamagedError(f"the snapshot's state is damaged ({what}); its tensors can still be exported")


def check_absent(error: NotFoundError) -> None:
    """Raise it again unless it only says that the snapshot lacks something: an object or a rank's pool may be away."""
    if type(error) is not NotFoundError:
        raise error from None
