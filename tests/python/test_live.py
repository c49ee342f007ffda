# SPDX-License-Identifier: BSD-3-Clause
"""Live variables: tensors in the pool, persistent values, names, locks and lists."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import lmcstore
import numpy as np
import pytest
from command import BIN, NEEDS_BIN
from optional import HAS_TORCH, torch
from same import same
from test_cli import as_json, text
from test_scrub import damage

IN_MEMORY = True


def reopened(store: lmcstore.Store) -> lmcstore.Store:
    store.close()
    gc.collect()
    return lmcstore.open(store.path, background=False)


ARRAYS = {
    "floats": np.arange(12.0).reshape(3, 4),
    "bool": np.array([True, False]),
    "zero-dimensional": np.array(7, "i2"),
    "empty": np.zeros((0, 3), "f4"),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "strided": np.arange(20)[::-3],
    "complex": np.array([1 + 2j, -3j]),
    "big-endian": np.arange(5, dtype=">i4"),
    "record": np.array([(1, 2.5, b"ab"), (3, 4.5, b"c")], [("a", "i4"), ("b", "f8"), ("c", "S3")]),
    "nested record": np.zeros(2, [("p", [("x", "f4"), ("y", "f4")]), ("m", "i2", (2, 3))]),
    "time": np.array(["2026-11-22", "1970-01-01"], "M8[s]"),
    "text": np.array(["a", "bcd"]),
    "long double": np.array([1, 2], np.longdouble),
}


def test_arrays_live_and_come_back(shelf: lmcstore.Shelf) -> None:
    expected = {}
    for name, array in ARRAYS.items():
        shelf.live[name] = array
        live = shelf.live[name]
        assert live.dtype == array.dtype and live.shape == array.shape and live.flags.writeable, name
        assert np.array_equal(live, array), name
        if array.size:
            live[...] = live[(0,) * live.ndim]
            shelf.live.persist(name)
        expected[name] = live.copy()
        del live
    store = reopened(shelf.store)
    for name, array in expected.items():
        assert np.array_equal(store["run"].live[name], array), name
        assert store["run"].live[name].dtype == array.dtype, name
    store.close()


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64] if HAS_TORCH else []
SHAPES: list[tuple[int, ...]] = [(), (3,), (2, 3), (0, 2)]


def test_torch_tensors_live_and_come_back(shelf: lmcstore.Shelf) -> None:
    cases = {f"{dtype} {shape}": (dtype, shape) for dtype in DTYPES for shape in SHAPES}
    for name, (dtype, shape) in cases.items():
        tensor = torch.arange(float(np.prod(shape))).reshape(shape).to(dtype)
        shelf.live[name] = tensor
        live = shelf.live[name]
        assert live.is_leaf and live._base is None and live.is_contiguous(), name
        same(tensor, live)
        live.fill_(1)
        del live
    store = reopened(shelf.store)
    for name, (dtype, shape) in cases.items():
        same(torch.full(shape, 1).to(dtype), store["run"].live[name])
    store.close()


def test_low_precision_is_ml_dtypes_in_numpy(shelf: lmcstore.Shelf) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    shelf.live["b"] = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert shelf.live.tensor("b").array.dtype == ml_dtypes.bfloat16
    shelf.live["f"] = np.array([1.5, -2.0], ml_dtypes.float8_e4m3fn)
    assert shelf.live["f"].dtype == ml_dtypes.float8_e4m3fn
    assert shelf.live.tensor("f").tensor.dtype == torch.float8_e4m3fn
    with pytest.raises(lmcstore.UnsupportedError, match="no numbers"):
        shelf.live["x"] = np.array([object()])
    with pytest.raises(lmcstore.UnsupportedError, match="x: a masked array"):
        shelf.live["x"] = np.ma.masked_array([1, 2], [True, False])
    assert "x" not in shelf.live
    shelf.live["e4m3"] = np.array([1.5], ml_dtypes.float8_e4m3)  # unknown to torch and the store: as bytes
    assert shelf.live["e4m3"].dtype == ml_dtypes.float8_e4m3 and float(shelf.live["e4m3"][0]) == 1.5


VALUES = [0, -7, 2**80, 1.5, float("inf"), True, None, "Grüße 世界", b"\0\xff", 1j, (1, "a"), [1, 2, 3], {1, 2}]


def test_values_persist(shelf: lmcstore.Shelf) -> None:
    for number, value in enumerate(VALUES):
        shelf.live[str(number)] = "another"
        shelf.live[str(number)] = value
        assert shelf.live[str(number)] == value and type(shelf.live[str(number)]) is type(value)
    store = reopened(shelf.store)
    assert [store["run"].live[str(number)] for number in range(len(VALUES))] == VALUES
    store.close()


def test_what_cannot_live_is_refused(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    for value in (object(), {"a": 1}, lambda: 0, [object()], "x" * 70_000):
        with pytest.raises(lmcstore.UnsupportedError, match=r"^v: "):
            live["v"] = value
    with pytest.raises(lmcstore.UnsupportedError, match="meta"):
        live["v"] = torch.empty(3, device="meta")
    with pytest.raises(lmcstore.UnsupportedError, match="sparse"):
        live["v"] = torch.eye(3).to_sparse()
    with pytest.raises(lmcstore.InvalidError, match="write out which"):
        live.create("v", 3, "i8")
    with pytest.raises(lmcstore.UnsupportedError, match="is no dtype"):
        live.create("v", 3, "quux")
    with pytest.raises(lmcstore.Error):
        live.create("v", (2**40, 2**40))
    with pytest.raises(lmcstore.Error):
        live.create("v", -1)
    with pytest.raises(lmcstore.UnsupportedError, match="255 is the most"):
        live["v"] = np.zeros(1, [(f"field number {index}", "f8") for index in range(40)])
    with pytest.raises(lmcstore.UnsupportedError):
        live[3] = 1  # type: ignore[index]
    assert "v" not in live and live.names() == []


def test_tensors_are_made_opened_and_compared(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    made = live.tensor("w", (2, 3), torch.float16)
    assert made.shape == (2, 3) and made.dtype == "f16" and len(made) == 2 and made.nbytes == 12
    assert live.tensor("w", (2, 3), torch.float16).info().handles == 2
    assert live.tensor("w").name == "w"
    assert isinstance(live["w"], torch.Tensor) and isinstance(made.array, np.ndarray)
    with pytest.raises(lmcstore.ExistsError):
        live.tensor("w", (3, 2), torch.float16)
    with pytest.raises(lmcstore.ExistsError):
        live.create("w", (2, 3), torch.float16)
    with pytest.raises(lmcstore.NotFoundError):
        live.tensor("x")
    with pytest.raises(KeyError):
        live["x"]
    assert live.tensor("plain", 5).array.dtype == np.float64
    assert live.tensor("store", 5, "u16").array.dtype == np.uint16
    assert live.tensor("time", 2, "M8[s]").array.dtype == live.tensor("time", 2, "<M8[s]").array.dtype == "M8[s]"
    for dtype in "M8[ns]", ">f8", "S8":
        with pytest.raises(lmcstore.ExistsError, match=r"as datetime64\[s\] of shape \(2,\)"):
            live.tensor("time", 2, dtype)
    assert np.asarray(made).shape == (2, 3)


def test_one_memory_for_all_views(shelf: lmcstore.Shelf) -> None:
    pytest.importorskip("torch")
    shelf.live["w"] = np.zeros(10)
    one, other, tensor = shelf.live["w"], shelf.live.tensor("w").array, shelf.live.tensor("w").tensor
    one[3] = 5
    tensor[4] = 6
    assert list(other[3:5]) == [5, 6]


def test_training_runs_in_place(shelf: lmcstore.Shelf) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    reference = torch.nn.Linear(4, 2)
    reference.load_state_dict(model.state_dict())
    for name, value in list(model.named_parameters()):
        shelf.live[f"model.{name}"] = value
        setattr(model, name, torch.nn.Parameter(shelf.live[f"model.{name}"]))
    data = torch.randn(8, 4)
    optimizers = [torch.optim.Adam(one.parameters(), lr=0.1) for one in (model, reference)]
    for parameter in model.parameters():
        number = sum("moment" in name for name in shelf.live)
        for slot in ("exp_avg", "exp_avg_sq"):
            shelf.live[f"moment.{number}.{slot}"] = torch.zeros_like(parameter)
        optimizers[0].state[parameter] = {
            "step": torch.tensor(0.0),
            **{slot: shelf.live[f"moment.{number}.{slot}"] for slot in ("exp_avg", "exp_avg_sq")},
        }
    for _ in range(5):
        with shelf.transaction():
            for one, optimizer in zip((model, reference), optimizers, strict=True):
                optimizer.zero_grad()
                one(data).square().sum().backward()
                optimizer.step()
    for name, value in reference.named_parameters():
        same(value, shelf.live[f"model.{name}"])
    assert shelf.live["moment.0.exp_avg"].abs().sum() > 0


def test_views_outlive_the_store(pool_path: str) -> None:
    store = lmcstore.open(pool_path)
    live = store["run"].live
    live["w"], live["t"] = np.arange(5.0), torch.arange(5.0)
    array, row, tensor, handle = live["w"], live["w"][2:], live["t"], live.tensor("w")
    store.close()
    del store, live
    gc.collect()
    array[2] = 9
    tensor[0] = 8
    assert row[0] == 9 and float(tensor[0]) == 8
    handle.persist()
    del array, row, tensor, handle
    gc.collect()
    with lmcstore.open(pool_path) as store:
        assert store["run"].live["w"][2] == 9 and store["run"].live["t"][0] == 8


def test_after_close_names_are_an_error(store: lmcstore.Store) -> None:
    live = store["run"].live
    live["w"] = np.zeros(3)
    store.close()
    for call in (lambda: live["w"], lambda: live.names(), lambda: live.transaction(), lambda: live.erase("w")):
        with pytest.raises(lmcstore.InvalidError, match="closed"):
            call()
    assert "closed" in repr(live)


def test_erase_waits_for_views(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    live["w"] = np.zeros(10)
    array = live["w"]
    view = array[2:4]
    del array
    with pytest.raises(lmcstore.InUseError, match="can't be erased: it is open"):
        live.erase("w")
    view[0] = 1
    del view
    del live["w"]
    assert "w" not in live
    with pytest.raises(lmcstore.NotFoundError):
        live.erase("w")


@pytest.mark.parametrize("value", [np.zeros(4), *([torch.zeros(4)] if HAS_TORCH else []), np.zeros(4, ">f8")], ids=str)
def test_an_augmented_assignment_leaves_its_holders(shelf: lmcstore.Shelf, value: Any) -> None:
    live = shelf.live
    live["w"] = value
    held, version = live["w"], live.info("w").version
    live["w"] += 1
    assert live.info("w").version > version
    live["w"] = live.tensor("w")
    live["w"] = live["w"]
    held[...] = 5
    assert live["w"].tolist() == [5] * 4
    with pytest.raises(ZeroDivisionError), shelf.transaction():
        live["w"] += 1
        raise ZeroDivisionError
    assert live["w"].tolist() == held.tolist() == [5] * 4
    with shelf.transaction():
        live["w"] *= 2
    held += 1
    assert live["w"].tolist() == [11] * 4


def test_views_of_a_variable_in_its_place(shelf: lmcstore.Shelf) -> None:
    """They are copied."""
    live = shelf.live
    live["w"], live["t"] = np.arange(4.0).reshape(2, 2), torch.arange(4.0)
    held = live["w"]
    live["w"] = held.T
    assert live["w"].tolist() == [[0, 2], [1, 3]] and held.tolist() == [[0, 1], [2, 3]]
    live["w"] = live["w"].view("i8")
    assert live["w"].dtype == np.int64
    live["t"] = live["t"][:2]
    assert live["t"].tolist() == [0, 1]
    live["t"] = live["t"].numpy()
    assert type(live["t"]) is np.ndarray
    live["u"] = live["t"]
    live["t"][0] = 9
    assert live["u"][0] == 0


def test_numbers_keep_their_dtype_and_holders(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    count, loss, flag = live.value("n"), live.value("loss", "float32"), live.value("flag", "bool")
    count.add(1)
    live["n"] = 10
    count.add(1)
    live["n"] += 1
    live["n"] += np.int64(1)
    assert live["n"] == count.get() == 13
    live["loss"] = 2
    live["loss"] = 0.1
    assert loss.get() == live["loss"] == float(np.float32(0.1))
    live["flag"] = True
    assert flag.get() is True
    with pytest.raises(ZeroDivisionError), shelf.transaction():
        live["n"] = 99
        raise ZeroDivisionError
    assert live["n"] == count.get() == 13
    del count, loss, flag
    for name, value in [("n", 1.5), ("n", 2**70), ("n", True), ("loss", 2**24 + 1), ("flag", 1), ("loss", "text")]:
        del live[name]
        live.value(name, {"n": "int64", "loss": "float32", "flag": "bool"}[name])
        live[name] = value
        assert live[name] == value and type(live[name]) is type(value)


def test_elements_are_written_by_their_dtype(shelf: lmcstore.Shelf) -> None:
    from array import array

    live = shelf.live
    w = live.create("w", 4, "float32")
    for wrong in (np.ones(2), np.ones(2, ">f4"), array("d", [1, 2]), array("i", [1]), np.ones(2, "M8[s]")):
        with pytest.raises(lmcstore.InvalidError, match="has elements of float32"):
            w.write(0, wrong)
    with pytest.raises(lmcstore.InvalidError, match="C-contiguous"):
        w.write(0, np.ones(4, "f4")[::2])
    assert w.array.tolist() == [0] * 4
    w.write(0, np.array([1.5, 2], "f4"))
    w.write(2, array("f", [3]))
    w.write(3, np.array([4], "f4").tobytes())
    assert w.array.tolist() == [1.5, 2, 3, 4]
    w.write(0, np.frombuffer(np.array([5], "f4"), "u1"))
    w.write(1, np.ones((1, 2), "f4"))
    assert w.array.tolist() == [5, 1, 1, 4]
    records = np.array([(1, b"ab")], [("a", "i4"), ("b", "S2")])
    live["r"], live["t"] = np.zeros(2, records.dtype), np.zeros(2, "M8[s]")
    live.tensor("r").write(1, records)
    live.tensor("t").write(1, np.array(["2026-11-22"], "M8[s]"))
    assert live["r"][1] == records[0] and str(live["t"][1]) == "2026-11-22T00:00:00"


def test_replacing_leaves_holders_the_old_bytes(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    live["w"] = np.zeros(4)
    old = live["w"]
    live["w"] = np.ones((2, 2), "f4")
    assert live["w"].shape == (2, 2) and old.sum() == 0
    old[:] = 5
    assert live["w"].sum() == 4
    live["w"] = 3
    assert live["w"] == 3


def test_resize(shelf: lmcstore.Shelf) -> None:
    tensor = shelf.live.tensor("w", (4, 8), "f8", reserve="1MiB")
    array = tensor.array
    array[:] = 1
    address = array.__array_interface__["data"][0]
    tensor.resize((1000, 8))
    grown = tensor.array
    assert grown.__array_interface__["data"][0] == address
    assert grown.shape == (1000, 8) and grown[:4].sum() == 32 and grown[4:].sum() == 0
    grown[0, 0] = 7
    assert array[0, 0] == 7
    with pytest.raises(lmcstore.InUseError, match="made smaller"):
        tensor.resize(2)
    del array, grown
    gc.collect()
    tensor.resize((200_000, 8))  # beyond the reserve: it moves
    assert tensor.array[0, 0] == 7
    tensor.resize((1, 8))
    assert tensor.array.tolist() == [[7.0] + [1.0] * 7]


def test_growth_that_is_aborted_leaves_memory_valid(shelf: lmcstore.Shelf) -> None:
    tensor = shelf.live.tensor("w", 8, "f8", reserve="1MiB")
    transaction = shelf.transaction()
    tensor.resize(50_000)
    view = tensor.array
    view[:] = 1
    transaction.abort()
    assert tensor.shape == (8,)
    assert view[40_000] == 0
    view[40_000] = 1


def test_names_swap_rename_and_lists(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    live["a.1"], live["a.2"], live["b"] = np.zeros(2), np.ones(3), "text"
    held = live["a.1"]
    live.swap("a.1", "a.2")
    assert live["a.1"].sum() == 3 and live["a.2"].shape == (2,)
    held[0] = 4
    assert live["a.2"][0] == 4
    live.swap("a.2", "b")
    assert live["a.2"] == "text" and live["b"][0] == 4
    live.rename("b", "c")
    with pytest.raises(lmcstore.ExistsError):
        live.rename("c", "a.1")
    assert live.names() == list(live) == ["a.1", "a.2", "c"] and live.names("a.") == ["a.1", "a.2"] and len(live) == 3
    time.sleep(0.01)
    moment = time.time()
    live["new"] = 1
    live.persist("c")
    assert live.names(since=moment) == ["c", "new"] and live.names(until=moment) == ["a.1", "a.2"]
    assert [info.name for info in live.infos("n")] == ["new"]
    assert dict(live)["new"] == 1


def test_info(shelf: lmcstore.Shelf) -> None:
    before = time.time()
    tensor = shelf.live.tensor("w", (2, 3), "f4", reserve=1 << 20)
    info = tensor.info()
    assert info.name == "w" and info.is_tensor and info.dtype == "f32" and info.shape == (2, 3) and info.nbytes == 24
    assert info.reserved_bytes >= 1 << 20 and before - 1 < info.created < time.time() + 1 and info.handles == 1
    version = tensor.version
    tensor.persist()
    assert tensor.version > version and tensor.info().written >= info.created
    assert 0 < shelf.live.used_percent < 100
    assert "w" in repr(tensor) and "1 variables" in repr(shelf.live)
    shelf.live["v"] = 5
    assert not shelf.live.info("v").is_tensor and "5" in repr(shelf.live.open("v"))


def test_persist_by_range(shelf: lmcstore.Shelf) -> None:
    tensor = shelf.live.tensor("w", (10, 10), "i4")
    tensor.persist(20, 40)
    tensor.persist(100, 100)
    for start, stop in ((-1, 5), (5, 4), (0, 101)):
        with pytest.raises(lmcstore.InvalidError):
            tensor.persist(start, stop)
    shelf.live["r"] = np.zeros(4, [("a", "i4"), ("b", "i8")])
    shelf.live.tensor("r").persist(1, 4)
    with pytest.raises(lmcstore.InvalidError):
        shelf.live.tensor("r").persist(0, 5)


def test_atomic_updates(shelf: lmcstore.Shelf) -> None:
    tensor = shelf.live.tensor("w", (2, 3), "i4")
    assert tensor.add((1, 2), 5) == 0 and tensor.add((-1, -1), -7) == 5
    assert tensor.array[1, 2] == -2
    assert tensor.compare_and_swap((1, 2), -2, 100) and not tensor.compare_and_swap((1, 2), -2, 1)
    tensor.write(0, np.arange(3, dtype="i4"))
    assert tensor.array.tolist() == [[0, 1, 2], [0, 0, 100]]
    for index in ((2, 0), 1, (0, 0, 0)):
        with pytest.raises(lmcstore.InvalidError):
            tensor.add(index, 1)
    with pytest.raises(lmcstore.InvalidError):
        tensor.compare_and_swap((0, 0), 2**40, 1)
    with pytest.raises(lmcstore.Error):
        tensor.write(5, np.arange(3, dtype="i4"))
    with pytest.raises(lmcstore.UnsupportedError):
        shelf.live.tensor("f", 3, "f4").add(0, 1)


def test_numbers_that_are_counted(shelf: lmcstore.Shelf) -> None:
    count = shelf.live.value("count", "uint8", 250)
    assert count.add(10) == 250 and count.get() == 4
    assert count.compare_and_swap(4, 9) and shelf.live["count"] == 9
    count.set(1)
    assert shelf.live.value("count", np.uint8).get() == 1
    with pytest.raises(lmcstore.InvalidError):
        count.set(256)
    with pytest.raises(lmcstore.InvalidError):
        shelf.live.value("count", "float64")
    for dtype in "complex", "M8[s]":
        with pytest.raises(lmcstore.UnsupportedError):
            shelf.live.value("other", dtype)
    shelf.live["tensor"] = np.zeros(1)
    with pytest.raises(lmcstore.InvalidError):
        shelf.live.value("tensor")


def test_counting_by_threads(shelf: lmcstore.Shelf) -> None:
    shelf.live.value("n")
    tensor = shelf.live.tensor("t", 4, "int64")

    def count() -> None:
        value = shelf.live.value("n")
        for _ in range(500):
            value.add(1)
            tensor.add(2, 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shelf.live["n"] == 2000 and tensor.array[2] == 2000


def test_made_smaller_while_threads_look(shelf: lmcstore.Shelf) -> None:
    tensor = shelf.live.tensor("w", 1 << 20, "u1")
    looked, shrunk, errors = 0, 0, []
    guard = time.monotonic() + 600

    def goes_on() -> bool:
        assert time.monotonic() < guard, (looked, shrunk)
        return not errors and (looked < 500 or shrunk < 20)

    def look() -> None:
        nonlocal looked
        try:
            while goes_on():
                array = tensor.array
                array[-1] = 1  # a signal, where it is cut off
                looked += 1
                del array
                time.sleep(0.0005 * (looked % 4))
        except BaseException as error:
            errors.append(error)

    def size() -> None:
        nonlocal shrunk
        try:
            while goes_on():
                tensor.resize(1 << 20)
                try:
                    tensor.resize(10)
                    shrunk += 1
                except lmcstore.InUseError as error:
                    assert "made smaller" in str(error)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=target) for target in (look, size, look, size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert looked >= 500 and shrunk >= 20


def test_making_and_erasing_by_threads(shelf: lmcstore.Shelf) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(30):
                name = f"{number}.{step % 3}"
                shelf.live[name] = np.full(1000, step)
                assert shelf.live[name][999] == step
                shelf.live[f"v{number}"] = step
                if step % 3 == 2:
                    shelf.live.erase(name)
                shelf.live.names()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_locks(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    live["w"] = np.zeros(1)
    one, other = live.open("w"), live.open("w")
    with one.lock():
        with pytest.raises(lmcstore.InUseError, match="locked"):
            other.lock(timeout=0)
        start = time.monotonic()
        with pytest.raises(lmcstore.InUseError):
            other.lock(shared=True, timeout=0.15)
        assert time.monotonic() - start > 0.1
        with pytest.raises(lmcstore.InvalidError):
            one.lock()
    with one.lock(shared=True), other.lock(shared=True):
        pass
    with pytest.raises(lmcstore.InvalidError):
        other.unlock()
    entered = []

    def wait() -> None:
        with live.open("w").lock(timeout=600):
            entered.append(time.monotonic())

    with one.lock():
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        assert entered == []
    thread.join()
    assert len(entered) == 1


def test_a_child_of_fork_reads_only(shelf: lmcstore.Shelf, run_python: Callable[..., Any]) -> None:
    code = """
