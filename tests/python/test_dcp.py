# SPDX-License-Identifier: BSD-3-Clause
"""torch.distributed.checkpoint with StoreWriter and StoreReader, and the folder of a run read as one store."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import pickle
import shutil
import subprocess
import tempfile
import warnings
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmcstore
import pytest
from optional import torch
from same import same
from test_scrub import damage

torch.Tensor  # noqa: B018 (skips without torch)

import dcp_ranks as ranks  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from lmcstore._folder import writing  # noqa: E402
from lmcstore.dcp import StoreReader, StoreWriter  # noqa: E402
from torch.distributed.checkpoint.default_planner import (  # noqa: E402
    DefaultLoadPlanner,
    DefaultSavePlanner,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def _save(folder: Path, state: dict[str, Any], **options: Any) -> None:
    dcp.save(state, storage_writer=StoreWriter(folder, **options))


# Many ranks


def _save_steps(rank: int, world: int, folder: Path, *steps: int) -> None:
    for step in steps:
        _save(folder, ranks.state_of(world, step), step=step)


def _load_all(rank: int, world: int, folder: Path, step: int) -> None:
    mesh = ranks.init_device_mesh("cpu", (world,))
    for placement in ranks.PLACES.values():
        state = ranks.state_of(world, 100)
        state["model"] = ranks.sharded(mesh, dict.fromkeys(ranks.PLACES, placement), 100)
        dcp.load(state, storage_reader=StoreReader(folder, step=step))
        for name, tensors in state["model"].items():
            state["model"][name] = {shape: tensor.full_tensor() for shape, tensor in tensors.items()}
        same(state, ranks.expected(step))


def test_a_run_of_four_ranks_is_loaded_on_three_and_read_in_one_process(
    folder: Path,
) -> None:
    ranks.run(4, _save_steps, folder, 1, 2)
    ranks.run(3, _load_all, folder, 1)
    with lmcstore.open(folder, mode="r") as run:
        assert [snapshot.step for snapshot in run["run"]] == [1, 2]
        for step in (1, 2):
            same(run["run"].at(step=step).state_dict(), ranks.expected(step))
        names = run["run"][2].names()
        assert "model.columns.odd" in names and len(names) == 3 * len(ranks.SHAPES) + 1
        report = run.verify()
        assert report["snapshots"] == 2 and report["damages"] == 0 and not report["missing"]
    assert ranks.numbers_of(folder) == {
        name: [1, 2]
        for name in (
            "rank-00000.pool",
            "rank-00001.pool",
            "rank-00002.pool",
            "rank-00003.pool",
            "records.pool",
        )
    }


def _save_cached(rank: int, world: int, folder: Path) -> None:
    for step in (1, 2, 3):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(
            ranks.state_of(world, step),
            storage_writer=StoreWriter(folder, step=step),
            planner=planner,
        )


def test_planners_may_cache_their_plans(folder: Path) -> None:
    ranks.run(2, _save_cached, folder)
    with lmcstore.open(folder) as run:
        for step in (1, 2, 3):
            same(run["run"].at(step=step).state_dict(), ranks.expected(step))


def _shard_twice(rank: int, world: int, folder: Path) -> None:
    """Load ShardedTensors, of several shards a rank, as others, into one folder."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import (
        ChunkShardingSpec,
        EnumerableShardingSpec,
        ShardMetadata,
    )

    bounds = [0, 2, 3, 6, 9, 10]
    pieces = [
        ShardMetadata([first, 0], [last - first, 4], f"rank:{index % 2}")
        for index, (first, last) in enumerate(itertools.pairwise(bounds))
    ]
    specs = [
        ChunkShardingSpec(0, ["rank:0", "rank:1"]),
        ChunkShardingSpec(0, ["rank:0", "rank:1", "rank:1", "rank:0"]),
        EnumerableShardingSpec(pieces),
    ]
    for step, (before, after) in enumerate(itertools.permutations(specs, 2)):
        saved, loaded = (sharded_tensor.zeros(spec, 10, 4) for spec in (before, after))
        for shard in saved.local_shards():
            shard.tensor.copy_(ranks.whole((10, 4), step)[shard.metadata.shard_offsets[0] :][: len(shard.tensor)])
        _save(folder, {"t": saved}, step=step)
        dcp.load({"t": loaded}, storage_reader=StoreReader(folder))
        for shard in loaded.local_shards():
            expected = ranks.whole((10, 4), step)[shard.metadata.shard_offsets[0] :][: len(shard.tensor)]
            assert torch.equal(shard.tensor, expected)


