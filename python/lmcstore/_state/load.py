# SPDX-License-Identifier: BSD-3-Clause
"""Loading a state into existing objects: `Snapshot.load_into`, which lists the targets.

Planning walks the targets beside the state, checks everything, and records the actions; only a complete plan runs.
Targets get copies: none keeps memory of the snapshot's views. Plain values in a dict, list or deque are replaced, in a
tuple or dataclass only if that is in one of these.

A target whose loading runs code other than torch's may refuse its state at any time. Such targets are loaded first;
tensors and modules, which are overwritten, last. If anything raises, all get back their earlier values.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from .._arrays import numpy as _numpy
from .._arrays.packages import loaded
from .._arrays.torch import Torch, torch_of
from .._text.arguments import a_kind, an
from ..errors import InvalidError, UnsupportedError
from .fits import (
    SCALARS,
    changed,
    check_array,
    check_groups,
    check_loaded,
    check_optimizer,
    check_scaler,
    check_scheduler,
    check_slots,
    check_tensor,
    check_whole,
    fields_of,
    is_dataclass,
    is_torchs,
    like,
    remade,
    torchs_class,
    without_names,
)
from .keys import ROOT, Matched, Report, advice, below, match, refuse, renamed, takes_strict
from .plain import is_sequence, map_items
from .targets import Kinds

Action = Callable[[], None]
Undo = Callable[[], Any]

_KEPT_BYTES = 1 << 30
"""Of overwritten tensors, arrays and modules, so much is kept until all are written. Their checks leave failures of
devices and interruptions."""

_OTHER_SHAPES = ("row_var", "col_var")
"""Adafactor's moments, whose shapes differ from the parameter's."""


class Copier:
    """Copies values, so that none refers to a view's memory; tensors that share memory still do."""

    def __init__(self) -> None:
        self._torch = loaded("torch")
        self._numpy = loaded("numpy")
        self._by_object: dict[int, tuple[Any, Any]] = {}  # each with its copy, so that no other object gets its id
        self._by_memory: dict[int, tuple[Any, Any]] = {}  # a storage or array by its address, and its copy, of bytes

    def copy(self, value: Any) -> Any:
        """Copy tensors and arrays; containers, made for this read, are changed in place."""
        kind = type(value)
        if self._torch is not None and kind is self._torch.Tensor:
            return self._tensor(value)
        if self._numpy is not None and kind is self._numpy.ndarray:
            return self._array(value)
        if isinstance(value, dict):
            for key, child in value.items():
                value[key] = self.copy(child)
        elif kind is list:
            value[:] = map(self.copy, value)
        elif is_sequence(value):
            return map_items(self.copy, value)
        elif is_dataclass(value):  # of `types`
            for name, child in fields_of(value).items():
                object.__setattr__(value, name, self.copy(child))
        return value

    def _tensor(self, tensor: Any) -> Any:
        if id(tensor) not in self._by_object:
            self._by_object[id(tensor)] = tensor, self._copy_of_tensor(tensor)
        return self._by_object[id(tensor)][1]

    def _copy_of_tensor(self, tensor: Any) -> Any:
        if tensor.numel() == 0:
            return tensor.clone()
        torch: Any = self._torch
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self._by_memory:
            self._by_memory[address] = storage, storage.clone()
        made = self._by_memory[address][1]
        if self._numpy is not None and type(made) is self._numpy.ndarray:
            made = torch.from_numpy(made).untyped_storage()
        return torch_of(torch).strided(made, tensor.dtype, tensor.shape, tensor.storage_offset(), tensor.stride())

    def _array(self, array: Any) -> Any:
        numpy: Any = self._numpy
        whole = array
        while type(whole.base) is numpy.ndarray:
            whole = whole.base
        address = whole.__array_interface__["data"][0]
        offset = array.__array_interface__["data"][0] - address
        if array.size == 0:
            return array.copy()
        if address not in self._by_memory:
            if array.flags.c_contiguous and array.nbytes == whole.nbytes:
                made = numpy.empty(array.shape, array.dtype)
                copied = made.reshape(-1).view(numpy.uint8)
                copied[...] = array.reshape(-1).view(numpy.uint8)  # copy() leaves gaps of records undefined
                self._by_memory[address] = whole, copied
                return made
            self._by_memory[address] = whole, whole.reshape(-1).view(numpy.uint8).copy()
        made = self._by_memory[address][1]
        if type(made) is not numpy.ndarray:
            torch: Any = self._torch
            made = torch.empty(0, dtype=torch.uint8, device="cpu").set_(made).numpy()
        return numpy.ndarray(array.shape, array.dtype, made, offset, array.strides)


