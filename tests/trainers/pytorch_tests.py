# SPDX-License-Identifier: BSD-3-Clause
"""Runs PyTorch's tests of torch.distributed.checkpoint with StoreWriter and StoreReader in place of its own classes.

    python tests/trainers/pytorch_tests.py CHECKOUT [FILE...]

CHECKOUT is a source tree of PyTorch, of the version that is installed or one near it. Each file of
test/distributed/checkpoint runs on the CPU with gloo, once with torch's classes and once with the store's. Tests that
pass with torch's only are printed. --jobs N runs N files at a time; --keep FOLDER keeps the logs; -k as for pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path("test", "distributed", "checkpoint")
FILE_SECONDS = 1800

ON_CPU = [
    (r"(?ms)\A(.*?)^(?=import |from (?!__future__))", r"\1import lmcstore_on_cpu\n"),
    (r"(?m)^ *@(skip_if_lt_x_gpu|requires_nccl|requires_accelerator_dist_backend)\(.*\)\n", ""),
    (r"\.cuda\((?:[^()]|\([^()]*\))*\)", ""),
    (r"cpu:gloo,cuda:nccl|cpu:gloo,\{?\w*\}?:\{?\w*\}?", "gloo"),
    (r"with_comms\(init_rpc=False\)", 'with_comms(init_rpc=False, backend="gloo")'),
    (r"/cuda:(\{\w+\}|\d)", "/cpu"),
    (r'f"cuda:\{[^}]*\}"|"cuda(:0)?"', '"cpu"'),
    (r"device=(self\.rank|rank|dist\.get_rank\(\))(?=[,)])", 'device="cpu"'),
    (r"torch\.cuda\.device_count\(\)", "8"),
    (r"torch\.cuda\.current_device\(\)", '"cpu"'),
]

TORCH_ON_CPU = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel

torch.accelerator.current_device_index = lambda: "cpu"
torch.accelerator.device_count = lambda: 8
made = FullyShardedDataParallel.__init__

def make(self, *arguments, **options):
    made(self, *arguments, **options | {"device_id": torch.device("cpu")})

FullyShardedDataParallel.__init__ = make
"""

# All processes of a test import this, as sitecustomize. A rank is forked from a process that has imported torch.
RANKS = """
from multiprocessing import context
context._concrete_contexts["spawn"] = context._concrete_contexts["forkserver"]
context._concrete_contexts["forkserver"].set_forkserver_preload([
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.testing._internal.distributed._shard.sharded_tensor",
    "torch.testing._internal.distributed._tensor.common_dtensor",
])
"""
IN_PLACE = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.distributed.checkpoint":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def replace(package):
            execute(package)
            from torch.distributed.checkpoint import _fsspec_filesystem, _storage_utils, format_utils, hf_storage
            from lmcstore.dcp import StoreReader, StoreWriter
            for module in (package, package.filesystem, _storage_utils, format_utils):
                module.FileSystemWriter, module.FileSystemReader = StoreWriter, StoreReader

        spec.loader.exec_module = replace
        return spec

sys.meta_path.insert(0, Finder())
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="*", help="paths below test/distributed/checkpoint; all without")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("-k", default="", help="which tests")
    options = parser.parse_args()
    tests = options.checkout / TESTS
    files = options.files or sorted(str(path.relative_to(tests)) for path in tests.rglob("test_*.py"))
    if not files:
        parser.error(f"there are no tests in {tests}")
    with tempfile.TemporaryDirectory() as made:
        place = options.keep or Path(made)
        for file in files:
            copy = place / "tests" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(on_cpu((tests / file).read_text()))
        for side, text in (("torch", RANKS), ("store", RANKS + IN_PLACE)):
            (place / side).mkdir(exist_ok=True)
            (place / side / "sitecustomize.py").write_text(text)
            (place / side / "lmcstore_on_cpu.py").write_text(TORCH_ON_CPU)
        lost = 0
        with ThreadPoolExecutor(options.jobs) as pool:
            for file, (own, ours) in zip(
                files, pool.map(lambda file: both(place, file, options.k), files), strict=True
            ):
                lost += report(file, own, ours)
    return min(lost, 1)


def on_cpu(text: str) -> str:
    """Let a test that needs several GPUs use the CPU."""
    for pattern, instead in ON_CPU:
        text = re.sub(pattern, instead, text)
    return text


def both(place: Path, file: str, which: str) -> tuple[dict[str, str], dict[str, str]]:
    return run(place, file, which, "torch"), run(place, file, which, "store")


def run(place: Path, file: str, which: str, side: str) -> dict[str, str]:
    """Run a file; return the outcome of each test."""
    name = f"{side}-{file.replace('/', '-')}"
    results, log = place / f"{name}.xml", place / f"{name}.log"
    paths = [str(place / side), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(place / "tests")]
    command += ["-p", "no:cacheprovider", "-k", which, f"--junitxml={results}", str(place / "tests" / file)]
    results.unlink(missing_ok=True)
    with log.open("w") as out, tempfile.TemporaryDirectory() as scratch:
        environment["TMPDIR"] = scratch
        try:
            subprocess.run(command, env=environment, stdout=out, stderr=out, check=False, timeout=FILE_SECONDS)
        except subprocess.TimeoutExpired:
            out.write(f"no end within {FILE_SECONDS} s\n")
    if not results.exists():
        return {}
    cases = xml.parse(results).iter("testcase")
    return {f"{case.get('classname')}.{case.get('name')}": outcome(case) for case in cases}


def outcome(case: xml.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        if case.find(kind) is not None:
            return kind
    return "passed"


def report(file: str, own: dict[str, str], ours: dict[str, str]) -> int:
    """Print the differences; return how many tests pass with torch's classes only."""
    passed = [name for name, result in own.items() if result == "passed"]
    lost = [name for name in passed if ours.get(name) != "passed"]
    print(f"{file}: {len(passed) - len(lost)} of {len(passed)} pass; {len(own) - len(passed)} others", flush=True)
    for name in lost:
        print(f"    {name}: {ours.get(name, 'did not run')}", flush=True)
    return len(lost)


if __name__ == "__main__":
    sys.exit(main())
