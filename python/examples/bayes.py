# SPDX-License-Identifier: BSD-3-Clause
"""A Bayesian neural network whose posterior does not fit in memory.

Stochastic-gradient Hamiltonian Monte Carlo with cyclical steps draws thousands of samples of the posterior, each a row
of an array on a shelf. The prediction is the average over all, streamed from the pool: as many noisy digits right as by
one network trained the usual way, with better calibrated probabilities.

Method: R. Zhang, C. Li, J. Zhang, C. Chen and A. G. Wilson, "Cyclical Stochastic Gradient MCMC for Bayesian Deep
Learning" (ICLR 2020), after T. Chen, E. Fox and C. Guestrin, "Stochastic Gradient Hamiltonian Monte Carlo" (ICML 2014).
Calibration: C. Guo, G. Pleiss, Y. Sun and K. Q. Weinberger, "On Calibration of Modern Neural Networks" (ICML 2017).
Images: scikit-learn's digits (UCI's optical recognition of handwritten digits).

Run it::

    python bayes.py                     # samples in memory
    python bayes.py --shelf /data       # samples in a pool in that folder
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from gmra import Array, Memory, Place, Shelf

CLASSES = 10


# ---- The data ---------------------------------------------------------------------------------------------------


def digits(train: int, noise: float = 1.0, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """Return images and labels to learn from, and to test with: (n, 64) float32 and (n,) int64.

    Pixels are between -1 and 1, with Gaussian noise of that standard deviation.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(images))
    images = ((images[order] - 8) / 8 + noise * rng.standard_normal(images.shape)).astype(np.float32)
    labels = labels[order].astype(np.int64)
    return images[:train], labels[:train], images[train:], labels[train:]


# ---- The network ------------------------------------------------------------------------------------------------


class Network:
    """Two hidden layers, whose weights are one row of numbers."""

    def __init__(self, inputs: int, width: int):
        self.shapes = [(inputs, width), (width,), (width, width), (width,), (width, CLASSES), (CLASSES,)]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.count = sum(self.sizes)
        self.precision = np.ones(self.count, np.float32)  # of the prior: Gaussian, four times as wide as draw()
        for part in self.parts(self.precision)[::2]:
            part[:] = part.shape[0] / 32

    def parts(self, row: Array) -> list[Array]:
        """Return the weights of a row as matrices and vectors in its memory."""
        ends = np.cumsum(self.sizes)
        return [
            row[end - size : end].reshape(shape) for end, size, shape in zip(ends, self.sizes, self.shapes, strict=True)
        ]

    def draw(self, rng: np.random.Generator) -> Array:
        """Draw initial weights."""
        row = np.zeros(self.count, np.float32)
        for part in self.parts(row)[::2]:
            part[:] = rng.normal(size=part.shape) * np.sqrt(2 / part.shape[0])
        return row

    def log_probabilities(self, row: Array, images: Array) -> Array:
        """Compute the logarithms of the classes' probabilities, (n, classes)."""
        return self._forward(row, images)[-1]

    def _forward(self, row: Array, images: Array) -> list[Array]:
        w1, b1, w2, b2, w3, b3 = self.parts(row)
        one = np.maximum(images @ w1 + b1, 0)
        two = np.maximum(one @ w2 + b2, 0)
        out = two @ w3 + b3
        out -= out.max(1, keepdims=True)
        out -= np.log(np.exp(out).sum(1, keepdims=True))
        return [images, one, two, out]

    def gradient(self, row: Array, images: Array, labels: Array) -> Array:
        """Compute the gradient of the negative log posterior: summed cross-entropy, and a Gaussian prior."""
        inputs, one, two, out = self._forward(row, images)
        w2, w3 = self.parts(row)[2], self.parts(row)[4]
        result = np.empty_like(row)
        g1, gb1, g2, gb2, g3, gb3 = self.parts(result)
        delta = np.exp(out)
        delta[np.arange(len(labels)), labels] -= 1
        g3[:], gb3[:] = two.T @ delta, delta.sum(0)
        delta = (delta @ w3.T) * (two > 0)
        g2[:], gb2[:] = one.T @ delta, delta.sum(0)
        delta = (delta @ w2.T) * (one > 0)
        g1[:], gb1[:] = inputs.T @ delta, delta.sum(0)
        result += self.precision * row
        return result


# ---- Learning ---------------------------------------------------------------------------------------------------


def train(network: Network, images: Array, labels: Array, steps: int, seed: int) -> Array:
    """Train one network to the mode: momentum, cosine schedule."""
    rng = np.random.default_rng(seed)
    row, velocity = network.draw(rng), np.zeros(network.count, np.float32)
    for step in range(steps):
        rate = 0.05 * (1 + math.cos(math.pi * step / steps)) / len(labels)
        velocity = 0.9 * velocity - rate * network.gradient(row, images, labels)
        row = row + velocity
    return row


