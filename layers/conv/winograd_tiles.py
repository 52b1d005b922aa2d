"""Winograd's transforms of blocks of tiles, as matrix products: maps with channels first to tiles with channels last, and back.

    slab (S, C, rows + o, columns + o)  -- across each row, four tiles at once -->  (S, rows + o, tile, 6, C)
                                        -- down the rows of each tile row -->  tiles (6, T, 6, C), T tiles in all
    tiles (6, T, 6, M)  -- AT down -->  (S, rows, tile, 6, M)  -- BACK across -->  (S, M, rows, columns)

o is how far tiles overlap, 2 or 0. BLAS packs its factors anyway, so the turns to channels last and back are free.
"""

from __future__ import annotations

import math

import numpy as np

from minicaffe.blob import Array

from .winograd_blocks import STEP
from .winograd_matrices import AT, BACK, TILE


class Scratch:
    """Two buffers of a worker, which the steps fill in turn: new memory for each step would cost as much as the step."""

    def __init__(self) -> None:
        self._buffers = [np.empty(0, np.float32), np.empty(0, np.float32)]

    def next(self, *shape: int) -> Array:
        """An array in the buffer that was not used last; its former content is lost."""
        self._buffers.reverse()
        count = math.prod(shape)
        if self._buffers[0].size < count:
            self._buffers[0] = np.empty(0, np.float32)  # before there are both
            self._buffers[0] = np.empty(count, np.float32)
        return self._buffers[0][:count].reshape(shape)


def taken(free: list[Scratch]) -> Scratch:
    """One of those that no thread uses, or a new one; another thread may take the last one meanwhile."""
    try:
        return free.pop()
    except IndexError:
        return Scratch()


def to_tiles(slab: Array, across: Array, down: Array, scratch: Scratch, tiles: Array | None = None) -> Array:
    """slab (S, C, rows + o, columns + o) -> tiles (6, T, 6, C): new in scratch, or those given.

    across (24, 16 + o) transforms four tiles of a row, down (6, 4 + o) the rows of a tile.
    """
    s, c, height, width = slab.shape
    overlap = across.shape[1] - STEP
    rows, groups = (height - overlap) // TILE, (width - overlap) // STEP
    by_group = scratch.next(s, height, groups, len(across), c)
    # (24, 16 + o) @ (S, H, groups, 16 + o, C): groups overlap in memory; BLAS takes the last two axes as a transpose
    np.matmul(across, _strided(slab, (s, height, groups, STEP + overlap, c), (0, 2, (3, STEP), 3, 1)), out=by_group)
    length = groups * len(across) * c  # numbers of a row of tiles: groups, 4 tiles of 6, channels
    if tiles is None:
        tiles = scratch.next(6, s * rows * length // (6 * c), 6, c)
    # each row of tiles sees 4 + o rows and begins 4 further
    by_row = _strided(by_group.reshape(s, height, length), (s, rows, down.shape[1], length), (0, (1, TILE), 1, 2))
    # the 6 results of a row of tiles go to the 6 planes of tiles; T counts planes, rows of tiles, tiles
    np.matmul(down, by_row, out=tiles.reshape(6, s, rows, length).transpose(1, 2, 0, 3))
    return tiles


def from_tiles(tiles: Array, shape: tuple[int, int, int, int], scratch: Scratch) -> Array:
    """Tiles of products (6, T, 6, M) -> their outputs of this shape (S, M, rows, columns), in scratch."""
    s, m, rows, columns = shape
    tile_rows = tiles.reshape(6, s * rows // TILE, columns // TILE * 6 * m)
    down = scratch.next(s * rows // TILE, TILE, tile_rows.shape[2])
    np.matmul(AT, tile_rows.swapaxes(0, 1), out=down)
    groups = columns // STEP
    out = scratch.next(*shape)
    by_group = out.reshape(s, m, rows, groups, STEP).transpose(0, 2, 3, 1, 4)
    # (M, 24) @ (24, 16): four tiles' 16 columns, channels first again
    np.matmul(down.reshape(s, rows, groups, len(BACK), m).swapaxes(3, 4), BACK, out=by_group)
    return out


def _strided(x: Array, shape: tuple[int, ...], axes: tuple[int | tuple[int, int], ...]) -> Array:
    """A view of a contiguous x whose axes run along the given axes of x, in steps of 1 or of (axis, step)."""
    steps = [x.strides[axis] if isinstance(axis, int) else x.strides[axis[0]] * axis[1] for axis in axes]
    view: Array = np.ndarray(shape, x.dtype, x, 0, steps)  # unlike as_strided it refuses to reach past the buffer
    return view
