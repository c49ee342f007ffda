# SPDX-License-Identifier: BSD-3-Clause
"""Measures the Python packages: captures and views of a state_dict, and variables that live in the pool.

Run by tools/bench.sh python. Everything is in one process, in memory, as on persistent memory (PMEM_IS_PMEM_FORCE=1).
"""

import gc
import os
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ["PMEM_IS_PMEM_FORCE"] = "1"  # read when the C library is loaded

import lmcstore
import numpy as np
import pymm
import torch
from lmcstore._state.check import structure_of
from lmcstore._state.encode import Encoded
from tables import Run, Section, gbs, processor, run_suite

MIB, GIB = 1 << 20, 1 << 30
THREADS = min(8, len(os.sched_getaffinity(0)))


@dataclass
class Setting:
    """Where and how much to measure."""

    folder: Path
    size: str

    def of(self, full: int, quick: int, smoke: int) -> int:
        """Choose by size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]


def both_times(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of one call by the clock, and the processor time of all threads."""
    gc.collect()
    begin, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin, time.process_time() - cpu


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    return both_times(work)[0]


# ---- Snapshots ------------------------------------------------------------------------------------------------------


CAPTURE_WARM = 6
"""Captures after which there is space that is used again."""


def copy_all(pairs: list[tuple[Any, Any]], threads: int) -> None:
    """Copy by threads."""
    if threads == 1:
        for target, source in pairs:
            np.copyto(target, source)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda pair: np.copyto(*pair), pairs))


