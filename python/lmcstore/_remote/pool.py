# SPDX-License-Identifier: BSD-3-Clause
"""A run in an object store as a pool that is open for reading, for `Store`, `Shelf` and `Snapshot`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from .. import _core
from ..errors import InvalidError, NotFoundError, ReadOnlyError, UnsupportedError
from . import state
from .cache import Cache
from .codec import Entry
from .outline import FRAME, LINK, LINKED, Outline
from .place import Place
from .which import bounds_of, number_of

_STORED_AS = {FRAME: 1, LINK: 3, LINKED: 3}
_DELTA = 2
_U8 = 2


class RemotePool:
    """The newest state of a run when it was opened."""

    def __init__(self, url: str, cache_bytes: int) -> None:
        self._url = url
        self.options = url, cache_bytes
        """Of another `RemotePool` of the run."""
        self._place = Place(url)
        try:
            self._state = state.read(self._place)
            self._cache = Cache(self._place, cache_bytes)
        except BaseException:
            self._place.close()
            raise
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._cache.close()
            self._place.close()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(_core.Pool, name):
            raise AttributeError(name)
        raise UnsupportedError(
            f"{self._url} is a run in an object store, which is only read here: pull it into a pool (lmc-store pull)"
        )

    def _shelf(self, name: str) -> state.Shelf:
        if self.closed:
            raise InvalidError(f"{self._url}: the store is closed")
        return self._state.shelf(name)

    def info(self) -> dict[str, Any]:
        if self.closed:
            raise InvalidError(f"{self._url}: the store is closed")
        shelves = self.shelves()
        return {
            "path": self._url,
            "uuid": bytes.fromhex(self._state.run),
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
        found = (entry.number for entry in _shown(self._shelf(name), first) if entry.step == step)
        return _some(found, capacity)

    def newest(self, name: str, before: int, capacity: int) -> list[int]:
        entries = self._shelf(name).entries(1, before - 1, backwards=True)
        return _some((entry.number for entry in entries if not entry.hidden), capacity)

    def range(self, name: str, which: str) -> tuple[int, int]:
        return bounds_of(self._shelf(name), which)

    def find(self, name: str, which: str, verify: bool = True) -> RemoteHandle:
        shelf = self._shelf(name)
        number = number_of(shelf, which)
        entry = shelf.entry(number)
        if entry is None or entry.hidden:
            raise NotFoundError(f"{self._url} has no {name}@{number}")
        return RemoteHandle(self._cache, shelf, entry, verify)

    def new_bytes(self, name: str, numbers: list[int]) -> list[int | None]:
        shelf = self._shelf(name)
        found = [shelf.entry(number) for number in numbers]
        return [None if entry is None else entry.archive.bytes for entry in found]

    def follow(self, name: str, after: int, shelf_id: int, wait_ms: int) -> tuple[int, int, int]:
        if wait_ms:
            raise UnsupportedError(f"{self._url}: a run in an object store can't be followed; open it again")
        return 0, after, int(self._shelf(name).identity[:12], 16)


class RemoteHandle:
    """A snapshot of a run in an object store, of which tensors are fetched when they are read."""

    def __init__(self, cache: Cache, shelf: state.Shelf, entry: Entry, verify: bool) -> None:
        self._cache, self._shelf, self._entry, self._verify = cache, shelf, entry, verify
        self._found: Outline | None = None

    def _outline(self) -> Outline:
        if self._found is None:
            self._found = self._cache.outline(self._shelf.chain(self._entry.number)[-1][1])
        return self._found

    def _fetched(self, names: Sequence[str]) -> _core.Snapshot:
        return self._cache.find(self._shelf, self._entry.number, names, self._verify)

    def info(self) -> dict[str, Any]:
        entry = self._entry
        if entry.metrics is None:
            kept = self._fetched(self.names()[:1]).info()
            metrics, meta = kept["metrics"], kept["meta_json"]
        else:
            metrics = {name: float(value) for name, value in entry.metrics.items()}
            meta = json.dumps({"message": entry.note} if entry.note else {})
        return {
            "shelf": self._shelf.name,
            "number": entry.number,
            "step": entry.step,
            "time_ns": entry.time_ns,
            "parent": entry.parent,
            "tensor_count": entry.tensors,
            "raw_bytes": entry.raw_bytes,
            "metrics": metrics,
            "meta_json": meta,
            "group": bytes(16),
        }

    def tags(self) -> list[str]:
        return [tag for tag, number in self._shelf.tags.items() if number == self._entry.number]

    def names(self) -> list[str]:
        found = self._outline()
        identities = (found.identities[identity - 1] for identity, _ in found.entries)
        return [identity.name for identity in identities if identity.kind == _core.TENSOR]

    def entries(self) -> list[tuple[Any, ...]]:
        found = self._outline()
        made = []
        for number, place in found.entries:
            identity, content = found.identities[number - 1], found.contents[place - 1]
            as_what = _DELTA if content.payload == FRAME and content.bases else _STORED_AS.get(content.payload, 0)
            key = int.from_bytes(content.digest[:8], "little")
            form = identity.name, identity.kind, identity.dtype, identity.shape, content.raw_bytes
            made.append((*form, content.span, as_what, len(content.bases), key))
        return made

    def view(self, names: Sequence[str] | None, kind: int, flags: int) -> Any:
        if kind == _core.ATTACHMENT:
            return _Values(list(names or ()), self._cache.attachments(self._shelf, self._entry.number, names or ()))
        wanted = self.names() if names is None else list(names)
        return self._fetched(wanted).view(wanted, kind, flags)

    def read_range(self, kind: int, name: str, first_byte: int, count: int) -> bytearray:
        return self._fetched([name] if kind == _core.TENSOR else []).read_range(kind, name, first_byte, count)

    def digest(self) -> bytes:
        return self._fetched(self.names()).digest()

    def storage(self) -> dict[str, Any]:
        return self._fetched(self.names()).storage()

    def export(self, part: str | None, path: str, progress: Any = None) -> dict[str, Any]:
        prefix = "" if part is None else f"{part}."
        names = [name for name in self.names() if name.startswith(prefix) or name == part]
        return self._fetched(names).export(part, path, progress)

    def diff(self, after: Any, flags: int, progress: Any = None) -> Any:
        other = after._fetched(after.names()) if isinstance(after, RemoteHandle) else after
        return self._fetched(self.names()).diff(other, flags, progress)

    def mark_loaded(self) -> None:
        """Do nothing: nothing is captured here."""

    def fork(self, name: str) -> NoReturn:
        raise ReadOnlyError("a run in an object store is only read; pull it into a pool")


class _Values(NamedTuple):
    """A view of attachments."""

    names: list[str]
    buffers: list[bytes]

    def unpack(self) -> tuple[list[str], list[int], list[int], list[tuple[int, ...]], list[Any]]:
        count = len(self.names)
        shapes: list[tuple[int, ...]] = [(len(buffer),) for buffer in self.buffers]
        return self.names, [_core.ATTACHMENT] * count, [_U8] * count, shapes, list(self.buffers)


def _shown(shelf: state.Shelf, first: int) -> Iterator[Entry]:
    return (entry for entry in shelf.entries(first) if not entry.hidden)


def _some(numbers: Iterator[int], capacity: int) -> list[int]:
    return [number for number, _ in zip(numbers, range(capacity), strict=False)]
