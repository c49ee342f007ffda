# SPDX-License-Identifier: BSD-3-Clause
"""wait=False: captured when it returns, durable when wait() does."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import lmcstore
import pytest
import torch
from same import same


def test_captured_then_durable(shelf: lmcstore.Shelf) -> None:
    tensor = torch.ones(1 << 20)
    snapshot = shelf.snapshot({"t": tensor}, step=5, tags=["x"], metrics={"m": 1.0}, wait=False)
    tensor.zero_()  # captured: the trainer may go on
    assert snapshot.number == 1 and snapshot.step == 5 and "run@1" in repr(snapshot)
    assert snapshot.wait() is snapshot and snapshot.done
    assert snapshot.wait() is snapshot
    assert shelf.latest == snapshot and snapshot.tags == ["x"] and snapshot.metrics == {"m": 1.0}
    same(torch.ones(1 << 20), snapshot["t"])


def test_reading_waits(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"t": torch.ones(1 << 20)}, wait=False)
    same(torch.ones(1 << 20), snapshot["t"])
    assert shelf.latest == snapshot


def test_one_after_the_other(shelf: lmcstore.Shelf) -> None:
    snapshots = [shelf.snapshot({"t": torch.full((1 << 18,), float(i))}, step=i, wait=False) for i in range(10)]
    assert [snapshot.number for snapshot in snapshots] == list(range(1, 11))
    for number, snapshot in enumerate(snapshots):
        snapshot.wait()
        same(torch.full((1 << 18,), float(number)), snapshot["t"])


def test_close_waits(pool_path: str) -> None:
    store = lmcstore.open(pool_path)
    snapshot = store["run"].snapshot({"t": torch.ones(1 << 20)}, wait=False)
    store.close()
    assert snapshot.wait() is snapshot
    with lmcstore.open(pool_path) as store:
        same(torch.ones(1 << 20), store["run"].latest["t"])


def test_a_handle_that_is_dropped(shelf: lmcstore.Shelf) -> None:
    for step in range(4):
        shelf.snapshot({"t": torch.full((1 << 18,), float(step))}, step=step, wait=False)
    gc.collect()
    last = shelf.snapshot({"t": torch.zeros(1)}, step=4)
    assert [snapshot.step for snapshot in shelf] == [0, 1, 2, 3, 4] and last.number == 5


def test_exit_without_close(pool_path: str, run_python: object) -> None:
    code = """
import sys, torch, lmcstore
shelf = lmcstore.open(sys.argv[1])["run"]
kept = shelf.snapshot({"t": torch.ones(1 << 20)}, wait=False)
"""
    done = run_python(code, pool_path)  # type: ignore[operator]
    assert done.returncode == 0 and done.stderr == "", done.stderr
    with lmcstore.open(pool_path) as store:
        assert len(store["run"]) == 1


def test_waiting_by_several_threads(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"t": torch.randn(1 << 22)}, wait=False)
    outcomes: list[bool] = []

    def wait() -> None:
        outcomes.append(snapshot.wait() is snapshot and shelf.latest == snapshot)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 4


def test_full_is_told(tmp_path: Path) -> None:
    """A pool without room says so, at the latest when one waits, and goes on."""
    store = lmcstore.open(tmp_path / "small.pool", size="32MiB", background=False)
    shelf = store["run"]
    shelf.snapshot({"t": torch.randn(1000)})
    with pytest.raises(lmcstore.FullError):
        shelf.snapshot({"t": torch.randn(1 << 24)}, wait=False).wait()
    assert len(shelf) == 1
    shelf.snapshot({"t": torch.randn(1000)}).wait()
    store.close()


def test_two_threads_wait(shelf: lmcstore.Shelf) -> None:
    """The one that comes second finds that there is nothing to wait for, whenever it looks."""
    snapshot = shelf.snapshot({"a": 1}, wait=False)

    class Raced(lmcstore.Snapshot):
        looks: list[object]
        _capture = property(lambda self: self.looks.pop(0), lambda self, value: None)

    raced = Raced(shelf, snapshot.wait().number)
    for looks in ([snapshot, None], [None]):
        raced.looks = looks[:]
        assert raced.wait() is raced
        raced.looks = looks[:]
        assert raced.done
