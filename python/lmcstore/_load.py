# SPDX-License-Identifier: BSD-3-Clause
"""Loading a state into objects that exist: `Snapshot.load_into`.

It has two halves. Planning walks the targets beside the state that was read, checks everything, and writes down what to
do; only when all of it fits is it done. What is loaded is copied: no target keeps memory of the snapshot's views.

A target is a torch module, an optimizer or anything else with ``load_state_dict``; a ``torch.Generator``, a NumPy
Generator or RandomState, a ``random.Random``, or the module ``random`` or ``numpy.random`` itself; a tensor or an
array, filled in place; or a dict or list with such targets in it, in which plain values are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._scalars import loaded
from ._torch import Torch
from .errors import InvalidError, NotFoundError, UnsupportedError

Action = Callable[[], None]


class Copier:
    """Copies values that were read, so that nothing in them is a view's memory; tied tensors stay tied."""

    def __init__(self) -> None:
        self._torch = loaded("torch")
        self._numpy = loaded("numpy")
        self._by_object: dict[int, Any] = {}
        self._by_memory: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:
        """Copy tensors and arrays; containers, which were made for this read alone, are changed in place."""
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
                self._by_object[id(tensor)] = self._by_memory[address].detach()
            else:
                self._by_object[id(tensor)] = self._by_memory[address] = tensor.clone()
        return self._by_object[id(tensor)]


