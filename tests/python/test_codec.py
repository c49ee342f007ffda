# SPDX-License-Identifier: BSD-3-Clause
"""`lmcstore.codec`: round trips of buffers; refusals; damage; threads, signals and memory."""

from __future__ import annotations

import doctest
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
import pytest
from lmcstore import codec
from optional import HAS_ML_DTYPES, HAS_TORCH, given, ml_dtypes, settings, st, torch
from states import NUMPY_DTYPES, TORCH_DTYPES, of_dtype

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import reference_reader  # noqa: E402

BLOCK = 1 << 20
ML_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]


def weights(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32) * np.float32(0.02)


def trained(before: np.ndarray, seed: int = 1) -> np.ndarray:
    return before + np.random.default_rng(seed).standard_normal(before.size).astype(np.float32) * np.float32(1e-5)


def check(data: Any, raw: bytes, name: str, /, **options: Any) -> bytes:
    frame = codec.compress(data, **options)
    assert type(frame) is bytes
    about = codec.info(frame)
    assert (about.dtype, about.raw_bytes, about.frame_bytes) == (name, len(raw), len(frame))
    assert about.blocks == (len(raw) + BLOCK - 1) // BLOCK and not about.continues
    assert about.version == 2 or (about.version == 1 and about.base_digest is None)
    back = codec.decompress(frame, base=options.get("base"), threads=options.get("threads", 1))
    assert type(back) is bytes and back == raw
    return frame


def test_doctests() -> None:
    found = doctest.testmod(codec)
    assert found.attempted >= 10 and found.failed == 0


