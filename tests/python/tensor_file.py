# SPDX-License-Identifier: BSD-3-Clause
"""Safetensors files of NumPy arrays, written and read here, so that tests of the command need no other package."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = {"?": "BOOL", "B": "U8", "e": "F16", "f": "F32", "d": "F64", "l": "I64", "i": "I32"}
_CODES = {name: code for code, name in _NAMES.items()}


def save(path: Path, arrays: dict[str, np.ndarray[Any, Any]], metadata: dict[str, str] | None = None) -> Path:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, array in arrays.items():
        end = at + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype.char], "shape": array.shape, "data_offsets": [at, end]}
        at = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for array in arrays.values():
            file.write(array.tobytes())
    return path


def load(path: Path) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, str]]:
    """Return the arrays and the metadata."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    arrays = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(content[begin:end], _CODES[entry["dtype"]]).reshape(entry["shape"])
    return arrays, metadata
