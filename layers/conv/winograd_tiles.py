"""Winograd's F(4x4, 3x3): its constants, the cutting of maps into tiles, and the tiles' transforms.

    y = AT [ (G w G^T) * (BT d BT^T) ] A        (w 3x3, d 6x6, * number by number: 36 products instead of 144)

**Constants.** By Cook and Toom: d, w and y are read as polynomials, multiplied by their values at five points and at infinity.
The points 0, +-5/8, +-3/2 were chosen by measurement: with 256 channels the rms error against float64 is 4 times that of the
direct way in float32. With the usual 0, +-1, +-2 it is 9 times, with 0, +-1, 1/2, -2 it is 6 times. Every coefficient of AT and
BT is exact in float32. Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016); Barabasz et al., Error
Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks (2020), on the choice of points.

**Pieces.** A larger kernel or stride is a sum of 3x3 convolutions of stride 1.

    y[o] = sum over i of w[i] x[o s - p + i]
         = sum over pieces of [ sum over t < 3 of w[first + t s] x[(o + t) s - p + first] ]

On each axis, the taps that a stride of s takes together are those s apart; three of them, or what is left, are a piece: of 5
taps with stride 1 those from 0 and from 3 on, with stride 2 those from 0 and from 1 on. Each piece is a 3x3 convolution of the
pixels s apart, and y their sum: one convolution, of as many times the channels as there are pieces. 5x5 has four pieces, so 9
products for each output instead of 25.

**Tiles and blocks.** A dilation of d leaves d x d sub-maps that do not mix: rows and columns d apart, each an ordinary
convolution. A plane is one sub-map of one image. A block is some tile rows and columns of one plane, or several whole planes
where they are small. What lies outside a map is filled with zeros or left out, so that the work in between knows no edges.

**Transforms** are matrix products: maps with channels first to tiles with channels last, and back.

    slab (S, C, rows + o, columns + o)  -- across each row, four tiles at once -->  (S, rows + o, tile, 6, C)
                                        -- down the rows of each tile row -->  tiles (6, T, 6, C), T tiles in all
    tiles (6, T, 6, M)  -- AT down -->  (S, rows, tile, 6, M)  -- BACK across -->  (S, M, rows, columns)

o is how far tiles overlap, 2 or 0. BLAS packs its factors anyway, so the turns to channels last and back are free.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from minicaffe import threads
from minicaffe.blob import Array

from .window import Window, overlap

POINTS = (0.0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)
TILE = 4
"""Outputs of a tile, on each axis; it takes TILE + 2 inputs and as many products."""
TOGETHER = 4
"""Adjacent tiles that one matrix transforms. A product of 6 x 6 alone is too small to be fast."""


def cook_toom(points: tuple[float, ...]) -> tuple[Array, Array, Array]:
    """Return AT (4, 6), G (6, 3) and BT (6, 6) for five points and infinity, in float64."""
    a, g, b = np.zeros((6, 4)), np.zeros((6, 3)), np.zeros((6, 6))  # a is A = AT^T: row i holds the powers of point i
    for i, point in enumerate(points):
        others = [other for other in points if other != point]
        a[i] = point ** np.arange(4)
        # Lagrange's divisors go into G, which is applied once, to the weights. So AT and BT keep short numbers.
        g[i] = point ** np.arange(3) / np.prod([point - other for other in others])
        b[i, :5] = np.poly(others)[::-1]  # the polynomial with roots at all other points, lowest power first
    a[5, 3] = g[5, 2] = 1  # at infinity, only the leading coefficient counts
    b[5] = np.poly(points)[::-1]
    return a.T, g, b


def side_by_side(matrix: Array) -> Array:
    """Return matrix (I, J) for TOGETHER tiles, TILE columns apart: (TOGETHER * I, J + TILE * (TOGETHER - 1))."""
    rows, columns = matrix.shape
    out = np.zeros((TOGETHER, rows, columns + TILE * (TOGETHER - 1)), matrix.dtype)
    for i in range(TOGETHER):
        out[i, :, i * TILE : i * TILE + columns] = matrix  # tile i reads (or writes) from column i * TILE on
    return out.reshape(TOGETHER * rows, -1)


_AT, G, _BT = cook_toom(POINTS)
AT: Array = np.ascontiguousarray(_AT, np.float32)
BT: Array = np.ascontiguousarray(_BT, np.float32)
ACROSS: Array = side_by_side(BT)
"""BT along a row, (24, 18): the 18 pixels that four tiles reach to their 24 numbers."""
BACK: Array = side_by_side(AT.T)
"""AT along a row, (24, 16): the 24 numbers of four tiles to their 16 outputs, to be multiplied from the right."""

TAPS = 3
"""Taps of a piece on each axis."""


@lru_cache(maxsize=512)
def pieces(window: Window) -> tuple[tuple[int, ...], ...]:
    """Return the first tap of each piece, on each axis."""
    return tuple(product(*map(_first_taps, window.kernel, window.stride)))


def count_of_pieces(window: Window) -> int:
    """Return the number of pieces, without making them."""
    count = 1
    for kernel, stride in zip(window.kernel, window.stride, strict=True):
        each, more = divmod(kernel, stride)  # taps of each phase, and the number of phases with one more
        count *= more * -(-(each + 1) // TAPS) + (stride - more) * -(-each // TAPS)
    return count


def offsets(window: Window) -> Sequence[tuple[int, ...]]:
    """Return each piece's distance on the map, from the window's first tap to its own."""
    return [tuple(f * d for f, d in zip(first, window.dilation)) for first in pieces(window)]


def each_piece(weight: Array, window: Window) -> Iterator[Array]:
    """Yield views of the pieces of weight (M, C, *kernel), each (M, C, up to 3, up to 3)."""
    for first in pieces(window):
        rows, columns = map(_slice, first, window.stride)
        yield weight[:, :, rows, columns]


def to_pieces(weight: Array, window: Window) -> Array:
    """Return weight (M, C, *kernel) as (M, pieces * C, 3, 3), 0 where a piece has fewer taps."""
    if window.kernel == (TAPS, TAPS):
        return weight
    (m, c), all_ = weight.shape[:2], pieces(window)
    made = np.zeros((m, len(all_), c, TAPS, TAPS), weight.dtype)
    for number, taps in enumerate(each_piece(weight, window)):
        made[:, number, :, : taps.shape[2], : taps.shape[3]] = taps
    return made.reshape(m, len(all_) * c, TAPS, TAPS)


def add_pieces(gradient: Array, window: Window, dweight: Array) -> None:
    """Add gradient (M, pieces, C, 3, 3) of to_pieces(weight) to weight's gradient dweight (M, C, *kernel)."""
    for number, to in enumerate(each_piece(dweight, window)):
        np.add(to, gradient[:, number, :, : to.shape[2], : to.shape[3]], out=to)


