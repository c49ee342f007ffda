# SPDX-License-Identifier: BSD-3-Clause
"""Measures the store: every claim about its speed and space as a ratio within one run. Run by tools/bench.sh store."""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tools/quickstart"))

import torch  # noqa: E402
from model import CONTEXT, GPT  # noqa: E402
from peers import FILE_SAVERS, save_lmcstore, start_dcp, stop_dcp  # noqa: E402
from states import read_all, tensors_of  # noqa: E402
from tables import Run, Section, gbs, ms, processor, progress, run_suite  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
BENCH = TOP / "build/release/bin/bench_store"
THREADS = min(8, len(os.sched_getaffinity(0)))


@dataclass
class Setting:
    """Where and how much to measure."""

    disk: Path
    memory: Path
    size: str

    def of(self, full: int, quick: int, smoke: int) -> int:
        """Choose by size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]


def bench_store(section: str, folder: Path, size: int, rounds: int, cgroup: Path | None = None) -> dict[str, Any]:
    """Run the C half; memory counts as persistent."""
    words = [BENCH, section, folder, str(size), str(rounds), str(THREADS), *([cgroup] if cgroup else [])]
    environment = dict(os.environ)
    if folder.is_relative_to("/dev/shm"):
        environment["PMEM_IS_PMEM_FORCE"] = "1"

    def enter() -> None:
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    result = subprocess.run(
        words, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=enter if cgroup else None
    )
    if result.returncode != 0:
        raise RuntimeError(f"bench_store {section} ended with {result.returncode}")
    return json.loads(result.stdout)


# ---- Writing --------------------------------------------------------------------------------------------------------


def capture(setting: Setting) -> Section:
    """Measure a capture beside memcpy or pwrite + fdatasync."""
    section = Section("Capture, beside memcpy and pwrite + fdatasync of the same bytes")
    section.head = [
        "medium",
        "memcpy",
        "pwrite, 1 thread",
        "pwrite, threads",
        "capture",
        "of memcpy",
        "of pwrite's time",
    ]
    for medium, folder in (("/dev/shm, forced", setting.memory), ("file system", setting.disk)):
        found = bench_store("capture", folder, setting.of(GIB, 256 * MIB, 32 * MIB), setting.of(7, 5, 3))
        section.numbers[medium] = found
        for state in ("cold", "warm"):
            t = found[state]
            of_memcpy = t["memcpy_s"] / t["capture_s"]
            of_write = t["capture_s"] / min(t["write_one_thread_s"], t["write_threads_s"])
            seconds = (t["memcpy_s"], t["write_one_thread_s"], t["write_threads_s"], t["capture_s"])
            speeds = [gbs(found["bytes"], s) for s in seconds]
            section.rows.append([f"{medium}, {state}", *speeds, f"{of_memcpy:.2f}", f"{of_write:.2f}"])
            if folder == setting.memory and state == "warm":
                section.goal("capture over memcpy, /dev/shm, warm", of_memcpy, ">=", 0.8)
            if folder == setting.disk:
                section.goal(f"time to durable over pwrite + fdatasync, {state}", of_write, "<=", 1.05)
    section.notes.append(
        f"{found['bytes'] >> 20} MiB in {found['tensors']} tensors, {THREADS} threads, all changed; GB/s. cold: new "
        "file, pool or memory; warm: existing space. The last column compares with the better pwrite."
    )
    return section


def first(setting: Setting) -> Section:
    """Measure the first captures of a new pool beside the tenth."""
    section = Section("The first captures into a new pool, with pauses as long as the first one")
    section.head = ["medium", "first, ms", "second, ms", "third, ms", "tenth, ms", "second over tenth"]
    for medium, folder in (("/dev/shm, forced", setting.memory), ("file system", setting.disk)):
        size = setting.of(GIB, 256 * MIB, 16 * MIB) if folder == setting.memory else setting.of(130, 130, 16) * MIB
        found = section.numbers[medium] = bench_store("first", folder, size, setting.of(5, 3, 1))
        for told in ("untold", "told"):
            times = found[f"{told}_s"]
            over = times[1] / times[9]
            label = f"{medium}, {size >> 20} MiB" + (", expect=" if told == "told" else "")
            section.rows.append([label, *(ms(times[i]) for i in (0, 1, 2, 9)), f"{over:.2f}"])
            if told == "untold":
                section.goal(f"second capture over the tenth, {medium}", over, "<=", 1.3)
            else:
                section.goal(f"first capture with expect= over the tenth, {medium}", times[0] / times[9], "<=", 1.3)
    return section


def commit(setting: Setting) -> Section:
    """Measure 1,000 small tensors."""
    section = Section("1,000 tensors of 2 KiB, all changed")
    section.head = ["medium", "put, ms", "commit, ms", "together, ms", "write + fdatasync, ms"]
    rounds = setting.of(31, 31, 5)
    for medium, folder in (("/dev/shm, forced", setting.memory), ("file system", setting.disk)):
        t = section.numbers[medium] = bench_store("commit", folder, 0, rounds)
        section.rows.append([medium, *(ms(t[key]) for key in ("put_s", "commit_s", "whole_s", "write_s"))])
        if folder == setting.memory:
            section.goal("snapshot of 1,000 small tensors, /dev/shm, ms", t["whole_s"] * 1e3, "<=", 10)
        else:
            more = (t["whole_s"] - t["write_s"]) * 1e3
            section.goal("the same, file system, ms above write + fdatasync", more, "<=", 20)
    return section


def memory(setting: Setting) -> Section:
    """Measure anonymous memory, and a capture under a limit."""
    section = Section("Memory that a capture takes beyond the process's own")
    section.head = ["capture", "limit", "seconds", "more anonymous memory, MiB"]
    for size in (256 * MIB, setting.of(2 * GIB, GIB, 512 * MIB)):
        for medium, folder in (("/dev/shm", setting.memory), ("file system", setting.disk)):
            t = section.numbers[f"{medium} {size >> 20}"] = bench_store("memory", folder, size, 1)
            more = t["more_anonymous_bytes"] / MIB
            section.rows.append([f"{size >> 20} MiB, {medium}", "", "", f"{more:.1f}"])
            section.goal(f"more anonymous memory, {size >> 20} MiB, {medium}, MiB", more, "<=", 64)
    size = setting.of(4 * GIB, 4 * GIB, 256 * MIB)
    group = make_cgroup()
    if group is None:
        section.notes.append("No memory cgroup could be made here (it takes root): the limited capture was left out.")
        return section
    try:
        t = section.numbers["limited"] = bench_store("big", setting.disk, size, 1, group)
        row = [f"{size >> 20} MiB, file system", "what it has + 512 MiB", f"{t['capture_s']:.1f}"]
        section.rows.append([*row, f"{t['more_anonymous_bytes'] / MIB:.1f}"])
    finally:
        group.rmdir()
    section.goal("captures that succeed under the limit", 1, ">=", 1)
    return section


def make_cgroup() -> Path | None:
    """Make a memory cgroup, or none."""
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = root / f"lmcs-bench-{os.getpid()}"
        try:
            if root.name == "cgroup":
                (root / "cgroup.subtree_control").write_text("+memory")
            group.mkdir()
            if (group / "memory.limit_in_bytes").exists() or (group / "memory.max").exists():
                return group
            group.rmdir()
        except OSError:
            continue
    return None


# ---- Beside the others, from Python ---------------------------------------------------------------------------------


def synthetic_state(size: int) -> dict[str, Any]:
    """Make 33 blocks of two large, two middle and two small fp32 tensors, about `size` bytes."""
    generator = torch.Generator().manual_seed(1)
    large = size // 33 // 10
    counts = (large, large, large // 4, large // 4, 1536, 1536)
    return {
        f"h.{block}": {f"w{i}": torch.randn(count, generator=generator) for i, count in enumerate(counts)}
        for block in range(33)
    }


def change(state: dict[str, Any]) -> None:
    """Change every tensor."""
    for tensor in tensors_of(state).values():
        tensor.add_(1e-3)


def remove(path: Path) -> None:
    """Remove a path, if present."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