import os, sys, lmcstore, numpy as np
store = lmcstore.open(sys.argv[1], background=False)
live = store["other"].live
live["w"] = np.arange(4.0)
array, handle = live["w"], live.open("w")
transaction = store["other"].transaction()
child = os.fork()
if child == 0:
    status = 0
    try:
        assert array.sum() == 6
        for call in (handle.persist, lambda: live["w"], transaction.commit, lambda: live.__setitem__("v", 1)):
            try:
                call()
                status = 1
            except lmcstore.Error:
                pass
        del array, handle, transaction
    except BaseException:
        status = 2
    os._exit(status)
assert os.waitpid(child, 0)[1] == 0
array[0] = 10
transaction.commit()
assert live["w"].sum() == 16
store.close()
"""
    done = run_python(code, shelf.store.path + ".fork")
    assert done.returncode == 0, done.stderr


def test_a_reader_sees_the_writer(shelf: lmcstore.Shelf, run_python: Callable[..., Any]) -> None:
    shelf.live["w"], shelf.live["v"] = np.arange(4.0), "five"
    code = """
import sys, lmcstore
store = lmcstore.open(sys.argv[1], "r")
live = store["run"].live
assert live["w"].sum() == 6 and live["v"] == "five" and not live["w"].flags.writeable
for call in (lambda: live.__setitem__("v", 1), lambda: live.erase("w"), live.transaction, live.snapshot):
    try:
        call()
        raise SystemExit("not refused")
    except lmcstore.ReadOnlyError:
        pass
