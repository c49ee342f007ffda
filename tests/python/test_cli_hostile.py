# SPDX-License-Identifier: BSD-3-Clause
"""The command lmc-store on files that are not pools, cut or damaged: exit 1 or 2, one message, no remains."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from command import BIN, NEEDS_BIN
from test_cli import as_json, cli, digests, pool  # noqa: F401

pytestmark = NEEDS_BIN


def attempt(*arguments: object, allowed: tuple[int, ...] = (1, 2)) -> tuple[int, str]:
    """Run a command that may fail, but not by a signal, silently, or slowly."""
    command = [BIN, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    message = done.stderr.decode()
    assert done.returncode in allowed, f"{command}: exit {done.returncode}\n{message}"
    if done.returncode != 0 and message:
        assert message.startswith("lmc-store: ") and message.count("\n") == 1, message
    return done.returncode, message


def commands(path: object, output: Path) -> list[list[object]]:
    """Every way to open a pool, the harmless first."""
    reading = [
        ["info", path],
        ["ls", path],
        ["ls", path, "run@2"],
        ["verify", path],
        ["scrub", path],
        ["dump", path, "-o", output],
    ]
    return [*reading, ["export", "--force", path, "run", "-o", output], ["tag", path, "run@1", "t"], ["compact", path]]


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--sparse=always", source, target], check=True)


def no_pool(kind: str, folder: Path) -> str:
    path = folder / "no.pool"
    if kind.startswith("/"):
        return kind
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to("no.pool")
    elif kind == "terabyte":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.write_bytes({"empty": b"", "byte": b"x", "text": b"hello\n" * 9999, "set": b"PMEMPOOLSET\n"}[kind])
    return str(path)


KINDS = ["empty", "byte", "text", "set", "folder", "fifo", "dangling", "loop", "terabyte"]


@pytest.mark.parametrize("kind", [*KINDS, "/dev/null", "/dev/zero"])
def test_what_is_no_pool(tmp_path: Path, kind: str) -> None:
    path = no_pool(kind, tmp_path)
    before = sorted(tmp_path.iterdir())
    for command in commands(path, tmp_path / "out"):
        assert path in attempt(*command)[1]
    if kind not in ("fifo", "dangling"):  # the FIFO blocks, the dangling link can be created
        attempt("restore", path, tmp_path / "new.pool")
    attempt("import", path, "run", path)
    assert sorted(tmp_path.iterdir()) == before


def test_pools_that_were_cut(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    cut = tmp_path / "cut.pool"
    size = pool.stat().st_size
    for length in (1, 4095, 4097, 5140, 6150, 8192, 1 << 20, 3 << 20, (3 << 20) + 9000, 5 << 20, size // 2, size - 1):
        copy(pool, cut)
        os.truncate(cut, length)
        for command in commands(cut, tmp_path / "out"):
            code, message = attempt(*command, allowed=(0, 1))
            assert code == 0 or not message or "cut.pool" in message
            assert (tmp_path / "out").exists() == (code == 0 and "-o" in command)
            (tmp_path / "out").unlink(missing_ok=True)


def test_headers_that_are_garbage(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    bad = tmp_path / "bad.pool"
    generator = random.Random(1)
    for offset, count in ((0, 4096), (4096, 1024), (5120, 1024), (6144, 2048), (8192, 4096), (20000, 100000)):
        for filling in (generator.randbytes(count), b"\xff" * count, bytes(count)):
            copy(pool, bad)
            with bad.open("r+b") as file:
                file.seek(offset)
                file.write(filling)
            for command in commands(bad, tmp_path / "out"):
                attempt(*command, allowed=(0, 1))
                (tmp_path / "out").unlink(missing_ok=True)


def test_a_damaged_log_leaves_the_data(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    """A pool that libpmemobj can't open is readable, and moves to a new pool as the message says."""
    before = digests(pool)
    with pool.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 3072)
    assert "log is damaged" in attempt("compact", pool)[1]
    cli("dump", pool, "-o", tmp_path / "archive")
    cli("restore", tmp_path / "archive", tmp_path / "new.pool")
    assert digests(tmp_path / "new.pool") == before
    assert as_json("verify", tmp_path / "new.pool")["ok"] is True


def test_archives_cut_at_each_record(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    archive, new = tmp_path / "archive", tmp_path / "new.pool"
    cli("dump", pool, "-o", archive)
    content = archive.read_bytes()
    at, cuts, seen = 40, [0, 39], set()
    while at < len(content):
        kind, size = struct.unpack_from("<II", content, at)
        if kind not in seen:
            cuts += [at, at + 24 + size // 2]
        seen.add(kind)
        at += 24 + size
    assert len(seen) == 10
    for cut in cuts:
        (tmp_path / "cut").write_bytes(content[:cut])
        code, message = attempt("restore", tmp_path / "cut", new)
        assert code == 1 and str(tmp_path / "cut") in message
        assert not new.exists()


def test_a_file_system_that_is_full(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "small"
    folder.mkdir()
    script = f"""
        mount -t tmpfs -o size=8k none {folder} || exit 77
        for command in 'dump {pool} -o' 'export {pool} run -o' create 'restore {tmp_path}/archive'; do
            {BIN} $command {folder}/out && exit 1
            [ -z "$(ls -A {folder})" ] || exit 1
        done
        """
    (tmp_path / "archive").write_bytes(cli("dump", pool).stdout)
    (tmp_path / "script").write_text(script)
    if (tmp_path / "archive").stat().st_size < 10_000:
        pytest.fail("too small to be a test")
    done = subprocess.run(["unshare", "-m", "sh", tmp_path / "script"], capture_output=True, timeout=60, check=False)
    if b"unshare" in done.stderr or done.returncode == 77:
        pytest.skip("no mounts here")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr.count(b"No space left") == 4
