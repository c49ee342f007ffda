# SPDX-License-Identifier: BSD-3-Clause
"""Arrays: NumPy arrays and torch tensors of any device as tensors of a store and back. May use: nothing."""
