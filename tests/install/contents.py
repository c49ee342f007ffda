# SPDX-License-Identifier: BSD-3-Clause
"""Checks the files that an installed wheel brings beside the package, in an environment and with pip install --target.

    contents.py FOLDER CHECKOUT

FOLDER/folder/target has what pip install --target made of the wheel. use.py uses the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path


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


def main() -> None:
    folder, checkout = (Path(argument) for argument in sys.argv[1:3])
    check_metadata(checkout)
    check_command(folder)


if __name__ == "__main__":
    main()
