# SPDX-License-Identifier: BSD-3-Clause
"""Reading blocks of a run in an object store: requests, the cache, and damage."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import subprocess
import threading
import types
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from command import BIN
from optional import torch
from proxy import Fault, Proxy, nth
from same import same

pytest.importorskip("obstore")
from lmcstore import _core, codec
from lmcstore._remote import blocks, kept, late, outline
from lmcstore._remote.blocks import Decoder
from lmcstore._remote.cache import Cache
from lmcstore._remote.files import FolderClient
from lmcstore._remote.place import Place
from lmcstore.errors import DamagedError

STEPS = 7
SIDE = 1024
W = "model.weight"


@pytest.fixture(scope="module", autouse=True)
def without_late_keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late, "_LEAST_BYTES", 1 << 60)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a run of links, of deltas and of raw payloads, each pushed after each step."""
    folder = tmp_path_factory.mktemp("blocks")
    torch.manual_seed(0)
    model = torch.nn.Linear(SIDE, SIDE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    noise = np.random.default_rng(1).integers(0, 1 << 16, (900, 2000), np.uint16)
    table = np.random.default_rng(2).normal(size=(1500, 300)).astype(np.float32)
    with lmcstore.open(folder / "run.pool", "x", background=False) as store:
        for step in range(1, STEPS + 1):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape).bfloat16().float()
            optimizer.step()
            noise[step] += 1
            table[: 100 * step] *= np.float32(1.001)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "noise": noise, "table": table}
            store["run"].snapshot(state | {"step": step, "text": "x" * 5000}, step=step, metrics={"loss": 1 / step})
            if step == 1:
                store["run"].policy = "write=link keep_raw=1 links=24"
            store.push(f"file://{folder}/run")
    yield folder


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count rounds of requests, and bytes."""
    counts = {"rounds": 0, "bytes": 0}
    lock = threading.Lock()
    get, get_range, get_ranges, fetch = FolderClient.get, FolderClient.get_range, Place.get_ranges, blocks._Fetch

    def add(name: str, count: int) -> None:
        with lock:
            counts[name] += count

    def counted_get(self: Any, name: str, most: int) -> bytes:
        add("rounds", 1)
        data = get(self, name, most)
        add("bytes", len(data))
        return data

    def counted_range(self: Any, name: str, offset: int, count: int) -> bytes:
        add("bytes", count)
        return get_range(self, name, offset, count)

    def counted_ranges(self: Any, ranges: Any) -> Any:
        listed = list(ranges)
        add("rounds", bool(listed))
        return get_ranges(self, listed)

    class Counted(fetch):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            add("rounds", bool(self._futures))

    monkeypatch.setattr(FolderClient, "get", counted_get)
    monkeypatch.setattr(FolderClient, "get_range", counted_range)
    monkeypatch.setattr(Place, "get_ranges", counted_ranges)
    monkeypatch.setattr(blocks, "_Fetch", Counted)
    return counts


def _stored_on_chain(store: lmcstore.Store, shape: tuple[int, ...]) -> int:
    """Sum the payloads of all tensors of a shape, links included, from the newest snapshot back to the key."""
    pool: Any = store._pool
    chain = pool._state.shelf("run").chain(STEPS)
    found = pool._cache.outlines("run", chain)
    assert len(found) == STEPS
    return sum(
        content.stored
        for one in found
        for content in one.contents
        if one.identities[content.identity - 1].shape == shape
    )


def test_a_tensor_takes_four_rounds(folder: Path, requests: dict[str, int]) -> None:
    with lmcstore.open(f"file://{folder}/run") as store:
        weight = store["run"]["latest"][W].torch()
        assert requests["rounds"] <= 4
        assert requests["bytes"] <= 1.2 * _stored_on_chain(store, (SIDE, SIDE))
    with lmcstore.open(folder / "run.pool", "r") as store:
        same(store["run"]["latest"][W].torch(), weight)


def test_an_old_snapshot_takes_four_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries are in nodes, which are read while newer commits are looked for."""
    url = f"file://{tmp_path}/run"
    with lmcstore.open(tmp_path / "run.pool", "x", background=False) as store:
        for step in range(200):
            store["run"].snapshot({"w": np.full(300, step)}, step=3 * step)
            if step % 10 == 9:
                store.push(url)
    waits = 0
    got: list[str] = []
    get, start = FolderClient.get, Place.start

    def counted_get(self: Any, name: str, most: int) -> bytes:
        got.append(name)
        return get(self, name, most)

    def counted_start(self: Place, work: Any, *arguments: Any) -> Any:
        nonlocal waits
        waits += work.__name__ == "children"
        return start(self, work, *arguments)

    monkeypatch.setattr(FolderClient, "get", counted_get)
    monkeypatch.setattr(Place, "start", counted_start)
    for read in (lambda shelf: shelf[150], lambda shelf: shelf.at(step=447), lambda shelf: shelf["step:447"]):
        got.clear()
        with lmcstore.open(url) as store:
            same(np.full(300, 149), read(store["run"])["w"].read())
        nodes = [name for name in got if name.startswith("index/")]
        assert len(nodes) == len(set(nodes)) <= 3 and len(got) == 2 + len(nodes)
        assert waits >= len(nodes)  # none of them was read alone
        got.clear()
        with lmcstore.open(url) as store:
            same(np.full(300, 199), store["run"].at(step=597)["w"].read())
        assert len(got) == 2
        with lmcstore.open(url) as store:
            assert [one.number for one in store["run"].steps(450)] == [151]
            assert store["run"].steps(451) == []
            with pytest.raises(lmcstore.NotFoundError):
                store["run"].at(step=448)


