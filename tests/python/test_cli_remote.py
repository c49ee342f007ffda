# SPDX-License-Identifier: BSD-3-Clause
"""lmc-store push and pull; ls, log, info, verify and rm of a URL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from command import BIN, NEEDS_BIN
from lmcstore._remote import state, sweep
from lmcstore._remote.place import Place
from test_remote_push import expect, fill, pulled

pytestmark = [NEEDS_BIN, pytest.mark.usefixtures("remote_on_path")]


def cli(*words: Any, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([BIN, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert (code == 0) == (done.stderr == "") and "Traceback" not in done.stderr
    return done


@pytest.fixture
def pool(store: lmcstore.Store) -> str:
    fill(store, 1, 4)
    store["run"].tag(3, "best")
    store["run"][2].note = "slow\x1b[31m"
    store.close()
    return store.path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket/run"


def test_there_and_back(pool: str, bucket: str, tmp_path: Path) -> None:
    assert cli("push", pool, bucket).stdout.startswith("sent 4 snapshots: ")
    done = json.loads(cli("push", pool, bucket, "--json").stdout)
    assert done == {"snapshots": 0, "keys": 0, "bytes": 0, "confirmed": 0, "commit": done["commit"]}
    assert cli("pull", bucket, tmp_path / "copy.pool", "run@2..3").stdout.startswith("restored 2 snapshots")
    assert "(2 were there)" in cli("pull", bucket, tmp_path / "copy.pool").stdout
    with lmcstore.open(tmp_path / "copy.pool", "r") as copy:
        expect(copy, [1, 2, 3, 4])
        assert copy["run"].tags == {"best": 3}
    listed = cli("ls", bucket).stdout.splitlines()
    assert listed[0] == "run: 4 snapshots" and "(best)" in listed[3] and "loss=0.25" in listed[4]
    assert "\x1b" not in "".join(listed)
    log = json.loads(cli("log", "-n", "2", bucket, "--json").stdout)["snapshots"]
    assert [one["number"] for one in log] == [4, 3] and log[1]["tags"] == ["best"]
    assert "safe up to 4 (step 4)" in cli("info", bucket).stdout
    assert "no damage" in cli("verify", bucket).stdout


def test_info_of_a_pool_tells_what_is_not_pushed(pool: str, url: str) -> None:
    assert "pushed" not in cli("info", pool).stdout
    cli("push", pool, url)
    assert f"run@4 (step 4) to {url}\n" in cli("info", pool).stdout
    with lmcstore.open(pool, "r+") as store:
        fill(store, 5, 6)
        (one,) = store.info()["pushed"]
        assert one == {
            "url": url,
            "shelf": "run",
            "number": 4,
            "step": 4,
            "missing": 0,
            "behind": 2,
            "oldest_time": one["oldest_time"],
        }
        assert one["oldest_time"] == store["run"][5].time
    assert f"run@4 (step 4) to {url}; 2 snapshots behind, the first of 20" in cli("info", pool).stdout
    assert json.loads(cli("info", pool, "--json").stdout)["pushed"] == [one]
    note = Path(f"{pool}.pushed")
    for text in ("", "[]", "{", '{"x": 1}', '{"x": {"run": 1, "other": [1, 2, 3], "\\n": [-1]}}', "\0" * 100):
        note.write_text(text)
        assert json.loads(cli("info", pool, "--json").stdout)["pushed"] == []
        with lmcstore.open(pool, "r") as store:
            assert store.info()["pushed"] == []
    with lmcstore.open(pool, "r+") as store:  # another shelf of the name
        cli("push", pool, url)
        store["run"].drop()
        fill(store, 1, 6)
        assert store.info()["pushed"] == []
    assert "pushed" not in cli("info", pool).stdout


def test_older_snapshots_that_are_not_there(pool: str, url: str) -> None:
    cli("push", pool, url, "run@4")
    assert "3 snapshots of run can't be sent any more" in cli("push", pool, url).stdout
    assert f"to {url}; 3 older snapshots of the pool are not there\n" in cli("info", pool).stdout
    shown = cli("info", url).stdout
    assert ", newest 4 (step 4) of " in shown and "; 3 older are not there (removed, or never sent)\n" in shown
    assert json.loads(cli("info", url, "--json").stdout)["shelves"][0]["absent"] == 3
    with lmcstore.open(pool, "r") as store:
        assert [one["missing"] for one in store.info()["pushed"]] == [3]


def test_a_place_that_another_wrote_to(pool: str, url: str, tmp_path: Path) -> None:
    for words in (("ls", url), ("log", url), ("info", url), ("verify", url), ("rm", url, "run@1")):
        assert "there is no run of lmc-store" in cli(*words, code=1).stderr
    error = json.loads(cli("pull", url, tmp_path / "copy.pool", "--json", code=1).stdout)["error"]
    assert error["kind"] == "NotFoundError" and not (tmp_path / "copy.pool").exists()
    mark = tmp_path / "bucket/run/lmc-store.json"
    mark.parent.mkdir(parents=True)
    mark.write_text("{}")
    assert "lmc-store.json is damaged, or of another program" in cli("push", pool, url, code=1).stderr


def test_wrong_use(pool: str, url: str) -> None:
    assert "is no URL" in cli("push", pool, "bucket", code=2).stderr
    assert "timeout" in cli("push", pool, url, "--timeout", "1", code=2).stderr
    assert "is no count" in cli("log", url, "-n", "0", code=2).stderr
    assert "name snapshots" in cli("rm", url, "run", code=2).stderr
    assert "keys come from the environment" in cli("ls", "s3://key:secret@bucket/run", code=2).stderr
    assert "lmc-store pull makes a pool of it" in cli("dump", url, "-o", "archive", code=2).stderr
    assert "usage: lmc-store push" in cli("push", "--help").stdout
    assert "usage: lmc-store pull" in cli("help", "pull").stdout


def test_without_the_package(tmp_path: Path, url: str) -> None:
    alone = shutil.copy(BIN, tmp_path)
    for words, missing in ((["push", "a.pool", url], "lmc-store-push"), (["ls", url], "lmc-store-remote")):
        done = subprocess.run([alone, *words], capture_output=True, text=True, env={"PATH": "/usr/bin"})
        assert done.returncode == 1 and missing in done.stderr and "pip install" in done.stderr


def test_verify_names_all_that_a_damage_affects(pool: str, url: str, tmp_path: Path) -> None:
    cli("push", pool, url)
    (piece,) = (tmp_path / "bucket/run/data").glob("*/*")
    whole = piece.read_bytes()
    with Place(url) as place:
        second = state.read(place).shelf("run").entry(2)
    assert second is not None
    for offset, damaged in ((second.archive.offset + 5000, "234"), (second.archive.outline_offset + 5, "2")):
        piece.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        done = cli("verify", url, code=1)
        affected = [line for line in done.stderr.splitlines() if line.startswith("damaged: run@")]
        assert [line[13] for line in affected] == list(damaged), done.stderr
    piece.write_bytes(whole[: len(whole) // 2])
    assert "cut short" in cli("verify", url, code=1).stderr
    assert json.loads(cli("verify", url, "--json", code=1).stdout)["damages"]
    piece.write_bytes(whole)
    cli("verify", url)


def test_rm_and_what_nobody_needs(pool: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("push", pool, url)
    assert cli("rm", url, "run@2", "--dry-run").stdout.startswith("would remove 1 snapshot")
    assert cli("rm", url, "run@1..3").stdout.startswith("removed 3 snapshots; 0 objects deleted")
    assert cli("ls", url).stdout.startswith("run: 1 snapshot\n")
    monkeypatch.setattr(sweep, "GRACE_S", -1.0)
    monkeypatch.setattr(sweep, "EXPIRES_S", 0.0)
    monkeypatch.setattr(sweep, "_LOGS_KEPT", 1)
    with Place(url) as place:
        place.put("data/01795893647153612600-0123456789abcdef/000000", b"of a push that died")
        assert sweep.sweep(state.read(place))[0] == 1
        assert [place.get(info.name) for info in place.list("log")][:-1] != []
        assert all(place.get(info.name).startswith(b"lmc-store") for info in list(place.list("log"))[:-2])
    cli("verify", url)
    with lmcstore.open(pool, "r+") as store:
        fill(store, 5, 6)
    cli("push", pool, url)
    with pulled(url, tmp_path) as copy:
        expect(copy, [4, 5, 6])
    cli("rm", url, "run@1..latest")
    with Place(url) as place:
        sweep.sweep(state.read(place))
        assert list(place.list("data")) == []


def test_rm_by_policy(pool: str, url: str) -> None:
    with lmcstore.open(pool, "r+") as store:
        fill(store, 5, 12)
        store["run"].policy = "keep=every:5,last:2"
    cli("push", pool, url)
    with lmcstore.open(pool, "r+") as store:
        kept = sorted({one.number for one in store["run"]} - set(store["run"].prune(dry_run=True).numbers))
    assert kept == [1, 3, 5, 10, 11, 12]
    assert cli("rm", url, "--prune", "--dry-run").stdout.startswith("would remove 6 snapshots")
    assert cli("rm", url, "--prune", "run").stdout.startswith("removed 6 snapshots")
    assert [one["number"] for one in json.loads(cli("ls", url, "--json").stdout)["shelves"][0]["snapshots"]] == kept
    assert "removed 0 snapshots" in cli("rm", url, "--prune").stdout
    assert "6 snapshots" in cli("verify", url).stdout


def test_follow_waits_for_the_pool(tmp_path: Path, url: str) -> None:
    path = tmp_path / "late.pool"
    words = [BIN, "push", str(path), url, "--follow", "--timeout", "3"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        said = process.stderr.readline()
        assert f"{path}: there is no such pool. push --follow waits" in said
        with lmcstore.open(path, "x", background=False) as store:
            fill(store, 1, 2)
            assert "sent 2 snapshots" in process.stdout.read()
            assert process.stderr.read() == "" and process.wait() == 0


def test_follow_does_not_wait_for_ever(tmp_path: Path, url: str) -> None:
    """For a pool in a missing folder it does not wait at all, as that is a typo."""
    for words in ((tmp_path / "late.pool", url, "--timeout", 0.5), (tmp_path / "missing" / "late.pool", url)):
        done = cli("push", *words, "--follow", code=1)
        assert done.stderr.splitlines()[-1] == f"lmc-store: {words[0]}: there is no such pool"
    assert "waits" not in done.stderr
    assert "is no URL" in cli("push", tmp_path / "late.pool", "s3:/bucket", "--follow", code=2).stderr


def test_follow_ends_by_a_signal(pool: str, url: str) -> None:
    process = subprocess.Popen([BIN, "push", pool, url, "--follow"], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not os.path.exists(url.removeprefix("file://") + "/head"):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert process.stderr is not None and "interrupted" in process.stderr.read()
    cli("verify", url)


@pytest.mark.parametrize("name", ["push", "pull", "remote", "report"])
def test_an_interrupt_while_modules_are_imported(tmp_path: Path, name: str) -> None:
    script = tmp_path / "bin" / name
    script.parent.mkdir()
    shutil.copy(Path(__file__).parents[2] / "python" / "scripts" / f"lmc-store-{name}", script)
    for part in ("_remote", "report"):
        (tmp_path / "lmcstore" / part).mkdir(parents=True)
    (tmp_path / "lmcstore" / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT and not done.stderr


def test_a_killed_push_is_continued(pool: str, url: str, tmp_path: Path) -> None:
    """SIGKILL at any time leaves a whole state, and the next push completes it."""
    with lmcstore.open(pool, "r+") as store:
        generator = np.random.default_rng(1)
        for _ in range(4):
            store["big"].snapshot({"w": generator.normal(size=1_000_000)})
    for delay in (0.3, 0.4, 0.5, 0.6, 0.8, 1.0):
        process = subprocess.Popen([BIN, "push", pool, url])
        time.sleep(delay)
        process.kill()
        process.wait()
    cli("push", pool, url)
    assert "8 snapshots" in cli("verify", url).stdout
    with pulled(url, tmp_path) as copy:
        expect(copy, [1, 2, 3, 4])
        assert len(copy["big"]) == 4
