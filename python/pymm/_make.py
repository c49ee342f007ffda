# SPDX-License-Identifier: BSD-3-Clause
"""From values to variables and back: assigns a shelf's attributes and opens them."""

from __future__ import annotations

from typing import Any

import lmcstore
import numpy as np
from lmcstore import _core
from lmcstore._arrays.packages import loaded
from lmcstore._text.arguments import a_kind, an

from ._memory import (
    HIDDEN,
    PYTHON,
    RAW,
    Makers,
    MemoryReference,
    Names,
    Shadow,
    ShelfError,
    ShelvedCommon,
    raises_shelf_errors,
    read_note,
)
from .bytes import shelved_bytes
from .dlpack_array import shelved_dlpack_array
from .float_number import float_number, shelved_float_number
from .integer_number import integer_number, shelved_integer_number
from .linkedlist import linked_list, shelved_linked_list
from .ndarray import ndarray, open_array, shelved_ndarray
from .string import shelved_string, string

_SMALL = (shelved_integer_number, shelved_float_number, shelved_string, shelved_bytes)


def shadow_of(value: Any, name: str) -> Shadow:
    """Return the shadow that makes a variable of a value; ShelfError: no type fits."""
    if isinstance(value, Shadow):
        return value
    if isinstance(value, lmcstore.LazyTensor):
        value = value.read()
    if isinstance(value, np.ndarray):
        return ndarray.copy_of(value)
    torch = loaded("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from .torch_tensor import torch_tensor

        return torch_tensor.copy_of(value)
    if isinstance(value, np.generic):
        return _shadow_of_scalar(value)
    if isinstance(value, str):
        return string(str(value), getattr(value, "encoding", "utf-8"))
    if isinstance(value, bytes):
        from .bytes import bytes as shadow

        return shadow(value)
    if isinstance(value, float):
        return float_number(value)
    if isinstance(value, int):
        return integer_number(value)
    if isinstance(value, list | shelved_linked_list):
        return linked_list(list(value))
    if isinstance(value, shelved_dlpack_array):
        return value.copy_shadow()
    raise ShelfError(f"{name}: {an(type(value).__module__)}.{type(value).__qualname__} can't be put on a shelf")


def _shadow_of_scalar(value: Any) -> Shadow:
    if isinstance(value, np.bool_ | np.integer) and not isinstance(value, np.timedelta64):
        return integer_number(int(value))
    if isinstance(value, np.floating) and value.dtype.itemsize <= 8:
        return float_number(float(value))
    if isinstance(value, np.str_):
        return string(str(value))
    if isinstance(value, np.bytes_):
        from .bytes import bytes as shadow

        return shadow(bytes(value))
    return ndarray.copy_of(np.asarray(value))


def _is_the_same(current: Any, value: Any) -> bool:
    """Whether a value is the variable itself, through another object. A masked array has a mask, too."""
    if not (isinstance(current, shelved_ndarray) and isinstance(value, np.ndarray)) or hasattr(value, "mask"):
        return False
    return (
        current.dtype == value.dtype
        and current.__array_interface__["data"] == value.__array_interface__["data"]
        and current.shape == value.shape
        and current.strides == value.strides
        and current.size > 0
    )


def _check_own_view(current: Any, value: Any) -> None:
    torch = loaded("torch")
    if torch is None or not (isinstance(current, torch.Tensor) and isinstance(value, torch.Tensor)):
        return
    try:
        same = current.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return
    if same and current.numel() > 0:
        raise ShelfError("a tensor's own view can't be assigned to its name: assign a clone() of it")


@raises_shelf_errors
def assigned(names: Names, name: str, value: Any) -> Any:
    check_name(name)
    current = used(names, name) if isinstance(value, ShelvedCommon) else names.get(name)
    if _is_the_same(current, value):
        return current
    _check_own_view(current, value)
    shadow = shadow_of(value, name)
    try:
        return _stored(names, name, shadow)
    except lmcstore.FullError:
        raise  # nothing has changed
    except BaseException:
        names.pop(name, None)  # an interrupt may arrive after the change: the next use opens what the pool has
        raise


def _stored(names: Names, name: str, shadow: Shadow) -> Any:
    with names.lock:
        made = _changed_in_place(names, names.get(name), shadow)
        if made is not None:
            names[name] = made
            return made
    made = shadow.build(names, name)
    with names.lock:
        current = names.get(name)
        old = current if isinstance(current, shelved_linked_list) else _unopened_list(names, name, current)
        names.joins(name)
        names.pool.growing(made._value_named_memory.core.replace, name)
        names[name] = made
        if old is not None:
            old.erase_parts()
    return made


def _changed_in_place(names: Names, current: Any, shadow: Shadow) -> Any:
    """Set a number or a text in place: the fastest way, and as atomic."""
    if not isinstance(current, _SMALL):
        return None
    return current._changed(shadow)


def _unopened_list(names: Names, name: str, current: Any) -> shelved_linked_list | None:
    if current is not None:
        return None
    core = names.pool.open(name)
    if core is None or read_note(core.info()["note"])[1].get("type") != "linked_list":
        return None
    return shelved_linked_list(names, name, core)


def check_name(name: str) -> None:
    if not isinstance(name, str):
        raise ShelfError(f"a variable is named by a str, not by {a_kind(name)}")
    if not name or name.startswith(HIDDEN):
        raise ShelfError(f"a variable can't be named {name!r}: names are not empty and don't begin with {HIDDEN!r}")


@raises_shelf_errors
def used(names: Names, name: str) -> Any:
    """Return a variable, opened if necessary; None: there is none of that name."""
    with names.lock:
        found = names.get(name)
        if found is not None:
            return found
        core = names.pool.open(name)
        if core is not None:
            found = names[name] = object_of(names, name, core)
        return found


def object_of(names: Names, name: str, core: _core.Live) -> Any:
    info = core.info()
    note, extra = read_note(info["note"])
    kind = extra.get("type")
    if kind == "linked_list":
        return shelved_linked_list(names, name, core)
    if kind == "dlpack_array":
        return shelved_dlpack_array(names, name, core)
    if kind in ("string", "bytes"):
        known = shelved_string if kind == "string" else shelved_bytes
        return known.existing(names, name, core, extra)
    if info["form"] == _core.LIVE_VALUE:
        return _value(names, name, core, {} if note == PYTHON else {RAW: True})
    if note == "torch":
        from .torch_tensor import open_tensor

        return open_tensor(names, name, core, extra)
    return open_array(names, name, core)


def _value(names: Names, name: str, core: _core.Live, extra: dict[str, Any]) -> Any:
    from lmcstore.live import LiveValue

    value = LiveValue(core).get()
    for plain, shelved in (
        (int, shelved_integer_number),
        (float, shelved_float_number),
        (str, shelved_string),
        (bytes, shelved_bytes),
    ):
        if isinstance(value, plain):
            return shelved.over(value, MemoryReference(core, name, names, extra))
    raise ShelfError(f"{name}: a live value that holds {a_kind(value)} has no type in PyMM")


Makers.shadow_of = shadow_of
Makers.object_of = object_of
Makers.assigned = assigned
