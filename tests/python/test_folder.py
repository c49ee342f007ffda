# SPDX-License-Identifier: BSD-3-Clause
"""The folder of a run of many ranks as a store: like the store of a pool, and with the results of the command."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import lmcstore
import numpy as np
import pytest
import run_folder
import tensor_file
from command import NEEDS_BIN
from lmcstore import archive
from run_folder import POOLS, RANKS

pytestmark = pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning")


@pytest.fixture
def run(place: Path) -> Iterator[Path]:
    """A folder with three snapshots of three ranks, steps 10, 20, 30, closed."""
    folder = place / "run"
    for step in (10, 20, 30):
        run_folder.save(folder, step, values={"text": "x"}, metrics={"loss": 1 / step})
    run_folder.close(folder)
    yield folder
    for one in (folder, place / "new"):
        run_folder.close(one)


def check(folder: Path, steps: list[int]) -> None:
    with lmcstore.open(folder, mode="r") as store:
        assert [one.step for one in store["run"]] == steps
        for one in store["run"]:
            for name, array in run_folder.arrays(one.step or 0).items():
                assert one[name].numpy().tobytes() == array.tobytes(), name
        report = store.verify()
        assert report["damages"] == 0 and report["missing"] == []


def numbers(folder: Path) -> dict[str, list[int]]:
    """Return the numbers of the committed snapshots in each pool."""
    found = {}
    for name in POOLS:
        with lmcstore.open(folder / name, mode="r") as store:
            found[name] = [one.number for one in store["run"]]
    return found


def test_a_dry_run_has_the_bytes_of_the_parts(run: Path) -> None:
    with lmcstore.open(run, mode="r") as store:
        assert store["run"].prune("keep=last:1", dry_run=True).removal is None
    with lmcstore.open(run, mode="r+") as store:
        plan = store["run"].prune("keep=last:1", dry_run=True)
        assert plan.removal is not None and plan.removal.freed_bytes > 2_000_000 and len(store["run"]) == 3
        done = store["run"].prune("keep=last:1")
        assert done.numbers == plan.numbers == [1, 2] and done.removal is not None
        assert done.removal.freed_bytes >= plan.removal.freed_bytes


# Differences and export


def test_diff_is_that_of_whole_tensors(run: Path, place: Path) -> None:
    """A pool with the same arrays whole has the same differences."""
    with (
        lmcstore.open(place / "plain.pool") as plain,
        lmcstore.open(run, mode="r") as store,
    ):
        for step in (10, 20, 30):
            plain["run"].snapshot(run_folder.arrays(step), step=step)
        theirs = [one for one in plain["run"][1].diff(plain["run"][3], same=True) if not one.is_attachment]
        ours = store["run"][1].diff(store["run"][3], same=True)
        assert list(map(repr, ours)) == list(map(repr, theirs)) and len(ours) == 7  # repr: NaN
        assert ours.report["changed"] == 5 and ours.report["same"] == 2
        shown = store["run"][1].diff(store["run"][3])
        assert [one.name for one in shown] == [one.name for one in theirs if one.kind == "changed"]
        assert str(shown).startswith("run@1 to run@3: 5 changed")
        names = store["run"][1].diff(store["run"][3], numbers=False)
        assert [(one.name, one.kind, one.changed) for one in names] == [(one.name, "changed", 0) for one in shown]
        with pytest.raises(lmcstore.InvalidError, match="is not of"):
            store["run"][1].diff(plain["run"][1])
        with pytest.raises(lmcstore.UnsupportedError):
            store["run"][1].diff(1)  # type: ignore[arg-type]
        calls: list[tuple[str, int, int]] = []
        store["run"][1].diff(store["run"][3], progress=lambda *call: calls.append(call))
        assert calls[-1][1] > 0
        with pytest.raises(ZeroDivisionError):
            store["run"][1].diff(store["run"][3], progress=lambda *call: 1 // 0)


def test_diff_tells_added_removed_and_reshaped_tensors(place: Path) -> None:
    folder = place / "run"
    run_folder.save(
        folder,
        1,
        {"a": np.zeros((4, 4), "f"), "b": np.zeros(6, "f"), "c": np.ones(9, "f")},
    )
    run_folder.save(
        folder,
        2,
        {"a": np.zeros((4, 2), "f"), "c": np.ones(9, "f"), "d": np.ones(9, "f")},
        world=2,
    )
    with lmcstore.open(folder, mode="r") as store:
        found = store["run"][1].diff(store["run"][2])
        assert [(one.name, one.kind) for one in found] == [("a", "reshaped"), ("d", "added"), ("b", "removed")]
        assert found.report["same"] == 1 and found.report["bytes_compared"] == 36  # of other boxes, and so read
        back = store["run"][2].diff(store["run"][1])
        assert [(one.name, one.kind) for one in back] == [
            ("a", "reshaped"),
            ("b", "added"),
            ("d", "removed"),
        ]
    run_folder.close(folder)


def test_export_joins_the_tensors(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    with lmcstore.open(run, mode="r") as store:
        assert store["run"][2].export(file)["contents"] == 7
        found, metadata = tensor_file.load(file)
        wanted = run_folder.arrays(20)
        assert {name: array.tobytes() for name, array in found.items()} == {
            name: array.tobytes() for name, array in wanted.items()
        }
        assert metadata["lmc-store.step"] == "20" and metadata["lmc-store.number"] == "2"
        assert store["run"][2].export(file, "model")["contents"] == 2
        with pytest.raises(lmcstore.NotFoundError, match="did you mean 'model'"):
            store["run"][2].export(file, "modl")
        calls: list[tuple[str, int, int]] = []
        store["run"][2].export(file, progress=lambda *call: calls.append(call))
        assert calls[-1][1] == calls[-1][2] > 0
        whole = file.read_bytes()
        with pytest.raises(ZeroDivisionError):
            store["run"][2].export(file, progress=lambda *call: 1 // 0)
        (run / RANKS[1]).rename(run.with_name("away"))
    with (
        lmcstore.open(run, mode="r") as store,
        pytest.raises(lmcstore.NotFoundError, match=RANKS[1]),
    ):
        store["run"][2].export(file)
    assert file.read_bytes() == whole


def test_export_finds_damage(run: Path, tmp_path: Path) -> None:
    from test_cli import find, flip_bit

    flip_bit(
        run / RANKS[1],
        find(run / RANKS[1], run_folder.arrays(30)["large"][100_000:110_000].tobytes()),
    )
    with lmcstore.open(run, mode="r", verify=False) as store:
        with pytest.raises(lmcstore.DamagedError, match="large"):
            store["run"][3].export(tmp_path / "x")
        with pytest.raises(lmcstore.DamagedError, match="large"):
            store["run"][3].diff(store["run"][1])
        store["run"][3].export(tmp_path / "x", "model")


@NEEDS_BIN
def test_diff_and_export_are_those_of_the_command(run: Path, tmp_path: Path) -> None:
    from test_cli import as_json, cli

    with lmcstore.open(run, mode="r") as store:
        store["run"][2].export(tmp_path / "ours")
        ours = {one.name: one for one in store["run"][1].diff(store["run"][3])}
    cli("export", run, "run@2", "-o", tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    for row in as_json("diff", run, "run@1", "@3")["tensors"]:
        one = ours.pop(row["name"])
        assert (row["max_change"], row["rms_change"], row["cosine"]) == (
            one.max_change,
            one.rms_change,
            one.cosine,
        )
    assert not ours


# Dumps


def test_a_restored_run_is_the_same_and_goes_on(run: Path, place: Path) -> None:
    with lmcstore.open(run, mode="r") as store:
        report = store.dump(place / "dumped")
        wanted = [(one.digest, one.metrics, one.parent) for one in store["run"]]
    assert (
        report["snapshots"],
        report["archives"],
        report["missing"],
        report["warnings"],
    ) == (3, 4, [], [])
    files = sorted(os.listdir(place / "dumped"))
    assert files == [name.replace(".pool", ".archive") for name in POOLS]
    for name in files:
        archive.verify(place / "dumped" / name)
    report = archive.restore_run(place / "dumped", place / "new")
    assert (report["snapshots"], report["pools"], report["missing"]) == (3, 4, [])
    assert sorted(os.listdir(place / "new")) == POOLS
    with lmcstore.open(place / "new", mode="r") as store:
        assert [(one.digest, one.metrics, one.parent) for one in store["run"]] == wanted
    run_folder.save(place / "new", 40)
    run_folder.close(place / "new")
    check(place / "new", [10, 20, 30, 40])
    with pytest.raises(lmcstore.ExistsError, match="restore a run into a new folder"):
        archive.restore_run(place / "dumped", place / "new")
    with (
        lmcstore.open(run, mode="r") as store,
        pytest.raises(lmcstore.ExistsError, match="dump into a new folder"),
    ):
        store.dump(place / "dumped")


@NEEDS_BIN
def test_the_command_and_python_read_each_others_dumps(run: Path, place: Path) -> None:
    from test_cli import cli

    with lmcstore.open(run, mode="r") as store:
        store.dump(place / "ours", "run@1..2")
        store.dump(place / "more", since=place / "ours")
    cli("restore", place / "ours", place / "more", place / "new")
    check(place / "new", [10, 20, 30])
    cli("dump", run, "run@1..2", "-o", place / "theirs")
    cli("dump", run, "--since", place / "theirs", "-o", place / "last")
    archive.restore_run([place / "theirs", place / "last"], place / "again")
    check(place / "again", [10, 20, 30])
    with pytest.raises(lmcstore.NotFoundError, match="needs an older one"):
        archive.restore_run(place / "more", place / "third")
    with pytest.raises(lmcstore.NotFoundError, match="did not end"):
        lmcstore.open(place / "third", mode="r")
    archive.restore_run([place / "ours", place / "more"], place / "third")
    check(place / "third", [10, 20, 30])


def test_a_dump_since_another_has_what_was_added_and_what_it_lacks(run: Path, place: Path) -> None:
    (run / RANKS[1]).rename(place / "away")
    with lmcstore.open(run, mode="r") as store:
        store.dump(place / "old", allow_missing=True)
        with pytest.raises(lmcstore.NotFoundError, match="lacks 3 parts of snapshots: run@1: "):
            store.dump(place / "x", since=place / "old")
        assert len(store.dump(place / "none", "run@2", since=place / "old", allow_missing=True)["missing"]) == 1
    (place / "away").rename(run / RANKS[1])
    with lmcstore.open(run, mode="r+") as store:
        store["run"][2].metrics["val"] = 0.3
    run_folder.save(run, 40)
    run_folder.close(run)
    since = [place / "old", place / "more"]
    with lmcstore.open(run, mode="r") as store:
        report = store.dump(place / "more", since=since[:1])
        assert (report["snapshots"], report["missing"]) == (2, [])
        wanted = [(one.digest, one.metrics) for one in store["run"]]
    archive.restore_run(since, place / "new")
    check(place / "new", [10, 20, 30, 40])
    with lmcstore.open(place / "new", mode="r") as store:
        assert [(one.digest, one.metrics) for one in store["run"]] == wanted and wanted[1][1]["val"] == 0.3
    (run / RANKS[1]).unlink()
    with lmcstore.open(run, mode="r") as store:
        assert store.dump(place / "last", since=since)["missing"] == []


def test_a_dump_since_another_tells_parts_of_the_same_number_apart(run: Path, place: Path) -> None:
    (run / RANKS[0]).rename(place / "away")
    for step in (40, 50):  # a new pool of the rank has the numbers 1 and 2, too
        run_folder.save(run, step)
    run_folder.close(run)
    with lmcstore.open(run, mode="r") as store:
        assert len(store.dump(place / "old", allow_missing=True)["missing"]) == 3
        assert len(store.dump(place / "none", since=place / "old", allow_missing=True)["missing"]) == 3
    of_part, of_record = (
        archive.ls(place / "old" / name.replace(".pool", ".archive"))["snapshots"][0]["group"]
        for name in (RANKS[0], POOLS[-1])
    )
    assert len(of_part) == 32 and of_record is None
    (place / "away").rename(run / "rank-00009.pool")
    with lmcstore.open(run, mode="r") as store:
        assert store.dump(place / "more", since=place / "old")["missing"] == []
    archive.restore_run([place / "old", place / "more"], place / "new")
    check(place / "new", [10, 20, 30, 40, 50])


def test_a_dump_since_another_passes_over_a_damaged_older_record(run: Path, place: Path) -> None:
    with lmcstore.open(run, mode="r") as store:
        store.dump(place / "old")
    _damage_record(run, 1)
    run_folder.save(run, 40)
    run_folder.close(run)
    with lmcstore.open(run, mode="r") as store, pytest.warns(UserWarning, match="^run@1: .* is unknown$"):
        report = store.dump(place / "more", since=place / "old")
    assert (report["snapshots"], report["missing"], len(report["warnings"])) == (1, [], 1)
    archive.restore_run([place / "old", place / "more"], place / "new")
    check(place / "new", [10, 20, 30, 40])


def test_missing_pools_are_named(run: Path, place: Path) -> None:
    (run / RANKS[1]).rename(place / "away")
    with lmcstore.open(run, mode="r") as store:
        with pytest.raises(
            lmcstore.NotFoundError,
            match=f"lacks 3 parts of snapshots: run@1: .*{RANKS[1]}",
        ):
            store.dump(place / "dumped")
        assert not (place / "dumped").exists()
        assert len(store.dump(place / "dumped", allow_missing=True)["missing"]) == 3
    with pytest.raises(lmcstore.NotFoundError, match=RANKS[1]):
        archive.restore_run(place / "dumped", place / "new")
    assert not (place / "new" / "records.pool").exists()
    assert len(archive.restore_run(place / "dumped", place / "new", allow_missing=True)["missing"]) == 3
    with lmcstore.open(place / "new", mode="r") as store:
        assert len(store.verify()["missing"]) == 3


def test_parts_that_are_prepared_are_committed(run: Path, place: Path) -> None:
    run_folder.save(run, 40, commits=False)
    run_folder.close(run)
    with lmcstore.open(run, mode="r") as store:
        with lmcstore.open(run / RANKS[1], mode="r+"):
            code = "import lmcstore, sys; lmcstore.open(sys.argv[1], mode='r').dump(sys.argv[2])"
            done = subprocess.run(
                [sys.executable, "-c", code, run, place / "x"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert "InUseError" in done.stderr and "is not committed" in done.stderr
            assert not (place / "x").exists()
        store.dump(place / "dumped")
    archive.restore_run(place / "dumped", place / "new")
    check(place / "new", [10, 20, 30, 40])


@NEEDS_BIN
def test_one_dump_writes_a_folder(place: Path) -> None:
    """The folder of another dump looks empty while that writes its first archive."""
    from test_cli import error

    run, dumped = place / "run", place / "dumped"
    run_folder.save(run, 1, {"a": np.random.default_rng(1).standard_normal((3, 1_000_000))})
    run_folder.close(run)
    refused = []
    store = lmcstore.open(run, mode="r")

    def during(*_: object) -> None:
        if not refused:
            refused.append(error("dump", run, "-o", dumped, status="in use"))

    with store:
        store.dump(dumped, progress=during)
    assert "another dump writes" in refused[0]
    assert len(os.listdir(dumped)) == 4
    other = place / "other"
    other.mkdir()
    held = os.open(other, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with lmcstore.open(run, mode="r") as store, pytest.raises(lmcstore.InUseError, match="another dump writes"):
            store.dump(other)
        assert other.exists()
        fcntl.flock(held, fcntl.LOCK_UN)
        with lmcstore.open(run, mode="r") as store:
            store.dump(other)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(held)


def test_wrong_uses_of_dumps(run: Path, place: Path) -> None:
    with lmcstore.open(run, mode="r") as store:
        with pytest.raises(lmcstore.NotFoundError, match="no snapshot run@99"):
            store.dump(place / "x", "run@99")
        with pytest.raises(lmcstore.NotFoundError, match="is no dump of a run"):
            store.dump(place / "x", since=[place])
        with pytest.raises(lmcstore.InputOutputError, match="no-folder"):
            store.dump(place / "no-folder" / "x")
        assert not (place / "x").exists()
        with pytest.raises(lmcstore.ReadOnlyError):
            store.restore(place)
        with pytest.raises(lmcstore.UnsupportedError, match="named by its path"), open(os.devnull, "wb") as file:
            store.dump(file)  # type: ignore[arg-type]
        store.dump(place / "dumped")
    with pytest.raises(lmcstore.NotFoundError, match="is no dump of a run"):
        archive.restore_run(place, place / "new")
    with pytest.raises(lmcstore.ExistsError):
        archive.restore_run(place / "dumped", run)
    one = place / "dumped" / "rank-00001.archive"
    whole = one.read_bytes()
    one.write_bytes(whole[: len(whole) // 2] + b"x" + whole[len(whole) // 2 + 1 :])
    with pytest.raises(lmcstore.DamagedError):
        archive.restore_run(place / "dumped", place / "new")
    assert not (place / "new" / "records.pool").exists()
    one.write_bytes(whole)
    archive.restore_run(place / "dumped", place / "new")
    check(place / "new", [10, 20, 30])


def test_removed_snapshots_return_from_a_dump(run: Path, place: Path) -> None:
    with lmcstore.open(run, mode="r+") as store:
        store.dump(place / "dumped")
        store["run"].tag(3, "best")
        store["run"][3].metrics["later"] = 1.0
        store["run"].remove(1)
        store["run"].remove(2)
        report = store.restore(place / "dumped")
        assert (report["snapshots"], report["snapshots_skipped"]) == (2, 1)
        assert [one.number for one in store["run"]] == [1, 2, 3] and store["run"]["best"].metrics["later"] == 1.0
        assert store.restore([place / "dumped"])["snapshots"] == 0
    check(run, [10, 20, 30])
    assert set(map(tuple, numbers(run).values())) == {(1, 2, 3)} and sorted(os.listdir(run)) == POOLS
    run_folder.save(run, 40)
    run_folder.close(run)
    check(run, [10, 20, 30, 40])


def test_a_dump_with_other_snapshots_is_not_added(run: Path, place: Path) -> None:
    """Snapshots of a restored run are added to the first one, unless that has gone on, too."""
    with lmcstore.open(run, mode="r") as store:
        store.dump(place / "dumped", "run@1..2")
    archive.restore_run(place / "dumped", place / "new")
    run_folder.save(place / "new", 35)
    run_folder.close(place / "new")
    with lmcstore.open(place / "new", mode="r") as store:
        store.dump(place / "other")
    with lmcstore.open(run, mode="r+") as store:
        assert store.restore(place / "other")["snapshots"] == 1
        assert [one.step for one in store["run"]] == [10, 20, 30, 35]
        store["run"].remove(4)
    run_folder.save(run, 40)
    run_folder.save(run, 50)
    run_folder.close(run)
    run_folder.save(place / "new", 45)
    run_folder.close(place / "new")
    with lmcstore.open(place / "new", mode="r") as store:
        store.dump(place / "last")
    before = numbers(run)
    with lmcstore.open(run, mode="r+") as store, pytest.raises(lmcstore.ExistsError, match="another run@5"):
        store.restore(place / "last")
    assert numbers(run) == before
    check(run, [10, 20, 30, 40, 50])


# Other operations


def test_info_is_of_all_pools(run: Path) -> None:
    with lmcstore.open(run, mode="r") as store:
        info = store.info()
        assert info["missing"] == [] and sorted(info["ranks"]) == RANKS
        size = sum(array.nbytes for array in run_folder.arrays(10).values())
        assert info["raw_bytes"]["run"] > 3 * size and info["used_bytes"] >= info["live_bytes"] > 3 * size
    (run / RANKS[1]).unlink()
    with lmcstore.open(run, mode="r") as store:
        assert [RANKS[1] in text for text in store.info()["missing"]] == [True]


def test_a_moved_folder_goes_on(run: Path, place: Path) -> None:
    moved = run.rename(place / "new")
    check(moved, [10, 20, 30])
    run_folder.save(moved, 40, values={"text": "x"})
    run_folder.close(moved)
    with lmcstore.open(moved, mode="r+") as store:
        assert store["run"].remove(2).freed_bytes > 0
        with pytest.raises(lmcstore.UnsupportedError, match="keeps its name"):
            store["run"].rename("other")
    check(moved, [10, 30, 40])
    assert numbers(moved) == {name: [1, 3, 4] for name in POOLS} and not run.exists()


def test_compaction_and_keep_raw_are_of_the_ranks_pools(run: Path) -> None:
    def raw(store: lmcstore.Store) -> list[int]:
        return [one.storage()["raw_contents"] for one in store["run"]]

    with lmcstore.open(run, mode="r+") as store:
        shelf = store["run"]
        assert shelf.keep_raw == 4
        shelf.keep_raw = 2
        assert shelf.keep_raw == 2 and "keep_raw=2" in shelf.policy
        with pytest.raises(lmcstore.InvalidError):
            shelf.keep_raw = 0
        before = raw(store)
        store.compact()
        assert raw(store)[0] < before[0] and raw(store)[1:] == before[1:]
        with pytest.raises(lmcstore.NotFoundError):
            store["none"].compact(finished=True)
        shelf.compact(finished=True)
        assert raw(store)[2] < before[2] and store.info()["raw_bytes"].get("run", 0) < 100_000
        store.pause()
        store.resume()
    check(run, [10, 20, 30])


def test_scrub_reads_and_repairs_parts(run: Path, place: Path) -> None:
    from test_cli import find, flip_bit

    with lmcstore.open(run, mode="r") as store:
        store.dump(place / "dumped")
        whole = store.scrub()
        assert whole["damages"] == 0 and whole["is_whole"]
        assert 0 < store.scrub("run@3")["contents"] < store.scrub("run@2..3")["contents"] < whole["contents"]
        assert store["run"].scrub(3)["contents"] == store.scrub(["run@3"])["contents"]
        with pytest.raises(lmcstore.NotFoundError):
            store.scrub("none")
    subprocess.run(["cp", "-r", "--sparse=always", run, place / "copy"], check=True)
    for source in (place / "dumped", place / "copy", iter([str(place / "dumped")])):
        flip_bit(run / RANKS[1], find(run / RANKS[1], run_folder.arrays(30)["large"][100_000:110_000].tobytes()))
        with lmcstore.open(run, mode="r") as store:
            assert store.scrub("run@2")["damages"] == 0
            found = store.scrub("run@latest")["list"]
            assert len(found) == 1 and found[0]["what"].startswith(RANKS[1]) and found[0]["tensor"] == "large"
            with pytest.raises(lmcstore.ReadOnlyError):
                store.scrub(repair=True)
        with lmcstore.open(run, mode="r+") as store:
            assert store.scrub(repair=True, sources=source)["repaired"] == 1
        check(run, [10, 20, 30])


def test_a_source_that_lacks_a_pool_does_not_keep_the_others_from_repair(run: Path, place: Path) -> None:
    from test_cli import find, flip_bit

    subprocess.run(["cp", "-r", "--sparse=always", run, place / "copy"], check=True)
    (place / "copy" / RANKS[0]).unlink()
    flip_bit(run / RANKS[1], find(run / RANKS[1], run_folder.arrays(30)["large"][100_000:110_000].tobytes()))
    with lmcstore.open(run, mode="r+") as store:
        with pytest.raises(lmcstore.NotFoundError, match=RANKS[0]) as failed:
            store.scrub(repair=True, sources=[place / "copy"])
        report = failed.value.report
        assert (report["damages"], report["repaired"], report["is_whole"]) == (1, 1, False)
        assert report["list"][0]["what"].startswith(RANKS[1])
        with pytest.raises(lmcstore.InvalidError):
            store.scrub(sources=[place / "copy"])
    check(run, [10, 20, 30])


def _damage_record(folder: Path, number: int) -> None:
    """Damage the record of a snapshot, by the group of its parts that it names."""
    with lmcstore.open(folder / RANKS[0], mode="r") as store:
        _damage_group(folder, store["run"][number]._info["group"])


def _damage_group(folder: Path, group: bytes) -> None:
    from test_cli import find, flip_bit

    flip_bit(folder / POOLS[-1], find(folder / POOLS[-1], group))


def test_a_damaged_newest_record_can_be_removed(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    _damage_record(run, 3)
    with lmcstore.open(run, mode="r+") as store:
        assert "run@3 is passed over" in caplog.text
        assert store.scrub()["damages"] == 1
        assert len(store["run"].prune("keep=last:2").numbers) == 1
        assert store["run"].remove(-1).freed_bytes > 0
        assert "the parts of run@3 go when" in caplog.text
    assert list(numbers(run).values()) == [*[[2, 3]] * 3, [2]]
    run_folder.save_steps(run, 3, 40)
    with lmcstore.open(run, mode="r+"):
        pass
    assert list(numbers(run).values()) == [*[[2, 4]] * 3, [2, 4]]


def test_a_damaged_record_keeps_its_parts_and_no_others(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_folder.save_steps(run, 3, 40, 50)
    _damage_record(run, 2)
    with lmcstore.open(run / "records.pool", mode="r+") as records:
        records["run"].remove(4)
    with lmcstore.open(run, mode="r+"):
        assert caplog.text.count("parts stay that run@2 may name") == 3  # each pool
    assert list(numbers(run).values()) == [*[[1, 2, 3, 5]] * 3, [1, 2, 3, 5]]
    with lmcstore.open(run / "records.pool", mode="r+") as records:
        records["run"].remove(1)  # a neighbour
    run_folder.save_steps(run, 3, 60)
    assert list(numbers(run).values()) == [*[[1, 2, 3, 5, 6]] * 3, [2, 3, 5, 6]]
    with lmcstore.open(run, mode="r+") as store:
        store["run"].prune("keep=last:3")
    with lmcstore.open(run, mode="r+"):
        pass
    assert list(numbers(run).values()) == [[3, 5, 6]] * 4


def test_a_prepared_part_that_a_damaged_record_may_name_stays(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = place / "run"
    run_folder.save_steps(folder, 3, 10, 20)
    run_folder.save(folder, 30, commits=False)
    run_folder.close(folder)
    with lmcstore.open(folder / RANKS[0], "r+") as store:
        ((group, _, _),) = store._pool.groups()
    _damage_group(folder, group)
    for _ in range(2):
        with lmcstore.open(folder, mode="r+"):
            assert "run@3 stays undecided" in caplog.text
    run_folder.save_steps(folder, 3, 40)
    with lmcstore.open(folder / RANKS[0], "r+") as store:
        assert [number for _, _, number in store._pool.groups()] == [3]
    with lmcstore.open(folder, mode="r+") as store:
        store["run"].remove(3)
    with lmcstore.open(folder, mode="r+"):
        pass
    assert list(numbers(folder).values()) == [[1, 2, 4]] * 4
    with lmcstore.open(folder / RANKS[0], "r+") as store:
        assert not store._pool.groups()


def test_verify_names_the_parts_of_a_run_that_has_lost_all(run: Path) -> None:
    with lmcstore.open(run / "records.pool", mode="r+") as records:
        state = records["run"][3].state_dict()
        records["run"].snapshot(state | {"objects": []}, step=40)  # as Run saves it
    for name in RANKS:
        (run / name).unlink()
    with lmcstore.open(run, mode="r") as store:
        assert len(store.verify("run@3")["missing"]) == len(store.verify("run@4")["missing"]) == 3


def test_options_of_open(run: Path) -> None:
    for mode in ("r", "r+"):
        with pytest.raises(lmcstore.UnsupportedError, match="limit of its own"):
            lmcstore.open(run, mode, size="1GiB")
        with pytest.raises(lmcstore.InvalidError, match="threads"):
            lmcstore.open(run, mode, threads=-1)
    with lmcstore.open(run, "r+", threads=2, wait=0), lmcstore.open(run, "r", wait=0) as store:
        assert len(store["run"]) == 3


# Budgets


def _save_random(folder: Path, steps: Iterable[int], world: int = 3) -> None:
    for step in steps:
        array = np.random.default_rng(step).standard_normal((3, 50_000)).astype("f")
        run_folder.save(folder, step, {"a": array}, world=world, metrics={"loss": 1.0})


def _bytes(store: lmcstore.Store) -> int:
    info = store.info()
    return info["live_bytes"] + sum(one["last_snapshot_bytes"] for one in (info, *info["ranks"].values()))


def test_a_save_keeps_the_budget_of_all_pools(place: Path) -> None:
    """The oldest snapshots go that the rules do not keep, with their parts; without a budget all of them do."""
    folder = place / "run"
    _save_random(folder, range(4))
    run_folder.close(folder)
    with lmcstore.open(folder, mode="r+") as store:
        shelf = store["run"]
        budget = _bytes(store) + 4_000_000
        shelf.policy = f"keep=last:2 budget={budget} grace=none"
        assert f"keep=last:2 budget={budget}" in shelf.policy
        shelf.tag(2, "kept")
        assert store.info()["due"] == {"run": {1: None}}
    _save_random(folder, range(4, 40))
    run_folder.close(folder)
    with lmcstore.open(folder, mode="r+") as store:
        left = [one.number for one in store["run"]]
        assert 4 < len(left) < 20 and left == [2, *range(42 - len(left), 41)]
        assert _bytes(store) < budget + 1_300_000  # the last removals are of the next save
        assert sum(one.snapshots for one in store["run"].log().removed) == 40 - len(left)
        for one in store["run"]:
            assert one["a"].numpy().tobytes() == (
                np.random.default_rng(one.step).standard_normal((3, 50_000)).astype("f").tobytes()
            )
    assert set(map(tuple, numbers(folder).values())) == {tuple(left)}
    with lmcstore.open(folder, mode="r+") as store:
        store["run"].policy = "budget=1M"
        store.compact()
        assert [one.number for one in store["run"]] == [2, 39, 40]
    assert set(map(tuple, numbers(folder).values())) == {(2, 39, 40)}


def test_a_smaller_job_frees_the_pools_of_the_ranks_that_are_gone(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = place / "run"
    _save_random(folder, range(1, 4))
    run_folder.close(folder)
    junk = folder / "rank-00007.pool"
    junk.write_bytes(b"junk" * 5000)
    with lmcstore.open(folder, mode="r+") as store:
        empty = _bytes(store)
        store["run"].policy = "keep=last:2 budget=1K grace=none"
    with lmcstore.open(folder / RANKS[1], mode="r") as store:
        full = store.info()["live_bytes"]
    _save_random(folder, [4], 1)
    assert numbers(folder)[RANKS[1]] == numbers(folder)[RANKS[2]] == [3]
    _save_random(folder, [5], 1)
    assert numbers(folder)[RANKS[1]] == numbers(folder)[RANKS[2]] == []
    run_folder.close(folder)
    junk.unlink()
    with lmcstore.open(folder, mode="r+") as store:
        assert store.info()["ranks"][RANKS[1]]["live_bytes"] < full / 2 and _bytes(store) < empty
        store["run"].policy = f"budget={_bytes(store) * 2}"
    with lmcstore.open(folder / RANKS[2], mode="r+") as store:
        store["run"].snapshot({"of another run": np.ones(1_000_000)})
    _save_random(folder, [6, 7], 1)
    assert numbers(folder)[RANKS[0]] == [4, 5, 6, 7]  # no removal would free the bytes of a snapshot without a record
    assert len(numbers(folder)[RANKS[2]]) == 1
    assert "junk" not in caplog.text and str(junk) in caplog.text


def test_a_file_that_is_no_pool_stands_in_the_way_of_nothing(
    run: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run / "rank-00007.pool").write_bytes(b"junk" * 5000)
    with lmcstore.open(run, mode="r") as store:
        assert sorted(store.info()["ranks"]) == RANKS and not store.info()["missing"]
        report = store.verify()
        assert report["damages"] == 1 and "rank-00007.pool" in report["list"][0]["what"] and not report["missing"]
        assert store.verify("run@1")["damages"] == 0
        with pytest.raises(lmcstore.DamagedError, match="rank-00007"):
            store.scrub()
        assert store.dump(place / "dump")["archives"] == 4
    with lmcstore.open(run, mode="r+") as store:
        assert "rank-00007.pool: it is left as it is" in caplog.text
        store["run"].remove(2)
        with pytest.raises(lmcstore.DamagedError, match="rank-00007"):
            store.compact()
        (run / "rank-00007.pool").unlink()
        assert store.verify()["damages"] == 0
    assert set(map(tuple, numbers(run).values())) == {(1, 3)}


def test_a_policy_with_a_wrong_word_changes_nothing(run: Path) -> None:
    with lmcstore.open(run, mode="r+") as store:
        before = store["run"].policy
        for words in ("write=raw keep=bogus", "keep=last:2 write=bogus"):
            with pytest.raises(lmcstore.InvalidError, match="bogus"):
                store["run"].policy = words
            with pytest.raises(lmcstore.InvalidError, match="bogus"):
                store["other"].policy = words
            assert store["run"].policy == before
    for pool in run.glob("rank-*.pool"):
        with lmcstore.open(pool, mode="r") as store:
            assert "other" not in store


def test_a_budget_waits_for_the_grace_period(place: Path) -> None:
    folder = place / "run"
    _save_random(folder, range(4))
    run_folder.close(folder)
    with lmcstore.open(folder, mode="r+") as store:
        store["run"].policy = "keep=last:2 budget=1M"
        assert list(store.info()["due"]["run"]) == [1, 2] and None not in store.info()["due"]["run"].values()
    _save_random(folder, range(4, 8))
    run_folder.close(folder)
    with lmcstore.open(folder, mode="r+") as store:
        store.compact()
        assert len(store["run"]) == 8
        assert store["run"].prune().numbers == [1, 2, 3, 4, 5, 6]
