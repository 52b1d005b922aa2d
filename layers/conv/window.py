"""The sliding window of a convolution, and convolution by its definition. Read this module first.

    output = floor((input + 2 pad - (dilation (kernel - 1) + 1)) / stride) + 1
    y[n, m, o] = sum over c, t of weight[m, c, t] * x[n, first + c, o * stride - pad + t * dilation]

n is an image, m a filter, o a window and t a tap of the kernel: o and t have an index for each spatial axis. c runs over the
channels of the filter's group, which begin at `first`. A pixel outside the map is 0.

Each product of this sum joins one weight, one pixel and one window. So the gradients are sums over the same triples:

    dx[pixel] = sum of weight * dy[window]          dweight[weight] = sum of dy[window] * x[pixel]

All other modules of this folder compute the same numbers faster. DeepLab's first Caffe calls the dilation hole.
Source: Caffe's base_conv_layer.cpp, LayerSetUp and compute_output_shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from google.protobuf.message import Message

from minicaffe.blob import Array
from minicaffe.formats.values import ONE_FOR_EACH_AXIS
from minicaffe.layer import Layer
from minicaffe.reads import Axis

PAIRS = {"kernel_size": ("kernel_h", "kernel_w"), "stride": ("stride_h", "stride_w"), "pad": ("pad_h", "pad_w")}
"""Fields of one axis each, for two spatial axes; dilation has none."""

HOLES: tuple[Literal["hole", "hole_h", "hole_w"], ...] = ("hole", "hole_h", "hole_w")

Index = tuple[Any, ...]


@dataclass(frozen=True)
class Window:
    """Kernel, stride, pad and dilation, one number per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]

    @cached_property
    def extent(self) -> tuple[int, ...]:
        """Return the extent of a window on each axis, dilation included."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation))

    @cached_property
    def pointwise(self) -> bool:
        """Return whether a window is one pixel: 1x1, stride 1, no padding."""
        return all(k == 1 for k in self.kernel) and all(s == 1 for s in self.stride) and not any(self.pad)

    @cached_property
    def dense(self) -> bool:
        """Return whether windows are one pixel apart and inside the map: stride 1, no padding."""
        return all(s == 1 for s in self.stride) and not any(self.pad)

    def reads(self) -> tuple[Axis, ...]:
        """Return the positions that a window covers."""
        axes = zip(self.stride, self.pad, self.extent, self.dilation)
        return tuple(Axis(stride, 1, -pad, extent - 1 - pad, dilation) for stride, pad, extent, dilation in axes)

    def transposed_reads(self) -> tuple[Axis, ...]:
        """Return the windows that cover a position."""
        axes = zip(self.stride, self.pad, self.extent)
        return tuple(Axis(1, stride, pad - extent + 1, pad) for stride, pad, extent in axes)

    def output(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Return how many windows fit on each axis of a map of this size; below 1 if none fits."""
        return tuple((n + 2 * p - e) // s + 1 for n, p, e, s in zip(spatial, self.pad, self.extent, self.stride))

    def input(self, windows: Sequence[int]) -> tuple[int, ...]:
        """Return the size of the smallest map that holds this number of windows: Deconvolution's output."""
        return tuple(s * (n - 1) + e - 2 * p for n, p, e, s in zip(windows, self.pad, self.extent, self.stride))


def convolve_by_definition(x: Array, weight: Array, window: Window, group: int) -> Array:
    """Return the convolution of x with the weights, in groups of channels.

    Parameters
    ----------
    x : (N, C, *map)
    weight : (M, C / group, *kernel)

    Returns
    -------
    y : (N, M, *output)
    """
    y, padded = np.zeros((len(x), len(weight), *window.output(x.shape[2:])), x.dtype), _padded(x, window)
    for of_weight, pixels in _weights_and_pixels(weight.shape, window, group, y.shape[2:]):
        y[:, of_weight[0]] += weight[of_weight] * padded[pixels]
    return y


def data_gradient_by_definition(dy: Array, weight: Array, window: Window, group: int, size: Sequence[int]) -> Array:
    """Return dx (N, C, *size), the loss's gradient in x, from dy (N, M, *output)."""
    padded = _padded(np.zeros((len(dy), group * weight.shape[1], *size), dy.dtype), window)
    for of_weight, pixels in _weights_and_pixels(weight.shape, window, group, dy.shape[2:]):
        padded[pixels] += weight[of_weight] * dy[:, of_weight[0]]
    inside: Index = (..., *(slice(p, p + n) for p, n in zip(window.pad, size)))
    return padded[inside]


def weight_gradient_by_definition(x: Array, dy: Array, window: Window, group: int) -> Array:
    """Return dweight (M, C / group, *kernel), the loss's gradient in the weights, from dy (N, M, *output)."""
    dweight, padded = np.zeros((dy.shape[1], x.shape[1] // group, *window.kernel), x.dtype), _padded(x, window)
    for of_weight, pixels in _weights_and_pixels(dweight.shape, window, group, dy.shape[2:]):
        dweight[of_weight] = np.sum(dy[:, of_weight[0]] * padded[pixels])
    return dweight


def _padded(x: Array, window: Window) -> Array:
    """Return x with the window's border of zeros around each map."""
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in window.pad)])


