# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures: each test has a pool in a temporary directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import lmcstore
import pytest
import run_folder
from object_server import bucket as bucket
from object_server import object_server as object_server
from optional import skip_without_torch

# A shell's background jobs ignore SIGINT, and so would the processes that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_NEW_POOLS = "ignore:there is no "
"""Ignores CreationWarning by its text: as Python starts, it would have to import the category."""

# Tests of more than ten seconds, with shorter equivalents: only `run.sh deep` runs them.
DEEP = (
    "test_examples.py::test_a_posterior_knows_how_far_to_trust_it",
    "test_leaks.py::test_leaks_are_found",
    "test_leaks.py::test_two_thousand_snapshots",
    "test_reference_archive.py::test_links[Adam, amsgrad]",
    "test_reference_archive.py::test_links[AdamW]",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deep: left to tests/run.sh deep")
    config.addinivalue_line("filterwarnings", "ignore::lmcstore.CreationWarning")
    os.environ["PYTHONWARNINGS"] = _NEW_POOLS  # for programs that tests start
    state = tempfile.TemporaryDirectory(prefix="lmcs-state-")  # a push notes its URL there
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.endswith(DEEP):
            item.add_marker(pytest.mark.deep)


@pytest.fixture
def pool_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a test's pool may be created: in memory for modules that choose it."""
    if not getattr(request.module, "IN_MEMORY", False) or not os.access("/dev/shm", os.W_OK):
        yield str(tmp_path / "test.pool")
        return
    with tempfile.TemporaryDirectory(prefix="lmcs-test-", dir="/dev/shm") as folder:
        yield f"{folder}/test.pool"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory."""
    with run_folder.in_memory() as made:
        yield made


@pytest.fixture
def folder(place: Path) -> Iterator[Path]:
    """Where a test's run of many ranks may be created."""
    yield place / "run"
    run_folder.close(place / "run")


@pytest.fixture
def store(pool_path: str) -> Iterator[lmcstore.Store]:
    """A new pool, open for writing, without the background compactor."""
    opened = lmcstore.open(pool_path, size="256MiB", background=False)
    yield opened
    opened.close()


@pytest.fixture
def shelf(store: lmcstore.Store) -> lmcstore.Shelf:
    return store["run"]


def _on_path(scripts: dict[str, str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put scripts of this Python first on PATH, as an installation does."""
    for name, code in scripts.items():
        script = folder / name
        script.write_text(f"#!{sys.executable} -P\n{code}")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def report_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    code = "from lmcstore.report.__main__ import run\n\nrun()\n"
    _on_path({"lmc-store-report": code}, monkeypatch, tmp_path_factory.mktemp("bin"))


@pytest.fixture
def remote_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    code = "from lmcstore._remote.command import run\n\nrun({})\n"
    names = {"push": "'push'", "pull": "'pull'", "remote": ""}
    scripts = {f"lmc-store-{name}": code.format(argument) for name, argument in names.items()}
    _on_path(scripts, monkeypatch, tmp_path_factory.mktemp("bin"))


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(code: str, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        skip_without_torch(code)
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "PYTHONWARNINGS": f"error::ResourceWarning,{_NEW_POOLS}"},
            check=False,
        )

    return run
