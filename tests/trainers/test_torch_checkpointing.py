# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints of torch_checkpointing in a pool."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import killed
import pytest
import torch
from lmcstore.torch_checkpointing import StoreStorage, StoreStorageConfig
from torch_checkpointing import CheckpointManager, ItemSpec
from torch_checkpointing.config import AsyncCheckpointSaverConfig, SyncCheckpointSaverConfig
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.storage.base_storage import ReadArgs


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return tmp_path / "run.pool"


@pytest.fixture
def storage() -> StoreStorage:
    return StoreStorageConfig(wait=20).create_storage()


def manager_of(save: Any = None, **options: Any) -> CheckpointManager:
    return CheckpointManager.Config(
        save=save or SyncCheckpointSaverConfig(), storage_config=StoreStorageConfig(), **options
    ).build()


def a_state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3).to(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 6, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


@pytest.mark.parametrize("save", [SyncCheckpointSaverConfig, AsyncCheckpointSaverConfig])
def test_a_checkpoint_is_loaded_as_it_was_saved(pool: Path, save: Any, storage: StoreStorage) -> None:
    manager, state = manager_of(save()), a_state()
    for step in (1, 2):
        future = manager.save(str(pool / f"step-{step}"), state | {"step": step})
        if future is not None:
            future.result()
    assert sorted(storage.ls(pool)) == ["step-1", "step-2"]
    loaded = manager.load(pool / "step-2", into=dict.fromkeys(state))
    assert same(dict(loaded), state | {"step": 2})
    with pytest.raises(FileNotFoundError):
        manager.load(pool / "step-3", into=dict.fromkeys(state))
    manager.close()


@pytest.mark.parametrize("mmap", [False, True])
def test_a_resharder_loads_in_place(pool: Path, mmap: bool) -> None:
    items = {"model": ItemSpec(resharder=DefaultResharder())}
    manager = manager_of(items=items)
    manager._config.load.use_mmap = mmap
    state = {"model": a_state()["model"]}
    manager.save(str(pool / "step-1"), state)
    target = {"model": {name: torch.zeros_like(value) for name, value in state["model"].items()}}
    loaded = manager.load(pool / "step-1", into=target)
    assert same(dict(loaded), state)


def test_an_existing_checkpoint_is_not_overwritten(pool: Path) -> None:
    manager = manager_of()
    manager.save(str(pool / "step-1"), {"step": 1})
    with pytest.raises(OSError, match="not empty"):
        manager.save(str(pool / "step-1"), {"step": 2})
    assert manager.load(pool / "step-1", into={"step": None}) == {"step": 1}


def put(storage: StoreStorage, path: Path, kind: str) -> None:
    if kind == "file":
        storage.write(path, b"before")
    elif kind != "absent":
        storage.mkdir(path)
        if kind == "populated":
            storage.write(path / "old", b"before")


@pytest.mark.parametrize(
    ("source", "target", "works"),
    [
        ("populated", "absent", True),
        ("populated", "empty", True),
        ("populated", "populated", False),
        ("populated", "file", False),
        ("file", "absent", True),
        ("file", "file", True),
        ("file", "empty", False),
        ("file", "populated", False),
    ],
)
def test_the_table_of_rename(storage: StoreStorage, pool: Path, source: str, target: str, works: bool) -> None:
    put(storage, pool / "b", target)
    put(storage, pool / "a", source)
    if source == "file":
        storage.write(pool / "a", b"new")
    if not works:
        with pytest.raises(OSError):
            storage.rename(pool / "a", pool / "b", is_directory=source != "file")
        assert storage.exists(pool / "a")
        return
    storage.rename(pool / "a", pool / "b", is_directory=source != "file")
    assert not storage.exists(pool / "a")
    if source == "file":
        assert storage.read(pool / "b") == b"new"
    else:
        assert storage.ls(pool / "b") == ["old"] and storage.read(pool / "b" / "old") == b"before"


def test_the_calls_of_a_storage(storage: StoreStorage, pool: Path) -> None:
    directory, file = pool / "d" / "e", pool / "d" / "e" / "f"
    storage.mkdir(directory)
    storage.mkdir(directory)
    with pytest.raises(FileExistsError):
        storage.mkdir(directory, recursive=False)
    storage.write(file, memoryview(b"0123456789"))
    assert storage.getsize(file) == 10 and storage.exists(file) and not storage.isdir(file)
    assert storage.isdir(directory) and storage.ls(directory) == ["f"] and storage.glob(f"{directory}/*") == [str(file)]
    for options in (None, ReadArgs(pre_read_full_file=False), ReadArgs(direct_io=True)):
        with storage.stream_read(file, options) as stream:
            buffer = bytearray(4)
            assert stream.seek(3) == 3 and stream.readinto(buffer) == 4 and buffer == b"3456"
    assert storage.remap_path(file) == f"lmc://{file}"
    with pytest.raises(RuntimeError), storage.stream_write(file) as stream:
        stream.write(b"half")
        raise RuntimeError
    assert storage.read(file) == b"0123456789"
    for call in (storage.read, storage.getsize, storage.delete, storage.ls, storage.rmdir):
        with pytest.raises(FileNotFoundError):
            call(pool / "none")
    for call in (storage.ls, storage.rmdir):
        with pytest.raises(NotADirectoryError):
            call(file)
    with pytest.raises(OSError) as failure:
        storage.rename(file, pool.parent / "other.pool" / "f")
    assert failure.value.errno == errno.EXDEV
    with pytest.raises(OSError):
        storage.rename(directory, directory / "inside")
    with pytest.raises(FileNotFoundError):
        storage.rename(pool / "none", pool / "new")
    storage.delete(file)
    storage.write(file, b"")
    storage.rmdir(pool / "d")
    assert not storage.exists(directory) and storage.ls(pool) == []


def _write(pool: Path, name: str) -> None:
    storage = StoreStorageConfig().create_storage()
    for number in range(5):
        storage.write(pool / f"{name}-{number}", name.encode() * 1000)


@pytest.mark.deep
def test_processes_write_beside_each_other(storage: StoreStorage, pool: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write, args=(pool, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert len(storage.ls(pool)) == 10 and storage.read(pool / "b-4") == b"b" * 1000


def _save_all(pool: Path) -> None:
    manager = manager_of()
    for step in range(1000):
        manager.save(str(pool / f"step-{step}"), {"model": {"weight": torch.full((1000,), float(step))}, "step": step})


def test_a_killed_save_leaves_whole_checkpoints(storage: StoreStorage, pool: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_save_all, args=(pool,))
    process.start()
    while process.is_alive() and not (pool.exists() and storage.exists(pool / "step-2")):
        process.join(0.2)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    manager = manager_of()
    names = [name for name in storage.ls(pool) if name.startswith("step-")]
    assert len(names) >= 3
    for name in names:
        loaded = manager.load(pool / name, into={"model": None, "step": None})
        assert (loaded["model"]["weight"] == loaded["step"]).all() and name == f"step-{loaded['step']}"
    manager.save(str(pool / "after"), {"step": -1})


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    killed.run_page("TORCH_CHECKPOINTING.md")


@pytest.mark.deep
def test_the_example_is_killed_and_resumed(tmp_path: Path) -> None:
    once = killed.output("torch_checkpointing_train.py", tmp_path / "once.pool")
    killed.kill_after("step 3", "torch_checkpointing_train.py", tmp_path / "twice.pool")
    twice = killed.output("torch_checkpointing_train.py", tmp_path / "twice.pool")
    assert twice[0] in ("resuming at step 3", "resuming at step 4")
    assert twice[1:] == once[-len(twice) + 1 :]
