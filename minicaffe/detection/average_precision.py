"""Average precision of detections at an IoU threshold, as PASCAL VOC counts it. Source: the VOC devkit, VOCevaldet.m.

detections in order of score, best first; each takes the ground-truth box it overlaps most
true positive: IoU >= threshold and that box not taken yet; false positive: everything else
recall_k = true positives among the first k / ground-truth boxes;  precision_k = true positives among the first k / k
AP = area under max_{j >= k} precision_j over recall_k (from 2010 on), or its mean at recall 0, 0.1, ..., 1 (2007)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.boxes import bbox_overlaps

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ImageBoxes:
    """The boxes of one class on one image: (n, 4) as x1, y1, x2, y2 inclusive; scores (n,) where they are detections.

    ignored (n,): which boxes of the truth count neither way, VOC's difficult ones, nor detections that overlap one most.
    """

    boxes: NDArray[Any]
    scores: NDArray[Any] | None = None
    ignored: NDArray[np.bool_] | None = None

    @property
    def counted(self) -> int:
        """The number of boxes that are not ignored."""
        return len(self.boxes) - (0 if self.ignored is None else int(self.ignored.sum()))


def average_precision(
    detections: Sequence[ImageBoxes], truth: Sequence[ImageBoxes], *, threshold: float = 0.5, voc2007: bool = False
) -> float:
    """AP of one class; entry i of both sequences is image i. NaN without a ground-truth box of the class."""
    recall, precision = precision_recall(detections, truth, threshold=threshold)
    if not recall.size:
        return float("nan") if not sum(image.counted for image in truth) else 0.0
    return eleven_point_area(recall, precision) if voc2007 else all_point_area(recall, precision)


def precision_recall(
    detections: Sequence[ImageBoxes], truth: Sequence[ImageBoxes], *, threshold: float = 0.5
) -> tuple[Floats, Floats]:
    """Recall and precision (k,) after each detection, best score first; empty without detections or ground truth."""
    total = sum(image.counted for image in truth)
    scores, hits = [np.zeros(0)], [np.zeros(0, bool)]
    for found, true in zip(detections, truth, strict=True):
        found_scores = np.zeros(len(found.boxes)) if found.scores is None else np.asarray(found.scores, np.float64)
        order = np.argsort(-found_scores, kind="stable")
        boxes, gt = np.asarray(found.boxes)[order], np.asarray(true.boxes)
        counts = ~_on_ignored(boxes, gt, true.ignored, threshold)
        scores.append(found_scores[order][counts])
        # Boxes are taken within an image, so all images can be ranked together afterwards.
        hits.append(true_positives(boxes, gt, threshold)[counts])
    ranked = np.concatenate(hits)[np.argsort(-np.concatenate(scores), kind="stable")]
    if not total:
        return np.zeros(0), np.zeros(0)
    true_so_far = np.cumsum(ranked)
    return true_so_far / total, true_so_far / np.arange(1, len(ranked) + 1)


def _on_ignored(
    boxes: NDArray[Any], truth: NDArray[Any], ignored: NDArray[np.bool_] | None, threshold: float
) -> NDArray[np.bool_]:
    """Which boxes (n, 4) overlap an ignored one of truth (m, 4) most: (n,)."""
    if ignored is None or not ignored.any() or not len(boxes):
        return np.zeros(len(boxes), bool)
    overlaps = bbox_overlaps(boxes, truth)
    return np.asarray((overlaps.max(axis=1) >= threshold) & ignored[overlaps.argmax(axis=1)])


def true_positives(boxes: NDArray[Any], truth: NDArray[Any], threshold: float) -> NDArray[np.bool_]:
    """Which of an image's boxes (n, 4), best first, are true positives among truth (m, 4): (n,)."""
    hit = np.zeros(len(boxes), bool)
    if not len(boxes) or not len(truth):
        return hit
    overlaps = bbox_overlaps(boxes, truth)
    taken: set[int] = set()
    for i, (best, overlap) in enumerate(zip(overlaps.argmax(axis=1).tolist(), overlaps.max(axis=1).tolist(), strict=True)):
        if overlap >= threshold and best not in taken:  # a second detection of a box is false, even if another box is free
            hit[i] = True
            taken.add(best)
    return hit


def all_point_area(recall: Floats, precision: Floats) -> float:
    """The area under the best precision at each recall or beyond."""
    best_beyond = np.maximum.accumulate(precision[::-1])[::-1]  # makes the curve fall monotonically
    return float((np.diff(recall, prepend=0.0) * best_beyond).sum())


def eleven_point_area(recall: Floats, precision: Floats) -> float:
    """The mean, over recall 0, 0.1, ..., 1, of the best precision at that recall or beyond (0 where it is not reached)."""
    levels = np.arange(11) / 10
    return float(np.mean([precision[recall >= level].max(initial=0.0) for level in levels]))
