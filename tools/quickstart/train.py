# SPDX-License-Identifier: BSD-3-Clause
"""Trains the small GPT and snapshots everything after every step: a trainer as a user would write it.

    .venv/bin/python tools/quickstart/train.py --text FILE --pool run.pool --steps 24

Run again, after a crash or with more steps, it resumes from the pool. Without --pool it saves nothing: the quickstart
compares with that uninterrupted run.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import torch
from model import CONTEXT, GPT

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))
from states import Randomness, state_digest

BATCH = 8


def batch_of(text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw random inputs and, one byte on, targets: (BATCH, CONTEXT)."""
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,)).tolist()
    windows = torch.stack([text[i : i + CONTEXT + 1] for i in starts]).long()
    return windows[:, :-1], windows[:, 1:]


def options_of() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", required=True, help="the file to learn from")
    parser.add_argument("--steps", type=int, required=True, help="train steps 0 to STEPS - 1")
    parser.add_argument("--pool", help="snapshot into this pool, shelf 'gpt'")
    parser.add_argument("--from-step", type=int, help="rewind: load this step of the pool, and save nothing")
    parser.add_argument("--digests", help="write the digest of the state after each step to this JSON file")
    return parser.parse_args()


def main() -> None:
    """Train from the newest snapshot or the start."""
    options = options_of()
    torch.manual_seed(1234)
    random.seed(1234)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(2)  # fixed: another order of sums rounds differently

    text = torch.frombuffer(bytearray(Path(options.text).read_bytes()), dtype=torch.uint8)
    model = GPT()
    # Fused, for bit-identical runs: else one process in 25 rounded its first step's first parameter differently (torch
    # 2.13, MKL's root on two threads).
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
    rng = Randomness()

    start, shelf, newest, digests = 0, None, None, {}
    if options.pool:
        import lmcstore

        store = lmcstore.open(options.pool, mode="a" if options.from_step is None else "r")
        shelf = store["gpt"]
        found = shelf.latest if options.from_step is None else shelf.at(step=options.from_step)
        if found:
            loaded = found.load_into(model=model, optimizer=optimizer, scheduler=scheduler, rng=rng)
            start = loaded.step + 1
        print(f"resuming at step {start} from {store.path}" if found else f"new run in {store.path}", flush=True)

    for step in range(start, options.steps):
        print(f"step {step:3d} ...", end="", flush=True)
        begin = time.perf_counter()
        loss = model.loss(*batch_of(text))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(f" loss {loss.item():.4f}, {time.perf_counter() - begin:.2f} s", end="", flush=True)

        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": rng.state_dict(),
        }
        if shelf is not None and options.from_step is None:
            if newest:
                newest.wait()
                print(f"; gpt@{newest.number} durable", end="", flush=True)
            newest = shelf.snapshot(state, step=step, metrics={"loss": loss.item()}, wait=False)
            print(f"; gpt@{newest.number} begun", end="", flush=True)
        if options.digests:
            digests[step] = state_digest(state)
        print(flush=True)

    if newest:
        newest.wait()
        print(f"gpt@{newest.number} durable", flush=True)
    if options.digests:
        Path(options.digests).write_text(json.dumps(digests))


if __name__ == "__main__":
    main()
