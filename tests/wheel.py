# SPDX-License-Identifier: BSD-3-Clause
"""Uses the installed wheel without a checkout and without torch; tests/run.sh install runs it.

    wheel.py FOLDER CHECKOUT

Only the standard library and the wheel are there. FOLDER/folder/target has what pip install --target made of it.
"""

from __future__ import annotations

import importlib.util
import os
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


def check_metadata(checkout: Path) -> None:
    """Check the licence, the long description and the version."""
    import lmcstore

    wheel = distribution("lmcstore")
    licence = [file for file in wheel.files or () if file.name == "LICENSE"]
    assert len(licence) == 1 and licence[0].read_text() == (checkout / "LICENSE").read_text(), licence
    keys = wheel.metadata
    assert keys["License-Expression"] == "BSD-3-Clause" and keys["Description-Content-Type"] == "text/markdown"
    assert keys.get_payload().lstrip().startswith("# lmc-store\n") and "](store/" not in keys.get_payload()
    macros = (checkout / "store" / "lmcstore.h").read_text().split("#define LMCS_VERSION_")[1:4]
    version = ".".join(macro.split()[1] for macro in macros)
    assert lmcstore.__version__ == wheel.version == version, (lmcstore.__version__, wheel.version, version)
    print(f"lmcstore {version}, {keys['License-Expression']}")


def run(*words: object, path: str | None = None, code: int = 0) -> str:
    """Run a program and return its output."""
    env = {**os.environ, "PATH": "/usr/bin:/bin"} | ({"PYTHONPATH": path} if path else {})
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def check_command(folder: Path) -> None:
    """Check the command, its report, the manual page and the completions, in a venv and with --target."""
    target = folder / "folder" / "target"
    for prefix, path in (Path(sys.prefix), None), (target, str(target)):
        command = prefix / "bin" / "lmc-store"
        with command.open("rb") as file:
            assert file.read(4) == b"\x7fELF"
        assert run(command, "--version") == run(sys.executable, "-m", "lmcstore", "--version", path=path)
        pool = folder / f"{prefix.name}.pool"
        run(sys.executable, "-m", "lmcstore", "create", pool, "--size", "64MiB", path=path)
        assert "lmc-store report" in run(command, "report", "--help")
        page = pool.with_suffix(".html")
        run(command, "report", pool, "-o", page)
        assert "The pool is empty." in page.read_text()
        for file, word in (
            ("man/man1/lmc-store.1", "man"),
            ("bash-completion/completions/lmc-store", "bash"),
            ("zsh/site-functions/_lmc-store", "zsh"),
            ("fish/vendor_completions.d/lmc-store.fish", "fish"),
        ):
            assert (prefix / "share" / file).read_text() == run(command, "completion", word), file
        away = command.rename(folder / "away")
        (prefix / "bin" / "lmc-store-report").rename(folder / "report")
        assert "came without the command" in run(sys.executable, "-m", "lmcstore", path=path, code=1)
        away.rename(command)
        assert "pip install" in run(command, "report", pool, code=1)
        (folder / "report").rename(prefix / "bin" / "lmc-store-report")
    print("command, report, manual page, completions: in place")


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
    check_metadata(checkout)
    check_command(folder)
    check_import_time()
    check_wants()
    check_round_trip(folder)


if __name__ == "__main__":
    main()
