# SPDX-License-Identifier: BSD-3-Clause
"""dcp.async_save with StoreWriter: copied before it returns, or `lazy`."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import lmcstore
import pytest
from optional import torch
from same import same

torch.Tensor  # noqa: B018 (skips without torch)

import dcp_ranks as ranks  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from lmcstore._folder import copies, staging, writing  # noqa: E402
from lmcstore.dcp import StoreReader, StoreWriter  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner  # noqa: E402
from torch.distributed.checkpoint.staging import BlockingAsyncStager  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def _save_async(rank: int, world: int, folder: Path) -> None:
    for step in (1, 2):
        state = ranks.state_of(world, step)
        future: Any = dcp.async_save(state, storage_writer=StoreWriter(folder, step=step))
        state["scalar"].fill_(-1)
        state["model"]["rows"]["odd"].to_local().fill_(-1)
        future.result()


def test_changes_after_the_call_are_not_saved(folder: Path) -> None:
    """As in pytorch/pytorch#144657."""
    ranks.run(2, _save_async, folder)
    with lmcstore.open(folder) as run:
        for step in (1, 2):
            same(run["run"].at(step=step).state_dict(), ranks.expected(step))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="DCP pins the memory that it uses again")
def test_a_cached_copy_is_used_again(folder: Path) -> None:
    writer = StoreWriter(folder, cache_staged_state_dict=True)
    state = {"a": torch.zeros(100), "n": 0}
    for step in (1, 2, 3):
        state["a"].fill_(step)
        state["n"] = step
        future: Any = dcp.async_save(state, storage_writer=writer)
        state["a"].fill_(-1)
        future.result()
    with lmcstore.open(folder) as run:
        for snapshot in run["run"]:
            same(snapshot.state_dict(), {"a": torch.full((100,), float(snapshot.number)), "n": snapshot.number})


def test_the_memory_of_a_copy_is_used_again(folder: Path) -> None:
    state = {"a": torch.full((5000,), 1.0), "b": [torch.zeros(3, dtype=torch.int8)]}
    writer = StoreWriter(folder)
    writer.close()  # which frees memory of other tests
    first: Any = writer.stage(state)
    state["a"].fill_(2.0)
    second: Any = StoreWriter(folder).stage(state)
    assert first["a"].data_ptr() != second["a"].data_ptr()
    assert torch.equal(first["a"], torch.full((5000,), 1.0))
    place, kept = first["a"].data_ptr(), first["b"][0]
    del first
    third: Any = writer.stage(state)
    assert third["a"].data_ptr() != place  # a tensor is in it
    assert kept.tolist() == [0, 0, 0]
    del third, kept
    fourth: Any = writer.stage(state)
    assert fourth["a"].data_ptr() == place
    same(fourth, state)


def test_a_copy_waits_for_the_memory_that_is_given_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a save is there before its thread has given the memory back."""
    state = {"a": torch.full((5000,), 1.0)}
    writer = StoreWriter(folder)
    writer.close()
    copied: list[Any] = [writer.stage(state)]
    place = copied[0]["a"].data_ptr()
    begins, goes_on, let_go = threading.Event(), threading.Event(), copies._let_go

    def let_go_later(memory: Any) -> None:
        begins.set()
        goes_on.wait(60)
        let_go(memory)

    monkeypatch.setattr(copies, "_let_go", let_go_later)
    gives = threading.Thread(target=copied.clear)
    gives.start()
    begins.wait(60)
    stages = threading.Thread(target=lambda: copied.append(writer.stage(state)))
    stages.start()
    stages.join(0.2)
    goes_on.set()
    stages.join()
    gives.join()
    assert copied[0]["a"].data_ptr() == place and copied[0]["a"].tolist() == state["a"].tolist()


def test_a_copy_is_as_torch_copies(folder: Path) -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    state = {
        "strided": matrix.t()[1:, ::2],
        "bf16": torch.nn.Parameter(matrix.bfloat16()),
        "flag": torch.tensor(True),
        "empty": torch.empty(0, 3),
        "conjugated": torch.tensor([1 + 2j, 3j]).conj(),
        "negative": torch.tensor([1 + 2j, 3j]).conj().imag,
        "nested": [matrix, (matrix.double(), {"a": None, 3: 2.5}), {1, 2}, "text", b"bytes"],
        "tied": {"x.y": matrix, "x": {"y": matrix[:]}},
    }
    taken: Any = StoreWriter(folder).stage(state)
    same(taken, BlockingAsyncStager().stage(state))
    assert taken["tied"]["x.y"].data_ptr() == taken["tied"]["x"]["y"].data_ptr() == taken["nested"][0].data_ptr()
    assert taken["strided"].data_ptr() != matrix.data_ptr()


_PROCESS = """
import sys, warnings
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from lmcstore.dcp import StoreWriter
import lmcstore

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder = sys.argv[1]
    dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=0, world_size=1)
    stager = DefaultStager(StagingOptions(False, True, False, False))
    parameter = torch.nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    for step in (1, 2, 3):
        state = {"a": torch.full((1000,), float(step)), "step": step}
        how = {"async_stager": stager} if step > 1 else {}
        future = dcp.async_save(
            state, storage_writer=StoreWriter(folder, step=step),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS, **how,
        )
        state["a"].fill_(-1)
        future = getattr(future, "upload_completion", future)
        future.result()
        assert f"{folder}/rank-00000.pool" not in open("/proc/self/maps").read()  # the other process has it open
    future = dcp.async_save(
        {"a": parameter}, storage_writer=StoreWriter(folder, lazy=optimizer),
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
    )
    parameter.grad = torch.ones(1000)
    optimizer.step()
    try:
        future.result()
    except lmcstore.UnsupportedError as error:
        print(error)
    dist.destroy_process_group()
