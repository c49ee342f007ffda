# SPDX-License-Identifier: BSD-3-Clause
"""`lmcstore.Run` of many ranks."""

from __future__ import annotations

import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import pytest
from lmcstore import _core
from lmcstore._folder.machines import together
from lmcstore._folder.ranked import RunOfRanks
from lmcstore._folder.ranks import RankNotFoundError
from lmcstore._folder.saves import Ended, Saving
from lmcstore._folder.writing import opener_of
from optional import torch
from same import same

torch.Tensor  # noqa: B018 (skips without torch)

import dcp_ranks as ranks  # noqa: E402
import run_ranks  # noqa: E402


@pytest.mark.parametrize("kind", ["", "tied", "local buffers", "fsdp"])
def test_resumed_training_is_the_same(folder: Path, kind: str) -> None:
    whole = ranks.run(2, run_ranks.train, folder.with_name("whole"), 8, kind)
    first = ranks.run(2, run_ranks.train, folder, 5, kind)
    second = ranks.run(2, run_ranks.train, folder, 8, kind, 1)
    wanted = [pickle.loads(one[1]) for one in whole]
    for rank in range(2):
        assert second[rank][2] == 5
        assert first[rank][0] + second[rank][0] == whole[rank][0]
        same(pickle.loads(second[rank][1]), wanted[rank])
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == list(range(8))
        found = run["run"].latest
        assert found is not None
        state = found.state_dict()
        assert sorted(state) == ["model", "optimizer", "ranks", "scheduler"]
        same(list(state["model"].values()), list(wanted[0]["model"].values()))
        same(state["optimizer"], wanted[0]["optimizer"])
        for rank in range(2):
            same(state["ranks"][rank]["own"], wanted[rank]["own"])
        report = run.verify()
        assert report["damages"] == 0 and not report["missing"]


_STEPS = 5
_SAVE = 3  # of step 2


@pytest.fixture(scope="module")
def whole() -> Iterator[list[tuple[list[float], bytes, int, bytes]]]:
    """Return what an uninterrupted run gives."""
    with tempfile.TemporaryDirectory(prefix="lmcs-test-") as made:
        yield ranks.run(2, run_ranks.train, Path(made, "run"), _STEPS)


@pytest.mark.parametrize(
    ("phase", "killed", "last"),
    [
        pytest.param("captured", (1,), 1, marks=pytest.mark.deep),
        ("prepared", (1,), 1),
        ("decided", (1,), 2),
        pytest.param("resolved", (1,), 2, marks=pytest.mark.deep),
        pytest.param("captured", (0,), 1, marks=pytest.mark.deep),
        pytest.param("prepared", (0,), 1, marks=pytest.mark.deep),
        pytest.param("recording", (0,), 1, marks=pytest.mark.deep),
        ("recorded", (0,), 2),
        pytest.param("decided", (0,), 2, marks=pytest.mark.deep),
        pytest.param("resolved", (0,), 2, marks=pytest.mark.deep),
        ("captured", (0, 1), 1),
        pytest.param("prepared", (0, 1), 1, marks=pytest.mark.deep),
        pytest.param("resolved", (0, 1), 2, marks=pytest.mark.deep),
    ],
)
def test_ranks_that_are_killed_resume_at_the_last_record(
    folder: Path, whole: list[tuple[list[float], bytes, int, bytes]], phase: str, killed: tuple[int, ...], last: int
) -> None:
    ranks.run(2, run_ranks.train_and_die, folder, _STEPS, phase, killed, _SAVE, killed=killed)
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == list(range(last + 1))
    second = ranks.run(2, run_ranks.train, folder, _STEPS, "", 1)
    for rank in range(2):
        assert second[rank][2] == last + 1
        assert second[rank][0] == whole[rank][0][last + 1 :]
        same(pickle.loads(second[rank][1]), pickle.loads(whole[rank][1]))
    numbers = ranks.numbers_of(folder)
    assert [len(found) for found in numbers.values()] == [_STEPS] * 3


def _resumed(folder: Path, world: int, seed: int) -> list[tuple[dict[str, Any], int, list[str]]]:
    found = ranks.run(world, run_ranks.resume_once, folder, seed)
    return [(pickle.loads(state), first, messages) for state, first, messages in found]