def _weights_and_pixels(
    weight: Sequence[int], window: Window, group: int, output: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Index]]:
    """Yield each weight's index (m, c, *tap), and the index of the pixels of padded maps that it meets in all windows."""
    filters, channels = weight[0] // group, weight[1]  # of one group
    for m, c, *tap in np.ndindex(*weight):
        of_axes = (slice(t * d, t * d + n * s, s) for t, d, n, s in zip(tap, window.dilation, output, window.stride))
        yield (m, c, *tap), (slice(None), m // filters * channels + c, *of_axes)


def read_window(layer: Layer, axes: int) -> Window:
    """Return the window of the layer's parameter block for that number of spatial axes. Raises LayerError."""
    window = Window(
        kernel=_per_axis(layer, "kernel_size", axes, None),
        stride=_per_axis(layer, "stride", axes, 1),
        pad=_per_axis(layer, "pad", axes, 0),
        dilation=_dilation(layer, axes),
    )
    for what, sizes in (("kernel", window.kernel), ("stride", window.stride), ("dilation", window.dilation)):
        if min(sizes) < 1:
            raise layer.error(f"{what} must be > 0 on every axis, got {_times(sizes)}", layer.param_block[0])
    return window


def checked_output(layer: Layer, window: Window, spatial: Sequence[int]) -> tuple[int, ...]:
    """Return window.output(spatial). Raises LayerError with the sizes."""
    output = window.output(spatial)
    if min(output) < 1:
        extent = f" (with dilation {_times(window.extent)})" if max(window.dilation) > 1 else ""
        raise layer.error(
            f"the map of {_times(spatial)} with padding {_times(window.pad)} is smaller than the kernel of "
            f"{_times(window.kernel)}{extent}",
            layer.param_block[0],
        )
    return output


def _per_axis(layer: Layer, field: str, axes: int, default: int | None) -> tuple[int, ...]:
    """Return the field's value for each axis. It is given once, once per axis, or (2-d) as one of PAIRS."""
    block = layer.param_block[0]
    param: Message = getattr(layer.param, block)
    path = f"{block}.{field}"
    listed = _given(param, field)
    high, wide = PAIRS.get(field, ("", ""))
    if high and (param.HasField(high) or param.HasField(wide)):
        if listed:
            raise layer.error(f"{field} and {high}, {wide} are both given: give one of them", path)
        if axes != 2:
            raise layer.error(f"{high} and {wide} need 2 spatial axes, the bottom has {axes}", f"{block}.{high}")
        return getattr(param, high), getattr(param, wide)
    if not listed and default is None:
        raise layer.error(f"{field} is missing: give {field}, or {high} and {wide}", path)
    if len(listed) not in (0, 1, axes):
        raise layer.error(f"{len(listed)} values of {field} given for {axes} spatial axes: give one, or one for each", path)
    # `or 0` is for mypy: kernel_size has no default and has raised already.
    return listed if len(listed) == axes else (listed[0] if listed else default or 0,) * axes


def _given(param: Message, field: str) -> tuple[int, ...]:
    """Return the field's values. PoolingParameter has one field for a single value, and one for several."""
    several = ONE_FOR_EACH_AXIS.get(field, "")
    if several in param.DESCRIPTOR.fields_by_name:
        single = (getattr(param, field),) if param.HasField(field) else ()
        return single + tuple(getattr(param, several))
    return tuple(getattr(param, field))


def _dilation(layer: Layer, axes: int) -> tuple[int, ...]:
    """Return the dilation, or DeepLab's hole or hole_h and hole_w (2-d) in convolution_param."""
    param = layer.param.convolution_param  # empty if the layer has another block
    dilation, given = _per_axis(layer, "dilation", axes, 1), [f for f in HOLES if param.HasField(f)]
    if not given:
        return dilation
    path = f"convolution_param.{given[0]}"
    if given not in (["hole"], ["hole_h", "hole_w"]):
        raise layer.error(f"give hole, or hole_h and hole_w, not {' and '.join(given)}", path)
    if len(given) == 2 and axes != 2:
        raise layer.error(f"hole_h and hole_w need 2 spatial axes, the bottom has {axes}", path)
    hole = (param.hole,) * axes if len(given) == 1 else (param.hole_h, param.hole_w)
    if param.dilation and dilation != hole:
        both = f"hole {_times(hole)} and dilation {_times(dilation)}"
        raise layer.error(f"{both} are both given, and differ: they are two names of one thing", path)
    return hole


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def folded(x: Array, axis: int) -> Array:
    """Return x (..., C, *map) as a view (N, C, *map), the axes before C folded into one."""
    return x.reshape(math.prod(x.shape[:axis]), *x.shape[axis:])


def overlap(first: int, step: int, count: int, size: int) -> tuple[slice, slice]:
    """Return which of the `count` positions first, first + step, ... lie in range(size): slices of both."""
    low = min(count, max(0, -(first // step)))  # ceil(-first / step): the first position >= 0
    high = max(low, min(count, -((first - size) // step)))  # ceil((size - first) / step): one past the last position < size
    inside = slice(first + low * step, first + (high - 1) * step + 1, step) if high > low else slice(0, 0)
    return slice(low, high), inside
