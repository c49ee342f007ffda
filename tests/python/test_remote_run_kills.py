# SPDX-License-Identifier: BSD-3-Clause
"""Pushers and ranks of a run that are killed at any time: nothing is lost, also once the pools have let steps go."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmcstore
import pytest
import run_folder
from optional import torch
from same import same

pytestmark = pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning")
_STEPS = 24
_LOCAL = "keep_raw=1 local=last:2 links=3"
_TRAINER = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[4])
import lmcstore, run_folder
from lmcstore._folder import writing
folder, last, dies_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
first = 1
if (folder / "records.pool").exists():
    with lmcstore.open(folder, "r") as store:
        first += len(store["run"]) if "run" in store else 0
for step in range(first, last + 1):
    run_folder.save(folder, step, world=2, metrics={"loss": 1 / step}, commits=step != dies_at)
    if step == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    for rank in range(2):
        writing._open.store(str(folder / f"rank-0000{rank}.pool"), True)["run"].policy = sys.argv[5]
    time.sleep(0.05)
run_folder.close(folder)
"""
_PUSHER = """
import os, signal, sys, threading
import lmcstore
from lmcstore._remote import late, place
late._LEAST_BYTES = 0
count, lock, tried = 0, threading.Lock(), place.Place._try
dies_at, is_after = int(sys.argv[3]), sys.argv[4] == "True"
def one(self, name, verb, work):
    def counted():
        global count
        with lock:
            count += 1
            now = count
        if now >= dies_at and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = work()
        if now >= dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    return tried(self, name, verb, counted)
place.Place._try = one
with lmcstore.open(sys.argv[1], "r") as store:
    follow = float(sys.argv[5])
    store.push(sys.argv[2], follow=follow > 0, timeout=follow or None)
"""


@pytest.fixture(autouse=True)
def _no_files_of_the_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))


def started(code: str, *arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


def push(folder: Path, url: str, dies_at: int = 1 << 60, is_after: bool = False, follow: float = 0) -> bool:
    """Push by a process, which follows for some seconds; False: it was killed."""
    process = started(_PUSHER, folder, url, dies_at, is_after, follow)
    text = process.communicate(timeout=300)[1]
    assert process.returncode in (0, -signal.SIGKILL), text
    return process.returncode == 0


def check(path: Path | str, last: int) -> None:
    with lmcstore.open(path, "r") as store:
        assert [one.step for one in store["run"]] == list(range(1, last + 1))
        for one in store["run"]:
            assert one.metrics == {"loss": 1 / (one.step or 0)}
            for name, array in run_folder.arrays(one.step or 0).items():
                assert one[name].numpy().tobytes() == array.tobytes(), (one.number, name)


@pytest.mark.parametrize(
    ("where", "seed"),
    [
        ("file", 1),
        *(pytest.param(("s3", "file")[seed % 2], seed, marks=pytest.mark.deep) for seed in range(2, 8)),
    ],
)
def test_a_pusher_is_killed_beside_ranks_that_save(
    where: str, seed: int, place: Path, request: pytest.FixtureRequest
) -> None:
    """Also the process of the ranks is killed once, with a part that is prepared."""
    if where == "s3":
        pytest.importorskip("obstore")
    url = f"file://{place}/bucket" if where == "file" else str(request.getfixturevalue("bucket"))
    chance, run, kills = random.Random(seed), place / "run", 0
    here = os.path.dirname(__file__)
    for dies_at in (_STEPS // 2, 0):
        trainer = started(_TRAINER, run, _STEPS, dies_at, here, _LOCAL)
        while not (run / "records.pool").exists() and trainer.poll() is None:
            time.sleep(0.01)
        for most in (10, 30, 60, 120):
            kills += not push(run, url, chance.randrange(1, most), chance.random() < 0.5, chance.choice((0, 0.5)))
        text = trainer.communicate(timeout=300)[1]
        assert trainer.returncode == (-signal.SIGKILL if dies_at else 0), text
    assert kills
    assert push(run, url)
    check(run, _STEPS)
    with lmcstore.open(run, "r") as store:
        assert [one.number for one in store["run"] if one.remote] == list(range(1, _STEPS - 1))
    shutil.rmtree(run)
    assert lmcstore.pull(url, run)["missing"] == []
    check(run, _STEPS)
    with lmcstore.open(run, "r") as store:
        report = store.verify()
        assert (report["damages"], report["missing"], report["remote"]) == (0, [], 0)


def test_ranks_are_killed_and_go_on_from_the_url(place: Path) -> None:
    """The machine is lost with its pools."""
    torch.Tensor  # noqa: B018 (skips without torch)
    import dcp_ranks
    import run_ranks

    run, url, steps = place / "run", f"file://{place}/bucket", 6
    whole = dcp_ranks.run(2, run_ranks.train, place / "whole", steps)
    dcp_ranks.run(2, run_ranks.train, run, 2, "", 0, {"policy": "keep_raw=1 local=last:1"})
    pusher = started(_PUSHER, run, url, 1 << 60, False, 5)
    dcp_ranks.run(2, run_ranks.train_and_die, run, steps, "recorded", (0,), 3, killed=(0,))
    text = pusher.communicate(timeout=300)[1]
    assert pusher.returncode == 0, text
    assert push(run, url)
    with lmcstore.open(run, "r") as store:
        first = len(store["run"])
    shutil.rmtree(run)
    lmcstore.pull(url, run)
    again = dcp_ranks.run(2, run_ranks.train, run, steps, "", 1)
    for one, other in zip(again, whole, strict=True):
        assert one[2] == first and one[0] == other[0][first:]
        same(pickle.loads(one[1]), pickle.loads(other[1]))
    with lmcstore.open(url) as there, lmcstore.open(place / "whole", "r") as store:
        assert [one.step for one in there["run"]] == list(range(first))
        for one in there["run"]:
            same(one.state_dict("model"), store["run"][one.number].state_dict("model"))
            same(one.state_dict("ranks"), store["run"][one.number].state_dict("ranks"))
