# SPDX-License-Identifier: BSD-3-Clause
"""Targets with DTensors: of each, a rank reads and loads its own box only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .._arrays.packages import loaded
from .._state.keys import uncompiled
from .._state.scalars import MAX_DEPTH
from .._state.skeleton import join, natural_name
from .._state.targets import States
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


class ShardedObject:
    """Loads boxes into another object whose state has DTensors."""

    def __init__(self, target: Any, path: str) -> None:
        self._target = target
        self._path = path

    def pieces(self, record: Record) -> Iterator[tuple[str, Piece]]:
        """Yield the names of the tensors of which boxes are read."""
        for path, value in _leaves(self._target.state_dict(), self._path):
            if is_sharded(value):
                name = natural_name(path)
                _check(record, name, value)
                yield name, _piece_of(value)

    def state_dict(self) -> Any:
        """Return the object's state."""
        return self._target.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Load a state with boxes in place of DTensors."""
        self._target.load_state_dict(_with_boxes(state, self._target.state_dict()))


class Boxes:
    """Finds DTensors among targets, also inside dicts, lists and tuples."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._torch: Any = loaded("torch")
        self.pieces: dict[str, Piece] = {}
        """The boxes that are read, by the names of their tensors."""
        self.instead: dict[int, Any] = {}
        """What the boxes are loaded into in place of a target, by its id."""

    def add(self, target: Any, path: str = "", depth: int = 0) -> None:
        """Add a target, and those inside it."""
        if self._torch is None or depth > MAX_DEPTH:
            return
        if isinstance(target, self._torch.nn.Module):
            if any(map(is_sharded, (*target.parameters(), *target.buffers()))):
                self._add_object(target, ShardedModule(States().inside(target), path))
        elif isinstance(target, self._torch.optim.Optimizer):
            if any(is_sharded(one) for group in target.param_groups for one in group["params"]):
                self._add_object(target, ShardedOptimizer(target, path))
        elif is_sharded(target):
            name = natural_name(path)
            _check(self._record, name, target)
            self.pieces[name] = _piece_of(target)
            self.instead[id(target)] = target._local_tensor
        elif hasattr(target, "state_dict"):
            if any(is_sharded(value) for _, value in _leaves(target.state_dict(), path)):
                self._add_object(target, ShardedObject(target, path))
        else:
            for key, child in _children(target):
                self.add(child, join(path, key), depth + 1)

    def _add_object(self, target: Any, made: ShardedModule | ShardedOptimizer | ShardedObject) -> None:
        self.pieces.update(made.pieces(self._record))
        self.instead[id(target)] = made


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the keys and values of a dict, list or tuple; of others none."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple):
        return zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    return ()


def _leaves(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the paths and values in a state that are no dict, list or tuple."""
    if depth > MAX_DEPTH or not isinstance(value, dict | list | tuple):
        yield path, value
        return
    for key, child in _children(value):
        yield from _leaves(child, join(path, key), depth + 1)


def _with_boxes(state: Any, own: Any) -> Any:
    """Return a state with DTensors in place of boxes where an object's own state has them."""
    if is_sharded(own):
        return state if is_sharded(state) else _sharded(state, own)
    if isinstance(state, dict) and isinstance(own, dict):
        for key, value in state.items():
            state[key] = _with_boxes(value, own.get(key))
    elif type(state) in (list, tuple) and isinstance(own, list | tuple) and len(state) == len(own):
        return type(state)(map(_with_boxes, state, own))
    return state


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
