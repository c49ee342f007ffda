# SPDX-License-Identifier: BSD-3-Clause
"""The commands ``lmc-store push`` and ``pull``, and those of a URL, such as ``ls``, ``log`` and ``diff``."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .._text.arguments import absolute, file_path, parse_size
from .._text.text import lines, printable
from ..errors import DamagedError, Error, InvalidError, NotFoundError
from ..progress import ProgressBar
from ..remote import mend, pull, verify
from .place import Place, is_url

if TYPE_CHECKING:
    from ..store import Store
    from . import state
    from .codec import Entry

_DONE, _FAILED, _WRONG_USE, _SIGNAL = 0, 1, 2, 128
_LISTED = 32
"""Of each shelf, where none is named: they are in the state, so that a long history takes no more requests."""
_LOOK_EVERY_S = 0.2
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = message.replace(", RANGE", "")  # which argparse takes for required beside others
        raise InvalidError(f"{self.prog.removeprefix('lmc-store ')}: {message} (try {self.prog} --help)")


# Modules that take long to load are imported where they are needed: a pull sends its first requests before.


def _opened(arguments: argparse.Namespace) -> Store:
    """Open the pool of a push. With --follow, wait until its trainer makes it, if the folder for it is there."""
    from ..opening import open

    if arguments.follow:
        with Place(arguments.url) as place:  # a wrong URL is refused before the wait
            place.check_writable()
    path, begun, is_said = absolute(arguments.pool), time.monotonic(), False
    while True:
        try:
            return open(arguments.pool, "r", force_network=arguments.force_network)
        except NotFoundError as error:
            is_over = arguments.timeout is not None and time.monotonic() - begun >= arguments.timeout
            if not arguments.follow or is_over or not os.path.isdir(os.path.dirname(path)):
                raise
            if not is_said:
                print(f"lmc-store: {lines(str(error))}. push --follow waits until it is made", file=sys.stderr)
            is_said = True
        time.sleep(_LOOK_EVERY_S)


def _push(arguments: argparse.Namespace) -> dict[str, Any]:
    from . import note

    with _opened(arguments) as store, _Bar(arguments) as bar:
        done = store.push(
            arguments.url,
            arguments.what or None,
            bar,
            follow=arguments.follow,
            timeout=arguments.timeout,
            mirror=arguments.mirror,
            rate=arguments.rate,
            repair=arguments.repair,
            confirm=arguments.confirm,
        )
        url = arguments.url.rstrip("/")
        older = [one for one in note.pushed(store) if one["url"].rstrip("/") == url and one["missing"]]
    for damage in done.get("left", ()):
        print(f"damaged: {printable(damage['shelf'])}@{damage['number']}: {lines(damage['message'])}", file=sys.stderr)
    if "repaired" in done:
        _say(arguments, f"repaired {_snapshots(done['repaired'])}; {len(done['left'])} can't be read")
        arguments.code = _FAILED if done["left"] else _DONE
    for name in done.get("unchecked", ()):
        print(f"lmc-store: not checked: {name}, whose pool is not in this folder", file=sys.stderr)
    keys = f", {done['keys']} of them whole" if done["keys"] else ""
    _say(arguments, f"sent {_snapshots(done['snapshots'])}{keys}: {_size(done['bytes'])}")
    for one in older:
        where = f"{_snapshots(one['missing'])} of {printable(one['shelf'])}"
        _say(arguments, f"{where} can't be sent any more: {one['url']} lacks them, and has newer ones")
    for line in done.get("waiting", ()):
        print(f"lmc-store: {lines(line)}", file=sys.stderr)
    if done["confirmed"]:
        _say(arguments, f"confirmed {_snapshots(done['confirmed'])}, which the pool may let go")
    return done


def _pull(arguments: argparse.Namespace) -> dict[str, Any]:
    if is_url(arguments.pool):
        raise InvalidError(f"pull: {arguments.pool!r} is a URL: pull into a pool or a folder, and push that")
    with _Bar(arguments) as bar:
        done = pull(
            arguments.url,
            arguments.pool,
            arguments.what or None,
            bar,
            allow_missing=arguments.allow_missing,
            rate=arguments.rate,
        )
    there = f" ({done['snapshots_skipped']} were there)" if done["snapshots_skipped"] else ""
    _say(arguments, f"restored {_snapshots(done['snapshots'])}{there}: {_size(done['bytes'])} read")
    for line in done.get("missing", ()):
        print(f"lmc-store: left out: {lines(line)}", file=sys.stderr)
    return done


def _ls(arguments: argparse.Namespace) -> dict[str, Any]:
    from . import state

    if "@" in (arguments.shelf or ""):
        raise InvalidError(
            f"ls: of a URL, only shelves are listed, not {arguments.shelf!r}; lmcstore.open(URL) reads it"
        )
    with Place(arguments.url, hurries=True) as place:
        now = state.read(place)
        names = [arguments.shelf] if arguments.shelf else [shelf.name for shelf in now.shelves]
        shelves = []
        for name in names:
            shelf = now.shelf(name)
            count = arguments.count or (None if arguments.shelf else _LISTED)
            shown = (entry for entry in shelf.entries(backwards=True) if not entry.hidden)
            entries = [*itertools.islice(shown, count)][::-1]
            tags, older = shelf.tag_numbers(), shelf.shown - len(entries)
            listed = [_described(shelf, entry, tags) for entry in entries]
            shelves.append({"name": name, "stored": shelf.shown, "snapshots": listed})
            more = f"; {older} older (all: lmc-store ls URL {printable(name)})" if older and not arguments.count else ""
            _say(arguments, f"{printable(name)}: {_snapshots(shelf.shown)}{more}")
            for entry in entries:
                _say(arguments, "  " + _line(entry, tags))
    return {"url": place.url, "shelves": shelves}


def _log(arguments: argparse.Namespace) -> dict[str, Any]:
    from . import state

    with Place(arguments.url, hurries=True) as place:
        now = state.read(place)
        names = [arguments.shelf] if arguments.shelf else [shelf.name for shelf in now.shelves]
        snapshots = []
        for name in names:
            shelf, tags = now.shelf(name), now.shelf(name).tag_numbers()
            entries = (entry for entry in shelf.entries(backwards=True) if not entry.hidden)
            for entry in itertools.islice(entries, arguments.count):
                snapshots.append(_described(shelf, entry, tags))
                prefix = "" if len(names) == 1 else f"{printable(name)}@"
                _say(arguments, f"* {prefix}{_line(entry, tags)}")
    return {"url": place.url, "snapshots": snapshots}


def _info(arguments: argparse.Namespace) -> dict[str, Any]:
    from . import state

    with Place(arguments.url, hurries=True) as place:
        now = state.read(place)
        shelves = []
        for shelf in now.shelves:
            latest = next((entry for entry in shelf.entries(backwards=True) if not entry.hidden), None)
            found = {"name": shelf.name, "stored": shelf.shown, "latest": latest.number if latest else 0}
            newest = ""
            if latest is not None:
                found |= {"step": latest.step, "time": latest.time_ns / 1e9}
                step = "" if latest.step is None else f" (step {latest.step})"
                found["absent"] = absent = latest.number - shelf.shown
                newest = f", {'newest' if absent else 'safe up to'} {latest.number}{step} of {_time(latest.time_ns)}"
                if absent:
                    newest += f"; {absent} older {'is' if absent == 1 else 'are'} not there (removed, or never sent)"
            shelves.append(found)
            _say(arguments, f"{printable(shelf.name)}: {_snapshots(shelf.shown)}{newest}")
        written = _time(now.time_ns) if now.number else "-"
        _say(arguments, f"{place.url}: run {now.run}, commit {now.number} of {written}")
        ranks = [] if now.ranks is None else list(map(_rank, [place] * len(now.ranks), now.ranks))
        for one in ranks:
            _say(arguments, f"{one['name']}: {_snapshots(one['stored'])}{', damaged' if one['error'] else ''}")
    found = {"url": place.url, "run": now.run, "commit": now.number, "time": now.time_ns / 1e9, "shelves": shelves}
    return found if now.ranks is None else found | {"ranks": ranks}


def _rank(above: Place, name: str) -> dict[str, Any]:
    """Describe a rank's sub-run."""
    from . import state

    with above.below(name) as place:
        try:
            return {"name": name, "stored": sum(shelf.shown for shelf in state.read(place).shelves), "error": None}
        except (DamagedError, NotFoundError) as error:
            return {"name": name, "stored": 0, "error": str(error)}


