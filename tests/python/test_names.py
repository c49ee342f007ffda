# SPDX-License-Identifier: BSD-3-Clause
"""Forks, renamed and removed shelves, ranges, times, and safely moved tags."""

from __future__ import annotations

import datetime
import re
import time
from typing import Any

import lmcstore
import numpy
import pytest
from optional import torch


def take(shelf: lmcstore.Shelf, count: int) -> list[dict[str, torch.Tensor]]:
    states = []
    for step in range(count):
        states.append({"w": torch.full((300,), float(step)), "b": torch.arange(8)})
        shelf.snapshot(states[-1], step=step, metrics={"loss": 1.0 / (step + 1)})
    return states


def test_a_fork_goes_on_by_itself(store: lmcstore.Store, shelf: lmcstore.Shelf) -> None:
    states = take(shelf, 3)
    shelf.tag(2, "best")
    branch = shelf["best"].fork("branch")
    first = branch.latest
    assert first is not None
    assert (first.number, first.step, first.parent, first.metrics, first.tags) == (1, 1, None, {"loss": 0.5}, ["best"])
    assert torch.equal(first["w"], states[1]["w"])
    assert branch.origin == lmcstore.Origin("run", 2, True)
    assert shelf.origin is None
    assert branch.snapshot(states[0]).parent == 1
    assert shelf.drop().removed_tags == 1
    assert "run" not in store
    assert branch.origin == lmcstore.Origin("run", 2, False)
    assert torch.equal(branch[1]["w"], states[1]["w"])
    assert store.verify()["damages"] == 0


def test_forks_are_refused_where_they_must_be(pool_path: str, store: lmcstore.Store, shelf: lmcstore.Shelf) -> None:
    take(shelf, 1)
    with pytest.raises(lmcstore.ExistsError):
        shelf[1].fork("run")
    with pytest.raises(lmcstore.InvalidError):
        shelf[1].fork("a@b")
    with lmcstore.open(pool_path, "r") as reader, pytest.raises(lmcstore.ReadOnlyError):
        reader["run"][1].fork("x")
    assert store.shelves() == ["run"]


@pytest.mark.parametrize("name", ["a\0b", "\udcff"])
def test_names_without_utf8_are_refused(store: lmcstore.Store, name: str) -> None:
    with pytest.raises(lmcstore.InvalidError, match="the name of a shelf"):
        store[name]
    with pytest.raises(lmcstore.InvalidError, match="the name of a live variable"):
        store["run"].live[name] = 1


def test_rename(store: lmcstore.Store, shelf: lmcstore.Shelf) -> None:
    take(shelf, 2)
    snapshot = shelf[1]
    branch = snapshot.fork("branch")
    shelf.rename("walk")
    assert (shelf.name, store.shelves()) == ("walk", ["branch", "walk"])
    assert snapshot["w"][0] == 0
    assert branch.origin == lmcstore.Origin("walk", 1, True)
    with pytest.raises(lmcstore.ExistsError):
        shelf.rename("branch")


def test_drop_says_first_what_it_frees(store: lmcstore.Store, shelf: lmcstore.Shelf) -> None:
    take(shelf, 3)
    dry = shelf.drop(dry_run=True)
    assert len(shelf) == 3
    assert shelf.drop() == dry
    assert dry.freed_bytes > 0
    with pytest.raises(lmcstore.NotFoundError):
        shelf.drop()


def test_ranges(shelf: lmcstore.Shelf) -> None:
    take(shelf, 6)
    shelf.remove(4)
    shelf.tag(2, "best")

    def numbers(which: str) -> list[int]:
        return [snapshot.number for snapshot in shelf.range(which)]

    assert numbers("2..5") == [2, 3, 5]
    assert numbers("..best") == [1, 2]
    assert numbers("step:2..") == [3, 5, 6]
    assert numbers("best") == [2]
    assert [snapshot.number for snapshot in reversed(shelf)] == [6, 5, 3, 2, 1]
    with pytest.raises(lmcstore.InvalidError):
        shelf.range("5..2")
    with pytest.raises(lmcstore.InvalidError):
        shelf["2..5"]
    assert numbers("4..5") == [5]  # what was removed is passed over, and what does not exist yet
    assert numbers("4..4") == numbers("7..") == numbers("7..9") == numbers("step:7..") == []
    assert numbers("5..9") == [5, 6]
    assert numbers("latest~9..2") == [1, 2]
    for gone in ("4", "nothing..", "..nothing", "1..nothing~1"):
        with pytest.raises(lmcstore.NotFoundError):
            shelf.range(gone)
    with pytest.raises(lmcstore.NotFoundError):
        shelf.store["nothing"].range("..")
    for number in (1, 2, 3, 5, 6):
        shelf.remove(number)
    assert numbers("..") == numbers("7..") == numbers("latest..") == []


