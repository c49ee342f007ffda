# SPDX-License-Identifier: BSD-3-Clause
"""`lmcstore.Run`: a loop that is interrupted goes on as if it had not been."""

from __future__ import annotations

import copy
import logging
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmcstore
import lmcstore.copier
import numpy as np
import pytest
from lmcstore._state import targets
from optional import torch, torchdata
from same import same

IN_MEMORY = True


class Wrapper(torch.nn.Module):
    """Wraps a module as torch.compile does, under any name."""

    def __init__(self, inside: Any, name: str = "_orig_mod") -> None:
        super().__init__()
        self._name = name
        setattr(self, name, inside)

    def forward(self, inputs: Any) -> Any:
        return getattr(self, self._name)(inputs)


def small_model() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
    )


class Loop:
    """Training with all that must return: three generators, a scheduler, and the parts that `kinds` names."""

    def __init__(self, kinds: str, seed: int) -> None:
        self.kinds = kinds.split()
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        self.inside = small_model()
        self.model = self.inside
        if "compiled" in self.kinds:
            self.model = torch.compile(self.model, backend="eager")
        if "parallel" in self.kinds:
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.objects = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        self.scaler = torch.amp.GradScaler("cpu", enabled="amp" in self.kinds, growth_interval=3)
        if "amp" in self.kinds:
            self.objects["scaler"] = self.scaler
        if "ema" in self.kinds:
            self.objects["ema"] = torch.optim.swa_utils.AveragedModel(
                self.inside, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
            )

    def step(self) -> float:
        total = 0.0
        self.optimizer.zero_grad()
        for _ in range(3 if "accumulation" in self.kinds else 1):
            inputs = torch.randn(6, 8) + float(np.random.rand()) + random.random()
            with torch.autocast("cpu", torch.bfloat16, enabled="amp" in self.kinds):
                loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            self.scaler.scale(loss).backward()
            total += loss.item()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        if "ema" in self.kinds:
            self.objects["ema"].update_parameters(self.inside)
        return total

    def state(self) -> dict[str, Any]:
        made = {name: copy.deepcopy(value.state_dict()) for name, value in self.objects.items()}
        return made | {"rng": [random.getstate(), np.random.get_state(), torch.get_rng_state()]}


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one rank."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


KINDS = ["", "accumulation", "ema", "compiled", "parallel", "accumulation ema compiled parallel"]


@pytest.mark.parametrize("policy", [None, "write=link"])
@pytest.mark.parametrize("kinds", [kinds + amp for kinds in KINDS for amp in ("", " amp")])
def test_resumed_training_is_the_same(pool_path: str, kinds: str, policy: str | None, group: None) -> None:
    whole = Loop(kinds, 1)
    losses = [whole.step() for _ in range(10)]
    wanted = whole.state()

    first = Loop(kinds, 1)
    with lmcstore.Run(pool_path, policy=policy, **first.objects) as run:
        found = []
        for step in range(run.resume(), 5):
            found.append(first.step())
            run.save(step, metrics={"loss": found[-1]})
    second = Loop(kinds, 2)
    with lmcstore.Run(pool_path, policy=policy, **second.objects) as run:
        for step in range(run.resume(), 10):
            found.append(second.step())
            run.save(step)
    assert found == losses
    same(wanted, second.state())
    with lmcstore.open(pool_path, "r") as store:
        assert [snap.step for snap in store["run"]] == list(range(10))
        assert store["run"].at(step=3).metrics["loss"] == losses[3]


TRAINER = """
import os, random, signal, sys
import lmcstore, numpy, torch
torch.manual_seed(3)
random.seed(3)
numpy.random.seed(3)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
with lmcstore.Run(sys.argv[1], model=model, optimizer=optimizer) as run:
    for step in range(run.resume(), 6):
        optimizer.zero_grad()
        loss = (model(torch.randn(3, 4)) * random.random()).square().sum()
        loss.backward()
        optimizer.step()
        print(step, loss.item(), flush=True)
        run.save(step)
        if step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_terminated_process_resumes(run_python: Any, tmp_path: Path) -> None:
    whole = run_python(TRAINER, str(tmp_path / "whole.pool"), "-1")
    assert whole.returncode == 0, whole.stderr
    first = run_python(TRAINER, str(tmp_path / "parts.pool"), "2")
    assert first.returncode == -signal.SIGTERM, first.stderr
    second = run_python(TRAINER, str(tmp_path / "parts.pool"), "-1")
    assert second.returncode == 0, second.stderr
    assert first.stdout + second.stdout == whole.stdout
    with lmcstore.open(tmp_path / "whole.pool", "r") as one, lmcstore.open(tmp_path / "parts.pool", "r") as other:
        same(one["run"].latest.state_dict(), other["run"].latest.state_dict())  # type: ignore[union-attr]


SLOW = """
import os, signal, sys, time
import lmcstore, torch
import lmcstore.copier
copied = lmcstore.copier._copy
def slowly(*work):
    time.sleep(0.5)  # without a wait, the process would end before
    return copied(*work)
