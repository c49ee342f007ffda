# SPDX-License-Identifier: BSD-3-Clause
"""Finds or fetches programs to measure."""

import shutil
import subprocess
import tempfile
from pathlib import Path


def debian_tool(name: str, folder: Path) -> Path:
    """Find a program, or unpack its Debian package into a folder.

    Raises
    ------
    RuntimeError
        It is unavailable, with the reason.
    """
    found = shutil.which(name)
    home = folder / name
    unpacked = home / "usr/bin" / name
    if found:
        return Path(found)
    if not unpacked.exists():
        with tempfile.TemporaryDirectory(prefix="package-", dir=folder) as made:
            try:
                subprocess.run(["apt-get", "download", "-q", name], cwd=made, check=True, capture_output=True)
                package = next(Path(made).glob("*.deb"))
                subprocess.run(["dpkg-deb", "-x", package, home], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError, StopIteration) as error:
                raise RuntimeError(f"{name}: not installed, and no Debian package ({type(error).__name__})") from None
    return unpacked


def zstd(words: list[str], data: bytes | None, tool: Path) -> bytes:
    """Run the command; return its output."""
    return subprocess.run([tool, "-q", "-c", *words], input=data, check=True, capture_output=True).stdout
