"""Questions of lesson 4: from anchors to proposals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from minicaffe import ops
from minicaffe.blob import Array
from minicaffe.layers.proposal.proposal import ProposalLimits
from minicaffe.layers.proposal.proposal import proposals as layer_proposals

from .checks import question


def _outside(rng: np.random.Generator) -> list[tuple[Array, int, int]]:
    """Return boxes within, across each edge, and wholly outside of an image."""
    return [
        (rng.uniform(-30, 90, (6, 4)), 40, 60),
        (np.array([[5.0, 6, 70, 80]]), 50, 30),
        (np.array([[-9.0, -7, 3, 4]]), 20, 10),
    ]


@question(_outside)
def clip(boxes: Array, height: int, width: int) -> Array:
    """Return boxes (N, 4) clipped to an image."""
    return ops.clip_boxes(boxes, (height, width))


@clip.slip("The last pixel of a row is width - 1, and that of a column height - 1.")
def to_the_sides(boxes: Array, height: int, width: int) -> Array:
    return np.clip(boxes, 0, [width, height, width, height])


@clip.slip("x is limited by the width, y by the height.")
def sides_swapped(boxes: Array, height: int, width: int) -> Array:
    return np.clip(boxes, 0, [height - 1, width - 1, height - 1, width - 1])


@clip.slip("Limit all four corners on both sides: a box right of the image has an x1 above width - 1.")
def one_side_each(boxes: Array, height: int, width: int) -> Array:
    low, high = np.maximum(boxes[:, :2], 0), np.minimum(boxes[:, 2:], [width - 1, height - 1])
    return np.concatenate([low, high], axis=1)


def _crowds(rng: np.random.Generator) -> list[tuple[Array, float]]:
    """Return boxes with scores, not sorted, and thresholds.

    In the first two cases, parts of the best box overlap it by exactly the threshold. The third is a chain whose middle
    overlaps both ends.
    """
    parts = np.array([[0.0, 0, 9, 4, 0.7], [0, 0, 9, 9, 0.9], [0, 0, 9, 6.5, 0.8]])
    chain = np.array([[0.0, 0, 9, 9, 0.9], [8, 0, 17, 9, 0.7], [4, 0, 13, 9, 0.8]])
    cases = [(parts, 0.5), (parts, 0.75), (chain, 0.3), (chain, 0.45)]
    for threshold in (0.3, 0.5, 0.7):
        corners = rng.integers(0, 12, (14, 2))
        boxes = np.concatenate([corners, corners + rng.integers(6, 18, (14, 2))], axis=1)
        cases.append((np.column_stack([boxes, rng.permutation(14) / 14]), threshold))
    return cases


@question(_crowds)
def nms(dets: Array, threshold: float) -> NDArray[np.intp]:
    """Return the indices of the kept boxes, best first. dets: (N, 5), corners and score."""
    return ops.nms(dets, threshold)


def kept_boxes(
    dets: Array, threshold: float, order: NDArray[np.intp], end: float = 1, strict: bool = True, by_all: bool = False
) -> list[int]:
    """Return the kept boxes. end: added to a side; strict: an IoU at the threshold stays; by_all: dropped boxes drop others."""
    kept: list[int] = []
    for place, i in enumerate(order):
        others = order[:place] if by_all else np.array(kept, np.intp)
        overlaps = _overlaps(dets[i, :4], dets[others, :4], end)
        if not np.any(overlaps > threshold if strict else overlaps >= threshold):
            kept.append(int(i))
    return kept


def _overlaps(box: Array, others: Array, end: float) -> Array:
    shared = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]) + end
    area = np.prod(np.maximum(shared, 0), axis=1)
    union: Array = np.prod(box[2:] - box[:2] + end) + np.prod(others[:, 2:] - others[:, :2] + end, axis=1) - area
    found: Array = area / union
    return found


def _best_first(dets: Array) -> NDArray[np.intp]:
    return np.argsort(-dets[:, 4], kind="stable")


@nms.slip("Begin with the best score: sort the boxes by score, from the highest.")
def not_sorted(dets: Array, threshold: float) -> list[int]:
    return kept_boxes(dets, threshold, np.arange(len(dets)))


@nms.slip("np.argsort begins with the lowest score. Sort by the negative score.")
def worst_first(dets: Array, threshold: float) -> list[int]:
    return kept_boxes(dets, threshold, np.argsort(dets[:, 4], kind="stable"))


@nms.slip("Return the indices of rows of dets, not places in the sorted order.")
def places_in_the_order(dets: Array, threshold: float) -> list[int]:
    order = _best_first(dets)
    return [int(np.flatnonzero(order == i)[0]) for i in kept_boxes(dets, threshold, order)]


@nms.slip("A box is suppressed when its overlap is more than the threshold. One of exactly the threshold stays.")
def at_the_threshold(dets: Array, threshold: float) -> list[int]:
    return kept_boxes(dets, threshold, _best_first(dets), strict=False)


@nms.slip("The last pixel belongs to a box, so that a side is x2 - x1 + 1 pixels long, also that of the intersection.")
def without_the_end(dets: Array, threshold: float) -> list[int]:
    return kept_boxes(dets, threshold, _best_first(dets), end=0)


@nms.slip("A suppressed box suppresses no other. Compare a box with the kept boxes alone.")
def suppressed_ones_suppress(dets: Array, threshold: float) -> list[int]:
    return kept_boxes(dets, threshold, _best_first(dets), by_all=True)


@nms.slip("Return the indices of the kept boxes, not the boxes.")
def the_boxes(dets: Array, threshold: float) -> Array:
    return dets[kept_boxes(dets, threshold, _best_first(dets))]


@nms.slip("Return the kept boxes' indices from the best score to the worst, not in the order of dets.")
def by_index(dets: Array, threshold: float) -> list[int]:
    return sorted(kept_boxes(dets, threshold, _best_first(dets)))


@nms.slip("Return the indices of the kept boxes, the best first, not True or False for each box.")
def a_mask(dets: Array, threshold: float) -> NDArray[np.bool_]:
    return np.isin(np.arange(len(dets)), kept_boxes(dets, threshold, _best_first(dets)))


def _anchor_sets(rng: np.random.Generator) -> list[tuple[Array, Array, Array, Array, ProposalLimits]]:
    """Return anchors across an image of 60 x 90 pixels, scores, deltas, the image's height, width and scale, and limits."""
    cases = []
    for scale, limits in (
        (1.0, ProposalLimits(pre_nms_top_n=25, post_nms_top_n=8, nms_threshold=0.5, min_size=12)),
        (0.5, ProposalLimits(pre_nms_top_n=40, post_nms_top_n=6, nms_threshold=0.3, min_size=24)),
        (2.0, ProposalLimits(pre_nms_top_n=12, post_nms_top_n=40, nms_threshold=0.6, min_size=8)),
    ):
        corners = rng.uniform(-20, 70, (50, 2)).round()
        anchors = np.concatenate([corners, corners + rng.integers(8, 40, (50, 2))], axis=1)
        scores, deltas = rng.permutation(50) / 50, rng.normal(0, 0.3, (50, 4))
        cases.append((anchors, scores, deltas, np.array([60.0, 90, scale]), limits))
    return cases


