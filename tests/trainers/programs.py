# SPDX-License-Identifier: BSD-3-Clause
"""Runs a program that prints a line "step ...", its result."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def run(*command: Any, **options: Any) -> str:
    """Return what it prints."""
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def result(output: str) -> str:
    (line,) = (line for line in output.splitlines() if line.startswith("step "))
    return line