class Plan(Kinds):
    """The actions of `load_into`. Planning raises; running is not expected to.

    `instead`: what a state is loaded into in place of some targets, by their ids.
    """

    def __init__(self, cast: bool = False, strict: bool = True, instead: Mapping[int, Any] | None = None) -> None:
        super().__init__()
        self._instead = instead or {}
        self.report = Report()
        self._cast = cast
        self._strict = strict
        self._unsure: list[tuple[Any, str, Action]] = []  # may refuse their state
        self._actions: list[tuple[str, Action, Callable[[], Undo | None]]] = []  # the last keeps the earlier value
        self._writes: list[tuple[str, Action, Callable[[], Undo | None]]] = []  # of these, in place
        self._kept_bytes = 0
        self._copies: Torch | None = None
        self._copier = Copier()  # one for all, so that tied tensors stay tied

    def run(self) -> None:
        """Run all actions; if one fails, restore the earlier values of all."""
        before = [(target, path, self._state_of(target)) for target, path, _ in self._unsure]
        undos: list[tuple[str, Undo]] = []
        begun = 0
        try:
            for _, _, action in self._unsure:
                begun += 1
                action()
            for path, action, keep in (*self._actions, *self._writes):
                undo = keep()
                if undo is not None:
                    undos.append((path, undo))
                action()
        except BaseException as error:
            for path, undo in reversed(undos):
                try:
                    undo()
                except Exception as other:
                    error.add_note(f"{path}: what it had before could not be put back: {other}")
            self._put_back(before[:begun], error)
            raise

    def _keep_tensors(self, targets: list[Any]) -> Undo | None:
        """Copy tensors that an action overwrites; None: too large."""
        size = sum(target.numel() * target.element_size() for target in targets)
        if self._kept_bytes + size > _KEPT_BYTES:
            return None
        self._kept_bytes += size
        torch: Any = self._torch
        kept = [(target, target.detach().to("cpu", copy=True)) for target in targets]

        def undo() -> None:
            with torch.no_grad():
                for target, values in kept:
                    target.copy_(values)

        return undo

    def _keep_array(self, target: Any) -> Undo | None:
        if self._kept_bytes + target.nbytes > _KEPT_BYTES:
            return None
        self._kept_bytes += target.nbytes
        kept = target.copy()

        def undo() -> None:
            target[...] = kept

        return undo

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
        target = self._instead.get(id(target), target)
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
        elif isinstance(target, list | deque):
            self._add_list(target, source, path)
        elif isinstance(target, tuple):
            self._add_tuple(target, source, path)
        else:
            raise UnsupportedError(f"{path}: nothing can be loaded into {a_kind(target)}: it has no load_state_dict")

    def _holds_targets(self, value: Any, above: tuple[int, ...] = ()) -> bool:
        """Whether a part of a value is filled in place; else the value is replaced. `above`: ids of its containers."""
        if hasattr(value, "load_state_dict"):
            return True
        parts: Iterable[Any] | None = None
        if isinstance(value, dict):
            parts = value.values()
        elif isinstance(value, list | tuple | deque):
            parts = value
        elif is_dataclass(value):
            parts = fields_of(value).values()
        if parts is not None:
            inside = (*above, id(value))
            return any(id(part) not in inside and self._holds_targets(part, inside) for part in parts)
        return self._is_filled(value)

    # Tensors and arrays

    def _add_tensor(self, target: Any, source: Any, path: str) -> None:
        if not self._is_tensor(source):
            raise InvalidError(f"{path}: the snapshot has {a_kind(source)} where the target has a tensor")
        check_tensor(self._torch, target, path)
        _same(path, "shape", tuple(source.shape), tuple(target.shape))
        self._same_dtype(path, source, target.dtype)
        if self._copies is None:
            self._copies = Torch(self._torch)
        copies = self._copies
        action = lambda: copies.copy_back(target, source.to(target.dtype))  # noqa: E731
        self._writes.append((path, action, lambda: self._keep_tensors([target])))

    def _add_array(self, target: Any, source: Any, path: str) -> None:
        if not self._is_array(source):
            raise InvalidError(f"{path}: the snapshot has {a_kind(source)} where the target has an array")
        _same(path, "shape", source.shape, target.shape)
        self._same_dtype(path, source, target.dtype)
        if self._cast and source.dtype != target.dtype and not _converts(source.dtype, target.dtype):
            raise InvalidError(f"{path}: the snapshot's dtype is {source.dtype}, which is never {target.dtype}")
        check_array(target, path)

        def action() -> None:
            target[...] = source

        self._writes.append((path, action, lambda: self._keep_array(target)))

    def _add_generator(self, target: Any, source: Any, path: str) -> None:
        torch: Any = self._torch
        state = target.get_state()
        if not self._is_tensor(source):
            raise InvalidError(f"{path}: the snapshot has {a_kind(source)}, not a generator's state")
        _same(path, "dtype", source.dtype, state.dtype)
        _same(path, "shape", tuple(source.shape), tuple(state.shape))
        try:
            torch.Generator(device=target.device).set_state(source.clone())
        except Exception as error:
            raise InvalidError(f"{path}: the snapshot has no state of a generator there: {error}") from None
        self._add_state(target.set_state, target.get_state, source.clone(), path)

    def _add_state(self, write: Callable[[Any], Any], read: Callable[[], Any], state: Any, path: str) -> None:
        """Plan to set the state of a random generator."""

        def keep() -> Undo:
            before = read()
            return lambda: write(before)

        self._actions.append((path, lambda: write(state), keep))

    def _add_random(self, target: Any, source: Any, path: str) -> None:
        kind = random.Random if target is random else type(target)
        try:
            kind().setstate(source)
        except Exception as error:
            raise InvalidError(f"{path}: the snapshot has no state of a random.Random there: {error}") from None
        self._add_state(target.setstate, target.getstate, source, path)

    def _add_numpy_generator(self, target: Any, source: Any, path: str) -> None:
        bits = target.bit_generator
        try:
            type(bits)().state = source
        except Exception as error:
            raise InvalidError(f"{path}: the snapshot has no state of {a_kind(bits)} there: {error}") from None
        self._add_state(lambda state: setattr(bits, "state", state), lambda: bits.state, source, path)

    def _add_random_state(self, target: Any, source: Any, path: str) -> None:
        import numpy

        try:
            numpy.random.RandomState().set_state(source)
        except Exception as error:
            raise InvalidError(f"{path}: the snapshot has no state of a RandomState there: {error}") from None
        self._add_state(target.set_state, target.get_state, source, path)

    def _same_dtype(self, path: str, source: Any, wanted: Any) -> None:
        """Check that a tensor or array has a dtype, or can be converted to it."""
        if not self._cast:
            hint = "; load_into(..., cast=True) would convert it" if _converts(source.dtype, wanted) else ""
            _same(path, "dtype", source.dtype, wanted, hint)
        elif source.dtype != wanted:
            if _is_complex(source.dtype) and not _is_complex(wanted):
                raise InvalidError(f"{path}: the snapshot's dtype is {source.dtype}, which {wanted} can't have")
            try:
                one = source.reshape(-1)[:1]
                one.to(wanted) if self._is_tensor(source) else one.astype(wanted)
            except Exception as error:
                message = f"{path}: the snapshot's dtype is {source.dtype}, which is never {wanted}: {error}"
                raise InvalidError(message) from None

    # Objects with load_state_dict

    def _add_object(self, target: Any, source: Any, path: str) -> None:
        source = without_names(source)
        if self._torch is not None and isinstance(target, self._torch.nn.Module):
            self._add_module(target, source, path)
        elif self._torch is not None and isinstance(target, self._torch.optim.Optimizer):
            self._add_optimizer(target, source, path)
        else:
            if self._is_scheduler(target):
                check_scheduler(self._torch, target, source, path)
            if self._is_enabled_scaler(target):
                check_scaler(target, source, path)
            self._unsure.append((target, path, lambda: target.load_state_dict(self._copier.copy(source))))

    def _is_scheduler(self, target: Any) -> bool:
        """Whether a target is one of torch's schedulers, or loads its state as these do."""
        if self._torch is None or not isinstance(target, self._torch.optim.lr_scheduler.LRScheduler):
            return False
        return is_torchs(type(target).load_state_dict) and is_torchs(type(target).state_dict)

    def _is_enabled_scaler(self, target: Any) -> bool:
        kind = getattr(getattr(self._torch, "amp", None), "GradScaler", None)
        return kind is not None and isinstance(target, kind) and target.is_enabled()

    def _add_module(self, module: Any, source: Any, path: str) -> None:
        if not isinstance(source, dict):
            raise InvalidError(f"{path}: the snapshot has {a_kind(source)}, not a module's state")
        own: dict[Any, Any] = module.state_dict()
        is_checked = not _renames_keys(module, self._torch)
        matched = self._matched(own, source, "module", path) if is_checked else match(own, source, self._strict)
        state = renamed(source, matched.stored, own)
        self._check_module(module, own, state, path)
        copies_all = _may_keep(module, self._torch)
        lenient = not self._strict and takes_strict(module)

        def action() -> None:  # it copies parameters and may keep the rest
            for key, value in state.items():
                if copies_all or not self._is_tensor(own.get(key)):
                    state[key] = self._copier.copy(value)
            try:
                found = module.load_state_dict(state, strict=False) if lenient else module.load_state_dict(state)
            except Exception as error:
                if matched.missing and matched.unexpected:
                    error.add_note(f"{path}: {advice(matched)}")
                raise
            if lenient:
                self.report.add(path, getattr(found, "missing_keys", ()), getattr(found, "unexpected_keys", ()))

        if _may_refuse(module, self._torch):
            self._unsure.append((module, path, action))
        else:
            tensors = [value for key, value in own.items() if key in state and self._is_tensor(value)]
            self._writes.append((path, action, lambda: self._keep_tensors(tensors)))

    def _matched(self, own: dict[Any, Any], source: dict[Any, Any], target: str, path: str) -> Matched:
        """Match keys; an error lists the missing and the unexpected ones unless loading is lenient."""
        matched = match(own, source, self._strict)
        if self._strict:
            refuse(path, target, matched)
        return matched

    def _check_module(self, module: Any, own: dict[Any, Any], source: dict[Any, Any], path: str) -> None:
        """Check a module's state from outside as far as possible; `own`: its present state."""
        renames = _renames_keys(module, self._torch)
        for key, value in own.items():
            if not self._is_tensor(value) or key not in source:
                continue
            if is_torchs(type(module).load_state_dict):
                check_whole(value, below(path, key))
            if self._is_tensor(source[key]):
                self._same_dtype(below(path, key), source[key], value.dtype)
            if renames:
                continue
            if not self._is_tensor(source[key]):
                raise InvalidError(f"{below(path, key)}: the snapshot has no tensor there")
            check_tensor(self._torch, value, below(path, key))
            _same(below(path, key), "shape", tuple(source[key].shape), tuple(value.shape))

    def _add_optimizer(self, optimizer: Any, source: Any, path: str) -> None:
        torch: Any = self._torch
        kind, base = type(optimizer), torch.optim.Optimizer
        check_optimizer(optimizer, source, path)
        if kind.load_state_dict is not base.load_state_dict:
            self._load_by_itself(optimizer, lambda: optimizer.load_state_dict(self._copier.copy(source)), path)
            return
        for param, _ in _numbered(optimizer, source) if source["state"] else ():
            check_whole(param, path)
        hooks = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
        if is_torchs(kind.__setstate__) and not any(getattr(optimizer, name, None) for name in hooks):
            self._swap_optimizer(optimizer, source, path)
            return
        self._check_moments(optimizer, source, source["param_groups"], path)

        def action() -> None:
            state = self._copier.copy(source)
            optimizer.load_state_dict(state)
            self._undo_casts(optimizer, state)

        self._load_by_itself(optimizer, action, path)

    def _load_by_itself(self, optimizer: Any, action: Action, path: str) -> None:
        def checked() -> None:
            before = optimizer.param_groups
            action()
            check_loaded(optimizer, before, path)

        self._unsure.append((optimizer, path, checked))

    def _swap_optimizer(self, optimizer: Any, source: Any, path: str) -> None:
        """Load a twin of the optimizer now; the action gives its state and groups to the optimizer."""
        check_groups(optimizer, source, source["param_groups"], path, complete=False)
        self._check_moments(optimizer, source, source["param_groups"], path)
        twin = object.__new__(type(optimizer))
        twin.__dict__.update(optimizer.__dict__)
        state = self._copier.copy(source)
        try:
            twin.load_state_dict(state)
            self._undo_casts(twin, state)
        except Exception as error:
            message = f"{path}: {an(type(optimizer).__name__)} refuses the snapshot's state: {error!r}"
            raise InvalidError(message) from None
        check_groups(optimizer, source, twin.param_groups, path)
        for own, made in zip(optimizer.param_groups, twin.param_groups, strict=True):
            for key in own.keys() - made.keys():  # of a scheduler that the snapshot's optimizer did not have
                made[key] = own[key]
        loaded = {"state": twin.state, "param_groups": twin.param_groups}

        def keep() -> Undo:
            before = {key: optimizer.__dict__[key] for key in loaded}
            return lambda: optimizer.__dict__.update(before)

        self._actions.append((path, lambda: optimizer.__dict__.update(loaded), keep))

    def _check_moments(self, optimizer: Any, source: Any, groups: list[Any], path: str) -> None:
        torch: Any = self._torch
        if torchs_class(optimizer) is None:
            return
        by_number = {number: group for group in groups for number in group["params"]}
        is_lbfgs = isinstance(optimizer, torch.optim.LBFGS)
        for param, number in _numbered(optimizer, source):
            slots = source["state"].get(number)
            check_slots(torch, optimizer, slots, by_number[number], f"{path}.state.{number}")
            for key, value in slots.items() if isinstance(slots, dict) and not is_lbfgs else ():
                is_scalar = key in SCALARS and self._is_tensor(value) and value.ndim == 0
                if is_scalar or not self._is_tensor(value) or key in _OTHER_SHAPES:
                    continue
                place = f"{path}.state.{number}.{key}"
                _same(place, "shape", tuple(value.shape), tuple(param.shape))
                if not isinstance(optimizer, torch.optim.SGD):  # SGD accepts another one
                    self._same_dtype(place, value, param.dtype)

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

    def _add_dict(self, target: dict[Any, Any], source: Any, path: str) -> None:
        if not isinstance(source, dict):
            raise InvalidError(f"{path}: the snapshot has {a_kind(source)} where the target has a dict")
        matched = match(target, source, self._strict)
        if self._strict and path != ROOT and not matched.missing and not self._holds_targets(target):
            for key in matched.unexpected:  # the target has grown before the save
                self._add_key(target, key, source[key], below(path, key))
        elif self._strict:
            refuse(path, "target", matched)
        else:
            self.report.add(path, matched.missing, matched.unexpected)
        for key, name in matched.stored.items():
            self._add_item(target, key, target[key], source[name], below(path, key))

    def _add_key(self, target: dict[Any, Any], key: Any, source: Any, path: str) -> None:
        value = without_names(self._copier.copy(source))
        self._actions.append((path, lambda: target.__setitem__(key, value), lambda: lambda: target.pop(key, None)))

    def _add_list(self, target: list[Any] | deque[Any], source: Any, path: str) -> None:
        if not isinstance(source, list | tuple | deque):
            raise InvalidError(f"{path}: the snapshot has {a_kind(source)} where the target has a list")
        _same(path, "length", len(source), len(target))
        for index, value in enumerate(target):
            self._add_item(target, index, value, source[index], below(path, index))

    def _add_tuple(self, target: tuple[Any, ...], source: Any, path: str) -> None:
        if not isinstance(source, list | tuple | deque):
            raise InvalidError(f"{path}: the snapshot has {a_kind(source)} where the target has a tuple")
        _same(path, "length", len(source), len(target))
        for index, value in enumerate(target):
            self.add(value, source[index], below(path, index))

    def _add_item(self, container: Any, key: Any, target: Any, source: Any, path: str) -> None:
        if isinstance(target, tuple) and self._holds_targets(target):
            items = list(target)
            self._add_list(items, source, path)
            remade(target, items, path)
            self._replace(container, key, lambda: remade(target, items, path), path)
        elif is_dataclass(target) and self._holds_targets(target):
            fields = fields_of(target)
            self._add_dict(fields, fields_of(source) if is_dataclass(source) else source, path)
            changed(target, fields, path)
            self._replace(container, key, lambda: changed(target, fields, path), path)
        elif self._holds_targets(target):
            self.add(target, source, path)
        else:
            value = without_names(like(target, self._copier.copy(source), path))
            self._replace(container, key, lambda: value, path)

    def _replace(self, container: Any, key: Any, value: Callable[[], Any], path: str) -> None:
        """Plan to replace an item; a tuple or dataclass is made when the actions before have replaced its items."""

        def keep() -> Undo:
            before = container[key]
            return lambda: container.__setitem__(key, before)

        self._actions.append((path, lambda: container.__setitem__(key, value()), keep))

    def add_root(self, target: Any, keys: Collection[Any], read: Callable[[Collection[Any]], Any]) -> None:
        """Plan a load of the whole state, which has `keys`; of a dict's, only the parts that the target names are read.

        `read` reads the state with some of its keys.
        """
        if isinstance(target, dict) and not hasattr(target, "load_state_dict"):
            self._add_dict(target, read(set(match(target, keys, strict=False).stored.values())), ROOT)
        else:
            self.add(target, read(keys), ROOT)


