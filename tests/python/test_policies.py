# SPDX-License-Identifier: BSD-3-Clause
"""Policies: warnings about metrics that snapshots do not have, and what a background leaves."""

from __future__ import annotations

import json
import os
import subprocess
import time
import warnings
from pathlib import Path

import lmcstore
import numpy as np
import pytest

IN_MEMORY = True
TOP = Path(__file__).resolve().parents[2]
BIN = os.environ.get("LMC_STORE_BIN", str(TOP / "build/release/bin/lmc-store"))
TYPO = (
    'the rule best:los keeps all snapshots, because 0 of 20 have the metric "los"; did you mean "loss"? Metrics: "loss"'
)
SOME = 'the rule best:val ignores 16 of 20 snapshots, which do not have the metric "val"'


def fill(shelf: lmcstore.Shelf, every: int = 1, name: str = "loss") -> None:
    for step in range(20):
        metrics = {name: float(20 - step)} if step % every == 0 else None
        shelf.snapshot({"w": np.array([step])}, step=step, metrics=metrics)


def test_setting_warns_of_an_absent_metric(shelf: lmcstore.Shelf, store: lmcstore.Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shelf.policy = "keep=best:los:3"
        assert store.info()["warnings"] == {}
        fill(shelf)
        shelf.policy = "keep=best:loss:3,last:2"
    with pytest.warns(UserWarning, match="did you mean") as caught:
        shelf.policy = "keep=best:los:3"
    assert str(caught[0].message) == f"shelf 'run': {TYPO}"
    assert caught[0].filename == __file__
    assert store.info()["warnings"] == {"run": TYPO}
    with pytest.warns(UserWarning, match="did you mean"):
        plan = shelf.prune(dry_run=True)
    assert (plan.numbers, plan.kept, plan.warning) == ([], 20, TYPO)
    with pytest.warns(UserWarning, match="did you mean"):
        assert shelf.prune("keep=last:1,best:los").numbers == []
    assert len(shelf) == 20


def test_setting_warns_of_a_metric_that_some_have(shelf: lmcstore.Shelf, store: lmcstore.Store) -> None:
    fill(shelf, 5, "val")
    with pytest.warns(UserWarning, match="ignores 16 of 20"):
        shelf.policy = "keep=best:val:2,last:3"
    assert store.info()["warnings"] == {"run": SOME}
    with pytest.warns(UserWarning, match="ignores 16 of 20"):
        plan = shelf.prune()
    assert (plan.kept, plan.warning) == (5, SOME)
    assert [snapshot.step for snapshot in shelf] == [10, 15, 17, 18, 19]


def test_the_background_deletes_nothing_by_an_absent_metric(pool_path: str) -> None:
    with lmcstore.open(pool_path, size="64MiB") as store:
        shelf = store["run"]
        fill(shelf)
        with pytest.warns(UserWarning):
            shelf.policy = "keep=best:los:3"
        time.sleep(2.5)
        assert len(shelf) == 20


def test_a_full_pool_shows_the_warning(pool_path: str) -> None:
    with lmcstore.open(pool_path, size="24MiB") as store:
        shelf = store["run"]
        shelf.policy = "keep=best:los:3"
        random = np.random.default_rng(0)
        with pytest.raises(lmcstore.FullError, match=r'0 of [0-9]+ have the metric "los"; did you mean "loss"[?]'):
            for step in range(100):
                shelf.snapshot({"w": random.bytes(1 << 20), "v": random.random(1 << 17)}, metrics={"loss": float(step)})


@pytest.mark.skipif(not os.access(BIN, os.X_OK), reason=f"{BIN} is not built")
def test_the_command_shows_the_warning(pool_path: str) -> None:
    def run(*arguments: str | Path) -> str:
        return subprocess.run([BIN, *arguments], check=True, capture_output=True, text=True).stdout

    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        fill(store["run"])
    for arguments in (["keep=best:los:3", "--dry-run"], ["keep=best:los:3"], [], ["--prune"]):
        assert f"\nwarning: {TYPO}\n" in run("policy", pool_path, "run", *arguments)
        assert json.loads(run("policy", pool_path, "run", *arguments, "--json"))["warning"] == TYPO
    assert f"\nwarning      run: {TYPO}\n" in run("info", pool_path)
    assert json.loads(run("info", pool_path, "--json"))["warnings"] == [{"shelf": "run", "warning": TYPO}]
    assert "warning" not in run("policy", pool_path, "run", "keep=best:loss:3")
    assert json.loads(run("info", pool_path, "--json"))["warnings"] == []
