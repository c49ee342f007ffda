# SPDX-License-Identifier: BSD-3-Clause
"""`Snapshot`: its properties, and reading it."""

from __future__ import annotations

import copy
import functools
import json
import os
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, Self

from . import _core, diff
from ._state.decode import Decoded, flags_of
from ._state.lazy import lazy
from ._state.load import Plan
from ._state.nodes import part_of
from ._state.plain import Types
from ._text import html
from ._text.arguments import a_kind, file_path, parse_size
from ._text.text import printable
from .annotate import Metrics
from .copier import Job
from .errors import DamagedError, Error, InvalidError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from .shelf import Shelf
    from .store import Store

Progress = Callable[[str, int, int], object]
"""Called now and then during long work with the task, the work done and all work; may raise to stop it."""


_CHILD_WAIT_MS = 10_000
_STORED_AS = ("raw", "keyframe", "delta", "link")


class Snapshot(Mapping[Any, Any]):
    """One immutable, complete version of a shelf: a mapping of its state, always true.

    ``snap["model.h.0.weight"]`` is a tensor and ``snap["optimizer"]`` a part, read when it is used. A tuple of keys
    resolves ambiguous dots: ``snap[("a", "b.c")]``. ``list(snap)`` and `keys` have the keys of the state, or the
    indexes of a list, ``len(snap)`` counts them, and ``path in snap`` accepts the paths of ``snap[path]``.
    """

    _instead: Mapping[int, Any] = {}
    """What `load_into` loads into in place of some targets, by their ids."""

    def __init__(
        self,
        shelf: Shelf,
        number: int,
        capture: _core.Capture | None = None,
        step: int | None = None,
        handle: _core.Snapshot | None = None,
        job: Job | None = None,
        time_ns: int | None = None,
    ) -> None:
        self._shelf = shelf
        self._number = number
        self._shelf_id = 0  # of one that was listed: another shelf may have the name before it is opened
        self._time_ns = time_ns  # of one that was taken here: another may have its number before it is opened
        self._capture = capture  # of wait=False, until it is known to be durable
        self._captured_step = step
        self._job = job  # of lazy=
        self._opened: tuple[_core.Snapshot, dict[str, Any]] | None = None
        self._decoded: Decoded | None = None
        if handle is not None:
            self._opened = handle, handle.info()

    # Properties

    @property
    def shelf(self) -> Shelf:
        """Its shelf."""
        return self._shelf

    @property
    def number(self) -> int:
        """Its number on the shelf, from 1 on."""
        return self._number

    @property
    def step(self) -> int | None:
        """The training step, or None."""
        if self._capture is not None:
            return self._captured_step
        step: int | None = self._info["step"]
        return step

    @property
    def time(self) -> float:
        """Seconds since 1970 (UTC) when it was taken."""
        return float(self._info["time_ns"]) / 1e9

    @property
    def parent(self) -> int | None:
        """The number of the snapshot that training continued from, or None; it may have been removed."""
        return self._info["parent"] or None

    @property
    def metrics(self) -> Metrics:
        """Its metrics now. ``snap.metrics["val_loss"] = 0.3`` sets one, durably, in any process.

        Works in a store of any mode, beside a process that writes to the pool. ReadOnlyError: no permission to write to
        the file. InUseError: 128 changes wait for that process. InvalidError: metrics and metadata would take more than
        1200 bytes.
        """
        return Metrics(self._now()["metrics"], self._put_metric)

    @property
    def note(self) -> str | None:
        """Its note, a text of at most 900 bytes, or None: the ``message`` in `meta`. Set as `metrics` are."""
        note = self.meta.get("message")
        return note if isinstance(note, str) else None

    @note.setter
    def note(self, text: str | None) -> None:
        if not isinstance(text, str | None):
            raise UnsupportedError(f"a note must be a str or None, not {type(text).__qualname__!r}")
        self._check_same_now()
        self._shelf._store._pool.note_set(self._shelf._name, self._number, text or "")

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the capture, with its `note` now.

        DamagedError: it is nested more than 200 levels deep, which no capture allows.
        """
        try:
            meta: dict[str, Any] = json.loads(self._now()["meta_json"])
        except RecursionError:
            raise DamagedError(f"{self._address}: its metadata is nested too deeply to be read") from None
        return meta

    @property
    def tags(self) -> list[str]:
        """Its tags now, sorted."""
        return sorted(self._handle.tags())

    @property
    def remote(self) -> str | None:
        """The URL that has its contents, if they have left the pool (`Shelf.policy`, ``local``): reading fetches."""
        url: str | None = self._now().get("remote")
        return url

    @property
    def raw_bytes(self) -> int:
        """Bytes of its tensors and values, decoded."""
        raw_bytes: int = self._info["raw_bytes"]
        return raw_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of the payloads of all its contents now: shared ones in full, bases of deltas excluded."""
        stored: int = self.storage()["stored_bytes"]
        return stored

    @property
    def new_bytes(self) -> int | None:
        """Payload bytes that it added, as stored now: of contents that no earlier snapshot references.

        The sum over a shelf counts each content once. A fork adds nothing. None: unknown, as metadata is damaged.
        """
        self.wait()
        (found,) = self._shelf.store._pool.new_bytes(self._shelf.name, [self._number])
        return found

    def storage(self) -> dict[str, Any]:
        """Report how it is stored now.

        Returns
        -------
        dict
            ``stored_bytes``, ``raw_contents``, ``delta_contents``, ``keyframe_contents``, ``link_contents``,
            ``longest_chain`` and ``longest_line`` (deltas and links to undo, at most), and ``links_note``: why no links
            lead to it from the step before, or which float tensors have none beside others that do; or None.
        """
        storage = self._handle.storage()
        if storage["links_note"] is None and storage["link_contents"] > 0:
            storage["links_note"] = self._unlinked()
        return storage

    def _unlinked(self) -> str | None:
        try:
            older = {entry["name"]: entry for entry in self._shelf[self._number - 1].entries()}
        except (Error, LookupError):
            older = {}
        reasons: dict[str, list[str]] = {}
        for entry in self.entries():
            before = older.get(entry["name"], {"content": 0, "stored_as": ""})
            is_turn = entry["stored_as"] == "keyframe" and before["stored_as"] == "link"  # begins the next line
            coded = entry["stored_as"] in ("delta", "keyframe") and entry["content"] != before["content"]
            if coded and not is_turn and (entry["dtype"] or "").startswith(("f", "bf")):
                known = "no step that is known leads to" if entry["dtype"] == "f32" else "links are for f32, not for"
                reasons.setdefault(known, []).append(entry["name"])
        texts = [
            f"{reason} {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            for reason, names in reasons.items()
        ]
        return "; ".join(texts) or None

    @property
    def digest(self) -> str:
        """Hash of its content (tensors, values, step, time, parent, metrics, meta), however it is stored: hex."""
        return self._handle.digest().hex()

    def names(self) -> list[str]:
        """Return the names of its tensors, in the order of the capture."""
        return self._handle.names()

    def captured(self, timeout: float | None = None) -> bool:
        """Wait until the tensors of a lazy snapshot are copied, so that they may change; at most `timeout` seconds.

        Returns whether they are. InvalidError: one was changed before, so the snapshot does not exist; or this is a
        forked child, whose parent was still copying. Other errors are those of `wait`.
        """
        job = self._job  # another thread may reset it
        if job is None:
            return True
        if not job.wait(timeout):
            return False
        if job.failed or not job.ended:
            self.wait()
        self._job = None
        return True

    def wait(self) -> Self:
        """Wait until a snapshot taken with ``wait=False`` is durable, and return it.

        If it could not be made durable, it does not exist, and every call raises the failure.
        """
        capture = self._capture  # another thread may reset it
        if capture is not None:
            capture.wait()
            self._capture = None
        return self

    @property
    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        capture = self._capture
        return capture is None or capture.done

    # Reading

    def state_dict(
        self, path: Any = (), *, types: Iterable[type] | Mapping[str, type] = (), verify: bool | None = None
    ) -> Any:
        """Read the state, or the part at `path` (as for ``snap[path]``): the same nesting, types and values.

        Torch tensors are on the CPU, row-major and writable; writes never reach the snapshot. NumPy arrays are
        read-only. Both stay valid after the store's close. Raw payloads are mapped without a copy; others are decoded.
        `verify`: whether raw payloads are compared with their checksums first, once per open store (None: the
        setting of `lmcstore.open`); False maps them without reading them: unverified.

        Tensors and arrays that shared part of their memory share it again, with their strides, if they are read
        together. Lazily conjugated or negated tensors don't, nor views with few elements in a range of more than
        64 MiB.

        Classes are never imported by a stored name: a namedtuple is read as one made of its stored names, a dataclass
        as a dict, an enum as its value, unless `types` has the class: ``types=[Config, Color]``, or a dict of classes
        by their whole stored names. One of a list is also found in another module, in lower case, if no other stored
        name fits. A dataclass is made without its ``__init__``.

        An imported snapshot, or one made in C, gives a dict of its tensors by name (NumPy arrays without torch).

        Raises
        ------
        NotFoundError
            The snapshot was removed, or has no such part.
        DamagedError
            Its bytes are damaged. The text names the tensor, the snapshot before, and the command that repairs it.
        UnsupportedError
            It holds torch tensors and torch is not installed, or a newer lmcstore wrote it.
        """
        decoded = self._decode()
        flags = decoded.flags if verify is None else flags_of(verify)
        return decoded.read(decoded.find(path), flags, Types(types, decoded.root))

    def __getitem__(self, path: Any) -> Any:
        """Return a tensor, a part or a value of the state.

        `path` has keys and indexes, joined by dots, or is a tuple of them where dots are ambiguous. A tensor is a
        `lmcstore.LazyTensor`, read when it is used: ``snap["model.h.0.weight"][:64]`` decodes 64 rows, and
        ``snap["model.h.0.weight"].torch()`` or `state_dict` all of it, as an ordinary tensor. A part with tensors is a
        `lmcstore.Part`, a dict (or a list or tuple) of these.

        Raises
        ------
        NotFoundError
            (a KeyError) The path leads nowhere. The text lists the keys in its place.
        InvalidError
            The dotted path fits several parts.
        """
        decoded = self._decode()
        return lazy(decoded, decoded.find(path))

    def __contains__(self, path: object) -> bool:
        return bool(self._decode().matching(path))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._decode().children())

    def __len__(self) -> int:
        return len(self._decode().children())

    def __bool__(self) -> bool:
        return True  # also with an empty state

    def keys(self) -> KeysView[Any]:
        """Return the keys of the state, or the indexes of a list; none if it is a single tensor or value."""
        return self._decode().children().keys()

    def items(self) -> ItemsView[Any, Any]:
        """Return pairs of a key and its part: ``snap[key]``."""
        decoded = self._decode()
        return {key: lazy(decoded, node) for key, node in decoded.children().items()}.items()

    def values(self) -> ValuesView[Any]:
        """Return the part of each key: ``snap[key]``."""
        return dict(self.items()).values()

    def get(self, path: Any, default: Any = None) -> Any:
        """Return ``snap[path]``, or `default` if there is no such part."""
        decoded = self._decode()
        return lazy(decoded, decoded.find(path)) if decoded.matching(path) else default

    def _ipython_key_completions_(self) -> list[Any]:
        keys = [key for key in self if type(key) in (str, int)]
        paths = [name for name in self.names() if "~" not in name and name in self] if keys else []
        return list(dict.fromkeys([*keys, *paths]))

    def select(self, pattern: str) -> dict[str, Any]:
        """Read only the tensors whose names match a pattern, by name.

        The pattern has ``*``, ``?`` and ``[...]`` as in file names: ``"model.*.weight"``.
        """
        decoded = self._decode()
        return decoded.read_refs(decoded.fitting(pattern))

    def rows(self, path: Any, start: int | None = None, stop: int | None = None) -> Any:
        """Read rows of a tensor, as a copy: ``snap.rows("model.wte.weight", 0, 64)``.

        Decodes only their blocks of 1 MiB. `path` is as for ``snap[path]``, `start` and `stop` as in a slice.
        InvalidError: it is no tensor, or has no rows.
        """
        decoded = self._decode()
        return decoded.read_rows(decoded.find(path), start, stop)

    def tensors(self, pattern: str = "*", budget: int | str = "1GiB") -> Iterator[tuple[str, Any]]:
        """Yield names and tensors in the order of `names`, within a bound on their memory.

        Decodes `budget` bytes (int, or text such as "1GiB") at a time, one tensor at least; earlier tensors are freed
        unless the caller keeps them. `pattern` is as for `select`.
        """
        decoded = self._decode()
        for batch in decoded.batches(decoded.fitting(pattern), parse_size(budget)):
            read = decoded.read_refs(batch)
            for name in list(read):
                yield name, read.pop(name)

    def entries(self) -> list[dict[str, Any]]:
        """Report how each tensor and attachment is stored.

        Returns
        -------
        list of dict
            ``name``, ``is_attachment``, ``dtype``, ``shape``, ``raw_bytes``, ``stored_bytes``, ``stored_as``
            (``"raw"``, ``"keyframe"``, ``"delta"`` or ``"link"``), ``chain`` (deltas or links to undo), ``content``
            (equal: shared).
        """
        return self._described(self._handle.entries())

    def _described(self, entries: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
        made = []
        for name, kind, dtype, shape, raw_bytes, stored_bytes, stored_as, chain, content, _ in entries:
            known = _core.dtype_info(dtype)
            made.append(
                {
                    "name": name,
                    "is_attachment": kind == _core.ATTACHMENT,
                    "dtype": known[0] if known is not None else None,
                    "shape": shape,
                    "raw_bytes": raw_bytes,
                    "stored_bytes": stored_bytes,
                    "stored_as": _STORED_AS[stored_as] if stored_as < len(_STORED_AS) else "unknown",
                    "chain": chain,
                    "content": content,
                }
            )
        return made

    def diff(
        self, other: Snapshot, *, same: bool = False, numbers: bool = True, progress: Progress | None = None
    ) -> diff.Diff:
        """Compare with `other`, of any shelf of this store (else InvalidError); the `Diff` prints as a table.

        Only tensors with different digests are read, block by block, in the pool's threads. `same` lists equal tensors,
        too. ``numbers=False`` reads none and only lists the different ones. `progress` is called now and then; it may
        raise to stop.
        """
        if not isinstance(other, Snapshot):
            raise UnsupportedError(f"a snapshot differs from a snapshot, not from {a_kind(other)}")
        flags = (_core.DIFF_SAME if same else 0) | (0 if numbers else _core.DIFF_NAMES)
        rows, report = self._handle.diff(other._handle, flags, progress)
        return diff.make(self._address, other._address, rows, report)

    def fork(self, name: str) -> Shelf:
        """Make a shelf whose first snapshot is this one; ExistsError: there is a shelf of that name.

        It has the same tensors, step, time, metrics, metadata and tags; nothing is copied. Shared contents stay until
        neither shelf needs them.
        """
        store = self._shelf._store
        store._check_writable()
        self._handle.fork(name)
        return store[name]

    def load_into(
        self,
        target: Any = None,
        /,
        *,
        cast: bool = False,
        strict: bool = True,
        types: Iterable[type] | Mapping[str, type] = (),
        **parts: Any,
    ) -> Loaded:
        """Load the state into existing objects, and make this snapshot the parent of the next one.

        All targets are loaded, or none. Everything is read, its checksums verified (of raw payloads once per open
        store: `lmcstore.open`), and checked against the targets before anything changes: keys, shapes, dtypes, memory
        that can be written, states of generators, an optimizer's class by the keys of its groups and states, a
        scheduler's by its keys. Targets get copies. Returns the snapshot:
        ``start = shelf.latest.load_into(model=model).step + 1``.

        Keys of a module or dict that differ from the snapshot's only by names that wrappers add (``_orig_mod.`` of
        ``torch.compile``, ``module.`` of DistributedDataParallel, those of FSDP and activation checkpointing) are
        loaded if so all keys match one to one, also by modules with hooks.

        If loading still fails, all targets get back their earlier values, and the error is passed on. A target that
        only itself can check (a module with hooks or its own loading function, an object that is neither module nor
        optimizer) is loaded before the others, and restored by a copy of its ``state_dict()`` on the CPU; one without
        ``state_dict`` can't be restored. Of tensors, arrays and modules, which are written last and in place, the
        first GiB is kept until all are written; the rest can't be restored if a device fails or the process is
        interrupted.

        Values in containers are replaced; a namedtuple, defaultdict, deque or other subclass of a target stays of its
        class. Targets in fields of a dataclass are filled; the dataclass is replaced by a copy with the other fields.

        Parameters
        ----------
        target
            For the whole state: an object with ``load_state_dict``, or a dict of the possible keyword arguments. Parts
            that the dict does not name are not read.
        **parts
            For parts of the state by their key (``model=model``): objects with ``load_state_dict`` (modules,
            optimizers, schedulers, a GradScaler), generators (torch's; NumPy's, saved as ``bit_generator.state``;
            ``random.Random`` or the module ``random``, saved as ``getstate()``; a NumPy ``RandomState`` or the module
            ``numpy.random``, saved as ``get_state()``), tensors and NumPy arrays (filled in place), or dicts, lists,
            deques and tuples of these, in which plain values are replaced; a dict of plain values alone also gets keys
            that it lacks. Other parts are ignored.
        cast
            Convert to the targets' dtypes, which may round; text only to a longer one. Without it every saved bit is
            loaded, also an optimizer's state in another dtype than its parameters. (Load parts called "cast", "strict"
            or "types" by a dict.)
        strict
            If false, load the keys that modules and dicts share with the snapshot, as for adapters (LoRA); the other
            targets stay. The result lists ``missing_keys`` and ``unexpected_keys``, as torch's ``load_state_dict``
            does, by their paths in the state. Shapes and dtypes must fit nevertheless.
        types
            As for `state_dict`. A dataclass or enum of a target is a class that is made, too: the dataclass as a copy
            of the target with the stored fields, the enum by the stored name of its member, else by its value.

        Raises
        ------
        NotFoundError
            The snapshot has no such part, or lacks keys of a module or dict. The text lists unexpected keys, too.
        InvalidError
            Keys, shapes, dtypes or parameter groups don't fit, or an optimizer or scheduler is of another class. Shapes
            and keys in the state of optimizers other than torch's are not checked.
        UnsupportedError
            A target can't be loaded into, or its elements share memory, or it is a DTensor (as FSDP2's parameters).
        DamagedError
            A checksum doesn't match.
        """
        for name, option in (("cast", cast), ("strict", strict)):
            if not isinstance(option, bool):
                raise UnsupportedError(
                    f'{name} must be a bool; a part that is called so is loaded by a dict: {{"{name}": ...}}'
                )
        if (target is None) == (not parts):
            raise InvalidError("load_into takes one target for the whole state, or parts by name")
        decoded = self._decode()
        flags = flags_of(True)
        classes = Types(types, decoded.root, keeps_names=True)
        plan = Plan(cast, strict, self._instead)
        if target is not None:
            root, children = decoded.root, decoded.children()
            plan.add_root(
                target,
                children,
                lambda keys: decoded.read(root if len(keys) == len(children) else part_of(root, keys), flags, classes),
            )
        for name, part in parts.items():
            plan.add(part, decoded.read(decoded.find(name if decoded.is_flat else (name,)), flags, classes), name)
        plan.run()
        self._handle.mark_loaded()
        loaded = object.__new__(Loaded)
        loaded.__dict__.update(self.__dict__)
        loaded.missing_keys, loaded.unexpected_keys = plan.report.missing, plan.report.unexpected
        return loaded

    def export(
        self, path: str | os.PathLike[str], part: str | None = None, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Write its tensors, or those below a dotted path, as a safetensors file: all of it or nothing.

        A file of that name is replaced. NumPy arrays of the other byte order, of text, times or records are written as
        they are stored: as u8, with one more dimension for the bytes of an item.
        """
        return self._handle.export(part, file_path(path), progress)

    # Inside

    @property
    def _address(self) -> str:
        return f"{self._shelf._name}@{self._number}"

    def _open(self) -> tuple[_core.Snapshot, dict[str, Any]]:
        if self._opened is None:
            self.wait()
            handle = self._found()
            info = handle.info()
            if self._shelf_id and self._shelf._id() != self._shelf_id:
                raise NotFoundError(
                    f"{self._shelf._store.path}: {self._address} is another snapshot now: the shelf was begun anew"
                )
            if self._time_ns is not None:
                _check_same(self._shelf._store.path, self._shelf._name, handle, self._time_ns, info["raw_bytes"])
            self._opened = handle, info
        return self._opened

    @property
    def _handle(self) -> _core.Snapshot:
        return self._open()[0]

    @property
    def _info(self) -> dict[str, Any]:
        return self._open()[1]

    def _now(self) -> dict[str, Any]:
        """Return its properties, with annotations that came since it was opened; the old ones once it is gone."""
        is_fresh = self._opened is None
        info = self._info
        try:
            now = info if is_fresh else self._found().info()
        except Error:
            return info
        return now if (now["time_ns"], now["raw_bytes"]) == (info["time_ns"], info["raw_bytes"]) else info

    def _found(self) -> _core.Snapshot:
        return self._shelf._store._find(self._shelf._name, str(self._number))

    def _check_same_now(self) -> None:
        info = self._info  # waits until it is durable
        _check_same(self._shelf._store.path, self._shelf._name, self._found(), info["time_ns"], info["raw_bytes"])

    def _is_there(self) -> bool:
        try:
            self.wait()
        except Error:
            return False
        try:
            self._check_same_now()
        except (NotFoundError, InvalidError):
            return False
        return True

    def _put_metric(self, name: str, value: float) -> None:
        self._check_same_now()
        self._shelf._store._pool.metric_set(self._shelf._name, self._number, name, value)

    def _decode(self) -> Decoded:
        if self._decoded is None:
            handle, info = self._open()
            store = self._shelf._store
            reopened = functools.partial(_reopened, store, self._shelf._name, self._number, info)
            self._decoded = Decoded(handle, store, reopened)
        return self._decoded

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        return (self._shelf, self._number) == (other._shelf, other._number)

    def __hash__(self) -> int:
        return hash((self._shelf, self._number))

    def __copy__(self) -> Self:
        return copy.deepcopy(self)  # like all copies, with a store of its own

    def __reduce__(self) -> Any:
        info = self._info  # waits until it is durable
        return _found_again, (self._shelf, self._number, info["time_ns"], info["raw_bytes"])

    def _repr_html_(self) -> str:
        if self._capture is not None:
            return html.table(repr(self), (), ())
        entries = [entry for entry in self.entries() if not entry["is_attachment"]]
        rows = [
            (entry["name"], entry["dtype"], entry["shape"], html.size(entry["raw_bytes"]), entry["stored_as"])
            for entry in entries[: html.MOST_ROWS]
        ]
        title = f"{self._address}, {html.when(self.time)} UTC, {html.size(self.raw_bytes)}"
        return html.table(title, ("tensor", "dtype", "shape", "size", "stored"), rows, len(entries) - len(rows))

    def __repr__(self) -> str:
        step = self._captured_step
        if self._capture is None and self._opened is not None:
            step = self._opened[1]["step"]
        text = f"<lmcstore.Snapshot {printable(self._shelf._name)}@{self._number}"
        return f"{text}, step {step}>" if step is not None else f"{text}>"


class Loaded(Snapshot):
    """The snapshot that `Snapshot.load_into` loaded, and the keys that it did not load (``strict=False``)."""

    missing_keys: list[str]
    """Paths of the targets' keys that the snapshot lacks: they stay as they were."""
    unexpected_keys: list[str]
    """Paths of the snapshot's keys that the targets lack."""


def _reopened(store: Store, shelf: str, number: int, info: dict[str, Any]) -> _core.Snapshot:
    """Open a snapshot anew, for reading, in a forked child; NotFoundError: it is gone."""
    pool = store._pool
    if store._again is None:
        pool = _core.open(store._pool_path, _core.OPEN_READ, 0, _CHILD_WAIT_MS, 1, _core.NO_BACKGROUND)
    handle = pool.find(shelf, str(number), store._verifies)
    _check_same(store.path, shelf, handle, info["time_ns"], info["raw_bytes"])
    return handle


def _found_again(shelf: Shelf, number: int, time_ns: int, raw_bytes: int) -> Snapshot:
    """Find the snapshot of a copy, or of a pickle; NotFoundError: it is gone."""
    snapshot = shelf._taken(number)
    _check_same(shelf.store.path, shelf.name, snapshot._handle, time_ns, raw_bytes)
    return snapshot


def _check_same(path: str, shelf: str, handle: _core.Snapshot, time_ns: int, raw_bytes: int) -> None:
    now = handle.info()
    if (now["time_ns"], now["raw_bytes"]) != (time_ns, raw_bytes):
        raise NotFoundError(f"{path}: {shelf}@{now['number']} is another snapshot now")
