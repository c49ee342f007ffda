# SPDX-License-Identifier: BSD-3-Clause
"""Policies: warnings about metrics that snapshots do not have, and what a background leaves."""

from __future__ import annotations

import json
import re
import subprocess
import time
import warnings
from pathlib import Path

import lmcstore
import numpy as np
import pytest
from command import BIN, NEEDS_BIN

IN_MEMORY = True
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


def test_a_new_policy_waits(pool_path: str) -> None:
    with lmcstore.open(pool_path, size="64MiB") as store:
        shelf = store["run"]
        fill(shelf)
        begin = time.time()
        shelf.policy = "keep=last:5"
        assert shelf.policy == "keep_raw=4 chain=3 keep=last:5"
        plan = shelf.prune(dry_run=True)
        assert plan.numbers == list(plan.due) == list(range(1, 16))
        assert all(begin + 600 <= due <= time.time() + 601 for due in plan.due.values())
        assert store.info()["due"] == {"run": plan.due}
        assert shelf.prune("keep=last:10", dry_run=True).due == {}
        time.sleep(2.5)
        assert len(shelf) == 20
        shelf.tag(1, "precious")
    with lmcstore.open(pool_path) as store:
        shelf = store["run"]
        time.sleep(1.5)
        assert len(shelf) == 20
        begin = time.time()
        shelf.policy = "keep=last:6 grace=3s"
        assert store.info()["due"] == {"run": dict.fromkeys(range(2, 15), pytest.approx(begin + 3, abs=2))}
        deadline = time.monotonic() + 20
        while len(shelf) > 7 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [snapshot.number for snapshot in shelf] == [1, 15, 16, 17, 18, 19, 20]
        assert store.info()["due"] == {}


def test_pruning_by_hand_does_not_wait(shelf: lmcstore.Shelf) -> None:
    fill(shelf)
    shelf.policy = "keep=last:5 grace=30d"
    assert shelf.prune().numbers == list(range(1, 16))


def test_what_a_prune_would_free(pool_path: str) -> None:
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        fill(store["run"])
        plan = store["run"].prune("keep=last:2", dry_run=True)
        assert plan.removal is not None and plan.removal.freed_bytes > 0
        assert store["run"].prune(dry_run=True).removal == lmcstore.shelf.Removal(0, 0, 0)
    with lmcstore.open(pool_path, "r") as store:
        assert store["run"].prune("keep=last:2", dry_run=True) == plan._replace(removal=None)


def test_no_grace(pool_path: str) -> None:
    with lmcstore.open(pool_path, size="64MiB") as store:
        fill(store["run"])
        store["run"].policy = "keep=last:5 grace=none"
        assert store["run"].policy.endswith(" grace=none")
        deadline = time.monotonic() + 20
        while len(store["run"]) > 5 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(store["run"]) == 5


@NEEDS_BIN
def test_the_command_lists_what_is_due(pool_path: str) -> None:
    def run(*arguments: str | Path) -> str:
        return subprocess.run([BIN, *arguments], check=True, capture_output=True, text=True).stdout

    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        fill(store["run"])
    line = "due at 20[^ ]*Z, unless tagged or kept by another policy: "
    assert re.search(f"\\n{line}4 snapshots: 1..4\\n", run("policy", pool_path, "run", "keep=last:16"))
    run("policy", pool_path, "run", "keep=last:10,every:5")
    assert re.search(f"\\n             {line}8 snapshots: 2..5, 7..10\\n", run("info", pool_path))
    due = json.loads(run("info", pool_path, "--json"))["due"]
    assert due == [{"shelf": "run", "now": [], "later": [2, 3, 4, 5, 7, 8, 9, 10], "at": due[0]["at"]}]
    assert json.loads(run("policy", pool_path, "run", "--json"))["due"] == {
        k: due[0][k] for k in ("now", "later", "at")
    }
    assert json.loads(run("policy", pool_path, "run", "keep=last:3", "--dry-run", "--json"))["due"] is None
    assert "due now: 8 snapshots: 2..5, 7..10\n" in run("policy", pool_path, "run", "grace=none")
    assert json.loads(run("policy", pool_path, "run", "--prune", "--json"))["due"] is None
    assert json.loads(run("info", pool_path, "--json"))["due"] == []


