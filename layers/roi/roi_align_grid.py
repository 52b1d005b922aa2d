"""Cascade R-CNN's ROIAlign: bilinear samples at the corners of the bins.

    y[r, c, ph, pw] = x[n_r, c] at (y1 + ph * height / PH, x1 + pw * width / PW), ph in [0, PH], pw in [0, PW]

Source: Cai and Vasconcelos, Cascade R-CNN (2018); roi_align_layer.cpp of cascade-rcnn and mscnn. The roi is widened by
pad_ratio (WideningOperator); its corners are scaled and moved by -0.5, not rounded; the size is x2 - x1. A roi without height
or width gives 0, as does a place outside [-0.5, H - 0.5]; one past the outer pixels has their value: RoiAlignGrid.plan. A
Pooling of 2 x 2 after it makes each bin the mean of its corners. The definition is the loop of means_by_definition in
roi_samples.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.cuda.roi import Means

from .operator import WideningOperator
from .roi_align_mean import GridMeans
from .roi_geometry import AxisSteps, RoiPlan, cut_axis, cut_corners
from .roi_samples import SamplePlan, Samples


@dataclass(frozen=True, kw_only=True)
class RoiAlignGrid(WideningOperator, GridMeans):
    """One sample at each corner of the pooled_h x pooled_w bins: (pooled_h + 1) x (pooled_w + 1) of them."""

    def bins(self, channels: int) -> tuple[int, int, int]:
        return channels, self.pooled_h + 1, self.pooled_w + 1

    def most_samples(self, length: int, bins: int) -> int:
        return 1

    def plan(self, rois: Array, size: tuple[int, int]) -> SamplePlan:
        """rois widened, scaled, moved by half a pixel and cut into bins, and their corners. Start and end of the steps are the
        corners."""
        rois = self.widened(rois)
        scaled = rois[:, 1:] * rois.dtype.type(self.spatial_scale)

        def cut(first: Array, last: Array, count: int) -> AxisSteps:
            steps = cut_axis(first, last - first, count)
            return steps._replace(start=steps.edges, end=steps.edges)

        steps = cut_corners(scaled, scaled - rois.dtype.type(0.5), (self.pooled_h, self.pooled_w), cut)
        h, w = _on_map(steps.h, size[0]), _on_map(steps.w, size[1])
        return RoiPlan(rois, size, steps, Samples(h, w, np.ones(len(rois), rois.dtype)))

    def gpu_kernels(self, dtype: np.dtype[Any]) -> Means:
        return Means("roi_align_grid", dtype, pad_ratio=self.pad_ratio)


def _on_map(axis: AxisSteps, size: int) -> Array:
    """The corners (R, P + 1, 1) along an axis of that size; NaN off the map, and for a roi without length."""
    at = axis.start
    used = (axis.extent > 0)[:, None] & (at >= -0.5) & (at <= size - 0.5) & (size > 0)
    places: Array = np.where(used, at, at.dtype.type(np.nan))[:, :, None]
    return places
