# SPDX-License-Identifier: BSD-3-Clause
"""torch.distributed.checkpoint saves to the folder of a run, and loads from it.

Each save is a snapshot in the run's history::

    dcp.save(state, storage_writer=lmcstore.dcp.StoreWriter("run", step=step))
    dcp.load(state, storage_reader=lmcstore.dcp.StoreReader("run"))

    with lmcstore.open("run", mode="r") as run:  # in one process, without torch.distributed
        state = run["run"].at(step=120).state_dict()
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _core
from ._arrays.torch import torch_of
from ._folder import once, writing
from ._folder.copies import copy_of, forget
from ._folder.fills import Load, Read, Stored, bytes_of, has_whole_rows, is_place
from ._folder.joined import check_box, read_rows
from ._folder.record import Box, Part, Record, Tensor
from ._folder.staging import Staging
from ._folder.store import FolderSnapshot, FolderStore, open_folder
from ._remote.left import PoolHandle
from ._remote.place import is_url
from ._remote.pool import RemoteHandle
from ._state.encode import Encoded
from ._state.later import optimizers_of
from ._text.arguments import a_kind, file_path, int64, metric_lists, tag_names
from .errors import Error, InvalidError, NotFoundError, UnsupportedError
from .opening import open, pool_options_of

__all__ = ["StoreReader", "StoreWriter"]

log = logging.getLogger("lmcstore")

_VERSION = getattr(filesystem, "CURRENT_DCP_VERSION", None)


@dataclasses.dataclass(frozen=True)
class _Written:
    """Where an item is, as a rank tells the coordinator."""

    part: Part | None
    """The rank's snapshot; None: it wrote values only."""
    rank: int
    name: str | None = None
    """Of the stored tensor, or of an opaque object; None: a value."""
    dtype: int = 0
    value: Any = None


