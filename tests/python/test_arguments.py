# SPDX-License-Identifier: BSD-3-Clause
"""Every public function refuses hostile arguments by a documented exception, and changes nothing.

hypothesis draws calls and hostile values: wrong types, extreme numbers, NaN, surrogates, NULs, objects whose special
methods raise, lie, or change their owner. LMCSTORE_EXAMPLES sets the number of tries.
"""

from __future__ import annotations

import array
import gc
import io
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import lmcstore
import numpy
import pytest
from lmcstore import _core, codec
from optional import HealthCheck, given, settings, st, torch

EXAMPLES = int(os.environ.get("LMCSTORE_EXAMPLES", "400"))


class SpiteError(Exception):
    """Raised by hostile objects; may pass through."""


ALLOWED = (lmcstore.Error, TypeError, ValueError, IndexError, SpiteError)

# The C module also passes on errors of the arguments' types: unavailable buffers, too large ints.
CORE_ALLOWED = (*ALLOWED, OverflowError, BufferError, NotImplementedError, MemoryError, AttributeError)


class Raising:
    def _raise(self, *_: object) -> Any:
        raise SpiteError

    __index__ = __int__ = __float__ = __len__ = __iter__ = __getitem__ = __fspath__ = __contains__ = _raise
    __array__ = __dlpack__ = __dlpack_device__ = fileno = flush = keys = items = values = __enter__ = _raise
    __array_interface__ = property(_raise)
    __cuda_array_interface__ = property(_raise)


class Lying:
    def __index__(self) -> int:
        return -1

    def __len__(self) -> int:
        return 2**62

    def __float__(self) -> float:
        return math.nan

    def __fspath__(self) -> str:
        return "\0"

    def __iter__(self) -> Iterator[Any]:
        return iter([self, self])

    def __getitem__(self, key: object) -> Any:
        return self

    def keys(self) -> list[Any]:
        return [1, None, "\ud800"]

    def fileno(self) -> Any:
        return "1"

    def flush(self) -> None:
        return None

    __array_interface__: ClassVar[dict[str, Any]] = {
        "shape": (2**40,),
        "typestr": "<f8",
        "data": (1, False),
        "version": 3,
    }


class Growing(dict[Any, Any]):
    """A dict that grows at each look."""

    def _grow(self) -> None:
        self[len(self)] = torch.ones(1)

    def __iter__(self) -> Iterator[Any]:
        self._grow()
        return super().__iter__()

    def items(self) -> Any:
        self._grow()
        return super().items()


class HostileMapping(Mapping[str, float]):
    calls = 0

    def __getitem__(self, key: str) -> float:
        return 1.0

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        HostileMapping.calls += 1
        return iter([f"k{HostileMapping.calls}"] * (HostileMapping.calls % 3))


class Word(str):
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return False


class Number(int):
    def __index__(self) -> int:
        raise SpiteError


def cyclic() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


def deep() -> Any:
    value: Any = torch.ones(1)
    for _ in range(20_000):
        value = [value]
    return value


def released() -> memoryview:
    view = memoryview(bytearray(100))
    view.release()
    return view


TENSORS: list[Callable[[], Any]] = [
    lambda: torch.ones(3, device="meta"),
    lambda: torch.ones(3).to_sparse(),
    lambda: torch.ones(2, 2).to_sparse_csr(),
    lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    lambda: torch.ones(1).expand(1000, 1000),
    lambda: torch.ones(3, requires_grad=True) * 2,
    lambda: torch.empty(0, 5),
    lambda: torch.ones(3, dtype=torch.complex64).conj(),
    lambda: torch.ones(3).as_strided((2, 2), (0, 1)),
    lambda: torch._neg_view(torch.ones(3)),
    lambda: torch.empty((1,) * 40),
    lambda: numpy.array([object()]),
    lambda: numpy.zeros(3, dtype=[("a", "f4"), ("b", "O")]),
    lambda: numpy.ma.masked_array([1.0, 2.0], [True, False]),
    lambda: numpy.array(["2020-01-01"], dtype="M8[D]"),
    lambda: numpy.ones((3, 4)).T[::-1, ::2],
    lambda: numpy.frombuffer(b"abcd", dtype=">i4"),
    lambda: numpy.lib.stride_tricks.as_strided(numpy.zeros(1), (1 << 20, 1 << 20), (0, 0)),
]

