"""ROIPooling: the maximum over each bin of a grid laid over each roi.

    y[r, c, ph, pw] = max x[n_r, c, h, w] over h in [hstart, hend), w in [wstart, wend)

Source: Fast R-CNN (Girshick 2015), roi_pooling_layer.cpp and .cu of caffe-fast-rcnn. Corners are rounded (halves away
from zero) after scaling, the roi is x2 - x1 + 1 wide and at least 1, bins are [floor, ceil), clipped to the map:
roi_pool_plan. The maxima are found in roi_bin_maxima.py, which opens with the same as a plain loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.blob import Blob

from .roi.roi_bin_maxima import add_at_maxima, cover_bins, find_argmax, find_maxima, working_bytes
from .roi.roi_geometry import Array, AxisSteps, BinPlan, RoiPlan, checked, cut_axis, cut_corners, round_half_away
from .roi.roi_layer import MaximaLayer


class ROIPooling(MaximaLayer):
    """Max pooling over rois (see the module's formula).

    bottom: x (N, C, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels. top: y (R, C, pooled_h, pooled_w).
    An empty bin gives 0; a bin of nothing but NaN and -inf gives -FLT_MAX; neither passes a gradient. The first of
    equal maxima takes the gradient. Raises LayerError for pooled_h or pooled_w 0 and for bad rois.
    """

    type = "ROIPooling"
    param_block = ("roi_pooling_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.read_pooled(self.param.roi_pooling_param, "roi_pooling_param")
        self.make_kernels("roi_pooling")

    def plan_rois(self, rois: Array, size: tuple[int, int]) -> BinPlan:
        return roi_pool_plan(rois, (self.pooled_h, self.pooled_w), self.spatial_scale, size)

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        """Of rois that have the whole map. Smaller ones take less; many of all sizes may take a third more."""
        images, _, height, width = bottom[0].shape
        roi = np.array([[0, 0, 0, width - 1, height - 1]], self.dtype)
        plan = roi_pool_plan(roi, (self.pooled_h, self.pooled_w), 1, (height, width))
        return working_bytes(plan, bottom[1].shape[0], images)

    def pool(self, x: Array, plan: BinPlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        windows = cover_bins(plan)
        if y is not None:
            find_maxima(x, windows, y)
        if argmax is not None:
            find_argmax(x, windows, argmax)

    def send_back(self, dy: Array, plan: BinPlan, argmax: NDArray[np.int32], dx: Array) -> None:
        add_at_maxima(dy, plan.images, argmax, dx)


def roi_pool_plan(rois: Array, pooled: tuple[int, int], spatial_scale: float, size: tuple[int, int]) -> BinPlan:
    """rois (R, 5) scaled, then rounded to pixels, then cut into (PH, PW) bins on a map of size (H, W).

    The edges of the steps are counted from the roi's first pixel.
    """
    scaled = rois[:, 1:] * rois.dtype.type(spatial_scale)
    corners = round_half_away(scaled).astype(np.int64)

    def cut(first: Array, last: Array, count: int) -> AxisSteps:
        extent = np.maximum(last - first + 1, 1)
        steps = cut_axis(np.zeros(len(rois), rois.dtype), extent.astype(rois.dtype), count).whole()
        return steps._replace(extent=extent, start=steps.start + first[:, None], end=steps.end + first[:, None])

    steps = cut_corners(scaled, corners, pooled, cut)
    return RoiPlan(rois, size, steps, steps.clipped(size))


def roi_pool(
    x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float, *, out: Array | None = None
) -> Array:
    """x (N, C, H, W), rois (R, 5) -> maxima (R, C, PH, PW)."""
    x, rois = checked(x, rois, spatial_scale)
    y = np.empty((len(rois), x.shape[1], pooled_h, pooled_w), x.dtype) if out is None else out
    find_maxima(x, cover_bins(roi_pool_plan(rois, (pooled_h, pooled_w), spatial_scale, x.shape[2:])), y)
    return y


def roi_pool_argmax(
    x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float, *, out: NDArray[np.int32] | None = None
) -> NDArray[np.int32]:
    """x (N, C, H, W), rois (R, 5) -> h * W + w of each bin's first maximum (R, C, PH, PW), -1 where nothing won."""
    x, rois = checked(x, rois, spatial_scale)
    argmax = np.empty((len(rois), x.shape[1], pooled_h, pooled_w), np.int32) if out is None else out
    find_argmax(x, cover_bins(roi_pool_plan(rois, (pooled_h, pooled_w), spatial_scale, x.shape[2:])), argmax)
    return argmax


def roi_pool_backward(dy: Array, rois: Array, argmax: Array, x_shape: Sequence[int], *, out: Array | None = None) -> Array:
    """dy (R, C, PH, PW), argmax of the same shape -> dx (N, C, H, W): each dy goes to its maximum."""
    dx = np.empty(x_shape, dy.dtype) if out is None else out
    images = rois.reshape(-1, 5)[:, 0].astype(np.int64)
    add_at_maxima(dy, images, argmax.astype(np.int32, copy=False), dx)
    return dx
