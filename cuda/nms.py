"""Non-maximum suppression on the GPU, of boxes sorted there. It keeps the same boxes as layers/proposal/nms.py.

    2048 boxes at a time: which clash, as bits (64 x 64 a block) -> one block takes them in order and appends the kept ones
    -> those remove the later boxes that they clash with

Nothing is copied to the host: the number of boxes, and that of kept ones, stay on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from minicaffe.blob import Blob

from .device import launch, launch_blocks
from .sort import Sorting

SLAB = 2048
"""Boxes at a time: SLAB of nms.cu."""


@dataclass(frozen=True)
class Kept:
    """Addresses: the places of the kept boxes among the sorted ones (ints), and their number (an int)."""

    places: int
    count: int


class Suppression:
    """Suppression of boxes of a dtype; this object holds its memory."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._mask = Blob((SLAB, SLAB // 64), np.uint64)
        self._removed = Blob((), np.uint8)
        self._state = Blob((2,), np.int32)
        self._kept = Blob((), np.int32)

    def run(self, boxes: int, count: int, most: int, threshold: float, limit: int = 0) -> Kept:
        """boxes: the address of at most `most` boxes (4 each), best first; count: the address of their number, an int.
        limit: the most boxes to keep (0: all)."""
        self._removed.reshape(most)
        self._kept.reshape(most)
        mask, removed = self._mask.device_data("update"), self._removed.device_data("write")
        state, kept = self._state.device_data("write"), self._kept.device_data("update")
        launch("nms.nms_start", self.dtype, max(most, 1), most, state, removed)  # sets the state even of no boxes
        for start in range(0, most, SLAB):
            tiles = -(-min(most - start, SLAB) // 64)
            given = (count, start, boxes, threshold, limit, state)
            launch_blocks("nms.nms_mask", self.dtype, (tiles, tiles), (64, 1, 1), *given, mask)
            launch_blocks("nms.nms_scan", self.dtype, (1, 1), (256, 1, 1), count, start, removed, mask, limit, state, kept)
            later = most - start - SLAB
            given = (count, start + SLAB, boxes, threshold, limit, state)
            launch_blocks("nms.nms_remove", self.dtype, (-(-max(later, 0) // 256), 1), (256, 1, 1), *given, kept, removed)
        return Kept(kept, state)

    def count(self) -> int:
        """How many boxes the last run kept; waits for it."""
        return int(self._state.read_data()[0])


def nms(dets: NDArray[Any], threshold: float, limit: int = 0) -> NDArray[np.intp]:
    """layers/proposal/nms.py's nms, of dets (N, 5), float32 or float64, N > 0."""
    count, dtype = len(dets), dets.dtype
    table, ranked = Blob(dets.shape, dtype), Blob((count, 4), dtype)
    number, found = Blob((), np.int32), Blob((count,), np.int32)
    table.data[...] = dets
    number.data[...] = count
    rows, boxes, places = table.device_data("read"), ranked.device_data("write"), found.device_data("write")
    sorting, suppression = Sorting(dtype), Suppression(dtype)
    launch("nms.nms_keys", dtype, count, count, rows, sorting.keys(count))
    order = sorting.run()[1]
    launch("nms.nms_ranked", dtype, count, count, rows, order, boxes)
    kept = suppression.run(boxes, number.device_data("read"), count, threshold, limit)
    launch("nms.nms_found", dtype, count, count, kept.count, kept.places, order, places)
    return found.read_data()[: suppression.count()].astype(np.intp)
