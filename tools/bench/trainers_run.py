# SPDX-License-Identifier: BSD-3-Clause
"""Ranks that save and load by torch.distributed.checkpoint, each in a process of its own; plans of simulated ranks."""

import datetime
import gc
import multiprocessing
import os
import random
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmcstore
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from lmcstore._folder import once, writing
from lmcstore._folder.record import Part
from lmcstore._remote.blocks import Decoder
from lmcstore.dcp import StoreReader, StoreWriter, _record, _Written
from peers import fsync_all
from torch.distributed.checkpoint import filesystem, metadata, planner
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

TENSORS = 64
_ROWS = 64
_POLL_S = 0.002
FIRST_STEPS = 12
"""After them training alone takes hardly more memory: malloc's heap has its gaps between temporary tensors."""
LIMIT_S = 600

OURS = "StoreWriter"
OURS_AUTO, OURS_FP32 = "StoreWriter, write=auto", "StoreWriter, write=auto, fp32 gradients"
OURS_BOUND = "StoreWriter, write=auto, memory=48MiB"
FLOOR = "one file a rank, written and synced"
"""Neither planned nor checked: the least that any way needs for the same bytes."""
WAYS = (
    OURS,
    OURS_AUTO,
    OURS_FP32,
    OURS_BOUND,
    "FileSystemWriter",
    "FileSystemWriter, 2 threads",
    "safetensors",
    FLOOR,
    "FsspecWriter, lmc://",
)
TORCH_CHECKPOINTING = "torch_checkpointing"
ASYNC = ("StoreWriter", "StoreWriter, lazy", "FileSystemWriter, DefaultStager")


def writer_of(way: str, folder: Path, **options: Any) -> Any:
    """Return a way's writer; `folder` is where this save goes, of a run's folder."""
    if way.startswith(OURS):
        pool_options = {"memory": "48MiB"} if way == OURS_BOUND else None
        return StoreWriter(folder.parent / "run", pool_options=pool_options, **options)
    if way.startswith("FsspecWriter"):
        return FsspecWriter(f"lmc://{folder.parent}/run.pool/{folder.name}")
    if way == "safetensors":
        return filesystem.FileSystemWriter(folder, serialization_format=filesystem.SerializationFormat.SAFETENSORS)
    return filesystem.FileSystemWriter(folder, thread_count=2 if "2 threads" in way else 1)


def reader_of(way: str, folder: Path) -> Any:
    """Return a way's reader."""
    if way.startswith(OURS):
        return StoreReader(folder.parent / "run")
    if way.startswith("FsspecWriter"):
        return FsspecReader(f"lmc://{folder.parent}/run.pool/{folder.name}")
    return filesystem.FileSystemReader(folder)


def save_by(way: str) -> Callable[[dict[str, Any], Path], object]:
    """Return a function that saves a state as a folder, on all ranks.

    torch_checkpointing gets this rank's tensors: it gathers where shards belong by CUDA only. Its direct writes fail on
    some file systems, so its files go through the page cache.
    """
    if way == FLOOR:
        return write_and_sync
    if way != TORCH_CHECKPOINTING:
        return lambda state, place: dcp.save(state, storage_writer=writer_of(way, place))
    from torch_checkpointing import CheckpointManager
    from torch_checkpointing.config import SyncCheckpointSaverConfig
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    storage = LocalFileSystemStorageConfig(use_direct_io=False)
    manager = CheckpointManager.Config(save=SyncCheckpointSaverConfig(), storage_config=storage).build()
    return lambda state, place: manager.save(str(place), _local(state))


def write_and_sync(state: dict[str, Any], place: Path) -> None:
    """Write this rank's tensors to a file, one after the other, and sync it."""
    place.mkdir(exist_ok=True)
    with (place / f"rank-{dist.get_rank()}").open("wb") as file:
        for tensor in _tensors(_local(state)):
            file.write(memoryview(tensor.detach().contiguous().numpy().reshape(-1).view("u1")))
        file.flush()
        os.fsync(file.fileno())


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested dicts."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors(value)


def _local(state: Any) -> Any:
    """Replace DTensors by this rank's shards."""
    if isinstance(state, dict):
        return {key: _local(value) for key, value in state.items()}
    return state.to_local() if hasattr(state, "to_local") else state


