# SPDX-License-Identifier: BSD-3-Clause
"""Tensors and arrays that share part of their memory share it again after loading."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore import _core
from lmcstore._arrays.stretch import Stretch
from lmcstore._state import sharing
from lmcstore._state.skeleton import SKELETON
from optional import HAS_TORCH, torch
from same import same
from test_hostile import REFUSED, craft, document


def skeleton(snapshot: lmcstore.Snapshot) -> dict[str, Any]:
    view = snapshot._handle.view([SKELETON], _core.ATTACHMENT, _core.VIEW_VERIFY)
    made: dict[str, Any] = json.loads(bytes(view.unpack()[4][0]))
    return made


def ranges(value: Any) -> set[int]:
    """The addresses of all bytes of a tensor or array."""
    if isinstance(value, np.ndarray):
        start, strides = value.__array_interface__["data"][0], value.strides
        item = value.dtype.itemsize
    else:
        item = value.element_size()
        start, strides = value.data_ptr(), tuple(by * item for by in value.stride())
    found = {start}
    for size, by in zip(value.shape, strides, strict=True):
        found = {at + by * number for at in found for number in range(size)}
    return {at + byte for at in found for byte in range(item)}


def same_sharing(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Bits, shapes, strides, and which bytes are which of another tensor."""
    for key, one in left.items():
        same(one, right[key], key)
        assert one.shape == right[key].shape
        strides = [(value.strides if isinstance(value, np.ndarray) else value.stride()) for value in (one, right[key])]
        assert strides[0] == strides[1] or one.size == 0, key
        for other, value in left.items():
            shared = ranges(one) & ranges(value)
            distance = min(ranges(one)) - min(ranges(value))
            again = ranges(right[key]) & ranges(right[other])
            assert len(shared) == len(again), (key, other)
            if shared:
                assert min(ranges(right[key])) - min(ranges(right[other])) == distance, (key, other)


def _torch_states() -> dict[str, Callable[[], dict[str, Any]]]:
    def base(rows: int = 6, columns: int = 4) -> Any:
        return torch.arange(float(rows * columns)).view(rows, columns)

    def views(t: Any) -> dict[str, Any]:
        return {"w": t, "v": t[2:5], "tT": t.T, "col": t[:, 0]}

    return {
        "views": lambda: views(base()),
        "views first": lambda: dict(reversed(views(base()).items())),
        "no base": lambda: {key: value for key, value in views(base()).items() if key != "w"},
        "rows that overlap": lambda: (lambda t: {"a": t[0:3], "b": t[2:5]})(base()),
        "row and column": lambda: (lambda t: {"row": t[0], "col": t[:, 0]})(base(1000, 1000)),
        "chain": lambda: (lambda t: {"a": t[0:3], "c": t[4:6], "b": t[2:5]})(base()),
        "whole": lambda: (lambda t: {"a": t, "b": t.view(-1), "c": t.view(3, 8)})(base()),
        "dtypes": lambda: (lambda t: {"t": t, "i": t.view(torch.int32)[1], "b": t.view(torch.uint8)[:, 5:]})(base()),
        "dtypes at odd places": lambda: (
            lambda t: {"b": t.view(torch.uint8)[0, 1:], "i": t.view(torch.int32)[0, 1:], "h": t.view(torch.int16)[0]}
        )(base()),
        "scalar": lambda: (lambda t: {"t": t, "s": t[1, 1]})(base()),
        "expanded": lambda: (lambda t: {"e": t[:, :1].expand(6, 5), "t": t})(base()),
        "only expanded": lambda: (lambda t: {"e": t[:1].expand(5, 4), "f": t[0:1, 1:]})(base()),
        "expanded with a gap": lambda: (lambda t: {"e": t[:4:3, None].expand(2, 2), "t": t[:4]})(torch.arange(24.0)),
        "windows": lambda: (lambda t: {"u": t.view(-1).unfold(0, 5, 2), "r": t[1]})(base()),
        "steps": lambda: (lambda t: {"a": t[::2, ::3], "b": t[:, 1:]})(base()),
        "dimension of one": lambda: (lambda t: {"a": t.as_strided((1, 4), (1 << 40, 1)), "b": t[0, 1:]})(base()),
        "tied views": lambda: (lambda t: (lambda v: {"t": t, "v": v, "w": v, "a": v.detach()})(t[2:]))(base()),
        "f16": lambda: (lambda t: {"t": t, "v": t[1:]})(base().half()),
        "bool": lambda: (lambda t: {"t": t, "v": t[1:].T})(base() > 3),
        "complex": lambda: (lambda t: {"t": t, "r": torch.view_as_real(t)[..., 0]})(torch.complex(base(), base())),
        "numpy too": lambda: (lambda t: {"n": t.numpy()[::-1], "t": t[1:4]})(base()),
        "two memories": lambda: (lambda t, u: {"a": t, "b": u, "c": t[1:], "d": u[1:]})(base(), base() + 1),
        "parameter": lambda: (lambda p: {"p": p, "d": p.detach()[2:]})(torch.nn.Parameter(base())),
        "offset": lambda: (lambda t: {"a": t[3:, 1:], "b": t[4:, 2:]})(base()),
        "large": lambda: (lambda t: {"a": t[:, 1:], "b": t[300:, 0:3]})(base(400, 30)),
    }


