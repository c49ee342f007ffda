# SPDX-License-Identifier: BSD-3-Clause
"""States to try: real training scripts', and each type at its edges."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
from optional import HAS_TORCH, torch

_TORCH_DTYPE_NAMES = """
    bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64
    complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2
"""
TORCH_DTYPES = [getattr(torch, name) for name in _TORCH_DTYPE_NAMES.split() if HAS_TORCH and hasattr(torch, name)]
NUMPY_DTYPES = "?bBhHiIlLqQefdFD"

QUIET_NAN = struct.unpack("<d", bytes.fromhex("efbeadde0000f87f"))[0]


def of_dtype(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = math.prod(shape) * dtype.itemsize
    values = torch.arange(count, dtype=torch.int64).mul(37).add(11).remainder(256).to(torch.uint8)
    if dtype is torch.bool:
        values = values.remainder(2)
    return (
        torch.frombuffer(bytearray(values.numpy().tobytes()), dtype=dtype).view(shape)
        if count
        else torch.empty(shape, dtype=dtype)
    )


def scalars() -> dict[str, Any]:
    """Leaves that are no tensors."""
    return {
        "none": None,
        "true": True,
        "false": False,
        "zero": 0,
        "one": 1,
        "minus": -1,
        "edges": [2**31, -(2**31), 2**63 - 1, -(2**63), 2**63, 2**64, 2**128 + 1, -(2**200)],
        "huge": 3**20000,
        "float": 0.1,
        "floats": [0.0, -0.0, math.inf, -math.inf, math.nan, QUIET_NAN, 5e-324, 1e308],
        "complex": complex(-0.0, math.nan),
        "str": "Grüße, 世界 🙂",
        "empty": "",
        "controls": "a\0b\nc",
        "surrogate": "\ud83d\ude00 \udc80",
        "bytes": bytes(range(256)),
        "bytearray": bytearray(b"xyz"),
        "long": "x" * 100_000,
        "longer": b"y" * 1_000_000,
        "mixed": (1, 1.0, True, None, "1", b"1", 1j),
        "set": {1, "a", None, (2, 3.5), frozenset({4})},
        "frozenset": frozenset({1, 2}),
        "size": torch.Size([2, 3]),
        "no size": torch.Size([]),
        "dtypes": [torch.float32, torch.bfloat16, torch.bool],
        "devices": [torch.device("cpu"), torch.device("cuda", 1), torch.device("cuda"), torch.device("meta")],
        "numpy": [np.dtype(char).type(1) for char in NUMPY_DTYPES],
        "numpy nan": np.frombuffer(bytes.fromhex("0100c07f"), "f4")[0],
    }


def containers() -> dict[str, Any]:
    metadata = OrderedDict([("a", {"version": 2})])
    ordered = OrderedDict([("b", 1), ("a", torch.ones(2))])
    ordered._metadata = metadata  # type: ignore[attr-defined]
    return {
        "empty": [{}, [], (), set(), frozenset(), OrderedDict(), Counter()],
        "order": {"z": 1, "a": 2, "m": 3},
        "ordered": ordered,
        "counter": Counter({100: 1, 200: 2}),
        "keys": {
            "s": 1,
            1: torch.zeros(1),
            "1": torch.ones(1),
            2.5: 3,
            -2.5e300: 4,
            False: 4,
            None: 5,
            b"b": torch.zeros(2),
            (1, ("x", 2)): torch.ones(2),
            frozenset({1}): 6,
            2**70: torch.zeros(3),
            1j: 7,
            torch.float32: 8,
            np.int64(77): 9,
            torch.Size([1]): 10,
        },
        "odd names": {
            "": torch.zeros(1),
            "~": torch.ones(1),
            "a.b": torch.zeros(2),
            "a": {"b": torch.ones(2), "": torch.zeros(3)},
            "line\nbreak": torch.zeros(4),
            "\udc80": torch.zeros(5),
            "x" * 2000: torch.zeros(6),
            "x" * 2001: {"y": torch.zeros(7)},
            "世界": torch.zeros(8),
            "🙂" * 300: torch.zeros(9),
        },
        "deep": [[[[[[(torch.ones(1), [2.0, {"x": ()}])]]]]]],
    }


def tensors() -> dict[str, Any]:
    base = torch.arange(120, dtype=torch.float32).view(4, 5, 6)
    grid = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    return {
        "dtypes": {str(dtype): of_dtype(dtype, 3, 5) for dtype in TORCH_DTYPES},
        "scalars": {str(dtype): of_dtype(dtype) for dtype in TORCH_DTYPES},
        "empties": {str(dtype): of_dtype(dtype, 0, 7) for dtype in TORCH_DTYPES},
        "strided": [base.transpose(0, 2), base[::2, 1:, ::3], base[1], base.expand(2, 4, 5, 6), base[..., :0]],
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "nan": torch.tensor([0x7FC00001, -1, 0x7F800001], dtype=torch.int32).view(torch.float32),
        "conjugated": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "negated": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "large": torch.randn(300, 1000),
        "arrays": {char: np.arange(6).astype(char).reshape(2, 3) for char in NUMPY_DTYPES},
        "big-endian": [np.arange(6, dtype=">f4").reshape(2, 3)[:, ::-1], np.array(1, ">i8"), np.zeros((0, 2), ">c16")],
        "array views": [grid[::-1], grid.T, grid[:, ::2, ::-2], grid[1, 2, 3:4], np.broadcast_to(grid[0], (2, 4, 5))],
        "zero-dimensional": np.array(3.5),
        "empty array": np.zeros((3, 0), np.float16),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }


def random_states() -> dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "pcg64": np.random.default_rng(1).bit_generator.state,
        "philox": np.random.Generator(np.random.Philox(2)).bit_generator.state,
        "torch": torch.get_rng_state(),
    }


def training(steps: int = 2) -> tuple[dict[str, Any], Any]:
    """A small training run: its objects by name, and a function that takes a step."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[2, 4, 4])
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().sum().backward()
        optimizer.step()
        scheduler.step()

    for _ in range(steps):
        step()
    return objects, step


def training_state(objects: dict[str, Any]) -> dict[str, Any]:
    return {name: value.state_dict() for name, value in objects.items()} | {"rng": torch.get_rng_state()}
