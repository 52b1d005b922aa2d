"""Non-maximum suppression: keep the best box, drop those that overlap it by more than the threshold, and again.

Areas are counted inclusively; a box is dropped when its overlap is > threshold (the originals' GPU code; their Cython code
takes >=); equal scores: the lower index first. Source: py-faster-rcnn's nms/nms_kernel.cu.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.cuda.nms import nms as gpu_nms
from minicaffe.mode import gpu_mode

from .boxes import box_area

Array = NDArray[Any]

GPU_FROM = 1000
"""Boxes below which the host is left to do it: a dozen launches and two copies wait for too little work."""

BLOCK = 256
"""Boxes that are decided together: against all kept so far in one step, and then against each other."""


def nms(dets: ArrayLike, threshold: float, limit: int = 0) -> NDArray[np.intp]:
    """Indices (K,) of the kept boxes, best first; dets (N, 5): x1, y1, x2, y2, score. limit: stop at so many (0: all).

    A NaN score sorts last. Overlaps are computed in the dtype of dets. In GPU mode the GPU does it, from GPU_FROM boxes on.
    """
    table = np.asarray(dets)
    if gpu_mode() and len(table) >= GPU_FROM and table.dtype in (np.float32, np.float64):
        return gpu_nms(table, threshold, limit)
    order = np.argsort(-table[:, 4], kind="stable")
    boxes = table[order, :4]
    kept = np.zeros(0, np.intp)
    for start in range(0, len(order), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(order)))
        block = block[~(overlaps_above(boxes[kept], boxes[block], threshold)).any(axis=0)]
        kept = np.concatenate([kept, block[survivors(overlaps_above(boxes[block], boxes[block], threshold))]])
        if limit and len(kept) >= limit:
            return order[kept[:limit]]
    return order[kept]


def overlaps_above(boxes: Array, others: Array, threshold: float) -> NDArray[np.bool_]:
    """Whether (N, K) boxes (N, 4) overlap others (K, 4) by more than threshold; False where an area is 0 or NaN."""
    x1, y1, x2, y2 = boxes.T[:, :, None]
    u1, v1, u2, v2 = others.T[:, None, :]
    width = np.maximum(np.minimum(x2, u2) - np.maximum(x1, u1) + 1, 0)
    shared = width * np.maximum(np.minimum(y2, v2) - np.maximum(y1, v1) + 1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        above: NDArray[np.bool_] = shared / (box_area(boxes)[:, None] + box_area(others) - shared) > threshold
    return above


def survivors(clash: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which (N,) boxes are left when each, unless removed itself, removes the later ones that it clashes with (N, N)."""
    alive = np.ones(len(clash), bool)
    for i in range(len(clash)):
        if alive[i]:
            alive[i + 1 :] &= ~clash[i, i + 1 :]
    return alive
