# SPDX-License-Identifier: BSD-3-Clause
"""Tests of the integrations. Each needs a package of its own: tests/trainers/environment.sh installs it."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deep: left to the job trainers_long")
    config.addinivalue_line("filterwarnings", "ignore::lmcstore.CreationWarning")
    os.environ["PYTHONWARNINGS"] = "ignore:there is no "  # for programs that tests start
