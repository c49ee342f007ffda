# SPDX-License-Identifier: BSD-3-Clause
"""Keys of newest entries: the newest state of a run that rests is one archive."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore._remote import late, push, state
from lmcstore._remote.place import Place
from lmcstore._remote.verify import verify
from test_remote_repair import flip


@pytest.fixture
def url() -> str:
    return f"memory://{secrets.token_hex(8)}"


@pytest.fixture(autouse=True)
def small_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "_LEAST_BYTES", 0)
    monkeypatch.setattr(late, "_PAUSE_S", 0.0)


def values_of(step: int) -> dict[str, np.ndarray]:
    """Of eight tensors, each step changes one."""
    latest = {n: step - (step - n) % 8 for n in range(8)}
    weights = {
        f"w{n}": np.random.default_rng([n, k + 8]).normal(0, 0.02, 12_500).astype(np.float32) for n, k in latest.items()
    }
    return weights | {"same": np.arange(5000), "step": np.array(step)}


def fill(store: lmcstore.Store, *steps: int) -> None:
    for step in steps:
        store["run"].snapshot(values_of(step), step=step)


def newest(url: str) -> tuple[state.Entry, int]:
    """Return the newest entry and the number of archives that it needs."""
    with Place(url) as place:
        there = state.read(place).shelf("run")
        assert there.latest is not None
        return there.latest, len(there.chain(there.latest.number))


def check(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    """Read all snapshots in all ways."""
    with Place(url) as place:
        assert verify(place, (), store._create)["damages"] == []
    with lmcstore.open(url) as there:
        for snapshot in there["run"]:
            assert snapshot.step is not None
            for name, value in values_of(snapshot.step).items():
                assert np.array_equal(snapshot[name], value)
    for what in (None, "run@latest"):
        path = tmp_path / f"{secrets.token_hex(4)}.pool"
        lmcstore.pull(url, path, what)
        with lmcstore.open(path, "r") as copy:
            for snapshot in copy["run"]:
                assert snapshot._handle.digest() == store["run"][snapshot.number]._handle.digest()


def test_a_push_that_ends(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    """Its newest snapshot gets a key, once; later ones build on it."""
    fill(store, 1, 2, 3)
    first = store.push(url)
    entry, archives = newest(url)
    assert first["keys"] == 1 and archives == 1
    assert entry.key is not None and entry.key.bytes < entry.raw_bytes and entry.key.first == 0
    check(store, url, tmp_path)
    assert store.push(url) == first | {"snapshots": 0, "keys": 0, "bytes": 0}
    fill(store, 4)
    assert store.push(url)["keys"] == 0
    assert newest(url)[1] == 2
    check(store, url, tmp_path)


def test_what_it_may_cost(store: lmcstore.Store, url: str) -> None:
    """After the first key, a push that follows sends a tenth of its bytes for keys at most, and one key more."""
    fill(store, 1, 2)
    with Place(url) as place:
        pusher = push.Pusher(store, place, (), False, follows=True)
        for step in range(3, 40):
            pusher.push(waits=False)
            pusher.want_late_keys()
            pusher.push(waits=True)
            keys = pusher._late.bytes
            assert keys <= 450_000 + pusher.bytes / 10
            fill(store, step)
        assert pusher.keys >= 2
        pusher.close()


def test_a_pause(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    fill(store, 1, 2)
    done = threading.Event()

    def look(what: str, count: int, total: int) -> None:
        done.set()

    results: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: results.append(store.push(url, follow=True, timeout=1, progress=look)))
    thread.start()
    assert done.wait(60)
    thread.join(60)
    assert results[0]["snapshots"] == 2 and results[0]["keys"] == 1
    check(store, url, tmp_path)


def test_a_pause_is_longer_than_the_steps(store: lmcstore.Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(late.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(late, "_PAUSE_S", 10.0)
    with Place(url) as place:
        pusher = push.Pusher(store, place, (), False, follows=True)
        found = pusher._late

        def looks(seconds: float, snapshots: int) -> bool:
            now[0] += seconds
            pusher.snapshots = snapshots
            return found.is_due()

        assert [looks(9, 0), looks(0, 1), looks(9, 1), looks(1, 1)] == [False, False, False, True]
        assert [looks(2, 2), looks(40, 2), looks(8, 2)] == [False, False, True]
        pusher.close()


def test_a_snapshot_goes_first(store: lmcstore.Store, url: str) -> None:
    """A key waits while a snapshot is being sent, and is given up when the push ends."""
    fill(store, 1, 2)
    with Place(url) as place:
        pusher = push.Pusher(store, place, (), False, follows=True)
        pusher.push(waits=True)
        before = pusher.bytes
        pusher._late.quiet.clear()
        pusher.want_late_keys()
        assert pusher._key is not None
        while not pusher._key[2].running():
            time.sleep(0.01)
        fill(store, 3)
        assert pusher._late.bytes == 0
        assert pusher.push(waits=False) and pusher.snapshots == 3
        pusher.push(waits=True)
        assert pusher.keys == 1 and pusher.bytes > before
        entry, archives = newest(url)
        assert archives == 2 and entry.key is None
        pusher._late.quiet.clear()
        there = pusher._state.shelf("run").latest
        assert there is not None
        pusher._key = "run", 3, pusher._keys.submit(pusher._late.make, "run", there)
        key = pusher._key[2]
        while not key.running():
            time.sleep(0.01)
        pusher.close()
        assert key.result(60) is None


def test_an_ordinary_key_is_given_up(store: lmcstore.Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the push ends, for any reason, the rest of a key is not sent."""
    fill(store, 1, 2)
    with Place(url) as place:
        pusher = push.Pusher(store, place, (), False, follows=True)
        pusher.push(waits=True)
        may_go, begun = threading.Event(), threading.Event()
        name = push._name

        def slow(data: Any, raw: Any) -> bytes:
            begun.set()
            assert may_go.wait(60)
            return name(data, raw)

        monkeypatch.setattr(push, "_name", slow)
        before = pusher.bytes
        pusher.want_key("run", 2)
        assert pusher._key is not None and begun.wait(60)
        key = pusher._key[2]
        pusher._late.stop()
        may_go.set()
        pusher.close()
        assert key.result(60) is None and pusher.bytes == before