def test_other_numbers_of_ranks_resume(folder: Path) -> None:
    four = [pickle.loads(one[1]) for one in ranks.run(4, run_ranks.train, folder, 3)]
    three = _resumed(folder, 3, 1)
    for rank, (state, first, messages) in enumerate(three):
        assert first == 3
        same(state, four[rank] | {"model": four[0]["model"]})
        assert len(messages) == (rank == 0) and all("rank 3" in message for message in messages)
    loop = run_ranks.Loop.__new__(run_ranks.Loop)
    model = run_ranks.model_of("")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    own = {"seen": 0, "rank": 0, "weights": torch.zeros(1)}
    loop.objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "own": own}
    loop.own = own
    with lmcstore.Run(folder, **loop.objects) as run:
        assert run.resume() == 4
        state = pickle.loads(loop.state())
        for part in ("optimizer", "scheduler", "own", "rng"):
            same(state[part], four[0][part])
        same(list(state["model"].values()), list(four[0]["model"].values()))
        saved = run.save(4)
        run.shelf.tag(saved, "best")
        assert saved.number == 5 and saved.tags == ["best"]
    two = _resumed(folder, 2, 2)
    assert [first for _, first, _ in two] == [5, 5]
    for part in ("model", "optimizer", "scheduler"):
        same(two[1][0][part], four[0][part])
    assert two[1][0]["own"]["rank"] == 1 and "'own' and 'rng' stay as they are" in two[1][2][0]


def test_a_failure_of_a_rank_fails_the_save_on_all_ranks_and_no_other(folder: Path) -> None:
    first, second = ranks.run(2, run_ranks.fail, folder)
    assert [error.split(":")[0] for error in first[0]] == ["1 InputOutputError", "4 InputOutputError"]
    assert [error.split(":")[0] for error in second[0]] == ["1 UnsupportedError", "4 InputOutputError"]
    assert "rank 1: own.value" in first[0][0] and "own.value" in second[0][0]
    for errors, last in (first, second):
        assert "step 3" in errors[1] or "step 2" in errors[1]
        assert last == 4
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == [0, 2, 4]
    assert set(map(len, ranks.numbers_of(folder).values())) == {3}


def test_a_rank_that_does_not_save_fails_the_others_in_time(folder: Path) -> None:
    first, second = ranks.run(2, run_ranks.hang, folder)
    assert len(first) == 2 and not second
    assert "rank 1 has ended, or does not answer within 1 seconds" in first[0]
    assert "can't be saved any more" in first[1]


def test_rank_0_prunes_beside_the_ranks(folder: Path) -> None:
    assert ranks.run(2, run_ranks.prune_beside, folder) == [[[4, 5, 6]]] * 2
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == [3, 4, 5]
        assert not run.verify()["missing"]


def test_rank_0_keeps_the_budget_of_the_run(folder: Path) -> None:
    assert ranks.run(2, run_ranks.keep_budget, folder) == [[[1], [1, 2], [2, 3], [3, 4], [4, 5]]] * 2
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == [3, 4]
        assert not run.verify()["missing"]
    ranks.run(1, run_ranks.keep_budget, folder, 8)
    assert ranks.numbers_of(folder)["rank-00001.pool"] == []  # of a rank that the job lacks


def test_operations_of_a_folder(folder: Path) -> None:
    wanted = ranks.run(2, run_ranks.train, folder, 6)
    with lmcstore.open(folder, mode="r") as run:
        with pytest.raises(lmcstore.ReadOnlyError, match="mode 'r\\+' opens it"):
            run["run"].remove(1)
        digests = [snapshot.digest for snapshot in run["run"]]
        assert len(set(digests)) == 6
    with lmcstore.open(folder, mode="r+") as run:
        shelf = run["run"]
        assert shelf.remove(2, dry_run=True).freed_bytes > 0 and 2 in shelf
        assert shelf.remove(2).freed_bytes > 0 and 2 not in shelf
        shelf.tag(3, "best")
        shelf.policy = "keep=last:2 chain=2"
        assert "keep=last:2" in shelf.policy and "chain=2" in shelf.policy
        assert shelf.prune(dry_run=True).numbers == [1, 4] and 1 in shelf
        assert shelf.prune().numbers == [1, 4]
        assert [snapshot.number for snapshot in shelf] == [3, 5, 6]
        fork = shelf[3].fork("other")
        same(fork[-1].state_dict(), shelf[3].state_dict())
        with pytest.raises(lmcstore.ExistsError):
            shelf[3].fork("other")
        assert digests[2] == shelf["best"].digest
        report = run.scrub()
        assert report["damages"] == 0 and report["is_whole"] and report["contents"] > 0
        run.compact()
        report = run.verify()
        assert report["damages"] == 0 and not report["missing"]
        with pytest.raises(lmcstore.UnsupportedError):
            shelf.snapshot({})
    assert list(ranks.numbers_of(folder).values()) == [[3, 5, 6]] * 3
    again = ranks.run(2, run_ranks.train, folder, 6, "", 1, {"shelf": "other"})
    for rank in range(2):
        assert again[rank][2] == 3
        same(pickle.loads(again[rank][1]), pickle.loads(wanted[rank][1]))
    with lmcstore.open(folder, mode="r+") as run:
        assert run["other"].drop().freed_bytes > 0
        assert list(run) == ["run"]
        same(run["run"]["best"].step, 2)
        assert not run.verify()["missing"]


