# SPDX-License-Identifier: BSD-3-Clause
"""Opening, addressing, properties of snapshots, removing, errors."""

from __future__ import annotations

import gc
import importlib
import inspect
import math
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import lmcstore
import numpy as np
import pytest
import tensor_file
from lmcstore._arrays.dtypes import DTYPES
from lmcstore._text.arguments import parse_size
from optional import HAS_TORCH, torch
from same import same

ONE = {"a": torch.ones(3) if HAS_TORCH else np.ones(3, "f4")}


def fill(shelf: lmcstore.Shelf, count: int) -> list[lmcstore.Snapshot]:
    return [shelf.snapshot({"a": torch.full((10,), float(i))}, step=i) for i in range(count)]


def test_modes(pool_path: str) -> None:
    for mode in ("r", "r+"):
        with pytest.raises(lmcstore.NotFoundError) as caught:
            lmcstore.open(pool_path, mode=mode)
        assert isinstance(caught.value, KeyError) and pool_path in str(caught.value)
        assert not Path(pool_path).exists()
    lmcstore.open(pool_path, mode="x").close()
    with pytest.raises(lmcstore.ExistsError) as exists:
        lmcstore.open(pool_path, mode="x")
    assert isinstance(exists.value, FileExistsError)
    for mode in ("a", "r+", "r"):
        with lmcstore.open(pool_path, mode=mode) as store:
            assert store.mode == mode and not store.closed
        assert store.closed
    with pytest.raises(ValueError, match="mode"):
        lmcstore.open(pool_path, mode="w")


def test_reading_store_refuses_to_write(pool_path: str) -> None:
    with lmcstore.open(pool_path) as store:
        store["run"].snapshot(ONE, tags=["t"])
    with lmcstore.open(pool_path, mode="r") as store:
        shelf = store["run"]
        for write in (
            lambda: shelf.snapshot(ONE),
            lambda: shelf.remove(1),
            store.compact,
            lambda: store.set_limit("1GiB"),
        ):
            with pytest.raises(lmcstore.ReadOnlyError):
                write()
        same(ONE, shelf[1].state_dict())


def test_a_new_pool_is_private(pool_path: str) -> None:
    lmcstore.open(pool_path).close()
    assert stat.S_IMODE(os.stat(pool_path).st_mode) == 0o600


def test_paths(tmp_path: Path) -> None:
    lmcstore.open(tmp_path / "with spaces and ü.pool").close()
    assert (tmp_path / "with spaces and ü.pool").exists()
    with pytest.raises(lmcstore.NotFoundError, match="there is no run"):
        lmcstore.open(f"file://{tmp_path}/run")
    with pytest.raises((lmcstore.UnsupportedError, lmcstore.InvalidError), match="redis"):
        lmcstore.open("redis://bucket/run.pool")
    with pytest.raises(lmcstore.Error):
        lmcstore.open(tmp_path / "no such directory" / "x.pool")
    with pytest.raises(lmcstore.Error):
        lmcstore.open(tmp_path)


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    for content in (b"", b"hello", b"x" * (16 << 20)):
        path = tmp_path / f"foreign{len(content)}"
        path.write_bytes(content)
        if content:
            for mode in ("a", "r", "r+"):
                with pytest.raises(lmcstore.Error):
                    lmcstore.open(path, mode=mode)
            assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (8 << 20, 8 << 20),
        ("8388608", 8 << 20),
        ("8MiB", 8 << 20),
        ("8 mib", 8 << 20),
        ("1.5GiB", 3 << 29),
        ("8M", 8 << 20),
        ("10MB", 10_000_000),
        ("1 tb", 10**12),
        ("100b", 100),
    ],
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "8 pounds", "-1", "1e9", -1])
def test_bad_sizes(text: Any) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_size_is_a_limit_that_can_be_raised(pool_path: str) -> None:
    with lmcstore.open(pool_path, size="64MiB") as store:
        assert store.info()["limit_bytes"] == 64 << 20
    with lmcstore.open(pool_path, size="32MiB") as store:
        assert store.info()["limit_bytes"] == 64 << 20
    with lmcstore.open(pool_path, size="128MiB") as store:
        assert store.info()["limit_bytes"] == 128 << 20
        store.set_limit("96MiB")
        assert store.info()["limit_bytes"] == 96 << 20
        store.set_limit(None)
        assert store.info()["limit_bytes"] == 0


