# SPDX-License-Identifier: BSD-3-Clause
"""`ProgressBar`: a bar for long work."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self, TextIO

_SECONDS_BETWEEN = 0.5


class ProgressBar:
    """Shows the progress of long work: ``with ProgressBar() as bar: store.verify(progress=bar)``.

    Uses tqdm where it is installed; else it writes lines to `file` (default: standard error).
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file if file is not None else sys.stderr
        self._what = ""
        self._bar: Any = None
        self._last = 0.0
        try:
            from tqdm.auto import tqdm
        except ImportError:
            tqdm = None
        self._tqdm: Any = tqdm

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show the progress; the work itself calls this."""
        if self._tqdm is None:
            self._show_line(what, done, total)
            return
        if self._bar is None or what != self._what:
            self.close()
            self._bar = self._tqdm(total=total or None, desc=what, unit="B", unit_scale=True, file=self._file)
        self._what = what
        self._bar.total = total or None
        self._bar.update(done - self._bar.n)

    def _show_line(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        is_end = total > 0 and done >= total
        if now - self._last < _SECONDS_BETWEEN and not (is_end or what != self._what):
            return
        self._last, self._what = now, what
        share = f" {100 * done / total:.0f} %" if total else f" {done}"
        self._file.write(f"{what}{share}\n")
        self._file.flush()

    def close(self) -> None:
        """End the visible bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
