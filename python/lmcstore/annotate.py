# SPDX-License-Identifier: BSD-3-Clause
"""`Metrics`: the metrics of a snapshot, which can be set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ._text.arguments import metric_lists
from .errors import UnsupportedError


class Metrics(dict[str, float]):
    """The metrics of a snapshot when they were read, as a dict. Setting one changes the snapshot.

    A change is durable when the statement ends, also beside a process that writes to the pool. It needs permission to
    write to the file. A metric can be changed, but not removed.
    """

    def __init__(self, values: dict[str, float], put: Callable[[str, float], None]) -> None:
        super().__init__(values)
        self._put = put

    def __setitem__(self, name: str, value: float) -> None:
        self.update({name: value})

    def update(self, *others: Any, **more: Any) -> None:
        """Set several metrics, one after the other. UnsupportedError: a name is no str, or a value no number."""
        names, values = metric_lists(dict(*others, **more))
        for name, value in zip(names, values, strict=True):
            self._put(name, value)
            super().__setitem__(name, value)

    def setdefault(self, name: str, default: Any = None) -> float:
        """Return the metric, set first if there is none."""
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, others: Any) -> Metrics:  # type: ignore[override,misc]
        self.update(others)
        return self

    def _refuse(self, *_: object) -> NoReturn:
        raise UnsupportedError("a metric of a snapshot can be changed, but not removed; dict(snap.metrics) is a copy")

    __delitem__ = popitem = clear = _refuse

    def pop(self, name: str, *default: Any) -> Any:
        """Take a metric out of this dict. The snapshot keeps it."""
        return super().pop(name, *default)

    def copy(self) -> dict[str, float]:
        """Return an ordinary dict, whose changes stay in it."""
        return dict(self)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> dict[str, float]:
        return dict(self)
