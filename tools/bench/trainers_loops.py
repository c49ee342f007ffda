# SPDX-License-Identifier: BSD-3-Clause
"""Loops of Lightning's Trainer and of that of transformers, with a checkpoint after every step.

Each way runs in a process of its own, by the Python of tests/trainers/environment.sh.
"""

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmcstore
from states import disk_bytes
from tables import TOP, Section
from trainers_setting import Found, Setting, in_turn, middle
from usage import SAMPLE_S, memory_bytes

MAKE = TOP / "tests/trainers/environment.sh"
LIMIT_S = 1800
NONE = "none"


@dataclass(frozen=True)
class Trainer:
    """A trainer, and its ways to save."""

    title: str
    environment: str
    program: str
    own: str  # the way that keeps all of its checkpoints
    ways: tuple[str, ...]
    ours: str  # the way that has goals


LIGHTNING = Trainer(
    "Lightning's Trainer",
    "lightning",
    "loop_lightning.py",
    "TorchCheckpointIO",
    ("AsyncCheckpointIO", "StoreCheckpointIO", "StoreCheckpointIO, wait=False"),
    "StoreCheckpointIO, wait=False",
)
TRANSFORMERS = Trainer(
    "The Trainer of transformers",
    "transformers_5",
    "loop_transformers.py",
    "Trainer",
    (
        "Trainer, save_total_limit=2",
        "StoreTrainer",
        "StoreTrainer, lazy=True",
        "StoreTrainer, lazy=False",
        "SnapshotCallback",
    ),
    "StoreTrainer",
)


