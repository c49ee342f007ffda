# SPDX-License-Identifier: BSD-3-Clause
"""Uses the installed wheel without a checkout and without torch; tests/run.sh install runs it.

    wheel.py FOLDER CHECKOUT

Only the standard library and the wheel are there.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

MOST_MS = 100.0
TRIES = 7
TIMED = "import time; begun = time.process_time(); import lmcstore; print(1000 * (time.process_time() - begun))"
"""The processor's time: what else the machine does has less of a part in it."""
SYSTEM = {"pmemobj", "pmem", "numa", "ndctl", "daxctl", "isal", "jansson"}
"""What the module takes from the system: README.md says why."""


def check_contents(checkout: Path) -> Path:
    import lmcstore
    import lmcstore._core

    files = {str(file) for file in distribution("lmcstore").files or ()}
    for name in ("lmcstore/py.typed", "lmcstore/_core.pyi", "pymm/py.typed", "pymm/__init__.py"):
        assert name in files, f"the wheel has no {name}"
    tag = distribution("lmcstore").read_text("WHEEL") or ""
    assert "Tag: cp311-abi3-linux_" in tag and tag.count("Tag:") == 1, tag
    module = Path(str(lmcstore._core.__file__))
    assert module.name == "_core.abi3.so" and checkout not in (*module.parents, *module.resolve().parents), module
    assert importlib.util.find_spec("torch") is None and importlib.util.find_spec("numpy") is None
    assert not {"torch", "numpy"} & set(sys.modules)
    return module


def check_libraries(module: Path) -> None:
    """Check that the module contains our libraries, and the others that it needs."""
    lines = subprocess.run(["ldd", str(module)], capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = {line.split(".so")[0].strip().removeprefix("lib") for line in lines if line.strip().startswith("lib")}
    assert not {name for name in wanted if name.startswith("lmc")}, lines
    assert wanted >= SYSTEM - {"daxctl"}, wanted
    print("libraries of the system:", *sorted(wanted))


def check_import_time() -> None:
    best = min(float(subprocess.check_output([sys.executable, "-c", TIMED], text=True)) for _ in range(TRIES))
    print(f"import lmcstore: {best:.1f} ms of the processor's time, the best of {TRIES}")
    assert best < MOST_MS


def check_wants() -> None:
    done = subprocess.run([sys.executable, "-c", "import pymm"], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last == "ImportError: pymm needs NumPy: pip install numpy", done.stderr
    print(last)


def check_round_trip(folder: Path) -> None:
    import lmcstore

    nested = [1, 2.5, None, {"bytes": b"\0\1"}]
    state = {"step": 3, "text": "Grüße", "nested": nested, "big": bytes(range(256)) * 1000}
    with lmcstore.open(folder / "a.pool", size="64MiB") as store:
        store["run"].snapshot(state, step=3, metrics={"loss": 0.5})
        store["run"].live["epoch"] = 7
        with open(folder / "archive", "wb") as file:
            store.dump(file)
    with lmcstore.open(folder / "a.pool", "r") as store:
        assert store["run"].latest.state_dict() == state and store["run"].latest["nested.3.bytes"] == b"\0\1"
        assert store["run"].live["epoch"] == 7
        assert store.verify()["damages"] == 0
    with lmcstore.open(folder / "b.pool", size="64MiB") as store, open(folder / "archive", "rb") as file:
        store.restore(file)
        assert store["run"].at(step=3).state_dict() == state
    print("snapshots, archive and live values: equal")


def main() -> None:
    folder, checkout = (Path(argument) for argument in sys.argv[1:3])
    check_libraries(check_contents(checkout))
    check_import_time()
    check_wants()
    check_round_trip(folder)


if __name__ == "__main__":
    main()
