# SPDX-License-Identifier: BSD-3-Clause
"""A report on a pool: one HTML page that needs nothing else, or a picture.

``lmc-store report run.pool -o report.html`` runs `main`. What is shown is gathered by `collect.collect`, in bounded
time; `page` makes HTML of it with SVG charts of its own, and `png` a picture with matplotlib, where that is installed.
"""

from .collect import Gathered, collect
from .page import render

__all__ = ["Gathered", "collect", "render"]