def test_an_interrupted_removal_is_completed(folder: Path) -> None:
    ranks.run(2, run_ranks.train, folder, 4)
    with lmcstore.open(folder / "records.pool", mode="r+") as records:
        records["run"].remove(2)
    with lmcstore.open(folder, mode="r+"):
        pass
    assert list(ranks.numbers_of(folder).values()) == [[1, 3, 4]] * 3
    with lmcstore.open(folder / "records.pool", mode="r+") as records:
        records["run"].remove(1)
    ranks.run(2, run_ranks.train, folder, 4)
    assert list(ranks.numbers_of(folder).values()) == [[3, 4]] * 3


def test_a_run_on_two_machines(folder: Path) -> None:
    """Two folders stand for the disks of two machines."""
    homes = [folder.with_name("one"), folder.with_name("two")]
    first = ranks.run(4, run_ranks.train_apart, homes, 3)
    for home, there in zip(homes, ((0, 1), (2, 3)), strict=True):
        assert sorted(path.name for path in home.iterdir()) == [
            *(f"rank-0000{one}.pool" for one in there),
            "records.pool",
        ]
        with lmcstore.open(home) as run:
            assert [snapshot.step for snapshot in run["run"]] == [0, 1, 2]
            with pytest.warns(UserWarning, match="left out"):
                state = run["run"][-1].state_dict()
            assert sorted(state["ranks"]) == list(there)
            if home is homes[0]:
                model = pickle.loads(first[0][1])["model"]
                same(list(state["model"].values()), list(model.values()))
            missing = run.verify()["missing"]
            assert len(missing) == 6 and (home is homes[0] or "rank-00000.pool" in "".join(missing))
        with pytest.raises(lmcstore.NotFoundError, match="can't be changed: copy all pools"):
            lmcstore.open(home, mode="r+")
    with pytest.raises(AssertionError, match="no machine of this job has"):
        ranks.run(2, run_ranks.train, homes[1], 6)
    with lmcstore.open(homes[1] / "records.pool", mode="r+") as records:  # a copy that lags
        records["run"].remove(3)
    with lmcstore.open(homes[0] / "records.pool", mode="r+") as records:
        records["run"].remove(1)
    second = ranks.run(4, run_ranks.train_apart, homes, 6, 1)
    for rank in range(4):
        assert second[rank][2] == 3
        buffers = {"model": pickle.loads(first[rank - rank % 2][1])["model"]}  # of the machine's first rank
        same(pickle.loads(second[rank][3]), pickle.loads(first[rank][1]) | buffers)
    for home in homes:
        assert list(ranks.numbers_of(home).values()) == [[2, 3, 4, 5, 6]] * 3
    for path in homes[1].glob("rank-*"):  # copied together, they are one run
        path.rename(homes[0] / path.name)
    with lmcstore.open(homes[0]) as run:
        assert not run.verify()["missing"]
        assert sorted(run["run"][-1].state_dict()["ranks"]) == [0, 1, 2, 3]


def test_sigterm_waits_for_the_last_save(folder: Path) -> None:
    assert ranks.run(2, run_ranks.terminate, folder, killed=()) == [7, 7]
    with lmcstore.open(folder) as run:
        assert [snapshot.step for snapshot in run["run"]] == [7]


def test_links_and_lazy_copies(folder: Path) -> None:
    assert ranks.run(2, run_ranks.train_links, folder) == [True, True]


