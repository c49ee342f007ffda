# SPDX-License-Identifier: BSD-3-Clause
"""Repairs of a run of many ranks in an object store from its folder, and of a folder from such a run."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import lmcstore
import pytest
import run_folder
from command import NEEDS_BIN
from lmcstore._remote import state, sweep
from lmcstore._remote.command import main
from lmcstore._remote.place import Place
from test_cli import find, flip_bit
from test_cli_remote import cli
from test_remote_ranks import RANKS, check_url, node, pulled, push, save
from test_remote_repair import damaged
from test_scrub import damage

pytestmark = pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning")


@pytest.fixture
def place(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Also temporary files go to the folder in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def url(place: Path) -> str:
    return f"file://{place}/bucket"


@pytest.fixture
def run(place: Path) -> Path:
    """A run of four ranks with the steps 10, 20 and 30."""
    save(place / "run", 10, 20, 30)
    return place / "run"


def objects_of(url: str) -> list[tuple[str, str]]:
    """Return the objects of data that the run needs: the URL of the run or sub-run, and the name."""
    with Place(url) as there:
        now = state.read(there)
        found = [(url, name) for name in sorted(sweep.needed(now))]
    for name in now.ranks or ():
        found += objects_of(f"{url}/{name}")
    return found


@NEEDS_BIN
@pytest.mark.usefixtures("remote_on_path")
@pytest.mark.parametrize("has_url", [False, True])
def test_a_record_is_repaired_from_another_machine_or_the_run(run: Path, url: str, has_url: bool) -> None:
    """The machine has the pools of some ranks only, so that its folder can't be opened for changes."""
    first, second = node(run, "first", (0, 1)), node(run, "second", (2, 3))
    if has_url:
        push(run, url)
    with lmcstore.open(first / RANKS[0], "r") as store:
        group = store["run"][2]._info["group"]
    flip_bit(first / "records.pool", find(first / "records.pool", group))
    with lmcstore.open(first, "r") as store, pytest.raises(lmcstore.DamagedError) as failure:
        store.verify()
    command = f"lmc-store scrub {first}/records.pool --repair --from "
    assert command in str(failure.value)
    if not has_url:
        with pytest.raises(lmcstore.DamagedError, match=command):
            push(first, url)
    source = url if has_url else second / "records.pool"
    assert "1 repaired" in cli("scrub", first / "records.pool", "--repair", "--from", source).stdout
    for folder in (first, second):
        push(folder, url)
    check_url(url, [10, 20, 30])


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_each_object_is_repaired(run: Path, url: str, place: Path, how: str) -> None:
    push(run, url)
    assert push(run, url, repair=True) | {"bytes": 0, "commit": 0} == {
        "repaired": 0, "left": [], "unchecked": [], "snapshots": 0, "keys": 0, "bytes": 0, "confirmed": 0, "commit": 0,
        "waiting": [],
    }  # fmt: skip
    objects = objects_of(url)
    assert len(objects) > 4
    for below, name in objects:
        damaged(below, name, how)
        assert main("verify", [url]) == 1
        done = push(run, url, repair=True)
        assert done["repaired"] > 0 and done["left"] == [] and done["unchecked"] == []
        assert main("verify", [url]) == 0
    check_url(url, [10, 20, 30])
    pulled(url, place / "third", [10, 20, 30])


def test_nodes_repair_the_parts_of_their_own_pools(run: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    push(run, url)
    first, second = node(run, "first", (0, 1)), node(run, "second", (2, 3))
    for below, name in objects_of(url):
        damaged(below, name, "flipped")
    done = push(first, url, repair=True)
    assert done["left"] == [] and done["unchecked"] == ["rank-00002", "rank-00003"]
    assert main("verify", [url]) == 1
    assert main("push", [str(second), url, "--repair"]) == 0
    assert "not checked: rank-00000, whose pool is not in this folder" in capsys.readouterr().err
    assert main("verify", [url]) == 0
    check_url(url, [10, 20, 30])


def test_what_the_pools_lack_is_named_with_the_run_s_number(run: Path, url: str) -> None:
    run.joinpath(RANKS[3]).rename(run / "rank-old.pool")
    save(run, 40)  # number 4 of the run, and 1 of the new pool
    push(run, url)
    save(run, 50)
    push(run, url)
    with lmcstore.open(run / RANKS[3], "r+") as rank:
        rank["run"].remove(1)
    for below, name in objects_of(url):
        if below.endswith("rank-00003.2") and name.startswith("data/"):
            damaged(below, name, "missing")
    done = push(run, url, repair=True)
    assert [(one["shelf"], one["number"]) for one in done["left"]] == [("run", 4)]
    assert done["left"][0]["message"].startswith("rank 3: ")


def test_a_lost_sub_run_is_sent_again(run: Path, url: str, place: Path) -> None:
    push(run, url)
    shutil.rmtree(place / "bucket" / RANKS[1][:-5])
    done = push(run, url, repair=True)
    assert done["repaired"] == 3 and done["left"] == []
    check_url(url, [10, 20, 30])
    pulled(url, place / "third", [10, 20, 30])


def test_a_range_is_repaired_alone(place: Path, url: str) -> None:
    for step in (10, 20, 30):
        save(place / "run", step)
        push(place / "run", url)
    for below, name in objects_of(url):
        damaged(below, name, "flipped")
    done = push(place / "run", url, "run@1", repair=True)
    assert done["repaired"] == 5 and done["left"] == []
    assert main("verify", [url, "run@1"]) == 0 and main("verify", [url, "run@3"]) == 1


@NEEDS_BIN
@pytest.mark.usefixtures("remote_on_path")
def test_a_folder_is_repaired_from_a_run(run: Path, url: str, place: Path) -> None:
    push(run, url)
    large = run_folder.arrays(20)["large"]
    at = len(large) // 4 * 2  # the third rank's part
    damage(str(run / RANKS[2]), large[at : at + 16].tobytes(), 4000)
    assert cli("scrub", run, code=1).returncode == 1
    alone = f"file://{place}/alone"
    with lmcstore.open(place / "one.pool", "x") as store:
        store["run"].snapshot({"x": 1})
        store.push(alone)
    assert "the run of one pool" in cli("scrub", run, "--repair", "--from", alone, code=1).stderr
    done = json.loads(cli("scrub", run, "--repair", "--from", url, "--json").stdout)
    assert (done["repaired"], done["lost"]) == (1, 0)
    with lmcstore.open(run, "r") as store:
        assert store.verify()["damages"] == 0
        assert store["run"][2]["large"].numpy().tobytes() == large.tobytes()
