# SPDX-License-Identifier: BSD-3-Clause
"""Warnings about pools and shelves that a call creates because they do not exist."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping

from ..errors import CreationWarning
from .similar import listed, similar
from .text import lines


def warn_of_creation(message: str) -> None:
    """Issue a CreationWarning at the line of the program that called this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "lmcstore":
        level, frame = level + 1, frame.f_back
    warnings.warn(lines(message), CreationWarning, stacklevel=level)


def counted(count: int) -> str:
    """Format a number of snapshots."""
    return f"{count:,} snapshot{'' if count == 1 else 's'}"


def similar_shelf(name: str, counts: Mapping[str, int]) -> str:
    """Return a clause about the shelf of a similar name, of those with snapshots; "": there is none."""
    there = similar(name, [other for other, count in counts.items() if count and other != name])
    return "" if there is None else f"; shelf {there!r} has {counted(counts[there])}"


def other_shelves(name: str, counts: Mapping[str, int]) -> str:
    """Return a clause about the shelf of a similar name, or else about all others; "": there are none."""
    others = [other for other in counts if other != name]
    return similar_shelf(name, counts) or (f"; there is {listed(others)}" if others else "")