VALUES: list[Callable[[], Any]] = [
    *(
        (lambda value=value: value)
        for value in (
            *(None, True, False, 0, 1, 2, -1, 255, 256, 2**31, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**64, 2**64 + 1),
            *(-(2**63), -(2**64), 10**5000, -(10**5000), 0.0, -0.5, 1e308, math.nan, math.inf, -math.inf, 1j),
            *("", "a", "run", "run@1", "1", "latest", "latest~1", "latest~99999999999999999999", "step:1", "step:x"),
            *("\ud800", "a\0b", "\x1b[31mred", "\u202eright", "x" * 1025, "é" * 600, "..", "a@b", "-", "/", "%s%n%s"),
            *("9" * 5000, "9" * 400 + ".5", "8GiB", "0", "-1", "1e9", " 1", "s3://x", "/dev/full", "/proc/self/mem"),
            *(b"", b"a", b"\xff" * 100, b"\0" * 1000, (), (1,), ("a", 1), ("\ud800",), ("a",) * 40, [], ["a"], {}),
            *({"a": 1}, {"a": math.nan}, {1: 1}, {"a": {"b": [1, {"c": b"x"}]}}, {"\ud800": 1}, {"a": 10**5000}, set()),
            *(..., NotImplemented, object, type, len, slice(1, 2), range(5), int, lmcstore, Path("x"), frozenset({1})),
        )
    ),
    *TENSORS,
    Raising,
    Lying,
    Growing,
    HostileMapping,
    cyclic,
    deep,
    released,
    object,
    lambda: Word("run"),
    lambda: Number(1),
    lambda: {"a": Growing()},
    lambda: OrderedDict(a=Raising()),
    lambda: {Word("a"): 1, Word("a"): 2},
    lambda: {"a": torch.ones(2), "b": [Raising()]},
    lambda: (value for value in (1, 2)),
    lambda: memoryview(bytes(100))[::-3],
    lambda: memoryview(bytearray(64)).cast("d", (2, 4)),
    lambda: array.array("u", "abc"),
    lambda: bytearray(100),
    lambda: io.BytesIO(b"x"),
    lambda: io.StringIO("x"),
    lambda: torch.nn.Linear(2, 2),
    lambda: torch.Generator(),
    lambda: codec.compress(bytes(1000)),
    lambda: codec.compress(bytes(1000))[:-1],
]


# By place: hypothesis prints its draws, and some values can't be printed.
PLACES = st.integers(0, len(VALUES) - 1)


Call = Callable[..., Any]


def state_of(x: Any) -> dict[str, Any]:
    return {"a": torch.ones(2), "hostile": x}


