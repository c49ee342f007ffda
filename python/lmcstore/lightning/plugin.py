# SPDX-License-Identifier: BSD-3-Clause
"""`StoreCheckpointIO`: the plugin of Lightning's Trainer and of Fabric."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

import torch

from .._folder.store import FolderSnapshot
from .._text.arguments import a_kind, absolute, file_path, free_tag, int64
from ..errors import Error, InvalidError, NotFoundError, UnsupportedError
from ..opening import open as open_store
from ..shelf import Shelf
from ..snapshot import Snapshot
from ..store import Store
from . import stub as stubs
from .pickled import Pickled, move, plain, unpickled
from .stub import Stub

logger = logging.getLogger("lmcstore")

_FABRICS = ("lightning.fabric", "lightning_fabric")
_OPTIONS = ("step", "tags", "metrics", "meta")
REST = "checkpoint"
"""In the snapshot of a sharded model: what ``torch.save`` made of the checkpoint without model and optimizers."""
FABRIC_REST = "fabric"
"""The same of a program with Fabric."""
_NOT_ITS = (AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""Errors of reading the state of a callback that is no ModelCheckpoint."""


class StoreCheckpointIO:
    """Saves Lightning's checkpoints as snapshots: ``Trainer(plugins=[StoreCheckpointIO("run.pool")])``.

    At the path of a checkpoint it writes a stub, a small file that names the snapshot, once that is durable. Lightning
    finds, links, copies and removes stubs as it does checkpoints. The plugin loads them, and files of ``torch.save``.

    A snapshot has the step ``global_step`` of the checkpoint (or ``step``), a tag named like the stub, and as metric
    the value by which a ModelCheckpoint has chosen it. ``Trainer.save_checkpoint(path, storage_options={"metrics":
    {"loss": 0.1}})`` adds others; ``tags``, ``meta`` and ``step`` are given in the same way.

    Objects that a snapshot can't give back as they are, such as dataclasses and OmegaConf's, are stored as pickles,
    which ``weights_only`` governs as it does for ``torch.load``.

    One process writes to the pool, that of global rank 0. It is opened at the first save and closed by `teardown`.

    Parameters
    ----------
    pool
        The path of a pool, created if it is missing, as by `lmcstore.open`; or an open `Store`, which stays open.
    shelf
        The name of the shelf.
    policy
        Words of `Shelf.policy` to set at the first save: ``policy="keep=last:100,every:1000"``.
    removes
        What becomes of the snapshot if Lightning removes or replaces a checkpoint. False: it stays in the history, but
        loses the tag that has protected it from the shelf's policy. True: it is removed, unless it has other tags.
    wait
        False: a save returns when the state is copied. The snapshot becomes durable, and the stub is written, in the
        background. Removals wait for that, and are left out if it fails. A failure is raised by the next save, load or
        removal, or by `teardown`. Until then a new path has a stub that is marked as pending, since Lightning links the
        path and looks for free names at once; `load_checkpoint` of other processes waits for it. If the program ends
        before the snapshot is durable, or that fails, it loads the newest one before it, with a warning; so that there
        is one, the first save waits.
    """

    def __init__(
        self,
        pool: str | os.PathLike[str] | Store,
        shelf: str = "run",
        *,
        policy: str | None = None,
        removes: bool = False,
        wait: bool = True,
    ) -> None:
        if not isinstance(shelf, str):
            raise UnsupportedError(f"a shelf is named by a str, not by {a_kind(shelf)}")
        self._owns = not isinstance(pool, Store)
        self._store: Store | None = pool if isinstance(pool, Store) else None
        self._path = pool.path if isinstance(pool, Store) else absolute(file_path(pool))
        self._shelf = shelf
        self._policy = policy
        self._removes = removes
        self._wait = wait
        self._parent: Stub | None = None  # loaded, but not continued yet
        self._chosen: tuple[int | None, dict[str, float]] = None, {}  # a step, and its metrics
        self._has_saved = False  # since the pool was opened, or a checkpoint was loaded
        self._pending: list[Future[None]] = []
        self._tags: set[str] = set()  # of pending saves
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.RLock()
        for package in _loaded_fabrics():
            package.CheckpointIO.register(type(self))

    # The interface of Lightning

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Save a checkpoint as a snapshot, and write its stub; both are durable afterwards (but see ``wait``).

        Parameters
        ----------
        checkpoint
            The state.
        path
            A path on a local file system, for the stub.
        storage_options
            None, or a dict with some of ``step``, ``tags``, ``metrics`` and ``meta`` of `Shelf.snapshot`.

        Raises
        ------
        UnsupportedError
            A part of the checkpoint can be neither stored nor pickled; the text has its path.
        Error
            As `lmcstore.open` and `Shelf.snapshot` raise it; with ``wait=False`` also for an earlier save.
        """
        place, options = _local(path), _options(storage_options)
        with self._lock:
            self._raise_failure()
            state = plain(checkpoint)
            os.makedirs(os.path.dirname(place), exist_ok=True)  # Lightning may link the stub at once
            shelf = self._open()
            tag = free_tag(shelf, place, self._tags)  # not the old stub's, which needs it until this one replaces it
            step = options.get("step", _step_of(checkpoint))
            metrics = _metrics_of(checkpoint, path)
            if metrics or self._chosen[0] != step:
                self._chosen = step, metrics
            snapshot = shelf.snapshot(
                state,
                step=step,
                tags=(tag, *options.get("tags", ())),
                metrics={**self._chosen[1], **options.get("metrics", {})},
                meta=options.get("meta"),
                parent=self._parent_in(shelf),
                wait=self._wait,
            )
            self._parent = None
            if self._wait:
                self._finish(snapshot, place, tag)
                return
            is_new = not os.path.exists(place)
            held = None
            if is_new and self._has_saved:
                held = stubs.write(stubs.stub_of(snapshot, place, tag, pending=True), place)
            self._tags.add(tag)
            self._later(lambda: self._finish_later(snapshot, place, tag, held))
            if is_new and not self._has_saved:
                self.wait()

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load the checkpoint of a stub, or a file that ``torch.save`` wrote.

        Parameters
        ----------
        path
            The path of the stub or file.
        map_location
            As for ``torch.load``. Default: the CPU.
        weights_only
            As for ``torch.load``, but plain data need no pickles, and are loaded in any case.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        NotFoundError
            The pool or the snapshot is not there (but see ``wait``).
        DamagedError
            The stub or the snapshot is damaged.
        UnsupportedError
            `weights_only` refuses an object.
        """
        with self._lock:
            self.wait()
            stub = _read(path, stubs.read_when_saved)
            if stub is None:
                location = {} if map_location is None else {"map_location": map_location}
                loaded: dict[str, Any] = _torch_io().load_checkpoint(path, weights_only=weights_only, **location)
                return loaded
            place, closes = os.fspath(path), False
            store = self._store if self._store is not None and stub.is_of(self._store) else None
            if store is None:
                store, closes = open_of(stub, place, self._path), True
            try:
                found = stub.to_continue(store, place)
                made = _load(found, map_location, weights_only)
                self._parent, self._has_saved = stubs.stub_of(found, place, ""), False
                return made
            finally:
                if closes:
                    store.close()

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove the stub at a path, and its snapshot's tag or, with ``removes=True``, the snapshot.

        Of a symbolic link only the link is removed, and other files and folders as Lightning does it.
        """
        with self._lock:
            self._raise_failure()
            if self._wait or not self._pending:
                self._remove(os.fspath(path))
            else:
                earlier = [*self._pending]
                self._later(lambda: self._remove_after(earlier, os.fspath(path)))

    def wait(self) -> None:
        """Wait for the saves under way; raises the first failure, once."""
        with self._lock:
            pending, self._pending = self._pending, []
        _raise_first(pending)

    def teardown(self) -> None:
        """Wait for the saves under way, and close a pool that the plugin has opened; raises the first failure."""
        try:
            self.wait()
        finally:
            with self._lock:
                if self._executor is not None:
                    self._executor.shutdown()
                    self._executor = None
                if self._owns and self._store is not None:
                    self._store.close()
                    self._store = None
                self._has_saved = False

    # Writing

    def _open(self) -> Shelf:
        """Return the shelf in the pool, opened for writing."""
        is_new = self._store is None
        if self._store is None:
            self._store = open_store(self._path)
        shelf = self._store[self._shelf]
        if self._policy is not None:
            shelf.policy = self._policy
            self._policy = None
        if is_new:
            logger.info("Lightning's checkpoints go to shelf %r in %s", self._shelf, self._path)
        return shelf

    def _parent_in(self, shelf: Shelf) -> Snapshot | None:
        """Return the snapshot that was loaded since the last save, if it is on the shelf."""
        stub = self._parent
        if stub is None or stub.shelf != shelf.name or not stub.is_of(shelf.store):
            return None
        try:
            return stub.of(shelf.store, "")
        except NotFoundError:
            return None

    def _finish(self, snapshot: Snapshot, path: str, tag: str) -> None:
        """Write the stub of a durable snapshot, and let go of the one that it replaces."""
        old = None if os.path.islink(path) else stubs.read_if_stub(path)
        stub = stubs.stub_of(snapshot, path, tag)
        stubs.write(stub, path)
        self._tags.discard(tag)
        self._has_saved = True
        if old is not None and old._replace(pending=False) != stub:
            self._release(old)

    def _finish_later(self, snapshot: Snapshot, path: str, tag: str, held: IO[bytes] | None) -> None:
        try:
            self._finish(snapshot.wait(), path, tag)
        finally:
            stubs.let_go(held)

    def _remove_after(self, earlier: list[Future[None]], path: str) -> None:
        if any(one.exception() is not None for one in earlier):
            logger.error("%s stays: a checkpoint that was to be saved before its removal was not saved", path)
        else:
            self._remove(path)

    def _remove(self, path: str) -> None:
        if "://" in path or (os.path.isdir(path) and not os.path.islink(path)):
            _torch_io().remove_checkpoint(path)
            return
        if not os.path.lexists(path):
            return
        is_link = os.path.islink(path)
        old = None if is_link else stubs.read_if_stub(path)
        os.remove(path)
        stubs.sync(os.path.dirname(os.path.abspath(path)))
        if old is not None:
            self._release(old)

    def _release(self, old: Stub) -> None:
        """Remove the tag of a stub that is gone, or its snapshot, if both are in this pool."""
        if self._store is None:
            if not os.path.exists(self._path):
                return
            self._open()
        store = self._store
        assert store is not None
        if not old.is_of(store):
            logger.info("%s in %s keeps its tag %r: the checkpoint is of another pool", old.address, old.pool, old.tag)
            return
        try:
            release(old.of(store, ""), old.tag, self._removes)
        except NotFoundError:
            logger.debug("%s was removed before its checkpoint", old.address)

    def _later(self, work: Callable[[], None]) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "lmcstore.lightning")
        self._pending.append(self._executor.submit(work))

    def _raise_failure(self) -> None:
        done = [one for one in self._pending if one.done()]
        self._pending = [one for one in self._pending if one not in done]
        _raise_first(done)

    def __getstate__(self) -> dict[str, Any]:
        if self._pending:
            raise InvalidError(f"{self!r} can't be copied or pickled while it saves: call its wait()")
        state = {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_executor")}
        return {**state, "_store": None if self._owns else self._store}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock(), _executor=None)
        for package in _loaded_fabrics():
            package.CheckpointIO.register(type(self))

    def __repr__(self) -> str:
        return f"<lmcstore.lightning.StoreCheckpointIO {self._shelf!r} in {self._path}>"


def open_of(stub: Stub, path: str, own: str) -> Store:
    """Open the pool of a stub for reading: one's own, or else by the stub's paths."""
    if os.path.exists(own):
        store = open_store(own, "r")
        if stub.is_of(store):
            return store
        store.close()
    return stub.open(path)


def release(snapshot: Snapshot, tag: str, removes: bool) -> None:
    """Remove the tag of a stub from its snapshot, or the snapshot, unless it has others."""
    tags = snapshot.tags
    if removes and set(tags) <= {tag}:
        snapshot.shelf.remove(snapshot)
    elif tag in tags:
        snapshot.shelf.untag(tag)


# Without a plugin


def find(path: str | os.PathLike[str]) -> Snapshot:
    """Return the snapshot of a stub, in a store that is open for reading: ``find(path).shelf.store``.

    InvalidError: the file is no stub. DamagedError: it is a damaged one. NotFoundError: the pool or the snapshot is not
    there. FileNotFoundError: there is no such file.
    """
    stub, place = _read(path), os.fspath(path)
    if stub is None:
        raise InvalidError(f"{place} is no stub of a checkpoint")
    store = stub.open(place)
    try:
        return stub.of(store, place)
    except Error:
        store.close()
        raise


def load(path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
    """Load the checkpoint of a stub, as `StoreCheckpointIO.load_checkpoint` does."""
    snapshot = find(path)
    with snapshot.shelf.store:
        return _load(snapshot, map_location, weights_only)


def as_file(path: str | os.PathLike[str], weights_only: bool | None = None) -> io.BytesIO:
    """Return the checkpoint of a stub as a file of ``torch.save``, in memory.

    For functions that read files by themselves: ``MyModel.load_from_checkpoint(as_file("best.ckpt"))``.
    """
    stream = io.BytesIO()
    torch.save(load(path, weights_only=weights_only), stream)
    stream.seek(0)
    return stream


def write_stub(snapshot: Snapshot, path: str | os.PathLike[str]) -> None:
    """Write a stub for a snapshot at a path, and tag the snapshot, which protects it from its shelf's policy.

    So a run can go on from any snapshot: ``write_stub(shelf.at(step=120), "again.ckpt")``, then
    ``trainer.fit(model, ckpt_path="again.ckpt")``.
    """
    place, shelf = _local(path), snapshot.wait().shelf
    tag = free_tag(shelf, place)
    shelf.tag(snapshot, tag)
    stubs.write(stubs.stub_of(snapshot, place, tag), place)


def _read(path: str | os.PathLike[str], read: Callable[[str], Stub | None] = stubs.read) -> Stub | None:
    place = os.fspath(path)
    if "://" in place:
        return None
    if not os.path.exists(place):
        to = f", a link to {os.path.realpath(place)}" if os.path.islink(place) else ""
        raise FileNotFoundError(f"there is no checkpoint {place}{to}")
    return None if os.path.isdir(place) else read(place)


def _load(snapshot: Snapshot, map_location: Any, weights_only: bool | None) -> dict[str, Any]:
    state = snapshot.state_dict(types=[Pickled])
    names = (REST, FABRIC_REST) if isinstance(snapshot, FolderSnapshot) else ()
    rest = next((name for name in names if type(state.get(name)) is bytes), None)
    if rest is not None:
        state[rest] = Pickled("dict", state[rest])
    made: dict[str, Any] = unpickled(state, weights_only, snapshot._address)
    if rest == REST:
        optimizers = [state[name] for name in state if name.startswith("optimizer_")]
        made = {**state[REST], "state_dict": state["state_dict"], "optimizer_states": optimizers}
    elif rest is not None:
        made = {**made.pop(rest), **made}
    logger.info("loaded the checkpoint of step %s from %s", snapshot.step, snapshot._address)
    move(made, map_location)
    return made


def _local(path: str | os.PathLike[str]) -> str:
    place = os.fspath(path)
    if not isinstance(place, str) or "://" in place:
        raise UnsupportedError(
            f"{place!r} is no path on a local file system: stubs of checkpoints lie beside the pool. Give "
            "ModelCheckpoint a dirpath there"
        )
    return os.path.abspath(place)


def _options(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not given.keys() <= set(_OPTIONS):
        raise UnsupportedError(f"storage_options is a dict with some of {', '.join(_OPTIONS)}, not {given!r:.200}")
    options = {**given}
    if isinstance(options.get("tags"), str):
        options["tags"] = (options["tags"],)
    return {name: value for name, value in options.items() if value is not None}


def _step_of(checkpoint: Any) -> int | None:
    """Return the step of a checkpoint: of the Trainer, or of a program with Fabric."""
    for name in ("global_step", "step"):
        value = checkpoint.get(name) if isinstance(checkpoint, Mapping) else None
        if type(value) is int:
            return int64(value, name)
    return None


def _metrics_of(checkpoint: Any, path: str | os.PathLike[str]) -> dict[str, float]:
    """Return the metrics by which callbacks have chosen this path: only these are of this step."""
    metrics: dict[str, float] = {}
    callbacks = checkpoint.get("callbacks") if isinstance(checkpoint, Mapping) else None
    for state in callbacks.values() if isinstance(callbacks, Mapping) else ():
        with contextlib.suppress(*_NOT_ITS):
            value = float(state["best_k_models"][os.fspath(path)]) if state.get("monitor") else math.nan
            if not math.isnan(value):
                metrics[str(state["monitor"])] = value
    return metrics


def _raise_first(done: list[Future[None]]) -> None:
    failures = [error for error in (one.exception() for one in done) if error is not None]
    for other in failures[1:]:
        logger.error("another checkpoint was not saved: %s", other)
    if failures:
        raise failures[0]


def _fabrics() -> list[str]:
    """Return the names of the Fabrics that are in use, or else of those that are installed."""
    names = [name for name in _FABRICS if name in sys.modules]
    names = names or [name for name in _FABRICS if importlib.util.find_spec(name.partition(".")[0]) is not None]
    if not names:
        raise UnsupportedError("StoreCheckpointIO needs the package lightning, pytorch-lightning or lightning-fabric")
    return names


def _loaded_fabrics() -> list[Any]:
    return [importlib.import_module(f"{name}.plugins") for name in _fabrics()]


def _torch_io() -> Any:
    return _loaded_fabrics()[0].TorchCheckpointIO()
