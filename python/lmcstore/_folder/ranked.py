# SPDX-License-Identifier: BSD-3-Clause
"""`RunOfRanks`: what a `Run` does with a folder, on each rank."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from .._text.arguments import int64, meta_json, metric_lists, tag_names
from .._text.similar import listed
from ..errors import Error, InputOutputError, InvalidError, NotFoundError
from ..snapshot import Snapshot
from . import writing
from .channel import Channel
from .joined import Joined
from .machines import Machine, together
from .operations import check_policy, policy_words
from .parts import RANKS, Division, common_objects, is_of_torch
from .saves import Saves, Saving
from .sharded import Boxes
from .store import FolderShelf, FolderSnapshot, FolderStore, open_folder
from .structure import Structure

log = logging.getLogger("lmcstore")

_LONGEST_S = 10_000_000


class SavedSnapshot(FolderSnapshot):
    """A snapshot of a run that a rank has begun to save. Its `wait` returns when all ranks have saved it."""

    def __init__(self, shelf: FolderShelf, saving: Saving) -> None:
        self._saving: Saving | None = saving
        self._taken_part: Snapshot | None = saving.taken
        super().__init__(shelf, 0, None, saving.step)

    @property
    def _number(self) -> int:
        self.wait()
        return self._known_number

    @_number.setter
    def _number(self, number: int) -> None:
        self._known_number = number

    @property
    def step(self) -> int | None:
        """The training step."""
        return self._captured_step

    def wait(self) -> Self:
        """Wait until it is durable on all ranks, and return it; raises if it does not exist."""
        saving = self._saving
        if saving is not None:
            self._known_number = saving.wait(self._shelf._store.path)
            self._saving = None
        return self

    def captured(self, timeout: float | None = None) -> bool:
        """Wait until the tensors of this rank are copied, so that they may change: as `Snapshot.captured`."""
        part = self._taken_part
        if part is None or not part.captured(timeout):
            return part is None
        self._taken_part = None
        return True

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._saving is None or self._saving.ended.is_set()

    def __repr__(self) -> str:
        number = self._known_number or "being saved"
        return f"<lmcstore.Snapshot {self._shelf.name}@{number}, step {self.step}>"


class RankSnapshot(FolderSnapshot):
    """A snapshot of a run as a rank resumes from it: a state of all its objects."""

    def __init__(self, shelf: FolderShelf, number: int, rank: int) -> None:
        super().__init__(shelf, number)
        self._rank = rank
        self.elsewhere: Sequence[str] = ()
        """Objects that only other ranks have; known once it was read."""

    def load_boxes(self, targets: dict[str, Any]) -> None:
        """Load it into targets, of which DTensors get their boxes only."""
        boxes = Boxes(self._record())
        boxes.add(targets)
        self._decode().handle.pieces = boxes.pieces
        self._instead = boxes.instead
        try:
            self.load_into(**targets)
        finally:
            self._instead = {}

    def new_to_rank(self, names: list[str], objects: dict[str, Any]) -> list[str]:
        """Return the objects of a rank that only other ranks have, with a warning.

        NotFoundError: these are modules or optimizers.
        """
        self._decode()
        new = [name for name in names if name in self.elsewhere]
        wrong = [name for name in new if is_of_torch(objects.get(name))]
        if wrong:
            raise NotFoundError(
                f"{self._address} can't be resumed on rank {self._rank}: each of its ranks had {listed(wrong)} "
                f"of its own. Name objects that are equal on all ranks when they are saved: "
                f"Run(..., replicated={tuple(wrong)!r})"
            )
        if new:
            log.warning("%s: rank %d is new to the run: %s stay as they are", self._address, self._rank, listed(new))
        return new

    def _decode(self) -> Joined:
        if self._joined is None:
            decoded, handle = self._handle_of_ranks()
            if handle.record.objects is None:
                raise InvalidError(f"{self._address} was not saved by Run: load it with lmcstore.dcp.StoreReader")
            root, self.elsewhere = Structure(handle, self._shelf._store).of_rank(self._rank)
            self._joined = Joined(decoded, handle, root)
        return self._joined


class RunOfRanks:
    """A run's folder, on one of its ranks. Collective: all ranks make it, and call its methods in the same order."""

    def __init__(
        self,
        folder: str,
        shelf: str,
        timeout: float,
        replicated: Iterable[str],
        names: list[str],
        opener: Callable[[int], writing.Opener],
        check: Callable[[], None],
    ) -> None:
        self._replicated = [replicated] if isinstance(replicated, str) else list(replicated)
        if not 0 < timeout <= _LONGEST_S:
            raise InvalidError(f"timeout can't be {timeout!r}: it is a number of seconds above 0, up to {_LONGEST_S:,}")
        self._folder = writing.folder_of(folder)
        channel = Channel(timeout)
        self.rank = channel.rank
        try:
            together(channel.exchange, check)
            together(channel.exchange, lambda: self._check_names(names))
            self._machine = Machine(channel, self._folder, shelf, opener)
        except BaseException:
            channel.close()
            writing.close(self._folder)
            raise
        self._division = Division(self.rank, self._machine.machines)
        self.store = self._open_store()
        self.store._own = self._machine.writer.store
        self.shelf = self.store[shelf]
        self._parent: int | None = None
        self._pid = os.getpid()
        self._begun: list[Saving] = []
        self._world_size = channel.world_size
        self._saves = Saves(channel, self._machine, shelf)
        atexit.register(self._close_at_exit)

    def _check_names(self, names: list[str]) -> None:
        unknown = [name for name in self._replicated if name not in names]
        if unknown:
            raise InvalidError(f"replicated= names {listed(unknown)}, and the run has {listed(names)}")
        if RANKS in names:
            raise InvalidError(f"{RANKS!r} is the part of each rank's own objects: give the object another name")

    def _open_store(self) -> FolderStore:
        records = self._machine.records
        if records is None or self.rank > 0:
            return open_folder(self._folder)
        return FolderStore(records.store._pool, self._folder, mode="r+", beside_ranks=True)

    def set_policy(self, words: str) -> None:
        """Set the words of a policy where they belong: rules for snapshots in the records, others in the ranks."""

        def check() -> None:
            if self.rank == 0:
                check_policy(self.store._pool, self.shelf.name, words)

        def change() -> None:
            kept, others = policy_words(words)
            if others:
                self._machine.writer.store.shelf(self.shelf.name, create=True).policy = others
            if kept and self.rank == 0:
                assert self._machine.records is not None
                self._machine.records.store.shelf(self.shelf.name, create=True).policy = kept

        self.together(check)
        self.together(change)

    def together(self, function: Callable[[], Any]) -> list[Any]:
        """Call a function on all ranks, in this thread; if one raises, all raise."""
        return together(lambda value: list(self._saves.call(lambda channel: channel.exchange(value))), function)

    def find(self, which: int | str | None) -> RankSnapshot | None:
        """Find a snapshot, the same on all ranks; None: the run has none, and `which` is None."""

        def number() -> int | None:
            if self.rank > 0:
                return None
            found = self.shelf.latest if which is None else self.shelf[which]
            return None if found is None else found.number

        found = self.together(number)[0]
        return None if found is None else RankSnapshot(self.shelf, found, self.rank)

    def load(self, found: RankSnapshot, targets: Callable[[], dict[str, Any]]) -> None:
        """Load a snapshot on all ranks, or raise on all."""
        self.together(lambda: found.load_boxes(targets()))
        lost = [rank for rank in found._record().ranks if rank >= self._world_size]
        if lost and self.rank == 0:
            ranks = f"rank {lost[0]}" if len(lost) == 1 else f"ranks {lost[0]} to {lost[-1]}"
            log.warning("%s: the own objects of %s are not restored, which this job lacks", found._address, ranks)
        self._parent = found.number

    def save(
        self,
        step: int,
        objects: dict[str, Any],
        state: Callable[[], tuple[dict[str, Any], float]],
        lazy: list[Any] | None,
        described: dict[str, Any],
    ) -> SavedSnapshot:
        """Capture this rank's part, and let the thread save it; `state` returns the state and the gradients' scale.

        A failure on this rank fails the save on all ranks, but not the next ones.
        """
        if self._saves.failure is not None:
            raise InputOutputError(f"{self._folder}: step {step} can't be saved any more: {self._saves.failure}")
        saving = Saving(0)
        try:
            saving.step = int64(step, "step")
            tag_list = tag_names(described["tags"])
            metrics = dict(zip(*metric_lists(described["metrics"]), strict=True))
            meta = json.loads(meta_json(described["meta"]) or "null")  # copies: the caller may change its own
            made, scale = state()
            saving.objects = common_objects(objects, made, self._replicated, self._world_size)
            part = self._division.part(made, saving.objects, objects)
            saving.part, encoded, saving.taken = self._machine.writer.begin(self.shelf.name, part, step, lazy, scale)
            saving.stored = self._division.stored(encoded, saving.objects)
            saving.described = {"tags": tag_list, "metrics": metrics, "meta": meta, "parent": self._parent}
        except BaseException as error:
            saving.failure, saving.taken, saving.is_reported = str(error) or repr(error), None, True
            raise
        finally:
            self._saves.begin(saving)
        self._parent = None
        self._begun.append(saving)
        self.raise_earlier()
        return SavedSnapshot(self.shelf, saving)

    def raise_earlier(self) -> None:
        """Raise the first failure of an earlier save that was not raised yet."""
        for saving in list(self._begun):  # SIGTERM's handler may come here, too, at any time
            if not saving.ended.is_set():
                return
            with contextlib.suppress(ValueError):
                self._begun.remove(saving)
            if saving.failure is not None and not saving.is_reported:
                saving.wait(self._folder)

    def wait(self) -> None:
        """Wait for all saves; raises the first failure that was not raised yet."""
        for saving in list(self._begun):
            saving.ended.wait()
        self.raise_earlier()

    def _close_at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        try:
            self.close()
        except Error as error:
            log.error("%s was closed at last, with a failure: %s", self._folder, error)

    def close(self) -> None:
        """End the saves that have begun, and close the folder; raises the first failure that was not raised yet."""
        atexit.unregister(self._close_at_exit)
        try:
            self._saves.close()
            self.raise_earlier()
        finally:
            try:
                self.store.close()
            finally:
                writing.close(self._folder)
