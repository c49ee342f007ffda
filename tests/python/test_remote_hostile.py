# SPDX-License-Identifier: BSD-3-Clause
"""Runs in object stores that a stranger has written."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore._remote import codec, outline, state, sweep
from lmcstore._remote.confirm import Confirmer
from lmcstore._remote.place import Place
from lmcstore._remote.pool import RemoteHandle
from lmcstore._remote.push import Pusher
from lmcstore._remote.upload import Upload
from test_remote_push import fill, state_of


def push_more(store: lmcstore.Store, url: str, addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Push run@2 with an archive that has more."""

    def dump(self: Pusher, _: str, older: object, sink: Any, *more: object, **options: object) -> outline.Outline:
        parsing = outline.Parsing()

        def write(data: memoryview) -> None:
            parsing.see(data)
            sink(data)

        store._pool.dump(write, addresses, (), False, False, False, None)
        return parsing.end()

    with monkeypatch.context() as patch:
        patch.setattr(Pusher, "dump", dump)
        store.push(url, "run@2")


@pytest.mark.parametrize("addresses", [("run@2", "mine@2"), ("mine@2",), ("run",), ("run@1",)])
def test_a_pull_changes_no_other_shelf(
    addresses: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/bucket"
    with lmcstore.open(tmp_path / "mine.pool", "x") as store:
        fill(store, 1, 1, "mine")
        with (tmp_path / "mine.lmcs").open("wb") as file:
            store.dump(file)
    with lmcstore.open(tmp_path / "hostile.pool", "x") as store:
        with (tmp_path / "mine.lmcs").open("rb") as file:
            store.restore(file)
        store["mine"].snapshot({"w": np.zeros(4)}, step=2, tags=["best"])
        fill(store, 1, 2)
        push_more(store, url, addresses, monkeypatch)
    with lmcstore.open(tmp_path / "mine.pool", "r+") as store:
        with pytest.raises(lmcstore.DamagedError, match=r"run@2 of .*: its archive, .*, has another (shelf|snapshot)"):
            lmcstore.pull(url, store)
        assert store.shelves() == ["mine"] and len(store["mine"]) == 1 and store["mine"].tags == {}


@pytest.mark.parametrize("is_new", [False, True])
def test_a_run_of_the_same_identity_with_other_contents(is_new: bool, tmp_path: Path) -> None:
    """A stranger has a copy of the pool, and gives other contents the number and the time of its snapshot."""
    url, mine, other = f"file://{tmp_path}/bucket", tmp_path / "mine.pool", tmp_path / "other.pool"
    with lmcstore.open(mine, "x", background=False) as store:
        fill(store, 1, 2)
    subprocess.run(["cp", "--sparse=always", mine, other], check=True)
    with lmcstore.open(mine, "r+", background=False) as store:
        fill(store, 3, 3)
        time_ns = store._pool.find("run", "3", False).info()["time_ns"]
        digests = [one.digest for one in store["run"]]
    with lmcstore.open(other, "r+", background=False) as store:
        forged = {name: value + 1 for name, value in state_of(3).items()}
        if not is_new:
            store._pool.begin("run").commit(3, 0, time_ns, (), (), (), None, 0)
        else:
            store["run"].snapshot(forged, step=3)
            store["run"].snapshot(forged | {"step": state_of(4)["step"]}, step=4)
        store.push(url)
    with Place(url) as place:

        def forge(draft: state.State) -> bool:
            there = draft.shelf("run")
            entry = there.entry(3)
            assert entry is not None
            there.update({3: entry._replace(time_ns=time_ns)})
            return True

        state.change(state.read(place), codec.UNKNOWN, forge)
    with lmcstore.open(mine, "r+", background=False) as store:
        if is_new:
            with pytest.raises(lmcstore.Error, match="run@4"):
                lmcstore.pull(url, store)
        else:
            assert lmcstore.pull(url, store)["snapshots"] == 0
            with Place(url) as place, pytest.raises(lmcstore.DamagedError, match="is not the snapshot"):
                Confirmer(store, place, whole=False)._is_sound(state.read(place).shelf("run"), 3)
        assert [one.digest for one in store["run"]] == digests and store.verify()["damages"] == 0


def age(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - 5 * 86400,) * 2)


def test_a_sweep_deletes_only_its_own_objects(tmp_path: Path) -> None:
    url, home = f"file://{tmp_path}/bucket", tmp_path / "home"
    with lmcstore.open(tmp_path / "run.pool", "x") as store:
        fill(store, 1, 2)
        store.push(url)
    (tmp_path / "bucket/data").rename(home)
    (home / "thesis").write_text("of years")
    age(tmp_path)
    (tmp_path / "bucket/data").symlink_to(home)
    with Place(url) as place:
        with pytest.raises(lmcstore.InvalidError, match="data is a symbolic link"):
            sweep.remove(place, ["run@1"], dry_run=False)
        (tmp_path / "bucket/data").unlink()
        home.rename(tmp_path / "bucket/data")
        sweep.remove(place, ["run@2"], dry_run=False)
    assert (tmp_path / "bucket/data/thesis").read_text() == "of years"


