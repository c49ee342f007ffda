# SPDX-License-Identifier: BSD-3-Clause
"""``snapshot(lazy=...)``: tensors copied after the call, and never silently torn."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore._state.encode import Encoded
from lmcstore.copier import Job
from optional import skip_without_torch, torch
from same import same

IN_MEMORY = True
CHANGED = r"was changed before it was copied.*not taken"


class Gate:
    """Holds back copies of lazy snapshots, until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.copying = threading.Event()

    def open(self) -> None:
        self.opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    put_later = Encoded.put_later

    def held(self: Encoded, capture: Any) -> None:
        if threading.current_thread().name == "lmcstore copies":
            gate.copying.set()
            gate.opened.wait(60)
        put_later(self, capture)

    monkeypatch.setattr(Encoded, "put_later", held)
    yield gate
    gate.open()


def adamw(model: Any, **options: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


def sgd(model: Any, **options: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, **options)


class Training:
    def __init__(self, make: Callable[..., Any] | None = None, width: int = 64, **options: Any) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width))
        self.optimizer = (make or adamw)(self.model, **options)
        self.backward()
        self.optimizer.step()

    def backward(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(torch.randn(8, self.model[0].in_features)).square().mean().backward()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "seen": 3}

    @property
    def weight(self) -> Any:
        return self.model[0].weight

    def lazily(self, shelf: lmcstore.Shelf, **options: Any) -> lmcstore.Snapshot:
        return shelf.snapshot(self.state(), wait=False, lazy=self.optimizer, **options)


@pytest.mark.parametrize("make", [adamw, sgd])
@pytest.mark.parametrize("way", ["plain", "foreach", "fused"])
def test_steps_wait_for_the_copy(shelf: lmcstore.Shelf, make: Any, way: str) -> None:
    training = Training(make, 256, **({"foreach": way == "foreach"} if way != "fused" else {"fused": True}))
    taken = []
    for step in range(6):
        training.backward()
        training.optimizer.step()
        taken.append((copy.deepcopy(training.state()), training.lazily(shelf, step=step)))
    for step, (state, snap) in enumerate(taken):
        assert snap.wait() is snap and snap.done and snap.captured() and snap.step == step
        same(state, snap.state_dict())
    assert [snap.number for _, snap in taken] == list(range(1, 7))
    assert [snap.parent for _, snap in taken] == [None, 1, 2, 3, 4, 5]
    assert shelf.store.verify()["damages"] == 0


