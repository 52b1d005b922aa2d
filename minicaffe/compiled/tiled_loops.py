"""A convolution as a product of matrices, in loops: one tile of sums at a time, which fits in the processor's registers.

    y (M, windows) = epilogue of weight (M, K) @ columns (K, windows)        K: channels times taps

Windows are taken in strips, which may span several images, and K in blocks. The weights of some filters are transposed into
panels (tiles.py). The columns of a tile of windows are laid out, and all these panels pass over them: the second cache holds
both, and contiguous numbers come without a miss. If more filters follow, the columns of the whole strip are kept for them.
Meanwhile the next weights, or the pixels of the next tile, are prefetched. If windows are pixels, and there are few filters for
each, columns are read in place.

If there are few windows, making panels takes long: a layer then keeps the panels of all weights (make_panels).
Each sum is made in the order of K, whatever the strips and the threads. The epilogue is that of epilogue.py: v = sum * scale +
shift, then v or, where v < 0, slope * v.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.compiled.tiles import LANES, products, turned
from minicaffe.compiled.vectors import copy, copy_inside

at = np.uint64
"""An unsigned index, for which Numba does not check whether it counts from the end."""

AHEAD = 3
"""The number of vectors by which pixels are prefetched while a tile is laid out."""
WORTH_BESIDE = 12
"""Least filters for each tile for which it pays to lay out windows next to the vectors."""

Numbers = tuple[int, ...]


@loop("T[::1], UniTuple(int64, 15), UniTuple(int64, 7), T[::1]")
def lay_out(x: Array, map_: Numbers, tile: Numbers, columns: Array) -> None:
    """Compute columns (channels * taps, width): what a tile's windows see of some channels of x; 0 off the map and after them.

    map_: C, H, W of x; windows down and across; kernel, stride, pad and dilation, two each; two more. tile: the first window,
    the number of windows, width; the first channel, the number of channels; where the columns begin; numbers of a vector.
    """
    channels, height, across, down, over = map_[0], map_[1], map_[2], map_[3], map_[4]
    kernel_y, kernel_x, stride_y, stride_x = map_[5], map_[6], map_[7], map_[8]
    first, count, width, channel, many, start, lanes = tile
    plane, pitch, half = height * across, kernel_y * kernel_x * width, stride_x - 1
    ahead = stride_y * across if down > 1 else AHEAD * lanes  # prefetched: the next row of windows
    whole = (count + lanes - 1) // lanes * lanes
    for row in range(many * kernel_y * kernel_x):
        # Vectors also multiply the numbers after the last window. Old ones may be denormal, which is very slow.
        for i in range(count, min(whole, width)):
            columns[at(start + row * width + i)] = 0
    j = 0
    while j < count:  # for each run of windows in one row
        row, ox = (first + j) // over, (first + j) % over
        image, run = row // down, min(over - ox, count - j)
        top, left, to = (row - image * down) * stride_y - map_[9], ox * stride_x - map_[10], start + j
        for ky in range(kernel_y):
            iy = top + ky * map_[11]
            source = ((image * channels + channel) * height + iy) * across
            for kx in range(kernel_x):
                ix = left + kx * map_[12]
                begin, end = 0, 0  # the part of the run on the map
                if 0 <= iy < height and stride_x <= 2:  # a division takes as long as copying some vectors
                    begin, end = max(0, (half - ix) >> half), min(run, ((across - 1 - ix) >> half) + 1)
                elif 0 <= iy < height:
                    begin, end = max(0, (half - ix) // stride_x), min(run, (across - 1 - ix) // stride_x + 1)
                i = 0
                while i < run:  # the next run overwrites zeros after this one; `range` would divide
                    at_x, from_, stop, room = source + ix + i * stride_x, begin - i, end - i, width - j - i
                    if stride_x <= 2:
                        copy_inside(x, at_x, stride_x, plane, columns, to + i, pitch, many, from_, stop, room, ahead, lanes)
                    else:
                        for c in range(many):
                            for k in range(min(run - i, lanes)):
                                seen = from_ <= k < stop
                                columns[at(to + i + c * pitch + k)] = x[at(at_x + c * plane + k * stride_x)] if seen else 0
                    i += lanes
                to += width
        j += run


@loop("T[::1], UniTuple(int64, 7), T[::1]")
def put(rows: Array, strip: Numbers, y: Array) -> None:
    """Write a strip's rows (filters, width) to their places in y (N, M, windows).

    strip: the first window, the number of windows, width; windows of an image; the number of all filters, the first, the end.
    """
    first, count, width, windows, filters, begin, end = strip
    j = 0
    while j < count:  # for each run of windows in one image
        image, window = (first + j) // windows, (first + j) % windows
        run = min(windows - window, count - j)
        for m in range(begin, end):
            copy(rows, (m - begin) * width + j, y, (image * filters + m) * windows + window, run)
        j += run


@loop("UniTuple(int64, 5), int64")
def begin_of(tiles: Numbers, tile: int) -> int:
    """Return where a tile of a strip begins. Each tile has a share of the vectors and of the windows outside vectors.

    tiles: windows, vectors, windows outside vectors, numbers of a vector, tiles.
    """
    count, vectors, beside, lanes, number = tiles
    return min(count, vectors * tile // number * lanes + beside * tile // number)


@loop("T[::1], UniTuple(int64, 6), UniTuple(int64, 2), T[::1]")
def make_panels(weight: Array, sizes: Numbers, part: tuple[int, int], panels: Array) -> None:
    """Compute a part of the panels (blocks of K, panels, K of a block, filters of a panel) of weight (M, C, taps), both flat.

    sizes: groups, filters of a group, C, taps, channels of a block, filters of a panel. part: the first panel, the end. No
    panel has filters of two groups.
    """
    groups, filters, channels, taps, together, each = sizes
    depth, size = channels * taps, (together * taps + LANES - 1) // LANES * LANES * each
    per_group = (filters + each - 1) // each
    for panel in range(part[0], part[1]):
        group, m = panel // per_group, panel % per_group * each
        for c in range(0, channels, together):
            start, to = (group * filters + m) * depth + c * taps, (c // together * groups * per_group + panel) * size
            turned(weight, start, depth, filters - m, min(together, channels - c) * taps, panels, to, each)


@loop("T[::1], T[::1], T[::1], T[::1], UniTuple(int64, 15), UniTuple(int64, 16), T[::1], T[::1], T[::1]", in_calls=True)
def convolve_strips(  # noqa: PLR0913, PLR0917
    x: Array, weight: Array, after: Array, y: Array, map_: Numbers, part: Numbers, columns: Array, rows: Array, panels: Array
) -> None:
    """Compute the windows and filters of y in a part: x convolved with the weights of their group, and the epilogue.

    map_: as for lay_out, then the number of all filters and the channels of a group. part: the windows' first and end; the
    filters' first and end; the group's first channel; most windows of a strip, channels of a block, filters at a time and of a
    panel; vectors of a tile, numbers of a vector, most windows outside vectors next to vectors and alone; most filters for
    which pixels are read in place, 0 if windows are not pixels; the number of panels that make_panels has made, which weight
    then is, and the panel with which the filters begin, or 0.
    Memory: columns for a tile of a block, or for a strip if not all filters are taken at a time; rows for the sums of a strip,
    if there are several blocks or images; panels for the filters at a time.
    """
    begin, stop, first, last, channel, most, together, chunk, each, across, lanes, most_few, alone, most_in_place = part[:14]
    all_panels, first_panel = part[14], part[15]
    taps, windows, filters, channels = map_[5] * map_[6], map_[3] * map_[4], map_[13], map_[14]
    depth, pitch, source = channels * taps, across * lanes, weight if all_panels else panels
    size = (together * taps + LANES - 1) // LANES * LANES * each
    are_pixels = not all_panels and depth == channels and windows == map_[1] * map_[2]
    sloped = 0
    for m in range(first, last):
        slope = after[2 * filters + m]
        if slope != 0 and slope != 1:  # noqa: PLR1714
            sloped = 1
    for j in range(begin, stop, most):
        count, image, window = min(most, stop - j), j // windows, j % windows
        whole, width = window + count <= windows, (count + lanes - 1) // lanes * lanes
        vectors, beside = count // lanes, count % lanes
        tiles = (vectors + across - 1) // across
        if count <= alone:
            tiles = 1
        elif beside and (beside > most_few * tiles or last - first < WORTH_BESIDE * tiles):  # count them as a vector
            vectors, beside = vectors + 1, 0
            tiles = (vectors + across - 1) // across
        cut = count, vectors, beside, lanes, tiles
        out, apart = (y, windows) if whole else (rows, width)
        for c in range(0, channels, together):
            many = min(together, channels - c)
            k, final = many * taps, c + many == channels
            run, step, far, block = (k + each - 1) // each, (each + tiles - 1) // tiles, depth, 0
            if all_panels:  # the panels are adjacent, and all filters are processed together
                run, step, far, block = k, each, 0, (c // together * all_panels + first_panel) * size
            for f in range(first, last, chunk):
                behind = min(f + chunk, last)
                if not all_panels:
                    for m in range(f, behind, each):
                        turned(weight, m * depth + c * taps, depth, last - m, k, panels, (m - f) // each * size, each)
                for tile in range(tiles):
                    s, end = begin_of(cut, tile), begin_of(cut, tile + 1)
                    few, laid = (end - s) % lanes if beside else 0, tile * k * (pitch + most_few) if last - first > chunk else 0
                    those = laid + k * pitch if vectors else laid  # where the columns of the remaining windows are
                    in_place = whole and last - first <= most_in_place and (end - few - s) % lanes == 0
                    of, seen, row = columns, laid, pitch
                    pixel = (image * map_[0] + channel + c) * windows + window + s
                    if in_place:
                        of, seen, row = x, pixel, windows
                    if f == first:
                        if vectors and not in_place:
                            lay_out(x, map_, (j + s, end - few - s, pitch, channel + c, many, laid, lanes), columns)
                        if few:
                            lay_out(x, map_, (j + end - few, few, few, channel + c, many, those, lanes), columns)
                    share = c * taps + tile * step % each * run  # of the weights that are transposed next
                    for number in range((behind - f + each - 1) // each):
                        m, panel = f + number * each, block + number * size
                        called, called_each, called_apart, called_step = weight, run, far, step
                        # prefetch vectors of the next tile
                        if in_place or (are_pixels and f == first and 2 * number <= across):
                            ahead = pixel + end - few - s + 2 * number * lanes
                            called, called_each, called_apart, called_step = x, k, 0, windows
                        elif all_panels:
                            ahead = panel + size
                        else:
                            ahead = share + ((m + chunk) * depth if m + chunk < last else (first + m - f) * depth + k)
                        to = (image * filters + m) * windows + window + s if whole else (m - first) * width + s
                        products(
                            source, panel, of, seen, row, columns, those, few, rows, (m - first) * width + s, width,
                            after, m, filters, out, to, apart, end - s, k, c == 0, final, sloped, last - m,
                            called, final, ahead, called_each, called_apart, called_step, each
                        )  # fmt: skip
        if not whole:
            put(rows, (j, count, width, windows, filters, first, last), y)
