# SPDX-License-Identifier: BSD-3-Clause
"""Lightning and Fabric: checkpoints are snapshots, and stubs at their paths."""

from __future__ import annotations

import argparse
import dataclasses
import doctest
import enum
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import AsyncCheckpointIO
from lmcstore.lightning import Pickled, StoreCheckpointIO, as_file, find, load, write_stub
from lmcstore.lightning import stub as stubs
from pages import blocks
from programs import result, run

PYTHON = Path(__file__).resolve().parent.parent.parent / "python"
EXAMPLE = PYTHON / "examples/lightning_resume.py"
PAGE = PYTHON / "trainers/LIGHTNING.md"
warnings.filterwarnings("ignore", module="lightning")


class Batches:
    def __init__(self, count: int = 6) -> None:
        self.count = count
        self.next = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.next < self.count:
            self.next += 1
            yield torch.randn(8, 16, generator=torch.Generator().manual_seed(self.next))
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Model(LightningModule):
    def __init__(self, width: int = 16, other: Any = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(7)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.0), torch.nn.Linear(width, 16)
        )

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = (self.layers(batch) - batch).square().mean()
        self.log("loss", loss)
        return loss

    def test_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("test_loss", (self.layers(batch) - batch).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "")


def trainer_of(plugin: Any, steps: int, **options: Any) -> Trainer:
    usual = {"every_n_train_steps": 1, "save_top_k": 2, "monitor": "loss", "save_last": True}
    checkpoints = ModelCheckpoint("checkpoints", **{**usual, **options})
    return Trainer(
        accelerator="cpu",
        plugins=[plugin],
        callbacks=[checkpoints],
        max_steps=steps,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )


def fit(plugin: Any, steps: int, path: str | None = None, model: Model | None = None, **options: Any) -> Trainer:
    trainer = trainer_of(plugin, steps, **options)
    trainer.fit(model or Model(), Batches(), ckpt_path=path, weights_only=False)
    return trainer


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return dict(trainer.lightning_module.state_dict())


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple | deque):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


# Training


@pytest.mark.parametrize(
    ("last", "waits"),
    [
        (True, True),
        ("link", False),
        pytest.param(True, False, marks=pytest.mark.deep),
        pytest.param("link", True, marks=pytest.mark.deep),
    ],
)
def test_a_resumed_run_has_the_same_weights(last: Any, waits: bool) -> None:
    once = weights(fit(StoreCheckpointIO("once.pool"), 14))
    shutil.rmtree("checkpoints")
    fit(StoreCheckpointIO("run.pool", wait=waits), 8, save_last=last)
    assert os.path.islink("checkpoints/last.ckpt") == (last == "link")
    again = fit(StoreCheckpointIO("run.pool", wait=waits), 14, "last", save_last=last)
    assert again.global_step == 14
    assert_same(weights(again), once)
    with lmcstore.open("run.pool", "r") as store:
        assert store["run"].latest.step == 14 or last == "link"
        assert any(snapshot.metrics.keys() == {"loss"} for snapshot in store["run"])


def test_lightning_keeps_what_it_would_keep_in_files() -> None:
    trainer = fit(StoreCheckpointIO("run.pool"), 10)
    callback: Any = trainer.checkpoint_callback
    kept = {os.path.basename(path) for path in callback.best_k_models}
    assert {path.name for path in Path("checkpoints").iterdir()} == kept | {"last.ckpt"}
    for path, loss in callback.best_k_models.items():
        snapshot = find(path)
        assert f"step={snapshot.step}" in path
        assert snapshot.metrics["loss"] == pytest.approx(loss.item())
        assert snapshot.tags == [Path(path).stem]
    assert find("checkpoints/last.ckpt").step == 10
    assert trainer.test(Model(), Batches(), ckpt_path="best", verbose=False)[0]["test_loss"] > 0
    with lmcstore.open("run.pool", "r") as store:
        assert {tag.partition(".")[0] for tag in store["run"].tags} == {Path(name).stem for name in kept} | {"last"}


