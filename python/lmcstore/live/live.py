# SPDX-License-Identifier: BSD-3-Clause
"""`Live`: the live variables of a shelf by name: tensors in the pool, changed in place, and small values.

A NumPy array or torch tensor over a live tensor *is* the pool's bytes, and may be larger than memory. Stores to it are
durable after `LiveTensor.persist`, or at the end of a transaction, all or nothing. Values and all functions here are
atomic, and durable when they return.
"""

from __future__ import annotations

import contextlib
import math
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from .. import _core
from .._arrays import numpy as _numpy
from .._arrays.dtypes import BY_NUMBER, code_of, name_of, size_of
from .._arrays.packages import loaded
from .._state.lazy import LazyTensor
from .._state.live_table import PYTHON, TORCH
from .._text import html
from .._text.arguments import a_kind, address, check_name, int64, meta_json, metric_lists, parse_size, tag_names
from ..errors import DamagedError, ExistsError, InvalidError, NotFoundError, UnsupportedError
from ..snapshot import Snapshot
from .kinds import (
    MAX_BYTES,
    Kind,
    access_of,
    kind_of,
    note_bytes,
    numpy_dtype,
    numpy_kind,
    shape_of,
    torch_module,
    wait_ms,
)
from .tensor import LiveTensor
from .transaction import Transaction
from .value import LiveValue, pack_value
from .variable import LiveInfo, LiveVariable, info_of

if TYPE_CHECKING:
    from ..shelf import Shelf


_NONE_GIVEN: Any = object()


