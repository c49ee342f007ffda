# SPDX-License-Identifier: BSD-3-Clause
"""Parts of a run's snapshots that left the ranks' pools for a URL: none goes before all are there, and all are read."""

from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path
from typing import Any

import lmcstore
import pytest
import run_folder
from lmcstore._remote import state, sweep
from lmcstore._remote.place import Place
from optional import torch
from same import same
from test_cli_remote import cli
from test_remote_push import Died, Fate
from test_remote_ranks import node, push

pytest.importorskip("obstore")
pytestmark = pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning")
LOCAL = "keep_raw=1 local=last:2"
RANKS = [f"rank-{rank:05d}.pool" for rank in range(2)]


@pytest.fixture(autouse=True)
def _no_files_of_the_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, place: Path) -> str:
    found: str = f"file://{place}/bucket" if request.param == "file" else request.getfixturevalue("bucket")
    return found


@pytest.fixture
def here(place: Path) -> str:
    return f"file://{place}/bucket"


def save(folder: Path, *steps: int, **options: Any) -> None:
    run_folder.save_steps(folder, 2, *steps, **options)


@pytest.fixture
def run(place: Path) -> Path:
    """A run of two ranks with the steps 1 to 6, of which the newest two stay."""
    save(place / "run", 1, 2, 3, 4, 5, 6)
    with lmcstore.open(place / "run", "r+") as store:
        store["run"].policy = LOCAL
    return place / "run"


def left(folder: Path) -> list[list[int]]:
    """Return the numbers of the parts that have left, for each pool."""
    found = []
    for path in sorted(folder.glob("rank-*.pool")):
        with lmcstore.open(path, "r") as store:
            found.append([snapshot.number for snapshot in store["run"] if snapshot.remote])
            assert store.verify()["damages"] == 0
    return found


def check(store: lmcstore.Store, steps: list[int]) -> None:
    assert [one.step for one in store["run"]] == steps
    for one in store["run"]:
        for name, array in run_folder.arrays(one.step or 0).items():
            assert one[name].numpy().tobytes() == array.tobytes(), (one.number, name)


