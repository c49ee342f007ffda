# SPDX-License-Identifier: BSD-3-Clause
"""Targets with DTensors: of each, a rank reads and loads its own box only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .._arrays.packages import loaded
from .._state.keys import uncompiled
from .._state.skeleton import join, natural_name
from ..errors import InvalidError
from .joined import Piece
from .parts import box_of, is_sharded
from .record import Record


class ShardedModule:
    """Loads boxes into a module with DTensors."""

    def __init__(self, module: Any, path: str) -> None:
        self._module = module
        self._path = path

    def pieces(self, record: Record) -> Iterator[tuple[str, Piece]]:
        """Yield the names of the tensors of which boxes are read."""
        for key, value in uncompiled(self._module.state_dict()).items():
            name = natural_name(join(self._path, key))
            if is_sharded(value):
                _check(record, name, value)
                yield name, _piece_of(value)

    def state_dict(self) -> Any:
        """Return the module's state."""
        return self._module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state with boxes in place of DTensors."""
        own = self._module.state_dict()
        stored = dict(zip(uncompiled(own), own, strict=True))
        made = {stored.get(key, key): value for key, value in state.items()}
        for key, value in own.items():
            if is_sharded(value) and key in made and not is_sharded(made[key]):
                made[key] = _sharded(made[key], value)
        self._module.load_state_dict(made)


class ShardedOptimizer:
    """Loads boxes into an optimizer of DTensors."""

    def __init__(self, optimizer: Any, path: str) -> None:
        self._optimizer = optimizer
        self._path = path

    def pieces(self, record: Record) -> Iterator[tuple[str, Piece]]:
        """Yield the names of the tensors of which boxes are read: those of the parameters' shapes."""
        parameters = {f"{self._path}.state.{number}.": one for number, one in enumerate(self._parameters())}
        for name in record.tensors:
            prefix = name[: name.rfind(".") + 1]
            parameter = parameters.get(prefix)
            if parameter is None or not is_sharded(parameter):
                continue
            if parameter.ndim and record.tensors[name].shape == tuple(parameter.shape):
                yield name, _piece_of(parameter)

    def state_dict(self) -> Any:
        """Return the optimizer's state."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state with boxes in place of DTensors."""
        parameters = list(self._parameters())
        groups = state["param_groups"]
        if sum(len(group["params"]) for group in groups) != len(parameters) or len(groups) != len(
            self._optimizer.param_groups
        ):
            raise InvalidError(f"{self._path}: the snapshot's optimizer has other parameters or groups")
        for number, slots in state["state"].items():
            parameter = parameters[number]
            if is_sharded(parameter) and isinstance(slots, dict):
                sizes = box_of(parameter)[0]
                for key, value in slots.items():
                    if hasattr(value, "shape") and parameter.ndim and tuple(value.shape) == sizes:
                        slots[key] = _sharded(value, parameter)
        self._optimizer.load_state_dict(state)

    def _parameters(self) -> Iterator[Any]:
        return (one for group in self._optimizer.param_groups for one in group["params"])


Sharded = ShardedModule | ShardedOptimizer


def sharded(target: Any, path: str) -> Sharded | None:
    """Return what loads boxes into a target; None: it has no DTensors."""
    torch: Any = loaded("torch")
    if isinstance(target, torch.nn.Module):
        is_one = any(map(is_sharded, (*target.parameters(), *target.buffers())))
        return ShardedModule(target, path) if is_one else None
    if isinstance(target, torch.optim.Optimizer):
        is_one = any(is_sharded(one) for group in target.param_groups for one in group["params"])
        return ShardedOptimizer(target, path) if is_one else None
    return None


def _piece_of(tensor: Any) -> Piece:
    sizes, offsets = box_of(tensor)
    return Piece(offsets, sizes)


def _check(record: Record, name: str, tensor: Any) -> None:
    stored = record.tensors.get(name)
    if stored is not None and stored.shape != tuple(tensor.shape):
        raise InvalidError(f"{name}: the snapshot's shape is {stored.shape}, the target's {tuple(tensor.shape)}")


def _sharded(local: Any, like: Any) -> Any:
    """Make a DTensor of this rank's box."""
    tensor: Any = loaded("torch.distributed.tensor")
    local = local.to(like.to_local().device)
    return tensor.DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