OURS = {"lmc-store snapshot()": True, "lmc-store snapshot(wait=False)": False}  # name: wait


def save_new(setting: Setting, name: str, state: Any, turn: int) -> Any:
    """Save to a new place."""
    import lmcstore

    path = setting.disk / "new"
    os.sync()
    if name in OURS:
        with lmcstore.open(str(path)) as store:
            saved = save_lmcstore(store["run"], state, turn, OURS[name])
    else:
        saved = FILE_SAVERS[name](state, path)
    remove(path)
    return saved


def save_again(setting: Setting, name: str, shelf: Any, state: Any, turn: int) -> Any:
    """Save over a file, or into a pool's space."""
    os.sync()
    if name in OURS:
        saved = save_lmcstore(shelf, state, turn, OURS[name])
        for old in list(shelf)[:-1]:
            shelf.remove(old.number)
        return saved
    path = setting.disk / f"again-{name.replace(' ', '-')}"
    if name.startswith("DCP"):
        remove(path)  # DCP does not overwrite its checkpoint
    return FILE_SAVERS[name](state, path)


def durable_times(setting: Setting, state: Any) -> dict[str, dict[str, list[Any]]]:
    """Save in all ways; return times, new and again."""
    import lmcstore

    rounds = setting.of(5, 5, 2)
    names = [*OURS, *FILE_SAVERS]
    times: dict[str, dict[str, list[Any]]] = {name: {"new": [], "again": []} for name in names}
    pools = {name: setting.disk / f"again-{wait}.pool" for name, wait in OURS.items()}
    stores = {name: lmcstore.open(str(path)) for name, path in pools.items()}
    start_dcp()
    for turn in range(-1, rounds):  # warm-up
        change(state)
        # Excludes the previous way's writeback.
        for name in random.Random(turn).sample(names, len(names)):
            times[name]["new"].append(save_new(setting, name, state, turn))
            shelf = stores[name]["run"] if name in stores else None
            times[name]["again"].append(save_again(setting, name, shelf, state, turn))
        progress(f"durable: round {turn + 2} of {rounds + 1}")
    stop_dcp()
    for store in stores.values():
        store.close()
    for name in names:
        remove(pools[name] if name in pools else setting.disk / f"again-{name.replace(' ', '-')}")
    return times


