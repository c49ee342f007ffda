#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs mixed load on one pool for hours and checks that no resource grows.

    soak.py [--hours H | --seconds N] [--in FOLDER] [--out build/soak] [--scale N] [--threads N] [--readers N]
    soak.py --evaluate FILE.csv

Runs `stress` (tests/README.md). OUT gets soak.csv and, with matplotlib, soak.png. The exit status is 1 if `stress`
reported a finding or a quantity grew.

The first half is warm-up: the page cache and malloc's arenas approach their bound in ever rarer steps; a leak
continues. The pool reuses metadata pages and never returns them, and stopped readers delay reuse, so only space outside
of free pages is judged. The second half is cut into at most 40 pieces of equal length, each represented by its median.
The slope is Theil and Sen's, the median over all pairs. A quantity grows if slope times duration exceeds a share of its
median and an amount (GROWTH below), and Kendall's z is above 3.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import subprocess
import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PIECES = 40
LEAST_PIECES = 8
WARM_UP = 0.5
CHANCE_Z = 3.0


@dataclass
class Limit:
    """Permitted growth: a share of the median, and an amount; both must be exceeded."""

    share: float
    amount: float


MEMORY = Limit(0.05, 2048)
ALLOCATOR = Limit(0.10, 8192)  # moves in steps; allocated bytes are separate
COUNT = Limit(0.05, 2)
SPACE = Limit(0.10, 4096)
TIME = Limit(0.30, 20)
GROWTH = {
    "heap_kib": MEMORY,  # allocated by malloc
    **{f"{who}_anon_kib": ALLOCATOR for who in ("writer", "reader")},
    **{f"{who}_{what}": COUNT for who in ("writer", "reader") for what in ("threads", "fds", "maps")},
    **{f"{what}_less_free_kib": SPACE for what in ("used", "live", "metadata", "file")},
    "snapshots": Limit(0.15, 8),
    "contents": Limit(0.15, 50),
    **{
        f"{span}_{share}_us": TIME
        for span in ("capture", "commit", "find", "view", "read", "restore_new", "restore_aging", "restore_old")
        for share in ("p50", "p90")
    },
}


@dataclass
class Trend:
    """The trend after the warm-up."""

    median: float
    growth: float  # slope times duration
    z: float
    grows: bool


