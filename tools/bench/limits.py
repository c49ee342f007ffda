# SPDX-License-Identifier: BSD-3-Clause
"""Runs a program with little memory: in a memory cgroup where one can be made, else by a limit on its data."""

import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


@dataclass
class Outcome:
    """How a program ended: `peak_bytes` is what it held at most, with what the kernel kept of its files in memory."""

    status: int
    output: str
    errors: str
    peak_bytes: int
    kept_to: str  # what kept it to its limit: "cgroup" or "rlimit"; "" without a limit

    @property
    def out_of_memory(self) -> bool:
        """Tell whether it ended for want of memory."""
        return self.status == -9 or "MemoryError" in self.errors or "annot allocate memory" in self.errors


class Group:
    """A memory cgroup for one program. Making it raises OSError where it can't be made."""

    def __init__(self, limit_bytes: int):
        version_one = (GROUPS / "memory").is_dir()
        self.folder = Path(tempfile.mkdtemp(prefix="lmcs-bench-", dir=GROUPS / "memory" if version_one else GROUPS))
        self.peak = "memory.max_usage_in_bytes" if version_one else "memory.peak"
        try:
            self.write("memory.limit_in_bytes" if version_one else "memory.max", limit_bytes)
            if not version_one:
                self.write("memory.swap.max", 0)
        except OSError:
            self.close()
            raise

    def write(self, name: str, value: int) -> None:
        """Set a value of the group."""
        (self.folder / name).write_text(str(value))

    def peak_bytes(self) -> int:
        """Give the most memory that it held."""
        return int((self.folder / self.peak).read_text())

    def close(self) -> None:
        """Remove the group, which nothing may be in."""
        self.folder.rmdir()


def _run(words: Sequence[object], before: Callable[[], None] | None) -> Outcome:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen([str(word) for word in words], stdout=output, stderr=errors, preexec_fn=before)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        return Outcome(child.returncode, output.read(), errors.read(), usage.ru_maxrss * 1024, "")


def run_limited(words: Sequence[object], limit_bytes: int | None) -> Outcome:
    """Run a program that may hold so much memory, its files' pages included; None: as much as there is."""
    if limit_bytes is None:
        return _run(words, None)
    try:
        group = Group(limit_bytes)
    except OSError:
        limit = (limit_bytes, limit_bytes)
        outcome = _run(words, lambda: resource.setrlimit(resource.RLIMIT_DATA, limit))
        outcome.kept_to = "rlimit"
        return outcome
    try:
        outcome = _run(words, lambda: group.write("cgroup.procs", os.getpid()))
        outcome.peak_bytes, outcome.kept_to = group.peak_bytes(), "cgroup"
    finally:
        group.close()
    return outcome
