"""Pooling as plain loops: first the rows of a window, then its columns.

Each loop takes maps x (M, H, W). Window i begins at pixel i * stride - pad; pixels off the map do not count. room, and places
for indices, are memory for two lines (2, line_length).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.compiled.pooled_rows import MOST, add_rows, divide, max_rows, max_windows, mean_windows, sum_up
from minicaffe.kernels import provides
from minicaffe.layers.pool import pooling_methods as methods
from minicaffe.layers.pool.pooling_methods import maps_of
from minicaffe.layers.pool.pooling_windows import LOWEST, PoolAxis
from minicaffe.threads import Scratch

Windows = tuple[int, int, int, int, int, int]
"""Kernel, stride and pad, each of rows and of columns."""

Places = NDArray[np.int32]


def windows_of(rows: PoolAxis, columns: PoolAxis) -> Windows:
    # a larger kernel only reads past the map
    height, width = (min(axis.kernel, axis.size + axis.pad) for axis in (rows, columns))
    return height, width, rows.stride, columns.stride, rows.pad, columns.pad


def line_length(columns: PoolAxis) -> int:
    """Return the length of a row of a map with its padding, up to the end of the last window."""
    return columns.pad + max(columns.size, columns.reach - columns.pad)


@loop("T[::1], T[::1], T[::1], UniTuple(int64, 9), int64")
def pool_row(x: Array, room: Array, y: Array, row: tuple[int, ...], by_maximum: int) -> None:
    """Compute a row of y: the maxima, or the sums, of windows of any width.

    room: two lines, flat; the first has LOWEST, or 0, beside the map.

    row: where the map's rows that the windows see begin in x, their number, their width; kernel, stride and pad of the columns;
    where the row of y begins, its number of windows, the length of a line.
    """
    start, rows, width, kernel, stride, pad, to, over, run = row
    for r in range(0, rows, MOST):
        if by_maximum:
            max_rows(x, start + r * width, width, min(MOST, rows - r), room, pad, width, 1, r == 0)
        else:
            add_rows(x, start + r * width, width, min(MOST, rows - r), room, pad, width, 1, r == 0)
    at_once = stride <= 2
    out, place, count, step = (y, to, over, stride) if at_once else (room, run, (over - 1) * stride + 1, 1)
    for k in range(0, kernel, MOST):
        if by_maximum:
            max_rows(room, k, 1, min(MOST, kernel - k), out, place, count, step, k == 0)
        else:
            add_rows(room, k, 1, min(MOST, kernel - k), out, place, count, step, k == 0)
    for j in range(0 if at_once else over):
        y[to + j] = room[run + j * stride]


@loop("T[:,:,::1], UniTuple(int64, 6), T[:,:,::1], T[:,::1]", in_calls=True)
def max_pool(x: Array, windows: Windows, y: Array, room: Array) -> None:
    """Compute y (M, PH, PW), the maxima of the windows."""
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = windows
    _, height, width = x.shape
    _, down, over = y.shape
    lowest = room.dtype.type(LOWEST)
    room[:] = lowest
    pixels, lines, maxima, run = x.reshape(-1), room.reshape(-1), y.reshape(-1), room.shape[1]
    for m in range(len(x)):
        for i in range(down):
            first, end = max(i * stride_h - pad_h, 0), min(i * stride_h - pad_h + kernel_h, height)
            row, to = (m * height + first) * width, (m * down + i) * over
            if first >= end:
                maxima[to : to + over] = lowest
            elif kernel_w <= MOST and stride_w <= 2:
                max_windows(pixels, row, width, end - first, kernel_w, -pad_w, width, maxima, to, over, stride_w)
            else:
                pool_row(pixels, lines, maxima, (row, end - first, width, kernel_w, stride_w, pad_w, to, over, run), 1)


@loop("T[:,:,::1], UniTuple(int64, 6), T[:,:,::1], int32[:,:,::1], T[:,::1], int32[:,::1]")
def max_pool_places(x: Array, windows: Windows, y: Array, index: Places, room: Array, places: Places) -> None:
    """Compute y (M, PH, PW), the maxima, and index (M, PH, PW), h * W + w of the first pixel that has it.

    index is -1 if no pixel is above LOWEST.
    """
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = windows
    _, height, width = x.shape
    reach = (y.shape[2] - 1) * stride_w + 1
    lowest = room.dtype.type(LOWEST)
    room[:] = lowest
    places[:] = -1
    padded, padded_place, best, place = room[0], places[0], room[1], places[1]
    line, line_place = padded[pad_w : pad_w + width], padded_place[pad_w : pad_w + width]
    for m in range(len(x)):
        for i in range(y.shape[1]):
            first, end = max(i * stride_h - pad_h, 0), min(i * stride_h - pad_h + kernel_h, height)
            out, found = y[m, i], index[m, i]
            if first >= end:
                out[:] = lowest
                found[:] = -1
                continue
            row = x[m, first]
            for w in range(width):
                better = row[w] > lowest
                line[w] = row[w] if better else lowest
                line_place[w] = np.int32(first * width + w) if better else np.int32(-1)
            for r in range(first + 1, end):
                row = x[m, r]
                for w in range(width):
                    better = row[w] > line[w]
                    line[w] = row[w] if better else line[w]
                    line_place[w] = np.int32(r * width + w) if better else line_place[w]
            for w in range(reach):
                best[w] = padded[w]
                place[w] = padded_place[w]
            for k in range(1, kernel_w):
                ahead, ahead_place = padded[k:], padded_place[k:]
                for w in range(reach):
                    # Of equal pixels in two columns, the upper one is the first.
                    better = (ahead[w] > best[w]) | ((ahead[w] == best[w]) & (ahead_place[w] < place[w]))
                    best[w] = ahead[w] if better else best[w]
                    place[w] = ahead_place[w] if better else place[w]
            for j in range(len(out)):
                out[j] = best[j * stride_w]
                found[j] = place[j * stride_w]


@loop("T[:,:,::1], int32[:,:,::1], T[:,:,::1]")
def add_at_places(dy: Array, index: Places, dx: Array) -> None:
    """Compute dx (M, H, W): add each dy (M, PH, PW), in order, at its index h * W + w (M, PH, PW).

    Numbers with index -1 are not added.
    """
    for m in range(len(dy)):
        pixels, gradient, place = dx[m].reshape(-1), dy[m].reshape(-1), index[m].reshape(-1)
        pixels[:] = 0
        for j in range(len(gradient)):
            if place[j] >= 0:
                pixels[place[j]] += gradient[j]


@loop("T[:,:,::1], UniTuple(int64, 6), T[:,::1], T[:,:,::1], T[:,::1]", in_calls=True)
def ave_pool(x: Array, windows: Windows, sizes: Array, y: Array, room: Array) -> None:
    """Compute y (M, PH, PW), the sums of the windows / sizes (PH, PW)."""
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = windows
    _, height, width = x.shape
    _, down, over = y.shape
    room[:] = 0
    pixels, lines, means, of, run = x.reshape(-1), room.reshape(-1), y.reshape(-1), sizes.reshape(-1), room.shape[1]
    for m in range(len(x)):
        for i in range(down):
            first, end = max(i * stride_h - pad_h, 0), min(i * stride_h - pad_h + kernel_h, height)
            row, to, size = (m * height + first) * width, (m * down + i) * over, i * over
            if first >= end:
                means[to : to + over] = 0
                divide(means, to, of, size, over)
            elif kernel_w <= MOST and stride_w <= 2:
                mean_windows(pixels, row, width, end - first, kernel_w, -pad_w, width, means, to, over, stride_w, of, size)
            else:
                pool_row(pixels, lines, means, (row, end - first, width, kernel_w, stride_w, pad_w, to, over, run), 0)
                divide(means, to, of, size, over)


@loop("T[:,:,::1], T[:,::1], T[:,:,::1]", in_calls=True)
def ave_pool_one(x: Array, sizes: Array, y: Array) -> None:
    """Compute y (M, 1, 1), the sums of whole maps / sizes (1, 1)."""
    size = x.shape[1] * x.shape[2]
    pixels, means = x.reshape(-1), y.reshape(-1)
    for m in range(len(x)):
        sum_up(pixels, m * size, size, means, m)
        means[m] /= sizes[0, 0]


@provides(methods.max_pool_places, loops=(max_pool_places,))
def max_pool_places_by_loops(
    x: Array, rows: PoolAxis, columns: PoolAxis, y: Array, scratch: Scratch | None = None
) -> NDArray[np.signedinteger[Any]]:
    scratch = scratch or Scratch(x.dtype)
    index, length = scratch("index", *y.shape, dtype=np.int32), line_length(columns)
    room, places = scratch("lines", 2, length), scratch("places", 2, length, dtype=np.int32)
    max_pool_places(maps_of(x), windows_of(rows, columns), maps_of(y), maps_of(index), room, places)
    return index


@provides(methods.max_pool_gradient, loops=(max_pool_places, add_at_places))
def max_pool_gradient_by_loops(
    dy: Array, x: Array, rows: PoolAxis, columns: PoolAxis, dx: Array, scratch: Scratch | None = None
) -> None:
    scratch = scratch or Scratch(x.dtype)
    index = max_pool_places_by_loops(x, rows, columns, scratch("maxima", *dy.shape), scratch)
    add_at_places(maps_of(dy), maps_of(index), maps_of(dx))
