# SPDX-License-Identifier: BSD-3-Clause
"""`lmcstore.Run` of many ranks."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import lmcstore
import pytest
from optional import torch
from same import same

torch.Tensor  # noqa: B018 (skips without torch)

import dcp_ranks as ranks  # noqa: E402
import run_ranks  # noqa: E402


@pytest.fixture
def folder() -> Iterator[Path]:
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lmcs-test-", dir=where) as made:
        yield Path(made, "run")


@pytest.mark.parametrize("kind", ["", "tied", "local buffers", "fsdp"])
def test_resumed_training_is_the_same(folder: Path, kind: str) -> None:
    whole = ranks.run(2, run_ranks.train, folder.with_name("whole"), 8, kind)
    first = ranks.run(2, run_ranks.train, folder, 5, kind)
    second = ranks.run(2, run_ranks.train, folder, 8, kind, 1)
    wanted = [pickle.loads(one[1]) for one in whole]
    for rank in range(2):
        assert second[rank][2] == 5
        assert first[rank][0] + second[rank][0] == whole[rank][0]
        same(pickle.loads(second[rank][1]), wanted[rank])
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == list(range(8))
        found = run["run"].latest
        assert found is not None
        state = found.state_dict()
        assert sorted(state) == ["model", "optimizer", "ranks", "scheduler"]
        same(list(state["model"].values()), list(wanted[0]["model"].values()))
        same(state["optimizer"], wanted[0]["optimizer"])
        for rank in range(2):
            same(state["ranks"][rank]["own"], wanted[rank]["own"])
        report = run.verify()
        assert report["damages"] == 0 and not report["missing"]
