"""Winograd's F(4x4, 3x3) for 3x3 convolutions, and larger ones in 3x3 pieces: 36 products for 16 outputs, not 144.

    y = outputs of [ tiles of x (6, 6, T, C) @ factors of weight (6, 6, C, M) ]

Fast because every step is a matrix product (winograd_tiles) on blocks of tiles that stay in a core's cache, each block a task.
Tiles with outliers (winograd_outliers), and those that come out infinite or NaN, are computed again by the direct way: Winograd
overflows earlier, and one NaN would reach its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np

from minicaffe import threads
from minicaffe.blob import Array
from minicaffe.kernels import kernel
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue

from . import winograd_outliers
from .convolve import LEAST_PRODUCT
from .convolve import data_gradient as data_gradient_directly
from .window import Window
from .winograd_outliers import Flags, Taps, all_taps
from .winograd_tiles import ACROSS, BT, TILE, Block, G, Scratch, Tiling, count_of_pieces, from_tiles, to_pieces, to_tiles

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The shapes of x, weight and y."""


MOST_SHARE = 0.4
"""Greatest share of the direct way's multiplications for which Winograd's transforms pay: 0.36 for 5x5, 0.25 for 3x3."""
MOST_MAPS = 4 << 20
"""Numbers of a strided convolution's data gradient that are made at a time before they go to their places."""

UNPADDED = Window((3, 3), (1, 1), (0, 0), (1, 1))
FACTOR: Array = np.kron(G, G).astype(np.float32)
"""(36, 9): the 36 factors of a 3x3 filter."""


def convolve(
    x: Array,
    weight: Array,
    window: Window,
    group: int,
    y: Array,
    epilogue: Epilogue = NOTHING,
    *,
    factors: Array | None = None,
    taps: Taps | None = None,
) -> None:
    """Compute y (N, M, *size) = epilogue of x (N, C, H, W) convolved with weight (M, C / group, *kernel).

    All arrays are float32. No axis of the window may be both strided and dilated. A padding below 0 leaves out the map's rim. y
    may be smaller or larger than the window gives. factors: factors_of(weight, window, group), if available. taps: the taps
    that every filter has, by default all.
    """
    taps = taps or all_taps(window)
    if factors is not None:
        convolve_by_factors(x, weight, factors, window, y, epilogue, taps)
        return
    with threads.kept_scratch(np.float32) as memory:
        factors = factors_of(weight, window, group, memory("large", *factors_shape(weight.shape, window, group)))
        convolve_by_factors(x, weight, factors, window, y, epilogue, taps)


@kernel
def convolve_by_factors(  # noqa: PLR0917
    x: Array, weight: Array, factors: Array, window: Window, y: Array, epilogue: Epilogue, taps: Taps
) -> None:
    """Convolve with the weights' factors."""
    group, depth, filters = len(factors), factors.shape[3], y.shape[1] // len(factors)
    tiling = Tiling(len(x), y.shape[2:], window)
    flags = winograd_outliers.find(x, group, tiling, taps)
    scratch = Scratch()

    def work(block: Block, g: int) -> None:
        flagged = flags[g][block.places]
        own, channels = channels_of(len(weight), group)[g], channels_of(x.shape[1], group)[g]
        out = _outputs(tiling, block, x[:, channels], factors[g], filters, flagged, scratch)
        epilogue(out, own)
        tiling.write(block, out, y[:, own])
        if flagged.any():
            fixup(tiling, block, g, flagged, x, weight, y, epilogue)

    threads.run(partial(work, block, g) for block in blocks_of(tiling, depth, filters) for g in range(group))


