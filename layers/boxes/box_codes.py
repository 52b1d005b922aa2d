"""SSD's boxes: corners in parts of the image (1 is its width or height), their areas, overlaps and codes.

A code holds a box relative to its prior box, divided by the prior's 4 variances (unless those are left to the loss):
    CORNER:       box - prior, corner by corner
    CORNER_SIZE:  the same, over the prior's width and height
    CENTER_SIZE:  (centre - prior's centre) / prior's size, log(size / prior's size)

Source: Liu et al., SSD (arXiv:1512.02325), section 2.2; the SSD fork's bbox_util.cpp.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.loops import loop
from minicaffe.proto import caffe_pb2

from .nms import suppressed

CORNER = caffe_pb2.PriorBoxParameter.CORNER
CENTER_SIZE = caffe_pb2.PriorBoxParameter.CENTER_SIZE
CORNER_SIZE = caffe_pb2.PriorBoxParameter.CORNER_SIZE


class Priors(NamedTuple):
    """Prior boxes (P, 4) and their variances (P, 4), ones where the variances are not part of the code."""

    boxes: Array
    variances: Array


def read_priors(layer: Layer, data: Array, code: int) -> Priors:
    """The priors in a blob (1, 2, 4 P). Raises LayerError for one without an area where code divides by its size."""
    boxes, variances = data.reshape(2, -1, 4)
    flat = (boxes[:, 2:] - boxes[:, :2] <= 0).any(axis=1)
    if code != CORNER and flat.any():
        where = int(flat.argmax())
        corners = " ".join(f"{value:g}" for value in boxes[where])
        raise layer.error(f"prior {where} has no width or height: {corners}", "bottom[2]")
    return Priors(boxes, variances)


def box_areas(boxes: Array) -> Array:
    """Areas (...) of boxes (..., 4): 0 where xmax < xmin or ymax < ymin."""
    with np.errstate(over="ignore", invalid="ignore"):
        sides = boxes[..., 2:] - boxes[..., :2]
        areas: Array = np.where((sides < 0).any(axis=-1), 0, sides[..., 0] * sides[..., 1])
    return areas


def jaccard(boxes: Array, others: Array) -> Array:
    """Intersection over union (N, K) of boxes (N, 4) with others (K, 4), 0 where they only touch."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    with np.errstate(over="ignore", invalid="ignore"):
        sides = np.maximum(np.minimum(boxes[:, None, 2:], others[None, :, 2:]) - low, 0)
        shared = sides[..., 0] * sides[..., 1]
        union = box_areas(boxes)[:, None] + box_areas(others)[None] - shared
        overlaps: Array = np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)
    return overlaps


@loop("T[:,:,::1], T[:,:,::1], int64, int64, T[:,:,::1], T[:,::1]")
def decode_all(codes: Array, priors: Array, code: int, variance_in_target: int, boxes: Array, areas: Array) -> int:
    """decode's boxes (L, P, 4), of codes (P, L, 4), and their areas (L, P). priors (2, P, 4): boxes and variances.

    Returns P, or the first prior without an area, where code divides by its size, or -1 where a box or an area is not finite.
    """
    half, zero, flat, finite = codes.dtype.type(0.5), codes.dtype.type(0), len(codes), True
    moves = np.empty(4, codes.dtype)
    for i in range(len(codes)):
        x1, y1, x2, y2 = priors[0, i]
        width, height = x2 - x1, y2 - y1
        if code != CORNER and (width <= 0 or height <= 0):
            flat = min(flat, i)
        for k in range(len(boxes)):
            for side in range(4):
                moves[side] = codes[i, k, side] if variance_in_target else codes[i, k, side] * priors[1, i, side]
            if code == CENTER_SIZE:
                x, y = moves[0] * width + (x1 + x2) * half, moves[1] * height + (y1 + y2) * half
                across, down = math.exp(moves[2]) * width * half, math.exp(moves[3]) * height * half
                left, top, right, bottom = x - across, y - down, x + across, y + down
            elif code == CORNER_SIZE:
                left, top = x1 + moves[0] * width, y1 + moves[1] * height
                right, bottom = x2 + moves[2] * width, y2 + moves[3] * height
            else:
                left, top, right, bottom = x1 + moves[0], y1 + moves[1], x2 + moves[2], y2 + moves[3]
            boxes[k, i, 0], boxes[k, i, 1], boxes[k, i, 2], boxes[k, i, 3] = left, top, right, bottom
            areas[k, i] = zero if right < left or bottom < top else (right - left) * (bottom - top)
            corners = math.isfinite(left) and math.isfinite(top) and math.isfinite(right) and math.isfinite(bottom)
            finite = finite and corners and math.isfinite(areas[k, i])
    return flat if finite or flat < len(codes) else -1


