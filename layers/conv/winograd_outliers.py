"""Outlier tiles, in which Winograd's rounding would spoil outputs that do not read the largest values: computed directly.

Winograd's errors are relative to all 6x6 pixels of a tile, an output reads 3x3 of them. With |x| summed over channels:

    outliers = sum over the tile > LIMIT * sum over the smallest window

A window that padding cuts off is compared with as large a share of the tile's sum. So an output's error is at most about
1e-4 of the filter's largest |weight| times the sum of |x| that the output reads. Each tile is judged and computed by itself,
and results do not depend on how maps are cut into blocks.

In a weight gradient single values are set aside instead, which a whole channel of x or dy hardly outweighs: Outliers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from minicaffe import threads
from minicaffe.blob import Array
from minicaffe.threads import Index, each_block

from .window import Window
from .winograd_tiles import TAPS, TILE, Block, Tiling, each_piece, pieces

LIMIT = 16
"""Limit of a tile's sum relative to a window's. For equal values the ratio is 4. In trained nets hardly any tile exceeds
16."""

NEAR = 1 << 16
"""Numbers that are read at a time."""

EVERY: Array = np.ones(2 * (TILE + 2), np.float32)
"""The rows and columns of a tile."""

MOST = 1 << 20
"""Numbers of columns that are made at a time."""

Taps = tuple[tuple[bool, ...], ...]
"""For each axis of a kernel, the taps that every filter has. In a strided convolution's data gradient, filters lack some."""

Flags = NDArray[np.bool_]
"""Flags of a block's tiles, (planes, rows, columns)."""

Indices = NDArray[np.intp]
Places = tuple[Any, ...]
"""The index of numbers of maps (N, C, H, W)."""


def all_taps(window: Window) -> Taps:
    """Return every tap of the kernel."""
    return tuple((True,) * length for length in window.kernel)


@lru_cache(maxsize=512)
def taps_of_pieces(window: Window, taps: Taps) -> Array:
    """Return each piece's taps (pieces, 6), 1 or 0: those of its rows, then of its columns."""
    made = np.zeros((len(pieces(window)), 2, TAPS), np.float32)
    for of_piece, first in zip(made, pieces(window), strict=True):
        for to, mask, start, stride in zip(of_piece, taps, first, window.stride, strict=True):
            found = mask[start::stride][:TAPS]
            to[: len(found)] = found
    return made.reshape(-1, 2 * TAPS)


@lru_cache(maxsize=512)
def shares(tiling: Tiling, block: Block, size: tuple[int, ...], taps: Taps) -> Array:
    """Return the share of the taps that lies on the map of this size; 0 for outputs outside the map.

    The shape is (planes, TILE * rows + TILE * columns): one share for each row of outputs, then one for each column. The rows'
    shares include 1 / LIMIT.
    """
    made = []
    for plane in block.planes:
        down, across = (_shares(axis, tiling, block, plane, size, taps).T.reshape(-1) for axis in (0, 1))
        made.append(np.concatenate([down / LIMIT, across]).astype(np.float32))
    return np.stack(made)


def _shares(axis: int, tiling: Tiling, block: Block, plane: int, size: tuple[int, ...], taps: Taps) -> Array:
    """Return the shares along an axis, (tiles, TILE)."""
    first, of_outputs = tiling.inputs_at(block, plane)[1 + axis], tiling.outputs_at(block, plane)[1 + axis]
    outputs, dilation = np.arange(block.inputs[axis] - 2), tiling.window.dilation[axis]
    pixels = first + tiling.apart[axis] * outputs[:, None] + dilation * np.flatnonzero(taps[axis])
    share: Array = ((pixels >= 0) & (pixels < size[axis])).mean(axis=1)
    share[of_outputs + dilation * outputs >= tiling.size[axis]] = 0
    return share.reshape(-1, TILE)


