"""Maxima over the bins of rois, and their positions, for ROIPooling.

The definition is maxima_by_definition; backward's, backward_by_definition. The
fast way forward finds the maximum of each window of pixels once, for all the bins that it helps to cover:

    tables[i, j][p] = max of the rows[i] x columns[j] pixels from pixel p on          one pass each, from the one before
    a bin's maximum = the greatest of the windows that cover it, overlaps allowed     1, 2 or 4 of them, most often

What a bin costs does not grow with its size, and all bins take the same steps, so that one NumPy call serves thousands of
them, channels side by side. A block of channels is a task, whose tables stay in a core's cache. Where the first maximum is
takes the same steps, with integer keys that order (value, earlier pixel).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.kernels import kernel
from minicaffe.threads import get_num_threads, run

from .roi_geometry import LOWEST, BinPlan, Bins, Ints

MOST_ROWS = 2**19
"""Most rows of all tables together, unless one map has more."""

BINS = 4096
"""Bins that one step works on."""

ROW_BYTES = 128
"""Bytes of a task's channels in a row."""

SUMS = 2**18
"""Sums of a task of backward, unless one channel has more."""

VALUES = 2**17
"""Values that one step of backward adds."""

PIXEL_BITS = 31
"""Low bits of a key: the pixel, counted from the last one. A blob has fewer than 2^31 elements."""


def maxima_by_definition(x: Array, plan: BinPlan) -> tuple[Array, NDArray[np.int32]]:
    """Return the maxima of x (N, C, H, W) in each bin and their h * W + w, (R, C, PH, PW) each; 0 and -1 for an empty bin."""
    rois, pooled_h, pooled_w = plan.shape
    y = np.zeros((rois, x.shape[1], pooled_h, pooled_w), x.dtype)
    argmax = np.full(y.shape, -1, np.int32)
    for r, c, ph, pw in np.ndindex(y.shape):
        rows, columns = plan.places.of(r, ph, pw)
        best, where = (LOWEST if rows and columns else 0.0), -1
        for h, w in product(rows, columns):
            if x[plan.images[r], c, h, w] > best:
                best, where = x[plan.images[r], c, h, w], h * x.shape[3] + w
        y[r, c, ph, pw], argmax[r, c, ph, pw] = best, where
    return y, argmax


def backward_by_definition(dy: Array, images: Ints, argmax: Array, dx: Array, first: int, end: int) -> None:
    """Add each dy (R, C, PH * PW) to dx (N, C, H * W) at its maximum, for the channels from first to end."""
    for r in range(len(dy)):
        for c in range(first, end):
            for b in range(dy.shape[2]):
                if argmax[r, c, b] >= 0:
                    dx[images[r], c, argmax[r, c, b]] += dy[r, c, b]


class Lengths(NamedTuple):
    """Window lengths along each axis, ascending from 1, each at most twice the one before."""

    rows: Sequence[int]
    columns: Sequence[int]

    @property
    def tables(self) -> int:
        return len(self.rows) * len(self.columns)


class Windows(NamedTuple):
    """The windows that cover the bins of one image's rois (R',), on maps of size (H, W).

    steps: some of the rois at a time, and for each window that a bin may need the row of the tables (bins,) with its maximum;
    the very last row for an empty bin.
    """

    image: int
    rois: Ints
    size: tuple[int, int]
    lengths: Lengths
    steps: list[tuple[slice, list[Ints]]]


def cover_bins(plan: BinPlan) -> list[Windows]:
    """Return the windows of all bins, image by image."""
    images = plan.images
    return [_cover_image(plan, image, np.flatnonzero(images == image)) for image in np.unique(images).tolist()]


