# SPDX-License-Identifier: BSD-3-Clause
"""The commands ``lmc-store diff`` and ``export`` of a URL, with the output that they have for a pool."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from typing import Any

from .. import _core
from .._text.text import printable
from ..diff import KINDS
from ..errors import ExistsError, InvalidError, NotFoundError, UnsupportedError
from ..store import Store
from .pool import RemoteHandle, RemotePool

Progress = Callable[[str, int, int], object]
_CACHE_BYTES = 8 << 30
_NUMBERS = (
    "elements", "changed", "not_finite_before", "not_finite_after", "max_change", "rms_change", "rms_before",
    "rms_after", "cosine",
)  # fmt: skip


def diff(
    arguments: argparse.Namespace,
    progress: Progress | None,
    say: Callable[[argparse.Namespace, str], None],
) -> dict[str, Any]:
    """Compare two snapshots."""
    pool = _opened(arguments.url)
    try:
        pair = _pair(pool, *arguments.addresses)
        rows, report = pair[0].diff(pair[1], 0, progress)
    finally:
        pool.close()
    shown = rows if arguments.count is None else rows[: arguments.count]
    if shown:
        say(arguments, "CHANGED         MAX        RMS   RELATIVE      COSINE  NAME")
    for row in shown:
        say(arguments, _line(*row))
    infos = [handle.info() for handle in pair]
    ends = [
        f"{printable(info['shelf'])}@{info['number']}" + ("" if info["step"] is None else f" (step {info['step']})")
        for info in infos
    ]
    counts = ", ".join(f"{report[kind]} {kind}" for kind in KINDS[1:])
    say(arguments, f"{ends[0]} to {ends[1]}: {counts}, {report['same']} the same")
    sides = ({name: info[name] for name in ("shelf", "number", "step")} for info in infos)
    named = dict(zip(("before", "after"), sides, strict=True))
    return {"pool": arguments.url, **named, **report, "tensors": [_described(*row) for row in shown]}


def _opened(url: str) -> RemotePool:
    pool = RemotePool(url, _CACHE_BYTES, Store._create)
    if pool.has_ranks:
        pool.close()
        raise UnsupportedError(f"{url} is a run of many ranks: pull it first (lmc-store pull), or use lmcstore.open")
    return pool


def _pair(pool: RemotePool, before: str, after: str | None = None, *more: str) -> tuple[RemoteHandle, RemoteHandle]:
    if more:
        raise InvalidError("diff takes two snapshots")
    name, _, which = before.partition("@")
    if after is not None:
        other, _, place = after.partition("@")
        return pool.find(name, which), pool.find(other or name, place)
    if ".." in which:
        first, last = pool.range(name, which)
        return pool.find(name, str(first)), pool.find(name, str(last))
    found = pool.find(name, which)
    info = found.info()
    if not info["parent"]:
        raise NotFoundError(f"{name}@{info['number']} has no parent; name two snapshots")
    return pool.find(name, str(info["parent"])), found


def _dtype(number: int) -> str | None:
    info = _core.dtype_info(number)
    return None if info is None else info[0]


def _form(form: tuple[int, tuple[int, ...], int]) -> str:
    return f"{_dtype(form[0])} {'x'.join(map(str, form[1])) or 'scalar'}"


def _line(name: str, kind: int, is_attachment: bool, before: Any, after: Any, *numbers: Any) -> str:
    elements, changed, old_odd, new_odd, most, rms, rms_before, _, cosine = numbers
    if KINDS[kind] == "changed":
        share = 100 * changed / elements if elements else 0
        relative = f"{rms / rms_before:10.3g}" if rms_before > 0 else f"{'-':>10}"
        cosine = f"{'-':>11}" if math.isnan(cosine) else f"{cosine:11.8f}"
        text = f"{share:7.2f}% {most:10.3g} {rms:10.3g} {relative} {cosine}  "
    else:
        text = f"{KINDS[kind]:53}  "
    text += f"{printable(name)}  {_form(after or before)}"
    if KINDS[kind] == "reshaped":
        text += f" (was {_form(before)})"
    if is_attachment:
        text += " (attachment)"
    return text + (f"  not finite: {old_odd} before, {new_odd} after" if old_odd or new_odd else "")


def _described(name: str, kind: int, is_attachment: bool, before: Any, after: Any, *numbers: Any) -> dict[str, Any]:
    def described(form: Any) -> dict[str, Any] | None:
        return form and {"dtype": _dtype(form[0]), "shape": list(form[1]), "raw_bytes": form[2]}

    found = {"name": name, "kind": KINDS[kind], "is_attachment": is_attachment}
    found |= {"before": described(before), "after": described(after)}
    if KINDS[kind] == "changed":
        values = (value if math.isfinite(value) else None for value in numbers)
        found |= dict(zip(_NUMBERS, values, strict=True))
    return found


def export(
    arguments: argparse.Namespace,
    progress: Progress | None,
    say: Callable[[argparse.Namespace, str], None],
    size: Callable[[int], str],
) -> dict[str, Any]:
    """Write a snapshot as a safetensors file."""
    output = arguments.output
    if arguments.metrics is not None:
        raise UnsupportedError("export: --metrics is of pools: pull the snapshots into one")
    if output is None or len(arguments.addresses) != 1:
        raise InvalidError("export takes an address and -o FILE")
    if output == "-" and (sys.stdout.isatty() or arguments.json):
        raise InvalidError("export: a safetensors file goes to a file or a pipe, and --json to standard output")
    if output != "-" and not arguments.force and os.path.isfile(output) and os.path.getsize(output):
        raise ExistsError(f"export: -o {output} exists: name a new file, or replace it by --force")
    pool = _opened(arguments.url)
    try:
        name, _, which = arguments.addresses[0].partition("@")
        handle = pool.find(name, which)
        report = handle.export(arguments.part, output, progress)
        info, tensors = handle.info(), sum(entry[1] == _core.TENSOR for entry in handle.entries())
    finally:
        pool.close()
    left_out = report["left_out_names"]
    if report["left_out"]:
        them = "it" if report["left_out"] == 1 else "them"
        print(
            f"lmc-store: left out, because safetensors can't hold {them}: {printable(left_out)}",
            file=sys.stderr,
        )
    if output != "-":
        wrote = f"{report['contents']} of its {tensors} tensors, {size(report['bytes'])}"
        say(arguments, f"wrote {printable(output)} from {printable(info['shelf'])}@{info['number']}: {wrote}")
    return {
        "pool": arguments.url,
        "shelf": info["shelf"],
        "number": info["number"],
        "file": output,
        "part": arguments.part,
        "tensors": report["contents"],
        "bytes": report["bytes"],
        "left_out": report["left_out"],
        "left_out_names": left_out,
    }
