# SPDX-License-Identifier: BSD-3-Clause
"""Runs of many ranks in object stores that lose, exchange or bring back objects, and copies that push or pull them."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
import run_folder
from command import NEEDS_BIN
from lmcstore._folder import remote_pull
from lmcstore._folder.store import open_folder
from lmcstore._remote import late, outline, state, sweep
from lmcstore._remote.command import main
from lmcstore._remote.place import Place
from lmcstore._remote.pull import Puller
from test_cli_remote import cli
from test_remote_ranks import check_url, pulled, push

pytestmark = pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning")
LOCAL = "keep_raw=1 local=last:2"


@pytest.fixture
def place(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Also temporary files, and the user's, go to the folder in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    return place


@pytest.fixture
def url(place: Path) -> str:
    return f"file://{place}/bucket"


def save(folder: Path, *steps: int) -> Path:
    run_folder.save_steps(folder, 2, *steps)
    return folder


def copied(folder: Path, name: str) -> Path:
    made = folder.with_name(name)
    subprocess.run(["cp", "-r", "--sparse=always", folder, made], check=True)
    return made


def replaced(old: Path, new: Path) -> None:
    """Put a copy of a folder in the place of another one."""
    shutil.rmtree(old)
    shutil.copytree(new, old)


# Copies of a folder or a pool


def test_a_copy_that_was_left_behind(place: Path, url: str) -> None:
    stale = copied(save(place / "run", 1, 2, 3), "stale")
    push(save(place / "run", *range(4, 16)), url)
    push(stale, url, mirror=True)  # it has removed nothing
    check_url(url, list(range(1, 16)))
    save(stale, 104)
    for options in ({}, {"mirror": True}, {"repair": True}):
        with pytest.raises(lmcstore.ExistsError, match=r"another run@4 than .*stale: the URL holds another run, or"):
            push(stale, url, **options)
    check_url(url, list(range(1, 16)))
    with lmcstore.open(place / "run", "r+") as store:
        store["run"].remove(2)
    push(place / "run", url, mirror=True)
    check_url(url, [1, *range(3, 16)])


def test_a_copy_of_a_pool_under_another_name(place: Path, url: str) -> None:
    save(place / "run", 1, 2)
    copy = place / "run/rank-00001-copy.pool"
    subprocess.run(["cp", "--sparse=always", place / "run/rank-00001.pool", copy], check=True)
    save(place / "run", 3)
    with lmcstore.open(place / "run", "r") as store:
        assert list(store.info()["ranks"]) == ["rank-00000.pool", "rank-00001.pool", "rank-00001-copy.pool"]
        assert store.verify()["missing"] == []
        assert store.push(url)["snapshots"] == 3
    check_url(url, [1, 2, 3])


# Lost and older sub-runs


@pytest.mark.parametrize("is_old", [False, True])
def test_a_sub_run_that_is_lost_or_older(is_old: bool, place: Path, url: str) -> None:
    """Nothing is sent behind the gap, since the lost parts could not be sent any more."""
    push(save(place / "run", 1, 2), url)
    there = place / "bucket/rank-00001"
    old = copied(there, "old")
    push(save(place / "run", 3, 4), url)
    replaced(there, old) if is_old else shutil.rmtree(there)
    for steps in ((), (5,)):
        save(place / "run", *steps)
        with pytest.raises(lmcstore.DamagedError, match=r"has run@4 without the parts of ranks 1: .*push --repair"):
            push(place / "run", url)
    with pytest.raises(lmcstore.NotFoundError, match=r"lacks the part of rank 1, with .*, in 'rank-00001'"):
        check_url(url, [1, 2, 3, 4])
    assert push(place / "run", url, repair=True)["left"] == []
    check_url(url, [1, 2, 3, 4, 5])


def test_a_sub_run_that_is_lost_with_only_copies(place: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = save(place / "run", 1, 2, 3, 4)
    with lmcstore.open(run, "r+") as store:
        store["run"].policy = LOCAL
    assert push(run, url)["confirmed"] == 2
    shutil.rmtree(place / "bucket/rank-00001")
    with lmcstore.open(run, "r") as store, pytest.raises(lmcstore.NotFoundError) as failure:
        store["run"][1]["large"].numpy()
    assert f"{url}/rank-00001 has lost run@1, which {run}/rank-00001.pool has let go" in str(failure.value)
    done = push(run, url, repair=True)
    assert [one["number"] for one in done["left"]] == [1, 2] and done["repaired"] == 2
    with pytest.raises(lmcstore.NotFoundError, match=r"lacks 2 parts of snapshots: run@1: that of rank 1\. .*--repair"):
        lmcstore.pull(url, place / "third")
    with lmcstore.open(url) as store:
        assert store["run"][4]["large"].numpy().tobytes() == run_folder.arrays(4)["large"].tobytes()
    assert main("verify", [url]) == 1
    shown = capsys.readouterr().err
    assert "run@1 (step 1)" in shown and "run@2 (step 2)" in shown and "run@3" not in shown
    push(save(run, 5), url)


def test_a_run_that_is_lost_with_only_copies(place: Path, url: str) -> None:
    run = save(place / "run", 1, 2, 3, 4)
    with lmcstore.open(run, "r+") as store:
        store["run"].policy = LOCAL
    push(run, url)
    shutil.rmtree(place / "bucket")
    with pytest.raises(lmcstore.RemoteError, match=r"rank-00000 has lost run@1, which .*/rank-00000.pool has let go"):
        push(run, url)


def test_a_lost_sub_run_whose_newest_record_was_removed_here(place: Path, url: str) -> None:
    push(save(place / "run", 1, 2, 3), url)
    with lmcstore.open(place / "run", "r+") as store:
        store["run"].remove(3)
    shutil.rmtree(place / "bucket/rank-00001")
    save(place / "run", 4)
    with pytest.raises(lmcstore.DamagedError, match=r"has run@2 without the parts of ranks 1: "):
        push(place / "run", url)


def test_a_damaged_pool_is_reported_while_a_push_waits(place: Path, url: str, caplog: pytest.LogCaptureFixture) -> None:
    save(place / "run", 1)
    (place / "run/rank-00001.pool").write_bytes(b"no pool" * 1000)
    assert push(place / "run", url, follow=True, timeout=0.1)["waiting"] == ["run@1 waits for 'rank-00001.pool'"]
    lines = [line for line in caplog.messages if "the parts in rank-00001.pool are not sent: " in line]
    assert len(lines) == 1 and str(place / "run/rank-00001.pool") in lines[0]
    with (
        lmcstore.open(place / "run", "r") as store,
        pytest.raises(lmcstore.NotFoundError, match=r"rank-00001.pool, with 'large': it is there, but .*/rank-00001"),
    ):
        store["run"][1]["large"].numpy()


# Damage


@pytest.mark.parametrize("below", ["", "rank-00001"])
def test_a_head_of_another_run_is_not_continued(below: str, place: Path, url: str) -> None:
    """The other run has more commits, and other shelves, so nothing contradicts it."""
    run = save(place / "run", 1, 2)
    push(run, url)
    with lmcstore.open(run, "r+") as store:
        store["run"][1].fork("other")
        store["run"].drop()
    for tag in "abc":
        with lmcstore.open(run, "r") as store:
            store["other"].tag(1, tag)
        push(run, f"{url}2")
    save(run, 3)
    folder = place / "bucket" / below
    shutil.copy(place / "bucket2" / below / "head", folder / "head")
    if below:  # a sub-run has fewer commits
        for commit in sorted(folder.glob("log/*"))[1:]:
            commit.unlink()
    with pytest.raises(lmcstore.DamagedError, match=r"head is of another run than lmc-store.json beside it: delete it"):
        push(run, url)


def pieces(folder: Path) -> list[Path]:
    """Return the objects of data of a run or sub-run, oldest first."""
    return sorted(folder.glob("data/*/*"))


def failure_of(work: Any, *arguments: Any) -> str:
    with pytest.raises(lmcstore.DamagedError) as failure:
        work(*arguments)
    return str(failure.value)


@pytest.mark.parametrize("below", ["", "rank-00000"])
@pytest.mark.parametrize("other", ["rank-00001", "older"])
def test_exchanged_archives(
    below: str, other: str, place: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All errors name the object and the snapshot, and `verify` goes on with the others."""
    monkeypatch.setattr(late, "_LEAST_BYTES", 0)
    for steps in ((1, 2), (3, 4)):
        push(save(place / "run", *steps), url)
    folder, found = place / "bucket" / below, pieces(place / "bucket" / below)
    right = pieces(place / "bucket" / other) if other != "older" else found[:1] * len(found)
    for wrong, new in zip(found, right, strict=False):
        whole = wrong.read_bytes()
        wrong.write_bytes(new.read_bytes())
        if whole == wrong.read_bytes():
            continue
        where = str(wrong.parent.relative_to(folder))
        assert main("verify", [url]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert all(where in line and " (step " in line for line in lines) and len(lines) <= 4
        made = place / "made"
        shutil.rmtree(made, ignore_errors=True)
        try:
            pulled(url, made, [1, 2, 3, 4])
        except lmcstore.DamagedError as error:
            assert where in str(error) and "run@" in str(error) and "push --repair" in str(error)
        text = failure_of(check_url, url, [1, 2, 3, 4])
        assert where in text and "run@" in text
        wrong.write_bytes(whole)
    check_url(url, [1, 2, 3, 4])


def test_an_archive_of_another_pool_leaves_the_pool_as_it_is(place: Path, url: str) -> None:
    """It has the number of the snapshot, so that only its identity tells."""
    save(place / "run", 1)
    push(place / "run", url)
    (old,), (new,) = (pieces(place / "bucket" / name) for name in ("rank-00000", "rank-00001"))
    old.write_bytes(new.read_bytes() + bytes(max(0, old.stat().st_size - new.stat().st_size)))
    text = failure_of(lmcstore.pull, f"{url}/rank-00000", place / "one.pool")
    assert "has another shelf 'run', which was begun in another pool" in text and old.parent.name in text
    with lmcstore.open(place / "one.pool", "r") as store:
        assert store.shelves() == []


def test_a_pool_of_another_run_of_the_same_names(place: Path, url: str) -> None:
    push(save(place / "run", 1, 2), url)
    with lmcstore.open(place / "one.pool", "x") as store:
        store["run"].snapshot({"w": np.zeros(3)}, step=1)
        store["run"].remove(1)
        store["run"].snapshot({"w": np.zeros(3)}, step=1)
        store["run"].remove(2)
    with lmcstore.open(place / "one.pool", "r+") as store:
        store["run"].snapshot({"w": np.zeros(3)}, step=1)
        with pytest.raises(lmcstore.ExistsError, match=r"run@1 of .* can't be added .*: pull into another pool"):
            lmcstore.pull(f"{url}/rank-00000", store)
        assert [one.number for one in store["run"]] == [3]


def test_a_state_whose_object_is_missing_is_not_read_as_another_one(place: Path, url: str) -> None:
    """Its structure is larger than an outline keeps, and is lost, while the outline is there."""
    with lmcstore.open(place / "one.pool", "x") as store:
        store["run"].snapshot({"own": {f"a long name of a value, {n}": 0.5 for n in range(9000)}, "w": np.zeros(9)})
        store.push(url, rate="1MiB")  # in small pieces
    with Place(url) as there:
        archive = state.read(there).shelf("run").newest[0].archive
        found = outline.unpack(b"".join(there.get_ranges(archive.outline_ranges())), "")
        large = max((one for one in found.contents if one.offset), key=lambda one: one.stored)
        lost = {name for name, _, _ in archive.ranges(large.offset, large.span)}
        lost -= {name for name, _, _ in archive.outline_ranges()}
        assert lost
        there.delete(lost)
    with lmcstore.open(url) as store:
        assert store["run"][1].names() == ["w"]
        for read in (list, lmcstore.Snapshot.state_dict):
            with pytest.raises(lmcstore.NotFoundError, match=r"run@1 of .*: there is no such object"):
                read(store["run"][1])


# Pulls beside changes


def test_a_pull_beside_a_removal(place: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    push(save(place / "run", *range(1, 7)), url)
    original, count = Puller._restore, 0

    def restore(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == 3:  # of the records
            with Place(url) as there:
                sweep.remove(there, ["run@2..3"], dry_run=False)
        original(*arguments)

    monkeypatch.setattr(Puller, "_restore", restore)
    pulled(url, place / "third", [1, 4, 5, 6])


def test_a_pull_that_is_repeated_after_a_removal(place: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    push(save(place / "run", *range(1, 7)), url)
    with monkeypatch.context() as patch:
        patch.setattr(remote_pull._Pull, "_restore_rank", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lmcstore.pull(url, place / "third")
    with Place(url) as there:
        sweep.remove(there, ["run@2..3"], dry_run=False)
    pulled(url, place / "third", [1, 4, 5, 6])


def test_a_pull_into_a_run_beside_a_push(place: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the records of the parts that it has pulled."""
    push(save(place / "run", 1, 2), url)
    lmcstore.pull(url, place / "third", "run@1")
    save(place / "run", 3)
    original = remote_pull._Pull._restore_rank

    def restore_rank(pull: remote_pull._Pull, stem: str) -> None:
        original(pull, stem)
        push(place / "run", url)

    monkeypatch.setattr(remote_pull._Pull, "_restore_rank", restore_rank)
    pulled(url, place / "third", [1, 2])
    pulled(url, place / "third", [1, 2, 3])


# Commands and calls that would harm


def test_a_part_is_removed_with_its_snapshot(place: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    push(save(place / "run", 1, 2), url)
    assert main("rm", [f"{url}/rank-00000", "run@1"]) == 2
    assert f"a part of a snapshot of a run of many ranks, which would be lost as a whole: remove that at {url} " in (
        capsys.readouterr().err
    )
    assert main("rm", [f"{url}/rank-00000", "run@1", "--dry-run"]) == 2
    check_url(url, [1, 2])
    assert main("rm", [url, "run@1"]) == 0
    check_url(url, [2])


def test_a_rank_alone_sends_nothing_behind_parts(place: Path, url: str) -> None:
    """A push of the run could not name a part that has come without its record."""
    push(save(place / "run", 1, 2), url)
    save(place / "run", 3)
    rank = place / "run/rank-00001.pool"
    with pytest.raises(lmcstore.ExistsError, match=f"has the parts of a rank: push the folder of the run to {url}, or"):
        push(rank, f"{url}/rank-00001")
    assert push(rank, f"{url}-alone")["snapshots"] == 3
    assert push(place / "run", url)["snapshots"] == 1
    check_url(url, [1, 2, 3])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pull", "URL"), "the following arguments are required: POOL (try"),
        (("pull", "URL", "URL"), "is a URL: pull into a pool or a folder, and push that"),
        (("push", "run"), "the following arguments are required: URL (try"),
        (("ls", "URL", "run@1"), "of a URL, only shelves are listed, not 'run@1'"),
    ],
)
def test_commands_with_wrong_words(
    words: tuple[str, ...], message: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words[0], [url if word == "URL" else word for word in words[1:]]) == 2
    assert message in capsys.readouterr().err


def test_a_pull_into_a_folder_in_use_or_without_a_pool(place: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_folder, "__defaults__", (*(open_folder.__defaults__ or ())[:-2], 0, None))  # no wait
    push(save(place / "run", 1), url)
    code = "import lmcstore, sys; store = lmcstore.open(sys.argv[1], 'r+'); print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, place / "run/records.pool"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None and user.stdout.readline()
        with pytest.raises(lmcstore.InUseError) as failure:
            lmcstore.pull(url, place / "run")
        assert f"in use by process {user.pid}" in str(failure.value) and "records.0.pool" not in str(failure.value)
        user.communicate()
    (place / "run/rank-00001.pool").unlink()
    with pytest.raises(lmcstore.NotFoundError, match=r"lacks 'rank-00001.pool' .* or pull them into a new one"):
        lmcstore.pull(url, place / "run")
    (place / "run/records.pool").unlink()
    with pytest.raises(lmcstore.NotFoundError, match=r"copy records.pool into it, from another machine .* pull makes"):
        lmcstore.pull(url, place / "run")


@NEEDS_BIN
@pytest.mark.usefixtures("report_on_path")
def test_a_report_takes_no_url(url: str) -> None:
    assert "it takes no URL" in cli("report", url, code=2).stderr


def test_records_without_end_take_no_memory() -> None:
    """A server sends an archive that has no payloads."""
    record = struct.pack("<IIQQ", 0x80000002, 1 << 20, 0, 0) + bytes(1 << 20)
    parsing = outline.Parsing()
    parsing.see(struct.pack("<8sIIQQQ", b"LMCSARCH", 1, 0, 0, 0, 0))
    with pytest.raises(lmcstore.UnsupportedError, match="too many for an object store"):
        for _ in range(70):
            parsing.see(record)


def test_a_size_that_a_state_claims_takes_no_memory(place: Path, url: str) -> None:
    push(save(place / "run", 1), url)
    with Place(f"{url}/rank-00000") as there:

        def forge(draft: state.State) -> bool:
            shelf = draft.shelf("run")
            entry = shelf.newest[0]
            size = entry.archive.piece_bytes * 999_999
            archive = entry.archive._replace(bytes=size, outline_offset=size)
            shelf.update({1: entry._replace(archive=archive)})
            return True

        state.change(state.read(there), "0" * 32, forge)
    tracemalloc.start()
    try:
        with pytest.raises(lmcstore.DamagedError, match=r"run@1 of .*rank-00000.* is cut short"):
            lmcstore.pull(url, place / "third")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
