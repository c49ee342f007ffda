# SPDX-License-Identifier: BSD-3-Clause
"""Copies and pickles of stores, shelves and snapshots open the pool anew, for reading."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest

WAYS = [
    pytest.param(copy.copy, id="copy"),
    pytest.param(copy.deepcopy, id="deepcopy"),
    pytest.param(lambda handle: pickle.loads(pickle.dumps(handle)), id="pickle"),
]


def total(handle: Any) -> tuple[str, float]:
    """Read the newest snapshot in a new process."""
    if isinstance(handle, lmcstore.Store):
        handle = handle["run"]
    snapshot = handle.latest if isinstance(handle, lmcstore.Shelf) else handle
    return snapshot.shelf.store.mode, float(snapshot["w"].numpy().sum())


@pytest.fixture
def snapshot(shelf: lmcstore.Shelf) -> lmcstore.Snapshot:
    return shelf.snapshot({"w": np.ones(1000)}, step=1, metrics={"loss": 0.5})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["store", "shelf", "snapshot"])
def test_a_copy_reads(snapshot: lmcstore.Snapshot, way: Callable[[Any], Any], kind: str) -> None:
    shelf, store = snapshot.shelf, snapshot.shelf.store
    copied = way({"store": store, "shelf": shelf, "snapshot": snapshot}[kind])
    opened = {"store": lambda: copied, "shelf": lambda: copied.store, "snapshot": lambda: copied.shelf.store}[kind]()
    assert opened is not store and opened.mode == "r" and opened.path == store.path
    assert total(copied) == ("r", 1000.0)
    if kind != "store":
        assert copied == (shelf if kind == "shelf" else snapshot) and hash(copied) in {hash(shelf), hash(snapshot)}
    with pytest.raises(lmcstore.ReadOnlyError):
        opened["run"].snapshot({"w": 1})
    opened.close()
    assert not store.closed and shelf.snapshot({"w": np.zeros(3)}).number == 2


def test_handles_of_one_store_share_the_copy(snapshot: lmcstore.Snapshot) -> None:
    shelf = snapshot.shelf
    copied = pickle.loads(pickle.dumps({"store": shelf.store, "shelf": shelf, "snaps": [snapshot, shelf.latest]}))
    assert copied["shelf"].store is copied["store"]
    assert all(one.shelf.store is copied["store"] and one.step == 1 for one in copied["snaps"])
    assert copied["snaps"] == [snapshot, snapshot]


def test_a_spawned_process_reads_beside_the_writer(snapshot: lmcstore.Snapshot) -> None:
    shelf = snapshot.shelf
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        assert workers.map(total, [snapshot, shelf, shelf.store]) == [("r", 1000.0)] * 3
    assert shelf.snapshot({"w": np.zeros(3)}).number == 2


def test_an_asynchronous_snapshot_is_durable_first(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"w": np.ones(1 << 20)}, wait=False)
    assert total(pickle.loads(pickle.dumps(snapshot))) == ("r", float(1 << 20))


def test_a_store_in_another_folder(
    snapshot: lmcstore.Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relative = os.path.relpath(snapshot.shelf.store.path)
    with lmcstore.open(relative, "r") as reader:
        stored = pickle.dumps(reader["run"])
        monkeypatch.chdir("/")
        assert total(pickle.loads(stored)) == ("r", 1000.0)


def test_what_is_gone_is_refused(snapshot: lmcstore.Snapshot, tmp_path: Path) -> None:
    shelf, store = snapshot.shelf, snapshot.shelf.store
    stored, whole = pickle.dumps(snapshot), pickle.dumps(store)
    shelf.snapshot({"w": np.zeros(3)})
    shelf.remove(1)
    with pytest.raises(lmcstore.NotFoundError, match="run@1"):
        pickle.loads(stored)
    with pytest.raises(lmcstore.NotFoundError):
        pickle.dumps(shelf[1])
    shelf.drop()
    shelf.snapshot({"w": np.zeros(4)})
    with pytest.raises(lmcstore.NotFoundError, match="'run' is another shelf now"):
        pickle.loads(stored)
    store.close()
    for handle in (store, shelf, snapshot):
        with pytest.raises(lmcstore.InvalidError, match="closed"):
            pickle.dumps(handle)
    os.unlink(store.path)
    with pytest.raises(lmcstore.NotFoundError):
        pickle.loads(whole)
    lmcstore.open(store.path, "x", size="16MiB").close()
    with pytest.raises(lmcstore.NotFoundError, match="another pool"):
        pickle.loads(whole)


def test_a_shelf_is_not_another_of_its_name(snapshot: lmcstore.Snapshot) -> None:
    shelf, store = snapshot.shelf, snapshot.shelf.store
    stored, later = pickle.dumps(shelf), pickle.dumps(store["later"])
    shelf.snapshot({"w": np.zeros(1)})
    assert len(pickle.loads(stored)) == 2
    shelf.rename("old")
    with pytest.raises(lmcstore.NotFoundError, match="'run' is another shelf now"):
        pickle.loads(stored)
    store["run"].snapshot({"w": np.zeros(2)})
    with pytest.raises(lmcstore.NotFoundError, match="'run' is another shelf now"):
        pickle.loads(stored)
    assert pickle.loads(pickle.dumps(shelf)) == store["old"]
    store["later"].snapshot({})
    assert len(pickle.loads(later)) == 1


@pytest.mark.parametrize("way", WAYS)
def test_what_belongs_to_a_process_is_refused(shelf: lmcstore.Shelf, way: Callable[[Any], Any]) -> None:
    live = shelf.live
    for handle in (live.tensor("t", (2,)), live.value("n")):
        with pytest.raises(lmcstore.UnsupportedError, match="can't be copied or pickled"):
            way(handle)
    with shelf.transaction() as transaction, pytest.raises(lmcstore.UnsupportedError, match="copied or pickled"):
        way(transaction)
    assert way(live)["n"] == 0
