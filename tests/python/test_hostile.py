# SPDX-License-Identifier: BSD-3-Clause
"""A snapshot's structure may be hostile: reading raises an error or gives plain data."""

from __future__ import annotations

import json
import random
import struct
from array import array
from typing import Any

import lmcstore
import pytest
from lmcstore import _core
from lmcstore._arrays import numpy as _numpy
from lmcstore._arrays.torch import torch_of
from lmcstore._state.scalars import MAX_DEPTH, Reader, pack
from lmcstore._state.skeleton import SKELETON, VALUES
from optional import HAS_TORCH, torch

REFUSED = lmcstore.DamagedError if HAS_TORCH else (lmcstore.DamagedError, lmcstore.UnsupportedError)
"""Without PyTorch some damage is not reached: its tensors are refused."""


def craft(shelf: lmcstore.Shelf, skeleton: Any, values: bytes = b"", tensors: tuple[str, ...] = ("t",)) -> Any:
    capture = shelf.store._pool.begin(shelf.name)
    data = array("f", [1.0, 2.0])
    count = len(tensors)
    capture.put(
        tensors,
        array("I", [_core.DTYPES["f32"] | 1 << 8] * count),
        array("Q", [2] * count),
        b"",
        array("Q", [data.buffer_info()[0]] * count),
    )
    text = skeleton if isinstance(skeleton, bytes) else json.dumps(skeleton).encode()
    capture.put_attachment(SKELETON, text)
    capture.put_attachment(f"{VALUES}0", values)
    return shelf[capture.commit(None, 0, 0, (), (), (), None, False)]


def document(root: Any, leaves: int = 0, version: int = 1) -> dict[str, Any]:
    return {"lmcstore": version, "leaves": leaves, "root": root}


GOOD = document(["d", ["t"], 1])


def nested(levels: int) -> Any:
    node: Any = 0
    for _ in range(levels):
        node = ["l", node]
    return node


BAD_SKELETONS = {
    "empty": b"",
    "no JSON": b"{",
    "binary": bytes(range(256)),
    "deep JSON": b"[" * 100_000,
    "huge number": b'{"lmcstore": 1, "leaves": ' + b"9" * 10_000 + b', "root": 0}',
    "a list": [],
    "no version": {"leaves": 0, "root": ["l"]},
    "version zero": {"lmcstore": 0, "leaves": 0, "root": ["l"]},
    "version true": {"lmcstore": True, "leaves": 0, "root": ["l"]},
    "no root": {"lmcstore": 1, "leaves": 0},
    "too many leaves": document(["l"], 10**12),
    "negative leaves": document(["l"], -1),
    "leaves as text": {"lmcstore": 1, "leaves": "1", "root": 0},
    "missing leaf": document(0, 0),
    "number": document(3),
    "float": document(1.0),
    "true": document(True),
    "text": document("t"),
    "null": document(None),
    "unknown tag": document(["x", 1]),
    "tag of another type": document([["l"], 1]),
    "tag 1": document([1, 1]),
    "dict without keys": document(["d"]),
    "dict with few keys": document(["d", ["a"], 1, 1]),
    "dict with many keys": document(["d", ["t", "u"], 1]),
    "keys as text": document(["d", "t", 1]),
    "float key": document(["d", [1.5], ["T", "t"]]),
    "list key": document(["d", [[1]], ["T", "t"]]),
    "bad hex key": document(["d", [["zz"]], ["T", "t"]]),
    "long key": document(["d", [[pack("x").hex() + "00"]], ["T", "t"]]),
    "unhashable key": document(["d", [[(b"l" + struct.pack("<I", 0)).hex()]], ["T", "t"]]),
    "the same key twice": document(["d", ["a", "a"], ["T", "t"], ["l"]]),
    "equal keys": document(["d", [1, True], ["T", "t"], ["l"]]),
    "missing tensor": document(["T", "other"]),
    "the same tensor twice": document(["l", ["T", "t"], ["T", "t"]]),
    "tensor without a name": document(["T"]),
    "tensor with a number": document(["T", 5]),
    "tensor with too much": document(["T", "t", 1, 2, 3]),
    "tie of text": document(["T", "t", "a", "b"]),
    "metadata missing": document(["O", []]),
    "array of a bad dtype": document(["A", "t", "O"]),
    "array of another dtype": document(["A", "t", "q"]),
    "array of a swapped dtype": document(["A", "t", ">f8"]),
    "array of text": document(["A", "t", "__import__"]),
    "array dtype list": document(["A", "t", ["f4"]]),
    "deep": document(nested(MAX_DEPTH + 5), 1),
}