lmcstore.copier._copy = slowly
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize(
    ("before", "code", "said"),
    [
        ("", -signal.SIGTERM, ""),
        ("signal.signal(signal.SIGTERM, lambda *_: (print('handled', flush=True), sys.exit(3)))", 3, "handled\n"),
        ("signal.signal(signal.SIGTERM, lambda *_: (print('handled', flush=True), os._exit(4)))", 4, "handled\n"),
        ("signal.signal(signal.SIGTERM, lambda *_: print('handled', flush=True))", 0, "handled\nafter\n"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 0, "after\n"),
    ],
    ids=["default", "exits", "ends at once", "returns", "ignored"],
)
def test_sigterm(run_python: Any, pool_path: str, before: str, code: int, said: str) -> None:
    done = run_python(
        f"{SLOW}\n{before}\n"
        "with lmcstore.Run(sys.argv[1], model=model, optimizer=optimizer) as run:\n"
        "    run.save(7)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('after', flush=True)\n",
        pool_path,
    )
    assert (done.returncode, done.stdout) == (code, said), done.stderr
    with lmcstore.open(pool_path, "r") as store:
        assert [snap.step for snap in store["run"]] == [7]


def test_a_second_sigterm_does_not_wait(run_python: Any, pool_path: str) -> None:
    done = run_python(
        f"{SLOW.replace('0.5', '600')}\nimport threading\n"
        "with lmcstore.Run(sys.argv[1], model=model, optimizer=optimizer) as run:\n"
        "    run.save(7)\n"
        "    def again():\n"
        "        while not run._ending.waits: time.sleep(0.01)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Thread(target=again, daemon=True).start()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n",
        pool_path,
    )
    assert done.returncode == -signal.SIGTERM, done.stderr


def test_a_forked_child_leaves_the_run_alone(run_python: Any, pool_path: str) -> None:
    done = run_python(
        f"{SLOW}\n"
        "with lmcstore.Run(sys.argv[1], model=model, optimizer=optimizer) as run:\n"
        "    run.save(1)\n"
        "    for ends in (lambda: os.kill(os.getpid(), signal.SIGTERM), lambda: run.__exit__(None, None, None)):\n"
        "        child = os.fork()\n"
        "        if child == 0:\n"
        "            ends()\n"
        "            os._exit(0)\n"
        "        print(os.waitpid(child, 0)[1])\n"
        "    run.save(2)\n",
        pool_path,
    )
    assert (done.returncode, done.stdout) == (0, f"{int(signal.SIGTERM)}\n0\n"), done.stderr
    assert "not saved" not in done.stderr
    with lmcstore.open(pool_path, "r") as store:
        assert [snap.step for snap in store["run"]] == [1, 2]