"""


def test_another_process_may_write(folder: Path) -> None:
    program = folder.parent / "program.py"
    program.write_text(_PROCESS)
    done = subprocess.run([sys.executable, program, folder], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "saves in a thread" in done.stdout
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == [1, 2, 3]
        for snapshot in run["run"]:
            assert torch.equal(snapshot["a"].torch(), torch.full((1000,), float(snapshot.number)))


# lazy=


class _Model:
    """A model with a buffer and Adam, whose gradients are the step's number."""

    def __init__(self) -> None:
        self.module = torch.nn.BatchNorm1d(4)
        self.linear = torch.nn.Linear(300, 300)
        self.optimizer = torch.optim.Adam([*self.module.parameters(), *self.linear.parameters()], lr=0.1)
        self.done = 0
        self.step()

    def step(self) -> None:
        self.done += 1
        for parameter in (*self.module.parameters(), *self.linear.parameters()):
            parameter.grad = torch.full_like(parameter, float(self.done))
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        moments = {str(number): state for number, state in enumerate(self.optimizer.state.values())}
        return {
            "module": dict(self.module.state_dict()),
            "linear": dict(self.linear.state_dict()),
            "optimizer": {"moments": moments, "lr": self.optimizer.param_groups[0]["lr"]},
            "done": self.done,
        }

    def copy(self) -> dict[str, Any]:
        return pickle.loads(pickle.dumps(self.state()))  # type: ignore[no-any-return]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let saves write when the event is set."""
    begin, prepare = threading.Event(), writing.RankWriter.prepare

    def later(*arguments: Any) -> Any:
        assert begin.wait(60)
        return prepare(*arguments)

    monkeypatch.setattr(writing.RankWriter, "prepare", later)
    return begin


def _read(folder: Path, number: int = -1) -> Any:
    with lmcstore.open(folder) as run:
        return run["run"][number].state_dict()


def test_a_step_waits_for_the_copy(folder: Path, slow: threading.Event) -> None:
    model = _Model()
    expected = model.copy()
    future: Any = dcp.async_save(model.state(), storage_writer=StoreWriter(folder, lazy=model.optimizer))
    model.module(torch.ones(2, 4))  # changes the buffers, which are copied before
    stepping = threading.Thread(target=model.step)
    stepping.start()
    time.sleep(0.3)
    assert stepping.is_alive() and not future.done()
    slow.set()
    future.result()
    stepping.join()
    assert model.done == 2
    same(_read(folder), expected)


def test_each_of_many_lazy_saves_has_its_state(folder: Path) -> None:
    model, expected, futures = _Model(), [], []
    for step in range(6):
        expected.append(model.copy())
        writer = StoreWriter(folder, step=step, lazy=[model.optimizer])
        futures.append(dcp.async_save(model.state(), storage_writer=writer))
        model.step()
        futures[-1].result()  # type: ignore[union-attr]
    with lmcstore.open(folder) as run:
        for step in range(6):
            same(run["run"].at(step=step).state_dict(), expected[step])
    model.step()
    with_lazy = StoreWriter(folder, lazy=model.optimizer)
    dcp.save(model.state(), storage_writer=with_lazy)  # lazy= is for async_save
    same(_read(folder), model.copy())


def test_a_change_before_the_copy_fails_the_save(folder: Path, slow: threading.Event) -> None:
    model = _Model()
    future: Any = dcp.async_save(model.state(), storage_writer=StoreWriter(folder, lazy=True))
    with torch.no_grad():
        model.linear.weight.add_(1)
    slow.set()
    with pytest.raises(dcp.CheckpointException, match=r"linear\.weight: it was changed before it was copied"):
        future.result()
    model.step()
    dcp.save(model.state(), storage_writer=StoreWriter(folder))
    with lmcstore.open(folder) as run:
        assert len(run["run"]) == 1
    same(_read(folder), model.copy())


