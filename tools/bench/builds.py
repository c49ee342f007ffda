# SPDX-License-Identifier: BSD-3-Clause
"""Measures this build beside that of another checkout, in turn. Run by tools/bench.sh builds CHECKOUT.

The other checkout needs `cmake --preset release && cmake --build --preset release`. For the Python rows it needs
`.venv/bin/python -m pip install --no-deps --target build/package ./python`, by the pip of this checkout's .venv.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tables import processor, progress, table

TOP = Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20
STORE = (  # section, bytes, rounds
    ("capture", 256 * MIB, 3),
    ("commit", 1, 50),
    ("many", 16 << 10, 5_000),
    ("many", 1 << 10, 100_000),
    ("long", 1, 2_000),
    ("view", 1, 500),
    ("fork", 1, 5_000),
    ("diff", 64 * MIB, 1),
    ("decode", 64 * MIB, 5),
    ("live", MIB, 500),
)
PYTHON = """
import json, sys, time, numpy as np, lmcstore
count, size = int(sys.argv[2]), int(sys.argv[3])
state = {f"layer.{i}.weight": np.full(size // 4, i, np.float32) for i in range(count)}
found = {}
with lmcstore.open(sys.argv[1], background=False) as store:
    store["run"].snapshot(state)
    for name, changed in ("none", 0), ("ten", 10), ("all", count):
        times = []
        for _ in range(5):
            for i in range(changed):
                state[f"layer.{i}.weight"] += 1
            begun = time.perf_counter()
            store["run"].snapshot(state)
            times.append(time.perf_counter() - begun)
        found[f"{name}_s"] = sorted(times)[2]
print(json.dumps(found))
"""
SMALL = """
import json, sys, time, numpy as np, lmcstore
state, found = {"w": np.zeros(16384, np.float32), "constant": np.ones(1024, np.float32)}, {}
with lmcstore.open(sys.argv[1], mode="x", background=False) as store:
    for name, wait, burst in ("durable_each", True, 50), ("stream", False, 50), ("burst_of_8_blocked", False, 8):
        times = []
        for _ in range(20):
            store["run"].snapshot(state)
            begun, pending = time.perf_counter(), []
            for _ in range(burst):
                state["w"] += 1
                pending.append(store["run"].snapshot(state, wait=wait))
            blocked = time.perf_counter() - begun
            for snapshot in pending:
                snapshot.wait()
            times.append((blocked if burst == 8 else time.perf_counter() - begun) / burst)
        found[f"{name}_s"] = min(times)
print(json.dumps(found))
"""


def seconds_in(result: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """List the durations of a JSON result by path."""
    for key, value in result.items() if isinstance(result, dict) else enumerate(result):
        if isinstance(value, dict | list):
            yield from seconds_in(value, f"{path}{key}.")
        elif isinstance(value, float) and str(key).endswith("_s"):
            yield f"{path}{str(key).removesuffix('_s')}", value


def run(words: list[str], **environment: str) -> dict[str, float]:
    """Run a program that prints JSON."""
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, env={**os.environ, **environment})
    return dict(seconds_in(json.loads(done.stdout)))


def store_row(checkout: Path, folder: str, section: str, size: int, rounds: int) -> dict[str, float]:
    """Run a section of bench_store, with memory as persistent memory."""
    words = [
        str(checkout / "build/release/bin/bench_store"),
        section,
        folder,
        str(size),
        str(rounds),
        "2",
    ]
    return run(words, PMEM_IS_PMEM_FORCE="1")


def python_row(checkout: Path, folder: str, count: int, size: int) -> dict[str, float]:
    """Take snapshots of a dict of arrays."""
    package = checkout / "build/package"
    path = {"PYTHONPATH": str(package)} if checkout != TOP else {}
    pool = Path(folder) / "python.pool"
    pool.unlink(missing_ok=True)
    return run(
        [sys.executable, "-c", PYTHON, str(pool), str(count), str(size)],
        PMEM_IS_PMEM_FORCE="1",
        **path,
    )


def small_row(checkout: Path, folder: str, forced: bool) -> dict[str, float]:
    """Take snapshots of 64 KiB, waiting or not: time of each until durable or returned, best of 20 runs."""
    pool = Path(folder) / "small.pool"
    pool.unlink(missing_ok=True)
    path = {"PYTHONPATH": str(checkout / "build/package")} if (checkout / "build/package").exists() else {}
    return run([sys.executable, "-c", SMALL, str(pool)], PMEM_IS_PMEM_FORCE="1" if forced else "0", **path)


def in_turn(
    case: tuple[str, Any, tuple[Any, ...]], sides: tuple[Path, Path], folder: str, rounds: int
) -> list[list[str]]:
    """Run a case on both sides, in alternating order; return a row for each figure."""
    name, measure, arguments = case
    found: dict[str, tuple[list[float], list[float]]] = {}
    for turn in range(rounds):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            for key, seconds in measure(sides[side], folder, *arguments).items():
                found.setdefault(key, ([], []))[side].append(seconds)
    rows = []
    for key, (before, after) in found.items():
        old, new = statistics.median(before), statistics.median(after)
        each = [b / a for a, b in zip(before, after, strict=True) if a > 0]
        spread = f"{min(each):.2f} to {max(each):.2f}" if each else "-"
        ratio = f"{new / old:.2f}" if old > 0 else "-"
        rows.append([f"{name}: {key.replace('_', ' ')}", f"{old * 1e3:.4g}", f"{new * 1e3:.4g}", ratio, spread])
    return rows


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(prog="tools/bench.sh builds", description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path, help="the other checkout, built")
    parser.add_argument("--smoke", action="store_true", help="only see that it runs")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each build (7)")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where the pools are made")
    parser.add_argument(
        "--small", action="store_true", help="only snapshots of 64 KiB, with the system's syncs if DIR is not /dev/shm"
    )
    options = parser.parse_args()
    other = (Path(os.environ.get("BENCH_FROM", ".")) / options.checkout).resolve()
    if not (other / "build/release/bin/bench_store").exists():
        parser.error(f"{other} has no build/release/bin/bench_store: build it with the preset release")
    if options.small and not (other / "build/package").exists():
        parser.error(f"{other} has no build/package: see the docstring of builds.py")
    forced = options.dir.is_relative_to("/dev/shm")
    cases: list[tuple[str, Any, tuple[Any, ...]]] = [(f"{s[0]}, {s[1]:,} bytes", store_row, s) for s in STORE]
    if options.smoke:
        cases, options.rounds = [case for case in cases if case[0].startswith("commit")], 1
    elif (other / "build/package").exists():
        sizes = ((5_000, 16384), (100_000, 1024))
        cases += [(f"python, {n:,} of {size:,} bytes", python_row, (n, size)) for n, size in sizes]
        small = [("python, snapshots of 64 KiB", small_row, (forced,))]
        cases = small if options.small else cases + small
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="lmcs-bench-", dir=options.dir) as folder:
        for case in cases:
            progress(case[0])
            rows += in_turn(case, (other, TOP), folder, options.rounds)
    how = "msync" if options.small and not forced else "memory as persistent memory"
    print(f"{processor()}; {options.dir}, {how}; medians of {options.rounds} runs in turn\n")
    print(table(["", f"{other.name}, ms", "this build, ms", "ratio", "ratios of pairs"], rows))


if __name__ == "__main__":
    main()
