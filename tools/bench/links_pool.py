# SPDX-License-Identifier: BSD-3-Clause
"""Pools of runs with links: bytes, and the time to restore a step."""

import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmcstore
from links_train import Setting, Training, Way
from states import disk_bytes, state_digest, tensors_of
from tables import Section, figures, progress

GIB = 1 << 30
EVERY = 8  # steps between compactions
QUICKSTART: dict[str, Any] = {"rate": 1e-3, "warm_up": 8, "betas": (0.9, 0.999), "dropout": 0.1, "fused": True}
RUNS = (Way("fp32 gradients", bf16=False, **QUICKSTART), Way("bf16 gradients", **QUICKSTART))
MOST = {"fp32 gradients": 31.0, "bf16 gradients": 17.0}  # % of raw

# ---- Histories ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A way to keep a run."""

    name: str
    policy: str = ""
    told: bool = True  # the optimizer is in the snapshot, which records relations
    every: int = 1  # one in so many steps


ALL = Kept("every step")
KINDS = (
    ALL,
    Kept("every step, relations not told", told=False),
    Kept("every step, links=off", "links=off"),
    Kept("every step, and all but each 10th removed", "keep=every:10"),
    Kept("every 10th step", every=10),
)


class History:
    """A pool of a run."""

    def __init__(self, path: Path, kept: Kept) -> None:
        self.path, self.kept = path, kept
        self.store = lmcstore.open(path, background=False)
        self.shelf = self.store["gpt"]
        self.digests: dict[int, str] = {}
        if kept.policy:
            self.shelf.policy = kept.policy

    def take(self, step: int, state: dict[str, Any]) -> None:
        """Snapshot a chosen step."""
        if (step + 1) % self.kept.every == 0:
            self.shelf.snapshot(state if self.kept.told else tensors_of(state), step=step)
        if (step + 1) % EVERY == 0:
            self.store.compact()

    def close(self) -> None:
        """Compact to the end."""
        self.store.compact()
        self.store.close()


@dataclass
class Size:
    """Bytes by kind."""

    snapshots: int
    raw_bytes: int
    disk: int
    metadata: int
    newest: int  # bytes of the snapshots kept raw
    stored: dict[str, int]  # contents by storage
    notes: dict[str, int]  # reasons for missing links, counted
    longest_line: int

    @property
    def percent(self) -> float:
        """Return the per cent of the raw bytes."""
        return 100 * self.disk / self.raw_bytes

    @property
    def older_percent(self) -> float:
        """Return the per cent of the raw bytes, without the newest snapshots; NaN: none are older."""
        older = self.raw_bytes - self.newest
        return 100 * (self.disk - self.newest) / older if older else math.nan


def size_of(path: Path) -> Size:
    """Sum bytes."""
    with lmcstore.open(path, mode="r") as store:
        shelf = store["gpt"]
        snapshots = list(shelf)
        size = Size(len(snapshots), 0, disk_bytes(path), store.info()["metadata_bytes"], 0, {}, {}, 0)
        seen: set[int] = set()
        for at, snapshot in enumerate(snapshots):
            storage = snapshot.storage()
            size.raw_bytes += snapshot.raw_bytes
            size.newest += snapshot.raw_bytes if at >= len(snapshots) - shelf.keep_raw else 0
            size.longest_line = max(size.longest_line, storage["longest_line"])
            note = storage["links_note"]
            if note:
                size.notes[note] = size.notes.get(note, 0) + 1
            for entry in snapshot.entries():
                if entry["content"] not in seen:
                    seen.add(entry["content"])
                    size.stored[entry["stored_as"]] = size.stored.get(entry["stored_as"], 0) + 1
    return size


def check(path: Path, digests: dict[int, str], told: bool) -> None:
    """Read some steps; fail if one differs."""
    with lmcstore.open(path, mode="r") as store:
        for step, wanted in digests.items():
            snapshot = next((found for found in store["gpt"] if found.step == step), None)
            if snapshot is not None and told and state_digest(snapshot.state_dict()) != wanted:
                raise RuntimeError(f"{path.name}: step {step} is not what was saved")