def state_of(size_bytes: int, seed: int, value: float | None = None) -> dict[str, Any]:
    """Make DTensors whose rows are sharded: this rank's share of `size_bytes`."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    columns = max(1, size_bytes // 4 // TENSORS // _ROWS)
    torch.manual_seed(seed)
    made = (
        torch.randn(_ROWS, columns) if value is None else torch.full((_ROWS, columns), value) for _ in range(TENSORS)
    )
    return {
        f"layers.{number}.weight": distribute_tensor(tensor, mesh, [Shard(0)]) for number, tensor in enumerate(made)
    }


class Training:
    """A model and AdamW whose state has `size_bytes` on all ranks, in rows that the ranks share."""

    def __init__(self, size_bytes: int, dtype: torch.dtype) -> None:
        """`dtype`: the precision of gradients; autocast leaves that of bf16."""
        self._mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self._dtype = dtype
        weights = state_of(size_bytes // 3, 0)
        self._model = torch.nn.Module()
        for name, tensor in weights.items():
            self._model.register_parameter(name.replace(".", "_"), torch.nn.Parameter(tensor))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)

    def step(self) -> None:
        """Take a step with random gradients."""
        for parameter in self._model.parameters():
            gradient = torch.randn(parameter.to_local().shape).to(self._dtype).float()
            parameter.grad = DTensor.from_local(gradient, self._mesh, [Shard(0)], run_check=False)
        self._optimizer.step()

    def tensors(self) -> dict[str, Any]:
        """Return the parameters and moments by names."""
        moments = (self._optimizer.state[parameter] for parameter in self._model.parameters())
        named = zip(self._model.named_parameters(), moments, strict=True)
        return {
            f"{name}.{key}": value
            for (name, parameter), slots in named
            for key, value in {"weight": parameter.detach(), **slots}.items()
            if key != "step"
        }

    def state(self) -> dict[str, Any]:
        """Return the state as DCP saves it."""
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


class Peak:
    """The most memory of this process that is not of files, above what it was before the first save."""

    def __init__(self, start: int) -> None:
        self._start = self._most = start
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(_POLL_S):
            self._most = max(self._most, _anonymous())

    def end(self) -> int:
        """Return it."""
        self._ends.set()
        self._thread.join()
        return max(self._most, _anonymous()) - self._start


# ---- On ranks -------------------------------------------------------------------------------------------------------


def save(folder: Path, way: str, size_bytes: int, saves: int, idle_s: float = 0.0) -> dict[str, list[float]]:
    """Save after each step of a run, with pauses between them; seconds until each is durable, and bytes of memory."""
    found: dict[str, list[float]] = {"durable_s": [], "memory_bytes": []}
    training = Training(size_bytes, torch.float32 if way == OURS_FP32 else torch.bfloat16)
    for _ in range(FIRST_STEPS):
        training.step()
    write, start = save_by(way), _anonymous()
    for number in range(saves):
        training.step()
        state = training.state()
        time.sleep(idle_s)
        place = folder / f"step-{number}"
        dist.barrier()
        peak = Peak(start)
        begin = time.perf_counter()
        write(state, place)
        if dist.get_rank() == 0 and place.is_dir():
            fsync_all(place)  # FileSystemWriter syncs its files, not the folder; torch_checkpointing syncs nothing
        dist.barrier()
        found["durable_s"].append(time.perf_counter() - begin)
        found["memory_bytes"].append(peak.end())
        if "write=auto" in way and number == 0:
            write_auto(folder / "run")
    return found


def write_auto(folder: Path) -> None:
    """Set the policy of a run, on all ranks."""
    writing.close(str(folder))
    dist.barrier()
    if dist.get_rank() == 0:
        with lmcstore.open(folder, "r+") as run:
            run["run"].policy = "write=auto"
    dist.barrier()


def save_once(folder: Path, way: str, size_bytes: int) -> dict[str, list[float]]:
    """Save a state."""
    save_by(way)(state_of(size_bytes, 0), folder / "step-0")
    return {}


def load(folder: Path, ways: tuple[str, ...], size_bytes: int, turns: int) -> dict[str, list[float]]:
    """Load the state of each way, in turn, into the sharding of these ranks."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    expected = state_of(size_bytes, 0)
    for turn in range(turns):
        for way in random.Random(turn).sample(ways, len(ways)):
            state = state_of(size_bytes, 0, 0.0)
            reader = reader_of(way, folder / str(ways.index(way)) / "step-0")
            dist.barrier()
            begin = time.perf_counter()
            dcp.load(state, storage_reader=reader)
            dist.barrier()
            found[way].append(time.perf_counter() - begin)
            for name, tensor in state.items():
                if not torch.equal(tensor.to_local(), expected[name].to_local()):
                    raise RuntimeError(f"{way}: {name} was not loaded as it was saved")
    return found


