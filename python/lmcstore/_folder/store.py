# SPDX-License-Identifier: BSD-3-Clause
"""`FolderStore`: the folder of a run, read as one store."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from .. import _core
from .._state.decode import Decoded
from .._state.nodes import Branch, Leaf, Node
from .._text.similar import listed
from ..errors import InvalidError, NotFoundError, ReadOnlyError, UnsupportedError
from ..shelf import Shelf
from ..snapshot import Progress, Snapshot
from ..store import Store
from .joined import Handle, Joined
from .opaque import Opaque
from .ranks import RECORDS, Ranks, rank_files
from .record import Record, read
from .structure import Structure

_WAIT_MS = 10_000


def is_folder(path: str) -> bool:
    """Whether a path is the folder of a run."""
    return os.path.isdir(path) and (os.path.lexists(os.path.join(path, RECORDS)) or bool(rank_files(path)))


def open_folder(path: str, threads: int = 0, force_network: bool = False, verify: bool = True) -> FolderStore:
    """Open the folder of a run for reading. NotFoundError: it lacks the records."""
    records = os.path.join(path, RECORDS)
    if not os.path.lexists(records):
        raise NotFoundError(f"{path} has pools of ranks, but lacks the records of the run: copy {RECORDS} into it")
    flags = _core.FORCE_NETWORK if force_network else 0
    pool = _core.open(records, _core.OPEN_READ, 0, _WAIT_MS, threads, flags)
    return FolderStore(pool, path, force_network, verify)


def _reopened(path: str, uuid: bytes, force_network: bool, verify: bool) -> FolderStore:
    store = open_folder(path, force_network=force_network, verify=verify)
    if store._uuid != uuid:
        store.close()
        raise NotFoundError(f"{path} is another run than the one that was copied or pickled")
    return store


class FolderStore(Store):
    """The folder of a run of many ranks, open for reading: `lmcstore.open` opens it.

    It has the shelves and snapshots of the run. A snapshot's tensors are joined from the pools of the ranks, which are
    opened when a tensor needs them. Tags, metrics and notes of the run's snapshots can be set; `Run` and `StoreWriter`
    write the rest.
    """

    def __init__(
        self,
        pool: _core.Pool,
        path: str,
        force_network: bool = False,
        verify: bool = True,
        mode: str = "r",
        removes: bool = True,
    ) -> None:
        super().__init__(pool, path, mode, False, force_network, verify)
        self._ranks = Ranks(path, verify, _core.FORCE_NETWORK if force_network else 0)

    @property
    def _pool_path(self) -> str:
        return os.path.join(self._path, RECORDS)

    def __getitem__(self, name: str) -> FolderShelf:
        return FolderShelf(self, super().__getitem__(name).name)

    def info(self) -> dict[str, Any]:
        """Return the properties of the pool of records, as `Store.info` does, and those of the ranks' pools.

        ``ranks``: ``Store.info`` of each pool in the folder by its file's name. ``used_bytes``: of all pools.
        """
        info = super().info()
        info["ranks"] = {name: pool.info() for name, pool in self._ranks.all()}
        info["used_bytes"] += sum(rank["used_bytes"] for rank in info["ranks"].values())
        return info

    def verify(self, address: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
        """Read everything, or the part at ``"shelf"`` or ``"shelf@which"``, and check all checksums.

        Returns the report of `Store.verify` for all pools, and ``missing``: a sentence for each part of a snapshot
        whose pool or snapshot is not in the folder.
        """
        report = super().verify(address, progress)
        report["missing"] = []
        if address is None:
            for name, pool in self._ranks.all():
                _add(report, name, pool.verify(None, progress))
        for snapshot in self._addressed(address):
            record = snapshot._record()
            for rank, part in record.ranks.items():
                try:
                    number = self._ranks.snapshot(rank, part, snapshot.shelf.name, []).info()["number"]
                except NotFoundError as error:
                    report["missing"].append(f"{snapshot._address}: {error}")
                    continue
                if address is not None:
                    pool = self._ranks.pool(rank, part)
                    _add(report, part.file, pool.verify(f"{snapshot.shelf.name}@{number}", progress))
        return report

    def _addressed(self, address: str | None) -> Iterable[FolderSnapshot]:
        name, _, which = (address or "").partition("@")
        if which:
            return [self[name]._found(which)]
        return (self[shelf]._taken(one.number) for shelf in ([name] if name else self) for one in self[shelf])

    def scrub(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse: the pools are scrubbed one by one."""
        self._refuse("scrub")

    def dump(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse: the pools are dumped one by one."""
        self._refuse("dump")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(
            f"{self._path}: {what} takes a pool, not the folder of a run: give it the pools in there"
        )

    def close(self) -> None:
        """Close the pools. Tensors and arrays that were read stay valid."""
        super().close()
        self._ranks.close()

    def _check_writable(self) -> None:
        if self._mode == "r":
            raise ReadOnlyError(
                f"{self._path} is the folder of a run, open for reading. Run and lmcstore.dcp.StoreWriter save to it; "
                "mode 'r+' opens it to remove, prune, tag and fork"
            )

    def __reduce__(self) -> Any:
        if self.closed:
            raise InvalidError(f"{self._path}: a closed store can't be copied or pickled")
        return _reopened, (self._path, self._uuid, self._force_network, self._verifies)


def _add(report: dict[str, Any], file: str, other: dict[str, Any]) -> None:
    """Add the report of a rank's pool; snapshots are counted of the run only."""
    for name in ("contents", "bytes_read", "damages", "unsupported"):
        report[name] += other[name]
    report["list"] += [{**damage, "what": f"{file}: {damage['what']}"} for damage in other["list"]]


class FolderShelf(Shelf):
    """A history of a run's snapshots."""

    _store: FolderStore

    def _found(self, which: str) -> FolderSnapshot:
        return self._taken(self._find(which).number)

    def _taken(self, number: int, step: int | None = None, handle: _core.Snapshot | None = None) -> FolderSnapshot:
        return FolderSnapshot(self, number, None, step, handle)


class FolderSnapshot(Snapshot):
    """A snapshot of a run: its properties are those of its record."""

    _shelf: FolderShelf
    _joined: Joined | None = None
    _absent: Sequence[int] = ()

    @property
    def raw_bytes(self) -> int:
        """Bytes of its tensors, decoded."""
        return sum(tensor.raw_bytes for tensor in self._record().tensors.values())

    @property
    def new_bytes(self) -> int | None:
        """Payload bytes that it added in the ranks' pools. None: unknown."""
        ranks, shelf = self._shelf._store._ranks, self._shelf.name
        added = [
            ranks.pool(rank, part).new_bytes(shelf, [part.number])[0] for rank, part in self._record().ranks.items()
        ]
        return None if None in added else sum(count for count in added if count is not None)

    @property
    def digest(self) -> str:
        """Refuse: the ranks' snapshots have digests, which depend on their sharding."""
        self._refuse("digest")

    def storage(self) -> dict[str, Any]:
        """Report how the ranks' snapshots are stored now: sums and maxima of `Snapshot.storage`."""
        handle = self._decode().handle
        total: dict[str, Any] = {}
        for rank in handle.record.ranks:
            for name, value in handle.part(rank, []).storage().items():
                if type(value) is int:
                    total[name] = max(total.get(name, 0), value) if "longest" in name else total.get(name, 0) + value
        return {**total, "links_note": None}

    def names(self) -> list[str]:
        """Return the names of its tensors, in the order of the state."""
        return self._decode().handle.names()

    def entries(self) -> list[dict[str, Any]]:
        """Report how each tensor is stored: `Snapshot.entries`, with the sum of its boxes."""
        return self._described(self._decode().handle.entries())

    def state_dict(
        self, path: Any = (), *, types: Iterable[type] | Mapping[str, type] = (), verify: bool | None = None
    ) -> Any:
        """Read the state, or the part at `path`: as `Snapshot.state_dict`, with whole tensors.

        A `UserWarning` names the objects that are pickles of torch; they are read as `Opaque` objects.
        """
        decoded = self._decode()
        if self._absent:
            warnings.warn(
                f"{self._address}: the own objects of ranks {listed(list(self._absent))} are left out, whose pools are "
                f"not in {self._shelf._store.path}",
                stacklevel=2,
            )
        names = list(_opaque(decoded.find(path)))
        if names:
            warnings.warn(
                f"{self._address}: {listed(names)} {'is a pickle' if len(names) == 1 else 'are pickles'} of torch, "
                "which the load() of each unpickles",
                stacklevel=2,
            )
        return super().state_dict(path, types=types, verify=verify)

    def diff(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse."""
        self._refuse("diff")

    def fork(self, name: str) -> NoReturn:
        """Refuse."""
        self._refuse("fork")

    def export(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse."""
        self._refuse("export")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(f"{self._address}: {what} takes a snapshot of a pool, not of a run of many ranks")

    def _record(self) -> Record:
        return self._decode().handle.record

    def _decode(self) -> Joined:
        if self._joined is None:
            decoded, handle = self._handle_of_ranks()
            root = None
            if handle.record.objects is not None:
                root, self._absent = Structure(handle, self._shelf._store).run()
            self._joined = Joined(decoded, handle, root)
        return self._joined

    def _handle_of_ranks(self) -> tuple[Decoded, Handle]:
        decoded = super()._decode()
        return decoded, Handle(self._shelf.name, decoded, read(decoded), self._shelf._store._ranks)


def _opaque(node: Node) -> Iterable[str]:
    if type(node) is Leaf and type(node.value) is Opaque:
        yield node.value.name
    elif type(node) is Branch:
        for child in node.children:
            yield from _opaque(child)
