"""Caffe's ROIAlign: the maximum of bilinear samples at unit steps in each bin.

    y[r, c, ph, pw] = max of the bilinear values of x[n_r, c] at (hstart + i, wstart + j) below (hend, wend)

Source: the ROIAlign layer written for Caffe (roi_align_layer.cu). Corners are scaled, not rounded; the size is x2 - x1 + 1
on the map, never clamped up, so that a malformed roi is empty; bins are clipped to [0, H]. The neighbours of a place are
its floor and ceil; one outside the map adds 0; at a whole coordinate both are one pixel, added twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.threads import run

from .roi_align_sampled import alike, bordered, first_greatest, is_small, padded, taps, values_at
from .roi_align_spread import spread_by_matrices
from .roi_geometry import LOWEST, Array, AxisSteps, Ints, RoiSteps, add_at, batch_index, bin_numbers, checked
from .roi_samples import Samples

CHUNK = 2**20
"""Values of y that a step works on."""


def roi_align_max_samples(rois: Array, pooled: tuple[int, int], spatial_scale: float, size: tuple[int, int]) -> Samples:
    """The samples of rois (R, 5) on a map of size (H, W): h (R, PH, H + 1) and w (R, PW, W + 1) at most."""
    steps = roi_align_max_steps(rois, pooled, spatial_scale)
    return Samples(_axis_samples(steps.h, size[0]), _axis_samples(steps.w, size[1]), np.ones(len(rois), rois.dtype))


def roi_align_max_steps(rois: Array, pooled: tuple[int, int], spatial_scale: float) -> RoiSteps:
    """rois (R, 5) scaled, in one step, and cut into bins; nothing is rounded."""
    corners = rois[:, 1:] * rois.dtype.type(spatial_scale)
    w = _axis_steps(corners[:, 0], corners[:, 2], pooled[1])
    h = _axis_steps(corners[:, 1], corners[:, 3], pooled[0])
    return RoiSteps(corners, corners, h, w)


def _axis_steps(first: Array, last: Array, pooled: int) -> AxisSteps:
    """The bins along one axis from the roi's ends (R,) on the map."""
    dtype = first.dtype.type
    extent = last - first + dtype(1)
    length = extent / dtype(pooled)
    edges = bin_numbers(pooled, dtype) * length[:, None] + first[:, None]
    return AxisSteps(extent, length, edges, edges[:, :-1], edges[:, 1:])


def _axis_samples(steps: AxisSteps, size: int) -> Array:
    """Places (R, pooled, K) along an axis of that size, a running sum of ones from the bin's start, NaN from its end on."""
    dtype = steps.length.dtype.type
    start, end = steps.start.clip(0, size), steps.end.clip(0, size)
    places = np.ones((*start.shape, int(np.ceil(end - start).max(initial=0)) + 1), start.dtype)
    places[:, :, 0] = start
    np.cumsum(places, axis=2, out=places)
    return np.where(places < end[:, :, None], places, dtype(np.nan))


def roi_align_max(x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float) -> Array:
    """x (N, C, H, W), rois (R, 5) -> maxima (R, C, PH, PW)."""
    y, _ = maxima_and_argmax(x, rois, (pooled_h, pooled_w), spatial_scale, argmax=False)
    return y


def roi_align_max_argmax(
    x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float
) -> NDArray[np.int32]:
    """x (N, C, H, W), rois (R, 5) -> i * (W + 1) + j of each bin's first greatest sample (R, C, PH, PW), -1 for none."""
    return maxima_and_argmax(x, rois, (pooled_h, pooled_w), spatial_scale)[1]


