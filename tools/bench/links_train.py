# SPDX-License-Identifier: BSD-3-Clause
"""The quickstart's GPT, trained in several ways."""

import copy
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(TOP / "tools/quickstart"))  # after this folder: both have a history.py

import text  # noqa: E402
import torch  # noqa: E402
from codec_run import Peers  # noqa: E402
from model import CONTEXT, GPT  # noqa: E402
from states import Randomness  # noqa: E402

DECAY = 0.1
T = TypeVar("T")


@dataclass
class Setting:
    """Where and how much to measure."""

    folder: Path  # temporary
    kept: Path  # kept between runs
    size: str
    steps: int | None
    peers: Peers | None
    notes: list[str] = field(default_factory=list)

    def of(self, full: T, quick: T, smoke: T) -> T:
        """Choose by size."""
        return {"full": full, "quick": quick, "smoke": smoke}[self.size]


@dataclass(frozen=True)
class Way:
    """A way to train."""

    name: str
    bf16: bool = True  # gradients of a bf16 copy
    micro_batches: int = 1
    clip: float = 0.0
    optimizer: str = "adamw"
    fused: bool = False
    foreach: bool | None = None  # None: torch's choice
    capturable: bool = False
    device: str = "cpu"
    rate: float = 3e-4
    warm_up: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    dropout: float = 0.0
    batch: int = 8

    @property
    def moments(self) -> list[str]:
        """Name the state's arrays in a link's order."""
        return ["momentum_buffer"] if self.optimizer == "sgd" else ["exp_avg", "exp_avg_sq"]

    @property
    def arrays(self) -> int:
        """The number of arrays."""
        return len(self.moments) + 1

    def optimizer_of(self, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        """Make the optimizer."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9, fused=self.fused, foreach=self.foreach)
        return torch.optim.AdamW(
            parameters,
            self.rate,
            self.betas,
            weight_decay=DECAY,
            fused=self.fused,
            foreach=self.foreach,
            capturable=self.capturable,
        )


class Training:
    """A GPT (layers, heads, width) and its training."""

    def __init__(self, way: Way, shape: tuple[int, int, int], folder: Path) -> None:
        torch.manual_seed(1)
        text.gather(folder / "text")
        self.way = way
        self.data = torch.frombuffer(bytearray((folder / "text").read_bytes()), dtype=torch.uint8)
        self.model = GPT(*shape, dropout=way.dropout).to(way.device)
        self.low = copy.deepcopy(self.model).bfloat16()
        self.optimizer = way.optimizer_of(list(self.model.parameters()))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / way.warm_up) if way.warm_up else 1.0
        )
        self.rng = Randomness()

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return windows, and the same one byte on."""
        starts = torch.randint(len(self.data) - CONTEXT - 1, (self.way.batch,)).tolist()
        rows = torch.stack([self.data[at : at + CONTEXT + 1] for at in starts]).long().to(self.way.device)
        return rows[:, :-1], rows[:, 1:]

    def gradients(self) -> None:
        """Leave f32 gradients in the parameters."""
        pairs = list(zip(self.low.parameters(), self.model.parameters(), strict=True))
        self.model.zero_grad()
        if self.way.bf16:
            with torch.no_grad():
                for small, large in pairs:
                    small.copy_(large)
        for _ in range(self.way.micro_batches):
            if not self.way.bf16:
                self.model.loss(*self.batch()).backward()
                continue
            self.low.zero_grad()
            self.low.loss(*self.batch()).backward()
            for small, large in pairs:
                large.grad = small.grad.float() if large.grad is None else large.grad + small.grad.float()
        if self.way.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.way.clip)

    def step(self) -> None:
        """Take a step."""
        self.gradients()
        self.optimizer.step()
        self.scheduler.step()

    def state(self) -> dict[str, Any]:
        """Return the state to snapshot."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rng": self.rng.state_dict(),
        }

    def matrices(self, name: str) -> torch.Tensor:
        """Concatenate the weights, or one moment."""
        large = [parameter for parameter in self.model.parameters() if parameter.dim() == 2]
        arrays = large if name == "weight" else [self.optimizer.state[parameter][name] for parameter in large]
        return torch.cat([array.detach().flatten() for array in arrays]).cpu()

    def described(self) -> str:
        """Name the model and its size."""
        count = sum(parameter.numel() for parameter in self.model.parameters())
        raw = 4 * count * self.way.arrays
        return f"a GPT of {count / 1e6:.1f} M parameters, whose state takes {raw / 1e6:.0f} MB"
