# SPDX-License-Identifier: BSD-3-Clause
"""Geometric multi-resolution analysis of points that need not fit in memory.

A cover tree sorts the points into cells, finer from level to level. Each cell has a plane: its mean and its leading
principal directions. A wavelet leads from a plane to those below it, with few numbers a point; so points near a curved
surface become a small dictionary and short coefficients.

Points (in the tree's order: a cell is one range of rows), dictionary and coefficients are on a shelf. Memory holds a
block of rows at a time, and 16 bytes a point.

Methods: A. Beygelzimer, S. Kakade and J. Langford, "Cover trees for nearest neighbor" (ICML 2006), built level by
level; W. K. Allard, G. Chen and M. Maggioni, "Multi-scale geometric methods for data sets II: Geometric
Multi-Resolution Analysis" (Applied and Computational Harmonic Analysis 32, 2012).

Run it::

    python gmra.py                             # in memory
    python gmra.py --shelf /data --mib 2048    # 2 GiB of points in a pool in that folder
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 16 << 20  # of rows in memory at a time
Array = NDArray[Any]


class Place(Protocol):
    """Where the large arrays are."""

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """Make an array, replacing one of this name."""

    def drop(self, name: str) -> None:
        """Release the array of this name, which must have no references."""


class Memory:
    """Arrays in memory."""

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """Make an array."""
        return np.empty(shape, dtype)

    def drop(self, name: str) -> None:
        """Do nothing: references keep an array."""


class Shelf:
    """Arrays on a shelf of a pool in `folder`, which grows with them."""

    def __init__(self, folder: str | Path, name: str = "gmra"):
        import pymm

        self.pymm = pymm
        self.shelf = pymm.shelf(name, pmem_path=str(folder), size_mb=64, force_new=True)

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        """Make an array on the shelf."""
        setattr(self.shelf, name, self.pymm.ndarray(shape, dtype=dtype))
        array: Array = getattr(self.shelf, name)
        return array

    def drop(self, name: str) -> None:
        """Erase it and free its file space."""
        self.shelf.erase(name)


def blocks(count: int, row_bytes: int) -> Iterator[slice]:
    """Yield the ranges of rows of a block each."""
    step = max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


# ---- Points -----------------------------------------------------------------------------------------------------


def draw_points(place: Place, count: int, dimension: int, intrinsic: int = 2, seed: int = 1) -> Array:
    """Draw noisy points near a curved surface: `intrinsic` coordinates, bent into all `dimension` directions.

    Returns a float32 array of shape (count, dimension), made block by block.
    """
    rng = np.random.default_rng(seed)
    waves = rng.normal(size=(intrinsic, dimension)) * 1.5
    phase = rng.uniform(0, 2 * np.pi, dimension)
    scale = 1 / np.sqrt(dimension)
    points = place.empty("points", (count, dimension))
    for rows in blocks(count, 8 * dimension):
        inner = rng.uniform(-1, 1, (rows.stop - rows.start, intrinsic))
        bent = np.sin(inner @ waves + phase) * scale
        points[rows] = bent + rng.normal(size=bent.shape) * (1e-3 * scale)
    return points


# ---- The cover tree ---------------------------------------------------------------------------------------------


@dataclass
class Level:
    """One level of a cover tree, of K cells.

    Each cell's centre is one of the points. Centres are more than `radius` apart, all are centres of the next level
    too, and each is within the radius of the level above of its parent there. Cells of one parent follow each other,
    and cell k holds the points from bounds[k] to bounds[k + 1].
    """

    radius: float
    centres: Array  # (K, dimension), float64
    parent: Array  # (K,) of the level above
    bounds: Array  # (K + 1,)


@dataclass
class Tree:
    """A cover tree, and the points in its order: row i was row index[i] of the input."""

    levels: list[Level]
    points: Array  # (count, dimension), at a place
    index: Array  # (count,)


def square_distances(a: Array, b: Array) -> Array:
    """Return the squared distances of the rows of `a` from those of `b`, all near the origin."""
    squares = np.einsum("ij,ij->i", a, a)[:, None] + np.einsum("ij,ij->i", b, b)[None, :] - 2 * (a @ b.T)
    return np.asarray(np.maximum(squares, 0))


def cell_blocks(bounds: Array, row_bytes: int) -> Iterator[tuple[int, slice]]:
    """Yield every cell with its rows; a large cell in several blocks."""
    for cell in range(len(bounds) - 1):
        start, stop = int(bounds[cell]), int(bounds[cell + 1])
        for rows in blocks(stop - start, row_bytes):
            yield cell, slice(start + rows.start, start + rows.stop)


def root_of(points: Array) -> Level:
    """Make the first level: the first point, and all others around it."""
    root = points[0].astype(np.float64)
    farthest = 0.0
    for rows in blocks(len(points), 8 * points.shape[1]):
        away = points[rows] - root
        farthest = max(farthest, float(np.einsum("ij,ij->i", away, away).max()))
    return Level(np.sqrt(farthest), root[None], np.zeros(1, np.int64), np.array([0, len(points)]))


def near_cells(level: Level) -> list[Array]:
    """List for each cell those whose points may be within half a radius of its own."""
    centres = level.centres - level.centres.mean(0)
    reach = (2.5 * level.radius) ** 2 * (1 + 1e-9)
    near = []
    for rows in blocks(len(centres), 8 * len(centres)):
        near.extend(np.flatnonzero(line) for line in square_distances(centres[rows], centres) <= reach)
    return near


class Refinement:
    """Makes a level from the one above it."""

    def __init__(self, points: Array, level: Level):
        self.points, self.level = points, level
        self.radius = level.radius / 2
        self.near = near_cells(level)
        self.centres = list(level.centres)
        self.parent = list(range(len(level.centres)))
        self.children = [[cell] for cell in range(len(level.centres))]

    def candidates(self, cell: int) -> list[int]:
        """List the new centres to which a point of the cell may belong."""
        return [child for other in self.near[cell] for child in self.children[other]]

    def find_centres(self) -> None:
        """Add centres until every point has one within the new radius."""
        bound = self.radius**2
        for cell, rows in cell_blocks(self.level.bounds, 8 * self.points.shape[1]):
            origin = self.level.centres[cell]
            block = self.points[rows] - origin
            there = np.array([self.centres[i] for i in self.candidates(cell)]) - origin
            far = np.flatnonzero(square_distances(block, there).min(1) > bound)
            while len(far) > 0:
                centre = block[far[0]]
                self.children[cell].append(len(self.centres))
                self.parent.append(cell)
                self.centres.append(centre + origin)
                away = block[far[1:]] - centre
                far = far[1:][np.einsum("ij,ij->i", away, away) > bound]

    def assign(self) -> Array:
        """Assign each point to the nearest of the new centres."""
        members = np.empty(len(self.points), np.int64)
        for cell, rows in cell_blocks(self.level.bounds, 8 * self.points.shape[1]):
            origin = self.level.centres[cell]
            candidates = np.array(self.candidates(cell))
            there = np.array([self.centres[i] for i in candidates]) - origin
            members[rows] = candidates[square_distances(self.points[rows] - origin, there).argmin(1)]
        return members


def refine(tree: Tree, place: Place, free_name: str) -> None:
    """Add a level, and move the points into its order, to the array of that name."""
    refinement = Refinement(tree.points, tree.levels[-1])
    refinement.find_centres()
    members = refinement.assign()
    parent = np.array(refinement.parent)
    order = np.argsort(parent, kind="stable")  # cells of one parent follow each other
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    members = rank[members]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(members, minlength=len(order)))])
    tree.levels.append(Level(refinement.radius, np.array(refinement.centres)[order], parent[order], bounds))
    moves = np.argsort(members, kind="stable")
    moved = place.empty(free_name, tree.points.shape, tree.points.dtype)
    for rows in blocks(len(moves), tree.points.strides[0]):
        moved[rows] = tree.points[moves[rows]]
    tree.points, tree.index = moved, tree.index[moves]


def build_tree(place: Place, points: Array, cell_points: int = 64, most_levels: int = 30) -> Tree:
    """Sort points into a cover tree whose last cells hold about `cell_points` on average.

    Points move into the tree's order: arrays "sorted 0" and "sorted 1" take turns.
    """
    tree = Tree([root_of(points)], points, np.arange(len(points)))
    del points
    for turn in range(1, most_levels):
        if len(tree.points) < 2 * cell_points * len(tree.levels[-1].centres) or tree.levels[-1].radius == 0:
            break
        refine(tree, place, f"sorted_{turn % 2}")
        if turn > 1:
            place.drop(f"sorted_{(turn + 1) % 2}")
    # A point's cells are those that its last one came from.
    for level, below in zip(tree.levels[-2::-1], tree.levels[:0:-1], strict=True):
        first = np.searchsorted(below.parent, np.arange(len(level.centres) + 1))
        level.bounds = below.bounds[first]
    return tree


# ---- The analysis -----------------------------------------------------------------------------------------------


@dataclass
class Analysis:
    """The planes and wavelets of a tree's cells, level after level: level j has cells first[j] to first[j + 1]."""

    tree: Tree
    planes: int  # dimensions of a plane
    first: Array
    mean: Array  # (cells, dimension), at a place, as the following
    basis: Array  # (cells, planes, dimension): orthonormal rows; zeros where a cell has too few points
    shift: Array  # (cells, dimension): from the plane above to the mean, where it leaves that plane
    wavelet: Array  # (cells, planes, dimension): orthonormal rows of the directions that the plane above lacks


