# SPDX-License-Identifier: BSD-3-Clause
"""Relations from Python: declared optimizer steps are stored by links."""

from __future__ import annotations

import struct
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore._optimizer import relations
from lmcstore._optimizer.relations import Finder, Relation
from optional import torch
from same import same

SGD = 2


def _fma(a: np.ndarray, x: float, b: np.ndarray) -> np.ndarray:
    """Round once: a product of two f32 and a sum with a third are exact enough in f64 here."""
    return (a.astype(np.float64) * np.float64(np.float32(x)) + b.astype(np.float64)).astype(np.float32)


def test_steps_are_linked(pool_path: str) -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(0, 0.02, 40000).astype(np.float32)
    buffer = np.zeros_like(weight)
    states = []
    with lmcstore.open(pool_path, size="256MiB") as store:
        shelf = store["run"]
        shelf.policy = "keep_raw=1 links=8"
        for step in range(6):
            gradient = (rng.integers(-128, 128, weight.size) / 4096).astype(np.float32)
            buffer = buffer * np.float32(0.9) + gradient
            weight = _fma(buffer, -0.05, weight)
            states.append((buffer.copy(), weight.copy()))
            capture = store._pool.begin("run")
            capture.relate(("buffer", "weight"), SGD, 0, (0.0, 0.05, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0))
            for name, array in (("buffer", buffer), ("weight", weight)):
                with memoryview(capture.reserve(name, 12, struct.pack("=Q", array.size))) as room:
                    room.cast("B")[:] = array.tobytes()
            capture.commit(step, 0, 0, (), (), (), None, False)
        store.compact()
        storage = shelf[4].storage()
        assert storage["link_contents"] == 2
        assert storage["longest_line"] == 3
        assert storage["links_note"] is None
        assert storage["stored_bytes"] < 0.5 * shelf[4].raw_bytes
        assert {entry["stored_as"] for entry in shelf[4].entries()} == {"link"}
        for number, (old_buffer, old_weight) in enumerate(states, 1):
            np.testing.assert_array_equal(dict(shelf[number].tensors())["buffer"], old_buffer)
            np.testing.assert_array_equal(dict(shelf[number].tensors())["weight"], old_weight)
        store.verify()


def test_relations_that_make_no_sense(pool_path: str) -> None:
    constants = (0.0, 0.05, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0)
    with lmcstore.open(pool_path, size="64MiB") as store:
        capture = store._pool.begin("run")
        with pytest.raises(lmcstore.Error, match="has 2 tensors"):
            capture.relate(("a", "b", "c"), SGD, 0, constants)
        with pytest.raises(lmcstore.Error, match="no optimizer"):
            capture.relate(("a", "b"), 77, 0, constants)
        with pytest.raises(lmcstore.Error, match="finite"):
            capture.relate(("a", "b"), SGD, 0, (float("nan"), *constants[1:]))
        with pytest.raises(ValueError, match="2 to 4"):
            capture.relate(tuple("abcde"), SGD, 0, constants)
        with pytest.raises(TypeError):
            capture.relate(("a", 3), SGD, 0, constants)  # type: ignore[arg-type]
        capture.abort()


def _toggle_amsgrad(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["amsgrad"] = not group["amsgrad"]


def _toggle_momentum(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["momentum"] = 0.0 if group["momentum"] else 0.9


def _toggle_nesterov(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["nesterov"] = not group["nesterov"]


def _swap_groups(optimizer: Any) -> None:
    optimizer.param_groups.reverse()


def _no_numbers(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] = None if group["lr"] is not None else 0.1


ADAM = {"lr": 1e-3}
CHANGES: dict[str, Any] = {
    "amsgrad on": (lambda p: torch.optim.Adam(p, **ADAM), _toggle_amsgrad),
    "amsgrad off": (lambda p: torch.optim.AdamW(p, amsgrad=True, **ADAM), _toggle_amsgrad),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), _toggle_momentum),
    "nesterov": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), _toggle_nesterov),
    "one group of two": (
        lambda p: torch.optim.AdamW([{"params": p[:1], "amsgrad": True}, {"params": p[1:]}], **ADAM),
        _swap_groups,
    ),
    "no numbers": (lambda p: torch.optim.Adam(p, **ADAM), _no_numbers),
}


@pytest.mark.parametrize("steps_between", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_an_optimizer_that_changes_its_rule(shelf: lmcstore.Shelf, name: str, steps_between: bool) -> None:
    make, change = CHANGES[name]
    can_step = steps_between and name not in ("amsgrad on", "no numbers")  # torch itself would fail
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 8)
    optimizer = make(list(model.parameters()))

    def take() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        same(state, shelf.snapshot(state).state_dict())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()

    step()
    take()
    for _ in range(4):
        change(optimizer)
        take()
        if can_step:
            step()
            take()
    assert len(shelf) == (9 if can_step else 5)


def test_relations_that_do_not_fit_are_left_out(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = (0.0, 0.05, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0)
    malformed: Any = [("a", 3), ("a", "b", "a", "b", "a"), ("", "b"), ("a", "\ud800")]
    bad = [
        Relation(SGD, 0, constants, [("a", "b", "c")]),
        Relation(77, 0, constants, [("a", "b")]),
        Relation(SGD, 0, (float("inf"), *constants[1:]), [("a", "b")]),
        Relation(SGD, 0, constants, malformed),
        Relation(SGD, 0, constants[1:], [("a", "b")]),
        Relation(-1, 0, constants, [("a", "b")]),
        Relation(SGD, 0, constants, [("a", "nowhere"), ("a", "b"), ("a", "a")]),
    ]
    state = {"a": torch.zeros(9), "b": torch.ones(9)}
    monkeypatch.setattr(Finder, "find", lambda *_: bad)
    same(state, shelf.snapshot(state).state_dict())
    assert shelf.latest is not None and shelf.store.verify()["damages"] == 0

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.undo()
    monkeypatch.setattr(relations, "_plan", fail)
    same(state, shelf.snapshot(state).state_dict())
    for _ in range(3):
        shelf.snapshot({"a": torch.zeros(9) + len(shelf), "b": torch.ones(9)})
    shelf.store.compact()
    assert shelf.store.verify()["damages"] == 0 and len(shelf) == 5


def test_a_plan_follows_the_rule(shelf: lmcstore.Shelf) -> None:
    """After amsgrad is on, its fourth tensor is in the relation."""
    from lmcstore._state.encode import Encoded

    model = torch.nn.Linear(8, 8)
    optimizer, finder = torch.optim.Adam(model.parameters(), amsgrad=True), Finder()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    for amsgrad, count in ((True, 4), (False, 3), (True, 4)):
        optimizer.param_groups[0]["amsgrad"] = amsgrad
        found = Encoded({"m": model.state_dict(), "o": optimizer.state_dict()}).relations(finder, 0.0)
        assert [len(member) for relation in found for member in relation.members] == [count, count]
