# SPDX-License-Identifier: BSD-3-Clause
"""How a training state becomes tensors and attachments of a snapshot, and comes back.

A torch tensor or NumPy array becomes a tensor of the snapshot, named by its dotted path ("model.h.0.weight");
attachments contain the rest:

``lmcstore.skeleton``
    The structure: containers, their keys, the places of tensors. Compact JSON, shared by snapshots of equal structure.
``lmcstore.values.0``, ``.1``, ...
    The other leaves, packed (`_state.scalars`), 4096 per attachment, in order: a changed one changes one attachment.
``lmcstore.value.0``, ``.1``, ...
    Leaves of 4 KiB and more, each alone.

The skeleton is ``{"lmcstore": 1, "leaves": count, "root": node}``, and a node is one of ::

    0                                         the next leaf
    1, 2                                      a torch tensor, a NumPy array, under its natural name
    ["T", name or null]                       a torch tensor under another name
    ["T", name or null, group, member]        one of tied tensors: a group is one memory, a member one object
    ["A", name or null, dtype]                a NumPy array whose dtype the stored one doesn't determine
    ["d", [keys], node...]                    dict; "o": OrderedDict; "C": Counter
    ["O", [keys], node, node...]              OrderedDict with _metadata, which comes first
    ["l", node...], ["t", node...]            list, tuple; those of plain values only are leaves

Version 2 has more nodes. A state without them is written as version 1, which older builds read; they report version 2
as unsupported. ::

    ["N", class, [fields], node...]           namedtuple; class: its module and qualified name
    ["c", class, [fields], node...]           dataclass
    ["E", class]                              enum: the next leaf is (name, value)
    ["v", kind]                               a value of `_state.plain`, made of the next leaf
    ["Q", maxlen or null, node...]            deque
    ["D", factory or null, [keys], node...]   defaultdict of a builtin
    ["A", name or null, "numpy:..."]          a NumPy array of a dtype that the store lacks, described in JSON
    ["V", node, number, offset, [strides]]    a torch tensor or NumPy array (its node) that shares part of its memory

The memories of "V" are numbered; the skeleton then also has ``"storages": [size...]``. Sizes, offsets of first elements
and strides are in bytes; a stride of an array may be negative. Each of these tensors is stored whole by its own name,
as the others are. Tensors that a read puts into one memory are those that share bytes there with another one that is
read (`_state.sharing`).

A key is a JSON string, integer, boolean or null, or ``[hex]`` of a packed value. A skeleton may be untrusted: reading
checks everything, makes only these types, imports and unpickles nothing, and raises `DamagedError`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, OrderedDict
from typing import Any

from .. import _core
from .scalars import pack

SKELETON = "lmcstore.skeleton"
VALUES = "lmcstore.values."
VALUE = "lmcstore.value."
LIVE = "lmcstore.live"
"""In a snapshot of live variables, in place of these: their table, as the store writes it."""

VERSION = 2
"""Of the skeleton; a newer one is refused."""
LEAVES_AT_ONCE = 4096
"""In an attachment of leaves."""
LARGE_LEAF_BYTES = 4096
"""From this size on a leaf has an attachment of its own."""
EXACT_JSON_INT = 1 << 53
"""Integers below it, and above its negative, are JSON numbers; others are packed."""

DICT_TAGS: dict[type, str] = {dict: "d", OrderedDict: "o", Counter: "C"}
DICT_TYPES: dict[str, type] = {"d": dict, "o": OrderedDict, "O": OrderedDict, "C": Counter}

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
SURELY_FITS = _core.MAX_NAME // 4
"""A path of so many characters is a name as it is."""


def is_plain(text: str) -> bool:
    """Whether a text has no control characters and no lone surrogates."""
    return _UNSAFE.search(text) is None


def key_text(key: Any) -> str:
    """Format a dict key or a list's index as a part of a dotted path; the same in every process."""
    kind = type(key)
    if kind is str:
        if not key:
            return "~"
        return key if is_plain(key) else _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", key)
    if kind is int:
        return str(key) if -EXACT_JSON_INT < key < EXACT_JSON_INT else hex(key)
    if kind is bool or key is None or kind is float:
        return repr(key)
    if kind is tuple:
        return "(" + ",".join(map(key_text, key)) + ")"
    return "~" + hashlib.blake2b(pack(key), digest_size=8).hexdigest()


def join(path: str, key: Any) -> str:
    return f"{path}.{key_text(key)}" if path else key_text(key)


def natural_name(path: str) -> str:
    if not path:
        return "state"
    if len(path) <= SURELY_FITS or len(path.encode()) <= _core.MAX_NAME:
        return path
    digest = hashlib.blake2b(path.encode(), digest_size=8).hexdigest()
    return f"{path[: SURELY_FITS - 32]}~{digest}"


def numbered_name(natural: str, number: int) -> str:
    return f"{natural[: SURELY_FITS - 32]}~{number}"


def where(path: str) -> str:
    return path if path else "the state"
