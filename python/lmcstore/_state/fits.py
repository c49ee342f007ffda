# SPDX-License-Identifier: BSD-3-Clause
"""Checks of the targets of `Snapshot.load_into` before anything changes: memory, optimizers, schedulers, containers.

A snapshot records no class of an optimizer: a ``state_dict`` doesn't have it. The keys of its groups and of its
parameters' states, which the snapshot has, distinguish torch's classes.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from .._text.arguments import a_kind, an
from ..errors import InvalidError, NotFoundError, UnsupportedError
from .plain import Member, is_sequence, made_dataclass, map_items, set_fields

_MOST_OFFSETS = 1 << 16

_RULE = (
    {"alpha", "amsgrad", "beta2_decay", "betas", "centered", "d", "dampening", "eps", "etas", "history_size"}
    | {"initial_accumulator_value", "lr", "lr_decay", "max_iter", "momentum", "momentum_decay", "nesterov", "ns_steps"}
    | {"lambd", "rho", "step_sizes", "t0", "weight_decay"}
)
"""Keys of the groups of torch's optimizers that belong to the rule of some and mean nothing to others."""

_STATE: dict[str, tuple[str, ...]] = {
    "ASGD": ("step", "eta", "mu", "ax"),
    "Adadelta": ("step", "square_avg", "acc_delta"),
    "Adafactor": ("step",),
    "Adagrad": ("step", "sum"),
    "Adam": ("step", "exp_avg", "exp_avg_sq"),
    "AdamW": ("step", "exp_avg", "exp_avg_sq"),
    "Adamax": ("step", "exp_avg", "exp_inf"),
    "Muon": ("momentum_buffer",),
    "NAdam": ("step", "mu_product", "exp_avg", "exp_avg_sq"),
    "RAdam": ("step", "exp_avg", "exp_avg_sq"),
    "RMSprop": ("step", "square_avg"),
    "Rprop": ("step", "prev", "step_size"),
    "SparseAdam": ("step", "exp_avg", "exp_avg_sq"),
}
"""Keys that a step of torch's optimizers needs in the state of a parameter that has one."""

_BY_GROUP = {"amsgrad": "max_exp_avg_sq", "centered": "grad_avg"}
"""The same, if the group's value of a key is true."""

SCALARS = frozenset({"step", "eta", "mu", "mu_product"})
"""Numbers, or tensors without dimensions, in these states."""

_OF_VERSIONS = frozenset({"verbose"})
"""Public keys that some versions of torch's schedulers have."""


def few(keys: list[Any]) -> str:
    shown = ", ".join(map(repr, keys[:3]))
    return shown if len(keys) <= 3 else f"{shown} and {len(keys) - 3} more"


# Memory


def may_overlap(shape: Iterable[int], strides: Iterable[int], item: int) -> bool:
    """Whether two elements of a tensor or array share memory, or may; `item`: the size of one in units of strides."""
    sides = sorted((abs(stride), size) for size, stride in zip(shape, strides, strict=True) if size != 1)
    if any(size == 0 for _, size in sides):
        return False
    extent, count, is_nested = item, 1, True
    for stride, size in sides:
        is_nested = is_nested and stride >= extent
        extent += (size - 1) * stride
        count *= size
    if is_nested:
        return False
    if count > _MOST_OFFSETS or item > 1:
        return True
    offsets = {0}
    for stride, size in sides:
        offsets = {offset + stride * index for offset in offsets for index in range(size)}
    return len(offsets) < count


def check_whole(target: Any, path: str) -> None:
    """Check that a tensor is no DTensor, which takes no other tensor's values."""
    if all(callable(getattr(target, name, None)) for name in ("full_tensor", "to_local")):
        raise UnsupportedError(
            f"{path}: the target is {a_kind(target)}, a part of which is on each rank: load into its "
            "to_local() what the rank stored of it; load a whole state by torch.distributed.checkpoint.state_dict's "
            "set_model_state_dict or set_optimizer_state_dict, with full_state_dict=True"
        )


