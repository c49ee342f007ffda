# SPDX-License-Identifier: BSD-3-Clause
"""Tags, metrics and notes added to snapshots: by the writer, beside it, and without one."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from test_cli import cli, text

WRITER = """
import sys, lmcstore
with lmcstore.open(sys.argv[1], "r+") as store:
    print("ready", flush=True)
    for line in sys.stdin:
        exec(line)
        print("done", flush=True)
"""


class Writer:
    """A process that has the pool open for writing, and is stopped unless it works."""

    def __init__(self, path: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.expect("ready")
        self.process.send_signal(signal.SIGSTOP)

    def expect(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == line + "\n"

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self.expect("done")
        self.process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def trained(pool_path: str) -> str:
    """A closed pool with four snapshots."""
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        for step in range(4):
            store["run"].snapshot({"w": np.full(1000, step)}, step=step, metrics={"loss": 4.0 - step})
    return pool_path


@pytest.fixture
def writer(trained: str) -> Iterator[Writer]:
    process = Writer(trained)
    yield process
    process.end()


def annotate(shelf: lmcstore.Shelf) -> None:
    snap = shelf[2]
    snap.metrics["val_loss"] = 0.3
    snap.metrics.update(acc=1, top=np.float32(0.5))
    snap.note = "a lower rate"
    shelf.tag(snap, "best", "kept")
    shelf.tag(1, "gone")
    shelf.untag("gone")
    assert snap.metrics == {"loss": 3.0, "val_loss": 0.3, "acc": 1.0, "top": 0.5}
    assert snap.note == "a lower rate" and snap.meta == {"message": "a lower rate"} and snap.tags == ["best", "kept"]


def expect_annotated(path: str) -> None:
    with lmcstore.open(path, "r") as store:
        shelf = store["run"]
        assert shelf["best"].metrics["val_loss"] == 0.3 and shelf["kept"].note == "a lower rate"
        assert shelf.tags == {"best": 2, "kept": 2}
        assert "val_loss 0.3" in str(shelf.log()) and "best" in str(shelf.log())
        assert store.verify()["damages"] == 0


def test_a_writer_annotates(trained: str) -> None:
    with lmcstore.open(trained, "r+") as store:
        annotate(store["run"])
    expect_annotated(trained)


def test_a_reader_annotates_beside_a_stopped_writer(trained: str, writer: Writer) -> None:
    with lmcstore.open(trained, "r") as store:
        annotate(store["run"])
        expect_annotated(trained)
        with pytest.raises(lmcstore.InUseError, match="without an expected place"):
            store["run"].tag(3, "best", expect=2)
    writer.do("assert store['run']['best'].metrics['val_loss'] == 0.3; store['run'].snapshot({'w': 1})")
    expect_annotated(trained)
    writer.end()
    expect_annotated(trained)


def test_a_reader_annotates_without_a_writer(trained: str) -> None:
    with lmcstore.open(trained, "r") as store:
        annotate(store["run"])
        store["run"].tag(3, "moved", expect=None)
        assert store["run"]["moved"].number == 3
        store["run"].untag("moved")
    expect_annotated(trained)


def test_an_open_handle_sees_later_annotations(trained: str, writer: Writer) -> None:
    with lmcstore.open(trained, "r") as store, lmcstore.open(trained, "r") as other:
        snap, seen = store["run"][2], other["run"][2]
        assert seen.metrics == {"loss": 3.0} and seen.note is None
        snap.metrics["loss"] = 2.5
        snap.note = "x"
        assert seen.metrics == {"loss": 2.5} and seen.note == "x"
        snap.note = None
        assert seen.note is None and seen.meta == {}


def test_metrics_are_a_dict(trained: str) -> None:
    with lmcstore.open(trained, "r+") as store:
        metrics = store["run"][1].metrics
        assert isinstance(metrics, dict) and isinstance(metrics, MutableMapping)
        assert json.loads(json.dumps(metrics)) == {"loss": 4.0}
        assert metrics.setdefault("n", 1) == 1 and metrics.setdefault("n", 2) == 1
        metrics |= {"m": math.inf}
        assert store["run"][1].metrics == {"loss": 4.0, "n": 1.0, "m": math.inf}
        for made in (metrics.copy(), copy.copy(metrics), copy.deepcopy(metrics), pickle.loads(pickle.dumps(metrics))):
            assert type(made) is dict and made == metrics
        for remove in (metrics.clear, metrics.popitem, lambda: metrics.__delitem__("n")):
            with pytest.raises(lmcstore.UnsupportedError, match="not removed"):
                remove()
        for name, value in ((1, 1.0), ("x", "low"), ("x", None)):
            with pytest.raises(lmcstore.UnsupportedError):
                metrics[name] = value  # type: ignore[index,assignment]
        assert metrics == store["run"][1].metrics and store["run"][1].metrics.pop("n") == 1


def test_bounds_are_named(trained: str, writer: Writer) -> None:
    with lmcstore.open(trained, "r") as store:
        snap = store["run"][1]
        with pytest.raises(lmcstore.InvalidError, match="901 bytes: at most 900"):
            snap.note = "n" * 901
        with pytest.raises(lmcstore.InvalidError, match="1200 are possible"):
            for i in range(100):
                snap.metrics[f"a-rather-long-name-{i}"] = i
        with pytest.raises(lmcstore.InUseError, match="128 tags, metrics and notes"):
            for i in range(200):
                snap.metrics["loss"] = i
        writer.do("pass")
        writer.process.send_signal(signal.SIGCONT)
        snap.metrics["loss"] = -1
        assert snap.metrics["loss"] == -1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every file")
def test_permission_is_needed(trained: str) -> None:
    os.chmod(trained, 0o400)
    with (
        lmcstore.open(trained, "r") as store,
        pytest.raises(lmcstore.ReadOnlyError, match="permission to write to the file"),
    ):
        store["run"][1].metrics["x"] = 1


def test_another_snapshot_of_the_number_is_not_annotated(trained: str) -> None:
    with lmcstore.open(trained, "r+") as store:
        snap = store["run"][1]
        assert snap.metrics == {"loss": 4.0}
        store["run"].drop()
        store.shelf("run", create=True).snapshot({"w": 2}, metrics={"other": 1})
        with pytest.raises(lmcstore.NotFoundError):
            snap.metrics["loss"] = 1
        with pytest.raises(lmcstore.NotFoundError):
            snap.note = "x"
        assert snap.metrics == {"loss": 4.0} and store["run"][1].metrics == {"other": 1.0}


@pytest.mark.parametrize("seen", [True, False])
def test_another_snapshot_of_the_number_is_not_removed(pool_path: str, seen: bool) -> None:
    with lmcstore.open(pool_path) as store:
        old = store.shelf("run", create=True).snapshot({"w": 1})
        assert not seen or old.tags == []
        store["run"].drop()
        shelf = store.shelf("run", create=True)
        new = shelf.snapshot({"w": 2})
        assert old == new and old not in shelf and new in shelf
        for change in (
            lambda: shelf.remove(old),
            lambda: shelf.remove(old, dry_run=True),
            lambda: shelf.tag(old, "best"),
            lambda: shelf.tag(new, "best", expect=old),
        ):
            with pytest.raises(lmcstore.NotFoundError, match="run@1 is another snapshot now"):
                change()
        assert new.tags == [] and len(shelf) == 1
        shelf.tag(new, "best")
        shelf.remove(new)
        assert new not in shelf and len(shelf) == 0


@pytest.mark.parametrize("listing", [list, reversed, lambda shelf: shelf.range("1.."), lambda shelf: shelf.steps(5)])
def test_a_listed_snapshot_is_of_the_shelf_that_was_listed(pool_path: str, listing: Any) -> None:
    with lmcstore.open(pool_path) as store:
        shelf = store.shelf("run", create=True)
        shelf.snapshot({"w": 1}, step=5)
        (old,) = listing(shelf)  # and not opened
        shelf.drop()
        new = store.shelf("run", create=True).snapshot({"w": 2}, step=5)
        assert old not in shelf and new in shelf
        for change in (lambda: shelf.remove(old), lambda: shelf.tag(old, "best"), lambda: old["w"]):
            with pytest.raises(lmcstore.NotFoundError, match="run@1 is another snapshot now"):
                change()
        (listed,) = listing(shelf)
        shelf.remove(listed)
        assert len(shelf) == 0


def test_policies_see_annotations(trained: str, writer: Writer) -> None:
    with lmcstore.open(trained, "r") as store:
        for snap in store["run"]:
            snap.metrics["val"] = abs(snap.number - 2)
        store["run"].tag(1, "good")
    writer.do("store['run'].policy = 'keep=last:1,best:val:1'; store['run'].prune()")
    with lmcstore.open(trained, "r") as store:
        assert [snap.number for snap in store["run"]] == [1, 2, 4]


def test_commands(trained: str, writer: Writer) -> None:
    assert text("tag", trained, "run@2", "best") == "run@2 is now tagged best\n"
    assert text("metric", trained, "run@best", "val_loss=0.3", "a=b=inf") == "run@2: loss=3, val_loss=0.3, a=b=inf\n"
    assert text("note", trained, "run@2", "a lower rate") == "run@2: a lower rate\n"
    assert text("note", trained, "run@2") == "run@2: a lower rate\n"
    assert text("note", trained, "run@1") == "run@1 has no note\n"
    shown = json.loads(text("metric", trained, "run@2", "--json"))["snapshot"]
    assert shown["metrics"] == {"loss": 3.0, "val_loss": 0.3, "a=b": "Infinity"} and shown["tags"] == ["best"]
    assert "val_loss=0.3" in text("log", trained, "run") and "a lower rate" in text("log", trained, "run")
    for words in (["x"], ["=1"], ["x="], ["x=1y"], ["y=1", "x"]):
        assert "is not NAME=VALUE" in cli("metric", trained, "run@3", *words, code=2).stderr
    assert text("metric", trained, "run@3") == "run@3: loss=2\n"
    assert text("note", trained, "run@2", "--delete") == "run@2 has no note\n"
    assert text("tag", trained, "run@2", "best", "--delete") == "run@2 is no longer tagged best\n"
    assert "in use by process" in cli("tag", trained, "run@2", "best", "--expect", "none", "--wait", "0", code=1).stderr
    writer.do("assert store['run'][2].metrics['val_loss'] == 0.3")


def test_archives_and_forks_carry_annotations(trained: str, writer: Writer, tmp_path: Path) -> None:
    base, since, other = tmp_path / "base.archive", tmp_path / "since.archive", tmp_path / "other.pool"
    with lmcstore.open(trained, "r") as store:
        with open(base, "wb") as file:
            store.dump(file)
        annotate(store["run"])
        with open(since, "wb") as file, open(base, "rb") as older:
            store.dump(file, since=[older])
    with lmcstore.open(other, "x", size="256MiB") as store:
        for archive in (base, since, base):
            with open(archive, "rb") as file:
                store.restore(file)
            store["run"][1].metrics["mine"] = 1
        assert store["run"][1].metrics["mine"] == 1
        fork = store["run"][2].fork("fork")
        assert fork.latest is not None and fork.latest.metrics["val_loss"] == 0.3
        assert fork.latest.note == "a lower rate"
    expect_annotated(str(other))
