# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints of DeepSpeed in pools, on a CPU."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
os.environ.setdefault("MASTER_PORT", "0")

import deepspeed
import killed
import lmcstore
import lmcstore.deepspeed as module
import pytest
import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from lmcstore.deepspeed import StoreCheckpointEngine, export, latest

WITHOUT_COMPILER = "deepspeed.ops.__compatible_ops__['deepspeed_shm_comm'] = False"
exec(WITHOUT_COMPILER)  # DeepSpeed would compile an operator for minutes, which gloo replaces


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


class Config:
    pass


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    os.environ["MASTER_PORT"] = free_port()
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def an_engine(stage: int = 0, dtype: str = "", store: bool = True, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    between = torch.nn.Tanh() if dtype else torch.nn.BatchNorm1d(16)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), between, torch.nn.Linear(16, 1))
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "steps_per_print": 10**9,
    }
    if dtype:
        config[dtype] = {"enabled": True}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    if store:
        engine.checkpoint_engine = StoreCheckpointEngine(engine)
    return engine


def train(engine: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        numbers = torch.Generator().manual_seed(engine.global_steps)
        inputs = torch.randn(4, 8, generator=numbers).to(engine.get_data_types()[0])
        loss = engine(inputs).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("stage", "dtype"), [(0, ""), (1, "bf16"), (2, ""), (3, ""), (3, "bf16")])
def test_a_checkpoint_continues_the_run(tmp_path: Path, stage: int, dtype: str) -> None:
    engine = an_engine(stage, dtype)
    train(engine, 2)
    client = {"note": "x", "object": slice(1, 2), "tuple": (1, slice(2)), "tensor": torch.arange(3), "set": {1, 2}}
    engine.save_checkpoint(str(tmp_path), client_state={"client": client})
    wanted = train(engine, 3)
    engine.save_checkpoint(str(tmp_path), tag="later")
    later = train(engine, 1)
    engine.checkpoint_engine.close()
    assert latest(tmp_path) == "later"
    for tag, steps, losses in (("global_step2", 2, wanted), (None, 5, later)):
        again = an_engine(stage, dtype, seed=5)
        path, state = again.load_checkpoint(str(tmp_path), tag=tag)
        assert path is not None and again.global_steps == steps
        if tag:
            tensor = state["client"].pop("tensor")
            assert torch.equal(tensor, client.pop("tensor")) and state["client"] == client
        assert train(again, len(losses)) == losses


def shown(folder: Path) -> dict[str, Any]:
    with lmcstore.open(folder / "rank-00000.pool", "r") as store:
        return {shelf: [snapshot.number for snapshot in store[shelf]] for shelf in store}


def test_the_pool(tmp_path: Path) -> None:
    engine = an_engine(2)
    for _ in range(2):
        train(engine, 1)
        engine.save_checkpoint(str(tmp_path))
    with lmcstore.open(tmp_path / "rank-00000.pool", "r") as store:
        shelf = store["mp_rank_00_model_states"]
        assert [snapshot.step for snapshot in shelf] == [1, 2]
        assert shelf.latest.meta["tag"] == "global_step2" and shelf.latest.meta["file"] == "mp_rank_00_model_states.pt"
        assert torch.equal(shelf.latest["state.module.0.weight"].torch(), engine.module[0].weight)


def test_a_checkpoint_without_its_commit_is_none(tmp_path: Path) -> None:
    engine = an_engine(1)
    folder = str(tmp_path)
    store = engine.checkpoint_engine
    info = module.CheckpointCommitInfo("begun", folder, True)
    store.create(info)
    engine._save_checkpoint(folder, "begun")
    engine._save_zero_checkpoint(folder, "begun")
    assert latest(tmp_path) is None
    store._taken = {}  # as a process that was killed
    path, _ = an_engine(1).load_checkpoint(folder)
    assert path is None
    train(engine, 1)
    engine.save_checkpoint(folder)
    (tmp_path / "begun").mkdir(exist_ok=True)
    name = "mp_rank_00_model_states.pt"
    (tmp_path / "begun" / name).write_bytes((tmp_path / "global_step1" / name).read_bytes())
    with pytest.raises(lmcstore.NotFoundError, match=r"begun: no checkpoint was committed here; .* is 'global_step1'"):
        an_engine(1).load_checkpoint(folder, tag="begun")
    assert engine.checkpoint_engine.clean(folder) == 2
    assert an_engine(1).load_checkpoint(folder)[0] is not None


