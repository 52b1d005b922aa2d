"""Contrast-limited adaptive histogram equalisation (CLAHE), as OpenCV computes it.

    each of 8 x 8 tiles: a histogram, clipped at clip * area / 256, the excess distributed over all levels -> its cumulative sum
    each pixel: the tables of the four nearest tiles, interpolated bilinearly

Source: Zuiderveld, Contrast Limited Adaptive Histogram Equalization (Graphics Gems IV, 1994); OpenCV's clahe.cpp, whose bytes
this reproduces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .augmentation import as_bytes

Array = NDArray[Any]
Levels = NDArray[np.uint8]
TILES = 8


def equalised_by_tiles(levels: Levels, clip: float = 4.0) -> Levels:
    """levels (H, W), equalised. clip: a level's maximum count, relative to a uniform histogram."""
    height, width = levels.shape
    uneven = height % TILES or width % TILES
    # As in OpenCV, an even axis gets a whole 8 more where the other is uneven.
    more = [(0, TILES - size % TILES if uneven else 0) for size in (height, width)]
    tables, high, wide = tile_tables(np.pad(levels, more, "reflect"), clip)
    upper, lower, part = _around(height, high)
    left, right, x_part = _around(width, wide)
    down = part[:, None]
    rows = []
    for row in (upper, lower):
        at = [tables[row[:, None], column[None, :], levels].astype(np.float32) for column in (left, right)]
        rows.append(at[0] * (1 - x_part) + at[1] * x_part)
    return as_bytes(rows[0] * (1 - down) + rows[1] * down)


def tile_tables(levels: Levels, clip: float) -> tuple[Levels, int, int]:
    """The new levels (TILES, TILES, 256) in each tile of levels (H, W, multiples of TILES), and a tile's height and width."""
    high, wide = (size // TILES for size in levels.shape)
    tile = (np.arange(levels.shape[0]) // high)[:, None] * TILES + np.arange(levels.shape[1]) // wide
    counts = np.bincount((tile * 256 + levels).ravel(), minlength=TILES * TILES * 256).reshape(-1, 256)
    counts = clipped(counts, max(int(clip * high * wide / 256), 1))
    scale = np.float32(255) / np.float32(high * wide)
    return as_bytes(counts.cumsum(axis=1).astype(np.float32) * scale).reshape(TILES, TILES, 256), high, wide


def clipped(counts: Array, limit: int) -> Array:
    """Histograms (n, 256) clipped at limit, the excess distributed evenly and its remainder, one each, at equal steps."""
    excess = np.maximum(counts - limit, 0).sum(axis=1, keepdims=True)
    rest = excess % 256
    step = np.maximum(256 // np.maximum(rest, 1), 1)
    levels = np.arange(256)
    result: Array = np.minimum(counts, limit) + excess // 256 + ((levels % step == 0) & (levels // step < rest))
    return result


def _around(count: int, size: int) -> tuple[Array, Array, Array]:
    """For each of count pixels the tiles with the nearest centres before and after it, and its position between them."""
    # tiles' centres at 0, 1, ...
    at = np.arange(count, dtype=np.float32) * (np.float32(1) / np.float32(size)) - np.float32(0.5)
    low = np.floor(at).astype(np.int64)
    return np.maximum(low, 0), np.minimum(low + 1, TILES - 1), (at - low).astype(np.float32)
