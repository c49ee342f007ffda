# SPDX-License-Identifier: BSD-3-Clause
"""Runs that write links after each step, each in a process of its own, and restores of what they leave."""

import time
from pathlib import Path
from typing import Any

from train_run import Loop, Mark, Stepper, bytes_of, sync
from train_ways import POOL, SHELF, saver_of
from usage import KILL, Usage


def write_steps(loop: Loop, mark: Mark) -> dict[str, Any]:
    """Save after each step, into a new pool that stays; count all bytes."""
    stepper = Stepper(loop)
    sync(loop.folder)
    before = Usage.now(loop.folder)
    saver = saver_of(loop.way, loop.folder, stepper.training.optimizer)
    raw_bytes = 0
    for number in range(loop.steps):
        stepper.step()
        state = stepper.training.state()
        wait = saver.save(state, number)
        raw_bytes += bytes_of(state)
    if wait is not None:
        wait()
    saver.finish()
    saver.close()
    sync(loop.folder)
    usage = Usage.now(loop.folder) - before
    return {"raw_bytes": raw_bytes, "written_bytes": usage.written_bytes, "device_bytes": usage.device_bytes}


def write_until_killed(loop: Loop, number: int, mark: Mark) -> None:
    """Save after each step; ask for the kill when a step is durable, and go on."""
    stepper = Stepper(loop)
    saver = saver_of(loop.way, loop.folder, stepper.training.optimizer)
    for step in range(number + loop.steps):
        stepper.step()
        wait = saver.save(stepper.training.state(), step)
        if step == number:
            if wait is not None:
                wait()
            mark(KILL)
    raise RuntimeError("the writer was not killed")


def load(folder: Path, mode: str, which: str, mark: Mark) -> dict[str, Any]:
    """Open the pool and load a snapshot into new memory."""
    import lmcstore

    begin = time.perf_counter()
    with lmcstore.open(folder / POOL, mode) as store:
        snapshot = store[SHELF][which]
        opened = time.perf_counter()
        state = snapshot.state_dict()
        loaded = time.perf_counter()
        line = snapshot.storage()["longest_line"]
        return {
            "step": snapshot.step,
            "line": line,
            "open_s": opened - begin,
            "load_s": loaded - opened,
            "raw_bytes": bytes_of(state),
        }


def lines_of(folder: Path, mark: Mark) -> dict[int, int]:
    """Return the links behind each snapshot, by its number."""
    import lmcstore

    with lmcstore.open(folder / POOL, "r") as store:
        return {snapshot.number: snapshot.storage()["longest_line"] for snapshot in store[SHELF]}
