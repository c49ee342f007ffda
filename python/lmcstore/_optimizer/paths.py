# SPDX-License-Identifier: BSD-3-Clause
"""Parameters and their moments, matched by paths alone: flattened checkpoints and plain dicts of arrays.

`optim.state.head.weight.exp_avg`, `optim.state.head.weight.exp_avg_sq` and `model.head.weight` belong together; so do
`m3`, `v3` and `w3`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_SECONDS = {"exp_avg": "exp_avg_sq", "m": "v", "mu": "nu"}
_FIRST = re.compile("(?<![A-Za-z_])(exp_avg|momentum_buffer|mu|m)(?![A-Za-z_])")
_WEIGHTS = ("w", "p", "weight", "param", "params", "theta")
_MOST_PARTS = 12
"""Of a path's end, when a parameter is sought."""


class Match(NamedTuple):
    """Moments and their parameter."""

    members: tuple[str, ...]
    """Paths, in the order of `Relation`."""
    stem: str
    """The path of the first moment up to its last key, for the keys beside it; empty: it has none."""


def _ends(path: str) -> list[str]:
    parts = [part for part in path.split(".") if part]
    return [".".join(parts[begin:]) for begin in range(max(0, len(parts) - _MOST_PARTS), len(parts))]


def _moments(shapes: Mapping[str, Any]) -> list[tuple[tuple[str, ...], list[str], str]]:
    """List moments, the likely paths of the parameter, and the path without the moment's word."""
    found = []
    for path, shape in shapes.items():
        for hit in _FIRST.finditer(path):
            before, after = path[: hit.start()], path[hit.end() :]
            moments = [path] if hit[0] not in _SECONDS else [path, before + _SECONDS[hit[0]] + after]
            if all(shapes.get(moment) == shape for moment in moments):
                found.append((tuple(moments), [before + word + after for word in _WEIGHTS], f"{before}.{after}"))
                break
    return found


def match(shapes: Mapping[str, Any], is_copy: Callable[[tuple[str, ...]], bool]) -> list[Match]:
    """Match the tensors of these paths and shapes; a parameter is the one whose path's end is the longest in common."""
    found = _moments(shapes)
    taken = {moment for moments, _, _ in found for moment in moments}
    ends: dict[str, list[str]] = {}
    for path in sorted(shapes, key=lambda path: is_copy(tuple(path.split(".")))) if found else ():
        for end in _ends(path) if path not in taken else ():
            ends.setdefault(end, []).append(path)
    matches = []
    for moments, likely, rest in found:
        candidates = [*likely, *(path for end in _ends(rest) for path in ends.get(end, ()))]
        parameter = next((p for p in candidates if p not in taken and shapes.get(p) == shapes[moments[0]]), None)
        if parameter is None:
            continue
        taken.add(parameter)
        stem = moments[0].rpartition(".")[0]
        most = [f"{stem}.max_exp_avg_sq"] if shapes.get(f"{stem}.max_exp_avg_sq") == shapes[parameter] else []
        matches.append(Match((*moments, parameter, *(most if len(moments) == 2 else ())), stem and stem + "."))
    return matches
