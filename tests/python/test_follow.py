# SPDX-License-Identifier: BSD-3-Clause
"""Followers of a shelf: in the writer's threads, in other processes, beside pruning, closes, kills and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable

import lmcstore
import pytest

WRITER = """
import sys, lmcstore
with lmcstore.open(sys.argv[1], background=False) as store:
    print("ready", flush=True)
    for line in sys.stdin:  # how many to take
        for _ in range(int(line)):
            store["run"].snapshot({"w": b"x"})
        print("done", flush=True)
"""
INTERRUPTED = """
import sys, lmcstore
with lmcstore.open(sys.argv[1], "r") as store:
    try:
        print("ready", flush=True)
        store["run"].wait_next()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


class Writer:
    """A process that takes snapshots on request."""

    def __init__(self, path: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.expect("ready")

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def take(self, count: int, *, wait: bool = True) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        if wait:
            self.expect("done")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def take(shelf: lmcstore.Shelf, count: int) -> None:
    for _ in range(count):
        shelf.snapshot({"w": b"x"}, step=10 * (shelf.latest.number if shelf.latest else 0))


def numbers(snapshots: Iterable[lmcstore.Snapshot]) -> list[int]:
    return [snapshot.number for snapshot in snapshots]


def test_what_is_there_and_what_comes(shelf: lmcstore.Shelf) -> None:
    early = shelf.follow(timeout=0)
    take(shelf, 3)
    shelf.tag(2, "best")
    now = shelf.follow(timeout=0)  # before its first next
    take(shelf, 2)
    assert numbers(early) == [1, 2, 3, 4, 5]
    assert numbers(now) == [4, 5]
    for start in (2, "2", "best", "step:10", "latest~3", -4, shelf[2]):
        assert numbers(shelf.follow(start, timeout=0)) == [2, 3, 4, 5]
    assert numbers(shelf.follow(0, 0)) == numbers(shelf.follow(1, 0)) == [1, 2, 3, 4, 5]
    late = shelf.follow(start=7, timeout=0)
    take(shelf, 3)
    assert numbers(late) == [7, 8]
    assert next(late, None) is None


def test_wait_next(shelf: lmcstore.Shelf) -> None:
    assert shelf.wait_next(0) is None
    take(shelf, 2)
    assert shelf.wait_next(timeout=0.001) is None
    assert shelf.wait_next(after=0) == shelf[1]
    assert shelf.wait_next(after=shelf[1]) == shelf[2]
    assert shelf.wait_next(0, after="latest") is None
    taker = threading.Thread(target=lambda: (go.wait(), take(shelf, 1)))
    go = threading.Event()
    taker.start()
    followed = shelf.follow()
    go.set()
    assert next(followed) == shelf.wait_next(after=2) == shelf[3]
    taker.join()


def test_wrong_places(shelf: lmcstore.Shelf) -> None:
    other = shelf.store["other"].snapshot({})
    for start in ("latest", -1, "best"):
        with pytest.raises(lmcstore.NotFoundError):
            shelf.follow(start)
    take(shelf, 1)
    for start in (-2, "best", "step:5", "latest~1", 2**64, "9" * 99):
        with pytest.raises(lmcstore.NotFoundError):
            shelf.follow(start)
    for start in ("1..", "", "a b:", other):
        with pytest.raises(lmcstore.InvalidError):
            shelf.follow(start)  # type: ignore[arg-type]
    for start in (1.5, True, [1]):
        with pytest.raises(lmcstore.UnsupportedError):
            shelf.follow(start)  # type: ignore[arg-type]
    with pytest.raises(lmcstore.InvalidError):
        shelf.follow(timeout=float("nan"))
    with pytest.raises(lmcstore.InvalidError, match="names"):
        shelf.store["a@b"].follow()


def test_threads_of_the_writer(shelf: lmcstore.Shelf) -> None:
    """The GIL is free during a wait: else the first one would be endless."""
    seen: list[list[int]] = []

    def follow(followed: Iterable[lmcstore.Snapshot]) -> None:
        got = []
        for snapshot in followed:
            got.append(snapshot.number)
            assert snapshot["w"] == b"x"
            if snapshot.number == 30:
                break
        seen.append(got)

    threads = [threading.Thread(target=follow, args=(shelf.follow(),)) for _ in range(3)]
    taker = threading.Thread(target=take, args=(shelf, 30))
    for thread in threads:
        thread.start()
    taker.start()
    for thread in (*threads, taker):
        thread.join()
    assert seen == [list(range(1, 31))] * 3


def test_only_durable_snapshots_come(shelf: lmcstore.Shelf) -> None:
    followed = shelf.follow()
    pending = shelf.snapshot({"w": b"x" * 1_000_000}, wait=False)
    snapshot = next(followed)
    assert snapshot == pending.wait() and snapshot["w"] == b"x" * 1_000_000


def test_another_process_writes_dies_and_is_replaced(pool_path: str) -> None:
    writer = Writer(pool_path)
    try:
        with lmcstore.open(pool_path, "r") as store:
            followed = store["run"].follow()
            writer.take(20, wait=False)
            assert numbers(next(followed) for _ in range(20)) == list(range(1, 21))
            writer.expect("done")
            writer.kill()
            writer = Writer(pool_path)
            writer.take(5, wait=False)
            assert numbers(next(followed) for _ in range(5)) == list(range(21, 26))
            writer.expect("done")
            assert numbers(store["run"].follow(24, timeout=0)) == [24, 25]
    finally:
        writer.kill()


def test_removed_snapshots_are_passed_over(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    take(shelf, 8)
    followed = shelf.follow(1, timeout=0)
    assert next(followed).number == 1
    for number in (1, 2, 3):
        shelf.remove(number)
    assert next(followed).number == 4
    find = shelf._find

    def find_late(which: str) -> lmcstore.Snapshot:
        if which in ("5", "8"):
            shelf.remove(int(which))
        return find(which)

    monkeypatch.setattr(shelf, "_find", find_late)
    assert numbers(followed) == [6, 7]
    assert numbers(shelf.follow(2, timeout=0)) == [4, 6, 7]


def test_pruning_beside_a_follower(shelf: lmcstore.Shelf) -> None:
    shelf.policy = "keep=last:2 grace=none"
    followed = shelf.follow(timeout=0)
    seen = []
    for _ in range(20):
        take(shelf, 3)
        shelf.prune()
        seen += numbers(shelf.follow(seen[-1] + 1 if seen else 1, timeout=0))
    assert seen == [number for number in range(1, 61) if number % 3 != 1]
    assert numbers(followed) == [59, 60]


def test_a_close_in_another_thread(store: lmcstore.Store) -> None:
    take(store["run"], 1)
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            next(store["run"].follow())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    store.close()
    thread.join()
    assert type(failures[0]) is lmcstore.InvalidError and "closed" in str(failures[0])


def test_the_shelf_goes(shelf: lmcstore.Shelf) -> None:
    def renew() -> None:
        shelf.drop()
        take(shelf, 5)

    for act in (shelf.drop, renew, lambda: lmcstore.Shelf(shelf.store, "run").rename("ran")):
        take(shelf, 2)
        followed, all_of_it = shelf.follow(), shelf.follow(1)
        next(all_of_it)
        act()
        for one in (followed, all_of_it):
            with pytest.raises(lmcstore.NotFoundError, match="removed or renamed"):
                next(one)
            assert next(one, None) is None


def test_a_rename_by_the_same_object_goes_on(shelf: lmcstore.Shelf) -> None:
    take(shelf, 1)
    followed = shelf.follow()
    shelf.rename("ran")
    take(shelf, 1)
    assert next(followed) == shelf[2]


def test_the_pool_is_deleted(pool_path: str) -> None:
    with lmcstore.open(pool_path, background=False) as store:
        take(store["run"], 1)
    with lmcstore.open(pool_path, "r") as store:
        followed = store["run"].follow(1)
        assert next(followed).number == 1
        os.unlink(pool_path)
        with pytest.raises(lmcstore.NotFoundError, match="deleted or replaced"):
            next(followed)


def test_a_forked_child_gets_an_error(shelf: lmcstore.Shelf) -> None:
    followed = shelf.follow()
    child = os.fork()
    if child == 0:
        try:
            next(followed)
        except lmcstore.Error:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_interrupt_ends_a_wait(pool_path: str) -> None:
    lmcstore.open(pool_path, background=False).close()
    waiter = subprocess.Popen([sys.executable, "-c", INTERRUPTED, pool_path], stdout=subprocess.PIPE, text=True)
    assert waiter.stdout is not None
    assert waiter.stdout.readline().strip() == "ready"
    waiter.send_signal(signal.SIGINT)
    assert waiter.communicate()[0].strip() == "interrupted" and waiter.returncode == 0
