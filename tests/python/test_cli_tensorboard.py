# SPDX-License-Identifier: BSD-3-Clause
"""`lmc-store export --metrics tensorboard`; tests/trainers reads the file with TensorBoard itself."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import pytest
from command import NEEDS_BIN
from test_cli import as_json, cli, error, text

pytestmark = [NEEDS_BIN, pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning")]


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert crc == masked_crc(data[at : at + 8])
        record = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length) == (masked_crc(record),)
        yield record
        at += 16 + length


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and values of a message's fields."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        match key & 7:
            case 0:
                yield key >> 3, varint()
            case 1:
                yield key >> 3, struct.unpack_from("<d", message, at)[0]
                at += 8
            case 2:
                size = varint()
                yield key >> 3, message[at : at + size]
                at += size
            case kind:
                assert kind == 5
                yield key >> 3, struct.unpack_from("<f", message, at)[0]
                at += 4
    assert at == len(message)


def events(path: Path) -> list[tuple[float, int, dict[str, float]]]:
    """Return wall time, step and scalars of each event but the first."""
    first, *others = (dict(fields(record)) for record in records(path.read_bytes()))
    assert first[3] == b"brain.Event:2"
    made = []
    for event in others:
        assert set(event) == {1, 2, 5}
        values = [dict(fields(value)) for number, value in fields(event[5]) if number == 1]
        step = event[2] - (1 << 64 if event[2] >> 63 else 0)
        made.append((event[1], step, {value[1].decode(): value[2] for value in values}))
    return made


def test_the_crc_is_that_of_others() -> None:
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_metrics_become_events(tmp_path: Path) -> None:
    path, logs = tmp_path / "run.pool", tmp_path / "logs"
    with lmcstore.open(path) as store:
        shelf = store["run"]
        shelf.snapshot({"x": 1}, step=-5, metrics={"loss": 1.5, "acc": 0.25})
        shelf.snapshot({"x": 2}, step=10)
        shelf.snapshot({"x": 3}, metrics={"loss": math.inf, "é" * 200: -2.0})
        shelf.snapshot({"x": 4}, step=1 << 40, metrics={"loss": 0.5})
        times = [snapshot.time for snapshot in shelf]
    found = as_json("export", path, "--metrics", "tensorboard", "-o", logs)
    assert (found["shelf"], found["snapshots"], found["values"]) == ("run", 3, 5)
    (file,) = logs.iterdir()
    assert str(file) == found["file"] and ".tfevents." in file.name
    assert events(file) == [
        (pytest.approx(times[0]), -5, {"loss": 1.5, "acc": 0.25}),
        (pytest.approx(times[2]), 3, {"loss": math.inf, "é" * 200: -2.0}),
        (pytest.approx(times[3]), 1 << 40, {"loss": 0.5}),
    ]
    with lmcstore.open(path) as store:
        store["run"].snapshot({"x": 5}, step=6, metrics={"loss": 0.25})
        store["other"].snapshot({"x": 5}, step=7, metrics={"loss": 7.0})
    assert "5 values of 3 snapshots" not in text("export", path, "run", "--metrics", "tensorboard", "-o", logs)
    assert list(logs.iterdir()) == [file] and len(events(file)) == 4
    cli("export", path, "run@step:10..4", "--metrics", "tensorboard", "-o", logs)
    assert [step for _, step, _ in events(file)] == [3, 1 << 40]


def test_shelves_of_one_second_have_files_of_their_own(tmp_path: Path) -> None:
    path, logs = tmp_path / "run.pool", tmp_path / "logs"
    with lmcstore.open(path) as store:
        for name in ("a", "b", "c"):
            store[name].snapshot({"x": 1}, metrics={"loss": 1.0})
    for name in ("a", "b", "c", "a"):
        cli("export", path, name, "--metrics", "tensorboard", "-o", logs)
    assert len(list(logs.iterdir())) == 3


def test_wrong_uses_are_told(tmp_path: Path) -> None:
    path, logs = tmp_path / "run.pool", tmp_path / "logs"
    cli("create", path)
    form = ("--metrics", "tensorboard")
    assert "0 shelves; name one" in error("export", path, *form, "-o", logs, code=2)
    assert "-o DIR is missing" in error("export", path, *form, code=2)
    assert "is not tensorboard" in error("export", path, "--metrics", "wandb", "-o", logs, code=2)
    assert "--part is of tensors" in error("export", path, *form, "--part", "x", "-o", logs, code=2)
    assert "needs a folder" in cli("export", path, *form, "-o", "-", code=2).stderr
    assert "ADDRESS is missing" in error("export", path, "-o", logs, code=2)
    error("export", path, "none", *form, "-o", logs, status="not found")
    assert not logs.exists()
    with lmcstore.open(path) as store:
        store["run"].snapshot({"x": 1}, metrics={"loss": 1.0})
    assert "none/logs can't be created" in error("export", path, *form, "-o", tmp_path / "none" / "logs")
    logs.write_text("a file")
    assert "logs" in error("export", path, *form, "-o", logs)
    assert logs.read_text() == "a file"
