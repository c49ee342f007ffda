# SPDX-License-Identifier: BSD-3-Clause
"""Objects of a checkpoint that a snapshot would not give back as they are: they are stored as pickles of torch."""

from __future__ import annotations

import dataclasses
import datetime
import io
import pathlib
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import torch

from .._arrays.torch import torch_of
from .._state.encode import Encoded
from .._text.arguments import a_kind, an
from ..errors import DamagedError, UnsupportedError

_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray})
_VALUES = frozenset(
    {torch.Size, torch.dtype, torch.device, set, frozenset, type(pathlib.Path()), pathlib.PurePosixPath}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone}
)
"""Returned as they are if they can be stored; so are NumPy's arrays and scalars."""
_MOST_DEPTH = 100
"""Deeper values go to the store as they are, which refuses what is too deep."""


@dataclasses.dataclass(frozen=True)
class Pickled:
    """An object that is stored as a pickle. It is not unpickled unless `load` is called."""

    type: str
    """The object's class."""
    data: bytes
    """What ``torch.save`` wrote."""

    def load(self, weights_only: bool | None = None) -> Any:
        """Unpickle it by ``torch.load``. ``weights_only=False`` runs any code that the pickle has."""
        return torch.load(io.BytesIO(self.data), weights_only=weights_only, map_location="cpu")

    def __repr__(self) -> str:
        return f"<lmcstore.lightning.Pickled {self.type}: its load() unpickles it>"


def plain(value: Any, path: str = "", depth: int = 0) -> Any:
    """Return a value with pickles in place of what a snapshot would not give back as it is; the same if it has none.

    UnsupportedError: an object is a shard of a tensor, or can't be pickled; the text begins with its path.
    """
    kind = type(value)
    if kind in _SCALARS or depth > _MOST_DEPTH or kind is Pickled:
        return value
    if isinstance(value, torch.Tensor):
        return value if _is_usual(value) or _can_be_stored(value) else pickled(value, path)
    if kind in (dict, OrderedDict, Counter, defaultdict):
        return _plain_dict(value, path, depth)
    if kind in (list, tuple, deque):
        made = [plain(item, f"{path}.{index}", depth + 1) for index, item in enumerate(value)]
        if all(new is old for new, old in zip(made, value, strict=True)):
            return value
        return pickled(value, path) if kind is deque else kind(made)
    is_value = kind in _VALUES or kind.__module__ == "numpy"
    return value if is_value and _can_be_stored(value) else pickled(value, path)


def _plain_dict(value: Any, path: str, depth: int) -> Any:
    if not all(type(key) in (str, int) for key in value) and not _can_be_stored(dict.fromkeys(value)):
        return pickled(value, path)
    changed = {}
    for key, item in value.items():
        made = plain(item, f"{path}.{key}" if path else str(key), depth + 1)
        if made is not item:
            changed[key] = made
    if type(value) is defaultdict:
        return pickled(value, path) if changed or not _can_be_stored(value) else value
    if not changed:
        return value
    copied = value.copy()
    copied.update(changed)
    if hasattr(value, "_metadata"):  # of a module's state
        copied._metadata = value._metadata
    return copied


def _is_usual(tensor: torch.Tensor) -> bool:
    known = torch_of(torch)
    return (
        type(tensor) in known.types
        and tensor.layout is torch.strided
        and tensor.dtype in known.number_of
        and not tensor.is_meta
    )


def _can_be_stored(value: Any) -> bool:
    try:
        Encoded({"value": value})
    except (UnsupportedError, RecursionError):
        return False
    return True


def pickled(value: Any, path: str) -> Pickled:
    """Pickle a value. UnsupportedError: it is a shard of a tensor, or can't be pickled."""
    kind = type(value)
    if callable(getattr(value, "full_tensor", None)) or callable(getattr(value, "local_shards", None)):
        raise UnsupportedError(
            f"{path}: {a_kind(value)} is a shard of a tensor: save it by StoreModelParallelStrategy or "
            "StoreFSDPStrategy of lmcstore.lightning, or of lmcstore.lightning.fabric"
        )
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
    except Exception as error:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise UnsupportedError(f"{path}: {an(name)} can be neither stored nor pickled: {error}") from error
    return Pickled(f"{kind.__module__}.{kind.__qualname__}", stream.getvalue())


def unpickled(value: Any, weights_only: bool | None, address: str, path: str = "") -> Any:
    """Replace pickles by their objects, in dicts and lists in place. UnsupportedError: `weights_only` refuses one."""
    if type(value) is Pickled:
        return _loaded(value, weights_only, f"{address}: {path}")
    if isinstance(value, dict):
        for key, item in value.items():
            made = unpickled(item, weights_only, address, f"{path}.{key}" if path else str(key))
            if made is not item:
                value[key] = made
    elif type(value) in (list, tuple):
        made = [unpickled(item, weights_only, address, f"{path}.{index}") for index, item in enumerate(value)]
        if any(new is not old for new, old in zip(made, value, strict=True)):
            return type(value)(made)
    return value


def _loaded(value: Pickled, weights_only: bool | None, place: str) -> Any:
    if type(value.data) is not bytes or type(value.type) is not str:
        raise DamagedError(f"{place} is no pickle")
    try:
        return value.load(weights_only)
    except Exception as error:
        if weights_only is False:
            raise UnsupportedError(f"{place}: {an(value.type)} can't be unpickled: {error}") from error
        raise UnsupportedError(
            f"{place} is {an(value.type)}, which is stored as a pickle. Unpickling it can run any code; if you trust "
            "who saved it, load with weights_only=False"
        ) from error


def move(value: dict[str, Any], map_location: Any) -> None:
    """Move the tensors of a checkpoint, which are on the CPU, as ``torch.load(map_location=...)`` does."""
    if map_location is None or str(map_location) == "cpu":
        return
    storages: dict[int, Any] = {}

    def place(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        found = storages.get(storage._cdata)
        if found is None:
            found = storages[storage._cdata] = (storage, _placed(storage, map_location))  # keeps the id's owner
        if found[1].device == tensor.device:
            return tensor
        made = torch.empty(0, dtype=tensor.dtype, device=found[1].device)
        return made.set_(found[1], tensor.storage_offset(), tensor.size(), tensor.stride())

    _mapped(value, place)


def _placed(storage: Any, map_location: Any) -> Any:
    if callable(map_location):
        made = map_location(storage, "cpu")
        return storage if made is None else made
    if isinstance(map_location, dict):
        map_location = map_location.get("cpu", map_location.get(torch.device("cpu"), "cpu"))
    device = torch.device(map_location)
    return torch.empty(0, dtype=torch.uint8).set_(storage).to(device).untyped_storage()


def _mapped(value: Any, change: Any) -> Any:
    if type(value) is torch.Tensor:
        return change(value)
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _mapped(item, change)
    elif type(value) in (list, tuple):
        return type(value)(_mapped(item, change) for item in value)
    return value
