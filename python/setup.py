# SPDX-License-Identifier: BSD-3-Clause
"""Builds ``lmcstore._core``: the C libraries of the checkout as static archives by CMake, then the module over them.

The module contains the libraries, so it needs no RPATH and no installed liblmcstore.
"""

import os
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
SYSTEM_LIBRARIES = ["pmemobj", "pmem", "numa", "ndctl", "daxctl", "isal", "jansson", "pthread", "m"]


class BuildWithStore(build_ext):
    """``build_ext`` that first builds liblmc.a and liblmcstore.a."""

    def build_extension(self, ext):
        """Build the static libraries, link them in, and build the module."""
        if not (CHECKOUT / "store" / "lmcstore.h").exists():
            raise SystemExit(f"lmcstore is built from a checkout of lmc-store: {CHECKOUT} has no store/lmcstore.h")
        build = Path(self.build_temp).resolve() / "store"
        configure = [
            "cmake",
            "--fresh",  # the checkout may have moved
            "-S",
            str(CHECKOUT),
            "-B",
            str(build),
            f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'RelWithDebInfo'}",
            "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
            "-DBUILD_SHARED_LIBS=OFF",
            "-DLMCS_BUILD_TESTS=OFF",
            "-DLMCS_BUILD_TOOLS=OFF",
        ]
        jobs = str(os.cpu_count() or 1)
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build), "--target", "lmcstore", "lmc", "--parallel", jobs], check=True)
        archives = [sorted(build.rglob(name)) for name in ("liblmcstore.a", "liblmc.a")]
        if not all(archives):
            raise SystemExit(f"CMake built no static liblmcstore.a and liblmc.a below {build}")
        ext.extra_objects = [str(found[0]) for found in archives]
        ext.depends = [*ext.depends, *ext.extra_objects]
        super().build_extension(ext)


core = Extension(
    "lmcstore._core",
    sources=sorted(f"src/{path.name}" for path in (HERE / "src").glob("*.c")),
    depends=["src/core.h", *map(str, CHECKOUT.glob("store/**/*.h")), "../codec/lmc.h"],
    include_dirs=[str(CHECKOUT / "store"), str(CHECKOUT / "codec")],
    libraries=SYSTEM_LIBRARIES,
    extra_compile_args=["-std=c17", "-Wall", "-Wextra", "-fvisibility=hidden"],
    extra_link_args=["-Wl,--exclude-libs,ALL"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
)

setup(
    ext_modules=[core],
    cmdclass={"build_ext": BuildWithStore},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
