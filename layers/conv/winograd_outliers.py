"""Tiles in which Winograd's rounding would spoil outputs that do not read a tile's largest values: they are computed directly.

Winograd's errors are relative to all 6x6 pixels of a tile, an output reads 3x3 of them. With |x| summed over channels:

    outliers = sum over the tile > LIMIT * sum over the smallest window

A window that padding cuts off is compared with as large a share of the tile's sum. So an output's error is at most about
1e-4 of the filter's largest |weight| times the sum of |x| that the output reads. Each tile is judged and computed by itself,
and results do not depend on how maps are cut into blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from minicaffe import threads
from minicaffe.blob import Array

from .window import Window
from .winograd_blocks import Block, Tiling
from .winograd_matrices import TILE, TOGETHER
from .winograd_pieces import TAPS, pieces

LIMIT = 16
"""The sum over a tile of equal values is 4 times that over a window. Trained nets have hardly any tiles above 16 times."""

NEAR = 1 << 16
"""Numbers that are read at a time."""

EVERY: Array = np.ones(2 * (TILE + 2), np.float32)
"""The rows and columns of a tile."""

MOST = 1 << 20
"""Numbers of columns that are made at a time."""

Taps = tuple[tuple[bool, ...], ...]
"""Of each axis of a kernel, the taps that every filter has: of a strided convolution's data gradient not all."""

Flags = NDArray[np.bool_]
"""Of a block's tiles, (planes, rows, columns)."""


def all_taps(window: Window) -> Taps:
    """Every tap of the kernel."""
    return tuple((True,) * length for length in window.kernel)


@lru_cache(maxsize=512)
def taps_of_pieces(window: Window, taps: Taps) -> Array:
    """Each piece's taps (pieces, 6), those of its rows, then of its columns: 1, or 0 where the piece has none of these taps."""
    made = np.zeros((len(pieces(window)), 2, TAPS), np.float32)
    for of_piece, first in zip(made, pieces(window), strict=True):
        for to, mask, start, stride in zip(of_piece, taps, first, window.stride, strict=True):
            found = mask[start::stride][:TAPS]
            to[: len(found)] = found
    return made.reshape(-1, 2 * TAPS)


@lru_cache(maxsize=512)
def shares(tiling: Tiling, block: Block, size: tuple[int, ...], taps: Taps) -> Array:
    """For each row of a tile's outputs, then for each column, of all tiles, (planes, 2, TILE, rows, columns): which part of the
    taps lies on the map of this size, 0 for outputs beyond theirs. The rows' include 1 / LIMIT."""
    tiles = len(block.rows), len(block.groups) * TOGETHER
    made = np.empty((len(block.planes), 2, TILE, *tiles), np.float32)
    for of_plane, plane in zip(made, block.planes, strict=True):
        down, across = (_shares(axis, tiling, block, plane, size, taps) for axis in (0, 1))
        of_plane[0], of_plane[1] = down.T[:, :, None] / LIMIT, across.T[:, None]
    return made


def _shares(axis: int, tiling: Tiling, block: Block, plane: int, size: tuple[int, ...], taps: Taps) -> Array:
    """Along an axis, (tiles, TILE)."""
    first, of_outputs = tiling.inputs_at(block, plane)[1 + axis], tiling.outputs_at(block, plane)[1 + axis]
    outputs, dilation = np.arange(block.inputs[axis] - 2), tiling.window.dilation[axis]
    pixels = first + tiling.apart[axis] * outputs[:, None] + dilation * np.flatnonzero(taps[axis])
    share: Array = ((pixels >= 0) & (pixels < size[axis])).mean(axis=1)
    share[of_outputs + dilation * outputs >= tiling.size[axis]] = 0
    return share.reshape(-1, TILE)


def find(x: Array, group: int, tiling: Tiling, taps: Taps) -> Flags:
    """Each group's tiles with outliers of x (N, C, H, W), (group, planes, rows, columns)."""
    sums, every = _magnitudes(x, group), tiling.whole
    of_pieces, of_tiles = taps_of_pieces(tiling.window, taps), shares(tiling, every, x.shape[2:], taps)
    slab = np.empty((tiling.planes, len(of_pieces), *every.inputs), np.float32)
    found = np.empty((group, tiling.planes, *of_tiles.shape[3:]), bool)
    for flags, of_group in zip(found, sums.swapaxes(0, 1), strict=True):
        tiling.read(every, of_group[:, None], slab)
        with np.errstate(invalid="ignore", over="ignore"):
            flags[...] = _compare(slab, of_pieces, of_tiles)
    return found