def test_ranks_may_have_several_shards_of_a_tensor(folder: Path) -> None:
    ranks.run(2, _shard_twice, folder)
    with lmcstore.open(folder) as run:
        assert len(run["run"]) == 6
        for snapshot in run["run"]:
            assert torch.equal(snapshot["t"].torch(), ranks.whole((10, 4), snapshot.step or 0))


class _Failing(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        raise OSError("no such medium")


def _fail_once(rank: int, world: int, folder: Path) -> str:
    _save(folder, ranks.state_of(world, 1), step=1)
    planner = _Failing() if rank == 1 else DefaultSavePlanner()
    message = ""
    try:
        dcp.save(
            ranks.state_of(world, 2),
            storage_writer=StoreWriter(folder, step=2),
            planner=planner,
        )
    except dcp.CheckpointException as error:
        message = str(error)
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == [1]
        same(run["run"][1].state_dict(), ranks.expected(1))
    _save(folder, ranks.state_of(world, 3), step=3)
    return message


def test_the_error_of_a_rank_fails_the_save_and_the_next_one_works(
    folder: Path,
) -> None:
    assert all("no such medium" in message for message in ranks.run(2, _fail_once, folder))
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == [1, 3]
        same(run["run"].at(step=3).state_dict(), ranks.expected(3))
    assert ranks.numbers_of(folder) == {
        "rank-00000.pool": [1, 3],
        "rank-00001.pool": [1, 2],
        "records.pool": [1, 2],
    }


def test_a_save_removes_parts_of_records_that_a_policy_has_removed(folder: Path) -> None:
    ranks.run(2, _save_steps, folder, 1, 2, 3)
    with lmcstore.open(folder, mode="r+") as run:
        run["run"].policy = "keep=last:2 budget=1K grace=none"
    ranks.run(2, _save_steps, folder, 4, 5, 6, 7)
    with lmcstore.open(folder, mode="r") as run:
        assert [snapshot.step for snapshot in run["run"]] == [6, 7] and not run.verify()["missing"]
    found = ranks.numbers_of(folder)
    assert found["rank-00000.pool"] == [5, 6, 7] and found["rank-00001.pool"][0] >= 5  # 5 goes with the next save
    for step in (8, 9):
        _save(folder, {"w": torch.ones(3)}, step=step)
    assert ranks.numbers_of(folder)["rank-00001.pool"] == []  # of a rank that the job lacks


class _OlderWriter(StoreWriter):
    """Gets what older versions of torch pass."""

    def set_up_storage_writer(self, is_coordinator: bool) -> None:  # type: ignore[override]
        super().set_up_storage_writer(is_coordinator)


def _save_older(rank: int, world: int, folder: Path) -> None:
    dcp.save(ranks.state_of(world, 1), storage_writer=_OlderWriter(folder, step=1))
    _load_all(rank, world, folder, 1)


def test_the_coordinator_says_which_rank_is_which(folder: Path) -> None:
    ranks.run(2, _save_older, folder)
    assert ranks.numbers_of(folder) == {"rank-00000.pool": [1], "rank-00001.pool": [1], "records.pool": [1]}


def test_a_failure_after_the_record_fails_no_save(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: Any) -> Any:
        raise lmcstore.FullError("no space")

    commit = writing.RankWriter.commit

    def commit_into_full_pool(rank: Any, part: Any) -> None:
        rank._store = SimpleNamespace(_pool=SimpleNamespace(resolve=full))
        commit(rank, part)

    with monkeypatch.context() as patched:
        patched.setattr(writing.RankWriter, "commit", commit_into_full_pool)
        _save(folder, {"w": torch.ones(3)}, step=1)
    assert f"{folder}: the snapshot is saved, but: no space" in caplog.text
    StoreWriter(folder).close()
    assert ranks.numbers_of(folder)["rank-00000.pool"] == [1]
    with lmcstore.open(folder / "rank-00005.pool", "x"):
        pass
    settle = writing.settle

    def fail(pool: Any, *arguments: Any) -> None:
        if "00005" in pool.info()["path"]:
            full()
        settle(pool, *arguments)

    monkeypatch.setattr(writing, "settle", fail)
    _save(folder, {"w": torch.ones(3)}, step=2)
    assert f"{folder / 'rank-00005.pool'}: undecided and removed snapshots may be left: no space" in caplog.text
    assert ranks.numbers_of(folder)["rank-00000.pool"] == [1, 2]


def _save_killed(rank: int, world: int, folder: Path, killed: int, method: str) -> None:
    _save(folder, ranks.state_of(world, 1), step=1)
    if rank == killed:
        ranks.kill_after(method, writing.Records if method == "commit" else writing.RankWriter)
    else:
        ranks.leave_prepared()
    _save(folder, ranks.state_of(world, 2), step=2)


def _save_left(rank: int, world: int, folder: Path) -> None:
    ranks.leave_prepared()
    _save(folder, ranks.state_of(world, 2), step=2)


@pytest.mark.parametrize("killed", [0, 3])
def test_a_save_of_which_a_rank_is_killed_does_not_exist(folder: Path, killed: int) -> None:
    ranks.run(4, _save_killed, folder, killed, "prepare", killed=(killed,))
    with lmcstore.open(folder, mode="r") as run:
        assert len(run["run"]) == 1
        same(run["run"].latest.state_dict(), ranks.expected(1))  # type: ignore[union-attr]
    ranks.run(3, _save_steps, folder, 3)
    with lmcstore.open(folder, mode="r") as run:
        assert [snapshot.step for snapshot in run["run"]] == [1, 3]
        same(run["run"].at(step=3).state_dict(), ranks.expected(3))
    left = ranks.numbers_of(folder)
    assert left["rank-00003.pool"] == [1] and left["rank-00001.pool"] == [1, 3]


def test_a_save_exists_once_its_record_is_durable(folder: Path) -> None:
    ranks.run(3, _save_killed, folder, 0, "commit", killed=(0,))
    with lmcstore.open(folder, mode="r") as run:
        for step in (1, 2):
            same(run["run"].at(step=step).state_dict(), ranks.expected(step))
        assert not run.verify()["missing"]
    for rank, committed in enumerate((1, 0, 0)):  # the others are prepared, and were read so
        with lmcstore.open(folder / f"rank-{rank:05d}.pool", "r") as pool:
            assert len(pool["run"]) == committed
            assert sorted(number for _, _, number in pool._pool.groups()) == [1, 2][committed:]
    ranks.run(2, _save_steps, folder, 3)
    with lmcstore.open(folder, mode="r") as run:
        assert [snapshot.step for snapshot in run["run"]] == [1, 2, 3]
        same(run["run"].at(step=2).state_dict(), ranks.expected(2))
    assert ranks.numbers_of(folder)["rank-00002.pool"] == [1, 2]


def _save_apart(rank: int, world: int, folders: list[Path]) -> str:
    with pytest.raises(dcp.CheckpointException, match="needs all ranks on one machine") as caught:
        _save(folders[rank], ranks.state_of(world, 3), step=3)
    return str(caught.value)


def test_ranks_on_two_machines_are_refused(folder: Path) -> None:
    """The folder of the other machine has older records; its rank prepared a part that has a record by now."""
    other = folder.with_name("other")
    ranks.run(2, _save_apart, [folder, other])
    assert not other.exists()
    ranks.run(2, _save_steps, folder, 1)
    other.mkdir()
    subprocess.run(["cp", "--sparse=always", folder / "records.pool", other], check=True)
    ranks.run(2, _save_left, folder)
    (folder / "rank-00001.pool").rename(other / "rank-00001.pool")
    ranks.run(2, _save_apart, [folder, other])
    (other / "rank-00001.pool").rename(folder / "rank-00001.pool")
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == [1, 2]
        same(run["run"].at(step=2).state_dict(), ranks.expected(2))
        assert not run.verify()["missing"]


def test_a_look_for_the_coordinator_keeps_no_writer_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save(folder, {"weight": torch.ones(3)}, step=1)
    StoreWriter(folder).close()
    close, opened = os.close, []

    def close_later(file: int) -> None:
        if not opened:
            opened.append("begins")
            lmcstore.open(folder / "records.pool", "r+", wait=0).close()
            opened.append("done")
        close(file)

    with monkeypatch.context() as patched:
        patched.setattr(writing.os, "close", close_later)
        with pytest.raises(lmcstore.UnsupportedError, match="no coordinator writes"):
            writing.RankWriter(str(folder), 1)
    assert opened == ["begins", "done"]


def test_only_the_coordinator_counts_as_one(folder: Path) -> None:
    """Not another writer of the records, nor a child of an earlier coordinator."""
    _save(folder, {"weight": torch.ones(3)}, step=1)
    ended, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ended, 1)
        os._exit(0)
    StoreWriter(folder).close()
    with (
        lmcstore.open(folder / "records.pool", "r+", wait=0),
        pytest.raises(lmcstore.UnsupportedError, match="no coordinator writes"),
    ):
        writing.RankWriter(str(folder), 1)
    os.close(end)
    os.close(ended)
    assert os.waitpid(child, 0)[1] == 0
    _save(folder, {"weight": torch.ones(3)}, step=2)


