"""Functions on boxes (x1, y1, x2, y2) in pixels, both ends inclusive: width = x2 - x1 + 1.

    targets:  tx = (gx - x) / w, ty = (gy - y) / h, tw = log(gw / w), th = log(gh / h)    (centres; w, h the roi's)

Source: R-CNN (arXiv:1311.2524), appendix C; py-faster-rcnn's fast_rcnn/bbox_transform.py and utils/bbox.pyx.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.blob import Blob

Array = NDArray[Any]


def box_area(boxes: Array) -> Array:
    """Return the areas (N,) of boxes (N, 4), counted inclusively."""
    area: Array = (boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1)
    return area


def bbox_overlaps(boxes: Array, others: Array) -> Array:
    """Return the intersection over union (N, K), in float64, of boxes (N, 4) with others (K, 4)."""
    a, b = np.asarray(boxes, np.float64), np.asarray(others, np.float64)
    ax1, ay1, ax2, ay2 = a.T[:4, None]  # (1, N) against (K, 1): the inner loop is over the N boxes, usually the longer axis
    bx1, by1, bx2, by2 = b.T[:4, :, None]
    width = np.minimum(ax2, bx2) - np.maximum(ax1, bx1) + 1
    height = np.minimum(ay2, by2) - np.maximum(ay1, by1) + 1
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    union = box_area(a) + box_area(b)[:, None] - shared
    overlaps: Array = np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0).T  # the union may be 0
    return overlaps


def bbox_transform(boxes: Array, targets: Array) -> Array:
    """Return the regression (N, 4): dx, dy, dw, dh, from boxes (N, 4) to targets (N, 4)."""
    size, centre = _size_and_centre(boxes)
    target_size, target_centre = _size_and_centre(targets)
    return np.concatenate([(target_centre - centre) / size, np.log(target_size / size)], axis=1)


def bbox_transform_inv(boxes: Array, deltas: Array) -> Array:
    """Return boxes (N, 4) moved by deltas (N, 4 K), K regressions a row: (N, 4 K) in deltas' type. Sizes may be inf."""
    size, centre = _size_and_centre(boxes.astype(deltas.dtype, copy=False))
    parts = deltas.reshape(len(deltas), deltas.shape[1] // 4, 4)
    middle = parts[..., :2] * size[:, None] + centre[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        half = np.exp(parts[..., 2:]) * size[:, None] * deltas.dtype.type(0.5)
        return np.concatenate([middle - half, middle + half], axis=2).reshape(deltas.shape)


def clip_boxes(boxes: Array, image_shape: ArrayLike) -> Array:
    """Return boxes (N, 4 K) clipped to x in [0, width - 1] and y in [0, height - 1]. image_shape: height, width."""
    height, width = np.asarray(image_shape)[:2]
    clipped: Array = boxes.copy()
    for first, end in ((0, width), (1, height)):
        np.clip(boxes[:, first::2], 0, end - 1, out=clipped[:, first::2])
    return clipped


def large_enough(boxes: Array, least: float) -> Array:
    """Return whether each of boxes (N, 4) is at least `least` wide and high (N,). A box with NaN gives False."""
    enough: Array = np.all(boxes[:, 2:4] - boxes[:, :2] + 1 >= least, axis=1)
    return enough


def rows(blob: Blob) -> Array:
    """Return a blob's data as (N, D): rois (R, 5, 1, 1) are (R, 5)."""
    data = blob.data
    return data.reshape(len(data), math.prod(data.shape[1:]))


def _size_and_centre(boxes: Array) -> tuple[Array, Array]:
    """Return (width, height) (N, 2) and (x, y) of the centre (N, 2)."""
    size = boxes[:, 2:4] - boxes[:, :2] + 1
    return size, boxes[:, :2] + size.dtype.type(0.5) * size