def find(x: Array, group: int, tiling: Tiling, taps: Taps) -> Flags:
    """Return the flags (group, planes, rows, columns) of tiles of x (N, C, H, W) with outliers, for each group."""
    every, (_, *tiles) = tiling.whole, tiling.whole.places
    rows, columns = (one.stop for one in tiles)
    of_pieces, parts = taps_of_pieces(tiling.window, taps), shares(tiling, every, x.shape[2:], taps)
    down, across = np.split(parts, [TILE * rows], axis=1)
    share = down.reshape(-1, TILE, 1, rows, 1), across.reshape(-1, 1, TILE, 1, columns)
    slab = np.empty((tiling.planes, len(of_pieces), *every.inputs), np.float32)
    found = np.empty((group, tiling.planes, rows, columns), bool)
    for flags, of_group in zip(found, _magnitudes(x, group).swapaxes(0, 1), strict=True):
        tiling.read(every, of_group[:, None], slab)
        with np.errstate(invalid="ignore", over="ignore"):
            windows = reduce(np.add, [_sums(slab[:, number], of_piece, 1) for number, of_piece in enumerate(of_pieces)])
            whole = _sums(slab.sum(axis=1), np.ones(2 * (TILE + 2)), TILE)[:, None, None]
            by_tile = windows.reshape(-1, rows, TILE, columns, TILE).transpose(0, 2, 4, 1, 3)
            is_right = np.less_equal(whole * share[0] * share[1], by_tile, order="C")  # False for NaN
        flags[...] = ~is_right.reshape(-1, TILE * TILE, rows, columns).all(axis=1)
    return found


