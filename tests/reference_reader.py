#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""An LMC frame decoder in plain Python, written from codec/FORMAT.md alone (sections in brackets).

Checks the C library and the document against each other. Checksums are checked if ``xxhash`` is installed.

    reference_reader.py FRAME [--base BASE] [--output FILE]     decode a frame; of a link, BASE and FILE have all its
                                                                arrays, concatenated
    reference_reader.py --file FRAMES [--base BASE] [--output FILE]
                                                                decode a file of frames; BASE: a safetensors file, or
                                                                one array
    reference_reader.py --corpus DIRECTORY                      check good, bad and unsupported frames
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from reference_base import (
    Damaged,
    Reader,
    Unsupported,
    divide,
    fma,
    multiply,
    refuse,
    root,
    to_bits,
    to_float,
    unsupported,
)

try:
    import xxhash
except ImportError:  # checksums are optional
    xxhash = None  # type: ignore[assignment]

BLOCK_BYTES = 1 << 20
ELEMENT_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 2, 12: 4, 13: 8, 14: 4, 15: 8,
                 16: 16, 17: 1, 18: 1, 19: 1, 20: 1, 21: 1, 22: 1}  # fmt: skip
WORD_BYTES = {**ELEMENT_BYTES, 14: 2, 15: 4, 16: 8}


def check64(data: bytes, seed: int, expected: int, what: str) -> None:
    if xxhash is not None:
        refuse(xxhash.xxh3_64_intdigest(data, seed) != expected, f"checksum of {what}")


def check128(data: bytes, low: int, high: int, what: str) -> None:
    if xxhash is not None:
        refuse(xxhash.xxh3_128_intdigest(data) != high << 64 | low, f"hash of {what}")


class Frame:
    """The header [3, 4]."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read_prefix()
        self.read_rest()

    def read_prefix(self) -> None:
        data = self.data
        refuse(len(data) < 64, "no prefix")
        (magic, version, incompatible, self.compatible, self.raw_bytes, self.frame_bytes, self.dtype, predictor,
         self.base_count, outputs, block_log2, reserved_8, constants, tables, extensions, reserved_32,
         checksum) = struct.unpack("<4sIIIQQHHBBBBIIIIQ", data[:64])  # fmt: skip
        refuse(magic != b"LMCF", "magic")
        check64(data[:56], 0, checksum, "the prefix")
        refuse(version == 0, "version 0")
        unsupported(version > 2, "version")
        unsupported(incompatible != 0, "incompatible flags")
        refuse(reserved_8 != 0 or reserved_32 != 0, "a reserved field")
        refuse(outputs == 0 or self.dtype == 0, "no output, or no dtype")
        self.predictor, self.outputs = predictor, outputs
        unsupported(predictor > 2 or block_log2 != 20 or tables != 0, "a feature")
        unsupported(self.dtype not in ELEMENT_BYTES, "dtype")
        if predictor == 0:
            unsupported(outputs != 1 or self.base_count > 1 or constants != 0, "a feature")
        else:
            unsupported(self.dtype != 12, "a link of another dtype")
            refuse(outputs > 4 or self.base_count != outputs or constants != 56, "no link")
        most = 1 << 55 if predictor == 0 else 1 << 53
        refuse(self.raw_bytes > most or self.frame_bytes > 1 << 56, "an impossible size")
        refuse(self.raw_bytes % ELEMENT_BYTES[self.dtype] != 0, "half an element")
        refuse(extensions % 8 != 0, "extensions")
        self.block_count = (self.raw_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES
        self.table_at = 64 + 16 * self.base_count + constants + extensions
        self.entry_bytes = 16 + 16 * outputs
        self.header_bytes = self.table_at + self.entry_bytes * self.block_count + 8
        self.more = 1 if predictor == 0 else 1 + 5 * outputs  # most decoded blocks of a coded one
        most = outputs * self.raw_bytes + self.more * self.block_count
        refuse(self.frame_bytes < self.header_bytes + self.block_count, "too short for its blocks")
        refuse(self.frame_bytes > self.header_bytes + most, "too long for its blocks")

    def read_rest(self) -> None:
        data = self.data
        refuse(len(data) < self.header_bytes, "header cut short")
        end = self.header_bytes - 8
        check64(data[:end], 0, struct.unpack("<Q", data[end : end + 8])[0], "the header")
        refuse(len(data) != self.frame_bytes, "not as long as the header says")
        if self.predictor:
            self.rule = Rule(self.predictor, self.outputs, data[64 + 16 * self.base_count :][:56])
        form = "<QQ" + 2 * self.outputs * "Q"
        starts = [self.table_at + self.entry_bytes * i for i in range(self.block_count)]
        entries = [struct.unpack_from(form, data, at) for at in starts]
        places = [entry[0] & (1 << 56) - 1 for entry in entries] + [self.frame_bytes]
        refuse(places[0] != self.header_bytes, "blocks do not follow the header")
        self.blocks = []
        for i, (place, coded_hash, *hashes) in enumerate(entries):
            unsupported(place >> 56 != 0, "mode of a block")
            raw = min(BLOCK_BYTES, self.raw_bytes - i * BLOCK_BYTES)
            refuse(not 1 <= places[i + 1] - places[i] <= self.outputs * raw + self.more, "size of a block")
            self.blocks.append((places[i], places[i + 1], coded_hash, hashes, raw))

    def base_digest(self) -> bytes | None:
        """[4.1, 6.2]"""
        return self.data[64:80] if self.base_count else None

    def decode(self, base: bytes | None = None) -> bytes:
        """The content [2]; of a link all arrays, concatenated like the base's."""
        if self.predictor:
            return self.decode_link(base)
        if self.base_count:
            if base is None or len(base) != self.raw_bytes:
                raise ValueError("this frame needs a base of its content's size")
        else:
            base = None
        content = bytearray()
        for i, (begin, end, coded_hash, hashes, raw) in enumerate(self.blocks):
            coded = self.data[begin:end]
            check64(coded, i, coded_hash, f"block {i}")
            at = i * BLOCK_BYTES
            block = decode_block(coded, raw, WORD_BYTES[self.dtype], None if base is None else base[at : at + raw])
            check128(block, hashes[0], hashes[1], f"decoded block {i}")
            content += block
        return bytes(content)

    def decode_link(self, base: bytes | None) -> bytes:
        """[10.2]"""
        if base is None or len(base) != self.outputs * self.raw_bytes:
            raise ValueError("this link needs all arrays of the state before")
        arrays = [bytearray() for _ in range(self.outputs)]
        for i, (begin, end, coded_hash, hashes, raw) in enumerate(self.blocks):
            coded = self.data[begin:end]
            check64(coded, i, coded_hash, f"block {i}")
            starts = [k * self.raw_bytes + i * BLOCK_BYTES for k in range(self.outputs)]
            state = decode_link_block(self.rule, coded, [base[at : at + raw] for at in starts])
            for k, (array, block) in enumerate(zip(arrays, state, strict=True)):
                check128(block, hashes[2 * k], hashes[2 * k + 1], f"decoded block {i} of array {k}")
                array += block
        return b"".join(arrays)


