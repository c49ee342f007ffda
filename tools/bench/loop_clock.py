# SPDX-License-Identifier: BSD-3-Clause
"""One loop of a trainer, in a process of the trainer's environment: its options, its clock and its answer."""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peers import fsync_all


@dataclass(frozen=True)
class Loop:
    """A loop that saves after every step."""

    way: str
    folder: Path
    steps: int
    small: bool

    @property
    def pool(self) -> Path:
        """The pool of ways that have one."""
        return self.folder / "run.pool"


@dataclass
class Clock:
    """Seconds of a loop."""

    begun: float = 0.0
    ended: float = 0.0
    count: int = 0  # of parameters

    def begin(self, count: int) -> None:
        """Begin with the loop, of a model of so many parameters."""
        self.count = count
        self.begun = time.perf_counter()

    def end(self) -> None:
        """End with the last step and its save."""
        self.ended = time.perf_counter()


def answer(description: str | None, train: Callable[[Loop, Clock], None]) -> None:
    """Train as the command line says; print a line of JSON: seconds of the loop, and until all is synced."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("way")
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--small", action="store_true")
    loop, clock = Loop(**vars(parser.parse_args())), Clock()
    train(loop, clock)
    fsync_all(loop.folder)
    whole_s = time.perf_counter() - clock.begun
    found = {"loop_s": clock.ended - clock.begun, "whole_s": whole_s, "state_bytes": 3 * 4 * clock.count}
    print("\n" + json.dumps(found))
