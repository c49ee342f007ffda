# SPDX-License-Identifier: BSD-3-Clause
"""Training of Keras: on JAX where it is installed, else on torch."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax" if find_spec("jax") else "torch"

import keras
import killed
import lmcstore
import numpy as np
import pytest
from lmcstore.keras import SnapshotCallback


class Stop(Exception):
    pass


class Stopper(keras.callbacks.Callback):
    """Raises after so many batches; notes each epoch's logs."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches
        self.logs: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stop

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logs.append((epoch, {name: float(value) for name, value in logs.items()}))


def a_model(optimizer: Any = None, width: int = 6, **options: Any) -> Any:
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(width), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    )
    model.compile(optimizer or keras.optimizers.Adam(1e-2), "mse", metrics=["mae"], **options)
    return model


X = np.random.default_rng(0).normal(size=(44, 5)).astype("float32")
Y = X.sum(1, keepdims=True)


def fit(model: Any, *callbacks: Any, epochs: int = 3, **options: Any) -> Any:
    options = {"x": X, "y": Y, "batch_size": 8, "verbose": 0, "validation_data": (X[:8], Y[:8])} | options
    return model.fit(epochs=epochs, callbacks=list(callbacks), **options)


def bits(model: Any) -> list[bytes]:
    return [variable.numpy().tobytes() for variable in [*model.variables, *model.optimizer.variables]]


def uninterrupted(make: Any = a_model, **options: Any) -> tuple[list[bytes], list[Any]]:
    model, watch = make(), Stopper(-1)
    fit(model, watch, **options)
    return bits(model), watch.logs


def sgd() -> Any:
    return a_model(keras.optimizers.SGD(1e-2, momentum=0.9))


def scheduled() -> Any:
    return a_model(keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(1e-2, 20), use_ema=True))


@pytest.mark.parametrize(
    ("make", "every", "batches"),
    [(a_model, "epoch", 8), (scheduled, 1, 9), (sgd, 4, 11), (a_model, 1, 1)],
)
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, make: Any, every: Any, batches: int) -> None:
    wanted, logs = uninterrupted(make)
    with pytest.raises(Stop), SnapshotCallback(tmp_path / "pool", every=every) as snapshots:
        fit(make(), snapshots, Stopper(batches))
    model, watch = make(), Stopper(-1)
    np.random.seed(99)
    fit(model, SnapshotCallback(tmp_path / "pool", every=every), watch)
    assert bits(model) == wanted
    assert watch.logs == logs[-len(watch.logs) :]
    assert len(watch.logs) == 3 - (batches - 1) // 6


