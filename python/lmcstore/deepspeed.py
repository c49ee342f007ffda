# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed saves its checkpoints into pools, and loads them.

::

    engine, *_ = deepspeed.initialize(model=model, config=config, ...)
    engine.checkpoint_engine = lmcstore.deepspeed.StoreCheckpointEngine(engine)
    engine.load_checkpoint("run", tag=lmcstore.deepspeed.latest("run"))
"""

from __future__ import annotations

import io
import json
import os
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine

from ._text.arguments import file_path
from ._text.similar import listed
from .errors import DamagedError, Error, ExistsError, InvalidError, NotFoundError, UnsupportedError
from .opening import open as open_pool
from .snapshot import Snapshot
from .store import Store

__all__ = ["StoreCheckpointEngine", "export", "latest"]

_RECORD = "lmcstore.json"
_PLACEHOLDER = b"lmcstore: the contents of this file are in the pool that lmcstore.json names\n"
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_KEPT = (*_PLAIN, torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype, torch.device)


class StoreCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """Keeps the files of DeepSpeed's checkpoints as snapshots, in a pool for each rank.

    A checkpoint exists once ``lmcstore.json`` is in the folder of its tag. Rank 0 writes it when all ranks have stored
    their files durably, and then `save_checkpoint` returns. If a rank fails or stops before, the tag is as it was. An
    error on a rank is raised on all.

    A file such as ``mp_rank_00_model_states.pt`` is a snapshot on the shelf ``mp_rank_00_model_states``. Its tensors
    and plain values are stored as such, other objects as pickles of torch. In its place is a file that has no content
    of its own. Files that do not belong to a tag, as of ``save_16bit_model``, are written by `torch.save`.

    All ranks write to one machine.

    Parameters
    ----------
    engine
        The engine that `deepspeed.initialize` has returned.
    folder
        The folder of the pools. Default: that of the checkpoints.
    """

    def __init__(self, engine: Any, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self.name = "lmcstore"
        self._engine = engine
        self._folder = None if folder is None else os.path.abspath(file_path(folder))
        self._store: Store | None = None
        self._place = ""
        self._info: CheckpointCommitInfo | None = None
        self._taken: dict[str, Snapshot] = {}
        self._error: Error | OSError | None = None

    def create(self, info: CheckpointCommitInfo) -> None:
        """Begin a checkpoint; drop what an earlier one has stored that was not committed."""
        self._drop()
        self._info = info

    def save(self, state_dict: Any, path: str) -> None:
        """Copy the state of a file. An error is raised by `commit`, on all ranks."""
        if self._error is not None:
            return
        try:
            if self._info is None or os.path.dirname(path) != _directory(self._info.save_dir, self._info.tag):
                _write(path, lambda file: torch.save(state_dict, file))
                return
            name = os.path.basename(path)
            shelf = self._opened(self._info.save_dir).shelf(name.removesuffix(".pt"), create=True)
            meta = {"tag": self._info.tag, "file": name, "folder": os.path.realpath(self._info.save_dir)}
            step = self._engine.global_steps
            self._taken[name] = shelf.snapshot(_parts(state_dict), step=step, meta=meta, wait=False)
        except Exception as error:  # the other ranks wait for this one in `commit`
            self._fail(error, path)

    def load(self, path: str, map_location: Any = None) -> Any:
        """Read the state of a file, compared with its checksums, onto the CPU; also a file of `torch.save`.

        Raises
        ------
        NotFoundError
            The checkpoint was not committed, or a pool is missing.
        DamagedError
            A checksum doesn't match, or the pool has another snapshot in its place.
        UnsupportedError
            `map_location` is another device.
        """
        if not _is_placeholder(path):
            return torch.load(path, map_location=map_location, weights_only=False)
        if not (map_location is None or callable(map_location) or torch.device(map_location).type == "cpu"):
            raise UnsupportedError(f"{path}: it is loaded onto the CPU, not {map_location}: move its tensors then")
        return _read(path)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """Make the checkpoint durable, and then visible; raises on all ranks if it fails on one."""
        try:
            for snapshot in self._taken.values():
                snapshot.wait()
        except Exception as error:
            self._fail(error, info.tag)
        directory = _directory(info.save_dir, info.tag)
        place = os.path.join(os.path.relpath(self._place, directory), _pool_name()) if self._taken else ""
        files = {name: (place, one.shelf.name, one.number) for name, one in self._taken.items()}
        all_files = self._agree(files)
        if dist.get_rank() == 0 and all_files:
            try:
                _publish(directory, info.tag, self._engine.global_steps, all_files)
            except Exception as error:
                self._fail(error, directory)
        self._taken = {}  # the record may refer to them, also if its fsync has failed
        self._agree({})
        return True

    def preserves_storage_sharing(self) -> bool:
        """Return False: of a view, only its own bytes are stored."""
        return False

    def clean(self, save_dir: str | os.PathLike[str]) -> int:
        """Remove the snapshots of this rank that no checkpoint in a folder refers to; return how many.

        These are left by tags that were saved again or whose folder was removed, and by saves that failed or were
        killed. Each rank cleans its own pool. What was saved into other folders stays, also if they were moved here.
        """
        folder = os.path.realpath(file_path(save_dir))
        store = self._opened(folder)
        used = set()
        for _, directory, record in _records(folder):
            for place, shelf, number in record["files"].values():
                if os.path.realpath(os.path.join(directory, place)) == os.path.realpath(store.path):
                    used.add((shelf, number))
        removed = 0
        for shelf in store:
            for snapshot in list(store[shelf]):
                if snapshot.meta.get("folder") == folder and (shelf, snapshot.number) not in used:
                    store[shelf].remove(snapshot)
                    removed += 1
        return removed

    def close(self) -> None:
        """Close the pool of this rank; the next `save` opens it again."""
        self._drop()
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _opened(self, save_dir: str) -> Store:
        place = self._folder or os.path.abspath(save_dir)
        if self._store is None or place != self._place:
            self.close()
            os.makedirs(place, exist_ok=True)
            self._store, self._place = open_pool(os.path.join(place, _pool_name())), place
        return self._store

    def _fail(self, error: Exception, place: str) -> None:
        """Keep the first error for `_agree`."""
        if not isinstance(error, Error | OSError):
            text = f"{place}: it was not saved: {type(error).__qualname__}: {error}"
            error, error.__cause__ = UnsupportedError(text), error
        self._error = self._error or error

    def _drop(self) -> None:
        taken, self._taken, self._error = self._taken, {}, None
        for snapshot in taken.values():
            try:
                snapshot.shelf.remove(snapshot.wait())
            except Error:  # it does not exist, or stays until `clean`
                continue

    def _agree(self, files: dict[str, Any]) -> dict[str, Any]:
        """Wait for all ranks, and return their files; raises what has failed on any."""
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, (None if self._error is None else str(self._error), files))
        failed = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(found) if text is not None]
        if failed:
            error = self._error
            self._drop()
            raise error or Error(f"the checkpoint was not saved: {'; '.join(failed)}")
        return {name: place for _, one in found for name, place in one.items()}


def latest(save_dir: str | os.PathLike[str]) -> str | None:
    """Return the tag of the newest checkpoint in a folder; None: it has none.

    DeepSpeed's own file ``latest`` is not written durably: a machine that fails may leave it empty.
    """
    found = [(record["time"], tag) for tag, _, record in _records(file_path(save_dir))]
    return max(found)[1] if found else None


def export(save_dir: str | os.PathLike[str], tag: str, folder: str | os.PathLike[str]) -> None:
    """Write a checkpoint as files of `torch.save` to another folder, for ``zero_to_fp32.py`` and other tools."""
    directory = _directory(file_path(save_dir), tag)
    target = _directory(file_path(folder), tag)
    if os.path.realpath(directory) == os.path.realpath(target):
        raise InvalidError(f"{directory}: export to another folder than the checkpoint's")
    os.makedirs(target, exist_ok=True)
    for name in _record(directory)["files"]:
        state = _read(os.path.join(directory, name))
        _write(os.path.join(target, name), lambda file, state=state: torch.save(state, file))
    _write(os.path.join(file_path(folder), "latest"), lambda file: file.write(tag.encode()))


# Files


def _directory(save_dir: str, tag: str) -> str:
    return os.path.join(save_dir, str(tag))


def _pool_name() -> str:
    return f"rank-{dist.get_rank():05}.pool"


def _publish(directory: str, tag: str, step: int, files: dict[str, Any]) -> None:
    """Put the placeholders of a checkpoint's files, and then its record, durably."""
    os.makedirs(directory, exist_ok=True)
    for name in files:
        path = os.path.join(directory, name)
        if os.path.lexists(path) and not _is_placeholder(path):
            raise ExistsError(f"{path} is a file of another checkpoint: use another tag, or remove its folder")
    for name in files:
        if not os.path.lexists(os.path.join(directory, name)):
            _write(os.path.join(directory, name), lambda file: file.write(_PLACEHOLDER))
    record = json.dumps({"tag": tag, "step": step, "time": time.time(), "files": files}, indent=1)
    _write(os.path.join(directory, _RECORD), lambda file: file.write(record.encode()))
    _sync(os.path.dirname(directory))
    for name in set(os.listdir(directory)) - files.keys():  # of a checkpoint by more ranks that this one replaces
        if _is_placeholder(os.path.join(directory, name)):
            os.unlink(os.path.join(directory, name))


