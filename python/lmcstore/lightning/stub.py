# SPDX-License-Identifier: BSD-3-Clause
"""`Stub`: the small file at a checkpoint's path, which names a snapshot."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from typing import IO, Any, NamedTuple

from ..errors import DamagedError, Error, InvalidError, NotFoundError
from ..opening import open as open_store
from ..snapshot import Snapshot
from ..store import Store

logger = logging.getLogger("lmcstore")

MAGIC = b"lmcstore checkpoint 1\n"
"""The first line. The rest is a JSON object."""
_MOST_BYTES = 1 << 16
_NEVER = "is not durable yet, or its program ended before it was"
_POLL_SECONDS = 0.05


class Stub(NamedTuple):
    """The contents of a stub."""

    pool: str
    """The absolute path of the pool, or of the folder of a run."""
    beside: str
    """The same from the stub's folder."""
    uuid: str
    """Of the pool."""
    shelf: str
    snapshot: int
    time_ns: int
    """When the snapshot was taken. A shelf that was dropped and made again has other snapshots of the same numbers."""
    step: int | None
    tag: str
    """The tag that protects the snapshot from the shelf's policy until the stub is removed."""
    pending: bool = False
    """Whether the stub was written before its snapshot was durable: then that may never have come to be."""

    @property
    def address(self) -> str:
        """The snapshot's address."""
        return f"{self.shelf}@{self.snapshot}"

    def is_of(self, store: Store) -> bool:
        """Whether a store is the pool of the stub."""
        return store._uuid.hex() == self.uuid

    def of(self, store: Store, path: str) -> Snapshot:
        """Return the snapshot. NotFoundError: it is gone, or another has its number."""
        place = f"{path} names {self.address} in {store.path}"
        try:
            found = store[self.shelf][self.snapshot]
        except NotFoundError as error:
            if self.pending:
                raise NotFoundError(f"{place}, which {_NEVER}: load another checkpoint") from None
            raise NotFoundError(f"{place}, which is not there: {error}") from None
        if found._info["time_ns"] != self.time_ns or found.step != self.step:
            if self.pending:
                raise NotFoundError(f"{place}, but its own snapshot {_NEVER}: load another checkpoint")
            raise NotFoundError(
                f"{place}, but that is another snapshot now: its shelf was removed and made again, or the stub was "
                "changed"
            )
        return found

    def to_continue(self, store: Store, path: str) -> Snapshot:
        """Return the snapshot, or the newest one before it if it never was durable. NotFoundError: as `of`.

        The stub is of `read_when_saved`: another one may become durable yet.
        """
        try:
            return self.of(store, path)
        except NotFoundError:
            for one in reversed(store[self.shelf]) if self.pending else ():
                if one.number < self.snapshot and one._info["time_ns"] < self.time_ns:
                    logger.warning(
                        "%s names the snapshot of step %s, which was not saved: %s of step %s, the newest before it, "
                        "is loaded",
                        path, self.step, one._address, one.step,
                    )  # fmt: skip
                    return one
            raise

    def open(self, path: str) -> Store:
        """Open the pool for reading: beside the stub, or else where it was. NotFoundError: it is in neither place."""
        folders = dict.fromkeys((os.path.dirname(os.path.realpath(path)), os.path.dirname(os.path.abspath(path))))
        places = [*(os.path.normpath(os.path.join(folder, self.beside)) for folder in folders), self.pool]
        others = []
        for place in dict.fromkeys(places):
            if not os.path.exists(place):
                continue
            store = open_store(place, "r")
            if self.is_of(store):
                return store
            others.append(place)
            store.close()
        there = f"; {others[0]} is another pool" if others else ""
        raise NotFoundError(
            f"{path} names {self.address} in a pool that is neither {' nor '.join(dict.fromkeys(places))}{there}. If "
            "the pool was moved, give StoreCheckpointIO its path"
        )


