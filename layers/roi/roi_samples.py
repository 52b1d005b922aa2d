"""Bilinear samples of rois: their positions and, for means, the pixels that they read and their weights.

A place past the outer pixels moves onto them. ROIAlign's mean and PSROIAlign read pixels so; Caffe's ROIAlign does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array

from .operator import RoiOperator
from .roi_geometry import Ints, RoiPlan


class Samples(NamedTuple):
    """The samples of each bin, on the map: the grid h x w; NaN marks a missing sample.

    h (R, PH, KH), w (R, PW, KW). per_bin (R,): the divisor of the sum over a bin's samples.
    """

    h: Array
    w: Array
    per_bin: Array

    def of(self, r: int, ph: int, pw: int) -> tuple[Array, Array]:
        """Return the sample positions h and w of one bin, without the missing ones."""
        h, w = self.h[r, ph], self.w[r, pw]
        return h[~np.isnan(h)], w[~np.isnan(w)]


SamplePlan = RoiPlan[Samples]


def means_by_definition(operator: RoiOperator, x: Array, plan: SamplePlan) -> Array:
    """Return the means (R, C', PH, PW) of the samples of each bin of x (N, C, H, W)."""
    y = np.zeros((len(plan.rois), *operator.bins(x.shape[1])), x.dtype)
    for r, c, ph, pw in np.ndindex(y.shape):
        plane = x[plan.images[r], operator.channel(c, ph, pw)]
        y[r, c, ph, pw] = sum(weight * float(plane[at]) for at, weight in pixels_of_bin(plan, r, ph, pw))
    return y


def means_backward_by_definition(operator: RoiOperator, dy: Array, plan: SamplePlan, dx: Array) -> None:
    """Add dy (R, C', PH, PW) to dx (N, C, H, W) at the pixels that the samples read, with their weights."""
    for r, c, ph, pw in np.ndindex(dy.shape):
        dplane = dx[plan.images[r], operator.channel(c, ph, pw)]
        for at, weight in pixels_of_bin(plan, r, ph, pw):
            dplane[at] += weight * dy[r, c, ph, pw]


def pixels_of_bin(plan: SamplePlan, r: int, ph: int, pw: int) -> Iterator[tuple[tuple[int, int], float]]:
    """Yield ((row, column), weight in the mean) of every pixel that every sample of a bin reads."""
    for h, w in product(*plan.places.of(r, ph, pw)):
        for (row, weight_h), (column, weight_w) in product(_two_pixels(h, plan.size[0]), _two_pixels(w, plan.size[1])):
            yield (row, column), weight_h * weight_w / float(plan.places.per_bin[r])


def _two_pixels(place: float, size: int) -> list[tuple[int, float]]:
    place = min(max(float(place), 0.0), size - 1.0)
    low = int(place)
    return [(low, 1 - (place - low)), (min(low + 1, size - 1), place - low)]


class Taps(NamedTuple):
    """The pixels that samples read along one axis, and their weights, (R, P, 2 * K) each; -1 and 0 for missing samples."""

    pixel: Ints
    weight: Array

    def span(self) -> tuple[list[int], list[int]]:
        """Return each roi's first pixel and one past its last; 0, 0 if it reads none."""
        beyond = np.iinfo(np.int64).max
        end = self.pixel.max(axis=(1, 2), initial=-1) + 1
        # without pixels, end is 0 and below `beyond`
        first = np.where(self.pixel >= 0, self.pixel, beyond).min(axis=(1, 2), initial=beyond)
        return np.minimum(first, end).tolist(), end.tolist()

    def matrices(self, size: int) -> Array:
        """Return the weights as matrices (R, P, size): samples' sum = matrix @ pixels."""
        rois, pooled, _ = self.pixel.shape
        row = np.arange(rois * pooled).reshape(rois, pooled, 1) * size
        used = self.pixel >= 0
        # Adds the weights if several samples read a pixel; float64.
        sums = np.bincount((row + self.pixel)[used], self.weight[used], rois * pooled * size)
        return sums.reshape(rois, pooled, size).astype(self.weight.dtype)


def bilinear_taps(places: Array, size: int) -> Taps:
    """Return the two neighbours of each of positions (R, P, K) along an axis of that size.

    Positions beyond the ends move to them. An axis without pixels has no neighbours.
    """
    used = ~np.isnan(places) & (size > 0)
    inside = np.where(used, places, 0).clip(0, max(size - 1, 0))  # max: an axis of size 0
    low = inside.astype(np.int64)
    fraction = inside - low.astype(places.dtype)
    # at the last pixel both neighbours are equal; the second has weight 0
    index = np.concatenate([low, np.minimum(low + 1, size - 1)], axis=2)
    weight = np.concatenate([1 - fraction, fraction], axis=2)  # (R, P, 2 * K): first all lower neighbours, then all upper ones
    used = np.concatenate([used, used], axis=2)
    return Taps(np.where(used, index, -1), np.where(used, weight, 0))
