# SPDX-License-Identifier: BSD-3-Clause
"""Runs the examples whose data may be larger than memory. Run by tools/bench.sh workloads."""

import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limits import Outcome, run_limited
from tables import Run, Section, run_suite

TOP = Path(__file__).resolve().parent.parent.parent
EXAMPLES = TOP / "python/examples"
MIB = 1 << 20


@dataclass
class Setting:
    """Where and how much to measure."""

    folder: Path
    size: str

    def of(self, full: int, quick: int, smoke: int) -> int:
        """Choose by size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]


@dataclass
class Ran:
    """An example's run; the report may be empty."""

    outcome: Outcome
    report: dict[str, Any]

    @property
    def seconds(self) -> float:
        """Seconds without the start."""
        return float(sum(self.report["seconds"].values()))


def run_example(name: str, words: list[object], where: Path | None, limit_bytes: int | None) -> Ran:
    """Run an example on one thread, in memory or in a pool below a folder."""
    with tempfile.TemporaryDirectory(dir=where) as folder:
        place = [] if where is None else ["--shelf", folder]
        outcome = run_limited([sys.executable, EXAMPLES / f"{name}.py", "--json", *words, *place], limit_bytes)
    if outcome.status != 0 and not outcome.out_of_memory:
        raise RuntimeError(f"{name} ended with {outcome.status}: {outcome.errors.strip()[-500:]}")
    return Ran(outcome, json.loads(outcome.output) if outcome.status == 0 else {})


def measures(seconds: float, cpu_seconds: float, peak_bytes: int) -> list[str]:
    """Return the last columns."""
    return [f"{seconds:.1f} s", f"{cpu_seconds:.1f} s", f"{peak_bytes / MIB:.0f} MiB", "the same"]


def median_row(place: str, runs: list[Ran]) -> list[str]:
    """Return a row with enough memory."""
    seconds = statistics.median(ran.seconds for ran in runs)
    cpu_seconds = statistics.median(ran.outcome.cpu_seconds for ran in runs)
    return [place, "", *measures(seconds, cpu_seconds, runs[-1].outcome.peak_bytes)]


def limited_row(place: str, ran: Ran, limit_bytes: int) -> list[str]:
    """Return a row with too little memory."""
    outcome, limit = ran.outcome, f"{limit_bytes / MIB:.0f} MiB ({ran.outcome.kept_to})"
    if ran.report:
        return [place, limit, *measures(ran.seconds, outcome.cpu_seconds, outcome.peak_bytes)]
    peak = f"{outcome.peak_bytes / MIB:.0f} MiB" if outcome.kept_to == "cgroup" else ""
    return [place, limit, "out of memory", "", peak, ""]


def compare(setting: Setting, section: Section, name: str, words: list[object], limit_bytes: int, rounds: int) -> None:
    """Fill a table: in memory and on shelves, then with too little memory.

    No limit applies to a shelf in /dev/shm, whose pages are the data.
    """
    places = {"memory": None, "shelf": setting.folder}
    if os.access("/dev/shm", os.W_OK):
        places["shelf in /dev/shm"] = Path("/dev/shm")
    runs: dict[str, list[Ran]] = {place: [] for place in places}
    for _ in range(rounds):
        for place, where in places.items():
            runs[place].append(run_example(name, words, where, None))
    section.rows += [median_row(place, found) for place, found in runs.items()]
    limited = {place: run_example(name, words, places[place], limit_bytes) for place in ("memory", "shelf")}
    section.rows += [limited_row(place, ran, limit_bytes) for place, ran in limited.items()]
    everything = [ran for found in (*runs.values(), limited.values()) for ran in found]
    results = [ran.report["result"] for ran in everything if ran.report]
    if any(result != results[0] for result in results):
        raise RuntimeError(f"{name}: the results differ: {results}")
    section.numbers = {"seconds": {place: [ran.seconds for ran in found] for place, found in runs.items()}}
    for place in list(places)[1:]:
        pairs = list(zip(runs["memory"], runs[place], strict=True))
        clock = statistics.median(there.seconds / here.seconds for here, there in pairs)
        cpu = statistics.median(there.outcome.cpu_seconds / here.outcome.cpu_seconds for here, there in pairs)
        section.numbers[f"{place}, times of memory"] = {"clock": clock, "processor": cpu}
        section.goal(f"{name}, {place}: time, in times of in memory", clock, "<=", 1.1)
        section.goal(f"{name}, {place}: processor time, in times of in memory", cpu, "<=", 1.1)
    finished = float(bool(limited["shelf"].report))
    section.goal(f"{name} finishes on a shelf with too little memory (1: yes)", finished, ">=", 1)
    section.numbers["report"] = runs["memory"][0].report


HEAD = ["where the data are", "memory limit", "time", "processor time", "peak memory", "result"]
PAGES = (
    "Peaks of the shelf count pages of the pool that the kernel keeps while it has room; it gives them up for others."
)


def gmra(setting: Setting) -> Section:
    """Measure the multi-resolution analysis."""
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
    """Measure the posterior."""
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


def setting_of(run: Run) -> Setting:
    """Make a folder."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    return Setting(run.scratch(run.options.dir), run.size)


if __name__ == "__main__":
    run_suite("workloads", __doc__, SECTIONS, setting_of)
