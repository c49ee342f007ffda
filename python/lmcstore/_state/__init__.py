# SPDX-License-Identifier: BSD-3-Clause
"""States: a training state as tensors and attachments of a snapshot and back. May use: _text, _arrays, _optimizer."""
