# SPDX-License-Identifier: BSD-3-Clause
"""The Trainer of transformers saves to a pool: `StoreTrainer` instead of files, `SnapshotCallback` beside them.

In a program::

    class MyTrainer(lmcstore.transformers.StoreTrainer, transformers.Trainer):
        pass

    trainer = MyTrainer(model, args, train_dataset=data, store="run.pool")
    trainer.train(resume_from_checkpoint="auto")

Both take the same snapshots, so that a StoreTrainer also continues from those of a SnapshotCallback. Their parts are
``model``, ``optimizer``, ``scheduler``, ``scaler`` (with mixed precision in float16), ``rng`` (a list, the generators
of each rank) and ``trainer``, which `trainer_state` reads.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import operator
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import transformers
from accelerate.optimizer import AcceleratedOptimizer
from transformers.trainer_callback import ExportableState, TrainerCallback, TrainerState
from transformers.trainer_utils import HubStrategy

from ._state.targets import States
from ._text.similar import listed
from .errors import Error, InvalidError, NotFoundError, UnsupportedError
from .replicated import Replicated, check_whole
from .snapshot import Snapshot
from .store import Store

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object

logger = logging.getLogger("lmcstore")

_OVERRIDDEN = (
    "train",
    "_determine_best_metric",
    "_load_best_model",
    "_load_callback_state",
    "_load_from_checkpoint",
    "_load_optimizer_and_scheduler",
    "_load_rng_state",
    "_load_scaler",
    "_save_checkpoint",
)
"""Methods of Trainer that `StoreTrainer` overrides. Those with an underscore are not documented."""

_STATE_FILE = "trainer_state.json"
_TRAINER, _STATE, _LOGS = "trainer", "state", "log_history"
_LOGS_AT_ONCE = 64
"""Entries of the log in one tensor: full ones do not change, so that snapshots share them."""

_NO_METRICS = ("_runtime", "_per_second", "_compilation_time")


class StoreTrainer(_Trainer):
    """Put before `transformers.Trainer` or a subclass, stores its checkpoints as snapshots.

    In data-parallel training rank 0 writes the pool, and all ranks, on the same machine, read it. DeepSpeed, FSDP, TPUs
    and hyperparameter search are refused. The pool is open during `train`; then the last snapshot is durable, also by
    an exception or SIGTERM (as with `lmcstore.Run`).

    The snapshot of the best evaluation has the tag "best", and ``state.best_model_checkpoint`` is its address.
    ``save_total_limit`` removes older snapshots of the shelf without tags. Values of the evaluation and the loss are
    metrics of the snapshot.

    Parameters
    ----------
    store
        The path of a pool, which is created if it is missing; or an open `Store` (on rank 0), which stays open.
    shelf
        The name of the shelf.
    lazy
        True: a save returns before the tensors are copied that the optimizer changes; its next step waits for the copy.
        None: so for a model on a GPU; one on the CPU, where copies beside the training delay it more, or of an
        optimizer with ``capturable=True``, is copied first.
        Both become durable some time later; a failure is raised by the next save, or by `train`. False: each save
        returns when its snapshot is durable.
    policy
        Words of `Shelf.policy` to set.

    Raises
    ------
    UnsupportedError
        The installed transformers lacks a method that is overridden.
    """

    def __init__(
        self,
        *args: Any,
        store: str | os.PathLike[str] | Store,
        shelf: str = "run",
        lazy: bool | None = None,
        policy: str | None = None,
        **kwargs: Any,
    ) -> None:
        mro = type(self).__mro__
        if transformers.Trainer not in mro or mro.index(StoreTrainer) > mro.index(transformers.Trainer):
            raise UnsupportedError("StoreTrainer goes before Trainer: class MyTrainer(StoreTrainer, Trainer)")
        lacking = [name for name in _OVERRIDDEN if not callable(getattr(transformers.Trainer, name, None))]
        if lacking:
            raise UnsupportedError(
                f"StoreTrainer overrides {listed(lacking)}, which Trainer of transformers {transformers.__version__} "
                "lacks: use transformers 4.57, or SnapshotCallback"
            )
        self._kept = Replicated(store, shelf, policy)
        self._lazy = lazy
        self._number: int | None = None  # of the snapshot that training continues from
        self._best: int | None = None
        self._taken: tuple[int, int] | None = None  # the last snapshot's step and number
        self._limit: int | None = None
        self._log = _Log()
        super().__init__(*args, **kwargs)

    def train(
        self,
        resume_from_checkpoint: str | int | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Train as `transformers.Trainer.train` does.

        Parameters
        ----------
        resume_from_checkpoint
            True: continue from the latest snapshot. ``"auto"``: the same, or begin anew if there is none. A number or
            text such as ``"best"`` or ``"step:120"``: from ``shelf[...]``. A folder of transformers' own checkpoint:
            from its files.

        Raises
        ------
        NotFoundError
            There is no such snapshot, or it lacks keys of the model.
        InvalidError
            The snapshot is of another model or optimizer, or was not taken by a Trainer.
        """
        self._check(trial)
        limit = self.args.save_total_limit
        self._number = self._best = self._taken = None
        self._limit = limit if limit is not None and limit > 0 else None
        if limit == 1:  # else Trainer removes folders from output_dir at the end
            self.args.save_total_limit = None
        try:
            with self._kept, tempfile.TemporaryDirectory(prefix="lmcstore-") as folder:
                output = super().train(
                    resume_from_checkpoint=self._begin(resume_from_checkpoint, folder),
                    trial=trial,
                    ignore_keys_for_eval=ignore_keys_for_eval,
                    **kwargs,
                )
                self._kept.together(self._prune)
                return output
        finally:
            self.args.save_total_limit = limit

    def _check(self, trial: Any) -> None:
        for name, used in (
            ("DeepSpeed", getattr(self, "is_deepspeed_enabled", False)),
            ("FSDP", getattr(self, "is_fsdp_enabled", False) or getattr(self, "is_fsdp_xla_enabled", False)),
            ("a TPU or SageMaker", self.args.parallel_mode.value in ("tpu", "sagemaker_model_parallel")),
            ("a hyperparameter search", trial is not None or getattr(self, "hp_search_backend", None) is not None),
        ):
            if used:
                raise UnsupportedError(f"StoreTrainer can't save with {name}: use Trainer's own checkpoints")
        if self.args.push_to_hub and self.args.hub_strategy != HubStrategy.END:
            raise UnsupportedError("StoreTrainer saves no files to push to the hub: set hub_strategy='end'")

    def _begin(self, which: str | int | bool | None, folder: str) -> str | None:
        """Choose a snapshot; return a folder with its ``trainer_state.json``, which Trainer reads."""
        kept = self._kept
        if which is None or which is False:
            latest = kept.find("latest")
            if latest is not None:
                logger.warning(
                    "%s has snapshots already, to which this training adds: resume_from_checkpoint=True continues from "
                    "the latest",
                    kept.place,
                )
            return None
        if isinstance(which, str | os.PathLike) and os.path.isfile(os.path.join(which, _STATE_FILE)):
            return os.fspath(which)
        number = kept.find("latest" if which is True or which == "auto" else which)
        if number is None:
            if which == "auto":
                logger.info("new run in %s", kept.place)
                return None
            raise NotFoundError(f"there is no snapshot to continue from in {kept.place}: 'auto' begins anew then")
        self._number = number
        kept.load(number, lambda found: self._write_state(found, folder))
        if self._best is not None and not kept.together(self._tag_best):
            self._best = None
        return folder

    def _write_state(self, found: Snapshot, folder: str) -> None:
        state = trainer_state(found)
        if "best" in found.tags and not _is_best(state):  # the evaluation came after the save
            name = str(self.args.metric_for_best_model)
            value = found.metrics.get(name if name.startswith("eval_") else f"eval_{name}")
            if value is not None:
                state.best_metric, state.best_global_step = value, state.global_step
        self._best = found.number if _is_best(state) else self._best_before(found)
        state.best_model_checkpoint = None  # else Trainer looks for that folder
        state.save_to_json(os.path.join(folder, _STATE_FILE))
        logger.info("resuming at step %d from %s in %s", state.global_step + 1, found._address, self._kept.place)

    def _best_before(self, found: Snapshot) -> int | None:
        """Return the best snapshot's number. It may be gone; and in a fork, whose numbers begin anew, it is not its."""
        number: int | None = found.meta.get("best")
        if number is None or (number < found.number and number in found.shelf):
            return number
        logger.warning(
            "the best model before %s is not on its shelf: only a better one is loaded at the end", found._address
        )
        return None

    def _tag_best(self) -> bool:
        """Protect the best snapshot: the tag may have moved to a later one. Return whether it is there still."""
        best = self._best
        assert best is not None
        try:
            if "best" not in self._kept.shelf[best].tags:
                self._kept.shelf.tag(best, "best")
        except NotFoundError as error:
            logger.warning("the best model was removed: only a better one is loaded at the end: %s", error)
            return False
        return True

    # Saving

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        is_best: bool = super()._determine_best_metric(metrics, trial)
        if is_best:
            self.state.best_global_step = self.state.global_step  # transformers 4 leaves save_strategy="best" out
        if self._taken is not None and self._taken[0] == self.state.global_step:  # it was saved before
            number = self._taken[1]
            values = _metrics(self.state, self.state.global_step) | _metrics_of(metrics)
            if _annotate(self._kept, number, values, ("best",) if is_best else ()) and is_best:
                self._best = number
                self.state.best_model_checkpoint = self._address(number)
        return is_best

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._check(trial)
        if not self._kept.is_open:
            raise InvalidError("StoreTrainer saves during train() only: save_model() writes the model's files")
        self.store_flos()
        self._kept.together(self._prune)
        step, is_best = self.state.global_step, _is_best(self.state)
        optimizer = None if self.args.save_only_model else _inside(self.optimizer)
        number = self._kept.save(
            lambda: self._state(optimizer),
            step,
            metrics=_metrics(self.state, step),
            tags=("best",) if is_best else (),
            meta=None if is_best or self._best is None else {"best": self._best},
            optimizers=States().optimizers(optimizer),
            lazy=self._lazy,
        )
        self._taken = step, number
        if is_best:
            self._best = number
        if self._best is not None:
            self.state.best_model_checkpoint = self._address(self._best)

    def _state(self, optimizer: Any) -> dict[str, Any]:
        callbacks: dict[str, list[Any]] = {}
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                callbacks.setdefault(type(callback).__name__, []).append(callback.state())
        self.state.stateful_callbacks = {
            name: states[0] if len(states) == 1 else states for name, states in callbacks.items()
        }
        scaler = getattr(self.accelerator, "scaler", None)
        if optimizer is None:
            return _parts(self.model, None, None, None, self.state, self._log)
        return _parts(self.model, optimizer, self.lr_scheduler, scaler, self.state, self._log)

    def _address(self, number: int) -> str:
        return f"{self._kept._name}@{number}"

    def _prune(self) -> None:
        """Remove snapshots over the limit; never before a newer one is durable."""
        if self._limit is not None:
            self._kept.wait()
            self._kept.prune(self._limit, self._best)

    # Loading

    def _load(self, work: Callable[[Snapshot], object], path: Any, name: str) -> None:
        """Load from the snapshot, or as Trainer does from a folder that the user gave."""
        if self._number is not None:
            self._kept.load(self._number, work)
        elif path is not None:
            getattr(super(), name)(path)

    def _load_from_checkpoint(self, resume_from_checkpoint: Any, model: Any = None) -> None:
        if self._number is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        target = States().inside(self.model if model is None else model)
        self._kept.load(self._number, lambda found: found.load_into(model=target))

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        def load(found: Snapshot) -> None:
            if "optimizer" in found:
                found.load_into(optimizer=_inside(self.optimizer), scheduler=self.lr_scheduler)
            else:
                logger.warning("%s has a model only: the optimizer and the scheduler begin anew", found._address)

        self._load(load, checkpoint, "_load_optimizer_and_scheduler")

    def _load_scaler(self, checkpoint: Any) -> None:
        def load(found: Snapshot) -> None:
            scaler = getattr(self.accelerator, "scaler", None)
            if scaler is not None and "scaler" in found:
                found.load_into(scaler=scaler)

        self._load(load, checkpoint, "_load_scaler")

    def _load_rng_state(self, checkpoint: Any) -> None:
        self._load(self._kept.load_generators, checkpoint, "_load_rng_state")

    def _load_callback_state(self) -> None:
        if self._number is not None and self._best is not None:
            self.state.best_model_checkpoint = self._address(self._best)
        super()._load_callback_state()

    def _load_best_model(self) -> None:
        best = self._best
        if best is None:
            super()._load_best_model()
            return
        logger.info("loading the best model from %s in %s", self._address(best), self._kept.place)
        self._kept.together(self._kept.wait)
        try:
            self._kept.load(best, lambda found: found.load_into(model=States().inside(self.model)))
        except NotFoundError as error:  # someone has removed it: the training is complete without it
            logger.warning("the best model is not loaded, the last one stays: %s", error)