# Reading


@pytest.fixture(scope="module")
def saved() -> Iterator[Path]:
    """A run of two ranks, with one snapshot."""
    with tempfile.TemporaryDirectory(prefix="lmcs-test-") as made:
        ranks.run(2, _save_steps, Path(made, "run"), 5)
        yield Path(made, "run")


def test_parts_of_tensors_are_read(saved: Path) -> None:
    with lmcstore.open(saved) as run:
        snapshot = run["run"].latest
        assert snapshot is not None
        for place in ranks.PLACES:
            for name, shape in ranks.SHAPES.items():
                lazy, tensor = snapshot[("model", place, name)], ranks.whole(shape, 5)
                assert lazy.shape == tensor.shape and lazy.dtype == tensor.dtype
                assert torch.equal(lazy.torch(), tensor) and (lazy.numpy() == tensor.numpy()).all()
                assert torch.equal(lazy[1:4], tensor[1:4]) and torch.equal(lazy[-1:, 1:], tensor[-1:, 1:])
                assert torch.equal(snapshot.rows(f"model.{place}.{name}", 0, 3), tensor[:3])
        assert snapshot["scalar"].torch() == 5 and snapshot["config.lr"] == 0.5 and snapshot["step"] == 5
        assert list(snapshot) == ["model", "scalar", "step", "config"]
        assert dict(snapshot.tensors("model.rows.*")).keys() == {f"model.rows.{name}" for name in ranks.SHAPES}
        targets = {name: torch.zeros(shape) for name, shape in ranks.SHAPES.items()}
        snapshot.load_into({"model": {"columns": targets}}, strict=False)
        same(targets, ranks.expected(5)["model"]["columns"])


