# SPDX-License-Identifier: BSD-3-Clause
"""Sends the snapshots of a pool to a run in an object store (store/REMOTE.md)."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from .._text.arguments import parse_size
from ..errors import (
    DamagedError,
    Error,
    ExistsError,
    InputOutputError,
    InUseError,
    InvalidError,
    NotFoundError,
    RemoteError,
)
from . import agree, note, outline, state
from .codec import UNKNOWN, Archive, Entry, Origin
from .confirm import Confirmer
from .files import Part
from .late import Late, Made, Stopped
from .place import Pace, Place
from .upload import Pieces, Upload
from .which import short

if TYPE_CHECKING:
    from ..store import Store

log = logging.getLogger("lmcstore")

Progress = Callable[[str, int, int], object]
_KEY_EVERY, _CHEAP_KEY_EVERY = 24, 8
_U8 = 2
_LEAST_PART_BYTES = 4096
_BATCH_BYTES = 16 << 20
_NEW_SHARE = 256
"""A snapshot of which an older archive has less than one byte in so many is sent whole."""
_BATCH_ENTRIES = 32
_LOOK_EVERY_S = 0.01
_FIRST_WAIT_S = 0.2
_AGREE_EVERY_S = 60.0
_LONGEST_WAIT_S = 60.0
_LATE_TRIES = 3


@dataclass(frozen=True)
class _Wanted:
    """A shelf, or a part of it."""

    shelf: str
    first: int
    last: int
    is_named: bool = False
    """Whether it is a snapshot or a range that was named."""


class _Part(NamedTuple):
    """Where a part of a payload is."""

    object: str
    piece_bytes: int
    offset: int
    number: int
    """Of the entry whose archive or key has it."""


@dataclass(frozen=True)
class _Key:
    """A key that was sent."""

    archive: Archive
    upload: Upload
    parts: dict[bytes, _Part]

    def fits(self, there: state.Shelf) -> bool:
        """Whether a commit may name it: all its payloads are new, or of entries in the state."""
        wanted: dict[int, set[str]] = {}
        for part in self.parts.values():
            if part.object != self.upload.object:
                wanted.setdefault(part.number, set()).add(part.object)
        for entry in there.entries(self.archive.first) if wanted else ():
            here = {entry.archive.object, entry.key.object if entry.key is not None else ""}
            if wanted.get(entry.number, set()) <= here:
                wanted.pop(entry.number, None)
        return not wanted and not self.upload.is_expired


class _Stale(Exception):
    """Another pusher came first: begin again with the newest state."""


class Pusher:
    """Pushes from an open store to a place, step by step."""

    _of_ranks = False

    def __init__(
        self,
        store: Store,
        place: Place,
        what: Iterable[str],
        mirror: bool,
        progress: Progress | None = None,
        *,
        follows: bool = False,
        confirm: str = "sample",
    ) -> None:
        self._store, self._place, self._progress, self._follows = store, place, progress, follows
        self._what, self._mirror = tuple(what), mirror
        self._writer = secrets.token_hex(16)
        self._noted = -1
        self._set(state.begin(place, ranks=self._of_ranks))
        self._outlines: dict[str, tuple[int, str, outline.Outline]] = {}
        self._keys = ThreadPoolExecutor(1, "lmcstore-key")
        self._key: tuple[str, int, Future[_Key | Made | None]] | None = None
        self._parts: dict[str, dict[bytes, _Part]] = {}
        self._cheap: set[str] = set()  # shelves whose keys are mostly payloads of older archives
        self._lock = threading.Lock()
        self._agreed = -_AGREE_EVERY_S
        self._seen: list[dict[str, Any]] | None = None
        self._asked: set[_Wanted] = set()
        self._left_out: set[tuple[str, int]] = set()
        """Snapshots that were named, and reported as below the newest one there."""
        self._confirm = None if confirm == "off" else Confirmer(store, place, whole=confirm == "all")
        self.snapshots = self.keys = self.bytes = self.confirmed = 0
        self._late = Late(self)
        self.pieces = Pieces()

    def close(self) -> None:
        self._late.stop()
        self._keys.shutdown(wait=True, cancel_futures=True)
        if self._confirm is not None:
            self._confirm.close()

    def more(self) -> dict[str, Any]:
        """Return additions to the report, of a run of many ranks."""
        return {}

    def repair(self, create: Callable[[str], Store]) -> dict[str, Any]:
        """Send unreadable snapshots anew: as `repair.repair`. `create` makes a temporary pool."""
        from .repair import repair

        return repair(self, create)

    # One pass

    def push(self, *, waits: bool) -> bool:
        """Send all missing snapshots; whether there were any. `waits`: for keys, and everything is compared."""
        for _ in range(8):
            try:
                return self._pass(waits)
            except _Stale as error:
                log.info("%s: %s; the push begins again from the newest state", self._place.url, error)
                self._outlines.clear()
                self._set(state.refreshed(self._state))
        raise InUseError(f"{self._place.url}: other programs change the run all the time; try it later")

    def push_news(self) -> bool:
        """Send new snapshots and changes; whether there were any."""
        now = self._store._pool.shelves()
        is_key_made = self._key is not None and self._key[2].done()
        if now == self._seen and not is_key_made and not self._must_agree():
            return False
        self._seen = None
        sent = self.push(waits=False)
        self._seen = now
        return sent

    def _must_agree(self) -> bool:
        return time.monotonic() - self._agreed >= _AGREE_EVERY_S

    def _pass(self, waits: bool) -> bool:
        before = self._state.number
        for wanted in self._wanted():
            self._push_shelf(wanted)
        if waits or self._must_agree():
            self._agree()
        if self._key is not None and (waits or self._key[2].done()):
            self._take_key()
        for shelf in sorted({wanted.shelf for wanted in self._wanted()}):
            self._let_go(shelf, waits)
        return self._state.number != before

    def _let_go(self, shelf: str, waits: bool) -> None:
        """Confirm what the pool may let go: all, or with `waits` false some."""
        if self._confirm is None:
            return
        rounds = 1
        if waits:
            with contextlib.suppress(NotFoundError):  # the shelf was removed or renamed meanwhile
                rounds = len(self._store[shelf])
        for _ in range(rounds):
            count = self._confirm.confirm(shelf, self._commit, self.now, waits=waits)
            self.confirmed += count
            if count == 0:
                return

    def _wanted(self) -> Iterator[_Wanted]:
        if not self._what:
            for shelf in self._store._pool.shelves():
                yield _Wanted(shelf["name"], 1, 1 << 62)
        yield from sorted(self._named(), key=lambda wanted: (wanted.shelf, wanted.first))

    def _named(self) -> Iterator[_Wanted]:
        for address in self._what:
            name, has_range, which = address.partition("@")
            try:
                self._store._pool.shelf_info(name)
            except NotFoundError:
                if not self._follows:
                    raise
                continue  # not yet
            if not has_range:
                yield _Wanted(name, 1, 1 << 62)
            elif ".." in which:
                yield _Wanted(name, *self._store._pool.range(name, which), True)
            else:
                number = self._store._pool.find(name, which, False).info()["number"]
                yield _Wanted(name, number, number, True)

    def _push_shelf(self, wanted: _Wanted) -> None:
        there = self._state.find(wanted.shelf)
        if there is not None:
            agree.check_same(self._store, there, self._place.url)
            self._warn_below(wanted, there)
        batch = _Batch(self, wanted.shelf)
        first = max(wanted.first, there.next if there is not None else 1)
        try:
            for number in self._numbers(wanted.shelf, first, wanted.last):
                self._late.quiet.clear()
                batch.add(number)
            batch.commit()
        except NotFoundError:
            if wanted.shelf in self._store.shelves():
                raise
            log.info("%s: shelf %r was removed or renamed during the push", self._store.path, wanted.shelf)
        finally:
            self._late.quiet.set()

    def _warn_below(self, wanted: _Wanted, there: state.Shelf) -> None:
        """Warn of snapshots that were named, are not there, and can't be sent behind newer ones."""
        if not wanted.is_named or wanted in self._asked:
            return
        self._asked.add(wanted)
        found = self.missing(there, wanted.first, wanted.last)
        missing = [number for number in found if (wanted.shelf, number) not in self._left_out]
        self._left_out.update((wanted.shelf, number) for number in missing)
        if missing:
            log.warning(
                "%s@%s is not sent: %s has a newer snapshot of the shelf, and only those above it are sent. "
                "Push it to another URL",
                *(wanted.shelf, short(missing), self._place.url),
            )

    def missing(self, there: state.Shelf, first: int = 1, last: int = 1 << 62) -> list[int]:
        """Return the store's snapshots of a range that are below the newest one there, and not there."""
        return there.lacking(self._numbers(there.name, first, min(last, there.next - 1)))

    def _numbers(self, shelf: str, first: int, last: int) -> list[int]:
        found: list[int] = []
        while True:
            numbers = self._store._pool.numbers(shelf, first, 4096)
            found += [number for number in numbers if number <= last]
            if len(numbers) < 4096 or numbers[-1] >= last:
                return found
            first = numbers[-1] + 1

    def check_last(self, last: Entry) -> None:
        """Refuse to send a snapshot behind parts of a run, whose records would not find it."""
        if last.of is not None:
            raise ExistsError(
                f"{self._place.url} has the parts of a rank: push the folder of the run to "
                f"{self._place.url.rpartition('/')[0]}, or this pool to another URL"
            )

    def described(self, shelf: str, entry: Entry) -> Entry:
        """Return an entry with the members of a run of many ranks."""
        return entry

    # Archives

    def older(self, shelf: str, entry: Entry) -> outline.Outline | None:
        """Return the outline of an entry's archive, from memory or from the place; None: it can't be read."""
        kept = self._outlines.get(shelf)
        if kept is not None and kept[:2] == (entry.number, entry.archive.id):
            return kept[2]
        try:
            packed = b"".join(self._place.get_ranges(entry.archive.outline_ranges()))
            found = outline.unpack(packed, self._place.where(entry.archive.object))
        except (Error, OSError) as error:
            if isinstance(error, InputOutputError):
                raise
            log.warning(
                "%s@%d is sent whole, since the snapshot before it can't be used: %s", shelf, entry.number, error
            )
            return None
        return found if found.id == entry.archive.id else None

    def remember(self, shelf: str, number: int, kept: outline.Outline) -> None:
        """Keep an outline in memory for the next snapshot."""
        self._outlines[shelf] = number, kept.id, kept

    def dump(
        self,
        address: str,
        older: outline.Outline | None,
        sink: Callable[[Part], None] | None,
        begun: Callable[[outline.Outline], object] | None = None,
        pool: _core.Pool | None = None,
        *,
        part: Callable[[int, Part, bytes | None], object] | None = None,
        as_stored: bool = False,
        alone: bool = False,
    ) -> outline.Outline | None:
        """Dump a snapshot of the store, or another pool; None: it was removed meanwhile. `sink` gets all bytes."""
        source = self._store._pool if pool is None else pool
        parsing = outline.Parsing(begun, part)

        def write(data: memoryview) -> None:
            with data:  # a failure's traceback must not keep it: the memory is the store's
                parsing.see(data)
                if sink is not None:
                    sink(data)

        with contextlib.ExitStack() as stack:
            since: tuple[int, ...] = ()
            if older is not None:
                sparse = stack.enter_context(tempfile.TemporaryFile(prefix="lmc-store-"))
                older.write_sparse(sparse.fileno())
                since = (sparse.fileno(),)
            try:
                source.dump(write, (address,), since, False, False, False, None, as_stored, alone)
            except NotFoundError:
                return None
        return parsing.end()

    def sent(self, count: int) -> None:
        """Count bytes that the server has confirmed."""
        with self._lock:
            self.bytes += count
            if self._progress is not None:
                self._progress("push", self.bytes, 0)

    def send(self, shelf: str, number: int, last: Entry | None) -> Entry | None:
        """Send a snapshot upon an entry, or whole, without a commit; None: the pool lacks it."""
        batch = _Batch(self, shelf, since_key=0)
        batch._last = last
        try:
            entry = batch._sent(number)
        except (NotFoundError, RemoteError):
            return None
        batch._upload.finish()
        return entry

    def replace(
        self, shelf: str, old: Entry, new: Entry, renewed: Callable[[state.Shelf, Entry], Archive | None]
    ) -> None:
        """Commit an entry in place of another, unless that has changed.

        Keys that have payloads of what goes are left out. For each of these `renewed` gets the shelf without them, and
        the entry. It returns another key or None, or refuses the whole change by an exception.
        """

        def apply(draft: state.State) -> bool:
            there = draft.find(shelf)
            entry = there.entry(old.number) if there is not None else None
            if there is None or entry is None or (entry.archive, entry.key) != (old.archive, old.key):
                return False
            using = there.using(old, new)
            there.update({old.number: new} | {one.number: one for one in using})
            for one in using:
                key = renewed(there, one)
                if key is not None:
                    there.update({one.number: one._replace(key=key)})
            return True

        self._commit(apply)
        self._parts.pop(shelf, None)

    # Keys

    def want_key(self, shelf: str, number: int) -> None:
        """Begin a key of a snapshot in another thread, unless one is being made."""
        if self._key is None:
            self._key = shelf, number, self._keys.submit(self._make_key, shelf, number)

    def _make_key(self, shelf: str, number: int) -> _Key | None:
        """Make an archive that needs no other. Of its payloads only those are sent that no older one has."""
        upload = Upload(self._place, self.sent)
        known = self._parts.get(shelf, {})
        used: dict[bytes, _Part] = {}
        numbers = {number}
        oldest = number - 3 * self._links(shelf)  # so that removed snapshots do not stay for ever
        sources: list[outline.Source] = []

        def add(_: int, data: Part, raw: bytes | None) -> None:
            self._late.check()
            digest = _name(data, raw)
            place = known.get(digest)
            if place is None or not oldest <= place.number <= number:
                place = used.get(digest)
            if place is None:
                place = _Part(upload.object, upload.piece_bytes, upload.bytes, number)
                upload.write(data)
            used[digest] = place
            numbers.add(place.number)
            sources.append(outline.Source(*place[:3], zlib.crc32(data)))

        try:
            kept = self.dump(f"{shelf}@{number}", None, None, part=add, as_stored=True)
        except (RemoteError, Stopped):  # it left the pool meanwhile; the push ends
            return None
        if kept is None or not kept.snapshots or kept.needs_base:
            return None
        kept.sources = sources
        key = upload.key(kept, min(numbers))
        upload.finish()
        return _Key(key, upload, used)

    def finish_key(self, shelf: str, number: int) -> None:
        """Make a key of a snapshot, or wait for the one that is being made, and commit it."""
        self.want_key(shelf, number)
        self._late.quiet.set()
        self._take_key()

    def want_late_keys(self) -> None:
        """Begin a key of a newest entry whose restore takes much more than one archive (`late`)."""
        for shelf in sorted({wanted.shelf for wanted in self._wanted()}):
            entry = self._late.entry(shelf) if self._key is None else None
            if entry is not None:
                self._key = shelf, entry.number, self._keys.submit(self._late.make, shelf, entry)

    def finish_late_keys(self) -> None:
        """Make such keys, one after the other. One that fails is tried again."""
        self._late.forget_failures()
        for left in reversed(range(_LATE_TRIES)):
            self.want_late_keys()
            while self._key is not None:
                self._take_key()
                self.want_late_keys()
            wait = self._late.forget_failures()
            if wait is None or left == 0:
                return
            time.sleep(wait)

    def since_key(self, shelf: str) -> int:
        """Return how many archives follow the newest key or whole archive."""
        there = self._state.find(shelf)
        latest = there.latest if there is not None else None
        try:
            return len(there.chain(latest.number)) - 1 if there is not None and latest is not None else 0
        except DamagedError:  # so the latest gets a key, or the next one is sent whole
            return 1 << 62

    def _take_key(self) -> None:
        assert self._key is not None
        kept = shelf, number, future = self._key
        self._key = None
        made = future.result()
        try:
            if isinstance(made, Made):
                self._take_late(shelf, made)
            elif made is not None:
                self._take(shelf, number, made)
        except InputOutputError:  # the next pass commits it
            self._key = kept
            raise

    def _take_late(self, shelf: str, made: Made) -> None:
        self._commit(lambda draft: self._late.put(draft, shelf, made))
        there, old = self._state.find(shelf), made.entry.key
        entry = there.entry(made.entry.number) if there is not None else None
        if entry is None or entry.key != made.archive:
            return
        self.keys += 1
        if old is not None:
            parts = self._parts.get(shelf, {})
            self._parts[shelf] = {digest: part for digest, part in parts.items() if part.object != old.object}

    def _take(self, shelf: str, number: int, made: _Key) -> None:
        def apply(draft: state.State) -> bool:
            there = draft.find(shelf)
            entry = there.entry(number) if there is not None else None
            if there is None or entry is None or entry.key is not None or not made.fits(there):
                return False
            there.update({number: entry._replace(key=made.archive)})
            return True

        self._commit(apply)
        there = self._state.find(shelf)
        entry = there.entry(number) if there is not None else None
        if entry is None or entry.key != made.archive:
            self._parts.pop(shelf, None)  # some are gone
            return
        self.keys += 1
        newer = {digest: part for digest, part in self._parts.get(shelf, {}).items() if part.number > number}
        self._parts[shelf] = made.parts | newer
        if made.archive.outline_offset < made.archive.bytes / 8:
            self._cheap.add(shelf)
        else:
            self._cheap.discard(shelf)

    def key_every(self, shelf: str) -> int:
        """Return after how many archives a shelf gets a key: the policy's `links`, or earlier if keys cost little."""
        most = self._links(shelf)
        return min(most, _CHEAP_KEY_EVERY) if shelf in self._cheap else most

    def _links(self, shelf: str) -> int:
        try:
            policy = self._store._pool.shelf_info(shelf)["policy"]
        except NotFoundError:  # removed or renamed meanwhile
            policy = ""
        found = re.search(r"\blinks=([0-9]+)\b", policy)
        return max(1, int(found.group(1))) if found is not None else _KEY_EVERY

    # The state

    def _commit(self, apply: Callable[[state.State], bool]) -> None:
        self._set(state.change(self._state, self._writer, apply))

    def now(self) -> state.State:
        """Return the state that was read or written last."""
        return self._state

    def gone(self, shelf: str) -> set[int]:
        """Return the entries whose snapshots have left the pool for the place."""
        from .mend import gone

        return {entry.number for entry in gone(self, shelf)}

    def _set(self, now: state.State) -> None:
        self._state = now
        if now.number != self._noted:
            note.write(self._store, self._place.url, now)
            self._noted = now.number

    def add_shelf(self, draft: state.State, shelf: str, identity: str) -> state.Shelf:
        """Add a shelf of the store to a state."""
        info = self._store._pool.shelf_info(shelf)
        origin = None if info["origin"] is None else Origin(*info["origin"][:2])
        return draft.add(shelf, identity, info["keep_raw"], info["policy"], origin)

    def _agree(self) -> None:
        """Bring names, tags, policies, metrics and notes up to date."""
        state.check_there(self._state)
        shelves = sorted({wanted.shelf for wanted in self._wanted()})
        self._commit(lambda draft: agree.update(self._store, draft, shelves, self._mirror))
        self._agreed = time.monotonic()


