"""The ROI functions of minicaffe.ops.

R is the number of rois, N x C x H x W the map's shape, and PH x PW the grid of bins.
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
    """Return the maxima of each roi's bins, as ROIPooling computes them.

    Parameters
    ----------
    x : (N, C, H, W) array_like
        The map.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    pooled_h, pooled_w : int
        The number of bins along the height and the width: PH and PW.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.
    out : ndarray, optional
        The array that takes the result.

    Returns
    -------
    (R, C, PH, PW) ndarray
        The maxima.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.

    Notes
    -----
    Source: Fast R-CNN (Girshick 2015), roi_pooling_layer.cpp of caffe-fast-rcnn.
    """
    return RoiPool(pooled_h=pooled_h, pooled_w=pooled_w, spatial_scale=spatial_scale).forward(x, rois, out)[0]


def roi_pool_argmax(
    x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float, *, out: Ints | None = None
) -> Ints:
    """Return the position of each bin's first maximum.

    Parameters
    ----------
    x : (N, C, H, W) array_like
        The map.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    pooled_h, pooled_w : int
        The number of bins along the height and the width: PH and PW.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.
    out : ndarray, optional
        The array that takes the result.

    Returns
    -------
    (R, C, PH, PW) ndarray of int32
        h * W + w of the first maximum; -1 where nothing won.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
    """
    return RoiPool(pooled_h=pooled_h, pooled_w=pooled_w, spatial_scale=spatial_scale).find_argmax(x, rois, out)


def roi_pool_backward(dy: Array, rois: Array, argmax: Array, x_shape: Sequence[int], *, out: Array | None = None) -> Array:
    """Return the gradient of roi_pool: each dy is added at its maximum.

    Parameters
    ----------
    dy : (R, C, PH, PW) array_like
        The gradient of the output.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    argmax : (R, C, PH, PW) array_like of int
        The result of `roi_pool_argmax`.
    x_shape : sequence of int
        The map's shape: N, C, H, W.
    out : ndarray, optional
        The array that takes the result.

    Returns
    -------
    (N, C, H, W) ndarray
        The gradient of the map.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
    """
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
    """Return the means of each bin's bilinear samples, as Mask R-CNN's ROIAlign computes them.

    Parameters
    ----------
    x : (N, C, H, W) array_like
        The map.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    pooled_h, pooled_w : int
        The number of bins along the height and the width: PH and PW.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.
    sampling_ratio : int, default 0
        Samples along each side of a bin. If not > 0, as many as the bin has pixels.
    aligned : bool, default False
        Move the rois by half a pixel, and do not widen them to one pixel.

    Returns
    -------
    (R, C, PH, PW) ndarray
        The means.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.

    Notes
    -----
    Source: Mask R-CNN (He et al. 2017), ROIAlign_cpu.cpp of maskrcnn-benchmark.
    """
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
    """Return the gradient of roi_align: each dy is added to the pixels of its samples, by their weights.

    Parameters
    ----------
    dy : (R, C, PH, PW) array_like
        The gradient of the output.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.
    x_shape : sequence of int
        The map's shape: N, C, H, W.
    sampling_ratio : int, default 0
        Samples along each side of a bin. If not > 0, as many as the bin has pixels.
    aligned : bool, default False
        Move the rois by half a pixel, and do not widen them to one pixel.
    out : ndarray, optional
        The array that takes the result.

    Returns
    -------
    (N, C, H, W) ndarray
        The gradient of the map.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
    """
    grid = {"pooled_h": dy.shape[2], "pooled_w": dy.shape[3], "sampling_ratio": sampling_ratio}
    return _backward(RoiAlign(**grid, spatial_scale=spatial_scale, aligned=aligned), dy, rois, x_shape, out=out)


def roi_align_max(x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float) -> Array:
    """Return the maxima of each bin's bilinear samples, as the ROIAlign written for Caffe computes them.

    Parameters
    ----------
    x : (N, C, H, W) array_like
        The map.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    pooled_h, pooled_w : int
        The number of bins along the height and the width: PH and PW.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.

    Returns
    -------
    (R, C, PH, PW) ndarray
        The maxima.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.

    Notes
    -----
    Source: the ROIAlign layer written for Caffe, roi_align_layer.cu.
    """
    return RoiAlignMax(pooled_h=pooled_h, pooled_w=pooled_w, spatial_scale=spatial_scale).forward(x, rois)[0]


def roi_align_max_argmax(x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float) -> Ints:
    """Return the position of each bin's first greatest sample.

    Parameters
    ----------
    x : (N, C, H, W) array_like
        The map.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    pooled_h, pooled_w : int
        The number of bins along the height and the width: PH and PW.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.

    Returns
    -------
    (R, C, PH, PW) ndarray of int32
        i * (W + 1) + j of the first greatest sample; -1 for none.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
    """
    return RoiAlignMax(pooled_h=pooled_h, pooled_w=pooled_w, spatial_scale=spatial_scale).find_argmax(x, rois)


def roi_align_max_backward(dy: Array, rois: Array, argmax: Array, spatial_scale: float, x_shape: Sequence[int]) -> Array:
    """Return the gradient of roi_align_max: each dy is added to its greatest sample's pixels, by weight.

    Parameters
    ----------
    dy : (R, C, PH, PW) array_like
        The gradient of the output.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    argmax : (R, C, PH, PW) array_like of int
        The result of `roi_align_max_argmax`.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.
    x_shape : sequence of int
        The map's shape: N, C, H, W.

    Returns
    -------
    (N, C, H, W) ndarray
        The gradient of the map.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
    """
    operator = RoiAlignMax(pooled_h=dy.shape[2], pooled_w=dy.shape[3], spatial_scale=spatial_scale)
    return _backward(operator, dy, rois, x_shape, argmax)


def roi_warp(x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float) -> Array:
    """Return one bilinear sample at the start of each bin, as ROIWarping computes it.

    Parameters
    ----------
    x : (N, C, H, W) array_like
        The map.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    pooled_h, pooled_w : int
        The number of bins along the height and the width: PH and PW.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.

    Returns
    -------
    (R, C, PH, PW) ndarray
        The samples.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.

    Notes
    -----
    Source: Dai et al., Instance-aware Semantic Segmentation via Multi-task Network Cascades (2016).
    The code is caffe-mnc's roi_warping_layer.cu.
    """
    return RoiWarp(pooled_h=pooled_h, pooled_w=pooled_w, spatial_scale=spatial_scale).forward(x, rois)[0]


def roi_warp_backward(dy: Array, rois: Array, spatial_scale: float, x_shape: Sequence[int]) -> Array:
    """Return the gradient of roi_warp: each dy is added to the pixels of its sample, by their weights.

    Parameters
    ----------
    dy : (R, C, PH, PW) array_like
        The gradient of the output.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.
    x_shape : sequence of int
        The map's shape: N, C, H, W.

    Returns
    -------
    (N, C, H, W) ndarray
        The gradient of the map.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
    """
    return _backward(RoiWarp(pooled_h=dy.shape[2], pooled_w=dy.shape[3], spatial_scale=spatial_scale), dy, rois, x_shape)


def ps_roi_pool(x: ArrayLike, rois: ArrayLike, group_size: int, spatial_scale: float) -> Array:
    """Return the position-sensitive means of each roi's bins, as PSROIPooling computes them.

    Parameters
    ----------
    x : (N, D * G * G, H, W) array_like
        The map.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    group_size : int
        The number of bins along each side, G.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.

    Returns
    -------
    (R, D, G, G) ndarray
        The means.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.

    Notes
    -----
    Source: R-FCN (Dai et al. 2016), psroi_pooling_layer.cu of caffe-rfcn.
    """
    return PsRoiPool(group_size=group_size, spatial_scale=spatial_scale).forward(x, rois)[0]


def ps_roi_pool_backward(
    dy: Array, rois: Array, spatial_scale: float, x_shape: Sequence[int], *, out: Array | None = None
) -> Array:
    """Return the gradient of ps_roi_pool: dy / area is added to every pixel of its bin.

    Parameters
    ----------
    dy : (R, D, G, G) array_like
        The gradient of the output.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.
    x_shape : sequence of int
        The map's shape: N, D * G * G, H, W.
    out : ndarray, optional
        The array that takes the result.

    Returns
    -------
    (N, D * G * G, H, W) ndarray
        The gradient of the map.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
    """
    return _backward(PsRoiPool(group_size=dy.shape[2], spatial_scale=spatial_scale), dy, rois, x_shape, out=out)


def ps_roi_align(x: ArrayLike, rois: ArrayLike, group_size: int, spatial_scale: float, sample_num: int = 2) -> Array:
    """Return position-sensitive means of bilinear samples, as PSROIAlign computes them.

    Parameters
    ----------
    x : (N, D * G * G, H, W) array_like
        The map.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    group_size : int
        The number of bins along each side, G.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.
    sample_num : int, default 2
        Samples along each side of a bin.

    Returns
    -------
    (R, D, G, G) ndarray
        The means of sample_num^2 samples.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.

    Notes
    -----
    Source: the PSROIAlign fork of R-FCN (afantideng/R-FCN-PSROIAlign), psroi_align_layer.cu.
    """
    return PsRoiAlign(group_size=group_size, spatial_scale=spatial_scale, sample_num=sample_num).forward(x, rois)[0]


def ps_roi_align_backward(
    dy: Array, rois: Array, spatial_scale: float, x_shape: Sequence[int], sample_num: int = 2, *, out: Array | None = None
) -> Array:
    """Return the gradient of ps_roi_align: each dy is added to the pixels of its samples, by their weights.

    Parameters
    ----------
    dy : (R, D, G, G) array_like
        The gradient of the output.
    rois : (R, 5) or (R, 5, 1, 1) array_like
        Batch index, x1, y1, x2, y2 of each roi, in pixels of the image.
    spatial_scale : float
        The factor from pixels of the image to pixels of the map, such as 1/16.
    x_shape : sequence of int
        The map's shape: N, D * G * G, H, W.
    sample_num : int, default 2
        Samples along each side of a bin.
    out : ndarray, optional
        The array that takes the result.

    Returns
    -------
    (N, D * G * G, H, W) ndarray
        The gradient of the map.

    Raises
    ------
    Error
        An argument has a wrong type, shape or value.
    """
    operator = PsRoiAlign(group_size=dy.shape[2], spatial_scale=spatial_scale, sample_num=sample_num)
    return _backward(operator, dy, rois, x_shape, out=out)


def _backward(
    operator: RoiOperator, dy: Array, rois: Array, x_shape: Sequence[int], argmax: Array | None = None, out: Array | None = None
) -> Array:
    saved = operator.saved(rois, dy.dtype, tuple(x_shape), argmax)
    return operator.backward(dy, saved, out)
