"""Regression targets of a roidb with proposals, for training without an RPN.

Source: py-faster-rcnn's roi_data_layer/roidb.py, and py-R-FCN's for class-agnostic boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boxes import bbox_overlaps, bbox_transform
from .roidb_entry import Entry
from .settings import DetectionSettings

Array = NDArray[Any]


def add_bbox_regression_targets(roidb: Sequence[Entry], settings: DetectionSettings) -> tuple[Array, Array]:
    """Set the normalised bbox_targets of every prepared entry; returns the means and stds (K, 4), K = 2 if agnostic."""
    train = settings.train
    classes = 2 if train.agnostic else roidb[0]["gt_overlaps"].shape[1]  # background and object
    for entry in roidb:
        entry["bbox_targets"] = regression_targets(entry, train.bbox_thresh)
    means, stds = np.zeros((classes, 4)), np.ones((classes, 4))
    if train.bbox_normalize_targets_precomputed:
        means[:], stds[:] = train.bbox_normalize_means, train.bbox_normalize_stds  # the same four for every class
    elif train.bbox_normalize_targets:
        targets = np.concatenate([entry["bbox_targets"] for entry in roidb])
        means, stds = target_statistics(targets, classes, train.agnostic, settings.eps)
    if train.bbox_normalize_targets:
        for entry in roidb:
            targets = entry["bbox_targets"]
            column = _regression_class(targets, train.agnostic)
            at = column > 0
            targets[at, 1:] = (targets[at, 1:] - means[column[at]]) / stds[column[at]]
    return means, stds


def regression_targets(entry: Entry, threshold: float) -> Array:
    """(N, 5): class and deltas to the nearest gt box, for boxes that overlap it by threshold or more; zeros for the others."""
    boxes, overlaps = entry["boxes"].astype(np.float64), entry["max_overlaps"]
    targets = np.zeros((len(boxes), 5), np.float32)
    gt = np.flatnonzero(entry["gt_classes"] > 0)
    at = np.flatnonzero(overlaps >= threshold)
    if len(gt) and len(at):
        nearest = gt[bbox_overlaps(boxes[at], boxes[gt]).argmax(axis=1)]
        targets[at, 0] = entry["max_classes"][at]
        targets[at, 1:] = bbox_transform(boxes[at], boxes[nearest])
    return targets


def target_statistics(targets: Array, num_classes: int, agnostic: bool, eps: float) -> tuple[Array, Array]:
    """Means and stds (K, 4) of the deltas of targets (N, 5) by class: 0 and 1 without targets; a std of 0 becomes 1."""
    means, stds = np.zeros((num_classes, 4)), np.ones((num_classes, 4))
    column = _regression_class(targets, agnostic)
    for k in range(1, num_classes):
        deltas = targets[column == k, 1:].astype(np.float64)
        if len(deltas):
            means[k] = deltas.mean(axis=0)
            stds[k] = np.where(deltas.std(axis=0) > eps, deltas.std(axis=0), 1)
    return means, stds


def _regression_class(targets: Array, agnostic: bool) -> Array:
    """The regression's class (N,) of targets (N, 5): 1 for every foreground class if agnostic."""
    classes = targets[:, 0].astype(int)
    return (classes > 0).astype(int) if agnostic else classes