def samples_of(
    network: Network, images: Array, labels: Array, count: int, per_cycle: int, seed: int
) -> Iterator[Array]:
    """Draw weights from the posterior, one row after another.

    Each cycle begins at new weights, descends with large steps, then samples with small ones.
    """
    rng = np.random.default_rng(seed)
    down, between, friction = 200, 5, 0.1
    given = 0
    while given < count:
        row, velocity = network.draw(rng), np.zeros(network.count, np.float32)
        for step in range(down + between * per_cycle):
            sampling = step >= down
            rate = 0.01 / len(labels) if sampling else 0.05 * (1 - 0.8 * step / down) / len(labels)
            velocity = (1 - friction) * velocity - rate * network.gradient(row, images, labels)
            if sampling:
                velocity += rng.standard_normal(network.count, np.float32) * np.float32(math.sqrt(2 * friction * rate))
            row = row + velocity
            if sampling and (step - down) % between == between - 1 and given < count:
                given += 1
                yield row


def posterior(place: Place, network: Network, rows: Iterator[Array], count: int) -> Array:
    """Store samples as they come: an array of shape (count, weights)."""
    samples = place.empty("samples", (count, network.count))
    for i, row in enumerate(rows):
        samples[i] = row
    return samples


def predict(network: Network, samples: Array, images: Array) -> Array:
    """Average the classes' probabilities over all samples."""
    total = np.zeros((len(images), CLASSES))
    for row in samples:
        total += np.exp(network.log_probabilities(np.asarray(row), images))
    return total / len(samples)


# ---- Results ---------------------------------------------------------------------------------------------------


def scores(probabilities: Array, labels: Array) -> dict[str, float]:
    """Measure accuracy and calibration: see README.md."""
    there = np.arange(len(labels))
    right = probabilities.argmax(1) == labels
    confidence = probabilities.max(1)
    bins = np.minimum((confidence * 15).astype(int), 14)
    gaps = [abs(float((right[bins == b] - confidence[bins == b]).sum())) for b in range(15)]
    truth = np.zeros_like(probabilities)
    truth[there, labels] = 1
    return {
        "accuracy": float(right.mean()),
        "nll": float(-np.log(np.maximum(probabilities[there, labels], 1e-12)).mean()),
        "ece": sum(gaps) / len(labels),
        "brier": float(np.square(probabilities - truth).sum(1).mean()),
    }


def run(place: Place, count: int, width: int, per_cycle: int = 50, learn_from: int = 400) -> dict[str, Any]:
    """Train the single network and sample the posterior."""
    images, labels, test_images, test_labels = digits(learn_from)
    network = Network(images.shape[1], width)
    begin = time.perf_counter()
    single = train(network, images, labels, 600, seed=1)
    trained = time.perf_counter()
    samples = posterior(place, network, samples_of(network, images, labels, count, per_cycle, seed=2), count)
    drawn = time.perf_counter()
    averaged = predict(network, samples, test_images)
    done = time.perf_counter()
    return {
        "samples": count,
        "weights": network.count,
        "samples_bytes": samples.nbytes,
        "single": scores(np.exp(network.log_probabilities(single, test_images)).astype(np.float64), test_labels),
        "posterior": scores(averaged, test_labels),
        "seconds": {"train": trained - begin, "sample": drawn - trained, "predict": done - drawn},
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "result": averaged.sum(0).round(6).tolist(),
    }


def show(report: dict[str, Any]) -> None:
    """Print a report."""
    print(f"{report['samples']:,} samples of {report['weights']:,} weights, {report['samples_bytes'] / 2**20:.0f} MiB")
    print(f"{'':<10} {'accuracy':>8} {'nll':>8} {'ece':>8} {'brier':>8}")
    for what in ("single", "posterior"):
        print(f"{what:<10} " + " ".join(f"{report[what][k]:>8.4f}" for k in ("accuracy", "nll", "ece", "brier")))
    print(", ".join(f"{what} {seconds:.1f} s" for what, seconds in report["seconds"].items()), end="; ")
    print(f"peak {report['peak_bytes'] / 2**20:.0f} MiB")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="a network's posterior as stored samples, in memory or on a shelf")
    parser.add_argument("--shelf", metavar="FOLDER", help="keep the samples in a pool in this folder")
    parser.add_argument("--samples", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--width", type=int, default=128, help="of a hidden layer (default: 128)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    words = parser.parse_args()
    place: Place = Shelf(words.shelf, "bayes") if words.shelf else Memory()
    report = run(place, words.samples, words.width)
    if words.json:
        json.dump(report, sys.stdout)
    else:
        show(report)


if __name__ == "__main__":
    main()
