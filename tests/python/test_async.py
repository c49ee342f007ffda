# SPDX-License-Identifier: BSD-3-Clause
"""wait=False: captured on return, durable after wait()."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from optional import torch
from same import same


def test_captured_then_durable(shelf: lmcstore.Shelf) -> None:
    tensor = torch.ones(1 << 20)
    snapshot = shelf.snapshot({"t": tensor}, step=5, tags=["x"], metrics={"m": 1.0}, wait=False)
    tensor.zero_()
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


def test_several_in_flight(pool_path: str) -> None:
    """In order, each with its own values and its predecessor as parent, kept by a handle or not."""
    with lmcstore.open(pool_path) as store:
        shelf, other = store["run"], store["other"]
        constant = np.arange(1000.0)
        kept = []
        for step in range(1, 61):
            snapshot = shelf.snapshot({"w": np.full(100, float(step)), "constant": constant}, step=step, wait=False)
            assert snapshot.number == step
            kept += [snapshot] if step % 3 else []
            if step % 20 == 0:
                other.snapshot({"w": np.full(100, float(step))}, wait=step % 40 == 0)
        for snapshot in reversed(kept):
            assert snapshot.wait().parent == (snapshot.number - 1 or None)
    with lmcstore.open(pool_path) as store:
        assert [snapshot.number for snapshot in store["run"]] == list(range(1, 61)) and len(store["other"]) == 3
        for snapshot in store["run"]:
            same({"w": np.full(100, float(snapshot.number)), "constant": constant}, snapshot.state_dict())


def test_a_kill_loses_the_last_ones(pool_path: str, run_python: Callable[..., Any]) -> None:
    code = """
import os, signal, sys, numpy as np, lmcstore
shelf = lmcstore.open(sys.argv[1])["run"]
for step in range(1, 31):
    snapshot = shelf.snapshot({"w": np.full(100, float(step))}, step=step, wait=False)
    if step == 20:
        snapshot.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_python(code, pool_path).returncode == -signal.SIGKILL
    with lmcstore.open(pool_path) as store:
        numbers = [snapshot.number for snapshot in store["run"]]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 20
        for snapshot in store["run"]:
            same({"w": np.full(100, float(snapshot.number))}, snapshot.state_dict())
        assert store["run"].snapshot({"w": np.zeros(1)}).number == len(numbers) + 1


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
    """A full pool reports it, at the latest to a wait, and stays usable."""
    store = lmcstore.open(tmp_path / "small.pool", size="32MiB", background=False)
    shelf = store["run"]
    shelf.snapshot({"t": torch.randn(1000)})
    with pytest.raises(lmcstore.FullError):
        shelf.snapshot({"t": torch.randn(1 << 24)}, wait=False).wait()
    assert len(shelf) == 1
    shelf.snapshot({"t": torch.randn(1000)}).wait()
    store.close()


def test_two_threads_wait(shelf: lmcstore.Shelf) -> None:
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


IN_A_HANDLER = """
import os, signal, sys, threading, lmcstore, numpy
path, does = sys.argv[1:]
store = lmcstore.open(path, background=False)
shelf, waited = store["run"], False

def handler(number, frame):
    global waited
    if does == "close":
        store.close()
    else:
        snapshot.wait()
    waited = waited or frame.f_code.co_name == "wait"

signal.signal(signal.SIGALRM, handler)
for step in range(20):  # until the signal comes while one waits
    snapshot = shelf.snapshot({"t": numpy.full(1 << 23, float(step))}, wait=False)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    snapshot.wait()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert snapshot.done
    if waited:
        break
    if store.closed:
        store = lmcstore.open(path, background=False)
        shelf = store["run"]
store.close()
print(step + 1)
"""


@pytest.mark.parametrize("does", ["close", "wait"])
def test_a_handler_while_one_waits(tmp_path: Path, run_python: Callable[..., Any], does: str) -> None:
    """A signal handler in the waiting thread may close the store, or wait for the same snapshot."""
    done = run_python(IN_A_HANDLER, str(tmp_path / "test.pool"), does)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    with lmcstore.open(tmp_path / "test.pool", mode="r") as store:
        assert len(store["run"]) == int(done.stdout)


