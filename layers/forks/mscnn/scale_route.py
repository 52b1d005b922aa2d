"""ScaleRoute: the rois of one level of a feature pyramid, by their size.

    low_scale <= sqrt(area of the roi) < high_scale; if none is, the one whose size is nearest the middle, in octaves

    middle = sqrt(low_scale * high_scale), or the one that is given, or 256

Source: cascade-rcnn's scale_route_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.data.boxes import rows
from minicaffe.layers.proposal.cascade_boxes import sizes_in_pixels
from minicaffe.layers.proposal.dynamic_tops import DynamicTops

BLOCK = "scale_route_param"


class ScaleRoute(DynamicTops):
    """The rows of each bottom that belong to the rois of this size.

    bottom: rois (R, 5): image, x1, y1, x2, y2 in pixels, both ends inclusive; any others (R, ...). top: for each bottom its
    rows (S, ...), S > 0, in their order. Sizes are in pixels. No gradient.
    Raises LayerError for another number of tops than bottoms, bottoms of other lengths, scales that are not 0 < low_scale <=
    high_scale, and where no roi has an area.
    """

    type = "ScaleRoute"
    num_bottom = (1, None)
    num_top = (1, None)
    param_block = (BLOCK,)
    weight_names = ()
    has_gradient = False
    makes_rois = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom) != len(top):
            raise self.error(f"takes a top for each bottom, got {len(bottom)} bottoms and {len(top)} tops", "top")
        self.index_bottoms = tuple(range(len(bottom)))
        param = self.param.scale_route_param
        low, high = (getattr(param, name) if param.HasField(name) else None for name in ("low_scale", "high_scale"))
        self.low, self.high = low or 0.0, math.inf if high is None else high
        if (low is not None and not low > 0) or not self.low <= self.high or not self.high > 0 or high == math.inf:
            raise self.error(f"scales must be 0 < low_scale <= high_scale, got {self.low:g} and {self.high:g}", BLOCK)
        if low is not None and high is not None:
            self.middle = math.sqrt(low * high)
        else:
            self.middle = low or high or 256.0

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if bottom[0].shape[1:2] != (5,) or bottom[0].count != 5 * bottom[0].shape[0]:
            raise self.error(f"the rois must be (R, 5): image, x1, y1, x2, y2; got shape {bottom[0].shape}", "bottom[0]")
        for i, (blob, out) in enumerate(zip(bottom, top, strict=True)):
            if blob.shape[:1] != bottom[0].shape[:1]:
                lengths = f"{bottom[0].shape[0]} rois and {blob.shape[0] if blob.shape else 0} rows"
                raise self.error(f"bottoms 0 and {i} have {lengths}", f"bottom[{i}]")
            out.reshape(1, *blob.shape[1:])

    def suppose_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        for blob, out in zip(bottom, top, strict=True):
            out.reshape(blob.shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        which = self._chosen(bottom[0])
        for blob, out in zip(bottom, top, strict=True):
            out.reshape(len(which), *blob.shape[1:])
            out.data[...] = blob.data[which]

    def _chosen(self, rois: Blob) -> NDArray[np.intp]:
        """The indices of the rois of this size, or of the nearest one. Raises LayerError if none has an area."""
        scales = np.sqrt(sizes_in_pixels(rows(rois)[:, 1:]))
        which = np.flatnonzero((scales >= self.low) & (scales < self.high))
        if len(which):
            return which
        sized = np.flatnonzero(scales > 0)
        if not len(sized):
            raise self.error("no roi has an area: there is none to go on with", "bottom[0]")
        nearest = np.abs(np.log2(scales[sized] / self.middle)).argmin()
        return sized[nearest : nearest + 1]
