"""Max, average and stochastic pooling of maps (..., H, W), forward and backward. Source: Caffe's pooling_layer.cpp and .cu."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from minicaffe import rng
from minicaffe.blob import Array
from minicaffe.kernels import kernel
from minicaffe.threads import Scratch

from .pooling_mask import MOST_TAPS, first_maximum, first_maximum_dealt
from .pooling_windows import LOWEST, PoolAxis, reduce_windows, window_taps, windows_backward


def max_pool(x: Array, rows: PoolAxis, columns: PoolAxis, out: Array | None = None, scratch: Scratch | None = None) -> Array:
    """Return the maxima y (..., PH, PW) of x (..., H, W), in out if given."""
    # fmax, not maximum: as with Caffe's >, a NaN loses.
    return reduce_windows(np.fmax, x, rows, columns, LOWEST, out=out, scratch=scratch)


@kernel
def max_pool_places(
    x: Array, rows: PoolAxis, columns: PoolAxis, y: Array, scratch: Scratch | None = None
) -> NDArray[np.signedinteger[Any]]:
    """Return the index h * W + w of each window's first maximum, -1 if nothing won: (..., PH, PW), maybe in scratch.

    y (..., PH, PW) is overwritten with the maxima.
    """
    scratch = scratch or Scratch(x.dtype)
    max_pool(x, rows, columns, y, scratch)
    find = first_maximum_dealt if rows.kernel * columns.kernel <= MOST_TAPS else first_maximum
    return find(maps_of(x), maps_of(y), LOWEST, rows, columns, scratch).reshape(y.shape)  # x and y are still in cache


def maps_of(x: Array) -> Array:
    """Return x (..., H, W) as contiguous maps (M, H, W)."""
    return np.ascontiguousarray(x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]))


@kernel
def max_pool_gradient(
    dy: Array,
    x: Array,
    rows: PoolAxis,
    columns: PoolAxis,
    dx: Array,
    scratch: Scratch | None = None,
) -> None:
    """Compute dx (..., H, W): each window's dy (..., PH, PW) at its first maximum, in the windows' order.

    dx is overwritten.
    """
    scratch = scratch or Scratch(x.dtype)
    index = max_pool_places(x, rows, columns, scratch("maxima", *dy.shape), scratch)
    won = index >= 0
    # From an index in one map to an index in all maps.
    index += np.arange(math.prod(x.shape[:-2])).reshape(*x.shape[:-2], 1, 1) * (rows.size * columns.size)
    places, gradient = (index.reshape(-1), dy.reshape(-1)) if won.all() else (index[won], dy[won])
    dx[...] = 0
    if rows.overlap or columns.overlap:  # a pixel may win in several windows
        np.add.at(dx.reshape(-1), places, gradient)
    else:
        dx.reshape(-1)[places] = gradient  # faster than add.at


def ave_pool(x: Array, rows: PoolAxis, columns: PoolAxis, out: Array | None = None, scratch: Scratch | None = None) -> Array:
    """Return the means y (..., PH, PW) of x (..., H, W), in out if given.

    The divisor counts padding up to H + pad, W + pad.
    """
    sizes = divisors(rows, columns, x.dtype)
    with np.errstate(divide="ignore", invalid="ignore"):  # as in Caffe, an empty window of length 0 gives NaN
        if rows.one and columns.one:
            pixels = rows.size * columns.size
            # A product, because NumPy's sums of short rows are slow.
            y = np.matmul(x.reshape(-1, pixels), np.ones((pixels, 1), x.dtype)).reshape(*x.shape[:-2], 1, 1)
            mean: Array = np.divide(y, sizes, out=out)
            return mean
        y = reduce_windows(np.add, x, rows, columns, 0.0, out=out, scratch=scratch)
        y /= sizes
    return y


def ave_pool_gradient(dy: Array, rows: PoolAxis, columns: PoolAxis, dx: Array) -> None:
    """Compute dx (..., H, W) from dy (..., PH, PW); dx is overwritten."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = dy / divisors(rows, columns, dy.dtype)
    if rows.one and columns.one:
        dx[...] = shares
    else:
        windows_backward(shares, rows, columns, dx)


def divisors(rows: PoolAxis, columns: PoolAxis, dtype: DTypeLike) -> Array:
    """Return the divisors of the windows' sums (PH, PW)."""
    return np.multiply.outer(rows.lengths(dtype), columns.lengths(dtype))


def stochastic_pool(x: Array, rows: PoolAxis, columns: PoolAxis) -> tuple[Array, Array]:
    """Return a random pixel y of each window of x (..., H, W) >= 0, and its tap, both (..., PH, PW).

    A pixel's probability is x / sum(x).
    """
    # running: the sum of a window's pixels up to this tap.
    running, y = np.zeros((2, *x.shape[:-2], rows.pooled, columns.pooled), x.dtype)
    chosen = np.full(y.shape, -1, np.int32)
    for windows, pixels in window_taps(rows, columns):
        running[windows] += x[pixels]
    threshold = rng.generator().random(y.shape, y.dtype) * running
    # The same sums in the same order always reach the threshold, at the last tap at the latest.
    running[...] = 0
    for tap, (windows, pixels) in enumerate(window_taps(rows, columns)):
        value = x[pixels]
        running[windows] += value
        hit = (running[windows] >= threshold[windows]) & (chosen[windows] < 0)
        np.copyto(chosen[windows], tap, where=hit)
        np.copyto(y[windows], value, where=hit)
    return y, chosen


def stochastic_pool_gradient(dy: Array, chosen: Array, rows: PoolAxis, columns: PoolAxis, dx: Array) -> None:
    """Compute dx (..., H, W): each window's dy at the pixel that it drew. dx is overwritten."""
    dx[...] = 0
    for tap, (windows, pixels) in enumerate(window_taps(rows, columns)):
        part = dx[pixels]
        np.add(part, dy[windows], out=part, where=chosen[windows] == tap)


def weighted_pool(x: Array, rows: PoolAxis, columns: PoolAxis) -> Array:
    """Return stochastic pooling's expectation, for TEST: sum(x^2) / sum(x) of each window, 0 unless sum(x) > 0."""
    total = reduce_windows(np.add, x, rows, columns, 0.0)
    squares = reduce_windows(np.add, x * x, rows, columns, 0.0)
    y = np.zeros_like(total)  # Caffe's value for a window that sums to 0
    np.divide(squares, total, out=y, where=total > 0)
    return y


def weighted_pool_gradient(dy: Array, x: Array, rows: PoolAxis, columns: PoolAxis, dx: Array) -> None:
    """Compute dx (..., H, W) = sum over windows of dy (2 x - y) / sum(x). dx is overwritten."""
    total = reduce_windows(np.add, x, rows, columns, 0.0)
    scaled = np.divide(dy, total, out=np.zeros_like(total), where=total > 0)
    windows_backward(scaled, rows, columns, dx)
    dx *= 2 * x  # dy x^2 / sum: the square's derivative, then the sum's
    # Subtract the second term: y / sum of each window.
    weighted = np.empty_like(dx)
    windows_backward(scaled * weighted_pool(x, rows, columns), rows, columns, weighted)
    dx -= weighted
