# SPDX-License-Identifier: BSD-3-Clause
"""Programs that answer in lines of JSON."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from codec_data import TOP, Source
from tables import progress

BENCH = "build/release/bin/bench_codec"
TOOL = "build/release/bin/lmc-store"
# Peers and versions. True: without dependencies, which are in .venv.
PINS = (
    ("zipnn==0.5.4", True),
    ("pcodec==1.1.0", False),
    ("openzl==0.3.0", False),
    ("zstandard==0.25.0", False),
    ("blosc2==4.14.1", False),
    ("z4ai==0.2.0", False),
)
# Keeps freed memory, to avoid page faults. NumPy's arrays use small pages, like ours. One thread.
PEER_ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "NUMPY_MADVISE_HUGEPAGE": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "BLOSC_NTHREADS": "1",
}


class Program:
    """A running program."""

    def __init__(self, words: list[Any], environment: dict[str, str]):
        self.name = Path(words[0]).name
        self.process = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if "LMC_BENCH_DEBUG" in os.environ else subprocess.DEVNULL,
            text=True,
            env=os.environ | environment,
        )
        self.first = self._read()

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise RuntimeError(f"{self.name} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, question: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a question."""
        assert self.process.stdin
        try:
            self.process.stdin.write((json.dumps(question) if question else "") + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the program ended; reading its answer reports that
        return self._read()

    def close(self) -> None:
        """Close the program's input and wait until it ends."""
        if self.process.stdin:
            self.process.stdin.close()
        self.process.wait()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ours(
    mode: str, source: Source, wanted: int, kernels: str | None = None, pages: str = "small", checkout: Path = TOP
) -> Program:
    """Start bench_codec on a tensor."""
    words = [checkout / BENCH, mode, source.dtype, source.data, source.base or "-", wanted, pages]
    return Program(words, {"LMC_KERNELS": kernels} if kernels else {})


class Peers:
    """The peers and their Python."""

    def __init__(self, folder: Path, install: bool):
        self.python = folder / "bin/python"
        self.skipped: list[str] = []
        if install:
            try:
                self._install(folder)
            except (OSError, subprocess.CalledProcessError) as error:
                self.skipped.append(f"peers: no Python of their own could be made ({type(error).__name__})")
        self.here = self.python.exists()
        self.program: Program | None = None

    def _install(self, folder: Path) -> None:
        done = folder / "installed.json"
        old = json.loads(done.read_text()) if done.exists() else {}
        pip = [str(self.python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input"]
        for pin, bare in PINS:
            if old.get(pin) == "installed":
                continue
            if not self.python.exists():
                subprocess.run([sys.executable, "-m", "venv", folder], check=True, stdout=subprocess.DEVNULL)
            progress(f"installing {pin} for the comparison, into {folder} ...")
            words = [*pip, *(["--no-deps"] if bare else []), pin]
            result = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
            old[pin] = "installed" if result.returncode == 0 else (errors or ["ERROR: pip failed"])[-1][7:107]
            if result.returncode != 0:
                self.skipped.append(f"{pin}: could not be installed ({old[pin]})")
        done.write_text(json.dumps(old))

    def stop(self) -> None:
        """End the process to free its memory."""
        if self.program:
            self.program.close()
            self.program = None

    def load(self, source: Source, wanted: int) -> Program:
        """Run the peers, in the present process or a new one."""
        if self.program is None or self.program.process.poll() is not None:
            script = TOP / "tools/bench/codec_peers.py"
            self.program = Program([self.python, script, sysconfig.get_paths()["purelib"]], PEER_ENVIRONMENT)
        base = str(source.base) if source.base else None
        answer = self.program.ask({"load": [source.dtype, str(source.data), base, wanted]})
        if "error" in answer:
            raise RuntimeError(f"the peers can't load {source.name}: {answer['error']}")
        return self.program

    def size(self, peer: str, source: Source) -> dict[str, Any]:
        """Encode once, checked; RuntimeError has the reason."""
        program = self.load(source, 1)
        if peer not in program.first:
            raise RuntimeError("it is not installed")
        answer = program.ask({"size": peer})
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer
