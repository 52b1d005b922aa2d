"""Non-maximum suppression: keep the best box, drop those that overlap it by more than the threshold, and again.

Areas are counted inclusively; a box is dropped when its overlap is > threshold (the originals' GPU code; their Cython code
takes >=); equal scores: the lower index first. The definition is the loop of suppress.
Source: py-faster-rcnn's nms/nms_kernel.cu. MS-CNN counts overlaps in other ways, too: mscnn's util/math_functions.cpp,
cascade-rcnn's util/bbox_util.cpp.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe import loops
from minicaffe.blob import Array
from minicaffe.cuda.nms import nms as gpu_nms
from minicaffe.loops import loop
from minicaffe.mode import gpu_mode

GPU_FROM = 1000
"""Fewer boxes stay on the host: they are not worth a dozen launches and two copies."""

BLOCK = 256
"""Boxes that are decided together: first against all kept so far, then against each other."""

TILE = 128
"""Kept boxes that a block is compared with at a time, so that the temporary arrays stay in cache."""

DIVISORS = ("IOU", "IOMU", "IOFU")
"""By what a shared area is divided: the union, the smaller box, or the kept box (MS-CNN's names)."""


class Measure(NamedTuple):
    """How overlaps are counted. unit: 1 if a box's ends are pixels in it, so that its width is x2 - x1 + 1; 0 if points."""

    unit: int = 1
    divisor: str = "IOU"

    def areas(self, boxes: Array) -> Array:
        """(N,) of boxes (N, 4)."""
        area: Array = (boxes[:, 2] - boxes[:, 0] + self.unit) * (boxes[:, 3] - boxes[:, 1] + self.unit)
        return area


PIXELS = Measure()


TOGETHER = 64
"""Kept boxes that a compiled loop compares a box with before it looks whether one clashed."""


at, int32 = np.uint64, np.int32
"""An index that is not negative, for which Numba does not look whether it counts from the end, and a sum as wide as a float32:
with others the loop over kept boxes is not one over vectors, and takes eight times as long."""


@loop("T[:,::1], T[::1], T, float64, float64, int64")
def suppress(boxes: Array, areas: Array, unit: Any, threshold: float, eta: float, limit: int) -> NDArray[np.intp]:
    """Greedy suppression of boxes, the best first: the indices of those that are kept.

    boxes (N, 4): x1, y1, x2, y2, finite; areas (N,); unit: 1 if a box's ends are pixels in it, else 0. A box is kept unless it
    shares more than threshold of its union with a kept one. eta < 1: each box that is kept lowers threshold to eta times it,
    down to 0.5. limit: where to stop, 0 for nowhere.
    """
    kept, found = np.empty(len(boxes), np.intp), 0
    x1, y1, x2, y2, area = np.empty((5, len(boxes)), boxes.dtype)  # of the kept boxes
    bound, zero = np.empty(1, boxes.dtype), unit - unit
    for i in range(len(boxes)):
        left, top, right, bottom = boxes[i]
        bound[0] = threshold  # rounded to the boxes' type
        most, own, clashes = bound[0], areas[i], int32(0)
        for first in range(0, found, TOGETHER):
            for k in range(first, min(first + TOGETHER, found)):
                width = (right if right < x2[at(k)] else x2[at(k)]) - (left if left > x1[at(k)] else x1[at(k)]) + unit
                height = (bottom if bottom < y2[at(k)] else y2[at(k)]) - (top if top > y1[at(k)] else y1[at(k)]) + unit
                shared = (width if width > 0 else zero) * (height if height > 0 else zero)
                clashes += int32(shared / (area[at(k)] + own - shared) > most)  # not of two boxes without an area: NaN
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


def suppressed(
    boxes: Array, areas: Array, unit: int, threshold: float, *, eta: float = 1, limit: int = 0
) -> NDArray[np.intp] | None:
    """Which of these boxes (N, 4), the best first, suppress keeps, compiled; None where NumPy has to say: without Numba, and
    for numbers that are not finite."""
    if not loops.compiled() or not threshold >= 0 or not (np.isfinite(boxes).all() and np.isfinite(areas).all()):
        return None
    return suppress(np.ascontiguousarray(boxes), areas, boxes.dtype.type(unit), float(threshold), float(eta), limit)  # type: ignore[no-any-return]


def nms(dets: ArrayLike, threshold: float, limit: int = 0) -> NDArray[np.intp]:
    """Indices (K,) of the kept boxes, best first; dets (N, 5): x1, y1, x2, y2, score. limit: most indices (0: all).

    A NaN score sorts last. Overlaps are computed in the dtype of dets. In GPU mode the GPU does it, from GPU_FROM boxes on.
    """
    table = np.asarray(dets)
    if gpu_mode() and len(table) >= GPU_FROM and table.dtype in (np.float32, np.float64):
        return gpu_nms(table, threshold, limit)
    return nms_by(PIXELS, table, threshold, limit)


def nms_by(measure: Measure, table: Array, threshold: float, limit: int = 0) -> NDArray[np.intp]:
    """nms on the CPU, with overlaps as measured."""
    order = np.argsort(-table[:, 4], kind="stable")
    boxes = table[order, :4].astype(np.result_type(table, np.float32), copy=False)
    return order[kept_boxes(boxes, measure.areas(boxes), threshold, measure, limit)]


def kept_boxes(boxes: Array, areas: Array, threshold: float, measure: Measure = PIXELS, limit: int = 0) -> NDArray[np.intp]:
    """Which of boxes (N, 4) of these areas (N,), the best first, are kept, on the CPU."""
    if measure.divisor == "IOU" and (best := suppressed(boxes, areas, measure.unit, threshold, limit=limit)) is not None:
        return best
    kept = np.zeros(0, np.intp)
    for start in range(0, len(boxes), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(boxes)))
        above = Overlaps(boxes[block], threshold, min(TILE, len(kept)), measure, areas[block])
        clash = np.zeros(len(block), bool)
        for tile in (kept[first : first + TILE] for first in range(0, len(kept), TILE)):
            clash |= above(boxes[tile], areas[tile]).any(axis=0)
        block = block[~clash]
        above = Overlaps(boxes[block], threshold, len(block), measure, areas[block])
        kept = np.concatenate([kept, block[survivors(above(boxes[block], areas[block]))]])
        if limit and len(kept) >= limit:
            return kept[:limit]
    return kept


