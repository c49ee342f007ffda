# SPDX-License-Identifier: BSD-3-Clause
"""Policy ``write=link``: a snapshot is written as links from the one before, and every step stays readable."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from command import NEEDS_BIN
from optional import skip_without_torch, torch
from same import same
from test_cli import as_json, cli, flip_bit, text
from test_links import CYCLES, Trainer

HERE = str(Path(__file__).parent)
IN_MEMORY = True
MODES: tuple[dict[str, Any], ...] = ({}, {"wait": False}, {"wait": False, "lazy": True})
LEAST_BYTES = 1024  # smaller tensors have no links
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False),
    "AdamW, foreach": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True),
    "AdamW, fused": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
}


class Run:
    """Trains, takes snapshots, and keeps copies of the states."""

    def __init__(
        self, shelf: lmcstore.Shelf, fp32: bool = False, policy: str = "write=link restore=none", **options: Any
    ) -> None:
        self.trainer = Trainer(**{"make": OPTIMIZERS["AdamW"], "schedule": None, **options})
        if fp32:
            self.trainer.low.float()
        self.shelf = shelf
        self.states: list[Any] = []
        shelf.policy = policy

    def snapshot(self, lazy: bool = False, **options: Any) -> lmcstore.Snapshot:
        if lazy:
            options["lazy"] = self.trainer.optimizer
        self.states.append(copy.deepcopy(self.trainer.state()))
        return self.shelf.snapshot(self.trainer.state(), step=len(self.states), **options)

    def go(self, steps: int, **options: Any) -> list[lmcstore.Snapshot]:
        taken = []
        for _ in range(steps):
            self.trainer.step()
            taken.append(self.snapshot(**options))
        return taken

    def expect_all(self, shelf: lmcstore.Shelf | None = None) -> None:
        for snapshot, state in zip(self.shelf if shelf is None else shelf, self.states, strict=True):
            same(state, snapshot.state_dict())

    @property
    def linked(self) -> int:
        """How many tensors have links after a step."""
        large = [p for p in self.trainer.model.parameters() if p.numel() * p.element_size() >= LEAST_BYTES]
        return len(large) * (2 if isinstance(self.trainer.optimizer, torch.optim.SGD) else 3)


def links(shelf: lmcstore.Shelf) -> list[int]:
    return [snapshot.storage()["link_contents"] for snapshot in shelf]


def keyframes(shelf: lmcstore.Shelf) -> list[int]:
    return [snapshot.storage()["keyframe_contents"] for snapshot in shelf]


@pytest.mark.parametrize("fp32", [False, True], ids=["bf16", "fp32"])
@pytest.mark.parametrize("way", OPTIMIZERS)
def test_every_step_is_links_from_the_second_on(pool_path: str, way: str, fp32: bool) -> None:
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"], fp32, make=OPTIMIZERS[way])
        for mode in MODES:
            taken = run.go(3, **mode)
        for snapshot in taken:
            snapshot.wait()
        run.expect_all()
        assert links(run.shelf) == [0] + 8 * [run.linked]
        for snapshot in list(run.shelf)[1:]:
            assert snapshot.storage()["links_note"] is None
            assert snapshot.stored_bytes < (0.5 if fp32 else 0.3) * snapshot.raw_bytes
        assert store.verify()["damages"] == 0
    with lmcstore.open(pool_path, "r") as store:
        run.expect_all(store["run"])


def test_a_copy_that_was_the_weight_stays(pool_path: str) -> None:
    """Two names have one content in a snapshot; then a step changes one of them, and later the other follows."""
    weight = torch.nn.Parameter(torch.randn(64, 64))
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    copied: Any = weight
    with lmcstore.open(pool_path, background=False) as store:
        shelf = store["run"]
        shelf.policy = "write=link restore=none"
        states = []
        for kept in (False, True, True, False, True, True):
            weight.grad = torch.randn(64, 64).bfloat16().float()
            before = weight.detach().clone()
            optimizer.step()
            copied = before if kept else weight
            state = {"model": {"w": weight}, "optimizer": optimizer.state_dict(), "copy": copied}
            states.append(copy.deepcopy(state))
            shelf.snapshot(state)
        assert min(links(shelf)[2:]) == 3
        for snapshot, state in zip(shelf, states, strict=True):
            same(state, snapshot.state_dict())
        assert store.verify()["damages"] == 0


READER = """
import sys
sys.path.insert(0, sys.argv[2])
import lmcstore, torch
from same import same
with lmcstore.open(sys.argv[1], "r") as store:
    print("ready", flush=True)
    for snapshot in store["run"].follow(1, timeout=60):
        same(torch.load(f"{sys.argv[3]}/{snapshot.number}", weights_only=False), snapshot.state_dict())
        print(snapshot.number, flush=True)
        if snapshot.number == int(sys.argv[4]):
            break
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    skip_without_torch(code)
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_another_process_follows_and_reads_beside_the_writer(pool_path: str, tmp_path: Path) -> None:
    steps = 24
    (tmp_path / "states").mkdir()
    with lmcstore.open(pool_path) as store:  # with the background
        run = Run(store["run"], policy="write=link restore=none keep_raw=2")
        reader = start(READER, pool_path, HERE, tmp_path / "states", steps)
        try:
            assert line(reader) == "ready"
            for number in range(1, steps + 1):
                run.trainer.step()
                torch.save(run.trainer.state(), tmp_path / f"states/{number}")
                run.snapshot(**MODES[number % 3])
            assert [line(reader) for _ in range(steps)] == [str(number) for number in range(1, steps + 1)]
            assert reader.wait() == 0
        finally:
            reader.kill()
            reader.wait()
        run.expect_all()
        assert all(links(run.shelf)[1:])


