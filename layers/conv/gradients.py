"""A convolution's two gradients, computed from the nonzero part of dy.

The loss of a detector is that of few boxes. RPN's 3x3 convolution learns from 256 anchors, in a tenth of its windows; the boxes
of R-FCN from the filters of the image's classes, one to five of 21; SSD's from a few hundred of 8732. All else of dy is zero,
and would be multiplied for nothing. So zeros are looked for, in a few windows of dy first: most maps have none.

What the windows that are left see is copied side by side, and multiplied as matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe import limits
from minicaffe.blob import Array
from minicaffe.kernels import kernel
from minicaffe.threads import cut, kept_scratch, parts, run

from .convolution_products import add_weight_gradient, data_gradient
from .matrix_products import add_product, multiply
from .window import Window

Indices = NDArray[np.intp]


class Sight(NamedTuple):
    """The pixels that columns read: an image's number, its windows' columns, and pixels of its map (taps * windows,).

    The pixels of all windows' first tap come first. For a tap outside the map, the pixel is one past the last.
    """

    image: int
    windows: slice
    pixels: Indices


LEAST, LEAST_SEEN = 1 << 26, 128
"""Least multiplications of a gradient, and least numbers that a window reads, for which it pays to look for zeros."""

SAMPLES, GOLDEN = 32, (5**0.5 - 1) / 2
"""The number of windows in which to look for zeros first, and the golden ratio, whose multiples scatter them."""

MOST_FILTERS = 0.5
"""Greatest share of filters that are selected if the others are zero."""

MOST_PIXELS, MOST_WINDOWS = 0.5, 0.25
"""Greatest share of windows that are selected, for 1x1 kernels and for larger ones. For the latter Winograd has a quarter of
the multiplications."""

LEAST_CHANNELS, LEAST_FILTERS, LEAST_EACH = 16, 128, 16
"""Least channels of maps from which windows are selected; least filters for that with 1x1 kernels; least windows of an image.
Below, copying columns and finding their pixels takes longer than it saves."""

BYTES = 32 << 20
"""Approximate bytes of columns made at a time."""


def gradients(  # noqa: PLR0917
    x: Array, dy: Array, weight: Array, window: Window, group: int, dx: Array | None, dweight: Array | None
) -> None:
    """Compute dx (N, C, *map) and add to dweight (M, C / group, *kernel), from x and dy (N, M, *windows).

    None: not wanted. Products with zeros of dy may be left out, even those of infinity or NaN.
    """
    filters, windows = _not_zero(dy, weight, window) if group == 1 and x.size else (None, None)
    made = dweight
    if filters is not None:
        dy, weight = dy.take(filters, axis=1), weight[filters]
        made = None if dweight is None else np.zeros_like(weight)
    if not len(weight):  # no filter is left: all of dy is zero
        if dx is not None:
            dx[...] = 0
    elif windows is not None:
        _of_windows(x, dy, weight, window, dx, made, windows)
    else:
        if made is not None:
            add_weight_gradient(x, dy, window, group, made)
        if dx is not None:
            data_gradient(dy, weight, window, group, dx)
    if filters is not None and dweight is not None:
        dweight[filters] += made


def _not_zero(dy: Array, weight: Array, window: Window) -> tuple[Indices | None, Indices | None]:
    """Return the filters, and the windows of all images, in which dy (N, M, *windows) is not zero.

    Return None if most are not zero, or if looking for zeros would not pay.
    """
    each = math.prod(dy.shape[2:])
    count = len(dy) * each
    if count * weight.size < LEAST or weight[0].size < LEAST_SEEN:
        return None, None
    most = MOST_WINDOWS
    if window.pointwise:
        most = MOST_PIXELS if len(weight) >= LEAST_FILTERS else 0
    if weight.shape[1] < LEAST_CHANNELS or each < LEAST_EACH:
        most = 0  # never select single windows
    maps = dy.reshape(*dy.shape[:2], each)
    image, place = np.divmod((np.arange(SAMPLES) * GOLDEN % 1 * count).astype(np.intp), each)
    sample = maps[image, :, place] != 0
    if sample.any(0).mean() > MOST_FILTERS and sample.any(1).mean() > most:
        return None, None
    found = maps != 0
    filters, windows = found.any((0, 2)), found.any(1)
    return (
        np.flatnonzero(filters) if filters.mean() <= MOST_FILTERS else None,
        np.flatnonzero(windows) if windows.mean() <= most else None,
    )


def _of_windows(  # noqa: PLR0917
    x: Array, dy: Array, weight: Array, window: Window, dx: Array | None, dweight: Array | None, windows: Indices
) -> None:
    """Compute the gradients if dy is zero in all other windows."""
    if dx is not None:
        dx[...] = 0
    maps, matrix = dy.reshape(*dy.shape[:2], -1), weight.reshape(len(weight), -1)
    pieces = -(-len(windows) * matrix[0].nbytes // min(BYTES, limits.bytes))
    with kept_scratch(x.dtype) as scratch:
        for some in cut(len(windows), pieces):
            image, place = np.divmod(windows[some], maps.shape[2])
            sights = list(_sights(image, place, window, x.shape[2:], dy.shape[2:]))
            given = np.ascontiguousarray(maps[image, :, place].T)
            columns = scratch("large", x.shape[1], math.prod(window.kernel), len(image))
            flat = columns.reshape(-1, len(image))
            if dweight is not None:
                _gather(x, sights, columns)
                add_product(given, flat.T, dweight.reshape(matrix.shape))
            if dx is not None:
                multiply(matrix.T, given, flat)
                _add_back(columns, sights, dx)


def _sights(image: Indices, place: Indices, window: Window, size: tuple[int, ...], output: tuple[int, ...]) -> Iterator[Sight]:
    """Yield the pixels of maps of this size that the windows at these places read, image by image."""
    stride, pad, dilation, sizes = (np.array(one)[:, None] for one in (window.stride, window.pad, window.dilation, size))
    first = np.array(np.unravel_index(place, output)) * stride - pad  # (axes, windows)
    taps = [first + np.array(tap)[:, None] * dilation for tap in product(*map(range, window.kernel))]
    inside = [((at >= 0) & (at < sizes)).all(0) for at in taps]
    pixels = np.where(inside, [np.ravel_multi_index(tuple(at), size, mode="clip") for at in taps], math.prod(size))
    numbers, starts = np.unique(image, return_index=True)
    for number, start, end in zip(numbers, starts, [*starts[1:], len(image)], strict=True):
        yield Sight(number, slice(start, end), pixels[:, start:end].ravel())


def _gather(x: Array, sights: Sequence[Sight], columns: Array) -> None:
    """Copy the pixels of x (N, C, *map) to columns (C, taps, windows), 0 outside the map."""
    maps = x.reshape(*x.shape[:2], -1)

    def gather(part: slice) -> None:
        for image, windows, pixels in sights:
            seen = np.take(maps[image, part], pixels, axis=1, mode="clip")
            seen[:, pixels == maps.shape[2]] = 0
            columns[part, :, windows] = seen.reshape(len(seen), columns.shape[1], -1)

    run(partial(gather, part) for part in parts(len(columns)))


def _add_back(columns: Array, sights: Sequence[Sight], dx: Array) -> None:
    """Add columns (C, taps, windows) to the pixels of dx (N, C, *map)."""
    maps = dx.reshape(*dx.shape[:2], -1)

    def add(part: slice) -> None:
        for image, windows, pixels in sights:
            add_columns(columns[part], pixels, windows, maps[image, part])

    run(partial(add, part) for part in parts(len(columns)))


@kernel
def add_columns(columns: Array, pixels: Indices, windows: slice, maps: Array) -> None:
    """Add some columns (C, taps, windows) to maps (C, pixels). pixels (taps * columns,): of these columns, as in Sight."""
    for to, seen in zip(maps, columns[:, :, windows], strict=True):
        np.add(to, np.bincount(pixels, seen.ravel(), len(to) + 1)[:-1], out=to)
