# SPDX-License-Identifier: BSD-3-Clause
"""Loading a state into existing objects: `Snapshot.load_into`, which lists the targets.

Planning walks the targets beside the state, checks everything, and records the actions; only a complete plan runs.
Targets get copies: none keeps memory of the snapshot's views. Plain values in a dict or list are replaced, in a tuple
only if that is in a dict or list.

A target whose loading runs code other than torch's may refuse its state at any time. Such targets are loaded first, and
get back their earlier ``state_dict`` if one of them raises.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from .._arrays import numpy as _numpy
from .._arrays.packages import loaded
from .._arrays.torch import Torch
from ..errors import InvalidError, NotFoundError, UnsupportedError

Action = Callable[[], None]

_OTHER_SHAPES = ("row_var", "col_var")
"""Adafactor's moments, whose shapes differ from the parameter's."""


class Copier:
    """Copies values, so that none refers to a view's memory; tied tensors stay tied."""

    def __init__(self) -> None:
        self._torch = loaded("torch")
        self._numpy = loaded("numpy")
        self._by_object: dict[int, tuple[Any, Any]] = {}  # each with its copy, so that no other object gets its id
        self._by_memory: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:
        """Copy tensors and arrays; containers, made for this read, are changed in place."""
        kind = type(value)
        if self._torch is not None and kind is self._torch.Tensor:
            return self._tensor(value)
        if self._numpy is not None and kind is self._numpy.ndarray:
            return value.copy()
        if isinstance(value, dict):
            for key, child in value.items():
                value[key] = self.copy(child)
        elif kind is list:
            value[:] = map(self.copy, value)
        elif kind is tuple:
            return tuple(map(self.copy, value))
        return value

    def _tensor(self, tensor: Any) -> Any:
        if id(tensor) not in self._by_object:
            address = tensor.data_ptr() if tensor.numel() > 0 else -len(self._by_object) - 1
            if address in self._by_memory:
                made = self._by_memory[address].detach()
            else:
                made = self._by_memory[address] = tensor.clone()
            self._by_object[id(tensor)] = tensor, made
        return self._by_object[id(tensor)][1]


