"""Which prior box stands for which true box, for MultiBoxLoss.

    first every true box takes the free prior that overlaps it most, the best pair of all first (bipartite);
    then, per prediction, each prior left takes the true box that it overlaps most, if by overlap_threshold or more

Source: Liu et al., SSD (arXiv:1512.02325), section 2.2; the SSD fork's bbox_util.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .box_codes import Priors, decode, jaccard

Ints = NDArray[np.intp]

FREE, IGNORED = -1, -2
"""In place of a true box's index: a prior that stands for none, and one that must not be matched or mined."""
LEAST_OVERLAP = 1e-6
"""An overlap up to this counts as none."""


class Truths(NamedTuple):
    """One image's true boxes: labels (G,), boxes (G, 4)."""

    labels: Ints
    boxes: Array


class Match(NamedTuple):
    """For one loc class (slot): the index of each prior's true box (P,), FREE or IGNORED, and their overlap (P,)."""

    slot: int
    truth: Ints
    overlap: Array


def read_truths(layer: Layer, data: Array, images: int, param: caffe_pb2.MultiBoxLossParameter) -> list[Truths]:
    """Each image's true boxes from rows (G, 8): image, class, instance, xmin, ymin, xmax, ymax, difficult; image -1 is none.

    Raises LayerError for an image that the batch does not have, and for a label that is no object's class.
    """
    rows = data.reshape(-1, 8)
    rows = rows[rows[:, 0] != -1]
    for row in rows[~np.isin(rows[:, 0], np.arange(images))][:1]:
        raise layer.error(f"a true box is of image {row[0]:g}, the batch has images 0 to {images - 1}", "bottom[3]")
    classes = [k for k in range(param.num_classes) if k != param.background_label_id]
    if not param.map_object_to_agnostic:
        for row in rows[~np.isin(rows[:, 1], classes)][:1]:
            known = f"0 to {param.num_classes - 1} without the background, {param.background_label_id}"
            raise layer.error(f"label {row[1]:g} of a true box is no object's class: those are {known}", "bottom[3]")
    if not param.use_difficult_gt:
        rows = rows[rows[:, 7] == 0]
    labels = rows[:, 1].astype(np.intp)
    if param.map_object_to_agnostic:
        labels[:] = param.background_label_id + 1
    return [Truths(labels[rows[:, 0] == i], rows[rows[:, 0] == i, 3:7]) for i in range(images)]


def find_matches(codes: Array, truths: Truths, priors: Priors, param: caffe_pb2.MultiBoxLossParameter) -> list[Match]:
    """One image's matches, for each loc class; none in an image without true boxes. codes: (P, L, 4)."""
    if not len(truths.labels):
        return []
    per_prediction = param.match_type == caffe_pb2.MultiBoxLossParameter.PER_PREDICTION
    threshold = param.overlap_threshold if per_prediction else None
    slots = [k for k in range(codes.shape[1]) if param.share_location or k != param.background_label_id]
    if param.use_prior_for_matching:
        truth, overlap = _match(priors.boxes, truths.boxes, threshold, param.ignore_cross_boundary_bbox)
        if param.share_location:
            return [Match(0, truth, overlap)]
        owner = np.where(truth >= 0, truths.labels[np.maximum(truth, 0)], FREE)  # maximum: a valid index for FREE and IGNORED
        return [Match(k, np.where(owner == k, truth, FREE), overlap) for k in slots]
    matches = []
    for k in slots:
        mine = np.flatnonzero((truths.labels == k) | param.share_location)
        boxes = decode(codes[:, k], priors, param.code_type, param.encode_variance_in_target)
        truth, overlap = _match(boxes, truths.boxes[mine], threshold, param.ignore_cross_boundary_bbox)
        if len(mine):
            truth = np.where(truth >= 0, mine[np.maximum(truth, 0)], truth)
        matches.append(Match(k, truth, overlap))
    return matches


def _match(boxes: Array, truths: Array, threshold: float | None, inside_only: bool) -> tuple[Ints, Array]:
    crossing = ((boxes < 0) | (boxes > 1)).any(axis=1) & bool(inside_only and len(truths))
    return match(jaccard(boxes, truths), threshold, np.asarray(crossing))


def match(overlaps: Array, threshold: float | None, ignored: NDArray[np.bool_]) -> tuple[Ints, Array]:
    """The true box of each prior (P,), FREE or IGNORED, and its overlap (P,) (a free prior's: its largest).

    overlaps: (P, G). threshold: for the priors that the bipartite matching leaves; None matches no more. ignored: (P,).
    """
    overlaps = np.where((overlaps > LEAST_OVERLAP) & ~ignored[:, None], overlaps, 0)
    truth = np.where(ignored, IGNORED, FREE)
    best = overlaps.max(axis=1, initial=0)
    if threshold is not None and overlaps.size:
        near = (best >= threshold) & (best > 0)
        truth[near] = overlaps.argmax(axis=1)[near]  # first, for the bipartite matches to overwrite
    left = overlaps.copy()
    for _ in range(overlaps.shape[1]):
        i, j = np.unravel_index(int(left.argmax()), left.shape) if left.size else (0, 0)
        if not left.size or left[i, j] <= 0:
            break
        truth[i], best[i] = j, overlaps[i, j]
        left[i], left[:, j] = 0, 0  # both are taken
    return truth, best
