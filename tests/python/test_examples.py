# SPDX-License-Identifier: BSD-3-Clause
"""Examples of data larger than memory: right results, equal in memory and on a shelf."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "python/examples"
sys.path.insert(0, str(EXAMPLES))

import bayes  # noqa: E402
import gmra  # noqa: E402


@pytest.fixture(params=["memory", "shelf"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> gmra.Place:
    if request.param == "memory":
        return gmra.Memory()
    return gmra.Shelf(tmp_path)


@pytest.fixture
def tree(place: gmra.Place, monkeypatch: pytest.MonkeyPatch) -> tuple[gmra.Tree, np.ndarray]:
    monkeypatch.setattr(gmra, "BLOCK_BYTES", 100_000)
    points = gmra.draw_points(place, 3000, 12)
    return gmra.build_tree(place, points, 20), np.array(points)


def test_a_cover_tree(tree: tuple[gmra.Tree, np.ndarray]) -> None:
    made, points = tree
    assert len(made.levels) > 3
    np.testing.assert_array_equal(np.sort(made.index), np.arange(len(points)))
    np.testing.assert_array_equal(made.points, points[made.index])
    for number, level in enumerate(made.levels):
        apart = np.sqrt(gmra.square_distances(level.centres, level.centres))
        np.fill_diagonal(apart, np.inf)
        assert apart.min() > level.radius * (1 - 1e-6)
        assert level.bounds[0] == 0 and level.bounds[-1] == len(points) and (np.diff(level.bounds) > 0).all()
        if number == 0:
            continue
        above = made.levels[number - 1]
        assert level.radius == above.radius / 2
        assert set(map(bytes, above.centres)) <= set(map(bytes, level.centres))
        to_parent = np.linalg.norm(level.centres - above.centres[level.parent], axis=1)
        assert to_parent.max() <= above.radius * (1 + 1e-6)
        assert (np.diff(level.parent) >= 0).all()
    last = made.levels[-1]
    members = np.repeat(np.arange(len(last.centres)), np.diff(last.bounds))
    assert np.linalg.norm(made.points - last.centres[members], axis=1).max() <= last.radius * (1 + 1e-6)


def test_points_come_back_from_their_coefficients(place: gmra.Place, tree: tuple[gmra.Tree, np.ndarray]) -> None:
    made, _ = tree
    analysis = gmra.analyse(place, made)
    coefficients, errors = gmra.transform(place, analysis)
    assert all(finer < coarser / 2 for coarser, finer in itertools.pairwise(errors))
    leaf = len(made.levels[-1].bounds) // 2
    rows = slice(*(int(bound) for bound in made.levels[-1].bounds[leaf : leaf + 2]))
    again = gmra.reconstruct(analysis, leaf, np.asarray(coefficients[rows]))
    cell = gmra.chain_of(analysis, leaf)[-1]
    np.testing.assert_allclose(again, gmra.project(analysis, cell, np.asarray(made.points[rows])), atol=1e-5)
    for number in gmra.chain_of(analysis, leaf):
        lengths = np.linalg.norm(analysis.basis[number], axis=1)
        np.testing.assert_allclose(lengths[lengths > 0], 1, atol=1e-5)


def test_a_shelf_gives_what_memory_gives(tmp_path: Path) -> None:
    reports = [gmra.run(place, 4000, 16, cell_points=32) for place in (gmra.Memory(), gmra.Shelf(tmp_path))]
    assert reports[0]["result"] == reports[1]["result"]
    assert reports[0]["levels"] == reports[1]["levels"]


def test_gradients() -> None:
    network = bayes.Network(5, 7)
    rng = np.random.default_rng(1)
    row = network.draw(rng).astype(np.float64)
    images, labels = rng.normal(size=(9, 5)), rng.integers(0, 10, 9)

    def energy(at: np.ndarray) -> float:
        fit = -network.log_probabilities(at, images)[np.arange(9), labels].sum()
        return float(fit + (network.precision * at**2).sum() / 2)

    gradient = network.gradient(row, images, labels)
    for i in rng.integers(0, network.count, 20):
        step = np.zeros(network.count)
        step[i] = 1e-6
        assert gradient[i] == pytest.approx((energy(row + step) - energy(row - step)) / 2e-6, rel=1e-4, abs=1e-6)


def test_scores() -> None:
    sure = np.eye(10)[[1, 2, 3, 4]] * 0.91 + 0.009
    told = bayes.scores(sure, np.array([1, 2, 3, 5]))
    assert told["accuracy"] == 0.75
    assert told["ece"] == pytest.approx(0.919 - 0.75)
    assert told["nll"] == pytest.approx(-(3 * np.log(0.919) + np.log(0.009)) / 4)


def test_a_posterior_knows_how_far_to_trust_it(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn has the digits")
    reports = [bayes.run(place, 60, 48, per_cycle=20) for place in (bayes.Memory(), bayes.Shelf(tmp_path, "bayes"))]
    assert reports[0]["result"] == reports[1]["result"]
    single, posterior = reports[0]["single"], reports[0]["posterior"]
    assert posterior["nll"] < single["nll"] and posterior["ece"] < single["ece"]
    assert posterior["accuracy"] > single["accuracy"] - 0.03
