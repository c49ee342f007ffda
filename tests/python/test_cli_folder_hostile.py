# SPDX-License-Identifier: BSD-3-Clause
"""The command lmc-store on records that are damaged or forged: exit 0 or 1, one message, no crash."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmcstore
import pytest
import run_folder
from command import NEEDS_BIN
from lmcstore import _core
from lmcstore._state.decode import Decoded
from lmcstore._state.encode import Encoded
from lmcstore._state.scalars import pack
from lmcstore._state.skeleton import SKELETON, VALUE, VALUES
from test_cli_folder import as_json
from test_cli_hostile import attempt

pytestmark = [NEEDS_BIN, pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning")]

RECORDS = "records.pool"
State = dict[str, Any]


@pytest.fixture(scope="module")
def good() -> Iterator[Path]:
    """A folder with one snapshot of two ranks."""
    with run_folder.in_memory() as made:
        folder = made / "run"
        state = {name: one for name, one in run_folder.arrays(1).items() if name != "large"}
        values = {"config": {"lr": 0.1, "deep": [[1], (2, "x")], "set": {1, 2}}, "text": "x" * 5000, "f": [1.0, 2.0]}
        run_folder.save(folder, 1, state, world=2, values=values)
        run_folder.close(folder)
        yield folder


@pytest.fixture
def folder(good: Path) -> Iterator[Path]:
    """A copy of it."""
    with tempfile.TemporaryDirectory(prefix="lmcs-test-", dir=good.parent.parent) as made:
        subprocess.run(["cp", "-r", "--sparse=always", good, Path(made, "run")], check=True)
        yield Path(made, "run")


def record_of(folder: Path) -> State:
    """Return the record's state."""
    with lmcstore.open(folder / RECORDS, mode="r") as store:
        state: State = store["run"][1].state_dict()
        return state


def put(folder: Path, attachments: dict[str, bytes]) -> None:
    """Add a record of these attachments."""
    with lmcstore.open(folder / RECORDS) as store:
        capture = store._pool.begin("run")
        for name, data in attachments.items():
            capture.put_attachment(name, data)
        capture.commit(None, 0, 0, (), (), (), None, False)


def attachments_of(folder: Path) -> dict[str, bytes]:
    with lmcstore.open(folder / RECORDS, mode="r") as store:
        view = store["run"][1]._handle.view(None, _core.ATTACHMENT, _core.VIEW_VERIFY)
        names, kinds, _, _, buffers = view.unpack()
        both = zip(names, kinds, buffers, strict=True)
        return {name: bytes(data) for name, kind, data in both if kind == _core.ATTACHMENT and name.startswith("lmc")}


def check(folder: Path, address: str, allowed: tuple[int, ...] = (0, 1)) -> set[str]:
    """Run the commands that read a record; return their messages."""
    output = folder.parent / "out"
    said = set()
    for command in (
        ["ls", folder, address],
        ["ls", folder],
        ["verify", folder],
        ["export", folder, address, "-o", output],
        ["diff", folder, "run@1", address],
        ["info", folder],
    ):
        code, message = attempt(*command, allowed=allowed)
        said |= {message} if code else set()
        assert output.exists() == (code == 0 and command[0] == "export")
        output.unlink(missing_ok=True)
    return said


def layout(*numbers: int) -> bytes:
    return array("q", numbers).tobytes()


def changed(part: str, value: Any) -> Callable[[State], None]:
    """Set a part of the record, by a dotted path."""

    def change(state: State) -> None:
        *way, last = part.split(".")
        place: Any = state
        for key in way:
            place = place[key]
        place[last] = value

    return change


def rank(**fields: Any) -> Callable[[State], None]:
    """Change the part of rank 0."""

    def change(state: State) -> None:
        ranks = state["lmcstore_run"]["ranks"]
        known = dict(zip(("pool", "file", "number", "group"), ranks[0], strict=True))
        ranks[0] = tuple({**known, **fields}.values())

    return change


def first_dtype(name: Any) -> Callable[[State], None]:
    return lambda state: state["tensors"]["dtypes"].__setitem__(0, name)