def maxima_and_argmax(
    x: ArrayLike, rois: ArrayLike, pooled: tuple[int, int], spatial_scale: float, *, argmax: bool = True
) -> tuple[Array, NDArray[np.int32]]:
    """What roi_align_max and roi_align_max_argmax give, in one pass; without argmax the second is empty."""
    x, rois = checked(x, rois, spatial_scale)
    y = np.empty((len(rois), x.shape[1], *pooled), x.dtype)
    places = np.empty(y.shape if argmax else (0, *y.shape[1:]), np.int32)
    samples = roi_align_max_samples(rois, pooled, spatial_scale, x.shape[2:])
    table, clean = bordered(x), is_small(x)
    images = batch_index(rois)
    step = max(1, CHUNK // max(y[:1].size, 1))

    def pool(part: slice) -> None:
        of_part = Samples(samples.h[part], samples.w[part], samples.per_bin[part])
        maxima, numbers = _greatest(table, images[part], of_part, x.shape[2:], clean, argmax)
        y[part] = maxima.transpose(0, 3, 1, 2)
        places[part] = numbers.transpose(0, 3, 1, 2)

    run([partial(pool, slice(r, r + step)) for r in range(0, len(rois), step)])
    return y, places


def _greatest(
    table: Array, images: Ints, samples: Samples, size: tuple[int, int], clean: bool, argmax: bool
) -> tuple[Array, NDArray[np.int32]]:
    """The maxima (R, PH, PW, C) of the bins and, with argmax, which samples they are. clean: no value is -FLT_MAX or below."""
    rois, high, wide, channels = len(images), samples.h.shape[1], samples.w.shape[1], table.shape[1]
    maxima = padded(rois * high * wide, channels, table.dtype)
    numbers = padded(rois * high * wide if argmax else 0, channels, np.int32)
    rows, columns = taps(samples.h), taps(samples.w)
    for count, bins in alike(samples, channels):
        if not count[0] * count[1]:
            maxima[bins] = 0
            numbers[bins if argmax else []] = -1
            continue
        r, i, j = np.unravel_index(bins, (rois, high, wide))
        first = images[r] * ((size[0] + 1) * (size[1] + 1))
        with np.errstate(invalid="ignore", over="ignore"):
            values = values_at(table, first, size[1] + 1, rows.of((r, i), count[0]), columns.of((r, j), count[1]))
        if not clean:
            np.fmax(values, table.dtype.type(LOWEST), out=values)
        of_bins = np.maximum.reduce(values, axis=0)
        maxima[bins] = of_bins
        if argmax:
            numbers[bins] = first_greatest(values, of_bins, count, size[1] + 1)
    return maxima.reshape(rois, high, wide, channels), numbers.reshape(rois if argmax else 0, high, wide, channels)


def roi_align_max_backward(dy: Array, rois: ArrayLike, argmax: Array, spatial_scale: float, x_shape: Sequence[int]) -> Array:
    """dy and argmax (R, C, PH, PW) -> dx (N, C, H, W): each dy to the pixels of its greatest sample, by their weights."""
    n, c, h, w = x_shape
    rois = np.asarray(rois, dy.dtype).reshape(-1, 5)
    samples = roi_align_max_samples(rois, dy.shape[2:], spatial_scale, (h, w))
    if not np.isfinite(dy).all():
        return _spread_by_pixels(dy, rois, argmax, samples, x_shape)
    dx: Array = np.zeros((n, h, w, c), dy.dtype)
    spread_by_matrices(dy, argmax, batch_index(rois), samples, dx)
    return np.moveaxis(dx, 3, 1)


def _spread_by_pixels(dy: Array, rois: Array, argmax: Array, samples: Samples, x_shape: Sequence[int]) -> Array:
    """As spread_by_matrices, but writing no pixel that the greatest samples do not read."""
    n, c, h, w = x_shape
    plane = (batch_index(rois)[:, None] * c + np.arange(c))[:, :, None, None]
    dx: Array = np.zeros(n * c * h * w)
    step = max(1, CHUNK // max(dy[:1].size, 1))
    for part in (slice(r, r + step) for r in range(0, len(rois), step)):
        won = argmax[part] >= 0
        i, j = np.divmod(np.where(won, argmax[part], 0), w + 1)
        place_h = chosen_places(samples.h[part], i.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        place_w = chosen_places(samples.w[part], j.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
        for row, weight_h in two_pixels(place_h, h):
            for column, weight_w in two_pixels(place_w, w):
                index = np.where(won & (row >= 0) & (column >= 0), (plane[part] * h + row) * w + column, -1)
                dx += add_at(index, weight_h * weight_w * dy[part], dx.size)
    return dx.astype(dy.dtype).reshape(n, c, h, w)


def chosen_places(places: Array, number: Ints) -> Array:
    """places (R, P, K), number (R, P, ...) -> the place of that number, 0 where it is NaN."""
    rois, pooled, k = places.shape
    bins = np.arange(rois * pooled).reshape(rois, pooled, *[1] * (number.ndim - 2))
    chosen: Array = places.reshape(-1)[bins * k + number]
    return np.where(np.isnan(chosen), 0, chosen)


def two_pixels(place: Array, size: int) -> list[tuple[Ints, Array]]:
    """The floor and the ceil of each place with their weights; a pixel past the map is -1."""
    low, high = np.floor(place), np.ceil(place)
    one = place.dtype.type(1)
    ceil = np.where(high < size, high, -1).astype(np.int64)
    return [(low.astype(np.int64), one - place + low), (ceil, one - high + place)]
