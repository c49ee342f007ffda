# SPDX-License-Identifier: BSD-3-Clause
"""Random rows and one whole pass of a live tensor larger than memory, for each advice to the kernel.

Run by hand: `.venv/bin/python tools/bench/access.py` (root, for a memory cgroup). Prints the table of store/LIVE.md.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import lmcstore
import numpy as np
from limits import run_limited

MIB = 1 << 20
ROW = 64  # numbers
WAYS = ("normal", "random", "sequential")


def fill(path: Path, mib: int) -> None:
    """Make the table."""
    with lmcstore.open(path, "x", size=f"{mib + 256}MiB", background=False) as store:
        table = store.shelf("run", create=True).live.tensor("table", (mib * MIB // (4 * ROW), ROW), "float32")
        rows = table.array
        for start in range(0, len(rows), 65536):
            rows[start : start + 65536] = start
        table.persist()


def read(path: Path, access: str, count: int) -> None:
    """Print the seconds of random rows, or of all rows if `count` is 0. No page of the pool is cached before."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with lmcstore.open(path, mode="r") as store:
        rows = store["run"].live.tensor("table", access=access).array
        chosen = np.random.default_rng(0).integers(len(rows), size=count)
        begin = time.perf_counter()
        if count:
            total = float(rows[chosen].sum())
        else:
            total = sum(float(rows[start : start + 65536].sum()) for start in range(0, len(rows), 65536))
        print(time.perf_counter() - begin, total)


def measure(path: Path, access: str, count: int, limit: int) -> float:
    """Run `read` under the limit."""
    outcome = run_limited([sys.executable, __file__, "--read", access, "--rows", count, "--pool", path], limit * MIB)
    if outcome.status != 0 or outcome.kept_to != "cgroup":
        raise SystemExit(f"{access}: status {outcome.status}, limit {outcome.kept_to!r}: {outcome.errors}")
    return float(outcome.output.split()[0])


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1946, help="of the table")
    parser.add_argument("--limit", type=int, default=640, help="MiB of memory")
    parser.add_argument("--rows", type=int, default=4096, help="of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None, help="for the pool (default: a temporary one)")
    parser.add_argument("--read", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--pool", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(options.pool, options.read, options.rows)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "table.pool"
        fill(path, options.mib)
        print(f"| access | {options.rows:,} random rows, s | all rows, s |\n| --- | ---: | ---: |")
        times: dict[tuple[str, int], list[float]] = {(way, n): [] for way in WAYS for n in (options.rows, 0)}
        for _ in range(options.rounds):
            for (way, count), found in times.items():
                found.append(measure(path, way, count, options.limit))
        for way in WAYS:
            random, whole = (statistics.median(times[way, count]) for count in (options.rows, 0))
            print(f'| `"{way}"` | {random:.2f} | {whole:.2f} |')


if __name__ == "__main__":
    main()