def durable(setting: Setting) -> Section:
    """Measure time blocked and to durable."""
    section = Section("Saving from Python: the trainer blocked, and until durable; file system")
    section.head = ["way", "new: blocked, ms", "new: durable, ms", "again: blocked, ms", "again: durable, ms"]
    state = synthetic_state(setting.of(GIB, 256 * MIB, 16 * MIB))
    medians = {
        name: {
            kind: [statistics.median(getattr(t, part) for t in found[1:]) for part in ("blocked_s", "durable_s")]
            for kind, found in kinds.items()
        }
        for name, kinds in durable_times(setting, state).items()
    }
    for name, found in medians.items():
        section.rows.append([name, *(ms(s) for kind in ("new", "again") for s in found[kind])])
    section.numbers = medians
    for kind in ("new", "again"):
        we = medians["lmc-store snapshot()"][kind][1]
        for peer in ("safetensors, then fsync", "DCP save"):
            section.goal(f"durable, over {peer} ({kind})", we / medians[peer][kind][1], "<=", 1)
        asynchronous = medians["lmc-store snapshot(wait=False)"][kind][0] / medians["DCP async_save"][kind][0]
        section.goal(f"blocked with wait=False, over DCP async_save ({kind})", asynchronous, "<=", 1)
    size = sum(t.nbytes for t in tensors_of(state).values())
    section.notes.append(
        f"{size >> 20} MiB in {len(tensors_of(state))} tensors. new: a new file or pool. again: over the file that is "
        "there (DCP: removed first), or into a pool that has the space. Files are synced."
    )
    return section


