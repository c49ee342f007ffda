# SPDX-License-Identifier: BSD-3-Clause
"""Archives of parts, since others, canonical and resumed: from Python, the command, and the reference reader."""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import lmcstore
import numpy as np
import pytest
from command import BIN, NEEDS_BIN
from lmcstore import archive

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import reference_archive  # noqa: E402
from reference_archive import Archive, Incomplete  # noqa: E402

by_the_book = pytest.mark.skipif(reference_archive.xxhash is None, reason="xxhash is not installed")


def state_of(step: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    weights = generator.normal(0, 0.02, 50_000).astype(np.float32)
    return {"w": weights + np.float32(step * 1e-5), "same": weights[:100], "step": np.array(step)}


def fill(store: lmcstore.Store, first: int, last: int) -> None:
    for step in range(first, last + 1):
        store["run"].snapshot(state_of(step), step=step, metrics={"loss": 1 / step})


def expect(store: lmcstore.Store, shelf: str, numbers: list[int]) -> None:
    assert [snapshot.number for snapshot in store[shelf]] == numbers
    for snapshot in store[shelf]:
        for name, value in state_of(snapshot.step or 0).items():
            assert np.array_equal(snapshot[name], value), (snapshot.number, name)
    assert store.verify()["damages"] == 0


@pytest.fixture
def full(store: lmcstore.Store) -> lmcstore.Store:
    fill(store, 1, 8)
    store["run"].tag(3, "best")
    store["other"].snapshot(state_of(1), step=1)
    store.compact()
    return store


def test_parts(full: lmcstore.Store, tmp_path: Path) -> None:
    for what, numbers in [("run@3..5", [3, 4, 5]), (["run@best", "run@8"], [3, 8])]:
        with (tmp_path / "part").open("wb") as file:
            assert full.dump(file, what)["snapshots"] == len(numbers)
        with lmcstore.open(tmp_path / "to.pool", mode="x") as to, (tmp_path / "part").open("rb") as file:
            to.restore(file)
            expect(to, "run", numbers)
        (tmp_path / "to.pool").unlink()
    with (tmp_path / "all").open("wb") as file:
        full.dump(file)
    with lmcstore.open(tmp_path / "to.pool", mode="x") as to, (tmp_path / "all").open("rb") as file:
        to.restore(file, only="run@2..3", name="copy")
        expect(to, "copy", [2, 3])
        file.seek(0)
        to.restore(file, only=["run@7", "w"], name="weights")
        assert np.array_equal(to["weights"][7]["w"], state_of(7)["w"])
        file.seek(0)
        with pytest.raises(lmcstore.NotFoundError, match="nothing"):
            to.restore(file, only="nothing*")
        with pytest.raises(lmcstore.InvalidError):
            to.restore(file, name="x@y")


def test_functions_in_place_of_descriptors(full: lmcstore.Store, tmp_path: Path) -> None:
    pool, kept, views = full._pool, bytearray(), []

    def take(data: memoryview) -> None:
        kept.extend(data)
        views.append(data)

    report = pool.dump(take, ("run",), (), False, False, False, None)
    assert report["bytes"] == len(kept)
    for view in views:
        with pytest.raises(ValueError, match="released"):
            bytes(view)

    def fail(data: memoryview) -> int:
        raise KeyError("no room")

    with pytest.raises(KeyError, match="no room"):
        pool.dump(fail, ("run",), (), False, False, False, None)
    with lmcstore.open(tmp_path / "to.pool", mode="x") as to:
        source = io.BytesIO(kept)
        with pytest.raises(KeyError, match="no room"):
            to._pool.restore(fail, (), (), None, False, False, None)
        for wrong in ((lambda to: "many"), (lambda to: -1), (lambda to: len(to) + 1)):
            with pytest.raises((TypeError, OverflowError, lmcstore.Error)):
                to._pool.restore(wrong, (), (), None, False, False, None)
        assert to.shelves() == []
        to._pool.restore(source.readinto, (), (), None, False, False, None)
        expect(to, "run", list(range(1, 9)))


def test_since_and_ls(full: lmcstore.Store, tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        full.dump(file)
    fill(full, 9, 10)
    full["run"].tag(9, "best")
    with (tmp_path / "b").open("wb") as file:
        full.dump(file, since=tmp_path / "a")
    by_path = archive.ls(tmp_path / "b")["since"]
    with (tmp_path / "a").open("rb") as older, (tmp_path / "b").open("wb") as file:
        report = full.dump(file, since=[older])
    assert by_path == archive.ls(tmp_path / "b")["since"]
    with lmcstore.open(tmp_path / "by_path.pool", mode="x") as other:
        restored = other.restore([tmp_path / "a", str(tmp_path / "b")])["snapshots"]
        assert restored == len(archive.ls(tmp_path / "a")["snapshots"]) + 2
        with pytest.raises(FileNotFoundError):
            other.restore(tmp_path / "none")
    assert report["snapshots"] == 2 and report["snapshots_lost"] == 0 and report["contents_found"] > 0
    first, second = archive.ls(tmp_path / "a"), archive.ls(tmp_path / "b")
    assert second["since"] == [first["id"]] and first["since"] == []
    assert [(s["shelf"], s["number"], s["step"]) for s in second["snapshots"]] == [("run", 9, 9), ("run", 10, 10)]
    assert second["snapshots"][0]["tags"] == ["best"] and second["snapshots"][1]["metrics"] == {"loss": 0.1}
    assert archive.verify(tmp_path / "a")["decoded_contents"] == first["contents"]
    with lmcstore.open(tmp_path / "to.pool", mode="x") as to, (tmp_path / "a").open("rb") as a:
        with (tmp_path / "b").open("rb") as b:
            with pytest.raises(lmcstore.NotFoundError, match=first["id"]):
                to.restore(b)
            b.seek(0)
            to.restore([a, b], move_tags=True)
        expect(to, "run", list(range(1, 11)))
        assert to["run"]["best"].number == 9
    with pytest.raises(lmcstore.DamagedError):
        archive.ls(io.FileIO(os.memfd_create("nothing"), "r+"))


@by_the_book
def test_by_the_book(full: lmcstore.Store, tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        full.dump(file)
    fill(full, 9, 10)
    with (tmp_path / "a").open("rb") as older, (tmp_path / "b").open("wb") as file:
        full.dump(file, since=[older])
    with (tmp_path / "c").open("wb") as file:
        full.dump(file, canonical=True)
    with (tmp_path / "d").open("wb") as file:
        full.dump(file, "run@2")
    a = Archive((tmp_path / "a").open("rb"))
    with pytest.raises(Incomplete):
        Archive((tmp_path / "b").open("rb"))
    b = Archive((tmp_path / "b").open("rb"), [a])
    assert b.since == [a.name] == [archive.ls(tmp_path / "a")["id"]]
    canonical = Archive((tmp_path / "c").open("rb"))
    assert all(content.payload == 0 for content in canonical.contents)
    assert a.shelves["run"].identity == b.shelves["run"].identity != a.shelves["other"].identity
    assert a.shelves["run"].has_all_tags and canonical.shelves["run"].identity == (0, 0)
    assert len({content.digest for content in canonical.contents}) == len(canonical.contents)
    part = Archive((tmp_path / "d").open("rb"))
    for found, numbers in [(a, 8), (b, 2), (canonical, 10), (part, 1)]:
        assert len(found.shelves["run"].snapshots) == numbers
        for snapshot in found.shelves["run"].snapshots:
            assert snapshot.find("w")[1].read() == state_of(snapshot.step or 0)["w"].tobytes()


def test_resume(full: lmcstore.Store, tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        full.dump(file)
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(data[: len(data) // 2])
    with (tmp_path / "b").open("r+b") as file:
        full.dump(file, resume=True)
    assert len(archive.ls(tmp_path / "b")["snapshots"]) == 9
    archive.verify(tmp_path / "b")
    (tmp_path / "cut").write_bytes(data[: len(data) * 3 // 4])
    with lmcstore.open(tmp_path / "to.pool", mode="x") as to:
        with (tmp_path / "cut").open("rb") as file, pytest.raises(lmcstore.DamagedError):
            to.restore(file, resume=True)
        assert not list(to)
        with (tmp_path / "a").open("rb") as file:
            assert to.restore(file, resume=True)["contents_found"] > 0
        expect(to, "run", list(range(1, 9)))


def test_resume_over_another_dump_and_over_damage(full: lmcstore.Store, tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("x+b") as file:
        full.dump(file)
        whole = path.read_bytes()
        fcntl.flock(file, fcntl.LOCK_EX)
        with path.open("r+b") as other, pytest.raises(lmcstore.InUseError, match="another dump writes"):
            full.dump(other, resume=True)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    with path.open("r+b") as file, pytest.raises(lmcstore.DamagedError, match="a new one beside it"):
        full.dump(file, resume=True)
    assert path.read_bytes() == damaged
    path.write_bytes(damaged[:-1])
    with path.open("r+b") as file, pytest.warns(UserWarning, match="were cut off"):
        full.dump(file, resume=True)
    archive.verify(path)


def run(*words: str | Path, data: bytes | None = None, code: int = 0) -> str:
    done = subprocess.run([BIN, *map(str, words)], input=data, capture_output=True, timeout=600, check=False)
    assert done.returncode == code, done.stderr.decode()
    return done.stdout.decode() + done.stderr.decode()


@pytest.mark.parametrize("way", ["ls", "verify", "restore", "dump"])
def test_a_signal_ends_the_wait_for_a_pipe(full: lmcstore.Store, to: lmcstore.Store, way: str) -> None:
    use = {"ls": archive.ls, "verify": archive.verify, "restore": to.restore, "dump": full.dump}[way]

    class Alarm(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Alarm

    used, other = os.pipe()
    if way == "dump":
        full["a"].snapshot({"x": np.random.default_rng(1).bytes(1 << 20)})
        used, other = other, used
    late = threading.Timer(10, os.close, [other])  # else a failure would be a hang
    before = signal.signal(signal.SIGALRM, handler)
    late.start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Alarm):
            use(used)
        assert not late.finished.is_set()
    finally:
        signal.signal(signal.SIGALRM, before)
        late.cancel()
        late.join()
        os.close(used)
        with contextlib.suppress(OSError):
            os.close(other)


@NEEDS_BIN
def test_the_command(full: lmcstore.Store, tmp_path: Path, pool_path: str) -> None:
    full.close()
    a, b, to = tmp_path / "a", tmp_path / "b", tmp_path / "to.pool"
    run("dump", pool_path, "run@..5", "-o", a)
    run("dump", pool_path, "run", "--since", a, "-o", b)
    assert "made since" in run("ls", b) and "  3 " in run("ls", a)
    assert len(json.loads(run("ls", "--json", a))["snapshots"]) == 5
    assert "no damage" in run("verify", a)
    assert "through a pipe" in run("verify", "-", data=a.read_bytes())
    assert len(json.loads(run("ls", "--json", "-", data=b.read_bytes()))["snapshots"]) == 3
    assert "older" in run("restore", b, to, code=1) and not to.exists()
    run("restore", a, b, to)
    assert json.loads(run("ls", "--json", to))["shelves"][0]["snapshot_count"] == 8
    run("restore", a, to, "--only", "run@2..3", "--as", "copy")
    run("restore", a, to, "--only", "none*", code=1)
    run("dump", pool_path, "run@9", "-o", tmp_path / "none", code=1)
    assert not (tmp_path / "none").exists()
    run("dump", pool_path, "--canonical", "-o", tmp_path / "c")
    run("dump", pool_path, "--resume", code=2)
    whole = b.read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-50])
    assert "cut short" in run("verify", tmp_path / "cut", code=1)
    run("dump", pool_path, "run", "--since", a, "--resume", "-o", tmp_path / "cut")
    assert (tmp_path / "cut").read_bytes() == whole


def test_what_changes_the_bytes_is_refused(full: lmcstore.Store, tmp_path: Path) -> None:
    """Compressed files have a descriptor, but an archive written to it would be corrupt."""
    bz2 = pytest.importorskip("bz2")
    import gzip
    import lzma
    import socket
    import zipfile

    path = tmp_path / "plain"
    with path.open("wb") as file:
        full.dump(file, ["run"])
    for opens in (gzip.open, bz2.open, lzma.open):
        with opens(tmp_path / "packed", "wb") as file:
            with pytest.raises(lmcstore.UnsupportedError, match="an open binary file"):
                full.dump(file, ["run"])
            file.write(path.read_bytes())
        with opens(tmp_path / "packed", "rb") as file:
            for reads in (full.restore, archive.ls, archive.verify, lambda older: full.dump(1, since=[older])):
                with pytest.raises(lmcstore.UnsupportedError, match="an open binary file"):
                    reads(file)
        with opens(tmp_path / "packed", "rt") as file, pytest.raises(lmcstore.UnsupportedError):
            full.restore(file)

    class Other(io.FileIO):
        def write(self, data: object) -> int:
            return super().write(bytes(len(memoryview(data))))  # type: ignore[arg-type]

    with io.BufferedWriter(Other(tmp_path / "other", "wb")) as file, pytest.raises(lmcstore.UnsupportedError):
        full.dump(file)
    with (
        zipfile.ZipFile(tmp_path / "zip", "w") as packed,
        packed.open("a", "w") as member,
        pytest.raises(lmcstore.UnsupportedError),
    ):
        full.dump(member)
    for wrong in (io.BytesIO(), "path", None):
        with pytest.raises(lmcstore.UnsupportedError, match="an open binary file"):
            full.dump(wrong)
    with pytest.raises(lmcstore.UnsupportedError, match=r"not a str: give open\(path, 'wb'\)"):
        full.dump("path")
    first, second = socket.socketpair()
    with first, second, pytest.raises(lmcstore.UnsupportedError, match=r"fileno\(\)"):
        full.dump(first)


def test_what_does_not_change_the_bytes(full: lmcstore.Store, tmp_path: Path) -> None:
    import tempfile

    with (
        tempfile.NamedTemporaryFile() as named,
        tempfile.TemporaryFile() as plain,
        tempfile.SpooledTemporaryFile() as spooled,
        (tmp_path / "raw").open("w+b", buffering=0) as raw,
        (tmp_path / "text").open("w+") as text,
    ):
        for file in (named, plain, spooled, raw):
            file.write(b"before")
            full.dump(file, ["run"])
            file.seek(0)
            assert file.read(6) == b"before"
            assert len(archive.ls(file)["snapshots"]) == 8
        text.write("before")
        full.dump(text, ["run"])
    with (tmp_path / "text").open("rb") as file:
        assert file.read(6) == b"before" and len(archive.verify(file)["id"]) > 0


def weights(value: float) -> dict[str, object]:
    return {"w": np.full(2000, value), "c": np.arange(500.0)}


def dumped(store: lmcstore.Store, path: Path, *older: Path, what: str | None = None) -> Path:
    files = [one.open("rb") for one in older]
    with path.open("wb") as file:
        store.dump(file, what, since=files)
    for one in files:
        one.close()
    return path


def restored(store: lmcstore.Store, *paths: Path, **options: object) -> dict[str, object]:
    files = [path.open("rb") for path in paths]
    try:
        return store.restore(files, **options)  # type: ignore[arg-type]
    finally:
        for one in files:
            one.close()


def contents(store: lmcstore.Store) -> dict[str, object]:
    assert store.verify()["damages"] == 0
    return {
        name: ([(s.number, s.step, s.parent, float(s["w"][0])) for s in store[name]], store[name].tags)
        for name in store.shelves()
    }


@pytest.fixture
def to(tmp_path: Path) -> Iterator[lmcstore.Store]:
    with lmcstore.open(tmp_path / "to.pool", mode="x", background=False) as store:
        yield store


def test_tags_of_a_chain(store: lmcstore.Store, to: lmcstore.Store, tmp_path: Path) -> None:
    """The newest archive decides, also on tags that were removed or moved to snapshots outside of its part."""
    shelf = store["run"]
    for i in range(1, 6):
        shelf.snapshot(weights(i), step=i)
    for number, tag in [(3, "best"), (2, "old"), (1, "first"), (4, "moved")]:
        shelf.tag(number, tag)
    a = dumped(store, tmp_path / "a")
    for i in range(6, 9):
        shelf.snapshot(weights(i), step=i)
    shelf.tag(8, "best")
    shelf.untag("old")
    shelf.tag(2, "moved")
    b = dumped(store, tmp_path / "b", a)
    part = dumped(store, tmp_path / "part", a, what="run@7..")
    shelf.tag(1, "best")
    shelf.untag("moved")
    c = dumped(store, tmp_path / "c", a, b)
    restored(to, a, b, c)
    assert to["run"].tags == shelf.tags == {"best": 1, "first": 1}
    to["run"].drop()
    restored(to, a, b)
    assert to["run"].tags == {"best": 8, "first": 1, "moved": 2}
    restored(to, a, b, c)  # existing tags stay ...
    assert to["run"].tags == {"best": 8, "first": 1, "moved": 2}
    restored(to, a, b, c, move_tags=True)  # ... or move
    assert to["run"].tags == {"best": 1, "first": 1, "moved": 2}
    to["run"].drop()
    restored(to, a, part)
    assert to["run"].tags == {"best": 8, "first": 1, "moved": 2}
    assert [s.number for s in to["run"]] == [1, 2, 3, 4, 5, 7, 8]


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("how", ["rename", "drop"])
def test_another_shelf_of_the_name(
    store: lmcstore.Store, to: lmcstore.Store, tmp_path: Path, how: str, pruned: bool
) -> None:
    for i in range(5):
        store["run"].snapshot(weights(i), step=1000 + i, tags=["best"])
    store["other"].snapshot(weights(0))
    for number in (1, 2) if pruned else ():
        store["run"].remove(number)
    a = dumped(store, tmp_path / "a")
    if how == "rename":
        store["run"].rename("run-old")
        store["run-old"].snapshot(weights(6), step=1006)
    else:
        store["run"].drop()
    for i in range(2):
        store["run"].snapshot(weights(77 + i), step=i)
    with pytest.warns(UserWarning, match="another has its name"):
        b = dumped(store, tmp_path / "b", a)
    store["run"].snapshot(weights(80), step=2)
    c = dumped(store, tmp_path / "c", a, b) if how == "rename" else dumped(store, tmp_path / "c", b)
    if how == "rename":
        restored(to, a, b, c)
    else:
        with pytest.warns(UserWarning, match="was dropped or renamed"):
            assert restored(to, a, b, c)["warnings"]
    assert contents(to) == contents(store)
    assert to["run"].latest is not None and to["run"].latest.step == 2
    before = contents(to)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert restored(to, a, b, c)["snapshots"] == 0  # and once more
    assert contents(to) == before


def test_one_after_the_other(store: lmcstore.Store, to: lmcstore.Store, tmp_path: Path) -> None:
    for i in range(5):
        store["run"].snapshot(weights(i), step=i)
    store["run"].remove(1)
    store["run"].remove(2)
    a = dumped(store, tmp_path / "a")
    store["run"].rename("run-old")
    for i in range(2):
        store["run"].snapshot(weights(77 + i), step=i)
    with pytest.warns(UserWarning):
        b = dumped(store, tmp_path / "b", a)
    restored(to, a)
    before = contents(to)
    with pytest.raises(lmcstore.ExistsError, match="begun apart"):
        restored(to, b)
    assert contents(to) == before
    to["run"].rename("run-old")
    restored(to, b)
    assert contents(to) == contents(store)
    store["run-old"].rename("renamed")
    store["renamed"].snapshot(weights(9), step=9)
    c = dumped(store, tmp_path / "c", a, b)
    with pytest.warns(UserWarning, match="keeps this name"):
        restored(to, c)
    assert contents(to)["run-old"] == contents(store)["renamed"]
    restored(to, a, name="copy")
    restored(to, a, name="copy")
    assert contents(to)["copy"] == ([(i + 1, i, i, float(i)) for i in (2, 3, 4)], {})


def nested(i: int) -> dict[str, object]:
    return {"model": {"w": np.full(1000, float(i))}, "opt": {"m": np.arange(50.0) + i}, "z": np.zeros(0)}


@pytest.mark.parametrize(
    "onlys",
    [
        ["model.*", None],
        ["z", "model.*", None],
        ["run@2", None],
        [["run@2", "model.*"], None],
        [["run@2", "model.*"], "opt.*", None],
        ["run@2", "run@1..2", None],
        ["model.*", "opt.*"],
        ["model.*", "model.*"],
        [None, "model.*"],
        [["run@3", "z"], ["run@1..2", "opt.*"], "*"],
    ],
)
def test_one_part_after_the_other(
    store: lmcstore.Store, to: lmcstore.Store, tmp_path: Path, onlys: list[str | list[str] | None]
) -> None:
    for i in range(3):
        store["run"].snapshot(nested(i), step=i, tags=["a"], metrics={"loss": 1.0})
    a = dumped(store, tmp_path / "a")
    for only in onlys:
        restored(to, a, only=only)
        assert to.verify()["damages"] == 0
    to.compact()
    for snapshot in to["run"]:
        full = nested(snapshot.step or 0)
        names = {"model.w": full["model"]["w"], "opt.m": full["opt"]["m"], "z": full["z"]}  # type: ignore[index]
        have = [name for name in names if name in snapshot.names()]
        assert len(have) == (3 if onlys[-1] in (None, "*") or onlys[0] is None else 2 if "opt.*" in onlys else 1)
        for name in have:
            assert np.array_equal(snapshot[name], names[name])
    assert [s.number for s in to["run"]] == [1, 2, 3] and to["run"].tags == {"a": 3}
    if None in onlys:
        assert list(to["run"].latest.state_dict()) == ["model", "opt", "z"]  # type: ignore[union-attr]
    to["run"].snapshot(nested(4), step=4)
    for number in (2, 1, 3, 4):
        to["run"].remove(number)
    to.compact()
    assert to.info()["content_count"] == 0 and to.verify()["damages"] == 0


def test_parts_that_contradict(store: lmcstore.Store, to: lmcstore.Store, tmp_path: Path) -> None:
    store["run"].snapshot(nested(1), step=1)
    a = dumped(store, tmp_path / "a")
    to["run"].snapshot(nested(1), step=1)
    with pytest.raises(lmcstore.ExistsError, match="begun apart"):
        restored(to, a)
    with pytest.raises(lmcstore.ExistsError, match="differs"):
        restored(to, a, name="run")
    assert len(to["run"]) == 1 and to.verify()["damages"] == 0


def change(store: lmcstore.Store, chance: random.Random, value: int) -> None:
    have, what = store.shelves(), chance.randrange(8)
    shelf = store[chance.choice(have or ["a"])]
    free = [name for name in "abcdef" if name not in have]
    if what < 3 or shelf.latest is None:
        store[chance.choice("abcd")].snapshot(weights(value), step=value)
    elif what == 3 and free:
        shelf.rename(chance.choice(free))
    elif what == 4 and free:
        shelf.latest.fork(chance.choice(free))
    elif what == 5:
        shelf.drop()
    else:
        shelf.tag(chance.choice(list(shelf)).number, chance.choice("xyz"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(3))
def test_random_chains(store: lmcstore.Store, to: lmcstore.Store, tmp_path: Path, seed: int) -> None:
    """Archives since all older ones, restored together, give every shelf that is left."""
    chance, chain, values = random.Random(seed), list[Path](), itertools.count(1)
    for i in range(5):
        for _ in range(chance.randint(1, 7)):
            change(store, chance, next(values))
        chain.append(dumped(store, tmp_path / f"{i}", *chain))
    wanted = contents(store)
    for _ in range(2):
        restored(to, *chain)
        got = contents(to)
        assert {name: got.get(name) for name in wanted} == wanted


@NEEDS_BIN
def test_warnings_of_the_command(store: lmcstore.Store, tmp_path: Path, pool_path: str) -> None:
    a, b, to = tmp_path / "a", tmp_path / "b", tmp_path / "to.pool"
    store["run"].snapshot(nested(1), step=1)
    dumped(store, a)
    store["run"].drop()
    store["run"].snapshot(nested(2), step=2)
    store.close()
    assert 'lmc-store: warning: shelf "run" of an older archive' in run("dump", pool_path, "--since", a, "-o", b)
    assert 'lmc-store: warning: shelf "run" of archive 1 was dropped or renamed' in run("restore", a, b, to)
    with lmcstore.open(to, mode="r") as there:
        assert [snapshot.step for snapshot in there["run"]] == [2]
    to.unlink()
    run("restore", a, to)
    assert "begun apart" in run("restore", b, to, code=1)
    run("restore", b, to, "--as", "again")
