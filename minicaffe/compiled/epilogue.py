"""The epilogue by loops: one pass over a block instead of three."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike

from minicaffe.blob import Array, Blob
from minicaffe.compiled.jit import DynamicArray, loop
from minicaffe.compiled.jobs import LEAST, BlobJob, Calls, Job, KeptStep
from minicaffe.kernels import provides
from minicaffe.layers.elementwise import epilogue as kernels
from minicaffe.layers.elementwise.epilogue import EVERY, Epilogue, epilogue_step, run_of
from minicaffe.threads import get_num_threads, parts

SMALL = 2048
"""Most numbers for which NumPy's passes take no longer than the call of a compiled loop."""

at = np.uint64
"""An unsigned index, for which Numba does not check whether it counts from the end."""


@loop("T[:,::1], UniTuple(int64, 6), T[::1]", in_calls=True)
def scale_shift_relu(after: Array, place: tuple[int, int, int, int, int, int], y: Array) -> None:
    """Compute v = y * scale + shift, then v or, where v < 0, slope * v; in place.

    after (3, M): scale, shift, slope of each channel.

    place: the number of images; the first channel of y, of the M, and the number of channels; the distance from an image to the
    next, and from a channel to the next; the contiguous numbers of a channel.
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
    """Compute some planes of y (N, M, count) from x, which is other memory, as scale_shift_relu does.

    part: the first plane, one past the last, M, count.
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


@loop("T[::1], T[::1], UniTuple(int64, 5), T[:,::1]")
def backward(y: Array, diff: Array, place: tuple[int, int, int, int, int], after: Array) -> None:
    """Multiply diff by scale, and where y <= 0 by slope; in place. after (3, M): its shift is not read."""
    images, channels, next_image, next_channel, count = place
    for n in range(images):
        for m in range(channels):
            scale, slope, start = after[0, m], after[2, m], n * next_image + m * next_channel
            zero = y.dtype.type(0)
            for k in range(count):
                dy = diff[at(start + k)]
                dy = dy if y[at(start + k)] > zero else dy * slope
                diff[at(start + k)] = dy * scale


def table(epilogue: Epilogue, channels: slice, count: int, dtype: DTypeLike) -> Array:
    """Return scale, shift and slope (3, count) of the given channels, `count` in all, for compiled loops."""
    made: Array = np.empty((3, count), dtype)
    made[0] = 1 if epilogue.scale is None else epilogue.scale[channels]
    made[1] = -0.0 if epilogue.shift is None else epilogue.shift[channels]
    made[2] = 1 if epilogue.negative_slope is None else epilogue.negative_slope
    return made


def places_of(y: Array) -> tuple[int, int, int, int, int] | None:
    """Return the layout of y (N, M, *rows) in memory, for the loops.

    None if a channel's numbers are not contiguous.
    """
    if y.ndim < 2 or not y.size or run_of(y)[0] > 2 or min(y.strides) < 0:
        return None
    return y.shape[0], y.shape[1], y.strides[0] // y.itemsize, y.strides[1] // y.itemsize, math.prod(y.shape[2:])


def flat(y: Array) -> Array:
    """Return the memory from y's first number to its last, (K,)."""
    if y.flags.c_contiguous:
        return y.reshape(-1)
    last = sum((length - 1) * step for length, step in zip(y.shape, y.strides, strict=True))
    return as_strided(y, (last // y.itemsize + 1,), (y.itemsize,))


@provides(kernels.scale_shift_relu, loops=(scale_shift_relu,))
def scale_shift_relu_by_loops(epilogue: Epilogue, y: Array, channels: slice) -> None:
    places = places_of(y) if y.size > SMALL else None
    if places is None:
        kernels.scale_shift_relu.by_numpy(epilogue, y, channels)
    else:
        scale_shift_relu(table(epilogue, channels, y.shape[1], y.dtype), (places[0], 0, *places[1:]), flat(y))


@provides(kernels.scale_shift_relu_backward, loops=(backward,))
def backward_by_loops(epilogue: Epilogue, y: Array, diff: Array, channels: slice) -> None:
    places = places_of(diff)
    if places is None or places_of(y) != places:
        kernels.scale_shift_relu_backward.by_numpy(epilogue, y, diff, channels)
    else:
        backward(flat(y), flat(diff), places, table(epilogue, channels, y.shape[1], y.dtype))


@provides(epilogue_step, loops=(scale_shift_relu, scale_shift_relu_planes))
def epilogue_step_by_loops(x: Blob, y: Blob, epilogue: Epilogue) -> Callable[[], None]:
    if y.dtype != x.dtype or not y.count:
        return epilogue_step.by_numpy(x, y, epilogue)
    by_number = epilogue.dtype is None and (y is x or len(y.shape) < 2)
    images, channels, *rest = (1, 1, y.count) if by_number else y.shape
    sizes, after = (images, channels, math.prod(rest)), table(epilogue, EVERY, channels, y.dtype)
    if y is x:
        return KeptStep([BlobJob(Job(_calls_in_place(*sizes, y.dtype, get_num_threads())), (after,), y, "update")])
    return KeptStep([BlobJob(Job(_calls(*sizes, y.dtype, get_num_threads())), (x, after), y)])


@lru_cache(maxsize=512)
def _calls_in_place(images: int, channels: int, count: int, dtype: np.dtype[Any], threads: int) -> Calls:
    after, image, calls = DynamicArray(0, (3, channels)), channels * count, []
    if images * channels == 1:
        for part in parts(count, LEAST, 2, threads):
            length = part.stop - part.start
            calls.append((after, (1, 0, 1, length, length, length), DynamicArray(part.start, (length,))))
    else:
        for part in parts(channels, LEAST // (images * count), 2, threads):
            some, whole = part.stop - part.start, (images - 1) * image
            place = images, part.start, some, image, count, count
            calls.append((after, place, DynamicArray(part.start * count, (whole + some * count,))))
    return Calls(scale_shift_relu, dtype, calls)


@lru_cache(maxsize=512)
def _calls(images: int, channels: int, count: int, dtype: np.dtype[Any], threads: int) -> Calls:
    planes = images * channels
    map_, after = DynamicArray(0, (planes * count,)), DynamicArray(0, (3, channels))
    some = parts(planes, max(1, LEAST // max(1, count)), 2, threads)
    calls = [(map_, after, map_, (part.start, part.stop, channels, count)) for part in some]
    return Calls(scale_shift_relu_planes, dtype, calls)
