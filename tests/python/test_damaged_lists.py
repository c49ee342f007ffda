# SPDX-License-Identifier: BSD-3-Clause
"""Lists of a pool with damaged pages: everything else is listed, and the damage is reported."""

from __future__ import annotations

import os
import struct
import time
import warnings
from pathlib import Path

import lmcstore
import numpy as np
import pytest
from command import NEEDS_BIN
from lmcstore.report.collect import collect
from test_cli import as_json, cli

PAGE, NODE_MAGIC, SHELVES, NUMBERS, TAGGED, MANIFEST = 4096, 0x4E434D4C, 0, 16, 20, 21
HISTORY = SHELF_COUNT = 120


def keys_of(page: bytes) -> list[int]:
    """The first words of a node's keys."""
    count = struct.unpack_from("<H", page, 6)[0]
    places = [struct.unpack_from("<H", page, 40 + 4 * i)[0] for i in range(count)]
    return [struct.unpack_from("<Q", page, place)[0] for place in places]


def damage_leaves(path: str, kind: int, key: int) -> None:
    """Damage all leaves of trees of a kind that have the key, old versions included."""
    damaged = 0
    with open(path, "r+b", buffering=0) as file:
        descriptor, size, at = file.fileno(), os.fstat(file.fileno()).st_size, 0
        while at < size:
            at = os.lseek(descriptor, at, os.SEEK_DATA) // PAGE * PAGE
            hole = os.lseek(descriptor, at, os.SEEK_HOLE)
            for offset in range(at, hole, PAGE):
                page = os.pread(descriptor, PAGE, offset)
                magic, level, of, _, place = struct.unpack_from("<IBBHQ", page)
                if (magic, level, of, place) == (NODE_MAGIC, 0, kind, offset) and key in keys_of(page):
                    os.pwrite(descriptor, bytes(byte ^ 1 for byte in page[-8:]), offset + PAGE - 8)
                    damaged += 1
            at = hole
            try:
                os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError:
                break
    assert damaged > 0


@pytest.fixture
def numbers_pool(pool_path: str) -> str:
    """A shelf "run" whose page with number 30 is damaged, and a sound shelf "sound"."""
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        for step in range(HISTORY):
            store["run"].snapshot({"w": np.full(3, step)}, step=step)
        store["sound"].snapshot({"w": np.zeros(3)}, step=1)
    damage_leaves(pool_path, NUMBERS, 30)
    return pool_path


@pytest.fixture
def shelves_pool(pool_path: str) -> str:
    """Many shelves, of which some have damaged records."""
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        for i in range(SHELF_COUNT):
            store[f"s{i:03}"].snapshot({"w": np.full(3, i)}, step=i)
    damage_leaves(pool_path, SHELVES, 30)
    return pool_path


def check_numbers(numbers: list[int]) -> None:
    assert 60 < len(numbers) < HISTORY and 30 not in numbers
    assert {1, HISTORY} < set(numbers) and numbers == sorted(set(numbers))


def test_numbers_beside_a_damaged_page(numbers_pool: str) -> None:
    with lmcstore.open(numbers_pool, mode="r") as store:
        shelf = store["run"]
        with pytest.warns(UserWarning, match=r'shelf "run": not all snapshots can be listed'):
            there = [snapshot.number for snapshot in shelf]
        check_numbers(there)
        with pytest.warns(UserWarning, match="not all snapshots"):
            assert [snapshot.number for snapshot in reversed(shelf)] == there[::-1]
        with pytest.warns(UserWarning, match="not all snapshots"):
            assert len(shelf.log(1000)) == len(there)
        assert int(shelf[1]["w"].read()[0]) == 0 and shelf.latest is not None and shelf.latest.number == HISTORY
        with pytest.raises(lmcstore.DamagedError):
            shelf[30]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [snapshot.number for snapshot in store["sound"]] == [1]
    for number in 2, 3:  # the damaged shelf stays, is removed as far as possible, and is not in the way
        with lmcstore.open(numbers_pool, "r+", background=False) as store:
            assert store.shelves() == (["run", "sound"] if number == 2 else ["sound"])
            assert store["sound"].snapshot({"w": np.ones(3)}, step=number).number == number
            if number == 2:
                with pytest.raises(lmcstore.DamagedError, match='the shelf "run" is gone, but not all of it'):
                    store["run"].drop()


def test_shelves_beside_a_damaged_page(shelves_pool: str) -> None:
    with lmcstore.open(shelves_pool, mode="r") as store:
        with pytest.warns(UserWarning, match="not all shelves can be listed"):
            names = store.shelves()
        assert 40 < len(names) < SHELF_COUNT and {"s000", f"s{SHELF_COUNT - 1:03}"} < set(names)
        with pytest.warns(UserWarning, match="not all shelves can be listed"):
            assert list(store) == names and names[0] in store
        assert store.info()["damaged_shelves"] == 1
        assert all(len(store[name]) == 1 for name in names)
        with pytest.raises(lmcstore.DamagedError):
            len(store["s029"])
    with lmcstore.open(shelves_pool, "r+", background=False) as store:
        assert [store[name].snapshot({"w": np.ones(3)}, step=1000).number for name in (names[0], names[-1])] == [2, 2]


