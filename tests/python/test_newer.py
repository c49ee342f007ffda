# SPDX-License-Identifier: BSD-3-Clause
"""A frame of a newer codec is unsupported, never damage, in Python and the command."""

import os

import lmcstore
import numpy as np
import pytest
from command import NEEDS_BIN
from test_cli import as_json, text

xxhash = pytest.importorskip("xxhash")

IN_MEMORY = True


def forge(path):
    """Set an unknown incompatible flag in each frame and seal it."""
    count = 0
    with open(path, "r+b", buffering=0) as file:
        descriptor, end, place = file.fileno(), os.fstat(file.fileno()).st_size, 0
        while place < end:
            try:
                place = os.lseek(descriptor, place, os.SEEK_DATA)
            except OSError:
                break
            stop = os.lseek(descriptor, place, os.SEEK_HOLE)
            data = os.pread(descriptor, stop - place, place)
            at = data.find(b"LMCF")
            while at >= 0:
                prefix = bytearray(data[at : at + 56])
                if data[at + 56 : at + 64] == xxhash.xxh3_64_intdigest(bytes(prefix)).to_bytes(8, "little"):
                    prefix[8:12] = (0x4000).to_bytes(4, "little")
                    check = xxhash.xxh3_64_intdigest(bytes(prefix)).to_bytes(8, "little")
                    os.pwrite(descriptor, bytes(prefix) + check, place + at)
                    count += 1
                at = data.find(b"LMCF", at + 4)
            place = stop
    return count


@pytest.fixture
def pool(pool_path):
    """Three snapshots of "w"; the first's frame is newer, the others are raw."""
    weights = np.random.default_rng(7).standard_normal(20000).astype(np.float32)
    with lmcstore.open(pool_path, size="256MiB", background=False) as store:
        store["run"].keep_raw = 2
        for step in range(3):
            store["run"].snapshot({"w": weights + np.float32(step / 1000)}, step=step)
        store.compact()
    assert forge(pool_path) == 1
    return pool_path


def test_reading_raises_unsupported(pool):
    with lmcstore.open(pool, "r") as store:
        with pytest.raises(lmcstore.UnsupportedError, match="upgrade to read it"):
            store["run"][1].state_dict()
        assert store["run"][2].state_dict()["w"].shape == (20000,)


def test_checks_list_it_apart(pool):
    with lmcstore.open(pool, "r+", background=False) as store:
        report = store.verify()
        assert (report["damages"], report["unsupported"]) == (0, 1)
        assert [found["is_unsupported"] for found in report["list"]] == [True]
        for repair in (False, True):
            report = store.scrub(repair=repair)
            assert (report["damages"], report["repaired"], report["lost"], report["unsupported"]) == (0, 0, 0, 1)
            assert [found["state"] for found in report["list"]] == ["unsupported"]
        with pytest.raises(lmcstore.UnsupportedError):
            store["run"][1].state_dict()


@NEEDS_BIN
def test_the_command_lists_it_apart(pool):
    for command in ("verify", "scrub"):
        lines = text(command, pool, code=1)
        assert "newer version: " in lines and "damaged" not in lines
        answer = as_json(command, pool, code=1)
        assert (answer["ok"], answer["damages"], len(answer["newer"])) == (False, [], 1)
