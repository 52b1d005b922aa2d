"""3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3): 36 products for 16 outputs instead of 144.

    y = outputs of [ tiles of x (6, 6, T, C) @ factors of weight (6, 6, C, M) ]

Fast because every step is a matrix product (winograd_tiles), or a compiled loop (winograd_loops), on blocks of tiles that
stay in a core's cache, each block a task. Blocks that come out infinite or NaN are computed again by the direct way: Winograd
overflows earlier, and one NaN would reach its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from minicaffe import loops, threads
from minicaffe.blob import Array
from minicaffe.blocks import kept_scratch

from . import winograd_loops
from .convolution_blocks import LEAST_PRODUCT
from .convolve import convolve as convolve_directly
from .epilogue import NOTHING, Epilogue, flat
from .tiles import panel_rows
from .window import Window
from .winograd_blocks import Block, Tiling
from .winograd_loops import POWERS
from .winograd_matrices import ACROSS, BT, TILE, TOGETHER, G
from .winograd_tiles import Scratch, from_tiles, taken, to_tiles

PANELS = 6
"""Panels whose factors a task makes."""
FEW_TILES = 96
"""Tiles for each thread, below which threads share them and divide the filters."""
TASK = 8 << 20
"""Multiplications of a task, at least."""

UNPADDED = Window((3, 3), (1, 1), (0, 0), (1, 1))
FACTOR: Array = np.kron(G, G).astype(np.float32)
"""(36, 9): the 36 factors of a 3x3 filter."""
LOOPS = (winograd_loops.convolve_planes,)
"""What convolve runs, if loops are compiled."""


def convolve(
    x: Array,
    weight: Array,
    window: Window,
    group: int,
    y: Array,
    epilogue: Epilogue = NOTHING,
    *,
    factors: Array | None = None,
) -> None:
    """y (N, M, *size) = x (N, C, H, W) convolved with weight (M, C / group, 3, 3), then the epilogue; y is overwritten.

    All float32, the window 3x3 of stride 1; a padding below 0 leaves out the map's rim, and y may be smaller or larger
    than the window gives. factors: factors_of(weight, group), if at hand.
    """
    made = factors_of(weight, group) if factors is None else factors
    tiling = Tiling(len(x), y.shape[2:], window.pad, window.dilation)
    most, channels = tiles_at_once(max(x.shape[1], y.shape[1]) // group), channels_of(x.shape[1], group)
    free: list[Scratch] = []  # as many as threads have run at once; append and pop are atomic
    panels, each, filters = made.shape[2], made.shape[4], y.shape[1] // group
    # the loops take maps as flat arrays; factors may have been made before loops were compiled
    by_loops = loops.compiled() and x.flags.c_contiguous and y.flags.c_contiguous and each == _panel_rows(filters)
    if by_loops:
        blocks, lanes = _cut(tiling, most, panels, x.shape[1] // group * filters)
    else:
        least = -(-LEAST_PRODUCT * group * group // (x.shape[1] * y.shape[1]))
        blocks, lanes = list(tiling.blocks(most, least)), [slice(0, panels)]

    def work(block: Block, lane: slice, g: int) -> None:
        mine = slice(g * filters + lane.start * each, g * filters + min(filters, lane.stop * each))
        source, part = channels[g], made[g, :, lane]
        if by_loops and _by_loops(tiling, block, x, source, part, y, mine, epilogue):
            return
        scratch = taken(free)
        out = _outputs(tiling, block, x[:, source], weight[mine], part, scratch)
        epilogue(out, mine)
        tiling.write(block, out, y[:, mine])
        free.append(scratch)

    threads.run(partial(work, block, lane, g) for block in blocks for g in range(group) for lane in lanes)


def _cut(tiling: Tiling, most: int, panels: int, factors: int) -> tuple[list[Block], list[slice]]:
    """Blocks of at most about `most` tiles, and the parts of the filters' panels: where there are few tiles, each thread
    transforms them for filters of its own. factors: of one of the 36 matrices."""
    rows, groups = tiling.tiles
    tiles = tiling.planes * rows * groups * TOGETHER
    workers = max(1, min(threads.get_num_threads(), 36 * tiles * factors // TASK))
    lanes = min(workers, panels) if tiles < FEW_TILES * workers else 1
    blocks = list(tiling.blocks(most, workers=-(-workers // lanes)))
    return blocks, [slice(panels * i // lanes, panels * (i + 1) // lanes) for i in range(lanes)]


def factors_of(weight: Array, group: int) -> Array:
    """weight (M, C / group, 3, 3), float32 -> G w G^T in panels, (group, 36, panels, C / group, rows): four times its size.

    rows: filters of a panel, those past M / group 0; all where loops are not compiled.
    """
    m, c = len(weight) // group, weight.shape[1]
    factors = np.empty(factors_shape(weight.shape, group), np.float32)
    panels, rows = factors.shape[2], factors.shape[4]
    if panels == 1:
        filters = weight.reshape(group, m, c, 9).transpose(0, 2, 3, 1)
        by_channel = factors[:, :, 0, :, :m].swapaxes(1, 2)  # (group, C, 36, M): the products land transposed, without a copy
        factors[..., m:] = 0
        threads.run(partial(np.matmul, FACTOR, filters[:, part], out=by_channel[:, part]) for part in threads.parts(c, 32))
        return factors
    factors[:, :, -1] = 0
    by_filter = factors.transpose(0, 2, 4, 1, 3)  # (group, panels, rows, 36, C)
    numbers = weight.reshape(group, m, c, 9).swapaxes(2, 3)

    def make(some: slice) -> None:
        made = np.matmul(FACTOR, numbers[:, some.start * rows : some.stop * rows])
        for r in range(rows):
            of = made[:, r::rows]
            by_filter[:, some.start : some.start + of.shape[1], r] = of

    threads.run(partial(make, slice(a, a + PANELS)) for a in range(0, panels, PANELS))
    return factors


def factors_shape(weight: Sequence[int], group: int) -> tuple[int, ...]:
    """The shape of the factors of weights of this shape."""
    filters = weight[0] // group
    rows = _panel_rows(filters)
    return group, 36, -(-filters // rows), weight[1], rows


def _panel_rows(filters: int) -> int:
    """Filters of a panel; all where loops are not compiled, as NumPy's products want them."""
    return panel_rows(loops.registers(32)) if loops.compiled() else filters


