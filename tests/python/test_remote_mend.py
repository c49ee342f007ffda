# SPDX-License-Identifier: BSD-3-Clause
"""Repairs of the state of a run in an object store: its newest commit, and the nodes of its shelves."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore._remote import codec, mend, state, sweep
from lmcstore._remote.command import main
from lmcstore._remote.place import Place
from lmcstore._remote.push import Pusher
from test_remote_push import expect, fill, pulled
from test_remote_ranks import push, save
from test_remote_repair import damaged, sweep_later, tensors, unreadable


@pytest.fixture
def memory() -> str:
    return f"memory://{secrets.token_hex(8)}"


def small(store: lmcstore.Store, first: int, last: int, url: str | None = None) -> None:
    """Take snapshots of a few bytes, and push each alone."""
    for step in range(first, last + 1):
        store["run"].snapshot({"x": np.full(3, step)}, step=step, metrics={"loss": float(step)})
        if url is not None:
            store.push(url)


def check(url: str, store: lmcstore.Store, numbers: list[int]) -> None:
    with lmcstore.open(url) as there:
        assert [one.number for one in there["run"]] == numbers
        for one in there["run"]:
            assert one["x"].numpy().tolist() == [one.step] * 3
            if one.number in store["run"]:
                assert one.metrics == store["run"][one.number].metrics


def newest(url: str) -> tuple[str, bytes]:
    """Return the name of the newest commit, and its bytes."""
    with Place(url) as place:
        name = state.log_name(state.last_number(place))
        return name, place.get(name)


# The newest commit


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_the_head_has_the_newest_commit(store: lmcstore.Store, memory: str, how: str) -> None:
    small(store, 1, 3, memory)
    name, data = newest(memory)
    damaged(memory, name, how)
    assert store.push(memory, repair=True)["left"] == []
    with Place(memory) as place:
        assert how == "missing" or place.get(name) == data
        place.delete(["head"])
    check(memory, store, [1, 2, 3])


@pytest.mark.parametrize("head", ["missing", "flipped", "old"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_commit_before_takes_its_place(
    store: lmcstore.Store, memory: str, head: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What it lacks is sent again."""
    small(store, 1, count, memory)
    name, _ = newest(memory)
    with Place(memory) as place:
        if head == "old" and count > 1:
            place.put("head", place.get(state.log_name(1)))
        elif head != "old":
            damaged(memory, "head", head)
        else:
            place.delete(["head"])
    damaged(memory, name, "flipped")
    for work in (lambda: store.push(memory), lambda: lmcstore.open(memory).shelves()):
        with pytest.raises(lmcstore.DamagedError, match=name):
            work()
    assert store.push(memory, repair=True)["left"] == []
    assert f"{name} is damaged" in caplog.text
    check(memory, store, [*range(1, count + 1)])
    with Place(memory) as place:
        place.delete(["head"])
    small(store, count + 1, count + 1, memory)
    check(memory, store, [*range(1, count + 2)])


def test_a_damaged_commit_behind_an_old_head(store: lmcstore.Store, memory: str) -> None:
    small(store, 1, 4, memory)
    name, data = newest(memory)
    with Place(memory) as place:
        place.put("head", place.get(state.log_name(1)))
    damaged(memory, state.log_name(2), "flipped")
    with pytest.raises(lmcstore.DamagedError):
        store.push(memory)
    assert store.push(memory, repair=True)["left"] == []
    check(memory, store, [1, 2, 3, 4])
    with Place(memory) as place:
        assert place.get(name) == data


@pytest.mark.parametrize("goes_first", [False, True])
def test_a_pusher_that_has_the_lost_state_goes_on(store: lmcstore.Store, memory: str, goes_first: bool) -> None:
    small(store, 1, 2, memory)
    with Place(memory) as place:
        other = Pusher(store, place, (), False)
        small(store, 3, 3)
        other.push(waits=True)
        damaged(memory, newest(memory)[0], "flipped")
        damaged(memory, "head", "flipped")
        small(store, 4, 4)
        if goes_first:
            other.push(waits=True)
        store.push(memory, repair=True)
        small(store, 5, 5)
        other.push(waits=True)
        other.close()
    check(memory, store, [1, 2, 3, 4, 5])


