# SPDX-License-Identifier: BSD-3-Clause
"""The structure of a snapshot that a `Run` of many ranks has saved, put together from the ranks' own snapshots.

Each rank's snapshot has the whole structure of the common objects, and the rank's own ones (`parts`). The state of the
run has the common objects, from the first rank that is there, and ``"ranks"``: a dict of each rank's own objects.
"""

from __future__ import annotations

from typing import Any

from .. import _core
from .._state.decode import Decoded, leaf_value
from .._state.nodes import Branch, Leaf, Node, TensorRef, damaged
from .joined import Handle
from .parts import RANKS, Elsewhere, own_name
from .ranks import RankNotFoundError
from .record import Record

_ELSEWHERE = f"{Elsewhere.__module__}.{Elsewhere.__qualname__}"
_RANK_BITS = 32
_RNG = "rng"


class Structure:
    """Reads the structures of the ranks' snapshots."""

    def __init__(self, handle: Handle, owner: Any) -> None:
        self._handle = handle
        self._owner = owner
        self._record: Record = handle.record
        self._roots: dict[int, dict[str, Node]] = {}

    def run(self) -> tuple[Branch, list[int]]:
        """Return the structure of the run's state, and the ranks that are not there."""

        def failure(rank: int) -> RankNotFoundError | None:
            try:
                self._root(rank)
            except RankNotFoundError as error:
                return error
            return None

        known = sorted(self._record.ranks)
        failures = self._handle.map(failure, known)
        missing = [rank for rank, error in zip(known, failures, strict=True) if error is not None]
        if missing and not self._roots:
            raise next(filter(None, failures))
        common = set(self._record.objects or ())
        first = min(self._roots)
        made, ranks = Branch("d", []), Branch("d", [])
        assert made.keys is not None and ranks.keys is not None
        for name, node in self._root(first).items():
            if name in common:
                made.keys.append(name)
                made.children.append(node)
        for rank, root in sorted(self._roots.items()):
            own = Branch("d", [name for name in root if name not in common])
            own.children.extend(node for name, node in root.items() if name not in common)
            ranks.keys.append(rank)
            ranks.children.append(own)
        made.keys.append(RANKS)
        made.children.append(ranks)
        return made, missing

    def of_rank(self, rank: int) -> tuple[Branch, list[str]]:
        """Return the state as a rank resumes from it, and the names of objects that only other ranks have.

        A rank that is new to the run gets the common objects, and those that are equal on all ranks.
        """
        is_known = rank in self._record.ranks
        common = set(self._record.objects or ())
        made, elsewhere = Branch("d", []), []
        assert made.keys is not None
        for name, node in self._root(rank if is_known else min(self._record.ranks)).items():
            if is_known or name in common or (name != _RNG and self._is_equal(name, node)):
                made.keys.append(name)
                made.children.append(node)
            else:
                elsewhere.append(name)
        return made, elsewhere

    def _is_equal(self, name: str, node: Node) -> bool:
        others = (self._root(rank).get(name) for rank in self._record.ranks)
        return all(other is not None and _are_equal(node, other) for other in others)

    def _root(self, rank: int) -> dict[str, Node]:
        if rank not in self._roots:
            handle = self._handle.part(rank, [])
            decoded = Decoded(handle, self._owner, lambda: self._handle.part(rank, []))
            found = _Mapped(rank, self._record, handle)
            self._roots[rank] = {name: found.node(child) for name, child in decoded.children().items()}
        return self._roots[rank]


class _Mapped:
    """Maps the nodes of a rank's snapshot to those of the run."""

    def __init__(self, rank: int, record: Record, handle: _core.Snapshot) -> None:
        self._rank = rank
        self._record = record
        self._handle = handle
        self._members = 0

    def node(self, node: Node) -> Node:
        if type(node) is TensorRef:
            return self._ref(node)
        if type(node) is Leaf:
            return Leaf(leaf_value(self._handle, node.value), node.tag, node.extra)
        assert type(node) is Branch
        if node.tag == "N" and node.extra == _ELSEWHERE:
            return self._elsewhere(node)
        made = Branch(node.tag, node.keys, node.extra)
        made.children.extend(self.node(child) for child in node.children)
        made.metadata = None if node.metadata is None else self.node(node.metadata)
        return made

    def _name(self, rank: int, name: str) -> str:
        own = own_name(rank, name)
        return own if own in self._record.tensors else name

    def _ref(self, ref: TensorRef) -> TensorRef:
        made = TensorRef(self._name(self._rank, ref.name), ref.is_torch)
        made.special = ref.special
        if ref.group is not None:
            made.group, made.member = self._rank << _RANK_BITS | ref.group, ref.member
        tensor = self._record.tensors.get(made.name)
        if tensor is None:
            raise damaged(f"there is no tensor {made.name!r}")
        if len(tensor.boxes) == 1 and tensor.is_complete:
            made.place = ref.place
        return made

    def _elsewhere(self, node: Branch) -> TensorRef:
        values: list[Any] = [child.value if type(child) is Leaf else None for child in node.children]
        if len(values) != len(Elsewhere._fields) or type(values[0]) is not str or type(values[1]) is not int:
            raise damaged("a tensor that another rank stores")
        name, rank, tie = Elsewhere(*values)
        made = TensorRef(self._name(rank, name), True)
        if made.name not in self._record.tensors:
            raise damaged(f"there is no tensor {made.name!r}")
        if type(tie) is int:
            self._members += 1
            made.group, made.member = -1 - (self._rank << _RANK_BITS | tie), self._members
        return made


def _are_equal(node: Node, other: Node) -> bool:
    """Whether two nodes have equal values, and no tensors."""
    if type(node) is not type(other) or isinstance(node, TensorRef) or isinstance(other, TensorRef):
        return False
    if (node.tag, node.extra) != (other.tag, other.extra):
        return False
    if isinstance(node, Leaf) or isinstance(other, Leaf):
        assert isinstance(node, Leaf) and isinstance(other, Leaf)
        return type(node.value) is type(other.value) and bool(node.value == other.value)
    pairs = zip(node.children, other.children, strict=False)
    return node.keys == other.keys and len(node.children) == len(other.children) and all(_are_equal(*p) for p in pairs)
