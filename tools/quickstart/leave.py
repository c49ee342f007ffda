# SPDX-License-Identifier: BSD-3-Clause
"""Part 4: return to an early step, export an archive and safetensors."""

import json
import os
import sys
from pathlib import Path

from history import TOOL
from report import TRAIN, WITH_TORCH, command, expect, heading, mb, say
from states import disk_bytes


def _digests(pool: Path) -> list[tuple[int, str]]:
    """Return snapshots' numbers and digests."""
    import lmcstore

    with lmcstore.open(str(pool), mode="r") as store:
        return [(snap.number, snap.digest) for snap in store["gpt"]]


def _rewind(text: Path, pool: Path, work: Path, expected: dict[int, str]) -> None:
    early = 2
    say(f"Rewind: a new process loads step {early} and trains step {early + 1} again (nothing is saved).")
    again = work / "again.json"
    words = ["--text", text, "--pool", pool, "--from-step", early, "--steps", early + 2, "--digests", again]
    for line in command([sys.executable, TRAIN, *words], quiet=True).splitlines():
        say(f"  {line}")
    expect(
        json.loads(again.read_text())[str(early + 1)] == expected[early + 1],
        f"step {early + 1}, trained again from step {early} out of the pool, is bit-identical to the first time",
    )


def _archive(pool: Path, work: Path) -> None:
    archive, copy = work / "gpt.lmca", work / "copy.pool"
    say("Archive: the whole shelf, links and deltas as they are, into one file; and from it into a fresh pool.")
    command([TOOL, "dump", pool, "gpt", "-o", archive])
    say(f"{mb(os.path.getsize(archive))} MB in the archive")
    command([TOOL, "restore", archive, copy])
    ours, theirs = _digests(pool), _digests(copy)
    expect(len(ours) > 0 and ours == theirs, f"all {len(ours)} snapshots of the fresh pool have the same digests")
    archive.unlink()
    copy.unlink()


def _export(pool: Path, work: Path) -> None:
    import lmcstore

    exported = work / "model.safetensors"
    say("Export: the model of the newest step, for everybody else.")
    command([TOOL, "export", pool, "gpt@latest", "--part", "model", "-o", exported])
    with lmcstore.open(str(pool), mode="r") as store:
        ours = store["gpt"].latest["model"]
        if WITH_TORCH:
            import torch
            from model import GPT
            from safetensors.torch import load_file

            model = GPT()
            model.load_state_dict(load_file(exported))
            same = all(torch.equal(tensor, ours[name]) for name, tensor in model.state_dict().items())
        else:
            from safetensors.numpy import load_file

            same = all((array == ours[name]).all() for name, array in load_file(exported).items())
    taker = "model.load_state_dict(load_file(...))" if WITH_TORCH else "safetensors.numpy.load_file"
    expect(same, f"{taker} loads it ({mb(disk_bytes(exported))} MB), equal in every bit")


def leave(text: Path, pool: Path, work: Path, expected: dict[int, str]) -> None:
    """Show part 4."""
    heading(4, "Back, and out: rewind, archive, safetensors")
    _rewind(text, pool, work, expected)
    say()
    _archive(pool, work)
    say()
    _export(pool, work)
