"""Which anchors the RPN learns from, with which labels, targets and weights: the pure half of AnchorTarget.

Source: Faster R-CNN (arXiv:1506.01497), section 3.1.2; py-faster-rcnn's rpn/anchor_target_layer.py.
"""

from __future__ import annotations

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array
from minicaffe.data.boxes import bbox_transform
from minicaffe.data.settings import TrainSettings


def inside_image(anchors: Array, image_shape: Array, border: float) -> Array:
    """Which (N,) of anchors (N, 4) leave an image of (height, width) by at most border pixels."""
    x1, y1, x2, y2 = anchors.T
    inside: Array = (x1 >= -border) & (y1 >= -border) & (x2 < image_shape[1] + border) & (y2 < image_shape[0] + border)
    return inside


def anchor_labels(overlaps: Array, settings: TrainSettings, forces_best: bool = True) -> Array:
    """Labels (N,): 1, 0 or -1, before sampling, of anchors with overlaps (N, G). forces_best: as section 3.1.2 (i) has it."""
    labels = np.full(len(overlaps), -1.0)
    most = overlaps.max(axis=1, initial=0.0)
    background = most < settings.rpn_negative_overlap
    labels[background] = 0
    if forces_best:
        best_of_gt = overlaps.max(axis=0, initial=0.0)
        # > 0: in the original a gt box that no anchor overlaps makes all anchors positive
        labels[((overlaps == best_of_gt) & (best_of_gt > 0)).any(axis=1)] = 1
    if overlaps.shape[1]:
        labels[most >= settings.rpn_positive_overlap] = 1
    if settings.rpn_clobber_positives:
        labels[background] = 0
    return labels


def sampled(labels: Array, settings: TrainSettings) -> Array:
    """labels (N,) with at most RPN_FG_FRACTION of RPN_BATCHSIZE ones and zeros up to RPN_BATCHSIZE; the rest, at random, -1."""
    labels = labels.copy()
    room = int(settings.rpn_fg_fraction * settings.rpn_batchsize)
    for label in (1, 0):
        found = np.flatnonzero(labels == label)
        if len(found) > room:
            labels[rng.generator().choice(found, size=len(found) - room, replace=False)] = -1
        room = settings.rpn_batchsize - int((labels == 1).sum())  # fewer positives: more negatives
    return labels


def anchor_targets(anchors: Array, gt_boxes: Array, overlaps: Array, settings: TrainSettings) -> Array:
    """Targets (N, 4) from each of anchors (N, 4) to the gt box that it overlaps most; zeros where there is no gt box."""
    if not overlaps.size:
        return np.zeros((len(anchors), 4))
    targets = bbox_transform(anchors, gt_boxes[overlaps.argmax(axis=1), :4].astype(np.float64))
    if settings.rpn_normalize_targets:
        targets = (targets - settings.rpn_normalize_means) / settings.rpn_normalize_stds
    return targets


def anchor_weights(labels: Array, settings: TrainSettings) -> tuple[Array, Array]:
    """Inside and outside weights, each (N, 4), of labels (N,): 0 for a label of -1; a column of the outside ones sums to 1."""
    positive, negative = labels == 1, labels == 0
    inside = positive[:, None] * np.array(settings.rpn_bbox_inside_weights)
    weight = settings.rpn_positive_weight
    if weight < 0:
        each = ((positive | negative) / max((positive | negative).sum(), 1))[:, None]
    else:
        each = (weight * positive / max(positive.sum(), 1) + (1 - weight) * negative / max(negative.sum(), 1))[:, None]
    return inside, np.repeat(each, 4, axis=1)
