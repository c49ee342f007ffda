# SPDX-License-Identifier: BSD-3-Clause
"""`ToRun`: what strategies of the Trainer and of Fabric share that save sharded models to the folder of a run."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.fsdp import FullyShardedDataParallel

from .._text.arguments import a_kind, free_tag
from ..dcp import StoreReader, StoreWriter
from ..errors import InvalidError, NotFoundError, UnsupportedError
from ..opening import open as open_store
from ..replicated import _raise, _told, of_all
from . import stub as stubs
from .pickled import Pickled, unpickled
from .plugin import _local, _metrics_of, _options, _read, _step_of, open_of, release

T = TypeVar("T")


class Found(NamedTuple):
    """The snapshot of a stub."""

    run: str
    shelf: str
    number: int
    parts: list[str]
    """Its parts, without the rest."""
    rest: Any
    """What ``torch.load`` made of all other objects."""


class ToRun:
    """Mixed into strategies. All ranks call its methods together; an error of rank 0 is raised on all."""

    broadcast: Callable[..., Any]
    is_global_zero: bool
    _run: str
    _shelf: str

    def _keep_in(self, run: str | os.PathLike[str], shelf: str) -> None:
        self._run, self._shelf = os.path.abspath(run), shelf

    def _together(self, work: Callable[[], T]) -> T:
        result, failure = None, None
        if self.is_global_zero:
            try:
                result = work()
            except Exception as error:
                failure = error
        result, told = self.broadcast((result, _told(failure)))
        if failure is not None:
            raise failure
        _raise([told])
        made: T = result
        return made

    # Saving

    def _save(
        self, parts: dict[str, Any], rest: Callable[[], Mapping[str, Any]], name: str, filepath: Any, given: Any
    ) -> None:
        """Save a snapshot, with the rest as a pickle of this name, and write its stub; both are durable afterwards."""
        path = _local(self.broadcast(filepath))
        tag = self._together(lambda: self._free_tag(path))
        state, writers = {**parts}, []

        def prepare() -> None:
            options, others = _options(given), {**rest()}
            if options.get("meta") is not None:
                raise UnsupportedError("snapshots of a run of many ranks have no meta")
            stream = io.BytesIO()
            torch.save(others, stream)
            state[name] = stream.getvalue()
            step, tags = options.get("step", _step_of(others)), (tag, *options.get("tags", ()))
            metrics = {**_metrics_of(others, filepath), **options.get("metrics", {})}
            writers.append(StoreWriter(self._run, self._shelf, step, tags, metrics))

        of_all(torch.distributed, prepare)
        dcp_save(state, storage_writer=writers[0])
        self._together(lambda: self._write_stub(path, tag))

    def _write_stub(self, path: str, tag: str) -> None:
        with open_store(self._run, "r") as store:
            old = None if os.path.islink(path) else stubs.read_if_stub(path)
            stubs.write(stubs.stub_of(store[self._shelf][tag], path, tag), path)
        self._release(old)

    def _free_tag(self, path: str) -> str:
        try:
            with open_store(self._run, "r") as store:
                return free_tag(store[self._shelf], path)
        except NotFoundError:  # no run yet
            return free_tag((), path)

    def _release(self, old: stubs.Stub | None) -> None:
        if old is None:
            return
        with open_store(self._run, "r") as store:
            if old.is_of(store):
                try:
                    release(old.of(store, ""), old.tag, False)
                except NotFoundError:
                    return

    # Loading

    def _find(self, path: str, name: str, weights_only: bool | None) -> Found | None:
        """Return the snapshot of a stub, whose rest has this name; None: the path is of no stub.

        FileNotFoundError: there is no such file, on all ranks.
        """

        def look() -> tuple[str, str, int, list[str], bytes] | str | None:
            try:
                stub = _read(path)
            except FileNotFoundError as error:
                return str(error)
            if stub is None:
                return None
            with open_of(stub, path, self._run) as store:
                snapshot = stub.of(store, path)
                if name not in snapshot:
                    raise InvalidError(
                        f"{path} names {snapshot._address}, which {a_kind(self)} has not saved: load it "
                        "as it was saved, or by lmcstore.lightning.load"
                    )
                parts = [part for part in snapshot if part != name]
                return store.path, stub.shelf, stub.snapshot, parts, snapshot.state_dict(name)

        found = self._together(look)
        if isinstance(found, str):
            raise FileNotFoundError(found)
        if found is None:
            return None
        return Found(*found[:4], unpickled(Pickled("dict", found[4]), weights_only, path, name))


def is_sharded(module: Any) -> bool:
    """Whether an object is a module of which this rank has shards."""
    return isinstance(module, torch.nn.Module) and (
        any(isinstance(one, FullyShardedDataParallel) for one in module.modules())
        or any(hasattr(parameter, "full_tensor") for parameter in module.parameters())
    )


def load_model(model: Any, part: str, strict: bool, found: Found) -> None:
    """Load a part of a snapshot into a module, sharded or not."""
    state = {part: get_model_state_dict(model)}
    _load(state, found, not strict)
    set_model_state_dict(model, state[part], options=StateDictOptions(strict=strict))


def load_optimizer(model: Any, optimizer: Any, part: str, found: Found) -> None:
    """Load a part of a snapshot into an optimizer of a model."""
    state = {part: get_optimizer_state_dict(model, optimizer)}
    _load(state, found)
    set_optimizer_state_dict(model, optimizer, state[part])


def _load(state: dict[str, Any], found: Found, partially: bool = False) -> None:
    # Flattening would drop the tensors of which this rank has no shard; their absence marks states of torch 2.3.
    planner = DefaultLoadPlanner(flatten_sharded_tensors=False, allow_partial_load=partially)
    dcp_load(state, storage_reader=StoreReader(found.run, found.shelf, address=found.number), planner=planner)
