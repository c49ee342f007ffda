# SPDX-License-Identifier: BSD-3-Clause
"""Measures the codec of a wheel (tools/wheel.sh) beside that of the system's compiler, in turn.

Run by tools/bench.sh wheel WHEEL, after tools/setup.sh, whose .venv/ has the other build.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from builds import in_turn, run
from tables import processor, progress, table

CODEC = """
import json, sys, time, zlib, ml_dtypes, numpy as np
from lmcstore import codec
random = np.random.default_rng(1)
base = (random.standard_normal(8 << 20, np.float32) * np.float32(0.02)).astype(sys.argv[1])
step = (base.astype(np.float32) + random.standard_normal(base.size, np.float32) * np.float32(1e-5)).astype(sys.argv[1])
def best(call):
    times = []
    for _ in range(7):
        begun = time.process_time()
        result = call()
        times.append(time.process_time() - begun)
    return min(times), result
found = {}
found["compress_s"], frame = best(lambda: codec.compress(step, threads=1))
found["decompress_s"], raw = best(lambda: codec.decompress(frame, threads=1))
found["delta_s"], delta = best(lambda: codec.compress(step, base=base, threads=1))
found["undelta_s"], again = best(lambda: codec.decompress(delta, base=base, threads=1))
assert raw == again == step.tobytes()
print(f"kernels {codec.kernels}, frames {zlib.crc32(bytes(frame) + bytes(delta)):08x}", file=sys.stderr)
print(json.dumps(found))
"""


def codec_row(package: Path, folder: str, dtype: str) -> dict[str, float]:
    """Run the codec of a package: processor time, the best of 7."""
    return run([sys.executable, "-c", CODEC, dtype], PYTHONPATH=str(package))


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(prog="tools/bench.sh wheel", description=__doc__.split("\n")[0])
    parser.add_argument("wheel", type=Path, help="of tools/wheel.sh")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each build (5)")
    options = parser.parse_args()
    wheel = (Path(os.environ.get("BENCH_FROM", ".")) / options.wheel).resolve()
    with tempfile.TemporaryDirectory(prefix="lmcs-bench-") as folder:
        package, none = Path(folder) / "package", Path(folder) / "none"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps"]
        subprocess.run([*pip, "--target", str(package), str(wheel)], check=True)
        rows = []
        for dtype in ("float32", "bfloat16"):
            progress(dtype)
            rows += in_turn((dtype, codec_row, (dtype,)), (none, package), folder, options.rounds)
    print(f"{processor()}; one thread, 8 Mi elements; medians of {options.rounds} runs in turn\n")
    print(table(["", "system's compiler, ms", "wheel, ms", "ratio", "ratios of pairs"], rows))


if __name__ == "__main__":
    main()
