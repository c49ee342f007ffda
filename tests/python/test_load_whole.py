# SPDX-License-Identifier: BSD-3-Clause
"""load_into changes all of its targets or none: mismatches are found before, and failures are undone."""

from __future__ import annotations

import collections
import copy
import dataclasses
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import lmcstore
import numpy as np
import pytest
from lmcstore._arrays.torch import Torch
from lmcstore._state import load
from lmcstore._state.fits import may_overlap
from optional import torch
from same import same

optim, schedulers = torch.optim, torch.optim.lr_scheduler
KINDS = {
    name: kind
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer
}


def stepped(kind: str, steps: int = 1, **options: Any) -> Any:
    optimizer = KINDS[kind]([torch.nn.Parameter(torch.ones(3, 3))], **options)
    for _ in range(steps):
        step(optimizer)
    return optimizer


def step(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = torch.ones(parameter.shape)
            parameter.grad = gradient.to_sparse() if isinstance(optimizer, optim.SparseAdam) else gradient
    optimizer.step(lambda: torch.tensor(1.0)) if isinstance(optimizer, optim.LBFGS) else optimizer.step()


def refused(snapshot: lmcstore.Snapshot, text: str, **targets: Any) -> None:
    """Expect a refusal, before and after another target, and no change."""
    for order in (1, -1):
        weight = torch.zeros(3)
        parts = dict(list({"w": weight, **targets}.items())[::order])
        states = [part for part in parts.values() if hasattr(part, "state_dict")]
        before = copy.deepcopy([part.state_dict() for part in states])
        parent = snapshot.shelf.snapshot({}).number
        with pytest.raises(lmcstore.Error, match=text):
            snapshot.load_into(**parts)
        assert weight.tolist() == [0, 0, 0]
        same(before, [part.state_dict() for part in states])
        assert snapshot.shelf.snapshot({}).parent == parent


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_of_another_class(shelf: lmcstore.Shelf, kind: str, steps: int) -> None:
    saved = stepped(kind, steps)
    snapshot = shelf.snapshot({"w": torch.ones(3), "o": saved.state_dict()})
    for other in KINDS:
        target = stepped(other)
        if other == kind:
            snapshot.load_into(o=target)
            same(saved.state_dict(), target.state_dict())
            step(target)
        elif steps or {kind, other} != {"Adamax", "RAdam"}:  # empty, these have the same keys
            refused(snapshot, r"o\.(param_groups|state)\.0.*: the snapshot's optimizer is no " + other, o=target)


def test_classes_below_torchs(shelf: lmcstore.Shelf) -> None:
    """One that steps as its parent is checked as it; one with its own step has its own keys."""

    class Below(optim.AdamW):
        pass

    class Own(optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"rate": 0.1})

        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["seen"] = 1

    parameter = torch.nn.Parameter(torch.ones(3, 3))
    states = {"sgd": stepped("SGD").state_dict(), "adamw": stepped("AdamW").state_dict()}
    snapshot = shelf.snapshot({"w": torch.ones(3), **states, "own": stepped_own(Own).state_dict()})
    refused(snapshot, "no Below", sgd=Below([parameter]))
    refused(snapshot, "no Below", own=Below([parameter]))
    refused(snapshot, "no Own: it has no 'rate'", adamw=stepped_own(Own))
    refused(snapshot, "meta", adamw=Below([torch.nn.Parameter(torch.ones(3, 3, device="meta"))]))
    target, own = Below([parameter]), Own([parameter])
    snapshot.load_into(adamw=target, own=own)
    same(states["adamw"], target.state_dict())
    assert own.state_dict()["state"] == {0: {"seen": 1}}


