# SPDX-License-Identifier: BSD-3-Clause
"""Measures the cost of scrubs and parity in bytes and time. Run by tools/bench.sh parity."""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lmcstore
import numpy as np
from tables import Run, Section, run_suite

STEPS = 30
SIZES = ((1 << 20, 2), (1 << 18, 8), (1 << 16, 16), (1 << 14, 16), (1 << 8, 32))  # elements, tensors
POLICIES = ("parity=none", "parity=64+2", "parity=16+1", "parity=16+2", "parity=8+2")


@dataclass
class Setting:
    """Where and how much to measure."""

    folder: Path
    mib: int


def timed(call: Callable[[], object]) -> float:
    """Return seconds."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def read_raw(data: bytes, path: Path) -> float:
    """Return seconds to read as many cached bytes."""
    path.write_bytes(data)
    buffer = bytearray(1 << 20)

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    seconds = timed(read)
    path.unlink()
    return seconds


def parity(setting: Setting) -> Section:
    """Measure parity's bytes and time, and a scrub."""
    size = setting.mib << 20
    state = {f"w{i}": np.random.default_rng(i).standard_normal(size // 4 // 8, dtype=np.float32) for i in range(8)}
    baseline = read_raw(b"".join(array.tobytes() for array in state.values()), setting.folder / "raw")
    section = Section(f"Parity of {setting.mib} MiB in 8 tensors")
    section.head = ["policy", "parity, of the data", "made in, s", "scrub, s"]
    section.notes.append(f"read(2) of as much from a file in the page cache takes {baseline:.2f} s.")
    section.numbers["read_s"] = baseline
    for policy in POLICIES:
        with lmcstore.open(setting.folder / policy, background=False) as store:
            store["run"].snapshot(state)
            scrub = timed(store.scrub)
            store["run"].policy = policy
            made = max(timed(lambda store=store: store.scrub(repair=True)) - scrub, 0.0)  # type: ignore[misc]
            share = store.info()["parity_bytes"] / size
            scrub = timed(store.scrub)
        section.rows.append([policy, f"{share:.2%}", f"{made:.2f}", f"{scrub:.2f}"])
        section.numbers[policy] = {"share": share, "made_s": made, "scrub_s": scrub}
        os.unlink(setting.folder / policy)
    return section


def train(mib: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield the states of a run: fp32 tensors of a model, of which all elements change a little with each step."""
    rng = np.random.default_rng(1)
    count = max(1, mib // 32)
    shapes = [size for size, tensors in SIZES for _ in range(tensors * count)]
    state = {f"w{i}": rng.standard_normal(size, dtype=np.float32) * 0.02 for i, size in enumerate(shapes)}
    for _ in range(STEPS):
        yield state
        for array in state.values():
            array += rng.standard_normal(len(array), dtype=np.float32) * 2e-5


def history(setting: Setting) -> Section:
    """Measure the default, parity=bases, beside parity=none: bytes of a compacted history, the compactor's time."""
    mib = min(setting.mib, 32)
    section = Section(f"Parity of bases in a history of {STEPS} snapshots")
    section.head = ["policy", "used, MiB", "parity, MiB", "parity, of the rest", "compacted in, s of processor time"]
    policies = ("parity=none", "parity=bases")
    seconds: dict[str, list[float]] = {policy: [] for policy in policies}
    found: dict[str, tuple[float, float]] = {}
    for _ in range(3):
        for policy in policies:
            path = setting.folder / policy
            with lmcstore.open(path, "x", background=False) as store:
                store["run"].policy = policy
                for state in train(mib):
                    store["run"].snapshot(state)
                begun = time.process_time()
                store.compact()
                seconds[policy].append(time.process_time() - begun)
                info = store.info()
                found[policy] = (info["used_bytes"] / 2**20, info["parity_bytes"] / 2**20)
            path.unlink()
    for policy in policies:
        used, bytes_of_parity = found[policy]
        share, median = bytes_of_parity / (used - bytes_of_parity), statistics.median(seconds[policy])
        section.rows.append([policy, f"{used:.1f}", f"{bytes_of_parity:.1f}", f"{share:.2%}", f"{median:.2f}"])
        section.numbers[policy] = {"used_mib": used, "parity_mib": bytes_of_parity, "compact_s": median}
    ratio = statistics.median(b / a for a, b in zip(seconds[policies[0]], seconds[policies[1]], strict=True))
    section.notes.append(f"Time with parity over time without: {ratio:.3f}, the median of three turns.")
    section.numbers["ratio"] = ratio
    return section


def options(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    parser.add_argument("--mib", type=int, help="so many MiB of tensors (512; 128 with --quick)")


def setting_of(run: Run) -> Setting:
    """Make a folder."""
    return Setting(run.scratch(run.options.dir), run.options.mib or {"full": 512, "quick": 128, "smoke": 8}[run.size])


if __name__ == "__main__":
    run_suite("parity", __doc__, (parity, history), setting_of, options=options)
