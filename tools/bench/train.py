# SPDX-License-Identifier: BSD-3-Clause
"""Measures what saving after every step and every tenth costs a trainer, beside others. Run by tools/bench.sh train.

Each way runs in a process of its own, all in turn in each round; ratios are to the loop without saving of that round.
The device loop idles 0.25 s, as if a device computed, and takes a real optimizer step with recorded gradients. The
processor loop trains the quickstart's GPT on all cores. Each is run on the given folder and on a disk of 250 MB/s. The
section `bytes` writes links in the device loop, `restore` without its idle time.
"""

import argparse
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from limits import slow_disk
from tables import Run, Section, ms, progress, run_suite
from train_lines import lines_of, load, write_steps, write_until_killed
from train_run import Loop, record, run_loop, run_single
from train_ways import BUSY, LINKS, PEERS, RESTORES, WAYS, links_way
from usage import in_new_process

MIB, GIB = 1 << 20, 1 << 30
THREADS = len(os.sched_getaffinity(0))
IDLE_S = 0.25
SLOW_RATE = 250_000_000
SLOW_BYTES = 16 * GIB
Runs = dict[tuple[str, int], list[dict[str, Any]]]


@dataclass
class Disk:
    """A place to save in."""

    name: str
    folder: Path
    own: bool  # nothing else writes to it
    note: str


