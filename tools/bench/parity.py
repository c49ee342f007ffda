# SPDX-License-Identifier: BSD-3-Clause
"""Measures the cost of scrubs and parity: bytes, and time beside a read of the file. Run by tools/bench.sh parity."""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lmcstore
import numpy as np
from tables import Run, Section, run_suite

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


def options(parser: argparse.ArgumentParser) -> None:
    """Add options."""
    parser.add_argument("--mib", type=int, help="so many MiB of tensors (512; 128 with --quick)")


def setting_of(run: Run) -> Setting:
    """Make a folder."""
    return Setting(run.scratch(run.options.dir), run.options.mib or {"full": 512, "quick": 128, "smoke": 8}[run.size])


if __name__ == "__main__":
    run_suite("parity", __doc__, (parity,), setting_of, options=options)
