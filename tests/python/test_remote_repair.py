# SPDX-License-Identifier: BSD-3-Clause
"""Repairs of a run in an object store from a pool, and of a pool from a run; a limited rate."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import lmcstore
import numpy as np
import pytest
from command import NEEDS_BIN
from lmcstore._remote import state, sweep
from lmcstore._remote.place import Place
from test_cli_remote import cli
from test_remote_push import expect, fill, pulled
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
