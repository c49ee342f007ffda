# SPDX-License-Identifier: BSD-3-Clause
"""``python -m lmcstore ARGUMENTS``: the command ``lmc-store`` that was installed with this package."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NoReturn

PACKAGE = Path(__file__).resolve().parent


def places() -> Iterator[Path]:
    """Yield the paths that installers put the command at."""
    # pip install --target, after which the recorded paths are wrong.
    yield PACKAGE.parent / "bin" / "lmc-store"
    try:
        installed = distribution("lmcstore")
    except PackageNotFoundError:
        pass
    else:
        package = Path(str(installed.locate_file("lmcstore"))).resolve()
        if package == PACKAGE or not package.exists():  # pip install -e leaves the package in the checkout
            yield from (
                Path(str(file.locate())) for file in installed.files or () if file.parts[-2:] == ("bin", "lmc-store")
            )
    # Packages of a system record no paths.
    if PACKAGE.is_relative_to(Path(sys.prefix).resolve()):
        yield Path(sys.prefix) / "bin" / "lmc-store"


def main() -> NoReturn:
    """Become the command."""
    found = next((place for place in places() if place.is_file()), None)
    if found is None:
        sys.exit(f"lmcstore: {PACKAGE} came without the command lmc-store; install the wheel of lmcstore again")
    try:
        os.execv(found, ["lmc-store", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"lmcstore: {found.resolve()} can't be run: {error.strerror}")


if __name__ == "__main__":
    main()
