"""Concat and Slice: blobs joined and cut along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from minicaffe.blob import Blob
from minicaffe.cuda.launches import launch_planes
from minicaffe.layer import Layer
from minicaffe.reads import Axis, along, moved


class Concat(Layer):
    """y = x_0, x_1, ... one after the other along `axis` (default 1; concat_dim is its older name).

    Source: Caffe's concat_layer.hpp.

    bottom[i]: x_i (..., K_i, ...), equal but for the axis. top: y (..., sum of K_i, ...). One bottom: top shares its memory.
    Raises LayerError when axis is out of range, both axis and concat_dim are given, or the other axes differ.
    """

    type = "Concat"
    num_bottom = (1, None)
    num_top = 1
    param_block = ("concat_param",)
    weight_names = ()
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.axis = read_axis(self, bottom[0], "concat_param", "concat_dim")
        shape = list(bottom[0].shape)
        for i, blob in enumerate(bottom):
            if without(blob.shape, self.axis) != without(bottom[0].shape, self.axis):
                raise self.error(
                    f"bottom {i} has shape {blob.shape}, bottom 0 has {bottom[0].shape}: only axis {self.axis} may differ",
                    f"bottom[{i}]",
                )
        shape[self.axis] = sum(blob.shape[self.axis] for blob in bottom)
        top[0].reshape(shape)
        if len(bottom) == 1:
            top[0].share(bottom[0])  # as in Caffe, a single bottom is not copied in either direction

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        before = sum(blob.shape[self.axis] for blob in bottom[:b])
        return along(self.axis, bottom[b].shape, moved(-before))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom) > 1:
            np.concatenate([blob.data for blob in bottom], self.axis, out=top[0].data)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom) > 1:
            y = top[0].device_data("write")
            for blob, offset in zip(bottom, offsets(bottom, self.axis), strict=True):
                x = blob.device_data("read")
                launch_planes("concat.put", self.dtype, *rows(blob, top[0], self.axis), offset, x, y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if len(bottom) == 1:
            return
        ends = np.cumsum([blob.shape[self.axis] for blob in bottom])
        parts = np.split(top[0].diff, ends[:-1], self.axis)
        for blob, part, wanted in zip(bottom, parts, propagate_down, strict=True):
            if wanted:
                blob.diff[...] = part

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if len(bottom) == 1 or not any(propagate_down):
            return
        dy = top[0].device_diff("read")
        for blob, offset, wanted in zip(bottom, offsets(bottom, self.axis), propagate_down, strict=True):
            if wanted:
                dx = blob.device_diff("write")
                launch_planes("concat.take", self.dtype, *rows(blob, top[0], self.axis), offset, dy, dx)


def read_axis(layer: Layer, x: Blob, block: str, older: str) -> int:
    """Return the block's axis, or its older field. Raises LayerError if both are given."""
    param = getattr(layer.param, block)
    if param.HasField("axis") and param.HasField(older):
        message = f"give axis or {older}, not both: axis {param.axis}, {older} {getattr(param, older)}"
        raise layer.error(message, block)
    field = older if param.HasField(older) else "axis"
    return layer.axis_of(getattr(param, field), x, f"{block}.{field}")


def rows(part: Blob, whole: Blob, axis: int) -> tuple[int, int, int]:
    """Return the number of rows, the numbers in a row of the part, and those of the whole.

    A row is contiguous from axis on.
    """
    return math.prod(part.shape[:axis]), math.prod(part.shape[axis:]), math.prod(whole.shape[axis:])


def offsets(parts: Sequence[Blob], axis: int) -> list[int]:
    """Return where each part begins in a row of the whole."""
    lengths = [math.prod(blob.shape[axis:]) for blob in parts]
    return [sum(lengths[:i]) for i in range(len(parts))]


def without(shape: tuple[int, ...], axis: int) -> tuple[int | None, ...]:
    """Return a shape with one axis masked, to compare the others."""
    return (*shape[:axis], None, *shape[axis + 1 :])


class Slice(Layer):
    """top[i] = the bottom between slice_point[i - 1] and slice_point[i] on `axis` (default 1; slice_dim is its older name).

    The opposite of Concat. Source: Caffe's slice_layer.hpp.

    Without slice_point the parts are equal.
    bottom: x (..., K, ...). top[i]: (..., K_i, ...), the K_i adding up to K. One top: it shares the bottom's memory.
    Raises LayerError when axis is out of range, both axis and slice_dim are given, the number of slice_point is not that
    of the tops less one, they do not increase or leave an empty top, or K cannot be cut equally.
    """

    type = "Slice"
    num_bottom = 1
    num_top = (1, None)
    param_block = ("slice_param",)
    weight_names = ()
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.slice_param
        if param.slice_point and len(param.slice_point) != len(top) - 1:
            raise self.error(
                f"{len(param.slice_point)} slice_point for {len(top)} tops: give {len(top) - 1}, or none",
                "slice_param.slice_point",
            )

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.axis = read_axis(self, bottom[0], "slice_param", "slice_dim")
        self.points = self._points(bottom[0].shape, len(top))
        shape = list(bottom[0].shape)
        for blob, start, end in zip(top, [0, *self.points], [*self.points, shape[self.axis]], strict=True):
            blob.reshape(*shape[: self.axis], end - start, *shape[self.axis + 1 :])
        if len(top) == 1:
            top[0].share(bottom[0])

    def _points(self, shape: tuple[int, ...], tops: int) -> list[int]:
        """Return where the tops after the first start."""
        length, points = shape[self.axis], list(self.param.slice_param.slice_point)
        if not points:
            if length % tops:
                raise self.error(f"axis {self.axis} of shape {shape} has length {length}: no {tops} equal parts", "top")
            return [length // tops * i for i in range(1, tops)]
        ends = [0, *points, length]
        if any(a >= b for a, b in pairwise(ends)):
            raise self.error(
                f"slice_point {points} must increase, between 0 and the length {length} of axis {self.axis} of shape {shape}",
                "slice_param.slice_point",
            )
        return points

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return along(self.axis, bottom[b].shape, moved([0, *self.points][t]))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(top) > 1:
            for blob, part in zip(top, np.split(bottom[0].data, self.points, self.axis), strict=True):
                blob.data[...] = part

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(top) > 1:
            x = bottom[0].device_data("read")
            for blob, offset in zip(top, offsets(top, self.axis), strict=True):
                y = blob.device_data("write")
                launch_planes("concat.take", self.dtype, *rows(blob, bottom[0], self.axis), offset, x, y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if len(top) > 1 and propagate_down[0]:
            np.concatenate([blob.diff for blob in top], self.axis, out=bottom[0].diff)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if len(top) > 1 and propagate_down[0]:
            dx = bottom[0].device_diff("write")
            for blob, offset in zip(top, offsets(top, self.axis), strict=True):
                dy = blob.device_diff("read")
                launch_planes("concat.put", self.dtype, *rows(blob, bottom[0], self.axis), offset, dy, dx)
