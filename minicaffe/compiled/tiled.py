"""Convolutions whose products are compiled loops (tiled_loops.py), without BLAS and without columns in memory.

Winograd and depthwise.py take the weights for which they are faster. Products that are small for BLAS, or that BLAS needs laid
out, gain most: 1x1 convolutions of small maps, kernels with strides, groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from minicaffe.blob import ALIGNMENT, Array, aligned_zeros
from minicaffe.compiled import jit
from minicaffe.compiled.compiled_product import CompiledProduct
from minicaffe.compiled.jit import DynamicArray, ScratchArray
from minicaffe.compiled.jobs import Calls
from minicaffe.compiled.tiled_loops import Numbers, convolve_strips, make_panels
from minicaffe.compiled.tiles import LANES, most_alone, most_beside, panel_rows, tile_vectors
from minicaffe.layers.conv.window import Window
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue
from minicaffe.threads import get_num_threads, parts, run

DEPTH = 1024
"""Most numbers of K in a block, unless a single channel has more. A tile's columns then take 96 KB with AVX2, 192 KB with
AVX-512. They come from the second cache, for which a tile leaves the time. Blocks for the first cache would be slower, because
sums would go to memory and back more often."""
STRIP = 9
"""Most tiles of a strip. Twice as many if a window reads at most half a block's numbers, so that y is written in longer
rows."""
PANELS = 128 << 10
"""Bytes of panels, for the second cache."""
LEAST_WINDOWS, FEW_WEIGHTS = 9, 1 << 19
"""Limits for making panels. With fewer windows of all images, making panels takes longer than BLAS; with so few weights, no
longer than leaving the list of jobs for BLAS."""
TURNED = 1 << 18
"""Least bytes of weights of which one thread makes panels."""
TASK = 1 << 19
"""Least multiplications of a task, for about 7 us."""
OTHERS, LEAST_USE = 2 << 20, 4
"""Bytes of maps that still lie in another thread's cache, from which reading is slow. For such maps a second thread gains only
if each number is used LEAST_USE times for each lane of a vector."""
MANY = 8
"""A thread gets two tasks if it could have MANY, because threads finish at different times."""
PANELS_IN_PLACE, MANY_REGISTERS = 16, 32
"""Most panels for which pixels are read in place, and least registers for that. With more panels, reading in place gains
little. With 16 registers a tile has half as many products for each number, and reading in place is slower."""
MOST_TAPS = 4096
"""Most taps of a kernel, because a strip's columns of one channel are laid out at once."""

MOST_WINDOWS = 800
"""Most windows of all images for which a layer keeps panels of its weights: 28x28. With more, making the panels takes only a
small part of the time."""
FEW_KEPT, MOST_KEPT = 1 << 17, 4 << 20
"""Numbers of panels that a layer keeps for any number of windows, and most numbers for few windows. The former stay in the
second cache, and all pass over a tile. A fully connected layer as a convolution may have 100 million weights."""

PIXEL = Window((1, 1), (1, 1), (0, 0), (1, 1))

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def supports(x: Array, weight: Array, window: Window, y: Array, turned: bool = False) -> bool:
    """Return whether the compiled loops support this convolution of x (N, C, *map) to y (N, M, *windows).

    turned: as in takes.
    """
    arrays = (x, weight, y)
    return (
        all(a.dtype == x.dtype and a.flags.c_contiguous for a in arrays)
        and x.dtype in (np.float32, np.float64)
        and takes((x.shape, weight.shape, y.shape), window, turned)
    )


def takes(shapes: Shapes, window: Window, turned: bool) -> bool:
    """Return whether the loops support these shapes of x, weight and y. turned: whether the weights' panels exist already."""
    x, weight, y = shapes
    return (
        (len(x) == 4 or window.pointwise)
        and all(map(math.prod, shapes))
        and (turned or _windows(y) >= LEAST_WINDOWS or math.prod(weight) <= FEW_WEIGHTS)
        and math.prod(window.kernel) <= MOST_TAPS
    )


def keeps_panels(shapes: Shapes, group: int, dtype: np.dtype[Any]) -> bool:
    """Return whether it is worth keeping the panels of the weights. shapes: of x, weight and y."""
    most = MOST_KEPT if _windows(shapes[2]) <= MOST_WINDOWS else FEW_KEPT
    return math.prod(panels_shape(shapes[1], group, dtype)) <= most


def _windows(y: Sequence[int]) -> int:
    return y[0] * math.prod(y[2:])


def convolve(x: Array, weight: Array, window: Window, group: int, y: Array, epilogue: Epilogue = NOTHING) -> None:
    """Compute y (N, M, *windows) = epilogue of x (N, C, *map) convolved with weight (M, C / group, *kernel).

    y is overwritten.
    """
    product(window, group, (x.shape, weight.shape, y.shape), y.dtype, epilogue)(x, weight, y)


def product(
    window: Window, group: int, shapes: Shapes, dtype: np.dtype[Any], epilogue: Epilogue, panels: Array | None = None
) -> CompiledProduct:
    """Return convolve for arrays of these shapes, as prepared calls. panels: panels_of the weights, read in their place."""
    calls = _calls(window, group, shapes, dtype, get_num_threads(), panels is not None)
    return CompiledProduct(calls, epilogue, shapes[1][0], panels)


