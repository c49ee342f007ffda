# SPDX-License-Identifier: BSD-3-Clause
"""A loop with Accelerate saves its state to a pool.

In a program::

    with lmcstore.accelerate.register(accelerator, "run.pool") as saved:
        done = saved.load()
        for epoch in range(done // len(loader), epochs):
            for batch in saved.batches(loader, epoch, skip=done - epoch * len(loader)):
                ...
                done += 1
                saved.save(done, metrics={"loss": loss.item()})

A snapshot has the parts ``models``, ``optimizers``, ``schedulers`` and ``objects`` (those of
``register_for_checkpointing``), which are lists, ``scaler`` with mixed precision in float16, ``accelerator``, and the
lists ``rng`` and ``loaders``, one item for each rank.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler

from ._state.targets import States, generators, generators_of
from ._text.arguments import free_tag
from ._text.similar import listed
from .errors import Error, InvalidError, NotFoundError, UnsupportedError
from .replicated import Replicated, check_whole
from .snapshot import Snapshot
from .store import Store

logger = logging.getLogger("lmcstore")

_LISTS = ("_models", "_optimizers", "_schedulers", "_custom_objects", "_dataloaders")
"""Attributes of Accelerator, which its documentation leaves out."""

_FILE = "lmcstore.json"
"""Names the snapshot in a folder of `Accelerator.save_state`."""


def register(
    accelerator: accelerate.Accelerator,
    pool: str | os.PathLike[str] | Store,
    shelf: str = "run",
    *,
    lazy: bool | None = None,
    policy: str | None = None,
) -> Registered:
    """Keep the state of an Accelerator in a pool: what ``prepare`` and ``register_for_checkpointing`` got.

    All ranks call it. `Registered.save` and `Registered.load` store everything, without files.

    `Accelerator.save_state` takes such a snapshot, too, durably, and leaves out the files of the models, which
    `Accelerator.load_state` then loads from the pool. The other files stay: Accelerate has no hook for these. The
    snapshot has a tag like the folder's name, which protects it from the policy until it is untagged.

    Parameters
    ----------
    pool
        The path of a pool, which is created if it is missing; or an open `Store` (on rank 0), which stays open.
    shelf
        The name of the shelf.
    lazy
        True: `Registered.save` returns before the tensors are copied that the optimizers change; their next step waits
        for the copy. None: so for models on a GPU; those on the CPU, where copies beside the training delay it more,
        and of optimizers with ``capturable=True``, are copied first. False: it returns when the snapshot is durable.
    policy
        Words of `Shelf.policy` to set.

    Raises
    ------
    UnsupportedError
        DeepSpeed, FSDP, Megatron-LM and TPUs; or the installed Accelerate lacks an attribute.
    """
    lacking = [name for name in _LISTS if not isinstance(getattr(accelerator, name, None), list)]
    if lacking:
        raise UnsupportedError(
            f"register reads {listed(lacking)}, which Accelerator of Accelerate {accelerate.__version__} lacks: use "
            "Accelerate 1.15, or lmcstore.Run"
        )
    kind = str(accelerator.distributed_type).rpartition(".")[2]
    if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"):
        raise UnsupportedError(f"register can't save with {kind}: no rank has the whole state, or a pool can't read it")
    return Registered(accelerator, Replicated(pool, shelf, policy), lazy)


class Registered:
    """The shelf of an Accelerator, as `register` returns it; open until `close`, or in a ``with`` block.

    At its end the last snapshot is durable, also by an exception or SIGTERM, as with `lmcstore.Run`. Methods are called
    by all ranks together; an error on one raises on all. Rank 0 writes the pool, and all ranks, on the same machine,
    read it.
    """

    def __init__(self, accelerator: accelerate.Accelerator, kept: Replicated, lazy: bool | None) -> None:
        self._accelerator = accelerator
        self._kept = kept
        self._lazy = lazy
        self._loader: Any = None  # that of the last `batches`
        self._began: dict[str, Any] | None = None  # its generators, when that began
        self._loaded: dict[str, Any] | None = None  # the same of a snapshot, until `batches`
        self._number: int | None = None
        self._is_closed = False
        self._warned = False
        kept.__enter__()
        self._hooks = (
            accelerator.register_save_state_pre_hook(self._save_hook),
            accelerator.register_load_state_pre_hook(self._load_hook),
        )

    def save(
        self,
        step: int | None,
        *,
        metrics: Mapping[str, float] | None = None,
        tags: Iterable[str] = (),
        meta: Mapping[str, Any] | None = None,
        wait: bool = False,
    ) -> int:
        """Take a snapshot of everything, and return its number.

        Until the next step of the optimizers, nothing else may change the parameters and the optimizers' states (see
        ``lazy`` of `Shelf.snapshot`). The snapshot is durable when `wait` has returned.

        Parameters
        ----------
        step
            How many steps are done; `load` returns it.
        wait
            Return when the snapshot is durable.
        metrics, tags, meta
            As for `Shelf.snapshot`. Those of rank 0 count.

        Raises
        ------
        UnsupportedError
            A part of a state can't be stored; the text begins with its path.
        Error
            As `Shelf.snapshot` raises it, also for an earlier snapshot that failed later.
        """
        if not self._accelerator.sync_gradients and not self._warned:
            logger.warning("a snapshot amid gradient accumulation lacks the gradients: save after an optimizer's step")
            self._warned = True
        states = States()
        loaders = self._kept.gathered(
            lambda: {
                "states": [loader.state_dict() for loader in self._stateful()],
                "loader": next((n for n, loader in enumerate(self._stateful()) if loader is self._loader), None),
                "generators": [generator.get_state() for generator in _generators_of(self._loader)],
                "workers": _has_workers(self._loader),
                "began": self._began,
            }
        )
        objects = self._objects()

        def state() -> dict[str, Any]:
            for model in objects["models"]:
                check_whole(model)
            parts: dict[str, Any] = {name: states.of(targets) for name, targets in objects.items()}
            return {**parts, "accelerator": {"step": self._accelerator.step}, "loaders": loaders}

        return self._kept.save(
            state,
            step,
            metrics=metrics,
            tags=tags,
            meta=meta,
            optimizers=states.optimizers(objects["optimizers"]),
            lazy=False if wait else self._lazy,
        )

    def load(self, which: int | str = "latest", *, required: bool = False) -> int:
        """Restore everything, and return how many steps are done: 0 if the shelf is empty.

        Random numbers go on as after the `save` only if the epoch goes on by `batches`.

        Parameters
        ----------
        which
            The snapshot, as for ``shelf[which]``: ``"best"``, ``"step:120"``.
        required
            Raise NotFoundError if the shelf is empty.

        Raises
        ------
        NotFoundError
            There is no such snapshot, or it lacks keys.
        InvalidError
            The snapshot has other objects, or no step; shapes, dtypes or groups differ.
        Error
            As `Snapshot.load_into` raises it. Nothing is changed then on this rank.
        """
        number = self._kept.find(which)
        if number is None:
            if required:
                raise NotFoundError(f"there is no snapshot to continue from in {self._kept.place}")
            logger.info("new run in %s", self._kept.place)
            return 0
        return self._kept.load(number, self._load)

    def batches(self, loader: Any, epoch: int, skip: int = 0) -> Iterator[Any]:
        """Iterate over a prepared loader of training data, from batch `skip` on if that is positive.

        After `load`, the order of the data and later random numbers are those of an uninterrupted run, if that used
        `batches`, too. Random changes of the data while it is read are drawn anew.

        Parameters
        ----------
        epoch
            For `set_epoch` of the loader.
        skip
            How many batches of the epoch are done. A StatefulDataLoader knows it.
        """
        loaded, self._loaded = self._loaded, None
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        is_stateful = getattr(loader, "use_stateful_dataloader", False)
        amid = loaded if skip > 0 else None
        if amid is not None and is_stateful and amid["loader"] is None:
            raise InvalidError("the snapshot lacks the position of the loader: it was not saved amid batches()")
        began = amid and amid["began"]
        if loaded is not None:
            if loaded.get("workers") and not is_stateful:
                _begin_workers(loader)
            _restore(loader, loaded["generators"] if began is None else began["loader"])
            if began is not None:
                _set_generators(began["rng"])
        self._loader = loader
        had_workers = _has_workers(loader) if began is None else began.get("workers", False)
        self._began = {
            "rng": States().of(generators()),
            "loader": [generator.get_state() for generator in _generators_of(loader)],
            "workers": had_workers,
        }
        if not is_stateful:
            if skip > 0:
                loader = accelerate.skip_first_batches(loader, skip)
                if had_workers:
                    _begin_workers(loader)
        else:  # {}: a new iterator, as `prepare` has made one already, which has drawn its seed
            loader.load_state_dict({} if amid is None else amid["states"][amid["loader"]])
        iterator = iter(loader)
        first = list(itertools.islice(iterator, 1))
        if amid is not None and self._number is not None:
            self._kept.load_generators(self._kept.shelf[self._number])
        yield from first
        yield from iterator

    def wait(self) -> None:
        """Wait until the last snapshot is durable; raises its failure, once."""
        self._kept.together(self._kept.wait)

    def close(self) -> None:
        """Wait for the last snapshot, close the pool, and remove the hooks."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for hook in self._hooks:
            hook.remove()
        self._kept.__exit__(kind, error, trace)

    # Inside

    def _objects(self) -> dict[str, Any]:
        accelerator: Any = self._accelerator
        objects = {
            "models": [States().inside(model) for model in accelerator._models],
            "optimizers": [_inside(optimizer) for optimizer in accelerator._optimizers],
            "schedulers": [_inside(scheduler) for scheduler in accelerator._schedulers],
            "objects": list(accelerator._custom_objects),
        }
        return objects if accelerator.scaler is None else {**objects, "scaler": accelerator.scaler}

    def _stateful(self) -> list[Any]:
        loaders: list[Any] = self._accelerator._dataloaders
        return [loader for loader in loaders if getattr(loader, "use_stateful_dataloader", False)]

    def _load(self, found: Snapshot) -> int:
        objects, step = self._objects(), found.step
        if step is None:
            raise InvalidError(f"{found._address} has no step to continue from: give save() a step")
        if "loaders" not in found or "accelerator" not in found:
            raise InvalidError(f"{found._address} was not taken by lmcstore.accelerate: load it with load_into")
        for name, targets in objects.items():
            stored = len(found[(name,)]) if (name,) in found else 0
            if isinstance(targets, list) and stored != len(targets):
                raise InvalidError(
                    f"{found._address} has {stored} {name}, and the accelerator {len(targets)}: prepare or register "
                    "the objects that were saved"
                )
        loaders = found.state_dict("loaders")
        mine = loaders[self._kept.rank] if len(loaders) == self._kept.ranks else None
        stateful = self._stateful()
        if mine is not None and len(mine["states"]) != len(stateful):
            raise InvalidError(
                f"{found._address} has the positions of {len(mine['states'])} loaders, and the accelerator has "
                f"{len(stateful)}: prepare the loaders that were saved"
            )
        found.load_into(objects)
        if mine is not None:
            for index, (loader, position) in enumerate(zip(stateful, mine["states"], strict=True)):
                if index != mine["loader"]:  # that of `batches`
                    loader.load_state_dict(position)
        self._accelerator.step = found.state_dict("accelerator")["step"]
        self._kept.load_generators(found)
        self._number, self._loaded = found.number, mine
        logger.info("resuming after step %d from %s in %s", step, found._address, self._kept.place)
        return step

    def _save_hook(self, models: list[Any], weights: list[Any], folder: str) -> None:
        def free() -> str:
            self._kept.wait()  # its tags are taken
            return free_tag(self._kept.shelf, os.path.abspath(folder))

        tag = self._kept.together(free)
        number = self.save(None, tags=(tag,), wait=True)
        weights.clear()
        self._kept.together(lambda: self._name(os.path.join(folder, _FILE), number, tag))

    def _name(self, path: str, number: int, tag: str) -> None:
        """Write which snapshot a folder has, and let go of the one that it had before."""
        shelf, had = self._kept.shelf, None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, Error):
            with open(path, encoding="utf-8") as file:
                old = json.load(file)
            is_here = (old["uuid"], old["shelf"]) == (self._uuid(), shelf.name)
            had = old["tag"] if is_here and old["tag"] in shelf[old["snapshot"]].tags else None
        named = {"pool": self._kept._path, "shelf": shelf.name, "snapshot": number, "tag": tag}
        _write(path, {**named, "uuid": self._uuid()})
        if had is not None:
            shelf.untag(had)

    def _load_hook(self, models: list[Any], folder: str) -> None:
        path = os.path.join(folder, _FILE)
        if not self._kept.each(lambda: os.path.isfile(path)):
            return  # a folder that was saved without the hook
        named = self._kept.each(lambda: self._named(path))

        def load(found: Snapshot) -> None:
            found.load_into({"models": [States().inside(model) for model in models]})

        self._kept.load(named, load)
        models.clear()

    def _named(self, path: str) -> int:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        try:
            named = json.loads(text)
            uuid, shelf, number = named["uuid"], named["shelf"], int(named["snapshot"])
        except (ValueError, KeyError, TypeError):
            raise InvalidError(f"{path} names no snapshot: it is damaged") from None
        if (uuid, shelf) != (self._uuid(), self._kept._name):
            raise InvalidError(f"{path} names a snapshot on shelf {shelf!r} of another pool, {named.get('pool')}")
        return number

    def _uuid(self) -> str:
        return self._kept.shelf.store._uuid.hex()


