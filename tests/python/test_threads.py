# SPDX-License-Identifier: BSD-3-Clause
"""Threads that use one object: tables are full before others see them, and nothing is made twice."""

from __future__ import annotations

import os
import signal
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pymm
import pytest
from lmcstore import _core
from lmcstore._arrays.torch import torch_of
from lmcstore._state import decode, nodes
from optional import HAS_TORCH, torch
from pymm.memoryresource import opening
from pymm_support import folder, s

__all__ = ["folder", "s"]

IN_MEMORY = True
THREADS = 8


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Let threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """Run a function in threads that begin together, and return their results; fail with an error of theirs."""
    barrier, results, errors = threading.Barrier(count), [None] * count, []

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return results


# Writing


def begun_buffer(store: lmcstore.Store) -> tuple[Any, Any]:
    capture = store._pool.begin("run")
    return capture, capture.reserve("a", _core.DTYPES["u8"], array("Q", [1 << 20]))


def test_close_waits_for_a_thread_that_fills_a_buffer(store: lmcstore.Store) -> None:
    """Elsewhere its room would be another snapshot's, or unmapped."""
    capture, buffer = begun_buffer(store)
    with pytest.raises(lmcstore.InvalidError, match="from inside"):
        store.close()  # as a signal's handler in this thread may do
    closer = threading.Thread(target=store.close)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()
    memoryview(buffer)[:] = bytes(1 << 20)
    del buffer
    closer.join()
    assert store.closed and capture.done


def test_a_capture_does_not_end_before_its_buffer(store: lmcstore.Store) -> None:
    capture, buffer = begun_buffer(store)
    other = capture.reserve("b", _core.DTYPES["u8"], array("Q", [4]))
    for end in (capture.abort, lambda: capture.commit(None, 0, 0, (), (), (), None, 0)):
        with pytest.raises(lmcstore.InvalidError, match="Buffer"):
            end()
    memoryview(buffer)[:] = bytes(range(256)) * (1 << 12)
    del buffer
    with pytest.raises(lmcstore.InvalidError, match="Buffer"):
        capture.abort()
    memoryview(other)[:] = b"1234"
    del other
    number = capture.commit(None, 0, 0, (), (), (), None, 0)
    found = dict(store["run"][number].tensors())
    contents = [np.asarray(found[name]).tobytes() for name in "ab"]
    assert contents == [bytes(range(256)) * (1 << 12), b"1234"]


def test_a_failed_copy_holds_no_buffer(store: lmcstore.Store) -> None:
    capture = store._pool.begin("run")
    room = partial(capture.reserve, "a", _core.DTYPES["f32"], array("Q", [3]))
    with pytest.raises(lmcstore.UnsupportedError) as caught:
        torch_of(torch).copy_into(torch.zeros(4), room, "a")
    assert caught.value.__context__ is not None  # with its traceback
    capture.abort()


