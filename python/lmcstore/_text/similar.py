# SPDX-License-Identifier: BSD-3-Clause
"""Parts of messages about a name that is not found: the names that exist, and the most similar one."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable
from typing import Any

_MOST_LISTED = 10
_MOST_CHARACTERS = 80  # of a name in a list
_MOST_COMPARED = 200_000  # characters of the wanted name, times names: a message must not take seconds


def shown(key: Any) -> str:
    """Format a key, also one of a foreign type."""
    try:
        text = repr(key)
    except Exception:  # no repr
        return f"a key of type {type(key).__qualname__!r}"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def listed(keys: Collection[Any]) -> str:
    """List keys as ``'a', 'b' and 7 more``."""
    texts = [shown(key) for key in itertools.islice(keys, _MOST_LISTED)]
    if len(keys) > _MOST_LISTED:
        return f"{', '.join(texts)} and {len(keys) - _MOST_LISTED:,} more"
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0] if texts else "nothing"


def similar(wanted: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, or None: none is similar."""
    names, most = list(names), _MOST_COMPARED // (len(wanted) + 100)
    if len(wanted) > _MOST_COMPARED // 100:
        return None
    if len(names) > most:
        half = max(1, len(wanted) // 2)
        names = [name for name in names if name.startswith(wanted[:half]) or name.endswith(wanted[-half:])]
    found = difflib.get_close_matches(wanted, names[:most], 1)
    if found:
        return found[0]
    folded = {name.casefold(): name for name in names[:most]}
    found = difflib.get_close_matches(wanted.casefold(), folded, 1)
    return folded[found[0]] if found else None


def hint(name: str | None) -> str:
    """Ask for a similar name, at the end of a message."""
    return "" if name is None else f". Did you mean {shown(name)}?"
