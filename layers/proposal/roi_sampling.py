"""The rois that an image gives to training, and the regression targets of each class: ProposalTarget and RoIData share them.

    foreground: overlap >= FG_THRESH, at most FG_FRACTION of the rois; background: overlap in [BG_THRESH_LO, BG_THRESH_HI)

Source: Fast R-CNN (arXiv:1504.08083), section 2.3; py-faster-rcnn's proposal_target_layer.py and minibatch.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.data.settings import TrainSettings


def sample_rois(overlaps: Array, rois_per_image: int, settings: TrainSettings) -> tuple[Array, int]:
    """Return indices (S,) of the sampled rois, foreground first, and how many are foreground; overlaps (R,) with the best gt
    box.

    rois_per_image: -1 takes every roi that is foreground or background.
    """
    foreground = np.flatnonzero(overlaps >= settings.fg_thresh)
    background = np.flatnonzero((overlaps < settings.bg_thresh_hi) & (overlaps >= settings.bg_thresh_lo))
    if rois_per_image < 0:
        return np.concatenate([foreground, background]), len(foreground)
    foreground = choose(foreground, round(settings.fg_fraction * rois_per_image))
    background = choose(background, rois_per_image - len(foreground))
    return np.concatenate([foreground, background]), len(foreground)


def choose(indices: Array, count: int) -> Array:
    """Return count of indices (N,), at random and without repetition; all of them where there are no more."""
    return rng.generator().choice(indices, size=count, replace=False) if len(indices) > count else indices


def class_targets(labels: Array, targets: Array, num_classes: int, settings: TrainSettings) -> tuple[Array, Array]:
    """Targets and inside weights, each (R, 4 K), zero but in the four columns of the roi's class; labels (R,), targets (R, 4).

    With AGNOSTIC every foreground class uses columns 4 to 7. Background (label 0) has zeros everywhere.
    """
    of_class = np.zeros((len(labels), num_classes, 4))
    weights = np.zeros_like(of_class)
    at = np.flatnonzero(labels > 0)
    columns = np.ones(len(at), int) if settings.agnostic else labels[at].astype(int)  # column 1: of [background, object]
    of_class[at, columns] = targets[at]
    weights[at, columns] = settings.bbox_inside_weights
    flat = (len(labels), 4 * num_classes)
    return of_class.reshape(flat), weights.reshape(flat)


def put_training_rois(top: Sequence[Blob], rois: Array, labels: Array, targets: Array, inside: Array) -> None:
    """Fill rois (R, 5, 1, 1), labels (R, 1, 1, 1), targets, inside and outside weights (R, 4 K, 1, 1), as py-R-FCN does, or
    the first of these, if there are fewer tops.
    """
    for blob, values in zip(top, (rois, labels[:, None], targets, inside, inside > 0), strict=False):
        blob.reshape(*values.shape, 1, 1)
        blob.data[...] = values[:, :, None, None]
