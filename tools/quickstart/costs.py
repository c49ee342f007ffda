# SPDX-License-Identifier: BSD-3-Clause
"""Part 5: the cost of a snapshot, beside other ways to save."""

import os
import statistics
from pathlib import Path

import torch
from model import CONTEXT, GPT
from peers import FILE_SAVERS, Saved, save_lmcstore, start_dcp, stop_dcp
from report import heading, mb, say, table
from states import Randomness, disk_bytes

WAITING = "lmc-store snapshot()"
NOT_WAITING = "lmc-store snapshot(wait=False)"


def _remove(path: Path) -> None:
    if path.is_dir():
        for file in path.rglob("*"):
            file.unlink()
        path.rmdir()
    else:
        path.unlink()


def _measure(work: Path, rounds: int) -> dict[str, list[Saved]]:
    """Train a step, then save in rotating order, from a quiet disk."""
    import lmcstore

    torch.manual_seed(7)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = Randomness()
    names = [WAITING, NOT_WAITING, *FILE_SAVERS]
    saved: dict[str, list[Saved]] = {name: [] for name in names}
    # The newest 4 stay raw: nothing is compacted while others are timed.
    with lmcstore.open(str(work / "costs.pool")) as store:
        for turn in range(rounds):
            data = torch.randint(256, (8, CONTEXT + 1))
            optimizer.zero_grad()
            model.loss(data[:, :-1], data[:, 1:]).backward()
            optimizer.step()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": rng.state_dict()}
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                os.sync()
                if name in FILE_SAVERS:
                    path = work / "peer"
                    saved[name].append(FILE_SAVERS[name](state, path))
                    _remove(path)
                else:
                    shelf = store["a" if name == WAITING else "b"]
                    saved[name].append(save_lmcstore(shelf, state, turn, name == WAITING))
            say(f"  round {turn + 1} of {rounds} done")
    return saved


def show_costs(pool: Path, work: Path, rounds: int) -> None:
    """Show part 5."""
    import lmcstore

    heading(5, "What it costs, beside other ways to save the same state")
    say(f"{rounds} rounds, each way in turn; medians. Files are synced, as a snapshot is; the disk rests in between.")
    start_dcp()
    saved = _measure(work, rounds)
    stop_dcp()
    with lmcstore.open(str(pool), mode="r") as store:
        steps = len(store["gpt"])
        raw = store["gpt"].latest.raw_bytes
    rows = []
    for name, times in saved.items():
        blocked = statistics.median(time.blocked_s for time in times[1:])
        durable = statistics.median(time.durable_s for time in times[1:])
        if name in FILE_SAVERS:
            size = mb(statistics.median(time.disk_bytes for time in times))
        else:
            size = f"{mb(raw)} -> {mb(disk_bytes(pool) / steps)}"
        rows.append([name, f"{blocked * 1e3:.0f}", f"{durable * 1e3:.0f}", size])
    say()
    table(["way to save", "trainer blocked, ms", "durable after, ms", "MB a step"], rows)
    say("MB a step of lmc-store: as captured -> the pool of parts 1 to 4, by disk blocks, over its steps. The first")
    say("round is not counted, because it imports modules. torch.save returns before its file is on disk. A file of")
    say("safetensors has tensors alone, each once.")
