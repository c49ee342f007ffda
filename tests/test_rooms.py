#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks the table of rooms (tests/rooms.txt) against the includes, symbols and imports of the sources.

    python3 tests/test_rooms.py            prints every violation; fails if there is one
    python3 tests/test_rooms.py --list     the same, and always succeeds
    python3 tests/test_rooms.py sizes      checks one subject: files includes symbols circles imports sizes dialect

Symbols come from the objects of build/release or build/dev, whichever is newer, and python/build. Needs no torch.
"""

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
MOST_FILE_LINES = 800
MOST_FUNCTION_LINES = 60
LIBRARIES = ("codec", "store", "python/src", "python/lmcstore", "python/pymm")
INCLUDE = re.compile(r'^#\s*include\s+"([^"]+)"', re.MULTILINE)
SYMBOL = re.compile(r"^(lmc|lmci|lmcs|lmcsi|core)_")


class Rooms:
    def __init__(self, path):
        self.uses = {}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            line = line.split("#")[0].strip()
            if line:
                room, colon, names = line.partition(":")
                if not colon or room in self.uses:
                    raise SystemExit(f"{path}:{number}: expected one 'ROOM: ROOM...' for each room")
                self.uses[room] = names.split()
        for room, names in self.uses.items():
            self.uses[room] = {self._named(room, name) for name in names}

    def _named(self, room, name):
        beside = f"{room.rpartition('/')[0]}/{name}"
        found = beside if beside in self.uses else name
        if found not in self.uses:
            raise SystemExit(f"tests/rooms.txt: room '{room}' uses '{name}', which is no room")
        return found

    def of(self, file):
        if f"{Path(file).parent}/*" in self.uses:
            return f"{Path(file).parent}/*"
        return next((str(folder) for folder in Path(file).parents if str(folder) in self.uses), None)

    def allows(self, user, used):
        """Return whether `user` may use `used`: itself, a room of its line, or one of the folder around it."""
        while user:
            if used in (user, f"{user}/*") or used in self.uses.get(user, ()):
                return True
            user = user.rpartition("/")[0]
        return False


def tracked(*patterns):
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns],
        cwd=TOP, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    return sorted({name for name in listed if (TOP / name).is_file()})


def circles(edges):
    """Return the strongly connected components of several nodes (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            cut = stack.index(node)
            if len(stack) - cut > 1:
                found.append(sorted(stack[cut:]))
            del stack[cut:]

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def library_of(file):
    return next((one for one in LIBRARIES if file.startswith(one + "/")), None)


def check_files(rooms):
    """Every source of a library is in a room; only public headers are at its root."""
    for file in tracked("codec/*.[ch]", "store/*.[ch]", "python/src/*", "python/lmcstore/*.py", "python/pymm/*.py"):
        room = rooms.of(file)
        if room is None or (room in ("codec", "store") and file.endswith(".c")):
            yield f"{file}: is in no room of tests/rooms.txt"
    for room in rooms.uses:
        if not tracked(room):
            yield f"tests/rooms.txt: room '{room}' has no files"


def included_files(file, text):
    for name in INCLUDE.findall(text):
        beside = Path(file).parent
        for folder in (str(beside), "codec", "store", "tools"):
            found = str(Path(folder) / name)
            if (TOP / found).is_file():
                yield found
                break


def check_includes(rooms):
    for file in tracked("codec/*.[ch]", "store/*.[ch]", "python/src/*.[ch]", "tools/*.[ch]"):
        room = rooms.of(file)
        for other in included_files(file, (TOP / file).read_text()):
            used = rooms.of(other)
            if room and used and not rooms.allows(room, used):
                yield f"{file}: includes {other}, but {room} may not use {used}"


def objects_of_libraries():
    """Return {source: object} of the libraries, from the newer of build/release and build/dev, and python/build."""
    found = {}
    built = [TOP / "build" / preset / "compile_commands.json" for preset in ("release", "dev")]
    built = sorted((file for file in built if file.is_file()), key=lambda file: file.stat().st_mtime)
    for entry in json.loads(built[-1].read_text()) if built else ():
        if "-o" in entry.get("command", "").split() or entry.get("output"):
            output = entry.get("output") or entry["command"].split(" -o ")[1].split()[0]
            source = Path(entry["file"])
            compiled = built[-1].parent / output
            if source.is_relative_to(TOP) and source.is_file() and compiled.is_file():
                source = str(source.relative_to(TOP))
                if library_of(source) or source.startswith("tools/"):
                    found.setdefault(source, compiled)
    for source in tracked("python/src/*.c"):
        compiled = sorted((TOP / "python/build").glob(f"temp*/store/**/src/{Path(source).name}.o"))
        if compiled:
            found[source] = compiled[-1]
    return found


def symbols_of(objects):
    """Return {symbol: defining source} and {source: needed symbols}."""
    defined, needed, source = {}, defaultdict(set), None
    sources = {str(compiled): source for source, compiled in objects.items()}
    listing = subprocess.run(["nm", "-g", *sources], check=True, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        if line.endswith(":"):
            source = sources[line[:-1]]
        elif (parts := line.split()) and SYMBOL.match(parts[-1]):
            if parts[-2] == "U":
                needed[source].add(parts[-1])
            else:
                defined[parts[-1]] = source
    return defined, needed


def calls_between_files():
    objects = objects_of_libraries()
    if not objects:
        raise SystemExit("test_rooms: no objects in build/release or build/dev; build one of these presets first")
    for source in sorted(objects):
        if objects[source].stat().st_mtime < (TOP / source).stat().st_mtime:
            print(f"note: {source} is newer than its object")
    defined, needed = symbols_of(objects)
    for source in sorted(needed):
        for symbol in sorted(needed[source]):
            if symbol in defined:
                yield source, symbol, defined[symbol]


def check_symbols(rooms):
    """The table allows every call across rooms, except of public functions where the room may use these."""
    public = {}
    for library in ("codec", "store"):
        text = "".join(path.read_text() for path in (TOP / library).glob("*.h"))
        public |= dict.fromkeys(re.findall(r"\b(lmcs?_\w+)\(", text), library)
    for source, symbol, other in calls_between_files():
        room, used, face = rooms.of(source), rooms.of(other), public.get(symbol)
        by_face = face in rooms.uses[room] if face == library_of(source) else face and rooms.allows(room, face)
        if not by_face and not rooms.allows(room, used):
            yield f"{source}: calls {symbol} of {other}, but {room} may not use {used}"


def check_circles(_rooms):
    calls, includes = defaultdict(set), defaultdict(set)
    for source, _, other in calls_between_files():
        if library_of(source) == library_of(other):
            calls[source].add(other)
    for file in tracked("codec/*.[ch]", "store/*.[ch]", "python/src/*.[ch]"):
        includes[file] = set(included_files(file, (TOP / file).read_text()))
    for kind, edges in (("calls", calls), ("includes", includes)):
        for circle in circles(edges):
            yield f"circle of {kind} between {len(circle)} files: {' '.join(circle)}"


def imports_of(file):
    """Yield (imported file, whether only a type checker imports it) for the packages of python/."""
    tree = ast.parse((TOP / file).read_text())
    for_types = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for_types |= {id(below) for statement in node.body for below in ast.walk(statement)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = Path(file).relative_to("python").parts[: -node.level] if node.level else ()
            module = ".".join([*package, *filter(None, [node.module])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            found = module_file(name)
            if found and found != file:
                yield found, id(node) in for_types


def module_file(name):
    """Return the file of a dotted module, or of the module with the name, in our packages."""
    for dotted in (name, name.rpartition(".")[0]):
        if dotted.split(".")[0] in ("lmcstore", "pymm"):
            path = "python/" + dotted.replace(".", "/")
            for file in (f"{path}.py", f"{path}/__init__.py", f"{path}.pyi"):
                if (TOP / file).is_file():
                    return file
    return None


def check_imports(rooms):
    """The table allows every import, and no modules import each other in a circle."""
    edges = defaultdict(set)
    for file in tracked("python/lmcstore/*.py", "python/pymm/*.py"):
        room = rooms.of(file)
        for other, for_types in imports_of(file):
            used = rooms.of(other)
            if room and used and not for_types and not rooms.allows(room, used):
                yield f"{file}: imports {other}, but {room} may not use {used}"
            if not for_types:
                edges[file].add(other)
    for circle in circles(edges):
        yield f"circle of imports between {len(circle)} modules: {' '.join(circle)}"


def c_functions(text):
    """Yield (line, lines) of each function, up to its brace in column 0."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line == "{":
            first = number
            while first > 0 and lines[first - 1].strip() and not re.match(r"[}#/]| \*", lines[first - 1]):
                first -= 1
            last = next((at for at in range(number, len(lines)) if lines[at].startswith("}")), len(lines) - 1)
            yield first + 1, last - first + 1


def python_functions(text):
    """Yield (line, lines) of each function, without its docstring."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            yield node.lineno, lines


def check_sizes(_rooms):
    for file in tracked("*.c", "*.h", "*.py", "*.sh", "*.cmake", "*CMakeLists.txt"):
        text = (TOP / file).read_text()
        lines = text.count("\n")
        if lines > MOST_FILE_LINES:
            yield f"{file}: {lines} lines; at most {MOST_FILE_LINES}"
        functions = {".py": python_functions, ".c": c_functions, ".h": c_functions}.get(Path(file).suffix)
        for line, length in functions(text) if functions else ():
            if length > MOST_FUNCTION_LINES:
                yield f"{file}:{line}: a function of {length} lines; at most {MOST_FUNCTION_LINES}"


C_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
BRACES = re.compile(r"^( *)(?:if|for|while) \(.*\) \{\n +(?!if|for|while|do|switch)[^\n{}]*;\n\1\}\n", re.MULTILINE)
POINTER = re.compile(r"\b(?:char|void|struct \w+|u?int\d+_t|size_t|FILE|float|double) \*+(?:const )?(\w+)(?=[,;)]| =)")


def check_dialect(_rooms):
    """C has no braces around a single line, and compares pointers with NULL explicitly (as far as text shows it)."""
    for file in tracked("*.c", "*.h"):
        text = C_TOKEN.sub(lambda token: re.sub(r"[^\n]", " ", token.group()), (TOP / file).read_text())
        for match in BRACES.finditer(text):
            yield f"{file}:{text.count(chr(10), 0, match.start()) + 1}: braces around a single statement"
        lines = text.split("\n")
        for line, length in c_functions(text):
            body = "\n".join(lines[line - 1 : line - 1 + length])
            for name in sorted(set(POINTER.findall(body))):
                bare = (
                    rf"\b(?:if|while) \({name}\)|[(] ?!{name}\b(?![.(\[]|->)"
                    rf"|(?:&&|\|\|) !?{name}(?=\)| &&| \|\|)|\({name} (?:&&|\|\|)"
                )
                for match in re.finditer(bare, body):
                    yield f"{file}:{line + body.count(chr(10), 0, match.start())}: compare {name} with NULL"


CHECKS = {
    "files": check_files,
    "includes": check_includes,
    "symbols": check_symbols,
    "circles": check_circles,
    "imports": check_imports,
    "sizes": check_sizes,
    "dialect": check_dialect,
}


def main():
    wanted = [word for word in sys.argv[1:] if word != "--list"] or list(CHECKS)
    if not set(wanted) <= set(CHECKS):
        raise SystemExit(__doc__)
    rooms = Rooms(TOP / "tests/rooms.txt")
    violations = 0
    for name in wanted:
        found = list(CHECKS[name](rooms))
        violations += len(found)
        print(f"{name}: {len(found)} violations" if found else f"{name}: ok")
        for line in found:
            print(f"  {line}")
    if violations and "--list" not in sys.argv:
        sys.exit(1)


if __name__ == "__main__":
    main()
