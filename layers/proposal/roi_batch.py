"""Batches for RoIData: which images come next, their gt boxes, and the rois sampled from them.

Source: py-faster-rcnn's roi_data_layer/layer.py and minibatch.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array
from minicaffe.data.images import Scale
from minicaffe.data.roidb_entry import Entry
from minicaffe.data.settings import DetectionSettings

from .roi_sampling import class_targets, sample_rois


def shuffled(roidb: Sequence[Entry], images_per_batch: int, aspect_grouping: bool) -> Array:
    """All indices of roidb in random order; with aspect_grouping a batch holds only wide or only tall images, where it can."""
    generator = rng.shared_generator()
    if not aspect_grouping or images_per_batch == 1:
        return generator.permutation(len(roidb))
    wide = np.array([entry["width"] >= entry["height"] for entry in roidb])
    inds = np.concatenate([generator.permutation(np.flatnonzero(wide)), generator.permutation(np.flatnonzero(~wide))])
    whole = len(inds) // images_per_batch * images_per_batch
    batches = inds[:whole].reshape(-1, images_per_batch)
    return np.concatenate([generator.permutation(batches).reshape(-1), inds[whole:]])  # an incomplete batch stays last


def gt_of(entry: Entry, scale: Scale) -> Array:
    """The gt boxes (G, 5) of an entry, in pixels of the scaled image: x1, y1, x2, y2, class."""
    gt = np.flatnonzero(entry["gt_classes"] > 0)
    return np.column_stack([entry["boxes"][gt] * scale, entry["gt_classes"][gt]])


def batch_rois(
    entries: Sequence[Entry], scales: Sequence[Scale], num_classes: int, settings: DetectionSettings
) -> tuple[Array, Array, Array, Array]:
    """Sampled rois (S, 5), labels (S,), targets (S, 4 K) and inside weights (S, 4 K) of the entries, in their order."""
    train = settings.train
    per_image = train.batch_size // len(entries) if train.batch_size > 0 else -1
    columns = 2 if train.agnostic else num_classes
    parts = []
    for i, (entry, scale) in enumerate(zip(entries, scales, strict=True)):
        chosen, foreground = sample_rois(entry["max_overlaps"], per_image, train)
        labels = entry["max_classes"][chosen].copy()
        labels[foreground:] = 0  # the sampled background, whose best gt box has another class
        rois = np.column_stack([np.full(len(chosen), i), entry["boxes"][chosen] * scale])
        # bbox_targets (R, 5): class, then the four targets
        targets, weights = class_targets(
            entry["bbox_targets"][chosen, 0] * (labels > 0), entry["bbox_targets"][chosen, 1:], columns, train
        )
        parts.append((rois, labels, targets, weights))
    rois, labels, targets, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    return rois, labels, targets, weights
