# SPDX-License-Identifier: BSD-3-Clause
"""The URLs that the user has named. A pool may name any; others are not contacted (SECURITY.md)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from ..errors import RemoteError, UnsupportedError

Remote = bool | tuple[str, ...] | None
"""Of a store: all URLs, none, these and those below, or by default those of the environment and of earlier pushes."""

_MOST_BYTES = 1 << 20


def _path() -> str:
    folder = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return os.path.join(os.path.expanduser(folder), "lmc-store", "urls")


def _noted() -> list[str]:
    try:
        with open(_path(), encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES).split("\n")
    except OSError:
        return []


def note(url: str) -> None:
    """Note in the user's files that this user has named a URL. A note that can't be written is left out."""
    with contextlib.suppress(OSError):
        if url not in _noted():
            os.makedirs(os.path.dirname(_path()), 0o700, exist_ok=True)
            file = os.open(_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, f"{url}\n".encode())
            finally:
                os.close(file)


def named(remote: object) -> Remote:
    """Check the argument `remote` of `lmcstore.open`."""
    if remote is None or isinstance(remote, bool):
        return remote
    urls = (remote,) if isinstance(remote, str) else tuple(remote) if isinstance(remote, Iterable) else (None,)
    if not all(isinstance(url, str) for url in urls):
        raise UnsupportedError(f"remote must be a bool, a URL or several, not {remote!r:.100}")
    return tuple(map(str, urls))


def check(remote: Remote, url: str, pool: str, what: str) -> None:
    """Refuse a URL that a pool names and the user has not. RemoteError: the text says how to name it."""
    if remote is True or (remote is None and url in _noted()):
        return
    urls = os.environ.get("LMC_STORE_REMOTE", "").split() if remote is None else remote or ()
    if any(url == one or url.startswith(f"{one}/") for one in (one.rstrip("/") for one in urls)):
        return
    raise RemoteError(
        f"{pool} says that {what} is at {url}. You have not named this URL, so it is not contacted: if you trust it, "
        f"open the pool with remote={url!r} or a URL above, or set LMC_STORE_REMOTE to it; or lmc-store pull it"
    )
