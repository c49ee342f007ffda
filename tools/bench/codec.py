# SPDX-License-Identifier: BSD-3-Clause
"""Measures the codec and its peers, in one thread by default: ratios within one run. Run by tools/bench.sh codec."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from codec_data import TOP, Source, file_rows, pretrained, trained
from codec_data import norms as small_tensors
from codec_entropy import KINDS, least
from codec_rows import Row, goals_table, own_table, peer_tables
from codec_run import BENCH, TOOL, Peers, Program, ours
from lmcstore import codec
from tables import Section, gbs, processor, progress, run_sections

MIB = 1 << 20
FAST = ("ZipNN", "pcodec", "OpenZL", "zstd -3", "blosc2 zstd", "blosc2 lz4")  # measured in several rounds
SLOW = ("z4ai", "z4ai max", "zstd -19", "bzip2 -9")  # one pass
WIDTHS = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8, "i64": 8, "i32": 4, "i16": 2}


@dataclass
class Setting:
    """Where and how much to measure."""

    size: str
    peers: Peers | None
    sources: list[Source]
    notes: list[str] = field(default_factory=list)
    beside: Path | None = None
    folder: Path = Path()

    def of(self, full: int, quick: int, smoke: int) -> int:
        """Choose by size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]

    @property
    def wanted(self) -> int:
        """Return a number of bytes larger than the caches."""
        return self.of(64 * MIB, 64 * MIB, 2 * MIB)

    def some(self, *names: str) -> list[Source]:
        """Return the named rows."""
        return [source for source in self.sources if source.name in names]


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Take medians."""
    return {key: statistics.median(turn[key] for turn in rounds) for key in rounds[0]}


# ---- Rows: every tensor, beside the peers ---------------------------------------------------------------------------


class PeersOn:
    """The peers on one tensor; a crash disables one."""

    def __init__(self, peers: Peers, source: Source, wanted: int):
        self.load: Callable[[], Program] = lambda: peers.load(source, wanted)
        self.program = self.load()
        self.found: dict[str, dict[str, Any]] = {}
        self.rounds: dict[str, list[dict[str, float]]] = {}

    def ask(self, what: str, peer: str) -> dict[str, Any]:
        """Ask a peer for a pass: "size" or "round"."""
        try:
            return self.program.ask({what: peer})
        except RuntimeError as error:
            self.program = self.load()
            return {"error": str(error)}

    def sizes(self, names: tuple[str, ...]) -> None:
        """Run a checked pass of each peer; its times count for peers without rounds."""
        for name in names:
            if name in self.program.first:
                if name in SLOW:
                    progress(f"    {name} ...")
                answer = self.found[name] = self.ask("size", name)
                answer["timed_bytes"] = answer.get("raw_bytes", 0)

    def round(self, names: tuple[str, ...]) -> None:
        """Run one round each."""
        for name in names:
            if "bytes" in self.found.get(name, {}):
                answer = self.ask("round", name)
                if "error" in answer:
                    self.found[name] = answer
                else:
                    self.rounds.setdefault(name, []).append(answer)

    def result(self) -> dict[str, dict[str, Any]]:
        """Return sizes and median seconds."""
        for name, rounds in self.rounds.items():
            if "bytes" in self.found[name]:
                keys = ("in_s", "out_s", "memcpy_s", "raw_bytes")
                middle = medians([{key: turn[key] for key in keys} for turn in rounds])
                middle["timed_bytes"] = middle.pop("raw_bytes")
                self.found[name] |= middle
        return self.found


def measure_row(setting: Setting, source: Source) -> Row:
    """Measure liblmc and peers, in alternating rounds."""
    kind = KINDS[WIDTHS.get(source.dtype, 1)]
    data = np.fromfile(source.data, kind)
    base = np.fromfile(source.base, kind) if source.base else None
    h, way = least(data, base, source.dtype)
    width = data.itemsize
    del data, base
    rounds = setting.of(9, 5, 2)
    peer_rounds = setting.of(3, 1, 1)
    with ExitStack() as stack:
        program = stack.enter_context(ours("row", source, setting.wanted))
        peers = None
        if setting.peers and source.dtype in ("bf16", "f16", "f32"):
            peers = PeersOn(setting.peers, source, setting.of(64 * MIB, 16 * MIB, 2 * MIB))
            peers.sizes((*FAST, *(SLOW if setting.size == "full" else ())))
        program.ask()  # warm-up
        turns = []
        for turn in range(rounds):
            turns.append(program.ask())
            if peers and turn * peer_rounds % rounds < peer_rounds:
                peers.round(FAST)
        found = peers.result() if peers else {}
    return Row(source, program.first | {"width": width}, medians(turns), h, way, found)


def rows(setting: Setting) -> list[Section]:
    """Measure every tensor."""
    done = []
    for number, source in enumerate(setting.sources, 1):
        begin = time.monotonic()
        done.append(measure_row(setting, source))
        if setting.peers and setting.size == "full":
            setting.peers.stop()
        progress(f"row {number} of {len(setting.sources)}: {source.name}: {time.monotonic() - begin:.0f} s")
    own = own_table(done)
    own.notes.append(
        "H: the smallest order-0 entropy, without tables, of the tensor alone (planes of bytes, the sign moved to the "
        "lowest bit), of the XOR with its base, of the difference (planes, or whole words), and of the difference "
        "given the base's exponent (fp32: of its sign and length; its other bits raw). Sizes: frames with all headers "
        f"and tables, of the tensor as it is. Speed: of the tensor repeated to at least {setting.wanted >> 20} MiB, "
        f"medians of {setting.of(9, 5, 2)} rounds; memcpy of as many bytes between the same buffers, in the same "
        "rounds. Pages of 4 KiB, touched before."
    )
    tables = peer_tables(done)
    if setting.peers:
        tables[0].notes.append(
            "Each peer is used in the ways that it can (alone: as bytes, planes or numbers; delta: XOR and difference, "
            "or its own), and the one that makes 2 MiB from the middle smallest is measured. LMC as published: planes, "
            "XOR, Huffman codes for 64 KiB each; its size is computed, not its speed."
        )
        tables[-1].notes.append(
            "XOR, difference and grouping by bytes that a peer doesn't do itself are left out of its time. Peers run "
            "from Python, in a process that keeps freed memory, so that buffers are not faulted in anew each time; "
            f"median of {setting.of(3, 1, 1)} after a warm-up, between our "
            f"rounds; {', '.join(SLOW)}: one pass. Pages as ours."
        )
    return [own, *tables, goals_table(done)]


# ---- Threads, small tensors, kernels, pages -------------------------------------------------------------------------


def several(setting: Setting, programs: dict[str, Program]) -> dict[str, dict[str, float]]:
    """Alternate rounds; return medians."""
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    for turn in range(setting.of(9, 3, 2) + 1):
        for name, program in programs.items():
            answer = program.ask()
            if turn:
                turns[name].append(answer)
    return {name: medians(found) for name, found in turns.items()}


def threads(setting: Setting) -> list[Section]:
    """Compare two threads with one."""
    section = Section("Two threads over one, default level; GB/s")
    section.head = ["row", "memcpy, 1", "2", "in, 1", "2", "speed-up", "out, 1", "2", "speed-up", "processors had"]
    for source in setting.some("bf16 weights alone", "bf16 weights, 1 step on", "fp32 weights alone"):
        with ours("threads", source, setting.wanted) as program:
            t = several(setting, {"": program})[""]
            size = program.first["bytes"]
        section.numbers[source.name] = t
        cells = [gbs(size, t[f"memcpy_{n}_s"]) for n in (1, 2)]
        for way in ("in", "out"):
            gain = t[f"{way}_1_s"] / t[f"{way}_2_s"]
            cells += [*(gbs(size, t[f"{way}_{n}_s"]) for n in (1, 2)), f"{gain:.2f}"]
            limit = t["memcpy_1_s"] / t["memcpy_2_s"]
            what = f"{source.name}: {way}, two threads over one (memcpy: {limit:.2f})"
            section.goal(what, gain, ">=", 1.8)
        had = t["cpu_2_s"] / (t["in_2_s"] + t["out_2_s"])
        section.rows.append([source.name, *cells, f"{had:.2f}"])
    section.notes.append(
        "Each thread has its half of the blocks. memcpy by two threads shows the memory's limit. Processors had: "
        "seconds of processor time in a second of the two threads; below 2 others ran, and the speed-up says little."
    )
    return [section]


SMALL_ROWS = ("bf16 weights alone", "bf16 weights, 1 step on", "fp32 weights alone", "fp32 weights, 1 step on")


def small(setting: Setting) -> list[Section]:
    """Compare small tensors with a large one."""
    count = setting.of(1000, 1000, 20)
    section = Section(f"{count:,} tensors of 64 KiB beside one large one, default level; GB/s")
    section.head = ["row", "large: in", "out", "bits", "small: in", "out", "bits", "in, of large", "out, of large"]
    for source in setting.some(*SMALL_ROWS):
        with ours("small", source, count << 16) as program:
            t = several(setting, {"": program})[""]
            size = program.first["bytes"]
        section.numbers[source.name] = t
        cells = []
        for kind in ("large", "small"):
            bits = 8 * t[f"{kind}_bytes"] / (size / WIDTHS[source.dtype])
            cells += [gbs(size, t[f"{kind}_in_s"]), gbs(size, t[f"{kind}_out_s"]), f"{bits:.3f}"]
        for way in ("in", "out"):
            share = t[f"large_{way}_s"] / t[f"small_{way}_s"]
            cells.append(f"{share:.2f}")
            section.goal(f"{source.name}: {way}, small over large", share, ">=", 0.7)
        section.rows.append([source.name, *cells])
    section.notes.append("The same bytes, each tensor a frame of its own, like the first.")
    return [section]


def norms(setting: Setting) -> list[Section]:
    """Compare the sum of small tensors' frames with one array of them by each peer."""
    sources, sizes = small_tensors(setting.folder, setting.size)
    head = f"The {len(sizes)} tensors below 64 KiB (norms and biases, {sum(sizes):,} elements): bytes"
    section = Section(head)
    section.head = ["row", "a frame each", "of raw", "one frame", "smallest peer, one array", "frames over peer"]
    for source in sources:
        kind = KINDS[WIDTHS[source.dtype]]
        arrays = [np.fromfile(path, kind) for path in (source.data, source.base) if path]
        ends = np.cumsum(sizes)
        parts = [np.split(array, ends[:-1]) for array in arrays]
        each = sum(len(codec.compress(*part, dtype=source.dtype)) for part in zip(*parts, strict=True))
        one = len(codec.compress(*arrays, dtype=source.dtype))
        found = smallest_peer(setting.peers, source) if setting.peers else None
        cells = [f"{found[1]:,} ({found[0]})", f"{each / found[1]:.2f}"] if found else ["", ""]
        section.numbers[source.name] = {"each": each, "one": one, "peer": found}
        section.rows.append([source.name, f"{each:,}", f"{each / arrays[0].nbytes:.2f}", f"{one:,}", *cells])
        if found:
            section.goal(f"{source.name}: frames over the smallest peer", each / found[1], "<=", 1.0)
    return [section]


