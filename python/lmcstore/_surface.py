# SPDX-License-Identifier: BSD-3-Clause
"""The public names of the package, which it loads when one of them is used."""

import sys

from . import _core, archive, codec
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
from .snapshot import Loaded, Progress, Snapshot
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

for _module in ("live.live", "log", "remote", "shelf", "snapshot"):  # which can't import what their annotations name
    vars(sys.modules[f"{__package__}.{_module}"]).update(Progress=Progress, Shelf=Shelf, Snapshot=Snapshot, Store=Store)