class StoreWriter(StorageWriter, BlockingAsyncStager):
    """Writes the checkpoints of DCP into the folder of a run: ``dcp.save(state, storage_writer=StoreWriter("run"))``.

    Each save is a new snapshot, and earlier ones stay. The snapshot exists once all ranks have stored their parts
    durably and the coordinator (rank 0) has stored the record of it; `dcp.save` then returns. If a rank fails or stops
    before, there is no snapshot, and the next save removes the parts that were stored.

    Tensors are stored as tensors, replicated ones once. Plain values (None, bool, int, float, str, bytes, and lists,
    tuples, dicts and sets of them) are stored as values; other objects as pickles that torch makes, in `Opaque`.

    A first save without `lazy` sets the policy ``write=raw``, which copies tensors as they are. Set ``write=auto`` for
    saves after every step: it takes memory, and stores less.

    All ranks write to one folder on one machine. The folder and its pools are created when they are missing, with a
    `CreationWarning`. The process keeps its pools open for the next save until `close`, or its end.

    Parameters
    ----------
    path
        The folder; also the ``checkpoint_id`` of DCP.
    shelf
        The name of the shelf.
    step, tags, metrics
        Properties of the snapshot, as for `Shelf.snapshot`.
    lazy : optimizer, list of optimizers, or True, optional
        For `dcp.async_save` in a thread: return before the tensors are copied that these optimizers' steps change, as
        ``lazy`` of `Shelf.snapshot`. Their next step waits for the copy; nothing else may change them before. The rest
        of the state is copied in memory first. True: all tensors are copied later, and no step waits. A change that
        torch has counted fails the save; `Shelf.snapshot` lists what it does not count. A replayed CUDA graph calls no
        hook: wait for the future before its replay.
    pool_options
        Options of `lmcstore.open` for the rank's pool, as for `Run`: ``pool_options={"memory": "64MiB"}``. They are
        taken when the process opens the pool, with its first save.
    cache_staged_state_dict, overwrite
        As for FileSystemWriter: with ``overwrite=False`` a save fails if the shelf has a snapshot. Its other keyword
        arguments are accepted and have no effect.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shelf: str = "run",
        step: int | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
        lazy: Any = None,
        *,
        pool_options: Mapping[str, Any] | None = None,
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
        _extensions: Any = None,
        serialization_format: Any = None,
    ) -> None:
        BlockingAsyncStager.__init__(self, cache_staged_state_dict=cache_staged_state_dict)
        self._lazy: Any = None
        self._staging: Staging | None = None
        if lazy is not None and lazy is not False:
            optimizers_of(lazy)
            self._lazy = lazy
        if not isinstance(shelf, str):
            raise UnsupportedError(f"a shelf is named by a str, not by {a_kind(shelf)}")
        self._path = writing.folder_of(path)
        self._shelf = shelf
        self._step = None if step is None else int64(step, "step")
        self._tags = tag_names(tags)
        self._metrics = dict(zip(*metric_lists(metrics), strict=True))
        self._pool_options = pool_options_of(pool_options)
        self._overwrite = overwrite
        self.save_id = str(uuid.uuid4())
        self._rank = -1
        self._records: writing.Records | None = None

    @property
    def checkpoint_id(self) -> str:
        """The absolute path of the folder."""
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether a path can be the folder of a run."""
        path = os.fsdecode(checkpoint_id)
        return "://" not in path and not os.path.isfile(writing.folder_of(path))

    def storage_meta(self) -> StorageMeta:
        """Return the folder and an id of this save."""
        return StorageMeta(checkpoint_id=self._path, save_id=self.save_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a new save, into another folder if one is given."""
        if checkpoint_id:
            self._path = writing.folder_of(checkpoint_id)
        self.save_id = str(uuid.uuid4())

    def stage(self, state_dict: dict[str, Any]) -> Any:
        """Copy the state in memory; with `lazy`, what the optimizers' steps do not change."""
        if self._lazy is None:
            return self._copy(state_dict)
        if self._staging is not None:
            self._staging.wait()
        self._staging = Staging(self._lazy)
        try:
            return self._staging.take(state_dict, self._copy)
        except BaseException:  # no save begins, for which the next one would wait
            self._staging.end()
            self._staging = None
            raise

    def _copy(self, state: dict[str, Any]) -> dict[str, Any]:
        if self.cache_staged_state_dict:
            return super().stage(state)
        return copy_of(state, super().stage)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Open the records on the coordinator, and close them on other ranks."""
        if self._staging is not None and not self._staging.begin():
            self._staging = None
        if not kwargs.get("use_collectives", True) and dist.is_initialized() and dist.get_world_size() > 1:
            raise UnsupportedError("several ranks need use_collectives=True: their parts are one snapshot")
        rank = kwargs.get("rank")
        self._rank = -1 if rank is None else rank
        if is_coordinator:
            self._records = writing.Records(self._path, self._shelf)
            if not self._overwrite and len(self._records.store[self._shelf]):
                raise InvalidError(f"Checkpoint already exists: overwrite=False, and {self._path} has a snapshot")
        else:
            self._records = None
            writing.hand_over(self._path)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Settle the pools of ranks that take no part in this save; return the plans with the ranks' numbers."""
        assert self._records is not None
        self._records.settle_others(range(len(plans)))
        return [dataclasses.replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Store this rank's part durably; raises if that fails."""
        staging, self._staging = self._staging, None
        if self._rank < 0:  # older versions of torch do not say it before
            self._rank = plan.storage_data
        try:
            return self._written(plan, planner, None if staging is None else staging.copied)
        finally:
            if staging is not None:
                staging.end()

    def _writer(self) -> writing.RankWriter:
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        return writing.RankWriter(self._path, self._rank, writing.opener_of(ranks, self._pool_options, open))

    def _written(
        self, plan: SavePlan, planner: SavePlanner, copied: Callable[[], None] | None
    ) -> Future[list[WriteResult]]:
        rank = self._writer()
        rank.settle(self._shelf)
        rank.collect(self._shelf)
        state, places, values = _resolved(plan, planner)
        if state:
            if self._lazy is None:
                rank.begin_shelf(self._shelf, "write=raw")
            part, names = rank.prepare(self._shelf, state, self._step, copied)
        else:
            part, names = None, []
            if copied is not None:
                copied()
        stored = dict(zip(state, names, strict=True))
        results = []
        for item, key in zip(plan.items, places, strict=True):
            if key is None:
                written = _Written(part, self._rank, value=values[item.index])
                size = 0
            else:
                tensor = state[key]
                written = _Written(part, self._rank, stored[key], torch_of(torch).number_of[tensor.dtype])
                size = tensor.numel() * tensor.element_size()
            results.append(WriteResult(item.index, size, written))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Store the record durably, on the coordinator: from now on the snapshot exists."""
        assert self._records is not None
        record = _record(metadata, results)
        record.save_id = self.save_id
        self._records.commit(record, self._step, self._tags, self._metrics)
        try:  # the snapshot exists all the same
            if self._rank in record.ranks:
                self._writer().commit(record.ranks[self._rank])
            self._records.collect_others()
        except Error as error:
            log.warning("%s: the snapshot is saved, but: %s", self._path, error)
        metadata.storage_meta = self.storage_meta()
        metadata.version = _VERSION

    def close(self) -> None:
        """Close the pools of the folder that this process keeps open, and free the memory of copies."""
        super().close()
        writing.close(self._path)
        forget()

    def __getstate__(self) -> dict[str, Any]:
        if self._lazy is not None:
            if self._staging is not None:
                self._staging.end()
            raise UnsupportedError(
                "a StoreWriter with lazy= saves in a thread: tensors of another process can't be copied later. Leave "
                "lazy= out, or use AsyncCheckpointerType.THREAD"
            )
        return {**self.__dict__, "_records": None, "state_dict_cache": None}


# Writing


def _resolved(
    plan: SavePlan, planner: SavePlanner
) -> tuple[dict[str, Any], list[str | None], dict[MetadataIndex, Any]]:
    """Return the tensors to store by their keys, each item's key (None: a value), and the values."""
    boxes: dict[str, int] = {}
    for item in plan.items:
        boxes[item.index.fqn] = boxes.get(item.index.fqn, 0) + 1
    state: dict[str, Any] = {}
    places: list[str | None] = []
    values: dict[MetadataIndex, Any] = {}
    for item in plan.items:
        if item.type == WriteItemType.BYTE_IO:
            is_value, content = _value_or_bytes(item, planner)
            if is_value:
                values[item.index] = content
                places.append(None)
                continue
        else:
            content = _tensor(item, planner)
        key = item.index.fqn
        if boxes[key] > 1:
            key += str(list(item.index.offset or ()))
        while key in state:
            key += "'"
        state[key] = content
        places.append(key)
    return state, places, values


def _tensor(item: WriteItem, planner: SavePlanner) -> torch.Tensor:
    tensor = planner.resolve_data(item)
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedError(f"{item.index.fqn}: the planner gives {a_kind(tensor)}, not a tensor")
    tensor = tensor.detach()
    data = item.tensor_data
    if data is not None and data.chunk is not None and tuple(tensor.shape) != tuple(data.chunk.sizes):
        raise InvalidError(
            f"{item.index.fqn}: the planner gives a tensor of shape {tuple(tensor.shape)} where it has planned "
            f"{tuple(data.chunk.sizes)}"
        )
    return tensor


def _value_or_bytes(item: WriteItem, planner: SavePlanner) -> tuple[bool, Any]:
    """Return whether an object is a plain value, and the value, or the bytes of its pickle as a tensor."""
    lookup = getattr(planner, "lookup_object", None)
    value = lookup(item.index) if lookup is not None else planner
    is_value = _is_plain(value) and _can_be_stored(value)
    if is_value and _is_usual(planner):
        return True, value
    stream = planner.resolve_data(item)
    if not isinstance(stream, io.BytesIO):
        raise UnsupportedError(f"{item.index.fqn}: the planner gives {a_kind(stream)}, not a BytesIO")
    data = stream.getvalue()
    if is_value and data == _pickled(value).getvalue():  # a planner that changes tensors only
        return True, value
    return False, torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _is_usual(planner: SavePlanner) -> bool:
    """Whether a planner pickles objects as DCP's does."""
    names = ("resolve_data", "transform_object")
    return all(getattr(type(planner), name, None) is getattr(DefaultSavePlanner, name) for name in names)


def _pickled(value: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return stream


_SCALARS = (type(None), bool, int, float, complex, str, bytes)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    return kind is dict and all(type(key) in _SCALARS for key in value) and all(map(_is_plain, value.values()))


def _can_be_stored(value: Any) -> bool:
    if type(value) in (type(None), bool, float):
        return True
    try:
        Encoded({"value": value})
    except (UnsupportedError, RecursionError):
        return False
    return True


def _record(metadata: Metadata, results: list[list[WriteResult]]) -> Record:
    """Make the record of a save. InvalidError: its parts are not those of the plan."""
    record = Record(len(results))
    known = metadata.state_dict_metadata
    places = _places(known, results)
    paths = {name: path for name, path in _paths(metadata).items() if name in known}  # in the order of the state
    record.paths = paths | {name: (name,) for name in known if name not in paths}
    for place in (one[0].storage_data for one in results if one):
        if place.part is not None:
            record.ranks[place.rank] = place.part
    for name in record.paths:
        planned = known[name]
        written = places[name]
        if None in written:
            raise InvalidError(f"{name}: no rank has stored it, or a part of it")
        if isinstance(planned, TensorStorageMetadata):
            _add_tensor(record, name, planned, written)
        elif written[0].name is None:
            record.values[name] = written[0].value
        else:
            record.opaque[name] = written[0].rank, written[0].name
    return record


def _places(known: Mapping[str, Any], results: list[list[WriteResult]]) -> dict[str, list[Any]]:
    """Return where each chunk of each name is; None: nowhere."""
    chunks_of = {name: getattr(planned, "chunks", [None]) for name, planned in known.items()}
    places: dict[str, list[Any]] = {name: [None] * len(chunks) for name, chunks in chunks_of.items()}
    numbers: dict[str, dict[tuple[int, ...], int]] = {}
    for result in (result for one in results for result in one):
        name, offset, number = result.index.fqn, result.index.offset, result.index.index
        chunks, written = chunks_of[name], places[name]
        if chunks[0] is None:
            number = 0
        elif number is None or number >= len(chunks) or chunks[number].offsets != offset:
            if name not in numbers:
                numbers[name] = {tuple(chunk.offsets): index for index, chunk in enumerate(chunks)}
            number = numbers[name].get(tuple(offset or ()))
            if number is None:
                raise InvalidError(f"{name}: a rank has stored a part at {tuple(offset or ())} that was not planned")
        if written[number] is None:
            written[number] = result.storage_data
    return places


def _add_tensor(record: Record, name: str, planned: TensorStorageMetadata, written: list[_Written]) -> None:
    dtypes = {place.dtype for place in written}
    if len(dtypes) > 1:
        raise InvalidError(f"{name}: the ranks have stored its parts with different dtypes")
    known = _core.dtype_info(dtypes.pop() if dtypes else torch_of(torch).number_of[planned.properties.dtype])
    assert known is not None
    boxes = (
        (place.rank, place.name or "", chunk.offsets, chunk.sizes)
        for place, chunk in zip(written, planned.chunks, strict=True)
    )
    record.tensors.add(name, known[0], planned.size, boxes)


def _paths(metadata: Metadata) -> dict[str, tuple[Any, ...]]:
    """Return the places of names in the state, which a planner has flattened."""
    data: Any = metadata.planner_data
    if data is None:
        return {}
    is_usual = isinstance(data, dict) and all(
        isinstance(path, tuple) and path and all(type(key) in (str, int) for key in path) for path in data.values()
    )
    if not is_usual:
        raise UnsupportedError("the planner has data for the load (planner_data) that StoreWriter can't store")
    return dict(data)


class StoreReader(StorageReader):
    """Loads a snapshot of a run by DCP: ``dcp.load(state, storage_reader=StoreReader("run"))``.

    The world may have another size and another sharding than the one that saved. DCP takes objects as pickles: the
    reader pickles plain values for it, and gives it the stored pickles of other objects.

    Parameters
    ----------
    path
        The folder, or the URL of a run that was pushed, of which only the needed blocks are fetched; also the
        ``checkpoint_id`` of DCP.
    shelf
        The name of the shelf.
    step
        Load the newest snapshot of this step.
    address
        Without a `step`: the snapshot, as for ``shelf[address]``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shelf: str = "run",
        step: int | None = None,
        address: int | str = "latest",
        *,
        _extension_registry: Any = None,
    ) -> None:
        super().__init__()
        self._path = _run_of(path)
        self._shelf = shelf
        self._step = step
        self._address = address
        self.load_id = str(uuid.uuid4())
        self._store: FolderStore | None = None
        self._found: FolderSnapshot | None = None
        self._boxes: _Boxes | None = None
        self._entries: dict[int, dict[str, tuple[Any, ...]]] = {}
        self._remote: set[int] = set()
        self._owner: once.Owner | None = None

    @property
    def checkpoint_id(self) -> str:
        """The absolute path of the folder, or the URL."""
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether a path can be the folder of a run, or is the URL of one."""
        return is_url(os.fsdecode(checkpoint_id)) or StoreWriter.validate_checkpoint_id(checkpoint_id)

    @property
    def snapshot(self) -> FolderSnapshot:
        """The snapshot that is loaded. InvalidError: nothing was loaded yet."""
        if self._found is None:
            raise InvalidError("StoreReader.snapshot is known after read_metadata")
        return self._found

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a new load, from another folder if one is given."""
        self._close()
        if checkpoint_id:
            self._path = _run_of(checkpoint_id)
        self.load_id = str(uuid.uuid4())

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """Find the snapshot, and describe it for DCP."""
        self._close()
        self._store = _opened(self._path)
        shelf = self._store[self._shelf]
        found = shelf[self._address] if self._step is None else shelf.at(step=int64(self._step, "step"))
        self._found = shelf._taken(found.number)
        record = self._found._record()
        known: dict[str, Any] = {}
        for name in record.paths:
            tensor = record.tensors.get(name)
            known[name] = BytesStorageMetadata() if tensor is None else _metadata_of(tensor)
        meta = StorageMeta(self._path, record.save_id or None, self.load_id)
        metadata = Metadata(known, planner_data=dict(record.paths), storage_data={}, storage_meta=meta)
        metadata.version = _VERSION
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **options: Any) -> None:
        """Do nothing: `read_metadata` has found the snapshot."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Add the snapshot that this rank has found, and the blocks that it may share with others.

        Raw blocks in the folder, too, if it needs parts of rows: whole rows are read as quickly by each rank.
        """
        offer = once.Offer((self.snapshot.number, self.snapshot.time))
        if dist.is_initialized() and dist.get_world_size() > 1:
            with contextlib.suppress(Error, OSError):
                offer = self._offer(offer.snapshot, plan)
        return dataclasses.replace(plan, storage_data=offer)

    def _offer(self, snapshot: tuple[int, float], plan: LoadPlan) -> once.Offer:
        place = once.place_of(self._path if is_url(self._path) else writing.identity(self._path))
        needs: list[once.Need] = []
        for (rank, name), items in self._reads(plan).items():
            self._check(items)
            entry, is_remote = self._entry(items[0]), rank in self._remote
            is_raw = entry is not None and entry[6] == 0
            if entry is not None and (is_remote or not is_raw or not all(map(has_whole_rows, items))):
                needs += once.need_of(rank, name, entry[4], map(bytes_of, items), entry[9], is_remote)
        if place is None or not needs:
            return once.Offer(snapshot)
        self._owner = once.Owner()
        processors, is_remote = len(os.sched_getaffinity(0)), any(need.rank in self._remote for need in needs)
        return once.Offer(snapshot, place, self._owner.memory, processors, needs, is_remote)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks have found the same snapshot. Choose which blocks ranks of one machine share."""
        offers = [plan.storage_data if isinstance(plan.storage_data, once.Offer) else None for plan in plans]
        found = {offer.snapshot for offer in offers if offer is not None}
        if len(found) > 1:
            numbers = ", ".join(str(number) for number, _ in sorted(found))
            raise InvalidError(
                f"{self._path}: the ranks have found different snapshots of {self._shelf!r} ({numbers}): a save ended "
                "meanwhile. Load again, or give StoreReader a step"
            )
        shares = zip(plans, once.shares_of(offers), strict=True)
        return [dataclasses.replace(plan, storage_data=share) for plan, share in shares]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the boxes and objects of a plan, each stored tensor once."""
        try:
            reads = self._reads(plan)
            for item in plan.items:
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, self._bytes(item.storage_index.fqn))
            self._read_together(plan.storage_data, reads, planner)
            for items in reads.values():
                self._read_box(self._part(items), items, planner)
        finally:
            self._close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _reads(self, plan: LoadPlan) -> dict[tuple[int, str], list[Read]]:
        """Return a plan's items by the stored tensors that have them."""
        record = self.snapshot._record()
        if self._boxes is None:
            self._boxes = _Boxes(record)
        reads: dict[tuple[int, str], list[Read]] = {}
        for item in plan.items:
            if item.type != LoadItemType.BYTE_IO:
                box = self._boxes.find(item.storage_index)
                tensor = record.tensors[item.storage_index.fqn]
                reads.setdefault((box.rank, box.name), []).append(Read(item, tensor, box))
        return reads

    def _entry(self, read: Read) -> tuple[Any, ...] | None:
        item, _, box = read
        if box.rank not in self._entries:
            part = self.snapshot._decode().handle.part(box.rank, [item.storage_index.fqn])
            self._entries[box.rank] = {entry[0]: entry for entry in part.entries() if entry[1] == _core.TENSOR}
            if isinstance(part, RemoteHandle) or (isinstance(part, PoolHandle) and part.is_fetched):
                self._remote.add(box.rank)
        return self._entries[box.rank].get(box.name)

    def _check(self, reads: list[Read]) -> None:
        entry = self._entry(reads[0])
        for item, tensor, box in reads:
            check_box(item.storage_index.fqn, tensor, box, ((0, ()) if entry is None else entry[2:4]) + (None,))

    def _part(self, reads: list[Read]) -> _core.Snapshot:
        """Open the snapshot of a rank, of which boxes of one stored tensor are read."""
        self._check(reads)
        item, _, box = reads[0]
        return self.snapshot._decode().handle.part(box.rank, [item.storage_index.fqn])

    def _read_together(self, share: Any, reads: dict[tuple[int, str], list[Read]], planner: LoadPlanner) -> None:
        """Read tensors that others of this machine read too, arrays of links, and what is at a URL; take them out."""
        units = once.units_of(share) if isinstance(share, once.Share) else []
        wanted = {(unit.rank, piece.name) for unit in units for piece in unit.pieces}
        links = Counter((rank, self._link(items[0])) for (rank, _), items in reads.items())
        load = Load()
        for key in list(reads):
            rank, items = key[0], reads[key]
            link = self._link(items[0])
            if key in wanted or rank in self._remote or (link and links[rank, link] > 1):
                load.add(rank, Stored(self._part(items), link, reads.pop(key), planner))
        if units:
            try:
                slots = once.Slots(share, units, self._owner)
            except (OSError, ValueError) as error:
                log.debug("this rank reads alone: %s", error)
            else:
                with contextlib.closing(slots):
                    slots.read(load)
        load.end(bool(self._remote))

    def _link(self, read: Read) -> int:
        entry = self._entry(read)
        return 0 if entry is None else int(entry[9])

    def _read_box(self, part: _core.Snapshot, items: list[Read], planner: LoadPlanner) -> None:
        """Read the rows of a stored tensor that some items need, and copy their boxes."""
        item, tensor, box = items[0]
        name = item.storage_index.fqn
        targets = {id(item): planner.resolve_tensor(item).detach() for item, _, _ in items}
        copied = []
        for one in items:
            if _read_to_place(part, one, targets[id(one[0])]):
                planner.commit_tensor(one[0], targets[id(one[0])])
            else:
                copied.append(one)
        if not copied:
            return
        items = copied
        first = min((item.storage_offsets[0] for item, _, _ in items), default=0) if box.sizes else 0
        last = max(item.storage_offsets[0] + item.lengths[0] for item, _, _ in items) if box.sizes else 1
        data: Any
        if not box.sizes or (first, last) == (0, box.sizes[0]):
            view = part.view([box.name], _core.TENSOR, self.snapshot._decode().flags)
            data = view.unpack()[4][0]
        else:
            data = read_rows(part, box, first, last - first, tensor.item_bytes)
        rows = torch_of(torch).tensor(data, tensor.number, (last - first, *box.sizes[1:]) if box.sizes else ())
        for item, _, _ in items:
            source = rows
            for axis, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                source = source.narrow(axis, offset - first if axis == 0 else offset, length)
            target = targets[id(item)]
            if target.size() != source.size():
                raise InvalidError(
                    f"{name}: the planner gives {tuple(target.size())} for a box of {tuple(source.size())}"
                )
            target.copy_(source)
            planner.commit_tensor(item, target)

    def _bytes(self, name: str) -> io.BytesIO:
        decoded = self.snapshot._decode()
        record = decoded.handle.record
        if name in record.opaque:
            return io.BytesIO(decoded.opaque(name).read())
        if name not in record.values:
            raise NotFoundError(f"{name} is a tensor in the snapshot, and no other object")
        return _pickled(decoded.read(record.values[name]))

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
        if self._owner is not None:
            self._owner.close()
        self._store = self._found = self._boxes = self._owner = None
        self._entries = {}
        self._remote = set()


def _run_of(path: str | os.PathLike[str]) -> str:
    text = file_path(path)
    return text if is_url(text) else writing.folder_of(path)


def _opened(path: str) -> FolderStore:
    """Open the folder of a run, or the URL of one, for reading."""
    if is_url(path):
        store = open(path, "r")
        if not isinstance(store, FolderStore):
            store.close()
            raise UnsupportedError(f"{path} has the run of one pool, no checkpoint of DCP: read it by lmcstore.open")
        return store
    if not os.path.isdir(path):
        raise NotFoundError(f"there is no run in {path}")
    try:
        return open_folder(path)
    except NotFoundError as error:
        if os.path.exists(os.path.join(path, ".metadata")):
            raise NotFoundError(f"{error}. FileSystemReader loads the checkpoint in it") from None
        raise


def _read_to_place(part: _core.Snapshot, read: Read, target: torch.Tensor) -> bool:
    """Read whole rows directly into the memory of their target. False: this can't be done, and nothing was read."""
    if not is_place(read, target):
        return False
    first, last = bytes_of(read)
    part.read_to(_core.TENSOR, [(read.box.name, first, last - first, target.data_ptr())])
    return True


class _Boxes:
    """The boxes of a record by their offsets."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._known: dict[str, dict[tuple[int, ...], Box]] = {}

    def find(self, index: MetadataIndex) -> Box:
        tensor = self._record.tensors.get(index.fqn)
        if tensor is None:
            raise NotFoundError(f"{index.fqn} is no tensor in the snapshot")
        offsets = tuple(index.offset) if index.offset is not None else (0,) * len(tensor.shape)
        hint = index.index
        if hint is not None and hint < len(tensor.boxes) and tensor.boxes[hint].offsets == offsets:
            return tensor.boxes[hint]
        if index.fqn not in self._known:
            self._known[index.fqn] = {box.offsets: box for box in reversed(tensor.boxes)}
        found = self._known[index.fqn].get(offsets)
        if found is None:
            raise NotFoundError(f"{index.fqn} has no part at {offsets} in the snapshot")
        return found


def _metadata_of(tensor: Tensor) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)) for box in tensor.boxes]
    properties = TensorProperties(dtype=torch_of(torch).dtype(tensor.number))
    return TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)
