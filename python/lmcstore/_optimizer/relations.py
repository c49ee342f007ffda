# SPDX-License-Identifier: BSD-3-Clause
"""The tensors of a state that an optimizer's step changes together, and the constants of the step.

A link (see codec/README.md) encodes a step of Adam, AdamW or SGD by its gradient, given a parameter and its moments.
`Finder` matches these: `Optimizer.state_dict()` numbers the parameters in the optimizer's order, group by group; a
module's `state_dict()` lists them in the module's order, among its buffers. Moments outside of an optimizer's
`state_dict()` are matched by their paths.

A wrong match loses nothing: the store tries every relation on a sample before it uses it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .. import _core
from . import paths
from .outline import Outline, Way

ADAM, SGD = _core.ADAM, _core.SGD
L2, AMSGRAD, NESTEROV = _core.LINK_L2, _core.LINK_AMSGRAD, _core.LINK_NESTEROV

_ADAM_GROUP = {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"}
_ADAM_STATE = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
_SGD_GROUP = {"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"}
_SGD_STATE = {"momentum_buffer"}
_BUFFERS = {"running_mean", "running_var"}
"""Last keys of buffers with a parameter's shape."""
_OTHERS = {"momentum_decay", "lr_decay", "alpha", "rho", "etas"}  # of other optimizers with similar groups

_COPIES = {"avg", "average", "averaged", "best", "ema", "init", "initial", "key", "momentum", "old", "previous"} | {
    "ref",
    "reference",
    "shadow",
    "swa",
    "target",
    "teacher",
}
"""Words in keys of copies of a model that no optimizer changes."""

_NOT_TORCHS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""Errors of reading a state_dict that torch did not make."""


class Relation(NamedTuple):
    """Parameters and their moments that one step changed by the same constants."""

    optimizer: int
    """`ADAM` or `SGD`."""
    flags: int
    """`L2`, `AMSGRAD`, `NESTEROV`."""
    constants: tuple[float, ...]
    """Step, lr, weight_decay, beta1, beta2, eps, momentum, dampening, and the gradients' scale; 0: unused, or unknown.
    """
    members: list[tuple[str, ...]]
    """Names of the tensors in the order of lmc.h: Adam's are exp_avg, exp_avg_sq, the parameter and, with `AMSGRAD`,
    max_exp_avg_sq; SGD's are momentum_buffer and the parameter."""


class _Rule(NamedTuple):
    optimizer: int
    flags: int
    constants: tuple[float, ...]
    """As in `Relation`, without the step and the scale."""
    moments: tuple[str, ...]
    """Keys of the arrays that lead up to the parameter."""


class _Slot(NamedTuple):
    group: int
    key: Any
    """Of its state."""
    shape: tuple[int, ...]
    name: str | None
    """In the module, if the optimizer was given names."""
    rule: _Rule
    state: Mapping[str, Any]

    def arrays(self, parameter: Any) -> list[Any]:
        most = [self.state.get("max_exp_avg_sq")] if self.rule.flags & AMSGRAD else []
        return [*(self.state.get(key) for key in self.rule.moments), parameter, *most]


class _Group(NamedTuple):
    """Keys of states, and the names of these tensors and the parameters."""

    number: int
    members: list[tuple[Any, tuple[str, ...]]]


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)


def _rule_of(group: Mapping[str, Any]) -> _Rule | None:
    """Read a group's rule; None: links do not support it."""
    if not _OTHERS.isdisjoint(group):
        return None
    if group.keys() >= _ADAM_GROUP:
        beta1, beta2 = group["betas"]
        decay = _number(group["weight_decay"])
        flags = AMSGRAD if group["amsgrad"] else 0
        if decay != 0 and group.get("decoupled_weight_decay") is False:
            flags |= L2
        constants = (_number(group["lr"]), decay, _number(beta1), _number(beta2), _number(group["eps"]), 0.0, 0.0)
        return _Rule(ADAM, flags, constants, ("exp_avg", "exp_avg_sq"))
    if group.keys() >= _SGD_GROUP and _number(group["momentum"]) != 0:
        momentum, dampening = _number(group["momentum"]), _number(group["dampening"])
        constants = (_number(group["lr"]), _number(group["weight_decay"]), 0.0, 0.0, 0.0, momentum, dampening)
        return _Rule(SGD, NESTEROV if group["nesterov"] else 0, constants, ("momentum_buffer",))
    return None


