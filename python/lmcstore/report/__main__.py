# SPDX-License-Identifier: BSD-3-Clause
"""``python -m lmcstore.report``: what ``lmc-store report`` runs."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import lmcstore

from .collect import collect
from .page import render


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lmc-store report",
        description="Writes a report on a pool as one HTML page: sizes, drift, metrics, time to restore.",
    )
    parser.add_argument("pool", metavar="POOL")
    parser.add_argument("shelves", metavar="SHELF", nargs="*", help="without it: all shelves")
    parser.add_argument("-o", "--output", metavar="FILE", help="the page (report.html)")
    parser.add_argument("--png", metavar="FILE", help="a picture too, or alone without -o; needs matplotlib")
    parser.add_argument("--seconds", type=float, default=30.0, help="about how long it may take a shelf (30)")
    parser.add_argument("--force-network", action="store_true", help="accept network file systems")
    return parser.parse_args()


def _write(path: str, write: Callable[[Path], None]) -> None:
    """Write a file that appears whole or not at all."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=".lmc-store-", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    try:
        write(Path(temporary))
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def main() -> int:
    """Write the report; give the exit code."""
    arguments = _arguments()
    if arguments.png:
        from . import png

        png.check()
    with lmcstore.open(arguments.pool, "r", force_network=arguments.force_network) as store:
        info = store.info()
        gathered = [collect(store, name, arguments.seconds) for name in arguments.shelves or store.shelves()]
    output = arguments.output or (None if arguments.png else "report.html")
    if output:
        page = render(os.path.abspath(arguments.pool), info, gathered, lmcstore.__version__).encode()
        _write(output, lambda path: _write_bytes(path, page))
        print(f"wrote {output}: {len(page) / 1024:.0f} KiB")
    if arguments.png:
        _write(arguments.png, lambda path: png.draw(path, gathered))
        print(f"wrote {arguments.png}")
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    except (lmcstore.Error, OSError) as error:
        print(f"lmc-store: {error}", file=sys.stderr)
        code = 2 if isinstance(error, lmcstore.InvalidError) else 1
    sys.exit(code)