def save_apart(folder: Path, size_bytes: int, steps: int) -> dict[str, list[float]]:
    """Save states that are some steps apart, four times."""
    training = Training(size_bytes, torch.float32)
    for number in range(4):
        for _ in range(steps):
            training.step()
        dcp.save(training.tensors(), storage_writer=StoreWriter(folder, step=number))
    writing.close(str(folder))
    return {}


def load_shared(source: str, step: int, target: str, turns: int, raw: bool) -> dict[str, list[float]]:
    """Load a state, in turn with and without shared blocks; seconds, processor time and fetched bytes of all ranks.

    `raw`: share raw blocks, too.
    """
    found: dict[str, list[float]] = {
        f"{way}_{unit}": [] for way in ("shared", "alone") for unit in ("s", "processor_s", "fetched")
    }
    mesh, choose = init_device_mesh("cpu", (dist.get_world_size(),)), once.shares_of
    with lmcstore.open(source, "r") as run:
        shapes = {name: tuple(run["run"].at(step=step)[name].shape) for name in run["run"].at(step=step).names()}
    fetched: list[int] = []
    decode, entry_of = Decoder.run, StoreReader._entry

    def noting(self: Decoder, *arguments: Any) -> None:
        decode(self, *arguments)
        fetched.append(self.bytes)

    Decoder.run = noting  # type: ignore[method-assign]
    if raw:  # as if it were coded

        def coded_entry(self: StoreReader, read: Any) -> Any:
            entry = entry_of(self, read)
            return None if entry is None else (*entry[:6], 1, *entry[7:])

        StoreReader._entry = coded_entry  # type: ignore[method-assign]
    gc.disable()  # in some turns it takes longer than the load
    for turn in range(2 * turns + 2):
        way = ("shared", "alone")[turn % 2]
        once.shares_of = choose if way == "shared" else lambda offers: [None] * len(offers)
        place = Replicate() if target == "replicated" else Shard(1)
        state = {name: distribute_tensor(torch.ones(shape), mesh, [place]) for name, shape in shapes.items()}
        fetched.clear()
        dist.barrier()
        begin, used = time.perf_counter(), time.process_time()
        dcp.load(state, storage_reader=StoreReader(source, step=step))
        sums = torch.tensor([time.process_time() - used, float(sum(fetched))], dtype=torch.float64)
        dist.barrier()
        seconds = time.perf_counter() - begin
        dist.all_reduce(sums)
        if turn > 1:
            found[f"{way}_s"].append(seconds)
            found[f"{way}_processor_s"].append(float(sums[0]))
            found[f"{way}_fetched"].append(float(sums[1]))
    return found


def save_async(folder: Path, way: str, size_bytes: int, saves: int, idle_s: float) -> dict[str, list[float]]:
    """Save without waiting, then idle as a device computes, then step; seconds that training is held up, and others."""
    found: dict[str, list[float]] = {"blocked_s": [], "hook_s": [], "durable_s": [], "memory_bytes": []}
    state = state_of(size_bytes, 0)
    parameters = [torch.nn.Parameter(tensor) for tensor in state.values()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(parameter.to_local().shape)) for parameter in parameters])
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    for parameter in plain.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    start = _anonymous()
    for number in range(saves):
        stager = DefaultStager(StagingOptions(False, False, False, False)) if "DefaultStager" in way else None
        options = {"lazy": optimizer} if "lazy" in way else {}
        now = dict(zip(state, parameters, strict=True))
        dist.barrier()
        peak = Peak(start)
        begin = time.perf_counter()
        saving: Any = dcp.async_save(
            now, storage_writer=writer_of(way, folder / f"step-{number}", **options), async_stager=stager
        )
        found["blocked_s"].append(time.perf_counter() - begin)
        time.sleep(idle_s)
        before = time.perf_counter()
        for hook in optimizer._optimizer_step_pre_hooks.values():
            hook(optimizer, (), {})
        found["hook_s"].append(time.perf_counter() - before)
        optimizer.step()
        saving = getattr(saving, "upload_completion", saving)
        saving.result()
        found["durable_s"].append(time.perf_counter() - begin)
        found["memory_bytes"].append(peak.end())
    return found


