# SPDX-License-Identifier: BSD-3-Clause
"""A build of the package that can't succeed says in one line what is wrong and what to do."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[2] / "python"
BUILD = """
import pathlib, sys
import lmcstore_cmake
lmcstore_cmake.build(pathlib.Path("build"), {}, ["lmcstore_python"], pathlib.Path("stage"))
"""
FAKE = """#!/bin/sh
case $1 in --version) echo cmake version %s ;; *) cat said; exit 1 ;; esac
"""


def build_in(folder: Path, path: str, backend: Path = PYTHON / "backend", **env: str) -> str:
    """Build with the programs of `path`, and return the only line of the failure."""
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(backend), "PYTHONDONTWRITEBYTECODE": "1", **env}
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "", done
    (line,) = done.stderr.splitlines()
    assert line.startswith("lmcstore: ")
    return line


@pytest.mark.parametrize(
    "said, line",
    [
        (
            "CMake Error at x:7 (message):\n  These are missing:\n\n  libpmemobj (Debian:\n  x-dev)\n"
            "Call Stack (most recent call first):\n  f\n",
            "These are missing: libpmemobj (Debian: x-dev)",
        ),
        (
            "CMake Error at x (project):\n  No CMAKE_C_COMPILER could be found.\n\n\n",
            "no C compiler: install gcc",
        ),
        ("CMake Error: CMAKE_MAKE_PROGRAM is not set.\n", "neither Ninja nor make is there: pip install ninja"),
        ("cc: fatal error: a.o: No space left on device\n", "no space left on the device of "),
        (
            "CMake Error at x (execute_process):\n  Permission denied\n",
            "a built program can't be run; if",
        ),
        ("[1/2] cc a.c\n/a.c:3:5: error: unknown type\n  3 | x\n", "/a.c:3:5: error: unknown type"),
        ("[1/2]\nld: cannot find -lnuma: no such file\ncollect2: error: ld\n", "ld: cannot find -lnuma"),
        ("", "CMake failed without a message"),
    ],
)
def test_a_failed_build(said: str, line: str, tmp_path: Path) -> None:
    fake = tmp_path / "cmake"
    fake.write_text(FAKE % "3.25.1")
    fake.chmod(0o755)
    (tmp_path / "said").write_text(said)
    assert f"lmcstore: {line}" in build_in(tmp_path, f"{tmp_path}:/usr/bin:/bin")


def test_no_cmake_and_an_old_one(tmp_path: Path) -> None:
    assert "no CMake on PATH; 3.25 or newer is needed: pip install cmake" in build_in(tmp_path, "/nowhere")
    fake = tmp_path / "cmake"
    fake.write_text(FAKE % "3.24.4")
    fake.chmod(0o755)
    assert "the CMake on PATH is 3.24.4; 3.25 or newer is needed" in build_in(tmp_path, f"{tmp_path}:/usr/bin:/bin")


def test_no_compiler(tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("CMake is not installed")
    assert "/nowhere/gcc" in build_in(tmp_path, os.environ["PATH"], CC="/nowhere/gcc")


def test_no_sources(tmp_path: Path) -> None:
    shutil.copytree(PYTHON / "backend", tmp_path / "python" / "backend")
    line = build_in(tmp_path, os.environ["PATH"], tmp_path / "python" / "backend")
    assert f"{tmp_path} has no store/lmcstore.h: build from a whole checkout of lmc-store, or from its sdist" in line


def test_pip_of_an_old_python(tmp_path: Path) -> None:
    """The backend gives pip the metadata. ruff takes its files for an old Python's."""
    if missing := [name for name in ("pip", "setuptools", "wheel") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    shutil.copytree(PYTHON, tmp_path / "python", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    for name in ("CMakeLists.txt", "README.md", "store/lmcstore.h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(PYTHON.parent / name, tmp_path / name)
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--python-version", "3.10", "-d", tmp_path, tmp_path / "python"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "ERROR: Package 'lmcstore' requires a different Python: 3.10.0 not in '>=3.11'"
