# SPDX-License-Identifier: BSD-3-Clause
"""The build backend: setuptools', which asks for CMake and Ninja only where the system has none."""

import shutil

import lmcstore_cmake
from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings=None):
    """Return the requirements of a build beside pyproject.toml's."""
    wanted = build_meta.get_requires_for_build_wheel(config_settings)
    if not lmcstore_cmake.has_cmake():
        wanted.append(f"cmake>={lmcstore_cmake.oldest_cmake()}")
    if shutil.which("ninja") is None:
        wanted.append("ninja")
    return wanted


get_requires_for_build_editable = get_requires_for_build_wheel
