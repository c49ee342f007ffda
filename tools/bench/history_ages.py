# SPDX-License-Identifier: BSD-3-Clause
"""The time to restore a version, by age."""

from typing import Any

from history_run import KINDS, described, pool_of
from history_setting import Setting, bench_store, median
from tables import Section, ms

BANDS = ((0, 3), (4, 7), (8, 15), (16, 31), (32, 63), (64, 127), (128, 1 << 30))


def ages_of(setting: Setting, kind: str) -> Section:
    """Restore every version some times."""
    t = bench_store("ages", pool_of(setting, kind), 0, setting.of(7, 5, 2), 1)
    versions: list[dict[str, Any]] = t["versions"][::-1]
    delta = t["delta_s"]
    section = Section(f"Time to restore by age, {kind}, links=off")
    section.head = ["snapshots taken since", "longest chain", "restore, ms: middle one", "longest"]
    section.head += ["over one delta: middle one", "longest"]
    for first, last in BANDS:
        band = versions[first : last + 1]
        if band:
            seconds = [version["read_s"] for version in band]
            name = f"{first} to {first + len(band) - 1}"
            cells = [str(max(version["chain"] for version in band)), ms(median(seconds)), ms(max(seconds))]
            section.rows.append([name, *cells, f"{median(seconds) / delta:.2f}", f"{max(seconds) / delta:.2f}"])
    longest = max(version["read_s"] for version in versions)
    section.numbers[kind] = t | {"versions": len(versions), "longest_s": longest}
    section.notes.append(
        f"Of {described(setting, kind)}. Every version, all {versions[-1]['raw_bytes'] / 1e6:.1f} MB "
        f"of it, into memory that is there: the least of {setting.of(7, 5, 2)} rounds, of one thread's processor time, "
        f"with the pool in the page cache. One delta of the state, by the codec alone with its base in memory, in the "
        f"same run: {ms(delta)} ms; the state alone, as a keyframe: {ms(t['keyframe_s'])} ms."
    )
    section.goal(f"{kind}: the longest restore in the history over one delta", longest / delta, "<=", 4)
    return section


def ages(setting: Setting) -> list[Section]:
    """Measure the time by age."""
    return [ages_of(setting, kind) for kind in KINDS]
