"""Non-maximum suppression by a compiled loop over vectors of kept boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.kernels import provides
from minicaffe.layers.proposal import nms
from minicaffe.layers.proposal.nms import PIXELS, Measure

TOGETHER = 64
"""Kept boxes with which a compiled loop compares a box before it checks for a clash."""

at, int32 = np.uint64, np.int32
"""An unsigned index, for which Numba does not check whether it counts from the end, and a sum as wide as a float32. With other
types the loop over kept boxes does not use vectors."""


@loop("T[:,::1], T[::1], T, float64, float64, int64")
def suppress(boxes: Array, areas: Array, unit: Any, threshold: float, eta: float, limit: int) -> NDArray[np.intp]:
    """Return the indices of the boxes that greedy suppression keeps. Boxes are sorted, the best first.

    boxes (N, 4): x1, y1, x2, y2, finite; areas (N,); unit: 1 if a box's ends are pixels in it, else 0. A box is kept unless it
    shares more than threshold of its union with a kept one. eta < 1: each kept box multiplies threshold by eta while it is
    above 0.5. limit: the number of kept boxes at which to stop, 0 for none.
    """
    kept, found = np.empty(len(boxes), np.intp), 0
    x1, y1, x2, y2, area = np.empty((5, len(boxes)), boxes.dtype)  # the coordinates of kept boxes
    bound, zero = np.empty(1, boxes.dtype), unit - unit
    for i in range(len(boxes)):
        left, top, right, bottom = boxes[i]
        bound[0] = threshold  # rounds to the boxes' type
        most, own, clashes = bound[0], areas[i], int32(0)
        for first in range(0, found, TOGETHER):
            for k in range(first, min(first + TOGETHER, found)):
                width = (right if right < x2[at(k)] else x2[at(k)]) - (left if left > x1[at(k)] else x1[at(k)]) + unit
                height = (bottom if bottom < y2[at(k)] else y2[at(k)]) - (top if top > y1[at(k)] else y1[at(k)]) + unit
                shared = (width if width > 0 else zero) * (height if height > 0 else zero)
                clashes += int32(shared / (area[at(k)] + own - shared) > most)  # False for two boxes without an area: NaN
            if clashes:
                break
        if not clashes:
            kept[found] = i
            x1[found], y1[found], x2[found], y2[found], area[found] = left, top, right, bottom, own
            found += 1
            if found == limit:
                break
            if eta < 1 and threshold > 0.5:
                threshold *= eta
    return kept[:found]


def takes(boxes: Array, areas: Array, threshold: float) -> bool:
    """Return whether the loop gives NumPy's result."""
    return threshold >= 0 and bool(np.isfinite(boxes).all() and np.isfinite(areas).all())


@provides(nms.kept_boxes, loops=(suppress,))
def kept_boxes(boxes: Array, areas: Array, threshold: float, measure: Measure = PIXELS, limit: int = 0) -> NDArray[np.intp]:
    """Run the loop on one thread."""
    if measure.divisor != "IOU" or not takes(boxes, areas, threshold):
        return nms.kept_boxes.by_numpy(boxes, areas, threshold, measure, limit)
    unit = boxes.dtype.type(measure.unit)
    kept: NDArray[np.intp] = suppress(np.ascontiguousarray(boxes), areas, unit, float(threshold), 1.0, limit)
    return kept