def _slots(optimizer: Mapping[str, Any], is_tensor: Callable[[Any], bool]) -> list[list[_Slot]]:
    """List the parameters with moments that links can encode, in the optimizer's order, by groups."""
    slots: list[list[_Slot]] = []
    for index, group in enumerate(optimizer["param_groups"]):
        try:
            rule = _rule_of(group)
            params = list(group["params"])
        except _NOT_TORCHS:
            continue  # not made by torch
        names = group.get("param_names")
        if not isinstance(names, list) or len(names) != len(params):
            names = [None] * len(params)
        found = []
        for number, name in zip(params, names, strict=True):
            state = optimizer["state"].get(number) if isinstance(number, int | str) else None
            if rule is None or not isinstance(state, Mapping):
                continue
            first = state.get(rule.moments[0])
            known = _ADAM_STATE if rule.optimizer == ADAM else _SGD_STATE
            if first is not None and is_tensor(first) and state.keys() <= known:
                called = name if isinstance(name, str) else None
                found.append(_Slot(index, number, tuple(first.shape), called, rule, state))
        slots.append(found)
    return slots


def _by_order(slots: list[_Slot], tensors: list[tuple[str, Any]], taken: set[int]) -> list[int] | None:
    """Match slots and tensors in order; None: some are missing."""
    places = []
    at = 0
    for slot in slots:
        while at < len(tensors) and (at in taken or tuple(tensors[at][1].shape) != slot.shape):
            at += 1
        if at == len(tensors):
            return None
        places.append(at)
        at += 1
    return places


def _by_name(slots: list[_Slot], tensors: list[tuple[str, Any]]) -> list[int] | None:
    at: dict[str, int] = {}
    for place, (path, _) in enumerate(tensors):
        parts = path.split(".")
        for begin in range(min(3, len(parts))):
            at.setdefault(".".join(parts[begin:]), place)
    places = [at.get(slot.name, -1) if slot.name is not None else -1 for slot in slots]
    fits = all(p >= 0 and tuple(tensors[p][1].shape) == s.shape for p, s in zip(places, slots, strict=True))
    return places if fits and len(set(places)) == len(places) else None


