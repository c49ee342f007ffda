# SPDX-License-Identifier: BSD-3-Clause
"""Optional packages: used once a program has imported them."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType


def loaded(name: str) -> ModuleType | None:
    """Return a module that the program has imported, or None: no state contains its tensors.

    Waits while another thread imports it: until then it lacks some names. A child forked meanwhile gets None.
    """
    module = sys.modules.get(name)
    if module is None or not _is_half_imported(module):
        return module
    if name in _left_half_imported:
        return None
    try:
        return import_module(name)
    except Exception:  # the other thread's import failed, and this second try
        return None


def _is_half_imported(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _note_left_half_imported() -> None:
    _left_half_imported.update(name for name in _ASKED_FOR if _is_half_imported(sys.modules.get(name, sys)))


_ASKED_FOR = ("numpy", "torch", "ml_dtypes", "jax")
_left_half_imported: set[str] = set()
os.register_at_fork(after_in_child=_note_left_half_imported)
