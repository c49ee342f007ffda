# SPDX-License-Identifier: BSD-3-Clause
"""Decodes an encoded state before it is stored, and compares it: no snapshot is taken that can't be read.

A structure that equals the one before, as from step to step, is decoded once: `structure_of` keeps the last two.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from ..errors import DamagedError, UnsupportedError
from .decode import Parser, storages_of
from .nodes import Branch, Node, TensorRef
from .scalars import Reader, Unpackable, pack, pack_again
from .skeleton import DICT_TYPES


class Shape:
    """In the place of a container of `_state.plain`, its keys."""

    def __init__(self, keys: list[Any] | None) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys or ())


_TYPES = {"l": list, "t": tuple, **DICT_TYPES, **dict.fromkeys("NcQD", Shape)}
_EXACT = frozenset({str, int, bool, type(None)})
"""Types of keys that are the same if they are equal."""


class Structure:
    """A decoded skeleton: its JSON, the tensors' names, and each container's type and keys, in its order."""

    def __init__(self, text: bytes) -> None:
        document = json.loads(text)
        self.leaves: int = document["leaves"]
        self.names: list[str] = []
        self.types: list[type] = []
        self.keys: list[list[Any] | None] = []
        self.root: Any = document["root"]
        self._walk(
            Parser(repeat(None, self.leaves), document["lmcstore"], storages_of(document)).node(self.root, "", 0)
        )

    def _walk(self, node: Node) -> None:
        if type(node) is TensorRef:
            self.names.append(node.name)
        elif type(node) is Branch:
            self.types.append(_TYPES[node.tag])
            self.keys.append(node.keys)
            if node.metadata is not None:
                self._walk(node.metadata)
            for child in node.children:
                self._walk(child)


structure_of = functools.lru_cache(maxsize=2)(Structure)


def check_structure(text: bytes, root: Any, names: Iterable[str], containers: Sequence[Any], paths: list[str]) -> None:
    """Compare a skeleton with the nodes, the names and the containers that it was made of, in their order.

    UnsupportedError: it can't be decoded, or to something else.
    """
    try:
        structure = structure_of(text)
    except (DamagedError, StopIteration, ValueError, RecursionError) as error:
        raise UnsupportedError(f"the state can't be stored: its structure could not be read again: {error}") from None
    if structure.names != list(names) or (structure.root is not None and structure.root != root):
        raise UnsupportedError("the state can't be stored: its structure would not be read as it is")
    structure.root = None  # equal text needs no second comparison
    if structure.types != list(map(type, containers)):
        raise UnsupportedError("the state can't be stored: its containers would not be read as they are")
    for index, keys in enumerate(structure.keys):
        if keys is not None and not _are_same(keys, list(containers[index])):
            path = paths[index] or "the state"
            raise UnsupportedError(f"{path}: the dict can't be stored: its keys would not be read as they are")


def _are_same(keys: list[Any], others: list[Any]) -> bool:
    types = set(map(type, others))
    if types <= _EXACT:
        return keys == others and (len(types) < 2 or list(map(type, keys)) == list(map(type, others)))
    return list(map(pack, keys)) == list(map(pack, others))


def check_leaves(packed: bytes, count: int, what: str) -> None:
    """Unpack leaves, and compare them; UnsupportedError: they would not be read as they are."""
    try:
        reader = Reader(packed)
        again = b"".join([pack_again(reader.value(may_be_attached=True)) for _ in range(count)])
    except (DamagedError, Unpackable) as error:
        raise UnsupportedError(f"{what} can't be stored: it could not be read again: {error}") from None
    if again != packed:
        raise UnsupportedError(f"{what} can't be stored: it would not be read as it is")
