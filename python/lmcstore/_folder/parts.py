# SPDX-License-Identifier: BSD-3-Clause
"""`Division`: what each rank of a run stores of the state. It is the state itself, with `Elsewhere` for other tensors.

An object of the run is *common* to the ranks, or each rank has its own. Tensors of common objects are stored once:

- a DTensor as the boxes of its ranks; of equal boxes one is stored;
- other tensors, which are equal on all ranks, by one of these: shared out by bytes, a parameter with its moments;
- a buffer of DistributedDataParallel by the first rank, which sends it to the others before it is used; one of modules
  that send none (``broadcast_buffers=False``, and FSDP2) by each rank.

Ranks that see the same folder are a *machine*. What the ranks of other machines need, too, is stored on each machine.
All ranks divide alike, without messages: they have the same objects in the same order.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .._arrays.packages import loaded
from .._state.encode import Encoded
from .._state.scalars import MAX_DEPTH
from .._state.skeleton import join, natural_name
from .._state.targets import States
from ..errors import UnsupportedError

RANKS = "ranks"
"""The part of a run's state that has the objects of each rank."""


class Elsewhere(NamedTuple):
    """A tensor of the state that another rank stores."""

    name: str
    rank: int
    tie: int | None
    """Tensors with the same number are one."""


class Stored(NamedTuple):
    """A tensor that a rank stores, as it tells the coordinator."""

    name: str
    """Of the run's tensor."""
    dtype: int
    shape: tuple[int, ...]
    """Of the run's tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    stored: str
    """Its name in the rank's snapshot."""


