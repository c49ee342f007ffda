# SPDX-License-Identifier: BSD-3-Clause
"""Mutants: the store, broken in one place and linked into a test program that must find it.

A mutant is a list of edits: a fragment of source, which must occur exactly once in store/, and its replacement. So
mutants survive moves of code; an edited fragment must be brought up to date. The edited copies go to BUILD/mutants/,
are compiled with the release flags, and are linked before the library.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]


@dataclass
class Mutant:
    name: str
    what: str
    edits: list[tuple[str, str]] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    quick: bool = False


# Edits for mutants of several programs.
WRONG_LINK = [
    (
        "&e->link_blocks[block]);\n",
        "&e->link_blocks[block]);\n        slot[e->link_blocks[block].coded_bytes - 1] ^= 1;\n",
    ),
    ("        return verify_in_memory(encoding, error);\n", "        return LMCS_OK;\n"),
]


def mutated(mutant: Mutant) -> dict[Path, str]:
    texts: dict[Path, str] = {}
    for old, new in mutant.edits:
        current = {path: texts.get(path) or path.read_text() for path in sorted((TOP / "store").rglob("*.c"))}
        found = [path for path, text in current.items() for _ in range(text.count(old))]
        if len(found) != 1:
            places = ", ".join(str(path.relative_to(TOP)) for path in found) or "no file"
            raise SystemExit(
                f"mutant {mutant.name}: a fragment must occur once, not {len(found)} times ({places}):\n{old}"
            )
        texts[found[0]] = current[found[0]].replace(old, new)
    return texts


def try_edits(mutants: list[Mutant], build: Path) -> None:
    """Check that all mutants fit, also those that this run omits; after a build, that they compile."""
    is_built = (build / "compile_commands.json").exists()
    for mutant in mutants:
        for path, text in mutated(mutant).items():
            if not is_built:
                continue
            command = [*compile_command(build, path), "-w", "-fsyntax-only", "-x", "c", "-"]
            subprocess.run(command, input=text, text=True, check=True, cwd=build)


def compile_command(build: Path, source: Path) -> list[str]:
    """Return the compile command of the static library's objects, without output and warning flags."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        command = shlex.split(entry["command"])
        if Path(entry["file"]) == source and "lmcstore" in entry.get("output", " ".join(command)):
            flags = [word for word in command if not word.startswith("-W")]
            for option in ("-o", "-c"):
                at = flags.index(option)
                del flags[at : at + 2]
            return flags
    raise SystemExit(f"{source} is not compiled in {build}")


def link_command(build: Path, program: str) -> list[str]:
    commands = subprocess.run(
        ["ninja", "-C", str(build), "-t", "commands", f"bin/{program}"], check=True, capture_output=True, text=True
    )
    line = commands.stdout.strip().splitlines()[-1]
    return [word for word in shlex.split(line) if word not in ("&&", ":")]


def make(mutant: Mutant, build: Path, folder: Path, name: str) -> Path:
    if not mutant.edits:
        return build / "bin" / name
    program = folder / f"{name}-{mutant.name}"
    objects = []
    for path, text in mutated(mutant).items():
        source = folder / f"{mutant.name}-{path.stem}.c"
        source.write_text(f'#line 1 "{path.relative_to(TOP)}"\n{text}')
        objects.append(source.with_suffix(".o"))
        subprocess.run(
            [*compile_command(build, path), "-c", str(source), "-o", str(objects[-1])], check=True, cwd=build
        )
    link = link_command(build, name)
    at = link.index("-o")
    link[at + 1] = str(program)
    link[at:at] = [str(compiled) for compiled in objects]
    subprocess.run(link, check=True, cwd=build)
    return program