def test_many_are_gone_through_backwards(shelf: lmcstore.Shelf) -> None:
    for _ in range(600):
        shelf.snapshot({"b": 1})
    assert [snapshot.number for snapshot in reversed(shelf)] == list(range(600, 0, -1))


def test_advice_where_nothing_matches(shelf: lmcstore.Shelf) -> None:
    shelf.snapshot({"a": 1})
    with pytest.raises(lmcstore.NotFoundError, match=r"none has that step; no snapshot has a step$"):
        shelf.at(step=20)
    for step in (10, 20, 20, 50):
        shelf.snapshot({"a": 1}, step=step)
    assert shelf.at(step=20).number == 4
    for step, nearest in ((30, "the nearest are 20 and 50"), (-1, "the nearest is 10"), (999, "the nearest is 50")):
        with pytest.raises(lmcstore.NotFoundError, match=f"none has that step; {nearest}$"):
            shelf.at(step=step)
    slices = {(2, 3): "2..3", (None, 3): "..3", (-2, None): "latest~1..", (0, -1): "..latest", (None, None): ".."}
    for (first, last), text in slices.items():
        with pytest.raises(lmcstore.UnsupportedError, match=rf'shelf\.range\("{re.escape(text)}"\)'):
            shelf[first:last]  # type: ignore[misc]
        list(shelf.range(text))
    for text in ("2-3", "2:3"):
        with pytest.raises(lmcstore.Error, match=r"A range is written 2\.\.3"):
            shelf.range(text)


def test_times(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    with monkeypatch.context() as clock:
        clock.setattr(time, "time_ns", lambda: now - 7200 * 10**9)
        take(shelf, 1)
    between = datetime.datetime.fromtimestamp(now / 1e9 - 3600, datetime.UTC)
    shelf.snapshot({"b": 2})
    local = between.astimezone(datetime.timezone(datetime.timedelta(hours=5, minutes=30)))
    assert shelf.at(time=between).number == 1
    assert shelf.at(time=local).number == 1
    assert shelf.at(time=between.replace(tzinfo=None)).number == 1
    assert shelf.at(time=between.date() + datetime.timedelta(days=2)).number == 2
    assert shelf.at(time="1 hour ago").number == 1
    assert shelf["{now}"].number == 2
    with pytest.raises(lmcstore.NotFoundError, match="taken later"):
        shelf.at(time=datetime.date(2001, 1, 1))
    with pytest.raises(lmcstore.NotFoundError, match="run@step:9: none has that step"):
        shelf["step:9"]
    with pytest.raises(lmcstore.InvalidError, match="hours ago"):
        shelf["{tomorrow}"]
    with pytest.raises(lmcstore.InvalidError):
        shelf.at()
    with pytest.raises(lmcstore.UnsupportedError, match="a time is a datetime, a date or a text, not a float"):
        shelf.at(time=1.5)  # type: ignore[arg-type]


def test_tags_move_together_and_with_care(shelf: lmcstore.Shelf) -> None:
    take(shelf, 3)
    shelf.tag(1, "a", "b")
    assert shelf[1].tags == ["a", "b"]
    with pytest.raises(lmcstore.ExistsError, match="run@1"):
        shelf.tag(3, "a", expect=2)
    with pytest.raises(lmcstore.ExistsError):
        shelf.tag(3, "c", "a", expect=None)
    assert "c" not in shelf
    shelf.tag(3, "a", expect=shelf[1])
    shelf.tag(3, "anywhere", expect=None)
    assert (shelf[1].tags, shelf[3].tags) == (["b"], ["a", "anywhere"])
    shelf.tag(2, "a", expect="anywhere")
    assert shelf["a"].number == 2
    with pytest.raises(lmcstore.InvalidError):
        shelf.tag(1, "{x}")


def test_rows(shelf: lmcstore.Shelf) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3000, 257, generator=generator)
    values = numpy.arange(5000.0).reshape(50, 10, 10)
    for step in range(4):
        weight = weight + 1e-3
        shelf.snapshot({"model": {"w": weight, "half": weight[:100].bfloat16()}, "n": values, "s": torch.tensor(1.0)})
        if step == 0:
            first = weight
    shelf.keep_raw = 1
    shelf.store.compact()
    snapshot = shelf[1]
    assert snapshot.storage()["longest_chain"] > 0
    for start, stop in ((0, 64), (1020, 1030), (2990, None), (None, 3), (-5, None), (7, 7), (9, 2), (0, 10**9)):
        rows = snapshot.rows("model.w", start, stop)
        assert torch.equal(rows, first[start:stop])
        assert rows.dtype == first.dtype
    assert torch.equal(snapshot.rows("model.half", 5, 9), first[5:9].bfloat16())
    assert numpy.array_equal(snapshot.rows("n", 3, 5), values[3:5])
    rows = snapshot.rows("model.w", 0, 1)
    rows += 1
    assert torch.equal(snapshot.rows("model.w", 0, 1), first[:1])
    with pytest.raises(lmcstore.InvalidError, match="scalar"):
        snapshot.rows("s", 0, 1)
    with pytest.raises(lmcstore.InvalidError):
        snapshot.rows("model", 0, 1)
    with pytest.raises(lmcstore.NotFoundError):
        snapshot.rows("nothing", 0, 1)


