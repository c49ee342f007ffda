# SPDX-License-Identifier: BSD-3-Clause
"""Differences of snapshots against PyTorch and NumPy."""

from __future__ import annotations

import math

import lmcstore
import numpy
import pytest
from optional import ml_dtypes, torch


def pair(shelf: lmcstore.Shelf, before: object, after: object, **options: object) -> lmcstore.Diff:
    a = shelf.snapshot(before)
    return a.diff(shelf.snapshot(after), **options)  # type: ignore[arg-type]


def close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-300) or (math.isnan(a) and math.isnan(b))


def expected(before: numpy.ndarray, after: numpy.ndarray) -> tuple[float, ...]:
    a, b = before.ravel(), after.ravel()
    if not numpy.iscomplexobj(a):
        a, b = a.astype(numpy.float64), b.astype(numpy.float64)
    fine = numpy.isfinite(a) & numpy.isfinite(b)
    x, y = a[fine].astype(numpy.complex128), b[fine].astype(numpy.complex128)
    lengths = math.sqrt((abs(x) ** 2).sum()) * math.sqrt((abs(y) ** 2).sum())
    return (
        abs(y - x).max(initial=0),
        math.sqrt((abs(y - x) ** 2).mean()) if len(x) else 0.0,
        (x * y.conj()).real.sum() / lengths if lengths else math.nan,
    )


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "c8", "c16", "i1", "i2", "i4", "u1", "u2", "u4", "?"])
def test_numbers_are_those_of_numpy(shelf: lmcstore.Shelf, dtype: str) -> None:
    rng = numpy.random.default_rng(5)
    scale = 1 if dtype == "?" else 100
    before = (scale * rng.standard_normal((301, 7))).round().clip(0 if dtype[0] in "u?" else None).astype(dtype)
    after = before.copy()
    after[::3] = 1 if dtype == "?" else 7
    if dtype[0] in "fc":
        before[0, 0], after[1, 1], before[2, 2], after[2, 2] = math.nan, math.inf, math.nan, math.nan
    (d,) = (item for item in pair(shelf, {"x": before}, {"x": after}) if not item.is_attachment)
    most, rms, cosine = expected(before, after)
    assert d.kind == "changed" and d.elements == before.size
    size = before.dtype.itemsize
    a, b = before.view(f"V{size}").ravel(), after.view(f"V{size}").ravel()
    assert d.changed == sum(x.tobytes() != y.tobytes() for x, y in zip(a, b, strict=True))
    assert d.not_finite_before == (~numpy.isfinite(before)).sum()
    assert d.not_finite_after == (~numpy.isfinite(after)).sum()
    assert close(d.max_change, most) and close(d.rms_change, rms) and close(d.cosine, cosine)


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
def test_every_pattern_of_a_small_float(shelf: lmcstore.Shelf, name: str) -> None:
    dtype = numpy.dtype(getattr(ml_dtypes, name))
    bits = numpy.arange(256**dtype.itemsize, dtype=f"u{dtype.itemsize}")
    before, after = bits.view(dtype), bits[::-1].copy().view(dtype)
    (d,) = (item for item in pair(shelf, {"x": before}, {"x": after}) if not item.is_attachment)
    wild = ~numpy.isfinite(before.astype(numpy.float64))
    assert d.not_finite_before == d.not_finite_after == wild.sum()
    most, rms, cosine = expected(before.astype(numpy.float64), after.astype(numpy.float64))
    assert close(d.max_change, most) and close(d.rms_change, rms) and close(d.cosine, cosine)


def test_kinds_of_differences(shelf: lmcstore.Shelf) -> None:
    same, moved = torch.ones(10), torch.zeros(10)
    before = {"same": same, "moved": moved, "gone": torch.ones(2), "form": torch.ones(4)}
    after = {"same": same, "moved": moved + 1, "new": torch.ones(3), "form": torch.ones(2, 2)}
    found = pair(shelf, before, after)
    kinds = {item.name: item.kind for item in found if not item.is_attachment}
    assert kinds == {"moved": "changed", "form": "reshaped", "new": "added", "gone": "removed"}
    moved_diff = found["moved"]
    assert (moved_diff.changed_share, moved_diff.max_change, moved_diff.rms_after) == (1.0, 1.0, 1.0)
    assert math.isnan(moved_diff.cosine) and math.isnan(moved_diff.relative_change)
    assert found["form"].before == ("f32", (4,)) and found["form"].after == ("f32", (2, 2))
    assert found["gone"].after is None and found["new"].before is None
    assert found.report["added"] == 1
    with pytest.raises(KeyError):
        found["same"]
    listed = shelf[1].diff(shelf[2], same=True, numbers=False)
    assert listed["same"].kind == "same" and listed["moved"].max_change == 0
    assert listed.report["bytes_compared"] == 0


def test_it_prints_as_a_table(shelf: lmcstore.Shelf) -> None:
    found = pair(shelf, {"a<b": torch.ones(10), "c": torch.ones(2)}, {"a<b": torch.ones(10) * 2, "c": torch.ones(2)})
    text = repr(found)
    assert text.splitlines()[0] == "run@1 to run@2: 1 changed, 0 reshaped, 0 added, 0 removed, 2 same"
    assert "100.00%" in text and "1.00000000" in text and "f32 10" in text
    assert "a&lt;b" in found._repr_html_() and "a<b" not in found._repr_html_()
    nothing = shelf[1].diff(shelf[1])
    assert len(nothing) == 0 and repr(nothing).count("\n") == 0


def test_what_is_stored_as_a_delta_is_compared_the_same(shelf: lmcstore.Shelf) -> None:
    weight = torch.randn(700, 700, generator=torch.Generator().manual_seed(1))
    for _ in range(4):
        weight = weight * 1.001
        shelf.snapshot({"w": weight})
    raw = shelf[1].diff(shelf[3])["w"]
    shelf.keep_raw = 1
    shelf.store.compact()
    assert shelf[1].storage()["longest_chain"] > 0
    assert shelf[1].diff(shelf[3])["w"] == raw
    branch = shelf[1].fork("branch")
    assert branch[1].diff(shelf[3])["w"] == raw


def test_what_can_not_be_compared(store: lmcstore.Store, shelf: lmcstore.Shelf, tmp_path: object) -> None:
    snapshot = shelf.snapshot({"a": torch.ones(3)})
    with lmcstore.open(f"{tmp_path}/other.pool", size="16MiB") as other:
        stranger = other["run"].snapshot({"a": torch.ones(3)})
        with pytest.raises(lmcstore.InvalidError, match="one pool"):
            snapshot.diff(stranger)
    with pytest.raises(lmcstore.UnsupportedError):
        snapshot.diff(3)  # type: ignore[arg-type]
    after = shelf.snapshot({"a": torch.zeros(3)})

    class Stop(Exception):
        pass

    def progress(*_: object) -> None:
        raise Stop

    with pytest.raises(Stop):
        snapshot.diff(after, progress=progress)
    shelf.remove(1)
    with pytest.raises(lmcstore.NotFoundError):
        snapshot.diff(after)
