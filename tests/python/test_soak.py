# SPDX-License-Identifier: BSD-3-Clause
"""The soak (tests/stress/soak.py) separates growth from noise, and a short one passes."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).resolve().parents[2]
SOAK = TOP / "tests/stress/soak.py"
STRESS = TOP / "build/release/bin/stress"


@pytest.fixture(scope="module")
def soak() -> Any:
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    return module


def series(slope: float, jump_at: int = 0, noise: float = 0.1, seed: int = 1) -> list[tuple[float, float]]:
    """An hour of samples around 50,000 that grow by `slope` an hour, or once by 30 %."""
    numbers = random.Random(seed)
    return [
        (t, (50_000 + slope * t / 3600) * numbers.gauss(1, noise) * (1.3 if jump_at and t > jump_at else 1))
        for t in range(0, 3600, 5)
    ]


def test_noise_does_not_grow(soak: Any) -> None:
    for seed in range(40):
        trend = soak.trend_of(series(0, seed=seed), soak.MEMORY)
        assert trend is not None and not trend.grows and abs(trend.median - 50_000) < 2_000


def test_warm_up_does_not_count(soak: Any) -> None:
    assert not soak.trend_of(series(0, jump_at=600), soak.MEMORY).grows


def test_a_leak_grows(soak: Any) -> None:
    for seed in range(40):
        assert soak.trend_of(series(20_000, seed=seed), soak.MEMORY).grows
    assert soak.trend_of(series(6_000, noise=0.02), soak.MEMORY).grows
    shrinking = soak.trend_of(series(-20_000), soak.MEMORY)
    assert not shrinking.grows and shrinking.growth < -5_000


def test_counts_of_few(soak: Any) -> None:
    """One descriptor more every ten minutes is found; an alternation of ten and eleven is not."""
    leaking = [(t, float(10 + t // 600)) for t in range(0, 3600, 5)]
    assert soak.trend_of(leaking, soak.COUNT).grows
    numbers = random.Random(1)
    assert not soak.trend_of([(t, float(10 + numbers.randrange(2))) for t in range(0, 3600, 5)], soak.COUNT).grows


def test_too_short_to_say(soak: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.trend_of(series(0)[:10], soak.MEMORY) is None
    assert soak.evaluate({"writer_anon_kib": series(20_000)[:10]}) == 0
    assert "too short" in capsys.readouterr().out


@pytest.fixture
def pools() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="lmcs-soak-") as folder:
        yield Path(folder)


@pytest.mark.skipif(not STRESS.exists(), reason="build/release/bin/stress is not built")
def test_a_short_one(tmp_path: Path, pools: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SOAK), "--seconds", "20", "--in", str(pools), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert "no findings" in done.stdout, done.stdout + done.stderr
    lines = (tmp_path / "out/soak.csv").read_text().splitlines()
    columns = lines[0].split(",")
    assert len(lines) >= 3 and all(len(line.split(",")) == len(columns) for line in lines)
    sums = {name: sum(float(line.split(",")[i] or 0) for line in lines[1:]) for i, name in enumerate(columns)}
    assert all(
        value > 0
        for name, value in sums.items()
        if name in ("rounds", "calls", "snapshots", "contents") or name.endswith("kib")
    ), sums
    assert all(sums[f"{who}_{what}"] > 0 for who in ("writer", "reader") for what in ("fds", "maps", "threads")), sums
    assert any(value > 0 for name, value in sums.items() if name.endswith("_us")), sums
    assert list(pools.iterdir()) == []
