"""LRN: local response normalisation, y = x / scale^beta.

    ACROSS_CHANNELS: scale = k + alpha / local_size * sum of x^2 over local_size channels around this one
    WITHIN_CHANNEL:  scale = 1 + alpha / local_size^2 * sum of x^2 over local_size x local_size pixels around this one
Channels and pixels off the map count as 0, and stay in the divisor. Within a channel k is not looked at.
Source: Krizhevsky et al. 2012, section 3.3; Caffe's lrn_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

Array = NDArray[Any]

WITHIN_CHANNEL = caffe_pb2.LRNParameter.NormRegion.Value("WITHIN_CHANNEL")

BLOCK = 1 << 17
"""About how many numbers are worked on at a time, so that they stay in cache."""

SHORTEST_RUN = 64
"""Fewest pixels of a map taken at a time."""


class LRN(Layer):
    """y = x * scale^-beta, scale growing with the energy of the channels, or pixels, around.

    bottom: x (N, C, H, W). top: y of the same shape.
    Raises LayerError when local_size is even, or the bottom has not 4 axes.
    """

    type = "LRN"
    num_bottom = 1
    num_top = 1

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.lrn_param
        if param.local_size % 2 == 0:
            raise self.error(f"local_size must be odd, got {param.local_size}", "lrn_param.local_size")
        within = param.norm_region == WITHIN_CHANNEL
        self.axes = (1, 2) if within else (1,)  # of a block
        self.size, self.beta, self.k = param.local_size, param.beta, 1.0 if within else param.k
        self.alpha = param.alpha / param.local_size ** len(self.axes)
        self._ratio = Blob((0,), self.dtype)  # on the GPU: what backward adds up

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom[0].shape) != 4:
            raise self.error(f"the bottom must have 4 axes (N, C, H, W), its shape is {bottom[0].shape}", "bottom[0]")
        top[0].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for x, y in self._blocks(bottom[0].data, top[0].data):
            np.divide(x, powered(self._scale(x), self.beta), out=y)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        self.launch("lrn.lrn", count, count, *self._neighbours(top[0]), self.alpha, self.beta, self.k, x, y)

    def _neighbours(self, x: Blob) -> tuple[int, ...]:
        """Length and stride of the one or two axes that sums go over, and how far they reach."""
        _, c, h, w = x.shape
        return (*((h, w, w, 1) if len(self.axes) == 2 else (c, h * w, 1, 1)), self.size // 2)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            for x, dy, dx in self._blocks(bottom[0].data, top[0].diff, bottom[0].diff):
                scale = self._scale(x)
                direct = dy / powered(scale, self.beta)
                ratio = np.multiply(direct, x)
                ratio /= scale
                around = neighbour_sum(ratio, self.axes, self.size)
                around *= x
                around *= 2 * self.alpha * self.beta
                np.subtract(direct, around, out=dx)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        count, around = top[0].count, self._neighbours(top[0])
        self._ratio.reshape(top[0].shape)
        x, dy, dx = bottom[0].device_data("read"), top[0].device_diff("read"), bottom[0].device_diff("write")
        ratio = self._ratio.device_data("write")
        self.launch("lrn.lrn_ratio", count, count, *around, self.alpha, self.beta, self.k, x, dy, dx, ratio)
        self.launch("lrn.lrn_spread", count, count, *around, 2 * self.alpha * self.beta, x, ratio, dx)

    def _scale(self, x: Array) -> Array:
        """k + alpha * sum of x^2 over the neighbours; alpha with the division by their number in it."""
        scale = neighbour_sum(np.square(x), self.axes, self.size)
        scale *= self.alpha
        scale += self.k
        return scale

    def _blocks(self, *arrays: Array) -> Iterator[tuple[Array, ...]]:
        """Views of arrays (N, C, H, W) that hold whole neighbourhoods and stay in cache with what is made of them:
        some maps each (maps, H, W) within a channel, some pixels of every map (N, C, pixels) across channels."""
        n, c, h, w = arrays[0].shape
        maps = len(self.axes) == 2
        length, each = (n * c, h * w) if maps else (h * w, n * c)
        step = max(BLOCK // max(each, 1), 1 if maps else SHORTEST_RUN)
        shape = (n * c, h, w) if maps else (n, c, h * w)
        for start in range(0, length, step):
            part = slice(start, start + step)
            yield tuple(x.reshape(shape)[part if maps else (..., part)] for x in arrays)


def neighbour_sum(x: Array, axes: Sequence[int], size: int) -> Array:
    """The sum over `size` (odd) places around each on the given axes, 0 past the ends; one shifted addition a place."""
    for axis in axes:
        total, length = x.copy(), x.shape[axis]
        source, target = np.moveaxis(x, axis, 0), np.moveaxis(total, axis, 0)
        for shift in range(1, min(size // 2, length - 1) + 1):
            target[shift:] += source[: length - shift]
            target[: length - shift] += source[shift:]
        x = total
    return x


def powered(scale: Array, beta: float) -> Array:
    """scale^beta; by square roots for beta 0.75, which is what nets have and several times as fast as a power."""
    if beta != 0.75:
        power: Array = np.power(scale, scale.dtype.type(beta))
        return power
    root = np.sqrt(scale)
    power = np.sqrt(root)
    power *= root
    return power
