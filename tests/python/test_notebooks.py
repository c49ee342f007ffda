# SPDX-License-Identifier: BSD-3-Clause
"""Tables for notebooks, and progress bars."""

from __future__ import annotations

import io
import sys
import types
from html.parser import HTMLParser
from typing import Any

import lmcstore
import numpy as np
import pytest
from optional import torch

IN_MEMORY = True


class _Balanced(HTMLParser):
    """Fails on unbalanced tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def shown(value: Any) -> str:
    parser = _Balanced()
    parser.feed(value._repr_html_())
    assert parser.open == []
    return parser.text


def test_tables(store: lmcstore.Store) -> None:
    shelf = store["<b>run&"]
    for step in range(25):
        shelf.snapshot({"<w>": torch.zeros(3), "n": 1}, step=step, tags=f"t{step}", metrics={"loss": step / 2})
    shelf.live["<live>"], shelf.live["v"] = np.zeros((2, 3)), 5
    assert "<b>run&" in shown(store) and "25" in shown(store)
    assert "t24" in shown(shelf) and "loss 12" in shown(shelf) and "and 5 more" in shown(shelf)
    assert "<w>" in shown(shelf[3]) and "f32" in shown(shelf[3])
    assert "<live>" in shown(shelf.live) and "(2, 3)" in shown(shelf.live)
    assert "<b>run" not in store._repr_html_() and "<live>" not in shelf.live._repr_html_()
    assert "empty" in shown(store["none"]) or "none" in shown(store["none"])
    live = shelf.live
    store.close()
    for closed in (store, shelf, live):
        assert "closed" in shown(closed)


def test_lines_without_tqdm(store: lmcstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    store["run"].snapshot({"w": torch.zeros(1 << 20)})
    file = io.StringIO()
    with lmcstore.ProgressBar(file) as bar:
        store.verify(progress=bar)
    assert file.getvalue().endswith("%\n") or file.getvalue().strip()


def test_bars_of_tqdm(store: lmcstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[Any] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            self.n, self.total, self.closed = 0, options["total"], False
            bars.append(self)

        def update(self, more: int) -> None:
            self.n += more

        def close(self) -> None:
            self.closed = True

    module = types.ModuleType("tqdm.auto")
    module.tqdm = Bar  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    with lmcstore.ProgressBar() as bar:
        for done in (1, 5, 10):
            bar("reading", done, 10)
        bar("writing", 3, 3)
    assert [(one.n, one.total, one.closed) for one in bars] == [(10, 10, True), (3, 3, True)]
