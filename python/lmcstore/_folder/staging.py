# SPDX-License-Identifier: BSD-3-Clause
"""`Staging`: the state of a lazy save of DCP, whose tensors are copied in the thread that saves.

An optimizer's next step waits for the copy. DCP tells a writer nothing when a save fails before it writes, so the wait
also ends when the thread has left DCP. The save is then given up, and raises if it ever writes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.tensor import DTensor

from .._state.later import Later, optimizers_of
from ..copier import hooks_of
from ..errors import InvalidError
from .copies import Others, filled, walk

_DCP = "torch.distributed.checkpoint"
_POLL_SECONDS = 0.05
_BEGIN_SECONDS = 60.0
_REMEDY = (
    "so nothing is saved. Change tensors only in a step of an optimizer named by lazy=, or when the save has ended"
)


class Staging:
    """A state between `take`, in the thread that trains, and `copied`, in the thread that saves."""

    def __init__(self, lazy: Any) -> None:
        self._later = Later(optimizers_of(lazy), False, remedy=_REMEDY)
        self._ended = threading.Event()
        self._given_up = ""
        self._lock = threading.Lock()
        self._frame: tuple[int, FrameType] | None = None
        self._until: float | None = None
        self._pid = os.getpid()
        self._trains = threading.get_ident()

    def take(self, state: dict[str, Any], copied: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        """Return the state with the tensors that are copied later, and with copies of everything else."""
        hooks = hooks_of(self._later.optimizers)
        others = Others()
        tree = walk(state, "", lambda value, path: self._later_or(others, value, path))
        others.copy(copied)
        for hook in hooks:
            hook.add(self)  # type: ignore[arg-type]
        return filled(tree)

    def _later_or(self, others: Others, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor | ShardedTensor) and self._takes(value, path):
            return value if isinstance(value, ShardedTensor) else value.detach()
        return others.add(value, path)

    def _takes(self, tensor: Any, path: str) -> bool:
        if isinstance(tensor, ShardedTensor):
            return all(self._takes(shard.tensor, path) for shard in tensor.local_shards())
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        try:
            start = local.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            return False
        if not self._later.takes(local, start, path):
            return False
        if local is not tensor:
            self._later.watch(tensor, path)  # torch counts its changes there, not in its local tensor
        return True

    # In the thread that saves

    def begin(self) -> bool:
        """Note that DCP saves in this thread. False: it is the thread that trains, so this is another save."""
        if threading.get_ident() == self._trains:
            self.end()
            return False
        frame: FrameType | None = sys._getframe(1)
        outermost = frame
        while frame is not None:
            if frame.f_globals.get("__name__", "").startswith(_DCP):
                outermost = frame
            frame = frame.f_back
        assert outermost is not None
        self._frame = threading.get_ident(), outermost
        return True

    def copied(self) -> None:
        """Let the optimizers go on: everything is copied. InvalidError: something was changed before."""
        try:
            with self._lock:
                if self._given_up:
                    raise InvalidError(f"the save was given up, since {self._given_up}: tensors may have changed")
            self._later.check()
        finally:
            self.end()

    def end(self) -> None:
        """Let the optimizers go on."""
        self._ended.set()
        self._frame = None

    # For the optimizers' hooks, as `copier.Job`

    @property
    def ended(self) -> bool:
        """Whether no step needs to wait."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until everything is copied, or the save has ended. False: not yet. A forked child never waits."""
        end = None if timeout is None else time.monotonic() + timeout
        while os.getpid() == self._pid and not self._ended.is_set():
            left = _POLL_SECONDS if end is None else min(_POLL_SECONDS, end - time.monotonic())
            if left <= 0:
                return False
            if not self._ended.wait(left):
                self._look()
        return True

    def _look(self) -> None:
        """Give up if the save does not begin, or has left DCP."""
        known = self._frame
        if known is None:
            if self._until is None:
                self._until = time.monotonic() + _BEGIN_SECONDS
            if time.monotonic() > self._until:
                self._give_up(f"it had not begun when a step had waited {_BEGIN_SECONDS:.0f} s")
            return
        self._until = None
        thread, saves = known
        frame = sys._current_frames().get(thread)
        while frame is not None and frame is not saves:
            frame = frame.f_back
        if frame is None:
            self._give_up("its thread has left it")

    def _give_up(self, reason: str) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._given_up = reason
                self._ended.set()
