"""Epilogue: the last steps of a convolution, applied to each block in cache: y = relu(y * scale + shift).

A bias is a shift. BatchNorm of fixed statistics and Scale after a convolution are a scale and a shift, and a ReLU may follow.
As separate steps each would read and write the whole map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Array, Blob
from minicaffe.kernels import kernel
from minicaffe.threads import Index, each_block

from .channels import by_channel

EVERY = slice(None)

ROW = 1 << 12
"""The number of zeros that are kept. NumPy takes the maximum of two arrays faster than that of an array and a number."""

_zeros: dict[np.dtype[Any], Array] = {}


@dataclass(frozen=True)
class Epilogue:
    """y = y * scale + shift for each channel, then ReLU with this slope. Steps that are None are skipped."""

    scale: Array | None = None  # (M,)
    shift: Array | None = None  # (M,)
    negative_slope: float | None = None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Return the common dtype of scale and shift, or None without them."""
        return next((array.dtype for array in (self.scale, self.shift) if array is not None), None)

    def __call__(self, y: Array, channels: slice = EVERY) -> None:
        """Apply the epilogue in place to y (N, M', *rows), which holds the given M' of the M channels."""
        scale_shift_relu(self, y, channels)

    def backward(self, y: Array, diff: Array, channels: slice = EVERY) -> None:
        """Compute diff = diff * relu'(y) * scale in place.

        y and diff (N, M', *rows) hold the given M' of the M channels.
        """
        scale_shift_relu_backward(self, y, diff, channels)


@kernel
def scale_shift_relu(epilogue: Epilogue, y: Array, channels: slice) -> None:
    axes = [1] * (y.ndim - 2)
    if epilogue.scale is not None:
        y *= epilogue.scale[channels].reshape(-1, *axes)
    if epilogue.shift is not None:
        y += epilogue.shift[channels].reshape(-1, *axes)
    if epilogue.negative_slope is not None:
        relu(y, epilogue.negative_slope, out=y)


@kernel
def scale_shift_relu_backward(epilogue: Epilogue, y: Array, diff: Array, channels: slice) -> None:
    if epilogue.negative_slope is not None:
        relu_backward(diff, y > 0, epilogue.negative_slope, out=diff)
    if epilogue.scale is not None:
        diff *= epilogue.scale[channels].reshape(-1, *[1] * (y.ndim - 2))


NOTHING = Epilogue()


def joined(epilogues: Sequence[Epilogue], dtype: DTypeLike) -> Epilogue:
    """Return one Epilogue, with arrays of dtype, that does these one after another. Only the last may have a ReLU."""
    if len(epilogues) == 1 and epilogues[0].dtype in (None, dtype):
        return epilogues[0]
    scale = shift = None
    for one in epilogues:
        if one.scale is not None:
            scale = one.scale if scale is None else scale * one.scale
            shift = None if shift is None else shift * one.scale  # (y + shift) * scale = y * scale + shift * scale
        if one.shift is not None:
            shift = one.shift if shift is None else shift + one.shift
    # only the last epilogue can have a ReLU: one before a scale could not be joined
    slope = epilogues[-1].negative_slope if epilogues else None
    return Epilogue(
        None if scale is None else scale.astype(dtype, copy=False),
        None if shift is None else shift.astype(dtype, copy=False),
        slope,
    )


@kernel
def epilogue_step(x: Blob, y: Blob, epilogue: Epilogue) -> Callable[[], None]:
    """Return a function that applies the epilogue to x, into y (N, M, ...), valid while the shape stays the same.

    y has x's shape and may be x. A ReLU accepts any shape.
    """
    return partial(_by_blocks, x, y, epilogue)


def _by_blocks(bottom: Blob, top: Blob, epilogue: Epilogue) -> None:
    x, y = by_channel(bottom.data), by_channel(top.data)

    def step(index: Index) -> None:
        if top is not bottom:
            y[index] = x[index]  # the epilogue then works in place, on a block still in cache
        epilogue(y[index], index[1])

    each_block(y.shape, step)


def relu(x: Array, negative_slope: float = 0.0, out: Array | None = None) -> Array:
    """Return y = ReLU(x), in out if given. out may be x."""
    y = np.empty_like(x) if out is None else out
    if negative_slope == 0:
        _positive_part(x, y)
        return y
    choose = np.maximum if negative_slope <= 1 else np.minimum  # with a slope above 1, the line for negative x is the lower one
    return choose(x, x * negative_slope, out=y)


def _positive_part(x: Array, y: Array) -> None:
    """Compute y = max(x, 0), in rows of ROW numbers as far as the arrays are contiguous."""
    axis, run = run_of(x, y)
    if run < 32:
        np.maximum(x, 0, out=y)
        return
    x, y, whole = x.reshape(*x.shape[:axis], run), y.reshape(*y.shape[:axis], run), run - run % ROW
    zeros = _zeros.setdefault(x.dtype, np.zeros(ROW, x.dtype))
    if whole:
        rows = (*x.shape[:-1], whole // ROW, ROW)
        # Splitting an axis always gives a view, so this writes to y.
        np.maximum(x[..., :whole].reshape(rows), zeros, out=y[..., :whole].reshape(rows))
    if run > whole:
        np.maximum(x[..., whole:], zeros[: run - whole], out=y[..., whole:])


def run_of(*arrays: Array) -> tuple[int, int]:
    """Return the first axis from which all arrays (of one shape) are contiguous, and the run's length."""
    axis, run = arrays[0].ndim, 1
    while axis and all(a.shape[axis - 1] == 1 or a.strides[axis - 1] == run * a.itemsize for a in arrays):
        axis -= 1
        run *= arrays[0].shape[axis]
    return axis, run


def relu_backward(dy: Array, positive: Array, negative_slope: float = 0.0, out: Array | None = None) -> Array:
    """Return dx, in out if given. positive: x > 0, of dy's shape. out may be dy."""
    if negative_slope == 0:
        return np.multiply(dy, positive, out=out)
    factor: Array = ~positive * dy.dtype.type(negative_slope)  # the slope applies at 0 too
    factor += positive
    return np.multiply(dy, factor, out=out)
