# SPDX-License-Identifier: BSD-3-Clause
"""Strategies of Fabric for sharded models: each rank saves its shards into the folder of a run.

::

    fabric = Fabric(strategy=lmcstore.lightning.fabric.StoreFSDPStrategy("run"))
    fabric.save("a.ckpt", {"model": model, "optimizer": optimizer, "step": 3})
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from .._text.arguments import a_kind
from ..errors import InvalidError, NotFoundError, UnsupportedError
from .plugin import FABRIC_REST, _fabrics
from .sharded import Found, ToRun, is_sharded, load_model, load_optimizer


def _strategies() -> Any:
    return importlib.import_module(f"{_fabrics()[0]}.strategies")


class _FabricToRun(ToRun):
    def save_checkpoint(
        self, path: Any, state: dict[str, Any], storage_options: Any = None, filter: Any = None
    ) -> None:
        """Save a state as a snapshot of the run, and write its stub; both are durable afterwards.

        Models and optimizers are parts of the snapshot. Everything else is stored as one pickle.
        """
        if filter is not None:
            raise UnsupportedError("sharded models are saved whole: leave filter out")
        model = _model_of(state)
        parts: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, value in state.items():
            if isinstance(value, torch.nn.Module):
                parts[name] = get_model_state_dict(value)
            elif isinstance(value, torch.optim.Optimizer):
                parts[name] = get_optimizer_state_dict(model, value)
            else:
                rest[name] = value
        if FABRIC_REST in parts:
            raise InvalidError(f"a model or an optimizer can't be named {FABRIC_REST!r}")

        def others() -> dict[str, Any]:
            return {name: value.state_dict() if _has_state(value) else value for name, value in rest.items()}

        self._save(parts, others, FABRIC_REST, path, storage_options)

    def load_checkpoint(
        self, path: Any, state: Any = None, strict: bool = True, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load the checkpoint of a stub, or of Lightning's own sharded checkpoints, into the objects of a state.

        Returns what the state does not name. NotFoundError: the run, or with `strict` something that the state names,
        is not there.
        """
        path = os.fspath(self.broadcast(path))
        found = self._find(path, FABRIC_REST, weights_only)
        if found is None:
            return super().load_checkpoint(path, state, strict, weights_only)  # type: ignore[misc,no-any-return]
        if not isinstance(state, dict):
            raise UnsupportedError(f"{path} is no file of weights alone: load it by load(path, {{'model': model}})")
        _load(state, strict, found, path)
        return {name: value for name, value in found.rest.items() if name not in state}


def _load(state: dict[str, Any], strict: bool, found: Found, path: str) -> None:
    model = _model_of(state)
    lacking = [name for name in state if name not in found.parts and name not in found.rest]
    if lacking and strict:
        raise NotFoundError(f"{path} has no {', '.join(map(repr, lacking))}; with strict=False they stay as they are")
    for name, value in state.items():
        if name in lacking:
            continue
        is_model, is_optimizer = isinstance(value, torch.nn.Module), isinstance(value, torch.optim.Optimizer)
        if (is_model or is_optimizer) != (name in found.parts):
            raise InvalidError(f"{path}: {name!r} is no state of {a_kind(value)}")
        if is_model:
            load_model(value, name, strict, found)
        elif is_optimizer:
            load_optimizer(model, value, name, found)
        elif _has_state(value):
            value.load_state_dict(found.rest[name])
        else:
            state[name] = found.rest[name]


def _model_of(state: dict[str, Any]) -> Any:
    models = [value for value in state.values() if is_sharded(value)]
    if len(models) != 1:
        raise InvalidError(
            f"the state has {len(models)} sharded models: give one, as Fabric.setup returned it, with its optimizers"
        )
    return models[0]


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


class StoreModelParallelStrategy(_FabricToRun, _strategies().ModelParallelStrategy):  # type: ignore[misc]
    """Fabric's ModelParallelStrategy (FSDP2, tensor parallelism), saving to the folder of a run.

    The parameters are those of `lmcstore.lightning.StoreModelParallelStrategy`.
    """

    def __init__(self, run: str | os.PathLike[str], *arguments: Any, shelf: str = "run", **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not self._save_distributed_checkpoint:
            raise InvalidError("with save_distributed_checkpoint=False, use ModelParallelStrategy of Fabric")
        self._keep_in(run, shelf)


class StoreFSDPStrategy(_FabricToRun, _strategies().FSDPStrategy):  # type: ignore[misc]
    """Fabric's FSDPStrategy (FSDP1), saving to the folder of a run.

    The parameters are those of `lmcstore.lightning.StoreFSDPStrategy`; ``state_dict_type`` is "sharded".
    """

    def __init__(self, run: str | os.PathLike[str], *arguments: Any, shelf: str = "run", **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self._state_dict_type != "sharded":
            raise InvalidError(f"with state_dict_type={self._state_dict_type!r}, use FSDPStrategy of Fabric")
        self._keep_in(run, shelf)