def _verify(arguments: argparse.Namespace) -> dict[str, Any]:
    from ..store import Store

    with Place(arguments.url) as place, _Bar(arguments) as bar:
        done = verify(place, arguments.what, Store._create, bar)
    for damage in done["damages"]:
        step = "" if damage["step"] is None else f" (step {damage['step']})"
        where = f"{printable(damage['shelf'])}@{damage['number']}{step}"
        print(f"damaged: {where}: {lines(damage['message'])}", file=sys.stderr)
    verdict = f"{len(done['damages'])} can't be read" if done["damages"] else "no damage"
    _say(arguments, f"checked {_snapshots(done['snapshots'])}, {_size(done['bytes_read'])}: {verdict}")
    arguments.code = _FAILED if done["damages"] else _DONE
    return done


def _scrub(arguments: argparse.Namespace) -> dict[str, Any]:
    from ..opening import open

    if not arguments.repair:
        raise InvalidError("scrub: --from is for --repair")
    urls = [one for one in arguments.sources if is_url(one)]
    files = [one for one in arguments.sources if not is_url(one)]
    with open(arguments.pool, "r+", force_network=arguments.force_network) as store:
        done = mend(store, arguments.what, urls, files)
    lost = f"; {done['lost']} lost in part" if done["lost"] else ""
    _say(arguments, f"{done['repaired']} repaired{lost}: {done['contents']} contents, {_size(done['bytes_read'])} read")
    if done["lost"]:
        print(f"lmc-store: {done['lost']} contents stay lost: no source has them", file=sys.stderr)
    arguments.code = _FAILED if done["lost"] or done["damages"] > done["repaired"] else _DONE
    return done