def test_a_cell_that_runs_twice(pool_path: str) -> None:
    """A pool opened again in a process is the same store; each handle closes alone."""
    first = lmcstore.open(pool_path)
    first["run"].snapshot(ONE)
    second = lmcstore.open(pool_path)
    assert len(second["run"]) == 1
    second["run"].snapshot(ONE)
    assert len(first["run"]) == 2
    assert first["run"][1] == second["run"][1]
    first.close()
    assert second["run"].snapshot(ONE).number == 3
    reader = lmcstore.open(pool_path, mode="r")
    assert len(reader["run"]) == 3
    second.close()
    same(ONE, reader["run"][3].state_dict())
    reader.close()


def test_a_store_that_is_dropped_is_closed(pool_path: str, run_python: Any) -> None:
    lmcstore.open(pool_path)["run"].snapshot(ONE)
    gc.collect()
    done = run_python("import lmcstore, sys; lmcstore.open(sys.argv[1], wait=0)", pool_path)
    assert done.returncode == 0, done.stderr


def test_a_shelf_keeps_its_store_open(pool_path: str) -> None:
    shelf = lmcstore.open(pool_path)["run"]
    gc.collect()
    shelf.snapshot(ONE)
    assert len(shelf) == 1
    shelf.store.close()


def test_after_close(pool_path: str) -> None:
    store = lmcstore.open(pool_path)
    shelf = store["run"]
    snapshot = shelf.snapshot(ONE, step=3)
    seen = shelf[1]
    assert seen.step == 3
    store.close()
    store.close()
    for use in (
        lambda: len(shelf),
        lambda: shelf.snapshot(ONE),
        lambda: shelf.latest,
        store.info,
        store.shelves,
        seen.state_dict,
        snapshot.state_dict,
        lambda: seen.tags,
        lambda: next(iter(shelf)),
    ):
        with pytest.raises(lmcstore.Error, match="closed"):
            use()
    assert seen.step == 3 and seen.number == 1
    assert "closed" in repr(store) and "closed" in repr(shelf)


def test_info(store: lmcstore.Store) -> None:
    store["run"].snapshot(ONE)
    info = store.info()
    assert info["path"].endswith("test.pool") and info["writable"] and info["limit_bytes"] == 256 << 20
    assert info["snapshot_count"] == 1 and info["shelf_count"] == 1
    assert 0 < info["used_bytes"] <= info["limit_bytes"] and info["free_bytes"] > 0


def test_shelves(store: lmcstore.Store) -> None:
    assert store.shelves() == [] and "run" not in store
    empty = store["run"]
    assert store.shelves() == [] and len(empty) == 0 and empty.latest is None and list(empty) == []
    assert empty.steps(1) == []
    with pytest.raises(KeyError):
        empty[1]
    store["run"].snapshot(ONE)
    store["another"].snapshot(ONE)
    assert store.shelves() == ["another", "run"] and list(store) == ["another", "run"] and "run" in store
    assert store["run"] == store["run"] and store["run"] != store["another"]
    with pytest.raises(TypeError):
        store[1]  # type: ignore[index]


@pytest.mark.parametrize("name", ["", "a@b", "x" * 1025, "a\nb", "a\0b", "\udc80"])
def test_bad_shelf_names(store: lmcstore.Store, name: str) -> None:
    with pytest.raises(ValueError):
        store[name].snapshot(ONE)
    assert store.shelves() == []


