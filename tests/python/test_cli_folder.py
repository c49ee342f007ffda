# SPDX-License-Identifier: BSD-3-Clause
"""The command lmc-store on the folder of a run of many ranks: it behaves as one store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
import run_folder
import tensor_file
from command import NEEDS_BIN
from run_folder import RANKS
from test_cli import as_json, cli, error, find, flip_bit, text

pytestmark = [NEEDS_BIN, pytest.mark.filterwarnings("ignore::lmcstore.CreationWarning")]

STEPS = (10, 20, 30)


@pytest.fixture
def run(place: Path) -> Iterator[Path]:
    """A folder with three snapshots of three ranks, steps 10, 20, 30, closed."""
    folder = place / "run"
    values = {"config": {"lr": 0.1, "names": ["a", None]}, "text": "x" * 5000}
    for step in STEPS:
        run_folder.save(folder, step, values=values, metrics={"loss": 1 / step})
    run_folder.close(folder)
    yield folder
    run_folder.close(folder)


def numbers(path: Path) -> list[int]:
    return [one["number"] for shelf in as_json("ls", path)["shelves"] for one in shelf["snapshots"]]


def copy(folder: Path, to: Path) -> Path:
    subprocess.run(["cp", "-r", "--sparse=always", folder, to], check=True)
    return to


def equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.shape == other[name].shape and array.tobytes() == other[name].tobytes(), name


def test_ls_lists_the_snapshots_of_the_run(run: Path) -> None:
    shelf = as_json("ls", run)["shelves"][0]
    with lmcstore.open(run, mode="r") as store:
        for row, snapshot in zip(shelf["snapshots"], store["run"], strict=True):
            assert row["number"] == snapshot.number and row["step"] == snapshot.step
            assert row["raw_bytes"] == snapshot.raw_bytes and row["new_bytes"] == snapshot.new_bytes
            assert row["stored_bytes"] == snapshot.storage()["stored_bytes"]
            assert row["metrics"] == snapshot.metrics and row["lacks"] is None
    assert "incomplete" not in text("ls", run)


def test_ls_lists_the_tensors_of_a_snapshot(run: Path) -> None:
    found = as_json("ls", run, "run@2")["snapshot"]
    state = run_folder.arrays(20)
    assert {entry["name"]: tuple(entry["shape"]) for entry in found["entries"]} == {
        name: array.shape for name, array in state.items()
    }
    assert [entry["name"] for entry in found["entries"]] == list(state)
    assert (found["tensors"], found["values"], found["opaque"]) == (len(state), 2, 0)
    with lmcstore.open(run, mode="r") as store:
        for mine, theirs in zip(found["entries"], store["run"][2].entries(), strict=True):
            assert [mine[key] for key in ("name", "dtype", "raw_bytes", "stored_bytes", "stored_as", "chain")] == [
                theirs[key] for key in ("name", "dtype", "raw_bytes", "stored_bytes", "stored_as", "chain")
            ]
    assert "and 2 values, 0 pickles" in text("ls", run, "run@2")


def test_log_and_info(run: Path) -> None:
    rows = as_json("log", run)["snapshots"]
    assert [row["step"] for row in rows] == [30, 20, 10]
    assert all(row["raw_bytes"] == sum(a.nbytes for a in run_folder.arrays(1).values()) for row in rows)
    assert "loss=0.1" in text("log", run, "run@1")
    info = as_json("info", run)
    assert list(info["ranks"]) == RANKS and info["missing"] == []
    with lmcstore.open(run, mode="r") as store:
        assert info["used_bytes"] == store.info()["used_bytes"]
        assert info["live_bytes"] == store.info()["live_bytes"] > info["ranks"][RANKS[0]]["live_bytes"] > 0
    assert "rank-00001.pool: " in text("info", run)


def test_export_joins_the_tensors(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    assert as_json("export", run, "run@2", "-o", file)["tensors"] == 7
    found, metadata = tensor_file.load(file)
    equal(found, run_folder.arrays(20))
    assert metadata["lmc-store.step"] == "20" and "lmc-store.digest" not in metadata
    cli("export", run, "run", "--part", "model", "-o", file, "--force")
    found, _ = tensor_file.load(file)
    equal(found, {name[6:]: a for name, a in run_folder.arrays(30).items() if name.startswith("model.")})
    assert "did you mean 'model'" in error("export", run, "run", "--part", "modl", "-o", file, "--force")


def test_diff_is_that_of_whole_tensors(run: Path, place: Path) -> None:
    """A pool with the same arrays whole has the same differences."""
    plain = place / "plain.pool"
    with lmcstore.open(plain) as store:
        for step in STEPS:
            store["run"].snapshot(run_folder.arrays(step), step=step)
    ours, theirs = as_json("diff", run, "run@1", "@3"), as_json("diff", plain, "run@1", "@3")
    rows = {row["name"]: row for row in theirs["tensors"] if not row["is_attachment"]}
    assert {row["name"]: row for row in ours["tensors"]} == rows and "large" in rows
    assert ours["changed"] == len(rows) and ours["same"] == 7 - len(rows)
    assert as_json("diff", run, "run")["before"]["number"] == 2


def test_diff_tells_added_removed_and_reshaped_tensors(place: Path) -> None:
    folder = place / "run"
    run_folder.save(folder, 1, {"a": np.zeros((4, 4), "f"), "b": np.zeros(6, "f"), "c": np.ones(9, "f")})
    run_folder.save(folder, 2, {"a": np.zeros((4, 2), "f"), "c": np.ones(9, "f"), "d": np.ones(9, "f")}, world=2)
    found = as_json("diff", folder, "run@1..2")
    assert {row["name"]: row["kind"] for row in found["tensors"]} == {"a": "reshaped", "b": "removed", "d": "added"}
    assert found["same"] == 1  # of other boxes, and so read
    run_folder.close(folder)


def test_tags_notes_and_metrics(run: Path) -> None:
    cli("tag", run, "run@2", "best")
    cli("note", run, "run@best", "kept")
    cli("metric", run, "run@best", "acc=0.5")
    cli("tag", run, "run@3", "best", "--expect", "2")
    with lmcstore.open(run, mode="r") as store:
        assert store["run"]["best"].number == 3
        assert store["run"][2].metrics["acc"] == 0.5 and store["run"][2].meta == {"message": "kept"}
    assert as_json("tag", run, "run@3", "best", "--delete")["snapshot"]["tags"] == []


def test_parts_that_are_prepared_are_read(run: Path) -> None:
    run_folder.save(run, 40, commits=False)
    run_folder.close(run)
    assert numbers(run / RANKS[0]) == [1, 2, 3] and numbers(run) == [1, 2, 3, 4]
    for arguments in (["verify", run], ["verify", run, "run@4"], ["ls", run, "run@4"], ["diff", run, "run@4"]):
        cli(*arguments)
    cli("rm", run, "run@4")
    assert numbers(run) == [1, 2, 3]
    run_folder.save(run, 50)
    run_folder.close(run)
    cli("verify", run)
    assert as_json("ls", run)["shelves"][0]["snapshots"][-1]["step"] == 50


# Missing pools


def test_a_missing_pool_is_named(run: Path, place: Path, tmp_path: Path) -> None:
    (run / RANKS[1]).rename(place / "away")
    lacks = f"{run} lacks the pool of rank 1, rank-00001.pool: copy it into the folder"
    rows = as_json("ls", run)["shelves"][0]["snapshots"]
    assert [row["lacks"] for row in rows] == [lacks] * 3 and all(row["new_bytes"] is None for row in rows)
    assert f"incomplete: 1 and 2 more up to 3: {lacks}" in text("ls", run)
    assert lacks in text("ls", run, "run@2") and lacks in text("info", run)
    assert as_json("info", run)["missing"] == [lacks]
    assert lacks in error("export", run, "run", "-o", tmp_path / "x", status="not found")
    assert lacks in error("diff", run, "run", status="not found")
    assert "3 parts of snapshots are missing" in error("verify", run, status="not found")
    found = as_json("verify", run, code=1)
    assert [one["snapshot"] for one in found["missing"]] == ["run@1", "run@2", "run@3"]
    assert found["missing"][0]["what"] == lacks and not found["ok"]
    assert not (tmp_path / "x").exists()
    (place / "away").rename(run / "rank-7.pool")  # under another name, it is found by its uuid
    cli("verify", run)
    cli("export", run, "run", "-o", tmp_path / "x")


def test_another_pool_under_the_name_is_not_taken(run: Path, place: Path) -> None:
    (run / RANKS[1]).unlink()
    cli("create", run / RANKS[1])
    assert "lacks the pool of rank 1" in text("ls", run)
    (run / RANKS[1]).write_bytes(b"x" * 9000)
    assert RANKS[1] in error("verify", run)
    assert RANKS[1] in error("ls", run)


def test_a_removed_part_is_missing(run: Path) -> None:
    cli("rm", run / RANKS[2], "run@2")
    assert "rank-00002.pool lacks rank 2's part of run@2" in text("ls", run)
    assert "run@2" in text("verify", run, code=1)


def test_a_folder_without_records_is_named(run: Path) -> None:
    (run / "records.pool").unlink()
    assert "lacks the records of the run: copy records.pool into it" in error("ls", run, status="not found")


# Damage


def test_damage_is_found_and_repaired_from_a_copy(run: Path, place: Path) -> None:
    other = copy(run, place / "copy")
    flip_bit(run / RANKS[1], find(run / RANKS[1], run_folder.arrays(30)["large"][100_000:110_000].tobytes()))
    found = as_json("verify", run, code=1)["damages"]
    assert [(one["file"], one["tensor"], one["number"]) for one in found] == [(RANKS[1], "large", 3)]
    assert text("verify", run, "run@3", code=1).startswith(f"{RANKS[1]}, damaged: run@3 large")
    cli("verify", run, "run@2")
    found = as_json("scrub", run, code=1)["damages"]
    assert [(one["file"], one["tensor"]) for one in found] == [(RANKS[1], "large")]
    assert "large" in error("export", run, "run", "-o", place / "x")
    repaired = as_json("scrub", run, "--repair", "--from", other)
    assert (repaired["found"], repaired["repaired"], repaired["lost"], repaired["whole"]) == (1, 1, 0, True)
    assert as_json("verify", run)["ok"] is True


def damage_large(run: Path) -> None:
    """Damage the last snapshot's parts of two ranks."""
    large = run_folder.arrays(30)["large"]
    for rank, first in ((1, 100_000), (2, 200_000)):
        flip_bit(run / RANKS[rank], find(run / RANKS[rank], large[first : first + 10_000].tobytes()))


