# SPDX-License-Identifier: BSD-3-Clause
"""Size against time to restore: the base of each delta, and the frequency of keyframes.

A topology maps a content's distance to its keyframe to the distance of its base. The codec measures a delta's size and
decoding time by distance on a real run; the store makes some topologies, to check the prediction.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lmcstore
import torch
from history_run import RECIPES, described, flat_state, history
from history_setting import Setting, bench_store, mean
from tables import Section, progress

JUMPS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
MOST_GROUP = 32
DEFAULT = "jumps, chain 3, 4 raw"
POLICIES = {  # possible in the store
    "keyframes only": "chain=0",
    "next, chain 3": "chain=3 keep_raw=1",
    "next, chain 7": "chain=7 keep_raw=1",
    "one base for 4": "chain=1 keep_raw=4",
    DEFAULT: "",
    "jumps, chain 3, 8 raw": "chain=3 keep_raw=8",
    "jumps, chain 7, 4 raw": "chain=7 keep_raw=4",
}


@dataclass
class Curves:
    """Bytes and seconds of frames, by jump; 0: alone."""

    raw: float
    size: dict[int, float]
    seconds: dict[int, float]

    def at(self, curve: dict[int, float], jump: int) -> float:
        """Interpolate by the jump's logarithm."""
        if jump in curve:
            return curve[jump]
        low = max(at for at in curve if 0 < at < jump)
        high = min((at for at in curve if at > jump), default=low)
        if high == low:
            return curve[low]
        share = math.log(jump / low) / math.log(high / low)
        return curve[low] + share * (curve[high] - curve[low])


@dataclass(frozen=True)
class Topology:
    """jumps[i] is the jump of the content i + 1 before its keyframe."""

    name: str
    family: str
    jumps: tuple[int, ...]

    def chain_of(self, distance: int) -> list[int]:
        """List jumps down to the keyframe."""
        path = []
        while distance > 0:
            path.append(self.jumps[distance - 1])
            distance -= self.jumps[distance - 1]
        return path

    @property
    def chain(self) -> int:
        """Return the longest chain."""
        return max((len(self.chain_of(i + 1)) for i in range(len(self.jumps))), default=0)

    def size(self, curves: Curves) -> float:
        """Return the mean bytes of a step."""
        sizes = [curves.size[0], *(min(curves.at(curves.size, jump), curves.size[0]) for jump in self.jumps)]
        return sum(sizes) / len(sizes)

    def restores(self, curves: Curves) -> list[float]:
        """Return each content's seconds."""
        paths = [self.chain_of(i) for i in range(len(self.jumps) + 1)]
        return [curves.seconds[0] + sum(curves.at(curves.seconds, jump) for jump in path) for path in paths]


# ---- Topologies -----------------------------------------------------------------------------------------------------


def best_jumps(chain: int, raw: int, curves: Curves) -> tuple[int, ...]:
    """Find the smallest step for a longest chain and so many raw bases."""

    @cache
    def best(d: int, n: int) -> tuple[float, tuple[int, ...]]:
        """Lay n contents before a base, at most d deltas from it: bytes, jumps (nearest first)."""
        if n == 0:
            return 0, ()
        if d == 0:
            return math.inf, ()
        found: tuple[float, tuple[int, ...]] = (math.inf, ())
        for k in range(1, min(raw, n) + 1):  # the farthest directly on the base
            near, far = best(d, k - 1), best(d - 1, n - k)
            size = curves.at(curves.size, k) + near[0] + far[0]
            if size < found[0]:
                found = (size, (*near[1], k, *far[1]))
        return found

    groups = [best(chain, n) for n in range(MOST_GROUP)]
    sizes = [(curves.size[0] + size) / (n + 1) for n, (size, _) in enumerate(groups)]
    return groups[sizes.index(min(sizes))][1]


