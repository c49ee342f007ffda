# SPDX-License-Identifier: BSD-3-Clause
"""Measures what saving after every step and every tenth costs a trainer, beside others. Run by tools/bench.sh train.

Each way runs in a process of its own, all in turn in each round; ratios are to the loop without saving of that round.
The device loop idles 0.25 s, as if a device computed, and takes a real optimizer step with recorded gradients. The
processor loop trains the quickstart's GPT on all cores. Each is run on the given folder and on a disk of 250 MB/s.
"""

import argparse
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from limits import slow_disk
from tables import Run, Section, ms, progress, run_suite
from train_run import Loop, record, run_loop, run_single
from train_ways import LINKS, OURS, WAYS
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
    ways: list[str]
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
                    if way in OURS or way == "none":
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
        "late": sum(run["late"] for run in found),
        "saves": sum(len(run["durable_s"]) for run in found),
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
    "late",
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
        f"{t['late']} of {t['saves']}",
        f"{t['written_bytes'] / 1e6:.1f}",
        f"{t['written_of_raw']:.2f}",
        f"{t['more_memory_bytes'] / 1e6:.0f}",
        ms(t["processor_s"]),
    ]


NOTE = (
    "Loop: time over that of the loop without saving, while steps are taken, and until all saves are durable and "
    "lmc-store has compacted all but the snapshots that its policy keeps raw. Of a step: blocked (calls that save, and "
    "hooks of the optimizer), written, processor time. Late: saves that were not durable when the next step ended. "
    "Memory: the most that is not of files, of the process and its children. lmc-store keeps all snapshots, the others "
    "the two newest."
)


def add_goals(section: Section, loop: Loop, disk: Disk, t: dict[str, Any]) -> None:
    """Record the goals of links that are written after every step."""
    if loop.gradients is None:
        section.goal(f"{LINKS}: loop until all is done", t["whole"], "<=", 1.12)
        return
    section.goal(f"{LINKS}: loop", t["loop"], "<=", 1.03 if disk.own else 1.02)
    section.goal(f"{LINKS}: late snapshots", t["late"], "<=", 0)
    section.goal(f"{LINKS}: written, of raw", t["written_of_raw"], "<=", 0.18 if loop.bf16 else 0.35)


def section_of(setting: Setting, loop: Loop, disk: Disk, title: str) -> Section:
    """Measure all ways on a disk."""
    runs = in_turn(setting, loop, disk)
    none = runs["none", 1]
    section = Section(f"{title}, {disk.name}", HEAD)
    found = {case: summary(each, none, loop.steps, disk) for case, each in runs.items()}
    section.rows = [row_of(case, numbers) for case, numbers in found.items()]
    if (LINKS, 1) in found:
        add_goals(section, loop, disk, found[LINKS, 1])
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


SECTIONS = (device_bf16, device_fp32, processor, blocked)


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
    parser.add_argument("--way", action="append", choices=list(WAYS), help="this way (can be given again)")
    parser.add_argument("--disk", choices=("both", "folder", "slow"), default="both", help="measure on this disk only")


def setting_of(run: Run) -> Setting:
    """Make the disks."""
    options = run.options
    setting = Setting(run.scratch(options.dir), run.size, 0, 0, options.way or list(WAYS))
    setting.steps = options.steps or setting.of(40, 20, 3)
    setting.rounds = options.rounds or setting.of(3, 1, 1)
    setting.disks = disks_of(run, setting.folder, setting.notes, setting.of(512, 256, 16))
    if options.disk != "both":
        setting.disks = [disk for disk in setting.disks if disk.own == (options.disk == "slow")]
    return setting


if __name__ == "__main__":
    run_suite("train", __doc__, SECTIONS, setting_of, options=add_options)
