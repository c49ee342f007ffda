# SPDX-License-Identifier: BSD-3-Clause
"""The build backend: setuptools', with CMake and Ninja where the system has none, and an sdist that builds by itself.

The sdist has the C sources in checkout/, where lmcstore_cmake finds them. It is the same, bit for bit, for the same
files: SOURCE_DATE_EPOCH sets their time.

It and setup.py also run with Pythons that are too old, from 3.8: pip asks for the metadata before it compares versions.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from gzip import GzipFile
from pathlib import Path

import lmcstore_cmake
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

PACKAGE = (
    *("pyproject.toml", "setup.py", "LICENSE", "TUTORIAL.md"),
    *("backend", "examples", "lmcstore", "pymm", "scripts", "trainers"),
)
"""Of python/, at the top of the sdist."""
CHECKOUT = ("CMakeLists.txt", "README.md", "codec", "store", "tools/CMakeLists.txt", "tools/*.[ch]")
CHECKOUT += ("python/CMakeLists.txt", "python/core.map", "python/src")
"""Of the checkout, in checkout/."""
MADE = ("__pycache__", "build", "*.pyc", "*.so")
EPOCH = 315532800  # 1980, the first year of zip files; Ninja takes 0 for a missing file


def get_requires_for_build_wheel(config_settings=None):
    """Return the requirements of a build beside pyproject.toml's."""
    wanted = build_meta.get_requires_for_build_wheel(config_settings)
    if not lmcstore_cmake.has_cmake():
        wanted.append(f"cmake>={lmcstore_cmake.oldest_cmake()}")
    if shutil.which("ninja") is None:
        wanted.append("ninja")
    return wanted


get_requires_for_build_editable = get_requires_for_build_wheel


def _files(top: Path, patterns: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Yield the files that the patterns mean, and those in the folders: name below `top`, and path."""
    for found in (path for pattern in patterns for path in top.glob(pattern)):
        for path in found.rglob("*") if found.is_dir() else [found]:
            name = path.relative_to(top)
            if path.is_file() and not any(Path(part).match(made) for part in name.parts for made in MADE):
                yield str(name), path


def build_sdist(sdist_directory, config_settings=None):
    """Write the sdist and return its name."""
    name = f"lmcstore-{lmcstore_cmake.version()}"
    time = int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))
    members = dict(_files(lmcstore_cmake.PYTHON, PACKAGE))
    members |= {f"checkout/{file}": path for file, path in _files(lmcstore_cmake.sources(), CHECKOUT)}
    with tempfile.TemporaryDirectory() as folder:
        metadata = Path(folder) / prepare_metadata_for_build_wheel(folder, config_settings)
        members["PKG-INFO"] = metadata / "METADATA"
        with (Path(sdist_directory) / f"{name}.tar.gz").open("wb") as raw, GzipFile(
            filename="", fileobj=raw, mode="wb", mtime=time
        ) as packed, tarfile.open(fileobj=packed, mode="w", dereference=True, format=tarfile.PAX_FORMAT) as archive:
            for file, path in sorted(members.items()):
                member = archive.gettarinfo(path, f"{name}/{file}")
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                member.mode = 0o755 if member.mode & 0o100 else 0o644
                member.mtime = time
                with path.open("rb") as content:
                    archive.addfile(member, content)
    return f"{name}.tar.gz"