def test_a_source_that_lacks_a_pool_does_not_keep_the_others_from_repair(run: Path, place: Path) -> None:
    other = copy(run, place / "copy")
    damage_large(run)
    (other / RANKS[0]).unlink()
    done = as_json("scrub", run, "--repair", "--from", other, code=1)
    assert (done["found"], done["repaired"], done["lost"], done["whole"]) == (2, 2, 0, False)
    assert RANKS[0] in done["error"]["message"]
    damage_large(run)
    done = as_json("scrub", run, "--repair", "--from", place / "none", "--from", other, code=1)
    assert (done["repaired"], done["lost"], done["whole"]) == (2, 0, False) and "none" in done["error"]["message"]
    printed = text("scrub", run, "--repair", "--from", other, code=1)
    assert "no damage" in printed and "everything was checked" not in printed
    assert as_json("verify", run)["ok"] is True


def test_a_run_is_repaired_from_its_dump(run: Path, place: Path) -> None:
    cli("dump", run, "-o", place / "dumped")
    damage_large(run)
    done = as_json("scrub", run, "--repair", "--from", place / "dumped")
    assert (done["found"], done["repaired"], done["lost"], done["whole"]) == (2, 2, 0, True)
    assert as_json("verify", run)["ok"] is True
    assert "records.pool" in error("scrub", run, "--repair", "--from", place, status="not found")


