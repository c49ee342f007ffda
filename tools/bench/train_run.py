# SPDX-License-Identifier: BSD-3-Clause
"""One loop of one way to save, in a process of its own; gradients that are recorded for it; single lazy snapshots."""

import itertools
import queue
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which an optimizer imports at its first use
from links_train import Training
from links_train import Way as Recipe
from states import tensors_of
from train_ways import Wait, saver_of
from usage import BEGIN, END, Usage

WARM = 2
"""Saves, each after a step, before the loop that is measured."""
Mark = Callable[[Any], None]


@dataclass(frozen=True)
class Loop:
    """A loop."""

    way: str  # "none" or of train_ways
    every: int
    steps: int
    shape: tuple[int, int, int]
    bf16: bool
    idle_s: float  # of a device loop
    gradients: Path | None  # recorded; None: they are computed
    count: int  # of recorded steps
    folder: Path  # to save in
    text: Path  # a folder of a text to learn from
    threads: int

    def training(self) -> Training:
        """Make the model and its optimizer: the quickstart's."""
        torch.set_num_threads(self.threads)
        recipe = Recipe(self.way, bf16=self.bf16, rate=1e-3, warm_up=8, dropout=0.1, fused=True)
        return Training(recipe, self.shape, self.text)


def record(loop: Loop, mark: Mark) -> int:
    """Train `count` steps and write their gradients; return the number of parameters."""
    assert loop.gradients is not None
    training = loop.training()
    kind = torch.bfloat16 if loop.bf16 else torch.float32
    with loop.gradients.open("wb") as file:
        for _ in range(loop.count):
            training.step()
            for parameter in training.model.parameters():
                assert parameter.grad is not None
                file.write(parameter.grad.to(kind).contiguous().view(torch.uint8).numpy())
    return sum(parameter.numel() for parameter in training.model.parameters())


class Stepper:
    """Takes steps."""

    def __init__(self, loop: Loop) -> None:
        self.training = loop.training()
        self._idle_s = loop.idle_s
        self._recorded: Iterator[list[torch.Tensor]] | None = None
        if loop.gradients is None:
            return
        self._parameters = list(self.training.model.parameters())
        sizes = [parameter.numel() for parameter in self._parameters]
        kind = torch.bfloat16 if loop.bf16 else torch.float32
        flat = torch.from_file(str(loop.gradients), False, loop.count * sum(sizes), dtype=kind)
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._recorded = itertools.cycle([list(step.split(sizes)) for step in flat.split(sum(sizes))])

    def step(self) -> None:
        """Wait for the device and take recorded gradients, or compute them; change the weights."""
        if self._recorded is None:
            self.training.step()
            return
        time.sleep(self._idle_s)
        for parameter, gradient in zip(self._parameters, next(self._recorded), strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient.view_as(parameter))
        self.training.optimizer.step()
        self.training.scheduler.step()


class HookTimer:
    """Measures the time in an optimizer's hooks before a step: the first begins it, the last ends it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.seconds = 0.0
        self._begin = 0.0
        self._optimizer = optimizer
        self._handles = [optimizer.register_step_pre_hook(hook) for hook in (self._first, self._last)]

    def _first(self, *_: Any) -> None:
        self._begin = time.perf_counter()

    def _last(self, *_: Any) -> None:
        self.seconds += time.perf_counter() - self._begin

    def stay_outermost(self) -> None:
        """Move the hooks around those that were added meanwhile."""
        first, last = self._handles
        self._optimizer._optimizer_step_pre_hooks.move_to_end(first.id, last=False)
        self._optimizer._optimizer_step_pre_hooks.move_to_end(last.id)


class Watch:
    """Notes, in a thread, when each save is durable: they become so in order."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._failure: BaseException | None = None
        self._queue: queue.SimpleQueue[Wait | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, wait: Wait | None) -> None:
        """Watch a save; None: it is durable."""
        now = time.perf_counter()
        self._queue.put(wait if wait is not None else lambda: now)

    def _run(self) -> None:
        while (wait := self._queue.get()) is not None:
            try:
                at = wait()
            except BaseException as error:
                self._failure = self._failure or error
                continue
            self.times.append(at if isinstance(at, float) else time.perf_counter())

    def end(self) -> None:
        """Wait for all; raise the first failure."""
        self._queue.put(None)
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def sync(folder: Path) -> None:
    """Write the changed pages of a file system."""
    subprocess.run(["sync", "-f", folder], check=True)


