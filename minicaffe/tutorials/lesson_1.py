"""Questions of lesson 1: boxes and their overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import ops

from .checks import question

Box = NDArray[np.floating[Any]]


def _pairs(rng: np.random.Generator) -> list[tuple[Box, Box]]:
    """Return pairs that overlap, one within another, neighbours, equal boxes, and boxes apart."""
    pairs = [((0, 0, 9, 19), (5, 10, 24, 29)), ((0, 0, 29, 19), (3, 4, 7, 8)), ((0, 0, 4, 9), (5, 0, 9, 9))]
    pairs += [((2, 3, 8, 11), (2, 3, 8, 11)), ((0, 0, 4, 9), (40, 30, 50, 60))]
    corners = rng.integers(0, 40, (6, 2, 2))
    drawn = np.concatenate([corners, corners + rng.integers(0, 40, (6, 2, 2))], axis=2)
    return [(np.array(a, np.float64), np.array(b, np.float64)) for a, b in [*pairs, *drawn]]


@question(_pairs)
def iou(a: Box, b: Box) -> float:
    """Return the intersection over union of two boxes (x1, y1, x2, y2) in pixels, whose ends belong to them."""
    return float(ops.bbox_overlaps(a[None], b[None])[0, 0])


def _iou(a: Box, b: Box, end: float = 1, apart: float = 0) -> float:
    width, height = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + end
    shared = np.maximum(width, apart) * np.maximum(height, apart)
    areas = [np.prod(box[2:] - box[:2] + end) for box in (a, b)]
    return float(shared / (sum(areas) - shared))


@iou.slip("The last pixel belongs to the box, so that a side is x2 - x1 + 1 pixels long.")
def without_the_end(a: Box, b: Box) -> float:
    return _iou(a, b, end=0)


@iou.slip("Boxes apart have negative sides of overlap, whose product can be positive. Take the greater of each side and 0.")
def negative_sides(a: Box, b: Box) -> float:
    return _iou(a, b, apart=-np.inf)


@iou.slip("The union counts the intersection once: area of A + area of B - intersection.")
def union_counts_twice(a: Box, b: Box) -> float:
    width, height = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + 1, 0)
    return float(width * height / sum(np.prod(box[2:] - box[:2] + 1) for box in (a, b)))
