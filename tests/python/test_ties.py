# SPDX-License-Identifier: BSD-3-Clause
"""Tied tensors are stored once and return tied. Other overlaps: test_sharing.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmcstore
import pytest
from optional import torch
from same import same


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.head = torch.nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight


def test_tied_weights_of_a_module(shelf: lmcstore.Shelf) -> None:
    model = Tied()
    snapshot = shelf.snapshot({"model": model.state_dict(), "number": 1})
    assert set(snapshot.names()) == {"model.embedding.weight", "model.head.weight"}
    back = snapshot.state_dict()["model"]
    assert back["embedding.weight"].data_ptr() == back["head.weight"].data_ptr()
    back["embedding.weight"][0, 0] = 42
    assert back["head.weight"][0, 0] == 42
    again = Tied()
    again.load_state_dict(snapshot["model"])
    same(model.head.weight, again.head.weight.detach())


def test_tied_weights_take_space_once(shelf: lmcstore.Shelf) -> None:
    weight = torch.randn(100_000)
    once = shelf.snapshot({"a": weight})
    twice = shelf.snapshot({"a": weight, "b": weight.detach(), "c": weight})
    assert twice.stored_bytes < once.stored_bytes + 10_000


def test_identity_is_kept(shelf: lmcstore.Shelf) -> None:
    weight = torch.randn(3, 4)
    back = shelf.snapshot({"a": weight, "b": [weight, weight.detach()]}).state_dict()
    assert back["a"] is back["b"][0]
    assert back["b"][1] is not back["a"]
    assert back["b"][1].data_ptr() == back["a"].data_ptr()


def test_a_part_holds_its_own_ties(shelf: lmcstore.Shelf) -> None:
    weight = torch.randn(3)
    snapshot = shelf.snapshot({"a": weight, "b": {"x": weight, "y": weight}})
    part = snapshot.state_dict("b")
    assert part["x"] is part["y"]
    same(weight, part["x"])
    same(weight, snapshot["b.y"])


def test_each_tensor_has_a_storage_of_its_own(shelf: lmcstore.Shelf) -> None:
    back = shelf.snapshot({str(index): torch.randn(4) for index in range(50)}).state_dict()
    storages = {tensor.untyped_storage().data_ptr() for tensor in back.values()}
    assert len(storages) == 50
    for tensor in back.values():
        assert tensor.untyped_storage().nbytes() == 16 and tensor.storage_offset() == 0 and tensor._base is None


def test_empty_tensors_are_not_tied(shelf: lmcstore.Shelf) -> None:
    state = {"a": torch.zeros(0), "b": torch.zeros(0), "c": torch.zeros(0, 3)}
    same(state, shelf.snapshot(state).state_dict())


def test_ties_over_steps(shelf: lmcstore.Shelf) -> None:
    model = Tied()
    for step in range(6):
        with torch.no_grad():
            model.embedding.weight.add_(1)
        shelf.snapshot(model.state_dict(), step=step)
    shelf.store.compact()
    for snapshot in shelf:
        back = snapshot.state_dict()
        assert back["embedding.weight"].data_ptr() == back["head.weight"].data_ptr()


def test_several_views_that_begin_at_one_address(shelf: lmcstore.Shelf) -> None:
    base = torch.arange(12.0).view(3, 4)
    state = {"first row": base[0], "all": base, "bits": base[0].view(torch.int32), "z": [base.view(3, 4), base[0]]}
    back = shelf.snapshot(state).state_dict()
    same(state, back)
    assert len({tensor.data_ptr() for tensor in (back["first row"], back["all"], back["bits"], *back["z"])}) == 1
    back["bits"].zero_()
    assert not back["all"][0].any() and back["all"][1:].all()


@pytest.mark.parametrize("how", ["beside", "canonical", "since"])
def test_equal_tensors_of_an_archive_come_back_apart(tmp_path: Path, how: str) -> None:
    """Archives have each content once; a resumed AdamW with both moments in one memory would fail."""
    weight = torch.randn(200_000)
    state = {"a": torch.zeros(200_000), "b": torch.zeros(200_000), "s": torch.ones(3), "t": torch.ones(3)}
    state |= {"w": weight, "tied": weight}
    store = lmcstore.open(tmp_path / "from.pool")
    store["run"].snapshot({"z": torch.zeros(200_000), "o": torch.ones(3)})
    first, second = (tmp_path / "first").open("wb+"), (tmp_path / "second").open("wb+")
    store.dump(first)
    store["run"].snapshot(state)
    first.seek(0)
    store.dump(second, canonical=how == "canonical", since=[first] if how == "since" else [])
    first.seek(0)
    second.seek(0)
    to = store if how == "beside" else lmcstore.open(tmp_path / "to.pool")
    if how == "since":
        to.restore(first)
    to.restore(second, name="again" if how == "beside" else None)
    snapshot = to["again" if how == "beside" else "run"].latest
    loaded: dict[str, Any] = {}
    snapshot.load_into(SimpleNamespace(load_state_dict=loaded.update))
    for back in (snapshot.state_dict(), loaded):
        same(state, back)
        assert back["w"].data_ptr() == back["tied"].data_ptr()
        back["a"].fill_(7)
        back["s"].fill_(7)
        same((state["b"], state["t"]), (back["b"], back["t"]))
    same(state, snapshot.state_dict())
