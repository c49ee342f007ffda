# SPDX-License-Identifier: BSD-3-Clause
"""Repairs of a run in an object store from a pool, and of a pool from a run; a limited rate."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lmcstore
import numpy as np
import pytest
from command import NEEDS_BIN
from lmcstore._remote import codec, outline, repair, state, sweep
from lmcstore._remote.place import Place
from lmcstore._remote.push import Pusher
from lmcstore._remote.verify import verify
from lmcstore.remote import mend
from test_cli_remote import cli
from test_remote_push import expect, fill, pulled
from test_remote_sweep import pass_hours
from test_scrub import damage


@pytest.fixture
def memory() -> str:
    return f"memory://{secrets.token_hex(8)}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket/run"


def damaged(url: str, name: str, how: str) -> None:
    with Place(url) as place:
        data = bytearray(place.get(name))
        if how == "missing":
            place.delete([name])
            return
        data[len(data) // 2] ^= 1
        place.put(name, bytes(data[:-1]) if how == "cut" else bytes(data))


@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
def test_each_piece_is_repaired(store: lmcstore.Store, memory: str, tmp_path: Path, how: str) -> None:
    """The pool repairs a damage of any piece, and all snapshots are restored."""
    fill(store, 1, 4)
    store["run"].policy = "links=2"
    store.push(memory)
    fill(store, 5, 6)
    store.push(memory)
    assert store.push(memory, repair=True)["repaired"] == 0
    with Place(memory) as place:
        there = state.read(place).shelf("run")
        assert any(entry.key for entry in there.entries())
        pieces = [info.name for info in place.list("data")]
    for name in pieces:
        with Place(memory) as place:
            is_needed = name in sweep.needed(state.read(place))  # not of a key that was made anew
        damaged(memory, name, how)
        done = store.push(memory, repair=True)
        assert (done["repaired"] > 0) == is_needed and done["left"] == []
        with pulled(memory, tmp_path) as copy:
            expect(copy, [1, 2, 3, 4, 5, 6])
        assert store.push(memory, repair=True)["repaired"] == 0
    with Place(memory) as place:
        assert all(entry.key or not entry.base for entry in state.read(place).shelf("run").entries() if entry.key)


def test_what_the_pool_lacks_is_named(store: lmcstore.Store, memory: str, tmp_path: Path) -> None:
    """A removed snapshot can't be repaired; those after it are."""
    for step in (1, 2, 3):
        fill(store, step, step)
        store.push(memory)
    with Place(memory) as place:
        names = [entry.archive.object + "/000000" for entry in state.read(place).shelf("run").entries()]
    store["run"].remove(2)
    damaged(memory, names[1], "flipped")
    done = store.push(memory, repair=True)
    assert [one["number"] for one in done["left"]] == [2] and "The pool does not have this" in done["left"][0][
        "message"
    ]
    for what, numbers in (("run@1", [1]), ("run@3", [3])):
        with pulled(memory, tmp_path, what) as copy:
            expect(copy, numbers)


