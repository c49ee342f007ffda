# SPDX-License-Identifier: BSD-3-Clause
"""Measure links: a GPT is trained in several ways, and each step's optimizer state is coded from the one before.

    .venv/bin/python tools/bench/links.py [--quick]

Prints a table; build/release/bin/bench_links does the coding. What is trained goes to build/bench/links.
"""

import argparse
import copy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "tools/quickstart"))

import text  # noqa: E402
import torch  # noqa: E402
from model import CONTEXT, GPT  # noqa: E402

FIRST = 30  # steps before the first state


@dataclass(frozen=True)
class Way:
    """A way to train."""

    name: str
    bf16: bool = True  # gradients are those of a copy in bf16
    micro_batches: int = 1
    clip: float = 0.0
    optimizer: str = "adamw"
    fused: bool = False


WAYS = (
    Way("bf16 gradients"),
    Way("bf16 gradients, fused", fused=True),
    Way("bf16 gradients, clipped", clip=0.05),
    Way("sums of 4", micro_batches=4),
    Way("sums of 4, clipped", micro_batches=4, clip=0.05),
    Way("fp32 gradients", bf16=False),
    Way("SGD, bf16 gradients", optimizer="sgd"),
    Way("SGD, fp32 gradients", optimizer="sgd", bf16=False),
)


def batch(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight windows of the text, and the same one byte on."""
    starts = torch.randint(len(data) - CONTEXT - 1, (8,)).tolist()
    rows = torch.stack([data[at : at + CONTEXT + 1] for at in starts])
    return rows[:, :-1], rows[:, 1:]


def gradients(way: Way, model: GPT, low: GPT, data: torch.Tensor) -> None:
    """Leave the step's gradients, f32, in the model's parameters."""
    source = low if way.bf16 else model
    if way.bf16:
        with torch.no_grad():
            for small, large in zip(low.parameters(), model.parameters(), strict=True):
                small.copy_(large)
    model.zero_grad()
    for _ in range(way.micro_batches):
        low.zero_grad()
        source.loss(*batch(data)).backward()
        if way.bf16:
            for small, large in zip(low.parameters(), model.parameters(), strict=True):
                large.grad = small.grad.float() if large.grad is None else large.grad + small.grad.float()
    if way.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), way.clip)


def train(way: Way, steps: int, layers: int, folder: Path) -> list[Path]:
    """Train and write the states of all matrices, each array one file; in the order that bench_links takes."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    text.gather(folder / "text")
    data = torch.frombuffer(bytearray((folder / "text").read_bytes()), dtype=torch.uint8).long()
    model = GPT(layers=layers, dropout=0.0)
    low = copy.deepcopy(model).bfloat16()
    if way.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        names = ["momentum_buffer"]
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=way.fused)
        names = ["exp_avg", "exp_avg_sq"]
    large = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    files = []
    for step in range(FIRST + steps):
        gradients(way, model, low, data)
        optimizer.step()
        if step < FIRST - 1:
            continue
        for name in [*names, "weight"]:
            arrays = [(p if name == "weight" else optimizer.state[p][name]).detach().flatten() for p in large]
            files.append(folder / f"{len(files)}.f32")
            torch.cat(arrays).numpy().tofile(files[-1])
    return files


def measure(way: Way, steps: int, files: list[Path]) -> list[float]:
    """Run bench_links; its numbers."""
    constants = ["sgd", "0.02", "0", "0.9", "0", "0"]
    if way.optimizer == "adamw":
        constants = ["adam", "3e-4", "0.1", "0.9", "0.95", "1e-8"]
    command = [str(TOP / "build/release/bin/bench_links"), constants[0], str(steps), str(FIRST + 1), *constants[1:]]
    line = subprocess.run([*command, *map(str, files)], check=True, capture_output=True, text=True).stdout
    return [float(number) for number in line.split()]


def main() -> int:
    """Print a row for each way to train."""
    parser = argparse.ArgumentParser(description="Measure links on a GPT that is trained in several ways.")
    parser.add_argument("--quick", action="store_true", help="a smaller GPT, a shorter chain")
    parser.add_argument("--steps", type=int, help="links of the chain (8; 4 with --quick)")
    arguments = parser.parse_args()
    steps = arguments.steps or (4 if arguments.quick else 8)
    folder = TOP / "build/bench/links"
    folder.mkdir(parents=True, exist_ok=True)
    print("| trained with | bits | of the state | without hints | deltas | exact | in, out, chain: of memcpy |")
    print("| --- | ---: | ---: | ---: | ---: | --- | --- |", flush=True)
    for way in WAYS:
        files = train(way, steps, 2 if arguments.quick else 6, folder)
        _, bits, without, deltas, *rest = measure(way, steps, files)
        *exact, memcpy, into, out, chain = rest
        print(
            f"| {way.name} | {bits:.2f} | {32 * len(exact) / bits:.2f}x | {without:.2f} | {deltas:.2f} "
            f"| {' '.join(f'{share:.4f}' for share in exact)} "
            f"| {into / memcpy:.2f}, {out / memcpy:.2f}, {chain / memcpy:.2f} of {memcpy:.1f} GB/s |",
            flush=True,
        )
        for file in files:
            file.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
