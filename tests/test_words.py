#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the prose of the tracked files for free relative clauses, which make a sentence hard to read.

    python3 tests/test_words.py                  counts; fails above 1 in 1,000 words
    python3 tests/test_words.py --list [PATH...] also prints each place, the worst files first

Counts `what`, `whatever`, `whoever`, `nobody`, `somebody`, and `who` after a full stop, comma, colon or bracket, in the
comments of C, CMake and shell files, the comments and docstrings of Python files, and Markdown outside code blocks.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
MOST_PER_1000 = 1.0
HARD = re.compile(r"\b(what|whatever|whoever|nobody|somebody)\b|[.,:()\[\]{}]\s*who\b", re.IGNORECASE)
WORD = re.compile(r"[^\W\d_][\w'-]*")
C_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def c_prose(text):
    kept, end = [], 0
    for token in C_TOKEN.finditer(text):
        is_comment = token.group().startswith(("//", "/*"))
        kept += [blank(text[end : token.start()]), token.group() if is_comment else blank(token.group())]
        end = token.end()
    return "".join(kept)


def python_prose(text):
    keep = set()
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            keep |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = [line if number in keep else "" for number, line in enumerate(text.splitlines(), 1)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.start[0] not in keep:
            lines[token.start[0] - 1] = token.string
    return "\n".join(lines)


def hash_prose(text):
    return "\n".join("".join(re.findall(r"(?:^|\s)#[^\"']*$", line)) for line in text.splitlines())


def markdown_prose(text):
    return re.sub(r"^```.*?^```", lambda block: blank(block.group()), text, flags=re.DOTALL | re.MULTILINE)


KINDS = {".c": c_prose, ".h": c_prose, ".py": python_prose, ".pyi": python_prose, ".sh": hash_prose,
         ".cmake": hash_prose, ".txt": hash_prose, "": hash_prose, ".md": markdown_prose}  # fmt: skip


def prose_files(paths):
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *(paths or ["."])],
        cwd=TOP, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for name in sorted(set(listed)):
        of_cmake = name.endswith("CMakeLists.txt") or name == "tests/rooms.txt"
        script = name.startswith(".ci/") or name == "tests/guest/init"
        if (TOP / name).is_file() and (Path(name).suffix in KINDS.keys() - {"", ".txt"} or of_cmake or script):
            yield name


def main():
    arguments = [word for word in sys.argv[1:] if word != "--list"]
    show = "--list" in sys.argv
    if any(word.startswith("-") for word in arguments):
        raise SystemExit(__doc__)
    words, places = 0, {}
    for name in prose_files(arguments):
        prose = KINDS[Path(name).suffix]((TOP / name).read_text())
        words += len(WORD.findall(prose))
        lines = (TOP / name).read_text().splitlines()
        found = [prose.count("\n", 0, match.start(1) if match[1] else match.end()) for match in HARD.finditer(prose)]
        if found:
            places[name] = [f"{name}:{number + 1}: {lines[number].strip()}" for number in found]
    total = sum(map(len, places.values()))
    if show:
        for name in sorted(places, key=lambda name: -len(places[name])):
            print(f"{len(places[name]):5} {name}")
            for line in places[name]:
                print(f"      {line}")
    per_1000 = 1000 * total / max(words, 1)
    print(f"{total} hard words in {words} words of comments and documents: {per_1000:.2f} in 1,000 "
          f"(at most {MOST_PER_1000:g}; --list prints them)")  # fmt: skip
    sys.exit(per_1000 > MOST_PER_1000 and not show)


if __name__ == "__main__":
    main()
