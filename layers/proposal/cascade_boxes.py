"""Boxes in Cascade R-CNN's convention: x1, y1, x2, y2 in pixels, both ends inclusive.

    overlap = what two boxes share / their union (IOU), the smaller one (IOMU) or the first (IOFU)

A box whose end is before its start overlaps nothing, nor do two that share no more than a row.
Source: cascade-rcnn's util/bbox_util.cpp (JaccardOverlap, ApplyNMS).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array


def sizes_in_pixels(boxes: Array) -> Array:
    """Return the areas (...) of boxes (..., 4); 0 if an end is before its start."""
    sides = boxes[..., 2:] - boxes[..., :2]
    return np.where((sides < 0).any(axis=-1), 0, (sides[..., 0] + 1) * (sides[..., 1] + 1))


def overlaps(boxes: Array, others: Array, divisor: str = "IOU") -> Array:
    """Return the overlaps (N, K) of boxes (N, 4) and others (K, 4), in their type."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    sides = np.minimum(boxes[:, None, 2:], others[None, :, 2:]) - low
    areas, other_areas = sizes_in_pixels(boxes)[:, None], sizes_in_pixels(others)[None]
    meet = (sides[..., 0] >= 0) & (sides[..., 1] > 0) & (areas > 0) & (other_areas > 0)
    shared = np.where(meet, (sides[..., 0] + 1) * (sides[..., 1] + 1), 0)
    whole = {"IOU": areas + other_areas - shared, "IOMU": np.minimum(areas, other_areas), "IOFU": areas + 0 * other_areas}[
        divisor
    ]
    found: Array = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return found


def suppressed(boxes: Array, threshold: float, divisor: str) -> NDArray[np.intp]:
    """Return which of boxes (N, 4), best first, remain: none overlaps a kept earlier one by more than threshold."""
    left, kept = np.arange(len(boxes)), list[int]()
    while len(left):
        kept.append(int(left[0]))
        clash = overlaps(boxes[left[:1]], boxes[left[1:]], divisor)[0] > boxes.dtype.type(threshold)
        left = left[1:][~clash]
    return np.array(kept, np.intp)


def paired_overlaps(boxes: Array, others: Array, unit: int = 1) -> Array:
    """Return the intersection over union (N,) of boxes (N, 4) and others (N, 4), pair by pair. A single shared row counts.

    unit: 1 if a box's last row and column belong to it; 0 if not, as in MS-CNN.
    """
    low, high = np.maximum(boxes[:, :2], others[:, :2]), np.minimum(boxes[:, 2:], others[:, 2:])
    sizes, other_sizes = (of[:, 2:] - of[:, :2] + unit for of in (boxes, others))
    meet = (high >= low).all(axis=1) & (sizes > 0).all(axis=1) & (other_sizes > 0).all(axis=1)
    shared = np.where(meet, (high - low + unit).prod(axis=1), 0)
    with np.errstate(all="ignore"):
        found: Array = np.where(meet, shared / (sizes.prod(axis=1) + other_sizes.prod(axis=1) - shared), 0)
    return found


def corners(centre_size: Array, unit: int = 1) -> Array:
    """Return boxes (N, 4) as x1, y1, x2, y2, from centre and size; unit as in paired_overlaps."""
    low = centre_size[:, :2] - centre_size[:, 2:] / 2
    return np.concatenate([low, low + centre_size[:, 2:] - unit], axis=1)
