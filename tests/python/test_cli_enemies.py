# SPDX-License-Identifier: BSD-3-Clause
"""The command lmc-store with closed streams, signals, hostile words, names and places.

Outputs are complete or absent; existing files stay unchanged.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import lmcstore
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from command import BIN, NEEDS_BIN
from test_cli import as_json, cli, digests, large, pool  # noqa: F401

pytestmark = NEEDS_BIN

NOBODY = 65534


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run a command that may fail, but never by a signal."""
    command = [BIN, *(a if isinstance(a, bytes) else str(a) for a in arguments)]
    done = subprocess.run(  # type: ignore[call-overload]
        command, capture_output=True, timeout=60, check=False, **options
    )
    assert done.returncode in (0, 1, 2), f"{command}: exit {done.returncode}\n{done.stderr!r}"
    return done


def printable(data: bytes) -> bool:
    text = data.decode()
    return all(c == "\n" or (c.isprintable() and not "\u202a" <= c <= "\u202e") for c in text)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_closed_streams(pool: Path, tmp_path: Path, closed: tuple[int, ...]) -> None:  # noqa: F811
    """The next opened file gets the number of a closed stream: no message may be written to it."""
    source, base = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    before = digests(pool)
    cli("dump", pool, "-o", tmp_path / "expected")
    cli("compress", source, "--base", base, "-o", tmp_path / "expected.lmc")
    redirect = " ".join(f"{fd}{'<' if fd == 0 else '>'}&-" for fd in closed)
    for words, made, same in (
        (f"dump {pool} -o {tmp_path}/archive", "archive", "expected"),
        (f"compress {source} --base {base} -o {tmp_path}/made.lmc", "made.lmc", "expected.lmc"),
        (f"create {tmp_path}/new.pool", "new.pool", None),
        (f"restore {tmp_path}/expected {tmp_path}/restored.pool", "restored.pool", None),
        (f"import {pool} other {source}", None, None),
        (f"rm {pool} other@1", None, None),
        (f"compact {pool}", None, None),
        (f"ls {pool} nothing", None, None),
    ):
        subprocess.run(["sh", "-c", f"exec {BIN} {words} {redirect}"], capture_output=True, timeout=60, check=False)
        if same is not None:
            assert (tmp_path / str(made)).read_bytes() == (tmp_path / same).read_bytes(), words
    assert digests(pool) == before == digests(tmp_path / "restored.pool")
    for path in (pool, tmp_path / "new.pool", tmp_path / "restored.pool"):
        assert as_json("verify", path)["ok"] is True
    if 0 in closed:
        done = subprocess.run(["sh", "-c", f"{BIN} restore - {tmp_path}/x.pool <&-"], capture_output=True, check=False)
        assert done.returncode == 1 and not (tmp_path / "x.pool").exists()
    if 1 in closed:
        done = subprocess.run(["sh", "-c", f"{BIN} ls {pool} >&-"], stderr=subprocess.PIPE, check=False)
        assert done.returncode == 1 and b"standard output can't be written" in done.stderr


def leftovers(folder: Path, known: set[str]) -> set[str]:
    return {entry.name for entry in folder.iterdir()} - known


