"""The weights' gradient of a 3x3 convolution by Winograd's transforms: forward's transpose.

    dweight = G^T [ sum over tiles of (BT x B) * (A dy A^T) ] G

The sum over tiles is 36 matrix products, channels by tiles by filters. Tiles of x and dy are made, about MOST_BYTES at a
time, by all threads block by block, and then multiplied by all threads position by position: so no thread needs separate
sums (36 numbers for each filter and channel), and each number is added up in one order, whatever the threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from minicaffe import threads
from minicaffe.blob import Array

from .window import Window
from .winograd import FACTOR, all_finite, channels_of, tiles_at_once
from .winograd_blocks import Block, Tiling
from .winograd_matrices import ACROSS, AT, BACK, BT, TOGETHER
from .winograd_tiles import Scratch, taken, to_tiles

A: Array = np.ascontiguousarray(AT.T)
WORKERS = 8
"""The threads that the tiles are cut for."""
MOST_BYTES = 48 << 20
"""About how many bytes of tiles are made at a time, of x and dy together."""


def add_weight_gradient(x: Array, dy: Array, window: Window, group: int, dweight: Array) -> bool:
    """Add to dweight (M, C / group, 3, 3) what dy (N, M, *windows) and x (N, C, H, W) give; all float32.

    False, with dweight unchanged, if the sums are not finite: the direct way finds which of them are.
    """
    channels, filters = channels_of(x.shape[1], group), channels_of(dy.shape[1], group)
    sums = [_sums(x[:, channels[g]], dy[:, filters[g]], window) for g in range(group)]
    if not all(map(all_finite, sums)):  # before anything is added: dweight must be unchanged if not
        return False
    for g in range(group):
        _fold(sums[g], dweight[filters[g]])
    return True


def _sums(x: Array, dy: Array, window: Window) -> Array:
    """The sum over all tiles: (6, 6, C, M)."""
    c, m = x.shape[1], dy.shape[1]
    tiling = Tiling(len(x), dy.shape[2:], window.pad, window.dilation)
    sums = np.zeros((6, 6, c, m), np.float32)
    # a tile has 36 float32 numbers, 144 bytes, for each channel and filter
    # always cut for as many threads: the order of the sums must not depend on their number
    blocks_of_all = list(tiling.blocks(tiles_at_once(max(c, m)), workers=WORKERS))
    for blocks in _batches(blocks_of_all, MOST_BYTES // (144 * (c + m))):
        # where each block's tiles lie among the batch's
        ends = list(accumulate((_tiles(block) for block in blocks), initial=0))
        of_x, of_dy = np.empty((6, ends[-1], 6, c), np.float32), np.empty((6, ends[-1], 6, m), np.float32)
        free: list[Scratch] = []
        threads.run(
            partial(_transform, tiling, block, x, dy, of_x[:, a:b], of_dy[:, a:b], free=free)
            for block, (a, b) in zip(blocks, pairwise(ends), strict=True)
        )

        threads.run(partial(_add_product, of_x[i, :, j], of_dy[i, :, j], sums[i, j]) for i in range(6) for j in range(6))
    return sums


def _transform(tiling: Tiling, block: Block, x: Array, dy: Array, of_x: Array, of_dy: Array, *, free: list[Scratch]) -> None:
    """The block's tiles of x and dy into of_x (6, T, 6, C) and of_dy (6, T, 6, M)."""
    scratch = taken(free)
    unpadded = replace(tiling, pad=(0, 0))  # a tile of dy is the 4x4 outputs that the 6x6 of x give
    height, width = block.inputs
    with np.errstate(invalid="ignore", over="ignore"):
        slab = scratch.next(len(block.planes), x.shape[1], height, width)
        tiling.read(block, x, slab)
        to_tiles(slab, ACROSS, BT, scratch, of_x)
        slab = scratch.next(len(block.planes), dy.shape[1], height - 2, width - 2)
        unpadded.read(block, dy, slab)
        to_tiles(slab, BACK, A, scratch, of_dy)  # A dy A^T: from_tiles' matrices transposed, tiles that do not overlap
    free.append(scratch)


def _add_product(tiles_of_x: Array, tiles_of_dy: Array, sums: Array) -> None:
    """sums (C, M) += tiles_of_x (T, C)^T @ tiles_of_dy (T, M)."""
    with np.errstate(invalid="ignore", over="ignore"):
        sums += tiles_of_x.T @ tiles_of_dy


def _fold(sums: Array, dweight: Array) -> None:
    """dweight (M, C, 3, 3) += G^T sums G, sums (6, 6, C, M)."""
    m, c = dweight.shape[:2]
    by_channel, filters = sums.reshape(36, c, m).transpose(1, 2, 0), dweight.reshape(m, c, 9).swapaxes(0, 1)

    def fold(part: slice) -> None:
        filters[part] += by_channel[part] @ FACTOR  # G^T S G of all filters, flattened: S @ kron(G, G)

    threads.run(partial(fold, part) for part in threads.parts(c, 32))


def _batches(blocks: list[Block], tiles: int) -> Iterator[list[Block]]:
    """The blocks in order, in batches of at most `tiles` tiles, but at least one block."""
    batch: list[Block] = []
    for block in blocks:
        if batch and sum(map(_tiles, batch)) + _tiles(block) > tiles:
            yield batch
            batch = []
        batch.append(block)
    if batch:
        yield batch


def _tiles(block: Block) -> int:
    return len(block.planes) * len(block.rows) * len(block.groups) * TOGETHER