def test_parts_of_a_run_are_scrubbed(run: Path, place: Path) -> None:
    whole = as_json("scrub", run)["contents"]
    one, several = (as_json("scrub", run, address)["contents"] for address in ("run@3", "run@2..3"))
    assert 0 < one < several < whole
    assert as_json("scrub", run, "run@2", "run@latest")["contents"] == several
    assert as_json("scrub", run, "run")["contents"] > several
    other = copy(run, place / "copy")
    flip_bit(run / RANKS[1], find(run / RANKS[1], run_folder.arrays(30)["large"][100_000:110_000].tobytes()))
    assert as_json("scrub", run, "run@2")["found"] == 0
    found = as_json("scrub", run, "run@step:30", code=1)["damages"]
    assert [(each["file"], each["tensor"]) for each in found] == [(RANKS[1], "large")]
    assert as_json("scrub", run, "run@2..", "--repair", "--from", other)["repaired"] == 1
    assert as_json("verify", run)["ok"] is True
    assert "none" in error("scrub", run, "none", status="not found")
    assert "run@9" in error("scrub", run, "run@9", status="not found")
    (run / RANKS[2]).unlink()
    assert RANKS[2] in error("scrub", run, "run@3", status="not found")


def test_a_part_that_is_prepared_is_not_scrubbed_alone(run: Path) -> None:
    run_folder.save(run, 40, commits=False)
    run_folder.close(run)
    assert "has only prepared its part of run@4" in error("scrub", run, "run@3..4", status="in use")
    assert as_json("scrub", run, "run@3")["found"] == 0


