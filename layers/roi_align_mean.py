"""Mask R-CNN's ROIAlign: the mean of a grid of bilinear samples in each bin.

    y[r, c, ph, pw] = 1 / (nh * nw) * sum over nh x nw places of the bilinear value of x[n_r, c]

Source: Mask R-CNN (He et al. 2017), ROIAlign_cpu.cpp of maskrcnn-benchmark. Corners are scaled, not rounded; the size is
x2 - x1, at least 1 (not so with aligned, which also moves the roi by half a pixel). n = sampling_ratio, or when that is
not > 0 the bin's size rounded up. Places lie at (i + 0.5) / n of the bin; those outside [-1, H] count as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .roi_bilinear import pool_by_matrices, pool_by_pixels, spread_by_matrices, spread_by_pixels
from .roi_geometry import Array, AxisSteps, RoiSteps, batch_index, bin_numbers, checked
from .roi_samples import Samples


def roi_align_samples(
    rois: Array, pooled: tuple[int, int], spatial_scale: float, size: tuple[int, int], *, sampling_ratio: int, aligned: bool
) -> Samples:
    """The samples of rois (R, 5) on a map of size (H, W): h (R, PH, KH), w (R, PW, KW)."""
    steps = roi_align_steps(rois, pooled, spatial_scale, aligned=aligned)
    w, count_w = _axis_samples(steps.w, size[1], sampling_ratio)
    h, count_h = _axis_samples(steps.h, size[0], sampling_ratio)
    return Samples(h, w, np.maximum(count_h * count_w, rois.dtype.type(1)))


def roi_align_steps(rois: Array, pooled: tuple[int, int], spatial_scale: float, *, aligned: bool) -> RoiSteps:
    """rois (R, 5) scaled, then moved by half a pixel if aligned, then cut into bins; nothing is rounded."""
    dtype = rois.dtype.type
    scaled = rois[:, 1:] * dtype(spatial_scale)
    corners = scaled - dtype(0.5 if aligned else 0)
    w = _axis_steps(corners[:, 0], corners[:, 2], pooled[1], aligned)
    h = _axis_steps(corners[:, 1], corners[:, 3], pooled[0], aligned)
    return RoiSteps(scaled, corners, h, w)


def _axis_steps(first: Array, last: Array, pooled: int, aligned: bool) -> AxisSteps:
    """The bins along one axis from the roi's ends (R,) on the map."""
    dtype = first.dtype.type
    extent = last - first if aligned else np.maximum(last - first, dtype(1))
    length = extent / dtype(pooled)
    edges = first[:, None] + bin_numbers(pooled, dtype) * length[:, None]
    return AxisSteps(extent, length, edges, edges[:, :-1], edges[:, 1:])


def _axis_samples(steps: AxisSteps, size: int, sampling_ratio: int) -> tuple[Array, Array]:
    """Places (R, pooled, K) along an axis of that size, NaN outside [-1, size], and the number of places in a bin (R,).

    Only the K places of a bin that can be on the map are listed.
    """
    length, start = steps.length, steps.start
    dtype = length.dtype.type
    count = sample_counts(length, sampling_ratio)
    step = np.maximum(length, 0).astype(np.float64) / np.maximum(count, 1)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        low = np.floor((-1 - start) / step[:, None]) - 2
        high = np.ceil((size - start) / step[:, None]) + 2
    moving, total = step[:, None] > 0, count[:, None].astype(np.float64)
    low = np.where(moving, low, 0).clip(0, total)
    high = np.where(moving, high, total).clip(0, total)
    number = low[:, :, None] + np.arange(int((high - low).max(initial=0)))
    offset = (number.astype(dtype) + dtype(0.5)) * length[:, None, None] / np.maximum(count, 1)[:, None, None]
    places = start[:, :, None] + offset
    used = (number < count[:, None, None]) & (places >= -1) & (places <= size)
    return np.where(used, places, dtype(np.nan)), count


def sample_counts(length: Array, sampling_ratio: int) -> Array:
    """length (R,) of a bin along one axis -> how many samples it has there (R,), those off the map too."""
    if sampling_ratio > 0:
        return np.full_like(length, sampling_ratio)
    counts: Array = np.maximum(np.ceil(length), length.dtype.type(0))
    return counts


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
    """x (N, C, H, W), rois (R, 5) -> means (R, C, PH, PW)."""
    x, rois = checked(x, rois, spatial_scale)
    samples = roi_align_samples(
        rois, (pooled_h, pooled_w), spatial_scale, x.shape[2:], sampling_ratio=sampling_ratio, aligned=aligned
    )
    y = np.empty((len(rois), x.shape[1], pooled_h, pooled_w), x.dtype)
    pool = pool_by_matrices if np.isfinite(x).all() else pool_by_pixels
    pool(x, batch_index(rois), samples, y)
    return y


def roi_align_backward(
    dy: Array,
    rois: ArrayLike,
    spatial_scale: float,
    x_shape: Sequence[int],
    *,
    sampling_ratio: int = 0,
    aligned: bool = False,
    out: Array | None = None,
) -> Array:
    """dy (R, C, PH, PW), rois (R, 5) -> dx (N, C, H, W): the transposed matrices of roi_align."""
    n, c, h, w = x_shape
    rois = np.asarray(rois, dy.dtype).reshape(-1, 5)
    samples = roi_align_samples(rois, dy.shape[2:], spatial_scale, (h, w), sampling_ratio=sampling_ratio, aligned=aligned)
    dx: Array = np.empty((n, c, h, w), dy.dtype) if out is None else out
    spread = spread_by_matrices if np.isfinite(dy).all() else spread_by_pixels
    spread(dy, batch_index(rois), samples, dx)
    return dx
