# SPDX-License-Identifier: BSD-3-Clause
"""Training loops on gloo ranks, for test_run_ranks.py."""

from __future__ import annotations

import copy
import errno
import importlib
import itertools
import logging
import os
import pickle
import random
import signal
import time
from pathlib import Path
from typing import Any

import lmcstore
import lmcstore._folder.machines as machines
import lmcstore._folder.saves as saves
import lmcstore._folder.writing as writing
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


def model_of(kind: str) -> Any:
    torch.manual_seed(11)
    tied = torch.nn.Linear(8, 8, bias=False)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 8), tied
    )
    if kind == "tied":
        model.append(torch.nn.Linear(8, 8, bias=False))
        model[5].weight = tied.weight
    return model


class Loop:
    """Training whose ranks have generators of their own."""

    def __init__(self, kind: str, rank: int, world: int, seed: int = 0) -> None:
        self.inside = model_of(kind)
        if kind == "fsdp":
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (world,))
            self.model = fully_shard(self.inside, mesh=mesh)
        else:
            options = {"broadcast_buffers": False} if kind == "local buffers" else {}
            self.model = DistributedDataParallel(self.inside, **options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.own = {"seen": 0, "rank": rank, "weights": torch.zeros(rank + 1)}
        torch.manual_seed(100 * seed + rank)
        np.random.seed(100 * seed + rank)
        random.seed(100 * seed + rank)
        self.objects: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "own": self.own,
        }

    def step(self) -> float:
        self.optimizer.zero_grad()
        inputs = torch.randn(6, 8) + float(np.random.rand()) + random.random()
        loss = (self.model(inputs) - inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.own["seen"] += len(inputs)
        self.own["weights"] += 1
        return loss.item()

    def state(self) -> bytes:
        """Return the whole state as a pickle, which needs no memory of this process."""
        made = {name: copy.deepcopy(_whole(self.objects[name].state_dict())) for name in self.objects if name != "own"}
        rng = [random.getstate(), np.random.get_state(), torch.get_rng_state()]
        return pickle.dumps(made | {"own": copy.deepcopy(self.own), "rng": rng})


def _whole(value: Any) -> Any:
    if hasattr(value, "full_tensor"):
        return value.full_tensor()
    if isinstance(value, dict):
        return type(value)((key, _whole(one)) for key, one in value.items())
    return [_whole(one) for one in value] if isinstance(value, list) else value


def train(
    rank: int,
    world: int,
    folder: Path,
    steps: int,
    kind: str = "",
    seed: int = 0,
    options: dict[str, Any] | None = None,
    waits: int = 0,
) -> tuple[list[float], bytes, int, bytes]:
    """Train to a step, from the last saved one on, and wait for the saves of the first steps.

    Return the losses, the state, the first step and the state before it.
    """
    loop = Loop(kind, rank, world, seed)
    losses = []
    with lmcstore.Run(folder, **(options or {}), **loop.objects) as run:
        first = run.resume()
        begun = loop.state()
        for step in range(first, steps):
            losses.append(loop.step())
            saved = run.save(step, metrics={"loss": losses[-1]})
            if step < waits:
                saved.wait()
    dist.barrier()
    return losses, loop.state(), first, begun


KILLS = {
    "captured": ("writing.RankWriter", "begin", False),
    "prepared": ("saves.Saves", "_decided", True),
    "recording": ("writing.Records", "commit", True),
    "recorded": ("writing.Records", "commit", False),
    "decided": ("machines.Machine", "copy", True),
    "resolved": ("writing.RankWriter", "resolve", False),
}
"""Phases of a save: a method, and whether a process ends before it or after it."""


def train_and_die(
    rank: int, world: int, folder: Path, steps: int, phase: str, killed: tuple[int, ...], save: int
) -> tuple[list[float], int]:
    """Train, and end the killed ranks by SIGKILL at a phase of a save, counted from 1."""
    if rank in killed:
        _kill_at(save, *KILLS[phase])
    losses, _, first, _ = train(rank, world, folder, steps, waits=save - 1)
    return losses, first


def _kill_at(count: int, owner: str, name: str, before: bool) -> None:
    module, kind_name = owner.split(".")
    kind = getattr(importlib.import_module(f"lmcstore._folder.{module}"), kind_name)
    method = getattr(kind, name)
    calls = itertools.count(1)

    def replaced(*arguments: Any, **options: Any) -> Any:
        is_last = next(calls) == count
        if is_last and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments, **options)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(kind, name, replaced)