"""
    done = run_python(code, shelf.store.path)
    assert done.returncode == 0, done.stderr


def test_a_pool_grows(tmp_path: Any) -> None:
    with lmcstore.open(str(tmp_path / "small.pool"), size="32MiB", background=False) as store:
        live = store["run"].live
        live["a"] = np.zeros(1 << 20)
        with pytest.raises(lmcstore.FullError):
            live["b"] = np.zeros(8 << 20)
        assert live.names() == ["a"]
        store.set_limit("256MiB")
        live["b"] = np.ones(8 << 20)
        assert live["b"].sum() == 8 << 20


def test_damaged_dtypes_are_errors(shelf: lmcstore.Shelf) -> None:
    shelf.live["r"] = np.zeros(2, [("a", "i4")])
    core = shelf.live.tensor("r")._core
    for note in (b"numpy:[", b'numpy:"|O"', b'numpy:[["a","O"]]', b"numpy:3", b'numpy:"<f8"', b"numpy:{}"):
        core.set_note(note)
        with pytest.raises(lmcstore.DamagedError):
            shelf.live["r"]


def test_a_shelf_with_live_variables_is_renamed_and_dropped(store: lmcstore.Store, shelf: lmcstore.Shelf) -> None:
    shelf.live["w"] = torch.arange(6.0)
    shelf.live["epoch"] = 7
    held = shelf.live["w"]
    for change in (lambda: shelf.rename("walk"), shelf.drop, lambda: shelf.drop(dry_run=True)):
        with pytest.raises(lmcstore.InUseError, match='"w"'):
            change()
    del held
    gc.collect()
    shelf.rename("walk")
    assert shelf.live["epoch"] == 7 and store["walk"].live["w"].tolist() == [0, 1, 2, 3, 4, 5]
    store["run"].live["epoch"] = 1
    assert store["walk"].live["epoch"] == 7
    gc.collect()
    dry = shelf.drop(dry_run=True)
    assert dry.freed_bytes > 0 and shelf.drop() == dry
    assert "walk" not in store and store["run"].live["epoch"] == 1 and store.verify()["damages"] == 0


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_damaged_value_is_listed(pool_path: str, mode: str) -> None:
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        store["run"].live["fine"] = "a text"
        store["run"].live["bad"] = "a needle in a haystack"
        store["run"].live["w"] = torch.ones(5)
    damage(pool_path, b"a needle in a haystack", 3)
    with lmcstore.open(pool_path, mode, background=False) as store:
        live = store["run"].live
        infos = {name: live.info(name) for name in ("fine", "w")}
        assert not any(info.is_damaged for info in infos.values())
        assert list(live) == ["bad", "fine", "w"]
        assert {info.name: info.is_damaged for info in live.infos()} == {"bad": True, "fine": False, "w": False}
        with pytest.raises(lmcstore.DamagedError, match="bad"):
            _ = live["bad"]
        assert live["fine"] == "a text"
        if os.access(BIN, os.X_OK):
            shown = text("ls", pool_path, "run")
            assert [line.split()[-1] for line in shown.splitlines() if " DAMAGED " in line] == ["bad"]
            (found,) = as_json("ls", pool_path, "run")["shelves"]
            assert [one["name"] for one in found["live"] if one["is_damaged"]] == ["bad"]
        if mode == "r+":
            live["bad"] = "repaired"
            assert live["bad"] == "repaired" and not any(info.is_damaged for info in live.infos())


@NEEDS_BIN
def test_the_command_lists_live_variables(store: lmcstore.Store, shelf: lmcstore.Shelf) -> None:
    shelf.live["w"] = torch.zeros(3, 4, dtype=torch.bfloat16)
    shelf.live["epoch"] = 7
    shelf.live["epoch"] = 8
    shelf.snapshot({"a": torch.ones(2)})
    (found,) = as_json("ls", store.path)["shelves"]
    epoch, weights = found["live"]
    assert (weights["name"], weights["dtype"], weights["shape"], weights["bytes"]) == ("w", "bf16", [3, 4], 24)
    assert weights["form"] == "tensor" and weights["version"] == shelf.live.info("w").version
    assert epoch["form"] == "value" and epoch["version"] == shelf.live.info("epoch").version >= 2
    shown = text("ls", store.path, "run").splitlines()
    assert shown[0].startswith("run: 1 snapshot") and "LIVE VARIABLE" in shown[-3]
    assert shown[-1].split()[:3] == ["bf16", "3x4", "24"] and shown[-1].endswith(" w")
    assert "2 live variables of 3" in text("info", store.path)
    found = as_json("info", store.path)["live_variables"]
    assert found["count"] == 2 and found["bytes"] == sum(info.nbytes for info in shelf.live.infos())
    store["bare"].snapshot({"a": 1})
    assert "LIVE" not in text("ls", store.path, "bare")


def test_an_array_without_a_copy_is_refused_another_dtype(shelf: lmcstore.Shelf) -> None:
    shelf.live["w"] = np.arange(4.0)
    made = shelf.live.tensor("w")
    assert np.shares_memory(np.asarray(made, copy=False), made.array)
    assert np.asarray(made, dtype="f4").dtype == np.float32
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(made, dtype="f4", copy=False)


def test_a_view_while_another_thread_resizes(shelf: lmcstore.Shelf) -> None:
    """A view's bytes and shape are of one moment."""
    made = shelf.live.tensor("w", 10, torch.float32)
    core = made._core

    class Resized:
        """Grows between a view's two looks."""

        def __init__(self, *sizes: int) -> None:
            self.sizes = list(sizes)

        def buffer(self) -> Any:
            buffer = core.buffer()
            if self.sizes:
                core.resize((self.sizes.pop(),))
            return buffer

        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

    made._core = Resized(3000, 20)  # type: ignore[assignment]
    assert made.array.shape == (3000,)
    made._core = Resized(6000)  # type: ignore[assignment]
    assert made.tensor.shape == (6000,)


