# SPDX-License-Identifier: BSD-3-Clause
"""Measures the Python packages: captures and views of a state_dict, and variables that live in the pool.

Run by tools/bench.sh python. Everything is in one process, in memory, as on persistent memory (PMEM_IS_PMEM_FORCE=1).
"""

import argparse
import gc
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["PMEM_IS_PMEM_FORCE"] = "1"  # read when the C library is loaded

import lmcstore
import numpy as np
import pymm
import torch
from tables import Section, gbs, processor, progress, run_sections

MIB, GIB = 1 << 20, 1 << 30
THREADS = min(8, len(os.sched_getaffinity(0)))


@dataclass
class Setting:
    """Where to measure, and how much: `full`, `quick`, or `smoke` (does it run at all)."""

    folder: Path
    size: str

    def of(self, full: int, quick: int, smoke: int) -> int:
        """Choose a number by the size of the run."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]


def seconds(work: Callable[[], object]) -> float:
    """Do something once."""
    gc.collect()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


# ---- Snapshots ------------------------------------------------------------------------------------------------------


def copy_all(pairs: list[tuple[Any, Any]], threads: int) -> None:
    """Copy arrays by some threads, which NumPy lets run at the same time."""
    if threads == 1:
        for target, source in pairs:
            np.copyto(target, source)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda pair: np.copyto(*pair), pairs))


def capture(setting: Setting) -> Section:
    """Measure the capture of a state_dict, all changed, beside memcpy of the same bytes, in turn."""
    section = Section("Capture of a state_dict from Python, beside memcpy", ["", "GB/s", "of memcpy"])
    size, rounds = setting.of(GIB, 256 * MIB, 16 * MIB), setting.of(9, 5, 3)
    count = 256
    state = {f"layer.{i}.weight": torch.randn(size // count // 4) for i in range(count)}
    pairs = [(np.empty(value.numel(), np.float32), value.numpy()) for value in state.values()]
    found: dict[str, list[float]] = {"memcpy, 1 thread": [], f"memcpy, {THREADS} threads": [], "capture": []}
    with lmcstore.open(setting.folder / "capture.pool", background=False) as store:
        shelf = store["run"]
        for step in range(rounds + 2):
            for value in state.values():
                value[::512] += 1  # each tensor, each page
            times = {
                "memcpy, 1 thread": seconds(lambda: copy_all(pairs, 1)),
                f"memcpy, {THREADS} threads": seconds(lambda: copy_all(pairs, THREADS)),
                "capture": seconds(lambda: shelf.snapshot(state)),
            }
            if step > 1:
                shelf.remove(shelf.latest.number - 2)
            if step >= 2:  # by then there is space that is used again
                for name, value in times.items():
                    found[name].append(value)
    (setting.folder / "capture.pool").unlink()
    medians = {name: statistics.median(values) for name, values in found.items()}
    memcpy = min(value for name, value in medians.items() if name != "capture")
    for name, value in medians.items():
        section.rows.append([name, gbs(size, value), f"{memcpy / value:.2f}"])
    section.numbers = medians
    section.goal("speed of a capture over memcpy", memcpy / medians["capture"], ">=", 0.75)
    section.notes.append(f"{size >> 20} MiB in {count} tensors, median of {rounds}; the better memcpy counts.")
    return section


def many(setting: Setting) -> Section:
    """Measure what a tensor costs: small ones, of which each changed, and views of all."""
    section = Section("A state_dict of many small tensors", ["", "microseconds a tensor"])
    count, rounds = setting.of(10_000, 10_000, 500), setting.of(15, 7, 3)
    state = {f"layer.{i // 4}.part.{i % 4}": torch.randn(64) for i in range(count)}
    captures, views = [], []
    with lmcstore.open(setting.folder / "many.pool", background=False) as store:
        shelf = store["run"]
        for _ in range(rounds):
            for value in state.values():
                value += 1
            captures.append(seconds(lambda: shelf.snapshot(state)) / count)
            views.append(seconds(lambda: shelf.latest.state_dict()) / count)
    (setting.folder / "many.pool").unlink()
    for what, values, bound in (("capture, all changed", captures, 5), ("latest.state_dict()", views, 3)):
        us = statistics.median(values) * 1e6
        section.numbers[what] = us
        section.rows.append([what, f"{us:.2f}"])
        section.goal(f"microseconds a tensor, {what}", us, "<=", bound)
    section.notes.append(f"{count:,} tensors of 256 bytes, median of {rounds}.")
    return section


# ---- Live variables -------------------------------------------------------------------------------------------------


def each(work: Callable[[int], None], count: int, rounds: int) -> float:
    """Give the median of the microseconds of one of `count` operations."""
    return statistics.median(seconds(lambda: work(count)) / count * 1e6 for _ in range(rounds))


def live(setting: Setting) -> Section:
    """Measure small updates of variables that live in the pool."""
    section = Section("Variables in the pool", ["operation", "microseconds"])
    items = setting.of(GIB, GIB, 16 * MIB) // 8
    shelf = pymm.shelf("bench", size_mb=64, pmem_path=str(setting.folder))
    shelf.x = pymm.ndarray((items,))
    shelf.x.fill(1)  # so that its pages are there
    shelf.i, shelf.f, shelf.q = 0, 0.5, "text"
    store = lmcstore.open(setting.folder / "bench.pool")
    tensor, counter = store["bench"].live.tensor("x"), store["bench"].live.value("counter")
    array = tensor.array
    count, rounds = setting.of(2000, 2000, 200), setting.of(101, 31, 3)
    chooser = random.Random(1)
    places = [chooser.randrange(items) for _ in range(count)]

    def by_shelf(_: int) -> None:
        for place in places:
            shelf.x[place] = 2.5
            shelf.x.persist_offset(place, 1)

    def by_array(_: int) -> None:
        x = shelf.x
        for place in places:
            x[place] = 2.5
            x.persist_offset(place, 1)

    def by_lmcstore(_: int) -> None:
        for place in places:
            array[place] = 2.5
            tensor.persist(place, place + 1)

    def only_store(_: int) -> None:
        for place in places:
            array[place] = 2.5

    def count_up(number: int) -> None:
        for _ in range(number):
            shelf.i += 1

    def count_down(number: int) -> None:
        for _ in range(number):
            shelf.f -= 1.0

    def assign(number: int) -> None:
        for one in range(number):
            shelf.i = one

    def add(number: int) -> None:
        for _ in range(number):
            counter.add(1)

    def transaction(number: int) -> None:
        for place in places[: number // 20]:
            with store["bench"].transaction([tensor]):
                array[place] = 2.5

    operations: list[tuple[str, Callable[[int], None], float | None]] = [
        (f"`array[i] = v` in {items * 8 >> 20} MiB, not durable", only_store, None),
        ("`x[i] = v; x.persist_offset(i, 1)` (pymm)", by_array, 2.0),
        ("`s.x[i] = v; s.x.persist_offset(i, 1)` (pymm)", by_shelf, 2.0),
        ("`array[i] = v; tensor.persist(i, i + 1)` (lmcstore)", by_lmcstore, None),
        ("`s.i += 1` (pymm)", count_up, 5.0),
        ("`s.f -= 1.0` (pymm)", count_down, 5.0),
        ("`s.i = n` (pymm)", assign, None),
        ("`counter.add(1)` (lmcstore)", add, None),
    ]
    for what, work, bound in operations:
        us = each(work, count, rounds)
        section.numbers[what] = us
        section.rows.append([what, f"{us:.2f}"])
        if bound is not None:
            section.goal(f"microseconds, {what}", us, "<=", bound)
    us = each(transaction, count, max(rounds // 20, 3)) * 20
    section.numbers["transaction"] = us
    section.rows.append(["a transaction with one such store (lmcstore)", f"{us:.1f}"])
    section.notes.append(f"At random places; medians of {rounds} runs of {count:,} operations.")
    store.close()
    return section


def start(setting: Setting) -> Section:
    """Measure the imports, each in a process of its own."""
    import subprocess
    import sys

    section = Section("Imports", ["", "ms"])
    code = "import time; b = time.perf_counter(); import {}; print(time.perf_counter() - b)"
    for package in ("lmcstore", "numpy", "pymm"):
        times = [
            float(subprocess.run([sys.executable, "-c", code.format(package)], capture_output=True, check=True).stdout)
            for _ in range(setting.of(11, 7, 3))
        ]
        ms = statistics.median(times) * 1e3
        section.numbers[package] = ms
        section.rows.append([f"import {package}", f"{ms:.0f}"])
        if package == "lmcstore":
            section.goal("ms to import lmcstore", ms, "<=", 100)
    return section


SECTIONS = (capture, many, live, start)


def main() -> None:
    """Measure what was asked for; exit 1 when a section could not run."""
    parser = argparse.ArgumentParser(prog="tools/bench.sh python", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer")
    parser.add_argument("--smoke", action="store_true", help="only see that it runs; the numbers mean nothing")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="a folder in memory, or on fsdax")
    parser.add_argument("--only", action="append", choices=[section.__name__ for section in SECTIONS], help="this one")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    size = "smoke" if options.smoke else "quick" if options.quick else "full"
    report: dict[str, Any] = {"machine": f"{processor()}; {options.dir}, forced; {size} run"}
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