@question(_anchor_sets)
def proposals(anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits) -> Array:
    """Return the rois (R, 4), best first."""
    return layer_proposals(anchors, scores, deltas, im_info, limits)[0]


def _proposed(
    scores: Array, boxes: Array, least: float, limits: ProposalLimits, small_first: bool = True, pre: int | None = None
) -> Array:
    order = _best_first(np.column_stack([boxes, scores]))
    large = np.all(boxes[order, 2:] - boxes[order, :2] + 1 >= least, axis=1)
    most = limits.pre_nms_top_n if pre is None else pre
    order = order[large][:most] if small_first else order[:most][large[:most]]
    found: Array = boxes[order[ops.nms(np.column_stack([boxes, scores])[order], limits.nms_threshold)]]
    return found[: limits.post_nms_top_n]


def _clipped(anchors: Array, deltas: Array, im_info: Array) -> Array:
    return ops.clip_boxes(ops.bbox_transform_inv(anchors, deltas), im_info[:2])


@proposals.slip("Clip the boxes to the image before all that follows: the size and the overlaps are those of clipped boxes.")
def not_clipped(anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits) -> Array:
    return _proposed(scores, ops.bbox_transform_inv(anchors, deltas), limits.min_size * im_info[2], limits)


@proposals.slip("min_size is in pixels of the photo, the boxes are in pixels of the scaled image: multiply it by the scale.")
def least_of_the_photo(anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits) -> Array:
    return _proposed(scores, _clipped(anchors, deltas, im_info), limits.min_size, limits)


@proposals.slip("Drop small boxes before you take the best pre_nms_top_n: a small box takes no place.")
def top_n_before_small(anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits) -> Array:
    return _proposed(scores, _clipped(anchors, deltas, im_info), limits.min_size * im_info[2], limits, small_first=False)


@proposals.slip("NMS sees the best pre_nms_top_n boxes alone.")
def all_to_nms(anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits) -> Array:
    return _proposed(scores, _clipped(anchors, deltas, im_info), limits.min_size * im_info[2], limits, pre=len(anchors))


@proposals.slip("Of the boxes that NMS keeps, return the best post_nms_top_n.")
def all_that_nms_keeps(anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits) -> Array:
    more = replace(limits, post_nms_top_n=len(anchors))
    return _proposed(scores, _clipped(anchors, deltas, im_info), limits.min_size * im_info[2], more)


@proposals.slip("ops.clip_boxes takes (height, width), as im_info has them.")
def limits_swapped(anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits) -> Array:
    boxes = _clipped(anchors, deltas, im_info[[1, 0, 2]])
    return _proposed(scores, boxes, limits.min_size * im_info[2], limits)


@proposals.slip(
    "np.argsort begins with the lowest objectness: you kept the worst pre_nms_top_n boxes. Sort by the negative scores."
)
def the_worst(anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits) -> Array:
    boxes, least = _clipped(anchors, deltas, im_info), limits.min_size * im_info[2]
    large = np.flatnonzero(np.all(boxes[:, 2:] - boxes[:, :2] + 1 >= least, axis=1))
    worst = large[np.argsort(scores[large])][: limits.pre_nms_top_n]
    return _proposed(scores[worst], boxes[worst], least, limits)


@proposals.slip("Return the corners of the rois alone, (R, 4), without the scores.")
def with_scores(anchors: Array, scores: Array, deltas: Array, im_info: Array, limits: ProposalLimits) -> Array:
    boxes = _clipped(anchors, deltas, im_info)
    rois = _proposed(scores, boxes, limits.min_size * im_info[2], limits)
    places = [int(np.flatnonzero((boxes == roi).all(axis=1))[0]) for roi in rois]
    return np.column_stack([rois, scores[places]])
