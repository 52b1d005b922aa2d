"""The ROI layers' forward as plain loops, one number at a time, in the originals' order of operations.

Written from the originals' kernels and independent of minicaffe's: slow, and what the layers are compared with. All
geometry is in the map's type: every intermediate goes through f = x.dtype.type.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FLT_MAX = float(np.finfo(np.float32).max)


def round_away(value: float) -> int:
    """C's round()."""
    whole = math.floor(abs(float(value)) + 0.5)
    return whole if value > 0 else -whole


def clip(value: Any, size: Any) -> Any:
    return min(max(value, type(value)(0)), size)


def roi_pool(x: Array, rois: Array, pooled_h: int, pooled_w: int, scale: float) -> tuple[Array, Array]:
    """-> maxima and h * W + w of each, (R, C, PH, PW)."""
    f = x.dtype.type
    _, channels, height, width = x.shape
    y = np.zeros((len(rois), channels, pooled_h, pooled_w), x.dtype)
    argmax = np.full(y.shape, -1)
    for r, (n, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (round_away(f(v) * f(scale)) for v in corners)
        bin_h = f(max(y2 - y1 + 1, 1)) / f(pooled_h)
        bin_w = f(max(x2 - x1 + 1, 1)) / f(pooled_w)
        for c, ph, pw in np.ndindex(y.shape[1:]):
            hstart = clip(math.floor(f(ph) * bin_h) + y1, height)
            wstart = clip(math.floor(f(pw) * bin_w) + x1, width)
            hend = clip(math.ceil(f(ph + 1) * bin_h) + y1, height)
            wend = clip(math.ceil(f(pw + 1) * bin_w) + x1, width)
            best, where = (0.0 if hend <= hstart or wend <= wstart else -FLT_MAX), -1
            for h, w in product(range(hstart, hend), range(wstart, wend)):
                if x[int(n), c, h, w] > best:
                    best, where = x[int(n), c, h, w], h * width + w
            y[r, c, ph, pw], argmax[r, c, ph, pw] = best, where
    return y, argmax


def roi_align_max(x: Array, rois: Array, pooled_h: int, pooled_w: int, scale: float) -> Array:
    """-> maxima of bilinear samples at unit steps, (R, C, PH, PW)."""
    f = x.dtype.type
    _, channels, height, width = x.shape
    y = np.zeros((len(rois), channels, pooled_h, pooled_w), x.dtype)
    for r, (n, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (f(v) * f(scale) for v in corners)
        bin_h, bin_w = (y2 - y1 + f(1)) / f(pooled_h), (x2 - x1 + f(1)) / f(pooled_w)
        for c, ph, pw in np.ndindex(y.shape[1:]):
            h, hend = clip(f(ph) * bin_h + y1, f(height)), clip(f(ph + 1) * bin_h + y1, f(height))
            wstart, wend = clip(f(pw) * bin_w + x1, f(width)), clip(f(pw + 1) * bin_w + x1, f(width))
            best = f(0) if hend <= h or wend <= wstart else f(-FLT_MAX)
            while h < hend:
                w = wstart
                while w < wend:
                    value = _between_floor_and_ceil(x[int(n), c], h, w)
                    best = value if value > best else best
                    w = w + f(1)
                h = h + f(1)
            y[r, c, ph, pw] = best
    return y


def _between_floor_and_ceil(plane: Array, h: Any, w: Any) -> Any:
    """Caffe's ROIAlign: a neighbour outside adds nothing, at a whole coordinate both neighbours are one pixel."""
    f = plane.dtype.type
    left, right, bottom, top = math.floor(w), math.ceil(w), math.floor(h), math.ceil(h)
    value = f(0)
    for row, weight_h in ((top, f(1 - top) + h), (bottom, f(1) - h + f(bottom))):
        for column, weight_w in ((left, f(1) - w + f(left)), (right, f(1 - right) + w)):
            if row < plane.shape[0] and column < plane.shape[1]:
                value = value + weight_w * weight_h * plane[row, column]
    return value


def roi_align(x: Array, rois: Array, pooled_h: int, pooled_w: int, scale: float, sampling_ratio: int, aligned: bool) -> Array:
    """-> means of bilinear samples, (R, C, PH, PW)."""
    f = x.dtype.type
    y = np.zeros((len(rois), x.shape[1], pooled_h, pooled_w), x.dtype)
    for r, (n, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (f(v) * f(scale) - f(0.5 if aligned else 0) for v in corners)
        height, width = y2 - y1, x2 - x1
        if not aligned:
            height, width = max(height, f(1)), max(width, f(1))
        bin_h, bin_w = height / f(pooled_h), width / f(pooled_w)
        grid_h = sampling_ratio if sampling_ratio > 0 else math.ceil(bin_h)
        grid_w = sampling_ratio if sampling_ratio > 0 else math.ceil(bin_w)
        for c, ph, pw in np.ndindex(y.shape[1:]):
            total = 0.0
            for i, j in product(range(grid_h), range(grid_w)):
                h = y1 + f(ph) * bin_h + f(i + 0.5) * bin_h / f(grid_h)
                w = x1 + f(pw) * bin_w + f(j + 0.5) * bin_w / f(grid_w)
                if -1 <= h <= x.shape[2] and -1 <= w <= x.shape[3]:
                    total += _within(x[int(n), c], h, w)
            y[r, c, ph, pw] = total / max(grid_h * grid_w, 1)
    return y


def _within(plane: Array, h: Any, w: Any) -> float:
    """Bilinear value, places beyond the outer pixels moved onto them."""
    height, width = plane.shape
    h, w = clip(float(h), height - 1), clip(float(w), width - 1)
    low_h, low_w = int(h), int(w)
    total = 0.0
    for row, weight_h in ((low_h, 1 - (h - low_h)), (min(low_h + 1, height - 1), h - low_h)):
        for column, weight_w in ((low_w, 1 - (w - low_w)), (min(low_w + 1, width - 1), w - low_w)):
            total += weight_h * weight_w * float(plane[row, column])
    return total


def ps_roi_pool(x: Array, rois: Array, group: int, scale: float) -> Array:
    """-> position-sensitive averages, (R, D, G, G)."""
    f = x.dtype.type
    _, channels, height, width = x.shape
    y = np.zeros((len(rois), channels // group**2, group, group), x.dtype)
    for r, (n, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (f(round_away(v)) for v in corners)
        x1, y1, x2, y2 = x1 * f(scale), y1 * f(scale), (x2 + f(1)) * f(scale), (y2 + f(1)) * f(scale)
        bin_h, bin_w = max(y2 - y1, f(0.1)) / f(group), max(x2 - x1, f(0.1)) / f(group)
        for d, gh, gw in np.ndindex(y.shape[1:]):
            hstart, hend = math.floor(f(gh) * bin_h + y1), math.ceil(f(gh + 1) * bin_h + y1)
            wstart, wend = math.floor(f(gw) * bin_w + x1), math.ceil(f(gw + 1) * bin_w + x1)
            hstart, hend, wstart, wend = clip(hstart, height), clip(hend, height), clip(wstart, width), clip(wend, width)
            if hend > hstart and wend > wstart:
                pixels = x[int(n), (d * group + gh) * group + gw, hstart:hend, wstart:wend]
                y[r, d, gh, gw] = math.fsum(pixels.ravel().tolist()) / pixels.size
    return y


def ps_roi_align(x: Array, rois: Array, group: int, scale: float, sample_num: int) -> Array:
    """-> position-sensitive averages of bilinear samples, (R, D, G, G)."""
    f = x.dtype.type
    _, channels, height, width = x.shape
    y = np.zeros((len(rois), channels // group**2, group, group), x.dtype)
    for r, (n, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (f(v) for v in corners)
        x1, y1, x2, y2 = x1 * f(scale), y1 * f(scale), (x2 + f(1)) * f(scale), (y2 + f(1)) * f(scale)
        bin_h, bin_w = max(y2 - y1, f(0.1)) / f(group), max(x2 - x1, f(0.1)) / f(group)
        for d, gh, gw in np.ndindex(y.shape[1:]):
            hstart, hend = clip(f(gh) * bin_h + y1, f(height - 1)), clip(f(gh + 1) * bin_h + y1, f(height - 1))
            wstart, wend = clip(f(gw) * bin_w + x1, f(width - 1)), clip(f(gw + 1) * bin_w + x1, f(width - 1))
            total = 0.0
            for i, j in product(range(1, sample_num + 1), repeat=2):
                h = hstart + f(i) * (bin_h / f(sample_num + 1))
                w = wstart + f(j) * (bin_w / f(sample_num + 1))
                if h < hend and w < wend:
                    total += _within(x[int(n), (d * group + gh) * group + gw], h, w)
            y[r, d, gh, gw] = total / sample_num**2
    return y
