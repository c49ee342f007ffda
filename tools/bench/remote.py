# SPDX-License-Identifier: BSD-3-Clause
"""Measures runs in object stores, beside other ways. Run by tools/bench.sh remote.

One server (remote_server.py) for all, on the loopback interface of a network namespace, where tc limits it to 1 Gbit/s
for some sections: so the clients of this machine share its processors with the server.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lmcstore
import numpy as np
from debian import debian_tool
from remote_link import RATE, Remote, command, enter_namespace, packages
from remote_run import POOL, SHELF, WAYS, follow, receive, send, times_of
from tables import Run, Section, ms, progress, run_suite
from train_run import Loop, record
from train_ways import LINKS, links_way
from usage import in_new_process, use_memory

IDLE_S = 0.25
MOST_SENT = {
    ("1s", True): 0.18,
    ("1s", False): 0.35,
    ("3s", True): 0.14,
    ("3s", False): 0.31,
}
"""Of raw, by the time of a restore, and whether gradients are bf16."""
PIECE = 16 << 20


@dataclass
class Setting:
    """Where and how much to measure."""

    folder: Path
    kept: Path
    size: str
    remote: Remote
    steps: int
    notes: list[str] = field(default_factory=list)

    def of(self, full: Any, quick: Any, smoke: Any) -> Any:
        """Choose by size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]

    @property
    def rounds(self) -> int:
        """How often restores and transfers are measured."""
        return {"full": 5, "quick": 3, "smoke": 1}[self.size]

    @property
    def peers(self) -> Path:
        """A folder with other packages."""
        return self.kept / "peers"

    def ways(self) -> list[str]:
        """Return the other ways that are here."""
        return [] if self.size == "smoke" else list(WAYS)

    @contextmanager
    def limited(self) -> Iterator[bool]:
        """Limit the link; yield whether that was possible."""
        if not self.remote.can_limit:
            self.notes.append("1 Gbit/s: a network namespace needs root or user namespaces, and tc; unlimited here")
            yield False
            return
        with self.remote.limited():
            yield True


def loop_of(setting: Setting, bf16: bool, **other: Any) -> Loop:
    """Describe a trainer; record its gradients once."""
    kind = "bf16" if bf16 else "fp32"
    shape = setting.of((6, 6, 384), (6, 6, 384), (1, 2, 32))
    count = setting.of(20, 20, 2)
    file = setting.kept / f"gradients-{kind}-{shape[2]}-{count}"
    loop = Loop("none", 1, 0, shape, bf16, 0.0, file, count, setting.folder, setting.kept, 2)
    if not file.exists():
        progress(f"    recording the {kind} gradients of {loop.count} steps")
        made = replace(loop, gradients=file.with_suffix(".new"))
        in_new_process("train_run", record, made)
        file.with_suffix(".new").rename(file)
    return replace(loop, **other)


@contextmanager
def pushed(setting: Setting, loop: Loop, rests: bool = False) -> Iterator[tuple[str, dict[str, Any], dict[str, int]]]:
    """Train and push; yield the URL, the trainer's result and the server's counts."""
    with (
        setting.remote.bucket() as bucket,
        tempfile.TemporaryDirectory(dir=setting.folder) as folder,
    ):
        url = f"s3://{bucket}/run"
        case = replace(loop, folder=Path(folder))
        with setting.remote.counting() as counts:
            found, _ = in_new_process("remote_run", follow, case, url, rests)
        yield url, found, counts


def middle(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)


# ---- Sections -------------------------------------------------------------------------------------------------------


def sent(setting: Setting) -> list[Section]:
    """Measure the bytes that each step sends, of all requests."""
    section = Section(
        f"Bytes sent a step, {setting.steps} steps",
        ["gradients", "way", "of raw", "requests a step"],
    )
    for bf16 in (True, False):
        kind = "bf16" if bf16 else "fp32"
        for restore in ("1s", "3s"):
            loop = loop_of(setting, bf16, way=links_way(restore), steps=setting.steps, idle_s=0.05)
            with pushed(setting, loop) as (_, found, counts):
                steps = setting.steps + 2
                share = counts["received"] / found["raw_bytes"] / steps
                text = f"{counts['requests'] / steps:.1f}"
                section.rows.append(
                    [
                        kind,
                        f"lmc-store push --follow, restore={restore}",
                        f"{share:.3f}",
                        text,
                    ]
                )
                section.numbers[f"sent, {kind}, restore={restore}"] = {
                    "share": share,
                    "counts": counts,
                }
                if setting.size == "full":
                    section.goal(
                        f"{kind}, restore={restore}: sent, of raw",
                        share,
                        "<=",
                        MOST_SENT[restore, bf16],
                    )
            progress(f"    {kind}, restore={restore}: {share:.3f} of raw")
        for way in setting.ways():
            share, packed = peer(setting, loop_of(setting, bf16, steps=setting.of(6, 3, 2)), way)
            section.rows.append([kind, way, f"{share:.3f}", ""])
            section.rows.append([kind, f"{way}, and zstd -3", f"{packed:.3f}", ""])
            section.numbers[f"sent, {kind}, {way}"] = share
            section.numbers[f"sent, {kind}, {way}, zstd -3"] = packed
    section.notes.append(
        f"Bytes that the server received, headers included, for each of all snapshots. Others: means of the last "
        f"{setting.of(5, 2, 1)} steps. zstd: of the objects that a step left."
    )
    return [section]