@pytest.mark.parametrize(("name", "shape"), [(W, (SIDE, SIDE)), ("noise", (900, 2000)), ("table", (1500, 300))])
def test_rows_take_their_blocks(folder: Path, requests: dict[str, int], name: str, shape: tuple[int, int]) -> None:
    with lmcstore.open(folder / "run.pool", "r") as store:
        whole = store["run"]["latest"][name].read()
    with lmcstore.open(f"file://{folder}/run") as store:
        rows = store["run"]["latest"][name][0:64]
        count = -(-whole.nbytes // blocks.BLOCK_BYTES)
        assert requests["rounds"] <= 5
        assert requests["bytes"] <= 1.2 * _stored_on_chain(store, shape) / count * 1.2 + 40_000
        same(whole[0:64], rows)
    generator = random.Random(1)
    for memory in ("1GiB", 0):
        with lmcstore.open(f"file://{folder}/run", memory=memory) as store:
            for _ in range(8):
                first, last = sorted(generator.randrange(shape[0] + 1) for _ in range(2))
                same(whole[first:last], store["run"]["latest"][name][first:last])
            same(whole, store["run"]["latest"][name].read())


@pytest.mark.parametrize("most", [1, 3 << 20, 9 << 20])
@pytest.mark.parametrize("memory", [0, "3MiB", "1GiB"])
def test_large_tensors_are_read_in_parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, most: int, memory: int | str
) -> None:
    for name in ("_WHOLE_BYTES", "_AT_ONCE_BYTES", "_REQUEST_BYTES"):
        monkeypatch.setattr(blocks, name, most if name != "_REQUEST_BYTES" else max(most, 100_000))
    with lmcstore.open(folder / "run.pool", "r") as pool, lmcstore.open(f"file://{folder}/run", memory=memory) as store:
        for step in (STEPS, STEPS - 1, STEPS):
            same(pool["run"].at(step=step).state_dict(), store["run"].at(step=step).state_dict())


def test_reports_equal_those_of_the_pool(folder: Path, tmp_path: Path) -> None:
    with lmcstore.open(folder / "run.pool", "r") as pool, lmcstore.open(f"file://{folder}/run") as store:
        for step in (1, 2):
            old, new = pool["run"].at(step=step), store["run"].at(step=step)
            assert (old.digest, old.names(), old.metrics, old.meta) == (new.digest, new.names(), new.metrics, new.meta)
            for part in (None, "model") if step == 2 else ("optimizer",):
                assert old.export(tmp_path / "old", part) == new.export(tmp_path / "new", part)
                assert (tmp_path / "old").read_bytes() == (tmp_path / "new").read_bytes()
        for options in ({}, {"same": True}, {"numbers": False}):
            old, new = (one["run"][2].diff(one["run"][3], **options) for one in (pool, store))
            assert [repr(old), *map(repr, old)] == [repr(new), *map(repr, new)] and old.report == new.report
        assert store["run"][3].storage()["longest_chain"] >= 1


