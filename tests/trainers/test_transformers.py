# SPDX-License-Identifier: BSD-3-Clause
"""`lmcstore.transformers`: a Trainer that is interrupted goes on as if it had not been."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lmcstore
import pytest
import torch
import transformers
from lmcstore import copier
from lmcstore.transformers import SnapshotCallback, StoreTrainer, _Log, trainer_state
from pages import EXAMPLES, type_page
from transformers_model import Stop, StoredTrainer, arguments, data, model, same

HERE = Path(__file__).parent


def _trainer(folder: Path, pool: Any, *callbacks: Any, kind: Any = StoredTrainer, **options: Any) -> Any:
    names = ("shelf", "lazy", "policy")
    own = {name: options.pop(name) for name in names if name in options}
    if kind is not transformers.Trainer:
        own["store"] = pool
    torch.manual_seed(0)
    return kind(
        model(),
        arguments(folder, **options),
        train_dataset=data(40),
        eval_dataset=data(8),
        callbacks=list(callbacks),
        **own,
    )


def _steps(pool: Path, shelf: str = "run") -> list[int | None]:
    with lmcstore.open(pool, "r") as store:
        return [snapshot.step for snapshot in store[shelf]]


def _last(pool: Path) -> Any:
    with lmcstore.open(pool, "r") as store:
        state = store["run"].latest.state_dict()  # type: ignore[union-attr]
    del state["trainer"]
    return state


@pytest.mark.parametrize(
    ("options", "steps"),
    [({}, 3), ({"lazy": True}, 5), ({}, 6), ({"gradient_accumulation_steps": 2}, 5), ({"lazy": False}, 7)],
    ids=str,
)
def test_training_goes_on(tmp_path: Path, options: dict[str, Any], steps: int) -> None:
    _trainer(tmp_path / "o", tmp_path / "whole.pool", **options).train()
    parts = tmp_path / "parts.pool"
    with pytest.raises(KeyboardInterrupt):
        _trainer(tmp_path / "o", parts, Stop(steps, KeyboardInterrupt), **options).train("auto")
    assert _steps(parts) == list(range(1, steps))  # it stopped before it saved
    trainer = _trainer(tmp_path / "o", parts, **options)
    trainer.train(resume_from_checkpoint=True)
    same(_last(tmp_path / "whole.pool"), _last(parts))
    assert _steps(parts) == list(range(1, 9))
    assert trainer.state.global_step == 8
    assert not list((tmp_path / "o").glob("checkpoint-*"))


def test_steps_are_linked(tmp_path: Path) -> None:
    _trainer(tmp_path / "o", tmp_path / "a.pool").train()
    with lmcstore.open(tmp_path / "a.pool") as store:
        store.compact(finished=True)
        storage = store["run"][5].storage()
    assert storage["links_note"] is None
    assert storage["link_contents"] >= 6


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["steps", "best"])
def test_the_best_model(tmp_path: Path, strategy: str, limit: int) -> None:
    class Judged(StoredTrainer):
        """Evaluates to numbers that are least after step 4."""

        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            metrics = {"eval_loss": abs(self.state.global_step - 4) + 0.5, "eval_runtime": 1.0}
            self.log(metrics)
            return metrics

    old = tmp_path / "o" / "checkpoint-1"  # of a program without a pool
    old.mkdir(parents=True)
    options = {
        "save_strategy": strategy, "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True,
        "metric_for_best_model": "loss", "save_total_limit": limit,
    }  # fmt: skip
    pool = tmp_path / "a.pool"
    trainer = _trainer(tmp_path / "o", pool, Stop(6, KeyboardInterrupt), kind=Judged, **options)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer = _trainer(tmp_path / "o", pool, kind=Judged, **options)
    trainer.train(resume_from_checkpoint=True)
    assert old.is_dir()
    assert trainer.args.save_total_limit == limit
    if strategy == "best":
        assert _steps(pool) == list(range(5 - limit, 5))
    else:
        assert _steps(pool) == {1: [4, 8], 2: [4, 8], 3: [4, 7, 8]}[limit]
    with lmcstore.open(pool, "r") as store:
        best = store["run"]["best"]
        assert best.step == 4
        assert best.metrics["eval_loss"] == 0.5
        assert "eval_runtime" not in best.metrics
        assert trainer.state.best_model_checkpoint == f"run@{best.number}"
        same(best.state_dict("model"), trainer.model.state_dict())


def test_a_step_is_saved_before_its_evaluation(tmp_path: Path) -> None:
    class Judged(StoredTrainer):
        """Evaluates at the end of an epoch, whose last step is saved then."""

        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            metrics = {"eval_loss": {5: 3.0, 10: 1.0, 15: 2.0}[self.state.global_step], "eval_runtime": 1.0}
            self.log(metrics)
            return metrics

    pool = tmp_path / "a.pool"
    options = {
        "max_steps": 15, "eval_strategy": "epoch", "metric_for_best_model": "loss", "save_total_limit": 2,
    }  # fmt: skip
    stopped = _trainer(tmp_path / "o", pool, Stop(13, KeyboardInterrupt), kind=Judged, **options)
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    for which in ("latest", "best"):  # without the evaluation in its state, and with it
        trainer = _trainer(tmp_path / "o", pool, kind=Judged, **options)
        trainer.train(resume_from_checkpoint=which)
        with lmcstore.open(pool, "r") as store:
            best = store["run"]["best"]
            assert best.step == 10
            assert best.metrics["eval_loss"] == 1.0 and "eval_runtime" not in best.metrics
            assert store["run"][-1].metrics["eval_loss"] == 2.0
        assert (stopped if which == "latest" else trainer).state.best_model_checkpoint == f"run@{best.number}"
        assert (trainer.state.best_metric, trainer.state.best_global_step) == (1.0, 10)
        assert _steps(pool) == [10, 15]


def test_a_best_snapshot_that_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Judged(StoredTrainer):
        """Evaluates to numbers that are least after step 2."""

        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            return {"eval_loss": 1.0 + abs(self.state.global_step - 2)}

    pool = tmp_path / "a.pool"
    options = {
        "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "load_best_model_at_end": True,
    }  # fmt: skip
    _trainer(tmp_path / "o", pool, kind=Judged, max_steps=3, **options).train()
    with lmcstore.open(pool) as store:
        store["run"].at(step=3).fork("tune")
        store["run"].remove("best")
    for shelf in ("tune", "run"):  # tune@2 will be another one than run@2 was
        trainer = _trainer(tmp_path / "o", pool, kind=Judged, max_steps=5, shelf=shelf, **options)
        trainer.train(resume_from_checkpoint=True)
        assert trainer.state.best_model_checkpoint is None and trainer.state.best_global_step == 2
        with lmcstore.open(pool, "r") as store:
            assert store[shelf].latest.step == 5  # type: ignore[union-attr]
            same(store[shelf].latest.state_dict("model"), trainer.model.state_dict())  # type: ignore[union-attr]
        assert f"the best model before {shelf}@" in caplog.text


def test_the_best_before_a_later_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    losses = {1: 5.0, 2: 4.0, 3: 3.0, 4: 3.5, 5: 3.4, 6: 1.0}

    class Judged(StoredTrainer):
        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            return {"eval_loss": losses.get(self.state.global_step, 9.0)}

        def _load_best_model(self) -> None:
            if self.args.max_steps == 13:
                self._kept.shelf.remove("best")
            super()._load_best_model()

    pool = tmp_path / "a.pool"
    options = {
        "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "load_best_model_at_end": True,
        "policy": "keep=last:6 grace=none",
    }  # fmt: skip
    _trainer(tmp_path / "o", pool, kind=Judged, max_steps=6, **options).train()
    losses[6] = 9.0
    trainer = _trainer(tmp_path / "o", pool, kind=Judged, max_steps=12, **options)
    trainer.train(resume_from_checkpoint="step:5")
    with lmcstore.open(pool) as store:
        store["run"].prune()
        best = store["run"]["best"]
        assert best.number == 3 and trainer.state.best_model_checkpoint == "run@3"
        same(best.state_dict("model"), trainer.model.state_dict())
    trainer = _trainer(tmp_path / "o", pool, kind=Judged, max_steps=13, **options)
    trainer.train(resume_from_checkpoint=True)  # someone removes it
    assert "the best model is not loaded, the last one stays" in caplog.text
    same(_last(pool)["model"], trainer.model.state_dict())


def test_the_model_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _trainer(tmp_path / "o", tmp_path / "a.pool", save_only_model=True, max_steps=4).train()
    with lmcstore.open(tmp_path / "a.pool", "r") as store:
        assert list(store["run"].latest) == ["model", "trainer", "rng"]  # type: ignore[arg-type]
    _trainer(tmp_path / "o", tmp_path / "a.pool").train(resume_from_checkpoint=True)
    assert "the optimizer and the scheduler begin anew" in caplog.text
    assert _steps(tmp_path / "a.pool") == list(range(1, 9))


def test_a_folder_of_files_goes_on(tmp_path: Path) -> None:
    _trainer(tmp_path / "o", tmp_path / "whole.pool").train()
    _trainer(tmp_path / "files", None, Stop(5), kind=transformers.Trainer).train()
    folder = tmp_path / "files" / "checkpoint-5"
    _trainer(tmp_path / "o", tmp_path / "parts.pool").train(resume_from_checkpoint=str(folder))
    same(_last(tmp_path / "whole.pool"), _last(tmp_path / "parts.pool"))
    assert _steps(tmp_path / "parts.pool") == [6, 7, 8]


def test_other_snapshots(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool = tmp_path / "a.pool"
    trainer = _trainer(tmp_path / "o", pool, max_steps=3)
    with pytest.raises(lmcstore.NotFoundError, match="no snapshot to continue from"):
        trainer.train(resume_from_checkpoint=True)
    trainer.train(resume_from_checkpoint="auto")
    with pytest.raises(lmcstore.NotFoundError, match="best"):
        _trainer(tmp_path / "o", pool).train(resume_from_checkpoint="best")
    _trainer(tmp_path / "o", pool, max_steps=4).train(resume_from_checkpoint="step:2")
    assert _steps(pool) == [1, 2, 3, 3, 4]
    with lmcstore.open(pool, "r") as store:
        assert store["run"][4].parent == 2
    _trainer(tmp_path / "o", pool, max_steps=1).train()
    assert "has snapshots already" in caplog.text
    other = _trainer(tmp_path / "o", pool)
    other.model.hidden = torch.nn.Linear(8, 8)
    with pytest.raises(lmcstore.NotFoundError, match=r"no 'hidden\.weight'"):
        other.train(resume_from_checkpoint=True)
    with lmcstore.Run(pool, shelf="own", model=other.model) as run:
        run.save(1)
    with pytest.raises(lmcstore.InvalidError, match="own@1 has no state of a Trainer"):
        _trainer(tmp_path / "o", pool, shelf="own").train(resume_from_checkpoint=True)


def test_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Behind(transformers.Trainer, StoreTrainer):  # type: ignore[misc]
        pass

    with pytest.raises(TypeError):
        _trainer(tmp_path / "o", tmp_path / "a.pool", kind=Behind)
    with pytest.raises(lmcstore.UnsupportedError, match=r"class MyTrainer\(StoreTrainer, Trainer\)"):
        StoreTrainer(store=tmp_path / "a.pool")
    trainer = _trainer(tmp_path / "o", tmp_path / "a.pool")
    with pytest.raises(lmcstore.UnsupportedError, match="hyperparameter search"):
        trainer.train(trial={"lr": 1})
    with pytest.raises(lmcstore.InvalidError, match=r"during train\(\) only"):
        trainer._save_checkpoint(trainer.model, None)
    trainer.args.push_to_hub = True
    with pytest.raises(lmcstore.UnsupportedError, match="hub_strategy='end'"):
        trainer.train()
    trainer.args.push_to_hub = False
    trainer.is_fsdp_enabled = True
    with pytest.raises(lmcstore.UnsupportedError, match="FSDP"):
        trainer.train()
    assert not (tmp_path / "a.pool").exists()
    with pytest.raises(lmcstore.InvalidError, match="at least 1"):
        SnapshotCallback(tmp_path / "a.pool", every=0)
    monkeypatch.delattr(transformers.Trainer, "_save_checkpoint")
    with pytest.raises(lmcstore.UnsupportedError, match=f"'_save_checkpoint'.*{transformers.__version__}"):
        _trainer(tmp_path / "o", tmp_path / "a.pool")


def test_a_scaler(tmp_path: Path) -> None:
    class Scaled(StoredTrainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            self.accelerator.scaler = torch.amp.GradScaler("cpu", growth_interval=2)

    _trainer(tmp_path / "o", tmp_path / "whole.pool", kind=Scaled).train()
    _trainer(tmp_path / "o", tmp_path / "parts.pool", Stop(5), kind=Scaled).train()
    trainer = _trainer(tmp_path / "o", tmp_path / "parts.pool", kind=Scaled)
    trainer.train(resume_from_checkpoint=True)
    same(_last(tmp_path / "whole.pool"), _last(tmp_path / "parts.pool"))
    assert trainer.accelerator.scaler.get_scale() == 2.0**20


def test_a_failed_copy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, gate = copier._copy, threading.Event()
    monkeypatch.setattr(copier, "_copy", lambda *work: (gate.wait(60), copied(*work))[1])

    class Changing(transformers.TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            with torch.no_grad():
                objects["model"].output.weight += 1
            gate.set()

    trainer = _trainer(tmp_path / "o", tmp_path / "a.pool", Changing(), lazy=True)
    with pytest.raises(lmcstore.Error, match="changed before it was copied"):
        trainer.train()


def test_states_of_callbacks(tmp_path: Path) -> None:
    def stopping() -> Any:
        return transformers.EarlyStoppingCallback(early_stopping_patience=90)

    options = {
        "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_none", "greater_is_better": True,
        "restore_callback_states_from_checkpoint": True,
    }  # fmt: skip

    class Judged(StoredTrainer):
        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            return self.callback_handler.on_evaluate(self.args, self.state, self.control, {"eval_none": 1.0}) and {
                "eval_none": 1.0
            }

    first, second = stopping(), stopping()
    options |= {"load_best_model_at_end": True}
    _trainer(tmp_path / "o", tmp_path / "a.pool", first, Stop(5), kind=Judged, **options).train()
    assert first.early_stopping_patience_counter == 4
    trainer = _trainer(tmp_path / "o", tmp_path / "a.pool", second, kind=Judged, **options)
    trainer.train(resume_from_checkpoint="step:4")
    (restored,) = (
        one for one in trainer.callback_handler.callbacks if isinstance(one, transformers.EarlyStoppingCallback)
    )
    assert restored.early_stopping_patience_counter == 7


def test_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, asdict = [], dataclasses.asdict
    monkeypatch.setattr(dataclasses, "asdict", lambda one: copied.append(one) or asdict(one))
    trainer = _trainer(tmp_path / "o", tmp_path / "a.pool", max_steps=1)
    seen: list[Any] = []

    class Logging(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            state.log_history = [{"loss": number / 7, "step": number} for number in range(150)]
            seen.append(state)

    trainer.add_callback(Logging())
    trainer.train()
    with lmcstore.open(tmp_path / "a.pool", "r") as store:
        snapshot = store["run"].latest
        assert snapshot is not None
        state = trainer_state(snapshot)
        assert len(snapshot.state_dict("trainer")["log_history"]) == 3
    assert state.log_history == seen[0].log_history[: len(state.log_history)]
    assert len(state.log_history) >= 150
    assert not any(getattr(one, "log_history", None) for one in copied)


def test_the_log_is_written_once() -> None:
    log: list[Any] = [{"step": step} for step in range(130)]
    made = _Log()
    before = made.tensors(log)
    log += [{"step": step} for step in range(130, 200)]
    after = made.tensors(log)
    assert [one is other for one, other in zip(before, after, strict=False)] == [True, True, False]
    other = [{"step": -1}, *log[1:]]  # of a training that was resumed
    for entries in (log, other, other[:64], [], log):
        texts = [json.dumps(entries[first : first + 64]).encode() for first in range(0, len(entries), 64)]
        assert [tensor.numpy().tobytes() for tensor in made.tensors(entries)] == texts


def test_the_callback(tmp_path: Path) -> None:
    pool = tmp_path / "parts.pool"
    _trainer(tmp_path / "o", tmp_path / "whole.pool").train()
    trainer = _trainer(
        tmp_path / "o",
        None,
        SnapshotCallback(pool, every=2),
        Stop(5),
        kind=transformers.Trainer,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=4,
    )
    trainer.train()
    assert _steps(pool) == [2, 4]
    with lmcstore.open(pool, "r") as store:
        second, fourth = store["run"]
        assert list(second) == ["model", "optimizer", "scheduler", "trainer", "rng"]
        assert list(second.metrics) == ["loss"]
        assert sorted(fourth.metrics) == ["eval_loss", "loss"]
    _trainer(tmp_path / "o", pool).train(resume_from_checkpoint=True)
    same(_last(tmp_path / "whole.pool"), _last(pool))


def test_the_callback_trains_again(tmp_path: Path) -> None:
    callback = SnapshotCallback(tmp_path / "a.pool", every=3)
    for stop in (KeyboardInterrupt, None):
        trainer = _trainer(tmp_path / "o", None, callback, Stop(4, stop), kind=transformers.Trainer)
        if stop is None:
            trainer.train()
        else:
            with pytest.raises(stop):
                trainer.train()
    assert _steps(tmp_path / "a.pool") == [3, 3]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_open_store(tmp_path: Path) -> None:
    with lmcstore.open(tmp_path / "a.pool") as store:
        _trainer(tmp_path / "o", store, max_steps=2).train()
        _trainer(tmp_path / "o", None, SnapshotCallback(store, "other"), kind=transformers.Trainer, max_steps=2).train()
        assert (len(store["run"]), len(store["other"])) == (2, 2)
    with lmcstore.open(tmp_path / "a.pool", "r") as store, pytest.raises(lmcstore.ReadOnlyError):
        _trainer(tmp_path / "o", store).train()


SIGTERM = """
import os, signal, sys, time
import lmcstore.copier
copied = lmcstore.copier._copy
lmcstore.copier._copy = lambda *work: (time.sleep(0.5), copied(*work))[1]
import transformers
from lmcstore.transformers import SnapshotCallback
from transformers_model import StoredTrainer, arguments, data, model