def test_addresses(shelf: lmcstore.Shelf) -> None:
    snapshots = fill(shelf, 6)
    assert [snapshot.number for snapshot in snapshots] == [1, 2, 3, 4, 5, 6]
    shelf.tag(3, "best")
    assert shelf[3].number == 3 and shelf["3"].number == 3
    assert shelf[-1].number == 6 and shelf[-6].number == 1
    assert shelf["best"].number == 3 and shelf["best~1"].number == 2
    assert shelf["latest"].number == 6 and shelf["latest~1"].number == 5
    assert shelf["step:4"].number == 5
    assert shelf.latest == shelf[6] == snapshots[5] and shelf.latest != shelf[5]
    shelf.remove(5)
    shelf.remove(1)
    assert shelf[-2].number == 4 and shelf["latest~1"].number == 4 and shelf[-4].number == 2
    for missing in (0, 1, 5, 7, -5, "worst", "latest~4", "step:99", 10**30):
        with pytest.raises(KeyError):
            shelf[missing]
    for wrong in (1.5, None, True, slice(1, 2)):
        with pytest.raises(TypeError):
            shelf[wrong]  # type: ignore[index]
    assert 3 in shelf and 5 not in shelf and "best" in shelf and "worst" not in shelf and snapshots[5] in shelf
    assert [snapshot.number for snapshot in shelf] == [2, 3, 4, 6] and len(shelf) == 4


def test_steps_may_repeat(shelf: lmcstore.Shelf) -> None:
    for value, step in enumerate((1, 2, 3, 2, 3, None, -7, -7)):
        shelf.snapshot({"value": value}, step=step)
    assert shelf.at(step=2).number == 4 and shelf.at(step=3).number == 5 and shelf.at(step=-7).number == 8
    assert [snapshot.number for snapshot in shelf.steps(2)] == [2, 4]
    assert [snapshot.number for snapshot in shelf.steps(9)] == []
    assert shelf["step:2"].number == 4
    assert shelf[6].step is None
    with pytest.raises(KeyError):
        shelf.at(step=9)


def test_many_snapshots(shelf: lmcstore.Shelf) -> None:
    for step in range(300):
        shelf.snapshot({"step": step}, step=step % 10)
    assert len(shelf) == 300
    assert [snapshot.number for snapshot in shelf] == list(range(1, 301))
    assert [snapshot.number for snapshot in shelf.steps(3)] == list(range(4, 301, 10))
    assert shelf[-300].number == 1


def test_what_a_snapshot_says(shelf: lmcstore.Shelf) -> None:
    before = time.time()
    meta = {"note": "Grüße 🙂", "list": [1, 2.5, None, True, {"x": -(2**63) + 1}], "empty": {}, "third": 1 / 3}
    metrics = {"loss": 2.1, "nan": math.nan, "inf": math.inf, "third": 1 / 3, "int": 3, "tensor": torch.tensor(0.5)}
    snapshot = shelf.snapshot(ONE, step=120, tags=["best", "zwölf"], metrics=metrics, meta=meta)
    after = time.time()
    for seen in (snapshot, shelf.latest):
        assert seen is not None
        assert seen.number == 1 and type(seen.number) is int and seen.step == 120
        assert before <= seen.time <= after and type(seen.time) is float
        assert sorted(seen.tags) == ["best", "zwölf"]
        assert math.isnan(seen.metrics.pop("nan"))
        assert {k: v for k, v in seen.metrics.items() if k != "nan"} == {
            "loss": 2.1,
            "inf": math.inf,
            "third": 1 / 3,
            "int": 3.0,
            "tensor": 0.5,
        }
        assert seen.meta == meta and list(seen.meta) == list(meta)
        assert seen.parent is None
        assert seen.raw_bytes >= 12 and seen.stored_bytes >= 12
        assert "run@1" in repr(seen) and "120" in repr(seen)
    assert len({snapshot, shelf[1], shelf.latest}) == 1
    assert snapshot.wait() is snapshot and snapshot.done