def test_every_snapshot_can_be_continued_from(tmp_path: Path) -> None:
    wanted, _ = uninterrupted(epochs=2)
    fit(a_model(), SnapshotCallback(tmp_path / "pool", every=1), epochs=2)
    with lmcstore.open(tmp_path / "pool") as store:
        places = [(one["epoch"], one["batch"]) for one in store["run"]]
        assert places == [(number // 6, number % 6) for number in range(1, 13)]
        for number in (3, 6, 10, 12):
            store["run"][number].fork(f"from-{number}")
            model = a_model()
            fit(model, SnapshotCallback(store, shelf=f"from-{number}", every=2), epochs=2)
            assert bits(model) == wanted


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="torch has no steps_per_execution")
def test_several_batches_at_once(tmp_path: Path) -> None:
    def make() -> Any:
        return a_model(steps_per_execution=4)

    wanted, logs = uninterrupted(make)
    with pytest.raises(Stop), SnapshotCallback(tmp_path / "pool", every=1) as snapshots:
        fit(make(), snapshots, Stopper(4))
    with lmcstore.open(tmp_path / "pool", "r") as store:
        assert [(one["epoch"], one["batch"]) for one in store["run"]] == [(0, 4), (1, 0), (1, 4)]
    model, watch = make(), Stopper(-1)
    fit(model, SnapshotCallback(tmp_path / "pool", every=1), watch)
    assert bits(model) == wanted and watch.logs == logs[1:]


def test_a_finished_run_trains_nothing_and_more_epochs_continue(tmp_path: Path) -> None:
    wanted, _ = uninterrupted(epochs=4)
    fit(a_model(), SnapshotCallback(tmp_path / "pool"), epochs=2)
    model = a_model()
    snapshots = SnapshotCallback(tmp_path / "pool")
    assert fit(model, snapshots, epochs=2).epoch == []
    assert fit(model, snapshots, epochs=4).epoch == [2, 3]
    assert bits(model) == wanted
    assert fit(model, epochs=1).epoch == [0]  # without the callback


def test_data_of_unknown_length(tmp_path: Path) -> None:
    class Data(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            noise = np.random.normal(size=(8, 5)).astype("float32")
            return X[index * 8 : index * 8 + 8] + noise, Y[index * 8 : index * 8 + 8]

    def batches() -> Any:
        while True:
            yield from iter([(X[:8], Y[:8]), (X[8:16], Y[8:16])])

    for data, options in ((Data, {}), (batches, {"steps_per_epoch": 4})):
        options |= {"y": None, "batch_size": None, "validation_data": None}
        wanted, logs = uninterrupted(x=data(), **options)
        path = tmp_path / f"{data.__name__}.pool"
        with pytest.raises(Stop), SnapshotCallback(path, every=1) as snapshots:
            fit(a_model(), snapshots, Stopper(7), x=data(), **options)
        model, watch = a_model(), Stopper(-1)
        fit(model, SnapshotCallback(path, every=1), watch, x=data(), **options)
        assert bits(model) == wanted and watch.logs == logs[1:]


def test_the_properties_of_a_snapshot(tmp_path: Path) -> None:
    with lmcstore.open(tmp_path / "pool") as store:
        fit(a_model(), SnapshotCallback(store, shelf="a", metrics=["val_loss"], policy="keep=last:2"))
        assert store["a"].latest.step == 18 and store["a"].latest.metrics.keys() == {"val_loss"}
        assert "keep=last:2" in str(store["a"].policy)
        with pytest.raises(Stop):
            fit(a_model(), SnapshotCallback(store, shelf="b", wait=True, every=2, rng=False), Stopper(5))
        assert [one.step for one in store["b"]] == [2, 4]
        assert "rng" not in store["b"].latest
        assert store["b"].latest.metrics.keys() == {"loss", "mae"}


def test_a_model_that_does_not_fit_is_refused_and_not_changed(tmp_path: Path) -> None:
    fit(a_model(), SnapshotCallback(tmp_path / "pool"), epochs=1)
    for make, text in (
        (lambda: a_model(width=7), r"dense/kernel: the snapshot's shape is \(5, 6\), the model's \(5, 7\)"),
        (sgd, "run@1 lacks 'optimizer_variables/sgd/iteration'.* of the model, and has .*adam"),
    ):
        model = make()
        model.build((None, 5))
        before = [variable.numpy().tobytes() for variable in model.variables]
        with SnapshotCallback(tmp_path / "pool") as snapshots, pytest.raises(lmcstore.Error, match=text):
            fit(model, snapshots, epochs=2)
        assert [variable.numpy().tobytes() for variable in model.variables] == before
    model = a_model()
    keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    numbered = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    numbered.compile("adam", "mse")
    with SnapshotCallback(tmp_path / "pool") as snapshots, pytest.raises(lmcstore.Error, match="clear_session"):
        fit(numbered, snapshots, epochs=2)


def test_wrong_use(tmp_path: Path) -> None:
    with lmcstore.open(tmp_path / "pool") as store:
        store["run"].snapshot({"model": 1})
        with pytest.raises(lmcstore.InvalidError, match="run@1 was not saved by SnapshotCallback"):
            fit(a_model(), SnapshotCallback(store))
    with lmcstore.open(tmp_path / "pool", "r") as store, pytest.raises(lmcstore.ReadOnlyError):
        fit(a_model(), SnapshotCallback(store, shelf="new"))
    for every in (0, -1, "batch", 1.5):
        with pytest.raises(lmcstore.Error, match="every"):
            SnapshotCallback(tmp_path / "pool", every=every)


def test_a_failed_snapshot_is_reported(tmp_path: Path) -> None:
    with pytest.raises(lmcstore.FullError), lmcstore.open(tmp_path / "pool", size="8MiB") as store:
        fit(a_model(width=200_000), SnapshotCallback(store), epochs=3)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    killed.run_page("KERAS.md")


def test_the_example_is_killed_and_resumed(tmp_path: Path) -> None:
    once = killed.output("keras_digits.py", tmp_path / "once.pool", "--epochs", 3)
    killed.kill_after("batch 1 6", "keras_digits.py", tmp_path / "twice.pool", "--epochs", 3)
    with lmcstore.open(tmp_path / "twice.pool", "r") as store:
        assert store["run"].latest.step in (3, 6, 8, 11, 14)
    twice = killed.output("keras_digits.py", tmp_path / "twice.pool", "--epochs", 3)
    assert twice[-1] == once[-1]
    assert [line for line in twice if "epoch 2" in line] == [line for line in once if "epoch 2" in line]
