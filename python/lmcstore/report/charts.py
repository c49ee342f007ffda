# SPDX-License-Identifier: BSD-3-Clause
"""Charts as SVG for self-contained pages. Colours come from the page's style sheet, so dark mode works.

The page's script shows the ``data-tip`` of the shape under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._text.text import for_html

WIDTH = 600
WIDE = 1140
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 14, 40
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(count: float) -> str:
    """Format a size in binary units."""
    unit = 0
    while count >= 999.5 and unit + 1 < len(UNITS):
        count /= 1024
        unit += 1
    digits = 0 if unit == 0 or count >= 99.95 else 1 if count >= 9.995 else 2
    return f"{count:.{digits}f} {UNITS[unit]}"


def number_text(value: float) -> str:
    """Format a number briefly."""
    if value == 0 or (abs(value) >= 1e-3 and abs(value) < 1e6):
        return f"{value:.6g}"
    return f"{value:.3g}"


def plottable(value: float) -> float:
    """Return a finite value within +-1e300, so that spans of such values are finite; others unchanged."""
    return max(-1e300, min(value, 1e300)) if math.isfinite(value) else value


def ticks(low: float, high: float, wanted: int = 5, step_of: float = 10.0) -> list[float]:
    """Choose round values between two; `step_of` 2: powers of two between the powers of 1024, for sizes."""
    if not 1e-300 < high - low < math.inf:
        return [low]
    rough = (high - low) / max(1, wanted)
    if step_of == 2.0:
        step = 2.0 ** math.ceil(math.log2(rough))
    else:
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


class Chart:
    """Shapes over an x and a y scale; `height` is in the units of `WIDTH`."""

    def __init__(
        self, x_range: tuple[float, float], y_range: tuple[float, float], height: int = 240, log_y: bool = False
    ) -> None:
        self._x, self._y = x_range, y_range
        self._height = height
        self._log = log_y
        self._shapes: list[str] = []

    def x(self, value: float) -> float:
        """Return the place of an x value."""
        low, high = self._x
        return LEFT + (WIDTH - LEFT - RIGHT) * ((value - low) / (high - low) if high > low else 0.5)

    def y(self, value: float) -> float:
        """Return the place of a y value."""
        low, high = self._y
        if self._log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        share = (value - low) / (high - low) if high > low else 0.5
        return TOP + (self._height - TOP - BOTTOM) * (1 - share)

    def line(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """Draw a line, with gaps where y is NaN or infinite."""
        path, is_down = [], False
        for x, y in points:
            if not math.isfinite(y):
                is_down = False
                continue
            path.append(f"{'L' if is_down else 'M'}{self.x(x):.1f} {self.y(y):.1f}")
            is_down = True
        self._shapes.append(f'<path class="line {css}" d="{"".join(path)}"/>')

    def area(self, points: Sequence[tuple[float, float, float]], css: str) -> None:
        """Fill between two lines: points of x, lower and upper y."""
        upper = [f"{self.x(x):.1f} {self.y(high):.1f}" for x, _, high in points]
        lower = [f"{self.x(x):.1f} {self.y(low):.1f}" for x, low, _ in reversed(points)]
        self._shapes.append(f'<path class="area {css}" d="M{"L".join(upper + lower)}Z"/>')

    def bar(self, left: float, right: float, low: float, high: float, css: str) -> None:
        """Draw a bar."""
        x0, x1, y0, y1 = self.x(left), self.x(right), self.y(high), self.y(low)
        gap = 0.6 if x1 - x0 > 3 else 0.0
        size = f'width="{max(0.4, x1 - x0 - gap):.2f}" height="{max(0.0, y1 - y0):.2f}"'
        self._shapes.append(f'<rect class="{css}" x="{x0:.2f}" y="{y0:.2f}" {size}/>')

    def dot(self, x: float, y: float, css: str, tip: str) -> None:
        """Draw a dot with a tip."""
        place = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}"'
        self._shapes.append(f'<circle class="dot {css}" {place} r="4" data-tip="{for_html(tip)}"/>')

    def column(self, left: float, right: float, tip: str) -> None:
        """Make a column of full height show a tip."""
        x0, x1 = self.x(left), self.x(right)
        place = f'x="{x0:.2f}" y="{TOP}" width="{max(1.0, x1 - x0):.2f}" height="{self._height - TOP - BOTTOM}"'
        self._shapes.append(f'<rect class="hover" {place} data-tip="{for_html(tip)}"/>')

    def svg(
        self,
        x_label: str,
        x_ticks: Sequence[tuple[float, str]],
        y_ticks: Sequence[tuple[float, str]],
        label: str,
    ) -> str:
        """Return the chart with its axes."""
        bottom = self._height - BOTTOM
        parts = [f'<svg viewBox="0 0 {WIDTH} {self._height}" role="img" aria-label="{for_html(label)}">']
        for value, text in y_ticks:
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick end" x="{LEFT - 8}" y="{y + 4:.1f}">{for_html(text)}</text>')
        parts += self._shapes
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
        for value, text in x_ticks:
            parts.append(f'<text class="tick mid" x="{self.x(value):.1f}" y="{bottom + 16}">{for_html(text)}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text class="label mid" x="{middle}" y="{self._height - 6}">{for_html(x_label)}</text></svg>')
        return "".join(parts)


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], tips: Sequence[Sequence[str]]
) -> str:
    """Draw a table of cells, each stronger the larger its value from 0 to 1; None is left empty.

    `values` and `tips` are by row, then by column.
    """
    longest = max((len(row) for row in rows), default=0)
    left = min(300, 16 + 6.2 * min(longest, 46))
    cell, height = (WIDE - left - RIGHT) / max(1, len(columns)), 15
    bottom = TOP + height * len(rows)
    parts = [f'<svg viewBox="0 0 {WIDE} {bottom + 26}" role="img" aria-label="Drift of tensors">']
    for i, row in enumerate(rows):
        y = TOP + height * i
        shown = row if len(row) <= 46 else "…" + row[-45:]
        parts.append(f'<text class="tick end small" x="{left - 8:.1f}" y="{y + 11}">{for_html(shown)}</text>')
        for k, value in enumerate(values[i]):
            place = f'x="{left + cell * k:.2f}" y="{y}" width="{cell - 1:.2f}" height="{height - 1}"'
            tip = for_html(tips[i][k])
            if value is None:
                parts.append(f'<rect class="none" {place} data-tip="{tip}"/>')
            else:
                strength = 0.04 + 0.96 * min(1.0, max(0.0, value))
                parts.append(f'<rect class="heat" {place} fill-opacity="{strength:.3f}" data-tip="{tip}"/>')
    each = max(1, math.ceil(len(columns) * 44 / (WIDE - left)))
    for k in range(0, len(columns), each):
        x = left + cell * (k + 0.5)
        parts.append(f'<text class="tick mid" x="{x:.1f}" y="{bottom + 16}">{for_html(columns[k])}</text>')
    return "".join(parts) + "</svg>"