def test_handlers_return_after_the_block(pool_path: str) -> None:
    def handler(*_: object) -> None:
        return

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with lmcstore.Run(pool_path, x=torch.ones(1)) as run, run:
            assert signal.getsignal(signal.SIGTERM) == run._ending.terminate
        assert signal.getsignal(signal.SIGTERM) is handler
        with lmcstore.Run(pool_path, x=torch.ones(1)):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by the program, which keeps it
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_block_in_another_thread(pool_path: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    steps = []

    def work() -> None:
        with lmcstore.Run(pool_path, x=torch.ones(1)) as run:
            run.save(1)
        with lmcstore.open(pool_path, "r") as store:
            steps.append(store["run"].latest.step)  # type: ignore[union-attr]

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert steps == [1] and signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def trained() -> tuple[dict[str, Any], Callable[[], None]]:
    """A model that has taken a step and its optimizer, and a function that takes another one."""
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().sum().backward()
        optimizer.step()

    step()
    return {"model": model, "optimizer": optimizer}, step


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_block(
    pool_path: str, trained: Any, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, step = trained
    step()
    copied, may_copy = lmcstore.copier._copy, threading.Event()
    monkeypatch.setattr(lmcstore.copier, "_copy", lambda *work: may_copy.wait() and copied(*work))
    with pytest.raises(kind), lmcstore.Run(pool_path, **objects) as run:
        snap = run.save(4)
        assert not snap.done
        may_copy.set()
        raise kind
    assert snap.done and run.store.closed
    with lmcstore.open(pool_path, "r") as store:
        same(objects["model"].state_dict(), store["run"].at(step=4).state_dict("model"))


def test_an_interrupted_copy(pool_path: str, trained: Any) -> None:
    """The snapshot that was under way is absent; the one before is durable."""

    class Interrupting:
        def state_dict(self) -> Any:
            if run._last is not None:
                raise KeyboardInterrupt
            return {}

        def load_state_dict(self, state: Any) -> None:
            return

    with pytest.raises(KeyboardInterrupt), lmcstore.Run(pool_path, other=Interrupting(), **trained[0]) as run:
        run.save(1)
        run.save(2)
    with lmcstore.open(pool_path, "r") as store:
        assert [snap.step for snap in store["run"]] == [1]


def change_early(run: lmcstore.Run, model: Any, monkeypatch: pytest.MonkeyPatch) -> lmcstore.Snapshot:
    """Save, and change a parameter before it is copied: the snapshot fails."""
    copied, may_copy = lmcstore.copier._copy, threading.Event()
    monkeypatch.setattr(lmcstore.copier, "_copy", lambda *work: may_copy.wait() and copied(*work))
    snap = run.save(2)
    with torch.no_grad():
        model.weight.mul_(2)
    may_copy.set()
    return snap


def test_a_snapshot_that_fails_later(
    pool_path: str, trained: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    objects, _ = trained
    with (
        pytest.raises(lmcstore.InvalidError, match="changed before it was copied"),
        lmcstore.Run(pool_path, **objects) as run,
    ):
        change_early(run, objects["model"], monkeypatch)
    assert run.store.closed
    with pytest.raises(ZeroDivisionError), lmcstore.Run(pool_path, **objects) as run:
        change_early(run, objects["model"], monkeypatch)
        raise ZeroDivisionError
    assert "'run' in" in caplog.text and "changed before it was copied" in caplog.text
    with lmcstore.Run(pool_path, **objects) as run:
        change_early(run, objects["model"], monkeypatch)
        with pytest.raises(lmcstore.InvalidError, match="changed before it was copied"):
            run.wait()
        monkeypatch.undo()
        assert run.resume() == 0
        run.save(3, lazy=False)
        with torch.no_grad():
            objects["model"].weight.mul_(2)
        assert run.save(4, wait=True).done


def test_nothing_to_resume(pool_path: str, trained: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lmcstore")
    with lmcstore.Run(pool_path, **trained[0]) as run:
        before = copy.deepcopy(trained[0]["model"].state_dict())
        assert run.resume() == 0
        assert f"new run in 'run' in {pool_path}" in caplog.text
        with pytest.raises(lmcstore.NotFoundError, match=f"{pool_path}: shelf 'run' is empty") as caught:
            run.resume(required=True)
        assert "begins a new run" in str(caught.value)
        with pytest.raises(lmcstore.NotFoundError):
            run.resume("latest")
        same(before, trained[0]["model"].state_dict())
        run.save(0)
        assert run.resume(required=True) == 1
        assert "resuming at step 1 from run@1 in" in caplog.text
        assert repr(run) == f"<lmcstore.Run 'run' in {pool_path}, resumed from run@1, step 0>"
    with (
        lmcstore.Run(pool_path, shelf="rum", **trained[0]) as run,
        pytest.warns(lmcstore.CreationWarning, match="shelf 'run' has 1 snapshot"),
    ):
        assert run.resume() == 0


def test_resume_from_an_earlier_one(pool_path: str, trained: Any) -> None:
    objects, step = trained
    with lmcstore.Run(pool_path, **objects) as run:
        for number in range(4):
            step()
            run.save(number, tags=["best"] if number == 1 else (), meta={"n": number})
            if number == 1:
                wanted = copy.deepcopy(objects["model"].state_dict())
        assert run.resume("best") == 2
        same(wanted, objects["model"].state_dict())
        again = run.save(2).wait()
        assert (again.number, again.parent, again.shelf["best"].meta) == (5, 2, {"n": 1})


def state_now(objects: dict[str, Any]) -> Any:
    state = {name: value.state_dict() for name, value in objects.items() if hasattr(value, "state_dict")}
    return copy.deepcopy(state) | {"rng": [random.getstate(), torch.get_rng_state()]}


def test_wrong_shapes_change_nothing(pool_path: str, trained: Any) -> None:
    with lmcstore.Run(pool_path, **trained[0]) as run:
        run.save(0)
    model = torch.nn.Linear(4, 3)
    for objects in (
        {"model": model, "optimizer": torch.optim.Adam(torch.nn.Linear(4, 5).parameters())},
        {"model": torch.nn.Linear(4, 5), "optimizer": torch.optim.Adam(model.parameters())},
        {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1.0)},
        {"optimizer": torch.optim.Adam(model.parameters()), "model": torch.nn.Sequential(torch.nn.Linear(4, 3))},
    ):
        random.seed(5)
        torch.manual_seed(5)
        before = state_now(objects)
        with lmcstore.Run(pool_path, **objects) as run, pytest.raises(lmcstore.Error, match=r"^(model|optimizer)\b"):
            run.resume()
        same(before, state_now(objects))


def test_a_run_that_is_not_resumed(pool_path: str, trained: Any, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert not caplog.records
        with lmcstore.Run(pool_path, **trained[0]) as run:
            run.save(7)
            run.save(8)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the newest run@2 of step 8, and resume() was not called" in caplog.text


def test_other_objects(pool_path: str, trained: Any, caplog: pytest.LogCaptureFixture) -> None:
    objects, step = trained
    scheduler = torch.optim.lr_scheduler.StepLR(objects["optimizer"], 1)
    with lmcstore.Run(pool_path, **objects, rng=False) as run:
        run.save(3)
    step()
    before = state_now(objects)
    with lmcstore.Run(pool_path, **objects, scheduler=scheduler) as run:
        with pytest.raises(lmcstore.NotFoundError) as missing:
            run.resume()
        for part in ("run@1", "lacks 'scheduler' and 'rng'", "rng=False", 'missing="ignore"', "'model' and 'optim"):
            assert part in str(missing.value)
        same(before, state_now(objects))
        assert run.resume(missing="ignore") == 4
        assert "run@1 lacks 'scheduler' and 'rng'" in caplog.text
        run.save(4)
    with lmcstore.Run(pool_path, model=objects["model"], rng=False) as run:
        with pytest.raises(lmcstore.InvalidError, match="it has 'optimizer', 'scheduler' and 'rng', which the run"):
            run.resume()
        with pytest.raises(lmcstore.InvalidError, match="missing can't be 'none'"):
            run.resume(missing="none")  # type: ignore[arg-type]
        assert run.resume(missing="ignore") == 5
        assert "run@2 has 'optimizer', 'scheduler' and 'rng', which" in caplog.text
    with (
        lmcstore.Run(pool_path, mode1=objects["model"], rng=False) as run,
        pytest.raises(lmcstore.NotFoundError, match="lacks 'mode1' of the run") as nothing,
    ):
        run.resume(missing="ignore")
    assert "ignore" not in str(nothing.value)


def test_a_snapshot_without_a_step(pool_path: str, trained: Any) -> None:
    with lmcstore.Run(pool_path, **trained[0], rng=False) as run:
        run.shelf.snapshot({name: value.state_dict() for name, value in trained[0].items()})
        with pytest.raises(lmcstore.InvalidError, match="run@1 has no step to continue from"):
            run.resume()
        for step in (None, "1", 2**64):
            with pytest.raises(lmcstore.Error, match="step"):
                run.save(step)  # type: ignore[arg-type]
        assert len(run.shelf) == 1


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class OnlySaves:
    def state_dict(self) -> Any:
        return {}


def circle() -> Any:
    value: dict[str, Any] = {}
    value["again"] = value
    return value


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.utils.data.DataLoader(Data()), "^thing: torch's DataLoader .*StatefulDataLoader"),
        (lambda: [torch.utils.data.DataLoader(Data())], r"^thing\.0: torch's DataLoader"),
        (lambda: torch.nn.Linear, "^thing: Linear is a class"),
        (OnlySaves, "^thing: an OnlySaves has no load_state_dict"),
        (lambda: {"a": [OnlySaves()]}, r"^thing\.a\.0: an OnlySaves"),
        (lambda: 5, "^thing: an int has no state_dict .* in a dict"),
        (lambda: None, "^thing: a NoneType"),
        (lambda: [1.5], r"^thing\.0: a float has no state_dict .* in a dict"),
        (lambda: ({}, "a"), r"^thing\.1: a str"),
        (circle, "holds itself"),
    ],
)
def test_objects_that_can_not_be_kept(pool_path: str, make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(lmcstore.UnsupportedError, match=reason):
        lmcstore.Run(pool_path, thing=make())
    assert not Path(pool_path).exists()


@pytest.mark.parametrize(
    "options",
    [
        {"policy": torch.nn},
        {"rng": 1, "x": {}},
        {"shelf": None, "x": {}},
        {},
        {"strict": {}},
        {"policy": "x=1", "x": {}},
        {"pool_options": {"mode": "r"}, "x": {}},
        {"pool_options": {"memory": "much"}, "x": {}},
    ],
    ids=str,
)
def test_wrong_options(pool_path: str, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[lmcstore.Store] = []
    monkeypatch.setattr(
        "lmcstore.run.open", lambda path, **given: opened.append(lmcstore.open(path, **given)) or opened[-1]
    )
    with pytest.raises(lmcstore.Error):
        lmcstore.Run(pool_path, **options)
    assert all(store.closed for store in opened) and len(opened) == ("x=1" in options.values())


class Loader(torch.utils.data.DataLoader):  # type: ignore[type-arg]
    """A DataLoader with a position, as torchdata's."""

    position = 0

    def state_dict(self) -> Any:
        return {"position": self.position}

    def load_state_dict(self, state: Any) -> None:
        self.position = state["position"]


def test_containers_values_and_generators(pool_path: str) -> None:
    def make(seed: int) -> dict[str, Any]:
        models = [torch.nn.Linear(2, 2) for _ in range(2)]
        return {
            "models": models,
            "optimizers": {
                "a": torch.optim.SGD(models[0].parameters(), 0.1),
                "b": torch.optim.Adam(models[1].parameters()),
            },
            "progress": {"epoch": seed, "best": [0.5, seed], "losses": [1.0] * seed},
            "generator": torch.Generator().manual_seed(seed),
            "numpy": np.random.default_rng(seed),
            "random": random.Random(seed),
            "legacy": np.random.RandomState(seed),
            "data": Loader(Data()),
            "scale": torch.full((2,), float(seed)),
        }

    saved, loaded = make(1), make(2)
    saved["data"].position = 3
    with lmcstore.Run(pool_path, **saved) as run:
        run.save(9)
    progress, scale = loaded["progress"], loaded["scale"]
    with lmcstore.Run(pool_path, **loaded) as run:
        assert run.resume() == 10
    assert progress is loaded["progress"] and progress == {"epoch": 1, "best": [0.5, 1], "losses": [1.0]}
    assert loaded["scale"] is scale and scale.tolist() == [1, 1] and loaded["data"].position == 3
    same([model.state_dict() for model in saved["models"]], [model.state_dict() for model in loaded["models"]])
    for draw in (
        lambda ones: torch.rand(3, generator=ones["generator"]).tolist(),
        lambda ones: ones["numpy"].random(3).tolist(),
        lambda ones: ones["random"].random(),
        lambda ones: ones["legacy"].rand(3).tolist(),
    ):
        assert draw(saved) == draw(loaded)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_with_a_position(pool_path: str, workers: int) -> None:
    """torchdata's: a run goes on amid an epoch, and draws the same in the next one."""
    loader_class, sampler_class = torchdata.StatefulDataLoader, torchdata.sampler.RandomSampler

    def make(seed: int) -> tuple[dict[str, Any], Callable[[int, int], Iterator[list[float]]]]:
        torch.manual_seed(seed)
        one, other = (torch.Generator().manual_seed(seed + n) for n in range(2))
        sampler = sampler_class(Data(), generator=other)
        data = loader_class(Data(), sampler=sampler, generator=one, num_workers=workers)

        def train(step: int, stop: int) -> Iterator[list[float]]:
            while True:
                for batch in data:
                    if step == stop:
                        return
                    yield [float(batch), float(torch.rand(1))]
                    step += 1

        return {"data": data}, train

    wanted = list(make(1)[1](0, 15))
    found = []
    for seed, stop in (1, 6), (2, 15):
        objects, train = make(seed)
        with lmcstore.Run(pool_path, **objects) as run:
            start = run.resume()
            for step, drawn in enumerate(train(start, stop), start):
                found.append(drawn)
                run.save(step)
    assert found == wanted


def test_optimizers_are_lazy(pool_path: str, trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, _ = trained
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
    asked: list[Any] = []
    taken = lmcstore.Shelf.snapshot

    def snapshot(self: Any, state: Any, **options: Any) -> Any:
        asked.append((options["lazy"], options["wait"]))
        return taken(self, state, **options)

    monkeypatch.setattr(lmcstore.Shelf, "snapshot", snapshot)
    scheduler = torch.optim.lr_scheduler.StepLR(other, 1)
    with lmcstore.Run(pool_path, **objects, others=[{"x": other}], scheduler=scheduler) as run:
        run.save(1)
        run.save(2, lazy=False)
        run.save(3, wait=True)
    assert asked == [([objects["optimizer"], other], False), (None, False), (None, True)]


def test_a_save_can_be_tagged_and_removed_at_once(pool_path: str, trained: Any) -> None:
    with lmcstore.Run(pool_path, **trained[0]) as run:
        run.shelf.tag(run.save(0), "best")
        run.shelf.remove(run.save(1))
        assert run.shelf.tags == {"best": 1} and len(run.shelf) == 1


def wrapped_in(kind: str, model: Any) -> Any:
    if kind == "compiled":
        return torch.compile(model, backend="eager")
    if kind == "DataParallel":
        return torch.nn.DataParallel(model)
    if kind == "both":
        return torch.compile(torch.nn.DataParallel(torch.compile(model, backend="eager")), backend="eager")
    if kind == "inside":
        model[0] = Wrapper(model[0])
    return Wrapper(model) if kind == "wrapper" else model


@pytest.mark.parametrize("before", ["bare", "compiled", "DataParallel", "both", "inside", "wrapper"])
@pytest.mark.parametrize("after", ["bare", "compiled", "DataParallel", "both", "inside", "wrapper"])
def test_wrappers(pool_path: str, before: str, after: str) -> None:
    bare = small_model()
    wanted = copy.deepcopy(bare.state_dict())
    with lmcstore.Run(pool_path, model=wrapped_in(before, bare)) as run:
        run.save(1, wait=True)
        same(wanted, run.shelf.at(step=1).state_dict("model"))
    inside = small_model()
    other = wrapped_in(after, inside)
    with lmcstore.Run(pool_path, model=other) as run:
        run.resume()
    assert [value.tolist() for value in inside.state_dict().values()] == [value.tolist() for value in wanted.values()]


@pytest.mark.parametrize("before", ["bare", "prefix"])
def test_a_prefix_of_an_unknown_wrapper(pool_path: str, before: str) -> None:
    """Its keys are those of the wrapper, as for a model with a part of that name; both load them."""
    models = [small_model(), small_model()]
    one, other = (
        Wrapper(model, "module") if (before == "prefix") == (n == 0) else model for n, model in enumerate(models)
    )
    with lmcstore.Run(pool_path, model=one) as run:
        run.save(1, wait=True)
        same(dict(one.state_dict()), dict(run.shelf.at(step=1).state_dict("model")))
    with lmcstore.Run(pool_path, model=other) as run:
        run.resume()
    same(models[0].state_dict(), models[1].state_dict())


def test_keys_that_would_be_the_same_stay(pool_path: str) -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.ModuleDict({"_orig_mod": torch.nn.Linear(1, 1)})})
    model["a"].weight = torch.nn.Parameter(torch.ones(3))
    with lmcstore.Run(pool_path, model=model) as run:
        run.save(1, wait=True)
        same(model.state_dict(), run.shelf.at(step=1).state_dict("model"))
        run.resume()


def test_an_ordinary_state(pool_path: str, trained: Any) -> None:
    objects, _ = trained
    with lmcstore.Run(pool_path, **objects) as run:
        snap = run.save(1).wait()
        state = snap.state_dict()
        assert list(state) == ["model", "optimizer", "rng"]
        same({name: value.state_dict() for name, value in objects.items()}, {name: state[name] for name in objects})
        assert list(state["rng"]) == ["python", "numpy", "torch"]
        same([random.getstate(), np.random.get_state()], [state["rng"]["python"], state["rng"]["numpy"]])
        snap.load_into(model=torch.nn.Linear(4, 3))
        torch.nn.Linear(4, 3).load_state_dict(state["model"])


def test_generators_that_are_not_there(
    pool_path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    devices = {"cuda:0": torch.Generator().manual_seed(1)}
    real = targets.generators
    for module in ("lmcstore.run", "lmcstore._state.targets"):
        monkeypatch.setattr(f"{module}.generators", lambda names=(): real(names) | devices)
    torch.manual_seed(4)
    with lmcstore.Run(pool_path, x={}) as run:
        run.save(1)
    wanted = torch.rand(2).tolist(), torch.rand(2, generator=devices["cuda:0"]).tolist()
    with lmcstore.Run(pool_path, x={}) as run:
        run.resume()
        assert wanted == (torch.rand(2).tolist(), torch.rand(2, generator=devices["cuda:0"]).tolist())
        devices.clear()
        run.resume()
        assert "there are no generators 'cuda:0' here" in caplog.text
        assert wanted[0] == torch.rand(2).tolist()


def test_generators_are_imported_to_be_restored(run_python: Any, pool_path: str) -> None:
    """A snapshot has NumPy's generator; the program that resumes has not imported NumPy yet."""
    np.random.seed(11)
    with lmcstore.Run(pool_path, x={"a": 1}) as run:
        run.save(1)
    wanted = np.random.rand()
    done = run_python(
        "import sys, lmcstore\n"
        "assert 'numpy' not in sys.modules\n"
        "with lmcstore.Run(sys.argv[1], x={'a': 2}) as run: run.resume()\n"
        "import numpy; print(numpy.random.rand())\n",
        pool_path,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == wanted


@pytest.mark.parametrize("rng", [5, {"python": 5}, {"torch": torch.ones(3)}, {"numpy": ("MT19937", 1)}, {"other": 1}])
def test_a_foreign_rng(pool_path: str, rng: Any) -> None:
    with lmcstore.Run(pool_path, x={"a": 2}) as run:
        run.shelf.snapshot({"x": {"a": 1}, "rng": rng}, step=1)
        before = random.getstate(), torch.get_rng_state(), np.random.get_state()
        if rng == {"other": 1}:
            run.resume()
        else:
            with pytest.raises(lmcstore.Error, match=r"^rng"):
                run.resume()
            assert run._objects == {"x": {"a": 2}}
        same(before, (random.getstate(), torch.get_rng_state(), np.random.get_state()))


def test_a_store_of_the_program(pool_path: str, trained: Any) -> None:
    with lmcstore.open(pool_path) as store:
        with lmcstore.Run(store, shelf="other", **trained[0]) as run:
            assert run.store is store and run.shelf == store["other"]
            snap = run.save(1)
        assert snap.done and not store.closed
        assert len(store["other"]) == 1
    with lmcstore.open(pool_path, "r") as reader, pytest.raises(lmcstore.ReadOnlyError, match="opened with mode 'r'"):
        lmcstore.Run(reader, shelf="other", **trained[0])
    with pytest.raises(lmcstore.Error, match="closed"):
        run.save(2)
    run.close()


def test_a_policy(pool_path: str, trained: Any) -> None:
    objects, step = trained
    with lmcstore.Run(pool_path, policy="write=link", **objects) as run:
        for number in range(5):
            step()
            run.save(number)
        run.wait()
        assert "write=link" in run.shelf.policy
        wanted = copy.deepcopy(objects["model"].state_dict())
    with lmcstore.Run(pool_path, **objects) as run:
        assert run.resume() == 5 and "write=link" in run.shelf.policy
        same(wanted, objects["model"].state_dict())


def test_options_of_the_pool(pool_path: str) -> None:
    with lmcstore.Run(pool_path, pool_options={"size": "96MiB", "background": False}, x={"a": 1}) as run:
        assert run.store.info()["limit_bytes"] == 96 << 20 and not run.store.info()["compaction_running"]
    with lmcstore.open(pool_path, "r+") as store, pytest.raises(lmcstore.InvalidError, match="is for a path"):
        lmcstore.Run(store, pool_options={"memory": 0}, x={"a": 1})
    with pytest.raises(lmcstore.InvalidError, match="pool_options has 'mode': the options of"):
        lmcstore.Run(pool_path, pool_options={"mode": "r"}, x={"a": 1})


def test_close_without_a_block(pool_path: str, trained: Any) -> None:
    run = lmcstore.Run(pool_path, **trained[0])
    snap = run.save(1)
    run.close()
    assert snap.done and run.store.closed
    run.close()
