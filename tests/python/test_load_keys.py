# SPDX-License-Identifier: BSD-3-Clause
"""load_into compares keys: missing and unexpected ones together, wrappers' prefixes, strict=False."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import lmcstore
import pytest
from optional import torch
from same import same


class Wrapped(torch.nn.Module):
    """As DistributedDataParallel."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        return self.module(x)


def made(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def inside(value: Any) -> Any:
    model = made(value)
    model[0] = torch.compile(model[0])
    return model


WRAPPERS = {
    "plain": made,
    "compiled": lambda seed: torch.compile(made(seed)),
    "ddp": lambda seed: Wrapped(made(seed)),
    "both": lambda seed: torch.compile(Wrapped(made(seed))),
    "both, other order": lambda seed: Wrapped(torch.compile(made(seed))),
    "a part compiled": inside,
}


@pytest.mark.parametrize("stored", WRAPPERS)
@pytest.mark.parametrize("target", WRAPPERS)
def test_prefixes_of_wrappers(shelf: lmcstore.Shelf, stored: str, target: str) -> None:
    source, model = WRAPPERS[stored](1), WRAPPERS[target](2)
    snapshot = shelf.snapshot({"model": source.state_dict(), "x": 1})
    loaded = snapshot.load_into(model=model)
    assert loaded == snapshot and loaded.missing_keys == loaded.unexpected_keys == []
    for one, other in zip(source.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    tensors = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    target_dict = {"model": tensors}
    snapshot.load_into(target_dict)
    assert list(target_dict["model"]) == list(model.state_dict())
    assert all(map(torch.equal, tensors.values(), source.state_dict().values()))


def weight_norm(seed: int) -> Any:
    torch.manual_seed(seed)
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(2, 2, 3))
    return torch.nn.Sequential(torch.nn.Conv1d(1, 2, 3), normed)


def spectral_norm(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.utils.spectral_norm(torch.nn.Linear(2, 2)))


def own_loader(seed: int) -> Any:
    torch.manual_seed(seed)
    return OwnLoader()


class OwnLoader(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)

    def load_state_dict(self, state: Any, strict: bool = True) -> Any:  # type: ignore[override]
        return super().load_state_dict(dict(state), strict)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("make", [weight_norm, spectral_norm, own_loader])
def test_prefixes_of_modules_that_only_they_can_check(shelf: lmcstore.Shelf, make: Any, strict: bool) -> None:
    source = make(1)
    for stored in (source, Wrapped(source), torch.compile(source)):
        snapshot = shelf.snapshot({"model": stored.state_dict()})
        for wrap in (lambda model: model, Wrapped, torch.compile, lambda model: torch.compile(Wrapped(model))):
            inner = make(2)
            loaded = snapshot.load_into(model=wrap(inner), strict=strict)
            assert loaded.missing_keys == loaded.unexpected_keys == []
            same(source.state_dict(), inner.state_dict())


def test_prefixes_of_a_lazy_module(shelf: lmcstore.Shelf) -> None:
    source, model = torch.nn.Linear(3, 2), torch.nn.LazyLinear(2)
    shelf.snapshot({"model": Wrapped(source).state_dict()}).load_into(model=model)
    assert torch.equal(model.weight, source.weight)


def test_a_hook_that_renames_keys_gets_them_as_they_are(shelf: lmcstore.Shelf) -> None:
    """Only a state that has all of a module's keys is renamed."""
    with pytest.warns(FutureWarning):
        old = torch.nn.Sequential(torch.nn.utils.weight_norm(torch.nn.Conv1d(2, 2, 3)))
    model = torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(2, 2, 3)))
    shelf.snapshot({"model": old.state_dict()}).load_into(model=model)
    assert torch.equal(model[0].parametrizations.weight.original1, old[0].weight_v)
    wrapped = shelf.snapshot({"model": Wrapped(old).state_dict()})
    with pytest.raises(RuntimeError, match="original1") as caught:
        wrapped.load_into(model=model)
    assert any("'module.'" in note for note in caught.value.__notes__)


def test_prefixes_in_a_flat_state(shelf: lmcstore.Shelf) -> None:
    """A dict for the whole state names some of its parts."""
    snapshot = shelf.snapshot({"module.weight": torch.ones(2), "module.bias": torch.ones(1), "step": 3})
    for strict in (True, False):
        target: dict[str, Any] = {"weight": torch.zeros(2), "step": 0}
        weight = target["weight"]
        snapshot.load_into(target, strict=strict)
        assert weight.tolist() == [1, 1] and target == {"weight": weight, "step": 3}
    snapshot.load_into(target := {"weight": torch.zeros(2), "bias": torch.zeros(1)})
    assert target["bias"].item() == 1
    target = {"weight": torch.zeros(2), "other": torch.zeros(1)}
    with pytest.raises(lmcstore.NotFoundError, match=r"no 'weight' and 'other' .*'module\.' \(of Distributed.*1 would"):
        snapshot.load_into(target)
    assert target["weight"].tolist() == [0, 0]
    assert snapshot.load_into(target, strict=False).missing_keys == ["other"] and target["weight"].tolist() == [1, 1]


