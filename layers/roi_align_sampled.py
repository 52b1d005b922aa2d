"""The samples of Caffe's ROIAlign, bin by bin: their values, the greatest, and which it is.

Why this is fast: bins that have as many samples each way are worked on together, so that every step is one pass over many
samples with their channels side by side. The greatest is found by comparing all samples with the maxima, and the first of
them as the greatest of small whole numbers, most often of one byte, that count the bin's samples from the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .roi_geometry import LOWEST, Array, Ints
from .roi_samples import Samples

AT_ONCE = 2**18
"""Values that one step works on, unless one bin's samples have more."""


class Taps(NamedTuple):
    """The floor and the ceil of places along an axis and their weights, all of the places' shape; left out where NaN is."""

    low: Ints
    high: Ints
    low_weight: Array
    high_weight: Array

    def of(self, bins: tuple[Ints, Ints], count: int) -> Taps:
        """Those of some bins (B,), the first `count` of each: (count, B)."""
        return Taps(*(array[bins[0], bins[1], :count].T for array in self))


def taps(places: Array) -> Taps:
    place = np.where(np.isnan(places), 0, places)
    low, high, one = np.floor(place), np.ceil(place), place.dtype.type(1)
    return Taps(low.astype(np.int64), high.astype(np.int64), one - place + low, one - high + place)


def bordered(x: Array) -> Array:
    """x (N, C, H, W) -> (N * (H + 1) * (W + 1), C): a row and a column past each map are 0, which add nothing."""
    n, c, h, w = x.shape
    table = np.zeros((n, h + 1, w + 1, c), x.dtype)
    table[:, :h, :w] = x.transpose(0, 2, 3, 1)
    return table.reshape(n * (h + 1) * (w + 1), c)


def padded(rows: int, channels: int, dtype: Any) -> Array:
    """An array (rows, C) whose rows lie 16 elements further apart in memory.

    Without them a power of two channels puts its pixels in the same few cache lines, and turning it round to channels
    first takes five times as long.
    """
    return np.empty((rows, channels + 16), dtype)[:, :channels]


def is_small(x: Array) -> bool:
    """Whether x is finite and so far from overflow that every sample of it is above -FLT_MAX."""
    return bool(max(float(x.max(initial=0)), -float(x.min(initial=0))) < -LOWEST / 8)


def alike(samples: Samples, channels: int) -> Iterator[tuple[tuple[int, int], Ints]]:
    """(SH, SW) samples and the bins, counted in (R, PH, PW), that have so many each way; as many as one step works on."""
    high, wide = (np.count_nonzero(~np.isnan(axis), axis=2) for axis in (samples.h, samples.w))
    kinds = (high[:, :, None] * (samples.w.shape[2] + 1) + wide[:, None, :]).ravel()
    order = np.argsort(kinds, kind="stable")
    for bins in np.split(order, np.flatnonzero(np.diff(kinds[order])) + 1):
        if not len(bins):
            continue
        count = tuple(int(n) for n in divmod(kinds[bins[0]], samples.w.shape[2] + 1))
        step = max(1, AT_ONCE // max(count[0] * count[1] * channels, 1))
        yield from (((count[0], count[1]), bins[b : b + step]) for b in range(0, len(bins), step))


def values_at(table: Array, first: Ints, width: int, rows: Taps, columns: Taps) -> Array:
    """The samples at rows (SH, B) x columns (SW, B) of maps whose pixels (width to a row) start at row `first` (B,) of table.

    (SH * SW, B, C). The order of the additions is the original's.
    """
    values = np.zeros((rows.low.shape[0], *columns.low.shape, table.shape[1]), table.dtype)
    part = np.empty(values.shape, table.dtype)
    for row, row_weight in ((rows.high, rows.high_weight), (rows.low, rows.low_weight)):
        for column, column_weight in ((columns.low, columns.low_weight), (columns.high, columns.high_weight)):
            pixel = (first + row * width)[:, None] + column
            table.take(pixel, axis=0, out=part, mode="clip")
            part *= (column_weight * row_weight[:, None])[..., None]
            values += part
    samples: Array = values.reshape(len(values) * values.shape[1], *values.shape[2:])
    return samples


def first_greatest(values: Array, maxima: Array, count: tuple[int, int], width: int) -> NDArray[np.int32]:
    """values (SH * SW, B, C), maxima (B, C) -> i * width + j of the first of SH x SW samples that is its maximum; -1: none."""
    hits = np.equal(values, maxima).view(np.uint8)
    from_last = np.arange(len(values), 0, -1).astype(np.min_scalar_type(len(values)))[:, None, None]
    hits = np.multiply(hits, from_last, out=hits) if from_last.dtype == np.uint8 else hits * from_last
    greatest = np.maximum.reduce(hits, axis=0)
    i, j = np.divmod(len(values) - np.arange(len(values) + 1), max(count[1], 1))
    number = np.asarray(i * width + j, np.int32)
    number[0] = -1
    found = np.empty(greatest.shape, np.int32)
    number.take(greatest, out=found, mode="clip")
    found[maxima <= LOWEST] = -1
    return found
