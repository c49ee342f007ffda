# SPDX-License-Identifier: BSD-3-Clause
"""Sizes of snapshots: the bytes that each added, and raw states of finished runs."""

from __future__ import annotations

import json
import subprocess

import lmcstore
import numpy as np
import pytest
from command import BIN, NEEDS_BIN

IN_MEMORY = True
BASE = 4 * 300_000
ADAPTER = 4 * 20_000


def command(*arguments: object, code: int = 0) -> str:
    done = subprocess.run([BIN, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def as_json(*arguments: object) -> dict[str, object]:
    found: dict[str, object] = json.loads(command(*arguments, "--json"))
    return found


def lora(shelf: lmcstore.Shelf, steps: int) -> list[np.ndarray]:
    """Take snapshots of a frozen base and an adapter that changes."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal(BASE // 4).astype(np.float32)
    adapter = rng.standard_normal(ADAPTER // 4).astype(np.float32)
    adapters = []
    for step in range(steps):
        adapter = adapter + np.float32(1e-5) * rng.standard_normal(adapter.shape).astype(np.float32)
        shelf.snapshot({"base": base, "adapter": adapter}, step=step)
        adapters.append(adapter)
    return adapters


def test_new_bytes(shelf: lmcstore.Shelf, store: lmcstore.Store) -> None:
    lora(shelf, 5)
    added = [snapshot.new_bytes for snapshot in shelf]
    assert added[0] is not None and BASE + ADAPTER <= added[0] < BASE + ADAPTER + 10_000
    assert all(new is not None and ADAPTER <= new < ADAPTER + 10_000 for new in added[1:])
    assert all(snapshot.stored_bytes >= BASE + ADAPTER for snapshot in shelf)
    shelf[3].fork("tune")
    assert store["tune"].latest.new_bytes == 0 and shelf[3].new_bytes == added[2]
    pending = shelf.snapshot({"base": np.zeros(5)}, wait=False)
    assert pending.new_bytes is not None and 0 < pending.new_bytes < 10_000


def test_the_log_shows_new_bytes(shelf: lmcstore.Shelf) -> None:
    assert repr(shelf.log()) == f"shelf {shelf.name}"
    lora(shelf, 3)
    log = shelf.log()
    lines = repr(log).splitlines()
    assert lines[1].split("size")[1].split()[0] == "new"
    assert "78." in lines[2] and "1.2 MiB" in lines[2] and lines[-1].count("1.2 MiB") == 2
    assert "<th>new</th>" in log._repr_html_() and "<td>78." in log._repr_html_()
    shelf.rename("other")
    assert repr(log).splitlines()[2:] == lines[2:]
    shelf.drop()
    assert "?" not in lines[2]


def test_a_finished_run(shelf: lmcstore.Shelf, store: lmcstore.Store) -> None:
    with pytest.raises(lmcstore.NotFoundError):
        shelf.compact(finished=True)
    adapters = lora(shelf, 12)
    shelf.compact()
    assert shelf[1].stored_bytes < shelf[1].raw_bytes and shelf[-1].storage()["raw_contents"] >= 2
    raw = store.info()["raw_bytes"]
    assert set(raw) == {shelf.name} and raw[shelf.name] >= BASE + 4 * ADAPTER
    before = store.info()["live_bytes"]
    digests = [snapshot.digest for snapshot in shelf]
    shelf.compact(finished=True)
    assert store.info()["raw_bytes"] == {} and store.info()["live_bytes"] < before
    assert [snapshot.digest for snapshot in shelf] == digests and store.verify()["damages"] == 0
    for adapter, snapshot in zip(adapters, shelf, strict=True):
        assert snapshot["adapter"].numpy().tobytes() == adapter.tobytes()
        assert snapshot.stored_bytes < snapshot.raw_bytes
    lora(shelf, 1)
    store.compact()
    assert shelf.latest is not None and shelf.latest.storage()["raw_contents"] >= 2
    store.compact(finished=True)
    assert store.info()["raw_bytes"] == {}


@NEEDS_BIN
def test_the_command(pool_path: str) -> None:
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        lora(store["run"], 8)
    snapshots = as_json("ls", pool_path)["shelves"][0]["snapshots"]  # type: ignore[index]
    assert snapshots[0]["new_bytes"] >= BASE and all(ADAPTER <= s["new_bytes"] < BASE / 4 for s in snapshots[1:])
    page = command("ls", pool_path, "run").splitlines()
    assert page[1].split()[3:6] == ["RAW", "NEW", "STORED"]
    assert all(row.split()[5].startswith("78.") for row in page[3:10])
    assert command("ls", pool_path, "run", "-n", 2).splitlines()[2:] == page[8:]
    assert ", new 78." in command("ls", pool_path, "run@3")
    logged = as_json("log", pool_path, "run", "-n", 3)["snapshots"]
    assert [s["new_bytes"] for s in logged] == [s["new_bytes"] for s in snapshots[:-4:-1]]  # type: ignore[attr-defined]
    assert "MiB, 78." in command("log", pool_path, "-n", 1) and "new" in command("log", pool_path, "-n", 1)
    command("compact", pool_path)
    (raw,) = as_json("info", pool_path)["raw"]  # type: ignore[misc]
    assert raw["shelf"] == "run" and raw["raw_bytes"] > BASE and "--finished" in command("info", pool_path)
    assert "--finished" in command("compact", pool_path, "run", code=2)
    assert "walk" in command("compact", pool_path, "--finished", "walk", code=1)
    assert command("compact", pool_path, "--finished", "run").startswith("compacted: ")
    assert as_json("info", pool_path)["raw"] == [] and "--finished" not in command("info", pool_path)
    command("compact", pool_path, "--finished")
    command("verify", pool_path)


@NEEDS_BIN
@pytest.mark.parametrize(("compacted", "which"), [(True, "run@9..12"), (True, "run@5"), (False, "run@2..3")])
def test_removal_says_what_compaction_returns(pool_path: str, compacted: bool, which: str) -> None:
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        lora(store["run"], 12)
        if compacted:
            store.compact()
    dry = as_json("rm", pool_path, which, "--dry-run")
    done = as_json("rm", pool_path, which)
    assert "compact_bytes" in dry
    before = as_json("info", pool_path)["used_bytes"]
    after = as_json("compact", pool_path)["used_bytes"]
    assert before - after <= done["compact_bytes"]  # type: ignore[operator]
    assert "the file up to" in command("rm", pool_path, "run@latest")
