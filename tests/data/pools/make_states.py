# SPDX-License-Identifier: BSD-3-Clause
"""Writes states/a.pool, states of Python (make_later.sh). tests/python/test_old_states.py reads `states` again."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import sys
from collections import OrderedDict, defaultdict, deque
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import lmcstore
import numpy as np
import torch


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Config:
    lr: float
    color: Color
    w: Any


TYPES = {f"__main__.{kind.__qualname__}": kind for kind in (Color, Point, Config)}


def states() -> list[Any]:
    """Version 1; the nodes of version 2; tensors that share memory."""
    tied, t, a = torch.arange(6.0), torch.arange(24.0).view(6, 4), np.arange(12.0).reshape(3, 4)
    first = {
        "model": OrderedDict(w=torch.arange(8, dtype=torch.float32).view(2, 4), tied=tied, again=tied.detach()),
        "values": [1, 2.5, "x", None, True, (b"y", {1, 2}), 1 + 2j],
        1: np.arange(5, dtype=">i4"),
    }
    record = np.array([(1, (2.0, 3.0)), (4, (5.0, 6.0))], [("a", "<i4"), ("b", "<f8", (2,))])
    second = {
        "point": Point(torch.ones(2), [Color.RED]),
        "config": Config(0.1, Color.RED, torch.zeros(3)),
        "queue": deque([1, torch.ones(1)], maxlen=4),
        "default": defaultdict(list, {"a": [torch.zeros(2)]}),
        "plain": [PurePosixPath("/tmp/x"), datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)],
        "record": record,
    }
    third = {
        "torch": {"w": t, "rows": t[2:5], "tT": t.T, "column": t[:, 0], "bits": t.view(torch.int32)[1]},
        "numpy": [a, a[1:, ::-1], t.numpy()[3]],
        "no base": [tied[0:4], tied[2:6], tied[1]],
        "expanded": [first["model"]["w"][0, :1].expand(3), first["model"]["w"][0]],
    }
    return [first, second, third]


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "states"
    folder.mkdir(parents=True)
    with lmcstore.open(folder / "a.pool", "x", background=False) as store:
        for step, state in enumerate(states()):
            store["run"].snapshot(state, step=step)