@pytest.mark.parametrize("saved", ["SGD", "Adadelta", "Adam"])
def test_optimizers_that_load_by_themselves(shelf: lmcstore.Shelf, saved: str) -> None:
    """Wrappers, as Accelerate's, and those with hooks are checked after the load."""

    class Wrapped(optim.AdamW):
        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state)

    def hooked(parameters: Any) -> Any:
        made = optim.AdamW(parameters)
        made.register_load_state_dict_post_hook(lambda optimizer: None)
        return made

    snapshot = shelf.snapshot({"w": torch.ones(3), "o": stepped(saved).state_dict()})
    for make in (Wrapped, hooked):
        optimizer = make([torch.nn.Parameter(torch.ones(3, 3))])
        step(optimizer)
        if saved == "Adam":
            snapshot.load_into(o=optimizer)
        else:
            refused(snapshot, "betas|exp_avg", o=optimizer)
        step(optimizer)


def test_a_subclass_of_tensor(shelf: lmcstore.Shelf) -> None:
    class Marked(torch.Tensor):
        pass

    target = torch.zeros(3).as_subclass(Marked)
    shelf.snapshot({"t": torch.ones(3)}).load_into(t=target)
    assert target.tolist() == [1, 1, 1] and type(target) is Marked


def stepped_own(kind: Any) -> Any:
    made = kind([torch.nn.Parameter(torch.ones(3, 3))])
    made.step()
    return made