def test_a_rank_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/rank-00000").symlink_to(tmp_path)
    with Place(f"file://{tmp_path}/bucket") as place, pytest.raises(lmcstore.InvalidError, match="symbolic link"):
        place.below("rank-00000")
    for change in (lambda one: one.put("rank-00000/head", b""), lambda one: one.delete(["rank-00000/head"])):
        with Place(f"file://{tmp_path}/bucket") as place, pytest.raises(lmcstore.InvalidError, match="symbolic link"):
            change(place)


def test_a_cache_keeps_runs_apart(tmp_path: Path) -> None:
    """An outline is found by its place: another run can claim any id."""
    urls = [f"file://{tmp_path}/{name}" for name in ("own", "hostile")]
    for url, value in zip(urls, (1.0, 2.0), strict=True):
        with lmcstore.open(f"{tmp_path}/{value}.pool", "x") as store:
            store["run"].snapshot({"rate": value})
            store.push(url)
    with Place(urls[0]) as place:
        own = state.read(place).shelf("run").newest[0].archive
    with Place(urls[1]) as place:
        entry = state.read(place).shelf("run").newest[0]
        found = outline.unpack(b"".join(place.get_ranges(entry.archive.outline_ranges())), "")
        data = found.runs[-1][1]
        found.runs[-1] = found.runs[-1][0], data[:-16] + bytes.fromhex(own.id)[::-1]
        packed = found.packed()
        name = "data/" + "9" * 20 + "-" + "a" * 16
        place.put(f"{name}/000000", b"".join(place.get_ranges(entry.archive.ranges())) + packed)
        forged = codec.Archive(name, 0, own.bytes, codec.PIECE_BYTES, entry.archive.bytes, len(packed), own.id)

        def forge(draft: state.State) -> bool:
            draft.shelf("run").update({1: entry._replace(archive=forged)})
            return True

        state.change(state.read(place), "0" * 32, forge)
    for url, value in ((urls[1], 2.0), (urls[0], 1.0)):
        with lmcstore.open(url, cache=tmp_path / "cache") as store:
            assert store["run"].latest.state_dict() == {"rate": value}


@pytest.mark.parametrize("name", ["head", "log/0000000000000002", "data"])
def test_a_pipe_in_a_folder_does_not_hang(name: str, tmp_path: Path) -> None:
    with lmcstore.open(tmp_path / "run.pool", "x") as store:
        fill(store, 1, 1)
        store.push(f"file://{tmp_path}/bucket")
    for path in [*(tmp_path / "bucket" / name).rglob("0*"), tmp_path / "bucket" / name]:
        if not path.is_dir():
            path.unlink(missing_ok=True)
            os.mkfifo(path)
    if name == "head":  # the log is read
        assert lmcstore.pull(f"file://{tmp_path}/bucket", tmp_path / "new.pool")["snapshots"] == 1
    else:
        with pytest.raises(lmcstore.DamagedError, match="it is no file"):
            lmcstore.pull(f"file://{tmp_path}/bucket", tmp_path / "new.pool")


@pytest.mark.parametrize("scheme", ["http", "HTTPS"])
def test_a_pool_names_no_server(scheme: str, tmp_path: Path) -> None:
    """No push writes to such a URL, but a stranger's pool could name any server that the user reaches."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}/run"
        with lmcstore.open(tmp_path / "run.pool", "x", background=False) as store:
            fill(store, 1, 4)
            store["run"].policy = "keep_raw=1 local=last:2"
            store._pool.safe("run", 1, 2, store._pool.info()["epoch"], url)
            store.compact()
            assert store["run"][1].remote == url
            for read in (store["run"][1].state_dict, lambda: store["run"][1].diff(store["run"][4])):
                with pytest.raises(lmcstore.RemoteError, match="no push goes there"):
                    read()
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("text", [b"[]", b"{}", b"\xff", b'{"metrics": {"a": "b"}, "meta": {}}', b"[" * 100_000])
def test_metadata_that_is_none(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics that are too many for the state are in an attachment, which may hold anything."""
    metrics = {f"metric {i} {'x' * 100}": 1.0 for i in range(200)}
    url = f"file://{tmp_path}/bucket"
    with lmcstore.open(tmp_path / "run.pool", "x") as store:
        store["run"].snapshot({"w": np.zeros(4)}, metrics=metrics)
        store.push(url)
    with lmcstore.open(url) as store:
        assert store["run"].latest.metrics == metrics
    monkeypatch.setattr(RemoteHandle, "_read", lambda *_: {"lmcstore.meta": (None, text)})
    with lmcstore.open(url) as store, pytest.raises(lmcstore.DamagedError, match=r"run@1 of .* its metadata"):
        store["run"].latest.metrics  # noqa: B018


def test_a_server_that_has_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "exists", lambda *_: True)
    with Place(f"file://{tmp_path}/bucket") as place, pytest.raises(lmcstore.DamagedError, match="every object exists"):
        state.read(place)


def test_a_failure_keeps_no_memory_of_the_store(
    store: lmcstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Upload, data: memoryview) -> None:
        raise KeyError(len(data))

    fill(store, 1, 1)
    monkeypatch.setattr(Upload, "write", fail)
    with pytest.raises(KeyError) as failure:
        store.push(f"file://{tmp_path}/bucket")
    kept = [entry.frame.f_locals.get("data") for entry in failure.traceback]
    views = [one for one in kept if isinstance(one, memoryview)]
    assert views
    for view in views:
        with pytest.raises(ValueError, match="released"):
            bytes(view)
