"""The ROI functions of minicaffe.ops.

x: the map (N, C, H, W). rois: (R, 5) or (R, 5, 1, 1), batch index, x1, y1, x2, y2 in pixels of the image. x_shape: x's.
out: where the result goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.blob import Array
from minicaffe.layers.roi.operator import RoiOperator
from minicaffe.layers.roi.psroi_align import PsRoiAlign
from minicaffe.layers.roi.psroi_pooling import PsRoiPool
from minicaffe.layers.roi.roi_align_max import RoiAlignMax
from minicaffe.layers.roi.roi_align_mean import RoiAlign
from minicaffe.layers.roi.roi_bin_maxima import add_at_maxima
from minicaffe.layers.roi.roi_pooling import RoiPool
from minicaffe.layers.roi.roi_warping import RoiWarp

Ints = NDArray[np.int32]


def roi_pool(
    x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float, *, out: Array | None = None
) -> Array:
    """Return the maxima of each roi's bins (R, C, PH, PW), as ROIPooling computes them."""
    return RoiPool(pooled_h=pooled_h, pooled_w=pooled_w, spatial_scale=spatial_scale).forward(x, rois, out)[0]


def roi_pool_argmax(
    x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float, *, out: Ints | None = None
) -> Ints:
    """Return h * W + w of each bin's first maximum (R, C, PH, PW), -1 where nothing won."""
    return RoiPool(pooled_h=pooled_h, pooled_w=pooled_w, spatial_scale=spatial_scale).find_argmax(x, rois, out)


def roi_pool_backward(dy: Array, rois: Array, argmax: Array, x_shape: Sequence[int], *, out: Array | None = None) -> Array:
    """Return dx (N, C, H, W) for dy and argmax (R, C, PH, PW): each dy is added at its maximum."""
    dx = np.empty(x_shape, dy.dtype) if out is None else out
    add_at_maxima(dy, rois[:, 0].astype(np.int64), argmax.astype(np.int32, copy=False), dx)
    return dx


def roi_align(
    x: ArrayLike,
    rois: ArrayLike,
    pooled_h: int,
    pooled_w: int,
    spatial_scale: float,
    *,
    sampling_ratio: int = 0,
    aligned: bool = False,
) -> Array:
    """Return the means of each bin's bilinear samples (R, C, PH, PW), as Mask R-CNN's ROIAlign computes them."""
    grid = {"pooled_h": pooled_h, "pooled_w": pooled_w, "sampling_ratio": sampling_ratio}
    return RoiAlign(**grid, spatial_scale=spatial_scale, aligned=aligned).forward(x, rois)[0]


def roi_align_backward(
    dy: Array,
    rois: Array,
    spatial_scale: float,
    x_shape: Sequence[int],
    *,
    sampling_ratio: int = 0,
    aligned: bool = False,
    out: Array | None = None,
) -> Array:
    """Return dx (N, C, H, W) for dy (R, C, PH, PW): each dy is added to the pixels of its samples, by their weights."""
    grid = {"pooled_h": dy.shape[2], "pooled_w": dy.shape[3], "sampling_ratio": sampling_ratio}
    return _backward(RoiAlign(**grid, spatial_scale=spatial_scale, aligned=aligned), dy, rois, x_shape, out=out)


def roi_align_max(x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float) -> Array:
    """Return the maxima of each bin's bilinear samples (R, C, PH, PW), as the ROIAlign written for Caffe computes them."""
    return RoiAlignMax(pooled_h=pooled_h, pooled_w=pooled_w, spatial_scale=spatial_scale).forward(x, rois)[0]


def roi_align_max_argmax(x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float) -> Ints:
    """Return i * (W + 1) + j of each bin's first greatest sample (R, C, PH, PW), -1 for none."""
    return RoiAlignMax(pooled_h=pooled_h, pooled_w=pooled_w, spatial_scale=spatial_scale).find_argmax(x, rois)


def roi_align_max_backward(dy: Array, rois: Array, argmax: Array, spatial_scale: float, x_shape: Sequence[int]) -> Array:
    """Return dx (N, C, H, W) for dy and argmax (R, C, PH, PW): each dy is added to its greatest sample's pixels, by weight."""
    operator = RoiAlignMax(pooled_h=dy.shape[2], pooled_w=dy.shape[3], spatial_scale=spatial_scale)
    return _backward(operator, dy, rois, x_shape, argmax)


def roi_warp(x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float) -> Array:
    """Return one bilinear sample at the start of each bin (R, C, PH, PW), as ROIWarping computes it."""
    return RoiWarp(pooled_h=pooled_h, pooled_w=pooled_w, spatial_scale=spatial_scale).forward(x, rois)[0]


def roi_warp_backward(dy: Array, rois: Array, spatial_scale: float, x_shape: Sequence[int]) -> Array:
    """Return dx (N, C, H, W) for dy (R, C, PH, PW): each dy is added to the pixels of its sample, by their weights."""
    return _backward(RoiWarp(pooled_h=dy.shape[2], pooled_w=dy.shape[3], spatial_scale=spatial_scale), dy, rois, x_shape)


def ps_roi_pool(x: ArrayLike, rois: ArrayLike, group_size: int, spatial_scale: float) -> Array:
    """Return the means of bins (R, D, G, G) of x (N, D * G * G, H, W), as PSROIPooling computes them."""
    return PsRoiPool(group_size=group_size, spatial_scale=spatial_scale).forward(x, rois)[0]


def ps_roi_pool_backward(
    dy: Array, rois: Array, spatial_scale: float, x_shape: Sequence[int], *, out: Array | None = None
) -> Array:
    """Return dx (N, D * G * G, H, W) for dy (R, D, G, G): dy / area is added to every pixel of its bin."""
    return _backward(PsRoiPool(group_size=dy.shape[2], spatial_scale=spatial_scale), dy, rois, x_shape, out=out)


def ps_roi_align(x: ArrayLike, rois: ArrayLike, group_size: int, spatial_scale: float, sample_num: int = 2) -> Array:
    """Return the means of sample_num^2 bilinear samples (R, D, G, G) of x (N, D * G * G, H, W), as PSROIAlign computes them."""
    return PsRoiAlign(group_size=group_size, spatial_scale=spatial_scale, sample_num=sample_num).forward(x, rois)[0]


def ps_roi_align_backward(
    dy: Array, rois: Array, spatial_scale: float, x_shape: Sequence[int], sample_num: int = 2, *, out: Array | None = None
) -> Array:
    """Return dx (N, D * G * G, H, W) for dy (R, D, G, G): each dy is added to the pixels of its samples, by their weights."""
    operator = PsRoiAlign(group_size=dy.shape[2], spatial_scale=spatial_scale, sample_num=sample_num)
    return _backward(operator, dy, rois, x_shape, out=out)


def _backward(
    operator: RoiOperator, dy: Array, rois: Array, x_shape: Sequence[int], argmax: Array | None = None, out: Array | None = None
) -> Array:
    saved = operator.saved(rois, dy.dtype, tuple(x_shape), argmax)
    return operator.backward(dy, saved, out)
