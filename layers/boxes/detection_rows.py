"""One image's detections of all classes, from its boxes and scores: what DetectionOutput does for each image.

    of each class: score > least, the top_k best, NMS -> the keep_top_k best of all classes

Source: Liu et al., SSD (arXiv:1512.02325); the SSD fork's detection_output_layer.cpp.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .box_codes import box_areas, nms

NONE = np.zeros(0, np.intp)


def image_detections(
    boxes: Array,
    scores: Array,
    *,
    background: int,
    least: float,
    nms_threshold: float,
    top_k: int | None,
    keep_top_k: int,
    eta: float,
) -> Array:
    """One image's detections (n, 6): class, score, box, by class and score, from boxes (L, P, 4), L the classes or 1, and
    scores (C, P). keep_top_k: of all classes, < 0 for no limit."""
    areas, sets = box_areas(boxes), len(boxes)
    kept = [
        nms(boxes[k % sets], own, nms_threshold, least=least, top_k=top_k, eta=eta, areas=areas[k % sets])
        if k != background
        else NONE
        for k, own in enumerate(scores)
    ]
    counts = np.array([len(some) for some in kept], np.intp)
    label, place = np.repeat(np.arange(len(scores)), counts), np.concatenate([NONE, *kept])
    rows = np.column_stack([label.astype(scores.dtype), scores[label, place], boxes[label % sets, place]])
    if -1 < keep_top_k < len(rows):
        best = np.sort(np.argsort(-rows[:, 1], kind="stable")[:keep_top_k])
        rows = rows[best]
    return rows
