# SPDX-License-Identifier: BSD-3-Clause
"""Other codecs, in a process and thread of their own.

Usage: codec_peers.py PACKAGES, run by their Python; PACKAGES is a folder with packages that it lacks (torch, for
ZipNN). Answers lines of JSON: {"load": [DTYPE, DATA, BASE or null, BYTES]}, {"size": PEER}, a checked pass over the
tensor, {"round": PEER}, one over the tensor repeated to BYTES. Preparations that a peer lacks (XOR, differences, byte
grouping) are not timed.
"""

import bz2
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
from codec_entropy import KINDS, Words, zigzag

SAMPLE_BYTES = 2 << 20
WIDTHS = {"bf16": 2, "f16": 2, "f32": 4, "f64": 8, "i64": 8, "i32": 4, "i16": 2}


@dataclass
class Way:
    """A way to use a peer."""

    name: str
    prepare: Callable[[Words, Words | None], Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any, Any], Any]  # arguments: the encoded bytes, the prepared base
    spoils: bool = False  # overwrites its input


def octets(value: Any) -> Words:
    """View as bytes."""
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes | bytearray) else value.reshape(-1).view(np.uint8)


def planes(words: Words) -> bytes:
    """Group first bytes, second bytes, ..."""
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, words.itemsize).T).tobytes()


def handed(delta: bool, form: Callable[[Words], Any]) -> list[tuple[str, Callable[[Words, Words | None], Any]]]:
    """List inputs: a tensor, or its difference and XOR with the base."""
    if not delta:
        return [("alone", lambda x, b: form(x))]
    return [("difference", lambda x, b: form(zigzag(x - b))), ("XOR", lambda x, b: form(x ^ b))]


# ---- The peers: each yields its uses, the best of which is measured -------------------------------------------------


def ways_zipnn(dtype: str, delta: bool) -> list[Way]:
    """Yield ZipNN, without deltas."""
    from zipnn import ZipNN

    name = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[dtype]
    codec = ZipNN(bytearray_dtype=name, threads=1, input_format="byte")
    return [
        Way(way, prepare, codec.compress, lambda blob, _: codec.decompress(blob), spoils=True)
        for way, prepare in handed(delta, lambda x: x.tobytes())
    ]


def ways_pcodec(dtype: str, delta: bool) -> list[Way]:
    """Yield pcodec, for each number type."""
    from pcodec import ChunkConfig, standalone

    width = WIDTHS[dtype]
    if delta:
        views = {f"difference as i{8 * width}": lambda x, b: (x - b).view(f"i{width}"), "XOR": lambda x, b: x ^ b}
    else:
        views = {f"as u{8 * width}": lambda x, b: x, f"as f{8 * width}": lambda x, b: x.view(f"f{width}")}
    return [
        Way(
            way,
            prepare,
            lambda x: standalone.simple_compress(x, ChunkConfig()),
            lambda blob, _: standalone.simple_decompress(blob),
        )
        for way, prepare in views.items()
    ]


def z4ai_dtype(dtype: str) -> str:
    """Name a type for z4ai."""
    return {"f16": "fp16", "f32": "fp32"}.get(dtype, dtype)


def ways_z4ai(dtype: str, delta: bool, effort: str | None = None) -> list[Way]:
    """Yield z4ai, with deltas."""
    import z4ai

    name = z4ai_dtype(dtype)
    if delta and effort is None:
        return [
            Way(
                "its delta",
                lambda x, b: (x.tobytes(), b.tobytes() if b is not None else b""),
                lambda both: z4ai.compress_delta(*both, dtype=name, threads=1),
                lambda blob, both: z4ai.decompress_delta(blob, both[1]),
            )
        ]
    return [
        Way(
            way,
            prepare,
            lambda x: z4ai.compress(x, dtype=name, threads=1, effort=effort),
            lambda blob, _: z4ai.decompress(blob),
        )
        for way, prepare in handed(delta, lambda x: x.tobytes())
    ]


def ways_z4ai_max(dtype: str, delta: bool) -> list[Way]:
    """Yield z4ai for small size."""
    return ways_z4ai(dtype, delta, "max")


