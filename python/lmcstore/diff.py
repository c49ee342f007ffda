# SPDX-License-Identifier: BSD-3-Clause
"""Differences of two snapshots, as `Snapshot.diff` returns them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

from ._arrays.dtypes import name_of
from ._text import html
from ._text.text import for_html, printable

KINDS = ("same", "changed", "reshaped", "added", "removed")

_ROWS_SHOWN = 60
_HEAD = ("changed", "max", "rms", "relative", "cosine", "name", "form")


class TensorDiff(NamedTuple):
    """The difference of one tensor or attachment.

    The numbers cover elements that are finite in both snapshots and exist for ``kind == "changed"``. Elements are
    compared as float64, complex numbers by their absolute value.
    """

    name: str
    kind: str
    """``"changed"``, ``"reshaped"`` (another dtype or shape), ``"added"``, ``"removed"`` or ``"same"``."""
    is_attachment: bool
    """Bytes of the application, such as the nesting of a state."""
    before: tuple[str, tuple[int, ...]] | None
    """dtype and shape in the first snapshot; None if it was added."""
    after: tuple[str, tuple[int, ...]] | None
    """dtype and shape in the second one; None if it was removed."""
    raw_bytes: int
    """Its size in the second snapshot, or in the first if it was removed."""
    elements: int
    changed: int
    """Elements whose bytes differ."""
    not_finite_before: int
    """Elements that are NaN or infinite."""
    not_finite_after: int
    max_change: float
    """The largest absolute change of an element."""
    rms_change: float
    """The root of the mean of the square of the change."""
    rms_before: float
    """The root of the mean of the square of the earlier elements."""
    rms_after: float
    cosine: float
    """Of the angle between the two; NaN where one has no length."""

    @property
    def changed_share(self) -> float:
        """Share of elements whose bytes differ, from 0 to 1."""
        return self.changed / self.elements if self.elements else 0.0

    @property
    def relative_change(self) -> float:
        """``rms_change / rms_before``; NaN where that is 0."""
        return self.rms_change / self.rms_before if self.rms_before else math.nan

    @property
    def form(self) -> str:
        """Dtype and shape as text, with the earlier ones if they differ."""
        now = self.after or self.before
        text = _form(now) if now is not None else ""
        return f"{text}, was {_form(self.before)}" if self.kind == "reshaped" and self.before is not None else text

    def cells(self) -> tuple[str, ...]:
        """Return its row in a table."""
        if self.kind != "changed":
            return (self.kind, "", "", "", "", self.name, self.form)
        form = self.form
        if self.not_finite_before or self.not_finite_after:
            form += f", not finite: {self.not_finite_before} before, {self.not_finite_after} after"
        return (
            f"{100 * self.changed_share:.2f}%",
            f"{self.max_change:.3g}",
            f"{self.rms_change:.3g}",
            _number(self.relative_change, ".3g"),
            _number(self.cosine, ".8f"),
            self.name,
            form,
        )


class Diff(Sequence[TensorDiff]):
    """The differences of two snapshots, in the order of their names; prints as a table.

    ``diff["model.h.0.weight"]`` is that of one tensor.
    """

    def __init__(self, before: str, after: str, items: list[TensorDiff], report: dict[str, int]) -> None:
        self.before = before
        """Address of the first snapshot."""
        self.after = after
        """Address of the second one."""
        self.report = report
        """How many are ``same``, ``changed``, ``reshaped``, ``added`` and ``removed``, and ``bytes_compared``."""
        self._items = items

    @overload
    def __getitem__(self, which: int | str) -> TensorDiff: ...
    @overload
    def __getitem__(self, which: slice) -> list[TensorDiff]: ...
    def __getitem__(self, which: int | str | slice) -> TensorDiff | list[TensorDiff]:
        if isinstance(which, str):
            for item in self._items:
                if item.name == which:
                    return item
            raise KeyError(f"{which!r} is not different, or not there")
        return self._items[which]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[TensorDiff]:
        return iter(self._items)

    def summary(self) -> str:
        """Count the differences in one line."""
        counts = ", ".join(f"{self.report[kind]} {kind}" for kind in (*KINDS[1:], KINDS[0]))
        return printable(f"{self.before} to {self.after}: {counts}")

    def __repr__(self) -> str:
        lines = [self.summary()]
        if self._items:
            lines += html.columns([_HEAD, *(item.cells() for item in self._items[:_ROWS_SHOWN])], 5)
        if len(self._items) > _ROWS_SHOWN:
            lines.append(f"... and {len(self._items) - _ROWS_SHOWN} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            left = ' style="text-align:left"'
            return "".join(f"<{tag}{left if i > 4 else ''}>{for_html(cell)}</{tag}>" for i, cell in enumerate(cells))

        body = "".join(f"<tr>{row(item.cells(), 'td')}</tr>" for item in self._items[:_ROWS_SHOWN])
        more = len(self._items) - _ROWS_SHOWN
        tail = f"<p>... and {more} more</p>" if more > 0 else ""
        table = f"<table><tr>{row(_HEAD, 'th')}</tr>{body}</table>" if self._items else ""
        return f"<p>{for_html(self.summary())}</p>{table}{tail}"


def make(before: str, after: str, rows: list[tuple[Any, ...]], report: dict[str, int]) -> Diff:
    """Make a Diff of the C module's result."""
    items = []
    for name, kind, is_attachment, old, new, *numbers in rows:
        raw_bytes = (new or old)[2]
        items.append(TensorDiff(name, KINDS[kind], is_attachment, _named(old), _named(new), raw_bytes, *numbers))
    return Diff(before, after, items, report)


def _named(form: tuple[int, tuple[int, ...], int] | None) -> tuple[str, tuple[int, ...]] | None:
    if form is None:
        return None
    return name_of(form[0]), form[1]


def _form(form: tuple[str, tuple[int, ...]]) -> str:
    return f"{form[0]} {'x'.join(map(str, form[1])) or 'scalar'}"


def _number(value: float, spec: str) -> str:
    return "" if math.isnan(value) else format(value, spec)
