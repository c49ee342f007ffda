# SPDX-License-Identifier: BSD-3-Clause
"""The command lmc-store: every command, exit codes, JSON, pipes, hostile files, signals."""

import json
import os
import pathlib
import pty
import re
import signal
import stat
import struct
import subprocess
import sys
import textwrap
import time

import lmcstore
import numpy as np
import pytest
import tensor_file
from command import BIN, NEEDS_BIN
from lmcstore import codec
from optional import safetensors_numpy

TOP = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = ["create", "info", "ls", "import", "export", "verify", "compact", "tag", "rm", "dump", "restore", "compress"]
COMMANDS += ["decompress", "log", "diff", "fork", "mv", "policy", "scrub", "note", "metric", "completion"]

pytestmark = NEEDS_BIN


def cli(*arguments, code=0, **options):
    """Run lmc-store, expect the exit code, and return the finished process with text output."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    done = subprocess.run([BIN, *map(str, arguments)], stderr=subprocess.PIPE, timeout=120, **options)
    done.stderr = done.stderr.decode()
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout!r}\n{done.stderr}"
    return done


def text(*arguments, **options):
    return cli(*arguments, **options).stdout.decode()


def as_json(*arguments, **options):
    result = json.loads(cli(arguments[0], "--json", *arguments[1:], **options).stdout)
    assert isinstance(result, dict)
    return result


def error(*arguments, code=1, status=None):
    """Expect a failure in both forms; return the message."""
    plain = cli(*arguments, code=code)
    assert plain.stderr.startswith("lmc-store: ")
    assert plain.stderr.count("\n") == 1
    if "-" not in arguments:
        answer = as_json(*arguments, code=code)["error"]
        assert answer["message"] and answer["status"] == (status or answer["status"])
    return plain.stderr


def state(seed=0, rows=64):
    generator = np.random.default_rng(seed)
    return {
        "model.h.0.weight": generator.standard_normal((rows, 32)).astype(np.float32),
        "model.h.0.bias": generator.standard_normal(rows).astype(np.float32),
        "model.step": np.array(seed, dtype=np.int64),
        "optimizer.exp_avg": generator.standard_normal((rows, 32)).astype(np.float16),
    }


@pytest.fixture
def pool(tmp_path):
    """A pool with three snapshots on "run", steps 10, 20, 30; the second is tagged "best"."""
    path = tmp_path / "run.pool"
    cli("create", path, "--size", "256MiB")
    for i in range(1, 4):
        source = tmp_path / f"{i}.safetensors"
        tensor_file.save(source, state(i), {"seed": str(i)})
        tag = ["--tag", "best"] if i == 2 else []
        cli("import", path, "run", source, "--step", i * 10, *tag)
    return path


def digests(path):
    result = {}
    for shelf in as_json("ls", path)["shelves"]:
        for snapshot in shelf["snapshots"]:
            address = f"{shelf['name']}@{snapshot['number']}"
            entries = as_json("ls", path, address)["snapshot"]["entries"]
            result[address] = [(e["name"], e["dtype"], e["shape"], e["digest"]) for e in entries]
    return result


def test_version_and_help():
    version = re.fullmatch(r"lmc-store \d+\.\d+\.\d+, kernels (\w+)\n", text("--version"))
    assert version is not None and version[1] == codec.kernels
    overview = text("--help")
    assert sorted(re.findall(r"^  (\S+)", overview, re.MULTILINE)) == sorted([*COMMANDS, "report", "push", "pull"])
    for command in COMMANDS:
        assert f"  {command} " in overview
        page = text(command, "--help")
        assert page.startswith(f"usage: lmc-store {command} ") and "--help" in page
        assert text("help", command) == page
        assert max(map(len, page.splitlines())) <= 120


def test_no_command_is_wrong_use():
    assert "usage:" in cli(code=2).stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("lss", "ls"), ("improt", "import"), ("verfy", "verify"), ("list", "ls"), ("remove", "rm")]
)
def test_did_you_mean(typed, meant):
    assert f"did you mean '{meant}'" in error(typed, code=2, status="invalid")


def test_no_guess_for_what_is_far():
    assert "did you mean" not in error("xyzzy", code=2)
    assert "did you mean '--json'" in cli("info", "p", "--jsn", code=2).stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["info", "a", "b"],
        ["info", ""],
        ["info", "a", "--frobnicate"],
        ["info", "a", "-x"],
        ["info", "a", "--size", "8GiB"],
        ["import", "p", "run"],
        ["import", "p", "run", "f", "--step", "1.5"],
        ["import", "p", "run", "f", "--step", "9223372036854775808"],
        ["export", "p", "run@1"],
        ["export", "p", "run@1", "-o"],
        ["tag", "p", "run@1"],
        ["rm", "p"],
        ["restore", "-"],
        ["ls", "p", "-n", "0"],
        ["ls", "p", "-n", "-1"],
        ["ls", "p", "-n", "1x"],
        ["ls", "p", "-n", ""],
        ["ls", "p", "-n", "99999999999999999999"],
    ],
)
def test_wrong_use(arguments):
    assert "--help" in error(*arguments, code=2, status="invalid")


@pytest.mark.parametrize(
    "size",
    ["", "0", "-1", "1", "7MiB", "abc", "8XiB", "8GiBs", "8 8", "1e9", "0x10", "nan", "99999999999EiB", "9E", "1."],
)
def test_bad_sizes(tmp_path, size):
    assert "--size" in error("create", tmp_path / "p", f"--size={size}", code=2, status="invalid")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("size", "limit"),
    [("8MiB", 8 << 20), ("16m", 16 << 20), ("20MB", 20_000_000), ("16777216", 1 << 24), ("1.5G", 3 << 29)],
)
def test_sizes(tmp_path, size, limit):
    assert as_json("create", tmp_path / "p", "--size", size)["limit_bytes"] == limit


def test_create(tmp_path):
    path = tmp_path / "p"
    assert str(path) in text("create", path)
    info = path.stat()
    assert stat.S_IMODE(info.st_mode) == 0o600
    assert info.st_blocks * 512 < 64 << 20
    assert "exists already" in error("create", path, status="exists")


def test_nothing_there(tmp_path):
    path = tmp_path / "none"
    for arguments in (
        ["info", path],
        ["ls", path],
        ["verify", path],
        ["compact", path],
        ["tag", path, "run", "x"],
        ["rm", path, "run@1"],
        ["dump", path, "-o", tmp_path / "a"],
        ["export", path, "run", "-o", tmp_path / "s"],
        ["import", path, "run", tmp_path / "s"],
    ):
        assert str(path) in error(*arguments, status="not found")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"not a pool\n", b"\0" * (9 << 20), b"PMEMPOOLSET\n"],
    ids=["empty", "text", "zeros", "poolset"],
)
def test_foreign_files_stay_as_they_are(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    for command in ("info", "ls", "verify", "compact"):
        error(command, path, code=cli_code(command, path))
    assert path.read_bytes() == content


def cli_code(command, path):
    """1, or 2 where the library calls the file itself wrong use; never a crash."""
    done = subprocess.run([BIN, command, str(path)], capture_output=True, timeout=60)
    assert done.returncode in (1, 2)
    return done.returncode


def test_a_home_folder_is_expanded_where_no_shell_does_it(pool, tmp_path, monkeypatch):
    """In --base=~/x, -o~/x and in arguments within quotes; ./~ is a folder of that name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / "in"
    run.mkdir()
    monkeypatch.chdir(run)
    cli("export", "~/run.pool", "run@1", "--output=~/a.safetensors")
    cli("export", "~/run.pool", "run@2", "-o~/b.safetensors")
    cli("compress", "~/b.safetensors", "--base=~/a.safetensors", "-o", "~/b.lmc")
    cli("decompress", "~/b.lmc", "--base", "~/a.safetensors", "-o~/c.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()
    cli("dump", "~/run.pool", "run@1", "-o~/a.archive")
    cli("dump", "~/run.pool", "--since=~/a.archive", "-o", "~/b.archive")
    assert text("restore", "~/a.archive", "~/b.archive", "~/copy.pool").startswith("restored into the new pool ~/"[:-2])
    assert (tmp_path / "copy.pool").exists()
    cli("scrub", "~/copy.pool", "--repair", "--from=~/a.archive", "--from", "~/run.pool")
    assert "@1, the first of its shelf: " in text("import", "~/copy.pool", "~/s", "~/b.safetensors")
    assert [shelf["name"] for shelf in as_json("ls", "~/copy.pool")["shelves"]] == ["run", "~/s"]
    assert os.listdir(run) == []
    for path in ("./~/x.pool", "~no such user/x.pool", "a~/x.pool"):
        assert str(path) in error("info", path)
    monkeypatch.delenv("HOME")
    assert f"{pathlib.Path('~').expanduser()}/no.pool" in error("info", "~/no.pool")


def test_a_mistyped_shelf_is_noticed(pool):
    assert "the shelf" not in cli("policy", pool, "run", "keep=last:3").stderr
    noticed = cli("policy", pool, "rnu", "keep=last:3").stderr
    assert noticed.endswith('there is no shelf "rnu"; shelf "run" has 3 snapshots. The policy created it\n')
    assert error("log", pool, "rnu@latest").endswith(
        'there is no snapshot rnu@latest: the shelf is empty; shelf "run" has 3 snapshots\n'
    )


def test_no_number_of_tiny_snapshots_fits(pool, tmp_path):
    """Metadata decide, not the payload."""
    assert "more like it fit" not in text("info", pool)
    assert as_json("info", pool)["snapshots_that_fit"] is None
    tensor_file.save(tmp_path / "w.safetensors", {"w": np.zeros(1 << 15, np.float32)})
    cli("import", pool, "run", tmp_path / "w.safetensors")
    assert "; 20" in text("info", pool) and "more like it fit, before compaction" in text("info", pool)


def test_a_folder_that_takes_no_files(pool, tmp_path):
    for path in ("/proc/x.pool", "/proc/self/x.pool"):
        assert "no file can be created in its folder" in error("create", path)
    assert "no file can be created in its folder" in error("dump", pool, "-o", "/proc/x.archive")
    assert "its folder does not exist" in error("create", tmp_path / "none/x.pool", status="not found")
    assert "its folder does not exist" in error("dump", pool, "-o", tmp_path / "none/x", status="not found")


def test_a_limit_of_addresses_is_named(pool, tmp_path):
    (tmp_path / "new").mkdir()
    for command in (f"info {pool}", f"tag {pool} run@1 x", f"create {tmp_path}/new/x.pool"):
        done = subprocess.run(
            ["sh", "-c", f"ulimit -v 4000000; exec {BIN} {command}"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1 and "this process may have 4096000000: raise 'ulimit -v'" in done.stderr, command
    assert os.listdir(tmp_path / "new") == []


def test_parts_are_listed_once(tmp_path):
    path = tmp_path / "run.pool"
    names = ("model.a", "optimizer.x", "model.tied", "mo.b", "optimizer.y", "plain")
    with lmcstore.open(path, "x", size="32MiB", background=False) as store:
        store["run"].snapshot({name: np.zeros(i + 1) for i, name in enumerate(names)})
    listed = error("export", path, "run", "--part", "modle", "-o", tmp_path / "x", status="not found")
    assert listed.endswith("in the part 'modle'; it has the parts model, optimizer, mo; did you mean 'model'?\n")
    with lmcstore.open(path, "r+", background=False) as store:
        store["many"].snapshot({f"part{i % 200:03}.{i}": np.zeros(1) for i in range(400)})
        store["none"].snapshot({"a": np.zeros(1)})
    listed = error("export", path, "many", "--part", "else", "-o", tmp_path / "x")
    assert listed.count("part000") == 1 and listed.endswith(" and more\n")
    assert error("export", path, "none", "--part", "else", "-o", tmp_path / "x").endswith("; it has no parts\n")


def test_info_explains_the_sparse_size(pool):
    (line,) = [line for line in text("info", pool).splitlines() if line.startswith("file  ")]
    assert re.search(r"MiB on disk \(du\); the size in ls -l, .* [GT]iB, is address space of a sparse file", line)


def test_what_is_not_there_is_told_what_is(pool, tmp_path):
    for kind in range(8):
        cli("tag", pool, "run@3", f"a long tag of the kind {kind}")
    assert error("ls", pool, "rum", status="not found").endswith(
        'there is no shelf "rum"; shelf "run" has 3 snapshots\n'
    )
    assert error("tag", pool, "else@1", "x").endswith('there is no shelf "else"; there is "run"\n')
    told = error("ls", pool, "run@bets", status="not found")
    assert "there is no snapshot run@bets; its tags are " in told and told.endswith(", and more\n")
    assert error("ls", pool, "run@9").endswith("there is no snapshot run@9; the newest is 3\n")
    assert error("ls", pool, "run@best~7").endswith("run@best~7: only 2 snapshots exist up to best\n")
    assert error("ls", pool, "run@latest~3").endswith("run@latest~3: only 3 snapshots exist\n")
    cli("dump", pool, "run", "-o", tmp_path / "a.archive")
    few = error("restore", tmp_path / "a.archive", tmp_path / "part.pool", "--only", "run@latest~5")
    assert few.endswith("a.archive: the archive has no run@latest~5: it has only 3 snapshots\n")
    assert "'lmc-store create' creates one" in error(
        "import", tmp_path / "none.pool", "run", tmp_path / "1.safetensors"
    )
    empty = tmp_path / "empty.pool"
    cli("create", empty)
    assert error("ls", empty, "run").endswith('there is no shelf "run"; there is none yet\n')


def test_info(pool):
    info = as_json("info", pool)
    assert info["pool"].endswith("run.pool")
    assert info["limit_bytes"] == 256 << 20
    assert (info["shelf_count"], info["snapshot_count"]) == (1, 3)
    assert info["used_bytes"] >= info["live_bytes"] > 0
    assert info["medium"]["file_system"] and re.fullmatch("[0-9a-f]{32}", info["uuid"])
    page = text("info", pool)
    assert "3 snapshots on 1 shelf" in page and "limit 256 MiB" in page and "compaction" in page


def test_ls(pool):
    (shelf,) = as_json("ls", pool)["shelves"]
    assert (shelf["name"], shelf["snapshot_count"], shelf["latest"]) == ("run", 3, 3)
    first, second, third = shelf["snapshots"]
    assert [s["step"] for s in (first, second, third)] == [10, 20, 30]
    assert (first["parent"], third["parent"]) == (None, 2)
    assert second["tags"] == ["best"] and first["tags"] == []
    assert first["meta"] == {"safetensors": {"seed": "1"}}
    assert first["tensors"] == 4 and first["raw_bytes"] == sum(a.nbytes for a in state(1).values())
    assert abs(third["time"] - time.time()) < 600
    page = text("ls", pool).splitlines()
    assert page[0].startswith("run: 3 snapshots") and len(page) == 5
    assert page[3].split()[:2] == ["2", "20"] and page[3].split()[-2:] == ["best", "-"]
    assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", page[3])
    assert len({line.index("Z  ") for line in page[2:]}) == 1


def test_ls_newest(pool):
    snapshots = as_json("ls", pool, "-n", 2)["shelves"][0]["snapshots"]
    assert [s["number"] for s in snapshots] == [2, 3]
    assert as_json("ls", pool, "run", "-n", 9)["shelves"][0]["snapshot_count"] == 3


def test_ls_tensors(pool):
    snapshot = as_json("ls", pool, "run@best")["snapshot"]
    assert (snapshot["number"], snapshot["attachments"]) == (2, [])
    entries = {entry["name"]: entry for entry in snapshot["entries"]}
    assert set(entries) == set(state())
    assert entries["model.h.0.weight"]["dtype"] == "f32" and entries["model.h.0.weight"]["shape"] == [64, 32]
    assert entries["model.step"]["shape"] == [] and entries["model.step"]["raw_bytes"] == 8
    page = text("ls", pool, "run@best")
    assert "run@2  step 20" in page and re.search(r"f32 +64x32 .* raw +model\.h\.0\.weight\n", page)
    assert len(as_json("ls", pool, "run@2", "-n", 1)["snapshot"]["entries"]) == 1


@pytest.mark.parametrize("address", ["run@4", "run@nope", "other", "other@1", "run@latest~9", "run@step:11"])
def test_ls_of_what_is_not_there(pool, address):
    error("ls", pool, address, status="not found")


def test_an_empty_pool(tmp_path):
    cli("create", tmp_path / "p")
    assert as_json("ls", tmp_path / "p")["shelves"] == []
    assert text("ls", tmp_path / "p")
    assert as_json("verify", tmp_path / "p")["ok"] is True


def test_import(pool, tmp_path):
    answer = as_json("import", pool, "new", tmp_path / "1.safetensors", "--step", "-3", "--tag", "a", "--tag", "b")
    assert (answer["snapshot"]["shelf"], answer["snapshot"]["number"], answer["snapshot"]["step"]) == ("new", 1, -3)
    assert sorted(answer["snapshot"]["tags"]) == ["a", "b"]
    assert "as new@2: 4 tensors" in text("import", pool, "new", tmp_path / "1.safetensors")
    assert as_json("ls", pool, "new@2")["snapshot"]["step"] is None


@pytest.mark.parametrize("tag", ["7", "latest", "a@b", "a~b", "a:b", "a..b", "", "\x1b[2J"])
def test_bad_tags(pool, tmp_path, tag):
    for arguments in (["import", pool, "run", tmp_path / "1.safetensors", f"--tag={tag}"], ["tag", pool, "run@1", tag]):
        assert "\x1b" not in error(*arguments, code=2, status="invalid")
    assert as_json("info", pool)["snapshot_count"] == 3


def header(**tensors):
    return json.dumps(tensors).encode()


def tensor(dtype="U8", shape=(1,), offsets=(0, 1)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HOSTILE = {
    "empty": b"",
    "short": b"1234",
    "huge header": struct.pack("<Q", 1 << 62) + b"{}",
    "header past the end": struct.pack("<Q", 100) + b"{}",
    "no JSON": struct.pack("<Q", 4) + b"abcd",
    "overlap": (header(a=tensor(shape=[2], offsets=[0, 2]), b=tensor(shape=[2], offsets=[1, 3])), b"123"),
    "hole": (header(a=tensor(), b=tensor(offsets=[2, 3])), b"123"),
    "end first": (header(a=tensor(offsets=[1, 0])), b"1"),
    "past the end": (header(a=tensor(shape=[1 << 40], offsets=[0, 1 << 40])), b"1"),
    "overflow": (header(a=tensor("F32", [1 << 62, 4], [0, 0])), b""),
    "negative": (header(a=tensor(shape=[-1, -1])), b"1"),
    "wrong size": (header(a=tensor("F32", [2], [0, 4])), b"1234"),
    "unknown dtype": (header(a=tensor("Q8")), b"1"),
    "twice": (b'{"a":%b,"a":%b}' % ((json.dumps(tensor()).encode(),) * 2), b"1"),
    "no UTF-8": (b'{"\xff":%b}' % json.dumps(tensor()).encode(), b"1"),
    "control character": (header(**{"\x1b[31m": tensor()}), b"1"),
    "deep": (b'{"a":' + b"[" * 100000, b""),
    "many dimensions": (header(a=tensor(shape=[1] * 33)), b"1"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_safetensors(pool, tmp_path, what):
    content = HOSTILE[what]
    if isinstance(content, tuple):
        content = struct.pack("<Q", len(content[0])) + content[0] + content[1]
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(content)
    message = error("import", pool, "run", bad)
    assert str(bad) in message and "\x1b" not in message
    assert as_json("info", pool)["snapshot_count"] == 3


def test_import_of_what_is_no_file(pool, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    error("import", pool, "run", tmp_path / "fifo", code=2)
    error("import", pool, "run", tmp_path, code=2)
    error("import", pool, "run", tmp_path / "none", status="not found")


def test_export(pool, tmp_path):
    target = tmp_path / "out.safetensors"
    answer = as_json("export", pool, "run@2", "-o", target)
    assert (answer["tensors"], answer["left_out"], answer["number"]) == (4, 0, 2)
    assert answer["bytes"] == target.stat().st_size and stat.S_IMODE(target.stat().st_mode) == 0o600
    loaded, metadata = tensor_file.load(target)
    for name, array in state(2).items():
        assert loaded[name].dtype == array.dtype and loaded[name].tobytes() == array.tobytes()
    assert metadata["format"] == "pt" and metadata["lmc-store.shelf"] == "run"
    assert (metadata["lmc-store.number"], metadata["lmc-store.step"], metadata["seed"]) == ("2", "20", "2")
    again = text("export", pool, "run@best", "-o", target, "--force")
    assert "4 of its 4 tensors" in again
    assert cli("export", pool, "run@2", "-o", "-").stdout == target.read_bytes()


def test_export_lays_out_as_the_library_does(pool, tmp_path):
    target = tmp_path / "out.safetensors"
    cli("export", pool, "run@1", "-o", target)
    loaded, metadata = tensor_file.load(target)
    assert safetensors_numpy.load_file(target).keys() == loaded.keys()
    (size,) = struct.unpack("<Q", target.read_bytes()[:8])
    theirs = safetensors_numpy.save(state(1), metadata)
    (their_size,) = struct.unpack("<Q", theirs[:8])
    assert size % 8 == 0
    assert json.loads(target.read_bytes()[8 : 8 + size]) == json.loads(theirs[8 : 8 + their_size])
    assert target.read_bytes()[8 + size :] == theirs[8 + their_size :]


def test_export_is_what_torch_loads(pool, tmp_path):
    torch = pytest.importorskip("torch")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    target = tmp_path / "model.safetensors"
    cli("export", pool, "run@3", "-o", target, "--part", "model")
    loaded = safetensors_torch.load_file(target)
    assert set(loaded) == {"h.0.weight", "h.0.bias", "step"}
    assert torch.equal(loaded["h.0.weight"], torch.from_numpy(state(3)["model.h.0.weight"]))


def test_every_torch_dtype(tmp_path):
    torch = pytest.importorskip("torch")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    cli("create", tmp_path / "p", "--size", "64MiB")
    names = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex64 "
    names += "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
    tensors = {
        name: torch.arange(48, dtype=torch.uint8).view(dtype).reshape(2, -1)
        for name in names.split()
        if (dtype := getattr(torch, name)) is not torch.bool
    }
    tensors["bool"] = torch.tensor([[True], [False]])
    tensors["empty"] = torch.zeros(0, 3)
    tensors["scalar"] = torch.tensor(1.5)
    safetensors_torch.save_file(tensors, tmp_path / "in")
    cli("import", tmp_path / "p", "run", tmp_path / "in")
    cli("export", tmp_path / "p", "run", "-o", tmp_path / "out")
    loaded = safetensors_torch.load_file(tmp_path / "out")
    assert set(loaded) == set(tensors)
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype and loaded[name].shape == value.shape
        assert loaded[name].contiguous().flatten().view(torch.uint8).equal(value.flatten().view(torch.uint8))


def test_export_fails_cleanly(pool, tmp_path):
    before = sorted(p.name for p in tmp_path.iterdir())
    assert "parts model, optimizer" in error("export", pool, "run", "-o", tmp_path / "x", "--part", "modle")
    error("export", pool, "run", "-o", tmp_path / "no" / "x")
    error("export", pool, "run", "-o", tmp_path, code=2)
    error("export", pool, "run@9", "-o", tmp_path / "x", status="not found")
    error("export", pool, "run", "-o", pool, code=2, status="invalid")
    error("dump", pool, "-o", pool, code=2, status="invalid")
    error("export", pool, "run", "-o", "/dev/full", status="full")
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_not_to_a_terminal(pool):
    for arguments in (["export", pool, "run", "-o", "-"], ["dump", pool], ["dump", pool, "-o", "-"]):
        leader, follower = pty.openpty()
        try:
            assert "terminal" in cli(*arguments, code=2, stdout=follower).stderr
        finally:
            os.close(follower)
            os.close(leader)
    assert "--json" in cli("dump", pool, "--json", code=2).stderr
    assert "--json" in cli("export", pool, "run", "-o", "-", "--json", code=2).stderr


def test_tag(pool):
    assert text("tag", pool, "run@1", "keep") == "run@1 is now tagged keep\n"
    assert text("tag", pool, "run@2", "keep") == "run@2 is now tagged keep (before: run@1)\n"
    assert as_json("tag", pool, "run@1", "keep")["was"] == 2
    assert as_json("tag", pool, "run@1", "new")["was"] is None
    cli("tag", pool, "run@1", "new", "--delete")
    assert as_json("tag", pool, "run@3", "best")["snapshot"]["tags"] == ["best"]
    assert as_json("ls", pool, "run@2")["snapshot"]["tags"] == []
    error("tag", pool, "run@2", "best", "--delete", status="not found")
    cli("tag", pool, "run@best", "best", "--delete")
    error("ls", pool, "run@best", status="not found")


def test_rm(pool):
    assert "run@latest" in error("rm", pool, "run", code=2, status="invalid")
    answer = as_json("rm", pool, "run@1", "--dry-run")
    assert answer["removed"] is False and as_json("info", pool)["snapshot_count"] == 3
    assert answer["freed_bytes"] + answer["later_bytes"] > 0
    assert text("rm", pool, "run@best").startswith("removed run@2: ")
    numbers = [s["number"] for s in as_json("ls", pool)["shelves"][0]["snapshots"]]
    assert numbers == [1, 3]
    error("rm", pool, "run@2", status="not found")


def test_compact_keeps_everything(tmp_path):
    path = tmp_path / "p"
    cli("create", path, "--size", "256MiB")
    base = state(0, rows=4096)
    for _ in range(8):
        base["model.h.0.weight"] = base["model.h.0.weight"] + np.float32(1e-3)
        tensor_file.save(tmp_path / "s", base)
        cli("import", path, "run", tmp_path / "s")
    before = digests(path)
    answer = as_json("compact", path)
    assert answer["backlog"] == 0 and answer["used_bytes"] <= answer["used_bytes_before"]
    assert digests(path) == before
    assert "delta" in text("ls", path, "run@1") + text("ls", path, "run@2")
    assert as_json("verify", path)["ok"] is True
    cli("export", path, "run@8", "-o", tmp_path / "out")
    loaded, _ = tensor_file.load(tmp_path / "out")
    assert loaded["model.h.0.weight"].tobytes() == base["model.h.0.weight"].tobytes()
    assert text("compact", path).startswith("compacted: ")


def test_compact_reports_what_the_policy_removes(pool):
    assert "no snapshot is removed" not in text("compact", "--help")
    cli("policy", pool, "run", "keep=last:1", "grace=none")
    answer = as_json("compact", pool)
    assert answer["removed"] == 1 and as_json("compact", pool)["removed"] == 0


def test_a_note_may_begin_with_a_url(pool):
    cli("note", pool, "run@1", "https://example.org/run")
    assert "https://example.org/run" in text("log", pool)


def test_verify(pool):
    answer = as_json("verify", pool)
    assert (answer["ok"], answer["snapshots"], answer["damages"]) == (True, 3, [])
    assert as_json("verify", pool, "run@2")["snapshots"] == 1
    assert text("verify", pool, "run").startswith("no damage: 3 snapshots")
    error("verify", pool, "nope", status="not found")


def find(path, needle):
    """The place of these bytes in a sparse file, too large to be read whole."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        at = 0
        while at < end:
            start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            found = os.pread(file.fileno(), at - start, start).find(needle)
            if found >= 0:
                return start + found
    raise AssertionError("these bytes are not in the file")


def flip_bit(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def test_verify_names_the_damage(pool, tmp_path):
    flip_bit(pool, find(pool, state(2)["model.h.0.weight"].tobytes()) + 100)
    answer = as_json("verify", pool, code=1)
    assert answer["ok"] is False and answer["error"]["status"] == "damaged"
    (damage,) = answer["damages"]
    assert (damage["shelf"], damage["number"], damage["tensor"]) == ("run", 2, "model.h.0.weight")
    plain = cli("verify", pool, "run@2", code=1)
    assert b"damaged: run@2 model.h.0.weight" in plain.stdout
    error("export", pool, "run@2", "-o", tmp_path / "x", status="damaged")
    assert not (tmp_path / "x").exists()
    cli("export", pool, "run@3", "-o", tmp_path / "x")
    cli("verify", pool, "run@1")


def test_dump_and_restore(pool, tmp_path):
    archive, copy = tmp_path / "run.archive", tmp_path / "copy.pool"
    answer = as_json("dump", pool, "-o", archive)
    assert answer["snapshots"] == 3 and answer["bytes"] == archive.stat().st_size
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert text("restore", archive, copy, "--size", "128MiB").startswith("restored into ")
    assert as_json("info", copy)["limit_bytes"] == 128 << 20
    assert digests(copy) == digests(pool)
    assert as_json("ls", copy, "run@best")["snapshot"]["number"] == 2
    assert as_json("verify", copy)["ok"] is True
    again = as_json("restore", archive, copy)
    assert (again["snapshots"], again["snapshots_skipped"]) == (0, 3)
    assert cli("dump", pool, "run").stdout == archive.read_bytes()


def test_dump_through_a_pipe(pool, tmp_path):
    copy = tmp_path / "copy.pool"
    with subprocess.Popen([BIN, "dump", str(pool)], stdout=subprocess.PIPE) as dump:
        cli("restore", "-", copy, stdin=dump.stdout)
    assert dump.returncode == 0
    assert digests(copy) == digests(pool)


def test_restore_refuses_what_it_should(pool, tmp_path):
    archive = tmp_path / "archive"
    cli("dump", pool, "-o", archive)
    content = archive.read_bytes()
    new, bad = tmp_path / "new.pool", tmp_path / "bad"
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    cases = [b"", b"no archive at all", content[:4], content[: len(content) // 2], content[:-1], bytes(flipped)]
    for case in cases:
        bad.write_bytes(case)
        error("restore", bad, new)
        assert not new.exists()
        cli("restore", "-", new, stdin=bad.open("rb"), code=1)
        assert not new.exists()
    error("restore", tmp_path, new, code=2)
    error("restore", tmp_path / "none", new, status="not found")
    assert not new.exists()


def test_restore_into_a_pool_with_other_snapshots(pool, tmp_path):
    archive, other = tmp_path / "archive", tmp_path / "other.pool"
    cli("dump", pool, "-o", archive)
    cli("create", other, "--size", "64MiB")
    cli("import", other, "run", tmp_path / "3.safetensors")
    before = digests(other)
    error("restore", archive, other, status="exists")
    assert digests(other) == before


def test_dump_of_nothing(pool, tmp_path):
    error("dump", pool, "nope", "-o", tmp_path / "a", status="not found")
    assert not (tmp_path / "a").exists()


def test_a_closed_pipe(pool):
    for command in (["dump"], ["ls"], ["ls", "run@1"], ["info"], ["export", "run", "-o", "-"]):
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = cli(command[0], pool, *command[1:], code=1, stdout=write_end)
        os.close(write_end)
        assert done.stderr.count("\n") <= 1


def test_a_full_standard_output(pool):
    with open("/dev/full", "wb") as full:
        assert "No space left" in cli("ls", pool, code=1, stdout=full).stderr
        cli("--help", code=1, stdout=full)
        cli("dump", pool, code=1, stdout=full)


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large.pool"
    array = np.random.default_rng(1).integers(0, 256, 96 << 20, dtype=np.uint8)
    tensor_file.save(tmp_path / "large.safetensors", {"a": array})
    cli("create", path)
    cli("import", path, "run", tmp_path / "large.safetensors")
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_cleanly(large, tmp_path, number):
    for command in (["dump", str(large)], ["export", str(large), "run", "-o", "-"]):
        with subprocess.Popen([BIN, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout.read(1)
            process.send_signal(number)
            process.stdout.read()
            message = process.stderr.read().decode()
        assert process.returncode == 128 + number, message
        assert message.startswith("lmc-store: ") and message.count("\n") == 1
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".lmc")]


def test_an_interrupted_restore_leaves_no_pool(large, tmp_path):
    content = cli("dump", large).stdout
    copy = tmp_path / "copy.pool"
    with subprocess.Popen([BIN, "restore", "-", str(copy)], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(content[: 32 << 20])
        process.stdin.flush()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        try:
            process.stdin.write(content[32 << 20 :])
            process.stdin.close()
        except BrokenPipeError:
            pass
        message = process.stderr.read().decode()
    assert process.returncode == 130, message
    assert not copy.exists()


WRITER = """
    import sys, numpy, lmcstore
    store = lmcstore.open(sys.argv[1], mode="r+")
    store["run"].snapshot({"model": {"w": numpy.zeros(8)}, "epoch": 3}, step=40)
    print("ready", flush=True)
    sys.stdin.read()
    store.close()
"""


def test_beside_a_writer(pool, tmp_path):
    pytest.importorskip("lmcstore")
    arguments = [sys.executable, "-c", textwrap.dedent(WRITER), str(pool)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"ready\n"
        assert as_json("info", pool)["snapshot_count"] == 4
        assert [s["step"] for s in as_json("ls", pool)["shelves"][0]["snapshots"]] == [10, 20, 30, 40]
        assert as_json("verify", pool)["ok"] is True
        assert as_json("ls", pool, "run")["shelves"][0]["latest"] == 4
        answer = as_json("export", pool, "run@4", "-o", tmp_path / "x")
        assert answer["tensors"] == 1 and answer["left_out"] >= 1
        cli("dump", pool, "-o", tmp_path / "archive")
        message = error("compact", pool, "--wait", 0, status="in use")
        assert str(writer.pid) in message and str(pool) in message
        assert message.strip().endswith("note, dump and push, work beside it") and "rank" not in message
        writer.stdin.close()
    assert writer.returncode == 0
    cli("compact", pool)


def test_policy(pool):
    shown = as_json("policy", pool, "run")
    assert shown["policy"] == "keep_raw=4 chain=3 keep=all"
    assert shown["would_remove"] == []
    count = shown["kept"]
    tried = as_json("policy", pool, "run", "keep=last:1", "chain=2", "--dry-run")
    assert tried["policy"] == "keep_raw=4 chain=2 keep=last:1"
    assert as_json("policy", pool, "run")["policy"] == shown["policy"]
    assert len(tried["would_remove"]) + tried["kept"] == count and tried["freed_bytes"] > 0
    assert " freed" in text("policy", pool, "run", "keep=last:1", "--dry-run")
    with lmcstore.open(pool, mode="r+"):
        beside = as_json("policy", pool, "run", "keep=last:1", "--dry-run")
        assert (beside["freed_bytes"], beside["later_bytes"]) == (None, None)
        assert " freed" not in text("policy", pool, "run", "keep=last:1", "--dry-run")
    assert as_json("policy", pool, "run")["freed_bytes"] is None
    assert "chain=2 keep=last:1" in text("policy", pool, "run", "keep=last:1", "chain=2")
    assert as_json("policy", pool, "run")["would_remove"] == tried["would_remove"]
    pruned = as_json("policy", pool, "run", "--prune")
    assert pruned["removed"] == tried["would_remove"]
    assert as_json("policy", pool, "run")["kept"] == pruned["kept"]
    assert "the keys are keep_raw=" in error("policy", pool, "run", "color=red", code=2)