def decode_block(coded: bytes, raw: int, word: int, base: bytes | None) -> bytes:
    """[5.1]"""
    reader = Reader(coded)
    method = reader.byte()
    decode = decode_copies if method in (5, 6) else decode_method
    block = decode(reader, method, raw, word, base)
    refuse(reader.at != len(coded), "bytes left over in a block")
    return block


def decode_method(reader: Reader, method: int, raw: int, word: int, base: bytes | None) -> bytes:
    """[5.1]"""
    unsupported(method > 6, "method of a block")
    refuse(method > 4, "copies of copies")
    if method == 0:
        return reader.take(raw)
    if method == 2:
        refuse(word not in (2, 4) or base is None, "classes without a base, or of words that have no exponent")
        return decode_classes(reader, raw // word, word, base or b"")
    if method == 3:
        refuse(word not in (2, 4), "values of words that have no exponent")
        return decode_values(reader, raw // word, word)
    if method == 4:
        refuse(word not in (1, 8) or base is None, "keys without a base, or of words that have classes")
        return decode_keyed(reader, raw // word, word, base or b"")
    transform = reader.byte()
    unsupported(transform > 4, "transform")
    refuse(transform >= 2 and base is None, "a transform that needs a base")
    planes = [decode_list(reader, raw // word) for _ in range(word)]
    return join(planes, raw, word, transform, base)


def join(planes: list[bytes], raw: int, word: int, transform: int, base: bytes | None) -> bytes:
    """[5.2]"""
    bits = 8 * word
    mask = (1 << bits) - 1
    block = bytearray(raw)
    for at in range(0, raw, word):
        y = sum(planes[p][at // word] << 8 * p for p in range(word))
        b = int.from_bytes(base[at : at + word], "little") if base is not None else 0
        if transform == 0:
            x = y
        elif transform == 1:
            x = y >> 1 | (y & 1) << bits - 1
        elif transform == 2:
            x = y ^ b
        elif transform == 3:
            x = y + b
        else:
            x = (y >> 1 if y % 2 == 0 else y >> 1 ^ mask) + b
        block[at : at + word] = (x & mask).to_bytes(word, "little")
    return bytes(block)


def decode_list(reader: Reader, n: int) -> bytes:
    """[5.3, 5.6] A plane, perhaps of pieces; nothing for no bytes."""
    if n == 0:
        return b""
    if reader.data[reader.at : reader.at + 1] == b"\6":
        return decode_contexts(reader, n)
    return decode_pieces(reader, n)


def decode_pieces(reader: Reader, n: int) -> bytes:
    """[5.3]"""
    if reader.data[reader.at : reader.at + 1] != b"\4":
        return decode_plane(reader, n, 0)
    reader.byte()
    log2 = reader.byte()
    refuse(not 14 <= log2 <= 20, "size of pieces")
    return b"".join(decode_plane(reader, min(1 << log2, n - at), 0) for at in range(0, n, 1 << log2))


def decode_contexts(reader: Reader, n: int) -> bytes:
    """[5.3]"""
    reader.byte()
    distance = int.from_bytes(reader.take(2), "little")
    count = reader.byte()
    refuse(distance < 64 or not 1 <= count <= 16, "contexts")
    first = [0, *reader.take(count - 1)]
    refuse(sorted(set(first)) != first, "contexts do not ascend")
    sizes = [int.from_bytes(reader.take(3), "little") for _ in range(count)]
    refuse(sum(sizes) != n, "contexts with more or fewer bytes than the plane")
    lists = [Entries(decode_pieces(reader, size) if size else b"") for size in sizes]
    plane = bytearray()
    for i in range(n):
        before = plane[i - distance] if i >= distance else 0
        plane.append(lists[max(c for c in range(count) if before >= first[c])].next())
    for entries in lists:
        entries.end()
    return bytes(plane)


def decode_bits(reader: Reader, n: int) -> bytes:
    """[5.3]"""
    value, mask = reader.take(2)
    refuse(mask in (0, 255) or value & mask != 0, "a plane of bits")
    own = [bit for bit in range(8) if mask >> bit & 1]
    packed = int.from_bytes(reader.take((n * len(own) + 7) // 8), "little")
    refuse(packed >> n * len(own) != 0, "bits past the end")
    plane = bytearray()
    for _ in range(n):
        plane.append(value | sum((packed >> k & 1) << bit for k, bit in enumerate(own)))
        packed >>= len(own)
    return bytes(plane)


def decode_pairs(reader: Reader, n: int, depth: int) -> bytes:
    """[5.3]"""
    refuse(depth == 5, "pairs of pairs")
    count = int.from_bytes(reader.take(3), "little")
    refuse(count > (n + 1) // 2, "too many escapes")
    halves = [half for pair in decode_plane(reader, (n + 1) // 2, 5) for half in (pair & 15, pair >> 4)]
    refuse(any(halves[n:]), "a half byte left over")
    escapes = Entries(decode_plane(reader, count, 5) if count else b"")
    refuse(halves[:n].count(8) != count, "more or fewer escapes")
    return bytes(escapes.next() if half == 8 else half if half < 8 else half + 240 for half in halves[:n])


def decode_classes(reader: Reader, n: int, word: int, base: bytes) -> bytes:
    """[5.6]"""
    bits = 8 * word
    count = reader.byte()
    refuse(not 1 <= count <= 16, "number of classes")
    least = [0, *reader.take(count - 1)]
    refuse(sorted(set(least)) != least, "classes are not ascending")
    shifts = list(reader.take(count))
    refuse(any(s % 4 or s > bits - 8 for s in shifts), "a shift")
    sizes = [int.from_bytes(reader.take(3), "little") for _ in range(count)]
    refuse(sum(sizes) != n, "classes with more or fewer words than the block")
    words = [int.from_bytes(base[i : i + word], "little") for i in range(0, n * word, word)]
    keys = [b >> (7 if word == 2 else 23) & 255 for b in words]
    classes = [max(c for c in range(count) if key >= least[c]) for key in keys]
    amounts = [int.from_bytes(reader.take(3), "little") for _ in range(5)]
    refuse(max(amounts) > n or amounts[4] > n // 8, "a list with more entries than it can have")
    *low_counts, half_count, outlier_count = amounts
    low = [Entries(decode_list(reader, count)) for count in low_counts]
    packed = decode_list(reader, (half_count + 1) // 2)
    refuse(half_count % 2 == 1 and packed[-1] >> 4 != 0, "half a byte left over")
    halves = Entries([half for byte in packed for half in (byte & 15, byte >> 4)][:half_count])
    symbols = [Entries(decode_list(reader, size)) for size in sizes]
    planes = [decode_list(reader, outlier_count) for _ in range(word)]
    outliers = Entries([int.from_bytes(bytes(column), "little") for column in zip(*planes, strict=True)])
    content = bytearray()
    for b, c in zip(words, classes, strict=True):
        d = symbols[c].next()
        if d == 128:
            y = outliers.next()
            content += (y >> 1 | (y & 1) << bits - 1).to_bytes(word, "little")
            continue
        for k in range(shifts[c] // 8):
            d = d << 8 | low[k].next()
        if shifts[c] % 8:
            d = d << 4 | halves.next()
        if d >> (shifts[c] + 7):
            d -= 1 << (shifts[c] + 8)
        content += (b + d & (1 << bits) - 1).to_bytes(word, "little")
    for entries in (*low, halves, *symbols, outliers):
        entries.end()
    return bytes(content)


def decode_values(reader: Reader, n: int, word: int) -> bytes:
    """[5.7]"""
    rotate = reader.byte()
    unsupported(rotate > 1, "transform")
    center = reader.take(word)
    block = decode_classes(reader, n, word, center * n)
    if not rotate:
        return block
    words = [int.from_bytes(block[at : at + word], "little") for at in range(0, len(block), word)]
    return b"".join((y >> 1 | (y & 1) << 8 * word - 1).to_bytes(word, "little") for y in words)


def decode_keyed(reader: Reader, n: int, word: int, base: bytes) -> bytes:
    """[5.8]"""
    low = reader.byte()
    refuse(low > (4 if word == 8 else 0), "planes below the differences")
    if word == 1:
        stands = b"".join(((b & 127) << 7).to_bytes(2, "little") for b in base)
        words = decode_classes(reader, n, 2, stands)
        return bytes(b + words[2 * i] - stands[2 * i] & 255 for i, b in enumerate(base))
    planes = [decode_list(reader, n) for _ in range(4)]
    bases = [int.from_bytes(base[at : at + 8], "little") for at in range(0, 8 * n, 8)]
    keys = [min(max((b >> 52 & 2047) - 831, 0), 255) for b in bases]
    middles = decode_classes(reader, n, 4, b"".join((key << 23).to_bytes(4, "little") for key in keys))
    content = bytearray()
    for i, (b, key) in enumerate(zip(bases, keys, strict=True)):
        middle = int.from_bytes(middles[4 * i : 4 * i + 4], "little") - (key << 23) & 0xFFFFFFFF
        d = (middle - (1 << 32) if middle >> 31 else middle) << 8 * low
        places = [p for p in range(8) if not low <= p < low + 4]
        d += sum(plane[i] << 8 * p for plane, p in zip(planes, places, strict=True))
        content += (b + d & (1 << 64) - 1).to_bytes(8, "little")
    return bytes(content)


def decode_copies(reader: Reader, method: int, raw: int, word: int, base: bytes | None) -> bytes:
    """[5.9, 5.10]"""
    unit, size = (64, 2) if method == 5 else (word, 3)
    count = int.from_bytes(reader.take(2), "little")
    runs = [[unit * int.from_bytes(reader.take(size), "little") for _ in range(3)] for _ in range(count)]
    refuse(not runs, "no copies")
    own = []
    end = 0
    for first, length, source in runs:
        refuse(first < end or length == 0 or source >= first or first + length > raw // unit * unit, "a copy")
        own.append((end, first))
        end = first + length
    own.append((end, raw))
    base_rest = None if base is None else b"".join(base[at:stop] for at, stop in own)
    rest = decode_method(reader, reader.byte(), sum(stop - at for at, stop in own), word, base_rest)
    block = bytearray()
    used = 0
    for (at, stop), run in zip(own, [*runs, None], strict=True):
        block += rest[used : used + stop - at]
        used += stop - at
        for k in range(run[1] if run else 0):
            block.append(block[run[2] + k])
    return bytes(block)


class Entries:
    """[5.6] A list of a block in classes, which must be used up."""

    def __init__(self, entries: Sequence[int]) -> None:
        self.entries = entries
        self.used = 0

    def next(self) -> int:
        refuse(self.used == len(self.entries), "another base")
        self.used += 1
        return self.entries[self.used - 1]

    def end(self) -> None:
        refuse(self.used != len(self.entries), "another base")


def decode_plane(reader: Reader, n: int, depth: int) -> bytes:
    """[5.3] depth: levels of sparse planes whose flags this is; at 4 it may not be sparse, at 5 also not in pairs."""
    kind = reader.byte()
    unsupported(kind > 3 and kind not in (5, 7), "kind of a plane")
    if kind == 0:
        return reader.take(n)
    if kind == 1:
        return reader.take(1) * n
    if kind == 2:
        return decode_tree(reader, n)
    if kind == 5:
        return decode_bits(reader, n)
    if kind == 7:
        return decode_pairs(reader, n, depth)
    refuse(depth >= 4, "sparse planes nested too deeply")
    flag_bytes = decode_plane(reader, (n + 7) // 8, depth + 1)
    flags = [flag_bytes[i // 8] >> i % 8 & 1 for i in range(8 * len(flag_bytes))]
    refuse(any(flags[n:]), "flags past the end")
    refuse(not any(flags), "a sparse plane without a flag")
    rest = iter(decode_plane(reader, sum(flags), 4))
    return bytes(next(rest) if flag else 0 for flag in flags[:n])


def read_lengths(reader: Reader) -> list[int]:
    """[5.4]"""
    halves: list[int] = []

    def half() -> int:
        if not halves:
            byte = reader.byte()
            halves.extend((byte >> 4, byte & 15))
        return halves.pop()

    lengths: list[int] = []
    while len(lengths) < 257:
        code = half()
        if code <= 12:
            lengths.append(code)
        elif code == 13:
            lengths += [0] * (3 + half())
        elif code == 14:
            low = half()
            lengths += [0] * (19 + low + 16 * half())
        else:
            refuse(not lengths, "nothing to repeat")
            lengths += [lengths[-1]] * (3 + half())
    refuse(len(lengths) > 257, "too many code lengths")
    refuse(any(halves), "a half byte left over")
    refuse(sum(4096 >> length for length in lengths if length) != 4096, "code lengths are not complete")
    return lengths


ESCAPE = 256
Tree = int | tuple["Tree", "Tree"]  # a symbol, or the left and the right child


def make_tree(lengths: list[int]) -> Tree:
    """[5.4, 5.5]"""
    codes: dict[tuple[int, int], int] = {}
    code = 0
    for length in range(1, 13):
        code <<= 1
        for symbol in range(257):
            if lengths[symbol] == length:
                codes[length, code] = symbol
                code += 1

    def node(length: int, code: int) -> Tree:
        if (length, code) in codes:
            return codes[length, code]
        return node(length + 1, 2 * code), node(length + 1, 2 * code + 1)

    return node(0, 0)


def decode_tree(reader: Reader, n: int) -> bytes:
    """[5.4, 5.5]"""
    tree = make_tree(read_lengths(reader))
    log2 = reader.byte()
    refuse(not 10 <= log2 <= 20, "size of a segment")
    return b"".join(decode_node(reader, tree, min(1 << log2, n - at)) for at in range(0, n, 1 << log2))


def decode_node(reader: Reader, tree: Tree, n: int) -> bytes:
    """[5.5]"""
    if n == 0:
        return b""
    if isinstance(tree, int):
        return reader.take(n) if tree == ESCAPE else bytes([tree]) * n
    stored = reader.take((n + 7) // 8)
    bits = [stored[i // 8] >> i % 8 & 1 for i in range(8 * len(stored))]
    refuse(any(bits[n:]), "bits past a list's end")
    left = iter(decode_node(reader, tree[0], n - sum(bits)))
    right = iter(decode_node(reader, tree[1], sum(bits)))
    return bytes(next(right) if bit else next(left) for bit in bits[:n])


class Rule:
    """A link's constants [10.3]."""

    def __init__(self, predictor: int, outputs: int, data: bytes) -> None:
        flags, reserved, *constants, reserved_end = struct.unpack("<II10fQ", data)
        self.adam = predictor == 1
        self.greatest, self.nesterov = flags & 2 != 0, flags & 4 != 0
        unsupported(flags & ~(3 if self.adam else 4) != 0, "a variant")
        refuse(reserved != 0 or reserved_end != 0, "a reserved field of the constants")
        refuse(outputs != ((4 if self.greatest else 3) if self.adam else 2), "arrays of another optimizer")
        refuse(not all(math.isfinite(constant) for constant in constants), "a constant")
        (self.gain, self.momentum, self.beta2, self.gain2, self.decay, self.l2, self.rate, self.root, self.eps,
         self.scale) = constants  # fmt: skip
        refuse(self.gain <= 0 or self.scale <= 0, "a constant")


def decode_link_block(rule: Rule, coded: bytes, before: list[bytes]) -> list[bytes]:
    """[10.5]"""
    reader = Reader(coded)
    method = reader.byte()
    unsupported(method > 1, "method of a link's block")
    raw = len(before[0])
    if method == 0:
        state = [decode_block(reader.take(int.from_bytes(reader.take(4), "little")), raw, 4, base) for base in before]
        refuse(reader.at != len(coded), "bytes left over in a block")
        return state
    pieces: list[list[bytes]] = []
    for at in range(0, raw, 4 << 15):
        piece = reader.take(int.from_bytes(reader.take(3), "little"))
        pieces.append(Piece(rule, piece, [base[at : at + (4 << 15)] for base in before]).after())
    refuse(reader.at != len(coded), "bytes left over in a block")
    return [b"".join(piece[k] for piece in pieces) for k in range(len(before))]


class Missed:
    """[10.9]"""

    def __init__(self, reader: Reader, kind: int, base: bytes) -> None:
        n = len(base) // 4
        self.delta: bytes | None = None
        self.more: dict[int, int] = {}
        if kind == 1:
            count = int.from_bytes(reader.take(2), "little")
            places = list(struct.unpack(f"<{count}H", reader.take(2 * count)))
            refuse(sorted(set(places)) != places or (count > 0 and places[-1] >= n), "places of a list")
            self.more = dict(zip(places, struct.unpack(f"<{count}b", reader.take(count)), strict=True))
        elif kind == 2:
            self.more = dict(enumerate(struct.unpack(f"<{n}b", decode_list(reader, n))))
        elif kind == 3:
            coded = reader.take(int.from_bytes(reader.take(3), "little"))
            self.delta = decode_block(coded, 4 * n, 4, base)
        escapes = [place for place, more in self.more.items() if more == -128]
        self.words = {place: int.from_bytes(reader.take(4), "little") for place in escapes}

    def result(self, i: int, predicted: float) -> int:
        if self.delta is not None:
            return int.from_bytes(self.delta[4 * i : 4 * i + 4], "little")
        if i in self.words:
            return self.words[i]
        bits = 0 if math.isnan(predicted) else to_bits(predicted)
        return bits + self.more.get(i, 0) & 0xFFFFFFFF


class Piece:
    """[10.6]"""

    def __init__(self, rule: Rule, coded: bytes, before: list[bytes]) -> None:
        self.rule = rule
        self.n = len(before[0]) // 4
        self.before = [struct.unpack(f"<{self.n}I", array) for array in before]
        reader = self.reader = Reader(coded)
        self.mode = reader.byte()
        unsupported(not 1 <= self.mode <= 3, "mode of a piece")
        kinds = reader.byte()
        refuse(kinds >> 2 * len(before) != 0, "something for an array that is none")
        if self.mode == 3:
            (self.kappa,) = struct.unpack("<b", reader.take(1))
            refuse(abs(self.kappa) > 24, "kappa")
        self.symbols = decode_list(reader, 2 * self.n if self.mode == 2 else self.n)
        self.lengths = self.symbols[self.n :]
        self.symbols = self.symbols[: self.n]
        refuse(max(self.lengths, default=0) > 23, "a length")
        signs = decode_list(reader, self.n - self.symbols.count(0)) if self.mode == 1 else b""
        self.signs = iter(signs)
        self.raw = iter(struct.unpack(f"<{self.symbols.count(255)}I", reader.take(4 * self.symbols.count(255))))
        self.missed = [Missed(reader, kinds >> 2 * k & 3, array) for k, array in enumerate(before)]

    def exponent(self, i: int) -> int:
        """[10.7]"""
        expected = (self.before[1][i] >> 23 & 255) >> 1 if self.rule.adam else self.before[0][i] >> 23 & 255
        return self.symbols[i] + expected - (65 if self.rule.adam else 128) & 255

    def dropped(self, i: int) -> int:
        return min(max((self.before[0][i] >> 23 & 255) - self.exponent(i) + self.kappa, 0), 23)

    def digits_of(self, i: int) -> int:
        """How many [10.7]."""
        if self.symbols[i] in (0, 255) or self.mode == 1:
            return 0
        return max(self.lengths[i], 1) if self.mode == 2 else 24 - self.dropped(i)

    def digits(self, start: int) -> list[int]:
        """[10.8]"""
        counts = [self.digits_of(i) for i in range(start, min(start + 2048, self.n))]
        packed = int.from_bytes(self.reader.take((sum(counts) + 7) // 8), "little")
        digits = []
        for count in counts:
            digits.append(packed & (1 << count) - 1)
            packed >>= count
        refuse(packed != 0, "bits past the end")
        return digits

    def gradient(self, i: int, digits: int) -> float:
        """[10.7]"""
        symbol = self.symbols[i]
        byte = next(self.signs) if self.mode == 1 and symbol else 0
        if symbol == 0:
            return 0.0
        if symbol == 255:
            return to_float(next(self.raw))
        if self.mode == 1:
            sign, mantissa = byte >> 7, (byte & 127) << 16
        elif self.mode == 2:
            sign, length = digits & 1, self.lengths[i]
            mantissa = ((digits >> 1) << 1 | 1) << 23 - length if length else 0
        else:
            sign, mantissa = digits & 1, digits >> 1 << self.dropped(i)
        return multiply(to_float(sign << 31 | self.exponent(i) << 23 | mantissa), self.rule.scale)

    def after(self) -> list[bytes]:
        """[10.4]"""
        words: list[list[int]] = [[] for _ in self.before]
        for start in range(0, self.n, 2048):
            for i, digits in enumerate(self.digits(start), start):
                for array, word in zip(words, self.step(i, self.gradient(i, digits)), strict=True):
                    array.append(word)
        refuse(self.reader.at != len(self.reader.data), "bytes left over in a piece")
        return [struct.pack(f"<{self.n}I", *array) for array in words]

    def step(self, i: int, g: float) -> list[int]:
        rule, missed = self.rule, self.missed
        state = [to_float(array[i]) for array in self.before]
        weight = state[2 if rule.adam else 1]
        e = fma(rule.l2, weight, g) if rule.l2 != 0 else g
        if not rule.adam:
            m = missed[0].result(i, fma(rule.gain, e, multiply(state[0], rule.momentum)))
            u = fma(rule.momentum, to_float(m), e) if rule.nesterov else to_float(m)
            return [m, missed[1].result(i, fma(rule.rate, u, weight))]
        way = fma(-1.0, state[0], e)
        near = rule.gain < 0.5
        minus_rest = -fma(-1.0, rule.gain, 1.0)
        m = missed[0].result(i, fma(rule.gain, way, state[0]) if near else fma(way, minus_rest, e))
        v = missed[1].result(i, fma(multiply(rule.gain2, e), e, multiply(state[1], rule.beta2)))
        words = [m, v]
        second = v
        if rule.greatest:
            second = missed[3].result(i, state[3] if state[3] > to_float(v) else to_float(v))
        below = fma(1.0, divide(root(to_float(second)), rule.root), rule.eps)
        step = divide(multiply(rule.rate, to_float(m)), below)
        words.append(missed[2].result(i, fma(1.0, multiply(weight, rule.decay), step)))
        return [*words, second] if rule.greatest else words


SAFETENSORS = {"BOOL": 1, "U8": 2, "U16": 3, "U32": 4, "U64": 5, "I8": 6, "I16": 7, "I32": 8, "I64": 9, "F16": 10,
               "BF16": 11, "F32": 12, "F64": 13, "C64": 15, "F8_E4M3": 17, "F8_E4M3FNUZ": 18, "F8_E5M2": 19,
               "F8_E5M2FNUZ": 20, "F8_E8M0": 21, "F4": 22}  # fmt: skip


def digest(dtype: int, shape: list[int], content: bytes) -> bytes:
    """[6.1]"""
    head = struct.pack("<4sIII", b"LMCD", dtype, len(shape), 0) + struct.pack(f"<{len(shape)}Q", *shape)
    hashes = [hash128(content[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES)]
    return hash128(head + b"".join(hashes))


def hash128(data: bytes) -> bytes:
    """[1.2] The low u64, then the high one, both little-endian."""
    if xxhash is None:
        raise RuntimeError("to find a base the package xxhash is needed")
    return int(xxhash.xxh3_128_intdigest(data)).to_bytes(16, "little")


def tensors_of(file: bytes) -> list[tuple[int, list[int], bytes]]:
    """A safetensors file's tensors: dtype, shape, content. Shapes count bytes where two elements share one."""
    size = int.from_bytes(file[:8], "little")
    found = []
    for name, entry in json.loads(file[8 : 8 + size]).items():
        dtype = 0 if name == "__metadata__" else SAFETENSORS.get(entry["dtype"], 0)
        if not dtype:
            continue
        begin, end = entry["data_offsets"]
        shape = list(entry["shape"])
        if dtype == 22 and shape:
            shape[-1] //= 2
        if math.prod(shape) * ELEMENT_BYTES[dtype] == end - begin:
            found.append((dtype, shape, file[8 + size + begin : 8 + size + end]))
    return found


def find_base(frame: Frame, file: bytes) -> bytes:
    """[9.2]"""
    count = len(file) // ELEMENT_BYTES[frame.dtype]
    candidates = [(frame.dtype, [count], file[: count * ELEMENT_BYTES[frame.dtype]])]
    try:
        candidates += tensors_of(file)
    except ValueError:  # not JSON: an array
        pass
    for dtype, shape, content in candidates:
        fits = dtype == frame.dtype and len(content) == frame.raw_bytes
        if fits and digest(dtype, shape, content) == frame.base_digest():
            return content
    raise ValueError("the base is not in the file that was given")


def decode_file(data: bytes, base_file: bytes | None) -> bytes:
    """A file of frames [9.1]."""
    content = bytearray()
    at = 0
    continues = True
    while continues:
        refuse(len(data) - at < 64, "another frame should follow")
        (frame_bytes,) = struct.unpack_from("<Q", data, at + 24)
        frame = Frame(data[at : at + frame_bytes])
        base = None
        if frame.base_count:
            if base_file is None:
                raise ValueError("a frame needs a base")
            base = find_base(frame, base_file)
        content += frame.decode(base)
        at += frame_bytes
        continues = frame.compatible & 1 != 0
    refuse(at != len(data), "something follows the last frame")
    return bytes(content)


def verdict(path: Path, base: bytes | None) -> str:
    try:
        Frame(path.read_bytes()).decode(base)
    except (Damaged, Unsupported) as error:
        return type(error).__name__.lower()
    return "good"


def check_corpus(directory: Path) -> int:
    """good/NAME.lmc decodes to good/NAME.raw, against good/NAME.base, where these exist; others must fail."""
    wrong = 0
    count = 0
    for path in sorted((directory / "good").glob("*.lmc")):
        base = path.with_suffix(".base")
        content = Frame(path.read_bytes()).decode(base.read_bytes() if base.exists() else None)
        raw = path.with_suffix(".raw")
        same = not raw.exists() or content == raw.read_bytes()
        wrong += not same
        count += 1
        if not same:
            print(f"{path}: decoded to something else")
    for expected, folder in (("damaged", "bad"), ("unsupported", "unsupported")):
        for path in sorted((directory / folder).glob("*.lmc")):
            if xxhash is None and path.name.startswith("checksum-"):
                continue
            base = path.with_suffix(".base")
            found = verdict(path, base.read_bytes() if base.exists() else None)
            wrong += found != expected
            count += 1
            if found != expected:
                print(f"{path}: {found}, should be {expected}")
    print(f"{count} frames, {wrong} wrong; checksums {'checked' if xxhash else 'not checked: no xxhash'}")
    return 1 if wrong or not count else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Decode an LMC frame by the book (codec/FORMAT.md).")
    parser.add_argument("frame", nargs="?", type=Path)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--file", action="store_true", help="a file of frames")
    arguments = parser.parse_args()
    if arguments.corpus:
        return check_corpus(arguments.corpus)
    if not arguments.frame:
        parser.error("give a frame or --corpus")
    data = arguments.frame.read_bytes()
    base = arguments.base.read_bytes() if arguments.base else None
    try:
        if arguments.file:
            content = decode_file(data, base)
            summary = f"{len(content)} bytes"
        else:
            frame = Frame(data)
            content = frame.decode(base)
            summary = f"dtype {frame.dtype}, {len(content)} bytes in {frame.block_count} blocks, "
            summary += f"{frame.base_count} bases"
    except (Damaged, Unsupported) as error:
        print(f"{arguments.frame}: {type(error).__name__.lower()}: {error}", file=sys.stderr)
        return 1
    if arguments.output:
        arguments.output.write_bytes(content)
    print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
