# SPDX-License-Identifier: BSD-3-Clause
"""Checks users' arguments and converts them to the store's terms."""

from __future__ import annotations

import contextlib
import io
import json
import math
import operator
import os
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Any

from ..errors import InvalidError, NotFoundError, UnsupportedError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{unit}{tail}": 1024**power for power, unit in enumerate("kmgtp", 1) for tail in ("", "ib")}
_UNITS |= {f"{unit}b": 1000**power for power, unit in enumerate("kmgtp", 1)}
_SIZE = re.compile(r"\s*(\d{1,20})(?:\.(\d{1,20}))?\s*([a-z]*)\s*", re.ASCII)
_MAX_SIZE = 2**63 - 1
_VOWEL = re.compile("[aeioAEIO]|[FHLMNRSX][A-Z]|nd")
_MAX_DESCRIPTOR = 2**31 - 1
_NO_TAG = str.maketrans(dict.fromkeys("@~:{}", "_"))


def parse_size(size: int | str) -> int:
    """Return bytes: an int, or text: ``"8GiB"``, ``"500 MB"``, ``"1.5T"`` (powers of 1024); else InvalidError."""
    if isinstance(size, str):
        found = _SIZE.fullmatch(size.lower())
        if found is None or found[3] not in _UNITS:
            raise InvalidError(
                f"{size[:100]!r} is no size: write bytes, or a number and a unit such as '8GiB' or '500MB'"
            )
        digits = found[2] or ""
        value = int(found[1] + digits) * _UNITS[found[3]] // 10 ** len(digits)
    else:
        try:
            value = operator.index(size)
        except TypeError:
            raise UnsupportedError(f"a size must be an int or a str, not {a_kind(size)}") from None
    return within(value, 0, _MAX_SIZE, "a size")


def file_path(path: str | os.PathLike[str]) -> str:
    """Return a path as text, a leading ``~`` or ``~user`` replaced by the home folder."""
    return os.path.expanduser(os.fsdecode(path))


def absolute(path: str) -> str:
    """Return an absolute path of the same file; as it is if it is empty, or the current folder is gone."""
    if not path:
        return path
    try:
        if ".." not in path.split("/"):
            return os.path.abspath(path)
        folder, name = os.path.split(path)  # a ".." after a link leads elsewhere than its text
        return os.path.join(os.path.realpath(folder), name)
    except OSError:
        return path


def address(which: int | str) -> str:
    """Return the part of an address after the @ for ``shelf[which]``."""
    if isinstance(which, str):
        if not which:
            raise InvalidError("a snapshot is addressed by a number, a tag, 'latest', 'latest~1' or 'step:120', not ''")
        return which
    if isinstance(which, bool):
        raise UnsupportedError("a snapshot is addressed by an int or a str, not by a bool")
    try:
        number = operator.index(which)
    except TypeError:
        raise UnsupportedError(f"a snapshot is addressed by an int or a str, not by {a_kind(which)}") from None
    if not -(2**63) < number < 2**63:
        raise NotFoundError(f"there is no snapshot {shown(number)}: numbers have 64 bits")
    if number == 0:
        raise NotFoundError("there is no snapshot 0: numbers start at 1, and -1 is the newest")
    if number > 0:
        return str(number)
    return "latest" if number == -1 else f"latest~{-number - 1}"