class Plan:
    """The actions of `load_into`. Planning raises; running is not expected to."""

    def __init__(self, cast: bool = False) -> None:
        self._cast = cast
        self._unsure: list[tuple[Any, str, Action]] = []  # may refuse their state
        self._actions: list[Action] = []
        self._copies: Torch | None = None
        self._copier = Copier()  # one for all, so that tied tensors stay tied
        self._torch = loaded("torch")
        self._numpy = loaded("numpy")
        self._random = loaded("random")

    def run(self) -> None:
        """Run all actions; if a target refuses its state, restore it and those before it."""
        before = [(target, path, self._state_of(target)) for target, path, _ in self._unsure]
        begun = 0
        try:
            for _, _, action in self._unsure:
                begun += 1
                action()
        except BaseException as error:
            self._put_back(before[:begun], error)
            raise
        for action in self._actions:
            action()

    def _put_back(self, before: list[tuple[Any, str, Any]], error: BaseException) -> None:
        """Load the earlier states of targets; a failure is noted with the error."""
        self._cast = False
        base = None if self._torch is None else self._torch.optim.Optimizer
        for target, path, state in before:
            try:
                if state is not None:
                    target.load_state_dict(state)
                    if base is not None and isinstance(target, base):
                        self._undo_casts(target, state)
            except Exception as other:
                error.add_note(f"{path}: what it had before could not be put back: {other}")

    def _state_of(self, target: Any) -> Any:
        """Copy the state of a target that may refuse another; None: it has none."""
        try:
            return _kept(target.state_dict(), self._torch, self._numpy)
        except Exception:  # none, or none yet
            return None

    def add(self, target: Any, source: Any, path: str) -> None:
        """Plan the loading of the value `source` into one target; `path` is its place, for errors.

        InvalidError: shapes, dtypes, keys or groups don't fit. NotFoundError: the snapshot lacks a part.
        UnsupportedError: the target can't be loaded into.
        """
        if self._is_tensor(target):
            self._add_tensor(target, source, path)
        elif self._is_array(target):
            self._add_array(target, source, path)
        elif self._is_generator(target):
            self._add_generator(target, source, path)
        elif self._is_random(target):
            self._add_random(target, source, path)
        elif self._is_numpy_generator(target):
            self._add_numpy_generator(target, source, path)
        elif self._is_random_state(target):
            self._add_random_state(target, source, path)
        elif hasattr(target, "load_state_dict"):
            self._add_object(target, source, path)
        elif isinstance(target, dict):
            self._add_dict(target, source, path)
        elif isinstance(target, list):
            self._add_list(target, source, path)
        elif isinstance(target, tuple):
            self._add_tuple(target, source, path)
        else:
            kind = type(target).__qualname__
            raise UnsupportedError(f"{path}: nothing can be loaded into a {kind}: it has no load_state_dict")

    def _is_tensor(self, value: Any) -> bool:
        return self._torch is not None and isinstance(value, self._torch.Tensor)

    def _is_array(self, value: Any) -> bool:
        return self._numpy is not None and isinstance(value, self._numpy.ndarray)

    def _is_generator(self, value: Any) -> bool:
        return self._torch is not None and isinstance(value, self._torch.Generator)

    def _is_random(self, value: Any) -> bool:
        return self._random is not None and (value is self._random or isinstance(value, self._random.Random))

    def _is_numpy_generator(self, value: Any) -> bool:
        return self._numpy is not None and isinstance(value, self._numpy.random.Generator)

    def _is_random_state(self, value: Any) -> bool:
        if self._numpy is None:
            return False
        return value is self._numpy.random or isinstance(value, self._numpy.random.RandomState)

    def _holds_targets(self, value: Any) -> bool:
        """Whether a part of a value is filled in place; else the value is replaced."""
        if hasattr(value, "load_state_dict"):
            return True
        if isinstance(value, dict):
            return any(map(self._holds_targets, value.values()))
        if isinstance(value, list | tuple):
            return any(map(self._holds_targets, value))
        kinds = (
            self._is_tensor,
            self._is_array,
            self._is_generator,
            self._is_random,
            self._is_numpy_generator,
            self._is_random_state,
        )
        return any(is_kind(value) for is_kind in kinds)

    # Tensors and arrays

    def _add_tensor(self, target: Any, source: Any, path: str) -> None:
        if not self._is_tensor(source):
            raise InvalidError(f"{path}: the snapshot has a {type(source).__qualname__} where the target has a tensor")
        _check_memory(target, path)
        _same(path, "shape", tuple(source.shape), tuple(target.shape))
        self._same_dtype(path, source.dtype, target.dtype)
        if self._copies is None:
            self._copies = Torch(self._torch)
        copies = self._copies
        self._actions.append(lambda: copies.copy_back(target, source.to(target.dtype)))

    def _add_array(self, target: Any, source: Any, path: str) -> None:
        if not self._is_array(source):
            raise InvalidError(f"{path}: the snapshot has a {type(source).__qualname__} where the target has an array")
        _same(path, "shape", source.shape, target.shape)
        self._same_dtype(path, source.dtype, target.dtype)
        if source.dtype != target.dtype and _numpy.dtype_name(target.dtype.newbyteorder("=")) is None:
            raise InvalidError(f"{path}: the snapshot's dtype is {source.dtype}, which is never {target.dtype}")
        if not target.flags.writeable:
            raise InvalidError(f"{path}: the target array is read-only")

        def action() -> None:
            target[...] = source

        self._actions.append(action)

    def _add_generator(self, target: Any, source: Any, path: str) -> None:
        state = target.get_state()
        if not self._is_tensor(source):
            raise InvalidError(f"{path}: the snapshot has a {type(source).__qualname__}, not a generator's state")
        _same(path, "dtype", source.dtype, state.dtype)
        _same(path, "shape", tuple(source.shape), tuple(state.shape))
        self._actions.append(lambda: target.set_state(source.clone()))

    def _add_random(self, target: Any, source: Any, path: str) -> None:
        kind = self._random.Random if target is self._random else type(target)
        try:
            kind().setstate(source)
        except (TypeError, ValueError, LookupError, NotImplementedError) as error:
            raise InvalidError(f"{path}: the snapshot has no state of a random.Random there: {error}") from None
        self._actions.append(lambda: target.setstate(source))

    def _add_numpy_generator(self, target: Any, source: Any, path: str) -> None:
        try:
            type(target.bit_generator)().state = source
        except (TypeError, ValueError, KeyError) as error:
            kind = type(target.bit_generator).__name__
            raise InvalidError(f"{path}: the snapshot has no state of a {kind} there: {error}") from None

        def action() -> None:
            target.bit_generator.state = source

        self._actions.append(action)

    def _add_random_state(self, target: Any, source: Any, path: str) -> None:
        import numpy

        try:
            numpy.random.RandomState().set_state(source)
        except (TypeError, ValueError, LookupError) as error:
            raise InvalidError(f"{path}: the snapshot has no state of a RandomState there: {error}") from None
        self._actions.append(lambda: target.set_state(source))

    def _same_dtype(self, path: str, stored: Any, wanted: Any) -> None:
        if not self._cast:
            _same(path, "dtype", stored, wanted, "; load_into(..., cast=True) would convert it")

    # Objects with load_state_dict

    def _add_object(self, target: Any, source: Any, path: str) -> None:
        if self._torch is not None and isinstance(target, self._torch.nn.Module):
            self._add_module(target, source, path)
        elif self._torch is not None and isinstance(target, self._torch.optim.Optimizer):
            self._add_optimizer(target, source, path)
        else:
            if type(source) is dict and not source and self._is_enabled_scaler(target):
                raise InvalidError(f"{path}: the snapshot has the state of a GradScaler that was disabled")
            self._unsure.append((target, path, lambda: target.load_state_dict(self._copier.copy(source))))

    def _is_enabled_scaler(self, target: Any) -> bool:
        kind = getattr(getattr(self._torch, "amp", None), "GradScaler", None)
        return kind is not None and isinstance(target, kind) and target.is_enabled()

    def _add_module(self, module: Any, source: Any, path: str) -> None:
        if not isinstance(source, dict):
            raise InvalidError(f"{path}: the snapshot has a {type(source).__qualname__}, not a module's state")
        own = self._check_module(module, source, path)
        copies_all = _may_keep(module, self._torch)

        def action() -> None:  # it copies parameters and may keep the rest
            for key, value in source.items():
                if copies_all or not self._is_tensor(own.get(key)):
                    source[key] = self._copier.copy(value)
            module.load_state_dict(source)

        if _may_refuse(module, self._torch):
            self._unsure.append((module, path, action))
        else:
            self._actions.append(action)

    def _check_module(self, module: Any, source: dict[Any, Any], path: str) -> dict[Any, Any]:
        """Check a module's state from outside as far as possible; return its present state."""
        own: dict[Any, Any] = module.state_dict()
        renames = _renames_keys(module, self._torch)
        missing = [key for key in own if key not in source]
        if missing and not renames:
            raise NotFoundError(f"{path}: the snapshot has no {_few(missing)} for the module")
        unexpected = [key for key in source if key not in own]
        if unexpected and not renames:
            raise InvalidError(f"{path}: the module has no {_few(unexpected)}, which the snapshot has")
        for key, value in own.items():
            if not self._is_tensor(value) or key not in source:
                continue
            if self._is_tensor(source[key]):
                self._same_dtype(f"{path}.{key}", source[key].dtype, value.dtype)
            if renames:
                continue
            if not self._is_tensor(source[key]):
                raise InvalidError(f"{path}.{key}: the snapshot has no tensor there")
            _check_memory(value, f"{path}.{key}")  # torch would warn, and load nothing
            _same(f"{path}.{key}", "shape", tuple(source[key].shape), tuple(value.shape))
        return own

    def _add_optimizer(self, optimizer: Any, source: Any, path: str) -> None:
        torch: Any = self._torch
        kind, base = type(optimizer), torch.optim.Optimizer
        _check_optimizer(optimizer, source, path)
        if kind.load_state_dict is not base.load_state_dict:
            self._unsure.append((optimizer, path, lambda: optimizer.load_state_dict(self._copier.copy(source))))
            return
        self._check_moments(optimizer, source, path)

        def action() -> None:
            state = self._copier.copy(source)
            optimizer.load_state_dict(state)
            self._undo_casts(optimizer, state)

        hooks = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
        if _is_torchs(kind.__setstate__) and not any(getattr(optimizer, name, None) for name in hooks):
            self._actions.append(action)
        else:
            self._unsure.append((optimizer, path, action))

    def _check_moments(self, optimizer: Any, source: Any, path: str) -> None:
        torch: Any = self._torch
        if not _is_torchs(type(optimizer).step) or isinstance(optimizer, torch.optim.LBFGS):
            return
        for param, number in _numbered(optimizer, source):
            slots = source["state"].get(number)
            for key, value in slots.items() if isinstance(slots, dict) else ():
                if not self._is_tensor(value) or value.ndim == 0 or key in _OTHER_SHAPES:
                    continue
                place = f"{path}.state.{number}.{key}"
                _same(place, "shape", tuple(value.shape), tuple(param.shape))
                if not isinstance(optimizer, torch.optim.SGD):  # SGD accepts another one
                    self._same_dtype(place, value.dtype, param.dtype)

    def _undo_casts(self, optimizer: Any, source: dict[str, Any]) -> None:
        """Restore dtypes: torch converts even counters to that of a floating parameter."""
        for param, number in _numbered(optimizer, source):
            slots, stored = optimizer.state.get(param), source["state"].get(number)
            if not (isinstance(slots, dict) and isinstance(stored, dict) and param.is_floating_point()):
                continue
            for key, value in stored.items():
                if key in slots and key != "step":  # torch keeps it, or its kernels need it converted
                    slots[key] = self._uncast(slots[key], value)

    def _uncast(self, made: Any, stored: Any) -> Any:
        if self._is_tensor(stored) and self._is_tensor(made):
            wanted = self._cast and stored.ndim > 0 and stored.is_floating_point()
            return made if wanted or made.dtype == stored.dtype else stored.to(made.device)
        if isinstance(stored, dict) and isinstance(made, dict):
            return {key: self._uncast(value, stored.get(key)) for key, value in made.items()}
        if type(stored) in (list, tuple) and type(made) is type(stored) and len(made) == len(stored):
            return type(stored)(map(self._uncast, made, stored))
        return made

    # Containers

    def _add_dict(self, target: dict[Any, Any], source: Any, path: str, exact: bool = True) -> None:
        if not isinstance(source, dict):
            raise InvalidError(f"{path}: the snapshot has a {type(source).__qualname__} where the target has a dict")
        missing = [key for key in target if key not in source]
        if missing:
            raise NotFoundError(f"{path}: the snapshot has no {_few(missing)}")
        unexpected = [key for key in source if key not in target]
        if unexpected and exact:
            raise InvalidError(f"{path}: the target has no {_few(unexpected)}, which the snapshot has")
        for key, value in target.items():
            self._add_item(target, key, value, source[key], f"{path}.{key}")

    def _add_list(self, target: list[Any], source: Any, path: str) -> None:
        if not isinstance(source, list | tuple):
            raise InvalidError(f"{path}: the snapshot has a {type(source).__qualname__} where the target has a list")
        _same(path, "length", len(source), len(target))
        for index, value in enumerate(target):
            self._add_item(target, index, value, source[index], f"{path}.{index}")

    def _add_tuple(self, target: tuple[Any, ...], source: Any, path: str) -> None:
        if not isinstance(source, list | tuple):
            raise InvalidError(f"{path}: the snapshot has a {type(source).__qualname__} where the target has a tuple")
        _same(path, "length", len(source), len(target))
        for index, value in enumerate(target):
            self.add(value, source[index], f"{path}.{index}")

    def _add_item(self, container: Any, key: Any, target: Any, source: Any, path: str) -> None:
        if isinstance(target, tuple) and self._holds_targets(target):
            items = list(target)
            self._add_list(items, source, path)
            self._actions.append(lambda: container.__setitem__(key, tuple(items)))
        elif self._holds_targets(target):
            self.add(target, source, path)
        else:
            self._actions.append(lambda: container.__setitem__(key, self._copier.copy(source)))

    def add_root(self, target: Any, source: Any) -> None:
        """Plan a load of the whole state; a dict takes the parts that it names."""
        if isinstance(target, dict) and not hasattr(target, "load_state_dict"):
            self._add_dict(target, source, "the state", exact=False)
        else:
            self.add(target, source, "the state")


