# SPDX-License-Identifier: BSD-3-Clause
"""`PoolHandle`: a pool's snapshot, also once it has left for a URL (store/REMOTE.md, Tiers)."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import NotFoundError, RemoteError
from . import consent
from .files import ObjectNotFoundError

if TYPE_CHECKING:
    from ..store import Store

_CACHE_BYTES = 8 << 30
_OF_THE_RECORD = frozenset(("info", "tags", "storage", "fork", "mark_loaded"))
"""What the pool answers, or refuses."""


class PoolHandle:
    """Calls the pool's handle; for the contents of a snapshot that has left, the one at the URL."""

    def __init__(self, store: Store, local: _core.Snapshot) -> None:
        self._store, self._local = store, local
        self._fetched: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._local, name)
        if name in _OF_THE_RECORD:
            return method

        def call(*arguments: Any) -> Any:
            if self._fetched is None:
                try:
                    return method(*arguments)
                except RemoteError:
                    self._fetched = self._there(self._url(), self._local.info())
            try:
                return getattr(self._fetched, name)(*arguments)
            except ObjectNotFoundError:  # perhaps the run was opened long ago, and repaired or swept since
                url = self._url()
                if not url:
                    raise
                self._fetched = self._there(url, self._local.info(), again=True)
            return getattr(self._fetched, name)(*arguments)

        return call

    @property
    def is_fetched(self) -> bool:
        """Whether the contents that were read are those at the URL."""
        return self._fetched is not None

    def diff(self, after: Any, flags: int, progress: Any = None) -> Any:
        """Compare with another snapshot of the store: both in the pool, or both at the URL."""
        if not isinstance(after, PoolHandle):
            return self._local.diff(after, flags, progress)
        try:
            return self._local.diff(after._local, flags, progress)
        except RemoteError:
            url = self._url() or after._url()
        found = []
        for info in (self._local.info(), after._local.info()):
            try:
                found.append(self._there(url, info))
            except NotFoundError:
                raise RemoteError(
                    f"{info['shelf']}@{info['number']} is not at {url}, which has the other one: push it, or pull the "
                    "other one"
                ) from None
        return found[0].diff(found[1], flags, progress)

    def _url(self) -> str:
        """Return the URL that has it now; "": it is in the pool."""
        info = self._local.info()
        return self._store._pool.find(info["shelf"], str(info["number"]), False).info()["remote"] or ""

    def _there(self, url: str, info: dict[str, Any], *, again: bool = False) -> Any:
        """Find it in the state of the run that was read last, then in the newest one; `again`: in that at once."""
        for is_newest in (again, True):
            try:
                if is_newest and url in self._store._remotes:
                    self._store._remotes[url].refresh()
                found = _find(self._store, url, info)
                break
            except NotFoundError as error:
                if is_newest:
                    what = f"{info['shelf']}@{info['number']}, which {self._store.path} has let go"
                    raise ObjectNotFoundError(f"{url} has lost {what}: {error}") from None
        if found.info()["time_ns"] != info["time_ns"]:
            raise RemoteError(f"{url} has another {info['shelf']}@{info['number']} than {self._store.path}")
        return found


def _find(store: Store, url: str, info: dict[str, Any]) -> Any:
    from .pool import RemotePool  # needs modules that others do without

    if url.lower().startswith("http"):  # a stranger's pool could name any server inside the user's network
        raise RemoteError(f"{store.path} says that {info['shelf']}@{info['number']} is at {url}: no push goes there")
    consent.check(store._remote, url, store.path, f"{info['shelf']}@{info['number']}")
    if url not in store._remotes:
        made = RemotePool(url, _CACHE_BYTES, type(store)._create, share=store._remote_share)
        if store._remotes.setdefault(url, made) is made:
            weakref.finalize(store, made.close)
        else:  # another thread was faster
            made.close()
    return store._remotes[url].find(info["shelf"], str(info["number"]), store._verifies)
