# SPDX-License-Identifier: BSD-3-Clause
"""Foreign text made safe to show: names may come from an untrusted archive."""

from __future__ import annotations

import unicodedata

_UNSAFE = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn"})


def printable(text: str) -> str:
    """Escape characters that a terminal or page would interpret or hide, such as direction marks."""
    if text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _UNSAFE else c for c in text)


def lines(text: str) -> str:
    """Apply `printable`, but keep line ends."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def for_html(text: str) -> str:
    """Apply `lines`, and escape HTML."""
    import html

    return html.escape(lines(text))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
