# SPDX-License-Identifier: BSD-3-Clause
"""The values of a state that can't be stored: each with its path and a remedy, all in one error."""

from __future__ import annotations

import collections
import datetime
import enum
import pathlib
from typing import Any

from .._arrays.packages import loaded
from .._text.arguments import an
from ..errors import UnsupportedError
from .plain import base_with_data, filled_slots
from .scalars import Unpackable
from .skeleton import where

_MOST_LISTED = 10
_MOST_CHARACTERS = 400
MOST = 1000
"""So many refusals end the walk: a state of shared parts may have any number."""

_PARENTS = {"dict", "OrderedDict", "list", "tuple", "set", "Tensor", "ndarray", "int", "float", "str", "bytes"}

_BY_TYPE = {
    "builtins.range": "list(value)",
    "builtins.slice": "(value.start, value.stop, value.step)",
    "builtins.memoryview": "bytes(value)",
    "builtins.mappingproxy": "dict(value)",
    "builtins.function": "its name",
    "builtins.builtin_function_or_method": "its name",
    "builtins.type": "its name",
    "enum.EnumType": "its name",
    "array.array": "list(value)",
    "decimal.Decimal": "str(value)",
    "fractions.Fraction": "(value.numerator, value.denominator)",
    "random.Random": "value.getstate()",
    "types.SimpleNamespace": "vars(value)",
    "uuid.UUID": "str(value)",
    "torch.layout": "str(value)",
    "torch._C.Generator": "value.get_state()",
    "numpy.record": "value.item()",
    "numpy.random._generator.Generator": "value.bit_generator.state",
    "numpy.random.mtrand.RandomState": "value.get_state()",
    "pandas.core.frame.DataFrame": "value.to_dict('list')",
}

_BY_PARENT: dict[type, str] = {  # classes with data that `vars` does not return
    collections.deque: "collections.deque(value, value.maxlen)",
    datetime.datetime: "datetime.datetime.combine(value.date(), value.timetz())",
    datetime.date: "datetime.date(value.year, value.month, value.day)",
    datetime.time: "datetime.time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, "
    "fold=value.fold)",
    datetime.timedelta: "datetime.timedelta(value.days, value.seconds, value.microseconds)",
    pathlib.PurePath: "str(value)",
}


class Enough(Exception):
    """Ends the walk of a state with `MOST` refusals."""


class Refusals:
    """Collects refusals; `raise_all` raises them as one error."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add(self, error: UnsupportedError) -> None:
        self._texts.append(error.message)
        if len(self._texts) == MOST:
            raise Enough

    def raise_all(self) -> None:
        count = len(self._texts)
        if count == 1:
            raise UnsupportedError(self._texts[0])
        if count > 1:
            number = f"at least {count:,}" if count == MOST else f"{count:,}"
            texts = "".join(f"\n  {_short(text)}" for text in self._texts[:_MOST_LISTED])
            more = f"\n  and {count - _MOST_LISTED:,} more" if count > _MOST_LISTED else ""
            raise UnsupportedError(f"{number} values of the state can't be stored:{texts}{more}")


def _short(text: str) -> str:
    return (
        text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS // 2]}...{text[-_MOST_CHARACTERS // 2 :]}"
    )


def type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def refusal(value: Any, why: Unpackable, path: str) -> str:
    """Describe why a value at a path can't be stored, and give a remedy."""
    refused = why.value
    is_enum = isinstance(value, enum.Enum)
    outer = f"the value of the enum {type_name(value)}" if is_enum else an(type_name(value))
    inside = "" if refused is value else f" (in {outer})"
    if why.limit is not None:
        return f"{where(path)}: {an(type_name(refused))}{inside} can't be stored: it is {why.limit}"
    return f"{where(path)}: {an(type_name(refused))}{inside} can't be stored; {_remedy(value if is_enum else refused)}"


def _has_memory(tensor: Any) -> bool:
    try:
        return bool(tensor.numel() == 0 or tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return False


def _remedy(value: Any) -> str:
    torch = loaded("torch")
    kind = type(value)
    names = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    if torch is not None and hasattr(torch, "Tensor") and isinstance(value, torch.Tensor):
        if callable(getattr(value, "full_tensor", None)):
            return "store its full_tensor(), the whole on each rank, or its to_local(), this rank's part"
        if torch.nn.parameter.is_lazy(value):
            return "initialize it first, by a forward pass"
        if not _has_memory(value):
            return "it has no memory of its own: store the tensors of which it consists"
        return "it is not stored as its parent Tensor: store value.as_subclass(torch.Tensor)"
    if not isinstance(value, type) and callable(getattr(value, "state_dict", None)):
        return "store its state_dict()"
    if isinstance(value, enum.Enum):
        return "store value.name"
    known = next((_BY_TYPE[name] for name in names if name in _BY_TYPE), None)
    if known is not None:
        return f"store {known}"
    parent = next((base.__name__ for base in kind.__mro__[1:] if base.__name__ in _PARENTS), None)
    if parent == "ndarray" and hasattr(value, "mask"):
        return "store its data and its mask by themselves"
    if parent == "ndarray":
        return "it is not stored as its parent ndarray: store numpy.asarray(value)"
    if parent is not None:
        return f"it is not stored as its parent {parent}: store {parent}(value)"
    if kind not in _BY_PARENT:
        known = next((_BY_PARENT[base] for base in kind.__mro__ if base in _BY_PARENT), None)
        if known is not None:
            return f"store {known}"
    if getattr(value, "__dict__", None) and base_with_data(kind) is None and not filled_slots(value):
        return "store its data as dicts, lists and plain values, such as vars(value)"
    return "store its data as dicts, lists and plain values"
