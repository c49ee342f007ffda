# SPDX-License-Identifier: BSD-3-Clause
"""PyMM's interface: names, types and behaviour."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pymm
import pytest
from optional import torch
from pymm_support import again, folder, new, run, s

__all__ = ["folder", "s"]


def test_importing_is_quiet_and_leaves_torch_alone() -> None:
    code = "import pymm, sys; assert 'torch' not in sys.modules; pymm.torch_tensor; pymm.shelf"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_names_of_the_package() -> None:
    names = (
        "shelf ndarray torch_tensor string bytes float_number integer_number linked_list dlpack_array "
        "enable_transient_memory disable_transient_memory ShelvedCommon MemoryResource np pymmcore"
    )
    assert all(hasattr(pymm, name) for name in names.split())
    pymm.enable_transient_memory(backing_directory="/tmp", pmem_file="/tmp/swap", pmem_file_size_gb=1)
    pymm.disable_transient_memory()
    pymm.pymmcore.enable_transient_memory(backing_directory="/tmp")
    pymm.pymmcore.disable_transient_memory()


@pytest.mark.parametrize("backend", [None, "hstore-cc", "hstore", "hstore-mm"])
def test_backends_and_plugins_are_taken(folder: str, backend: str | None) -> None:
    s = pymm.shelf(
        "a", pmem_path=folder, size_mb=8, load_addr="0x900000000", backend=backend, mm_plugin="libmm-plugin-rcalb.so"
    )
    s.x = pymm.ndarray((10, 10))
    assert s.items == ["x"] and s.name == "a"
    with pytest.raises(RuntimeError, match="no backend"):
        pymm.shelf("b", pmem_path=folder, backend="other")
    with pytest.raises(RuntimeError, match="load_addr"):
        pymm.shelf("b", pmem_path=folder, load_addr=5)  # type: ignore[arg-type]


def test_mapstore_does_not_persist(tmp_path: Any) -> None:
    s = pymm.shelf("volatile", size_mb=8, backend="mapstore")
    s.x = pymm.ndarray((10, 10))
    s.x.fill(33)
    assert s.items == ["x"] and s.x.sum() == 3300
    assert pymm.shelf("volatile", backend="mapstore").x.sum() == 3300
    path = s.mr._pool.store.path
    del s
    gc.collect()
    assert pymm.shelf("volatile", size_mb=8, backend="mapstore").items == []
    assert not __import__("os").path.exists(path)


def test_force_new_begins_anew(folder: str) -> None:
    s = pymm.shelf("test", size_mb=8, pmem_path=folder)
    s.x = 1
    held = pymm.shelf("test", size_mb=8, pmem_path=folder)
    new = pymm.shelf("test", size_mb=8, pmem_path=folder, force_new=True)
    assert new.items == [] and held is not None
    new.y = 2
    del s, held, new
    assert again(folder).items == ["y"]


def test_force_new_deletes_pools_only(folder: str) -> None:
    path = Path(folder) / "notes.pool"
    path.write_text("a text\n" * 3000)
    with pytest.raises(RuntimeError, match="deletes pools only"):
        pymm.shelf("notes", pmem_path=folder, force_new=True)
    assert path.read_text() == "a text\n" * 3000
    path.write_bytes(b"PMEMOBJ\0" + bytes(20_000))  # the remains of a pool
    assert pymm.shelf("notes", size_mb=8, pmem_path=folder, force_new=True).items == []


def test_another_process_that_has_it_keeps_it(folder: str) -> None:
    s = new(folder)
    s.x = 1
    run(
        folder,
        """
for force in (False, True):
    try:
        pymm.shelf("test", pmem_path=folder, force_new=force) if force else pymm.MemoryResource.__init__
    except RuntimeError as error:
        assert "in use" in str(error) or "open" in str(error), error
    else:
        assert not force
