# SPDX-License-Identifier: BSD-3-Clause
"""Relations from Python: declared optimizer steps are stored by links."""

from __future__ import annotations

import struct

import lmcstore
import numpy as np
import pytest

SGD = 2


def _fma(a: np.ndarray, x: float, b: np.ndarray) -> np.ndarray:
    """Round once: a product of two f32 and a sum with a third are exact enough in f64 here."""
    return (a.astype(np.float64) * np.float64(np.float32(x)) + b.astype(np.float64)).astype(np.float32)


def test_steps_are_linked(pool_path: str) -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(0, 0.02, 40000).astype(np.float32)
    buffer = np.zeros_like(weight)
    states = []
    with lmcstore.open(pool_path, size="256MiB") as store:
        shelf = store["run"]
        shelf.policy = "keep_raw=1 links=8"
        for step in range(6):
            gradient = (rng.integers(-128, 128, weight.size) / 4096).astype(np.float32)
            buffer = buffer * np.float32(0.9) + gradient
            weight = _fma(buffer, -0.05, weight)
            states.append((buffer.copy(), weight.copy()))
            capture = store._pool.begin("run")
            capture.relate(("buffer", "weight"), SGD, 0, (0.0, 0.05, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0))
            for name, array in (("buffer", buffer), ("weight", weight)):
                room = memoryview(capture.reserve(name, 12, struct.pack("=Q", array.size)))
                room.cast("B")[:] = array.tobytes()
            capture.commit(step, 0, 0, (), (), (), None, False)
        store.compact()
        storage = shelf[4].storage()
        assert storage["link_contents"] == 2
        assert storage["longest_line"] == 3
        assert storage["links_note"] is None
        assert storage["stored_bytes"] < 0.5 * shelf[4].raw_bytes
        assert {entry["stored_as"] for entry in shelf[4].entries()} == {"link"}
        for number, (old_buffer, old_weight) in enumerate(states, 1):
            np.testing.assert_array_equal(dict(shelf[number].tensors())["buffer"], old_buffer)
            np.testing.assert_array_equal(dict(shelf[number].tensors())["weight"], old_weight)
        store.verify()


def test_relations_that_make_no_sense(pool_path: str) -> None:
    constants = (0.0, 0.05, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0)
    with lmcstore.open(pool_path, size="64MiB") as store:
        capture = store._pool.begin("run")
        with pytest.raises(lmcstore.Error, match="has 2 tensors"):
            capture.relate(("a", "b", "c"), SGD, 0, constants)
        with pytest.raises(lmcstore.Error, match="no optimizer"):
            capture.relate(("a", "b"), 77, 0, constants)
        with pytest.raises(lmcstore.Error, match="finite"):
            capture.relate(("a", "b"), SGD, 0, (float("nan"), *constants[1:]))
        with pytest.raises(ValueError, match="2 to 4"):
            capture.relate(tuple("abcde"), SGD, 0, constants)
        with pytest.raises(TypeError):
            capture.relate(("a", 3), SGD, 0, constants)  # type: ignore[arg-type]
        capture.abort()
