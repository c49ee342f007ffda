# SPDX-License-Identifier: BSD-3-Clause
"""Builds ``lmcstore._core`` by CMake (CMakeLists.txt). It contains our libraries, so it needs no installed liblmcstore.

Variables of the environment:

LMCS_CMAKE_ARGS      more arguments of CMake, such as ``-DLMCS_LOAD_LIBRARIES=ON``
LMCS_PYTHON_ABI      such as ``cp314t``: build for another Python than the running one
LMCS_PYTHON_INCLUDE  the folders of that Python's headers, separated by ``:``
"""

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import setuptools
from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

sys.path.insert(0, str(Path(__file__).resolve().parent / "backend"))
import lmcstore_cmake

build_scripts, install_data = map(Distribution().get_command_class, ("build_scripts", "install_data"))

OTHER_ABI = os.environ.get("LMCS_PYTHON_ABI", "")
# A free-threaded Python has no limited API.
FREE_THREADED = OTHER_ABI.endswith("t") if OTHER_ABI else bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
LIMITED = not OTHER_ABI and not FREE_THREADED


def include_folders():
    """Return the folders of Python.h and pyconfig.h."""
    given = os.environ.get("LMCS_PYTHON_INCLUDE")
    folders = given.split(":") if given else [sysconfig.get_path("include"), sysconfig.get_path("platinclude")]
    if not any((Path(folder) / "Python.h").is_file() for folder in folders):
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-dev"
        lmcstore_cmake.fail(f"{folders[0]} has no Python.h: install Python's headers (Debian: {package})")
    return list(dict.fromkeys(folders))


class BuildPy(build_py):
    """``build_py`` without the files of an earlier build, which would get into the wheel."""

    def run(self):
        """Begin with an empty folder."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildByCMake(build_ext):
    """``build_ext`` by CMake."""

    def get_ext_filename(self, fullname):
        """Return the module's path, with the suffix of the Python that it is for."""
        if not OTHER_ABI:
            return super().get_ext_filename(fullname)
        machine = sysconfig.get_platform().removeprefix("linux-")  # of the wheel, which a cross build sets
        return f"{fullname.replace('.', '/')}.cpython-{OTHER_ABI.removeprefix('cp')}-{machine}-linux-gnu.so"

    def build_extension(self, ext):
        """Build the module, and copy it to where setuptools wants it."""
        definitions = ["Py_LIMITED_API=0x030B0000"] if LIMITED else ["Py_GIL_DISABLED=1"] if FREE_THREADED else []
        settings = {
            "CMAKE_BUILD_TYPE": "Debug" if self.debug else "Release",
            "BUILD_SHARED_LIBS": "OFF",
            "LMCS_BUILD_PYTHON": "ON",
            "LMCS_BUILD_TESTS": "OFF",
            "LMCS_BUILD_TOOLS": "ON",
            "LMCS_PYTHON_DEFINITIONS": ";".join(definitions),
            "LMCS_PYTHON_INCLUDE": ";".join(include_folders()),
        }
        build = Path(self.build_temp).resolve() / "store"
        lmcstore_cmake.build(build, settings, ["lmcstore_python", "lmc-store"], stage_of(self))
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build / "lib" / "_core.so", target)


def stage_of(command):
    """Return the folder of the command as CMake installs it: bin/ and share/."""
    return Path(command.get_finalized_command("build_ext").build_temp).resolve() / "command"


class BuildScripts(build_scripts):
    """``build_scripts`` with the command lmc-store, which is no script."""

    def run(self):
        """Copy both; pip writes the path of its Python into the first line of the script."""
        super().run()
        self.copy_file(str(stage_of(self) / "bin" / "lmc-store"), self.build_dir)


class InstallData(install_data):
    """``install_data`` of the manual page and the completions."""

    def run(self):
        """Take all that CMake installed in share/."""
        stage = stage_of(self)
        files = sorted(path for path in (stage / "share").rglob("*") if path.is_file())
        self.data_files = [(str(path.parent.relative_to(stage)), [str(path)]) for path in files]
        super().run()


class TaggedWheel(bdist_wheel):
    """``bdist_wheel`` for another Python, if one is given."""

    def get_tag(self):
        """Return the three tags."""
        return (OTHER_ABI.rstrip("t"), OTHER_ABI, super().get_tag()[2]) if OTHER_ABI else super().get_tag()


def description():
    """Return the README; its links lead into the checkout, which a reader of the metadata lacks."""
    text = (lmcstore_cmake.sources() / "README.md").read_text()
    return re.sub(r"\[([^\]]+)\]\((?!\w+:)[^)]+\)", r"\1", text)


# Debian 12's setuptools has no expressions.
LICENSE = "license_expression" if int(setuptools.__version__.split(".")[0]) >= 77 else "license"

setup(
    version=lmcstore_cmake.version(),
    long_description=description(),
    long_description_content_type="text/markdown",
    **{LICENSE: "BSD-3-Clause"},
    ext_modules=[Extension("lmcstore._core", sources=[], py_limited_api=LIMITED)],
    scripts=[f"scripts/lmc-store-{name}" for name in ("report", "push", "pull", "remote")],
    data_files=[("share", [])],  # asks for InstallData
    cmdclass={
        "build_py": BuildPy,
        "build_ext": BuildByCMake,
        "build_scripts": BuildScripts,
        "install_data": InstallData,
        "bdist_wheel": TaggedWheel,
    },
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
)