def within(value: int, least: int, most: int, what: str) -> int:
    """Return an int between two bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UnsupportedError(f"{what} must be an int, not {a_kind(value)}") from None
    if not least <= number <= most:
        raise InvalidError(f"{what} can't be {shown(number)}: it must be between {least} and {most}")
    return number


def a_kind(value: Any) -> str:
    """Name the type of a value, with its article: ``an int``."""
    return an(type(value).__qualname__)


def an(word: str) -> str:
    """Put the indefinite article before a word. Some are spoken as letters: an ndarray, an RNN."""
    return f"{'an' if _VOWEL.match(word) else 'a'} {word}"


def shown(number: int) -> str:
    """Format an int, a very long one by its length: Python formats at most 4,300 digits."""
    return str(number) if number.bit_length() < 512 else f"a number of {number.bit_length()} bits"


def milliseconds(seconds: float, most: int, what: str) -> int:
    """Convert seconds, which may be infinite, to milliseconds from 0 to `most`."""
    try:
        value = float(seconds)
    except OverflowError:
        value = math.copysign(math.inf, seconds)
    except (TypeError, ValueError):
        raise UnsupportedError(f"{what} must be a number of seconds, not {type(seconds).__qualname__!r}") from None
    if math.isnan(value):
        raise InvalidError(f"{what} can't be NaN seconds")
    return round(min(max(value * 1000, 0), most))


def descriptor(file: Any) -> int:
    """Return the descriptor of an open file, flushed and positioned like the file, or an int that is one.

    UnsupportedError: it is no file, or one that transforms its bytes.
    """
    if isinstance(file, int):
        return within(file, 0, _MAX_DESCRIPTOR, "a descriptor")
    opened = _buffered(file)
    if type(opened) is io.FileIO:
        return opened.fileno()
    raw = opened.raw if type(opened) in (io.BufferedReader, io.BufferedWriter, io.BufferedRandom) else None
    if type(raw) is not io.FileIO:
        remedy = "its fileno(), if all its bytes go there unchanged" if hasattr(file, "fileno") else "open(path, 'wb')"
        raise UnsupportedError(
            f"an archive goes through an open binary file or a descriptor, not {a_kind(file)}: "
            f"give {remedy}"
        )
    opened.flush()
    if opened.readable() and raw.seekable():  # drop the read-ahead
        place = opened.tell()
        opened.seek(0, io.SEEK_END)
        opened.seek(place)
    return raw.fileno()


@contextlib.contextmanager
def archives(files: Any) -> Iterator[tuple[int, ...]]:
    """Yield the descriptors of one or several archives to be read: paths, or files that `descriptor` takes."""
    if isinstance(files, str | os.PathLike | int) or hasattr(files, "fileno"):
        files = (files,)
    with contextlib.ExitStack() as stack:
        yield tuple(
            stack.enter_context(open(file_path(file), "rb")).fileno()
            if isinstance(file, str | os.PathLike)
            else descriptor(file)
            for file in files
        )


def _buffered(file: Any) -> Any:
    """Return the file behind a temporary one, or behind text such as ``sys.stdout``."""
    import tempfile

    if isinstance(file, tempfile.SpooledTemporaryFile):
        file.rollover()
        file = file._file
    elif type(file) is getattr(tempfile, "_TemporaryFileWrapper", None):
        file = file.file
    if isinstance(file, io.TextIOWrapper):
        file.flush()
        file = file.buffer
    return file


def int64(value: int, what: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise UnsupportedError(f"{what} must be an int, not {a_kind(value)}") from None
    if not -(2**63) < number < 2**63:  # the least one stands for "none"
        raise InvalidError(f"{what} {shown(number)} does not fit in 64 bits")
    return number


def tag_names(tags: Iterable[str] | str | None) -> tuple[str, ...]:
    names = (tags,) if isinstance(tags, str) else () if tags is None else tuple(tags)
    for name in names:
        if not isinstance(name, str):
            raise UnsupportedError(f"tags must be str, not {name!r}")
    return names


def free_tag(shelf: Container[str], path: str, taken: Collection[str] = ()) -> str:
    """Return a tag like the name of a file or folder, which no snapshot has."""
    stem = os.path.splitext(os.path.basename(path))[0].translate(_NO_TAG).replace("..", "_")
    stem = "".join(one if one.isprintable() else "_" for one in stem)[:200] or "checkpoint"
    if stem.isdigit() or stem == "latest":
        stem = f"checkpoint-{stem}"
    tag, count = stem, 1
    while tag in taken or tag in shelf:
        count += 1
        tag = f"{stem}.{count}"
    return tag


def metric_lists(metrics: Mapping[str, float] | None) -> tuple[tuple[str, ...], tuple[float, ...]]:
    if metrics is None:
        return (), ()
    if not isinstance(metrics, Mapping):
        raise UnsupportedError(f"metrics must be a mapping of names to numbers, not {a_kind(metrics)}")
    for name in metrics:
        if not isinstance(name, str):
            raise UnsupportedError(f"metrics: names must be str, not {name!r}")
    try:
        return tuple(metrics), tuple(float(value) for value in metrics.values())
    except (TypeError, ValueError, OverflowError) as error:
        raise UnsupportedError(f"metrics: values must be numbers: {error}") from None


def meta_json(meta: Mapping[str, Any] | None) -> str | None:
    if meta is None:
        return None
    if not isinstance(meta, dict):
        raise UnsupportedError(f"meta must be a dict, not {a_kind(meta)}")
    if not meta:
        return None
    _check_meta(meta, "meta", 0)
    return json.dumps(meta, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _check_meta(value: Any, path: str, depth: int) -> None:
    """Refuse values that JSON would not return unchanged."""
    kind = type(value)
    if depth > 100:
        raise UnsupportedError(f"{path[:200]}...: nested too deeply")
    if kind is dict:
        for key, child in value.items():
            if type(key) is not str:
                raise UnsupportedError(f"{path}: JSON has keys of str only, not {key!r}")
            _check_text(key, path)
            _check_meta(child, f"{path}.{key}", depth + 1)
    elif kind is list:
        for index, child in enumerate(value):
            _check_meta(child, f"{path}.{index}", depth + 1)
    elif kind is str:
        _check_text(value, path)
    elif kind is float:
        if not math.isfinite(value):
            raise UnsupportedError(f"{path}: JSON has no {value}; put it in metrics")
    elif kind is int:
        int64(value, path)
    elif kind is not bool and value is not None:
        raise UnsupportedError(f"{path}: JSON has no {kind.__qualname__}; meta holds dict, list, str, numbers and None")


def check_name(name: str, holder: str) -> None:
    """Refuse a name with characters that texts of C or UTF-8 lack."""
    if _is_odd(name):
        raise InvalidError(f"{name!r:.100}: {holder} can't hold NUL characters or lone surrogates")


def _check_text(value: str, path: str) -> None:
    if _is_odd(value):
        raise UnsupportedError(f"{path}: meta can't hold NUL characters or lone surrogates")


def _is_odd(text: str) -> bool:
    return "\0" in text or any("\ud800" <= character <= "\udfff" for character in text)
