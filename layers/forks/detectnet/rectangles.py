"""OpenCV's groupRectangles: rectangles that lie alike become one.

Two are alike if their left, upper, right and lower ends differ by at most eps * (lesser width + lesser height) / 2. A group is
what a chain of such pairs joins; the groups are in the order of their first rectangles.

    a group's rectangle: the mean of x, y, width and height, rounded, a half to the even number
    dropped: groups of at most `threshold` rectangles; then those that lie in another one which is larger (more rectangles, and
    more than 3), or in any one if they have less than 3. "In" allows eps of the outer one's width and height at each side.

Source: OpenCV's modules/objdetect/src/cascadedetect.cpp, groupRectangles and SimilarRects; partition in modules/core.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


def group_rectangles(rectangles: Numbers, threshold: int, eps: float) -> tuple[Numbers, Numbers]:
    """Return the groups' rectangles (m, 4) of x, y, width, height, and their numbers of rectangles (m,).

    A threshold of at most 0 returns the rectangles themselves.
    """
    if threshold <= 0 or not len(rectangles):
        return rectangles, np.ones(len(rectangles), np.int64)
    labels = grouped(rectangles, eps)
    counts = np.bincount(labels)
    sums = np.zeros((len(counts), 4), np.int64)
    np.add.at(sums, labels, rectangles)
    factors = np.float32(1) / counts.astype(np.float32)
    means = np.rint(sums.astype(np.float32) * factors[:, None]).astype(np.int64)
    large = counts > threshold
    means, counts = means[large], counts[large]
    kept = [not _is_inside(i, means, counts, eps) for i in range(len(counts))]
    return means[kept], counts[kept]


def grouped(rectangles: Numbers, eps: float) -> Numbers:
    """Return the group of each rectangle (n,), counted in the order of the groups' first rectangles."""
    labels = np.full(len(rectangles), -1, np.int64)
    group = -1
    for first in range(len(rectangles)):
        if labels[first] >= 0:
            continue
        group += 1
        labels[first], waiting = group, [first]
        while waiting:
            free = np.flatnonzero(labels < 0)
            near = free[_alike(rectangles[waiting.pop()], rectangles[free], eps)]
            labels[near] = group
            waiting.extend(near.tolist())
    return labels


def _alike(one: Numbers, others: Numbers, eps: float) -> NDArray[np.bool_]:
    """Return which of the others (n, 4) are like one (4,)."""
    delta = eps * (np.minimum(one[2], others[:, 2]) + np.minimum(one[3], others[:, 3])) * 0.5
    starts = np.abs(others[:, :2] - one[:2])
    ends = np.abs(others[:, :2] + others[:, 2:] - one[:2] - one[2:])
    alike: NDArray[np.bool_] = np.maximum(starts, ends).max(axis=1) <= delta
    return alike


def _is_inside(i: int, rectangles: Numbers, counts: Numbers, eps: float) -> bool:
    """Return whether rectangle i lies in another one for which it is dropped."""
    inner, start = rectangles[i], rectangles[:, :2]
    slack = np.rint(rectangles[:, 2:] * eps)
    below = (inner[:2] >= start - slack).all(axis=1)
    above = (inner[:2] + inner[2:] <= start + rectangles[:, 2:] + slack).all(axis=1)
    drops = below & above & ((counts > max(3, counts[i])) | (counts[i] < 3))
    drops[i] = False
    return bool(drops.any())