class Ends(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, **objects):
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

kind, pool, folder = sys.argv[1:]
callbacks = [Ends()] if kind == "trainer" else [SnapshotCallback(pool, lazy=True), Ends()]
options = {"store": pool, "lazy": True} if kind == "trainer" else {}
made = StoredTrainer if kind == "trainer" else transformers.Trainer
made(model(), arguments(folder), train_dataset=data(40), callbacks=callbacks, **options).train()
"""


@pytest.mark.parametrize("kind", ["trainer", pytest.param("callback", marks=pytest.mark.deep)])
def test_sigterm_waits(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGTERM, kind, tmp_path / "a.pool", tmp_path / "o"], env=_environment(), check=False
    )
    assert done.returncode == -signal.SIGTERM
    assert _steps(tmp_path / "a.pool") == [1, 2]


JIT = """
import os, signal, sys, time
import transformers
from transformers_model import StoredTrainer, arguments, data, model

class Slow(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, **objects):
        time.sleep(0.5)
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

args = arguments(sys.argv[2], max_steps=100, save_steps=50, enable_jit_checkpoint=True)
trainer = StoredTrainer(model(), args, train_dataset=data(40), callbacks=[Slow()], store=sys.argv[1])
trainer.train()
print(trainer.state.global_step)
"""


@pytest.mark.deep
def test_a_jit_checkpoint(tmp_path: Path) -> None:
    if not hasattr(transformers.TrainingArguments, "enable_jit_checkpoint"):
        pytest.skip("this version of transformers has none")
    command = [sys.executable, "-c", JIT, str(tmp_path / "a.pool"), str(tmp_path / "o")]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (step,) = _steps(tmp_path / "a.pool")
    assert step is not None
    assert 2 < step <= int(done.stdout.splitlines()[-1]) < 50
    _trainer(tmp_path / "o", tmp_path / "a.pool", max_steps=step + 2).train(resume_from_checkpoint=True)
    assert _steps(tmp_path / "a.pool")[-1] == step + 2  # the Trainer keeps its old save_steps


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}


RANKS = """
import os, pathlib, sys
import lmcstore, torch, transformers
import torch.distributed as dist
from lmcstore.transformers import SnapshotCallback
from transformers_model import Stop, StoredTrainer, arguments, data, model, same

