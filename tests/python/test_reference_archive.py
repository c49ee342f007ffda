# SPDX-License-Identifier: BSD-3-Clause
"""Archives in the reference reader: the same tensors and verdicts."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from command import BIN, NEEDS_BIN
from optional import torch
from test_links import WAYS, Trainer, train

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import reference_archive  # noqa: E402
from reference_archive import Archive, Damaged, Incomplete, Unsupported  # noqa: E402

pytestmark = pytest.mark.skipif(reference_archive.xxhash is None, reason="xxhash is not installed")


def dump(store: lmcstore.Store, path: Path, shelf: str | None = None) -> bytes:
    with path.open("wb") as file:
        store.dump(file, shelf)
    return path.read_bytes()


def read(data: bytes) -> Archive:
    return Archive(io.BytesIO(data))


def fill(store: lmcstore.Store) -> None:
    generator = torch.Generator().manual_seed(1)
    run = store["run"]
    run.keep_raw = 1
    weight = torch.randn(40, 30, generator=generator)
    state: dict[str, Any] = {
        "model": {"w": weight, "tied": weight, "half": weight.bfloat16(), "empty": torch.zeros(0, 3)},
        "large": np.arange(700_000, dtype=np.uint32),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "values": [1, "two", None, 3.5],
    }
    for step in range(8):
        state["model"]["w"] += 0.001
        state["large"][step] = 0
        if step == 3:
            state["more"] = torch.arange(5)
        if step == 5:
            del state["more"]
        run.snapshot(state, step=step, metrics={"loss": 1 / (step + 1), "nan": float("nan")}, meta={"ä": [step]})
    run.tag(2, "best")
    run.tag(2, "ähnlich")
    store.compact()
    run.remove(7)
    run.remove(4)
    store["other"].snapshot({"x": torch.ones(2)}, meta={"long": "x" * 3000})
    store["other"].keep_raw = 9
    run.snapshot(state)


def expect_same(store: lmcstore.Store, archive: Archive) -> int:
    """Every snapshot and byte; returns the number of tensors and attachments."""
    count = 0
    assert {name: (len(s), s.keep_raw) for name, s in ((name, store[name]) for name in archive.shelves)} == {
        name: (len(shelf.snapshots), shelf.keep_raw) for name, shelf in archive.shelves.items()
    }
    for shelf in archive.shelves.values():
        for found in shelf.snapshots:
            snapshot = store[shelf.name][found.number]
            info = snapshot._handle.info()
            assert (found.step, found.parent, found.time_ns) == (snapshot.step, info["parent"], info["time_ns"])
            assert sorted(found.tags) == snapshot.tags
            assert found.meta == snapshot.meta
            assert repr(found.metrics) == repr(snapshot.metrics)
            names, kinds, dtypes, shapes, buffers = snapshot._handle.view(None, 0, 0).unpack()
            own = {"lmcstore.meta", "lmcstore.relations", "lmcstore.constants"}
            assert len(names) == sum(identity.name not in own for identity, _ in found.entries.values())
            for name, kind, dtype, shape, buffer in zip(names, kinds, dtypes, shapes, buffers, strict=True):
                identity, content = found.find(name, kind)
                assert (identity.dtype, identity.shape) == (dtype, tuple(shape)), name
                assert content.read() == bytes(memoryview(buffer)), name
                count += 1
    return count


def test_every_tensor(store: lmcstore.Store, tmp_path: Path) -> None:
    fill(store)
    archive = read(dump(store, tmp_path / "archive"))
    assert list(archive.shelves) == ["other", "run"]
    assert expect_same(store, archive) > 50
    payloads = {(content.payload, content.base is not None) for content in archive.contents}
    assert payloads == {(0, False), (1, False), (1, True)}
    assert any(len(content.stored) > 1 << 20 for content in archive.contents)
    assert any(not snapshot.is_changes for snapshot in archive.shelves["run"].snapshots)
    assert any(snapshot.is_changes for snapshot in archive.shelves["run"].snapshots)
    assert any(snapshot.text is None for shelf in archive.shelves.values() for snapshot in shelf.snapshots)
    assert list(read(dump(store, tmp_path / "one", "other")).shelves) == ["other"]


def expect_steps(store: lmcstore.Store, archive: Archive) -> None:
    for found in archive.shelves["run"].snapshots:
        names, kinds, _, _, buffers = store["run"][found.number]._handle.view(None, 0, 0).unpack()
        for name, kind, buffer in zip(names, kinds, buffers, strict=True):
            assert found.find(name, kind)[1].read() == bytes(memoryview(buffer)), (found.number, name)
    for content in archive.contents:
        content.read()


@pytest.mark.parametrize("way", ["AdamW", "Adam, amsgrad", "SGD, Nesterov"])
def test_links(store: lmcstore.Store, tmp_path: Path, way: str) -> None:
    run = store["run"]
    run.policy = "keep_raw=1 links=2"
    trainer = Trainer(WAYS[way])
    train(run, trainer, steps=5)
    store.compact()
    archive = read(dump(store, tmp_path / "archive"))
    assert {content.payload for content in archive.contents} >= {0, 1, 2, 3}
    assert max(content.line for content in archive.contents) == 2
    expect_steps(store, archive)
    train(run, trainer, steps=2)
    store.compact()
    with (tmp_path / "archive").open("rb") as older, (tmp_path / "since").open("wb") as file:
        store.dump(file, since=[older])
    since = Archive((tmp_path / "since").open("rb"), [archive])
    assert len(since.shelves["run"].snapshots) == 2 and any(content.payload == 2 for content in since.contents)
    expect_steps(store, since)


@NEEDS_BIN
def test_digests(store: lmcstore.Store, tmp_path: Path, pool_path: str) -> None:
    fill(store)
    archive = read(dump(store, tmp_path / "archive"))
    for found in archive.shelves["run"].snapshots:
        command = [BIN, "ls", "--json", pool_path, f"run@{found.number}"]
        answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, timeout=600, check=True).stdout)
        for entry in answer["snapshot"]["entries"]:
            kind = 0 if entry.get("kind", "tensor") == "tensor" else 1
            assert entry["digest"] == found.find(entry["name"], kind)[1].hex_digest


def test_nothing(store: lmcstore.Store, tmp_path: Path) -> None:
    data = dump(store, tmp_path / "archive")
    assert len(data) == 128 and read(data).shelves == {}


def example(document: str, head: str) -> bytes:
    """The bytes of a dump in the document, from the line that begins with `head`."""
    lines = document[document.index(head) :].split("```", 1)[0].splitlines()
    if head.startswith("00  "):
        return bytes.fromhex("".join(line[4:51] for line in lines))
    words = [re.match(r"(?:[A-Za-z_]+)? +((?:[0-9a-f]+ ?)+)", line) for line in lines]
    return bytes.fromhex("".join(word.group(1) for word in words if word))


def test_the_examples_of_the_document(store: lmcstore.Store, tmp_path: Path) -> None:
    document = (TESTS.parent / "store" / "ARCHIVE.md").read_text()
    empty, one = example(document, "00  4c 4d"), example(document, "head   ")
    assert empty == dump(store, tmp_path / "archive") and len(one) == 526
    (snapshot,) = read(one).shelves["s"].snapshots
    assert (snapshot.number, snapshot.step, snapshot.tags) == (1, 7, ["t"])
    assert snapshot.find("x")[1].read() == b"\1\2\3"
    (tmp_path / "one").write_bytes(one)
    with (tmp_path / "one").open("rb") as file:
        assert store.restore(file)["snapshots"] == 1
    assert dump(store, tmp_path / "again") == one


def corpus() -> list[Path]:
    return sorted((TESTS / "fuzz" / "corpus" / "archive").iterdir())


@pytest.mark.parametrize("path", corpus(), ids=lambda path: path.name)
def test_the_corpus(store: lmcstore.Store, path: Path) -> None:
    """Both readers accept the same archives of the fuzzer, with equal contents."""
    try:
        archive = Archive(path.open("rb"))
        for content in archive.contents:
            content.read()
    except (Damaged, Unsupported):
        archive = None
    except Incomplete:
        with path.open("rb") as file, pytest.raises(lmcstore.NotFoundError):
            store.restore(file)
        return
    with path.open("rb") as file:
        if archive is None:
            with pytest.raises((lmcstore.DamagedError, lmcstore.UnsupportedError)):
                store.restore(file)
        else:
            store.restore(file)
            expect_same(store, archive)


def test_damage(store: lmcstore.Store, tmp_path: Path) -> None:
    store["run"].snapshot({"x": torch.arange(10)}, step=1)
    data = dump(store, tmp_path / "archive")
    generator = random.Random(1)
    for _ in range(100):
        at = generator.randrange(len(data))
        changed = bytearray(data)
        changed[at] ^= 1 << generator.randrange(8)
        for bad in (data[:at], bytes(changed)):
            (tmp_path / "bad").write_bytes(bad)
            with pytest.raises((Damaged, Unsupported)):
                read(bad)
            with (tmp_path / "bad").open("rb") as file, pytest.raises(lmcstore.DamagedError):
                store.restore(file)
    assert len(store["run"]) == 1