def first_number(index: int, number: int) -> Callable[[State], None]:
    """Change a number of the layout."""

    def change(state: State) -> None:
        numbers = array("q", state["tensors"]["layout"])
        numbers[index] = number
        state["tensors"]["layout"] = numbers.tobytes()

    return change


BIG = (1 << 63) - 1
BAD: dict[str, Callable[[State], Any]] = {
    **{f"no {part}": (lambda state, part=part: state.pop(part)) for part in ("lmcstore_run", "names", "tensors")},
    **{f"no {part}": (lambda state, part=part: state.pop(part)) for part in ("opaque", "values")},
    "version 0": changed("lmcstore_run.version", 0),
    "version 2": changed("lmcstore_run.version", 2),
    "version is text": changed("lmcstore_run.version", "1"),
    "version is huge": changed("lmcstore_run.version", 1 << 80),
    "no ranks": changed("lmcstore_run.ranks", None),
    "ranks of text": changed("lmcstore_run.ranks", {"one": (b"x" * 16, "rank-0.pool", 1, b"x" * 16)}),
    "negative world": changed("lmcstore_run.world_size", -1),
    "head is a list": changed("lmcstore_run", [1, 2]),
    "rank lacks fields": lambda state: state["lmcstore_run"]["ranks"].__setitem__(0, (b"x" * 16, "rank-0.pool")),
    "negative rank": lambda state: state["lmcstore_run"]["ranks"].__setitem__(-1, state["lmcstore_run"]["ranks"][0]),
    "short uuid": rank(pool=b"x" * 15),
    "long group": rank(group=b"x" * 17),
    "a path": rank(file="../rank-00000.pool"),
    "dots": rank(file=".."),
    "a NUL": rank(file="a\0b"),
    "number 0": rank(number=0),
    "number is text": rank(number="1"),
    "names are no list": changed("names", 5),
    "a name is a number": lambda state: state["names"].__setitem__(0, 7),
    "a name twice": lambda state: state["names"].__setitem__(0, state["names"][1]),
    "a name with a NUL": lambda state: state["names"].__setitem__(0, "a\0b"),
    "fewer names": lambda state: state["names"].pop(0),
    "more names": lambda state: state["names"].insert(0, "more"),
    "tensors are no dict": changed("tensors", []),
    "unknown dtype": first_dtype("f33"),
    "dtype is a number": first_dtype(3),
    "fewer dtypes": lambda state: state["tensors"]["dtypes"].pop(),
    "layout is text": changed("tensors.layout", "xxxxxxxx"),
    "layout is empty": changed("tensors.layout", b""),
    "layout is odd": lambda state: changed("tensors.layout", state["tensors"]["layout"] + b"x")(state),
    "layout is longer": lambda state: changed("tensors.layout", state["tensors"]["layout"] + layout(0))(state),
    "layout is shorter": lambda state: changed("tensors.layout", state["tensors"]["layout"][:-8])(state),
    "many dimensions": first_number(0, 33),
    "negative dimensions": first_number(0, -1),
    "huge dimensions": first_number(0, BIG),
    "huge shape": first_number(1, BIG),
    "negative shape": first_number(1, -7),
    "many boxes": first_number(3, BIG),
    "negative boxes": first_number(3, -1),
    "unknown rank": first_number(4, 9),
    "negative offset": first_number(5, -1),
    "large offset": first_number(5, BIG),
    "large box": first_number(7, 99),
    "negative box": first_number(7, -1),
    "stored is no list": changed("tensors.stored", 1),
    "stored outside": changed("tensors.stored", [(99, 0, "x")]),
    "stored outside of the boxes": changed("tensors.stored", [(0, 99, "x")]),
    "stored lacks fields": changed("tensors.stored", [(0, 0)]),
    "stored is negative": changed("tensors.stored", [(-1, 0, "x")]),
    "stored as a number": changed("tensors.stored", [(0, 0, 1)]),
    "opaque is no dict": changed("opaque", 3),
}

ONLY_HERE = {"a name with a NUL", "stored outside", "stored outside of the boxes"}
"""Damage that Python does not look for."""