def _write(path: str, put: Any) -> None:
    """Write a file durably in place of another one, or not at all."""
    before = f"{path}.tmp"
    try:
        with open(before, "wb") as file:
            put(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(before, path)
    except BaseException:
        if os.path.exists(before):
            os.unlink(before)
        raise
    _sync(os.path.dirname(path))


def _sync(directory: str) -> None:
    number = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _is_placeholder(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_PLACEHOLDER) + 1) == _PLACEHOLDER
    except (FileNotFoundError, IsADirectoryError):
        return False


def _record(directory: str) -> Any:
    path = os.path.join(directory, _RECORD)
    try:
        with open(path, "rb") as file:
            record = json.load(file)
        if record.keys() >= {"tag", "time", "files"} and all(len(one) == 3 for one in record["files"].values()):
            return record
    except FileNotFoundError:
        tag = latest(os.path.dirname(directory))
        newest = "there is none" if tag is None else f"the newest one is {tag!r}"
        raise NotFoundError(f"{directory}: no checkpoint was committed here; in its folder {newest}") from None
    except (ValueError, TypeError, AttributeError):
        pass
    raise DamagedError(f"{path} is damaged: use another tag")


def _records(save_dir: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the tags of a folder with their folders and records."""
    for tag in sorted(os.listdir(save_dir)) if os.path.isdir(save_dir) else ():
        directory = os.path.join(save_dir, tag)
        if os.path.isfile(os.path.join(directory, _RECORD)):
            yield tag, directory, _record(directory)


def _read(path: str) -> Any:
    """Read the state of a placeholder."""
    directory, name = os.path.split(path)
    record = _record(directory)
    if name not in record["files"]:
        raise NotFoundError(f"{directory}: the checkpoint has no {name}, but {listed(list(record['files']))}")
    place, shelf, number = record["files"][name]
    with open_pool(os.path.normpath(os.path.join(directory, place)), "r") as store:
        snapshot = store[shelf][number]
        if snapshot.meta.get("file") != name or snapshot.meta.get("tag") != record["tag"]:
            raise DamagedError(f"{store.path}: {shelf}@{number} is not of {path}: another pool has taken its place")
        stored = snapshot.state_dict(verify=True)
    return _whole(stored)


# States


def _parts(state: Any) -> dict[str, Any]:
    """Return a state without the objects that a snapshot can't have, and the pickles of these by their places."""
    pickles: list[Any] = []
    return {"state": _plain(state, (), pickles), "pickles": pickles}


def _plain(value: Any, path: tuple[Any, ...], pickles: list[Any]) -> Any:
    kind = type(value)
    if kind in (dict, OrderedDict) and all(type(key) in _PLAIN for key in value):
        made = kind()
        for key, child in value.items():
            made[key] = _plain(child, (*path, key), pickles)
        return made
    if kind is list:
        return [_plain(child, (*path, index), pickles) for index, child in enumerate(value)]
    if kind in _KEPT or (kind in (tuple, set) and _is_plain(value)):
        return value
    stream = io.BytesIO()
    torch.save(value, stream)
    pickles.append((path, torch.frombuffer(stream.getbuffer(), dtype=torch.uint8)))
    return None


def _is_plain(value: Any) -> bool:
    return all(type(one) in _KEPT or (type(one) is tuple and _is_plain(one)) for one in value)


def _whole(stored: dict[str, Any]) -> Any:
    for path, data in stored["pickles"]:
        value = torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", weights_only=False)
        if not path:
            return value
        place = stored["state"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    return stored["state"]
