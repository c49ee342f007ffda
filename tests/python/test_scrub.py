# SPDX-License-Identifier: BSD-3-Clause
"""Scrub and repair, from Python and the command: damage is reported, repaired, or recorded as lost."""

import os
import subprocess
import sys

import lmcstore
import numpy as np
import pytest
from command import NEEDS_BIN
from test_cli import as_json, cli, text

ROWS, COLUMNS = 640, 1024


def damage(path, needle, at):
    """Turns the byte `at` bytes after the raw `needle`."""
    with open(path, "r+b", buffering=0) as file:
        descriptor, end = file.fileno(), os.fstat(file.fileno()).st_size
        place = 0
        while place < end:
            place = os.lseek(descriptor, place, os.SEEK_DATA)
            stop = os.lseek(descriptor, place, os.SEEK_HOLE)
            found = os.pread(descriptor, stop - place, place).find(needle)
            if found >= 0:
                byte = os.pread(descriptor, 1, place + found + at)
                os.pwrite(descriptor, bytes([byte[0] ^ 1]), place + found + at)
                return
            place = stop
    raise AssertionError("it is not stored raw")


@pytest.fixture
def weights():
    return np.random.default_rng(7).standard_normal((ROWS, COLUMNS)).astype(np.float32)


@pytest.fixture
def pool(pool_path, weights):
    """Snapshots 1 to 3 share "w", damaged in its second block; an earlier archive is sound."""
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        for step in range(3):
            store["run"].snapshot({"w": weights, "step": np.full(1000, step)}, step=step)
        with open(pool_path + ".archive", "wb") as file:
            store.dump(file)
    damage(pool_path, weights[:1].tobytes(), 2 * 1024 * 1024 - 4)
    return pool_path


def test_what_is_damaged_is_named_and_repaired(pool, weights):
    with lmcstore.open(pool, "r+", background=False) as store:
        report = store.scrub()
        assert report["damages"] == 1 and report["repaired"] == 0 and report["is_whole"]
        (found,) = report["list"]
        assert found["state"] == "found" and found["tensor"] == "w"
        assert (found["first_row"], found["row_count"]) == (256, 256)
        assert (found["first_element"], found["element_count"]) == (256 * COLUMNS, 256 * COLUMNS)
        assert found["holders"] == [{"shelf": "run", "tensor": "w", "first": 1, "last": 3, "count": 3}]
        assert store.info()["scrub_found"] == 1 and store.info()["scrubbed_ns"] > 0

        report = store["run"].scrub("1..2", repair=True)
        assert report["list"][0]["state"] == "lost" and report["lost"] == 1
        with pytest.raises(lmcstore.DamagedError, match="rows 256 to 511 of 640"):
            store["run"][2]["w"].numpy()
        assert (store["run"][2]["step"] == 1).all()

        store["fine"].snapshot({"a": np.arange(5)})
        with open(pool + ".part", "wb") as file:
            with pytest.raises(lmcstore.DamagedError):
                store.dump(file)
            file.truncate(0)
            file.seek(0)
            dumped = store.dump(file, skip_lost=True)
            assert dumped["snapshots"] == 1 and dumped["snapshots_lost"] == 3
        (left,) = lmcstore.archive.ls(pool + ".part")["snapshots"]
        assert (left["shelf"], left["number"]) == ("fine", 1)

        report = store.scrub(repair=True, sources=[pool + ".archive"])
        assert report["list"][0]["state"] == "repaired" and report["list"][0]["source"] == pool + ".archive"
        assert report["lost"] == 0 and store.info()["lost_contents"] == 0
        assert (np.asarray(store["run"][2]["w"]) == weights).all()
        assert store.verify()["damages"] == 0


