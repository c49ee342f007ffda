# SPDX-License-Identifier: BSD-3-Clause
"""`Replicated`: snapshots of a state that all ranks have, as in data-parallel training. Rank 0 writes, all ranks load.

Methods that say so are collective: all ranks of torch.distributed's default group, if there is one, call them together,
and an error on one rank raises on all.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar

from . import errors
from ._arrays.packages import loaded
from ._state.later import may_replay
from ._state.targets import States, generators, generators_of
from ._text.arguments import a_kind, int64
from ._text.similar import listed
from .ending import Ending
from .errors import Error, InvalidError, NotFoundError, UnsupportedError
from .opening import open
from .shelf import Shelf
from .snapshot import Snapshot
from .store import Store

logger = logging.getLogger("lmcstore")

RNG = "rng"
"""The part with the generators of each rank."""

T = TypeVar("T")


class Replicated:
    """A shelf of a pool, which is open in a ``with`` block.

    The block is collective. At its end the last snapshot is durable, also by an exception or SIGTERM, on rank 0.

    Parameters
    ----------
    pool
        The path of a pool, which rank 0 creates if it is missing; or an open `Store`, which stays open.
    """

    def __init__(self, pool: str | os.PathLike[str] | Store, shelf: str, policy: str | None = None) -> None:
        for name, value, kind in (("shelf", shelf, str), ("policy", policy, str | None)):
            if not isinstance(value, kind):
                raise UnsupportedError(f"{name} can't be {a_kind(value)}: it is a str")
        self._given = pool if isinstance(pool, Store) else None
        self._path = pool.path if isinstance(pool, Store) else os.path.abspath(os.fspath(pool))
        self._name = shelf
        self._policy = policy
        self._store: Store | None = None
        self._last: Snapshot | None = None
        self._ending = Ending(self.wait, self.place)
        self._dist: Any = None
        self.rank, self.ranks = 0, 1
        self.is_open = False  # on all ranks, while in the block

    @property
    def place(self) -> str:
        """The shelf and the pool, for messages."""
        return f"{self._name!r} in {self._path}"

    @property
    def shelf(self) -> Shelf:
        """The shelf; on other ranks than 0 for reading."""
        if self._store is None:
            if self.rank == 0:
                raise InvalidError(f"{self.place} is not open")
            self._store = self._given or open(self._path, "r")
        return self._store[self._name]

    # The block

    def __enter__(self) -> Self:
        self._join()
        self.together(self._open)
        self.is_open = True
        self._ending.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.together(self.wait)
            else:
                self.wait()  # the other ranks are elsewhere
        except Error as failure:
            if error is None:
                raise
            logger.error("%s: a snapshot was not saved: %s", self.place, failure)
        finally:
            self.is_open = False
            self._ending.end()
            store, self._store = self._store, None
            if store is not None and store is not self._given:
                store.close()

    def _join(self) -> None:
        dist = loaded("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._dist = dist
            self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def _open(self) -> None:
        self._store = self._given or open(self._path)
        try:
            self._store._check_writable()
            if self._policy is not None:
                self.shelf.policy = self._policy
        except BaseException:
            if self._given is None:
                self._store.close()
            self._store = None
            raise

    # Ranks

    @property
    def _has_others(self) -> bool:
        return self._dist is not None and self._dist.is_initialized()

    def together(self, work: Callable[[], T]) -> T:
        """Call `work` on rank 0; return its result, which can be pickled, on all ranks. Collective."""
        if not self._has_others:
            return work()
        result, failure = None, None
        if self.rank == 0:
            try:
                result = work()
            except Exception as error:
                failure = error
        box: list[Any] = [result, _told(failure)]
        self._dist.broadcast_object_list(box, src=0)
        if failure is not None:
            raise failure
        _raise([box[1]])
        value: T = box[0]
        return value

    def each(self, work: Callable[[], T]) -> T:
        """Call `work` on each rank, and return what it returns there. Collective."""
        results: list[T] = []
        self.gathered(lambda: results.append(work()))
        return results[0]

    def gathered(self, work: Callable[[], T]) -> list[T]:
        """Call `work` on each rank; return the results, which can be pickled, of all ranks. Collective."""
        return of_all(self._dist, work) if self._has_others else [work()]

    # Snapshots

    def save(
        self,
        state: Callable[[], dict[str, Any]],
        step: int | None,
        *,
        metrics: Mapping[str, float] | None = None,
        tags: Iterable[str] = (),
        meta: Mapping[str, Any] | None = None,
        optimizers: Iterable[Any] = (),
        lazy: bool | None = None,
    ) -> int:
        """Take a snapshot, and return its number. Collective.

        Parameters
        ----------
        state
            Returns the state on rank 0, without the generators, which are added.
        lazy
            True: return before the tensors of `optimizers` are copied, as with ``lazy`` of `Shelf.snapshot`. None: the
            same for optimizers with parameters on devices and without ``capturable=True``, since a CUDA graph may
            replay the steps of others without hooks. False: return when the snapshot is durable.
        """
        later = [one for one in optimizers if lazy or (lazy is None and _is_on_device(one) and not may_replay(one))]
        drawn = self.gathered(lambda: States().of(generators()))

        def take() -> int:
            self._last = self.shelf.snapshot(
                {**state(), RNG: drawn},
                step=None if step is None else int64(step, "step"),
                metrics=metrics,
                tags=tags,
                meta=meta,
                wait=lazy is False,
                lazy=later or None,
            )
            return self._last.number

        return self.together(take)

    def wait(self) -> None:
        """Wait until the last snapshot is durable; raises its failure, once. Not collective: others have none."""
        try:
            if self._last is not None:
                self._last.wait()
        except Error:
            self._last = None
            raise

    def find(self, which: int | str) -> int | None:
        """Return the number of a snapshot; None: it is "latest" of an empty shelf. Collective."""

        def look() -> int | None:
            self.wait()
            found = self.shelf.latest if which == "latest" else self.shelf[which]
            return None if found is None else found.number

        return self.together(look)

    def load(self, number: int, work: Callable[[Snapshot], T]) -> T:
        """Call `work` with a snapshot on each rank. Collective."""
        return self.each(lambda: work(self.shelf[number]))

    def load_generators(self, found: Snapshot) -> None:
        """Load this rank's generators; warns if other ranks, or other devices, have saved them. Not collective."""
        stored = found.get((RNG,))
        if not isinstance(stored, list) or len(stored) != self.ranks:
            count = len(stored) if isinstance(stored, list) else 0
            logger.warning(
                "%s: random generators of %d ranks are not loaded by %d: later random numbers are others",
                found._address,
                count,
                self.ranks,
            )
            return
        there, absent = generators_of(stored[self.rank])
        if absent:
            logger.warning("%s: there are no generators %s here to restore", found._address, listed(absent))
        found.load_into({RNG: [there if rank == self.rank else None for rank in range(self.ranks)]})

    def prune(self, count: int, kept: int | None) -> None:
        """Remove all but the newest `count` snapshots and those with tags; `kept` counts. Not collective: on rank 0."""
        if kept is not None and kept not in [one.number for one in islice(reversed(self.shelf), count)]:
            count = max(1, count - 1)
        with contextlib.suppress(NotFoundError):  # there is no snapshot yet
            self.shelf.prune(f"keep=last:{count}")