def _first_taps(kernel: int, stride: int) -> list[int]:
    return [first for phase in range(min(kernel, stride)) for first in range(phase, kernel, TAPS * stride)]


def _slice(first: int, stride: int) -> slice:
    return slice(first, first + (TAPS - 1) * stride + 1, stride)


STEP = TILE * TOGETHER
"""Output columns of a group of tiles, which are transformed together."""
MOST_GROUPS = 8
"""Most groups of tiles side by side in a block. More rows below each other share the rows in which tiles overlap."""


@dataclass(frozen=True)
class Block:
    """A range of planes, of rows of tiles, and of groups of tiles in these rows."""

    planes: range
    rows: range
    groups: range

    @property
    def tiles(self) -> int:
        """Return the number of tiles in all its planes."""
        return len(self.planes) * len(self.rows) * len(self.groups) * TOGETHER

    @property
    def places(self) -> tuple[slice, ...]:
        """Return the slices of its tiles among all (planes, rows, columns)."""
        columns = slice(self.groups.start * TOGETHER, self.groups.stop * TOGETHER)
        return slice(self.planes.start, self.planes.stop), slice(self.rows.start, self.rows.stop), columns

    @property
    def inputs(self) -> tuple[int, int]:
        """Return the rows and columns of a plane that the block reads: the slab's size."""
        return TILE * len(self.rows) + 2, STEP * len(self.groups) + 2