def test_each_path_has_its_own_tag_until_it_is_replaced() -> None:
    plugin = StoreCheckpointIO("run.pool")
    for step in range(1, 4):
        plugin.save_checkpoint({"global_step": step}, "a/last.ckpt")
        plugin.save_checkpoint({"global_step": step}, "b/last.ckpt")
        plugin.save_checkpoint({"global_step": step}, f"b/{step}.ckpt")
        plugin.save_checkpoint({"global_step": step}, "b/a:b@{c}~..latest.ckpt")
        with lmcstore.open("run.pool", "r") as store:
            assert len(store["run"].tags) == 3 + step
            for path in [*Path("a").iterdir(), *Path("b").iterdir()]:
                snapshot = find(path)
                assert len(snapshot.tags) == 1
                assert snapshot.step == (int(path.stem) if path.stem.isdigit() else step)
    plugin.teardown()


def test_a_policy_keeps_what_has_a_stub() -> None:
    fit(StoreCheckpointIO("run.pool", policy="keep=last:1"), 10)
    with lmcstore.open("run.pool") as store:
        store["run"].prune()
        assert len(store["run"]) == 3
    for path in Path("checkpoints").iterdir():
        assert load(path)["global_step"] == find(path).step


def test_removed_snapshots() -> None:
    plugin = StoreCheckpointIO("run.pool", removes=True)
    fit(plugin, 8)
    with lmcstore.open("run.pool") as store:
        assert len(store["run"]) == 3
    plugin.save_checkpoint(
        {"global_step": 9}, "mine.ckpt", {"tags": "good", "metrics": {"loss": 0.5}, "meta": {"a": 1}}
    )
    plugin.save_checkpoint({"global_step": 10}, "mine.ckpt", {"step": 11})
    plugin.remove_checkpoint("mine.ckpt")
    plugin.remove_checkpoint("mine.ckpt")
    assert not os.path.exists("mine.ckpt")
    plugin.teardown()
    with lmcstore.open("run.pool") as store:
        assert len(store["run"]) == 4
        good = store["run"]["good"]
        assert (good.step, good.metrics, good.meta, good.tags) == (9, {"loss": 0.5}, {"a": 1}, ["good"])


def test_a_snapshot_continues_the_one_that_was_loaded() -> None:
    plugin = StoreCheckpointIO("run.pool")
    for step in range(3):
        plugin.save_checkpoint({"global_step": step}, f"{step}-.ckpt")
    plugin.load_checkpoint("0-.ckpt")
    plugin.save_checkpoint({"global_step": 1}, "again.ckpt")
    plugin.save_checkpoint({"global_step": 2}, "again.ckpt")
    plugin.teardown()
    with lmcstore.open("run.pool", "r") as store:
        assert [snapshot.parent for snapshot in store["run"]] == [None, 1, 2, 1, 4]


def test_steps_are_stored_as_links() -> None:
    fit(StoreCheckpointIO("run.pool"), 12, model=Model(1024), save_last="link", save_top_k=-1)
    with lmcstore.open("run.pool") as store:
        store.compact()
        for number in range(2, 8):
            storage = store["run"][number].storage()
            assert "0.weight" not in (storage["links_note"] or "")
            assert storage["link_contents"] >= 6
            assert storage["stored_bytes"] < 0.5 * store["run"][number].raw_bytes


# What is in a checkpoint


@dataclasses.dataclass
class Config:
    width: int = 3


class Color(enum.Enum):
    RED = 1


Pair = namedtuple("Pair", "a b")


class Text(str):
    pass


