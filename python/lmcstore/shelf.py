# SPDX-License-Identifier: BSD-3-Clause
"""`Shelf`: takes, finds and removes snapshots."""

from __future__ import annotations

import copy
import datetime
import itertools
import logging
import math
import operator
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, overload

from . import _core
from ._optimizer.gradients import scale_of
from ._optimizer.relations import Finder
from ._state.encode import Encoded
from ._state.later import Later, optimizers_of
from ._text import html
from ._text.arguments import a_kind, address, int64, meta_json, metric_lists, tag_names
from .copier import Job, hooks_of
from .errors import DamagedError, Error, InvalidError, NotFoundError, UnsupportedError
from .live import Live, LiveVariable, Transaction
from .live.kinds import wait_ms
from .log import Log, RemovedByPolicy
from .snapshot import Progress, Snapshot

if TYPE_CHECKING:
    from .store import Store

logger = logging.getLogger("lmcstore")

_INITIAL = {name: initial for name, _, _, initial, _ in _core.POLICY_KEYS}
_INITIAL_POLICY = " ".join(f"{name}={_INITIAL[name]}" for name in ("keep_raw", "chain", "keep"))
_NUMBERS_AT_ONCE = 4096
_DEFAULT_PARENT = 0
_ANYWHERE = 2**64 - 1
_NEWEST_AT_ONCE = 256
_SYNCHRONOUS, _ASYNCHRONOUS, _PROMISE = range(3)
_DONE = ("is durable", "is captured", "is being captured")


class Removal(NamedTuple):
    """The space that removing a snapshot freed."""

    freed_bytes: int
    """Free as soon as readers let go of it."""
    later_bytes: int
    """Still needed by deltas of other snapshots; free after compaction."""
    removed_tags: int
    """How many tags went with it."""


class Origin(NamedTuple):
    """The snapshot that a shelf was forked from."""

    shelf: str
    """Its shelf, as it is or was called."""
    number: int
    is_there: bool
    """Whether the store has it still."""


class Pruned(NamedTuple):
    """The snapshots that pruning removed, or would remove."""

    kept: int
    """How many snapshots are left."""
    numbers: list[int]
    """Those that went, oldest first."""
    removal: Removal | None
    """What that freed. None: unknown, as a store that is open for reading says what would go."""
    warning: str
    """Rules whose metric no snapshot has, or only some, and similar names; "": none."""
    due: dict[int, float]
    """Of `numbers` those that a grace period keeps in the background, and its end in seconds since 1970."""


