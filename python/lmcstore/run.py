# SPDX-License-Identifier: BSD-3-Clause
"""`Run`: the objects of a training loop, saved after each step and restored together."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self

from ._folder.channel import ranks_of_process
from ._folder.ranked import RankSnapshot, RunOfRanks
from ._folder.store import is_folder
from ._folder.writing import opener_of
from ._optimizer.gradients import scale_of
from ._state.later import may_replay
from ._state.targets import States, generators, generators_of
from ._text.arguments import a_kind, file_path, int64
from ._text.similar import listed, shown
from .ending import Ending
from .errors import Error, InvalidError, NotFoundError, UnsupportedError
from .opening import open, pool_options_of
from .shelf import Shelf
from .snapshot import Snapshot
from .store import Store

logger = logging.getLogger("lmcstore")

_RNG = "rng"
_OPTIONS = ("cast", "strict", "types")
"""Names of `Snapshot.load_into` that no object can have."""


def _check(objects: dict[str, Any]) -> None:
    """Refuse objects that can't be kept. Of several ranks, one alone may have such an object."""
    if not objects:
        raise InvalidError("a Run needs objects to keep: Run(pool, model=model, optimizer=optimizer)")
    states = States()
    for name, target in objects.items():
        if name in _OPTIONS:
            raise InvalidError(f"{name!r} is an option of load_into: give the object another name")
        states.check(target, name)


