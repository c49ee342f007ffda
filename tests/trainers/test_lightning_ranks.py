# SPDX-License-Identifier: BSD-3-Clause
"""Lightning and Fabric on several ranks: data-parallel ones write a pool, those of a sharded model a run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lmcstore
import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import Trainer
from lmcstore.lightning import StoreCheckpointIO, StoreFSDPStrategy, StoreModelParallelStrategy, find, load, write_stub
from lmcstore.lightning import fabric as ours
from lmcstore.lightning import stub as stubs
from pages import TOP, blocks
from programs import result, run

HERE = Path(__file__).parent
PAGE = TOP / "python/trainers/LIGHTNING.md"
DATA_PARALLEL, SHARDED = HERE / "lightning_parallel.py", HERE / "lightning_sharded.py"
FABRIC = HERE / "fabric_sharded.py"
ALONE = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
KINDS = pytest.mark.parametrize("kind", ["FSDP1", "FSDP2"])


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "")
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{os.environ.get('PYTHONPATH', '')}")
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)


@pytest.mark.deep
@KINDS
def test_a_sharded_model(kind: str) -> None:
    expected = result(run(SHARDED, 6, 2, kind))
    assert sorted(path.name for path in Path("checkpoints").iterdir()) == [
        "epoch=0-step=5.ckpt",
        "epoch=0-step=6.ckpt",
        "last.ckpt",
    ]
    whole = load("checkpoints/last.ckpt")
    assert whole["global_step"] == 6
    assert whole["state_dict"]["layer.0.weight"].shape == (7, 32)
    assert len(whole["optimizer_states"]) == 1
    with lmcstore.open("run", "r") as store:
        assert {snapshot.step for snapshot in store["run"]} == set(range(1, 7))
        assert len(store["run"].tags) == 3
        write_stub(store["run"].at(step=3), "three.ckpt")
    assert result(run(SHARDED, 6, 2, kind, "three.ckpt")) == expected
    os.mkdir("moved")
    for name in ("run", "three.ckpt"):
        os.rename(name, f"moved/{name}")
    for world in 1, 3:  # of three, one has no shard of some tensors
        assert result(run(SHARDED, 6, world, kind, "three.ckpt", cwd="moved")).startswith("step 6")


@pytest.mark.deep
@KINDS
def test_a_sharded_model_of_fabric(kind: str) -> None:
    expected = result(run(FABRIC, 6, 2, kind))
    assert find("last.ckpt").step == 6
    whole = load("last.ckpt")
    assert {name: whole[name] for name in ("step", "note")} == {"step": 6, "note": ["kept"]}
    assert whole["model"]["0.weight"].shape == whole["optimizer"]["state"]["0.weight"]["exp_avg"].shape == (7, 32)
    assert whole["scheduler"]["last_epoch"] == 6
    assert result(run(FABRIC, 6, 3, kind, "three.ckpt")).startswith("step 6")
    other = {"FSDP1": "FSDP2", "FSDP2": "FSDP1"}[kind]
    assert result(run(FABRIC, 6, 2, kind, "three.ckpt")) == expected
    assert result(run(FABRIC, 6, 2, other, "three.ckpt")) == expected


WRONG = """
import os, sys, torch
import lmcstore
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from fabric_sharded import shard
from lmcstore.lightning import StoreCheckpointIO
from lmcstore.lightning.fabric import StoreModelParallelStrategy

strategy = StoreModelParallelStrategy("run", shard, data_parallel_size=2, tensor_parallel_size=1)
fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
fabric.launch()
model = fabric.setup_module(torch.nn.Sequential(torch.nn.Linear(4, 4)))
optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def raises(kind, text, work):
    try:
        work()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}: {text}")
    fabric.barrier()


state = {"model": model, "optimizer": optimizer, "step": 1}
raises(TypeError, "leave filter out", lambda: fabric.save("a.ckpt", state, filter={"model": lambda *_: True}))
raises(lmcstore.InvalidError, "0 sharded models", lambda: fabric.save("a.ckpt", {"step": 1}))
raises(lmcstore.InvalidError, "named 'fabric'", lambda: fabric.save("a.ckpt", {"fabric": model}))
if fabric.global_rank == 0:
    os.makedirs("folder.ckpt/in")
    StoreCheckpointIO("other.pool").save_checkpoint({"step": 4}, "other.ckpt")
