"""How Winograd's convolution cuts maps into tiles of 4x4 outputs, and these into blocks that are worked on together.

A dilation of d leaves d x d sub-maps that do not mix: rows and columns d apart, each an ordinary convolution. A plane is
one sub-map of one image. A block is some tile rows and columns of one plane, or several whole planes where they are small.
What lies outside a map is filled with zeros or left out, so that the work in between knows no edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from minicaffe import threads
from minicaffe.blob import Array

from .window import Window
from .winograd_matrices import TILE, TOGETHER
from .winograd_pieces import offsets

STEP = TILE * TOGETHER
"""Output columns of a group of tiles, which are transformed together."""
MOST_GROUPS = 8
"""Groups of tiles side by side in a block; more rows under each other instead share the rows that tiles overlap on."""


@dataclass(frozen=True)
class Block:
    """Planes, rows of tiles in them and groups of tiles along these."""

    planes: range
    rows: range
    groups: range

    @property
    def tiles(self) -> int:
        """Of all its planes."""
        return len(self.planes) * len(self.rows) * len(self.groups) * TOGETHER

    @property
    def places(self) -> tuple[slice, ...]:
        """Where they are among all tiles (planes, rows, columns)."""
        columns = slice(self.groups.start * TOGETHER, self.groups.stop * TOGETHER)
        return slice(self.planes.start, self.planes.stop), slice(self.rows.start, self.rows.stop), columns

    @property
    def inputs(self) -> tuple[int, int]:
        """Rows and columns of a plane that the block reads: its slab's size."""
        return TILE * len(self.rows) + 2, STEP * len(self.groups) + 2


@dataclass(frozen=True)
class Tiling:
    """`images` maps of `size` outputs each, in tiles. Cuts into blocks, reads and writes them. window: of the convolution."""

    images: int
    size: Sequence[int]
    window: Window

    @property
    def planes(self) -> int:
        return self.images * self.window.dilation[0] * self.window.dilation[1]

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows of tiles and groups of tiles of one plane."""
        (height, width), (down, across) = self.size, self.window.dilation
        return -(-height // (TILE * down)), -(-width // (STEP * across))

    @property
    def whole(self) -> Block:
        """All tiles as one block."""
        rows, groups = self.tiles
        return Block(range(self.planes), range(rows), range(groups))

    def blocks(self, tiles: int, least: int = 1, workers: int | None = None) -> Iterator[Block]:
        """Blocks of about `tiles` tiles or fewer, about equally many for each of the workers (the threads), but of at least
        `least` tiles: BLAS rounds small products otherwise than large ones."""
        rows, groups = self.tiles
        workers = workers or threads.get_num_threads()
        count = self.planes * rows * groups * TOGETHER
        tiles = min(tiles, max(-(-count // workers), least))  # no more than an even part for each worker
        group_parts = -(-groups // MOST_GROUPS)
        row_parts = min(rows, -(-rows * groups * TOGETHER // tiles // group_parts))
        plane_parts = self.planes
        if row_parts == group_parts == 1:  # small planes: several to a block
            plane_parts = min(self.planes, -(-count // tiles))
        elif plane_parts * row_parts * group_parts < 4 * workers:  # few blocks: all workers should get equally many
            more = row_parts
            while more < rows and plane_parts * more * group_parts % workers:
                more += 1
            if count >= plane_parts * more * group_parts * least:
                row_parts = more
        parts = (_parts(self.planes, plane_parts), _parts(rows, row_parts), _parts(groups, group_parts))
        return (Block(*block) for block in product(*parts))

    def read(self, block: Block, x: Array, slab: Array) -> None:
        """slab (planes, pieces * C, *block.inputs) is what the block reads of x (N, C, H, W), zeros outside of it."""
        channels, apart = x.shape[1], self.apart
        for of_plane, plane in zip(slab, block.planes, strict=True):
            image, *start = self.inputs_at(block, plane)
            for number, offset in enumerate(offsets(self.window)):
                to, first = of_plane[number * channels :][:channels], (start[0] + offset[0], start[1] + offset[1])
                (rows, rows_of_x), (columns, columns_of_x) = map(_overlap, first, apart, slab.shape[2:], x.shape[2:])
                to[:, : rows.start] = 0  # scratch holds old numbers: what lies off the map must be cleared
                to[:, rows.stop :] = 0
                to[:, rows, : columns.start] = 0
                to[:, rows, columns.stop :] = 0
                to[:, rows, columns] = x[image, :, rows_of_x, columns_of_x]

    def write(self, block: Block, out: Array, y: Array) -> None:
        """The block's outputs, out (planes, M, rows, columns), to their places in y (N, M, H, W)."""
        for part, plane in zip(out, block.planes, strict=True):
            image, *first = self.outputs_at(block, plane)
            (rows, rows_of_y), (columns, columns_of_y) = map(_overlap, first, self.window.dilation, out.shape[2:], y.shape[2:])
            # what the last tiles have past the map's end is left out
            y[image, :, rows_of_y, columns_of_y] = part[:, rows, columns]

    def write_tile(self, block: Block, tile: Sequence[int], out: Array, y: Array) -> None:
        """The outputs (M, TILE, TILE) of a tile to their places in y. tile: its plane, row and column in the block."""
        plane, row, column = tile
        image, *starts = self.outputs_at(block, block.planes[plane])
        first = [at + d * TILE * number for at, d, number in zip(starts, self.window.dilation, (row, column), strict=True)]
        (rows, rows_of_y), (columns, columns_of_y) = map(_overlap, first, self.window.dilation, out.shape[1:], y.shape[2:])
        y[image, :, rows_of_y, columns_of_y] = out[:, rows, columns]

    @property
    def apart(self) -> tuple[int, ...]:
        """How far on the map of inputs those of a tile lie apart, down and across."""
        return tuple(d * s for d, s in zip(self.window.dilation, self.window.stride))

    def inputs_at(self, block: Block, plane: int) -> tuple[int, int, int]:
        """The plane's image, and the row and column of the inputs, maybe off the map, at which the block's windows begin."""
        image, row, column = self.outputs_at(block, plane)
        (down, across), (rows, columns) = self.window.stride, self.window.pad
        return image, row * down - rows, column * across - columns

    def outputs_at(self, block: Block, plane: int) -> tuple[int, int, int]:
        """The plane's image, and the row and column of the outputs at which the block begins."""
        dilation = self.window.dilation
        image, offset = divmod(plane, dilation[0] * dilation[1])
        # neighbours in a sub-map are d apart on the map, from the sub-map's first row and column on
        row, column = divmod(offset, dilation[1])
        return image, row + dilation[0] * TILE * block.rows.start, column + dilation[1] * STEP * block.groups.start


def _parts(length: int, count: int) -> list[range]:
    """range(length) in `count` about equal parts."""
    return [range(part.start, part.stop) for part in threads.cut(length, count)]


def _overlap(first: int, step: int, count: int, size: int) -> tuple[slice, slice]:
    """Which of the `count` positions first, first + step, ... lie in range(size): the slices of the count and of the range."""
    low = min(count, max(0, -(first // step)))  # ceil(-first / step): the first that is not below 0
    high = max(low, min(count, -((first - size) // step)))  # ceil((size - first) / step): one past the last below size
    inside = slice(first + low * step, first + (high - 1) * step + 1, step) if high > low else slice(0, 0)
    return slice(low, high), inside
