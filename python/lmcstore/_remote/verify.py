# SPDX-License-Identifier: BSD-3-Clause
"""Reads the snapshots of a run in an object store, decodes every tensor, and compares outlines with archives."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..errors import DamagedError, NotFoundError, UnsupportedError
from . import outline, state
from .codec import Archive, Entry
from .place import Place
from .pull import Progress, Puller

if TYPE_CHECKING:
    from ..store import Store


def verify(
    place: Place, what: Iterable[str], create: Callable[[str], Store], progress: Progress | None = None
) -> dict[str, Any]:
    """Restore each snapshot, one after the other, into a temporary pool, which `create` makes.

    Returns ``snapshots``, ``bytes_read``, and ``damages``: a dict for each unreadable snapshot, with ``shelf``,
    ``number``, ``step`` and ``message``.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lmc-store-") as folder,
        create(os.path.join(folder, "checked.pool")) as store,
        create(os.path.join(folder, "keys.pool")) as keys,
    ):
        verifier = Verifier(store, place, what, progress, inspects=True)
        verifier.keys = Verifier(keys, place, what, inspects=True)
        verifier.pull()
        read = verifier.bytes + verifier.keys.bytes
    count = sum(len(numbers) for _, numbers in verifier._wanted)
    return {"snapshots": count, "bytes_read": read, "damages": verifier.damages}


class Verifier(Puller):
    """Restores archives one after the other. Its pool keeps the newest; that of `keys` is for keys."""

    keys: Verifier

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.damages: list[dict[str, Any]] = []

    def _pull_shelf(self, shelf: state.Shelf, numbers: list[int]) -> None:
        for number in numbers:
            entry = shelf.entry(number)
            assert entry is not None
            try:
                self._check(shelf, entry)
            except (DamagedError, NotFoundError, UnsupportedError) as error:
                damage = {"shelf": shelf.name, "number": number, "step": entry.step, "message": str(error)}
                self.damages.append(damage)

    def _check(self, shelf: state.Shelf, entry: Entry) -> None:
        self.check_archive(shelf, entry)
        if entry.key is not None:
            self.check_key(shelf, entry)

    def check_archive(self, shelf: state.Shelf, entry: Entry) -> bool:
        """Restore an entry's archive, after those that it needs and the pool lacks. False: these were removed."""
        try:
            chain = shelf.chain(entry.number, by_key=False)
        except DamagedError:
            if entry.key is None:
                raise
            return False
        self._pull_chain(shelf, chain, set(), [])
        self._forget(shelf.name, entry.number)
        return True

    def check_key(self, shelf: state.Shelf, entry: Entry) -> None:
        """Restore an entry's key. DamagedError also: no entry names an object with its payloads."""
        assert entry.key is not None
        if entry.key.first:
            self._check_objects(shelf, entry, entry.key)
        self.keys._pull_chain(shelf, [(entry, entry.key)], set(), [])
        self.keys._forget(shelf.name, entry.number + 1)

    def _check_objects(self, shelf: state.Shelf, entry: Entry, key: Archive) -> None:
        """DamagedError: a key has payloads of an object that a sweep deletes, since no entry names it."""
        found = outline.unpack(b"".join(self._place.get_ranges(key.outline_ranges())), self._place.where(key.object))
        named = key.objects()
        for one in shelf.entries(key.first, entry.number):
            named |= one.archive.objects() | (one.key.objects() if one.key is not None else set())
        lost = next((name for _, name, _, _ in found.located(key) if name not in named), None)
        if lost is not None:
            raise DamagedError(
                f"{self._what(shelf, entry)}: its key has bytes of {self._place.where(lost)}, which no snapshot names, "
                f"so that a sweep will delete it. Pull {shelf.name}@{entry.number} into the pool, and push --repair"
            )

    def _forget(self, shelf: str, number: int) -> None:
        """Remove all older snapshots, so that the pool stays small."""
        pool = self._store._pool
        for older in pool.numbers(shelf, 1, 4096):
            if older < number:
                pool.remove(shelf, older)
