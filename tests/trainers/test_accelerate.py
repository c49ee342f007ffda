# SPDX-License-Identifier: BSD-3-Clause
"""`lmcstore.accelerate`: a loop that is interrupted goes on as if it had not been."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import accelerate
import lmcstore
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from accelerate_loop import Loop
from lmcstore import copier
from lmcstore.accelerate import register
from pages import EXAMPLES, type_page

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def fresh() -> None:
    _reset()


def _reset() -> None:
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def _trained(pool: Path, steps: int, kinds: str = "") -> tuple[list[float], str]:
    _reset()
    loop = Loop(kinds)
    log: list[float] = []
    with register(loop.accelerator, pool) as saved:
        loop.run(saved, steps, log)
    return log, loop.digest()


@pytest.mark.parametrize("kinds", ["", "seedable", "stateful", "stateful seedable", "scaler accumulation"])
def test_a_loop_goes_on(tmp_path: Path, kinds: str) -> None:
    whole, digest = _trained(tmp_path / "whole.pool", 17, kinds)
    for steps in (3, 7, 10):  # amid the first epoch, at its end, amid the second
        pool = tmp_path / f"{steps}.pool"
        before, _ = _trained(pool, steps, kinds)
        after, other = _trained(pool, 17, kinds)
        assert (before + after, other) == (whole, digest), steps


@pytest.mark.parametrize("kinds", ["workers", "workers seedable"])
def test_workers_that_stay(tmp_path: Path, kinds: str) -> None:
    whole, digest = _trained(tmp_path / "whole.pool", 17, kinds)
    parts: list[float] = []
    for steps in (2, 3, 7, 9, 11, 17):  # amid an epoch twice, and at its end
        log, other = _trained(tmp_path / "parts.pool", steps, kinds)
        parts += log
    assert (parts, other) == (whole, digest)


def test_what_is_saved(tmp_path: Path) -> None:
    _trained(tmp_path / "a.pool", 5, "scaler")
    with lmcstore.open(tmp_path / "a.pool", "r") as store:
        snapshot = store["run"].latest
        assert snapshot is not None
        assert list(snapshot) == [
            "models", "optimizers", "schedulers", "objects", "scaler", "accelerator", "loaders", "rng"
        ]  # fmt: skip
        assert snapshot.step == 5
        assert list(snapshot.metrics) == ["loss"]
        assert snapshot.state_dict("objects") == [{"steps": 5}]


def test_steps_are_linked(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    with register(accelerator, tmp_path / "a.pool") as saved:
        for step in range(8):
            accelerator.backward(model(torch.randn(16, 64)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            saved.save(step)
    with lmcstore.open(tmp_path / "a.pool") as store:
        store.compact(finished=True)
        storage = store["run"][5].storage()
    assert storage["links_note"] is None
    assert storage["link_contents"] >= 6


def test_a_failed_copy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, gate = copier._copy, threading.Event()
    monkeypatch.setattr(copier, "_copy", lambda *work: (gate.wait(60), copied(*work))[1])
    loop = Loop()
    with register(loop.accelerator, tmp_path / "a.pool", lazy=True) as saved:
        saved.save(1)
        with torch.no_grad():
            loop.model[0].weight += 1
        gate.set()
        with pytest.raises(lmcstore.Error, match="changed before it was copied"):
            saved.wait()
        saved.save(2)
    with lmcstore.open(tmp_path / "a.pool", "r") as store:
        assert [snapshot.step for snapshot in store["run"]] == [2]


def test_other_snapshots_are_refused(tmp_path: Path) -> None:
    loop = Loop()
    with lmcstore.Run(tmp_path / "a.pool", shelf="run", model=loop.model) as run:
        run.save(1)
    with register(loop.accelerator, tmp_path / "a.pool") as saved:
        with pytest.raises(lmcstore.InvalidError, match="not taken by lmcstore"):
            saved.load()
        with pytest.raises(lmcstore.NotFoundError):
            saved.load("best")
        saved.save(None, wait=True)
        with pytest.raises(lmcstore.InvalidError, match="no step"):
            saved.load()
        saved.save(4, tags=["best"])
        assert saved.load("best") == 4
        loop.accelerator.prepare(torch.nn.Linear(2, 2))
        with pytest.raises(lmcstore.InvalidError, match="has 1 models, and the accelerator 2"):
            saved.load()
    with register(loop.accelerator, tmp_path / "a.pool", "empty") as saved:
        assert saved.load() == 0
        with pytest.raises(lmcstore.NotFoundError, match="no snapshot to continue from"):
            saved.load(required=True)


def test_an_object_that_cannot_be_stored(tmp_path: Path) -> None:
    loop = Loop()
    loop.count.state_dict = lambda: {"steps": object()}  # type: ignore[method-assign]
    with (
        register(loop.accelerator, tmp_path / "a.pool") as saved,
        pytest.raises(lmcstore.UnsupportedError, match=r"objects\.0\.steps"),
    ):
        saved.save(1)


RANK_FAILS = """
import os, sys
import lmcstore, torch
from accelerate_loop import Loop
from lmcstore.accelerate import register

