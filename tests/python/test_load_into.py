# SPDX-License-Identifier: BSD-3-Clause
"""Resuming: load_into checks everything, then copies; load_state_dict on what was read is safe, too."""

from __future__ import annotations

import copy
from typing import Any

import lmcstore
import numpy as np
import pytest
import states
import torch
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
    torch.set_rng_state(snapshot["rng"])
    assert start == 3
    for _ in range(start, 6):
        other_step()
    same(expected, final(others))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
def test_resume_with_load_state_dict(shelf: lmcstore.Shelf, assign: bool, compacted: bool) -> None:
    """Training on what was read, with assign=True even on its memory, changes no snapshot."""
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
    """Targets that don't fit what `states.training` saves: first what fits, then what doesn't."""
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
    assert shelf.snapshot({}).parent == 2  # it was not loaded


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
    shelf[1].load_into(model=half)  # as torch does it
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
        legacy.standard_normal()  # which keeps a second one
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