class SnapshotCallback(TrainerCallback):
    """Takes a snapshot after every so many steps, beside the checkpoints of the Trainer.

    At the end of the training the last snapshot is durable; also by SIGTERM (as with `lmcstore.Run`), and when the
    interpreter ends after an exception. A loss or evaluation of the same step, which comes after the snapshot, is added
    to its metrics before the next snapshot.

    A callback can't restore a training: a `StoreTrainer` on the same shelf can.

    Parameters
    ----------
    pool
        As `store` of `StoreTrainer`; a path is opened when the training begins, and closed when it ends.
    every
        Steps of the optimizer between snapshots.
    shelf, lazy, policy
        As for `StoreTrainer`.
    """

    def __init__(
        self,
        pool: str | os.PathLike[str] | Store,
        shelf: str = "run",
        *,
        every: int = 1,
        lazy: bool | None = None,
        policy: str | None = None,
    ) -> None:
        if type(every) is not int or every < 1:
            raise InvalidError(f"every can't be {every!r}: it is a number of steps, at least 1")
        self._kept = Replicated(pool, shelf, policy)
        self._every = every
        self._lazy = lazy
        self._taken: tuple[int, int] | None = None  # the last snapshot's step and number
        self._metrics: dict[str, float] = {}
        self._log = _Log()

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Open the pool."""
        check_whole(objects["model"])
        if self._kept.is_open:  # the last training was interrupted
            self._kept.__exit__(None, None, None)
        self._taken, self._metrics = None, {}
        self._kept.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Take a snapshot if one is due."""
        if state.global_step % self._every:
            return
        self._annotate()
        optimizer = _inside(objects["optimizer"])
        number = self._kept.save(
            lambda: _parts(objects["model"], optimizer, objects["lr_scheduler"], None, state, self._log),
            state.global_step,
            optimizers=States().optimizers(optimizer),
            lazy=self._lazy,
        )
        self._taken = state.global_step, number

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **rest: Any) -> None:
        """Keep the loss and values of an evaluation for the snapshot of this step."""
        if self._taken is not None and self._taken[0] == state.global_step:
            self._metrics |= _metrics_of(logs or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Wait for the last snapshot, and close the pool."""
        try:
            self._annotate()
        finally:
            self._kept.__exit__(None, None, None)

    def _annotate(self) -> None:
        metrics, self._metrics = self._metrics, {}
        if self._taken is not None:
            _annotate(self._kept, self._taken[1], metrics)


def _annotate(kept: Replicated, number: int, metrics: Mapping[str, float], tags: Iterable[str] = ()) -> bool:
    """Wait for the last snapshot, and add to it; return whether it has the tags now. Collective."""

    def annotate() -> bool:
        kept.wait()
        is_tagged = False
        try:
            kept.shelf.tag(number, *tags)
            is_tagged = True
            stored = kept.shelf[number].metrics
            for name, value in metrics.items():
                stored[name] = value
        except Error as failure:  # too many of them; or a policy has removed the snapshot
            logger.warning("an evaluation is not added to snapshot %d, or only in part: %s", number, failure)
        return is_tagged

    return kept.together(annotate)


def trainer_state(snapshot: Snapshot) -> TrainerState:
    """Return the TrainerState of a snapshot: its step, epoch, best metric and log.

    InvalidError: the snapshot was not taken by a `StoreTrainer` or `SnapshotCallback`.
    """
    stored = snapshot.state_dict(_TRAINER) if _TRAINER in snapshot else None
    if not isinstance(stored, dict) or set(stored) != {_STATE, _LOGS}:
        raise InvalidError(
            f"{snapshot._address} has no state of a Trainer, and can't be continued by one: load it with load_into"
        )
    logs = [entry for part in stored[_LOGS] for entry in json.loads(part.numpy().tobytes())]
    return TrainerState(**json.loads(stored[_STATE]), log_history=logs)


class _Log:
    """The log of a training as tensors. Full ones are made once, as the Trainer appends to the log only."""

    def __init__(self) -> None:
        self._entries: list[Any] = []  # of the full ones
        self._full: list[torch.Tensor] = []

    def tensors(self, log: list[Any]) -> list[torch.Tensor]:
        if len(log) < len(self._entries) or not all(map(operator.is_, self._entries, log)):  # another training's
            self._entries, self._full = [], []
        for first in range(len(self._entries), len(log) - _LOGS_AT_ONCE + 1, _LOGS_AT_ONCE):
            self._full.append(_as_tensor(log[first : first + _LOGS_AT_ONCE]))
        self._entries = log[: len(self._full) * _LOGS_AT_ONCE]
        rest = log[len(self._entries) :]
        return [*self._full, *([_as_tensor(rest)] if rest else [])]


def _as_tensor(entries: list[Any]) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(entries).encode()), dtype=torch.uint8)


def _parts(model: Any, optimizer: Any, scheduler: Any, scaler: Any, state: TrainerState, log: _Log) -> dict[str, Any]:
    """Return the state of a snapshot, without parts that are None."""
    check_whole(model)
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    states = States()
    parts = {name: states.of(target) for name, target in objects.items() if target is not None}
    short = copy.copy(state)
    short.log_history = []  # asdict would copy it
    values = dataclasses.asdict(short)
    del values[_LOGS]
    return {**parts, _TRAINER: {_STATE: json.dumps(values), _LOGS: log.tensors(state.log_history)}}


def _inside(optimizer: Any) -> Any:
    """Return the optimizer in the wrapper of Accelerate."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _is_best(state: TrainerState) -> bool:
    return state.best_global_step is not None and state.best_global_step == state.global_step


def _metrics(state: TrainerState, step: int) -> dict[str, float]:
    """Return the metrics of a step from the log."""
    metrics: dict[str, float] = {}
    for entry in reversed(state.log_history):
        if entry.get("step") != step:
            break
        metrics = _metrics_of(entry) | metrics
    return metrics


def _metrics_of(logs: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in logs.items()
        if (name == "loss" or name.startswith("eval_"))
        and isinstance(value, int | float)
        and not name.endswith(_NO_METRICS)
    }
