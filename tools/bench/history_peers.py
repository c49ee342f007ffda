# SPDX-License-Identifier: BSD-3-Clause
"""Bytes a step of a whole history, beside other ways."""

import io
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import lmcstore
import safetensors.torch
import torch
from codec_data import Source, write
from codec_run import Peers
from debian import debian_tool, zstd
from history_run import CLASSES, KINDS, POOLS, RECIPES, class_of, described, flat_state, history, pool_of
from history_setting import Setting, mean
from states import disk_bytes
from tables import Section, progress

LEAST_BYTES = 4096  # of a class, for a peer
Sizes = dict[str, float]


@dataclass
class Sample:
    """Sampled steps and their predecessors."""

    steps: list[int]
    row: list[int]  # for ways that see whole files in turn
    states: dict[int, dict[str, torch.Tensor]]

    def pairs(self) -> list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
        """Yield each state with the previous one."""
        return [(self.states[step], self.states[step - 1]) for step in self.steps]


def sample_of(setting: Setting, shelf: lmcstore.shelf.Shelf, steps: int) -> Sample:
    """Choose spread steps and consecutive middle ones."""
    count = setting.of(5, 3, 2)
    chosen = [round((2 * i + 1) * steps / (2 * count)) for i in range(count)]
    row = list(range(steps // 2, steps // 2 + setting.of(10, 5, 3)))
    wanted = sorted({*chosen, *(step - 1 for step in chosen), *row})
    return Sample(chosen, row, {step: flat_state(shelf, step) for step in wanted})


def by_class(state: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Sort by kind."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in state.items():
        found.setdefault(class_of(name, tuple(tensor.shape)), {})[name] = tensor
    return found


def joined(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Concatenate by type."""
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


# ---- Ours -----------------------------------------------------------------------------------------------------------


@dataclass
class Pool:
    """A compacted pool's bytes by class."""

    steps: int
    keep_raw: int
    disk: int
    metadata: int
    raw: Sizes = field(default_factory=dict)
    older: Sizes = field(default_factory=dict)  # stored, older than the raw ones
    older_raw: Sizes = field(default_factory=dict)
    stored_as: dict[str, int] = field(default_factory=dict)  # number of contents

    def compacted(self) -> float:
        """Return a step's bytes."""
        return sum(self.older.values()) / (self.steps - self.keep_raw)


def look_at(setting: Setting, kind: str, way: str) -> Pool:
    """Sum contents, each once."""
    path = pool_of(setting, kind, way)
    seen: set[int] = set()
    with lmcstore.open(path, mode="r") as store:
        shelf = store["gpt"]
        snapshots = list(shelf)
        pool = Pool(len(snapshots), shelf.keep_raw, disk_bytes(path), store.info()["metadata_bytes"])
        for snapshot in snapshots[: -pool.keep_raw]:
            for entry in {entry["content"]: entry for entry in snapshot.entries()}.values():
                what = "values" if entry["is_attachment"] else class_of(entry["name"], entry["shape"])
                pool.older_raw[what] = pool.older_raw.get(what, 0) + entry["raw_bytes"]
                if entry["content"] not in seen:
                    seen.add(entry["content"])
                    pool.older[what] = pool.older.get(what, 0) + entry["stored_bytes"]
                    pool.stored_as[entry["stored_as"]] = pool.stored_as.get(entry["stored_as"], 0) + 1
    return pool


def deltas_of(new: dict[str, torch.Tensor], old: dict[str, torch.Tensor]) -> Sizes:
    """Encode against the previous state by the codec."""
    sizes: Sizes = {}
    for what, tensors in by_class(new).items():
        frames = [lmcstore.codec.compress(tensor, base=old[name]) for name, tensor in tensors.items()]
        sizes[what] = sum(map(len, frames))
    return sizes


# ---- Files ----------------------------------------------------------------------------------------------------------


def torch_size(state: dict[str, torch.Tensor]) -> int:
    """Return torch.save's size."""
    out = io.BytesIO()
    torch.save(state, out)
    return len(out.getvalue())


def restic_growth(setting: Setting, sample: Sample, tool: Path) -> float:
    """Back up each file under one name."""
    home, file = setting.folder / "restic", setting.folder / "state.safetensors"
    environment = os.environ | {"RESTIC_REPOSITORY": str(home), "RESTIC_PASSWORD": "bench"}
    sizes = []

    def restic(*words: str) -> None:
        subprocess.run([tool, *words, "-q", "--no-cache"], env=environment, check=True, capture_output=True)

    restic("init")
    for step in sample.row:
        safetensors.torch.save_file(sample.states[step], file)
        restic("backup", str(file))
        sizes.append(sum(path.stat().st_size for path in home.rglob("*") if path.is_file()))
    shutil.rmtree(home)
    file.unlink()
    return (sizes[-1] - sizes[0]) / (len(sizes) - 1)


def patched(setting: Setting, sample: Sample, tool: Path) -> float:
    """Compress each file as a patch."""
    sizes = []
    files = [setting.folder / "old.safetensors", setting.folder / "new.safetensors"]
    for new, old in sample.pairs():
        safetensors.torch.save_file(old, files[0])
        safetensors.torch.save_file(new, files[1])
        sizes.append(len(zstd(["-3", "--long=31", f"--patch-from={files[0]}", str(files[1])], None, tool)))
    for file in files:
        file.unlink()
    return mean(sizes)


def in_files(setting: Setting, sample: Sample) -> dict[str, float]:
    """Measure ways for whole files."""
    states = [new for new, _ in sample.pairs()]
    sizes: dict[str, float] = {"torch.save": mean([torch_size(state) for state in states])}

    def attempt(what: str, tool: str, measure: Callable[[Path], float]) -> None:
        progress(f"    {what} ...")
        try:
            sizes[what] = measure(debian_tool(tool, setting.kept))
        except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
            setting.notes.append(f"{what}: {str(error).splitlines()[0][:120]}")

    attempt(
        "safetensors, zstd -3",
        "zstd",
        lambda tool: mean([len(zstd(["-3"], safetensors.torch.save(state), tool)) for state in states]),
    )
    attempt("safetensors, zstd -3 --patch-from", "zstd", lambda tool: patched(setting, sample, tool))
    if setting.peers:
        attempt("safetensors, restic", "restic", lambda tool: restic_growth(setting, sample, tool))
    return sizes


# ---- Codecs ---------------------------------------------------------------------------------------------------------


def by_codecs(setting: Setting, sample: Sample, kind: str, peers: Peers) -> dict[str, Sizes]:
    """Measure array codecs by class."""
    found: dict[str, Sizes] = {}
    lost: set[str] = set()
    for step, (new, old) in zip(sample.steps, sample.pairs(), strict=True):
        olds = by_class(old)
        for what, tensors in by_class(new).items():
            data, base = joined(tensors), joined(olds[what])
            files = [setting.folder / "array", setting.folder / "array.base"]
            write(files[0], data)
            write(files[1], base)
            for peer in ("ZipNN", "z4ai"):
                found.setdefault(peer, {}).setdefault(what, 0)
                found[peer][what] += ask(setting, peers, peer, kind, files, data.nbytes, lost) / len(sample.steps)
        progress(f"    ZipNN and z4ai at step {step}")
    peers.stop()
    return {peer: sizes for peer, sizes in found.items() if peer not in lost}


def ask(
    setting: Setting, peers: Peers, peer: str, kind: str, files: list[Path], raw_bytes: int, lost: set[str]
) -> float:
    """Measure a peer on an array; small ones count as raw, failures are reported once."""
    if raw_bytes < LEAST_BYTES or peer in lost:
        return raw_bytes
    dtype = {"fp32": "f32", "bf16": "bf16"}[kind]
    try:
        return float(peers.size(peer, Source("", "weights", dtype, files[0], files[1]))["bytes"])
    except RuntimeError as error:
        lost.add(peer)
        setting.notes.append(f"{peer}: {error}")
        return raw_bytes


def codec_peers(setting: Setting) -> Peers | None:
    """Prepare the array codecs."""
    if not setting.peers:
        return None
    peers = Peers(setting.kept.parent / "codec-venv", install=setting.size == "full")
    setting.notes += peers.skipped
    return peers if peers.here else None


# ---- Tables ---------------------------------------------------------------------------------------------------------


def whole_table(
    kind: str, setting: Setting, pools: dict[str, Pool], ways: list[tuple[str, float]], full: float
) -> Section:
    """Write bytes of a step."""
    section = Section(f"Bytes a step, {kind}")
    section.head = ["way to keep every step", "MB a step", "full copies over it"]
    for what, size in ways:
        section.rows.append([what, f"{size / 1e6:.3f}", f"{full / size:.2f}"])
        section.numbers[f"{kind}, {what}"] = size
    pool = pools["deltas"]
    contents = "; ".join(
        f"links={'off' if way == 'deltas' else 'on'}: "
        + ", ".join(f"{count} {name}" for name, count in sorted(found.stored_as.items()))
        for way, found in pools.items()
    )
    section.notes.append(
        f"{described(setting, kind)[0].upper()}{described(setting, kind)[1:]}. A whole pool: its disk blocks after "
        f"compaction over all {pool.steps} steps, with its newest {pool.keep_raw} raw, keyframes, manifests and all "
        f"other metadata ({pool.metadata / 1e6:.2f} MB). A compacted step: what the others take ({contents}). With "
        "links=off no read undoes more than 3 deltas; with links, more than 24 links. Peers: means over "
        f"{setting.of(5, 3, 2)} steps spread over the run, tensors alone; restic over "
        f"{setting.of(10, 5, 3)} steps in a row. Those that code against the step before count no keyframes, so to "
        "read step N with them takes N decodings."
    )
    return section


def class_table(kind: str, pools: dict[str, Pool], codecs: dict[str, Sizes], sample: Sample) -> Section:
    """Report each kind."""
    section = Section(f"Ratios by class of tensor, {kind}")
    raw = {
        what: sum(t.nbytes for t in tensors.values())
        for what, tensors in by_class(sample.states[sample.row[0]]).items()
    }
    total = sum(raw.values())
    section.head = ["class", "share of the state", "the pool, links=off", "the pool"]
    section.head += [f"{name}, one step" for name in codecs]
    for what in CLASSES:
        if what in raw:
            cells = [f"{raw[what] / sizes[what]:.2f}" for sizes in codecs.values()]
            ratios = {way: pool.older_raw[what] / pool.older[what] for way, pool in pools.items()}
            ours = [f"{ratio:.2f}" for ratio in ratios.values()]
            section.rows.append([what, f"{100 * raw[what] / total:.1f} %", *ours, *cells])
            section.numbers[f"{kind}, {what}"] = {
                **{f"pool, {way}": ratio for way, ratio in ratios.items()},
                **{name: raw[what] / sizes[what] for name, sizes in codecs.items()},
            }
    section.notes.append(
        "Raw bytes over stored bytes. The pools' deltas jump, and their keyframes count; the others code each sampled "
        "step against the one before it. Embeddings are tied with the head, and count once."
    )
    return section


def peers_of(setting: Setting, kind: str, codecs: Peers | None) -> list[Section]:
    """Measure one run."""
    pools = {way: look_at(setting, kind, way) for way in POOLS}
    with history(setting, kind) as shelf:
        sample = sample_of(setting, shelf, RECIPES[setting.size][kind].steps)
    files = in_files(setting, sample)
    full = files.pop("torch.save")
    arrays: dict[str, Sizes] = {"LMC": {}}
    for new, old in sample.pairs():
        for what, size in deltas_of(new, old).items():
            arrays["LMC"][what] = arrays["LMC"].get(what, 0) + size / len(sample.steps)
    if codecs:
        arrays |= by_codecs(setting, sample, kind, codecs)
    names = {"LMC": "LMC deltas", "ZipNN": "ZipNN of the XOR", "z4ai": "z4ai deltas"}
    ways = [("full copies, torch.save", full), ("every tenth raw, the other nine lost", full / 10), *files.items()]
    ways += [(f"{names[name]} with the step before", sum(sizes.values())) for name, sizes in arrays.items()]
    for way, pool in pools.items():
        name = "lmc-store, links=off" if way == "deltas" else "lmc-store"
        ways += [(f"{name}: the whole pool", pool.disk / pool.steps), (f"{name}: a compacted step", pool.compacted())]
    return [whole_table(kind, setting, pools, ways, full), class_table(kind, pools, arrays, sample)]


def peers(setting: Setting) -> list[Section]:
    """Measure bytes a step."""
    codecs = codec_peers(setting)
    return [section for kind in KINDS for section in peers_of(setting, kind, codecs)]
