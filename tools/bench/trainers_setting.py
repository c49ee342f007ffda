# SPDX-License-Identifier: BSD-3-Clause
"""Where and how much the suite `trainers` measures; rounds of several ways."""

import random
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tables import progress

MIB = 1 << 20
Found = dict[str, list[dict[str, list[float]]]]


@dataclass
class Setting:
    """Where and how much to measure."""

    folder: Path
    size: str
    places: dict[str, Path]
    rounds: int
    notes: list[str] = field(default_factory=list)

    def of(self, full: Any, quick: Any, smoke: Any) -> Any:
        """Choose by size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]

    @property
    def bytes(self) -> int:
        """The state's size, of all ranks."""
        return int(self.of(1024, 256, 4)) * MIB


def in_turn(setting: Setting, place: Path, ways: tuple[str, ...], work: Callable[[str, Path], Any]) -> Found:
    """Measure all ways in each round, in random order."""
    found: Found = {way: [] for way in ways}
    for turn in range(setting.rounds):
        for way in random.Random(turn).sample(ways, len(ways)):
            with tempfile.TemporaryDirectory(dir=place) as folder:
                found[way].append(work(way, Path(folder)))
            progress(f"    {place}, {way}")
    return found


def middle(found: list[dict[str, list[float]]], name: str, which: slice = slice(None)) -> float:
    """Return the median of all rounds."""
    return statistics.median(value for one in found for value in one[name][which])


def ratio(found: Found, way: str, base: str, name: str, which: slice = slice(None)) -> float:
    """Return the median of the rounds' ratios."""
    pairs = zip(found[way], found[base], strict=True)
    return statistics.median(
        statistics.median(one[name][which]) / statistics.median(other[name][which]) for one, other in pairs
    )
