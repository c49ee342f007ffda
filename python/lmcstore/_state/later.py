# SPDX-License-Identifier: BSD-3-Clause
"""`Later`: the tensors that a lazy snapshot copies after its call, and what shows that one was changed meanwhile.

torch counts the changes of a tensor in its version counter, which views and ``detach()`` share. A storage is kept, so
that ``p.data = other`` frees nothing that is still to be copied; the old bytes are then those of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .. import _core
from .._arrays.dtypes import U8
from ..errors import InvalidError, UnsupportedError


class Later:
    """Chooses tensors, and watches them.

    `optimizers`: the tensors that share storages with their parameters and states; None: all tensors. `verify`:
    compares hashes of the bytes, too; tensors on devices, and arrays, are then copied at once.
    """

    def __init__(self, optimizers: list[Any] | None, verify: bool) -> None:
        self._takes_all = optimizers is None
        self._verify = verify
        self._starts: dict[int, list[tuple[Any, str]]] = {}  # storages' addresses: an optimizer's tensors there
        self._taken: set[int] = set()
        self._refused: set[int] = set()
        self._watched: list[tuple[Any, int, str]] = []
        self._storages: list[tuple[Any, int, int, str]] = []
        self._hashes: list[str] = []
        for number, optimizer in enumerate(optimizers or ()):
            for name, tensor in _tensors_of(optimizer):
                start = _start_of(tensor)
                if start:
                    self._starts.setdefault(start, []).append((tensor, f"optimizer {number}, {name}"))

    @property
    def takes_arrays(self) -> bool:
        """Whether NumPy arrays are copied later, too."""
        return self._takes_all and not self._verify

    def takes(self, tensor: Any, start: int, path: str) -> bool:
        """Whether a tensor, whose storage is at `start`, is copied later; it is watched then."""
        if tensor.is_inference():  # torch counts no changes
            return False
        if start not in self._taken:
            if (not self._takes_all and start not in self._starts) or start in self._refused:
                return False
            if (self._verify and not tensor.is_cpu) or _core.live_is_mapped(start):
                self._refused.add(start)
                return False
            self._take(tensor.untyped_storage(), start, path)
        self._watched.append((tensor, tensor._version, path))
        return True

    def _take(self, storage: Any, start: int, path: str) -> None:
        self._taken.add(start)
        self._storages.append((storage, start, storage.nbytes(), path))
        if self._verify:
            self._hashes.append(_hash(storage, start, storage.nbytes()))
        self._watched += [(tensor, tensor._version, name) for tensor, name in self._starts.get(start, ())]

    def check(self) -> None:
        """Compare everything with the call; InvalidError: the copy may have parts of two states."""
        for tensor, version, path in self._watched:
            if tensor._version != version:
                raise InvalidError(f"{path}: it was changed before it was copied{_REMEDY}")
        for number, (storage, start, size, path) in enumerate(self._storages):
            if storage.data_ptr() != start or storage.nbytes() != size:
                raise InvalidError(f"{path}: its storage was freed or resized before it was copied{_REMEDY}")
            if self._verify and _hash(storage, start, size) != self._hashes[number]:
                raise InvalidError(f"{path}: its bytes were changed before they were copied{_REMEDY}")


_REMEDY = (
    ", so this snapshot was not taken. Change tensors only in a step of an optimizer named by lazy=, or after the "
    "snapshot's captured() has returned"
)


def _hash(storage: Any, start: int, size: int) -> str:
    with memoryview(_core.memory(storage, start, size)) as data:
        return _core.codec_digest(data, U8, 0)


def _start_of(tensor: Any) -> int:
    """Return the address of a tensor's storage; 0: it has none of its own."""
    try:
        start: int = 0 if tensor.is_inference() else tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
    return start


def _tensors_of(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Give the parameters of an optimizer, and the tensors of its states."""
    for group in optimizer.param_groups:
        for number, parameter in enumerate(group["params"]):
            yield f"parameter {number}", parameter
            state = optimizer.state.get(parameter)
            if state is not None:
                yield from _tensors_in(state, f"the state of parameter {number}")


def _tensors_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if hasattr(value, "untyped_storage"):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors_in(item, f"{path}, {key!r}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item, path)


def optimizers_of(lazy: Any) -> list[Any] | None:
    """Return the optimizers that ``lazy=`` names; None: it is True.

    UnsupportedError: one of them is no optimizer of torch, nor a wrapper of one.
    """
    if lazy is True:
        return None
    given = list(lazy) if isinstance(lazy, Iterable) else [lazy]
    return [_optimizer_in(each) for each in given]


def _optimizer_in(value: Any) -> Any:
    inner = value
    while inner is not None and not hasattr(inner, "register_step_pre_hook"):
        inner = getattr(inner, "optimizer", None)  # as in Accelerate
    if inner is None:
        raise UnsupportedError(
            f"lazy= takes True, or optimizers of torch (one or a list), whose step tells that tensors change, not a "
            f"{type(value).__qualname__}"
        )
    return inner
