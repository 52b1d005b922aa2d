"""Max, average and stochastic pooling of arrays, forward and backward. Source: Caffe's pooling_layer.cpp and .cu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng

from .pooling_windows import Index, PoolAxis, reduce_windows, spread_windows, window_taps

LOWEST = float(-np.finfo(np.float32).max)
"""What the maximum of an empty window is; a pixel that is not above it (NaN, -inf) never wins."""


def max_pool(x: NDArray[Any], rows: PoolAxis, columns: PoolAxis) -> NDArray[Any]:
    """x (N, C, H, W) -> the maxima y (N, C, PH, PW)."""
    return reduce_windows(np.fmax, x, rows, columns, LOWEST)


def max_pool_mask(x: NDArray[Any], y: NDArray[Any], rows: PoolAxis, columns: PoolAxis, mask: NDArray[Any]) -> None:
    """mask (N, C, PH, PW) = index h * W + w of the first maximum of each window, -1 where nothing won."""
    index = np.arange(rows.size * columns.size, dtype=mask.dtype).reshape(rows.size, columns.size)
    mask[...] = -1
    for windows, pixels, hit in _first_maxima(x, y, rows, columns):
        np.copyto(mask[windows], index[pixels], where=hit)


def max_pool_gradient(dy: NDArray[Any], x: NDArray[Any], rows: PoolAxis, columns: PoolAxis, dx: NDArray[Any]) -> None:
    """dx (N, C, H, W): every window's dy (N, C, PH, PW) on its first maximum; dx is overwritten.

    Taps are added from the last to the first, so that a pixel sums its windows in their order, as Caffe does.
    """
    dx[...] = 0
    for windows, pixels, hit in reversed(list(_first_maxima(x, max_pool(x, rows, columns), rows, columns))):
        part = dx[pixels]
        np.add(part, dy[windows], out=part, where=hit)


def _first_maxima(
    x: NDArray[Any], y: NDArray[Any], rows: PoolAxis, columns: PoolAxis
) -> Iterator[tuple[Index, Index, NDArray[np.bool_]]]:
    """For each tap: its windows and pixels, and in which of those windows it is the first to equal the maximum y."""
    open_windows = y > LOWEST
    for windows, pixels in window_taps(rows, columns):
        part = open_windows[windows]
        hit = x[pixels] == y[windows]
        hit &= part
        part ^= hit
        yield windows, pixels, hit


def ave_pool(x: NDArray[Any], rows: PoolAxis, columns: PoolAxis) -> NDArray[Any]:
    """x (N, C, H, W) -> the means y (N, C, PH, PW); the divisor counts padding up to H + pad, W + pad."""
    with np.errstate(divide="ignore", invalid="ignore"):  # an empty window's length may be 0: NaN, as in Caffe
        y = reduce_windows(np.add, x, rows, columns, 0.0)
        y /= _sizes(rows, columns, x)
    return y


def ave_pool_gradient(dy: NDArray[Any], rows: PoolAxis, columns: PoolAxis, dx: NDArray[Any]) -> None:
    """dx (N, C, H, W) from dy (N, C, PH, PW); dx is overwritten."""
    with np.errstate(divide="ignore", invalid="ignore"):
        spread_windows(dy / _sizes(rows, columns, dy), rows, columns, dx)


def _sizes(rows: PoolAxis, columns: PoolAxis, like: NDArray[Any]) -> NDArray[Any]:
    """The windows' divisors (PH, PW)."""
    sizes: NDArray[Any] = np.multiply.outer(rows.lengths(like.dtype), columns.lengths(like.dtype))
    return sizes


def stochastic_pool(x: NDArray[Any], rows: PoolAxis, columns: PoolAxis) -> tuple[NDArray[Any], NDArray[Any]]:
    """x (N, C, H, W) >= 0 -> a pixel of each window, drawn with probability x / sum(x): y and which tap (N, C, PH, PW)."""
    running, y = np.zeros((2, *x.shape[:2], rows.pooled, columns.pooled), x.dtype)
    chosen = np.full(y.shape, -1, np.int32)
    for windows, pixels in window_taps(rows, columns):
        running[windows] += x[pixels]
    threshold = rng.generator().random(y.shape, y.dtype) * running
    running[...] = 0
    for tap, (windows, pixels) in enumerate(window_taps(rows, columns)):
        value = x[pixels]
        running[windows] += value
        hit = (running[windows] >= threshold[windows]) & (chosen[windows] < 0)
        np.copyto(chosen[windows], tap, where=hit)
        np.copyto(y[windows], value, where=hit)
    return y, chosen


def stochastic_pool_gradient(
    dy: NDArray[Any], chosen: NDArray[Any], rows: PoolAxis, columns: PoolAxis, dx: NDArray[Any]
) -> None:
    """dx (N, C, H, W): every window's dy on the pixel that it drew; dx is overwritten."""
    dx[...] = 0
    for tap, (windows, pixels) in enumerate(window_taps(rows, columns)):
        part = dx[pixels]
        np.add(part, dy[windows], out=part, where=chosen[windows] == tap)


def weighted_pool(x: NDArray[Any], rows: PoolAxis, columns: PoolAxis) -> NDArray[Any]:
    """Stochastic pooling's expectation, for TEST: sum(x^2) / sum(x) of each window, 0 where sum(x) is not above 0."""
    total = reduce_windows(np.add, x, rows, columns, 0.0)
    squares = reduce_windows(np.add, x * x, rows, columns, 0.0)
    y = np.zeros_like(total)
    np.divide(squares, total, out=y, where=total > 0)
    return y


def weighted_pool_gradient(dy: NDArray[Any], x: NDArray[Any], rows: PoolAxis, columns: PoolAxis, dx: NDArray[Any]) -> None:
    """dx (N, C, H, W) = sum over windows of dy (2 x - y) / sum(x); dx is overwritten."""
    total = reduce_windows(np.add, x, rows, columns, 0.0)
    scaled = np.divide(dy, total, out=np.zeros_like(total), where=total > 0)
    spread_windows(scaled, rows, columns, dx)
    dx *= 2 * x
    weighted = np.empty_like(dx)
    spread_windows(scaled * weighted_pool(x, rows, columns), rows, columns, weighted)
    dx -= weighted
