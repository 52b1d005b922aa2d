"""Resample and Downsample, which resize maps, and Accum. Downsample treats NaN as unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob, checked_shape
from minicaffe.layer import Layer
from minicaffe.layers.shape.interp import Taps, neighbours, sample, scatter
from minicaffe.proto import caffe_pb2


class Accum(Layer):
    """y[:, the channels of bottom k] = bottom k, resized to (H, W).

    Maps are resized bilinearly, with aligned corners. The size is that of the largest bottom, or a larger one that is given.
    Source: FlowNet 2's accum_layer.cpp (Ilg et al., 2017).

    bottom: x_0 (N, C_0, H_0, W_0), ..., and with have_reference at last a blob of the wanted size. top: y (N, sum of C_k, H,
    W): accum_param's top_height and top_width, or the largest sizes rounded up to multiples of size_divisible_by, where both
    are larger than every bottom's; else the largest of the bottoms'.
    Raises LayerError for bottoms without four axes and a pixel, for other numbers of images, and for a reference without a map.
    """

    type = "Accum"
    num_bottom = (1, None)
    num_top = 1
    param_block = ("accum_param",)
    weight_names = ()
    copies = (0, 1)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.accum_param
        self.maps = len(bottom) - param.have_reference
        self.axes: list[list[Taps]] = []
        if not self.maps:
            raise self.error("have_reference needs a map and, at last, the reference", "bottom")
        if param.HasField("size_divisible_by") and not param.size_divisible_by:
            raise self.error("size_divisible_by must be at least 1", "accum_param.size_divisible_by")
        if param.have_reference:
            self.index_bottoms = (self.maps,)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for i, blob in enumerate(bottom):
            if len(blob.shape) != 4 or 0 in blob.shape[2:]:
                raise self.error(f"the maps must be (N, C, H, W) with pixels, got shape {blob.shape}", f"bottom[{i}]")
            if blob.shape[0] != bottom[0].shape[0] and i < self.maps:
                raise self.error(f"all bottoms need {bottom[0].shape[0]} images, got shape {blob.shape}", f"bottom[{i}]")
        maps = bottom[: self.maps]
        size = self._size(bottom)
        top[0].reshape(bottom[0].shape[0], sum(blob.shape[1] for blob in maps), *size)
        axes = [[Taps(one, out) for one, out in zip(blob.shape[2:], size)] for blob in maps]
        if axes != self.axes:  # for equal sizes, keep what the taps have computed
            self.axes = axes

    def _size(self, bottom: Sequence[Blob]) -> tuple[int, ...]:
        param = self.param.accum_param
        if param.have_reference:
            return bottom[-1].shape[2:]
        largest = tuple(max(sizes) for sizes in zip(*(blob.shape[2:] for blob in bottom)))
        wanted = param.top_height, param.top_width
        if step := param.size_divisible_by:
            wanted = -(-largest[0] // step) * step, -(-largest[1] // step) * step
        return wanted if all(a > b for a, b in zip(wanted, largest)) else largest

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        first = 0
        for blob, axes in zip(bottom, self.axes):
            last = first + blob.shape[1]
            for x, y in zip(blob.data, top[0].data[:, first:last]):
                sample(neighbours(axes[0], axes[1], self.dtype), x, y)
            first = last

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        first = 0
        for blob, axes, wanted in zip(bottom, self.axes, propagate_down):
            last = first + blob.shape[1]
            for dy, dx in zip(top[0].diff[:, first:last], blob.diff) if wanted else ():
                scatter(neighbours(axes[0], axes[1], self.dtype), dy, dx)
            first = last


_TYPE = caffe_pb2.ResampleParameter
NEAREST, LINEAR, CUBIC = _TYPE.NEAREST, _TYPE.LINEAR, _TYPE.CUBIC


class Resample(Layer):
    """Maps resized with the nearest pixel, or with a linear or cubic filter.

        y = A x B^T,  dx = A^T dy B,  with the filter's weights of rows in A (h, H) and of columns in B (w, W),
        each row divided by its sum

    Place i of w columns lies at i f_x + f_y / 2 - 1/2 of W, with f_x = W / w and f_y = H / h: the fork exchanged the two
    halves. Where maps shrink, antialias stretches the filter by f_x and f_y. Positions are float32 in float64 nets too.
    Source: FlowNet 2's resample_layer.cu (Ilg et al., 2017).

    bottom: x (N, C, H, W), optionally a map of the wanted size. top: y (N, C, height, width), of resample_param or the map.
    resample_param: type (NEAREST, LINEAR or CUBIC), antialias.
    Raises LayerError for bottoms without four axes and a pixel, a size of 0, and the type AREA, which the fork lacks too.
    """

    type = "Resample"
    num_bottom = (1, 2)
    num_top = 1
    param_block = ("resample_param",)
    index_bottoms = (1,)
    weight_names = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.param.resample_param.type not in (NEAREST, LINEAR, CUBIC):
            raise self.error("type must be NEAREST, LINEAR or CUBIC: AREA is not built", "resample_param.type")
        self.filters: tuple[Filter, ...] = ()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for i, blob in enumerate(bottom):
            if len(blob.shape) != 4 or 0 in blob.shape[2:]:
                raise self.error(f"the maps must be (N, C, H, W) with pixels, got shape {blob.shape}", f"bottom[{i}]")
        param, shape = self.param.resample_param, bottom[0].shape
        size = bottom[1].shape[2:] if len(bottom) > 1 else (param.height, param.width)
        if 0 in size:
            raise self.error("needs height > 0 and width > 0, or a second bottom", "resample_param")
        top[0].reshape(*shape[:2], *size)
        fy, fx = (np.float32(a) / np.float32(b) for a, b in zip(shape[2:], size))
        antialias = param.antialias and max(fx, fy) > 1
        filters = (
            Filter(shape[2], size[0], fy, fx, param.type, antialias, self.dtype),
            Filter(shape[3], size[1], fx, fy, param.type, antialias, self.dtype),
        )
        for axis in filters:
            checked_shape((axis.output, axis.size))  # the matrix may be larger than the maps
        if filters != self.filters:  # for equal sizes, keep the matrices
            self.filters = filters

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        rows, columns = (axis.matrix for axis in self.filters)
        top[0].data[...] = rows @ bottom[0].data @ columns.T

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            rows, columns = (axis.matrix for axis in self.filters)
            bottom[0].diff[...] = rows.T @ top[0].diff @ columns


@dataclass(frozen=True)
class Filter:
    """The share of each of `size` pixels on an axis in each of `output` positions.

    step, other: pixels for each position on this axis and on the other one.
    """

    size: int
    output: int
    step: np.float32
    other: np.float32
    kind: int
    antialias: bool
    dtype: np.dtype[Any]

    @cached_property
    def matrix(self) -> Array:
        """Return (output, size), computed on first use, when a blob's memory is allocated too."""
        at = np.arange(self.output, dtype=np.float32) * self.step + self.other / np.float32(2) - np.float32(0.5)
        if self.kind == NEAREST:
            nearest = np.trunc(at + np.copysign(np.float32(0.5), at))
            return np.asarray(np.arange(self.size) == nearest.clip(0, self.size - 1)[:, None], self.dtype)
        away = np.abs(at[:, None] - np.arange(self.size, dtype=np.float32)) / (self.step if self.antialias else np.float32(1))
        matrix = (cubic if self.kind == CUBIC else linear)(away.astype(np.float64))
        total = matrix.sum(axis=1, keepdims=True)
        return np.asarray(np.divide(matrix, total, out=np.zeros_like(matrix), where=total != 0), self.dtype)


