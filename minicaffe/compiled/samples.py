"""The pixels that samples read along an axis, listed by a compiled loop: samples that read the same pixel share one weight."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.layers.roi.roi_geometry import Ints
from minicaffe.layers.roi.roi_samples import SamplePlan

PIXEL_TYPES = "int64[:,:,::1], T[:,:,::1], int64[:,::1]"
"""The types of Pixels' arrays."""


class Pixels(NamedTuple):
    """The pixels that samples read along one axis: the first `listed` (R, P) of pixel and weight, both (R, P, 2 * K).

    Samples that read the same pixel share one weight. A weight of 0 stays separate: 0 times an infinite value is NaN.
    """

    pixel: Ints
    weight: Array
    listed: Ints


def listed_samples(plan: SamplePlan) -> tuple[Ints, Array, Ints, Ints, Array, Ints]:
    """Return the arrays of the rows' Pixels, then of the columns' Pixels, whose weights include the divisor."""
    rows, columns = listed_pixels(plan.places.h, plan.size[0]), listed_pixels(plan.places.w, plan.size[1])
    columns.weight[...] /= plan.places.per_bin[:, None, None]
    return *rows, *columns


def listed_pixels(places: Array, size: int) -> Pixels:
    """Return the pixels that samples at places (R, P, K) read along an axis of this size."""
    rois, bins, samples = places.shape
    shape = rois, bins, 2 * samples
    pixels = Pixels(np.empty(shape, np.int64), np.zeros(shape, places.dtype), np.empty(shape[:2], np.int64))
    list_pixels(np.ascontiguousarray(places), size, *pixels)
    return pixels


@loop(f"T[:,:,::1], int64, {PIXEL_TYPES}")
def list_pixels(places: Array, size: int, pixel: Ints, weight: Array, count: Ints) -> None:
    """Fill pixel, weight and count with listed_pixels' result."""
    number = places.dtype.type
    for r in range(places.shape[0]):
        for p in range(places.shape[1]):
            listed = 0
            for k in range(places.shape[2]):
                if np.isnan(places[r, p, k]):
                    continue
                place = min(max(places[r, p, k], number(0)), number(size - 1))
                low = int(place)
                fraction = place - number(low)
                for next_one in range(2):
                    at, of_sample = min(low + next_one, size - 1), fraction if next_one else number(1) - fraction
                    same = -1
                    for j in range(max(listed - 4, 0), listed):  # only the last 4 entries can hold these pixels
                        if pixel[r, p, j] == at and (weight[r, p, j] > 0) == (of_sample > 0):
                            same = j
                    if same < 0:
                        same, listed = listed, listed + 1
                        pixel[r, p, same], weight[r, p, same] = at, 0
                    weight[r, p, same] += of_sample
            count[r, p] = listed
