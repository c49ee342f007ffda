# SPDX-License-Identifier: BSD-3-Clause
"""lmc-store log, diff, fork, mv, report, and ranges."""

import json
import os
import re
import shutil
import subprocess

import lmcstore
import numpy as np
import pytest
from command import BIN, NEEDS_BIN
from test_cli import as_json, cli, error, text

pytestmark = [
    NEEDS_BIN,
    pytest.mark.usefixtures("report_on_path"),
]


@pytest.fixture
def pool(tmp_path):
    """Snapshots 1 to 5 on "run", 6 and 7 after a rewind to 2, "best" on 3; a shelf forked from 3."""
    path = str(tmp_path / "run.pool")
    with lmcstore.open(path, size="64MiB", background=False) as store:
        shelf = store["run"]
        weights = np.arange(1000, dtype=np.float32)
        for number, parent in ((1, None), (2, None), (3, None), (4, None), (5, None), (6, 2), (7, None)):
            weights = weights + np.float32(0.5)
            shelf.snapshot(
                {"w": weights, "b": np.zeros(3)}, step=10 * number, parent=parent, metrics={"loss": 1 / number}
            )
        shelf.tag(3, "best")
        shelf["best"].fork("tune").snapshot({"w": weights + 1, "b": np.zeros(3)}, step=31, meta={"lr": 0.1})
    return path


def graph(output):
    lines = output.splitlines()
    found = [re.match(r"([*|:/_ ]+?) *(?:(\S+)  step .*)?$", line) for line in lines]
    return [(match[1].rstrip(), match[2]) for match in found]


def test_log_draws_rewinds(pool):
    assert graph(text("log", pool, "run")) == [
        ("*", "7"), ("*", "6"), ("| *", "5"), ("| *", "4"), ("| *", "3"), ("|/", None), ("*", "2"), ("*", "1"),
    ]  # fmt: skip
    lines = text("log", pool, "run").splitlines()
    assert "(latest)" in lines[0] and "loss=0.142857" in lines[0]
    assert "from 2" in lines[1] and "from" not in lines[0]
    assert "(best)" in lines[4]


def test_log_draws_forks(pool):
    drawn = graph(text("log", pool))
    assert drawn == graph(text("log", pool, "--all"))
    addresses = [address for _, address in drawn if address]
    assert sorted(addresses) == sorted([f"run@{n}" for n in range(1, 8)] + ["tune@1", "tune@2"])
    assert addresses.index("tune@1") < addresses.index("run@3") and addresses.index("tune@2") < addresses.index(
        "tune@1"
    )
    below = [line for line, address in drawn[[address for _, address in drawn].index("tune@1") :]]
    assert any("/" in line for line in below)
    assert "forked from run@3" in text("log", pool, "tune")
    lines = text("log", pool, "tune").splitlines()
    assert '{"lr":0.1}' in lines[0]
    cli("rm", pool, "run", "--shelf")
    assert "forked from run@3, which is gone" in text("log", pool)


def test_log_of_shelves_that_come_from_each_other(tmp_path):
    first, second, archive = tmp_path / "first.pool", tmp_path / "second.pool", tmp_path / "x.archive"
    with lmcstore.open(str(first), size="64MiB", background=False) as store:
        for step in range(3):
            store["a"].snapshot({"w": np.arange(10.0) + step}, step=step)
    for words in (["fork", first, "a@1", "b"], ["rm", first, "a", "--shelf"], ["fork", first, "b@1", "a"]):
        cli(*words)
    cli("dump", first, "-o", archive)
    cli("restore", archive, second)
    addresses = [address for _, address in graph(text("log", second)) if address]
    assert sorted(addresses) == ["a@1", "b@1"]
    assert len(as_json("log", second)["snapshots"]) == 2


def test_log_dots_where_a_parent_is_gone(pool):
    cli("rm", pool, "run@4")
    assert graph(text("log", pool, "run"))[2:5] == [("| *", "5"), ("| *", "3"), ("|/", None)]
    assert "| *" in text("log", pool, "run")
    cli("rm", pool, "run@2")
    drawn = graph(text("log", pool, "run"))
    assert drawn[1:4] == [("*", "6"), (": *", "5"), (": *", "3")]
    assert drawn[-2:] == [(":/", None), ("*", "1")]