# Removal


def test_rm_removes_the_record_and_the_parts(run: Path) -> None:
    dry = as_json("rm", run, "run@1..2", "--dry-run")
    assert numbers(run) == [1, 2, 3] and (dry["snapshots"], dry["parts"], dry["removed"]) == (2, 6, False)
    done = as_json("rm", run, "run@1..2")
    assert (done["snapshots"], done["parts"], done["pools_left"]) == (2, 6, 0)
    assert [numbers(run / name) for name in RANKS] == [[3]] * 3 and numbers(run) == [3]
    cli("verify", run)
    equal(lmcstore_state(run), run_folder.arrays(30))
    cli("rm", run, "run@latest")
    assert [numbers(run / name) for name in [*RANKS, "records.pool"]] == [[]] * 4
    run_folder.save(run, 40)
    equal(lmcstore_state(run), run_folder.arrays(40))


def lmcstore_state(run: Path) -> dict[str, Any]:
    with lmcstore.open(run, mode="r") as store:
        latest = store["run"].latest
        assert latest is not None
        return {name: latest[name].numpy() for name in latest.names()}


def test_rm_leaves_a_pool_that_is_in_use_to_the_next_removal(run: Path) -> None:
    with lmcstore.open(run / RANKS[1], mode="r+"):
        done = cli("rm", run, "run@1")
        assert "parts stay in 1 pool, and go with the next removal" in done.stderr
    assert [numbers(run / name) for name in RANKS] == [[2, 3], [1, 2, 3], [2, 3]]
    cli("verify", run)
    assert as_json("policy", run, "run", "--prune")["removed"] == []
    assert [numbers(run / name) for name in RANKS] == [[2, 3]] * 3


def test_rm_needs_the_records(run: Path) -> None:
    with lmcstore.open(run / "records.pool", mode="r+"):
        assert "records.pool" in error("rm", run, "run@1", "--wait", "0", status="in use")
        cli("ls", run)
    assert numbers(run) == [1, 2, 3]


def test_parts_newer_than_the_records_stay(run: Path, place: Path) -> None:
    """An older copy of the records does not cost the parts that it lacks."""
    copy(run / "records.pool", place / "older")
    run_folder.save(run, 40)
    run_folder.close(run)
    copy(place / "older", run / "records.pool")
    cli("rm", run, "run@1")
    assert [numbers(run / name) for name in RANKS] == [[2, 3, 4]] * 3


def test_parts_of_no_group_stay(run: Path) -> None:
    with lmcstore.open(run / RANKS[0]) as store:
        store["run"].snapshot({"mine": 1})
        store["other"].snapshot({"mine": 1})
    run_folder.save(run, 40)
    run_folder.close(run)
    cli("rm", run, "run@1..3")
    assert numbers(run / RANKS[0]) == [1, 4, 5]


def test_shelves_are_forked_and_removed(run: Path) -> None:
    run_folder.save(run, 40, commits=False)
    run_folder.close(run)
    assert as_json("fork", run, "run@4", "new")["origin"] == {"shelf": "run", "number": 4}
    cli("fork", run, "run@2", "other")
    assert 'there is a shelf "other"' in error("fork", run, "run@1", "other", status="exists")
    cli("verify", run)
    with lmcstore.open(run, mode="r") as store:
        for name, step in (("new", 40), ("other", 20)):
            one = store[name][1]
            equal({tensor: one[tensor].numpy() for tensor in one.names()}, run_folder.arrays(step))
    with lmcstore.open(run / RANKS[2], mode="r+"):
        assert RANKS[2] in error("fork", run, "run@1", "third", status="in use")
        assert RANKS[2] in error("rm", run, "run", "--shelf", status="in use")
    run_folder.save(run, 50, commits=False)
    run_folder.close(run)
    assert as_json("rm", run, "run", "--shelf", "--dry-run")["snapshots"] == 5
    assert numbers(run) == [1, 1, 1, 2, 3, 4, 5]
    assert as_json("rm", run, "run", "--shelf")["snapshots"] == 5
    assert [numbers(run / name) for name in [*RANKS, "records.pool"]] == [[1, 1]] * 4
    assert "no shelf" in error("rm", run, "run", "--shelf", status="not found")
    cli("verify", run)