def peer(setting: Setting, loop: Loop, way: str) -> tuple[float, float]:
    """Return the share of raw that a step of another way sends, and that of its objects after zstd."""
    sent_bytes, packed, raw_bytes = [], 0, 1
    for steps in (1, loop.steps):
        case = replace(loop, steps=steps)
        with setting.remote.bucket() as bucket, setting.remote.counting() as counts:
            found, _ = in_new_process("remote_run", send, case, way, bucket, setting.peers)
            raw_bytes = found["raw_bytes"]
            packed = packed or zstd_of(bucket)
        sent_bytes.append(counts["received"])
    return (sent_bytes[1] - sent_bytes[0]) / (loop.steps - 1) / raw_bytes, packed / raw_bytes


def zstd_of(bucket: str) -> int:
    """Return the size of a bucket's objects, each after zstd -3."""
    from lmcstore._remote.place import Place

    total = 0
    with Place(f"s3://{bucket}") as place:
        for info in place._client.list(""):
            data = place.get(info.name)
            total += len(
                subprocess.run(
                    ["zstd", "-q", "-3", "-c"],
                    input=data,
                    capture_output=True,
                    check=True,
                ).stdout
            )
    return total


def one_lag(setting: Setting, loop: Loop, section: Section, what: str) -> tuple[float, float, float]:
    """Measure a push beside a trainer; return the median and the longest lag in steps, and the loop's ratio."""
    with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
        alone, _ = in_new_process("remote_run", follow, replace(loop, folder=Path(folder)), None, False)
    with pushed(setting, loop) as (url, found, _):
        committed = times_of(url)
    durable = found["durable"]
    lags = [committed[number] - at for number, at in durable.items()]
    behind = [sum(number <= one and at < committed[number] for one, at in durable.items()) for number in durable]
    ratio, step_s = found["loop_s"] / alone["loop_s"], found["loop_s"] / loop.steps
    row = [ms(middle(lags)), ms(max(lags)), ms(step_s), f"{middle(behind):.0f}, at most {max(behind)}"]
    section.rows.append([what, *row, f"{ratio:.3f}"])
    section.numbers[f"lag, {what}"] = {"lags_s": lags, "behind": behind, "loop": ratio, "step_s": step_s}
    progress(f"    {what}: {ms(middle(lags))} ms, {ratio:.3f}")
    return middle(lags) / step_s, max(lags) / step_s, ratio


def lag(setting: Setting) -> list[Section]:
    """Measure the time from a capture to its commit, and the cost for the trainer."""
    section = Section("A push beside a trainer", ["gradients", "lag, ms", "most", "step, ms", "behind, steps", "loop"])
    steps = setting.of(80, 30, 6)
    for bf16 in (True, False):
        kind = "bf16" if bf16 else "fp32"
        loop = loop_of(setting, bf16, way=LINKS, steps=steps, idle_s=setting.of(IDLE_S, IDLE_S, 0.02))
        with setting.limited() as is_limited:
            if is_limited:
                median, most, ratio = one_lag(setting, loop, section, f"{kind}, 1 Gbit/s")
                if bf16:
                    section.goal(f"{kind}: lag in steps, median", median, "<=", 1)
                    section.goal(f"{kind}: lag in steps, most", most, "<=", 1)
                section.goal(f"{kind}: loop, over the loop without a push", ratio, "<=", 1.02)
        one_lag(setting, loop, section, f"{kind}, unlimited")
    section.notes.append(
        f"Steps of {IDLE_S} s and the optimizer's. Lag: from durable in the pool to committed at the URL. Behind: "
        "snapshots of the pool that the URL lacked at a commit, itself included. Loop: over the loop with snapshots "
        "and without a push."
    )
    return [section]