def load(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Read each column's (seconds, value) pairs."""
    series: dict[str, list[tuple[float, float]]] = {}
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            for name, value in row.items():
                if name is not None and value:
                    series.setdefault(name, []).append((float(row["seconds"]), float(value)))
    free = series.get("metadata_free_kib", [])
    for what in ("used", "live", "metadata", "file"):
        samples = series.get(f"{what}_kib", [])
        series[f"{what}_less_free_kib"] = [(t, v - f) for (t, v), (_, f) in zip(samples, free, strict=False)]
    return series


def pieces_of(samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Drop the warm-up and cut the rest into pieces: middle and median of each."""
    end = samples[-1][0]
    begin = samples[0][0] + WARM_UP * (end - samples[0][0])
    kept = [s for s in samples if s[0] >= begin]
    count = min(PIECES, len(kept) // 2)
    result = []
    for i in range(count):
        piece = kept[i * len(kept) // count : (i + 1) * len(kept) // count]
        result.append((statistics.mean(t for t, _ in piece), statistics.median(v for _, v in piece)))
    return result


def kendall_z(values: list[float]) -> float:
    """Return Mann and Kendall's statistic, corrected for equal values."""
    n = len(values)
    s = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    ties = (values.count(v) for v in set(values))
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    return 0.0 if s == 0 or variance <= 0 else (s - math.copysign(1, s)) / math.sqrt(variance)


def trend_of(samples: list[tuple[float, float]], limit: Limit) -> Trend | None:
    """Judge a quantity; None: too few samples."""
    pieces = pieces_of(samples) if len(samples) > 1 else []
    if len(pieces) < LEAST_PIECES:
        return None
    slope = statistics.median((v - u) / (t - s) for (s, u), (t, v) in combinations(pieces, 2))
    values = [v for _, v in pieces]
    median, z = statistics.median(values), kendall_z(values)
    growth = slope * (pieces[-1][0] - pieces[0][0])
    return Trend(median, growth, z, growth > max(limit.share * median, limit.amount) and z > CHANCE_Z)


def evaluate(series: dict[str, list[tuple[float, float]]], growth: dict[str, Limit] = GROWTH) -> int:
    """Print the table; return the number of growing quantities."""
    print(f"{'quantity':24} {'median':>12} {'growth':>12} {'allowed':>10} {'z':>6}")
    growing = 0
    judged = 0
    for name, limit in growth.items():
        trend = trend_of(series.get(name, []), limit)
        if trend is None:
            continue
        judged += 1
        growing += trend.grows
        allowed = max(limit.share * trend.median, limit.amount)
        verdict = "  GROWS" if trend.grows else ""
        print(f"{name:24} {trend.median:12.1f} {trend.growth:+12.1f} {allowed:10.1f} {trend.z:+6.1f}{verdict}")
    if judged == 0:
        print("too short to say whether anything grows")
    else:
        print(f"{judged} quantities after warm-up, {growing} grow")
    return growing


PANELS: list[tuple[str, bool, list[str]]] = [
    ("memory, MiB", False, ["writer_rss_kib", "writer_anon_kib", "reader_rss_kib", "reader_anon_kib", "heap_kib"]),
    ("space, MiB", False, ["used_kib", "live_kib", "metadata_kib", "metadata_free_kib", "file_kib"]),
    (
        "descriptors, mappings, threads",
        True,
        [f"{w}_{q}" for w in ("writer", "reader") for q in ("fds", "maps", "threads")],
    ),
    ("snapshots, contents, backlog", True, ["snapshots", "contents", "backlog"]),
    ("median time, us", True, [f"{s}_p50_us" for s in ("capture", "commit", "find", "view", "read")]),
    (
        "time to restore by age, us: median, 99 %",
        True,
        [f"restore_{a}_{p}_us" for a in ("new", "aging", "old") for p in ("p50", "p99")],
    ),
]


def plot(series: dict[str, list[tuple[float, float]]], path: Path) -> bool:
    """Draw all quantities; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 2, figsize=(15, 14), sharex=True)
    for axis, (title, is_log, names) in zip(axes.flat, PANELS, strict=True):
        for name in names:
            scale = 1 / 1024 if name.endswith("_kib") else 1
            points = series.get(name, [])
            axis.plot([t / 60 for t, _ in points], [v * scale for _, v in points], label=name, linewidth=0.9)
        axis.set_title(title)
        if is_log:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="upper right")
    for axis in axes[-1]:
        axis.set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    return True


def run(arguments: argparse.Namespace, path: Path) -> int:
    """Run the load; return its exit status."""
    seconds = arguments.seconds if arguments.seconds else round(arguments.hours * 3600)
    command = [str(arguments.build / "bin" / "stress"), "--seconds", str(seconds), "--csv", str(path)]
    command += ["--sample-seconds", str(max(1, min(10, seconds // 240))), "--round-ms", str(min(1000, seconds * 20))]
    for option in ("in", "scale", "threads", "readers", "seed"):
        value = getattr(arguments, option)
        if value is not None:
            command += [f"--{option}", str(value)]
    print(" ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Hours of mixed load, and whether anything grows.")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, default=1.0)
    length.add_argument("--seconds", type=int)
    parser.add_argument("--build", type=Path, default=TOP / "build" / "release")
    parser.add_argument("--out", type=Path, default=TOP / "build" / "soak")
    parser.add_argument("--in", metavar="FOLDER", help="where the pool is made (/tmp)")
    parser.add_argument("--scale", type=int, default=2, help="how many quarters of a megabyte a snapshot has")
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--readers", type=int, default=2, help="processes that read")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--evaluate", type=Path, metavar="CSV", help="only judge what another run has written")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.evaluate or arguments.out / "soak.csv"
    status = 0 if arguments.evaluate else run(arguments, path)
    series = load(path)
    growing = evaluate(series)
    picture = path.with_suffix(".png")
    print(f"samples: {path}")
    print(f"plot: {picture}" if plot(series, picture) else "no plot: matplotlib is not installed")
    return 1 if status != 0 or growing > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
