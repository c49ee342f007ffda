# SPDX-License-Identifier: BSD-3-Clause
"""Strategies of Lightning's Trainer for sharded models: each rank saves its shards into the folder of a run."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from ..dcp import StoreWriter
from ..errors import InvalidError, UnsupportedError
from . import stub as stubs
from .plugin import REST, _torch_io
from .sharded import ToRun, load_model, load_optimizer

_TRAINERS = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def _strategies() -> Any:
    """Return the strategies of the Trainer that is in use, or else of one that is installed."""
    names = [name for name, module in _TRAINERS.items() if module in sys.modules]
    names = names or [name for name in _TRAINERS if importlib.util.find_spec(name) is not None]
    if not names:
        raise UnsupportedError("the strategies need the package lightning or pytorch-lightning")
    return importlib.import_module(f"{_TRAINERS[names[0]]}.strategies")


class _TrainerToRun(ToRun):
    model: Any
    optimizers: Any
    lightning_module: Any

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save a checkpoint as a snapshot of the run, and write its stub; both are durable afterwards."""
        rest = dict(checkpoint)
        parts: dict[str, Any] = {"state_dict": rest.pop("state_dict")}
        parts |= {f"optimizer_{index}": one for index, one in enumerate(rest.pop("optimizer_states", []))}
        self._save(parts, lambda: rest, REST, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load the checkpoint of a stub, or of Lightning's own sharded checkpoints.

        NotFoundError: the run is neither that of this strategy, nor beside the stub, nor where it was.
        """
        path = os.fspath(self.broadcast(checkpoint_path))
        found = self._find(path, REST, weights_only)
        if found is None:
            loaded: dict[str, Any] = super().load_checkpoint(path, weights_only=weights_only)  # type: ignore[misc]
            return loaded
        load_model(self.model, "state_dict", self.lightning_module.strict_loading, found)
        count = sum(part.startswith("optimizer_") for part in found.parts)
        if self.lightning_module.trainer.state.fn == "fit" and count:
            if count != len(self.optimizers):
                raise InvalidError(f"the checkpoint has {count} optimizers, the module has {len(self.optimizers)}")
            for index, optimizer in enumerate(self.optimizers):
                load_optimizer(self.model, optimizer, f"optimizer_{index}", found)
        rest: dict[str, Any] = found.rest
        return rest

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
        super().teardown()  # type: ignore[misc]
        StoreWriter(self._run).close()


class StoreModelParallelStrategy(_TrainerToRun, _strategies().ModelParallelStrategy):  # type: ignore[misc]
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
        self._keep_in(run, shelf)


class StoreFSDPStrategy(_TrainerToRun, _strategies().FSDPStrategy):  # type: ignore[misc]
    """Lightning's FSDPStrategy (FSDP1), saving to the folder of a run.

    Parameters
    ----------
    run, shelf
        As for `StoreModelParallelStrategy`.
    *arguments, **options
        Those of Lightning's strategy. ``state_dict_type`` is "sharded".
    """

    def __init__(self, run: str | os.PathLike[str], *arguments: Any, shelf: str = "run", **options: Any) -> None:
        super().__init__(*arguments, **{"state_dict_type": "sharded", **options})
        if self._state_dict_type != "sharded":
            raise InvalidError(f"with state_dict_type={self._state_dict_type!r}, use FSDPStrategy of Lightning")
        self._keep_in(run, shelf)
