# SPDX-License-Identifier: BSD-3-Clause
"""Sections, goals and output of the suites."""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent.parent


@dataclass
class Section:
    """One section's results."""

    title: str
    head: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    goals: list[tuple[str, float, str, float]] = field(default_factory=list)  # name, measured, "<=" or ">=", bound
    notes: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    listed: bool = True  # print each goal; otherwise the table has them

    def goal(self, what: str, measured: float, relation: str, bound: float) -> None:
        """Record a goal."""
        self.goals.append((what, measured, relation, bound))


def met(measured: float, relation: str, bound: float) -> bool:
    """Return whether a goal is met."""
    return measured <= bound if relation == "<=" else measured >= bound


def progress(text: str) -> None:
    """Report on standard error."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def processor() -> str:
    """Describe processors and kernel."""
    name = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    return f"{name}, {len(os.sched_getaffinity(0))} processors, Linux {platform.release()}"


def ms(seconds: float) -> str:
    """Write seconds as milliseconds."""
    return f"{seconds * 1e3:.1f}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def gbs(count: float, seconds: float) -> str:
    """Write bytes in seconds as GB/s."""
    return f"{count / seconds / 1e9:.2f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Write a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def markdown(section: Section) -> str:
    """Write a section."""
    parts = [f"### {section.title}", "", table(section.head, section.rows), *("\n" + note for note in section.notes)]
    for what, measured, relation, bound in section.goals if section.listed else ():
        word = "met" if met(measured, relation, bound) else "MISSED"
        limit = "at most" if relation == "<=" else "at least"
        parts.append(f"- {word}: {what}: {measured:.3g}, goal {limit} {bound:g}")
    return "\n".join(parts) + "\n"


def figures(title: str, measured: list[Section]) -> Section:
    """Write all goals as a table."""
    section = Section(title, ["figure", "asked", "measured", "met"])
    for what, value, relation, bound in [goal for part in measured for goal in part.goals]:
        asked = f"{'at most' if relation == '<=' else 'at least'} {bound:g}"
        section.rows.append([what, asked, f"{value:.3g}", "yes" if met(value, relation, bound) else "**no**"])
    for part in measured:
        part.listed = False
    return section


def run_sections(
    sections: Sequence[Callable[[Any], Section | list[Section]]],
    setting: Any,
    only: list[str] | None,
    report: dict[str, Any],
    as_json: bool,
) -> list[str]:
    """Measure the wanted sections; return the failed ones' names."""
    failures = []
    for section in sections:
        name = section.__name__
        if only and name not in only:
            continue
        begin = time.monotonic()
        progress(f"{name} ...")
        try:
            found = section(setting)
        except Exception as error:
            failures.append(name)
            progress(f"{name} FAILED: {type(error).__name__}: {error}")
            report[name] = {"error": str(error)}
            continue
        progress(f"{name}: {time.monotonic() - begin:.0f} s")
        parts = found if isinstance(found, list) else [found]
        goals = [
            {"what": w, "measured": m, "relation": r, "bound": b, "met": met(m, r, b)}
            for part in parts
            for w, m, r, b in part.goals
        ]
        report[name] = {"numbers": {k: v for part in parts for k, v in part.numbers.items()}, "goals": goals}
        if not as_json:
            print("\n".join(markdown(part) for part in parts), flush=True)
    return failures


@dataclass
class Run:
    """The chosen run; its folders are removed at the end."""

    options: argparse.Namespace
    size: str  # "full", "quick" or "smoke"
    stack: ExitStack

    def scratch(self, folder: Path) -> Path:
        """Make a temporary subfolder, removed at the end."""
        made = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="lmcs-bench-", dir=folder))
        return Path(made).resolve()


def run_suite(
    name: str,
    description: str | None,
    sections: Sequence[Callable[[Any], Section | list[Section]]],
    setting_of: Callable[[Run], Any],
    *,
    folder: Path = TOP / "build/bench",
    options: Callable[[argparse.ArgumentParser], None] | None = None,
    machine: Callable[[Any], str] | None = None,
) -> None:
    """Run one suite; exit with 1 if a section failed.

    `options` adds to the command line; `machine` describes the machine; the setting's `notes` name omitted parts.
    """
    parser = argparse.ArgumentParser(prog=f"tools/bench.sh {name}", description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer")
    parser.add_argument("--smoke", action="store_true", help="only see that it runs; the numbers mean nothing")
    parser.add_argument("--dir", type=Path, default=folder, help="a folder on the file system to measure")
    parser.add_argument("--only", action="append", choices=[section.__name__ for section in sections], help="this one")
    if options:
        options(parser)
    chosen = parser.parse_args()
    chosen.dir.mkdir(parents=True, exist_ok=True)
    size = "smoke" if chosen.smoke else "quick" if chosen.quick else "full"
    with ExitStack() as stack:
        setting = setting_of(Run(chosen, size, stack))
        said = machine(setting) if machine else f"{processor()}, load {os.getloadavg()[0]:.1f}; {size} run"
        report: dict[str, Any] = {"machine": said}
        if not chosen.json:
            print(f"{said}\n", flush=True)
        failures = run_sections(sections, setting, chosen.only, report, chosen.json)
    notes = getattr(setting, "notes", [])
    report["left out"] = notes
    if chosen.json:
        print(json.dumps(report, indent=2))
    else:
        for note in notes:
            print(f"Left out: {note}")
    if failures:
        progress(f"could not be measured: {', '.join(failures)}")
        raise SystemExit(1)