def test_a_tag_that_is_saved_again_is_the_old_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, folder = an_engine(2), str(tmp_path)
    engine.save_checkpoint(folder, tag="last")
    train(engine, 1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_publish", full)
        with pytest.raises(OSError, match="No space left"):
            engine.save_checkpoint(folder, tag="last")
    again = an_engine(2)
    again.load_checkpoint(folder, tag="last")
    assert again.global_steps == 0
    assert engine.checkpoint_engine.clean(folder) == 2
    assert all(numbers == [1] for numbers in shown(tmp_path).values())
    (tmp_path / "last" / "other_model_states.pt").write_bytes(module._PLACEHOLDER)
    engine.save_checkpoint(folder, tag="last")
    assert not (tmp_path / "last" / "other_model_states.pt").exists()
    again.load_checkpoint(folder, tag="last")
    assert again.global_steps == 1
    with lmcstore.open(tmp_path / "rank-00000.pool") as store:
        store["notes"].snapshot({"x": 1})
    assert engine.checkpoint_engine.clean(folder) == 2
    assert shown(tmp_path)["notes"] == [1]
    again.load_checkpoint(folder, tag="last")


def test_files_of_another_checkpoint_are_not_overwritten(tmp_path: Path) -> None:
    engine = an_engine(0, store=False)
    engine.save_checkpoint(str(tmp_path), tag="a")
    engine.checkpoint_engine = StoreCheckpointEngine(engine)
    with pytest.raises(lmcstore.ExistsError, match=r"mp_rank_00_model_states\.pt is a file of another checkpoint"):
        engine.save_checkpoint(str(tmp_path), tag="a")
    assert an_engine(0).load_checkpoint(str(tmp_path), tag="a")[0] is not None


def test_a_failure_of_save_is_raised_by_the_commit(tmp_path: Path) -> None:
    engine = an_engine(0)
    engine.checkpoint_engine.close()
    lmcstore.open(tmp_path / "rank-00000.pool", size="8MiB").close()
    with pytest.raises(lmcstore.FullError):
        engine.save_checkpoint(str(tmp_path), client_state={"large": torch.randn(4 << 20)})
    assert latest(tmp_path) is None
    engine.save_checkpoint(str(tmp_path))
    assert latest(tmp_path) == "global_step0"


def test_an_object_that_cannot_be_pickled(tmp_path: Path) -> None:
    engine = an_engine(0)
    with pytest.raises(lmcstore.UnsupportedError, match=r"mp_rank_00_model_states\.pt: it was not saved: .*pickle"):
        engine.save_checkpoint(str(tmp_path), client_state={"object": lambda: 0})
    assert latest(tmp_path) is None
    engine.save_checkpoint(str(tmp_path))
    assert latest(tmp_path) == "global_step0"


def test_files_of_torch(tmp_path: Path) -> None:
    engine = an_engine(2)
    train(engine, 1)
    engine.save_16bit_model(str(tmp_path / "export"), "model.bin")
    assert torch.equal(torch.load(tmp_path / "export" / "model.bin")["0.weight"], engine.module[0].weight)
    engine.save_checkpoint(str(tmp_path / "ours"))
    engine.checkpoint_engine = TorchCheckpointEngine()
    engine.save_checkpoint(str(tmp_path / "torchs"))
    export(tmp_path / "ours", "global_step1", tmp_path / "export")
    again = an_engine(2)
    assert again.load_checkpoint(str(tmp_path / "torchs"))[0] is not None
    wanted = train(again, 2)
    other = an_engine(2, store=False)
    assert other.load_checkpoint(str(tmp_path / "export"))[0] is not None
    assert train(other, 2) == wanted
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    state = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path / "export"))
    assert torch.equal(state["0.weight"], engine.module[0].weight)
    with pytest.raises(lmcstore.InvalidError, match="another folder"):
        export(tmp_path / "ours", "global_step1", tmp_path / "ours")


