"""One image's detections of all classes by a compiled loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.compiled.nms import suppress
from minicaffe.kernels import provides
from minicaffe.layers.ssd import detection_rows
from minicaffe.layers.ssd.detection_rows import Rules


@loop("T[::1], int64")
def largest(values: Array, rank: int) -> Any:
    """Return the element of values (N,) at `rank` from the largest; reorder values. np.partition takes seconds to compile."""
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
def class_rows(  # noqa: PLR0913, PLR0917
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
    """Return rows (n, 7) of the boxes that each class keeps: image, class, score, box, sorted by class and score.

    boxes (L, P, 4), finite, L: the classes or 1; areas (L, P); scores (C, P), of least's type; top_k: 0 for no limit.
    """
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
        if 0 < top_k < number:  # finding the last of the best first is faster than sorting all
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


@provides(detection_rows.rows_of_classes, loops=(class_rows,))
def rows_of_classes(boxes: Array, areas: Array, scores: Array, image: int, rules: Rules, *, are_finite: bool) -> Array:
    """Run the loop on one thread."""
    background, least, threshold, top_k, eta = rules
    possible = threshold >= 0 and (top_k is None or top_k > 0)
    if not possible or not (are_finite or (np.isfinite(boxes).all() and np.isfinite(areas).all())):
        return detection_rows.rows_of_classes.by_numpy(boxes, areas, scores, image, rules, are_finite=are_finite)
    wide = scores.astype(np.result_type(boxes, scores), copy=False)  # rows have the type of boxes and scores together
    bound = wide.dtype.type(scores.dtype.type(least))
    whole = np.ascontiguousarray(boxes), areas, wide, image, background
    rows: Array = class_rows(*whole, bound, float(threshold), top_k or 0, float(eta))
    return rows