def test_the_call_returns_before_the_copy(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    state = copy.deepcopy(training.state())
    snap = training.lazily(shelf, tags=["x"], metrics={"loss": 0.5})
    assert snap.number == 1 and not snap.done and snap.captured(timeout=0.01) is False
    training.backward()  # changes buffers of the model, and gradients
    training.optimizer.param_groups[0]["lr"] = 7.0
    stepping = threading.Thread(target=training.optimizer.step)
    stepping.start()
    stepping.join(0.05)
    assert stepping.is_alive() and torch.equal(training.weight, state["model"]["0.weight"])
    gate.open()
    stepping.join()
    same(state, snap.wait().state_dict())
    assert not torch.equal(training.weight, state["model"]["0.weight"])
    assert snap.tags == ["x"] and snap.metrics == {"loss": 0.5}


def step_behind_the_gate(gate: Gate, step: Callable[[], Any]) -> None:
    """Let a step run until it waits, or change what it can; then open the gate, and end the step."""
    stepping = threading.Thread(target=step)
    stepping.start()
    stepping.join(0.1)
    gate.open()
    stepping.join()


def test_steps_wait_before_earlier_hooks(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()

    def change(*_: object) -> None:
        training.weight.data.mul_(0.5)  # which torch does not count

    training.optimizer.register_step_pre_hook(change)
    state = copy.deepcopy(training.state())
    snap = training.lazily(shelf)
    step_behind_the_gate(gate, training.optimizer.step)
    same(state, snap.wait().state_dict())


def test_a_hook_before_a_step_takes_a_snapshot(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training, taken = Training(), []
    training.optimizer.register_step_pre_hook(lambda *_: taken.append(training.lazily(shelf)))
    gate.open()
    training.lazily(shelf).wait()
    gate.opened.clear()
    state = copy.deepcopy(training.state())
    step_behind_the_gate(gate, training.optimizer.step)
    same(state, taken[0].wait().state_dict())


def change_in_place(training: Training) -> None:
    with torch.no_grad():
        training.weight.add_(1)


def change_by_foreach(training: Training) -> None:
    with torch.no_grad():
        torch._foreach_add_(list(training.model.parameters()), 1.0)


def change_a_state(training: Training) -> None:
    training.optimizer.state[training.weight]["exp_avg"].mul_(2)


def change_a_view(training: Training) -> None:
    training.weight.detach()[3].zero_()


def load(training: Training) -> None:
    training.model.load_state_dict({name: torch.zeros_like(t) for name, t in training.model.state_dict().items()})


def step_without_hooks(training: Training) -> None:
    type(training.optimizer).step.__wrapped__(training.optimizer)


CHANGES = [change_in_place, change_by_foreach, change_a_state, change_a_view, load, step_without_hooks]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_tensor_fails_the_snapshot(shelf: lmcstore.Shelf, gate: Gate, change: Any) -> None:
    training = Training()
    snap = training.lazily(shelf)
    change(training)
    gate.open()
    for call in (snap.captured, snap.wait, snap.wait):
        with pytest.raises(lmcstore.InvalidError, match=rf"(model|optimizer)[. ].*{CHANGED}"):
            call()
    assert shelf.latest is None
    training.optimizer.step()
    after = training.lazily(shelf)
    same(copy.deepcopy(training.state()), after.wait().state_dict())


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


class Sharded(Training):
    """As FSDP2 has it: DTensors, whose local tensors are in the state."""

    def __init__(self, mesh: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        super().__init__(lambda model: sgd(fully_shard(model, mesh=mesh)))

    def state(self) -> dict[str, Any]:
        def local(tree: Any) -> Any:
            if isinstance(tree, dict):
                return {key: local(value) for key, value in tree.items()}
            return tree.to_local() if hasattr(tree, "to_local") else tree

        return {"model": local(self.model.state_dict()), "optimizer": local(self.optimizer.state_dict()["state"])}


@pytest.mark.parametrize("change", [change_in_place, load, step_without_hooks], ids=lambda change: change.__name__)
def test_a_changed_dtensor_fails_the_snapshot(shelf: lmcstore.Shelf, gate: Gate, mesh: Any, change: Any) -> None:
    training = Sharded(mesh)
    snap = training.lazily(shelf)
    change(training)
    gate.open()
    with pytest.raises(lmcstore.InvalidError, match=rf"(model|optimizer)[. ].*{CHANGED}"):
        snap.wait()
    state = copy.deepcopy(training.state())
    snap = training.lazily(shelf)
    training.optimizer.step()
    same(state, snap.wait().state_dict())


def test_the_next_call_raises_what_no_wait_raised(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    for report in ("call", "close"):
        training.lazily(shelf)
        gate.copying.wait()
        change_in_place(training)
        gate.open()
        training.optimizer.step()  # goes on
        with pytest.raises(lmcstore.InvalidError, match=f"before this one was not saved: .*{CHANGED}|{CHANGED}"):
            training.lazily(shelf) if report == "call" else shelf.store.close()
        gate.opened.clear()
        gate.copying.clear()
    assert shelf.store.closed


def test_a_run_names_the_step_and_the_tensor(pool_path: str, gate: Gate) -> None:
    training = Training()
    failure = r"model\.0\.weight: it was changed .* the snapshot of step 7 was not taken\..*captured\(\).*lazy=False$"
    with lmcstore.Run(pool_path, model=training.model, optimizer=training.optimizer) as run:
        for report in ("wait", "save"):
            run.save(7)
            change_in_place(training)
            gate.open()
            training.optimizer.step()
            with pytest.raises(lmcstore.InvalidError, match=failure):
                run.wait() if report == "wait" else run.save(8)
            gate.opened.clear()
        gate.open()
        run.save(9, wait=True)
        gc.collect()  # while an object of the failed snapshot is left, the close reports it again


def test_what_a_graph_may_replay_is_copied_at_once(pool_path: str, gate: Gate) -> None:
    """The replay of a CUDA graph changes tensors as NumPy does: no hook is called, and nothing is counted."""
    training = Training()
    training.optimizer.param_groups[0]["capturable"] = True  # whose steps need a GPU
    weight = training.weight.detach().numpy()
    with lmcstore.Run(pool_path, model=training.model, optimizer=training.optimizer) as run:
        state = copy.deepcopy(training.state())
        snap = run.save(1)
        weight += 1
        gate.open()
        same(state["model"], snap.wait().state_dict()["model"])
        gate.opened.clear()
        snap = run.save(2, lazy=True)
        assert not snap.captured(0)
        gate.open()


def test_a_failed_snapshot_is_not_the_next_one_of_its_number(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    bad = training.lazily(shelf)
    gate.copying.wait()
    change_in_place(training)
    gate.open()
    training.optimizer.step()
    with pytest.raises(lmcstore.InvalidError, match=CHANGED):
        training.lazily(shelf)
    good = training.lazily(shelf)
    assert good in shelf and bad not in shelf and good.number == bad.number
    for change in (lambda: shelf.tag(bad, "best"), lambda: shelf.remove(bad)):
        with pytest.raises(lmcstore.InvalidError, match=CHANGED):
            change()
    assert good.tags == [] and shelf.latest == good


def test_a_tag_and_a_removal_wait_for_the_copy(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    for change in (lambda snap: shelf.tag(snap, "best"), shelf.remove):
        snap = training.lazily(shelf)
        gate.copying.wait()
        threading.Timer(0.1, gate.open).start()
        change(snap)
        assert snap.done
        gate.opened.clear()
        gate.copying.clear()
    assert shelf.tags == {"best": 1} and len(shelf) == 1


def test_what_torch_does_not_count(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    snap = training.lazily(shelf, verify=True)
    training.weight.data.add_(1)
    gate.open()
    with pytest.raises(lmcstore.InvalidError, match=r"0\.weight: its bytes were changed before they were copied"):
        snap.wait()
    training.model[0].bias.detach().numpy()[0] += 1
    same(copy.deepcopy(training.state()), training.lazily(shelf, verify=True).wait().state_dict())


@pytest.mark.parametrize("replace", ["data", "parameter", "state"])
def test_replaced_tensors_have_the_bytes_of_the_call(shelf: lmcstore.Shelf, gate: Gate, replace: str) -> None:
    training = Training(width=512)
    state = copy.deepcopy(training.state())
    snap = training.lazily(shelf)
    if replace == "data":
        training.weight.data = torch.zeros(512, 512)
    elif replace == "parameter":
        training.model[0].weight = torch.nn.Parameter(torch.zeros(512, 512))
        training.optimizer.param_groups[0]["params"][0] = training.weight
    else:
        training.optimizer.state.clear()
    gc.collect()
    reused = [torch.full((512, 512), 7.0) for _ in range(20)]
    gate.open()
    same(state, snap.wait().state_dict())
    assert len(reused) == 20


def test_a_freed_storage_fails_the_snapshot(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    snap = training.lazily(shelf)
    training.weight.data.untyped_storage().resize_(0)
    gate.open()
    with pytest.raises(lmcstore.InvalidError, match=r"0\.weight: its storage was freed or resized"):
        snap.wait()


def test_ties_and_views(shelf: lmcstore.Shelf, gate: Gate) -> None:
    whole = torch.randn(100, 100)
    one, other = torch.nn.Parameter(whole[:50]), torch.nn.Parameter(torch.randn(30).double())
    optimizer = torch.optim.SGD([one, other], lr=0.1)
    apart = torch.randn(10)
    state = {"whole": whole, "one": one, "again": one, "turned": one.detach().t(), "other": other, "apart": apart}
    expected = copy.deepcopy({name: tensor.detach() for name, tensor in state.items()})
    snap = shelf.snapshot(state, wait=False, lazy=optimizer)
    apart.zero_()  # shares nothing with the optimizer
    gate.open()
    back = snap.wait().state_dict()
    same({name: tensor.contiguous() for name, tensor in expected.items()}, {k: v.contiguous() for k, v in back.items()})
    assert back["again"] is back["one"]
    gate.opened.clear()
    snap = shelf.snapshot(state, wait=False, lazy=[optimizer])
    whole[99].zero_()  # of the storage, but not of the parameter
    gate.open()
    with pytest.raises(lmcstore.InvalidError, match=CHANGED):
        snap.wait()


def test_all_tensors_later(shelf: lmcstore.Shelf, gate: Gate) -> None:
    ema, array = {"w": torch.randn(100)}, np.arange(10)
    snap = shelf.snapshot({"ema": ema, "array": array}, wait=False, lazy=True)
    assert not snap.captured(0)
    array[0] = 5  # not seen, and not yet copied
    gate.open()
    assert snap.captured() and snap["array"][0] == 5
    gate.opened.clear()
    snap = shelf.snapshot({"ema": ema, "array": array}, wait=False, lazy=True, verify=True)
    array[0] = 6
    ema["w"].add_(1)
    gate.open()
    with pytest.raises(lmcstore.InvalidError, match=f"ema.w: it {CHANGED}"):
        snap.captured()


def test_a_change_of_the_optimizers_own_tensor(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    state = {"weight": training.weight.data}  # with a version counter of its own
    snap = shelf.snapshot(state, wait=False, lazy=training.optimizer)
    change_in_place(training)
    gate.open()
    with pytest.raises(lmcstore.InvalidError, match=f"^weight: it {CHANGED}"):
        snap.wait()


def test_tensors_of_inference_are_copied_at_once(shelf: lmcstore.Shelf, gate: Gate) -> None:
    with torch.inference_mode():
        state = {"x": torch.ones(4)}
        snap = shelf.snapshot(state, wait=False, lazy=True)
        state["x"].add_(1)  # which torch does not count
    gate.open()
    assert snap.wait()["x"].tolist() == [1.0] * 4


def test_one_snapshot_is_uncopied(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    first = training.lazily(shelf, step=1)
    assert training.lazily(shelf, step=2, skip=True) is None
    calling = threading.Thread(target=training.lazily, args=(shelf,), kwargs={"step": 3})
    calling.start()
    calling.join(0.05)
    assert calling.is_alive()
    gate.open()
    calling.join()
    shelf.store.close()
    with lmcstore.open(shelf.store.path, "r") as store:
        assert [snap.step for snap in store["run"]] == [1, 3] and first.number == 1


def test_two_shelves_of_one_optimizer(store: lmcstore.Store, gate: Gate) -> None:
    training = Training()
    snaps = [training.lazily(store[name]) for name in ("a", "b")]
    state = copy.deepcopy(training.state())
    stepping = threading.Thread(target=training.optimizer.step)
    stepping.start()
    stepping.join(0.05)
    assert stepping.is_alive()
    gate.open()
    stepping.join()
    for snap in snaps:
        same(state, snap.wait().state_dict())


def test_waiting_calls_copy_at_once(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    state = copy.deepcopy(training.state())
    snap = shelf.snapshot(training.state(), lazy=training.optimizer)
    change_in_place(training)
    same(state, snap.state_dict())
    assert snap.captured() and snap.done and not gate.copying.is_set()


def test_live_tensors_are_copied_at_once(store: lmcstore.Store, gate: Gate) -> None:
    shelf = store["run"]
    shelf.live["w"] = torch.zeros(1000)
    live = shelf.live["w"]
    plain = torch.zeros(1000)
    snap = shelf.snapshot({"live": live, "plain": plain}, wait=False, lazy=True)
    live.add_(1)
    gate.open()
    assert not snap.wait()["live"].any()
    gate.opened.clear()
    with shelf.transaction():
        snap = store["other"].snapshot({"plain": plain}, wait=False, lazy=True)
        assert not snap.captured(0)
        gate.open()
        snap.wait()
        gate.opened.clear()
        snap = shelf.snapshot({"plain": plain}, wait=False, lazy=True)
        assert snap.captured(0)
        plain.add_(1)
    assert not snap.wait()["plain"].any()


def test_refused_states_and_optimizers(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    for wrong in (3, "sgd", [training.model], [training.optimizer, None]):
        with pytest.raises(lmcstore.UnsupportedError, match="lazy= takes True, or optimizers"):
            shelf.snapshot({"a": 1}, wait=False, lazy=wrong)
    with pytest.raises(lmcstore.UnsupportedError, match="wrong"):
        shelf.snapshot({"wrong": object(), **training.state()}, wait=False, lazy=training.optimizer)
    training.optimizer.step()  # waits for nothing
    wrapper = type("Wrapper", (), {"optimizer": training.optimizer})()
    snap = shelf.snapshot(training.state(), wait=False, lazy=wrapper)
    assert not snap.done
    gate.open()
    snap.wait()


def test_hooks_are_not_copied(shelf: lmcstore.Shelf) -> None:
    training = Training()
    training.lazily(shelf).wait()
    again = pickle.loads(pickle.dumps(copy.deepcopy(training.optimizer)))
    assert type(again) is type(training.optimizer)
    training.optimizer.step()


def test_a_failed_copy(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()

    def fail(self: Encoded, capture: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Encoded, "put_later", fail)
    snap = training.lazily(shelf, step=3)
    with pytest.raises(lmcstore.UnsupportedError, match=r"the snapshot of step 3 can't.*illegal memory access"):
        snap.wait()
    monkeypatch.undo()
    training.optimizer.step()
    training.lazily(shelf).wait()


def test_a_copy_that_fails_without_words(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error whose text can't be encoded ends the promise, too."""
    training = Training()
    put_later = Encoded.put_later

    def fail(self: Encoded, capture: Any) -> None:
        raise RuntimeError("\ud800")

    monkeypatch.setattr(Encoded, "put_later", fail)
    failed = shelf.snapshot(training.state(), wait=False, lazy=training.optimizer)
    with pytest.raises(lmcstore.Error, match="can't be copied"):
        failed.wait()
    monkeypatch.setattr(Encoded, "put_later", put_later)
    taken = shelf.snapshot(training.state(), wait=False, lazy=training.optimizer)
    taken.wait()
    same(taken.state_dict(), training.state())


@pytest.mark.parametrize("when", ["made", "before", "listed", "thread made", "thread started", "no thread left"])
def test_an_interrupt_at_the_start_of_the_copy(
    shelf: lmcstore.Shelf, gate: Gate, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It leaves no snapshot that others wait for; one whose thread has started is taken all the same."""
    training = Training()
    state = copy.deepcopy(training.state())
    jobs: list[Job] = []

    def interrupt(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    class Jobs(set[Job]):
        def add(self, job: Job) -> None:
            super().add(job)
            jobs.append(job)
            if when == "listed":
                interrupt()

    class Thread(threading.Thread):
        def start(self) -> None:
            if when == "no thread left":
                raise RuntimeError("can't start new thread")
            super().start()
            interrupt()

    shelf.store._jobs = Jobs()
    with monkeypatch.context() as patched:
        places = {"made": (Job, "__init__"), "before": (Job, "start"), "no thread left": (Encoded, "put_later")}
        if when in places:
            patched.setattr(*places[when], interrupt)
        patched.setattr(threading, "Thread", interrupt if when == "thread made" else Thread)
        with pytest.raises(KeyboardInterrupt):
            training.lazily(shelf)
    try:
        assert len(shelf.store._jobs) == (when == "thread started")
    finally:
        gate.open()
        for job in jobs:
            taken = job.wait(10)
            job._ended.set()  # a failure of this test ends here
    assert all(job.ended and taken for job in jobs)
    shelf.store._jobs = set()
    assert not shelf.store._pool.would_wait("run")
    training.optimizer.step()
    training.lazily(shelf).wait()
    assert len(shelf) == 1 + (when == "thread started")
    if when == "thread started":
        same(state, shelf[1].state_dict())


def test_a_wrapper_of_an_optimizer(shelf: lmcstore.Shelf, gate: Gate) -> None:
    """As in Accelerate: it has the methods for hooks, but not what they need."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

    training = Training()
    taken, _ = shelf._prepare(training.state(), b"x" * 16, 1, lazy=[Wrapper(training.optimizer)])  # as a Run of ranks
    step_behind_the_gate(gate, training.optimizer.step)
    assert taken.captured()
    gate.opened.clear()
    taken = shelf.snapshot(training.state(), wait=False, lazy=Wrapper(training.optimizer))
    before = copy.deepcopy(training.state())
    step_behind_the_gate(gate, training.optimizer.step)
    taken.wait()
    same(taken.state_dict(), before)


def test_a_wrapper_that_changes_tensors_itself(shelf: lmcstore.Shelf, gate: Gate) -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: Any) -> None:
            super().__init__(optimizer.param_groups, {})
            self.optimizer = optimizer
            self.state[optimizer.param_groups[0]["params"][0]] = {"slow": torch.ones(3)}

        def step(self, closure: Any = None) -> None:
            for tensor in (training.weight, self.state[training.weight]["slow"]):
                tensor.data.mul_(0.5)
            self.optimizer.step(closure)

    training = Training()
    wrapper = Wrapper(training.optimizer)
    state = training.state() | {"slow": wrapper.state[training.weight]["slow"]}
    before = copy.deepcopy(state)
    snap = shelf.snapshot(state, wait=False, lazy=wrapper)
    step_behind_the_gate(gate, wrapper.step)
    same(before, snap.wait().state_dict())
    assert not torch.equal(training.weight, before["model"]["0.weight"]) and state["slow"][0] == 0.5


def test_a_child_waits_for_nothing(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    copied = training.lazily(shelf.store["copied"])
    gate.open()
    assert copied._job is not None and copied._job.wait()
    gate.opened.clear()
    snap = training.lazily(shelf)
    child = os.fork()
    if child == 0:
        try:
            assert snap.done and copied.captured()
            for wait in (snap.captured, snap.wait):
                with pytest.raises(lmcstore.InvalidError, match="parent process"):
                    wait()
            training.optimizer._optimizer_step_pre_hooks[next(iter(training.optimizer._optimizer_step_pre_hooks))](
                training.optimizer, (), {}
            )
            os._exit(0)
        finally:
            os._exit(1)
    for _ in range(1000):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
    gate.open()
    assert ended and status == 0
    snap.wait()


EXIT = """
import sys, torch, lmcstore
model = torch.nn.Linear(1000, 1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
shelf = lmcstore.open(sys.argv[1], wait=10)["run"]
for step in range(3):
    snap = shelf.snapshot({"model": model.state_dict()}, step=step, wait=False, lazy=optimizer)
if sys.argv[2] == "exception":
    raise SystemExit(7)
"""


@pytest.mark.parametrize("how", ["end", "exception"])
def test_the_interpreter_ends_after_the_copies(tmp_path: Any, how: str) -> None:
    skip_without_torch(EXIT)
    done = subprocess.run([sys.executable, "-c", EXIT, tmp_path / "p", how], capture_output=True, text=True, timeout=60)
    assert done.returncode == (7 if how == "exception" else 0), done.stderr
    with lmcstore.open(tmp_path / "p", "r") as store:
        assert [snap.step for snap in store["run"]] == [0, 1, 2]
        assert store.verify()["damages"] == 0


def niced(value: int) -> int:
    """Count the threads of this process with a nice value."""
    count = 0
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            count += int((task / "stat").read_text().rpartition(")")[2].split()[16]) == value
    return count


def test_the_copy_yields(pool_path: str, gate: Gate) -> None:
    for wrong in ({"copy_nice": 20}, {"copy_nice": -1}, {"copy_threads": 1025}, {"copy_threads": -1}):
        with pytest.raises(lmcstore.InvalidError, match="copy_"):
            lmcstore.open(pool_path, "x", **wrong)
    assert not os.path.exists(pool_path)
    training = Training()
    with lmcstore.open(pool_path, "x", background=False, copy_threads=2, copy_nice=17) as store:
        shelf = store.shelf("run", create=True)
        shelf.snapshot(training.state())
        assert niced(17) == 0
        training.optimizer.step()
        state = copy.deepcopy(training.state())
        snap = training.lazily(shelf)
        assert gate.copying.wait(60) and niced(17) == 1  # the copier
        gate.open()
        training.optimizer.step()
        same(state, snap.wait().state_dict())
        for thread in threading.enumerate():
            if thread.name == "lmcstore copies":
                thread.join()
        while niced(17) != 2:  # a joined thread may still be ending
            time.sleep(0.001)
    assert niced(17) == 0


def test_close_waits_for_the_copy(shelf: lmcstore.Shelf, gate: Gate) -> None:
    training = Training()
    state = copy.deepcopy(training.state())
    training.lazily(shelf)
    closing = threading.Thread(target=shelf.store.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    gate.open()
    closing.join()
    with lmcstore.open(shelf.store.path, "r") as store:
        same(state, store["run"].latest.state_dict())
