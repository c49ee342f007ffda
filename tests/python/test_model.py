# SPDX-License-Identifier: BSD-3-Clause
"""A store against a simple model: dictionaries of copies.

After each step of a random history the store must agree with the model, at the end bit by bit. A failing history is
printed as a shortened program. ``LMCS_MODEL_EXAMPLES=2000`` draws so many new histories; by default they are the same
in every run.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from same import same

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

EXAMPLES = int(os.environ.get("LMCS_MODEL_EXAMPLES", "0"))
MEMORY = Path("/dev/shm")
SHELVES = ("a", "b")
TAGS = ("best", "keep", "x")
DTYPES = ("<f4", "<f8", "<f2", "|u1", "<i8")
SIZES = (0, 1, 100, 5_000, 70_000)

shelves = st.sampled_from(SHELVES)
seeds = st.integers(0, 2**16)


def new_array(seed: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    dtype = np.dtype(DTYPES[seed % len(DTYPES)])
    size = SIZES[seed // 7 % len(SIZES)]
    if dtype.kind == "f":
        return random.normal(size=size).astype(dtype)
    return random.integers(0, 200, size).astype(dtype)


def changed(array: np.ndarray[Any, Any], how: str, seed: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    if how == "step" and array.dtype.kind == "f":
        return (array + random.normal(size=array.shape) * 1e-3).astype(array.dtype)
    if how == "bits":
        flat = array.copy().view(np.uint8)
        flat[random.integers(0, max(len(flat), 1), 3 if len(flat) else 0)] ^= 0x80
        return flat.view(array.dtype)
    if how == "zero":
        return np.zeros_like(array)
    return new_array(seed)


class Kept:
    def __init__(self, state: dict[str, np.ndarray[Any, Any]], step: int | None, metrics: dict[str, float]) -> None:
        self.state = {name: array.copy() for name, array in state.items()}
        self.step = step
        self.metrics = metrics


class Model(RuleBasedStateMachine):
    @initialize()
    def create(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="lmcs-model-", dir=MEMORY if MEMORY.is_dir() else None))
        self.path = self.directory / "m.pool"
        self.store = lmcstore.open(self.path, size="64MiB", background=False)
        self.kept: dict[str, dict[int, Kept]] = {name: {} for name in SHELVES}
        self.tags: dict[str, dict[str, int]] = {name: {} for name in SHELVES}
        self.last: dict[str, int] = dict.fromkeys(SHELVES, 0)
        self.now: dict[str, dict[str, np.ndarray[Any, Any]]] = {name: {"w": new_array(3)} for name in SHELVES}
        self.views: list[tuple[Any, dict[str, np.ndarray[Any, Any]]]] = []
        self.pending: list[lmcstore.Snapshot] = []

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        self.settle()
        for shelf in SHELVES:
            for number in self.kept[shelf]:
                self.check_snapshot(shelf, number)
        self.check_views()
        assert self.store.verify()["damages"] == 0
        self.store.close()
        self.check_views()
        self.views.clear()
        shutil.rmtree(self.directory)

    def settle(self) -> None:
        for snapshot in self.pending:
            snapshot.wait()
        self.pending.clear()

    @rule(shelf=shelves, how=st.sampled_from(("step", "bits", "zero", "new", "same")), seed=seeds)
    def train(self, shelf: str, how: str, seed: int) -> None:
        names = sorted(self.now[shelf])
        for name in names[seed % 2 :: 2] if how != "same" else ():
            self.now[shelf][name] = changed(self.now[shelf][name], how, seed)

    @rule(shelf=shelves, name=st.sampled_from(("w", "b", "deep.er", "m")), seed=seeds)
    def add_tensor(self, shelf: str, name: str, seed: int) -> None:
        self.now[shelf][name] = new_array(seed)

    @rule(shelf=shelves, seed=seeds)
    def drop_tensor(self, shelf: str, seed: int) -> None:
        names = sorted(self.now[shelf])
        if len(names) > 1:
            del self.now[shelf][names[seed % len(names)]]

    @rule(shelf=shelves, step=st.none() | st.integers(0, 9), tags=st.sets(st.sampled_from(TAGS)), wait=st.booleans())
    def snapshot(self, shelf: str, step: int | None, tags: set[str], wait: bool) -> None:
        self.settle()
        metrics = {"loss": 1.0 / (1 + self.last[shelf])}
        state = self.now[shelf]
        made = self.store[shelf].snapshot(dict(state), step=step, tags=tags, metrics=metrics, wait=wait)
        assert made.number == self.last[shelf] + 1
        self.last[shelf] = made.number
        self.kept[shelf][made.number] = Kept(state, step, metrics)
        self.tags[shelf].update(dict.fromkeys(tags, made.number))
        if not wait:
            for name in state:
                state[name] = state[name].copy()
            self.pending.append(made)

    @rule(shelf=shelves)
    def snapshot_of_what_cannot_be_stored(self, shelf: str) -> None:
        self.settle()
        with pytest.raises(lmcstore.UnsupportedError, match="odd"):
            self.store[shelf].snapshot({**self.now[shelf], "odd": object()})

    @rule(shelf=shelves, seed=seeds)
    def remove(self, shelf: str, seed: int) -> None:
        self.settle()
        numbers = sorted(self.kept[shelf])
        if not numbers:
            return
        number = numbers[seed % len(numbers)]
        mine = [tag for tag, on in self.tags[shelf].items() if on == number]
        assert self.store[shelf].remove(number).removed_tags == len(mine)
        del self.kept[shelf][number]
        for tag in mine:
            del self.tags[shelf][tag]
        with pytest.raises(lmcstore.NotFoundError):
            self.store[shelf][number].state_dict()

    @rule(shelf=shelves, tag=st.sampled_from(TAGS), seed=seeds)
    def tag(self, shelf: str, tag: str, seed: int) -> None:
        self.settle()
        numbers = sorted(self.kept[shelf])
        if numbers:
            self.store[shelf].tag(numbers[seed % len(numbers)], tag)
            self.tags[shelf][tag] = numbers[seed % len(numbers)]

    @rule(shelf=shelves, tag=st.sampled_from(TAGS))
    def untag(self, shelf: str, tag: str) -> None:
        self.settle()
        if tag in self.tags[shelf]:
            self.store[shelf].untag(tag)
            del self.tags[shelf][tag]
        elif shelf in self.store:
            with pytest.raises(lmcstore.NotFoundError):
                self.store[shelf].untag(tag)

    @rule(shelf=shelves, count=st.integers(1, 4))
    def keep_raw(self, shelf: str, count: int) -> None:
        self.settle()
        if shelf in self.store:
            self.store[shelf].keep_raw = count
            assert self.store[shelf].keep_raw == count

    @rule()
    def compact(self) -> None:
        self.settle()
        self.store.compact()

    @rule(background=st.booleans())
    def reopen(self, background: bool) -> None:
        self.settle()
        self.store.close()
        self.store = lmcstore.open(self.path, background=background)

    @precondition(lambda self: any(self.kept.values()))
    @rule()
    def archive(self) -> None:
        """Into an archive and another pool; the second time adds nothing."""
        self.settle()
        archive = self.directory / "m.lmca"
        with archive.open("wb") as file:
            self.store.dump(file)
        with lmcstore.open(self.directory / "other.pool", background=False) as other:
            for _ in range(2):
                with archive.open("rb") as file:
                    other.restore(file)
                for shelf, kept in self.kept.items():
                    assert [s.number for s in (other[shelf] if kept else ())] == sorted(kept)
                    for number, one in kept.items():
                        same(one.state, other[shelf][number].state_dict())
                        assert sorted(other[shelf][number].tags) == self.tags_of(shelf, number)
            assert other.verify()["damages"] == 0
        os.unlink(self.directory / "other.pool")

    @rule(shelf=shelves, seed=seeds)
    def look(self, shelf: str, seed: int) -> None:
        self.settle()
        numbers = sorted(self.kept[shelf])
        if numbers and len(self.views) < 8:
            number = numbers[seed % len(numbers)]
            self.views.append((self.store[shelf][number].state_dict(), self.kept[shelf][number].state))

    @rule(shelf=shelves, seed=seeds)
    def read_one(self, shelf: str, seed: int) -> None:
        self.settle()
        numbers = sorted(self.kept[shelf])
        if numbers:
            self.check_snapshot(shelf, numbers[seed % len(numbers)])

    def tags_of(self, shelf: str, number: int) -> list[str]:
        return sorted(tag for tag, on in self.tags[shelf].items() if on == number)

    def check_snapshot(self, shelf: str, number: int) -> None:
        found, kept = self.store[shelf][number], self.kept[shelf][number]
        assert found.step == kept.step
        assert found.metrics == kept.metrics
        assert sorted(found.tags) == self.tags_of(shelf, number)
        assert found.raw_bytes >= sum(array.nbytes for array in kept.state.values())
        same(kept.state, found.state_dict())
        name = sorted(kept.state)[number % len(kept.state)]
        same(kept.state[name], found[name])

    def check_views(self) -> None:
        for view, expected in self.views:
            same(expected, view)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store") or self.pending:
            return
        for shelf, kept in self.kept.items():
            if shelf not in self.store:
                assert self.last[shelf] == 0
                continue
            assert [s.number for s in self.store[shelf]] == sorted(kept)
            latest = self.store[shelf].latest
            assert (latest.number if latest else None) == max(kept, default=None)
            for tag, number in self.tags[shelf].items():
                assert self.store[shelf][tag].number == number
        self.check_views()


Model.TestCase.settings = settings(
    max_examples=EXAMPLES or 40,
    stateful_step_count=30,
    deadline=None,
    derandomize=not EXAMPLES,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
TestModel = Model.TestCase