def test_log_of_ranges(pool):
    def numbers(*words):
        return [int(address) for _, address in graph(text("log", pool, *words)) if address]

    assert numbers("run", "-n", "2") == [7, 6]
    assert numbers("run@2..best") == [3, 2]
    assert numbers("run@step:40..") == [7, 6, 5, 4]
    assert numbers("run@..5", "-n", "1") == [5]
    assert numbers("run@best") == [3]
    assert numbers("run@..{now}") == [7, 6, 5, 4, 3, 2, 1]
    assert numbers("run@6..99") == [7, 6]
    assert numbers("run@8..") == []
    error("log", pool, "run@8")
    error("log", pool, "run@nothing..")
    error("log", pool, "run@5..2", code=2)
    error("log", pool, "run@{tomorrow}", code=2)
    assert "taken later" in error("log", pool, "run@{2001-01-01}")
    error("log", pool, "nothing")
    error("log", pool, "run", "--all", code=2)


def test_log_json(pool):
    rows = as_json("log", pool, "run")["snapshots"]
    assert [row["number"] for row in rows] == [7, 6, 5, 4, 3, 2, 1]
    assert [row["number"] for row in rows if row["is_rewind"]] == [6]
    assert rows[4]["tags"] == ["best"] and rows[0]["metrics"]["loss"] == pytest.approx(1 / 7)
    assert all(row["origin"] is None for row in rows)
    first = as_json("log", pool, "tune")["snapshots"][-1]
    assert first["origin"] == {"shelf": "run", "number": 3, "is_there": True}
    assert len(as_json("log", pool, "-n", "4")["snapshots"]) == 4


def test_diff(pool):
    output = text("diff", pool, "run@1", "@3")
    assert re.search(r"100\.00% +1 +1 +\S+ +0\.99\S+ +w  f32 1000\n", output)
    assert output.splitlines()[-1].startswith("run@1 (step 10) to run@3 (step 30): 1 changed")
    assert text("diff", pool, "run@1..3") == output
    assert text("diff", pool, "run@1", "run@3") == output
    assert "run@2 (step 20) to run@6" in text("diff", pool, "run@6")
    found = as_json("diff", pool, "tune@1", "run@best")
    assert (found["changed"], found["tensors"]) == (0, [])
    (w,) = as_json("diff", pool, "run@1", "run@2")["tensors"]
    assert (w["name"], w["kind"], w["elements"], w["changed"]) == ("w", "changed", 1000, 1000)
    assert w["max_change"] == w["rms_change"] == 0.5 and w["before"]["shape"] == [1000]
    assert "no parent" in error("diff", pool, "run@1")
    error("diff", pool, "run@1", "run@9")
    error("diff", pool, "run@1", "run@2..3", code=2)


def test_fork_and_mv(pool):
    assert text("fork", pool, "run@best", "other") == "other@1 is run@3: all tensors are shared\n"
    assert as_json("fork", pool, "run", "third")["origin"] == {"shelf": "run", "number": 7}
    error("fork", pool, "run", "third")
    error("fork", pool, "run@1..3", "x", code=2)
    assert text("mv", pool, "other", "fourth") == "other is now fourth\n"
    error("mv", pool, "fourth", "run")
    error("mv", pool, "other", "x")
    assert cli("verify", pool)


def test_only_reading_clips_a_range(pool, tmp_path):
    with lmcstore.open(pool) as store:
        store["run"].remove(4)
    for which in ("4..5", "6..9", "9..", "step:99.."):
        assert "there is no snapshot" in error("rm", pool, f"run@{which}")
        assert "there is no snapshot" in error("dump", pool, f"run@{which}", "-o", tmp_path / "archive")
        assert "there is no snapshot" in error("scrub", pool, f"run@{which}")
    assert "there is no snapshot" in error("diff", pool, "run@4..5")
    assert not (tmp_path / "archive").exists()
    with lmcstore.open(pool, "r") as store:
        assert [snapshot.number for snapshot in store["run"]] == [1, 2, 3, 5, 6, 7]


def test_rm_of_ranges_and_shelves(pool):
    assert "would remove run@2..4, 3 snapshots: at least" in text("rm", pool, "run@2..4", "--dry-run")
    answer = as_json("rm", pool, "run@2..4")
    assert answer["snapshots"] == 3 and answer["removed_tags"] == 1 and answer["number"] is None
    assert [row["number"] for row in as_json("log", pool, "run")["snapshots"]] == [7, 6, 5, 1]
    assert "--shelf" in error("rm", pool, "run", code=2)
    error("rm", pool, "run@1", "--shelf", code=2)
    assert "would remove shelf run, 4 snapshots" in text("rm", pool, "run", "--shelf", "--dry-run")
    assert "removed shelf run, 4 snapshots" in text("rm", pool, "run", "--shelf")
    error("rm", pool, "run", "--shelf")
    assert cli("verify", pool)