@pytest.mark.parametrize("which", [None, 1.5, True])
def test_what_addresses_no_snapshot(shelf: lmcstore.Shelf, which: Any) -> None:
    take(shelf, 1)
    for call in (shelf.remove, lambda which: shelf.tag(which, "best")):
        with pytest.raises(lmcstore.UnsupportedError, match="a snapshot is addressed by an int or a str"):
            call(which)
    with pytest.raises(lmcstore.UnsupportedError, match="a pattern of names must be a str"):
        shelf[1].select(which)
    assert len(shelf) == 1 and not shelf.tags


def test_select_and_a_budget(shelf: lmcstore.Shelf) -> None:
    model = {f"h.{i}.{part}": torch.full((1000,), float(i)) for i in range(5) for part in ("weight", "bias")}
    snapshot = shelf.snapshot({"model": model, "step": 3})
    assert list(snapshot.select("model.*.weight")) == [f"model.h.{i}.weight" for i in range(5)]
    assert snapshot.select("nothing*") == {}
    assert torch.equal(snapshot.select("*h.3.bias")["model.h.3.bias"], model["h.3.bias"])
    for budget in (1, 9000, "1GiB"):
        seen = {name: tensor.clone() for name, tensor in snapshot.tensors("model.*", budget)}
        assert list(seen) == [f"model.{name}" for name in model]
        assert all(torch.equal(seen[f"model.{name}"], tensor) for name, tensor in model.items())


def test_entries(shelf: lmcstore.Shelf) -> None:
    take(shelf, 2)
    entries = {entry["name"]: entry for entry in shelf[2].entries() if not entry["is_attachment"]}
    assert entries["w"]["shape"] == (300,) and entries["w"]["dtype"] == "f32"
    assert entries["w"]["stored_as"] == "raw" and entries["w"]["raw_bytes"] == 1200
    first = {entry["name"]: entry for entry in shelf[1].entries()}
    assert first["b"]["content"] == entries["b"]["content"]
    assert first["w"]["content"] != entries["w"]["content"]


def test_log_and_tags(store: lmcstore.Store, shelf: lmcstore.Shelf) -> None:
    assert len(shelf.log()) == 0 and shelf.tags == {} and repr(shelf.log()) == "shelf run"
    for step in range(5):
        shelf.snapshot({"w": torch.full((300,), float(step))}, step=10 * step, metrics={"loss": 1 / (step + 1)})
    shelf.tag(2, "best", "good")
    shelf[2].load_into({"w": torch.zeros(300)})
    shelf.snapshot({"w": torch.ones(300)}, tags=["<b>"])
    log = shelf.log(3)
    assert [snap.number for snap in log] == [6, 5, 4] and log[0] == shelf.latest and len(log[1:]) == 2
    lines = repr(log).splitlines()
    assert len(lines) == 6 and lines[-1] == "... and 3 older"
    assert lines[2].split()[0] == "6" and lines[2].split()[3] == "2" and lines[2].endswith("<b>")
    assert lines[3].split()[:2] == ["5", "40"] and lines[3].endswith("loss 0.2") and " 4 " not in lines[3]
    assert len(shelf.log(None)) == 6 and "best, good" in repr(shelf.log(None))
    assert shelf.tags == {"<b>": 6, "best": 2, "good": 2}
    assert "&lt;b&gt;" in log._repr_html_() and "and 3 more" in log._repr_html_()
    for wrong in (0, -1, True, "2"):
        with pytest.raises(lmcstore.InvalidError):
            shelf.log(wrong)  # type: ignore[arg-type]