def load(setting: Setting) -> Section:
    """Measure loading views, reading all, and a view."""
    import lmcstore
    from safetensors.torch import load_file, save_file

    section = Section("Loading from Python: the newest state (file in the page cache)")
    section.head = ["way", "until returned, ms", "every byte, ms"]
    state = synthetic_state(setting.of(GIB, 256 * MIB, 16 * MIB))
    pool, plain, safe = (setting.disk / name for name in ("load.pool", "load.pt", "load.safetensors"))
    torch.save(state, plain)
    save_file(tensors_of(state), safe)
    store = lmcstore.open(str(pool))
    store["run"].snapshot(state, step=0)
    ways: dict[str, Callable[[], Any]] = {
        "lmc-store state_dict()": lambda: store["run"].latest.state_dict(),
        "torch.load": lambda: torch.load(plain),
        "torch.load(mmap=True)": lambda: torch.load(plain, mmap=True),
        "safetensors load_file": lambda: load_file(safe),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(setting.of(7, 7, 2)):
        for name, way in ways.items():
            start = time.perf_counter()
            loaded = way()
            returned = time.perf_counter() - start
            read_all(loaded)
            times[name].append((returned, time.perf_counter() - start))
            del loaded
    for name, found in times.items():
        medians = [statistics.median(t[i] for t in found[1:]) for i in (0, 1)]
        section.numbers[name] = medians
        section.rows.append([name, f"{medians[0] * 1e3:.2f}", ms(medians[1])])
    snap = store["run"].latest
    latencies = []
    for _ in range(2000):
        start = time.perf_counter()
        view = snap["h.0.w0"].read()
        latencies.append(time.perf_counter() - start)
        del view
    section.numbers["one view"] = statistics.median(latencies)
    section.rows.append(["lmc-store snap[name], one tensor", f"{statistics.median(latencies) * 1e3:.4f}", ""])
    store.close()
    for path in (pool, plain, safe):
        path.unlink()
    return section


def start(setting: Setting) -> Section:
    """Measure a process's first step."""
    import lmcstore
    from safetensors.torch import save_file

    section = Section("From process start to the end of the first training step (10.8 M-parameter GPT, AdamW)")
    section.head = ["way", "seconds", "above a fresh model, ms"]
    torch.manual_seed(3)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randint(256, (2, CONTEXT + 1))
    model.loss(data[:, :-1], data[:, 1:]).backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    pool, plain, safe = (setting.disk / name for name in ("start.pool", "start.pt", "start.safetensors"))
    with lmcstore.open(str(pool)) as store:
        store["run"].snapshot(state, step=0)
    torch.save(state, plain)
    flat = {name: tensor for name, tensor in tensors_of(state).items() if name != "model.head.weight"}
    save_file(flat, safe)
    paths = {"fresh": "-", "lmc-store": pool, "torch.load": plain, "torch.load mmap": plain, "safetensors": safe}
    times: dict[str, list[float]] = {way: [] for way in paths}
    for _ in range(setting.of(7, 5, 2)):
        for way, path in paths.items():
            environment = dict(os.environ, LMCS_BENCH_START=repr(time.time()))
            words = [sys.executable, TOP / "tools/bench/start.py", way, path]
            times[way].append(float(subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True).stdout))
    fresh = statistics.median(times["fresh"])
    for way, found in times.items():
        median = section.numbers[way] = statistics.median(found)
        section.rows.append([way, f"{median:.2f}", "" if way == "fresh" else f"{(median - fresh) * 1e3:.0f}"])
    for path in (pool, plain, safe):
        path.unlink()
    return section


# ---- History, views, decoding ---------------------------------------------------------------------------------------


def many(setting: Setting) -> Section:
    """Measure very many tensors."""
    section = Section("Snapshots of many small tensors")
    section.head = ["medium", "tensors", "changed", "snapshot, ms", "more in the pool, KiB"]
    for medium, folder in (("/dev/shm, forced", setting.memory), ("file system", setting.disk)):
        for count, size in ((setting.of(100_000, 100_000, 2_000), 1024), (setting.of(5_000, 5_000, 500), 16384)):
            t = section.numbers[f"{medium}, {size >> 10} KiB"] = bench_store("many", folder, size, count)
            tensors = f"{count:,} of {size >> 10} KiB"
            section.rows.append([medium, tensors, "first", ms(t["first_s"]), f"{t['first_used_bytes'] / 1024:.0f}"])
            for kind in ("none", "ten", "all"):
                found = t[kind]
                more = found["more_live_bytes"] / 1024
                section.rows.append([medium, tensors, kind, ms(found["snapshot_s"]), f"{more:.0f}"])
                if kind == "none" and size == 1024:
                    section.goal(f"pool space, none changed, {medium}, KiB", more, "<=", 4)
                if kind == "ten" and size == 1024:
                    section.goal(f"pool space, ten changed, {medium}, KiB (10 of them data)", more, "<=", 256)
    return section


