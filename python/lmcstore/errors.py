# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions of lmcstore: one class for each thing that can be wrong, all of them `Error`.

Where Python has an exception for it, the class is that one too, so that ``except KeyError`` or ``except OSError`` in a
program that knows nothing of lmcstore does what it should. An argument of a wrong type, or text that is no valid
UTF-8, may also raise Python's own TypeError or ValueError; what an argument raises of itself (in ``__index__``, say)
passes through.
"""

from typing import Any

from ._text.text import lines


class Error(Exception):
    """Anything that lmcstore refuses or fails to do; its text says what happened, to what, and what to do.

    Attributes
    ----------
    message : str
        The text.
    errno : int
        The operating system's error behind it, or 0.
    bytes_needed, bytes_free : int
        For `FullError`: what was asked for and what was there; else 0.
    report : dict or None
        For `Store.scrub`: what it would have returned, as far as it came; else None.
    """

    errno: Any = 0
    bytes_needed: int = 0
    bytes_free: int = 0
    report: Any = None

    def __init__(self, message: str = "") -> None:
        self.message = lines(message)  # names in it may come from a stranger
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class InvalidError(Error, ValueError):
    """Wrong use: an argument, a name, or a store that is closed."""


class NotFoundError(Error, KeyError):
    """There is no such pool, shelf, snapshot, tag, or tensor."""


class ExistsError(Error, FileExistsError):
    """It is there already."""


class InUseError(Error):
    """Another process has the pool open for writing; the text names its pid."""


class FullError(Error):
    """No space in the pool, under its limit, or on its disk; the text says what is needed and what could be freed."""


class DamagedError(Error):
    """The pool, or a file, is not what was written."""


class UnsupportedError(Error, TypeError):
    """Something that lmcstore can't store or do, named by its path in the state where it is a part of one."""


class ReadOnlyError(Error):
    """The store was opened for reading, or can't be written safely."""


class InputOutputError(Error, OSError):
    """The operating system said no: see ``errno``.

    After a write that did not reach the disk, everything that writes to the store fails with it, until the store is
    closed and opened again: what was acknowledged is there, and nothing else is believed.
    """


class OutOfMemoryError(Error, MemoryError):
    """No memory."""


class CancelledError(Error):
    """Long work was stopped before its end."""