loop = Loop("stateful")
rank = loop.accelerator.process_index
with register(loop.accelerator, sys.argv[1]) as saved:
    own = type(loop.loader).state_dict
    for position in (lambda self: {"position": lambda: 0}, lambda self: {}["position"]):
        type(loop.loader).state_dict = position if rank == 1 else own
        try:
            saved.save(1)
        except Exception as error:
            print(f"{rank}: {type(error).__name__}\\n", end="", flush=True)  # one write: ranks share the pipe
    type(loop.loader).state_dict = own
    saved.save(2)
print(f"{rank}: saved\\n", end="", flush=True)
loop.accelerator.end_training()
os._exit(0)
"""


def test_a_failure_of_one_rank(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANK_FAILS)
    lines = launched(script, tmp_path / "a.pool").splitlines()
    assert [line for line in lines if line.startswith("0: ")] == ["0: Error", "0: Error", "0: saved"]
    second = [line for line in lines if line.startswith("1: ")]
    assert len(second) == 3 and second[1:] == ["1: KeyError", "1: saved"], second


def test_an_accelerate_without_an_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    monkeypatch.delattr(accelerator, "_custom_objects")
    with pytest.raises(lmcstore.UnsupportedError, match=r"'_custom_objects'.*Accelerate 1\.15"):
        register(accelerator, tmp_path / "a.pool")
    assert not (tmp_path / "a.pool").exists()


def test_accumulation_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _trained(tmp_path / "a.pool", 4, "accumulation")
    assert caplog.text.count("lacks the gradients") == 1


def test_the_folder_of_save_state(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    loop = Loop()
    with register(loop.accelerator, tmp_path / "a.pool"):
        for inputs, targets in loop.loader:
            loop.step(inputs, targets)
        loop.accelerator.save_state(str(folder))
    assert (folder / "optimizer.bin").exists()
    assert not list(folder.glob("*.safetensors"))
    named = json.loads((folder / "lmcstore.json").read_text())
    assert (named["shelf"], named["snapshot"], named["tag"]) == ("run", 1, "state")
    wanted = loop.digest()

    _reset()
    other = Loop()
    with register(other.accelerator, tmp_path / "a.pool"):
        other.accelerator.load_state(str(folder))
        assert other.digest() == wanted
    with (
        register(other.accelerator, tmp_path / "b.pool"),
        pytest.raises(lmcstore.InvalidError, match="of another pool"),
    ):
        other.accelerator.load_state(str(folder))
    with register(other.accelerator, tmp_path / "a.pool"):
        (folder / "lmcstore.json").write_text("{}")
        with pytest.raises(lmcstore.InvalidError, match="damaged"):
            other.accelerator.load_state(str(folder))
    other.accelerator.save_state(str(tmp_path / "files"))  # without the hooks
    with register(other.accelerator, tmp_path / "a.pool"):
        other.accelerator.load_state(str(tmp_path / "files"))


def test_a_folder_keeps_its_snapshot(tmp_path: Path) -> None:
    loop = Loop()
    with register(loop.accelerator, tmp_path / "a.pool", policy="keep=last:1") as saved:
        for folder in ("one/f", "two/f", "one/f"):
            loop.step(*next(iter(loop.loader)))
            loop.accelerator.save_state(str(tmp_path / folder))
            wanted = loop.digest()
        saved.save(1)
        saved.save(2, wait=True)
        saved._kept.shelf.prune()
        assert saved._kept.shelf.tags == {"f.2": 2, "f.3": 3}
        loop.accelerator.load_state(str(tmp_path / "two/f"))
        assert loop.digest() != wanted
        loop.accelerator.load_state(str(tmp_path / "one/f"))
        assert loop.digest() == wanted


RANKS = """
import os, sys
import lmcstore, torch
from accelerate.state import AcceleratorState, GradientState
from accelerate_loop import Loop
from lmcstore.accelerate import register