def _numpy_states() -> dict[str, Callable[[], dict[str, Any]]]:
    def base() -> Any:
        return np.arange(24.0).reshape(6, 4)

    record = np.zeros(5, np.dtype([("a", "<i4"), ("b", ">f8", (2,))]))
    return {
        "views": lambda: (lambda a: {"w": a, "v": a[2:5], "tT": a.T, "col": a[:, 0]})(base()),
        "no base": lambda: (lambda a: {"v": a[2:5], "tT": a.T, "col": a[:, 0]})(base()),
        "same": lambda: (lambda a: {"a": a, "b": a})(base()),
        "reversed": lambda: (lambda a: {"a": a[::-1, ::-1], "b": a[1]})(base()),
        "only reversed": lambda: (lambda a: {"a": a[::-1], "b": a[3::-2, 1:]})(base()),
        "reversed with a part": lambda: (lambda a: {"a": a[::-1], "b": a[1:3]})(np.arange(6)),
        "reversed and transposed": lambda: (lambda a: {"a": a.T[::-1, ::-1], "b": a[2]})(base()),
        "dtypes": lambda: (lambda a: {"a": a, "i": a.view(np.int32)[1], "u": a.view(np.uint8)[:, 5:]})(base()),
        "swapped": lambda: (lambda a: {"a": a, "s": a.view(a.dtype.newbyteorder())[1:]})(base()),
        "fields": lambda: {"r": record, "a": record["a"], "b": record["b"]},
        "records": lambda: {"r": record[::2], "s": record[1:4]},
        "times": lambda: (lambda a: {"a": a, "b": a[1:]})(np.arange(6).astype("M8[s]")),
        "texts": lambda: (lambda a: {"a": a, "b": a[1:]})(np.array(["a", "bcd", "ä"])),
        "scalar": lambda: (lambda a: {"a": a, "s": a[1, 1:2].reshape(())})(base()),
        "broadcast": lambda: (lambda a: {"a": a, "e": np.broadcast_to(a[:1], (3, 4))})(base()),
        "misaligned": lambda: (lambda a: {"a": a[1:25].view("f8"), "b": a[3:]})(np.arange(48, dtype=np.uint8)),
    }


CASES = [("torch", name) for name in (_torch_states() if HAS_TORCH else [])] + [("numpy", n) for n in _numpy_states()]


def made(package: str, name: str) -> dict[str, Any]:
    return (_torch_states() if package == "torch" else _numpy_states())[name]()


@pytest.mark.parametrize(("package", "name"), CASES)
def test_sharing(shelf: lmcstore.Shelf, package: str, name: str) -> None:
    state = made(package, name)
    snapshot = shelf.snapshot(state)
    assert set(snapshot.names()) == set(state)
    assert skeleton(snapshot)["lmcstore"] == 2
    same_sharing(state, snapshot.state_dict())
    same_sharing(state, snapshot.select("*"))
    loaded: dict[str, Any] = dict.fromkeys(state)
    snapshot.load_into(loaded)
    same_sharing(state, loaded)
    for key, value in state.items():
        same(value, snapshot[key].read())
        if value.ndim:
            same(value[1:3], snapshot[key][1:3])
            same(value[1:3], snapshot.rows(key, 1, 3))
    again = shelf.snapshot(loaded)
    assert skeleton(again) == skeleton(snapshot)
    same_sharing(state, again.state_dict())


