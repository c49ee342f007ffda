# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions of lmcstore: one class for each kind of failure, all of them `Error`.

Each also derives from the matching built-in exception, such as KeyError or OSError. A wrong argument type or text that
is not valid UTF-8 may raise Python's TypeError or ValueError; exceptions of an argument's methods pass through.
"""

from typing import Any

from ._text.text import lines


class Error(Exception):
    """Any failure or refusal of lmcstore. Its text states the failure, its object, and a remedy.

    Attributes
    ----------
    message : str
        The text.
    errno : int
        The operating system's error, or 0.
    bytes_needed, bytes_free : int
        For `FullError`: the bytes requested and free; else 0.
    report : dict or None
        For `Store.scrub`: its result so far; else None.
    """

    errno: Any = 0
    bytes_needed: int = 0
    bytes_free: int = 0
    report: Any = None

    def __init__(self, message: str = "") -> None:
        self.message = lines(message)  # its names may come from an untrusted archive
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class InvalidError(Error, ValueError):
    """Wrong use: an argument, a name, or a closed store."""


class NotFoundError(Error, KeyError):
    """There is no such pool, shelf, snapshot, tag, or tensor."""


class ExistsError(Error, FileExistsError):
    """It exists already."""


class InUseError(Error):
    """Another process writes to the pool (the text names its pid), or a shelf, variable or lock is in use."""


class FullError(Error):
    """No space in the pool, under its limit, or on its disk; the text names the bytes needed and ways to free some."""


class DamagedError(Error):
    """The bytes of the pool or file are damaged."""


class UnsupportedError(Error, TypeError):
    """lmcstore can't store or do this; the text names a part of a state by its path."""


class ReadOnlyError(Error):
    """The store was opened for reading, or can't be written safely."""


class InputOutputError(Error, OSError):
    """The operating system reported an error: see ``errno``.

    After a failed write, every write to the store fails with it until the store is reopened. Only acknowledged
    snapshots are durable.
    """


class OutOfMemoryError(Error, MemoryError):
    """Out of memory."""


class CancelledError(Error):
    """Long work was stopped."""


class RemoteError(Error):
    """The snapshot has left the pool for a URL, which the text names, and this needs it in the pool: pull it."""


class CreationWarning(UserWarning):
    """A pool or shelf does not exist, and the call creates it: perhaps its name or the current folder is wrong.

    Issued once, before anything is created: ``warnings.simplefilter("error", lmcstore.CreationWarning)`` raises it
    instead. Mode "x" of `open` and ``store.shelf(name, create=True)`` create without it.
    """
