# SPDX-License-Identifier: BSD-3-Clause
"""Thousands of snapshots leak nothing: a short tests/stress/leaks.py, and a leak that it must find."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from optional import HAS_TORCH

STRESS = Path(__file__).resolve().parents[1] / "stress"
CODE = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
import leaks
kept = []
def leak(step):
    kept.append([bytes(100_000), [[] for _ in range(20)]])
    if step % 50 == 0:
        kept.append(os.open("/dev/null", os.O_RDONLY))
leaking = leak if sys.argv.pop(1) == "leaking" else None
sys.exit(leaks.run(leaks.parser().parse_args(), leaking))
"""


pytestmark = pytest.mark.skipif(not HAS_TORCH, reason="needs PyTorch")


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="lmcs-leaks-") as name:
        yield name


def grown(folder: str, out: Path, how: str, snapshots: int) -> set[str]:
    options = ["--snapshots", str(snapshots), "--keep", "100", "--samples", "60", "--in", folder, "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(STRESS), how, *options],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert " 0 damages" in done.stdout and "11 quantities" in done.stdout, done.stdout + done.stderr
    found = set(re.findall(r"^(\w+) .*GROWS$", done.stdout, re.M))
    assert done.returncode == len(found), done.stdout + done.stderr
    return found - {"snapshot_us"}  # on a busy machine


def test_two_thousand_snapshots(folder: str, tmp_path: Path) -> None:
    assert grown(folder, tmp_path, "clean", 2000) == set()


def test_leaks_are_found(folder: str, tmp_path: Path) -> None:
    assert grown(folder, tmp_path, "leaking", 600) >= {"heap_kib", "objects", "fds"}
