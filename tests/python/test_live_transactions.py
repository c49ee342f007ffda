# SPDX-License-Identifier: BSD-3-Clause
"""Transactions of live variables, and snapshots of them: all or nothing, also when the process is killed."""

from __future__ import annotations

import gc
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
import torch

IN_MEMORY = True


def test_a_transaction_is_all_or_nothing(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    live["w"], live["t"], live["n"] = np.zeros(100_000), torch.zeros(10), 1
    w, t = live["w"], live["t"]
    with pytest.raises(ZeroDivisionError), shelf.transaction():
        w[5] = 1
        np.add(w, 2, out=w)
        w[::7].sort()
        t.add_(3)
        t[2:4].copy_(torch.ones(2))
        live["n"] = 2
        live["new"] = np.ones(3)
        live.erase("new")
        live["new"] = 5
        io.BytesIO(bytes(80)).readinto(memoryview(w)[:10])  # type: ignore[arg-type]
        raise ZeroDivisionError
    assert w.sum() == 0 and float(t.sum()) == 0 and live["n"] == 1 and "new" not in live
    with shelf.transaction() as transaction:
        w[5] = 1
        live["n"] += 1
        assert transaction.bytes > 0
    assert w[5] == 1 and live["n"] == 2 and transaction.ended
    transaction.abort()
    with pytest.raises(lmcstore.InvalidError, match="has ended"):
        transaction.commit()


def test_system_calls_write_into_a_transaction(shelf: lmcstore.Shelf, tmp_path: Path) -> None:
    shelf.live["w"] = np.zeros(100_000)
    w = shelf.live["w"]
    path = tmp_path / "data"
    np.arange(100_000.0).tofile(path)
    transaction = shelf.transaction()
    with path.open("rb") as file:
        assert file.readinto(memoryview(w)) == 800_000  # type: ignore[arg-type]
    assert w[-1] == 99_999
    transaction.abort()
    assert w[-1] == 0


def test_some_variables_only(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    live["a"], live["b"] = np.zeros(3), np.zeros(3)
    a, b = live.open("a"), live["b"]
    transaction = live.transaction([a, "a"])
    a.array[0] = b[0] = 1  # type: ignore[union-attr]
    transaction.abort()
    assert live["a"][0] == 0 and b[0] == 1
    with live.transaction("a"):
        pass


def test_they_do_not_nest_and_wait_for_one_another(shelf: lmcstore.Shelf) -> None:
    shelf.live["w"] = np.zeros(3)
    with shelf.transaction():
        with pytest.raises(lmcstore.InvalidError, match="don't nest"):
            shelf.transaction()
        errors: list[BaseException] = []

        def attempt() -> None:
            try:
                shelf.transaction(timeout=0.05)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        assert len(errors) == 1 and isinstance(errors[0], lmcstore.InUseError)


def test_a_limit_is_told_and_nothing_is_lost(shelf: lmcstore.Shelf) -> None:
    shelf.live["w"] = np.zeros(100_000)
    w = shelf.live["w"]
    with pytest.raises(lmcstore.FullError, match="its limit is"), shelf.transaction(limit="64KiB"):
        w += 1
    assert w.sum() == 0
    with shelf.transaction(limit="64KiB"):
        w[:100] += 1
    assert w.sum() == 100


def test_declared_ones(shelf: lmcstore.Shelf) -> None:
    tensor = shelf.live.tensor("w", 10_000)
    for fails in (True, False):
        transaction = shelf.transaction(declared=True)
        transaction.declare(tensor, 100, 200)
        tensor.array[100:200] = 1
        transaction.abort() if fails else transaction.commit()
        assert tensor.array.sum() == (0 if fails else 100)
        with pytest.raises(lmcstore.InvalidError):
            transaction.declare(tensor)
    with shelf.transaction(declared=True) as transaction, pytest.raises(lmcstore.InvalidError, match="10000 elements"):
        transaction.declare(tensor, 0, 10_001)


def test_dropping_a_transaction_undoes_it(shelf: lmcstore.Shelf) -> None:
    shelf.live["w"] = np.zeros(3)
    w = shelf.live["w"]
    transaction = shelf.transaction()
    w[0] = 1
    del transaction
    gc.collect()
    assert w[0] == 0
    with shelf.transaction():
        w[0] = 2
    assert w[0] == 2


def test_closing_the_store_first(pool_path: str) -> None:
    store = lmcstore.open(pool_path)
    live = store["run"].live
    live["w"] = np.zeros(3)
    w, transaction = live["w"], store["run"].transaction()
    w[0] = 1
    store.close()
    transaction.abort()
    assert w[0] == 0
    del w, transaction
    gc.collect()
    with lmcstore.open(pool_path) as store:
        assert store["run"].live["w"][0] == 0


@pytest.mark.parametrize("commit", [False, True])
def test_a_kill_inside_leaves_nothing_of_it(pool_path: str, run_python: Callable[..., Any], commit: bool) -> None:
    code = """
import os, signal, sys, lmcstore, numpy as np
store = lmcstore.open(sys.argv[1], background=False)
shelf = store["run"]
shelf.live["w"], shelf.live["n"] = np.zeros(50000), 0
w = shelf.live["w"]
transaction = shelf.transaction()
w[:] = 1
shelf.live["n"] = 1
shelf.live["other"] = np.ones(3)
if sys.argv[2] == "True":
    transaction.commit()
    w[0] = 5
    shelf.live.tensor("w").persist(0, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_python(code, pool_path, str(commit)).returncode == -9
    with lmcstore.open(pool_path, background=False) as store:
        live = store["run"].live
        assert live["w"].sum() == (50_004 if commit else 0)
        assert live["n"] == int(commit) and ("other" in live) == commit


def test_snapshots_and_checkout(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    live["w"], live["t"], live["n"] = np.arange(1000.0), torch.ones(3, dtype=torch.bfloat16), "text"
    live["r"] = np.zeros(2, [("a", "i4")])
    first = live.snapshot(message="the first", step=5, tags="best", metrics={"loss": 1.5})
    assert first.meta == {"message": "the first"} and first.step == 5 and shelf["best"].number == first.number
    w = live["w"]
    w[:] = 0
    live["n"] = 7
    live["more"] = 1
    second = live.snapshot()
    assert second.meta == {}
    live.checkout(first)
    assert w[999] == 999 and live["n"] == "text" and "more" not in live
    assert live["r"].dtype.names == ("a",) and live["t"].dtype == torch.bfloat16
    live.checkout(second.number)
    assert w[999] == 0 and live["n"] == 7 and live["more"] == 1
    live.checkout("best")
    assert w[999] == 999
    live["other"] = np.zeros(1)
    held = live["other"]
    with pytest.raises(lmcstore.InUseError):
        live.checkout("latest")
    assert held[0] == 0 and w[999] == 999
    state = first.state_dict()
    assert set(state) >= {"w", "t"} and float(state["w"][999]) == 999
    ordinary = shelf.snapshot({"a": 1})
    with pytest.raises(lmcstore.InvalidError):
        live.checkout(ordinary)
    with pytest.raises(lmcstore.NotFoundError):
        live.checkout(99)


def test_an_unchanged_tensor_is_shared_by_snapshots(shelf: lmcstore.Shelf) -> None:
    shelf.live["big"], shelf.live["small"] = np.random.default_rng(1).random(1 << 18), np.zeros(10)
    shelf.live.snapshot()
    used = shelf.store.info()["live_bytes"]
    shelf.live["small"][0] = 1
    shelf.live.snapshot()
    assert shelf.store.info()["live_bytes"] - used < 1 << 19