def _rm(arguments: argparse.Namespace) -> dict[str, Any]:
    from ..store import Store
    from . import sweep

    is_prune = arguments.prune
    if not is_prune and (not arguments.what or not all("@" in one for one in arguments.what)):
        raise InvalidError("rm: name snapshots: run@7, or run@5..9; run@1..latest is a whole shelf")
    with Place(arguments.url) as place:
        place.check_writable()
        if is_prune:
            count, objects, freed = sweep.prune(
                place, arguments.what, Store._create, dry_run=arguments.dry_run, force=arguments.force
            )
        else:
            count, objects, freed = sweep.remove(
                place, arguments.what, dry_run=arguments.dry_run, sole="remove" if arguments.force else "refuse"
            )
    verb = "would remove" if arguments.dry_run else "removed"
    _say(arguments, f"{verb} {_snapshots(count)}; {objects} objects deleted, {_size(freed)}")
    return {"snapshots": count, "objects": objects, "freed_bytes": freed}


def _diff(arguments: argparse.Namespace) -> dict[str, Any]:
    from . import compare

    with _Bar(arguments) as bar:
        return compare.diff(arguments, bar, _say)


def _export(arguments: argparse.Namespace) -> dict[str, Any]:
    from . import compare

    with _Bar(arguments) as bar:
        return compare.export(arguments, bar, _say, _size)


def _described(shelf: state.Shelf, entry: Entry, tags: dict[int, list[str]]) -> dict[str, Any]:
    return {
        "shelf": shelf.name,
        "number": entry.number,
        "step": entry.step,
        "time": entry.time_ns / 1e9,
        "time_utc": _time(entry.time_ns),
        "parent": entry.parent or None,
        "tags": tags.get(entry.number, []),
        "metrics": entry.metrics or {},
        "note": entry.note or None,
        "tensors": entry.tensors,
        "raw_bytes": entry.raw_bytes,
        "new_bytes": entry.new_bytes,
        "key_bytes": entry.key.bytes if entry.key is not None else None,
    }