def leading(scatter: Array, count: int) -> Array:
    """Return the leading eigenvectors as rows, zeros for those without variance, with consistent signs."""
    values, vectors = np.linalg.eigh(scatter)
    rows = vectors.T[: -count - 1 : -1]
    rows = rows * (values[: -count - 1 : -1] > max(values[-1], 0) * 1e-12)[:, None]
    largest = rows[np.arange(count), np.abs(rows).argmax(1)]
    return np.asarray(rows * np.where(largest < 0, -1, 1)[:, None])


def plane_of(points: Array, rows: slice, planes: int) -> tuple[Array, Array]:
    """Fit a cell's plane: mean of its points, principal directions as rows."""
    dimension, count = points.shape[1], rows.stop - rows.start
    total, scatter = np.zeros(dimension), np.zeros((dimension, dimension))
    for part in blocks(count, 8 * dimension):
        total += points[rows][part].sum(0, dtype=np.float64)
    mean = total / count
    for part in blocks(count, 8 * dimension):
        centred = points[rows][part] - mean
        scatter += centred.T @ centred
    return mean, leading(scatter, planes)


def wavelet_of(basis: Array, above: Array) -> Array:
    """Return rows that together with the plane above span a plane."""
    rest = basis - (basis @ above.T) @ above
    _, sizes, rows = np.linalg.svd(rest, full_matrices=False)
    return np.asarray(rows * (sizes > 1e-6)[:, None])


