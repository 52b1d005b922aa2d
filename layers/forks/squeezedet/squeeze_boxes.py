"""SqueezeDet's boxes: anchors that are moved and stretched, and how far they overlap the true boxes.

Source: Wu et al., SqueezeDet (arXiv:1612.01051); kvmanohar22/caffe's squeezedet_loss_layer.cpp.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array


def grid(sizes: Array, height: int, width: int, side: int) -> Array:
    """The anchors (K, 4): centre, width, height, of sizes (A, 2) in pixels in each of height x width cells of a square image.

    Cell i is centred in column i / height and row i mod height, from 1, of width + 1 by height + 1, as in the fork.
    """
    column, row = np.divmod(np.arange(height * width), height)
    centres = np.stack([(column + 1) * side / (width + 1), (row + 1) * side / (height + 1)], axis=1)
    return np.concatenate([np.repeat(centres, len(sizes), axis=0), np.tile(sizes, (height * width, 1))], axis=1)


def decoded(anchors: Array, moves: Array, side: int) -> Array:
    """The corners (K, 4), cut to an image, of anchors (K, 4): centre, width, height; moves (K, 4): x, y, height, width."""
    with np.errstate(over="ignore"):
        centres, sizes = anchors[:, :2] + anchors[:, 2:] * moves[:, :2], anchors[:, 2:] * np.exp(moves[:, :1:-1])
    corners: Array = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
    return corners.clip(0, side - 1)


def overlaps(boxes: Array, others: Array, epsilon: float) -> Array:
    """Intersection over union (M, K) of boxes (M, 4) with others (K, 4), the union enlarged by epsilon."""
    low, high = np.maximum(boxes[:, None, :2], others[None, :, :2]), np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.maximum(high - low, 0).prod(axis=-1)
    areas, other_areas = ((of[:, 2:] - of[:, :2]).prod(axis=1) for of in (boxes, others))
    found: Array = shared / (areas[:, None] + other_areas[None] - shared + epsilon)
    return found


def targets(anchors: Array, boxes: Array, epsilon: float) -> Array:
    """The moves (M, 4) of anchors (M, 4) that give boxes (M, 4), whose last row and column belong to them."""
    sizes = boxes[:, 2:] - boxes[:, :2] + 1
    shifts = (boxes[:, :2] + sizes / 2 - anchors[:, :2]) / anchors[:, 2:]
    moves: Array = np.concatenate([shifts, np.log(sizes / anchors[:, 2:] + epsilon)[:, ::-1]], axis=1)
    return moves
