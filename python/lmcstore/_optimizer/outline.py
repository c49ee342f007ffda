# SPDX-License-Identifier: BSD-3-Clause
"""`Outline`: the parts of a state that `Finder` needs, recorded while the state is encoded."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

Way = tuple[str, ...]
"""The texts of the keys that lead from a state to a part of it."""

_DEEPEST = 2
"""A model's tensors are sought in containers of at most this depth."""


class Stretch(NamedTuple):
    """A container, and its stretch of `Outline.records`."""

    way: Way
    begin: int
    end: int


class Outline:
    """The tensors of a state in its order, the containers near its top, and its optimizers.

    The encoder appends to `records`, and calls `enter` and `leave` around each container.
    """

    FIELDS = 5

    def __init__(self) -> None:
        self.records: list[Any] = []
        """Flat, because the garbage collector would visit thousands of tuples. `FIELDS` for each tensor: its path, its
        name, the list that its node is in, the node's index there, and the tensor. Of tied tensors only the first has a
        record; another occurrence of the same object has one with the same name."""
        self.containers: list[Stretch] = []
        """Containers with tensors, outside of optimizers, children before parents."""
        self.optimizers: list[tuple[Stretch, Mapping[str, Any]]] = []
        """State dicts of optimizers, none inside another."""
        self.dicts: dict[str, Mapping[Any, Any]] = {}
        """Dicts near the top, by path."""
        self._open: list[tuple[str, int]] = []

    def enter(self, path: str) -> None:
        self._open.append((path, len(self.records)))

    def leave(self, value: Any) -> None:
        path, begin = self._open.pop()
        depth = len(self._open)
        if isinstance(value, dict) and depth <= _DEEPEST:
            self.dicts[path] = value
        if isinstance(value, dict) and "param_groups" in value and is_optimizer(value):
            while self.containers and self.containers[-1].begin >= begin:
                self.containers.pop()
            while self.optimizers and self.optimizers[-1][0].begin >= begin:
                self.optimizers.pop()
            self.optimizers.append((self._stretch(path, begin), value))
        elif 0 < depth <= _DEEPEST and len(self.records) > begin:
            self.containers.append(self._stretch(path, begin))

    def _stretch(self, path: str, begin: int) -> Stretch:
        paths = [*(parent for parent, _ in self._open), path]
        way = tuple(below[len(above) + 1 :] if above else below for above, below in pairwise(paths))
        return Stretch(way, begin, len(self.records))


def is_optimizer(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value.keys() >= {"state", "param_groups"}:
        return False
    state, groups = value["state"], value["param_groups"]
    return isinstance(state, Mapping) and isinstance(groups, list) and all(isinstance(g, Mapping) for g in groups)
