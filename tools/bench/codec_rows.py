# SPDX-License-Identifier: BSD-3-Clause
"""A tensor measured with all codecs."""

from dataclasses import dataclass, field
from typing import Any

from codec_data import Source
from tables import Section, met

LEVELS = ("default", "dense")


@dataclass
class Row:
    """A tensor's measurements."""

    source: Source
    head: dict[str, Any]  # sizes
    seconds: dict[str, float]  # medians
    h: float
    h_way: str
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def elements(self) -> float:
        """Return the number of elements."""
        return float(self.head["once"] / self.head["width"])

    def bits(self, what: str) -> float:
        """Return bits of "default", "dense", "published" or a peer."""
        count = self.peers[what]["bytes"] if what in self.peers else self.head[f"{what}_bytes"]
        return float(8 * count / self.elements)

    def speed(self, level: str, way: str) -> float:
        """Return GB/s of encoding ("in") or decoding ("out")."""
        return float(self.head["bytes"] / self.seconds[f"{level}_{way}_s"] / 1e9)

    def share(self, level: str, way: str) -> float:
        """Return the share of memcpy's speed."""
        return self.seconds["memcpy_s"] / self.seconds[f"{level}_{way}_s"]

    def over_h(self, level: str) -> float:
        """Return the per cent above H."""
        return percent(self.bits(level), self.h)

    def smallest_peer(self) -> str:
        """Name the smallest peer or published LMC."""
        names = [name for name, found in self.peers.items() if "bytes" in found]
        return min([*names, "published"], key=self.bits)

    def peer_speed(self, peer: str, way: str) -> float:
        """Return GB/s of a peer."""
        found = self.peers[peer]
        return float(found["timed_bytes"] / found[f"{way}_s"] / 1e9)

    def numbers(self) -> dict[str, Any]:
        """Return the row for --json."""
        return {
            "sizes": self.head,
            "seconds": self.seconds,
            "h_bits": self.h,
            "h_way": self.h_way,
            "bits": {level: self.bits(level) for level in (*LEVELS, "published")},
            "peers": self.peers,
        }


def percent(value: float, of: float) -> float:
    """Return the per cent above."""
    return 100 * (value / of - 1) if of else 0.0


# ---- Goals ----------------------------------------------------------------------------------------------------------

Bounds = dict[str, tuple[float | None, float | None, float | None]]  # level: in, out (of memcpy), per cent over H


def bounds_of(source: Source) -> Bounds:
    """Look up goals."""
    if source.kind in ("file", "made") or source.dtype not in ("bf16", "f32"):
        return {}
    weights = source.kind == "weights"
    if source.dtype == "bf16":
        if source.base is None:
            return {"default": (0.35, 0.50, None), "dense": (0.15, 0.30, None)}
        if source.steps <= 3:
            return {"default": (0.35, 0.50, 3), "dense": (0.20, 0.30, 1.5)}
        if source.steps >= 100:
            return {"default": (0.28, 0.38, 2), "dense": (0.15, 0.25, 1)}
    else:
        if source.base is None:
            return {"default": (0.60, 0.75, None), "dense": (0.25, 0.45, None)}
        if source.steps == 1:
            return {"default": (0.40, 0.50, 0.5 if weights else None), "dense": (0.20, 0.35, None)}
        if source.steps >= 100:
            return {"default": (0.30, 0.40, 1), "dense": (None, None, None)}
    return {}


def judge(section: Section, what: str, measured: float, relation: str, bound: float | None, text: str) -> str:
    """Record a goal with a bound; return the cell."""
    if bound is None:
        return text
    section.goal(what, measured, relation, bound)
    sign = "at most" if relation == "<=" else "at least"
    return f"{text}, {sign} {bound:g}: {'met' if met(measured, relation, bound) else 'MISSED'}"


def level_goals(section: Section, row: Row, level: str) -> list[str]:
    """Record a level's goals; return its cells."""
    name = f"{row.source.name}, {level}"
    bounds = bounds_of(row.source).get(level, (None, None, None))
    cells = []
    for way, bound in zip(("in", "out"), bounds[:2], strict=True):
        share = row.share(level, way)
        cells.append(judge(section, f"{name}: {way}, of memcpy", share, ">=", bound, f"{share:.2f}"))
    over = row.over_h(level)
    cells.append(judge(section, f"{name}: over H, %", over, "<=", bounds[2], f"{over:+.2f}"))
    peer = row.smallest_peer()
    above = percent(row.bits(level), row.bits(peer))
    text = f"{above:+.2f} ({peer})"
    cells.append(judge(section, f"{name}: over the smallest peer, %", above, "<=", 0.5 * (level == "default"), text))
    return cells