class _Failing(DefaultSavePlanner):
    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "__dict__").get("_method"):
            time.sleep(0.2)
            raise OSError("no such medium")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("method", ["set_up_planner", "create_local_plan", "create_global_plan", "resolve_data"])
def test_a_save_that_fails_early_holds_no_step_up(folder: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_BEGIN_SECONDS", 0.5)
    model = _Model()
    writer = StoreWriter(folder, lazy=model.optimizer)
    future: Any = dcp.async_save(model.state(), storage_writer=writer, planner=_Failing(method))
    model.step()
    with pytest.raises(dcp.CheckpointException, match="no such medium"):
        future.result()
    expected = model.copy()
    future = dcp.async_save(model.state(), storage_writer=writer)
    model.step()
    future.result()
    same(_read(folder), expected)
    dcp.save(model.state(), storage_writer=writer)
    same(_read(folder), model.copy())


class _NoCopy:
    def __deepcopy__(self, memo: Any) -> Any:
        raise ValueError("no copy")


def test_a_copy_that_fails_holds_no_save_up(folder: Path) -> None:
    model = _Model()
    writer = StoreWriter(folder, lazy=model.optimizer)
    with pytest.raises(ValueError, match="no copy"):
        dcp.async_save({**model.state(), "no copy": _NoCopy()}, storage_writer=writer)
    begin = time.monotonic()
    future: Any = dcp.async_save(model.state(), storage_writer=writer)
    model.step()
    future.result()
    assert time.monotonic() - begin < staging._BEGIN_SECONDS / 2


def test_a_save_that_was_given_up_does_not_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_BEGIN_SECONDS", 0.1)
    model = _Model()
    writer = StoreWriter(folder, lazy=model.optimizer)
    state: Any = writer.stage(model.state())
    model.step()
    failures: list[BaseException] = []

    def save() -> None:
        try:
            dcp.save(state, storage_writer=writer, no_dist=True)
        except BaseException as error:
            failures.append(error)

    saving = threading.Thread(target=save)
    saving.start()
    saving.join()
    assert len(failures) == 1 and "given up" in str(failures[0])
    with lmcstore.open(folder) as run:
        assert "run" not in run or len(run["run"]) == 0


def test_lazy_writers_are_not_pickled(folder: Path) -> None:
    writer = StoreWriter(folder, lazy=_Model().optimizer)
    with pytest.raises(lmcstore.UnsupportedError, match="saves in a thread"):
        pickle.dumps(writer)
    pickle.dumps(StoreWriter(folder))


def _save_lazily(rank: int, world: int, folder: Path) -> list[Any]:
    mesh = ranks.init_device_mesh("cpu", (world,))
    rows = torch.nn.Parameter(distribute_tensor(ranks.whole((9, 4), 0), mesh, [Shard(0)]))
    replicated = torch.nn.Parameter(ranks.whole((9, 4), 0))
    optimizer = torch.optim.Adam([rows, replicated], lr=1.0)
    expected: list[dict[str, Any]] = []
    for step in range(1, 5):
        rows.grad, replicated.grad = torch.full_like(rows, float(step)), torch.full_like(replicated, -1.0)
        optimizer.step()
        state = {"rows": rows, "replicated": replicated, "moments": [optimizer.state[rows]["exp_avg"]]}
        expected.append(
            {
                "rows": rows.detach().full_tensor().tolist(),
                "replicated": replicated.tolist(),
                "moments": [optimizer.state[rows]["exp_avg"].full_tensor().tolist()],
            }
        )
        future: Any = dcp.async_save(state, storage_writer=StoreWriter(folder, step=step, lazy=optimizer))
        if step == 4:  # which nothing waits for
            with torch.no_grad():
                rows.add_(1)
            try:
                future.result()
            except dcp.CheckpointException as error:
                return [expected, str(error)]
        else:
            optimizer.step()
            future.result()
    return [expected, ""]


def test_lazy_saves_on_ranks(folder: Path) -> None:
    expected, error = ranks.run(2, _save_lazily, folder)[0]
    with lmcstore.open(folder) as run:
        for step in range(1, 4):
            read = run["run"].at(step=step).state_dict()
            lists = {name: read[name].tolist() for name in ("rows", "replicated")}
            assert {**lists, "moments": [read["moments"][0].tolist()]} == expected[step - 1]
        assert len(run["run"]) == 3 + (not error)  # the change may have been after the copy
    into = {"rows": torch.zeros(9, 4)}
    dcp.load(into, storage_reader=StoreReader(folder, step=2))
    assert into["rows"].tolist() == expected[1]["rows"]
