#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Takes a hundred thousand snapshots from Python and checks that no resource grows.

    leaks.py [--snapshots 100000] [--keep 1000] [--samples 200] [--in FOLDER] [--out build/leaks] [--seed N]

Repeats snapshots, reads, loads, live values and second opens; removes old snapshots (--keep 0: none). A sample is a
line of OUT/leaks.csv. Lists quantities that grew by soak.py's rule; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import numpy
import torch

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))

import soak  # noqa: E402  (beside this file)

GROWTH = {
    "heap_kib": soak.Limit(0.01, 1024),
    "anon_kib": soak.Limit(0.25, 65536),  # a thread's first encode grows an arena, whose free pages stay
    **dict.fromkeys(("fds", "maps", "threads"), soak.COUNT),
    "objects": soak.Limit(0.01, 500),
    "blocks": soak.Limit(0.01, 2000),  # of Python's allocator
    **dict.fromkeys(("used_kib", "live_kib", "file_kib"), soak.SPACE),
    "snapshot_us": soak.TIME,
}
ALL_KEPT = {name: limit for name, limit in GROWTH.items() if not name.startswith(("used", "live", "file"))}


class Mallinfo(ctypes.Structure):
    """Glibc's struct mallinfo2, in bytes."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def heap_kib() -> int:
    """Return the bytes in use by malloc; resident memory also has its free pages."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd) // 1024


class Load:
    """The repeated work."""

    def __init__(self, folder: Path, keep: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.path = str(folder / "leaks.pool")
        self.keep = keep
        self.store = lmcstore.open(self.path, size="16GiB")
        self.shelf = self.store["run"]
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 8))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.model(torch.randn(4, 32)).sum().backward()
        self.held: deque[Any] = deque(maxlen=16)
        self.took: list[float] = []

    def snapshot(self, step: int) -> None:
        """Train and snapshot."""
        self.optimizer.step()
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state()[:64],
            "array": numpy.full(40, step),
            "history": [float(step), "text", (step, None)],
        }
        begun = time.perf_counter()
        snap = self.shelf.snapshot(state, step=step, wait=step % 4 != 3, metrics={"loss": 1 / (step + 1)})
        self.took.append(time.perf_counter() - begun)
        self.held.append(snap)

    def work(self, step: int) -> None:
        """Work between two snapshots."""
        if step % 5 == 0:
            self.held.append(self.shelf.latest.state_dict())
        if step % 7 == 0:
            part = self.shelf.latest["model"]
            self.held.append((part, part["0.weight"][:4], self.shelf.latest.rows("model.0.weight", 1, 3)))
        if step % 10 == 0:
            self.shelf.latest.load_into(model=self.model, optimizer=self.optimizer)
            self.shelf.live["step"] = step
        if step % 25 == 0:
            with contextlib.suppress(lmcstore.UnsupportedError):
                self.shelf.snapshot({"model": self.model.state_dict(), "bad": object()})
            with contextlib.suppress(lmcstore.NotFoundError):
                _ = self.shelf.latest["nothing"]
        if step % 50 == 0:
            self.shelf.tag(self.shelf.latest, f"t{step % 3}")
            str(self.shelf.latest.diff(self.shelf["latest~1"]))
        if step % 500 == 0:
            with lmcstore.open(self.path, "r") as store:
                self.held.append(store["run"].latest.state_dict("optimizer"))
        if self.keep and step % max(1, self.keep // 2) == 0:
            self.shelf.prune(f"keep=last:{self.keep}")

    def sample(self, step: int) -> dict[str, float]:
        """Return the resources."""
        gc.collect()
        self.store.compact()  # the background may lag behind on a busy machine
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        info = self.store.info()
        took, self.took = self.took, []
        return {
            "snapshots": step,
            "rss_kib": int(status["VmRSS"].split()[0]),
            "heap_kib": heap_kib(),
            "anon_kib": int(status["RssAnon"].split()[0]),
            "threads": int(status["Threads"]),
            "fds": len(os.listdir("/proc/self/fd")) - 1,
            "maps": Path("/proc/self/maps").read_text().count("\n"),
            "objects": len(gc.get_objects()),
            "blocks": sys.getallocatedblocks(),
            "used_kib": info["used_bytes"] // 1024,
            "live_kib": info["live_bytes"] // 1024,
            "file_kib": os.stat(self.path).st_blocks // 2,
            "kept": info["snapshot_count"],
            "snapshot_us": 1e6 * statistics.median(took) if took else 0.0,
        }


def run(arguments: argparse.Namespace, leak: Callable[[int], object] | None = None) -> int:
    """Run; return the number of growing quantities."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "leaks.csv"
    every = max(1, arguments.snapshots // arguments.samples)
    begun = shown = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lmcs-leaks-", dir=arguments.folder) as folder, path.open("w") as file:
        load = Load(Path(folder), arguments.keep, arguments.seed)
        for step in range(1, arguments.snapshots + 1):
            load.snapshot(step)
            load.work(step)
            if leak is not None:
                leak(step)
            if step % every == 0 or step == 1:
                sample = {"seconds": round(time.monotonic() - begun, 1), **load.sample(step)}
                file.write(",".join(map(str, sample if step == 1 else sample.values())) + "\n")
            if time.monotonic() > shown + 20:
                shown = time.monotonic()
                print(f"{step:,} snapshots in {shown - begun:.0f} s", flush=True)
        load.shelf.latest.wait()
        kept, damages = load.store.info()["snapshot_count"], load.store.verify()["damages"]
        load.store.close()
    print(f"{arguments.snapshots:,} snapshots in {time.monotonic() - begun:.0f} s, {kept:,} kept, {damages} damages")
    return damages + soak.evaluate(soak.load(path), GROWTH if arguments.keep else ALL_KEPT)


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(description="Many snapshots from Python, and whether anything grows.")
    made.add_argument("--snapshots", type=int, default=100_000)
    made.add_argument("--keep", type=int, default=1000, help="how many stay; 0: all")
    made.add_argument("--samples", type=int, default=200, help="how often it is looked at what is taken")
    made.add_argument("--in", dest="folder", metavar="FOLDER", help="where the pool is made (/tmp)")
    made.add_argument("--out", type=Path, default=TOP / "build" / "leaks")
    made.add_argument("--seed", type=int, default=1)
    return made


if __name__ == "__main__":
    sys.exit(1 if run(parser().parse_args()) else 0)
