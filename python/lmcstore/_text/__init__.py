# SPDX-License-Identifier: BSD-3-Clause
"""Text and arguments: text made safe to show, tables of it, and checked arguments. May use: nothing."""
