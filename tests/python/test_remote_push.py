# SPDX-License-Identifier: BSD-3-Clause
"""Pushes and pulls: complete or absent, bit for bit, also when a process dies or two push at once."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore._remote import agree, confirm, outline, pull, push, state, sweep, upload
from lmcstore._remote.place import Place
from lmcstore._remote.verify import verify
from optional import torch
from same import same
from test_links import Trainer
from test_remote import an_entry, parsed_of

WRITER = "0" * 31 + "1"


def state_of(step: int, shelf: str = "run") -> dict[str, np.ndarray]:
    generator = np.random.default_rng(len(shelf))
    weights = generator.normal(0, 0.02, 50_000).astype(np.float32)
    return {
        "w": weights + np.float32(step * 1e-5),
        "same": weights[:1000],
        "step": np.array(step),
    }


def fill(store: lmcstore.Store, first: int, last: int, shelf: str = "run") -> None:
    for step in range(first, last + 1):
        store[shelf].snapshot(state_of(step, shelf), step=step, metrics={"loss": 1 / step})


def expect(store: lmcstore.Store, numbers: list[int], shelf: str = "run") -> None:
    assert [snapshot.number for snapshot in store[shelf]] == numbers
    for snapshot in store[shelf]:
        for name, value in state_of(snapshot.step or 0, shelf).items():
            assert np.array_equal(snapshot[name], value), (snapshot.number, name)
    assert store.verify()["damages"] == 0


@pytest.fixture
def url() -> str:
    return f"memory://{secrets.token_hex(8)}"


def pulled(url: str, tmp_path: Path, what: Any = None) -> lmcstore.Store:
    path = tmp_path / f"{secrets.token_hex(4)}.pool"
    lmcstore.pull(url, path, what)
    return lmcstore.open(path, "r+")


class Died(Exception):
    """Stands for the end of the process."""


class Fate:
    """Lets requests through, and dies before or after a chosen one, after which none is answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.dies_at, self.is_after = 0, 1 << 60, False
        self.lock = threading.Lock()
        for name in ("put", "create", "get", "get_range", "head"):
            monkeypatch.setattr(Place, name, self._wrapped(getattr(Place, name)))

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(place: Place, *arguments: Any) -> Any:
            with self.lock:
                self.count += 1
                now = self.count
            if now >= self.dies_at + self.is_after:
                raise Died
            result = method(place, *arguments)
            if now >= self.dies_at:
                raise Died
            return result

        return call


