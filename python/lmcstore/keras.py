# SPDX-License-Identifier: BSD-3-Clause
"""Keras saves its training to a shelf, and continues from it.

::

    model.fit(x, y, epochs=10, callbacks=[lmcstore.keras.SnapshotCallback("run.pool")])
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import Any, Literal, Self

import keras
import numpy

from ._state.targets import States, generators
from ._text.arguments import a_kind, within
from ._text.similar import listed
from .errors import InvalidError, NotFoundError, UnsupportedError
from .opening import open
from .shelf import Shelf
from .snapshot import Snapshot
from .store import Store

__all__ = ["SnapshotCallback"]

logger = logging.getLogger("lmcstore")

_MOST_BATCHES = 2**31 - 1
_CHECKED = ("trainable_variables", "non_trainable_variables", "optimizer_variables")
_METRICS = "metrics_variables"


class SnapshotCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Takes a snapshot after each epoch, or every few batches, and continues from the latest one.

    `fit` with this callback begins where the last snapshot of the shelf was taken: all variables of the model and its
    optimizer, the epoch, the batch, and the random generators are those of then, so that the numbers are those of an
    uninterrupted run. An empty shelf begins a new run. Earlier snapshots stay.

    Amid an epoch, `fit` draws the epoch's batches again, and the callback leaves out those that were trained; other
    callbacks see them with the logs of the snapshot. This needs data that depend on the epoch and the generators only.

    A snapshot has the state ``{"model": model.get_state_tree("numpy_array"), "epoch", "batch", ...}``: the next epoch,
    and how many batches of it are done. Its step is the optimizer's count of iterations, and its metrics are the logs.

    It is durable when `fit` ends normally. After an exception, `close` waits for it, as does the end of a ``with``
    block. If a snapshot fails, the next one or `fit`'s end raises the error.

    Parameters
    ----------
    pool
        The path of a pool, which is created if it is missing, as by `lmcstore.open`, when `fit` begins, and closed when
        it ends normally; or an open `Store`, which stays open.
    shelf
        The name of the shelf.
    every
        A number of batches: take a snapshot after so many, too.
    wait
        Let the training wait until each snapshot is durable. False: only until it is copied.
    rng
        Whether to keep the default generators of Python, of NumPy, and of torch once imported.
    metrics
        Names of the logs to keep as metrics. Default: all. They may take 1200 bytes.
    policy
        Words of `Shelf.policy` to set: ``policy="keep=last:10"``.

    Raises
    ------
    UnsupportedError
        `every` is a number of batches, and Keras runs on another backend than JAX or torch.
    """

    def __init__(
        self,
        pool: str | os.PathLike[str] | Store,
        *,
        shelf: str = "run",
        every: int | Literal["epoch"] = "epoch",
        wait: bool = False,
        rng: bool = True,
        metrics: Collection[str] | None = None,
        policy: str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(shelf, str):
            raise UnsupportedError(f"a shelf is named by a str, not by {a_kind(shelf)}")
        self._every = None if every == "epoch" else within(every, 1, _MOST_BATCHES, "every")
        if self._every is not None and keras.backend.backend() not in ("jax", "torch"):
            raise UnsupportedError(f"every={every}: only JAX and torch continue amid an epoch. Use every='epoch'")
        self._pool = pool
        self._name = shelf
        self._wait = wait
        self._rng = rng
        self._logged = metrics
        self._policy = policy
        self._store: Store | None = pool if isinstance(pool, Store) else None
        self._resumed: Snapshot | None = None
        self._last: Snapshot | None = None
        self._epoch = 0
        self._since = 0  # batches since the last snapshot
        self._skip = 0  # batches of the first epoch that are done
        self._epoch_rng: Any = None

    @property
    def shelf(self) -> Shelf:
        """The shelf, whose pool is opened if it is not open."""
        if self._store is None:
            assert not isinstance(self._pool, Store)
            self._store = open(self._pool)
        return self._store[self._name]

    def on_train_begin(self, logs: Any = None) -> None:
        """Load the latest snapshot, if there is one."""
        shelf = self.shelf
        shelf.store._check_writable()
        if self._policy is not None:
            shelf.policy = self._policy
        self.wait()
        if self.model.optimizer is None:
            raise UnsupportedError("SnapshotCallback needs a model with an optimizer: compile it with one")
        self._since = self._skip = self._epoch = 0
        self._resumed = shelf.latest
        if self._resumed is None:
            logger.info("new run in %r in %s", shelf.name, shelf.store.path)
            return
        self._load(self._resumed)

    def _load(self, snapshot: Snapshot) -> None:
        if "model" not in snapshot or "epoch" not in snapshot:
            raise InvalidError(f"{snapshot._address} was not saved by SnapshotCallback: give another shelf")
        stored = snapshot.state_dict(("model",), verify=True)
        self._skip = snapshot["batch"]
        _check(self.model, stored, snapshot, (*_CHECKED, _METRICS) if self._skip else _CHECKED)
        self.model.set_state_tree({name: _copied(stored[name]) for name in _CHECKED})
        snapshot._handle.mark_loaded()
        if not self._skip:
            self._load_rng("rng")
        self._epoch = snapshot["epoch"]
        self._model._initial_epoch = self._epoch
        logger.info(
            "resuming at epoch %d, batch %d from %s in %s",
            self._epoch,
            self._skip,
            snapshot._address,
            snapshot.shelf.store.path,
        )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch; leave out the batches that are done."""
        self._model._initial_epoch = None  # it would be that of the next fit, too
        if self._skip:
            if epoch != self._epoch:
                raise InvalidError(f"fit begins at epoch {epoch}, the snapshot is amid epoch {self._epoch}")
            assert self._resumed is not None
            metrics = self._resumed.state_dict(("model", _METRICS))
            self.model.set_state_tree({_METRICS: _copied(metrics)})
            self._load_rng("epoch_rng")
            self._model.train_function = self._skipping(self._model.train_function, self._resumed["logs"])
        self._epoch = epoch
        if self._every is not None:
            self._epoch_rng = self._generators()

    def _skipping(self, train: Callable[..., Any], logs: dict[str, float]) -> Callable[..., Any]:
        """Return a train function that leaves out batches until `_skip` is 0."""

        def skip(*arguments: Any) -> Any:
            if not self._skip:
                self._model.train_function = train
                return train(*arguments)
            if len(arguments) == 1:  # torch's, of a batch
                return dict(logs)
            state, iterator = arguments  # JAX's
            next(iterator)
            for _ in range(1, self._model.steps_per_execution):
                next(iterator, None)
            return dict(logs), state

        return skip

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Take a snapshot if it is due; the one after the last batch is the epoch's."""
        if self._every is None:
            return
        if self._skip:
            if batch + 1 >= self._skip:
                self._skip = 0
                self._load_rng("rng")
            return
        self._since += self._model.steps_per_execution
        if self._since >= self._every and batch + 1 < (self.params.get("steps") or _MOST_BATCHES):
            self._save(self._epoch, batch + 1, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Take a snapshot."""
        self._skip = 0
        self._save(epoch + 1, 0, logs)

    def _save(self, epoch: int, batch: int, logs: Any) -> None:
        numbers = {name: float(value) for name, value in (logs or {}).items()}
        model = self.model
        state = {"model": model.get_state_tree(value_format="numpy_array"), "epoch": epoch, "batch": batch}
        if self._rng:
            state["rng"] = self._generators()
        if batch:
            state |= {"epoch_rng": self._epoch_rng, "logs": numbers}
        metrics = {name: value for name, value in numbers.items() if self._logged is None or name in self._logged}
        step = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
        self._last = self.shelf.snapshot(state, step=step, metrics=metrics, wait=self._wait)
        self._since = 0

    def on_train_end(self, logs: Any = None) -> None:
        """Wait until the last snapshot is durable, and close a pool that the callback has opened."""
        self._model._initial_epoch = None
        self.close()

    def wait(self) -> None:
        """Wait until the last snapshot is durable; raises its failure, once."""
        last, self._last = self._last, None
        if last is not None:
            last.wait()

    def close(self) -> None:
        """Wait for the last snapshot, and close a pool that the callback has opened; the next `fit` opens it again."""
        try:
            self.wait()
        finally:
            if self._store is not self._pool and self._store is not None:
                store, self._store, self._resumed = self._store, None, None
                store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _generators(self) -> Any:
        return States().of(generators()) if self._rng else None

    def _load_rng(self, part: str) -> None:
        assert self._resumed is not None
        stored = self._resumed.get(part) if self._rng else None
        if stored:
            there = generators(list(stored))
            lacking = [name for name in stored if name not in there]
            if lacking:
                logger.warning("%s: there are no generators %s here", self._resumed._address, listed(lacking))
            self._resumed.load_into({part: there}, strict=False)


def _check(model: Any, stored: Any, snapshot: Snapshot, parts: tuple[str, ...]) -> None:
    """Compare the paths, shapes and dtypes of a model's variables with the stored ones."""
    tree = model.get_state_tree(value_format="numpy_array")
    wanted = dict(_flat("", {name: tree[name] for name in parts}))
    there = dict(_flat("", {name: stored[name] for name in parts}))
    lacking = [path for path in wanted if path not in there]
    others = [path for path in there if path not in wanted]
    if lacking or others:
        texts = [f"lacks {listed(lacking)} of the model"] if lacking else []
        texts += [f"has {listed(others)}, which the model lacks"] if others else []
        raise (NotFoundError if lacking else InvalidError)(
            f"{snapshot._address} {', and '.join(texts)}. Build and compile the model as it was; layers without names "
            "are numbered from 0 again after keras.utils.clear_session()"
        )
    for path, value in wanted.items():
        for what, is_, must in (
            ("shape", there[path].shape, value.shape),
            ("dtype", there[path].dtype, value.dtype),
        ):
            if is_ != must:
                raise InvalidError(f"{path}: the snapshot's {what} is {is_}, the model's {must}")


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _flat(f"{path}/{key}" if path else key, child)
    else:
        yield path, value


def _copied(tree: Any) -> Any:
    """Copy arrays: a backend may use the memory of those that it gets."""
    return {k: _copied(v) for k, v in tree.items()} if isinstance(tree, dict) else numpy.array(tree)
