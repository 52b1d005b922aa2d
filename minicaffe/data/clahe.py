"""Contrast-limited adaptive histogram equalisation (CLAHE), as OpenCV computes it.

    each of 8 x 8 tiles: histogram, cut at clip * area / 256 and what was cut spread over all levels -> its running sum, a table
    each pixel: the tables of the four tiles whose centres are around it, bilinearly

Source: Zuiderveld, Contrast Limited Adaptive Histogram Equalization (Graphics Gems IV, 1994); OpenCV's clahe.cpp, of which
this gives the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Levels = NDArray[np.uint8]
TILES = 8


def equalised_by_tiles(levels: Levels, clip: float = 4.0) -> Levels:
    """levels (H, W), equalised; clip: how many times its even share a level may count."""
    height, width = levels.shape
    uneven = height % TILES or width % TILES
    more = [(0, TILES - size % TILES if uneven else 0) for size in (height, width)]
    tables, high, wide = tile_tables(np.pad(levels, more, "reflect"), clip)
    upper, lower, part = _around(height, high)
    left, right, x_part = _around(width, wide)
    down = part[:, None]
    rows = []
    for row in (upper, lower):
        at = [tables[row[:, None], column[None, :], levels].astype(np.float32) for column in (left, right)]
        rows.append(at[0] * (1 - x_part) + at[1] * x_part)
    return _bytes(rows[0] * (1 - down) + rows[1] * down)


def tile_tables(levels: Levels, clip: float) -> tuple[Levels, int, int]:
    """For each tile of levels (H, W, multiples of TILES) what becomes of each level (TILES, TILES, 256); a tile's size."""
    high, wide = (size // TILES for size in levels.shape)
    tile = (np.arange(levels.shape[0]) // high)[:, None] * TILES + np.arange(levels.shape[1]) // wide
    counts = np.bincount((tile * 256 + levels).ravel(), minlength=TILES * TILES * 256).reshape(-1, 256)
    counts = clipped(counts, max(int(clip * high * wide / 256), 1))
    scale = np.float32(255) / np.float32(high * wide)
    return _bytes(counts.cumsum(axis=1).astype(np.float32) * scale).reshape(TILES, TILES, 256), high, wide


def clipped(counts: Array, limit: int) -> Array:
    """Histograms (n, 256) cut at limit, and what was cut spread evenly; the rest of that, one each, at even steps."""
    cut = np.maximum(counts - limit, 0).sum(axis=1, keepdims=True)
    rest = cut % 256
    step = np.maximum(256 // np.maximum(rest, 1), 1)
    levels = np.arange(256)
    spread: Array = np.minimum(counts, limit) + cut // 256 + ((levels % step == 0) & (levels // step < rest))
    return spread


def _around(count: int, size: int) -> tuple[Array, Array, Array]:
    """For each of count pixels the tiles of this size whose centres are before and after it, and how far on it lies."""
    at = np.arange(count, dtype=np.float32) * (np.float32(1) / np.float32(size)) - np.float32(0.5)
    low = np.floor(at).astype(np.int64)
    return np.maximum(low, 0), np.minimum(low + 1, TILES - 1), (at - low).astype(np.float32)


def _bytes(values: Array) -> Levels:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
