# SPDX-License-Identifier: BSD-3-Clause
"""Measures saves of two ranks by a package that only the environment of this Python has.

Usage: trainers_peer.py WAY FOLDER BYTES SAVES. Prints a line of JSON. Run by trainers.py.
"""

import json
import sys
from pathlib import Path

from trainers_run import on_ranks, save

if __name__ == "__main__":
    way, folder, size_bytes, saves = sys.argv[1:]
    print(json.dumps(on_ranks(2, save, Path(folder), way, int(size_bytes), int(saves))))
