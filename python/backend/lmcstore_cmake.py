# SPDX-License-Identifier: BSD-3-Clause
"""The C sources beside the Python package, and their build by CMake. An error is one line, raised as SystemExit."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

PYTHON = Path(__file__).resolve().parent.parent
"""The folder of pyproject.toml."""
SOURCES = next((top for top in (PYTHON / "checkout", PYTHON.parent) if (top / "store/lmcstore.h").is_file()), None)
"""An sdist carries the sources in checkout/; in a checkout they are around python/."""

LEAST_FREE_BYTES = 1 << 20


def fail(message: str) -> NoReturn:
    """End the build with one line."""
    raise SystemExit(f"lmcstore: {message}")


def sources() -> Path:
    """Return the folder of the C sources."""
    if SOURCES is None:
        fail(f"{PYTHON.parent} has no store/lmcstore.h: build from a whole checkout of lmc-store, or from its sdist")
    return SOURCES


def version() -> str:
    """Return the version, which store/lmcstore.h defines."""
    header = (sources() / "store/lmcstore.h").read_text()
    macros = dict(re.findall(r"^#define LMCS_VERSION_(\w+)\s+(\d+)", header, re.MULTILINE))
    return ".".join(macros[part] for part in ("MAJOR", "MINOR", "PATCH"))


def oldest_cmake() -> str:
    """Return the oldest sufficient CMake, such as "3.25"."""
    found = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", (sources() / "CMakeLists.txt").read_text())
    return found[1] if found else fail("CMakeLists.txt states no cmake_minimum_required")


def cmake_version() -> str | None:
    """Return the version of the CMake on PATH; None: there is none that runs."""
    try:
        shown = subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"version (\d+(?:\.\d+)+)", shown)
    return found[1] if found else None


def has_cmake() -> bool:
    """Return whether the CMake on PATH is new enough."""
    found = cmake_version()
    return found is not None and _numbers(found) >= _numbers(oldest_cmake())


def build(folder: Path, settings: dict[str, str], targets: list[str], stage: Path) -> None:
    """Configure the sources in `folder`, build the targets, and install the command in `stage`."""
    if not has_cmake():
        found = cmake_version()
        there = f"the CMake on PATH is {found}" if found else "no CMake on PATH"
        fail(f"{there}; {oldest_cmake()} or newer is needed: pip install cmake, or your system's package cmake")
    if shutil.which("ninja") and not os.environ.get("CMAKE_GENERATOR"):
        settings = {"CMAKE_GENERATOR": "Ninja", **settings}
    defines = [f"-D{name}={value}" for name, value in settings.items() if name != "CMAKE_GENERATOR"]
    generator = ["-G", settings["CMAKE_GENERATOR"]] if "CMAKE_GENERATOR" in settings else []
    extra = shlex.split(os.environ.get("LMCS_CMAKE_ARGS", ""))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{folder} can't be made: {error.strerror}")
    # --fresh: the checkout may have moved.
    _run(folder, ["cmake", "--fresh", *generator, "-S", str(sources()), "-B", str(folder), *defines, *extra])
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
    _run(folder, ["cmake", "--build", str(folder), "--parallel", jobs, "--target", *targets])
    shutil.rmtree(stage, ignore_errors=True)
    _run(folder, ["cmake", "--install", str(folder), "--component", "command", "--prefix", str(stage)])


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")[:3]]


def _run(folder: Path, command: list[str]) -> None:
    """Run a command. Its output goes to a log, and the reason of a failure into one line."""
    log = folder / "build.log"
    full = f"no space left on the device of {folder}: free some, or set TMPDIR to another folder"
    try:
        with log.open("wb" if "--fresh" in command else "ab") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False)
        if done.returncode == 0:
            return
        said = log.read_text(errors="replace")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            fail(full)
        fail(f"{shlex.join(command[:2])} can't be run: {error.strerror} ({folder})")
    # A compiler or CMake that can't write may report another reason, or none.
    if "No space left on device" in said or shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
        fail(full)
    fail(f"{_reason(said)} (log: {log})")


def _reason(said: str) -> str:
    """Return the reason of a failed build, from the output of CMake and the compiler."""
    if "CMAKE_C_COMPILER" in said and re.search(r"No CMAKE_C_COMPILER could be found|is not a full path", said):
        return "no C compiler: install gcc or clang, or set CC to one"
    if "CMAKE_MAKE_PROGRAM is not set" in said or "unable to find a build program" in said:
        return "neither Ninja nor make is there: pip install ninja, or your system's package ninja-build or make"
    if "ermission denied" in said:
        return "a built program can't be run; if its folder is mounted noexec, set TMPDIR to another one"
    # The first error of CMake is a paragraph; those of compilers are lines.
    of_cmake = re.search(r"^CMake Error[^\n]*:\n(.*?)(?:\n\n\n|\nCall Stack|\n-- |\Z)", said, re.MULTILINE | re.DOTALL)
    of_compiler = re.search(r"^.*(?:\berror: |undefined reference|cannot find -l).*$", said, re.MULTILINE)
    if of_cmake:
        return " ".join(of_cmake[1].split())
    lines = [line for line in said.splitlines() if line.strip()]
    return of_compiler[0].strip() if of_compiler else lines[-1] if lines else "CMake failed without a message"