def _write(path: str, content: dict[str, Any]) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(f"{path}.new", path)


def _inside(target: Any) -> Any:
    """Return the optimizer or scheduler in the wrapper of Accelerate."""
    while isinstance(target, AcceleratedOptimizer | AcceleratedScheduler):
        target = target.optimizer if isinstance(target, AcceleratedOptimizer) else target.scheduler
    return target


def _generators_of(loader: Any) -> list[torch.Generator]:
    """Return the generators of a loader and of its samplers, each once."""
    found: dict[int, torch.Generator] = {}
    places = [loader]
    for place in places:
        for name in ("generator", "synchronized_generator"):
            generator = getattr(place, name, None)
            if isinstance(generator, torch.Generator):
                found[id(generator)] = generator
        inside = (getattr(place, name, None) for name in ("batch_sampler", "sampler"))
        places += [one for one in inside if one is not None and all(one is not other for other in places)]
    return list(found.values())


def _restore(loader: Any, states: list[torch.Tensor]) -> None:
    there = _generators_of(loader)
    if len(there) == len(states):
        for generator, state in zip(there, states, strict=True):
            generator.set_state(state)


def _base(loader: Any) -> Any:
    """Return the loader of torch in one of Accelerate."""
    return getattr(loader, "base_dataloader", loader)


def _has_workers(loader: Any) -> bool:
    """Whether a loader keeps workers from an earlier iteration: then the next one draws no seed for them."""
    return getattr(_base(loader), "_iterator", None) is not None


def _begin_workers(loader: Any) -> None:
    """Start the workers that a loader keeps (``persistent_workers``). No generator is changed."""
    base = _base(loader)
    if not getattr(base, "persistent_workers", False) or _has_workers(loader):
        return
    states = States().of(generators())
    own = [(generator, generator.get_state()) for generator in _generators_of(loader)]
    iter(base)
    _set_generators(states)
    for generator, state in own:
        generator.set_state(state)


def _set_generators(states: dict[str, Any]) -> None:
    there, _ = generators_of(states)
    for name, generator in there.items():
        if generator is not None:
            (generator.setstate if hasattr(generator, "setstate") else generator.set_state)(states[name])
