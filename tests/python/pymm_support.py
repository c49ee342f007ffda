# SPDX-License-Identifier: BSD-3-Clause
"""Folders for shelves, and killed processes, for the tests of pymm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pymm
import pytest
from optional import skip_without_torch
from pymm.memoryresource import find_names


@pytest.fixture
def folder() -> Iterator[str]:
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lmcs-test-", dir=base) as made:
        yield made


@pytest.fixture
def s(folder: str) -> pymm.shelf:
    """An empty shelf of 8 MB; pytest keeps it open."""
    return new(folder)


def new(folder: str) -> pymm.shelf:
    return pymm.shelf("test", size_mb=8, pmem_path=folder)


def run(folder: str, code: str, killed: bool = False) -> str:
    """Run a program with ``folder`` and pymm, np, os; `killed`: it ends by SIGKILL."""
    skip_without_torch(code)
    head = f"import os, signal, sys\nimport numpy as np\nimport pymm\nfolder = {folder!r}\n"
    tail = "\nos.kill(os.getpid(), signal.SIGKILL)\n" if killed else ""
    done = subprocess.run(
        [sys.executable, "-c", head + code + tail], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
    return done.stdout


def again(folder: str, name: str = "test", **more: Any) -> pymm.shelf:
    assert find_names(name, folder, None) is None, "the shelf was not closed"
    return pymm.shelf(name, pmem_path=folder, **more)