class _Whole(NamedTuple):
    """Snapshots that are dumped, and may still be uploaded."""

    last: Entry | None
    """The entry before them."""
    entries: list[Entry]
    parts: dict[bytes, _Part]
    upload: Upload
    identity: str
    wants_key: bool


class _Batch:
    """Snapshots of a shelf that are uploaded, and committed together. The next ones are dumped meanwhile."""

    def __init__(self, pusher: Pusher, shelf: str, since_key: int | None = None) -> None:
        self._pusher, self._shelf = pusher, shelf
        self._upload = self._new_upload()
        self._waiting: _Whole | None = None
        self._entries: list[Entry] = []
        self._parts: dict[bytes, _Part] = {}
        self._kept: outline.Outline | None = None
        there = pusher._state.find(shelf)
        self._before = self._last = there.latest if there is not None else None
        self._since_key = pusher.since_key(shelf) if since_key is None else since_key

    def add(self, number: int) -> None:
        """Send a snapshot."""
        try:
            entry = self._sent(number)
        except _Stale:
            raise
        except Exception:
            self.commit()  # those before it
            raise
        if entry is None:
            return
        self._entries.append(entry)
        self._last = entry
        self._since_key = self._since_key + 1 if entry.base else 0
        is_large = self._upload.bytes >= _BATCH_BYTES or len(self._entries) >= _BATCH_ENTRIES
        if is_large or self._upload.is_expired:
            self._upload.end()
            self._close()

    def _new_upload(self) -> Upload:
        return Upload(self._pusher._place, self._pusher.sent, pieces=self._pusher.pieces)

    def _sent(self, number: int) -> Entry | None:
        pusher, last = self._pusher, self._last
        try:
            handle = pusher._store._pool.find(self._shelf, str(number), False)
        except NotFoundError:  # removed since it was listed
            return None
        info = handle.info()
        if last is not None:
            pusher.check_last(last)
        if info["remote"] == pusher._place.url:
            raise RemoteError(
                f"{info['remote']} has lost {self._shelf}@{number}, which {pusher._store.path} has let go: the run "
                "there was deleted, or is an older copy. Bring it back, or remove the snapshot from the pool"
            )
        if last is not None and self._since_key >= 2 * pusher.key_every(self._shelf):
            self.commit()
            pusher.finish_key(self._shelf, last.number)
            self._since_key = pusher.since_key(self._shelf)
        older = None
        if last is not None and self._since_key < 2 * pusher.key_every(self._shelf):
            older = pusher.older(self._shelf, last)
        is_large = last is not None and 2 * last.archive.bytes >= last.raw_bytes
        if older is not None and is_large and _is_new(handle, older):
            older = None
        start, upload = self._upload.bytes, self._upload

        def add(offset: int, data: Part, raw: bytes | None) -> None:
            if len(data) >= _LEAST_PART_BYTES:
                self._parts[_name(data, raw)] = _Part(upload.object, upload.piece_bytes, start + offset, number)

        kept = pusher.dump(f"{self._shelf}@{number}", older, upload.write, self._check, part=add)
        if kept is None or not kept.snapshots:
            return None
        place = self._upload.archive(start, kept)
        pusher.remember(self._shelf, number, kept)
        self._kept = kept
        is_deep = older is not None and not kept.known() <= older.held()
        base = last.number if kept.needs_base and last is not None else 0
        made = Entry(
            number, info["step"], info["time_ns"], info["parent"], info["raw_bytes"], info["tensor_count"],
            agree.metrics_of(info), agree.note_of(info), False, base, is_deep, place, None,
        )  # fmt: skip
        return pusher.described(self._shelf, made)

    def _check(self, begun: outline.Outline) -> None:
        """Refuse another shelf of the same name before anything is sent."""
        identity, there = begun.shelves[0].identity, self._pusher._state.find(self._shelf)
        if there is not None and UNKNOWN not in (identity, there.identity) and identity != there.identity:
            raise ExistsError(
                f"{self._pusher._place.url} has another shelf {self._shelf!r}: it was begun in another pool, or anew. "
                "Push to another URL, or rename the shelf"
            )
        if there is None and identity != UNKNOWN:
            for other in self._pusher._state.shelves:
                if other.identity == identity:
                    self._pusher._commit(lambda draft: agree.rename(draft, identity, self._shelf))
                    raise _Stale(f"shelf {other.name!r} is called {self._shelf!r} now")

    def commit(self) -> None:
        """Commit the snapshots that were sent."""
        self._close()
        self._commit_waiting()

    def _close(self) -> None:
        """End the batch, and commit the one before it."""
        self._commit_waiting()
        if not self._entries:
            return
        assert self._kept is not None
        wants_key = self._since_key >= self._pusher.key_every(self._shelf)
        identity = self._kept.shelves[0].identity
        self._waiting = _Whole(self._before, self._entries, self._parts, self._upload, identity, wants_key)
        self._before = self._last
        self._entries, self._parts, self._upload = [], {}, self._new_upload()

    def _commit_waiting(self) -> None:
        whole, self._waiting = self._waiting, None
        if whole is None:
            return
        pusher = self._pusher
        whole.upload.finish()

        def apply(draft: state.State) -> bool:
            if whole.upload.is_expired:
                raise _Stale("the upload took so long that its first bytes may be gone")
            there = draft.find(self._shelf)
            if there is None:
                there = pusher.add_shelf(draft, self._shelf, whole.identity)
            _append(there, whole.entries, whole.last)
            return True

        pusher._commit(apply)
        pusher.snapshots += len(whole.entries)
        pusher._parts.setdefault(self._shelf, {}).update(whole.parts)
        if whole.wants_key:
            pusher.want_key(self._shelf, whole.entries[-1].number)