@pytest.mark.parametrize("kind", BAD)
def test_a_record_that_contradicts_itself(folder: Path, kind: str) -> None:
    state = record_of(folder)
    BAD[kind](state)
    with lmcstore.open(folder / RECORDS) as store:
        store["run"].snapshot(state)
    said = check(folder, "run@2")
    assert any("the record" in message and "run@2" in message for message in said), said
    if kind not in ONLY_HERE:
        with lmcstore.open(folder, mode="r") as run, pytest.raises((lmcstore.DamagedError, lmcstore.UnsupportedError)):
            run["run"][2].names()
    assert as_json("ls", folder, "run@1")["snapshot"]["tensors"] == 6
    attempt("rm", folder, "run@2", allowed=(0,))
    assert attempt("verify", folder, allowed=(0,))[0] == 0


FORGED: dict[str, Callable[[State], Any]] = {
    "another stored tensor": changed("tensors.stored", [(0, 0, "same")]),
    "no stored tensor": changed("tensors.stored", [(0, 0, "none")]),
    "a stored name of no tensor": changed("tensors.stored", [(0, 0, "\x01\n")]),
    "another dtype": first_dtype("f64"),
    "a box in the wrong place": first_number(5, 3),
    "a larger tensor": first_number(1, 1 << 40),
    "another group": rank(group=b"x" * 16),
    "another pool": rank(pool=b"x" * 16),
    "a name of control characters": lambda state: state["names"].__setitem__(0, "\x1b[31m\n"),
    "a long name": lambda state: state["names"].__setitem__(0, "x" * 100_000),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_record_that_is_not_of_its_parts(folder: Path, kind: str) -> None:
    state = record_of(folder)
    FORGED[kind](state)
    with lmcstore.open(folder / RECORDS) as store:
        store["run"].snapshot(state)
    check(folder, "run@2")
    for command in (["log"], ["verify", "run@2"], ["diff", "run@2", "@1"], ["rm", "run@2", "--dry-run"]):
        attempt(command[0], folder, *command[1:], allowed=(0, 1))


def test_states_that_are_no_records(folder: Path) -> None:
    with lmcstore.open(folder / RECORDS) as store:
        store["run"].snapshot({"a": 1})
        store["run"].snapshot([1, 2])
        capture = store._pool.begin("run")
        capture.put_attachment("mine", b"x")
        capture.commit(None, 0, 0, (), (), (), None, False)
    for address in ("run@2", "run@3", "run@4"):
        assert all("record" in message or "no part" in message for message in check(folder, address))
    assert "run@2: the record of a run's snapshot is damaged" in attempt("ls", folder, "run@2")[1]


SKELETONS: dict[str, Any] = {
    "empty": b"",
    "no JSON": b"{",
    "binary": bytes(range(256)),
    "deep JSON": b"[" * 100_000,
    "deep nodes": b'{"lmcstore":1,"leaves":1,"root":["d",["lmcstore_run"],' + b'["l",' * 1500 + b"0" + b"]" * 1502,
    "a list": [],
    "version 3": {"lmcstore": 3, "leaves": 0, "root": 0},
    "no root": {"lmcstore": 1, "leaves": 0},
    "root is a leaf": {"lmcstore": 1, "leaves": 1, "root": 0},
    "no keys": {"lmcstore": 1, "leaves": 0, "root": ["d"]},
    "more keys": {"lmcstore": 1, "leaves": 0, "root": ["d", ["lmcstore_run", "names"], 0]},
    "unknown node": {"lmcstore": 1, "leaves": 0, "root": ["d", ["lmcstore_run"], ["x"]]},
    "empty node": {"lmcstore": 1, "leaves": 0, "root": ["d", ["lmcstore_run"], []]},
    "metadata is missing": {"lmcstore": 1, "leaves": 0, "root": ["d", ["lmcstore_run"], ["O", []]]},
    "short N": {"lmcstore": 2, "leaves": 0, "root": ["d", ["lmcstore_run"], ["N", "x"]]},
    "more leaves": {"lmcstore": 1, "leaves": 9, "root": ["d", ["a", "b", "lmcstore_run"], 0, 0, 0]},
}


@pytest.mark.parametrize("kind", SKELETONS)
def test_skeletons_that_are_forged(folder: Path, kind: str) -> None:
    skeleton = SKELETONS[kind]
    data = skeleton if isinstance(skeleton, bytes) else json.dumps(skeleton).encode()
    put(folder, {SKELETON: data, f"{VALUES}0": pack(1)})
    assert check(folder, "run@2")


VALUES_OF = {
    "empty": b"",
    "unknown tag": b"?",
    "cut": b"s\x05\x00\x00\x00ab",
    "huge text": b"s\xff\xff\xff\xff",
    "huge list": b"l\xff\xff\xff\xff",
    "huge numbers": b"q\xff\xff\xff\xff",
    "deep list": b"l\x01\x00\x00\x00" * 5000 + b"N",
    "huge dtype": b"y\xff",
    "device": b"v\x01",
    "NumPy": b"nz",
    "NumPy cut": b"nd\x00",
    "complex": b"c\x00",
    "large": b"R\x00\x00\x00\x00",
    "large of another": b"R\x07\x00\x00\x00",
    "large cut": b"R\x00",
    "large in a list": b"l\x01\x00\x00\x00R\x00\x00\x00\x00",
}


@pytest.mark.parametrize("kind", VALUES_OF)
def test_values_that_are_forged(folder: Path, kind: str) -> None:
    root = ["d", ["lmcstore_run", "names"], 0, 0]
    put(
        folder,
        {
            SKELETON: json.dumps({"lmcstore": 1, "leaves": 2, "root": root}).encode(),
            f"{VALUES}0": VALUES_OF[kind] * 2,
            f"{VALUE}0": b"\xff" * 9,
        },
    )
    assert check(folder, "run@2")


def _mutated(data: bytes, generator: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 8))):
        at = generator.randrange(len(made))
        match generator.randrange(4):
            case 0:
                made[at] ^= 1 << generator.randrange(8)
            case 1:
                made[at] = generator.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del made[at : at + generator.choice((1, 4, 8))]
            case _:
                made[at:at] = generator.randbytes(generator.choice((1, 4, 8)))
        if not made:
            return b""
    return bytes(made)