class Shelf:
    """A named history of snapshots in a store: ``store[name]``.

    ``shelf[7]`` is a snapshot by its number, ``shelf[-1]`` the newest; text is the part of an address after the ``@``:
    ``shelf["best"]``, ``shelf["latest~1"]``, ``shelf["step:120"]``, ``shelf["{2 hours ago}"]``,
    ``shelf["{2026-11-20 13:00}"]`` (UTC). Iterating gives the snapshots, oldest first; ``reversed`` newest first;
    `range` some of them.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def store(self) -> Store:
        """The store that it is in."""
        return self._store

    # Live variables

    @property
    def live(self) -> Live:
        """Its live variables by name: tensors changed in place in the pool, and values."""
        return Live(self)

    def transaction(
        self,
        variables: Iterable[str | LiveVariable] | LiveVariable | None = None,
        *,
        limit: int | str = 0,
        timeout: float | None = None,
        declared: bool = False,
    ) -> Transaction:
        """Begin a transaction of all live variables, or of some: see `Live.transaction`, also about other threads."""
        return self.live.transaction(variables, limit=limit, timeout=timeout, declared=declared)

    # Writing

    @overload
    def snapshot(
        self,
        state: Any,
        *,
        step: int | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, Any] | None = None,
        parent: int | Snapshot | None = None,
        wait: bool = True,
        gradient_scale: float | None = None,
        gradients: Any = None,
        lazy: Any = None,
        verify: bool = False,
        skip: Literal[False] = False,
    ) -> Snapshot: ...

    @overload
    def snapshot(
        self,
        state: Any,
        *,
        step: int | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, Any] | None = None,
        parent: int | Snapshot | None = None,
        wait: bool = True,
        gradient_scale: float | None = None,
        gradients: Any = None,
        lazy: Any = None,
        verify: bool = False,
        skip: bool,
    ) -> Snapshot | None: ...

    def snapshot(
        self,
        state: Any,
        *,
        step: int | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, Any] | None = None,
        parent: int | Snapshot | None = None,
        wait: bool = True,
        gradient_scale: float | None = None,
        gradients: Any = None,
        lazy: Any = None,
        verify: bool = False,
        skip: bool = False,
    ) -> Snapshot | None:
        """Take a snapshot of a state, completely or not at all.

        Its structure and its values other than tensors are decoded and compared before the commit.

        Parameters
        ----------
        state
            Any nesting of dict, OrderedDict, list, tuple, set, frozenset, Counter, torch tensors, NumPy arrays and
            scalars, int, float, complex, str, bytes, bytearray, bool, None, torch.Size, torch.dtype, torch.device.
        step
            The training step; steps may repeat.
        tags
            Names for this snapshot; a tag elsewhere on the shelf moves here.
        metrics
            Numbers to find it by, such as the loss.
        meta
            A dict of any JSON-serializable values.
        parent
            The snapshot that training continued from. Default: the one that this process last loaded with
            `Snapshot.load_into` or took on this shelf, else the latest.
        wait
            True: return when the snapshot is durable. False: return when it is captured (copied and, for links,
            encoded), and the state may change. It becomes `latest` once durable. Up to 16 snapshots, or 16 MiB, of a
            shelf are in flight; they become durable in order. `Snapshot.wait` raises its snapshot's failure; the next
            snapshot, or else the store's close, raises the first that no `wait` has raised. Later ones in flight are
            saved all the same.
        gradient_scale
            The factor of bf16 gradients before the step: the clip's coefficient divided by the loss scale. Saves a
            search in the data. It affects sizes only; a value that is not finite is ignored.
        gradients : module, optimizer, or iterable of tensors, optional
            The gradients as the optimizer got them (a model before its `zero_grad`, or tensors), from which
            `gradient_scale` is computed. They are not stored. Sparse and complex ones are ignored.
        lazy : optimizer, list of optimizers, or True, optional
            With ``wait=False``: return before the tensors are copied that these optimizers' steps change, their
            parameters and states and what shares storages with them. Their next step waits for the copy; nothing else
            may change them before `Snapshot.captured` has returned. The rest of the state is copied before. True: all
            tensors and arrays are copied later, and no hook waits. One snapshot of a shelf can be uncopied; the next
            one waits for it. If torch has counted a change of such a tensor before it was copied, the snapshot fails:
            `wait`, or else the next call, raises an error with its path. torch does not count changes by ``p.data``,
            by NumPy, by kernels of others, by a replayed CUDA graph, by collectives of torch.distributed, by
            ``torch._foreach_*`` of DTensors, nor one that another thread still makes when the copy ends; with True,
            nor those by a tensor around it, such as a DTensor around its local tensor. A replayed CUDA graph calls no
            hook: call `Snapshot.captured` before its replay, or leave `lazy` out. Live tensors are copied before, as
            are all while this shelf is in a transaction.
        verify
            With `lazy`: find all changes, by hashes of the tensors before and after; takes the time of reading them.
            Arrays, and tensors on devices, are then copied before.
        skip
            Return None, and take no snapshot, if the call would have to wait for earlier snapshots. It still waits for
            those in flight with ``wait=True``, without space for the new one, and if the new one is the first that
            writes links (`policy`).

        Returns
        -------
        Snapshot or None
            None only with `skip`.

        Raises
        ------
        UnsupportedError
            (a TypeError) A part of the state can't be stored exactly; the text begins with its path. Nothing is stored.
        FullError
            No space, even after compaction; the text names the bytes needed and free, and removable snapshots.
        ReadOnlyError, InvalidError, InputOutputError
            As their names say.
        """
        self._store._check_writable()
        wait = bool(wait)
        step = None if step is None else int64(step, "step")
        tag_list = tag_names(tags)
        names, values = metric_lists(metrics)
        json_text = meta_json(meta)
        parent_number = _DEFAULT_PARENT if parent is None else self._parent_number(parent)
        scale = 0.0 if gradient_scale is None else float(gradient_scale)
        if scale < 0:
            raise InvalidError(f"gradient_scale can't be {gradient_scale}: it is a positive number")
        if not math.isfinite(scale):
            scale = 0.0  # of a diverged step, which is kept all the same
        if gradients is not None and gradient_scale is not None:
            raise InvalidError("gradients and gradient_scale say the same: give one of them")
        if gradients is not None:
            scale = scale_of(gradients)
        later = self._later(lazy, verify, step) if not wait else None
        if skip and self._store._pool.would_wait(self._name):
            logger.info("%s: a snapshot of step %s is left out: others are being copied or written", self._name, step)
            return None
        encoded = Encoded(state, later=later)
        self._store._begin_writing(self._name)
        options = step, parent_number, tag_list, names, values, json_text
        return self._taken_now(encoded, scale, later, wait, options)

    def _prepare(
        self,
        state: Any,
        group: bytes,
        step: int | None,
        *,
        lazy: list[Any] | None = None,
        scale: float = 0.0,
        copied: Callable[[], None] | None = None,
    ) -> tuple[Snapshot, Encoded]:
        """Take a snapshot that does not exist until its group is resolved; with `lazy`, it is durable after its `wait`.

        Also returns the encoded state, with the names of the tensors. Without `lazy`, `copied` is called once the state
        may change; if it raises, nothing is written.
        """
        self._store._check_writable()
        later = self._later(lazy, False, step)
        encoded = Encoded(state, later=later)
        options = step, _DEFAULT_PARENT, (), (), (), None
        return self._taken_now(encoded, scale, later, lazy is None, options, group, copied), encoded

    def _taken_now(
        self,
        encoded: Encoded,
        scale: float,
        later: Later | None,
        wait: bool,
        options: tuple[Any, ...],
        group: bytes | None = None,
        copied: Callable[[], None] | None = None,
    ) -> Snapshot:
        """Capture an encoded state and commit it; `options`: step, parent, tags, metrics, metadata."""
        hooks = hooks_of(later.optimizers if later is not None else [])
        capture = self._store._pool.begin(self._name)
        mode = _SYNCHRONOUS if wait else _ASYNCHRONOUS if later is None else _PROMISE
        step, parent, tags, names, values, json_text = options
        job: Job | None = None
        time_ns = time.time_ns()
        try:
            if later is None:
                encoded.put(capture, lend=copied is None)
            else:
                encoded.put_now(capture)
            if copied is not None:
                copied()
            self._relate(capture, encoded, scale)
            number = capture.commit(step, parent, time_ns, tags, names, values, json_text, mode, group)
            if later is not None:
                job = Job(self._store, capture, encoded, later)
                for hook in hooks:  # before it starts: after a signal's exception it may copy all the same
                    hook.add(job)
                job.start()
        except BaseException:
            if job is None or job.cancel():
                capture.abort()
            raise
        logger.debug("%s@%d %s", self._name, number, _DONE[mode])
        return Snapshot(self, number, None if wait else capture, step, job=job, time_ns=time_ns)

    def _later(self, lazy: Any, verify: bool, step: int | None) -> Later | None:
        """Return which tensors are copied later; None: none, so also while a transaction may change any tensor."""
        if lazy is None or lazy is False or self._store._pool.live_is_held(self._name):
            return None
        return Later(optimizers_of(lazy), verify, step)

    def _relate(self, capture: _core.Capture, encoded: Encoded, scale: float) -> None:
        """Declare the state's relations. They only help compression: those that do not fit are left out."""
        left_out: Exception | None = None
        try:
            relations = encoded.relations(self._store._finders.setdefault(self._name, Finder()), scale)
        except Exception as error:  # of a state_dict that torch did not make
            relations, left_out = [], error
        for relation in relations:
            for member in relation.members:
                try:
                    capture.relate(member, relation.optimizer, relation.flags, relation.constants)
                except (Error, TypeError, ValueError) as error:
                    left_out = error
        if left_out is not None:
            logger.debug("%s: a snapshot is taken without some relations: %s", self._name, left_out)

    def remove(self, which: int | str | Snapshot, *, dry_run: bool = False) -> Removal:
        """Remove a snapshot permanently; `dry_run`: only report the space.

        Waits for a snapshot that is not durable yet, and raises its failure: `Snapshot.wait`. Returns the space that is
        free now, and after compaction. NotFoundError: there is no such snapshot, or another has its number now.
        """
        self._store._check_writable()
        return Removal(*self._store._pool.remove(self._name, self._number(which), dry_run))

    def tag(
        self, which: int | str | Snapshot, *tags: str, expect: int | str | Snapshot | EllipsisType | None = ...
    ) -> None:
        """Put tags on a snapshot, moving those that are elsewhere on the shelf: all of them, or none.

        `expect` is the snapshot that they must be on now (None: on none; default: anywhere). It keeps two programs that
        move a tag from undoing each other's work.

        Waits for snapshots that are not durable yet, and raises their failure: `Snapshot.wait`.

        A store that is open for reading can put tags, too, beside a process that writes to the pool, given permission
        to write to the file: one after the other, and with `expect` only while no other process writes (InUseError).

        ExistsError: a tag is not where `expect` says. NotFoundError: a tag is on no snapshot, or there is no such
        snapshot, or another has its number now. InvalidError: a name can't be a tag.
        """
        for tag in tags:
            if not isinstance(tag, str):
                raise UnsupportedError(f"a tag must be a str, not {type(tag).__qualname__!r}")
        number = self._number(which)
        if number == 0:
            raise NotFoundError("there is no snapshot 0: numbers start at 1")
        place = 0 if expect is None else _ANYWHERE if isinstance(expect, EllipsisType) else self._number(expect)
        changes = [(tag, number, place) for tag in tags]
        for some in [changes] if self._store.mode != "r" or place != _ANYWHERE else [[change] for change in changes]:
            self._store._pool.change_tags(self._name, some)

    def untag(self, tag: str) -> None:
        """Remove a tag from the shelf, in a store of any mode, like `tag`."""
        self._store._pool.tag_remove(self._name, tag)

    @property
    def keep_raw(self) -> int:
        """How many of the newest snapshots stay raw, to be read without decoding."""
        info = self._info()
        return info["keep_raw"] if info is not None else int(_INITIAL["keep_raw"])

    @keep_raw.setter
    def keep_raw(self, count: int) -> None:
        self._store._check_writable()
        count = int64(count, "keep_raw")
        if not 0 < count < 2**32:
            raise InvalidError(f"keep_raw can't be {count}: keep 1 snapshot raw or more, and less than 2**32")
        self._store._begin_writing(self._name)
        self._store._pool.set_keep_raw(self._name, count)

    @property
    def policy(self) -> str:
        """The policy as text, words ``key=value``. Setting some words leaves the others unchanged.

        {keys}

        Rules: ``last:100`` (the newest), ``every:1000`` (one of every 1,000 steps), ``every:10/500`` (among the newest
        500), ``each:1h``, ``each:1h/7d`` (one an hour, in the last week), ``best:loss``, ``best:acc:3:max`` (by a
        metric). The latest snapshot and tagged ones are always kept. Without rules nothing is removed, and neither
        while no snapshot has the metric of a rule. Setting a policy warns of that, and of a metric that only some have;
        the policy is set, also if warnings are errors.

        After a change of ``keep`` or ``budget`` the background waits ``grace`` before it removes a snapshot that was
        not due before, unless the pool is full; `prune` does not wait. A tag or another policy keeps such a snapshot.
        ``prune(dry_run=True).due`` and `Store.info` list them with the end of that time.

        Examples
        --------
        >>> shelf.policy = "keep=last:100,every:10/1000,every:100"
        >>> shelf.policy
        'keep_raw=4 chain=3 keep=last:100,every:10/1000,every:100'
        """
        info = self._info()
        return info["policy"] if info is not None else _INITIAL_POLICY

    @policy.setter
    def policy(self, words: str) -> None:
        self._store._check_writable()
        if not isinstance(words, str):
            raise UnsupportedError(f"a policy must be a str, not {type(words).__qualname__!r}")
        self._store._begin_writing(self._name)
        self._store._pool.set_policy(self._name, words)
        warning = self._store._warning(self._name)
        if warning:
            warnings.warn(f"shelf {self._name!r}: {warning}", stacklevel=2)

    def prune(self, words: str | None = None, *, dry_run: bool = False) -> Pruned:
        """Remove the snapshots that the policy does not keep, now and regardless of its budget.

        `words` changes the policy for this call, and `dry_run` only reports the snapshots:
        ``shelf.prune("keep=last:10", dry_run=True)``. InvalidError names a wrong word; NotFoundError: there is no such
        shelf. Warns, as `policy` does, of rules whose metric no snapshot has, or only some.
        """
        if not dry_run:
            self._store._check_writable()
        if words is not None and not isinstance(words, str):
            raise UnsupportedError(f"a policy must be a str, not {type(words).__qualname__!r}")
        kept, removed, warning, *removal = self._store._pool.prune(self._name, words, dry_run)
        if warning:
            warnings.warn(f"shelf {self._name!r}: {warning}", stacklevel=2)
        due = {number: due_ns / 1e9 for number, due_ns in removed if due_ns}
        freed = Removal(*removal) if self._store._pool.info()["writable"] else None
        return Pruned(kept, [number for number, _ in removed], freed, warning, due)

    def compact(self, progress: Progress | None = None, *, finished: bool = False) -> None:
        """Compact the pool, as `Store.compact` does; with ``finished=True`` also the newest snapshots of this shelf.

        Use that when a run is finished: the newest snapshots stay raw otherwise. It is done once: if the run goes on,
        later snapshots stay raw again, and the next one is stored in full. NotFoundError: there is no such shelf.
        """
        self._store._check_writable()
        self._store._pool.compact(progress, finished, self._name)

    def scrub(self, which: int | str | None = None, progress: Progress | None = None, **options: Any) -> dict[str, Any]:
        """Scrub this shelf, or one snapshot or range (``"5..9"``) of it: see `Store.scrub`."""
        what = self._name if which is None else f"{self._name}@{which}"
        return self._store.scrub(what, progress, **options)

    # The shelf as a whole

    @property
    def origin(self) -> Origin | None:
        """The snapshot that it was forked from, or None."""
        info = self._info()
        return None if info is None or info["origin"] is None else Origin(*info["origin"])

    def rename(self, name: str) -> None:
        """Rename the shelf and this object, but no other objects of the old name.

        ExistsError: there is a shelf of that name. InUseError: a live variable is open in this process.
        """
        self._store._check_writable()
        self._store._pool.rename(self._name, name)
        self._store._known.discard(self._name)
        self._name = name

    def drop(self, *, dry_run: bool = False) -> Removal:
        """Remove the shelf with its snapshots and live variables permanently; its forks keep shared contents.

        Returns the space that is free now, and after compaction. InUseError: a live variable is open in this process.
        """
        self._store._check_writable()
        return Removal(*self._store._pool.drop(self._name, dry_run))

    # Finding

    def __getitem__(self, which: int | str) -> Snapshot:
        if isinstance(which, slice):
            first, last = (address(end) if type(end) is int and end else "" for end in (which.start, which.stop))
            raise UnsupportedError(
                f'a shelf has no slices: shelf.range("{first}..{last}") yields its snapshots, with both ends'
            )
        return self._find(address(which))

    def __contains__(self, which: object) -> bool:
        if isinstance(which, Snapshot):
            return which.shelf == self and which._is_there()
        if not isinstance(which, int | str):
            return False
        try:
            self._find(address(which))
        except (NotFoundError, InvalidError):
            return False
        return True

    @property
    def latest(self) -> Snapshot | None:
        """The newest durable snapshot, or None.

        Of a shelf that does not exist, warns once (`CreationWarning`) if the store can be written and a shelf of a
        similar name has snapshots.
        """
        try:
            return self._find("latest")
        except NotFoundError:
            self._store._warn_of_typo(self._name)
            return None

    def at(self, *, step: int | None = None, time: datetime.datetime | datetime.date | str | None = None) -> Snapshot:
        """Return the newest snapshot of a step, or the newest that was taken by a time; NotFoundError: there is none.

        Of a time, the end of that second or day counts; text as in an address: ``"2 hours ago"``,
        ``"2026-11-20 13:00"``. Without a zone: UTC.
        """
        if (step is None) == (time is None):
            raise InvalidError("give a step or a time")
        if time is not None:
            return self._find("{" + (time if isinstance(time, str) else _time_text(time)) + "}")
        assert step is not None
        return self._find(f"step:{int64(step, 'step')}")

    def steps(self, step: int) -> list[Snapshot]:
        """Return all snapshots of a step, oldest first."""
        return list(self._each(self._step_numbers(int64(step, "step"))))

    def range(self, which: str) -> Iterator[Snapshot]:
        """Yield the snapshots of a range such as ``"5..9"``, ``"step:100.."``, ``"..best"``, oldest first.

        Both ends belong to it; an omitted end is the first or the latest snapshot. Ends that were removed or do not
        exist yet are passed over: ``range("6..")`` is empty while 5 is the latest. NotFoundError: there is no such tag
        or shelf. InvalidError: it is no range, or its ends are in the wrong order.
        """
        first, last = self._store._pool.range(self._name, address(which))
        return self._between(first, last)

    def follow(self, start: int | str | Snapshot | None = None, timeout: float | None = None) -> Iterator[Snapshot]:
        """Yield each snapshot when it becomes durable, in any process: ``for snapshot in shelf.follow():``.

        A snapshot comes within 100 ms. The wait costs 17 checks a second. Numbers ascend; removed snapshots are passed
        over. The shelf need not exist yet, and the writer may end and begin again meanwhile.

        Parameters
        ----------
        start
            The first snapshot, by number or address, and everything after it; a number need not exist (1: everything
            that there is). Default: from now on, that is, from this call.
        timeout
            Most seconds to wait for the next snapshot, after which the iterator ends. None: no limit; 0: it ends after
            the snapshots that there are.

        Raises
        ------
        NotFoundError
            `start` is unknown; or, while waiting, the shelf was removed or renamed, or the pool's file deleted.
        InputOutputError
            The disk failed, so it is not certain that the next snapshot is durable.
        InvalidError
            The store was closed meanwhile.
        """
        pool, wait = self._store._pool, wait_ms(timeout)
        _, after, shelf_id = pool.follow(self._name, _ANYWHERE, 0, 0)
        return self._followed(after if start is None else max(self._place(start) - 1, 0), shelf_id, wait)

    def wait_next(self, timeout: float | None = None, *, after: int | str | Snapshot | None = None) -> Snapshot | None:
        """Wait for one snapshot and return it; None: there was none within `timeout` seconds.

        It is the first after `after`, a number (0: any) or an address; default: the first that becomes durable after
        this call. A loop that gives each one as the next `after` misses none. Otherwise like `follow`.
        """
        start = None if after is None else self._place(after) + 1
        return next(self.follow(start, timeout), None)

    def _followed(self, after: int, shelf_id: int, wait: int) -> Iterator[Snapshot]:
        while True:
            number, after, shelf_id = self._store._pool.follow(self._name, after, shelf_id, wait)
            if number == 0:
                return
            try:
                snapshot = self._find(str(number))
            except NotFoundError:  # removed meanwhile, or the shelf was, which the next call reports
                continue
            yield snapshot

    def _place(self, which: int | str | Snapshot) -> int:
        """Return a number, which need not exist, or that of an address."""
        if isinstance(which, Snapshot):
            self._own(which)
            return which.number
        text = "0" if type(which) is int and which == 0 else address(which)
        if text.isascii() and text.isdigit() and len(text) < len(str(_ANYWHERE)):
            return int(text)
        return self._find(text).number

    def log(self, count: int | None = 20) -> Log:
        """Return the newest snapshots (`count`; None: all), newest first: a sequence that prints as a table.

        Examples
        --------
        >>> print(shelf.log())  # doctest: +ELLIPSIS
        shelf run
        number  step  time (UTC)           parent  size  new   tags  metrics
             1        ...                          ... B
        """
        if count is not None and (type(count) is not int or count < 1):
            raise InvalidError(f"a log has one snapshot or more, or all of them by None, not {count!r}")
        items = list(itertools.islice(reversed(self), count))
        return Log(self._name, items, max(0, len(self) - len(items)), self._removed())

    def _removed(self) -> list[RemovedByPolicy]:
        try:
            events = self._store._pool.prune_log(self._name)
        except NotFoundError:
            return []
        return [
            RemovedByPolicy(policy, ranges, count, first_ns / 1e9, last_ns / 1e9)
            for policy, first_ns, last_ns, count, ranges in events
        ]

    @property
    def tags(self) -> dict[str, int]:
        """Numbers of snapshots by their tags. Reads every snapshot."""
        return dict(sorted((tag, snapshot.number) for snapshot in self for tag in snapshot.tags))

    def _between(self, first: int, last: int) -> Iterator[Snapshot]:
        numbers = _paged(lambda begin: self._store._pool.numbers(self._name, begin, _NUMBERS_AT_ONCE), first)
        return self._each(itertools.takewhile(lambda number: number <= last, numbers))

    def __reversed__(self) -> Iterator[Snapshot]:
        return self._each(self._descending())

    def _each(self, numbers: Iterable[int]) -> Iterator[Snapshot]:
        shelf_id = self._id()
        for number in numbers:
            snapshot = self._taken(number)
            snapshot._shelf_id = shelf_id
            yield snapshot

    def _descending(self) -> Iterator[int]:
        before = _ANYWHERE
        while True:
            try:
                numbers = self._store._pool.newest(self._name, before, _NEWEST_AT_ONCE)
            except NotFoundError:
                return
            yield from numbers
            if len(numbers) < _NEWEST_AT_ONCE:
                return
            before = numbers[-1]

    def __iter__(self) -> Iterator[Snapshot]:
        return self._between(1, _ANYWHERE)

    def __len__(self) -> int:
        info = self._info()
        return info["snapshot_count"] if info is not None else 0

    def _step_numbers(self, step: int) -> Iterator[int]:
        pool = self._store._pool
        return _paged(lambda first: pool.steps(self._name, step, first, _NUMBERS_AT_ONCE))

    def _info(self) -> dict[str, Any] | None:
        try:
            return self._store._pool.shelf_info(self._name)
        except NotFoundError:
            return None

    def _parent_number(self, parent: int | Snapshot) -> int:
        if isinstance(parent, Snapshot):
            self._own(parent)
            parent.wait()
            return parent.number
        return self._find(str(int64(parent, "parent"))).number

    def _own(self, snapshot: Snapshot) -> None:
        """Refuse a snapshot of another shelf, whose number would name one of this shelf."""
        if snapshot.shelf != self:
            raise InvalidError(f"{snapshot!r} is not of this shelf, {self._name!r}: use its own, snapshot.shelf")

    def _number(self, which: int | str | Snapshot) -> int:
        if isinstance(which, Snapshot):
            self._own(which)
            which.wait()
            try:
                which._check_same_now()
            except (DamagedError, UnsupportedError):
                if which._opened is not None:  # another may have its number
                    raise
            return which.number
        if hasattr(which, "__index__") and not isinstance(which, bool):
            number = operator.index(which)
            if 0 < number < 2**63:
                return number
        return self[which].number

    def _taken(self, number: int, step: int | None = None, handle: _core.Snapshot | None = None) -> Snapshot:
        return Snapshot(self, number, None, step, handle)

    def _find(self, which: str) -> Snapshot:
        handle = self._store._find(self._name, which)
        return self._taken(handle.info()["number"], None, handle)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shelf):
            return NotImplemented
        return (self._store._uuid, self._name) == (other._store._uuid, other._name)

    def __hash__(self) -> int:
        return hash((self._store._uuid, self._name))

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # like all copies, with a store of its own

    def __reduce__(self) -> Any:
        return _found_again, (self._store, self._name, self._id())  # the store opens the pool anew, for reading

    def _id(self) -> int:
        """Return its number in the pool, which no other shelf gets; 0: it does not exist."""
        shelf_id: int = self._store._pool.follow(self._name, _ANYWHERE, 0, 0)[2]
        return shelf_id

    def __repr__(self) -> str:
        if self._store.closed:
            return f"<lmcstore.Shelf {self._name!r} of a closed store>"
        info = self._info()
        if info is None:
            return f"<lmcstore.Shelf, {self._store._empty(self._name)}>"
        return f"<lmcstore.Shelf {self._name!r}, {info['snapshot_count']} snapshots, latest {info['latest'] or None}>"

    def _repr_html_(self) -> str:
        if self._store.closed:
            return html.table(repr(self), (), ())
        return self.log(html.MOST_ROWS)._repr_html_()


