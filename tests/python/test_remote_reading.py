# SPDX-License-Identifier: BSD-3-Clause
"""Reading a run in an object store in place: only what is needed is fetched."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmcstore
import pytest
from optional import torch
from same import same

pytest.importorskip("obstore")
from lmcstore._remote import sweep
from lmcstore._remote.place import Place
from lmcstore._remote.state import State, change, read

STEPS = 9


def _train(pool: Path, url: str, steps: int) -> dict[int, Any]:
    """Push after each step of AdamW; return all states."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 100))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    states = {}
    with lmcstore.open(pool, "x", background=False) as store:
        shelf = store["run"]
        for step in range(1, steps + 1):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape).bfloat16().float()
            optimizer.step()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "on": [step, "x"]}
            taken = shelf.snapshot(state, step=step, metrics={"loss": 1 / step})
            if step == 1:
                shelf.policy = "write=link keep_raw=1 links=5"
            if step == 3:
                shelf.tag(taken, "best")
                taken.note = "the third"
            states[step] = taken.state_dict()
            store.push(url)
    return states


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[int, Any]]]:
    folder = tmp_path_factory.mktemp("remote")
    (folder / "bucket").mkdir()
    url = f"file://{folder}/bucket/run"
    yield url, _train(folder / "run.pool", url, STEPS)


def test_every_state_is_read(pushed: tuple[str, dict[int, Any]]) -> None:
    url, states = pushed
    with lmcstore.open(url) as store:
        shelf = store["run"]
        assert [snapshot.step for snapshot in shelf] == list(states)
        assert [snapshot.step for snapshot in reversed(shelf)] == list(states)[::-1]
        for step in (STEPS, 1, 5, 2, 7, 9, 3):
            same(states[step], shelf.at(step=step).state_dict())


def test_properties_are_read_without_tensors(pushed: tuple[str, dict[int, Any]]) -> None:
    url, states = pushed
    with lmcstore.open(url, "r") as store:
        shelf = store["run"]
        assert len(shelf) == STEPS and list(store) == ["run"] and "run" in store
        best = shelf["best"]
        assert (best.step, best.note, best.metrics, best.tags) == (3, "the third", {"loss": 1 / 3}, ["best"])
        assert best.names() == list(_names(states[3]))
        assert shelf["latest~1"].number == STEPS - 1
        assert store.info()["fetched_bytes"] < 100_000
        assert not any(path.is_dir() for path in Path("/tmp").glob("lmc-store-cache-*/missing"))


def _names(state: Any) -> Iterator[str]:
    for part in ("0.weight", "0.bias", "1.weight", "1.bias"):
        yield f"model.{part}"
    for number in range(4):
        for name in ("step", "exp_avg", "exp_avg_sq"):
            yield f"optimizer.state.{number}.{name}"


@pytest.mark.parametrize("step", [4, 9])
def test_only_what_a_tensor_rests_on_is_fetched(pushed: tuple[str, dict[int, Any]], step: int) -> None:
    url, states = pushed
    with lmcstore.open(url) as store:
        snapshot = store["run"].at(step=step)
        same(states[step]["model"]["1.bias"], snapshot["model.1.bias"])
        part = store.info()["fetched_bytes"]
        same(states[step]["model"]["1.weight"][3:5], snapshot["model.1.weight"][3:5])
        same(states[step]["on"], snapshot["on"])
        assert store.info()["fetched_bytes"] - part < 2 * 3 * 80_000  # key and links of three arrays
        same(states[step], snapshot.state_dict())
        whole = store.info()["fetched_bytes"]
        same(states[step], store["run"].at(step=step).state_dict())
        assert store.info()["fetched_bytes"] == whole
    assert part < whole / 4


def test_a_chain_that_is_read_whole(tmp_path: Path) -> None:
    """A name that is a pattern can't be restored alone; here also as if each archive needed more of the one before."""
    url = f"file://{tmp_path}/run"
    states = [{"w*": torch.randn(1000), "v": torch.zeros(3), "step": step} for step in range(3)]
    with lmcstore.open(tmp_path / "run.pool", "x", background=False) as store:
        for one in states:
            store["run"].snapshot(one)
            store.push(url)
        store["none"].snapshot({"step": 1})
        store.push(url)

    def deepen(draft: State) -> bool:
        shelf = draft.shelf("run")
        entries = list(shelf.entries())[1:]
        shelf.update({entry.number: entry._replace(deep=True, base=entry.number - 1) for entry in entries})
        return True

    for _ in range(2):
        with lmcstore.open(url) as store:
            same(states[2], store["run"][3].state_dict())
            same(states[0], store["run"][1].state_dict())
            same({"step": 1}, store["none"][1].state_dict())
        change(read(Place(url)), "0" * 32, deepen)


def test_a_state_is_loaded_into_a_model(pushed: tuple[str, dict[int, Any]]) -> None:
    url, states = pushed
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 100))
    with lmcstore.open(url) as store:
        store["run"]["latest"].load_into({"model": model})
        difference = store["run"][1].diff(store["run"][2])
        assert difference["model.0.weight"].kind == "changed"
    same(states[STEPS]["model"], model.state_dict())


