# SPDX-License-Identifier: BSD-3-Clause
"""Part 3: older steps become links."""

import json
import time
from pathlib import Path

from report import TOP, command, expect, heading, mb, say, table
from states import disk_bytes, read_all, state_digest

TOOL = TOP / "build/release/bin/lmc-store"
CLASSES = ("weights", "m", "v")


def _class_of(name: str) -> str | None:
    """Tell parameters from AdamW's moments."""
    if name.endswith("exp_avg"):
        return "m"
    if name.endswith("exp_avg_sq"):
        return "v"
    return "weights" if name.startswith("model.") else None


def _sizes(pool: Path, address: str) -> dict[str, list[int]]:
    """Sum raw and stored bytes by class; a tensor with two names counts once."""
    listing = json.loads(command([TOOL, "ls", pool, address, "--json"], quiet=True))
    sums = {name: [0, 0] for name in CLASSES}
    seen = set()
    for tensor in listing["snapshot"]["entries"]:
        kind = _class_of(tensor["name"])
        if kind and tensor["content"] not in seen:
            seen.add(tensor["content"])
            sums[kind][0] += tensor["raw_bytes"]
            sums[kind][1] += tensor["stored_bytes"]
    return sums


def show_history(pool: Path, expected: dict[int, str]) -> None:
    """Compact, read every step, compare it, and show its size."""
    import lmcstore

    heading(3, "The history: older steps become links")
    before = disk_bytes(pool)
    say("Lossless links lead from each step's state to the next by its gradient. A snapshot writes them where that is")
    say("durable sooner than a copy; of copies, all but the newest 4 become links, or deltas, in a background thread")
    say("while the pool is open for writing. The trainer is gone; this command compacts the rest and gives the file's")
    say("free space back:")
    begin = time.perf_counter()
    command([TOOL, "compact", pool])
    say(f"{time.perf_counter() - begin:.1f} s; the pool takes {mb(disk_bytes(pool))} MB of disk, before {mb(before)}")
    say()

    rows, same, raw_sum = [], True, 0
    with lmcstore.open(str(pool), mode="r") as store:
        for snap in store["gpt"]:
            sizes = _sizes(pool, f"gpt@{snap.number}")
            begin = time.perf_counter()
            state = snap.state_dict()
            opened = time.perf_counter() - begin
            begin = time.perf_counter()
            read_all(state)
            touched = opened + time.perf_counter() - begin
            identical = state_digest(state) == expected[snap.step]
            same, raw_sum = same and identical, raw_sum + snap.raw_bytes
            ratios = [f"{sizes[name][0] / max(1, sizes[name][1]):.2f}" for name in CLASSES]
            what = [f"gpt@{snap.number}", str(snap.step), mb(snap.raw_bytes), mb(snap.stored_bytes)]
            times = [f"{opened * 1e3:.1f}", f"{touched * 1e3:.0f}"]
            rows.append([*what, *ratios, *times, "yes" if identical else "NO"])
            del state
    head = ["snapshot", "step", "raw MB", "stored MB", "weights", "m", "v", "read ms", "every byte ms", "bit-identical"]
    table(head, rows)
    say("weights, m, v: how many times smaller than raw each class is stored (m and v are AdamW's two moments). read:")
    say("until state_dict() returns; raw steps are mapped, and their checksums compared.")
    say("every byte: until each byte is read.")
    say()
    expect(same, "every step, compacted or not, is bit-identical to the same step of the uninterrupted run")
    say(f"{len(rows)} steps of {mb(raw_sum / len(rows))} MB: {mb(raw_sum)} MB raw, {mb(disk_bytes(pool))} MB on disk")