def _found_again(store: Store, name: str, shelf_id: int) -> Shelf:
    """Find the shelf of a copy, or of a pickle; NotFoundError: it is gone, or another has its name."""
    shelf = store[name]
    if shelf_id and shelf._id() != shelf_id:
        raise NotFoundError(f"{store.path}: {name!r} is another shelf now, or was removed or renamed")
    return shelf


def _policy_table() -> str:
    """List the policy keys of the store: values, the initial one, and meaning."""
    rows = [
        f"``{name}={value}``: {help} ({values}; initially {initial})"
        for name, value, values, initial, help in _core.POLICY_KEYS
    ]
    return "\n        ".join(f"- {row}" for row in rows)


Shelf.policy.__doc__ = (Shelf.policy.__doc__ or "").replace("{keys}", _policy_table())


def _time_text(time: datetime.datetime | datetime.date) -> str:
    if not isinstance(time, datetime.date):
        raise UnsupportedError(f"a time is a datetime, a date or a text, not {a_kind(time)}")
    if not isinstance(time, datetime.datetime):
        return time.isoformat()
    if time.tzinfo is not None:
        time = time.astimezone(datetime.UTC)
    return time.replace(tzinfo=None).isoformat(" ", "seconds")


def _paged(page: Callable[[int], list[int]], first: int = 1) -> Iterator[int]:
    """Yield numbers page by page; none without a shelf."""
    while True:
        try:
            numbers = page(first)
        except NotFoundError:
            return
        yield from numbers
        if len(numbers) < _NUMBERS_AT_ONCE:
            return
        first = numbers[-1] + 1