def test_a_cache_that_stays(folder: Path, tmp_path: Path, requests: dict[str, int]) -> None:
    url, cache = f"file://{folder}/run", tmp_path / "cache"
    with lmcstore.open(url, cache=cache) as store:
        state = store["run"]["latest"].state_dict()
        assert store.info()["fetched_bytes"] > 1_000_000
    before = requests["rounds"]
    with lmcstore.open(url, cache=cache) as store:
        same(state, store["run"]["latest"].state_dict())
        assert store.info()["fetched_bytes"] == 0 and requests["rounds"] == before + 2
    for index, path in enumerate(sorted(cache.iterdir())):
        data = path.read_bytes()
        path.write_bytes([data[:-1], data[:20] + b"x" + data[21:], b"", data][index % 4])
    (cache / ".new-left").write_bytes(b"half")
    with lmcstore.open(url, cache=cache) as store:
        same(state, store["run"]["latest"].state_dict())
        assert store.info()["fetched_bytes"] > 0
    shutil.rmtree(cache)
    cache.write_text("no folder")
    with pytest.raises(lmcstore.InputOutputError, match="can't have a cache"):
        lmcstore.open(url, cache=cache)
    with pytest.raises(lmcstore.InvalidError):
        lmcstore.open(folder / "run.pool", "r", cache=tmp_path / "other")


