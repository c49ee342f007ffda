# SPDX-License-Identifier: BSD-3-Clause
"""The cases of torch's own tests of its file system storage, and reported defects of it, with StoreWriter."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lmcstore
import pytest
from optional import torch
from same import same

torch.Tensor  # noqa: B018 (skips without torch)

import dcp_ranks as ranks  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from lmcstore._folder import writing  # noqa: E402
from lmcstore._text.arguments import parse_size  # noqa: E402
from lmcstore.dcp import StoreReader, StoreWriter  # noqa: E402
from torch.distributed.checkpoint import filesystem  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


class _Writer(StoreWriter):
    """In place of FileSystemWriter: with its arguments."""

    def __init__(self, path: Path, thread_count: int = 1) -> None:
        super().__init__(path=path, thread_count=thread_count, single_file_per_rank=True, _extensions=[object()])


class _Reader(StoreReader):
    def __init__(self, path: Path) -> None:
        super().__init__(path=path, _extension_registry=object())


# Sharding


def _reshard(rank: int, world: int, folder: Path) -> None:
    """Save each tensor by each placement, and load it by each: on a mesh of one and of two dimensions."""
    flat = ranks.init_device_mesh("cpu", (4,))
    square = ranks.init_device_mesh("cpu", (2, 2))
    shapes = [(3,), (7, 5), (2, 9), (5, 1, 3), (0, 4), (4, 0)]
    for mesh in (flat, square):
        choices = [Replicate(), Shard(0), Shard(1)]
        layouts = list(itertools.product(choices, repeat=mesh.ndim))
        state: dict[str, Any] = {"scalar": torch.tensor(3.0), "empty": torch.zeros(0), "index": torch.tensor(7)}
        for shape, (number, layout) in itertools.product(shapes, enumerate(layouts)):
            if len(shape) > max((place.dim for place in layout if isinstance(place, Shard)), default=0):
                state[f"{shape} {number}"] = distribute_tensor(ranks.whole(shape, number), mesh, layout)
        dcp.save(state, storage_writer=_Writer(folder, thread_count=2))
        for other in layouts:
            into: dict[str, Any] = {}
            for name, tensor in state.items():
                shape = tuple(tensor.shape)
                fits = len(shape) > max((place.dim for place in other if isinstance(place, Shard)), default=0)
                if name in ("scalar", "empty", "index"):
                    into[name] = torch.full_like(tensor, -1)
                elif fits:
                    into[name] = distribute_tensor(torch.full(shape, -1.0), mesh, other)
            dcp.load(into, storage_reader=_Reader(folder))
            for name, tensor in into.items():
                expected = state[name]
                if name not in ("scalar", "empty", "index"):
                    expected, tensor = expected.full_tensor(), tensor.full_tensor()
                assert torch.equal(expected, tensor), (name, other)


def test_any_placement_is_loaded_as_any_other(folder: Path) -> None:
    ranks.run(4, _reshard, folder)
    with lmcstore.open(folder) as run:
        for snapshot in run["run"]:
            for name, tensor in snapshot.tensors("(*"):
                shape, _, number = name.rpartition(" ")
                assert torch.equal(tensor, ranks.whole(eval(shape), int(number))), name


def _switch(rank: int, world: int, folder: Path) -> None:
    """A ShardedTensor becomes a plain tensor, and the other way round, also with columns."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata

    def pieces(*bounds: int) -> EnumerableShardingSpec:
        return EnumerableShardingSpec(
            [
                ShardMetadata([first], [last - first], f"rank:{index % 2}")
                for index, (first, last) in enumerate(itertools.pairwise(bounds))
            ]
        )

    specs = [ChunkShardingSpec(0, ["rank:0", "rank:1"]), pieces(0, 10, 32), pieces(0, 1, 2, 30, 32)]
    for before, after in itertools.product(specs, repeat=2):
        state = {"sharded": sharded_tensor.rand(before, 32), "plain": ranks.whole((32,), 1)}
        dcp.save(state, storage_writer=_Writer(folder))
        into = {"sharded": torch.zeros(32), "plain": sharded_tensor.zeros(after, 32)}
        dcp.load(into, storage_reader=_Reader(folder))
        for shard in state["sharded"].local_shards():
            (first,), (size,) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            assert torch.equal(into["sharded"][first : first + size], shard.tensor)
        for shard in into["plain"].local_shards():
            (first,), (size,) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            assert torch.equal(shard.tensor, state["plain"][first : first + size])
    rows, columns = (ChunkShardingSpec(axis, ["rank:0", "rank:1"]) for axis in (0, 1))
    saved, loaded = (sharded_tensor.zeros(spec, 10, 20) for spec in (rows, columns))
    for shard in saved.local_shards():
        shard.tensor.copy_(ranks.whole((10, 20), 0)[shard.metadata.shard_offsets[0] :][: len(shard.tensor)])
    dcp.save({"t": saved}, storage_writer=_Writer(folder))
    dcp.load({"t": loaded}, storage_reader=_Reader(folder))
    for shard in loaded.local_shards():
        first = shard.metadata.shard_offsets[1]
        assert torch.equal(shard.tensor, ranks.whole((10, 20), 0)[:, first : first + shard.tensor.shape[1]])


