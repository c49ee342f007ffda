# SPDX-License-Identifier: BSD-3-Clause
"""`Job`: the thread that copies the tensors of a lazy snapshot, and the optimizers' hooks that wait for it.

Before a step, an optimizer's hook waits for the jobs that copy its tensors. A failed job fails its snapshot only:
training goes on, and the snapshot's `wait`, or else the next call, raises the failure.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import Error, InvalidError, UnsupportedError

if TYPE_CHECKING:
    from ._state.encode import Encoded
    from ._state.later import Later
    from .store import Store


class Job:
    """One snapshot's copy. `start` begins it; if that raises, `cancel` follows. `capture` is promised."""

    def __init__(self, store: Store, capture: _core.Capture, encoded: Encoded, later: Later) -> None:
        self._store: Store | None = store
        self._work: tuple[_core.Capture, Encoded, Later] | None = (capture, encoded, later)
        self._turn = threading.Lock()  # taken once, by the thread that copies or by `cancel`
        self._ended = threading.Event()
        self.failed = False
        self._pid = os.getpid()

    def start(self) -> None:
        """Copy in a thread; if the system has none left, in this one."""
        assert self._store is not None
        self._store._jobs.add(self)
        try:
            threading.Thread(target=self._run_beside, args=(self._store._copy_nice,), name="lmcstore copies").start()
        except (RuntimeError, MemoryError):  # also while the interpreter ends
            self._run()

    def cancel(self) -> bool:
        """After an exception, a signal's perhaps: whether no thread copies, nor will; the caller ends the capture."""
        if not self._turn.acquire(blocking=False):
            return False
        self._end()
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the copy has ended, well or not. False: not yet. A forked child never waits."""
        return os.getpid() != self._pid or self._ended.wait(timeout)

    @property
    def ended(self) -> bool:
        """Whether the copy has ended; in a forked child, whether it had before the fork."""
        return self._ended.is_set()

    def _run_beside(self, nice: int) -> None:
        if not self._turn.acquire(blocking=False):
            return
        if nice > 0:
            with contextlib.suppress(OSError):  # on Linux, this thread's alone
                os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
        self._run()

    def _run(self) -> None:
        assert self._work is not None
        try:
            self.failed = not _copy(*self._work)
        finally:
            self._end()

    def _end(self) -> None:
        store, self._store, self._work = self._store, None, None
        if store is not None:
            store._jobs.discard(self)
        self._ended.set()


def _copy(capture: _core.Capture, encoded: Encoded, later: Later) -> bool:
    """Copy and commit. False: the capture has failed."""
    failure: Exception
    try:
        encoded.put_later(capture)
        later.check()
        return capture.finish()
    except Error as error:
        failure = error
    except Exception as error:  # torch's
        failure = UnsupportedError(f"the tensors of {later.snapshot} can't be copied: {error}")
    except BaseException:  # an interrupt, where no thread could be started
        capture.abort()
        raise
    with contextlib.suppress(InvalidError):  # the store was closed, and reports that
        capture.fail(failure)
    return False


class _Hook:
    """Waits before an optimizer's steps."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []

    def add(self, job: Job) -> None:
        self._jobs = [other for other in self._jobs if not other.wait(0)] + [job]

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        while self._jobs:  # another thread may add one meanwhile
            jobs = self._jobs
            for job in jobs:
                job.wait()
            self._jobs = [job for job in self._jobs if job not in jobs]


_hooks: weakref.WeakKeyDictionary[Any, _Hook] = weakref.WeakKeyDictionary()


def hooks_of(optimizers: list[Any]) -> list[_Hook]:
    """Return the hook of each optimizer, whose `add` lets the next step wait for a job."""
    hooks = []
    for optimizer in optimizers:
        hook = _hooks.get(optimizer)
        if hook is None:
            hook = _Hook()
            optimizer.register_step_pre_hook(hook)  # the last one, too: a hook before it may take a snapshot
            handle = optimizer.register_step_pre_hook(hook)
            with contextlib.suppress(AttributeError, KeyError):  # other versions of torch, other optimizers
                optimizer._optimizer_step_pre_hooks.move_to_end(handle.id, last=False)
            _hooks[optimizer] = hook
        hooks.append(hook)
    return hooks
