# SPDX-License-Identifier: BSD-3-Clause
"""Changes of a run's folder, by the command and in Python, that are killed at each of their writes.

After each kill the folder can be read: its snapshots are whole, those that the change keeps are there, and the same
change, once more, finishes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lmcstore
import pytest
import run_folder
from command import BIN, KILLED_AT, NEEDS_BIN

pytestmark = [
    NEEDS_BIN,
    pytest.mark.skipif(not KILLED_AT.exists(), reason=f"{KILLED_AT} is not built"),
    pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning"),
]

_STEPS = (10, 20, 30)
_TIMEOUT_S = 600
_KILLS = (3, 15)
"""Kills of a change in an ordinary run and in a deep one, at even distances. With LMCS_TEST_EVERY=1: at each write."""


class Change(NamedTuple):
    """A change of the folder ``run``, beside which there are ``dump``, and ``new`` for what it makes."""

    name: str
    command: tuple[str, ...] = ()
    code: str = ""
    """Python, which has the folder as `store`, unless it has `archive`."""
    first: str = ""
    """Python that comes before it."""
    makes: str = ""
    """The folder that it makes."""
    again: str = ""
    """What a repetition says that finds nothing to do; "": it succeeds."""


_CHANGES = [
    Change("rm", ("rm", "run", "run@..2"), again="no snapshot"),
    Change("rm, one", ("rm", "run", "run@1"), again="no snapshot"),
    Change("prune", ("policy", "run", "run", "keep=last:1", "--prune")),
    Change("policy", ("policy", "run", "run", "keep=last:2", "links=5", "grace=1h")),
    Change("tag", ("tag", "run", "run@2", "best")),
    Change("compact", ("compact", "run", "--finished")),
    Change("dump", ("dump", "run", "-o", "new"), makes="new", again="cut short"),
    Change("restore", ("restore", "dump", "new"), makes="new", again="exists"),
    Change("remove", code="store['run'].remove(1)", again="no snapshot"),
    Change("prune in Python", code="store['run'].prune('keep=last:1')"),
    Change("policy in Python", code="store['run'].policy = 'keep=last:2 links=5 grace=1h'"),
    Change("fork", code="store['run'][2].fork('other')", again="has a shelf"),
    Change("drop", code="store['run'].drop()", again="no shelf"),
    Change("compact in Python", code="store.compact(finished=True)"),
    Change("add", code="store.restore('dump')", first="store['run'].remove(2)"),
    Change("dump in Python", code="store.dump('new')", makes="new", again="cut short"),
    Change("restore in Python", code="archive.restore_run('dump', 'new')", makes="new", again="exists"),
]


@pytest.fixture(scope="module")
def original() -> Iterator[Path]:
    """A folder with a run and a dump of it, to be copied."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lmcs-test-", dir=where) as made:
        place = Path(made, "original")
        for step in _STEPS:
            run_folder.save(place / "run", step)
        run_folder.close(place / "run")
        with lmcstore.open(place / "run", mode="r") as store:
            store.dump(place / "dump")
        yield place


def _copied(original: Path) -> Path:
    to = Path(tempfile.mkdtemp(dir=original.parent)) / "place"
    subprocess.run(["cp", "-r", "--sparse=always", original, to], check=True)
    return to


def _prepared(change: Change, original: Path) -> Path:
    place = _copied(original)
    if change.first:
        assert _run(Change("first", code=change.first), place).returncode == 0
    return place


def _run(change: Change, place: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [BIN, *change.command]
    if change.code:
        opens = "import lmcstore; from lmcstore import archive; "
        if "archive" not in change.code:
            opens += "store = lmcstore.open('run', mode='r+'); "
        command = [sys.executable, "-c", f"{opens}{change.code}; 'store' in globals() and store.close()"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore", **variables}
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )


def _state(folder: Path) -> Any:
    """Return the snapshots, tags and policies in all pools; None: the folder is not whole."""
    if folder.name == "new" and not (folder / "records.pool").exists():
        archives = sorted(path.name for path in folder.glob("*.archive")) if folder.exists() else []
        return archives if "records.archive" in archives else None
    found = {}
    for path in sorted(folder.glob("*.pool")):
        with lmcstore.open(path, mode="r") as store:
            for name in store:
                shelf = store[name]
                found[path.name, name] = ([one.number for one in shelf], shelf.tags, shelf.policy)
    return found


def _check_readable(folder: Path) -> set[tuple[str, int]]:
    """Read everything of a run; return the snapshots."""
    with lmcstore.open(folder, mode="r") as store:
        for name in store:
            for one in store[name]:
                for tensor, array in run_folder.arrays(one.step or 0).items():
                    assert one[tensor].numpy().tobytes() == array.tobytes()
        report = store.verify()
        assert report["damages"] == 0 and report["missing"] == []
        return {(name, one.number) for name in store for one in store[name]}


def _calls(change: Change, place: Path) -> int:
    """Make a change, and count its writes."""
    done = _run(change, place, LD_PRELOAD=str(KILLED_AT), LMCS_KILLED_COUNT=str(place / "count"))
    assert done.returncode == 0, done.stderr
    calls = int((place / "count").read_text())
    assert calls >= 3
    return calls


def _places(calls: int, kills: int) -> Iterable[int]:
    every = int(os.environ.get("LMCS_TEST_EVERY", 0))
    return (
        range(1, calls + 1, every) if every else sorted({calls * (2 * i + 1) // (2 * kills) + 1 for i in range(kills)})
    )


@pytest.mark.parametrize("kills", [_KILLS[0], pytest.param(_KILLS[1], marks=pytest.mark.deep)])
@pytest.mark.parametrize("change", _CHANGES, ids=lambda change: change.name)
def test_a_killed_change_is_finished_by_the_next(original: Path, change: Change, kills: int) -> None:
    original = _prepared(change, original)
    made = change.makes or "run"
    before = _check_readable(original / "run")
    place = _copied(original)
    calls = _calls(change, place)
    after, kept = _state(place / made), _check_readable(place / "run")
    for at in _places(calls, kills):
        shutil.rmtree(place.parent)
        place = _copied(original)
        killed = _run(change, place, LD_PRELOAD=str(KILLED_AT), LMCS_KILLED_AT=str(at))
        assert killed.returncode in (-9, 0), (at, killed.stderr)
        found = _check_readable(place / "run")
        assert before & kept <= found <= before | kept, at
        if change.makes and _state(place / made) is None:
            _check_unfinished(place / made, at)
        again = _run(change, place)
        if again.returncode != 0:
            assert change.again and change.again in again.stderr, (at, again.stderr)
        if again.returncode != 0 and change.again == "cut short":
            shutil.rmtree(place / made)
            assert _run(change, place).returncode == 0
        assert _state(place / made) == after, at
        assert _check_readable(place / "run") == kept, at
        if change.makes and (place / made / "records.pool").exists():
            assert _check_readable(place / made) == before
    shutil.rmtree(original.parent)


def _check_unfinished(made: Path, at: int) -> None:
    """What a kill has left of a folder that is made is no run, and no dump."""
    if (made / "records.restoring").exists():
        with pytest.raises(lmcstore.NotFoundError, match="did not end"):
            lmcstore.open(made, mode="r")
    elif made.exists():
        with pytest.raises(lmcstore.NotFoundError, match="is no dump of a run"):
            lmcstore.archive.restore_run(made, made.with_name("x"))