PLAIN: dict[str, Any] = {
    "scalars": [None, True, 1, 2.5, 1j, "text", b"bytes"],
    "path": Path("a/b"),
    "counter": Counter({30: 1, 80: 2}),
    "ordered": OrderedDict(b=1, a=2),
    "default": defaultdict(list, {"a": [1]}),
    "deque": deque([1, 2], 5),
    "set": {1, 2},
    "tuple": (1, (2, torch.ones(2))),
    "keys": {1: "a", None: "b", 2.5: "c", (1, 2): "d"},
    "size": torch.Size([2, 3]),
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"),
    "bf16": torch.ones(3, dtype=torch.bfloat16),
}
OTHERS: dict[str, Any] = {
    "dataclass": Config(5),
    "inside": [{"deep": Config(6)}, (Config(7),)],
    "enum": Color.RED,
    "namedtuple": Pair(1, 2),
    "namespace": argparse.Namespace(lr=0.1),
    "class": Config,
    "text": Text("abc"),
    "deque": deque([Config(8)]),
    "default": defaultdict(Config, {"a": Config(1)}),
    "odd keys": {Color.RED: 1},
    "sparse": torch.eye(3).to_sparse(),
    "dtype": torch.zeros(2, dtype=torch.float32).view(torch.uint8),
}


def test_plain_data_need_no_pickle() -> None:
    plugin = StoreCheckpointIO("run.pool")
    plugin.save_checkpoint(PLAIN, "a.ckpt")
    plugin.teardown()
    assert_same(load("a.ckpt", weights_only=True), PLAIN)
    with find("a.ckpt").shelf.store as store:
        assert_same(store["run"].latest.state_dict(), PLAIN)


@pytest.mark.parametrize("name", OTHERS)
def test_other_objects_are_pickles(name: str) -> None:
    value = OTHERS[name]
    plugin = StoreCheckpointIO("run.pool")
    plugin.save_checkpoint({"value": value, "global_step": 1}, "a.ckpt")
    plugin.teardown()
    loaded = load("a.ckpt", weights_only=False)["value"]
    if isinstance(value, torch.Tensor):
        assert_same(loaded.to_dense(), value.to_dense())
        return
    assert_same(loaded, value)
    with pytest.raises(lmcstore.UnsupportedError, match=r"run@1: value.*stored as a pickle.*weights_only=False"):
        load("a.ckpt")
    torch.serialization.add_safe_globals([Config, Color, Pair, Text, argparse.Namespace, deque, defaultdict])
    try:
        if name in ("dataclass", "inside", "namespace"):
            assert_same(load("a.ckpt")["value"], value)
    finally:
        torch.serialization.clear_safe_globals()


def test_a_pickle_runs_no_code_unless_it_is_asked_for() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, ("evil",)

    plugin = StoreCheckpointIO("run.pool")
    plugin.save_checkpoint({"value": Evil()}, "a.ckpt")
    plugin.teardown()
    for weights_only in (None, True):
        with pytest.raises(lmcstore.UnsupportedError):
            load("a.ckpt", weights_only=weights_only)
    snapshot = find("a.ckpt")
    assert snapshot.state_dict(types=[Pickled])["value"].type.endswith("Evil")
    assert not os.path.exists("evil")
    load("a.ckpt", weights_only=False)
    assert os.path.exists("evil")


def test_what_can_be_neither_stored_nor_pickled() -> None:
    plugin = StoreCheckpointIO("run.pool")
    with pytest.raises(lmcstore.UnsupportedError, match=r"hyper_parameters\.f: a builtins\.function can be neither"):
        plugin.save_checkpoint({"hyper_parameters": {"f": lambda: 0}}, "a.ckpt")
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(lmcstore.UnsupportedError, match="contains itself"):
        plugin.save_checkpoint({"loop": loop}, "a.ckpt")
    assert not os.path.exists("a.ckpt")
    plugin.teardown()


def test_hyperparameters_and_models_that_load_by_themselves() -> None:
    fit(StoreCheckpointIO("run.pool"), 2, model=Model(8, Config(4)))
    with pytest.raises(lmcstore.UnsupportedError, match=r"hyper_parameters\.other"):
        load("checkpoints/last.ckpt")
    model = Model.load_from_checkpoint(as_file("checkpoints/last.ckpt", weights_only=False), weights_only=False)
    assert model.hparams.other == Config(4)
    assert model.hparams.width == 8
    assert load("checkpoints/last.ckpt", weights_only=False)["state_dict"]._metadata["layers.1"] == {"version": 2}


