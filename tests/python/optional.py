# SPDX-License-Identifier: BSD-3-Clause
"""``from optional import torch``: an optional package, or a stand-in that skips the tests that use it.

NumPy and pytest are required.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


class _Missing:
    """Skips the test, or the module that is being collected."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"needs {self._name}", allow_module_level=True)


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _load(module: str, name: str) -> Any:
    return importlib.import_module(module) if _has(module.partition(".")[0]) else _Missing(name)


class _Strategies:
    """Stands for strategies that only skipped tests would draw from."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self


def _skip_given(*_: object, **__: object) -> Callable[[Callable[..., None]], Callable[[], None]]:
    def replace(test: Callable[..., None]) -> Callable[[], None]:
        def skipped() -> None:
            pytest.skip("needs hypothesis")

        skipped.__name__ = test.__name__
        return skipped

    return replace


def _ignore_settings(*_: object, **__: object) -> Callable[[Any], Any]:
    return lambda test: test


HAS_TORCH = _has("torch")
HAS_ML_DTYPES = _has("ml_dtypes")
HAS_MATPLOTLIB = _has("matplotlib")

torch = _load("torch", "PyTorch")
ml_dtypes = _load("ml_dtypes", "ml_dtypes")
torchdata = _load("torchdata.stateful_dataloader", "torchdata")
safetensors_numpy = _load("safetensors.numpy", "safetensors")

tensors = torch if HAS_TORCH else np
"""Has ones and zeros, for tests that take tensors of any package."""

if _has("hypothesis"):
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
else:
    HealthCheck = st = _Strategies()
    given, settings = _skip_given, _ignore_settings


def skip_without_torch(code: str) -> None:
    if not HAS_TORCH and re.search(r"\b(import|from)\b[^\n]*\btorch\b|pymm\.torch_tensor", code):
        pytest.skip("needs PyTorch")