def stub_of(snapshot: Snapshot, path: str, tag: str, pending: bool = False) -> Stub:
    """Describe a snapshot for a stub at a path; `pending`: one that was taken just now, without waiting for it."""
    store = snapshot.shelf.store
    beside = os.path.relpath(os.path.realpath(store.path), os.path.realpath(os.path.dirname(os.path.abspath(path))))
    time_ns = snapshot._time_ns if pending else snapshot._info["time_ns"]
    assert time_ns is not None
    return Stub(
        os.path.realpath(store.path),
        beside,
        store._uuid.hex(),
        snapshot.shelf.name,
        snapshot.number,
        time_ns,
        snapshot.step,
        tag,
        pending,
    )


def read(path: str) -> Stub | None:
    """Read the stub at a path; None: the file is no stub. DamagedError: it is a damaged one."""
    with open(path, "rb") as file:
        return _parsed(file.read(_MOST_BYTES), path)


def read_when_saved(path: str) -> Stub | None:
    """Read a stub as `read` does, but wait while it is pending and the process that saves its snapshot holds it."""
    has_waited = False
    while True:
        with open(path, "rb") as file:
            stub = _parsed(file.read(_MOST_BYTES), path)
            if stub is None or not stub.pending or not _is_held(file):
                return stub
        if not has_waited:
            logger.info("%s is being saved by another process: waiting for it", path)
            has_waited = True
        time.sleep(_POLL_SECONDS)


def _is_held(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        pass
    return False


def _parsed(data: bytes, path: str) -> Stub | None:
    if not data.startswith(MAGIC):
        if data[: len(MAGIC)].strip(b"\0") == b"" or data.startswith(MAGIC[:9]):
            raise DamagedError(f"{path} is a damaged or empty stub of a checkpoint. {_REMEDY}")
        return None
    try:
        values: Any = json.loads(data[len(MAGIC) :])
        pending = values.get("pending") is True
        stub = Stub(**{name: values[name] for name in Stub._fields if name != "pending"}, pending=pending)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"{path} is a damaged stub of a checkpoint. {_REMEDY}") from None
    texts = stub.pool, stub.beside, stub.uuid, stub.shelf, stub.tag
    numbers = stub.snapshot, stub.time_ns, 0 if stub.step is None else stub.step
    is_sound = all(type(text) is str and "\0" not in text for text in texts)
    if not is_sound or any(type(number) is not int for number in numbers):
        raise DamagedError(f"{path} is a damaged stub of a checkpoint. {_REMEDY}")
    return stub


_REMEDY = (
    "The snapshot is in the pool still: find it with `lmc-store log`, and write a new stub with "
    "lmcstore.lightning.write_stub"
)


def read_if_stub(path: str) -> Stub | None:
    """Read the stub at a path; None: there is none that can be read."""
    try:
        return read(path) if os.path.isfile(path) else None
    except (Error, OSError):
        return None


def write(stub: Stub, path: str) -> IO[bytes] | None:
    """Write a stub durably, in place of a file that is there: wholly, or not at all.

    Return a pending one's file, held until `let_go`, or until this process ends: so others see that it lives.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        raise InvalidError(f"{path} is a folder: a checkpoint's stub can't replace it")
    folder, name = os.path.split(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    beside = os.path.join(folder, f".{name}.tmp")
    text = json.dumps({name: value for name, value in stub._asdict().items() if value is not False}, indent=1)
    with open(beside, "wb") as file:
        file.write(MAGIC + text.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        if stub.pending:  # before it has its name, under which others may read it at once
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(beside, path)
        sync(folder)
        return os.fdopen(os.dup(file.fileno()), "wb") if stub.pending else None


def let_go(held: IO[bytes] | None) -> None:
    """Let go of a pending stub: its snapshot is durable and has another stub, or never will be."""
    if held is not None:
        with held, contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_UN)  # a close is not enough: forked children have the descriptor, too


def sync(folder: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
