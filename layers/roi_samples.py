"""Bilinear samples of rois: where they lie, and which pixels they read with which weight."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .roi_geometry import Array, Ints


class Samples(NamedTuple):
    """Where each bin is sampled, on the map: the grid h x w; NaN marks a place left out.

    h (R, PH, KH), w (R, PW, KW). per_bin (R,): what the sum over a bin's samples is divided by.
    """

    h: Array
    w: Array
    per_bin: Array


class Taps(NamedTuple):
    """The pixels that samples read along one axis, and their weights: both (R, P, 2 * K); -1 and 0 where left out."""

    pixel: Ints
    weight: Array

    def span(self) -> tuple[list[int], list[int]]:
        """The first pixel that each roi reads, and one past the last; 0, 0 when there is none."""
        beyond = np.iinfo(np.int64).max
        end = self.pixel.max(axis=(1, 2), initial=-1) + 1
        first = np.where(self.pixel >= 0, self.pixel, beyond).min(axis=(1, 2), initial=beyond)
        return np.minimum(first, end).tolist(), end.tolist()

    def matrices(self, size: int) -> Array:
        """The weights as matrices (R, P, size): samples' sum = matrix @ pixels."""
        rois, pooled, _ = self.pixel.shape
        row = np.arange(rois * pooled).reshape(rois, pooled, 1) * size
        used = self.pixel >= 0
        sums = np.bincount((row + self.pixel)[used], self.weight[used], rois * pooled * size)
        matrices: Array = sums.reshape(rois, pooled, size).astype(self.weight.dtype)
        return matrices


def bilinear_taps(places: Array, size: int) -> Taps:
    """places (R, P, K) -> the two neighbours of each along an axis of that size; places beyond the ends move to them, and an
    axis without pixels has none."""
    used = ~np.isnan(places) & (size > 0)
    inside = np.where(used, places, 0).clip(0, max(size - 1, 0))
    low = inside.astype(np.int64)
    share = inside - low.astype(places.dtype)
    index = np.concatenate([low, np.minimum(low + 1, size - 1)], axis=2)
    weight = np.concatenate([1 - share, share], axis=2)
    used = np.concatenate([used, used], axis=2)
    return Taps(np.where(used, index, -1), np.where(used, weight, 0))