class _Place(NamedTuple):
    """A box that this rank stores for all."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    is_first: bool
    """Whether no machine before this one stores it."""


def own_name(rank: int, name: str) -> str:
    """Return the name, in the run, of a tensor that one rank has for itself."""
    return f"{RANKS}.{rank}.{name}"


def is_sharded(value: Any) -> bool:
    """Whether a value is a DTensor."""
    tensor = loaded("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def is_of_torch(value: Any) -> bool:
    """Whether a value is a module or an optimizer."""
    torch: Any = loaded("torch")
    return torch is not None and isinstance(value, torch.nn.Module | torch.optim.Optimizer)


class Division:
    """Divides states among the ranks. `machines`: the ranks of each machine, the coordinator's first."""

    def __init__(self, rank: int, machines: list[list[int]]) -> None:
        self._rank = rank
        self._machine = next(ranks for ranks in machines if rank in ranks)
        self._machines = machines
        self._torch: Any = loaded("torch")
        self._units: dict[int, int] = {}
        self._counted = 0
        self._owners: dict[int, int] = {}
        self._buffers: dict[int, bool] = {}
        self._ties: dict[Any, int] = {}
        self._places: dict[str, _Place] = {}
        self._names: set[str] = set()

    def part(self, state: dict[str, Any], common: Iterable[str], objects: dict[str, Any]) -> dict[str, Any]:
        """Return this rank's part of a state; `common`: the names of the common objects."""
        names = list(common)
        if self._torch is None:
            return state
        states = States()
        self._units, self._ties, self._places, self._names = {}, {}, {}, set()
        self._buffers, self._counted = {}, 0
        for name in names:
            self._note_units(states.optimizers(objects[name]))
            self._note_buffers(objects[name])
        self._share_out([state[name] for name in names])
        return {name: self._divided(value, name, 0) if name in names else value for name, value in state.items()}

    def stored(self, encoded: Encoded, common: Iterable[str]) -> list[Stored]:
        """List the tensors of this rank's part."""
        names = tuple(f"{natural_name(join('', name))}." for name in common)
        made = []
        for stored, dtype, sizes in encoded.tensors():
            place = self._places.get(stored)
            is_known = place.is_first if place is not None else self._rank == 0 and f"{stored}.".startswith(names)
            name = stored if is_known else own_name(self._rank, stored)
            shape, offsets = (sizes, (0,) * len(sizes)) if place is None else (place.shape, place.offsets)
            made.append(Stored(name, dtype, tuple(shape), tuple(offsets), tuple(sizes), stored))
        return made

    def _note_units(self, optimizers: Iterator[Any]) -> None:
        """Let one rank store a parameter and the state of its optimizer, so that links lead from step to step."""
        parameters = ((one, each) for each in optimizers for group in each.param_groups for one in group["params"])
        for unit, (parameter, optimizer) in enumerate(parameters, self._counted):
            self._counted = unit + 1
            unit = self._note_unit(parameter, unit)
            for tensor in _tensors_in(optimizer.state.get(parameter), self._torch):
                self._note_unit(tensor, unit)

    def _note_unit(self, tensor: Any, unit: int) -> int:
        """Note the unit of a tensor, unless it is known, and return it. Ranks may have empty boxes, without address."""
        address = _address(tensor)
        return self._units.setdefault(address, unit) if address else unit

    def _unit(self, address: int) -> int:
        return self._units.get(address, -1 - address)

    def _note_buffers(self, target: Any) -> None:
        modules = list(_modules_in(target, self._torch))
        if any(is_sharded(one) for module in modules for one in module.parameters(False)):
            self._buffers |= {_address(buffer): False for module in modules for buffer in module.buffers(False)}
        for module in modules:
            synced = getattr(module, "broadcast_buffers", None)
            if synced is not None:
                self._buffers |= {_address(buffer): bool(synced) for buffer in module.buffers()}

    def _share_out(self, values: list[Any]) -> None:
        """Choose the rank of this machine for each unit, by bytes."""
        sizes: dict[int, dict[int, int]] = {}
        for tensor in (one for value in values for one in _tensors_in(value, self._torch)):
            if not is_sharded(tensor):
                address = _address(tensor)
                sizes.setdefault(self._unit(address), {})[address] = tensor.numel() * tensor.itemsize
        units = list(enumerate((unit, sum(parts.values())) for unit, parts in sizes.items()))
        loads = dict.fromkeys(self._machine, 0)
        self._owners = {}
        for _, (unit, size) in sorted(units, key=lambda one: (-one[1][1], one[0])):
            owner = min(loads, key=lambda rank: (loads[rank], rank))
            loads[owner] += size
            self._owners[unit] = owner

    def _divided(self, value: Any, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            return value
        if isinstance(value, self._torch.Tensor):
            return self._box(value, path) if is_sharded(value) else self._whole(value, path)
        if isinstance(value, dict):
            made = copy.copy(value)
            for key, child in value.items():
                made[key] = self._divided(child, join(path, key), depth + 1)
            return made
        kind = type(value)
        if kind in (list, tuple):
            return kind(self._divided(child, f"{path}.{index}", depth + 1) for index, child in enumerate(value))
        if isinstance(value, tuple) and hasattr(kind, "_make"):
            fields = zip(kind._fields, value, strict=True)
            return kind._make(self._divided(child, join(path, field), depth + 1) for field, child in fields)
        return value

    def _whole(self, tensor: Any, path: str) -> Any:
        """Keep a tensor that is equal on all ranks, or say which rank stores it."""
        name, address, shape = self._name(path), _address(tensor), tuple(tensor.shape)
        synced = self._buffers.get(address)
        if synced is False:
            return tensor
        owner = self._machine[0] if synced else self._owners[self._unit(address)]
        if owner != self._rank:
            tie = self._ties.setdefault((address, shape, tensor.dtype), len(self._ties)) if address else None
            return Elsewhere(name, owner, tie)
        self._places[name] = _Place(shape, (0,) * len(shape), self._machine is self._machines[0])
        return tensor

    def _box(self, tensor: Any, path: str) -> Any:
        """Keep this rank's box of a DTensor, or say which rank stores it."""
        name = self._name(path)
        with self._torch.no_grad():
            local = tensor.to_local()
        sizes, offsets = box_of(tensor)
        if tuple(local.shape) != tuple(sizes):
            raise UnsupportedError(f"{path}: the box of a DTensor with {tensor.placements} can't be stored")
        replicas = _replicas(tensor)
        here = [rank for rank in replicas if rank in self._machine]
        unit = self._units.get(_address(tensor), zlib.crc32(name.encode()))
        owner = here[unit % len(here)]
        if owner != self._rank or (0 in sizes and math.prod(tensor.shape) > 0):
            return Elsewhere(name, owner, None)
        first = next(ranks for ranks in self._machines if not set(ranks).isdisjoint(replicas))
        self._places[name] = _Place(tuple(tensor.shape), tuple(offsets), self._machine is first)
        return local

    def _name(self, path: str) -> str:
        name = natural_name(path)
        if name in self._names:
            raise UnsupportedError(f"{path}: two tensors of the run have this path; rename a key")
        self._names.add(name)
        return name


def box_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes and the offsets of this rank's box of a DTensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if any(placement.is_partial() for placement in tensor.placements):
        raise UnsupportedError("a DTensor has a partial placement: it has no boxes")
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(sizes), tuple(offsets)


def _replicas(tensor: Any) -> list[int]:
    """Return the ranks that have the same box as this one."""
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    index = tuple(
        slice(None) if placement.is_replicate() else place
        for placement, place in zip(tensor.placements, coordinate, strict=True)
    )
    return sorted(int(rank) for rank in mesh.mesh[index].flatten())


def _address(tensor: Any) -> int:
    """Return the address of a tensor's elements: of detached ones the same. 0: it has none."""
    if is_sharded(tensor):
        tensor = tensor._local_tensor
    try:
        return int(tensor.data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def _tensors_in(value: Any, torch: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth <= MAX_DEPTH:
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        for child in children:
            yield from _tensors_in(child, torch, depth + 1)


def _modules_in(target: Any, torch: Any) -> Iterator[Any]:
    if isinstance(target, torch.nn.Module):
        yield from target.modules()
    elif isinstance(target, dict | list | tuple):
        for child in target.values() if isinstance(target, dict) else target:
            yield from _modules_in(child, torch)


def common_objects(
    objects: dict[str, Any], state: dict[str, Any], replicated: Iterable[str], world_size: int
) -> list[str]:
    """Return the names of the objects that the ranks have together, in their order.

    These are the ones that are named, DistributedDataParallel modules, objects with DTensors, optimizers of their
    parameters only, and schedulers of such optimizers. A process alone counts all its modules.
    """
    torch: Any = loaded("torch")
    named = set(replicated)
    if torch is None:
        return [name for name in objects if name in named]
    addresses: set[int] = set()
    for name, target in objects.items():
        modules = list(_modules_in(target, torch))
        is_parallel = any(isinstance(one, torch.nn.parallel.DistributedDataParallel) for one in modules)
        if name in named or is_parallel or (modules and world_size == 1):
            named.add(name)
            addresses |= {_address(one) for module in modules for one in module.parameters(False)}
        if any(is_sharded(one) for one in _tensors_in(state[name], torch)):
            named.add(name)
    optimizers = set()
    for name, target in objects.items():
        for optimizer in States().optimizers(target):
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            if world_size == 1 or all(is_sharded(one) or _address(one) in addresses for one in parameters):
                optimizers.add(id(optimizer))
                named.add(name)
    for name, target in objects.items():
        if id(getattr(target, "optimizer", None)) in optimizers and not isinstance(target, torch.nn.Module):
            named.add(name)
    return [name for name in state if name in named]
