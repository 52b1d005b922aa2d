"""Epilogue: what follows a convolution's sums, block by block while they are in cache: y = relu(y * scale + shift).

A bias is a shift. BatchNorm of fixed statistics and Scale after a convolution are a scale and a shift, and a ReLU may follow.
As separate steps each would read and write the whole map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike

from minicaffe import loops
from minicaffe.blob import Array
from minicaffe.layers.relu import relu, relu_backward, run_of

from .epilogue_loops import backward, scale_shift_relu

EVERY = slice(None)
SMALL = 2048
"""Numbers up to which NumPy's passes take no longer than the call of a compiled loop."""


@dataclass(frozen=True)
class Epilogue:
    """y = y * scale + shift, channel by channel, and then ReLU with this slope; what is None is left out."""

    scale: Array | None = None  # (M,)
    shift: Array | None = None  # (M,)
    negative_slope: float | None = None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """That of scale and shift, which is one; None without them."""
        return next((array.dtype for array in (self.scale, self.shift) if array is not None), None)

    def __call__(self, y: Array, channels: slice = EVERY) -> None:
        """Apply to y (N, M', *rows) in place, which holds the given M' of the M channels."""
        if y.size > SMALL and loops.compiled() and (places := _places(y)) is not None:
            scale_shift_relu(self.table(channels, y.shape[1], y.dtype), (places[0], 0, *places[1:]), flat(y))
            return
        axes = [1] * (y.ndim - 2)
        if self.scale is not None:
            y *= self.scale[channels].reshape(-1, *axes)
        if self.shift is not None:
            y += self.shift[channels].reshape(-1, *axes)
        if self.negative_slope is not None:
            relu(y, self.negative_slope, out=y)

    def backward(self, y: Array, diff: Array, channels: slice = EVERY) -> None:
        """diff = diff * relu'(y) * scale in place: y and diff (N, M', *rows) hold the given M' of the M channels."""
        if loops.compiled() and (places := _places(diff)) is not None and _places(y) == places:
            backward(flat(y), flat(diff), places, self.table(channels, y.shape[1], y.dtype))
            return
        if self.negative_slope is not None:
            relu_backward(diff, y > 0, self.negative_slope, out=diff)
        if self.scale is not None:
            diff *= self.scale[channels].reshape(-1, *[1] * (y.ndim - 2))

    def table(self, channels: slice, count: int, dtype: DTypeLike) -> Array:
        """Scale, shift and slope of the given channels, `count` in all, (3, count), as compiled loops take them."""
        made: Array = np.empty((3, count), dtype)
        made[0] = 1 if self.scale is None else self.scale[channels]
        made[1] = -0.0 if self.shift is None else self.shift[channels]
        made[2] = 1 if self.negative_slope is None else self.negative_slope
        return made


def _places(y: Array) -> tuple[int, int, int, int, int] | None:
    """How y (N, M, *rows) lies in memory, as the loops take it; None if a channel's numbers do not follow one another."""
    if y.ndim < 2 or not y.size or run_of(y)[0] > 2 or min(y.strides) < 0:
        return None
    return y.shape[0], y.shape[1], y.strides[0] // y.itemsize, y.strides[1] // y.itemsize, math.prod(y.shape[2:])


def flat(y: Array) -> Array:
    """The memory from y's first number to its last, (K,)."""
    if y.flags.c_contiguous:
        return y.reshape(-1)
    last = sum((length - 1) * step for length, step in zip(y.shape, y.strides, strict=True))
    return as_strided(y, (last // y.itemsize + 1,), (y.itemsize,))


NOTHING = Epilogue()


def joined(epilogues: Sequence[Epilogue], dtype: DTypeLike) -> Epilogue:
    """One Epilogue that does what these do one after the other; its arrays are of dtype. Only the last may have a ReLU."""
    if len(epilogues) == 1 and epilogues[0].dtype in (None, dtype):
        return epilogues[0]
    scale = shift = None
    for one in epilogues:
        if one.scale is not None:
            scale = one.scale if scale is None else scale * one.scale
            shift = None if shift is None else shift * one.scale  # (y + shift) * scale = y * scale + shift * scale
        if one.shift is not None:
            shift = one.shift if shift is None else shift + one.shift
    slope = epilogues[-1].negative_slope if epilogues else None  # a ReLU before a scale could not be joined
    return Epilogue(
        None if scale is None else scale.astype(dtype, copy=False),
        None if shift is None else shift.astype(dtype, copy=False),
        slope,
    )