def test_waiting_while_another_closes(pool_path: str) -> None:
    for _ in range(5):
        store = lmcstore.open(pool_path, background=False)
        snapshot = store["run"].snapshot({"t": torch.randn(1 << 21)}, wait=False)
        seen: list[int | None] = []

        def wait(snapshot: lmcstore.Snapshot, seen: list[int | None]) -> None:
            snapshot.wait()
            with lmcstore.open(pool_path, mode="r") as reader:
                seen.append(reader["run"].latest.number)  # type: ignore[union-attr]

        threads = [threading.Thread(target=wait, args=(snapshot, seen)) for _ in range(3)]
        for thread in threads:
            thread.start()
        store.close()
        for thread in threads:
            thread.join()
        assert seen == [snapshot.number] * 3


CLOSED_BY_GARBAGE = """
import gc, sys, lmcstore
store = lmcstore.open(sys.argv[1], background=False)
store["run"].snapshot({"a": 1}, metrics={"m": 1.0})
handle, said = store._pool.find("run", "1"), []

class Closer:
    def __init__(self):
        self.me = self
    def __del__(self):
        try:
            store.close()
        except lmcstore.InvalidError as error:
            said.append(str(error))

gc.disable()
gc.collect()  # and nothing is left to be used again without an allocation
Closer()
gc.set_threshold(1)
gc.enable()
handle.info()
gc.set_threshold(700)
store.close()
print(*said)
"""


def test_a_close_by_garbage(pool_path: str, run_python: Callable[..., Any]) -> None:
    """Garbage collection inside a call may run a destructor that closes the store: it can't wait for itself."""
    done = run_python(CLOSED_BY_GARBAGE, pool_path)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    refused = "a store can't be closed from inside one of its own calls"
    assert done.stdout.strip() == refused or sys.version_info >= (3, 12)


CLOSED_ABOVE_A_CAPTURE = """
import sys, threading, time, lmcstore
from lmcstore._state.encode import Encoded
store = lmcstore.open(sys.argv[1], background=False)
shelf, said = store["run"], []
shelf.snapshot({"a": 1})

def take(value):
    try:
        shelf.snapshot({"a": value})
    except lmcstore.InvalidError as error:
        said.append(str(error))

other = threading.Thread(target=take, args=(2,))

def relations(*_):
    other.start()
    time.sleep(0.3)  # and it waits for the shelf
    if sys.argv[2] == "handler":
        store.close()
        return []
    closer = threading.Thread(target=store.close)
    closer.start()
    closer.join()
    return []

Encoded.relations = relations
take(3)
other.join()
print(*said, sep="\\n")
"""


@pytest.mark.parametrize("who", ["handler", "thread"])
def test_a_close_above_a_capture(pool_path: str, who: str, run_python: Callable[..., Any]) -> None:
    """A handler closes the store during a snapshot, for whose shelf another thread waits."""
    done = run_python(CLOSED_ABOVE_A_CAPTURE, pool_path, who)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.splitlines() == ["the store is closed: open it again"] * 2
    with lmcstore.open(pool_path, mode="r") as store:
        assert store["run"].latest == store["run"][1]


def test_what_becomes_durable_while_the_store_closes(pool_path: str) -> None:
    store = lmcstore.open(pool_path, background=False)
    store["run"].snapshot({"t": torch.ones(10)})
    verifying, go_on, told = threading.Event(), threading.Event(), []

    def progress(*_: Any) -> None:
        verifying.set()
        go_on.wait(600)

    def wait(snapshot: lmcstore.Snapshot) -> None:
        try:
            told.append(snapshot.wait().number)
        except lmcstore.Error as error:
            told.append(error)

    verifier = threading.Thread(target=lambda: store.verify(progress=progress))
    verifier.start()
    verifying.wait(600)
    snapshot = store["run"].snapshot({"t": torch.randn(1 << 24)}, wait=False)
    waiter, closer = threading.Thread(target=wait, args=(snapshot,)), threading.Thread(target=store.close)
    waiter.start()
    closer.start()
    waiter.join(600)
    go_on.set()
    for thread in (verifier, closer, waiter):
        thread.join()
    assert told == [snapshot.number]