def unpanelled(factors: Array, filters: int) -> Array:
    """One group's factors (36, panels, C, rows) as (6, 6, C, filters)."""
    _, panels, channels, rows = factors.shape
    columns: Array = factors[:, 0] if panels == 1 else factors.swapaxes(1, 2).reshape(36, channels, panels * rows)
    return columns[..., :filters].reshape(6, 6, channels, filters)


def turned(weight: Array, group: int) -> Array:
    """The weights (C, M / group, 3, 3) of the convolution that is the data gradient of one with weight (M, C / group, 3, 3)."""
    m, c = weight.shape[:2]
    # a correlation's gradient correlates with kernels turned by 180 degrees, filters and channels exchanged
    filters: Array = weight.reshape(group, m // group, c, 3, 3)[..., ::-1, ::-1].swapaxes(1, 2)
    return filters.reshape(group * c, m // group, 3, 3)


def turned_window(window: Window) -> Window:
    """That convolution's window: it pads by what the other leaves."""
    return Window(window.kernel, window.stride, tuple(2 * d - p for d, p in zip(window.dilation, window.pad)), window.dilation)


def tiles_at_once(channels: int) -> int:
    """Tiles of a block, measured: many channels need many tiles, since each block reads all factors from memory."""
    return 192 if channels <= 256 else 256  # with 192 tiles and 256 channels a thread's tiles take 7 MB


def channels_of(channels: int, group: int) -> list[slice]:
    """Each group's channels."""
    each = channels // group
    return [slice(g * each, (g + 1) * each) for g in range(group)]


def read(tiling: Tiling, block: Block, x: Array, scratch: Scratch) -> Array:
    """The block's slab of x (N, C, H, W): (S, C, rows + 2, columns + 2), zeros where x ends."""
    slab = scratch.next(len(block.planes), x.shape[1], *block.inputs)
    tiling.read(block, x, slab)
    return slab


def _by_loops(  # noqa: PLR0917
    tiling: Tiling, block: Block, x: Array, channels: slice, factors: Array, y: Array, filters: slice, epilogue: Epilogue
) -> bool:
    """The block's outputs of some filters, with their epilogue, to y (N, M, *size), of some channels of x (N, C, H, W) and
    factors (36, panels, C, rows); False if they are not finite: to be made anew."""
    rows, columns = len(block.rows), len(block.groups) * TOGETHER
    after = epilogue.table(filters, filters.stop - filters.start, y.dtype)
    planes = np.empty((len(block.planes), 6), np.int64)
    for row, number in zip(planes, block.planes, strict=True):
        for part, array, first, pad in ((row[:3], x, channels.start, tiling.pad), (row[3:], y, filters.start, (0, 0))):
            image, *start = tiling.start(block, number, pad)
            part[:] = (image * array.shape[1] + first) * math.prod(array.shape[2:]), *start
    _, panels, depth, each = factors.shape
    lengths = winograd_loops.memory_sizes(rows, columns, len(planes), depth, panels * each)
    apart = factors.strides[0] // factors.itemsize
    sizes = (depth, *x.shape[2:], after.shape[1], *y.shape[2:], rows, columns, *tiling.dilation, panels, each, apart)
    with kept_scratch(x.dtype) as scratch:
        memory, given = scratch("winograd", sum(lengths)), (x.reshape(-1), flat(factors), y.reshape(-1), after)
        return bool(winograd_loops.convolve_planes(*given, memory, POWERS, planes, (*sizes, *lengths[:3])) == 0)


def _outputs(tiling: Tiling, block: Block, x: Array, weight: Array, factors: Array, scratch: Scratch) -> Array:
    """The block's outputs (S, M, rows, columns), in scratch: of weight (M, C, 3, 3) and its factors (36, panels, C, rows)."""
    slab = read(tiling, block, x, scratch)
    # the border of 1 on each side is no output
    s, rows, columns, m = len(slab), slab.shape[2] - 2, slab.shape[3] - 2, len(weight)
    with np.errstate(invalid="ignore", over="ignore"):
        tiles = to_tiles(slab, ACROSS, BT, scratch)
        products = scratch.next(6, s * (rows // TILE) * (columns // TILE), 6, m)
        by_channel = unpanelled(factors, m)
        np.matmul(tiles.swapaxes(1, 2), by_channel, out=products.swapaxes(1, 2))  # (6, 6, T, C) @ (6, 6, C, M): the 36 products
        out = from_tiles(products, (s, m, rows, columns), scratch)
        if not all_finite(out):
            # the slab's buffer has been overwritten: read again; in a task, run computes on this thread alone
            convolve_directly(read(tiling, block, x, scratch), weight, UNPADDED, 1, out)
    return out


def all_finite(x: Array) -> bool:
    """Whether no number of a contiguous x is infinite or NaN; False too where squares overflow. Much cheaper than isfinite."""
    flat = x.reshape(-1)
    return math.isfinite(np.dot(flat, flat))  # squares cannot cancel: an inf or a NaN stays in the sum