def capture(setting: Setting) -> Section:
    """Measure a capture of a changed state_dict, alternating with memcpy.

    Both write to used memory: captures count from the first into reused space, as new pages are faults.
    """
    section = Section("Capture of a state_dict from Python, beside memcpy", ["", "GB/s", "of memcpy"])
    size, rounds = setting.of(GIB, 256 * MIB, 16 * MIB), setting.of(9, 5, 3)
    count = 256
    state = {f"layer.{i}.weight": torch.randn(size // count // 4) for i in range(count)}
    pairs = [(np.empty(value.numel(), np.float32), value.numpy()) for value in state.values()]
    found: dict[str, list[float]] = {"memcpy, 1 thread": [], f"memcpy, {THREADS} threads": [], "capture": []}
    first: list[float] = []
    with lmcstore.open(setting.folder / "capture.pool", background=False) as store:
        shelf = store["run"]
        for step in range(rounds + CAPTURE_WARM):
            for value in state.values():
                value[::512] += 1  # each tensor, each page
            times = {
                "memcpy, 1 thread": seconds(lambda: copy_all(pairs, 1)),
                f"memcpy, {THREADS} threads": seconds(lambda: copy_all(pairs, THREADS)),
                "capture": seconds(lambda: shelf.snapshot(state)),
            }
            if step > 1:
                shelf.remove(shelf.latest.number - 2)
            if step < 2:
                first.append(times["capture"])
            elif step >= CAPTURE_WARM:
                for name, value in times.items():
                    found[name].append(value)
    (setting.folder / "capture.pool").unlink()
    medians = {name: statistics.median(values) for name, values in found.items()}
    memcpy = min(value for name, value in medians.items() if name != "capture")
    for name, value in medians.items():
        section.rows.append([name, gbs(size, value), f"{memcpy / value:.2f}"])
    section.numbers = medians
    section.goal("speed of a capture over memcpy", memcpy / medians["capture"], ">=", 0.75)
    section.rows.append(["the first two captures, into new memory", gbs(size, statistics.mean(first)), ""])
    section.notes.append(
        f"{size >> 20} MiB in {count} tensors, median of {rounds} after {CAPTURE_WARM} to warm up; the better memcpy "
        f"counts. Captures have {THREADS} threads."
    )
    return section


def many(setting: Setting) -> Section:
    """Measure the cost of small tensors."""
    section = Section("A state_dict of many small tensors", ["", "microseconds a tensor", "of processor time"])
    count, rounds = setting.of(10_000, 10_000, 500), setting.of(15, 7, 3)
    state = {f"layer.{i // 4}.part.{i % 4}": torch.randn(64) for i in range(count)}
    captures, views = [], []  # clock, processor time
    with lmcstore.open(setting.folder / "many.pool", background=False) as store:
        shelf = store["run"]
        for _ in range(rounds):
            for value in state.values():
                value += 1
            captures.append(both_times(lambda: shelf.snapshot(state)))
            views.append(both_times(lambda: shelf.latest.state_dict()))
    (setting.folder / "many.pool").unlink()
    for what, values, bound in (("capture, all changed", captures, 5), ("latest.state_dict()", views, 3)):
        us, cpu = (statistics.median(times) / count * 1e6 for times in zip(*values, strict=True))
        section.numbers[what] = {"wall_us": us, "cpu_us": cpu}
        section.rows.append([what, f"{us:.2f}", f"{cpu:.2f}"])
        section.goal(f"microseconds a tensor, {what}", us, "<=", bound)
    section.notes.append(f"{count:,} tensors of 256 bytes, median of {rounds}.")
    return section


def copied(state: dict[str, Any]) -> float:
    """Return the seconds to copy every byte of a state."""
    targets = [np.empty(value.numel(), np.float32) for value in state.values()]
    for target in targets:
        target.fill(0)  # makes its pages present
    return seconds(lambda: copy_all([(t, value.numpy()) for t, value in zip(targets, state.values(), strict=True)], 1))


def reads(setting: Setting) -> Section:
    """Measure state_dict() with and without the comparison of raw payloads with their checksums, in turn."""
    head = ["state", "read", "verified, ms", "verify=False, ms", "ratio", "ratio with a copy of every byte"]
    section = Section("state_dict() of a raw snapshot, verified and not", head)
    size, rounds = setting.of(GIB, 256 * MIB, 16 * MIB), setting.of(15, 9, 3)
    small = setting.of(10_000, 10_000, 500)
    for what, count, numel in (
        (f"{size >> 20} MiB in 256 tensors", 256, size // 1024),
        (f"{small:,} of 256 B", small, 64),
    ):
        path = setting.folder / "reads.pool"
        with lmcstore.open(path, background=False) as store:
            store["run"].snapshot({f"layer.{i // 4}.part.{i % 4}": torch.randn(numel) for i in range(count)})
        times: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        for verify in (True, False) * rounds:
            with lmcstore.open(path, "r", verify=verify) as store:
                for read in ("first", "second"):
                    snapshot = store["run"].latest
                    begin = time.perf_counter()
                    state = snapshot.state_dict()
                    spent = time.perf_counter() - begin
                    times.setdefault((read, verify), []).append((spent, spent + copied(state)))
                    del state
        path.unlink()
        for read in ("first", "second"):
            pairs = list(zip(times[read, True], times[read, False], strict=True))
            ratios = [statistics.median(one[i] / other[i] for one, other in pairs) for i in (0, 1)]
            ms = [statistics.median(one[0] for one in times[read, verify]) * 1e3 for verify in (True, False)]
            section.numbers[f"{what}, {read}"] = {"ms": ms, "ratios": ratios}
            section.rows.append([what, read, *(f"{value:.2f}" for value in (*ms, *ratios))])
    section.notes.append(f"Medians of {rounds} pairs, each with a newly opened store.")
    return section


def checks(setting: Setting) -> Section:
    """Measure the check that every snapshot can be read: its encoding is decoded and compared before the commit."""
    section = Section(
        "Decoding and comparing the encoding of a state", ["", "microseconds a tensor", "of all encoding"]
    )
    count, rounds = setting.of(10_000, 10_000, 500), setting.of(25, 15, 3)
    flat = {f"layer.{i // 4}.part.{i % 4}": torch.randn(64) for i in range(count)}
    for what, state in (("a flat state_dict", flat), ("a model and its AdamW", by_adam(count, 256))):
        for is_new in (False, True):
            spent, whole = [], []
            for _ in range(rounds):
                gc.collect()
                begin = time.process_time()
                encoded = Encoded(state, check=False)
                between = time.process_time()
                if is_new:
                    structure_of.cache_clear()
                encoded.check()
                end = time.process_time()
                spent.append(end - between)
                whole.append(end - begin)
            us, share = min(spent) / count * 1e6, min(spent) / min(whole)
            name = f"{what}, {'a new structure' if is_new else 'the structure of the step before'}"
            section.numbers[name] = {"us": us, "share": share}
            section.rows.append([name, f"{us:.2f}", f"{100 * share:.0f} %"])
    section.notes.append(f"{count:,} tensors of 256 bytes, the least processor time of {rounds}.")
    return section


def by_adam(count: int, size_bytes: int) -> dict[str, Any]:
    """Make `count` parameters with AdamW's moments."""
    named = [(f"layer.{i // 4}.part.{i % 4}", torch.randn(size_bytes // 4)) for i in range(count // 3)]
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, "maximize": False}
    moments = {
        i: {"step": 1.0, "exp_avg": torch.randn(size_bytes // 4), "exp_avg_sq": torch.rand(size_bytes // 4)}
        for i in range(len(named))
    }
    return {
        "model": dict(named),
        "optimizer": {"state": moments, "param_groups": [{**group, "params": list(range(len(named)))}]},
    }


def trainer(setting: Setting) -> Section:
    """Measure snapshots of model and optimizer, with unknown and known relations."""
    section = Section("Snapshots of a model and its AdamW", ["", "first, ms", "all changed, ms", "nothing changed, ms"])
    rounds = setting.of(9, 5, 3)
    for count, size_bytes in ((5_000, 16 << 10), (100_000, 1 << 10)):
        count = setting.of(count, count, count // 50)
        state = by_adam(count, size_bytes)
        tensors = [
            *state["model"].values(),
            *(t for m in state["optimizer"]["state"].values() for t in (*m.values(),)[1:]),
        ]
        times: dict[str, list[float]] = {"first": [], "changed": [], "same": []}
        with lmcstore.open(setting.folder / "trainer.pool", background=False) as store:
            for number in range(rounds):
                shelf = store[f"run{number}"]
                times["first"].append(seconds(partial(shelf.snapshot, state)))
                for value in tensors:
                    value += 1
                times["changed"].append(seconds(partial(shelf.snapshot, state)))
                times["same"].append(seconds(partial(shelf.snapshot, state)))
                shelf.drop()
        (setting.folder / "trainer.pool").unlink()
        ms = {what: statistics.median(values) * 1e3 for what, values in times.items()}
        what = f"{count:,} tensors of {size_bytes >> 10} KiB"
        section.numbers[what] = ms
        section.rows.append([what, *(f"{value:.0f}" for value in ms.values())])
    section.notes.append(f"Medians of {rounds}, each on a shelf of its own.")
    return section


# ---- Live variables -------------------------------------------------------------------------------------------------


def each(work: Callable[[int], None], count: int, rounds: int) -> float:
    """Return the median microseconds of `count` operations."""
    return statistics.median(seconds(lambda: work(count)) / count * 1e6 for _ in range(rounds))


def live_operations(
    shelf: Any, store: Any, places: list[int], size: str
) -> tuple[list[tuple[str, Callable[[int], None], float | None]], Callable[[int], None]]:
    """Return operations with bounds in microseconds, and a transaction."""
    tensor, counter = store["bench"].live.tensor("x"), store["bench"].live.value("counter")
    array = tensor.array

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
        (f"`array[i] = v` in {size}, not durable", only_store, None),
        ("`x[i] = v; x.persist_offset(i, 1)` (pymm)", by_array, 2.0),
        ("`s.x[i] = v; s.x.persist_offset(i, 1)` (pymm)", by_shelf, 2.0),
        ("`array[i] = v; tensor.persist(i, i + 1)` (lmcstore)", by_lmcstore, None),
        ("`s.i += 1` (pymm)", count_up, 5.0),
        ("`s.f -= 1.0` (pymm)", count_down, 5.0),
        ("`s.i = n` (pymm)", assign, None),
        ("`counter.add(1)` (lmcstore)", add, None),
    ]
    return operations, transaction


def live(setting: Setting) -> Section:
    """Measure small updates."""
    section = Section("Variables in the pool", ["operation", "microseconds"])
    items = setting.of(GIB, GIB, 16 * MIB) // 8
    shelf = pymm.shelf("bench", size_mb=64, pmem_path=str(setting.folder))
    shelf.x = pymm.ndarray((items,))
    shelf.x.fill(1)  # makes its pages present
    shelf.i, shelf.f, shelf.q = 0, 0.5, "text"
    store = lmcstore.open(setting.folder / "bench.pool")
    count, rounds = setting.of(2000, 2000, 200), setting.of(101, 31, 3)
    chooser = random.Random(1)
    places = [chooser.randrange(items) for _ in range(count)]
    operations, transaction = live_operations(shelf, store, places, f"{items * 8 >> 20} MiB")
    for name, work, bound in operations:
        us = each(work, count, rounds)
        section.numbers[name] = us
        section.rows.append([name, f"{us:.2f}"])
        if bound is not None:
            section.goal(f"microseconds, {name}", us, "<=", bound)
    us = each(transaction, count, max(rounds // 20, 3)) * 20
    section.numbers["transaction"] = us
    section.rows.append(["a transaction with one such store (lmcstore)", f"{us:.1f}"])
    section.notes.append(f"At random places; medians of {rounds} runs of {count:,} operations.")
    store.close()
    return section


def start(setting: Setting) -> Section:
    """Measure imports in new processes."""
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


SECTIONS = (capture, many, reads, checks, trainer, live, start)


def setting_of(run: Run) -> Setting:
    """Make a folder."""
    torch.set_num_threads(THREADS)
    return Setting(run.scratch(run.options.dir), run.size)


def machine(setting: Setting) -> str:
    """Describe the machine."""
    return f"{processor()}; {setting.folder.parent}, forced; {setting.size} run"


if __name__ == "__main__":
    run_suite("python", __doc__, SECTIONS, setting_of, folder=Path("/dev/shm"), machine=machine)