def test_equal_keys_stay_if_a_wrapper_does_not_explain_all(shelf: lmcstore.Shelf) -> None:
    state = {"a": torch.ones(1), "module.a": torch.full((1,), 2.0), "module.b": torch.full((1,), 3.0)}
    target = {"a": torch.zeros(1), "b": torch.zeros(1), "c": torch.zeros(1)}
    loaded = shelf.snapshot({"m": state}).load_into({"m": target}, strict=False)
    assert target["a"].item() == 1 and loaded.missing_keys == ["m.b", "m.c"]


class Ambiguous(torch.nn.Module):
    """It has a part that is called as DistributedDataParallel's is, and the part's keys."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.module = torch.nn.ParameterDict({"weight": torch.full((1,), value + 1.0)})
        self.weight = torch.nn.Parameter(torch.full((1,), float(value)))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("extra", [False, True])
def test_a_wrapper_around_a_module_with_such_a_name(shelf: lmcstore.Shelf, strict: bool, extra: bool) -> None:
    for wrap, unwrap in ((lambda model: model, Wrapped), (Wrapped, lambda model: model)):
        source, model = Ambiguous(1), Ambiguous(7)
        state = wrap(source).state_dict()
        if extra:
            state["n_averaged"] = torch.ones(1)
        snapshot, target = shelf.snapshot({"m": state}), unwrap(model)
        if extra and strict:
            with pytest.raises(lmcstore.NotFoundError, match="n_averaged"):
                snapshot.load_into(m=target)
            continue
        assert snapshot.load_into(m=target, strict=strict).missing_keys == []
        assert (model.weight.item(), model.module["weight"].item()) == (1, 2)


def test_the_metadata_follows_the_keys(shelf: lmcstore.Shelf) -> None:
    """A BatchNorm's version, without which it takes a missing counter for an old state's."""
    seen = []

    class Asking(torch.nn.BatchNorm1d):
        def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *others: Any) -> None:
            seen.append(metadata.get("version"))
            super()._load_from_state_dict(state, prefix, metadata, *others)

    snapshot = shelf.snapshot({"model": Wrapped(torch.nn.Sequential(Asking(2))).state_dict()})
    snapshot.load_into(model=torch.nn.Sequential(Asking(2)))
    snapshot.load_into(model=torch.compile(torch.nn.Sequential(Asking(2))))
    assert seen == [2, 2]


def test_missing_and_unexpected_keys_in_one_error(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"model": {"a": torch.ones(1), "b": torch.ones(1), "c": torch.ones(1)}})
    model = torch.nn.ParameterDict({"a": torch.zeros(1), "d": torch.zeros(1)})
    for target in (model, {"a": torch.zeros(1), "d": 0}):
        with pytest.raises(lmcstore.NotFoundError, match=r"^model: .*no 'd'.*no 'b' and 'c'.*strict=False"):
            snapshot.load_into(model=target)
        with pytest.raises(lmcstore.InvalidError, match=r"^model: .*no 'b' and 'c'.*strict=False"):
            snapshot.load_into({"model": {"a": torch.zeros(1)}})
    assert model["a"].item() == 0


def test_many_keys_are_counted(shelf: lmcstore.Shelf) -> None:
    snapshot = shelf.snapshot({"model": {f"old{index}": torch.ones(1) for index in range(1000)}})
    with pytest.raises(lmcstore.NotFoundError) as caught:
        snapshot.load_into(model={f"new{index}": torch.ones(1) for index in range(2000)})
    text = str(caught.value)
    assert "1,990 more" in text and "990 more" in text and len(text) < 800


@pytest.mark.parametrize(
    ("stored", "own", "text"),
    [
        (["module.a", "module.b"], ["a", "c"], r"'module\.' \(of DistributedDataParallel.*1 would"),
        (["a", "b"], ["_orig_mod.a", "_orig_mod.c"], r"'_orig_mod\.' \(of torch\.compile\)"),
        (["encoder.a", "encoder.b"], ["a", "b"], r"2 would match without the prefix 'encoder\.' of the snapshot's"),
        (["a", "b"], ["net.a", "net.b"], r"2 would match without the prefix 'net\.' of the target's"),
        (["module.a", "_orig_mod.a"], ["a", "b"], "module"),
        (["a"], ["module.a", "_orig_mod.a"], "module"),
    ],
)
def test_prefixes_are_explained(shelf: lmcstore.Shelf, stored: list[str], own: list[str], text: str) -> None:
    snapshot = shelf.snapshot({"model": {key: torch.ones(1) for key in stored}})
    target = {key: torch.zeros(1) for key in own}
    with pytest.raises(lmcstore.NotFoundError, match=text):
        snapshot.load_into(model=target)
    assert not any(value.item() for value in target.values())


def test_a_module_with_such_a_name_of_its_own(shelf: lmcstore.Shelf) -> None:
    """Equal keys are never renamed, nor others to one that is taken."""
    state = {"module.w": torch.ones(1), "w": torch.full((1,), 2.0)}
    target = {"w": torch.zeros(1), "module.w": torch.zeros(1)}
    shelf.snapshot({"m": state}).load_into(m=target)
    assert (target["w"].item(), target["module.w"].item()) == (2, 1)


class Adapted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(3, 3)
        self.lora_a = torch.nn.Parameter(torch.randn(1, 3))
        self.lora_b = torch.nn.Parameter(torch.randn(3, 1))


@pytest.mark.parametrize("hooked", [False, True])
def test_adapters(shelf: lmcstore.Shelf, hooked: bool) -> None:
    source, model = Adapted(), Adapted()
    state = {key: value for key, value in source.state_dict().items() if "lora" in key}
    snapshot = shelf.snapshot({"model": state | {"old": torch.ones(1)}}, step=3)
    if hooked:
        model.register_load_state_dict_pre_hook(lambda *arguments: None)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises((lmcstore.NotFoundError, RuntimeError), match=r"base\.weight"):
        snapshot.load_into(model=model)
    same(before, model.state_dict())
    loaded = snapshot.load_into(model=model, strict=False)
    assert loaded.missing_keys == ["model.base.weight", "model.base.bias"]
    assert loaded.unexpected_keys == ["model.old"]
    assert loaded.step == 3 and loaded == snapshot and loaded["model.old"].item() == 1
    same(before["base.weight"], model.base.weight.detach())
    assert torch.equal(model.lora_a, source.lora_a) and torch.equal(model.lora_b, source.lora_b)


def test_adapters_behind_a_wrapper(shelf: lmcstore.Shelf) -> None:
    source, model = Wrapped(Adapted()), Adapted()
    snapshot = shelf.snapshot({key: value for key, value in source.state_dict().items() if "lora" in key})
    loaded = snapshot.load_into(model, strict=False)
    assert (loaded.missing_keys, loaded.unexpected_keys) == (["base.weight", "base.bias"], [])
    assert torch.equal(model.lora_a, source.module.lora_a)
    tensors = {"module.lora_a": torch.zeros(1, 3), "other": torch.zeros(1), "n": {"x": 0}}
    assert snapshot.load_into(tensors, strict=False).missing_keys == ["other", "n"]
    assert torch.equal(tensors["module.lora_a"], source.module.lora_a)


def test_strict_false_is_all_or_nothing(shelf: lmcstore.Shelf) -> None:
    class Refusing:
        def load_state_dict(self, state: Any) -> None:
            raise RuntimeError("no")

    snapshot = shelf.snapshot({"model": {"lora_a": torch.ones(1, 3)}, "bad": {"lora_a": torch.ones(2)}, "r": 1})
    model, other = Adapted(), Adapted()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(lmcstore.InvalidError, match=r"bad\.lora_a.*shape"):
        snapshot.load_into(model=model, bad=other, strict=False)
    with pytest.raises(RuntimeError, match="no"):
        snapshot.load_into(model=model, r=Refusing(), strict=False)
    with pytest.raises(lmcstore.NotFoundError, match="modle"):
        snapshot.load_into(modle=model, strict=False)
    with pytest.raises(lmcstore.UnsupportedError, match="strict must be a bool"):
        snapshot.load_into(strict=model)  # type: ignore[arg-type]
    same(before, model.state_dict())


def test_a_loader_of_its_own_may_not_take_strict(shelf: lmcstore.Shelf) -> None:
    class Own(Adapted):
        def load_state_dict(self, state: Any) -> None:  # type: ignore[override]
            self.seen = OrderedDict(state)

    model = Own()
    loaded = shelf.snapshot({"m": {"x": torch.ones(1)}}).load_into(m=model, strict=False)
    assert list(model.seen) == ["x"] and loaded.missing_keys == []
