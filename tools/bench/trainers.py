# SPDX-License-Identifier: BSD-3-Clause
"""Measures saves and loads of torch.distributed.checkpoint by StoreWriter beside its own writers, and trainers' loops.

Each way of torch.distributed.checkpoint runs on gloo ranks in new processes, all in turn in each round; ratios are to
FileSystemWriter of that round, on the given folder and on /dev/shm. A save is durable when its call has returned on all
ranks and the folder is synced. Run by tools/bench.sh trainers.
"""

import importlib.util
import itertools
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lmcstore
from tables import Run, Section, ms, progress, run_suite
from trainers_loops import lightning, python_of, run_program, transformers
from trainers_run import (
    ASYNC,
    FIRST_STEPS,
    OURS,
    OURS_AUTO,
    OURS_BOUND,
    OURS_FP32,
    TORCH_CHECKPOINTING,
    WAYS,
    load,
    load_shared,
    on_ranks,
    plan,
    save,
    save_apart,
    save_async,
    save_once,
)
from trainers_setting import MIB, Found, Setting, in_turn, middle, ratio
from usage import use_memory

SHM = Path("/dev/shm")
BASE = "FileSystemWriter"


def on_places(setting: Setting) -> Iterator[tuple[str, Path]]:
    """Yield the places with their names."""
    yield from setting.places.items()


def saves(setting: Setting) -> list[Section]:
    """Measure durable saves of two ranks: the first, the second, and later ones."""
    sections = []
    count, idle_s = setting.of(6, 6, 2), setting.of(0.5, 0.5, 0.01)
    ways = setting.of(WAYS, WAYS, (OURS, BASE, WAYS[-1]))
    python = None if setting.size == "smoke" else python_of(setting, TORCH_CHECKPOINTING)
    program = str(Path(__file__).with_name("trainers_peer.py"))

    def measure(way: str, folder: Path) -> dict[str, list[float]]:
        use_memory(folder, (count + 4) * setting.bytes)
        if way != TORCH_CHECKPOINTING:
            return on_ranks(2, save, folder, way, setting.bytes, count, idle_s)
        found: dict[str, list[float]]
        found, _ = run_program([str(python), program, way, str(folder), str(setting.bytes), str(count)])
        return found

    for name, place in on_places(setting):
        found = in_turn(setting, place, ways if python is None else (*ways, TORCH_CHECKPOINTING), measure)
        head = ["way", "first, ms", "later, ms", "later, of FileSystemWriter", "memory above the state, MiB a rank"]
        section = Section(f"Durable saves of {setting.bytes // MIB} MiB on 2 ranks, {name}", head)
        later = slice(1 if setting.size == "smoke" else 2, None)
        for way in found:
            memory = max(value for one in found[way] for value in one["memory_bytes"])
            first, again = middle(found[way], "durable_s", slice(1)), middle(found[way], "durable_s", later)
            share = ratio(found, way, BASE, "durable_s", later)
            section.rows.append([way, ms(first), ms(again), f"{share:.2f}", f"{memory / MIB:.0f}"])
            if way in (OURS, OURS_AUTO, OURS_FP32, OURS_BOUND):
                section.goal(f"{way}: later saves, of FileSystemWriter's time", share, "<=", 1 / 1.5)
            if way == OURS:
                section.goal(f"{way}: memory above the state, MiB", memory / MIB, "<=", 64)
        section.numbers = {f"saves, {name}": found}
        section.notes.append(
            f"Parameters and moments of AdamW, after steps with gradients of bf16 precision (as of autocast), or of "
            f"fp32 precision. {idle_s} s pass before each save. Before each way a larger file is written and "
            "removed, since the first use of a virtual machine's memory is slow. Memory: RssAnon, which has no pages "
            f"of files, at its most from the first save on, less what it was after {FIRST_STEPS} steps without a save. "
            "Later: from the third save on. With write=auto, links keep the newest state in memory as the base of the "
            "next one; memory= bounds this copy."
        )
        if python is not None:
            section.notes.append(
                f"{TORCH_CHECKPOINTING} saves the ranks' tensors without their places, and never syncs."
            )
        sections.append(section)
    return sections


