# SPDX-License-Identifier: BSD-3-Clause
"""Two builds of lmcstore write to one pool in turn, and each reads all that both wrote.

turns.py FOLDER PYTHON PYTHON...    each PYTHON has a build of its own
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROUNDS = 3

TURN = """
import hashlib, sys, warnings
warnings.simplefilter("ignore")
import lmcstore

path, turn = sys.argv[1], int(sys.argv[2])

def state_of(step):
    noise = b"".join(hashlib.sha256(b"%d %d" % (step // 2, i)).digest() for i in range(10_000))
    return {"step": step, "noise": noise, "text": "ä" * step}

with lmcstore.open(path, size="64MiB") as store:
    shelf = store["run"]
    assert store.verify()["damages"] == 0
    assert [s.step for s in shelf] == list(range(2 * turn))
    for step in range(2 * turn):
        assert shelf.at(step=step).state_dict() == state_of(step), step
    for step in (2 * turn, 2 * turn + 1):
        shelf.snapshot(state_of(step), step=step)
    shelf.tag(2 * turn + 1, f"turn-{turn}")
    assert shelf.live["turn"] == turn - 1 if turn else "turn" not in shelf.live
    shelf.live["turn"] = turn
    store.compact()
    assert store.scrub(repair=True)["damages"] == 0
    print(f"turn {turn}: {len(shelf)} snapshots, by {lmcstore._core.__file__}")
"""


def main() -> None:
    pool, pythons = Path(sys.argv[1]) / "turns.pool", sys.argv[2:]
    pool.unlink(missing_ok=True)
    for turn in range(ROUNDS * len(pythons)):
        subprocess.run([pythons[turn % len(pythons)], "-P", "-c", TURN, str(pool), str(turn)], check=True)


if __name__ == "__main__":
    main()