def keep(setting: Setting, way: Way, shape: tuple[int, int, int], steps: int, kinds: tuple[Kept, ...]) -> list[Size]:
    """Train once, keep in each way; return the bytes."""
    training = Training(way, shape, setting.folder)
    histories = [History(setting.folder / f"{number}.pool", kept) for number, kept in enumerate(kinds)]
    digests: dict[int, str] = {}
    for step in range(steps):
        training.step()
        state = training.state()
        for history in histories:
            history.take(step, state)
        if step % (steps // 4) == steps // 8:
            digests[step] = state_digest(state)
        if step % 25 == 24:
            progress(f"    {way.name}: step {step + 1} of {steps}")
    sizes = []
    for history in histories:
        history.close()
        check(history.path, digests, history.kept.told)
        sizes.append(size_of(history.path))
        history.path.unlink()
    return sizes


def add_history(section: Section, name: str, kept: Kept, size: Size) -> None:
    """Write a row."""
    what = ", ".join(f"{count:,} {stored}" for stored, count in sorted(size.stored.items()))
    section.rows.append(
        [
            name,
            kept.name,
            str(size.snapshots),
            f"{size.disk / size.snapshots / 1e6:.2f}",
            f"{size.percent:.1f}",
            f"{size.older_percent:.1f}",
            f"{size.metadata / 1e6:.1f}",
            what,
        ]
    )
    older = None if math.isnan(size.older_percent) else size.older_percent  # JSON has no NaN
    section.numbers[f"{name}, {kept.name}"] = vars(size) | {"percent": size.percent, "older_percent": older}
    for note, count in size.notes.items():
        section.notes.append(f"{name}, {kept.name}: no links to {count} of the snapshots: {note}.")


HEAD = ["trained with", "kept", "snapshots", "MB each", "% of raw", "without the newest", "metadata, MB", "contents"]


def explained(setting: Setting, shape: tuple[int, int, int], steps: int) -> str:
    """Describe the training and the bytes."""
    described = Training(RUNS[0], shape, setting.folder).described()
    return (
        f"The quickstart's training ({described}; AdamW, fused, weight decay 0.1, a learning rate of 0.001 after 8 "
        f"steps of warm-up) for {steps} steps, with its scheduler and generators. Everything counts: the disk blocks "
        "of the pool after compaction, with keyframes, manifests, relations, and the newest 4 snapshots raw; then "
        "without these 4, of what the others are raw. Some steps are read back and compared."
    )


def run(setting: Setting) -> list[Section]:
    """Keep the quickstart's run."""
    shape, steps = setting.of((6, 6, 384), (2, 4, 128), (1, 2, 64)), setting.of(200, 48, 16)
    section = Section(f"{steps} steps of the quickstart, everything counted", HEAD)
    for way in RUNS:
        (size,) = keep(setting, way, shape, steps, (ALL,))
        add_history(section, way.name, ALL, size)
        if setting.size == "full":  # raw snapshots weigh more in a short run
            section.goal(f"{steps} steps of the quickstart, {way.name}: % of raw", size.percent, "<=", MOST[way.name])
    section.notes.insert(0, explained(setting, shape, steps))
    return [section, figures("Whole runs: figures", [section])] if section.goals else [section]


def kinds(setting: Setting) -> Section:
    """Keep a run in several ways."""
    shape, steps = setting.of((4, 4, 256), (1, 4, 128), (1, 2, 64)), setting.of(100, 48, 16)
    section = Section("The same, kept in other ways", HEAD)
    for way in setting.of(RUNS, RUNS[-1:], RUNS):
        for kept, size in zip(KINDS, keep(setting, way, shape, steps, KINDS), strict=True):
            add_history(section, way.name, kept, size)
    section.notes.insert(0, explained(setting, shape, steps))
    return section


# ---- Coming back ----------------------------------------------------------------------------------------------------


BOUND = 24
"""Links in a line at most: the default of the policy."""


def read_back(path: Path, line: int) -> dict[int, float]:
    """Read whole steps: least processor time of three, by undone links."""
    seconds: dict[int, float] = {}
    with lmcstore.open(path, mode="r", threads=1) as store:
        shelf = store["gpt"]
        for snapshot in list(shelf)[: -shelf.keep_raw]:
            links = snapshot.storage()["longest_line"]
            for _ in range(3 if links in (0, 1, line // 2, BOUND, line) else 0):
                begin = time.process_time()
                state = snapshot.state_dict()
                took = time.process_time() - begin
                del state
                seconds[links] = min(took, seconds.get(links, took))
    return seconds


def restore(setting: Setting) -> list[Section]:
    """Read steps of 1 GiB from a line of 32 links."""
    shape, line = setting.of((13, 12, 768), (2, 6, 384), (1, 2, 64)), setting.of(32, 32, 4)
    training = Training(Way("bf16 gradients", fused=True, batch=1), shape, setting.folder)
    history = History(setting.folder / "restore.pool", Kept("", f"links={line}"))
    steps = line + history.shelf.keep_raw + 1
    compacting = []
    for step in range(-8, steps):
        training.step()
        if step >= 0:
            history.take(step, training.state())
        if step >= steps - 5:
            begin = time.process_time()
            history.store.compact()
            compacting.append(time.process_time() - begin)
        if step % 8 == 7:
            progress(f"    step {step + 1} of {steps}")
    raw = history.shelf.latest.raw_bytes if history.shelf.latest else 0
    history.close()
    seconds = read_back(history.path, line)
    history.path.unlink()
    section = Section("Reading a step of a state back from a line of links, by one thread")
    section.head = ["links to undo", "s", "s a GiB of state", "GB/s of a link"]
    first = seconds[0]
    for links in sorted(seconds):
        speed = f"{raw * links / (seconds[links] - first) / 1e9:.1f}" if links else ""
        each = seconds[links] * GIB / raw
        section.rows.append([str(links), f"{seconds[links]:.2f}", f"{each:.2f}", speed])
    section.numbers["seconds"] = {str(links): took for links, took in seconds.items()}
    section.numbers["raw_bytes"] = raw
    compacted = raw / GIB / statistics.median(compacting[1:])  # the first includes more than one snapshot
    section.numbers["compacted_gib_s"] = compacted
    links = min(BOUND, max(seconds))
    what = f"seconds for the last of {links} links, as many as the policy lets a line have, of a state of 1 GiB"
    section.goal(what, seconds[links] * GIB / raw, "<=", 4)
    section.goal("GiB of that state compacted in a second of processor time, verified", compacted, ">=", 1)
    section.notes.append(
        f"Of {training.described()}; `state_dict()` from the page cache into new memory, processor time. 0: the "
        "keyframe that the line begins with."
    )
    return [section, figures("Coming back: figures", [section])]
