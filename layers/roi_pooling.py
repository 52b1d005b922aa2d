"""ROIPooling: the maximum over each bin of a grid laid over each roi.

    y[r, c, ph, pw] = max x[n_r, c, h, w] over h in [hstart, hend), w in [wstart, wend)

Source: Fast R-CNN (Girshick 2015), roi_pooling_layer.cpp and .cu of caffe-fast-rcnn. Corners are rounded (halves away
from zero) after scaling, the roi is x2 - x1 + 1 wide and at least 1, bins are [floor, ceil), clipped to the map.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.blob import Blob
from minicaffe.cuda.roi import Sizes, Winners
from minicaffe.mode import TRAIN

from .roi_geometry import (
    Array,
    AxisSteps,
    Bins,
    RoiSteps,
    batch_index,
    bin_numbers,
    checked,
    clipped_bins,
    round_half_away,
)
from .roi_keys import Keys, Values
from .roi_layer import RoiLayer
from .roi_route import add_at_winners
from .roi_tables import pool_windows


class ROIPooling(RoiLayer):
    """Max pooling over rois (see the module's formula).

    bottom: x (N, C, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels. top: y (R, C, pooled_h, pooled_w).
    An empty bin gives 0; a bin of nothing but NaN and -inf gives -FLT_MAX; neither passes a gradient. The first of
    equal maxima takes the gradient. Raises LayerError for pooled_h or pooled_w 0 and for bad rois.
    """

    type = "ROIPooling"
    param_block = ("roi_pooling_param",)
    forward_gpu = RoiLayer.forward_gpu
    backward_gpu = RoiLayer.backward_gpu

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.roi_pooling_param
        self.pooled_h = self.read_positive(param, "roi_pooling_param", "pooled_h")
        self.pooled_w = self.read_positive(param, "roi_pooling_param", "pooled_w")
        self.spatial_scale = self.read_scale(param, "roi_pooling_param")
        self._kernels = Winners("roi_pooling", self.dtype)
        self._argmax: Blob | None = None
        self._places = Blob((), np.int32)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.check_shapes(bottom)
        top[0].reshape(bottom[1].shape[0], bottom[0].shape[1], self.pooled_h, self.pooled_w)

    def kept_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return 4 * top[0].count if self.phase == TRAIN else 0

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """The maxima; in TRAIN also where they are. In TEST that is left to a backward that asks for it."""
        rois = self.rois(bottom)
        roi_pool(bottom[0].data, rois, self.pooled_h, self.pooled_w, self.spatial_scale, out=top[0].data)
        self._argmax = self._find_argmax(bottom) if self.phase == TRAIN else None

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            argmax = (self._argmax or self._find_argmax(bottom)).read_data()
            roi_pool_backward(top[0].diff, self.rois(bottom), argmax, bottom[0].shape, out=bottom[0].diff)

    def _find_argmax(self, bottom: Sequence[Blob]) -> Blob:
        x, rois = bottom[0].read_data(), self.rois(bottom)
        self._places.reshape(len(rois), x.shape[1], self.pooled_h, self.pooled_w)
        roi_pool_argmax(x, rois, self.pooled_h, self.pooled_w, self.spatial_scale, out=self._places.data)
        return self._places

    def pool_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        self._argmax = self._places if self.phase == TRAIN else None
        self._places.reshape(top[0].shape)
        at = self._places.device_data("write") if self._argmax else 0
        self._kernels.pool(sizes, bottom[0], bottom[1], top[0].device_data("write"), at, bad)

    def spread_gpu(self, top: Sequence[Blob], bottom: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        if self._argmax is None:
            self._places.reshape(top[0].shape)
            self._kernels.pool(sizes, bottom[0], bottom[1], 0, self._places.device_data("write"), bad)
        self._kernels.backward(sizes, bottom[1], self._places.device_data("read"), top[0], bottom[0], bad)


def roi_pool_bins(rois: Array, pooled: tuple[int, int], spatial_scale: float, size: tuple[int, int]) -> Bins:
    """The bins of rois (R, 5) on a map of size (H, W): rows (R, PH), columns (R, PW)."""
    return clipped_bins(roi_pool_steps(rois, pooled, spatial_scale), size)


def roi_pool_steps(rois: Array, pooled: tuple[int, int], spatial_scale: float) -> RoiSteps:
    """rois (R, 5) scaled, then rounded to pixels, then cut into bins; the edges are counted from the roi's first pixel."""
    scaled = rois[:, 1:] * rois.dtype.type(spatial_scale)
    corners = round_half_away(scaled).astype(np.int64)
    w = _axis_steps(corners[:, 0], corners[:, 2], pooled[1], rois.dtype)
    h = _axis_steps(corners[:, 1], corners[:, 3], pooled[0], rois.dtype)
    return RoiSteps(scaled, corners, h, w)


def _axis_steps(first: Array, last: Array, pooled: int, dtype: np.dtype[np.floating]) -> AxisSteps:
    """The bins along one axis from the roi's first and last pixel (R,)."""
    extent = np.maximum(last - first + 1, 1)
    length = extent.astype(dtype) / dtype.type(pooled)
    edges = bin_numbers(pooled, dtype) * length[:, None]
    start = np.floor(edges[:, :-1]).astype(np.int64) + first[:, None]
    end = np.ceil(edges[:, 1:]).astype(np.int64) + first[:, None]
    return AxisSteps(extent, length, edges, start, end)


def roi_pool(
    x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float, *, out: Array | None = None
) -> Array:
    """x (N, C, H, W), rois (R, 5) -> maxima (R, C, PH, PW)."""
    x, rois = checked(x, rois, spatial_scale)
    y = np.empty((len(rois), x.shape[1], pooled_h, pooled_w), x.dtype) if out is None else out
    bins = roi_pool_bins(rois, (pooled_h, pooled_w), spatial_scale, x.shape[2:])
    pool_windows(x, batch_index(rois), bins, Values(x.dtype), y)
    return y


def roi_pool_argmax(
    x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float, *, out: NDArray[np.int32] | None = None
) -> NDArray[np.int32]:
    """x (N, C, H, W), rois (R, 5) -> h * W + w of each bin's first maximum (R, C, PH, PW), -1 where nothing won."""
    x, rois = checked(x, rois, spatial_scale)
    argmax = np.empty((len(rois), x.shape[1], pooled_h, pooled_w), np.int32) if out is None else out
    bins = roi_pool_bins(rois, (pooled_h, pooled_w), spatial_scale, x.shape[2:])
    pool_windows(x, batch_index(rois), bins, Keys(x.shape[2] * x.shape[3]), argmax)
    return argmax


def roi_pool_backward(dy: Array, rois: Array, argmax: Array, x_shape: Sequence[int], *, out: Array | None = None) -> Array:
    """dy (R, C, PH, PW), argmax of the same shape -> dx (N, C, H, W): each dy goes to its maximum."""
    dx = np.empty(x_shape, dy.dtype) if out is None else out
    add_at_winners(dy, argmax.astype(np.int32, copy=False), batch_index(rois.reshape(-1, 5)), dx)
    return dx
