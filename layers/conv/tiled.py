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
from .tiled_loops import Numbers, convolve_strips
from .tiles import LANES, most_beside, panel_rows, tile_vectors
from .window import Window

DEPTH = 256
"""Most numbers of K in a block, where a channel has no more. A tile's columns then are 24 KB with AVX2, for the first cache; 48
with AVX-512, whose tile multiplies each number for twice as long: that leaves time to bring them from the second. With half
of it, sums go to memory and back twice as often (0.97 of the speed)."""
STRIP = 9
"""Most tiles of a strip; twice as many where a window sees so few numbers that they are half a block at most, so that y is
written in longer rows."""
PANELS = 128 << 10
"""Bytes of panels, for the second cache."""
LEAST_WINDOWS, FEW_WEIGHTS = 9, 1 << 19
"""Of all images: for fewer, most of a tile would be computed in vain; with so few weights that takes no longer than to leave
the list of jobs for BLAS."""
TASK = 1 << 19
"""Multiplications of a task, at least, for 7 us."""
OTHERS, LEAST_USE = 2 << 20, 4
"""Bytes of maps that lie in another thread's cache, whence they come at 3 GB/s on a Xeon: there a second thread gains only
where each number of them is used so often for each lane of a vector."""
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
        and (y.size // y.shape[1] >= LEAST_WINDOWS or weight.size <= FEW_WEIGHTS)
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
    map_, pieces, sizes = _cut(window, group, shapes, threads, dtype.itemsize)
    x, weight, y = (Later(0, (math.prod(shape),)) for shape in shapes)
    after, rooms, start = Later(0, (3 * shapes[1][0],)), [], 0
    for size in sizes:
        rooms.append(Room(start, (size,)))
        start += -(-size * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return Calls(convolve_strips, dtype, [(x, weight, after, y, map_, part, *rooms) for part in pieces])


def _cut(
    window: Window, group: int, shapes: Shapes, threads: int, itemsize: int
) -> tuple[Numbers, list[Numbers], tuple[int, int, int]]:
    """convolve_strips' map_, its parts, and how long columns, rows and panels are.

    A part has some strips of windows and all filters of a group; or, where there are few strips, some filters.
    """
    (images, *x), (all_, channels, *_), (_, _, *y) = shapes
    if window.pointwise:  # a map is one row
        window, x, y = PIXEL, [x[0], 1, math.prod(x[1:])], [1, math.prod(y)]
    registers = loops.registers(8 * itemsize)
    each, across, lanes, beside = panel_rows(registers), tile_vectors(registers), registers.lanes, most_beside(registers)
    filters, taps, count = all_ // group, math.prod(window.kernel), images * math.prod(y)
    depth, tile = channels * taps, across * lanes
    least = 0 if loops.cores_share_cache() else LEAST_USE * lanes
    alone = math.prod(shapes[0]) * 4 <= OTHERS and count * filters * depth < least * images * channels * math.prod(x[1:])
    together = min(channels, max(1, DEPTH // taps))
    together = -(-channels // -(-channels // together))  # no last one that is much smaller
    number = -(-count // (tile * (STRIP if 2 * depth > DEPTH else 2 * STRIP)))
    number = threads * -(-number // threads) if number > 1 else 1
    strip = lanes * -(-count // (lanes * number))  # no last one that is much narrower
    strips, panels, affordable = -(-count // strip), -(-filters // each), 1 if alone else max(1, count * all_ * depth // TASK)
    two = 2 if affordable > MANY * threads else 1
    cuts, lots = [slice(0, strips)], [slice(0, panels)]
    if group == 1 and threads <= panels and (strips < threads or (strips < 2 * threads and count < all_)):
        lots = parts(panels, -(-panels // affordable), two, threads)
    elif group < threads * two:
        cuts = parts(strips, -(-strips // affordable), two, threads)
    widest = each * max(lot.stop - lot.start for lot in lots)
    k = LANES * -(-together * taps // LANES)
    chunk = min(widest, each * max(1, PANELS // (each * k * itemsize)))
    sizes = (strip, together, chunk, each, across, lanes, beside)
    pieces: list[Numbers] = []
    for g in range(group):
        for cut in cuts:
            windows = strip * cut.start, min(count, strip * cut.stop)
            for lot in lots:
                rows = g * filters + each * lot.start, g * filters + min(filters, each * lot.stop)
                pieces.append((*windows, *rows, g * channels, *sizes))
    map_ = (*x, *y, *window.kernel, *window.stride, *window.pad, *window.dilation, all_, channels)
    tiles = -(-strip // tile)
    return map_, pieces, (tiles * (tile + beside) * together * taps, widest * strip, chunk * k)
