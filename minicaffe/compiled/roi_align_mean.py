"""Means of bilinear samples by compiled loops: blocks of channels split across all threads."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.channel_blocks import add_to_blocks, pool_blocks, read_only, read_pixels, write_place
from minicaffe.compiled.jit import loop
from minicaffe.compiled.samples import PIXEL_TYPES, list_pixels, listed_samples
from minicaffe.kernels import provides
from minicaffe.layers.roi import roi_align_mean
from minicaffe.layers.roi.roi_geometry import Ints
from minicaffe.layers.roi.roi_samples import SamplePlan


@loop(f"T[:,:,::1], int64[::1], {PIXEL_TYPES}, {PIXEL_TYPES}, T[:,:,:,::1], int64")
def pool_samples(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays
    x: Array,
    rois: Ints,
    rows: Ints,
    row_weight: Array,
    row_count: Ints,
    columns: Ints,
    column_weight: Array,
    column_count: Ints,
    y: Array,
    first: int,
) -> None:
    """Compute y (R, C, PH, PW), means at an image's rois, from its pixels x (H, W, C'), for the channels from `first` on.

    The columns' weights include the divisor.
    """
    (height, _, channels), high, wide = x.shape, y.shape[2], y.shape[3]
    by_columns = np.empty((height, wide * channels), x.dtype)
    made_for = np.full(height, -1)  # the roi to which each row of by_columns belongs
    mean = np.empty(wide * channels, x.dtype)
    for r in rois:
        for ph in range(high):
            mean[:] = 0
            for i in range(row_count[r, ph]):
                h, weight = rows[r, ph, i], row_weight[r, ph, i]
                if made_for[h] != r:
                    made_for[h] = r
                    by_columns[h] = 0
                    for pw in range(wide):
                        across = by_columns[h, pw * channels : (pw + 1) * channels]
                        for j in range(column_count[r, pw]):
                            pixel, of_column = x[h, columns[r, pw, j]], column_weight[r, pw, j]
                            for c in range(channels):
                                across[c] += of_column * pixel[c]
                row = by_columns[h]
                for c in range(len(mean)):
                    mean[c] += weight * row[c]
            for c in range(channels):
                for pw in range(wide):
                    y[r, first + c, ph, pw] = mean[pw * channels + c]


@loop(f"Array(T, 4, 'C', True), int64[::1], {PIXEL_TYPES}, {PIXEL_TYPES}, T[:,:,::1], int64")
def samples_backward(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays
    dy: Array,
    rois: Ints,
    rows: Ints,
    row_weight: Array,
    row_count: Ints,
    columns: Ints,
    column_weight: Array,
    column_count: Ints,
    dx: Array,
    first: int,
) -> None:
    """Add the dy (R, C, PH, PW) of an image's rois to dx (H, W, C') where samples read, for the channels from `first` on."""
    (height, _, channels), high, wide = dx.shape, dy.shape[2], dy.shape[3]
    by_columns = np.empty((height, wide * channels), dx.dtype)
    made_for = np.full(height, -1)
    used = np.empty(height, np.int64)
    each = np.empty(wide * channels, dx.dtype)
    for r in rois:
        count = 0  # the number of rows that it reads
        for ph in range(high):
            for c in range(channels):
                for pw in range(wide):
                    each[pw * channels + c] = dy[r, first + c, ph, pw]
            for i in range(row_count[r, ph]):
                h, weight = rows[r, ph, i], row_weight[r, ph, i]
                row = by_columns[h]
                if made_for[h] != r:
                    made_for[h], used[count], count = r, h, count + 1
                    row[:] = 0
                for c in range(len(each)):
                    row[c] += weight * each[c]
        for h in used[:count]:
            for pw in range(wide):
                across = by_columns[h, pw * channels : (pw + 1) * channels]
                for j in range(column_count[r, pw]):
                    pixel, of_column = dx[h, columns[r, pw, j]], column_weight[r, pw, j]
                    for c in range(channels):
                        pixel[c] += of_column * across[c]


@provides(roi_align_mean.pool_means, loops=(read_pixels, list_pixels, pool_samples))
def pool_means(x: Array, plan: SamplePlan, y: Array) -> None:
    """Split the images and blocks of channels across the threads."""
    read = listed_samples(plan)
    pool_blocks(lambda pixels, rois, first: pool_samples(pixels, rois, *read, y, first), x, plan.images)


@provides(roi_align_mean.add_means, loops=(samples_backward, write_place))
def add_means(dy: Array, plan: SamplePlan, dx: Array) -> None:
    """Split the images and blocks of channels across the threads."""
    read, given = listed_samples(plan), read_only(dy)
    add_to_blocks(lambda pixels, rois, first: samples_backward(given, rois, *read, pixels, first), dx, plan.images)
