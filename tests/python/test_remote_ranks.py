# SPDX-License-Identifier: BSD-3-Clause
"""Runs of many ranks in an object store: a record is there when the parts of all ranks are."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import signal
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmcstore
import pytest
import run_folder
from lmcstore._folder import remote, remote_push
from lmcstore._remote import codec, kept, late, state, sweep
from lmcstore._remote import push as pushing
from lmcstore._remote.command import main
from lmcstore._remote.place import Place
from optional import torch
from test_remote import an_entry
from test_remote_push import Died, Fate

pytestmark = pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning")

RANKS = [f"rank-{rank:05d}.pool" for rank in range(4)]


@pytest.fixture
def place(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Also temporary files go to the folder in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def url(place: Path) -> str:
    return f"file://{place}/bucket"


def save(folder: Path, *steps: int, **options: Any) -> None:
    run_folder.save_steps(folder, 4, *steps, **options)


@pytest.fixture
def run(place: Path) -> Path:
    """A run of four ranks with the steps 10, 20 and 30."""
    save(place / "run", 10, 20, 30)
    return place / "run"


def node(run: Path, name: str, ranks: tuple[int, ...]) -> Path:
    """Copy a part of the pools, and the records, as a machine of its own has them."""
    folder = run.with_name(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = [run / "records.pool", *(run / RANKS[rank] for rank in ranks)]
    subprocess.run(["cp", "--sparse=always", *files, folder], check=True)
    return folder


def push(folder: Path, url: str, what: Any = None, **options: Any) -> dict[str, Any]:
    with lmcstore.open(folder, "r") as store:
        return store.push(url, what, **options)


def check(store: lmcstore.Store, steps: list[int]) -> None:
    assert [one.step for one in store["run"]] == steps
    for one in store["run"]:
        assert one.metrics == {"loss": 1 / (one.step or 0)}
        for name, array in run_folder.arrays(one.step or 0).items():
            assert one[name].numpy().tobytes() == array.tobytes(), name


def check_url(url: str, steps: list[int]) -> None:
    with lmcstore.open(url) as store:
        check(store, steps)


def pulled(url: str, folder: Path, steps: list[int], **options: Any) -> None:
    lmcstore.pull(url, folder, **options)
    with lmcstore.open(folder, "r") as store:
        check(store, steps)
        report = store.verify()
        assert report["damages"] == 0 and report["missing"] == []


def test_the_newest_snapshot_of_a_run_gets_keys(run: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "_LEAST_BYTES", 0)
    monkeypatch.setattr(pushing, "_is_new", lambda *_: False)
    assert push(run, url)["keys"] == 4
    for rank in range(4):
        with Place(f"{url}/rank-{rank:05d}") as place:
            there = state.read(place).shelf("run")
            assert there.latest is not None and len(there.chain(there.latest.number)) == 1
    with lmcstore.open(url) as store:
        check(store, [10, 20, 30])
    assert push(run, url)["keys"] == 0


def test_two_nodes_push_one_run(run: Path, url: str, place: Path) -> None:
    first, second = node(run, "first", (0, 1)), node(run, "second", (2, 3))
    done = push(first, url)
    assert done["snapshots"] == 0 and done["bytes"] > 0
    assert done["waiting"][0] == "run@1 waits for 'rank-00002.pool' and 'rank-00003.pool'"
    check_url(url, [])
    assert push(second, url)["snapshots"] == 3
    assert push(first, url)["snapshots"] == 0
    check_url(url, [10, 20, 30])
    pulled(url, place / "third", [10, 20, 30])
    save(place / "third", 40)
    assert push(place / "third", url)["snapshots"] == 1
    check_url(url, [10, 20, 30, 40])


@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_last_of_two_nodes_sees_the_parts_of_the_other(
    at: int, run: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sends record by record, the second one all of them in the middle of the first one's push."""
    first, second = node(run, "first", (0, 1)), node(run, "second", (2, 3))
    calls: list[bool] = []
    original = remote_push.RunPusher._push_parts

    def push_parts(pusher: remote_push.RunPusher, waits: bool) -> bool:
        calls.append(waits)
        if len(calls) == at:
            push(second, url)
        return original(pusher, waits)

    monkeypatch.setattr(remote_push, "_AT_ONCE_RECORDS", 1)
    monkeypatch.setattr(remote_push.RunPusher, "_push_parts", push_parts)
    push(first, url)
    check_url(url, [10, 20, 30])


