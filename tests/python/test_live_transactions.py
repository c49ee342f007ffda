# SPDX-License-Identifier: BSD-3-Clause
"""Transactions of live variables, and their snapshots: all or nothing, also when killed."""

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
from optional import torch

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


def test_live_variables_are_a_mapping_that_changes(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    given = np.zeros(2)
    live.setdefault("w", given)[0] = 5
    assert live["w"].tolist() == live.setdefault("w", given).tolist() == [5, 0] and given[0] == 0
    assert live.setdefault("n") is None and live.setdefault("n", 3) is None
    live["t"] = torch.arange(3)
    assert live.pop("w").tolist() == [5, 0] and live.pop("t").tolist() == [0, 1, 2]
    assert live.pop("w", None) is None and live.pop("w", default=7) == 7 and list(live) == ["n"]
    live["a"] = np.ones(2)
    name, value = live.popitem()
    assert name == "a" and value.tolist() == [1, 1] and live.popitem() == ("n", None)
    for nothing in (lambda: live.pop("w"), live.popitem):
        with pytest.raises(lmcstore.NotFoundError):
            nothing()
    live.clear()
    live["a"], live["b"], live["w"] = 1, np.ones(2), np.zeros(2)
    held = live["w"]
    for refused in (live.clear, lambda: live.pop("w")):
        with pytest.raises(lmcstore.InUseError, match='"w"'):
            refused()
        assert list(live) == ["a", "b", "w"] and live["b"].tolist() == [1, 1]
    del held
    gc.collect()
    with pytest.raises(ZeroDivisionError), shelf.transaction():
        live.clear()
        assert len(live) == 0
        raise ZeroDivisionError
    assert live["w"].tolist() == [0, 0]
    live.clear()
    assert list(live) == []


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


WAITING = """
import signal, sys, threading, time
import lmcstore, numpy as np

path, how = sys.argv[1:]
store = lmcstore.open(path)
shelf = store["run"]
live = shelf.live
live["w"] = np.zeros(3)
live.snapshot()
work = live.snapshot if how == "snapshot" else lambda: live.checkout("1")
ends = []

def run():
    try:
        work()
    except lmcstore.InvalidError as error:
        ends.append(str(error))

"""


@pytest.mark.parametrize("how", ["snapshot", "checkout"])
def test_closing_the_store_while_another_thread_waits(pool_path: str, run_python: Any, how: str) -> None:
    done = run_python(
        WAITING
        + """
thread = threading.Thread(target=run)
with shelf.transaction():
    live["w"][0] = 1
    thread.start()
    time.sleep(0.2)  # so that it waits most likely; either order is right
    store.close()
thread.join()
assert len(ends) == 1 and "closed" in ends[0], ends
assert lmcstore.open(path, mode="r")["run"].live["w"][0] == 1
print("ended")
""",
        pool_path,
        how,
        timeout=60,
    )
    assert done.stdout == "ended\n"


@pytest.mark.parametrize("how", ["snapshot", "checkout"])
def test_signals_end_a_wait_for_a_transaction(pool_path: str, run_python: Any, how: str) -> None:
    done = run_python(
        WAITING
        + """
begun, end = threading.Event(), threading.Event()

def hold():
    with shelf.transaction():
        begun.set()
        end.wait()

holder = threading.Thread(target=hold)
holder.start()
begun.wait()
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    work()
except KeyboardInterrupt:
    print("ended")
end.set()
holder.join()
work()
store.close()
""",
        pool_path,
        how,
        timeout=60,
    )
    assert done.stdout == "ended\n"


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


def test_a_snapshot_gives_what_the_variables_gave(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    arrays = {
        "plain": np.arange(6.0).reshape(2, 3),
        "big": np.arange(5, dtype=">i4"),
        "record": np.array([(1, 2.5, b"ab"), (3, 4.5, b"c")], [("a", "i4"), ("b", "f8"), ("c", "S3")]),
        "text": np.array(["a", "bcd"]),
        "time": np.array(["2026-11-22"], "M8[s]"),
        "zero": np.array(7, "i2"),
        "empty": np.zeros((0, 3), ">f4"),
    }
    values: dict[str, Any] = {"n": 7, "name": "run", "pair": (1, 2.5), "opt.lr": 0.1}
    for name, value in {**arrays, **values}.items():
        live[name] = value
    live["opt.m"], live["t"] = torch.ones(2, dtype=torch.bfloat16), torch.arange(3.0)
    live.value("count", "uint8", 200)
    live.tensor("made", (2,), "float32")
    snapshot = live.snapshot()
    for read in (snapshot.state_dict(), {name: snapshot.state_dict(name) for name in live}):
        assert sorted(read) == sorted(live)
        for name, array in arrays.items():
            found = read[name]
            assert type(found) is np.ndarray and not found.flags.writeable, name
            assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array), name
        assert {name: read[name] for name in values} == values and read["count"] == 200
        assert torch.equal(read["t"], torch.arange(3.0)) and read["opt.m"].dtype == torch.bfloat16
        assert type(read["made"]) is np.ndarray
    assert snapshot["opt"]["lr"] == 0.1 and snapshot["opt"]["m"].shape == (2,)
    assert snapshot.rows("text", 1)[0] == "bcd" and snapshot.rows("record", 0, 1)["a"] == [1]
    lazy = snapshot[()]
    assert lazy["text"].shape == (2,) and lazy["record"].dtype == arrays["record"].dtype and lazy["n"] == 7
    with pytest.raises(lmcstore.UnsupportedError, match="torch has no dtype"):
        lazy["text"].torch()
    into, target = np.zeros((2, 3)), {"n": 0, "t": torch.zeros(3), "text": np.array(["", "xxx"])}
    snapshot.load_into(plain=into)
    snapshot.load_into(target)
    assert into[1, 2] == 5 and target["n"] == 7 and target["text"].tolist() == ["a", "bcd"]
    again = shelf.snapshot({"n": snapshot["n"], "plain": lazy["plain"]})
    assert again["n"] == 7 and again["plain"].tolist() == arrays["plain"].tolist()


def test_a_snapshot_of_no_variables(shelf: lmcstore.Shelf) -> None:
    assert shelf.live.snapshot().state_dict() == {}


def test_a_snapshot_of_variables_without_torch(pool_path: str, run_python: Any) -> None:
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        store["run"].live["t"], store["run"].live["n"] = torch.arange(3.0), 7
        store["run"].live.snapshot()
    done = run_python(
        "import sys; sys.modules['torch'] = None\n"
        "import lmcstore\n"
        "state = lmcstore.open(sys.argv[1], 'r')['run'].latest.state_dict()\n"
        "print(state['t'].tolist(), state['n'])\n",
        pool_path,
    )
    assert done.stdout == "[0.0, 1.0, 2.0] 7\n", done.stderr


def test_what_a_snapshot_says_of_its_variables_is_checked() -> None:
    from lmcstore._arrays.numpy import described_dtype
    from lmcstore._state.decode import Parser
    from lmcstore._state.live_table import read_table, stored_value

    head = b"LMCL" + (1).to_bytes(4, "little")
    entry = bytes(8) + b"\x01\x07\x00\x00" + (0).to_bytes(2, "little") + (1).to_bytes(2, "little") + b"n"
    good = head + (1).to_bytes(8, "little") + entry
    [found] = read_table(good)
    assert found.name == "n" and not found.is_tensor and found.shape == ()
    for length in range(len(good)):
        with pytest.raises(lmcstore.DamagedError):
            read_table(good[:length])
    for damaged in (good + b"x", b"x" + good[1:], head + b"\xff" * 8 + entry, good[:-1] + b"\xff"):
        with pytest.raises(lmcstore.DamagedError):
            read_table(damaged)
    with pytest.raises(lmcstore.DamagedError, match="at 'a'"):  # a state has no such dtypes
        Parser(iter(()), 1).node(["d", ["a"], ["A", None, 'numpy:"<U3"']], "", 0)
    for note in ("numpy:{", 'numpy:"O"', 'numpy:"S0"', 'numpy:["<f4",[2]]', 'numpy:"ml_dtypes.finfo"'):
        with pytest.raises(lmcstore.DamagedError, match="its dtype is damaged"):
            described_dtype(note, "w")
    for changed in (found._replace(note="python"), found):
        with pytest.raises(lmcstore.DamagedError):
            stored_value(changed._replace(dtype=lmcstore._core.DTYPES["f64"]), b"abc")


def test_a_snapshot_may_have_more_beside_the_variables(shelf: lmcstore.Shelf) -> None:
    """C programs put tensors into the same capture."""
    from lmcstore._state.encode import _Columns

    shelf.live["w"], shelf.live["n"] = np.arange(5.0), 3
    gradient = np.arange(4, dtype=np.float32)
    columns = _Columns()
    columns.add("gradient", lmcstore._core.DTYPES["f32"], gradient.shape, None, gradient.ctypes.data)
    capture = shelf.store._pool.begin(shelf.name)
    capture.put_live()
    columns.put(capture)
    capture.commit(7, 0, 0, (), (), (), "{}", False)
    back = shelf.latest.state_dict()
    assert list(back) == ["n", "w", "gradient"] and back["n"] == 3
    assert np.array_equal(back["w"], np.arange(5.0)) and back["gradient"].tolist() == gradient.tolist()
    assert shelf.latest["gradient"].tolist() == gradient.tolist()


def test_an_unchanged_tensor_is_shared_by_snapshots(shelf: lmcstore.Shelf) -> None:
    shelf.live["big"], shelf.live["small"] = np.random.default_rng(1).random(1 << 18), np.zeros(10)
    shelf.live.snapshot()
    used = shelf.store.info()["live_bytes"]
    shelf.live["small"][0] = 1
    shelf.live.snapshot()
    assert shelf.store.info()["live_bytes"] - used < 1 << 19