def test_map_location() -> None:
    tensor = torch.arange(6.0)
    state = {"a": tensor, "b": [tensor.view(2, 3)], "c": (tensor[2:], 1), "d": {"x": tensor[1::2]}}
    plugin = StoreCheckpointIO("run.pool")
    plugin.save_checkpoint(state, "a.ckpt")
    locations: list[Any] = ["meta", torch.device("meta"), {"cpu": "meta"}, {"cuda:0": "meta"}, "cpu", None]
    for location in locations:
        loaded = plugin.load_checkpoint("a.ckpt", map_location=location)
        is_moved = location not in ("cpu", None, {"cuda:0": "meta"})
        assert {loaded["a"].device.type, loaded["b"][0].device.type} == {"meta" if is_moved else "cpu"}
        assert loaded["b"][0].shape == (2, 3)
        assert loaded["d"]["x"].stride() == (2,)
    seen = []

    def keep(storage: Any, place: str) -> Any:
        seen.append(place)
        return storage

    loaded = plugin.load_checkpoint("a.ckpt", map_location=keep)
    assert set(seen) == {"cpu"}
    assert loaded["a"].data_ptr() == loaded["b"][0].data_ptr()
    loaded["a"][2] = 77
    assert loaded["c"][0][0] == 77
    plugin.teardown()


# Plugins


def test_lightning_calls_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    for name in ("save_checkpoint", "load_checkpoint", "remove_checkpoint", "teardown"):
        method = getattr(StoreCheckpointIO, name)

        def called(self: Any, *arguments: Any, _name: str = name, _method: Any = method, **options: Any) -> Any:
            calls[_name] += 1
            return _method(self, *arguments, **options)

        monkeypatch.setattr(StoreCheckpointIO, name, called)
    assert isinstance(StoreCheckpointIO("run.pool"), CheckpointIO)
    trainer = fit(StoreCheckpointIO("run.pool"), 5, monitor=None, save_top_k=1)
    assert calls["save_checkpoint"] == 10
    assert calls["remove_checkpoint"] == 4
    assert calls["teardown"] == 1
    trainer.test(Model(), Batches(), ckpt_path="last", verbose=False)
    assert calls["load_checkpoint"] == 1


def test_a_plugin_in_lightnings_thread() -> None:
    once = weights(fit(StoreCheckpointIO("once.pool"), 12))
    shutil.rmtree("checkpoints")
    inner = StoreCheckpointIO("run.pool")
    fit(AsyncCheckpointIO(inner), 7)
    inner.teardown()
    assert find("checkpoints/last.ckpt").step == 7
    inner = StoreCheckpointIO("run.pool")
    again = fit(AsyncCheckpointIO(inner), 12, "last")
    inner.teardown()
    assert_same(weights(again), once)


def test_the_state_may_change_after_a_save_in_the_background() -> None:
    plugin = StoreCheckpointIO("run.pool", wait=False)
    tensor = torch.zeros(1 << 16)
    for step in range(8):
        tensor.fill_(step)
        plugin.save_checkpoint({"tensor": tensor, "global_step": step}, f"{step}.ckpt")
    for step in range(4):
        plugin.remove_checkpoint(f"{step}.ckpt")
    plugin.wait()
    assert sorted(str(path) for path in Path().glob("*.ckpt")) == [f"{step}.ckpt" for step in range(4, 8)]
    assert plugin.load_checkpoint("5.ckpt")["tensor"].eq(5).all()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint 1\.ckpt"):
        plugin.load_checkpoint("1.ckpt")
    plugin.teardown()


@pytest.mark.parametrize("next_call", ["save", "remove", "teardown"])
def test_a_failure_in_the_background_is_raised_once(next_call: str) -> None:
    plugin = StoreCheckpointIO("run.pool", wait=False)
    os.mkdir("folder.ckpt")
    plugin.save_checkpoint({"global_step": 1}, "folder.ckpt")
    for _ in range(200):
        if plugin._pending[0].done():
            break
        time.sleep(0.05)
    with pytest.raises(lmcstore.InvalidError, match="is a folder"):
        if next_call == "save":
            plugin.save_checkpoint({"global_step": 2}, "b.ckpt")
        elif next_call == "remove":
            plugin.remove_checkpoint("b.ckpt")
        else:
            plugin.teardown()
    plugin.save_checkpoint({"global_step": 3}, "b.ckpt")
    plugin.teardown()
    assert find("b.ckpt").step == 3


