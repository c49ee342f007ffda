# SPDX-License-Identifier: BSD-3-Clause
"""The examples of the top README, of the tutorial, and of the page about torch.distributed.checkpoint."""

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


def test_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks of Python, one after the other. The last one reads a run of many ranks, as RUN.md does."""
    monkeypatch.chdir(tmp_path)
    text = (PYTHON.parent / "README.md").read_text()
    skip_without_torch(text)
    import lmcstore
    import torch

    loop, *blocks, _ = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    model = torch.nn.ModuleDict({"wte": torch.nn.Embedding(128, 8)})
    optimizer = torch.optim.AdamW(model.parameters())

    def train(step: int) -> float:
        loss = model["wte"](torch.tensor(step)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    names = {"torch": torch, "model": model, "optimizer": optimizer, "scheduler": scheduler}
    names |= {"train": train, "steps": 122}
    exec(loop, names)
    with lmcstore.open("run.pool", "r+") as store:
        store["run"].tag(100, "best")
    for block in blocks:
        if "lmcstore.open(" not in block:
            names["store"] = lmcstore.open("run.pool", "r+")
        exec(block.replace("{2 hours ago}", "{now}").replace("timeout=600", "timeout=0"), names)
        names["store"].close()
    with lmcstore.open("run.pool", "r") as store:
        assert store["run"].at(step=120).note == "lower rate" and store["run"].policy.count("write=link") == 1
        assert int(store["table"].live["epoch"]) == 8


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