def test_tag_only_from_where_it_was(pool):
    assert "run@3" in error("tag", pool, "run@5", "best", "--expect", "2")
    assert "run@3" in error("tag", pool, "run@5", "best", "--expect", "none")
    cli("tag", pool, "run@5", "best", "--expect", "best")
    cli("tag", pool, "run@5", "new", "--expect", "none")
    error("tag", pool, "run@5", "new", "--expect", "1..2", code=2)
    error("tag", pool, "run@5", "a{b", code=2)


def test_report(pool, tmp_path):
    page = tmp_path / "page.html"
    assert "wrote" in text("report", pool, "-o", page)
    source = page.read_text()
    assert source.startswith("<!doctype html>") and source.rstrip().endswith("</html>")
    for word in ("Size of the history", "Drift", "Time to restore by age", "loss", "forked from run@3", "best"):
        assert word in source
    assert not re.search(r"(src|href)=|@import|url\(|https?://", source)  # no external resources
    assert "forked" in text("report", pool, "tune", "-o", page) + page.read_text()
    assert "wrote" in text("report", "~/run.pool", "--output=~/home.html", env={**os.environ, "HOME": str(tmp_path)})
    assert (tmp_path / "home.html").exists()
    alone = shutil.copy(BIN, tmp_path)  # an installed one has a Python beside it
    words, environment = [alone, "report", pool, "-o", page], {**os.environ, "PATH": "/usr/bin"}
    missing = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert missing.returncode == 1 and "lmc-store-report" in missing.stderr and "pip install" in missing.stderr
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "lmc-store-hello").write_text("#!/bin/sh\necho hello $*\n")
    (folder / "lmc-store-hello").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}
    assert text("hello", "a", "b", env=environment) == "hello a b\n"
    assert text("help", "hello", env=environment) == "hello --help\n"
    assert "no command" in error("hello", code=2)
    assert "no such pool" in cli("report", tmp_path / "nothing", code=1).stderr
    assert "no shelf" in cli("report", pool, "nothing", "-o", page, code=1).stderr


def test_report_of_what_is_hostile_or_little(tmp_path):
    """A page must not run hostile names."""
    path = str(tmp_path / "run.pool")
    evil = "<script>alert(1)</script>"
    with lmcstore.open(path, size="64MiB", background=False) as store:
        store[evil].snapshot({evil: np.full(3, np.nan)}, tags=[evil.replace(":", "")], metrics={evil: float("nan")})
        store["one"].snapshot({"a": 1})
        store["none"].keep_raw = 2
    page = tmp_path / "page.html"
    done = subprocess.run([BIN, "report", path, "-o", page], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    source = page.read_text()
    assert evil not in source and "&lt;script&gt;alert" in source
    assert "No snapshots yet" in source


def test_the_report_names_what_it_omits(tmp_path):
    """Counters and states of generators first, then the smallest."""
    path = str(tmp_path / "run.pool")
    with lmcstore.open(path, "x", size="64MiB", background=False) as store:
        for step in range(2):
            state = {f"w{i:02}": np.full((2, i + 1), step + 1, np.float32) for i in range(50)}
            state |= {"rng": np.zeros(5056, np.uint8), "count": np.array(step, np.float32), "<b>": np.arange(9)}
            metrics = {f"m{i}": 1.0 for i in range(10)}
            store["run"].snapshot(state, step=step, metrics=metrics)
            store["few"].snapshot({"rng": np.full(50, step, np.uint8), "w": np.zeros(3)})
    page = tmp_path / "page.html"
    text("report", path, "-o", page)
    source = page.read_text()
    assert "48 of 53 tensors; the others are named below." in source
    assert "Drift of 2 smaller tensors is left out: w01, w00." in source
    assert "Drift of 3 counters and states of generators is left out: rng, &lt;b&gt;, count." in source
    assert "Metrics that are not shown: m8, m9." in source and "columns for 6 of 10 metrics." in source
    assert source.count("is left out") == 2  # the shelf of two tensors shows both
    assert "\nfrom 1 to 2\n" in source and "rng\nfrom 1 to 2" in source


def test_png_needs_matplotlib_or_draws(pool, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "page.png"
    text("report", pool, "--png", picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert not (tmp_path / "report.html").exists()


def test_del_in_json():
    """Terminals obey it: it is escaped like other control characters."""
    done = subprocess.run([BIN, "info", "--json", "/nowhere/a\x7fb\x7f"], capture_output=True, check=False)
    assert done.returncode == 1 and b"\x7f" not in done.stdout + done.stderr
    assert json.loads(done.stdout)["error"]["message"].startswith("/nowhere/a\x7fb\x7f: ")