def trained(pool, steps):
    AcceleratorState._reset_state(False)
    GradientState._reset_state()
    loop, log = Loop(), []
    with register(loop.accelerator, pool) as saved:
        loop.run(saved, steps, log)
    return loop, log

folder = sys.argv[1]
loop, whole = trained(folder + "/whole.pool", 17)
digest = loop.digest()
for steps in (3, 7, 10):
    pool = f"{folder}/{steps}.pool"
    _, before = trained(pool, steps)
    loop, after = trained(pool, 17)
    assert before + after == whole and loop.digest() == digest, steps
rank = loop.accelerator.process_index
said = []
def fails(work):
    try:
        work()
        said.append("nothing")
    except lmcstore.Error as error:
        said.append(f"{type(error).__name__} {error}")
fails(lambda: register(loop.accelerator, folder))  # a folder is no pool
with register(loop.accelerator, folder + "/whole.pool") as saved:
    fails(lambda: saved.load("best"))
    loop.count.state_dict = lambda: {"steps": object()}
    fails(lambda: saved.save(1))
    if rank == 1:
        loop.accelerator._custom_objects.clear()
    fails(lambda: saved.load())
print("".join(f"{rank}: {text}\\n" for text in said), end="", flush=True)
loop.accelerator.end_training()
os._exit(0)  # some runs abort while the interpreter ends, in C++, for a reason that is not known
"""


def launched(script: Path, *arguments: object) -> str:
    """Run a program as two ranks, and return what they print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    lines = launched(script, tmp_path).splitlines()
    first, second = ([line for line in lines if line.startswith(f"{rank}: ")] for rank in "01")
    assert len(first) == len(second) == 4, lines
    for one, other, text in zip(
        first, second, ("", "best", "objects.0.steps", "has 1 objects, and the accelerator 0"), strict=True
    ):
        assert "nothing" not in one + other
        assert text in one and text in other, (one, other)


def _example(name: str, pool: Path, *, kill_at: str | None = None) -> str:
    command = [sys.executable, str(EXAMPLES / name), str(pool), "--steps", "40"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.strip() == kill_at:
                process.kill()
    assert process.returncode == (0 if kill_at is None else -signal.SIGKILL)
    return lines[-1]


def test_the_example_is_killed(tmp_path: Path) -> None:
    whole = _example("accelerate_resume.py", tmp_path / "whole.pool")
    _example("accelerate_resume.py", tmp_path / "parts.pool", kill_at="step 29")
    assert _example("accelerate_resume.py", tmp_path / "parts.pool") == whole
    with lmcstore.open(tmp_path / "parts.pool", "r") as store:
        assert len(store["run"]) == 40


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    type_page("ACCELERATE.md")


def test_sigterm_waits(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, time\nimport lmcstore.copier\ncopied = lmcstore.copier._copy\n"
        "lmcstore.copier._copy = lambda *work: (time.sleep(0.5), copied(*work))[1]\n"
        "from accelerate_loop import Loop\nfrom lmcstore.accelerate import register\nloop = Loop()\n"
        "loop.step(*next(iter(loop.loader)))\n"
        "with register(loop.accelerator, sys.argv[1], lazy=True) as saved:\n"
        "    saved.save(7)\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.pool"], env=environment, check=False)
    assert done.returncode == -signal.SIGTERM
    with lmcstore.open(tmp_path / "a.pool", "r") as store:
        assert [snapshot.step for snapshot in store["run"]] == [7]


def test_logging_names_the_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lmcstore")
    _trained(tmp_path / "a.pool", 2)
    _trained(tmp_path / "a.pool", 3)
    assert f"new run in 'run' in {tmp_path / 'a.pool'}" in caplog.text
    assert "resuming after step 2 from run@2" in caplog.text