def panels_of(weight: Array, group: int, out: Array | None = None) -> Array:
    """Return the panels (blocks of K, panels, K of a block, filters of one) of weight (M, C / group, *kernel).

    out: where to make them.
    """
    shape = panels_shape(weight.shape, group, weight.dtype)
    made = aligned_zeros(math.prod(shape), weight.dtype) if out is None else out.reshape(-1)
    channels, taps = weight.shape[1], math.prod(weight.shape[2:])
    sizes = group, len(weight) // group, channels, taps, _together(channels, taps), shape[3]
    flat, least = weight.reshape(-1), max(1, TURNED // (weight.itemsize * channels * taps * shape[3]))
    run(partial(make_panels, flat, sizes, (part.start, part.stop), made) for part in parts(shape[1], least))
    return made.reshape(shape)


def panels_shape(weight: Sequence[int], group: int, dtype: np.dtype[Any]) -> tuple[int, int, int, int]:
    """Return the shape of panels_of weights of this shape."""
    channels, taps, each = weight[1], math.prod(weight[2:]), panel_rows(jit.registers(8 * dtype.itemsize))
    together = _together(channels, taps)
    k = LANES * -(-together * taps // LANES)
    return -(-channels // together), group * -(-weight[0] // (group * each)), k, each


def _together(channels: int, taps: int) -> int:
    """Return the number of channels in a block of K."""
    together = min(channels, max(1, DEPTH // taps))
    return -(-channels // -(-channels // together))  # equal blocks: the last one is not much smaller


@lru_cache(maxsize=1024)
def _calls(window: Window, group: int, shapes: Shapes, dtype: np.dtype[Any], threads: int, turned: bool) -> Calls:
    """Return the calls of convolve_strips. turned: whether the weights are panels."""
    all_panels = panels_shape(shapes[1], group, dtype) if turned else None
    map_, pieces, sizes = _cut(window, group, shapes, threads, dtype.itemsize, all_panels)
    x, weight, y = (DynamicArray(0, (math.prod(shape),)) for shape in (shapes[0], all_panels or shapes[1], shapes[2]))
    after, rooms, start = DynamicArray(0, (3 * shapes[1][0],)), [], 0
    for size in sizes:
        rooms.append(ScratchArray(start, (size,)))
        start += -(-size * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return Calls(convolve_strips, dtype, [(x, weight, after, y, map_, part, *rooms) for part in pieces])


def _cut(
    window: Window, group: int, shapes: Shapes, threads: int, itemsize: int, all_panels: Sequence[int] | None
) -> tuple[Numbers, list[Numbers], tuple[int, int, int]]:
    """Return convolve_strips' map_, its parts, and the lengths of columns, rows and panels.

    A part has some strips of windows and all filters of a group; or, if there are few strips, some filters; or, if the threads
    can split the groups evenly, one group.
    """
    (images, *x), (all_, channels, *_), (_, _, *y) = shapes
    if window.pointwise:  # a map is then one row
        window, x, y = PIXEL, [x[0], 1, math.prod(x[1:])], [1, math.prod(y)]
    registers = jit.registers(8 * itemsize)
    each, across, lanes, beside = panel_rows(registers), tile_vectors(registers), registers.lanes, most_beside(registers)
    filters, taps, count = all_ // group, math.prod(window.kernel), images * math.prod(y)
    depth, tile = channels * taps, across * lanes
    least = 0 if jit.cores_share_cache() else LEAST_USE * lanes
    alone = math.prod(shapes[0]) * 4 <= OTHERS and count * filters * depth < least * images * channels * math.prod(x[1:])
    together = _together(channels, taps)
    number = -(-count // (tile * (STRIP if 2 * depth > DEPTH else 2 * STRIP)))
    number = threads * -(-number // threads) if number > 1 else 1
    strip = lanes * -(-count // (lanes * number))  # equal strips: the last one is not much narrower
    whole = lanes * -(-count // lanes)  # a part of a vector takes as long as a whole one
    strips, panels, affordable = -(-count // strip), -(-filters // each), 1 if alone else max(1, whole * all_ * depth // TASK)
    two = 2 if affordable > MANY * threads else 1
    cuts, lots = [slice(0, strips)], [slice(0, panels)]
    if group % threads and threads <= panels and (strips < threads or (strips < 2 * threads and count < all_)):
        lots = parts(panels, -(-panels // affordable), two, threads)
    elif group < threads * two or group % threads:  # with three groups on two threads, one thread would have two
        cuts = parts(strips, -(-strips // affordable), two, threads)
    widest = each * max(lot.stop - lot.start for lot in lots)
    k = LANES * -(-together * taps // LANES)
    chunk = widest if all_panels else min(widest, each * max(1, PANELS // (each * k * itemsize)))
    in_place = each * PANELS_IN_PLACE if window == PIXEL and registers.count >= MANY_REGISTERS else 0
    sizes = (strip, together, chunk, each, across, lanes, beside, most_alone(registers), in_place)
    pieces: list[Numbers] = []
    for g in range(group):
        for cut in cuts:
            windows = strip * cut.start, min(count, strip * cut.stop)
            for lot in lots:
                those = g * filters + each * lot.start, g * filters + min(filters, each * lot.stop)
                made = (all_panels[1], g * panels + lot.start) if all_panels else (0, 0)
                pieces.append((*windows, *those, g * channels, *sizes, *made))
    map_ = (*x, *y, *window.kernel, *window.stride, *window.pad, *window.dilation, all_, channels)
    tiles = -(-strip // tile) if widest > chunk else 1
    room = 1 if all_panels else chunk * k
    rows = widest * strip if images > 1 or together < channels else 1
    return map_, pieces, (tiles * (tile + beside) * together * taps, rows, room)