class Overlaps:
    """Says which boxes overlap others (K, 4) by more than threshold, at most `most` boxes at a time.

    Every pass is over whole arrays that stay in cache and are used again: others' corners are laid out once for each row,
    as NumPy's minimum of an array and a number is several times slower than that of two arrays. areas: the others' (K,), by
    default those of their corners.
    """

    def __init__(
        self, others: Array, threshold: float, most: int, measure: Measure = PIXELS, areas: Array | None = None
    ) -> None:
        self._threshold, self._measure, shape = threshold, measure, (most, len(others))
        self._corners = [np.array(np.broadcast_to(corner, shape), order="C") for corner in others.T]
        self._areas = measure.areas(others) if areas is None else areas
        self._work, self._zeros = np.empty((3, *shape), others.dtype), np.zeros(shape, others.dtype)

    def __call__(self, boxes: Array, areas: Array | None = None) -> NDArray[np.bool_]:
        """(N, K) for boxes (N, 4); False where an area is 0 or NaN. areas: theirs (N,), by default those of their corners."""
        areas = self._measure.areas(boxes) if areas is None else areas
        width, height, other = self._work[:, : len(boxes)]
        for axis, out in enumerate((width, height)):
            out[...] = boxes[:, axis + 2, None]
            np.minimum(out, self._corners[axis + 2][: len(boxes)], out=out)
            other[...] = boxes[:, axis, None]
            np.maximum(other, self._corners[axis][: len(boxes)], out=other)
            np.subtract(out, other, out=out)
            if self._measure.unit:
                np.add(out, self._measure.unit, out=out)
            np.maximum(out, self._zeros[: len(boxes)], out=out)
        shared = np.multiply(width, height, out=width)
        with np.errstate(divide="ignore", invalid="ignore"):
            shared /= self._whole(areas[:, None], shared, out=height)
        above: NDArray[np.bool_] = shared > self._threshold
        return above

    def _whole(self, areas: Array, shared: Array, out: Array) -> Array:
        """What shared (N, K) is a part of, for boxes of these areas (N, 1)."""
        if self._measure.divisor == "IOFU":
            return areas
        if self._measure.divisor == "IOMU":
            return np.minimum(areas, self._areas, out=out)
        whole: Array = np.add(areas, self._areas, out=out)
        whole -= shared
        return whole


def survivors(clash: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which (N,) boxes are left when each, unless removed itself, removes the later ones that it clashes with (N, N)."""
    alive, later = np.ones(len(clash), bool), np.triu(clash, 1)
    for i in np.flatnonzero(later.any(axis=1)):  # the others remove none
        if alive[i]:
            alive &= ~later[i]
    return alive