@pytest.mark.parametrize("where", ["file", "s3"])
def test_two_nodes_follow_a_run(where: str, run: Path, url: str, request: pytest.FixtureRequest) -> None:
    if where == "s3":
        pytest.importorskip("obstore")
        url = request.getfixturevalue("bucket")
    results: list[int] = []

    def follow(name: str, ranks: tuple[int, ...]) -> None:
        folder = run.with_name(name)
        folder.mkdir()
        for file in ["records.pool", *(RANKS[rank] for rank in ranks)]:
            folder.joinpath(file).symlink_to(run / file)
        results.append(push(folder, url, follow=True, timeout=3)["snapshots"])

    threads = [threading.Thread(target=follow, args=one) for one in (("first", (0, 1)), ("second", (2, 3)))]
    for thread in threads:
        thread.start()
    save(run, 40)
    save(run, 50)
    for thread in threads:
        thread.join()
    assert len(results) == 2 and sum(results) + push(run, url)["snapshots"] == 5
    check_url(url, [10, 20, 30, 40, 50])


def test_a_run_is_resumed_elsewhere_by_fewer_ranks(place: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.Tensor  # noqa: B018 (skips without torch)
    monkeypatch.undo()  # multiprocessing keeps the folder
    import dcp_ranks
    import run_ranks
    from same import same

    four = [pickle.loads(one[1]) for one in dcp_ranks.run(4, run_ranks.train, place / "run", 3)]
    push(node(place / "run", "first", (0, 1)), url)
    push(node(place / "run", "second", (2, 3)), url)
    lmcstore.pull(url, place / "third", "run@latest")
    found = dcp_ranks.run(3, run_ranks.resume_once, place / "third", 1)
    for rank, (state_of_rank, first, _) in enumerate(found):
        assert first == 3
        same(pickle.loads(state_of_rank), four[rank] | {"model": four[0]["model"]})
    with lmcstore.open(url) as store:
        same(store["run"][3].state_dict()["optimizer"], four[0]["optimizer"])
    push(place / "third", url)
    with lmcstore.open(url) as store:
        assert [one.step for one in store["run"]] == [0, 1, 2, 3]


def test_rows_parts_and_values_are_read_in_place(run: Path, url: str, place: Path) -> None:
    push(run, url)
    with lmcstore.open(url) as store, lmcstore.open(run, "r") as local:
        there, here = store["run"][2], local["run"][2]
        rows = [one["large"][74_990:75_010].numpy().tobytes() for one in (there, here)]  # of two ranks
        assert rows[0] == rows[1] and len(rows[0]) == 80
        assert sorted(there.state_dict("model")) == ["bias", "weight"]
        assert there.names() == here.names() and there.raw_bytes == here.raw_bytes
        assert [one.name for one in there.diff(store["run"][3])] == [one.name for one in here.diff(local["run"][3])]
        for one, file in ((there, "there"), (here, "here")):
            one.export(place / file)
        assert (place / "there").read_bytes() == (place / "here").read_bytes()
        with pytest.raises(lmcstore.ReadOnlyError, match="pull it into a folder"):
            store["run"].remove(1)
        assert there.digest == here.digest
        with pickle.loads(pickle.dumps(store)) as copied:
            assert copied["run"][3]["same"].numpy().tobytes() == local["run"][3]["same"].numpy().tobytes()
        assert store.info()["missing"] == [] and list(store.info()["ranks"]) == [one[:-5] for one in RANKS]


def test_blocks_of_all_ranks_are_kept_in_a_folder(run: Path, url: str, place: Path) -> None:
    push(run, url)
    fetched = []
    for _ in range(2):
        with lmcstore.open(url, cache=place / "cache") as store:
            check(store, [10, 20, 30])
            fetched.append(sum(rank["fetched_bytes"] for rank in store.info()["ranks"].values()))
    assert fetched[0] > fetched[1] * 10


def test_caches_of_all_ranks_share_the_disk(run: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    push(run, url)
    for free, memory, most in ((1 << 40, 10 << 20, 10 << 20), (8 << 20, 10 << 20, 4 << 20)):
        monkeypatch.setattr(kept, "shutil", SimpleNamespace(disk_usage=lambda _, free=free: SimpleNamespace(free=free),
                                                            rmtree=shutil.rmtree))  # fmt: skip
        with lmcstore.open(url, memory=memory) as store:
            check(store, [10, 20, 30])
            pools: Any = [store._pool, *(pool for _, pool in store._ranks.all())]  # type: ignore[attr-defined]
            assert [pool._cache._kept._most_bytes for pool in pools] == [most // 5] * 5


def test_a_pull_of_a_range_and_then_the_rest(run: Path, url: str, place: Path) -> None:
    push(run, url)
    with pytest.raises(lmcstore.NotFoundError, match="no snapshot '4'"):
        lmcstore.pull(url, place / "some", "run@4")
    assert not (place / "some").exists()
    pulled(url, place / "some", [20], what="run@2")
    pulled(url, place / "some", [10, 20, 30])
    assert lmcstore.pull(url, place / "some")["snapshots"] == 0


def test_a_node_that_dies_while_it_pushes(run: Path, url: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push(node(run, "second", (2, 3)), url)
    first = node(run, "first", (0, 1))
    with monkeypatch.context() as patch:
        fate = Fate(patch)
        push(first, f"file://{place}/other")
        total = fate.count
    died = 0
    for at in range(1, total, max(1, total // 12)):
        for is_after in (False, True):
            with monkeypatch.context() as patch:
                fate = Fate(patch)
                fate.dies_at, fate.is_after = at, is_after
                try:
                    push(first, url)
                except Died:
                    died += 1
            with lmcstore.open(url) as store:
                check(store, [10, 20, 30][: len(store["run"]) if "run" in store else 0])
    assert died > 2
    push(first, url)
    check_url(url, [10, 20, 30])
    pulled(url, place / "third", [10, 20, 30])


def test_a_node_that_is_killed_while_it_pushes(run: Path, url: str, run_python: Callable[..., Any]) -> None:
    """It kills itself when the server has confirmed some pieces."""
    code = """
import os, signal, sys, lmcstore
left = int(sys.argv[3])
def progress(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
with lmcstore.open(sys.argv[1], "r") as store:
    store.push(sys.argv[2], None, progress)
"""
    push(node(run, "second", (2, 3)), url)
    first = node(run, "first", (0, 1))
    codes = []
    for pieces in (1, 2, 3, 1000):
        codes.append(run_python(code, str(first), url, str(pieces)).returncode)
        with lmcstore.open(url) as store:
            check(store, [10, 20, 30][: len(store["run"])])
    assert codes[0] == -signal.SIGKILL and codes[-1] == 0
    check_url(url, [10, 20, 30])


def test_a_pull_that_is_cut_short_is_repeated(
    run: Path, url: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(run, url)
    with monkeypatch.context() as patch:
        fate = Fate(patch)
        lmcstore.pull(url, place / "whole")
        total = fate.count
    died = 0
    for at in range(1, total, max(1, total // 8)):
        with monkeypatch.context() as patch:
            fate = Fate(patch)
            fate.dies_at = at
            try:
                lmcstore.pull(url, place / "third")
                break
            except Died:
                died += 1
        with pytest.raises(lmcstore.NotFoundError, match=r"or pull|no such pool"):
            lmcstore.open(place / "third", "r")
    assert died > 2
    pulled(url, place / "third", [10, 20, 30])


def test_another_run_is_refused_before_anything_is_sent(run: Path, url: str, place: Path) -> None:
    push(run, url)
    save(place / "another", 10, 20, 30, 40)
    before = sorted(place.joinpath("bucket").rglob("*"))
    with pytest.raises(lmcstore.ExistsError, match="has another run@3"):
        push(place / "another", url)
    with lmcstore.open(place / "another", "r+") as another:
        for number in (1, 2, 3):
            another["run"].remove(number)
    with pytest.raises(lmcstore.ExistsError, match="has another shelf 'run'"):
        push(place / "another", url)
    with lmcstore.open(place / "one.pool", "x") as store:
        store["run"].snapshot({"a": 1})
        with pytest.raises(lmcstore.ExistsError, match="has a run of many ranks"):
            store.push(url)
        store.push(f"{url}2")
    with pytest.raises(lmcstore.ExistsError, match="has a run of one pool"):
        push(run, f"{url}2")
    with pytest.raises(lmcstore.UnsupportedError, match="many ranks"):
        lmcstore.pull(url, place / "one.pool")
    with pytest.raises(lmcstore.UnsupportedError, match="one pool"):
        lmcstore.pull(f"{url}2", run)
    with lmcstore.open(run, "r+") as opened, pytest.raises(lmcstore.UnsupportedError, match="one pool"):
        lmcstore.pull(f"{url}2", opened)
    assert sorted(place.joinpath("bucket").rglob("*")) == before


@pytest.mark.parametrize("is_pushed", [False, True])
def test_a_pool_that_was_begun_anew_has_a_sub_run_of_its_own(is_pushed: bool, run: Path, url: str, place: Path) -> None:
    """As when the ranks of two machines change places."""
    if is_pushed:
        push(run, url)
    run.joinpath(RANKS[3]).rename(run / "rank-old.pool")
    save(run, 40)
    push(run, url)
    with Place(url) as there:
        assert state.read(there).ranks == [
            *(name[:-5] for name in RANKS),
            "rank-00003.2",
        ]
    check_url(url, [10, 20, 30, 40])
    pulled(url, place / "third", [10, 20, 30, 40])


def test_a_part_in_another_pool_of_its_rank_is_waited_for(run: Path, url: str) -> None:
    """The rank has moved: a later part, from another pool, does not mean that the first ones are lost."""
    old = node(run, "old", (3,))
    run.joinpath(RANKS[3]).unlink()
    save(run, 40)
    done = push(run, url)
    assert done["snapshots"] == 0 and len(done["waiting"]) == 3
    check_url(url, [])
    assert push(old, url)["snapshots"] == 3
    assert push(run, url)["snapshots"] == 1
    check_url(url, [10, 20, 30, 40])


def test_what_is_read_is_checked() -> None:
    part = codec.Of(7, "a" * 32)
    shelf = codec.ShelfParts("run", codec.UNKNOWN, 2, 4, "", None, {}, [an_entry(1, base=0, of=part)], [])
    parts = codec.Parts("b" * 32, 1, 0, "c" * 32, [shelf], ["rank-00000", "rank-00000.2"])
    data = codec.write_state(parts)
    assert codec.read_state(data, "x") == parts
    for right, wrong in (
        (b'"rank-00000"', b'"../escaped"'),
        (b'"rank-00000"', b"7"),
        (b'["rank-00000","rank-00000.2"]', b"{}"),
        (b'"record":7', b'"record":0'),
        (b'"record":7', b'"record":"7"'),
        (b'"group":"aa', b'"group":"zz'),
        (b'"of":{', b'"of":[],"more":{'),
    ):
        text = zlib.decompress(data)
        assert right in text
        with pytest.raises(lmcstore.DamagedError, match="x is damaged"):
            codec.read_state(zlib.compress(text.replace(right, wrong)), "x")
    mark = codec.read_mark(codec.write_mark("b" * 32, ranks=True), "x")
    assert (mark.run, mark.ranks) == ("b" * 32, [])
    assert codec.read_mark(codec.write_mark("b" * 32), "x").ranks is None


def test_tags_of_a_machine_that_has_no_first_rank(run: Path, url: str) -> None:
    with lmcstore.open(run, "r") as store:
        store["run"].tag(1, "best")
    push(node(run, "first", (0, 1)), url)
    push(node(run, "second", (2, 3)), url)
    with lmcstore.open(url) as store:
        assert store["run"].tags == {"best": 1}


def test_a_fork_has_its_parts_there(run: Path, url: str, place: Path) -> None:
    with lmcstore.open(run, "r+") as store:
        store["run"][2].fork("fork")
    assert push(run, url)["snapshots"] == 4
    lmcstore.pull(url, place / "third")
    for where in (url, place / "third"):
        with lmcstore.open(where, "r") as store:
            assert [one.number for one in store["fork"]] == [1] and store["fork"][1].step == 20
            assert store["fork"][1]["large"].numpy().tobytes() == run_folder.arrays(20)["large"].tobytes()


def test_a_part_that_is_lost_leaves_one_snapshot_out(run: Path, url: str, caplog: Any) -> None:
    with lmcstore.open(run / RANKS[1], "r+") as rank:
        rank["run"].remove(2)
    assert push(run, url)["snapshots"] == 2
    assert "run@2 is left out: 'rank-00001.pool'" in caplog.text
    check_url(url, [10, 30])


def test_prepared_parts_are_committed_and_sent(run: Path, url: str) -> None:
    run_folder.save(run, 40, world=4, metrics={"loss": 1 / 40}, commits=False)
    run_folder.close(run)
    assert push(run, url)["snapshots"] == 4
    check_url(url, [10, 20, 30, 40])


def test_a_removal_takes_the_parts_of_all_ranks(run: Path, url: str, place: Path) -> None:
    first, second = node(run, "first", (0, 1)), node(run, "second", (2, 3))
    push(first, url)
    push(second, url)
    save(run, 40)
    push(node(run, "first", (0, 1)), url)  # a part that waits for its record
    with Place(url) as there:
        assert sweep.remove(there, ["run@2"], dry_run=True)[0] == 1
        check_url(url, [10, 20, 30])
        assert sweep.remove(there, ["run@2"], dry_run=False)[0] == 1
        check_url(url, [10, 30])
        assert parts_of(url) == [[1, 3, 4], [1, 3, 4], [1, 3], [1, 3]]
    push(node(run, "second", (2, 3)), url)
    check_url(url, [10, 30, 40])


def parts_of(url: str) -> list[list[int]]:
    """Return the records of the parts in each sub-run."""
    found = []
    with Place(url) as place:
        for name in state.read(place).ranks or ():
            with place.below(name) as below:
                entries = state.read(below).shelf("run").entries()
                found.append([entry.of.record for entry in entries if not entry.hidden and entry.of is not None])
    return found


def test_a_removal_that_is_cut_short_is_completed_by_the_next_one(
    run: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(run, url)
    with Place(url) as there:
        for at in range(1, 40, 4):
            with monkeypatch.context() as patch:
                fate = Fate(patch)
                fate.dies_at = at
                with contextlib.suppress(Died, lmcstore.NotFoundError):
                    sweep.remove(there, ["run@2"], dry_run=False)
            with lmcstore.open(url) as store:
                check(store, [one.step for one in store["run"]])
        sweep.sweep_all(state.read(there))
    check_url(url, [10, 30])
    assert parts_of(url) == [[1, 3]] * 4


def test_a_mirror_removes_what_the_run_has_removed(run: Path, url: str) -> None:
    push(run, url)
    with lmcstore.open(run, "r+") as store:
        store["run"].remove(2)
    push(run, url)
    check_url(url, [10, 20, 30])
    push(run, url, mirror=True)
    check_url(url, [10, 30])
    assert parts_of(url) == [[1, 3]] * 4


@pytest.mark.parametrize("removes", [False, True])
def test_a_run_that_changes_while_it_is_verified(
    run: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], removes: bool
) -> None:
    push(run, url)
    enter = remote.RemoteFolder.__enter__

    def then_change(store: Any) -> Any:
        assert store._pool._state.number
        if removes:
            assert main("rm", [url, "run@2"]) == 0
        else:
            save(run, 40)
            push(run, url)
        return enter(store)

    monkeypatch.setattr(remote.RemoteFolder, "__enter__", then_change)
    assert main("verify", [url]) == 0
    assert "checked 3 snapshots" in capsys.readouterr().out


@pytest.mark.parametrize("harm", ["piece damaged", "piece missing", "state damaged"])
def test_a_pull_leaves_out_parts_that_cannot_be_read(run: Path, url: str, place: Path, harm: str) -> None:
    """Parts of the same rank before and after them are pulled."""
    for number in (1, 2, 3):
        push(run, url, f"run@{number}")
    below = place / "bucket/rank-00002"
    with Place(f"{url}/rank-00002") as there:
        entry = state.read(there).shelf("run").entry(1)
        assert entry is not None
    for path in below.joinpath(entry.archive.object).glob("*") if harm != "state damaged" else [below / "head"]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.unlink() if harm == "piece missing" else path.write_bytes(data)
    if harm == "state damaged":
        newest = max(below.joinpath("log").iterdir())
        newest.write_bytes(b"x" * newest.stat().st_size)
    with pytest.raises((lmcstore.DamagedError, lmcstore.NotFoundError), match="rank-00002"):
        lmcstore.pull(url, place / "strict")
    done = lmcstore.pull(url, place / "third", allow_missing=True)
    lost = [1, 2, 3] if harm == "state damaged" else [1]
    with lmcstore.open(place / "third", "r") as store:
        for one in store["run"]:
            if one.number in lost:
                with pytest.raises(lmcstore.NotFoundError, match="rank 2"):
                    one["large"].numpy()
            else:
                assert one["large"].numpy().tobytes() == run_folder.arrays(one.step or 0)["large"].tobytes()
    assert [line.partition(":")[0] for line in done["missing"]] == [f"run@{number}" for number in lost]


def test_damage_and_missing_parts_are_named(
    run: Path, url: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run, url)
    bucket = place / "bucket"
    assert main("ls", [url]) == 0 and "  3  step 30  " in (shown := capsys.readouterr().out)
    assert "1.15 MiB, " in shown  # of all ranks
    assert main("verify", [url]) == 0 and "checked 3 snapshots" in capsys.readouterr().out
    piece = min(bucket.joinpath("rank-00002", "data").rglob("00*"))
    data = bytearray(piece.read_bytes())
    data[len(data) // 2] ^= 1
    piece.write_bytes(data)
    assert main("verify", [url]) == 1
    shown = capsys.readouterr().err
    assert "damaged: run@" in shown and "0): rank 2: run@" in shown and "bucket/rank-00002" in shown
    with pytest.raises(lmcstore.DamagedError, match="rank-00002"):
        lmcstore.pull(url, place / "third")
    shutil.rmtree(bucket / "rank-00001")
    assert main("info", [url]) == 0 and "rank-00001: 0 snapshots, damaged" in capsys.readouterr().out
    assert main("verify", [url]) == 1 and "lacks the part of rank 1" in capsys.readouterr().err
    with pytest.raises(lmcstore.NotFoundError, match="rank-00001"):
        lmcstore.pull(url, place / "fourth")
    with (
        lmcstore.open(url) as store,
        pytest.raises(lmcstore.NotFoundError, match="the part of rank 1, with 'large'"),
    ):
        store["run"][1]["large"].numpy()
