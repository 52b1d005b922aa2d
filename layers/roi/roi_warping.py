"""ROIWarping: one bilinear sample of x at the start of each bin.

    y[r, c, ph, pw] = x[n_r, c] at (y1 + ph * height / PH, x1 + pw * width / PW)

Corners are scaled and rounded, halves away from zero. The size is x2 - x1, at least 0. A sample outside [-0.5, H - 0.5] is 0; a
sample past the outer pixels has their value.

Source: Dai et al., Instance-aware Semantic Segmentation via Multi-task Network Cascades (2016); caffe-mnc's
roi_warping_layer.cu.
"""

# RoiWarp.plan places the samples. The definition is the loop of means_by_definition in roi_samples.py.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.cuda.roi import Means

from .roi_align_mean import MEAN_KERNELS, GridMeans
from .roi_geometry import AxisSteps, RoiPlan, at_least, cut_axis, cut_corners, round_half_away
from .roi_layer import RoiLayer
from .roi_samples import SamplePlan, Samples


@dataclass(frozen=True, kw_only=True)
class RoiWarp(GridMeans):
    """One sample for each bin."""

    def most_samples(self, length: int, bins: int) -> int:
        return 1

    def plan(self, rois: Array, size: tuple[int, int]) -> SamplePlan:
        """Return the plan of rois, scaled, rounded and cut into bins, with a sample at each bin's start."""
        scaled = rois[:, 1:] * rois.dtype.type(self.spatial_scale)

        def cut(first: Array, last: Array, count: int) -> AxisSteps:
            return cut_axis(first, at_least(0, last - first), count)

        steps = cut_corners(scaled, round_half_away(scaled), (self.pooled_h, self.pooled_w), cut)
        h, w = _on_map(steps.h.start, size[0]), _on_map(steps.w.start, size[1])
        return RoiPlan(rois, size, steps, Samples(h, w, np.ones(len(rois), rois.dtype)))

    def gpu_kernels(self, dtype: np.dtype[Any]) -> Means:
        return Means("roi_warping", dtype)


class ROIWarping(RoiLayer):
    """One bilinear sample for each bin.

    bottom: x (N, C, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels. top: y (R, C, pooled_h, pooled_w).
    The gradient of rois is zero: forward rounds their corners. Raises LayerError for pooled_h or pooled_w 0, and bad rois.
    """

    type = "ROIWarping"
    param_block = ("roi_warping_param",)

    uses_kernels = MEAN_KERNELS

    kind = RoiWarp
    operator: RoiWarp


def _on_map(start: Array, size: int) -> Array:
    """Return positions (R, pooled, 1) along an axis of that size; NaN off the map."""
    on_map = (start >= -0.5) & (start <= size - 0.5) & (size > 0)
    return np.where(on_map, start, start.dtype.type(np.nan))[:, :, None]