def check_all(folder: Path, steps: list[int] | None = None) -> None:
    with lmcstore.open(folder, "r") as store:
        check(store, steps or [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("how", ["sample", "all"])
def test_parts_go_and_are_read(run: Path, url: str, how: str) -> None:
    with lmcstore.open(run, "r") as store:
        store["run"].tag(2, "best")
    assert push(run, url, confirm="off")["confirmed"] == 0 and left(run) == [[], []]
    run.joinpath("rank-00007.pool").write_bytes(b"no pool")
    assert push(run, url, confirm=how)["confirmed"] == 3
    run.joinpath("rank-00007.pool").unlink()
    assert left(run) == [[1, 3, 4], [1, 3, 4]]
    with lmcstore.open(run, "r") as store:
        check(store, [1, 2, 3, 4, 5, 6])
        shelf = store["run"]
        assert [one.number for one in shelf if one.remote] == [1, 3, 4] and shelf[1].remote == url.rstrip("/")
        assert store.info()["remote_count"] == 3
        report = store.verify()
        assert (report["damages"], report["missing"], report["snapshots"], report["remote"]) == (0, [], 3, 3)
        assert store.scrub()["is_whole"]
        rows = shelf[3]["large"][149_990:150_010].numpy()  # of two ranks
        assert rows.tobytes() == run_folder.arrays(3)["large"][149_990:150_010].tobytes()
        names = {one.name for one in shelf[2].diff(shelf[3])}
        assert {one.name for one in shelf[1].diff(shelf[3])} == names and "large" in names and "same" not in names
        assert shelf[1].digest and len(shelf[1].entries()) == len(shelf[5].entries())
        shelf[4].export(run.with_name("four.safetensors"))
        for one in (pickle.loads(pickle.dumps(shelf[1])), shelf[1]):
            assert one["same"].numpy().tobytes() == run_folder.arrays(1)["same"].tobytes()
    save(run, 7)
    assert push(run, url)["confirmed"] == 1 and left(run) == [[1, 3, 4, 5], [1, 3, 4, 5]]
    check_all(run, [1, 2, 3, 4, 5, 6, 7])


def test_a_part_stays_until_all_ranks_have_sent_theirs(run: Path, url: str) -> None:
    first, second = node(run, "first", (0,)), node(run, "second", (1,))
    done = push(first, url)
    assert (done["confirmed"], done["snapshots"]) == (0, 0) and left(first) == [[]]
    assert push(second, url)["confirmed"] == 4 and left(second) == [[1, 2, 3, 4]] and left(first) == [[]]
    assert push(first, url)["confirmed"] == 4 and left(first) == [[1, 2, 3, 4]]
    (second / RANKS[1]).rename(first / RANKS[1])
    check_all(first)


def test_a_part_stays_if_another_is_gone_there(run: Path, here: str) -> None:
    first = node(run, "first", (0,))
    with lmcstore.open(run, "r+") as store:
        store["run"].policy = "local=all"
    push(run, here)
    with Place(f"{here}/rank-00001") as there:
        with pytest.raises(lmcstore.InvalidError, match=f"run@2 is a part of .*: remove that at {here} "):
            sweep.remove(there, ["run@2"], dry_run=False)
        sweep.remove(there, ["run@2"], dry_run=False, sole="remove")
    assert push(first, here)["confirmed"] == 3 and left(first) == [[1, 3, 4]]


def test_a_part_stays_if_the_folder_has_no_record(place: Path, here: str) -> None:
    """This copy of the records is older than the parts."""
    run = place / "run"
    save(run, 1, 2, 3)
    old = node(run, "old", ())
    save(run, 4, 5, 6)
    with lmcstore.open(run, "r+") as store:
        store["run"].policy = LOCAL
    push(run, here, confirm="off")
    first = node(run, "first", (0,))
    (old / "records.pool").rename(first / "records.pool")
    assert push(first, here)["confirmed"] == 3 and left(first) == [[1, 2, 3]]
    (run / "records.pool").rename(first / "records.pool")
    assert push(first, here)["confirmed"] == 1 and left(first) == [[1, 2, 3, 4]]


def test_a_push_of_one_pool_lets_no_part_go(run: Path, here: str, place: Path) -> None:
    with lmcstore.open(run / RANKS[0], "r") as store:
        assert store.push(f"file://{place}/alone")["confirmed"] == 0
    push(run, here, confirm="off")
    with lmcstore.open(run / RANKS[0], "r") as store:
        assert store.push(f"{here}/rank-00000")["confirmed"] == 0
    assert left(run) == [[], []]


@pytest.mark.parametrize("below", ["", "rank-00000", "rank-00001"])
def test_nothing_goes_without_a_sound_copy(below: str, run: Path, here: str, place: Path) -> None:
    push(run, here, confirm="off")
    with Place(f"{here}/{below}".rstrip("/")) as there:
        entry = state.read(there).shelf("run").entry(2)
        assert entry is not None
        path = place / "bucket" / below / min(entry.archive.objects())
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(lmcstore.NotFoundError):
        push(run, here)
    assert left(run)[1 if below == "rank-00001" else 0] == []
    path.write_bytes(bytes(byte ^ 1 for byte in whole))
    with pytest.raises(lmcstore.DamagedError):
        push(run, here, confirm="all")
    path.write_bytes(whole)
    push(run, here)
    assert left(run) == [[1, 2, 3, 4]] * 2
    check_all(run)


def test_what_needs_them_here_is_refused(run: Path, here: str, place: Path) -> None:
    push(run, here)
    remedy = f"run@1 has parts that are remote, at {here}/rank-00000: fetch it by lmc-store pull {here} {run}"
    with lmcstore.open(run, "r+") as store:
        with pytest.raises(lmcstore.RemoteError, match=remedy):
            store.dump(place / "dumped")
        assert not (place / "dumped").exists()
        assert store.dump(place / "dumped", "run@5..")["snapshots"] == 2
        with pytest.raises(lmcstore.RemoteError, match="parts that are remote"):
            store["run"][1].fork("tune")
        assert store.shelves() == ["run"]
        assert all("tune" not in lmcstore.open(run / name, "r") for name in RANKS)
    with pytest.raises(lmcstore.RemoteError, match="run@1 is remote"):
        push(run, f"file://{place}/another")
    check_all(run)


def test_only_urls_that_the_user_has_named_are_contacted(
    run: Path, here: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(run, here)
    check_all(run)
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "another"))

    def read(is_allowed: bool, **options: Any) -> None:
        with monkeypatch.context() as patch, lmcstore.open(run, "r", **options) as store:
            for one in (store, pickle.loads(pickle.dumps(store))):
                if is_allowed:
                    check(one, [1, 2, 3, 4, 5, 6])
                    continue
                patch.setattr("lmcstore._remote.pool.RemotePool", None)
                assert one["run"][1].remote == here and one.verify()["remote"] == 4
                with pytest.raises(lmcstore.RemoteError, match="You have not named this URL"):
                    one["run"][1]["large"].numpy()
                with pytest.raises(lmcstore.RemoteError, match="You have not named this URL"):
                    one["run"][2].diff(one["run"][6])
                assert one["run"][6]["large"].numpy() is not None

    read(False)
    read(False, remote=False)
    read(True, remote=here)
    monkeypatch.setenv("LMC_STORE_REMOTE", here)
    read(True)


def test_pull_brings_them_back(run: Path, url: str) -> None:
    push(run, url)
    assert lmcstore.pull(url, run, "run@3")["missing"] == [] and left(run) == [[1, 2, 4]] * 2
    check_all(run)
    push(run, url)
    assert left(run) == [[1, 2, 3, 4]] * 2
    with lmcstore.open(run, "r+") as store:
        store["run"].policy = "local=all"
        assert lmcstore.pull(url, store)["missing"] == []
    assert left(run) == [[], []]
    check_all(run)
    assert push(run, url)["confirmed"] == 0


def test_parts_of_a_pool_that_was_begun_anew_come_back_into_it(run: Path, here: str) -> None:
    """The second sub-run of a rank is that of the first file then, and the lost pool gets another name."""
    push(run, here)
    run.joinpath(RANKS[1]).unlink()
    save(run, 7, 8, 9, 10)
    for name in RANKS:
        with lmcstore.open(run / name, "r+") as store:
            store["run"].policy = LOCAL
    assert push(run, here)["confirmed"] > 0
    assert left(run)[1] == [1, 2]
    for what in ("run@8", None, None):
        lmcstore.pull(here, run, what)
    assert sorted(path.name for path in run.glob("rank-*.pool")) == [RANKS[0], "rank-00001.2.pool", RANKS[1]]
    assert left(run) == [[], [], []]
    check_all(run, list(range(1, 11)))


def test_a_pull_that_dies(run: Path, here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    push(run, here)
    fate = Fate(monkeypatch)
    for at in range(1, 200):
        fate.count, fate.dies_at = 0, at
        try:
            lmcstore.pull(here, run, "run@3")
            break
        except Died:
            fate.dies_at = 1 << 60
            check_all(run)
    fate.dies_at = 1 << 60
    assert at > 5 and all(3 not in numbers for numbers in left(run))
    check_all(run)


def test_a_push_that_dies(run: Path, here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fate = Fate(monkeypatch)
    for at in range(1, 400):
        fate.count, fate.dies_at = 0, at
        try:
            push(run, here)
            break
        except Died:
            fate.dies_at = 1 << 60
            check_all(run)
    fate.dies_at = 1 << 60
    assert at > 10
    push(run, here)
    assert left(run) == [[1, 2, 3, 4]] * 2
    check_all(run)


def test_the_url_keeps_what_may_be_the_only_copy(run: Path, here: str) -> None:
    push(run, here)
    for url, what in ((here, "run@2"), (f"{here}/rank-00001", "run@2")):
        with pytest.raises(lmcstore.RemoteError, match="only copy"), Place(url) as there:
            sweep.remove(there, [what], dry_run=False)

    def rules(draft: state.State) -> bool:
        draft.shelf("run").policy = "keep=last:1"
        return True

    with Place(here) as there:
        state.change(state.read(there), "0" * 32, rules)
        sweep.prune(there, (), lambda path: lmcstore.open(path, "x"), dry_run=False)
    with lmcstore.open(here) as store:
        check(store, [1, 2, 3, 4, 6])
    with lmcstore.open(run, "r+") as store:
        store["run"].remove(2)
        check(store, [1, 3, 4, 5, 6])
    assert left(run) == [[1, 3, 4]] * 2
    push(run, here, mirror=True)
    with lmcstore.open(here) as store:
        check(store, [1, 3, 4, 6])
    with Place(f"{here}/rank-00000") as there:
        assert 2 not in [entry.number for entry in state.read(there).shelf("run").entries() if not entry.hidden]


def test_a_repair_marks_the_only_copies_again(run: Path, here: str) -> None:
    push(run, here)

    def unmark(draft: state.State) -> bool:
        shelf = draft.shelf("run")
        shelf.update({entry.number: entry._replace(sole=False) for entry in shelf.entries()})
        return True

    def marked(url: str) -> list[int]:
        with Place(url) as there:
            return [entry.number for entry in state.read(there).shelf("run").entries() if entry.sole]

    urls = [here, f"{here}/rank-00000", f"{here}/rank-00001"]
    for url in urls:
        assert marked(url) == [1, 2, 3, 4]
        with Place(url) as there:
            state.change(state.read(there), "0" * 32, unmark)
        assert marked(url) == []
    assert push(run, here, repair=True, confirm="off")["left"] == []
    assert [marked(url) for url in urls] == [[1, 2, 3, 4]] * 3
    with Place(urls[2]) as there:
        entry = state.read(there).shelf("run").entry(1)
        assert entry is not None
        there.delete(entry.archive.objects())
    found = push(run, here, repair=True)["left"]
    assert [(one["shelf"], one["number"]) for one in found if one["number"] == 1] == [("run", 1)]
    assert "rank 1" in found[0]["message"]


def test_a_removed_snapshot_does_not_come_back(run: Path, here: str) -> None:
    """The coordinator removes a snapshot, of which a machine has let its part go."""
    first, second = node(run, "first", (0,)), node(run, "second", (1,))
    push(first, here)
    push(second, here)
    late = node(second, "late", (1,))
    with lmcstore.open(run, "r+") as store:
        store["run"].remove(2)
    push(run, here, mirror=True)
    push(late, here)
    with lmcstore.open(here) as store:
        check(store, [1, 3, 4, 5, 6])
    push(run, here)
    check_all(run, [1, 3, 4, 5, 6])


@pytest.mark.usefixtures("remote_on_path")
def test_commands(run: Path, here: str, place: Path) -> None:
    with lmcstore.open(run, "r+") as store:
        store["run"].policy = "local=all"
    cli("policy", run, "run", LOCAL)
    assert "local=last:2" in cli("policy", run, "run").stdout
    assert "confirmed 4 snapshots" in cli("push", run, here).stdout
    assert cli("ls", run).stdout.count(" remote ") == 4
    assert cli("log", run).stdout.count(f"at {here}") == 4
    rows = json.loads(cli("ls", run, "--json").stdout)["shelves"][0]["snapshots"]
    assert [row["remote"] for row in rows] == [here] * 4 + [None] * 2
    assert cli("info", run).stdout.count("; 4 remote") == 2
    assert json.loads(cli("info", run, "--json").stdout)["remote_count"] == 4
    assert "2 snapshots" in (verified := cli("verify", run).stdout) and "; 4 remote" in verified
    assert "; 1 remote" in cli("verify", run, "run@1").stdout
    assert "; 4 remote" in cli("scrub", run).stdout
    remedy = f"run@1 has parts that are remote, at {here}/rank-00000: fetch it by lmc-store pull {here} {run}"
    for words in (
        ("dump", run, "-o", place / "dumped"), ("diff", run, "run@1", "run@6"), ("fork", run, "run@1", "tune"),
        ("export", run, "run@1", "-o", place / "one"),
    ):  # fmt: skip
        assert remedy in cli(*words, code=1).stderr
    assert not (place / "dumped").exists() and cli("ls", run).stdout.count("tune") == 0
    cli("report", run, "-o", place / "report.html")
    cli("pull", here, run, "run@1..3")
    assert cli("ls", run).stdout.count(" remote ") == 1
    assert "large" in cli("diff", run, "run@1", "run@6").stdout
    cli("rm", run, "run@4")
    check_all(run, [1, 2, 3, 5, 6])


@pytest.mark.parametrize("kind", ["", "fsdp"])
def test_a_remote_step_is_resumed_by_fewer_ranks(kind: str, place: Path, here: str) -> None:
    torch.Tensor  # noqa: B018 (skips without torch)
    import dcp_ranks
    import run_ranks

    options = {"policy": "keep_raw=1 local=last:1"}
    four = [pickle.loads(one[1]) for one in dcp_ranks.run(4, run_ranks.train, place / "run", 3, kind, 0, options)]
    dcp_ranks.run(4, run_ranks.train, place / "run", 5, kind, 0, options)
    assert push(place / "run", here)["confirmed"] == 4 and left(place / "run") == [[1, 2, 3, 4]] * 4
    found = dcp_ranks.run(3, run_ranks.resume_once, place / "run", 1, True, 3, kind, here)
    for rank, (state_of_rank, first, _) in enumerate(found):
        assert first == 3
        same(pickle.loads(state_of_rank), four[rank] | ({} if kind else {"model": four[0]["model"]}))
    with lmcstore.open(place / "run", "r") as store:
        same(store["run"][3].state_dict()["optimizer"], four[0]["optimizer"])
        assert store["run"][6].parent == 3 and store["run"].log(10) and store["run"][3].remote == here
        assert str(store["run"].log(10)).count("\n") == 7


def test_beside_the_ranks(place: Path, here: str) -> None:
    torch.Tensor  # noqa: B018 (skips without torch)
    import dcp_ranks
    import run_ranks

    run, steps, options = place / "run", 8, {"policy": "keep_raw=1 local=last:2"}
    dcp_ranks.run(2, run_ranks.train, place / "whole", steps)
    dcp_ranks.run(2, run_ranks.train, run, 3, "", 0, options)
    stopped = threading.Event()

    def follow() -> None:
        while not stopped.is_set():
            push(run, here)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        dcp_ranks.run(2, run_ranks.train, run, steps, "", 1, options)
    finally:
        stopped.set()
        thread.join()
    push(run, here)
    assert left(run) == [list(range(1, steps - 1))] * 2
    with lmcstore.open(run, "r") as store, lmcstore.open(place / "whole", "r") as whole:
        for one, other in zip(store["run"], whole["run"], strict=True):
            same(one.state_dict("model"), other.state_dict("model"))
            same(one.state_dict("ranks"), other.state_dict("ranks"))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_loads_a_remote_step(run: Path, here: str) -> None:
    torch.Tensor  # noqa: B018 (skips without torch)
    import torch.distributed.checkpoint as dcp
    from lmcstore.dcp import StoreReader

    push(run, here)
    wanted = {name: array for name, array in run_folder.arrays(2).items() if "." not in name}
    state = {name: torch.zeros(array.shape, dtype=torch.from_numpy(array).dtype) for name, array in wanted.items()}
    dcp.load(state, storage_reader=StoreReader(run, step=2))
    for name, array in wanted.items():
        assert state[name].numpy().tobytes() == array.tobytes(), name