def test_parts_of_the_newest(pool_path: str) -> None:
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"])
        run.go(4)
        for opened in (store, lmcstore.open(pool_path, "r")):
            newest, state = opened["run"][4], run.states[3]
            weight = state["model"]["0.weight"]
            assert torch.equal(newest["model.0.weight"].read(), weight)
            assert torch.equal(newest.rows("model.0.weight", 3, 9), weight[3:9])
            assert torch.equal(newest.select("model.1.*")["model.1.bias"], state["model"]["1.bias"])
            for name, tensor in newest.tensors("model.*", budget=1):
                assert torch.equal(tensor, state["model"][name.removeprefix("model.")])
            model = copy.deepcopy(run.trainer.model)
            torch.nn.init.zeros_(model[1].weight)
            newest.load_into(model=model, strict=False)
            assert torch.equal(model[1].weight, state["model"]["1.weight"])
            difference = opened["run"][3].diff(newest)
            assert {"model.0.weight", "optimizer.state.0.exp_avg"} <= {row.name for row in difference}
        assert newest.digest == run.shelf[4].digest
        opened.close()


def test_a_fork_goes_on_from_the_newest(pool_path: str) -> None:
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"])
        run.go(3)
        fork = run.shelf[3].fork("fork")
        other = Run(fork)
        other.trainer, other.states = copy.deepcopy(run.trainer), [run.states[2]]
        run.go(2)
        other.go(3)
        run.expect_all()
        other.expect_all()
        assert links(run.shelf) == [0] + 4 * [run.linked]
        assert links(fork)[1:] == [0, run.linked, run.linked]  # no memory had the fork's first state
        run.shelf.drop()
        other.expect_all()
        store.compact()
        other.expect_all()
        assert store.verify()["damages"] == 0


