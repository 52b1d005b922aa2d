"""Sums over position-sensitive bins: differences of an integral image, or bin by bin where that would lose digits.

The integral image is float64: its rounding is below H * W * 2^-53 of the map's largest value. Maps where that could be
seen (a value not finite, or MAX_PEAK times the median magnitude) are added up bin by bin.
"""

from __future__ import annotations

import numpy as np

from .psroi_layer import bin_slices, grouped
from .roi_geometry import Array, Bins, Ints

MAX_PEAK = 1e5
SAMPLE = 4096


def bin_sums(x: Array, images: Ints, bins: Bins) -> Array:
    """Sums (R, D, G, G) over the bins of x (N, D * G * G, H, W), roi r in image images[r]."""
    return sums_by_integral(x, images, bins) if is_even(x) else sums_by_pixels(x, images, bins)


def is_even(x: Array) -> bool:
    """Whether x is finite and no value is more than MAX_PEAK times the median magnitude (of about SAMPLE values)."""
    if not x.size:
        return False
    peak = max(float(x.max()), -float(x.min()))
    middle = float(np.median(np.abs(x.reshape(-1)[:: x.size // SAMPLE + 1])))
    return np.isfinite(peak) and peak <= MAX_PEAK * middle


def sums_by_integral(x: Array, images: Array, bins: Bins) -> Array:
    """Sums (R, D, G, G) over the bins of x (N, D * G * G, H, W), by four lookups each."""
    n, c, h, w = x.shape
    integral = np.zeros((n, c, h + 1, w + 1))
    np.cumsum(x, axis=3, dtype=np.float64, out=integral[:, :, 1:, 1:])
    np.cumsum(integral[:, :, 1:, 1:], axis=2, out=integral[:, :, 1:, 1:])
    group = bins.hstart.shape[1]
    plane = images[:, None] * c + np.arange(c)
    plane = plane.reshape(-1, c // group**2, group, group) * ((h + 1) * (w + 1))
    flat = integral.reshape(-1)
    top = plane + (bins.hstart * (w + 1))[:, None, :, None]
    bottom = plane + (bins.hend * (w + 1))[:, None, :, None]
    left, right = bins.wstart[:, None, None, :], bins.wend[:, None, None, :]
    sums = flat[bottom + right] - flat[bottom + left] - flat[top + right] + flat[top + left]
    empty = (bins.hend <= bins.hstart)[:, None, :, None] | (bins.wend <= bins.wstart)[:, None, None, :]
    return np.where(empty, 0, sums)


def sums_by_pixels(x: Array, images: Array, bins: Bins) -> Array:
    """Sums (R, D, G, G) over the bins of x (N, D * G * G, H, W), bin by bin."""
    group = bins.hstart.shape[1]
    maps = grouped(x, group)
    sums = np.zeros((len(images), x.shape[1] // group**2, group, group))
    for r, gh, gw, rows, columns in bin_slices(bins):
        sums[r, :, gh, gw] = maps[images[r], gh, gw, rows, columns].sum(axis=(0, 1), dtype=np.float64)
    return sums