folder = pathlib.Path(sys.argv[1])
said = []

def trained(pool, *callbacks, resume=None, kind=StoredTrainer, **options):
    own = {} if kind is transformers.Trainer else {"store": folder / pool}
    torch.manual_seed(0)
    trainer = kind(
        model(), arguments(folder / "o", **options), train_dataset=data(80), callbacks=list(callbacks), **own
    )
    trainer.train(resume_from_checkpoint=resume)
    dist.barrier()
    return trainer

def last(pool):
    with lmcstore.open(folder / pool, "r") as store:
        state = store["run"].latest.state_dict()
    del state["trainer"]
    return state

def fails(work):
    try:
        work()
        said.append("nothing")
    except lmcstore.Error as error:
        said.append(f"{type(error).__name__} {error}")

trained("whole.pool")
trained("parts.pool", Stop(5))
trained("parts.pool", resume=True)
trained("history.pool", SnapshotCallback(folder / "history.pool"), Stop(5), kind=transformers.Trainer)
trained("history.pool", resume="auto")
for pool in ("parts.pool", "history.pool"):
    same(last("whole.pool"), last(pool))
assert len(last("whole.pool")["rng"]) == 2
rank = dist.get_rank()
fails(lambda: trained("o"))  # a folder is no pool
fails(lambda: trained("whole.pool", resume="best"))

