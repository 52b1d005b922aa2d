"""The permutohedral lattice: a Gaussian filter over points in few dimensions, linear in the number of points.

Each point lies in a simplex of d + 1 lattice points. Its values are splatted to them by its barycentric coordinates, the
lattice is blurred along its d + 1 directions by (1, 2, 1) / 2, and each point slices its simplex with the same coordinates:

    y = a S^T B_d ... B_0 S x,    a = 1 / (1 + 2^-d)

over the lattice points that a simplex has. As the original takes four points at once, the last ones filled up with the origin,
the lattice has the origin's simplex, too, where the number of points is no multiple of 4. Source: Adams, Baek, Davis, Fast
High-Dimensional Filtering Using the Permutohedral Lattice (2010); CRF-RNN's modified_permutohedral.cpp, whose features are
float32 and of deviation 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.kernels import kernel

Int32 = NDArray[np.int32]
FARTHEST = 1 << 20
"""The greatest coordinate. Beyond it, float32 is too coarse for a point's place in its simplex."""


def filter_by_definition(x: Array, corners: Int32, shares: Array, neighbours: Int32, scratch: Array, y: Array) -> None:
    """Compute y (C, N): x (C, N) filtered, without the scale.

    corners, shares (N, d + 1); neighbours (d + 1, L, 2) in the directions' order, L for none; scratch (2, L + 1): memory.
    """
    half, points = x.dtype.type(0.5), neighbours.shape[1]
    for c in range(len(x)):
        lattice, blurred = scratch[0], scratch[1]
        lattice[:] = 0
        blurred[points] = 0
        for n in range(x.shape[1]):
            for k in range(corners.shape[1]):
                lattice[corners[n, k]] += shares[n, k] * x[c, n]
        for j in range(len(neighbours)):
            for i in range(points):
                blurred[i] = lattice[i] + half * (lattice[neighbours[j, i, 0]] + lattice[neighbours[j, i, 1]])
            lattice, blurred = blurred, lattice
        for n in range(x.shape[1]):
            total = x.dtype.type(0)
            for k in range(corners.shape[1]):
                total += shares[n, k] * lattice[corners[n, k]]
            y[c, n] = total


class Lattice:
    """The lattice of features (N, d), in units of the filter's standard deviation, for values of a dtype.

    corners (N, d + 1): the lattice points of each point's simplex; shares (N, d + 1): its barycentric coordinates; neighbours
    (d + 1, L, 2): each lattice point's neighbours in each direction, L for none.
    """

    def __init__(self, features: Array, dtype: np.dtype[np.floating]) -> None:
        count = len(features)
        keys, shares = simplices(np.pad(features.astype(np.float32), ((0, -count % 4), (0, 0))))
        self.shares: Array = np.ascontiguousarray(shares[:count], dtype)
        corners, self.neighbours = number_points(keys)
        self.corners = corners[:count]
        self.scale = dtype.type(1 / (1 + 2.0 ** -features.shape[1]))

    def filter(self, x: Array, reverse: bool = False) -> Array:
        """Return x (C, N) filtered. reverse: with the transposed filter, for the gradient."""
        neighbours = np.ascontiguousarray(self.neighbours[::-1]) if reverse else self.neighbours
        x, y = np.ascontiguousarray(x), np.empty_like(x, order="C")
        if not x.size:
            return y
        filter_maps(x, self.corners, self.shares, neighbours, y)
        y *= self.scale
        return y


@kernel
def filter_maps(x: Array, corners: Int32, shares: Array, neighbours: Int32, y: Array) -> None:
    """Filter x (C, N) into y (C, N), without the scale. The other arrays are those of filter_by_definition."""
    points = neighbours.shape[1]
    for plane, out in zip(x, y):
        lattice = np.bincount(corners.reshape(-1), (shares * plane[:, None]).reshape(-1), points + 1)
        for pair in neighbours:
            lattice[:points] += 0.5 * (lattice[pair[:, 0]] + lattice[pair[:, 1]])
        np.einsum("nk,nk->n", shares, lattice[corners], out=out, casting="same_kind")


def simplices(features: Array) -> tuple[NDArray[np.int64], Array]:
    """Return the lattice points around features (N, d) and the barycentric coordinates (N, d + 1).

    Of each feature's d + 1 points the first d coordinates are returned, (N, d + 1, d). Raises OverflowError for features too
    far apart.
    """
    count, d = features.shape
    real = features.dtype.type
    elevated, total = np.empty((count, d + 1), features.dtype), np.zeros(count, features.dtype)
    deviation = float(real(math.sqrt(2 / 3) * (d + 1)))
    for j in range(d, 0, -1):
        scaled = features[:, j - 1] * real(deviation / math.sqrt((j + 1) * j))
        elevated[:, j] = total - real(j) * scaled
        total += scaled
    elevated[:, 0] = total
    if not np.abs(elevated).max(initial=0) <= FARTHEST:  # `not <=` also catches NaN, from infinity minus infinity
        raise OverflowError("the features are too far apart for the lattice")
    v = elevated * (real(1) / real(d + 1))
    nearest = np.rint(v).astype(np.int64)
    off = nearest.sum(axis=1)
    nearest *= d + 1
    rest = elevated - nearest
    rank = np.zeros((count, d + 1), np.int64)
    for i in range(d):
        for j in range(i + 1, d + 1):
            less = rest[:, i] < rest[:, j]
            rank[:, i] += less
            rank[:, j] += ~less
    rank += off[:, None]
    for wrong, turn in ((rank < 0, d + 1), (rank > d, -d - 1)):
        rank[wrong] += turn
        nearest[wrong] += turn
    v = (elevated - nearest) * (real(1) / real(d + 1))
    shares, rows = np.zeros((count, d + 2), features.dtype), np.arange(count)
    for i in range(d + 1):
        shares[rows, d - rank[:, i]] += v[:, i]
        shares[rows, d + 1 - rank[:, i]] -= v[:, i]
    shares[:, 0] += 1 + shares[:, d + 1]
    corner = np.arange(d + 1)[:, None]
    ranks = rank[:, None, :d]
    keys = nearest[:, None, :d] + np.where(ranks <= d - corner, corner, corner - d - 1)
    return keys, shares[:, : d + 1]


def number_points(keys: NDArray[np.int64]) -> tuple[Int32, Int32]:
    """Return each lattice point's number (N, d + 1) for keys (N, d + 1, d), and the neighbours (d + 1, L, 2), L for none."""
    count, corners, d = keys.shape
    if not count:
        return np.zeros((0, corners), np.int32), np.zeros((corners, 0, 2), np.int32)
    flat = keys.reshape(-1, d)
    low = flat.min(axis=0) - corners
    sizes = flat.max(axis=0) + corners + 1 - low
    steps = np.ones(d, object)  # Python's integers, because their product may be large
    for i in range(d - 2, -1, -1):
        steps[i] = steps[i + 1] * int(sizes[i + 1])
    if steps[0] * int(sizes[0]) >= 1 << 63:
        raise OverflowError("the features are too far apart for the lattice")
    step = steps.astype(np.int64)
    found, number = np.unique((flat - low) @ step, return_inverse=True)
    neighbours = np.empty((corners, len(found), 2), np.int32)
    for j in range(corners):
        move = int(step.sum()) - (corners * int(step[j]) if j < d else 0)  # +1 along all axes, except -d along axis j
        for side, place in enumerate((found - move, found + move)):
            at = np.searchsorted(found, place).clip(max=len(found) - 1)
            neighbours[j, :, side] = np.where(found[at] == place, at, len(found))
    return number.reshape(count, corners).astype(np.int32), neighbours
