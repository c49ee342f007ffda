# SPDX-License-Identifier: BSD-3-Clause
"""Reports: a pool as one self-contained HTML page, or as a picture. May use: the public modules, _text.

`collect` reads the data in bounded time, `page` makes HTML with SVG charts, and `png` makes a picture with matplotlib,
if that is installed. ``lmc-store-report run.pool -o report.html`` runs `__main__.main`.
"""

from .collect import Gathered, collect
from .page import render

__all__ = ["Gathered", "collect", "render"]
