"""One image's detections of all classes, from its boxes and scores: what DetectionOutput does for each image.

    of each class: score > least, the top_k best, NMS -> the keep_top_k best of all classes

Source: Liu et al., SSD (arXiv:1512.02325); the SSD fork's detection_output_layer.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minicaffe import loops
from minicaffe.blob import Array
from minicaffe.loops import loop

from .box_codes import box_areas, nms
from .nms import suppress

NONE = np.zeros(0, np.intp)


@loop("T[::1], int64")
def largest(values: Array, rank: int) -> Any:
    """The largest of values (N,) but `rank`; changes their order. np.partition takes seconds to compile."""
    first, last = 0, len(values) - 1
    while first < last:
        a, b, c = values[first], values[(first + last) // 2], values[last]
        middle = max(min(a, b), min(max(a, b), c))
        i, j = first, last
        while i <= j:
            while values[i] > middle:
                i += 1
            while values[j] < middle:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if rank <= j:
            last = j
        elif rank >= i:
            first = i
        else:
            break
    return values[rank]


@loop("T[:,:,::1], T[:,::1], T[:,:], int64, int64, T, float64, int64, float64")
def rows_of_classes(  # noqa: PLR0913, PLR0917
    boxes: Array,
    areas: Array,
    scores: Array,
    image: int,
    background: int,
    least: float,
    threshold: float,
    top_k: int,
    eta: float,
) -> Array:
    """Of each class's boxes that are kept (n, 7): image, class, score, box, by class and score. boxes (L, P, 4), L the classes
    or 1, finite; their areas (L, P); scores (C, P) of least's type; top_k: 0 for no limit."""
    classes, count = scores.shape
    most = min(count, top_k) if top_k else count
    rows, found = np.empty((classes * most, 7), scores.dtype), 0
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
            last = largest(values[:number].copy(), top_k - 1)
            some, number = number, 0
            for i in range(some):
                if values[i] >= last:
                    likely[number], values[number] = likely[i], values[i]
                    number += 1
        order, own = np.argsort(-values[:number], kind="mergesort"), k % len(boxes)
        number = min(number, most)
        ranked, sizes = np.empty((number, 4), boxes.dtype), np.empty(number, boxes.dtype)
        for i in range(number):
            place = likely[order[i]]
            sizes[i] = areas[own, place]
            for side in range(4):
                ranked[i, side] = boxes[own, place, side]
        for i in suppress(ranked, sizes, boxes.dtype.type(0), threshold, eta, 0):
            rows[found, 0], rows[found, 1], rows[found, 2] = image, k, values[order[i]]
            for side in range(4):
                rows[found, 3 + side] = ranked[i, side]
            found += 1
    return rows[:found]


def image_detections(  # noqa: PLR0913
    boxes: Array,
    scores: Array,
    *,
    background: int,
    least: float,
    nms_threshold: float,
    top_k: int | None,
    keep_top_k: int,
    eta: float,
    image: int = 0,
    areas: Array | None = None,
) -> Array:
    """One image's detections (n, 7): image, class, score, box, by class and score, from boxes (L, P, 4), L the classes or 1,
    and scores (C, P). keep_top_k: of all classes, < 0 for no limit. areas: the boxes' (L, P), finite, as the boxes are; None:
    not known."""
    of_all = box_areas(boxes) if areas is None else areas
    possible = loops.compiled() and nms_threshold >= 0 and (top_k is None or top_k > 0)
    if possible and (areas is not None or (np.isfinite(boxes).all() and np.isfinite(of_all).all())):
        wide = scores.astype(np.result_type(boxes, scores), copy=False)  # rows have the scores' type
        bound = wide.dtype.type(scores.dtype.type(least))
        whole = np.ascontiguousarray(boxes), of_all, wide, image, background
        rows: Array = rows_of_classes(*whole, bound, float(nms_threshold), top_k or 0, float(eta))
    else:
        sets = len(boxes)
        kept = [
            nms(boxes[k % sets], own, nms_threshold, least=least, top_k=top_k, eta=eta, areas=of_all[k % sets])
            if k != background
            else NONE
            for k, own in enumerate(scores)
        ]
        counts = np.array([len(some) for some in kept], np.intp)
        label, place = np.repeat(np.arange(len(scores)), counts), np.concatenate([NONE, *kept])
        numbers = np.column_stack([np.full(len(label), image), label]).astype(scores.dtype)
        rows = np.column_stack([numbers, scores[label, place], boxes[label % sets, place]])
    if -1 < keep_top_k < len(rows):
        best = np.sort(np.argsort(-rows[:, 2], kind="stable")[:keep_top_k])
        rows = rows[best]
    return rows
