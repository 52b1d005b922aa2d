"""The index of each pooling window's first maximum, in row-major order.

    before = how many taps of the window, in order, come before one that equals the maximum

Counted as one byte a window, without a branch, and fast as passes over arrays without gaps: the map is first dealt out to
stride x stride maps, pixel (r, c) to map (r mod stride, c mod stride). There every tap of all windows is one run of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.threads import Scratch

from .pooling_windows import PoolAxis, window_taps

MOST_TAPS = 25
"""Most taps of windows for which it pays to deal out the map: dealing out reads all pixels that windows reach."""


def first_maximum(x: Array, y: Array, lowest: float, rows: PoolAxis, columns: PoolAxis, scratch: Scratch) -> NDArray[np.intp]:
    """Return the index h * W + w of each window's first maximum in x (M, H, W): (M, PH, PW).

    y (M, PH, PW): the maxima. The index is -1 where y is not above lowest. This is the definition, for windows of any size.
    """
    # `still`: no tap so far equals the maximum.
    still, before = y > lowest, np.zeros(y.shape, np.min_scalar_type(rows.kernel * columns.kernel))
    for windows, pixels in window_taps(rows, columns):
        part = still[windows]
        part &= x[pixels] != y[windows]  # a tap off the map leaves `still` unchanged and counts as passed
        before += still
    taps = np.add.outer(rows.offsets() * columns.size, columns.offsets()).reshape(-1)
    return _indices(taps, before, y > lowest, rows, columns)


def first_maximum_dealt(
    x: Array, y: Array, lowest: float, rows: PoolAxis, columns: PoolAxis, scratch: Scratch
) -> NDArray[np.intp]:
    """Return the same indices, found on maps split by phase."""
    maps, (height, width) = len(x), (_reach(axis) for axis in (rows, columns))
    wanted = scratch("wanted", maps, height, width)
    wanted[...] = lowest  # places without a window are not above lowest, so they are found at once
    wanted[:, : rows.pooled, : columns.pooled] = y
    greatest, still = wanted.reshape(-1), np.greater(wanted, lowest).reshape(-1)
    before, other = np.zeros(still.shape, np.uint8), np.ones(still.shape, bool)
    for tap in _taps(x, rows, columns, scratch):  # places past a tap's end have no window
        np.not_equal(tap, greatest[: len(tap)], out=other[: len(tap)])
        still &= other
        before += still.view(np.uint8)  # fits a byte, because there are at most 25 taps
    found = before.reshape(maps, height, width)[:, : rows.pooled, : columns.pooled]
    offsets = (np.arange(axis.kernel) - axis.pad for axis in (rows, columns))
    taps = np.add.outer(next(offsets) * columns.size, next(offsets)).reshape(-1)
    return _indices(taps, found, y > lowest, rows, columns)


def _indices(
    taps: NDArray[np.intp], before: Array, won: NDArray[np.bool_], rows: PoolAxis, columns: PoolAxis
) -> NDArray[np.intp]:
    """Return each window's pixel, -1 where not won.

    taps (K,): pixels relative to a window's start. before: each window's tap.
    """
    mask = np.take(taps, before)  # `before` is the number of the tap that won
    mask += np.add.outer(np.arange(rows.pooled) * rows.stride * columns.size, np.arange(columns.pooled) * columns.stride)
    if not won.all():
        mask[~won] = -1
    return mask


def _reach(axis: PoolAxis) -> int:
    """Return how many pixels of each phase's map the windows reach."""
    return axis.pooled + (axis.kernel - 1) // axis.stride


def _taps(x: Array, rows: PoolAxis, columns: PoolAxis, scratch: Scratch) -> Iterator[Array]:
    """Yield each tap's pixels in row-major order, in windows (M, reach, reach), flattened; NaN off the map."""
    shape = len(x), _reach(rows), _reach(columns)
    dealt: dict[tuple[int, int], Array] = {}
    for r, c in np.ndindex(rows.kernel, columns.kernel):
        phase = r % rows.stride, c % columns.stride
        if phase not in dealt:  # taps a stride apart read the same map, shifted
            plane = dealt[phase] = scratch(f"dealt {phase}", *shape)
            plane[...] = np.nan  # NaN equals no maximum, so a pixel off the map is never found
            to_rows, from_rows = _dealt(rows, phase[0])
            to_columns, from_columns = _dealt(columns, phase[1])
            plane[:, to_rows, to_columns] = x[:, from_rows, from_columns]
        # One slice serves all maps: only its start differs, by whole rows and pixels.
        yield dealt[phase].reshape(-1)[r // rows.stride * shape[2] + c // columns.stride :]


def _dealt(axis: PoolAxis, phase: int) -> tuple[slice, slice]:
    """Return slices of the pixels phase - pad, phase - pad + stride, ... on the map: their destination and source."""
    offset = phase - axis.pad
    first = max(0, -(offset // axis.stride))  # ceil(-offset / stride): the first pixel on the map
    last = min(_reach(axis) - 1, (axis.size - 1 - offset) // axis.stride)
    pixels = slice(first * axis.stride + offset, max(last * axis.stride + offset + 1, 0), axis.stride)
    return slice(first, last + 1), pixels