def own_restores(setting: Setting, url: str, kind: str, section: Section, has_goal: bool) -> float:
    """Read the newest state in two ways; return the seconds of the faster one."""

    def pull(folder: Path) -> None:
        subprocess.run(command("pull", url, folder / POOL, f"{SHELF}@latest"), check=True, stdout=subprocess.DEVNULL)

    def read(_: Path) -> None:
        with lmcstore.open(url) as store:
            store[SHELF]["latest"].state_dict(verify=True)

    def once(work: Callable[[Path], None]) -> float:
        with tempfile.TemporaryDirectory(dir=setting.folder) as folder:
            begin = time.perf_counter()
            work(Path(folder))
            return time.perf_counter() - begin

    best = float("inf")
    for name, work in (("lmc-store pull, the whole process", pull), ("open(URL), state_dict()", read)):
        with setting.remote.counting() as counts:
            seconds = once(work)
        seconds = middle([seconds, *(once(work) for _ in range(setting.rounds - 1))])
        add_restore(section, kind, name, seconds, counts)
        if has_goal:
            section.goal(f"{kind}, {name}: of the link's speed", counts["sent"] / seconds / RATE, ">=", 0.9)
        best = min(best, seconds)
    return best


def add_restore(section: Section, kind: str, way: str, seconds: float, counts: dict[str, int]) -> None:
    """Add a row."""
    speed = counts["sent"] / seconds / RATE
    section.rows.append([f"{kind}, {way}", f"{seconds:.2f}", f"{counts['sent'] / 1e6:.0f}", f"{speed:.2f}"])
    section.numbers[f"restore, {kind}, {way}"] = {"seconds": seconds, "counts": counts}


def restore(setting: Setting) -> list[Section]:
    """Measure how fast the newest state comes back."""
    section = Section("The newest state at 1 Gbit/s", ["gradients, way", "seconds", "MB read", "of the link"])
    steps = setting.of(150, 40, 6)
    for bf16 in (True, False):
        kind = "bf16" if bf16 else "fp32"
        loop = loop_of(setting, bf16, way=LINKS, steps=steps, idle_s=0.05)
        best = 0.0
        for rests, when in [(False, "at once"), (True, "after a pause")][: setting.of(2, 2, 1)]:  # keys: from 16 MiB on
            with pushed(setting, loop, rests) as (url, _, _), setting.limited() as is_limited:
                if not is_limited:
                    return []
                best = own_restores(setting, url, f"{kind}, {when}", section, rests)
        others = []
        for way in setting.ways():
            with setting.remote.bucket() as bucket:
                case = replace(loop, way="none", steps=1)
                in_new_process("remote_run", send, case, way, bucket, setting.peers)
                times: list[float] = []
                for _ in range(setting.rounds):
                    with setting.remote.limited(), setting.remote.counting() as counts:
                        times.append(in_new_process("remote_run", receive, case, way, bucket, setting.peers)[0])
                seconds = middle(times)
            others.append(seconds)
            add_restore(section, kind, way, seconds, counts)
        if others:
            section.goal(f"{kind}: seconds, over the fastest other way", best / min(others), "<=", 1)
    section.notes.append(
        f"After {steps + 2} steps with restore=1s; after a pause the newest state has a key. Others: their only state. "
        f"Medians of {setting.rounds}."
    )
    return [section]


def tensor(setting: Setting) -> list[Section]:
    """Measure the requests and bytes of one tensor of an older step."""
    section = Section("One tensor of 4 MB", ["what", "measured"])
    count, number = setting.of(1 << 20, 1 << 20, 1 << 14), setting.of(150, 40, 6)
    generator = np.random.default_rng(0)
    weights = {f"w{n}": generator.normal(0, 0.02, count).astype(np.float32) for n in range(setting.of(8, 4, 2))}
    with (
        setting.remote.bucket() as bucket,
        lmcstore.open(setting.folder / "tensor.pool", "x") as store,
    ):
        url = f"s3://{bucket}/run"
        for step in range(number + 10):
            for value in weights.values():
                value += generator.normal(0, 1e-5, count).astype(np.float32)
            store[SHELF].snapshot(weights, step=step)
            if step % 10 == 9:
                store.push(url)

        def read() -> float:
            begin = time.perf_counter()
            with lmcstore.open(url) as there:
                np.asarray(there[SHELF][number]["w1"])
            return time.perf_counter() - begin

        read()
        with setting.remote.counting() as counts:
            at_once = read()
        with setting.remote.delayed(0.3):
            rounds = (read() - at_once) / 0.3
        stored = chain_bytes(url, number, "w1")
    (setting.folder / "tensor.pool").unlink()
    section.rows += [
        ["requests", str(counts["requests"])],
        ["rounds of requests", f"{rounds:.1f}"],
        ["bytes read", f"{counts['sent']:,}"],
        ["stored bytes of its chain", f"{stored:,}"],
        ["seconds, unlimited link", f"{at_once:.2f}"],
    ]
    section.numbers["tensor"] = {
        "counts": counts,
        "rounds": rounds,
        "stored_bytes": stored,
        "seconds": at_once,
    }
    if setting.size != "smoke":
        section.goal("rounds of requests, opening included", round(rounds, 1), "<=", 4)
        section.goal(
            "bytes read, over the stored bytes of its chain",
            counts["sent"] / stored,
            "<=",
            1.2,
        )
    return [section]