def _line(entry: Entry, tags: dict[int, list[str]]) -> str:
    step = "" if entry.step is None else f"  step {entry.step}"
    named = f"  ({', '.join(map(printable, tags[entry.number]))})" if entry.number in tags else ""
    metrics = "".join(f" {printable(name)}={value}" for name, value in (entry.metrics or {}).items())
    note = f"  {printable(entry.note)}" if entry.note else ""
    sizes = f"{_size(entry.raw_bytes)}, {_size(entry.new_bytes)} new"
    return f"{entry.number}{step}  {_time(entry.time_ns)}  {sizes}{named}{' ' + metrics if metrics else ''}{note}"


def _time(time_ns: int) -> str:
    try:
        import datetime

        return datetime.datetime.fromtimestamp(time_ns // 10**9, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(time_ns)


def _size(count: int) -> str:
    value, unit = float(count), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    digits = 0 if unit == 0 else 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {_UNITS[unit]}"


def _snapshots(count: int) -> str:
    return f"{count} snapshot{'' if count == 1 else 's'}"


def _say(arguments: argparse.Namespace, text: str) -> None:
    if not arguments.json:
        print(text)


class _Bar:
    """A bar on a terminal; nothing elsewhere."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._bar = ProgressBar() if sys.stderr.isatty() and not arguments.json else None

    def __enter__(self) -> Callable[[str, int, int], object] | None:
        return self._bar

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _url(text: str) -> str:
    if not is_url(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no URL: write s3://bucket/folder, gs://, az:// or file:///folder"
        )
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no count: it is 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} are no seconds")
    return value


def _rate(text: str) -> int:
    try:
        found = parse_size(text)
    except InvalidError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found == 0:
        raise argparse.ArgumentTypeError("a rate is above 0")
    return found


_WHAT = "a shelf, a snapshot (run@7) or a range (run@5..9); without it: everything"


def _parser(name: str) -> _Parser:
    texts = {
        "push": "Sends the snapshots that a run in an object store lacks, and its tags, metrics and notes.",
        "pull": "Restores snapshots of a run in an object store into a pool, which is made if it is missing.",
        "ls": "Lists the snapshots of a run in an object store, oldest first; without SHELF the newest 32 of each.",
        "log": "Lists the snapshots of a run in an object store, newest first.",
        "info": "Describes a run in an object store.",
        "scrub": "Checks a pool, and repairs it from files and from runs in object stores.",
        "verify": "Reads a run in an object store, and decodes every tensor in a temporary pool (TMPDIR).",
        "diff": "Shows the differences between two snapshots of a run in an object store, or of one and its parent.",
        "export": "Writes a snapshot of a run in an object store as a safetensors file.",
        "rm": "Removes snapshots of a run in an object store for ever, and deletes objects older than a day that no "
        "snapshot needs.",
    }
    parser = _Parser(prog=f"lmc-store {name}", description=texts[name], allow_abbrev=False)
    if name in ("push", "scrub"):
        parser.add_argument("pool", metavar="POOL", type=file_path, help="a pool, or the folder of a run of many ranks")
    if name != "scrub":
        parser.add_argument("url", metavar="URL", type=_url, help="s3://, gs://, az://, file:/// or, to read, https://")
    if name == "pull":
        parser.add_argument("pool", metavar="POOL", type=file_path, help="a pool, or a folder for a run of many ranks")
        parser.add_argument("--allow-missing", action="store_true", help="leave out parts of ranks that are missing")
        parser.add_argument(
            "--rate", metavar="SIZE", type=_rate, help="receive at most this much per second, like 20MiB"
        )
    if name in ("ls", "log"):
        parser.add_argument("shelf", metavar="SHELF", nargs="?")
        parser.add_argument("-n", dest="count", metavar="N", type=_count, help="the newest N only")
    if name in ("diff", "export"):
        parser.add_argument(
            "addresses", metavar="ADDRESS", nargs="+", help="a snapshot (run@7, run) or, of diff, a range"
        )
    if name == "diff":
        parser.add_argument("-n", dest="count", metavar="N", type=_count, help="the first N only")
    if name == "export":
        parser.add_argument("-o", "--output", metavar="FILE", type=file_path, help="-: standard output")
        parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
        parser.add_argument("--part", metavar="P", help='only the tensors below "P.", without it')
        parser.add_argument("--metrics", metavar="FORM", help=argparse.SUPPRESS)
    if name in ("push", "pull", "verify", "scrub"):
        parser.add_argument("what", metavar="RANGE", nargs="*", help=_WHAT)
    if name == "rm":
        parser.add_argument("what", metavar="RANGE", nargs="*", help="run@7 or run@5..9; with --prune: shelves")
        parser.add_argument("--prune", action="store_true", help="remove all that the shelves' policies do not keep")
        parser.add_argument("--dry-run", action="store_true", help="only report")
        parser.add_argument("--force", action="store_true", help="also the only copy of what a pool has let go")
    if name == "push":
        _add_push_options(parser)
    if name == "scrub":
        parser.add_argument(
            "--from", dest="sources", metavar="URL", action="append", default=[], help="a run, an archive or a pool"
        )
    if name in ("push", "scrub"):
        parser.add_argument("--repair", action="store_true", help="mend what is missing or damaged")
        parser.add_argument("--force-network", action="store_true", help="accept network file systems")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(code=_DONE)
    return parser


def _add_push_options(parser: _Parser) -> None:
    parser.add_argument("--follow", action="store_true", help="go on, and send each snapshot when it is durable")
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, help="end --follow after so long without one")
    parser.add_argument("--mirror", action="store_true", help="remove snapshots there that the pool lacks")
    parser.add_argument("--rate", metavar="SIZE", type=_rate, help="send at most this much per second, like 20MiB")
    parser.add_argument(
        "--confirm",
        choices=("sample", "all", "off"),
        default="sample",
        help="how copies are checked before the pool lets snapshots go (policy local): a tensor of each, or all",
    )


_WORK = {
    "push": _push,
    "pull": _pull,
    "ls": _ls,
    "log": _log,
    "info": _info,
    "verify": _verify,
    "rm": _rm,
    "diff": _diff,
    "export": _export,
    "scrub": _scrub,
}


def _end(number: int, _: object) -> NoReturn:
    raise _Signal(number)


class _Signal(BaseException):
    pass


def main(name: str, words: Sequence[str]) -> int:
    """Run a command; return the exit code: 0 done, 1 failed or damaged, 2 wrong use, 128 + N stopped by signal N."""
    is_json = "--json" in words
    try:
        if name not in _WORK:
            raise InvalidError(f"lmc-store {name} does not take a URL; lmc-store pull makes a pool of it")
        arguments = _parser(name).parse_intermixed_args(words)
        done = _WORK[name](arguments)
        code: int = arguments.code
    except Error as error:
        print(f"lmc-store: {lines(str(error))}", file=sys.stderr)
        done = {"error": {"kind": type(error).__name__, "message": str(error)}}
        code = _WRONG_USE if isinstance(error, InvalidError) else _FAILED
    except (KeyboardInterrupt, _Signal) as error:
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else error.args[0]
        print("lmc-store: interrupted. All commits that were made are kept", file=sys.stderr)
        done, code = {"error": {"kind": "CancelledError", "message": "interrupted"}}, _SIGNAL + number
    if is_json:
        print(json.dumps(done, indent=2))
    return code


def run(name: str | None = None) -> NoReturn:
    """Run the command that the arguments name, or `name`, and exit."""
    logging.basicConfig(level=logging.WARNING, format="lmc-store: %(message)s")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    words = sys.argv[1:]
    try:
        code = main(name, words) if name is not None else main(words[0] if words else "", words[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = _FAILED
    os._exit(code)  # requests under way would delay the end
