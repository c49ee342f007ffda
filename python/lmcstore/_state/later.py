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

    def __init__(
        self, optimizers: list[Any] | None, verify: bool, step: int | None = None, remedy: str | None = None
    ) -> None:
        self._takes_all = optimizers is None
        self.optimizers = optimizers or []
        self._verify = verify
        self.snapshot = "this snapshot" if step is None else f"the snapshot of step {step}"
        self._remedy = remedy or (
            f"so {self.snapshot} was not taken. Until a snapshot is copied, only steps of its optimizers may change "
            "its tensors: before other changes call its captured(), or take it with lazy=False"
        )
        self._starts: dict[int, list[Any]] = {}  # storages' addresses: the optimizers' tensors there
        self._refused: set[int] = set()
        self._watched: list[tuple[Any, int, str]] = []
        self._others: list[tuple[Any, int, str]] = []  # the optimizers' own, with the path of one of the same storage
        self._storages: dict[int, tuple[Any, int, str, str | None]] = {}  # taken, by address: size, path, hash
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._know(parameter)
                    self._know_all(optimizer.state.get(parameter))

    def _know_all(self, value: Any) -> None:
        if hasattr(value, "untyped_storage"):
            self._know(value)
        elif isinstance(value, dict | list | tuple):
            for item in value.values() if isinstance(value, dict) else value:
                self._know_all(item)

    def _know(self, tensor: Any) -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        try:
            start = local.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):  # it has no storage of its own
            return
        if start:
            # A change through a DTensor counts in its own counter only.
            self._starts.setdefault(start, []).extend((tensor,) if local is tensor else (local, tensor))

    @property
    def takes_arrays(self) -> bool:
        """Whether NumPy arrays are copied later, too."""
        return self._takes_all and not self._verify

    def takes(self, tensor: Any, start: int, path: str) -> bool:
        """Whether a tensor, whose storage is at `start`, is copied later; it is watched then."""
        try:
            version = tensor._version
        except RuntimeError:  # of inference: torch counts no changes
            return False
        if start not in self._storages and not self._take(tensor, start, path):
            return False
        self._watched.append((tensor, version, path))
        return True

    def watch(self, tensor: Any, path: str) -> None:
        """Watch a tensor, too, such as a DTensor whose local tensor is taken."""
        self._watched.append((tensor, tensor._version, path))

    def _take(self, tensor: Any, start: int, path: str) -> bool:
        known = self._starts.get(start, () if self._takes_all else None)
        if known is None or start in self._refused:
            return False
        if (self._verify and not tensor.is_cpu) or _core.live_is_mapped(start):
            self._refused.add(start)
            return False
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        self._storages[start] = storage, size, path, _hash(storage, start, size) if self._verify else None
        for other in known:
            if other is not tensor and not other.is_inference():
                self._others.append((other, other._version, path))
        return True

    def check(self) -> None:
        """Compare everything with the call; InvalidError: the copy may have parts of two states."""
        for tensor, version, path in (*self._watched, *self._others):
            if tensor._version != version:
                raise InvalidError(f"{path}: it was changed before it was copied, {self._remedy}")
        for start, (storage, size, path, hashed) in self._storages.items():
            if storage.data_ptr() != start or storage.nbytes() != size:
                raise InvalidError(f"{path}: its storage was freed or resized before it was copied, {self._remedy}")
            if hashed is not None and _hash(storage, start, size) != hashed:
                raise InvalidError(f"{path}: its bytes were changed before they were copied, {self._remedy}")


def _hash(storage: Any, start: int, size: int) -> str:
    with memoryview(_core.memory(storage, start, size)) as data:
        return _core.codec_digest(data, U8, 0)


def may_replay(optimizer: Any) -> bool:
    """Whether a CUDA graph may have an optimizer's steps: its replay calls no hook, and torch counts no change."""
    return any(group.get("capturable") for group in optimizer.param_groups)


def optimizers_of(lazy: Any) -> list[Any] | None:
    """Return the optimizers that ``lazy=`` names, with those that they wrap; None: it is True.

    UnsupportedError: one of them is no optimizer of torch, nor a wrapper of one.
    """
    if lazy is True:
        return None
    given = list(lazy) if isinstance(lazy, Iterable) else [lazy]
    return [optimizer for each in given for optimizer in _optimizers_in(each)]


def _optimizers_in(value: Any) -> Iterator[Any]:
    """Yield a wrapper, whose step may change tensors before the inner one's, if it has hooks, and what it wraps."""
    inner = value
    while getattr(inner, "optimizer", None) is not None:
        if "_optimizer_step_pre_hooks" in getattr(inner, "__dict__", ()):  # Accelerate's has their methods only
            yield inner
        inner = inner.optimizer
    if not hasattr(inner, "register_step_pre_hook"):
        raise UnsupportedError(
            f"lazy= takes True, or optimizers of torch (one or a list), whose step tells that tensors change, not a "
            f"{type(value).__qualname__}"
        )
    yield inner