def test_a_cache_is_bounded(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    mine = cache / "a file of the user"
    mine.write_bytes(bytes(6 << 20))
    os.utime(mine, (0, 0))
    failures: list[BaseException] = []

    def read() -> None:
        try:
            with lmcstore.open(f"file://{folder}/run", cache=cache, memory="5MiB") as store:
                for step in range(STEPS, 0, -1):
                    store["run"].at(step=step).state_dict()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and mine.stat().st_size == 6 << 20
    assert 0 < sum(path.stat().st_size for path in cache.iterdir() if path != mine) <= 2 * 5 << 20


def test_outlines_in_memory_are_bounded_by_their_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that one snapshot needs are kept together, so that its next tensor finds them."""

    def held() -> int:
        with lmcstore.open(f"file://{folder}/run") as store:
            pool: Any = store._pool
            for step in range(STEPS, 0, -1):
                store["run"].at(step=step).names()
            cache = pool._cache
            assert cache._outlines_bytes == sum(one.memory for one in cache._outlines.values())
            pool._cache.outlines("run", pool._state.shelf("run").chain(STEPS))
            assert len(cache._outlines) == STEPS
            store["run"].at(step=1).names()
            return len(cache._outlines)

    assert held() == STEPS
    monkeypatch.setattr("lmcstore._remote.cache._OUTLINES_BYTES", 1)
    assert held() == 1


def test_folders_of_killed_processes_are_removed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, used, other = (tmp_path / f"{kept._PREFIX}{name}" for name in ("left", "used", "other"))
    for path in (left, used, other):
        path.mkdir()
        (path / "block").write_bytes(b"x")
        os.utime(path, (1, 1) if path != other else None)
    held = os.open(used, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    with lmcstore.open(f"file://{folder}/run") as store:
        store["run"][1][W][:2]
        assert not left.exists() and used.exists() and other.exists() and len(list(tmp_path.iterdir())) == 3
    os.close(held)
    assert len(list(tmp_path.iterdir())) == 2


def test_progress(folder: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    with lmcstore.open(f"file://{folder}/run", progress=lambda *call: calls.append(call)) as store:
        snapshot = store["run"]["latest"]
        snapshot.state_dict()
        total = sum(entry["raw_bytes"] for entry in snapshot.entries() if not entry["is_attachment"])
    assert calls[-1] == ("read", total, total) and [call[1] for call in calls] == sorted(call[1] for call in calls)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with lmcstore.open(f"file://{folder}/run", progress=stop) as store, pytest.raises(KeyboardInterrupt):
        store["run"]["latest"].state_dict()


def test_damage_of_rows_is_named(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder / "run", copy)
    with lmcstore.open(folder / "run.pool", "r") as store:
        whole = {name: store["run"]["latest"][name].read() for name in (W, "noise", "table")}
    generator = random.Random(2)
    failed = 0
    for piece in sorted(copy.glob("data/*/*")):
        good = piece.read_bytes()
        for _ in range(15):
            at = generator.randrange(len(good))
            piece.write_bytes(good[:at] + bytes([good[at] ^ 16]) + good[at + 1 :])
            with lmcstore.open(f"file://{copy}") as store:
                for name, tensor in whole.items():
                    try:
                        rows = store["run"]["latest"][name][300:310]
                    except lmcstore.DamagedError as error:
                        assert piece.parent.name in str(error)
                        failed += 1
                    else:
                        same(tensor[300:310], rows)
        piece.write_bytes(good)
    assert failed > 0


def test_outlines_that_lie(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong outline gives the right tensor, or an error."""
    with lmcstore.open(folder / "run.pool", "r") as store:
        rows = {name: store["run"][3][name][:5] for name in (W, "noise", "table")}
    generator = random.Random(3)

    def lie(self: Cache, archive: Any, packed: bytes) -> outline.Outline:
        text = bytearray(zlib.decompress(packed))
        for _ in range(generator.randrange(3)):
            at = generator.randrange(len(text))
            text[at] ^= 1 << generator.randrange(8)
        return outline.unpack(zlib.compress(bytes(text), 1), "here")

    monkeypatch.setattr(Cache, "_unpacked", lie)
    results = {"right": 0, "wrong": 0}
    for _ in range(60):
        with lmcstore.open(f"file://{folder}/run") as store:
            for name, expected in rows.items():
                try:
                    found = store["run"][3][name][:5]
                except lmcstore.Error:
                    results["wrong"] += 1
                else:
                    results["right"] += 1
                    if type(found) is type(expected) and found.shape == expected.shape:
                        same(expected, found)
    assert min(results.values()) > 10


@pytest.mark.parametrize("kind", ["short bases", "a link", "no content"])
def test_outlines_that_no_dump_writes(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    unpack = outline.unpack

    def lie(data: bytes, where: str) -> outline.Outline:
        found = unpack(data, where)
        for at, content in enumerate(found.contents):
            if kind == "short bases" and content.payload == outline.LINK:
                small = next(one for one in found.contents if one.is_known and one.raw_bytes < 1 << 20)
                found.contents[content.bases[0] - 1] = small
            elif kind == "a link" and content.payload == outline.FRAME:
                found.contents[at] = content._replace(payload=outline.LINK)
        if kind == "no content":
            found.snapshots[0].entries = [(identity, 0) for identity, _ in found.entries]
        return found

    monkeypatch.setattr(outline, "unpack", lie)
    text = r"its size is wrong|a link is no tensor|lacks contents"
    with lmcstore.open(f"file://{folder}/run") as store, pytest.raises(lmcstore.DamagedError, match=text):
        for name in (W, "noise", "table"):
            store["run"][STEPS][name][-5:]


def test_an_outline_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(outline, "MOST_BYTES", 1000)
    with lmcstore.open(tmp_path / "run.pool", "x", background=False) as store:
        store["run"].snapshot({f"w{index}": np.zeros(3) for index in range(50)})
        with pytest.raises(lmcstore.UnsupportedError, match="too many"):
            store.push(f"file://{tmp_path}/run")


def _run(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([BIN, *words], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("diff", "run@2", "@3"),
        ("diff", "run@2..4", "-n", "2"),
        ("diff", "run@3", "run@3"),
        ("export", "run@2", "--part", "model", "-o", "out"),
        ("export", "run@9", "-o", "out"),
        ("export", "run@2"),
    ],
)
def test_commands_print_what_they_do_of_a_pool(folder: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    command, *rest = (str(tmp_path / "out") if word == "out" else word for word in words)
    pool, url = str(folder / "run.pool"), f"file://{folder}/run"
    for form in ([], ["--json"]):
        (code, out, error), made = _run(command, pool, *rest, *form), None
        if (tmp_path / "out").exists():
            made = (tmp_path / "out").read_bytes()
            (tmp_path / "out").unlink()
        found = _run(command, url, *rest, *form)
        assert found[0] == code, found
        if code == 0 and form:
            assert json.loads(found[1]) == json.loads(out) | {"pool": url}
        elif code == 0:
            assert found[1:] == (out, error)
        assert made is None or (tmp_path / "out").read_bytes() == made
        (tmp_path / "out").unlink(missing_ok=True)


def test_an_export_of_a_url_replaces_a_file_by_force_only(folder: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("precious")
    words = ("export", f"file://{folder}/run", "run@2", "-o", str(old))
    code, _, error = _run(*words)
    assert (code, old.read_text()) == (1, "precious") and f"-o {old} exists" in error
    assert _run(*words, "--force")[0] == 0 and b"precious" not in old.read_bytes()


def test_faults_of_a_server(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request in turn is lost, refused, cut short or changed."""
    monkeypatch.setattr("lmcstore._remote.place._FIRST_PAUSE_S", 0.001)
    state = {"w": np.random.default_rng(1).normal(size=(600, 1000)).astype(np.float32), "on": [1, "x"]}
    with lmcstore.open(tmp_path / "run.pool", "x", background=False) as store:
        for step in range(3):
            state["w"][step * 50] += 1
            store["run"].snapshot(state, step=step)
            store.push(bucket)
    with Proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)

        def read() -> None:
            with lmcstore.open(bucket) as store:
                snapshot = store["run"]["latest"]
                same(state["w"][40:60], snapshot["w"][40:60])
                same(state, snapshot.state_dict())

        read()
        count = len(proxy.requests)
        faults = (Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.SLOW_DOWN, Fault.TRUNCATE, Fault.FLIP)
        damaged = 0
        for number in range(1, count + 1):
            for fault in faults:
                proxy.choose = nth(number, fault)
                try:
                    read()
                except lmcstore.DamagedError as error:
                    assert fault is Fault.FLIP and bucket in str(error)
                    damaged += 1
        assert 0 < damaged < count


@pytest.mark.parametrize(
    "arguments",
    [
        (b"", 0, b"", ()),
        (b"x" * 100, 0, b"", ()),
        ("frame", 1, "block", ()),
        ("frame", 0, "block", (b"x" * 3000,)),
        ("delta", 0, "block", ()),
        ("delta", 0, "block", (b"x" * 2999,)),
        ("delta", 0, "block", (bytearray(3000),)),
        ("frame", 0, b"", ()),
        ("frame", 0, b"x" * 50, ()),
        ("cut", 0, "block", ()),
    ],
)
def test_blocks_that_do_not_fit(arguments: tuple[Any, ...]) -> None:
    data = bytes(range(250)) * 12
    frames = {"frame": codec.compress(data), "delta": codec.compress(data, base=bytes(1) + data[1:])}
    frames["cut"] = frames["frame"][:90]
    header, index, coded, bases = arguments
    frame = frames.get(header, header)
    places = _core.frame_table(frames["frame"], 2, (3000,))[3]
    with pytest.raises(lmcstore.DamagedError):
        _core.decode_block(frame, index, frame[places[0] :] if coded == "block" else coded, bases)


def test_no_thread_decodes_after_a_failure() -> None:
    """The caller may free the memory that its blocks go to."""
    started, ended = threading.Event(), []

    def decode(unit: Any, index: int, data: Any) -> None:
        if index == 0:
            started.wait()
            raise DamagedError("a block")
        started.set()
        threading.Event().wait(0.1)
        ended.append(index)

    with ThreadPoolExecutor(2) as workers:
        decoder = types.SimpleNamespace(_workers=workers, _decode=decode)
        with pytest.raises(DamagedError):
            Decoder._decode_all(decoder, [(None, 0), (None, 1), (None, 2), (None, 3)], {})  # type: ignore[arg-type]
        assert 1 in ended
        before = list(ended)
    assert ended == before
