"""Im2col: every window of the bottom as one column.

    y[n, (c, taps), o] = x[n, c, o * stride - pad + taps * dilation]      (0 outside the map)
Source: Caffe's im2col_layer.cpp and util/im2col.cpp.
"""

# Convolution and Deconvolution are built on these functions.

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from minicaffe.blob import Array, Blob
from minicaffe.cuda import convolution as gpu
from minicaffe.layer import Costs, Layer, Unary, data_bytes
from minicaffe.reads import UNREAD, Axis
from minicaffe.threads import Scratch

from .window import Window, checked_output, folded, read_window

Index = tuple[Any, ...]


class Im2col(Unary):
    """The windows of x, unrolled.

    bottom: x (N, C, *map). top: y (N, C * kernel size, *windows). convolution_param.axis is C's axis.
    Raises LayerError when the window is invalid or does not fit the map.
    """

    type = "Im2col"
    param_block = ("convolution_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.axis = channel_axis(self, bottom[0])
        self.window = read_window(self, len(bottom[0].shape) - self.axis - 1)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        output = checked_output(self, self.window, shape[self.axis + 1 :])
        top[0].reshape(*shape[: self.axis], shape[self.axis] * math.prod(self.window.kernel), *output)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(working=data_bytes(top))

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        if b != t:  # each bottom has its own top
            return (UNREAD,) * len(bottom[b].shape[2:])
        return self.window.reads() if self.axis == 1 else None

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        columns = im2col(folded(bottom[0].data, self.axis), self.window)
        top[0].data[...] = columns.reshape(top[0].shape)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(self.window.kernel) > gpu.MOST_AXES:
            super().forward_gpu(bottom, top)
        else:
            gpu.im2col(self._maps_gpu(bottom[0]), bottom[0].device_data("read"), top[0].device_data("write"))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            dx = folded(bottom[0].diff, self.axis)

            columns = top[0].diff.reshape(*dx.shape[:2], *self.window.kernel, *self.window.output(dx.shape[2:]))
            dx[...] = col2im(columns, self.window, dx.shape[2:])

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if len(self.window.kernel) > gpu.MOST_AXES:
            super().backward_gpu(top, propagate_down, bottom)
        elif propagate_down[0]:
            gpu.col2im(self._maps_gpu(bottom[0]), top[0].device_diff("read"), bottom[0].device_diff("write"))

    def _maps_gpu(self, x: Blob) -> gpu.Maps:
        count, channels = math.prod(x.shape[: self.axis]), x.shape[self.axis]
        return gpu.Maps(self.dtype, self.window, 1, count, channels, 0, x.shape[self.axis + 1 :])


def channel_axis(layer: Layer, bottom: Blob) -> int:
    """Return convolution_param.axis counted from the front. At least one spatial axis must follow it."""
    axis, axes = layer.param.convolution_param.axis, len(bottom.shape)
    if layer.axis_of(axis, bottom, "convolution_param.axis") == axes - 1:
        raise layer.error(
            f"axis {axis} must have spatial axes after it, the bottom's shape is {bottom.shape}", "convolution_param.axis"
        )
    return axis % axes


def im2col(x: Array, window: Window) -> Array:
    """Return the columns (N, C, *kernel, *windows) of x (N, C, *map)."""
    return np.ascontiguousarray(np.moveaxis(windows_of(padded(x, window), window), 1 + len(window.kernel), 0))


def col2im(columns: Array, window: Window, spatial: Sequence[int]) -> Array:
    """Return x (N, C, *spatial): columns (N, C, *kernel, *windows) added to their pixels; im2col's transpose."""
    n, channels = columns.shape[:2]
    x = _zeros((n, channels), spatial, window, columns.dtype)
    add_windows(np.moveaxis(columns, 0, 1 + len(window.kernel)), window, x)
    return inside(x, window, spatial)


def _zeros(maps: Sequence[int], spatial: Sequence[int], window: Window, dtype: Any) -> Array:
    """Return zeros for maps and the window's border around them. Raises LimitError above limits.bytes."""
    # Scratch checks the limit: padding can ask for any size.
    zeros = Scratch(dtype)("padded", *maps, *(s + 2 * p for s, p in zip(spatial, window.pad)))
    zeros[...] = 0
    return zeros


def padded(x: Array, window: Window) -> Array:
    """Return x (N, C, *map) with the window's border of zeros around the map; x itself when there is none."""
    if not any(window.pad):
        return x
    spatial = x.shape[2:]
    y = _zeros(x.shape[:2], spatial, window, x.dtype)
    inside(y, window, spatial)[...] = x
    return y


def inside(x: Array, window: Window, spatial: Sequence[int]) -> Array:
    """Return a padded x (N, C, *padded) without its border: a view (N, C, *spatial)."""
    index: Index = (..., *(slice(p, p + s) for s, p in zip(spatial, window.pad)))
    return x[index]


def windows_of(x: Array, window: Window) -> Array:
    """Return every window of a padded x (N, C, *padded) as a view (C, *kernel, N, *windows). Do not write to it."""
    step_n, step_c, *steps = x.strides
    output = tuple((n - e) // s + 1 for n, e, s in zip(x.shape[2:], window.extent, window.stride))
    return as_strided(
        x,
        (x.shape[1], *window.kernel, x.shape[0], *output),
        (step_c, *map(int.__mul__, steps, window.dilation), step_n, *map(int.__mul__, steps, window.stride)),
        writeable=False,  # windows overlap: a write would change several
    )


def add_windows(columns: Array, window: Window, x: Array) -> None:
    """Add columns (C, *kernel, N, *windows) to their pixels of the padded x (N, C, *padded)."""
    output = columns.shape[-len(window.kernel) :]
    taps = np.moveaxis(columns, 1 + len(window.kernel), 0)
    for tap in itertools.product(*map(range, window.kernel)):
        of_tap: Index = (slice(None), slice(None), *tap)
        x[pixels_of_tap(tap, output, window)] += taps[of_tap]


def pixels_of_tap(tap: Sequence[int], output: Sequence[int], window: Window) -> Index:
    """Return the index of the pixels of a padded x (..., *padded) under one tap of all windows."""
    starts = [t * d for t, d in zip(tap, window.dilation)]
    return (..., *(slice(a, a + s * (n - 1) + 1, s) for a, n, s in zip(starts, output, window.stride)))
