"""The record of an array in a trace: statistics, a histogram, its maps as small pictures, the values of a small array."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array

BINS = 32
SAMPLED = 2**18
"""The most values that a histogram counts; of more it counts every k-th."""
CHUNK = 2**15
"""Values per pass."""
WHOLE = 8192
"""The most values of a blob that is stored whole."""
MOST_TILES = 256
NOT_FINITE = 255
"""The pixel of a value that is not finite; 0 to 254 stand for low to high."""


@dataclass(frozen=True)
class Statistics:
    """min, mean, max, std: of the finite values, None without any. zeros: their fraction. nan, inf: their numbers."""

    min: float | None
    mean: float | None
    max: float | None
    std: float | None
    zeros: float
    nan: int
    inf: int
    count: int


@dataclass(frozen=True)
class Histogram:
    """counts: the values in each of the equal parts of [low, high]. every: one value in so many was counted."""

    low: float
    high: float
    counts: list[int]
    every: int = 1


@dataclass(frozen=True)
class Tiles:
    """Maps as pictures: pixels (page, h, w) of the first of `channels` maps, all on one scale from low to high.

    0 is on the scale: low is 0 or -high, or high is 0.
    n: the item of the batch. shrunk: the side of the block of values in a pixel. per: for weights, the inputs of each output.
    """

    n: int
    channels: int
    shrunk: int
    per: int
    pixels: NDArray[np.uint8]
    low: float
    high: float


@dataclass(frozen=True)
class Shot:
    """An array at one moment."""

    shape: tuple[int, ...]
    statistics: Statistics
    histogram: Histogram | None
    tiles: Tiles | None
    values: NDArray[np.float32] | None


def shot(array: Array, tile_bytes: int, *, weights: bool = False) -> Shot:
    """The record of array. tile_bytes: the most bytes of its pictures (0: none). weights: (O, I, h, w) instead of maps."""
    found = statistics(array)
    small = array.size <= WHOLE and not weights
    return Shot(
        array.shape,
        found,
        histogram(array, found),
        tiles(array, tile_bytes, weights=weights) if tile_bytes else None,
        array.astype(np.float32) if small and tile_bytes else None,
    )


def statistics(array: Array) -> Statistics:
    """Of any array, also an empty one."""
    count = array.size
    nan = inf = 0
    zeros = 1 - np.count_nonzero(array) / count if count else 0.0
    values = array.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        # One NaN or infinity makes the sum NaN or infinite.
        total = values.sum(dtype=np.float64)
    if not np.isfinite(total):  # cheaper than a look at each
        finite = np.isfinite(values)
        nan = int(np.isnan(values).sum())
        inf = count - int(finite.sum()) - nan
        values = values[finite]
    if not values.size:
        return Statistics(None, None, None, None, zeros, nan, inf, count)
    mean = float(values.mean(dtype=np.float64))
    return Statistics(float(values.min()), mean, float(values.max()), _std(values, mean), zeros, nan, inf, count)


def _std(values: Array, mean: float) -> float:
    """Of a flat array, in parts that fit in the cache: three times as fast as NumPy's."""
    total = 0.0
    with np.errstate(over="ignore"):
        for start in range(0, values.size, CHUNK):
            part = values[start : start + CHUNK].astype(np.float64) - mean
            total += float(np.vdot(part, part))
    return math.sqrt(total / values.size)


def histogram(array: Array, found: Statistics, bins: int = BINS) -> Histogram | None:
    """Of the finite values; None without any."""
    low, high = found.min, found.max
    if low is None or high is None:
        return None
    every = max(1, -(-array.size // SAMPLED))  # ceil
    values = array.reshape(-1)[::every].astype(np.float64)
    if found.nan or found.inf:
        values = values[np.isfinite(values)]
    place = (values - low) * (bins / (high - low) if high > low else 0)
    # the maximum, at place bins, goes in the last bin
    counts = np.bincount(place.astype(np.intp).clip(0, bins - 1), minlength=bins)
    return Histogram(low, high, counts.tolist(), every)


def tiles(array: Array, tile_bytes: int, *, weights: bool = False) -> Tiles | None:
    """The first item's maps of an array (N, C, H, W), or all maps of weights (O, I, h, w), in at most tile_bytes."""
    if array.ndim != 4 or not array.size or array.shape[2] * array.shape[3] < 2:
        return None
    maps = array.reshape(-1, *array.shape[2:]) if weights else array[0]
    channels, height, width = maps.shape
    room = max(tile_bytes // min(channels, 32), 64)  # large enough to recognise: with many channels some are left out instead
    factor = 1
    while -(-height // factor) * -(-width // factor) > room:
        factor += 1
    page = min(channels, MOST_TILES, max(1, tile_bytes // (-(-height // factor) * -(-width // factor))))
    shown = shrunk(maps[:page].astype(np.float64), factor)
    pixels, low, high = on_scale(shown)
    return Tiles(0, channels, factor, array.shape[1] if weights else 1, pixels, low, high)


def shrunk(maps: Array, factor: int) -> Array:
    """maps (C, H, W) -> (C, ceil(H / factor), ceil(W / factor)): means of blocks, smaller at the right and bottom."""
    if factor == 1:
        return maps
    for axis in (1, 2):
        size = maps.shape[axis]
        starts = np.arange(0, size, factor)
        lengths = np.diff([*starts, size]).reshape((-1, 1) if axis == 1 else (1, -1))
        with np.errstate(invalid="ignore", over="ignore"):
            # means of means are exact: all columns of a block are of one height
            maps = np.add.reduceat(maps, starts, axis=axis) / lengths
    return maps


def on_scale(maps: Array) -> tuple[NDArray[np.uint8], float, float]:
    """maps (C, H, W) as bytes, 0 to 254 from low to high, and these: 0 to the greatest value or, of values of both signs, from
    minus the greatest size to it, so that 127 is 0."""
    finite = np.isfinite(maps)
    low, high = (float(bound(maps, initial=0.0, where=finite)) for bound in (np.min, np.max))
    if low < 0 < high:
        high = max(-low, high)
        low = -high
    half = high / 2 - low / 2  # the whole range of float64's extremes would be infinite
    places = (np.where(finite, maps, low) / 2 - low / 2) * (254 / half if half else 0)
    return np.where(finite, np.rint(places), NOT_FINITE).astype(np.uint8), low, high


def colours(pixels: NDArray[np.uint8], low: float, high: float) -> NDArray[np.uint8]:
    """pixels of on_scale as (..., 3) red, green and blue: 0 is black, positive values go over orange to light yellow, negative
    ones over blue to light blue; what is not finite is magenta."""
    largest = max(-low, high) or 1.0
    low, high = low / largest, high / largest
    values = low + pixels.astype(np.float64) * ((high - low) / 254)
    channels = [np.interp(values, PLACES, [stop[i] for stop in STOPS]) for i in range(3)]
    rgb = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    rgb[pixels == NOT_FINITE] = (255, 0, 255)
    return rgb


PLACES = (-1.0, -0.5, 0.0, 0.5, 1.0)
STOPS = ((214, 238, 255), (38, 110, 214), (0, 0, 0), (214, 86, 20), (255, 236, 196))
"""Red, green and blue at PLACES of the greatest size. pictures.js has the same ones."""