@dataclass
class Setting:
    """Where and how much to measure."""

    folder: Path
    size: str
    steps: int
    rounds: int
    long: int  # steps of the section bytes
    ways: list[str]
    restores: list[str]  # of the ways that write links
    disks: list[Disk] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def of(self, full: Any, quick: Any, smoke: Any) -> Any:
        """Choose by size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]

    @property
    def intervals(self) -> tuple[int, ...]:
        """Save after each so many steps."""
        return (1,) if self.size == "smoke" else (1, 10)


# ---- The loops ------------------------------------------------------------------------------------------------------


def loop_of(setting: Setting, bf16: bool, device: bool) -> Loop:
    """Describe the loop without saving; record gradients for a device."""
    kind = "bf16" if bf16 else "fp32"
    loop = Loop(
        way="none",
        every=1,
        steps=setting.steps,
        shape=setting.of((6, 6, 384), (6, 6, 384), (1, 2, 32)),
        bf16=bf16,
        idle_s=setting.of(IDLE_S, IDLE_S, 0.01),
        gradients=setting.folder / f"gradients-{kind}" if device else None,
        count=setting.of(20, 10, 2),
        folder=setting.folder,
        text=setting.folder,
        threads=THREADS,
    )
    if device:
        progress(f"    recording the {kind} gradients of {loop.count} steps")
        count, _ = in_new_process("train_run", record, loop)
        progress(f"    of {count:,} parameters")
    return loop


def in_turn(setting: Setting, loop: Loop, disk: Disk) -> Runs:
    """Run all ways in each round, in random order."""
    cases = [("none", 1), *((way, every) for way in setting.ways for every in setting.intervals)]
    runs: Runs = {case: [] for case in cases}
    for turn in range(setting.rounds):
        for way, every in random.Random(turn).sample(cases, len(cases)):
            if (way, every) not in runs:
                continue
            with tempfile.TemporaryDirectory(dir=disk.folder) as folder:
                case = replace(loop, way=way, every=every, folder=Path(folder))
                try:
                    found, memory = in_new_process("train_run", run_loop, case)
                except RuntimeError as error:
                    if way not in PEERS:
                        raise
                    setting.notes.append(f"{way}, {disk.name}: {error}")
                    for interval in setting.intervals:
                        runs.pop((way, interval), None)
                    continue
            runs[way, every].append({**found, "memory_bytes": memory})
            progress(f"    {disk.name}, {way}, every {every}: {found['loop_s'] / loop.steps * 1e3:.0f} ms a step")
    return runs


def middle(values: Iterable[float]) -> float:
    """Return the median; of none, 0."""
    found = list(values)
    return statistics.median(found) if found else 0.0


def summary(found: list[dict[str, Any]], none: list[dict[str, Any]], steps: int, disk: Disk) -> dict[str, Any]:
    """Return medians of the rounds; times and bytes are of a step."""
    saves = max(len(found[0]["durable_s"]), 1)
    pairs = list(zip(found, none, strict=True))
    written = "device_bytes" if disk.own else "written_bytes"
    return {
        "step_s": middle(run["loop_s"] for run in found) / steps,
        "loop": middle(run["loop_s"] / base["loop_s"] for run, base in pairs),
        "whole": middle(run["whole_s"] / base["loop_s"] for run, base in pairs),
        "blocked_s": middle(run["blocked_s"] for run in found) / steps,
        "in_hooks_s": middle(run["in_hooks_s"] for run in found) / steps,
        "durable_s": middle(seconds for run in found for seconds in run["durable_s"]),
        "in_time": sum(run["in_time"] for run in found),
        "compared": sum(run["compared"] for run in found),
        "written_bytes": middle(run[written] for run in found) / steps,
        "written_of_raw": middle(run[written] / run["raw_bytes"] for run in found) / saves,
        "more_memory_bytes": middle(run["memory_bytes"] - base["memory_bytes"] for run, base in pairs),
        "processor_s": middle(run["processor_s"] for run in found) / steps,
        "raw_bytes": found[0]["raw_bytes"],
    }


HEAD = [
    "way",
    "loop",
    "until all is done",
    "blocked, ms",
    "durable after, ms",
    "durable before the next step ends",
    "written, MB",
    "of raw",
    "more memory, MB",
    "processor, ms",
]


def row_of(case: tuple[str, int], t: dict[str, Any]) -> list[str]:
    """Write a summary as a row."""
    way, every = case
    name = way if way == "none" else f"{way}, every {'step' if every == 1 else f'{every}th'}"
    first = [name, f"{t['loop']:.3f}", f"{t['whole']:.3f}"]
    if way == "none":
        return [*first, "", "", "", f"{t['written_bytes'] / 1e6:.1f}", "", "", ms(t["processor_s"])]
    return [
        *first,
        ms(t["blocked_s"]),
        ms(t["durable_s"]),
        f"{t['in_time']} of {t['compared']}",
        f"{t['written_bytes'] / 1e6:.1f}",
        f"{t['written_of_raw']:.2f}",
        f"{t['more_memory_bytes'] / 1e6:.0f}",
        ms(t["processor_s"]),
    ]


NOTE = (
    "Loop: time over that of the loop without saving, while steps are taken, and until all saves are durable and "
    "lmc-store has compacted all but the snapshots that its policy keeps raw. Of a step: blocked (calls that save, and "
    "hooks of the optimizer), written, processor time. Memory: the most that is not of files, of the process and its "
    "children. lmc-store keeps all snapshots, the others the two newest."
)


def add_goals(section: Section, way: str, loop: Loop, disk: Disk, t: dict[str, Any]) -> None:
    """Record the goals of links that are written after every step."""
    if loop.gradients is None:
        section.goal(f"{way}: loop until all is done", t["whole"], "<=", 1.12)
        return
    section.goal(f"{way}: loop", t["loop"], "<=", 1.03 if disk.own else 1.02)
    section.goal(f"{way}: of snapshots durable before the next step ends", t["in_time"] / t["compared"], ">=", 1)


def section_of(setting: Setting, loop: Loop, disk: Disk, title: str) -> Section:
    """Measure all ways on a disk."""
    runs = in_turn(setting, loop, disk)
    none = runs["none", 1]
    section = Section(f"{title}, {disk.name}", HEAD)
    found = {case: summary(each, none, loop.steps, disk) for case, each in runs.items()}
    section.rows = [row_of(case, numbers) for case, numbers in found.items()]
    for (way, every), numbers in found.items():
        if every == 1 and (way == BUSY if loop.gradients is None else way.startswith(LINKS)):
            add_goals(section, way, loop, disk, numbers)
    base = found["none", 1]
    section.numbers = {
        f"{title}, {disk.name}": {
            "steps": loop.steps,
            "rounds": setting.rounds,
            "disk": disk.note,
            "ways": {f"{way}, every {every}": numbers for (way, every), numbers in found.items()},
        }
    }
    counted = "its disk's counter" if disk.own else "the process's counter"
    section.notes += [
        f"Medians of {setting.rounds} rounds of {loop.steps} steps; a step without saving takes "
        f"{ms(base['step_s'])} ms, a state {base['raw_bytes'] / 1e6:.1f} MB. Bytes by {counted}. {disk.note}",
        *([NOTE] if disk is setting.disks[0] else []),
    ]
    return section


def on_all_disks(setting: Setting, bf16: bool, device: bool, title: str) -> list[Section]:
    """Measure a loop on each disk."""
    loop = loop_of(setting, bf16, device)
    disks = setting.disks[:1] if setting.size == "smoke" and not bf16 else setting.disks
    return [section_of(setting, loop, disk, title) for disk in disks]


def device_bf16(setting: Setting) -> list[Section]:
    """Measure the device loop with gradients of bf16 values."""
    return on_all_disks(setting, True, True, "Device loop, bf16 gradients")


def device_fp32(setting: Setting) -> list[Section]:
    """Measure the device loop with fp32 gradients."""
    return on_all_disks(setting, False, True, "Device loop, fp32 gradients")


def processor(setting: Setting) -> list[Section]:
    """Measure the quickstart's GPT on all cores."""
    return on_all_disks(setting, False, False, "Processor loop")


