# SPDX-License-Identifier: BSD-3-Clause
"""The command that the tests run: LMC_STORE_BIN, else the build's, else the one of this Python's installed package."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

_BUILT = Path(__file__).resolve().parents[2] / "build/release/bin/lmc-store"
_INSTALLED = Path(sysconfig.get_path("scripts")) / "lmc-store"

BIN = os.environ.get("LMC_STORE_BIN") or str(_INSTALLED if _INSTALLED.exists() and not _BUILT.exists() else _BUILT)

KILLED_AT = _BUILT.with_name("killed_at.so")
"""Kills a process at one of its writes: `tests/kill/killed_at.c`."""

NEEDS_BIN = pytest.mark.skipif(not os.access(BIN, os.X_OK), reason=f"{BIN} is not built")
