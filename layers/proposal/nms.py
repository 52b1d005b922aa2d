"""Non-maximum suppression: keep the best box, drop those that overlap it by more than the threshold, and repeat.

Areas are counted inclusively; a box is dropped when its overlap is > threshold (the originals' GPU code; their Cython code
takes >=); equal scores: the lower index first. The definition is suppress_by_definition.
Source: py-faster-rcnn's nms/nms_kernel.cu. MS-CNN counts overlaps in other ways, too: mscnn's util/math_functions.cpp,
cascade-rcnn's util/bbox_util.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.blob import Array
from minicaffe.cuda.proposal import nms as gpu_nms
from minicaffe.kernels import kernel
from minicaffe.mode import gpu_mode

GPU_FROM = 1000
"""Least boxes for the GPU. Fewer are not worth a dozen launches and two copies."""

BLOCK = 256
"""Boxes that are decided together: first against all boxes kept so far, then against each other."""

TILE = 128
"""Kept boxes that a block is compared with at a time, so that the temporary arrays stay in cache."""

DIVISORS = ("IOU", "IOMU", "IOFU")
"""The divisor of a shared area: the union, the smaller box, or the kept box (MS-CNN's names)."""


class Measure(NamedTuple):
    """The measure of overlaps.

    unit: 1 if a box's ends are pixels in it, so that its width is x2 - x1 + 1; 0 if points.
    """

    unit: int = 1
    divisor: str = "IOU"

    def areas(self, boxes: Array) -> Array:
        """Return the areas (N,) of boxes (N, 4)."""
        area: Array = (boxes[:, 2] - boxes[:, 0] + self.unit) * (boxes[:, 3] - boxes[:, 1] + self.unit)
        return area


PIXELS = Measure()


def suppress_by_definition(boxes: Array, areas: Array, unit: int, threshold: float) -> list[int]:
    """Return the indices of the boxes (N, 4), best first, that are kept.

    The intersection over union of a kept box and each box kept before it is at most threshold. areas: (N,); unit: 1 if a box's
    ends are pixels in it, else 0.
    """
    kept: list[int] = []
    for i in range(len(boxes)):
        clashes = False
        for k in kept:
            width = max(min(boxes[i, 2], boxes[k, 2]) - max(boxes[i, 0], boxes[k, 0]) + unit, 0)
            height = max(min(boxes[i, 3], boxes[k, 3]) - max(boxes[i, 1], boxes[k, 1]) + unit, 0)
            union = areas[i] + areas[k] - width * height
            clashes = clashes or bool(union != 0 and width * height / union > threshold)
        if not clashes:
            kept.append(i)
    return kept


def nms(dets: ArrayLike, threshold: float, limit: int = 0) -> NDArray[np.intp]:
    """Return the indices (K,) of the kept boxes, best first.

    dets (N, 5): x1, y1, x2, y2, score. limit: most indices (0: all). A NaN score sorts last. Overlaps are computed in the dtype
    of dets. In GPU mode the GPU computes it, from GPU_FROM boxes on.
    """
    table = np.asarray(dets)
    if gpu_mode() and len(table) >= GPU_FROM and table.dtype in (np.float32, np.float64):
        return gpu_nms(table, threshold, limit)
    return nms_by(PIXELS, table, threshold, limit)


def nms_by(measure: Measure, table: Array, threshold: float, limit: int = 0) -> NDArray[np.intp]:
    """Return nms's result, computed on the CPU, with overlaps by this measure."""
    order = np.argsort(-table[:, 4], kind="stable")
    boxes = table[order, :4].astype(np.result_type(table, np.float32), copy=False)
    kept: NDArray[np.intp] = order[kept_boxes(boxes, measure.areas(boxes), threshold, measure, limit)]
    return kept


@kernel
def kept_boxes(boxes: Array, areas: Array, threshold: float, measure: Measure = PIXELS, limit: int = 0) -> NDArray[np.intp]:
    """Return which of boxes (N, 4), best first and with areas (N,), are kept. Runs on the CPU."""
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
    """A test of which boxes overlap others (K, 4) by more than threshold, for at most `most` boxes at a time.

    Every pass runs over whole arrays that stay in cache. Others' corners are repeated for each row: NumPy's minimum of an array
    and a number is several times slower than of two arrays. areas: the others' (K,), by default those of their corners.
    """

    def __init__(
        self, others: Array, threshold: float, most: int, measure: Measure = PIXELS, areas: Array | None = None
    ) -> None:
        self._threshold, self._measure, shape = threshold, measure, (most, len(others))
        self._corners = [np.array(np.broadcast_to(corner, shape), order="C") for corner in others.T]
        self._areas = measure.areas(others) if areas is None else areas
        self._work, self._zeros = np.empty((3, *shape), others.dtype), np.zeros(shape, others.dtype)

    def __call__(self, boxes: Array, areas: Array | None = None) -> NDArray[np.bool_]:
        """Return which boxes (N, 4) overlap the others, (N, K); False if an area is 0 or NaN.

        areas: the boxes' (N,), by default those of their corners.
        """
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
        """Return the denominator of an overlap, for shared areas (N, K) and boxes of these areas (N, 1)."""
        if self._measure.divisor == "IOFU":
            return areas
        if self._measure.divisor == "IOMU":
            return np.minimum(areas, self._areas, out=out)
        whole: Array = np.add(areas, self._areas, out=out)
        whole -= shared
        return whole


def survivors(clash: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which (N,) boxes survive, if each survivor removes the later ones that it clashes with (N, N)."""
    alive, later = np.ones(len(clash), bool), np.triu(clash, 1)
    for i in np.flatnonzero(later.any(axis=1)):  # the other boxes remove none
        if alive[i]:
            alive &= ~later[i]
    return alive
