# SPDX-License-Identifier: BSD-3-Clause
"""Runs the code of a page: its Python blocks in one program, and then what its consoles show."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
EXAMPLES = TOP / "python" / "examples"


def blocks(text: str) -> list[str]:
    """Return a page's Python blocks."""
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def type_page(name: str) -> None:
    path = TOP / "python" / "trainers" / name
    text = path.read_text()
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(text):
        exec(compile(block, str(path), "exec"), names)
    failed, tried = doctest.testfile(str(path), module_relative=False, globs=names)
    assert tried > 0
    assert failed == 0