@pytest.mark.parametrize("place", ["file", "s3"])
def test_there_and_back(store: lmcstore.Store, place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"file://{tmp_path}/bucket" if place == "file" else request.getfixturevalue("bucket")
    fill(store, 1, 5)
    store["run"].tag(3, "best")
    fill(store, 1, 2, "other")
    store["run"].policy = "keep=last:100 links=3"
    done = store.push(url)
    assert done["snapshots"] == 7 and done["bytes"] > 0
    assert store.push(url) == {"snapshots": 0, "keys": 0, "bytes": 0, "confirmed": 0, "commit": done["commit"]}
    fill(store, 6, 7)
    assert store.push(url)["snapshots"] == 2
    with pulled(url, tmp_path) as copy:
        expect(copy, list(range(1, 8)))
        expect(copy, [1, 2], "other")
        assert copy["run"].tags == {"best": 3} and copy["run"].policy == store["run"].policy
        assert [one.metrics for one in copy["run"]] == [one.metrics for one in store["run"]]
        assert [one.step for one in copy["run"]] == [one.step for one in store["run"]]
        assert lmcstore.pull(url, copy) == {
            "snapshots": 0,
            "snapshots_skipped": 9,
            "bytes": 0,
        }


@pytest.mark.parametrize("place", ["file", "s3"])
def test_a_missing_run(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"file://{tmp_path}/bucket" if place == "file" else request.getfixturevalue("bucket")
    with pytest.raises(lmcstore.NotFoundError, match="there is no run of lmc-store"):
        lmcstore.pull(url, tmp_path / "new.pool")
    assert not (tmp_path / "new.pool").exists()


def test_parts(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    fill(store, 1, 8)
    store["run"].tag(3, "best")
    store["run"].tag(5, "good")
    store.push(url, "run@2..6")
    for what, numbers in (
        ("run@latest", [6]),
        ("run@best", [3]),
        ("run@latest~1", [5]),
        ("run@step:4", [4]),
        ("run@..3", [2, 3]),
        (["run@6", "run@2"], [2, 6]),
    ):
        with pulled(url, tmp_path, what) as copy:
            expect(copy, numbers)
            assert copy["run"].tags == {tag: at for tag, at in {"best": 3, "good": 5}.items() if at in numbers}
    for what in ("run@9", "run@none", "none", "run@{1 hour ago}"):
        with pytest.raises((lmcstore.NotFoundError, lmcstore.UnsupportedError)):
            lmcstore.pull(url, tmp_path / "none.pool", what)
    with pulled(url, tmp_path, "run@6") as copy:
        lmcstore.pull(url, copy, "run@3")
        expect(copy, [3, 6])
    store.push(url)
    with pulled(url, tmp_path) as copy:
        expect(copy, [2, 3, 4, 5, 6, 7, 8])


def test_training_goes_on_elsewhere(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    """A machine is lost: another pulls the newest snapshot, goes on, and pushes to the same URL."""
    fill(store, 1, 4)
    store.push(url)
    with pulled(url, tmp_path, "run@latest") as second:
        fill(second, 5, 6)
        assert second.push(url)["snapshots"] == 2
    fill(store, 5, 5)
    with pytest.raises(lmcstore.ExistsError, match="has another run@5"):
        store.push(url)
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3, 4, 5, 6])


def test_another_shelf_of_the_name(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    fill(store, 1, 2)
    store.push(url)
    before = Place(url).list("data")
    with lmcstore.open(tmp_path / "other.pool", "x") as other:
        fill(other, 1, 1)
        with pytest.raises(lmcstore.ExistsError, match="has another run@1"):
            other.push(url)
        fill(other, 2, 4)
        other["run"].remove(1)
        other["run"].remove(2)
        with pytest.raises(lmcstore.ExistsError, match="has another shelf 'run'"):
            other.push(url)
    assert Place(url).list("data") == before


def test_tags_notes_removals_and_names(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    fill(store, 1, 5)
    store["run"].tag(3, "best")
    store["run"].tag(2, "old")
    store.push(url)
    shelf = store["run"]
    shelf.tag(4, "best")
    shelf.untag("old")
    shelf[2].note = "lower rate"
    shelf[2].metrics["val"] = float("nan")
    shelf.remove(3)
    shelf.remove(5)
    store.push(url)
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3, 4, 5])
        assert copy["run"].tags == {"best": 4} and copy["run"][2].note == "lower rate"
        assert np.isnan(copy["run"][2].metrics["val"])
    store.push(url, mirror=True)
    shelf.rename("tuned")
    fill(store, 6, 6, "tuned")
    store.push(url)
    there = state.read(Place(url)).shelf("tuned")
    assert [(entry.number, entry.hidden) for entry in there.entries()][:4] == [
        (1, False),
        (2, False),
        (3, True),
        (4, False),
    ]
    with pulled(url, tmp_path) as copy:
        assert copy.shelves() == ["tuned"] and [one.number for one in copy["tuned"]] == [1, 2, 4, 6]
        assert copy["tuned"].tags == {"best": 4}
    with pytest.raises(lmcstore.NotFoundError):
        lmcstore.pull(url, tmp_path / "none.pool", "tuned@3")


def test_a_push_dies_at_each_request(store: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a death at any request there is a whole older state, and the next push completes it."""
    monkeypatch.setattr(push, "_BATCH_ENTRIES", 2)
    fill(store, 1, 3)
    first, fate = f"memory://{secrets.token_hex(8)}", Fate(monkeypatch)
    store.push(first)
    requests = fate.count
    assert requests > 10
    for dies_at in range(1, requests + 1):
        for is_after in (False, True):
            url = f"memory://{secrets.token_hex(8)}"
            fate.count, fate.dies_at, fate.is_after = 0, dies_at, is_after
            with pytest.raises(Died):
                store.push(url)
            fate.dies_at = 1 << 60
            try:
                numbers = [entry.number for entry in state.read(Place(url)).shelf("run").entries()]
            except lmcstore.NotFoundError:
                numbers = []
            assert numbers in ([], [1, 2], [1, 2, 3])
            if numbers and dies_at % 4 == 0:
                with pulled(url, tmp_path) as copy:
                    expect(copy, numbers)
            store.push(url)
            assert [entry.number for entry in state.read(Place(url)).shelf("run").entries()] == [1, 2, 3]
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3])


def test_a_pull_dies_at_each_request(
    store: lmcstore.Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 1, 3)
    store.push(url)
    fate = Fate(monkeypatch)
    with pulled(url, tmp_path):
        requests = fate.count
    for dies_at in range(1, requests + 1):
        path = tmp_path / f"{dies_at}.pool"
        fate.count, fate.dies_at = 0, dies_at
        with pytest.raises(Died):
            lmcstore.pull(url, path)
        fate.dies_at = 1 << 60
        lmcstore.pull(url, path)
        with lmcstore.open(path, "r") as copy:
            expect(copy, [1, 2, 3])


@pytest.mark.parametrize("most", [1, 32])
def test_a_snapshot_that_cant_be_dumped(
    store: lmcstore.Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Those before it are committed, whether they were to be committed together or alone."""
    monkeypatch.setattr(push, "_BATCH_ENTRIES", most)
    fill(store, 1, 4)
    dump = push.Pusher.dump

    def fail(self: push.Pusher, address: str, *arguments: Any, **options: Any) -> Any:
        if address == "run@4":
            raise lmcstore.DamagedError("run@4 is damaged")
        return dump(self, address, *arguments, **options)

    monkeypatch.setattr(push.Pusher, "dump", fail)
    with pytest.raises(lmcstore.DamagedError, match="run@4"):
        store.push(url)
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3])


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it does not come")


def test_the_next_archive_is_fetched_ahead(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one archive is read, parts of the next are under way, a bounded number of them."""
    monkeypatch.setattr(pull, "_AT_ONCE_BYTES", 1000)
    with Place(url) as place:
        data = [secrets.token_bytes(3900), secrets.token_bytes(20_000)]
        archives = []
        for one in data:
            written = upload.Upload(place)
            written.write(one)
            written.finish()
            archives.append(state.Archive(written.object, 0, len(one), written.piece_bytes, 0, 1, "0" * 32))
        asked: list[str] = []
        get_range = Place.get_range

        def count(self: Place, name: str, offset: int, size: int) -> bytes:
            asked.append(name.rpartition("/")[0])
            return get_range(self, name, offset, size)

        monkeypatch.setattr(Place, "get_range", count)
        with pull._Ahead(place) as ahead:
            for archive in archives:
                ahead.add(archive)
            first = ahead.next()
            read = next(first)
            wait_until(lambda: len(asked) == 8)
            assert asked.count(archives[1].object) == 0
            read += next(first) + next(first)
            wait_until(lambda: archives[1].object in asked)
            assert len(asked) <= 3 + 8
            assert read + b"".join(first) == data[0]
            assert b"".join(ahead.next()) == data[1]


def test_pieces_of_chunks_of_all_sizes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of chunks may change once they are written, and that of pieces once these are sent."""
    sent: dict[str, tuple[Any, ...]] = {}
    put = Place.put

    def count(self: Place, name: str, *parts: Any) -> None:
        sent[name] = tuple(map(bytes, parts))
        put(self, name, *parts)

    monkeypatch.setattr(Place, "put", count)
    chunks = [secrets.token_bytes(size) for size in (7, 1, 300_000, *[20] * 1000, 70_000, 100_000, 3, 2_000_000, 5)]
    with Place(url) as place:
        written = upload.Upload(place, None, 1 << 20)
        for chunk in chunks:
            memory = bytearray(chunk)
            written.write(memoryview(memory))
            memory[:] = bytes(len(memory))
        written.finish()
        assert b"".join(place.get(name) for name in sorted(sent)) == b"".join(chunks)
    assert [len(parts) for _, parts in sorted(sent.items())] == [1, 1, 1]


@pytest.mark.parametrize(("shared", "needs"), [(900, False), (1100, True)])
def test_a_state_that_is_new_needs_no_other(
    shared: int, needs: bool, store: lmcstore.Store, url: str, tmp_path: Path
) -> None:
    """If a step has changed all but one byte in 256, its archive has the rest again."""
    generator = np.random.default_rng(1)
    same = generator.bytes(shared)
    for step in range(3):
        parts = {"new": generator.bytes(256_000 - shared), "same": same}
        store["run"].snapshot({name: np.frombuffer(part, np.uint8) for name, part in parts.items()}, step=step)
    store.push(url)
    with Place(url) as place:
        entries = list(state.read(place).shelf("run").entries(1))
    assert [entry.base != 0 for entry in entries] == [False, needs, needs]
    with pulled(url, tmp_path) as copy:
        assert [one.digest for one in copy["run"]] == [one.digest for one in store["run"]]
        assert copy.verify()["damages"] == 0


def test_the_first_archives_are_fetched_while_the_pool_is_made(
    store: lmcstore.Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 7):
        fill(store, step, step)
        store.push(url)
    asked: list[str] = []
    get_range, pull_into = Place.get_range, pull.pull_into

    def count(self: Place, name: str, offset: int, size: int) -> bytes:
        asked.append(name)
        return get_range(self, name, offset, size)

    def begin(*arguments: Any, **options: Any) -> Any:
        wait_until(lambda: len(asked) == pull._GROUPS_AHEAD)
        return pull_into(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "get_range", count)
        patch.setattr(pull, "pull_into", begin)
        lmcstore.pull(url, tmp_path / "new.pool", "run@4..5")
        assert len(asked) == len(set(asked)) == 5  # each archive once
    with lmcstore.open(tmp_path / "new.pool", "r") as copy:
        expect(copy, [4, 5])
    with pytest.raises(lmcstore.NotFoundError, match="no snapshot '9'"):
        lmcstore.pull(url, tmp_path / "none.pool", "run@9")
    assert not (tmp_path / "none.pool").exists()


@pytest.mark.parametrize("what", [None, "run", "run@latest", "run@3"])
def test_a_pull_that_begins_with_an_old_head(
    store: lmcstore.Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str | None
) -> None:
    """The archives of the old state are under way when the newer one is found, in which they may be gone."""
    begun: list[str] = []
    start = pull._Ahead.begin
    with Place(url) as place:
        fill(store, 1, 2)
        store.push(url)
        old = place.get("head")
        fill(store, 3, 3)
        store.push(url)
        sweep.remove(place, ["run@1"], dry_run=False)
        place.put("head", old)

    def begin(self: pull._Ahead, archives: list[Any]) -> None:
        begun.append("")
        start(self, archives)

    monkeypatch.setattr(pull._Ahead, "begin", begin)
    with pulled(url, tmp_path, what) as copy:
        expect(copy, [2, 3] if what in (None, "run") else [3])
    assert len(begun) == (1 if what == "run@3" else 2)


def test_two_pushers(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    """Two processes push one pool, and a third another shelf: nothing is lost or there twice."""
    fill(store, 1, 12)
    failures: list[BaseException] = []

    def work(what: str) -> None:
        try:
            with lmcstore.open(store.path, "r") as reader:
                reader.push(url, what)
        except BaseException as error:
            failures.append(error)

    fill(store, 1, 4, "other")
    threads = [threading.Thread(target=work, args=(what,)) for what in ("run", "run", "other", "run")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with pulled(url, tmp_path) as copy:
        expect(copy, list(range(1, 13)))
        expect(copy, [1, 2, 3, 4], "other")


def test_follow(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []

    def work() -> None:
        with lmcstore.open(store.path, "r") as reader:
            results.append(reader.push(url, follow=True, timeout=1.5))

    thread = threading.Thread(target=work)
    thread.start()
    for step in range(1, 6):
        fill(store, step, step)
        time.sleep(0.1)
    thread.join()
    assert results[0]["snapshots"] == 5
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3, 4, 5])


def test_follow_goes_on_when_the_server_is_back(
    store: lmcstore.Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcstore._remote.place._FIRST_PAUSE_S", 0.001)
    fill(store, 1, 2)
    create = Place.create
    refusals = iter(range(3))

    def refuse(place: Place, *arguments: Any) -> Any:
        if next(refusals, None) is not None:
            raise lmcstore.InputOutputError("the server is away")
        return create(place, *arguments)

    store.push(url)
    fill(store, 3, 3)
    monkeypatch.setattr(Place, "create", refuse)
    assert store.push(url, follow=True, timeout=2)["snapshots"] == 1


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "swapped"])
def test_damaged_pieces(
    store: lmcstore.Store,
    url: str,
    tmp_path: Path,
    damage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Damage of a piece is an error that names the snapshot; earlier ones stay whole."""
    monkeypatch.setattr(upload, "PIECE_BYTES", 128 << 10)
    monkeypatch.setattr(upload.Upload.__init__, "__defaults__", (None, 128 << 10))
    fill(store, 1, 2)
    store.push(url)
    place = Place(url)
    pieces = [info.name for info in place.list("data")]
    assert len(pieces) > 3
    kept = {name: place.get(name) for name in pieces}
    for index, name in enumerate(pieces[:-1]):
        data = bytearray(kept[name])
        data[len(data) // 2] ^= 1
        if damage == "missing":
            place.delete([name])
        else:
            other = kept[pieces[index - 1]]
            place.put(
                name,
                {"cut": bytes(data[:-1]), "flipped": bytes(data), "swapped": other}[damage],
            )
        path = tmp_path / f"{index}.pool"
        with pytest.raises(
            (lmcstore.DamagedError, lmcstore.NotFoundError),
            match=r"run@\d of memory://",
        ):
            lmcstore.pull(url, path)
        place.put(name, kept[name])
        lmcstore.pull(url, path)
        with lmcstore.open(path, "r") as copy:
            expect(copy, [1, 2])


def test_steps_of_adamw_as_links(pool_path: str, url: str, tmp_path: Path) -> None:
    """Link by link, with a key now and then: bit for bit, and each step costs about its link."""
    torch.manual_seed(0)
    trainer = Trainer(
        make=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False),
        schedule=None,
    )
    with (
        lmcstore.open(pool_path, "x", memory="64MiB", background=False) as store,
        Place(url) as place,
    ):
        shelf = store.shelf("run", create=True)
        shelf.policy = "write=link restore=none links=4"
        with_place = push.Pusher(store, place, (), False)
        for step in range(14):
            trainer.step()
            shelf.snapshot(trainer.state(), step=step, gradients=trainer.model)
            with_place.push(waits=True)
        with_place.close()
        assert max(one.storage()["link_contents"] for one in shelf) > 0
        assert with_place.keys > 1
        there = state.read(place).shelf("run")
        assert all(len(there.chain(number)) <= 9 for number in range(1, 15))
        for what in (None, "run@latest", "run@7", "run@13..14"):
            with pulled(url, tmp_path, what) as copy:
                for snapshot in copy["run"]:
                    assert snapshot._handle.digest() == shelf[snapshot.number]._handle.digest()
                assert copy.verify()["damages"] == 0


def test_a_run_without_snapshots_is_sound(store: lmcstore.Store, url: str) -> None:
    store.push(url)
    with Place(url) as place:
        assert verify(place, (), store._create) == {"snapshots": 0, "bytes_read": 0, "damages": []}


def test_frequent_keys_cost_little(pool_path: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that come more often than lines end send no link again."""
    monkeypatch.setattr(push, "_CHEAP_KEY_EVERY", 1)
    torch.manual_seed(0)
    trainer = Trainer(make=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False), schedule=None)
    with lmcstore.open(pool_path, "x", memory="64MiB", background=False) as store, Place(url) as place:
        shelf = store.shelf("run", create=True)
        shelf.policy = "write=link restore=none links=6"
        with contextlib.closing(push.Pusher(store, place, (), False)) as pusher:
            for _ in range(16):
                trainer.step()
                shelf.snapshot(trainer.state(), gradients=trainer.model)
                pusher.push(waits=True)
        keys = [entry.key for entry in state.read(place).shelf("run").entries() if entry.key is not None]
        assert len(keys) >= 8
        assert all(key.outline_offset < key.bytes / 16 for key in keys)


def test_keys_have_the_payloads_of_older_archives(
    pool_path: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key costs little, and what it needs of removed snapshots stays; also if the pusher began anew."""
    torch.manual_seed(0)
    trainer = Trainer(make=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False), schedule=None)
    with lmcstore.open(pool_path, "x", memory="64MiB", background=False) as store, Place(url) as place:
        shelf = store.shelf("run", create=True)
        shelf.policy = "write=link restore=none links=4"
        for count in (9, 9):
            pusher = push.Pusher(store, place, (), False)
            for _ in range(count):
                trainer.step()
                shelf.snapshot(trainer.state(), gradients=trainer.model)
                pusher.push(waits=True)
            pusher.close()
        entries = list(state.read(place).shelf("run").entries())
        keys = [entry for entry in entries if entry.key is not None]
        shared = [entry for entry in keys if entry.key.outline_offset < entry.key.bytes / 16]
        assert [entry.number for entry in keys] == [5, 9, 13, 17]
        assert [entry.number for entry in shared] == [5, 9, 17]  # the second pusher knows no older archives at first
        assert all(entry.number - 9 <= entry.key.first < entry.number for entry in shared)
        digests = {one.number: one._handle.digest() for one in shelf}
        assert verify(place, (), store._create)["damages"] == []
        for name in ("GRACE_S", "EXPIRES_S"):
            monkeypatch.setattr(sweep, name, -1.0)
        kept = shared[-1].number
        sweep.remove(place, [f"run@..{kept - 1}", f"run@{kept + 1}.."], dry_run=False)
        sweep.sweep(state.read(place))
        there = list(state.read(place).shelf("run").entries())
        assert [entry.number for entry in there if not entry.hidden] == [kept]
        assert there[0].number == shared[-1].key.first and there[-1].number == kept
        with pulled(url, tmp_path) as copy:
            assert [one._handle.digest() for one in copy["run"]] == [digests[kept]]
        with lmcstore.open(url) as far:
            same(far["run"][kept].state_dict(), shelf[kept].state_dict())
        for name in (entries[-1].archive.object, entries[kept - 2].archive.object):
            for info in place.list("data"):
                if info.name.startswith(name):
                    data = bytearray(place.get(info.name))
                    data[len(data) // 3] ^= 1
                    place.put(info.name, bytes(data))
        with pytest.raises(lmcstore.DamagedError, match=entries[kept - 2].archive.object):
            lmcstore.pull(url, tmp_path / "bad.pool")
        with lmcstore.open(url) as far, pytest.raises(lmcstore.DamagedError, match=entries[kept - 2].archive.object):
            far["run"][kept].state_dict()
        damages = verify(place, (), store._create)["damages"]
        assert len(damages) == 1 and entries[kept - 2].archive.object in damages[0]["message"]


def test_a_key_of_removed_archives_is_given_up(pool_path: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is sent, another program removes the snapshots whose payloads it has."""
    weights = np.random.default_rng(0).normal(0, 1, 50_000)
    with lmcstore.open(pool_path, "x", background=False) as store, Place(url) as place:
        store["run"].policy = "links=2"
        pusher = push.Pusher(store, place, (), False)
        finish = push.Upload.key

        def removed(upload: push.Upload, *rest: Any) -> Any:
            sweep.remove(Place(url), ["run@1"], dry_run=False)
            return finish(upload, *rest)

        for step in range(3):
            store["run"].snapshot({"same": weights, "step": np.array(step)})
            if step == 2:
                monkeypatch.setattr(push.Upload, "key", removed)
                monkeypatch.setattr(
                    agree, "remove", lambda there, numbers: there.update(dict.fromkeys(numbers)) is None
                )
            pusher.push(waits=True)
        assert all(entry.key is None for entry in state.read(place).shelf("run").entries())
        assert not pusher._parts  # the next key does without them
        pusher.close()


def test_what_keys_need_of_others(pool_path: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that never changes does not keep all old entries, and its object is looked for before a snapshot goes."""
    weights = np.random.default_rng(0).normal(0, 1, 300_000)
    with lmcstore.open(pool_path, "x", background=False) as store, Place(url) as place:
        store["run"].policy = "links=2"
        pusher = push.Pusher(store, place, (), False)
        for step in range(20):
            store["run"].snapshot({"same": weights, "step": np.array(step)})
            pusher.push(waits=True)
        pusher.close()
        there = state.read(place).shelf("run")
        firsts = {entry.number: entry.key.first for entry in there.entries() if entry.key is not None}
        assert all(number - 6 <= first <= number for number, first in firsts.items())
        assert firsts[3] == 1 and sum(first == number for number, first in firsts.items()) <= 4
        with lmcstore.open(url) as far:
            assert np.array_equal(far["run"][3]["same"][1000:2000], weights[1000:2000])
        confirmer = confirm.Confirmer(store, place, whole=False)
        monkeypatch.setattr(confirm.random, "sample", lambda *_: ["step"])
        assert confirmer._is_sound(there, 4)
        confirmer.close()
        first = there.entry(1)
        assert first is not None
        place.delete(info.name for info in place.list("data") if info.name.startswith(first.archive.object))
        confirmer = confirm.Confirmer(store, place, whole=False)
        with pytest.raises(lmcstore.NotFoundError, match=first.archive.object):
            confirmer._is_sound(there, 4)
        confirmer.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found["places"].pop(),
        lambda found: found["places"].append([0, 0, 0]),
        lambda found: found["places"][0].__setitem__(0, 99),
        lambda found: found["places"][0].__setitem__(1, -1),
        lambda found: found["places"][0].__setitem__(1, "x"),
        lambda found: found["objects"][0].__setitem__(0, "data/../lmc-store.json"),
        lambda found: found["objects"][0].__setitem__(1, 0),
        lambda found: found.pop("objects"),
    ],
)
def test_sources_are_checked(store: lmcstore.Store, tmp_path: Path, change: Callable[[Any], Any]) -> None:
    fill(store, 1, 1)
    with open(tmp_path / "archive", "w+b") as file:
        store.dump(file)
        file.seek(0)
        found = parsed_of(file.read())
    name = f"data/{1:020d}-{1:016x}"
    found.sources = [outline.Source(name, 1 << 20, 0, 0)] * len(list(found.gaps()))
    packed = found.packed()
    assert outline.unpack(packed, "x").sources == found.sources
    text = zlib.decompress(packed)
    at = text.rindex(b'{"objects"')
    parts = json.loads(text[at:])
    change(parts)
    with pytest.raises(lmcstore.DamagedError, match="its sources are wrong"):
        outline.unpack(zlib.compress(text[:at] + json.dumps(parts).encode()), "x")


def a_shelf(url: str, deep: int = 0) -> state.Shelf:
    """Six entries, each upon the one before; the fourth has a key."""
    one = state.begin(Place(url)).draft().add("run", "0" * 32, 4, "", None)
    for number in range(1, 7):
        key = an_entry(1).archive if number == 4 else None
        one.append(an_entry(number, key=key, base=number - 1, deep=number == deep))
    return one


def test_removing_keeps_what_others_need(url: str) -> None:
    one = a_shelf(url)
    agree.remove(one, {1, 2, 3, 5})
    assert [(entry.number, entry.hidden) for entry in one.entries()] == [(4, False), (5, True), (6, False)]
    agree.remove(one, {6})
    assert [entry.number for entry in one.entries()] == [4]
    one = a_shelf(url, deep=5)
    agree.remove(one, {2, 3})
    assert [(entry.number, entry.hidden) for entry in one.entries()][:3] == [(1, False), (2, True), (3, True)]


def test_a_key_is_passed_over_below_a_deep_entry(url: str) -> None:
    assert [entry.number for entry, _ in a_shelf(url).chain(6)] == [4, 5, 6]
    assert [entry.number for entry, _ in a_shelf(url, deep=5).chain(6)] == [1, 2, 3, 4, 5, 6]
    assert [entry.number for entry, _ in a_shelf(url, deep=5).chain(4)] == [4]
    assert [entry.number for entry, _ in a_shelf(url).chain(4, by_key=False)] == [1, 2, 3, 4]


def test_archives_of_deep_entries_are_restored_together(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    fill(store, 1, 5)
    store.push(url)

    def deepen(draft: state.State) -> bool:
        shelf = draft.shelf("run")
        entries = [entry for entry in shelf.entries() if entry.number in (3, 4)]
        shelf.update({entry.number: entry._replace(deep=True) for entry in entries})
        return True

    state.change(state.read(Place(url)), WRITER, deepen)
    for what, numbers in ((None, [1, 2, 3, 4, 5]), ("run@4", [4]), ("run@5", [5]), ("run@2..3", [2, 3])):
        with pulled(url, tmp_path, what) as copy:
            expect(copy, numbers)


def test_a_compacted_pool(store: lmcstore.Store, url: str, tmp_path: Path) -> None:
    """Deltas upon contents of later snapshots are sent with earlier ones."""
    store["run"].policy = "keep_raw=1 chain=7"
    fill(store, 1, 20)
    store.compact(finished=True)
    store.push(url)
    for what, numbers in ((None, list(range(1, 21))), ("run@11", [11]), ("run@latest", [20])):
        with pulled(url, tmp_path, what) as copy:
            expect(copy, numbers)


def test_following_a_shelf_that_does_not_exist_yet(store: lmcstore.Store, url: str) -> None:
    fill(store, 1, 1, "other")
    results: list[dict[str, Any]] = []

    def work() -> None:
        with lmcstore.open(store.path, "r") as reader:
            results.append(reader.push(url, "run", follow=True, timeout=1.5))

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.3)
    fill(store, 1, 2)
    thread.join()
    assert results[0]["snapshots"] == 2
    with pytest.raises(lmcstore.NotFoundError):
        store.push(url, "none")


@pytest.fixture(autouse=True)
def few_seconds() -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < 120