""",
    )
    assert s.x == 1


def test_bad_names_and_sizes_of_shelves(folder: str) -> None:
    for bad in ("", "a/b", 5):
        with pytest.raises(RuntimeError, match="named"):
            pymm.shelf(bad, pmem_path=folder)  # type: ignore[arg-type]
    for size in (0, -1, "8"):
        with pytest.raises(RuntimeError, match="size_mb"):
            pymm.shelf("a", size_mb=size, pmem_path=folder)  # type: ignore[arg-type]


def test_attributes_that_are_not_there(s: pymm.shelf) -> None:
    assert s.nothing is None and hasattr(s, "nothing")
    assert "nothing" not in s and not s.__hasattr__("nothing")
    s.x = 1
    assert "x" in s
    s.x = None
    assert s.x is None and "x" not in s and s.items == []
    s.never_was = None


@pytest.mark.parametrize("value", [{}, set(), object(), (1, 2), 1j, print, type])
def test_anything_else_is_refused(s: pymm.shelf, value: Any) -> None:
    s.x = 5
    with pytest.raises(RuntimeError, match="can't be put on a shelf"):
        s.x = value
    assert s.x == 5


def test_what_a_shelf_has_itself_is_no_variable(s: pymm.shelf) -> None:
    for name in ("items", "name", "mr", "erase", "save", "tx_begin", "used"):
        with pytest.raises(RuntimeError):
            setattr(s, name, 1)
    for name in ("", "-hidden"):
        with pytest.raises(RuntimeError, match="can't be named"):
            setattr(s, name, 1)
    assert s.items == []


def test_lists_of_names(s: pymm.shelf, capsys: pytest.CaptureFixture[str]) -> None:
    s.b, s.a = 1, np.zeros(3)
    s.c = pymm.linked_list()
    s.c.append("part")
    assert s.items == s.get_item_names() == ["a", "b", "c"] and len(s.get_item_names(all=True)) == 4
    assert 0 < s.used == s.get_percent_used() < 100
    assert "pymm.ndarray" in s.supported_types()
    s.inspect()
    s.inspect(verbose=True)
    assert "var a: tensor" in capsys.readouterr().out
    assert {"a", "b", "erase"} <= set(dir(s))
    assert "3 items" in repr(s)


def test_erase(s: pymm.shelf) -> None:
    s.x, s.n, s.t, s.q = np.ones(10), 1, torch.ones(3), "text"
    for name in ("x", "n", "q"):
        s.erase(name)
    s.erase(s.t)
    assert s.items == []
    with pytest.raises(RuntimeError, match="no variable"):
        s.erase("x")
    with pytest.raises(RuntimeError):
        s.erase(5)  # type: ignore[arg-type]
    s.x = np.zeros(2)
    del s.x
    assert s.items == []


def test_erase_while_others_refer_to_it(s: pymm.shelf) -> None:
    s.x, s.t = np.arange(10.0), torch.arange(10.0)
    for name in ("x", "t"):
        whole = getattr(s, name)
        with pytest.raises(RuntimeError, match="can't be erased"):
            s.erase(name)
        view = whole[2:5]
        del whole
        with pytest.raises(RuntimeError, match="can't be erased"):
            s.erase(name)
        assert float(view[0]) == 2 and float(getattr(s, name)[2]) == 2
        view[0] = 7
        assert float(getattr(s, name)[2]) == 7
        del view
        s.erase(name)
        assert name not in s


def test_what_is_let_go_of_is_made_durable_if_it_stays(folder: str, s: pymm.shelf) -> None:
    def version() -> int:
        return int(live.info("x").version)

    s.x = np.zeros(1000)
    with lmcstore.open(f"{folder}/test.pool") as store:
        live = store["test"].live
        held = live.tensor("x")
        s.x[0] = 1
        before = version()
        with pytest.raises(RuntimeError, match="can't be erased"):
            s.erase("x")
        assert version() > before and s.x[0] == 1
        view, before = s.x[2:], version()
        with pytest.raises(RuntimeError, match="can't be erased"):
            s.erase("x")
        view[0] = 2
        del view
        s._names.forget()
        assert version() > before and s.x[2] == 2
        before = held.info().version
        s.x = np.ones(3)
        assert held.info().version == before and held.info().name == "" and held.array[2] == 2


def test_ndarray(s: pymm.shelf) -> None:
    s.x = pymm.ndarray((3, 4), dtype=np.uint8, zero=True)
    assert isinstance(s.x, np.ndarray) and isinstance(s.x, pymm.ShelvedCommon)
    assert str(type(s.x)) == "<class 'pymm.ndarray.shelved_ndarray'>"
    assert s.x.shape == (3, 4) and s.x.dtype == np.uint8 and s.x.dim() == 2 and s.x.name == "x"
    s.x.fill(7)
    assert s.x.sum() == 84 and type(s.x.asndarray()) is np.ndarray
    address, length = s.x.addr
    assert int(address, 16) == s.x.ctypes.data and length == 12
    assert s.x._value_named_memory.addr() == s.x.memory == (address, 12)
    assert s.x.namedmemory is s.x._value_named_memory
    s.y = pymm.ndarray([2, 2, 2])
    s.z = pymm.ndarray(5)
    assert s.y.dtype == np.float64 and s.z.shape == (5,)
    s.w = np.array(3.5)
    assert s.w.shape == () and float(s.w) == 3.5


def test_types_of_results(s: pymm.shelf) -> None:
    s.x, plain = pymm.ndarray((4, 4)), np.ones((4, 4))
    s.x.fill(1)
    results = (s.x * plain, plain * s.x, s.x * s.x, -s.x, s.x + 1, 1 - s.x, s.x @ s.x, np.sqrt(s.x), s.x == s.x)
    for result in (*results, s.x.copy(), s.x.astype("f4"), s.x.sum(axis=0), np.cumsum(s.x), s.x.flatten()):
        assert type(result) is np.ndarray, result
    assert type(s.x.sum()) is np.float64 and type(s.x[0, 0]) is np.float64 and type(np.max(s.x)) is np.float64
    s.x += 1
    s.x /= 4
    s.x **= 2
    s.x[0] -= 1
    assert type(s.x) is type(s.x[1:]) and s.x[1, 1] == 0.25 and s.x[0, 0] == -0.75
    s.i = np.arange(8)
    s.i //= 2
    s.i <<= 1
    s.i |= 1
    s.i %= 5
    assert s.i.tolist() == [1, 1, 3, 3, 0, 0, 2, 2]


def test_order_and_strides(folder: str) -> None:
    s = new(folder)
    s.f = pymm.ndarray((2, 3), order="F")
    s.c = pymm.ndarray((2, 3), strides=(24, 8))
    s.g = pymm.ndarray((2, 3), strides=(8, 16))
    s.o = pymm.ndarray((2, 3), dtype="i4", strides=(16, 4))
    assert s.f.flags.f_contiguous and s.c.flags.c_contiguous and s.g.flags.f_contiguous and s.o.strides == (16, 4)
    for array in (s.f, s.o):
        array[...] = np.arange(6).reshape(2, 3)
    del array, s
    s = again(folder)
    assert s.f.flags.f_contiguous and s.f.tolist() == s.o.tolist() == [[0, 1, 2], [3, 4, 5]]
    for wrong in ({"strides": (8,)}, {"strides": (-24, 8)}, {"order": "K"}):
        with pytest.raises(RuntimeError):
            s.x = pymm.ndarray((2, 3), **wrong)  # type: ignore[arg-type]


def test_persisting_parts(s: pymm.shelf) -> None:
    s.x = np.arange(100.0)
    s.x.persist()
    s.x.persist_offset(0, 100)
    s.x.persist_offset(np.int64(99), 1)
    s.x[10:20].persist()
    s.x[10:20].persist_offset(0, 10)
    s.x[::-2].persist()
    for offset, count in ((100, 1), (0, 101), (-1, 1), (0.5, 1)):
        with pytest.raises(RuntimeError, match="can't be made durable"):
            s.x.persist_offset(offset, count)
    for view in (s.x[10:20], s.x[::2]):
        with pytest.raises(RuntimeError):
            view.persist_offset(5, 60)
    s.persist()
    (s.x * 2)
    np.empty_like(s.x).persist()  # type: ignore[attr-defined]


def test_byteswap_and_fill(s: pymm.shelf) -> None:
    s.x = np.array([1, 256], "i2")
    assert s.x.byteswap(False).tolist() == [256, 1] and s.x.tolist() == [1, 256]
    s.x.byteswap(True)
    assert s.x.tolist() == [256, 1]


def test_copies_are_plain(s: pymm.shelf) -> None:
    s.x, s.n, s.t = np.arange(4), 5, torch.arange(4)
    for made in (copy.copy(s.x), copy.deepcopy(s.x), pickle.loads(pickle.dumps(s.x))):
        assert type(made) is np.ndarray and made.tolist() == [0, 1, 2, 3]
    for number in (copy.deepcopy(s.n), pickle.loads(pickle.dumps(s.n))):
        assert type(number) is int and number == 5
    for tensor in (copy.deepcopy(s.t), pickle.loads(pickle.dumps(s.t))):
        assert type(tensor) is torch.Tensor and tensor.tolist() == [0, 1, 2, 3]


def test_torch_tensor(s: pymm.shelf) -> None:
    pytest.importorskip("torch")
    s.x = pymm.torch_tensor((10,))
    assert str(type(s.x)) == "<class 'pymm.torch_tensor.shelved_torch_tensor'>" and isinstance(s.x, torch.Tensor)
    assert isinstance(s.x, pymm.ShelvedCommon) and s.x.dtype == torch.float64 and s.x.shape == (10,)
    s.x.fill(1)
    assert s.x[0] == 1 and s.x.name_on_shelf == "x"
    n = torch.arange(10.0)
    for result in (s.x * n, n * s.x, s.x * s.x, s.x.sum(), s.x[2:4], s.x.as_tensor(), s.x.view(2, 5)):
        assert type(result) is torch.Tensor
    s.x += 1
    s.x *= 2
    s.x -= 0.4
    s.x /= 2
    assert str(type(s.x)).endswith("shelved_torch_tensor'>") and abs(float(s.x[3]) - 1.8) < 1e-12
    assert str(s.x).startswith("tensor(") and f"{s.x}".startswith("tensor(")
    s.x.persist()
    s.x.persist_offset(0, 10)
    with pytest.raises(RuntimeError):
        s.x.persist_offset(5, 6)
    assert int(s.x._value_named_memory.addr()[0], 16) == s.x.data_ptr()
    from pymm.torch_tensor import shelved_torch_tensor

    assert type(s.x) is shelved_torch_tensor


def test_zero_dimensional_tensors_and_dtypes(folder: str) -> None:
    pytest.importorskip("torch")
    s = new(folder)
    s.a = pymm.torch_tensor(1.0)
    s.b = torch.tensor(2.0)
    s.c = torch.ones(2, 2, dtype=torch.float8_e5m2)
    s.d = torch.tensor([True, False])
    s.e = torch.zeros(0, 3)
    assert s.a.dim() == s.b.dim() == 0 and s.b.is_leaf and type(s.a) is type(s.b)
    del s
    s = again(folder)
    assert float(s.a) == 1 and float(s.b) == 2 and s.c.dtype == torch.float8_e5m2 and s.d.tolist() == [True, False]
    assert s.e.shape == (0, 3)
    with pytest.raises(RuntimeError, match="sparse"):
        s.x = torch.eye(2).to_sparse()
    with pytest.raises(RuntimeError, match="meta"):
        s.x = torch.empty(3, device="meta")


def test_a_tensors_own_view_is_refused(s: pymm.shelf) -> None:
    s.t = torch.arange(6.0)
    for view in (s.t[:3], s.t[3:], s.t.view(2, 3), s.t.as_tensor()):
        with pytest.raises(RuntimeError, match="own view"):
            s.t = view
    del view
    s.t = s.t[:3].clone()
    s.u = s.t[:2]
    assert s.t.tolist() == [0, 1, 2] and s.u.tolist() == [0, 1]


def test_gradients(s: pymm.shelf) -> None:
    s.x = torch.tensor(1.0, requires_grad=True)
    s.z = s.x**3
    s.z.backward()
    assert s.x.grad == 3 and s.x.is_leaf
    s.p = torch.nn.Parameter(torch.ones(3))
    s.q = pymm.torch_tensor([1, 2], requires_grad=True)
    assert s.p.requires_grad and s.q.requires_grad


def test_an_optimizer_steps_on_the_shelf(folder: str) -> None:
    s = new(folder)
    s.w = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([s.w], lr=0.5)
    (s.w * torch.arange(4.0)).sum().backward()
    optimizer.step()
    expected = s.w.tolist()
    del s, optimizer
    assert again(folder).w.tolist() == expected == [1, 0.5, 0, -0.5]


def test_parameters_of_a_module_on_the_shelf(folder: str) -> None:
    s = new(folder)
    s.w, s.b = torch.randn(4, 3), torch.zeros(4)
    model = torch.nn.Linear(3, 4)
    model.weight, model.bias = torch.nn.Parameter(s.w), torch.nn.Parameter(s.b)
    assert len(list(model.parameters())) == 2 and model.weight.data_ptr() == s.w.data_ptr() and not s.w.requires_grad
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before, state = s.w.tolist(), copy.deepcopy(model.state_dict())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert s.w.tolist() == model.weight.tolist() != before
    other = copy.deepcopy(model)
    assert len(list(other.parameters())) == 2 and type(other.weight) is torch.nn.Parameter
    assert other.weight.data_ptr() != s.w.data_ptr()
    loaded = pickle.loads(pickle.dumps(model.state_dict()))
    assert type(loaded["weight"]) is torch.Tensor and torch.equal(loaded["weight"], s.w)
    with pytest.raises(RuntimeError, match="can't be erased"):
        s.erase("w")
    model.load_state_dict(state)
    assert s.w.tolist() == before
    s.save(model.state_dict(), "model")
    del s, model, optimizer, other
    gc.collect()
    s = again(folder)
    assert s.w.tolist() == before and s.load("model")["weight"].tolist() == before


def test_numbers(folder: str) -> None:
    s = new(folder)
    s.n = pymm.float_number(700.001)
    s.n *= 2
    s.n /= 2
    assert s.n * 2.0 == 1400.002 and 2.0 / s.n == 2.0 / 700.001 and 2.11 - s.n < 0 and s.n // 2.11 == 331
    s.m = 700.001
    assert s.m == s.n and isinstance(s.m, float) and s.m.is_integer() is False
    s.i = pymm.integer_number(700)
    s.i *= 2
    s.i -= 1
    s.i //= 2
    assert s.i == 699 and 1400 % s.i == 2 and s.i % 3 == 0 and divmod(s.i, 100) == (6, 99) and -s.i == -699
    s.b = True
    assert s.b == 1 and s.b and isinstance(s.b, int)
    assert str(type(s.i)) == "<class 'pymm.integer_number.shelved_integer_number'>"
    assert str(type(s.n)) == "<class 'pymm.float_number.shelved_float_number'>"
    assert len(s.i._value_named_memory.addr()) == 2
    s.i.persist()
    del s
    s = again(folder)
    assert s.i == 699 and s.n == 700.001 and s.b == 1
    assert round(s.n, 1) == 700.0 and f"{s.i:05d} {s.n:.2f}" == "00699 700.00"
    for wrong in (lambda: pymm.integer_number("x"), lambda: pymm.float_number("x"), lambda: pymm.integer_number(1.5)):
        with pytest.raises(RuntimeError):
            wrong()


def test_aliases_of_numbers(s: pymm.shelf) -> None:
    s.n = 5
    alias = s.n
    alias += 1
    assert s.n == alias == 6
    old = s.n
    s.n += 1
    old += 10
    assert s.n == 7 and old == 16 and type(old) is int


def test_strings(folder: str) -> None:
    s = new(folder)
    s.x = pymm.string("Hello world!")
    s.y = "Good Day sir!"
    assert str(s.x) == "Hello world!" and s.y == "Good Day sir!" and "Day" in s.y and "foobar" not in s.y
    assert s.y.capitalize() == "Good day sir!" and s.x.count("world") == 1 and list(s.x)[:2] == ["H", "e"]
    s.x += " Brilliant!"
    s.z = pymm.string(b"\xff\xfe=\xd8\t\xde", encoding="utf-16")
    s.long = "x" * 200_000
    s.long += "y"
    assert s.z == "😉" or len(s.z) == 1
    assert s.z.encoding == "utf-16" and s.x.encoding == "utf-8"
    del s
    s = again(folder)
    assert s.x == "Hello world! Brilliant!" and s.z.encode("utf-16-le") == b"=\xd8\t\xde"
    assert len(s.long) == 200_001 and s.long[-1] == "y" and str(type(s.x)) == "<class 'pymm.string.shelved_string'>"
    for wrong, encoding in (("x", "none such"), (b"\xff", "utf-8"), (5, "utf-8")):
        with pytest.raises(RuntimeError):
            pymm.string(wrong, encoding=encoding)  # type: ignore[arg-type]


def test_bytes(folder: str) -> None:
    s = new(folder)
    s.x = pymm.bytes("hello world", "utf-8")
    s.x += b"!  "
    s.z = pymm.bytes(range(3))
    s.y = s.x.strip()
    s.d = bytes([72, 101, 108, 108, 111])
    s.long = bytes(300_000)
    assert s.x.decode() == "hello world!  " and s.z == b"\x00\x01\x02" and s.y.decode() == "hello world!"
    assert s.d[1] == 101 and isinstance(s.d[1], int) and isinstance(s.d[1:3], bytes) and s.x.hex()[:2] == "68"
    del s
    s = again(folder)
    assert s.x == b"hello world!  " and s.d == b"Hello" and len(s.long) == 300_000
    with pytest.raises(RuntimeError):
        pymm.bytes(["x"])  # type: ignore[list-item]


def test_linked_list(folder: str) -> None:
    s = new(folder)
    s.x = pymm.linked_list()
    for element in (123, 1.321, np.ones((3, 3), np.uint8), "Hello list!", b"bytes", None, True, 2**70, torch.ones(2)):
        s.x.append(element)
    assert s.items == ["x"] and len(s.x) == 9
    assert s.x[0] == 123 and s.x[1] == 1.321 and s.x[3] == "Hello list!" and s.x[-2] == 2**70 and s.x[6] is True
    s.x[0] = 999
    s.x[1] = np.ones(3)
    s.x[1] = np.zeros(4)
    s.x[2][0, 0] = 9
    assert np.array_equal(s.x[1], np.zeros(4)) and s.x[2][0, 0] == 9
    s.x.append(100)
    s.x[-1] -= 1
    s.x[2] += 1
    assert s.x[-1] == 99 and s.x[2][0, 0] == 10
    for index in (100, -100):
        with pytest.raises(RuntimeError, match="out of bounds"):
            s.x[index] = 0
        with pytest.raises(RuntimeError, match="out of bounds"):
            s.x[index]
    for wrong in ("a", slice(0, 1)):
        with pytest.raises(RuntimeError):
            s.x[wrong]  # type: ignore[index]
    for element in ({}, [1], object()):
        with pytest.raises(RuntimeError):
            s.x.append(element)
    del s.x[0]
    del s.x[-1]
    assert len(s.x) == len(list(s.x)) == 8 and "Hello list!" in s.x and 5 not in s.x
    parts = len(s.get_item_names(all=True))
    del s
    s = again(folder)
    assert len(s.x) == 8 and s.x[2] == "Hello list!" and s.x[1][0, 0] == 10 and s.x[6] == 2**70
    assert len(s.get_item_names(all=True)) == parts
    s.erase("x")
    assert s.get_item_names(all=True) == []


def test_long_lists(folder: str) -> None:
    s = new(folder)
    s.l = list(range(1000))
    for number in range(1000, 3000):
        s.l.append(number)
    del s.l[500]
    del s
    assert list(again(folder).l) == [*range(500), *range(501, 3000)]


def test_lists_grow_within_a_transaction(s: pymm.shelf) -> None:
    s.l = pymm.linked_list()
    s.tx_begin_all()
    for number in range(3000):
        s.l.append(number)
    s.tx_abort()
    assert len(s.l) == 0
    s.tx_begin_all()
    for number in range(3000):
        s.l.append(number)
    s.tx_end()
    assert list(s.l) == list(range(3000))


def test_replacing_a_list_frees_its_parts(s: pymm.shelf) -> None:
    s.l = ["a", "b", np.ones(3)]
    s.l = ["c"]
    assert len(s.get_item_names(all=True)) == 2
    s.l = 5
    assert s.get_item_names(all=True) == ["l"]
    s.l = pymm.linked_list([1, "x"])
    s.m = s.l
    s.m.append(2)
    assert list(s.l) == [1, "x"] and list(s.m) == [1, "x", 2]
    s.l.extend(s.l)
    earlier = s.l
    s.tx_begin_all()
    s.tx_abort()
    assert s.l is not earlier
    s.l.extend(earlier)
    s.l.extend(s.m)
    assert list(s.l) == [*([1, "x"] * 4), 1, "x", 2]


def test_dlpack_array(folder: str) -> None:
    s = new(folder)
    s.a = pymm.dlpack_array((5, 2), dtype=np.float32)
    assert int(s.a.addr[0], 16) > 0 and s.a.addr[1] == 40
    tensor = torch.utils.dlpack.from_dlpack(s.a.as_capsule())
    tensor.fill_(3)
    assert s.a.asndarray().sum() == 30 and np.from_dlpack(s.a).sum() == 30 and "3." in str(s.a)
    s.a[0, 0] = 1
    s.a.persist()
    s.b = s.a
    del s, tensor
    s = again(folder)
    assert np.asarray(s.a).sum() == 28 and np.asarray(s.b).sum() == 28 and s.a.shape == (5, 2) and len(s.a) == 5
    assert str(type(s.a)) == "<class 'pymm.dlpack_array.shelved_dlpack_array'>"


def test_values_that_others_made(folder: str, s: pymm.shelf) -> None:
    assert s.mr.put_named_memory("raw", b"abc") is None
    with lmcstore.open(f"{folder}/test.pool") as store:
        store["test"].live.value("counter").add(5)
        assert (s.raw, s.counter) == (b"abc", 5) and isinstance(s.raw, pymm.ShelvedCommon)
        s.raw += b"d"
        s.counter += 1
        assert store["test"].live["raw"] == b"abcd" and store["test"].live["counter"] == 6


def test_named_memory(folder: str) -> None:
    resource = pymm.MemoryResource("named", 8, pmem_path=folder)
    memory = resource.create_named_memory("m", 1000, 8, True)
    assert memory is not None and memory.addr()[1] == 1000 and resource.create_named_memory("m", 5) is None
    memory.buffer[0] = 7
    memory.persist()
    resource.release_named_memory(memory)
    resource.put_named_memory("p", bytearray(b"hello"))
    resource.put_named_memory("q", bytes(100_000))
    assert resource.get_named_memory("p") == b"hello" and len(resource.get_named_memory("q") or b"") == 100_000
    with pytest.raises(RuntimeError):
        resource.erase_named_memory("m")
    del memory
    resource.atomic_swap_names("m", "p")
    assert (resource.get_named_memory("p") or b"")[0] == 7 and resource.get_named_memory("none") is None
    assert resource.open_named_memory("none") is None
    resource.erase_named_memory("p")
    assert resource.list_items() == ["m", "q"] and 0 < resource.get_percent_used() < 100


def test_save_and_load(folder: str) -> None:
    s = new(folder)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    data = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": torch.tensor(0.5)}
    s.save(data, shelf_var_name="ckpt")
    s.save(data, "ckpt")
    assert s.items == ["ckpt"] and "ckpt" in s
    del s
    s = again(folder)
    loaded = s.load("ckpt")
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    fresh.load_state_dict(loaded["model"])
    torch.optim.Adam(fresh.parameters()).load_state_dict(loaded["optimizer"])
    for one, other in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert loaded["epoch"] == 3 and type(loaded["model"]) is type(model.state_dict())
    for wrong in (model, {"a": [object()]}, {object(): 1}):
        with pytest.raises(RuntimeError, match="can't be saved"):
            s.save(wrong, "ckpt")
    assert s.load("ckpt")["epoch"] == 3
    s.erase("ckpt")
    assert s.get_item_names(all=True) == []
    with pytest.raises(RuntimeError, match="nothing was saved"):
        s.load("ckpt")


def test_threads(s: pymm.shelf) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(20):
                setattr(s, f"x{number}", np.full(100, step))
                setattr(s, f"n{number}", step)
                assert getattr(s, f"x{number}")[5] == step and getattr(s, f"n{number}") == step
                assert len(s.items) >= 2
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and len(s.items) == 8


def test_views_outlive_the_shelf(folder: str) -> None:
    s = new(folder)
    s.x, s.t, s.n = np.arange(5.0), torch.arange(5.0), 7
    x, view, t, n = s.x, s.x[1:], s.t, s.n
    del s
    gc.collect()
    x[1] = 9
    t[0] = 8
    n += 1
    assert view[0] == 9 and float(t[0]) == 8 and n == 8
    s = again(folder)
    assert s.x[1] == 9 and s.n == 7


def test_a_shadow_is_a_base_class() -> None:
    with pytest.raises(TypeError, match="abstract"):
        pymm.Shadow()  # type: ignore[abstract]


def test_variables_in_a_snapshot(folder: str, tmp_path: Any) -> None:
    """Training in the pool with snapshots: shelved variables are stored as plain ones."""
    shelf = new(folder)
    shelf.w = torch.arange(12.0).reshape(3, 4)
    shelf.a = np.arange(6, dtype=np.int16)
    module = torch.nn.Linear(4, 3)
    module.weight = torch.nn.Parameter(shelf.w)
    with lmcstore.open(tmp_path / "run.pool") as store:
        store["run"].snapshot({"module": module.state_dict(), "w": shelf.w, "a": shelf.a, "part": shelf.a[1:3]})
        shelf.w.fill(0)
        back = store["run"].latest.state_dict()
    assert type(back["w"]) is torch.Tensor and torch.equal(back["w"], torch.arange(12.0).reshape(3, 4))
    assert back["module"]["weight"].data_ptr() == back["w"].data_ptr()
    assert type(back["a"]) is np.ndarray and back["a"].tolist() == [0, 1, 2, 3, 4, 5] and back["a"].dtype == np.int16
    assert back["part"].tolist() == [1, 2]


def change_tensors(s: pymm.shelf) -> None:
    tensor = s.t
    tensor.data = torch.ones(6)
    tensor.data = tensor.data - 0.5 * torch.ones(6)
    tensor.data = tensor.data
    module = torch.nn.Linear(3, 4, bias=False)
    module.weight = torch.nn.Parameter(s.w)
    loss = module(torch.ones(3)).square().sum()
    module.weight.data = module.weight.data + 1
    loss.backward()
    module.to(torch.float32)
    for wrong in (torch.ones(7), torch.ones(6, dtype=torch.float64), torch.ones(6, device="meta"), 5):
        with pytest.raises(RuntimeError, match="keeps its memory"):
            tensor.data = wrong
    for change in (
        lambda: tensor.set_(torch.ones(6)),
        lambda: tensor.resize_(7),
        lambda: tensor.resize_as_(torch.ones(7)),
        lambda: tensor.unsqueeze_(0),
        lambda: s.w.t_(),
        lambda: module.double(),
    ):
        with pytest.raises(RuntimeError, match="keeps its memory"):
            change()
    assert tensor.resize_(6) is tensor and tensor.resize_((6,)).resize_as_(torch.ones(6)).tolist() == [0.5] * 6
    plain = tensor.as_tensor().unsqueeze_(0)
    assert plain.shape == (1, 6) and module.weight.dtype == torch.float32


def test_a_tensor_keeps_its_memory(folder: str) -> None:
    s = new(folder)
    s.t, s.w = torch.arange(6.0), torch.ones(4, 3)
    change_tensors(s)
    del s
    gc.collect()
    s = again(folder)
    assert s.t.tolist() == [0.5] * 6 and s.t.shape == (6,) and s.w.tolist() == [[2] * 3] * 4


def test_an_array_keeps_its_layout(folder: str) -> None:
    s = new(folder)
    s.x, s.f = np.arange(6.0), pymm.ndarray((2, 3), order="F")
    for array, name, value in [
        (s.x, "shape", (2, 3)),
        (s.x, "shape", (-1, 1)),
        (s.x, "dtype", "i8"),
        (s.x, "dtype", ">f8"),
        (s.x, "strides", (0,)),
        (s.f, "shape", (1, 2, 3)),
    ]:
        with pytest.raises(RuntimeError, match=f"keeps its {name}"):
            setattr(array, name, value)
    s.x.shape = (6,)
    s.x.dtype = "f8"
    view = s.x[:]
    view.dtype = "i8"
    view.dtype = "f8"
    view[5] = 9
    assert s.x.shape == (6,) and s.x.dtype == np.float64 and s.x[5] == 9
    s.x = s.x.reshape(2, 3)
    del view, array
    gc.collect()
    del s
    s = again(folder)
    assert s.x.shape == (2, 3) and s.x[1, 2] == 9
