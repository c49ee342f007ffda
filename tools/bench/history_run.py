# SPDX-License-Identifier: BSD-3-Clause
"""The quickstart's GPT with a snapshot after every step."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(TOP / "tools/quickstart"))  # after this folder: both have a history.py

import lmcstore  # noqa: E402
import text  # noqa: E402
import torch  # noqa: E402
from history_setting import Setting  # noqa: E402
from model import CONTEXT, GPT  # noqa: E402
from states import tensors_of  # noqa: E402
from tables import progress  # noqa: E402

RATE, WARM_UP, DECAY, BATCH = 1e-3, 8, 0.1, 8
KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16}
CLASSES = ("weights", "embeddings", "norms, biases", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Recipe:
    """A GPT and its steps."""

    layers: int
    heads: int
    width: int
    steps: int
    kind: str = "fp32"

    @property
    def name(self) -> str:
        """The folder of its pool."""
        return f"gpt-{self.layers}-{self.heads}-{self.width}-{self.steps}-{self.kind}"


RECIPES = {
    "full": {kind: Recipe(4, 4, 256, 200, kind) for kind in KINDS},
    "quick": {kind: Recipe(2, 4, 128, 100, kind) for kind in KINDS},
    "smoke": {kind: Recipe(1, 2, 64, 24, kind) for kind in KINDS},
}


def class_of(name: str, shape: tuple[int, ...]) -> str:
    """Return a tensor's kind."""
    last = name.rsplit(".", 1)[-1]
    if name.startswith("optimizer."):
        return last if last in CLASSES else "other"
    if name.startswith(("model.token.", "model.position.", "model.head.")):
        return "embeddings"
    return "weights" if len(shape) > 1 else "norms, biases"


class Trainer:
    """The quickstart's training."""

    def __init__(self, recipe: Recipe, text_file: Path) -> None:
        torch.manual_seed(1234)
        text.gather(text_file)
        self.data = torch.frombuffer(bytearray(text_file.read_bytes()), dtype=torch.uint8)
        self.model = GPT(recipe.layers, recipe.heads, recipe.width).to(KINDS[recipe.kind])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=DECAY)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))

    def step(self) -> float:
        """Take a step; return the loss before it."""
        starts = torch.randint(len(self.data) - CONTEXT - 1, (BATCH,)).tolist()
        windows = torch.stack([self.data[i : i + CONTEXT + 1] for i in starts]).long()
        loss = self.model.loss(windows[:, :-1], windows[:, 1:])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return float(loss.item())

    def state(self) -> dict[str, Any]:
        """Return the state to snapshot."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


POOLS = ("deltas", "links")
"""How the steps of a run are kept: as without links, and as by default."""


def train(folder: Path, recipe: Recipe) -> None:
    """Train and snapshot into each pool; compact."""
    trainer = Trainer(recipe, folder / "text")
    with ExitStack() as opened:
        stores = [opened.enter_context(lmcstore.open(folder / f"{way}.pool")) for way in POOLS]
        for step in range(recipe.steps):
            loss = trainer.step()
            for way, store in zip(POOLS, stores, strict=True):
                store["gpt"].snapshot(trainer.state(), step=step, metrics={"loss": loss})
                if step == 0 and way == "deltas":
                    store["gpt"].policy = "links=off"
            if step % 25 == 0:
                progress(f"training a GPT in {recipe.kind}: step {step} of {recipe.steps}, loss {loss:.2f}")
        for store in stores:
            store.compact()


def pool_of(setting: Setting, kind: str, way: str = "deltas") -> Path:
    """Return a run's pool for reading; train if missing."""
    recipe = RECIPES[setting.size][kind]
    home = setting.kept / f"{recipe.name}-pools"
    if not home.exists():
        with tempfile.TemporaryDirectory(prefix="training-", dir=setting.kept) as made:
            train(Path(made), recipe)
            shutil.move(made, home)
            Path(made).mkdir()  # the context removes it
    return home / f"{way}.pool"


def described(setting: Setting, kind: str) -> str:
    """Name the run."""
    recipe = RECIPES[setting.size][kind]
    with torch.device("meta"):
        count = sum(p.numel() for p in GPT(recipe.layers, recipe.heads, recipe.width).parameters())
    return (
        f"the quickstart's GPT ({recipe.layers} layers of width {recipe.width}, {count / 1e6:.1f} M parameters, all "
        f"{recipe.kind}), AdamW with weight decay {DECAY}, learning rate {RATE:g} after {WARM_UP} steps of warm-up, "
        f"a snapshot after each of steps 0 to {recipe.steps - 1}"
    )


@contextmanager
def history(setting: Setting, kind: str) -> Iterator[lmcstore.shelf.Shelf]:
    """Open a history for reading."""
    with lmcstore.open(pool_of(setting, kind), mode="r") as store:
        yield store["gpt"]


def flat_state(shelf: lmcstore.shelf.Shelf, step: int) -> dict[str, torch.Tensor]:
    """Read a step's tensors, tied ones once."""
    seen: set[int] = set()
    flat = {}
    for name, tensor in tensors_of(shelf.at(step=step).state_dict()).items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            flat[name] = tensor.clone()
    return flat
