# SPDX-License-Identifier: BSD-3-Clause
"""What scrubbing and parity cost: bytes, and time beside that of reading the same file.

tools/bench.sh parity [--mib 512] [--in FOLDER]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import lmcstore
import numpy as np


def timed(call) -> float:
    """Give the seconds that a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def read_raw(array: np.ndarray, path: Path) -> float:
    """Give the seconds that it takes to read as many bytes from a file in the page cache."""
    path.write_bytes(array.tobytes())
    buffer = bytearray(1 << 20)

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    return timed(read)


def main() -> None:
    """Print a table: one row for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--in", dest="folder", default=tempfile.gettempdir())
    arguments = parser.parse_args()
    size = arguments.mib << 20
    state = {f"w{i}": np.random.default_rng(i).standard_normal(size // 4 // 8, dtype=np.float32) for i in range(8)}
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="lmcs-parity-") as folder:
        baseline = read_raw(np.concatenate(list(state.values())), Path(folder) / "raw")
        os.unlink(Path(folder) / "raw")
        print(f"{arguments.mib} MiB in 8 tensors, {arguments.folder}; read(2) of as much takes {baseline:.2f} s")
        print(f"{'policy':>14} {'parity bytes':>13} {'made in':>9} {'scrub':>9}")
        for policy in ("parity=none", "parity=64+2", "parity=16+1", "parity=16+2", "parity=8+2"):
            with lmcstore.open(Path(folder) / policy, background=False) as store:
                store["run"].snapshot(state)
                scrub = timed(store.scrub)
                store["run"].policy = policy
                made = timed(lambda store=store: store.scrub(repair=True)) - scrub
                share = store.info()["parity_bytes"] / size
                scrub = timed(store.scrub)
                print(f"{policy:>14} {share:>12.2%} {max(made, 0):>7.2f} s {scrub:>7.2f} s")
            os.unlink(Path(folder) / policy)


if __name__ == "__main__":
    main()
