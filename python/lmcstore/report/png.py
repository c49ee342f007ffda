# SPDX-License-Identifier: BSD-3-Clause
"""A report as a picture, by matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from .._text.text import printable
from ..errors import UnsupportedError
from .charts import bytes_text, plottable
from .collect import Gathered
from .page import _ORDER, _edges, _positions

_COLORS = {"delta": "#1f6fd0", "link": "#12966f", "keyframe": "#e08a00", "raw": "#9aa5b4", "unknown": "#b04fb0"}


def check() -> None:
    """Raise UnsupportedError if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedError("--png needs matplotlib: pip install matplotlib, or write HTML with -o") from None


def _legend(axes: Any) -> None:
    """Make a legend without mathematics: foreign names may contain dollars."""
    for text in axes.legend(frameon=False).get_texts():
        text.set_parse_math(False)


def _sizes(axes: Any) -> None:
    axes.yaxis.set_major_formatter(lambda value, _: bytes_text(value))


def _history(axes: Any, gathered: Gathered) -> None:
    xs, what = _positions(gathered.points)
    raw = stored = 0
    raws, storeds = [], []
    for point in gathered.points:
        raw, stored = raw + point.raw_bytes, stored + point.new_bytes
        raws.append(raw)
        storeds.append(stored)
    for values, color, label in ((raws, _COLORS["raw"], "as full copies"), (storeds, _COLORS["delta"], "stored")):
        axes.fill_between(xs, values, color=color, alpha=0.25)
        axes.plot(xs, values, color=color, label=label)
    axes.set_title(f"{printable(gathered.name)}: size of the history", parse_math=False)
    axes.set(xlabel=what, ylim=(0, None))
    _legend(axes)
    _sizes(axes)


def _snapshots(axes: Any, gathered: Gathered) -> None:
    xs, what = _positions(gathered.points)
    edges = _edges(xs)
    widths = [right - left for left, right in edges]
    bottoms = [0] * len(xs)
    for kind in _ORDER:
        sizes = [point.stored.get(kind, 0) for point in gathered.points]
        if any(sizes):
            axes.bar(xs, sizes, widths, bottoms, color=_COLORS[kind], label=kind)
            bottoms = [bottom + size for bottom, size in zip(bottoms, sizes, strict=True)]
    axes.set(title="how each snapshot is stored", xlabel=what)
    _legend(axes)
    _sizes(axes)


_METRICS = 6


def _metrics(axes: Any, gathered: Gathered) -> None:
    xs, what = _positions(gathered.points)
    names = list(dict.fromkeys(name for point in gathered.points for name in point.metrics))
    for name in names[:_METRICS]:
        values = [plottable(point.metrics.get(name, float("nan"))) for point in gathered.points]
        axes.plot(xs, values, label=printable(name))
    of = f", {_METRICS} of {len(names)}" if len(names) > _METRICS else ""
    axes.set(title=f"metrics{of}" if names else "no metrics", xlabel=what)
    if names:
        _legend(axes)


def _restores(axes: Any, gathered: Gathered) -> None:
    found = sorted(gathered.restores, key=lambda item: item.age)
    axes.plot([item.age for item in found], [item.seconds * 1000 for item in found], "o-", color=_COLORS["delta"])
    axes.set(title="time to restore by age", xlabel="snapshots taken since", ylabel="ms", ylim=(0, None))


def _drift(axes: Any, figure: Any, gathered: Gathered) -> None:
    from matplotlib.colors import LogNorm

    if not gathered.intervals:
        axes.set_axis_off()
        return
    nan = float("nan")
    known = [value for item in gathered.intervals for value in item.relative.values() if 0 < value < math.inf]
    most = max(known, default=1.0)
    table = [[min(item.relative.get(row) or nan, most) for item in gathered.intervals] for row in gathered.rows]
    has_one = any(value == value for row in table for value in row)
    drawn = axes.imshow(table, aspect="auto", cmap="YlOrRd", norm=LogNorm() if has_one else None)
    names = [printable(row[-40:]) for row in gathered.rows]
    axes.set_yticks(range(len(names)), names, fontsize=5.5, parse_math=False)
    labels = [str(item.after) for item in gathered.intervals]
    axes.set_xticks(range(len(labels)), labels, fontsize=7, rotation=60)
    shown, count = len(gathered.rows), gathered.tensor_count
    of = f", {shown} of {count:,} tensors" if shown < count else ""
    axes.set(title=f"drift: root-mean-square change beside each tensor's own size{of}", xlabel="snapshot")
    figure.colorbar(drawn, ax=axes, pad=0.01)


def draw(shelves: Sequence[Gathered], suffix: str) -> bytes:
    """Draw all shelves, one below the other, in the format of a file name's suffix."""
    import matplotlib

    # Ignore a matplotlibrc: one in the working directory may run TeX.
    known = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")}
    with matplotlib.rc_context(known):
        return _draw(shelves, suffix)


def _draw(shelves: Sequence[Gathered], suffix: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [gathered for gathered in shelves if gathered.points]
    rows = sum(2 + (1.6 if gathered.intervals else 0.0) for gathered in shown) or 1
    figure = Figure(figsize=(13, 3.6 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for part, gathered in zip(figure.subfigures(max(1, len(shown)), 1, squeeze=False).ravel(), shown, strict=False):
        axes = part.subplot_mosaic(
            [["history", "snapshots"], ["metrics", "restores"], ["drift", "drift"]], height_ratios=[1, 1, 1.6]
        )
        _history(axes["history"], gathered)
        _snapshots(axes["snapshots"], gathered)
        _metrics(axes["metrics"], gathered)
        _restores(axes["restores"], gathered)
        _drift(axes["drift"], part, gathered)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=110, format=suffix[1:] or None)
    return picture.getvalue()