def blocks_of(tiling: Tiling, depth: int, filters: int) -> Iterator[Block]:
    """Yield the blocks for NumPy's products of this depth (a group's channels in pieces) and number of filters."""
    return tiling.blocks(tiles_at_once(max(depth, filters)), least=-(-LEAST_PRODUCT // (depth * filters)))


def possible(window: Window) -> bool:
    """Return whether Winograd supports the window with fewer multiplications: 2-d, not both strided and dilated."""
    if len(window.kernel) != 2 or any(s > 1 and d > 1 for s, d in zip(window.stride, window.dilation)):
        return False
    return count_of_pieces(window) * 36 <= MOST_SHARE * TILE * TILE * math.prod(window.kernel)


def fixup(  # noqa: PLR0917
    tiling: Tiling, block: Block, group: int, flags: Flags, x: Array, weight: Array, y: Array, epilogue: Epilogue
) -> None:
    """Compute these tiles of a block directly, for all filters of the group. Blocks must not change a product's shape."""
    groups = x.shape[1] // weight.shape[1]
    filters, channels = channels_of(len(weight), groups)[group], channels_of(x.shape[1], groups)[group]
    slab = read(tiling, block, x[:, channels], Scratch())
    for tiles, out in winograd_outliers.outputs(slab, weight[filters], tiling.window, flags):
        epilogue(out, filters)
        for tile, of_tile in zip(tiles.tolist(), out, strict=True):
            tiling.write_tile(block, tile, of_tile, y[:, filters])


@kernel
def factors_of(weight: Array, window: Window, group: int, out: Array | None = None) -> Array:
    """Return G w G^T for the 3x3 filters w of the pieces of weight (M, C / group, *kernel), float32, in panels of filters.

    The shape is (group, 36, panels, pieces * C / group, rows): four times the weight's size for 3x3, six times for 5x5. rows:
    filters of a panel, those past M / group 0. Here there is one panel. out: the array to write to.
    """
    factors = np.empty(factors_shape(weight.shape, window, group), np.float32) if out is None else out
    weight = to_pieces(weight, window)
    m, c = len(weight) // group, weight.shape[1]
    filters = weight.reshape(group, m, c, 9).transpose(0, 2, 3, 1)
    by_channel = factors[:, :, 0, :, :m].swapaxes(1, 2)  # (group, C, 36, M): the products are stored transposed, without a copy
    factors[..., m:] = 0
    threads.run(partial(np.matmul, FACTOR, filters[:, part], out=by_channel[:, part]) for part in threads.parts(c, 32))
    return factors


@kernel
def factors_shape(weight: Sequence[int], window: Window, group: int) -> tuple[int, ...]:
    """Return the shape of the factors of weights of this shape."""
    return group, 36, 1, count_of_pieces(window) * weight[1], weight[0] // group


def unpanelled(factors: Array, filters: int) -> Array:
    """Return one group's factors (36, panels, C, rows) as (6, 6, C, filters)."""
    _, panels, channels, rows = factors.shape
    columns: Array = factors[:, 0] if panels == 1 else factors.swapaxes(1, 2).reshape(36, channels, panels * rows)
    return columns[..., :filters].reshape(6, 6, channels, filters)


def data_gradient(dy: Array, weight: Array, window: Window, group: int, dx: Array) -> None:
    """Compute dx (N, C, *map) from dy (N, M, *windows) and weight (M, C / group, *kernel): convolve's transpose.

    It is a convolution too. With a stride it makes a map of each phase, whose numbers are then copied to their positions.
    """
    filters, dense, taps = phases(weight, window, group), window_of_phases(window), shared_taps(window)
    if window.stride == (1, 1):
        convolve(dy, filters, dense, group, dx)
        return
    rows, columns = map(_places, window.stride, window.pad, dx.shape[2:])
    at_once, *shape = maps_shape(dx.shape, len(filters), window)
    grouped = dx.reshape(len(dx), group, dx.shape[1] // group, *dx.shape[2:])

    def put(maps: Array, to: Array, channels: slice) -> None:
        for (r, (rows_of_dx, of_map)), (c, (columns_of_dx, across)) in product(enumerate(rows), enumerate(columns)):
            to[:, :, channels, rows_of_dx, columns_of_dx] = maps[:, :, r, c, channels, of_map, across]

    with threads.kept_scratch(np.float32) as memory:
        factors = factors_of(filters, dense, group, memory("large", *factors_shape(filters.shape, dense, group)))
        for images in threads.cut(len(dx), -(-len(dx) // at_once)):
            of, to = dy[images], grouped[images]
            maps = memory("maps", len(of), *shape)
            convolve(of, filters, dense, group, maps, factors=factors, taps=taps)
            # multiplied by inf, the zeros for a phase's missing taps would spoil more results than the direct way
            if not all_finite(maps):
                data_gradient_directly(of, weight, window, group, dx[images])
                continue
            by_phase = maps.reshape(len(of), group, len(rows), len(columns), -1, *shape[1:])
            threads.run(partial(put, by_phase, to, part) for part in threads.parts(to.shape[2], 8))


def phases(weight: Array, window: Window, group: int) -> Array:
    """Return the weights of the stride 1 convolution of dy whose outputs are the data gradient's phases.

    A phase is a row and a column modulo the stride. The weights are (group * phases * C / group, M / group, *taps), from weight
    (M, C / group, *kernel). Padded by dilation * (taps - 1) the convolution makes whole maps.
    """
    m, c = weight.shape[:2]
    (down, across), (rows, columns) = window.stride, taps_of_phases(window)
    padded = weight
    if window.kernel != (rows * down, columns * across):
        padded = np.zeros((m, c, rows * down, columns * across), weight.dtype)
        padded[:, :, : window.kernel[0], : window.kernel[1]] = weight
    # A correlation's gradient uses kernels turned by 180 degrees, with filters and channels exchanged.
    turned = padded.reshape(group, m // group, c, rows, down, columns, across)[:, :, :, ::-1, :, ::-1]
    filters: Array = turned.transpose(0, 4, 6, 2, 1, 3, 5).reshape(group * down * across * c, m // group, rows, columns)
    return filters


def taps_of_phases(window: Window) -> tuple[int, ...]:
    """Return the most taps, on each axis, that a pixel of one phase meets."""
    return tuple(-(-k // s) for k, s in zip(window.kernel, window.stride))


def shared_taps(window: Window) -> tuple[tuple[bool, ...], ...]:
    """Return the mask of the taps, on each axis, that are nonzero in every phase; all taps if a phase has none."""
    return tuple((k % s == 0 or k < s,) + (True,) * (-(-k // s) - 1) for k, s in zip(window.kernel, window.stride))


def window_of_phases(window: Window) -> Window:
    """Return the window of the convolution of dy that computes each phase's map.

    It is padded so that maps are whole, without the rows and columns that only x's padding has.
    """
    taps = taps_of_phases(window)
    pad = tuple(d * (t - 1) - p // s for d, t, p, s in zip(window.dilation, taps, window.pad, window.stride))
    return Window(taps, (1, 1), pad, window.dilation)


def maps_shape(x: Sequence[int], filters: int, window: Window) -> tuple[int, ...]:
    """Return the shape of the phases' maps of x that are computed at a time, for some of the images."""
    rows, columns = map(_places, window.stride, window.pad, x[2:])
    size = max(last.stop for _, last in rows), max(last.stop for _, last in columns)
    parts = -(-x[0] * filters * math.prod(size) // MOST_MAPS)
    return -(-x[0] // parts), filters, *size


def _places(stride: int, pad: int, length: int) -> list[tuple[slice, slice]]:
    """Return two slices for each phase of an axis: its positions on the axis, and its part of the phase's map."""
    places = []
    for phase in range(stride):
        first = (phase - pad) % stride
        of_map = (first + pad) // stride - pad // stride
        places.append((slice(first, length, stride), slice(of_map, of_map + len(range(first, length, stride)))))
    return places


def tiles_at_once(channels: int) -> int:
    """Return the number of tiles in a block. Many channels need many tiles, because each block reads all factors."""
    # 256 tiles of 2048 channels take 75 MB a thread, so more channels get fewer tiles.
    return 192 if channels <= 256 else max(48, min(256, 256 * 2048 // channels))


def channels_of(channels: int, group: int) -> list[slice]:
    """Return the slice of each group's channels."""
    each = channels // group
    return [slice(g * each, (g + 1) * each) for g in range(group)]


def read(tiling: Tiling, block: Block, x: Array, scratch: Scratch) -> Array:
    """Return the block's slab of x (N, C, H, W): (S, pieces * C, rows + 2, columns + 2), zeros outside x."""
    slab = scratch.next(len(block.planes), count_of_pieces(tiling.window) * x.shape[1], *block.inputs)
    tiling.read(block, x, slab)
    return slab


def _outputs(  # noqa: PLR0917
    tiling: Tiling, block: Block, x: Array, factors: Array, m: int, flags: Flags, scratch: Scratch
) -> Array:
    """Return the block's outputs (S, M, rows, columns), in scratch, and flag tiles that are not finite.

    factors: (36, panels, pieces * C, rows), of M filters.
    """
    slab = read(tiling, block, x, scratch)
    # The slab includes a border of 1, which is no output.
    s, rows, columns = len(slab), slab.shape[2] - 2, slab.shape[3] - 2
    with np.errstate(invalid="ignore", over="ignore"):
        tiles = to_tiles(slab, ACROSS, BT, scratch)
        products = scratch.next(6, s * (rows // TILE) * (columns // TILE), 6, m)
        by_channel = unpanelled(factors, m)
        np.matmul(tiles.swapaxes(1, 2), by_channel, out=products.swapaxes(1, 2))  # (6, 6, T, C) @ (6, 6, C, M): 36 products
        out = from_tiles(products, (s, m, rows, columns), scratch)
        if not all_finite(out):
            flags |= ~np.isfinite(out.reshape(s, m, rows // TILE, TILE, columns // TILE, TILE)).all(axis=(1, 3, 5))
    return out


def all_finite(x: Array) -> bool:
    """Return whether a contiguous x is finite; also False if squares overflow. Much faster than isfinite."""
    flat = x.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        return math.isfinite(np.dot(flat, flat))  # squares cannot cancel, so an inf or a NaN stays in the sum
