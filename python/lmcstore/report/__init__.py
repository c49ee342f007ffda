# SPDX-License-Identifier: BSD-3-Clause
"""Reports: a pool as one self-contained HTML page, or as a picture. May use: the public modules, _text.

`collect` reads the data in bounded time, `page` makes HTML with SVG charts, `png` a picture with matplotlib.
"""

from .collect import Gathered, collect
from .page import render

__all__ = ["Gathered", "collect", "render"]
