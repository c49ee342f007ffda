# SPDX-License-Identifier: BSD-3-Clause
"""Settings of tools/bench.sh history."""

import json
import os
import statistics
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent.parent
BENCH = TOP / "build/release/bin/bench_store"
COMMAND = TOP / "build/release/bin/lmc-store"
THREADS = min(8, len(os.sched_getaffinity(0)))
MIB, GIB = 1 << 20, 1 << 30


@dataclass
class Setting:
    """Where and how much to measure."""

    folder: Path  # temporary
    kept: Path  # kept between runs
    size: str
    plot: Path
    peers: bool = True
    notes: list[str] = field(default_factory=list)

    def of(self, full: int, quick: int, smoke: int) -> int:
        """Choose by size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]


def bench_store(section: str, folder: Path, size: int, rounds: int, threads: int = THREADS) -> dict[str, Any]:
    """Run the C half."""
    words = [BENCH, section, folder, str(size), str(rounds), str(threads)]
    result = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"bench_store {section} ended with {result.returncode}")
    numbers: dict[str, Any] = json.loads(result.stdout)
    return numbers


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def median(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)