def _magnitudes(x: Array, group: int) -> Array:
    """Return the sums of |x| over each group's channels, (N, group, H, W)."""
    maps = x.reshape(len(x) * group, x.shape[1] // group, -1)
    made = np.zeros((len(maps), maps.shape[2]), np.float32)
    channels = max(1, NEAR // min(NEAR, maps.shape[2]))

    def add(n: int, pixels: slice) -> None:
        for c in range(0, maps.shape[1], channels):  # as many channels at a time as the second cache holds
            made[n, pixels] += np.abs(maps[n, c : c + channels, pixels]).sum(axis=0)

    cuts = threads.cut(maps.shape[2], -(-maps.shape[2] // NEAR))  # not by the number of threads, on which sums must not depend
    threads.run(partial(add, n, pixels) for n in range(len(maps)) for pixels in cuts)
    return made.reshape(len(x), group, *x.shape[2:])


def _sums(x: Array, taps: Array, step: int) -> Array:
    """Return the sums of x (S, H, W) over windows `step` apart, with these rows and columns as taps (2 * K: 1 or 0)."""
    length = len(taps) // 2
    rows, columns = np.flatnonzero(taps[:length]), np.flatnonzero(taps[length:])
    height, width = x.shape[1] - length + 1, x.shape[2] - length + 1
    x = reduce(np.add, [x[:, i : i + height : step] for i in rows])
    return reduce(np.add, [x[:, :, i : i + width : step] for i in columns])


def outputs(slab: Array, weight: Array, window: Window, tiles: Flags) -> Iterator[tuple[NDArray[Any], Array]]:
    """Yield the indices (plane, row, column) of some of the tiles, and their directly computed outputs (tiles, M, TILE, TILE).

    The outputs of a tile are one product, of the same shape for every tile: its rounding does not depend on the others.
    """
    filters, channels = weight.shape[:2]
    all_, matrix = np.argwhere(tiles), weight.reshape(filters, -1)
    pixels = sliding_window_view(slab, (TILE + 2, TILE + 2), (2, 3))[:, :, ::TILE, ::TILE]
    each = max(1, MOST // (matrix.shape[1] * TILE * TILE))
    for some in np.split(all_, range(each, len(all_), each)):
        plane, row, column = some.T
        patches = pixels[plane, :, row, column].reshape(len(some), -1, channels, TILE + 2, TILE + 2)
        by_tap = sliding_window_view(patches, (TILE, TILE), (3, 4))  # (tiles, pieces, C, 3, 3, TILE, TILE)
        columns = np.empty((len(some), *weight.shape[1:], TILE, TILE), np.float32)
        for number, of_piece in enumerate(each_piece(columns, window)):
            of_piece[...] = by_tap[:, number, :, : of_piece.shape[2], : of_piece.shape[3]]
        with np.errstate(invalid="ignore", over="ignore"):
            made = matrix @ columns.reshape(len(some), matrix.shape[1], -1)
        yield some, made.reshape(len(some), filters, TILE, TILE)


@dataclass(frozen=True)
class Outliers:
    """Values of maps (N, C, H, W) above 1 / LIMIT of their channel's sum, in which larger outliers are left out."""

    image: Indices
    channel: Indices
    pixel: Indices  # (2, count)
    values: Array

    @classmethod
    def of(cls, maps: Array) -> Outliers:
        """Return the outliers of the maps. Values that are not finite are no outliers."""
        flat = maps.reshape(*maps.shape[:2], -1)
        chosen = np.flatnonzero(_may_have_outliers(flat))
        values = np.abs(flat[:, chosen]).astype(float)
        has = LIMIT * values.max(axis=(0, 2), initial=0) > values.sum(axis=(0, 2))
        chosen, values = chosen[has], values[:, has]
        ordered = np.sort(values.swapaxes(0, 1).reshape(len(chosen), len(flat) * flat.shape[2]), axis=1)
        large = (LIMIT * ordered > np.cumsum(ordered, axis=1))[:, ::-1]  # largest first; the sum has no larger values
        counts = np.logical_and.accumulate(large, axis=1).sum(axis=1)
        least = ordered[np.arange(len(chosen)), ordered.shape[1] - counts]
        image, number, at = np.nonzero(values >= least[:, None])
        channel = chosen[number]
        return cls(image, channel, np.stack(np.divmod(at, maps.shape[3])), flat[image, channel, at])

    def without(self, maps: Array) -> Array:
        """Return the maps with their outliers set to 0."""
        if not self.values.size:
            return maps
        rest: Array = maps.copy()
        rest[self.image, self.channel, self.pixel[0], self.pixel[1]] = 0
        return rest

    def add_products(self, maps: Array, at: Indices, fits: Flags | bool, to: Array) -> None:
        """Add the products of the outliers and maps (N, D, H, W) to a tap's products `to` (group, channels, D / group).

        at (2, count): a row and a column of the maps for each outlier. Outliers outside the maps, or that do not fit, are left
        out.
        """
        size, (_, each, others) = np.array(maps.shape[2:])[:, None], to.shape
        ours = np.flatnonzero(((at >= 0) & (at < size)).all(axis=0) & fits)
        of_group, channel = np.divmod(self.channel[ours], each)
        by_group = maps.reshape(len(maps), -1, others, *maps.shape[2:])
        seen = by_group[self.image[ours], of_group, :, at[0, ours], at[1, ours]]
        np.add.at(to, (of_group, channel), self.values[ours, None] * seen)


def direct_gradient(x: Array, dy: Array, outliers: tuple[Outliers, Outliers], window: Window, shape: Sequence[int]) -> Array:
    """Return the outliers' part of a weight gradient: outliers of x with dy, and outliers of dy with the rest of x."""
    (of_x, of_dy), group = outliers, x.shape[1] // shape[1]
    made, rest = np.zeros((group, shape[0] // group, *shape[1:]), np.float32), of_x.without(x)
    stride, pad, dilation = (np.array(one)[:, None] for one in (window.stride, window.pad, window.dilation))
    with np.errstate(invalid="ignore", over="ignore"):
        for tap in np.ndindex(*window.kernel):
            to, moved = made[..., tap[0], tap[1]], np.array(tap)[:, None] * dilation - pad
            at, more = np.divmod(of_x.pixel - moved, stride)
            of_x.add_products(dy, at, (more == 0).all(axis=0), to.swapaxes(1, 2))
            of_dy.add_products(rest, of_dy.pixel * stride + moved, True, to)
    return made.reshape(*shape)


def _may_have_outliers(flat: Array) -> Flags:
    """Return True for channels of (N, C, pixels) that may have outliers.

    The test is fast: sum |x| is at least sum x^2 / max |x|.
    """
    largest, squares = np.empty((2, *flat.shape[:2]))

    def look(index: Index) -> None:
        some = flat[index]
        largest[index] = np.maximum(some.max(axis=2), -some.min(axis=2))
        with np.errstate(invalid="ignore", over="ignore"):
            squares[index] = (some[:, :, None] @ some[..., None])[..., 0, 0]

    each_block(
        flat.shape[:2], look, 4 * NEAR // max(1, flat.shape[2])
    )  # channels that stay in cache, because they are read three times
    with np.errstate(invalid="ignore", over="ignore"):
        total = squares.sum(axis=0)
        found: Flags = ~((LIMIT * largest.max(axis=0) ** 2 <= total) & np.isfinite(total))
    return found
