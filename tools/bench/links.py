# SPDX-License-Identifier: BSD-3-Clause
"""Measures links: a GPT is trained in several ways, and each step's optimizer state is coded from the one before.

Run by tools/bench.sh links. `ways` has the codec alone, beside others on the same steps; `gpu` tells which steps that a
GPU took are explained; `restore` reads any step of a large state back from a pool; `run` and `kinds` keep every step of
a training run, everything counted.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from codec_data import Source
from codec_run import Peers
from debian import debian_tool, zstd
from links_others import unlinked
from links_pool import kinds, restore, run
from links_train import DECAY, TOP, Setting, Training, Way
from tables import Run, Section, figures, progress, run_suite

CHAIN, SHORT_CHAIN = 32, 8  # links
PEERS = ("pcodec", "z4ai", "ZipNN")


@dataclass(frozen=True)
class Goal:
    """Goals; 0: none."""

    ratio: float = 0.0
    into: float = 0.0  # of memcpy
    out: float = 0.0
    chain_gbs: float = 0.0  # per link and core


SHORT = Goal(8.6, 0.5, 0.6)
CHAINED = Goal(8.6, 0.5, 0.6, 12.0)
SUMS = Goal(6.0, 0.2)
FULL = Goal(3.6, 0.25, 0.4)

WAYS: dict[Way, Goal] = {
    Way("bf16 gradients"): CHAINED,
    Way("bf16 gradients, fused", fused=True): SHORT,
    Way("bf16 gradients, clipped", clip=0.05): SHORT,
    Way("sums of 4", micro_batches=4): SUMS,
    Way("sums of 4, clipped", micro_batches=4, clip=0.05): SUMS,
    Way("fp32 gradients", bf16=False): FULL,
    Way("SGD, bf16 gradients", optimizer="sgd", rate=0.02): Goal(),
    Way("SGD, fp32 gradients", optimizer="sgd", rate=0.02, bf16=False): Goal(),
}


def first_of(setting: Setting) -> int:
    """Return the steps before the first state."""
    return setting.of(30, 12, 4)


def train(way: Way, setting: Setting, links: int) -> list[Path]:
    """Write all matrices' states, a file per array, in bench_links' order."""
    training = Training(way, setting.of((6, 6, 384), (1, 6, 384), (1, 2, 64)), setting.folder)
    files: list[Path] = []
    first = first_of(setting)
    for step in range(first + links):
        training.step()
        if step < first - 1:
            continue
        for name in [*way.moments, "weight"]:
            files.append(setting.folder / f"{len(files)}.f32")
            training.matrices(name).numpy().tofile(files[-1])
    return files


def measure(way: Way, first: int, links: int, files: list[Path]) -> dict[str, Any]:
    """Run bench_links."""
    rates = [str(way.rate), str(DECAY), *map(str, way.betas), "1e-8"]
    if way.optimizer == "sgd":
        rates = [str(way.rate), "0", "0.9", "0", "0"]
    kind = "sgd" if way.optimizer == "sgd" else "adam"
    command = [str(TOP / "build/release/bin/bench_links"), kind, str(links), str(first + 1), *rates]
    found = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
    if found.returncode != 0:
        raise RuntimeError(found.stderr.strip() or f"bench_links ended with {found.returncode}")
    numbers: dict[str, Any] = json.loads(found.stdout)
    return numbers


# ---- Others on the same step ----------------------------------------------------------------------------------------


@dataclass
class Coded:
    """A way to encode a state."""

    size: float = 0.0
    in_s: float = 0.0
    out_s: float = 0.0


def by_peer(peers: Peers, peer: str, new: list[Path], old: list[Path]) -> Coded:
    """Encode against the previous arrays."""
    coded = Coded()
    for data, base in zip(new, old, strict=True):
        answer = peers.size(peer, Source(data.name, "state", "f32", data, base))
        coded.size += answer["bytes"]
        coded.in_s += answer["in_s"]
        coded.out_s += answer["out_s"]
    return coded


def patched(folder: Path, tool: Path, new: list[Path], old: list[Path]) -> Coded:
    """Encode as a patch of the previous file."""
    files = [folder / "old", folder / "new", folder / "patch"]
    for file, arrays in zip(files, (old, new), strict=False):
        file.write_bytes(b"".join(array.read_bytes() for array in arrays))
    begin = time.perf_counter()
    files[2].write_bytes(zstd(["-3", "--long=31", f"--patch-from={files[0]}", str(files[1])], None, tool))
    encoded = time.perf_counter()
    zstd(["-d", "--long=31", f"--patch-from={files[0]}", str(files[2])], None, tool)
    coded = Coded(files[2].stat().st_size, encoded - begin, time.perf_counter() - encoded)
    for file in files:
        file.unlink()
    return coded


def others(setting: Setting, way: Way, files: list[Path]) -> dict[str, Coded]:
    """Measure available others."""
    old, new = files[: way.arrays], files[way.arrays : 2 * way.arrays]
    found: dict[str, Coded] = {}
    try:
        found["zstd --patch-from"] = patched(setting.folder, debian_tool("zstd", setting.kept), new, old)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        setting.notes.append(f"zstd, {way.name}: {str(error).splitlines()[0][:120]}")
    for peer in PEERS if setting.peers else ():
        try:
            assert setting.peers
            found[peer] = by_peer(setting.peers, peer, new, old)
        except RuntimeError as error:
            setting.notes.append(f"{peer}, {way.name}: {error}")
    return found


# ---- The tables -----------------------------------------------------------------------------------------------------


def add_row(section: Section, way: Way, goal: Goal, found: dict[str, Any]) -> None:
    """Write results and goals."""
    ratio, memcpy = 32 * way.arrays / found["bits"], found["memcpy_gbs"]
    into, out, chain = (found[key] / memcpy for key in ("in_gbs", "out_gbs", "chain_gbs"))
    section.rows.append(
        [
            way.name,
            f"{found['bits']:.2f}",
            f"{ratio:.2f}x",
            f"{found['bits_of_deltas']:.2f}",
            " ".join(f"{share:.4f}" for share in found["exact"]),
            f"{memcpy:.1f}",
            f"{into:.2f}",
            f"{out:.2f}",
            f"{chain:.2f} ({found['chain_gbs']:.1f} GB/s, {found['links']})",
        ]
    )
    section.numbers[way.name] = found | {"ratio": ratio, "in": into, "out": out, "chain": chain}
    for what, measured, bound in (
        ("raw bytes over coded ones", ratio, goal.ratio),
        ("in, of memcpy", into, goal.into),
        ("out, of memcpy", out, goal.out),
        (f"GB/s of a link in a chain of {found['links']}", found["chain_gbs"], goal.chain_gbs),
    ):
        if bound:
            section.goal(f"{way.name}: {what}", measured, ">=", bound)


def add_blind(section: Section, way: Way, found: dict[str, Any]) -> None:
    """Write results without knowledge of the optimizer."""
    share = 100 * found["sampled"] / found["elements"]
    more = found["bits_without_hints"] / found["bits"]
    section.rows.append(
        [
            way.name,
            f"{found['bits']:.3f}",
            f"{found['bits_without_hints']:.3f}",
            f"{share:.3f} %",
            f"{1e3 * found['fit_s']:.1f}",
            f"{1e3 * found['blind_fit_s']:.1f}",
        ]
    )
    if way.optimizer == "adamw":
        section.goal(f"{way.name}: size with constants unknown over that with them", more, "<=", 1.01)
        section.goal(f"{way.name}: looked at to find them, % of the data", share, "<=", 1)


def add_others(section: Section, way: Way, found: dict[str, Any], coded: dict[str, Coded]) -> None:
    """Write the others' results."""
    raw, memcpy = 4 * found["elements"] * way.arrays, found["memcpy_gbs"]

    def add(first: str, name: str, bits: float, into: float, out: float) -> None:
        times = 32 * way.arrays / bits
        section.rows.append([first, name, f"{bits:.2f}", f"{times:.2f}x", *(f"{s / memcpy:.3f}" for s in (into, out))])
        section.numbers[f"{way.name}, {name}"] = {"bits": bits, "in_gbs": into, "out_gbs": out}

    add(way.name, "link", found["bits"], found["in_gbs"], found["out_gbs"])
    add("", "deltas of this codec", found["bits_of_deltas"], found["delta_in_gbs"], found["delta_out_gbs"])
    for name, other in coded.items():
        add("", name, 8 * other.size / found["elements"], raw / other.in_s / 1e9, raw / other.out_s / 1e9)