BAD_PLAIN = {
    "unknown tag": ["x", 1],
    "tag alone": ["N"],
    "no class": ["N", 5, ["t"], 1],
    "no fields": ["N", "C", 1],
    "few fields": ["N", "C", [], 1],
    "many fields": ["N", "C", ["t", "u"], 1],
    "too many fields": ["N", "C", [f"x{i}" for i in range(300)], *[["l"]] * 300],
    "field twice": ["N", "C", ["t", "t"], 1, ["l"]],
    "keyword": ["N", "C", ["def"], ["T", "t"]],
    "no identifier": ["N", "C", ["a b"], ["T", "t"]],
    "code": ["N", "C", ["x=print(1)"], ["T", "t"]],
    "underscore": ["N", "C", ["_make"], ["T", "t"]],
    "underscore of another place": ["N", "C", ["_1"], ["T", "t"]],
    "fields that Python folds": ["N", "C", ["\u212a", "K"], ["T", "t"], ["l"]],
    "number as field": ["N", "C", [1], ["T", "t"]],
    "field of a dataclass twice": ["c", "C", ["t", "t"], 1, ["l"]],
    "number as dataclass's field": ["c", "C", [1], ["T", "t"]],
    "dataclass without a class": ["c", None, ["t"], 1],
    "enum without a class": ["E", None],
    "enum with more": ["E", "C", 1],
    "enum without a leaf": ["E", "C"],
    "unknown kind": ["v", "pickle"],
    "kind of another type": ["v", ["Path"]],
    "kind without a leaf": ["v", "Path"],
    "negative maxlen": ["Q", -1],
    "huge maxlen": ["Q", 2**64],
    "maxlen true": ["Q", True, ["T", "t"]],
    "longer than maxlen": ["Q", 0, ["T", "t"]],
    "factory": ["D", "eval", ["t"], 1],
    "factory of another type": ["D", ["int"], ["t"], 1],
    "keys as text": ["D", "int", "t", 1],
    "equal keys": ["D", "int", [1, True], ["T", "t"], ["l"]],
    "deep": [nested(MAX_DEPTH + 5)],
    "described dtype of another size": ["A", "t", 'numpy:"|V4"'],
    "described dtype of objects": ["A", "t", 'numpy:"|O"'],
    "described dtype, no JSON": ["A", "t", "numpy:("],
    "described dtype, deep": ["A", "t", "numpy:" + "[" * 100_000],
    "huge dtype": ["A", "t", 'numpy:"|V2000000000"'],
    "empty dtype": ["A", "t", 'numpy:"|V0"'],
}


@pytest.mark.parametrize("name", BAD_PLAIN)
def test_bad_plain_nodes(shelf: lmcstore.Shelf, name: str) -> None:
    snapshot = craft(shelf, document(BAD_PLAIN[name], version=2))
    with pytest.raises(REFUSED):
        snapshot.state_dict()
    assert snapshot.names() == ["t"]


