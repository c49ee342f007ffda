# SPDX-License-Identifier: BSD-3-Clause
"""`Left`: the handle of a snapshot that left its pool for a URL (store/REMOTE.md, Tiers)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import NotFoundError, RemoteError

if TYPE_CHECKING:
    from ..store import Store

_LOCAL = frozenset(("info", "tags", "storage", "fork", "mark_loaded"))
"""What the pool's record answers, or refuses."""


class Left:
    """Takes properties from the pool, and the contents from the URL."""

    def __init__(self, store: Store, local: _core.Snapshot) -> None:
        self._store, self._local = store, local
        self._fetched: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._local if name in _LOCAL else self.there(), name)

    def there(self, info: dict[str, Any] | None = None) -> Any:
        """Return the handle at the URL; with `info`, that of another snapshot of the pool."""
        if info is None and self._fetched is not None:
            return self._fetched
        own = self._local.info()
        url, wanted = own["remote"], info or own
        try:
            found = _find(self._store, url, wanted)
        except NotFoundError:  # perhaps it came after the run was opened
            self._store._remotes.pop(url).close()
            found = _find(self._store, url, wanted)
        if found.info()["time_ns"] != wanted["time_ns"]:
            raise RemoteError(f"{url} has another {wanted['shelf']}@{wanted['number']} than {self._store.path}")
        if info is None:
            self._fetched = found
        return found

    def diff(self, after: Any, flags: int, progress: Any = None) -> Any:
        return self.there().diff(self._other(after), flags, progress)

    def diff_from(self, before: Any, flags: int, progress: Any = None) -> Any:
        """Compare a snapshot of the pool with this one; both are read from the URL."""
        return self._other(before).diff(self.there(), flags, progress)

    def _other(self, handle: Any) -> Any:
        if isinstance(handle, Left):
            return handle.there()
        info = handle.info()
        try:
            return self.there(info)
        except NotFoundError:
            raise RemoteError(
                f"{info['shelf']}@{info['number']} is not at {self._local.info()['remote']}, which has the other one: "
                "push it, or pull the other one"
            ) from None


def _find(store: Store, url: str, info: dict[str, Any]) -> Any:
    from ..opening import open

    if url not in store._remotes:
        store._remotes[url] = open(url, "r", verify=store._verifies)
    return store._remotes[url]._pool.find(info["shelf"], str(info["number"]), store._verifies)