def resume_once(
    rank: int,
    world: int,
    folder: Path,
    seed: int,
    saves: bool = True,
    which: int | None = None,
    kind: str = "",
    urls: str = "",
) -> tuple[bytes, int, list[str]]:
    """Resume with other generators, and save the same state again as the next step; return it and the warnings."""
    os.environ["LMC_STORE_REMOTE"] = urls
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lmcstore").addHandler(handler)
    loop = Loop(kind, rank, world, seed)
    with lmcstore.Run(folder, **loop.objects) as run:
        first = run.resume(which)
        state = loop.state()
        if saves:
            run.save(first, wait=True)
    return state, first, messages


def fail(rank: int, world: int, folder: Path) -> tuple[list[str], int]:
    """Fail saves on one rank; return the errors of each, and the first step of the next start."""
    loop = Loop("", rank, world)
    errors = []
    with lmcstore.Run(folder, **loop.objects) as run:
        for step in range(run.resume(), 5):
            loop.own["value"] = object() if (step, rank) == (1, 1) else 0
            try:
                saved = run.save(2 if (step, rank) == (3, 1) else step, tags=["newest"], wait=step != 3)
                while not saved.done:
                    time.sleep(0.01)
            except lmcstore.Error as error:
                errors.append(f"{step} {type(error).__name__}: {error}")
        run.wait()
        last = run.shelf["newest"].step
    return errors, last


def hang(rank: int, world: int, folder: Path) -> list[str]:
    """Let a rank not save; return the errors of the others."""
    loop = Loop("", rank, world)
    errors = []
    run = lmcstore.Run(folder, timeout=1.0, **loop.objects)
    run.save(0, wait=True)
    if rank != 1:
        for step in (1, 2):
            try:
                run.save(step, wait=True)
            except lmcstore.Error as error:
                errors.append(str(error))
    dist.barrier()
    try:
        run.close()
    except lmcstore.Error as error:
        errors.append(str(error))
    return errors


def prune_beside(rank: int, world: int, folder: Path) -> list[list[int]]:
    """Prune on rank 0 between saves; return the numbers in each rank's pool after each save."""
    loop = Loop("", rank, world)
    numbers = []
    with lmcstore.Run(folder, policy="keep=last:2 keep_raw=2 chain=1", **loop.objects) as run:
        run.resume()
        for step in range(6):
            run.save(step, wait=True)
            if rank == 0 and step == 3:
                assert run.shelf.prune().numbers == [1, 2]
                run.shelf.remove(3)
            dist.barrier()
        run._ranks.together(lambda: None)
        own = run._ranks._machine.writer.store["run"]
        numbers.append([snapshot.number for snapshot in own])
        assert "keep=last:2" in run.shelf.policy and "keep_raw=2" in run.shelf.policy and "chain=1" in run.shelf.policy
    return numbers


def keep_budget(rank: int, world: int, folder: Path, steps: int = 5) -> list[list[int]]:
    """Save above a budget; return the numbers in each rank's pool after each save."""
    loop = Loop("", rank, world)
    numbers = []
    with lmcstore.Run(folder, policy="keep=last:2 budget=1K grace=none", **loop.objects) as run:
        policy, failure = run.shelf.policy, ""
        try:
            run._ranks.set_policy("write=raw keep=bogus")
        except lmcstore.InvalidError as error:
            failure = str(error)
        assert "bogus" in failure and run.shelf.policy == policy
        for step in range(run.resume(), steps):
            run.save(step, wait=True)
            run._ranks.together(lambda: None)
            numbers.append([snapshot.number for snapshot in run._ranks._machine.writer.store["run"]])
    return numbers


def train_apart(rank: int, world: int, folders: list[Path], steps: int, seed: int = 0) -> Any:
    """Train with the ranks' folders on two machines."""
    return train(rank, world, folders[rank * len(folders) // world], steps, "", seed)


def terminate(rank: int, world: int, folder: Path) -> int:
    """Get SIGTERM while a save is under way; return the step that is saved then."""
    decide = saves.Saves._decided

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.5)
        return decide(*arguments)

    saves.Saves._decided = slowly  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, lambda *_: None)
    loop = Loop("", rank, world)
    with lmcstore.Run(folder, **loop.objects) as run:
        saved = run.save(7)
        assert not saved.done
        os.kill(os.getpid(), signal.SIGTERM)
        assert saved.done
        return run.shelf[-1].step


