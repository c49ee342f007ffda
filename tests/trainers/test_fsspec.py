# SPDX-License-Identifier: BSD-3-Clause
"""``lmc://``: fsspec's own tests, and what a pool adds to them: whole files, whole moves, several processes."""

from __future__ import annotations

import doctest
import errno
import gzip
import io
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.tests.abstract as abstract
import lmcstore
import lmcstore.fsspec as module
import pytest
from lmcstore.fsspec import StoreFileSystem


@pytest.fixture
def pool() -> Iterator[str]:
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lmcs-test-", dir=where) as made:
        yield f"{made}/files.pool"


@pytest.fixture
def fs() -> StoreFileSystem:
    return StoreFileSystem(wait=20.0)


class StoreFixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self) -> StoreFileSystem:
        return fsspec.filesystem("lmc")

    @pytest.fixture
    def fs_path(self, pool: str) -> str:
        return f"{pool}/tests"


class TestCopy(abstract.AbstractCopyTests, StoreFixtures):
    pass


class TestGet(abstract.AbstractGetTests, StoreFixtures):
    pass


class TestPut(abstract.AbstractPutTests, StoreFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, StoreFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, StoreFixtures):
    pass


# Files


def test_a_url_is_enough(pool: str) -> None:
    url = f"lmc://{pool}/step-10/a.txt"
    with fsspec.open(url, "w") as file:
        file.write("hello")
    with fsspec.open(url, "r") as file:
        assert file.read() == "hello"
    assert fsspec.filesystem("lmc").ls(f"lmc://{pool}/step-10", detail=False) == [f"{pool}/step-10/a.txt"]
    with lmcstore.open(pool, "r") as store:
        assert list(store) == ["/step-10/", "/step-10/a.txt"]
        assert bytes(store["/step-10/a.txt"][-1]["data"].numpy()) == b"hello"


def test_a_run_in_an_object_store_is_no_pool() -> None:
    with pytest.raises(ValueError, match="lmc-store pull makes a pool"):
        fsspec.open("lmc://s3://bucket/run.pool/file", "w").open()


def test_files_are_read_and_written_anywhere(fs: StoreFileSystem, pool: str) -> None:
    path = f"{pool}/a"
    data = os.urandom(3 << 20)
    with fs.open(path, "wb") as file:
        assert file.write(data) == len(data) and file.tell() == len(data)
        file.seek(5)
        file.write(b"xyz")
        os.fsync(file.fileno())
        assert not fs.exists(path)
    data = data[:5] + b"xyz" + data[8:]
    with fs.open(path, "rb") as file:
        assert file.size == len(data) and file.read() == data
        file.seek(-4, io.SEEK_END)
        assert file.tell() == len(data) - 4 and file.read(10) == data[-4:] and file.read() == b""
        file.seek(7)
        file.seek(1, io.SEEK_CUR)
        assert file.read(4) == data[8:12]
        with pytest.raises(OSError):
            file.seek(-1)
    with fs.open(path, "ab") as file:
        file.write(b"end")
    with fs.open(path, "r+b") as file:
        file.write(b"begin")
    assert fs.cat_file(path) == b"begin" + data[5:] + b"end"
    assert fs.cat_file(path, 2, 7) == b"gin" + data[5:7] and fs.tail(path, 3) == b"end"
    assert fs.info(path)["size"] == len(data) + 3 and fs.created(path) > 1e9
    with fs.open(path, "wb"):
        pass
    assert fs.cat_file(path) == b"" and fs.size(path) == 0
    with lmcstore.open(pool, "r") as store:
        assert len(store["/a"]) == 1  # of the file's versions only the last is kept


