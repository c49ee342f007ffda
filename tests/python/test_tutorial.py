# SPDX-License-Identifier: BSD-3-Clause
"""The examples of the tutorial and of the page about torch.distributed.checkpoint."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
from pathlib import Path

import pytest
from command import BIN
from optional import skip_without_torch

PYTHON = Path(__file__).resolve().parent.parent.parent / "python"


def _type(page: Path) -> None:
    """Type the examples of a page in the current folder."""
    # Other lines are emptied, so that line numbers stay right.
    text = re.sub(
        r"^```(?:python|sh)\n.*?^```$",
        lambda block: re.sub("[^\n]+", "", block[0]),
        page.read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
    kept = re.split(r"^```(?:pycon)?$", text, flags=re.MULTILINE)
    assert len(kept) % 2 == 1 and len(kept) > 4
    typed = "".join(part if number % 2 else re.sub("[^\n]+", "", part) for number, part in enumerate(kept))
    test = doctest.DocTestParser().get_doctest(typed, {}, page.name, str(page), 0)
    said: list[str] = []
    failed = doctest.DocTestRunner().run(test, out=said.append).failed
    assert not failed, "".join(said)


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    skip_without_torch((PYTHON / "TUTORIAL.md").read_text())
    _type(PYTHON / "TUTORIAL.md")


def _run(rank: int, world: int, folder: Path, code: str) -> None:
    os.chdir(folder)
    exec(code, {})


def test_the_page_about_dcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (PYTHON / "trainers" / "DCP.md").read_text()
    skip_without_torch(text)
    import dcp_ranks

    save, save_lazily, load = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    dcp_ranks.run(4, _run, tmp_path, save)
    dcp_ranks.run(2, _run, tmp_path, save_lazily)
    dcp_ranks.run(3, _run, tmp_path, load)
    _type(PYTHON / "trainers" / "DCP.md")
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    if os.access(BIN, os.X_OK):
        path = f"{os.path.dirname(BIN)}:{os.environ['PATH']}"
        subprocess.run(["bash", "-ec", commands], check=True, capture_output=True, env={**os.environ, "PATH": path})


def test_the_page_about_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (PYTHON / "trainers" / "RUN.md").read_text()
    skip_without_torch(text)
    import dcp_ranks

    train, resume = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    dcp_ranks.run(2, _run, tmp_path, train)
    dcp_ranks.run(2, _run, tmp_path, resume)
    _type(PYTHON / "trainers" / "RUN.md")
