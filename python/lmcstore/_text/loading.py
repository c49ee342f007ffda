# SPDX-License-Identifier: BSD-3-Clause
"""Why the C module can't be loaded, in one line."""

import platform
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent

_PACKAGES = {
    "libpmemobj": ("libpmemobj1", "libpmemobj"),
    "libpmem": ("libpmem1", "libpmem"),
    "libndctl": ("libndctl6", "ndctl-libs"),
    "libdaxctl": ("libdaxctl1", "daxctl-libs"),
    "libnuma": ("libnuma1", "numactl-libs"),
    "libisal": ("libisal2", "isa-l"),
    "libjansson": ("libjansson4", "jansson"),
}
"""The packages of Debian and Fedora that have the libraries of a build from source."""

_MACHINES = {3: "32-bit x86", 40: "32-bit ARM", 62: "x86-64", 183: "arm64"}
"""By their numbers in the ELF header."""


def _machine(file: str | Path) -> str:
    """Return the processor that an ELF file is for, or nothing."""
    try:
        with Path(file).open("rb") as opened:
            header = opened.read(20)
    except OSError:
        return ""
    number = int.from_bytes(header[18:20], sys.byteorder)
    return _MACHINES.get(number, f"processor {number}") if header[:4] == b"\x7fELF" else ""


def _reason(said: str, module: Path) -> str | None:
    """Return what is wrong with the system, from the message of the dynamic loader; None: unknown."""
    built, here = _machine(module), _machine("/proc/self/exe")
    if built and here and built != here:
        return f"is for {built}, and this Python for {here}; install the wheel for {here}"
    if "musl" in said or "Error loading shared library" in said or "Error relocating" in said:
        return "needs glibc, and this Python uses musl; use a Python of a system with glibc 2.28 or newer"
    if found := re.search(r"version `GLIBC_([\d.]+)' not found", said):
        have = platform.libc_ver()[1] or "an older one"
        return (
            f"needs glibc {found[1]} or newer, and here is {have}; install a wheel for manylinux_2_28, or build it here"
        )
    if "failed to map segment" in said:
        return f"can't be loaded from {module.parent}: is the file system mounted noexec? ({said})"
    missing = re.search(r"((lib\w+)\.so[\w.]*): cannot open shared object file", said)
    old = re.search(r"((lib\w+)\.so[\w.]*): version `(\w+)[\w.]*' not found", said)
    found = missing or old
    if found is None:
        return None
    debian, fedora = _PACKAGES.get(found[2], ("", ""))
    packages = f" (Debian: {debian}, Fedora: {fedora})" if debian else ""
    return (
        f"needs {found[1]}, which is {'not installed' if missing else 'too old'}: install it{packages}, "
        "or the wheel for manylinux_2_28, which needs no libraries"
    )


def explain(error: Exception) -> str:
    """Return the message of the error that ends the import."""
    built = sorted(file.name for file in FOLDER.glob("_core*.so"))
    free = "free-threaded " if "t" in sys.abiflags else ""
    # A free-threaded 3.13 tries modules of the limited API, and fails.
    fitting = [suffix for suffix in EXTENSION_SUFFIXES if not (free and suffix == ".abi3.so")]
    if built and not any(f"_core{suffix}" in built for suffix in fitting):
        return (
            f"lmcstore's C module was built for another Python ({', '.join(built)}) than this "
            f"{free}{sys.version_info[0]}.{sys.version_info[1]}; install lmcstore with this Python's pip, "
            "from a wheel for it or from the sdist"
        )
    reason = _reason(str(error), FOLDER / built[0]) if built else None
    if reason is not None:
        return f"lmcstore's C module {reason}"
    if built:
        return f"lmcstore's C module can't be loaded: {error}"
    return (
        f"lmcstore's C module can't be loaded ({error}). In a checkout: pip install ./python, "
        "and run Python outside the directory python/"
    )
