# SPDX-License-Identifier: BSD-3-Clause
"""Shelves: taking snapshots, finding them, removing them."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ._arguments import address, int64, meta_json, metric_lists, tag_names
from ._encode import Encoded
from .errors import InvalidError, NotFoundError, UnsupportedError
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .store import Store

log = logging.getLogger("lmcstore")

_NUMBERS_AT_ONCE = 4096
_DEFAULT_PARENT = 0


class Removal(NamedTuple):
    """What removing a snapshot freed."""

    freed_bytes: int
    """Free as soon as readers let go of it."""
    later_bytes: int
    """Still needed by deltas of other snapshots; free after compaction."""
    removed_tags: int
    """How many tags went with it."""


class Shelf:
    """A named history of snapshots in a store: ``store[name]``.

    ``shelf[7]`` is a snapshot by its number, ``shelf[-1]`` the newest, ``shelf["best"]``, ``shelf["latest~1"]`` and
    ``shelf["step:120"]`` by what may stand after the ``@`` of an address. Iterating gives the snapshots, oldest first.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def store(self) -> Store:
        """The store that it is in."""
        return self._store

    # Writing

    def snapshot(
        self,
        state: Any,
        *,
        step: int | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, Any] | None = None,
        parent: int | Snapshot | None = None,
        wait: bool = True,
    ) -> Snapshot:
        """Take a snapshot of a state: all of it or nothing.

        Parameters
        ----------
        state : Any
            Any nesting of dict, OrderedDict, list, tuple, set, frozenset, Counter, torch tensors, NumPy arrays and
            scalars, int, float, complex, str, bytes, bytearray, bool, None, torch.Size, torch.dtype, torch.device.
        step : int, optional
            The training step; steps may repeat.
        tags : iterable of str
            Names for this snapshot; one that is elsewhere on the shelf moves here.
        metrics : mapping of str to float, optional
            Numbers to find it by later, such as the loss.
        meta : mapping, optional
            Anything that JSON can say.
        parent : int or Snapshot, optional
            The snapshot that training went on from. Default: the one that this process last loaded with
            `Snapshot.load_into` or took on this shelf, else the latest.
        wait : bool
            True: return when the snapshot is durable. False: return when it is captured, so that the state may
            change; it is not `latest` before it is durable (see `Snapshot.wait`), and a failure is raised by that,
            by the next snapshot, and by the store's close.

        Returns
        -------
        Snapshot
            The new one.

        Raises
        ------
        UnsupportedError
            (a TypeError) Something in the state can't be stored exactly; the text begins with its path. Nothing is
            stored.
        FullError
            No space, also after compaction; the text names the bytes needed and free, and what could be removed.
        ReadOnlyError, InvalidError, InputOutputError
            As their names say.
        """
        self._store._check_writable()
        step = None if step is None else int64(step, "step")
        tag_list = tag_names(tags)
        names, values = metric_lists(metrics)
        json_text = meta_json(meta)
        parent_number = _DEFAULT_PARENT if parent is None else self._parent_number(parent)
        encoded = Encoded(state)
        capture = self._store._pool.begin(self._name)
        try:
            encoded.put(capture)
            time_ns = time.time_ns()
            number = capture.commit(step, parent_number, time_ns, tag_list, names, values, json_text, not wait)
        except BaseException:
            capture.abort()
            raise
        log.debug("%s@%d %s", self._name, number, "is durable" if wait else "is captured")
        return Snapshot(self, number, None if wait else capture, step)

    def remove(self, which: int | str | Snapshot, *, dry_run: bool = False) -> Removal:
        """Remove a snapshot for ever.

        Parameters
        ----------
        which : int, str or Snapshot
            As for ``shelf[which]``.
        dry_run : bool
            Only say what would be freed.

        Returns
        -------
        Removal
            What is free now, and what after compaction.

        Raises
        ------
        NotFoundError
            There is no such snapshot.
        """
        self._store._check_writable()
        return Removal(*self._store._pool.remove(self._name, self._number(which), dry_run))

    def tag(self, which: int | str | Snapshot, tag: str) -> None:
        """Put a tag on a snapshot, moving it if it is elsewhere on the shelf."""
        self._store._check_writable()
        if not isinstance(tag, str):
            raise UnsupportedError(f"a tag must be a str, not {type(tag).__qualname__!r}")
        self._store._pool.tag_set(self._name, tag, self._number(which))

    def untag(self, tag: str) -> None:
        """Take a tag off the shelf."""
        self._store._check_writable()
        self._store._pool.tag_remove(self._name, tag)

    @property
    def keep_raw(self) -> int:
        """How many of the newest snapshots stay raw, and so are read without decoding."""
        info = self._info()
        return info["keep_raw"] if info is not None else 4

    @keep_raw.setter
    def keep_raw(self, count: int) -> None:
        self._store._check_writable()
        count = int64(count, "keep_raw")
        if not 0 < count < 2**32:
            raise InvalidError(f"keep_raw can't be {count}: keep 1 snapshot raw or more, and less than 2**32")
        self._store._pool.set_keep_raw(self._name, count)

    # Finding

    def __getitem__(self, which: int | str) -> Snapshot:
        if isinstance(which, slice):
            raise UnsupportedError("a shelf has no slices; iterate over it, or ask for its snapshots one by one")
        return self._find(address(which))

    def __contains__(self, which: object) -> bool:
        if isinstance(which, Snapshot):
            return which.shelf == self and str(which.number) in self
        if not isinstance(which, int | str):
            return False
        try:
            self._find(address(which))
        except (NotFoundError, InvalidError):
            return False
        return True

    @property
    def latest(self) -> Snapshot | None:
        """The newest snapshot that is durable; None when the shelf is empty."""
        try:
            return self._find("latest")
        except NotFoundError:
            return None

    def at(self, *, step: int) -> Snapshot:
        """Give the newest snapshot of a step.

        Raises
        ------
        NotFoundError
            There is none.
        """
        numbers = self._step_numbers(int64(step, "step"))
        newest = None
        for newest in numbers:  # noqa: B007 (the last one is wanted)
            pass
        if newest is None:
            raise NotFoundError(f"shelf {self._name!r} has no snapshot of step {step}")
        return self._find(str(newest))

    def steps(self, step: int) -> list[Snapshot]:
        """Give all snapshots of a step, oldest first."""
        return [Snapshot(self, number) for number in self._step_numbers(int64(step, "step"))]

    def __iter__(self) -> Iterator[Snapshot]:
        pool = self._store._pool
        for number in _paged(lambda first: pool.numbers(self._name, first, _NUMBERS_AT_ONCE)):
            yield Snapshot(self, number)

    def __len__(self) -> int:
        info = self._info()
        return info["snapshot_count"] if info is not None else 0

    def _step_numbers(self, step: int) -> Iterator[int]:
        pool = self._store._pool
        return _paged(lambda first: pool.steps(self._name, step, first, _NUMBERS_AT_ONCE))

    def _info(self) -> dict[str, Any] | None:
        try:
            return self._store._pool.shelf_info(self._name)
        except NotFoundError:
            return None

    def _parent_number(self, parent: int | Snapshot) -> int:
        if isinstance(parent, Snapshot):
            self._own(parent)
            parent.wait()
            return parent.number
        return self._find(str(int64(parent, "parent"))).number

    def _own(self, snapshot: Snapshot) -> None:
        """Refuse a snapshot of another shelf: a number alone would stand for one of this shelf's."""
        if snapshot.shelf != self:
            raise InvalidError(f"{snapshot!r} is not of this shelf, {self._name!r}: use its own, snapshot.shelf")

    def _number(self, which: int | str | Snapshot) -> int:
        if isinstance(which, Snapshot):
            self._own(which)
            return which.number
        if not isinstance(which, str):
            number = operator.index(which)
            if number > 0:
                return number
        return self[which].number

    def _find(self, which: str) -> Snapshot:
        handle = self._store._pool.find(self._name, which)
        return Snapshot(self, handle.info()["number"], None, None, handle)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shelf):
            return NotImplemented
        return (self._store._uuid, self._name) == (other._store._uuid, other._name)

    def __hash__(self) -> int:
        return hash((self._store._uuid, self._name))

    def __repr__(self) -> str:
        if self._store.closed:
            return f"<lmcstore.Shelf {self._name!r} of a closed store>"
        info = self._info()
        if info is None:
            return f"<lmcstore.Shelf {self._name!r}, empty>"
        return f"<lmcstore.Shelf {self._name!r}, {info['snapshot_count']} snapshots, latest {info['latest'] or None}>"


def _paged(page: Callable[[int], list[int]]) -> Iterator[int]:
    """Give numbers page after page; nothing when there is no shelf."""
    first = 1
    while True:
        try:
            numbers = page(first)
        except NotFoundError:
            return
        yield from numbers
        if len(numbers) < _NUMBERS_AT_ONCE:
            return
        first = numbers[-1] + 1