def analyse(place: Place, tree: Tree, planes: int = 2) -> Analysis:
    """Fit planes of that many dimensions to all cells, and the wavelets between them."""
    first = np.concatenate([[0], np.cumsum([len(level.parent) for level in tree.levels])])
    cells, dimension = int(first[-1]), tree.points.shape[1]
    result = Analysis(
        tree,
        planes,
        first,
        mean=place.empty("mean", (cells, dimension)),
        basis=place.empty("basis", (cells, planes, dimension)),
        shift=place.empty("shift", (cells, dimension)),
        wavelet=place.empty("wavelet", (cells, planes, dimension)),
    )
    for depth, level in enumerate(tree.levels):
        for cell in range(len(level.parent)):
            here = first[depth] + cell
            rows = slice(int(level.bounds[cell]), int(level.bounds[cell + 1]))
            if rows.start == rows.stop:  # every point went to a cell beside it
                result.mean[here], result.basis[here] = level.centres[cell], 0
            else:
                result.mean[here], result.basis[here] = plane_of(tree.points, rows, planes)
            if depth == 0:
                result.shift[here], result.wavelet[here] = 0, 0
                continue
            above = first[depth - 1] + level.parent[cell]
            plane = result.basis[above].astype(np.float64)
            apart = result.mean[here].astype(np.float64) - result.mean[above]
            result.shift[here] = apart - (apart @ plane.T) @ plane
            result.wavelet[here] = wavelet_of(result.basis[here].astype(np.float64), plane)
    return result


def chain_of(analysis: Analysis, leaf: int) -> list[int]:
    """List the cells from the root to one of the last level."""
    chain, cell = [], leaf
    for depth in range(len(analysis.tree.levels) - 1, -1, -1):
        chain.append(int(analysis.first[depth]) + cell)
        cell = int(analysis.tree.levels[depth].parent[cell])
    return chain[::-1]


def project(analysis: Analysis, cell: int, block: Array) -> Array:
    """Project rows onto a cell's plane."""
    mean, basis = analysis.mean[cell].astype(np.float64), analysis.basis[cell].astype(np.float64)
    return np.asarray(mean + ((block - mean) @ basis.T) @ basis)