def test_archives_of_the_newest(pool_path: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"])
        run.go(4)
        with open(first, "wb") as file:
            store.dump(file, "run")
        run.go(3)
        with open(second, "wb") as file, open(first, "rb") as older:
            store.dump(file, "run", since=[older])
        raw = run.shelf[7].raw_bytes
    assert second.stat().st_size < raw  # three steps
    with lmcstore.open(tmp_path / "other.pool", background=False) as store:
        for path in (first, second):
            with open(path, "rb") as file:
                store.restore(file)
        run.expect_all(store["run"])
        run.shelf = store["run"]
        run.shelf.policy = "write=link"
        run.go(2)
        run.expect_all()
        assert store.verify()["damages"] == 0


@NEEDS_BIN
def test_the_command_beside_the_writer(pool_path: str, tmp_path: Path) -> None:
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"])
        run.go(4)
        assert text("verify", pool_path).startswith("no damage: 4 snapshots")
        assert [row["number"] for row in as_json("log", pool_path, "run")["snapshots"]] == [4, 3, 2, 1]
        assert "model.0.weight" in text("ls", pool_path, "run@4")
        assert as_json("info", pool_path)["memory_bytes"] == 0  # this process holds it
        assert "model.0.weight" in text("diff", pool_path, "run@3", "run@4")
        cli("export", pool_path, "run@4", "-o", tmp_path / "newest.safetensors")
        assert 0 < store.info()["memory_bytes"] <= 2 * run.shelf[4].raw_bytes
    cli("dump", pool_path, "run", "-o", tmp_path / "run.lmca")
    cli("restore", tmp_path / "run.lmca", tmp_path / "other.pool")
    with lmcstore.open(tmp_path / "other.pool", "r") as store:
        run.expect_all(store["run"])


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
import lmcstore, torch
from test_link_capture import Run
run = Run(lmcstore.open(sys.argv[1])["run"], policy=sys.argv[4])
while True:
    run.trainer.step()
    torch.save(run.trainer.state(), f"{sys.argv[3]}/{len(run.states) + 1}")
    print(run.snapshot().number, flush=True)
"""


@pytest.mark.parametrize("bound", [64, 2])
def test_a_killed_writer_loses_nothing_acknowledged(pool_path: str, tmp_path: Path, bound: int) -> None:
    (tmp_path / "states").mkdir()
    policy = f"write=link restore=none links={bound}"
    writer = start(KILLED, pool_path, HERE, tmp_path / "states", policy)
    try:
        while (last := int(line(writer))) < 6:
            pass
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split() if writer.stdout is not None else []
        writer.wait()
    last = int(rest[-1]) if rest else last
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"], policy=policy)
        assert len(run.shelf) in (last, last + 1)
        run.states = [torch.load(tmp_path / f"states/{n.number}", weights_only=False) for n in run.shelf]
        run.expect_all()
        last_state = copy.deepcopy(run.states[-1])
        run.trainer.model.load_state_dict(last_state["model"])
        run.trainer.optimizer.load_state_dict(last_state["optimizer"])
        run.go(3)
        run.expect_all()
        linked, alone = links(run.shelf), keyframes(run.shelf)
        assert linked[0] == linked[-3] == 0  # no process had the state before
        assert all(linked[i] + alone[i] == run.linked for i in range(1, len(linked)) if i != len(linked) - 3)
        assert bound == 64 or any(alone[1:-3])
        assert store.verify()["damages"] == 0


def test_keyframes_have_turns(pool_path: str, tmp_path: Path) -> None:
    """A step writes each parameter as a link, or as keyframes: each time others, and as many bytes."""
    bound, parameters = 5, 24
    (tmp_path / "states").mkdir()
    model = torch.nn.ParameterList([torch.randn(40, 40) for _ in range(parameters)])
    optimizer = torch.optim.AdamW(model.parameters())
    with lmcstore.open(pool_path) as store:
        shelf = store["run"]
        shelf.policy = f"write=link restore=none links={bound}"
        for step in range(3 * bound + 1):
            for parameter in model:
                parameter.grad = torch.randn(40, 40).bfloat16().float()
            optimizer.step()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, tmp_path / f"states/{step + 1}")
            shelf.snapshot(state, **MODES[step % 2]).wait()
        reader = start(READER, pool_path, HERE, tmp_path / "states", 3 * bound + 1)
        assert [line(reader) for _ in range(3 * bound + 2)][-1] == str(3 * bound + 1)
        assert reader.wait() == 0
        turns = 3 * parameters // (bound + 1)
        assert keyframes(shelf)[1:] == 3 * bound * [turns]
        assert links(shelf)[1:] == 3 * bound * [3 * parameters - turns]
        stored = [snapshot.stored_bytes for snapshot in list(shelf)[1:]]
        assert max(stored) < 1.1 * min(stored) and max(stored) < 0.4 * shelf[1].raw_bytes
        assert max(snapshot.storage()["longest_line"] for snapshot in shelf) == bound
        assert store.verify()["damages"] == 0


def test_rewound_to_an_older_step(pool_path: str) -> None:
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"])
        run.go(5)
        model, optimizer = run.trainer.model, run.trainer.optimizer
        run.shelf[2].load_into(model=model, optimizer=optimizer, strict=False)
        run.go(3)
        run.expect_all()
        assert run.shelf[6].parent == 2
        assert links(run.shelf)[5:] == [0, run.linked, run.linked]


def test_a_skipped_step_shares_everything(pool_path: str) -> None:
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"])
        run.go(3)
        run.trainer.skip = True
        run.go(2)
        run.trainer.skip = False
        run.go(2)
        run.expect_all()
        contents = [
            [entry["content"] for entry in snapshot.entries() if entry["raw_bytes"] > 0] for snapshot in run.shelf
        ]
        assert contents[2] == contents[3] == contents[4] != contents[5]
        assert links(run.shelf) == [0] + 6 * [run.linked]


@pytest.mark.parametrize("schedule", ["OneCycleLR", "all constants", "an added group"])
@pytest.mark.parametrize("rate", [1e-3, None], ids=["a number", "a tensor"])
def test_constants_that_change_before_the_snapshot(pool_path: str, schedule: str, rate: float | None) -> None:
    def make(model: Any) -> Any:
        return torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3) if rate is None else rate)

    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"], make=make)
        for step in range(8):
            run.trainer.step()
            CYCLES[schedule](run.trainer, step)
            run.snapshot()
        run.expect_all()
        assert min(links(run.shelf)[1:]) >= 9
        assert store.verify()["damages"] == 0


def test_a_state_without_optimizer(pool_path: str) -> None:
    """Weights alone become deltas."""
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"], fp32=True, rows=512)
        states = []
        for _ in range(6):
            run.trainer.step()
            states.append(copy.deepcopy(run.trainer.model.state_dict()))
            run.shelf.snapshot(states[-1])
        for snapshot, state in zip(run.shelf, states, strict=True):
            same(state, snapshot.state_dict())
        storage = run.shelf[6].storage()
        assert storage["link_contents"] == 0 and storage["delta_contents"] > 0 and storage["links_note"]


def test_steps_are_found_without_names_that_tell(pool_path: str) -> None:
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"])
        states = []
        for _ in range(5):
            run.trainer.step()
            moments = run.trainer.optimizer.state_dict()["state"].values()
            states.append(copy.deepcopy({"a": list(run.trainer.model.parameters()), "b": list(moments)}))
            run.shelf.snapshot(states[-1])
        for snapshot, state in zip(run.shelf, states, strict=True):
            same(state, snapshot.state_dict())
        assert links(run.shelf)[1:] == 4 * [run.linked]


@pytest.mark.parametrize("lazy", [False, True])
def test_the_memory_of_a_state(pool_path: str, lazy: bool) -> None:
    """Only lazy snapshots are copied beside the state before them."""
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"])
        for snapshot in run.go(5, wait=False, lazy=lazy):
            snapshot.wait()
        assert links(run.shelf)[1:] == 4 * [run.linked]
        assert (store.info()["memory_bytes"] > 1.1 * run.shelf[5].raw_bytes) is lazy
        run.expect_all()


def test_a_snapshot_before_the_first_step(pool_path: str) -> None:
    """It has no moments; the second begins the line."""
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"])
        run.snapshot()
        run.go(4)
        run.expect_all()
        assert links(run.shelf) == [0, 0] + 3 * [run.linked]


@pytest.mark.parametrize("kib", [0, 100, 400])
def test_too_little_memory(pool_path: str, kib: int) -> None:
    """Tensors that find no room are written raw. A state of 316 KiB finds room for every second snapshot in 400."""
    with lmcstore.open(pool_path, background=False, memory=f"{kib}KiB") as store:
        run = Run(store["run"])
        for snapshot in run.go(6, wait=False):
            snapshot.wait()
        run.expect_all()
        assert store.info()["memory_bytes"] <= kib << 10
        if kib < 400:
            assert max(links(run.shelf)) < run.linked
        else:
            assert links(run.shelf)[2::2] == 2 * [run.linked]
        assert store.verify()["damages"] == 0


def test_turns_are_no_reason(pool_path: str) -> None:
    """A keyframe that begins a line is not reported as a tensor without a link."""
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"], policy="write=link links=4")
        run.go(12)
        kept = [snapshot for snapshot in run.shelf if 0 < snapshot.storage()["link_contents"] < run.linked]
        assert kept
        assert not [snapshot for snapshot in kept if "no step that is known" in str(snapshot.storage()["links_note"])]


def test_a_wrong_size_of_memory(pool_path: str) -> None:
    for wrong in ("much", -1, 1 << 80):
        with pytest.raises(lmcstore.InvalidError):
            lmcstore.open(pool_path, memory=wrong)


def test_lines_are_bounded_and_pruned(pool_path: str) -> None:
    with lmcstore.open(pool_path) as store:
        run = Run(store["run"], policy="write=link links=4 keep_raw=1 keep=last:6 grace=none")
        run.go(20)
        store.compact()
        assert 6 <= len(run.shelf) < 9
        for snapshot in run.shelf:
            assert snapshot.storage()["longest_line"] <= 4
            same(run.states[snapshot.number - 1], snapshot.state_dict())
        run.shelf.compact(finished=True)
        for snapshot in run.shelf:
            same(run.states[snapshot.number - 1], snapshot.state_dict())
        assert store.verify()["damages"] == 0


def link_places(path: str) -> set[tuple[int, int]]:
    """The places and sizes of the frames of links in a pool's file."""
    found = set()
    with open(path, "rb") as file:
        at, end = 0, file.seek(0, os.SEEK_END)
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            data = os.pread(file.fileno(), os.lseek(file.fileno(), at, os.SEEK_HOLE) - at, at)
            start = data.find(b"LMCF")
            while start >= 0:
                frame_bytes, predictor = np.frombuffer(data, np.uint64, 1, start + 24), data[start + 34]
                if predictor != 0 and frame_bytes[0] < len(data):
                    found.add((at + start, int(frame_bytes[0])))
                start = data.find(b"LMCF", start + 4)
            at += len(data)
    return found


def test_a_damaged_link_is_reported_with_each_later_step(pool_path: str) -> None:
    with lmcstore.open(pool_path, background=False) as store:
        run = Run(store["run"], policy="write=link parity=none")
        run.go(3)
        before = link_places(pool_path)
        run.go(1)
        (place, size) = max(link_places(pool_path) - before, key=lambda found: found[1])
        run.go(2)
    flip_bit(pool_path, place + size // 2)
    with lmcstore.open(pool_path, background=False) as store:
        report = store.verify()
        assert {damage["number"] for damage in report["list"]} - {0} == {4, 5, 6}  # 0: the link itself
        for number in (1, 2, 3):
            same(run.states[number - 1], store["run"][number].state_dict())
        for number in (4, 5, 6):
            with pytest.raises(lmcstore.DamagedError, match=f"run@{number}"):
                store["run"][number].state_dict()
        run.shelf = store["run"]
        run.go(2)  # a damaged predecessor stops nothing
        for number in (7, 8):
            same(run.states[number - 1], run.shelf[number].state_dict())