def smallest_peer(peers: Peers, source: Source) -> tuple[str, int] | None:
    """Return the name and size of the peer that is smallest on one array."""
    names = [name for name in peers.load(source, 1).first if name in (*FAST, *SLOW)]
    found = [(int(peers.size(name, source)["bytes"]), name) for name in names]
    return min(found)[::-1] if found else None


def command(setting: Setting) -> list[Section]:
    """Measure lmc-store compress --base and decompress, one thread, on the bytes of a row."""
    section = Section("lmc-store compress --base beside the codec alone, default level, one thread; GB/s")
    section.head = ["row", "codec: in", "out", "command: in", "out", "in, of the codec", "out, of the codec"]
    for source in setting.some("bf16 weights, 1 step on", "fp32 weights, 1 step on"):
        place = tempfile.TemporaryDirectory(dir=source.data.parent)
        with place as folder, ours("row", source, setting.wanted) as program:
            turns = [program.ask() | compressed(source, Path(folder)) for _ in range(setting.of(9, 3, 2) + 1)][1:]
            size = program.first["bytes"]
        t = medians(turns)
        section.numbers[source.name] = t
        speeds = [size / t["default_in_s"], size / t["default_out_s"], t["command_in_bs"], t["command_out_bs"]]
        shares = [f"{speeds[at + 2] / speeds[at]:.2f}" for at in (0, 1)]
        section.rows.append([source.name, *(f"{speed / 1e9:.2f}" for speed in speeds), *shares])
    section.notes.append(
        "The command's own figures: from memory to memory, with fresh pages for the result; the codec's are touched "
        "before. The digest of the base, and files, take more time."
    )
    return [section]


