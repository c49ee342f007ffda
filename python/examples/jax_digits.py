# SPDX-License-Identifier: BSD-3-Clause
"""A network in JAX and Optax whose every step is a snapshot: end it at any time, and start it again.

Run it::

    python jax_digits.py run.pool --steps 40
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import lmcstore
import lmcstore.jax
import numpy as np
import optax

OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


def begin() -> dict[str, Any]:
    """Return the state before the first step."""
    key, *keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "hidden": {"w": jax.random.normal(keys[0], (16, 32)).astype(jnp.bfloat16), "b": jnp.zeros(32)},
        "out": {"w": jax.random.normal(keys[1], (32, 4)), "b": jnp.zeros(4)},
    }
    return {"params": params, "opt_state": OPTIMIZER.init(params), "key": key}


def loss_of(params: Any, inputs: Any, labels: Any) -> Any:
    """Return the mean cross entropy."""
    hidden = jax.nn.relu(inputs @ params["hidden"]["w"] + params["hidden"]["b"])
    logits = hidden @ params["out"]["w"] + params["out"]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def train(state: Any) -> tuple[Any, Any]:
    """Make a step on a random batch; return the new state and the loss."""
    key, use = jax.random.split(state["key"])
    inputs = jax.random.normal(use, (64, 16))
    labels = inputs[:, :4].argmax(1)
    loss, gradients = jax.value_and_grad(loss_of)(state["params"], inputs, labels)
    updates, opt_state = OPTIMIZER.update(gradients, state["opt_state"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state, "key": key}, loss


def main() -> None:
    """Train, from the last snapshot on."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("pool", help="path of the pool")
    arguments.add_argument("--steps", type=int, default=40)
    options = arguments.parse_args()
    state, start = begin(), 0
    with lmcstore.open(options.pool) as store:
        shelf = store["run"]
        if shelf.latest is not None:
            state, start = lmcstore.jax.load(shelf.latest, state), shelf.latest.step + 1
            print("resuming at step", start)
        for step in range(start, options.steps):
            state, loss = train(state)
            shelf.snapshot(state, step=step, metrics={"loss": float(loss)}, wait=False)
            print("step", step, float(loss), flush=True)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(lmcstore.jax.state_of(state["params"])):
        digest.update(np.asarray(leaf).tobytes())
    print("parameters", digest.hexdigest())


if __name__ == "__main__":
    main()