class Broken(StoredTrainer):
    def _state(self, optimizer):
        raise lmcstore.FullError("no space, says rank 0")

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is not None and dist.get_rank() == 1:
            self.optimizer.param_groups.pop()
        super()._load_optimizer_and_scheduler(checkpoint)

fails(lambda: trained("other.pool", kind=Broken))
fails(lambda: trained("whole.pool", resume=True, kind=Broken))
print("".join(f"{rank}: {text}\\n" for text in said), end="", flush=True)
dist.destroy_process_group()
os._exit(0)  # some runs abort while the interpreter ends, in C++, for a reason that is not known
"""


def test_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=400, env=_environment(), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = ([line for line in done.stdout.splitlines() if line.startswith(f"{rank}: ")] for rank in "01")
    assert len(first) == len(second) == 4, done.stdout
    for one, other, text in zip(first, second, ("", "best", "says rank 0", "groups"), strict=True):
        assert "nothing" not in one + other
        assert text in one and text in other, (one, other)


def _example(pool: Path, kill_at: str | None = None) -> str:
    command = [sys.executable, str(EXAMPLES / "transformers_resume.py"), str(pool), "--steps", "16"]
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
    whole = _example(tmp_path / "whole.pool")
    _example(tmp_path / "parts.pool", kill_at="step 11")
    assert _example(tmp_path / "parts.pool") == whole
    assert _steps(tmp_path / "parts.pool") == list(range(1, 17))


@pytest.mark.deep
@pytest.mark.parametrize("step", range(2, 16, 3))
def test_the_example_is_killed_at_any_step(tmp_path: Path, step: int) -> None:
    whole = _example(tmp_path / "whole.pool")
    _example(tmp_path / "parts.pool", kill_at=f"step {step}")
    assert _example(tmp_path / "parts.pool") == whole


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    type_page("TRANSFORMERS.md")


def test_logging_names_the_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lmcstore")
    for steps in (2, 3):
        _trainer(tmp_path / "o", tmp_path / "a.pool", max_steps=steps).train(resume_from_checkpoint="auto")
    assert f"new run in 'run' in {tmp_path / 'a.pool'}" in caplog.text
    assert "resuming at step 3 from run@2" in caplog.text