def bytes_of(state: dict[str, Any]) -> int:
    """Return the bytes of a state's tensors."""
    return sum(tensor.nbytes for tensor in tensors_of(state).values())


def warm_up(stepper: Stepper, saver: Any, hooks: HookTimer) -> None:
    """Take steps and save them."""
    for number in range(WARM):
        stepper.step()
        if saver is not None:
            wait = saver.save(stepper.training.state(), -WARM + number)
            if wait is not None:
                wait()
    hooks.stay_outermost()
    hooks.seconds = 0.0


def run_loop(loop: Loop, mark: Mark) -> dict[str, Any]:
    """Train, and save after each step or some."""
    warnings.simplefilter("ignore")
    stepper = Stepper(loop)
    hooks = HookTimer(stepper.training.optimizer)
    saver = saver_of(loop.way, loop.folder, stepper.training.optimizer) if loop.way != "none" else None
    warm_up(stepper, saver, hooks)
    sync(loop.folder)
    watch, begins, saved, stepped = Watch(), [], [], []
    mark(BEGIN)
    before, begin = Usage.now(loop.folder), time.perf_counter()
    for number in range(loop.steps):
        stepper.step()
        stepped.append(time.perf_counter())
        if saver is not None and number % loop.every == 0:
            state = stepper.training.state()
            begins.append(time.perf_counter())
            watch.add(saver.save(state, number))
            saved.append(time.perf_counter())
    loop_s = time.perf_counter() - begin
    watch.end()
    if saver is not None:
        saver.finish()
    whole_s = time.perf_counter() - begin
    mark(END)
    sync(loop.folder)
    usage = Usage.now(loop.folder) - before
    if saver is not None:
        saver.close()
    nexts = stepped[1 :: loop.every]  # the ends of the steps after the saved ones; the last save may have none
    pairs = list(zip(watch.times, nexts, strict=False))
    return {
        "loop_s": loop_s,
        "whole_s": whole_s,
        "blocked_s": sum(b - a for a, b in zip(begins, saved, strict=True)) + hooks.seconds,
        "in_hooks_s": hooks.seconds,
        "durable_s": [b - a for a, b in zip(begins, watch.times, strict=True)],
        "in_time": sum(durable <= end for durable, end in pairs),
        "compared": len(pairs),
        "raw_bytes": bytes_of(stepper.training.state()),
        **asdict(usage),
    }


# ---- Single snapshots -----------------------------------------------------------------------------------------------

BLOCKS = 33  # of three parameters with their momenta: 198 tensors


def run_single(folder: Path, size: int, rounds: int, pause_s: float, threads: int, mark: Mark) -> dict[str, Any]:
    """Take snapshots of `size` bytes in 198 tensors, lazily and not, each before a step; return seconds."""
    import lmcstore

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    large = size // 8 // BLOCKS * 10 // 13
    counts = (large, large // 5, large // 10) * BLOCKS
    parameters = [torch.nn.Parameter(torch.randn(count)) for count in counts]
    optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    hooks = HookTimer(optimizer)
    moments = [optimizer.state[parameter]["momentum_buffer"] for parameter in parameters]
    state = {name: dict(enumerate(tensors)) for name, tensors in (("weights", parameters), ("momenta", moments))}
    found: dict[str, dict[str, list[float]]] = {}
    for name, lazy, pause in (("wait=False", None, 0.0), ("lazy", optimizer, 0.0), ("lazy, later", optimizer, pause_s)):
        times = found[name] = {"call_s": [], "hook_s": [], "durable_s": []}
        path = folder / "single.pool"
        with lmcstore.open(path, "x", background=False) as store:
            shelf = store.shelf("run", create=True)
            for number in range(rounds + WARM):
                sync(folder)
                begin = time.perf_counter()
                snapshot = shelf.snapshot(state, wait=False, lazy=lazy)
                called = time.perf_counter()
                hooks.stay_outermost()
                time.sleep(pause)
                hooks.seconds = 0.0
                optimizer.step()
                snapshot.wait()
                durable = time.perf_counter()
                for old in list(shelf)[:-1]:
                    shelf.remove(old)
                if number >= WARM:
                    for key, value in zip(times, (called - begin, hooks.seconds, durable - begin), strict=True):
                        times[key].append(value)
        path.unlink()
    return {"tensors": len(tensors_of(state)), "bytes": bytes_of(state), "times": found}
