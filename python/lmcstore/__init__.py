# SPDX-License-Identifier: BSD-3-Clause
"""Versioned tensors in a persistent-memory pool: crash-atomic snapshots, and the whole history of a run.

A pool is a file. It holds shelves, and a shelf has a history of snapshots::

    import lmcstore

    store = lmcstore.open("run.pool", size="8GiB")
    shelf = store["run"]
    start = 0
    if shelf.latest is not None:
        start = shelf.latest.load_into(model=model, optimizer=optimizer).step + 1
    for step in range(start, steps):
        train_one_step()
        shelf.snapshot({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=step)

The codec that makes old snapshots small is there by itself: `lmcstore.codec`.

When `Shelf.snapshot` has returned, the snapshot is durable. Messages go to the logger "lmcstore". Neither torch nor
NumPy is imported before it is needed.
"""

try:
    from . import _core as _core
except ImportError as error:
    raise ImportError(
        f"lmcstore's C module can't be loaded ({error}). In a checkout: pip install ./python, "
        "and run Python outside the directory python/"
    ) from error

from . import codec
from .errors import (
    CancelledError,
    DamagedError,
    Error,
    ExistsError,
    FullError,
    InputOutputError,
    InUseError,
    InvalidError,
    NotFoundError,
    OutOfMemoryError,
    ReadOnlyError,
    UnsupportedError,
)
from .shelf import Removal, Shelf
from .snapshot import Snapshot
from .store import Store, open

__version__ = "0.1.0"

__all__ = [
    "CancelledError",
    "DamagedError",
    "Error",
    "ExistsError",
    "FullError",
    "InUseError",
    "InputOutputError",
    "InvalidError",
    "NotFoundError",
    "OutOfMemoryError",
    "ReadOnlyError",
    "Removal",
    "Shelf",
    "Snapshot",
    "Store",
    "UnsupportedError",
    "__version__",
    "codec",
    "open",
]
