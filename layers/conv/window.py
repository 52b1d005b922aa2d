"""The sliding window of a convolution's block: kernel, stride, padding and dilation per spatial axis.

    output = floor((input + 2 pad - (dilation (kernel - 1) + 1)) / stride) + 1

DeepLab's first Caffe calls the dilation hole.
Source: Caffe's base_conv_layer.cpp, LayerSetUp and compute_output_shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from google.protobuf.message import Message

from minicaffe.blob import Array
from minicaffe.layer import Layer

PAIRS = {"kernel": ("kernel_h", "kernel_w"), "stride": ("stride_h", "stride_w"), "pad": ("pad_h", "pad_w")}
"""The fields of each axis, of two; dilation has none."""

HOLES: tuple[Literal["hole", "hole_h", "hole_w"], ...] = ("hole", "hole_h", "hole_w")


@dataclass(frozen=True)
class Window:
    """Kernel, stride, pad and dilation, one number per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]

    @cached_property
    def extent(self) -> tuple[int, ...]:
        """How far a window reaches on each axis, holes of the dilation included."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation))

    @cached_property
    def pointwise(self) -> bool:
        """Whether a window is one pixel: 1x1, stride 1, no padding."""
        return all(k == 1 for k in self.kernel) and all(s == 1 for s in self.stride) and not any(self.pad)

    @cached_property
    def dense(self) -> bool:
        """Whether neighbouring windows are one pixel apart and none reaches over the rim: stride 1, no padding."""
        return all(s == 1 for s in self.stride) and not any(self.pad)

    def output(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """How many windows fit on each axis of a map of this size; below 1 where none does."""
        return tuple((n + 2 * p - e) // s + 1 for n, p, e, s in zip(spatial, self.pad, self.extent, self.stride))

    def input(self, windows: Sequence[int]) -> tuple[int, ...]:
        """The smallest map that holds that number of windows: what Deconvolution makes."""
        return tuple(s * (n - 1) + e - 2 * p for n, p, e, s in zip(windows, self.pad, self.extent, self.stride))


def read_window(layer: Layer, axes: int) -> Window:
    """The window that the layer's block gives for that number of spatial axes. Raises LayerError."""
    window = Window(
        kernel=_per_axis(layer, "kernel", "kernel_size", axes, None),
        stride=_per_axis(layer, "stride", "stride", axes, 1),
        pad=_per_axis(layer, "pad", "pad", axes, 0),
        dilation=_dilation(layer, axes),
    )
    for what, sizes in (("kernel", window.kernel), ("stride", window.stride), ("dilation", window.dilation)):
        if min(sizes) < 1:
            raise layer.error(f"{what} must be > 0 on every axis, got {_times(sizes)}", layer.param_block[0])
    return window


def checked_output(layer: Layer, window: Window, spatial: Sequence[int]) -> tuple[int, ...]:
    """window.output(spatial), or a LayerError that names the sizes."""
    output = window.output(spatial)
    if min(output) < 1:
        extent = f" (with dilation {_times(window.extent)})" if max(window.dilation) > 1 else ""
        raise layer.error(
            f"the map of {_times(spatial)} with padding {_times(window.pad)} is smaller than the kernel of "
            f"{_times(window.kernel)}{extent}",
            layer.param_block[0],
        )
    return output


def _per_axis(layer: Layer, what: str, field: str, axes: int, default: int | None) -> tuple[int, ...]:
    """A field given once, once per axis, or (2-d) as one of PAIRS."""
    block = layer.param_block[0]
    param: Message = getattr(layer.param, block)
    path = f"{block}.{field}"
    listed = tuple(getattr(param, field))
    high, wide = PAIRS.get(what, ("", ""))
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
    # `or 0` is for mypy: kernel_size, without a default, has raised
    return listed if len(listed) == axes else (listed[0] if listed else default or 0,) * axes


def _dilation(layer: Layer, axes: int) -> tuple[int, ...]:
    """dilation, or under DeepLab's names in convolution_param hole, or hole_h and hole_w (2-d)."""
    param = layer.param.convolution_param  # empty where the layer has another block
    dilation, given = _per_axis(layer, "dilation", "dilation", axes, 1), [f for f in HOLES if param.HasField(f)]
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
    """x (..., C, *map) with the axes before C as one: (N, C, *map), a view."""
    return x.reshape(math.prod(x.shape[:axis]), *x.shape[axis:])
