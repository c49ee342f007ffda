# SPDX-License-Identifier: BSD-3-Clause
"""Tensors on devices: captured and loaded through pinned memory; on CUDA if available.

Otherwise memory plays a device, whose copies run at once, or as late as allowed, to show early reads and overwritten
bytes.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import Any

import lmcstore
import pytest
from lmcstore._arrays import device as _device
from lmcstore._arrays import torch as _torch
from lmcstore.replicated import Replicated
from optional import torch
from same import same

IN_MEMORY = True
CHUNK = 1024
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.count = len(device.begun)

    def synchronize(self) -> None:
        self.device.carry_out(self.count)


class Device:
    """Copies at once, or only when waited for."""

    def __init__(self, is_late: bool) -> None:
        self.is_late = is_late
        self.begun: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.done = 0
        self.most_ahead = 0
        self.sizes: list[int] = []

    def pinned(self, size_bytes: int) -> torch.Tensor:
        self.sizes.append(size_bytes)
        return torch.full((size_bytes,), 0xCC, dtype=torch.uint8)

    def copy(self, device: torch.device, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.begun += pairs
        self.most_ahead = max(self.most_ahead, sum(t.numel() for t, _ in self.begun[self.done :]))
        if not self.is_late:
            self.carry_out(len(self.begun))

    def record(self, device: torch.device) -> Event:
        return Event(self)

    def mark(self, device: torch.device) -> Event:
        return Event(self)

    @contextlib.contextmanager
    def beside(self, marks: Iterable[Event]) -> Iterator[None]:
        for mark in marks:
            mark.synchronize()
        yield

    def carry_out(self, count: int) -> None:
        for target, source in self.begun[self.done : count]:
            target.copy_(source)
        self.done = max(self.done, count)


@pytest.fixture(params=["at once", "late"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Everything to be copied, and large targets, are on this device; buffers are small."""
    device = Device(request.param == "late")
    monkeypatch.setattr(_torch.Torch, "backend", lambda self, tensor: device)
    monkeypatch.setattr(_torch, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(_device.Stage.__init__, "__defaults__", (CHUNK,))
    return device


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Must be copied: a lazy negation."""
    return torch._neg_view(-tensor)


def sizes() -> Iterator[int]:
    yield from (1, 3, 63, 64, 65, 255, 256, 257, 511, 512, 700, 768, 1000, 2, 256, 128, 128, 4000, 5)


def test_whatever_the_sizes(shelf: lmcstore.Shelf, device: Device) -> None:
    torch.manual_seed(1)
    plain = {str(i): torch.randn(size) for i, size in enumerate(sizes())}
    state = {name: on_device(tensor) for name, tensor in plain.items()}
    snap = shelf.snapshot(state)
    same(plain, snap.state_dict())
    assert sum(target.numel() for target, _ in device.begun) == sum(4 * size for size in sizes())
    assert device.done == len(device.begun) and device.most_ahead <= 2 * CHUNK
    again = shelf.snapshot(state)
    contents = {entry["name"]: entry["content"] for entry in snap.entries()}
    assert {entry["name"]: entry["content"] for entry in again.entries()} == contents
    state["17"] = on_device(plain["17"] + 1)
    entries = shelf.snapshot(state).entries()
    assert {entry["name"] for entry in entries if entry["content"] != contents[entry["name"]]} == {"17"}


def test_no_buffer_is_larger_than_needed(shelf: lmcstore.Shelf, device: Device) -> None:
    shelf.snapshot({"a": on_device(torch.zeros(25)), "b": on_device(torch.zeros(5))})
    assert len(device.sizes) == 1 and 120 <= device.sizes[0] <= 256
    shelf.snapshot({"a": on_device(torch.zeros(250)), "b": on_device(torch.zeros(50))})
    assert device.sizes[1:] == [CHUNK, CHUNK]


def test_whatever_the_kind(shelf: lmcstore.Shelf, device: Device) -> None:
    torch.manual_seed(2)
    tensors = {
        "f64": torch.randn(3, 100, dtype=torch.float64),
        "bf16": torch.randn(700).bfloat16(),
        "c64": torch.randn(300, dtype=torch.complex64),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "turned": torch.randn(40, 50).t(),
    }
    snap = shelf.snapshot({name: on_device(tensor) for name, tensor in tensors.items()})
    same({name: tensor.contiguous() for name, tensor in tensors.items()}, snap.state_dict())
    conjugated = torch.randn(300, dtype=torch.complex64)
    same(conjugated.conj().resolve_conj(), shelf.snapshot({"c": conjugated.conj()})["c"])
    first = on_device(torch.randn(600))
    back = shelf.snapshot({"a": first, "b": first, "c": first.detach()}).state_dict()
    assert back["a"] is back["b"] and back["c"].data_ptr() == back["a"].data_ptr()


def test_what_is_loaded(shelf: lmcstore.Shelf, device: Device) -> None:
    torch.manual_seed(3)
    plain = {str(i): torch.randn(size) for i, size in enumerate(sizes())}
    snap = shelf.snapshot(plain)
    targets = {name: torch.zeros_like(tensor) for name, tensor in plain.items()}
    snap.load_into(targets)
    same(plain, targets)
    assert device.begun and device.done == len(device.begun) and device.most_ahead <= 2 * CHUNK
    turned = torch.zeros(10, 70).t()
    shelf.snapshot({"t": torch.arange(700.0).view(70, 10)}).load_into(t=turned)
    assert torch.equal(turned, torch.arange(700.0).view(70, 10))


def test_what_is_copied_later(shelf: lmcstore.Shelf, device: Device) -> None:
    torch.manual_seed(6)
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for step in range(4):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        state = {"p": [torch._neg_view(p.detach()) for p in parameters], "o": optimizer.state_dict()}
        expected = copy.deepcopy({"p": [torch.zeros_like(p).sub_(p.detach()) for p in parameters], "o": state["o"]})
        snap = shelf.snapshot(state, step=step, wait=False, lazy=optimizer)
        optimizer.step()
        found = snap.wait().state_dict()
        same(expected["o"], found["o"])
        assert all(torch.equal(mine, back) for mine, back in zip(expected["p"], found["p"], strict=True))


def test_usual_tensors(shelf: lmcstore.Shelf, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = _torch.Torch.usual

    def on_the_device(self: Any, tensor: torch.Tensor) -> Any:
        found = usual(self, tensor)
        return found and (*found[:-1], False)

    monkeypatch.setattr(_torch.Torch, "usual", on_the_device)
    torch.manual_seed(8)
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes()]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    buffer = torch.randn(30, 40)
    for step in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        shared = {"all": buffer, "again": buffer, "row": buffer[3], "turned": buffer.t()}
        ones = [torch.randn(1, 8)[:, 3], torch.tensor(2.0).expand(1), torch.randn(8).bfloat16()[::4][1:]]
        state = {"p": parameters, "o": optimizer.state_dict(), "b": shared, "ones": ones}
        expected, before = copy.deepcopy(state), len(device.begun)
        snap = shelf.snapshot(state, step=step, wait=False, lazy=optimizer)
        buffer.add_(1)
        optimizer.step()
        found = snap.wait().state_dict()
        same(expected, found)
        assert found["b"]["again"] is found["b"]["all"]
        assert found["b"]["row"].untyped_storage().data_ptr() == found["b"]["all"].untyped_storage().data_ptr()
        copied = sum(target.numel() for target, _ in device.begun[before:])
        assert copied >= 4 * (3 * sum(sizes()) + buffer.numel()) and device.most_ahead <= 2 * CHUNK


def test_what_fails_on_the_way(shelf: lmcstore.Shelf, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {str(i): on_device(torch.randn(size)) for i, size in enumerate(sizes())}
    kept = shelf.snapshot({"a": 1})

    def fail(_: Any, pairs: Any) -> None:
        if len(device.begun) > 5:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        device.begun += pairs

    monkeypatch.setattr(device, "copy", fail)
    with pytest.raises(lmcstore.UnsupportedError, match=r"^\d+: the tensor, or one before it,.* illegal memory access"):
        shelf.snapshot(state)
    assert shelf.latest == kept and shelf.store.verify()["damages"] == 0
    assert shelf.snapshot({"b": torch.ones(3)}).number > kept.number


SPARSE = {
    "coo": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "meta": lambda: torch.empty(4, 4, device="meta"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SPARSE)
def test_sparse_and_meta_are_refused_by_name(shelf: lmcstore.Shelf, kind: str) -> None:
    with pytest.raises(lmcstore.UnsupportedError, match=r"model\.layers\.0.*(sparse|meta)"):
        shelf.snapshot({"model": {"layers": [SPARSE[kind]()]}})
    snap = shelf.snapshot({"a": torch.ones(3), "model": {"w": torch.ones(4, 4)}})
    other = torch.zeros(3)
    with pytest.raises(lmcstore.UnsupportedError, match=r"model\.w.*(sparse|meta)"):
        snap.load_into(a=other, model={"w": SPARSE[kind]()})
    assert not other.any()


def test_a_module_on_meta_is_refused(shelf: lmcstore.Shelf) -> None:
    model = torch.nn.Linear(3, 2)
    snap = shelf.snapshot({"model": model.state_dict()})
    with torch.device("meta"):
        empty = torch.nn.Linear(3, 2)
    with pytest.raises(lmcstore.UnsupportedError, match=r"model\.weight.*meta"):
        snap.load_into(model=empty)


@NEEDS_CUDA
@pytest.mark.parametrize("chunk", [_device.CHUNK_BYTES, 1 << 16])
def test_on_cuda(shelf: lmcstore.Shelf, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(_torch, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(_device.Stage.__init__, "__defaults__", (chunk,))
    torch.manual_seed(4)
    state = {str(i): torch.randn(size, device="cuda") for i, size in enumerate((5, 1 << 12, 3 << 18, 1 << 20, 7))}
    state["turned"] = torch.randn(300, 400, device="cuda").t()
    state["half"] = torch.randn(1 << 18, device="cuda").bfloat16()
    on_host = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
    for tensor in state.values():
        tensor.mul_(1)  # queued work that the copies must wait for
    snap = shelf.snapshot(state)
    for tensor in state.values():
        tensor.zero_()
    same(on_host, snap.state_dict())
    snap.load_into(state)
    same(on_host, {name: tensor.cpu().contiguous() for name, tensor in state.items()})


@NEEDS_CUDA
@pytest.mark.parametrize("way", ["foreach", "fused"])
def test_lazily_on_cuda(shelf: lmcstore.Shelf, way: str) -> None:
    torch.manual_seed(7)
    parameters = [torch.nn.Parameter(torch.randn(1 << 18, device="cuda")) for _ in range(12)]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, **{way: True})
    taken = []
    for _ in range(6):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        state = {"p": parameters, "o": optimizer.state_dict()}
        expected = copy.deepcopy(optimizer.state_dict()), [p.detach().cpu() for p in parameters]
        taken.append((expected, shelf.snapshot(state, wait=False, lazy=optimizer)))
        torch.mm(torch.randn(2000, 2000, device="cuda"), torch.randn(2000, 2000, device="cuda"))
    for (moments, weights), snap in taken:
        back = snap.wait().state_dict()
        same(weights, back["p"])
        for number, entry in moments["state"].items():
            for name, tensor in entry.items():
                assert torch.equal(tensor.cpu(), back["o"]["state"][number][name])
    snap = shelf.snapshot({"p": parameters}, wait=False, lazy=optimizer)
    snap.wait()


@NEEDS_CUDA
def test_training_on_cuda(shelf: lmcstore.Shelf) -> None:
    torch.manual_seed(5)
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    snap = shelf.snapshot({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    other = torch.nn.Linear(512, 512).cuda()
    fresh = torch.optim.AdamW(other.parameters())
    snap.load_into(model=other, optimizer=fresh)
    assert torch.equal(model.weight, other.weight) and fresh.state[other.weight]["exp_avg"].is_cuda


def test_optimizers_on_devices_are_lazy(pool_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = (
        torch.optim.SGD([torch.nn.Parameter(torch.ones(2, device=device))], 0.1) for device in ("cpu", "meta")
    )
    asked: list[Any] = []
    taken = lmcstore.Shelf.snapshot

    def snapshot(self: Any, state: Any, **options: Any) -> Any:
        asked.append((options.pop("lazy"), options["wait"]))
        return taken(self, state, **options)

    monkeypatch.setattr(lmcstore.Shelf, "snapshot", snapshot)
    with Replicated(pool_path, "run") as kept:
        for lazy in None, True, False:
            kept.save(dict, 1, optimizers=[here, there], lazy=lazy)
        kept.save(dict, 1, optimizers=[here])
    assert asked == [([there], False), ([here, there], False), (None, True), (None, False)]