def openzl_graphs(dtype: str, delta: bool) -> dict[str, Callable[[Any], Any]]:
    """Return OpenZL's graphs."""
    import openzl.ext as zl

    graphs, nodes = zl.graphs, zl.nodes

    def by_planes(compressor: Any) -> Any:
        entropy = graphs.Entropy()(compressor)
        return nodes.ConvertNumToStructLE()(compressor, nodes.TransposeSplit()(compressor, entropy))

    found: dict[str, Callable[[Any], Any]] = {"planes": by_planes}
    if not delta:
        whole = {"bf16": nodes.BFloat16Deconstruct, "f16": nodes.Float16Deconstruct, "f32": nodes.Float32Deconstruct}
        part = whole[dtype]()
        found["float"] = lambda c: part(c, nodes.TransposeSplit()(c, graphs.Entropy()(c)), graphs.Entropy()(c))
        found["float, raw fractions"] = lambda c: part(c, graphs.Store()(c), graphs.Fse()(c))
    return found


def openzl_way(name: str, prepare: Callable[[Words, Words | None], Any], graph: Callable[[Any], Any]) -> Way:
    """Use a graph."""
    import openzl.ext as zl

    compressor = zl.Compressor()
    compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
    compressor.select_starting_graph(graph(compressor))

    def encode(words: Words) -> Any:
        context = zl.CCtx()
        context.ref_compressor(compressor)
        return context.compress([zl.Input(zl.Type.Numeric, words)])

    return Way(name, prepare, encode, lambda blob, _: zl.DCtx().decompress(blob)[0].content.as_nparray())


def ways_openzl(dtype: str, delta: bool) -> list[Way]:
    """Yield OpenZL's graphs on each input."""
    return [
        openzl_way(f"{way}, {name}", prepare, graph)
        for way, prepare in handed(delta, lambda x: x)
        for name, graph in openzl_graphs(dtype, delta).items()
    ]


def zstd_ways(delta: bool, level: int) -> list[Way]:
    """Yield Zstandard."""
    import zstandard

    encoder, decoder = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    return [
        Way(f"{way}, planes", prepare, encoder.compress, lambda blob, _: decoder.decompress(blob))
        for way, prepare in handed(delta, planes)
    ]


def ways_zstd_3(dtype: str, delta: bool) -> list[Way]:
    """Yield the default level."""
    return zstd_ways(delta, 3)


def ways_zstd_19(dtype: str, delta: bool) -> list[Way]:
    """Yield the highest ordinary level."""
    return zstd_ways(delta, 19)


def ways_bzip2(dtype: str, delta: bool) -> list[Way]:
    """Yield bzip2."""
    return [
        Way(f"{way}, planes", prepare, lambda x: bz2.compress(x, 9), lambda blob, _: bz2.decompress(blob))
        for way, prepare in handed(delta, planes)
    ]


def blosc2_ways(delta: bool, codec: str) -> list[Way]:
    """Yield Blosc2."""
    import blosc2

    parameters = {"codec": blosc2.Codec[codec], "filters": [blosc2.Filter.BITSHUFFLE], "clevel": 5, "nthreads": 1}
    return [
        Way(
            f"{way}, bits",
            prepare,
            lambda x: blosc2.compress2(x, typesize=x.itemsize, **parameters),
            lambda blob, _: blosc2.decompress2(blob, nthreads=1),
        )
        for way, prepare in handed(delta, lambda x: x)
    ]


def ways_blosc2_zstd(dtype: str, delta: bool) -> list[Way]:
    """Yield Zstandard in Blosc2."""
    return blosc2_ways(delta, "ZSTD")


def ways_blosc2_lz4(dtype: str, delta: bool) -> list[Way]:
    """Yield LZ4 in Blosc2."""
    return blosc2_ways(delta, "LZ4")


