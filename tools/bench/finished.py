# SPDX-License-Identifier: BSD-3-Clause
"""Bytes of a finished run: as written, compacted, and compacted with finished=True.

A small network is trained by AdamW. Prints the table of store/HISTORY.md, "Finished runs".
"""

import argparse
import tempfile
from pathlib import Path

import lmcstore
import torch


def train(shelf: lmcstore.Shelf, steps: int) -> None:
    """Take a snapshot after each step."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024),
        torch.nn.GELU(),
        torch.nn.Linear(1024, 1024),
        torch.nn.GELU(),
        torch.nn.Linear(1024, 8),
    )
    target = torch.nn.Linear(256, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        batch = torch.randn(64, 256)
        loss = (model(batch) - target(batch).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shelf.snapshot({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=step)


def measure(folder: Path, policy: str, steps: int) -> list[int]:
    """Return the bytes of the pool's payloads and metadata at each stage."""
    with lmcstore.open(folder / f"{policy}.pool", size="8GiB", background=False) as store:
        shelf = store["run"]
        shelf.policy = policy
        train(shelf, steps)
        sizes = [store.info()["live_bytes"]]
        digests = [snapshot.digest for snapshot in shelf]
        for finished in (False, True):
            shelf.compact(finished=finished)
            sizes.append(store.info()["live_bytes"])
        if [snapshot.digest for snapshot in shelf] != digests or store.verify()["damages"] != 0:
            raise SystemExit("the history has changed")
        return sizes


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder", type=Path, default=None, help="for the pools (default: a temporary one)")
    options = parser.parse_args()
    print("| policy | as written, MiB | compacted | finished | less |\n| --- | --: | --: | --: | --: |")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for policy in ("links=24", "links=off"):
            written, compacted, finished = measure(Path(folder), policy, options.steps)
            shown = " | ".join(f"{size / 2**20:.1f}" for size in (written, compacted, finished))
            print(f"| `{policy}` | {shown} | {100 * (1 - finished / compacted):.0f} % |")


if __name__ == "__main__":
    main()