def loads(setting: Setting) -> list[Section]:
    """Measure loads on 4, 2 and 3 ranks of what 4 ranks saved."""
    sections = []
    ways = setting.of((OURS, BASE, WAYS[-1]), (OURS, BASE, WAYS[-1]), (OURS, BASE))
    worlds = setting.of((4, 2, 3), (4, 2, 3), (2, 3))
    turns = setting.of(9, 9, 1)
    for name, place in on_places(setting):
        found: Found = {way: [] for way in ways}
        for _ in range(setting.rounds):
            with tempfile.TemporaryDirectory(dir=place) as folder:
                for number, way in enumerate(ways):
                    Path(folder, str(number)).mkdir()
                    on_ranks(4, save_once, Path(folder, str(number)), way, setting.bytes)
                by_world = {
                    str(world): on_ranks(world, load, Path(folder), ways, setting.bytes, turns) for world in worlds
                }
            for way in ways:
                found[way].append({world: times[way] for world, times in by_world.items()})
            progress(f"    {place}")
        head = ["way", *(f"{world} ranks, ms (of {BASE}'s)" for world in worlds)]
        section = Section(f"Loads of {setting.bytes // MIB} MiB that 4 ranks saved, {name}", head)
        for way in ways:
            cells = []
            for world in map(str, worlds):
                share = ratio(found, way, BASE, world)
                cells.append(f"{ms(middle(found[way], world))} ({share:.2f})")
                if way == OURS:
                    section.goal(f"loads on {world} ranks, of {BASE}'s time", share, "<=", 1.0)
            section.rows.append([way, *cells])
        section.numbers = {f"loads, {name}": found}
        section.notes.append(
            "From the page cache, in turn in the same processes. StoreReader and lmc:// compare checksums, "
            "FileSystemReader has none."
        )
        sections.append(section)
    return sections


def coded(setting: Setting) -> Section:
    """Measure loads of a compacted snapshot, whose blocks several ranks need."""
    return _shared(setting, setting.bytes, ("deltas",), (2, 4))