def test_parity_repairs(pool_path, weights):
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        store["run"].policy = "parity=16+2"
        store["run"].snapshot({"w": weights})
        assert store.scrub(repair=True)["damages"] == 0
        assert 0.12 < store.info()["parity_bytes"] / weights.nbytes < 0.15
        damage(pool_path, weights[:1].tobytes(), 1000)
        assert store.scrub(repair=True)["list"][0]["source"] == "parity"
        assert store.scrub()["damages"] == 0


def test_samples_and_arguments(pool):
    with lmcstore.open(pool, "r", background=False) as store:
        seen = []
        report = store.scrub(progress=lambda what, done, total: seen.append((what, done, total)) or True)
        assert report["damages"] == 1 and seen[-1][0] == "scrubbing"
        assert store.scrub(sample="1MiB", rate="1GiB")["contents"] >= 1
        with pytest.raises(lmcstore.ReadOnlyError):
            store.scrub(repair=True)
        for sample in (0, 2, -0.5, float("nan"), "0%", "101%", "many", "0B", [1]):
            with pytest.raises(lmcstore.InvalidError):
                store.scrub(sample=sample)
        with pytest.raises(lmcstore.NotFoundError):
            store.scrub("run@9")
        with pytest.raises(lmcstore.InvalidError):
            store.scrub(sources=["elsewhere"])
    with lmcstore.open(pool, "r+", background=False) as store:
        contents, reports = store.info()["content_count"], []
        while not reports or not reports[-1]["is_whole"]:
            reports.append(store.scrub(sample="1%"))
        assert sum(report["contents"] for report in reports) == contents and len(reports) > 1
        with pytest.raises(lmcstore.NotFoundError):
            store.scrub(repair=True, sources=["/nowhere/at all"])


def test_a_source_whose_path_is_not_utf8(pool):
    os.rename(pool + ".archive", pool + ".\udcff")
    with lmcstore.open(pool, "r+", background=False) as store:
        (found,) = store.scrub(repair=True, sources=[pool + ".\udcff"])["list"]
        assert found["state"] == "repaired" and found["source"] == pool + ".\udcff"
        with pytest.raises(lmcstore.NotFoundError, match="\ufffd"):
            store.scrub(repair=True, sources=[pool + ".\udcfe"])


def test_past_a_bad_source(pool, weights):
    with open(pool + ".archive", "rb") as whole, open(pool + ".cut", "wb") as cut:
        cut.write(whole.read(100000))
    with lmcstore.open(pool, "r+", background=False) as store:
        with pytest.raises(lmcstore.DamagedError, match=r"cut: .*; without it: 1 damage found, 1 repaired") as caught:
            store.scrub(repair=True, sources=[pool + ".cut", pool + ".archive"])
        report = caught.value.report
        assert report["sources_unread"] == 1 and report["repaired"] == 1 and report["is_whole"]
        assert [item["state"] for item in report["list"]] == ["repaired"]
        assert (np.asarray(store["run"][2]["w"]) == weights).all()


def test_what_was_found_is_told_when_there_is_no_room(pool_path, weights):
    with lmcstore.open(pool_path, size="32MiB", background=False) as store:
        store["run"].snapshot({"w": weights})
        generator, step = np.random.default_rng(1), 0
        with pytest.raises(lmcstore.FullError) as caught:
            while step < 1000:
                step += 1
                store["filler"].snapshot({"noise": generator.bytes(1 << 20)})
        assert caught.value.report is None
        with open(pool_path + ".archive", "wb") as file:
            store.dump(file, "run")
        damage(pool_path, weights[:1].tobytes(), 2 * 1024 * 1024 - 4)
        with pytest.raises(lmcstore.FullError) as caught:
            store.scrub(repair=True, sources=[pool_path + ".archive"])
        report = caught.value.report
        assert report["damages"] == 1 and report["repaired"] == 0
        (found,) = report["list"]
        assert found["tensor"] == "w" and found["state"] == "found" and found["first_row"] == 256