CALLS: list[Call] = [
    lambda store, shelf, snap, path, x, y: lmcstore.open(x, mode="r"),
    lambda store, shelf, snap, path, x, y: lmcstore.open(path / "none", mode=x),
    lambda store, shelf, snap, path, x, y: lmcstore.open(path / "none", mode="r", size=x),
    lambda store, shelf, snap, path, x, y: lmcstore.open(path / "none", mode="r", expect=x),
    lambda store, shelf, snap, path, x, y: lmcstore.open(path / "none", mode="r", wait=x, threads=y),
    lambda store, shelf, snap, path, x, y: lmcstore.open(path / "none", "r", background=x, force_network=y),
    lambda store, shelf, snap, path, x, y: store[x],
    lambda store, shelf, snap, path, x, y: (x in store, list(store), len(store)),
    lambda store, shelf, snap, path, x, y: store[x].latest,
    lambda store, shelf, snap, path, x, y: store[x][y],
    lambda store, shelf, snap, path, x, y: store.verify(x),
    lambda store, shelf, snap, path, x, y: store.verify("run", x),
    lambda store, shelf, snap, path, x, y: store.dump(io.BytesIO(), x),
    lambda store, shelf, snap, path, x, y: store.dump(x, y) if not isinstance(x, int) else None,
    lambda store, shelf, snap, path, x, y: store.restore(x) if not isinstance(x, int) else None,
    lambda store, shelf, snap, path, x, y: store.compact(x),
    lambda store, shelf, snap, path, x, y: shelf[x],
    lambda store, shelf, snap, path, x, y: x in shelf,
    lambda store, shelf, snap, path, x, y: shelf.at(step=x),
    lambda store, shelf, snap, path, x, y: shelf.steps(x),
    lambda store, shelf, snap, path, x, y: shelf.remove(x, dry_run=True),
    lambda store, shelf, snap, path, x, y: shelf.tag(x, y),
    lambda store, shelf, snap, path, x, y: shelf.tag(1, x),
    lambda store, shelf, snap, path, x, y: shelf.untag(x),
    lambda store, shelf, snap, path, x, y: setattr(shelf, "keep_raw", x),
    lambda store, shelf, snap, path, x, y: setattr(shelf, "policy", x),
    lambda store, shelf, snap, path, x, y: shelf.prune(x, dry_run=True),
    lambda store, shelf, snap, path, x, y: shelf == x or hash(shelf) == 0 or snap == x,
    lambda store, shelf, snap, path, x, y: shelf.snapshot(x),
    lambda store, shelf, snap, path, x, y: shelf.snapshot(state_of(x)),
    lambda store, shelf, snap, path, x, y: shelf.snapshot({"a": 1}, step=x, parent=y),
    lambda store, shelf, snap, path, x, y: shelf.snapshot({"a": 1}, tags=x),
    lambda store, shelf, snap, path, x, y: shelf.snapshot({"a": 1}, tags=[x, y]),
    lambda store, shelf, snap, path, x, y: shelf.snapshot({"a": 1}, metrics=x),
    lambda store, shelf, snap, path, x, y: shelf.snapshot({"a": 1}, metrics={"m": x}),
    lambda store, shelf, snap, path, x, y: shelf.snapshot({"a": 1}, meta=x),
    lambda store, shelf, snap, path, x, y: shelf.snapshot({"a": 1}, meta={"m": x}),
    lambda store, shelf, snap, path, x, y: shelf.snapshot({"a": x}, wait=y).wait(),
    lambda store, shelf, snap, path, x, y: snap[x],
    lambda store, shelf, snap, path, x, y: snap[("model", x)],
    lambda store, shelf, snap, path, x, y: snap["model"]["w"][x],
    lambda store, shelf, snap, path, x, y: snap["model"]["w"][x, y],
    lambda store, shelf, snap, path, x, y: snap.state_dict(x),
    lambda store, shelf, snap, path, x, y: snap.load_into(x),
    lambda store, shelf, snap, path, x, y: snap.load_into(model=x),
    lambda store, shelf, snap, path, x, y: snap.load_into({"model": {"w": x}}),
    lambda store, shelf, snap, path, x, y: snap.export(path / "out", x),
    lambda store, shelf, snap, path, x, y: snap.export(path / "out", None, x),
    lambda store, shelf, snap, path, x, y: lmcstore.Run(store, shelf="run", x=x, y=y, rng=False).save(2).wait(),
    lambda store, shelf, snap, path, x, y: lmcstore.Run(store, shelf="run", x=[x], rng=False).save(3, wait=True),
    lambda store, shelf, snap, path, x, y: lmcstore.Run(store, shelf=x, policy=y, a={}),
    lambda store, shelf, snap, path, x, y: lmcstore.Run(x, model={}, rng=y) if isinstance(y, bytes) else None,
    lambda store, shelf, snap, path, x, y: lmcstore.Run(store, model={"w": x}, rng=False).resume(missing="ignore"),
    lambda store, shelf, snap, path, x, y: lmcstore.Run(store, n={"a": [x]}, rng=False).resume(x, missing=y),
    lambda store, shelf, snap, path, x, y: lmcstore.Run(store, n={"a": 1}).save(x, metrics=y, wait=True),
    lambda store, shelf, snap, path, x, y: codec.compress(x),
    lambda store, shelf, snap, path, x, y: codec.compress(bytes(64), base=x),
    lambda store, shelf, snap, path, x, y: codec.compress(bytes(64), dtype=x, level=y),
    lambda store, shelf, snap, path, x, y: codec.compress(bytes(64), threads=x),
    lambda store, shelf, snap, path, x, y: codec.decompress(x, base=y),
    lambda store, shelf, snap, path, x, y: codec.decompress(codec.compress(bytes(64)), out=x),
    lambda store, shelf, snap, path, x, y: codec.decompress(codec.compress(bytes(64)), threads=x),
    lambda store, shelf, snap, path, x, y: codec.info(x),
    lambda store, shelf, snap, path, x, y: codec.digest(x, y),
]

