# SPDX-License-Identifier: BSD-3-Clause
"""lmcstore.open(expect=): space prepared for the first snapshot, and given back by the close."""

import os
import time
from pathlib import Path

import lmcstore
import numpy as np
import pytest

MIB = 1 << 20
STATE = {f"w{i}": np.full(MIB // 8, i, dtype=np.float64) for i in range(8)}


def disk_bytes(path: Path) -> int:
    return os.stat(path).st_blocks * 512


def wait_until_used(store: lmcstore.Store, size: int) -> None:
    """Wait until the pool uses so many bytes of the disk."""
    deadline = time.monotonic() + 60
    while store.info()["used_bytes"] < size:
        assert time.monotonic() < deadline, store.info()["used_bytes"]
        time.sleep(0.005)


def test_space_is_prepared_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "run.pool"
    with lmcstore.open(path, "x", expect="12MiB") as store:
        wait_until_used(store, 13 * MIB)
        info = store.info()
        assert info["free_bytes"] > 0 and info["live_bytes"] < MIB
        store.pause()
        store["run"].snapshot(STATE)
        assert store.info()["used_bytes"] < 17 * MIB
        store.resume()
    with lmcstore.open(tmp_path / "plain.pool", "x", background=False) as store:
        store["run"].snapshot(STATE)
    assert disk_bytes(path) <= disk_bytes(tmp_path / "plain.pool") + MIB
    with lmcstore.open(path, "r", expect=MIB) as store:
        assert store["run"].latest["w7"][-1] == 7


def test_nothing_is_prepared_without_the_background(tmp_path: Path) -> None:
    with lmcstore.open(tmp_path / "run.pool", "x", expect=12 * MIB, background=False) as store:
        assert store.info()["used_bytes"] < MIB


@pytest.mark.parametrize("wrong", ["much", -1, 1 << 80])
def test_a_wrong_size_is_refused(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(lmcstore.InvalidError):
        lmcstore.open(tmp_path / "run.pool", "x", expect=wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "run.pool").exists()
