# SPDX-License-Identifier: BSD-3-Clause
"""Changes of a run's folder, by the command and in Python, that are killed at each of their writes.

After each kill the folder can be read: its snapshots are whole, those that the change keeps are there, and the same
change, once more, finishes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
_KILLS = 4
"""Kills of a change in an ordinary run. A deep one has all between states; with LMCS_TEST_EVERY=1, at each write."""


class Change(NamedTuple):
    """A change of the folder ``run``, beside which there are ``dump``, and ``new``, if it makes a folder."""

    name: str
    is_quick: bool = False
    """Whether an ordinary run has it."""
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
    Change("rm", True, ("rm", "run", "run@..2"), again="no snapshot"),
    Change("rm_one", False, ("rm", "run", "run@1"), again="no snapshot"),
    Change("rm_shelf", False, ("rm", "run", "run", "--shelf"), again="no shelf"),
    Change("prune", False, ("policy", "run", "run", "keep=last:1", "--prune")),
    Change("policy", False, ("policy", "run", "run", "keep=last:2", "links=5", "grace=1h")),
    Change("tag", False, ("tag", "run", "run@2", "best")),
    Change("compact", False, ("compact", "run", "--finished")),
    Change("dump", False, ("dump", "run", "-o", "new"), makes="new", again="cut short"),
    Change("restore", True, ("restore", "dump", "new"), makes="new", again="exists"),
    Change("remove", True, code="store['run'].remove(1)", again="no snapshot"),
    Change("prune_python", code="store['run'].prune('keep=last:1')"),
    Change("policy_python", code="store['run'].policy = 'keep=last:2 links=5 grace=1h'"),
    Change("fork_command", False, ("fork", "run", "run@2", "other"), again="there is a shelf"),
    Change("fork", True, code="store['run'][2].fork('other')", again="has a shelf"),
    Change("drop", code="store['run'].drop()", again="no shelf"),
    Change("compact_python", code="store.compact(finished=True)"),
    Change("add", code="store.restore('dump')", first="store['run'].remove(2)"),
    Change("dump_python", code="store.dump('new')", makes="new", again="cut short"),
    Change("restore_python", code="archive.restore_run('dump', 'new')", makes="new", again="exists"),
]


@pytest.fixture(scope="module")
def original() -> Iterator[Path]:
    """A folder with a run and a dump of it, to be copied."""
    with run_folder.in_memory() as made:
        place = made / "original"
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


def _state(folder: Path) -> dict[Any, Any]:
    """Return the snapshots, tags and policies in all pools, and the names of archives."""
    found: dict[Any, Any] = {path.name: "" for path in folder.glob("*.archive")}
    for path in [*folder.glob("*.pool"), *folder.glob("*.restoring")]:
        try:
            with lmcstore.open(path, mode="r") as store:
                found[path.name] = {name: _shelf_state(store[name]) for name in store}
        except lmcstore.Error as error:
            found[path.name] = type(error).__name__
    return found


def _shelf_state(shelf: lmcstore.Shelf) -> Any:
    return [(one.number, one.storage()["raw_contents"]) for one in shelf], shelf.tags, shelf.policy


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


class _Kills:
    """The kills of one change."""

    def __init__(self, change: Change, original: Path) -> None:
        self._change = change
        self._original = _prepared(change, original)
        self._made = change.makes or "run"
        self._before = _check_readable(self._original / "run")
        place = _copied(self._original)
        self.calls = _calls(change, place)
        self._after, self._kept = _state(place / self._made), _check_readable(place / "run")
        shutil.rmtree(place.parent)

    def seek(self, most: int | None) -> int:
        """Kill the change at the writes between which the state changes; return the number of kills."""
        states = {0: _state(self._original / self._made), self.calls + 1: self._after}
        kills, left = 0, [(0, self.calls + 1)]
        while left and kills != most:
            first, last = left.pop(0)
            if last - first < 2 or states[first] == states[last]:
                continue
            at = (first + last) // 2
            states[at] = self.kill(at)
            kills += 1
            left += [(first, at), (at, last)]
        return kills

    def kill(self, at: int) -> dict[Any, Any]:
        """Kill the change, check the folder, and repeat it; return the state after the kill."""
        change, place = self._change, _copied(self._original)
        made = place / self._made
        killed = _run(change, place, LD_PRELOAD=str(KILLED_AT), LMCS_KILLED_AT=str(at))
        assert killed.returncode in (-signal.SIGKILL, 0), (at, killed.stderr)
        found, state = _check_readable(place / "run"), _state(made)
        assert self._before & self._kept <= found <= self._before | self._kept, at
        if change.makes:
            _check_made(made, self._before)
        self._repeat(place, at)
        assert _state(made) == self._after, at
        assert _check_readable(place / "run") == self._kept, at
        if change.makes:
            _check_made(made, self._before)
        shutil.rmtree(place.parent)
        return state

    def _repeat(self, place: Path, at: int) -> None:
        again = _run(self._change, place)
        if again.returncode == 0:
            return
        assert self._change.again and self._change.again in again.stderr, (at, again.stderr)
        if self._change.again == "cut short":
            shutil.rmtree(place / self._made)
            assert _run(self._change, place).returncode == 0


def _check_made(made: Path, wanted: set[tuple[str, int]]) -> None:
    """A new folder is whole after a kill, or no run and no dump."""
    if (made / "records.pool").exists():
        assert _check_readable(made) == wanted
    elif (made / "records.restoring").exists():
        with pytest.raises(lmcstore.NotFoundError, match="did not end"):
            lmcstore.open(made, mode="r")
    elif (made / "records.archive").exists():
        lmcstore.archive.restore_run(made, made.with_name("x"))
        assert _check_readable(made.with_name("x")) == wanted
        shutil.rmtree(made.with_name("x"))
    elif made.exists():
        with pytest.raises(lmcstore.NotFoundError, match="is no dump of a run"):
            lmcstore.archive.restore_run(made, made.with_name("x"))


@pytest.mark.parametrize("change", [change for change in _CHANGES if change.is_quick], ids=lambda change: change.name)
def test_a_killed_change_is_finished_by_the_next(original: Path, change: Change) -> None:
    assert _Kills(change, original).seek(_KILLS) == _KILLS


@pytest.mark.deep
@pytest.mark.parametrize("change", _CHANGES, ids=lambda change: change.name)
def test_all_kills(original: Path, change: Change) -> None:
    kills = _Kills(change, original)
    every = int(os.environ.get("LMCS_TEST_EVERY", 0))
    for at in range(1, kills.calls + 1, every) if every else ():
        kills.kill(at)
    assert every or kills.seek(None) > 1