# The C module checks its arguments. (It trusts addresses.)
CORE_CALLS: list[Call] = [
    lambda pool, handle, x, y: _core.open(x, _core.OPEN_READ),
    lambda pool, handle, x, y: _core.open("/nowhere/x", _core.OPEN_READ, x, 0, y),
    lambda pool, handle, x, y: _core.open("/nowhere/x", _core.OPEN_READ, 0, 0, x, y),
    lambda pool, handle, x, y: _core.open("/nowhere/x", x, wait_ms=0),
    lambda pool, handle, x, y: pool.find(x, y),
    lambda pool, handle, x, y: pool.numbers("run", x, y),
    lambda pool, handle, x, y: pool.steps("run", x, y, 5),
    lambda pool, handle, x, y: pool.remove("run", x, True),
    lambda pool, handle, x, y: pool.tag_set("run", x, y),
    lambda pool, handle, x, y: pool.tag_remove(x, y),
    lambda pool, handle, x, y: pool.set_keep_raw("run", x),
    lambda pool, handle, x, y: pool.set_policy(x, y),
    lambda pool, handle, x, y: pool.prune("run", x, True),
    lambda pool, handle, x, y: pool.verify(x, y),
    lambda pool, handle, x, y: pool.shelf_info(x),
    lambda pool, handle, x, y: handle.view(x, y, 0),
    lambda pool, handle, x, y: handle.view(["model.w"], 0, x),
    lambda pool, handle, x, y: handle.view([x, y], 0, 0),
    lambda pool, handle, x, y: handle.export(x, "/nowhere/x", y),
    lambda pool, handle, x, y: _core.codec_compress(x, y, 1, 0, 1),
    lambda pool, handle, x, y: _core.codec_compress(b"abcd", None, x, y, 1),
    lambda pool, handle, x, y: _core.codec_decompress(x, y, None, 1),
    lambda pool, handle, x, y: _core.codec_info(x),
    lambda pool, handle, x, y: _core.codec_digest(b"abcd", x, y),
    lambda pool, handle, x, y: _core.dtype_info(x),
]

CAPTURE_CALLS: list[Call] = [
    lambda capture, x, y: capture.put([x], y, array.array("Q", [1]), array.array("q", [0]), b""),
    lambda capture, x, y: capture.put(x, array.array("I", [0x10101]), y, array.array("q", [0]), b""),
    lambda capture, x, y: capture.put(["t"], x, y, b"", b""),
    lambda capture, x, y: capture.put(["t"], array.array("I", [0x10101]), array.array("Q", [1]), x, y),
    lambda capture, x, y: capture.put_same([x], [y], array.array("I", [0x10101]), array.array("Q", [1])),
    lambda capture, x, y: capture.put_same(["t"], ["u"], array.array("I", [0x10001]), x),
    lambda capture, x, y: capture.put_same(["t"], ["u"], x, y),
    lambda capture, x, y: capture.put_attachment(x, y),
    lambda capture, x, y: capture.reserve(x, 1, y),
    lambda capture, x, y: capture.reserve("t", x, array.array("Q", [4])),
    lambda capture, x, y: capture.commit(x, y, 0, (), (), (), None, False),
    lambda capture, x, y: capture.commit(None, 0, x, (y,), (), (), None, False),
    lambda capture, x, y: capture.commit(None, 0, 0, (), (x,), (y,), None, False),
    lambda capture, x, y: capture.commit(None, 0, 0, x, y, (), None, False),
    lambda capture, x, y: capture.commit(None, 0, 0, (), (), (), x, y),
]


