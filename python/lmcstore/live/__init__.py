# SPDX-License-Identifier: BSD-3-Clause
"""Live variables: tensors and values in the pool that a program changes in place. May use: _text, _arrays, _state."""

from .live import Live
from .tensor import LiveTensor
from .transaction import Transaction
from .value import LiveValue
from .variable import LiveInfo, LiveVariable

__all__ = ["Live", "LiveInfo", "LiveTensor", "LiveValue", "LiveVariable", "Transaction"]
