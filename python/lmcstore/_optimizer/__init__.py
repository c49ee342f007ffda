# SPDX-License-Identifier: BSD-3-Clause
"""Optimizers: the tensors that one step changes together, found in a state for the codec's links. May use: nothing."""
