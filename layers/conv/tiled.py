"""Convolutions whose products are compiled loops (tiled_loops.py), without BLAS and without columns in memory.

Weights that Winograd or depthwise.py take better are theirs. What is small for BLAS, or has to be laid out for it, gains most:
1x1 convolutions of small maps, kernels with strides, groups.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from minicaffe import loops
from minicaffe.blob import ALIGNMENT, Array
from minicaffe.blocks import Calls
from minicaffe.loops import Later, Room
from minicaffe.threads import get_num_threads, parts

from .compiled_product import CompiledProduct
from .epilogue import NOTHING, Epilogue
from .tiled_loops import COLUMNS, LANES, ROWS, Numbers, convolve_strips
from .window import Window

STRIP, SHALLOW = 6 * LANES, 128
"""Most windows of a strip; twice as many where a window sees at most SHALLOW numbers, so that y is written in longer rows."""
LEAST_WINDOWS = 16
"""Of all images: for fewer, most of a tile would be computed in vain."""
TASK = 1 << 19
"""Multiplications of a task, at least, for 7 us."""
MANY = 8
"""A thread gets two tasks, since threads end at unequal times, where it could have so many."""
MOST_TAPS = 4096
"""Of a kernel: a strip's columns of one channel are laid out at once."""

PIXEL = Window((1, 1), (1, 1), (0, 0), (1, 1))

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def suits(x: Array, weight: Array, window: Window, y: Array) -> bool:
    """Whether the compiled loops take this convolution of x (N, C, *map) to y (N, M, *windows)."""
    arrays = (x, weight, y)
    return (
        loops.compiled()
        and (x.ndim == 4 or window.pointwise)
        and x.dtype in (np.float32, np.float64)
        and all(a.dtype == x.dtype and a.flags.c_contiguous and a.size for a in arrays)
        and y.size // y.shape[1] >= LEAST_WINDOWS
        and math.prod(window.kernel) <= MOST_TAPS
    )


def convolve(x: Array, weight: Array, window: Window, group: int, y: Array, epilogue: Epilogue = NOTHING) -> None:
    """y (N, M, *windows) = epilogue of x (N, C, *map) convolved with weight (M, C / group, *kernel); y is overwritten."""
    product(window, group, (x.shape, weight.shape, y.shape), y.dtype, epilogue)(x, weight, y)


def product(window: Window, group: int, shapes: Shapes, dtype: np.dtype[Any], epilogue: Epilogue) -> CompiledProduct:
    """convolve for arrays of these shapes."""
    return CompiledProduct(_calls(window, group, shapes, dtype, get_num_threads()), epilogue, shapes[1][0])


@lru_cache(maxsize=1024)
def _calls(window: Window, group: int, shapes: Shapes, dtype: np.dtype[Any], threads: int) -> Calls:
    map_, tasks, (columns, rows) = _cut(window, group, shapes, threads)
    x, weight, y = (Later(0, (math.prod(shape),)) for shape in shapes)
    after, size = Later(0, (3 * shapes[1][0],)), dtype.itemsize
    room = Room(0, (columns,)), Room(-(-columns * size // ALIGNMENT) * ALIGNMENT, (rows,))
    return Calls(convolve_strips, dtype, [(x, weight, after, y, map_, part, *room) for task in tasks for part in task])


def _cut(window: Window, group: int, shapes: Shapes, threads: int) -> tuple[Numbers, list[list[Numbers]], tuple[int, int]]:
    """convolve_strips' map_, its parts, a list for each task, and how many numbers its columns and rows hold at most.

    A part has some strips of windows and all filters of a group; or, where there are few strips, some filters.
    """
    (images, *x), (all_, channels, *_), (_, _, *y) = shapes
    if window.pointwise:  # a map is one row
        window, x, y = PIXEL, [x[0], 1, math.prod(x[1:])], [1, math.prod(y)]
    filters, depth, count = all_ // group, channels * math.prod(window.kernel), images * math.prod(y)
    most = STRIP if depth > SHALLOW else 2 * STRIP
    strip = LANES * -(-count // (LANES * -(-count // most)))  # no last one that is much narrower
    strips, tiles, affordable = -(-count // strip), -(-filters // ROWS), max(1, count * all_ * depth // TASK)
    each = 2 if affordable > MANY * threads else 1
    cuts, lanes = [slice(0, strips)], [slice(0, tiles)]
    if group == 1 and strips < 4 * threads <= tiles:
        lanes = parts(tiles, -(-tiles // affordable), each)
    elif group < threads * each:
        cuts = parts(strips, -(-strips // affordable), each)
    pieces: list[Numbers] = []
    for g in range(group):
        for cut in cuts:
            windows = strip * cut.start, min(count, strip * cut.stop)
            for lane in lanes:
                rows = g * filters + ROWS * lane.start, g * filters + min(filters, ROWS * lane.stop)
                pieces.append((*windows, *rows, g * channels, strip))
    tasks = [pieces[part] for part in parts(len(pieces), -(-len(pieces) // affordable), each)]
    map_ = (*x, *y, *window.kernel, *window.stride, *window.pad, *window.dilation, all_, channels)
    widest = max(lane.stop - lane.start for lane in lanes)
    return map_, tasks, (max(COLUMNS, depth // channels * strip), ROWS * widest * strip)