BAD_LEAVES: dict[str, list[Any]] = {
    "Path": [1, None, b"x", ("x",)],
    "PureWindowsPath": [1],
    "datetime": [(), (1, 1), (2020, 13, 1, 0, 0, 0, 0, 0, None), (2**70, 1, 1, 0, 0, 0, 0, 0, None), "2020", 5],
    "date": [(), (0, 1, 1), (1.5, 1, 1), None],
    "time": [(25, 0, 0, 0, 0, None), (1,), (1, 0, 0, 0, 2, None)],
    "timedelta": [(), ("a", 0, 0), (10**30, 0, 0), None],
    "timezone": ["../../etc/passwd", "/etc/localtime", "", "a//b", "..", (1, 2), (10**9, 0, 0, None), 5],
    "str_": [1, b"x", None],
    "bytes_": [1, "x", 10**12],
    "numpy": [
        1,
        (),
        ("numpy:", b""),
        ('numpy:"|O"', bytes(8)),
        ('numpy:"<M8[s]"', b"x"),
        ('numpy:"|V0"', b""),
        ("i4", 4),
    ],
}


@pytest.mark.parametrize("kind", BAD_LEAVES)
def test_bad_leaves_of_plain_values(shelf: lmcstore.Shelf, kind: str) -> None:
    for leaf in BAD_LEAVES[kind]:
        with pytest.raises(lmcstore.DamagedError):
            craft(shelf, document(["v", kind], 1, 2), pack(leaf), ()).state_dict()
    for leaf in (1, (), (1, 2, 3), None):
        with pytest.raises(lmcstore.DamagedError):
            craft(shelf, document(["E", "C"], 1, 2), pack(leaf), ()).state_dict()


@pytest.mark.parametrize("name", BAD_SKELETONS)
def test_bad_skeletons(shelf: lmcstore.Shelf, name: str) -> None:
    snapshot = craft(shelf, BAD_SKELETONS[name], b"N" if name == "deep" else b"")
    with pytest.raises(REFUSED):
        snapshot.state_dict()
    assert snapshot.names() == ["t"]


def test_good_skeletons(shelf: lmcstore.Shelf) -> None:
    pytest.importorskip("torch")
    assert craft(shelf, GOOD).state_dict()["t"].tolist() == [1, 2]
    assert craft(shelf, document(nested(50), 1), b"T").state_dict() is not None
    tied = craft(shelf, document(["l", ["T", "a", 0, 0], ["T", "b", 0, 1]]), tensors=("a", "b")).state_dict()
    assert tied[0].data_ptr() == tied[1].data_ptr()


def test_newer_versions_are_not_guessed(shelf: lmcstore.Shelf) -> None:
    with pytest.raises(lmcstore.UnsupportedError, match="update"):
        craft(shelf, {"lmcstore": 3, "something": "new"}).state_dict()


