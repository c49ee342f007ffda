# SPDX-License-Identifier: BSD-3-Clause
"""A Trainer of transformers that keeps every step in a pool, and goes on after it was killed as if it had not been.

Run it, kill it, and run it again::

    python transformers_resume.py run.pool --steps 60

It prints a digest of the weights at the end, which an uninterrupted run prints, too.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile

import torch
from lmcstore.transformers import StoreTrainer
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class StoredTrainer(StoreTrainer, Trainer):
    """A Trainer whose checkpoints are snapshots."""


class Steps(TrainerCallback):
    """Prints the steps that are done."""

    def on_step_end(self, args, state, control, **objects):  # noqa: D102
        print("step", state.global_step, flush=True)


def sentences(count: int, length: int) -> list[dict[str, torch.Tensor]]:
    """Return sequences of tokens, each counting on from its first one."""
    rows = [(torch.arange(length) + start) % 64 for start in range(count)]
    return [{"input_ids": row, "labels": row} for row in rows]


def main() -> None:
    """Train a small GPT-2 for some steps, and print what became of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pool")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=8,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="steps",
            save_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = StoredTrainer(
            GPT2LMHeadModel(config),
            args,
            train_dataset=sentences(160, 16),
            callbacks=[Steps()],
            store=options.pool,
        )
        trainer.train(resume_from_checkpoint="auto")
    digest = hashlib.sha256()
    for name, tensor in trainer.model.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    print("weights", digest.hexdigest())


if __name__ == "__main__":
    main()
