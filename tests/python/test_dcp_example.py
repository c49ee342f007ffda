# SPDX-License-Identifier: BSD-3-Clause
"""python/examples/dcp_fsdp.py, killed and started again, ends as without interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import lmcstore
from optional import torch

torch.Tensor  # noqa: B018 (skips without torch)

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "python/examples/dcp_fsdp.py"
_STEPS = 8


def _train(folder: Path, until: int | None = None) -> str:
    """Run the example on two ranks; kill both after a step; return the last line."""
    words = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [*words, EXAMPLE, folder, "--steps", str(_STEPS)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        line = ""
        assert process.stdout is not None
        for line in process.stdout:
            if until is not None and line.startswith(f"step {until}:"):
                os.killpg(process.pid, signal.SIGKILL)
                _kill_ranks(folder)
                return line
    assert process.returncode == 0
    return line


def _kill_ranks(folder: Path) -> None:
    """Kill the ranks, which torchrun has put into sessions of their own."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
            if bytes(EXAMPLE) in command and bytes(folder) in command:
                os.kill(int(place.name), signal.SIGKILL)
        except OSError:
            continue


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    whole = _train(tmp_path / "whole")
    assert whole.startswith(f"after step {_STEPS}: ")
    _train(tmp_path / "killed", 5)
    with lmcstore.open(tmp_path / "killed", mode="r") as run:
        newest = run["run"].latest
        assert newest is not None and newest.step is not None and newest.step >= 4
    assert _train(tmp_path / "killed") == whole
    with lmcstore.open(tmp_path / "killed", mode="r") as run:
        assert [snapshot.step for snapshot in run["run"]] == list(range(1, _STEPS + 1))
