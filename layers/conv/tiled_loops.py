"""A convolution as a product of matrices, in loops: a tile of sums at a time, which the processor's registers hold.

    y (M, windows) = epilogue of weight (M, K) @ columns (K, windows)        K: channels times taps

Windows are taken in strips, those of several images one after another, and K in blocks. A strip's columns are laid out, or read
where they are, if a window is a pixel; the weights are turned into panels (tiles.py). Either a core's cache holds the columns
of a whole strip while one panel after the other is made and passes over them; or it holds the panels, and all of them pass
over the columns of a tile, which may lie far apart. What comes next is called into the cache meanwhile. Each sum is made in
the order of K, whatever the strips and the threads. The epilogue is that of epilogue.py: v = sum * scale + shift, then v or,
where v < 0, slope * v.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.loops import loop

from .tiles import LANES, products, turned
from .vectors import copy, copy_every_other_inside, copy_inside

at = np.uint64
"""An index that is not negative: Numba then does not look whether it counts from the end."""

Numbers = tuple[int, ...]

COLUMNS, PIXELS = 48 << 10, 128 << 10
"""About how many numbers of columns a strip has at a time; of those of windows of a pixel, which are read often."""
BLOCK = 128
"""Most numbers of K at a time where columns are read from maps: each lies in a page of its own."""


@loop("T[::1], UniTuple(int64, 15), UniTuple(int64, 5), T[::1]")
def lay_out(x: Array, map_: Numbers, strip: Numbers, columns: Array) -> None:
    """columns (channels * taps, width) = what the windows of a strip see of some channels of x; 0 outside the map and behind.

    map_: C, H, W of x; windows a column and a row; kernel, stride, pad and dilation, two each; two more. strip: the first
    window, how many there are, width; the first channel and how many.
    """
    channels, height, across, down, over = map_[0], map_[1], map_[2], map_[3], map_[4]
    kernel_y, kernel_x, stride_y, stride_x = map_[5], map_[6], map_[7], map_[8]
    first, count, width, channel, many = strip
    taps = kernel_y * kernel_x
    for tap in range(taps):
        for c in range(
            many
        ):  # what lies behind is multiplied, too: old numbers, denormal ones, would take a hundred times as long
            for i in range(count, width):
                columns[at((c * taps + tap) * width + i)] = 0
        shift_y, shift_x = tap // kernel_x * map_[11] - map_[9], tap % kernel_x * map_[12] - map_[10]
        j = 0
        while j < count:  # a run of windows of one row
            row, ox = (first + j) // over, (first + j) % over
            image, run = row // down, min(over - ox, count - j)
            iy, ix = row % down * stride_y + shift_y, ox * stride_x + shift_x
            begin, end = 0, 0  # of the run, those that lie on the map
            if 0 <= iy < height:
                begin = min(run, max(0, (stride_x - 1 - ix) // stride_x))
                end = max(begin, min(run, (across - 1 - ix) // stride_x + 1))
            source, to = ((image * channels + channel) * height + iy) * across + ix, tap * width + j
            for _ in range(many):
                if stride_x == 1:
                    copy_inside(x, source, columns, to, begin, end, run)
                elif stride_x == 2:
                    copy_every_other_inside(x, source, columns, to, begin, end, run)
                else:
                    for i in range(run):
                        columns[at(to + i)] = x[at(source + i * stride_x)] if begin <= i < end else 0
                source += height * across
                to += taps * width
            j += run


@loop("T[::1], UniTuple(int64, 7), T[::1]")
def put(rows: Array, strip: Numbers, y: Array) -> None:
    """A strip's rows (filters, width) to their places in y (N, M, windows).

    strip: the first window, how many, width; windows of an image; filters in all, from, to.
    """
    first, count, width, windows, filters, begin, end = strip
    j = 0
    while j < count:  # a run of windows of one image
        image, window = (first + j) // windows, (first + j) % windows
        run = min(windows - window, count - j)
        for m in range(begin, end):
            copy(rows, (m - begin) * width + j, y, (image * filters + m) * windows + window, run)
        j += run


@loop("T[::1], T[::1], T[::1], T[::1], UniTuple(int64, 15), UniTuple(int64, 11), T[::1], T[::1], T[::1]", in_calls=True)
def convolve_strips(  # noqa: PLR0913, PLR0917
    x: Array, weight: Array, after: Array, y: Array, map_: Numbers, part: Numbers, columns: Array, rows: Array, panels: Array
) -> None:
    """Of y, the windows and filters of a part: x convolved with the weights of their group, and the epilogue.

    map_: as lay_out has it, then filters in all and channels of a group. part: windows from, to; filters from, to; the group's
    first channel; most windows of a strip, channels of a block, windows of a tile, filters at a time and of a panel; whether
    each window is one pixel of the map, the next one the next. Memory: columns for a strip's of a block, rows for the sums of
    a strip, panels for the filters at a time.
    """
    begin, stop, first, last, channel, most, together, across, chunk, each, pixels = part
    taps, windows, filters, channels = map_[5] * map_[6], map_[3] * map_[4], map_[13], map_[14]
    depth = channels * taps
    for j in range(begin, stop, most):
        count, image, window = min(most, stop - j), j // windows, j % windows
        width = (count + LANES - 1) // LANES * LANES
        whole = window + count <= windows
        out, numbers, pitch = (y, count, windows) if whole else (rows, width, width)
        tiles = (numbers + across - 1) // across
        for c in range(0, channels, together):
            many = min(together, channels - c)
            k, final, pixel = many * taps, c + many == channels, (image * map_[0] + channel + c) * windows + window
            direct = pixels and whole and pixel + (k - 1) * windows + width <= len(x)
            seen, apart = (x, windows) if direct else (columns, width)
            if not direct:
                lay_out(x, map_, (j, count, width, channel + c, many), columns)
            lines = (across + LANES - 1) // LANES
            base, rounds = pixel if direct else 0, (last - first + k - 1) // k
            spread = final and whole and chunk > each and lines * (1 + rounds) * each <= last - first
            call_y = final and not spread
            size = (k + LANES - 1) // LANES * LANES * each
            for f in range(first, last, chunk):
                end = min(f + chunk, last)
                for m in range(f, end, each):
                    turned(weight, m * depth + c * taps, depth, last - m, k, panels, (m - f) // each * size, each)
                for s in range(0, numbers, across):
                    for m in range(f, end, each):
                        sweep = (m - f) // each
                        if chunk == each:  # the next panel's weights, each tile a part of every row
                            ahead = (m + each) * depth + c * taps if m + each < last else first * depth + (c + many) * taps
                            which, run, step = 2, (k + each - 1) // each, (each + tiles - 1) // tiles
                            ahead += s // across * (k * step // each)
                        else:  # a line of the next tile's windows: of all channels, then of all filters
                            which, run, step = 0, k, apart
                            ahead = base + s + across + sweep * LANES
                            if sweep * LANES >= across and spread:
                                sweep -= lines
                                which, row = 1, first + sweep % rounds * k
                                ahead = (image * filters + row) * windows + window + s + across + sweep // rounds * LANES
                        start, of = (m - f) // each * size, (m - first) * width + s
                        to = (image * filters + m) * windows + window + s if whole else of
                        products(
                            panels, start, seen, base + s, apart, rows, of, width, after, m, filters, out, to, pitch,
                            min(across, numbers - s), k, c == 0, final, last - m, weight, call_y,
                            which, ahead, run, depth, step, each
                        )  # fmt: skip
        if not whole:
            put(rows, (j, count, width, windows, filters, first, last), y)