@pytest.mark.parametrize("seed", range(int(os.environ.get("LMCS_FUZZ_RECORDS", "4"))))
def test_records_of_random_bytes(folder: Path, seed: int) -> None:
    """Attachments of a good record, changed at random."""
    generator = random.Random(seed)
    found = attachments_of(folder)
    assert SKELETON in found and f"{VALUE}0" in found
    for number in range(2, 12):
        name = generator.choice(list(found))
        put(folder, {**found, name: _mutated(found[name], generator)})
        attempt("ls", folder, f"run@{number}", allowed=(0, 1))
        attempt("export", folder, f"run@{number}", "-o", folder.parent / "out", allowed=(0, 1))
        attempt("diff", folder, "run@1", f"run@{number}", allowed=(0, 1))
        (folder.parent / "out").unlink(missing_ok=True)
    check(folder, "run@1")


def test_records_that_python_reads_are_read(folder: Path) -> None:
    """All types of values pass the decoder, in a record of many leaves."""
    state = record_of(folder)
    plain = [None, True, 1 << 70, -5, 1.5, 1j, b"x", "é", [], ()]
    more = {f"value {index}": value for index, value in enumerate(plain)}
    more |= {"list": [1, "a", None], "nested": {"a": [{"b": (1, [2.0])}], 5: {"c": {1, 2}}}, "long": "y" * 9000}
    more |= {f"many {index}": index for index in range(9000)}
    first = {"before": {"deep": [{"x": 1}, "y" * 5000]}}
    state["names"] += list(more)
    state["values"] |= more
    with lmcstore.open(folder / RECORDS) as store:
        store["run"].snapshot({**first, **state})
        assert isinstance(Encoded(state), Encoded) and isinstance(store["run"][2]._decode(), Decoded)
    found = as_json("ls", folder, "run@2")["snapshot"]
    assert found["tensors"] == 6 and found["values"] == len(more) + 3
    assert check(folder, "run@2", allowed=(0,)) == set()
