# SPDX-License-Identifier: BSD-3-Clause
"""Examples in docstrings print the documented results."""

from __future__ import annotations

import doctest
from typing import Any

import lmcstore
import lmcstore.live.live
import lmcstore.shelf
import numpy
import pymm
import pymm.shelf  # the class of the same name hides the module
import pytest
from optional import torch

IN_MEMORY = True


@pytest.mark.parametrize("where", ["lmcstore.live.live", "lmcstore.shelf", "pymm.shelf"])
def test_examples(where: str, shelf: lmcstore.Shelf, tmp_path: Any) -> None:
    import sys

    globs = {"shelf": shelf, "numpy": numpy, "torch": torch, "pymm": pymm, "folder": str(tmp_path)}
    if where == "lmcstore.shelf":
        shelf.snapshot({"a": 1})
    tests = [test for test in doctest.DocTestFinder().find(sys.modules[where], where, globs=globs) if test.examples]
    assert tests
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    failed = sum(runner.run(test).failed for test in tests)
    assert failed == 0