PEERS: dict[str, tuple[str | None, Callable[[str, bool], list[Way]]]] = {  # the package of each
    "ZipNN": ("zipnn", ways_zipnn),
    "pcodec": ("pcodec", ways_pcodec),
    "OpenZL": ("openzl", ways_openzl),
    "zstd -3": ("zstandard", ways_zstd_3),
    "blosc2 zstd": ("blosc2", ways_blosc2_zstd),
    "blosc2 lz4": ("blosc2", ways_blosc2_lz4),
    "z4ai": ("z4ai", ways_z4ai),
    "z4ai max": ("z4ai", ways_z4ai_max),
    "zstd -19": ("zstandard", ways_zstd_19),
    "bzip2 -9": (None, ways_bzip2),
}

# ---- The process ----------------------------------------------------------------------------------------------------


def check(way: Way, prepared: Any, decoded: Any) -> None:
    """Check the decoded bytes."""
    wanted = prepared[0] if isinstance(prepared, tuple) else prepared
    if not np.array_equal(octets(wanted), octets(decoded)):
        raise ValueError("what it decoded differs from what it encoded")


def measure(way: Way, prepared: Any, checked: bool) -> dict[str, Any]:
    """Encode and decode once."""
    handed_over = bytes(bytearray(prepared)) if way.spoils else prepared
    begin = time.perf_counter()
    blob = way.encode(handed_over)
    encoded = time.perf_counter()
    decoded = way.decode(blob, prepared)
    end = time.perf_counter()
    if checked:
        check(way, prepared, decoded)
    raw = len(octets(prepared[0] if isinstance(prepared, tuple) else prepared))
    times = {"in_s": encoded - begin, "out_s": end - encoded}
    return {"bytes": len(blob), "raw_bytes": raw, "way": way.name} | times


class Tensor:
    """The tensor, its base, and the measurement."""

    def __init__(self, dtype: str, data: str, base: str | None, wanted: int):
        self.dtype, self.wanted = dtype, wanted
        kind = KINDS[WIDTHS.get(dtype, 1)]
        self.data = np.fromfile(data, kind)
        self.base = np.fromfile(base, kind) if base else None
        self.repeats = -(-wanted // self.data.nbytes) if self.data.nbytes < wanted else 1
        self.best = cache(self._best)
        self.prepared: tuple[str, Any] = ("", None)
        self.copy = np.ones((2, self.data.nbytes * self.repeats), np.uint8)

    def _best(self, peer: str) -> Way:
        """Choose the smallest use on a sample from the middle."""
        ways = PEERS[peer][1](self.dtype, self.base is not None)
        if len(ways) == 1:
            return ways[0]
        count = min(len(self.data), SAMPLE_BYTES // self.data.itemsize)
        part = slice((len(self.data) - count) // 2, (len(self.data) + count) // 2)
        base = None if self.base is None else self.base[part]
        sizes = [measure(way, way.prepare(self.data[part], base), False)["bytes"] for way in ways]
        return ways[sizes.index(min(sizes))]

    def size(self, peer: str) -> dict[str, Any]:
        """Run a checked pass."""
        way = self.best(peer)
        return measure(way, way.prepare(self.data, self.base), True)

    def round(self, peer: str) -> dict[str, Any]:
        """Run a repeated pass, and an equal memcpy."""
        way = self.best(peer)
        if self.prepared[0] != peer:
            base = None if self.base is None else np.tile(self.base, self.repeats)
            self.prepared = (peer, way.prepare(np.tile(self.data, self.repeats), base))
            measure(way, self.prepared[1], False)  # warm-up
        found = measure(way, self.prepared[1], False)
        begin = time.perf_counter()
        np.copyto(self.copy[0], self.copy[1])
        found["memcpy_s"] = time.perf_counter() - begin
        return found


def versions() -> dict[str, str]:
    """Name the installed peers."""
    found = {}
    for name, (package, _) in PEERS.items():
        try:
            found[name] = metadata.version(package) if package else "of Python"
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Answer until end of input."""
    sys.path.append(sys.argv[1])
    tensor = None
    print(json.dumps(versions()), flush=True)
    for line in sys.stdin:
        ((what, with_what),) = json.loads(line).items()
        try:
            if what == "load":
                tensor = None  # frees the previous tensor
                tensor, answer = Tensor(*with_what), {}
            elif tensor:
                answer = tensor.size(with_what) if what == "size" else tensor.round(with_what)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:100]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
