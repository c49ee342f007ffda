# SPDX-License-Identifier: BSD-3-Clause
"""Runs an example's program, and kills it after a line of its output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[2]
EXAMPLES = TOP / "python" / "examples"
PAGES = TOP / "python" / "trainers"


def start(program: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLES / program), *map(str, arguments)]
    env = os.environ | variables
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)


def output(program: str, *arguments: object, **variables: str) -> list[str]:
    """Run to the end; return the lines."""
    process = start(program, *arguments, **variables)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return text.splitlines()


def kill_after(line: str, program: str, *arguments: object, **variables: str) -> list[str]:
    """Kill the program and its children, once it prints a line that begins so; return the lines before."""
    process = start(program, *arguments, **variables)
    assert process.stdout is not None
    lines = []
    for text in process.stdout:
        lines.append(text.rstrip("\n"))
        if text.startswith(line):
            os.killpg(process.pid, signal.SIGKILL)
            break
    process.stdout.close()
    assert process.wait(60) == -signal.SIGKILL, lines
    return lines


def run_page(name: str) -> dict[str, Any]:
    """Run the blocks of Python of a page, one after the other; return the names that they define."""
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate((PAGES / name).read_text().split("```python\n")[1:]):
        exec(compile(block.split("```")[0], f"{name}, block {number}", "exec"), names)
    return names
