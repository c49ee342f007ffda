# SPDX-License-Identifier: BSD-3-Clause
"""The processor time, memory and written bytes of a process and its children, and functions run in new processes."""

import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

SAMPLE_S = 0.02
TICKS = os.sysconf("SC_CLK_TCK")
BEGIN, END, KILL = "begin", "end", "kill"


def _numbers(file: Path) -> dict[str, int]:
    """Read lines of `name: number`."""
    pairs = (line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return {name: int(rest.split()[0]) for name, rest in pairs if rest.split() and rest.split()[0].isdigit()}


def children_of(pid: int) -> list[int]:
    """Return all descendants that live."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(word) for word in file.read_text().split()]
        except OSError:
            continue
        for child in direct:
            found += [child, *children_of(child)]
    return found


def memory_bytes(pid: int) -> int:
    """Return the memory of a process and its children that is not of files. Shared memory counts once."""
    private, shared = 0, 0
    for each in (pid, *children_of(pid)):
        try:
            numbers = _numbers(Path(f"/proc/{each}/status"))
        except OSError:  # it has ended
            continue
        private += numbers.get("RssAnon", 0)
        shared = max(shared, numbers.get("RssShmem", 0))
    return (private + shared) * 1024


def _child_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def device_bytes(folder: Path) -> int:
    """Return the bytes that all wrote to the disk of a folder."""
    number = os.stat(folder).st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        words = line.split()
        if (int(words[0]), int(words[1])) == (os.major(number), os.minor(number)):
            return int(words[9]) * 512
    return 0


@dataclass
class Usage:
    """Of this process and its children so far, and of a folder's disk."""

    processor_s: float
    written_bytes: int  # into files, counted when a page becomes dirty
    device_bytes: int

    @classmethod
    def now(cls, folder: Path) -> Self:
        """Measure."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = time.process_time() + ended.ru_utime + ended.ru_stime
        written = 0
        children = children_of(os.getpid())
        for child in children:
            seconds += _child_seconds(child)
        for pid in (os.getpid(), *children):
            written += _numbers(Path(f"/proc/{pid}/io"))["write_bytes"]
        return cls(seconds, written, device_bytes(folder))

    def __sub__(self, before: "Usage") -> "Usage":
        return Usage(
            self.processor_s - before.processor_s,
            self.written_bytes - before.written_bytes,
            self.device_bytes - before.device_bytes,
        )


def _answer(pipe: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send(("result", work(*arguments, pipe.send)))
    except BaseException as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))
        raise


def in_new_process(preload: str, work: Callable[..., Any], *arguments: Any, limit_s: float = 1800) -> tuple[Any, int]:
    """Call `work(*arguments, mark)` in a new process that has imported a module.

    Returns its result and its most memory between mark(BEGIN) and mark(END). mark(KILL): it is killed at once, and has
    no result. RuntimeError: it failed.
    """
    here_too = [str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(":".join(here_too).split(":")))  # for the preload
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    here, there = context.Pipe()
    process = context.Process(target=_answer, args=(there, work, arguments))
    process.start()
    there.close()
    deadline, most, samples = time.monotonic() + limit_s, 0, False
    try:
        while time.monotonic() < deadline:
            if here.poll(SAMPLE_S):
                answer = here.recv()
                if answer in (BEGIN, END):
                    samples = answer == BEGIN
                elif answer == KILL:
                    process.kill()
                    return None, most
                elif answer[0] == "error":
                    raise RuntimeError(answer[1])
                else:
                    return answer[1], most
            if samples:
                most = max(most, memory_bytes(process.pid or 0))
        raise RuntimeError(f"no answer after {limit_s:.0f} s")
    except EOFError as error:
        process.join()
        raise RuntimeError(f"the process ended with {process.exitcode}") from error
    finally:
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()


def use_memory(folder: Path, size: int) -> None:
    """Write a file of `size` bytes and remove it: a virtual machine may get memory from its host at the first use."""
    with (folder / "used").open("wb") as file:
        for _ in range(0, size, 1 << 20):
            file.write(bytes(1 << 20))
    (folder / "used").unlink()
