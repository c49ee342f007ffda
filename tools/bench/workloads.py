# SPDX-License-Identifier: BSD-3-Clause
"""Runs the examples whose data may be larger than memory. Run by tools/bench.sh workloads."""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limits import Outcome, run_limited
from tables import Section, processor, progress, run_sections

TOP = Path(__file__).resolve().parent.parent.parent
EXAMPLES = TOP / "python/examples"
MIB = 1 << 20


@dataclass
class Setting:
    """Where to measure, and how much: `full`, `quick`, or `smoke` (does it run at all)."""

    folder: Path
    size: str

    def of(self, full: int, quick: int, smoke: int) -> int:
        """Choose a number by the size of the run."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]


def run_example(
    setting: Setting, name: str, words: list[object], shelf: bool, limit_bytes: int | None
) -> tuple[Outcome, dict[str, Any]]:
    """Run an example on one thread; a report that it did not come to is empty."""
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        place = ["--shelf", folder] if shelf else []
        outcome = run_limited([sys.executable, EXAMPLES / f"{name}.py", "--json", *words, *place], limit_bytes)
    if outcome.status != 0 and not outcome.out_of_memory:
        raise RuntimeError(f"{name} ended with {outcome.status}: {outcome.errors.strip()[-500:]}")
    return outcome, json.loads(outcome.output) if outcome.status == 0 else {}


def compare(setting: Setting, section: Section, name: str, words: list[object], limit_bytes: int, rounds: int) -> None:
    """Fill a table: in memory and on a shelf, in turn, then both with too little memory for the data."""
    seconds: dict[str, list[float]] = {"memory": [], "shelf": []}
    peaks: dict[str, int] = {}
    results = []
    for _ in range(rounds):
        for place in seconds:
            outcome, report = run_example(setting, name, words, place == "shelf", None)
            seconds[place].append(sum(report["seconds"].values()))
            peaks[place] = outcome.peak_bytes
            results.append(report)
    for place, taken in seconds.items():
        section.rows.append(
            [place, "", f"{statistics.median(taken):.1f} s", f"{peaks[place] / MIB:.0f} MiB", "the same"]
        )
    small = []
    for place in seconds:
        outcome, report = run_example(setting, name, words, place == "shelf", limit_bytes)
        took = f"{sum(report['seconds'].values()):.1f} s" if report else "out of memory"
        end = "the same" if report else ""
        peak = f"{outcome.peak_bytes / MIB:.0f} MiB" if outcome.kept_to == "cgroup" or report else ""
        section.rows.append([place, f"{limit_bytes / MIB:.0f} MiB ({outcome.kept_to})", took, peak, end])
        results += [report] if report else []
        small.append(bool(report))
    if any(report["result"] != results[0]["result"] for report in results):
        raise RuntimeError(f"{name}: the results differ: {[report['result'] for report in results]}")
    ratio = statistics.median(shelf / memory for memory, shelf in zip(*seconds.values(), strict=True))
    section.numbers = {"seconds": seconds, "ratio": ratio, "finished": dict(zip(seconds, small, strict=True))}
    section.goal(f"{name} on a shelf, in times of in memory", ratio, "<=", 1.1)
    section.goal(f"{name} finishes on a shelf with too little memory (1: yes)", float(small[1]), ">=", 1)
    section.numbers["report"] = results[0]


HEAD = ["where the data are", "memory limit", "time", "peak memory", "result"]
PAGES = (
    "Peaks of the shelf count pages of the pool that the kernel keeps while it has room; it gives them up for others."
)


def gmra(setting: Setting) -> Section:
    """Measure the geometric multi-resolution analysis."""
    mib = setting.of(128, 96, 8)
    section = Section(f"GMRA of {mib} MiB of points", head=HEAD)
    compare(setting, section, "gmra", ["--mib", mib], setting.of(176, 160, 96) * MIB, setting.of(3, 1, 1))
    report = section.numbers["report"]
    levels = report["levels"]
    section.notes += [
        f"{report['points']:,} points of {report['dimension']} numbers in {levels[-1]['cells']:,} cells on"
        f" {len(levels)} levels; planes, wavelets and coefficients take {report['coded_bytes'] / MIB:.0f} MiB. Distance"
        f" of the points from the planes (root mean square), level by level: "
        + ", ".join(f"{level['error']:.1e}" for level in levels)
        + ".",
        PAGES,
    ]
    return section


def bayes(setting: Setting) -> Section:
    """Measure the posterior of stored samples."""
    count, width = setting.of(2000, 400, 10), setting.of(128, 128, 32)
    section = Section(f"A posterior of {count:,} stored samples", head=HEAD)
    limit = setting.of(192, 112, 104) * MIB
    compare(setting, section, "bayes", ["--samples", count, "--width", width], limit, setting.of(3, 1, 1))
    report = section.numbers["report"]
    names = ("accuracy", "nll", "ece", "brier")
    section.notes += [
        f"{report['weights']:,} weights a sample, {report['samples_bytes'] / MIB:.0f} MiB in all.",
        "| noisy digits that were not learned from | "
        + " | ".join(names)
        + " |\n| --- |"
        + " ---: |" * len(names)
        + "".join(
            f"\n| {what} | " + " | ".join(f"{report[key][name]:.4f}" for name in names) + " |"
            for what, key in (("one network", "single"), ("average over the posterior", "posterior"))
        ),
        PAGES,
    ]
    return section


SECTIONS = (gmra, bayes)


def main() -> None:
    """Measure what was asked for; exit 1 when a section could not run."""
    parser = argparse.ArgumentParser(prog="tools/bench.sh workloads", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer")
    parser.add_argument("--smoke", action="store_true", help="only see that it runs; the numbers mean nothing")
    parser.add_argument("--dir", type=Path, default=TOP / "build/bench", help="a folder on the file system to measure")
    parser.add_argument("--only", action="append", choices=[section.__name__ for section in SECTIONS], help="this one")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    size = "smoke" if options.smoke else "quick" if options.quick else "full"
    report: dict[str, Any] = {"machine": f"{processor()}; {size} run"}
    if not options.json:
        print(f"{report['machine']}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="lmcs-bench-", dir=options.dir) as folder:
        failures = run_sections(SECTIONS, Setting(Path(folder).resolve(), size), options.only, report, options.json)
    if options.json:
        print(json.dumps(report, indent=2))
    if failures:
        progress(f"could not be measured: {', '.join(failures)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