def test_tags_move(shelf: lmcstore.Shelf) -> None:
    shelf.snapshot(ONE, tags=["best", "first"])
    shelf.snapshot(ONE, tags=["best"])
    shelf.snapshot(ONE, tags="single")
    assert shelf[1].tags == ["first"] and shelf[2].tags == ["best"] and shelf["single"].number == 3
    shelf.tag(shelf[3], "best")
    assert shelf["best"].number == 3
    shelf.untag("best")
    assert "best" not in shelf
    with pytest.raises(KeyError):
        shelf.untag("best")
    with pytest.raises(KeyError):
        shelf.tag(99, "x")


def test_parents(shelf: lmcstore.Shelf) -> None:
    target = {"a": torch.zeros(3)}
    first = shelf.snapshot(ONE)
    second = shelf.snapshot(ONE)
    assert first.parent is None and second.parent == 1
    shelf[1].load_into(target)
    assert shelf.snapshot(ONE).parent == 1
    assert shelf.snapshot(ONE).parent == 3
    shelf[2].state_dict()
    assert shelf.snapshot(ONE).parent == 4
    assert shelf.snapshot(ONE, parent=2).parent == 2
    assert shelf.snapshot(ONE, parent=shelf[1]).parent == 1
    with pytest.raises(KeyError):
        shelf.snapshot(ONE, parent=99)


def test_removing(shelf: lmcstore.Shelf, store: lmcstore.Store) -> None:
    big = torch.randn(1 << 20)
    shelf.snapshot({"a": big})
    shelf.snapshot({"a": big + 1}, tags=["gone"])
    dry = shelf.remove(2, dry_run=True)
    assert dry.freed_bytes + dry.later_bytes >= big.numel() * 4 and len(shelf) == 2
    kept = shelf[2]
    view = kept.state_dict()
    removal = shelf.remove("gone")
    assert removal.freed_bytes == dry.freed_bytes and removal.removed_tags == 1
    assert [snapshot.number for snapshot in shelf] == [1]
    with pytest.raises(lmcstore.NotFoundError):
        shelf.remove(2)
    with pytest.raises(lmcstore.NotFoundError):
        kept.state_dict()
    same({"a": big + 1}, view)
    assert shelf.snapshot(ONE).number == 3
    shelf.remove(-1)
    shelf.remove(shelf[1])
    assert len(shelf) == 0 and shelf.latest is None
    store.compact()
    assert shelf.snapshot(ONE).number == 4


def test_removing_frees_space(store: lmcstore.Store, shelf: lmcstore.Shelf) -> None:
    for _ in range(3):
        shelf.snapshot({"a": torch.randn(1 << 21)})
    used = store.info()["used_bytes"]
    for number in (1, 2, 3):
        shelf.remove(number)
    store.compact()
    assert store.info()["used_bytes"] < used - (16 << 20)


def test_parts(shelf: lmcstore.Shelf) -> None:
    state = {
        "model": {"h.0.weight": torch.zeros(1), "h": [{"bias": torch.ones(1)}]},
        "a": {"b.c": 1, "b": {"c": 2}},
        "n": {1: "int", "1": "str"},
        "list": [10, [20, 30]],
        7: "seven",
    }
    snapshot = shelf.snapshot(state)
    same(state["model"]["h.0.weight"], snapshot["model.h.0.weight"])
    same(state["model"]["h"][0]["bias"], snapshot["model.h.0.bias"])
    same(state["model"], snapshot.state_dict("model"))
    assert snapshot[("a", "b.c")] == 1 and snapshot[("a", "b", "c")] == 2 and snapshot["a.b"] == {"c": 2}
    assert snapshot[("n", 1)] == "int" and snapshot[("n", "1")] == "str"
    assert snapshot["list.1.0"] == 20 and snapshot[("list", 1, 1)] == 30 and snapshot["list.1"] == [20, 30]
    assert snapshot[7] == "seven" and snapshot["7"] == "seven"
    same(state, snapshot.state_dict(()))
    for ambiguous in ("a.b.c", "n.1"):
        with pytest.raises(ValueError, match="tuple"):
            snapshot[ambiguous]
    for missing in ("x", "model.h.1", "list.5", "list.x", ("a", "x"), ("list", "0"), "", "model.", 8, None, "7.x"):
        with pytest.raises(KeyError):
            snapshot[missing]


