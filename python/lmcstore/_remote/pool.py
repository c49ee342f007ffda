# SPDX-License-Identifier: BSD-3-Clause
"""A run in an object store as a pool that is open for reading, for `Store`, `Shelf` and `Snapshot`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from .. import _core
from ..diff import KINDS
from ..errors import DamagedError, Error, InvalidError, NotFoundError, ReadOnlyError, UnsupportedError
from . import state
from .cache import Cache, Progress
from .codec import Entry
from .files import ObjectNotFoundError
from .outline import FRAME, LINK, LINKED, Identity, Outline
from .place import Place, forked
from .pull import Puller
from .which import bounds_of, number_of

if TYPE_CHECKING:
    from ..store import Store

Create = Callable[[str], "Store"]
"""Makes a pool at a path."""
_STORED_AS = {FRAME: 1, LINK: 3, LINKED: 3}
_DELTA = 2
_META = "lmcstore.meta"
_OWN = frozenset((_META, "lmcstore.tags", "lmcstore.relations", "lmcstore.constants"))
"""Attachments of the store itself (store/records/relations.h)."""
_PARALLEL = 32
_NO_NUMBERS = (0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, math.nan)
_EQUAL = (*_NO_NUMBERS[:-1], 1.0)


class RemotePool:
    """The newest state of a run when it was opened."""

    def __init__(
        self,
        url: str,
        cache_bytes: int,
        create: Create,
        cache: str | None = None,
        progress: Progress | None = None,
        share: int = 0,
    ) -> None:
        """`share`: of how many runs, which share a cache. 0: of this one, and the sub-runs of its ranks."""
        self.url, self._create = url, create
        self._options = cache_bytes, create, cache, progress
        self._place = Place(url, _PARALLEL, hurries=True)
        try:
            self.uuid = self._open()
            share = share or 1 + len(self._early.ranks or ())
            self._cache = Cache(self._place, cache, cache_bytes, progress, share)
        except BaseException:
            self._place.close()
            raise
        self.closed = False
        forked.add(self)

    def _open(self) -> bytes:
        """Read the head, and begin to look for newer commits."""
        self._early = state.read_head(self._place)
        self._later: Future[state.State] | None = self._place.start(state.refreshed, self._early)
        self._newest: state.State | None = None
        return bytes.fromhex(self._early.run)

    def renew(self) -> None:
        self._later = None

    @property
    def _state(self) -> state.State:
        """The newest state at the time of the open."""
        if self._newest is None:
            later = self._later
            try:
                self._newest = later.result() if later is not None else state.refreshed(self._early)
            except Exception:
                self._later = None  # the next access asks again
                raise
        return self._newest

    def refresh(self) -> None:
        """Read the newest state. Handles that were found before go on with theirs."""
        self._newest = state.read(self._place)

    @property
    def has_ranks(self) -> bool:
        """Whether it has the records of many ranks."""
        return self._early.ranks is not None

    def _prepare(self, name: str, number: int | None = None, step: int | None = None) -> None:
        """Read nodes for a snapshot in the round of requests that looks for newer commits."""
        with contextlib.suppress(Error):  # the state may be old: a later read reports failures
            shelf = (self._newest or self._early).find(name)
            if shelf is not None and not self.closed:
                shelf.prepare(number, step)

    def below(self, name: str, share: int) -> RemotePool:
        """Open a sub-run, with a share of the cache."""
        return RemotePool(f"{self.url}/{name}", *self._options, share)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._cache.close()
            self._place.close()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(_core.Pool, name):
            raise AttributeError(name)
        raise UnsupportedError(
            f"{self.url} is a run in an object store, which is only read here: pull it into a pool (lmc-store pull)"
        )

    def _shelf(self, name: str) -> state.Shelf:
        if self.closed:
            raise InvalidError(f"{self.url}: the store is closed")
        return self._state.shelf(name)

    def info(self) -> dict[str, Any]:
        if self.closed:
            raise InvalidError(f"{self.url}: the store is closed")
        shelves = self.shelves()
        return {
            "path": self.url,
            "uuid": self.uuid,
            "writable": False,
            "medium": "object store",
            "commit": self._state.number,
            "committed_ns": self._state.time_ns,
            "shelf_count": len(shelves),
            "snapshot_count": sum(shelf["snapshot_count"] for shelf in shelves),
            "limit_bytes": 0,
            "used_bytes": 0,
            "fetched_bytes": self._cache.bytes,
        }

    def shelves(self) -> list[dict[str, Any]]:
        return [self.shelf_info(shelf.name) for shelf in self._state.shelves]

    def shelf_info(self, name: str) -> dict[str, Any]:
        shelf = self._shelf(name)
        latest = next((entry.number for entry in shelf.entries(backwards=True) if not entry.hidden), 0)
        return {
            "name": name,
            "snapshot_count": shelf.shown,
            "latest": latest,
            "next_number": shelf.next,
            "keep_raw": shelf.keep_raw,
            "policy": shelf.policy,
            "created_ns": 0,
            "origin": None if shelf.origin is None else tuple(shelf.origin),
        }

    def raw_bytes(self, name: str) -> int:
        self._shelf(name)
        return 0

    def policy_warning(self, name: str) -> str:
        self._shelf(name)
        return ""

    def numbers(self, name: str, first: int, capacity: int) -> list[int]:
        return _some((entry.number for entry in _shown(self._shelf(name), first)), capacity)

    def steps(self, name: str, step: int, first: int, capacity: int) -> list[int]:
        self._prepare(name, step=step)
        found = (entry.number for entry in self._shelf(name).entries(first, step=step) if not entry.hidden)
        return _some(found, capacity)

    def newest(self, name: str, before: int, capacity: int) -> list[int]:
        entries = self._shelf(name).entries(1, before - 1, backwards=True)
        return _some((entry.number for entry in entries if not entry.hidden), capacity)

    def range(self, name: str, which: str) -> tuple[int, int]:
        return bounds_of(self._shelf(name), which)

    def find(self, name: str, which: str, verify: bool = True) -> RemoteHandle:
        if (match := re.fullmatch(r"(step:)?(-?[0-9]{1,18})", which)) is not None:
            self._prepare(name, **{"step" if match[1] else "number": int(match[2])})
        shelf = self._shelf(name)
        number = number_of(shelf, which)
        entry = shelf.entry(number)
        if entry is None or entry.hidden:
            raise NotFoundError(f"{self.url} has no {name}@{number}")
        return RemoteHandle(self._cache, shelf, entry, self._create)

    def new_bytes(self, name: str, numbers: list[int]) -> list[int | None]:
        shelf = self._shelf(name)
        found = [shelf.entry(number) for number in numbers]
        return [None if entry is None else entry.archive.bytes for entry in found]

    def follow(self, name: str, after: int, shelf_id: int, wait_ms: int) -> tuple[int, int, int]:
        if wait_ms:
            raise UnsupportedError(f"{self.url}: a run in an object store can't be followed; open it again")
        try:
            return 0, after, int(self._shelf(name).identity[:12], 16)
        except NotFoundError:
            return 0, after, 0


class RemoteHandle:
    """A snapshot of a run in an object store, of which tensors are fetched when they are read."""

    def __init__(self, cache: Cache, shelf: state.Shelf, entry: Entry, create: Create) -> None:
        self._cache, self._shelf, self._entry, self._create = cache, shelf, entry, create
        self._found: Outline | None = None

    def _outline(self) -> Outline:
        if self._found is None:
            newest = self._shelf.chain(self._entry.number)[-1:]
            self._found = self._cache.outlines(self._shelf.name, newest)[0]
        return self._found

    def _read(self, kind: int, wanted: Mapping[str, tuple[int, int] | None]) -> dict[str, tuple[Identity, bytearray]]:
        return self._cache.read(self._shelf, self._entry.number, kind, wanted)

    def info(self) -> dict[str, Any]:
        entry = self._entry
        metrics, meta = entry.metrics, {"message": entry.note} if entry.note else {}
        if metrics is None:
            metrics, meta = self._attached(meta)
        return {
            "shelf": self._shelf.name,
            "number": entry.number,
            "step": entry.step,
            "time_ns": entry.time_ns,
            "parent": entry.parent,
            "tensor_count": entry.tensors,
            "raw_bytes": entry.raw_bytes,
            "metrics": {name: float(value) for name, value in metrics.items()},
            "meta_json": json.dumps(meta),
            "group": bytes(16) if entry.of is None else bytes.fromhex(entry.of.group),
        }

    def _attached(self, meta: dict[str, Any]) -> tuple[dict[str, float | str], dict[str, Any]]:
        """Return metrics and metadata that are too many for the state."""
        text = self._read(_core.ATTACHMENT, {_META: None})[_META][1]
        try:
            found = json.loads(text)
            return {str(name): float(value) for name, value in found["metrics"].items()}, found["meta"] | meta
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            what = f"{self._shelf.name}@{self._entry.number} of {self._cache.place.url}"
            raise DamagedError(f"{what} is damaged: its metadata is no metadata") from None

    def tags(self) -> list[str]:
        return [tag for tag, number in self._shelf.tags.items() if number == self._entry.number]

    def names(self) -> list[str]:
        return [name for kind, name in self._forms() if kind == _core.TENSOR]

    def _forms(self) -> dict[tuple[int, str], tuple[int, tuple[int, ...], int, bytes]]:
        """Return the dtype, the shape, the raw bytes and the digest of each entry by its kind and name."""
        found = self._outline()
        pairs = ((found.identities[one - 1], found.contents[place - 1]) for one, place in found.entries)
        return {
            (identity.kind, identity.name): (identity.dtype, identity.shape, content.raw_bytes, content.digest)
            for identity, content in pairs
            if identity.kind == _core.TENSOR or identity.name not in _OWN
        }

    def entries(self) -> list[tuple[Any, ...]]:
        found = self._outline()
        made = []
        for number, place in found.entries:
            identity, content = found.identities[number - 1], found.contents[place - 1]
            as_what = _DELTA if content.payload == FRAME and content.bases else _STORED_AS.get(content.payload, 0)
            key = int.from_bytes(content.digest[:8], "little")
            form = identity.name, identity.kind, identity.dtype, identity.shape, content.raw_bytes
            link = content.bases[0] if content.payload == LINKED and content.bases else 0
            made.append((*form, content.span, as_what, len(content.bases), key, link))
        return made

    def view(self, names: Sequence[str] | None, kind: int, flags: int) -> Any:
        wanted = self.names() if names is None else list(names)
        found = self._read(kind, dict.fromkeys(wanted))
        return _View([(name, kind, *found[name]) for name in wanted])

    def read_range(self, kind: int, name: str, first_byte: int, count: int) -> bytearray:
        return self._read(kind, {name: (first_byte, count)})[name][1]

    def read_to(self, kind: int, ranges: Sequence[tuple[str, int, int, int]]) -> None:
        left = [one for one in ranges if one[2]]
        while left:
            now = {one[0]: one for one in reversed(left)}  # one range of each name at a time
            into = {
                name: memoryview((ctypes.c_char * one[2]).from_address(one[3])).cast("B") for name, one in now.items()
            }
            wanted = {name: (first_byte, count) for name, first_byte, count, _ in now.values()}
            self._cache.read(self._shelf, self._entry.number, kind, wanted, into)
            left = [one for one in left if now[one[0]] is not one]

    def digest(self) -> bytes:
        with self._pulled() as handle:
            return handle.digest()

    def storage(self) -> dict[str, Any]:
        with self._pulled() as handle:
            return handle.storage()

    @contextlib.contextmanager
    def _pulled(self, progress: Progress | None = None) -> Iterator[_core.Snapshot]:
        """Restore the snapshot into a temporary pool, by the state in which it was found."""
        address, now = f"{self._shelf.name}@{self._entry.number}", self._shelf.alone()
        with tempfile.TemporaryDirectory(prefix="lmc-store-") as folder:
            path = os.path.join(folder, "one.pool")
            with self._create(path) as store:
                try:
                    Puller(store, self._cache.place, (address,), progress, now=now).pull()
                except NotFoundError as error:
                    raise ObjectNotFoundError(f"{error}. If the run was changed meanwhile, open it again") from None
                yield store._pool.find(self._shelf.name, str(self._entry.number), False)

    def export(self, part: str | None, path: str, progress: Any = None) -> dict[str, Any]:
        with self._pulled(progress) as handle:
            return handle.export(part, path, progress)

    def export_joined(self, *arguments: Any) -> dict[str, Any]:
        """Export the state of a run of many ranks, of which this is the record."""
        with self._pulled() as handle:
            return handle.export_joined(*arguments)

    def diff(self, after: Any, flags: int, progress: Any = None) -> Any:
        """Compare as `_core.Snapshot.diff` does; entries with one digest are not read."""
        if not isinstance(after, RemoteHandle):
            raise InvalidError("a snapshot of a run in an object store is compared with another one of the run")
        old, new = self._forms(), after._forms()
        rows, counts = [], dict.fromkeys(KINDS, 0)
        done, total = 0, sum(form[2] for form in new.values())
        for key in (*new, *(key for key in old if key not in new)):
            before, now = old.get(key), new.get(key)
            numbers: tuple[Any, ...] | None = _NO_NUMBERS
            if before is None or now is None:
                kind = "removed" if now is None else "added"
            elif before[:2] != now[:2]:
                kind = "reshaped"
            elif before[3] == now[3]:
                kind, numbers = "same", _EQUAL
            else:
                kind = "changed"
                if not flags & _core.DIFF_NAMES:
                    buffers = [one._read(key[0], {key[1]: None})[key[1]][1] for one in (self, after)]
                    numbers = _core.difference(now[0], *buffers)
                    done += now[2]
                if progress is not None:
                    progress("comparing", done, total)
            counts[kind] += 1
            if kind != "same" or flags & _core.DIFF_SAME:
                forms = [None if form is None else form[:3] for form in (before, now)]
                rows.append((key[1], KINDS.index(kind), key[0] != _core.TENSOR, *forms, *(numbers or _EQUAL)))
        return rows, counts | {"bytes_compared": done}

    def mark_loaded(self) -> None:
        """Do nothing: nothing is captured here."""

    def fork(self, name: str) -> NoReturn:
        raise ReadOnlyError("a run in an object store is only read; pull it into a pool")


class _View(NamedTuple):
    found: list[tuple[str, int, Identity, bytearray]]

    def unpack(self) -> tuple[list[str], list[int], list[int], list[tuple[int, ...]], list[Any]]:
        names, kinds, dtypes, shapes, buffers = [], [], [], [], []
        for name, kind, identity, buffer in self.found:
            names.append(name)
            kinds.append(kind)
            dtypes.append(identity.dtype)
            shapes.append(identity.shape)
            buffers.append(buffer)
        return names, kinds, dtypes, shapes, buffers


def _shown(shelf: state.Shelf, first: int) -> Iterator[Entry]:
    return (entry for entry in shelf.entries(first) if not entry.hidden)


def _some(numbers: Iterator[int], capacity: int) -> list[int]:
    return [number for number, _ in zip(numbers, range(capacity), strict=False)]