def view(setting: Setting) -> Section:
    """Measure a view's latency."""
    section = Section("A view of one tensor (C interface)")
    section.head = ["tensor", "history", "microseconds"]
    t = section.numbers = bench_store("view", setting.disk, 0, setting.of(2000, 200, 20))
    for size in ("small", "large"):
        for when, count in (("early", 1), ("late", t["snapshots"])):
            us = t[f"{size}_{when}_s"] * 1e6
            section.rows.append([f"{t[f'{size}_bytes'] >> 10:,} KiB", f"{count:,} snapshots", f"{us:.2f}"])
            section.goal(f"view of the {size} tensor, {count:,} snapshots, microseconds", us, "<=", 5)
    return section


def churn(setting: Setting) -> Section:
    """Measure space after many rounds."""
    rounds = setting.of(10_000, 1_000, 100)
    section = Section(f"Space after {rounds:,} rounds of snapshot, compact and prune, mixed sizes")
    section.head = ["rounds", "used, MiB", "live, MiB", "used over live", "worst on the way", "ms a round"]
    t = section.numbers = bench_store("churn", setting.memory, 0, rounds)
    sizes = [f"{t[key] / MIB:.2f}" for key in ("used_bytes", "live_bytes")]
    ratios = [f"{t[key]:.3f}" for key in ("used_over_live", "worst_used_over_live")]
    section.rows.append([f"{rounds:,}", *sizes, *ratios, ms(t["seconds"] / rounds)])
    section.goal("pool space used over live bytes", t["used_over_live"], "<=", 1.15)
    return section


def long(setting: Setting) -> Section:
    """Measure a long history."""
    count = setting.of(100_000, 20_000, 1_000)
    section = Section(f"A history of {count:,} snapshots (8 tensors of 1 KiB)")
    section.head = ["medium", "", "at the beginning", "at the end", "ratio"]
    for medium, folder in (("/dev/shm, forced", setting.memory), ("file system", setting.disk)):
        t = section.numbers[medium] = bench_store("long", folder, 0, count)
        for what, key in (
            ("snapshot, microseconds", ("first_s", "last_s")),
            ("open, microseconds", ("open_early_s", "open_late_s")),
        ):
            first, last = (t[k] for k in key)
            section.rows.append([medium, what, f"{first * 1e6:.0f}", f"{last * 1e6:.0f}", f"{last / first:.2f}"])
        # Medians of 500; repeated runs differ by a tenth.
        section.goal(f"last snapshot over the first, {medium}", t["last_s"] / t["first_s"], "<=", 1.1)
        opening = t["open_late_s"] / t["open_early_s"]
        section.goal(f"open at the end over open at the beginning, {medium}", opening, "<=", 1.25)
    return section


def decode(setting: Setting) -> Section:
    """Measure decoding a delta."""
    section = Section("Decoding a delta (fp32 weights, one step apart)")
    section.head = ["threads", "ms", "GB/s", "speed-up"]
    size = setting.of(512 * MIB, 256 * MIB, 32 * MIB)
    t = section.numbers = bench_store("decode", setting.disk, size, setting.of(9, 7, 3))
    one, two = t["one_thread_s"], t["two_threads_s"]
    section.rows.append(["1", ms(one), gbs(size, one), ""])
    section.rows.append(["2", ms(two), gbs(size, two), f"{one / two:.2f}"])
    section.goal("speed of two threads over one", one / two, ">=", 1.7)
    section.notes.append(f"{size >> 20} MiB, stored at {t['stored_bytes'] / size:.3f} of its size.")
    return section


SECTIONS = (capture, first, commit, memory, durable, many, view, load, start, churn, long, decode)


# ---- Printing -------------------------------------------------------------------------------------------------------


def machine(setting: Setting) -> str:
    """Describe the machine."""
    words = ["findmnt", "-no", "FSTYPE", "-T", str(setting.disk)]
    kind = subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout.strip()
    return (
        f"{processor()}, file system {kind}, "
        f"torch {torch.__version__}; {setting.size} run. Neither this file system nor /dev/shm is persistent memory."
    )


def setting_of(run: Run) -> Setting:
    """Make the folders."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    return Setting(run.scratch(run.options.dir), run.scratch(Path("/dev/shm")), run.size)


if __name__ == "__main__":
    run_suite("store", __doc__, SECTIONS, setting_of, machine=machine)