def test_errors_of_a_load(tmp_path: Path) -> None:
    engine = an_engine(0)
    engine.checkpoint_engine = StoreCheckpointEngine(engine, tmp_path / "pools")
    engine.save_checkpoint(str(tmp_path / "run"))
    engine.checkpoint_engine.close()
    file = tmp_path / "run" / "global_step0" / "mp_rank_00_model_states.pt"
    load = engine.checkpoint_engine.load
    assert load(str(file), map_location="cpu")["global_steps"] == 0
    with pytest.raises(lmcstore.UnsupportedError, match="loaded onto the CPU, not meta"):
        load(str(file), map_location="meta")
    record = file.parent / "lmcstore.json"
    text = record.read_text()
    for damaged in ("", "[]", "{}", text[:-20], text.replace('"../', '"..')):
        record.write_text(damaged)
        with pytest.raises((lmcstore.DamagedError, lmcstore.NotFoundError)):
            load(str(file))
    record.write_text(text)
    (tmp_path / "pools" / "rank-00000.pool").unlink()
    with lmcstore.open(tmp_path / "pools" / "rank-00000.pool") as store:
        store["mp_rank_00_model_states"].snapshot({"x": 1})
    with pytest.raises(lmcstore.DamagedError, match="another pool has taken its place"):
        load(str(file))


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    killed.run_page("DEEPSPEED.md")


# Two ranks


def start(code: str, *arguments: object) -> list[subprocess.Popen[str]]:
    port = free_port()
    processes = []
    for rank in ("0", "1"):
        env = os.environ | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_PORT": port}
        command = [sys.executable, "-c", code, *map(str, arguments)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env))
    return processes


EXAMPLE = f"""
import deepspeed, runpy, sys
{WITHOUT_COMPILER}
sys.argv[0] = {str(killed.EXAMPLES / "deepspeed_train.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def output(processes: list[subprocess.Popen[str]]) -> list[str]:
    texts = [process.communicate(timeout=400)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], texts
    return [line for line in texts[0].splitlines() if line.startswith(("step", "resuming", "parameters"))]


@pytest.mark.parametrize("stage", [2, *(pytest.param(stage, marks=pytest.mark.deep) for stage in (0, 1, 3))])
def test_the_example_is_killed_and_resumed(tmp_path: Path, stage: int) -> None:
    once = output(start(EXAMPLE, tmp_path / "once", "--stage", stage))
    processes = start(EXAMPLE, tmp_path / "twice", "--stage", stage)
    assert processes[0].stdout is not None
    for line in processes[0].stdout:
        if line.startswith("step 3"):
            break
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    twice = output(start(EXAMPLE, tmp_path / "twice", "--stage", stage))
    assert twice[0] in ("resuming at step 4", "resuming at step 5")
    assert twice[1:] == once[-len(twice) + 1 :]


FAILING = f"""
import deepspeed, lmcstore, os, sys, torch
from lmcstore.deepspeed import StoreCheckpointEngine, latest
{WITHOUT_COMPILER}
model = torch.nn.Linear(2, 2)
config = {{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {{"stage": 1}},
          "optimizer": {{"type": "Adam", "params": {{"lr": 1e-2, "torch_adam": True}}}}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
rank = torch.distributed.get_rank()
os.makedirs(sys.argv[1], exist_ok=True)
if rank == 1:
    os.mkdir(sys.argv[1] + "/rank-00001.pool")
engine.checkpoint_engine = StoreCheckpointEngine(engine)
try:
    engine.save_checkpoint(sys.argv[1], client_state={{"object": lambda: 0}})  # which rank 0 saves
except lmcstore.Error as error:
    print("step", "failed", type(error).__name__, flush=True)
for attempt in range(2):
    try:
        engine.save_checkpoint(sys.argv[1])
        print("step", "saved")
    except (lmcstore.Error, OSError) as error:
        print("step", "failed", "rank 1" in str(error) if rank == 0 else "rank-00001.pool" in str(error))
    print("step", latest(sys.argv[1]))
    torch.distributed.barrier()
    if rank == 1 and attempt == 0:
        os.rmdir(sys.argv[1] + "/rank-00001.pool")
    torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.deep
def test_a_failure_of_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    lines = output(start(FAILING, tmp_path / "run"))
    assert lines == [
        "step failed UnsupportedError", "step failed True", "step None", "step saved", "step global_step0"
    ]  # fmt: skip