@dataclass(frozen=True)
class Tiling:
    """`images` maps of `size` outputs each, in tiles: cuts blocks, reads and writes them. window: of the convolution."""

    images: int
    size: Sequence[int]
    window: Window

    @property
    def planes(self) -> int:
        return self.images * self.window.dilation[0] * self.window.dilation[1]

    @property
    def tiles(self) -> tuple[int, int]:
        """Return the rows of tiles and the groups of tiles in one plane."""
        (height, width), (down, across) = self.size, self.window.dilation
        return -(-height // (TILE * down)), -(-width // (STEP * across))

    @property
    def whole(self) -> Block:
        """Return all tiles as one block."""
        rows, groups = self.tiles
        return Block(range(self.planes), range(rows), range(groups))

    def blocks(self, tiles: int, least: int = 1, workers: int | None = None) -> Iterator[Block]:
        """Yield blocks of at most about `tiles` tiles, about equally many for each worker (default: each thread).

        They have at least `least` tiles: BLAS rounds small products differently.
        """
        rows, groups = self.tiles
        workers = workers or threads.get_num_threads()
        count = self.planes * rows * groups * TOGETHER
        tiles = min(tiles, max(-(-count // workers), least))  # at most an equal part for each worker
        group_parts = -(-groups // MOST_GROUPS)
        row_parts = min(rows, -(-rows * groups * TOGETHER // tiles // group_parts))
        plane_parts = self.planes
        if row_parts == group_parts == 1:  # small planes: several in one block
            plane_parts = min(self.planes, -(-count // tiles))
        elif plane_parts * row_parts * group_parts < 4 * workers:  # with few blocks, all workers should get equally many
            more = row_parts
            while more < rows and plane_parts * more * group_parts % workers:
                more += 1
            if count >= plane_parts * more * group_parts * least:
                row_parts = more
        parts = (_parts(self.planes, plane_parts), _parts(rows, row_parts), _parts(groups, group_parts))
        return (Block(*block) for block in product(*parts))

    def read(self, block: Block, x: Array, slab: Array) -> None:
        """Fill slab (planes, pieces * C, *block.inputs) with the block's inputs of x (N, C, H, W), zeros outside of it."""
        channels, apart = x.shape[1], self.apart
        for of_plane, plane in zip(slab, block.planes, strict=True):
            image, *start = self.inputs_at(block, plane)
            for number, offset in enumerate(offsets(self.window)):
                to, first = of_plane[number * channels :][:channels], (start[0] + offset[0], start[1] + offset[1])
                (rows, rows_of_x), (columns, columns_of_x) = map(overlap, first, apart, slab.shape[2:], x.shape[2:])
                to[:, : rows.start] = 0  # scratch holds old numbers, so clear the parts off the map
                to[:, rows.stop :] = 0
                to[:, rows, : columns.start] = 0
                to[:, rows, columns.stop :] = 0
                to[:, rows, columns] = x[image, :, rows_of_x, columns_of_x]

    def write(self, block: Block, out: Array, y: Array) -> None:
        """Write the block's outputs, out (planes, M, rows, columns), to y (N, M, H, W)."""
        for part, plane in zip(out, block.planes, strict=True):
            self._put(part, self.outputs_at(block, plane), y)

    def write_tile(self, block: Block, tile: Sequence[int], out: Array, y: Array) -> None:
        """Write a tile's outputs (M, TILE, TILE) to y. tile: its plane, row and column in the block."""
        plane, *places = tile
        image, *starts = self.outputs_at(block, block.planes[plane])
        row, column = (at + TILE * d * n for at, d, n in zip(starts, self.window.dilation, places, strict=True))
        self._put(out, (image, row, column), y)

    def _put(self, out: Array, first: tuple[int, int, int], y: Array) -> None:
        """Write outputs (M, rows, columns) to y from an image, row and column on, without those past the map's end."""
        image, *start = first
        (rows, rows_of_y), (columns, columns_of_y) = map(overlap, start, self.window.dilation, out.shape[1:], y.shape[2:])
        y[image, :, rows_of_y, columns_of_y] = out[:, rows, columns]

    @property
    def apart(self) -> tuple[int, ...]:
        """Return the distance on the input map between a tile's inputs, down and across."""
        return tuple(d * s for d, s in zip(self.window.dilation, self.window.stride))

    def inputs_at(self, block: Block, plane: int) -> tuple[int, int, int]:
        """Return the plane's image, and the row and column of the block's first inputs, maybe outside the map."""
        image, row, column = self.outputs_at(block, plane)
        (down, across), (rows, columns) = self.window.stride, self.window.pad
        return image, row * down - rows, column * across - columns

    def outputs_at(self, block: Block, plane: int) -> tuple[int, int, int]:
        """Return the plane's image, and the row and column of the block's first outputs."""
        dilation = self.window.dilation
        image, offset = divmod(plane, dilation[0] * dilation[1])
        # Neighbours in a sub-map are `dilation` apart on the map, starting at the sub-map's first row and column.
        row, column = divmod(offset, dilation[1])
        return image, row + dilation[0] * TILE * block.rows.start, column + dilation[1] * STEP * block.groups.start


def _parts(length: int, count: int) -> list[range]:
    """Return range(length) in `count` parts of about equal size."""
    return [range(part.start, part.stop) for part in threads.cut(length, count)]


class Scratch(threading.local):
    """Two buffers for each thread, which the steps fill in turn.

    Allocating memory for each step would cost as much as the step.
    """

    def __init__(self) -> None:
        self._buffers = [np.empty(0, np.float32), np.empty(0, np.float32)]

    def next(self, *shape: int) -> Array:
        """Return an array in the buffer that was not used last. Its former content is lost."""
        self._buffers.reverse()
        count = math.prod(shape)
        if self._buffers[0].size < count:
            self._buffers[0] = np.empty(0, np.float32)  # free the old buffer before allocating the new one
            self._buffers[0] = np.empty(count, np.float32)
        return self._buffers[0][:count].reshape(shape)


def to_tiles(slab: Array, across: Array, down: Array, scratch: Scratch, tiles: Array | None = None) -> Array:
    """Transform slab (S, C, rows + o, columns + o) to tiles (6, T, 6, C), new in scratch or given.

    across (24, 16 + o) transforms four tiles of a row, down (6, 4 + o) the rows of a tile.
    """
    s, c, height, width = slab.shape
    overlap = across.shape[1] - STEP
    rows, groups = (height - overlap) // TILE, (width - overlap) // STEP
    by_group = scratch.next(s, height, groups, len(across), c)
    # (24, 16 + o) @ (S, H, groups, 16 + o, C): groups overlap in memory. BLAS reads the last two axes transposed.
    np.matmul(across, _strided(slab, (s, height, groups, STEP + overlap, c), (0, 2, (3, STEP), 3, 1)), out=by_group)
    length = groups * len(across) * c  # numbers in a row of tiles: groups, 4 tiles of 6, channels
    if tiles is None:
        tiles = scratch.next(6, s * rows * length // (6 * c), 6, c)
    # Each row of tiles reads 4 + o rows and begins 4 rows after the previous one.
    by_row = _strided(by_group.reshape(s, height, length), (s, rows, down.shape[1], length), (0, (1, TILE), 1, 2))
    # The 6 results of a row of tiles go to the 6 planes of tiles. T counts planes, rows of tiles, tiles.
    np.matmul(down, by_row, out=tiles.reshape(6, s, rows, length).transpose(1, 2, 0, 3))
    return tiles


def from_tiles(tiles: Array, shape: tuple[int, int, int, int], scratch: Scratch) -> Array:
    """Transform tiles of products (6, T, 6, M) to outputs of this shape (S, M, rows, columns), in scratch."""
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
    """Return a view of a contiguous x whose axes run along the given axes of x, in steps of 1 or of (axis, step)."""
    steps = [x.strides[axis] if isinstance(axis, int) else x.strides[axis[0]] * axis[1] for axis in axes]
    view: Array = np.ndarray(shape, x.dtype, x, 0, steps)  # unlike as_strided, it refuses to reach past the buffer
    return view