def _compare(slab: Array, of_pieces: Array, of_tiles: Array) -> Flags:
    """The tiles (S, rows, columns) with outliers of magnitudes (S, pieces, rows + 2, columns + 2)."""
    s, count, height, width = slab.shape
    windows = reduce(np.add, [_sums(slab[:, number], of_pieces[number], 1) for number in range(count)])
    whole = _sums(slab[:, 0] if count == 1 else slab.sum(axis=1), EVERY, TILE)
    least = whole[:, None, None] * of_tiles[:, 0, :, None] * of_tiles[:, 1, None]  # (S, TILE, TILE, rows, columns)
    by_tile = windows.reshape(s, (height - 2) // TILE, TILE, (width - 2) // TILE, TILE).transpose(0, 2, 4, 1, 3)
    found: Flags = ~(least <= by_tile).all(axis=(1, 2))  # NaN is an outlier
    return found


def _magnitudes(x: Array, group: int) -> Array:
    """The sums of |x| over each group's channels, (N, group, H, W)."""
    maps = x.reshape(len(x) * group, x.shape[1] // group, -1)
    made = np.zeros((len(maps), maps.shape[2]), np.float32)
    channels = max(1, NEAR // min(NEAR, maps.shape[2]))

    def add(n: int, pixels: slice) -> None:
        for c in range(0, maps.shape[1], channels):  # some at a time, which the second cache holds
            made[n, pixels] += np.abs(maps[n, c : c + channels, pixels]).sum(axis=0)

    cuts = threads.cut(maps.shape[2], -(-maps.shape[2] // NEAR))  # not by the threads: sums must not depend on their number
    threads.run(partial(add, n, pixels) for n in range(len(maps)) for pixels in cuts)
    return made.reshape(len(x), group, *x.shape[2:])


def _sums(x: Array, taps: Array, step: int) -> Array:
    """The sums of x (S, H, W) over windows, `step` apart, that have these rows and columns (2 * K: 1 or 0)."""
    length = len(taps) // 2
    rows, columns = np.flatnonzero(taps[:length]), np.flatnonzero(taps[length:])
    height, width = x.shape[1] - length + 1, x.shape[2] - length + 1
    x = reduce(np.add, [x[:, i : i + height : step] for i in rows])
    made: Array = reduce(np.add, [x[:, :, i : i + width : step] for i in columns])
    return made


def outputs(slab: Array, weight: Array, window: Window, tiles: Flags) -> Iterator[tuple[NDArray[Any], Array]]:
    """The indices (plane, row, column) of some of the tiles at a time, and their outputs (tiles, M, TILE, TILE) by the direct
    way: each tile's are one product, of the same shape for every tile, so that its rounding does not depend on the others."""
    filters, channels = weight.shape[:2]
    all_, matrix = np.argwhere(tiles), weight.reshape(filters, -1)
    pixels = sliding_window_view(slab, (TILE + 2, TILE + 2), (2, 3))[:, :, ::TILE, ::TILE]
    each = max(1, MOST // (matrix.shape[1] * TILE * TILE))
    for start in range(0, len(all_), each):
        some = all_[start : start + each]
        s, r, c = some.T
        patches = pixels[s, :, r, c].reshape(len(some), -1, channels, TILE + 2, TILE + 2)
        columns = np.empty((len(some), *weight.shape[1:], TILE, TILE), np.float32)
        for piece, (row, column), (k, j) in _taps(window):
            columns[:, :, k, j] = patches[:, piece, :, row : row + TILE, column : column + TILE]
        with np.errstate(invalid="ignore", over="ignore"):
            made = matrix @ columns.reshape(len(some), matrix.shape[1], -1)
        yield some, made.reshape(len(some), filters, TILE, TILE)


@lru_cache(maxsize=512)
def _taps(window: Window) -> list[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Each tap of the kernel: its piece, the row and column in it, and in the kernel."""
    (down, across), (height, width) = window.stride, window.kernel
    return [
        (number, (i, j), (row, column))
        for number, first in enumerate(pieces(window))
        for i, row in enumerate(range(first[0], height, down)[:TAPS])
        for j, column in enumerate(range(first[1], width, across)[:TAPS])
    ]