def test_a_file_that_cannot_be_read_holds_no_buffer(store: lmcstore.Store, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    from lmcstore.fsspec import _Files

    (tmp_path / "x").write_bytes(b"data")
    with (tmp_path / "x").open("ab") as unreadable, pytest.raises(OSError, match="Bad file"):
        _Files(store._pool).put("/x", unreadable.fileno())
    store.close()


def test_a_file_that_becomes_shorter(store: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    from lmcstore.fsspec import _Files

    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    (tmp_path / "x").write_bytes(b"data")
    with (tmp_path / "x").open("rb") as file, pytest.raises(OSError, match="became shorter"):
        _Files(store._pool).put("/x", file.fileno())


# Reading


def test_a_name_is_found_while_another_thread_fills_the_table(
    shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.snapshot({"model": {f"layer{number}": np.zeros(1) for number in range(50)}})
    shelf.snapshot({"model": {f"layer{number}": np.ones(1) for number in range(50)}})
    first, second = shelf[1], shelf[2]
    assert first._decode().root is second._decode().root  # equal structures share their nodes
    found: list[Any] = []
    usual = nodes.key_text

    def text_of(key: Any) -> str:
        if key == "layer3" and not found:  # the table of "model" is under way
            found.append(None)
            found.extend(together(lambda number: second[f"model.layer{40 + number}"]))
        return usual(key)

    monkeypatch.setattr(nodes, "key_text", text_of)
    assert first["model.layer49"] == 0
    assert len(found) == 1 + THREADS and all(one == 1 for one in found[1:])


def test_threads_read_parts_of_one_snapshot(shelf: lmcstore.Shelf) -> None:
    names = [f"layer{number}" for number in range(2000)]
    for value in range(4):
        shelf.snapshot(
            {
                "model": {name: np.full(1, value) for name in names},
                "list": list(range(100)),
            }
        )
    for value in range(4):
        snap = shelf[value + 1]

        def read(number: int, snap: lmcstore.Snapshot = snap, value: int = value) -> None:
            name = names[-1 - number]
            assert snap["model"][name][:] == value and snap[f"model.{name}"] == value and snap["list"][7] == 7
            assert snap.rows(f"model.{name}", 0, 1) == value and len(snap.select("model.*1")) == 200

        together(read)


def test_a_read_without_torch_leaves_the_structure_alone(
    shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, data = shelf.store._pool.begin("run"), np.arange(4, dtype="f4")
    address = array("Q", [data.__array_interface__["data"][0]])
    capture.put(["a"], array("I", [_core.DTYPES["f32"] | 1 << 8]), array("Q", [4]), b"", address)
    snap = shelf[capture.commit(None, 0, 0, (), (), (), None, False)]
    with monkeypatch.context() as without:
        without.setattr(decode, "_torch_is_there", lambda: False)
        assert type(snap.state_dict()["a"]) is np.ndarray and type(snap.state_dict("a")) is np.ndarray
        assert type(snap.rows("a")) is np.ndarray
    assert all(ref.is_torch for ref in nodes.refs_of(snap._decode().root))
    if HAS_TORCH:
        assert type(snap.state_dict()["a"]).__name__ == "Tensor"


# pymm


def test_threads_that_open_one_shelf_share_it(folder: str) -> None:
    for turn in range(10):
        shelves = together(lambda number, turn=turn: pymm.shelf(f"s{turn}", size_mb=8, pmem_path=folder))
        assert len({id(one.__dict__) for one in shelves}) == 1
        shelves[0].x = 5
        assert all(one.x == 5 for one in shelves)


def test_a_variable_that_is_opened_never_hides_a_newer_one(s: pymm.shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    s.x = np.zeros(3)
    s._names.forget()
    usual, threads = s._pool.open, []

    def opened(name: str) -> Any:
        core = usual(name)
        if not threads:  # another thread assigns while this one opens
            threads.append(threading.Thread(target=setattr, args=(s, "x", np.ones(4))))
            threads[0].start()
            threads[0].join(0.3)
        return core

    monkeypatch.setattr(s._pool, "open", opened)
    assert s.x.shape in ((3,), (4,))
    threads[0].join()
    assert s.x.shape == (4,) and s.x.tolist() == [1] * 4


def test_threads_use_the_attributes_of_one_shelf(s: pymm.shelf) -> None:
    for number in range(60):
        setattr(s, f"x{number}", number)
    for _ in range(5):
        s._names.forget()

        def use(number: int) -> None:
            for name in range(60):
                assert getattr(s, f"x{name}") == name and f"x{name}" in s
                assert getattr(s, f"x{name}") is getattr(s, f"x{name}")

        together(use)


def test_threads_append_to_one_list(s: pymm.shelf) -> None:
    s.items_of_all = pymm.linked_list()
    together(lambda number: [s.items_of_all.append((number, "text")[step % 2]) for step in range(40)])
    found = list(s.items_of_all)
    assert len(found) == 40 * THREADS and found.count("text") == 20 * THREADS
    assert all(found.count(number) == 20 for number in range(THREADS))


def test_a_structure_is_saved_and_loaded_by_threads(s: pymm.shelf) -> None:
    s.save([np.zeros(10)] * 5, "state")

    def work(number: int) -> None:
        for step in range(10):
            if number % 2:
                s.save([np.full(10, step)] * 5, "state")
            else:
                loaded = s.load("state")
                assert len(loaded) == 5 and all((one == loaded[0]).all() for one in loaded)

    together(work)
    assert len(s.get_item_names(all=True)) == 1 + 5 + 1  # the structure by two names, and its arrays


def test_a_transaction_that_follows_another_is_not_forgotten(s: pymm.shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    s.n = 1
    s.tx_begin_all()
    first, usual = s._names.transaction, s._pool.growing

    def committed(function: Callable[..., Any], *args: Any) -> Any:
        result = usual(function, *args)
        s.tx_begin_all()  # as another thread does that has waited
        return result

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(s._pool, "growing", committed)
        s.tx_end()
    assert s._names.transaction is not None and s._names.transaction is not first
    s.tx_end()


def test_a_child_forked_under_a_lock_does_not_wait_for_it(s: pymm.shelf) -> None:
    s.x = 1
    s._names.forget()
    held, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with s._names.lock, opening:
            held.set()
            ended.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            s.x  # noqa: B018 (a child can't open variables)
        except RuntimeError:
            os._exit(7)
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    ended.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7


# Live variables


@pytest.mark.parametrize("initial", [0, 7])
def test_a_value_that_threads_open_or_make_counts_all(shelf: lmcstore.Shelf, initial: int) -> None:
    for turn in range(20):
        together(lambda number, turn=turn: shelf.live.value(f"n{turn}", initial=initial).add(1))
        assert shelf.live[f"n{turn}"] == initial + THREADS
    with pytest.raises(lmcstore.InvalidError, match="can't hold"):
        shelf.live.value("small", "uint8", initial=256)
    assert "small" not in shelf.live


def test_two_stores_of_one_pool_make_one_value(store: lmcstore.Store) -> None:
    with lmcstore.open(store.path, background=False) as other:
        stores = [store, other]
        for turn in range(20):
            together(lambda number, turn=turn: stores[number % 2]["run"].live.value(f"n{turn}").add(1))
            assert store["run"].live[f"n{turn}"] == other["run"].live[f"n{turn}"] == THREADS


def test_a_tensor_that_threads_open_or_make_is_one(shelf: lmcstore.Shelf) -> None:
    for turn in range(20):
        made = together(lambda number, turn=turn: shelf.live.tensor(f"t{turn}", (2, 4), "float32"))
        assert len({one.array.__array_interface__["data"][0] for one in made}) == 1
        made[0].array[...] = turn
        assert all((one.array == turn).all() for one in made)
        del made
    with pytest.raises(lmcstore.ExistsError, match="as f32 of shape"):
        shelf.live.tensor("t0", (2, 5), "float32")
    with pytest.raises(lmcstore.ExistsError):
        shelf.live.create("t0", (2, 4), "float32")
    shelf.live["v"] = 5
    with pytest.raises(lmcstore.InvalidError, match="is a value, not a tensor"):
        shelf.live.tensor("v", 4)


def test_a_tensor_that_another_thread_makes_meanwhile_is_opened(
    shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, turns = lmcstore.Live.open, [0]

    def opened(self: lmcstore.Live, name: str) -> Any:
        turns[0] += 1
        try:
            return usual(self, name)
        finally:
            if turns[0] == 1:
                shelf.live.create(name, 4).array[...] = 5

    monkeypatch.setattr(lmcstore.Live, "open", opened)
    assert shelf.live.tensor("w", 4).array.tolist() == [5] * 4
    turns[0] = 0
    with pytest.raises(lmcstore.ExistsError, match="as f64 of shape"):
        shelf.live.tensor("v", 5)


def test_one_of_different_shapes_wins(shelf: lmcstore.Shelf) -> None:
    def make(number: int) -> bool:
        try:
            return shelf.live.tensor("t", 2 + number % 2).shape == (2 + number % 2,)
        except lmcstore.ExistsError:
            return False

    made = together(make)
    assert made.count(True) == THREADS // 2


def test_a_value_that_another_thread_erases_meanwhile_is_made_again(
    shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, turns = lmcstore.Live.open, [0]

    def opened(self: lmcstore.Live, name: str) -> Any:
        turns[0] += 1
        if turns[0] == 2:
            shelf.live.erase(name)
        try:
            return usual(self, name)
        finally:
            if turns[0] == 1:  # another thread makes it after this look-up, and erases it before the next
                shelf.store._pool.live_put("run", name, b"T", b"python")

    monkeypatch.setattr(lmcstore.Live, "open", opened)
    assert shelf.live.value("n", initial=3).add(1) == 3 and turns[0] == 2


def test_threads_make_the_first_of_a_shelf(store: lmcstore.Store) -> None:
    for turn in range(20):
        shelf = store[f"s{turn}"]
        kinds: list[Callable[[int], Any]] = [
            lambda number, shelf=shelf: shelf.snapshot({"w": np.full(3, number)}, step=number),
            lambda number, shelf=shelf: shelf.live.value("n").add(1),
            lambda number, shelf=shelf: shelf.live.__setitem__(f"v{number}", number),
            lambda number, shelf=shelf: setattr(shelf, "policy", "keep_raw=3"),
        ]
        together(lambda number, kinds=kinds: kinds[number % len(kinds)](number))
        assert len(shelf) == 2 and shelf.live["n"] == 2 and len(shelf.live) == 3 and shelf.keep_raw == 3
        assert sorted(snap.step for snap in shelf) == [0, 4]


def test_one_thread_forks_to_a_name(store: lmcstore.Store) -> None:
    snap = store["run"].snapshot({"w": np.zeros(3)})
    for turn in range(10):

        def fork(number: int, turn: int = turn) -> bool:
            try:
                snap.fork(f"f{turn}")
            except lmcstore.ExistsError:
                return False
            return True

        assert together(fork).count(True) == 1


def test_threads_and_processes_create_one_pool(pool_path: str, run_python: Any) -> None:
    def create(number: int) -> int:
        with lmcstore.open(pool_path, background=False) as store:
            store["run"].live.value("n").add(1)
            return len(store["run"].live)

    assert together(create) == [1] * THREADS
    with lmcstore.open(pool_path, background=False) as store:
        assert store["run"].live["n"] == THREADS
    code = "import sys, lmcstore\nwith lmcstore.open(sys.argv[1], wait=60) as s: s['run'].live.value('n').add(1)"
    results = together(lambda number: run_python(code, f"{pool_path}.2"), 4)
    assert [done.stderr for done in results] == [""] * 4
    with lmcstore.open(f"{pool_path}.2", background=False) as store:
        assert store["run"].live["n"] == 4


def test_named_memory_is_made_once(s: pymm.shelf) -> None:
    for turn in range(20):
        made = together(lambda number, turn=turn: s.mr.create_named_memory(f"m{turn}", 64))
        assert sum(one is not None for one in made) == 1