def _is_new(handle: _core.Snapshot, older: outline.Outline) -> bool:
    """Whether hardly any bytes of a snapshot are in an older archive: then it had better need none."""
    held, known, whole = older.held(), 0, 0
    for (_, _, _, _, raw_bytes, _, stored_as, *_), digest in zip(handle.entries(), handle.digests(), strict=True):
        if stored_as not in (outline.RAW, outline.FRAME):
            return False
        whole += raw_bytes
        known += raw_bytes if bytes.fromhex(digest[:32])[::-1] in held else 0
    return known * _NEW_SHARE <= whole


def _append(there: state.Shelf, entries: list[Entry], last: Entry | None) -> None:
    """Add entries to the state of a shelf, behind `last`; _Stale: another program has changed the entries below."""
    if entries[0].number < there.next:
        raise _Stale(f"another pusher has sent {there.name}@{entries[0].number} meanwhile")
    latest = there.latest
    if (latest and (latest.number, latest.archive)) != (last and (last.number, last.archive)):
        raise _Stale(f"{there.name}@{last.number if last else 0} is gone or sent anew, which the next one follows")
    for entry in entries:
        there.append(entry)


def _name(data: Part, raw: bytes | None) -> bytes:
    """Name the bytes of a part by their digest, or without reading them."""
    if raw is not None:
        return raw + len(data).to_bytes(4, "little")
    return bytes.fromhex(_core.codec_digest(data, _U8, 1)) + len(data).to_bytes(4, "little")


