"""Tile: a blob repeated along one axis. Source: Caffe's tile_layer.hpp."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.reads import Axis, along


class Tile(Layer):
    """y = x, x, ... (`tiles` times) along `axis` (default 1); dx is the sum over the copies.

    bottom: x (..., K, ...). top: y (..., tiles * K, ...).
    Raises LayerError when axis is out of range or tiles is not positive.
    """

    type = "Tile"
    num_bottom = 1
    num_top = 1
    param_block = ("tile_param",)
    weight_names = ()
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.tiles = self.param.tile_param.tiles
        if self.tiles < 1:
            raise self.error(f"tiles must be > 0, got {self.tiles}", "tile_param.tiles")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        axis = self.axis_of(self.param.tile_param.axis, bottom[0], "tile_param.axis")
        self._split = math.prod(shape[:axis]), 1, math.prod(shape[axis:])  # tiled whole: (before, tiles, axis and after)
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