def test_pruning_loop(shelf: lmcstore.Shelf) -> None:
    fill(shelf, 10)
    for snapshot in list(shelf)[:-3]:
        if snapshot.step % 4:
            shelf.remove(snapshot.number)
    assert [snapshot.step for snapshot in shelf] == [0, 4, 7, 8, 9]


def test_progress_is_shown_and_can_stop(shelf: lmcstore.Shelf, store: lmcstore.Store) -> None:
    base = torch.randn(1 << 18)
    for step in range(8):
        shelf.snapshot({"a": base + step})

    class Stop(Exception):
        pass

    def stop(what: str, done: int, total: int) -> None:
        assert isinstance(what, str) and 0 <= done <= total
        raise Stop

    with pytest.raises(Stop):
        store.compact(stop)
    calls: list[tuple[str, int, int]] = []
    store.compact(lambda *call: calls.append(call))
    assert store.verify()["damages"] == 0
    for step in range(8):
        same(base + step, shelf[step + 1]["a"])


def test_compaction_makes_it_smaller(shelf: lmcstore.Shelf, store: lmcstore.Store) -> None:
    torch.manual_seed(1)
    weight = torch.randn(1 << 19)
    for step in range(8):
        weight = weight + 1e-4 * torch.randn_like(weight)
        shelf.snapshot({"w": weight}, step=step)
    store.compact()
    assert shelf[1].stored_bytes < shelf[1].raw_bytes
    assert shelf[-1].stored_bytes >= shelf[-1].raw_bytes
    assert shelf[1].storage()["delta_contents"] + shelf[1].storage()["keyframe_contents"] > 0
    same(weight, shelf[-1]["w"])


def test_keep_raw(shelf: lmcstore.Shelf, store: lmcstore.Store) -> None:
    shelf.keep_raw = 2
    assert shelf.keep_raw == 2
    fill(shelf, 5)
    with pytest.raises(lmcstore.Error):
        shelf.keep_raw = 0


def test_full_pool(tmp_path: Path) -> None:
    with lmcstore.open(tmp_path / "small.pool", size="32MiB") as store:
        shelf = store["run"]
        shelf.snapshot({"a": torch.randn(1 << 20)})
        with pytest.raises(lmcstore.FullError) as caught:
            shelf.snapshot({"a": torch.randn(1 << 24)})
        assert caught.value.bytes_needed > caught.value.bytes_free
        assert "and 4194304 more are reserved for compaction; compact it, remove snapshots" in str(caught.value)
        assert len(shelf) == 1
        assert shelf.snapshot({"a": torch.randn(100)}).number >= 2


def test_errors_are_one_family() -> None:
    for name in ("NotFoundError", "InUseError", "FullError", "DamagedError", "UnsupportedError", "ReadOnlyError"):
        assert issubclass(getattr(lmcstore, name), lmcstore.Error)
    assert issubclass(lmcstore.NotFoundError, KeyError)
    assert issubclass(lmcstore.UnsupportedError, TypeError)
    assert issubclass(lmcstore.InvalidError, ValueError)
    assert issubclass(lmcstore.ExistsError, FileExistsError)
    assert issubclass(lmcstore.InputOutputError, OSError)
    assert str(lmcstore.NotFoundError("no such thing")) == "no such thing"
    import pickle

    assert str(pickle.loads(pickle.dumps(lmcstore.FullError("full")))) == "full"


