# SPDX-License-Identifier: BSD-3-Clause
"""The command ``lmc-store-report`` (run by ``lmc-store report``) and ``python -m lmcstore.report``."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
from pathlib import Path

import lmcstore

from .._text.arguments import file_path
from .._text.text import lines, printable
from .collect import collect
from .page import render

_TEMPORARY = ".lmc-store-"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lmc-store report",
        description="Writes a report on a pool as one HTML page: sizes, drift, metrics, time to restore.",
    )
    parser.add_argument("pool", metavar="POOL", type=file_path)
    parser.add_argument("shelves", metavar="SHELF", nargs="*", help="without it: all shelves")
    parser.add_argument("-o", "--output", metavar="FILE", type=file_path, help="the page (report.html)")
    parser.add_argument(
        "--png", metavar="FILE", type=file_path, help="a picture too, or alone without -o; needs matplotlib"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="about how long it may take a shelf (30)")
    parser.add_argument("--force-network", action="store_true", help="accept network file systems")
    return parser.parse_args()


def _check_place(path: str) -> None:
    """Raise an error if no file can be at a path."""
    if os.path.isdir(path):
        raise lmcstore.InvalidError(f"report: {path} is a folder: name a file")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise lmcstore.NotFoundError(f"{path}: its folder does not exist")


def _refuse_pool(path: str, pool: str) -> None:
    """Raise InvalidError for an output that is a poolset file or, under any name, a pool."""
    target = Path(path)
    if not target.is_file():
        return
    if os.path.samefile(target, pool):
        raise lmcstore.InvalidError(f"report: {path} is the pool itself")
    with target.open("rb") as file:
        magic = file.read(11)
    if magic.startswith(b"PMEMOBJ") or magic == b"PMEMPOOLSET":
        raise lmcstore.InvalidError(
            f"report: {path} is a pool, or a poolset file, and would be replaced; remove it first if that is meant"
        )


def _open_unnamed(folder: Path) -> int:
    """Open a new file without a name, which ends with the process; -1: /proc or the file system can't do that."""
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1  # the next way to make a file reports the reason
    if os.path.exists(f"/proc/self/fd/{file}"):
        return file
    os.close(file)
    return -1


def _link(file: int, names: int, target: Path) -> bool:
    """Name an open file, unless the name is taken."""
    try:
        # Only with a folder does os.link follow the link in /proc.
        os.link(f"/proc/self/fd/{file}", target, src_dir_fd=names)
    except FileExistsError:
        return False
    return True


def _write(path: str, data: bytes, pool: str) -> None:
    """Write a file, which appears complete or not at all; links are followed, pipes and devices written in place."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_bytes(data)
        return
    names = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    file, temporary = _open_unnamed(target.parent), ""
    try:
        if file < 0:
            file, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=target.parent)
        with open(file, "wb", closefd=False) as out:
            out.write(data)
        os.fsync(file)
        _refuse_pool(path, pool)  # one may have appeared meanwhile
        if not temporary and not _link(file, names, target):
            while not temporary:
                name = target.parent / (_TEMPORARY + secrets.token_hex(4))
                temporary = str(name) if _link(file, names, name) else ""
        os.fsync(file)  # btrfs does not log a file without a name
        if temporary:
            os.replace(temporary, target)
        os.fsync(names)
    except BaseException as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # of a write to a descriptor
        raise
    finally:
        if file >= 0:
            os.close(file)
        os.close(names)


def main() -> int:
    """Write the report; return the exit code."""
    arguments = _arguments()
    if "://" in arguments.pool:
        raise lmcstore.InvalidError("report: it takes no URL; lmc-store pull makes a pool of it")
    if arguments.png:
        from . import png

        png.check()
    output = arguments.output or (None if arguments.png else "report.html")
    if output == "-":
        raise lmcstore.InvalidError("report: -o needs the name of a file; a page does not go to standard output")
    for path in (output, arguments.png):
        if path:
            _check_place(path)
            _refuse_pool(path, arguments.pool)
    with lmcstore.open(arguments.pool, "r", force_network=arguments.force_network) as store:
        info = store.info()
        gathered = [collect(store, name, arguments.seconds) for name in arguments.shelves or store.shelves()]
    if output:
        page = render(os.path.abspath(arguments.pool), info, gathered, lmcstore.__version__).encode()
        _write(output, page, arguments.pool)
        print(f"wrote {printable(output)}: {len(page) / 1024:.0f} KiB")
    if arguments.png:
        _write(arguments.png, png.draw(gathered, Path(os.path.realpath(arguments.png)).suffix), arguments.pool)
        print(f"wrote {printable(arguments.png)}")
    return 0


def run() -> None:
    """Write the report and exit: 0 done, 1 failed, 2 wrong use, 130 interrupted."""
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    except (lmcstore.Error, OSError) as error:
        print(f"lmc-store: {lines(str(error))}", file=sys.stderr)
        code = 2 if isinstance(error, lmcstore.InvalidError) else 1
    sys.exit(code)


if __name__ == "__main__":
    run()