def _by_shape(slots: list[_Slot], tensors: list[tuple[str, Any]]) -> list[int] | None:
    """Match slots and tensors of each shape in order, as a guess: the store searches those that do not fit."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, (_, tensor) in enumerate(tensors):
        places.setdefault(tuple(tensor.shape), []).append(place)
    rests = {shape: iter(of_shape) for shape, of_shape in places.items()}
    found = [next(rests.get(slot.shape, iter(())), -1) for slot in slots]
    return None if -1 in found else found


def _places(groups: list[list[_Slot]], tensors: list[tuple[str, Any]]) -> list[int] | None:
    """Match the parameters of all groups: by name, else all in order, else each group in order."""
    slots = [slot for group in groups for slot in group]
    places = _by_name(slots, tensors)
    if places is None:
        places = _by_order(slots, tensors, set())
    if places is not None:
        return places
    taken: set[int] = set()
    places = []
    for group in groups:
        found = _by_order(group, tensors, taken)
        if found is None:
            return None
        taken.update(found)
        places += found
    return places


def _shared(a: Way, b: Way) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def _is_copy(path: Way) -> bool:
    return any(not _COPIES.isdisjoint(re.split("[^a-z]+", key.lower())) for key in path)


def _best_places(path: Way, groups: list[list[_Slot]], modules: _Modules, taken: set[int]) -> list[Any] | None:
    """Find the parameters of the optimizer at `path` in the smallest container that has them all.

    Of equally small ones it prefers one not called a copy, then the nearest to the optimizer, then the first; one in
    the optimizer's order comes before all others. Tensors in `taken` (by `id`) belong to another optimizer.
    """

    def rank(container: tuple[Way, int, int]) -> tuple[int, bool, int]:
        way, begin, end = container
        return end - begin, _is_copy(way), -_shared(way, path)

    slots = [slot for group in groups for slot in group]
    containers = sorted(modules.containers, key=rank)
    for ordered in (True, False):
        for _, begin, end in containers:
            tensors = [item for item in modules.tensors[begin:end] if id(item[1]) not in taken]
            if len(slots) > len(tensors):
                continue
            places = _places(groups, tensors) if ordered else _by_shape(slots, tensors)
            if places is not None:
                return [tensors[place][1] for place in places]
    return None


class Finder:
    """Finds the relations of a shelf's states; keeps the plan for a next state with the same tensors."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._forms: list[Any] = []
        self._plan: list[tuple[Way, list[_Group]]] = []
        self._matches: list[_Match] = []

    def find(self, outline: Outline, is_tensor: Callable[[Any], bool], scale: float) -> list[Relation]:
        """Find the relations of a state: one for each optimizer, parameter group and step.

        A state with the tensor names and the forms of rules of the one before is taken to be built like it. `is_tensor`
        is true of a dense tensor of f32. `scale`: the factor of bf16 gradients before the step; 0: unknown.
        """
        names = outline.records[1 :: Outline.FIELDS]
        forms = [[_form(group) for group in optimizer["param_groups"]] for _, optimizer in outline.optimizers]
        if names != self._names or forms != self._forms:
            taken: set[str] = set()
            self._plan = list(_plan(outline, is_tensor, taken))
            self._matches = _matches(outline, is_tensor, taken)
            self._names, self._forms = names, forms
        optimizers = {stretch.way: optimizer for stretch, optimizer in outline.optimizers}
        relations: dict[tuple[Any, ...], Relation] = {}
        for way, groups in self._plan:
            for group in groups if way in optimizers else ():
                _relate(optimizers[way], group, scale, relations)
        for found in self._matches:
            _relate_match(outline.dicts.get(found.container, {}), found, scale, relations)
        return list(relations.values())


