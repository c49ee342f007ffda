# SPDX-License-Identifier: BSD-3-Clause
"""Small tables, as HTML for notebooks and as text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from .text import for_html, printable

MOST_ROWS = 20
"""Rows of a table; the rest is counted."""


def size(count: float) -> str:
    """Format bytes: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def when(seconds: float) -> str:
    """Format a time (UTC); 0: empty."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) if seconds else ""


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], left_out: int = 0) -> str:
    """Make a table; all text is escaped."""

    def line(cells: Iterable[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{for_html(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    more = f"<tfoot><tr><td colspan={len(head)}>and {left_out:,} more</td></tr></tfoot>" if left_out > 0 else ""
    caption = f"<caption>{for_html(title)}</caption>"
    return f"<table>{caption}<thead>{line(head, 'th')}</thead><tbody>{body}</tbody>{more}</table>"


def columns(rows: Sequence[Sequence[str]], numbers: int) -> list[str]:
    """Return the lines of a table as text; the first columns are numbers, aligned right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i < numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
