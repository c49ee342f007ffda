# SPDX-License-Identifier: BSD-3-Clause
"""``from optional import torch``: PyTorch, or a stand-in that skips the tests that use it."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None


class _Missing:
    """Skips the test, or the module that is being collected."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip("needs PyTorch", allow_module_level=True)


if HAS_TORCH:
    import torch
else:
    torch = _Missing()


def skip_without_torch(code: str) -> None:
    if not HAS_TORCH and re.search(r"\b(import|from)\b[^\n]*\btorch\b|pymm\.torch_tensor", code):
        pytest.skip("needs PyTorch")