def transform(place: Place, analysis: Analysis) -> tuple[Array, list[float]]:
    """Compute the coefficients of all points, (count, levels * planes), in the tree's order.

    Also returns each level's root mean square distance of the points from their planes.
    """
    tree, planes = analysis.tree, analysis.planes
    depths = len(tree.levels)
    coefficients = place.empty("coefficients", (len(tree.points), depths * planes))
    squares = np.zeros(depths)
    for leaf, rows in cell_blocks(tree.levels[-1].bounds, 8 * tree.points.shape[1]):
        block, chain = tree.points[rows].astype(np.float64), chain_of(analysis, leaf)
        finest = project(analysis, chain[-1], block)
        numbers = np.empty((len(block), depths * planes))
        for depth, cell in enumerate(chain):
            away = block - project(analysis, cell, block)
            squares[depth] += np.einsum("ij,ij->", away, away)
            rows_of = analysis.wavelet[cell] if depth > 0 else analysis.basis[cell]
            on_plane = project(analysis, cell, finest) - analysis.mean[cell]
            numbers[:, depth * planes : (depth + 1) * planes] = on_plane @ rows_of.T.astype(np.float64)
        coefficients[rows] = numbers
    return coefficients, [float(value) for value in np.sqrt(squares / len(tree.points))]


def reconstruct(analysis: Analysis, leaf: int, numbers: Array) -> Array:
    """Compute points of a cell of the last level from their coefficients, (n, levels * planes)."""
    chain, planes = chain_of(analysis, leaf), analysis.planes
    parts = numbers.astype(np.float64).reshape(len(numbers), len(chain), planes)
    finer = np.zeros((len(numbers), analysis.mean.shape[1]))
    for depth in range(len(chain) - 1, 0, -1):
        plane = analysis.basis[chain[depth - 1]].astype(np.float64)
        step = parts[:, depth] @ analysis.wavelet[chain[depth]] + analysis.shift[chain[depth]]
        finer += step - (finer @ plane.T) @ plane
    return np.asarray(finer + parts[:, 0] @ analysis.basis[chain[0]] + analysis.mean[chain[0]])


# ---- The command ------------------------------------------------------------------------------------------------


def digest(*arrays: Array) -> str:
    """Return a digest of arrays."""
    state = hashlib.sha256()
    for array in arrays:
        for rows in blocks(len(array), array.strides[0]):
            state.update(np.ascontiguousarray(array[rows]).tobytes())
    return state.hexdigest()[:16]


def run(place: Place, count: int, dimension: int, planes: int = 2, cell_points: int = 64) -> dict[str, Any]:
    """Draw points and analyse them."""
    begin = time.perf_counter()
    points = draw_points(place, count, dimension, planes)
    drawn = time.perf_counter()
    tree = build_tree(place, points, cell_points)
    del points
    sorted_at = time.perf_counter()
    analysis = analyse(place, tree, planes)
    coefficients, errors = transform(place, analysis)
    done = time.perf_counter()
    large = (analysis.mean, analysis.basis, analysis.shift, analysis.wavelet, coefficients)
    return {
        "points": count,
        "dimension": dimension,
        "points_bytes": tree.points.nbytes,
        "coded_bytes": sum(array.nbytes for array in large),
        "levels": [
            {"radius": level.radius, "cells": len(level.parent), "error": error}
            for level, error in zip(tree.levels, errors, strict=True)
        ],
        "seconds": {"draw": drawn - begin, "tree": sorted_at - drawn, "analysis": done - sorted_at},
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "result": digest(tree.index[:, None], *large),
    }


def show(report: dict[str, Any]) -> None:
    """Print a report."""
    print(f"{report['points']:,} points of {report['dimension']} numbers, {report['points_bytes'] / 2**20:.0f} MiB")
    print(f"{'level':>5} {'cells':>8} {'radius':>9} {'error':>11}")
    for number, level in enumerate(report["levels"]):
        print(f"{number:>5} {level['cells']:>8,} {level['radius']:>9.4f} {level['error']:>11.2e}")
    print(f"planes, wavelets and coefficients: {report['coded_bytes'] / 2**20:.0f} MiB")
    print(", ".join(f"{what} {seconds:.1f} s" for what, seconds in report["seconds"].items()), end="; ")
    print(f"peak {report['peak_bytes'] / 2**20:.0f} MiB; result {report['result']}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="geometric multi-resolution analysis, in memory or on a shelf")
    parser.add_argument("--shelf", metavar="FOLDER", help="keep the arrays in a pool in this folder")
    parser.add_argument("--mib", type=int, default=64, help="size of the points (default: 64)")
    parser.add_argument("--dimension", type=int, default=64, help="numbers of a point (default: 64)")
    parser.add_argument(
        "--planes", type=int, default=2, help="dimensions of the surface and of the planes (default: 2)"
    )
    parser.add_argument("--cell", type=int, default=64, help="points of a last cell (default: 64)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    words = parser.parse_args()
    place: Place = Shelf(words.shelf) if words.shelf else Memory()
    report = run(place, (words.mib << 20) // (4 * words.dimension), words.dimension, words.planes, words.cell)
    if words.json:
        json.dump(report, sys.stdout)
    else:
        show(report)


if __name__ == "__main__":
    main()
