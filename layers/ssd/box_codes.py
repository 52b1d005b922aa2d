"""SSD's boxes: corners relative to the image (1 is its width or height), their areas, overlaps and codes.

A code holds a box relative to its prior box, divided by the prior's 4 variances (unless those are left to the loss):
    CORNER:       box - prior, corner by corner
    CORNER_SIZE:  the same, over the prior's width and height
    CENTER_SIZE:  (centre - prior's centre) / prior's size, log(size / prior's size)

Source: Liu et al., SSD (arXiv:1512.02325), section 2.2; the SSD fork's bbox_util.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.kernels import kernel
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

CORNER = caffe_pb2.PriorBoxParameter.CORNER
CENTER_SIZE = caffe_pb2.PriorBoxParameter.CENTER_SIZE
CORNER_SIZE = caffe_pb2.PriorBoxParameter.CORNER_SIZE


class Priors(NamedTuple):
    """Prior boxes (P, 4) and their variances (P, 4), which are ones if the code does not include them."""

    boxes: Array
    variances: Array


def read_priors(layer: Layer, data: Array, code: int) -> Priors:
    """Return the priors in a blob (1, 2, 4 P). Raises LayerError for a prior without an area if code divides by its size."""
    boxes, variances = data.reshape(2, -1, 4)
    flat = (boxes[:, 2:] - boxes[:, :2] <= 0).any(axis=1)
    if code != CORNER and flat.any():
        where = int(flat.argmax())
        corners = " ".join(f"{value:g}" for value in boxes[where])
        raise layer.error(f"prior {where} has no width or height: {corners}", "bottom[2]")
    return Priors(boxes, variances)


def box_areas(boxes: Array) -> Array:
    """Return the areas (...) of boxes (..., 4): 0 where xmax < xmin or ymax < ymin."""
    with np.errstate(over="ignore", invalid="ignore"):
        sides = boxes[..., 2:] - boxes[..., :2]
        areas: Array = np.where((sides < 0).any(axis=-1), 0, sides[..., 0] * sides[..., 1])
    return areas


def jaccard(boxes: Array, others: Array) -> Array:
    """Return the intersection over union (N, K) of boxes (N, 4) and others (K, 4), 0 if they only touch."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    with np.errstate(over="ignore", invalid="ignore"):
        sides = np.maximum(np.minimum(boxes[:, None, 2:], others[None, :, 2:]) - low, 0)
        shared = sides[..., 0] * sides[..., 1]
        union = box_areas(boxes)[:, None] + box_areas(others)[None] - shared
        overlaps: Array = np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)
    return overlaps


def decode(codes: Array, priors: Priors, code: int, variance_in_target: bool = False) -> Array:
    """Return the boxes (..., P, 4) of codes (..., P, 4). variance_in_target: the codes are not divided by variances."""
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


@kernel
def decode_images(
    layer: Layer, codes: Array, priors: Array, code: int, variance_in_target: bool
) -> list[tuple[Array, Array | None]]:
    """Return each image's boxes (L, P, 4), and their areas (L, P) if they are known and finite.

    codes (N, P, L, 4); priors as read_priors takes them. Raises LayerError for a prior without an area.
    """
    at = read_priors(layer, priors, code)
    return [(decode(own, at, code, variance_in_target), None) for own in codes.transpose(0, 2, 1, 3)]


def refined(priors: Priors, codes: Array | None, images: int, code: int, variance_in_target: bool = False) -> list[Priors]:
    """Return each image's priors: the same for all, or RefineDet's, decoded from its first stage's codes (N, P * 4)."""
    if codes is None:
        return [priors] * images
    boxes = decode(codes.reshape(images, -1, 4), priors, code, variance_in_target)
    return [Priors(own, priors.variances) for own in boxes]


def encode(targets: Array, priors: Priors, code: int, variance_in_target: bool = False) -> Array:
    """Return the codes (P, 4) of boxes targets (P, 4), one for each prior: the inverse of decode."""
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
    """Return the indices of the top_k best scores (N,) > least, best first; of equal ones the earlier first."""
    likely = np.flatnonzero(scores > least)
    if top_k is not None and 0 < top_k < len(likely):  # finding the last of the best first is faster than sorting all
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
    """Return the indices of the kept boxes (N, 4), best score (N,) first.

    Of the top_k best scores > least each box is kept, unless it overlaps a kept one by more than overlap. eta < 1: each kept
    box multiplies overlap by eta, down to 0.5. areas: the boxes' (N,), for callers that call several times.
    """
    order = best_first(scores, least, top_k)
    ranked = boxes[order]
    kept: NDArray[np.intp] = order[kept_of(ranked, box_areas(ranked) if areas is None else areas[order], overlap, eta)]
    return kept


@kernel
def kept_of(boxes: Array, areas: Array, overlap: float, eta: float) -> NDArray[np.intp]:
    """Return the indices that nms keeps of the boxes (N, 4) with areas (N,), best first."""
    most = np.zeros(len(boxes), boxes.dtype)  # each box's largest overlap with a box kept so far
    kept: list[int] = []
    for i in range(len(boxes)):
        if most[i] <= overlap:
            kept.append(i)
            # Drop no box yet: with eta, a lower overlap counts later.
            most[i + 1 :] = np.maximum(most[i + 1 :], jaccard(boxes[i : i + 1], boxes[i + 1 :])[0])
            if eta < 1 and overlap > 0.5:
                overlap *= eta
    return np.array(kept, np.intp)