def check_tensor(torch: Any, target: Any, path: str) -> None:
    """Check that a tensor can be written; UnsupportedError: torch would fail, or load nothing."""
    check_whole(target, path)
    if target.is_meta:
        raise UnsupportedError(f"{path}: the target is on the device 'meta' and has no memory to load into")
    if target.is_nested or target.is_quantized or str(target.layout) != "torch.strided":
        kind = "nested" if target.is_nested else "quantized" if target.is_quantized else target.layout
        raise UnsupportedError(f"{path}: the target is {kind}; a dense tensor can't be loaded into it")
    if target.is_inference() and not torch.is_inference_mode_enabled():
        raise UnsupportedError(f"{path}: the target was made in inference mode and can't be changed; load into a clone")
    if may_overlap(target.shape, target.stride(), 1):
        raise UnsupportedError(
            f"{path}: elements of the target share memory (as expand() makes them); load into a clone"
        )
    if target.numel() == 0 or type(target) not in (torch.Tensor, torch.nn.Parameter):
        return  # other classes may have no memory of their own
    span = 1 + sum((size - 1) * stride for size, stride in zip(target.shape, target.stride(), strict=True))
    try:
        if (target.storage_offset() + span) * target.element_size() > target.untyped_storage().nbytes():
            raise RuntimeError("its storage has been freed or is too small, as FSDP does it")
        with torch.no_grad():
            one = target.detach()[(0,) * target.ndim]
            one.data.copy_(one.clone())
    except Exception as error:
        raise UnsupportedError(f"{path}: the target can't be written: {error}") from None


