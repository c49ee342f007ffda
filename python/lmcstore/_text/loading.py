# SPDX-License-Identifier: BSD-3-Clause
"""Why the C module can't be loaded, in one line."""

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent


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
    return (
        f"lmcstore's C module can't be loaded ({error}). In a checkout: pip install ./python, "
        "and run Python outside the directory python/"
    )
