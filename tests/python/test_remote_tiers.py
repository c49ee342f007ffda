# SPDX-License-Identifier: BSD-3-Clause
"""Snapshots that left their pool for a URL: nothing is let go before its copy is verified, and all are still read."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from optional import torch
from same import same
from test_cli_remote import cli
from test_remote_push import Died, Fate, expect, fill, pulled, state_of

pytest.importorskip("obstore")
from lmcstore._remote import confirm, state, sweep
from lmcstore._remote.place import Place
from lmcstore._remote.pull import Puller
from lmcstore._remote.push import Pusher

pytestmark = pytest.mark.usefixtures("remote_on_path")
LOCAL = "keep_raw=1 local=last:3 links=3"


def remote(store: lmcstore.Store) -> list[int]:
    return [snapshot.number for snapshot in store["run"] if snapshot.remote]


def settle(store: lmcstore.Store, url: str, **options: Any) -> dict[str, Any]:
    """Push, and let the pool obey."""
    done = store.push(url, **options)
    store.compact()
    return done


@pytest.fixture(autouse=True)
def _no_files_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found: str = f"file://{tmp_path}/bucket" if request.param == "file" else request.getfixturevalue("bucket")
    return found


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[lmcstore.Store]:
    with lmcstore.open(tmp_path / "run.pool", "x", background=False) as store:
        yield store


@pytest.mark.parametrize("how", ["sample", "all"])
def test_they_go_and_are_read(quiet: lmcstore.Store, url: str, how: str, tmp_path: Path) -> None:
    fill(quiet, 1, 8)
    quiet["run"].tag(2, "best")
    quiet["run"][4].note = "the fourth"
    assert settle(quiet, url)["confirmed"] == 0 and remote(quiet) == []
    quiet["run"].policy = LOCAL
    assert settle(quiet, url, confirm="off")["confirmed"] == 0 and remote(quiet) == []
    before = quiet.info()["live_bytes"]
    assert settle(quiet, url, confirm=how)["confirmed"] == 4
    assert remote(quiet) == [1, 3, 4, 5] and quiet.info()["live_bytes"] < before
    assert quiet.info()["remote_count"] == 4
    report = quiet.verify()
    assert (report["damages"], report["snapshots"], report["remote"]) == (0, 4, 4)
    assert quiet.scrub()["remote"] == 4
    expect(quiet, list(range(1, 9)))
    four = quiet["run"][4]
    assert four.remote == url.rstrip("/") and four.note == "the fourth" and four.metrics == {"loss": 0.25}
    assert np.array_equal(four.rows("w", 10, 20), state_of(4)["w"][10:20]) and four.tags == []
    assert four.storage()["stored_bytes"] == 0 and quiet["run"][8].remote is None
    quiet["run"].tag(4, "late")
    four.metrics["loss"] = 7.0
    target: dict[str, Any] = {name: np.zeros_like(value) for name, value in state_of(4).items()}
    assert four.load_into(target).step == 4 and np.array_equal(target["w"], state_of(4)["w"])
    assert quiet["run"].snapshot(state_of(9), step=9).parent == 4
    assert settle(quiet, url)["confirmed"] == 1 and remote(quiet) == [1, 3, 4, 5, 6]
    with pulled(url, tmp_path) as copy:
        expect(copy, list(range(1, 10)))
        assert copy["run"].tags == {"best": 2, "late": 4} and copy["run"][4].metrics == {"loss": 7.0}


@pytest.mark.parametrize(
    ("change", "when"),
    [
        ("deleted", (confirm.Confirmer, "sound")),
        ("replaced", (confirm.Confirmer, "sound")),
        ("deleted", (Pusher, "_agree")),
        ("replaced", (Pusher, "_agree")),
        ("deleted", (Pusher, "_commit")),
    ],
)
def test_a_run_that_is_deleted_while_it_is_pushed(
    quiet: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, when: tuple[Any, str]
) -> None:
    """The push fails, and nothing leaves the pool for a run that is gone."""
    url, other, bucket = f"file://{tmp_path}/bucket", f"file://{tmp_path}/other", tmp_path / "bucket"
    fill(quiet, 1, 7)
    quiet["run"].policy = LOCAL
    quiet.push(other, confirm="off")
    quiet.push(url, confirm="off")
    fill(quiet, 8, 8)
    before = getattr(*when)

    def then(*arguments: Any, **options: Any) -> Any:
        shutil.rmtree(bucket)
        if change == "replaced":
            shutil.copytree(tmp_path / "other", bucket)
        return before(*arguments, **options)

    with monkeypatch.context() as changes, pytest.raises(lmcstore.RemoteError, match="deleted or replaced at"):
        changes.setattr(*when, then)
        quiet.push(url)
    quiet.compact()
    assert remote(quiet) == []
    expect(quiet, list(range(1, 9)))
    if when[1] == "_commit":  # the commit landed after the deletion
        with pytest.raises(lmcstore.RemoteError, match="empty URL"):
            quiet.push(url)
        shutil.rmtree(bucket)
    assert settle(quiet, url)["confirmed"] == 5


def test_a_push_that_follows_looks_for_objects_again(quiet: lmcstore.Store, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL
    quiet.push(url, confirm="off")
    with Place(url) as place:
        now, one = state.read(place), confirm.Confirmer(quiet, place, whole=False)
        shelf = now.shelf("run")
        assert one._is_sound(shelf, 1)
        for path in (tmp_path / "bucket/data").glob("*/0*"):
            path.unlink()
        one._begun -= confirm.LOOK_AGAIN_S + 1
        one.candidates("run", True)
        with pytest.raises(lmcstore.NotFoundError):
            one._is_sound(shelf, 1)
        one.close()


def test_what_needs_them_here_is_refused(quiet: lmcstore.Store, url: str, tmp_path: Path) -> None:
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL
    settle(quiet, url)
    assert remote(quiet) == [1, 2, 3, 4, 5]
    with open(tmp_path / "archive", "wb") as file, pytest.raises(lmcstore.RemoteError, match=r"lmc-store pull"):
        quiet.dump(file)
    with open(tmp_path / "archive", "wb") as file:
        assert quiet.dump(file, "run@6..")["snapshots"] == 3
    with pytest.raises(lmcstore.RemoteError):
        quiet["run"][3].fork("fork")
    with pytest.raises(lmcstore.RemoteError, match="run@1 is remote"):
        quiet.push(f"file://{tmp_path}/another")
    for before, after in ((3, 8), (8, 3), (2, 3)):
        found = quiet["run"][before].diff(quiet["run"][after])
        assert {one.name for one in found} == {"w", "step"}, (before, after)
    quiet["run"][3].export(tmp_path / "three.safetensors")
    handle = quiet["run"][6]
    assert np.array_equal(handle["same"], state_of(6)["same"])


def test_only_urls_that_the_user_has_named_are_contacted(
    quiet: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of another user names a URL, also with that user's note beside it."""
    url = f"file://{tmp_path}/bucket"
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL
    settle(quiet, url)
    settle(quiet, url)
    assert (tmp_path / "state/lmc-store/urls").read_text() == f"{url}\n"
    expect(quiet, list(range(1, 9)))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))

    def read(is_allowed: bool, **options: Any) -> None:
        with monkeypatch.context() as patch, lmcstore.open(quiet.path, "r", **options) as store:
            for one in (store, pickle.loads(pickle.dumps(store))):
                if is_allowed:
                    expect(one, list(range(1, 9)))
                    continue
                patch.setattr("lmcstore._remote.pool.RemotePool", None)
                with pytest.raises(lmcstore.RemoteError, match="You have not named this URL"):
                    one["run"][1].state_dict()
                with pytest.raises(lmcstore.RemoteError, match="You have not named this URL"):
                    one["run"][2].diff(one["run"][8])

    read(False)
    read(False, remote=[f"{url}2", url[:-1]])
    for remote in (True, url, f"file://{tmp_path}/", ["s3://other", f"{url}/"]):
        read(True, remote=remote)
    monkeypatch.setenv("LMC_STORE_REMOTE", f"s3://other {url}")
    read(True)
    read(False, remote=False)
    monkeypatch.setenv("LMC_STORE_REMOTE", "")
    assert lmcstore.pull(url, quiet, "run@3")["snapshots"] == 1
    wrong: Any = 7
    with pytest.raises(lmcstore.UnsupportedError, match="remote must be"):
        lmcstore.open(quiet.path, "r", remote=wrong)


