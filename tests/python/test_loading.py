# SPDX-License-Identifier: BSD-3-Clause
"""An import that fails says why, in one line."""

import shutil
import subprocess
import sys
from pathlib import Path

import lmcstore
import pytest
from lmcstore._text import loading

PACKAGE = Path(lmcstore.__file__).parent


def import_of(folder: Path, *modules: str) -> str:
    """Import a copy of the package with these files as its C module, and return the last line."""
    shutil.copytree(PACKAGE, folder / "lmcstore", ignore=shutil.ignore_patterns("_core*.so", "__pycache__"))
    for name in modules:
        (folder / "lmcstore" / name).write_bytes(b"")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import lmcstore"
    done = subprocess.run([sys.executable, "-P", "-c", code, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_checkout(tmp_path: Path) -> None:
    line = import_of(tmp_path)
    assert line.startswith("ImportError: lmcstore's C module can't be loaded") and "pip install ./python" in line


def test_another_python(tmp_path: Path) -> None:
    line = import_of(tmp_path, "_core.cpython-99-x86_64-linux-gnu.so")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert line.startswith("ImportError: lmcstore's C module was built for another Python (_core.cpython-99-x86_64")
    assert f"than this {here}; install" in line


def test_a_free_threaded_python_without_its_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "_core.abi3.so").touch()
    monkeypatch.setattr(loading, "FOLDER", tmp_path)
    assert "can't be loaded (it)" in loading.explain(ImportError("it"))
    monkeypatch.setattr(sys, "abiflags", "t")
    assert "built for another Python (_core.abi3.so) than this free-threaded 3." in loading.explain(SystemError())
