# SPDX-License-Identifier: BSD-3-Clause
"""Uses an installed wheel as its user would; use.sh runs it in a new virtual environment.

    use.py bare FOLDER          only the standard library and the wheel are there
    use.py all FOLDER           with NumPy: a run that is killed and goes on, PyMM, repair, the command

`--slow` is for emulated machines and slow Pythons: it sets no limits of time. `--full FOLDER` names a small file system
to fill.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import sysconfig
import warnings
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import lmcstore

MOST_MS = 100.0
TRIES = 7
TIMED = "import time; begun = time.process_time(); import lmcstore; print(1000 * (time.process_time() - begun))"
"""The processor's time: what else the machine does has less of a part in it."""
SYSTEM = {"pmemobj", "pmem", "isal", "jansson"}
"""What the module of a plain wheel takes from the system: store/PLATFORMS.md says why."""
SIZE = "64MiB"
FORBIDDEN = ("torch", "matplotlib")

LOOP = """
import os, sys
import numpy as np
import lmcstore

store = lmcstore.open(sys.argv[1], size="64MiB")
shelf = store["run"]
state = shelf.latest.state_dict() if shelf.latest else {"w": np.zeros(2000), "step": 0}
while True:
    state = {"w": state["w"] + 1, "step": state["step"] + 1}
    shelf.snapshot(state, step=state["step"])
    print(state["step"], flush=True)
"""

FILL = """
import sys, numpy as np, lmcstore
generator = np.random.default_rng(1)
store = lmcstore.open(sys.argv[1])
while True:
    store["run"].snapshot({"w": generator.bytes(1 << 20)})
    print(len(store["run"]), flush=True)
"""


def run_command(*words: object, code: int = 0) -> str:
    """Run the wheel's lmc-store."""
    program = Path(sysconfig.get_path("scripts")) / "lmc-store"
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def damage(path: Path, needle: bytes, at: int) -> None:
    """Turn a bit of the byte that is `at` bytes after the needle."""
    with open(path, "r+b", buffering=0) as file:
        descriptor, end, place = file.fileno(), path.stat().st_size, 0
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


# ---- With the standard library alone --------------------------------------------------------------------------------