class Plan:
    """What `load_into` is going to do; planning raises, doing is not expected to."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._copies: Torch | None = None
        self._torch = loaded("torch")
        self._numpy = loaded("numpy")
        self._random = loaded("random")

    def run(self) -> None:
        """Do it all."""
        for action in self._actions:
            action()

    def add(self, target: Any, source: Any, path: str) -> None:
        """Plan the loading of one target.

        Parameters
        ----------
        target : Any
            See the module's text.
        source : Any
            What was read for it.
        path : str
            Where it is, for errors.

        Raises
        ------
        InvalidError
            Shapes, dtypes, keys or groups don't fit.
        NotFoundError
            The snapshot lacks something.
        UnsupportedError
            The target can't be loaded into.
        """
        if self._is_tensor(target):
            self._add_tensor(target, source, path)
        elif self._is_array(target):
            self._add_array(target, source, path)
        elif self._torch is not None and isinstance(target, self._torch.Generator):
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
        else:
            kind = type(target).__qualname__
            raise UnsupportedError(f"{path}: nothing can be loaded into a {kind}: it has no load_state_dict")

    def _is_tensor(self, value: Any) -> bool:
        return self._torch is not None and isinstance(value, self._torch.Tensor)

    def _is_array(self, value: Any) -> bool:
        return self._numpy is not None and isinstance(value, self._numpy.ndarray)

    def _is_random(self, value: Any) -> bool:
        return self._random is not None and (value is self._random or isinstance(value, self._random.Random))

    def _is_numpy_generator(self, value: Any) -> bool:
        return self._numpy is not None and isinstance(value, self._numpy.random.Generator)

    def _is_random_state(self, value: Any) -> bool:
        if self._numpy is None:
            return False
        return value is self._numpy.random or isinstance(value, self._numpy.random.RandomState)

    def _holds_targets(self, value: Any) -> bool:
        """Whether something in a value is filled in place; else the value as a whole is replaced."""
        if isinstance(value, dict):
            return any(map(self._holds_targets, value.values()))
        if isinstance(value, list | tuple):
            return any(map(self._holds_targets, value))
        kinds = (self._is_tensor, self._is_array, self._is_random, self._is_numpy_generator, self._is_random_state)
        return any(is_kind(value) for is_kind in kinds) or hasattr(value, "load_state_dict")

    # Tensors and arrays

    def _add_tensor(self, target: Any, source: Any, path: str) -> None:
        if not self._is_tensor(source):
            raise InvalidError(f"{path}: the snapshot has a {type(source).__qualname__} where the target has a tensor")
        _check_memory(target, path)
        _same(path, "shape", tuple(source.shape), tuple(target.shape))
        _same(path, "dtype", source.dtype, target.dtype)
        if self._copies is None:
            self._copies = Torch(self._torch)
        copies = self._copies
        self._actions.append(lambda: copies.copy_back(target, source))

    def _add_array(self, target: Any, source: Any, path: str) -> None:
        if not self._is_array(source):
            raise InvalidError(f"{path}: the snapshot has a {type(source).__qualname__} where the target has an array")
        _same(path, "shape", source.shape, target.shape)
        _same(path, "dtype", source.dtype, target.dtype)
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
            kind().setstate(source)  # checks it
        except (TypeError, ValueError, LookupError, NotImplementedError) as error:
            raise InvalidError(f"{path}: the snapshot has no state of a random.Random there: {error}") from None
        self._actions.append(lambda: target.setstate(source))

    def _add_numpy_generator(self, target: Any, source: Any, path: str) -> None:
        try:
            type(target.bit_generator)().state = source  # checks it
        except (TypeError, ValueError, KeyError) as error:
            kind = type(target.bit_generator).__name__
            raise InvalidError(f"{path}: the snapshot has no state of a {kind} there: {error}") from None

        def action() -> None:
            target.bit_generator.state = source

        self._actions.append(action)

    def _add_random_state(self, target: Any, source: Any, path: str) -> None:
        import numpy

        try:
            numpy.random.RandomState().set_state(source)  # checks it
        except (TypeError, ValueError, LookupError) as error:
            raise InvalidError(f"{path}: the snapshot has no state of a RandomState there: {error}") from None
        self._actions.append(lambda: target.set_state(source))

    # Objects with load_state_dict

    def _add_object(self, target: Any, source: Any, path: str) -> None:
        if self._torch is not None and isinstance(target, self._torch.nn.Module):
            self._check_module(target, source, path)
            self._actions.append(lambda: target.load_state_dict(source))  # which copies into its parameters
            return
        if self._torch is not None and isinstance(target, self._torch.optim.Optimizer):
            _check_optimizer(target, source, path)
        self._actions.append(lambda: target.load_state_dict(Copier().copy(source)))

    def _check_module(self, module: Any, source: Any, path: str) -> None:
        if not isinstance(source, dict):
            raise InvalidError(f"{path}: the snapshot has a {type(source).__qualname__}, not a module's state")
        if _renames_keys(module, self._torch):
            return
        own = module.state_dict()
        missing = [key for key in own if key not in source]
        if missing:
            raise NotFoundError(f"{path}: the snapshot has no {_few(missing)} for the module")
        unexpected = [key for key in source if key not in own]
        if unexpected:
            raise InvalidError(f"{path}: the module has no {_few(unexpected)}, which the snapshot has")
        for key, value in own.items():
            if self._is_tensor(value):
                if not self._is_tensor(source[key]):
                    raise InvalidError(f"{path}.{key}: the snapshot has no tensor there")
                _check_memory(value, f"{path}.{key}")  # torch would warn, and load nothing
                _same(f"{path}.{key}", "shape", tuple(source[key].shape), tuple(value.shape))

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

    def _add_item(self, container: Any, key: Any, target: Any, source: Any, path: str) -> None:
        generator = self._torch is not None and isinstance(target, self._torch.Generator)
        if isinstance(target, tuple) and self._holds_targets(target):
            items = list(target)
            self._add_list(items, source, path)
            self._actions.append(lambda: container.__setitem__(key, tuple(items)))
        elif generator or self._holds_targets(target):
            self.add(target, source, path)
        else:
            self._actions.append(lambda: container.__setitem__(key, Copier().copy(source)))

    def add_root(self, target: Any, source: Any) -> None:
        """Plan the loading of the whole state; a dict takes the parts that it names and leaves the others."""
        if isinstance(target, dict) and not hasattr(target, "load_state_dict"):
            self._add_dict(target, source, "the state", exact=False)
        else:
            self.add(target, source, "the state")


def _check_memory(target: Any, path: str) -> None:
    """Check that a tensor can be filled."""
    if target.is_meta:
        raise UnsupportedError(f"{path}: the target is on the device 'meta' and has no memory to load into")
    if target.is_nested or target.is_quantized or str(target.layout) != "torch.strided":
        kind = "nested" if target.is_nested else "quantized" if target.is_quantized else target.layout
        raise UnsupportedError(f"{path}: the target is {kind}; a dense tensor can't be loaded into it")


def _same(path: str, what: str, stored: Any, wanted: Any) -> None:
    if stored != wanted:
        raise InvalidError(f"{path}: the snapshot's {what} is {stored}, the target's {wanted}")


def _few(keys: list[Any]) -> str:
    shown = ", ".join(map(repr, keys[:3]))
    return shown if len(keys) <= 3 else f"{shown} and {len(keys) - 3} more"


def _renames_keys(module: Any, torch: Any) -> bool:
    """Whether a module takes a state of other keys or shapes than its own: then only it can check."""
    lazy = torch.nn.parameter.is_lazy
    for part in module.modules():
        if type(part).load_state_dict is not torch.nn.Module.load_state_dict or part._load_state_dict_pre_hooks:
            return True
        if any(lazy(value) for value in (*part._parameters.values(), *part._buffers.values()) if value is not None):
            return True
    return False


def _check_optimizer(optimizer: Any, source: Any, path: str) -> None:
    groups = source.get("param_groups") if isinstance(source, dict) else None
    if not isinstance(groups, list) or "state" not in source:
        raise InvalidError(f"{path}: the snapshot has no optimizer's state there")
    _same(path, "number of parameter groups", len(groups), len(optimizer.param_groups))
    for index, (stored, own) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        count = len(stored["params"]) if isinstance(stored, dict) and isinstance(stored.get("params"), list) else -1
        _same(f"{path}.param_groups.{index}", "number of parameters", count, len(own["params"]))
    _check_moments(optimizer, source, groups, path)


def _check_moments(optimizer: Any, source: Any, groups: list[Any], path: str) -> None:
    """Check that what the state has for a parameter under the well-known names has the parameter's shape."""
    state = source["state"]
    params = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = [number for group in groups for number in group["params"]]
    for param, number in zip(params, numbers, strict=True):
        slots = state.get(number) if isinstance(state, dict) else None
        for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"):
            slot = slots.get(name) if isinstance(slots, dict) else None
            if slot is not None and hasattr(slot, "shape"):
                _same(f"{path}.state.{number}.{name}", "shape", tuple(slot.shape), tuple(param.shape))
