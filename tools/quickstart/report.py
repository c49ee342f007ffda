# SPDX-License-Identifier: BSD-3-Clause
"""The quickstart's output, flushed at once."""

import importlib.util
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
STARTED = time.monotonic()
WITH_TORCH = importlib.util.find_spec("torch") is not None
TRAIN = Path(__file__).resolve().parent / ("train.py" if WITH_TORCH else "train_numpy.py")


def short(path: Path | str) -> str:
    """Write a path from the checkout."""
    path = Path(path)
    return str(path.relative_to(TOP)) if path.is_relative_to(TOP) else str(path)


def heading(number: int, text: str) -> None:
    """Print a title with the elapsed time."""
    print(f"\n[{number}/5] {text}  ({time.monotonic() - STARTED:.0f} s)", flush=True)


def say(text: str = "") -> None:
    """Print a sentence."""
    print(f"  {text}" if text else "", flush=True)


def command(words: Sequence[object], quiet: bool = False) -> str:
    """Run and show a command; return its output. A failure ends the quickstart."""
    words = [str(word) for word in words]
    if not quiet:
        say("$ " + " ".join(shlex.quote(short(word)) for word in words))
    done = threading.Event()

    def tick() -> None:
        begin = time.monotonic()
        while not done.wait(10):
            say(f"  ... {time.monotonic() - begin:.0f} s")

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    result = subprocess.run(words, capture_output=True, text=True)
    done.set()
    ticker.join()
    if result.returncode != 0:
        failed(f"'{' '.join(words)}' ended with {result.returncode}: {result.stderr.strip()}")
    return result.stdout


def failed(text: str) -> None:
    """End the quickstart."""
    print(f"\nquickstart FAILED: {text}", file=sys.stderr, flush=True)
    raise SystemExit(1)


def expect(holds: bool, text: str) -> None:
    """Print that something holds, or end."""
    if not holds:
        failed(f"this does not hold: {text}")
    say(f"✓ {text}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        return "| " + " | ".join(cells) + " |"

    print("  " + line(head))
    print("  |" + "|".join("-" * (w + 1) + ("-" if i == 0 else ":") for i, w in enumerate(widths)) + "|")
    for row in rows:
        print("  " + line(row), flush=True)


def mb(count: float) -> str:
    """Write bytes as MB (10^6)."""
    return f"{count / 1e6:.1f}"
