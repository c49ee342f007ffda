# SPDX-License-Identifier: BSD-3-Clause
"""Objects of a run in an object store are deleted once nobody needs them, and not before."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore._remote import codec, state, sweep
from lmcstore._remote.place import Place

pytest.importorskip("obstore")
from test_remote import WRITER, an_entry

HOUR = 3600.0


@pytest.fixture
def place() -> Iterator[Place]:
    with Place(f"memory://{secrets.token_hex(8)}") as place:
        yield place


def pass_hours(place: Place, hours: float) -> None:
    """Make all objects older."""
    objects: Any = place._client
    for name, (data, when) in objects._objects.items():
        objects._objects[name] = data, when - hours * HOUR


def archive(number: int) -> codec.Archive:
    return an_entry(number).archive._replace(object=f"data/{number:020d}-{'a' * 16}")


def begun(place: Place, count: int) -> state.State:
    """Make a run of snapshots that need no others; each has an object of its own."""
    for number in range(1, count + 1):
        for name in archive(number).objects():
            place.put(name, b"payload")

    def add(draft: state.State) -> bool:
        shelf = draft.add("run", codec.UNKNOWN, 4, "keep=all", None)
        for number in range(1, count + 1):
            shelf.append(an_entry(number, base=0, archive=archive(number)))
        return True

    return state.change(state.begin(place), WRITER, add)


def there(place: Place, number: int) -> bool:
    return all(place.exists(name) for name in archive(number).objects())


def test_a_removed_snapshot_keeps_its_objects_for_a_day(place: Place) -> None:
    begun(place, 3)
    pass_hours(place, 48)
    assert sweep.remove(place, ["run@2"], dry_run=False) == (1, 0, 0)
    pass_hours(place, 23)
    assert sweep.sweep(state.read(place))[0] == 0
    assert there(place, 2)
    pass_hours(place, 2)
    assert sweep.sweep(state.read(place))[0] == 1
    assert [there(place, number) for number in (1, 2, 3)] == [True, False, True]


def test_an_upload_without_a_commit_stays_while_it_can_be_committed(place: Place) -> None:
    now = begun(place, 1)
    pass_hours(place, 48)
    (name,) = archive(9).objects()
    place.put(name, b"payload")
    for hours, is_there in ((12, True), (23, True), (2, False)):
        pass_hours(place, hours)
        sweep.sweep(state.refreshed(now))
        assert place.exists(name) == is_there
    assert there(place, 1)


def test_a_push_that_ends_during_the_sweep_loses_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has seen its upload young before the list, and commits behind it."""
    now = begun(place, 1)
    (name,) = archive(2).objects()
    place.put(name, b"payload")
    pass_hours(place, 48)
    listed = place.list

    def then_commit(prefix: str) -> Any:
        found = list(listed(prefix))
        if prefix == "log":
            state.change(
                now, WRITER, lambda draft: draft.shelf("run").append(an_entry(2, base=0, archive=archive(2))) or True
            )
        return found

    monkeypatch.setattr(place, "list", then_commit)
    assert sweep.sweep(now)[0] == 0
    assert there(place, 2) and state.read(place).shelf("run").latest == an_entry(2, base=0, archive=archive(2))


def test_old_commits_are_emptied(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_LOGS_KEPT", 3)
    now = begun(place, 2)
    for _ in range(6):
        now = state.change(now, WRITER, lambda draft: True)
    pass_hours(place, 25)
    sweep.sweep(now)
    emptied = [number for number in range(1, 9) if place.exists(state.log_name(number))
               and codec.is_stub(place.get(state.log_name(number), codec.MOST_STORED))]  # fmt: skip
    assert emptied == [1, 2, 3, 4]
    assert state.read(place).shelf("run").stored == 2
    assert not place.create(state.log_name(2), b"")


def test_files_of_killed_pushes_are_deleted_in_a_folder(tmp_path: Path) -> None:
    """Others, and those that may still be written, stay."""
    data = archive(9).object
    old = [f"{folder}/.new-{'a' * 16}" for folder in (data, "index", "log")]
    kept = [f"{data}/.new-a", f"index/{'a' * 16}", "log/.newest", f".new-{'a' * 16}", f"{data}/.new-{'b' * 16}"]
    with Place(f"file://{tmp_path}") as place:
        now = begun(place, 1)
        for name in old + kept:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"x" * 100)
        for path in tmp_path.rglob("*"):
            os.utime(path, (time.time() - 37 * HOUR,) * 2)
        os.utime(tmp_path / kept[-1], (time.time() - 35 * HOUR,) * 2)
        assert sweep.sweep(now) == (3, 300)
        assert not any((tmp_path / name).exists() for name in old) and all((tmp_path / name).exists() for name in kept)


@pytest.fixture
def many_metrics(store: lmcstore.Store, place: Place) -> Place:
    """Push snapshots of which the second is the best, and has more metrics than a state has."""
    for step in range(1, 5):
        many = {f"gradient/layer{index}.weight": 0.1234567890123 for index in range(600)} if step == 2 else {}
        metrics = many | {"loss": 0.5 if step == 2 else float(step)}
        store["run"].snapshot({"x": np.full(3, step)}, step=step, metrics=metrics)
    store["run"].policy = "keep=last:1,best:loss:1"
    store.push(place.url)
    entry = state.read(place).shelf("run").entry(2)
    assert entry is not None and entry.metrics is None
    return place


def test_the_best_snapshot_may_have_many_metrics(store: lmcstore.Store, many_metrics: Place) -> None:
    assert store["run"].prune(dry_run=True).numbers == [1, 3]
    sweep.prune(many_metrics, (), lmcstore.Store._create, dry_run=False)
    assert [one.number for one in state.read(many_metrics).shelf("run").entries() if not one.hidden] == [2, 4]


def test_nothing_is_pruned_if_metrics_cannot_be_read(many_metrics: Place) -> None:
    entry = state.read(many_metrics).shelf("run").entry(2)
    assert entry is not None
    many_metrics.delete(entry.archive.objects())
    with pytest.raises(lmcstore.NotFoundError, match="run@2"):
        sweep.prune(many_metrics, (), lmcstore.Store._create, dry_run=False)
    assert state.read(many_metrics).shelf("run").shown == 4


def test_repeated_prunes_without_steps_keep_what_the_pool_keeps(store: lmcstore.Store, place: Place) -> None:
    """`every` goes by the numbers of the pool, not by those that are left."""
    for value in range(1, 31):
        store["run"].snapshot({"x": np.full(3, value)})
    store["run"].policy = "keep=last:1,every:10"
    store.push(place.url)
    gone = store["run"].prune(dry_run=True).numbers
    kept = [number for number in range(1, 31) if number not in gone]
    for _ in range(3):
        sweep.prune(place, (), lmcstore.Store._create, dry_run=False)
        assert [one.number for one in state.read(place).shelf("run").entries() if not one.hidden] == kept