def test_dumps_beside_a_damaged_page_of_tags(pool_path: str) -> None:
    """Each has the tags that can be read; tags of an older archive stay."""
    folder = Path(pool_path).parent
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        for step in range(HISTORY):
            store["run"].snapshot({"w": np.full(3, step)}, step=step, tags=[f"{step + 1}a", f"{step + 1}b"])
        with open(folder / "old", "wb") as file:
            store.dump(file)
        store["run"].snapshot({"w": np.full(3, HISTORY)}, step=HISTORY)
    damage_leaves(pool_path, TAGGED, 30)
    with lmcstore.open(pool_path, mode="r") as store:
        with pytest.raises(lmcstore.DamagedError):
            print(store["run"][30].tags)
        for name, what, since in (("all", None, ()), ("one", "run@30", ()), ("new", None, [folder / "old"])):
            with (
                open(folder / name, "wb") as file,
                pytest.warns(UserWarning, match='shelf "run": not all of its tags are in the archive: .* is damaged'),
            ):
                store.dump(file, what, since=since)
        with open(folder / "all", "r+b") as file:  # it was interrupted
            file.truncate(file.seek(0, os.SEEK_END) * 2 // 3)
            with pytest.warns(UserWarning, match="not all of its tags"):
                store.dump(file, resume=True)
    for names, count in ((["all"], HISTORY + 1), (["one"], 1), (["old", "new"], HISTORY + 1)):
        with lmcstore.open(folder / f"{names[0]}.pool", size="64MiB", background=False) as store:
            store.restore([folder / name for name in names])
            assert len(store["run"]) == count
            tags = store["run"].tags
            assert all(tag[:-1] == str(number) for tag, number in tags.items())
            assert 0 < len(tags) < 180 if names == ["all"] else len(tags) == (0 if count == 1 else 2 * HISTORY)


def test_a_report_beside_damaged_snapshots(pool_path: str) -> None:
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        for step, name in enumerate("abacb"):  # identities: 1 to 200 are those of "a"
            store["run"].snapshot({f"{name}{i}": np.full(3, step) for i in range(200)}, step=step)
    damage_leaves(pool_path, MANIFEST, 300)
    with lmcstore.open(pool_path, mode="r") as store:
        gathered = collect(store, "run", 9)
    assert [point.number for point in gathered.points] == [restore.number for restore in gathered.restores] == [1, 3, 4]
    assert gathered.count == 5 and gathered.rows[0] == "c0"
    damaged = [note for note in gathered.notes if note.startswith("Not shown is snapshot") and "is damaged" in note]
    assert len(damaged) == 2 and "snapshot 2:" in damaged[0] and "snapshot 5:" in damaged[1]


def test_messages_with_a_path_that_is_not_utf8(pool_path: str) -> None:
    """Its bytes are replaced in messages; as a path they stay."""
    os.mkdir(os.path.join(os.path.dirname(pool_path), "\udcff"))
    path = os.path.join(os.path.dirname(pool_path), "\udcff", "test.pool")
    with lmcstore.open(path, size="64MiB", background=False) as store:
        for step in range(HISTORY):
            store["run"].snapshot({"w": np.full(3, step)}, step=step)
    damage_leaves(path, NUMBERS, 30)
    with lmcstore.open(path, "r+") as store:
        until = time.monotonic() + 60
        while store.info()["compaction_error"] == "" and time.monotonic() < until:
            time.sleep(0.01)
        found = [store.info()["compaction_error"]]
        for report in (store.verify(), store.scrub()):
            found += [one["what"] for one in report["list"]]
        assert len(found) > 2 and all("is damaged" in text for text in found), found
        assert "/\ufffd/test.pool: " in found[0] and "/\ufffd/test.pool: " in "".join(found[1:])
        with lmcstore.open(path, background=False) as other:
            assert other.path == path and other.info()["path"] == path


@NEEDS_BIN
def test_the_command_lists_beside_damage(numbers_pool: str) -> None:
    for words in (["ls", numbers_pool], ["ls", numbers_pool, "run"], ["log", numbers_pool, "run"]):
        listed = cli(*words, code=1)
        assert 'shelf "run": not all snapshots can be listed' in listed.stderr
        assert listed.stdout.decode().count(" raw " if words[0] == "ls" else "step ") >= 60
    listed = cli("log", numbers_pool, "--all", code=1)
    assert "not all snapshots" in listed.stderr
    assert "sound@1 " in listed.stdout.decode() and "run@1 " in listed.stdout.decode()
    answer = as_json("log", numbers_pool, "--all", code=1)
    check_numbers([row["number"] for row in reversed(answer["snapshots"]) if row["shelf"] == "run"])
    assert answer["error"]["status"] == "damaged"
    (run,) = as_json("ls", numbers_pool, "run", code=1)["shelves"]
    check_numbers([row["number"] for row in run["snapshots"]])
    assert cli("log", numbers_pool, "sound").returncode == 0


@NEEDS_BIN
def test_the_command_lists_beside_damaged_shelves(shelves_pool: str) -> None:
    for words in (["ls"], ["log", "--all"]):
        listed = cli(words[0], shelves_pool, *words[1:], code=1)
        assert "not all shelves can be listed" in listed.stderr
        names = {line.split("@")[0].split(":")[0].lstrip("* ") for line in listed.stdout.decode().splitlines()}
        assert {"s000", f"s{SHELF_COUNT - 1:03}"} < names