def answer_of(*words: str | Path) -> dict[str, Any]:
    """Run lmc-store; return its answer."""
    answer: dict[str, Any] = json.loads(subprocess.check_output([TOP / TOOL, *words]))
    return answer


def compressed(source: Source, folder: Path) -> dict[str, float]:
    """Compress a tensor against its base and decompress it; bytes a second."""
    frame, back = folder / "frame", folder / "back"
    base = ["--base", str(source.base), "--threads", "1", "--json"]
    made = answer_of("compress", source.data, "--dtype", source.dtype, "-o", frame, *base)
    read = answer_of("decompress", frame, "-o", back, *base)
    if back.read_bytes() != source.data.read_bytes():
        raise RuntimeError(f"{source.name}: lmc-store decompress returned other bytes")
    frame.unlink()
    back.unlink()
    return {"command_in_bs": made["raw_bytes"] / made["seconds"], "command_out_bs": read["raw_bytes"] / read["seconds"]}


def kernels(setting: Setting) -> list[Section]:
    """Measure kernels of lesser processors."""
    section = Section("Kernels, default level: GB/s, and of AVX-512's speed")
    section.head = ["row", "kernels", "in", "out", "in, of avx512", "out, of avx512"]
    for source in setting.some("bf16 weights alone", "bf16 weights, 1 step on", "fp32 weights alone"):
        with ExitStack() as stack:
            names = ("avx512", "avx2", "portable")
            every = {k: stack.enter_context(ours("row", source, setting.wanted, kernels=k)) for k in names}
            programs = {k: program for k, program in every.items() if program.first["kernels"] == k}
            times = several(setting, programs)
        size = next(iter(programs.values())).first["bytes"]
        section.numbers[source.name] = times
        best = times.get("avx512")
        for name, t in times.items():
            seconds = {way: t[f"default_{way}_s"] for way in ("in", "out")}
            shares = {way: best[f"default_{way}_s"] / seconds[way] for way in seconds} if best else {}
            speeds = [gbs(size, s) for s in seconds.values()]
            section.rows.append([source.name, name, *speeds, *(f"{share:.2f}" for share in shares.values())])
            for way, bound in (("in", 0.3), ("out", 0.4)):
                if name == "portable":
                    section.goal(f"{source.name}: {way}, portable, GB/s", size / seconds[way] / 1e9, ">=", bound)
                elif name == "avx2" and shares:
                    section.goal(f"{source.name}: {way}, avx2 over avx512", shares[way], ">=", 0.5)
    missing = sorted(set(names) - set(programs))
    section.notes.append("One process each, in turns." + (f" Not here: {', '.join(missing)}." if missing else ""))
    return [section]


