"""Interp by compiled loops: maps split across all threads."""

from __future__ import annotations

from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import Loop, loop
from minicaffe.kernels import provides
from minicaffe.layers.shape import interp
from minicaffe.layers.shape.interp import Resizing, TapArrays
from minicaffe.threads import parts, run

LEAST = 1 << 16
"""Least numbers that are worth a thread."""

SMALL = 1 << 12
"""Most numbers of a map for which backward's products in NumPy are faster."""


@loop("T[:,:,::1], Tuple((uint64[:,::1], T[:,::1])), Tuple((uint64[:,::1], T[:,::1])), T[:,:,::1], T[:,::1]")
def interpolate(x: Array, rows: TapArrays, columns: TapArrays, y: Array, lines: Array) -> None:
    """Compute y (M, OH, OW) from the maps x (M, H, W).

    lines (2, OW): memory for two resized rows of x, an even and an odd one, which serve several rows of y.
    """
    (places, shares), (from_columns, column_shares) = rows, columns
    left, right, of_left, of_right = from_columns[0], from_columns[-1], column_shares[0], column_shares[-1]
    width, last = y.shape[2], y.shape[1] - 1
    held, start = np.empty(2, np.int64), np.int64(left[0])
    for m in range(len(x)):
        held[:] = -1
        for i in range(y.shape[1]):
            first, second, out = np.int64(places[0, i]), np.int64(places[-1, i]), y[m, i]
            of_first, of_second = shares[0, i], shares[-1, i]
            once = held[first % 2] != first and second < np.int64(places[0, min(i + 1, last)])
            if once and len(places) == len(from_columns) == 2:
                upper, lower = x[m, first], x[m, second]
                for j in range(width):
                    above = upper[left[j]] * of_left[j] + upper[right[j]] * of_right[j]
                    below = lower[left[j]] * of_left[j] + lower[right[j]] * of_right[j]
                    out[j] = above * of_first + below * of_second
                continue
            for k in range(len(places)):
                r = np.int64(places[k, i])
                row, line = x[m, r], lines[r % 2]
                if len(from_columns) == 1:
                    line[:] = row[start : start + width]
                elif held[r % 2] != r:
                    for j in range(width):
                        line[j] = row[left[j]] * of_left[j] + row[right[j]] * of_right[j]
                held[r % 2] = r
            first_line, second_line = lines[first % 2], lines[second % 2]
            if len(places) == 1:
                out[:] = first_line
            else:
                for j in range(width):
                    out[j] = first_line[j] * of_first + second_line[j] * of_second


@loop("T[:,:,::1], Tuple((uint64[:,::1], T[:,::1])), Tuple((uint64[:,::1], T[:,::1])), T[:,:,::1], T[:,::1]")
def interpolate_backward(dy: Array, rows: TapArrays, columns: TapArrays, dx: Array, lines: Array) -> None:
    """Compute dx (M, H, W) from dy (M, OH, OW): each number's shares are added at the places that it was made of."""
    (places, shares), (from_columns, column_shares) = rows, columns
    height = dy.shape[1]
    held = np.empty(2, np.int64)
    for m in range(len(dy)):
        dx[m] = 0
        lines[:] = 0
        held[:] = -1
        for i in range(height + 1):
            for k in range(2):
                # Past the end, rows -2 and -3 make the loop add both held lines.
                r = np.int64(places[min(k, len(places) - 1), i]) if i < height else -2 - k
                line = lines[r % 2]
                if held[r % 2] >= 0 and held[r % 2] != r:
                    row = dx[m, held[r % 2]]
                    for side in range(len(from_columns)):
                        place, share = from_columns[side], column_shares[side]
                        for j in range(len(line)):
                            row[place[j]] += line[j] * share[j]
                    line[:] = 0
                held[r % 2] = r
            if i < height:
                above, below, given = lines[np.int64(places[0, i]) % 2], lines[np.int64(places[-1, i]) % 2], dy[m, i]
                of_above, of_below = shares[0, i], shares[-1, i]
                if len(places) == 1:
                    for j in range(len(given)):
                        above[j] += given[j]
                else:
                    for j in range(len(given)):
                        above[j] += given[j] * of_above
                        below[j] += given[j] * of_below


@provides(interp.resize, loops=(interpolate,))
def resize(x: Array, how: Resizing, y: Array) -> None:
    """Split the maps across the threads."""
    each_part(interpolate, x, how, y)


@provides(interp.resize_backward, loops=(interpolate_backward,))
def resize_backward(dy: Array, how: Resizing, dx: Array) -> None:
    """Split the maps across the threads."""
    if how.rows.out * how.columns.out > SMALL:
        each_part(interpolate_backward, dy, how, dx)
    else:
        interp.resize_backward.by_numpy(dy, how, dx)


def each_part(step: Loop[...], source: Array, how: Resizing, to: Array) -> None:
    """Run a loop on parts of the maps of source and to, both (N, C, ., .)."""
    source, to = (array.reshape(-1, *array.shape[2:]) for array in (source, to))
    axes = [taps.axis(to.dtype, -how.pads[0]) for taps in (how.rows, how.columns)]

    def task(part: slice) -> None:
        step(source[part], *axes, to[part], np.empty((2, how.columns.out), to.dtype))

    least = -(-LEAST // max(1, source[:1].size, to[:1].size))
    run(partial(task, part) for part in parts(len(to), least, each=2))