def chain_bytes(url: str, number: int, name: str) -> int:
    """Return the stored bytes of all payloads on which a tensor rests."""
    from lmcstore._remote import outline, state
    from lmcstore._remote.place import Place

    total = 0
    with Place(url) as place:
        chain = state.read(place).shelf(SHELF).chain(number)
        digest = b""
        for _, archive in reversed(chain):
            found = outline.unpack(b"".join(place.get_ranges(archive.outline_ranges())), url)
            if not digest:
                content = next(c for i, c in found.entries if found.identities[i - 1].name == name)
                digest = found.contents[content - 1].digest
            pending, seen = [one for one in found.contents if one.digest == digest], set()
            digest = b"-"
            while pending:
                one = pending.pop()
                if one.is_known:
                    digest = one.digest
                elif one not in seen:
                    seen.add(one)
                    total += one.stored
                    pending += [found.contents[base - 1] for base in one.bases]
    return total


def by_obstore(setting: Setting, blocks: list[bytes], *, files: bool) -> tuple[float, float]:
    """Send and read blocks, eight at a time; return the seconds of each. `files`: from files, and to synced ones."""
    import obstore
    from obstore.store import S3Store

    paths = [setting.folder / f"block-{number}" for number in range(len(blocks))]

    def send(path: Path, block: bytes) -> None:
        obstore.put(client, path.name, path.read_bytes() if files else block, use_multipart=False)

    def receive(path: Path) -> Any:
        if not files:
            return obstore.get(client, path.name).bytes()
        with path.with_suffix(".read").open("wb", buffering=0) as file:
            for part in obstore.get(client, path.name).stream():
                file.write(part)
            os.fsync(file.fileno())
        return None

    with setting.remote.bucket() as bucket, ThreadPoolExecutor(8) as workers:
        client = S3Store(bucket, virtual_hosted_style_request=False, client_options={"allow_http": True})
        for path, block in zip(paths, blocks, strict=True):
            if files:
                path.write_bytes(block)
        begin = time.perf_counter()
        list(workers.map(send, paths, blocks))
        sent_at = time.perf_counter()
        list(workers.map(receive, paths))
        seconds = sent_at - begin, time.perf_counter() - sent_at
    for path in setting.folder.glob("block-*"):
        path.unlink()
    return seconds


def by_lmcstore(setting: Setting, blocks: list[bytes]) -> tuple[float, float]:
    """Push and pull a pool that has the same bytes raw; return the seconds of each."""
    paths = [setting.folder / "speed.pool", setting.folder / "pulled.pool"]
    with setting.remote.bucket() as bucket, lmcstore.open(paths[0], "x", background=False) as store:
        url = f"s3://{bucket}/run"
        for number in range(0, len(blocks), 4):
            parts = {str(n): np.frombuffer(block, np.uint8) for n, block in enumerate(blocks[number : number + 4])}
            store[SHELF].snapshot(parts, step=number)
        begin = time.perf_counter()
        store.push(url)
        sent_at = time.perf_counter()
        lmcstore.pull(url, paths[1])
        seconds = sent_at - begin, time.perf_counter() - sent_at
    for path in paths:
        path.unlink()
    return seconds


