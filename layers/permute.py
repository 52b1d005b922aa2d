"""Permute: the axes in another order, y = transpose(x, order). Source: the SSD fork's permute_layer.cpp."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Blob
from minicaffe.layer import Layer


class Permute(Layer):
    """y = transpose(x, order): axis i of y is axis order[i] of x.

    bottom: x, any shape. top: y, of x's shape in that order. permute_param.order lists axes; those it leaves out follow
    in order, so that `order: 0 order: 2 order: 3 order: 1` makes (N, C, H, W) into (N, H, W, C).
    Raises LayerError for an axis that x does not have, or that is listed twice.
    """

    type = "Permute"
    num_bottom = 1
    num_top = 1
    param_block = ("permute_param",)
    weight_names = ()
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._table = Blob((0,), np.int32)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        axes, given = len(bottom[0].shape), list(self.param.permute_param.order)
        for i, axis in enumerate(given):
            if axis >= axes:
                raise self.error(f"order has axis {axis}; x of shape {bottom[0].shape} has {axes}", "permute_param.order")
            if axis in given[:i]:
                raise self.error(f"order lists axis {axis} twice", "permute_param.order")
        self.order = given + [axis for axis in range(axes) if axis not in given]
        top[0].reshape(*(bottom[0].shape[axis] for axis in self.order))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = bottom[0].data.transpose(self.order)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        self.launch("permute.gather", count, count, len(self.order), self._device_table(bottom[0], top[0]), x, y)

    def _device_table(self, x: Blob, y: Blob) -> int:
        """The address of y's lengths, and x's steps in y's order."""
        steps = steps_of(x.shape)
        return on_device(self._table, [*y.shape, *(steps[axis] for axis in self.order)])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff.transpose(np.argsort(self.order))  # argsort inverts a permutation

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            count, dy, dx = top[0].count, top[0].device_diff("read"), bottom[0].device_diff("write")
            self.launch("permute.scatter", count, count, len(self.order), self._device_table(bottom[0], top[0]), dy, dx)


def steps_of(shape: tuple[int, ...]) -> list[int]:
    """How far apart neighbours on each axis lie in memory, in numbers."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def on_device(table: Blob, numbers: ArrayLike) -> int:
    """The address of numbers (K,) on the GPU; copied there only when they are not what table (of int32) holds."""
    array = np.asarray(numbers, np.int32)
    if not np.array_equal(table.read_data(), array):  # the same at every forward, as a rule
        table.reshape(array.shape)
        table.data[...] = array
    return table.device_data("read")