def python_of(setting: Setting, name: str) -> str | None:
    """Return the Python of an environment. None: it can't be made, or a smoke run would have to make it."""
    if setting.size == "smoke" and not (TOP / f"build/trainers/{name}/.made").exists():
        setting.notes.append(f"{name}: a smoke run makes no environment: {MAKE.relative_to(TOP)} {name}")
        return None
    done = subprocess.run([MAKE, name], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.splitlines()[-1]
    said = (done.stderr.splitlines() or ["no message"])[-1]
    setting.notes.append(f"{name}: {MAKE.relative_to(TOP)} can't make its environment: {said}")
    return None


def run_program(words: list[str]) -> tuple[Any, int]:
    """Run a program; return the JSON of its last line, and its most memory. RuntimeError: it failed."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(words, stdout=out, stderr=errors) as process:
            most, deadline = 0, time.monotonic() + LIMIT_S
            while process.poll() is None:
                most = max(most, memory_bytes(process.pid))
                time.sleep(SAMPLE_S)
                if time.monotonic() > deadline:
                    process.kill()
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            said = (errors.read().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"{words[2]} ended with {process.returncode}: {said}")
        return json.loads(out.read().splitlines()[-1]), most


def stored_bytes(folder: Path, steps: int) -> dict[str, int]:
    """Return the disk space of a loop's checkpoints, and after the compaction of their pool if they have one."""
    pool = folder / "run.pool"
    files = sum(disk_bytes(path) for path in folder.iterdir() if path != pool)
    if not pool.exists():
        return {"disk_bytes": files}
    with lmcstore.open(pool, "r") as store:
        taken = [snapshot.step for snapshot in store["run"]]
        if taken != list(range(1, steps + 1)):
            raise RuntimeError(f"the pool has the steps {taken}, not each of {steps}")
        used = store.info()["used_bytes"]
    with lmcstore.open(pool, "r+") as store:
        store.compact(finished=True)
        compacted = store.info()["used_bytes"]
    return {"disk_bytes": files + used, "compacted_bytes": files + compacted}


def loop_in(python: str, trainer: Trainer, setting: Setting, steps: int) -> Callable[[str, Path], Any]:
    """Return a function that runs a way in a folder."""
    program = Path(__file__).with_name(trainer.program)
    small = ["--small"] if setting.size == "smoke" else []

    def measure(way: str, folder: Path) -> dict[str, list[float]]:
        found, memory = run_program([python, str(program), way, str(folder), str(steps), *small])
        found |= {"memory_bytes": memory} | stored_bytes(folder, steps)
        return {name: [value] for name, value in found.items()}

    return measure


def share(found: Found, way: str, name: str, base: str = NONE, of: str = "loop_s") -> float:
    """Return the median of the rounds' ratios to another way."""
    return statistics.median(one[name][0] / other[of][0] for one, other in zip(found[way], found[base], strict=True))


HEAD = ["way", "loop", "until all is synced", "on disk, MB", "compacted, MB", "of states", "more memory, MB"]
NOTE = (
    "Loop: time over that of the loop without checkpoints: until the last step's save has returned; and until all "
    "checkpoints are durable, for which the bench syncs the folder. Own saving never syncs: a power failure can damage "
    "it. On disk: of files the blocks, of a pool `used_bytes`; compacted: after `compact(finished=True)`. Of states: "
    "the last of both, over the bytes of the parameters and AdamW's moments of all steps. Memory: the most of a "
    "process that is not of files, above that without checkpoints."
)


def add_goals(section: Section, trainer: Trainer, found: Found) -> None:
    """Compare one of our ways with the trainer's own."""
    own, ours = trainer.own, trainer.ours
    section.goal(f"{ours}: loop, of {own}'s", share(found, ours, "loop_s", own), "<=", 1)
    section.goal(f"{ours}: until all is synced, of {own}'s", share(found, ours, "whole_s", own, "whole_s"), "<=", 1)
    size = share(found, ours, "compacted_bytes", own, "disk_bytes")
    section.goal(f"{ours}: compacted, of {own}'s bytes", size, "<=", 1)


def loops(setting: Setting, trainer: Trainer) -> list[Section]:
    """Measure a trainer."""
    python = python_of(setting, trainer.environment)
    if python is None:
        return []
    steps = setting.of(100, 20, 3)
    all_ways = (NONE, trainer.own, *trainer.ways)
    ways = setting.of(all_ways, all_ways, (NONE, trainer.ours))
    found = in_turn(setting, setting.folder, ways, loop_in(python, trainer, setting, steps))
    section = Section(f"{trainer.title}: {steps} steps, a checkpoint after each, this disk", HEAD)
    state = found[NONE][0]["state_bytes"][0]
    for way in ways:
        row = [way, f"{share(found, way, 'loop_s'):.2f}", f"{share(found, way, 'whole_s'):.2f}"]
        if way == NONE:
            section.rows.append([*row, "", "", "", ""])
            continue
        has_pool = "compacted_bytes" in found[way][0]
        last = middle(found[way], "compacted_bytes" if has_pool else "disk_bytes")
        more = statistics.median(
            one["memory_bytes"][0] - other["memory_bytes"][0]
            for one, other in zip(found[way], found[NONE], strict=True)
        )
        on_disk, compacted = f"{middle(found[way], 'disk_bytes') / 1e6:.0f}", f"{last / 1e6:.0f}" if has_pool else ""
        section.rows.append([*row, on_disk, compacted, f"{last / (state * steps):.2f}", f"{more / 1e6:.0f}"])
    if trainer.own in found:
        add_goals(section, trainer, found)
    section.numbers = {trainer.environment: found}
    step_s = middle(found[NONE], "loop_s") / steps
    section.notes += [
        f"Medians of {setting.rounds}. A step without checkpoints takes {step_s * 1e3:.0f} ms, a state has "
        f"{state / 1e6:.1f} MB. {trainer.own} keeps all checkpoints.",
        NOTE,
    ]
    return [section]


def lightning(setting: Setting) -> list[Section]:
    """Measure Lightning's Trainer."""
    return loops(setting, LIGHTNING)


def transformers(setting: Setting) -> list[Section]:
    """Measure the Trainer of transformers."""
    return loops(setting, TRANSFORMERS)