@pytest.mark.parametrize("removes", [False, True])
def test_a_checkpoint_stays_if_the_next_one_is_not_saved(monkeypatch: pytest.MonkeyPatch, removes: bool) -> None:
    plugin, write, gate = StoreCheckpointIO("run.pool", removes=removes, wait=False), stubs.write, threading.Event()
    plugin.save_checkpoint({"global_step": 1}, "1.ckpt")

    def fails(stub: Any, path: str) -> None:
        if not stub.pending:
            gate.wait(60)
            raise OSError("no space")
        write(stub, path)

    monkeypatch.setattr(stubs, "write", fails)
    plugin.save_checkpoint({"global_step": 2}, "2.ckpt")
    plugin.remove_checkpoint("1.ckpt")
    gate.set()
    with pytest.raises(OSError, match="no space"):
        plugin.teardown()
    assert load("1.ckpt") == {"global_step": 1} and find("1.ckpt").tags == ["checkpoint-1"]
    assert load("2.ckpt") == {"global_step": 2}
    monkeypatch.setattr(stubs, "write", write)
    plugin.save_checkpoint({"global_step": 3}, "2.ckpt")  # lets go of the one that the pending stub named
    plugin.teardown()
    with lmcstore.open("run.pool", "r") as store:
        assert sorted(store["run"].tags) == ["checkpoint-1", "checkpoint-2.2"]


def test_a_job_that_dies_before_a_stub_is_written(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    finish = StoreCheckpointIO._finish
    caplog.set_level("INFO", "lmcstore")

    def dies(self: Any, snapshot: Any, *rest: Any) -> None:
        if snapshot.step == 4:
            raise OSError("dead")
        finish(self, snapshot, *rest)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="dead"):
        patched.setattr(StoreCheckpointIO, "_finish", dies)
        fit(StoreCheckpointIO("run.pool", wait=False), 4, save_last="link", save_top_k=-1)
    stub = stubs.read("checkpoints/last.ckpt")
    assert stub is not None and stub.pending
    fit(StoreCheckpointIO("run.pool", wait=False), 5, "last", save_last="link", save_top_k=-1)
    assert "loaded the checkpoint of step 4 from run@4" in caplog.text
    lost = stub._replace(snapshot=99, step=99, time_ns=time.time_ns())  # as if that had not been durable
    stubs.write(lost, "lost.ckpt")
    with pytest.raises(lmcstore.NotFoundError, match=r"lost\.ckpt names run@99 .* is not durable yet, or its"):
        load("lost.ckpt")
    assert fit(StoreCheckpointIO("run.pool"), 6, "lost.ckpt").global_step == 6
    assert re.search(r"lost\.ckpt names the snapshot of step 99.* run@5 of step 5, the newest before it", caplog.text)
    plugin = StoreCheckpointIO("run.pool", wait=False)
    plugin.remove_checkpoint("lost.ckpt")
    plugin.teardown()
    stubs.write(lost._replace(snapshot=4), "lost.ckpt")  # another has its number now
    assert plugin.load_checkpoint("lost.ckpt")["global_step"] == 3
    plugin.teardown()


def test_names_of_checkpoints_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    finish, wait, gate = StoreCheckpointIO._finish, StoreCheckpointIO.wait, threading.Event()
    monkeypatch.setattr(StoreCheckpointIO, "_finish", lambda *given: (gate.wait(60), finish(*given)))
    monkeypatch.setattr(StoreCheckpointIO, "wait", lambda self: (gate.set(), wait(self), gate.clear()))
    plugin = StoreCheckpointIO("run.pool", removes=True, wait=False)
    trainer = fit(plugin, 6, filename="best", save_top_k=3, save_last=False)
    callback: Any = trainer.checkpoint_callback
    kept = {os.path.abspath(path): loss.item() for path, loss in callback.best_k_models.items()}
    assert {os.path.abspath(path) for path in Path("checkpoints").iterdir()} == kept.keys()
    assert len(kept) == 3 and {path: find(path).metrics["loss"] for path in kept} == pytest.approx(kept)


