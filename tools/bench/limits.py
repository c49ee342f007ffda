# SPDX-License-Identifier: BSD-3-Clause
"""Little memory, and slow disks.

A memory cgroup or a limit on data; a loop device of limited speed.
"""

import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


@dataclass
class Outcome:
    """A program's end; `peak_bytes` includes cached pages."""

    status: int
    output: str
    errors: str
    peak_bytes: int
    kept_to: str  # "cgroup", "rlimit", or "" without a limit
    cpu_seconds: float  # of processor time, less disturbed than the clock

    @property
    def out_of_memory(self) -> bool:
        """Return whether memory was lacking."""
        return self.status == -9 or "MemoryError" in self.errors or "annot allocate memory" in self.errors


class Group:
    """A program's memory cgroup. OSError: unavailable."""

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
        """Set a value."""
        (self.folder / name).write_text(str(value))

    def peak_bytes(self) -> int:
        """Return peak memory."""
        return int((self.folder / self.peak).read_text())

    def close(self) -> None:
        """Remove the empty group."""
        self.folder.rmdir()


def _run(words: Sequence[object], before: Callable[[], None] | None) -> Outcome:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen([str(word) for word in words], stdout=output, stderr=errors, preexec_fn=before)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        cpu_seconds = usage.ru_utime + usage.ru_stime
        return Outcome(child.returncode, output.read(), errors.read(), usage.ru_maxrss * 1024, "", cpu_seconds)


def run_limited(words: Sequence[object], limit_bytes: int | None) -> Outcome:
    """Run in so much memory, cached pages included; None: unlimited."""
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


# ---- Disks ----------------------------------------------------------------------------------------------------------


def _tool(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{words[0]}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


@contextmanager
def slow_disk(folder: Path, size: int, bytes_per_second: int) -> Iterator[Path]:
    """Yield a folder on an ext4 of limited write speed.

    Its file is in `folder`, on a loop device without page cache. OSError: needs root, loop devices, and version 1 of
    the block I/O cgroup, whose limits include later writeback.
    """
    limit = GROUPS / "blkio" / "blkio.throttle.write_bps_device"
    if not os.access(limit, os.W_OK):
        raise OSError(f"{limit} can't be written")
    with ExitStack() as undo:
        top = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="slow-disk-", dir=folder)))
        image, mounted = top / "image", top / "mounted"
        mounted.mkdir()
        with image.open("wb") as file:
            file.truncate(size)
        _tool("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)  # writes nothing later
        device = _tool("losetup", "-f", "--show", "--direct-io=on", image)
        undo.callback(_tool, "losetup", "-d", device)
        number = os.stat(device).st_rdev
        name = f"{os.major(number)}:{os.minor(number)}"
        _tool("mount", device, mounted)
        undo.callback(_tool, "umount", mounted)
        limit.write_text(f"{name} {bytes_per_second}")
        undo.callback(limit.write_text, f"{name} 0")
        yield mounted
