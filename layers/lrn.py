"""LRN: local response normalisation, y = x / scale^beta.

    ACROSS_CHANNELS: scale = k + alpha / local_size * sum of x^2 over local_size channels around this one
    WITHIN_CHANNEL:  scale = 1 + alpha / local_size^2 * sum of x^2 over local_size x local_size pixels around this one
Channels and pixels off the map count as 0, and stay in the divisor. Within a channel k is not looked at.
Source: Krizhevsky et al. 2012, section 3.3; Caffe's lrn_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

WITHIN_CHANNEL = caffe_pb2.LRNParameter.NormRegion.Value("WITHIN_CHANNEL")


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
        self.axes = (2, 3) if within else (1,)
        self.size, self.beta, self.k = param.local_size, param.beta, 1.0 if within else param.k
        self.alpha = param.alpha / param.local_size ** len(self.axes)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom[0].shape) != 4:
            raise self.error(f"the bottom must have 4 axes (N, C, H, W), its shape is {bottom[0].shape}", "bottom[0]")
        top[0].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].data
        self._scale = lrn_scale(x, self.axes, self.size, self.alpha, self.k)
        np.multiply(x, negative_power(self._scale, self.beta), out=top[0].data)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            x, dy, dx = bottom[0].data, top[0].diff, bottom[0].diff
            direct = dy * negative_power(self._scale, self.beta)
            np.divide(direct * x, self._scale, out=dx)
            around = neighbour_sum(dx, self.axes, self.size)
            around *= x
            around *= 2 * self.alpha * self.beta
            np.subtract(direct, around, out=dx)


def lrn_scale(x: NDArray[Any], axes: Sequence[int], size: int, alpha: float, k: float) -> NDArray[Any]:
    """k + alpha * sum of x^2 over `size` places around each on the given axes of x (N, C, H, W)."""
    scale = neighbour_sum(np.square(x), axes, size)
    scale *= alpha
    scale += k
    return scale


def neighbour_sum(x: NDArray[Any], axes: Sequence[int], size: int) -> NDArray[Any]:
    """The sum over `size` (odd) places around each on the given axes, 0 past the ends; one shifted addition a place."""
    for axis in axes:
        total, length = x.copy(), x.shape[axis]
        source, target = np.moveaxis(x, axis, 0), np.moveaxis(total, axis, 0)
        for shift in range(1, min(size // 2, length - 1) + 1):
            target[shift:] += source[: length - shift]
            target[: length - shift] += source[shift:]
        x = total
    return x


def negative_power(scale: NDArray[Any], beta: float) -> NDArray[Any]:
    """scale^-beta; by square roots for beta 0.75, which is what nets have and several times as fast as a power."""
    if beta != 0.75:
        power: NDArray[Any] = np.power(scale, scale.dtype.type(-beta))
        return power
    root = np.sqrt(scale)
    power = np.sqrt(root)
    power *= root
    np.reciprocal(power, out=power)
    return power