def check_contents() -> bool:
    """Check names, tags and libraries; return whether the wheel brings its libraries."""
    import lmcstore._core

    files = {str(file) for file in distribution("lmcstore").files or ()}
    for name in ("lmcstore/py.typed", "lmcstore/_core.pyi", "pymm/py.typed", "pymm/__init__.py"):
        assert name in files, f"the wheel has no {name}"
    tags = [line for line in (distribution("lmcstore").read_text("WHEEL") or "").splitlines() if "Tag:" in line]
    complete = any("manylinux" in tag for tag in tags)
    module = Path(str(lmcstore._core.__file__))
    assert Path(sys.prefix) in module.parents, f"{module} is not in {sys.prefix}"
    lines = subprocess.run(["ldd", str(module)], capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = {line.split(".so")[0].strip().removeprefix("lib") for line in lines if line.strip().startswith("lib")}
    print(*tags, "libraries of the system:", *sorted(wanted), sep=" ")
    if complete:
        assert wanted <= {"c", "m", "pthread", "dl", "rt"}, lines
    else:
        assert wanted >= SYSTEM and not {name for name in wanted if name.startswith("lmc")}, lines
    return complete


def check_import_time(slow: bool) -> None:
    best = min(float(subprocess.check_output([sys.executable, "-c", TIMED], text=True)) for _ in range(TRIES))
    print(f"import lmcstore: {best:.1f} ms of the processor's time, the best of {TRIES}")
    assert slow or best < MOST_MS


def check_without_numpy() -> None:
    assert importlib.util.find_spec("numpy") is None and importlib.util.find_spec("torch") is None
    done = subprocess.run([sys.executable, "-c", "import pymm"], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last == "ImportError: pymm needs NumPy: pip install numpy", done.stderr
    print(last)


def check_round_trip(folder: Path) -> None:
    nested = [1, 2.5, None, {"bytes": b"\0\1"}]
    state = {"step": 3, "text": "Grüße", "nested": nested, "big": bytes(range(256)) * 1000}
    with lmcstore.open(folder / "a.pool", size=SIZE) as store:
        store["run"].snapshot(state, step=3, metrics={"loss": 0.5})
        store["run"].live["epoch"] = 7
        with open(folder / "archive", "wb") as file:
            store.dump(file)
    with lmcstore.open(folder / "a.pool", "r") as store:
        assert store["run"].latest.state_dict() == state and store["run"].latest["nested.3.bytes"] == b"\0\1"
        assert store["run"].live["epoch"] == 7
        assert store.verify()["damages"] == 0
    with lmcstore.open(folder / "b.pool", size=SIZE) as store, open(folder / "archive", "rb") as file:
        store.restore(file)
        assert store["run"].at(step=3).state_dict() == state
    print("snapshots, archive and live values: equal")


# ---- With NumPy -----------------------------------------------------------------------------------------------------


def check_kills(folder: Path) -> None:
    """Kill a run three times; each acknowledged step must be there, and the run must continue."""
    import numpy as np

    path, acknowledged = folder / "run.pool", 0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", LOOP, path], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = last = int(process.stdout.readline())
            assert first in (acknowledged + 1, acknowledged + 2), f"resumed at {first} after {acknowledged}"
            while last < first + 12:
                last = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            acknowledged = int((process.stdout.read().split() or [last])[-1])
    with lmcstore.open(path, "r") as store:
        assert store.verify()["damages"] == 0
        for step in range(1, acknowledged + 1):
            state = store["run"].at(step=step).state_dict()
            assert state["step"] == step and np.array_equal(state["w"], np.full(2000, float(step)))
    print(f"killed three times: all of {acknowledged} acknowledged snapshots are there")


def check_pymm(folder: Path) -> None:
    code = f"""
import os, signal, numpy as np, pymm
shelf = pymm.shelf("variables", size_mb=16, pmem_path={str(folder)!r})
shelf.table = np.arange(1000.0).reshape(10, 100)
shelf.table += 1
shelf.count = 1
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    import numpy as np
    import pymm

    shelf = pymm.shelf("variables", pmem_path=str(folder))
    assert np.array_equal(shelf.table, np.arange(1000.0).reshape(10, 100) + 1) and shelf.count == 1
    print("PyMM: a killed program's variables are there")


def check_repairs(folder: Path) -> None:
    """Repair by parity, and from an archive, in Python and by the command."""
    import numpy as np

    weights = np.random.default_rng(7).standard_normal((640, 1024)).astype(np.float32)
    path, archive = folder / "repair.pool", folder / "repair.archive"
    for parity, source in (("16+2", "parity"), ("none", str(archive))):
        path.unlink(missing_ok=True)
        with lmcstore.open(path, "x", size=SIZE, background=False) as store:
            store["run"].policy = f"parity={parity}"
            store["run"].snapshot({"w": weights})
            assert store.scrub(repair=True)["damages"] == 0
            with open(archive, "wb") as file:
                store.dump(file)
        damage(path, weights[:1].tobytes(), 1000)
        with lmcstore.open(path, "r+", background=False) as store:
            report = store.scrub(repair=True, sources=[archive] if parity == "none" else [])
            assert [item["source"] for item in report["list"]] == [source], report
            assert store.verify()["damages"] == 0 and np.array_equal(store["run"][1]["w"], weights)
    damage(path, weights[:1].tobytes(), 1000)
    run_command("scrub", path, "--repair", "--from", archive)
    run_command("verify", path)
    print("repaired: by parity, and from an archive")


def check_codec() -> None:
    import numpy as np
    from lmcstore import codec

    weights = (np.random.default_rng(1).standard_normal(300_000) * 0.02).astype(np.float32)
    frame = codec.compress(weights)
    assert codec.decompress(frame) == weights.tobytes() and len(frame) < 0.9 * weights.nbytes
    print(f"codec: {len(frame)} of {weights.nbytes} bytes")


def check_command(folder: Path) -> None:
    pool, copy = folder / "run.pool", folder / "copy.pool"
    version = run_command("--version")
    module = subprocess.check_output([sys.executable, "-m", "lmcstore", "--version"], text=True)
    assert version == module and distribution("lmcstore").version in version, (version, module)
    last = json.loads(run_command("ls", "--json", pool))["shelves"][0]["snapshots"][-1]["number"]
    assert f"* {last}  step {last}" in run_command("log", pool, "-n", "3")
    assert "0 removed" in run_command("diff", pool, "run@1", "run@latest")
    run_command("tag", pool, "run@2", "best")
    run_command("export", pool, "run@best", "-o", folder / "model.safetensors")
    run_command("dump", pool, "-o", folder / "run.archive")
    run_command("restore", folder / "run.archive", copy, "--size", SIZE)
    run_command("verify", copy)
    run_command("compress", folder / "model.safetensors", "-o", folder / "model.lmc")
    run_command("decompress", folder / "model.lmc", "-o", folder / "again.safetensors")
    assert (folder / "again.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    run_command("report", pool, "-o", folder / "report.html")
    assert "</html>" in (folder / "report.html").read_text()
    assert run_command("ls", folder / "none.pool", code=1) == ""
    print("the command:", version.strip())


def check_full_disk(folder: Path) -> None:
    """Fill the file system: one clear line, and all earlier snapshots are there."""
    path = folder / "full.pool"
    done = subprocess.run([sys.executable, "-c", FILL, path], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "FullError: " in last and "the disk is full" in last, done.stderr
    count = int(done.stdout.split()[-1])
    with lmcstore.open(path, "r") as store:
        assert len(store["run"]) == count and store.verify()["damages"] == 0
    print(f"a full disk after {count} snapshots: {last}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["bare", "all"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--full", type=Path)
    asked: Any = parser.parse_args()
    warnings.simplefilter("ignore", lmcstore.CreationWarning)
    os.environ["PYTHONWARNINGS"] = "ignore:there is no "
    if asked.what == "bare":
        check_contents()
        check_import_time(asked.slow)
        check_without_numpy()
        check_round_trip(asked.folder)
        return
    check_kills(asked.folder)
    check_pymm(asked.folder)
    check_repairs(asked.folder)
    check_codec()
    check_command(asked.folder)
    if asked.full is not None:
        check_full_disk(asked.full)
    for name in FORBIDDEN:
        assert name not in sys.modules and importlib.util.find_spec(name) is None, f"{name} is there"


if __name__ == "__main__":
    main()
