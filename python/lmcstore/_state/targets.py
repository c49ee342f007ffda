# SPDX-License-Identifier: BSD-3-Clause
"""The targets of `Snapshot.load_into`: their kinds, and the states that it loads into them."""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

from .._arrays.packages import loaded
from .._text.arguments import a_kind
from ..errors import UnsupportedError
from .keys import below, uncompiled
from .plain import is_sequence, map_items
from .scalars import MAX_DEPTH


class Kinds:
    """Tells targets apart."""

    def __init__(self) -> None:
        self._torch = loaded("torch")
        self._numpy = loaded("numpy")

    def _is_tensor(self, value: Any) -> bool:
        return self._torch is not None and isinstance(value, self._torch.Tensor)

    def _is_array(self, value: Any) -> bool:
        return self._numpy is not None and isinstance(value, self._numpy.ndarray)

    def _is_generator(self, value: Any) -> bool:
        return self._torch is not None and isinstance(value, self._torch.Generator)

    def _is_random(self, value: Any) -> bool:
        return value is random or isinstance(value, random.Random)

    def _is_numpy_generator(self, value: Any) -> bool:
        return self._numpy is not None and isinstance(value, self._numpy.random.Generator)

    def _is_random_state(self, value: Any) -> bool:
        if self._numpy is None:
            return False
        return value is self._numpy.random or isinstance(value, self._numpy.random.RandomState)

    def _is_filled(self, value: Any) -> bool:
        """Whether a value without ``load_state_dict``, other than a container, is filled in place."""
        kinds = (
            self._is_tensor,
            self._is_array,
            self._is_generator,
            self._is_random,
            self._is_numpy_generator,
            self._is_random_state,
        )
        return any(is_kind(value) for is_kind in kinds)


class States(Kinds):
    """Takes the states of objects, as `Plan.add` loads them."""

    def of(self, target: Any) -> Any:
        """Return the state of a target; of a module inside wrappers, whose keys are those of the module alone."""
        if hasattr(target, "state_dict"):
            return uncompiled(self.inside(target).state_dict())
        if self._is_generator(target) or self._is_random_state(target):
            return target.get_state()
        if self._is_random(target):
            return target.getstate()
        if self._is_numpy_generator(target):
            return target.bit_generator.state
        if isinstance(target, dict):
            return {key: self.of(value) for key, value in target.items()}
        return map_items(self.of, target)

    def inside(self, target: Any) -> Any:
        """Return the module in wrappers of ``torch.compile`` and of data parallelism; other targets as they are."""
        torch: Any = self._torch
        if torch is None or not isinstance(target, torch.nn.Module):
            return target
        parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.parallel.DataParallel)
        while True:
            if target._modules.get("_orig_mod") is not None:
                target = target._modules["_orig_mod"]
            elif isinstance(target, parallel):
                target = target.module
            else:
                return target

    def optimizers(self, target: Any) -> Iterator[Any]:
        """Yield torch's optimizers among targets."""
        if self._torch is not None and isinstance(target, self._torch.optim.Optimizer):
            yield target
        elif isinstance(target, dict) or is_sequence(target):
            for value in target.values() if isinstance(target, dict) else target:
                yield from self.optimizers(value)

    def check(self, target: Any, path: str, depth: int = 0, in_dict: bool = False) -> None:
        """Check that a target has a state that can be loaded; in dicts, plain values are states themselves."""
        if isinstance(target, type):
            _refuse(path, f"{target.__qualname__} is a class: give an object of it")
        if depth > MAX_DEPTH:
            _refuse(path, f"it is nested more than {MAX_DEPTH} levels deep, or holds itself")
        if hasattr(target, "state_dict") or hasattr(target, "load_state_dict"):
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(target, method, None)):
                    _refuse(path, f"{a_kind(target)} has no {method}: its state can't be kept")
        elif self._is_loader(target):
            _refuse(
                path,
                f"torch's {type(target).__qualname__} has no state_dict, so its position can't be kept: use "
                "torchdata's StatefulDataLoader, which takes the same arguments; or leave it out, and skip the batches "
                "that are done",
            )
        elif isinstance(target, dict):
            for key, value in target.items():
                self.check(value, below(path, key), depth + 1, True)
        elif is_sequence(target):
            for index, value in enumerate(target):
                self.check(value, below(path, index), depth + 1, in_dict)
        elif not in_dict and not self._is_filled(target):
            _refuse(
                path,
                f"{a_kind(target)} has no state_dict and load_state_dict: give plain values in a dict, which is filled",
            )

    def _is_loader(self, value: Any) -> bool:
        data = loaded("torch.utils.data")
        return data is not None and isinstance(value, data.DataLoader)


def _refuse(path: str, reason: str) -> NoReturn:
    raise UnsupportedError(f"{path}: {reason}")


def generators(names: Collection[str] = ()) -> dict[str, Any]:
    """Return the generators that programs use by default: those in use, and those of `names` that there are."""
    for name in ("numpy", "torch"):
        if name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    found: dict[str, Any] = {"python": random}
    numpy, torch = loaded("numpy"), loaded("torch")
    if numpy is not None:
        found["numpy"] = numpy.random
    if torch is not None:
        found["torch"] = torch.default_generator
        if any(name.startswith("cuda:") for name in names) and torch.cuda.is_available():
            torch.cuda.init()
        if torch.cuda.is_initialized():
            found |= {f"cuda:{index}": one for index, one in enumerate(torch.cuda.default_generators)}
    return found


def generators_of(names: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the generators of these names, None for those that are not there, and the names of these."""
    there = generators(names)
    return {name: there.get(name) for name in names}, [name for name in names if name not in there]