def pages(setting: Setting) -> list[Section]:
    """Measure with huge pages."""
    section = Section("Pages of 4 KiB and of 2 MiB (where the kernel gives them), default level")
    section.head = ["row", "pages", "memcpy, GB/s", "in", "of memcpy", "out", "of memcpy"]
    for source in setting.some("bf16 weights alone", "bf16 weights, 1 step on"):
        with ExitStack() as stack:
            programs = {
                kind: stack.enter_context(ours("row", source, setting.wanted, pages=kind)) for kind in ("small", "huge")
            }
            times = several(setting, programs)
            size = programs["small"].first["bytes"]
        section.numbers[source.name] = times
        for kind, t in times.items():
            cells = [gbs(size, t["memcpy_s"])]
            for way in ("in", "out"):
                seconds = t[f"default_{way}_s"]
                cells += [gbs(size, seconds), f"{t['memcpy_s'] / seconds:.2f}"]
            section.rows.append([source.name, kind, *cells])
    return [section]


def beside(setting: Setting) -> list[Section]:
    """Compare with the codec of another checkout."""
    if setting.beside is None:
        return []
    section = Section(f"This codec beside that of {setting.beside.name}, default level, in turns")
    section.head = ["row", "bits there", "here", "in: of memcpy", "times as fast", "out: of memcpy", "times as fast"]
    for source in setting.sources:
        with ExitStack() as stack:
            sides = {"there": setting.beside, "here": TOP}
            programs = {
                side: stack.enter_context(ours("row", source, setting.wanted, checkout=checkout))
                for side, checkout in sides.items()
            }
            times = several(setting, programs)
        section.numbers[source.name] = times
        elements = programs["here"].first["once"] / WIDTHS[source.dtype]
        cells = [f"{8 * programs[side].first['default_bytes'] / elements:.3f}" for side in sides]
        for way in (f"default_{way}_s" for way in ("in", "out")):
            cells += [f"{times['here']['memcpy_s'] / times['here'][way]:.2f}"]
            cells += [f"{times['there'][way] / times['here'][way]:.2f}"]
        section.rows.append([source.name, *cells])
    return [section]


