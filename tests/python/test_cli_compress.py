# SPDX-License-Identifier: BSD-3-Clause
"""lmc-store compress and decompress: identical files return, and damage is refused."""

from __future__ import annotations

import array
import fcntl
import json
import os
import random
import resource
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "python")]

import reference_reader  # noqa: E402
from command import BIN, NEEDS_BIN  # noqa: E402
from test_cli import cli, error, text  # noqa: E402

pytestmark = NEEDS_BIN

BLOCK = 1 << 20
REFERENCE_BYTES = 300_000  # the other reader is slow
TORCH_DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16",
    "float32", "float64", "complex64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
]  # fmt: skip
LMC_DTYPES = [
    "bool", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "c32", "c64", "c128",
    "f8_e4m3fn", "f8_e4m3fnuz", "f8_e5m2", "f8_e5m2fnuz", "f8_e8m0fnu", "f4_e2m1fn_x2",
]  # fmt: skip


def as_json(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = json.loads(cli(*arguments, "--json", code=code).stdout)
    assert isinstance(result, dict)
    return result


def weights(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.02).to(dtype)


def nudge(tensor: torch.Tensor, seed: int = 9) -> torch.Tensor:
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
    return (tensor.float() * (1 + 2e-3 * noise)).to(tensor.dtype)


def model(seed: int = 0) -> dict[str, torch.Tensor]:
    """Large and small tensors, in two dtypes; one of more than a block."""
    return {
        "embed": weights(seed, 700, 1024, dtype=torch.bfloat16),
        "h.0.weight": weights(seed + 1, 128, 256),
        "h.0.bias": weights(seed + 2, 64),
        "h.1.weight": weights(seed + 3, 128, 256, dtype=torch.bfloat16),
        "h.1.bias": weights(seed + 4, 63, dtype=torch.bfloat16),
        "norm": weights(seed + 5, 2048),
    }


def save(path: Path, tensors: dict[str, torch.Tensor], **metadata: str) -> Path:
    safetensors_torch.save_file(tensors, path, metadata=metadata or None)
    return path


def raw_file(path: Path, header: dict[str, Any], data: bytes) -> Path:
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def round_trip(path: Path, *options: object, base: Path | None = None) -> bytes:
    """Compress with both levels and several thread counts, and decompress; return a file of frames."""
    source, out = path.read_bytes(), path.with_suffix(".lmc")
    against: list[object] = [] if base is None else ["--base", base]
    for level in ("default", "dense"):
        images = []
        for threads in (1, 3):
            common = ["--threads", threads, *against, "-o", "-"]  # a pipe is not synced
            images.append(cli("compress", path, "--level", level, *options, *common).stdout)
            out.write_bytes(images[-1])
            assert cli("decompress", out, *common).stdout == source
        assert images[0] == images[1]
    if len(source) < REFERENCE_BYTES and reference_reader.xxhash is not None:
        assert reference_reader.decode_file(images[0], None if base is None else base.read_bytes()) == source
    return images[0]


def frames(image: bytes) -> list[dict[str, int]]:
    found = []
    at = 0
    while at < len(image):
        magic, flags, raw_bytes, frame_bytes, dtype = struct.unpack_from("<4s8xIQQH", image, at)
        assert magic == b"LMCF"
        found.append({"at": at, "flags": flags, "raw": raw_bytes, "bytes": frame_bytes, "dtype": dtype})
        found[-1]["bases"] = image[at + 36]
        at += frame_bytes
    assert at == len(image)
    return found


def reseal(image: bytes, at: int, **fields: tuple[str, int, int]) -> bytes:
    """Change fields (format, offset, value) of the frame at `at`, and seal its header."""
    xxhash = pytest.importorskip("xxhash")
    changed = bytearray(image)
    for form, offset, value in fields.values():
        struct.pack_into(form, changed, at + offset, value)
    struct.pack_into("<Q", changed, at + 56, xxhash.xxh3_64_intdigest(bytes(changed[at : at + 56]), 0))
    (raw_bytes,) = struct.unpack_from("<Q", changed, at + 16)
    end = at + 64 + 16 * changed[at + 36] + 32 * -(-raw_bytes // BLOCK)
    if end + 8 <= len(changed):
        struct.pack_into("<Q", changed, end, xxhash.xxh3_64_intdigest(bytes(changed[at:end]), 0))
    return bytes(changed)


def refused(image: bytes, folder: Path, *options: object) -> str:
    bad, out = folder / "bad.lmc", folder / "bad.out"
    bad.write_bytes(image)
    command = [BIN, "decompress", str(bad), "-o", str(out), *map(str, options)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    message = done.stderr.decode()
    assert done.returncode in (1, 2), (done.returncode, message)
    assert message.startswith("lmc-store: ") and message.count("\n") == 1 and "bad.lmc" in message
    assert not out.exists() and not list(folder.glob(".lmc*"))
    return message


def test_a_model(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", model(), step="7", note="ä")
    image = round_trip(path)
    assert len(image) < 0.9 * path.stat().st_size
    kinds = [frame["dtype"] for frame in frames(image)]
    assert kinds.count(12) == 2 and kinds.count(11) == 2
    assert all(frame["flags"] == 1 for frame in frames(image)[:-1]) and frames(image)[-1]["flags"] == 0


def test_every_dtype(tmp_path: Path) -> None:
    """Around the least size of a separate frame and of a block; nothing; scalars."""
    for elements in (0, 1, 3, 511, 512, 1000, BLOCK + 3):
        tensors = {
            name: torch.randint(0, 2, (elements * getattr(torch, name).itemsize,), dtype=torch.uint8).view(dtype)
            for name in TORCH_DTYPES
            if (dtype := getattr(torch, name)) and (elements < BLOCK or dtype.itemsize < 3)
        }
        tensors["scalar"] = torch.tensor(1.5)
        tensors["empty"] = torch.zeros(0, 3)
        round_trip(save(tmp_path / f"{elements}.safetensors", tensors))


@pytest.mark.parametrize("dtype", LMC_DTYPES)
def test_raw_arrays(tmp_path: Path, dtype: str) -> None:
    """Of whole elements and not, with and without a base."""
    generator = random.Random(dtype)
    for size in (0, 17, 50_003):
        path, base = tmp_path / f"{size}.raw", tmp_path / f"{size}.base"
        path.write_bytes(bytes(generator.choices(range(100, 120), k=size)))
        base.write_bytes(bytes(b ^ (generator.random() < 0.1) for b in path.read_bytes()))
        round_trip(path, "--dtype", dtype)
        round_trip(path, "--dtype", dtype, base=base)


def test_against_a_base(tmp_path: Path) -> None:
    base = save(tmp_path / "base.safetensors", model(), step="1")
    now = save(tmp_path / "now.safetensors", {k: nudge(v) for k, v in model().items()}, step="2, and longer")
    image = round_trip(now, base=base)
    alone = as_json("compress", now, "-o", tmp_path / "alone")
    against = as_json("compress", now, "-o", tmp_path / "against", "--base", base)
    assert (alone["tensors"], alone["tensors_in_base"], alone["deltas"], alone["base"]) == (6, 0, 0, None)
    assert (against["tensors"], against["tensors_in_base"], against["deltas"]) == (6, 4, 4)
    assert against["stored_bytes"] < 0.6 * alone["stored_bytes"]
    assert sum(frame["bases"] for frame in frames(image)) == 4
    assert "4 of 6 tensors against the base" in text("compress", now, "-o", tmp_path / "o", "--base", base)


def test_a_base_of_which_only_a_part_fits(tmp_path: Path) -> None:
    """Another shape, dtype or name, and tensors of only one file."""
    old = {**model(), "old": weights(6, 2048)}
    base = save(tmp_path / "base.safetensors", {**old, "gone": weights(7, 900)})
    new = {k: nudge(v) for k, v in old.items()}
    new["h.0.weight"] = new["h.0.weight"].reshape(256, 128).contiguous()
    new["h.1.weight"] = new["h.1.weight"].view(torch.float16)
    new["norm"] = new["norm"].reshape(2048, 1)
    new["new"] = new.pop("old")
    new["more"] = weights(8, 900)
    now = save(tmp_path / "now.safetensors", new)
    round_trip(now, base=base)
    report = as_json("compress", now, "-o", tmp_path / "o", "--base", base)
    assert (report["tensors"], report["tensors_in_base"], report["deltas"]) == (8, 1, 1)


def test_a_base_that_does_not_help(tmp_path: Path) -> None:
    now = save(tmp_path / "now.safetensors", {"a": weights(1, 300, 300)})
    base = save(tmp_path / "base.safetensors", {"a": torch.randn(300, 300) * 1e30})
    assert as_json("compress", now, "-o", tmp_path / "o", "--base", base)["deltas"] == 0
    cli("decompress", tmp_path / "o", "-o", tmp_path / "back")
    cli("decompress", tmp_path / "o", "-o", tmp_path / "back", "--base", tmp_path / "not there", "--force")
    assert (tmp_path / "back").read_bytes() == now.read_bytes()


def test_the_whole_of_a_safetensors_file_as_a_raw_base(tmp_path: Path) -> None:
    base = save(tmp_path / "base.safetensors", {"a": weights(1, 300, 301)})
    now = save(tmp_path / "now.safetensors", {"a": nudge(weights(1, 300, 301))})
    image = round_trip(now, "--dtype", "f32", base=base)
    assert frames(image)[0]["bases"] == 1


def test_equal_tensors_are_one_base(tmp_path: Path) -> None:
    same = weights(1, 100, 100)
    base = save(tmp_path / "base.safetensors", {"a": same, "b": same.clone(), "c": weights(2, 100, 100)})
    now = save(tmp_path / "now.safetensors", {"a": nudge(same), "b": nudge(same, 3), "c": same.clone()})
    assert sum(frame["bases"] for frame in frames(round_trip(now, base=base))) >= 2


def test_thousands_of_scalars(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {f"s.{i}": torch.tensor(float(i)) for i in range(5000)})
    image = round_trip(path)
    assert len(frames(image)) == 1 and len(image) < path.stat().st_size


def test_many_small_tensors(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", {f"w.{i}": weights(i, 40 + i % 50, 16) for i in range(700)})
    image = round_trip(path, base=path)
    assert len(frames(image)) > 700 and len(image) < path.stat().st_size / 4


def test_what_liblmc_does_not_know(tmp_path: Path) -> None:
    """Unknown dtypes, and names and shapes that the store refuses, return as bytes."""
    data = random.Random(1).randbytes(4000)
    header = {
        "new": entry("F3_E1M1", [2000], 0, 1000),
        "six": entry("F6_E2M3", [1000], 1000, 1750),
        "odd": entry("F4", [5, 100, 3], 1750, 2500),
        "\x1b[31m": entry("U8", [1000], 2500, 3500),
        "": entry("U8", [200], 3500, 3700),
        "deep": entry("U8", [1] * 33 + [300], 3700, 4000),
    }
    path = raw_file(tmp_path / "a.safetensors", header, data)
    round_trip(path)
    round_trip(path, base=path)
    four = raw_file(tmp_path / "b.safetensors", {"a": entry("F4", [10, 400], 0, 2000)}, data[:2000])
    assert frames(round_trip(four, base=four))[-1]["dtype"] == 22


def test_no_tensors(tmp_path: Path) -> None:
    for path in (raw_file(tmp_path / "a", {}, b""), raw_file(tmp_path / "b", {"__metadata__": {"a": "b"}}, b"")):
        assert len(frames(round_trip(path))) == 1


def test_more_threads_than_processors(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    slow = (generator.standard_normal(BLOCK // 4) * 0.02).astype(np.float32).tobytes()
    path = tmp_path / "a"
    path.write_bytes(b"".join(slow if generator.random() < 0.4 else bytes(BLOCK) for _ in range(150)) + b"end")
    check_threads(path, "--dtype", "f32")


def test_threads_and_many_small_frames(tmp_path: Path) -> None:
    tensors = {f"{i:04}": weights(i, 500_000 if i % 1000 == 0 else 150) for i in range(4000)}
    check_threads(save(tmp_path / "a", tensors))


def check_threads(path: Path, *options: str) -> None:
    images = [
        cli("compress", path, *options, "--threads", threads, "-o", "-").stdout
        for threads in (1, 2, 3, 16, 16, 16, 256)
    ]
    assert len(set(images)) == 1
    copy = path.with_suffix(".lmc")
    copy.write_bytes(images[0])
    assert cli("decompress", copy, "--threads", 16, "-o", "-").stdout == path.read_bytes()


def test_levels_differ(tmp_path: Path) -> None:
    """Where a delta profits from more classes than the default has."""
    generator = np.random.default_rng(1)
    old = np.ldexp(generator.uniform(1, 2, 700_000), generator.integers(-16, 0, 700_000)).astype(np.float32)
    old.tofile(tmp_path / "old")
    (old + generator.normal(0, 1e-6, 700_000).astype(np.float32)).tofile(tmp_path / "new")
    command = ["compress", tmp_path / "new", "--base", tmp_path / "old", "--dtype", "f32", "-o", "-", "--level"]
    assert len(cli(*command, "dense").stdout) < len(cli(*command, "default").stdout)


def test_an_empty_array(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    report = as_json("compress", tmp_path / "a", "-o", tmp_path / "o", "--dtype", "bf16")
    assert (report["raw_bytes"], report["stored_bytes"], report["frames"]) == (0, 72, 1)
    assert as_json("decompress", tmp_path / "o", "-o", tmp_path / "back")["raw_bytes"] == 0
    assert (tmp_path / "back").read_bytes() == b""


def test_reports(tmp_path: Path) -> None:
    path, out, back = save(tmp_path / "a.safetensors", model()), tmp_path / "a.lmc", tmp_path / "back"
    size = path.stat().st_size
    report = as_json("compress", path, "-o", out, "--base", path, "--threads", 2, "--level", "dense")
    assert (report["input"], report["file"], report["base"]) == (str(path), str(out), str(path))
    assert (report["raw_bytes"], report["stored_bytes"]) == (size, out.stat().st_size)
    assert report["ratio"] == pytest.approx(size / out.stat().st_size)
    assert report["seconds"] > 0 and report["base_seconds"] > 0
    assert report["gb_per_second"] == pytest.approx(size / report["seconds"] / 1e9)
    assert (report["threads"], report["level"]) == (2, "dense")
    assert report["frames"] == len(frames(out.read_bytes()))
    assert report["deltas"] == 4
    again = as_json("decompress", out, "-o", back, "--base", path, "--threads", 1)
    for key in ("raw_bytes", "stored_bytes", "ratio", "frames", "deltas"):
        assert again[key] == report[key], key
    assert again["threads"] == 1 and again["seconds"] > 0 and again["base_seconds"] > 0
    alone = as_json("compress", path, "-o", out, "--force")
    assert alone["base_seconds"] == 0 and alone["level"] == "default" and alone["threads"] >= 1
    assert as_json("decompress", out, "-o", back, "--force")["base_seconds"] == 0
    line = text("compress", path, "-o", out, "--threads", 1, "--force")
    assert line.startswith(f"wrote {out}: ") and line.endswith(" GB/s on 1 thread\n") and line.count("\n") == 1
    assert text("decompress", out, "-o", back, "--threads", 2, "--force").endswith(" GB/s on 2 threads\n")


def test_pipes(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", model())
    out, back = tmp_path / "a.lmc", tmp_path / "back"
    cli("compress", path, "-o", out)
    with path.open("rb") as source:
        assert cli("compress", "-", "-o", "-", stdin=source).stdout == out.read_bytes()
    with subprocess.Popen([BIN, "compress", path, "-o", "-"], stdout=subprocess.PIPE) as first:
        cli("decompress", "-", "-o", back, stdin=first.stdout)
    assert back.read_bytes() == path.read_bytes()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cp", path, fifo]):
        cli("compress", path, "--base", fifo, "-o", out, "--force")
    with path.open("rb") as base:
        assert cli("decompress", out, "--base", "-", "-o", "-", stdin=base).stdout == path.read_bytes()


def in_pipe(read: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(read, termios.FIONREAD, count)
    return count[0]


def test_a_pipe_that_does_not_wait(tmp_path: Path) -> None:
    path = save(tmp_path / "a.safetensors", model())
    out, pool = tmp_path / "a.lmc", tmp_path / "a.pool"
    cli("compress", path, "-o", out)
    cli("create", pool)
    cli("import", pool, "a", path)
    exported = cli("export", pool, "a@1", "-o", "-").stdout
    for arguments, expected in (
        (["decompress", out, "-o", "-"], path.read_bytes()),
        (["export", pool, "a@1", "-o", "-"], exported),
    ):
        read, write = os.pipe()
        os.set_blocking(write, False)
        with subprocess.Popen([BIN, *arguments], stdout=write) as writer, open(read, "rb") as source:
            os.close(write)
            before = -1
            while before != (before := in_pipe(read)) or (before == 0 and writer.poll() is None):
                time.sleep(0.1)  # until it is full
            assert source.read() == expected
        assert writer.returncode == 0


def test_a_long_pipe(tmp_path: Path) -> None:
    path = tmp_path / "a"
    np.arange(20 << 20, dtype=np.uint32).tofile(path)
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as cat:
        cli("compress", "-", "--dtype", "u32", "-o", tmp_path / "o", stdin=cat.stdout)
    with subprocess.Popen(["cat", tmp_path / "o"], stdout=subprocess.PIPE) as cat:
        cli("decompress", "-", "-o", tmp_path / "back", stdin=cat.stdout)
    assert (tmp_path / "back").read_bytes() == path.read_bytes()


def test_output(tmp_path: Path) -> None:
    path, out = save(tmp_path / "a.safetensors", model()), tmp_path / "a.lmc"
    out.write_bytes(b"old")
    cli("compress", path, "-o", out, "--force")
    assert out.read_bytes() != b"old" and out.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    assert "is the file to read itself" in error("compress", path, "-o", path, code=2)
    assert "is the base itself" in error("compress", out, "--dtype", "u8", "--base", path, "-o", path, code=2)
    assert "-o FILE is missing" in error("compress", path, code=2)
    assert "--json needs -o FILE" in cli("compress", path, "-o", "-", "--json", code=2).stderr
    error("compress", path, "-o", tmp_path / "no" / "x")
    error("compress", path, "-o", tmp_path, code=2)
    error("compress", path, "-o", "/dev/full", status="full")
    error("decompress", out, "-o", "/dev/full", status="full")
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.lmc", "a.safetensors"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--dtype", "bfloat16"], "is none of bool, u8, "),
        (["--dtype", ""], "f4_e2m1fn_x2"),
        (["--level", "best"], "neither default nor dense"),
        (["--threads", "0"], "from 1 to 256"),
        (["--threads", "257"], "from 1 to 256"),
        (["--threads", "two"], "from 1 to 256"),
        (["--base", ""], "is empty"),
        (["--base"], "needs a value"),
        (["--dtpe", "u8"], "did you mean '--dtype'"),
    ],
)
def test_wrong_options(tmp_path: Path, options: list[str], told: str) -> None:
    path = save(tmp_path / "a.safetensors", model())
    assert told in error("compress", path, "-o", tmp_path / "o", *options, code=2, status="invalid")
    assert not (tmp_path / "o").exists()


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for command in ("compress", "decompress"):
        error(command, tmp_path / "none", "-o", out, status="not found")
        assert "is a directory" in error(command, tmp_path, "-o", out, code=2)
    path = save(tmp_path / "a.safetensors", model())
    error("compress", path, "-o", out, "--base", tmp_path / "none", status="not found")
    error("compress", path, "-o", out, "--base", tmp_path, code=2)
    assert "can't both" in cli("compress", "-", "--base", "-", "-o", out, code=2).stderr
    assert not out.exists()


@pytest.mark.parametrize("content", [b"", b"text", b"\0" * 100, struct.pack("<Q", 1 << 60) + b"{}" * 50])
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    path, good, out = tmp_path / "a", save(tmp_path / "good.safetensors", model()), tmp_path / "o"
    path.write_bytes(content)
    message = error("compress", path, "-o", out, status="damaged")
    assert str(path) in message and message.endswith("use --dtype for a raw array\n")
    assert str(path) in error("compress", good, "--base", path, "-o", out, status="damaged")
    assert not out.exists()


def test_a_base_of_another_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1000))
    (tmp_path / "b").write_bytes(bytes(998))
    command = ["compress", tmp_path / "a", "--base", tmp_path / "b", "--dtype", "bf16", "-o", tmp_path / "o"]
    message = error(*command, code=2)
    assert "998 bytes" in message and "1000" in message
    assert not (tmp_path / "o").exists()


def test_no_base_and_the_wrong_one(tmp_path: Path) -> None:
    base = save(tmp_path / "base.safetensors", model())
    now = save(tmp_path / "now.safetensors", {k: nudge(v) for k, v in model().items()})
    cli("compress", now, "--base", base, "-o", tmp_path / "o")
    image = (tmp_path / "o").read_bytes()
    assert "4 of its 6 frames need" in refused(image, tmp_path) and "--base" in refused(image, tmp_path)
    for wrong in (now, tmp_path / "o"):
        assert "is not the base" in refused(image, tmp_path, "--base", wrong)
    changed = bytearray(base.read_bytes())
    changed[-1] ^= 1
    (tmp_path / "changed").write_bytes(changed)
    assert "is not the base" in refused(image, tmp_path, "--base", tmp_path / "changed")
    (tmp_path / "cut").write_bytes(changed[:-1])
    assert "is not the base" in refused(image, tmp_path, "--base", tmp_path / "cut")
    (tmp_path / "nothing").write_bytes(b"")
    assert "is not the base" in refused(image, tmp_path, "--base", tmp_path / "nothing")


def test_a_base_under_another_name_and_order(tmp_path: Path) -> None:
    """Digests find it, in any layout of the base's file."""
    base = save(tmp_path / "base.safetensors", model())
    now = save(tmp_path / "now.safetensors", {k: nudge(v) for k, v in model().items()})
    cli("compress", now, "--base", base, "-o", tmp_path / "o")
    other = save(tmp_path / "other", {f"x.{k[::-1]}": v for k, v in model().items()} | {"z": weights(3, 999)})
    cli("decompress", tmp_path / "o", "--base", other, "-o", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == now.read_bytes()


@pytest.fixture
def image(tmp_path: Path) -> bytes:
    """Several frames, one with two blocks."""
    tensors = {"a": weights(1, 30, 30), "b": weights(2, 700, 800, dtype=torch.bfloat16), "c": torch.zeros(3)}
    path = save(tmp_path / "a.safetensors", tensors)
    cli("compress", path, "-o", tmp_path / "good.lmc")
    return (tmp_path / "good.lmc").read_bytes()


def test_no_file_of_frames(tmp_path: Path) -> None:
    for content in (b"", b"LMC", b"LMCF", b"text\n" * 100, bytes(1000), b"LMCF" * 100):
        assert "cut short" not in refused(content, tmp_path)
    assert "not a file of 'lmc-store compress'" in refused(b"", tmp_path)


def test_what_is_no_such_file_is_not_read(tmp_path: Path) -> None:
    """Files of 16 GiB, such as pools, are recognized by their first bytes or their size."""
    small, large = tmp_path / "small", tmp_path / "bad.lmc"
    small.write_bytes(bytes(4096))
    with large.open("wb") as file:
        file.write(b"\x0a")
        file.truncate(16 << 30)
    for command, message in (
        (["decompress", large], "not a file of 'lmc-store compress'"),
        (["compress", small, "--dtype", "f32", "--base", large], "the base of a raw array must have the same size"),
    ):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        done = subprocess.run(
            [BIN, *map(str, command), "-o", str(tmp_path / "o")], capture_output=True, timeout=60, check=False
        )
        assert done.returncode in (1, 2) and message in done.stderr.decode(), done.stderr
        assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 1 << 20)  # KiB


def test_the_header_is_checked_before_the_data_are_read(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    safetensors_torch.save_file({"w": weights(1, 30)}, small)
    headers = [b"", struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 64), struct.pack("<Q", 9) + b'{"a":[1]}']
    for header in headers:
        with large.open("wb") as file:
            file.write(header)
            file.truncate(16 << 30)
        for command in (["compress", small, "--base", large], ["compress", large]):
            refused_unread("large is not a", *command, "-o", tmp_path / "o")


def refused_unread(message: str, *command: object, large: Path | None = None) -> None:
    """A command refuses a file of 16 GiB without reading it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with open(large or os.devnull, "rb") as file:
        done = subprocess.run([BIN, *map(str, command)], stdin=file, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1 and message in done.stderr.decode(), done.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 1 << 20)  # KiB


def test_frames_are_checked_before_the_data_are_read(image: bytes, tmp_path: Path) -> None:
    large, out = tmp_path / "large", tmp_path / "o"
    first = frames(image)[0]["bytes"]
    for begin, message in (
        (b"LMCF", "frame 1, at byte 0"),
        (b"LMCF\1\0\0\0", "frame 1, at byte 0"),
        (image[:first], f"frame 2, at byte {first}"),
        (image, "bytes behind its last frame"),
    ):
        with large.open("wb") as file:
            file.write(begin)
            file.truncate(16 << 30)
        refused_unread(message, "decompress", large, "-o", out)
        if len(begin) < first:
            refused_unread(message, "decompress", "-", "-o", out, large=large)
    assert not out.exists()


def test_a_base_is_checked_before_its_data_are_read(tmp_path: Path) -> None:
    large, out = tmp_path / "large", tmp_path / "o"
    base = save(tmp_path / "base.safetensors", model())
    now = save(tmp_path / "now.safetensors", {k: nudge(v) for k, v in model().items()})
    cli("compress", now, "--base", base, "-o", tmp_path / "good.lmc")
    some = {k: entry("F32", [128, 256], i << 17, (i + 1) << 17) for i, k in enumerate(("a", "b"))}
    headers = [
        {"a": entry("F32", [1 << 32], 0, 1 << 34)},
        some | {"c": entry("U8", [1 << 34], 1 << 18, (1 << 18) + (1 << 34))},
    ]
    heads = [struct.pack("<Q", len(head)) + head for head in (json.dumps(header).encode() for header in headers)]
    ends = [len(heads[0]) + (1 << 34), len(heads[1]) + (1 << 18) + (1 << 34)]
    for begin, end in [(b"", 17 << 30), (b"LMCF", 17 << 30), *zip(heads, ends, strict=True)]:
        with large.open("wb") as file:
            file.write(begin)
            file.truncate(end)
        refused_unread("is not the base", "decompress", tmp_path / "good.lmc", "--base", large, "-o", out)
    assert not out.exists()


def test_files_that_were_cut(image: bytes, tmp_path: Path) -> None:
    cuts = {1, 3, 63, 64, 71, 72, 100, len(image) - 1, len(image) // 2}
    for frame in frames(image):
        cuts |= {frame["at"] + d for d in (-1, 0, 1, 40, 64, 72, 104)}
    for cut in sorted(c for c in cuts if 0 < c < len(image)):
        refused(image[:cut], tmp_path)
    assert "more frames should follow" in refused(image[: frames(image)[-1]["at"]], tmp_path)


def test_files_with_something_behind(image: bytes, tmp_path: Path) -> None:
    for more in (b"\0", b"LMCF", image):
        assert f"{len(more)} bytes behind its last frame" in refused(image + more, tmp_path)


def test_flipped_bits(image: bytes, tmp_path: Path) -> None:
    """All of the first frames' headers, and samples of the rest. The checksum reveals unknown compatible flags, too."""
    generator = random.Random(5)
    places = [*range(0, 200, 3), *(frame["at"] + generator.randrange(104) for frame in frames(image) * 8)]
    places += [generator.randrange(len(image)) for _ in range(80)]
    for place in places:
        bad = bytearray(image)
        bad[place] ^= 1 << generator.randrange(8)
        refused(bytes(bad), tmp_path)


def test_frames_in_another_order(image: bytes, tmp_path: Path) -> None:
    """Valid with the right flags; invalid with the last frame first."""
    pieces = [image[f["at"] : f["at"] + f["bytes"]] for f in frames(image)]
    assert len(pieces) >= 3
    swapped = tmp_path / "swapped"
    swapped.write_bytes(b"".join([pieces[1], pieces[0], *pieces[2:]]))
    cli("decompress", swapped, "-o", tmp_path / "back")
    whole = (tmp_path / "a.safetensors").read_bytes()
    assert sorted((tmp_path / "back").read_bytes()) == sorted(whole) and (tmp_path / "back").read_bytes() != whole
    refused(b"".join([pieces[-1], *pieces[:-1]]), tmp_path)


def test_forged_headers(image: bytes, tmp_path: Path) -> None:
    second = frames(image)[1]
    for at in (0, second["at"]):
        for value in (0, 1, 1 << 20, (1 << 20) + 1, 1 << 40, 1 << 55, (1 << 55) + 1, (1 << 64) - 1):
            refused(reseal(image, at, raw=("<Q", 16, value)), tmp_path)
        for value in (0, 1, 72, 103, 1 << 30, 1 << 56, (1 << 64) - 1):
            refused(reseal(image, at, frame=("<Q", 24, value)), tmp_path)
        for bases in (1, 2, 4, 255):
            refused(reseal(image, at, bases=("<B", 36, bases)), tmp_path)
        refused(reseal(image, at, dtype=("<H", 32, 99)), tmp_path)
        refused(reseal(image, at, version=("<I", 4, 3)), tmp_path)


def test_a_header_larger_than_the_file(tmp_path: Path) -> None:
    """Its size agrees with all its fields."""
    blocks = 1 << 18
    image = constant_frame(BLOCK)
    bytes_ = 72 + 36 * blocks
    forged = reseal(image, 0, raw=("<Q", 16, blocks * BLOCK), frame=("<Q", 24, bytes_))
    assert f"needs {72 + 32 * blocks} bytes, and {len(image)} are left" in refused(forged, tmp_path)


def test_digests_that_were_swapped(tmp_path: Path) -> None:
    """A base of another size is not accepted."""
    old = {"a": weights(1, 2000, 800), "b": weights(2, 200)}
    base = save(tmp_path / "base", old)
    now = save(tmp_path / "now", {k: nudge(v) for k, v in old.items()})
    image = cli("compress", now, "--base", base, "-o", "-").stdout
    large, small = (frame for frame in frames(image) if frame["bases"])
    forged = bytearray(image)
    forged[large["at"] + 64 : large["at"] + 80] = image[small["at"] + 64 : small["at"] + 80]
    assert "is not the base" in refused(reseal(bytes(forged), large["at"]), tmp_path, "--base", base)


def constant_frame(raw_bytes: int) -> bytes:
    """Zeros: 4 bytes for each block of a MiB."""
    xxhash = pytest.importorskip("xxhash")
    blocks = raw_bytes // BLOCK
    coded = bytes([1, 0, 1, 0])
    header_bytes = 72 + 32 * blocks
    content = xxhash.xxh3_128_digest(bytes(BLOCK))[::-1]
    prefix = struct.pack("<4sIIIQQHHBBBBIIII", b"LMCF", 1, 0, 0, raw_bytes, header_bytes + 4 * blocks, 2, 0, 0, 1, 20,
                         0, 0, 0, 0, 0)  # fmt: skip
    header = bytearray(prefix + struct.pack("<Q", xxhash.xxh3_64_intdigest(prefix, 0)))
    for i in range(blocks):
        header += struct.pack("<QQ", header_bytes + 4 * i, xxhash.xxh3_64_intdigest(coded, i)) + content
    return bytes(header) + struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(header), 0)) + coded * blocks


def test_more_than_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(pages // 8 * 5)
    message = error("compress", "--dtype", "u8", sparse, "-o", tmp_path / "out", status="no memory")
    assert "holding the file, its base and the result takes" in message
    assert not (tmp_path / "out").exists()


def test_more_than_there_is_memory(tmp_path: Path) -> None:
    """A valid file of a few MB for a TiB."""
    small = constant_frame(5 * BLOCK)
    (tmp_path / "small").write_bytes(small)
    cli("decompress", tmp_path / "small", "-o", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == bytes(5 * BLOCK)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    bomb = tmp_path / "bomb"
    bomb.write_bytes(constant_frame((pages // BLOCK + 1) * BLOCK))
    message = error("decompress", bomb, "-o", tmp_path / "out", status="no memory")
    assert "of memory" in message
    with Path("/dev/zero").open("rb") as endless:
        limit = f"ulimit -v 1500000; exec {BIN} compress - --dtype u8 -o {tmp_path}/out"
        done = subprocess.run(["sh", "-c", limit], stdin=endless, capture_output=True, timeout=60, check=False)
    if "asan" not in BIN and "tsan" not in BIN:
        assert done.returncode == 1 and b"of memory" in done.stderr
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".lmc*"))


def test_the_reference_reader_refuses_too(image: bytes, tmp_path: Path) -> None:
    """Section 9.1, by the reference reader and its command line."""
    for bad in (image + b"\0", image[: frames(image)[-1]["at"]], image[:-1], b""):
        with pytest.raises(reference_reader.Damaged):
            reference_reader.decode_file(bad, None)
    script = [sys.executable, TESTS / "reference_reader.py", "--file", tmp_path / "good.lmc"]
    script += ["--output", tmp_path / "o"]
    subprocess.run(script, check=True, timeout=60)
    assert (tmp_path / "o").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    arguments = [BIN, "compress", "-", "--dtype", "bf16", "-o", tmp_path / "out"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stderr
        process.stdin.write(bytes(8 << 20))
        process.stdin.flush()
        process.terminate()
        try:
            process.stdin.write(bytes(8 << 20))
            process.stdin.close()
        except BrokenPipeError:
            pass
        message = process.stderr.read().decode()
    assert process.returncode == 128 + 15, message
    assert message.startswith("lmc-store: interrupted: ") and list(tmp_path.iterdir()) == []