Layout = tuple[str, tuple[int, ...], tuple[int, ...], int]
"""A dtype, a shape, strides and an offset, in bytes."""


def random_layout(generator: np.random.Generator, size: int, package: str) -> Layout:
    """A view of `size` bytes: dense axes in any order, some reversed (NumPy's only), repeated or with gaps."""
    while True:
        dtype = str(generator.choice(["uint8", "int16", "float32", "int64"]))
        item = np.dtype(dtype).itemsize
        shape = tuple(map(int, generator.integers(0 if generator.random() < 0.1 else 1, 5, generator.integers(0, 4))))
        strides, by = [0] * len(shape), item
        for axis in generator.permutation(len(shape)):
            strides[axis] = by * int(generator.choice([1, 1, 1, 1, 0, 2] + [-1] * 3 * (package == "numpy")))
            by *= max(1, shape[axis] * int(generator.choice([1, 1, 1, 2])))
        if generator.random() < 0.2:
            low = -3 if package == "numpy" else 0
            strides = [int(steps) * item for steps in generator.integers(low, 4, len(shape))]
        reaches = [(count - 1) * by for count, by in zip(shape, strides, strict=True) if 0 not in shape]
        start, end = sum(min(0, reach) for reach in reaches), sum(max(0, reach) for reach in reaches) + item
        if end - start <= size:
            before = int(generator.integers(0, (size - end + start) // item + 1)) * item
            return dtype, shape, tuple(strides), before - start


def laid_out(memory: Any, layout: Layout, package: str) -> Any:
    dtype, shape, strides, offset = layout
    if package == "numpy":
        return np.ndarray(shape, dtype, memory, offset, strides)
    flat = torch.from_numpy(memory).view(getattr(torch, dtype))
    return flat.as_strided(shape, [by // flat.itemsize for by in strides], offset // flat.itemsize)


def distances(one: Any, other: Any) -> Any:
    """The distance between each two elements that share bytes; 99: none."""
    places = []
    for value in (one, other):
        item, is_array = value.itemsize, isinstance(value, np.ndarray)
        start = value.__array_interface__["data"][0] if is_array else value.data_ptr()
        strides = value.strides if is_array else [by * item for by in value.stride()]
        places.append(start + np.tensordot(np.array(strides, int), np.indices(value.shape), 1).ravel())
    found = places[1][:, None] - places[0][None, :]
    return np.where((found < one.itemsize) & (found > -other.itemsize), found, 99)


@pytest.mark.parametrize("packages", ["numpy", "torch", "both"])
def test_random_views_are_read_as_they_were(shelf: lmcstore.Shelf, packages: str) -> None:
    if packages != "numpy" and not HAS_TORCH:
        pytest.skip("needs torch")
    for seed in range(100):
        generator = np.random.default_rng([seed, len(packages)])
        memory = generator.integers(0, 256, int(generator.choice([16, 48])), np.uint8)
        layouts = {}
        for number in range(int(generator.integers(2, 6))):
            package = str(generator.choice(["numpy", "torch"])) if packages == "both" else packages
            layouts[random_layout(generator, memory.size, package)] = f"{package} {number}"
        state = {name: laid_out(memory, layout, name.split()[0]) for layout, name in layouts.items()}
        snapshot = shelf.snapshot(state)
        loaded: dict[str, Any] = dict.fromkeys(state)
        snapshot.load_into(loaded)
        for back in (snapshot.state_dict(), loaded):
            for one, other in itertools.permutations(state, 2):
                same(state[one], back[one], f"{seed}: {layouts}: {one}")
                before, after = (distances(of[one], of[other]) for of in (state, back))
                assert np.array_equal(before, after), f"{seed}: {layouts}: {one}, {other}"
        zeros = {"numpy": np.zeros, "torch": torch.zeros}
        apart = {name: zeros[name.split()[0]](value.shape, dtype=value.dtype) for name, value in state.items()}
        snapshot.load_into(apart)
        same(state, apart, f"{seed}: {layouts}")


def test_writes_are_seen_in_the_others(shelf: lmcstore.Shelf) -> None:
    t = torch.arange(24.0).view(6, 4)
    state = {"model": {"w": t, "v": t[2:5]}, "list": [t.T, t[:, 0], t.numpy()[1]]}
    snapshot = shelf.snapshot(state)
    loaded: dict[str, Any] = {"model": None, "list": None}
    snapshot.load_into(loaded)
    for back in (snapshot.state_dict(), loaded):
        back["model"]["v"].fill_(7)
        assert back["model"]["w"][2:5].eq(7).all() and back["list"][0][:, 2:5].eq(7).all()
        assert back["list"][1].tolist() == [0, 4, 7, 7, 7, 20]
        back["list"][1].fill_(8)
        assert back["model"]["w"][1].tolist() == [8, 5, 6, 7] == back["list"][2].tolist()
    model = snapshot["model"].copy()
    model["w"].fill_(9)
    assert model["v"].eq(9).all()
    same(state, snapshot.state_dict())


def test_writes_to_loaded_arrays(shelf: lmcstore.Shelf) -> None:
    a = np.arange(12.0).reshape(3, 4)
    loaded: dict[str, Any] = {"a": None, "b": None}
    back = shelf.snapshot({"a": a, "b": a[1:, ::-1]}).state_dict()
    assert np.shares_memory(back["a"], back["b"]) and not back["b"].flags.writeable
    shelf.latest.load_into(loaded)
    loaded["b"][...] = 5
    assert (loaded["a"][1:] == 5).all() and loaded["a"][0].tolist() == [0, 1, 2, 3]


def test_targets_that_share_keep_sharing(shelf: lmcstore.Shelf) -> None:
    t = torch.arange(12.0).view(3, 4)
    snapshot = shelf.snapshot({"w": t, "v": t[1:], "tT": t.T})
    u = torch.zeros(3, 4)
    snapshot.load_into({"w": u, "v": u[1:], "tT": u.T})
    same(t, u)
    apart = {"w": torch.zeros(3, 4), "v": torch.zeros(2, 4), "tT": torch.zeros(4, 3)}
    snapshot.load_into(apart)
    same({"w": t, "v": t[1:], "tT": t.T.contiguous()}, apart)


def test_modules_and_optimizers(shelf: lmcstore.Shelf) -> None:
    """Parameters that are parts of one flat memory, as some wrappers make them, with a tied one."""

    def build() -> tuple[Any, Any, Any]:
        flat = torch.randn(30)
        model = torch.nn.Module()
        model.a = torch.nn.Parameter(flat[:12].view(3, 4))
        model.b = torch.nn.Parameter(flat[12:])
        model.tied = model.b
        return flat, model, torch.optim.AdamW(model.parameters())

    flat, model, optimizer = build()
    for _ in range(3):
        (model.a.sum() ** 2 + model.b.sum() ** 2).backward()
        optimizer.step()
        state = {"flat": flat, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        snapshot = shelf.snapshot(state)
    assert {"flat", "model.a", "model.b", "model.tied", "optimizer.state.0.exp_avg"} <= set(snapshot.names())
    shelf.store.compact()
    same(state, snapshot.state_dict())
    other_flat, other, other_optimizer = build()
    snapshot.load_into(flat=other_flat, model=other, optimizer=other_optimizer)
    same(state, {"flat": other_flat, "model": other.state_dict(), "optimizer": other_optimizer.state_dict()})
    back = snapshot.state_dict()
    back["flat"].zero_()
    assert not back["model"]["a"].any() and not back["model"]["tied"].any()
    assert back["model"]["b"].data_ptr() == back["model"]["tied"].data_ptr()


def test_identity_is_kept(shelf: lmcstore.Shelf) -> None:
    t = torch.arange(12.0)
    v = t[3:]
    back = shelf.snapshot({"v": v, "t": t, "again": [v, v.detach()]}).state_dict()
    assert back["v"] is back["again"][0] and back["again"][1] is not back["v"]
    back["again"][1].zero_()
    assert back["t"].tolist() == [0, 1, 2] + [0] * 9


def test_a_part_has_only_its_own(shelf: lmcstore.Shelf) -> None:
    t = torch.arange(4_000_000.0).view(1000, 4000)
    snapshot = shelf.snapshot({"w": t, "x": {"a": t[0, :4], "b": t[0, 2:6], "far": t[-1, -3:]}})
    part = snapshot.state_dict("x")
    assert part["a"].untyped_storage().nbytes() == 24 and part["far"].untyped_storage().nbytes() == 12
    part["b"][0] = -1
    assert part["a"][2] == -1
    assert snapshot.state_dict(("x", "far")).untyped_storage().nbytes() == 12


@pytest.mark.parametrize("kind", ["columns", "rows", "halves", "tied", "slice", "interleaved", "empty"])
def test_states_without_shared_parts_are_stored_as_before(shelf: lmcstore.Shelf, kind: str) -> None:
    t = torch.arange(120.0).view(6, 20)
    states = {
        "columns": lambda: [t[:, 0], t[:, 1], t[:, 7]],
        "rows": lambda: list(t),
        "halves": lambda: list(t.chunk(2, dim=1)),
        "tied": lambda: [t, t, t.detach()],
        "slice": lambda: [t[2, 1:3]],
        "interleaved": lambda: [t.view(-1)[::2], t.view(-1)[1::2]],
        "empty": lambda: [t, t[:0], t[2:2, 1:], np.zeros(0), t[1:1].numpy()],
    }
    state = states[kind]()
    snapshot = shelf.snapshot(state)
    assert skeleton(snapshot).keys() == {"lmcstore", "leaves", "root"} and skeleton(snapshot)["lmcstore"] == 1
    same(state, snapshot.state_dict())
    assert snapshot.raw_bytes < 4 * t.nbytes


def test_a_slice_of_a_large_storage_stores_no_more(shelf: lmcstore.Shelf) -> None:
    t = torch.randn(2_000_000)
    small = shelf.snapshot({"a": t[100:200], "b": t[150:250], "c": t[-5:]})
    assert small.stored_bytes < 100_000
    back = small.state_dict()
    assert back["a"].untyped_storage().nbytes() == 600 and back["c"].untyped_storage().nbytes() == 20


def test_far_too_sparse_views_come_back_apart(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_SPARSE_BYTES", 100)
    t = torch.randn(100, 100)
    state = {"row": t[0], "col": t[:, 0]}
    snapshot = shelf.snapshot(state)
    assert skeleton(snapshot)["lmcstore"] == 1
    back = snapshot.state_dict()
    same(state, back)
    assert back["col"].stride() == (1,)


def test_files_have_all_names(shelf: lmcstore.Shelf, tmp_path: Path) -> None:
    t = torch.arange(24.0).view(6, 4)
    state = {"w": t, "v": t[2:5], "tT": t.T, "col": t[:, 0]}
    shelf.snapshot(state).export(tmp_path / "x.safetensors")
    with (tmp_path / "x.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert header.keys() - {"__metadata__"} == state.keys() and header["tT"]["shape"] == [4, 6]


def test_lazy_conjugates_come_back_apart(shelf: lmcstore.Shelf) -> None:
    t = torch.complex(torch.ones(3), torch.ones(3))
    state = {"t": t, "conj": t.conj(), "imag": t.conj().imag}
    same(state, shelf.snapshot(state).state_dict())


def test_overlaps_agree_with_numpy() -> None:
    """No overlap is missed, and those of one step are exact."""
    generator = np.random.default_rng(3)
    memory = np.zeros(400, np.uint8)
    for _ in range(2000):
        arrays = []
        for _ in range(2):
            dims = int(generator.integers(0, 4))
            item = int(generator.choice([1, 2, 4]))
            shape = tuple(map(int, generator.integers(1, 5, dims)))
            strides = tuple(map(int, generator.integers(-12, 13, dims) * item))
            low = -sum(min(0, (size - 1) * by) for size, by in zip(shape, strides, strict=True))
            start = low + int(generator.integers(0, 60))
            arrays.append(np.ndarray(shape, f"V{item}", memory, start, strides))
        shared = np.shares_memory(*arrays)
        one, other = (
            Stretch(None, a.__array_interface__["data"][0], a.shape, a.strides, a.dtype.itemsize) for a in arrays
        )
        assert one.overlaps(other) == other.overlaps(one) and (not shared or one.overlaps(other))
        assert not shared or len(sharing.groups_of([one, other])) == 1
        quick = sharing.any_overlap([one.start, other.start], [one.end, other.end])
        assert quick == np.may_share_memory(*arrays)


def place(storages: Any, *nodes: Any, version: int = 2) -> dict[str, Any]:
    return document(["l", *nodes], version=version) | {"storages": storages}


def test_good_places(shelf: lmcstore.Shelf) -> None:
    """Two f32 each: "b" begins at the second of "a"."""
    pytest.importorskip("torch")
    good = place([12], ["V", ["T", "a"], 0, 0, [4]], ["V", ["T", "b"], 0, 4, [4]])
    back = craft(shelf, good, tensors=("a", "b")).state_dict()
    back[1][0] = 5
    assert back[0][1] == 5
    unused = place([100, 7], ["V", ["T", "a"], 0, 0, [4]], ["V", ["T", "b"], 0, 40, [4]])
    assert craft(shelf, unused, tensors=("a", "b")).state_dict()[1].untyped_storage().nbytes() == 8


BAD_PLACES: dict[str, Any] = {
    "no sizes": document(["V", ["T", "a"], 0, 0, [4]], version=2),
    "version 1": place([8], ["V", ["T", "a"], 0, 0, [4]], version=1),
    "beyond the end": place([11], ["V", ["T", "a"], 0, 0, [4]], ["V", ["T", "b"], 0, 4, [4]]),
    "before the start": place([12], ["V", ["T", "a"], 0, -4, [4]]),
    "negative stride of torch": place([12], ["V", ["T", "a"], 0, 4, [-4]]),
    "negative stride of an array": place([12], ["V", ["A", "a", None], 0, 0, [-4]]),
    "far stride": place([12], ["V", ["T", "a"], 0, 0, [4096]]),
    "huge stride": place([12], ["V", ["A", "a", None], 0, 0, [2**63]]),
    "huge offset": place([12], ["V", ["T", "a"], 0, 2**63, [4]]),
    "part of an item": place([12], ["V", ["T", "a"], 0, 0, [3]]),
    "few strides": place([12], ["V", ["T", "a"], 0, 0, []]),
    "many strides": place([12], ["V", ["T", "a"], 0, 0, [4, 4]]),
    "float stride": place([12], ["V", ["T", "a"], 0, 0, [4.0]]),
    "true stride": place([12], ["V", ["T", "a"], 0, 0, [True]]),
    "strides as text": place([12], ["V", ["T", "a"], 0, 0, "4"]),
    "offset as text": place([12], ["V", ["T", "a"], 0, "0", [4]]),
    "no such storage": place([12], ["V", ["T", "a"], 1, 0, [4]]),
    "storage -1": place([12], ["V", ["T", "a"], -1, 0, [4]]),
    "storage true": place([12, 12], ["V", ["T", "a"], True, 0, [4]]),
    "short": place([12], ["V", ["T", "a"], 0, 0]),
    "long": place([12], ["V", ["T", "a"], 0, 0, [4], 0]),
    "of a leaf": place([12], ["V", 0, 0, 0, [4]]),
    "of a list": place([12], ["V", ["l"], 0, 0, [4]]),
    "of itself": place([12], ["V", ["V", ["T", "a"], 0, 0, [4]], 0, 0, [4]]),
    "of true": place([12], ["V", True, 0, 0, [4]]),
    "of null": place([12], ["V", None, 0, 0, [4]]),
    "missing tensor": place([12], ["V", ["T", "c"], 0, 0, [4]], ["V", ["T", "b"], 0, 4, [4]]),
    "twice": place([12], ["V", ["T", "a"], 0, 0, [4]], ["V", ["T", "a"], 0, 4, [4]]),
    "sizes as a number": place(12, ["V", ["T", "a"], 0, 0, [4]]),
    "sizes as text": place(["12"], ["V", ["T", "a"], 0, 0, [4]]),
    "size true": place([True], ["V", ["T", "a"], 0, 0, [4]]),
    "size 0": place([0], ["V", ["T", "a"], 0, 0, [4]]),
    "size -1": place([-1], ["V", ["T", "a"], 0, 0, [4]]),
    "huge size": place([2**60], ["V", ["T", "a"], 0, 0, [4]]),
}


@pytest.mark.parametrize("name", BAD_PLACES)
def test_bad_places(shelf: lmcstore.Shelf, name: str) -> None:
    snapshot = craft(shelf, BAD_PLACES[name], tensors=("a", "b"))
    with pytest.raises(REFUSED):
        snapshot.state_dict()
    assert snapshot.names() == ["a", "b"]


def test_a_huge_memory_is_not_made(shelf: lmcstore.Shelf) -> None:
    """A stride of a terabyte between two items, and a chain that would join them."""
    far = 1 << 40
    nodes = [["V", ["A", "a", None], 0, 0, [far]], ["V", ["A", "b", None], 0, far, [4]]]
    back = craft(shelf, place([2 * far], *nodes), tensors=("a", "b")).state_dict()
    assert not np.shares_memory(back[0], back[1]) and back[0].strides == (4,)
