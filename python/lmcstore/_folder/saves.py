# SPDX-License-Identifier: BSD-3-Clause
"""`Saves`: the saves of a `Run` of many ranks. A thread of each rank makes them durable, one after the other.

For each save, the thread waits until this rank's part is prepared, and tells the coordinator. That commits the record
if all ranks have prepared, and tells them. Then each commits its part, or drops it. Training goes on meanwhile, and the
next saves are captured behind the prepared ones.

If a rank ends or does not answer, no rank saves any more: what is in doubt then, the next start of the run decides.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .. import _core
from ..errors import Error, InputOutputError, InvalidError
from ..snapshot import Snapshot
from .channel import Channel, ChannelError
from .machines import Machine
from .parts import RANKS, Stored
from .record import Part, Record
from .removed import Removed

log = logging.getLogger("lmcstore")


class Ended:
    """An event that a signal's handler may wait for while it interrupts another wait for it.

    `threading.Event` holds a lock meanwhile, for which the handler would wait forever.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Let all waits return."""
        self._is_set = True
        self._queue.put(None)

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def wait(self) -> None:
        """Wait for `set`."""
        if not self._is_set:
            self._queue.get()
            self._queue.put(None)


@dataclass(eq=False)
class Saving:
    """A save of this rank."""

    step: int
    part: Part | None = None
    taken: Snapshot | None = None
    """This rank's part; None: it has failed."""
    stored: list[Stored] = field(default_factory=list)
    objects: list[str] = field(default_factory=list)
    described: dict[str, Any] = field(default_factory=dict)
    """Tags, metrics, metadata and parent of the record, on the coordinator."""
    failure: str | None = None
    number: int = 0
    """Of the run's snapshot."""
    ended: Ended = field(default_factory=Ended)
    is_reported: bool = False
    """Whether its failure was raised."""

    def wait(self, path: str) -> int:
        """Wait until it is committed, and return the snapshot's number; raises if it is not."""
        self.ended.wait()
        if self.failure is not None:
            self.is_reported = True
            raise InputOutputError(f"{path}: step {self.step} was not saved: {self.failure}")
        return self.number