FLAGS = [
    ("Adam", {"amsgrad": True}),
    ("RMSprop", {"centered": True, "momentum": 0.5}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("AdamW", {"lr": torch.tensor(0.1)}),
    ("Adagrad", {"lr_decay": 0.1}),
]


@pytest.mark.parametrize("number", range(len(FLAGS)))
def test_the_same_class_with_other_options(shelf: lmcstore.Shelf, number: int) -> None:
    kind, options = FLAGS[number]
    for here, there in ((options, {}), ({}, options)):
        saved, target = stepped(kind, **here), stepped(kind, **there)
        shelf.snapshot({"o": saved.state_dict()}).load_into(o=target)
        same(saved.state_dict(), target.state_dict())
        step(saved)
        step(target)
        same(saved.state_dict(), target.state_dict())


def _broken(change: Callable[[dict[str, Any]], Any], kind: str = "Adam", **options: Any) -> dict[str, Any]:
    state = copy.deepcopy(stepped(kind, **options).state_dict())
    change(state)
    return state


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a text": (lambda s: s["state"][0].update(exp_avg="nonsense"), r"state\.0\.exp_avg: .* str"),
    "a moment is missing": (lambda s: s["state"][0].pop("exp_avg_sq"), r"state\.0: .*exp_avg_sq"),
    "a scalar moment": (lambda s: s["state"][0].update(exp_avg=torch.tensor(1.0)), r"exp_avg: .*shape"),
    "no step": (lambda s: s["state"][0].pop("step"), "step"),
    "amsgrad": (lambda s: s["param_groups"][0].update(amsgrad=True), "max_exp_avg_sq"),
    "a list": (lambda s: s["state"].update({0: [1]}), "list"),
    "a number": (lambda s: s["param_groups"][0].update(params=[5]), "0, which no group has"),
    "two": (lambda s: s["state"].update({1: dict(s["state"][0])}), "1, which no group has"),
    "no lr": (lambda s: s["param_groups"][0].pop("lr"), "has no 'lr'"),
    "lr": (lambda s: s["param_groups"][0].update(lr="fast"), r"param_groups\.0\.lr"),
    "betas": (lambda s: s["param_groups"][0].update(betas=(0.9,)), r"param_groups\.0\.betas"),
    "eps": (lambda s: s["param_groups"][0].update(eps=(1, 2)), r"param_groups\.0\.eps"),
    "capturable": (lambda s: s["param_groups"][0].update(capturable=True), "capturable"),
    "decoupled": (lambda s: s["param_groups"][0].update(decoupled_weight_decay=True), "decoupled"),
    "unhashable": (lambda s: s["param_groups"][0].update(params=[[0]]), "no numbers"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_optimizer(shelf: lmcstore.Shelf, name: str) -> None:
    change, text = BROKEN[name]
    snapshot = shelf.snapshot({"w": torch.ones(3), "o": _broken(change)})
    refused(snapshot, text, o=stepped("Adam", 2))


def test_parameters_twice(shelf: lmcstore.Shelf) -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = optim.Adam(parameters)
    step(optimizer)
    state = optimizer.state_dict()
    state["param_groups"][0]["params"] = [0, 0]
    del state["state"][1]
    refused(shelf.snapshot({"w": torch.ones(3), "o": state}), "twice", o=optimizer)


def test_states_of_earlier_versions_of_torch(shelf: lmcstore.Shelf) -> None:
    """Options that torch added later are not in them, and steps were numbers."""

    def change(state: dict[str, Any]) -> None:
        for key in ("foreach", "maximize", "capturable", "differentiable", "fused", "decoupled_weight_decay"):
            del state["param_groups"][0][key]
        state["state"][0]["step"] = 1

    target = stepped("Adam", 3)
    shelf.snapshot({"o": _broken(change)}).load_into(o=target)
    step(target)
    assert target.state_dict()["state"][0]["step"] == 2


def test_keys_of_a_scheduler_stay(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"o": stepped("SGD", momentum=0.9).state_dict()})
    target = stepped("SGD", momentum=0.9)
    cycle = schedulers.OneCycleLR(target, 0.1, total_steps=20)
    snapshot.load_into(o=target)
    cycle.step()
    with_scheduler = shelf.snapshot({"o": target.state_dict()})
    plain = stepped("SGD", momentum=0.9)
    with_scheduler.load_into(o=plain)
    same(target.state_dict(), plain.state_dict())


def _expanded() -> Any:
    return torch.zeros(1, 3).expand(4, 3)


def _inference() -> Any:
    with torch.inference_mode():
        return torch.zeros(4, 3)


def _freed() -> Any:
    made = torch.zeros(4, 3)
    made.untyped_storage().resize_(0)
    return made


def _read_only() -> Any:
    made = np.zeros((4, 3), "f4")
    made.flags.writeable = False
    return made


UNWRITABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "expanded": (_expanded, "share memory"),
    "overlapping": (lambda: torch.zeros(8).as_strided((4, 3), (1, 1)), "share memory"),
    "inference": (_inference, "inference"),
    "freed": (_freed, "freed"),
    "meta": (lambda: torch.zeros(4, 3, device="meta"), "meta"),
    "overlapping array": (
        lambda: np.lib.stride_tricks.as_strided(np.zeros(8, "f4"), (4, 3), (4, 4), writeable=True),
        "share memory",
    ),
    "broadcast array": (
        lambda: np.lib.stride_tricks.as_strided(np.zeros(3, "f4"), (4, 3), (0, 4), writeable=True),
        "share memory",
    ),
    "read-only array": (_read_only, "read-only"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_targets_that_cannot_be_written(shelf: lmcstore.Shelf, name: str) -> None:
    make, text = UNWRITABLE[name]
    target = make()
    source = torch.ones(4, 3) if isinstance(target, torch.Tensor) else np.ones((4, 3), "f4")
    snapshot = shelf.snapshot({"w": torch.ones(3), "x": source, "d": {"x": [source]}})
    refused(snapshot, f"x: .*{text}", x=target)
    refused(snapshot, rf"d\.x\.0: .*{text}", d={"x": [target]})
    if isinstance(target, torch.Tensor):
        module = torch.nn.BatchNorm1d(3)
        module.register_buffer("mask", target)
        stored = torch.nn.BatchNorm1d(3)
        stored.register_buffer("mask", torch.ones(4, 3))
        snapshot = shelf.snapshot({"w": torch.ones(3), "m": {"a": stored.state_dict(), "b": stored.state_dict()}})
        fine = copy.deepcopy(stored)
        weight = torch.zeros(3)
        with pytest.raises(lmcstore.UnsupportedError, match=rf"m\.b\.mask: .*{text}"):
            snapshot.load_into(w=weight, m={"a": fine.fill_() if hasattr(fine, "fill_") else fine, "b": module})
        assert weight.tolist() == [0, 0, 0] and module.num_batches_tracked.item() == 0


def test_targets_of_all_layouts_can_be_written(shelf: lmcstore.Shelf) -> None:
    base, array = torch.zeros(6, 8, 10), np.zeros((6, 8, 10))
    targets = {
        "t": base.permute(2, 0, 1)[::3, 1::2],
        "interleaved": torch.zeros(20).as_strided((3, 2), (2, 3)),
        "a": array[::-2, 3, ::-1],
        "record": np.zeros(5, [("x", "f8"), ("y", "i4")])["x"],
        "leaf": torch.nn.Parameter(torch.zeros(3)),
        "unbound": torch.zeros(2, 3).unbind()[1],
        "scalar": torch.zeros(()),
        "none": torch.zeros(0, 4),
        "imaginary": torch.zeros(3, dtype=torch.complex64).imag,
        "conj": torch.zeros(3, dtype=torch.complex64).conj(),
    }
    state = {
        key: torch.randn(t.shape).to(t.dtype) if torch.is_tensor(t) else np.ones(t.shape) for key, t in targets.items()
    }
    versions = {key: target._version for key, target in targets.items() if torch.is_tensor(target)}
    snapshot = shelf.snapshot(state)
    with pytest.raises(lmcstore.NotFoundError):
        snapshot.load_into(**targets, zzz=torch.zeros(3))
    assert versions == {key: target._version for key, target in targets.items() if torch.is_tensor(target)}
    snapshot.load_into(**targets)
    for key, target in targets.items():
        one, other = (
            np.asarray(value.detach().resolve_conj() if torch.is_tensor(value) else value)
            for value in (target, state[key])
        )
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def mesh(tmp_path: Any) -> Iterator[Any]:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    device_mesh = pytest.importorskip("torch.distributed.device_mesh")
    distributed.init_process_group("gloo", f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        yield device_mesh.init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


def test_sharded_targets_are_refused_before_anything_changes(shelf: lmcstore.Shelf, mesh: Any) -> None:
    tensors = pytest.importorskip("torch.distributed.tensor")
    whole = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    pytest.importorskip("torch.distributed.fsdp").fully_shard(model, mesh=mesh)
    hooked = copy.deepcopy(whole)
    for name in ("weight", "bias"):
        sharded = tensors.distribute_tensor(getattr(hooked[0], name).detach(), mesh, [tensors.Shard(0)])
        setattr(hooked[0], name, torch.nn.Parameter(sharded))
    hooked.register_load_state_dict_pre_hook(lambda *arguments: None)
    optimizer = optim.AdamW(whole.parameters())
    whole(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    tensor = tensors.distribute_tensor(torch.zeros(4, 4), mesh, [tensors.Shard(0)])
    state = {"first": torch.ones(3), "model": whole.state_dict(), "opt": optimizer.state_dict(), "w": torch.ones(4, 4)}
    snapshot, first = shelf.snapshot(state), torch.zeros(3)
    kind = r"DTensor.*to_local\(\).*set_model_state_dict"
    for path, target in (
        (r"model\.0\.weight", {"model": model}),
        (r"model\.0\.weight", {"model": hooked}),
        ("w", {"w": tensor}),
        (r"model\.0\.weight", {"model": model.state_dict()}),
        ("opt", {"opt": optim.AdamW(model.parameters())}),
    ):
        with pytest.raises(lmcstore.UnsupportedError, match=f"^{path}: .*{kind}"):
            snapshot.load_into(first=first, **target)
        assert first.tolist() == [0, 0, 0]
    local = {key: value.to_local() for key, value in model.state_dict().items()}
    snapshot.load_into(model=local)
    assert torch.equal(model.state_dict()["0.weight"].to_local(), whole[0].weight)


def test_overlaps_are_found_exactly() -> None:
    for shape, strides in (
        ((3, 2), (2, 3)),
        ((2, 3), (3, 1)),
        ((4,), (1,)),
        ((), ()),
        ((0, 9), (0, 0)),
        ((1, 4), (0, 1)),
    ):
        assert not may_overlap(shape, strides, 1)
    for shape, strides in (((4, 3), (2, 3)), ((2, 2), (1, 1)), ((2,), (0,)), ((5, 2), (1, 4))):
        assert may_overlap(shape, strides, 1)


def test_generators_with_bad_bytes(shelf: lmcstore.Shelf) -> None:
    bad = torch.zeros_like(torch.get_rng_state()).fill_(255)
    state = {"w": torch.ones(3), "t": bad, "p": (3, (1, 2), None), "n": {"bit_generator": "PCG64", "state": {}}}
    snapshot = shelf.snapshot(state)
    generators = {"t": torch.Generator().manual_seed(3), "p": random.Random(3), "n": np.random.default_rng(3)}
    before = [generators["t"].get_state(), generators["p"].getstate(), generators["n"].bit_generator.state]
    for name, generator in generators.items():
        refused(snapshot, f"{name}: the snapshot has no state of", **{name: generator})
    same(before, [generators["t"].get_state(), generators["p"].getstate(), generators["n"].bit_generator.state])


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 2),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o),
    "LinearLR": lambda o: schedulers.LinearLR(o),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "SequentialLR": lambda o: schedulers.SequentialLR(o, [schedulers.ConstantLR(o), schedulers.StepLR(o, 2)], [2]),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 10),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o), schedulers.StepLR(o, 2)]),
    "another chain": lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o), schedulers.LinearLR(o)]),
    "a longer chain": lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o)] * 3),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=20),
    "Warm": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "SWALR": lambda o: optim.swa_utils.SWALR(o, 0.05),
    "Plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
}
ALIKE = [{"LambdaLR", "MultiplicativeLR"}]
"""Their states have the same keys."""


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_of_another_class(shelf: lmcstore.Shelf) -> None:
    states = {name: make(stepped("AdamW")).state_dict() for name, make in SCHEDULERS.items()}
    snapshot = shelf.snapshot({"w": torch.ones(3), **states})
    for name in states:
        for other, make in SCHEDULERS.items():
            weight, target = torch.zeros(3), make(stepped("AdamW"))
            before = copy.deepcopy({key: value for key, value in target.state_dict().items() if key != "lr_lambdas"})
            if name == other:
                snapshot.load_into({name: target, "w": weight})
                assert weight.tolist() == [1, 1, 1]
            elif {name, other} not in ALIKE:
                with pytest.raises(lmcstore.Error, match=name):
                    snapshot.load_into({"w": weight, name: target})
                assert weight.tolist() == [0, 0, 0]
                after = {key: value for key, value in target.state_dict().items() if key != "lr_lambdas"}
                assert repr(before) == repr(after)


