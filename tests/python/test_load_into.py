# SPDX-License-Identifier: BSD-3-Clause
"""load_into checks everything, then copies; load_state_dict on reads is safe, too."""

from __future__ import annotations

import copy
import datetime
import zoneinfo
from collections import OrderedDict
from typing import Any

import lmcstore
import numpy as np
import pytest
import states
from optional import torch
from same import same


def final(objects: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(states.training_state(objects))


def test_resume_is_bit_exact(shelf: lmcstore.Shelf) -> None:
    objects, step = states.training(steps=0)
    for number in range(6):
        step()
        shelf.snapshot(states.training_state(objects), step=number)
    expected = final(objects)

    torch.manual_seed(99)
    others, other_step = states.training(steps=3)
    snapshot = shelf.at(step=2)
    start = snapshot.load_into(**others).step + 1
    torch.set_rng_state(snapshot["rng"].torch())
    assert start == 3
    for _ in range(start, 6):
        other_step()
    same(expected, final(others))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
def test_resume_with_load_state_dict(shelf: lmcstore.Shelf, assign: bool, compacted: bool) -> None:
    """Training on a read state, with assign=True even on its memory, changes no snapshot."""
    objects, step = states.training()
    saved = copy.deepcopy(states.training_state(objects))
    shelf.snapshot(states.training_state(objects), step=2)
    if compacted:
        for _ in range(6):
            shelf.snapshot({"x": torch.zeros(10)})
        shelf.store.compact()
    step()
    expected = final(objects)

    others, other_step = states.training(steps=1)
    state = shelf[1].state_dict()
    others["model"].load_state_dict(state["model"], assign=assign)
    if assign:
        others["optimizer"].param_groups[0]["params"] = list(others["model"].parameters())
    others["optimizer"].load_state_dict(state["optimizer"])
    others["scheduler"].load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"])
    other_step()
    same(expected, final(others))
    same(saved, shelf[1].state_dict())
    assert shelf.store.verify()["damages"] == 0


def test_a_dict_of_plain_values_gets_the_keys_that_came_later(shelf: lmcstore.Shelf) -> None:
    class Full(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            if key == "at":
                raise RuntimeError("full")
            super().__setitem__(key, value)

    saved: dict[str, Any] = {"epoch": 3, "best": 0.5, "at": [1, {"a": 2}]}
    with lmcstore.Run(shelf.store, shelf=shelf.name, rng=False, seen=saved, parts={"a": np.ones(2), "b": 1}) as run:
        run.save(1)
    for seen in ({}, {"epoch": 0}):
        parts = {"a": np.zeros(2), "b": 0}
        assert lmcstore.Run(shelf.store, shelf=shelf.name, rng=False, seen=seen, parts=parts).resume() == 2
        assert seen == saved and parts["b"] == 1
    with pytest.raises(lmcstore.NotFoundError, match=r"^seen: .*no 'new'"):
        shelf[1].load_into(seen={"new": 1})
    with pytest.raises(lmcstore.InvalidError, match=r"^parts: .*no 'b'.*load_into\(\.\.\., strict=False\)"):
        shelf[1].load_into(parts={"a": np.zeros(2)})
    full = Full(epoch=0)
    with pytest.raises(RuntimeError, match="full"):
        shelf[1].load_into(seen=full)
    assert full == {"epoch": 0}
    assert shelf[1].load_into(seen=full, strict=False).unexpected_keys == ["seen.best", "seen.at"]


def test_the_whole_into_a_dict(shelf: lmcstore.Shelf) -> None:
    objects, _ = states.training()
    shelf.snapshot(states.training_state(objects) | {"epoch": 5}, step=1)
    others, _ = states.training(steps=0)
    target = {**others, "epoch": 0}
    assert shelf[1].load_into(target) == shelf[1]
    assert target["epoch"] == 5
    same(final(objects)["model"], final(others)["model"])
    same(final(objects)["optimizer"], final(others)["optimizer"])


def test_the_whole_into_an_object(shelf: lmcstore.Shelf) -> None:
    model = torch.nn.Linear(3, 4)
    shelf.snapshot(model.state_dict())
    other = torch.nn.Linear(3, 4)
    shelf.latest.load_into(other)
    same(dict(model.state_dict()), dict(other.state_dict()))


def test_nothing_aliases_the_snapshot(shelf: lmcstore.Shelf) -> None:
    objects, _ = states.training()
    shelf.snapshot(states.training_state(objects))
    others, other_step = states.training(steps=0)
    snapshot = shelf[1].load_into(**others)
    maps = {}
    with open("/proc/self/maps") as lines:
        for line in lines:
            if "test.pool" in line:
                low, high = line.split()[0].split("-")
                maps[int(low, 16)] = int(high, 16)
    for slot in others["optimizer"].state.values():
        for value in slot.values():
            assert not any(low <= value.data_ptr() < high for low, high in maps.items())
    other_step()
    same(shelf[1].state_dict(), snapshot.state_dict())


def test_tensors_arrays_and_values_in_place(shelf: lmcstore.Shelf) -> None:
    shelf.snapshot(
        {"t": torch.arange(3.0), "p": torch.ones(2), "n": {"a": np.arange(4), "v": [1, 2], "l": [torch.ones(1), 5]}}
    )
    tensor, parameter, array = torch.zeros(3), torch.nn.Parameter(torch.zeros(2)), np.zeros(4, np.int64)
    inner = torch.zeros(1)
    target = {"t": tensor, "p": parameter, "n": {"a": array, "v": None, "l": [inner, 0]}}
    shelf[1].load_into(target)
    same(torch.arange(3.0), tensor)
    assert parameter.requires_grad and parameter.detach().tolist() == [1, 1]
    assert array.tolist() == [0, 1, 2, 3] and target["n"]["v"] == [1, 2] and target["n"]["l"] == [inner, 5]
    assert inner.item() == 1
    tensor.zero_()
    same(torch.arange(3.0), shelf[1]["t"])


def test_a_strided_target(shelf: lmcstore.Shelf) -> None:
    shelf.snapshot({"t": torch.arange(6.0).view(2, 3)})
    base = torch.zeros(3, 2)
    shelf[1].load_into(t=base.t())
    same(torch.arange(6.0).view(2, 3), base.t().contiguous())


def test_generators(shelf: lmcstore.Shelf) -> None:
    generator = torch.Generator().manual_seed(5)
    shelf.snapshot({"g": generator.get_state()})
    expected = torch.randn(3, generator=generator)
    other = torch.Generator()
    shelf[1].load_into(g=other)
    same(expected, torch.randn(3, generator=other))


def broken(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Targets for the state of `states.training`: a fitting part, then one that does not fit."""
    objects, _ = states.training(steps=0)
    model, optimizer = objects["model"], objects["optimizer"]
    if kind == "shape":
        bad = torch.nn.Sequential(*[copy.deepcopy(part) for part in model])
        bad[4] = torch.nn.Linear(16, 5)
        return {"optimizer": optimizer}, {"model": bad}
    if kind == "missing key":
        bad = torch.nn.Sequential(*[copy.deepcopy(part) for part in model], torch.nn.Linear(1, 1))
        return {"optimizer": optimizer}, {"model": bad}
    if kind == "unexpected key":
        return {"optimizer": optimizer}, {"model": torch.nn.Sequential(*list(model)[:-1])}
    if kind == "groups":
        return {"model": model}, {"optimizer": torch.optim.AdamW([{"params": [p]} for p in model.parameters()])}
    if kind == "parameters":
        return {"model": model}, {"optimizer": torch.optim.AdamW(list(model.parameters())[:-1])}
    if kind == "moments":
        other = torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
        return {"model": model}, {"optimizer": torch.optim.AdamW(other.parameters())}
    if kind == "part":
        return {"model": model}, {"missing": optimizer}
    if kind == "type":
        return {"model": model}, {"optimizer": object()}
    if kind == "tensor dtype":
        return {"model": model}, {"rng": torch.zeros(states.training_state(objects)["rng"].shape)}
    if kind == "tensor for object":
        return {"model": model}, {"rng": optimizer}
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "shape",
        "missing key",
        "unexpected key",
        "groups",
        "parameters",
        "moments",
        "part",
        "type",
        "tensor dtype",
        "tensor for object",
    ],
)
def test_all_or_nothing(shelf: lmcstore.Shelf, kind: str) -> None:
    objects, _ = states.training()
    shelf.snapshot(states.training_state(objects))
    shelf.snapshot({})
    good, bad = broken(kind)
    before = copy.deepcopy({name: value.state_dict() for name, value in good.items()})
    with pytest.raises(lmcstore.Error):
        shelf[1].load_into(**good, **bad)
    same(before, {name: value.state_dict() for name, value in good.items()})
    assert shelf.snapshot({}).parent == 2


def test_what_is_missing_is_named(shelf: lmcstore.Shelf) -> None:
    shelf.snapshot({"model": torch.nn.Linear(2, 2).state_dict()})
    with pytest.raises(lmcstore.NotFoundError, match=r"1\.weight"):
        shelf[1].load_into(model=torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)))
    with pytest.raises(lmcstore.InvalidError, match=r"model\.weight.*shape"):
        shelf[1].load_into(model=torch.nn.Linear(3, 2))
    with pytest.raises(KeyError, match="optimizer"):
        shelf[1].load_into(model=torch.nn.Linear(2, 2), optimizer=torch.nn.Linear(1, 1))
    with pytest.raises(ValueError):
        shelf[1].load_into()


def test_modules_on_meta_and_of_other_dtype(shelf: lmcstore.Shelf) -> None:
    model = torch.nn.Linear(3, 2)
    shelf.snapshot({"model": model.state_dict()})
    with torch.device("meta"):
        empty = torch.nn.Linear(3, 2)
    empty.load_state_dict(shelf[1].state_dict("model"), assign=True)
    same(dict(model.state_dict()), dict(empty.state_dict()))
    half = torch.nn.Linear(3, 2).to(torch.bfloat16)
    with pytest.raises(lmcstore.InvalidError, match=r"model\.weight.*dtype.*cast=True"):
        shelf[1].load_into(model=half)
    shelf[1].load_into(model=half, cast=True)
    assert torch.equal(half.weight, model.weight.to(torch.bfloat16))


def test_grad_scaler_and_ema(shelf: lmcstore.Shelf) -> None:
    model = torch.nn.Linear(3, 2)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    shelf.snapshot({"ema": average.state_dict()})
    other = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(3, 2))
    shelf[1].load_into(ema=other)
    same(dict(average.state_dict()), dict(other.state_dict()))


def test_tied_modules(shelf: lmcstore.Shelf) -> None:
    first = torch.nn.Linear(4, 4, bias=False)
    second = torch.nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)
    shelf.snapshot({"model": model.state_dict()})
    expected = first.weight.detach().clone()
    with torch.no_grad():
        first.weight.zero_()
    shelf[1].load_into(model=model)
    assert model[0].weight is model[1].weight
    same(expected, model[1].weight.detach())


def test_plain_values_in_tuples(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"pair": (5, torch.ones(1)), "n": 3})
    filled = torch.zeros(1)
    target = {"pair": (0, filled), "n": 0}
    snapshot.load_into(target)
    assert target["n"] == 3 and target["pair"][0] == 5 and target["pair"][1] is filled and filled.item() == 1


def test_generators_of_python_and_numpy(shelf: lmcstore.Shelf) -> None:
    import random

    python, pcg, twister = random.Random(1), np.random.default_rng(2), np.random.Generator(np.random.MT19937(3))
    state = {
        "python": python.getstate(),
        "numpy": {"pcg": pcg.bit_generator.state, "twister": twister.bit_generator.state},
    }
    snapshot = shelf.snapshot(state)
    expected = python.random(), pcg.random(), twister.random()
    fresh = random.Random(9), np.random.default_rng(9), np.random.Generator(np.random.MT19937(9))
    snapshot.load_into(python=fresh[0], numpy={"pcg": fresh[1], "twister": fresh[2]})
    assert expected == (fresh[0].random(), fresh[1].random(), fresh[2].random())
    with pytest.raises(lmcstore.InvalidError, match="MT19937"):
        snapshot.load_into(numpy={"pcg": twister, "twister": twister})
    with pytest.raises(lmcstore.InvalidError, match=r"random\.Random"):
        snapshot.load_into(numpy=fresh[0])


def test_the_generators_behind_the_modules(shelf: lmcstore.Shelf) -> None:
    import random

    before = random.getstate(), np.random.get_state()
    try:
        legacy = np.random.RandomState(3)
        legacy.standard_normal()
        snapshot = shelf.snapshot(
            {"random": random.getstate(), "numpy": np.random.get_state(), "legacy": [legacy.get_state()]}
        )
        expected = random.random(), np.random.random_sample(), legacy.standard_normal()
        fresh = np.random.RandomState(4)
        snapshot.load_into(random=random, numpy=np.random, legacy=[fresh])
        assert expected == (random.random(), np.random.random_sample(), fresh.standard_normal())
        for wrong in ({"random": np.random}, {"numpy": random}, {"random": np.random.RandomState(1)}):
            with pytest.raises(lmcstore.InvalidError, match="has no state of"):
                snapshot.load_into(**wrong)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def test_a_grad_scaler_and_a_sampler(shelf: lmcstore.Shelf) -> None:
    class Sampler:
        def __init__(self) -> None:
            self.epoch, self.order = 0, torch.arange(3)

        def state_dict(self) -> dict[str, Any]:
            return {"epoch": self.epoch, "order": self.order}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.epoch, self.order = state["epoch"], state["order"]

    scaler, sampler = torch.amp.GradScaler("cpu", init_scale=8.0), Sampler()
    sampler.epoch, sampler.order = 4, torch.tensor([2, 0, 1])
    snapshot = shelf.snapshot({"scaler": scaler.state_dict(), "sampler": sampler.state_dict()})
    other, another = torch.amp.GradScaler("cpu", init_scale=2.0), Sampler()
    snapshot.load_into(scaler=other, sampler=another)
    assert other.state_dict() == scaler.state_dict() and other.get_scale() == 8.0
    assert another.epoch == 4 and another.order.tolist() == [2, 0, 1]


CONTAINERS = {
    "a dict in a dict": lambda one: {"data": {"cpu": one}},
    "a tuple": lambda one: (one, one),
    "a list in a list": lambda one: [[one]],
    "a tuple in a list": lambda one: [(one, 3)],
    "beside a tensor": lambda one: {"data": {"cpu": one, "w": torch.zeros(1)}},
}


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("whole", [False, True])
def test_generators_of_torch_deep_in_containers(shelf: lmcstore.Shelf, kind: str, whole: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    snapshot = shelf.snapshot({"rng": CONTAINERS[kind](generator.get_state()), "step": 3})
    other = torch.Generator().manual_seed(9)
    target = {"rng": CONTAINERS[kind](other), "step": 0}
    if whole:
        snapshot.load_into(target)
    else:
        snapshot.load_into(rng=target["rng"])
    same(generator.get_state(), other.get_state())
    assert "Generator" in repr(target["rng"])


def test_what_cannot_be_replaced_in_a_tuple(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"pair": (torch.ones(1), 5)})
    filled = torch.zeros(1)
    with pytest.raises(lmcstore.UnsupportedError, match=r"pair\.1"):
        snapshot.load_into(pair=(filled, 0))
    with pytest.raises(lmcstore.InvalidError, match="length"):
        snapshot.load_into(pair=(filled,))
    assert filled.item() == 0


class Picky:
    """Refuses a state after it has taken half."""

    def __init__(self, value: int, refuses: bool) -> None:
        self.value, self.half, self.refuses = value, value, refuses

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "half": self.half}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.half = state["half"]
        if self.refuses and self.half == 7:
            raise KeyError("not this one")
        self.value = state["value"]


def test_what_refuses_only_when_it_is_loaded(shelf: lmcstore.Shelf) -> None:
    """No target changes: earlier, later, or itself."""
    weight_norm = torch.nn.utils.parametrizations.weight_norm
    torch.manual_seed(1)
    plain, normed = torch.nn.Linear(4, 4), weight_norm(torch.nn.Linear(4, 4))
    snapshot = shelf.snapshot(
        {"a": plain.state_dict(), "g": normed.state_dict(), "p": Picky(7, False).state_dict(), "t": torch.ones(2)}
    )
    shelf.snapshot({})
    for other in (weight_norm(torch.nn.Linear(4, 5)), weight_norm(torch.nn.Linear(4, 4))):
        targets = {
            "a": torch.nn.Linear(4, 4),
            "p": Picky(1, False),
            "t": torch.zeros(2),
            "g": other,
        }
        if other.out_features == 4:
            targets |= {"g": other, "p": Picky(1, True)}
        before = copy.deepcopy([targets[name].state_dict() for name in "agp"])
        with pytest.raises((RuntimeError, KeyError), match=r"size mismatch|not this one"):
            snapshot.load_into(**targets)
        same(before, [targets[name].state_dict() for name in "agp"])
        assert targets["t"].tolist() == [0, 0]
    assert shelf.snapshot({}).parent == 2
    fresh = weight_norm(torch.nn.Linear(4, 4))
    snapshot.load_into(g=fresh, p=Picky(1, False))
    same(dict(normed.state_dict()), dict(fresh.state_dict()))


def test_what_cannot_be_taken_back_is_said(shelf: lmcstore.Shelf) -> None:
    class Stubborn(Picky):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise ValueError("never")

    snapshot = shelf.snapshot({"p": Picky(7, False).state_dict()})
    with pytest.raises(ValueError, match="never") as caught:
        snapshot.load_into(p=Stubborn(1, True))
    assert caught.value.__notes__ == ["p: what it had before could not be put back: never"]


def test_what_was_not_begun_is_left_alone(shelf: lmcstore.Shelf) -> None:
    class Counted(Picky):
        loads = 0

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.loads += 1
            super().load_state_dict(state)

    state = Picky(7, False).state_dict()
    snapshot = shelf.snapshot({"a": state, "b": state, "c": state})
    first, last = Counted(1, False), Counted(1, False)
    with pytest.raises(KeyError):
        snapshot.load_into(a=first, b=Picky(1, True), c=last)
    assert (first.loads, first.value, last.loads, last.value) == (2, 1, 0, 1)


def test_a_grad_scaler_that_was_disabled(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"w": torch.ones(1), "scaler": torch.amp.GradScaler("cpu", enabled=False).state_dict()})
    weight = torch.zeros(1)
    with pytest.raises(lmcstore.InvalidError, match="disabled"):
        snapshot.load_into(w=weight, scaler=torch.amp.GradScaler("cpu"))
    assert weight.item() == 0
    snapshot.load_into(w=weight, scaler=torch.amp.GradScaler("cpu", enabled=False))


@pytest.mark.parametrize("kind", ["a key is missing", "a key is a text", "no dict"])
def test_a_broken_grad_scaler(shelf: lmcstore.Shelf, kind: str) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    state: Any = scaler.state_dict() | ({"scale": "x"} if kind == "a key is a text" else {})
    if kind == "a key is missing":
        del state["growth_factor"]
    error, text = {
        "a key is missing": (lmcstore.NotFoundError, r"^scaler: the snapshot has no 'growth_factor' for the GradSc"),
        "a key is a text": (lmcstore.InvalidError, r"^scaler\.scale: the snapshot has a str, not a number"),
        "no dict": (lmcstore.InvalidError, r"^scaler: the snapshot has a list, not a GradScaler's state"),
    }[kind]
    snapshot = shelf.snapshot({"w": torch.ones(1), "scaler": [1] if kind == "no dict" else state})
    weight, target = torch.zeros(1), torch.amp.GradScaler("cpu", init_scale=2.0)
    before = target.state_dict()
    with pytest.raises(error, match=text):
        snapshot.load_into(w=weight, scaler=target)
    assert weight.item() == 0 and target.state_dict() == before


OPTIMIZERS = [
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.Adafactor,
]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_moments_of_all_of_torchs_optimizers_are_checked(shelf: lmcstore.Shelf, kind: Any) -> None:
    saved = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([saved])
    saved.grad = torch.ones(3)
    optimizer.step()
    snapshot = shelf.snapshot({"o": optimizer.state_dict()})
    with pytest.raises(lmcstore.InvalidError, match="shape"):
        snapshot.load_into(o=kind([torch.nn.Parameter(torch.ones(4))]))
    with pytest.raises(lmcstore.InvalidError, match="dtype"):
        snapshot.load_into(o=kind([torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))]))
    fresh = kind([torch.nn.Parameter(torch.ones(3))])
    snapshot.load_into(o=fresh)
    same(optimizer.state_dict(), fresh.state_dict())


def test_nothing_is_cast_in_silence(shelf: lmcstore.Shelf) -> None:
    model = torch.nn.BatchNorm1d(3)
    snapshot = shelf.snapshot({"m": model.state_dict(), "t": torch.tensor([1.001953125]), "a": np.array([1.5])})
    half = torch.nn.BatchNorm1d(3).to(torch.bfloat16)
    for wrong in ({"m": half}, {"t": torch.zeros(1, dtype=torch.float16)}, {"a": np.zeros(1, "f4")}):
        with pytest.raises(lmcstore.InvalidError, match=r"dtype.*cast=True"):
            snapshot.load_into(**wrong)
    tensor, array = torch.zeros(1, dtype=torch.bfloat16), np.zeros(1, "f4")
    snapshot.load_into({"m": half, "t": tensor, "a": array}, cast=True)
    assert half.running_var.dtype == torch.bfloat16 and tensor.item() == 1 and array[0] == 1.5
    with pytest.raises(lmcstore.InvalidError, match="never"):
        snapshot.load_into(a=np.zeros(1, [("x", "f4"), ("y", "f4")]), cast=True)
    with pytest.raises(lmcstore.UnsupportedError, match="a part that is called so"):
        snapshot.load_into(cast=tensor)  # type: ignore[arg-type]


class Mixed(torch.optim.Optimizer):
    """Keeps state of another dtype than the parameter's, as bf16 optimizers do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        for param in self.param_groups[0]["params"]:
            self.state[param] = {
                "master": torch.full(param.shape, 1.001953125),
                "seen": torch.tensor(2**24 + 1),
                "lists": [torch.tensor(2**24 + 1), {"deep": torch.full((2,), 0.1)}],
                "codes": torch.tensor([3, 1], dtype=torch.uint8),
            }


def test_an_optimizers_state_keeps_its_dtypes(shelf: lmcstore.Shelf) -> None:
    def made() -> Mixed:
        return Mixed([torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))])

    optimizer, other = made(), made()
    optimizer.step()
    snapshot = shelf.snapshot({"o": optimizer.state_dict()})
    snapshot.load_into(o=other)
    same(optimizer.state_dict(), other.state_dict())
    other.state_dict()["state"][0]["master"].zero_()
    same(optimizer.state_dict(), snapshot.state_dict("o"))
    third = made()
    snapshot.load_into(o=third, cast=True)
    slots = third.state_dict()["state"][0]
    assert slots["master"].dtype == torch.bfloat16
    assert slots["seen"].item() == 2**24 + 1 and slots["codes"].dtype == torch.uint8


def test_what_is_put_back_keeps_its_dtypes(shelf: lmcstore.Shelf) -> None:
    class Own(Mixed):
        def __setstate__(self, state: Any) -> None:
            super().__setstate__(state)

    class Refusing:
        def load_state_dict(self, state: Any) -> None:
            raise RuntimeError("no")

    optimizer = Own([torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))])
    optimizer.step()
    snapshot = shelf.snapshot({"o": optimizer.state_dict(), "r": {"x": 1}})
    next(iter(optimizer.state.values()))["master"].fill_(0.3)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(RuntimeError, match="no"):
        snapshot.load_into(o=optimizer, r=Refusing())
    same(before, optimizer.state_dict())


