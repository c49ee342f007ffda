# SPDX-License-Identifier: BSD-3-Clause
"""Pytrees of JAX: saved as states of a shelf, and loaded into the structure of another one.

::

    shelf.snapshot({"params": params, "opt_state": opt_state}, step=step)
    loaded = lmcstore.jax.load(shelf.latest, {"params": params, "opt_state": opt_state})
    params, opt_state = loaded["params"], loaded["opt_state"]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy
from jax.tree_util import tree_flatten_with_path, tree_unflatten

from ._text.arguments import a_kind
from ._text.similar import listed, shown
from .errors import InvalidError, NotFoundError, UnsupportedError
from .snapshot import Snapshot

__all__ = ["load", "state_of"]

_Path = tuple[Any, ...]


def state_of(tree: Any) -> dict[Any, Any]:
    """Return the leaves of any pytree in nested dicts, by the keys of their paths, for `Shelf.snapshot`.

    Dicts, lists, tuples, namedtuples and dataclasses can be in a state as they are. This is for other nodes, such as
    Flax's TrainState and FrozenDict: what a class keeps beside its leaves is not saved. No array is copied.

    Raises
    ------
    InvalidError
        The tree is a single leaf, or two leaves have the same path.
    """
    state: dict[Any, Any] = {}
    for path, leaf in _leaves(tree)[0].items():
        place = state
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = leaf
    return state


def load(snapshot: Snapshot, like: Any, *, strict: bool = True) -> Any:
    """Load a state into the structure of a pytree, and make the snapshot the parent of the next one.

    Parameters
    ----------
    snapshot
        A snapshot of a pytree, or of its `state_of`.
    like
        A pytree of the same paths. A `jax.Array` or `jax.ShapeDtypeStruct` becomes an array of its shape, dtype,
        sharding and weak type, a NumPy array a new array, and a random key a key of its kind; other leaves are replaced
        by the stored ones. If it is a dict, only its keys are read of the state.
    strict
        False: leaves that the snapshot lacks stay as in `like`, and those that only the snapshot has are left out.

    Returns
    -------
    pytree
        A new tree of the structure of `like`, whose arrays keep no memory of the snapshot.

    Raises
    ------
    NotFoundError
        The snapshot lacks leaves, or was removed.
    InvalidError
        It has other leaves, too; or shapes, dtypes or kinds differ. The text has the path.
    DamagedError
        A checksum doesn't match.
    """
    wanted, structure = _leaves(like)
    keys = [key for key in like if key in list(snapshot)] if isinstance(like, dict) else None
    stored: dict[_Path, Any] = {}
    if keys is None:
        stored.update(_stored((), snapshot.state_dict(verify=True)))
    for key in keys or ():
        stored.update(_stored((key,), snapshot.state_dict((key,), verify=True)))
    lacking = [_text(path) for path in wanted if path not in stored]
    others = [_text(path) for path in stored if path not in wanted]
    if strict and lacking:
        raise NotFoundError(f"{snapshot._address} lacks {listed(lacking)} of the tree{_but(others)}")
    if strict and others:
        text = f"{snapshot._address} has {listed(others)}, which the tree lacks: strict=False leaves it out"
        raise InvalidError(text)
    leaves = [_leaf(path, target, stored.get(path, target)) for path, target in wanted.items()]
    snapshot._handle.mark_loaded()
    return tree_unflatten(structure, leaves)


def _but(others: list[str]) -> str:
    return f", and has {listed(others)}" if others else ""


def _leaves(tree: Any) -> tuple[dict[_Path, Any], Any]:
    """Return the leaves of a tree by the keys of their paths, and its structure."""
    found, structure = tree_flatten_with_path(tree)
    leaves: dict[_Path, Any] = {}
    for entries, leaf in found:
        path = tuple(map(_key, entries))
        if not path:
            raise InvalidError("the tree is a single leaf: put it into a dict")
        if path in leaves:
            raise InvalidError(f"two leaves of the tree have the path {_text(path)}")
        leaves[path] = leaf
    return leaves, structure


def _key(entry: Any) -> Any:
    for name in ("key", "name", "idx"):
        if hasattr(entry, name):
            return getattr(entry, name)
    raise UnsupportedError(f"the tree has a path by {shown(entry)}, which has no key, name or index")


def _stored(path: _Path, value: Any) -> Iterator[tuple[_Path, Any]]:
    """Yield the leaves of a state, without None, by their paths."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = zip(value._fields, value, strict=True)
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        if value is not None:
            yield path, value
        return
    for key, child in items:
        yield from _stored((*path, key), child)


def _leaf(path: _Path, target: Any, value: Any) -> Any:
    if value is target:
        return target
    if isinstance(target, jax.Array) and jax.numpy.issubdtype(target.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(target)
        return jax.random.wrap_key_data(_leaf(path, data, value), impl=jax.random.key_impl(target))
    if not isinstance(target, jax.Array | jax.ShapeDtypeStruct | numpy.ndarray | numpy.generic):
        if isinstance(value, numpy.ndarray):
            raise InvalidError(f"{_text(path)}: the snapshot has an array where the tree has {shown(target)}")
        return value
    if not isinstance(value, numpy.ndarray | numpy.generic):
        raise InvalidError(f"{_text(path)}: the snapshot has no array of NumPy or JAX there, but {a_kind(value)}")
    for what, is_, must in (("shape", value.shape, target.shape), ("dtype", value.dtype, target.dtype)):
        if is_ != must:
            raise InvalidError(f"{_text(path)}: the snapshot's {what} is {is_}, the tree's {must}")
    if isinstance(target, numpy.ndarray | numpy.generic):
        return numpy.array(value) if isinstance(target, numpy.ndarray) else value
    if isinstance(target, jax.Array) and target.weak_type:
        return target.at[...].set(value)
    return jax.device_put(value, target.sharding, may_alias=False)


def _text(path: _Path) -> str:
    return ".".join(map(str, path))
