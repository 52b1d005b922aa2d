"""One image's proposals on the GPU: the same boxes as layers/proposal/proposal.py's `proposals`, in the same order.

    proposal_boxes: anchors + deltas -> clipped, with keys -> Sorting -> proposal_best -> Suppression -> proposal_rois

Only the number of rois is copied to the host, for the shape of the top.

Sorting is stable: the greatest number first, NaN last. 2048 keys at a time are sorted in shared memory (bitonic), then each
launch merges runs in pairs and doubles them: 1 + log2(count / 2048) launches.

Suppression keeps the same boxes as layers/proposal/nms.py. Of 2048 boxes at a time a launch finds those that clash, as bits (64
x 64 a block). One block takes them in order and appends the kept ones, which then remove the later boxes that they clash with.
The number of boxes, and that of kept ones, stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from minicaffe.blob import Blob
from minicaffe.cuda.device import current, launch, launch_blocks
from minicaffe.errors import Error

if TYPE_CHECKING:
    from minicaffe.layers.proposal.proposal import ProposalLimits


CHUNK = 2048
"""Keys that one block sorts: CHUNK of sort.cu."""


class Sorting:
    """A sorter of numbers of a dtype by keys. It holds the memory of the keys and their positions."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        kind = np.uint32 if self.dtype == np.float32 else np.uint64
        self._keys = Blob((), kind), Blob((), kind)
        self._orders = Blob((), np.int32), Blob((), np.int32)

    def keys(self, count: int) -> int:
        """Return the address for a kernel to write count keys to (sort.cuh: descending_key, or LEFT_OUT)."""
        for blob in (*self._keys, *self._orders):
            blob.reshape(count)
        return self._keys[0].device_data("write")

    def put(self, count: int, scores: int) -> None:
        """Write the keys of count numbers, which are at the address scores."""
        launch("sort.descending_keys", self.dtype, count, count, scores, self.keys(count))

    def run(self) -> tuple[int, int]:
        """Sort the keys. Return the addresses of the sorted keys and of their positions, ints."""
        count = self._keys[0].count
        keys = [blob.device_data("update") for blob in self._keys]
        orders = [blob.device_data("update") for blob in self._orders]
        chunks = -(-count // CHUNK)
        launch_blocks("sort.sort_chunks", self.dtype, (chunks, 1), (512, 1, 1), count, keys[0], orders[0])
        length = CHUNK
        while length < count:
            launch("sort.merge_runs", self.dtype, count, count, length, keys[0], orders[0], keys[1], orders[1])
            keys.reverse()  # the next launch reads the merged runs
            orders.reverse()
            length *= 2
        return keys[0], orders[0]


SLAB = 2048
"""Boxes at a time: SLAB of nms.cu."""


@dataclass(frozen=True)
class Kept:
    """The addresses of the kept boxes' positions among the sorted ones (ints), and of their number (an int)."""

    places: int
    count: int


class Suppression:
    """Suppression of boxes of a dtype. It holds its memory."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        self._mask = Blob((SLAB, SLAB // 64), np.uint64)
        self._removed = Blob((), np.uint8)
        self._state = Blob((2,), np.int32)
        self._kept = Blob((), np.int32)

    def run(self, boxes: int, count: int, most: int, threshold: float, limit: int = 0) -> Kept:
        """Suppress boxes, and return the kept ones.

        boxes: the address of at most `most` boxes (4 each), best first; count: of their number, an int. limit: the most boxes
        to keep (0: all).
        """
        self._removed.reshape(most)
        self._kept.reshape(most)
        mask, removed = self._mask.device_data("update"), self._removed.device_data("write")
        state, kept = self._state.device_data("write"), self._kept.device_data("update")
        launch("nms.nms_start", self.dtype, max(most, 1), most, state, removed)  # sets the state even without boxes
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
        """Return how many boxes the last run kept. Waits for it."""
        return int(self._state.read_data()[0])


def nms(dets: NDArray[Any], threshold: float, limit: int = 0) -> NDArray[np.intp]:
    """Run layers/proposal/nms.py's nms on dets (N, 5), float32 or float64, N > 0."""
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


class ProposalKernels:
    """The kernels of proposals for maps of a dtype.

    anchors (A, 4), their stride, and the deviations and means (2, 4) of normalised deltas (or None).
    """

    def __init__(self, dtype: DTypeLike, anchors: NDArray[Any], stride: int, normal: ArrayLike | None) -> None:
        self.dtype, self.stride, self.anchors = np.dtype(dtype), stride, len(anchors)
        self._reference = _filled(anchors, np.float64)
        self._normal = None if normal is None else _filled(normal, dtype)
        self._boxes, self._best, self._count = Blob((), dtype), Blob((), dtype), Blob((), np.int32)
        self._sorting, self._suppression = Sorting(dtype), Suppression(dtype)

    def run(
        self, bottom: Sequence[Blob], top: Sequence[Blob], limits: ProposalLimits, bad_info: Callable[[int], Error]
    ) -> None:
        """Compute the proposals.

        bottom: scores, deltas, im_info, at least one position; top: rois and optionally their scores, reshaped here. bad_info:
        the error for an invalid im_info, raised here.
        """
        height, width = bottom[0].shape[2:]
        total = height * width * self.anchors
        most = min(total, limits.pre_nms_top_n) if limits.pre_nms_top_n > 0 else total
        order, best, count = self._sorted(bottom, most, limits.min_size, bad_info)
        kept = self._suppression.run(best, count, most, limits.nms_threshold, max(limits.post_nms_top_n, 0))
        room = min(most, limits.post_nms_top_n) if limits.post_nms_top_n > 0 else most
        for blob, values in zip(top, (5, 1)):
            blob.reshape(room, values)
        rois, *chosen = (blob.device_data("write") for blob in top)
        scores = bottom[0].device_data("read")
        given = (kept.count, kept.places, best, order, scores, self.anchors, height * width)
        launch("proposal.proposal_rois", self.dtype, room, room, *given, rois, *(chosen or [0]))
        found = self._suppression.count()  # waits for the GPU
        for blob, values in zip(top, (5, 1)):
            blob.reshape(found, values)  # smaller, so the memory and its numbers stay

    def _sorted(
        self, bottom: Sequence[Blob], most: int, min_size: float, bad_info: Callable[[int], Error]
    ) -> tuple[int, int, int]:
        """Return addresses: of the boxes' positions, best first; of the best boxes (most, 4); of their number."""
        height, width = bottom[0].shape[2:]
        total = height * width * self.anchors
        self._boxes.reshape(total, 4)
        self._best.reshape(most, 4)
        boxes, best, count = (blob.device_data("write") for blob in (self._boxes, self._best, self._count))
        maps = [blob.device_data("read") for blob in bottom]
        normal = 0 if self._normal is None else self._normal.device_data("read")
        given = (self.anchors, height, width, self.stride, *maps, self._reference.device_data("read"), normal, min_size)
        bad = current().current_stream.watch(bad_info)
        launch("proposal.proposal_boxes", self.dtype, total, *given, boxes, self._sorting.keys(total), bad)
        keys, order = self._sorting.run()
        launch("proposal.proposal_best", self.dtype, most, most, keys, order, boxes, best, count)
        return order, best, count


def _filled(values: ArrayLike, dtype: DTypeLike) -> Blob:
    blob = Blob(np.shape(values), dtype)
    blob.data[...] = values
    return blob