def train_links(rank: int, world: int, folder: Path) -> bool:
    """Train with links; return whether the rank's pool has some."""
    model = DistributedDataParallel(torch.nn.Linear(300, 300))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with lmcstore.Run(folder, policy="write=link", model=model, optimizer=optimizer) as run:
        for step in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 300)).square().mean().backward()
            optimizer.step()
            saved = run.save(step)
        assert saved.captured() and saved.wait().number == 4 and saved.step == 3
        state = saved.state_dict()
        assert all(torch.equal(value, model.module.state_dict()[key]) for key, value in state["model"].items())
        dist.barrier()
        own = run._ranks._machine.writer.store["run"][-1]
        assert own.storage()["link_contents"] > 0 or own.raw_bytes < 100_000, own.storage()
        return saved.storage()["link_contents"] > 0


def train_with_options(rank: int, world: int, folder: Path) -> tuple[bool, int, int]:
    """Train without memory for links, and with a limit; return whether there are links, and both of the pool."""
    model = DistributedDataParallel(torch.nn.Linear(300, 300))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    options = {"memory": 0, "size": "64MiB", "copy_threads": 1}
    objects = {"model": model, "optimizer": optimizer}
    with lmcstore.Run(folder, policy="write=link", pool_options=options, **objects) as run:
        for step in range(3):
            model(torch.randn(4, 300)).square().mean().backward()
            optimizer.step()
            saved = run.save(step, wait=True)
        info = run._ranks._machine.writer.store.info()
        return saved.storage()["link_contents"] > 0, info["memory_bytes"], info["limit_bytes"]


MESH = {"rows": (5, 3), "square": (4, 4), "replicated": (2, 2), "one row": (1, 6), "another row": (1, 3)}


class _Sharded(torch.nn.Module):
    """Parameters that are DTensors, with the placements that a function gives."""

    def __init__(self, mesh: Any, places: Any) -> None:
        super().__init__()
        for name, shape in MESH.items():
            whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1
            made = distribute_tensor(whole, mesh, places(name))
            self.register_parameter(name, torch.nn.Parameter(made))


def _sharded(mesh: Any, places: Any) -> dict[str, Any]:
    model = _Sharded(mesh, places)
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.1)}


def _whole_state(objects: dict[str, Any]) -> bytes:
    return pickle.dumps({name: copy.deepcopy(_whole(one.state_dict())) for name, one in objects.items()})


def save_mesh(rank: int, world: int, folder: Path) -> bytes:
    """Save boxes of a mesh of two times two ranks, of which two have the same."""
    mesh = init_device_mesh("cpu", (2, 2))
    objects = _sharded(mesh, lambda name: [Replicate(), Replicate() if name == "replicated" else Shard(0)])
    with lmcstore.Run(folder, **objects) as run:
        run.resume()
        for step in range(2):
            for value in objects["model"].parameters():
                value.grad = value.detach() * (step + 1)
            objects["optimizer"].step()
            run.save(step)
    return _whole_state(objects)


def load_mesh(rank: int, world: int, folder: Path) -> bytes:
    """Load them into shards of columns."""
    mesh = init_device_mesh("cpu", (world,))
    objects = _sharded(mesh, lambda name: [Shard(1)])
    with lmcstore.Run(folder, **objects) as run:
        assert run.resume() == 2
    return _whole_state(objects)


def misuse(rank: int, world: int, folder: Path) -> list[str]:
    """Return the kinds of errors of wrong uses."""
    errors = []
    (folder / "file").touch()
    model = torch.nn.Linear(2, 2)

    def attempt(function: Any) -> None:
        try:
            function()
        except lmcstore.Error as error:
            errors.append(type(error).__name__)

    attempt(lambda: lmcstore.Run(folder / "file", model=model))
    run = lmcstore.Run(folder / "run", model=model)
    run.close()
    attempt(run.resume)
    attempt(lambda: run.save(0))
    return errors


def refuse_an_object(rank: int, world: int, folder: Path, wrong: str) -> str:
    """Make a Run, for which one rank has a wrong object; return the error."""
    objects: dict[str, Any] = {"model": torch.nn.Linear(2, 2), "own": {"seen": rank}}
    if rank == 1:
        objects |= {"kind": {"own": object()}, "name": {"ranks": {}}, "class": {"own": torch.nn.Linear}}[wrong]
    try:
        lmcstore.Run(folder, timeout=2.0, **objects)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def fail_to_load(rank: int, world: int, folder: Path) -> str:
    """Refuse a state on rank 1; return the error."""
    loop = Loop("", rank, world)

    def refuse(*_: Any) -> None:
        raise RuntimeError("refused")

    if rank == 1:
        loop.inside.register_load_state_dict_post_hook(refuse)
    with lmcstore.Run(folder, **loop.objects) as run:
        try:
            run.resume()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def save_by_reference(rank: int, world: int, folder: Path) -> None:
    """Save with the same dicts, which change while the saves are under way."""
    decide = saves.Saves._decided

    def slowly(*arguments: Any) -> Any:
        time.sleep(0.2)
        return decide(*arguments)

    saves.Saves._decided = slowly  # type: ignore[method-assign]
    metrics: dict[str, Any] = {"loss": torch.zeros(())}
    meta: dict[str, Any] = {"seen": []}
    with lmcstore.Run(folder, **Loop("", rank, world).objects) as run:
        for step in range(3):
            metrics["loss"] += 1
            metrics["step"] = step
            meta["seen"].append(step)
            run.save(step, metrics=metrics, meta=meta)


