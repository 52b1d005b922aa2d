"""Reduction and Tile: axes summed, and an axis repeated."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import launch_sums
from minicaffe.layer import Unary
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis, along

SUM, ASUM, SUMSQ, MEAN = (caffe_pb2.ReductionParameter.ReductionOp.Value(name) for name in ("SUM", "ASUM", "SUMSQ", "MEAN"))


class Reduction(Unary):
    """y = coeff * sum of x (SUM, the default), |x| (ASUM), x^2 (SUMSQ), or the mean of x (MEAN) over the axes from `axis` on.

    Source: Caffe's reduction_layer.hpp.

    bottom: x (any shape). top: y, x's axes before `axis` (default 0: a scalar). The mean of no numbers is 0.
    Raises LayerError when axis is out of range.
    """

    type = "Reduction"
    param_block = ("reduction_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, shape = self.param.reduction_param, bottom[0].shape
        axis = self.axis_of(param.axis, bottom[0], "reduction_param.axis") if shape else 0  # a scalar has no axis 0
        self._split = math.prod(shape[:axis]), math.prod(shape[axis:])
        # MEAN is SUM with the number of elements in coeff.
        self.coeff = param.coeff / max(self._split[1], 1) if param.operation == MEAN else param.coeff
        self.copies = (1, 1) if param.operation == ASUM else (0, 0)
        top[0].reshape(shape[:axis])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].data.reshape(self._split)
        top[0].data[...] = (self.coeff * reduce(x, self.param.reduction_param.operation)).reshape(top[0].shape)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        (rows, numbers), operation = self._split, self.param.reduction_param.operation
        x, y = bottom[0].device_data("read"), top[0].device_data("write")
        launch_sums("reduction.reduction", self.dtype, rows, numbers, numbers, operation, self.coeff, x, y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        x, dx = bottom[0].data.reshape(self._split), bottom[0].diff.reshape(self._split)
        dy = self.coeff * top[0].diff.reshape(-1, 1)
        operation = self.param.reduction_param.operation
        if operation == ASUM:
            np.multiply(np.sign(x), dy, out=dx)  # 0 at 0, as in Caffe's sign
        elif operation == SUMSQ:
            np.multiply(x, 2 * dy, out=dx)
        else:
            dx[...] = dy

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            count, sizes = bottom[0].count, (self._split[1], self.param.reduction_param.operation)
            x, dy, dx = bottom[0].device_data("read"), top[0].device_diff("read"), bottom[0].device_diff("write")
            self.launch("reduction.reduction_backward", count, count, *sizes, self.coeff, x, dy, dx)


def reduce(x: Array, operation: int) -> Array:
    """Return the sum of each of rows (N, K), of its absolute values (ASUM) or of its squares (SUMSQ): (N,)."""
    if operation == SUMSQ:
        return np.einsum("nk,nk->n", x, x)  # type: ignore[no-any-return]
    return (np.abs(x) if operation == ASUM else x).sum(axis=1)  # type: ignore[no-any-return]


class Tile(Unary):
    """y = x, x, ... (`tiles` times) along `axis` (default 1); dx is the sum over the copies.

    Source: Caffe's tile_layer.hpp.

    bottom: x (..., K, ...). top: y (..., tiles * K, ...).
    Raises LayerError when axis is out of range or tiles is not positive.
    """

    type = "Tile"
    param_block = ("tile_param",)
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.tiles = self.param.tile_param.tiles
        if self.tiles < 1:
            raise self.error(f"tiles must be > 0, got {self.tiles}", "tile_param.tiles")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        axis = self.axis_of(self.param.tile_param.axis, bottom[0], "tile_param.axis")
        # to repeat everything from the axis on: (before, tiles, axis and after)
        self._split = math.prod(shape[:axis]), 1, math.prod(shape[axis:])
        top[0].reshape(*shape[:axis], self.tiles * shape[axis], *shape[axis + 1 :])

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        axis = self.axis_of(self.param.tile_param.axis, bottom[0])
        return along(axis, bottom[b].shape, Axis(modulo=bottom[b].shape[axis]))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        before, _, after = self._split
        top[0].data.reshape(before, self.tiles, after)[...] = bottom[0].data.reshape(self._split)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        self.launch("tile.tile", count, count, self.tiles, self._split[2], x, y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            before, _, after = self._split
            np.sum(
                top[0].diff.reshape(before, self.tiles, after), axis=1, keepdims=True, out=bottom[0].diff.reshape(self._split)
            )

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            count, dy, dx = bottom[0].count, top[0].device_diff("read"), bottom[0].device_diff("write")
            self.launch("tile.tile_backward", count, count, self.tiles, self._split[2], dy, dx)