def test_options_of_the_ranks_pools(folder: Path) -> None:
    assert ranks.run(2, run_ranks.train_with_options, folder) == [(False, 0, 64 << 20)] * 2
    given: list[dict[str, Any]] = []
    opener: Any = lambda path, mode, **options: given.append(options)  # noqa: E731
    opener_of(4, {"threads": 2}, opener)("pool", True)
    assert given == [{"threads": 2, "memory": _core.machine_memory() // 16}]


def test_boxes_of_a_mesh_are_stored_once_and_read_in_another_sharding(folder: Path) -> None:
    kept = ranks.run(4, run_ranks.save_mesh, folder)
    with lmcstore.open(folder) as run:
        found = run["run"].latest
        assert found is not None
        handle = found._decode().handle
        for name in run_ranks.MESH:
            tensor = handle.tensor(f"model.{name}")
            assert tensor.is_complete and len(tensor.boxes) == (2 if name in ("rows", "square") else 1), name
            moment = handle.tensor(f"optimizer.state.{list(run_ranks.MESH).index(name)}.exp_avg")
            assert [box.rank for box in moment.boxes] == [box.rank for box in tensor.boxes], "links need both on a rank"
        state = found.state_dict()
        same(dict(state["model"]), dict(pickle.loads(kept[0])["model"]))
        assert len({box.rank for name in run_ranks.MESH for box in handle.tensor(f"model.{name}").boxes}) == 4
    for world in (1, 2, 3):
        for one in ranks.run(world, run_ranks.load_mesh, folder):
            same(pickle.loads(one), pickle.loads(kept[0]))


def test_wrong_use(folder: Path, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    folder.mkdir()
    (folder / "records.pool").touch()
    with pytest.raises(lmcstore.InvalidError, match="replicated= names 'ema', and the run has 'model' and 'rng'"):
        lmcstore.Run(folder, model=model, replicated=["ema"])
    with pytest.raises(lmcstore.InvalidError, match="'ranks' is the part"):
        lmcstore.Run(folder, ranks=model)
    with pytest.raises(lmcstore.InvalidError, match="timeout"):
        lmcstore.Run(folder, model=model, timeout=-1)
    with pytest.raises(lmcstore.DamagedError):
        lmcstore.Run(folder, model=model)
    (folder / "records.pool").rename(folder / "rank-00000.pool")
    with pytest.raises(lmcstore.NotFoundError, match=r"lacks the records of the run: copy records\.pool"):
        lmcstore.Run(folder, model=model)
    assert ranks.run(2, run_ranks.misuse, tmp_path) == [["InvalidError", "InvalidError", "InputOutputError"]] * 2


@pytest.mark.parametrize(
    ("wrong", "kind", "reason"),
    [
        ("kind", "UnsupportedError", "own: an object has no state_dict"),
        ("class", "UnsupportedError", "own: Linear is a class"),
        ("name", "InvalidError", "'ranks' is the part of each rank's own objects"),
    ],
)
def test_an_object_that_one_rank_can_not_keep_fails_all(folder: Path, wrong: str, kind: str, reason: str) -> None:
    first, second = ranks.run(2, run_ranks.refuse_an_object, folder, wrong)
    assert first.startswith(f"{kind}: rank 1: {reason}") and second.startswith(f"{kind}: {reason}")
    assert not folder.exists()


def test_a_load_that_fails_on_a_rank_fails_on_all(folder: Path) -> None:
    ranks.run(2, run_ranks.train, folder, 1)
    first, second = ranks.run(2, run_ranks.fail_to_load, folder)
    assert first == "InputOutputError: rank 1: RuntimeError: refused"
    assert second == "RuntimeError: refused"


def test_metrics_and_metadata_are_those_of_the_call(folder: Path) -> None:
    ranks.run(2, run_ranks.save_by_reference, folder)
    with lmcstore.open(folder) as run:
        assert [dict(snapshot.metrics) for snapshot in run["run"]] == [
            {"loss": step + 1.0, "step": float(step)} for step in range(3)
        ]
        assert [snapshot.meta for snapshot in run["run"]] == [{"seen": list(range(step + 1))} for step in range(3)]


@pytest.mark.parametrize("broken", ["news", "numbers", "copy", "commit"])
def test_a_failure_after_the_record_loses_no_part(folder: Path, broken: str) -> None:
    homes = [folder.with_name("one"), folder.with_name("two")]
    failures = ranks.run(2, run_ranks.fail_after_the_record, homes, broken)
    assert [len(one) for one in failures] == [int(broken == "commit")] * 2
    assert ranks.run(2, run_ranks.train_apart, homes, 4)[1][2] == 3
    for home in homes:
        assert list(ranks.numbers_of(home).values()) == [[1, 2, 3, 4]] * 2


@pytest.mark.parametrize("count", [1, 6])
def test_removed_newest_snapshots_stay_removed_on_all_machines(folder: Path, count: int) -> None:
    homes = [folder.with_name("one"), folder.with_name("two")]
    assert ranks.run(2, run_ranks.remove_newest, homes, 3, 0) == [(0, [1, 2, 3])] * 2
    left = [1, 2, 3, 4, 5, 6][: 6 - count]
    assert ranks.run(2, run_ranks.remove_newest, homes, 3, count)[0] == (3, left)
    with lmcstore.open(homes[0] / "records.pool", mode="r+") as records:  # a number that the copy does not know
        records["run"].snapshot({})
        records["run"].remove(-1)
    assert ranks.run(2, run_ranks.remove_newest, homes, 0, 0) == [(len(left), left)] * 2
    for home in homes:
        with lmcstore.open(home / "records.pool", mode="r") as records:
            assert records._pool.shelf_info("run")["next_number"] == 8
    assert ranks.run(2, run_ranks.remove_newest, homes, 1, 0) == [(len(left), [*left, 8])] * 2


def test_boxes_inside_containers_and_objects(folder: Path) -> None:
    kept = ranks.run(2, run_ranks.nest, folder, True)
    for world in (2, 3):
        for one in ranks.run(world, run_ranks.nest, folder, False):
            same(pickle.loads(one), pickle.loads(kept[0]))


def test_an_older_snapshot_resumes_beside_a_damaged_record(folder: Path) -> None:
    from test_cli import find, flip_bit

    ranks.run(2, run_ranks.train, folder, 3)
    with lmcstore.open(folder / "rank-00000.pool", mode="r") as pool:
        group = pool["run"][3]._info["group"]
    flip_bit(folder / "records.pool", find(folder / "records.pool", group))
    assert ranks.run(2, run_ranks.resume_damaged, folder) == [("DamagedError", 2)] * 2


def test_a_wait_may_interrupt_another_one() -> None:
    """As SIGTERM's handler does, before any line."""
    codes = {RunOfRanks.wait.__code__, RunOfRanks.raise_earlier.__code__, Ended.wait.__code__}
    lines = interrupted = 0
    while interrupted == lines:  # the last time, there are fewer lines
        run = RunOfRanks.__new__(RunOfRanks)
        run._folder = "run"
        begun = run._begun = [Saving(step) for step in range(3)]
        begun[1].failure = "a reason"
        errors: list[str] = []
        interrupted += 1
        lines = 0

        def wait(run: RunOfRanks = run, errors: list[str] = errors) -> None:
            try:
                run.wait()
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")

        def trace(frame: Any, event: str, _: Any, wait: Any = wait, last: int = interrupted) -> Any:
            nonlocal lines
            if frame.f_code in codes and event == "line":
                lines += 1
                if lines == last:
                    sys.settrace(None)
                    wait()
            return trace if lines < last else None

        def main(wait: Any = wait, trace: Any = trace) -> None:
            sys.settrace(trace)
            wait()
            sys.settrace(None)

        thread = threading.Thread(target=main, daemon=True)
        thread.start()
        time.sleep(0.01)
        for saving in reversed(begun):
            saving.ended.set()
        thread.join(10)
        assert not thread.is_alive(), interrupted
        run.raise_earlier()
        assert errors == ["InputOutputError: run: step 1 was not saved: a reason"] and not run._begun
    assert lines > 15


def test_all_ranks_raise_a_failure_by_its_public_class() -> None:
    sent: list[Any] = []

    def fail() -> None:
        raise RankNotFoundError("rank 1's part is gone")

    with pytest.raises(RankNotFoundError):
        together(lambda value: [*sent, sent.append(value)], fail)
    with pytest.raises(lmcstore.NotFoundError, match="rank 0: rank 1's part is gone"):
        together(lambda value: [*sent, value], lambda: None)
