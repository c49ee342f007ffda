# SPDX-License-Identifier: BSD-3-Clause
"""Finds the snapshots of a state that an address names, as store/ADDRESSES.md has it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from ..errors import InvalidError, NotFoundError, UnsupportedError
from .state import Shelf, State

_PLACE = re.compile(r"(.*?)(?:~([0-9]+))?")
_MOST = 1 << 62
_SHOWN = 8


def numbers_of(state: State, what: Iterable[str]) -> Iterator[tuple[Shelf, list[int]]]:
    """Yield the shelves that addresses and ranges name, with the numbers of their snapshots, oldest first.

    Nothing: all. NotFoundError: there is no such shelf, snapshot or tag.
    """
    addresses = tuple(what)
    if not addresses:
        for shelf in state.shelves:
            yield shelf, [entry.number for entry in shelf.entries() if not entry.hidden]
        return
    found: dict[str, set[int]] = {}
    for address in addresses:
        name, has_which, which = address.partition("@")
        shelf = state.shelf(name)
        first, last = bounds_of(shelf, which) if has_which else (1, _MOST)
        numbers = {entry.number for entry in shelf.entries(first, last) if not entry.hidden}
        found.setdefault(name, set()).update(numbers)
    for name in sorted(found, key=str.encode):
        yield state.shelf(name), sorted(found[name])


def bounds_of(shelf: Shelf, which: str) -> tuple[int, int]:
    """Return the first and the last number of a range, or of a snapshot."""
    begin, is_range, end = which.partition("..")
    if not is_range:
        number = number_of(shelf, which)
        return number, number
    first = _end(shelf, begin) if begin else 1
    last = _end(shelf, end) if end else _MOST
    if first > last:
        raise InvalidError(f"the range {which!r} ends before it begins")
    return first, last


def _end(shelf: Shelf, which: str) -> int:
    return int(which) if re.fullmatch(r"[0-9]{1,18}", which) else number_of(shelf, which)


def number_of(shelf: Shelf, which: str) -> int:
    """Return the number of the snapshot that the part of an address after the @ names."""
    match = _PLACE.fullmatch(which)
    name, back = (match.group(1), int(match.group(2) or 0)) if match is not None else (which, 0)
    if name.startswith("{"):
        raise UnsupportedError(f"{which!r}: a run in an object store has no addresses by time; use a number or a step")
    if re.fullmatch(r"-?[0-9]{1,18}", name) and not name.startswith("-"):
        wanted = int(name)
        found = next((entry.number for entry in shelf.entries(wanted, wanted) if not entry.hidden), None)
    elif name in ("latest", ""):
        found = next((entry.number for entry in shelf.entries(backwards=True) if not entry.hidden), None)
    elif re.fullmatch(r"step:-?[0-9]{1,19}", name):
        entries = shelf.entries(backwards=True, step=int(name[5:]))
        found = next((entry.number for entry in entries if not entry.hidden), None)
    else:
        found = shelf.tags.get(name)
    if found is not None and back:
        older = (entry.number for entry in shelf.entries(1, found - 1, backwards=True) if not entry.hidden)
        found = next((number for index, number in enumerate(older, 1) if index == back), None)
    if found is None:
        raise NotFoundError(f"shelf {shelf.name!r} has no snapshot {which!r}")
    return found


def short(numbers: Iterable[int]) -> str:
    """Return ascending numbers as text: 3, 5..9; of many ranges, the first ones."""
    runs = [list(run) for _, run in itertools.groupby(enumerate(numbers), lambda one: one[1] - one[0])]
    texts = [f"{run[0][1]}..{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs[:_SHOWN]]
    return ", ".join(texts) + (" and more" if len(runs) > _SHOWN else "")