@NEEDS_BIN
def test_a_dry_run_shows_the_policy_that_would_be(pool_path: str) -> None:
    def run(*arguments: str) -> str:
        return subprocess.run([BIN, "policy", pool_path, *arguments], check=True, capture_output=True, text=True).stdout

    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        fill(store["run"])
        store["run"].policy = "keep=last:10 grace=none"
    before = run("run", "--json")
    words = ["keep=last:3,every:5", "chain=2"]
    shown = run("run", *words, "--dry-run")
    tried = json.loads(run("run", *words, "--dry-run", "--json"))["policy"]
    assert f"\nrun: {tried} (not set)\n" in shown
    assert run("run", "--json") == before and json.loads(before)["policy"] != tried
    assert json.loads(run("run", *words, "--json"))["policy"] == tried
    assert f"run: {tried}\n" in run("run", "--dry-run")


@NEEDS_BIN
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


def test_the_log_shows_what_policies_removed(shelf: lmcstore.Shelf, store: lmcstore.Store, pool_path: str) -> None:
    fill(shelf)
    assert shelf.log().removed == []
    begin = int(time.time())
    shelf.policy = "keep=last:15,every:5 grace=none"
    shelf.prune()
    shelf.prune("keep=last:10", dry_run=True)
    shelf.prune("keep=last:10")
    shelf.remove(11)
    newest, oldest = shelf.log().removed
    assert (oldest.policy, oldest.ranges, oldest.snapshots) == ("keep=last:15,every:5", [(2, 5)], 4)
    assert (newest.policy, newest.ranges, newest.snapshots) == ("keep=last:10", [(1, 1), (6, 10)], 6)
    assert begin <= oldest.first_time <= oldest.last_time <= newest.first_time <= time.time()
    assert repr(shelf.log(1)).split("\n")[-2].startswith("keep=last:10 removed 6: 1, 6..10, at 20")
    assert "<p>keep=last:10 removed 6: 1, 6..10, at 20" in shelf.log()._repr_html_()
    assert shelf.policy == "keep_raw=4 chain=3 keep=last:15,every:5 grace=none"
    shelf.rename("walk")
    store.close()
    with lmcstore.open(pool_path, mode="r") as reader:
        assert reader["walk"].log().removed == [newest, oldest]
        assert reader["none"].log().removed == []


@NEEDS_BIN
def test_the_command_logs_what_policies_removed(pool_path: str) -> None:
    def run(*arguments: str | Path) -> str:
        return subprocess.run([BIN, *arguments], check=True, capture_output=True, text=True).stdout

    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        fill(store["run"])
    assert json.loads(run("log", pool_path, "--json"))["removed"] == []
    run("policy", pool_path, "run", "keep=last:5,every:10", "--prune")
    assert re.search(
        r"\nrun: keep=last:5,every:10 removed 13: 2..10, 12..15, (at|from) 20.*Z\n$", run("log", pool_path)
    )
    removed = json.loads(run("log", pool_path, "run", "-n", "1", "--json"))["removed"]
    assert [(one["shelf"], one["policy"], one["count"], one["ranges"]) for one in removed] == [
        ("run", "keep=last:5,every:10", 13, [[2, 10], [12, 15]])
    ]


def test_the_log_shows_what_the_background_removed(pool_path: str) -> None:
    with lmcstore.open(pool_path, size="64MiB") as store:
        shelf = store["run"]
        shelf.policy = "keep=last:3 grace=none"
        fill(shelf)
        deadline = time.monotonic() + 20
        while len(shelf) > 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        (removed,) = shelf.log().removed
        assert (removed.policy, removed.ranges, removed.snapshots) == ("keep=last:3", [(1, 17)], 17)