def _cover_image(plan: BinPlan, image: int, rois: Ints) -> Windows:
    (_, high, wide), size = plan.shape, plan.size
    bins, pixels = Bins(*(array[rois] for array in plan.places)), size[0] * size[1]
    lengths = best_lengths(bins, pixels)
    steps, step = [], max(1, BINS // (high * wide))
    for part in (slice(r, r + step) for r in range(0, len(rois), step)):
        top, bottom, left, right = (array[part] for array in bins)
        # Table (i, j) starts at row (i * len(lengths.columns) + j) * H * W.
        by_row = _starts(top, bottom, lengths.rows, size[1], len(lengths.columns) * pixels)
        by_column = _starts(left, right, lengths.columns, 1, pixels)
        empty = (bottom <= top)[:, :, None] | (right <= left)[:, None, :]  # (R', PH, PW)
        rows = (np.where(empty, lengths.tables * pixels, i[:, :, None] + j[:, None, :]) for i in by_row for j in by_column)
        # the type that take needs, on 32 bits too
        steps.append((part, [row.ravel().astype(np.intp, copy=False) for row in rows]))
    return Windows(image, rois, size, lengths, steps)


def best_lengths(bins: Bins, pixels: int, times: int = 1) -> Lengths:
    """Return the lengths that need the fewest passes over elements: one for each table pixel, two for each further window.

    They depend on the rois: powers of two for few rois, every length for many. times: the multiplicity of each roi.
    """
    by_row, by_column = _choices(bins.hstart, bins.hend), _choices(bins.wstart, bins.wend)
    of_roi = times * bins.hstart.shape[1] * bins.wstart.shape[1]
    costs = {}
    for (rows, high), (columns, wide) in product(by_row, by_column):
        lengths = Lengths(rows, columns)
        if lengths.tables * pixels <= max(MOST_ROWS, pixels):  # always true for the single length 1
            costs[lengths] = lengths.tables * pixels + of_roi * int((2 * high * wide - 1).sum())
    return min(costs, key=lambda lengths: costs[lengths])


def working_bytes(roi: BinPlan, rois: int, images: int) -> int:
    """Return the bytes to find the maxima of `rois` rois like this one, equally many in each image.

    They are a task's tables and maps on each thread, and the rows of the tables that the bins need.
    """
    (_, high, wide), bins, pixels = roi.shape, roi.places, roi.size[0] * roi.size[1]
    lengths = best_lengths(bins, pixels, -(-rois // max(images, 1)))
    axes = ((bins.hstart, bins.hend, lengths.rows), (bins.wstart, bins.wend, lengths.columns))
    windows = math.prod(int(_cover(*axis)[2][0]) for axis in axes)
    return get_num_threads() * ROW_BYTES * ((lengths.tables + 1) * pixels + 2 * BINS) + 8 * windows * rois * high * wide


def _choices(start: Ints, end: Ints) -> list[tuple[tuple[int, ...], Ints]]:
    """Return sets of lengths, and how many windows each needs.

    They are the powers of two up to each that fits a bin, and every length up to the greatest.
    """
    longest = max(int((end - start).max(initial=1)), 1)
    powers = [tuple(1 << i for i in range(top + 1)) for top in range(longest.bit_length())]
    return [(lengths, _cover(start, end, lengths)[2]) for lengths in (*powers, tuple(range(1, longest + 1)))]


def _cover(start: Ints, end: Ints, lengths: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """Return windows for the pixels from start to end (R, P), each the longest that fits.

    They are given by the index of their length and the length (R, P), and by how many are needed (R,).
    """
    extent = np.maximum(end - start, 1)
    number = np.searchsorted(lengths, extent, side="right") - 1  # lengths[0] is 1, so never -1
    length = np.asarray(lengths)[number]
    return number, length, (-(-extent // length)).max(axis=1, initial=1)


def _starts(start: Ints, end: Ints, lengths: Sequence[int], pitch: int, table: int) -> list[Ints]:
    """Return where in the tables each bin's first window begins, its second, ...: (R, P) each.

    The last one ends with the bin.
    """
    number, length, needed = _cover(start, end, lengths)
    # end - length keeps windows in their bin. Bins that need fewer windows repeat the last one. The caller replaces empty bins.
    return [number * table + np.minimum(start + k * length, end - length) * pitch for k in range(needed.max(initial=0))]


class Order(NamedTuple):
    """The keys whose maxima are taken: keys(x (C, H, W)) -> (H * W, C), their itemsize, and an empty bin's key.

    read: the meaning of keys.
    """

    keys: Callable[[Array], Array]
    itemsize: int
    empty: float
    read: Callable[[Array], Array]


def find_maxima(x: Array, windows: Sequence[Windows], y: Array) -> None:
    """Write y (R, C, PH, PW): the maxima of x (N, C, H, W)."""
    _find(x, windows, Order(channels_last, x.itemsize, 0, lambda maxima: maxima), y)


def find_argmax(x: Array, windows: Sequence[Windows], argmax: NDArray[np.int32]) -> None:
    """Write argmax (R, C, PH, PW): h * W + w of each first maximum of x (N, C, H, W), -1 if nothing won."""
    pixels = x.shape[2] * x.shape[3]
    _find(x, windows, Order(ordered_keys, 8, never(pixels), partial(pixels_of, pixels=pixels)), argmax)


def _find(x: Array, windows: Sequence[Windows], order: Order, y: Array) -> None:
    step = max(1, ROW_BYTES // order.itemsize)
    blocks = [slice(c, c + step) for c in range(0, x.shape[1], step)]
    run([partial(_find_block, x[of.image, block], of, order, y[:, block]) for of in windows for block in blocks])


def _find_block(x: Array, windows: Windows, order: Order, y: Array) -> None:
    """Write y (R, C', PH, PW) for x (C', H, W), a block of channels."""
    tables = window_tables(order.keys(x), windows.lengths, windows.size[1], order.empty)
    most = max((len(rows[0]) for _, rows in windows.steps), default=0)
    room = np.empty((2, most, len(x)), tables.dtype)
    for part, (first, *others) in windows.steps:
        maxima, another = room[:, : len(first)]
        tables.take(first, axis=0, out=maxima, mode="clip")  # "clip" avoids the copy of out that "raise" makes
        for rows in others:
            tables.take(rows, axis=0, out=another, mode="clip")
            np.maximum(maxima, another, out=maxima)
        y[windows.rois[part]] = order.read(maxima).reshape(-1, *y.shape[2:], len(x)).transpose(0, 3, 1, 2)


def window_tables(x: Array, lengths: Lengths, width: int, empty: float) -> Array:
    """Return (T * H * W + 1, C): the maxima of the windows of x (H * W, C) from each pixel on, table after table; then empty.

    Entries of windows that do not fit on the map are unset.
    """
    pixels, channels = x.shape
    tables = np.empty((lengths.tables * pixels + 1, channels), x.dtype)
    tables[-1] = empty
    of_size = tables[:-1].reshape(len(lengths.rows), len(lengths.columns), pixels, channels)
    of_size[0, 0] = x
    # On the flat map, a window past a row's end continues in the next row, but no bin asks for it.
    for i, j in product(range(len(lengths.rows)), range(len(lengths.columns))):
        count = max(pixels - (lengths.rows[i] - 1) * width - (lengths.columns[j] - 1), 0)
        if j:
            # A window joins two shorter ones, `step` apart.
            before, step = of_size[i, j - 1], lengths.columns[j] - lengths.columns[j - 1]
        elif i:
            before, step = of_size[i - 1, 0], (lengths.rows[i] - lengths.rows[i - 1]) * width
        else:
            continue
        np.maximum(before[:count], before[step : count + step], out=of_size[i, j, :count])
    return tables


def channels_last(x: Array) -> Array:
    """Return a copy (H * W, C) of x (C, H, W) in which NaN and -inf are -FLT_MAX, so that they never win."""
    copy = np.empty((x.shape[1] * x.shape[2], len(x)), x.dtype)
    copy[...] = x.reshape(copy.shape[::-1]).T
    np.fmax(copy, x.dtype.type(LOWEST), out=copy)
    return copy


def ordered_keys(x: Array) -> NDArray[np.int64]:
    """Return keys (H * W, C) of x (C, H, W), ordered by value, then by earlier pixel; never() for what cannot win."""
    values = channels_last(x)
    keys: NDArray[np.int64]
    if x.dtype == np.float32:
        bits = (values + np.float32(0)).view(np.int32)  # + 0 makes -0.0 equal to 0.0
        # in the floats' order, with the bits of negative ones inverted
        keys = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64)
    else:
        # 64 bits have no room for value and pixel, so use ranks instead of values.
        keys = np.unique(values, return_inverse=True)[1].reshape(values.shape).astype(np.int64)
    keys <<= PIXEL_BITS
    keys |= np.arange(len(values) - 1, -1, -1)[:, None]  # of equal values, the earlier pixel gets the greater key
    keys[values <= LOWEST] = never(len(values))
    return keys


def never(pixels: int) -> int:
    """Return the key that never wins on a map with that many pixels. It is below every other; its pixel is -1."""
    return (-(2**31) << PIXEL_BITS) + pixels


def pixels_of(keys: NDArray[np.int64], pixels: int) -> NDArray[np.int32]:
    """Return each key's pixel (h * W + w) on a map with that many pixels; -1 for never()."""
    from_last = keys.astype(np.int32)  # the low 32 bits
    from_last &= 2**PIXEL_BITS - 1
    np.subtract(np.int32(pixels - 1), from_last, out=from_last)
    return from_last


@kernel
def add_at_maxima(dy: Array, images: Ints, argmax: Array, dx: Array) -> None:
    """Compute dx (N, C, H, W): the sums of dy (R, C, PH, PW) at each image, channel and argmax (h * W + w, or -1 for none).

    np.add.at is fast with one index array of intp and sums that stay in a core's cache: those of a block of channels.
    np.bincount, take and put, and a mask for each pixel are slower. Each block is a task and owns its sums, so that a
    pixel's are added in the order of the rois and bins, for any number of threads.
    """
    count, channels, height, width = dx.shape
    bins = dy.shape[2] * dy.shape[3]
    step = max(1, min(channels, SUMS // max(count * height * width, 1)))
    rois = max(1, VALUES // max(step * bins, 1))

    def add(block: slice) -> None:
        own = dx[:, block]
        # dy without a maximum goes to the head of each plane
        sums = np.zeros((count, own.shape[1], height * width + 1), dx.dtype)
        planes = np.repeat(1 + sums.shape[2] * np.arange(own.shape[1], dtype=np.int32), bins)
        for part in (slice(r, r + rois) for r in range(0, len(dy), rois)):
            index = (argmax[part, block].reshape(-1, len(planes)) + planes).astype(np.intp)
            if count > 1:
                index += images[part, None] * sums[0].size
            with np.errstate(invalid="ignore", over="ignore"):
                np.add.at(sums.reshape(-1), index.reshape(-1), dy[part, block].reshape(-1))
        own[...] = sums[:, :, 1:].reshape(own.shape)

    run([partial(add, slice(c, c + step)) for c in range(0, channels, step)])
