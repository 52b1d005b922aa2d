"""Maxima over the bins of one roi, one SIMD pass over channels at a time: rows of bins first, then columns."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from .roi_geometry import Array

Span = tuple[int, int]


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


def block_maxima(x: Array, rows: Sequence[Span], columns: Sequence[Span], empty: float, scratch: Scratch) -> Array:
    """x (H, W, C) -> maxima (PH, PW, C) over rows[ph] x columns[pw], spans with ends exclusive."""
    left, right = min(columns)[0], max(columns, key=_end)[1]
    width, channels = max(right - left, 0), x.shape[2]
    by_row = scratch.by_row[: len(rows) * width * channels].reshape(len(rows), width, channels)
    for (start, end), out in zip(rows, by_row):
        if start < end and width:
            np.maximum.reduce(x[start:end, left:right], axis=0, out=out)
        else:
            out[...] = empty
    for pw, (start, end) in enumerate(columns):
        if end > start:
            np.maximum.reduce(by_row[:, start - left : end - left], axis=1, out=scratch.y[:, pw])
        else:
            scratch.y[:, pw] = empty
    return scratch.y


_end = operator.itemgetter(1)