def test_buffers(tmp_path: Path) -> None:
    raw = random.Random(1).randbytes(5001) + bytes(5000)
    (tmp_path / "file").write_bytes(raw)
    with (tmp_path / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        kinds = [raw, bytearray(raw), memoryview(raw), memoryview(bytearray(raw))[0:], mapped, array("B", raw)]
        assert len({check(kind, raw, "u8") for kind in kinds}) == 1
    assert check(b"", b"", "u8") == check(memoryview(b""), b"", "u8") == check(bytearray(), b"", "u8")
    check(memoryview(raw)[::-3], raw[::-3], "u8")
    check(memoryview(raw).cast("B", (73, 137)), raw, "u8")


def test_formats_of_buffers_are_dtypes() -> None:
    import ctypes

    for code in "bBhHiIlLqQfd":
        values = array(code, range(100))
        kind = "f" if code in "fd" else "u" if code.isupper() else "i"
        check(values, values.tobytes(), f"{kind}{8 * values.itemsize}")
    floats = (ctypes.c_float * 50)(*range(50))
    check(floats, bytes(floats), "f32")
    check(np.arange(5, dtype="F").data, np.arange(5, dtype="F").tobytes(), "c64")
    check(np.float32(1.5), np.float32(1.5).tobytes(), "f32")
    check(memoryview(b"\0\1\1").cast("?"), b"\0\1\1", "bool")


@pytest.mark.parametrize("char", NUMPY_DTYPES)
def test_numpy(char: str) -> None:
    name = {"?": "bool", "e": "f16", "f": "f32", "d": "f64", "F": "c64", "D": "c128"}
    values = np.random.default_rng(2).integers(0, 256, 4096, dtype=np.uint8)
    values = (values % 2 if char == "?" else values).view(char)
    kind = name.get(char) or f"{'u' if char.isupper() else 'i'}{8 * values.itemsize}"
    for shaped in (values, values.reshape(4, -1), values[:1].reshape(()), values[:0]):
        check(shaped, shaped.tobytes(), kind)
    check(values, values.tobytes(), "u8", dtype="u8")


@pytest.mark.parametrize("name", ML_DTYPES)
def test_ml_dtypes(name: str) -> None:
    dtype = getattr(ml_dtypes, name)
    values = np.random.default_rng(3).integers(0, 256, 4096, dtype=np.uint8).view(dtype)
    stored = {"bfloat16": "bf16"}.get(name) or name.replace("float", "f")
    frame = check(values, values.tobytes(), stored)
    assert frame == check(values.tobytes(), values.tobytes(), stored, dtype=dtype)
    assert frame == check(values.tobytes(), values.tobytes(), stored, dtype=np.dtype(dtype))


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_torch(dtype: torch.dtype) -> None:
    tensor = of_dtype(dtype, 30, 70)
    raw = tensor.view(torch.uint8).numpy().tobytes()
    frame = codec.compress(tensor)
    name = codec.info(frame).dtype
    assert frame == check(raw, raw, name, dtype=dtype) == check(raw, raw, name, dtype=name)
    check(tensor[3:5], raw[3 * 70 * dtype.itemsize : 5 * 70 * dtype.itemsize], name)
    check(tensor[0, 0], raw[: dtype.itemsize], name)
    check(tensor[:0], b"", name)
    columns = np.frombuffer(raw, np.dtype((np.void, dtype.itemsize))).reshape(30, 70)
    check(tensor.t(), columns.T.tobytes(), name)
    check(tensor[:, ::3], columns[:, ::3].tobytes(), name)


def test_torch_tensors_that_are_not_plain_memory() -> None:
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    check(parameter, torch.arange(6.0).numpy().tobytes(), "f32")
    complex_numbers = torch.arange(6.0).to(torch.complex64) * 1j
    check(complex_numbers.conj(), complex_numbers.conj().resolve_conj().numpy().tobytes(), "c64")
    negated = complex_numbers.conj().imag
    assert negated.is_neg()
    check(negated, negated.resolve_neg().numpy().tobytes(), "f32")
    check(torch.ones(1).expand(1000), np.ones(1000, "f").tobytes(), "f32")


def test_strided_arrays_are_taken_row_major() -> None:
    array_2d = np.arange(600, dtype=np.float32).reshape(20, 30)
    for view in (array_2d.T, array_2d[::-1], array_2d[:, ::-7], array_2d[3:9, 4:5], np.asfortranarray(array_2d)):
        assert check(view, view.tobytes(), "f32") == codec.compress(np.ascontiguousarray(view))
    check(np.broadcast_to(np.float64(2), (7, 9)), np.full((7, 9), 2.0).tobytes(), "f64")
    fixed = np.arange(10.0)
    fixed.flags.writeable = False
    check(fixed, fixed.tobytes(), "f64")
    check(fixed.view(np.recarray), fixed.tobytes(), "f64")


def test_contiguous_memory_is_not_copied() -> None:
    plain = np.arange(600, dtype=np.float32).reshape(20, 30)
    bf16 = torch.arange(600.0).bfloat16().reshape(20, 30)
    half = plain.astype(ml_dtypes.bfloat16)
    fixed = plain[3:]
    fixed.flags.writeable = False
    own = [(plain, plain), (plain.data, plain), (fixed, plain), (half[2:5], half), (plain[0, 0:1].reshape(()), plain)]
    own += [(bf16, bf16.view(torch.uint8).numpy()), (bf16[7:9], bf16.view(torch.uint8).numpy())]
    for data, memory in own:
        buffer = codec._Source(data, "data", None).buffer
        assert np.shares_memory(np.frombuffer(buffer, np.uint8), memory.view(np.uint8))


@pytest.mark.parametrize("size", [1, 2, 3, 1023, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17, 35 * BLOCK + 5])
@pytest.mark.parametrize("level", ["default", "dense"])
def test_sizes(size: int, level: str) -> None:
    raw = np.random.default_rng(size).integers(0, 9, size, dtype=np.uint8).tobytes()
    frames = {check(raw, raw, "u8", level=level, threads=threads) for threads in (1, 2, 8)}
    assert len(frames) == 1
    base = bytes(reversed(raw))
    frames = {check(raw, raw, "u8", base=base, level=level, threads=threads) for threads in (1, 2, 8)}
    assert len(frames) == 1


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000), st.sampled_from(sorted(lmcstore._core.DTYPES)), st.binary(max_size=400), st.booleans())
def test_any_bytes(raw: bytes, dtype: str, noise: bytes, dense: bool) -> None:
    raw = raw[: len(raw) // 16 * 16]
    base = bytes(a ^ b for a, b in zip(raw, noise + raw, strict=False))
    level = "dense" if dense else "default"
    check(raw, raw, dtype, dtype=dtype, level=level)
    check(raw, raw, dtype, dtype=dtype, level=level, base=base)


def test_bases_of_all_kinds() -> None:
    before = weights(300_000)
    after = trained(before)
    raw = after.tobytes()
    bases = [before, before.tobytes(), bytearray(before.tobytes()), torch.from_numpy(before), before.view(np.uint8)]
    bases.append(np.asfortranarray(before.reshape(1000, 300).T).T)
    frames = {codec.compress(after, base) for base in bases}
    assert len(frames) == 1
    frame = frames.pop()
    assert len(frame) < 0.75 * len(codec.compress(after))
    assert all(codec.decompress(frame, base) == raw for base in bases)
    assert codec.info(frame).base_digest == codec.digest(before) == codec.digest(before.tobytes(), "f32", threads=2)
    half, half_base = torch.from_numpy(after).bfloat16(), torch.from_numpy(before).bfloat16()
    delta = codec.compress(half, half_base, threads=2)
    assert codec.decompress(delta, half_base) == half.view(torch.uint8).numpy().tobytes()


def test_a_base_that_does_not_help_is_not_needed() -> None:
    raw = bytes(100_000)
    frame = codec.compress(raw, base=random.Random(1).randbytes(100_000))
    assert codec.info(frame).base_digest is None
    assert codec.decompress(frame) == codec.decompress(frame, base=b"of another size") == raw
    assert codec.decompress(codec.compress(b"", base=b"")) == b""


def test_wrong_bases() -> None:
    before = weights(600_000)
    after = trained(before)
    frame = codec.compress(after, base=before)
    named = codec.digest(before)
    with pytest.raises(lmcstore.InvalidError, match=f"the frame is a delta: give the base .* {named}"):
        codec.decompress(frame)
    for wrong in (after, before[::-1], np.zeros_like(before)):
        with pytest.raises(lmcstore.DamagedError, match=f"names the base {named}.* {codec.digest(wrong)}"):
            codec.decompress(frame, base=wrong, threads=2)
    nearly = before.copy()
    nearly[400_000] += 1
    with pytest.raises(lmcstore.DamagedError, match=r"\(block 2 of 3\)"):
        codec.decompress(frame, base=nearly)
    with pytest.raises(lmcstore.InvalidError, match="the base has 8 bytes and the frame's content 2400000"):
        codec.decompress(frame, base=before[:2])
    broken = bytearray(frame)
    broken[-1] ^= 1
    with pytest.raises(lmcstore.DamagedError, match="the base is the one that the frame names"):
        codec.decompress(broken, base=before)


def test_out() -> None:
    after = weights(500_000)
    frame = codec.compress(after)
    for out in (
        bytearray(after.nbytes),
        memoryview(bytearray(after.nbytes)),
        np.empty_like(after),
        np.empty((1000, 500), np.float32),
        np.empty(after.nbytes // 2, ml_dtypes.bfloat16),
        torch.empty(500_000),
        torch.empty(1_000_000, dtype=torch.bfloat16),
        mmap.mmap(-1, after.nbytes),
    ):
        assert codec.decompress(frame, threads=2, out=out) is out
        view = out.view(torch.uint8).numpy() if isinstance(out, torch.Tensor) else out
        assert bytes(view) == after.tobytes() if not isinstance(view, np.ndarray) else view.tobytes() == after.tobytes()
    assert codec.decompress(codec.compress(b""), out=torch.empty(0)).numel() == 0
    assert codec.decompress(codec.compress(b""), out=np.empty((0, 3))).size == 0


def test_refused_outs() -> None:
    base = weights(1000)
    frame = codec.compress(trained(base), base=base)
    fixed = np.empty(1000, np.float32)
    fixed.flags.writeable = False
    for out in (bytes(4000), fixed, np.empty(2000, "f")[::2], torch.empty(2000)[::2], memoryview(bytes(4000)), base):
        with pytest.raises(lmcstore.InvalidError, match="out "):
            codec.decompress(frame, base, out=out)
    for size in (0, 3999, 4001):
        with pytest.raises(lmcstore.InvalidError, match=f"out has {size} bytes and the frame's content 4000"):
            codec.decompress(frame, base, out=bytearray(size))
    shared = bytearray(frame + bytes(8000))
    with pytest.raises(lmcstore.InvalidError, match="shares memory"):
        codec.decompress(memoryview(shared)[: len(frame)], base, out=memoryview(shared)[len(frame) - 1 :][:4000])
    for out in ([0], "text", np.empty(500, object), 7):
        with pytest.raises(lmcstore.UnsupportedError, match="out "):
            codec.decompress(frame, base, out=out)


@pytest.mark.parametrize(
    "data",
    [
        "text",
        None,
        5,
        [1, 2],
        np.array([1, None], object),
        np.array([(1, None)], [("a", "i4"), ("b", object)]),
        np.ma.masked_array([1.0], [True]),
        np.arange(5, dtype=">f4"),
        np.zeros(5, "M8[s]"),
        np.zeros(5, [("a", "f4"), ("b", "i4")]),
        np.array(["text"]),
        np.zeros(5, np.longdouble),
        *([np.zeros(5, ml_dtypes.int4)] if HAS_ML_DTYPES else []),
        np.array([1, None], object).data,
        np.arange(5, dtype=">f4").data,
        *([torch.zeros(5, device="meta"), torch.eye(5).to_sparse()] if HAS_TORCH else []),
    ],
    ids=lambda data: f"{type(data).__name__}-{getattr(data, 'dtype', '')}",
)
def test_refused_data(data: Any) -> None:
    for refused in (lambda: codec.compress(data), lambda: codec.digest(data)):
        with pytest.raises(lmcstore.UnsupportedError, match=r"^data") as caught:
            refused()
        assert isinstance(caught.value, TypeError)


def test_bytes_of_other_dtypes() -> None:
    for values in (np.arange(5, dtype=">f4"), np.zeros(5, "M8[s]"), np.zeros(5, [("a", "f4"), ("b", "i4")])):
        check(values, values.tobytes(), "u8", dtype="u8")
    check(np.zeros(5, "M8[s]"), np.zeros(5, "M8[s]").tobytes(), "i64", dtype="i64")
    check(torch.arange(4.0), torch.arange(4.0).numpy().tobytes(), "bf16", dtype=torch.bfloat16)
    for values in (np.array([1, None], object), np.array([(1, None)], [("a", "i4"), ("b", object)])):
        with pytest.raises(lmcstore.UnsupportedError, match="addresses"):
            codec.compress(values, dtype="u8")


def test_refused_arguments() -> None:
    with pytest.raises(lmcstore.InvalidError, match="data has 5 bytes, which is no multiple of f32's 4"):
        codec.compress(b"12345", dtype="f32")
    with pytest.raises(lmcstore.InvalidError, match="base has 3 bytes and data 5"):
        codec.compress(b"12345", base=b"123")
    for threads in (0, -1):
        with pytest.raises(ValueError, match="threads"):
            codec.compress(b"1", threads=threads)
        with pytest.raises(ValueError, match="threads"):
            codec.decompress(codec.compress(b"1"), threads=threads)
    for threads in (1.5, "2", None):
        with pytest.raises(TypeError, match="threads"):
            codec.compress(b"1", threads=threads)  # type: ignore[arg-type]
    assert codec.decompress(codec.compress(b"1", threads=10**30), threads=10**9) == b"1"
    for level in ("best", 1, None):
        with pytest.raises(ValueError, match="level"):
            codec.compress(b"1", level=level)  # type: ignore[arg-type]
    for dtype in ("float", "", 3, float, np.dtype(">f4"), np.dtype("O"), torch.qint8, ["u8"]):
        with pytest.raises(ValueError, match="dtype can't be"):
            codec.compress(b"1", dtype=dtype)
    closed = memoryview(b"1")
    closed.release()
    with pytest.raises(lmcstore.InvalidError, match="released"):
        codec.compress(closed)
    for frame in (None, "frame", 3):
        with pytest.raises(TypeError):
            codec.decompress(frame)
        with pytest.raises(TypeError):
            codec.info(frame)


def test_lighter_imports(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = """
import sys, types
import lmcstore
frame = lmcstore.codec.compress(b"x" * 1000)
assert lmcstore.codec.decompress(frame) == b"x" * 1000
assert not {"torch", "numpy", "ml_dtypes"} & set(sys.modules)
sys.modules["torch"] = sys.modules["numpy"] = types.ModuleType("fake")
assert lmcstore.codec.compress(b"x" * 1000) == frame
try:
    lmcstore.codec.compress(b"", dtype="nonsense")
except lmcstore.InvalidError:
    print("fine")
"""
    done = run_python(code)
    assert done.stdout == "fine\n", done.stderr


def test_the_reference_reader_agrees() -> None:
    before = weights(2000)
    for data, base in ((before, None), (trained(before), before), (np.arange(700, dtype="u2"), None), (b"", None)):
        for level in ("default", "dense"):
            frame = codec.compress(data, base, level=level)
            against = None if base is None else base.tobytes()
            decoded = reference_reader.Frame(frame).decode(against)
            assert decoded == (data if isinstance(data, bytes) else data.tobytes())


@pytest.mark.parametrize("path", sorted((TESTS / "data/codec").glob("*/*.lmc")), ids=lambda path: path.stem)
def test_corpus(path: Path) -> None:
    frame = path.read_bytes()
    base = path.with_suffix(".base").read_bytes() if path.with_suffix(".base").exists() else None
    for kind in (frame, bytearray(frame)):
        for threads in (1, 3):
            if path.parent.name == "good" and path.stem.startswith("link-") and base:
                with pytest.raises(lmcstore.InvalidError):
                    codec.decompress(kind, base, threads)
                continue
            if path.parent.name == "good":
                decoded = codec.decompress(kind, base, threads)
                raw = path.with_suffix(".raw")
                assert not raw.exists() or decoded == raw.read_bytes()
                continue
            error = lmcstore.DamagedError if path.parent.name == "bad" else lmcstore.UnsupportedError
            with pytest.raises(error):
                codec.decompress(kind, base, threads)


def test_damage_at_many_places() -> None:
    before = weights(300_000)
    frame = codec.compress(trained(before), base=before)
    pick = random.Random(5)
    for kind in (bytes, bytearray):
        for _ in range(150):
            broken = bytearray(frame)
            broken[pick.randrange(len(frame)) if pick.random() < 0.5 else pick.randrange(300)] ^= 1 << pick.randrange(8)
            with pytest.raises((lmcstore.DamagedError, lmcstore.UnsupportedError)):
                codec.decompress(kind(broken), base=before, threads=2)
        for length in [0, 1, 63, 64, 100, len(frame) - 1, *(pick.randrange(len(frame)) for _ in range(50))]:
            with pytest.raises(lmcstore.DamagedError):
                codec.decompress(kind(frame[:length]), base=before)
        with pytest.raises(lmcstore.DamagedError, match="and 5 more follow it"):
            codec.decompress(kind(frame + bytes(5)), base=before)
    assert codec.info(frame[:10_000]) == codec.info(bytearray(frame)) == codec.info(np.frombuffer(frame, "u1"))
    for short in (b"", frame[:60], frame[:150], bytearray(frame[:150]), b"not a frame" * 10):
        with pytest.raises(lmcstore.DamagedError, match="the frame can't be read"):
            codec.info(short)


def sealed(frame: bytearray, frame_bytes: int, raw_bytes: int) -> bytes:
    """A prefix of a frame of another size, with valid checksums."""
    xxhash = pytest.importorskip("xxhash")
    frame[16:24] = raw_bytes.to_bytes(8, "little")
    frame[24:32] = frame_bytes.to_bytes(8, "little")
    frame[56:64] = xxhash.xxh3_64_intdigest(bytes(frame[:56])).to_bytes(8, "little")
    return bytes(frame)


def test_claims_of_hostile_frames() -> None:
    frame = codec.compress(bytes(10))
    for raw_bytes in (2**40, 2**55, 2**63, 2**64 - 1):
        for frame_bytes in (len(frame), 2**41, 2**56):
            with pytest.raises(lmcstore.DamagedError):
                codec.decompress(sealed(bytearray(frame), frame_bytes, raw_bytes))


def test_a_content_that_memory_has_no_room_for(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    if "t" in sys.abiflags:
        pytest.skip("the allocator of a free-threaded Python keeps the memory of the first array")
    code = """
import resource
from lmcstore import codec, OutOfMemoryError
frame = codec.compress(bytes(300 << 20))
assert len(frame) < 100_000
resource.setrlimit(resource.RLIMIT_AS, (250 << 20, 250 << 20))
try:
    codec.decompress(frame)
except OutOfMemoryError as error:
    assert isinstance(error, MemoryError)
    print(error)
"""
    done = run_python(code)
    assert done.stdout == "the frame's content has 314572800 bytes, and there is no memory for them\n", done.stderr


def test_other_threads_run_meanwhile() -> None:
    data = weights(16 << 20)
    counts, busy = [0], threading.Event()

    def count() -> None:
        while not busy.is_set():
            counts[0] += 1
            time.sleep(0)

    def counted(work: Callable[[], object]) -> bool:
        begun = counts[0]
        work()
        return counts[0] > begun

    frame = codec.compress(data)
    thread = threading.Thread(target=count)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)  # the other thread runs only while this one has released the GIL
    try:
        assert any(counted(lambda: codec.compress(data)) for _ in range(1000))
        assert any(counted(lambda: codec.decompress(frame)) for _ in range(1000))
    finally:
        sys.setswitchinterval(interval)
        busy.set()
        thread.join()


def test_use_by_many_threads_at_once() -> None:
    before = weights(700_000)
    after = trained(before)
    wanted = codec.compress(after, before)
    failures: list[BaseException] = []

    def work(threads: int) -> None:
        try:
            for _ in range(5):
                assert codec.compress(after, before, threads=threads) == wanted
                assert codec.decompress(wanted, before, threads=threads) == after.tobytes()
                with pytest.raises(lmcstore.DamagedError):
                    codec.decompress(wanted, after, threads=threads)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(1 + i % 3,)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_buffers_that_change_meanwhile() -> None:
    """The output is arbitrary, but nothing crashes and every frame can be checked."""
    base = weights(1 << 20)
    data = trained(base)
    frame = bytearray(codec.compress(data, base))
    stop = threading.Event()
    pick = np.random.default_rng(6)

    def scribble() -> None:
        while not stop.is_set():
            for target in (data.view(np.uint8), base.view(np.uint8), np.frombuffer(frame, np.uint8)):
                at = int(pick.integers(0, target.size - 5000))
                target[at : at + 5000] = pick.integers(0, 256, 5000, dtype=np.uint8)

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for i in range(30):
            try:
                codec.decompress(codec.compress(data, base, threads=1 + i % 2, level="dense"), base)
            except lmcstore.DamagedError:
                pass
            try:
                codec.decompress(frame, base, threads=1 + i % 2)
            except (lmcstore.DamagedError, lmcstore.UnsupportedError):
                pass
    finally:
        stop.set()
        thread.join()


INTERRUPTED = """
import mmap, os, signal, sys, threading
from pathlib import Path
import numpy
from lmcstore import codec
what, threads = sys.argv[1], int(sys.argv[2])
data = numpy.tile(numpy.random.default_rng(1).standard_normal(1 << 20).astype("f"), 64)
frame = codec.compress(data, threads=2)
file = os.memfd_create("data")
os.write(file, data)
size = data.nbytes
del data
def touched(): # bytes of the mapping that were read or written
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssShmem"))
def interrupt():
    while touched() < size // 10 and not over.is_set():
        pass
    os.kill(os.getpid(), signal.SIGINT)
share = 1
for _ in range(50): # the watching thread may get the processor too late
    memory = mmap.mmap(file, size)
    over, watcher = threading.Event(), threading.Thread(target=interrupt)
    try:
        watcher.start()
        if what == "compress":
            codec.compress(memory, dtype="f32", threads=threads, level="dense")
        else:
            codec.decompress(frame, threads=threads, out=memory)
        over.set()
        watcher.join()
    except KeyboardInterrupt:
        share = touched() / size
    watcher.join()
    memory.close()
    if share < 0.8:
        break
assert codec.decompress(codec.compress(b"still fine")) == b"still fine"
print("soon" if share < 0.8 else f"{share} was done")
"""


def test_the_kernels_are_named() -> None:
    name = "import lmcstore; print(lmcstore.codec.kernels)"
    limits = {"usual": {}, "portable": {"LMC_KERNELS": "portable"}}
    names = {
        limit: subprocess.run(
            [sys.executable, "-c", name], env={**os.environ, **more}, capture_output=True, text=True, check=True
        ).stdout
        for limit, more in limits.items()
    }
    assert names == {"usual": f"{codec.kernels}\n", "portable": "portable\n"}


@pytest.mark.parametrize("what", ["compress", "decompress"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_interrupts(what: str, threads: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, what, threads],
        env={**os.environ, "LMC_KERNELS": "portable"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout == "soon\n", done.stdout + done.stderr


def test_a_handler_that_raises_ends_the_work() -> None:
    class TooLong(Exception):
        pass

    def handler(*_: object) -> None:
        raise TooLong

    data = np.tile(weights(1 << 20), 64)
    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(TooLong):
            for _ in range(100):
                codec.compress(data, threads=2, level="dense")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    small = weights(100)
    assert codec.decompress(codec.compress(small)) == small.tobytes()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_nothing_leaks() -> None:
    before = weights(3000)
    after, tensor = trained(before), torch.from_numpy(before.copy())
    large, large_after = weights(600_000), trained(weights(600_000))
    good = codec.compress(after, before)
    out = bytearray(after.nbytes)

    def once(i: int) -> None:
        codec.decompress(codec.compress(after, before), bytearray(before.tobytes()))
        codec.decompress(bytearray(good), before, out=out)
        codec.info(memoryview(good))
        codec.digest(tensor)
        codec.compress(tensor, before)
        for wrong in (after, None):
            with pytest.raises(lmcstore.Error):
                codec.decompress(good, wrong)
        with pytest.raises(lmcstore.Error):
            codec.decompress(good[:-1], before)
        with pytest.raises(lmcstore.Error):
            codec.compress(after, b"12")
        if i % 20 == 0:
            codec.decompress(codec.compress(large_after, large, threads=3), large, threads=3)
            with pytest.raises(lmcstore.Error):
                codec.decompress(codec.compress(large_after, large, threads=2), large_after, threads=2)

    for i in range(200):
        once(i)
    begun = resident_bytes()
    for i in range(1500):
        once(i)
    assert resident_bytes() - begun < 8 << 20  # a leak of a small frame a call is 12 MiB
    held = sys.getrefcount(before), sys.getrefcount(tensor), sys.getrefcount(good), sys.getrefcount(out)
    for i in range(50):
        once(i)
    assert held == (sys.getrefcount(before), sys.getrefcount(tensor), sys.getrefcount(good), sys.getrefcount(out))
    out.extend(b"no buffer is exported any more")
