# SPDX-License-Identifier: BSD-3-Clause
"""Lightning saves its checkpoints as snapshots, and resumes from them.

::

    trainer = Trainer(plugins=[lmcstore.lightning.StoreCheckpointIO("run.pool")])
    trainer.fit(model, ckpt_path="last")

Fabric takes the same plugin. The packages ``lightning``, ``pytorch-lightning`` and ``lightning-fabric`` all work.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .pickled import Pickled
from .plugin import StoreCheckpointIO, as_file, find, load, write_stub

if TYPE_CHECKING:
    from .strategies import StoreFSDPStrategy, StoreModelParallelStrategy

__all__ = [
    "Pickled",
    "StoreCheckpointIO",
    "StoreFSDPStrategy",
    "StoreModelParallelStrategy",
    "as_file",
    "find",
    "load",
    "write_stub",
]


def __getattr__(name: str) -> Any:
    if name in ("StoreFSDPStrategy", "StoreModelParallelStrategy"):  # they import Lightning's trainer
        return getattr(importlib.import_module(f"{__name__}.strategies"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