def _rank(number: int, world: int, store: str, sender: Any, work: Callable[..., Any], arguments: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        limit = datetime.timedelta(seconds=LIMIT_S)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=world, timeout=limit)
        gc.collect()
        gc.freeze()  # full collections of torch's objects, 0.2 s each, fell into some saves of all ways
        result = work(*arguments)
        sender.send((result, ""))
        dist.destroy_process_group()
    except BaseException as error:  # DCP's CheckpointException is no Exception
        sender.send((None, f"rank {number}: {type(error).__name__}: {error}"))


def on_ranks(world: int, work: Callable[..., Any], *arguments: Any) -> dict[str, list[float]]:
    """Call a function on gloo ranks; return the largest of each number. RuntimeError: a rank failed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainers_run"])
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(False) for _ in range(world)]
        ranks = [
            context.Process(target=_rank, args=(rank, world, f"{folder}/store", pipes[rank][1], work, arguments))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        answers = [receiver.recv() if receiver.poll(LIMIT_S) else (None, "a rank is late") for receiver, _ in pipes]
        for process in ranks:
            process.join(10)
            process.kill()
    failed = [text for _, text in answers if text]
    if failed:
        raise RuntimeError(failed[0])
    results = [result for result, _ in answers]
    return {
        name: [max(several) for several in zip(*(one[name] for one in results), strict=True)] for name in results[0]
    }


# ---- Simulated ranks ------------------------------------------------------------------------------------------------


@contextmanager
def _timed(found: dict[str, float], name: str) -> Any:
    begin = time.perf_counter()
    yield
    found[name] = time.perf_counter() - begin


def plan(folder: Path, world: int, tensors: int) -> dict[str, float]:
    """Plan and commit as the coordinator of many ranks, each with a shard of each tensor; seconds of each part."""
    found: dict[str, float] = {}
    properties = metadata.TensorProperties(dtype=torch.float32)
    names = [f"model.layers.{number}.weight" for number in range(tensors)]
    plans = []
    for rank in range(world):
        offsets, sizes = torch.Size([4 * rank, 0]), torch.Size([4, 8])
        data = planner.TensorWriteData(
            metadata.ChunkStorageMetadata(offsets, sizes), properties, torch.Size([4 * world, 8])
        )
        kind = planner.WriteItemType.SHARD
        plans.append(
            planner.SavePlan(
                [planner.WriteItem(metadata.MetadataIndex(name, offsets), kind, tensor_data=data) for name in names]
            )
        )
    with _timed(found, "plan_s"):
        plans, made = create_default_global_save_plan(plans)
    made = replace(made, planner_data={name: tuple(name.split(".")) for name in names})
    ours, theirs = [], []
    for rank, one in enumerate(plans):
        part = Part(bytes(16), f"rank-{rank:05d}.pool", 1, bytes(16))
        number = lmcstore._core.DTYPES["f32"]
        ours.append([WriteResult(item.index, 128, _Written(part, rank, item.index.fqn, number)) for item in one.items])
        info = filesystem._StorageInfo(f"__{rank}_0.distcp", 0, 128)
        theirs.append([WriteResult(item.index, 128, info) for item in one.items])
    with _timed(found, "record_s"):
        state = _record(made, ours).state()
    with lmcstore.open(folder / "records.pool", "x") as store, _timed(found, "commit_s"):
        store["run"].snapshot(state)
    writer = filesystem.FileSystemWriter(folder / "files")
    writer.set_up_storage_writer(True)
    (folder / "files").mkdir()
    with _timed(found, "finish_s"):
        writer.finish(made, theirs)
    return found
