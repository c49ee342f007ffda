# SPDX-License-Identifier: BSD-3-Clause
"""The tutorial's and docstrings' examples."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from optional import skip_without_torch

TUTORIAL = Path(__file__).resolve().parent.parent.parent / "python/TUTORIAL.md"


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = TUTORIAL.read_text()
    skip_without_torch(text)
    # Other lines are emptied, so that line numbers stay right.
    kept = re.split(r"^```(?:pycon)?$", text, flags=re.MULTILINE)
    assert len(kept) % 2 == 1 and len(kept) > 10
    typed = "".join(part if number % 2 else re.sub("[^\n]+", "", part) for number, part in enumerate(kept))
    test = doctest.DocTestParser().get_doctest(typed, {}, TUTORIAL.name, str(TUTORIAL), 0)
    said: list[str] = []
    failed = doctest.DocTestRunner().run(test, out=said.append).failed
    assert not failed, "".join(said)
