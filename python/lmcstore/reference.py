# SPDX-License-Identifier: BSD-3-Clause
"""References to snapshots, as experiment trackers keep them: the address and the digest in one URI.

``lmcstore:///work/run.pool?uuid=...&time=...&digest=...#run@12``
"""

from __future__ import annotations

import logging
import os
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from ._text.arguments import absolute, file_path
from ._text.similar import shown
from .errors import Error, InvalidError, NotFoundError
from .opening import open
from .snapshot import Snapshot

logger = logging.getLogger("lmcstore")

SCHEME = "lmcstore"


def reference(snapshot: Snapshot) -> str:
    """Return the URI of a snapshot, once it is durable.

    It has the pool's path and id, and the snapshot's address, time and `Snapshot.digest` of now, which changes with
    metrics and notes that are set later.
    """
    snapshot.wait()
    store = snapshot.shelf.store
    values = {"uuid": store._uuid.hex(), "time": str(snapshot._info["time_ns"]), "digest": snapshot.digest}
    path = quote(os.path.realpath(store.path))
    return f"{SCHEME}://{path}?{urlencode(values)}#{quote(f'{snapshot.shelf.name}@{snapshot.number}', safe='@')}"


def find(uri: str, pool: str | os.PathLike[str] | None = None) -> Snapshot:
    """Return the snapshot of a URI, in a store that is open for reading: ``find(uri).shelf.store``.

    Parameters
    ----------
    uri
        What `reference` has returned.
    pool
        Where the pool is now. Default: where it was.

    Raises
    ------
    NotFoundError
        There is no such pool or snapshot, or another pool or snapshot is in its place.
    InvalidError
        The URI is none of `reference`.
    """
    path, values, shelf, number = _parts(uri)
    place = path if pool is None else absolute(file_path(pool))
    store = open(place, "r")
    try:
        if store._uuid.hex() != values["uuid"]:
            raise NotFoundError(f"{place} is another pool than that of {uri}")
        found = store[shelf][number]
        if str(found._info["time_ns"]) != values["time"]:
            raise NotFoundError(f"{shelf}@{number} in {place} is another snapshot than that of {uri}")
        if "digest" in values and found.digest != values["digest"]:
            logger.info("%s@%d in %s: its metrics or its note were set since the reference", shelf, number, place)
    except Error:
        store.close()
        raise
    return found


def _parts(uri: str) -> tuple[str, dict[str, str], str, int]:
    """Return the path, the values, the shelf and the number of a URI."""
    try:
        parts = urlsplit(uri)
        values = {name: texts[0] for name, texts in parse_qs(parts.query).items()}
        shelf, at, number = unquote(parts.fragment).rpartition("@")
        if parts.scheme == SCHEME and at and number.isdigit() and {"uuid", "time"} <= values.keys():
            return unquote(parts.path), values, shelf, int(number)
    except (AttributeError, TypeError, ValueError):  # urllib's
        logger.debug("%s can't be parsed", shown(uri))
    raise InvalidError(f"{shown(uri)} is no reference to a snapshot, such as {SCHEME}:///work/run.pool?...#run@12")