def test_a_pusher_that_has_the_lost_state_sends_it_again(
    store: lmcstore.Store, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep commits the mended state before it, and its next snapshot needs no other."""
    small(store, 1, 2, memory)
    with Place(memory) as place:
        other = Pusher(store, place, (), False)
        small(store, 3, 3)
        other.push(waits=True)
        for name in ("head", *(state.log_name(n) for n in range(2, state.last_number(place) + 1))):
            damaged(memory, name, "flipped")
        mend.commit(place)
        sweep.sweep(state.read(place))
        assert state.read(place).shelf("run").next < 4
        small(store, 4, 4)
        monkeypatch.setattr(other, "older", lambda *_: None)
        other.push(waits=True)
        other.close()
    check(memory, store, [1, 2, 3, 4])


def test_only_copies_stay_marked(tmp_path: Path, memory: str) -> None:
    """The commit that marked them is lost."""
    with lmcstore.open(tmp_path / "run.pool", "x", background=False) as store:
        store["run"].policy = "keep_raw=1 local=last:1"
        fill(store, 1, 4)
        store.push(memory, confirm="off")
        name, data = newest(memory)
        store.push(memory)
        store.compact()
        assert store["run"][1].remote == memory
        with Place(memory) as place:
            number = state.last_number(place)
            place.put("head", data)
            place.delete(state.log_name(one) for one in range(int(name[4:]) + 2, number + 1))
        damaged(memory, state.log_name(int(name[4:]) + 1), "flipped")
        assert store.push(memory, repair=True, confirm="off")["left"] == []
        with Place(memory) as place, pytest.raises(lmcstore.RemoteError, match="only copy"):
            sweep.remove(place, ["run@1"], dry_run=False)


@pytest.mark.parametrize("name", ["log", "index"])
def test_a_bad_connection_is_no_damage(
    store: lmcstore.Store, memory: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LEAF_ENTRIES", 2)
    small(store, 1, 6, memory)
    with Place(memory) as place:
        objects = {info.name: place.get(info.name) for folder in ("log", "index") for info in place.list(folder)}
    bad = newest(memory)[0] if name == "log" else nodes_of(memory)[0]
    get, count = Place.get, [0]

    def flips(self: Place, wanted: str, most: int = 1 << 30) -> bytes:
        data = bytearray(get(self, wanted, most))
        if wanted == bad:
            count[0] += 1
            data[count[0] % len(data)] ^= 1
        return bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "get", flips)
        with pytest.raises(lmcstore.DamagedError, match="Check the connection"):
            store.push(memory, repair=True)
    with Place(memory) as place:
        assert {one: place.get(one) for one in objects} == objects
    check(memory, store, [1, 2, 3, 4, 5, 6])


# Nodes


def nodes_of(url: str) -> list[str]:
    with Place(url) as place:
        return sorted(name for name in sweep.needed(state.read(place)) if name.startswith("index/"))


@pytest.fixture
def _small_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LEAF_ENTRIES", 2)
    monkeypatch.setattr(state, "NODE_NODES", 2)


@pytest.mark.usefixtures("_small_nodes")
@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_nodes_are_in_earlier_commits(store: lmcstore.Store, memory: str, how: str) -> None:
    small(store, 1, 10, memory)
    store["run"].remove(1)  # also what the pool lacks
    names = nodes_of(memory)
    assert any(name.startswith("index/1-4-") for name in names)  # nodes of nodes, too
    for name in names:
        with Place(memory) as place:
            data = place.get(name)
        damaged(memory, name, how)
        done = store.push(memory, repair=True)
        assert (done["repaired"], done["left"]) == (1, [])
        with Place(memory) as place:
            assert place.get(name) == data
    check(memory, store, [*range(1, 11)])


@pytest.mark.usefixtures("_small_nodes")
@pytest.mark.parametrize("has_log", [False, True])
def test_nodes_that_no_commit_has(store: lmcstore.Store, memory: str, has_log: bool) -> None:
    """They were written anew with later metrics, or the log was emptied: the pool sends what is missing."""
    small(store, 1, 12, memory)
    for number in range(1, 13):
        store["run"][number].metrics["loss"] = -1.0
    store.push(memory, mirror=True)
    with Place(memory) as place:
        there = state.read(place).shelf("run")
        leaf = next(node for node in there.nodes if node.level == 1)
        name = there._nodes.children(leaf, "run")[0].object  # type: ignore[union-attr]
        if not has_log:
            for number in range(1, state.last_number(place)):
                place.put(state.log_name(number), codec.stub())
    damaged(memory, name, "flipped")
    done = store.push(memory, repair=True)
    assert done["left"] == [] and done["repaired"] > 0
    check(memory, store, [*range(1, 13)])
    assert store.push(memory, repair=True)["repaired"] == 0


@pytest.mark.usefixtures("_small_nodes")
def test_nodes_that_nobody_has_are_named(
    store: lmcstore.Store, memory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store["run"].policy = "links=3"
    small(store, 1, 8, memory)
    with Place(memory) as place:
        for number in range(1, state.last_number(place)):
            place.put(state.log_name(number), codec.stub())
    for number in (1, 2):
        store["run"].remove(number)
    name = next(name for name in nodes_of(memory) if name.startswith("index/1-2-"))
    damaged(memory, name, "missing")
    store.close()
    assert main("push", [store.path, memory, "--repair"]) == 1
    shown = capsys.readouterr()
    assert "snapshots 1 to 2 of shelf" in shown.err and name in shown.err and "push the pool to a new URL" in shown.err
    lmcstore.pull(memory, tmp_path / "rest.pool", "run@8")


def test_sub_runs_of_ranks(place: Path) -> None:
    url = f"file://{place}/bucket"
    for step in (10, 20):
        save(place / "run", step)
        push(place / "run", url)
    for below in (url, f"{url}/rank-00001", f"{url}/rank-00003"):
        damaged(below, newest(below)[0], "flipped")
        damaged(below, "head", "missing")
    done = push(place / "run", url, repair=True)
    assert done["left"] == []
    assert main("verify", [url]) == 0
    with lmcstore.open(url) as store:
        store: Any
        assert [one.step for one in store["run"]] == [10, 20]


def test_everything_at_once(store: lmcstore.Store, memory: str, tmp_path: Path) -> None:
    """Each object of the run is damaged in turn; the pool repairs it, also without the head."""
    fill(store, 1, 4)
    store.push(memory)
    with Place(memory) as place:
        names = [info.name for folder in ("data", "index", "log") for info in place.list(folder)] + ["head"]
    for name in names:
        damaged(memory, name, "flipped")
        assert store.push(memory, repair=True)["left"] == []
        with pulled(memory, tmp_path) as copy:
            expect(copy, [1, 2, 3, 4])


@pytest.mark.usefixtures("_small_nodes")
def test_a_node_is_not_replaced_by_a_part_of_it(store: lmcstore.Store, memory: str) -> None:
    """The pool has only one of its two snapshots, and no commit has the other."""
    small(store, 1, 8, memory)
    with Place(memory) as place:
        for number in range(1, state.last_number(place)):
            place.put(state.log_name(number), codec.stub())
    store["run"].remove(1)
    name = next(name for name in nodes_of(memory) if name.startswith("index/1-2-"))
    with Place(memory) as place:
        data = place.get(name)
    damaged(memory, name, "missing")
    with pytest.raises(lmcstore.DamagedError, match=f"{name}.*snapshots 1 to 2"):
        store.push(memory, repair=True)
    with Place(memory) as place:  # from a backup of the bucket
        place.put(name, data)
    check(memory, store, [*range(1, 9)])


@pytest.mark.usefixtures("_small_nodes")
def test_later_keys_need_no_archive_of_a_lost_node(store: lmcstore.Store, memory: str) -> None:
    """The pool sends the node's snapshots anew. A sweep then deletes the archives that keys had bytes of."""
    store.shelf("run", create=True).policy = "links=3"
    with Place(memory) as place, contextlib.closing(Pusher(store, place, (), False)) as pusher:
        for step in range(1, 9):  # each in an object of its own
            store["run"].snapshot(tensors(step), step=step)
            pusher.push(waits=True)
        keys = [one.key for one in state.read(place).shelf("run").entries(3) if one.key is not None]
        assert keys and min(key.first for key in keys) <= 2
        for number in range(1, state.last_number(place)):
            place.put(state.log_name(number), codec.stub())
    damaged(memory, next(name for name in nodes_of(memory) if name.startswith("index/1-2-")), "missing")
    done = store.push(memory, repair=True)
    assert done["left"] == [] and done["repaired"] > 1
    sweep_later(memory)
    assert unreadable(memory) == []
