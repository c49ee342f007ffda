# SPDX-License-Identifier: BSD-3-Clause
"""Trains a small model of bytes with NumPy alone and snapshots everything after every step.

    .venv/bin/python tools/quickstart/train_numpy.py --text FILE --pool run.pool --steps 24

The quickstart runs it without PyTorch; train.py has the same options. The model predicts a byte from the previous 32:
embedding, one hidden layer, softmax; 2.3 M fp32 parameters, trained by AdamW.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))
from states import state_digest

CONTEXT, WIDTH, HIDDEN, BATCH = 32, 48, 1280, 512
RATE, DECAY, BETA_1, BETA_2 = 1e-3, 0.1, 0.9, 0.999
Arrays = dict[str, np.ndarray]


def new_model(rng: np.random.Generator) -> Arrays:
    """Return the initial parameters."""
    shapes = {"token": (256, WIDTH), "hidden": (CONTEXT * WIDTH, HIDDEN), "head": (HIDDEN, 256)}
    return {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}


def gradients(model: Arrays, data: np.ndarray, target: np.ndarray) -> tuple[float, Arrays]:
    """Return the mean cross entropy, and the gradients."""
    tokens = model["token"][data].reshape(len(data), -1)
    hidden = np.tanh(tokens @ model["hidden"])
    logits = hidden @ model["head"]
    logits -= logits.max(1, keepdims=True)
    odds = np.exp(logits)
    odds /= odds.sum(1, keepdims=True)
    rows = np.arange(len(data))
    loss = float(-np.log(odds[rows, target]).mean())
    odds[rows, target] -= 1
    odds /= len(data)
    below = (odds @ model["head"].T) * (1 - hidden**2)
    token = np.zeros_like(model["token"])
    np.add.at(token, data, (below @ model["hidden"].T).reshape(*data.shape, WIDTH))
    return loss, {"token": token, "hidden": tokens.T @ below, "head": hidden.T @ odds}


def adamw(model: Arrays, optimizer: dict, gradient: Arrays) -> None:
    """Take a step in place."""
    optimizer["step"] += 1
    bias_1, bias_2 = 1 - BETA_1 ** optimizer["step"], 1 - BETA_2 ** optimizer["step"]
    for name, weight in model.items():
        m, v = optimizer["state"][name].values()
        m += (1 - BETA_1) * (gradient[name] - m)
        v += (1 - BETA_2) * (gradient[name] ** 2 - v)
        weight *= 1 - RATE * DECAY
        weight -= RATE / bias_1 * m / (np.sqrt(v / bias_2) + 1e-8)


def copied(state: dict) -> dict:
    """Return the state with writable copies of mapped arrays."""
    return {
        key: copied(value) if isinstance(value, dict) else value.copy() if isinstance(value, np.ndarray) else value
        for key, value in state.items()
    }


def parse_options() -> argparse.Namespace:
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
    options = parse_options()
    text = np.frombuffer(Path(options.text).read_bytes(), np.uint8)
    rng = np.random.default_rng(1234)
    model = new_model(rng)
    moments = {name: {key: np.zeros_like(model[name]) for key in ("exp_avg", "exp_avg_sq")} for name in model}
    state = {"model": model, "optimizer": {"step": 0, "state": moments}}

    start, shelf, digests = 0, None, {}
    if options.pool:
        import lmcstore

        store = lmcstore.open(options.pool, mode="a" if options.from_step is None else "r")
        shelf = store["gpt"]
        found = shelf.latest if options.from_step is None else shelf.at(step=options.from_step)
        if found:
            state = copied(found.state_dict())
            rng.bit_generator.state = state["rng"]
            start = found.step + 1
        print(f"resuming at step {start} from {store.path}" if found else f"new run in {store.path}", flush=True)

    for step in range(start, options.steps):
        print(f"step {step:3d} ...", end="", flush=True)
        begin = time.perf_counter()
        windows = text[rng.integers(len(text) - CONTEXT - 1, size=(BATCH, 1)) + np.arange(CONTEXT + 1)]
        loss, gradient = gradients(state["model"], windows[:, :-1], windows[:, -1])
        adamw(state["model"], state["optimizer"], gradient)
        print(f" loss {loss:.4f}, {time.perf_counter() - begin:.2f} s", end="", flush=True)
        state["rng"] = rng.bit_generator.state
        if shelf is not None and options.from_step is None:
            begin = time.perf_counter()
            snap = shelf.snapshot(state, step=step, metrics={"loss": loss})
            print(f"; gpt@{snap.number} durable after {time.perf_counter() - begin:.3f} s", end="", flush=True)
        if options.digests:
            digests[step] = state_digest(state)
        print(flush=True)

    if options.digests:
        Path(options.digests).write_text(json.dumps(digests))


if __name__ == "__main__":
    main()
