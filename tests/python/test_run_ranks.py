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


_STEPS = 5
_SAVE = 3  # of step 2


@pytest.fixture(scope="module")
def whole() -> Iterator[list[tuple[list[float], bytes, int]]]:
    """Return what an uninterrupted run gives."""
    with tempfile.TemporaryDirectory(prefix="lmcs-test-") as made:
        yield ranks.run(2, run_ranks.train, Path(made, "run"), _STEPS)


@pytest.mark.parametrize(
    ("phase", "killed", "last"),
    [
        ("captured", (1,), 1),
        ("prepared", (1,), 1),
        ("decided", (1,), 2),
        ("resolved", (1,), 2),
        ("captured", (0,), 1),
        ("prepared", (0,), 1),
        ("recording", (0,), 1),
        ("recorded", (0,), 2),
        ("decided", (0,), 2),
        ("resolved", (0,), 2),
        ("captured", (0, 1), 1),
        ("prepared", (0, 1), 1),
        ("resolved", (0, 1), 2),
    ],
)
def test_ranks_that_are_killed_resume_at_the_last_record(
    folder: Path, whole: list[tuple[list[float], bytes, int]], phase: str, killed: tuple[int, ...], last: int
) -> None:
    ranks.run(2, run_ranks.train_and_die, folder, _STEPS, phase, killed, _SAVE, killed=killed)
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == list(range(last + 1))
    second = ranks.run(2, run_ranks.train, folder, _STEPS, "", 1)
    for rank in range(2):
        assert second[rank][2] == last + 1
        assert second[rank][0] == whole[rank][0][last + 1 :]
        same(pickle.loads(second[rank][1]), pickle.loads(whole[rank][1]))
    numbers = ranks.numbers_of(folder)
    assert [len(found) for found in numbers.values()] == [_STEPS] * 3
