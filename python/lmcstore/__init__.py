# SPDX-License-Identifier: BSD-3-Clause
"""Versioned tensors in a persistent-memory pool: crash-atomic snapshots, and the whole history of a run.

A pool is a file. It holds shelves, and a shelf has a history of snapshots::

    import lmcstore

    with lmcstore.Run("run.pool", model=model, optimizer=optimizer) as run:
        for step in range(run.resume(), steps):
            train_one_step()
            run.save(step)

`Run` calls the store's own functions::

    store = lmcstore.open("run.pool", size="8GiB")
    shelf = store["run"]
    shelf.snapshot({"model": model.state_dict()}, step=step)
    shelf.latest.load_into(model=model)

A snapshot is durable when `Shelf.snapshot` returns. Tensors can also live in the pool (`Shelf.live`)::

    live = shelf.live
    live["weights"] = torch.zeros(1000, 1000)
    weights = live["weights"]
    with shelf.transaction():
        weights += 1

`lmcstore.codec` is the codec by itself. Messages go to the logger "lmcstore". torch and NumPy are imported on demand.
"""

try:
    from . import _core as _core
except (ImportError, SystemError) as error:
    from ._text.loading import explain

    raise ImportError(explain(error)) from error

import sys as _sys

if not getattr(_sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "lmcstore needs the GIL, which PYTHON_GIL=0 or -X gil=0 forces off: leave the setting out, and the import "
        "switches the GIL on"
    )

from . import archive, codec
from ._folder.opaque import Opaque
from ._state.lazy import LazyTensor, Part
from .diff import Diff, TensorDiff
from .errors import (
    CancelledError,
    CreationWarning,
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
    RemoteError,
    UnsupportedError,
)
from .live import Live, LiveInfo, LiveTensor, LiveValue, LiveVariable, Transaction
from .log import Log, RemovedByPolicy
from .opening import open
from .progress import ProgressBar
from .remote import pull
from .run import Run
from .shelf import Origin, Pruned, Removal, Shelf
from .snapshot import Loaded, Snapshot
from .store import Store

__version__ = _core.VERSION

__all__ = [
    "CancelledError",
    "CreationWarning",
    "DamagedError",
    "Diff",
    "Error",
    "ExistsError",
    "FullError",
    "InUseError",
    "InputOutputError",
    "InvalidError",
    "LazyTensor",
    "Live",
    "LiveInfo",
    "LiveTensor",
    "LiveValue",
    "LiveVariable",
    "Loaded",
    "Log",
    "NotFoundError",
    "Opaque",
    "Origin",
    "OutOfMemoryError",
    "Part",
    "ProgressBar",
    "Pruned",
    "ReadOnlyError",
    "RemoteError",
    "Removal",
    "RemovedByPolicy",
    "Run",
    "Shelf",
    "Snapshot",
    "Store",
    "TensorDiff",
    "Transaction",
    "UnsupportedError",
    "__version__",
    "archive",
    "codec",
    "open",
    "pull",
]