def test_export(shelf: lmcstore.Shelf, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    snapshot = shelf.snapshot({"model": model.state_dict(), "step": 3})
    snapshot.export(tmp_path / "model.safetensors", part="model")
    loaded = safetensors.load_file(tmp_path / "model.safetensors")
    model.load_state_dict(loaded)
    same(
        dict(model.state_dict()), dict(sorted(loaded.items(), key=lambda item: list(model.state_dict()).index(item[0])))
    )


def test_an_export_has_the_bytes_of_dtypes_that_the_store_lacks(shelf: lmcstore.Shelf, tmp_path: Path) -> None:
    state = {
        "order": np.arange(3, dtype=">i4"),
        "text": np.array(["ab", "c"]),
        "times": np.array(["2026-11-20"], "datetime64[s]"),
        "records": np.ones(2, [("a", "i4"), ("b", "f8")]),
    }
    shelf.snapshot(state).export(tmp_path / "made")
    found, _ = tensor_file.load(tmp_path / "made")
    assert {name: (array.dtype.char, array.shape) for name, array in found.items()} == {
        name: ("B", (*array.shape, array.itemsize)) for name, array in state.items()
    }
    assert all(found[name].tobytes() == array.tobytes() for name, array in state.items())


def test_policy(shelf: lmcstore.Shelf, store: lmcstore.Store) -> None:
    assert shelf.policy == "keep_raw=4 chain=3 keep=all"
    for step in range(12):
        shelf.snapshot({"w": np.full(5000, step, np.float32)}, step=step, metrics={"loss": abs(step - 7.0)})
    shelf.tag(3, "kept")
    assert shelf.prune().numbers == []
    pruned = shelf.prune("keep=last:2,every:5,best:loss", dry_run=True)
    assert pruned.numbers == [2, 4, 5, 7, 9, 10]
    assert pruned.kept == 6
    assert len(shelf) == 12
    shelf.policy = "keep=last:2,every:5,best:loss"
    shelf.policy = "chain=2 budget=50%"
    assert shelf.policy == "keep_raw=4 chain=2 keep=last:2,every:5,best:loss:1 budget=50%"
    assert shelf.prune().numbers == pruned.numbers
    assert [snapshot.step for snapshot in shelf] == [0, 2, 5, 7, 10, 11]
    for wrong in "keep=lots", "chain=8", "colour=blue", "keep_raw=0":
        with pytest.raises(lmcstore.InvalidError, match=wrong.split("=")[0]):
            shelf.policy = wrong
    with pytest.raises(lmcstore.UnsupportedError):
        shelf.policy = 3  # type: ignore[assignment]
    with pytest.raises(lmcstore.NotFoundError):
        store["none"].prune(dry_run=True)


def test_every_dtype_has_a_row() -> None:
    assert len(DTYPES) == len(lmcstore._core.DTYPES)


def test_policy_names_every_key() -> None:
    text = lmcstore.Shelf.policy.__doc__
    assert text is not None and "{" not in text
    assert all(f"``{key[0]}=" in text for key in lmcstore._core.POLICY_KEYS) and len(lmcstore._core.POLICY_KEYS) >= 11


def annotated(owner: Any, package: str) -> Iterator[Any]:
    """Yield the public functions and classes of a module or a class, with those inside of classes."""
    names = owner.__all__ if isinstance(owner, ModuleType) else [name for name, _ in inspect.getmembers_static(owner)]
    for name in names:
        if name.startswith("_") and not name.startswith("__"):
            continue
        member = getattr(owner, name) if isinstance(owner, ModuleType) else inspect.getattr_static(owner, name)
        member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not str(getattr(member, "__module__", getattr(member, "__name__", ""))).startswith(package):
            continue
        if inspect.isfunction(member) or isinstance(member, type):
            yield member
        if isinstance(member, type) or (isinstance(member, ModuleType) and hasattr(member, "__all__")):
            yield from annotated(member, package)


@pytest.mark.parametrize("package", ["lmcstore", "pymm"])
def test_annotations_are_resolved(package: str) -> None:
    """typing.get_type_hints, which tools for documents and arguments call, finds all names."""
    found = list(annotated(importlib.import_module(package), package))
    for one in found:
        get_type_hints(one)
    assert len(found) > 50
