# SPDX-License-Identifier: BSD-3-Clause
"""A network in Keras that can be ended at any time, and started again.

Run it::

    KERAS_BACKEND=jax python keras_digits.py run.pool --epochs 4
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import keras
import numpy as np
from lmcstore.keras import SnapshotCallback


class Lines(keras.callbacks.Callback):
    """Prints a line for each batch and epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Print the loss of the epoch so far."""
        print("batch", self.epoch, batch, f"{float(logs['loss']):.9g}", flush=True)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self.epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Print the losses."""
        print("epoch", epoch, *(f"{float(logs[name]):.9g}" for name in ("loss", "val_loss")), flush=True)


def main() -> None:
    """Train, from the last snapshot on."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("pool", help="path of the pool")
    arguments.add_argument("--epochs", type=int, default=4)
    options = arguments.parse_args()
    numbers = np.random.default_rng(0)
    inputs = numbers.normal(size=(320, 16)).astype("float32")
    labels = inputs[:, :4].argmax(1)
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    with SnapshotCallback(options.pool, every=3) as snapshots:
        model.fit(
            inputs,
            labels,
            batch_size=32,
            epochs=options.epochs,
            validation_split=0.2,
            callbacks=[snapshots, Lines()],
            verbose=0,
        )
    digest = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        digest.update(variable.numpy().tobytes())
    print("variables", digest.hexdigest())


if __name__ == "__main__":
    main()
