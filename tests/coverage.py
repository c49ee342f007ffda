#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Lists the lines of codec/ and store/ that no test reaches, by their purpose.

    coverage.py COVERAGE.json [--list KIND]

Reads the output of `gcovr --json` (`tests/run.sh coverage` does both), and prints a table: lines never reached, and
branches of reached lines never taken, by kind. The kind is a guess from the text of a line and its neighbours.
`--list KIND` prints these lines, with "line" or the number of missing branches.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]

# By file: code for other machines, or whose counters are lost.
FILES = {
    "machine": r"store/topology\.c",
    "child": r"store/guard\.c",
    "kernel": r"codec/.*(_impl|_avx2|_avx512|_neon|kernels).*",
}
# By a statement's text, in this order.
TEXTS = {
    "memory": r"fail_memory|NO_MEMORY|ENOMEM|out_of_memory|_grow\(|alloc\(|mmap\(|MAP_FAILED|pthread_create|[!=]= NULL",
    "system": r"fail_errno|errno|EINTR|fail_(io|system|sync|read|write|lock)|(open|fstat|ftruncate|fallocate|fsync)\(",
    "damage": r"DAMAGED|UNSUPPORTED|fail_(page|root|damaged|extent|cell|record|bad|beyond|missing)|_is_sound|sound\b"
    r"|damaged|LMCI?_(CORRUPT|TRUNCATED|INVALID|NO_SPACE)|why\b|[!=]= sizeof|magic|UINT64_MAX|overflow|assert\(",
    "gone": r"\bfound\b|\blost\b|_gone\b|stopped\b|\bstop\b|LMCS_NOT_FOUND",
    "passed on": r"\bstatus\b|\bok\b|\bfailure\b|\bfailed\b|\berror\b|\bcancelled\b|LMCS_OK|LMC_OK|false;",
}
MEANING = {
    "machine": "other machines: NUMA nodes, NVDIMMs, block devices (the guest has some)",
    "child": "run in children that end by a signal, whose counters are lost",
    "kernel": "variants of kernels: one is compiled for many cases, each with branches of all",
    "memory": "memory that is refused",
    "system": "system calls that fail",
    "damage": "bytes that others wrote or damaged",
    "gone": "what is not there, or not any more, and what is stopped",
    "passed on": "a failure of the above that is passed on, or ends a loop",
    "other": "anything else",
}


def statement(source: list[str], number: int) -> str:
    first = last = number - 1
    while first > 0 and not re.search(r"[;{}:/]\s*$|^\s*$|\*/$", source[first - 1]):
        first -= 1
    while last + 1 < len(source) and not re.search(r"[;{}]\s*$", source[last]):
        last += 1
    return " ".join(line.strip() for line in source[first : last + 1])


def kind_of(file: str, source: list[str], number: int) -> str:
    for kind, pattern in FILES.items():
        if re.fullmatch(pattern, file):
            return kind
    texts = [statement(source, number)]
    before = number - 2
    while before >= 0 and not source[before].strip():
        before -= 1
    if before >= 0 and re.match(r"\s*(if|while|for|\}? ?else|return|&&|\|\|)", source[before]):
        texts.append(statement(source, before + 1))
    for text in texts:
        for kind, pattern in TEXTS.items():
            if re.search(pattern, text):
                return kind
    return "other"


def missing(coverage: dict[str, Any]) -> list[tuple[str, str, int, int, str]]:
    """List unreached lines and branches as (kind, file, line, branches or 0 for the line, text)."""
    found = []
    for file in coverage["files"]:
        source = (TOP / file["file"]).read_text().splitlines()
        for line in file["lines"]:
            if line.get("gcovr/noncode") or line.get("gcovr/excluded"):
                continue
            number = line["line_number"]
            branches = sum(branch["count"] == 0 for branch in line["branches"]) if line["count"] else 0
            if line["count"] == 0 or branches:
                kind = kind_of(file["file"], source, number)
                found.append((kind, file["file"], number, branches, source[number - 1].strip()))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What no test reaches, by what it is for.")
    parser.add_argument("coverage", type=Path)
    parser.add_argument("--list", metavar="KIND", choices=sorted(MEANING), help="print the lines of a kind")
    arguments = parser.parse_args()
    found = missing(json.loads(arguments.coverage.read_text()))
    if arguments.list:
        for kind, file, number, branches, text in found:
            if kind == arguments.list:
                print(f"{file}:{number}: {branches or 'line'}: {text}")
        return 0
    lines = Counter(kind for kind, _, _, branches, _ in found if not branches)
    untaken: Counter[str] = Counter()
    for kind, _, _, branches, _ in found:
        untaken[kind] += branches
    print(f"{'kind':10} {'lines':>6} {'branches':>9}")
    for kind, meaning in MEANING.items():
        print(f"{kind:10} {lines[kind]:6} {untaken[kind]:9}  {meaning}")
    print(f"{'all':10} {sum(lines.values()):6} {sum(untaken.values()):9}  (branches of lines that were reached)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