def ways(setting: Setting) -> list[Section]:
    """Measure each way to train."""
    ours = Section("Links from one step's state to the next one's")
    ours.head = ["trained with", "bits", "of the state", "deltas: bits", "exact", "memcpy, GB/s", "in, of memcpy"]
    ours.head += ["out, of memcpy", "a link of a chain"]
    blind = Section("The same links where nothing is known of the optimizer")
    blind.head = ["trained with", "bits", "without hints", "looked at", "ms to find constants", "without hints"]
    theirs = Section("The same steps, coded by others")
    theirs.head = ["trained with", "coded by", "bits", "of the state", "in, of memcpy", "out, of memcpy"]
    for way, goal in WAYS.items():
        progress(f"    {way.name} ...")
        links = setting.of(CHAIN if goal.chain_gbs or goal is FULL else SHORT_CHAIN, 4, 1)
        links = setting.steps or links
        files = train(way, setting, links)
        found = measure(way, first_of(setting), links, files)
        add_row(ours, way, goal, found)
        add_blind(blind, way, found)
        add_others(theirs, way, found, others(setting, way, files))
        for file in files:
            file.unlink()
    ours.notes.append(
        "Bits an element of all arrays together, the mean over all links; exact: shares of a sample of each array that "
        "arithmetic explained. Speeds are one thread's own, the best of some rounds; a chain's with the number of its "
        "links."
    )
    blind.notes.append("Constants are looked for once for each step, in a sample; the longest search.")
    theirs.notes.append(
        "The first step of each. zstd is a process that reads and writes files; each other codec's speed is of a "
        "single pass by the clock. ZipNN has the XOR of the two, or their difference where that is smaller."
    )
    return [ours, blind, theirs, figures("Links: figures", [ours, blind])]


