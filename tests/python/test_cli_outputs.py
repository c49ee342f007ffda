# SPDX-License-Identifier: BSD-3-Clause
"""The outputs of the command lmc-store, files that it must not overwrite, and programs that it may run."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import lmcstore
import lmcstore.report.__main__ as report_command
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from command import BIN, NEEDS_BIN
from optional import HAS_MATPLOTLIB
from test_cli import cli, digests, error, pool  # noqa: F401

pytestmark = [
    NEEDS_BIN,
    pytest.mark.usefixtures("report_on_path"),
]


def test_report_runs_nothing_from_the_working_directory(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "downloaded"
    (folder / "lmcstore").mkdir(parents=True)
    code = "open('ran', 'w')\n"
    for name in ("lmcstore/__init__.py", "lmcstore/report.py", "argparse.py", "json.py", "numpy.py"):
        (folder / name).write_text(code)
    cli("report", pool, "-o", "page.html", cwd=folder)
    assert not (folder / "ran").exists()
    assert (folder / "page.html").read_text().startswith("<!doctype html>")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    path = tmp_path / "other.pool"
    with lmcstore.open(str(path), size="64MiB", background=False) as store:
        store["precious"].snapshot({"w": np.arange(1000.0)})
    return path


def looks(path: Path) -> tuple[int, int, bytes]:
    """A pool's identity and first bytes; the file is sparse and large."""
    with path.open("rb") as file:
        return path.stat().st_ino, path.stat().st_size, file.read(1 << 20)


def outputs(pool: Path, folder: Path) -> list[list[object]]:  # noqa: F811
    source = folder / "1.safetensors"
    cli("compress", source, "-o", folder / "1.lmc")
    cli("dump", pool, "-o", folder / "begun")
    return [
        ["report", pool, "-o"],
        *([["report", pool, "--png"]] if HAS_MATPLOTLIB else []),
        ["compress", source, "-o"],
        ["decompress", folder / "1.lmc", "-o"],
        ["dump", pool, "-o"],
        ["dump", pool, "--resume", "-o"],
        ["export", pool, "run", "-o"],
    ]


def test_outputs_over_another_pool(pool: Path, other: Path, tmp_path: Path) -> None:  # noqa: F811
    link, poolset = tmp_path / "link", tmp_path / "set"
    link.symlink_to(other)
    poolset.write_text(f"PMEMPOOLSET\n64M {other}\n")
    before = looks(other)
    for command in outputs(pool, tmp_path):
        for target in (other, link, poolset):
            message = cli(*command, target, code=2).stderr
            assert "is a pool" in message and "remove it first" in message, message
    assert looks(other) == before and poolset.read_text().startswith("PMEMPOOLSET")
    cli("verify", other)


