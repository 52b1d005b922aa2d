"""3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3): 36 products for 16 outputs instead of 144.

    slab (C, 18 columns of 4 tiles)  -- ACROSS -->  (tile, 6, C)  -- BT over rows -->  tiles (6, 6, T, C)
    tiles @ factors (6, 6, C, M) = products (6, 6, T, M)  -- AT over rows -->  (tile, 6, M)  -- BACK -->  16 columns of y

Fast because every step is a matrix product, on blocks of tiles that stay in a core's cache, each block a task of its own.
The first product transforms four tiles at once and turns channels last on the way, the last one turns them back: BLAS
packs its factors anyway, so both turns are free. Blocks that come out infinite or NaN are computed again by the direct
way: Winograd overflows earlier, and would spread one NaN over its neighbours.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import threads

from .convolve import convolve as convolve_directly
from .finish import Finish
from .window import Window
from .winograd_blocks import STEP, Block, Tiling
from .winograd_matrices import ACROSS, AT, BACK, BT, TILE, TOGETHER, G

Array = NDArray[Any]

UNPADDED = Window((3, 3), (1, 1), (0, 0), (1, 1))
_FACTOR = np.kron(G, G).astype(np.float32)
"""(36, 9): the 36 factors of a 3x3 filter."""


def factors_of(weight: Array) -> Array:
    """weight (M, C, 3, 3), float32 -> G w G^T as (6, 6, C, M): four times its size."""
    m, c = weight.shape[:2]
    factors = np.empty((36, c, m), np.float32)
    filters = weight.reshape(m, c, 9).transpose(1, 2, 0)
    threads.run(
        partial(np.matmul, _FACTOR, filters[part], out=factors[:, part].swapaxes(0, 1)) for part in threads.parts(c, 32)
    )
    return factors.reshape(6, 6, c, m)


def turned(weight: Array, group: int) -> Array:
    """The weights (C, M / group, 3, 3) of the convolution that is the data gradient of one with weight (M, C / group, 3, 3)."""
    m, c = weight.shape[:2]
    filters: Array = weight.reshape(group, m // group, c, 3, 3)[..., ::-1, ::-1].swapaxes(1, 2)
    return filters.reshape(group * c, m // group, 3, 3)


def turned_window(window: Window) -> Window:
    """That convolution's window: it pads by what the other leaves."""
    return Window(window.kernel, window.stride, tuple(2 * d - p for d, p in zip(window.dilation, window.pad)), window.dilation)