DEVICE = "cuda"
ON_GPU = (
    Way("AdamW, foreach", foreach=True, device=DEVICE),
    Way("AdamW, fused", fused=True, device=DEVICE),
    Way("AdamW, foreach, capturable", foreach=True, capturable=True, device=DEVICE),
    Way("AdamW, fused, capturable", fused=True, capturable=True, device=DEVICE),
    Way("AdamW, neither", foreach=False, device=DEVICE),
    Way("SGD, foreach", optimizer="sgd", rate=0.02, foreach=True, device=DEVICE),
    Way("SGD, fused", optimizer="sgd", rate=0.02, fused=True, device=DEVICE),
)


def gpu(setting: Setting) -> list[Section]:
    """Try links of a GPU's steps."""
    if not torch.cuda.is_available():
        setting.notes.append("gpu: skipped, torch sees no CUDA device here")
        return []
    section = Section(f"Links of steps that a GPU took ({torch.cuda.get_device_name()})")
    section.head = ["trained with", "bits", "of the state", "deltas: bits", "exact"]
    for way in ON_GPU:
        progress(f"    {way.name} ...")
        files = train(way, setting, setting.of(4, 2, 1))
        found = measure(way, first_of(setting), setting.of(4, 2, 1), files)
        exact = " ".join(f"{share:.4f}" for share in found["exact"])
        ratio = 32 * way.arrays / found["bits"]
        section.rows.append(
            [way.name, f"{found['bits']:.2f}", f"{ratio:.2f}x", f"{found['bits_of_deltas']:.2f}", exact]
        )
        section.numbers[way.name] = found
        for file in files:
            file.unlink()
    section.notes.append("Exact: shares of a sample of each array that arithmetic explained; else links are not made.")
    return [section]


SECTIONS: tuple[Callable[[Setting], Section | list[Section]], ...] = (ways, gpu, restore, run, kinds, unlinked)


def options(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    parser.add_argument("--steps", type=int, help=f"links of every chain, at most 64 ({CHAIN} or {SHORT_CHAIN})")
    parser.add_argument("--no-peers", action="store_true", help="without the other codecs, which a full run installs")


def setting_of(run: Run) -> Setting:
    """Prepare a folder and the peers."""
    torch.set_num_threads(1)
    home = run.options.dir.resolve()
    setting = Setting(run.scratch(home), home, run.size, run.options.steps, None)
    if not (run.options.no_peers or run.options.smoke) and "ways" in (run.options.only or ["ways"]):
        peers = Peers(home / "codec-venv", install=run.size == "full")
        setting.peers = peers if peers.here else None
        setting.notes += peers.skipped if peers.here else ["other codecs: none are installed (a full run does)"]
    return setting


if __name__ == "__main__":
    run_suite("links", __doc__, SECTIONS, setting_of, options=options)
