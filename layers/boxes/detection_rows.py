"""One image's detections of all classes, from its boxes and scores: what DetectionOutput does for each image.

    of each class: score > least, the top_k best, NMS -> the keep_top_k best of all classes

Source: Liu et al., SSD (arXiv:1512.02325); the SSD fork's detection_output_layer.cpp.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minicaffe import loops
from minicaffe.blob import Array
from minicaffe.loops import loop

from .box_codes import box_areas, nms
from .nms import suppress

NONE = np.zeros(0, np.intp)


@loop("T[:,:,::1], T[:,::1], T[:,:], int64, T, float64, int64, float64")
def kept_of_classes(  # noqa: PLR0917
    boxes: Array, areas: Array, scores: Array, background: int, least: float, threshold: float, top_k: int, eta: float
) -> NDArray[np.intp]:
    """Each class and box (K, 2) that is kept, by class and score. boxes (L, P, 4), L the classes or 1, finite; their areas
    (L, P); scores (C, P) of least's type; top_k: 0 for no limit."""
    classes, count = scores.shape
    kept, found = np.empty((classes * count, 2), np.intp), 0
    likely, values = np.empty(count, np.intp), np.empty(count, scores.dtype)
    for k in range(classes):
        if k == background:
            continue
        number = 0
        for i in range(count):
            if scores[k, i] > least:
                likely[number], values[number] = i, scores[k, i]
                number += 1
        if 0 < top_k < number:  # to find the last of the best takes a fifth of the time of sorting all
            last = np.partition(values[:number], number - top_k)[number - top_k]
            some, number = number, 0
            for i in range(some):
                if values[i] >= last:
                    likely[number], values[number] = likely[i], values[i]
                    number += 1
        order, own = np.argsort(-values[:number], kind="mergesort"), k % len(boxes)
        number = min(number, top_k) if top_k else number
        ranked, sizes = np.empty((number, 4), boxes.dtype), np.empty(number, boxes.dtype)
        for i in range(number):
            place = likely[order[i]]
            sizes[i] = areas[own, place]
            for side in range(4):
                ranked[i, side] = boxes[own, place, side]
        for i in suppress(ranked, sizes, boxes.dtype.type(0), threshold, eta, 0):
            kept[found, 0], kept[found, 1] = k, likely[order[i]]
            found += 1
    return kept[:found]


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
    possible = nms_threshold >= 0 and (top_k is None or top_k > 0)
    if possible and loops.compiled() and np.isfinite(boxes).all() and np.isfinite(areas).all():
        whole = np.ascontiguousarray(boxes), areas, scores, background
        of = kept_of_classes(*whole, scores.dtype.type(least), float(nms_threshold), top_k or 0, float(eta))
        label, place = of[:, 0], of[:, 1]
    else:
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
