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
from typing import TYPE_CHECKING as _TYPE_CHECKING

if not getattr(_sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "lmcstore needs the GIL, which PYTHON_GIL=0 or -X gil=0 forces off: leave the setting out, and the import "
        "switches the GIL on"
    )

if _TYPE_CHECKING:
    from ._surface import *  # noqa: F403
    from ._surface import __all__ as __all__

__version__ = _core.VERSION

_FUNCTIONS = ("__all__", "archive", "codec", "open", "pull")
_MODULES = ("annotate", "diff", "errors", "live", "log", "opening", "progress", "run", "shelf", "snapshot", "store")


def __getattr__(name: str) -> object:
    """Load all public names at the first use of one: a command that takes a URL sends requests before."""
    if name in _FUNCTIONS or name[:1].isupper():
        from . import _surface

        names = globals()
        names.update({one: getattr(_surface, one) for one in _surface.__all__}, __all__=_surface.__all__)
        if name in names:
            return names[name]
    elif name in _MODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    __getattr__("__all__")
    return sorted(globals())
