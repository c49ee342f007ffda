# SPDX-License-Identifier: BSD-3-Clause
"""`Late`: keys of the newest entries, made while no snapshot comes, so that the newest state is a single archive."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from ..errors import DamagedError, Error
from . import state
from .codec import Archive, Entry
from .files import Part
from .upload import Upload

if TYPE_CHECKING:
    from .push import Pusher

log = logging.getLogger("lmcstore")

_PAUSE_S, _PAUSE_GAPS = 10.0, 4
_LOOK_EVERY_S = 1.0
_LEAST_BYTES = 16 << 20
_RATIO = 0.85
"""Of raw, what a key takes where none was made yet."""
_WORTH, _WORTH_IDLE = 1.25, 2.0
_SHARE = 10
_FIRST_RETRY_S, _LONGEST_RETRY_S = 2.0, 300.0


class Made(NamedTuple):
    """A key that was sent."""

    entry: Entry
    archive: Archive
    upload: Upload


class _Tried(NamedTuple):
    """The last try of a shelf's key."""

    archive: str
    """The id of its entry's archive."""
    again: float
    """When the next try may begin."""
    wait: float


class Late:
    """Decides when a push makes such keys, and makes them."""

    def __init__(self, pusher: Pusher) -> None:
        self._pusher = pusher
        self._tried: dict[str, _Tried] = {}
        self._ratios: dict[str, float] = {}
        self._count, self._newest, self._gap = 0, time.monotonic(), 0.0
        self._looked = 0.0
        self._stops = False
        self.quiet = threading.Event()
        """No snapshot is being sent."""
        self.quiet.set()
        self.bytes = 0
        """Of the keys that were made."""

    def stop(self) -> None:
        """Give up a key that is being made."""
        self._stops = True
        self.quiet.set()

    def check(self) -> None:
        """Raise `Stopped` if the key that is being made was given up."""
        if self._stops:
            raise Stopped

    def is_due(self) -> bool:
        """Whether it is a pause, once a second: none has come for 10 s, and four times the last distance of two."""
        now = time.monotonic()
        if self._pusher.snapshots != self._count:
            self._gap = now - self._newest if self._count else 0.0
            self._count, self._newest = self._pusher.snapshots, now
        is_due = now >= max(self._looked + _LOOK_EVERY_S, self._newest + max(_PAUSE_S, _PAUSE_GAPS * self._gap))
        self._looked = now if is_due else self._looked
        return is_due

    def entry(self, shelf: str) -> Entry | None:
        """Return the newest entry of a shelf, if a key makes its restore much shorter and is allowed now."""
        pusher = self._pusher
        there = pusher._state.find(shelf)
        latest = there.latest if there is not None else None
        if there is None or latest is None or latest.hidden:
            return None
        tried = self._tried.get(shelf)
        if tried is not None and tried.archive == latest.archive.id and time.monotonic() < tried.again:
            return None
        try:
            chain: float = sum(archive.bytes for _, archive in there.chain(latest.number))
        except DamagedError:  # only a key makes it readable
            chain = math.inf
        key = latest.raw_bytes * self._ratios.get(shelf, _RATIO)
        if pusher._follows:
            worth, is_allowed = _WORTH, self.bytes * _SHARE <= pusher.bytes
        elif pusher.snapshots:
            worth, is_allowed = _WORTH, self.bytes + key <= pusher.bytes
        else:
            worth, is_allowed = _WORTH_IDLE, True
        return latest if is_allowed and chain >= max(_LEAST_BYTES, worth * key) else None

    def forget_failures(self) -> float | None:
        """Let keys that failed be tried again at once. Return the longest of their waits; None: none failed."""
        failed = [shelf for shelf, tried in self._tried.items() if tried.again < math.inf]
        return max((self._tried.pop(shelf).wait for shelf in failed), default=None)

    def make(self, shelf: str, entry: Entry) -> Made | None:
        """Send a snapshot as an archive that has all its tensors, each coded alone. None: it failed, or has left."""
        before = self._tried.get(shelf)
        self._tried[shelf] = _Tried(entry.archive.id, math.inf, 0.0)
        upload = Upload(self._pusher._place, self._pusher.sent)

        def write(data: Part) -> None:
            self.quiet.wait()
            self.check()
            upload.write(data)

        try:
            kept = self._pusher.dump(f"{shelf}@{entry.number}", None, write, alone=True)
            if kept is None or not kept.snapshots or kept.needs_base:
                return None
            archive = upload.archive(0, kept)
            upload.finish()
        except Stopped:
            return None
        except OSError as error:  # a request, or a file of this machine
            wait = before.wait * 2 if before is not None and before.archive == entry.archive.id else 0.0
            wait = min(max(wait, _FIRST_RETRY_S), _LONGEST_RETRY_S)
            self._tried[shelf] = _Tried(entry.archive.id, time.monotonic() + wait, wait)
            log.warning("%s@%d gets no key of its own now: %s", shelf, entry.number, error)
            return None
        except Error as error:
            log.warning("%s@%d gets no key of its own: %s", shelf, entry.number, error)
            return None
        self.bytes += upload.bytes
        self._ratios[shelf] = archive.bytes / max(1, entry.raw_bytes)
        return Made(entry, archive, upload)

    def put(self, draft: state.State, shelf: str, made: Made) -> bool:
        """Give an entry its key, also in place of one that no later key has payloads of; whether that was possible."""
        entry, there = made.entry, draft.find(shelf)
        now = there.entry(entry.number) if there is not None else None
        if there is None or now is None or (now.archive, now.key) != (entry.archive, entry.key):
            return False
        new = now._replace(key=made.archive)
        if made.upload.is_expired or there.using(entry, new):
            return False
        there.update({entry.number: new})
        return True


class Stopped(Exception):
    """The push ends."""
