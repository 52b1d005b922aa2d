"""Epilogue as loops: one pass over a block in place of three."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.loops import loop

at = np.uint64
"""An index that is not negative: Numba then does not look whether it counts from the end."""


@loop("T[:,::1], UniTuple(int64, 6), T[::1]", in_calls=True)
def scale_shift_relu(after: Array, place: tuple[int, int, int, int, int, int], y: Array) -> None:
    """v = y * scale + shift, then v or, where v < 0, slope * v; in place. after (3, M): scale, shift, slope of each channel.

    place: images; which of the M is the first in y, and how many there are; how far an image, and a channel, is from the next
    in y; numbers of a channel, one after another.
    """
    images, first, channels, next_image, next_channel, count = place
    for n in range(images):
        for m in range(channels):
            scale, shift, slope = after[0, first + m], after[1, first + m], after[2, first + m]
            start = n * next_image + m * next_channel
            zero = y.dtype.type(0)
            for k in range(count):
                value = y[at(start + k)] * scale + shift
                below = zero if slope == zero else value * slope  # -inf * 0 would be NaN
                y[at(start + k)] = below if value < zero else value


@loop("T[::1], T[:,::1], T[::1], UniTuple(int64, 4)", in_calls=True)
def scale_shift_relu_planes(x: Array, after: Array, y: Array, part: tuple[int, int, int, int]) -> None:
    """Of y (N, M, count), which is not x, some planes: what scale_shift_relu makes of x.

    part: the first plane, the one behind the last, M, count.
    """
    first, last, channels, count = part
    zero = y.dtype.type(0)
    for plane in range(first, last):
        m, start = plane % channels, plane * count
        scale, shift, slope = after[0, m], after[1, m], after[2, m]
        for k in range(count):
            value = x[at(start + k)] * scale + shift
            below = zero if slope == zero else value * slope
            y[at(start + k)] = below if value < zero else value


PASSES = scale_shift_relu, scale_shift_relu_planes
"""What BatchNorm of fixed statistics, Scale, Bias and ReLU run where no layer before them does."""


@loop("T[::1], T[::1], UniTuple(int64, 5), T[:,::1]")
def backward(y: Array, diff: Array, place: tuple[int, int, int, int, int], after: Array) -> None:
    """diff * scale, and where y is not above 0 * slope; in place. Of after (3, M) the shift is not read."""
    images, channels, next_image, next_channel, count = place
    for n in range(images):
        for m in range(channels):
            scale, slope, start = after[0, m], after[2, m], n * next_image + m * next_channel
            zero = y.dtype.type(0)
            for k in range(count):
                dy = diff[at(start + k)]
                dy = dy if y[at(start + k)] > zero else dy * slope
                diff[at(start + k)] = dy * scale