# ---- Single snapshots -----------------------------------------------------------------------------------------------


def blocked(setting: Setting) -> list[Section]:
    """Measure the call of a lazy snapshot of 1 GiB, and the wait in the next step's hook."""
    sections = []
    size, rounds = setting.of(GIB, GIB, 8 * MIB), setting.of(9, 5, 2)
    for disk in setting.disks:
        with tempfile.TemporaryDirectory(dir=disk.folder) as folder:
            found, _ = in_new_process("train_run", run_single, Path(folder), size, rounds, IDLE_S, THREADS)
        head = ["snapshot, then a step", "call, ms", "wait in the hook, ms", "durable after, ms"]
        title = f"A snapshot of {found['bytes'] / MIB:.0f} MiB in {found['tensors']} tensors, {disk.name}"
        section = Section(title, head)
        texts = {"wait=False": "wait=False, at once", "lazy": "lazy, at once", "lazy, later": f"lazy, {IDLE_S} s later"}
        for name, times in found["times"].items():
            section.rows.append([texts[name], *(ms(middle(values)) for values in times.values())])
        section.numbers[f"blocked, {disk.name}"] = found
        section.goal("a lazy call, ms", middle(found["times"]["lazy"]["call_s"]) * 1e3, "<=", 5)
        section.notes.append(f"Medians of {rounds}, into a pool that has the space. The step is in the last column.")
        sections.append(section)
    return sections


# ---- Lines of links -------------------------------------------------------------------------------------------------

MOST_WRITTEN = {("1s", True): 0.18, ("1s", False): 0.35, ("3s", True): 0.14, ("3s", False): 0.31}
"""Of raw, by the time of a restore, and whether gradients are bf16."""


def lines_loop(setting: Setting, bf16: bool, steps: int, **other: Any) -> Loop:
    """Describe a device loop."""
    return replace(loop_of(setting, bf16, True), steps=steps, **other)


def each_run(setting: Setting, loop: Loop) -> Iterator[tuple[str, Loop]]:
    """Yield the loop with each time of a restore, in a new folder on the first disk."""
    for restore in setting.restores:
        with tempfile.TemporaryDirectory(dir=setting.disks[0].folder) as folder:
            yield restore, replace(loop, way=links_way(restore), folder=Path(folder))


def per_gib(run: dict[str, Any]) -> float:
    """Return the seconds of a load for each GiB."""
    return float(run["load_s"] * GIB / run["raw_bytes"])


def seconds_of(restore: str) -> float | None:
    """Return the time of a restore, if it is in seconds."""
    return float(restore[:-1]) if restore.endswith("s") and restore[:-1].isdigit() else None


def bytes(setting: Setting) -> list[Section]:
    """Measure what many steps write, and loads of the newest one and of the one behind the longest line."""
    disk = setting.disks[0]
    head = ["gradients", "restore=", "written, of raw", "longest line", "it, s a GiB", "newest line", "newest, s a GiB"]
    section = Section(f"Bytes of {setting.long} steps, and loads, {disk.name}", head)
    for bf16 in (True, False):
        kind = "bf16" if bf16 else "fp32"
        for restore, loop in each_run(setting, lines_loop(setting, bf16, setting.long)):
            run, _ = in_new_process("train_lines", write_steps, loop)
            lines, _ = in_new_process("train_lines", lines_of, loop.folder)
            longest = max(lines, key=lambda number: (lines[number], number))
            loads = {}
            for which in (str(longest), "latest"):
                turns = [
                    in_new_process("train_lines", load, loop.folder, "r", which)[0] for _ in range(setting.of(5, 3, 1))
                ]
                loads[which] = middle(per_gib(turn) for turn in turns)
            written = run["device_bytes" if disk.own else "written_bytes"] / run["raw_bytes"]
            row = [f"{written:.3f}", str(lines[longest]), f"{loads[str(longest)]:.2f}"]
            section.rows.append([kind, restore, *row, str(lines[max(lines)]), f"{loads['latest']:.2f}"])
            section.numbers[f"bytes, {kind}, restore={restore}"] = run | {"lines": lines, "seconds_per_gib": loads}
            if setting.size == "full" and (restore, bf16) in MOST_WRITTEN:
                section.goal(f"{kind}, {restore}: written, of raw", written, "<=", MOST_WRITTEN[restore, bf16])
            bound = seconds_of(restore)
            if bound is not None:
                section.goal(f"{kind}, {restore}: newest, s a GiB", loads["latest"], "<=", bound)
            progress(f"    {kind}, restore={restore}: {written:.3f} of raw")
    section.notes.append(
        "Everything counts: the first snapshot, keyframes, metadata, and the compaction of all but the newest "
        "snapshots. Loads: `state_dict()` in a new process, from the page cache, on all cores; medians."
    )
    return [section]


