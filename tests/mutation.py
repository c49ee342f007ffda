# SPDX-License-Identifier: BSD-3-Clause
"""Mutants: the store, broken on purpose in one place, and linked into a test program that must find it.

A mutant is a fragment of a source file and what stands there instead. It is applied to a copy in BUILD/mutants/, which
is compiled with the flags of the release build and linked into a program of its own, before the library; the sources
and the library stay what they are. Fragments are short and must occur exactly once: an edit of the store elsewhere
does not matter, and one of the fragment itself makes the mutant fail here until it is brought up to date.
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
    file: str = ""
    edits: list[tuple[str, str]] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    quick: bool = False


def mutated(mutant: Mutant) -> str:
    """Give the broken source."""
    text = (TOP / mutant.file).read_text()
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise SystemExit(
                f"mutant {mutant.name}: its fragment occurs {text.count(old)} times in {mutant.file}:\n{old}"
            )
        text = text.replace(old, new)
    return text


def try_edits(mutants: list[Mutant]) -> None:
    """See that the fragments of all mutants are there, also of those that are not run this time."""
    for mutant in mutants:
        if mutant.file:
            mutated(mutant)


def mutate(mutant: Mutant, folder: Path) -> Path:
    """Write the broken copy of the source."""
    text = mutated(mutant)
    path = folder / f"{mutant.name}.c"
    path.write_text(f'#line 1 "{mutant.file}"\n{text}')
    return path


def compile_command(build: Path, source: Path) -> list[str]:
    """Find how the static library's objects are compiled; without the flags for the output and for warnings."""
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
    """Find how a program is linked."""
    commands = subprocess.run(
        ["ninja", "-C", str(build), "-t", "commands", f"bin/{program}"], check=True, capture_output=True, text=True
    )
    line = commands.stdout.strip().splitlines()[-1]
    return [word for word in shlex.split(line) if word not in ("&&", ":")]


def make(mutant: Mutant, build: Path, folder: Path, name: str) -> Path:
    """Build a mutant of the program of that name in BUILD/bin/."""
    if not mutant.file:
        return build / "bin" / name
    source = mutate(mutant, folder)
    compiled, program = folder / f"{mutant.name}.o", folder / f"{name}-{mutant.name}"
    flags = compile_command(build, TOP / mutant.file)
    subprocess.run([*flags, f"-I{TOP / 'store'}", "-c", str(source), "-o", str(compiled)], check=True, cwd=build)
    link = link_command(build, name)
    at = link.index("-o")
    link[at + 1] = str(program)
    link.insert(at, str(compiled))
    subprocess.run(link, check=True, cwd=build)
    return program