class Live(MutableMapping[str, Any]):
    """The live variables of a shelf by name: `Shelf.live`.

    ``live["w"]`` is a NumPy array or torch tensor over the pool's bytes, or a value. ``live["w"] = array`` makes or
    replaces the variable, all or nothing; holders of the old one keep it. ``live["w"][...] = array`` writes in place,
    and so does ``live["w"] += 1``, which also makes it durable. A number made by `value` keeps its dtype when a number
    of the same kind (int, float, bool) and in range is assigned.

    Examples
    --------
    >>> live = shelf.live
    >>> live["w"] = numpy.zeros((2, 3), "f4")
    >>> w = live["w"]
    >>> w[0] = 1.5                                  # in the pool
    >>> live.persist("w")                           # and durable
    >>> live["epoch"] = 7                           # durable at once
    >>> live["epoch"]
    7
    >>> with shelf.transaction():
    ...     w += 1
    ...     live["epoch"] = 8
    >>> number = live.snapshot(step=8).number
    >>> w[...] = 0
    >>> live.checkout(number)
    >>> float(w[0, 0]), sorted(live)
    (2.5, ['epoch', 'w'])
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    @property
    def _pool(self) -> _core.Pool:
        return self._shelf._store._pool

    # Making

    def tensor(
        self, name: str, shape: Any = None, dtype: Any = None, *, reserve: int | str = 0, access: str | None = None
    ) -> LiveTensor:
        """Open a tensor. If there is none and a shape is given, make it, all zeros.

        Threads that make it at once get the same one.

        Parameters
        ----------
        shape : int or tuple of int, optional
        dtype : str, torch.dtype or NumPy dtype
            ``"float32"``, ``"bfloat16"``, or a dtype of torch or NumPy, which also decides the package of
            ``live[name]``. Default: NumPy's float64.
        reserve
            Size up to which it can grow in place: "10GiB". Reserves addresses, no file space. Default: twice its size.
        access
            Advice to the kernel, see `LiveTensor.advise`: ``"random"`` for single rows of a tensor larger than memory,
            ``"sequential"`` or ``"normal"``. Default: unchanged, at first ``"normal"``.

        Raises
        ------
        NotFoundError
            There is none, and no shape was given.
        ExistsError
            There is one of another shape or dtype.
        FullError
            No room.
        """
        if access is not None:
            access_of(access, f"live tensor {name!r}")  # before one is made
        found = self._open_tensor(name) if shape is None else self._fitting(name, shape, dtype, reserve)
        if access is not None:
            found.advise(access)
        return found

    def _fitting(self, name: str, shape: Any, dtype: Any, reserve: int | str) -> LiveTensor:
        found = self._opened_or_made(name, lambda: self.create(name, shape, dtype, reserve=reserve))
        if not isinstance(found, LiveTensor):
            raise InvalidError(f"live variable {name!r} is a value, not a tensor")
        kind = kind_of(float if dtype is None else dtype, name)
        wanted = shape_of(shape, name)
        is_described = ":" in found._note
        fits = found._note == kind.note or not (is_described or ":" in kind.note)
        if not fits or (found._dtype, found._core.info()["shape"]) != (kind.dtype, (*wanted, *kind.tail)):
            dtype = numpy_dtype(found._dtype, found._note, f"live tensor {name!r}") if is_described else found.dtype
            raise ExistsError(f"live tensor {name!r} is there already, as {dtype} of shape {found.shape}")
        return found

    def create(
        self, name: str, shape: Any, dtype: Any = None, *, reserve: int | str = 0, access: str = "normal"
    ) -> LiveTensor:
        """Make a tensor, all zeros: as `tensor`, but ExistsError when there is one."""
        advice = access_of(access, f"live tensor {name!r}")
        self._shelf._store._begin_writing(self._shelf.name)
        kind = kind_of(float if dtype is None else dtype, name)
        made = LiveTensor(self._create(name, shape_of(shape, name), kind, parse_size(reserve), 0))
        if advice != _core.ACCESS_NORMAL:
            made.advise(access)
        return made

    def value(self, name: str, dtype: Any = "int64", initial: Any = 0) -> LiveValue:
        """Open a value of one number, which allows atomic updates; make it (`initial`) if there is none.

        Threads that make it at once get the same one: ``live.value("hits").add(1)`` loses no count. `dtype` is text
        (``"int64"``, ``"uint8"``, ``"float64"`` ...) or a dtype of torch or NumPy.
        """
        number, tail, _ = kind_of(dtype, name)
        code = code_of(number)
        if tail or not code:
            raise UnsupportedError(f"{name}: a value of one number has a dtype such as 'int64', not {dtype!r}")

        def make() -> LiveValue:
            self._shelf._store._begin_writing(self._shelf.name)
            try:
                first = struct.pack("<" + code, initial)
            except (struct.error, OverflowError) as error:
                raise InvalidError(f"{name}: {dtype} can't hold {initial!r}: {error}") from None
            form = _core.LIVE_VALUE
            return LiveValue(self._pool.live_create(self._shelf.name, name, number, (), form, 0, 0, b"", first))

        found = self._opened_or_made(name, make)
        if not isinstance(found, LiveValue) or found._dtype != number or found.info().shape != ():
            raise InvalidError(f"live variable {name!r} is there already, and is no value of one {dtype}")
        return found

    def _opened_or_made(self, name: str, make: Callable[[], LiveTensor | LiveValue]) -> LiveTensor | LiveValue:
        while True:
            try:
                return self.open(name)
            except NotFoundError:
                pass
            try:
                return make()
            except ExistsError:
                pass  # another thread has made it meanwhile

    def _create(self, name: str, shape: tuple[int, ...], kind: Kind, reserve: int, flags: int) -> _core.Live:
        full = (*shape, *kind.tail)
        if len(full) > _core.MAX_DIMS:
            raise UnsupportedError(f"{name}: an array of {len(shape)} dimensions can't be stored")
        if math.prod(full) * size_of(kind.dtype) > MAX_BYTES:
            raise InvalidError(f"{name}: a tensor of shape {shape} is too large for any pool")
        note = note_bytes(kind.note, name)
        return self._pool.live_create(self._shelf.name, name, kind.dtype, full, _core.LIVE_TENSOR, flags, reserve, note)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        self._shelf._store._begin_writing(self._shelf.name)
        if self._is_done_in_place(name, value):
            return
        if isinstance(value, LiveTensor):
            value = value.array
        elif isinstance(value, LazyTensor):
            value = value.read()
        torch, numpy = loaded("torch"), loaded("numpy")
        if torch is not None and isinstance(value, torch.Tensor):
            self._put_tensor(name, value)
        elif numpy is not None and isinstance(value, numpy.ndarray):
            _numpy.refuse_masked(value, name)
            kind = numpy_kind(value.dtype, name)
            made = LiveTensor(self._create(name, value.shape, kind, 0, _core.LIVE_UNNAMED))
            made.array[...] = value
            made._core.replace(name)
        else:
            self._pool.live_put(self._shelf.name, name, pack_value(value, name), PYTHON.encode())

    def _is_done_in_place(self, name: str, value: Any) -> bool:
        """Store without a new variable if possible: the variable itself, or a number of its dtype."""
        try:
            found = self.open(name)
            is_over = isinstance(found, LiveTensor) and _is_over(value, found)
        except (NotFoundError, DamagedError, UnsupportedError):  # an unreadable variable can be replaced
            return False
        if isinstance(found, LiveTensor):
            if is_over:
                found.persist()
            return is_over
        if not _is_number_for(found, value):
            return False
        found.set(value)
        return True

    def _put_tensor(self, name: str, value: Any) -> None:
        torch = torch_module()
        described = torch.describe(value, name)
        kind = Kind(described.dtype, (), TORCH)
        made = LiveTensor(self._create(name, tuple(value.shape), kind, 0, _core.LIVE_UNNAMED))
        made.tensor.copy_(value.detach())
        made._core.replace(name)

    # Finding

    def open(self, name: str) -> LiveTensor | LiveValue:
        """Return a variable as an object that holds it; NotFoundError: none; DamagedError: it can't be used."""
        _check_name(name)
        core = self._pool.live_open(self._shelf.name, name)
        return LiveTensor(core) if core.info()["form"] == _core.LIVE_TENSOR else LiveValue(core)

    def _open_tensor(self, name: str) -> LiveTensor:
        found = self.open(name)
        if not isinstance(found, LiveTensor):
            raise InvalidError(f"live variable {name!r} is a value, not a tensor")
        return found

    def __getitem__(self, name: str) -> Any:
        found = self.open(name)
        if isinstance(found, LiveValue):
            return found.get()
        return found.tensor if found._note == TORCH else found.array

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self.open(name)
        except (NotFoundError, InvalidError):
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        count: int = self._pool.live_usage(self._shelf.name)["variables"]
        return count

    def names(self, prefix: str = "", *, since: float = 0.0, until: float | None = None) -> list[str]:
        """Return the names, sorted, of all or some variables.

        Parameters
        ----------
        prefix
            The beginning of the names.
        since, until
            Written (by a function, or persisted) at or after the one time and before the other: seconds since 1970.
        """
        return self._pool.live_list(self._shelf.name, prefix, _ns(since), _ns(until), True)

    def infos(self, prefix: str = "", *, since: float = 0.0, until: float | None = None) -> list[LiveInfo]:
        """Report properties of the variables, sorted by name: as `names`."""
        return [info_of(raw) for raw in self._pool.live_list(self._shelf.name, prefix, _ns(since), _ns(until), False)]

    def info(self, name: str) -> LiveInfo:
        """Report properties of a variable, without reading it."""
        return self.open(name).info()

    @property
    def used_percent(self) -> float:
        """Used percentage of the pool's capacity."""
        percent: float = self._pool.live_usage(self._shelf.name)["pool_percent"]
        return percent

    # Changing

    def persist(self, name: str | None = None) -> None:
        """Make stores to a tensor durable, or to all tensors of the shelf."""
        names = [info.name for info in self.infos() if info.is_tensor] if name is None else [name]
        for one in names:
            self._open_tensor(one).persist()

    def erase(self, name: str) -> None:
        """Remove a variable, and free its space; NotFoundError: there is none.

        InUseError: this process holds it, or an array or tensor over it. Nothing changes.
        """
        _check_name(name)
        self._shelf._store._check_writable()
        self._pool.live_erase(self._shelf.name, name)

    def __delitem__(self, name: str) -> None:
        self.erase(name)

    def pop(self, name: str, default: Any = _NONE_GIVEN) -> Any:
        """Remove a variable and return its value: arrays and tensors are copies.

        NotFoundError: there is none, and no default was given. InUseError: as `erase`.
        """
        try:
            found = self[name]
        except NotFoundError:
            if default is _NONE_GIVEN:
                raise
            return default
        torch, numpy = loaded("torch"), loaded("numpy")
        if torch is not None and isinstance(found, torch.Tensor):
            found = found.clone()
        elif numpy is not None and isinstance(found, numpy.ndarray):
            found = found.copy()
        self.erase(name)
        return found

    def popitem(self) -> tuple[str, Any]:
        """Remove the first variable by name, and return its name and value: as `pop`."""
        name = next(iter(self), None)
        if name is None:
            raise NotFoundError(f"shelf {self._shelf.name!r} has no live variables")
        return name, self.pop(name)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return a variable as ``live[name]`` does; if there is none, make it of the default first."""
        if name not in self:
            self[name] = default
        return self[name]

    def clear(self) -> None:
        """Remove all variables, all or nothing; InUseError: as `erase`.

        In a transaction of this thread it is a part of that, which should be aborted after a failure.
        """
        names = self.names()
        if not names:
            return
        try:
            transaction: Any = self.transaction()
        except InvalidError:  # this thread has begun one
            transaction = contextlib.nullcontext()
        with transaction:
            for name in names:
                self.erase(name)

    def rename(self, name: str, to: str) -> None:
        """Rename a variable; ExistsError: the new name is taken."""
        self._shelf._store._check_writable()
        self._pool.live_rename(self._shelf.name, name, to)

    def swap(self, first: str, second: str) -> None:
        """Exchange the names of two variables in one step."""
        self._shelf._store._check_writable()
        self._pool.live_swap(self._shelf.name, first, second)

    # Transactions and snapshots

    def transaction(
        self,
        variables: Iterable[str | LiveVariable] | LiveVariable | None = None,
        *,
        limit: int | str = 0,
        timeout: float | None = None,
        declared: bool = False,
    ) -> Transaction:
        """Begin a transaction: see `Transaction`.

        No thread may store to arrays or tensors of its variables (by default all of the shelf) during its begin, commit
        or abort.

        Parameters
        ----------
        variables
            Its variables. Default: all of the shelf, later ones included.
        limit
            The most bytes of pages that it may write. Default: 1 GiB, or a quarter of the pool's limit.
        timeout
            Seconds to wait for another transaction of the shelf; None: for ever.
        declared
            Declare every range before storing to it, so that its old bytes are saved. On devices this is always so.

        Raises
        ------
        InvalidError
            This thread has begun one on this shelf already.
        InUseError
            Another one did not end in time.
        """
        self._shelf._store._begin_writing(self._shelf.name)
        lives = None
        if variables is not None:
            chosen = (variables,) if isinstance(variables, str | LiveVariable) else tuple(variables)
            opened = [self.open(one) if isinstance(one, str) else one for one in chosen]
            lives = tuple(one._core for one in opened)
        flags = _core.TRANSACTION_DECLARED if declared else 0
        limit_bytes = parse_size(limit)
        return Transaction(self._pool.transaction(self._shelf.name, lives, flags, wait_ms(timeout), limit_bytes))

    def snapshot(
        self,
        *,
        message: str | None = None,
        step: int | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Snapshot:
        """Take a snapshot of all live variables of the shelf; unchanged contents are shared with the newest one.

        No thread may store to tensors meanwhile; a resize waits. Waits for a transaction of the shelf to end.

        `message` becomes ``meta["message"]``; the rest is as for `Shelf.snapshot`. The ``state_dict()`` of the result
        has the tensors and values by name, as ``live[name]`` gave them: arrays read-only, tensors as writable copies.
        """
        shelf = self._shelf
        shelf._store._begin_writing(shelf.name)
        step = None if step is None else int64(step, "step")
        tag_list = tag_names(tags)
        names, values = metric_lists(metrics)
        if message is not None:
            meta = {**(meta or {}), "message": message}
        json_text = meta_json(meta)
        capture = self._pool.begin(shelf.name)
        try:
            capture.put_live()
            time_ns = time.time_ns()
            number = capture.commit(step, 0, time_ns, tag_list, names, values, json_text, False)
        except BaseException:
            capture.abort()
            raise
        return Snapshot(shelf, number, None, step, time_ns=time_ns)

    def checkout(self, which: int | str | Snapshot = "latest") -> None:
        """Set the live variables to those of a snapshot, in one step; variables that it lacks are erased.

        Held arrays and tensors of the same dtype and shape then show the snapshot's bytes. No thread may store to them
        meanwhile. `which` is as for ``shelf[which]``.

        InUseError: a held variable would be erased, or would change its dtype or shape. InvalidError: the snapshot is
        not of live variables.
        """
        self._shelf._store._check_writable()
        text = address(which) if isinstance(which, int | str) else str(self._shelf._number(which))
        self._pool.live_checkout(self._shelf.name, text)

    def __repr__(self) -> str:
        if self._shelf._store.closed:
            return f"<lmcstore.Live of {self._shelf.name!r} of a closed store>"
        return f"<lmcstore.Live of {self._shelf.name!r}, {len(self)} variables>"

    def _repr_html_(self) -> str:
        if self._shelf._store.closed:
            return html.table(repr(self), (), ())
        infos = self.infos()
        rows = [
            (info.name, info.dtype if info.is_tensor else "value", info.shape, html.size(info.nbytes), info.version)
            for info in infos[: html.MOST_ROWS]
        ]
        head = ("variable", "dtype", "shape", "size", "version")
        return html.table(f"live variables of {self._shelf.name}", head, rows, len(infos) - len(rows))

    def _ipython_key_completions_(self) -> list[str]:
        return self.names()


def _is_over(value: Any, variable: LiveTensor) -> bool:
    """Whether a value is the live tensor itself, which ``live["w"] += 1`` assigns."""
    if variable.nbytes == 0:
        return False
    if isinstance(value, LiveTensor):
        return value._core.address == variable._core.address and value.shape == variable.shape
    torch, numpy = loaded("torch"), loaded("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        if variable._note != TORCH or not value.is_cpu or value.layout is not torch.strided:
            return False
        own = variable.tensor
        same = value.dtype == own.dtype and value.shape == own.shape and value.stride() == own.stride()
        return same and not (value.is_conj() or value.is_neg()) and bool(value.data_ptr() == own.data_ptr())
    if numpy is None or not isinstance(value, numpy.ndarray) or variable._note == TORCH or hasattr(value, "mask"):
        return False
    own = variable.array
    same = value.dtype == own.dtype and value.shape == own.shape and value.strides == own.strides
    return same and bool(value.__array_interface__["data"][0] == own.__array_interface__["data"][0])


def _is_number_for(variable: LiveVariable, value: Any) -> bool:
    """Whether a number fits a variable that was made with a dtype."""
    if variable._struct is None or variable._note == PYTHON or variable._core.info()["shape"] != ():
        return False
    dtype = name_of(variable._dtype)
    own = bool if dtype == "bool" else int if BY_NUMBER[variable._dtype].is_integer else float
    numpy = loaded("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return _numpy.dtype_name(value.dtype) == dtype
    if type(value) is not own and not (own is float and type(value) is int):
        return False
    try:
        stored = variable._struct.unpack(variable._struct.pack(value))[0]
    except (struct.error, OverflowError):
        return False
    return type(value) is float or bool(stored == value)  # a float is rounded to its dtype


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise UnsupportedError(f"a live variable is named by a str, not by {a_kind(name)}")
    check_name(name, "the name of a live variable")


def _ns(seconds: float | None) -> int:
    return 0 if seconds is None else max(0, int(seconds * 1e9))