def check_array(target: Any, path: str) -> None:
    if not target.flags.writeable:
        raise InvalidError(f"{path}: the target array is read-only")
    item = target.itemsize
    if any(stride % item for stride in target.strides):
        overlaps = may_overlap(target.shape, target.strides, item)
    else:
        overlaps = may_overlap(target.shape, [stride // item for stride in target.strides], 1)
    if overlaps:
        raise UnsupportedError(f"{path}: elements of the target array share memory; load into a copy")


# Optimizers


def check_optimizer(optimizer: Any, source: Any, path: str) -> None:
    """Check the groups of a stored state against those of an optimizer."""
    groups = source.get("param_groups") if isinstance(source, dict) else None
    if not isinstance(groups, list) or not isinstance(source.get("state"), dict):
        raise InvalidError(f"{path}: the snapshot has no optimizer's state there")
    _same(path, "number of parameter groups", len(groups), len(optimizer.param_groups))
    numbers: list[Any] = []
    for index, (stored, own) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        count = len(stored["params"]) if isinstance(stored, dict) and isinstance(stored.get("params"), list) else -1
        _same(f"{path}.param_groups.{index}", "number of parameters", count, len(own["params"]))
        numbers += stored["params"]
        if any(param.is_meta for param in own["params"]):
            raise UnsupportedError(f"{path}: the optimizer's parameters are on the device 'meta' and have no memory")
    try:
        known = set(numbers)
        strangers = [key for key in source["state"] if type(key) is int and key not in known]
    except TypeError:
        raise InvalidError(f"{path}.param_groups: the snapshot's parameters have no numbers") from None
    if len(known) < len(numbers):
        raise InvalidError(f"{path}.param_groups: the snapshot has a parameter twice")
    if strangers:
        raise InvalidError(f"{path}.state: the snapshot has {few(strangers)}, which no group has")


def check_groups(optimizer: Any, source: Any, made: list[dict[str, Any]], path: str, complete: bool = True) -> None:
    """Check stored groups against an optimizer's class; `made`: its groups, `complete` with defaults."""
    defaults = optimizer.defaults
    kind = type(optimizer).__name__
    of_torch = torchs_class(optimizer) is not None
    for index, (stored, own, group) in enumerate(
        zip(source["param_groups"], optimizer.param_groups, made, strict=True)
    ):
        place = f"{path}.param_groups.{index}"
        mine = [key for key in own if key in defaults]
        is_rule = [key for key in mine if of_torch and key in _RULE and key not in stored]
        wanted = is_rule or [key for key in mine if complete and key not in group]
        if wanted:
            raise InvalidError(f"{place}: the snapshot's optimizer is no {kind}: it has no {few(wanted)}")
        others = [key for key in stored if of_torch and key in _RULE and key not in defaults and key not in own]
        if others:
            raise InvalidError(f"{place}: the snapshot's optimizer is no {kind}: it has {few(others)}")
        decoupled = "decoupled_weight_decay"
        if {stored.get(decoupled), own.get(decoupled)} == {True, False}:
            raise InvalidError(f"{place}: the snapshot's optimizer is no {kind}: its {decoupled} differs")
        for key in mine:
            if key in group and not _fits(own[key], group[key]):
                raise InvalidError(f"{place}.{key}: the snapshot has {group[key]!r:.80}, the target {own[key]!r:.80}")
        on_cpu = any(param.device.type == "cpu" for param in own["params"])
        if group.get("capturable") and not own.get("capturable") and on_cpu:
            raise InvalidError(f"{place}: the snapshot's optimizer is capturable, which is not possible on the CPU")


def check_loaded(optimizer: Any, before: list[dict[str, Any]], path: str) -> None:
    """Check that an optimizer that loaded a state by itself has still its class's keys in all groups."""
    defaults = getattr(optimizer, "defaults", {})
    for index, (own, group) in enumerate(zip(before, optimizer.param_groups, strict=True)):
        missing = [key for key in own if key in defaults and key not in group]
        if missing:
            kind = type(optimizer).__name__
            raise InvalidError(f"{path}.param_groups.{index}: the snapshot's optimizer is no {kind}: no {few(missing)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "item") and getattr(value, "ndim", 1) == 0)


def _fits(own: Any, stored: Any) -> bool:
    if own is None or stored is None or isinstance(own, bool) or isinstance(stored, bool):
        return own is None or stored is None or isinstance(own, bool) == isinstance(stored, bool)
    if _is_number(own):
        return _is_number(stored)
    if type(own) in (tuple, list):
        return type(stored) in (tuple, list) and len(own) == len(stored) and all(map(_fits, own, stored))
    return isinstance(own, str) == isinstance(stored, str)


def torchs_class(optimizer: Any) -> str | None:
    """Return the name of torch's optimizer whose step an optimizer has; None: it has its own."""
    kinds = type(optimizer).__mro__
    own = next((place for place, kind in enumerate(kinds) if "step" in vars(kind)), len(kinds))
    if own == len(kinds) or not is_torchs(vars(kinds[own])["step"]):
        return None
    return next((kind.__name__ for kind in kinds[own:] if is_torchs(kind)), None)


def is_torchs(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "torch"


def check_slots(torch: Any, optimizer: Any, slots: Any, group: Mapping[str, Any], place: str) -> None:
    """Check that the stored state of a parameter has the keys that the next step needs."""
    name = torchs_class(optimizer)
    if name is None or not slots:
        return
    if not isinstance(slots, dict):
        raise InvalidError(f"{place}: the snapshot has {a_kind(slots)} there, not a parameter's state")
    needed = [*_STATE.get(name, ()), *(key for flag, key in _BY_GROUP.items() if name in _STATE and group.get(flag))]
    if name == "RMSprop" and group.get("momentum"):
        needed.append("momentum_buffer")
    missing = [key for key in needed if key not in slots]
    if missing:
        raise InvalidError(f"{place}: the snapshot's optimizer is no {type(optimizer).__name__}: no {few(missing)}")
    for key in needed:
        if not (torch.is_tensor(slots[key]) or (key in SCALARS and _is_number(slots[key]))):
            raise InvalidError(f"{place}.{key}: the snapshot has {a_kind(slots[key])}, not a tensor")


# Schedulers and scalers


def check_scaler(scaler: Any, source: Any, path: str) -> None:
    """Check a state against an enabled GradScaler of torch."""
    kind = type(scaler).__name__
    if not isinstance(source, dict):
        raise InvalidError(f"{path}: the snapshot has {a_kind(source)}, not {an(kind)}'s state")
    if not source:
        raise InvalidError(f"{path}: the snapshot has the state of a GradScaler that was disabled")
    if not is_torchs(type(scaler).load_state_dict):
        return
    own = scaler.state_dict()
    missing = [key for key in own if key not in source]
    if missing:
        raise NotFoundError(f"{path}: the snapshot has no {few(missing)} for the {kind}")
    for key in own:
        if not _is_number(source[key]):
            raise InvalidError(f"{path}.{key}: the snapshot has {a_kind(source[key])}, not a number")


def check_scheduler(torch: Any, scheduler: Any, source: Any, path: str) -> None:
    """Check the keys of a state against a scheduler of torch, and of those inside it.

    Private ones may differ between versions of torch, but those that `load_state_dict` takes out.
    """
    if not isinstance(source, dict):
        raise InvalidError(f"{path}: the snapshot has {a_kind(source)}, not a scheduler's state")
    own = scheduler.state_dict()
    kind = type(scheduler).__name__
    needed = [key for key in own if _is_of_scheduler(key) and key not in source]
    if needed:
        raise NotFoundError(f"{path}: the snapshot has no {few(needed)} for the {kind}")
    others = [key for key in source if _is_of_scheduler(key) and key not in own]
    if others:
        raise InvalidError(f"{path}: the {kind} has no {few(others)}, which the snapshot has")
    for key in ("base_lrs", "lr_lambdas", "_schedulers"):
        if isinstance(own.get(key), list):
            _same(f"{path}.{key}", "length", len(source[key]) if isinstance(source[key], list) else -1, len(own[key]))
    inside = getattr(scheduler, "_schedulers", None)
    for index, part in enumerate(inside if isinstance(inside, list | tuple) else ()):
        if isinstance(part, torch.optim.lr_scheduler.LRScheduler):
            check_scheduler(torch, part, source["_schedulers"][index], f"{path}._schedulers.{index}")


def _is_of_scheduler(key: Any) -> bool:
    return key in ("_schedulers", "_scale_fn_custom") or not (str(key).startswith("_") or key in _OF_VERSIONS)


# Containers


def like(target: Any, value: Any, path: str) -> Any:
    """Make a replaced value's containers of the target's classes, where these are no plain dict, list or tuple."""
    kind = type(target)
    if isinstance(target, enum.Enum) and not isinstance(value, enum.Enum):
        try:
            return value.of(kind) if type(value) is Member else kind(value)
        except Exception as error:
            raise InvalidError(f"{path}: the snapshot has no {kind.__qualname__}: {error}") from None
    if is_dataclass(target) and type(value) is dict:
        data = {key: like(getattr(target, key, None), child, f"{path}.{key}") for key, child in value.items()}
        return made_dataclass(kind, data, target)
    if isinstance(target, dict) and isinstance(value, dict):
        made = value
        if kind is not dict and kind is not type(value):
            made = _empty(target, path)
        for key, child in list(value.items()):
            made[key] = like(target.get(key), child, f"{path}.{key}") if key in target else child
        return made
    if isinstance(target, list | tuple | deque) and isinstance(value, list | tuple | deque):
        items = list(value)
        for index, (own, child) in enumerate(zip(target, value, strict=False)):
            items[index] = like(own, child, f"{path}.{index}")
        return remade(value if kind in (list, tuple) or type(value) is kind is deque else target, items, path)
    return value


def without_names(value: Any) -> Any:
    """Replace each `Member` by its value; dicts, lists, deques and dataclasses are changed in place."""
    if type(value) is Member:
        return value.value
    if isinstance(value, dict):
        for key, child in value.items():
            value[key] = without_names(child)
    elif isinstance(value, list | deque):
        items = [without_names(child) for child in value]
        value.clear()
        value.extend(items)
    elif is_sequence(value):
        return map_items(without_names, value)
    elif is_dataclass(value):
        for name, child in fields_of(value).items():
            object.__setattr__(value, name, without_names(child))
    return value


def is_dataclass(value: Any) -> bool:
    """Whether a value is an object of a dataclass that is no container, tensor or array, too."""
    if isinstance(value, type | dict | list | tuple | deque) or not dataclasses.is_dataclass(value):
        return False
    return not hasattr(value, "__array__")


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are set."""
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def changed(target: Any, fields: dict[str, Any], path: str) -> Any:
    """Make a copy of a dataclass with other values of its fields."""
    try:
        made = copy.copy(target)
        set_fields(made, fields)
    except Exception as error:
        raise UnsupportedError(f"{path}: no {type(target).__qualname__} can be made: {error}") from None
    return made


def _empty(target: Any, path: str) -> Any:
    try:
        made = copy.copy(target)
        made.clear()
    except Exception as error:
        raise UnsupportedError(f"{path}: no {type(target).__qualname__} can be made for the value: {error}") from None
    return made


def remade(target: Any, items: list[Any], path: str) -> Any:
    """Make a list, tuple or deque of a target's class, a deque of the target's longest length."""
    kind = type(target)
    try:
        if hasattr(kind, "_make"):
            return kind._make(items)
        if isinstance(target, deque):
            if target.maxlen is not None and len(items) > target.maxlen:
                raise TypeError(f"it has at most {target.maxlen}")
            made = _empty(target, path)
            made.extend(items)
            return made
        if isinstance(target, list) and kind is not list:
            made = _empty(target, path)
            made[:] = items
            return made
        return kind(items)
    except TypeError as error:
        raise InvalidError(f"{path}: the snapshot's {len(items)} items make no {kind.__qualname__}: {error}") from None


def _same(path: str, what: str, stored: Any, wanted: Any) -> None:
    if stored != wanted:
        raise InvalidError(f"{path}: the snapshot's {what} is {stored}, the target's {wanted}")