def test_a_full_pool_reaches_the_user() -> None:
    with lmcstore.open("run.pool", "x", size="16MiB"):
        pass
    with pytest.raises(lmcstore.FullError):
        fit(StoreCheckpointIO("run.pool", policy="keep_raw=100"), 40, model=Model(20_000), save_top_k=-1)
    assert load("checkpoints/last.ckpt")["global_step"] >= 1


def test_options_that_make_no_sense() -> None:
    plugin = StoreCheckpointIO("run.pool")
    with pytest.raises(lmcstore.UnsupportedError, match="storage_options is a dict with some of step, tags"):
        plugin.save_checkpoint({}, "a.ckpt", {"speed": 1})
    with pytest.raises(lmcstore.UnsupportedError, match="no path on a local file system"):
        plugin.save_checkpoint({}, "s3://bucket/a.ckpt")
    with pytest.raises(lmcstore.UnsupportedError, match="named by a str"):
        StoreCheckpointIO("run.pool", shelf=3)  # type: ignore[arg-type]
    assert not os.path.exists("run.pool")
    with lmcstore.open("run.pool") as store:
        own = StoreCheckpointIO(store)
        own.save_checkpoint({"step": 5}, "a.ckpt")
        own.teardown()
        assert not store.closed
        assert store["run"].latest.step == 5


def test_a_pickled_plugin_opens_its_pool_anew() -> None:
    plugin = StoreCheckpointIO("run.pool")
    plugin.save_checkpoint({"global_step": 5}, "a.ckpt")
    other = pickle.loads(pickle.dumps(plugin))
    assert other.load_checkpoint("a.ckpt") == {"global_step": 5}
    plugin.teardown()
    other.save_checkpoint({"global_step": 6}, "a.ckpt")
    other.teardown()
    assert find("a.ckpt").number == 2


def test_fabric() -> None:
    fabric = Fabric(accelerator="cpu", plugins=[StoreCheckpointIO("run.pool")])
    torch.manual_seed(1)
    module = torch.nn.Linear(4, 4)
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=0.1))
    for step in range(3):
        fabric.backward(model(torch.ones(2, 4)).square().sum())
        optimizer.step()
        fabric.save("a.ckpt", {"model": model, "optimizer": optimizer, "step": step, "config": Config(1)})
    saved = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        module.weight.zero_()
    state = {"model": model, "optimizer": optimizer, "step": 0}
    assert fabric.load("a.ckpt", state, weights_only=False) == {"config": Config(1)}
    assert state["step"] == 2
    assert_same(dict(module.state_dict()), saved)
    fabric.save("raw.ckpt", module.state_dict())
    fabric.load_raw("raw.ckpt", module)
    with lmcstore.open("run.pool", "r") as store:
        assert [snapshot.step for snapshot in store["run"]] == [0, 1, 2, None]
    assert list(fabric.load("raw.ckpt")) == ["weight", "bias"]


# Stubs


def saved(path: str = "a.ckpt", pool: str = "run.pool") -> None:
    plugin = StoreCheckpointIO(pool)
    plugin.save_checkpoint({"global_step": 5, "tensor": torch.ones(3)}, path)
    plugin.teardown()