def _check_memory(target: Any, path: str) -> None:
    if target.is_meta:
        raise UnsupportedError(f"{path}: the target is on the device 'meta' and has no memory to load into")
    if target.is_nested or target.is_quantized or str(target.layout) != "torch.strided":
        kind = "nested" if target.is_nested else "quantized" if target.is_quantized else target.layout
        raise UnsupportedError(f"{path}: the target is {kind}; a dense tensor can't be loaded into it")


def _same(path: str, what: str, stored: Any, wanted: Any, hint: str = "") -> None:
    if stored != wanted:
        raise InvalidError(f"{path}: the snapshot's {what} is {stored}, the target's {wanted}{hint}")


def _few(keys: list[Any]) -> str:
    shown = ", ".join(map(repr, keys[:3]))
    return shown if len(keys) <= 3 else f"{shown} and {len(keys) - 3} more"


def _kept(value: Any, torch: Any, numpy: Any) -> Any:
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_meta or torch.nn.parameter.is_lazy(value):
            return value
        return value.detach().to("cpu", copy=True)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value.copy()
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, child in value.items():
            made[key] = _kept(child, torch, numpy)
        return made
    if type(value) in (list, tuple):
        return type(value)(_kept(child, torch, numpy) for child in value)
    try:
        return copy.deepcopy(value)
    except Exception:  # no plain data: loaded as it is
        return value


