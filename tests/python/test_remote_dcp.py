# SPDX-License-Identifier: BSD-3-Clause
"""torch.distributed.checkpoint loads a run from its URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
import run_folder
from optional import torch
from test_remote_ranks import push, save

torch.Tensor  # noqa: B018 (skips without torch)

import torch.distributed.checkpoint as dcp  # noqa: E402
from lmcstore.dcp import StoreReader, StoreWriter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, place: Path) -> str:
    if request.param == "s3":
        pytest.importorskip("obstore")
    return f"file://{place}/bucket" if request.param == "file" else str(request.getfixturevalue("bucket"))


def test_shards_values_and_steps(place: Path, url: str) -> None:
    """The shards of four ranks fill whole tensors, and tensors that are views of others."""
    save(place / "run", 10, 20)
    push(place / "run", url)
    wanted = run_folder.arrays(10)
    state: dict[str, Any] = {}
    for name, array in wanted.items():
        *path, last = name.split(".")
        inner = state
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = torch.zeros(array.shape[::-1], dtype=torch.from_numpy(array).dtype).permute(
            tuple(reversed(range(array.ndim)))
        )
    reader = StoreReader(url, step=10)
    dcp.load(state, storage_reader=reader)
    assert reader.checkpoint_id == url and StoreReader.validate_checkpoint_id(url)
    for name, array in wanted.items():
        found: Any = state
        for key in name.split("."):
            found = found[key]
        assert np.array_equal(found.numpy(), array), name


def test_values_and_opaque_objects(place: Path, url: str) -> None:
    state = {"model": {"w": torch.arange(6.0)}, "rate": 0.5, "dtype": torch.float16}
    dcp.save(state, storage_writer=StoreWriter(place / "run", step=1))
    push(place / "run", url)
    target = {"model": {"w": torch.zeros(6)}, "rate": 0.0, "dtype": None}
    dcp.load(target, storage_reader=StoreReader(url))
    assert target["rate"] == 0.5 and target["dtype"] == torch.float16
    assert torch.equal(target["model"]["w"], torch.arange(6.0))  # type: ignore[index]


def test_what_is_no_run_of_ranks_is_refused(place: Path) -> None:
    url = f"file://{place}/bucket"
    with pytest.raises(dcp.api.CheckpointException, match="there is no run"):
        dcp.load({"x": torch.zeros(1)}, storage_reader=StoreReader(url))
    with lmcstore.open(place / "one.pool", "x") as store:
        store["run"].snapshot({"x": np.zeros(1)})
        store.push(url)
    with pytest.raises(dcp.api.CheckpointException, match="the run of one pool"):
        dcp.load({"x": torch.zeros(1)}, storage_reader=StoreReader(url))


def test_shards_of_four_ranks_are_loaded_by_three(place: Path) -> None:
    import dcp_ranks
    from test_dcp import _load_all, _save_steps

    url = f"file://{place}/bucket"
    dcp_ranks.run(4, _save_steps, place / "run", 1, 2)
    assert push(place / "run", url)["snapshots"] == 2
    dcp_ranks.run(3, _load_all, url, 1)
