"""Maxima over the bins of a roi, one SIMD pass over channels at a time: rows of bins first, then columns.

The same pass finds where the maxima are, when it runs on integer keys that order (value, earlier pixel).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .roi_geometry import LOWEST, Array, Bins, Ints

PIXEL_BITS = 31
"""Low bits of a key: the pixel, counted from the last; a blob has fewer than 2^31 elements."""

Span = tuple[int, int]


def channels_last(x: Array) -> Array:
    """x (N, C, H, W) -> a copy (N, H, W, C) in which NaN and -inf have become -FLT_MAX, so that they never win."""
    n, c, h, w = x.shape
    copy = np.empty((n, h, w, c), x.dtype)
    np.fmax(x.transpose(0, 2, 3, 1), x.dtype.type(LOWEST), out=copy)
    return copy


def ordered_keys(x: Array) -> NDArray[np.int64]:
    """x (..., H, W, C) without NaN -> keys of the same shape: greater for a greater value, then for an earlier pixel.

    -FLT_MAX, which NaN and -inf have become, gets never(H * W).
    """
    height, width = x.shape[-3:-1]
    keys: NDArray[np.int64]
    if x.dtype == np.float32:
        bits = (x + np.float32(0)).view(np.int32)  # + 0 makes -0.0 equal to 0.0
        keys = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64)
    else:
        keys = np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int64)
    keys <<= PIXEL_BITS
    keys |= np.arange(height * width - 1, -1, -1).reshape(height, width, 1)
    keys[x <= LOWEST] = never(height * width)
    return keys


def never(pixels: int) -> int:
    """The key of what never wins on a map with that many pixels: below every other, and its pixel is -1."""
    return (-(2**31) << PIXEL_BITS) + pixels


def pixels_of(keys: NDArray[np.int64], pixels: int, out: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
    """The pixel (h * W + w) of each key of a map with that many pixels; -1 for what never wins."""
    from_last = keys.astype(np.int32)  # the low 32 bits
    from_last &= 2**PIXEL_BITS - 1
    pixel: NDArray[np.int32] = np.subtract(np.int32(pixels - 1), from_last, out=out)
    return pixel


def bin_maxima(x: Array, images: Ints, bins: Bins, empty: float) -> Iterator[tuple[int, Array]]:
    """(r, maxima (PH, PW, C) of its bins in x[images[r]] (H, W, C)) for every roi, image after image.

    The maxima are in one array, used again for the next roi. An empty bin gives empty.
    """
    rows = np.stack([bins.hstart, bins.hend], axis=2)
    columns = np.stack([bins.wstart, bins.wend], axis=2).tolist()
    scratch = Scratch((bins.hstart.shape[1], bins.wstart.shape[1]), x.shape[2], x.shape[3], x.dtype)
    for image in np.unique(images):
        mine = np.flatnonzero(images == image)
        maps = row_maxima(x[image], bins.hend[mine] - bins.hstart[mine])
        for r, spans in zip(mine.tolist(), rows[mine].tolist()):
            yield r, block_maxima(maps, spans, columns[r], empty, scratch)


def row_maxima(x: Array, heights: Ints) -> list[Array]:
    """x (H, W, C), and the maxima of 2 and of 4 rows from each row on, where bins of these heights save time by them."""
    maps = [x]
    while len(maps) < 3 and heights[heights > 2 ** len(maps)].sum() > 8 * len(x):
        step = 2 ** (len(maps) - 1)
        maps.append(np.maximum(maps[-1][:-step], maps[-1][step:]))
    return maps


def padded(pooled: tuple[int, int], channels: int, dtype: Any) -> Array:
    """An array (PH, PW, C) whose pixels lie 16 elements further apart in memory.

    Without them a power of two channels puts its pixels in the same few cache lines, and turning it round to channels
    first takes five times as long.
    """
    return np.empty((*pooled, channels + 16), dtype)[:, :, :channels]


class Scratch:
    """Room for block_maxima: maxima by rows (PH, up to width, C), and y (PH, PW, C)."""

    def __init__(self, pooled: tuple[int, int], width: int, channels: int, dtype: Any) -> None:
        self.by_row = np.empty(pooled[0] * width * channels, dtype)
        self.y = padded(pooled, channels, dtype)


def block_maxima(maps: Sequence[Array], rows: Sequence[Span], columns: Sequence[Span], empty: float, scratch: Scratch) -> Array:
    """row_maxima of x (H, W, C) -> maxima (PH, PW, C) over rows[ph] x columns[pw], spans with ends exclusive."""
    left, right = min(columns)[0], max(columns, key=_end)[1]
    width, channels = max(right - left, 0), maps[0].shape[2]
    by_row = scratch.by_row[: len(rows) * width * channels].reshape(len(rows), width, channels)
    parts = [x[:, left:right] for x in maps]
    for (start, end), out in zip(rows, by_row):
        height = max(end - start, 0)
        level = max(min(height.bit_length(), len(parts)) - 1, 0)
        step, x = 1 << level, parts[level]
        if not height or not width:
            out[...] = empty
        elif height <= 2 * step:
            np.maximum(x[start], x[end - step], out=out)
        else:
            np.maximum.reduce(x[start : end - step + 1 : step], axis=0, out=out)
            np.maximum(out, x[end - step], out=out)
    for pw, (start, end) in enumerate(columns):
        if end > start:
            np.maximum.reduce(by_row[:, start - left : end - left], axis=1, out=scratch.y[:, pw])
        else:
            scratch.y[:, pw] = empty
    return scratch.y


_end = operator.itemgetter(1)
