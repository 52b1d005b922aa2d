"""ChannelNorm: y = sqrt(the sum of x^2 over the channels). Source: FlowNet 2's channel_norm_layer.cu (Ilg et al., 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.reads import Axis, same_places


class ChannelNorm(Layer):
    """y[n, 0, ...] = sqrt(the sum over c of x[n, c, ...]^2); dx = dy x / y, and 0 where y is 0.

    bottom: x (N, C, ...). top: y (N, 1, ...).
    Raises LayerError when x has fewer than two axes.
    """

    type = "ChannelNorm"
    num_bottom = 1
    num_top = 1
    weight_names = ()
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) < 2:
            raise self.error(f"x must have at least two axes, got shape {shape}", "bottom[0]")
        top[0].reshape(shape[0], 1, *shape[2:])
        self.maps = shape[0], shape[1], math.prod(shape[2:])

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return same_places(bottom[b].shape, top[t].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].data.reshape(self.maps)
        y = top[0].data.reshape(self.maps[0], self.maps[2])
        np.einsum("ncp,ncp->np", x, x, out=y)
        np.sqrt(y, out=y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            y, dy = top[0].data, top[0].diff
            factor = np.divide(dy, y, out=np.zeros_like(y), where=y != 0)
            np.multiply(bottom[0].data, factor, out=bottom[0].diff)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        self.launch("channel_norm.channel_norm", count, count, *self.maps[1:], x, y)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            count, x, dx = bottom[0].count, bottom[0].device_data("read"), bottom[0].device_diff("write")
            pointers = x, top[0].device_data("read"), top[0].device_diff("read"), dx
            self.launch("channel_norm.channel_norm_backward", count, count, *self.maps[1:], *pointers)
