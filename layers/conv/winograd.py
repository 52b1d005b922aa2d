"""3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3): 36 products for 16 outputs instead of 144.

    y = outputs of [ tiles of x (6, 6, T, C) @ factors of weight (6, 6, C, M) ]

Fast because every step is a matrix product (winograd_tiles), or a compiled loop (winograd_loops), on blocks of tiles that
stay in a core's cache, each block a task. Blocks that come out infinite or NaN are computed again by the direct way: Winograd
overflows earlier, and one NaN would reach its neighbours.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from minicaffe import loops, threads
from minicaffe.blob import Array

from . import winograd_loops
from .convolution_blocks import LEAST_PRODUCT
from .convolve import convolve as convolve_directly
from .epilogue import NOTHING, Epilogue
from .window import Window
from .winograd_blocks import Block, Tiling
from .winograd_loops import POWERS
from .winograd_matrices import ACROSS, BT, TILE, TOGETHER, G
from .winograd_tiles import Scratch, from_tiles, taken, to_tiles

UNPADDED = Window((3, 3), (1, 1), (0, 0), (1, 1))
FACTOR: Array = np.kron(G, G).astype(np.float32)
"""(36, 9): the 36 factors of a 3x3 filter."""
LOOPS = (winograd_loops.to_tiles, winograd_loops.from_tiles)
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
    channels, filters = channels_of(x.shape[1], group), channels_of(y.shape[1], group)
    free: list[Scratch] = []  # as many as threads have run at once; append and pop are atomic

    # the loops take maps as flat arrays
    by_loops = loops.compiled() and x.flags.c_contiguous and y.flags.c_contiguous
    after = [epilogue.table(part, y.shape[1] // group, y.dtype) for part in filters] if by_loops else None

    def work(block: Block, g: int) -> None:
        scratch, source, to = taken(free), x[:, channels[g]], y[:, filters[g]]
        if after is None or not _by_loops(tiling, block, source, made[g], to, after[g], scratch):
            out = _outputs(tiling, block, source, weight[filters[g]], made[g], scratch)
            epilogue(out, filters[g])
            tiling.write(block, out, to)
        free.append(scratch)

    least = -(-LEAST_PRODUCT * group * group // (x.shape[1] * y.shape[1]))
    blocks = tiling.blocks(tiles_at_once(max(x.shape[1], y.shape[1]) // group), least)
    threads.run(partial(work, block, g) for block in blocks for g in range(group))


def factors_of(weight: Array, group: int) -> Array:
    """weight (M, C / group, 3, 3), float32 -> G w G^T as (group, 6, 6, C / group, M / group): four times its size."""
    m, c = len(weight) // group, weight.shape[1]
    filters = weight.reshape(group, m, c, 9).transpose(0, 2, 3, 1)
    factors = np.empty((group, 36, c, m), np.float32)
    by_channel = factors.swapaxes(1, 2)  # (group, C, 36, M): the products land transposed, without a copy
    threads.run(partial(np.matmul, FACTOR, filters[:, part], out=by_channel[:, part]) for part in threads.parts(c, 32))
    return factors.reshape(group, 6, 6, c, m)


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
    tiling: Tiling, block: Block, x: Array, factors: Array, y: Array, after: Array, scratch: Scratch
) -> bool:
    """The block's outputs, with their epilogue `after`, to y (N, M, *size); False if they are not finite: to be made anew."""
    rows, columns = len(block.rows), len(block.groups) * TOGETHER
    plane = len(block.planes) * rows * columns
    line, pixels = (np.empty(size, x.dtype) for size in winograd_loops.scratch_sizes(rows, columns))
    grids = [(plane, i * rows * columns, rows, columns) for i in range(len(block.planes))]
    tiles = scratch.next(36, x.shape[1], plane)
    for number, grid in zip(block.planes, grids, strict=True):
        image, *first = tiling.start(block, number, tiling.pad)
        place = (*x.shape[1:], *first, *tiling.dilation)
        winograd_loops.to_tiles(x[image].reshape(-1), place, tiles.reshape(-1), grid, line, pixels, POWERS)
    products = scratch.next(36, y.shape[1], plane)
    # (36, M, C) @ (36, C, T); of OpenBLAS's kernels, that for a transposed factor rounds alike whatever T is (C up to 384)
    np.matmul(factors.reshape(36, *factors.shape[2:]).swapaxes(1, 2), tiles, out=products)
    finite = True
    for number, grid in zip(block.planes, grids, strict=True):
        image, *first = tiling.start(block, number, (0, 0))
        place = (*y.shape[1:], *first, *tiling.dilation)
        out = y[image].reshape(-1)
        finite &= winograd_loops.from_tiles(products.reshape(-1), grid, out, place, after, line, pixels, POWERS) == 0
    return finite


def _outputs(tiling: Tiling, block: Block, x: Array, weight: Array, factors: Array, scratch: Scratch) -> Array:
    """The block's outputs (S, M, rows, columns), in scratch: of weight (M, C, 3, 3), whose factors are (6, 6, C, M)."""
    slab = read(tiling, block, x, scratch)
    # the border of 1 on each side is no output
    s, rows, columns, m = len(slab), slab.shape[2] - 2, slab.shape[3] - 2, len(weight)
    with np.errstate(invalid="ignore", over="ignore"):
        tiles = to_tiles(slab, ACROSS, BT, scratch)
        products = scratch.next(6, s * (rows // TILE) * (columns // TILE), 6, m)
        np.matmul(tiles.swapaxes(1, 2), factors, out=products.swapaxes(1, 2))  # (6, 6, T, C) @ (6, 6, C, M): the 36 products
        out = from_tiles(products, (s, m, rows, columns), scratch)
        if not all_finite(out):
            # the slab's buffer has been overwritten: read again; in a task, run computes on this thread alone
            convolve_directly(read(tiling, block, x, scratch), weight, UNPADDED, 1, out)
    return out


def all_finite(x: Array) -> bool:
    """Whether no number of a contiguous x is infinite or NaN; False too where squares overflow. Much cheaper than isfinite."""
    flat = x.reshape(-1)
    return math.isfinite(np.dot(flat, flat))  # squares cannot cancel: an inf or a NaN stays in the sum
