# SPDX-License-Identifier: BSD-3-Clause
"""Parts 1 and 2: train, kill, resume, and end like an uninterrupted run."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from report import TOP, TRAIN, WITH_TORCH, expect, failed, heading, say, short

DONE = re.compile(r"^step +(\d+) \.\.\. loss [\d.]+, ([\d.]+) s")
DURABLE = re.compile(r"gpt@(\d+) durable")


def _trainer(arguments: list[str]) -> subprocess.Popen:
    """Start a trainer, with its output as lines."""
    return subprocess.Popen(
        [sys.executable, str(TRAIN), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _follow(trainer: subprocess.Popen) -> list[str]:
    """Show and return the lines."""
    lines = []
    for line in trainer.stdout:
        say(f"  {line.rstrip()}")
        lines.append(line)
    if trainer.wait() != 0:
        failed(f"the trainer ended with {trainer.returncode}")
    return lines


def _follow_and_kill(trainer: subprocess.Popen, after_step: int) -> tuple[int, int]:
    """Show lines until a step is done, and kill half a step later.

    Return the killed step, and how many were reported durable: its output decides both.
    """
    quickest, durable = float("inf"), 0
    for line in trainer.stdout:
        say(f"  {line.rstrip()}")
        done = DONE.match(line)
        quickest = min(quickest, float(done[2])) if done else quickest
        durable = max([durable, *map(int, DURABLE.findall(line))])
        if done and int(done[1]) == after_step:
            time.sleep(quickest / 2)
            os.kill(trainer.pid, signal.SIGKILL)
            rest = trainer.stdout.read().strip()
            say(f"  {rest} <- SIGKILL")
            trainer.wait()
            return after_step + 1 + rest.count("loss"), max([durable, *map(int, DURABLE.findall(rest))])
    failed("the trainer ended before it could be killed")


def train_and_crash(text: Path, pool: Path, work: Path, steps: int) -> dict[int, str]:
    """Show parts 1 and 2; return the uninterrupted run's digests."""
    kill_after = steps * 5 // 8 - 1
    straight, resumed = work / "uninterrupted.json", work / "resumed.json"

    heading(1, "A training run, and a snapshot after every step")
    parameters = "10.8 M" if WITH_TORCH else "2.3 M"
    say(f"First the run to compare with: uninterrupted, saving nothing ({parameters} parameters, AdamW, fp32).")
    _follow(_trainer(["--text", str(text), "--steps", str(steps), "--digests", str(straight)]))
    say()
    say("Now the same again with a pool. After each step model, optimizer, scheduler and RNG are snapshot; a line is")
    say("printed when the snapshot is durable. The trainer: " + short(TRAIN))
    arguments = ["--text", str(text), "--steps", str(steps), "--pool", str(pool), "--digests", str(resumed)]
    killed_in, durable = _follow_and_kill(_trainer(arguments), kill_after)

    heading(2, f"The trainer was killed in the middle of step {killed_in}: resume")
    say("The same command again, in a new process; nothing was cleaned up:")
    lines = _follow(_trainer(arguments))
    found = re.match(r"resuming at step (\d+) from ", lines[0])
    expect(
        # More, if durable and not yet printed.
        found is not None and durable <= int(found[1]) <= killed_in + 1,
        f"the pool opens, has the last step that was reported durable, {durable - 1}, and training goes on",
    )
    expected = {int(k): v for k, v in json.loads(straight.read_text()).items()}
    got = {int(k): v for k, v in json.loads(resumed.read_text()).items()}
    expect(
        got[steps - 1] == expected[steps - 1],
        f"the final weights, optimizer, scheduler and RNG are bit-identical to the uninterrupted run's "
        f"(SHA-256 {got[steps - 1][:16]})",
    )
    say("A kill ends the process alone: the kernel still writes its caches. A snapshot survives a power cut as well,")
    say(f"because it is synced before it is reported durable ({short(TOP / 'store/README.md')}).")
    return expected