def topologies(curves: Curves) -> list[Topology]:
    """List the topologies."""
    found = [Topology("keyframes only", "next", ())]
    found += [Topology(f"next, chain {n}", "next", (1,) * n) for n in (1, 2, 3, 5, 7, 8, 15, 31)]
    found += [Topology(f"one base for {n}", "one base", tuple(range(1, n + 1))) for n in (2, 4, 8, 16, 31)]
    for n in (4, 8, 16, 32):
        found.append(Topology(f"skip list of {n}", "skip list", tuple(i & -i for i in range(1, n))))
    for raw in (2, 4, 8):
        for chain in (1, 2, 3, 4, 5, 7):
            if (chain, raw) != (1, 4):
                jumps = best_jumps(chain, raw, curves)
                found.append(Topology(f"jumps, chain {chain}, {raw} raw", f"jumps, {raw} raw", jumps))
    return found


# ---- Measuring ------------------------------------------------------------------------------------------------------


def decode_seconds(frames: dict[str, bytes], bases: dict[str, torch.Tensor] | None, room: dict[str, Any]) -> float:
    """Decode frames; seconds of this thread."""
    begin = time.thread_time()
    for name, frame in frames.items():
        lmcstore.codec.decompress(frame, base=bases[name] if bases else None, out=room[name])
    return time.thread_time() - begin


