"""LRN by compiled loops for beta 0.75, which takes two square roots. Strips of pixels, or maps, are split across threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import Loop, loop
from minicaffe.kernels import provides
from minicaffe.layers.norm import lrn
from minicaffe.layers.norm.lrn import Neighbours
from minicaffe.threads import parts, run

STRIP = 512
"""Pixels of all channels that a loop processes at a time: few enough to stay in cache."""

LONGEST_SUM = 15
"""Most channels, or pixels of a row, that the loops add up. NumPy needs fewer additions for more."""


@loop("T[:,::1], UniTuple(int64, 2), int64, UniTuple(T, 2), T[:,::1], T[:,::1]")
def strips_forward(x: Array, part: tuple[int, int], size: int, constants: tuple[float, float], y: Array, room: Array) -> None:
    """Compute y (C, pixels) from an image's x (C, pixels), for a part of the pixels: the first one, one past the last.

    constants: alpha / size and k; room: memory (C + 1, STRIP).
    """
    (start, stop), (alpha, k) = part, constants
    for c in range(len(x)):
        own, out, total = x[c, start:stop], y[c, start:stop], room[c, : stop - start]
        total[:] = 0
        for near in range(max(c - size // 2, 0), min(c + size // 2 + 1, len(x))):
            row = x[near, start:stop]
            for j in range(len(total)):
                total[j] += row[j] * row[j]
        for j in range(len(own)):
            root = np.sqrt(k + alpha * total[j])
            out[j] = own[j] / (root * np.sqrt(root))


@loop("Tuple((T[:,::1], T[:,::1])), UniTuple(int64, 2), int64, UniTuple(T, 2), T[:,::1], T[:,::1]")
def strips_backward(
    both: tuple[Array, Array], part: tuple[int, int], size: int, constants: tuple[float, float], dx: Array, room: Array
) -> None:
    """Compute dx (C, pixels) from x and dy, both (C, pixels), as in strips_forward.

    dx_c = dy_c scale_c^-beta - 2 alpha / size beta x_c * sum over the channels around of dy x scale^(-beta - 1)
    """
    (x, dy), (start, stop), (alpha, k) = both, part, constants
    total = room[len(x), : stop - start]
    for c in range(len(x)):
        own, given, out, ratio = x[c, start:stop], dy[c, start:stop], dx[c, start:stop], room[c]
        total[:] = 0
        for near in range(max(c - size // 2, 0), min(c + size // 2 + 1, len(x))):
            row = x[near, start:stop]
            for j in range(len(total)):
                total[j] += row[j] * row[j]
        for j in range(len(own)):
            scale = k + alpha * total[j]
            root = np.sqrt(scale)
            out[j] = given[j] / (root * np.sqrt(root))
            ratio[j] = out[j] * own[j] / scale
    factor = alpha + alpha / 2  # 2 alpha beta
    for c in range(len(x)):
        value, result = x[c, start:stop], dx[c, start:stop]
        total[:] = 0
        for near in range(max(c - size // 2, 0), min(c + size // 2 + 1, len(x))):
            ratio = room[near]
            for j in range(len(total)):
                total[j] += ratio[j]
        for j in range(len(value)):
            result[j] -= factor * value[j] * total[j]


@loop("T[:,:,::1], int64, UniTuple(T, 2), T[:,:,::1], T[:,::1]")
def maps_forward(x: Array, size: int, constants: tuple[float, float], y: Array, room: Array) -> None:
    """Compute y (maps, H, W) from x (maps, H, W). constants: alpha / size^2 and 1; room: memory (size + 2, W + size - 1)."""
    (_, height, width), (alpha, k) = x.shape, constants
    columns, total = room[0], room[1, :width]
    columns[:] = 0  # zeros, which remain past the ends
    for m in range(len(x)):
        for h in range(height):
            _sum_squares(x[m], h, size, columns, total)
            own, out = x[m, h], y[m, h]
            for j in range(width):
                root = np.sqrt(k + alpha * total[j])
                out[j] = own[j] / (root * np.sqrt(root))


@loop("Tuple((T[:,:,::1], T[:,:,::1])), int64, UniTuple(T, 2), T[:,:,::1], T[:,::1]")
def maps_backward(both: tuple[Array, Array], size: int, constants: tuple[float, float], dx: Array, room: Array) -> None:
    """Compute dx (maps, H, W) from x and dy, as in strips_backward, but with sums over the pixels around."""
    (x, dy), (alpha, k), half = both, constants, size // 2
    _, height, width = x.shape
    columns, total = room[0], room[1, :width]  # the ratios of the last `size` rows follow
    inner = columns[half : half + width]
    columns[:] = 0
    factor = alpha + alpha / 2  # 2 alpha beta
    for m in range(len(x)):
        for h in range(height + half):
            if h < height:
                _sum_squares(x[m], h, size, columns, total)
                own, given, out, ratio = x[m, h], dy[m, h], dx[m, h], room[2 + h % size]
                for j in range(width):
                    scale = k + alpha * total[j]
                    root = np.sqrt(scale)
                    out[j] = given[j] / (root * np.sqrt(root))
                    ratio[j] = out[j] * own[j] / scale
            done = h - half  # the last row with all its ratios
            if done >= 0:
                inner[:] = 0
                for near in range(max(done - half, 0), min(h + 1, height)):
                    ratio = room[2 + near % size]
                    for j in range(width):
                        inner[j] += ratio[j]
                _add_neighbours(columns, total, size)
                value, result = x[m, done], dx[m, done]
                for j in range(width):
                    result[j] -= factor * value[j] * total[j]


@loop("T[:,::1], int64, int64, T[::1], T[::1]")
def _sum_squares(x: Array, h: int, size: int, columns: Array, total: Array) -> None:
    """Set total[j] to the sum of x^2 over size x size pixels around row h, column j.

    Overwrites columns, which is 0 at both ends.
    """
    inner = columns[size // 2 : size // 2 + len(total)]
    inner[:] = 0
    for near in range(max(h - size // 2, 0), min(h + size // 2 + 1, len(x))):
        row = x[near]
        for j in range(len(inner)):
            inner[j] += row[j] * row[j]
    _add_neighbours(columns, total, size)


@loop("T[::1], T[::1], int64")
def _add_neighbours(columns: Array, total: Array, size: int) -> None:
    """Set total[j] to the sum of columns[j] to columns[j + size - 1]."""
    total[:] = 0
    for i in range(size):
        row = columns[i:]
        for j in range(len(total)):
            total[j] += row[j]


@provides(lrn.normalise_across, loops=(strips_forward,))
def normalise_across(x: Array, y: Array, around: Neighbours) -> None:
    if _takes(around):
        _each_strip(strips_forward, (x,), y, around)
    else:
        lrn.normalise_across.by_numpy(x, y, around)


@provides(lrn.normalise_across_backward, loops=(strips_backward,))
def normalise_across_backward(x: Array, dy: Array, dx: Array, around: Neighbours) -> None:
    if _takes(around):
        _each_strip(strips_backward, (x, dy), dx, around)
    else:
        lrn.normalise_across_backward.by_numpy(x, dy, dx, around)


@provides(lrn.normalise_within, loops=(maps_forward,))
def normalise_within(x: Array, y: Array, around: Neighbours) -> None:
    if _takes(around):
        _each_map(maps_forward, (x,), y, around)
    else:
        lrn.normalise_within.by_numpy(x, y, around)


@provides(lrn.normalise_within_backward, loops=(maps_backward,))
def normalise_within_backward(x: Array, dy: Array, dx: Array, around: Neighbours) -> None:
    if _takes(around):
        _each_map(maps_backward, (x, dy), dx, around)
    else:
        lrn.normalise_within_backward.by_numpy(x, dy, dx, around)


def _takes(around: Neighbours) -> bool:
    """Return whether the loops compute this formula."""
    return around.beta == 0.75 and around.size <= LONGEST_SUM


def _each_map(step: Loop[...], given: Sequence[Array], out: Array, around: Neighbours) -> None:
    n, c, h, w = out.shape

    def task(part: slice) -> None:
        *mine, to = (array.reshape(n * c, h, w)[part] for array in (*given, out))
        room = np.empty((around.size + 2, w + around.size - 1), out.dtype)
        step(tuple(mine) if len(mine) > 1 else mine[0], around.size, _constants(out, around), to, room)

    run(partial(task, part) for part in parts(n * c, -(-lrn.BLOCK // max(1, h * w)), each=2))


def _each_strip(step: Loop[...], given: Sequence[Array], out: Array, around: Neighbours) -> None:
    n, c, h, w = out.shape
    *inputs, to = (array.reshape(n, c, h * w) for array in (*given, out))
    strips = [(image, (i, min(i + STRIP, h * w))) for image in range(n) for i in range(0, h * w, STRIP)]

    def task(part: slice) -> None:
        room = np.empty((c + 1, STRIP), out.dtype)
        for image, pixels in strips[part]:
            mine = tuple(array[image] for array in inputs)
            step(mine if len(mine) > 1 else mine[0], pixels, around.size, _constants(out, around), to[image], room)

    run(partial(task, part) for part in parts(len(strips), -(-lrn.BLOCK // max(1, c * STRIP)), each=2))


def _constants(out: Array, around: Neighbours) -> tuple[np.floating, np.floating]:
    """Return alpha and k in the arrays' type."""
    return out.dtype.type(around.alpha), out.dtype.type(around.k)
