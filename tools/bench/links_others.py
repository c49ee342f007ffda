# SPDX-License-Identifier: BSD-3-Clause
"""Optimizers that have no links: what a step of each costs as deltas."""

from collections.abc import Callable
from typing import Any

import torch
from links_pool import ALL, HEAD, RUNS, add_history, explained, keep
from links_train import Setting, Way
from tables import Section

Parameters = list[torch.Tensor]
BLOCK = 256
"""Elements that share a scale in 8 bits."""


class Lion(torch.optim.Optimizer):
    """The sign of an average (arXiv 2302.06675)."""

    def __init__(self, parameters: Parameters, rate: float) -> None:
        super().__init__(parameters, {"lr": rate, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Take a step."""
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.sub_(average.lerp(p.grad, 1 - first).sign_(), alpha=group["lr"])
                average.lerp_(p.grad, 1 - second)


class AdamW8(torch.optim.Optimizer):
    """AdamW with moments in 8 bits: equal steps up to the largest of each block, rather than bitsandbytes' codes."""

    def __init__(self, parameters: Parameters, rate: float) -> None:
        super().__init__(parameters, {"lr": rate, "betas": (0.9, 0.95)})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Take a step."""
        for group in self.param_groups:
            for p in group["params"]:
                state, moments = self.state[p], []
                for key, beta, new in zip("mv", group["betas"], (p.grad, p.grad.square()), strict=True):
                    padded = torch.nn.functional.pad(new.flatten(), (0, -p.numel() % BLOCK)).view(-1, BLOCK)
                    if key in state:
                        padded.lerp_(state[key].float() * state[f"{key}_scale"], beta)
                    scale = state[f"{key}_scale"] = padded.abs().amax(1, keepdim=True).clamp_(min=1e-20) / 127
                    state[key] = (padded / scale).round().to(torch.int8)
                    moments.append(padded.flatten()[: p.numel()].view_as(p))
                p.sub_(moments[0] / (moments[1].sqrt() + 1e-8), alpha=group["lr"])


MAKES: dict[str, Callable[[Parameters, float], torch.optim.Optimizer]] = {
    "Muon (matrices only)": lambda ps, rate: torch.optim.Muon([p for p in ps if p.dim() == 2], lr=rate),
    "Lion": lambda ps, rate: Lion(ps, rate / 10),
    "AdamW, 8 bits": AdamW8,
    "Adafactor": lambda ps, rate: torch.optim.Adafactor(ps, lr=rate),
}


class Other(Way):
    """A way with an optimizer of this file."""

    def optimizer_of(self, parameters: Parameters) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return MAKES[self.name](parameters, self.rate)


def unlinked(setting: Setting) -> Section:
    """Keep runs of optimizers that have no links, and one of AdamW."""
    shape, steps = setting.of((4, 4, 256), (1, 4, 128), (1, 2, 64)), setting.of(100, 48, 16)
    section = Section("Optimizers without links, and AdamW", HEAD)
    ways: list[Any] = [RUNS[1], *(Other(name, rate=1e-3) for name in MAKES)]
    for way in ways:
        (size,) = keep(setting, way, shape, steps, (ALL,))
        add_history(section, way.name, ALL, size)
    section.notes.insert(0, explained(setting, shape, steps))
    return section
