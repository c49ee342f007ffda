# SPDX-License-Identifier: BSD-3-Clause
"""A run in an object store: its objects, and how they are written and read (store/REMOTE.md)."""