def advice(array: Any) -> set[str]:
    """Return which of rr and sr the mapping of an array's first byte has."""
    address, inside = array.ctypes.data, False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            first = line.split(" ", 1)[0]
            if not first.endswith(":"):
                low, high = (int(word, 16) for word in first.split("-"))
                inside = low <= address < high
            elif inside and first == "VmFlags:":
                return {"rr", "sr"} & set(line.split())
    raise AssertionError("not mapped")


def test_access_is_advice(shelf: lmcstore.Shelf) -> None:
    live = shelf.live
    made = live.tensor("w", (1000, 8), "float32", access="random")
    other = live.create("v", 1000)
    assert advice(made.array) == {"rr"} and advice(other.array) == set()
    made.resize((100000, 8))
    made.array[:] = 1
    assert advice(made.array) == {"rr"} and advice(live["w"]) == {"rr"}
    assert advice(live.tensor("w").array) == {"rr"}  # unchanged without an access
    assert advice(live.tensor("w", access="sequential").array) == {"sr"}
    made.advise("normal")
    assert advice(made.array) == set()
    assert advice(live.create("u", 10, access="sequential").array) == {"sr"}
    for word in ("Random", "", "willneed", 1, ["random"]):
        with pytest.raises(lmcstore.InvalidError, match="'normal', 'random' or 'sequential'"):
            live.tensor("new", 3, access=word)  # type: ignore[arg-type]
        with pytest.raises(lmcstore.InvalidError, match="'normal', 'random' or 'sequential'"):
            live.create("new", 3, access=word)  # type: ignore[arg-type]
        with pytest.raises(lmcstore.InvalidError, match="'w': access is"):
            made.advise(word)  # type: ignore[arg-type]
    assert "new" not in live
    path = shelf.store.path
    del made, other, live
    shelf.store.close()
    gc.collect()
    with lmcstore.open(path, mode="r") as reader:
        live = reader[shelf.name].live
        assert advice(live.tensor("w").array) == set()  # not stored
        assert advice(live.tensor("w", access="random").array) == {"rr"}
