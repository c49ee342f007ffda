# SPDX-License-Identifier: BSD-3-Clause
"""Runs in object stores that a stranger has written."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore._remote import outline
from lmcstore._remote.push import Pusher
from test_remote_push import fill


def push_more(store: lmcstore.Store, url: str, addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Push run@2 with an archive that has more."""

    def dump(self: Pusher, _: str, older: object, sink: Any, *more: object) -> outline.Outline:
        reading, writing = os.pipe()

        def work() -> None:
            store._pool.dump(writing, addresses, (), False, False, False, None)
            os.close(writing)

        thread = threading.Thread(target=work)
        thread.start()
        with open(reading, "rb") as pipe:
            found = outline.parse(pipe.read, sink)
        thread.join()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Pusher, "dump", dump)
        store.push(url, "run@2")


@pytest.mark.parametrize("addresses", [("run@2", "mine@2"), ("mine@2",), ("run",), ("run@1",)])
def test_a_pull_changes_no_other_shelf(
    addresses: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/bucket"
    with lmcstore.open(tmp_path / "mine.pool", "x") as store:
        fill(store, 1, 1, "mine")
        with (tmp_path / "mine.lmcs").open("wb") as file:
            store.dump(file)
    with lmcstore.open(tmp_path / "hostile.pool", "x") as store:
        with (tmp_path / "mine.lmcs").open("rb") as file:
            store.restore(file)
        store["mine"].snapshot({"w": np.zeros(4)}, step=2, tags=["best"])
        fill(store, 1, 2)
        push_more(store, url, addresses, monkeypatch)
    with lmcstore.open(tmp_path / "mine.pool", "r+") as store:
        with pytest.raises(lmcstore.DamagedError, match=r"run@2 of .*: its archive, .*, has another (shelf|snapshot)"):
            lmcstore.pull(url, store)
        assert store.shelves() == ["mine"] and len(store["mine"]) == 1 and store["mine"].tags == {}
