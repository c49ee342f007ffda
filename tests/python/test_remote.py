# SPDX-License-Identifier: BSD-3-Clause
"""Places, states and outlines of a run in an object store."""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore import archive
from lmcstore._remote import codec, command, outline, state
from lmcstore._remote.files import MemoryClient
from lmcstore._remote.place import Place

WRITER = "0" * 31 + "1"


@pytest.fixture(params=["file", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = {
        "file": f"file://{tmp_path}/bucket",
        "memory": f"memory://{secrets.token_hex(8)}",
    }.get(request.param)
    if url is None:
        url = request.getfixturevalue("bucket")
    with Place(url) as place:
        yield place


def test_objects(place: Place) -> None:
    place.put("data/a/0", b"hello")
    place.put("data/a/0", b"hello again")
    assert place.get("data/a/0") == b"hello again"
    place.put("data/b/0", b"", b"a" * 70_000, memoryview(b"hello")[1:3], b"b" * 70_000)
    assert place.get("data/b/0") == b"a" * 70_000 + b"el" + b"b" * 70_000
    place.delete(["data/b/0"])
    assert place.get_range("data/a/0", 6, 5) == b"again"
    assert place.get_ranges([("data/a/0", 0, 1), ("data/a/0", 1, 4)] * 20) == [b"h", b"ello"] * 20
    assert place.create("log/1", b"one") and place.create("log/1", b"one")
    assert not place.create("log/1", b"two") and not place.create("log/1", b"on")
    assert place.get("log/1") == b"one"
    assert [(info.name, info.bytes) for info in place.list("data")] == [("data/a/0", 11)]
    assert place.exists("log/1") and not place.exists("log/2")
    place.delete(["log/1", "log/1", "log/9"])
    assert not place.exists("log/1") and list(place.list("log")) == []


def test_what_is_missing_is_named(place: Place) -> None:
    with pytest.raises(lmcstore.NotFoundError, match=r"log/1: there is no such object"):
        place.get("log/1")
    place.put("data/a/0", b"hello")
    for offset, count in ((0, 6), (3, 3), (7, 2)):
        with pytest.raises(lmcstore.DamagedError, match=r"data/a/0 is cut short"):
            place.get_range("data/a/0", offset, count)
    with pytest.raises(lmcstore.DamagedError, match=r"data/a/0 is damaged: .*5 bytes, more than 4"):
        place.get("data/a/0", 4)
    for name in ("", "../x", "a/../b", "/etc/passwd", "a//b", "a b", "ä"):
        with pytest.raises(lmcstore.InvalidError):
            place.get(name)


def test_one_of_many_creates(place: Place) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        if place.create("log/1", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and place.get("log/1") == b"%d" % won[0]


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("s3://key:secret@bucket/run", lmcstore.InvalidError),
        ("https://host/run?sig=secret", lmcstore.InvalidError),
        ("s3://", lmcstore.UnsupportedError),
        ("ftp://host/run", lmcstore.UnsupportedError),
        ("file:///a/../b", lmcstore.InvalidError),
        ("file:///a/%2e%2E/b", lmcstore.InvalidError),
        ("file:///a/..%2fb", lmcstore.InvalidError),
        ("s3://bucket/run/.%2e/other", lmcstore.InvalidError),
        ("file://host/b", lmcstore.InvalidError),
        ("file:b", lmcstore.InvalidError),
        ("s3://bucket/..", lmcstore.InvalidError),
        ("s3://bucket/\0", lmcstore.InvalidError),
        ("s3://[", lmcstore.InvalidError),
        (b"s3://bucket", lmcstore.UnsupportedError),
        (None, lmcstore.UnsupportedError),
    ],
)
def test_urls_that_are_refused(url: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        Place(url)
    assert "secret" not in str(caught.value) or "secret@" not in str(caught.value)


def test_a_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr("lmcstore._remote.place._FIRST_PAUSE_S", 0.001)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        set_keys(monkeypatch, f"http://127.0.0.1:{port}")
        with (
            Place("s3://bucket/run") as place,
            pytest.raises(
                lmcstore.InputOutputError,
                match=r"s3://bucket/run/head: 6 tries .*Check the network",
            ) as caught,
        ):
            place.get("head")
        assert "a-secret" not in str(caught.value)


def test_a_server_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setattr("lmcstore._remote.place._FIRST_PAUSE_S", 0.001)
    monkeypatch.setenv("LMC_STORE_REMOTE_TIMEOUT", "0.2")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        set_keys(monkeypatch, f"http://127.0.0.1:{listener.getsockname()[1]}")
        with (
            Place("s3://bucket/run") as place,
            pytest.raises(lmcstore.InputOutputError, match="6 tries"),
        ):
            place.put("head", b"x")


def set_keys(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a-key",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)


def test_keys_from_a_profile(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[lab]\naws_access_key_id = a-key\naws_secret_access_key = a-secret\n")
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    (tmp_path / "config").write_text(f"[profile lab]\nregion = us-east-1\nendpoint_url = {endpoint}\n")
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
    ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with Place(bucket) as place:
        place.put("head", b"x")
        assert place.get("head") == b"x"


# States


def an_entry(number: int, **others: Any) -> codec.Entry:
    kept = codec.Archive("data/" + "1" * 20 + "-" + "a" * 16, 0, 4096, 1 << 20, 4096, 100, "b" * 32)
    fields = {"step": number, "time_ns": number, "parent": number - 1, "raw_bytes": 10, "tensors": 1, "metrics": {},
              "note": "", "hidden": False, "base": number - 1, "deep": False, "archive": kept, "key": None}  # fmt: skip
    return codec.Entry(number=number, **(fields | others))


def added(place: Place, count: int) -> state.State:
    def add(draft: state.State) -> bool:
        shelf = draft.find("run") or draft.add("run", codec.UNKNOWN, 4, "keep=all", None)
        for _ in range(count):
            shelf.append(an_entry(shelf.next))
        return True

    return state.change(state.begin(place), WRITER, add)


@pytest.fixture
def memory() -> Iterator[Place]:
    with Place(f"memory://{secrets.token_hex(8)}") as place:
        yield place


def test_an_expected_object(memory: Place) -> None:
    memory.put("head", b"old")
    memory.expect("head")
    memory._expected["head"].result()
    memory.put("head", b"new")
    assert memory.get("head") == b"old" and memory.get("head") == b"new"
    memory.expect("head")
    with pytest.raises(lmcstore.DamagedError, match="more than 2"):
        memory.get("head", 2)
    memory.expect("none")
    with pytest.raises(lmcstore.NotFoundError, match="none: there is no such object"):
        memory.get("none")


def test_no_run(place: Place) -> None:
    with pytest.raises(lmcstore.NotFoundError, match="there is no run of lmc-store"):
        state.read(place)
    assert state.begin(place).number == 0
    assert state.begin(place).run == state.read(place).run


def test_two_begin_a_run(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark appears between the first look for it and the second."""
    get = Place.get

    def other_begins(self: Place, name: str, *rest: Any) -> bytes:
        try:
            return get(self, name, *rest)
        finally:
            if name == state.MARK and not self.exists(name):
                self.put(name, codec.write_mark("b" * 32))

    monkeypatch.setattr(Place, "get", other_begins)
    assert state.begin(memory).run == "b" * 32


def test_a_server_without_conditions(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryClient, "create", lambda self, *arguments: self.put(*arguments) or True)
    with pytest.raises(lmcstore.UnsupportedError, match="overwrites an object that exists"):
        state.begin(memory)


def test_ten_thousand_entries(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LEAF_ENTRIES", 4)
    monkeypatch.setattr(state, "NODE_NODES", 4)
    for count in (1, 7, 8, 984):
        added(memory, count)
    read = state.read(memory)
    shelf = read.shelf("run")
    assert shelf.stored == 1000 and len(shelf.newest) < 8 and len(shelf.nodes) < 40
    assert [entry.number for entry in shelf.entries()] == list(range(1, 1001))
    assert [entry.number for entry in shelf.entries(backwards=True)] == list(range(1000, 0, -1))
    assert [entry.number for entry in shelf.entries(17, 23)] == list(range(17, 24))
    assert shelf.latest == an_entry(1000) and shelf.entry(500) == an_entry(500) and shelf.entry(1001) is None

    def edit(draft: state.State) -> bool:
        draft.shelf("run").update({3: an_entry(3, note="x"), 1000: None, **dict.fromkeys(range(100, 200))})
        return True

    state.change(read, WRITER, edit)
    shelf = state.read(memory).shelf("run")
    assert [entry.number for entry in shelf.entries()] == [
        *range(1, 100),
        *range(200, 1000),
    ]
    assert shelf.entry(3) == an_entry(3, note="x")


def test_all_members_of_entries_stay(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LEAF_ENTRIES", 2)
    monkeypatch.setattr(state, "NODE_NODES", 2)
    key = an_entry(1).archive._replace(object="data/" + "2" * 20 + "-" + "c" * 16, offset=7)
    written = [
        an_entry(number, **fields)
        for number, fields in enumerate(
            [
                {"step": None, "base": 0, "metrics": None},
                {"deep": True, "key": key},
                {"hidden": True, "note": "a note"},
                {"step": -5, "metrics": {"loss": 0.5, "best": "Infinity"}},
            ]
            * 5,
            1,
        )
    ]

    def add(draft: state.State) -> bool:
        shelf = draft.add("run", codec.UNKNOWN, 4, "keep=all", None)
        for entry in written:
            shelf.append(entry)
        return True

    state.change(state.begin(memory), WRITER, add)
    shelf = state.read(memory).shelf("run")
    assert list(shelf.entries()) == written
    assert any(node.level for node in shelf.nodes) and shelf.shown == 15 and shelf.stored == 20


def test_a_long_history_opens_in_few_requests(memory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    added(memory, 20_000)
    asked: list[str] = []
    get = Place.get
    monkeypatch.setattr(
        Place,
        "get",
        lambda self, name, *rest: (asked.append(name), get(self, name, *rest))[1],
    )
    shelf = state.read(memory).shelf("run")
    newest = [entry.number for _, entry in zip(range(20), shelf.entries(backwards=True), strict=False)]
    assert newest == list(range(20_000, 19_980, -1))
    assert shelf.entry(77) is not None
    assert asked[:2] == ["head", "log/0000000000000002"] and len(asked) <= 5


def test_lists_of_a_long_history_take_few_requests(
    memory: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    added(memory, 5_000)
    asked: list[str] = []
    get = Place.get
    monkeypatch.setattr(Place, "get", lambda self, name, *rest: (asked.append(name), get(self, name, *rest))[1])
    for words, numbers in ((["ls"], [4969, 5000]), (["log", "-n", "20"], [5000, 4981])):
        asked.clear()
        assert command.main(words[0], [memory.url, *words[1:], "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        snapshots = found["shelves"][0]["snapshots"] if words == ["ls"] else found["snapshots"]
        assert [snapshots[0]["number"], snapshots[-1]["number"]] == numbers and len(asked) <= 3
    assert command.main("ls", [memory.url]) == 0
    assert "run: 5000 snapshots; 4968 older (all: lmc-store ls URL run)" in capsys.readouterr().out
    assert command.main("ls", [memory.url, "run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5001


def test_two_writers(memory: Place) -> None:
    first = state.begin(memory)

    def add(name: str) -> Any:
        def apply(draft: state.State) -> bool:
            draft.add(name, codec.UNKNOWN, 4, "", None)
            return True

        return apply

    threads = [threading.Thread(target=state.change, args=(first, f"{n:032x}", add(f"s{n}"))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = state.read(memory)
    assert after.number == 6 and [shelf.name for shelf in after.shelves] == [f"s{n}" for n in range(6)]


@pytest.mark.parametrize("there", [1, 2, 3, 7, 8, 9, 100])
@pytest.mark.parametrize("head", ["missing", "damaged", "old"])
def test_the_head_is_a_hint(memory: Place, there: int, head: str) -> None:
    for number in range(there):
        now = added(memory, 1)
        if number == 0:
            old = memory.get("head")
    memory.put("head", {"missing": b"", "damaged": b"\1" + old[1:], "old": old}[head])
    if head == "missing":
        memory.delete(["head"])
    assert state.read(memory) == now


def test_emptied_commits(memory: Place) -> None:
    for _ in range(20):
        now = added(memory, 1)
    old = codec.write_state(state._searched(memory).__class__(now.run, 3, 0, WRITER, []))
    for number in range(1, 15):
        memory.put(state.log_name(number), codec.stub())
    memory.delete(["head"])
    assert state.read(memory) == now
    memory.put("head", old)
    assert state.read(memory) == now
    for number in range(15, 21):
        memory.put(state.log_name(number), codec.stub())
    memory.delete(["head"])
    with pytest.raises(lmcstore.DamagedError, match="the newest commit, is empty"):
        state.read(memory)


def replaced(generator: random.Random, whole: Any, value: Any) -> Any:
    """Return a copy with another value at a random place."""
    changed = at = json.loads(json.dumps(whole))
    while True:
        key = generator.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if not at[key] or not isinstance(at[key], dict | list) or generator.random() < 0.1:
            at[key] = value
            return changed
        at = at[key]


BAD = (
    None,
    -1,
    0,
    1 << 63,
    1.5,
    "",
    "x" * 2000,
    "../..",
    [],
    {},
    [1],
    {"a": []},
    True,
    "\0",
    "1" * 32,
    10**400,
)


def test_damaged_states(memory: Place) -> None:
    """Any change of any value is refused, or is another valid state."""
    added(memory, 70)

    def edit(draft: state.State) -> bool:
        draft.shelf("run").tags["best"] = 5
        draft.shelf("run").update({70: an_entry(70, metrics={"a": 0.5, "b": "NaN"}, note="n", hidden=True, step=None)})
        return True

    state.change(state.read(memory), WRITER, edit)
    data = memory.get("head")
    whole = json.loads(zlib.decompress(data))
    generator = random.Random(1)
    refused = 0
    for value in BAD * 60:
        try:
            codec.read_state(
                zlib.compress(json.dumps(replaced(generator, whole, value)).encode()),
                "here",
            )
        except (lmcstore.DamagedError, lmcstore.UnsupportedError) as error:
            assert "here" in str(error)
            refused += 1
    assert refused > 500
    broken = [data[:cut] for cut in (0, 1, 10, len(data) - 1)]
    for bad in (
        *broken,
        data + b"x",
        zlib.compress(b" " * (65 << 20)),
        zlib.compress(b"[" * 100_000),
    ):
        with pytest.raises(lmcstore.DamagedError, match="here is damaged"):
            codec.read_state(bad, "here")
    with pytest.raises(lmcstore.UnsupportedError, match="use a newer one"):
        codec.read_state(zlib.compress(json.dumps(whole | {"version": 2}).encode()), "here")


def test_damaged_nodes(memory: Place) -> None:
    added(memory, 70)
    (info,) = memory.list("index")
    data = memory.get(info.name)
    memory.put(info.name, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(lmcstore.DamagedError, match=r"snapshots 1 to 32 of shelf 'run'\) is damaged"):
        list(state.read(memory).shelf("run").entries())
    memory.put(info.name, codec.write_node([an_entry(number, note="another") for number in range(1, 33)], 0))
    with pytest.raises(lmcstore.DamagedError, match="its hash is wrong"):
        list(state.read(memory).shelf("run").entries())
    memory.delete([info.name])
    with pytest.raises(lmcstore.NotFoundError, match=r"snapshots 1 to 32 of shelf 'run'\) is missing"):
        list(state.read(memory).shelf("run").entries())


# Outlines


def dumped(store: lmcstore.Store, tmp_path: Path, what: str, since: tuple[Any, ...] = ()) -> bytes:
    with open(tmp_path / "dumped", "wb") as file:
        store.dump(file, what, since=since)
    return (tmp_path / "dumped").read_bytes()


@pytest.fixture
def filled(store: lmcstore.Store) -> lmcstore.Store:
    generator = np.random.default_rng(1)
    for step in range(3):
        weights = generator.normal(size=700_000).astype(np.float32)
        store["run"].snapshot({"w": weights, "same": np.arange(100_000), "empty": np.zeros(0)}, step=step)
    store["run"].tag(1, "first")
    return store


def parsed_of(data: bytes, size: int = 0) -> outline.Outline:
    """Read an archive, `size` bytes at a time, from memory that is used again."""
    parsing = outline.Parsing()
    for at in range(0, len(data), size or len(data) or 1):
        part = bytearray(data[at : at + (size or len(data))])
        parsing.see(memoryview(part))
        part[:] = bytes(len(part))
    return parsing.end()


def test_outlines(filled: lmcstore.Store, tmp_path: Path) -> None:
    data = dumped(filled, tmp_path, "run@2..3")
    parsed = parsed_of(data)
    assert parsed.size == len(data)
    for size in (1, 7, 1000, 1 << 20):
        assert parsed_of(data, size) == parsed, size
    with open(tmp_path / "dumped", "rb") as file:
        assert parsed.id == archive.ls(file)["id"]
    assert [(one.number, one.step) for one in parsed.snapshots] == [
        (2, 1),
        (3, 2),
    ] and not parsed.needs_base
    packed = parsed.packed()
    assert len(packed) < len(data) / 100
    again = outline.unpack(packed, "here")
    assert again == parsed
    with open(tmp_path / "sparse", "w+b") as file:
        spans = [(one.offset, data[one.offset : one.offset + one.span]) for one in again.contents if one.span]
        again.write_sparse(file.fileno(), spans)
    assert (tmp_path / "sparse").read_bytes() == data


def test_an_outline_serves_as_the_older_archive(filled: lmcstore.Store, tmp_path: Path) -> None:
    first = dumped(filled, tmp_path, "run@1")
    with open(tmp_path / "sparse", "w+b") as file:
        parsed_of(first).write_sparse(file.fileno())
        second = dumped(filled, tmp_path, "run@2", (file,))
    parsed = parsed_of(second)
    assert parsed.needs_base and len(second) < len(first)
    with lmcstore.open(tmp_path / "copy.pool", "x") as copy:
        for data in (first, second):
            (tmp_path / "archive").write_bytes(data)
            with open(tmp_path / "archive", "rb") as file:
                copy.restore(file)
        assert np.array_equal(copy["run"][2]["w"], filled["run"][2]["w"])


def test_damaged_archives(filled: lmcstore.Store, tmp_path: Path) -> None:
    data = dumped(filled, tmp_path, "run@3")
    for cut in (0, 10, 39, 60, 2000, len(data) - 1):
        with pytest.raises(lmcstore.DamagedError):
            parsed_of(data[:cut])
    with pytest.raises(lmcstore.DamagedError):
        parsed_of(data + b"x")
    packed = parsed_of(data).packed()
    text = zlib.decompress(packed)
    generator = random.Random(1)
    for _ in range(500):
        changed = bytearray(text)
        at = generator.randrange(len(changed))
        changed[at] = generator.randrange(256)
        try:
            outline.unpack(zlib.compress(bytes(changed), 1), "here")
        except (lmcstore.DamagedError, lmcstore.UnsupportedError):
            pass
    for cut in (0, 5, len(packed) - 1):
        with pytest.raises(lmcstore.DamagedError, match="here"):
            outline.unpack(packed[:cut], "here")