def test_a_url_leads_nowhere_else(quiet: lmcstore.Store, tmp_path: Path) -> None:
    """A stranger's pool names a URL below a trusted one that leads out of it."""
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL
    quiet._pool.safe("run", 1, 5, quiet._pool.info()["epoch"], f"file://{tmp_path}/trusted/%2e%2e/other")
    quiet.compact()
    assert remote(quiet) == [1, 2, 3, 4, 5]
    with lmcstore.open(tmp_path / "other.pool", "x", background=False) as other:
        fill(other, 1, 8)
        other.push(f"file://{tmp_path}/other")
    trusted = f"file://{tmp_path}/trusted"
    with lmcstore.open(quiet.path, "r", remote=trusted) as store, pytest.raises(lmcstore.InvalidError, match="path"):
        store["run"][1].state_dict()


def test_a_run_that_is_gone(quiet: lmcstore.Store, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL
    settle(quiet, url)
    assert remote(quiet) == [1, 2, 3, 4, 5]
    (tmp_path / "bucket").rename(tmp_path / "moved")
    with pytest.raises(lmcstore.NotFoundError, match="no run of lmc-store at"):
        quiet["run"][1].state_dict()
    with pytest.raises(lmcstore.RemoteError, match="is not at"):
        quiet["run"][1].diff(quiet["run"][2])
    (tmp_path / "moved").rename(tmp_path / "bucket")
    expect(quiet, list(range(1, 9)))


def test_handles_stay_when_later_ones_have_left(quiet: lmcstore.Store, url: str) -> None:
    """The state of the run is read anew, for a snapshot that it lacks, or an object that is gone."""
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL
    settle(quiet, url)
    first, third = quiet["run"][1], quiet["run"][3]
    assert np.array_equal(first["w"], state_of(1)["w"]) and np.array_equal(third["same"], state_of(3)["same"])
    fill(quiet, 9, 12)
    settle(quiet, url)
    assert np.array_equal(quiet["run"][9]["w"], state_of(9)["w"])
    assert np.array_equal(first["same"], state_of(1)["same"])
    fill(quiet, 13, 16)
    settle(quiet, url)
    assert {one.name for one in quiet["run"][2].diff(quiet["run"][13])} == {"w", "step"}
    with Place(url) as place:
        entry = state.read(place).shelf("run").entry(3)
        assert entry is not None
        moved = entry.archive._replace(object=entry.archive.object[:-4] + "0000")
        for old, new in zip(sorted(entry.archive.objects()), sorted(moved.objects()), strict=True):
            place.put(new, place.get(old))

        def move(draft: state.State) -> bool:
            shelf = draft.shelf("run")
            shelf.update(
                {
                    one.number: one._replace(archive=one.archive._replace(object=moved.object))
                    for one in shelf.entries()
                    if one.archive.object == entry.archive.object
                }
            )
            return True

        state.change(state.read(place), "0" * 31 + "1", move)
        place.delete(entry.archive.objects())
    quiet._remotes[url.rstrip("/")]._cache._outlines.clear()
    assert np.array_equal(third["w"], state_of(3)["w"])


def test_a_damaged_only_copy_is_named_by_a_repair(quiet: lmcstore.Store, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    for number in (1, 2, 3, 4, 5):
        fill(quiet, number, number)
        quiet.push(url)
    quiet["run"].policy = LOCAL
    settle(quiet, url)
    assert remote(quiet) == [1, 2]
    with Place(url) as place:
        first, *_, last = state.read(place).shelf("run").entries()
        for entry in (first, last):
            place.delete(entry.archive.objects())
    done = quiet.push(url, repair=True)
    assert [one["number"] for one in done["left"]] == [1, 2] and done["repaired"] > 0
    with lmcstore.open(url) as there:
        assert np.array_equal(there["run"][5]["w"], state_of(5)["w"])


def test_pull_brings_them_back(quiet: lmcstore.Store, url: str) -> None:
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL
    settle(quiet, url)
    quiet["run"].tag(3, "mine")
    done = lmcstore.pull(url, quiet, "run@3")
    assert done["snapshots"] == 1 and remote(quiet) == [1, 2, 4, 5]  # its bases went again
    assert quiet["run"].tags == {"mine": 3}
    settle(quiet, url)
    assert remote(quiet) == [1, 2, 4, 5]
    del quiet["run"].tags["mine"]
    quiet["run"].policy = "local=all"
    assert lmcstore.pull(url, quiet)["snapshots"] == 4 and remote(quiet) == []
    expect(quiet, list(range(1, 9)))
    assert settle(quiet, url)["confirmed"] == 0


def test_a_pull_leaves_notes_of_the_pool(quiet: lmcstore.Store, url: str, tmp_path: Path) -> None:
    """Notes and metrics of the run are those of snapshots that the pool did not have."""
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL
    settle(quiet, url)
    for number in (2, 7):
        quiet["run"][number].note = f"mine of {number}"
        quiet["run"][number].metrics["loss"] = 0.125
    assert lmcstore.pull(url, quiet) == {"snapshots": 5, "snapshots_skipped": 3} | {
        "bytes": sum(entry.archive.bytes for entry in state.read(Place(url)).shelf("run").entries(1, 5))
    }
    assert remote(quiet) == []
    assert {one.number: one.note for one in quiet["run"] if one.note} == {2: "mine of 2", 7: "mine of 7"}
    assert [one.number for one in quiet["run"] if one.metrics == {"loss": 0.125}] == [2, 7, 8]
    quiet.push(url)
    with pulled(url, tmp_path, "run@1..3") as copy:
        assert [one.note for one in copy["run"]] == [None, "mine of 2", None]
        copy["run"][1].note = "of the copy"
        lmcstore.pull(url, copy)
        assert [one.note for one in copy["run"]][:3] == ["of the copy", "mine of 2", None]
        assert copy["run"][7].note == "mine of 7" and copy["run"][7].metrics == {"loss": 0.125}


def test_notes_of_a_pull_that_dies(quiet: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has restored has the notes of the run, though the next pull leaves it out."""
    url = f"file://{tmp_path}/bucket"
    fill(quiet, 1, 4)
    quiet.push(url)
    for snapshot in quiet["run"]:
        snapshot.note = f"mine of {snapshot.number}"
    quiet.push(url)
    restored = Puller._restore

    def restore(puller: Puller, shelf: state.Shelf, group: Any, ahead: Any) -> None:
        if group[-1][0].number == 3:
            raise Died
        restored(puller, shelf, group, ahead)

    with lmcstore.open(tmp_path / "copy.pool", "x") as copy:
        with monkeypatch.context() as patch:
            patch.setattr(Puller, "_restore", restore)
            with pytest.raises(Died):
                lmcstore.pull(url, copy)
        assert lmcstore.pull(url, copy)["snapshots_skipped"] == 2
        assert [one.note for one in copy["run"]] == [f"mine of {number}" for number in (1, 2, 3, 4)]


def test_a_pull_that_dies(quiet: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/bucket"
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL
    settle(quiet, url)
    fate = Fate(monkeypatch)
    for at in range(1, 100):
        fate.count, fate.dies_at = 0, at
        try:
            lmcstore.pull(url, quiet, "run@4")
            break
        except Died:
            assert quiet.verify()["damages"] == 0 and len(quiet["run"]) == 8
    fate.dies_at = 1 << 60
    assert at > 5 and 4 not in remote(quiet)
    expect(quiet, list(range(1, 9)))
    settle(quiet, url)
    assert remote(quiet) == [1, 2, 3, 4, 5]
    expect(quiet, list(range(1, 9)))


def test_links_keep_their_bases(tmp_path: Path, url: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 200)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    states = {}
    with lmcstore.open(tmp_path / "run.pool", "x", background=False) as store:
        shelf = store["run"]
        for step in range(1, 13):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape).bfloat16().float()
            optimizer.step()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            states[step] = shelf.snapshot(state, step=step).state_dict()
            shelf.policy = "write=link keep_raw=1 links=6 local=last:2"
            settle(store, url)
        assert remote(store) == list(range(1, 11))
        assert shelf[12].storage()["link_contents"] > 0
        for step, expected in states.items():
            same(shelf[step].state_dict(), expected)
        assert store.verify()["damages"] == 0


def test_nothing_goes_without_a_sound_copy(
    quiet: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, bucket = f"file://{tmp_path}/bucket", tmp_path / "bucket"
    fill(quiet, 1, 8)
    quiet.push(url)
    quiet["run"].policy = LOCAL
    pieces = sorted((bucket / "data").rglob("*"))
    piece = next(path for path in pieces if path.is_file())
    whole = piece.read_bytes()
    piece.unlink()
    with pytest.raises(lmcstore.NotFoundError):
        settle(quiet, url)
    assert remote(quiet) == []
    for place in (200, len(whole) // 2):
        data = bytearray(whole)
        for at in range(place, len(whole), 512):
            data[at] ^= 1
        piece.write_bytes(data)
        with pytest.raises(lmcstore.DamagedError):
            settle(quiet, url, confirm="all")
        assert remote(quiet) == []
    piece.write_bytes(whole)
    # Another snapshot of the number
    monkeypatch.setattr(confirm, "_is_copy", lambda entry, info: True)
    quiet["run"].remove(2)
    with Place(url) as place, pytest.raises(lmcstore.RemoteError):
        sweep.remove(place, ["run@2"], dry_run=False)
    assert settle(quiet, url)["confirmed"] == 4 and remote(quiet) == [1, 3, 4, 5]


def test_a_long_backlog_goes(quiet: lmcstore.Store, tmp_path: Path) -> None:
    quiet["run"].policy = LOCAL
    for step in range(100):
        quiet["run"].snapshot({"w": np.full(8, step)}, step=step)
    assert settle(quiet, f"file://{tmp_path}/bucket")["confirmed"] == 97
    assert quiet.info()["remote_count"] == 97 and quiet.verify()["damages"] == 0


def test_requests_name_no_other_snapshots(quiet: lmcstore.Store) -> None:
    fill(quiet, 1, 9)
    quiet["run"].remove(8)
    with Place("memory://runs") as place:
        confirmer = confirm.Confirmer(quiet, place, whole=False)
        assert list(confirmer._runs("run", {1, 2, 4, 5, 7, 9})) == [(1, 2), (4, 5), (7, 9)]
        assert list(confirmer._runs("run", set())) == []


def test_the_url_keeps_what_may_be_the_only_copy(quiet: lmcstore.Store, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL + " keep=last:4 grace=none"
    settle(quiet, url)
    assert remote(quiet) == [5]  # rules come first
    with pytest.raises(lmcstore.RemoteError, match="only copy"), Place(url) as place:
        sweep.remove(place, ["run@5"], dry_run=False)
    assert np.array_equal(quiet["run"][5]["w"], state_of(5)["w"])
    quiet["run"].remove(5)
    settle(quiet, url, mirror=True)
    with Place(url) as place:
        assert [entry.number for entry in state.read(place).shelf("run").entries() if not entry.hidden] == [6, 7, 8]


def test_a_prune_elsewhere_by_other_rules(quiet: lmcstore.Store, tmp_path: Path) -> None:
    fill(quiet, 1, 8)
    quiet["run"].policy = LOCAL
    settle(quiet, f"file://{tmp_path}/bucket")

    def rules(draft: state.State) -> bool:
        shelf = draft.shelf("run")
        shelf.policy = shelf.policy.replace("keep=all", "keep=last:2")
        return True

    with Place(f"file://{tmp_path}/bucket") as place:
        state.change(state.read(place), "0" * 32, rules)
        for force, left in ((False, [1, 2, 3, 4, 5, 7, 8]), (True, [7, 8])):
            sweep.prune(place, (), lambda path: lmcstore.open(path, "x"), dry_run=False, force=force)
            entries = state.read(place).shelf("run").entries()
            assert [entry.number for entry in entries if not entry.hidden] == left


def test_a_pusher_and_a_trainer_that_die(tmp_path: Path) -> None:
    url, pool = f"file://{tmp_path}/bucket", tmp_path / "run.pool"
    with lmcstore.open(pool, "x") as store:
        store["run"].policy = LOCAL
        fill(store, 1, 2)
    context = multiprocessing.get_context("spawn")
    for round in range(4):
        pusher = context.Process(target=_follow, args=(str(pool), url))
        trainer = context.Process(target=_train, args=(str(pool), 3 + 4 * round))
        pusher.start()
        trainer.start()
        trainer.join(120)
        time.sleep(0.3 * round)
        for process in (pusher, trainer):
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        with lmcstore.open(pool, "r+") as store:
            expect(store, [snapshot.number for snapshot in store["run"]])
    with lmcstore.open(pool, "r+") as store:
        settle(store, url)
        count = len(store["run"])
        assert count == 18 and remote(store) == list(range(1, count - 2))
        expect(store, list(range(1, count + 1)))


def _follow(pool: str, url: str) -> None:
    with lmcstore.open(pool, "r") as store:
        store.push(url, follow=True)


def _train(pool: str, first: int) -> None:
    with lmcstore.open(pool, "r+") as store:
        fill(store, first, first + 3)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGKILL)


def test_beside_a_trainer(tmp_path: Path) -> None:
    url, pool = f"file://{tmp_path}/bucket", tmp_path / "run.pool"
    with lmcstore.open(pool, "x") as store, lmcstore.open(pool, "r") as _:
        store["run"].policy = LOCAL
        stopped = threading.Event()

        def follow() -> None:
            while not stopped.is_set():
                cli("push", str(pool), url)

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            fill(store, 1, 12)
            end = time.monotonic() + 120
            while remote(store) != list(range(1, 10)) and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            stopped.set()
            thread.join()
        assert remote(store) == list(range(1, 10))
        expect(store, list(range(1, 13)))


def test_commands(tmp_path: Path) -> None:
    url, pool = f"file://{tmp_path}/bucket", str(tmp_path / "run.pool")
    with lmcstore.open(pool, "x", background=False) as store:
        fill(store, 1, 6)
        store["run"].policy = LOCAL
    assert "confirmed 3 snapshots" in cli("push", pool, url).stdout
    assert cli("ls", pool).stdout.count(" remote ") == 3
    assert f"at {url}" in cli("log", pool).stdout
    assert "; 3 remote" in cli("info", pool).stdout and "; 3 remote" in cli("verify", pool).stdout
    rows = json.loads(cli("ls", pool, "--json").stdout)["shelves"][0]["snapshots"]
    assert [row["remote"] for row in rows] == [url] * 3 + [None] * 3
    refused = cli("dump", pool, "-o", str(tmp_path / "archive"), code=1)
    assert url in refused.stderr and "lmc-store pull" in refused.stderr
    assert "only copy" in cli("rm", url, "run@1", code=1).stderr
    cli("pull", url, pool, "run@1..3")
    assert cli("ls", pool).stdout.count(" remote ") == 0