def _is_on_device(optimizer: Any) -> bool:
    return any(not parameter.is_cpu for group in optimizer.param_groups for parameter in group["params"])


def _told(failure: Exception | None) -> tuple[str, str] | None:
    if failure is None:
        return None
    if isinstance(failure, Error):
        return type(failure).__name__, str(failure)
    return "Error", f"{type(failure).__qualname__}: {failure}"


def _raise(told: Iterable[tuple[str, str] | None]) -> None:
    """Raise what the first rank that has failed tells."""
    for rank, failure in enumerate(told):
        if failure is not None:
            kind, text = failure
            raise getattr(errors, kind, Error)(f"rank {rank}: {text}")


def of_all(dist: Any, work: Callable[[], T]) -> list[T]:
    """Call `work` on each rank of torch.distributed; return the results of all, or raise on all if one raises."""
    data, failure = b"", None
    try:
        data = pickle.dumps(work())
    except Exception as error:
        failure = error
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (data, _told(failure)))
    if failure is not None:
        raise failure
    _raise(told for _, told in found)
    return [pickle.loads(one) for one, _ in found]


def check_whole(model: Any) -> None:
    """Refuse a model of which each rank has a part only. UnsupportedError: it is one."""
    fsdp = loaded("torch.distributed.fsdp")
    names = ("FullyShardedDataParallel", "FSDPModule")
    kinds = tuple(getattr(fsdp, name) for name in names if hasattr(fsdp, name))
    if any(isinstance(module, kinds) for module in model.modules()):
        raise UnsupportedError(
            f"{type(model).__qualname__} is sharded by FSDP, so that no rank has all of it: save it by lmcstore.dcp"
        )
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        raise UnsupportedError(f"{type(model).__qualname__} is sharded by DeepSpeed, so that no rank has all of it")
