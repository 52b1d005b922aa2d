"""Caffe's ROIAlign: the maximum of bilinear samples at unit steps in each bin.

    y[r, c, ph, pw] = max of the bilinear values of x[n_r, c] at (hstart + i, wstart + j) below (hend, wend)

Source: the ROIAlign layer written for Caffe (roi_align_layer.cu). Corners are scaled, not rounded; the size is x2 - x1 + 1
on the map, never clamped up, so that a malformed roi is empty; bins are clipped to [0, H]. The neighbours of a place are
its floor and ceil; one outside the map adds 0; at a whole coordinate both are one pixel, added twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .roi_geometry import LOWEST, Array, AxisSteps, Ints, RoiSteps, add_at, batch_index, bin_numbers, checked
from .roi_max import Scratch, block_maxima, never, ordered_keys, pixels_of
from .roi_samples import Samples

CHUNK = 2**22
"""Values that backward works on at a time."""


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
    x, rois = checked(x, rois, spatial_scale)
    y = np.empty((len(rois), x.shape[1], pooled_h, pooled_w), x.dtype)
    samples = roi_align_max_samples(rois, (pooled_h, pooled_w), spatial_scale, x.shape[2:])
    for r, (values, rows, columns) in enumerate(sampled(x, batch_index(rois), samples)):
        scratch = Scratch((pooled_h, pooled_w), values.shape[1], x.shape[1], x.dtype)
        y[r] = block_maxima([values], rows, columns, 0, scratch).transpose(2, 0, 1)
    return y


def roi_align_max_argmax(
    x: ArrayLike, rois: ArrayLike, pooled_h: int, pooled_w: int, spatial_scale: float
) -> NDArray[np.int32]:
    """x (N, C, H, W), rois (R, 5) -> i * (W + 1) + j of each bin's first greatest sample (R, C, PH, PW), -1 for none."""
    x, rois = checked(x, rois, spatial_scale)
    argmax = np.empty((len(rois), x.shape[1], pooled_h, pooled_w), np.int32)
    samples = roi_align_max_samples(rois, (pooled_h, pooled_w), spatial_scale, x.shape[2:])
    for r, (values, rows, columns) in enumerate(sampled(x, batch_index(rois), samples)):
        scratch = Scratch((pooled_h, pooled_w), values.shape[1], x.shape[1], np.int64)
        pixels = values.shape[0] * values.shape[1]
        best = pixels_of(block_maxima([ordered_keys(values)], rows, columns, never(pixels), scratch), pixels)
        i, j = np.divmod(best, max(values.shape[1], 1))
        i -= np.array([start for start, _ in rows]).reshape(-1, 1, 1)
        j -= np.array([start for start, _ in columns]).reshape(-1, 1)
        argmax[r] = np.where(best < 0, -1, i * (x.shape[3] + 1) + j).transpose(2, 0, 1)
    return argmax


def sampled(x: Array, images: Ints, samples: Samples) -> Iterator[tuple[Array, list[tuple[int, int]], list[tuple[int, int]]]]:
    """For each roi the values (SH, SW, C) at its samples, bin after bin, and each bin's span of rows and columns."""
    n, c, h, w = x.shape
    padded = np.zeros((n, h + 1, w + 1, c), x.dtype)  # the row and the column past the map, which add 0
    padded[:, :h, :w] = x.transpose(0, 2, 3, 1)
    for r, image in enumerate(images):
        (low_h, high_h, weight_h), rows = _neighbours(samples.h[r])
        (low_w, high_w, weight_w), columns = _neighbours(samples.w[r])
        values = np.zeros((len(low_h), len(low_w), c), x.dtype)
        with np.errstate(invalid="ignore"):
            for a, row in ((1, high_h), (0, low_h)):
                for b, column in ((0, low_w), (1, high_w)):
                    weight = weight_w[b] * weight_h[a][:, None]
                    values += weight[..., None] * padded[image][row[:, None], column]
            yield np.fmax(values, x.dtype.type(LOWEST), out=values), rows, columns


def _neighbours(places: Array) -> tuple[tuple[Ints, Ints, Array], list[tuple[int, int]]]:
    """places (P, K) -> floor, ceil and their weights (2, S) of the S places in use, and the span of each bin in them."""
    used = ~np.isnan(places)
    ends = used.sum(axis=1).cumsum()
    place = places[used]
    low, high = np.floor(place), np.ceil(place)
    one = place.dtype.type(1)
    weight = np.stack([one - place + low, one - high + place])
    return (low.astype(np.int64), high.astype(np.int64), weight), list(zip([0, *ends[:-1].tolist()], ends.tolist()))


def roi_align_max_backward(dy: Array, rois: ArrayLike, argmax: Array, spatial_scale: float, x_shape: Sequence[int]) -> Array:
    """dy and argmax (R, C, PH, PW) -> dx (N, C, H, W): each dy to the pixels of its greatest sample, by their weights."""
    n, c, h, w = x_shape
    rois = np.asarray(rois, dy.dtype).reshape(-1, 5)
    samples = roi_align_max_samples(rois, dy.shape[2:], spatial_scale, (h, w))
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