def test_replicated_tensors_are_stored_once(saved: Path) -> None:
    with lmcstore.open(saved) as run:
        stored = {entry["name"]: entry["stored_bytes"] for entry in run["run"][1].entries()}
        assert stored["model.replicated.odd"] == stored["model.rows.odd"] == 7 * 5 * 4
        boxes = run["run"][1]._record().tensors
        assert [len(boxes[f"model.{place}.odd"].boxes) for place in ranks.PLACES] == [
            2,
            2,
            1,
        ]


def test_a_folder_lacks_a_rank(saved: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    subprocess.run(["cp", "-r", "--sparse=always", saved, copied], check=True)
    (copied / "rank-00001.pool").rename(tmp_path / "elsewhere")
    with lmcstore.open(copied) as run:
        snapshot = run["run"][1]
        assert snapshot["model.rows.one row"].torch().shape == (1, 3)  # of rank 0 alone
        with pytest.raises(
            lmcstore.NotFoundError,
            match=r"lacks the pool of rank 1, rank-00001\.pool.*model\.rows\.odd",
        ):
            snapshot["model.rows.odd"].torch()
        missing = run.verify()["missing"]
        assert len(missing) == 1 and "rank 1" in missing[0]
        assert snapshot["config"] == {"lr": 0.5, "names": ["a", None, True]}
    (tmp_path / "elsewhere").rename(copied / "rank-00007.pool")
    with lmcstore.open(copied) as run:
        same(run["run"][1].state_dict(), ranks.expected(5))
    (copied / "records.pool").unlink()
    with pytest.raises(lmcstore.NotFoundError, match="lacks the records"):
        lmcstore.open(copied)


def test_a_rank_pool_of_another_run_is_not_taken(saved: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    subprocess.run(["cp", "-r", "--sparse=always", saved, copied], check=True)
    (copied / "rank-00000.pool").unlink()
    with lmcstore.open(copied / "rank-00000.pool", "x") as pool:
        pool["run"].snapshot({"a": torch.ones(2)})
    with (
        lmcstore.open(copied) as run,
        pytest.raises(lmcstore.NotFoundError, match="lacks the pool of rank 0"),
    ):
        run["run"][1].state_dict()


def _read_in_child(snapshot: Any, sender: Any) -> None:
    sender.send(torch.equal(snapshot["model.columns.odd"].torch(), ranks.whole((7, 5), 5)))


def test_forked_children_and_copies_read(saved: Path) -> None:
    with lmcstore.open(saved) as run:
        snapshot = run["run"][1]
        assert snapshot["model.columns.odd"].torch().shape == (7, 5)
        receiver, sender = multiprocessing.Pipe(False)
        child = multiprocessing.get_context("fork").Process(target=_read_in_child, args=(snapshot, sender))
        child.start()
        assert receiver.poll(60) and receiver.recv()
        child.join()
        for made in (copy.deepcopy(snapshot), pickle.loads(pickle.dumps(snapshot))):
            same(made.state_dict(), ranks.expected(5))
            made.shelf.store.close()


def test_a_folder_is_read_only(saved: Path) -> None:
    with pytest.raises(lmcstore.ExistsError):
        lmcstore.open(saved, "x")
    with lmcstore.open(saved) as run:
        assert run.mode == "r" and "run" in run and run.path == str(saved)
        assert run.info()["ranks"].keys() == {"rank-00000.pool", "rank-00001.pool"}
        with pytest.raises(lmcstore.ReadOnlyError, match="StoreWriter"):
            run["run"].snapshot({"a": 1})
        with pytest.raises(lmcstore.ReadOnlyError):
            run["run"].remove(1)
        with pytest.raises(lmcstore.ReadOnlyError, match="mode 'r\\+'"):
            run["run"][1].fork("a")
        with pytest.raises(lmcstore.UnsupportedError, match="is a folder"):
            run.dump(1)  # type: ignore[arg-type]
        assert len(run["run"][1].digest) == 32
        run["run"].tag(1, "good")
        run["run"][1].metrics["loss"] = 2.0
        assert run["run"]["good"].number == 1 and run["run"][1].metrics == {"loss": 2.0}
        assert "good" in str(run["run"].log())
    with pytest.raises(lmcstore.InvalidError, match="closed"):
        run["run"][1].state_dict()


# One process


def test_values_and_other_objects(folder: Path) -> None:
    values = {
        "none": None, "yes": True, "large": 1 << 200, "float": float("inf"), "complex": 1j, "text": "ä\0\ud800",
        "bytes": b"\0", "tuple": (1, ("a",)), "set": {1}, "list": [1, [2]], "long": "x" * 10_000,
    }  # fmt: skip
    state = {
        "values": values,
        "items": [{"a": 1, "t": torch.ones(2)}, torch.zeros(1)],
        "tensors": (torch.ones(1),),
    }
    loss = torch.tensor(0.5)
    writer = StoreWriter(folder, step=1, tags=["best"], metrics={"loss": loss})
    loss.zero_()
    dcp.save({**state, "slice": slice(1, 2)}, storage_writer=writer)
    into = {**copy.deepcopy(state), "slice": None}
    into["values"] = dict.fromkeys(values)
    dcp.load(into, storage_reader=StoreReader(folder, address="best"))
    same(into, {**state, "slice": slice(1, 2)})
    with lmcstore.open(folder) as run:
        snapshot = run["run"]["best"]
        assert snapshot.step == 1 and snapshot.metrics == {"loss": 0.5}
        with pytest.warns(UserWarning, match="'tensors' and 'slice' are pickles"):
            read = snapshot.state_dict()
        assert isinstance(read["slice"], lmcstore.Opaque) and read["slice"].load(weights_only=False) == slice(1, 2)
        same(read["tensors"].load(), state["tensors"])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            same(snapshot.state_dict("values"), values)
            same(snapshot.state_dict("items"), state["items"])


def test_strange_names_are_kept(folder: Path) -> None:
    state = {
        "a.b": torch.ones(1),
        "a": {"c": torch.zeros(2)},
        "": torch.ones(3),
        "x" * 5000: torch.ones(4),
        "ö\n": 5,
    }
    _save(folder, state)
    with lmcstore.open(folder) as run:
        same(run["run"][1].state_dict(), state)


def test_states_without_dicts(folder: Path) -> None:
    state = {"a.b": torch.ones(1), "a": {"c": [torch.zeros(2)], "n": 1}}
    flat = {"flatten_state_dict": False, "flatten_sharded_tensors": False}
    planner = DefaultSavePlanner(**flat)
    dcp.save(state, storage_writer=StoreWriter(folder), planner=planner)
    into = {"a.b": torch.zeros(1), "a": None}
    dcp.load(into, storage_reader=StoreReader(folder), planner=DefaultLoadPlanner(**flat))
    same(into, state)
    _save(folder, {"only": 1, "values": "x"})
    with lmcstore.open(folder) as run:
        assert run["run"][2].state_dict() == {"only": 1, "values": "x"} and run["run"][2].names() == []


class _Half(DefaultSavePlanner):
    """Saves tensors as float16."""

    def resolve_data(self, write_item: Any) -> Any:
        found = super().resolve_data(write_item)
        return found.half() if isinstance(found, torch.Tensor) else found


class _Shouting(DefaultSavePlanner):
    """Pickles text in capitals."""

    def transform_object(self, write_item: Any, object: Any) -> Any:
        return super().transform_object(write_item, object.upper() if isinstance(object, str) else object)


def test_planners_that_change_the_state(folder: Path) -> None:
    state = {"t": torch.full((2, 3), 1.5), "name": "a", "n": 1}
    dcp.save(state, storage_writer=StoreWriter(folder, step=1), planner=_Half())
    dcp.save(state, storage_writer=StoreWriter(folder, step=2), planner=_Shouting())
    with lmcstore.open(folder) as run:
        same(run["run"].at(step=1).state_dict(), {**state, "t": state["t"].half()})
    for step, name in ((1, "a"), (2, "A")):
        into = {"t": torch.zeros(2, 3), "name": "", "n": 0}
        dcp.load(into, storage_reader=StoreReader(folder, step=step))
        same(into, {**state, "name": name})


def test_unchanged_tensors_are_shared(folder: Path) -> None:
    state = {"frozen": torch.randn(1000), "trained": torch.randn(1000)}
    _save(folder, state)
    state["trained"] += 1
    _save(folder, state)
    with lmcstore.open(folder) as run:
        first, second = (snapshot.new_bytes for snapshot in run["run"])
        assert first is not None and second is not None and first > 8000 and 4000 <= second < 4500


def test_tensors_of_any_kind(folder: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "transposed": base.t(), "strided": base[::2, 1:5:2], "view": base[1], "again": base,
        "parameter": torch.nn.Parameter(base), "half": base.bfloat16(), "bits": base > 3,
        "complex": torch.view_as_complex(base.reshape(4, 3, 2)).conj(),
    }  # fmt: skip
    _save(folder, state)
    into = {name: torch.zeros_like(tensor.detach()).contiguous() for name, tensor in state.items()}
    dcp.load(into, storage_reader=StoreReader(folder))
    with lmcstore.open(folder) as run:
        read = run["run"][1].state_dict()
    for name, tensor in state.items():
        assert torch.equal(into[name], tensor.detach()) and torch.equal(read[name], tensor.detach()), name
    with pytest.raises(dcp.CheckpointException, match="sparse"):
        _save(folder, {"sparse": base.to_sparse()})
    with lmcstore.open(folder) as run:
        assert len(run["run"]) == 1


def test_a_folder_is_created_with_a_warning(folder: Path) -> None:
    with pytest.warns(lmcstore.CreationWarning, match=f"there is no run in {folder}"):
        _save(folder, {"a": torch.ones(1)})
    with warnings.catch_warnings():
        warnings.simplefilter("error", lmcstore.CreationWarning)
        _save(folder, {"a": torch.ones(1)})
    with pytest.warns(lmcstore.CreationWarning, match="there is no shelf 'rum'"):
        _save(folder, {"a": torch.ones(1)}, shelf="rum")


def test_a_later_save_fences_an_earlier_one(folder: Path) -> None:
    first, second = (writing.Records(str(folder), "run") for _ in range(2))
    record = lmcstore._folder.record.Record(1)
    with pytest.raises(lmcstore.InvalidError, match="a later save has begun"):
        first.commit(record, None, (), None)
    second.commit(record, None, (), None)


def test_a_replaced_folder_is_opened_again(folder: Path) -> None:
    _save(folder, {"a": torch.ones(1)})
    shutil.rmtree(folder)
    _save(folder, {"a": torch.zeros(1)})
    with lmcstore.open(folder) as run:
        assert len(run["run"]) == 1 and run["run"][1].state_dict()["a"] == 0


def test_wrong_arguments(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(lmcstore.UnsupportedError, match="lazy"):
        StoreWriter(folder, lazy=3)
    with pytest.raises(lmcstore.UnsupportedError, match="shelf"):
        StoreWriter(folder, True)  # type: ignore[arg-type]
    with pytest.raises(dcp.CheckpointException, match="there is no run in"):
        dcp.load({}, storage_reader=StoreReader(folder))
    dcp.save({"a": torch.ones(1)}, storage_writer=dcp.FileSystemWriter(tmp_path / "files"))
    with pytest.raises(dcp.CheckpointException, match=r"there is no run in .*files.*FileSystemReader loads"):
        dcp.load({"a": torch.ones(1)}, storage_reader=StoreReader(tmp_path / "files"))
    with pytest.raises(dcp.CheckpointException, match="there is no run in "):
        dcp.load({"a": torch.ones(1)}, storage_reader=StoreReader(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(dcp.CheckpointException, match="is a file"):
        _save(tmp_path / "file", {"a": 1})
    assert not StoreWriter.validate_checkpoint_id("s3://bucket") and StoreWriter.validate_checkpoint_id(folder)
    StoreWriter(
        folder,
        single_file_per_rank=False,
        sync_files=False,
        thread_count=4,
        overwrite=False,
        _extensions=[],
    )
    _save(folder, {"a": torch.ones(1)}, step=1)
    with pytest.raises(dcp.CheckpointException, match="none has that step; the nearest is 1"):
        dcp.load({"a": torch.ones(1)}, storage_reader=StoreReader(folder, step=2))


@pytest.mark.parametrize("wanted", [torch.zeros(1 << 10), torch.zeros(1 << 10, dtype=torch.float64)])
def test_damage_is_an_error_of_the_load(folder: Path, wanted: torch.Tensor) -> None:
    _save(folder, {"a": torch.arange(1 << 10, dtype=torch.float32)})
    writing.close(str(folder))
    damage(folder / "rank-00000.pool", torch.arange(64, dtype=torch.float32).numpy().tobytes(), 9)
    with pytest.raises(dcp.CheckpointException, match='tensor "a" is damaged'):
        dcp.load({"a": wanted}, storage_reader=StoreReader(folder))


def _forged_tensors(layout: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the tensors of a record with one tensor, each with an error."""
    data = array("q", layout).tobytes()
    good = {"dtypes": ["f32"], "layout": data, "stored": []}
    yield {**good, "dtypes": []}
    yield {**good, "dtypes": ["f99"]}
    yield {**good, "stored": [(0, 0)]}
    yield {**good, "layout": data[:-8]}
    yield {**good, "layout": data + bytes(8)}
    for place in range(len(layout)):
        for wrong in (-1, 7, 1 << 62):
            yield {**good, "layout": array("q", [*layout[:place], wrong, *layout[place + 1 :]]).tobytes()}


@pytest.mark.filterwarnings("ignore:.*pickle of torch")
@pytest.mark.parametrize("part", ["lmcstore_run", "names", "tensors", "opaque", "values", "paths"])
def test_a_forged_record_is_damage(folder: Path, part: str) -> None:
    _save(folder, {"a": torch.ones(2), "b": 1, "c": slice(1)})
    writing.close(str(folder))
    bad: dict[str, list[Any]] = {
        "lmcstore_run": [{}, {"version": 1}, {"version": 1, "world_size": 1, "ranks": {0: (b"", "x", 1, b"")}}],
        "names": [[], ["a", "b", "c", "d"], ["a", "a", "b", "c"], "abc"],
        "tensors": [{}, *_forged_tensors([1, 2, 1, 0, 0, 2])],
        "opaque": [{"c": (7, "c")}, {"c": 1}],
        "values": [{}, [1]],
        "paths": [{"a": ()}, {"a": (1 << 40,)}, {"d": ("d",)}, []],
    }
    with lmcstore.open(folder / "records.pool", "r+") as records:
        good = records["run"][1].state_dict()
        bad["lmcstore_run"].append({**good["lmcstore_run"], "save_id": 1})
        for wrong in bad[part]:
            records["run"].snapshot({**good, part: wrong})
    with lmcstore.open(folder) as run:
        for snapshot in list(run["run"])[1:]:
            with pytest.raises(lmcstore.DamagedError, match=r"record|only parts|another dtype or shape"):
                snapshot.state_dict()
    if part == "tensors":
        with lmcstore.open(folder / "records.pool", "r+") as records:
            other = array("q", [1, 2, 1, 0, 0, 2]).tobytes()
            records["run"].snapshot({**good, "tensors": {"dtypes": ["i32"], "layout": other, "stored": []}})
        for target in (torch.zeros(2, dtype=torch.int32), torch.zeros(2, 2, dtype=torch.int32)[:, 0]):
            with pytest.raises(dcp.CheckpointException, match="another dtype or shape"):
                dcp.load({"a": target}, storage_reader=StoreReader(folder))
    with lmcstore.open(folder / "records.pool", "r+") as records:
        newer = {**good["lmcstore_run"], "version": 2}
        number = records["run"].snapshot({**good, "lmcstore_run": newer}).number
    with (
        lmcstore.open(folder) as run,
        pytest.raises(lmcstore.UnsupportedError, match="update"),
    ):
        run["run"][number].state_dict()
