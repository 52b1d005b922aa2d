"""Slice: one bottom cut into tops along one axis; the opposite of Concat. Source: Caffe's slice_layer.hpp."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from minicaffe.blob import Blob
from minicaffe.cuda.blocks import launch_planes
from minicaffe.layer import Layer

from .concat import offsets, read_axis, rows


class Slice(Layer):
    """top[i] = the bottom between slice_point[i - 1] and slice_point[i] on `axis` (default 1; slice_dim is its older name).

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
        """Where the tops after the first start."""
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
