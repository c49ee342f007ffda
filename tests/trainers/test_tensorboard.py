# SPDX-License-Identifier: BSD-3-Clause
"""`lmc-store export --metrics tensorboard`, read by TensorBoard."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import lmcstore
import pytest

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

STEPS = [0, 10, 5_000_000_000]
BIN = os.environ.get("LMC_STORE_BIN", "lmc-store")


def test_tensorboard_reads_the_metrics(tmp_path: Path) -> None:
    with lmcstore.open(tmp_path / "run.pool") as store:
        for step in STEPS:
            store["run"].snapshot({"x": step}, step=step, metrics={"loss": 1 / (step + 1), "a/b é": -step})
        taken = [(one.time, one.metrics) for one in store["run"]]
    command = [BIN, "export", tmp_path / "run.pool", "--metrics", "tensorboard", "-o", tmp_path / "logs"]
    for _ in range(2):  # the second one replaces the file
        subprocess.run(command, check=True, capture_output=True)
    found = event_accumulator.EventAccumulator(str(tmp_path / "logs"))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {"loss", "a/b é"}
    for name in ("loss", "a/b é"):
        scalars = found.Scalars(name)
        assert [one.step for one in scalars] == STEPS
        assert [one.wall_time for one in scalars] == pytest.approx([time for time, _ in taken])
        assert [one.value for one in scalars] == pytest.approx([metrics[name] for _, metrics in taken])
