# SPDX-License-Identifier: BSD-3-Clause
"""Refuses a wheel that another Linux could not use, or that is slower than it should be.

    check.py WHEEL

Runs in the virtual environment of tools/wheel.sh. A wheel for another processor or Python is not executed.
"""

import io
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

MOST_BYTES = 2_000_000
GLIBC = (2, 28)
OF_GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
INSIDE = ("PMDK", "ISA-L", "jansson", "xxHash")

# Called by headers of Python 3.13 and newer; Python 3.11 refuses a format with a length (python/src/core.h).
REFUSED_BY_3_11 = {"PyArg_ParseTuple", "PyArg_ParseTupleAndKeywords", "PyObject_CallFunction", "Py_BuildValue"}

# The best kernels of a processor: the first whose flags it has. codec/kernels/cpu.c chooses among them.
AVX2 = {"avx2", "bmi1", "bmi2", "fma"}
BEST = {
    "x86_64": [
        ("avx512", AVX2 | {f"avx512{part}" for part in ("f", "bw", "vl", "dq", "vbmi", "_vbmi2")}),
        ("avx2", AVX2),
        ("portable", set()),
    ],
    "aarch64": [("neon", set())],
}


class Refused(Exception):
    """A fault of the wheel."""


def check(right: bool, wrong: str) -> None:
    """Raise Refused unless `right`."""
    if not right:
        raise Refused(wrong)


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """Return the output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    check(done.returncode == 0, f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def check_symbols(name: str, elf: ELFFile) -> None:
    """Check the symbols that the module defines and those that it needs from Python."""
    symbols = [each for each in elf.get_section_by_name(".dynsym").iter_symbols() if each.name]
    defined = {each.name for each in symbols if each["st_shndx"] != "SHN_UNDEF"}
    check(defined == {"PyInit__core"}, f"{name} exports {', '.join(sorted(defined))}")
    if name.endswith(".abi3.so"):
        refused = {each.name for each in symbols} & REFUSED_BY_3_11
        check(not refused, f"{name} calls {', '.join(sorted(refused))}, which Python 3.11 refuses")


def check_program(name: str, data: bytes, machine: str) -> None:
    """Check the needs, exports and contents of one ELF file."""
    elf = ELFFile(io.BytesIO(data))
    needed = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
    others = needed - OF_GLIBC - {LOADERS[machine]}
    check(not others, f"{name} needs {', '.join(sorted(others))}")
    versions = elf.get_section_by_name(".gnu.version_r")
    for _, symbols in versions.iter_versions() if versions else ():
        for symbol in symbols:
            found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", symbol.name)
            newer = found and (int(found[1]), int(found[2])) > GLIBC
            check(not newer, f"{name} needs a symbol of {symbol.name}")
    check(elf["e_type"] == "ET_DYN", f"{name} must lie at one address")
    if name.startswith("lmcstore/_core."):
        check_symbols(name, elf)
    check(elf.get_section_by_name(".symtab") is None, f"{name} is not stripped")
    place = re.search(rb"/[\w./-]*(?:build/wheel|other place)[\w./-]*", data)
    check(place is None, f"{name} contains a path of the build: {place and place[0].decode()}")


def check_contents(wheel: Path) -> str:
    """Check the files of the wheel; return its processor."""
    found = re.fullmatch(
        r"lmcstore-[\d.]+-(cp311-abi3|cp3\d+-cp3\d+t)-manylinux_2_28_(x86_64|aarch64)\.whl", wheel.name
    )
    check(found is not None, "the name is not that of a wheel for glibc 2.28")
    assert found is not None
    check(wheel.stat().st_size <= MOST_BYTES, f"{wheel.stat().st_size:,} bytes, more than {MOST_BYTES:,}")
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    about = next(name.removesuffix("RECORD") for name in files if name.endswith(".dist-info/RECORD"))
    for title in INSIDE:
        check(f"{about}licenses/{title}/LICENSE" in files, f"the licence of {title} is missing")
    check(f"{about}licenses/LICENSE" in files, "our licence is missing")
    sbom = json.loads(files.get(f"{about}sboms/lmcstore.cdx.json", b"{}"))
    listed = {component["name"] for component in sbom.get("components", ())}
    check(listed == set(INSIDE), f"the SBOM lists {', '.join(sorted(listed)) or 'nothing'}")
    programs = [name for name, data in files.items() if data.startswith(b"\x7fELF")]
    modules = [name for name in programs if re.fullmatch(r"lmcstore/_core\.[\w-]+\.so", name)]
    commands = [name for name in programs if name.endswith(".data/scripts/lmc-store")]
    check(len(modules) == len(commands) == 1, "not one module and one command lmc-store")
    check(len(programs) == 2, f"more programs than expected: {', '.join(programs)}")
    for name in programs:
        check_program(name, files[name], found[2])
    return found[2]


def check_tools(wheel: Path) -> None:
    """Let auditwheel and abi3audit judge."""
    shown = " ".join(run(sys.executable, "-m", "auditwheel", "show", str(wheel)).split())
    tag = re.search(r'consistent with the following platform tag: "manylinux_(\d+)_(\d+)_', shown)
    check(tag is not None and (int(tag[1]), int(tag[2])) <= GLIBC, f"auditwheel: {shown}")
    if "-abi3-" in wheel.name:
        report = json.loads(run(sys.executable, "-m", "abi3audit", "--strict", "--report", str(wheel)))
        results = [item["result"] for spec in report["specs"].values() for item in spec["wheel"]]
        bad = [result for result in results if not result["is_abi3"] or result["non_abi3_symbols"]]
        check(bool(results) and not bad, f"abi3audit: {bad or 'it found no module'}")


def best_kernels(machine: str) -> str:
    """Return the best kernels of this processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split(":", 1)[1].split()}
    return next(name for name, wanted in BEST[machine] if wanted <= flags)


def check_use(wheel: Path, machine: str) -> None:
    """Install the wheel, and use the module and the command."""
    with tempfile.TemporaryDirectory(prefix="lmcstore-wheel-") as place:
        run(sys.executable, "-m", "venv", f"{place}/venv")
        run(f"{place}/venv/bin/python", "-m", "pip", "install", "-q", "--no-index", "--no-deps", str(wheel))
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LMC_KERNELS")}
        code = "import lmcstore, lmcstore.codec as c; print(c.kernels); lmcstore.open('p', 'x', size='16MiB').close()"
        os.chdir(place)
        chosen = run(f"{place}/venv/bin/python", "-W", "ignore", "-c", code, env=env).strip()
        best = best_kernels(machine)
        check(chosen == best, f"the codec uses the kernels {chosen}; this processor has {best}")
        shown = run(f"{place}/venv/bin/lmc-store", "--version", env=env).strip()
        check(f"kernels {best}" in shown, f"lmc-store --version prints {shown!r}; this processor has {best}")
        run(f"{place}/venv/bin/lmc-store", "verify", "p", env=env)


def main() -> None:
    """Run."""
    wheel = Path(sys.argv[1]).resolve()
    try:
        machine = check_contents(wheel)
        check_tools(wheel)
        free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
        if machine == platform.machine() and ("-abi3-" in wheel.name) != free_threaded:
            check_use(wheel, machine)
        else:
            print(f"wheel: {wheel.name}: not executed, this is {sysconfig.get_platform()} {platform.python_version()}")
    except Refused as refused:
        sys.exit(f"wheel: {wheel.name} is refused: {refused}")
    print(f"wheel: {wheel.name}: accepted")


if __name__ == "__main__":
    main()