def linear(x: Array) -> Array:
    """Return max(0, 1 - x), for x >= 0."""
    return np.asarray(np.maximum(1 - x, 0))


def cubic(x: Array) -> Array:
    """Return Keys' cubic with a = -1/2, for x >= 0."""
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


class Downsample(Layer):
    """Maps made smaller with a linear filter and aligned corners; NaN counts as unknown. No gradient, as in the fork.

        y = A x B^T / A (x is known) B^T, with the weights max(0, 1 - |place - pixel| / ratio) of rows in A (h, H), of columns
        in B (w, W)

    Place i of h lies at i ratio, ratio = (H - 1) / (h - 1); y is NaN where more than half as much weight is unknown as known.
    Source: FlowNet 2's downsample_layer.cu (Ilg et al., 2017).

    bottom: x (N, C, H, W), optionally a map of the wanted size. top: y (N, C, top_height, top_width), of downsample_param or
    the map. A map of the wanted size is copied.
    Raises LayerError for bottoms without four axes and a pixel, and for a size that is 0, 1 or larger than the map's.
    """

    type = "Downsample"
    num_bottom = (1, 2)
    num_top = 1
    param_block = ("downsample_param",)
    weight_names = ()
    has_gradient = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for i, blob in enumerate(bottom):
            if len(blob.shape) != 4 or 0 in blob.shape[2:]:
                raise self.error(f"the maps must be (N, C, H, W) with pixels, got shape {blob.shape}", f"bottom[{i}]")
        param, shape = self.param.downsample_param, bottom[0].shape
        size = bottom[1].shape[2:] if len(bottom) > 1 else (param.top_height, param.top_width)
        self.same = size == shape[2:]
        if not self.same and (min(size) < 2 or any(a > b for a, b in zip(size, shape[2:]))):
            raise self.error(
                f"the size must be from 2 x 2 to the map's {shape[2]} x {shape[3]}, got {size}", "downsample_param"
            )
        if not self.same:
            self.rows, self.columns = (weights(a, b).astype(self.dtype) for a, b in zip(shape[2:], size))
        top[0].reshape(*shape[:2], *size)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if self.same:
            y[...] = x
            return
        unknown = np.isnan(x)
        if not unknown.any():
            total = self.rows.sum(axis=1)[:, None] * self.columns.sum(axis=1)
            np.divide(self.rows @ x @ self.columns.T, total, out=y)
            return
        known, lost = (self.rows @ mask.astype(self.dtype) @ self.columns.T for mask in (~unknown, unknown))
        values = self.rows @ np.where(unknown, self.dtype.type(0), x) @ self.columns.T
        y[...] = np.nan
        np.divide(values, known, out=y, where=lost <= known / 2)


def weights(size: int, output: int) -> Array:
    """Return each pixel's weight in each output position (output, size), before division by their sum."""
    ratio = np.float32(size - 1) / np.float32(output - 1)
    at = np.arange(output, dtype=np.float32) / np.float32(output - 1) * np.float32(size - 1)
    return np.asarray(np.maximum(0, 1 - np.abs(np.arange(size, dtype=np.float32) - at[:, None]) / ratio))