def test_momentum_of_another_dtype_than_its_parameter(shelf: lmcstore.Shelf) -> None:
    param = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([param], momentum=0.9)
    optimizer.state[param]["momentum_buffer"] = torch.full((2,), 0.1)
    snapshot = shelf.snapshot({"o": optimizer.state_dict()})
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))], momentum=0.9)
    snapshot.load_into(o=other)
    same(optimizer.state_dict(), other.state_dict())


def test_a_modules_extra_state_is_a_copy(shelf: lmcstore.Shelf) -> None:
    class Counting(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.counts = np.zeros(3)

        def get_extra_state(self) -> Any:
            return {"counts": self.counts}

        def set_extra_state(self, state: Any) -> None:
            self.counts = state["counts"]

    module, other = Counting(), Counting()
    module.counts += 2
    snapshot = shelf.snapshot({"m": module.state_dict()})
    snapshot.load_into(m=other)
    other.counts += 1
    assert other.counts.tolist() == [3, 3, 3] and snapshot.state_dict("m")["_extra_state"]["counts"][0] == 2


def test_a_module_that_keeps_what_it_is_given(shelf: lmcstore.Shelf) -> None:
    class Keeping(torch.nn.Linear):
        def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
            super()._load_from_state_dict(state, prefix, *others)
            self.kept = state[prefix + "weight"]

    snapshot = shelf.snapshot({"m": Keeping(2, 2).state_dict()})
    other = Keeping(2, 2)
    snapshot.load_into(m=other)
    with open("/proc/self/maps") as lines:
        ranges = [line.split()[0].split("-") for line in lines if "test.pool" in line]
    assert not any(int(low, 16) <= other.kept.data_ptr() < int(high, 16) for low, high in ranges)


@pytest.mark.parametrize("root", [dict, OrderedDict])
def test_only_the_named_parts_are_read(shelf: lmcstore.Shelf, root: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    state = root(model={"w": torch.ones(2)}, started=datetime.datetime(2026, 1, 1, tzinfo=zone), epoch=3)
    snapshot = shelf.snapshot(state)

    def missing(key: str) -> Any:
        raise zoneinfo.ZoneInfoNotFoundError(key)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", missing)
    target: dict[str, Any] = {"model": {"w": torch.zeros(2)}, "epoch": 0}
    snapshot.load_into(target)
    assert target["model"]["w"].tolist() == [1, 1] and target["epoch"] == 3
    with pytest.raises(lmcstore.UnsupportedError, match=r"no time zone 'Europe/Berlin'.*tzdata"):
        snapshot.load_into({"epoch": 0, "started": None})


def test_what_is_tied_stays_tied_in_a_dict(shelf: lmcstore.Shelf) -> None:
    tensor = torch.ones(3)
    target = {"a": None, "b": None, "c": None}
    shelf.snapshot({"a": tensor, "b": tensor, "c": tensor.view(3)}).load_into(target)
    assert target["a"] is target["b"] and target["a"] is not target["c"]
    assert target["a"].data_ptr() == target["c"].data_ptr()
