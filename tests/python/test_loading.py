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


def import_of(folder: Path, *modules: str, content: bytes = b"") -> str:
    """Import a copy of the package with these files as its C module, and return the last line."""
    shutil.copytree(PACKAGE, folder / "lmcstore", ignore=shutil.ignore_patterns("_core*.so", "__pycache__"))
    for name in modules:
        (folder / "lmcstore" / name).write_bytes(content)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import lmcstore"
    done = subprocess.run([sys.executable, "-P", "-c", code, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_checkout(tmp_path: Path) -> None:
    line = import_of(tmp_path)
    assert line.startswith("ImportError: lmcstore's C module can't be loaded") and "pip install ./python" in line


def test_another_python(tmp_path: Path) -> None:
    line = import_of(tmp_path, "_core.cpython-99-x86_64-linux-gnu.so")
    here = f"{'free-threaded ' * ('t' in sys.abiflags)}{sys.version_info[0]}.{sys.version_info[1]}"
    assert line.startswith("ImportError: lmcstore's C module was built for another Python (_core.cpython-99-x86_64")
    assert f"than this {here}; install" in line


def test_a_free_threaded_python_without_its_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "_core.abi3.so").touch()
    monkeypatch.setattr(loading, "FOLDER", tmp_path)
    monkeypatch.setattr(loading, "EXTENSION_SUFFIXES", [".abi3.so"])
    monkeypatch.setattr(sys, "abiflags", "")
    assert "can't be loaded: it" in loading.explain(ImportError("it"))
    monkeypatch.setattr(sys, "abiflags", "t")
    assert "built for another Python (_core.abi3.so) than this free-threaded 3." in loading.explain(SystemError())


def test_a_gil_that_is_forced_off() -> None:
    code = "import sys; sys._is_gil_enabled = lambda: False; import lmcstore"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: lmcstore needs the GIL, which PYTHON_GIL=0")


def changed(old: bytes, new: bytes) -> bytes:
    """Return the C module with other bytes of the same length, for the loader to stumble over."""
    content = Path(str(lmcstore._core.__file__)).read_bytes()
    if old not in content:
        pytest.skip(f"this build of the module has no {old!r}")
    return content.replace(old, new)


MODULE = Path(str(lmcstore._core.__file__)).name


def test_a_missing_library(tmp_path: Path) -> None:
    line = import_of(tmp_path, MODULE, content=changed(b"libjansson.so.4\0", b"libjansson.so.9\0"))
    assert line == (
        "ImportError: lmcstore's C module needs libjansson.so.9, which is not installed: install it "
        "(Debian: libjansson4, Fedora: jansson), or the wheel for manylinux_2_28, which needs no libraries"
    )


def test_an_old_glibc(tmp_path: Path) -> None:
    line = import_of(tmp_path, MODULE, content=changed(b"\0GLIBC_2.14\0", b"\0GLIBC_9.14\0"))
    assert line.startswith("ImportError: lmcstore's C module needs glibc 9.14 or newer, and here is 2.")
    assert "manylinux_2_28" in line


def test_another_processor(tmp_path: Path) -> None:
    content = bytearray(Path(str(lmcstore._core.__file__)).read_bytes())
    here, other = {62: ("x86-64", 183), 183: ("arm64", 62)}[content[18]]
    content[18] = other
    line = import_of(tmp_path, MODULE, content=bytes(content))
    built = "arm64" if other == 183 else "x86-64"
    assert line == (
        f"ImportError: lmcstore's C module is for {built}, and this Python for {here}; install the wheel for {here}"
    )


def test_an_empty_module(tmp_path: Path) -> None:
    assert import_of(tmp_path, MODULE).startswith("ImportError: lmcstore's C module can't be loaded: ")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Error loading shared library libc.so.6: No such file or directory (needed by _core.abi3.so)", "musl"),
        ("Error relocating _core.abi3.so: __memcpy_chk: symbol not found", "musl"),
        ("_core.abi3.so: failed to map segment from shared object: Operation not permitted", "noexec"),
        (
            "libpmemobj.so.1: version `LIBPMEMOBJ_1.11' not found (required by _core.abi3.so)",
            "needs libpmemobj.so.1, which is too old: install it (Debian: libpmemobj1, Fedora: libpmemobj)",
        ),
        ("libother.so.3: cannot open shared object file: No such file", "needs libother.so.3, which is not installed:"),
    ],
)
def test_words_of_the_loader(said: str, expected: str) -> None:
    line = loading.explain(ImportError(said))
    assert expected in line and line.startswith("lmcstore's C module ") and "\n" not in line


def test_public_names_are_loaded_when_one_is_used() -> None:
    """A command that takes a URL sends its first requests before."""
    code = """
import sys
import lmcstore._remote.command
assert "lmcstore.store" not in sys.modules
import lmcstore
assert lmcstore.errors.Error.__module__ == "lmcstore.errors" and "lmcstore.store" not in sys.modules
assert not hasattr(lmcstore, "something") and not hasattr(lmcstore, "__wrapped__")
assert not hasattr(lmcstore, "Something") and "lmcstore.store" in sys.modules
from lmcstore import *
assert open is lmcstore.open and Store is lmcstore.store.Store
assert set(lmcstore.__all__) <= set(dir(lmcstore)) and "lmcstore.lightning" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["Error", "Run", "__version__", "archive", "codec", "open", "pull"])
def test_each_public_name_can_be_the_first(name: str) -> None:
    code = f"import lmcstore; from lmcstore import {name}; assert lmcstore.{name} is {name}"
    subprocess.run([sys.executable, "-c", code], check=True)
