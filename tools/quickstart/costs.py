# SPDX-License-Identifier: BSD-3-Clause
"""Part 5: the cost of a snapshot, beside other ways to save."""

import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from model import CONTEXT, GPT
from peers import FILE_SAVERS, Saved, save_lmcstore, start_dcp, stop_dcp
from report import heading, mb, say, table
from states import Randomness, disk_bytes

WAITING = "lmc-store snapshot()"
NOT_WAITING = "lmc-store snapshot(wait=False)"
MOST = 1.3
"""The loop with a snapshot after each step takes at most so many times the loop without."""
WARM = 4  # steps, with snapshots: the first writes a copy, the second links, by which the store chooses the form


def _remove(path: Path) -> None:
    if path.is_dir():
        for file in path.rglob("*"):
            file.unlink()
        path.rmdir()
    else:
        path.unlink()


def _new_training() -> tuple[GPT, torch.optim.Optimizer, Any]:
    torch.manual_seed(7)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rng = Randomness()

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": rng.state_dict()}

    return model, optimizer, state


def _train(model: GPT, optimizer: torch.optim.Optimizer) -> None:
    """Take a step."""
    data = torch.randint(256, (8, CONTEXT + 1))
    optimizer.zero_grad()
    model.loss(data[:, :-1], data[:, 1:]).backward()
    optimizer.step()


def _show_loops(work: Path, rounds: int, steps: int) -> None:
    """Train with and without snapshots, in turns; a turn with snapshots ends when all are durable."""
    import lmcstore

    model, optimizer, state_of = _new_training()
    seconds = {False: 0.0, True: 0.0}
    compacting = 0.0
    with lmcstore.open(str(work / "loop.pool")) as store:
        shelf = store["gpt"]

        def turn(saves: bool, count: int) -> None:
            newest = None
            for _ in range(count):
                _train(model, optimizer)
                if saves:
                    newest = shelf.snapshot(state_of(), wait=False)
            if newest is not None:
                newest.wait()

        turn(True, WARM)
        turn(False, 1)
        for number in range(2 * rounds):
            saves = number % 4 in (1, 2)
            store.compact()  # nothing is left for the next turn
            begin = time.perf_counter()
            turn(saves, steps)
            seconds[saves] += time.perf_counter() - begin
            begin = time.perf_counter()
            store.compact()
            compacting += time.perf_counter() - begin if saves else 0.0
    done, base = seconds[True], seconds[False]
    say(f"{rounds} times {steps} steps, with a snapshot after each (wait=False) until all are durable:")
    say(f"with snapshots {done:.2f} s, without {base:.2f} s: {done / base:.2f} times (goal: at most {MOST})")
    say(f"Until all but the newest 4 snapshots are compacted, too: {(done + compacting) / base:.2f} times.")
    say()


def _measure(work: Path, rounds: int) -> dict[str, list[Saved]]:
    """Train a step, then save in rotating order, from a quiet disk."""
    import lmcstore

    model, optimizer, state_of = _new_training()
    names = [WAITING, NOT_WAITING, *FILE_SAVERS]
    saved: dict[str, list[Saved]] = {name: [] for name in names}
    # The newest 4 stay raw: nothing is compacted while others are timed.
    with lmcstore.open(str(work / "costs.pool")) as store:
        for turn in range(rounds):
            _train(model, optimizer)
            state = state_of()
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
    _show_loops(work, rounds, 8)
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