def shared(setting: Setting) -> Section:
    """Measure loads of other blocks that several ranks need."""
    return _shared(setting, setting.bytes * 3 // 8, ("links", "raw", "at a URL"), (2,))


def _shared(setting: Setting, size_bytes: int, forms: tuple[str, ...], worlds: tuple[int, ...]) -> Section:
    section = Section(
        f"Loads of a snapshot of {size_bytes // MIB} MiB that 2 ranks saved as rows, {setting.folder}",
        [
            "stored as, loaded as",
            "ms, blocks shared (alone)",
            "processor time of all ranks, ms",
            "MiB fetched",
            "shared, of alone: time",
            "of it",
        ],
    )
    with tempfile.TemporaryDirectory(dir=setting.folder) as made:
        for form in forms:
            folder = Path(made, form)
            on_ranks(2, save_apart, folder, size_bytes, 1 if form == "links" else setting.of(10, 5, 1))
            source, step = str(folder), 2 if form == "links" else 0
            with lmcstore.open(folder, "r+") as run:
                if form in ("deltas", "links"):
                    run["run"].policy = "keep_raw=1"
                    run.compact()
                if form == "at a URL":
                    source, step = f"file://{made}/bucket", 3
                    run.push(source, "run@latest")
            for target, world in itertools.product(("replicated", "columns"), worlds):
                found = on_ranks(world, load_shared, source, step, target, setting.of(9, 5, 1), form == "raw")
                middles = {key: statistics.median(values) for key, values in found.items()}
                row = f"{form}, {target}, {world} ranks"
                section.rows.append([row, *_shares(middles)])
                section.numbers[row] = found
                progress(f"    {row}")
            shutil.rmtree(folder)
    section.notes.append(
        "From the page cache, in turn in the same processes. The deltas are three saves older than the newest, the "
        "links one. StoreReader shares raw blocks for columns only: the benchmark does for all. The URL is a folder."
    )
    return section


def _shares(middles: dict[str, float]) -> list[str]:
    """Return the cells of a row of `_shared`."""
    pairs = {key: (middles[f"shared_{key}"], middles[f"alone_{key}"]) for key in ("s", "processor_s", "fetched")}
    (time_s, time_alone_s), (used_s, used_alone_s), fetched = pairs.values()
    return [
        f"{ms(time_s)} ({ms(time_alone_s)})",
        f"{ms(used_s)} ({ms(used_alone_s)})",
        f"{fetched[0] / MIB:.0f} ({fetched[1] / MIB:.0f})",
        f"{time_s / time_alone_s:.2f}",
        f"{used_s / used_alone_s:.2f}",
    ]


def asynchronous(setting: Setting) -> list[Section]:
    """Measure how long dcp.async_save holds training up."""
    sections = []
    count, idle_s = setting.of(4, 3, 2), setting.of(1.0, 0.25, 0.01)
    for name, place in on_places(setting):
        found = in_turn(
            setting,
            place,
            ASYNC,
            lambda way, folder: on_ranks(2, save_async, folder, way, setting.bytes, count, idle_s),
        )
        head = ["way", "call, ms", "wait in the step, ms", "durable after, ms", "memory above the state, MiB a rank"]
        section = Section(f"dcp.async_save of {setting.bytes // MIB} MiB on 2 ranks, {name}", head)
        later = slice(1, None)
        for way in ASYNC:
            memory = max(value for one in found[way] for value in one["memory_bytes"][later])
            times = [ms(middle(found[way], key, later)) for key in ("blocked_s", "hook_s", "durable_s")]
            section.rows.append([way, *times, f"{memory / MIB:.0f}"])
            if "lazy" in way:
                section.goal("lazy: memory above the state, MiB", memory / MIB, "<=", 64)
        section.numbers = {f"asynchronous, {name}": found}
        section.notes.append(f"The step follows {idle_s} s after the call. The first save is left out.")
        sections.append(section)
    return sections


def planning(setting: Setting) -> Section:
    """Measure the coordinator's work for 64 ranks, each with a shard of every tensor."""
    world = setting.of(64, 64, 4)
    most = setting.of(10_000, 2_500, 100)
    head = ["tensors", "DCP's plan, s", "record, s", "its commit, s", "FileSystemWriter's finish, s"]
    section = Section(f"The coordinator of {world} simulated ranks", head)
    all_found = {}
    for tensors in (most // 4, most // 2, most):
        with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
            found = plan(Path(folder), world, tensors)
        section.rows.append(
            [f"{tensors:,}", *(f"{found[key]:.2f}" for key in ("plan_s", "record_s", "commit_s", "finish_s"))]
        )
        all_found[tensors] = found
        progress(f"    {tensors:,} tensors")
    ours = {tensors: found["record_s"] + found["commit_s"] for tensors, found in all_found.items()}
    section.goal("record and commit, of FileSystemWriter's finish", ours[most] / all_found[most]["finish_s"], "<=", 1)
    section.goal("four times the tensors take, times", ours[most] / ours[most // 4], "<=", 5)
    section.numbers = {"planning": all_found}
    return section


SECTIONS = (saves, loads, coded, shared, asynchronous, planning, lightning, transformers)


def setting_of(run: Run) -> Setting:
    """Make the folders."""
    folder = run.scratch(run.options.dir)
    places = {"this disk": folder}
    notes = []
    if run.size != "smoke" and os.access(SHM, os.W_OK):
        places["/dev/shm"] = run.scratch(SHM)
    if importlib.util.find_spec("fsspec") is None:
        notes.append("fsspec is not installed, so lmc:// fails")
    return Setting(folder, run.size, places, {"full": 3, "quick": 2, "smoke": 1}[run.size], notes)


if __name__ == "__main__":
    run_suite("trainers", __doc__, SECTIONS, setting_of)