def _form(group: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the parts of a group's rule that the names of a relation depend on."""
    try:
        rule = _rule_of(group)
    except _NOT_TORCHS:
        return None
    return None if rule is None else (rule.optimizer, rule.flags & AMSGRAD)


class _Modules:
    """The tensors outside of optimizers, and their containers."""

    def __init__(self, outline: Outline, is_tensor: Callable[[Any], bool]) -> None:
        self.tensors: list[tuple[str, Any]] = []
        """Paths and tensors, in the state's order."""
        places, skip = [0], [(stretch.begin, stretch.end) for stretch, _ in outline.optimizers][::-1]
        for at in range(0, len(outline.records), Outline.FIELDS):
            while skip and skip[-1][1] <= at:
                skip.pop()
            path, tensor = outline.records[at], outline.records[at + Outline.FIELDS - 1]
            is_inside = skip and skip[-1][0] <= at
            if not is_inside and path.rpartition(".")[2] not in _BUFFERS and is_tensor(tensor):
                self.tensors.append((path, tensor))
            places.append(len(self.tensors))
        self.containers: list[tuple[Way, int, int]] = []
        """Stretches of `tensors`; the last is all of them."""
        for way, begin, end in outline.containers:
            first, last = places[begin // Outline.FIELDS], places[end // Outline.FIELDS]
            if last > first:
                self.containers.append((way, first, last))
        self.containers.append(((), 0, len(self.tensors)))


class _Match(NamedTuple):
    """Tensors matched by their paths, and where a flattened dict has their constants."""

    members: tuple[str, ...]
    container: str
    state: str
    """What the keys of its state begin with."""
    group: str


_FLAT_GROUP = _ADAM_GROUP | _SGD_GROUP | _OTHERS | {"decoupled_weight_decay"}


def _matches(outline: Outline, is_tensor: Callable[[Any], bool], taken: set[str]) -> list[_Match]:
    """Match the tensors that are not `taken`, by name."""
    names, shapes = {}, {}
    for at in range(0, len(outline.records), Outline.FIELDS):
        path, name, *_, tensor = outline.records[at : at + Outline.FIELDS]
        if name not in taken and path == name and is_tensor(tensor):
            names[path], shapes[path] = name, tuple(tensor.shape)
    found = []
    for members, stem in paths.match(shapes, _is_copy):
        dicts = [path for path in outline.dicts if not path or stem.startswith(path + ".")]
        container = max(dicts, key=len, default="")
        state = stem[len(container) + 1 :] if container else stem
        above, _, rest = state.rpartition("state.") if state.count("state.") == 1 else ("", "", "")
        group = f"{above}param_groups.{rest}" if rest else ""
        found.append(_Match(tuple(names[path] for path in members), container, state, group))
    return found


def _relate_match(
    values: Mapping[Any, Any], found: _Match, scale: float, relations: dict[tuple[Any, ...], Relation]
) -> None:
    """Add the relation of tensors matched by their paths. Constants are 0 where no flattened dict has them."""
    optimizer, flags = (SGD, 0) if len(found.members) == 2 else (ADAM, AMSGRAD if len(found.members) == 4 else 0)
    constants: tuple[float, ...] = (*([0.0] * 8), scale)
    try:
        group = {key: values[found.group + key] for key in _FLAT_GROUP if found.group + key in values}
        rule = _rule_of(group) if found.group else None
        if rule is not None and rule.optimizer == optimizer and rule.flags & AMSGRAD == flags:
            told = (_number(values.get(found.state + "step", 0.0)), *rule.constants, scale)
            if all(map(math.isfinite, told)):
                constants, flags = told, rule.flags
    except _NOT_TORCHS:
        pass  # not made by torch
    same = (None, optimizer, flags, constants)
    relations.setdefault(same, Relation(optimizer, flags, constants, [])).members.append(found.members)


def _plan(outline: Outline, is_tensor: Callable[[Any], bool], related: set[str]) -> Iterable[tuple[Way, list[_Group]]]:
    """Match the parameters of all optimizers; `related` gets the names of their tensors."""
    modules = _Modules(outline, is_tensor)
    tensors = outline.records[Outline.FIELDS - 1 :: Outline.FIELDS]
    names = {id(tensor): name for tensor, name in zip(tensors, outline.records[1 :: Outline.FIELDS], strict=True)}
    taken: set[int] = set()
    for stretch, optimizer in outline.optimizers:
        groups = _slots(optimizer, is_tensor)
        slots = [slot for group in groups for slot in group]
        parameters = _best_places(stretch.way, groups, modules, taken) if slots else None
        if parameters is None:
            continue
        taken.update(map(id, parameters))
        found: dict[int, _Group] = {}
        for slot, parameter in zip(slots, parameters, strict=True):
            arrays = slot.arrays(parameter)
            fits = all(is_tensor(array) and tuple(array.shape) == slot.shape for array in arrays)
            members = tuple(names[id(array)] for array in arrays if id(array) in names) if fits else ()
            if len(members) == len(arrays) == len(set(members)):
                found.setdefault(slot.group, _Group(slot.group, [])).members.append((slot.key, members))
                related.update(members)
        yield stretch.way, list(found.values())


def _relate(
    optimizer: Mapping[str, Any], group: _Group, scale: float, relations: dict[tuple[Any, ...], Relation]
) -> None:
    """Add a group's relations, by its constants and by the step of each parameter."""
    try:
        rule = _rule_of(optimizer["param_groups"][group.number])
        if rule is None:
            return
        for key, members in group.members:
            step = _number(optimizer["state"][key].get("step", 0.0))
            constants = (step, *rule.constants, scale)
            if not all(map(math.isfinite, constants)):
                continue  # a diverged run is stored all the same
            same = (group.number, rule.optimizer, rule.flags, constants)
            relations.setdefault(same, Relation(rule.optimizer, rule.flags, constants, [])).members.append(members)
    except _NOT_TORCHS:
        return  # not made by torch; earlier relations are right