@NEEDS_BIN
def test_the_command(pool, tmp_path):
    found = text("scrub", pool, code=1)
    assert "damaged: w, rows 256 to 511 (elements 262144 to 524287): " in found
    assert "  in run@1..3" in found.splitlines()
    answer = as_json("scrub", pool, "run@2", code=1)
    assert answer["found"] == 1 and answer["ok"] is False
    assert answer["damages"][0]["in"] == [{"shelf": "run", "tensor": "w", "first": 1, "last": 3, "count": 3}]

    lost = text("scrub", pool, "--repair", code=1)
    assert "lost: w" in lost and "1 content lost in part" in lost
    assert "1 tensor content lost in part" in text("info", pool)
    assert as_json("info", pool)["scrub"]["lost_contents"] == 1
    subprocess.run(["cp", "--sparse=always", pool, tmp_path / "copy"], check=True)
    cli("scrub", pool, "--repair", "--from", tmp_path / "copy", code=1)
    repaired = text("scrub", pool, "--repair", "--from", tmp_path / "copy", "--from", pool + ".archive")
    assert f"repaired from {pool}.archive" in repaired and "1 damage, 1 repaired" in repaired
    again = as_json("scrub", pool, "--repair", "--from", "/nowhere/at all", "--from", pool + ".archive", code=1)
    assert again["sources_unread"] == 1 and again["found"] == 0 and "/nowhere/at all" in again["error"]["message"]
    assert "no damage" in text("scrub", pool, "run@1..2", "--rate", "1GiB/s")
    assert "everything was checked" in text("scrub", pool)
    assert as_json("scrub", pool, "--sample", "10%")["found"] == 0
    for wrong in (["--sample", "x"], ["--rate", "fast"], ["--from", "x"], ["run@1", "--sample", "1%"]):
        cli("scrub", pool, *wrong, code=2)


@NEEDS_BIN
def test_beside_a_writer(pool):
    with lmcstore.open(pool, "r+", background=False):
        cli("scrub", pool, "--sample", "100%", code=1)
        assert "damaged: w" in text("scrub", pool, code=1)
        cli("scrub", pool, "--repair", "--wait", "0", code=1)


CUT = """
import os, sys, lmcstore, numpy
store = lmcstore.open(sys.argv[1], "r+", background=False)
os.truncate(sys.argv[1], int(sys.argv[2]))
calls = [store.scrub, lambda: store.scrub(repair=True), lambda: store["run"].snapshot({"w": numpy.ones(9)})]
for call in [*calls, lambda: store["run"][1].state_dict()]:
    try:
        call()
    except lmcstore.Error as error:
        print(error)
assert store.verify()["damages"] > 0
store.close()
"""


@pytest.mark.parametrize("length", [0, 4096, 3 << 20, 5 << 20])
def test_a_pool_that_is_cut_while_it_is_open(pool_path, weights, length):
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        store["run"].snapshot({"w": weights})
    done = subprocess.run(
        [sys.executable, "-c", CUT, pool_path, str(length)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.count("cut short") >= 3
    for command in ("verify", "scrub"):
        cli(command, pool_path, code=1)


def test_a_pool_that_was_made_longer(pool_path, weights):
    """Writing is refused; the message names the cause and a working remedy."""
    with lmcstore.open(pool_path, size="64MiB", background=False) as store:
        store["run"].snapshot({"w": weights})
    size = os.path.getsize(pool_path)
    for more in (1, 4096, 3 << 20):
        with open(pool_path, "ab") as file:
            file.write(b"x" * more)
        with pytest.raises(lmcstore.DamagedError, match=f"{size + more} bytes.*'truncate -s {size}'"):
            lmcstore.open(pool_path, "r+", background=False)
        with lmcstore.open(pool_path, "r") as store:
            assert (np.asarray(store["run"][1]["w"]) == weights).all()
        os.truncate(pool_path, size)
        with lmcstore.open(pool_path, "r+", background=False) as store:
            store["run"].snapshot({"w": weights})
