# SPDX-License-Identifier: BSD-3-Clause
"""Unstated properties that programs for PyMM rely on."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pymm
import pytest
from optional import torch
from pymm_support import again, folder, new, s

__all__ = ["folder", "s"]


def test_in_torch_tensor_a_tuple_is_a_shape_and_a_list_is_data(s: pymm.shelf) -> None:
    pytest.importorskip("torch")
    s.shape, s.data, s.array = pymm.torch_tensor((2, 3)), pymm.torch_tensor([2, 3]), pymm.torch_tensor(np.arange(10))
    s.size = pymm.torch_tensor(torch.Size([4]))
    assert s.shape.shape == (2, 3) and s.data.tolist() == [2, 3] and s.array.shape == (10,) and s.size.shape == (4,)
    assert all(t.is_floating_point() for t in (s.shape, s.data, s.array))
    s.array.fill(-1.2)
    assert float(s.array[3]) == -1.2
    s.bytes_ = pymm.torch_tensor([[1, 1], [2, 2]], dtype=torch.uint8)
    s.kept = pymm.torch_tensor(torch.ones(2, dtype=torch.float16))
    assert s.bytes_.dtype == torch.uint8 and s.kept.dtype == torch.float16


def test_history_of_a_tensor_that_is_no_leaf(folder: str) -> None:
    s = new(folder)
    model, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
    s.y = model(x)
    assert s.y.requires_grad and not s.y.is_leaf
    s.y.sum().backward()
    assert model.weight.grad is not None and float(model.weight.grad[0, 0]) == 4
    expected = s.y.tolist()
    del s
    s = again(folder)
    assert s.y.tolist() == expected and not s.y.requires_grad
    with torch.no_grad():
        s.y = model(x)
    assert not s.y.requires_grad


def test_integers_serve_as_anything(s: pymm.shelf) -> None:
    s.n = 3
    assert np.zeros(s.n).shape == torch.zeros(s.n).shape == (3,) and np.zeros((s.n, s.n)).size == 9
    s.x = pymm.ndarray((s.n, 4))
    assert list(range(s.n)) == [0, 1, 2] and [5, 6, 7, 8][s.n] == 8 and np.arange(s.n).tolist() == [0, 1, 2]
    assert s.x[:, s.n].shape == (3,) and s.x[: s.n, 0].shape == (3,)
    s.x.fill(6)
    s.x /= s.n
    s.x[0] += s.n
    assert s.x[1, 1] == 2 and s.x[0, 0] == 5
    s.p = s.x / s.n
    assert s.p.dtype == np.float64 and (np.ones(2) * s.n).tolist() == [3, 3] and (np.int64(6) / s.n) == 2
    assert torch.ones(2).mul(s.n).tolist() == [3, 3] and (torch.ones(2) / s.n).shape == (2,)


def test_a_quotient_may_turn_an_integer_into_a_float(folder: str) -> None:
    s = new(folder)
    s.a, s.b = 4, 30
    s.b = s.b / s.a
    assert s.b == 7.5
    s.a /= 8
    assert s.a == 0.5
    del s
    assert again(folder).b == 7.5


def test_an_alias_is_changed_and_assigned_again(s: pymm.shelf) -> None:
    s.mu, s.t = np.zeros(3), torch.zeros(3)
    mu, t = s.mu, s.t
    mu += 1
    t += 1
    s.mu, s.t = mu, t
    assert s.mu is mu and s.t is t and s.mu.tolist() == s.t.tolist() == [1, 1, 1]
    s.mu = s.mu[:]
    assert s.mu is mu
    s.mu = s.mu[1:]
    assert s.mu.shape == (2,) and mu.shape == (3,)


def test_assigning_one_variable_to_another_copies(s: pymm.shelf) -> None:
    s.m, s.t, s.k, s.q = np.arange(3), torch.arange(3), 5, "text"
    s.n, s.u, s.j, s.r = s.m, s.t, s.k, s.q
    s.n[0] = s.u[0] = 9
    s.j += 1
    s.r += "!"
    assert s.m[0] == 0 and int(s.t[0]) == 0 and s.k == 5 and s.q == "text" and s.r == "text!"
    s.n = s.m
    s.m[1] = 8
    assert s.n.tolist() == [0, 1, 2]
    s.n = s.m.reshape(1, -1)
    assert s.n.shape == (1, 3)


def test_what_is_assigned_to_an_element_is_stored(folder: str) -> None:
    s = new(folder)
    s.l = [np.arange(6.0), np.arange(6.0), np.arange(6.0), np.arange(6.0), np.arange(6.0)]
    large = s.l[3]
    s.l[0] = np.zeros_like(s.l[0])
    s.l[1] = s.l[1][::-1]
    s.l[2] = s.l[2].reshape(2, 3)
    s.l[3] = large[large > 2]
    s.l[4] += 1
    s.l[4] = s.l[4]
    parts = s.l.part_names()
    s.l[4] *= 2
    assert s.l.part_names() == parts
    del large, s
    s = again(folder)
    expected = [[0] * 6, [5, 4, 3, 2, 1, 0], [[0, 1, 2], [3, 4, 5]], [3, 4, 5], [2, 4, 6, 8, 10, 12]]
    assert [element.tolist() for element in s.l] == expected


def test_a_mask_over_a_variable_is_not_lost(s: pymm.shelf) -> None:
    s.x, s.l = np.arange(3.0), [np.arange(3.0)]
    masks = np.ma.masked_array(s.x, [1, 0, 0]), np.ma.masked_array(s.l[0], [1, 0, 0])
    with pytest.raises(RuntimeError, match="masked"):
        s.x = masks[0]
    with pytest.raises(RuntimeError, match="masked"):
        s.l[0] = masks[1]


def test_ways_to_write_into_arrays(s: pymm.shelf, tmp_path: Path) -> None:
    s.x = np.zeros(6)
    np.add(np.ones(6), 1, out=s.x)
    assert s.x.sum() == 12
    np.copyto(s.x, np.arange(6))
    s.x[s.x > 3] = -1
    np.clip(s.x, 0, 2, out=s.x)
    assert s.x.tolist() == [0, 1, 2, 2, 0, 0]
    assert np.empty_like(s.x).shape == np.zeros_like(s.x).shape == (6,)  # type: ignore[attr-defined]
    np.arange(6.0).tofile(tmp_path / "data")
    with (tmp_path / "data").open("rb") as file:
        file.readinto(memoryview(s.x))
    assert s.x.tolist() == [0, 1, 2, 3, 4, 5]
    np.save(tmp_path / "saved", s.x)
    s.x.fill(3)
    s.x = np.load(tmp_path / "saved.npy")
    assert s.x.tolist() == [0, 1, 2, 3, 4, 5] and s.x.tobytes() == np.arange(6.0).tobytes()
    s.x[0] = s.x[1:3].sum()
    s.idx = np.zeros(1, dtype=int)
    s.idx[0] = (s.idx + 1)[0]
    assert s.idx == 1 and s.idx > 0 and not s.idx > 5
    assert np.array_equal(s.x[::-1], [5, 4, 3, 2, 1, 3]) and np.concatenate([s.x, s.x]).size == 12
    s.b = np.zeros((3, 4), dtype=np.uint8)
    s.b[:, 0] = (np.arange(3).reshape(3, 1) * 2).reshape(-1)
    assert s.b[:, 0].tolist() == [0, 2, 4]


def test_small_shelves_two_at_once_and_without_a_size(folder: str) -> None:
    one, other = (pymm.shelf(name, size_mb=8, pmem_path=folder) for name in ("one", "other"))
    one.x, other.x = np.zeros(10), np.ones(10)
    assert one.x.sum() == 0 and other.x.sum() == 10
    del one, other
    for _ in range(3):
        s = pymm.shelf("one", pmem_path=folder)
        s.x += 1
        del s
        s = pymm.shelf("other", size_mb=1024, pmem_path=folder, force_new=False)
        s.x += 1
        del s
    assert pymm.shelf("one", pmem_path=folder).x.sum() == 30


def test_a_shelf_is_closed_with_its_last_reference(folder: str) -> None:
    from pymm.memoryresource import find_names

    gc.disable()
    try:
        s = new(folder)
        s.x, s.n, s.t, s.q, s.l = np.zeros(3), 1, torch.ones(2), "a", ["a", 1]
        s.save({"a": np.ones(2)}, "saved")
        s.tx_begin_all()
        s.n += 1
        s.tx_end()
        assert len(s.l) == 2 and s.x.sum() == 0 and s.load("saved")["a"].sum() == 2
        s.inspect()
        del s
        assert find_names("test", folder, None) is None
    finally:
        gc.enable()


def test_a_folder_is_made_and_any_will_do(tmp_path: Path) -> None:
    s = pymm.shelf("x", pmem_path=str(tmp_path / "not" / "there yet"))
    s.n = 1
    assert (tmp_path / "not" / "there yet" / "x.pool").exists()


def test_items_can_be_erased_one_by_one(s: pymm.shelf) -> None:
    s.x, s.n, s.l, s.t = np.zeros(3), 1, ["a", np.ones(2)], torch.ones(1)
    s.save([1, np.ones(2)], "kept")
    for item in s.items:
        s.erase(item)
    assert s.items == [] and s.get_item_names(all=True) == []


def test_subclassing_a_shelf(folder: str) -> None:
    class Mine(pymm.shelf):
        def total(self) -> float:
            return float(self.x.sum())

    mine = Mine("mine", size_mb=8, pmem_path=folder)
    mine.x = np.ones(5)
    assert mine.total() == 5


def test_errors_are_runtime_errors(s: pymm.shelf) -> None:
    s.x = np.zeros(3)
    union = np.dtype({"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 0]})
    for action in (
        lambda: s.erase("nothing"),
        lambda: s.load("nothing"),
        lambda: s.tx_end(),
        lambda: s.x.persist_offset(5, 5),
        lambda: setattr(s, "y", {}),
        lambda: setattr(s, "a" * 5000, 1),
        lambda: setattr(s, "y", np.zeros(1, union)),
        lambda: s.save({"y": np.zeros(1, union)}, "y"),
        lambda: setattr(s, "y", pymm.ndarray(3, ("f4", 3))),
    ):
        with pytest.raises(RuntimeError):
            action()
