# SPDX-License-Identifier: BSD-3-Clause
"""Measures long histories: finding snapshots, the log, forks, differences. Run by tools/bench.sh history."""

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from history_ages import ages
from history_pace import compactor, shared, slow, trainer
from history_peers import peers
from history_setting import COMMAND, MIB, THREADS, TOP, Setting, bench_store
from history_topology import topology
from tables import Run, Section, gbs, ms, run_suite


def timed(*words: object) -> float:
    """Return median seconds."""
    seconds = []
    for _ in range(9):
        begin = time.perf_counter()
        subprocess.run([COMMAND, *map(str, words)], stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def names(setting: Setting) -> Section:
    """Measure finding snapshots."""
    count = setting.of(100_000, 20_000, 1_000)
    section = Section(f"Finding snapshots in a history of {count:,}")
    section.head = ["what", "measured"]
    t = section.numbers = bench_store("names", setting.folder, 0, count)
    pool = setting.folder / "names.pool"
    for what, key in (
        ("by number", "number_s"),
        ("by step", "step_s"),
        ("by tag", "tag_s"),
        ("`latest~2`", "back_s"),
        ("by time, `{2020-09-13 12:30}`", "time_s"),
    ):
        section.rows.append([f"open a snapshot {what}", f"{t[key] * 1e6:.1f} microseconds"])
        section.goal(f"microseconds to find a snapshot {what}", t[key] * 1e6, "<=", 100)
    t["log_s"] = timed("log", pool, "run", "-n", 20)
    t["log_all_s"] = timed("log", pool, "-n", 20)
    t["log_old_s"] = timed("log", pool, "run@..best", "-n", 20)
    for what, key in (("run -n 20", "log_s"), ("-n 20 (all shelves)", "log_all_s"), ("run@..best -n 20", "log_old_s")):
        section.rows.append([f"`lmc-store log POOL {what}`, the whole process", f"{ms(t[key])} ms"])
        section.goal(f"ms for log {what}", t[key] * 1e3, "<=", 50)
    section.rows.append(["fork a shelf (8 tensors)", f"{ms(t['fork_s'])} ms"])
    pool.unlink()
    return section


def fork(setting: Setting) -> Section:
    """Measure a fork."""
    count = setting.of(100_000, 20_000, 1_000)
    section = Section(f"Forking a snapshot of {count:,} tensors")
    section.head = ["first snapshot", "fork", "metadata that it adds, KiB"]
    t = section.numbers = bench_store("fork", setting.folder, 0, count)
    kib = t["metadata_bytes"] / 1024
    section.rows.append([f"{ms(t['snapshot_s'])} ms", f"{ms(t['fork_s'])} ms", f"{kib:,.0f}"])
    return section


def diff(setting: Setting) -> Section:
    """Measure comparing two snapshots."""
    size = setting.of(512 * MIB, 128 * MIB, 16 * MIB)
    section = Section("Differences of two snapshots, all fp32 tensors changed")
    section.head = ["stored", "ms", "GB/s of each"]
    t = section.numbers = bench_store("diff", setting.folder, size, 1)
    section.rows.append(["both raw", ms(t["raw_s"]), gbs(t["bytes"], t["raw_s"])])
    section.rows.append(["the older as a delta", ms(t["delta_s"]), gbs(t["bytes"], t["delta_s"])])
    section.notes.append(f"{t['bytes'] >> 20} MiB each, {THREADS} threads, in the page cache.")
    return section


SECTIONS: tuple[Callable[[Setting], Section | list[Section]], ...] = (
    peers,
    topology,
    ages,
    compactor,
    trainer,
    shared,
    slow,
    names,
    fork,
    diff,
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    parser.add_argument("--no-peers", action="store_true", help="without other codecs and restic, which it fetches")
    parser.add_argument("--plot", type=Path, default=TOP / "build/bench/topology.svg", help="where topology draws")


def setting_of(run: Run) -> Setting:
    """Find kept histories and a folder."""
    kept = run.options.dir.resolve() / "history-data"
    kept.mkdir(exist_ok=True)
    torch.set_num_threads(1)  # equal sums on every machine, and no waits
    peers = not (run.options.no_peers or run.options.smoke)
    return Setting(run.scratch(run.options.dir), kept, run.size, run.options.plot.absolute(), peers)


if __name__ == "__main__":
    run_suite("history", __doc__, SECTIONS, setting_of, options=options)
