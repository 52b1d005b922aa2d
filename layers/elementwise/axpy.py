"""Axpy: out = a x + y, with one number a for each map. Source: SENet's axpy_layer.hpp (Hu et al., 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.cuda.blocks import launch_planes, launch_sums
from minicaffe.layer import Layer


class Axpy(Layer):
    """out[n, c, ...] = a[n, c] x[n, c, ...] + y[n, c, ...]; da[n, c] = the sum of dout x, dx = a dout, dy = dout.

    bottom: a (N, C) or (N, C, 1, ...), x (N, C, ...), y (x's shape). top: out (x's shape).
    Raises LayerError when x has fewer than two axes, a lacks one number for each map, or y and x differ in shape.
    """

    type = "Axpy"
    num_bottom = 3
    num_top = 1
    weight_names = ()
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, x, y = (blob.shape for blob in bottom)
        if len(x) < 2:
            raise self.error(f"x must have at least two axes, got shape {x}", "bottom[1]")
        if a != x[:2] + (1,) * (len(a) - 2):
            raise self.error(f"a must have one number for each map, shape {x[:2]}, got {a}", "bottom[0]")
        if y != x:
            raise self.error(f"x and y must have the same shape, got {x} and {y}", "bottom[2]")
        top[0].reshape(x)
        self.maps, self.positions = x[0] * x[1], math.prod(x[2:])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a = bottom[0].data.reshape(self.maps, 1)
        x, y, out = (blob.data.reshape(self.maps, self.positions) for blob in (*bottom[1:], *top))
        np.multiply(a, x, out=out)
        out += y

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        a, x, y = bottom
        dout = top[0].diff.reshape(self.maps, self.positions)
        if propagate_down[0]:
            np.einsum("mp,mp->m", dout, x.data.reshape(dout.shape), out=a.diff.reshape(-1))
        if propagate_down[1]:
            np.multiply(dout, a.data.reshape(self.maps, 1), out=x.diff.reshape(dout.shape))
        if propagate_down[2]:
            y.diff[...] = top[0].diff

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, x, y = (blob.device_data("read") for blob in bottom)
        launch_planes("axpy.axpy", self.dtype, self.maps, self.positions, a, x, y, top[0].device_data("write"))

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        a, x, y = bottom
        dout = top[0].device_diff("read")
        if propagate_down[0]:
            pointers = dout, x.device_data("read"), a.device_diff("write")
            launch_sums("axpy.axpy_sums", self.dtype, self.maps, self.positions, self.positions, *pointers)
        dx = x.device_diff("write") if propagate_down[1] else 0
        dy = y.device_diff("write") if propagate_down[2] else 0
        launch_planes("axpy.axpy_backward", self.dtype, self.maps, self.positions, a.device_data("read"), dout, dx, dy)