@NEEDS_BIN
@pytest.mark.usefixtures("remote_on_path")
def test_the_command(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    fill(store, 1, 3)
    store.push(url)
    with Place(url) as place:
        damaged(url, place.list("data")[0].name, "missing")
    store.close()
    assert cli("push", store.path, url, "--repair").stdout.startswith("repaired ")
    assert "no damage" in cli("verify", url).stdout


@NEEDS_BIN
@pytest.mark.usefixtures("remote_on_path")
def test_a_pool_is_repaired_from_a_run(pool_path: str, url: str, tmp_path: Path) -> None:
    weights = np.random.default_rng(7).standard_normal((640, 1024)).astype(np.float32)
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        for step in range(3):
            store["run"].snapshot({"w": weights, "step": np.full(1000, step)}, step=step)
        store.push(url)
    damage(pool_path, weights[:1].tobytes(), 2 * 1024 * 1024 - 4)
    other = f"file://{tmp_path}/bucket/other"
    with lmcstore.open(tmp_path / "other.pool", "x") as store:
        fill(store, 1, 1)
        store.push(other)
    assert "--from is for --repair" in cli("scrub", pool_path, "--from", url, code=2).stderr
    done = json.loads(cli("scrub", pool_path, "--repair", "--from", other, "--json", code=1).stdout)
    assert (done["repaired"], done["lost"]) == (0, 1)
    assert cli("scrub", pool_path, "--repair", "--from", other, "--from", url).stdout.startswith("1 repaired: ")
    with lmcstore.open(pool_path, "r") as store:
        assert store.scrub()["damages"] == 0
        assert np.array_equal(store["run"][2]["w"], weights)


@pytest.mark.parametrize("wanted", [["b@1"], ["b@1", "c@1"]])
def test_a_pool_is_repaired_from_one_snapshot_of_any_holder(
    pool_path: str, memory: str, monkeypatch: pytest.MonkeyPatch, wanted: list[str]
) -> None:
    """The run lacks the first holder's shelf; of the other, one snapshot is read, or another if it is damaged."""
    weights = np.random.default_rng(7).standard_normal((640, 1024)).astype(np.float32)
    fetched: list[str] = []

    class Noted(repair.Puller):
        def __init__(self, store: lmcstore.Store, place: Place, what: list[str]) -> None:
            fetched.extend(what)
            super().__init__(store, place, what)

    monkeypatch.setattr(repair, "Puller", Noted)
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        store["a"].snapshot({"w": weights})
        store["a"][-1].fork("b")
        store["a"][-1].fork("c")
        for step in (1, 2):
            store["b"].snapshot({"w": weights, "step": np.full(1000, step)}, step=step)
        store.push(memory, ["b", "c"])
    if len(wanted) > 1:
        with Place(memory) as place:
            first = state.read(place).shelf("b").entry(1)
        assert first is not None
        damaged(memory, first.archive.object + "/000000", "flipped")
    damage(pool_path, weights[:1].tobytes(), 2 * 1024 * 1024 - 4)
    with lmcstore.open(pool_path, "r+", background=False) as store:
        done = mend(store, [], [memory], [])
        assert (done["damages"], done["repaired"], done["lost"]) == (1, 1, 0)
        assert np.array_equal(store["b"][2]["w"], weights)
    assert fetched == wanted


def test_repairs_of_all_sources_are_counted(pool_path: str, memory: str) -> None:
    """A file's repair does not hide a damage that no source repairs."""
    first, second = np.random.default_rng(7).integers(0, 256, (2, 3 << 20), dtype=np.uint8)
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        store["a"].snapshot({"first": first})
        store["b"].snapshot({"second": second})
        store["c"].snapshot({"x": first[:5]}, metrics={"a rare metric": 1.0})
        with open(pool_path + ".archive", "wb") as file:
            store.dump(file, "a")
        store.push(memory, "b")
    damage(pool_path, first[:16].tobytes(), 1000)
    damage(pool_path, second[:16].tobytes(), 1000)
    damage(pool_path, b"a rare metric", 0)
    with lmcstore.open(pool_path, "r+", background=False) as store:
        done = mend(store, [], [memory], [pool_path + ".archive"])
    assert (done["damages"], done["repaired"], done["lost"]) == (3, 2, 0)
    assert sorted(one["state"] for one in done["list"]) == ["found", "repaired", "repaired"]


def test_a_rate_is_kept(store: lmcstore.Store, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate also holds within a snapshot."""
    slept: list[float] = []
    monkeypatch.setattr("lmcstore._remote.place.time.sleep", slept.append)
    store["run"].snapshot({"w": np.random.default_rng(0).bytes(1 << 20)})
    done = store.push(memory, rate="64KiB")
    assert 15 < max(slept) < 17 and len([one for one in slept if one > 0]) > 10
    assert done["bytes"] > 1 << 20
    with pytest.raises(lmcstore.InvalidError):
        store.push(memory, rate=0)
    slept.clear()
    lmcstore.pull(memory, tmp_path / "copy.pool", rate="64KiB")
    assert 15 < max(slept) < 17
    with pytest.raises(lmcstore.InvalidError):
        lmcstore.pull(memory, tmp_path / "copy.pool", rate=0)


# Keys with payloads of older archives


def tensors(step: int) -> dict[str, np.ndarray]:
    """Return a state of which each step changes one tensor of ten; the newest one is there twice."""
    seeds = {f"t{index}": index for index in range(10)} | {f"t{s % 10}": 1000 + s for s in range(1, step + 1)}
    found = {name: np.random.default_rng(seed).normal(size=3_000).astype(np.float32) for name, seed in seeds.items()}
    return found | {"w": found[f"t{step % 10}"]}


def shared(step: int) -> dict[str, np.ndarray]:
    """Return a state whose tensors change at different steps."""
    seeds = {"a": 1 + (step >= 3), "b": 8 * (step >= 8) + 12 * (step >= 12), "c": 100 + step}
    return {name: np.random.default_rng(seed).normal(size=3_000).astype(np.float32) for name, seed in seeds.items()}


State = Callable[[int], dict[str, np.ndarray]]


def push_all(store: lmcstore.Store, url: str, first: int, last: int, state_of: State = tensors) -> None:
    for step in range(first, last + 1):
        store["run"].snapshot(state_of(step), step=step)
    store["run"].policy = "links=3"
    store.push(url)


def entry_of(url: str, number: int) -> codec.Entry:
    with Place(url) as place:
        found = state.read(place).shelf("run").entry(number)
        assert found is not None
        return found


def users(url: str, number: int) -> dict[int, codec.Archive]:
    """Return the keys that have payloads of an entry's archive, by the numbers of their entries."""
    old, found = entry_of(url, number).archive, {}
    with Place(url) as place:
        for one in state.read(place).shelf("run").entries(number):
            if one.key is not None:
                sources = outline.unpack(b"".join(place.get_ranges(one.key.outline_ranges())), "").sources
                offsets = [source.offset for source in sources if source.object == old.object]
                if any(old.offset <= offset < old.outline_offset for offset in offsets):
                    found[one.number] = one.key
    return found


def flip(url: str, archive: codec.Archive, *, is_end: bool = False) -> None:
    """Damage the middle of an archive, or its end, where no payloads are."""
    middle = (archive.offset + archive.outline_offset) // 2
    ((name, at, _),) = archive.pieces(archive.outline_offset - 1 if is_end else middle, 1)
    with Place(url) as place:
        data = bytearray(place.get(name))
        data[at] ^= 255
        place.put(name, bytes(data))


def unreadable(url: str) -> list[int]:
    with Place(url) as place:
        return [one["number"] for one in verify(place, (), lmcstore.Store._create)["damages"]]


def sweep_later(url: str) -> None:
    """Sweep as if three days had passed."""
    with Place(url) as place:
        pass_hours(place, 72)
        sweep.sweep(state.read(place))


def check(url: str, number: int, state_of: State = tensors) -> None:
    with lmcstore.open(url) as there:
        for name, value in state_of(number).items():
            assert np.array_equal(there["run"][number][name], value), (number, name)


def remove_there(url: str, what: str) -> None:
    with Place(url) as place:
        sweep.remove(place, [what], dry_run=False)


def test_a_repair_leaves_no_other_snapshot_unreadable(store: lmcstore.Store, memory: str) -> None:
    """The only way to read 12 is its key, which has payloads of 8. Once the pool has it, 8 is repaired, too."""
    push_all(store, memory, 1, 12)
    remove_there(memory, "run@9..11")
    key = users(memory, 8)[12]
    lmcstore.pull(memory, store.path + ".copy", "run@12")
    store["run"].remove(12)
    flip(memory, entry_of(memory, 8).archive)
    assert unreadable(memory) == [8]
    done = store.push(memory, repair=True)
    assert [one["number"] for one in done["left"]] == [8] and done["repaired"] == 0
    message = done["left"][0]["message"]
    assert "run@12 can't be read without bytes of it" in message and "run@11, which it is stored upon" in message
    assert unreadable(memory) == [8] and entry_of(memory, 12).key == key
    lmcstore.pull(memory, store, "run@12")
    assert store.push(memory, repair=True)["left"] == []
    sweep_later(memory)
    assert unreadable(memory) == [] and entry_of(memory, 12).key not in (None, key)
    check(memory, 12)


def test_a_key_goes_if_the_archives_have_its_snapshot(store: lmcstore.Store, memory: str) -> None:
    push_all(store, memory, 1, 12)
    assert 12 in users(memory, 8)
    store["run"].remove(12)
    flip(memory, entry_of(memory, 8).archive)
    done = store.push(memory, repair=True)
    assert (done["repaired"], done["left"]) == (1, []) and entry_of(memory, 12).key is None
    sweep_later(memory)
    assert unreadable(memory) == []
    check(memory, 12)


def test_archives_that_a_key_would_be_replaced_by_are_read(store: lmcstore.Store, memory: str) -> None:
    """They are all there, but one is damaged, too."""
    push_all(store, memory, 1, 12)
    assert 12 in users(memory, 8) and 12 not in users(memory, 2)
    store["run"].remove(11)
    store["run"].remove(12)
    for number in (8, 11):
        flip(memory, entry_of(memory, number).archive, is_end=True)
    key = entry_of(memory, 12).key
    assert 12 in [one["number"] for one in store.push(memory, repair=True)["left"]]
    assert entry_of(memory, 12).key == key
    check(memory, 12)


def test_a_key_without_bytes_of_a_repaired_archive_stays(store: lmcstore.Store, memory: str) -> None:
    push_all(store, memory, 1, 12, shared)
    remove_there(memory, "run@9..11")
    key = entry_of(memory, 12).key
    assert key is not None and 0 < key.first < 7 and 12 not in users(memory, 7)
    store["run"].remove(12)
    flip(memory, entry_of(memory, 7).archive)
    assert store.push(memory, repair=True)["left"] == [] and entry_of(memory, 12).key == key
    sweep_later(memory)
    assert unreadable(memory) == []
    check(memory, 12, shared)


def test_a_key_with_payloads_of_another_key_is_made_anew(store: lmcstore.Store, memory: str) -> None:
    """It has none of the damaged archive, which that other key has."""
    push_all(store, memory, 1, 4, shared)
    push_all(store, memory, 5, 17, shared)
    ((number, key),) = users(memory, 8).items()
    later = [one.key.first for one in map(partial(entry_of, memory), range(number + 1, 18)) if one.key is not None]
    assert key.first == 8 and later == [number]
    flip(memory, entry_of(memory, 8).archive)
    assert store.push(memory, repair=True)["left"] == []
    sweep_later(memory)
    assert unreadable(memory) == []


def test_an_archive_takes_the_key_of_its_own_snapshot_with_it(store: lmcstore.Store, memory: str) -> None:
    """Else a sweep deletes bytes that the key needs."""
    store.shelf("run", create=True).policy = "links=3"
    with Place(memory) as place, contextlib.closing(Pusher(store, place, (), False)) as pusher:
        for step in range(1, 8):  # each in an object of its own
            store["run"].snapshot(tensors(step), step=step)
            pusher.push(waits=True)
    assert 7 in users(memory, 7)
    flip(memory, entry_of(memory, 7).archive, is_end=True)
    assert store.push(memory, repair=True)["left"] == []
    assert entry_of(memory, 7).key is not None
    sweep_later(memory)
    assert unreadable(memory) == []
    check(memory, 7)


def test_a_damaged_key_that_nothing_replaces_stays(store: lmcstore.Store, memory: str) -> None:
    """Its undamaged tensors can be read, and later pushes go on."""
    for step in range(1, 13):
        push_all(store, memory, step, step)
    number = max(one for one in range(1, 11) if entry_of(memory, one).key is not None)
    key = entry_of(memory, number).key
    assert key is not None
    remove_there(memory, f"run@1..{number - 1}")
    for one in range(number, 13):
        store["run"].remove(one)
    flip(memory, key)
    done = store.push(memory, repair=True)
    assert (done["repaired"], [one["number"] for one in done["left"]]) == (0, list(range(number, 13)))
    assert entry_of(memory, number).key == key
    with lmcstore.open(memory) as there:
        assert np.array_equal(there["run"][number]["t0"], tensors(number)["t0"])
    push_all(store, memory, 13, 14)
    check(memory, 14)


@pytest.mark.parametrize("is_here", [False, True])
def test_a_push_goes_on_behind_a_snapshot_without_its_base(store: lmcstore.Store, memory: str, is_here: bool) -> None:
    push_all(store, memory, 1, 3)
    with Place(memory) as place:
        state.change(state.read(place), "0" * 32, lambda draft: draft.shelf("run").update({2: None}) or True)
    assert unreadable(memory) == [3]
    if is_here:  # it gets a key
        store.push(memory)
        assert unreadable(memory) == []
    else:
        store["run"].remove(3)
    push_all(store, memory, 4, 5)
    check(memory, 5)
    assert unreadable(memory) == ([] if is_here else [3])