def decode(codes: Array, priors: Priors, code: int, variance_in_target: bool = False) -> Array:
    """Boxes (..., P, 4) that codes (..., P, 4) stand for. variance_in_target: the codes are not divided by variances."""
    boxes = priors.boxes
    moves = codes if variance_in_target else codes * priors.variances
    if code == CORNER:
        return np.asarray(boxes + moves)
    size = boxes[:, 2:] - boxes[:, :2]
    if code == CORNER_SIZE:
        return np.asarray(boxes + moves * np.concatenate([size, size], axis=1))
    centre = moves[..., :2] * size + (boxes[:, :2] + boxes[:, 2:]) / 2
    with np.errstate(over="ignore", invalid="ignore"):
        half = np.exp(moves[..., 2:]) * size / 2
        return np.concatenate([centre - half, centre + half], axis=-1)


def refined(priors: Priors, codes: Array | None, images: int, code: int, variance_in_target: bool = False) -> list[Priors]:
    """The priors of each image: the same of all, or RefineDet's, decoded from codes (N, P * 4) of its first stage."""
    if codes is None:
        return [priors] * images
    boxes = decode(codes.reshape(images, -1, 4), priors, code, variance_in_target)
    return [Priors(own, priors.variances) for own in boxes]


def encode(targets: Array, priors: Priors, code: int, variance_in_target: bool = False) -> Array:
    """The codes (P, 4) of boxes targets (P, 4), one for each prior: the inverse of decode."""
    boxes = priors.boxes
    size = boxes[:, 2:] - boxes[:, :2]
    if code == CENTER_SIZE:
        centre = (targets[:, :2] + targets[:, 2:] - boxes[:, :2] - boxes[:, 2:]) / 2
        codes = np.concatenate([centre / size, np.log((targets[:, 2:] - targets[:, :2]) / size)], axis=1)
    else:
        codes = targets - boxes
        if code == CORNER_SIZE:
            codes = codes / np.concatenate([size, size], axis=1)
    return np.asarray(codes if variance_in_target else codes / priors.variances)


def best_first(scores: Array, least: float, top_k: int | None) -> NDArray[np.intp]:
    """Indices of the scores (N,) > least, the top_k best of them, best first; of equal ones the earlier."""
    likely = np.flatnonzero(scores > least)
    if top_k is not None and 0 < top_k < len(likely):  # to find the last of the best takes a fifth of the time of sorting all
        last = np.partition(scores[likely], -top_k)[-top_k]
        likely = likely[scores[likely] >= last]
    return likely[np.argsort(-scores[likely], kind="stable")][:top_k]


def nms(
    boxes: Array,
    scores: Array,
    overlap: float,
    *,
    least: float = -np.inf,
    top_k: int | None = None,
    eta: float = 1.0,
    areas: Array | None = None,
) -> NDArray[np.intp]:
    """Indices of the boxes (N, 4) that are kept, best score (N,) first: of those > least the top_k best, each unless it
    overlaps a kept one by more than overlap. eta < 1: each box that is kept lowers overlap to eta times it, down to 0.5.
    areas: the boxes' (N,), for one who asks several times."""
    order = best_first(scores, least, top_k)
    ranked = boxes[order]
    if (best := suppressed(ranked, box_areas(ranked) if areas is None else areas[order], 0, overlap, eta=eta)) is not None:
        return order[best]
    most = np.zeros(len(order), boxes.dtype)  # each box's largest overlap with a kept one
    kept: list[int] = []
    for i in range(len(order)):
        if most[i] <= overlap:
            kept.append(i)
            # no box is dropped yet: with eta a lower overlap counts when its turn comes
            most[i + 1 :] = np.maximum(most[i + 1 :], jaccard(ranked[i : i + 1], ranked[i + 1 :])[0])
            if eta < 1 and overlap > 0.5:
                overlap *= eta
    return order[kept]
