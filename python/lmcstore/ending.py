# SPDX-License-Identifier: BSD-3-Clause
"""`Ending`: waits for the last snapshot when SIGTERM ends the process."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from .errors import Error

logger = logging.getLogger("lmcstore")


class Ending:
    """Between `begin` and `end`, SIGTERM calls `wait` first; then an earlier handler runs, or the process ends.

    A second signal does not wait, and a forked child never does. `place` begins the texts of the log.
    """

    def __init__(self, wait: Callable[[], object], place: str) -> None:
        self._wait = wait
        self._place = place
        self._pid = os.getpid()
        self._before: Any = None  # SIGTERM's handler before
        self.waits = False

    def begin(self) -> None:
        """Take SIGTERM, unless it is ignored or C's, or this is not the main thread."""
        before = signal.getsignal(signal.SIGTERM)
        if before in (None, signal.SIG_IGN, self.terminate):  # None: C's, which Python can't call
            return
        try:
            signal.signal(signal.SIGTERM, self.terminate)
            self._before = before
        except ValueError:
            logger.debug("%s: SIGTERM does not wait for a snapshot outside of the main thread", self._place)

    def end(self) -> None:
        """Give SIGTERM back, unless the program has taken it meanwhile."""
        if self._before is not None and signal.getsignal(signal.SIGTERM) == self.terminate:
            signal.signal(signal.SIGTERM, self._before)

    def terminate(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        if not self.waits and os.getpid() == self._pid:
            self.waits = True
            try:
                self._wait()
            except Error as failure:
                logger.error("%s: the last snapshot was not saved: %s", self._place, failure)
            finally:
                self.waits = False
        if callable(self._before):
            self._before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