def test_outputs_over_the_pool_itself(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    hard = tmp_path / "hard"
    hard.hardlink_to(pool)
    before = digests(pool)
    for command in outputs(pool, tmp_path):
        for target in (pool, hard):
            if pool in command:
                assert "is the pool itself" in cli(*command, target, code=2).stderr
    assert digests(pool) == before
    (tmp_path / "report.html").hardlink_to(pool)
    assert "is the pool itself" in cli("report", pool, code=2, cwd=tmp_path).stderr
    assert "is a folder" in cli("report", pool, "-o", tmp_path, code=2).stderr
    assert "its folder does not exist" in cli("report", pool, "-o", tmp_path / "no" / "page.html", code=1).stderr


def test_a_file_that_exists_is_replaced_by_force_only(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    old, link, empty = tmp_path / "old", tmp_path / "link", tmp_path / "empty"
    link.symlink_to(old)
    for command in outputs(pool, tmp_path):
        if command[0] == "report" or "--resume" in command:
            continue
        old.write_text("precious")
        for target in (old, link):
            assert f"-o {target} exists" in error(*command, target, status="exists")
        assert old.read_text() == "precious"
        cli(command[0], "--force", *command[1:], old)
        made = old.read_bytes()
        empty.write_bytes(b"")  # as of mktemp: nothing is lost
        cli(*command, empty)
        assert made == empty.read_bytes() != b"precious"
        cli(*command, "/dev/null")
    cli("dump", pool, "--resume", "-o", tmp_path / "begun")
    assert "give one of them" in error("dump", pool, "--resume", "--force", "-o", tmp_path / "begun", code=2)


def test_the_package_refuses_them_too(pool: Path, other: Path, tmp_path: Path) -> None:  # noqa: F811
    before = looks(other)
    with lmcstore.open(str(pool), "r") as store:
        snapshot = store["run"][1]
        with pytest.raises(lmcstore.InvalidError, match="remove it first"):
            snapshot.export(other)
        with pool.open("r+b") as file, pytest.raises(lmcstore.InvalidError, match="overwrite the pool"):
            store.dump(file)
    for option in ("-o", "--png") if HAS_MATPLOTLIB else ("-o",):
        for target in (other, pool):
            words = [sys.executable, "-P", "-m", "lmcstore.report", option, str(target), "--", str(pool)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 2 and "is " in done.stderr, done
    assert looks(other) == before
    cli("verify", pool)


def test_dump_over_what_it_is_made_since(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    archive, link = tmp_path / "mon.arc", tmp_path / "link.arc"
    cli("dump", pool, "run@1..2", "-o", archive)
    link.hardlink_to(archive)
    before = archive.read_bytes()
    for target in (archive, link):
        for more in ([], ["--resume"]):
            assert "--since" in error("dump", pool, "--since", archive, *more, "-o", target, code=2)
    with (
        lmcstore.open(str(pool), "r") as store,
        archive.open("r+b") as file,
        link.open("rb") as since,
        pytest.raises(lmcstore.InvalidError, match="made since"),
    ):
        store.dump(file, since=[since])
    assert archive.read_bytes() == before


@pytest.mark.parametrize("place", ["input", "base", "idle", "since", "output"])
def test_a_pipe_and_the_first_signal(pool: Path, tmp_path: Path, place: str) -> None:  # noqa: F811
    fifo, source, out = tmp_path / "fifo", tmp_path / "1.safetensors", tmp_path / "out"
    os.mkfifo(fifo)
    cli("compress", source, "-o", tmp_path / "1.lmc")
    commands: dict[str, list[list[object]]] = {
        "input": [["decompress", fifo, "-o", out], ["compress", fifo, "-o", out]],
        "base": [["compress", source, "--base", fifo, "-o", out]],
        "idle": [["compress", fifo, "-o", out]],
        "since": [["dump", pool, "--since", fifo, "-o", out]],
        "output": [
            ["compress", source, "-o", fifo],
            ["decompress", tmp_path / "1.lmc", "-o", fifo],
            ["export", pool, "run", "-o", fifo],
            ["dump", pool, "-o", fifo],
        ],
    }
    before = sorted(tmp_path.iterdir())
    for command in commands[place]:
        writer = os.open(fifo, os.O_RDWR) if place == "idle" else -1
        started = subprocess.Popen([BIN, *map(str, command)], stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        assert started.poll() is None, command
        started.send_signal(signal.SIGTERM)
        try:
            assert started.wait(600) in (128 + signal.SIGTERM, -signal.SIGTERM)
        finally:
            started.kill()
            started.wait()
            if writer >= 0:
                os.close(writer)
        assert sorted(tmp_path.iterdir()) == before, command


def test_pipes_still_work(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    source = tmp_path / "1.safetensors"
    frames, back = tmp_path / "frames", tmp_path / "back"
    os.mkfifo(frames)
    with subprocess.Popen([BIN, "compress", str(source), "-o", str(frames)], stdout=subprocess.DEVNULL) as first:
        cli("decompress", frames, "-o", back)
        assert first.wait(600) == 0
    assert back.read_bytes() == source.read_bytes()
    with subprocess.Popen(["cat", str(frames)], stdout=subprocess.PIPE) as reader:
        cli("export", pool, "run", "-o", frames)
        exported, _ = reader.communicate(timeout=600)
    cli("export", pool, "run", "-o", tmp_path / "plain")
    assert exported == (tmp_path / "plain").read_bytes()


def test_reports_follow_links_and_fill_pipes(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    link, page, pipe = tmp_path / "link", tmp_path / "page.html", tmp_path / "pipe"
    link.symlink_to(page)
    cli("report", pool, "-o", link)
    assert link.is_symlink() and page.read_text().startswith("<!doctype html>")
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        cli("report", pool, "-o", pipe)
        assert reader.communicate()[0].startswith(b"<!doctype html>")
    assert pipe.is_fifo() and sorted(tmp_path.glob(".lmc-store-*")) == []


def test_a_killed_command_leaves_nothing(pool: Path, tmp_path: Path) -> None:  # noqa: F811
    """The kill comes while compress waits for its input, and before the report is named."""
    folder = tmp_path / "out"
    folder.mkdir()
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        pytest.skip("the file system has no O_TMPFILE")
    report = (
        "import os, signal, sys, lmcstore.report.__main__ as report\n"
        "os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.argv[:] = ['report', sys.argv[1], '-o', sys.argv[2]]\n"
        "report.run()\n"
    )
    for old in (None, "precious"):
        if old is not None:
            (folder / "made").write_text(old)
        compress = [BIN, "compress", "-", "--dtype", "u8", "--force", "-o", str(folder / "made")]
        with subprocess.Popen(compress, stdin=subprocess.PIPE) as process:
            assert process.stdin
            process.stdin.write(bytes(8 << 20))  # more than a pipe holds: some was read
            process.kill()
        done = subprocess.run([sys.executable, "-c", report, str(pool), str(folder / "made")], check=False)
        assert process.returncode == done.returncode == -signal.SIGKILL
        assert os.listdir(folder) == ([] if old is None else ["made"])
        assert old is None or (folder / "made").read_text() == old


def raise_full(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_reports_replace_a_file(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    folder = tmp_path / "out"
    folder.mkdir()
    for unnamed in (True, False):
        if not unnamed:
            monkeypatch.setattr(report_command, "_open_unnamed", lambda _: -1)
        for old in (None, "old"):
            page = folder / f"{old}.html"
            page.unlink(missing_ok=True)
            if old is not None:
                page.write_text(old)
            report_command._write(str(page), b"new", str(pool))
            assert page.read_bytes() == b"new" and page.stat().st_mode & 0o7777 == 0o600 and page.stat().st_nlink == 1
        with pytest.raises(OSError, match="directory"):
            report_command._write(str(folder), b"new", str(pool))
        with monkeypatch.context() as full, pytest.raises(OSError, match=r"No space.*full\.html"):
            full.setattr(os, "fsync", raise_full)
            report_command._write(str(folder / "full.html"), b"new", str(pool))
    assert sorted(os.listdir(folder)) == ["None.html", "old.html"]
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".lmc-store-")]


@pytest.mark.parametrize("resume", [False, True])
def test_a_limit_of_the_size_of_files_is_told(pool: Path, tmp_path: Path, resume: bool) -> None:  # noqa: F811
    archive = tmp_path / "x.archive"
    words = [BIN, "dump", str(pool), "-o", str(archive)] + ["--resume"] * resume
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=limit_files, check=False)
    assert done.returncode == 1 and "wrote" not in done.stdout
    assert "archive" in done.stderr and "File too large" in done.stderr
    assert archive.exists() == resume and sorted(tmp_path.glob(".lmc-store-*")) == []
    cli("dump", pool, "-o", archive, *["--resume"] * resume)
    cli("verify", archive)


def test_a_restore_that_fails_leaves_the_pool_only_to_be_taken_up_again(
    pool: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    archive, cut, made = tmp_path / "x.archive", tmp_path / "cut", tmp_path / "made.pool"
    cli("dump", pool, "-o", archive)
    whole = archive.read_bytes()
    for beginning, arrived in ((b"", False), (bytes(100_000), False), (whole[:100], False), (whole[:-1], True)):
        cut.write_bytes(beginning)
        for resume in (False, True):
            cli("restore", *["--resume"] * resume, cut, made, code=1)
            assert made.exists() == (resume and arrived), (len(beginning), resume)
    cli("restore", "--resume", archive, made)
    assert digests(made) == digests(pool)


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def test_names_that_look_like_tex(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, picture = tmp_path / "tex.pool", tmp_path / "page.png"
    name = r"$\bar$"
    with lmcstore.open(str(path), size="64MiB", background=False) as store:
        for number in range(3):
            store[name].snapshot({name: np.arange(1000.0) + number}, metrics={name: float(number)})
    cli("report", path, "--png", picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_reports_of_huge_numbers(tmp_path: Path) -> None:
    path, picture = tmp_path / "huge.pool", tmp_path / "page.png"
    with lmcstore.open(str(path), size="64MiB", background=False) as store:
        for number, best in enumerate((sys.float_info.max, 1.0, -sys.float_info.max, 1e-323)):
            values = np.full(1000, 1e-300 if number % 2 else 1e308)
            store["run"].snapshot({"w": values}, tags=[f"t{number}"], metrics={"best": best})
    cli("report", path, "-o", tmp_path / "page.html")
    assert "best 1.8e+308" in (tmp_path / "page.html").read_text()
    pytest.importorskip("matplotlib")
    cli("report", path, "--png", picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("kind", ["star", "half"])
def test_the_graph_of_many_branches_is_narrow(tmp_path: Path, kind: str) -> None:
    path, count = tmp_path / "many.pool", 300
    with lmcstore.open(str(path), size="256MiB", background=False) as store:
        shelf = store["run"]
        for number in range(1, count + 1):
            shelf.snapshot({"n": number}, parent=None if number == 1 else 1 if kind == "star" else number // 2)
    lines = cli("log", path, "run").stdout.decode().splitlines()
    texts = [line.partition("run@")[0] if "run@" in line else line for line in lines]
    graphs = [text[: len(text) - len(text.lstrip("|:*/_~ "))] or text for text in texts]
    assert max(map(len, lines)) < 200 and max(map(len, graphs)) <= 44, max(lines, key=len)
    assert sum("*" in graph for graph in graphs) == count
    assert any("~*" in graph for graph in graphs) and "~" not in graphs[-1]


UNSEEN = "a\u00ad\u200b\u202e\u2066\u2028\U000e0041\ue000b"


def test_names_are_shown_escaped(tmp_path: Path) -> None:
    path = tmp_path / "names.pool"
    with lmcstore.open(str(path), size="64MiB", background=False) as store:
        shelf = store[UNSEEN]
        for number in range(2):
            shelf.snapshot({UNSEEN: np.arange(4.0) + number}, metrics={UNSEEN: 1.0}, tags=[f"t{number}{UNSEEN}"])
        shelf.live[UNSEEN] = np.arange(3.0)
        shown = [repr(store), repr(shelf), repr(shelf[1]), repr(shelf.log()), str(shelf[1].diff(shelf[2]))]
        shown += [shelf[1].diff(shelf[2]).summary(), repr(shelf.live), repr(shelf.live.open(UNSEEN))]
        for thing in (store, shelf, shelf[1], shelf.log(), shelf[1].diff(shelf[2]), shelf.live):
            shown.append(thing._repr_html_())
        with pytest.raises(lmcstore.NotFoundError) as caught:
            shelf[UNSEEN]
        shown += [str(caught.value), repr(caught.value), *map(str, caught.value.args)]
        assert lmcstore.InvalidError(f"{UNSEEN}\nmore").message.splitlines()[1] == "more"
    for words in (["ls"], ["ls", f"{UNSEEN}@1"], ["log"], ["info"], ["diff", f"{UNSEEN}@1", f"{UNSEEN}@2"], ["verify"]):
        shown.append(cli(words[0], path, *words[1:]).stdout.decode())
    for text in shown:
        assert not set(UNSEEN[1:-1]) & set(text), text
    escaped = "a\\xad\\u200b\\u202e\\u2066\\u2028\\U000e0041\\ue000b"
    assert all(escaped in text for text in (shown[2], shown[3], shown[4], shown[-6], shown[-5], shown[-4]))
    assert "\u00e9\u6f22\U0001f600" in lmcstore.Error("\u00e9\u6f22\U0001f600").message
    cli("report", path, "-o", tmp_path / "page.html")
    assert not set(UNSEEN[1:-1]) & set((tmp_path / "page.html").read_text())