def test_policy_prunes(run: Path) -> None:
    cli("tag", run, "run@1", "first")
    assert as_json("policy", run, "run", "keep=last:1", "--dry-run")["would_remove"] == [2]
    assert [numbers(run / name) for name in RANKS] == [[1, 2, 3]] * 3
    assert as_json("policy", run, "run", "keep=last:1", "--prune")["removed"] == [2]
    assert [numbers(run / name) for name in RANKS] == [[1, 3]] * 3
    assert "keep=last:1" in text("policy", run, "run")
    run_folder.save(run, 40)
    run_folder.close(run)
    assert as_json("policy", run, "run", "--prune")["removed"] == [3]


def test_a_policy_is_set_where_it_belongs(run: Path) -> None:
    given = ("keep=last:7", "links=9", "budget=1G", "grace=1h")
    tried = as_json("policy", run, "run", *given, "--dry-run")["policy"].split()
    cli("policy", run, "run", *given)
    words = as_json("policy", run, "run")["policy"].split()
    assert sorted(tried) == sorted(words)
    assert words == ["keep_raw=4", "chain=3", "links=9", "keep=last:7", "budget=1G", "grace=1h"]
    for name in RANKS:
        assert {"links=9", "keep=all"} <= set(as_json("policy", run / name, "run")["policy"].split())
    assert "links=9" not in as_json("policy", run / "records.pool", "run")["policy"]
    error("policy", run, "run", "links=5", "keep=least:1", code=2)
    with lmcstore.open(run / RANKS[2], mode="r+"):
        assert RANKS[2] in error("policy", run, "run", "links=5", status="in use")
    assert "links=9" in text("policy", run, "run")
    assert error("policy", run, "none", "links=5", status="not found")


def bytes_of(run: Path) -> int:
    """Return the bytes of a run after its next snapshot."""
    info = as_json("info", run)
    return info["live_bytes"] + sum(one["last_snapshot_bytes"] for one in (info, *info["ranks"].values()))


def test_compact_keeps_the_budget_of_all_pools(place: Path) -> None:
    run = place / "run"
    generator = np.random.default_rng(5)
    for step in range(12):
        run_folder.save(run, step, {"a": generator.standard_normal((3, 50_000)).astype("f")})
    run_folder.close(run)
    cli("policy", run, "run", "keep=last:2", "budget=1G", "grace=none")
    cli("tag", run, "run@1", "first")
    cli("compact", run)
    assert numbers(run) == list(range(1, 13))
    wanted = bytes_of(run) - 1_500_000  # a snapshot has 600,000
    cli("policy", run, "run", f"budget={wanted}")
    cli("compact", run)
    left = numbers(run)
    assert 6 < len(left) < 11 and left == [1, *range(14 - len(left), 13)] and bytes_of(run) <= wanted
    assert [numbers(run / name) for name in RANKS] == [left] * 3
    cli("verify", run)
    cli("policy", run, "run", "budget=1M")
    cli("compact", run)
    assert numbers(run) == [1, 11, 12]  # what the rules keep stays, also above the budget


def test_compact_compacts_all_pools(run: Path) -> None:
    before = as_json("info", run)["used_bytes"]
    assert as_json("compact", run, "--finished")["used_bytes"] < before
    cli("verify", run)
    equal(lmcstore_state(run), run_folder.arrays(30))
    assert any(entry["stored_as"] != "raw" for entry in as_json("ls", run, "run@1")["snapshot"]["entries"])


def test_commands_that_take_one_pool_say_what_to_do(run: Path, tmp_path: Path) -> None:
    file = tensor_file.save(tmp_path / "x.safetensors", {"a": np.zeros(3, "f")})
    (tmp_path / "archive").write_bytes(b"")
    for arguments in (
        ["restore", tmp_path / "archive", run],
        ["import", run, "run", file],
        ["mv", run, "run", "b"],
        ["create", run],
    ):
        message = error(*arguments, status="unsupported")
        assert f"{run} is the folder of a run of many ranks: " in message
    assert "no such pool" in error("ls", tmp_path / "none") and "is a folder" in error("ls", tmp_path, code=2)


def test_report_shows_a_run(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "lmcstore.report", run, "-o", page]
    subprocess.run(command, check=True, capture_output=True)
    assert "loss" in page.read_text() and "can't be told" not in page.read_text()
    assert all(name in page.read_text() for name in ("columns.deep", "model.weight"))
    (run / RANKS[1]).unlink()
    subprocess.run(command, check=True, capture_output=True)
    assert f"lacks the pool of rank 1, {RANKS[1]}" in page.read_text()


def test_metrics_of_a_run_go_to_tensorboard(run: Path, tmp_path: Path) -> None:
    found = as_json("export", run, "--metrics", "tensorboard", "-o", tmp_path / "board")
    assert (found["snapshots"], found["values"], found["shelf"]) == (3, 3, "run")
