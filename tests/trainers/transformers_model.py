# SPDX-License-Identifier: BSD-3-Clause
"""A small model and its data, which tests of the Trainer train in this and in other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from lmcstore.transformers import StoreTrainer


class Model(torch.nn.Module):
    """A network with dropout and buffers, whose weights are large enough to be linked."""

    def __init__(self) -> None:
        super().__init__()
        self.input = torch.nn.Linear(16, 128)
        self.norm = torch.nn.BatchNorm1d(128)
        self.dropout = torch.nn.Dropout(0.2)
        self.output = torch.nn.Linear(128, 128)

    def forward(self, inputs: Any, labels: Any = None) -> dict[str, Any]:
        outputs = self.output(self.dropout(torch.tanh(self.norm(self.input(inputs)))))
        return {"loss": (outputs.mean(1) - labels).square().mean(), "logits": outputs}


def model() -> Model:
    torch.manual_seed(0)
    return Model()


def data(count: int) -> list[dict[str, Any]]:
    rows = torch.randn(count, 16, generator=torch.Generator().manual_seed(1))
    return [{"inputs": row, "labels": row.sum()} for row in rows]


def arguments(folder: Path | str, **options: Any) -> Any:
    """Eight steps, in epochs of five; all are saved."""
    usual = {
        "max_steps": 8, "per_device_train_batch_size": 8, "logging_steps": 1, "save_strategy": "steps", "save_steps": 1,
        "report_to": [], "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return transformers.TrainingArguments(str(folder), **{**usual, **options})


class StoredTrainer(StoreTrainer, transformers.Trainer):  # type: ignore[misc]
    """Stores its checkpoints as snapshots."""


class Stop(transformers.TrainerCallback):
    """Stops after a step, or raises in it, before it is saved."""

    def __init__(self, step: int, error: Any = None) -> None:
        self.step = step
        self.error = error

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if state.global_step == self.step:
            if self.error is not None:
                raise self.error
            control.should_training_stop = True


def same(one: Any, other: Any) -> None:
    """Compare states to the bit."""
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            same(left, right)
    elif hasattr(one, "shape"):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
    else:
        assert one == other