def test_moved_folders_and_copied_stubs() -> None:
    saved("one/checkpoints/a.ckpt", "one/run.pool")
    os.symlink("checkpoints/a.ckpt", "one/link.ckpt")
    shutil.copy("one/checkpoints/a.ckpt", "copy.ckpt")
    assert load("copy.ckpt")["global_step"] == load("one/link.ckpt")["global_step"] == 5
    os.rename("one", "two")
    assert load("two/checkpoints/a.ckpt")["global_step"] == load("two/link.ckpt")["global_step"] == 5
    with pytest.raises(
        lmcstore.NotFoundError, match=r"run@1 in a pool that is neither .*run\.pool nor .*StoreCheckpointIO"
    ):
        load("copy.ckpt")
    plugin = StoreCheckpointIO("two/run.pool")
    assert plugin.load_checkpoint("copy.ckpt")["global_step"] == 5
    plugin.remove_checkpoint("two/link.ckpt")
    assert not os.path.lexists("two/link.ckpt")
    assert load("two/checkpoints/a.ckpt")["global_step"] == 5
    plugin.remove_checkpoint("copy.ckpt")
    plugin.teardown()
    os.remove("two/run.pool")
    with pytest.raises(lmcstore.NotFoundError, match="neither"):
        load("two/checkpoints/a.ckpt")
    saved("b.ckpt", "two/run.pool")
    with pytest.raises(lmcstore.NotFoundError, match=r"run\.pool is another pool"):
        load("two/checkpoints/a.ckpt")
    os.symlink("nowhere", "dangling.ckpt")
    with pytest.raises(FileNotFoundError, match=r"dangling.ckpt, a link to .*nowhere"):
        load("dangling.ckpt")


def test_snapshots_that_are_gone() -> None:
    saved()
    with lmcstore.open("run.pool") as store:
        store["run"].snapshot({"a": 1})
        store["run"].remove(1)
    with pytest.raises(lmcstore.NotFoundError, match=r"a\.ckpt names run@1 in .*run\.pool, which is not there"):
        load("a.ckpt")
    with lmcstore.open("run.pool") as store:
        store["run"].drop()
        store["run"].snapshot({"a": 1}, step=5)
    with pytest.raises(lmcstore.NotFoundError, match="another snapshot now"):
        load("a.ckpt")
    plugin = StoreCheckpointIO("run.pool", removes=True)
    plugin.remove_checkpoint("a.ckpt")
    plugin.teardown()
    with lmcstore.open("run.pool", "r") as store:
        assert len(store["run"]) == 1


def test_damaged_stubs() -> None:
    saved()
    whole = Path("a.ckpt").read_bytes()
    messages: Counter[str] = Counter()
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:at] + b"\0" * 9):
            Path("a.ckpt").write_bytes(damaged)
            try:
                loaded = load("a.ckpt")
            except (lmcstore.DamagedError, lmcstore.NotFoundError, lmcstore.InvalidError) as error:
                messages[type(error).__name__] += 1
                assert "a.ckpt" in str(error)
                continue
            assert loaded["global_step"] == 5
    assert messages["DamagedError"] > len(whole)
    Path("a.ckpt").write_bytes(b"")
    with pytest.raises(lmcstore.DamagedError, match=r"damaged or empty stub.*write_stub"):
        load("a.ckpt")
    plugin = StoreCheckpointIO("run.pool")
    plugin.save_checkpoint({"global_step": 6}, "a.ckpt")
    Path("a.ckpt").write_bytes(whole[:50])
    plugin.remove_checkpoint("a.ckpt")
    assert not os.path.exists("a.ckpt")
    plugin.teardown()


def test_a_stub_is_replaced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    saved()
    before = Path("a.ckpt").read_bytes()
    plugin = StoreCheckpointIO("run.pool")

    def fails(*arguments: Any) -> None:
        raise OSError("no replacing")

    with monkeypatch.context() as patched:
        patched.setattr(stubs.os, "replace", fails)
        with pytest.raises(OSError, match="no replacing"):
            plugin.save_checkpoint({"global_step": 6}, "a.ckpt")
    assert Path("a.ckpt").read_bytes() == before
    plugin.teardown()
    with lmcstore.open("run.pool") as store:
        store["run"].prune("keep=last:1")
    assert load("a.ckpt")["global_step"] == 5


def test_any_snapshot_gets_a_stub() -> None:
    fit(StoreCheckpointIO("run.pool"), 8, save_top_k=1)
    with lmcstore.open("run.pool", "r") as store:
        write_stub(store["run"].at(step=3), "three.ckpt")
    assert find("three.ckpt").tags == ["three"]
    assert fit(StoreCheckpointIO("run.pool"), 5, "three.ckpt").global_step == 5
    with pytest.raises(lmcstore.InvalidError, match="no stub"):
        find(__file__)