def _same(path: str, what: str, stored: Any, wanted: Any, hint: str = "") -> None:
    if stored != wanted:
        raise InvalidError(f"{path}: the snapshot's {what} is {stored}, the target's {wanted}{hint}")


def _is_complex(dtype: Any) -> bool:
    return bool(getattr(dtype, "is_complex", getattr(dtype, "kind", "") == "c"))


def _converts(stored: Any, wanted: Any) -> bool:
    """Whether ``cast=True`` converts a dtype of torch or NumPy: numbers, and text that is not cut."""
    if _is_complex(stored) and not _is_complex(wanted):
        return False
    if not hasattr(stored, "newbyteorder"):
        return True
    if stored.kind == wanted.kind and stored.kind in "SU":
        return bool(stored.itemsize <= wanted.itemsize)
    return all(_numpy.dtype_name(dtype.newbyteorder("=")) is not None for dtype in (stored, wanted))


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
        if not is_torchs(type(part)._load_from_state_dict):
            return True
    return False


def _may_refuse(module: Any, torch: Any) -> bool:
    """Whether loading a module runs code whose outcome can't be checked before."""
    if _renames_keys(module, torch) or _may_keep(module, torch):
        return True
    own = torch.nn.Module.set_extra_state
    return any(part._load_state_dict_post_hooks or type(part).set_extra_state is not own for part in module.modules())


def _numbered(optimizer: Any, source: Any) -> list[tuple[Any, Any]]:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = [number for group in source["param_groups"] for number in group["params"]]
    return list(zip(params, numbers, strict=True))
