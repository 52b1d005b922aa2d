"""Maxima over the bins of a roi, one SIMD pass over channels at a time: rows of bins first, then columns.

The same pass finds where the maxima are, when it runs on integer keys that order (value, earlier pixel).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .roi_geometry import LOWEST, Array, Bins, Ints

PIXEL_BITS = 31
"""Low bits of a key: the pixel, counted from the last; a blob has fewer than 2^31 elements."""

NEVER = np.iinfo(np.int64).min
"""The key of a value that never wins (-FLT_MAX, which NaN and -inf have become)."""

Span = tuple[int, int]


def channels_last(x: Array) -> Array:
    """x (N, C, H, W) -> a copy (N, H, W, C) in which NaN and -inf have become -FLT_MAX, so that they never win."""
    n, c, h, w = x.shape
    copy = np.empty((n, h, w, c), x.dtype)
    np.fmax(x.transpose(0, 2, 3, 1), x.dtype.type(LOWEST), out=copy)
    return copy


def ordered_keys(x: Array) -> NDArray[np.int64]:
    """x (..., H, W, C) without NaN -> keys of the same shape: greater for a greater value, then for an earlier pixel."""
    height, width = x.shape[-3:-1]
    keys: NDArray[np.int64]
    if x.dtype == np.float32:
        bits = (x + np.float32(0)).view(np.int32)  # + 0 makes -0.0 equal to 0.0
        keys = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64)
    else:
        keys = np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int64)
    keys <<= PIXEL_BITS
    keys |= np.arange(height * width - 1, -1, -1).reshape(height, width, 1)
    keys[x <= LOWEST] = NEVER
    return keys


def pixels_of(keys: NDArray[np.int64], pixels: int) -> NDArray[np.int64]:
    """The pixel (h * W + w) of each key of a map with that many pixels; -1 for NEVER."""
    return np.where(keys == NEVER, -1, pixels - 1 - (keys & (2**PIXEL_BITS - 1)))


def bin_maxima(x: Array, images: Ints, bins: Bins, empty: float) -> Iterator[Array]:
    """For each roi the maxima (PH, PW, C) of its bins in x[images[r]] (H, W, C); an empty bin gives empty."""
    rows = np.stack([bins.hstart, bins.hend], axis=2).tolist()
    columns = np.stack([bins.wstart, bins.wend], axis=2).tolist()
    for image, row_spans, column_spans in zip(images.tolist(), rows, columns):
        yield block_maxima(x[image], row_spans, column_spans, empty)


def block_maxima(x: Array, rows: Sequence[Span], columns: Sequence[Span], empty: float) -> Array:
    """x (H, W, C) -> maxima (PH, PW, C) over rows[ph] x columns[pw], spans with ends exclusive."""
    left, right = min(start for start, _ in columns), max(end for _, end in columns)
    by_row = np.empty((len(rows), max(right - left, 0), x.shape[2]), x.dtype)
    y = np.empty((len(rows), len(columns), x.shape[2]), x.dtype)
    for ph, (start, end) in enumerate(rows):
        if end > start and right > left:
            _max_over(x[start:end, left:right], 0, by_row[ph])
    for pw, (start, end) in enumerate(columns):
        if end > start:
            _max_over(by_row[:, start - left : end - left], 1, y[:, pw])
        else:
            y[:, pw] = empty
    for ph, (start, end) in enumerate(rows):
        if end <= start:
            y[ph] = empty
    return y


def _max_over(x: Array, axis: int, out: Array) -> None:
    """np.maximum.reduce, with short cuts for the commonest lengths 1 and 2."""
    np.maximum.reduce(x, axis=axis, out=out)
