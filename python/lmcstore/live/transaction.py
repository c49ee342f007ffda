# SPDX-License-Identifier: BSD-3-Clause
"""`Transaction`: atomic changes of live variables."""

from __future__ import annotations

import operator
from types import TracebackType
from typing import Any, Self

from .. import _core
from ..errors import InvalidError, UnsupportedError
from .tensor import LiveTensor


class Transaction:
    """Changes of live variables that become durable together or not at all: ``with shelf.transaction():``.

    Between its begin and end, changes through any array, tensor, function or thread are visible to this process only.
    The end makes them durable; an exception or a crash undoes them. Memory and time grow with the written pages, not
    with the tensors' sizes.

    No thread may store to arrays or tensors of its variables (by default all of the shelf) during its begin, commit or
    abort: such a store may be lost without an error.
    """

    def __init__(self, core: _core.Transaction) -> None:
        self._core = core

    @property
    def ended(self) -> bool:
        """Whether it was committed or aborted."""
        return self._core.ended

    @property
    def bytes(self) -> int:
        """Bytes of pages that `commit` would write now."""
        return self._core.bytes()

    def declare(self, variable: LiveTensor, start: int = 0, stop: int | None = None) -> None:
        """Declare elements of a tensor before storing to them, where that is needed."""
        item = variable._element_bytes
        count = variable.nbytes // item
        stop = count if stop is None else operator.index(stop)
        if not 0 <= start <= stop <= count:
            raise InvalidError(f"live tensor {variable.name!r} has {count} elements: no range {start}:{stop}")
        self._core.declare(variable._core, start * item, (stop - start) * item)

    def commit(self) -> None:
        """End it and make it durable.

        No thread may store to its variables meanwhile. FullError: it has written more pages than its limit, or than
        fit; it continues and can be aborted.
        """
        self._core.commit()

    def abort(self) -> None:
        """End it and undo its changes; no thread may store to its variables meanwhile. Does nothing after its end."""
        self._core.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._core.ended:
            return
        if kind is not None:
            self._core.abort()
            return
        try:
            self._core.commit()
        except BaseException:
            self._core.abort()
            raise

    def __reduce__(self) -> Any:
        raise UnsupportedError("a transaction can't be copied or pickled: it belongs to this process")

    def __repr__(self) -> str:
        return f"<lmcstore.Transaction, {'ended' if self.ended else 'under way'}>"