def test_sharded_tensors_and_plain_ones_are_loaded_as_each_other(folder: Path) -> None:
    ranks.run(2, _switch, folder)


class _Stateful:
    """An object with a state that has a stream, as in torch's end-to-end test."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"blob": b"", "losses": io.BytesIO(), "step": torch.tensor(0)}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def _end_to_end(rank: int, world: int, folder: Path) -> None:
    """FSDP and Adam: train, save, load into another model by objects, and train on, all the same."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    mesh = ranks.init_device_mesh("cpu", (world,))

    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def train(model: Any, optimizer: Any) -> float:
        loss = model(torch.ones(2, 7)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    model, optimizer = made()
    for _ in range(2):
        train(model, optimizer)
    extra = _Stateful()
    extra.state = {"blob": b"some bytes", "losses": io.BytesIO(b"[1, 2]"), "step": torch.tensor(2)}
    states = get_state_dict(model, optimizer)
    dcp.save({"model": states[0], "optim": states[1], "extra": extra, "list": [1]}, storage_writer=_Writer(folder))
    losses = [train(model, optimizer) for _ in range(2)]
    other, moments = made()
    states = get_state_dict(other, moments)
    found = {"model": states[0], "optim": states[1], "extra": _Stateful(), "list": [2]}
    dcp.load(found, storage_reader=_Reader(folder))
    set_state_dict(other, moments, model_state_dict=found["model"], optim_state_dict=found["optim"])
    assert found["list"] == [1] and found["extra"].state["blob"] == b"some bytes"
    assert found["extra"].state["losses"].getvalue() == b"[1, 2]" and found["extra"].state["step"] == 2
    assert [train(other, moments) for _ in range(2)] == losses


def test_training_goes_on_after_a_load(folder: Path) -> None:
    ranks.run(2, _end_to_end, folder)


def test_parts_are_loaded_by_their_keys(folder: Path) -> None:
    state = {"model": {"a": torch.ones(3), "b": [torch.zeros(2), 5]}, "optimizer": {"state": {"a": torch.ones(1)}}}
    dcp.save(state, storage_writer=_Writer(folder))
    dcp.save({}, storage_writer=_Writer(folder))
    dcp.load({}, storage_reader=_Reader(folder))
    found = _load_state_dict_from_keys("model", storage_reader=StoreReader(folder, address=1))
    same(found, {"model": state["model"]})
    found = _load_state_dict_from_keys({"optimizer.state"}, storage_reader=StoreReader(folder, address=1))
    same(found, {"optimizer": state["optimizer"]})
    with pytest.raises(dcp.CheckpointException, match="Missing key"):
        dcp.load({"c": torch.ones(1)}, storage_reader=_Reader(folder))
    into = {"model": {"a": torch.zeros(3), "new": 1}}
    reader = StoreReader(folder, address=1)
    dcp.load(into, storage_reader=reader, planner=DefaultLoadPlanner(allow_partial_load=True))
    same(into, {"model": {"a": torch.ones(3), "new": 1}})


def test_a_load_converts_dtypes(folder: Path) -> None:
    dcp.save({"w": torch.full((4,), 1.5)}, storage_writer=_Writer(folder))
    for dtype in (torch.bfloat16, torch.float64):
        into = {"w": torch.zeros(4, dtype=dtype)}
        dcp.load(into, storage_reader=_Reader(folder))
        assert into["w"].dtype == dtype and bool((into["w"] == 1.5).all())
    with pytest.raises(dcp.CheckpointException, match="Size mismatch"):
        dcp.load({"w": torch.zeros(5)}, storage_reader=_Reader(folder))


# Defects of others


class _Failing(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        if write_item.index.fqn == "b":
            raise OSError("no such medium")
        return super().resolve_data(write_item)


def test_a_failed_write_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in pytorch/pytorch#191391: with two threads FileSystemWriter publishes a checkpoint without the failed one."""
    state = {name: torch.ones(100) for name in "abc"}
    dcp.save(state, storage_writer=_Writer(folder, 2))

    def full(*arguments: Any) -> Any:
        raise lmcstore.FullError("no space")

    for fails in ("planner", "prepare", "commit"):
        with monkeypatch.context() as patched:
            if fails != "planner":
                kind = writing.RankWriter if fails == "prepare" else writing.Records
                patched.setattr(kind, fails, full)
            planner = _Failing() if fails == "planner" else None
            with pytest.raises(dcp.CheckpointException, match=r"no such medium|no space"):
                dcp.save(state, storage_writer=_Writer(folder, 2), planner=planner)
        with lmcstore.open(folder) as run:
            assert len(run["run"]) == 1
    dcp.save(state, storage_writer=_Writer(folder, 2))
    with lmcstore.open(folder) as run:
        assert len(run["run"]) == 2
        same(run["run"][2].state_dict(), state)


def test_there_is_a_checkpoint_at_any_time(folder: Path) -> None:
    """FileSystemWriter removes the metadata of the last save into a folder before it renames the new one."""
    dcp.save({"a": torch.zeros(1000)}, storage_writer=_Writer(folder))
    done, failures, reads = threading.Event(), [], 0

    def save() -> None:
        try:
            for step in range(1, 30):
                dcp.save({"a": torch.full((1000,), float(step))}, storage_writer=_Writer(folder))
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=save)
    thread.start()
    while not done.is_set():
        into = {"a": torch.full((1000,), -1.0)}
        dcp.load(into, storage_reader=_Reader(folder), no_dist=True)
        assert bool((into["a"] == into["a"][0]).all()) and into["a"][0] >= 0
        reads += 1
    thread.join()
    assert not failures and reads


def test_no_pickle_is_needed_to_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of FileSystemWriter is a pickle."""
    state = {"a": torch.ones(3), "n": {"lr": 0.1, "names": ["x", None]}, "big": list(range(5000))}
    dcp.save(state, storage_writer=_Writer(folder))

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a pickle")

    for module, name in (("pickle", "load"), ("pickle", "loads"), ("pickle", "Unpickler"), ("torch", "load")):
        monkeypatch.setattr(f"{module}.{name}", refuse)
    with lmcstore.open(folder) as run:
        same(run["run"][1].state_dict(), state)
        assert not run["run"][1]._record().opaque


# Failures of the storage


class _FaultyWriter(StoreWriter):
    """Fails in a method on a rank."""

    def __init__(self, folder: Path, method: str, failing: bool) -> None:
        super().__init__(folder)
        if failing:

            def fail(*arguments: Any, **options: Any) -> Any:
                raise ValueError(f"{method} fails")

            setattr(self, method, fail)


_STEPS = ["set_up_storage_writer", "prepare_local_plan", "prepare_global_plan", "write_data", "finish"]


def _fail_each(rank: int, world: int, folder: Path) -> None:
    """Let each step of a save fail on the coordinator, or on another rank; each failure is only that rank's."""
    for number, (method, coordinator) in enumerate(itertools.product(_STEPS, (0, 1))):
        state = {"w": torch.full((3,), float(rank)), "number": number}
        failing = coordinator if method in ("prepare_global_plan", "finish") else 2
        with pytest.raises(dcp.CheckpointException) as raised:
            _save_state_dict(state, _FaultyWriter(folder, method, rank == failing), coordinator_rank=coordinator)
        assert len(raised.value.failures) == 1, (number, raised.value)
        ((failed, (error, _)),) = raised.value.failures.items()
        assert failed == failing and type(error) is ValueError, (method, coordinator, raised.value)
        _save_state_dict(state, StoreWriter(folder), coordinator_rank=coordinator)
        into = {"w": torch.zeros(3), "number": -1}
        dcp.load(into, storage_reader=_Reader(folder))
        assert into["number"] == number


def test_each_step_may_fail_and_the_next_save_works(folder: Path) -> None:
    """The coordinator changes meanwhile: rank 0 hands the records over to rank 1, and gets them back."""
    ranks.run(3, _fail_each, folder)
    with lmcstore.open(folder) as run:
        assert [snapshot.state_dict("number") for snapshot in run["run"]] == list(range(10))


def test_the_metadata_has_the_version_of_dcp(folder: Path) -> None:
    saved = dcp.save({"w": torch.ones(2)}, storage_writer=_Writer(folder))
    assert saved.version == _Reader(folder).read_metadata().version == filesystem.CURRENT_DCP_VERSION


def test_the_metadata_has_the_ids_of_the_save_and_the_load(folder: Path) -> None:
    writer, reader = _Writer(folder), _Reader(folder)
    for _ in range(2):
        dcp.save({"w": torch.ones(2)}, storage_writer=writer, checkpoint_id=folder)
        found = reader.read_metadata().storage_meta
        assert (found.checkpoint_id, found.save_id, found.load_id) == (str(folder), writer.save_id, reader.load_id)
    assert StoreReader(folder, address=1).read_metadata().storage_meta.save_id != writer.save_id


def test_overwrite_false_refuses_a_second_save(folder: Path) -> None:
    """As FileSystemWriter. The shelf decides: another one of the folder is no checkpoint of this."""
    first, second = ({"w": torch.full((2,), float(step))} for step in range(2))
    dcp.save(first, storage_writer=StoreWriter(folder, overwrite=False))
    with pytest.raises(dcp.CheckpointException, match="Checkpoint already exists"):
        dcp.save(second, storage_writer=StoreWriter(folder, overwrite=False))
    dcp.save(second, storage_writer=StoreWriter(folder, "other", overwrite=False))
    dcp.save(second, storage_writer=StoreWriter(folder))
    with lmcstore.open(folder) as run:
        assert len(run["run"]) == 2 and len(run["other"]) == 1
        same(run["run"][1].state_dict(), first)


@pytest.mark.parametrize("memory", [None, 0, "64KiB"])
def test_options_of_the_pool_bound_the_memory_of_saves(folder: Path, memory: int | str | None) -> None:
    options = None if memory is None else {"memory": memory}
    dcp.save({"a": torch.rand(50_000)}, storage_writer=StoreWriter(folder))
    writing.close(str(folder))
    with lmcstore.open(folder, mode="r+") as run:
        run["run"].policy = "write=link"
    for _ in range(3):
        dcp.save({"a": torch.rand(50_000)}, storage_writer=StoreWriter(folder, pool_options=options))
    used = writing.RankWriter(str(folder), 0).store.info()["memory_bytes"]
    assert used >= 200_000 if memory is None else used <= parse_size(memory)


def test_links_of_saves_need_no_copy(folder: Path) -> None:
    """Memory holds the state once: a save ends before the state changes."""
    model = torch.nn.Linear(200, 200)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        model(torch.randn(4, 200)).square().mean().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        dcp.save(state, storage_writer=StoreWriter(folder))
        if step == 0:
            writing.close(str(folder))
            with lmcstore.open(folder, mode="r+") as run:
                run["run"].policy = "write=link"
    store = writing.RankWriter(str(folder), 0).store
    assert store["run"][4].storage()["link_contents"] > 0
    assert store.info()["memory_bytes"] < 1.1 * store["run"][4].raw_bytes


def test_saves_are_raw_unless_they_are_lazy_or_have_another_policy(folder: Path) -> None:
    def policy(shelf: str) -> str:
        return writing.RankWriter(str(folder), 0).store[shelf].policy

    state = {"a": torch.rand(10)}
    dcp.save(state, storage_writer=StoreWriter(folder))
    dcp.save(state, storage_writer=StoreWriter(folder, "lazy", lazy=True))
    assert "write=raw" in policy("run") and "write=" not in policy("lazy")  # auto is not shown
    writing.close(str(folder))
    with lmcstore.open(folder, mode="r+") as run:
        run["run"].policy = "write=auto"
    dcp.save(state, storage_writer=StoreWriter(folder))
    assert "write=" not in policy("run")


def _anonymous() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10


def _growth(rank: int, world: int, folder: Path) -> int:
    weight = torch.ones(20 << 20)
    before = _anonymous()
    for step in (1, 2):
        weight += 1
        dcp.save({"weight": weight}, storage_writer=StoreWriter(folder, step=step))
    return _anonymous() - before


def test_saves_keep_little_memory(folder: Path) -> None:
    """The coordinator has two pools open, and no copy of the state."""
    assert ranks.run(1, _growth, folder)[0] < 64 << 20


def test_the_last_save_of_a_process_needs_no_thread(folder: Path) -> None:
    code = """
import atexit, sys, torch
import torch.distributed.checkpoint as dcp
from lmcstore.dcp import StoreWriter
save = lambda: dcp.save({"weight": torch.ones(3)}, storage_writer=StoreWriter(sys.argv[1]))
atexit.register(save)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, folder], check=True)
    with lmcstore.open(folder, mode="r") as run:
        assert len(run["run"]) == 1


def test_options_of_other_places_are_refused(folder: Path) -> None:
    with pytest.raises(lmcstore.InvalidError, match="pool_options has 'mode'"):
        StoreWriter(folder, pool_options={"mode": "r"})


def test_a_process_alone_needs_no_collectives(folder: Path) -> None:
    state = {"w": torch.ones(3), "step": 2}
    dcp.save(state, storage_writer=_Writer(folder), use_collectives=False)
    into = {"w": torch.zeros(3), "step": 0}
    dcp.load(into, storage_reader=_Reader(folder))
    same(into, state)


def _refuse(rank: int, world: int, folder: Path) -> None:
    with pytest.raises(lmcstore.UnsupportedError, match="use_collectives"):
        dcp.save({"w": torch.ones(3)}, storage_writer=_Writer(folder), use_collectives=False)
    dist.barrier()  # a rank that ends while another one connects would fail it


def test_ranks_need_collectives(folder: Path) -> None:
    ranks.run(2, _refuse, folder)
    assert not folder.exists()