fabric.barrier()
raises(lmcstore.InvalidError, "is a folder", lambda: fabric.save("folder.ckpt", state))  # on all ranks
own = {"object": lambda: 0} if fabric.global_rank == 1 else {}
raises(Exception, "pickle", lambda: fabric.save("a.ckpt", {**state, **own}))
raises(lmcstore.InvalidError, "has not saved", lambda: fabric.load("other.ckpt", state))
raises(FileNotFoundError, "none.ckpt", lambda: fabric.load("none.ckpt", state))
fabric.save("a.ckpt", state)
more = {**state, "step": 0, "more": 5}
raises(lmcstore.NotFoundError, "no 'more'; with strict=False", lambda: fabric.load("a.ckpt", more))
assert fabric.load("a.ckpt", more, strict=False) == {} and (more["step"], more["more"]) == (1, 5)
raises(lmcstore.InvalidError, "no state of an int", lambda: fabric.load("a.ckpt", {"model": model, "optimizer": 3}))
raises(TypeError, "load it by load", lambda: fabric.load_raw("a.ckpt", model))
ModelParallelStrategy.save_checkpoint(strategy, "files", {"model": model.module, "step": 8})
more = {"model": model, "step": 0}
fabric.load("files", more)
assert more["step"] == 8
"""


@pytest.mark.deep
def test_errors_are_raised_on_all_ranks() -> None:
    Path("wrong.py").write_text(WRONG)
    run("wrong.py")


def test_full_states_are_refused() -> None:
    for package in lmcstore.lightning, ours:
        with pytest.raises(lmcstore.InvalidError, match="use FSDPStrategy of"):
            package.StoreFSDPStrategy("run", state_dict_type="full")
    with pytest.raises(lmcstore.InvalidError, match="use ModelParallelStrategy of Lightning"):
        StoreModelParallelStrategy("run", save_distributed_checkpoint=False)
    with pytest.raises(lmcstore.InvalidError, match="use ModelParallelStrategy of Fabric"):
        ours.StoreModelParallelStrategy("run", lambda module, mesh: module, save_distributed_checkpoint=False)
    assert not Path("run").exists()


@pytest.mark.parametrize("kind", [Trainer, Fabric])
def test_options_are_those_of_lightning(kind: Any) -> None:
    chosen = StoreFSDPStrategy if kind is Trainer else ours.StoreFSDPStrategy
    strategy = chosen("run", auto_wrap_policy={torch.nn.Linear}, sharding_strategy="SHARD_GRAD_OP")
    taken = kind(accelerator="cpu", devices=2, strategy=strategy).strategy
    assert taken is strategy
    assert strategy.sharding_strategy.name == "SHARD_GRAD_OP"


@pytest.mark.deep
def test_data_parallel_ranks_read_what_the_first_has_written() -> None:
    expected = result(run(DATA_PARALLEL, 6))
    for name in ("checkpoints", "run.pool"):
        os.rename(name, f"once-{name}")
    run(DATA_PARALLEL, 3)
    assert result(run(DATA_PARALLEL, 6)) == expected
    assert find("checkpoints/last.ckpt").step == 6


READER = """
import logging, sys
from lmcstore.lightning import StoreCheckpointIO

logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
print("step", StoreCheckpointIO("run.pool").load_checkpoint("2.ckpt")["global_step"])
"""


@pytest.mark.parametrize("fate", ["saves", "fails", "dies"])
def test_other_processes_wait_for_a_pending_stub(monkeypatch: pytest.MonkeyPatch, fate: str) -> None:
    plugin, write, gate = StoreCheckpointIO("run.pool", wait=False), stubs.write, threading.Event()
    plugin.save_checkpoint({"global_step": 1}, "1.ckpt")

    def later(stub: Any, path: str) -> Any:
        if stub.pending:  # not durable before the gate opens: another snapshot than the pool has
            return write(stub._replace(snapshot=99), path)
        gate.wait(60)
        if fate == "fails":
            raise OSError("no space")
        return write(stub, path)

    monkeypatch.setattr(stubs, "write", later)
    if fate == "dies":
        first = stubs.read("1.ckpt")
        assert first is not None
        pid = os.fork()
        if pid == 0:
            held = later(first._replace(pending=True, time_ns=first.time_ns + 1), "2.ckpt")
            os._exit(0 if held else 1)
        os.waitpid(pid, 0)
    else:
        plugin.save_checkpoint({"global_step": 2}, "2.ckpt")
    with subprocess.Popen([sys.executable, "-c", READER], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        if fate != "dies":
            for line in reader.stdout:
                assert not line.startswith("step"), "it did not wait"
                if "2.ckpt is being saved by another process" in line:
                    break
        gate.set()
        said = reader.stdout.read()
    assert result(said) == ("step 2" if fate == "saves" else "step 1")
    assert ("the newest before it, is loaded" in said) == (fate != "saves")
    if fate == "fails":
        with pytest.raises(OSError, match="no space"):
            plugin.teardown()
    plugin.teardown()


@pytest.mark.deep
def test_the_page() -> None:
    for name, block in zip(("of_trainer.py", "of_fabric.py"), blocks(PAGE.read_text())[2:], strict=True):
        Path(name).write_text(block)
        run(name)
    assert load("sharded-checkpoints/last.ckpt")["global_step"] == 3
    assert load("sharded-fabric.ckpt")["step"] == 3
