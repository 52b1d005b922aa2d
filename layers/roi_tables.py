"""Maxima over the bins of rois, from tables of the maxima of windows: each is found once, for all rois.

    tables[i, j][p] = max of the rows[i] x columns[j] pixels from pixel p on          one pass each, from the one before
    a bin's maximum = the greatest of the windows that cover it (roi_windows.py)

Why this is fast: what a bin costs does not grow with its size, and all bins take the same steps, so that one NumPy call
serves thousands of them, channels side by side. A block of channels is a task, whose tables stay in a core's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Protocol

import numpy as np

from minicaffe.threads import run

from .roi_geometry import Array, Bins, Ints
from .roi_windows import Lengths, Windows, cover_bins

ROW_BYTES = 128
"""Channels of a block: as many as this has room for."""


class Ordered(Protocol):
    """What maxima are taken of: keys of x, of so many bytes each; an empty bin's is empty."""

    itemsize: int
    empty: float

    def of(self, x: Array) -> Array:
        """x (C, H, W) -> keys (H * W, C)."""
        ...

    def read(self, maxima: Array) -> Array:
        """What the greatest keys say, of the same shape."""
        ...


def pool_windows(x: Array, images: Ints, bins: Bins, keys: Ordered, y: Array) -> None:
    """y (R, C, PH, PW) = what the greatest of keys says in each bin of each roi on x[images[r]], x (N, C, H, W)."""
    step = max(1, ROW_BYTES // keys.itemsize)
    tasks = []
    for image in np.unique(images).tolist():
        rois = np.flatnonzero(images == image)
        windows = cover_bins(Bins(*(array[rois] for array in bins)), (x.shape[2], x.shape[3]))
        for block in (slice(c, c + step) for c in range(0, x.shape[1], step)):
            tasks.append(partial(_pool_block, x[image, block], rois, windows, keys, y[:, block]))
    run(tasks)


def _pool_block(x: Array, rois: Ints, windows: Windows, keys: Ordered, y: Array) -> None:
    for some, maxima in window_maxima(keys.of(x), windows, keys.empty):
        y[rois[some]] = keys.read(maxima).reshape(-1, *y.shape[2:], len(x)).transpose(0, 3, 1, 2)


def window_tables(x: Array, lengths: Lengths, width: int, empty: float) -> Array:
    """x (H * W, C) -> (T * H * W + 1, C): the maxima of the windows from each pixel on, table after table; then empty.

    What belongs to windows that do not fit onto the map is left unset.
    """
    pixels, channels = x.shape
    tables = np.empty((lengths.tables * pixels + 1, channels), x.dtype)
    tables[-1] = empty
    of_size = tables[:-1].reshape(len(lengths.rows), len(lengths.columns), pixels, channels)
    of_size[0, 0] = x
    for i, j in product(range(len(lengths.rows)), range(len(lengths.columns))):
        count = max(pixels - (lengths.rows[i] - 1) * width - (lengths.columns[j] - 1), 0)
        if j:
            before, step = of_size[i, j - 1], lengths.columns[j] - lengths.columns[j - 1]
        elif i:
            before, step = of_size[i - 1, 0], (lengths.rows[i] - lengths.rows[i - 1]) * width
        else:
            continue
        np.maximum(before[:count], before[step : count + step], out=of_size[i, j, :count])
    return tables


def window_maxima(x: Array, windows: Windows, empty: float) -> Iterator[tuple[slice, Array]]:
    """x (H * W, C) -> for some rois at a time the maxima (bins, C) over their bins; empty where a bin is."""
    tables = window_tables(x, windows.lengths, windows.size[1], empty)
    most = max((len(rows[0]) for _, rows in windows.chunks), default=0)
    room = np.empty((2, most, x.shape[1]), x.dtype)
    for rois, (first, *others) in windows.chunks:
        maxima, another = room[:, : len(first)]
        tables.take(first, axis=0, out=maxima, mode="clip")
        for rows in others:
            tables.take(rows, axis=0, out=another, mode="clip")
            np.maximum(maxima, another, out=maxima)
        yield rois, maxima