def speed(setting: Setting) -> list[Section]:
    """Measure bytes a second of an unlimited link, beside obstore alone, with the same medium and durability."""
    section = Section("Bytes a second, unlimited link", ["way", "sent, MB/s", "read, MB/s"])
    generator = np.random.default_rng(0)
    blocks = [generator.bytes(PIECE) for _ in range(setting.of(64, 32, 2))]
    rounds = setting.rounds
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "obstore, memory": lambda: by_obstore(setting, blocks, files=False),
        "obstore, files": lambda: by_obstore(setting, blocks, files=True),
        "lmc-store": lambda: by_lmcstore(setting, blocks),
    }
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in [*ways][number % 3 :] + [*ways][: number % 3]:
            use_memory(setting.folder, 4 * len(blocks) * PIECE)
            times[way].append(ways[way]())
    size = len(blocks) * PIECE
    rates = {way: [size / middle([pair[at] for pair in pairs]) for at in (0, 1)] for way, pairs in times.items()}
    section.rows = [[way, *(f"{rate / 1e6:.0f}" for rate in both)] for way, both in rates.items()]
    section.numbers["speed"] = rates
    for at, what in enumerate(("push", "pull")):
        ratio = rates["lmc-store"][at] / rates["obstore, memory"][at]
        section.notes.append(f"{what}: {ratio:.2f} of obstore with memory.")
        section.goal(f"{what}: of obstore with files", rates["lmc-store"][at] / rates["obstore, files"][at], ">=", 0.8)
    section.notes.append(
        f"{size / 1e6:.0f} MB that can't be compressed, medians of {rounds}. obstore: 16 MiB objects, 8 at a time, "
        "from memory or files, and into memory or synced files. lmc-store: from a pool, and into one."
    )
    return [section]


def fill(url: str, count: int) -> None:
    """Begin a run of so many entries, without archives."""
    from lmcstore._remote import state
    from lmcstore._remote.codec import Archive, Entry
    from lmcstore._remote.place import Place

    def add(draft: state.State) -> bool:
        shelf = draft.find(SHELF) or draft.add(SHELF, "1" * 32, 4, "", None)
        for n in range(shelf.next, min(shelf.next + 32, count + 1)):
            archive = Archive(f"data/{n:020}-{'0' * 16}", 0, 1000, PIECE, 1000, 100, f"{n:032x}")
            shelf.append(Entry(n, n, n, 0, 2000, 3, {"loss": 1 / n}, "", False, n - 1, False, archive, None))
        return True

    with Place(url) as place:
        now = state.begin(place)
        while now.find(SHELF) is None or now.shelf(SHELF).next <= count:
            now = state.change(now, "0" * 32, add)


def long(setting: Setting) -> list[Section]:
    """Count the requests of a long history."""
    count = setting.of(100_000, 20_000, 500)
    section = Section(f"A run of {count:,} steps", ["what", "requests", "ms"])

    def measure(what: str, work: Callable[[], object], has_goal: bool = True) -> None:
        with setting.remote.counting() as counts:
            begin = time.perf_counter()
            work()
            seconds = time.perf_counter() - begin
        section.rows.append([what, str(counts["requests"]), ms(seconds)])
        section.numbers[what] = {"counts": counts, "seconds": seconds}
        if has_goal:
            section.goal(f"requests of {what}", counts["requests"], "<=", 3)

    with setting.remote.bucket() as bucket:
        url = f"s3://{bucket}/run"
        fill(url, count)

        def run(*words: Any) -> None:
            subprocess.run(command(*words), check=True, stdout=subprocess.DEVNULL)

        def read() -> None:
            with lmcstore.open(url) as store:
                assert store[SHELF]["latest"].number == count

        measure("`lmc-store ls`", lambda: run("ls", url))
        measure("`lmc-store log -n 20`", lambda: run("log", url, "-n", 20))
        measure("open, and the newest snapshot", read)
        measure("`lmc-store ls URL SHELF`, all snapshots", lambda: run("ls", url, SHELF), has_goal=False)
    section.notes.append("The snapshots are entries alone, without archives. Commands: the whole process.")
    return [section]


SECTIONS = (sent, lag, restore, tensor, speed, long)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this suite's options."""
    parser.add_argument("--steps", type=int, help="steps of the section sent (200; --quick: 48)")


def setting_of(run: Run) -> Setting:
    """Start the server."""
    kept = run.options.dir.resolve() / "remote-data"
    folder = run.scratch(run.options.dir)
    remote = Remote(folder / "server")
    run.stack.callback(remote.close)
    setting = Setting(folder, kept, run.size, remote, 0)
    setting.steps = run.options.steps or setting.of(200, 48, 6)
    return setting


def prepare() -> None:
    """Fetch other packages and programs, as long as there is a network."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(__file__).resolve().parent.parent.parent / "build/bench",
    )
    options, _ = parser.parse_known_args()
    kept = options.dir.resolve() / "remote-data"
    kept.mkdir(parents=True, exist_ok=True)
    if options.smoke:
        return
    packages(kept / "peers")
    for name in ("restic", "zstd"):
        os.environ["PATH"] += os.pathsep + str(debian_tool(name, kept).parent)


if __name__ == "__main__":
    if "LMCS_BENCH_NAMESPACE" not in os.environ:
        prepare()
    enter_namespace()
    run_suite("remote", __doc__, SECTIONS, setting_of, options=add_options)