def measure_curves(setting: Setting, shelf: lmcstore.shelf.Shelf, steps: int) -> Curves:
    """Encode against later states; means over places."""
    most = setting.of(32, 32, 8)
    jumps = [jump for jump in JUMPS if jump <= most]
    count = setting.of(3, 2, 1)
    places = [steps // 4 + i * (steps - 1 - most - steps // 4) // max(1, count - 1) for i in range(count)]
    sizes: dict[int, list[float]] = {jump: [] for jump in (0, *jumps)}
    seconds: dict[int, list[float]] = {jump: [] for jump in (0, *jumps)}
    raw = 0.0
    for place in places:
        new = flat_state(shelf, place)
        room = {name: torch.empty_like(tensor) for name, tensor in new.items()}
        raw = sum(tensor.nbytes for tensor in new.values())
        for jump in (0, *jumps):
            bases = flat_state(shelf, place + jump) if jump else None
            frames = {n: lmcstore.codec.compress(t, base=bases[n] if bases else None) for n, t in new.items()}
            sizes[jump].append(sum(map(len, frames.values())))
            times = [decode_seconds(frames, bases, room) for _ in range(setting.of(7, 5, 3))]
            seconds[jump].append(min(times))
        progress(f"    curves at step {place}")
    return Curves(raw, {j: mean(v) for j, v in sizes.items()}, {j: mean(v) for j, v in seconds.items()})


def made_by_store(setting: Setting, shelf: lmcstore.shelf.Shelf, steps: int) -> dict[str, dict[str, float]]:
    """Make histories by policies; share of raw, mean and worst deltas to restore."""
    count = setting.of(45, 30, 14)
    stores = {name: lmcstore.open(setting.folder / f"{i}.pool") for i, name in enumerate(POLICIES)}
    for step in range(steps - count, steps):
        state = flat_state(shelf, step)
        for name, store in stores.items():
            store.pause()
            store["gpt"].snapshot(state, step=step)
            if step == steps - count:
                store["gpt"].policy = f"{POLICIES[name]} links=off"
            if step % 8 == 0:
                store.compact()
    found = {}
    for name, store in stores.items():
        store.compact()
        store.close()
        path = Path(store.path)
        t = bench_store("ages", path, 0, setting.of(5, 3, 1), 1)
        older = [v for v in t["versions"] if 2 * v["raw"] < v["raw_bytes"]]
        over = [v["read_s"] / t["delta_s"] for v in older]
        share = sum(v["stored_bytes"] for v in older) / sum(v["raw_bytes"] for v in older)
        found[name] = {"share": share, "mean": mean(over), "worst": max(over)}
        path.unlink()
        progress(f"    {name}: made by the store")
    return found


# ---- Showing --------------------------------------------------------------------------------------------------------


def plot(path: Path, points: Sequence[tuple[Topology, float, float]], title: str) -> None:
    """Draw size against the worst time."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "lmc-store"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5))
    for family in dict.fromkeys(topology.family for topology, _, _ in points):
        found = [(worst, share, topology) for topology, share, worst in points if topology.family == family]
        axes.plot([f[0] for f in found], [100 * f[1] for f in found], "o-", label=family, markersize=4, linewidth=1)
        for worst, share, topology in found:
            text = str(len(topology.jumps) + 1) if family in ("one base", "skip list") else str(topology.chain)
            axes.annotate(text, (worst, 100 * share), textcoords="offset points", xytext=(4, 4), fontsize=7)
    default = next(point for point in points if point[0].name == DEFAULT)
    axes.plot([default[2]], [100 * default[1]], "*", color="black", markersize=14, label="the default")
    axes.axvline(4, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlabel="longest restore, in times that one delta takes", ylabel="bytes a step, % of raw")
    axes.set_title(title, fontsize=9)
    axes.set_xticks([0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24], ["0.5", "1", "2", "3", "4", "6", "8", "12", "16", "24"])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def draw(setting: Setting, draw_into: Callable[[Path], None]) -> str:
    """Draw if possible; return the place."""
    path = setting.plot
    try:
        draw_into(path)
    except ImportError:
        return "No plot: matplotlib is not installed (tools/setup.sh --dev)."
    return f"The same as a plot: {path.name}."


def topology(setting: Setting) -> Section:
    """Compare topologies."""
    steps = RECIPES[setting.size]["fp32"].steps
    with history(setting, "fp32") as shelf:
        curves = measure_curves(setting, shelf, steps)
        stored = made_by_store(setting, shelf, steps)
    section = Section("Topologies: size against time to restore, fp32")
    section.head = ["base of a delta", "a keyframe in", "longest chain", "% of raw", "restore: mean", "longest"]
    section.head += ["by the store: % of raw", "mean", "longest"]
    delta = curves.seconds[1]
    points = []
    for one in topologies(curves):
        share = one.size(curves) / curves.raw
        restores = [seconds / delta for seconds in one.restores(curves)]
        points.append((one, share, max(restores)))
        cells = [f"{len(one.jumps) + 1}", f"{one.chain}", f"{100 * share:.2f}"]
        cells += [f"{mean(restores):.2f}", f"{max(restores):.2f}"]
        real = stored.get(one.name)
        cells += [f"{100 * real['share']:.2f}", f"{real['mean']:.2f}", f"{real['worst']:.2f}"] if real else [""] * 3
        name = f"**{one.name}** (the default)" if one.name == DEFAULT else one.name
        section.rows.append([name, *cells])
        section.numbers[one.name] = {"share": share, "mean": mean(restores), "worst": max(restores), "jumps": one.jumps}
    in_bound = [(share, one.name) for one, share, worst in points if worst <= 4]
    curve = ", ".join(f"{jump}: {100 * curves.size[jump] / curves.raw:.1f}" for jump in curves.size if jump)
    section.notes.append(
        f"{described(setting, 'fp32')[0].upper()}{described(setting, 'fp32')[1:]}. Times are in those that decoding "
        f"one delta of the state against its neighbour takes ({1e3 * delta:.1f} ms of one thread's processor); a "
        f"keyframe takes {curves.seconds[0] / delta:.2f}. "
        f"Size of a delta by its jump, in % of raw: {curve}; alone: {100 * curves.size[0] / curves.raw:.1f}. "
        '"Next": the base is the next content. "One base": the newest raw one, for so many in turn. "Skip list": at '
        'distance n from the keyframe, as far as the lowest bit of n that is set. "Jumps": the smallest there is for '
        "such a chain and bases no farther than what stays raw. The last columns: histories made by the store with "
        "that policy, versions behind the raw ones. Of those with no restore above 4, the smallest is "
        f"{min(in_bound)[1]} ({100 * min(in_bound)[0]:.2f} %)."
    )
    title = "Each number: the longest chain; of one base and skip lists, a keyframe in so many. Dashed: the bound of 4"
    section.notes.append(draw(setting, lambda path: plot(path, points, title)))
    if DEFAULT in stored:
        section.goal("longest restore of the default, in deltas", stored[DEFAULT]["worst"], "<=", 4)
    return section
