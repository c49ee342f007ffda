# SPDX-License-Identifier: BSD-3-Clause
"""Arrays and pytrees of JAX."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import killed
import lmcstore
import lmcstore.jax
import numpy as np
import optax
import pytest
from jax.tree_util import DictKey, register_pytree_with_keys


@pytest.fixture
def shelf(tmp_path: Path) -> Any:
    with lmcstore.open(tmp_path / "pool") as store:
        yield store["run"]


def a_tree() -> dict[str, Any]:
    params = {"dense": {"w": jnp.linspace(-1, 1, 12, dtype=jnp.bfloat16).reshape(3, 4)}, "list": [jnp.arange(3.0)]}
    optimizer = optax.chain(optax.clip(1.0), optax.adamw(1e-3))
    return {
        "params": params,
        "opt_state": optimizer.update(params, optimizer.init(params), params)[1],
        "key": jax.random.key(3),
        "old_key": jax.random.PRNGKey(4),
        "weak": jnp.asarray(2.5),
        "ints": jnp.asarray([1, 2], jnp.uint8),
        "fp8": jnp.asarray([1.5, 2], jnp.float8_e4m3fn),
        "empty": jnp.zeros((0, 3)),
        "numpy": np.arange(4),
        "none": None,
        "step": 7,
        "name": "run",
    }


def emptied(tree: Any) -> Any:
    def empty(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        return leaf * 0 if isinstance(leaf, jax.Array) else np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else 0

    return jax.tree.map(empty, tree)


def same(left: Any, right: Any) -> bool:
    if jax.tree.structure(left) != jax.tree.structure(right):
        return False

    def data(leaf: Any) -> Any:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        if type(one) is not type(other) or getattr(one, "weak_type", None) != getattr(other, "weak_type", None):
            return False
        if getattr(one, "dtype", None) != getattr(other, "dtype", None) or data(one).tobytes() != data(other).tobytes():
            return False
    return True


@pytest.mark.parametrize("form", [dict, lmcstore.jax.state_of])
@pytest.mark.parametrize("options", [{}, {"wait": False}, {"wait": False, "lazy": True}])
def test_a_tree_is_loaded_as_it_was_saved(shelf: Any, form: Any, options: dict[str, Any]) -> None:
    tree = a_tree()
    snapshot = shelf.snapshot(form(tree), step=7, **options)
    snapshot.wait()
    loaded = lmcstore.jax.load(snapshot, emptied(tree))
    assert same(loaded, tree)
    assert shelf.snapshot(loaded).parent == snapshot.number
    assert "opt_state.1.0.mu.dense.w" in snapshot.names()


def test_a_donated_array_is_saved_as_it_was(shelf: Any) -> None:
    change = jax.jit(lambda x: x * 3 + 1, donate_argnums=0)
    array = change(jnp.arange(1 << 20, dtype=jnp.float32))
    for _ in range(5):
        wanted = np.array(array)
        snapshot = shelf.snapshot({"x": array}, wait=False, lazy=True)
        array = change(array)
        assert snapshot.wait().state_dict()["x"].tobytes() == wanted.tobytes()
        loaded = lmcstore.jax.load(snapshot, {"x": array})["x"]
        change(loaded).block_until_ready()
        assert snapshot.state_dict()["x"].tobytes() == wanted.tobytes()


def test_loaded_arrays_outlive_the_pool(tmp_path: Path) -> None:
    with lmcstore.open(tmp_path / "pool") as store:
        store["run"].snapshot({"x": jnp.arange(1000.0)})
        loaded = lmcstore.jax.load(store["run"].latest, {"x": jax.ShapeDtypeStruct((1000,), jnp.float32)})["x"]
    (tmp_path / "pool").unlink()
    assert loaded.sum() == 499500


def test_a_part_of_a_state_is_read(shelf: Any) -> None:
    tree = a_tree()
    shelf.snapshot(tree)
    assert same(lmcstore.jax.load(shelf.latest, {"opt_state": tree["opt_state"]})["opt_state"], tree["opt_state"])
    assert lmcstore.jax.load(shelf.latest, {"step": 0, "new": 5}, strict=False) == {"step": 7, "new": 5}


@pytest.mark.parametrize(
    ("like", "error", "text"),
    [
        ({"w": jnp.ones((2, 3)), "z": 1}, lmcstore.NotFoundError, "run@1 lacks 'z' of the tree"),
        ({"w": jnp.ones((3, 2))}, lmcstore.InvalidError, r"w: the snapshot's shape is \(2, 3\), the tree's \(3, 2\)"),
        ({"w": jnp.ones((2, 3), jnp.int32)}, lmcstore.InvalidError, "w: the snapshot's dtype is float32"),
        ({"w": 3}, lmcstore.InvalidError, "w: the snapshot has an array where the tree has 3"),
        ({"n": jnp.ones(3)}, lmcstore.InvalidError, "n: the snapshot has no array of NumPy or JAX there, but an int"),
        ({"d": {"a": 1}}, lmcstore.InvalidError, "run@1 has 'd.b', which the tree lacks: strict=False"),
        (jnp.ones(3), lmcstore.InvalidError, "the tree is a single leaf"),
    ],
)
def test_a_tree_that_does_not_fit_is_refused(shelf: Any, like: Any, error: Any, text: str) -> None:
    shelf.snapshot({"w": jnp.ones((2, 3)), "n": 4, "d": {"a": 1, "b": 2}})
    with pytest.raises(error, match=text):
        lmcstore.jax.load(shelf.latest, like)


def test_arrays_that_cannot_be_read_are_refused_by_their_paths(shelf: Any) -> None:
    with pytest.raises(lmcstore.UnsupportedError, match=r"a\.b: a JAX array can't be stored: .*traced"):
        jax.jit(lambda x: shelf.snapshot({"a": {"b": x}}))(jnp.ones(3))
    array = jnp.ones(3)
    array.delete()
    with pytest.raises(lmcstore.UnsupportedError, match=r"a\.b: a JAX array can't be stored: .*deleted"):
        shelf.snapshot({"a": {"b": array}})
    assert shelf.latest is None


def test_two_leaves_of_one_path_are_refused() -> None:
    class Twice:
        pass

    register_pytree_with_keys(Twice, lambda _: (((DictKey("x"), 1), (DictKey("x"), 2)), None), lambda _, __: Twice())
    with pytest.raises(lmcstore.InvalidError, match=r"two leaves of the tree have the path a\.x"):
        lmcstore.jax.state_of({"a": Twice()})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Config:
    scale: Any
    width: int = dataclasses.field(metadata={"static": True}, default=3)


def test_dataclasses(shelf: Any) -> None:
    tree = {"config": Config(jnp.ones(2), 5)}
    shelf.snapshot(lmcstore.jax.state_of(tree))
    loaded = lmcstore.jax.load(shelf.latest, {"config": Config(jnp.zeros(2), 5)})
    assert loaded["config"].width == 5 and loaded["config"].scale.sum() == 2
    shelf.snapshot(tree)
    with pytest.raises(lmcstore.InvalidError, match=r"has 'config.width', which the tree lacks"):
        lmcstore.jax.load(shelf.latest, tree)
    assert lmcstore.jax.load(shelf.latest, tree, strict=False)["config"].scale.sum() == 2


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    killed.run_page("JAX.md")


def test_the_example_is_killed_and_resumed(tmp_path: Path) -> None:
    once = killed.output("jax_digits.py", tmp_path / "once.pool", "--steps", 12)
    killed.kill_after("step 8", "jax_digits.py", tmp_path / "twice.pool", "--steps", 12)
    twice = killed.output("jax_digits.py", tmp_path / "twice.pool", "--steps", 12)
    assert twice[0].startswith("resuming at step ") and 0 < int(twice[0].split()[-1]) <= 9
    assert twice[1:] == once[-len(twice) + 1 :]