SECTIONS: tuple[Callable[[Setting], list[Section]], ...] = (
    rows,
    threads,
    small,
    norms,
    command,
    kernels,
    pages,
    beside,
)

# ---- Running --------------------------------------------------------------------------------------------------------


def sources_of(options: argparse.Namespace, size: str, folder: Path, scratch: Path) -> tuple[list[Source], list[str]]:
    """Return the tensors to measure, and notes about omitted ones."""
    if options.files or options.pair:
        pairs = [*((path, None) for path in options.files), *options.pair]
        return [row for number, (new, old) in enumerate(pairs) for row in file_rows(scratch, number, new, old)], []
    found = trained(folder, size)
    if size != "full":
        return found, ["weights that packages bring along: only a full run takes them"]
    others, skipped = pretrained(folder)
    return [*found, *others], skipped


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="tools/bench.sh codec", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="a safetensors file to measure instead")
    parser.add_argument(
        "--pair", nargs=2, action="append", default=[], type=Path, metavar=("NEW", "BASE"), help="one on another"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer; peers only if they are installed")
    parser.add_argument("--smoke", action="store_true", help="only see that every section runs, without peers")
    parser.add_argument("--no-peers", action="store_true", help="without the other codecs")
    parser.add_argument("--dir", type=Path, default=TOP / "build/bench", help="keeps the data and the peers")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="compare with its bench_codec, preset release")
    parser.add_argument("--row", action="append", default=[], metavar="TEXT", help="rows whose names have this")
    names = [section.__name__ for section in SECTIONS]
    parser.add_argument("--only", action="append", choices=names, help="this section")
    options = parser.parse_args()
    here = Path(os.environ.get("BENCH_FROM", "."))
    options.files = [here / path for path in options.files]
    options.beside = (here / options.beside).resolve() if options.beside else None
    if options.beside and not (options.beside / BENCH).exists():
        parser.error(f"{options.beside} has no {BENCH}")
    options.pair = [(here / new, here / base) for new, base in options.pair]
    for path in (*options.files, *(path for pair in options.pair for path in pair)):
        if not path.is_file():
            parser.error(f"{path}: no such file")
    if options.files or options.pair:
        options.only = options.only or ["rows"]
    return options


def make_setting(options: argparse.Namespace, folder: Path, scratch: Path) -> Setting:
    """Prepare data and peers."""
    size = "smoke" if options.smoke else "quick" if options.quick else "full"
    sources, notes = sources_of(options, size, folder, scratch)
    if options.row:
        sources = [source for source in sources if any(text in source.name for text in options.row)]
    peers = None
    if not (options.no_peers or options.smoke) and {"rows", "norms"} & set(options.only or ["rows"]):
        peers = Peers(options.dir.resolve() / "codec-venv", install=size == "full")
        notes += peers.skipped
        if not peers.here:
            notes.append("peers: none are installed (a full run does)")
            peers = None
    return Setting(size, peers, sources, notes, options.beside, folder)


def measure(options: argparse.Namespace, setting: Setting) -> list[str]:
    """Measure and print; return the failed sections."""
    memory = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    huge = memory.read_text().strip() if memory.exists() else "none"
    report: dict[str, Any] = {
        "machine": f"{processor()}, load {os.getloadavg()[0]:.1f}, huge pages: {huge}; {setting.size} run."
    }
    if not options.json:
        print(f"{report['machine']}\n", flush=True)
    failures = run_sections(SECTIONS, setting, options.only, report, options.json)
    report["left out"] = setting.notes
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        for note in setting.notes:
            print(f"Left out: {note}")
    return failures


def main() -> None:
    """Run the suite; exit with 1 if a section failed."""
    options = arguments()
    torch.set_num_threads(1)  # equal sums on every machine, and no waits
    folder = options.dir.resolve() / "codec-data"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="files-", dir=folder) as scratch:
        failures = measure(options, make_setting(options, folder, Path(scratch)))
    if failures:
        progress(f"could not be measured: {', '.join(failures)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
