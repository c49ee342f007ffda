# SPDX-License-Identifier: BSD-3-Clause
"""Right-hand sides larger than memory: `pymm.enable_transient_memory`."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pymm
import pytest
from pymm_support import folder, run

__all__ = ["folder"]

LARGE = 1 << 20  # float64: 8 MiB


@pytest.fixture
def enabled(tmp_path: Path) -> Iterator[Path]:
    pymm.enable_transient_memory(backing_directory=str(tmp_path))
    yield tmp_path
    pymm.disable_transient_memory()


def mapped(place: Path) -> int:
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f"{place}/" in line:
            first, _, last = line.split()[0].partition("-")
            total += int(last, 16) - int(first, 16)
    return total


def test_large_arrays_are_in_files_without_names(enabled: Path) -> None:
    a = np.arange(LARGE, dtype=np.float64)
    assert 8 * LARGE < mapped(enabled) <= 8 * LARGE + 4096 and not any(enabled.iterdir())
    assert a.__array_interface__["data"][0] % 64 == 0
    b = a * 2 + 1
    assert mapped(enabled) > 16 * LARGE and b[-1] == 2 * LARGE - 1
    before = mapped(enabled)
    small, zeros = np.ones(1000), np.zeros(LARGE)
    assert small.sum() == 1000 and not zeros.any() and mapped(enabled) > before
    a.sort()
    del a, b, zeros
    assert mapped(enabled) == 0


def test_arrays_change_their_sizes(enabled: Path) -> None:
    a = np.arange(1000.0)
    for size in (LARGE, 2 * LARGE, LARGE + 5, 10, LARGE):
        kept = min(len(a), size)
        a.resize(size, refcheck=False)
        assert np.array_equal(a[: min(kept, 1000)], np.arange(float(min(kept, 1000))))
        assert (mapped(enabled) > 0) == (size >= LARGE)
        a[:1000] = np.arange(float(min(size, 1000)))


def test_disabling_leaves_arrays_where_they_are(enabled: Path) -> None:
    a = np.ones(LARGE)
    pymm.disable_transient_memory()
    b, before = np.ones(LARGE), mapped(enabled)
    assert before > 0 and a.sum() == b.sum() == LARGE
    del a
    assert mapped(enabled) == 0
    pymm.pymmcore.enable_transient_memory(str(enabled))
    c = np.ones(LARGE)
    assert mapped(enabled) > 0 and c.sum() == LARGE


def test_the_first_place_is_used_as_far_as_it_may_be(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    try:
        pymm.enable_transient_memory(str(second), pmem_file=str(first / "swap"), pmem_file_size_gb=20 / 1024)
        arrays = [np.full(LARGE, value) for value in range(3)]
        assert 16 * LARGE < mapped(first) <= 20 << 20 and mapped(second) > 8 * LARGE
        assert [int(array.sum()) for array in arrays] == [0, LARGE, 2 * LARGE]
        del arrays[0]
        arrays.append(np.ones(LARGE))
        assert mapped(first) > 16 * LARGE and not any(first.iterdir()) and not any(second.iterdir())
    finally:
        pymm.disable_transient_memory()


def test_other_threads_are_left_alone(enabled: Path) -> None:
    made: list[np.ndarray] = []
    before = mapped(enabled)
    thread = threading.Thread(target=lambda: made.append(np.ones(LARGE)))
    thread.start()
    thread.join()
    assert mapped(enabled) == before and made[0].sum() == LARGE
    here = [np.ones(LARGE)]
    thread = threading.Thread(target=here.clear)
    thread.start()
    thread.join()
    assert mapped(enabled) == before


def test_places_that_will_not_do(tmp_path: Path) -> None:
    for wrong in (
        {"backing_directory": str(tmp_path / "none")},
        {"backing_directory": "/proc"},
        {"backing_directory": str(tmp_path), "pmem_file": str(tmp_path / "none" / "swap")},
        {"backing_directory": str(tmp_path), "pmem_file": str(tmp_path / "swap"), "pmem_file_size_gb": -1},
        {"backing_directory": str(tmp_path), "pmem_file": str(tmp_path / "swap"), "pmem_file_size_gb": float("nan")},
    ):
        with pytest.raises(RuntimeError):
            pymm.enable_transient_memory(**wrong)  # type: ignore[arg-type]
    assert np.ones(LARGE).sum() == LARGE and mapped(tmp_path) == 0


def test_a_full_place_is_a_memory_error(tmp_path: Path) -> None:
    """Takes nothing from the place, which others may use."""
    code = f"""
import os, threading
import numpy as np, pymm
pymm.enable_transient_memory({str(tmp_path / "small")!r})
a = np.ones({LARGE})
least, done = 1 << 40, False
def watch():
    global least
    while not done:
        room = os.statvfs({str(tmp_path / "small")!r})
        least = min(least, room.f_bavail * room.f_frsize)
thread = threading.Thread(target=watch)
thread.start()
try:
    for _ in range(20):
        np.empty(60 << 20, np.uint8)
except MemoryError:
    pass
else:
    raise SystemExit("there was room")
finally:
    done = True
    thread.join()
print(int(a.sum()), least >= 55 << 20)
"""
    (tmp_path / "small").mkdir()
    script = f'mount -t tmpfs -o size=64m none {tmp_path}/small || exit 77; exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, code], capture_output=True, timeout=600, check=False
    )
    if b"unshare" in done.stderr or done.returncode == 77:
        pytest.skip("no mounts here")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().split() == [str(LARGE), "True"]


def test_expressions_larger_than_memory(folder: str, tmp_path: Path) -> None:
    """A limit counts results of expressions, not the shelf's arrays."""
    code = f"""
import resource
s = pymm.shelf("test", size_mb=8, pmem_path=folder)
s.x = pymm.ndarray((32 << 20,), dtype=np.float32)
s.x.fill(2)
data = next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (data + (64 << 20),) * 2)
try:
    s.x = s.x * 3 + 1
except MemoryError:
    pass
else:
    raise SystemExit("there was memory enough")
pymm.enable_transient_memory(backing_directory={str(tmp_path)!r})
s.x = s.x * 3 + 1
s.y = np.sqrt(s.x + s.x[::-1])
print(float(s.x[-1]), float(s.y[0]) ** 2)
"""
    x, y = map(float, run(folder, code).split())
    assert x == 7 and abs(y - 14) < 1e-5