def test_notes_of_any_text(tmp_path: Path) -> None:
    """Notes that are too long for the state are in the archive."""
    url = f"file://{tmp_path}/run"
    notes = ["lower rate\nsecond line", "lr\u00a0=\u00a01e-4", "x" * 20_000, "\U0001f469\u200d\U0001f680", "\x1b[31m"]
    with lmcstore.open(tmp_path / "run.pool", "x", background=False) as store:
        for step, note in enumerate(notes):
            store["run"].snapshot({"step": step}, step=step, metrics={"loss": step}, meta={"message": note})
        store.push(url)
        for changed in (False, True):
            if changed:
                notes[0], notes[3] = "one\ntwo\n", ""
                for number in (1, 4):
                    store["run"][number].note = notes[number - 1] or None
                store.push(url)
            lmcstore.pull(url, tmp_path / f"{changed}.pool")
            for path in (url, tmp_path / f"{changed}.pool"):
                with lmcstore.open(path) as there:
                    assert [snapshot.note or "" for snapshot in there["run"]] == notes
                    assert [snapshot.metrics["loss"] for snapshot in there["run"]] == [0, 1, 2, 3, 4]


def test_it_is_read_only(pushed: tuple[str, dict[int, Any]], tmp_path: Path) -> None:
    url, _ = pushed
    with lmcstore.open(url) as store:
        with pytest.raises(lmcstore.ReadOnlyError):
            store["run"].snapshot({"a": 1})
        for change in (lambda: store["run"].remove(1), lambda: store["run"].tag(1, "x"), store.compact):
            with pytest.raises((lmcstore.UnsupportedError, lmcstore.ReadOnlyError)):
                change()
        with pytest.raises(lmcstore.NotFoundError):
            store["run"][99].step  # noqa: B018
        with pytest.raises(lmcstore.NotFoundError):
            store["run"]["latest"]["model.none"]
        snapshot, tensor = store["run"][2], store["run"][2]["model.0.weight"]
    for call in (lambda: tensor[:2], tensor.torch, snapshot.names, snapshot.state_dict, lambda: store["run"][1].step):
        with pytest.raises(lmcstore.InvalidError, match="closed"):
            call()
    with pytest.raises(lmcstore.ReadOnlyError, match="reading only"):
        lmcstore.open(url, "r+")
    with pytest.raises(lmcstore.NotFoundError):
        lmcstore.open(f"file://{tmp_path}/none")


def test_damage_is_named(pushed: tuple[str, dict[int, Any]], tmp_path: Path) -> None:
    url, states = pushed
    copy = tmp_path / "run"
    shutil.copytree(url.removeprefix("file://"), copy)
    pieces = sorted(copy.glob("data/*/*"))
    assert len(pieces) >= STEPS
    failed = 0
    for piece in pieces:
        good = piece.read_bytes()
        for bad in (good[: len(good) // 2], good[: len(good) // 2] + b"\xff" + good[len(good) // 2 + 1 :], None):
            piece.unlink() if bad is None else piece.write_bytes(bad)
            with lmcstore.open(f"file://{copy}") as store:
                for step in (1, STEPS):
                    try:
                        read = store["run"].at(step=step).state_dict()
                    except (lmcstore.DamagedError, lmcstore.NotFoundError, lmcstore.InputOutputError) as error:
                        assert piece.parent.name in str(error)
                        failed += 1
                    else:
                        same(states[step], read)
        piece.write_bytes(good)
    assert failed > len(pieces)


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_snapshot_stays_the_one_that_was_found(
    pushed: tuple[str, dict[int, Any]], tmp_path: Path, change: str
) -> None:
    """After a removal its objects are there for a day; of another run under its URL nothing is read."""
    copy, other = tmp_path / "run", f"file://{tmp_path}/other"
    shutil.copytree(pushed[0].removeprefix("file://"), copy)
    with lmcstore.open(f"file://{copy}") as store:
        found = store["run"][2]
        digest = store["run"][2].digest
        if change == "removed":
            with Place(f"file://{copy}") as place:
                sweep.remove(place, ["run@2"], dry_run=False)
            assert store["run"][3].digest and found.digest == digest
            assert found.storage() and found.export(tmp_path / "x.safetensors")
        else:
            _train(tmp_path / "other.pool", other, 3)
            shutil.rmtree(copy)
            shutil.copytree(other.removeprefix("file://"), copy)
            for read in (lambda: found.digest, found.storage, lambda: found.export(tmp_path / "x.safetensors")):
                with pytest.raises(lmcstore.NotFoundError, match=r"no such object.*open it again"):
                    read()
            assert not (tmp_path / "x.safetensors").exists()


def test_writes_are_refused(pushed: tuple[str, dict[int, Any]]) -> None:
    with lmcstore.open(pushed[0], "a") as store:
        for write in (lambda: store["run"].snapshot({}), lambda: store.shelf("new", create=True)):
            with pytest.raises(lmcstore.ReadOnlyError, match="is only read here: pull it into a pool"):
                write()


def test_the_state_of_the_user_is_left_alone() -> None:
    assert os.environ["XDG_STATE_HOME"].startswith(tempfile.gettempdir())
