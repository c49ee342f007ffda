# SPDX-License-Identifier: BSD-3-Clause
"""Reading a run in an object store in other processes: copies, pickles, forked and spawned workers."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import pytest
from optional import torch
from same import same

pytest.importorskip("obstore")


def _push(pool: Path, url: str) -> Any:
    """Push three steps, and return the state after the last."""
    state = {"w": torch.arange(6000.0).reshape(60, 100), "on": ["x", 1]}
    with lmcstore.open(pool, "x", background=False) as store:
        for step in range(3):
            state["w"][step] += 1
            store["run"].snapshot(state, step=step)
            store.push(url)
    return state


class _Rows:
    """A dataset: the rows of a tensor."""

    def __init__(self, snapshot: lmcstore.Snapshot) -> None:
        self._snapshot = snapshot

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        return self._snapshot["w"][index]


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    folder = tmp_path_factory.mktemp("remote")
    url = f"file://{folder}/run"
    yield url, _push(folder / "run.pool", url)


def test_copies_and_pickles(pushed: tuple[str, Any]) -> None:
    url, state = pushed
    with lmcstore.open(url) as store:
        made = [
            copy.copy(store["run"][3]),
            copy.deepcopy(store)["run"][3],
            pickle.loads(pickle.dumps(store["run"]))[3],
        ]
        again = pickle.loads(pickle.dumps(store))
    for one in (*made, again["run"]["latest"]):
        same(state, one.state_dict())
        one.shelf.store.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read(pushed: tuple[str, Any], method: str) -> None:
    url, state = pushed
    with lmcstore.open(url) as store:
        snapshot = store["run"]["latest"]
        same(state["w"][:2], snapshot["w"][:2])
        loader = torch.utils.data.DataLoader(
            _Rows(snapshot),
            batch_size=10,
            num_workers=2,
            multiprocessing_context=method,
            timeout=60,
        )
        same(state["w"], torch.cat(list(loader)))
        same(state, snapshot.state_dict())
        same(state["w"][:3], store["run"][3]["w"][:3])


def _read(url: str, snapshot: lmcstore.Snapshot | None, results: Any) -> None:
    try:
        if snapshot is None:
            snapshot = lmcstore.open(url)["run"]["latest"]
        results.put(snapshot["w"][:3].tolist())
    except lmcstore.Error as error:
        results.put(error)


@pytest.mark.parametrize(("method", "is_open"), [("fork", True), ("fork", False), ("spawn", True)])
def test_workers_of_a_server(bucket: str, tmp_path: Path, method: Any, is_open: bool) -> None:
    state = _push(tmp_path / "run.pool", bucket)
    context = multiprocessing.get_context(method)
    results = context.Queue()
    with lmcstore.open(bucket) as store:
        snapshot = store["run"]["latest"] if is_open else None
        worker = context.Process(target=_read, args=(bucket, snapshot, results))
        worker.start()
        result = results.get(timeout=60)
        worker.join(60)
        assert worker.exitcode == 0
        if method == "fork":
            assert isinstance(result, lmcstore.UnsupportedError) and "spawn" in str(result)
        else:
            assert result == state["w"][:3].tolist()
        same(state, store["run"]["latest"].state_dict())


def test_a_child_leaves_the_store_of_its_parent(pushed: tuple[str, Any]) -> None:
    url, state = pushed
    with lmcstore.open(url) as store:
        same(state["w"][:2], store["run"][3]["w"][:2])
        child = os.fork()
        if child == 0:
            try:
                store.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        same(state["w"][2:9], store["run"][3]["w"][2:9])
        same(state, store["run"][3].state_dict())
