# SPDX-License-Identifier: BSD-3-Clause
"""Pools and shelves that a program creates without asking for it: warnings, similar names, absolute paths."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import lmcstore
import numpy as np
import pytest

STATE = {"w": np.zeros(3)}


@pytest.fixture(autouse=True)
def shown_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Record all warnings of a test, as the first filter: conftest.py ignores these."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Iterator[lmcstore.Store]:
    """A pool with 15 snapshots on the shelf "run", opened after another process created it."""
    with lmcstore.open("run.pool", "x", size="64MiB", background=False) as store:
        for step in range(15):
            store["run"].snapshot(STATE, step=step)
    with lmcstore.open("run.pool", background=False) as store:
        yield store


def texts(caught: list[warnings.WarningMessage]) -> list[str]:
    assert all(one.category is lmcstore.CreationWarning and one.filename == __file__ for one in caught), caught
    return [str(one.message) for one in caught]


def test_a_new_pool_warns_once_with_its_absolute_path(
    folder: Path, shown_warnings: list[warnings.WarningMessage]
) -> None:
    with lmcstore.open("run.pool", size="64MiB", background=False) as store:
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        store["run"].snapshot(STATE)  # the first shelf of a new pool: no second warning
        store["run"].snapshot(STATE)
        assert store.path == str(folder / "run.pool")
    with lmcstore.open("run.pool", background=False), lmcstore.open("run.pool", "r"):
        pass
    (text,) = texts(shown_warnings)
    assert text.startswith(f"there is no pool {folder / 'run.pool'}. The call creates it (mode 'r+' opens")
    assert shown_warnings[0].lineno == line


def test_what_is_asked_for_does_not_warn(folder: Path, shown_warnings: list[warnings.WarningMessage]) -> None:
    with lmcstore.open("run.pool", "x", size="64MiB", background=False) as store:
        snapshot = store["run"].snapshot(STATE)
        store.shelf("eval", create=True).snapshot(STATE)
        snapshot.fork("tune")
        store["tune"].rename("tuned")
        store["tuned"].snapshot(STATE)
        assert store["never"].latest is None
        with open("run.archive", "w+b") as file:
            store.dump(file, "run")
            file.seek(0)
            store.restore(file, name="copy")
    with pytest.raises(lmcstore.NotFoundError):
        lmcstore.open("other.pool", "r+")
    with pytest.raises(lmcstore.NotFoundError):
        lmcstore.open("missing/run.pool")
    assert texts(shown_warnings) == []


def test_a_mistyped_shelf_warns_before_it_is_created(
    run: lmcstore.Store, folder: Path, shown_warnings: list[warnings.WarningMessage]
) -> None:
    shelf = run["rnu"]
    assert texts(shown_warnings) == []
    assert shelf.latest is None  # before the first step is trained
    assert shelf.latest is None
    shelf.snapshot(STATE)
    assert texts(shown_warnings) == [f"shelf 'rnu' is empty; shelf 'run' has 15 snapshots ({folder / 'run.pool'})"]
    shown_warnings.clear()
    run["eval"].snapshot(STATE)
    run["eval"].snapshot(STATE)
    (text,) = texts(shown_warnings)
    assert text.startswith(f"there is no shelf 'eval' in {folder / 'run.pool'}; there is 'rnu' and 'run'. The call")


@pytest.mark.parametrize(
    "write",
    [
        lambda shelf: shelf.snapshot(STATE),
        lambda shelf: shelf.snapshot(STATE, wait=False).wait(),
        lambda shelf: shelf.live.__setitem__("a", 1),
        lambda shelf: shelf.live.value("a").add(1),
        lambda shelf: shelf.live.tensor("a", (2,)),
        lambda shelf: shelf.live.create("a", (2,)),
        lambda shelf: shelf.live.snapshot(),
        lambda shelf: shelf.transaction().commit(),
        lambda shelf: setattr(shelf, "policy", "keep=last:3"),
        lambda shelf: setattr(shelf, "keep_raw", 3),
    ],
)
def test_every_way_to_create_a_shelf_warns_and_can_be_refused(
    run: lmcstore.Store, shown_warnings: list[warnings.WarningMessage], write: Callable[[lmcstore.Shelf], object]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", lmcstore.CreationWarning)
        with pytest.raises(lmcstore.CreationWarning, match=r"'Run'.*; shelf 'run' has 15 snapshots"):
            write(run["Run"])
    assert run.shelves() == ["run"]
    write(run["Run"])
    write(run["Run"]) if "create" not in inspect.getsource(write) else None
    assert len(shown_warnings) == 1 and sorted(run.shelves()) == ["Run", "run"]


def test_a_filter_refuses_a_new_pool(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", lmcstore.CreationWarning)
        with pytest.raises(lmcstore.CreationWarning, match="there is no pool"):
            lmcstore.open("run.pool")
    assert os.listdir(folder) == []


def test_one_warning_for_threads(run: lmcstore.Store, shown_warnings: list[warnings.WarningMessage]) -> None:
    threads = [threading.Thread(target=run["other"].snapshot, args=(STATE,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shown_warnings) == 1


def test_readers_are_not_warned(run: lmcstore.Store, shown_warnings: list[warnings.WarningMessage]) -> None:
    with lmcstore.open("run.pool", "r") as reader:
        assert reader["rnu"].latest is None
        assert repr(reader["rnu"]) == "<lmcstore.Shelf, shelf 'rnu' is empty; shelf 'run' has 15 snapshots>"
        assert repr(reader["else"]) == "<lmcstore.Shelf, shelf 'else' is empty>"
        with pytest.raises(lmcstore.ReadOnlyError):
            reader.shelf("rnu", create=True)
    assert shown_warnings == []


def test_a_missing_shelf_names_a_similar_one(run: lmcstore.Store) -> None:
    assert run.shelf("run", create=False) == run["run"]
    for n in range(20):
        run.shelf(f"other-{n}", create=True).keep_raw = 3
    run["run2"].live["a"] = 1
    for read in (
        lambda: run.shelf("rnu", create=False),
        lambda: run["rnu"]["latest"],
        lambda: run["rnu"][3],
        lambda: run["rnu"].at(step=3),
        lambda: run["run2"]["latest"],
    ):
        with pytest.raises(lmcstore.NotFoundError, match=r"; shelf [\"']run[\"'] has 15 snapshots"):
            read()
    assert "rnu" not in run.shelves()


def test_a_path_is_absolute_and_may_begin_with_a_tilde(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "there/below").mkdir(parents=True)
    (folder / "link").symlink_to("there/below")
    for path, meant in (
        ("~/a.pool", folder / "a.pool"),
        (Path("~") / "there" / "b.pool", folder / "there/b.pool"),
        ("./there//c.pool", folder / "there/c.pool"),
        ("link/../d.pool", folder / "there/d.pool"),
        (b"~/e.pool", folder / "e.pool"),
    ):
        with lmcstore.open(path, "x", size="16MiB", background=False) as store:  # type: ignore[arg-type]
            assert Path(store.path) == meant and meant.exists() and store.info()["path"] == store.path
    monkeypatch.chdir(folder / "there")
    with lmcstore.open("~/a.pool", background=False) as store:
        snapshot = store["run"].snapshot(STATE)
        snapshot.export("~/there/w.safetensors")
        with open("run.archive", "w+b") as file:
            store.dump(file)
        store.scrub(repair=True, sources=["~/there/run.archive", "~/there/b.pool"])
    assert lmcstore.archive.verify("~/there/run.archive")["snapshots"] == 1
    assert len(lmcstore.archive.ls(Path("~/there/run.archive"))["snapshots"]) == 1
    assert sorted(os.listdir(folder)) == ["a.pool", "e.pool", "link", "there"]


def test_a_deleted_folder_and_an_empty_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "gone").mkdir()
    monkeypatch.chdir(folder / "gone")
    (folder / "gone").rmdir()
    for path in ("run.pool", "../run.pool/x"):
        with pytest.raises(lmcstore.Error):
            lmcstore.open(path)
    with pytest.raises(lmcstore.InvalidError, match="empty"):
        lmcstore.open("")


def test_names_in_a_warning_obey_no_terminal(
    run: lmcstore.Store, shown_warnings: list[warnings.WarningMessage]
) -> None:
    run["r\u202eun"].snapshot(STATE)
    assert "\u202e" not in texts(shown_warnings)[0]


def test_pymm_does_not_warn(folder: Path, shown_warnings: list[warnings.WarningMessage]) -> None:
    import pymm

    shelf = pymm.shelf("s", size_mb=64, pmem_path="~/pools", force_new=True)
    shelf.x = np.arange(3)
    del shelf
    assert pymm.shelf("s", pmem_path="~/pools").x.tolist() == [0, 1, 2]
    assert shown_warnings == [] and os.listdir(folder) == ["pools"]


def test_a_program_sees_one_line_per_creation(folder: Path) -> None:
    code = (
        "import lmcstore, numpy\nstore = lmcstore.open('run.pool', size='64MiB')\n"
        "for shelf in ('run', 'eval', 'run', 'eval'):\n    store[shelf].snapshot({'w': numpy.zeros(3)})\n"
    )
    Path("train.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "train.py"],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"},
    )
    shown = [line for line in done.stderr.splitlines() if not line.startswith("  ")]
    assert len(shown) == 2
    assert shown[0].startswith(f"{folder}/train.py:2: CreationWarning: there is no pool {folder}/run.pool.")
    assert shown[1].startswith(f"{folder}/train.py:4: CreationWarning: there is no shelf 'eval' in {folder}/run.pool;")


def test_a_broken_url_is_no_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for url in ("s3:/bucket/run", "file:run", "HTTPS:/host/run"):
        with pytest.raises(lmcstore.InvalidError, match="is no URL, which has two slashes"):
            lmcstore.open(url)
    lmcstore.open("./file:run").close()
    assert (folder / "file:run").exists()


def test_an_empty_file_is_no_pool(tmp_path: Path) -> None:
    path = tmp_path / "run.pool"
    path.touch()
    for mode in ("a", "r", "r+"):
        with pytest.raises(lmcstore.DamagedError, match="it is empty; a new pool needs a path without a file"):
            lmcstore.open(path, mode)
    assert path.stat().st_size == 0
