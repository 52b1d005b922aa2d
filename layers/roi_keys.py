"""What maxima over rois are taken of: values, or integer keys whose maximum says where the first maximum of the values is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .roi_geometry import LOWEST, Array

PIXEL_BITS = 31
"""Low bits of a key: the pixel, counted from the last; a blob has fewer than 2^31 elements."""


class Values:
    """The values themselves; an empty bin's is 0."""

    empty: float = 0.0

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.itemsize = dtype.itemsize

    def of(self, x: Array) -> Array:
        return channels_last(x)

    def read(self, maxima: Array) -> Array:
        return maxima


class Keys:
    """Keys that order (value, earlier pixel) on a map of so many pixels, read as the pixel; an empty bin's is -1."""

    itemsize = 8

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels
        self.empty: float = never(pixels)

    def of(self, x: Array) -> Array:
        return ordered_keys(channels_last(x))

    def read(self, maxima: Array) -> Array:
        return pixels_of(maxima, self.pixels)


def channels_last(x: Array) -> Array:
    """x (C, H, W) -> a copy (H * W, C) in which NaN and -inf have become -FLT_MAX, so that they never win."""
    copy = np.empty((x.shape[1] * x.shape[2], len(x)), x.dtype)
    copy[...] = x.reshape(copy.shape[::-1]).T
    np.fmax(copy, x.dtype.type(LOWEST), out=copy)
    return copy


def ordered_keys(x: Array) -> NDArray[np.int64]:
    """x (H * W, C) without NaN -> keys of the same shape: greater for a greater value, then for an earlier pixel.

    -FLT_MAX, which NaN and -inf have become, gets never(H * W).
    """
    keys: NDArray[np.int64]
    if x.dtype == np.float32:
        bits = (x + np.float32(0)).view(np.int32)  # + 0 makes -0.0 equal to 0.0
        keys = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(np.int64)
    else:
        keys = np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int64)
    keys <<= PIXEL_BITS
    keys |= np.arange(len(x) - 1, -1, -1)[:, None]
    keys[x <= LOWEST] = never(len(x))
    return keys


def never(pixels: int) -> int:
    """The key of what never wins on a map with that many pixels: below every other, and its pixel is -1."""
    return (-(2**31) << PIXEL_BITS) + pixels


def pixels_of(keys: NDArray[np.int64], pixels: int) -> NDArray[np.int32]:
    """The pixel (h * W + w) of each key of a map with that many pixels; -1 for what never wins."""
    from_last = keys.astype(np.int32)  # the low 32 bits
    from_last &= 2**PIXEL_BITS - 1
    np.subtract(np.int32(pixels - 1), from_last, out=from_last)
    return from_last
