# SPDX-License-Identifier: BSD-3-Clause
"""Optional packages: NumPy, torch and ml_dtypes are used once a program has imported them."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType


def loaded(name: str) -> ModuleType | None:
    """Give a module that someone else has imported, or None: a state can't hold a tensor of a package not loaded.

    One that another thread is importing is waited for: until then it lacks some of its names. A child that was forked
    meanwhile has nobody to wait for.
    """
    module = sys.modules.get(name)
    if module is None or not _is_half_imported(module):
        return module
    if name in _left_half_imported:
        return None
    try:
        return import_module(name)
    except Exception:  # that thread's import has failed meanwhile, and was tried again
        return None


def _is_half_imported(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _note_left_half_imported() -> None:
    _left_half_imported.update(name for name in _ASKED_FOR if _is_half_imported(sys.modules.get(name, sys)))


_ASKED_FOR = ("numpy", "torch", "ml_dtypes", "random")
_left_half_imported: set[str] = set()
os.register_at_fork(after_in_child=_note_left_half_imported)