def restore(setting: Setting) -> list[Section]:
    """Kill the writer after a durable step, open the pool again and load the newest state."""
    head = ["restore=", "line, median", "line, most", "open, ms", "load, ms", "load, s a GiB", "s a GiB, most"]
    section = Section(f"The newest state after a kill -9, {setting.disks[0].name}", head)
    loop = lines_loop(setting, True, 1000, idle_s=0.0)
    found: dict[str, list[dict[str, Any]]] = {restore: [] for restore in setting.restores}
    for turn in range(setting.of(5, 3, 2)):
        for restore, case in each_run(setting, loop):
            number = setting.of(40, 20, 3) + 7 * turn  # so the lines differ in length
            in_new_process("train_lines", write_until_killed, case, number)
            run, _ = in_new_process("train_lines", load, case.folder, "r+", "latest")
            if run["step"] < number:
                raise RuntimeError(f"step {number} was durable, and {run['step']} is the newest after the kill")
            found[restore].append(run)
            progress(f"    restore={restore}, killed after step {number}: {per_gib(run):.2f} s a GiB")
    for restore, runs in found.items():
        times, lines = [per_gib(run) for run in runs], [run["line"] for run in runs]
        opened, loaded = middle(run["open_s"] for run in runs), middle(run["load_s"] for run in runs)
        row = [f"{middle(lines):.0f}", str(max(lines)), ms(opened), ms(loaded), f"{middle(times):.2f}"]
        section.rows.append([restore, *row, f"{max(times):.2f}"])
        section.numbers[f"restore={restore}"] = runs
        bound = seconds_of(restore)
        if bound is not None:
            section.goal(f"restore={restore}: load, s a GiB", middle(times), "<=", bound)
    section.notes.append(
        f"Medians of {setting.of(5, 3, 2)} runs with bf16 gradients, in each a new pool and a kill after another step. "
        "Open: until the snapshot is found, recovery included. Load: `state_dict()` into new memory, on all cores."
    )
    return [section]


SECTIONS = (device_bf16, device_fp32, processor, blocked, bytes, restore)


# ---- The disks ------------------------------------------------------------------------------------------------------


def dd(folder: Path, mib: int) -> str:
    """Write by dd, past the cache and through it; return both speeds."""
    speeds = []
    for how in ("oflag=direct", "conv=fdatasync"):
        words = ["dd", "if=/dev/zero", f"of={folder}/dd", "bs=1M", f"count={mib}", how]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"})
        speeds.append(f"{how} {done.stderr.splitlines()[-1].rsplit(',', 1)[1].strip()}")
        (folder / "dd").unlink()
    return f"dd of {mib} MiB: {', '.join(speeds)}."


def disks_of(run: Run, folder: Path, notes: list[str], mib: int) -> list[Disk]:
    """Return the given file system and one of limited speed."""
    found = [Disk("this disk", folder, False, dd(folder, mib))]
    name = f"a disk of {SLOW_RATE / 1e6:.0f} MB/s"
    try:
        slow = run.stack.enter_context(slow_disk(folder, SLOW_BYTES, SLOW_RATE))
        found.append(Disk(name, slow, True, dd(slow, mib)))
    except OSError as error:
        notes.append(f"nothing was measured on {name}: {error}")
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this suite's options."""
    parser.add_argument("--steps", type=int, help="steps of a loop (40; --quick: 20)")
    parser.add_argument("--rounds", type=int, help="rounds (3; --quick: 1)")
    parser.add_argument("--long", type=int, help="steps of the section bytes (200; --quick: 48)")
    parser.add_argument("--way", action="append", choices=WAYS, help="this way (can be given again)")
    parser.add_argument(
        "--restore", action="append", metavar="TIME", help=f"with links, restore=TIME ({', then '.join(RESTORES)})"
    )
    parser.add_argument("--disk", choices=("both", "folder", "slow"), default="both", help="measure on this disk only")


def setting_of(run: Run) -> Setting:
    """Make the disks."""
    options = run.options
    restores = options.restore or list(RESTORES)
    ways = [name for way in options.way or WAYS for name in (map(links_way, restores) if way == LINKS else [way])]
    setting = Setting(run.scratch(options.dir), run.size, 0, 0, 0, ways, restores)
    setting.long = options.long or setting.of(200, 48, 8)
    setting.steps = options.steps or setting.of(40, 20, 3)
    setting.rounds = options.rounds or setting.of(3, 1, 1)
    setting.disks = disks_of(run, setting.folder, setting.notes, setting.of(512, 256, 16))
    if options.disk != "both":
        setting.disks = [disk for disk in setting.disks if disk.own == (options.disk == "slow")]
    return setting


if __name__ == "__main__":
    run_suite("train", __doc__, SECTIONS, setting_of, options=add_options)
