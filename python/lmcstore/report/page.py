# SPDX-License-Identifier: BSD-3-Clause
"""A report as one self-contained HTML page."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

from .._text.text import for_html
from .charts import Chart, bytes_text, heat_map, number_text, plottable, ticks
from .collect import Gathered, Point

STYLE = """
:root{--back:#f6f7f9;--card:#fff;--text:#1c2430;--soft:#5b6777;--line:#e3e7ec;--raw:#9aa5b4;--keyframe:#e08a00;
--delta:#1f6fd0;--link:#12966f;--unknown:#b04fb0;--heat:#c2410c;--accent:#1f6fd0;--s0:#1f6fd0;
--shadow:0 1px 3px #0f172a14}
@media (prefers-color-scheme:dark){:root{--back:#0f141b;--card:#171e28;--text:#e6ebf2;--soft:#93a0b2;--line:#29323f;
--raw:#64748b;--keyframe:#f2a93b;--delta:#5aa2f5;--link:#35c79a;--unknown:#d17fd1;--heat:#ff8a4c;--accent:#5aa2f5;
--s0:#5aa2f5;--shadow:none}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:26px;margin:0 0 2px;letter-spacing:-.01em}h2{font-size:20px;margin:40px 0 12px}
h3{font-size:15px;margin:0 0 2px}p{margin:0 0 8px}.soft{color:var(--soft)}.small{font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:16px 0}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:10px;box-shadow:var(--shadow)}
.tile{padding:12px 14px}.tile b{display:block;font-size:21px;letter-spacing:-.01em}
.tile span{color:var(--soft);font-size:13px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}
.card{padding:16px 16px 10px;min-width:0}.wide{grid-column:1/-1}
svg{display:block;width:100%;height:auto;margin-top:6px}
.grid{stroke:var(--line)}.axis{stroke:var(--soft);stroke-opacity:.5}
.tick,.label{fill:var(--soft);font-size:12px}.tick.small{font-size:11px}.end{text-anchor:end}.mid{text-anchor:middle}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.area{stroke:none}
.line.raw{stroke:var(--raw)}.line.stored,.line.s0{stroke:var(--accent)}
.area.raw,rect.raw,.dot.raw,.key.raw{fill:var(--raw);background:var(--raw)}
.area.raw{fill-opacity:.22}.area.stored{fill:var(--accent);fill-opacity:.28}
rect.keyframe,.dot.keyframe,.key.keyframe{fill:var(--keyframe);background:var(--keyframe)}
rect.delta,.dot.delta,.key.delta{fill:var(--delta);background:var(--delta)}
rect.link,.key.link{fill:var(--link);background:var(--link)}
rect.unknown,.key.unknown{fill:var(--unknown);background:var(--unknown)}.key.stored{background:var(--accent)}
.dot{stroke:var(--card);stroke-width:1.5}.dot.tagged{fill:var(--keyframe)}
.heat{fill:var(--heat)}.none{fill:var(--line);fill-opacity:.45}
.hover{fill:transparent}.hover:hover{fill:var(--soft);fill-opacity:.12}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;color:var(--soft);font-size:13px}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px;vertical-align:-1px}
.ramp{display:inline-block;width:96px;height:11px;border-radius:3px;margin:0 6px;vertical-align:-1px;
background:linear-gradient(90deg,color-mix(in srgb,var(--heat) 4%,transparent),var(--heat))}
.scroll{overflow:auto;max-height:460px}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:4px 10px;border-bottom:1px solid var(--line);white-space:nowrap}
th{position:sticky;top:0;background:var(--card);color:var(--soft);font-weight:600}
td.left,th.left{text-align:left}.tag{background:color-mix(in srgb,var(--accent) 16%,transparent);color:var(--accent);
border-radius:6px;padding:1px 7px;margin-right:4px}
#tip{position:fixed;z-index:9;pointer-events:none;background:var(--text);color:var(--back);border-radius:6px;
padding:5px 9px;font-size:12.5px;line-height:1.4;white-space:pre-line;max-width:340px;opacity:0;transition:opacity .08s}
footer{margin-top:40px;color:var(--soft);font-size:13px}
"""

SCRIPT = """
const tip=document.getElementById('tip');
document.addEventListener('pointermove',e=>{
 const at=e.target.closest('[data-tip]');
 if(!at){tip.style.opacity=0;return}
 tip.textContent=at.dataset.tip;tip.style.opacity=1;
 const w=tip.offsetWidth,h=tip.offsetHeight;
 tip.style.left=Math.max(6,Math.min(innerWidth-w-8,e.clientX+14))+'px';
 tip.style.top=(e.clientY+18+h>innerHeight?e.clientY-h-10:e.clientY+18)+'px';
});
"""

_ORDER = ("delta", "link", "keyframe", "raw", "unknown")
_TABLE_ROWS = 400
_METRICS = 8
_METRIC_COLUMNS = 6


def _times(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _positions(points: Sequence[Point]) -> tuple[list[float], str]:
    """Place snapshots on the x axis: by step if steps rise, else by number."""
    steps = [point.step for point in points]
    if len(steps) > 1 and all(step is not None for step in steps):
        known = [step for step in steps if step is not None]
        if all(a < b for a, b in itertools.pairwise(known)):
            return [float(step) for step in known], "step"
    return [float(point.number) for point in points], "snapshot"


def _label(point: Point) -> str:
    step = "" if point.step is None else f", step {point.step}"
    return f"snapshot {point.number}{step}"


def _edges(xs: Sequence[float]) -> list[tuple[float, float]]:
    """Return the range of each place, half way to its neighbours."""
    if len(xs) == 1:
        return [(xs[0] - 0.5, xs[0] + 0.5)]
    middles = [(a + b) / 2 for a, b in itertools.pairwise(xs)]
    first, last = xs[0] - (middles[0] - xs[0]), xs[-1] + (xs[-1] - middles[-1])
    bounds = [first, *middles, last]
    return list(itertools.pairwise(bounds))


def _x_ticks(xs: Sequence[float]) -> list[tuple[float, str]]:
    if len(xs) == 1:
        return [(xs[0], f"{xs[0]:.0f}")]
    chosen = [value for value in ticks(xs[0], xs[-1], 7) if value == int(value)]
    return [(value, f"{value:.0f}") for value in chosen or [xs[0], xs[-1]]]


def _size_ticks(high: float) -> list[tuple[float, str]]:
    return [(value, bytes_text(value)) for value in ticks(0, high, 4, 2.0)]


def _legend(names: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<span><i class="key {css}"></i>{for_html(name)}</span>' for css, name in names)
    return f'<div class="legend">{keys}</div>'


def _card(title: str, text: str, body: str, wide: bool = False) -> str:
    css = "card wide" if wide else "card"
    return f'<div class="{css}"><h3>{for_html(title)}</h3><p class="soft small">{for_html(text)}</p>{body}</div>'


# Charts


def _history(points: Sequence[Point]) -> str:
    xs, what = _positions(points)
    raw, stored = [0.0], [0.0]
    for point in points:
        raw.append(raw[-1] + point.raw_bytes)
        stored.append(stored[-1] + point.new_bytes)
    edges = _edges(xs)
    high = max(raw[-1], stored[-1]) * 1.04 or 1.0
    chart = Chart((edges[0][0], edges[-1][1]), (0, high), 260)
    for values, css in ((raw, "raw"), (stored, "stored")):
        chart.area([(x, 0, value) for x, value in zip(xs, values[1:], strict=True)], css)
        chart.line(list(zip(xs, values[1:], strict=True)), css)
    for i, point in enumerate(points):
        chart.column(
            *edges[i],
            f"{_label(point)}\n{_times(point.time)} UTC\nfull copies {bytes_text(raw[i + 1])}\n"
            f"stored {bytes_text(stored[i + 1])}",
        )
    svg = chart.svg(what, _x_ticks(xs), _size_ticks(high), "Size of the history")
    return _legend([("raw", "as full copies"), ("stored", "stored")]) + svg


def _snapshots(points: Sequence[Point]) -> str:
    xs, what = _positions(points)
    edges = _edges(xs)
    high = max(max(point.stored_bytes for point in points), 1) * 1.04
    chart = Chart((edges[0][0], edges[-1][1]), (0, high), 260)
    kinds = [kind for kind in _ORDER if any(point.stored.get(kind) for point in points)]
    for i, point in enumerate(points):
        low = 0.0
        for kind in kinds:
            size = point.stored.get(kind, 0)
            if size:
                chart.bar(*edges[i], low, low + size, kind)
            low += size
        each = "\n".join(f"{kind} {bytes_text(point.stored[kind])}" for kind in kinds if point.stored.get(kind))
        chart.column(*edges[i], f"{_label(point)}\nraw {bytes_text(point.raw_bytes)}\n{each}\nto undo {point.chain}")
    svg = chart.svg(what, _x_ticks(xs), _size_ticks(high), "How each snapshot is stored")
    return _legend([(kind, kind) for kind in kinds]) + svg


def _added(points: Sequence[Point]) -> str:
    xs, what = _positions(points)
    edges = _edges(xs)
    high = max(max(point.new_bytes for point in points), 1) * 1.04
    chart = Chart((edges[0][0], edges[-1][1]), (0, high), 240)
    for i, point in enumerate(points):
        chart.bar(*edges[i], 0, point.new_bytes, "delta")
        chart.column(*edges[i], f"{_label(point)}\nadds {bytes_text(point.new_bytes)}")
    return chart.svg(what, _x_ticks(xs), _size_ticks(high), "Added by each snapshot")


def _restores(gathered: Gathered) -> str:
    found = gathered.restores
    most = max(item.seconds for item in found) * 1000
    chart = Chart((0, max(1, max(item.age for item in found)) * 1.03), (0, most * 1.1 or 1.0), 240)
    chart.line([(item.age, item.seconds * 1000) for item in sorted(found, key=lambda item: item.age)], "stored")
    for item in found:
        speed = item.raw_bytes / item.seconds if item.seconds > 0 else 0
        chart.dot(
            item.age,
            item.seconds * 1000,
            "raw" if item.chain == 0 else "delta",
            f"snapshot {item.number}, {item.age} after it\n{item.seconds * 1000:.1f} ms, {bytes_text(speed)}/s\n"
            f"{item.chain} deltas or links to undo",
        )
    oldest = max(item.age for item in found)
    x_ticks = [(value, f"{value:.0f}") for value in ticks(0, max(1, oldest), 6) if value == int(value)]
    y_ticks = [(value, f"{value:g} ms") for value in ticks(0, most * 1.1 or 1.0, 4)]
    svg = chart.svg("snapshots taken since", x_ticks, y_ticks, "Time to restore by age")
    return _legend([("raw", "nothing to undo"), ("delta", "deltas or links to undo")]) + svg


def _metric(points: Sequence[Point], name: str) -> str:
    xs, what = _positions(points)
    pairs = [(x, point.metrics.get(name, math.nan), point) for x, point in zip(xs, points, strict=True)]
    finite = [plottable(value) for _, value, _ in pairs if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    room = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    edges = _edges(xs)
    chart = Chart((edges[0][0], edges[-1][1]), (low - room, high + room), 200)
    chart.line([(x, plottable(value)) for x, value, _ in pairs], "s0")
    for i, (x, value, point) in enumerate(pairs):
        chart.column(*edges[i], f"{_label(point)}\n{name} {number_text(value)}")
        if point.tags and math.isfinite(value):
            tags = ", ".join(point.tags)
            chart.dot(x, plottable(value), "tagged", f"{_label(point)}\n{name} {number_text(value)}\n{tags}")
    y_ticks = [(value, number_text(value)) for value in ticks(low - room, high + room, 4)]
    return chart.svg(what, _x_ticks(xs), y_ticks, name)


def _drift(gathered: Gathered) -> str:
    by_number = {point.number: point for point in gathered.points}
    positive = [v for item in gathered.intervals for v in item.relative.values() if v > 0 and math.isfinite(v)]
    low, high = (min(positive), max(positive)) if positive else (1e-6, 1.0)
    low = max(low, high * 1e-6)
    span = math.log10(high / low) or 1.0
    values: list[list[float | None]] = []
    tips: list[list[str]] = []
    for row in gathered.rows:
        cells: list[float | None] = []
        texts = []
        for item in gathered.intervals:
            drift = item.relative.get(row)
            told = "no number" if drift is None else "the same" if drift == 0 else f"moved by {drift:.3g} of its size"
            texts.append(f"{row}\nfrom {item.before} to {item.after}\n{told}")
            if drift is None:
                cells.append(None)
            else:
                share = max(0.0, math.log10(min(max(drift, low), high) / low) / span)
                cells.append(0.0 if drift <= 0 else 0.08 + 0.92 * share)
        values.append(cells)
        tips.append(texts)
    last = [by_number[item.after] for item in gathered.intervals]
    columns = [str(point.number if point.step is None else point.step) for point in last]
    ramp = f"{low:.1g}<i class='ramp'></i>{high:.1g}"
    legend = f'<div class="legend"><span>{ramp} of its root mean square, logarithmic</span></div>'
    return legend + heat_map(gathered.rows, columns, values, tips)


def _table(points: Sequence[Point]) -> str:
    shown = list(reversed(points))[:_TABLE_ROWS]
    names = list(dict.fromkeys(name for point in shown for name in point.metrics))[:_METRIC_COLUMNS]
    head = ["number", "step", "time (UTC)", "parent", "raw", "stored", "new", "chain", *names]
    cells = "".join(f"<th>{for_html(text)}</th>" for text in head)
    rows = [f'<tr>{cells}<th class="left">tags</th></tr>']
    for point in shown:
        values = [
            str(point.number),
            "" if point.step is None else str(point.step),
            _times(point.time),
            "" if point.parent is None else str(point.parent),
            bytes_text(point.raw_bytes),
            bytes_text(point.stored_bytes),
            bytes_text(point.new_bytes),
            str(point.chain),
            *(number_text(point.metrics[name]) if name in point.metrics else "" for name in names),
        ]
        tags = "".join(f'<span class="tag">{for_html(tag)}</span>' for tag in point.tags)
        cells = "".join(f"<td>{for_html(text)}</td>" for text in values)
        rows.append(f'<tr>{cells}<td class="left">{tags}</td></tr>')
    return f'<div class="scroll"><table>{"".join(rows)}</table></div>'


# Pages


def _tile(value: str, label: str) -> str:
    return f'<div class="tile"><b>{for_html(value)}</b><span>{for_html(label)}</span></div>'


def _tiles(gathered: Gathered) -> str:
    points = gathered.points
    raw, stored = sum(point.raw_bytes for point in points), sum(point.new_bytes for point in points)
    tiles = [
        _tile(str(gathered.count), f"snapshots, {gathered.keep_raw} newest raw"),
        _tile(bytes_text(raw), "as full copies"),
        _tile(bytes_text(stored), "stored"),
        _tile(f"{raw / stored:.2f} x" if stored else "-", "smaller"),
        _tile(bytes_text(points[-1].raw_bytes), f"newest: {gathered.tensor_count} tensors"),
    ]
    if gathered.restores:
        slowest = max(gathered.restores, key=lambda item: item.seconds)
        tiles.append(_tile(f"{slowest.seconds * 1000:.0f} ms", f"slowest restore, of {slowest.number}"))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _section(gathered: Gathered) -> str:
    origin = f' <span class="soft small">forked from {for_html(gathered.origin)}</span>' if gathered.origin else ""
    parts = [f"<h2>{for_html(gathered.name)}{origin}</h2>"]
    points = gathered.points
    if not points:
        return parts[0] + "".join(
            f'<p class="soft">{for_html(note)}</p>' for note in gathered.notes or ["No snapshots yet."]
        )
    parts.append(_tiles(gathered))
    cards = [
        _card("Size of the history", "All snapshots up to each, shared contents counted once.", _history(points)),
        _card("How each snapshot is stored", "Bytes of its contents, shared ones in full.", _snapshots(points)),
    ]
    names = list(dict.fromkeys(name for point in points for name in point.metrics))
    cards += [_card(name, "Metric; dots are tagged.", _metric(points, name)) for name in names[:_METRICS]]
    if gathered.restores:
        text = "All tensors into memory, checksums verified, caches warm."
        cards.append(_card("Time to restore by age", text, _restores(gathered)))
    if len(cards) % 2:
        text = "Stored bytes of contents that no snapshot before it has."
        cards.append(_card("Added by each snapshot", text, _added(points)))
    if gathered.intervals:
        shown, count = len(gathered.rows), gathered.tensor_count
        less = "" if shown == count else f" {shown} of {count:,} tensors; the others are named below."
        text = f"Root-mean-square change between snapshots, beside each tensor's own size.{less}"
        cards.append(_card("Drift", text, _drift(gathered), wide=True))
    newest = f"The newest {_TABLE_ROWS}." if len(points) > _TABLE_ROWS else "Newest first."
    cards.append(_card("Snapshots", newest, _table(points), wide=True))
    parts.append(f'<div class="cards">{"".join(cards)}</div>')
    notes = list(gathered.notes)
    if len(names) > _METRICS:
        notes.append(f"Metrics that are not shown: {', '.join(names[_METRICS:])}.")
    if len(names) > _METRIC_COLUMNS:
        notes.append(f"The table has columns for {_METRIC_COLUMNS} of {len(names)} metrics.")
    parts += [f'<p class="soft small">{for_html(note)}</p>' for note in notes]
    return "".join(parts)


def render(pool: str, info: dict[str, Any], shelves: Sequence[Gathered], version: str) -> str:
    """Return the page; `pool` is its path and `info` that of `Store.info`."""
    title = for_html(pool.rsplit("/", 1)[-1])
    used = f"{bytes_text(info['used_bytes'])} on disk, {bytes_text(info['free_bytes'])} free, {info['file_system']}"
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    body = "".join(_section(shelf) for shelf in shelves) or '<p class="soft">The pool is empty.</p>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>"
        f'<h1>{title}</h1><p class="soft">{for_html(pool)} &middot; {for_html(used)} &middot; {made}</p>'
        f"{body}<footer>lmc-store {for_html(version)}</footer></main>"
        f'<div id="tip"></div><script>{SCRIPT}</script></body></html>\n'
    )