def test_files_of_torch() -> None:
    torch_trainer = Trainer(
        accelerator="cpu",
        max_steps=3,
        callbacks=[ModelCheckpoint("checkpoints", every_n_train_steps=1, save_top_k=1, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    torch_trainer.fit(Model(), Batches())
    trainer = fit(StoreCheckpointIO("run.pool"), 6, "last", save_top_k=1, monitor=None)
    assert trainer.global_step == 6
    assert len(list(Path("checkpoints").iterdir())) == 2
    assert find("checkpoints/last.ckpt").step == 6


# Programs


def kill_after(step: int, *command: Any) -> None:
    """Start a program, and kill it once it has a checkpoint of a step."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stub = Path(command[1]) / "checkpoints/last.ckpt"
    begin = time.monotonic()
    while process.poll() is None and time.monotonic() < begin + 120:
        found = stubs.read_if_stub(str(stub))
        if found is not None and (found.step or 0) >= step:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.001)
    assert process.wait(60) == -signal.SIGKILL


def test_the_example_is_killed_and_resumed() -> None:
    expected = result(run(EXAMPLE, "once", "--steps", 30))
    kill_after(11, EXAMPLE, "twice", "--steps", 30)
    assert result(run(EXAMPLE, "twice", "--steps", 30)) == expected


@pytest.mark.deep
@pytest.mark.parametrize("background", [False, True])
def test_the_example_is_killed_many_times(background: bool) -> None:
    options = ["--background"] if background else []
    expected = result(run(EXAMPLE, "once", "--steps", 150))
    for step in (1, 2, 20, 49, 50, 51, 90, 130):
        kill_after(step, EXAMPLE, "twice", "--steps", 150, *options)
        for path in Path("twice/checkpoints").glob("*.ckpt"):
            stub, step = stubs.read(str(path)), StoreCheckpointIO("none.pool").load_checkpoint(path)["global_step"]
            assert stub is not None and (stub.step == step or (stub.pending and stub.step > step))
    assert result(run(EXAMPLE, "twice", "--steps", 150, *options)) == expected


@pytest.mark.deep
def test_fabric_alone() -> None:
    program = """
from lightning_fabric import Fabric
from lmcstore.lightning import StoreCheckpointIO
fabric = Fabric(accelerator="cpu", plugins=[StoreCheckpointIO("run.pool")])
fabric.save("a.ckpt", {"step": 4})
assert fabric.load("a.ckpt") == {"step": 4}
"""
    run("-c", program)


@pytest.mark.deep
@pytest.mark.parametrize("first", ["lightning.pytorch", "pytorch_lightning", "lmcstore.lightning"])
def test_each_package_takes_the_plugin(first: str) -> None:
    package = "pytorch_lightning" if first == "pytorch_lightning" else "lightning.pytorch"
    program = f"""
import {first}
import {package} as pl
from {package}.demos.boring_classes import BoringModel
from lmcstore.lightning import StoreCheckpointIO, StoreModelParallelStrategy, load
plugin = StoreCheckpointIO("run.pool")
trainer = pl.Trainer(accelerator="cpu", plugins=[plugin], max_steps=2, logger=False, limit_val_batches=0)
trainer.fit(BoringModel())
trainer.save_checkpoint("a.ckpt")
plugin.teardown()
assert load("a.ckpt")["global_step"] == 2
assert issubclass(StoreModelParallelStrategy, pl.strategies.ModelParallelStrategy)
"""
    run("-c", program)


def test_the_page() -> None:
    text = PAGE.read_text()
    train, fabric, *_ = blocks(text)
    exec(train, {})
    typed = re.sub(r"^```python\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    typed = "".join(re.split(r"^```(?:pycon)?$", typed, flags=re.MULTILINE)[1::2])
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(typed, {}, PAGE.name, str(PAGE), 0)
    assert not doctest.DocTestRunner().run(test, out=said.append).failed, "".join(said)
    exec(fabric, {})
    assert json.loads(Path("five.ckpt").read_bytes().partition(b"\n")[2])["snapshot"] == 5