LONG = struct.pack("<I", 0xFFFFFFFF)
BAD_VALUES = {
    "nothing": b"",
    "unknown": b"?",
    "pickle": b"\x80\x04K\x01.",
    "short float": b"f1234",
    "short length": b"s\0\0",
    "long text": b"s" + LONG,
    "bad text": b"s\1\0\0\0\xff",
    "long list": b"l" + LONG + b"N" * 100,
    "long numbers": b"q" + LONG + b"N" * 100,
    "short numbers": b"d\2\0\0\0" + bytes(15),
    "unhashable in a set": b"S\1\0\0\0l\0\0\0\0",
    "twice in a set": b"S\2\0\0\0TT",
    "equal in a set": b"S\2\0\0\0T" + pack(1),
    "no dtype": b"y\6Tensor",
    "no dtype either": b"y\7__doc__",
    "dtype not ASCII": b"y\1\xff",
    "unknown dtype": b"y\3abc",
    "bad device": b"v\3abc\0\0\0\0",
    "bad numpy": b"nO" + bytes(8),
    "numpy void": b"nV" + bytes(8),
    "deep": b"t\1\0\0\0" * 5000 + b"N",
    "missing attachment": b"R\5\0\0\0",
    "nested attachment": b"l\1\0\0\0R\0\0\0\0",
    "too much": b"NN",
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_bad_values(shelf: lmcstore.Shelf, name: str) -> None:
    snapshot = craft(shelf, document(0, 1), BAD_VALUES[name], ())
    with pytest.raises(REFUSED):
        snapshot.state_dict()


def test_random_values() -> None:
    """Random and broken bytes soon give values or DamagedError."""
    generator = random.Random(1)
    good = pack((1, "x", b"y", 2.5, frozenset({1, 2}), (None, True), torch.float32, torch.Size([1, 2])))
    for _ in range(20_000):
        data = bytearray(good) if generator.random() < 0.7 else bytearray(generator.randbytes(40))
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        try:
            Reader(bytes(data)).value()
        except lmcstore.DamagedError:
            pass


def test_random_skeletons(shelf: lmcstore.Shelf) -> None:
    generator = random.Random(2)
    good = json.dumps(document(["d", ["t", 1, ["6e"]], 1, ["l", 0, 0], ["O", [], ["d", []]]], 2)).encode()
    plain = [
        "d",
        ["t", 1, "p"],
        ["Q", 2, 1],
        ["N", "m.C", ["x"], 0],
        ["c", "C", ["y"], ["D", "int", [1], ["v", "Path"]]],
    ]
    new = json.dumps(document(plain, 2, 2)).encode()
    shared = ["d", ["t", "s", 1], ["V", 1, 0, 0, [4]], ["V", 2, 0, 12, [-4]], ["V", ["T", "u"], 1, 4, [8]]]
    sharing = json.dumps(document(shared, version=2) | {"storages": [16, 24]}).encode()
    for turn in range(600):
        data = bytearray((good, new, sharing)[turn % 3])
        for _ in range(generator.randrange(1, 4)):
            data[generator.randrange(len(data))] = generator.choice(b'0123"[],{}TAdlotOCQNcDEvV-')
        values, names = ((b"NT", "t"), (b"N" + pack("x"), "t"), (b"", "tsu"))[turn % 3]
        try:
            craft(shelf, bytes(data), values, tuple(names)).state_dict()
        except (lmcstore.DamagedError, lmcstore.UnsupportedError):
            pass


def test_a_snapshot_without_a_structure_is_flat(shelf: lmcstore.Shelf) -> None:
    capture = shelf.store._pool.begin("flat")
    data = torch.arange(4, dtype=torch.float32)
    names = ["model.a.weight", "model.b", "x"]
    capture.put(
        names,
        array("I", [_core.DTYPES["f32"] | 1 << 8] * 3),
        array("Q", [4] * 3),
        b"",
        array("Q", [data.data_ptr()] * 3),
    )
    capture.commit(None, 0, 0, (), (), (), None, False)
    snapshot = shelf.store["flat"].latest
    state = snapshot.state_dict()
    assert list(state) == names and all(torch.equal(tensor, data) for tensor in state.values())
    assert torch.equal(snapshot["model.a.weight"], data)
    assert list(snapshot["model"]) == ["a.weight", "b"]
    with pytest.raises(KeyError):
        snapshot["y"]
    module = torch.nn.Module()
    module.b = torch.nn.Parameter(torch.zeros(4))
    module.a = torch.nn.Module()
    module.a.weight = torch.nn.Parameter(torch.zeros(4))
    snapshot.load_into(model=module)
    assert torch.equal(module.b.detach(), data)


ONE_HASH = 2**61 - 1  # the modulus of Python's hashes of numbers

ALIKE: dict[str, Any] = {
    "ints": lambda k: k * ONE_HASH,
    "tuples": lambda k: (1, k * ONE_HASH),
}


@pytest.mark.parametrize("kind", ["ints", "tuples"])
def test_keys_of_one_hash(shelf: lmcstore.Shelf, kind: str) -> None:
    """Refused before a dict or set is made: 100,000 would take a minute."""
    keys = [ALIKE[kind](k) for k in range(1, 20_001)]
    assert len({hash(key) for key in keys}) == 1
    skeleton = document(["d", [[pack(key).hex()] for key in keys], *[["l"]] * len(keys)])
    with pytest.raises(lmcstore.DamagedError, match="same hash"):
        craft(shelf, skeleton).state_dict()
    for tag in (b"S", b"z"):
        values = tag + struct.pack("<I", len(keys)) + b"".join(map(pack, keys))
        with pytest.raises(lmcstore.DamagedError, match="same hash"):
            craft(shelf, document(["d", ["s"], 0], 1), values).state_dict()
    with pytest.raises(lmcstore.UnsupportedError):
        shelf.snapshot({"s": set(keys[:600])})
    with pytest.raises(lmcstore.UnsupportedError, match="same hash"):
        shelf.snapshot({"d": dict.fromkeys(keys[:600], 0)})


def test_many_keys_of_many_hashes(shelf: lmcstore.Shelf) -> None:
    many = range(3000)
    for keys in (many, [k / 7 for k in many], [(k, "x") for k in many], [2**k for k in range(900)]):
        state = {"d": dict.fromkeys(keys, 1), "s": set(keys)}
        assert shelf.snapshot(state).state_dict() == state


def test_a_dtype_imports_nothing(run_python: Any) -> None:
    code = """
import sys
import torch
from lmcstore import DamagedError
from lmcstore._state.scalars import Reader
for name in ("onnx", "_inductor", "float32_", "nn", "__name__"):
    before = set(sys.modules)
    try:
        Reader(b"y" + bytes([len(name)]) + name.encode()).value()
    except DamagedError:
        pass
    else:
        raise SystemExit(f"{name} was read")
    if set(sys.modules) != before:
        raise SystemExit(f"{name} was imported")
assert Reader(b"y\\x07float32").value() is torch.float32
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def take_with_meta(shelf: lmcstore.Shelf, text: str) -> int:
    capture = shelf.store._pool.begin(shelf.name)
    number: int = capture.commit(None, 0, 0, (), (), (), text, False)
    return number


def test_deep_metadata(shelf: lmcstore.Shelf) -> None:
    def nested_text(levels: int, opening: str = '{"a":', closing: str = "}") -> str:
        return '{"a":' + opening * (levels - 1) + "1" + closing * (levels - 1) + "}"

    for levels in (1, 200):
        number = take_with_meta(shelf, nested_text(levels))
        assert json.dumps(shelf[number].meta, separators=(",", ":")) == nested_text(levels)
    for levels in (201, 1500, 1900):
        for pair in (('{"a":', "}"), ("[", "]")):
            with pytest.raises(lmcstore.InvalidError, match="nested too deeply"):
                take_with_meta(shelf, nested_text(levels, *pair))


def test_empty_and_far_too_large(shelf: lmcstore.Shelf) -> None:
    huge = 2**62
    for shape in ((0, huge, huge, huge), (huge, 0, huge)):
        capture = shelf.store._pool.begin(shelf.name)
        dims = len(shape) << 8
        with pytest.raises(lmcstore.InvalidError, match="impossibly large"):
            capture.put(("z",), array("I", [_core.DTYPES["f32"] | dims]), array("Q", shape), b"", array("Q", [0]))
        capture.abort()
        with pytest.raises(lmcstore.InvalidError):
            shelf.live.create("z", shape, "float32")
    shape = (0, huge, huge, huge)
    with pytest.raises(lmcstore.UnsupportedError, match="empty tensor of shape"):
        torch_of(torch).tensor(None, _core.DTYPES["f32"], shape)  # type: ignore[arg-type]
    with pytest.raises(lmcstore.UnsupportedError, match="z: NumPy can't make an empty array of shape"):
        _numpy.array(None, _core.DTYPES["f32"], shape, None, "z")  # type: ignore[arg-type]
    assert shelf.snapshot({"w": torch.empty(0, 3)})["w"].shape == (0, 3)
