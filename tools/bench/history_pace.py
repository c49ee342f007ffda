# SPDX-License-Identifier: BSD-3-Clause
"""The compactor beside a trainer, and captures that write deltas."""

import contextlib
import copy
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmcstore
import torch
from history_run import KINDS, RECIPES, Trainer, flat_state, history
from history_setting import GIB, MIB, Setting, mean, median
from limits import slow_disk
from peers import State
from states import tensors_of
from tables import Section, gbs, ms, progress

CORES = sorted(os.sched_getaffinity(0))


@contextmanager
def on_cores(cores: list[int]) -> Iterator[None]:
    """Bind this thread and its children to processors."""
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)


def turned(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """Rotate elements, so that tensors differ."""
    return tensor.reshape(-1).roll(97 * by).reshape(tensor.shape)


class Wide:
    """Several copies of a run's states: large, and as compressible."""

    def __init__(self, setting: Setting, kind: str, size: int) -> None:
        self.setting, self.kind = setting, kind
        self.step = RECIPES[setting.size][kind].steps // 4
        first = self._read()
        copies = max(1, round(size / sum(tensor.nbytes for tensor in first.values())))
        self.state = {str(i): {name: turned(tensor, i) for name, tensor in first.items()} for i in range(copies)}
        self.bytes = copies * sum(tensor.nbytes for tensor in first.values())

    def _read(self) -> dict[str, torch.Tensor]:
        with history(self.setting, self.kind) as shelf:
            return flat_state(shelf, self.step)

    def go_on(self) -> None:
        """Advance to the next state."""
        self.step += 1
        for name, tensor in self._read().items():
            for i, part in enumerate(self.state.values()):
                part[name].copy_(turned(tensor, i))


# ---- The compactor's speed ------------------------------------------------------------------------------------------


class WideRun(Wide):
    """The same with models and optimizers, for links."""

    def __init__(self, setting: Setting, kind: str, size: int) -> None:
        super().__init__(setting, kind, size)
        self.runs = [copy.deepcopy(self._read_run()) for _ in self.state]
        self._fill(self._read_run())

    def _read_run(self) -> State:
        with history(self.setting, self.kind) as shelf:
            state = shelf.at(step=self.step).state_dict()
        return {"model": state["model"], "optimizer": state["optimizer"]}

    def go_on(self) -> None:
        """Advance to the next state."""
        super().go_on()
        self._fill(self._read_run())

    def _fill(self, new: State) -> None:
        tensors = tensors_of(new)
        for i, run in enumerate(self.runs):
            for name, tensor in tensors_of(run).items():
                tensor.copy_(turned(tensors[name], i))
            run["optimizer"]["param_groups"] = new["optimizer"]["param_groups"]


def by_codec(new: dict[str, torch.Tensor], old: dict[str, torch.Tensor]) -> float:
    """Encode and decode against the next state; return the seconds of this thread."""
    room = {name: torch.empty_like(tensor) for name, tensor in old.items()}
    begin = time.thread_time()
    for name, tensor in old.items():
        frame = lmcstore.codec.compress(tensor, base=new[name])
        lmcstore.codec.decompress(frame, base=new[name], out=room[name])
    return time.thread_time() - begin


def timed_compact(store: lmcstore.Store) -> tuple[float, float]:
    """Compact on one core; seconds of clock and process."""
    with on_cores(CORES[-1:]):
        begin, cpu = time.perf_counter(), time.process_time()
        store.compact()
        return time.perf_counter() - begin, time.process_time() - cpu


def compactor(setting: Setting) -> Section:
    """Compact a large state into links and deltas."""
    rounds = setting.of(6, 4, 2)
    wide = WideRun(setting, "fp32", setting.of(GIB, 256 * MIB, 4 * MIB))
    path = setting.folder / "compactor.pool"
    ways = {"links": "keep_raw=2", "deltas": "keep_raw=2 links=off"}
    walls: dict[str, list[float]] = {way: [] for way in ways}
    cpus: dict[str, list[float]] = {way: [] for way in ways}
    stored: dict[str, list[float]] = {way: [] for way in ways}
    alone = []
    store = lmcstore.open(path, background=False, threads=1)
    for i in range(4 + rounds):
        before = {name: tensor.clone() for name, tensor in wide.state["0"].items()}
        if i > 0:
            wide.go_on()
        for way, policy in ways.items():
            shelf = store[way]
            shelf.snapshot({"runs": wide.runs}, step=i)
            shelf.policy = policy
            times = timed_compact(store)
            if i < 4:  # a keyframe in both
                continue
            walls[way].append(times[0])
            cpus[way].append(times[1])
            stored[way].append(shelf[i - 1].stored_bytes / wide.bytes)
            progress(
                f"    {way}: {wide.bytes / GIB / times[0]:.2f} GiB/s, {wide.bytes / GIB / times[1]:.2f} by processor"
            )
        if i >= 4:
            alone.append(by_codec(wide.state["0"], before) * len(wide.state))
    store.close()
    path.unlink()
    section = Section("The compactor on one core")
    section.head = ["a step is stored by", "state, GiB", "seconds", "of processor time", "GiB/s", "by processor time"]
    section.head += ["stored, % of raw"]
    size = wide.bytes / GIB
    for way in ways:
        wall, cpu = median(walls[way]), median(cpus[way])
        cells = [f"{size:.2f}", f"{wall:.3f}", f"{cpu:.3f}", f"{size / wall:.2f}", f"{size / cpu:.2f}"]
        section.rows.append([way, *cells, f"{100 * mean(stored[way]):.1f}"])
        section.numbers[way] = {"bytes": wide.bytes, "wall_s": wall, "cpu_s": cpu}
    section.numbers["deltas"]["codec_s"] = median(alone)
    section.notes.append(
        f"States of {RECIPES[setting.size]['fp32'].name} with their optimizers, one step apart, so often side by "
        f"side; medians of {rounds}. Coded, written to the file system, synced, read back, decoded and compared; "
        "unused space is given back. Processor time of the whole process; for the deltas, the codec alone takes "
        f"{median(alone):.3f} s."
    )
    fastest = section.numbers["links"]
    section.goal("GiB of a state that one core compacts in a second", size / fastest["wall_s"], ">=", 1)
    section.goal("the same by processor time", size / fastest["cpu_s"], ">=", 1)
    return section


# ---- The cost to the trainer ---------------------------------------------------------------------------------------


def train_beside(setting: Setting, store: lmcstore.Store) -> dict[bool, dict[str, list[float]]]:
    """Train with the compactor paused and not; seconds of steps and snapshots."""
    trainer = Trainer(RECIPES[setting.size]["fp32"], setting.folder / "text")
    found: dict[bool, dict[str, list[float]]] = {on: {"step": [], "cpu": [], "snapshot": []} for on in (False, True)}
    shelf = store["run"]
    block = setting.of(8, 6, 2)
    store.pause()
    for turn in range(setting.of(18, 10, 4)):
        on = turn % 2 == 1
        if on:
            store.resume()
        for i in range(block):
            begin, cpu = time.perf_counter(), time.thread_time()
            trainer.step()
            stepped, stepped_cpu = time.perf_counter(), time.thread_time()
            shelf.snapshot(trainer.state(), step=turn * block + i)
            done = time.perf_counter()
            if turn >= 2:  # warm-up
                found[on]["step"].append(stepped - begin)
                found[on]["cpu"].append(stepped_cpu - cpu)
                found[on]["snapshot"].append(done - stepped)
        if on:
            store.pause()
    return found


def trainer(setting: Setting) -> Section:
    """Measure a trainer's steps beside compaction."""
    path = setting.folder / "trainer.pool"
    with on_cores(CORES[-1:]):
        store = lmcstore.open(path, threads=1)
    before = store.info()["compacted_contents"]
    with on_cores(CORES[:1]):
        found = train_beside(setting, store)
    contents = store.info()["compacted_contents"] - before
    store.close()
    path.unlink()
    section = Section("A trainer's step with compaction off and on")
    section.head = ["what", "off, ms", "on, ms", "on over off"]
    rows = (
        ("step", "step: forward, backward, optimizer"),
        ("cpu", "the same, by processor time"),
        ("snapshot", "snapshot, until durable"),
    )
    for key, what in rows:
        off, on = (median(found[on][key]) for on in (False, True))
        section.rows.append([what, ms(off), ms(on), f"{on / off:.3f}"])
        section.numbers[key] = {"off": off, "on": on}
    section.notes.append(
        f"Medians of {len(found[True]['step'])} steps of {RECIPES[setting.size]['fp32'].name} each, in turns of "
        f"{setting.of(8, 6, 2)}; on, the compactor also has the snapshots of the turn before to do ({contents} "
        "contents in all). The trainer, one thread, has a processor of its own, the compactor another."
    )
    on, off = section.numbers["step"]["on"], section.numbers["step"]["off"]
    if len(CORES) > 1:
        section.goal("a step with compaction on over off", on / off, "<=", 1.02)
    return section


def shared(setting: Setting) -> Section:
    """Measure steps that use all processors, beside the compactor."""
    path = setting.folder / "shared.pool"
    torch.set_num_threads(len(CORES))
    store = lmcstore.open(path)
    before = store.info()["compacted_contents"]
    found = train_beside(setting, store)
    contents = store.info()["compacted_contents"] - before
    store.close()
    path.unlink()
    torch.set_num_threads(1)
    section = Section("A step on all processors with compaction off and on")
    section.head = ["what", "off, ms", "on, ms", "on over off"]
    for key, what in (("step", "step: forward, backward, optimizer"), ("snapshot", "snapshot, until durable")):
        off, on = (median(found[on][key]) for on in (False, True))
        section.rows.append([what, ms(off), ms(on), f"{on / off:.3f}"])
        section.numbers[key] = {"off": off, "on": on}
    section.notes.append(
        f"Medians of {len(found[True]['step'])} steps of {RECIPES[setting.size]['fp32'].name} each, in turns of "
        f"{setting.of(8, 6, 2)}, by {len(CORES)} threads on as many processors, which the compactor shares "
        f"({contents} contents compacted)."
    )
    on, off = section.numbers["step"]["on"], section.numbers["step"]["off"]
    section.goal("a step on all processors with compaction on over off", on / off, "<=", 1.05)
    return section


# ---- Slow media -----------------------------------------------------------------------------------------------------


def timed_write(file: int, state: dict[str, dict[str, torch.Tensor]]) -> float:
    """Overwrite a file and sync; return seconds."""
    begin = time.perf_counter()
    offset = 0
    for part in state.values():
        for tensor in part.values():
            offset += os.pwrite(file, tensor.reshape(-1).view(torch.uint8).numpy(), offset)
    os.fdatasync(file)
    return time.perf_counter() - begin


SLOW_WARM = 6
"""Turns after which captures go where others have been."""
SLOW_RATE = 250_000_000
"""Bytes a second: of a disk over a network, or a small one in a cloud."""


def touch_memory() -> None:
    """Touch all free memory, as unused pages of a virtual machine are slow."""
    size = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE // 8 * 7
    with contextlib.suppress(OSError), mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for offset in range(0, size, mmap.PAGESIZE):
            memory[offset] = 1


def slow_of(setting: Setting, kind: str, folder: Path, where: str, goal: bool) -> Section:
    """Capture consecutive states, beside plain writing."""
    rounds = SLOW_WARM + setting.of(16, 8, 2)
    wide = Wide(setting, kind, setting.of(256 * MIB, 64 * MIB, 2 * MIB))
    path = folder / "slow.pool"
    ways = ("raw", "auto", "link")
    times: dict[str, list[float]] = {way: [] for way in ("write", *ways)}
    shares: dict[str, list[float]] = {way: [] for way in ways}
    store = lmcstore.open(path, background=False)
    for way in ways:
        store[way].snapshot(wide.state, step=0)
        store[way].policy = f"write={way} keep_raw=2"
    file = os.open(folder / "slow.file", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for turn in range(rounds):
        wide.go_on()
        order = [*times][turn % 4 :] + [*times][: turn % 4]
        for way in order:
            os.sync()
            if way == "write":
                seconds = timed_write(file, wide.state)
            else:
                begin = time.perf_counter()
                snapshot = store[way].snapshot(wide.state, step=turn + 1)
                seconds = time.perf_counter() - begin
                if turn >= SLOW_WARM:
                    shares[way].append(snapshot.stored_bytes / wide.bytes)
            if turn >= SLOW_WARM:
                times[way].append(seconds)
        for way in ways:
            if turn >= 2:  # reusable space, which compaction would return
                store[way].remove(turn - 1)
    os.close(file)
    store.close()
    path.unlink()
    (folder / "slow.file").unlink()
    plain = median(times["write"])
    section = Section(f"Captures that write deltas, {kind}, {where}")
    section.head = ["way", "written, % of raw", "until durable, ms", "GB/s", "over write + fdatasync"]
    section.rows.append(["write + fdatasync", "100.0", ms(plain), gbs(wide.bytes, plain), "1.00"])
    for way in ways:
        ratios = [a / b for a, b in zip(times[way], times["write"], strict=True)]
        t = median(times[way])
        section.rows.append(
            [f"write={way}", f"{100 * mean(shares[way]):.1f}", ms(t), gbs(wide.bytes, t), f"{median(ratios):.2f}"]
        )
        section.numbers[f"{kind}, {where}, {way}"] = {"durable_s": t, "over_write": median(ratios)}
    section.numbers[f"{kind}, {where}, write"] = {"durable_s": plain}
    section.notes.append(
        f"States of {RECIPES[setting.size][kind].name}, one step apart, so often side by side that they have "
        f"{wide.bytes / MIB:.0f} MiB; each way in turn, {len(times['write'])} times; medians, the last column of "
        "ratios within a turn. Plain writing goes over a file that is there, captures into a pool with the space."
    )
    if goal:
        ratio = section.numbers[f"{kind}, {where}, auto"]["over_write"]
        section.goal(f"{kind}, {where}: write=auto until durable, over write + fdatasync", ratio, "<=", 0.8)
    return section


def slow(setting: Setting) -> list[Section]:
    """Measure captures of deltas, also on a slow ext4."""
    if setting.size != "smoke":
        touch_memory()
    sections = [slow_of(setting, kind, setting.folder, "this disk", False) for kind in KINDS]
    where = f"a disk of {SLOW_RATE / 1e6:.0f} MB/s"
    try:
        with slow_disk(setting.folder, 10 * GIB, SLOW_RATE) as folder:
            sections += [slow_of(setting, kind, folder, where, True) for kind in KINDS]
    except OSError as error:
        setting.notes.append(f"Nothing was measured on {where}: {error}.")
    return sections