class Run:
    """A training loop's objects, and the shelf that keeps them.

    In a program::

        with lmcstore.Run("run.pool", model=model, optimizer=optimizer, scheduler=scheduler) as run:
            for step in range(run.resume(), steps):
                loss = train(step)
                run.save(step, metrics={"loss": loss})

    A snapshot is an ordinary state, a dict of the objects' states by their names, which `Snapshot.state_dict` and
    `Snapshot.load_into` read without a Run. The keys of a model in ``torch.compile``, DistributedDataParallel or
    DataParallel are saved without the wrapper's prefix; models with and without wrappers load them.

    In a ``with`` block the last snapshot is durable when the block ends, also by an exception. In the main thread,
    SIGTERM first waits for it; then an earlier handler in Python runs, or the process ends as it does without a Run.
    The signal is handled when the main thread returns to Python, and a second one does not wait. Without ``with``, call
    `close`.

    One process uses a Run; its methods are called from one thread at a time.

    In a torch.distributed process group of several ranks, a path is the folder of a run, and all ranks make the Run and
    call its methods in the same order. `save` captures the rank's part; a thread prepares it, and rank 0 records the
    snapshot once all ranks have prepared. Tensors of DistributedDataParallel modules and their optimizers are stored
    once, DTensors as boxes, and other objects by each rank for itself: ``python/trainers/RUN.md`` has the rules. One
    process opens such a folder, too.

    Parameters
    ----------
    pool
        The path of a pool, which is created if it is missing, as by `lmcstore.open`, and closed by `close`; or an open
        `Store`, which stays open. Of several ranks: the path of a folder; a Store is of this rank alone.
    shelf
        The name of the shelf.
    rng
        Whether to keep the default generators of Python, of NumPy and torch once imported, and of CUDA once
        initialized, as the part ``"rng"``. A loader draws seeds when an iteration begins, so also after a `resume` amid
        one. These come from torch's generator unless the loader and its sampler have a ``generator`` each.
    policy
        Words of `Shelf.policy` to set: ``policy="write=link"``. Of several ranks, `keep`, `budget` and `grace`
        are of the run's records, which decide for all ranks; others are of each rank's pool.
    replicated
        Names of objects that are equal on all ranks, and stored once: ``replicated=("ema",)``.
    timeout
        The most seconds that a rank may be behind another in its saves. After that no rank saves any more.
    pool_options
        Options of `lmcstore.open` for a path: ``pool_options={"memory": "8GiB"}``. Of several ranks, they are for each
        rank's pool, whose `memory` is by default a quarter of the machine's, divided by its ranks.
    **objects
        The objects by any name except "cast", "strict" and "types", kept by reference: with ``state_dict`` and
        ``load_state_dict`` (modules, optimizers, schedulers, a GradScaler, an AveragedModel, torchdata's
        StatefulDataLoader), generators of torch, NumPy and Python, tensors and arrays, dicts of plain values, which are
        filled in place, and dicts, lists and tuples of these.

    Raises
    ------
    UnsupportedError
        An object has no state that can be kept; the text has its name. The pool is not opened.
    ReadOnlyError
        The store is open for reading.
    NotFoundError
        Of several ranks: the run has parts on a machine that is not there.
    Error
        As `lmcstore.open` and `Shelf.policy` raise it. Of several ranks, all raise.
    """

    def __init__(
        self,
        pool: str | os.PathLike[str] | Store,
        /,
        *,
        shelf: str = "run",
        rng: bool = True,
        policy: str | None = None,
        replicated: Iterable[str] = (),
        timeout: float = 600.0,
        pool_options: Mapping[str, Any] | None = None,
        **objects: Any,
    ) -> None:
        options = (
            ("shelf", shelf, str),
            ("rng", rng, bool),
            ("policy", policy, str | None),
            ("replicated", replicated, list | tuple | set | str),
            ("timeout", timeout, float | int),
            ("pool_options", pool_options, dict | None),
        )
        for name, value, kind in options:
            if not isinstance(value, kind):
                raise UnsupportedError(f"{name} is an option of Run, not {a_kind(value)}: give an object another name")
        given = pool_options_of(pool_options, isinstance(pool, Store))
        check = functools.partial(_check, objects)
        self._objects = objects
        self._rng = rng
        self._owns = not isinstance(pool, Store)
        self._ranks: RunOfRanks | None = None
        if not isinstance(pool, Store) and (ranks_of_process() > 1 or is_folder(file_path(pool))):
            names = [*objects, *((_RNG,) if rng else ())]
            opener = functools.partial(opener_of, options=given, opens=open)
            self._ranks = RunOfRanks(file_path(pool), shelf, float(timeout), replicated, names, opener, check)
            self._store: Store = self._ranks.store
        else:
            check()
            self._store = pool if isinstance(pool, Store) else open(pool, **given)
        self._shelf = self._store[shelf]
        self._resumed: Snapshot | None = None
        self._is_begun = False  # resume() or save() was called
        self._last: Snapshot | None = None
        self._pid = os.getpid()
        self._ending = Ending(self.wait, self._place)
        try:
            self._begin(policy)
        except BaseException:
            if self._owns:
                self._close_store()
            raise

    def _begin(self, policy: str | None) -> None:
        if self._ranks is None:
            self._store._check_writable()
            if policy is not None:
                self._shelf.policy = policy
        elif policy is not None:
            self._ranks.set_policy(policy)

    def _close_store(self) -> None:
        (self._store if self._ranks is None else self._ranks).close()

    @property
    def store(self) -> Store:
        """The open pool."""
        return self._store

    @property
    def shelf(self) -> Shelf:
        """The shelf."""
        return self._shelf

    def resume(
        self, which: int | str | None = None, *, required: bool = False, missing: Literal["error", "ignore"] = "error"
    ) -> int:
        """Restore all objects, or none, and return the next step: 0 if the shelf is empty.

        Logs the snapshot, or that there is none (logger "lmcstore", level INFO); ``print(run)`` shows it, too. The next
        snapshot has this one as parent. The state of a CUDA device that is not there is left out, with a warning.

        Parameters
        ----------
        which
            The snapshot, as for ``shelf[which]``: ``"best"``, ``"step:120"``. Default: the latest.
        required
            Raise NotFoundError if the shelf is empty.
        missing
            ``"ignore"``: load the objects that the snapshot has, leave the others as they are, and warn. A part that
            the run has no object for is not in later snapshots.

        Raises
        ------
        NotFoundError
            The snapshot lacks objects or keys of the run; or there is no such snapshot.
        InvalidError
            The snapshot has other objects than the run; shapes, dtypes or groups differ; or it has no step.
        Error
            As `Snapshot.load_into` raises it. No object is changed then.
        """
        if not isinstance(missing, str) or missing not in ("error", "ignore"):
            raise InvalidError(f"missing can't be {shown(missing)}: it is 'error' or 'ignore'")
        self.wait()
        self._is_begun = True
        found = self._find(which)
        if found is None:
            if required:
                empty = self._store._empty(self._shelf.name)
                raise NotFoundError(f"{self._store.path}: {empty}. Without required=True, resume() begins a new run")
            logger.info("new run in %s", self._place)
            return 0
        step = found.step
        if step is None:
            raise InvalidError(
                f"{found._address} has no step to continue from: load it with load_into, and give later ones a step"
            )
        if isinstance(found, RankSnapshot):
            assert self._ranks is not None
            self._ranks.load(found, lambda: self._targets(found, missing == "ignore"))
        else:
            found.load_into(**self._targets(found, missing == "ignore"))
        self._resumed = found
        logger.info("resuming at step %d from %s in %s", step + 1, found._address, self._store.path)
        return step + 1

    def save(
        self,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        tags: Iterable[str] = (),
        meta: Mapping[str, Any] | None = None,
        gradients: Any = None,
        gradient_scale: float | None = None,
        wait: bool = False,
        lazy: bool | None = None,
    ) -> Snapshot:
        """Take a snapshot of all objects after a step, and return it.

        The first one warns if the shelf has snapshots and `resume` was not called.

        The parameters and states of torch's optimizers are copied after the call, and their next step waits for the
        copy; until then nothing else may change them (else the snapshot fails, or for changes that torch does not count
        may have parts of two states: see ``lazy`` of `Shelf.snapshot`). The snapshot is durable when its
        `Snapshot.wait` or `wait` has returned.

        Parameters
        ----------
        step
            The step that is done.
        wait
            Return when the snapshot is durable.
        lazy
            False: return when everything is copied. True: optimizers with ``capturable=True`` are copied later, too. A
            replayed CUDA graph calls no hook: with such a graph, also of an optimizer that has no ``capturable``, call
            `Snapshot.captured` before its replay, or give False.
        metrics, tags, meta, gradients, gradient_scale
            As for `Shelf.snapshot`. Of several ranks, the first three are those of rank 0.

        Raises
        ------
        UnsupportedError
            A part of a state can't be stored; the text begins with its path.
        InputOutputError
            Of several ranks: a rank has ended, or is too far behind.
        Error
            As `Shelf.snapshot` raises it, also for an earlier snapshot that failed later.
        """
        if not self._is_begun:
            self._warn_if_not_empty()
        found = () if wait else States().optimizers(self._objects)
        optimizers = [one for one in found if lazy or (lazy is None and not may_replay(one))]
        if self._ranks is not None:

            def taken() -> tuple[dict[str, Any], float]:
                if gradients is not None and gradient_scale is not None:
                    raise InvalidError("gradients and gradient_scale say the same: give one of them")
                return self._state(), scale_of(gradients) if gradients is not None else float(gradient_scale or 0)

            described = {"tags": tags, "metrics": metrics, "meta": meta}
            saved = self._ranks.save(step, self._objects, taken, None if wait else optimizers, described)
            return saved.wait() if wait else saved
        step = int64(step, "step")
        state = self._state()
        self._last = self._shelf.snapshot(
            state,
            step=step,
            tags=tags,
            metrics=metrics,
            meta=meta,
            wait=wait,
            gradients=gradients,
            gradient_scale=gradient_scale,
            lazy=optimizers or None,
        )
        return self._last

    def _warn_if_not_empty(self) -> None:
        self._is_begun = True
        if self._ranks is not None and self._ranks.rank > 0:
            return
        newest = self._shelf.latest
        if newest is not None:
            logger.warning(
                "%s has snapshots already, the newest %s of step %s, and resume() was not called: the run saves its "
                "objects as they are now",
                self._place,
                newest._address,
                newest.step,
            )

    def _state(self) -> dict[str, Any]:
        states = States()
        state = {name: states.of(target) for name, target in self._objects.items()}
        if self._rng:
            state[_RNG] = states.of(generators())
        return state

    def wait(self) -> None:
        """Wait until the last snapshot is durable; raises its failure, once (of ranks: also that of earlier ones)."""
        if self._ranks is not None:
            self._ranks.wait()
            return
        try:
            if self._last is not None:
                self._last.wait()
        except Error:
            self._last = None
            raise

    def close(self) -> None:
        """Wait for the last snapshot, and close a pool that the Run has opened; raises a failure of a snapshot.

        A forked child does neither.
        """
        if os.getpid() != self._pid:
            return
        try:
            self.wait()
        finally:
            if self._owns:
                self._close_store()

    def __enter__(self) -> Self:
        self._ending.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Error as failure:
            if error is None:
                raise
            logger.error("%s: a snapshot was not saved: %s", self._place, failure)
        finally:
            self._ending.end()

    def _find(self, which: int | str | None) -> Snapshot | None:
        if self._ranks is not None:
            return self._ranks.find(which)
        return self._shelf.latest if which is None else self._shelf[which]

    def _targets(self, found: Snapshot, ignores: bool) -> dict[str, Any]:
        """Return the targets for the parts of a snapshot; raises if its parts and the run's objects differ."""
        stored = list(found)
        wanted = [*self._objects, *((_RNG,) if self._rng else ())]
        if isinstance(found, RankSnapshot):
            new = found.new_to_rank(wanted, self._objects)
            wanted = [name for name in wanted if name not in new]
        lacking = [name for name in wanted if name not in stored]
        others = [name for name in stored if name not in wanted]
        names = [name for name in wanted if name in stored]
        if (lacking or others) and not (ignores and names):
            texts = []
            if lacking:
                texts.append(f"it lacks {listed(lacking)} of the run")
            if others:
                texts.append(f"it has {listed(others)}, which the run lacks")
            text = f"{found._address} can't be resumed: {'; '.join(texts)}. Give Run the objects that were saved"
            if _RNG in lacking or _RNG in others:
                text += f" (rng={_RNG in others})"
            if names:
                text += f', or resume(missing="ignore") restores {listed(names)} only'
            raise NotFoundError(text) if lacking else InvalidError(text)
        if lacking:
            logger.warning("%s lacks %s, which the run keeps as they are", found._address, listed(lacking))
        if others:
            logger.warning("%s has %s, which the run does not restore", found._address, listed(others))
        states = States()
        targets = {name: states.inside(self._objects[name]) for name in names if name != _RNG}
        if _RNG in names:
            targets[_RNG] = self._generators(found)
        return targets

    def _generators(self, found: Snapshot) -> dict[Any, Any]:
        """Return the generators of a snapshot; None, which load_into replaces in the dict, if one is not there."""
        stored = found[(_RNG,)]
        if not isinstance(stored, dict):
            return generators()
        there, absent = generators_of(stored)
        if absent:
            logger.warning("%s: there are no generators %s here to restore", found._address, listed(absent))
        return there

    @property
    def _place(self) -> str:
        return f"{self._shelf.name!r} in {self._store.path}"

    def __repr__(self) -> str:
        resumed = self._resumed
        text = "" if resumed is None else f", resumed from {resumed._address}, step {resumed.step}"
        return f"<lmcstore.Run {self._place}{text}>"
