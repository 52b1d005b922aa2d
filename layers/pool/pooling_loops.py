"""Pooling as plain loops: the rows of a window first, then its columns.

Each loop takes maps x (M, H, W). Window i begins at pixel i * stride - pad, and what lies off the map does not count. room, and
places for the indices of what room holds, are memory for two lines (2, line_length).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layers.conv.vectors import copy_every_other
from minicaffe.loops import loop

from .pooling_windows import PoolAxis

LOWEST = float(-np.finfo(np.float32).max)
"""What the maximum of an empty window is; a pixel that is not above it (NaN, -inf) never wins."""

Windows = tuple[int, int, int, int, int, int]
"""Kernel, stride and pad, each of rows and of columns."""

Places = NDArray[np.int32]

at = np.uint64
"""An index that is not negative: Numba then does not look whether it counts from the end."""


def windows_of(rows: PoolAxis, columns: PoolAxis) -> Windows:
    height, width = (min(axis.kernel, axis.size + axis.pad) for axis in (rows, columns))  # what is longer lies past the map
    return height, width, rows.stride, columns.stride, rows.pad, columns.pad


def line_length(columns: PoolAxis) -> int:
    """How long a row of a map is with its padding, and up to the end of the last window."""
    return columns.pad + max(columns.size, columns.reach - columns.pad)


@loop("T[:,:,::1], UniTuple(int64, 6), T[:,:,::1], T[:,::1]", in_calls=True)
def max_pool(x: Array, windows: Windows, y: Array, room: Array) -> None:
    """y (M, PH, PW) = the maxima."""
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = windows
    _, height, width = x.shape
    reach = (y.shape[2] - 1) * stride_w + 1
    lowest = room.dtype.type(LOWEST)
    room[:] = lowest
    padded, run = room[0], room[1]
    line, second, third = padded[pad_w : pad_w + width], padded[min(1, kernel_w - 1) :], padded[min(2, kernel_w - 1) :]
    flat, maxima = room.reshape(-1), y.reshape(-1)
    for m in range(len(x)):
        for i in range(y.shape[1]):
            first, end = max(i * stride_h - pad_h, 0), min(i * stride_h - pad_h + kernel_h, height)
            out = y[m, i]
            if first >= end:
                out[:] = lowest
                continue
            upper, middle, lower = x[m, first], x[m, min(first + 1, end - 1)], x[m, min(first + 2, end - 1)]
            for w in range(width):  # three rows at once; of fewer, one again
                most = upper[w] if upper[w] > lowest else lowest
                most = middle[w] if middle[w] > most else most
                line[w] = lower[w] if lower[w] > most else most
            for r in range(first + 3, end):
                row = x[m, r]
                for w in range(width):
                    line[w] = row[w] if row[w] > line[w] else line[w]
            best = out if stride_w == 1 else run
            for w in range(reach):  # and three columns
                most = second[w] if second[w] > padded[w] else padded[w]
                best[w] = third[w] if third[w] > most else most
            for k in range(3, kernel_w):
                ahead = padded[k:]
                for w in range(reach):
                    best[w] = ahead[w] if ahead[w] > best[w] else best[w]
            if stride_w == 2:
                copy_every_other(flat, len(padded), maxima, (m * y.shape[1] + i) * len(out), len(out))
            elif stride_w > 2:
                for j in range(len(out)):
                    out[j] = best[j * stride_w]


@loop("T[:,:,::1], UniTuple(int64, 6), T[:,:,::1], int32[:,:,::1], T[:,::1], int32[:,::1]")
def max_pool_places(x: Array, windows: Windows, y: Array, index: Places, room: Array, places: Places) -> None:
    """y (M, PH, PW) = the maxima, index (M, PH, PW) = h * W + w of the first pixel that has it, -1 if none is above LOWEST."""
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
                    # of equal pixels in two columns the upper one is the first
                    better = (ahead[w] > best[w]) | ((ahead[w] == best[w]) & (ahead_place[w] < place[w]))
                    best[w] = ahead[w] if better else best[w]
                    place[w] = ahead_place[w] if better else place[w]
            for j in range(len(out)):
                out[j] = best[j * stride_w]
                found[j] = place[j * stride_w]


@loop("T[:,:,::1], int32[:,:,::1], T[:,:,::1]")
def add_at_places(dy: Array, index: Places, dx: Array) -> None:
    """dx (M, H, W) = the sums of the dy (M, PH, PW) at each index h * W + w (M, PH, PW), in their order; -1: nowhere."""
    for m in range(len(dy)):
        pixels, gradient, place = dx[m].reshape(-1), dy[m].reshape(-1), index[m].reshape(-1)
        pixels[:] = 0
        for j in range(len(gradient)):
            if place[j] >= 0:
                pixels[place[j]] += gradient[j]


@loop("T[:,:,::1], UniTuple(int64, 6), T[:,::1], T[:,:,::1], T[:,::1]", in_calls=True)
def ave_pool(x: Array, windows: Windows, sizes: Array, y: Array, room: Array) -> None:
    """y (M, PH, PW) = the sums of the windows / sizes (PH, PW)."""
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w = windows
    _, height, width = x.shape
    reach = (y.shape[2] - 1) * stride_w + 1
    room[:] = 0
    padded, total = room[0], room[1]
    line, second = padded[pad_w : pad_w + width], padded[min(1, kernel_w - 1) :]
    for m in range(len(x)):
        for i in range(y.shape[1]):
            first, end = max(i * stride_h - pad_h, 0), min(i * stride_h - pad_h + kernel_h, height)
            out, size = y[m, i], sizes[i]
            if first >= end:
                line[:] = 0
            elif first + 1 == end:
                line[:] = x[m, first]
            else:
                upper, lower = x[m, first], x[m, first + 1]
                for w in range(width):
                    line[w] = upper[w] + lower[w]
            for r in range(first + 2, end):
                row = x[m, r]
                for w in range(width):
                    line[w] += row[w]
            if kernel_w == 1:
                total[:reach] = padded[:reach]
            else:
                for w in range(reach):
                    total[w] = padded[w] + second[w]
            for k in range(2, kernel_w):
                ahead = padded[k:]
                for w in range(reach):
                    total[w] += ahead[w]
            if stride_w == 2:  # a number that the compiler knows
                for j in range(len(out)):
                    out[j] = total[2 * j] / size[j]
            else:
                for j in range(len(out)):
                    out[j] = total[j * stride_w] / size[j]


SUMS = 16
"""Sums that are made side by side."""


@loop("T[:,:,::1], T[:,::1], T[:,:,::1], T[::1]", in_calls=True)
def ave_pool_one(x: Array, sizes: Array, y: Array, sums: Array) -> None:
    """y (M, 1, 1) = the sums of whole maps / sizes (1, 1). sums: memory of SUMS numbers."""
    pixels = x.shape[1] * x.shape[2]
    flat = x.reshape(-1)
    for m in range(len(x)):
        sums[:] = 0
        for start in range(m * pixels, m * pixels + pixels // SUMS * SUMS, SUMS):
            for k in range(SUMS):
                sums[k] += flat[at(start + k)]
        for k in range(pixels % SUMS):
            sums[k] += flat[at((m + 1) * pixels - pixels % SUMS + k)]
        total = sums[0]
        for k in range(1, SUMS):
            total += sums[k]
        y[m, 0, 0] = total / sizes[0, 0]