def other_goals(section: Section, row: Row, alone: Row | None) -> str:
    """Write single rows' goals."""
    name, kind, steps = row.source.name, row.source.kind, row.source.steps
    found = []
    if row.source.dtype == "bf16" and row.source.base is None and "in_s" in row.peers.get("ZipNN", {}):
        for way, bound in (("in", 10), ("out", 5)):
            times = row.speed("default", way) / row.peer_speed("ZipNN", way)
            found.append(judge(section, f"{name}: {way}, over ZipNN", times, ">=", bound, f"{way} {times:.1f} x ZipNN"))
    if row.source.dtype == "bf16" and kind == "weights" and steps == 1:
        ratio = row.bits("default") / row.bits("published")
        found.append(judge(section, f"{name}: over LMC as published", ratio, "<=", 0.5, f"{ratio:.2f} of LMC's"))
    if kind in ("m", "v") and alone:
        better = min(alone.bits("default"), row.h)
        above = percent(row.bits("default"), better)
        what = f"{name}: over the better of alone and delta, %"
        found.append(judge(section, what, above, "<=", 1, f"{above:+.2f} % over the better of alone and H"))
    return "; ".join(found)


def goals_table(rows: list[Row]) -> Section:
    """List all goals."""
    section = Section("Goals of the rows: measured, bound, met or missed", listed=False)
    section.head = ["row", "level", "in, of memcpy", "out, of memcpy", "over H, %", "over smallest peer, %", "other"]
    alone = {row.source.kind: row for row in rows if row.source.base is None and row.source.dtype == "f32"}
    for row in rows:
        for level in LEVELS:
            cells = level_goals(section, row, level)
            other = other_goals(section, row, alone.get(row.source.kind)) if level == "default" else ""
            section.rows.append([row.source.name, level, *cells, other])
    bad = sum(not met(measured, relation, bound) for _, measured, relation, bound in section.goals)
    section.notes.append(f"{len(section.goals) - bad} met, {bad} MISSED.")
    return section


# ---- Tables ---------------------------------------------------------------------------------------------------------


def own_table(rows: list[Row]) -> Section:
    """Show liblmc."""
    section = Section("liblmc, one thread: bits an element, GB/s and shares of memcpy")
    section.head = ["row", "H (which)", "level", "bits", "over H, %", "in", "of memcpy", "out", "of memcpy"]
    for row in rows:
        for level in LEVELS:
            first = [row.source.name, f"{row.h:.3f} ({row.h_way})"] if level == "default" else ["", ""]
            speeds = [
                text
                for way in ("in", "out")
                for text in (f"{row.speed(level, way):.2f}", f"{row.share(level, way):.2f}")
            ]
            section.rows.append([*first, level, f"{row.bits(level):.3f}", f"{row.over_h(level):+.2f}", *speeds])
    section.numbers = {row.source.name: row.numbers() for row in rows}
    return section


def peer_cell(row: Row, peer: str, speeds: bool) -> str:
    """Return a peer's cell: bits or speeds."""
    found = row.peers.get(peer)
    if found is None:
        return ""
    if "error" in found:
        return "failed"
    if speeds:
        return f"{row.peer_speed(peer, 'in'):.2g} / {row.peer_speed(peer, 'out'):.2g}"
    return f"{row.bits(peer):.3f}"


def peer_tables(rows: list[Row]) -> list[Section]:
    """Show the peers."""
    names = list(dict.fromkeys(name for row in rows for name in row.peers))
    sizes = Section("Beside the peers: bits an element, tables and headers counted")
    sizes.head = ["row", "default", "dense", "LMC as published", *names]
    speeds = Section("Beside the peers: GB/s in / out, one thread")
    speeds.head = ["row", "memcpy", "default", "dense", *names]
    for row in rows:
        own = [f"{row.bits(what):.3f}" for what in (*LEVELS, "published")]
        sizes.rows.append([row.source.name, *own, *(peer_cell(row, peer, False) for peer in names)])
        copy = row.head["bytes"] / row.seconds["memcpy_s"] / 1e9
        own = [f"{row.speed(level, 'in'):.2f} / {row.speed(level, 'out'):.2f}" for level in LEVELS]
        speeds.rows.append([row.source.name, f"{copy:.1f}", *own, *(peer_cell(row, peer, True) for peer in names)])
    for row in rows:
        for peer, found in row.peers.items():
            if "error" in found:
                sizes.notes.append(f"{peer} failed on {row.source.name}: {found['error']}")
    return [sizes, speeds] if names else [sizes]