def convolve(
    x: Array, weight: Array, window: Window, group: int, y: Array, finish: Finish | None = None, factors: Array | None = None
) -> None:
    """y (N, M, *size) = x (N, C, H, W) convolved with weight (M, C / group, 3, 3), then finished; y is overwritten.

    All float32, the window 3x3 of stride 1; a padding below 0 leaves out the map's rim, and y may be smaller or larger
    than the window gives. factors: those of each group's weights, (group, 6, 6, C / group, M / group), if at hand.
    """
    if factors is None:
        factors = grouped_factors(weight, group)
    tiling = Tiling(len(x), _pair(y.shape[2:]), _pair(window.pad), _pair(window.dilation))
    channels, filters = channels_of(x.shape[1], group), channels_of(y.shape[1], group)
    free: list[Scratch] = []

    def work(block: Block, g: int) -> None:
        scratch = free.pop() if free else Scratch()
        part = weight[filters[g]]
        slab_of = partial(_slab, tiling, block, x[:, channels[g]])
        with np.errstate(invalid="ignore", over="ignore"):
            out = _product(slab_of(scratch), factors[g], scratch)
            flat = out.reshape(-1)
            if not math.isfinite(np.dot(flat, flat)):
                out = scratch.last(out.shape)
                convolve_directly(slab_of(scratch), part, UNPADDED, 1, out)
        if finish is not None:
            finish(out, filters[g])
        tiling.write(block, out, y[:, filters[g]])
        free.append(scratch)

    wanted = tiles_at_once(max(x.shape[1], y.shape[1]) // group)
    threads.run(partial(work, block, g) for block in tiling.blocks(wanted) for g in range(group))


def grouped_factors(weight: Array, group: int) -> Array:
    """weight (M, C / group, 3, 3) -> (group, 6, 6, C / group, M / group)."""
    m, c = weight.shape[:2]
    if group == 1:
        return factors_of(weight)[None]
    return np.stack([factors_of(part) for part in weight.reshape(group, m // group, c, 3, 3)])


def tiles_at_once(channels: int) -> int:
    """Tiles of a block, measured: many channels need many tiles, since each block reads all factors from memory."""
    return 128 if channels <= 256 else 256


def channels_of(channels: int, group: int) -> list[slice]:
    """Each group's channels."""
    each = channels // group
    return [slice(g * each, (g + 1) * each) for g in range(group)]


class Scratch:
    """Two buffers of a worker, which the steps fill in turn: new memory for each step would cost as much as the step."""

    def __init__(self) -> None:
        self._buffers = [np.empty(0, np.float32), np.empty(0, np.float32)]

    def next(self, *shape: int) -> Array:
        """An array in the buffer that was not used last; its former content is lost."""
        self._buffers.reverse()
        return self.last(shape)

    def last(self, shape: tuple[int, ...]) -> Array:
        count = math.prod(shape)
        if self._buffers[0].size < count:
            self._buffers[0] = np.empty(count, np.float32)
        return self._buffers[0][:count].reshape(shape)


def _slab(tiling: Tiling, block: Block, x: Array, scratch: Scratch) -> Array:
    slab = scratch.next(len(block.planes), x.shape[1], *block.inputs)
    tiling.read(block, x, slab)
    return slab


def _product(slab: Array, factors: Array, scratch: Scratch) -> Array:
    """slab (S, C, rows + 2, columns + 2), factors (6, 6, C, M) -> (S, M, rows, columns), whole tiles."""
    tiles = to_tiles(slab, scratch)
    s, rows, columns, m = len(slab), slab.shape[2] - 2, slab.shape[3] - 2, factors.shape[3]
    products = scratch.next(6, tiles.shape[2], 6, m).swapaxes(1, 2)
    np.matmul(tiles, factors, out=products)
    tile_rows = products.swapaxes(1, 2).reshape(6, s * rows // TILE, columns // TILE * 6 * m)
    down = scratch.next(s * rows // TILE, TILE, tile_rows.shape[2])
    np.matmul(AT, tile_rows.swapaxes(0, 1), out=down)
    groups = columns // STEP
    out = scratch.next(s, m, rows, columns)
    by_group = out.reshape(s, m, rows, groups, STEP).transpose(0, 2, 3, 1, 4)
    np.matmul(down.reshape(s, rows, groups, len(BACK), m).swapaxes(3, 4), BACK, out=by_group)
    return out


def to_tiles(slab: Array, scratch: Scratch) -> Array:
    """slab (S, C, rows + 2, columns + 2) -> its transformed tiles (6, 6, T, C), T counting planes, rows and columns."""
    s, c, height, width = slab.shape
    rows, groups = (height - 2) // TILE, (width - 2) // STEP
    across = scratch.next(s, height, groups, len(ACROSS), c)
    np.matmul(ACROSS, _strided(slab, (s, height, groups, STEP + 2, c), (0, 2, (3, STEP), 3, 1)), out=across)
    length = groups * len(ACROSS) * c
    by_row = across.reshape(s, height, length)
    tiles = scratch.next(6, s, rows, length)
    np.matmul(BT, _strided(by_row, (s, rows, 6, length), (0, (1, TILE), 1, 2)), out=tiles.transpose(1, 2, 0, 3))
    by_position: Array = tiles.reshape(6, s * rows * groups * TOGETHER, 6, c).swapaxes(1, 2)
    return by_position


def _strided(x: Array, shape: tuple[int, ...], axes: tuple[int | tuple[int, int], ...]) -> Array:
    """A view of a contiguous x whose axes run along the given axes of x, in steps of 1 or of (axis, step)."""
    steps = [x.strides[axis] if isinstance(axis, int) else x.strides[axis[0]] * axis[1] for axis in axes]
    view: Array = np.ndarray(shape, x.dtype, x, 0, steps)
    return view


def _pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    down, across = sizes
    return down, across
