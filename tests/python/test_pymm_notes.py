# SPDX-License-Identifier: BSD-3-Clause
"""Notes of variables from a hostile pool: PyMM follows none that leads outside."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pymm
import pytest
from lmcstore import _core
from lmcstore._state.scalars import pack
from pymm_support import again, folder, new
from test_lazy import damage_all

__all__ = ["folder"]


def shelf_with(folder: str, note: str, data: bytes = bytes(range(64)), form: int = _core.LIVE_TENSOR) -> pymm.shelf:
    """A shelf with a variable ``v`` and an arbitrary note."""
    made = new(folder)
    made.x = 1
    del made
    with lmcstore.open(str(next(Path(folder).glob("*.pool"))), background=False) as store:
        name = next(iter(store))
        core = store._pool.live_create(name, "v", _core.DTYPES["u8"], (len(data),), form, 0, 0, note.encode())
        if form == _core.LIVE_TENSOR:
            memoryview(core.buffer())[:] = data
            core.persist(0, len(data))
        else:
            core.set(data)
        del core
    return again(folder)


@pytest.mark.parametrize(
    "layout",
    [
        '{"shape":[4503599627370497],"strides":[4096]}',
        '{"shape":[4294967297],"strides":[4294967296]}',
        '{"shape":[-1],"strides":[-1]}',
        '{"shape":[2],"strides":[-1]}',
        '{"shape":[-2],"strides":[1]}',
        '{"shape":[2],"strides":[64]}',
        '{"shape":[65],"strides":[1]}',
        '{"shape":[2,2],"strides":[63,1]}',
        '{"shape":[2],"strides":[9223372036854775807]}',
        '{"shape":[2],"strides":[18446744073709551617]}',
        '{"shape":[18446744073709551616,0],"strides":[1,1]}',
        '{"shape":[4611686018427387904,4611686018427387904],"strides":[0,0]}',
        '{"shape":[2,2],"strides":[1]}',
        '{"shape":[2.0],"strides":[1]}',
        '{"shape":[true],"strides":[1]}',
        '{"shape":"2","strides":"1"}',
        '{"shape":null,"strides":[1]}',
        '{"strides":[1]}',
        '{"shape":{"0":2},"strides":{"0":1}}',
    ],
)
def test_a_layout_that_lies(folder: str, layout: str) -> None:
    shelf = shelf_with(folder, f"numpy\n{layout}")
    with pytest.raises(RuntimeError, match="v: the note on its layout is damaged"):
        _ = shelf.v
    assert shelf.x == 1


def test_layouts_that_fit(folder: str) -> None:
    for layout, expected in (
        ('{"shape":[64],"strides":[1]}', list(range(64))),
        ('{"shape":[4,2],"strides":[20,3]}', [[0, 3], [20, 23], [40, 43], [60, 63]]),
        ('{"shape":[1],"strides":[4096]}', [0]),
        ('{"shape":[3],"strides":[0]}', [0, 0, 0]),
        ('{"shape":[0,7],"strides":[56,8]}', []),
        ('{"shape":[],"strides":[]}', 0),
    ):
        shelf = shelf_with(folder, f"numpy\n{layout}")
        assert shelf.v.tolist() == expected
        shelf.erase("v")
        del shelf


def test_a_value_of_another_type(folder: str) -> None:
    """``bytes(10**12)`` would be as many zeros."""
    shelf = shelf_with(folder, 'python\n{"type":"bytes"}', pack(10**12), _core.LIVE_VALUE)
    with pytest.raises(RuntimeError, match="something else"):
        _ = shelf.v


def test_a_list_longer_than_its_room(folder: str) -> None:
    entries = struct.pack("<QQ", 2**60, 0) + struct.pack("<Qq", 1, 7) * 3
    shelf = shelf_with(folder, 'numpy\n{"type":"linked_list","key":"k"}', entries)
    with pytest.raises(RuntimeError, match="no room for"):
        len(shelf.v)
    assert shelf.x == 1


def test_damaged_elements_keep_no_shelf_from_opening(folder: str) -> None:
    shelf = new(folder)
    shelf.x, shelf.l = 1, ["a needle in a haystack"]
    unused = shelf.l.prefix + "7"
    shelf.mr._pool.live[unused] = "another needle in a haystack"
    del shelf
    for needle in (b"a needle in", b"another needle in"):
        damage_all(str(next(Path(folder).glob("*.pool"))), needle)
    shelf = again(folder)
    assert shelf.x == 1 and len(shelf.l) == 1
    with pytest.raises(RuntimeError, match="damaged"):
        _ = shelf.l[0]
    shelf.l = ["another"]
    assert list(shelf.l) == ["another"]


def test_parts_in_use_keep_no_shelf_from_opening(folder: str) -> None:
    shelf = new(folder)
    shelf.l = [np.zeros(3)]
    with lmcstore.open(f"{folder}/test.pool", background=False) as store:
        held = store["test"].live[shelf.l.prefix + "0"]
        remains = store["test"].live.tensor("-0-0", 3)
        shelf.l[0] = 5
        del shelf
        shelf = again(folder)
        assert shelf.l[0] == 5 and held.tolist() == [0, 0, 0] and remains.shape == (3,)
        del shelf, held, remains
    assert len(again(folder).get_item_names(all=True)) == 1


def saved(node: bytes) -> tuple[str, bytes]:
    return 'numpy\n{"type":"saved","key":"k"}', node


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (
            b"d" + struct.pack("<I", 600) + b"".join(pack(k * (2**61 - 1)) + b"LN" for k in range(600)),
            "have the same hash",
        ),
        (b"d" + struct.pack("<I", 1) + b"l" + struct.pack("<I", 0) + b"LN", "unhashable"),
    ],
)
def test_saved_dicts_of_strange_keys(folder: str, node: bytes, text: str) -> None:
    shelf: Any = shelf_with(folder, *saved(node))
    with lmcstore_name(shelf, "v"), pytest.raises(RuntimeError, match=text):
        shelf.load("v")


class lmcstore_name:
    def __init__(self, shelf: Any, name: str) -> None:
        self._live, self._name = shelf._names.pool.live, name

    def __enter__(self) -> None:
        self._live.rename(self._name, f"-saved:{self._name}")

    def __exit__(self, *_: object) -> None:
        pass
