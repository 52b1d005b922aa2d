"""Windows of a map that cover the bins of rois: which lengths they have, and where they lie.

    a bin's pixels = those of the windows that cover it, overlaps allowed: 1, 2 or 4 of them, most often

Which lengths there are is weighed anew for each set of rois: few rois, powers of two; many, every length.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from .roi_geometry import Bins, Ints

MOST_ROWS = 2**19
"""Most rows of all tables together, unless one map has more."""

AT_ONCE = 4096
"""Bins that one step works on."""


class Lengths(NamedTuple):
    """Window lengths along each axis, ascending from 1, each at most twice the one before."""

    rows: Sequence[int]
    columns: Sequence[int]

    @property
    def tables(self) -> int:
        return len(self.rows) * len(self.columns)


class Cover(NamedTuple):
    """The windows that cover bins along one axis: the number of their length and the length (R, P); how many they are (R,)."""

    number: Ints
    length: Ints
    needed: Ints

    def starts(self, start: Ints, end: Ints, k: int) -> Ints:
        """Where each bin's window k begins; the last ends with the bin."""
        starts: Ints = np.minimum(start + k * self.length, end - self.length)
        return starts

    def of(self, part: slice) -> Cover:
        return Cover(*(array[part] for array in self))


def cover(start: Ints, end: Ints, lengths: Sequence[int]) -> Cover:
    """Windows for the pixels from start to end (R, P): the longest that are not longer."""
    size = np.maximum(end - start, 1)
    number = np.searchsorted(lengths, size, side="right") - 1
    length = np.asarray(lengths)[number]
    return Cover(number, length, (-(-size // length)).max(axis=1, initial=1))


def best_lengths(bins: Bins, pixels: int) -> Lengths:
    """The lengths that make the fewest passes over elements: one for a pixel of a table, two for a window but the first."""
    rows, columns = _choices(bins.hstart, bins.hend), _choices(bins.wstart, bins.wend)
    high = [cover(bins.hstart, bins.hend, lengths).needed for lengths in rows]
    wide = [cover(bins.wstart, bins.wend, lengths).needed for lengths in columns]
    of_roi = bins.hstart.shape[1] * bins.wstart.shape[1]
    costs = {}
    for i, j in product(range(len(rows)), range(len(columns))):
        lengths = Lengths(rows[i], columns[j])
        if lengths.tables * pixels <= max(MOST_ROWS, pixels):
            costs[lengths] = lengths.tables * pixels + of_roi * int((2 * high[i] * wide[j] - 1).sum())
    return min(costs, key=lambda lengths: costs[lengths])


def _choices(start: Ints, end: Ints) -> list[tuple[int, ...]]:
    """Powers of two up to each that a bin has room for, and every length up to the greatest."""
    longest = max(int((end - start).max(initial=1)), 1)
    powers = [tuple(1 << i for i in range(top + 1)) for top in range(longest.bit_length())]
    return [*powers, tuple(range(1, longest + 1))]


class Windows(NamedTuple):
    """The windows that cover the bins of rois on a map of size (H, W): rows of window_tables, for some rois at a time.

    Each chunk: which rois, and for each window the row for each of their bins (an array); past the last for an empty bin.
    """

    size: tuple[int, int]
    lengths: Lengths
    chunks: list[tuple[slice, list[Ints]]]


def cover_bins(bins: Bins, size: tuple[int, int]) -> Windows:
    """The windows for all bins on a map of size (H, W)."""
    pixels = size[0] * size[1]
    lengths = best_lengths(bins, pixels)
    across, past = len(lengths.columns), lengths.tables * pixels
    rows, columns = cover(bins.hstart, bins.hend, lengths.rows), cover(bins.wstart, bins.wend, lengths.columns)
    step = max(1, AT_ONCE // (bins.hstart.shape[1] * bins.wstart.shape[1]))
    chunks = []
    for part in (slice(r, r + step) for r in range(0, len(bins.hstart), step)):
        top, bottom, left, right = (array[part] for array in bins)
        high, wide = rows.of(part), columns.of(part)
        by_row = [high.number * across * pixels + high.starts(top, bottom, k) * size[1] for k in range(high.needed.max())]
        by_column = [wide.number * pixels + wide.starts(left, right, k) for k in range(wide.needed.max())]
        empty = (bottom <= top)[:, :, None] | (right <= left)[:, None, :]
        chunks.append((part, [np.where(empty, past, i[:, :, None] + j[:, None, :]).ravel() for i in by_row for j in by_column]))
    return Windows(size, lengths, chunks)