@pytest.mark.parametrize("command", ["ls", "log"])
def test_a_pager_that_nobody_scrolls(tmp_path: Path, command: str) -> None:
    """A slow reader of the list holds no space in the pool."""
    path = tmp_path / "long.pool"
    with lmcstore.open(str(path), size="256MiB", background=False) as store:
        run_ = store["run"]
        first = run_.snapshot({f"a tensor whose name is rather long, and which is number {i}": i for i in range(1500)})
        run_.tag(first, *(f"a tag whose name is rather long as well, and which is number {i}" for i in range(1500)))

        def work() -> int:
            for _ in range(8):
                snapshot = store["work"].snapshot({"w": np.random.default_rng().random(1 << 17)}, wait=True)
                store["work"].remove(snapshot)
                store.compact()
            return int(store.info()["used_bytes"])

        before = work()
        address = f"run@{first.number}" if command == "ls" else "run"
        with subprocess.Popen([BIN, command, str(path), address], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            stuck = struct.pack("i", 0)
            while int.from_bytes(fcntl.ioctl(process.stdout, termios.FIONREAD, stuck), sys.byteorder) < 32768:
                time.sleep(0.01)
                assert process.poll() is None
            time.sleep(0.2)
            assert process.poll() is None
            assert work() <= before + (1 << 20)
            assert len(process.communicate()[0]) > 65536
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_at_any_moment(pool: Path, tmp_path: Path, number: int) -> None:  # noqa: F811
    source = tmp_path / "1.safetensors"
    folder = tmp_path / "out"
    folder.mkdir()
    cli("dump", pool, "-o", tmp_path / "archive")
    commands = {
        "dump": ["dump", pool, "-o", folder / "made"],
        "export": ["export", pool, "run", "-o", folder / "made"],
        "compress": ["compress", source, "-o", folder / "made"],
        "create": ["create", folder / "made"],
        "restore": ["restore", tmp_path / "archive", folder / "made"],
    }
    generator = random.Random(number)
    for name, command in commands.items():
        (folder / "made").unlink(missing_ok=True)
        start = time.monotonic()
        cli(*command)
        took = time.monotonic() - start
        expected = b"" if name in ("create", "restore") else (folder / "made").read_bytes()
        for _ in range(3):
            (folder / "made").unlink(missing_ok=True)
            with subprocess.Popen([BIN, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                time.sleep(generator.random() * took)
                process.send_signal(number)
                process.communicate(timeout=60)
            # Before the command catches signals, they end it as any program.
            assert process.returncode in (0, 128 + number, -number), (name, process.returncode)
            assert leftovers(folder, {"made"}) == set(), (name, process.returncode)
            assert (folder / "made").exists() == (process.returncode == 0) or name == "create"
            if expected and (folder / "made").exists():
                assert (folder / "made").read_bytes() == expected
            elif (folder / "made").exists():
                assert as_json("verify", folder / "made")["ok"] is True


@pytest.mark.parametrize("command", [["dump"], ["export", "-o", "-"]], ids=lambda command: command[0])
def test_a_signal_ends_a_write_to_a_full_pipe(large: Path, command: list[str]) -> None:  # noqa: F811
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    with subprocess.Popen([BIN, *command, large, "run"], stdout=writer) as process:
        os.close(writer)
        time.sleep(0.5)  # until it waits in the write: a moment too early tests less
        process.terminate()
        try:
            assert process.wait(60) in (128 + signal.SIGTERM, -signal.SIGTERM)
        finally:
            process.kill()
            os.close(reader)


def test_a_kill_leaves_what_was_there(large: Path, tmp_path: Path) -> None:  # noqa: F811
    """Without O_TMPFILE, SIGKILL may leave a temporary file; the old file is unchanged."""
    folder = tmp_path / "out"
    folder.mkdir()
    for command in (["dump", "--force", large, "-o"], ["export", "--force", large, "run", "-o"]):
        (folder / "old").write_text("precious")
        with subprocess.Popen([BIN, *map(str, command), folder / "old"], stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 600
            while not leftovers(folder, {"old"}) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
            process.kill()
        if process.returncode != 0:
            assert (folder / "old").read_text() == "precious"
        for name in leftovers(folder, {"old"}):
            assert name.startswith(".lmc-store-") and stat.S_IMODE((folder / name).stat().st_mode) == 0o600
            (folder / name).unlink()


HOSTILE = [
    "x" * 100_000,
    b"\xff\xfe\x80",
    "\x1b]0;title\x07\x1b[31m",
    "\u202egnp.exe",
    "a\nb\rc",
    "%s%n%999999d",
    "-",
    "--",
    "-rf",
    "run@" + "9" * 400,
    "run@latest~" + "9" * 30,
    "run@step:" + "9" * 30,
    "@",
    "@@",
    "run@",
    "é" * 3000,
    "../" * 1000,
    "*",
    "",
]


def test_hostile_words(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    before = digests(pool)
    for word in HOSTILE:
        for command in (
            [word],
            ["ls", pool, word],
            ["info", word],
            ["tag", pool, word, word],
            ["tag", pool, "run@1", word],
            ["rm", pool, word],
            ["import", pool, word, word],
            ["export", pool, word, "-o", tmp_path / "out"],
            ["ls", pool, "-n", word],
            ["create", tmp_path / "new.pool", "--size", word],
            ["compress", word, "-o", tmp_path / "out", "--dtype", word, "--threads", word, "--level", word],
        ):
            done = run(*command, stdin=subprocess.DEVNULL)
            assert printable(done.stderr) and printable(done.stdout), command
            assert done.returncode == 0 or done.stderr.count(b"\n") == 1, command
            assert len(done.stderr) < 5000
    for tag in as_json("ls", pool, "run")["shelves"][0]["snapshots"][0]["tags"]:
        cli("tag", pool, "run@1", "--delete", "--", tag)
    assert digests(pool) == before


def test_an_empty_address_removes_nothing(pool: Path) -> None:  # noqa: F811
    """As by `rm run.pool run@$TAG` with TAG unset."""
    for address in ("run@", "run"):
        done = run("rm", pool, address)
        assert done.returncode == 2 and b"run@latest" in done.stderr, done
    assert as_json("info", pool)["snapshot_count"] == 3


def test_names_that_begin_with_a_dash(tmp_path: Path) -> None:
    cli("create", "--", "-x.pool", cwd=tmp_path)
    cli("dump", "-o", "-x.archive", "--", "-x.pool", cwd=tmp_path)
    cli("restore", "--", "-x.archive", "-y.pool", cwd=tmp_path)
    assert {"-x.pool", "-x.archive", "-y.pool"} == {entry.name for entry in tmp_path.iterdir()}


@pytest.fixture
def shared() -> Iterator[Path]:
    """Other users may enter the folder and run the command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            subprocess.run([BIN, "--version"], user=NOBODY, check=True, capture_output=True)
        except (PermissionError, subprocess.CalledProcessError, ValueError):
            pytest.skip("no other user can be tried")
        yield folder


def test_another_user(shared: Path) -> None:
    path = shared / "p"
    cli("create", path)
    mode = stat.S_IMODE(path.stat().st_mode)
    assert mode == 0o600
    done = run("info", path, user=NOBODY)
    assert done.returncode == 1 and b"Permission denied" in done.stderr
    path.chmod(0o644)
    before = path.stat()
    assert run("verify", path, user=NOBODY).returncode == 0
    for command in (["compact", path], ["import", path, "run", path], ["rm", path, "run@1"]):
        done = run(*command, user=NOBODY)
        assert done.returncode == 1 and b"can't be opened for writing" in done.stderr, done.stderr
    for command in (["create", shared / "q"], ["dump", path, "-o", shared / "q"]):
        done = run(*command, user=NOBODY)
        assert done.returncode == 1 and b"Permission denied" in done.stderr
    after = path.stat()
    assert (before.st_mtime_ns, before.st_blocks) == (after.st_mtime_ns, after.st_blocks)
    assert [entry.name for entry in shared.iterdir()] == ["p"]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
def test_new_files_are_private(pool: Path, tmp_path: Path, mask: int) -> None:  # noqa: F811
    folder = tmp_path / "out"
    folder.mkdir()
    source = tmp_path / "1.safetensors"
    for command in (
        ["create", folder / "pool"],
        ["dump", pool, "-o", folder / "archive"],
        ["export", pool, "run", "-o", folder / "safetensors"],
        ["compress", source, "-o", folder / "lmc"],
        ["decompress", folder / "lmc", "-o", folder / "back"],
    ):
        made = Path(str(command[-1]))
        if mask == 0o777:  # not even the owner may read the output: its mode is the requested one, less the mask
            run(*command, umask=mask)
            continue
        assert run(*command, umask=mask).returncode == 0
        assert stat.S_IMODE(made.stat().st_mode) == 0o600, made


def test_what_outputs_replace(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "real").write_text("old")
    (folder / "link").symlink_to("real")
    (folder / "hard").hardlink_to(folder / "real")
    cli("dump", pool, "--force", "-o", folder / "link")
    assert (folder / "link").is_symlink() and (folder / "real").stat().st_size > 100
    assert (folder / "hard").read_text() == "old"  # replaced, not overwritten
    (folder / "dangling").symlink_to("nowhere")
    assert run("dump", pool, "-o", folder / "dangling").returncode == 1
    assert run("dump", pool, "-o", folder).returncode in (1, 2)
    assert run("dump", pool, "-o", "/dev/null").returncode == 0
    assert run("dump", pool, "-o", "/dev/full").returncode == 1
    assert run("export", pool, "run", "-o", "/proc/self/nothing").returncode == 1
    (tmp_path / "same").symlink_to(pool)
    for itself in (pool, tmp_path / "same"):
        assert run("dump", pool, "-o", itself).returncode == 2
    assert leftovers(folder, {"real", "link", "hard", "dangling"}) == set()
    assert as_json("verify", pool)["ok"] is True


def test_places_that_hold_no_pool(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        places = [tmp_path / "socket", "/dev/full", "/proc/self/mem", "/proc/self/maps", "/proc/self/fd/0", "/sys"]
        places += ["/" + "x" * 300, "/tmp/" + "y/" * 2045, "z" * 5000, tmp_path / "none" / "x", "/proc/none/x"]
        for place in places:
            for command in (["info", place], ["create", place], ["compact", place], ["verify", place]):
                done = run(*command, stdin=subprocess.DEVNULL)
                assert done.returncode in (1, 2) and done.stderr.count(b"\n") == 1, (command, done)


def test_a_mount_that_is_read_only(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    script = f"""
        mkdir {tmp_path}/ro && mount --bind {pool.parent} {tmp_path}/ro || exit 77
        mount -o remount,bind,ro {tmp_path}/ro || exit 77
        {BIN} verify {tmp_path}/ro/{pool.name} || exit 1
        {BIN} dump {tmp_path}/ro/{pool.name} -o /dev/null || exit 2
        {BIN} compact {tmp_path}/ro/{pool.name} && exit 3
        {BIN} create {tmp_path}/ro/new.pool && exit 4
        exit 0
        """
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, timeout=60, check=False)
    if b"unshare" in done.stderr or done.returncode == 77:
        pytest.skip("no mounts here")
    assert done.returncode == 0, done.stderr
    assert b"can't be opened for writing" in done.stderr and b"Read-only file system" in done.stderr


def test_a_pool_that_is_moved_away_meanwhile(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    """Commands run while two pools are swapped: each uses one of them, or refuses."""
    other = tmp_path / "other.pool"
    cli("create", other)
    before = digests(pool)
    swapping = subprocess.Popen(
        [sys.executable, "-c", SWAP, str(pool), str(other)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        for i in range(15):
            run("import", pool, f"s{i}", tmp_path / "1.safetensors", "--wait", "0")
            run("verify", pool)
    finally:
        with contextlib.suppress(BrokenPipeError):
            swapping.communicate(timeout=60)
    for path in (pool, other):
        assert as_json("verify", path)["ok"] is True
    after = {**digests(pool), **digests(other)}
    assert all(after[address] == entries for address, entries in before.items())


SWAP = """
import ctypes, os, select, sys
libc = ctypes.CDLL(None)
a, b = (os.fsencode(path) for path in sys.argv[1:])
while not select.select([sys.stdin], [], [], 0.002)[0]:
    libc.renameat2(-100, a, -100, b, 2)  # RENAME_EXCHANGE
"""