def fail_after_the_record(rank: int, world: int, folders: list[Path], broken: str) -> list[str]:
    """Train on two machines, of which one fails once the second record is durable; return the failures of saves."""
    machine = machines.Machine
    if broken == "news" and rank == 0:
        _raise_once(machines, "_dumped", before=True)
    elif broken == "numbers" and rank == 0:
        _raise_once(machine, "_record_numbers", before=True, calls=4)
    elif broken == "copy" and rank == 1:
        _raise_once(machines, "_restore", before=True)
    elif broken == "commit" and rank == 0:
        _raise_once(writing.Records, "commit", before=False)
    failures = []
    with lmcstore.Run(folders[rank], **Loop("", rank, world).objects) as run:
        for step in range(3):
            try:
                run.save(step, wait=True)
            except lmcstore.Error as error:
                failures.append(str(error))
    return failures


def _raise_once(owner: Any, name: str, before: bool, calls: int = 2) -> None:
    """Let one call of a function raise what no class of lmcstore is."""
    function = getattr(owner, name)
    counted = itertools.count(1)

    def replaced(*arguments: Any, **options: Any) -> Any:
        fails = next(counted) == calls
        if fails and before:
            raise OSError(errno.EMFILE, "too many open files")
        result = function(*arguments, **options)
        if fails:
            raise MemoryError
        return result

    setattr(owner, name, replaced)


def remove_newest(rank: int, world: int, folders: list[Path], steps: int, count: int) -> tuple[int, list[int]]:
    """Save on two machines, and remove the newest snapshots; return the first step, and the records' numbers."""
    with lmcstore.Run(folders[rank], **Loop("", rank, world).objects) as run:
        first = run.resume()
        for step in range(first, first + steps):
            run.save(step, wait=True)
        if rank == 0:
            for _ in range(count):
                run.shelf.remove(-1)
        dist.barrier()
        records = run._ranks._machine.records
        return first, [snapshot.number for snapshot in records.store["run"]]


class _Average:
    """An object whose state has DTensors."""

    def __init__(self, model: Any) -> None:
        self.values = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def state_dict(self) -> dict[str, Any]:
        return {"values": [self.values], "count": 3}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["count"] == 3
        for name, value in state["values"][0].items():
            self.values[name].copy_(value)


def nest(rank: int, world: int, folder: Path, saves_it: bool) -> bytes:
    """Save, or resume, DTensors inside containers and objects; return the whole state."""
    mesh = init_device_mesh("cpu", (world,))
    made = _sharded(mesh, lambda name: [Shard(0 if saves_it else 1)])
    model, optimizer = made["model"], made["optimizer"]
    alone = model.rows.detach().clone()
    objects = {
        "models": {"a": model, "plain": {"rate": 0.5 if saves_it else 0.0}},
        "optimizers": [optimizer],
        "average": _Average(model),
        "copies": {"pair": (model.square.detach().clone(), {"more": model.rows.detach().clone()})},
        "alone": alone,
    }
    for value in model.parameters():
        value.grad = value.detach()
    if saves_it:
        optimizer.step()
    else:
        for value in (alone, *objects["average"].values.values()):
            value.zero_()
    with lmcstore.Run(folder, **objects) as run:
        if saves_it:
            run.save(0)
        else:
            assert run.resume() == 1 and objects["models"]["plain"] == {"rate": 0.5}
    copies = objects["copies"]["pair"]
    found = [model.state_dict(), optimizer.state_dict(), objects["average"].values, *copies, alone]
    return pickle.dumps([copy.deepcopy(_whole(one)) for one in found])


def resume_damaged(rank: int, world: int, folder: Path) -> tuple[str, int]:
    """Resume beside a damaged newest record; return the error of the newest, and the step after an older one."""
    with lmcstore.Run(folder, **Loop("", rank, world).objects) as run:
        try:
            run.resume()
        except lmcstore.Error as error:
            return type(error).__name__, run.resume(2)
    return "", 0