def test_in_place_of_a_key(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    """A key that is long itself is replaced, and no later key has its payloads."""
    store["run"].policy = "links=2"
    fill(store, 1, 2, 3)
    with Place(url) as place:
        pusher = push.Pusher(store, place, (), False)
        pusher.push(waits=True)
        old, _ = newest(url)
        assert old.key is not None and pusher._parts["run"]
        pusher._late._ratios["run"] = 0.1
        pusher.finish_late_keys()
        new, _ = newest(url)
        assert new.key not in (None, old.key)
        assert all(part.object != old.key.object for part in pusher._parts["run"].values())
        for step in range(4, 12):
            fill(store, step)
            pusher.push(waits=True)
        pusher.close()
    check(store, url, tmp_path)


def test_a_pull_reads_each_archive_once(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    """Also below deep entries and keys; what the pool has is neither counted nor changed."""
    store["run"].policy = "links=2"
    for step in range(1, 10):
        fill(store, step)
        store.push(url)
    with Place(url) as place:

        def deepen(draft: state.State) -> bool:
            shelf = draft.shelf("run")
            deep = {one.number: one._replace(deep=True) for one in shelf.entries(3, 6)}
            shelf.update(deep)
            return True

        state.change(state.read(place), "0" * 32, deepen)
        entries = list(state.read(place).shelf("run").entries())
    assert entries[0].key is None and any(one.key is not None for one in entries[6:])
    archives = sum(one.archive.bytes for one in entries)
    path = tmp_path / "all.pool"
    assert lmcstore.pull(url, path) == {"snapshots": 9, "snapshots_skipped": 0, "bytes": archives}
    path = tmp_path / "some.pool"
    assert lmcstore.pull(url, path, "run@4")["snapshots"] == 1
    with lmcstore.open(path, "r+", background=False) as copy:
        copy["run"][4].metrics["own"] = 4.0
    assert lmcstore.pull(url, path, "run@5..6")["snapshots"] == 2
    with lmcstore.open(path, "r") as copy:
        assert [one.number for one in copy["run"]] == [4, 5, 6]
    done = lmcstore.pull(url, path)
    assert (done["snapshots"], done["snapshots_skipped"]) == (6, 3) and done["bytes"] <= archives
    with lmcstore.open(path, "r") as copy:
        assert copy["run"][4].metrics["own"] == 4.0
        for one in copy["run"]:
            assert one.number == 4 or one._handle.digest() == store["run"][one.number]._handle.digest()


def test_a_key_serves_if_the_archive_is_damaged(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    store["run"].policy = "links=2"
    for step in range(1, 10):
        fill(store, step)
        store.push(url)
    with Place(url) as place:
        entry = next(one for one in list(state.read(place).shelf("run").entries())[4:] if one.key is not None)
    path = tmp_path / "copy.pool"
    lmcstore.pull(url, path, f"run@{entry.number - 1}")
    flip(url, entry.archive, is_end=True)
    assert lmcstore.pull(url, path, f"run@{entry.number - 1}..{entry.number}")["snapshots_skipped"] == 1
    with lmcstore.open(path, "r") as copy:
        same = store["run"][entry.number]._handle.digest()
        assert copy["run"][entry.number]._handle.digest() == same and len(copy["run"]) == 2


def test_a_damaged_snapshot_gets_no_key(
    store: lmcstore.Store, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is not tried again, and the snapshots are there all the same."""
    fill(store, 1, 2, 3)
    tries = failing(monkeypatch, lmcstore.DamagedError("damaged"))
    with Place(url) as place:
        pusher = push.Pusher(store, place, (), False, follows=True)
        pusher.push(waits=True)
        pusher.finish_late_keys()
        pusher.want_late_keys()
        assert pusher._key is None
        pusher.close()
    assert (pusher.snapshots, pusher.keys, len(tries)) == (3, 0, 1)
    check(store, url, tmp_path)


def test_a_key_that_fails_is_tried_again(
    store: lmcstore.Store, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While it follows, after waits that become longer; a new snapshot begins anew. At the end, twice more."""
    now = [0.0]
    monkeypatch.setattr(late.time, "monotonic", lambda: now[0])
    waits: list[float] = []
    tries = failing(monkeypatch, lmcstore.InputOutputError("away"))

    def fails_after(seconds: float) -> bool:
        now[0] += seconds
        count = len(tries)
        pusher.want_late_keys()
        if pusher._key is not None:
            pusher._take_key()
        return len(tries) > count

    with Place(url) as place, monkeypatch.context() as patch:
        patch.setattr(push.time, "sleep", waits.append)
        pusher = push.Pusher(store, place, (), False, follows=True)
        fill(store, 1, 2, 3)
        pusher.push(waits=True)
        assert [fails_after(seconds) for seconds in (0, 1, 1, 3, 1, 8)] == [True, False, True, False, True, True]
        assert [fails_after(300) for _ in range(8)] == [True] * 8
        fill(store, 4)
        pusher.push(waits=True)
        assert [fails_after(seconds) for seconds in (0, 1, 1)] == [True, False, True]
        count = len(tries)
        pusher.finish_late_keys()
        assert len(tries) == count + 3 and waits == [2.0, 2.0] and pusher.keys == 0
        tries.end()
        pusher.finish_late_keys()
        assert pusher.keys == 1
        pusher.close()
    check(store, url, tmp_path)


class Tries(list[int]):
    """The tries to make a late key, which fail until the end."""

    ended = False

    def end(self) -> None:
        self.ended = True


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Tries:
    """Let late keys fail."""
    dump: Callable[..., Any] = push.Pusher.dump
    tries = Tries()

    def fail(self: push.Pusher, *arguments: Any, alone: bool = False, **options: Any) -> Any:
        if alone and not tries.ended:
            tries.append(len(tries))
            raise error
        return dump(self, *arguments, alone=alone, **options)

    monkeypatch.setattr(push.Pusher, "dump", fail)
    return tries
