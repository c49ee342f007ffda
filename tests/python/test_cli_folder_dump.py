# SPDX-License-Identifier: BSD-3-Clause
"""The commands dump and restore on the folder of a run of many ranks."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
import run_folder
from command import BIN, NEEDS_BIN
from lmcstore._folder import writing
from run_folder import POOLS, RANKS
from test_cli import as_json, cli, error, find, flip_bit, text

pytestmark = [NEEDS_BIN, pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning")]

ARCHIVES = [name.replace(".pool", ".archive") for name in POOLS]


@pytest.fixture
def run(place: Path) -> Iterator[Path]:
    """A folder with four snapshots of three ranks, steps 10 to 40, closed; a save that did not end left a gap."""
    folder = place / "run"
    for step in (10, 20, 30, 40):
        if step == 20:
            writer = writing.RankWriter(str(folder), 0)
            writer.prepare(run_folder.SHELF, run_folder.arrays(5), 5)
        run_folder.save(
            folder,
            step,
            metrics={"loss": 1 / step},
            tags=["best"] if step == 20 else [],
        )
    run_folder.close(folder)
    yield folder
    for one in (folder, place / "new"):
        run_folder.close(one)


def numbers(path: Path) -> list[int]:
    return [one["number"] for shelf in as_json("ls", path)["shelves"] for one in shelf["snapshots"]]


def contents(folder: Path) -> dict[int, Any]:
    with lmcstore.open(folder, mode="r") as store:
        return {one.number: (one.step, one.digest, one.metrics, one.parent) for one in store["run"]}


def states_are_right(folder: Path, steps: list[int]) -> None:
    with lmcstore.open(folder, mode="r") as store:
        assert [one.step for one in store["run"]] == steps
        for one in store["run"]:
            for name, array in run_folder.arrays(one.step or 0).items():
                assert one[name].numpy().tobytes() == array.tobytes(), name
        report = store.verify()
        assert report["damages"] == 0 and not report["missing"]
    cli("verify", folder)


def restored(run: Path, *what: Any) -> Path:
    cli("dump", run, *what, "-o", run.with_name("dumped"))
    cli("restore", run.with_name("dumped"), run.with_name("new"))
    return run.with_name("new")


def test_a_restored_run_is_the_same(run: Path, place: Path) -> None:
    report = as_json("dump", run, "-o", place / "dumped")
    assert (report["snapshots"], report["archives"], report["missing_parts"]) == (
        4,
        4,
        0,
    )
    assert sorted(os.listdir(place / "dumped")) == ARCHIVES
    for name in ARCHIVES:
        cli("verify", place / "dumped" / name)
    report = as_json("restore", place / "dumped", place / "new")
    assert (report["snapshots"], report["pools"], report["missing_parts"]) == (4, 4, 0)
    assert sorted(os.listdir(place / "new")) == POOLS
    assert contents(place / "new") == contents(run) and text("ls", place / "new") == text("ls", run)
    states_are_right(place / "new", [10, 20, 30, 40])
    assert as_json("info", place / "new")["missing"] == []
    with lmcstore.open(place / "new", mode="r") as store:
        assert store["run"]["best"].number == 2 and store["run"][3].new_bytes is not None
        assert store["run"][3].storage()["raw_contents"] > 0 and len(store["run"][3].entries()) == 7
    assert "exists: restore a run into a new folder" in error("restore", place / "dumped", place / "new")


def test_a_restored_run_goes_on(run: Path) -> None:
    """It is saved into, removed from, pruned, settled and forked as before; no part is taken for an orphan."""
    new = restored(run)
    run_folder.save(new, 50)
    run_folder.save(new, 60, commits=False)
    run_folder.close(new)
    states_are_right(new, [10, 20, 30, 40, 50, 60])
    with lmcstore.open(new, mode="r+") as store:  # settles
        assert [len(lmcstore.open(new / name, mode="r")["run"]) for name in RANKS] == [6] * 3
        store["run"].remove(1)
        assert store["run"][2].fork("other").name == "other"
    assert [len(numbers(new / name)) for name in RANKS] == [6] * 3  # one less, one of the fork
    cli("rm", new, "other@1..latest")
    states_are_right(new, [20, 30, 40, 50, 60])
    assert as_json("rm", new, "run@3")["parts"] == 3
    states_are_right(new, [20, 40, 50, 60])
    assert as_json("policy", new, "run", "keep=last:2", "--prune")["removed"] == [4]
    states_are_right(new, [20, 50, 60])  # 20 has a tag
    assert [len(numbers(new / name)) for name in RANKS] == [3] * 3
    cli("compact", new)
    states_are_right(new, [20, 50, 60])


def test_what_a_killed_removal_left_goes_after_a_restore(run: Path) -> None:
    new = restored(run)
    cli("rm", new / "records.pool", "run@1")
    with lmcstore.open(new, mode="r+"):
        assert [len(numbers(new / name)) for name in RANKS] == [3] * 3
    cli("rm", new / "records.pool", "run@2")
    cli("policy", new, "run", "--prune")
    cli("rm", new, "run@3")
    assert [len(numbers(new / name)) for name in RANKS] == [1] * 3
    states_are_right(new, [40])


def test_a_restored_run_can_be_dumped_and_restored_again(run: Path, place: Path) -> None:
    new = restored(run, "run@2..3")
    states_are_right(new, [20, 30])
    run_folder.save(new, 50)
    run_folder.close(new)
    cli("dump", new, "-o", place / "again")
    cli("restore", place / "again", place / "last")
    states_are_right(place / "last", [20, 30, 50])
    assert contents(place / "last") == contents(new)


def test_dumps_since_others(run: Path, place: Path) -> None:
    cli("dump", run, "run@1..2", "-o", place / "old")
    assert as_json("dump", run, "--since", place / "old", "-o", place / "more")["snapshots"] == 2
    run_folder.save(run, 50, world=2)
    run_folder.close(run)
    since = ["--since", place / "old", "--since", place / "more"]
    assert as_json("dump", run, *since, "-o", place / "last")["archives"] == 3
    assert "the archive needs an older one" in error("restore", place / "last", place / "new")
    cli("restore", place / "old", place / "more", place / "last", place / "new")
    states_are_right(place / "new", [10, 20, 30, 40, 50])
    assert contents(place / "new") == contents(run)
    assert "is no dump of a run" in error("dump", run, "--since", place, "-o", place / "x")
    assert not (place / "x").exists()


def test_a_dump_since_another_has_what_was_added_to_a_snapshot(run: Path, place: Path) -> None:
    cli("dump", run, "-o", place / "old")
    cli("metric", run, "run@2", "val=0.3")
    assert as_json("dump", run, "--since", place / "old", "-o", place / "more")["snapshots"] == 1
    cli("restore", place / "old", place / "more", place / "new")
    states_are_right(place / "new", [10, 20, 30, 40])
    assert contents(place / "new") == contents(run) and contents(run)[2][2]["val"] == 0.3


def test_a_dump_since_another_has_the_parts_that_this_lacks(run: Path, place: Path) -> None:
    (run / RANKS[1]).rename(place / "away")
    cli("dump", run, "--allow-missing", "-o", place / "old")
    since = ["--since", place / "old"]
    assert f"lacks 4 parts of snapshots: {RANKS[1]}" in error("dump", run, *since, "-o", place / "x")
    assert "lacks 2 parts" in error("dump", run, "run@1..2", *since, "-o", place / "x")
    assert as_json("dump", run, *since, "--allow-missing", "-o", place / "none")["missing_parts"] == 4
    (place / "away").rename(run / RANKS[1])
    run_folder.save(run, 50)
    run_folder.close(run)
    assert as_json("dump", run, *since, "-o", place / "more")["snapshots"] == 1
    cli("restore", place / "old", place / "more", place / "new")
    states_are_right(place / "new", [10, 20, 30, 40, 50])
    (run / RANKS[1]).unlink()
    assert as_json("dump", run, *since, "--since", place / "more", "-o", place / "last")["missing_parts"] == 0


def test_a_dump_since_another_tells_parts_of_the_same_number_apart(run: Path, place: Path) -> None:
    (run / RANKS[0]).rename(place / "away")
    for step in (50, 60):  # a new pool of the rank has the numbers 1 and 2, too
        run_folder.save(run, step)
    run_folder.close(run)
    since = ["--since", place / "old"]
    cli("dump", run, "--allow-missing", "-o", place / "old")
    assert as_json("dump", run, *since, "--allow-missing", "-o", place / "none")["missing_parts"] == 4
    (place / "away").rename(run / "rank-00009.pool")
    assert as_json("dump", run, *since, "-o", place / "more")["missing_parts"] == 0
    cli("restore", place / "old", place / "more", place / "new")
    states_are_right(place / "new", [10, 20, 30, 40, 50, 60])


def test_a_dump_since_another_has_the_parts_of_a_fork(run: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("fork", run, "run@2", "fork")
    monkeypatch.setattr(run_folder, "SHELF", "fork")
    run_folder.save(run, 50)
    run_folder.close(run)
    (run / RANKS[1]).rename(place / "away")
    cli("dump", run, "fork@1", "--allow-missing", "-o", place / "old")
    (place / "away").rename(run / RANKS[1])
    since = ["--since", place / "old", "--since", place / "more"]
    cli("dump", run, "fork@2", *since[:2], "-o", place / "more")
    cli("dump", run, "fork", *since, "-o", place / "last")  # its first record names the part run@2
    cli("restore", place / "old", place / "more", place / "last", place / "new")
    assert numbers(place / "new" / RANKS[1]) == [1, 2]


def test_a_dump_since_another_passes_over_a_damaged_older_record(run: Path, place: Path) -> None:
    cli("dump", run, "-o", place / "old")
    with lmcstore.open(run / RANKS[0], mode="r") as store:
        group = store["run"][1]._info["group"]  # the record names it
    flip_bit(run / "records.pool", find(run / "records.pool", group))
    run_folder.save(run, 50)
    run_folder.close(run)
    done = cli("dump", run, "--since", place / "old", "-o", place / "more")
    assert "warning: run@1: " in done.stderr
    cli("restore", place / "old", place / "more", place / "new")
    states_are_right(place / "new", [10, 20, 30, 40, 50])


def test_missing_pools_are_named(run: Path, place: Path) -> None:
    (run / RANKS[1]).rename(place / "away")
    assert RANKS[1] in error("dump", run, "-o", place / "dumped", status="not found")
    assert not (place / "dumped").exists()
    done = cli("dump", run, "--allow-missing", "-o", place / "dumped")
    assert f"4 parts are missing: {RANKS[1]}" in done.stderr
    message = error("restore", place / "dumped", place / "new", status="not found")
    assert RANKS[1] in message and not (place / "new" / "records.pool").exists()
    assert "did not end" in error("ls", place / "new", status="not found")
    with pytest.raises(lmcstore.NotFoundError, match="did not end"):
        lmcstore.open(place / "new", mode="r")
    with pytest.raises(lmcstore.NotFoundError, match="did not end"):
        run_folder.save(place / "new", 1)
    cli("restore", place / "dumped", place / "new", "--allow-missing")
    assert RANKS[1] in text("verify", place / "new", code=1)


def test_parts_that_are_prepared_are_committed(run: Path, place: Path) -> None:
    run_folder.save(run, 50, commits=False)
    run_folder.close(run)
    assert len(numbers(run / RANKS[0])) == 4
    with lmcstore.open(run / RANKS[1], mode="r+"):
        assert RANKS[1] in error("dump", run, "-o", place / "dumped", status="in use")
    assert not (place / "dumped").exists()
    states_are_right(restored(run), [10, 20, 30, 40, 50])


def test_one_dump_writes_a_folder(run: Path, place: Path) -> None:
    """The folder of a dump looks empty while that waits for a rank's pool."""
    dumped = place / "dumped"
    run_folder.save(run, 50, commits=False)
    run_folder.close(run)
    with lmcstore.open(run / RANKS[0], mode="r+"):
        first = subprocess.Popen([BIN, "dump", str(run), "-o", str(dumped)], stdout=subprocess.DEVNULL)
        is_locked = False
        while not is_locked and first.poll() is None:
            is_locked = dumped.exists() and f":{dumped.stat().st_ino} " in Path("/proc/locks").read_text()
    assert is_locked and first.wait() == 0
    cli("restore", dumped, place / "new")
    states_are_right(place / "new", [10, 20, 30, 40, 50])
    other = place / "other"
    other.mkdir()
    held = os.open(other, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another dump writes" in error("dump", run, "-o", other, status="in use")
        assert other.exists()
        fcntl.flock(held, fcntl.LOCK_UN)
        cli("dump", run, "-o", other)
    finally:
        os.close(held)


def test_ranks_may_have_their_pools_open(run: Path) -> None:
    run_folder.save(run, 50)
    states_are_right(restored(run), [10, 20, 30, 40, 50])


def test_a_run_is_dumped_while_it_is_saved(run: Path, place: Path) -> None:
    ends, saved = threading.Event(), [0]

    def saves() -> None:
        for step in range(50, 1050):
            run_folder.save(run, step, {"a": np.arange(9.0) + step})
            saved.append(step)
            if ends.is_set():
                break

    thread = threading.Thread(target=saves)
    thread.start()
    try:
        for part in range(4):
            before = len(saved)
            while len(saved) == before:
                time.sleep(0.001)
            cli("dump", run, "-o", place / f"dumped{part}")
    finally:
        ends.set()
        thread.join()
    counts = []
    for part in range(4):
        cli("restore", place / f"dumped{part}", place / f"new{part}")
        cli("verify", place / f"new{part}")
        counts.append(len(numbers(place / f"new{part}")))
    assert counts == sorted(set(counts)) and counts[0] > 4


def test_wrong_uses(run: Path, place: Path) -> None:
    assert "-o FOLDER" in error("dump", run, code=2)
    assert "not for a run" in error("dump", run, "--canonical", "-o", place / "x", code=2)
    (place / "full").mkdir()
    (place / "full" / "file").touch()
    assert "exists" in error("dump", run, "-o", place / "full", status="exists")
    assert "no snapshot run@99" in error("dump", run, "run@99", "-o", place / "x", status="not found")
    assert not (place / "x").exists()
    cli("dump", run, "-o", place / "dumped")
    assert "exists" in error("restore", place / "dumped", run, status="exists")
    assert "exists" in error("restore", place / "dumped", place / "full", status="exists")
    assert "not a run" in error("restore", place / "dumped", place / "new", "--as", "b", code=2)
    (place / "dumped" / "records.archive").unlink()
    assert "the dump did not end" in error("restore", place / "dumped", place / "new", status="not found")
    assert not (place / "new").exists()


def test_archives_of_two_dumps_are_no_run(run: Path, place: Path) -> None:
    cli("dump", run, "run@1", "-o", place / "one")
    cli("dump", run, "run@2", "-o", place / "two")
    shutil.copy(place / "one" / ARCHIVES[0], place / "two" / ARCHIVES[0])
    assert RANKS[0] in error("restore", place / "two", place / "new", status="not found")
    assert not (place / "new" / "records.pool").exists()


def test_a_damaged_archive_makes_no_run(run: Path, place: Path) -> None:
    cli("dump", run, "-o", place / "dumped")
    for name in ARCHIVES:
        whole = (place / "dumped" / name).read_bytes()
        (place / "dumped" / name).write_bytes(whole[: len(whole) // 2] + b"x" + whole[len(whole) // 2 + 1 :])
        assert name in error("restore", place / "dumped", place / "new")
        assert not (place / "new" / "records.pool").exists()
        (place / "dumped" / name).write_bytes(whole)
    cli("restore", place / "dumped", place / "new")
    states_are_right(place / "new", [10, 20, 30, 40])


def test_killed_commands_leave_nothing_that_looks_whole(place: Path) -> None:
    run = place / "run"
    generator = np.random.default_rng(7)
    for step in (1, 2):
        run_folder.save(run, step, {"a": generator.standard_normal((3, 1_000_000))})
    run_folder.close(run)
    wanted = contents(run)
    dumped, new = place / "dumped", place / "new"
    killed = 0
    for seen in ("", *ARCHIVES):
        killed += _killed(dumped / seen, "dump", run, "-o", dumped, check=_no_dump(dumped))
    cli("dump", run, "-o", dumped)
    for seen in ("", "records.restoring", *POOLS):
        command = ["restore", dumped, new]
        killed += _killed(new / seen, *command, check=_no_run(new))
        if not (new / "records.pool").exists():
            cli(*command)  # continues
        assert contents(new) == wanted
        cli("verify", new)
        shutil.rmtree(new)
    assert killed > 4


def _killed(seen: Path, *arguments: Any, check: Any) -> bool:
    """Kill a command as soon as a path is there; whether it was killed before it ended."""
    process = subprocess.Popen([BIN, *map(str, arguments)], stdout=subprocess.DEVNULL)
    while not seen.exists() and process.poll() is None:
        pass
    process.send_signal(signal.SIGKILL)
    is_killed = process.wait() == -signal.SIGKILL
    check()
    return is_killed


def _no_dump(dumped: Path) -> Any:
    def check() -> None:
        again = dumped.with_name("again")
        if (dumped / "records.archive").exists():
            cli("restore", dumped, again)
            assert contents(again) == contents(dumped.with_name("run"))
            shutil.rmtree(again)
        elif dumped.exists() and os.listdir(dumped):
            assert "did not end" in error("restore", dumped, again, status="not found")
            assert "cut short" in error("dump", dumped.with_name("run"), "-o", dumped, status="exists")
        shutil.rmtree(dumped, ignore_errors=True)

    return check


def _no_run(new: Path) -> Any:
    def check() -> None:
        if (new / "records.restoring").exists():
            assert "did not end" in error("ls", new, status="not found")
            with pytest.raises(lmcstore.NotFoundError, match="did not end"):
                lmcstore.open(new, mode="r")

    return check


def test_ranks_go_on_training_in_a_restored_run(place: Path) -> None:
    pytest.importorskip("torch")
    import dcp_ranks as ranks
    import run_ranks
    from same import same

    run = place / "run"
    whole = ranks.run(2, run_ranks.train, place / "whole", 8)
    ranks.run(2, run_ranks.train, run, 5)
    new = restored(run)
    again = ranks.run(2, run_ranks.train, new, 8, "", 1, {"policy": "keep=last:4"})
    for rank in range(2):
        assert again[rank][2] == 5 and again[rank][0] == whole[rank][0][5:]
        same(pickle.loads(again[rank][1]), pickle.loads(whole[rank][1]))
    with lmcstore.open(new, mode="r+") as store:
        store["run"].prune()
        assert [one.step for one in store["run"]] == [4, 5, 6, 7]
        assert store.verify()["damages"] == 0
    assert [len(numbers(new / name)) for name in RANKS[:2]] == [4, 4]
    cli("verify", new)