class Saves:
    """The thread. Collective: all ranks make it at the same place, and begin the same saves in the same order."""

    def __init__(self, channel: Channel, machine: Machine, shelf: str) -> None:
        self._channel = channel
        self._machine = machine
        self._shelf = shelf
        self._begun = 0
        self._sent: list[Stored] | None = None
        self._known: list[list[Stored]] = [[] for _ in range(channel.world_size)]
        self._layout: Record | None = None
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._removed = Removed(machine.writer.records, machine.writer.store, shelf)
        self._tasks.put(self._collect)
        self._thread = threading.Thread(target=self._run, name="lmcstore run", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why no save is possible any more."""
        return self._channel.failure

    def begin(self, saving: Saving) -> None:
        """Give the thread a save, of which this rank's part is captured, or has failed."""
        self._begun += 1
        number = self._begun
        self._tasks.put(lambda: self._save(number, saving))

    def call(self, function: Callable[[Channel], Any]) -> Any:
        """Call a function with the channel in the thread, after the saves that have begun."""
        if not self._thread.is_alive():
            raise InvalidError(f"{self._machine.folder}: the run is closed")
        results: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def task() -> None:
            try:
                results.put((True, function(self._channel)))
            except BaseException as error:
                results.put((False, error))

        self._tasks.put(task)
        is_fine, result = results.get()
        if not is_fine:
            raise result
        return result

    def close(self) -> None:
        """End the thread, after the saves that have begun."""
        if self._thread.is_alive():
            self._tasks.put(None)
            self._thread.join()
            self._channel.close()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def _save(self, begun: int, saving: Saving) -> None:
        try:
            if saving.taken is not None:
                try:
                    saving.taken.wait()
                except Error as error:
                    saving.failure, saving.taken = str(error), None
            answer = self._decided(begun, saving)
            saving.failure = answer["failure"] if saving.failure is None else saving.failure
            saving.number = answer["number"]
            self._machine.copy(answer)
            if saving.part is not None and saving.taken is not None and not answer["in doubt"]:
                self._machine.writer.resolve(saving.part, answer["number"] > 0)
            self._collect()
            if self._machine.records is not None:
                self._machine.records.collect_others()
        except ChannelError as error:
            if saving.number:  # on the coordinator
                log.error("%s: step %d is the last that is saved: %s", self._machine.folder, saving.step, error)
            else:
                saving.failure = f"{error}. The next start of the run decides on it; no rank saves any more"
        except Error as error:
            if saving.number:
                log.error("%s: step %d is saved, but: %s", self._machine.folder, saving.step, error)
            else:
                saving.failure = str(error)
        except Exception as error:
            self._channel.failure = f"a save has failed: {error!r}"
            if saving.number:
                log.exception("%s: step %d is the last that is saved", self._machine.folder, saving.step)
            else:
                saving.failure = f"{error!r}. The next start of the run decides on it; no rank saves any more"
                log.exception("%s: step %d was not saved", self._machine.folder, saving.step)
        finally:
            saving.taken = None
            saving.ended.set()

    def _collect(self) -> None:
        """Remove parts whose records were removed; failed ones are tried again after the next save."""
        try:
            self._removed.collect()
        except Error as error:
            log.warning("%s: parts of removed snapshots are left: %s", self._machine.folder, error)

    def _decided(self, begun: int, saving: Saving) -> dict[str, Any]:
        """Tell the coordinator of this rank's part; return its decision."""
        stored = None if saving.stored == self._sent else [tuple(one) for one in saving.stored]
        part = None if saving.taken is None or saving.part is None else tuple(saving.part)
        message = {"save": begun, "step": saving.step, "failure": saving.failure, "part": part, "stored": stored}
        gathered = self._channel.gather(message)
        self._sent = saving.stored
        if gathered is None:
            answer: dict[str, Any] = self._channel.answer()
            return answer
        try:
            decision = self._decide(gathered, saving)
        except Exception as error:  # a rank waits for the answer
            in_doubt = isinstance(error, InputOutputError) or not isinstance(error, Error)
            decision = _failed(str(error) or repr(error), in_doubt)
        saving.number = decision["number"]
        self._channel.answer(decision)
        return decision

    def _decide(self, gathered: list[dict[str, Any]], saving: Saving) -> dict[str, Any]:
        """Commit the record of a save if all ranks have prepared it."""
        for rank, message in enumerate(gathered):
            if message["stored"] is not None:
                self._known[rank], self._layout = [Stored(*one) for one in message["stored"]], None
        failures = [f"rank {rank}: {one['failure']}" for rank, one in enumerate(gathered) if one["failure"] is not None]
        if failures:
            return _failed("; ".join(failures))
        for rank, message in enumerate(gathered):
            if (message["save"], message["step"]) != (gathered[0]["save"], gathered[0]["step"]):
                return _failed(f"rank {rank} saves step {message['step']}, and rank 0 step {gathered[0]['step']}")
        if self._layout is None:
            self._layout = layout_of(self._known)
        parts = {rank: Part(*message["part"]) for rank, message in enumerate(gathered)}
        record = Record(len(gathered), parts, self._layout.tensors, paths=self._layout.paths, objects=saving.objects)
        assert self._machine.records is not None
        committed = self._machine.records.commit(record, saving.step, **saving.described)
        return {"number": committed.number, "failure": None, "in doubt": False} | self._machine.news(committed)


def _failed(failure: str, in_doubt: bool = False) -> dict[str, Any]:
    return {"number": 0, "failure": failure, "in doubt": in_doubt, "archive": None, "removed": []}


def layout_of(stored: list[list[Stored]]) -> Record:
    """Join the tensors of all ranks. InvalidError: they do not fit together."""
    boxes: dict[str, list[tuple[int, str, Any, Any]]] = {}
    first: dict[str, Stored] = {}
    for rank, one in ((rank, one) for rank, all_of_it in enumerate(stored) for one in all_of_it):
        other = first.setdefault(one.name, one)
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            raise InvalidError(f"{one.name}: rank {rank} has another shape or dtype of it than an earlier rank")
        boxes.setdefault(one.name, []).append((rank, one.stored, one.offsets, one.sizes))
    made = Record(len(stored))
    for name, one in first.items():
        elements = sum(math.prod(box[3]) for box in boxes[name])
        is_whole = elements == math.prod(one.shape)
        if not is_whole and not name.startswith(f"{RANKS}."):
            raise InvalidError(
                f"{name}: the ranks have stored {elements:,} elements of {math.prod(one.shape):,}: their objects differ"
            )
        known = _core.dtype_info(one.dtype)
        assert known is not None
        made.tensors.add(name, known[0], one.shape, boxes[name])
        made.paths[name] = tuple(name.split("."))
    return made