def test_a_file_is_stored_whole_or_not_at_all(fs: StoreFileSystem, pool: str, monkeypatch: Any) -> None:
    path = f"{pool}/a"
    fs.pipe_file(path, b"old")
    with pytest.raises(ZeroDivisionError), fs.open(path, "wb") as file:
        file.write(b"new")
        raise ZeroDivisionError
    dropped = fs.open(path, "wb")
    dropped.write(b"new")
    del dropped
    assert fs.cat_file(path) == b"old"

    def fail(*arguments: Any) -> int:
        raise lmcstore.FullError("full")

    file = fs.open(path, "wb")
    file.write(b"new")
    monkeypatch.setattr(module._Files, "_commit", fail)
    with pytest.raises(lmcstore.FullError):
        file.close()
    monkeypatch.undo()
    assert file.closed and fs.cat_file(path) == b"old"


@pytest.mark.parametrize("compression", [None, "gzip", "bz2", "xz", "zip"])
@pytest.mark.parametrize("mode", ["wb", "w"])
def test_text_and_compressed_files(
    fs: StoreFileSystem, pool: str, mode: str, compression: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path, content = f"{pool}/a", b"old" if mode == "wb" else "old"
    with fs.open(path, mode, compression=compression) as file:
        file.write(content)
    with fs.open(path, mode.replace("w", "r"), compression=compression) as file:
        assert file.read() == content
    stored = fs.cat_file(path)
    with pytest.raises(ZeroDivisionError), fs.open(path, mode, compression=compression) as file:
        file.write(content * 2)
        raise ZeroDivisionError
    with fs.transaction:
        kept = fs.open(path, mode, compression=compression)
        kept.write(content * 2)
    assert caplog.text.count("was not closed") == 1
    caplog.clear()
    dropped = fs.open(path, mode, compression=compression)
    dropped.write(content * 2)
    del dropped
    assert caplog.text.count("was not closed") == 1
    assert fs.cat_file(path) == stored
    with fs.open(f"{path}.gz", mode, compression="infer") as file:
        file.write(content)
    assert gzip.decompress(fs.cat_file(f"{path}.gz")) == b"old"


def test_files_that_cannot_be_opened(fs: StoreFileSystem, pool: str, caplog: pytest.LogCaptureFixture) -> None:
    fs.pipe_file(f"{pool}/a", b"old")
    for wrong in ({"mode": "w", "encoding": "none"}, {"mode": "wb", "compression": "none"}):
        with pytest.raises((LookupError, ValueError)), fs.transaction:
            fs.open(f"{pool}/a", **wrong)
    assert fs.cat_file(f"{pool}/a") == b"old" and not caplog.text


def test_a_codec_that_fails_stores_nothing(fs: StoreFileSystem, pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fs.pipe_file(f"{pool}/a", b"old")
    file = fs.open(f"{pool}/a", "wb", compression="gzip")
    file.write(b"new")

    def fail() -> None:
        raise MemoryError

    monkeypatch.setattr(file._codec, "close", fail)
    with pytest.raises(MemoryError):
        file.close()
    assert file.closed and fs.cat_file(f"{pool}/a") == b"old"


def test_readers_keep_what_they_have_opened(fs: StoreFileSystem, pool: str) -> None:
    path = f"{pool}/a"
    data = os.urandom(5 << 20)
    fs.pipe_file(path, data)
    with fs.open(path, "rb") as file:
        fs.pipe_file(path, bytes(5 << 20))
        fs.rm(path)
        fs.pipe_file(f"{pool}/b", bytes(5 << 20))
        assert file.read() == data


def test_transactions(fs: StoreFileSystem, pool: str) -> None:
    with fs.transaction:
        for name in "ab":
            with fs.open(f"{pool}/{name}", "wb") as file:
                file.write(name.encode())
        assert not fs.exists(f"{pool}/a")
    assert fs.cat([f"{pool}/a", f"{pool}/b"]) == {f"{pool}/a": b"a", f"{pool}/b": b"b"}
    with pytest.raises(ZeroDivisionError), fs.transaction:
        fs.pipe_file(f"{pool}/a", b"new")
        raise ZeroDivisionError
    assert fs.cat_file(f"{pool}/a") == b"a"


def test_strange_names(fs: StoreFileSystem, pool: str) -> None:
    names = ["a@b", "100%", "%40", "ä ö", "tab\there", "line\nbreak", "\udc80", "-", "..a", "nbsp\xa0", "a@b.d"]
    for number, name in enumerate(names):
        fs.pipe_file(f"{pool}/{name}", str(number).encode())
    assert sorted(fs.ls(pool, detail=False)) == sorted(f"{pool}/{name}" for name in names)
    for number, name in enumerate(names):
        assert fs.cat_file(f"{pool}/{name}") == str(number).encode()
    fs.pipe_file(f"{pool}/x/../y//z", b"1")
    assert fs.cat_file(f"{pool}/y/z") == b"1"
    with pytest.raises(lmcstore.InvalidError):
        fs.pipe_file(f"{pool}/{'x' * 2000}", b"")


# Directories


def test_directories(fs: StoreFileSystem, pool: str) -> None:
    top = f"{pool}/a"
    fs.makedirs(f"{top}/b/c")
    fs.makedirs(f"{top}/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs(f"{top}/b")
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{pool}/x/y", create_parents=False)
    fs.pipe_file(f"{top}/b/file", b"12")
    fs.pipe_file(f"{top}/implied/file", b"3")
    assert fs.ls(top) == [
        {"name": f"{top}/b", "size": 0, "type": "directory"},
        {"name": f"{top}/implied", "size": 0, "type": "directory"},
    ]
    assert fs.find(top) == [f"{top}/b/file", f"{top}/implied/file"] and fs.du(top) == 3
    assert fs.glob(f"{pool}/*/b/f*") == [f"{top}/b/file"]
    assert fs.isdir(pool) and fs.isdir(f"{top}/implied") and fs.isfile(f"{top}/b/file") and not fs.exists(f"{top}/z")
    with pytest.raises(OSError) as full:
        fs.rmdir(f"{top}/b")
    assert full.value.errno == errno.ENOTEMPTY
    fs.rmdir(f"{top}/b/c")
    assert fs.ls(f"{top}/b", detail=False) == [f"{top}/b/file"]
    for call in (lambda: fs.open(top, "wb"), lambda: fs.rm_file(top), lambda: fs.open(top, "rb")):
        with pytest.raises(IsADirectoryError):
            call()
    with pytest.raises(NotADirectoryError):
        fs.pipe_file(f"{top}/b/file/below", b"")
    with pytest.raises(NotADirectoryError):
        fs.makedirs(f"{top}/b/file/below")
    fs.rm(top, recursive=True)
    assert fs.ls(pool) == []
    with pytest.raises(FileNotFoundError):
        fs.rm(top, recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.ls(top)


def test_moves(fs: StoreFileSystem, pool: str) -> None:
    fs.pipe({f"{pool}/tmp/a": b"a", f"{pool}/tmp/deep/b": b"b", f"{pool}/file": b"old"})
    fs.mv(f"{pool}/tmp", f"{pool}/final")
    assert fs.find(pool) == [f"{pool}/file", f"{pool}/final/a", f"{pool}/final/deep/b"] and not fs.exists(f"{pool}/tmp")
    fs.rename(f"{pool}/final/a", f"{pool}/file")
    assert fs.cat_file(f"{pool}/file") == b"a" and not fs.exists(f"{pool}/final/a")
    fs.mv(f"{pool}/file", f"{pool}/final")
    assert fs.find(pool) == [f"{pool}/final/deep/b", f"{pool}/final/file"]
    for old, new, error in (
        ("final", "final/deep/more", OSError),
        ("none", "other", FileNotFoundError),
        ("final/deep", "final/file", FileExistsError),
    ):
        with pytest.raises(error):
            fs.mv(f"{pool}/{old}", f"{pool}/{new}")
    fs.mv(f"{pool}/final/file", f"{pool}/final/file")
    other = f"{os.path.dirname(pool)}/other.pool"
    fs.mv(f"{pool}/final", f"{other}/moved")
    assert fs.find(other) == [f"{other}/moved/deep/b", f"{other}/moved/file"] and fs.find(pool) == []


class _Stopping:
    """A pool whose process ends after some removals and renames."""

    def __init__(self, pool: Any, left: int) -> None:
        self._pool = pool
        self._left = left

    def __getattr__(self, name: str) -> Any:
        if name in ("drop", "rename"):
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        return getattr(self._pool, name)


@pytest.mark.parametrize("target", ["new", None])
def test_a_move_that_was_begun_is_seen_whole(fs: StoreFileSystem, pool: str, target: str | None) -> None:
    files = {"old/a": b"1", "old/b/c": b"2", "other": b"3"}
    moved = {name.replace("old", target or ""): data for name, data in files.items() if target or name == "other"}
    for left in range(5):
        fs.pipe({f"{pool}/{name}": data for name, data in files.items()})
        if target:
            fs.makedirs(f"{pool}/{target}", exist_ok=True)
        with fs._writing(f"{pool}/x") as (opened, _):
            broken = module._Files(_Stopping(opened.pool, left))  # type: ignore[arg-type]
            try:
                broken.move("/old", target and f"/{target}")
            except KeyboardInterrupt:
                pass
        after = {f"{pool}/{name}": data for name, data in moved.items()}
        assert {path: fs.cat_file(path) for path in fs.find(pool)} == after
        assert not fs.exists(f"{pool}/old") and not fs.exists(f"{pool}/old/a")
        fs.pipe_file(f"{pool}/other", b"3")  # ends the move
        assert {path: fs.cat_file(path) for path in fs.find(pool)} == after
        with lmcstore.open(pool, "r") as store:
            assert len(store["//move"]) == 1 and store["//move"][-1].meta == {"move": None}
        fs.rm(pool, recursive=True)


def test_a_file_is_moved_over_another_one_at_once(fs: StoreFileSystem, pool: str) -> None:
    for left in range(4):
        fs.pipe({f"{pool}/tmp": b"new", f"{pool}/file": b"old"})
        with fs._writing(f"{pool}/x") as (opened, _):
            try:
                module._Files(_Stopping(opened.pool, left)).move("/tmp", "/file")  # type: ignore[arg-type]
            except KeyboardInterrupt:
                pass
        assert fs.find(pool) == [f"{pool}/file"] and fs.cat_file(f"{pool}/file") == b"new"


# Paths and processes


def test_paths_name_a_pool(fs: StoreFileSystem, pool: str, tmp_path: Path) -> None:
    for path in (f"{tmp_path}/run/step-10/a", "/", str(tmp_path)):
        assert not fs.exists(path)
        with pytest.raises(FileNotFoundError, match="names no pool"):
            fs.open(path, "wb")
    with pytest.raises(FileNotFoundError):
        fs.open(f"{pool}/a")
    assert not os.path.exists(pool)
    deep = f"{tmp_path}/some/folders/run.pool"
    with pytest.warns(lmcstore.CreationWarning, match="there is no pool"):
        fs.makedirs(f"{deep}/a")
    lmcstore.open(f"{tmp_path}/plain", "x").close()  # without .pool
    fs.pipe_file(f"{tmp_path}/plain/a", b"1")
    with lmcstore.open(f"{tmp_path}/plain", "r+") as store:  # this process has it open
        store["run"].snapshot({"a": 1})
        fs.pipe_file(f"{tmp_path}/plain/b", b"2")
        assert fs.ls(f"{tmp_path}/plain", detail=False) == [f"{tmp_path}/plain/a", f"{tmp_path}/plain/b"]
    assert pickle.loads(pickle.dumps(fs))._wait == 20.0


def test_a_pool_may_be_in_use(fs: StoreFileSystem, pool: str) -> None:
    fs.pipe_file(f"{pool}/a", b"1")
    context = multiprocessing.get_context("spawn")
    ready, hold = context.Event(), context.Event()
    child = context.Process(target=_hold, args=(pool, ready, hold))
    child.start()
    assert ready.wait(60)
    try:
        assert fs.cat_file(f"{pool}/a") == b"1"
        with pytest.raises(lmcstore.InUseError):
            StoreFileSystem(wait=0.1).pipe_file(f"{pool}/a", b"2")
        threading.Timer(0.3, hold.set).start()
        fs.pipe_file(f"{pool}/a", b"3")
        assert fs.cat_file(f"{pool}/a") == b"3"
    finally:
        hold.set()
        child.join()


def _hold(pool: str, ready: Any, hold: Any) -> None:
    with lmcstore.open(pool, "r+"):
        ready.set()
        hold.wait(60)


def _write_many(pool: str, number: int, count: int) -> None:
    fs = StoreFileSystem(wait=60.0)
    for index in range(count):
        fs.pipe_file(f"{pool}/{number}/tmp", bytes([index % 256]) * 100_000)
        fs.mv(f"{pool}/{number}/tmp", f"{pool}/{number}/file")
        fs.pipe_file(f"{pool}/{number}-{index}", bytes([index % 256]) * 1000)


def test_processes_and_threads_write(fs: StoreFileSystem, pool: str) -> None:
    fs.makedirs(pool)
    context = multiprocessing.get_context("spawn")
    workers: list[Any] = [context.Process(target=_write_many, args=(pool, number, 20)) for number in range(3)]
    workers += [threading.Thread(target=_write_many, args=(pool, number, 20)) for number in range(3, 6)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        for path in fs.find(pool):
            assert path.endswith("/tmp") or fs.exists(path)  # so "file", which each move replaces
    assert all(worker.exitcode == 0 for worker in workers[:3])
    for number in range(6):
        assert fs.cat_file(f"{pool}/{number}/file") == bytes([19]) * 100_000
    assert len(fs.ls(pool)) == 6 * 21


def _write_until_killed(pool: str) -> None:
    _write_many(pool, 0, 10_000)


def test_killed_writers_leave_whole_files(fs: StoreFileSystem, pool: str) -> None:
    fs.makedirs(pool)
    context = multiprocessing.get_context("forkserver")
    for round in range(6):
        child = context.Process(target=_write_until_killed, args=(pool,))
        child.start()
        path = f"{pool}/0-{round}"
        while not fs.exists(path):
            assert child.is_alive()
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        for path in fs.find(pool):
            size = 1000 if "-" in os.path.basename(path) else 100_000
            data = fs.cat_file(path)
            assert len(data) == size and data == data[:1] * size


# torch.distributed.checkpoint


def _save_on_rank(rank: int, world: int, pool: str, store: str) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for step in (1, 2):
        state = {f"rank {rank}": torch.full((1000,), float(step)), "step": step}
        dcp.save(state, checkpoint_id=f"lmc://{pool}/checkpoints/step-1")  # again into the same place
        dcp.save(state, checkpoint_id=f"lmc://{pool}/checkpoints/step-1{step}")
    dist.destroy_process_group()


def test_dcp_saves_by_a_url(fs: StoreFileSystem, pool: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_save_on_rank, args=(rank, 3, pool, f"{tmp_path}/store")) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
        assert rank.exitcode == 0
    top = f"{pool}/checkpoints"
    assert fs.ls(top, detail=False) == [f"{top}/step-1", f"{top}/step-11", f"{top}/step-12"]
    assert len(fs.ls(f"{top}/step-12")) == 4
    for name, step in (("step-1", 2), ("step-11", 1), ("step-12", 2)):
        into: dict[str, Any] = {**{f"rank {rank}": torch.zeros(1000) for rank in range(3)}, "step": 0}
        dcp.load(into, checkpoint_id=f"lmc://{top}/{name}", no_dist=True)
        assert all(bool((into[f"rank {rank}"] == step).all()) for rank in range(3)) and into["step"] == step


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "python" / "trainers" / "FSSPEC.md"
    assert doctest.testfile(str(page), module_relative=False, optionflags=doctest.FAIL_FAST).failed == 0