def of_an_argument(error: Exception) -> bool:
    """Whether a RuntimeError is torch's, about a tensor's truth or size."""
    return "Tensor" in str(error)


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = lmcstore.open(folder / "pool", size="512MiB", background=False)
        self.shelf = self.store["run"]
        self.good = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "n": [1, "two"]}
        self.shelf.snapshot(self.good, step=1, tags=["kept"])
        self.digest = self.shelf[1].digest

    def check(self) -> None:
        assert self.shelf[1].digest == self.digest
        files = {entry.name for entry in self.folder.iterdir()}
        assert files <= {"pool", "out"}, files
        for snapshot in self.shelf:
            if snapshot.number != 1:
                snapshot.state_dict()
                self.shelf.remove(snapshot)
        self.shelf.keep_raw = 4
        torch.set_default_device(None)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("arguments"))
    yield made
    made.check()
    assert made.store.verify()["damages"] == 0
    made.store.close()


common = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="LMCSTORE_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@common
@given(call=st.integers(0, len(CALLS) - 1), x=PLACES, y=PLACES)
def test_public_functions(world: World, call: int, x: int, y: int) -> None:
    count = len(world.shelf)
    try:
        CALLS[call](world.store, world.shelf, world.shelf[1], world.folder, VALUES[x](), VALUES[y]())
    except ALLOWED:
        assert len(world.shelf) == count
    except RuntimeError as error:
        assert of_an_argument(error) and len(world.shelf) == count
    world.check()


@common
@given(call=st.integers(0, len(CORE_CALLS) - 1), x=PLACES, y=PLACES)
def test_the_c_module(world: World, call: int, x: int, y: int) -> None:
    pool = world.store._pool
    try:
        CORE_CALLS[call](pool, pool.find("run", "1"), VALUES[x](), VALUES[y]())
    except CORE_ALLOWED:
        pass
    except RuntimeError as error:
        assert of_an_argument(error)
    world.check()


@common
@given(call=st.integers(0, len(CAPTURE_CALLS) - 1), x=PLACES, y=PLACES)
def test_captures_of_the_c_module(world: World, call: int, x: int, y: int) -> None:
    capture = world.store._pool.begin("run")
    count = len(world.shelf)
    try:
        CAPTURE_CALLS[call](capture, VALUES[x](), VALUES[y]())
    except CORE_ALLOWED:
        assert len(world.shelf) == count
    except RuntimeError as error:
        assert of_an_argument(error) and len(world.shelf) == count
    finally:
        capture.abort()
    if count != len(world.shelf):
        world.shelf.remove(world.shelf.latest)  # type: ignore[arg-type]
    world.check()


@pytest.mark.parametrize("number", [2**64 + 1, 2**65 + 1, -(2**64) + 1, 2**20000 + 1], ids=int.bit_length)
def test_a_number_is_never_cut_off(world: World, number: int) -> None:
    """Modulo 2**64 these are 1, an existing snapshot."""
    for call in (world.shelf.remove, lambda n: world.shelf.tag(n, "x"), world.shelf.__getitem__, world.shelf.steps):
        with pytest.raises(ALLOWED):
            call(number)
    for core in (world.store._pool.remove, lambda shelf, n: world.store._pool.tag_set(shelf, "x", n)):
        with pytest.raises((ValueError, OverflowError)):
            core("run", number)
    assert "kept" in world.shelf[1].tags and "x" not in world.shelf[1].tags


def test_what_changes_its_size_meanwhile(world: World) -> None:
    """A buffer is held in place, or copied."""
    data = bytearray(8 << 20)

    def shrink(*_: object) -> None:
        with pytest.raises(BufferError):
            data.clear()
        raise SpiteError

    frame = bytearray(codec.compress(bytes(data)))
    with memoryview(frame):
        assert codec.decompress(frame) == bytes(data)
    with pytest.raises(SpiteError), memoryview(data):
        shrink()


def test_nothing_is_kept(world: World) -> None:
    class Marker(Raising):
        pass

    def refuse() -> None:
        for state in (Marker(), {"a": Marker()}, [torch.ones(2), {"b": (Marker(),)}]):
            with pytest.raises(ALLOWED):
                world.shelf.snapshot(state)
            with pytest.raises(ALLOWED):
                codec.compress(state)

    for _ in range(100):
        refuse()
    gc.collect()
    assert not [found for found in gc.get_objects() if isinstance(found, Marker)]
    assert len(world.shelf) == 1