def push(
    store: Store,
    url: str,
    what: str | Iterable[str] | None = None,
    progress: Progress | None = None,
    *,
    follow: bool = False,
    timeout: float | None = None,
    mirror: bool = False,
    rate: int | str | None = None,
    repair: bool = False,
    confirm: str = "sample",
) -> dict[str, Any]:
    """Send the snapshots of a store that a run at a URL lacks: see `Store.push`."""
    most = None if rate is None else parse_size(rate)
    if most == 0:
        raise InvalidError("a rate is above 0")
    if timeout is not None and not follow:
        raise InvalidError("timeout is for follow=True")
    if confirm not in ("sample", "all", "off"):
        raise InvalidError(f"confirm is 'sample', 'all' or 'off', not {confirm!r}")
    addresses = () if what is None else (what,) if isinstance(what, str) else tuple(what)
    kind: type[Pusher] = store._pusher() or Pusher
    if repair:
        from .mend import commit as mend

        with Place(url) as place:
            mend(place)
    with (
        Place(url, pace=None if most is None else Pace(most)) as place,
        contextlib.closing(kind(store, place, addresses, mirror, progress, follows=follow, confirm=confirm)) as pusher,
    ):
        found: dict[str, Any] = {}
        if repair:
            found = pusher.repair(type(store)._create)
        if follow:
            _follow(pusher, timeout)
        pusher.push(waits=True)
        pusher.finish_late_keys()
        older = {there.name: len(pusher.missing(there)) for there in pusher._state.shelves if there.name in store}
        note.write(store, place.url, pusher._state, older)
        sent = {"snapshots": pusher.snapshots, "keys": pusher.keys, "bytes": pusher.bytes}
        sent |= {"confirmed": pusher.confirmed, "commit": pusher._state.number}
        return found | sent | pusher.more()


def _follow(pusher: Pusher, timeout: float | None) -> None:
    """Push each snapshot when it is durable; ends after `timeout` seconds without one."""
    newest = time.monotonic()
    wait = 0.0
    while timeout is None or time.monotonic() - newest < timeout:
        try:
            if pusher.push_news():
                newest = time.monotonic()
            elif pusher._late.is_due():
                pusher.want_late_keys()
            wait = 0.0
        except (InputOutputError, InUseError) as error:
            wait = min(max(wait * 2, _FIRST_WAIT_S), _LONGEST_WAIT_S)
            log.warning("%s; tries again in %.1f s", error, wait)
        time.sleep(max(wait, _LOOK_EVERY_S))
