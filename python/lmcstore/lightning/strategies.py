# SPDX-License-Identifier: BSD-3-Clause
"""A strategy of Lightning's Trainer for sharded models: each rank saves its shards into the folder of a run."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
from typing import Any

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

from ..dcp import StoreReader, StoreWriter
from ..errors import InvalidError, NotFoundError, UnsupportedError
from ..opening import open as open_store
from . import stub as stubs
from .pickled import Pickled, unpickled
from .plugin import REST, _local, _metrics_of, _options, _read, _step_of, _torch_io, free_tag, open_of, release

_TRAINERS = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def _strategies() -> Any:
    """Return the strategies of the Trainer that is in use, or else of one that is installed."""
    names = [name for name, module in _TRAINERS.items() if module in sys.modules]
    names = names or [name for name in _TRAINERS if importlib.util.find_spec(name) is not None]
    if not names:
        raise UnsupportedError("the strategies need the package lightning or pytorch-lightning")
    return importlib.import_module(f"{_TRAINERS[names[0]]}.strategies")


class StoreModelParallelStrategy(_strategies().ModelParallelStrategy):  # type: ignore[misc]
    """Lightning's ModelParallelStrategy (FSDP2, tensor parallelism), saving to the folder of a run.

    Parameters
    ----------
    run
        The folder, on one machine. The first save creates it.
    shelf
        The name of the shelf.
    *arguments, **options
        Those of Lightning's strategy.
    """

    def __init__(self, run: str | os.PathLike[str], *arguments: Any, shelf: str = "run", **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not self._save_distributed_checkpoint:
            raise InvalidError("with save_distributed_checkpoint=False, use ModelParallelStrategy of Lightning")
        self._run, self._shelf = os.path.abspath(run), shelf

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save a checkpoint as a snapshot of the run, and write its stub; both are durable afterwards."""
        path, options = _local(self.broadcast(filepath)), _options(storage_options)
        if options.get("meta") is not None:
            raise UnsupportedError("snapshots of a run of many ranks have no meta")
        rest = dict(checkpoint)
        state: dict[str, Any] = {"state_dict": rest.pop("state_dict")}
        state |= {f"optimizer_{index}": one for index, one in enumerate(rest.pop("optimizer_states", []))}
        stream = io.BytesIO()
        torch.save(rest, stream)
        tag = self.broadcast(self._free_tag(path) if self.is_global_zero else None)
        writer = StoreWriter(
            self._run,
            self._shelf,
            options.get("step", _step_of(checkpoint)),
            (tag, *options.get("tags", ())),
            {**_metrics_of(checkpoint, filepath), **options.get("metrics", {})},
        )
        dcp_save({**state, REST: stream.getvalue()}, storage_writer=writer)
        if self.is_global_zero:
            with open_store(self._run, "r") as store:
                old = None if os.path.islink(path) else stubs.read_if_stub(path)
                stubs.write(stubs.stub_of(store[self._shelf][tag], path, tag), path)
            self._release(old)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load the checkpoint of a stub, or of Lightning's own sharded checkpoints.

        NotFoundError: the run is neither that of this strategy, nor beside the stub, nor where it was.
        """
        path = os.fspath(self.broadcast(checkpoint_path))
        stub = _read(path)
        if stub is None:
            loaded: dict[str, Any] = super().load_checkpoint(path, weights_only=weights_only)
            return loaded
        with open_of(stub, path, self._run) as store:
            snapshot = stub.of(store, path)
            if REST not in snapshot:
                raise InvalidError(f"{path} names {snapshot._address}, which is no checkpoint of a sharded model")
            found = store.path, stub.shelf, stub.snapshot
            data = snapshot.state_dict(REST)
            optimizers = [name for name in snapshot if name.startswith("optimizer_")]
        rest: dict[str, Any] = unpickled(Pickled("dict", data), weights_only, path, REST)
        self._load_model(*found)
        if self.lightning_module.trainer.state.fn == "fit" and optimizers:
            self._load_optimizers(len(optimizers), *found)
        return rest

    def _load_model(self, run: str, shelf: str, number: int) -> None:
        state = {"state_dict": get_model_state_dict(self.model)}
        strict = self.lightning_module.strict_loading
        planner = DefaultLoadPlanner(allow_partial_load=not strict)
        dcp_load(state, storage_reader=StoreReader(run, shelf, address=number), planner=planner)
        set_model_state_dict(self.model, state["state_dict"], options=StateDictOptions(strict=strict))

    def _load_optimizers(self, count: int, run: str, shelf: str, number: int) -> None:
        if count != len(self.optimizers):
            raise InvalidError(f"the checkpoint has {count} optimizers, the module has {len(self.optimizers)}")
        for index, optimizer in enumerate(self.optimizers):
            state: dict[str, Any] = {f"optimizer_{index}": get_optimizer_state_dict(self.model, optimizer)}
            dcp_load(state, storage_reader=StoreReader(run, shelf, address=number))
            set_optimizer_state_dict(self.model, optimizer, state[f"optimizer_{index}"])

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove a stub and the tag of its snapshot, which stays in the run; other files as Lightning does it."""
        path = os.fspath(filepath)
        if not self.is_global_zero:
            return
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        old = None if os.path.islink(path) or is_folder else stubs.read_if_stub(path)
        if old is None:
            _torch_io().remove_checkpoint(path)
            return
        os.remove(path)
        self._release(old)

    def teardown(self) -> None:
        """Close the pools of the run."""
        super().teardown()
        StoreWriter(self._run).close()

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
