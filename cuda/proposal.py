"""The proposals of one image on the GPU: the same boxes as layers/proposal/proposal.py's `proposals`, in the same order.

    proposal_boxes: anchors + deltas -> clipped, with keys -> sort.py -> proposal_best -> nms.py -> proposal_rois

Only the number of rois is copied to the host, for the shape of the top.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from minicaffe.blob import Blob
from minicaffe.errors import Error

from .device import current, launch
from .nms import Suppression
from .sort import Sorting

if TYPE_CHECKING:
    from minicaffe.layers.proposal.proposal import ProposalLimits


class ProposalKernels:
    """anchors (A, 4), their stride, and the deviations and means (2, 4) of normalised deltas (or None), for maps of a dtype."""

    def __init__(self, dtype: DTypeLike, anchors: NDArray[Any], stride: int, normal: ArrayLike | None) -> None:
        self.dtype, self.stride, self.anchors = np.dtype(dtype), stride, len(anchors)
        self._reference = _filled(anchors, np.float64)
        self._normal = None if normal is None else _filled(normal, dtype)
        self._boxes, self._best, self._count = Blob((), dtype), Blob((), dtype), Blob((), np.int32)
        self._sorting, self._suppression = Sorting(dtype), Suppression(dtype)

    def run(
        self, bottom: Sequence[Blob], top: Sequence[Blob], limits: ProposalLimits, bad_info: Callable[[int], Error]
    ) -> None:
        """bottom: scores, deltas, im_info, a position at least; top: rois and optionally their scores, reshaped here.
        bad_info: the error for an invalid im_info, raised here."""
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
        found = self._suppression.count()  # waits
        for blob, values in zip(top, (5, 1)):
            blob.reshape(found, values)  # smaller: the memory and its numbers stay

    def _sorted(
        self, bottom: Sequence[Blob], most: int, min_size: float, bad_info: Callable[[int], Error]
    ) -> tuple[int, int, int]:
        """Addresses: the places of the boxes, best first; the best boxes (most, 4); their number."""
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
