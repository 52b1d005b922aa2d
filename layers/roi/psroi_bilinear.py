"""Means of bilinear samples in position-sensitive bins, and their transpose: each bin is a weighted sum of rows of a
channels-last map.

The samples of a bin are a grid: columns are weighted first, then rows. A place's rois lie one after another, and weights are
repeated for each channel, so that every product is one long pass over numbers that the cache holds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.threads import Scratch

from .psroi_layer import GridPart
from .roi_geometry import Ints
from .roi_samples import SamplePlan, bilinear_taps
from .row_sums import add_rows, items

NONE = 2**40
"""The offset of a pixel that no sample reads: past any map."""

CHUNK = 2**22
"""Bytes of weighted rows that backward makes at a time, about."""


class GridTaps(NamedTuple):
    """What the grid's bins read on a map (H * W,): rows (G, KH, R) plus columns (KW, G, R), which hold the divisor.

    Of a part of the grid: rows (KH, R), or (KH, P, R) where they differ from place to place, and columns (KW, P, R)."""

    rows: Ints
    row_weight: Array
    columns: Ints
    column_weight: Array

    def of(self, part: GridPart, pixels: int) -> GridTaps:
        """A part's rows (KH, R) and columns (KW, P, R), on the maps of its P places, one after another."""
        columns = self.columns[:, part.columns][..., part.rois]
        start = np.arange(columns.shape[1])[:, None] * pixels  # where each place's map starts
        weight = self.column_weight[:, part.columns][..., part.rois]
        return GridTaps(self.rows[part.gh][:, part.rois], self.row_weight[part.gh][:, part.rois], columns + start, weight)


def grid_taps(plan: SamplePlan) -> GridTaps:
    """The taps of all bins."""
    samples, size = plan.places, plan.size
    rows, columns = bilinear_taps(samples.h, size[0]), bilinear_taps(samples.w, size[1])
    row = np.where(rows.pixel < 0, NONE, rows.pixel * size[1])  # the first pixel of the row
    column = np.where(columns.pixel < 0, NONE, columns.pixel)
    weight = columns.weight / samples.per_bin[:, None, None]
    return GridTaps(
        np.ascontiguousarray(row.transpose(1, 2, 0)),
        np.ascontiguousarray(rows.weight.transpose(1, 2, 0)),
        np.ascontiguousarray(column.transpose(2, 1, 0)),
        np.ascontiguousarray(weight.transpose(2, 1, 0)),
    )


def pool_part(x: Array, taps: GridTaps, scratch: Scratch) -> Array:
    """x (D, P, H * W), a part's taps -> means (P, R, D), in scratch."""
    dim, places, pixels = x.shape
    maps = scratch("maps", places * pixels + 1, dim, dtype=x.dtype)
    maps[:-1].reshape(places, pixels, dim)[...] = x.transpose(1, 2, 0)
    maps[-1] = 0  # what clip makes of NONE
    # (KW, P, R * D), (KH, [P,] R * D)
    by_column, by_row = _for_channels(taps.column_weight, dim), _for_channels(taps.row_weight, dim)
    values = scratch("values", *by_column.shape, dtype=x.dtype)
    row_mean = scratch("row mean", *by_column.shape[1:], dtype=x.dtype)
    means = scratch("means", *by_column.shape[1:], dtype=x.dtype)
    means[...] = 0
    with np.errstate(invalid="ignore", over="ignore"):
        for row, weight in zip(taps.rows, by_row):
            items(maps).take((taps.columns + row).ravel(), out=items(values.reshape(-1, dim)), mode="clip")
            values *= by_column
            # np.add.reduce would add a part of one number pairwise: other bits for another number of threads
            row_mean[...] = values[0]
            for column in values[1:]:
                row_mean += column
            row_mean *= weight
            means += row_mean
    return means.reshape(places, -1, dim)


def part_backward(dy: Array, taps: GridTaps, pixels: int, group: int, scratch: Scratch) -> Array:
    """dy (P, R, D) -> (P, H * W, D), in scratch: dy added to the pixels that its samples read, by their weights.

    group: the grid's columns.
    """
    places, rois, dim = dy.shape
    maps = scratch("maps", places * pixels, dim, dtype=dy.dtype)
    maps[...] = 0
    # bytes of a roi's weighted rows in all columns: how many a part has depends on the threads, and the order of sums must not
    each = len(taps.rows) * len(taps.columns) * group * dim * dy.itemsize
    step = max(1, CHUNK // max(each, 1))
    for some in (slice(r, r + step) for r in range(0, rois, step)):
        by_row = _for_channels(taps.row_weight[..., some], dim)
        by_column = _for_channels(taps.column_weight[..., some], dim)
        weighted = scratch("weighted", len(by_row), *by_column.shape, dtype=dy.dtype)  # (KH, KW, P, R' * D)
        mine = dy[:, some].reshape(places, -1)
        with np.errstate(invalid="ignore", over="ignore"):
            for out, weight in zip(weighted, by_row):
                np.multiply(by_column, mine * weight, out=out)
        rows = taps.rows[..., some]
        across = rows.reshape(len(rows), 1, -1, rows.shape[-1])  # (KH, 1, P or 1, R')
        target = (across + taps.columns[..., some]).ravel()  # (KH, KW, P, R'), as weighted
        source = np.flatnonzero(target < len(maps))  # without the NONEs
        add_rows(weighted.reshape(-1, dim), source, target[source], maps, scratch)
    return maps.reshape(places, pixels, dim)


def _for_channels(weight: Array, dim: int) -> Array:
    """weight (..., R) -> (..., R * dim): each dim times."""
    each = np.empty((*weight.shape, dim), weight.dtype)
    each[...] = weight[..., None]
    return each.reshape(*weight.shape[:-1], -1)
