# SPDX-License-Identifier: BSD-3-Clause
"""What the sections of tools/bench.sh history share: where and how much to measure, and the C half."""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
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
    """Where to measure, and how much: `full`, `quick`, or `smoke` (does it run at all)."""

    folder: Path  # for what goes at the end
    kept: Path  # for what is made once
    size: str
    plot: Path
    peers: bool = True
    notes: list[str] = field(default_factory=list)

    def of(self, full: int, quick: int, smoke: int) -> int:
        """Choose a number by the size of the run."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]


def bench_store(section: str, folder: Path, size: int, rounds: int, threads: int = THREADS) -> dict[str, Any]:
    """Run a section of the C half."""
    words = [BENCH, section, folder, str(size), str(rounds), str(threads)]
    result = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"bench_store {section} ended with {result.returncode}")
    numbers: dict[str, Any] = json.loads(result.stdout)
    return numbers


def mean(values: list[float]) -> float:
    """Give the arithmetic mean."""
    return sum(values) / len(values)


def median(values: list[float]) -> float:
    """Give the middle one."""
    return statistics.median(values)


def debian_tool(name: str, folder: Path) -> Path:
    """Find a program, or fetch its Debian package and unpack it into a folder, without installing it.

    Raises
    ------
    RuntimeError
        It is not to be had; the text says why.
    """
    found = shutil.which(name)
    home = folder / name
    unpacked = home / "usr/bin" / name
    if found:
        return Path(found)
    if not unpacked.exists():
        with tempfile.TemporaryDirectory(prefix="package-", dir=folder) as made:
            try:
                subprocess.run(["apt-get", "download", "-q", name], cwd=made, check=True, capture_output=True)
                package = next(Path(made).glob("*.deb"))
                subprocess.run(["dpkg-deb", "-x", package, home], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError, StopIteration) as error:
                raise RuntimeError(f"{name}: not installed, and no Debian package ({type(error).__name__})") from None
    return unpacked
