"""Convolutions whose products are compiled loops (tiled_loops.py), without BLAS and without columns in memory.

Weights that Winograd or depthwise.py take better are theirs. What is small for BLAS, or has to be laid out for it, gains most:
1x1 convolutions of small maps, kernels with strides, groups.
"""

from __future__ import annotations

import math
import threading
from functools import partial

import numpy as np

from minicaffe import loops
from minicaffe.blob import Array
from minicaffe.threads import parts, run

from .epilogue import EVERY, NOTHING, Epilogue
from .tiled_loops import COLUMNS, LANES, ROWS, convolve_strips
from .window import Window

STRIP = 6 * LANES
"""Most windows of a strip."""
LEAST_WINDOWS = 16
"""Of all images: for fewer, most of a tile would be computed in vain."""
TASK = 1 << 20
"""Multiplications of a task, at least: with fewer, waking a thread takes as long."""
ALIGNMENT = 64
"""Bytes, of a line of the cache: vectors that lie in two cost twice the time."""

_kept = threading.local()


def suits(x: Array, weight: Array, window: Window, y: Array) -> bool:
    """Whether the compiled loops take this convolution of x (N, C, *map) to y (N, M, *windows)."""
    arrays = (x, weight, y)
    return (
        loops.compiled()
        and (x.ndim == 4 or window.pointwise)
        and x.dtype in (np.float32, np.float64)
        and all(a.dtype == x.dtype and a.flags.c_contiguous and a.size for a in arrays)
        and y.size // y.shape[1] >= LEAST_WINDOWS
    )


def convolve(x: Array, weight: Array, window: Window, group: int, y: Array, epilogue: Epilogue = NOTHING) -> None:
    """y (N, M, *windows) = epilogue of x (N, C, *map) convolved with weight (M, C / group, *kernel); y is overwritten."""
    if window.pointwise:  # a map is one row
        window, x, y = Window((1, 1), (1, 1), (0, 0), (1, 1)), x.reshape(*x.shape[:2], 1, -1), y.reshape(*y.shape[:2], 1, -1)
    filters, channels, taps = len(weight) // group, weight.shape[1], math.prod(window.kernel)
    map_ = (*x.shape[1:], *y.shape[2:], *window.kernel, *window.stride, *window.pad, *window.dilation, len(weight), channels)
    after = epilogue.table(EVERY, len(weight), y.dtype).reshape(-1)
    flat, numbers, result = x.reshape(-1), weight.reshape(-1), y.reshape(-1)
    count = y.size // len(weight)
    strip = LANES * -(-count // (LANES * -(-count // STRIP)))  # no last one that is much narrower

    def work(windows: slice, g: int, part: slice) -> None:
        first = g * filters
        of = windows.start, windows.stop, first + part.start, first + part.stop, g * channels, strip
        columns, rows = _buffers(max(COLUMNS, taps * STRIP), (part.stop - part.start + ROWS) * STRIP, y.dtype)
        convolve_strips(flat, numbers, after, result, map_, of, columns, rows)

    run(partial(work, *task) for task in _tasks(count, strip, group, filters, channels * taps))


def _tasks(count: int, strip: int, group: int, filters: int, depth: int) -> list[tuple[slice, int, slice]]:
    """Windows, group, filters of each task."""
    multiplications, strips = count * filters * depth, -(-count // strip)
    cuts = parts(strips, least=max(1, strips * TASK // max(1, multiplications)), each=2)
    windows = [slice(strip * p.start, min(count, strip * p.stop)) for p in cuts]
    lanes = [slice(0, filters)]
    if group == strips == 1:
        tiles = -(-filters // ROWS)
        lanes = [slice(ROWS * p.start, min(filters, ROWS * p.stop)) for p in parts(tiles, least=max(1, tiles * TASK // multiplications))]
    return [(w, g, lane) for g in range(group) for w in windows for lane in lanes]


def _buffers(columns: int, sums: int, dtype: np.dtype) -> tuple[Array, Array]:
    """This thread's memory for so many numbers each, which begins at a line of the cache."""
    kept = getattr(_kept, "memory", None)
    size, step = dtype.itemsize, ALIGNMENT // dtype.itemsize
    columns = -(-columns // step) * step
    if kept is None or kept.dtype != dtype or kept.size < columns + sums + step:
        kept = _kept.memory = np.empty(columns + sums + step, dtype)
    begin = -kept.ctypes.data % ALIGNMENT // size
    return kept[begin : begin + columns], kept[begin + columns : begin + columns + sums]
