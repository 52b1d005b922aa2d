"""ROIPooling: the maximum over each bin of a grid over each roi.

    y[r, c, ph, pw] = max x[n_r, c, h, w] over h in [hstart, hend), w in [wstart, wend)

Corners are rounded (halves away from zero) after scaling. The roi is x2 - x1 + 1 wide and at least 1. Bins are [floor, ceil),
clipped to the map. MS-CNN's pad_ratio first widens a roi on each side by this part of its x2 - x1 + 1.

Source: Fast R-CNN (Girshick 2015), roi_pooling_layer.cpp and .cu of caffe-fast-rcnn.
"""

# RoiPool.plan cuts the bins, and roi_bin_maxima.py finds their maxima; it opens with the definition as a plain loop.

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.roi import Winners

from .operator import WideningOperator
from .roi_bin_maxima import add_at_maxima, cover_bins, find_argmax, find_maxima, working_bytes
from .roi_geometry import AxisSteps, BinPlan, RoiPlan, cut_axis, cut_corners, round_half_away
from .roi_layer import MaximaLayer


@dataclass(frozen=True, kw_only=True)
class RoiPool(WideningOperator):
    """Maxima over bins. argmax holds h * W + w of each bin's first maximum, -1 if nothing won."""

    takes_maxima = True

    def plan(self, rois: Array, size: tuple[int, int]) -> BinPlan:
        """Return the plan of rois, which are widened, scaled, rounded to pixels, then cut into bins.

        The edges of the steps are counted from the roi's first pixel.
        """
        rois = self.widened(rois)
        scaled = rois[:, 1:] * rois.dtype.type(self.spatial_scale)
        corners = round_half_away(scaled).astype(np.int64)

        def cut(first: Array, last: Array, count: int) -> AxisSteps:
            extent = np.maximum(last - first + 1, 1)  # as in the original, malformed rois count as 1x1
            steps = cut_axis(np.zeros(len(rois), rois.dtype), extent.astype(rois.dtype), count).whole()
            return steps._replace(extent=extent, start=steps.start + first[:, None], end=steps.end + first[:, None])

        steps = cut_corners(scaled, corners, (self.pooled_h, self.pooled_w), cut)
        return RoiPlan(rois, size, steps, steps.clipped(size))

    def pool(self, x: Array, plan: BinPlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        windows = cover_bins(plan)
        if y is not None:
            find_maxima(x, windows, y)
        if argmax is not None:
            find_argmax(x, windows, argmax)

    def pool_backward(self, dy: Array, plan: BinPlan, argmax: Array | None, dx: Array) -> None:
        assert argmax is not None
        add_at_maxima(dy, plan.images, argmax, dx)

    def working_bytes(self, x: Blob, y: Blob, *, train: bool, backward: bool) -> int:
        """Return an estimate of the bytes, for rois that cover the whole map.

        Smaller ones take less; many of all sizes may take a third more.
        """
        images, _, height, width = x.shape
        roi = np.array([[0, 0, 0, width - 1, height - 1]], x.dtype)
        return working_bytes(replace(self, spatial_scale=1, pad_ratio=0).plan(roi, (height, width)), y.shape[0], images)

    def gpu_kernels(self, dtype: np.dtype[Any]) -> Winners:
        return Winners("roi_pooling", dtype, self.pad_ratio)


class ROIPooling(MaximaLayer):
    """Max pooling over rois.

    bottom: x (N, C, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels. top: y (R, C, pooled_h, pooled_w).
    An empty bin gives 0; a bin of nothing but NaN and -inf gives -FLT_MAX; neither passes a gradient. The first of
    equal maxima takes the gradient. Raises LayerError for pooled_h or pooled_w 0 and for bad rois.
    """

    type = "ROIPooling"
    param_block = ("roi_pooling_param",)
    uses_kernels = ((), (add_at_maxima,))
    kind = RoiPool
    operator: RoiPool