def test_schedulers_of_other_groups(shelf: lmcstore.Shelf) -> None:
    two = optim.SGD([{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)], lr=0.1)
    snapshot = shelf.snapshot({"w": torch.ones(3), "s": schedulers.StepLR(stepped("SGD"), 2).state_dict(), "n": 5})
    refused(snapshot, r"s\.base_lrs: .*length", s=schedulers.StepLR(two, 2))
    refused(snapshot, "n: the snapshot has an int", n=schedulers.StepLR(two, 2))


class Refusing:
    """Has no state to restore, and refuses every one."""

    def load_state_dict(self, state: Any) -> None:
        raise KeyError("never")


class Objects:
    """One target of each kind, and their values."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))
        self.optimizer = optim.AdamW(self.module.parameters(), lr=0.1 * seed)
        self.module(torch.randn(4, 3)).square().sum().backward()
        for _ in range(seed):
            self.optimizer.step()
        self.scheduler = schedulers.StepLR(self.optimizer, seed)
        self.generators = torch.Generator().manual_seed(seed), random.Random(seed), np.random.default_rng(seed)
        self.legacy = np.random.RandomState(seed)
        self.values = {"epoch": seed, "list": [seed, torch.full((2,), seed)], "pair": (seed, torch.full((2,), seed))}
        self.tensor, self.array = torch.full((5,), float(seed)), np.full(5, float(seed))
        self.last = torch.full((5,), float(seed))

    def state(self) -> dict[str, Any]:
        torchs, python, numpy = self.generators
        return copy.deepcopy(
            {
                "module": self.module.state_dict(),
                "normed": self.normed.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler.state_dict(),
                "generators": [torchs.get_state(), python.getstate(), numpy.bit_generator.state],
                "legacy": self.legacy.get_state(),
                "values": self.values,
                "tensor": self.tensor,
                "array": self.array,
                "last": self.last,
            }
        )

    def targets(self) -> dict[str, Any]:
        return {**vars(self), "generators": list(self.generators)}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
def test_a_failure_restores_all(
    shelf: lmcstore.Shelf, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, others = Objects(1), Objects(2)
    snapshot = shelf.snapshot(objects.state())
    before, groups = others.state(), others.optimizer.param_groups
    copy_back, calls = Torch.copy_back, []

    def fail(self: Torch, target: Any, source: Any) -> None:
        calls.append(target)
        copy_back(self, target, source)
        if target is others.last:
            raise error("a device")

    monkeypatch.setattr(Torch, "copy_back", fail)
    with pytest.raises(error, match="a device") as caught:
        snapshot.load_into(others.targets())
    assert len(calls) > 2 and not hasattr(caught.value, "__notes__")
    same(before, others.state())
    assert others.optimizer.param_groups is groups and others.values["epoch"] == 2
    monkeypatch.undo()
    snapshot.load_into(others.targets())
    same(objects.state(), others.state())


def test_a_refusal_restores_all(shelf: lmcstore.Shelf) -> None:
    objects, others = Objects(1), Objects(2)
    snapshot = shelf.snapshot({**objects.state(), "z": 1})
    before = others.state()
    with pytest.raises(KeyError, match="never"):
        snapshot.load_into({**others.targets(), "z": Refusing()})
    same(before, others.state())


def test_a_module_that_fails_half_way(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, others = Objects(1), Objects(2)
    snapshot = shelf.snapshot(objects.state())
    before = others.state()
    real = torch.nn.Module.load_state_dict

    def fail(module: Any, *arguments: Any) -> Any:
        found = real(module, *arguments)
        if module is others.module:
            raise RuntimeError("half way")
        return found

    monkeypatch.setattr(load, "_may_refuse", lambda *_: False)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", fail)
    with pytest.raises(RuntimeError, match="half way"):
        snapshot.load_into(others.targets())
    monkeypatch.undo()
    same(before, others.state())


def test_large_tensors_are_not_kept(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_KEPT_BYTES", 10)
    objects, others = Objects(1), Objects(2)
    shelf.snapshot(objects.state()).load_into(others.targets())
    same(objects.state(), others.state())


class Point(NamedTuple):
    x: Any
    y: Any


class Names(list[Any]):
    pass


def test_containers_keep_their_types(shelf: lmcstore.Shelf) -> None:
    def made(number: int) -> dict[str, Any]:
        table: dict[str, Any] = collections.defaultdict(list, {"a": [number]})
        return {
            "point": Point(number, (number, Point(number, 1))),
            "table": table,
            "count": collections.Counter(a=number),
            "filled": Point(torch.full((2,), float(number)), number),
            "deep": [{"points": [Point(number, 2)], "table": collections.defaultdict(int, n=number)}],
            "names": Names([number]),
            "ordered": collections.OrderedDict(a=number),
        }

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(child) for key, child in value.items()}
        if isinstance(value, list | tuple):
            return [plain(child) for child in value]
        return value

    state = {
        "point": (1, (1, (1, 1))),
        "table": {"a": [1], "b": [2]},
        "count": collections.Counter(a=1),
        "filled": (torch.ones(2), 1),
        "deep": [{"points": [(1, 2)], "table": {"n": 1, "m": 2}}],
        "names": [1, 2],
        "ordered": {"a": 1},
    }
    snapshot, target = shelf.snapshot(state), made(7)
    factory, filled = target["table"].default_factory, target["filled"].x
    snapshot.load_into(target)
    assert repr(plain(target)) == repr(plain(state))
    expected, types = made(1), lambda value: (type(value), [*map(types, value)] if isinstance(value, tuple) else [])
    assert {key: types(value) for key, value in target.items()} == {
        key: types(value) for key, value in expected.items()
    }
    assert target["table"].default_factory is factory and target["filled"].x is filled
    assert type(target["deep"][0]["points"][0]) is Point
    assert type(target["deep"][0]["table"]) is collections.defaultdict and target["deep"][0]["table"]["new"] == 0
    with pytest.raises(lmcstore.InvalidError, match=r"point: .* make no Point"):
        shelf.snapshot({"point": (1, 2, 3)}).load_into({"point": Point(0, 0)})


@dataclasses.dataclass
class Progress:
    step: int
    held: Any
    seen: Any = None


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Any
    number: int = 0


@pytest.mark.parametrize("as_types", [False, True])
def test_targets_in_dataclasses_and_deques(shelf: lmcstore.Shelf, as_types: bool) -> None:
    """They are filled in place, at any depth; a dataclass is replaced by a copy that holds the same targets."""
    source, generator = torch.nn.Linear(2, 2), torch.Generator().manual_seed(5)
    state = {
        "run": Outer(Progress(3, torch.ones(2), {"m": source.state_dict()}), 7),
        "queue": deque([source.state_dict(), 1, Progress(1, np.ones(2))], 5),
        "pair": (Progress(4, generator.get_state()), 8),
        "list": [source.state_dict()],
    }
    weight, module, array, own = torch.zeros(2), torch.nn.Linear(2, 2), np.zeros(2), torch.Generator()
    others = [torch.nn.Linear(2, 2) for _ in range(2)]
    queue = deque([others[0], 0, Progress(0, array)], 4)
    target = {
        "run": Outer(Progress(0, weight, {"m": module})),
        "queue": queue,
        "pair": (Progress(0, own), 0),
        "list": deque([others[1]], 3),
    }
    types = [Outer, Progress] if as_types else []
    shelf.snapshot(state).load_into(target, types=types)
    run: Any = target["run"]
    assert (type(run), type(run.inner), run.number, run.inner.step) == (Outer, Progress, 7, 3)
    assert run.inner.held is weight and weight.tolist() == [1, 1] and run.inner.seen["m"] is module
    assert target["queue"] is queue and queue.maxlen == 4 and queue[0] is others[0] and queue[1] == 1
    assert queue[2].step == 1 and queue[2].held is array and array.tolist() == [1, 1]
    pair: Any = target["pair"]
    assert pair[0].step == 4 and pair[0].held is own and torch.equal(own.get_state(), generator.get_state())
    for one in (module, *others):
        assert torch.equal(one.weight, source.weight)
    kept = deque([torch.nn.Linear(2, 2)])
    shelf.latest.load_into(list=kept)
    assert torch.equal(kept[0].weight, source.weight)


@pytest.mark.parametrize(
    ("held", "kept", "text"),
    [
        (torch.zeros(7, 2), {}, r"^run\.held: .*shape"),
        (torch.zeros(2, dtype=torch.int8), {}, r"^run\.held: .*dtype"),
        (torch.zeros(2), {"seen": torch.zeros(1)}, r"^run\.seen: .*NoneType"),
        (torch.nn.Linear(2, 2), {}, r"^run\.held: .*not a module's state"),
    ],
)
def test_targets_in_dataclasses_are_checked(shelf: lmcstore.Shelf, held: Any, kept: Any, text: str) -> None:
    snapshot = shelf.snapshot({"run": Progress(3, torch.ones(2)), "less": {"step": 1}, "queue": [1, 2], "none": None})
    first, run = torch.zeros(2), Progress(0, held, **kept)
    target = {"run": run, "queue": [0, first]}
    with pytest.raises(lmcstore.InvalidError, match=text):
        snapshot.load_into({"run": run, "queue": [0]})
    assert target["run"] is run and run.step == 0
    with pytest.raises(lmcstore.InvalidError, match=r"queue: .*length"):
        snapshot.load_into({"queue": deque([first])})
    with pytest.raises(lmcstore.NotFoundError, match=r"^less: the snapshot has no 'held' and 'seen'"):
        snapshot.load_into({"less": Progress(0, first)})
    with pytest.raises(lmcstore.InvalidError, match=r"^none: .*NoneType"):
        snapshot.load_into({"none": Progress(0, first)})
    lenient = {"less": Progress(0, first, 9)}
    assert snapshot.load_into(lenient, strict=False).missing_keys == ["less.held", "less.seen"]
    assert lenient["less"] == Progress(1, first, 9) and first.tolist() == [0, 0]


def test_a_dataclass_that_refers_to_itself(shelf: lmcstore.Shelf) -> None:
    own = Progress(0, None)
    own.held = [own]
    target = {"run": own}
    shelf.snapshot({"run": {"step": 1, "held": []}}).load_into(target)
    assert (target["run"].step, target["run"].held) == (1, [])


def test_deques_stay_deques(shelf: lmcstore.Shelf) -> None:
    class Recent(deque[Any]):
        pass

    snapshot = shelf.snapshot({"list": [1, (2, 3)], "deque": deque([1], 9)})
    target: Any = {"list": deque([0, Point(0, 0)], 4), "deque": deque([0], 2)}
    snapshot.load_into(target)
    assert (target["list"], target["list"].maxlen) == (deque([1, Point(2, 3)]), 4)
    assert (target["deque"], target["deque"].maxlen) == (deque([1]), 9)
    target = {"list": Recent([0], 3)}
    snapshot.load_into(target)
    assert (type(target["list"]), list(target["list"]), target["list"].maxlen) == (Recent, [1, (2, 3)], 3)
    target = {"list": deque([5], 1)}
    with pytest.raises(lmcstore.InvalidError, match=r"^list: the snapshot's 2 items .* at most 1"):
        snapshot.load_into(target)
    assert list(target["list"]) == [5]


@pytest.mark.parametrize(
    ("stored", "own", "converts"),
    [
        (np.array(["ab"]), np.array(["abcdef"]), True),
        (np.array([b"ab"]), np.array([b"abcdef"]), True),
        (np.array(["abcdef"]), np.array(["ab"]), False),
        (np.array([(1, 2.0)], "i4,f8"), np.array([(0, 0.0)], "i8,f8"), False),
        (np.array(["2026-01-01"], "M8[D]"), np.array(["2000-01-01"], "M8[s]"), False),
        (np.array(["ab"]), np.array([b"ab"]), False),
        (np.ones(1), np.array(["ab"]), False),
        (np.array(["ab"]), np.ones(1), False),
        (np.array(["1"]), np.ones(1), False),
        (np.array(["2026-01-01"], "M8[D]"), np.zeros(1, "i8"), False),
        (np.ones(1, "i4"), np.zeros(1, ">f8"), True),
    ],
)
def test_casts_of_arrays(shelf: lmcstore.Shelf, stored: Any, own: Any, converts: bool) -> None:
    """The error advises cast=True only where that converts."""
    snapshot, before = shelf.snapshot({"a": stored}), own.copy()
    with pytest.raises(lmcstore.InvalidError, match="dtype is") as caught:
        snapshot.load_into(a=own)
    assert ("cast=True" in str(caught.value)) == converts
    if converts:
        snapshot.load_into(a=own, cast=True)
        assert (own == stored).all()
    else:
        with pytest.raises(lmcstore.InvalidError, match=r"which is never"):
            snapshot.load_into(a=own, cast=True)
        assert (own == before).all()


def test_casts_that_lose_a_part(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"w": torch.ones(3), "t": torch.ones(2) * 1j, "a": np.ones(2) * 1j})
    weight = torch.zeros(3)
    for target in ({"t": torch.zeros(2)}, {"a": np.zeros(2)}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(lmcstore.InvalidError, match="complex"):
                snapshot.load_into({"w": weight, **target}, cast=True)
    assert weight.tolist() == [0, 0, 0]
