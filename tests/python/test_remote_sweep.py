# SPDX-License-Identifier: BSD-3-Clause
"""Objects of a run in an object store are deleted once nobody needs them, and not before."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

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
