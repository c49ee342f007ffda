# SPDX-License-Identifier: BSD-3-Clause
"""States that earlier versions of the Python package wrote (tests/data/pools/states.tar.xz)."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from optional import torch
from same import same
from test_plain import same_plain
from test_sharing import same_sharing, skeleton

POOLS = Path(__file__).parents[1] / "data" / "pools"


@pytest.fixture
def run(tmp_path: Path) -> Any:
    subprocess.run(["tar", "-xJf", POOLS / "states.tar.xz", "-C", tmp_path], check=True)
    with lmcstore.open(tmp_path / "a.pool", background=False) as store:
        yield store["run"]


@pytest.fixture(scope="module")
def make() -> Any:
    torch.zeros(1)  # skips without it
    spec = importlib.util.spec_from_file_location("make_states", POOLS / "make_states.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclass
    spec.loader.exec_module(module)
    return module


def test_states_come_back(run: lmcstore.Shelf, make: Any) -> None:
    first, second, third = make.states()
    assert [skeleton(snapshot)["lmcstore"] for snapshot in run] == [1, 2, 2]
    back = run[1].state_dict()
    same(first, back)
    assert back["model"]["tied"].data_ptr() == back["model"]["again"].data_ptr()
    back = run[2].state_dict(types={name: getattr(make, kind.__name__) for name, kind in make.TYPES.items()})
    assert back.keys() == second.keys()
    assert type(back["point"]) is make.Point and back["point"].y == [make.Color.RED]
    assert type(back["config"]) is make.Config and back["config"].color is make.Color.RED
    same([second["point"].x, second["config"].w], [back["point"].x, back["config"].w])
    for key in ("queue", "default", "plain", "record"):
        same_plain(second[key], back[key])
    assert run[2].state_dict()["config"]["color"] == 1
    same(third, run[3].state_dict())


def test_memory_is_shared(run: lmcstore.Shelf, make: Any) -> None:
    third = make.states()[2]
    loaded: dict[str, Any] = dict.fromkeys(third)
    run[3].load_into(loaded)
    for back in (run[3].state_dict(), loaded):
        same_sharing(_flat(third), _flat(back))
        back["torch"]["w"].zero_()
        assert not back["torch"]["tT"].any() and not back["torch"]["bits"].any() and not back["numpy"][2].any()
    loaded["numpy"][1][...] = 7
    assert np.all(loaded["numpy"][0][1:] == 7)


def test_writing_continues(run: lmcstore.Shelf, make: Any) -> None:
    state = run[3].state_dict()
    again = run.snapshot(state)
    assert skeleton(again) == skeleton(run[3])
    run.store.compact()
    same_sharing(_flat(state), _flat(run[4].state_dict()))
    same(make.states()[0], run[1].state_dict())


def _flat(state: dict[str, Any]) -> dict[str, Any]:
    pairs = {key: part.items() if isinstance(part, dict) else enumerate(part) for key, part in state.items()}
    return {f"{key}.{name}": value for key, parts in pairs.items() for name, value in parts}