def _is_torchs(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"


def _renames_keys(module: Any, torch: Any) -> bool:
    """Whether a module accepts other keys or shapes than its own; then only it can check a state."""
    lazy = torch.nn.parameter.is_lazy
    for part in module.modules():
        if type(part).load_state_dict is not torch.nn.Module.load_state_dict or part._load_state_dict_pre_hooks:
            return True
        if any(lazy(value) for value in (*part._parameters.values(), *part._buffers.values()) if value is not None):
            return True
    return False


def _may_keep(module: Any, torch: Any) -> bool:
    for part in module.modules():
        if type(part).load_state_dict is not torch.nn.Module.load_state_dict:
            return True
        if not _is_torchs(type(part)._load_from_state_dict):
            return True
    return False


def _may_refuse(module: Any, torch: Any) -> bool:
    """Whether loading a module runs code whose outcome can't be checked before."""
    if _renames_keys(module, torch) or _may_keep(module, torch):
        return True
    own = torch.nn.Module.set_extra_state
    return any(part._load_state_dict_post_hooks or type(part).set_extra_state is not own for part in module.modules())


def _check_optimizer(optimizer: Any, source: Any, path: str) -> None:
    groups = source.get("param_groups") if isinstance(source, dict) else None
    if not isinstance(groups, list) or not isinstance(source.get("state"), dict):
        raise InvalidError(f"{path}: the snapshot has no optimizer's state there")
    _same(path, "number of parameter groups", len(groups), len(optimizer.param_groups))
    for index, (stored, own) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        count = len(stored["params"]) if isinstance(stored, dict) and isinstance(stored.get("params"), list) else -1
        _same(f"{path}.param_groups.{index}", "number of parameters", count, len(own["params"]))


def _numbered(optimizer: Any, source: Any) -> list[tuple[Any, Any]]:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = [number for group in source["param_groups"] for number in group["params"]]
    return list(zip(params, numbers, strict=True))
